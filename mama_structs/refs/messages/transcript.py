"""Transcript of a conversation in the format of any provider: user, model and tool texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from mama_structs._internal.jsonable import to_jsonable
from mama_structs._internal.prompt_quoting import without_recalled
from mama_structs.errors import InvalidArgument, MamaStructsError, shown
from mama_structs.refs.messages.provider_messages import field, said_by_model, said_by_user

_INSTRUCTIONS: Final = frozenset({"system", "developer"})
_TOOLS: Final = frozenset({"tool", "function", "ToolMessage", "FunctionMessage", "tool_call_output_item"})
_ENDS_OF_TOOLS: Final = ("_call_output", "tool_result", "tool-return", "retry-prompt")
_USERS: Final = frozenset({"user", "human"})
_ROLES: Final = _INSTRUCTIONS | _TOOLS | _USERS | {"assistant", "model", "ai"}
# Fields and methods of a run that contain its messages.
_HOLDERS: Final = ("messages", "input", "contents")
_TOLD_BY: Final = ("all_messages", "to_input_list")
_ID: Final = re.compile(r"[\w.-]{1,100}")


@attrs.frozen
class Spoken:
    """The text that one speaker contributed to a message. *id* is the provider's message id."""

    speaker: Literal["user", "model", "tool"]
    text: str = attrs.field(repr=False)
    id: str | None = None


def spoken_in(messages: object) -> list[Spoken]:
    """
    Return the texts of a conversation in order.

    Instructions, tool calls, thinking and recalled memories are left out.
    """
    told: list[Spoken] = []
    for number, message in enumerate(_held(messages)):
        found = list(_in_message(message, f"messages[{number}]"))
        given = field(message, "id")
        known = given if isinstance(given, str) and _ID.fullmatch(given) else None
        for speaker in ("user", "model", "tool"):
            texts = [without_recalled(text).strip() for who, text in found if who == speaker]
            if text := "\n".join(filter(None, texts)):
                # Lone surrogates cannot be encoded as UTF-8, so they could not be stored.
                told.append(Spoken(speaker, text.encode(errors="replace").decode(), known))
    return told


def _held(messages: object) -> Sequence[object]:
    if isinstance(messages, list | tuple):
        return messages
    if isinstance(messages, str):
        return [messages]
    for name in _TOLD_BY:
        method: Callable[[], Any] | None = getattr(messages, name, None)
        if callable(method) and isinstance(held := method(), list | tuple):
            return held
    for name in _HOLDERS:
        held = field(messages, name)
        if isinstance(held, list | tuple):
            return held
    return [messages]


def _in_message(message: object, where: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of one message, each with its speaker."""
    if isinstance(message, str):
        yield "user", message
        return
    role, kind = field(message, "role"), field(message, "type")
    speaker = role if isinstance(role, str) else kind if isinstance(kind, str) else ""
    if speaker in _INSTRUCTIONS:
        return
    if isinstance(role, str) and role not in _ROLES:
        raise InvalidArgument(f"{where} is no message of a known shape: its role is {shown(role)}")
    if _is_of_tool(speaker):
        yield "tool", _tool_text(message)
        return
    content = field(message, "content")
    parts = content if isinstance(content, list | tuple) else field(message, "parts")
    blocks = parts if isinstance(parts, list | tuple) else ()
    yield from (("tool", _tool_text(block)) for block in blocks if _is_tool_block(block))
    if user := said_by_user(message):
        yield "user", user
    elif speaker not in _USERS and field(message, "kind") != "request":
        try:
            said = said_by_model([message])
        except InvalidArgument as error:
            if blocks and all(map(_is_tool_block, blocks)):
                return
            raise InvalidArgument(
                f"{where} is no message of a known shape: {error.args[0]}", hint=error.hint
            ) from error
        yield from (("model", text) for text in said)


def _is_of_tool(word: object) -> bool:
    return isinstance(word, str) and (word in _TOOLS or word.endswith(_ENDS_OF_TOOLS))


def _is_tool_block(block: object) -> bool:
    kind = field(block, "type") or field(block, "part_kind")
    return _is_of_tool(kind) or (kind is None and field(block, "function_response") is not None)


def _tool_text(value: object) -> str:
    """Return a tool's output as text; other data is serialized as JSON."""
    value = field(value, "function_response") or value
    for name in ("output", "content", "response"):
        given = field(value, name)
        if given is not None:
            return _text_of(given)
    return ""


def _text_of(given: object) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, list | tuple):
        texts = [field(block, "text") for block in given]
        if texts and all(isinstance(text, str) for text in texts):
            return "\n".join(texts)
    if isinstance(given, Mapping) and isinstance(given.get("text"), str):
        return str(given["text"])
    try:
        return json.dumps(to_jsonable(given), ensure_ascii=False)
    except MamaStructsError:
        return ""
