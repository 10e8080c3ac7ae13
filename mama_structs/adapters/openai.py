"""
Adapter for OpenAI's Responses and Chat Completions APIs: requests and tool calls.

It returns dicts and accepts SDK objects or dicts, so it does not import the SDK. The extra ``openai`` installs it.
`handle` and `add_recall` are awaited with an async session; with one of `mama_structs.sync` they return their results.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, overload

import attrs

from mama_structs import sync
from mama_structs.adapters.shared.loop_bridge import await_or_run_with, call_in_session_loop
from mama_structs.adapters.shared.tool_results import (
    DEFAULT_MAX_RECALL_CHARS,
    ToolCall,
    answer_call,
    create_recall_message,
    is_supported_image,
    list_wire_tools,
    log_cut_off,
    observe_message,
    recall_for_messages,
    report_unread,
    select_tool_names,
    store_unsupported_media,
)
from mama_structs.adapters.shared.tool_schemas import to_plain_schema, to_strict_schema
from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.refs.messages.media import Media
from mama_structs.refs.messages.provider_messages import describe_item, get_field, get_text_field
from mama_structs.session.session import Session
from mama_structs.tools.tool import Tool

API: TypeAlias = Literal["responses", "chat"]

# Values of `status` and `finish_reason` after which all calls of an answer are complete.
FINISHED_STATUSES: Final[frozenset[str]] = frozenset({"completed"})
FINISHED_REASONS: Final[frozenset[str]] = frozenset({"stop", "tool_calls", "function_call"})
_ACCEPTED_HINT: Final = "pass a response, a completion, its message, or a list of its output items or tool calls"


def tools(
    session: Session | sync.Session,
    *,
    message: object = None,
    api: API = "responses",
    strict: bool | Collection[str] = True,
    defer: Collection[str] = (),
) -> list[dict[str, Any]]:
    """
    Return a session's tools as the argument ``tools`` of OpenAI's clients.

    Args:
        session: The session that has the tools.
        message: The user's message, from which `Session.tools_for` selects tools; None for all tools.
        api: ``"responses"`` for ``client.responses.create``, ``"chat"`` for ``client.chat.completions.create``.
        strict: True to enforce the schemas, or the names of the tools with enforced schemas (``["save/decision"]``).
            Optional arguments are then required and may be null. A tool that accepts free-form data has no strict
            schema and is sent in its plain form.
        defer: Names of tools that are left out of the prompt until the model finds them with OpenAI's search tool,
            which is added. The model then chooses from fewer tools, while the list and the prompt cache stay the same.

    Raises:
        InvalidArgument: *api* is unknown, or *defer* names tools for Chat Completions, which has no tool search.
        UnknownTool: *strict* or *defer* names an unknown tool.

    """
    _check_api(api)
    strict_names = select_tool_names(session.tools, "strict", selection=strict)
    deferred_names = select_tool_names(session.tools, "defer", selection=defer)
    if deferred_names and api == "chat":
        raise InvalidArgument("Chat Completions has no search for tools", hint="use defer with api='responses'")
    sent: list[dict[str, Any]] = []
    for wire, tool in call_in_session_loop(session, lambda own: list_wire_tools(own, message)):
        one = _create_function(wire, tool, strict=tool.name in strict_names)
        waits = {"defer_loading": True} if tool.name in deferred_names else {}
        sent.append({"type": "function", **({"function": one} if api == "chat" else one), **waits})
    return [*sent, {"type": "tool_search"}] if deferred_names else sent


@overload
def handle(
    session: Session, answered: object, *, finish_reason: str | None = ..., host: Mapping[str, Any] | None = ...
) -> Coroutine[Any, Any, list[dict[str, Any]]]: ...
@overload
def handle(
    session: sync.Session, answered: object, *, finish_reason: str | None = ..., host: Mapping[str, Any] | None = ...
) -> list[dict[str, Any]]: ...


def handle(
    session: Session | sync.Session,
    answered: object,
    *,
    finish_reason: str | None = None,
    host: Mapping[str, Any] | None = None,
) -> Coroutine[Any, Any, list[dict[str, Any]]] | list[dict[str, Any]]:
    """
    Run the tool calls of a model's answer in order, and return the messages to append.

    There is one message for each call, in the order of the calls and with their ids. The message of a failed call says
    what to change. Only finished calls run: unless the answer ended with the status ``"completed"`` or the finish
    reason ``"stop"``, ``"tool_calls"`` or ``"function_call"``, its last call is answered as cut off and does not run.
    Refs in the model's text are stored before the calls run. Other items (reasoning, calls that OpenAI ran) are
    skipped. Items that cannot be read are skipped, logged and reported to the model. Append the answer before the
    results.

    Args:
        session: The session that has the tools and stores the refs.
        answered: A Response, a ChatCompletion (its first choice), a message, or a list of output items or tool calls;
            objects of the SDK or dicts.
        finish_reason: The choice's ``finish_reason`` or the response's ``status``, if *answered* is a message or a list
            of tool calls, which have none, or of items without a ``status``.
        host: Values for the tools' parameters ``ctx``, ``run_context`` and ``tool_context``, which no model sees.

    Returns:
        ``function_call_output`` items or ``tool`` messages; none if there are no calls.

    Raises:
        InvalidArgument: *answered* has none of these types; nothing ran.
        SessionClosed: The session is closed.
        WrongLoop: The session belongs to another event loop.

    """
    return await_or_run_with(session, lambda own: _handle(own, answered, finish_reason, host))


async def _handle(
    session: Session, answered: object, finish_reason: str | None, host: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    items, own_reason = _extract_items(answered)
    calls = _parse_calls(items, finish_reason if own_reason is None else own_reason)
    if not isinstance(answered, list | tuple) and get_field(answered, "output") is None:
        # Report unreadable tool calls here, because `observe_message` receives the message without tool calls.
        report_unread(session, (describe_item(one, "a tool call") for one in items if not _is_readable(one)))
    await observe_message(session, _find_text_parts(answered))
    return [await _create_output(session, call, host) for call in calls]


@overload
def add_recall(
    session: Session, messages: str | Sequence[Any], *, max_chars: int = ...
) -> Coroutine[Any, Any, list[Any]]: ...
@overload
def add_recall(session: sync.Session, messages: str | Sequence[Any], *, max_chars: int = ...) -> list[Any]: ...


def add_recall(
    session: Session | sync.Session, messages: str | Sequence[Any], *, max_chars: int = DEFAULT_MAX_RECALL_CHARS
) -> Coroutine[Any, Any, list[Any]] | list[Any]:
    """
    Return a conversation with the memories recalled for its last user message appended.

    They are appended as a separate message, quoted as data so that they cannot act as instructions. The user's text and
    the passed list are not changed. Continue with the returned conversation: each fact is recalled once until it
    changes. A conversation that ends with a message of the model, or has its recalled message already, is returned
    unchanged.

    Args:
        session: The session with the memories.
        messages: The ``input`` of the Responses API, a text too, or the ``messages`` of Chat Completions.
        max_chars: Maximum number of recalled characters, at least 300.

    Raises:
        SessionClosed: The session is closed.
        WrongLoop: The session belongs to another event loop.

    """
    return await_or_run_with(session, lambda own: _add_recall(own, messages, max_chars))


async def _add_recall(session: Session, messages: str | Sequence[Any], max_chars: int) -> list[Any]:
    said: list[Any] = [{"role": "user", "content": messages}] if isinstance(messages, str) else [*messages]
    text = await recall_for_messages(session, said, max_chars=max_chars)
    return [*said, create_recall_message(text)] if text else said


def tool_choice(
    session: Session | sync.Session, message: object, *, api: API = "responses"
) -> dict[str, Any] | Literal["auto"]:
    """
    Return a ``tool_choice`` argument that allows only the tools selected for a message.

    The list of all tools and the prompt cache stay the same. A tool outside the selection can still be called later.
    Add functions of your own that the session does not know.

    Args:
        session: The session that has the tools.
        message: The message from which `Session.tool_names_for` selects the tools.
        api: As for `tools`.

    Raises:
        InvalidArgument: *api* is unknown.

    """
    _check_api(api)
    allowed, wire = session.tool_names_for(message), session.tools.wire_names.by_tool
    if len(allowed) == len(session.tools):
        return "auto"
    names = [wire[name] for name in allowed]
    if api == "chat":
        named = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
    return {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": name} for name in names]}


def _check_api(api: object) -> None:
    if api not in ("responses", "chat"):
        raise InvalidArgument(f"api must be 'responses' or 'chat', got {repr_short(api)}")


@attrs.frozen(kw_only=True)
class _FunctionCall(ToolCall):
    is_chat: bool


def _create_function(wire: str, tool: Tool, *, strict: bool) -> dict[str, Any]:
    parameters = to_strict_schema(tool.input_schema) if strict else None
    return {
        "name": wire,
        "description": tool.description,
        "parameters": to_plain_schema(tool.input_schema) if parameters is None else parameters,
        "strict": parameters is not None,
    }


def _find_text_parts(answered: object) -> object:
    """Return an answer without the tool calls of Chat Completions, because these calls contain no text."""
    if not isinstance(answered, list | tuple):
        return answered
    return [item for item in answered if get_field(item, "function") is None]


async def _create_output(session: Session, call: _FunctionCall, host: Mapping[str, Any] | None) -> dict[str, Any]:
    answered = await answer_call(session, call, host=host)
    if call.is_chat:
        # A tool message of Chat Completions can only contain text.
        texts = [store_unsupported_media(session, part) if isinstance(part, Media) else part for part in answered.parts]
        return {"role": "tool", "tool_call_id": call.id, "content": "\n".join(texts)}
    output = [_create_content(session, part) for part in answered.parts] if answered.has_media else answered.text
    return {"type": "function_call_output", "call_id": call.id, "output": output}


def _create_content(session: Session, part: str | Media) -> dict[str, str]:
    if is_supported_image(part):
        return {"type": "input_image", "image_url": part.data_url, "detail": "auto"}
    return {"type": "input_text", "text": store_unsupported_media(session, part) if isinstance(part, Media) else part}


def _extract_items(answered: object) -> tuple[Sequence[object], object]:
    """Return an answer's output items or tool calls, and its status or finish reason."""
    if isinstance(answered, list | tuple):
        return answered, None
    choices, output = get_field(answered, "choices"), get_field(answered, "output")
    if isinstance(output, list | tuple) and not isinstance(choices, list | tuple):
        return output, get_field(answered, "status")
    if not isinstance(choices, list | tuple):
        return _extract_tool_calls(answered), None
    choice = choices[0] if choices else None
    message = get_field(choice, "message")
    if message is None and get_field(choice, "delta") is None:
        # Some servers omit the message if a content filter stopped the answer.
        return (), get_field(choice, "finish_reason")
    return _extract_tool_calls(message, role=get_field(message, "role") or "assistant"), get_field(
        choice, "finish_reason"
    )


def _extract_tool_calls(message: object, *, role: object = None) -> Sequence[object]:
    calls = get_field(message, "tool_calls")
    if message is None or (role or get_field(message, "role")) != "assistant":
        raise InvalidArgument(
            f"the model's answer must be an OpenAI response or message, got {type(message).__name__}",
            hint=_ACCEPTED_HINT,
        )
    return () if calls is None else calls if isinstance(calls, list | tuple) else (calls,)


def _is_chat_call(item: object) -> bool:
    kind = get_field(item, "type")
    return kind == "function" or (kind is None and get_field(item, "function") is not None)


def _is_readable(item: object) -> bool:
    return isinstance(get_field(item, "type"), str) or _is_chat_call(item)


def _parse_calls(items: Sequence[object], reason: object) -> list[_FunctionCall]:
    """Return the function calls of an answer. *reason* is its status or finish reason."""
    called = [item for item in items if _is_chat_call(item) or get_field(item, "type") == "function_call"]
    calls: list[_FunctionCall] = []
    for number, item in enumerate(called, start=1):
        is_chat, status = _is_chat_call(item), get_field(item, "status")
        function = get_field(item, "function") if is_chat else item
        ended = status if reason is None else reason
        is_finished = isinstance(ended, str) and ended in (FINISHED_REASONS if is_chat else FINISHED_STATUSES)
        is_cut_off = status not in (None, "completed") or (number == len(called) and not is_finished)
        if is_cut_off:
            log_cut_off(ended if status in (None, "completed") else status, "finish_reason=...")
        calls.append(
            _FunctionCall(
                id=get_text_field(item, "id" if is_chat else "call_id"),
                name=get_text_field(function, "name"),
                arguments=get_field(function, "arguments"),
                is_chat=is_chat,
                is_cut_off=is_cut_off,
            )
        )
    return calls
