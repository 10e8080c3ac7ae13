"""
Which texts of a model's output may hold ``<ref>`` tags: its own text, and neither its thinking nor its tool calls.

Everything here goes by the shape of what it is given, so no provider's package is imported.
A value counts as text when it is a `str`, never because it has an attribute of that name: a stand-in that answers
to every name must not be taken for a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument

_TEXT_BLOCKS: Final = frozenset({"text", "output_text"})
_MESSAGES: Final = frozenset({"message", "ai", "AIMessageChunk"})
# Words that say, in `role` or in `type`, who speaks.
_MODEL_ROLES: Final = frozenset({"assistant", "model", "ai"})
_OTHER_ROLES: Final = frozenset({"user", "human", "system", "developer", "tool", "function"})
_ACCEPTED: Final = (
    "accepted: text, a list of content blocks, an assistant message as a dict or SDK object,"
    " or a whole answer with content, choices, output or candidates"
)
_ACCEPTED_CHUNKS: Final = (
    "accepted: text, or an event or chunk as the provider's stream gives it, as a dict or SDK object"
)

# Blocks that a host may pass on one by one; between two texts they end a piece, as in a whole message.
_OTHER_BLOCKS: Final = frozenset(
    {
        "thinking",
        "redacted_thinking",
        "reasoning",
        "tool_use",
        "server_tool_use",
        "mcp_tool_use",
        "function_call",
        "custom_tool_call",
        "refusal",
        "image",
    }
)

_BEGINNINGS: Final = frozenset({"message_start", "response.output_item.added"})
# Where an event keeps the block or delta that may be text.
_INNER: Final = {"content_block_start": "content_block", "content_block_delta": "delta"}
_TEXT_HOLDERS: Final = _TEXT_BLOCKS | {"text_delta"}


@attrs.frozen
class Delta:
    """
    What one chunk of a stream adds.

    Args:
        text: May be empty.
        starts_piece: Whether the text before it is a piece of its own, which this text does not go on with.

    """

    text: str
    starts_piece: bool = attrs.field(default=False, kw_only=True)


def texts_of(message: object) -> list[str]:
    """
    Find the pieces of a model's output that are its own text.

    Neighbouring text blocks are one piece, joined without anything between, since a provider may cut one text into
    several blocks (citations).
    Any other block between them (thinking, a tool call, a refusal, an image) ends a piece, and so does a message.
    Of several choices only the first (index 0) is taken: it is the one that a conversation goes on with.

    Args:
        message: Text; a content block, or a list of blocks and texts; an assistant message or a whole answer, as a
            dict or as the object that a provider's SDK gives; a list of messages; None, as a message without text has
            it for content.

    Returns:
        Pieces in the order in which they stand; none is empty.

    Raises:
        InvalidArgument: It has none of these shapes, its text is no `str`, or it is the message of a user or tool.

    """
    pieces = _Pieces()
    if isinstance(message, str):
        pieces.add(message)
    elif isinstance(message, list | tuple):
        for number, item in enumerate(message):
            if not (_take_answer(item, pieces) or _take_block(item, pieces)):
                raise _unknown(item, f"message[{number}]")
    elif message is not None and not (_take_answer(message, pieces) or _take_block(message, pieces)):
        raise _unknown(message, "message")
    return pieces.close()


class _Pieces:
    """Joins neighbouring texts; quadratic joining is avoided by keeping them apart until a piece ends."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._open: list[str] = []

    def add(self, text: str) -> None:
        self._open.append(text)

    def end(self) -> None:
        piece = "".join(self._open)
        if piece:
            self._done.append(piece)
        self._open.clear()

    def close(self) -> list[str]:
        self.end()
        return self._done


def _field(value: object, name: str) -> Any:
    """Read a key of a dict, or an attribute that may be missing."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _word(value: object, name: str) -> str | None:
    found = _field(value, name)
    return found if isinstance(found, str) else None


def _take_answer(value: object, pieces: _Pieces) -> bool:
    """Take a message, or a whole answer that holds messages; False when it is neither."""
    if isinstance(value, str):
        return False
    kind, role = _word(value, "type"), _word(value, "role")
    _refuse_others(kind, role)
    if role is not None or kind in _MESSAGES or (kind is None and _has_content(value)):
        pieces.end()
        _take_content(value, pieces)
        pieces.end()
        return True
    if kind is not None:
        return False
    return _take_choices(value, pieces) or _take_output(value, pieces) or _take_candidates(value, pieces)


def _refuse_others(kind: str | None, role: str | None) -> None:
    # A block may say of what type it is with one of these words (`function`): where a role is given, the role counts.
    speaker = role if role is not None else kind if kind in _OTHER_ROLES else None
    if speaker is not None and speaker not in _MODEL_ROLES:
        raise InvalidArgument(
            f"message must be the model's own output, got one with the role {speaker!r:.40}",
            hint="pass messages with the role assistant (or model) only; refs that others write are never stored",
        )


def _has_content(value: object) -> bool:
    if isinstance(value, Mapping):
        return "content" in value or isinstance(value.get("parts"), list | tuple)
    return isinstance(_field(value, "content"), str | list | tuple) or isinstance(_field(value, "parts"), list | tuple)


def _take_content(message: object, pieces: _Pieces) -> None:
    content = _field(message, "content")
    if isinstance(content, str):
        pieces.add(content)
    elif isinstance(content, list | tuple):
        for number, block in enumerate(content):
            if not _take_block(block, pieces):
                raise _unknown(block, f"content[{number}]")
    elif content is not None:
        raise _unknown(content, "content")
    else:
        _take_parts(_field(message, "parts"), pieces)


def _take_block(block: object, pieces: _Pieces) -> bool:
    """Take a text or a content block; False when it is neither."""
    if isinstance(block, str):
        pieces.add(block)
        return True
    kind = _word(block, "type")
    if kind is None:
        return False
    if kind in _TEXT_BLOCKS:
        pieces.add(_text_in(block, kind))
    else:
        pieces.end()
    return True


def _text_in(block: object, kind: str) -> str:
    text = _field(block, "text")
    if not isinstance(text, str):
        raise InvalidArgument(
            f"the text of a block of type {kind!r} must be a str, got {type(text).__name__}", hint=_ACCEPTED
        )
    return text


def _take_parts(parts: object, pieces: _Pieces) -> None:
    """Take parts, which have no type: what has a text, and is no thought, is text."""
    for part in parts if isinstance(parts, list | tuple) else ():
        text = _field(part, "text")
        if isinstance(text, str) and _field(part, "thought") is not True:
            pieces.add(text)
        else:
            pieces.end()


def _take_choices(answer: object, pieces: _Pieces) -> bool:
    choices = _field(answer, "choices")
    if not isinstance(choices, list | tuple):
        return False
    choice = _first_choice(choices)
    if choice is not None and not _take_answer(_field(choice, "message"), pieces):
        raise InvalidArgument(
            "choices[0] must have a message", hint="chunks of a stream are fed to stream(), one after the other"
        )
    return True


def _first_choice(choices: Sequence[Any]) -> object:
    # Some providers give no index where there is one choice.
    return next((choice for choice in choices if _field(choice, "index") in (0, None)), None)


def _take_output(answer: object, pieces: _Pieces) -> bool:
    output = _field(answer, "output")
    if not isinstance(output, list | tuple):
        return False
    for number, item in enumerate(output):
        if not (_take_answer(item, pieces) or _take_block(item, pieces)):
            raise _unknown(item, f"output[{number}]")
    return True


def _take_candidates(answer: object, pieces: _Pieces) -> bool:
    candidates = _field(answer, "candidates")
    if not isinstance(candidates, list | tuple):
        return False
    candidate = _first_choice(candidates)
    # A candidate that was blocked has no content.
    content = None if candidate is None else _field(candidate, "content")
    return content is None or _take_answer(content, pieces)


def _unknown(value: object, where: str) -> InvalidArgument:
    kind = _word(value, "type") if not isinstance(value, str) else None
    of_type = f" of type {kind!r:.40}" if kind is not None else ""
    return InvalidArgument(
        f"{where} must be text, a content block or a message, got {type(value).__name__}{of_type}", hint=_ACCEPTED
    )


class DeltaReader:
    """
    Reads the chunks of one stream, so that fed one after the other they give the pieces of the final message.

    The helper streams of some SDKs yield the same text twice: as it came from the provider, and right after it as
    an event of their own, which tells the text so far in `snapshot`.
    The second is left out when the first was there, and taken when a host passes on only the helper's events.
    """

    def __init__(self) -> None:
        self._came_raw = False

    def read(self, chunk: object) -> Delta | None:
        """
        Tell what *chunk* adds; None when it is nothing.

        Raises:
            InvalidArgument: It is neither text nor a chunk or event of a stream.

        """
        echoed = _echo_of(chunk)
        if echoed is not None:
            return Delta(echoed) if echoed and not self._came_raw else None
        delta = delta_of(chunk)
        if delta is not None and delta.text and not isinstance(chunk, str):
            self._came_raw = True
        return delta


def _echo_of(chunk: object) -> str | None:
    """Find the text in a helper's event that repeats what the raw event before it brought; None in all others."""
    if isinstance(chunk, str) or _field(chunk, "snapshot") is None:
        return None
    kind = _word(chunk, "type")
    text = _field(chunk, "text") if kind == "text" else _field(chunk, "delta") if kind == "content.delta" else None
    return text if isinstance(text, str) else None


def delta_of(chunk: object) -> Delta | None:
    """
    Find what one chunk of a stream adds to the model's text.

    Taken are texts, text deltas, text that a block starts with, and whole text blocks.
    What repeats text is left out: events of the kinds *done* and *stop*, and the events with a `snapshot` that the
    helper streams of some SDKs yield right after the raw event (``type="text"``, ``type="content.delta"``); a host that
    passes on only those uses `DeltaReader`.
    A block that is no text, and the beginning of a message, start a new piece.
    Tool calls in chunks with `choices` do not: their final message has one text, whatever came between.

    Args:
        chunk: Text, an event, or a chunk, as a dict or SDK object; None, as the text of a chunk without text is.

    Returns:
        None when the chunk adds nothing.

    Raises:
        InvalidArgument: It is none of these. Events of a type that is not known add nothing.

    """
    if chunk is None or isinstance(chunk, str):
        return Delta(chunk) if chunk else None
    kind = _word(chunk, "type")
    if kind is None:
        return _delta_of_choices(chunk)
    if kind in _MESSAGES:
        raise _no_chunk(chunk, kind)
    return _delta_of_event(chunk, kind)


def _delta_of_event(event: object, kind: str) -> Delta | None:
    if kind == "chunk":
        return _delta_of_choices(_field(event, "chunk"))
    if _begins_other(event, kind):
        return Delta("", starts_piece=True)
    if kind == "response.output_text.delta":
        return _text_delta(event, "delta")
    holder = _field(event, _INNER[kind]) if kind in _INNER else event
    taken = _word(holder, "type") in _TEXT_HOLDERS and _field(event, "snapshot") is None
    return _text_delta(holder, "text") if taken else None


def _begins_other(event: object, kind: str) -> bool:
    """Tell whether a message begins, or a block that is no text."""
    if kind == "content_block_start":
        return _word(_field(event, "content_block"), "type") not in _TEXT_BLOCKS
    if kind == "response.content_part.added":
        return _word(_field(event, "part"), "type") not in _TEXT_BLOCKS
    other = kind in _OTHER_BLOCKS or kind.endswith("_tool_result")
    # The events of helper streams bear the names of blocks, and come while the block is under way.
    return kind in _BEGINNINGS or (other and _field(event, "snapshot") is None)


def _text_delta(holder: object, name: str) -> Delta | None:
    text = _field(holder, name)
    if not isinstance(text, str):
        kind = _word(holder, "type")
        raise InvalidArgument(
            f"{name} of a chunk of type {kind!r:.40} must be a str, got {type(text).__name__}", hint=_ACCEPTED_CHUNKS
        )
    return Delta(text) if text else None


def _delta_of_choices(chunk: object) -> Delta | None:
    choices = _field(chunk, "choices")
    if not isinstance(choices, list | tuple):
        raise _no_chunk(chunk, type(chunk).__name__)
    choice = _first_choice(choices)
    if choice is None:
        # The last chunk may tell the usage only, and others may belong to further choices.
        return None
    delta = _field(choice, "delta")
    if delta is None:
        raise _no_chunk(chunk, type(chunk).__name__)
    content = _field(delta, "content")
    if content is None:
        return None
    if not isinstance(content, str):
        raise InvalidArgument(
            f"choices[0].delta.content must be a str, got {type(content).__name__}", hint=_ACCEPTED_CHUNKS
        )
    return Delta(content) if content else None


def _no_chunk(value: object, kind: str) -> InvalidArgument:
    return InvalidArgument(
        f"chunk must be text or a piece of a stream, got {type(value).__name__} ({kind!r:.40})",
        hint=f"{_ACCEPTED_CHUNKS}; whole messages are given to ingest()",
    )
