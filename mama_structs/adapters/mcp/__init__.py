"""
A session's tools over the Model Context Protocol (official SDK): stdio and HTTP.

``mama-structs serve-mcp STORE`` is enough for most users. A host that embeds the server calls `server`, `serve_stdio`
and `serve_http` itself.
"""

try:
    from mama_structs.adapters.mcp.clients import EXTENSION
    from mama_structs.adapters.mcp.http import serve_http
    from mama_structs.adapters.mcp.server import MESSAGE_KEY, MESSAGE_METHOD, McpServer, MessageParams, server
    from mama_structs.adapters.mcp.stdio import serve_stdio
except ModuleNotFoundError as _missing:
    if (_missing.name or "").startswith("mama_structs"):
        raise
    _message = f"{_missing.name} is not installed: pip install 'mama-structs[mcp]'"
    raise ModuleNotFoundError(_message, name=_missing.name) from _missing

__all__ = [
    "EXTENSION",
    "MESSAGE_KEY",
    "MESSAGE_METHOD",
    "McpServer",
    "MessageParams",
    "serve_http",
    "serve_stdio",
    "server",
]
