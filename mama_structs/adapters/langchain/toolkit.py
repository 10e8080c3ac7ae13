"""Adapter for LangChain: a session's tools and middleware; needs the extra ``langchain``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs

from mama_structs import sync
from mama_structs._internal.control_flow import ControlFlow, find_available_types
from mama_structs._internal.sync_proxy import run_in_proxy_loop, unwrap
from mama_structs.adapters.shared.tool_results import (
    DEFAULT_MAX_RECALL_CHARS,
    CallScheduler,
    create_cut_off_answer,
    list_wire_tools,
    log_cut_off,
    observe_message,
    recall_for_messages,
    store_unsupported_media,
)
from mama_structs.adapters.shared.tool_schemas import to_always_strict_schema, to_plain_schema
from mama_structs.refs.messages.media import Media
from mama_structs.session.session import Session
from mama_structs.tools.schema import HOST_PARAMETERS

try:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.messages.tool import ToolOutputMixin
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import StructuredTool, ToolException
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.langchain needs LangChain: pip install 'mama-structs[langchain]'"
    ) from _missing

# Exceptions and results that control LangGraph and pass through unchanged.
# GraphBubbleUp covers interrupts and commands to a parent graph, ToolOutputMixin covers ToolMessage and Command.
# ToolException is missing, because it is an ordinary error.
_CONTROL_FLOW: Final = ControlFlow(
    exceptions=find_available_types("langgraph.errors", "GraphBubbleUp"), results=(ToolOutputMixin,)
)
# The single keyword that holds all arguments of the model, because LangChain reserves names such as config and self.
_ARGUMENTS_KEY: Final = "arguments"
_CALL_ID_KEY: Final = "tool_call_id"
# Kinds of media that LangChain accepts as a content block of a tool message.
_BLOCK_MEDIA_KINDS: Final = frozenset({"image"})
# Metadata keys of the reason for the end of a message, and the reasons that mean a truncated message.
_END_REASON_KEYS: Final = ("finish_reason", "stop_reason", "stopReason", "done_reason", "status")
_CUT_OFF_REASONS: Final = frozenset(
    ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded", "incomplete")
)
# Integers that LangGraph's serializer packs; for others it raises.
_CHECKPOINT_INTEGERS: Final = range(-(2**63), 2**64)
_Content: TypeAlias = str | list[dict[str, Any]]


class _SessionTool(StructuredTool):
    """LangChain tool with arguments validated by the session; async only for an async session."""

    def _parse_input(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None = None, *_others: object, **_more: object
    ) -> dict[str, Any]:
        return {_ARGUMENTS_KEY: tool_input, _CALL_ID_KEY: tool_call_id}

    def _run(self, *arguments: Any, config: RunnableConfig, **keywords: Any) -> Any:
        if self.func is None:
            raise NotImplementedError(
                f"{self.name} is async, because the session is async: await tool.ainvoke(...) or agent.ainvoke(...)"
            )
        return super()._run(*arguments, config=config, **keywords)


def tools(session: Session | sync.Session, *, message: object = None, strict: bool = True) -> list[StructuredTool]:
    """
    Return a session's tools, for ``bind_tools``, an agent or a tool node.

    Calls of one message run in order, but read-only calls run concurrently.
    A failed call returns a `ToolMessage` with the status ``"error"`` that says what to change.
    Otherwise the message has the text for the model as its content, and the tool's result as its artifact. Integers
    that LangGraph cannot store (below ``-2**63`` or above ``2**64 - 1``) are text in the artifact.
    A host's own tool with a parameter ``ctx``, ``run_context`` or ``tool_context`` receives the `RunnableConfig`, with
    the call's id as ``config["configurable"]["tool_call_id"]``.
    A host's own tool may call LangGraph's ``interrupt()`` and return a `ToolMessage`, a `Command` or a list of them:
    these reach LangGraph unchanged.

    Args:
        session: The session that has the tools. It must be open while they are used, on the event loop that opened it.
            Use one of `mama_structs.sync` for ``invoke``, in any thread.
        message: The user's message, or the conversation so far, from which `Session.tools_for` selects tools;
            None for all tools.
        strict: True for schemas that are valid with and without ``bind_tools(strict=True)``: optional arguments may be
            null, and the model writes free-form data as JSON text. `Any` has no strict form, and additional arguments
            (``**options``) are lost in strict mode. False for plain schemas.

    """
    own: Session = unwrap(session)
    turns = CallScheduler(own, control_flow=_CONTROL_FLOW)

    def create_callables(wire: str) -> dict[str, Any]:
        call = _create_caller(own, turns, wire)
        if own is session:
            return {"coroutine": call}

        def run(arguments: object, config: RunnableConfig, tool_call_id: str | None) -> tuple[_Content, Any]:
            answer: tuple[_Content, Any] = run_in_proxy_loop(session, lambda: call(arguments, config, tool_call_id))
            return answer

        return {"func": run}

    listed = (
        list_wire_tools(own, message)
        if own is session
        else run_in_proxy_loop(session, lambda: list_wire_tools(own, message))
    )
    return [
        _SessionTool(
            name=wire,
            description=tool.description,
            args_schema=to_always_strict_schema(tool.input_schema, require_all=False)
            if strict
            else to_plain_schema(tool.input_schema),
            **create_callables(wire),
            response_format="content_and_artifact",
            handle_tool_error=True,
            metadata={"title": tool.title, **attrs.asdict(tool.annotations)},
        )
        for wire, tool in listed
    ]


def middleware(session: Session | sync.Session, *, max_chars: int = DEFAULT_MAX_RECALL_CHARS) -> Any:
    """
    Return an agent middleware that adds recalled memories and stores refs.

    Use it in ``create_agent(..., middleware=[...])``. When the agent starts, the memories recalled for the user's
    message are appended as a separate message. Refs are stored before the calls of the same message run, so the calls
    can use them. A call that the token limit cut off is not run: LangChain completes its arguments, but they are not
    what the model meant. An agent loop of your own does the same with ``await session.recall(message)`` and
    ``await session.observe(message)``, and ``ToolNode(tools, awrap_tool_call=middleware.awrap_tool_call)``.

    Args:
        session: The session with the memories and refs. Use one of `mama_structs.sync` for ``invoke``.
        max_chars: Maximum number of recalled characters, at least 300.

    Raises:
        ImportError: The package ``langchain`` is not installed: `langchain_core` has no agents.

    """
    try:
        from langchain.agents.middleware import (  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - not part of the extra
            AgentMiddleware,
        )
    except ImportError as missing:
        raise ImportError(
            "an agent's middleware needs the package that has create_agent: pip install langchain"
        ) from missing

    own: Session = unwrap(session)

    async def begin(state: Mapping[str, Any]) -> dict[str, Any] | None:
        text = await recall_for_messages(own, state["messages"], max_chars=max_chars)
        return {"messages": [HumanMessage(text)]} if text else None

    class SessionMiddleware(AgentMiddleware):  # type: ignore[misc, unused-ignore]
        async def abefore_agent(self, state: Mapping[str, Any], runtime: object) -> dict[str, Any] | None:  # noqa: ARG002 - passed by keyword
            return await begin(state)

        async def aafter_model(self, state: Mapping[str, Any], runtime: object) -> None:  # noqa: ARG002
            await _observe_last_answer(own, state)

        async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
            return _reject_cut_off(request) or await handler(request)

    class SyncSessionMiddleware(AgentMiddleware):  # type: ignore[misc, unused-ignore]
        def before_agent(self, state: Mapping[str, Any], runtime: object) -> dict[str, Any] | None:  # noqa: ARG002
            put_in: dict[str, Any] | None = run_in_proxy_loop(session, lambda: begin(state))
            return put_in

        def after_model(self, state: Mapping[str, Any], runtime: object) -> None:  # noqa: ARG002
            run_in_proxy_loop(session, lambda: _observe_last_answer(own, state))

        def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
            return _reject_cut_off(request) or handler(request)

    return SessionMiddleware() if own is session else SyncSessionMiddleware()


def _find_last_answer(state: Mapping[str, Any]) -> AIMessage | None:
    # The model's message may not be the last one, because results of structured-output tools may follow it.
    return next((one for one in reversed(state["messages"]) if isinstance(one, AIMessage)), None)


async def _observe_last_answer(session: Session, state: Mapping[str, Any]) -> None:
    last = _find_last_answer(state)
    if last is not None:
        await observe_message(session, last)


def _reject_cut_off(request: Any) -> ToolMessage | None:
    """Return an error message for the last call of a truncated message, otherwise None."""
    call, last = request.tool_call, _find_last_answer(request.state)
    if last is None or not last.tool_calls or last.tool_calls[-1]["id"] != call["id"]:
        return None
    reasons = [str(last.response_metadata.get(key)) for key in _END_REASON_KEYS]
    reason = next((one for one in reasons if one.lower() in _CUT_OFF_REASONS), None)
    if reason is None:
        return None
    log_cut_off(reason)
    return ToolMessage(create_cut_off_answer().text, name=call["name"], tool_call_id=call["id"], status="error")


def _create_block(session: Session, part: str | Media) -> dict[str, Any]:
    if not isinstance(part, Media):
        return {"type": "text", "text": part}
    if part.kind not in _BLOCK_MEDIA_KINDS:
        return {"type": "text", "text": store_unsupported_media(session, part)}
    place = {"url": part.url} if part.url else {"base64": part.data, "mime_type": part.mime_type}
    return {"type": part.kind, **place}


def _create_artifact(data: Any) -> Any:
    """Return JSON data with the integers as text that LangGraph cannot store in a checkpoint."""
    if isinstance(data, dict):
        return {key: _create_artifact(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_create_artifact(value) for value in data]
    return str(data) if isinstance(data, int) and data not in _CHECKPOINT_INTEGERS else data


def _create_caller(session: Session, turns: CallScheduler, wire: str) -> Callable[..., Awaitable[tuple[Any, Any]]]:
    async def call(arguments: object, config: RunnableConfig, tool_call_id: str | None) -> tuple[Any, Any]:
        known: RunnableConfig = {
            **config,
            "configurable": {**config.get("configurable", {}), _CALL_ID_KEY: tool_call_id},
        }
        answered = await turns.answer(wire, arguments, host=dict.fromkeys(HOST_PARAMETERS, known))
        if answered.is_native:
            return answered.data, None
        if answered.is_error:
            raise ToolException(answered.text)
        content = [_create_block(session, part) for part in answered.parts] if answered.has_media else answered.text
        return content, _create_artifact(answered.data)

    return call
