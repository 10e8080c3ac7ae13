from .artifacts import AdkArtifactService as AdkArtifactService
from .memory import AdkMemoryService as AdkMemoryService
