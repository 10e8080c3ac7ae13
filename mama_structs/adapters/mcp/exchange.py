"""Between our values and the protocol's: tools, answers, and what a request says beside its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import mcp_types as types
from mcp.server import ServerRequestContext
from mcp.server.connection import Connection

from mama_structs.adapters.answers import Answer
from mama_structs.tools.tool import Tool

# A request's `_meta` may say what the user wrote; the protocol itself has no word for it.
MESSAGE_KEY: Final = "mama-structs/message"
# As a request of its own, for hosts that have nothing else to ask at the time.
MESSAGE_METHOD: Final = "mama-structs/message"
# An extension of the protocol: its setting "client" tells apart the clients of a stateless connection.
EXTENSION: Final = "mama-structs/exposure"

_MAX_HANDLE: Final = 128
_IS_HEARD: Final = "mama-structs/end"


def wire_tool(wire: str, tool: Tool) -> types.Tool:
    """
    Return a tool as the protocol lists it.

    Args:
        wire: Its name on the wire.
        tool: The tool.

    """
    hints = tool.annotations
    return types.Tool(
        name=wire,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema if is_structured(tool) else None,
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=hints.read_only,
            destructive_hint=hints.destructive,
            idempotent_hint=hints.idempotent,
            open_world_hint=hints.open_world,
        ),
    )


def is_structured(tool: Tool) -> bool:
    """
    Tell whether a tool's results are what its output schema says.

    A result that `mama_structs.Session.call` may turn into a descriptor is not; and before 2026-07-28 the protocol
    takes schemas of objects only.
    """
    return not tool.wrapped and tool.output_schema is not None and tool.output_schema.get("type") == "object"


def wire_result(answer: Answer, tool: Tool | None) -> types.CallToolResult:
    """
    Return a call's answer as the protocol gives it.

    Args:
        answer: What the model is told.
        tool: Which tool was called; None where there is no such tool, or none that is listed.

    """
    is_data = tool is not None and not answer.is_error and is_structured(tool)
    return types.CallToolResult(
        content=[types.TextContent(text=answer.text)],
        structured_content=answer.data if is_data else None,
        is_error=answer.is_error,
    )


def message_in(ctx: ServerRequestContext[Any]) -> str | None:
    """Return what the user wrote, where a request says it."""
    message = (ctx.meta or {}).get(MESSAGE_KEY)
    return message if isinstance(message, str) else None


def client_handle(ctx: ServerRequestContext[Any]) -> str | None:
    """Return by what a client of a stateless connection wants to be known; it says so in each request."""
    capabilities = ctx.session.client_capabilities
    settings = ((capabilities.extensions if capabilities else None) or {}).get(EXTENSION)
    handle = settings.get("client") if isinstance(settings, dict) else None
    return handle if isinstance(handle, str) and 0 < len(handle) <= _MAX_HANDLE else None


def when_ended(ctx: ServerRequestContext[Any], callback: Callable[[], None]) -> None:
    """
    Have a function called when the SDK ends the connection that a request came over.

    Args:
        ctx: The request; only the first one of a connection counts.
        callback: The function.

    """
    # The SDK means handlers to use the connection's `exit_stack`, and gives them no name of its own for it. Without it
    # a client is forgotten when there are too many.
    connection = getattr(ctx.session, "_connection", None)
    if isinstance(connection, Connection) and connection.state.setdefault(_IS_HEARD, callback) is callback:
        connection.exit_stack.callback(callback)
