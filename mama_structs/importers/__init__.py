"""
Importers for memories that other programs have stored. The files of these programs are only read.

`import_from` imports memories of mem0, LangGraph stores, MCP's memory server, basic-memory and claude-mem, and the
transcripts of Claude Code. `migrate_v1` imports a database of MAMA v1.0, and `rollback_v1` deletes the memories of a
migration again.
"""

from mama_structs._internal.lazy_import import make_lazy_exports

__getattr__, __dir__, __all__ = make_lazy_exports(__name__)
