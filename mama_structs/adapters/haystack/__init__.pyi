from .components import HaystackRetriever as HaystackRetriever
from .components import HaystackToolResultStore as HaystackToolResultStore
from .document_store import HaystackDocumentStore as HaystackDocumentStore
from .toolkit import HaystackRecallHook as HaystackRecallHook
from .toolkit import HaystackToolset as HaystackToolset
