"""Transcript of a conversation in the format of any provider: user, model and tool texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from mama_structs._internal.jsonable import to_jsonable
from mama_structs._internal.prompt_quoting import remove_recalled
from mama_structs.errors import InvalidArgument, MamaStructsError, repr_short
from mama_structs.refs.messages.provider_messages import extract_model_text, extract_user_text, get_field

_INSTRUCTION_ROLES: Final = frozenset({"system", "developer"})
_TOOL_TYPES: Final = frozenset({"tool", "function", "ToolMessage", "FunctionMessage", "tool_call_output_item"})
_TOOL_SUFFIXES: Final = ("_call_output", "tool_result", "tool-return", "retry-prompt")
_USER_ROLES: Final = frozenset({"user", "human"})
_KNOWN_ROLES: Final = _INSTRUCTION_ROLES | _TOOL_TYPES | _USER_ROLES | {"assistant", "model", "ai"}
# Names of a run's fields and methods that contain its messages.
_MESSAGE_FIELDS: Final = ("messages", "input", "contents")
_MESSAGE_METHODS: Final = ("all_messages", "to_input_list")
_ID_PATTERN: Final = re.compile(r"[\w.-]{1,100}")


@attrs.frozen
class TranscriptMessage:
    """Text of one speaker in a message. *id* is the provider's id of the message."""

    speaker: Literal["user", "model", "tool"]
    text: str = attrs.field(repr=False)
    id: str | None = None


def extract_transcript(messages: object) -> list[TranscriptMessage]:
    """
    Return the texts of a conversation in order.

    Instructions, tool calls, thinking and recalled memories are left out.
    """
    told: list[TranscriptMessage] = []
    for number, message in enumerate(_list_messages(messages)):
        found = list(_extract_texts(message, f"messages[{number}]"))
        given = get_field(message, "id")
        known = given if isinstance(given, str) and _ID_PATTERN.fullmatch(given) else None
        for speaker in ("user", "model", "tool"):
            texts = [remove_recalled(text).strip() for who, text in found if who == speaker]
            if text := "\n".join(filter(None, texts)):
                # Lone surrogates cannot be encoded as UTF-8, so they could not be stored.
                told.append(TranscriptMessage(speaker, text.encode(errors="replace").decode(), known))
    return told


def _list_messages(messages: object) -> Sequence[object]:
    if isinstance(messages, list | tuple):
        return messages
    if isinstance(messages, str):
        return [messages]
    for name in _MESSAGE_METHODS:
        method: Callable[[], Any] | None = getattr(messages, name, None)
        if callable(method) and isinstance(held := method(), list | tuple):
            return held
    for name in _MESSAGE_FIELDS:
        held = get_field(messages, name)
        if isinstance(held, list | tuple):
            return held
    return [messages]


def _extract_texts(message: object, where: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of one message, each with its speaker."""
    if isinstance(message, str):
        yield "user", message
        return
    role, kind = get_field(message, "role"), get_field(message, "type")
    speaker = role if isinstance(role, str) else kind if isinstance(kind, str) else ""
    if speaker in _INSTRUCTION_ROLES:
        return
    if isinstance(role, str) and role not in _KNOWN_ROLES:
        raise InvalidArgument(f"{where} is no message of a known shape: its role is {repr_short(role)}")
    if _is_tool_type(speaker):
        yield "tool", _tool_text(message)
        return
    content = get_field(message, "content")
    parts = content if isinstance(content, list | tuple) else get_field(message, "parts")
    blocks = parts if isinstance(parts, list | tuple) else ()
    yield from (("tool", _tool_text(block)) for block in blocks if _is_tool_block(block))
    if user := extract_user_text(message):
        yield "user", user
    elif speaker not in _USER_ROLES and get_field(message, "kind") != "request":
        try:
            said = extract_model_text([message])
        except InvalidArgument as error:
            if blocks and all(map(_is_tool_block, blocks)):
                return
            raise InvalidArgument(
                f"{where} is no message of a known shape: {error.args[0]}", hint=error.hint
            ) from error
        yield from (("model", text) for text in said)


def _is_tool_type(word: object) -> bool:
    return isinstance(word, str) and (word in _TOOL_TYPES or word.endswith(_TOOL_SUFFIXES))


def _is_tool_block(block: object) -> bool:
    kind = get_field(block, "type") or get_field(block, "part_kind")
    return _is_tool_type(kind) or (kind is None and get_field(block, "function_response") is not None)


def _tool_text(value: object) -> str:
    """Return a tool's output as text; other data is serialized as JSON."""
    value = get_field(value, "function_response") or value
    for name in ("output", "content", "response"):
        given = get_field(value, name)
        if given is not None:
            return _to_text(given)
    return ""


def _to_text(given: object) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, list | tuple):
        texts = [get_field(block, "text") for block in given]
        if texts and all(isinstance(text, str) for text in texts):
            return "\n".join(texts)
    if isinstance(given, Mapping) and isinstance(given.get("text"), str):
        return str(given["text"])
    try:
        return json.dumps(to_jsonable(given), ensure_ascii=False)
    except MamaStructsError:
        return ""
