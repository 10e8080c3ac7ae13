"""A session's tools for LangChain; needs the extra ``langchain``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs

from mama_structs import sync
from mama_structs._control_flow import ControlFlow, available_types
from mama_structs._facade import bare, run_beside
from mama_structs.adapters.answers import MAX_CHARS, Turns, hear, kept, offered, recall_for
from mama_structs.adapters.schemas import plain_schema
from mama_structs.descriptors.media import Media
from mama_structs.session import Session
from mama_structs.tools.schema import HOST_PARAMETERS

try:
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.messages.tool import ToolOutputMixin
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import StructuredTool, ToolException
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.langchain needs LangChain: pip install 'mama-structs[langchain]'"
    ) from _missing

# GraphBubbleUp is the base of LangGraph's interrupts and commands to a parent graph. ToolOutputMixin is the base of
# ToolMessage and LangGraph's Command. A ToolException is handled as any other error.
_CONTROL_FLOW: Final = ControlFlow(
    exceptions=available_types("langgraph.errors", "GraphBubbleUp"), results=(ToolOutputMixin,)
)
# All arguments of the model are passed under one keyword: an argument named config or self would be lost otherwise.
_ARGUMENTS: Final = "arguments"
_CALL_ID: Final = "tool_call_id"
# Of images and audio, what the message of a tool may have as a block.
_TAKEN: Final = frozenset({"image"})
_Content: TypeAlias = str | list[dict[str, Any]]


class _SessionTool(StructuredTool):
    """A tool of a session. The session validates the arguments. A tool of an async session has no sync form."""

    def _parse_input(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None = None, *_others: object, **_more: object
    ) -> dict[str, Any]:
        return {_ARGUMENTS: tool_input, _CALL_ID: tool_call_id}

    def _run(self, *arguments: Any, config: RunnableConfig, **keywords: Any) -> Any:
        if self.func is None:
            raise NotImplementedError(
                f"{self.name} is async, as the session is: await tool.ainvoke(...), or agent.ainvoke(...) for all of it"
            )
        return super()._run(*arguments, config=config, **keywords)


def tools(session: Session | sync.Session, *, message: object = None) -> list[StructuredTool]:
    """
    Return a session's tools, for ``bind_tools``, an agent or a tool node.

    Calls of one message run in their order, but for those that only read, which run beside each other.
    A failed call gives a `ToolMessage` with the status ``"error"`` that says what to change.
    Otherwise the message has the text for the model as its content, and the tool's result as its artifact.
    A host's own tool that takes ``ctx``, ``run_context`` or ``tool_context`` gets the `RunnableConfig`, with the call's
    id as ``config["configurable"]["tool_call_id"]``.
    A host's own tool may call LangGraph's ``interrupt()`` and return a `ToolMessage`, a `Command` or a list of them:
    these reach LangGraph unchanged.

    Args:
        session: Whose tools; it must be open while they are used, on the event loop that opened it. One of
            `mama_structs.sync` is for ``invoke``, in any thread.
        message: What the user said, or the conversation so far, by which `Session.tools_for` chooses;
            None for all tools.

    """
    own: Session = bare(session)
    turns = Turns(own, control_flow=_CONTROL_FLOW)

    def called(wire: str) -> dict[str, Any]:
        call = _caller(own, turns, wire)
        if own is session:
            return {"coroutine": call}

        def run(arguments: object, config: RunnableConfig, tool_call_id: str | None) -> tuple[_Content, Any]:
            answer: tuple[_Content, Any] = run_beside(session, lambda: call(arguments, config, tool_call_id))
            return answer

        return {"func": run}

    listed = offered(own, message) if own is session else run_beside(session, lambda: offered(own, message))
    return [
        _SessionTool(
            name=wire,
            description=tool.description,
            args_schema=plain_schema(tool.input_schema),
            **called(wire),
            response_format="content_and_artifact",
            handle_tool_error=True,
            metadata={"title": tool.title, **attrs.asdict(tool.annotations)},
        )
        for wire, tool in listed
    ]


def middleware(session: Session | sync.Session, *, max_chars: int = MAX_CHARS) -> Any:
    """
    Return what tells an agent what is remembered, and stores its refs, for ``create_agent(..., middleware=[...])``.

    What the session recalls for the user's message stands behind it, as a message of its own, when the agent begins.
    Refs are stored before the calls of the same message run, which can use them. An agent's loop of its own does so by
    ``await session.recall(message)`` and ``await session.observe(message)``.

    Args:
        session: Whose memories and refs. One of `mama_structs.sync` is for ``invoke``.
        max_chars: Characters of what is recalled at the most, 300 or more.

    Raises:
        ImportError: The package ``langchain`` is not installed: `langchain_core` has no agents.

    """
    try:
        from langchain.agents.middleware import (  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - beyond the extra
            AgentMiddleware,
        )
    except ImportError as missing:
        raise ImportError(
            "an agent's middleware needs the package that has create_agent: pip install langchain"
        ) from missing

    own: Session = bare(session)

    async def begin(state: Mapping[str, Any]) -> dict[str, Any] | None:
        text = await recall_for(own, state["messages"], max_chars=max_chars)
        return {"messages": [HumanMessage(text)]} if text else None

    async def take(state: Mapping[str, Any]) -> None:
        # The results of tools that give a structured answer may follow the model's message.
        last = next((one for one in reversed(state["messages"]) if isinstance(one, AIMessage)), None)
        if last is not None:
            await hear(own, last)

    class SessionMiddleware(AgentMiddleware):  # type: ignore[misc, unused-ignore]
        async def abefore_agent(self, state: Mapping[str, Any], runtime: object) -> dict[str, Any] | None:  # noqa: ARG002 - by its name
            return await begin(state)

        async def aafter_model(self, state: Mapping[str, Any], runtime: object) -> None:  # noqa: ARG002
            await take(state)

    class SyncSessionMiddleware(AgentMiddleware):  # type: ignore[misc, unused-ignore]
        def before_agent(self, state: Mapping[str, Any], runtime: object) -> dict[str, Any] | None:  # noqa: ARG002
            put_in: dict[str, Any] | None = run_beside(session, lambda: begin(state))
            return put_in

        def after_model(self, state: Mapping[str, Any], runtime: object) -> None:  # noqa: ARG002
            run_beside(session, lambda: take(state))

    return SessionMiddleware() if own is session else SyncSessionMiddleware()


def _block(session: Session, part: str | Media) -> dict[str, Any]:
    if not isinstance(part, Media):
        return {"type": "text", "text": part}
    if part.kind not in _TAKEN:
        return {"type": "text", "text": kept(session, part)}
    place = {"url": part.url} if part.url else {"base64": part.data, "mime_type": part.mime_type}
    return {"type": part.kind, **place}


def _caller(session: Session, turns: Turns, wire: str) -> Callable[..., Awaitable[tuple[Any, Any]]]:
    async def call(arguments: object, config: RunnableConfig, tool_call_id: str | None) -> tuple[Any, Any]:
        known: RunnableConfig = {**config, "configurable": {**config.get("configurable", {}), _CALL_ID: tool_call_id}}
        answered = await turns.answer(wire, arguments, host=dict.fromkeys(HOST_PARAMETERS, known))
        if answered.is_native:
            return answered.data, None
        if answered.is_error:
            raise ToolException(answered.text)
        content = [_block(session, part) for part in answered.parts] if answered.has_media else answered.text
        return content, answered.data

    return call
