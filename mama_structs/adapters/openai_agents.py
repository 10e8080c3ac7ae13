"""A session's tools for the OpenAI Agents SDK; needs the extra ``openai-agents``."""

from __future__ import annotations

from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from mama_structs.adapters.answers import Turns, hear, is_taken, kept, offered
from mama_structs.adapters.schemas import plain_schema, strict_schema
from mama_structs.descriptors.media import Media
from mama_structs.descriptors.messages import said_by_user
from mama_structs.session import Session
from mama_structs.tools.schema import HOST_PARAMETERS
from mama_structs.tools.tool import Tool

try:
    from agents import (
        Agent,
        AgentBase,
        FunctionTool,
        ModelResponse,
        RunContextWrapper,
        RunHooks,
        ToolOutputImage,
        ToolOutputText,
    )
    from agents.tool_context import ToolContext
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.openai_agents needs the OpenAI Agents SDK: pip install 'mama-structs[openai-agents]'"
    ) from _missing


_Output: TypeAlias = str | list[ToolOutputText | ToolOutputImage]


def tools(session: Session, *, strict: bool = True) -> list[FunctionTool]:
    """
    Return a session's tools, for ``Agent(tools=[...])``.

    The model is offered all tools; with ``settings.tools.dynamic="force_dynamic"``, in each run, those that
    `Session.tools_for` chooses for what the user said last. The SDK itself refuses a call of any other tool then.
    What goes wrong is the call's output, and says what to change.
    Calls of one message run in their order, but for those that only read, which run beside each other.
    A host's own tool that takes ``ctx``, ``run_context`` or ``tool_context`` gets the `ToolContext`.

    Args:
        session: Whose tools; it must be open while they are used, on the event loop that opened it.
        strict: Whether the model is held to the schemas. What is optional is then required and may be null; a tool
            that takes free-form data has no such schema, and is sent as it is.

    """
    choice, turns = _Choice(session), Turns(session)
    return [
        _function_tool(session, wire, tool, choice=choice, turns=turns, strict=strict)
        for wire, tool in offered(session)
    ]


class SessionHooks(RunHooks[Any]):
    """Stores what a model marks in its answers; `hooks` makes one, and a host with hooks of its own derives from it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        """Take an answer of the model, before its calls run."""
        await super().on_llm_end(context, agent, response)
        await hear(self._session, response)


def hooks(session: Session) -> SessionHooks:
    """
    Return what stores the refs of a run's answers, for ``Runner.run(..., hooks=...)``.

    They are stored before the calls of the same answer run, which can use them.

    Args:
        session: Whose refs.

    """
    return SessionHooks(session)


class _Choice:
    """Which tools a run is offered: decided once for what its user said, and not again for each tool and turn."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._by_run: WeakKeyDictionary[RunContextWrapper[Any], tuple[str, frozenset[str]]] = WeakKeyDictionary()

    def names(self, run: RunContextWrapper[Any]) -> frozenset[str]:
        """Return the names on the wire."""
        said = said_by_user(run.turn_input)
        known = self._by_run.get(run)
        if known is None or known[0] != said:
            known = said, frozenset(wire for wire, _ in offered(self._session, said))
            self._by_run[run] = known
        return known[1]


def _content(session: Session, part: str | Media) -> ToolOutputText | ToolOutputImage:
    if is_taken(part):
        return ToolOutputImage(image_url=part.data_url)
    return ToolOutputText(text=kept(session, part) if isinstance(part, Media) else part)


def _function_tool(
    session: Session, wire: str, tool: Tool, *, choice: _Choice, turns: Turns, strict: bool
) -> FunctionTool:
    def is_enabled(run: RunContextWrapper[Any], _agent: AgentBase[Any]) -> bool:
        if session.exposed.mode == "force_dynamic":
            return wire in choice.names(run)
        # A run on a closed session ends here, before the model is asked.
        session._check_here()  # noqa: SLF001 - as `tools_for` does
        return True

    async def on_invoke_tool(context: ToolContext[Any], arguments: str) -> _Output:
        answered = await turns.answer(wire, arguments, host=dict.fromkeys(HOST_PARAMETERS, context))
        return [_content(session, part) for part in answered.parts] if answered.has_media else answered.text

    form = strict_schema(tool.input_schema) if strict else None
    return FunctionTool(
        name=wire,
        description=tool.description,
        params_json_schema=plain_schema(tool.input_schema) if form is None else form,
        strict_json_schema=form is not None,
        on_invoke_tool=on_invoke_tool,
        is_enabled=is_enabled,
    )
