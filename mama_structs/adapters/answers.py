"""One tool call of a model: run, and answered so that the model can go on, whatever happens."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument, MamaStructsError, SessionClosed, WrongLoop
from mama_structs.session import Session
from mama_structs.tools.leniency import each_once
from mama_structs.tools.names import MEMORY_TOOLS, SUCCESSORS, WireNames, last_line
from mama_structs.tools.tool import Tool

_log = logging.getLogger("mama_structs")
_MAX_FAULT: Final = 1000
_NO_NAMES: Final = WireNames.of(())
# How the tools for refs answer what went wrong; whatever they read stands within an element of another name.
_ERROR_ELEMENT: Final = re.compile(r'<fd_error type="(\w+)"')
# What of a memory tool's answer are our own words.
_OURS: Final = ("note", "deprecated")
_REF_TOOLS: Final = frozenset({"read_fd", "fd_to_file", "list_refs", "get_ref", "search_fd"})


@attrs.frozen(kw_only=True)
class Answer:
    """
    What a model is told about a call.

    Args:
        text: For the model.
        data: What the tool gave, as JSON-able data; of an error its ``type``, ``message`` and ``hint``.
        is_error: Whether the call failed.

    """

    text: str
    data: Any
    is_error: bool = False


async def answer(session: Session, wire: str, arguments: object, *, host: Mapping[str, Any] | None = None) -> Answer:
    """
    Run a tool as a model asked for it; what goes wrong is an answer, too, which says what to change.

    Args:
        session: Whose tool.
        wire: The tool's name as the model gave it.
        arguments: A mapping, or JSON text of one; empty text and None stand for no arguments.
        host: See `Session.call`.

    Raises:
        SessionClosed: The session is closed: a bug of the host's, about which a model can do nothing.
        WrongLoop: As above, of another event loop or thread.

    """
    names = wire_names(session)
    try:
        name = names.tool(wire)
        data = await session.call(name, _mapping(arguments), host=host)
    except (SessionClosed, WrongLoop):
        raise
    except MamaStructsError as error:
        return failed(error, names=names)
    except Exception as error:  # noqa: BLE001 - a host's own tool may raise anything, and an agent goes on
        # A host's own tool: its model may know what to do about it, and the host finds all of it in the log.
        _log.exception("the tool %s failed", wire)
        return failed(MamaStructsError(f"{wire} failed: {type(error).__name__}: {error!s:.500}"), names=names)
    is_old = _is_old(session, name)
    if isinstance(data, dict) and (is_old or name in MEMORY_TOOLS):
        data = {
            key: names.said(value) if key in _OURS and isinstance(value, str) else value for key, value in data.items()
        }
    elif isinstance(data, str) and is_old:
        data = _with_last_line_said(data, last_line(name), names)
    fault = _ERROR_ELEMENT.match(data) if name in _REF_TOOLS and isinstance(data, str) else None
    if fault is not None:
        text = _text(data)
        return Answer(text=text, data={"error": {"type": fault[1], "message": text}}, is_error=True)
    try:
        return Answer(text=_text(data), data=data)
    except ValueError as error:
        # A number of thousands of digits, for one.
        return failed(MamaStructsError(f"{wire} has done its work, but its result has no text: {error!s:.200}"))


def failed(error: MamaStructsError, *, names: WireNames = _NO_NAMES) -> Answer:
    """
    Return the answer for an error.

    Args:
        error: What went wrong.
        names: On the wire, for the tools that its text names.

    """
    message, hint = names.said(f"{error.args[0]!s:.{_MAX_FAULT}}"), error.hint and names.said(error.hint)
    told = {"type": error.type, "message": message, "hint": hint}
    data = {"error": {key: value for key, value in told.items() if value is not None}}
    return Answer(text=_text(data), data=data, is_error=True)


def wire_names(session: Session) -> WireNames:
    """Return the names on the wire of a session's tools, whether a model sees them at present or not."""
    return WireNames.of(session.tools, hidden=session.hidden)


def offered(session: Session, message: object = None) -> list[tuple[str, Tool]]:
    """
    Return the tools for a model with their names on the wire.

    Args:
        session: Whose tools.
        message: What the user said, by which `Session.tools_for` chooses; None for all tools.

    """
    names = wire_names(session)
    tools = session.tools.values() if message is None else session.tools_for(message)
    return [(names.by_tool[tool.name], attrs.evolve(tool, description=names.said(tool.description))) for tool in tools]


def _is_old(session: Session, name: str) -> bool:
    """Tell whether a tool is ours of v1.0; a host's own may have the name, too."""
    return name in session.hidden or (name in SUCCESSORS and session.tools[name].deprecated)


def _with_last_line_said(text: str, ours: str, names: WireNames) -> str:
    """Return a text whose last line, where it is ours, names tools as on the wire; the rest is a memory's."""
    before, newline, last = text.rpartition("\n")
    return f"{before}{newline}{names.said(last)}" if last == ours else text


def _text(data: object) -> str:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    # Half a surrogate pair is no text that a client could send.
    return text.encode("utf-8", "replace").decode("utf-8")


def _mapping(arguments: object) -> Mapping[str, Any]:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    # Some models write the JSON text of the JSON text.
    for _ in range(2):
        arguments = _parsed(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, Mapping):
        raise InvalidArgument("the arguments must be one JSON object", hint="give the arguments by name")
    return arguments


def _parsed(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=each_once)
    except (ValueError, RecursionError) as fault:
        raise InvalidArgument(
            f"the arguments are no JSON: {fault!s:.120}", hint="give one JSON object with the arguments by name"
        ) from None
