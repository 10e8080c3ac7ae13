"""
A session's tools for OpenAI's APIs, Responses and Chat Completions: what to send, and what to answer.

Dicts come out, and SDK objects or dicts go in, so the SDK itself is not imported here; the extra ``openai`` has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

from mama_structs.adapters.answers import (
    MAX_CHARS,
    ToolCall,
    answer_call,
    hear,
    is_taken,
    kept,
    named,
    offered,
    recall_for,
    recalled_message,
)
from mama_structs.adapters.schemas import plain_schema, strict_schema
from mama_structs.descriptors.media import Media
from mama_structs.descriptors.messages import field, text_field
from mama_structs.errors import InvalidArgument, shown
from mama_structs.session import Session
from mama_structs.tools.tool import Tool

API: TypeAlias = Literal["responses", "chat"]

_ACCEPTED: Final = "pass a response, a completion, its message, or a list of its output items or tool calls"


def tools(
    session: Session,
    *,
    message: object = None,
    api: API = "responses",
    strict: bool | Collection[str] = True,
    defer: Collection[str] = (),
) -> list[dict[str, Any]]:
    """
    Return a session's tools as the argument ``tools`` of OpenAI's clients.

    Args:
        session: Whose tools.
        message: What the user said, by which `Session.tools_for` chooses; None for all tools.
        api: ``"responses"`` for ``client.responses.create``, ``"chat"`` for ``client.chat.completions.create``.
        strict: Whether the model is held to the schemas, or for which tools (``["save/decision"]``). What is optional
            is then required and may be null. A tool that takes free-form data has no strict schema, and is sent as it
            is.
        defer: Names of tools that are left out of the prompt until the model searches for them, with a tool of OpenAI's
            that is added. So a model chooses from fewer tools, and the list and the prompt's cache stay the same.

    Raises:
        InvalidArgument: There is no such *api*, or *defer* names tools for the API of chats, which has no such search.
        UnknownTool: *strict* or *defer* names a tool that there is not.

    """
    _check_api(api)
    held, later = named(session.tools, "strict", which=strict), named(session.tools, "defer", which=defer)
    if later and api == "chat":
        raise InvalidArgument("Chat Completions has no search for tools", hint="use defer with api='responses'")
    sent: list[dict[str, Any]] = []
    for wire, tool in offered(session, message):
        one = _function(wire, tool, strict=tool.name in held)
        waits = {"defer_loading": True} if tool.name in later else {}
        sent.append({"type": "function", **({"function": one} if api == "chat" else one), **waits})
    return [*sent, {"type": "tool_search"}] if later else sent


async def handle(session: Session, answered: object, *, host: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """
    Run the tool calls of a model's answer, one after the other, and return the messages to append.

    One message for each call, in the calls' order and with their ids: also for what went wrong, which says what to
    change. A call that the output limit cut short does not run. What the model marked in its text is stored before
    the calls run, also where there are none. Other items (reasoning, what OpenAI ran itself) are passed over.
    The answer itself is the caller's to append, before these.

    Args:
        session: Whose tools and refs.
        answered: A Response, a ChatCompletion (its first choice), a message, or a list of output items or tool calls;
            objects of the SDK or dicts.
        host: Values for the tools' parameters ``ctx``, ``run_context`` and ``tool_context``, which no model sees.

    Returns:
        ``function_call_output`` items or ``tool`` messages; none where nothing was called.

    Raises:
        InvalidArgument: *answered* is none of these; nothing ran.
        SessionClosed: The session is closed.
        WrongLoop: It belongs to another event loop.

    """
    calls = list(_calls(answered))
    await hear(session, _said(answered))
    return [await _output(session, call, host) for call in calls]


async def recalled(session: Session, messages: str | Sequence[Any], *, max_chars: int = MAX_CHARS) -> list[Any]:
    """
    Return a conversation with what the session recalls for the user's message at its end, as a message behind it.

    It is data, quoted so that it gives no orders; the user's own words stay as they are, and so does the list that was
    passed. Keep what is returned as the conversation: each fact is told once, unless it changed. A conversation whose
    last message is the model's, or was recalled for already, comes back the same.

    Args:
        session: Whose memories.
        messages: The ``input`` of the Responses API, a text too, or the ``messages`` of Chat Completions.
        max_chars: Characters of what is recalled at the most, 300 or more.

    Raises:
        SessionClosed: The session is closed.
        WrongLoop: It belongs to another event loop.

    """
    said: list[Any] = [{"role": "user", "content": messages}] if isinstance(messages, str) else [*messages]
    text = await recall_for(session, said, max_chars=max_chars)
    return [*said, recalled_message(text)] if text else said


def tool_choice(session: Session, message: object, *, api: API = "responses") -> dict[str, Any] | Literal["auto"]:
    """
    Return the argument ``tool_choice`` that restricts the choice to the tools for a message.

    The list of all tools stays the same, and with it the prompt's cache. A tool that is not among them can still be
    called later; functions of your own that the session does not know must be added.

    Args:
        session: Whose tools.
        message: As for `Session.allowed_for`, which chooses.
        api: As for `tools`.

    Raises:
        InvalidArgument: There is no such *api*.

    """
    _check_api(api)
    allowed, wire = session.allowed_for(message), session.wire_names.by_tool
    if len(allowed) == len(session.tools):
        return "auto"
    names = [wire[name] for name in allowed]
    if api == "chat":
        named = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
    return {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": name} for name in names]}


def _check_api(api: object) -> None:
    if api not in ("responses", "chat"):
        raise InvalidArgument(f"api must be 'responses' or 'chat', got {shown(api)}")


@attrs.frozen(kw_only=True)
class _FunctionCall(ToolCall):
    is_chat: bool


def _function(wire: str, tool: Tool, *, strict: bool) -> dict[str, Any]:
    parameters = strict_schema(tool.input_schema) if strict else None
    return {
        "name": wire,
        "description": tool.description,
        "parameters": plain_schema(tool.input_schema) if parameters is None else parameters,
        "strict": parameters is not None,
    }


def _said(answered: object) -> object:
    """Return what may hold the model's words: everything but tool calls of Chat Completions in a list."""
    if not isinstance(answered, list | tuple):
        return answered
    return [item for item in answered if field(item, "function") is None]


async def _output(session: Session, call: _FunctionCall, host: Mapping[str, Any] | None) -> dict[str, Any]:
    answered = await answer_call(session, call, host=host)
    if call.is_chat:
        # Results of tools are texts there.
        texts = [kept(session, part) if isinstance(part, Media) else part for part in answered.parts]
        return {"role": "tool", "tool_call_id": call.id, "content": "\n".join(texts)}
    output = [_content(session, part) for part in answered.parts] if answered.has_media else answered.text
    return {"type": "function_call_output", "call_id": call.id, "output": output}


def _content(session: Session, part: str | Media) -> dict[str, str]:
    if is_taken(part):
        return {"type": "input_image", "image_url": part.data_url, "detail": "auto"}
    return {"type": "input_text", "text": kept(session, part) if isinstance(part, Media) else part}


def _items(answered: object) -> tuple[Sequence[object], bool]:
    """Return the output items or tool calls of what was passed, by its shape, and whether the limit cut them short."""
    if isinstance(answered, list | tuple):
        return answered, False
    choices, output = field(answered, "choices"), field(answered, "output")
    if not isinstance(choices, list | tuple):
        if isinstance(output, list | tuple):
            return output, field(answered, "status") == "incomplete"
        choices = [{"message": answered}]
    if not choices:
        return (), False
    message = field(choices[0], "message")
    calls = field(message, "tool_calls")
    if field(message, "role") != "assistant" or not isinstance(calls, list | tuple | None):
        raise InvalidArgument(
            f"the model's answer must be one of OpenAI's, got {type(message).__name__}", hint=_ACCEPTED
        )
    return calls or (), field(choices[0], "finish_reason") == "length"


def _calls(answered: object) -> Iterator[_FunctionCall]:
    """Yield the calls among the items of an answer; of a short one the last item may be half of what was meant."""
    items, is_short = _items(answered)
    for number, item in enumerate(items, start=1):
        kind, status = field(item, "type"), field(item, "status")
        is_chat = kind == "function" or (kind is None and field(item, "function") is not None)
        if is_chat or kind == "function_call":
            function = field(item, "function") if is_chat else item
            yield _FunctionCall(
                id=text_field(item, "id" if is_chat else "call_id"),
                name=text_field(function, "name"),
                arguments=field(function, "arguments"),
                is_chat=is_chat,
                is_cut_off=status == "incomplete" or (is_short and number == len(items) and status != "completed"),
            )
        elif not isinstance(kind, str):
            raise InvalidArgument(f"an output item must have a type, got {type(item).__name__}", hint=_ACCEPTED)
