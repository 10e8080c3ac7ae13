from .artifacts import AdkArtifactService as AdkArtifactService
from .memory import AdkMemoryService as AdkMemoryService
from .toolkit import AdkRecallPlugin as AdkRecallPlugin
from .toolkit import AdkToolset as AdkToolset
