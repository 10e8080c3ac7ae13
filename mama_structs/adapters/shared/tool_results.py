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
# Characters of what is recalled, by default.
MAX_CHARS: Final = 2_000
_CUT_OFF: Final = "the call was cut off: the answer did not finish normally, or has no finish reason"
_CALL_AGAIN: Final = "call the tool again, with shorter arguments if the output limit was reached"
_NO_NAMES: Final = WireNames.of(())
# What of a memory tool's answer are our own words.
_OURS: Final = ("note", "deprecated")
# The images that OpenAI and Anthropic take; for any other they refuse the whole request.
IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
# Under which notes on its marks are told to a model, and the characters around them at the most.
_NOTES: Final = "ref_notes"
_FRAME: Final = 40
# What an answer that is shortened leaves them.
_ROOM: Final = 500
# No provider takes a file from a tool.
_UNREADABLE: Final = "file"


@attrs.frozen(kw_only=True)
class ToolAnswer:
    """
    The answer to one call.

    Args:
        text: All text of the answer.
        data: The result of the tool.
        is_error: Whether the call failed.
        is_native: Whether *data* is a result for the host's framework, to be returned to it unchanged.
        parts: Texts, images and audio in their order.

    """

    text: str
    data: Any
    is_error: bool = False
    is_native: bool = False
    parts: tuple[str | Media, ...] = attrs.Factory(lambda self: (self.text,), takes_self=True)

    @property
    def has_media(self) -> bool:
        """Whether there is more than a text."""
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
    Run a tool call of a model and return its answer; an error is an answer, too.

    The text contains the diagnostics of the model's last messages, which are reported once. The answer to an error has
    a status: whether the tool was not run, may have run, or has run.

    Args:
        session: Whose tool.
        wire: The tool's name on the wire.
        arguments: The arguments that the model gave.
        host: Values for the tool's parameters ``ctx``, ``run_context`` and ``tool_context``.
        control_flow: The exceptions and results of the host's framework, which pass through unchanged.

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
    except Exception as error:  # noqa: BLE001 - a host's `count_tokens` may raise anything, and the tool may have run
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
    except Exception as error:  # noqa: BLE001 - a host's own tool may raise anything, and an agent goes on
        signal = control_flow.find_exception(error)
        if signal is not None:
            raise signal from None
        # The model reads the error, since it may be able to correct the call. The log has the traceback.
        _log.error("the tool %s failed: %s", wire, raised(error))
        return failed(MamaStructsError(f"{wire} failed: {_described(error)}"), names=names, status=progress.status)
    if control_flow.has_result(data):
        return ToolAnswer(text="", data=data, is_native=True)
    # A host's own tool may have a name of v1.0, too.
    is_old = name in session.hidden or (name in SUCCESSORS and session.tools[name].deprecated)
    if isinstance(data, dict) and (is_old or name in MEMORY_TOOLS):
        data = {
            key: names.said(value) if key in _OURS and isinstance(value, str) else value for key, value in data.items()
        }
    elif isinstance(data, str) and is_old:
        # The rest of the text is a memory's.
        before, newline, last = data.rpartition("\n")
        data = f"{before}{newline}{names.said(last)}" if last == last_line(name) else data
    if isinstance(data, ErrorText):
        text = _text(str(data))
        return ToolAnswer(text=text, data={"error": {"type": data.type, "message": text}}, is_error=True)
    try:
        parts = _parts(data)
        text = "\n".join(part for part in parts if isinstance(part, str)) if parts else _text(data)
        return ToolAnswer(text=text, data=data, parts=parts or (text,))
    except Exception as error:  # noqa: BLE001 - an exception would tell the model nothing about the tool
        _log.error("the result of %s cannot be shown: %s", wire, raised(error))
        text = f"the result of {wire} cannot be shown: {type(error).__name__}"
        return failed(MamaStructsError(text), status=progress.status)


def _described(error: Exception) -> str:
    """Return the type and the text of an exception of a host's tool, whose ``__str__`` may raise."""
    try:
        return f"{type(error).__name__}: {error!s:.500}"
    except Exception:  # noqa: BLE001 - as said
        return type(error).__name__


def _status(session: Session, wire: str, error: MamaStructsError, progress: CallProgress) -> str | None:
    """Return whether the tool has run, None if the error itself says all: tools of this package do all or nothing."""
    tool = session.tools.get(session.wire_names.by_wire.get(wire, wire))
    if tool is None or not progress.is_started or isinstance(error, StoreError) or not session._is_own(tool):  # noqa: SLF001
        return progress.status
    return None


class Turns:
    """Run calls that write one at a time, in arrival order, and calls that only read concurrently."""

    # For frameworks that start all calls of a message concurrently. A call from inside another call, such as that of an
    # agent which runs in a tool, does not wait: it would wait for itself. If the calls are not those of one turn, a
    # tool that reaches beyond the session may take long, so no call waits for it.

    def __init__(
        self, session: Session, *, of_one_turn: bool = True, control_flow: ControlFlow = NO_CONTROL_FLOW
    ) -> None:
        self._session = session
        self._of_one_turn = of_one_turn
        self._control_flow = control_flow
        self._calls: list[_Turn] = []

    async def answer(self, wire: str, arguments: object, *, host: Mapping[str, Any] | None = None) -> ToolAnswer:
        """Run a call when it is its turn and return its answer; see `answer`."""
        if self in _inside.get():
            return await answer(self._session, wire, arguments, host=host, control_flow=self._control_flow)
        # Before the first await, so that calls run in arrival order.
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
    """When a call may run: what it does, and that it is done."""

    reads: bool
    holds_up: bool
    done: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)


_inside: Final[ContextVar[frozenset[Turns]]] = ContextVar("mama_structs_turns", default=frozenset())


async def hear(session: Session, message: object) -> None:
    """
    Store the refs of a model's message, before its calls run.

    Items that cannot be read are skipped, logged and reported to the model. Refs that cannot be written yet are usable.
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
    heard = session._heard  # noqa: SLF001 - kept for the adapters
    if heard.contains(message, "".join(pieces)):
        return
    report_unread(session, unread)
    # One message for each piece: a ref does not continue behind a skipped item.
    heard.keep(message, await session.observe([{"role": "assistant", "content": piece} for piece in pieces]))


def report_unread(session: Session, items: Iterable[str]) -> None:
    """Log the items of a model's message that were skipped, and report them to the model with the next result."""
    for item in items:
        _log.warning("%s cannot be read and is skipped", item)
        session._heard.note([unreadable(item)])  # noqa: SLF001 - kept for the adapters


def _held(session: Session, answered: ToolAnswer) -> ToolAnswer:
    """Return an answer within the budget: an error may say much, and names on the wire are longer than our own."""
    budget = session.refs.budget
    if not session.settings.descriptors.enabled or answered.has_media or budget.holds(answered.text):
        return answered
    data = session.refs.within(answered.data, budget, keeps=False)
    text = _text(data)
    return attrs.evolve(answered, text=text, data=data, parts=(text,))


def _room(session: Session, name: str) -> int | Literal["settings"]:
    """Return the budget of an answer that leaves room for notes; what is read page by page goes first as it is."""
    budget, tool = session.refs.budget, session.tools.get(name)
    is_shortened = tool is not None and tool.wrapped and session.settings.descriptors.enabled and budget.size is len
    if not is_shortened or budget.limit < 2 * _ROOM or not session._heard.has_notes:  # noqa: SLF001 - as below
        return "settings"
    return budget.limit - _ROOM


def _with_notes(session: Session, answered: ToolAnswer) -> ToolAnswer:
    """Add the notes of a session to an answer; where they do not fit they wait for the next one."""
    heard = session._heard  # noqa: SLF001 - kept for the adapters
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
    """Return a text with notes: JSON stays JSON, and of the same kind; None for JSON that has no place for them."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return _written_behind(text, notes)
    # Put in, and nothing else written anew: a text's own numbers, escapes and repeated keys stay what they were.
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
    """Return texts, images and audio of a result that has any, and nothing for all others."""
    blocks: list[Any] = data if isinstance(data, list) and are_blocks(data) else [data]
    found = [(block, _readable(media_in(block))) for block in blocks]
    if not any(media for _, media in found):
        return ()
    return tuple(media or _text(block_text(block) or block) for block, media in found)


def _readable(media: Media | None) -> Media | None:
    """Return an image or audio without what claims to be base64 and is not: a provider would refuse the request."""
    return media if media is None or media.url or media.content is not None else Media(_UNREADABLE)


def is_taken(part: str | Media) -> TypeGuard[Media]:
    """Tell whether a part is an image that OpenAI and Anthropic take, or one that they fetch themselves."""
    return isinstance(part, Media) and (part.kind == "image" if part.url else part.mime_type in IMAGES)


def kept(session: Session, media: Media) -> str:
    """Store what a provider does not take from a tool, and return what to tell the model of it."""
    content = media.content
    if content is None:
        return f"[{media.kind}: {media.url or 'not readable':.500}]"
    what = f"{media.mime_type}, {len(content):,} bytes"
    if not session.settings.descriptors.enabled:
        # No tool would read it.
        return f"[{what}: cannot be shown here]"
    try:
        descriptor = session.refs.add_any(content, source="tool_result", mime_type=media.mime_type)
    except (QuotaExceeded, InvalidArgument) as error:
        _log.warning("%s of a tool is not kept: %s", media.kind, error)
        return f"[{what}: cannot be shown here]"
    return f"[{what}: cannot be shown here, and is kept as {descriptor.handle}]"


def failed(error: MamaStructsError, *, names: WireNames = _NO_NAMES, status: str | None = None) -> ToolAnswer:
    """Return the answer for an error, with names as on the wire; *status* says whether the tool has run."""
    message, hint = names.said(f"{error.args[0]!s:.{_MAX_FAULT}}"), error.hint and names.said(error.hint)
    told = {"type": error.type, "message": message, "hint": hint, "status": status}
    data = {"error": {key: value for key, value in told.items() if value is not None}}
    return ToolAnswer(text=_text(data), data=data, is_error=True)


def offered(session: Session, message: object = None) -> list[tuple[str, Tool]]:
    """Return the tools for a model with their names on the wire: all, or those for *message*."""
    names = session.wire_names
    tools = session.tools.values() if message is None else session.tools_for(message)
    return [(names.by_tool[tool.name], attrs.evolve(tool, description=names.said(tool.description))) for tool in tools]


def _text(data: object) -> str:
    text = data if isinstance(data, str) else json_text(data)
    # Half a surrogate pair is no text that a client could send.
    return text.encode("utf-8", "replace").decode("utf-8")


def named(tools: ToolSet, argument: str, *, which: bool | Collection[str]) -> frozenset[str]:
    """Return the names of tools for which something holds: all of them, none, or those of these names."""
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
    """Log why a call does not run, and the *argument* of `handle` for the reason of a message that has none."""
    if reason is None:
        hint = f"pass the whole response of the provider to handle(), or {argument}"
        _log.warning("a call was not run: its message has no finish reason, so it may be incomplete (%s)", hint)
    else:
        _log.warning("a call was not run: its message ended with %s", shown(reason))


async def recall_for(session: Session, messages: object, *, max_chars: int, again: bool = False) -> str:
    """Return what is recalled for the message at the end: "" where it is being answered, or was told already."""
    # What cannot be recalled costs no turn: the host finds it in the log.
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
    """Return what the user wrote at the end of a conversation: "" where anybody has said something since."""
    if not isinstance(messages, list | tuple):
        return said_by_user(messages)
    others = ("system", "developer")
    last = next((one for one in reversed(messages) if (field(one, "role") or field(one, "type")) not in others), None)
    return said_by_user([last])


def recalled_message(text: str) -> dict[str, str]:
    """Return what was recalled as a message: of the user, since no text from memory may speak for the developer."""
    return {"role": "user", "content": text}
