"""Adapter for the OpenAI Agents SDK: tools and hooks; needs the extra ``openai-agents``."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast
from weakref import WeakKeyDictionary

from cachetools import LRUCache

from mama_structs._internal.control_flow import ControlFlow
from mama_structs.adapters.shared.tool_results import (
    MAX_CHARS,
    Turns,
    asked_now,
    hear,
    is_taken,
    kept,
    offered,
    recall_for,
    recalled_message,
)
from mama_structs.adapters.shared.tool_schemas import plain_schema, strict_schema
from mama_structs.refs.messages.media import Media
from mama_structs.refs.messages.provider_messages import said_by_user
from mama_structs.session.session import Session
from mama_structs.tools.schema import HOST_PARAMETERS
from mama_structs.tools.tool import Tool

try:
    from agents import (
        Agent,
        AgentBase,
        FunctionTool,
        InputGuardrailTripwireTriggered,
        ModelResponse,
        OutputGuardrailTripwireTriggered,
        RunContextWrapper,
        RunHooks,
        ToolInputGuardrailTripwireTriggered,
        ToolOutputFileContent,
        ToolOutputGuardrailTripwireTriggered,
        ToolOutputImage,
        ToolOutputText,
        TResponseInputItem,
    )
    from agents.run import CallModelData, ModelInputData
    from agents.tool_context import ToolContext
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.openai_agents needs the OpenAI Agents SDK: pip install 'mama-structs[openai-agents]'"
    ) from _missing


_Output: TypeAlias = str | list[ToolOutputText | ToolOutputImage]
# A tripwire ends the run, even if it is raised by an agent that runs inside a tool. Other SDK exceptions are errors.
_CONTROL_FLOW: Final = ControlFlow(
    exceptions=(
        InputGuardrailTripwireTriggered,
        OutputGuardrailTripwireTriggered,
        ToolInputGuardrailTripwireTriggered,
        ToolOutputGuardrailTripwireTriggered,
    ),
    results=(ToolOutputText, ToolOutputImage, ToolOutputFileContent),
)
# Number of user messages of a session for which recalled texts are retained.
_MESSAGES: Final = 1_000
# Recalled texts of each session, keyed by the user's message and the number of earlier messages with the same text.
_told: Final[WeakKeyDictionary[Session, LRUCache[tuple[str, int], tuple[str, ...]]]] = WeakKeyDictionary()


def tools(session: Session, *, strict: bool = True) -> list[FunctionTool]:
    """
    Return a session's tools, for ``Agent(tools=[...])``.

    A run is offered all tools, regardless of ``settings.tools.dynamic``: the SDK ends a run whose model calls a tool
    that it was not offered. Use `openai.tool_choice` to restrict the choice.
    The output of a failed call says what to change.
    A guardrail's tripwire in a host's own tool ends the run. If such a tool returns a ``ToolOutputText``,
    ``ToolOutputImage``, ``ToolOutputFileContent`` or a list of them, the result reaches the SDK unchanged.
    Calls of one message run in order, but read-only calls run concurrently.
    A host's own tool with a parameter ``ctx``, ``run_context`` or ``tool_context`` receives the `ToolContext`.

    Args:
        session: The session that has the tools. It must stay open while they are used, on the event loop that opened
            it.
        strict: True to enforce the schemas. Optional arguments are then required and may be null. A tool that accepts
            free-form data has no strict schema and is sent in its plain form.

    """
    turns = Turns(session, control_flow=_CONTROL_FLOW)
    return [_function_tool(session, wire, tool, turns=turns, strict=strict) for wire, tool in offered(session)]


class SessionHooks(RunHooks[Any]):
    """
    Run hooks that add recalled memories to requests and store the refs of answers.

    Created by `hooks`. A host with hooks of its own can derive from it.
    """

    def __init__(self, session: Session, *, max_chars: int = MAX_CHARS) -> None:
        self._session = session
        self._max_chars = max_chars

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        """Store the refs of a model's answer before its calls run."""
        await super().on_llm_end(context, agent, response)
        await hear(self._session, response)

    async def with_recalled(self, data: CallModelData[Any]) -> ModelInputData:
        """
        Return a request with recalled memories after the user messages that they belong to.

        They are separate items that appear in no result and no history: they are held in the memory of this process,
        for 1,000 messages of a session.
        """
        session, items, text = self._session, data.model_data.input, ""
        if asked_now(items):
            # Texts recalled by an earlier process are not part of this process's requests, so recall them again.
            text = await recall_for(session, items, max_chars=self._max_chars, again=session not in _told)
            _told.setdefault(session, LRUCache(_MESSAGES))
        told = _told.get(session)
        said = [said_by_user([item]) for item in items]
        last = max((place for place, words in enumerate(said) if words), default=None)
        shown: list[TResponseInputItem] = []
        for place, (item, words) in enumerate(zip(items, said, strict=True)):
            shown.append(item)
            if words and told is not None:
                # Count earlier messages with the same text: a repeated text is another message.
                key = words, said[:place].count(words)
                known = told.get(key) or ()
                if text and place == last:
                    known = (*known, text)
                    told[key] = known
                shown += [cast("TResponseInputItem", recalled_message(one)) for one in known]
        return ModelInputData(input=shown, instructions=data.model_data.instructions)


def hooks(session: Session, *, max_chars: int = MAX_CHARS) -> SessionHooks:
    """
    Return hooks that add recalled memories to requests and store the refs of answers.

    ``Runner.run(..., hooks=hooks)`` stores refs before the calls of the same answer run, so the calls can use them.
    ``RunConfig(call_model_input_filter=hooks.with_recalled)`` adds the memories that are relevant to the user's
    message.

    Args:
        session: The session with the memories and refs.
        max_chars: Maximum number of recalled characters, at least 300.

    """
    return SessionHooks(session, max_chars=max_chars)


def _content(session: Session, part: str | Media) -> ToolOutputText | ToolOutputImage:
    if is_taken(part):
        return ToolOutputImage(image_url=part.data_url)
    return ToolOutputText(text=kept(session, part) if isinstance(part, Media) else part)


def _function_tool(session: Session, wire: str, tool: Tool, *, turns: Turns, strict: bool) -> FunctionTool:
    def is_enabled(_run: RunContextWrapper[Any], _agent: AgentBase[Any]) -> bool:
        # Fail a run on a closed session before the model is called.
        session._check_here()  # noqa: SLF001 - internal API for adapters
        return True

    async def on_invoke_tool(context: ToolContext[Any], arguments: str) -> _Output | Any:
        answered = await turns.answer(wire, arguments, host=dict.fromkeys(HOST_PARAMETERS, context))
        if answered.is_native:
            return answered.data
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
