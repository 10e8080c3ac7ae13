from .stores import SessionKeyValueStore as SessionKeyValueStore
from .stores import SessionRetriever as SessionRetriever
from .stores import embedder_from_langchain as embedder_from_langchain
from .toolkit import middleware as middleware
from .toolkit import tools as tools
from .vector_store import SessionVectorStore as SessionVectorStore
