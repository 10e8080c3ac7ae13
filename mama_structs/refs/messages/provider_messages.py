"""
Extraction of model and user text from the messages of any provider.

Formats are recognized by their structure, so no provider's package is imported. Only a `str` counts as text: mock
objects that have every attribute must not be mistaken for messages. Unknown items in a model's output raise, except in
`readable_text` and in streams, which skip and report them. Unknown items in a user's message are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from itertools import groupby
from typing import Any, Final

import attrs

from mama_structs._internal.prompt_quoting import without_recalled
from mama_structs.errors import InvalidArgument, shown
from mama_structs.refs.messages.media import media_in

_TEXT_BLOCKS: Final = frozenset({"text", "output_text"})
_USER_TEXT_BLOCKS: Final = frozenset({"text", "input_text"})
_MESSAGES: Final = frozenset({"message", "ai", "AIMessageChunk"})
# Values of `role` or `type` that identify the speaker.
_MODEL_ROLES: Final = frozenset({"assistant", "model", "ai"})
_USER_ROLES: Final = frozenset({"user", "human"})
_TOOL_ROLES: Final = frozenset({"system", "developer", "tool", "function"})
_NOT_USERS: Final = _MODEL_ROLES | _TOOL_ROLES | {"AIMessageChunk"}
_REQUESTS: Final = ("messages", "input", "contents")
_ACCEPTED: Final = (
    "accepted: text, content blocks, a model's message of OpenAI, Anthropic, Google, LangChain, Pydantic AI or the"
    " OpenAI Agents SDK as a dict or object, or a whole answer or run of theirs"
)
_ACCEPTED_CHUNKS: Final = (
    "accepted: text, or an event or chunk as the provider's stream gives it, as a dict or SDK object"
)

# Blocks that a host may pass one by one. Between two texts they end a piece, as in a whole message.
_OTHER_BLOCKS: Final = frozenset(
    {
        *("thinking", "redacted_thinking", "reasoning", "refusal", "image"),
        *("tool_use", "server_tool_use", "mcp_tool_use", "function_call", "custom_tool_call"),
    }
)
# Types that contain no model text in any field, in addition to all types with a suffix of `_ENDS_WITHOUT_TEXT`.
_WITHOUT_TEXT: Final = _OTHER_BLOCKS | {
    *("audio", "video", "file", "document", "compaction", "program", "non_standard", "text-plain", "image_url"),
    # Parts of Pydantic AI.
    *("tool-call", "builtin-tool-call", "builtin-tool-return"),
}
_ENDS_WITHOUT_TEXT: Final = ("_call", "_call_chunk", "_use", "_result", "_output", "_item", "_request", "_response")
# Fields that may contain the model's text in an unknown format.
_MAY_HOLD_TEXT: Final = ("text", "content", "parts", "raw_item", "message")
# Fields that an assistant's message may have instead of content.
_IN_PLACE_OF_CONTENT: Final = ("content", "parts", "tool_calls", "function_call", "refusal", "audio")
_SAYS_WHO: Final = frozenset({"role", "type", "id", "name", "status", "object"})
# Only an object that answers to every attribute name, such as a mock, has this field.
_NOBODYS_FIELD: Final = "mama_structs_has_no_such_field"

_BEGINNINGS: Final = frozenset({"message_start", "response.output_item.added"})
# Fields of events that contain a block or delta, which may be text.
_INNER: Final = {"content_block_start": "content_block", "content_block_delta": "delta"}
_TEXT_HOLDERS: Final = _TEXT_BLOCKS | {"text_delta"}

# Texts in order, with None at the end of each piece.
_Said = list[str | None]
# Descriptions of the items that `readable_text` skips; None while unknown items raise.
_unread: Final[ContextVar[list[str] | None]] = ContextVar("mama_structs_unread_items", default=None)


def field(value: object, name: str) -> Any:
    """Return a key of a dict or an attribute of an SDK object, or None if it is missing."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def text_field(value: object, name: str) -> str:
    """Return a text field of a tool call, or "" if it is missing or not text."""
    text = field(value, name)
    return text if isinstance(text, str) else ""


def _word(value: object, name: str) -> str | None:
    return found if isinstance(found := field(value, name), str) else None


def _must_be_str(what: str, value: object, hint: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a str, got {type(value).__name__}", hint=hint)
    return value


# Typed content blocks (dicts) of MCP and of providers.


def block_text(block: dict[str, Any]) -> str | None:
    """Return the text of a content block, or None if it has none."""
    text = block.get("text")
    return text if block.get("type") == "text" and isinstance(text, str) else None


def joined_blocks(blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge adjacent text blocks, joined by line breaks, with the other fields of the first."""
    made: list[dict[str, Any]] = []
    for block in blocks:
        text, before = block_text(block), block_text(made[-1]) if made else None
        if text is None or before is None:
            made.append(block)
        else:
            made[-1] = {**made[-1], "text": f"{before}\n{text}"}
    return made


def are_blocks(value: object) -> bool:
    """Return True if a result is a list of content blocks with a text, image or audio block."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(block, dict) and isinstance(block.get("type", block.get("kind")), str) for block in value)
        and any(block_text(block) is not None or media_in(block) for block in value)
    )


# Model text


def said_by_model(message: object) -> list[str]:
    """
    Return the pieces of text in a model's output, without thinking and tool calls.

    Adjacent text blocks form one piece and are joined without a separator, because a provider may split one text into
    several blocks (citations). Any other block between them ends a piece, and so does a message. Of several choices
    only the first (index 0) is read, because the conversation continues with it.

    Raises:
        InvalidArgument: The format is unknown, or the message is from a user or tool. Model text is never skipped
            silently.

    """
    said = _in_first(message, "message", _in_list, _in_answer, _in_one_block)
    runs = ("".join(text or "" for text in run) for is_end, run in groupby(said, key=lambda t: t is None) if not is_end)
    return [piece for piece in runs if piece]


def readable_text(message: object) -> tuple[list[str], list[str]]:
    """
    Return the pieces of text in a model's output, and a description of each skipped item.

    Unknown items are skipped, and each ends a piece. Descriptions name the place and the type, and contain no text of
    the message.
    """
    unread: list[str] = []
    token = _unread.set(unread)
    try:
        return said_by_model(message), unread
    finally:
        _unread.reset(token)


def _in_list(value: object) -> _Said | None:
    """Read a list of messages, items or blocks, without a framework's requests in between."""
    if not isinstance(value, list | tuple):
        return None
    if any(_word(item, "kind") == "response" for item in value):
        value = [item for item in value if _word(item, "kind") != "request"]
    return _in_all(value, "message", _in_answer, _in_block)


def _in_all(items: Sequence[object], where: str, *readers: Callable[[object], _Said | None]) -> _Said:
    return [text for number, item in enumerate(items) for text in _in_first(item, f"{where}[{number}]", *readers)]


def _in_first(item: object, where: str, *readers: Callable[[object], _Said | None]) -> _Said:
    is_stand_in = not isinstance(item, Mapping) and hasattr(item, _NOBODYS_FIELD)
    unread = _unread.get()
    try:
        found = None if is_stand_in else next((found for read in readers if (found := read(item)) is not None), None)
    except InvalidArgument:
        if unread is None:
            raise
        found = None
    if found is None:
        if unread is None:
            raise _unknown(item, where)
        unread.append(describe_item(item, where))
        return [None]
    return found


def describe_item(item: object, where: str) -> str:
    """Return the place and type of a message item, without its content."""
    kind = _word(item, "type")
    return f"{where} of type {type(item).__name__ if kind is None else shown(kind)}"


def _in_answer(value: object) -> _Said | None:
    """Read a message, or a whole response or run; return None for anything else."""
    if isinstance(value, str):
        return None
    kind, role = _word(value, "type"), _word(value, "role")
    # A block may have a type that equals a role (`function`), so a given role takes precedence.
    speaker = role if role is not None else kind if kind in _USER_ROLES | _TOOL_ROLES else None
    if role is kind is None and _word(value, "kind") == "request":
        speaker = "user"
    if speaker is not None and speaker not in _MODEL_ROLES:
        raise InvalidArgument(
            f"message must be the model's own output, got one with the role {shown(speaker)}",
            hint="pass messages with the role assistant (or model) only; refs that others write are never stored",
        )
    if role is not None or kind in _MESSAGES or (kind is None and _has_content(value)):
        return [None, *_in_content(value), None]
    if kind == "message_output_item":
        return _in_answer(field(value, "raw_item"))
    return _in_holder(value) if kind is None else None


def _in_holder(value: object) -> _Said | None:
    """Read a whole response or run; return None for anything else."""
    new_messages = field(value, "new_messages")
    if callable(new_messages):
        return _in_list(new_messages())
    for name, read in _HOLDERS.items():
        held = field(value, name)
        if isinstance(held, list | tuple):
            return read(held)
    return None


def _has_content(value: object) -> bool:
    if isinstance(value, Mapping):
        return "content" in value or isinstance(value.get("parts"), list | tuple)
    return isinstance(field(value, "content"), str | list | tuple) or isinstance(field(value, "parts"), list | tuple)


def _in_content(message: object) -> _Said:
    content = field(message, "content")
    if isinstance(content, str):
        return [content]
    if isinstance(content, list | tuple):
        return _in_all(content, "content", _in_block)
    if content is not None:
        raise _unknown(content, "content")
    parts = field(message, "parts")
    if isinstance(parts, list | tuple):
        return _in_all(parts, "parts", _in_part)
    if parts is not None or not _may_be_empty(message):
        raise _unknown(message, "message")
    return []


def _may_be_empty(message: object) -> bool:
    """Return True if a message without content is valid: no unknown field has its text."""
    if isinstance(message, Mapping):
        return message.keys() <= _SAYS_WHO or not message.keys().isdisjoint(_IN_PLACE_OF_CONTENT)
    return any(hasattr(message, name) for name in _IN_PLACE_OF_CONTENT)


def _in_part(part: object) -> _Said | None:
    """
    Read a part of Pydantic AI, or of Google.

    Google's parts have no type: those with a text are text, unless they are thoughts.
    """
    kind = _word(part, "part_kind")
    if isinstance(part, str) or (kind is None and _word(part, "type") is not None):
        return _in_block(part)
    if kind is None:
        if not isinstance(part, Mapping) and not hasattr(part, "text"):
            return None
        text = field(part, "text")
        return [text if isinstance(text, str) and field(part, "thought") is not True else None]
    if kind == "speech":
        spoken = field(part, "transcript")
        return [spoken if isinstance(spoken, str) and field(part, "speaker") == "assistant" else None]
    if kind == "text":
        return [_must_be_str("the content of a part of kind 'text'", field(part, "content"), _ACCEPTED)]
    return [None] if _is_without_text(part, kind) else None


def _in_block(block: object) -> _Said | None:
    """Read a text or a content block; return None for anything else."""
    if isinstance(block, str):
        return [block]
    kind = _word(block, "type")
    if kind is None:
        return None
    if kind not in _TEXT_BLOCKS:
        return [None] if _is_without_text(block, kind) else None
    return [_must_be_str(f"the text of a block of type {kind!r}", field(block, "text"), _ACCEPTED)]


def _in_one_block(block: object) -> _Said | None:
    """Read a text or block in place of a whole message; return None if its type is unknown."""
    kind = _word(block, "type")
    is_known = kind is None or kind in _TEXT_BLOCKS | _WITHOUT_TEXT or kind.endswith(_ENDS_WITHOUT_TEXT)
    return _in_block(block) if is_known else None


def _is_without_text(block: object, kind: str) -> bool:
    """Return True if a block contains no model text. Unknown types are checked by field."""
    is_known = kind in _WITHOUT_TEXT or kind.endswith(_ENDS_WITHOUT_TEXT)
    return is_known or not any(isinstance(field(block, name), str | list | tuple) for name in _MAY_HOLD_TEXT)


def _in_choices(choices: Sequence[Any]) -> _Said:
    choice = _first_choice(choices)
    found = [] if choice is None else _in_answer(field(choice, "message"))
    if found is None:
        raise InvalidArgument(
            "choices[0] must have a message", hint="chunks of a stream are fed to stream(), one after the other"
        )
    return found


def _in_candidates(candidates: Sequence[Any]) -> _Said | None:
    candidate = _first_choice(candidates)
    # A blocked candidate has no content.
    content = None if candidate is None else field(candidate, "content")
    return [] if content is None else _in_answer(content)


_HOLDERS: Final[Mapping[str, Callable[[Sequence[Any]], _Said | None]]] = {
    "choices": _in_choices,
    "output": lambda output: _in_all(output, "output", _in_answer, _in_block),
    "candidates": _in_candidates,
    "new_items": lambda items: _in_all(items, "new_items", _in_answer, _in_block),
}


def _first_choice(choices: Sequence[Any]) -> object:
    # Some providers omit the index of a single choice.
    return next((choice for choice in choices if field(choice, "index") in (0, None)), None)


def _unknown(value: object, where: str) -> InvalidArgument:
    kind = _word(value, "type")
    of_type = f" of type {shown(kind)}" if kind is not None else ""
    return InvalidArgument(
        f"{where} must be text, a content block or a message, got {type(value).__name__}{of_type}", hint=_ACCEPTED
    )


# Model text in streams


@attrs.frozen
class Delta:
    """Text that one chunk of a stream adds. *starts_piece* is True if it begins a new piece."""

    text: str
    starts_piece: bool = attrs.field(default=False, kw_only=True)


class DeltaReader:
    """
    Reads the chunks of one stream so that they yield the same pieces as the final message.

    The helper streams of some SDKs yield the same text twice: as the raw provider event, and then as an event of their
    own with the text so far in `snapshot`. The second is skipped if the first was read, and used if a host passes only
    the helper's events.
    """

    def __init__(self) -> None:
        self._came_raw = False

    def read(self, chunk: object) -> Delta | None:
        """
        Return the text that *chunk* adds, or None.

        Raises:
            InvalidArgument: *chunk* is not a piece of a stream.

        """
        echoed = _echo_of(chunk)
        if echoed is not None:
            return Delta(echoed) if echoed and not self._came_raw else None
        delta = delta_of(chunk)
        if delta is not None and delta.text and not isinstance(chunk, str):
            self._came_raw = True
        return delta


def _echo_of(chunk: object) -> str | None:
    """Return the text of a helper event that repeats a raw event, or None for other events."""
    if isinstance(chunk, str) or field(chunk, "snapshot") is None:
        return None
    kind = _word(chunk, "type")
    text = field(chunk, "text") if kind == "text" else field(chunk, "delta") if kind == "content.delta" else None
    return text if isinstance(text, str) else None


def delta_of(chunk: object) -> Delta | None:
    """
    Return the model text that one chunk of a stream adds, or None.

    Read are texts, text deltas, initial texts of blocks, and whole text blocks. Repeated text is skipped: events of the
    kinds *done* and *stop*, and those with a `snapshot` (see `DeltaReader`). A block other than text, and the start of
    a message, begin a new piece. Tool calls in chunks with `choices` do not: their final message has a single text.
    Events of an unknown type add nothing.

    Raises:
        InvalidArgument: *chunk* is not a piece of a stream.

    """
    if chunk is None or isinstance(chunk, str):
        return Delta(chunk) if chunk else None
    kind = _word(chunk, "type")
    if kind is None:
        event = _word(chunk, "event_kind")
        return _delta_of_choices(chunk) if event is None else _delta_of_part(chunk, event)
    if kind == "AIMessageChunk":
        return _delta_of_langchain(chunk)
    if kind in _MESSAGES:
        raise _no_chunk(chunk, kind)
    return _delta_of_event(chunk, kind)


def _delta_of_event(event: object, kind: str) -> Delta | None:
    if kind == "chunk":
        return _delta_of_choices(field(event, "chunk"))
    if kind == "raw_response_event":  # Event of the Agents SDK; its other events repeat the text of these.
        return delta_of(field(event, "data"))
    if _begins_other(event, kind):
        return Delta("", starts_piece=True)
    holder, name = field(event, _INNER[kind]) if kind in _INNER else event, "text"
    if kind == "response.output_text.delta":
        name = "delta"
    elif _word(holder, "type") not in _TEXT_HOLDERS or field(event, "snapshot") is not None:
        return None
    return _delta_of_text(f"{name} of a chunk of type {shown(_word(holder, 'type'))}", field(holder, name))


def _delta_of_part(event: object, kind: str) -> Delta | None:
    """Read an event of Pydantic AI: the start of a part, or its continuation."""
    if kind == "part_start":
        part = field(event, "part")
        is_text = _word(part, "part_kind") == "text"
        return _delta_of_text("content of a part", field(part, "content")) if is_text else Delta("", starts_piece=True)
    delta = field(event, "delta") if kind == "part_delta" else None
    is_text = _word(delta, "part_delta_kind") == "text"
    return _delta_of_text("content_delta of a part", field(delta, "content_delta")) if is_text else None


def _delta_of_langchain(chunk: object) -> Delta | None:
    content = field(chunk, "content")
    if isinstance(content, str):
        return Delta(content) if content else None
    if not isinstance(content, list | tuple):
        raise _no_chunk(chunk, "AIMessageChunk")
    # The last chunk of a text may contain only annotations.
    said = [block if isinstance(block, str) else _delta_of_block(block) for block in content]
    text, starts_piece = "".join(text or "" for text in said), bool(said) and said[0] is None
    return Delta(text, starts_piece=starts_piece) if text or starts_piece else None


def _delta_of_block(block: object) -> str | None:
    if _word(block, "type") not in _TEXT_BLOCKS:
        return None
    return text if isinstance(text := field(block, "text"), str) else ""


def _begins_other(event: object, kind: str) -> bool:
    """Return True if a message starts, or a block that is not text."""
    if kind == "content_block_start":
        return _word(field(event, "content_block"), "type") not in _TEXT_BLOCKS
    if kind == "response.content_part.added":
        return _word(field(event, "part"), "type") not in _TEXT_BLOCKS
    other = kind in _OTHER_BLOCKS or kind.endswith("_tool_result")
    # Events of helper streams have the names of blocks, but occur in the middle of a block.
    return kind in _BEGINNINGS or (other and field(event, "snapshot") is None)


def _delta_of_text(what: str, text: object) -> Delta | None:
    return Delta(text) if (text := _must_be_str(what, text, _ACCEPTED_CHUNKS)) else None


def _delta_of_choices(chunk: object) -> Delta | None:
    choices = field(chunk, "choices")
    are_choices = isinstance(choices, list | tuple)
    choice = _first_choice(choices) if are_choices else None
    if are_choices and choice is None:
        # The last chunk may contain only the usage; other chunks may belong to further choices.
        return None
    delta = field(choice, "delta")
    if delta is None:
        if choice is not None and field(choice, "message") is None:
            # Some servers send chunks with only a finish reason or content filter results.
            return None
        raise _no_chunk(chunk, type(chunk).__name__)
    content = field(delta, "content")
    return None if content is None else _delta_of_text("choices[0].delta.content", content)


def may_be_chunk(value: object) -> bool:
    """
    Return False for a whole message or another value that no stream yields.

    Passing one is an error of the host, which must not be skipped silently.
    """
    if isinstance(value, int | float | bytes | bytearray | list | tuple | set | frozenset):
        return False
    kind, choices = _word(value, "type"), field(value, "choices")
    choice = _first_choice(choices) if isinstance(choices, list | tuple) else None
    is_whole = kind in _MESSAGES - {"AIMessageChunk"} or (kind is None and _has_content(value))
    return not is_whole and (choice is None or field(choice, "message") is None)


def _no_chunk(value: object, kind: str) -> InvalidArgument:
    return InvalidArgument(
        f"chunk must be text or a piece of a stream, got {type(value).__name__} ({shown(kind)})",
        hint=f"{_ACCEPTED_CHUNKS}; whole messages are given to ingest()",
    )


# User text


def said_by_user(message: object) -> str:
    """
    Return the text of the user's last message, or "".

    The text is empty if there is no such message or the format is unknown. User messages without any text (tool
    results) are skipped, because the earlier request still applies while an agent works on it. Text that
    `Session.recall` added is removed.
    """
    if isinstance(message, list | tuple):
        spoken = [None if isinstance(item, str) else _is_user(item) for item in message]
        if all(said is None for said in spoken):
            return "".join(map(_user_text_in, message))
        pairs = zip(reversed(message), reversed(spoken), strict=True)
        return next((text for item, said in pairs if said and (text := _own_text(item))), "")
    if message is None or isinstance(message, str):
        return without_recalled(message or "")
    is_user = _is_user(message)
    if is_user is not None:
        return _own_text(message) if is_user else ""
    for name in _REQUESTS:
        held = field(message, name)
        if isinstance(held, str | list | tuple):
            return said_by_user(held)
    return _user_text_in(message)


def _is_user(value: object) -> bool | None:
    """Return True for a message of the user, False for other messages, else None."""
    kind = _word(value, "type") or ""
    speaker = _word(value, "role") or kind
    if speaker in _USER_ROLES:
        return True
    if speaker in _NOT_USERS or speaker.endswith(("_tool_result", "_call", "_call_output")):
        return False
    if isinstance(field(value, "parts"), list | tuple):
        # A framework's request to a model may contain the user's prompt; a response never does.
        return _word(value, "kind") != "response"
    # A message with only `content` counts as the user's, as plain text does.
    return True if isinstance(field(value, "content"), str | list | tuple) and not kind else None


def _own_text(message: object) -> str:
    content = field(message, "content")
    return _user_texts(content if isinstance(content, str | list | tuple) else field(message, "parts"))


def _user_texts(content: object) -> str:
    if isinstance(content, str):
        return without_recalled(content)
    return "\n".join(filter(None, map(_user_text_in, content))) if isinstance(content, list | tuple) else ""


def _user_text_in(block: object) -> str:
    """Return the text of a text or content block, or "" if it is not text of the user."""
    if isinstance(block, str):
        return without_recalled(block)
    kind = _word(block, "type") or _word(block, "part_kind")
    if kind == "user-prompt":
        return _user_texts(field(block, "content"))
    text = field(block, "text")
    wanted = kind in _USER_TEXT_BLOCKS or (not kind and field(block, "thought") is not True)
    return without_recalled(text) if wanted and isinstance(text, str) else ""
