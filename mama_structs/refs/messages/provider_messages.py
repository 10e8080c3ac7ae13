"""
Extraction of model and user text from the messages of any provider.

Formats are recognized by their structure, so no provider's package is imported. Only a `str` counts as text: mock
objects that have every attribute must not be mistaken for messages. Unknown items in a model's output raise, except in
`extract_readable_text` and in streams, which skip and report them. Unknown items in a user's message are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from itertools import groupby
from typing import Any, Final

import attrs

from mama_structs._internal.prompt_quoting import remove_recalled
from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.refs.messages.media import parse_media

_TEXT_BLOCKS: Final = frozenset({"text", "output_text"})
_USER_TEXT_BLOCKS: Final = frozenset({"text", "input_text"})
_MESSAGE_TYPES: Final = frozenset({"message", "ai", "AIMessageChunk"})
# Values of `role` or `type` that identify the speaker.
_MODEL_ROLES: Final = frozenset({"assistant", "model", "ai"})
_USER_ROLES: Final = frozenset({"user", "human"})
_TOOL_ROLES: Final = frozenset({"system", "developer", "tool", "function"})
_OTHER_ROLES: Final = _MODEL_ROLES | _TOOL_ROLES | {"AIMessageChunk"}
_REQUEST_FIELDS: Final = ("messages", "input", "contents")
_ACCEPTED_MESSAGES_HINT: Final = (
    "accepted: text, content blocks, a model's message of OpenAI, Anthropic, Google, LangChain, Pydantic AI or the"
    " OpenAI Agents SDK as a dict or object, or a whole answer or run of theirs"
)
_ACCEPTED_CHUNKS_HINT: Final = (
    "accepted: text, or an event or chunk as the provider's stream gives it, as a dict or SDK object"
)

# Types of blocks without model text that a host may pass one by one. Each of these blocks ends a piece.
_OTHER_BLOCKS: Final = frozenset(
    {
        *("thinking", "redacted_thinking", "reasoning", "refusal", "image"),
        *("tool_use", "server_tool_use", "mcp_tool_use", "function_call", "custom_tool_call"),
    }
)
# Types without model text in any field, in addition to the types with a suffix in `_NON_TEXT_SUFFIXES`.
_NON_TEXT_TYPES: Final = _OTHER_BLOCKS | {
    *("audio", "video", "file", "document", "compaction", "program", "non_standard", "text-plain", "image_url"),
    # Parts of Pydantic AI.
    *("tool-call", "builtin-tool-call", "builtin-tool-return"),
}
_NON_TEXT_SUFFIXES: Final = ("_call", "_call_chunk", "_use", "_result", "_output", "_item", "_request", "_response")
# Fields of an unknown format that may contain the model's text.
_POSSIBLE_TEXT_FIELDS: Final = ("text", "content", "parts", "raw_item", "message")
# A message of an assistant without content is valid if it has any of these fields.
_CONTENT_ALTERNATIVES: Final = ("content", "parts", "tool_calls", "function_call", "refusal", "audio")
_METADATA_FIELDS: Final = frozenset({"role", "type", "id", "name", "status", "object"})
# Name that no real message has as an attribute. Detects mocks, which have an attribute of every name.
_NONEXISTENT_FIELD: Final = "mama_structs_has_no_such_field"

_START_EVENTS: Final = frozenset({"message_start", "response.output_item.added"})
# Fields of stream events that contain a block or delta, which may be text.
_INNER_FIELDS: Final = {"content_block_start": "content_block", "content_block_delta": "delta"}
_TEXT_BLOCKS_AND_DELTAS: Final = _TEXT_BLOCKS | {"text_delta"}

# Texts in order, with None after each piece. A piece is model text without other content in between.
_Pieces = list[str | None]
# Descriptions of items that were skipped, or None if unknown items raise an error instead of being skipped.
_skipped_items: Final[ContextVar[list[str] | None]] = ContextVar("mama_structs_unread_items", default=None)


def get_field(value: object, name: str) -> Any:
    """Return a key of a dict or an attribute of an SDK object, or None if it is missing."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def get_text_field(value: object, name: str) -> str:
    """Return a text field of a tool call, or "" if it is missing or not text."""
    text = get_field(value, name)
    return text if isinstance(text, str) else ""


def _get_str(value: object, name: str) -> str | None:
    return found if isinstance(found := get_field(value, name), str) else None


def _require_str(what: str, value: object, hint: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a str, got {type(value).__name__}", hint=hint)
    return value


# Content blocks of MCP and of model providers: dicts with a field `type`.


def block_text(block: dict[str, Any]) -> str | None:
    """Return the text of a content block, or None if the block contains no text."""
    text = block.get("text")
    return text if block.get("type") == "text" and isinstance(text, str) else None


def merge_text_blocks(blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge adjacent text blocks, joined by line breaks, with the other fields of the first."""
    made: list[dict[str, Any]] = []
    for block in blocks:
        text, before = block_text(block), block_text(made[-1]) if made else None
        if text is None or before is None:
            made.append(block)
        else:
            made[-1] = {**made[-1], "text": f"{before}\n{text}"}
    return made


def is_block_list(value: object) -> bool:
    """Return True if a result is a list of content blocks with a text, image or audio block."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(block, dict) and isinstance(block.get("type", block.get("kind")), str) for block in value)
        and any(block_text(block) is not None or parse_media(block) for block in value)
    )


# Model text


def extract_model_text(message: object) -> list[str]:
    """
    Return the pieces of text in a model's output, without thinking and tool calls.

    Adjacent text blocks form one piece and are joined without a separator, because a provider may split one text into
    several blocks (citations). Any other block between them ends a piece, and so does a message. Of several choices
    only the first (index 0) is read, because the conversation continues with it.

    Raises:
        InvalidArgument: The format is unknown, or the message is from a user or tool. Model text is never skipped
            silently.

    """
    said = _read_first(message, "message", _read_list, _read_response, _read_known_block)
    runs = ("".join(text or "" for text in run) for is_end, run in groupby(said, key=lambda t: t is None) if not is_end)
    return [piece for piece in runs if piece]


def extract_readable_text(message: object) -> tuple[list[str], list[str]]:
    """
    Return the pieces of text in a model's output, and a description of each skipped item.

    Unknown items are skipped, and each ends a piece. Descriptions name the place and the type, and contain no text of
    the message.
    """
    unread: list[str] = []
    token = _skipped_items.set(unread)
    try:
        return extract_model_text(message), unread
    finally:
        _skipped_items.reset(token)


def _read_list(value: object) -> _Pieces | None:
    """Read a list of messages, items or blocks. Requests that a framework inserts between them are skipped."""
    if not isinstance(value, list | tuple):
        return None
    if any(_get_str(item, "kind") == "response" for item in value):
        value = [item for item in value if _get_str(item, "kind") != "request"]
    return _read_all(value, "message", _read_response, _read_block)


def _read_all(items: Sequence[object], where: str, *readers: Callable[[object], _Pieces | None]) -> _Pieces:
    return [text for number, item in enumerate(items) for text in _read_first(item, f"{where}[{number}]", *readers)]


def _read_first(item: object, where: str, *readers: Callable[[object], _Pieces | None]) -> _Pieces:
    is_stand_in = not isinstance(item, Mapping) and hasattr(item, _NONEXISTENT_FIELD)
    unread = _skipped_items.get()
    try:
        found = None if is_stand_in else next((found for read in readers if (found := read(item)) is not None), None)
    except InvalidArgument:
        if unread is None:
            raise
        found = None
    if found is None:
        if unread is None:
            raise _unknown_item_error(item, where)
        unread.append(describe_item(item, where))
        return [None]
    return found


def describe_item(item: object, where: str) -> str:
    """Describe a message item by *where* it occurred and by its type, without its content."""
    kind = _get_str(item, "type")
    return f"{where} of type {type(item).__name__ if kind is None else repr_short(kind)}"


def _read_response(value: object) -> _Pieces | None:
    """Read a message, a whole response or a whole run. Return None for any other value."""
    if isinstance(value, str):
        return None
    kind, role = _get_str(value, "type"), _get_str(value, "role")
    # The type of a block may equal a role (`function`), so an explicit role takes precedence.
    speaker = role if role is not None else kind if kind in _USER_ROLES | _TOOL_ROLES else None
    if role is kind is None and _get_str(value, "kind") == "request":
        speaker = "user"
    if speaker is not None and speaker not in _MODEL_ROLES:
        raise InvalidArgument(
            f"message must be the model's own output, got one with the role {repr_short(speaker)}",
            hint="pass messages with the role assistant (or model) only; refs that others write are never stored",
        )
    if role is not None or kind in _MESSAGE_TYPES or (kind is None and _has_content(value)):
        return [None, *_read_content(value), None]
    if kind == "message_output_item":
        return _read_response(get_field(value, "raw_item"))
    return _read_container(value) if kind is None else None


def _read_container(value: object) -> _Pieces | None:
    """Read a whole response or a whole run. Return None for any other value."""
    new_messages = get_field(value, "new_messages")
    if callable(new_messages):
        return _read_list(new_messages())
    for name, read in _CONTAINER_READERS.items():
        held = get_field(value, name)
        if isinstance(held, list | tuple):
            return read(held)
    return None


def _has_content(value: object) -> bool:
    if isinstance(value, Mapping):
        return "content" in value or isinstance(value.get("parts"), list | tuple)
    return isinstance(get_field(value, "content"), str | list | tuple) or isinstance(
        get_field(value, "parts"), list | tuple
    )


def _read_content(message: object) -> _Pieces:
    content = get_field(message, "content")
    if isinstance(content, str):
        return [content]
    if isinstance(content, list | tuple):
        return _read_all(content, "content", _read_block)
    if content is not None:
        raise _unknown_item_error(content, "content")
    parts = get_field(message, "parts")
    if isinstance(parts, list | tuple):
        return _read_all(parts, "parts", _read_part)
    if parts is not None or not _may_be_empty(message):
        raise _unknown_item_error(message, "message")
    return []


def _may_be_empty(message: object) -> bool:
    """Return True if a message without content is valid, because none of its fields can contain text."""
    if isinstance(message, Mapping):
        return message.keys() <= _METADATA_FIELDS or not message.keys().isdisjoint(_CONTENT_ALTERNATIVES)
    return any(hasattr(message, name) for name in _CONTENT_ALTERNATIVES)


def _read_part(part: object) -> _Pieces | None:
    """
    Read a part of Pydantic AI, or of Google.

    Google's parts have no type: those with a text are text, unless they are thoughts.
    """
    kind = _get_str(part, "part_kind")
    if isinstance(part, str) or (kind is None and _get_str(part, "type") is not None):
        return _read_block(part)
    if kind is None:
        if not isinstance(part, Mapping) and not hasattr(part, "text"):
            return None
        text = get_field(part, "text")
        return [text if isinstance(text, str) and get_field(part, "thought") is not True else None]
    if kind == "speech":
        spoken = get_field(part, "transcript")
        return [spoken if isinstance(spoken, str) and get_field(part, "speaker") == "assistant" else None]
    if kind == "text":
        return [
            _require_str("the content of a part of kind 'text'", get_field(part, "content"), _ACCEPTED_MESSAGES_HINT)
        ]
    return [None] if _is_without_text(part, kind) else None


def _read_block(block: object) -> _Pieces | None:
    """Read a string or a content block. Return None for any other value."""
    if isinstance(block, str):
        return [block]
    kind = _get_str(block, "type")
    if kind is None:
        return None
    if kind not in _TEXT_BLOCKS:
        return [None] if _is_without_text(block, kind) else None
    return [_require_str(f"the text of a block of type {kind!r}", get_field(block, "text"), _ACCEPTED_MESSAGES_HINT)]


def _read_known_block(block: object) -> _Pieces | None:
    """Read a string or a block that was passed in place of a message. Return None if its type is unknown."""
    kind = _get_str(block, "type")
    is_known = kind is None or kind in _TEXT_BLOCKS | _NON_TEXT_TYPES or kind.endswith(_NON_TEXT_SUFFIXES)
    return _read_block(block) if is_known else None


def _is_without_text(block: object, kind: str) -> bool:
    """Return True if a block contains no model text. For an unknown type, this depends on its fields."""
    is_known = kind in _NON_TEXT_TYPES or kind.endswith(_NON_TEXT_SUFFIXES)
    return is_known or not any(isinstance(get_field(block, name), str | list | tuple) for name in _POSSIBLE_TEXT_FIELDS)


def _read_choices(choices: Sequence[Any]) -> _Pieces:
    choice = _first_choice(choices)
    found = [] if choice is None else _read_response(get_field(choice, "message"))
    if found is None:
        raise InvalidArgument(
            "choices[0] must have a message", hint="chunks of a stream are fed to stream(), one after the other"
        )
    return found


def _read_candidates(candidates: Sequence[Any]) -> _Pieces | None:
    candidate = _first_choice(candidates)
    # A candidate that the provider blocked has no content.
    content = None if candidate is None else get_field(candidate, "content")
    return [] if content is None else _read_response(content)


_CONTAINER_READERS: Final[Mapping[str, Callable[[Sequence[Any]], _Pieces | None]]] = {
    "choices": _read_choices,
    "output": lambda output: _read_all(output, "output", _read_response, _read_block),
    "candidates": _read_candidates,
    "new_items": lambda items: _read_all(items, "new_items", _read_response, _read_block),
}


def _first_choice(choices: Sequence[Any]) -> object:
    # Treat a choice without an index as the first one, because some providers omit the index of an only choice.
    return next((choice for choice in choices if get_field(choice, "index") in (0, None)), None)


def _unknown_item_error(value: object, where: str) -> InvalidArgument:
    kind = _get_str(value, "type")
    of_type = f" of type {repr_short(kind)}" if kind is not None else ""
    return InvalidArgument(
        f"{where} must be text, a content block or a message, got {type(value).__name__}{of_type}",
        hint=_ACCEPTED_MESSAGES_HINT,
    )


# Model text in streams


@attrs.frozen
class TextDelta:
    """
    Text that one chunk of a stream adds.

    *starts_piece* is True if the text starts a new piece, see `extract_model_text`.
    """

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
        self._has_raw_text = False

    def read(self, chunk: object) -> TextDelta | None:
        """
        Return the text that *chunk* adds, or None.

        Raises:
            InvalidArgument: *chunk* is not a piece of a stream.

        """
        echoed = _find_echo(chunk)
        if echoed is not None:
            return TextDelta(echoed) if echoed and not self._has_raw_text else None
        delta = parse_delta(chunk)
        if delta is not None and delta.text and not isinstance(chunk, str):
            self._has_raw_text = True
        return delta


def _find_echo(chunk: object) -> str | None:
    """Return the text of a helper event that repeats the text of a raw event, or None for any other event."""
    if isinstance(chunk, str) or get_field(chunk, "snapshot") is None:
        return None
    kind = _get_str(chunk, "type")
    text = (
        get_field(chunk, "text") if kind == "text" else get_field(chunk, "delta") if kind == "content.delta" else None
    )
    return text if isinstance(text, str) else None


def parse_delta(chunk: object) -> TextDelta | None:
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
        return TextDelta(chunk) if chunk else None
    kind = _get_str(chunk, "type")
    if kind is None:
        event = _get_str(chunk, "event_kind")
        return _parse_choices_delta(chunk) if event is None else _parse_part_delta(chunk, event)
    if kind == "AIMessageChunk":
        return _parse_langchain_delta(chunk)
    if kind in _MESSAGE_TYPES:
        raise _not_a_chunk_error(chunk, kind)
    return _parse_event_delta(chunk, kind)


def _parse_event_delta(event: object, kind: str) -> TextDelta | None:
    if kind == "chunk":
        return _parse_choices_delta(get_field(event, "chunk"))
    if kind == "raw_response_event":  # Agents SDK. Its other events repeat the same text.
        return parse_delta(get_field(event, "data"))
    if _is_piece_start(event, kind):
        return TextDelta("", starts_piece=True)
    holder, name = get_field(event, _INNER_FIELDS[kind]) if kind in _INNER_FIELDS else event, "text"
    if kind == "response.output_text.delta":
        name = "delta"
    elif _get_str(holder, "type") not in _TEXT_BLOCKS_AND_DELTAS or get_field(event, "snapshot") is not None:
        return None
    return _make_text_delta(
        f"{name} of a chunk of type {repr_short(_get_str(holder, 'type'))}", get_field(holder, name)
    )


def _parse_part_delta(event: object, kind: str) -> TextDelta | None:
    """Read an event of Pydantic AI that starts or continues a part."""
    if kind == "part_start":
        part = get_field(event, "part")
        is_text = _get_str(part, "part_kind") == "text"
        return (
            _make_text_delta("content of a part", get_field(part, "content"))
            if is_text
            else TextDelta("", starts_piece=True)
        )
    delta = get_field(event, "delta") if kind == "part_delta" else None
    is_text = _get_str(delta, "part_delta_kind") == "text"
    return _make_text_delta("content_delta of a part", get_field(delta, "content_delta")) if is_text else None


def _parse_langchain_delta(chunk: object) -> TextDelta | None:
    content = get_field(chunk, "content")
    if isinstance(content, str):
        return TextDelta(content) if content else None
    if not isinstance(content, list | tuple):
        raise _not_a_chunk_error(chunk, "AIMessageChunk")
    # The last chunk of a text may contain annotations only, so its text may be missing.
    said = [block if isinstance(block, str) else _parse_block_delta(block) for block in content]
    text, starts_piece = "".join(text or "" for text in said), bool(said) and said[0] is None
    return TextDelta(text, starts_piece=starts_piece) if text or starts_piece else None


def _parse_block_delta(block: object) -> str | None:
    if _get_str(block, "type") not in _TEXT_BLOCKS:
        return None
    return text if isinstance(text := get_field(block, "text"), str) else ""


def _is_piece_start(event: object, kind: str) -> bool:
    """Return True if the event starts a message, or a block that is not text."""
    if kind == "content_block_start":
        return _get_str(get_field(event, "content_block"), "type") not in _TEXT_BLOCKS
    if kind == "response.content_part.added":
        return _get_str(get_field(event, "part"), "type") not in _TEXT_BLOCKS
    other = kind in _OTHER_BLOCKS or kind.endswith("_tool_result")
    # A helper event has the type of a block, but starts no block. Only helper events have a `snapshot`.
    return kind in _START_EVENTS or (other and get_field(event, "snapshot") is None)


def _make_text_delta(what: str, text: object) -> TextDelta | None:
    return TextDelta(text) if (text := _require_str(what, text, _ACCEPTED_CHUNKS_HINT)) else None


def _parse_choices_delta(chunk: object) -> TextDelta | None:
    choices = get_field(chunk, "choices")
    are_choices = isinstance(choices, list | tuple)
    choice = _first_choice(choices) if are_choices else None
    if are_choices and choice is None:
        # The last chunk may contain only usage data. Other chunks may belong to further choices, which are ignored.
        return None
    delta = get_field(choice, "delta")
    if delta is None:
        if choice is not None and get_field(choice, "message") is None:
            # Some servers send chunks with only a finish reason or content filter results.
            return None
        raise _not_a_chunk_error(chunk, type(chunk).__name__)
    content = get_field(delta, "content")
    return None if content is None else _make_text_delta("choices[0].delta.content", content)


def may_be_chunk(value: object) -> bool:
    """
    Return False for a value that no stream yields, such as a whole message.

    Passing one is an error of the host, which must not be skipped silently.
    """
    if isinstance(value, int | float | bytes | bytearray | list | tuple | set | frozenset):
        return False
    kind, choices = _get_str(value, "type"), get_field(value, "choices")
    choice = _first_choice(choices) if isinstance(choices, list | tuple) else None
    is_whole = kind in _MESSAGE_TYPES - {"AIMessageChunk"} or (kind is None and _has_content(value))
    return not is_whole and (choice is None or get_field(choice, "message") is None)


def _not_a_chunk_error(value: object, kind: str) -> InvalidArgument:
    return InvalidArgument(
        f"chunk must be text or a piece of a stream, got {type(value).__name__} ({repr_short(kind)})",
        hint=f"{_ACCEPTED_CHUNKS_HINT}; pass whole messages to observe()",
    )


# User text


def extract_user_text(message: object) -> str:
    """
    Return the text of the user's last message, or "".

    The text is empty if there is no such message or the format is unknown. User messages without any text (tool
    results) are skipped, because the earlier request still applies while an agent works on it. Text that
    `Session.recall` added is removed.
    """
    if isinstance(message, list | tuple):
        spoken = [None if isinstance(item, str) else _is_user(item) for item in message]
        if all(said is None for said in spoken):
            return "".join(map(_extract_block_text, message))
        pairs = zip(reversed(message), reversed(spoken), strict=True)
        return next((text for item, said in pairs if said and (text := _extract_message_text(item))), "")
    if message is None or isinstance(message, str):
        return remove_recalled(message or "")
    is_user = _is_user(message)
    if is_user is not None:
        return _extract_message_text(message) if is_user else ""
    for name in _REQUEST_FIELDS:
        held = get_field(message, name)
        if isinstance(held, str | list | tuple):
            return extract_user_text(held)
    return _extract_block_text(message)


def _is_user(value: object) -> bool | None:
    """Return True for a message of the user, False for a message of another speaker, and None if unknown."""
    kind = _get_str(value, "type") or ""
    speaker = _get_str(value, "role") or kind
    if speaker in _USER_ROLES:
        return True
    if speaker in _OTHER_ROLES or speaker.endswith(("_tool_result", "_call", "_call_output")):
        return False
    if isinstance(get_field(value, "parts"), list | tuple):
        # A framework's request to a model may contain the user's prompt, but its response never does.
        return _get_str(value, "kind") != "response"
    # Treat a message with no field but `content` as the user's, like plain text.
    return True if isinstance(get_field(value, "content"), str | list | tuple) and not kind else None


def _extract_message_text(message: object) -> str:
    content = get_field(message, "content")
    return _join_user_texts(content if isinstance(content, str | list | tuple) else get_field(message, "parts"))


def _join_user_texts(content: object) -> str:
    if isinstance(content, str):
        return remove_recalled(content)
    return "\n".join(filter(None, map(_extract_block_text, content))) if isinstance(content, list | tuple) else ""


def _extract_block_text(block: object) -> str:
    """Return the user's text in a string or content block, or "" if it contains none."""
    if isinstance(block, str):
        return remove_recalled(block)
    kind = _get_str(block, "type") or _get_str(block, "part_kind")
    if kind == "user-prompt":
        return _join_user_texts(get_field(block, "content"))
    text = get_field(block, "text")
    wanted = kind in _USER_TEXT_BLOCKS or (not kind and get_field(block, "thought") is not True)
    return remove_recalled(text) if wanted and isinstance(text, str) else ""
