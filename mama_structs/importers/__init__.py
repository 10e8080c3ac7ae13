"""
Importers for memories of other programs, whose files they do not change.

`import_from` imports memories of mem0, LangGraph stores, MCP's memory server and basic-memory.
"""

from mama_structs._internal.lazy_import import make_lazy_exports

__getattr__, __dir__, __all__ = make_lazy_exports(__name__, __file__)
