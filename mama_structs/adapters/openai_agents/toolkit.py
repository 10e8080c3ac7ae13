"""A session's tools for the OpenAI Agents SDK; needs the extra ``openai-agents``."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast
from weakref import WeakKeyDictionary

from mama_structs._internal.control_flow import ControlFlow
from mama_structs._internal.lru import Lru
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
        "mama_structs.adapters.openai_agents.toolkit needs the OpenAI Agents SDK: pip install 'mama-structs[openai-agents]'"
    ) from _missing


_Output: TypeAlias = str | list[ToolOutputText | ToolOutputImage]
# A tripwire ends the run, also one of an agent that runs inside a tool. The SDK's other exceptions are errors.
_CONTROL_FLOW: Final = ControlFlow(
    exceptions=(
        InputGuardrailTripwireTriggered,
        OutputGuardrailTripwireTriggered,
        ToolInputGuardrailTripwireTriggered,
        ToolOutputGuardrailTripwireTriggered,
    ),
    results=(ToolOutputText, ToolOutputImage, ToolOutputFileContent),
)
# Of a session, so many messages of users keep what was recalled for them.
_MESSAGES: Final = 1_000
# What each session's model was told, by what the user wrote and how often by then.
_told: Final[WeakKeyDictionary[Session, Lru[tuple[str, int], tuple[str, ...]]]] = WeakKeyDictionary()


def tools(session: Session, *, strict: bool = True) -> list[FunctionTool]:
    """
    Return a session's tools, for ``Agent(tools=[...])``.

    A run is offered all tools, whatever ``settings.tools.dynamic`` says: the SDK ends a run whose model calls a tool
    that it was not offered. What restricts the choice among them is `openai.tool_choice`.
    The output of a failed call says what to change.
    A guardrail's tripwire in a host's own tool ends the run, and a ``ToolOutputText``, ``ToolOutputImage``,
    ``ToolOutputFileContent`` or list of them that it returns reaches the SDK unchanged.
    Calls of one message run in their order, but for those that only read, which run beside each other.
    A host's own tool that takes ``ctx``, ``run_context`` or ``tool_context`` gets the `ToolContext`.

    Args:
        session: Whose tools; it must be open while they are used, on the event loop that opened it.
        strict: Whether the model is held to the schemas. What is optional is then required and may be null; a tool
            that takes free-form data has no such schema, and is sent as it is.

    """
    turns = Turns(session, control_flow=_CONTROL_FLOW)
    return [_function_tool(session, wire, tool, turns=turns, strict=strict) for wire, tool in offered(session)]


class SessionHooks(RunHooks[Any]):
    """
    Tells a run's model what is remembered, and stores what it marks in its answers.

    `hooks` makes one, and a host with hooks of its own derives from it.
    """

    def __init__(self, session: Session, *, max_chars: int = MAX_CHARS) -> None:
        self._session = session
        self._max_chars = max_chars

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        """Take an answer of the model, before its calls run."""
        await super().on_llm_end(context, agent, response)
        await hear(self._session, response)

    async def with_recalled(self, data: CallModelData[Any]) -> ModelInputData:
        """
        Return a request with what the session recalls behind the messages of the user that it was recalled for.

        It is an item of its own. No result and no history has it: this process keeps it, for 1,000 messages of a
        session.
        """
        session, items, text = self._session, data.model_data.input, ""
        if asked_now(items):
            # What an earlier process told is in no request of this one.
            text = await recall_for(session, items, max_chars=self._max_chars, again=session not in _told)
            _told.setdefault(session, Lru(_MESSAGES))
        told = _told.get(session)
        said = [said_by_user([item]) for item in items]
        last = max((place for place, words in enumerate(said) if words), default=None)
        shown: list[TResponseInputItem] = []
        for place, (item, words) in enumerate(zip(items, said, strict=True)):
            shown.append(item)
            if words and told is not None:
                # The same words again are another message.
                key = words, said[:place].count(words)
                known = told.get(key) or ()
                if text and place == last:
                    known = (*known, text)
                    told.put(key, known)
                shown += [cast("TResponseInputItem", recalled_message(one)) for one in known]
        return ModelInputData(input=shown, instructions=data.model_data.instructions)


def hooks(session: Session, *, max_chars: int = MAX_CHARS) -> SessionHooks:
    """
    Return what a run tells its model, and stores of its answers.

    ``Runner.run(..., hooks=hooks)`` stores refs before the calls of the same answer run, which can use them.
    ``RunConfig(call_model_input_filter=hooks.with_recalled)`` tells the model what is remembered on what its user says.

    Args:
        session: Whose memories and refs.
        max_chars: Characters of what is recalled at the most, 300 or more.

    """
    return SessionHooks(session, max_chars=max_chars)


def _content(session: Session, part: str | Media) -> ToolOutputText | ToolOutputImage:
    if is_taken(part):
        return ToolOutputImage(image_url=part.data_url)
    return ToolOutputText(text=kept(session, part) if isinstance(part, Media) else part)


def _function_tool(session: Session, wire: str, tool: Tool, *, turns: Turns, strict: bool) -> FunctionTool:
    def is_enabled(_run: RunContextWrapper[Any], _agent: AgentBase[Any]) -> bool:
        # A run on a closed session ends here, before the model is asked.
        session._check_here()  # noqa: SLF001 - as `tools_for` does
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
