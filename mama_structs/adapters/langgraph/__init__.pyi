from .checkpoints import LangGraphCheckpointer as LangGraphCheckpointer
from .store import LangGraphStore as LangGraphStore
