from .stores import SessionKeyValueStore as SessionKeyValueStore
from .stores import SessionRetriever as SessionRetriever
from .stores import embedder as embedder
from .toolkit import middleware as middleware
from .toolkit import tools as tools
from .vector_store import SessionVectorStore as SessionVectorStore
