"""Run the tool calls of a model and convert results and errors to answers for the model."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Literal, TypeGuard

import attrs

from mama_structs._internal.control_flow import NO_CONTROL_FLOW, ControlFlow, using_control_flow
from mama_structs._internal.event_loop import CallProgress, call_progress
from mama_structs._internal.jsonable import json_text
from mama_structs._internal.telemetry import raised
from mama_structs.errors import (
    InvalidArgument,
    MamaStructsError,
    QuotaExceeded,
    SessionClosed,
    StoreError,
    WrongLoop,
    shown,
)
from mama_structs.refs.messages.media import Media, media_in
from mama_structs.refs.messages.provider_messages import are_blocks, block_text, field, readable_text, said_by_user
from mama_structs.refs.store.ref_collector import unreadable
from mama_structs.session.session import Session
from mama_structs.tools.argument_repair import read_arguments
from mama_structs.tools.tool import ErrorText, Tool, ToolAnnotations, ToolSet
from mama_structs.tools.wire_names import MEMORY_TOOLS, SUCCESSORS, WireNames, last_line

_log = logging.getLogger("mama_structs")
_MAX_FAULT: Final = 1000
# Default maximum of recalled characters.
MAX_CHARS: Final = 2_000
_CUT_OFF: Final = "the call was cut off: the answer did not finish normally, or has no finish reason"
_CALL_AGAIN: Final = "call the tool again, with shorter arguments if the output limit was reached"
_NO_NAMES: Final = WireNames.of(())
# Keys of a memory tool's result that contain text of this package, not stored text.
_OURS: Final = ("note", "deprecated")
# The image types that OpenAI and Anthropic accept. They reject a request that contains any other type.
IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
# JSON key (or element name) of ref diagnostics in an answer, and the maximum number of characters around them.
_NOTES: Final = "ref_notes"
_FRAME: Final = 40
# Characters that a truncated answer reserves for diagnostics.
_ROOM: Final = 500
# Media kind that no provider accepts in a tool result.
_UNREADABLE: Final = "file"


@attrs.frozen(kw_only=True)
class ToolAnswer:
    """
    The answer to one call.

    Args:
        text: All text of the answer.
        data: The result of the tool.
        is_error: True if the call failed.
        is_native: True if *data* is a result for the host's framework, to be returned to it unchanged.
        parts: Texts, images and audio in their order.

    """

    text: str
    data: Any
    is_error: bool = False
    is_native: bool = False
    parts: tuple[str | Media, ...] = attrs.Factory(lambda self: (self.text,), takes_self=True)

    @property
    def has_media(self) -> bool:
        """True if the answer contains an image, audio or a file."""
        return any(isinstance(part, Media) for part in self.parts)


async def answer(
    session: Session,
    wire: str,
    arguments: object,
    *,
    host: Mapping[str, Any] | None = None,
    control_flow: ControlFlow = NO_CONTROL_FLOW,
) -> ToolAnswer:
    """
    Run a tool call of a model and return its answer. Errors are answers, too.

    The text contains the diagnostics of the model's last messages. Each is reported once. An error answer has a status:
    the tool was not run, may have run, or has run.

    Args:
        session: The session that has the tool.
        wire: The tool's wire name.
        arguments: The arguments that the model passed.
        host: Values for the tool's parameters ``ctx``, ``run_context`` and ``tool_context``.
        control_flow: Exceptions and results of the host's framework that pass through unchanged.

    Raises:
        SessionClosed: The session is closed.
        WrongLoop: The session belongs to another event loop.

    """
    progress = CallProgress()
    token = call_progress.set(progress)
    try:
        answered = await _answer(session, wire, arguments, host=host, control_flow=control_flow, progress=progress)
    finally:
        call_progress.reset(token)
    if answered.is_native:
        return answered
    try:
        return _with_notes(session, _held(session, answered))
    except Exception as error:  # noqa: BLE001 - a host's `count_tokens` may raise anything
        _log.error("the answer of %s could not be fitted to its budget: %s", wire, raised(error))
        return answered


async def _answer(
    session: Session,
    wire: str,
    arguments: object,
    *,
    host: Mapping[str, Any] | None,
    control_flow: ControlFlow,
    progress: CallProgress,
) -> ToolAnswer:
    names = session.wire_names
    passed: tuple[type[BaseException], ...] = (SessionClosed, WrongLoop, *control_flow.exceptions)
    try:
        name = names.tool(wire)
        with using_control_flow(control_flow):
            data = await session.call(name, read_arguments(arguments), host=host, max_chars=_room(session, name))
    except passed:
        raise
    except MamaStructsError as error:
        return failed(error, names=names, status=_status(session, wire, error, progress))
    except Exception as error:  # noqa: BLE001 - a host's tool may raise anything
        signal = control_flow.find_exception(error)
        if signal is not None:
            raise signal from None
        # Send the error to the model, which may be able to correct the call. The log has the traceback.
        _log.error("the tool %s failed: %s", wire, raised(error))
        return failed(MamaStructsError(f"{wire} failed: {_described(error)}"), names=names, status=progress.status)
    if control_flow.has_result(data):
        return ToolAnswer(text="", data=data, is_native=True)
    # A host's own tool may have the name of a v1.0 tool, so check the deprecation flag.
    is_old = name in session.hidden or (name in SUCCESSORS and session.tools[name].deprecated)
    if isinstance(data, dict) and (is_old or name in MEMORY_TOOLS):
        data = {
            key: names.said(value) if key in _OURS and isinstance(value, str) else value for key, value in data.items()
        }
    elif isinstance(data, str) and is_old:
        # Only the last line is text of this package. The rest is a stored memory and must not be changed.
        before, newline, last = data.rpartition("\n")
        data = f"{before}{newline}{names.said(last)}" if last == last_line(name) else data
    if isinstance(data, ErrorText):
        text = _text(str(data))
        return ToolAnswer(text=text, data={"error": {"type": data.type, "message": text}}, is_error=True)
    try:
        parts = _parts(data)
        text = "\n".join(part for part in parts if isinstance(part, str)) if parts else _text(data)
        return ToolAnswer(text=text, data=data, parts=parts or (text,))
    except Exception as error:  # noqa: BLE001 - the model must learn that the tool has run
        _log.error("the result of %s cannot be shown: %s", wire, raised(error))
        text = f"the result of {wire} cannot be shown: {type(error).__name__}"
        return failed(MamaStructsError(text), status=progress.status)


def _described(error: Exception) -> str:
    """Return the type and text of an exception, even if its ``__str__`` raises."""
    try:
        return f"{type(error).__name__}: {error!s:.500}"
    except Exception:  # noqa: BLE001 - ``__str__`` may raise anything
        return type(error).__name__


def _status(session: Session, wire: str, error: MamaStructsError, progress: CallProgress) -> str | None:
    """Return whether the tool has run, or None for tools of this package: they are atomic."""
    tool = session.tools.get(session.wire_names.by_wire.get(wire, wire))
    if tool is None or not progress.is_started or isinstance(error, StoreError) or not session._tool_calls.is_own(tool):  # noqa: SLF001
        return progress.status
    return None


class Turns:
    """Run writing calls one at a time, in arrival order, and read-only calls concurrently."""

    # For frameworks that start all calls of a message concurrently. A nested call, such as a call of an agent that runs
    # inside a tool, does not wait, because it would deadlock. If the calls do not belong to one turn, no call waits for
    # an open-world tool, which may be slow.

    def __init__(
        self, session: Session, *, of_one_turn: bool = True, control_flow: ControlFlow = NO_CONTROL_FLOW
    ) -> None:
        self._session = session
        self._of_one_turn = of_one_turn
        self._control_flow = control_flow
        self._calls: list[_Turn] = []

    async def answer(self, wire: str, arguments: object, *, host: Mapping[str, Any] | None = None) -> ToolAnswer:
        """Run a call as soon as the calls before it allow, and return its answer; see `answer`."""
        if self in _inside.get():
            return await answer(self._session, wire, arguments, host=host, control_flow=self._control_flow)
        # Register before the first await, so that calls run in arrival order.
        mine = self._place(wire)
        before = [one.done for one in self._calls if one.holds_up and not (one.reads and mine.reads)]
        self._calls.append(mine)
        token = _inside.set(_inside.get() | {self})
        try:
            for done in before:
                await done.wait()
            return await answer(self._session, wire, arguments, host=host, control_flow=self._control_flow)
        finally:
            _inside.reset(token)
            self._calls.remove(mine)
            mine.done.set()

    def _place(self, wire: str) -> _Turn:
        tool = self._session.tools.get(self._session.wire_names.by_wire.get(wire, wire))
        hints = ToolAnnotations() if tool is None else tool.annotations
        return _Turn(hints.read_only, holds_up=self._of_one_turn or not hints.open_world)


@attrs.frozen(eq=False)
class _Turn:
    """A scheduled call: is it read-only, does it block later calls, and its completion event."""

    reads: bool
    holds_up: bool
    done: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)


_inside: Final[ContextVar[frozenset[Turns]]] = ContextVar("mama_structs_turns", default=frozenset())


async def hear(session: Session, message: object) -> None:
    """
    Store the refs of a model's message. Call this before its tool calls run.

    Unreadable items are skipped, logged and reported to the model. Refs are usable even if they cannot be written to
    disk yet.
    """
    try:
        await _observe(session, message)
    except StoreError as error:
        _log.warning("the refs of a message are not on disk yet: %s", error)


async def _observe(session: Session, message: object) -> None:
    try:
        await session.observe(message)
    except InvalidArgument:
        pieces, unread = readable_text(message)
    else:
        return
    heard = session._heard  # noqa: SLF001 - internal API for adapters
    if heard.contains(message, "".join(pieces)):
        return
    report_unread(session, unread)
    # Observe each piece as its own message, so that a ref does not continue after a skipped item.
    heard.keep(message, await session.observe([{"role": "assistant", "content": piece} for piece in pieces]))


def report_unread(session: Session, items: Iterable[str]) -> None:
    """Log the skipped items of a model's message and report them with the next tool result."""
    for item in items:
        _log.warning("%s cannot be read and is skipped", item)
        session._heard.note([unreadable(item)])  # noqa: SLF001 - internal API for adapters


def _held(session: Session, answered: ToolAnswer) -> ToolAnswer:
    """Truncate an answer to the budget. Error texts and wire names can make it too long."""
    budget = session.refs.budget
    if not session.settings.descriptors.enabled or answered.has_media or budget.holds(answered.text):
        return answered
    data = session.refs.within(answered.data, budget, keeps=False)
    text = _text(data)
    return attrs.evolve(answered, text=text, data=data, parts=(text,))


def _room(session: Session, name: str) -> int | Literal["settings"]:
    """
    Return the budget of a tool's answer, reduced to leave room for pending diagnostics.

    Tools whose results are not truncated, such as paged reads, keep the full budget.
    """
    budget, tool = session.refs.budget, session.tools.get(name)
    is_shortened = tool is not None and tool.wrapped and session.settings.descriptors.enabled and budget.size is len
    if not is_shortened or budget.limit < 2 * _ROOM or not session._heard.has_notes:  # noqa: SLF001 - internal API for adapters
        return "settings"
    return budget.limit - _ROOM


def _with_notes(session: Session, answered: ToolAnswer) -> ToolAnswer:
    """Append pending diagnostics to an answer, or keep them for the next if they do not fit."""
    heard = session._heard  # noqa: SLF001 - internal API for adapters
    if not heard.has_notes:
        return answered
    budget = session.refs.budget
    notes = heard.notes(budget.less(budget.size(answered.text) + _FRAME))
    written = _written_behind if answered.has_media else _noted
    text = written(answered.text, notes) if notes else None
    if text is None or not budget.holds(text):
        return answered
    heard.told()
    parts = (*answered.parts, _element(notes)) if answered.has_media else (text,)
    return attrs.evolve(answered, text=text, parts=parts)


def _noted(text: str, notes: list[str]) -> str | None:
    """
    Append diagnostics to a text; JSON objects and arrays of objects stay valid JSON.

    Return None for other JSON, which has no place for them.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return _written_behind(text, notes)
    # Insert into the text instead of serializing again, to preserve its numbers, escapes and repeated keys.
    before, comma = text.rstrip()[:-1], "," if data else ""
    if isinstance(data, dict):
        own = json_text({_NOTES if _NOTES not in data else f"{_NOTES}_": notes})
        return f"{before}{comma}{own[1:]}"
    if isinstance(data, list) and all(isinstance(one, dict) for one in data):
        return f"{before}{comma}{json_text({_NOTES: notes})}]"
    return None


def _written_behind(text: str, notes: list[str]) -> str:
    return f"{text}\n{_element(notes)}"


def _element(notes: list[str]) -> str:
    return "\n".join([f"<{_NOTES}>", *notes, f"</{_NOTES}>"])


def _parts(data: object) -> tuple[str | Media, ...]:
    """Return the texts, images and audio of a result, or () if it has no media."""
    blocks: list[Any] = data if isinstance(data, list) and are_blocks(data) else [data]
    found = [(block, _readable(media_in(block))) for block in blocks]
    if not any(media for _, media in found):
        return ()
    return tuple(media or _text(block_text(block) or block) for block, media in found)


def _readable(media: Media | None) -> Media | None:
    """Replace media with invalid base64 by an unreadable part, because providers reject it."""
    return media if media is None or media.url or media.content is not None else Media(_UNREADABLE)


def is_taken(part: str | Media) -> TypeGuard[Media]:
    """Return True for an image that OpenAI and Anthropic accept, inline or by URL."""
    return isinstance(part, Media) and (part.kind == "image" if part.url else part.mime_type in IMAGES)


def kept(session: Session, media: Media) -> str:
    """Store media that a provider does not accept, and return a text for the model."""
    content = media.content
    if content is None:
        return f"[{media.kind}: {media.url or 'not readable':.500}]"
    what = f"{media.mime_type}, {len(content):,} bytes"
    if not session.settings.descriptors.enabled:
        # Without descriptors no tool could read the stored content.
        return f"[{what}: cannot be shown here]"
    try:
        descriptor = session.refs.add_any(content, source="tool_result", mime_type=media.mime_type)
    except (QuotaExceeded, InvalidArgument) as error:
        _log.warning("%s of a tool is not kept: %s", media.kind, error)
        return f"[{what}: cannot be shown here]"
    return f"[{what}: cannot be shown here, and is kept as {descriptor.handle}]"


def failed(error: MamaStructsError, *, names: WireNames = _NO_NAMES, status: str | None = None) -> ToolAnswer:
    """Return the answer to an error, with wire names; *status* says whether the tool has run."""
    message, hint = names.said(f"{error.args[0]!s:.{_MAX_FAULT}}"), error.hint and names.said(error.hint)
    told = {"type": error.type, "message": message, "hint": hint, "status": status}
    data = {"error": {key: value for key, value in told.items() if value is not None}}
    return ToolAnswer(text=_text(data), data=data, is_error=True)


def offered(session: Session, message: object = None) -> list[tuple[str, Tool]]:
    """Return the tools with their wire names: all, or those exposed for *message*."""
    names = session.wire_names
    tools = session.tools.values() if message is None else session.tools_for(message)
    return [(names.by_tool[tool.name], attrs.evolve(tool, description=names.said(tool.description))) for tool in tools]


def _text(data: object) -> str:
    text = data if isinstance(data, str) else json_text(data)
    # Lone surrogates cannot be encoded as UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")


def named(tools: ToolSet, argument: str, *, which: bool | Collection[str]) -> frozenset[str]:
    """Return the selected tool names: all for True, none for False, or the given names."""
    if isinstance(which, bool):
        return frozenset(tools if which else ())
    if isinstance(which, str):
        raise InvalidArgument(
            f"{argument} must be a bool or names of tools, got {shown(which)}", hint="put it in a list"
        )
    return frozenset(tools[name].name for name in which)


@attrs.frozen(kw_only=True)
class ToolCall:
    """A call in a model's message. Id and name are "" if the message has none."""

    id: str
    name: str
    arguments: object
    is_cut_off: bool


async def answer_call(session: Session, call: ToolCall, *, host: Mapping[str, Any] | None) -> ToolAnswer:
    """Run a call, or return an error for a call that may be incomplete."""
    if not call.id:
        _log.warning("a call of %s has no id, and neither has its result", shown(call.name))
    if call.is_cut_off:
        return failed(InvalidArgument(_CUT_OFF, hint=_CALL_AGAIN), status=CallProgress().status)
    if not call.name:
        error = InvalidArgument("the call names no tool", hint="call the tool again, by its name")
        return failed(error, status=CallProgress().status)
    return await answer(session, call.name, call.arguments, host=host)


def log_cut_off(reason: object, argument: str) -> None:
    """
    Log why a call does not run.

    *argument* is the argument of `handle` that supplies a missing finish reason.
    """
    if reason is None:
        hint = f"pass the whole response of the provider to handle(), or {argument}"
        _log.warning("a call was not run: its message has no finish reason, so it may be incomplete (%s)", hint)
    else:
        _log.warning("a call was not run: its message ended with %s", shown(reason))


async def recall_for(session: Session, messages: object, *, max_chars: int, again: bool = False) -> str:
    """
    Return the recalled text for the user's last message.

    Return "" if the message is already being answered or everything was recalled before.
    """
    # A failed recall is logged and does not fail the turn.
    said = asked_now(messages)
    if not said:
        return ""
    try:
        return (await session.recall(said, max_chars=max_chars, again=again)).text
    except (SessionClosed, WrongLoop):
        raise
    except MamaStructsError as error:
        _log.warning("nothing is recalled: %s", error)
        return ""


def asked_now(messages: object) -> str:
    """Return the user's last message, or "" if another message follows it."""
    if not isinstance(messages, list | tuple):
        return said_by_user(messages)
    others = ("system", "developer")
    last = next((one for one in reversed(messages) if (field(one, "role") or field(one, "type")) not in others), None)
    return said_by_user([last])


def recalled_message(text: str) -> dict[str, str]:
    """Return recalled text as a user message: stored text must not get developer authority."""
    return {"role": "user", "content": text}
