"""Run the tool calls of a model and convert results and errors to answers for the model."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Literal, TypeGuard

import attrs

from mama_structs._internal.control_flow import NO_CONTROL_FLOW, ControlFlow, using_control_flow
from mama_structs._internal.event_loop import CallProgress, call_progress
from mama_structs._internal.jsonable import to_json_text
from mama_structs._internal.telemetry import format_error
from mama_structs.errors import (
    InvalidArgument,
    MamaStructsError,
    QuotaExceeded,
    SessionClosed,
    StoreError,
    WrongLoop,
    repr_short,
)
from mama_structs.recall import Recall
from mama_structs.refs.messages.media import Media, parse_media
from mama_structs.refs.messages.provider_messages import (
    block_text,
    extract_readable_text,
    extract_user_text,
    get_field,
    is_block_list,
)
from mama_structs.refs.store.ref_collector import unreadable_diagnostic
from mama_structs.session.session import Session
from mama_structs.tools.argument_repair import read_arguments
from mama_structs.tools.tool import ErrorText, Tool, ToolAnnotations, ToolSet
from mama_structs.tools.wire_names import DEPRECATED_SUCCESSORS, MEMORY_TOOLS, WireNames, get_deprecation_line

_log = logging.getLogger("mama_structs")
_MAX_ERROR_CHARS: Final = 1000
# Default maximum characters of a recalled text.
DEFAULT_MAX_RECALL_CHARS: Final = 2_000
_CUT_OFF_MESSAGE: Final = "the call was cut off: the answer did not finish normally, or has no finish reason"
_CALL_AGAIN_HINT: Final = "call the tool again, with shorter arguments if the output limit was reached"
_EMPTY_WIRE_NAMES: Final = WireNames._from_names(())
# Keys of the texts that this package adds to a memory tool's result. All other texts are stored data.
_PACKAGE_TEXT_KEYS: Final = ("note", "deprecated")
# Image types that OpenAI and Anthropic accept. Both reject a request that contains an image of any other type.
SUPPORTED_IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
# Key or element name of ref diagnostics in an answer.
_NOTES_KEY: Final = "ref_notes"
# Maximum length of the markup around ref diagnostics.
_NOTES_FRAME_CHARS: Final = 40
# An answer with pending diagnostics is truncated to leave this many characters for them.
_RESERVED_NOTES_CHARS: Final = 500
# No provider accepts media of this kind in a tool result.
_UNREADABLE_KIND: Final = "file"


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

    @property
    def value(self) -> Any:
        """The answer as a JSON value with the pending diagnostics; its text if the tool or error returned a text."""
        # Parse the text, because *data* may contain lone surrogates and lacks the diagnostics.
        if isinstance(self.data, str):
            return self.text
        try:
            return json.loads(self.text)
        except ValueError:
            return self.text


async def answer_tool_call(
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
        answered = await _run_tool_call(
            session, wire, arguments, host=host, control_flow=control_flow, progress=progress
        )
    finally:
        call_progress.reset(token)
    if answered.is_native:
        return answered
    try:
        return _append_notes(session, _fit_to_budget(session, answered))
    except Exception as error:  # noqa: BLE001 - a host's `count_tokens` may raise anything
        _log.error("the answer of %s could not be fitted to its budget: %s", wire, format_error(error))
        return answered


async def _run_tool_call(
    session: Session,
    wire: str,
    arguments: object,
    *,
    host: Mapping[str, Any] | None,
    control_flow: ControlFlow,
    progress: CallProgress,
) -> ToolAnswer:
    names = session.tools.wire_names
    passed: tuple[type[BaseException], ...] = (SessionClosed, WrongLoop, *control_flow.exceptions)
    try:
        name = names._tool(wire)
        with using_control_flow(control_flow):
            data = await session.call(
                name, read_arguments(arguments), host=host, max_chars=_reserve_notes_budget(session, name)
            )
    except passed:
        raise
    except MamaStructsError as error:
        return create_error_answer(error, names=names, status=_find_run_status(session, wire, error, progress))
    except Exception as error:  # noqa: BLE001 - a host's tool may raise anything
        signal = control_flow.find_exception(error)
        if signal is not None:
            raise signal from None
        # Return the error to the model, which may be able to correct its call. The traceback is logged.
        _log.error("the tool %s failed: %s", wire, format_error(error))
        return create_error_answer(
            MamaStructsError(f"{wire} failed: {_describe_exception(error)}"), names=names, status=progress.status
        )
    if control_flow.has_result(data):
        return ToolAnswer(text="", data=data, is_native=True)
    # Check the deprecation flag, because a host's own tool may have the same name as a tool of v1.0.
    is_old = name in session._hidden or (name in DEPRECATED_SUCCESSORS and session.tools[name].deprecated)
    if isinstance(data, dict) and (is_old or name in MEMORY_TOOLS):
        data = {
            key: names._replace_tool_names(value) if key in _PACKAGE_TEXT_KEYS and isinstance(value, str) else value
            for key, value in data.items()
        }
    elif isinstance(data, str) and is_old:
        # Change only the last line, which this package has written. The lines before it are a stored memory.
        before, newline, last = data.rpartition("\n")
        data = f"{before}{newline}{names._replace_tool_names(last)}" if last == get_deprecation_line(name) else data
    if isinstance(data, ErrorText):
        text = _serialize_text(str(data))
        return ToolAnswer(text=text, data={"error": {"type": data.type, "message": text}}, is_error=True)
    try:
        parts = _split_media_parts(data)
        text = "\n".join(part for part in parts if isinstance(part, str)) if parts else _serialize_text(data)
        return ToolAnswer(text=text, data=data, parts=parts or (text,))
    except Exception as error:  # noqa: BLE001 - the model must learn that the tool has run
        _log.error("the result of %s cannot be shown: %s", wire, format_error(error))
        text = f"the result of {wire} cannot be shown: {type(error).__name__}"
        return create_error_answer(MamaStructsError(text), status=progress.status)


def _describe_exception(error: Exception) -> str:
    """Return the type and text of an exception, even if its ``__str__`` raises."""
    try:
        return f"{type(error).__name__}: {error!s:.500}"
    except Exception:  # noqa: BLE001 - ``__str__`` may raise anything
        return type(error).__name__


def _find_run_status(session: Session, wire: str, error: MamaStructsError, progress: CallProgress) -> str | None:
    """
    Return whether a failed call has run the tool.

    None for this package's tools, which are atomic.
    """
    tool = session.tools.get(session.tools.wire_names.by_wire.get(wire, wire))
    if tool is None or not progress.is_started or isinstance(error, StoreError) or not session._tool_calls.is_own(tool):
        return progress.status
    return None


class CallScheduler:
    """Runs writing calls one at a time in arrival order. Read-only calls run concurrently."""

    # Used by frameworks that start all calls of a message concurrently.
    # A call made inside another call does not wait, because waiting would deadlock.
    # If the calls do not belong to one turn, no call waits for a slow open-world tool.

    def __init__(
        self, session: Session, *, of_one_turn: bool = True, control_flow: ControlFlow = NO_CONTROL_FLOW
    ) -> None:
        self._session = session
        self._is_single_turn = of_one_turn
        self._control_flow = control_flow
        self._calls: list[_ScheduledCall] = []

    async def answer(self, wire: str, arguments: object, *, host: Mapping[str, Any] | None = None) -> ToolAnswer:
        """Wait for earlier calls if necessary, then run a call; see `answer_tool_call`."""
        if self in _active_schedulers.get():
            return await answer_tool_call(self._session, wire, arguments, host=host, control_flow=self._control_flow)
        # Register the call before the first await, because that fixes the order of the calls.
        mine = self._create_call(wire)
        before = [
            one.done for one in self._calls if one.blocks_later_calls and not (one.is_read_only and mine.is_read_only)
        ]
        self._calls.append(mine)
        token = _active_schedulers.set(_active_schedulers.get() | {self})
        try:
            for done in before:
                await done.wait()
            return await answer_tool_call(self._session, wire, arguments, host=host, control_flow=self._control_flow)
        finally:
            _active_schedulers.reset(token)
            self._calls.remove(mine)
            mine.done.set()

    def _create_call(self, wire: str) -> _ScheduledCall:
        tool = self._session.tools.get(self._session.tools.wire_names.by_wire.get(wire, wire))
        hints = ToolAnnotations() if tool is None else tool.annotations
        return _ScheduledCall(hints.read_only, blocks_later_calls=self._is_single_turn or not hints.open_world)


@attrs.frozen(eq=False)
class _ScheduledCall:
    """A registered call. `done` is set when it has completed."""

    is_read_only: bool
    blocks_later_calls: bool
    done: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)


_active_schedulers: Final[ContextVar[frozenset[CallScheduler]]] = ContextVar("mama_structs_turns", default=frozenset())


async def observe_message(session: Session, message: object) -> None:
    """
    Store the refs of a model's message. Must be called before the message's tool calls run.

    Unreadable items are skipped, logged and reported to the model. Refs are usable even if they cannot be written to
    disk yet.
    """
    try:
        await _observe_readable_parts(session, message)
    except StoreError as error:
        _log.warning("the refs of a message are not on disk yet: %s", error)


async def _observe_readable_parts(session: Session, message: object) -> None:
    try:
        await session.observe(message)
    except InvalidArgument:
        pieces, unread = extract_readable_text(message)
    else:
        return
    heard = session._observed_messages
    if heard.contains(message, "".join(pieces)):
        return
    report_unread(session, unread)
    # Observe the parts separately, because a ref must not extend across a skipped item.
    heard.record(message, await session.observe([{"role": "assistant", "content": piece} for piece in pieces]))


def report_unread(session: Session, items: Iterable[str]) -> None:
    """Log items that were skipped, and report them to the model with the next tool result."""
    for item in items:
        _log.warning("%s cannot be read and is skipped", item)
        session._observed_messages.add_diagnostics([unreadable_diagnostic(item)])


def _fit_to_budget(session: Session, answered: ToolAnswer) -> ToolAnswer:
    """Truncate an answer that error texts or wire names have made longer than the budget."""
    budget = session.refs._budget
    if not session.settings.descriptors.enabled or answered.has_media or budget.fits(answered.text):
        return answered
    data = session.refs._within(answered.data, budget, keeps=False)
    text = _serialize_text(data)
    return attrs.evolve(answered, text=text, data=data, parts=(text,))


def _reserve_notes_budget(session: Session, name: str) -> int | Literal["settings"]:
    """
    Return the budget of a tool's answer, minus the space for pending diagnostics.

    Tools whose results are not truncated, such as paged reads, keep the full budget.
    """
    budget, tool = session.refs._budget, session.tools.get(name)
    is_shortened = tool is not None and tool._wrapped and session.settings.descriptors.enabled and budget.size is len
    if not is_shortened or budget.limit < 2 * _RESERVED_NOTES_CHARS or not session._observed_messages.has_notes:
        return "settings"
    return budget.limit - _RESERVED_NOTES_CHARS


def _append_notes(session: Session, answered: ToolAnswer) -> ToolAnswer:
    """Append pending diagnostics to an answer. Diagnostics that do not fit are appended to the next answer."""
    heard = session._observed_messages
    if not heard.has_notes:
        return answered
    budget = session.refs._budget
    notes = heard.notes(budget.subtract(budget.size(answered.text) + _NOTES_FRAME_CHARS))
    written = _append_notes_element if answered.has_media else _insert_notes
    text = written(answered.text, notes) if notes else None
    if text is None or not budget.fits(text):
        return answered
    heard.clear_notes()
    parts = (*answered.parts, _format_notes_element(notes)) if answered.has_media else (text,)
    return attrs.evolve(answered, text=text, parts=parts)


def _insert_notes(text: str, notes: list[str]) -> str | None:
    """
    Insert diagnostics into a text. JSON objects and arrays of objects remain valid JSON.

    Return None for other JSON, which has no place for them.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return _append_notes_element(text, notes)
    # Insert into the JSON text, because serializing it again could change numbers, escapes and repeated keys.
    before, comma = text.rstrip()[:-1], "," if data else ""
    if isinstance(data, dict):
        own = to_json_text({_NOTES_KEY if _NOTES_KEY not in data else f"{_NOTES_KEY}_": notes})
        return f"{before}{comma}{own[1:]}"
    if isinstance(data, list) and all(isinstance(one, dict) for one in data):
        return f"{before}{comma}{to_json_text({_NOTES_KEY: notes})}]"
    return None


def _append_notes_element(text: str, notes: list[str]) -> str:
    return f"{text}\n{_format_notes_element(notes)}"


def _format_notes_element(notes: list[str]) -> str:
    return "\n".join([f"<{_NOTES_KEY}>", *notes, f"</{_NOTES_KEY}>"])


def _split_media_parts(data: object) -> tuple[str | Media, ...]:
    """Split a result with media into texts and media. Return () if it contains no media."""
    blocks: list[Any] = data if isinstance(data, list) and is_block_list(data) else [data]
    found = [(block, _replace_invalid_media(parse_media(block))) for block in blocks]
    if not any(media for _, media in found):
        return ()
    return tuple(media or _serialize_text(block_text(block) or block) for block, media in found)


def _replace_invalid_media(media: Media | None) -> Media | None:
    """Mark media with invalid base64 as unreadable, because providers would reject the request."""
    return media if media is None or media.url or media.content is not None else Media(_UNREADABLE_KIND)


def is_supported_image(part: str | Media) -> TypeGuard[Media]:
    """Return True for an image that OpenAI and Anthropic accept, inline or by URL."""
    return isinstance(part, Media) and (part.kind == "image" if part.url else part.mime_type in SUPPORTED_IMAGE_TYPES)


def store_unsupported_media(session: Session, media: Media) -> str:
    """Store media that a provider does not accept; return a text with its handle."""
    content = media.content
    if content is None:
        return f"[{media.kind}: {media.url or 'not readable':.500}]"
    what = f"{media.mime_type}, {len(content):,} bytes"
    if not session.settings.descriptors.enabled:
        # If descriptors are disabled, no tool can read the stored content, so it is not stored.
        return f"[{what}: cannot be shown here]"
    try:
        descriptor = session.refs._add_any(content, source="tool_result", mime_type=media.mime_type)
    except (QuotaExceeded, InvalidArgument) as error:
        _log.warning("%s of a tool is not kept: %s", media.kind, error)
        return f"[{what}: cannot be shown here]"
    return f"[{what}: cannot be shown here, and is kept as {descriptor.handle}]"


def create_error_answer(
    error: MamaStructsError, *, names: WireNames = _EMPTY_WIRE_NAMES, status: str | None = None
) -> ToolAnswer:
    """Return an error as an answer, with wire names. *status* says whether the tool has run."""
    message, hint = (
        names._replace_tool_names(f"{error.args[0]!s:.{_MAX_ERROR_CHARS}}"),
        error.hint and names._replace_tool_names(error.hint),
    )
    fields = {"type": error.type, "message": message, "hint": hint, "status": status}
    data = {"error": {key: value for key, value in fields.items() if value is not None}}
    return ToolAnswer(text=_serialize_text(data), data=data, is_error=True)


def list_wire_tools(session: Session, message: object = None) -> list[tuple[str, Tool]]:
    """Return all tools with their wire names, or only the tools exposed for *message*."""
    names = session.tools.wire_names
    tools = session.tools.values() if message is None else session.tools_for(message)
    return [
        (names.by_tool[tool.name], attrs.evolve(tool, description=names._replace_tool_names(tool.description)))
        for tool in tools
    ]


def _serialize_text(data: object) -> str:
    text = data if isinstance(data, str) else to_json_text(data)
    # UTF-8 cannot encode lone surrogates, so they are replaced.
    return text.encode("utf-8", "replace").decode("utf-8")


def select_tool_names(tools: ToolSet, argument: str, *, selection: bool | Collection[str]) -> frozenset[str]:
    """Return all tool names for True, none for False, otherwise the names in *selection*."""
    if isinstance(selection, bool):
        return frozenset(tools if selection else ())
    if isinstance(selection, str):
        raise InvalidArgument(
            f"{argument} must be a bool or names of tools, got {repr_short(selection)}", hint="put it in a list"
        )
    return frozenset(tools[name].name for name in selection)


@attrs.frozen(kw_only=True)
class ToolCall:
    """
    A tool call in a model's message.

    *id* and *name* are "" if the message does not contain them.
    """

    id: str
    name: str
    arguments: object
    is_cut_off: bool


async def answer_call(session: Session, call: ToolCall, *, host: Mapping[str, Any] | None) -> ToolAnswer:
    """Run a call, or return an error for a call that may be incomplete."""
    if not call.id:
        _log.warning("a call of %s has no id, and neither has its result", repr_short(call.name))
    if call.is_cut_off:
        return create_cut_off_answer()
    if not call.name:
        error = InvalidArgument("the call names no tool", hint="call the tool again, by its name")
        return create_error_answer(error, status=CallProgress().status)
    return await answer_tool_call(session, call.name, call.arguments, host=host)


def create_cut_off_answer() -> ToolAnswer:
    """Return the answer for a call that may be incomplete and was not run."""
    error = InvalidArgument(_CUT_OFF_MESSAGE, hint=_CALL_AGAIN_HINT)
    return create_error_answer(error, status=CallProgress().status)


def log_cut_off(reason: object, argument: str = "") -> None:
    """
    Log why a tool call is not run.

    *argument* is the argument of `handle` that supplies a missing finish reason.
    """
    if reason is None:
        hint = f"pass the whole response of the provider to handle(), or {argument}"
        _log.warning("a call was not run: its message has no finish reason, so it may be incomplete (%s)", hint)
    else:
        _log.warning("a call was not run: its message ended with %s", repr_short(reason))


async def recall_for_messages(session: Session, messages: object, *, max_chars: int, repeat: bool = False) -> str:
    """
    Return the text recalled for the user's last message.

    Return "" if the message is already being answered or everything was recalled before.
    """
    message = find_pending_user_message(messages)
    return await recall_or_log(session.recall(message, max_chars=max_chars, repeat=repeat)) if message else ""


async def recall_or_log(recalling: Awaitable[Recall]) -> str:
    """Return the recalled text. If recall fails, log the error and return "", so that the turn continues."""
    try:
        return (await recalling).text
    except (SessionClosed, WrongLoop):
        raise
    except MamaStructsError as error:
        _log.warning("nothing is recalled: %s", error)
        return ""


def find_pending_user_message(messages: object) -> str:
    """Return the user's message if it is the last one, ignoring system messages; otherwise ""."""
    if not isinstance(messages, list | tuple):
        return extract_user_text(messages)
    others = ("system", "developer")
    last = next(
        (one for one in reversed(messages) if (get_field(one, "role") or get_field(one, "type")) not in others), None
    )
    return extract_user_text([last])


def create_recall_message(text: str) -> dict[str, str]:
    """Return recalled text as a user message, because it must not have a developer's authority."""
    return {"role": "user", "content": text}
