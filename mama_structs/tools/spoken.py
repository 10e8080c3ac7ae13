"""
What the user said last: the text that the choice of tools goes by.

Like `mama_structs.descriptors.messages`, this goes by the shape of what it is given, so no provider's package is
imported, and a value is text only when it is a `str`.
Where that module wants a model's output and refuses the rest, this one wants the user's words and passes over the
rest: a turn must not fail because nobody knows what it is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_TEXT_BLOCKS: Final = frozenset({"text", "input_text"})
_USERS: Final = frozenset({"user", "human"})
_OTHERS: Final = frozenset({"assistant", "model", "ai", "system", "developer", "tool", "function", "AIMessageChunk"})
_HOLDERS: Final = ("messages", "input", "contents")


def last_user_text(message: object) -> str:
    """
    Find the text of the user's last message.

    In a conversation, messages of the user without any text (results of tools) are passed over: while an agent works
    at a request, what it was asked stays what counts.

    Args:
        message: Text; content blocks; a message or a list of messages, as dicts or as objects of an SDK; a request
            with ``messages``, ``input`` or ``contents``; None.

    Returns:
        The text; empty where there is none, and for shapes that are not known.

    """
    if isinstance(message, str):
        return message
    if isinstance(message, list | tuple):
        return _last_of(message)
    if message is None or _speaks(message) is not None:
        return _own_text(message)
    for name in _HOLDERS:
        held = _field(message, name)
        if isinstance(held, str | list | tuple):
            return last_user_text(held)
    return _text_in(message)


def _field(value: object, name: str) -> Any:
    """Read a key of a dict, or an attribute that may be missing."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _word(value: object, name: str) -> str:
    found = _field(value, name)
    return found if isinstance(found, str) else ""


def _speaks(value: object) -> bool | None:
    """Tell whether *value* is a message of the user; None when it is no message."""
    speaker = _word(value, "role") or _word(value, "type")
    if speaker in _USERS:
        return True
    if speaker in _OTHERS or speaker.endswith(("_tool_result", "_call", "_call_output")):
        return False
    if isinstance(_field(value, "parts"), list | tuple):
        # What a framework sent to a model (a request) may hold the user's prompt; what came back never does.
        return _word(value, "kind") != "response"
    return True if _has_content(value) else None


def _has_content(value: object) -> bool:
    # A bare `content` is taken for the user's, as a bare text is.
    return isinstance(_field(value, "content"), str | list | tuple) and not _word(value, "type")


def _last_of(items: list[Any] | tuple[Any, ...]) -> str:
    spoken = [None if isinstance(item, str) else _speaks(item) for item in items]
    if all(said is None for said in spoken):
        return "".join(map(_text_in, items))
    # Of a long conversation only the end is read.
    for item, said in zip(reversed(items), reversed(spoken), strict=True):
        if said:
            text = _own_text(item)
            if text:
                return text
    return ""


def _own_text(message: object) -> str:
    if message is None or not _speaks(message):
        return ""
    content = _field(message, "content")
    parts = content if isinstance(content, str | list | tuple) else _field(message, "parts")
    if isinstance(parts, str):
        return parts
    return "\n".join(filter(None, map(_text_in, parts))) if isinstance(parts, list | tuple) else ""


def _text_in(block: object) -> str:
    """Read a text or a content block; empty where it is no text of the user."""
    if isinstance(block, str):
        return block
    kind = _word(block, "type") or _word(block, "part_kind")
    if kind == "user-prompt":
        content = _field(block, "content")
        if isinstance(content, str):
            return content
        return "\n".join(filter(None, map(_text_in, content))) if isinstance(content, list | tuple) else ""
    text = _field(block, "text")
    wanted = kind in _TEXT_BLOCKS or (not kind and _field(block, "thought") is not True)
    return text if wanted and isinstance(text, str) else ""
