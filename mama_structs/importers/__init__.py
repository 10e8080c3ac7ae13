"""
Importers for memories of other programs, whose files they do not change.

`import_from` imports memories of mem0, LangGraph stores, MCP's memory server and basic-memory.
"""

from mama_structs._internal.lazy_import import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
