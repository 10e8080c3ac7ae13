"""
Adapter for Anthropic's Messages API: build requests and answer tool calls.

It returns dicts and accepts SDK objects or dicts, so it does not import the SDK. The extra ``anthropic`` installs it.
`handle` and `add_recall` are awaited with an async session; with one of `mama_structs.sync` they return their results.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, overload

import attrs

from mama_structs import sync
from mama_structs._internal.prompt_quoting import remove_recalled
from mama_structs.adapters.shared.loop_bridge import await_or_run_with, call_in_session_loop
from mama_structs.adapters.shared.tool_results import (
    DEFAULT_MAX_RECALL_CHARS,
    ToolCall,
    answer_call,
    find_pending_user_message,
    is_supported_image,
    list_wire_tools,
    log_cut_off,
    observe_message,
    recall_for_messages,
    select_tool_names,
    store_unsupported_media,
)
from mama_structs.adapters.shared.tool_schemas import is_recursive, to_plain_schema, to_strict_schema
from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.refs.messages.media import Media
from mama_structs.refs.messages.provider_messages import get_field, get_text_field
from mama_structs.session.session import Session
from mama_structs.tools.schema import JSONSchema, iterate_subschemas
from mama_structs.tools.tool import Tool

# Anthropic's limits on the strict tools of one request, in total (structured outputs, schema complexity limits).
_MAX_STRICT_TOOLS: Final = 20
_MAX_OPTIONAL_PROPERTIES: Final = 24
_MAX_UNION_PROPERTIES: Final = 16
# Anthropic rejects the whole request if any argument name does not match this pattern.
_ARGUMENT_NAME_PATTERN: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
# Stop reasons after which all tool calls of a message are complete.
# "stop_sequence" is missing, because the sequence may cut the arguments of the last call.
# "pause_turn" and "compaction" are missing, because the model then continues the message.
FINISHED_STOP_REASONS: Final[frozenset[str]] = frozenset({"end_turn", "tool_use"})
# Anthropic's built-in tool with which the model searches for deferred tools.
_SEARCH_TOOL: Final = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
_ACCEPTED_HINT: Final = "pass a message, its content, or a list of its tool_use blocks"


def tools(
    session: Session | sync.Session,
    *,
    message: object = None,
    strict: bool | Collection[str] = False,
    defer: Collection[str] = (),
) -> list[dict[str, Any]]:
    """
    Return a session's tools as the argument ``tools`` of ``client.messages.create``.

    Args:
        session: The session that has the tools.
        message: The user's message, from which `Session.tools_for` selects tools; None for all tools.
        strict: True to enforce the schemas of all tools, or the names of tools with enforced schemas
            (``["save/decision"]``). Anthropic accepts about 20 strict tools in a request, with 24 optional arguments.
            In the tools' order, those that fit are strict.
        defer: Names of tools that are left out of the prompt until the model finds them with Anthropic's search tool,
            which is added. The model then chooses from fewer tools, while the list and the prompt cache stay the same.

    Raises:
        InvalidArgument: A tool has an argument whose name Anthropic does not accept.
        UnknownTool: *strict* or *defer* names an unknown tool.

    """
    strict_names = select_tool_names(session.tools, "strict", selection=strict)
    deferred_names = select_tool_names(session.tools, "defer", selection=defer)
    budget = _StrictToolBudget()
    sent = [
        {
            **_create_tool(
                wire, tool, strict=budget.take_strict_form(tool.input_schema) if tool.name in strict_names else None
            ),
            **({"defer_loading": True} if tool.name in deferred_names else {}),
        }
        for wire, tool in call_in_session_loop(session, lambda own: list_wire_tools(own, message))
    ]
    return [*sent, dict(_SEARCH_TOOL)] if deferred_names else sent


@overload
def handle(
    session: Session, message: object, *, stop_reason: str | None = ..., host: Mapping[str, Any] | None = ...
) -> Coroutine[Any, Any, dict[str, Any] | None]: ...
@overload
def handle(
    session: sync.Session, message: object, *, stop_reason: str | None = ..., host: Mapping[str, Any] | None = ...
) -> dict[str, Any] | None: ...


def handle(
    session: Session | sync.Session,
    message: object,
    *,
    stop_reason: str | None = None,
    host: Mapping[str, Any] | None = None,
) -> Coroutine[Any, Any, dict[str, Any] | None] | dict[str, Any] | None:
    """
    Run the tool calls of a model's message in order, and return the user message to append.

    All results are in one message, as Anthropic requires, in the order of the calls and with their ids. The result of a
    failed call has ``is_error`` and says what to change. Only finished calls run: unless the message ended with
    ``"tool_use"`` or ``"end_turn"``, its last call is answered as cut off and does not run. Refs in the model's text
    are stored before the calls run. Other blocks (thinking, calls that Anthropic ran) are skipped. Blocks that cannot
    be read are skipped, logged and reported to the model. Append the model's message before the result.

    Args:
        session: The session that has the tools and stores the refs.
        message: A Message, its content, or a list of ``tool_use`` blocks; objects of the SDK or dicts.
        stop_reason: The stop reason, if *message* is its content or a list of blocks, which have none.
        host: Values for the tools' parameters ``ctx``, ``run_context`` and ``tool_context``, which no model sees.

    Returns:
        The message, or None if there are no calls.

    Raises:
        InvalidArgument: *message* has none of these types; nothing ran.
        SessionClosed: The session is closed.
        WrongLoop: The session belongs to another event loop.

    """
    return await_or_run_with(session, lambda own: _handle(own, message, stop_reason, host))


async def _handle(
    session: Session, message: object, stop_reason: str | None, host: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    calls = _parse_calls(message, stop_reason)
    await observe_message(session, message)
    results = [await _create_result(session, call, host) for call in calls]
    return {"role": "user", "content": results} if results else None


@overload
def add_recall(
    session: Session, messages: Sequence[Mapping[str, Any]], *, max_chars: int = ...
) -> Coroutine[Any, Any, list[Mapping[str, Any]]]: ...
@overload
def add_recall(
    session: sync.Session, messages: Sequence[Mapping[str, Any]], *, max_chars: int = ...
) -> list[Mapping[str, Any]]: ...


def add_recall(
    session: Session | sync.Session,
    messages: Sequence[Mapping[str, Any]],
    *,
    max_chars: int = DEFAULT_MAX_RECALL_CHARS,
) -> Coroutine[Any, Any, list[Mapping[str, Any]]] | list[Mapping[str, Any]]:
    """
    Return the conversation, with recalled memories appended to its last user message.

    They are appended as a block of that message, quoted as data so that they cannot act as instructions. The user's
    text, the passed list and the passed message are not changed. Continue with the returned conversation: each fact is
    recalled once until it changes. A conversation that ends with a message of the model, or has its recalled block
    already, is returned unchanged.

    Args:
        session: The session with the memories.
        messages: The argument ``messages`` of a request.
        max_chars: Maximum number of recalled characters, at least 300.

    Raises:
        SessionClosed: The session is closed.
        WrongLoop: The session belongs to another event loop.

    """
    return await_or_run_with(session, lambda own: _add_recall(own, messages, max_chars))


async def _add_recall(
    session: Session, messages: Sequence[Mapping[str, Any]], max_chars: int
) -> list[Mapping[str, Any]]:
    said = [*messages]
    content = get_field(said[-1], "content") if said else None
    blocks = (
        [*content]
        if isinstance(content, list | tuple)
        else [{"type": "text", "text": content or find_pending_user_message(said)}]
    )
    texts = [block if isinstance(block, str) else get_field(block, "text") for block in blocks]
    if any(isinstance(text, str) and text != remove_recalled(text) for text in texts):
        return said
    text = await recall_for_messages(session, said, max_chars=max_chars)
    if not text:
        return said
    message = said[-1] if isinstance(said[-1], Mapping) else {"role": "user"}
    return [*said[:-1], {**message, "content": [*blocks, {"type": "text", "text": text}]}]


@attrs.define
class _StrictToolBudget:
    """Number of strict tools and properties that a request may still use."""

    tools: int = _MAX_STRICT_TOOLS
    optional: int = _MAX_OPTIONAL_PROPERTIES
    unions: int = _MAX_UNION_PROPERTIES

    def take_strict_form(self, schema: JSONSchema) -> JSONSchema | None:
        """Return a schema's strict form and reduce the budget. Return None without a strict form or enough budget."""
        strict = to_strict_schema(schema, nullable=False)
        if strict is None or is_recursive(strict):
            return None
        optional, unions = _count_optional_and_unions(strict)
        if self.tools < 1 or self.optional < optional or self.unions < unions:
            return None
        self.tools, self.optional, self.unions = self.tools - 1, self.optional - optional, self.unions - unions
        return strict


def _count_optional_and_unions(schema: JSONSchema) -> tuple[int, int]:
    """Return the number of optional properties and of union-typed properties of a schema."""
    optional = unions = 0
    for node in iterate_subschemas(schema):
        properties = node.get("properties", {})
        optional += len(properties.keys() - set(node.get("required", ())))
        unions += sum("anyOf" in one for one in properties.values())
    return optional, unions


def _create_tool(wire: str, tool: Tool, *, strict: JSONSchema | None) -> dict[str, Any]:
    unfit = [name for name in tool.input_schema.get("properties", {}) if not _ARGUMENT_NAME_PATTERN.fullmatch(name)]
    if unfit:
        raise InvalidArgument(
            f"{tool.name}: Anthropic does not take an argument named {repr_short(unfit[0])}",
            hint="use at most 64 of the letters A to Z, digits, _ . and - in names of arguments",
        )
    described = {"name": wire, "description": tool.description}
    if strict is not None:
        return {**described, "input_schema": strict, "strict": True}
    return {**described, "input_schema": to_plain_schema(tool.input_schema)}


async def _create_result(session: Session, call: ToolCall, host: Mapping[str, Any] | None) -> dict[str, Any]:
    answered = await answer_call(session, call, host=host)
    content = [_create_block(session, part) for part in answered.parts] if answered.has_media else answered.text
    return {"type": "tool_result", "tool_use_id": call.id, "content": content, "is_error": answered.is_error}


def _create_block(session: Session, part: str | Media) -> dict[str, Any]:
    if not isinstance(part, Media):
        return {"type": "text", "text": part}
    if not is_supported_image(part):
        return {"type": "text", "text": store_unsupported_media(session, part)}
    if part.url:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": part.mime_type, "data": part.data}}


def _parse_calls(message: object, stop_reason: str | None) -> list[ToolCall]:
    content = message if isinstance(message, list | tuple) else get_field(message, "content")
    is_message = isinstance(message, list | tuple) or get_field(message, "role") == "assistant"
    if not is_message or not isinstance(content, list | tuple | str):
        raise InvalidArgument(
            f"the model's message must be an Anthropic message, got {type(message).__name__}", hint=_ACCEPTED_HINT
        )
    blocks: Sequence[object] = [] if isinstance(content, str) else content
    called = [block for block in blocks if get_field(block, "type") == "tool_use"]
    own_reason = get_field(message, "stop_reason")
    reason = stop_reason if own_reason is None else own_reason
    is_finished = isinstance(reason, str) and reason in FINISHED_STOP_REASONS
    if called and not is_finished:
        log_cut_off(reason, "stop_reason=...")
    return [
        ToolCall(
            id=get_text_field(block, "id"),
            name=get_text_field(block, "name"),
            arguments=get_field(block, "input"),
            is_cut_off=not is_finished and number == len(called),
        )
        for number, block in enumerate(called, start=1)
    ]
