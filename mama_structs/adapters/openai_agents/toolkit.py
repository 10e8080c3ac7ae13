"""
Adapter for the OpenAI Agents SDK: tools and hooks; needs the extra ``openai-agents``.

Use a session of `mama_structs.sync` for ``Runner.run_sync``, and an async one for ``await Runner.run``.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast
from weakref import WeakKeyDictionary

from cachetools import LRUCache

from mama_structs import sync
from mama_structs._internal.control_flow import ControlFlow
from mama_structs._internal.sync_proxy import await_in_proxy_loop
from mama_structs.adapters.shared.loop_bridge import check_session
from mama_structs.adapters.shared.tool_results import (
    DEFAULT_MAX_RECALL_CHARS,
    CallScheduler,
    create_recall_message,
    find_pending_user_message,
    is_supported_image,
    list_wire_tools,
    observe_message,
    recall_for_messages,
    store_unsupported_media,
)
from mama_structs.adapters.shared.tool_schemas import to_plain_schema, to_strict_schema
from mama_structs.refs.messages.media import Media
from mama_structs.refs.messages.provider_messages import extract_user_text
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
# Tripwires of guardrails end the run, even if an agent inside a tool raises them. Other SDK exceptions are errors.
_CONTROL_FLOW: Final = ControlFlow(
    exceptions=(
        InputGuardrailTripwireTriggered,
        OutputGuardrailTripwireTriggered,
        ToolInputGuardrailTripwireTriggered,
        ToolOutputGuardrailTripwireTriggered,
    ),
    results=(ToolOutputText, ToolOutputImage, ToolOutputFileContent),
)
# Maximum number of user messages per session whose recalled texts are cached.
_MAX_CACHED_MESSAGES: Final = 1_000
# Recalled texts per session. The key is the user's message and the number of equal earlier messages.
_recall_cache: Final[WeakKeyDictionary[Session, LRUCache[tuple[str, int], tuple[str, ...]]]] = WeakKeyDictionary()


def tools(session: Session | sync.Session, *, strict: bool = True) -> list[FunctionTool]:
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
        session: The session that has the tools. It must stay open while they are used. An async one is used on the
            event loop that opened it; one of `mama_structs.sync` in any thread and loop, such as by ``run_sync``.
        strict: True to enforce the schemas. Optional arguments are then required and may be null. A tool that accepts
            free-form data has no strict schema and is sent in its plain form.

    """
    own = check_session(session)
    turns = CallScheduler(own, control_flow=_CONTROL_FLOW)
    return [
        _create_function_tool(session, wire, tool, turns=turns, strict=strict) for wire, tool in list_wire_tools(own)
    ]


class SessionHooks(RunHooks[Any]):
    """
    Run hooks that add recalled memories to requests and store the refs of answers.

    Created by `hooks`. A host with hooks of its own can derive from it.
    """

    def __init__(self, session: Session | sync.Session, *, max_chars: int = DEFAULT_MAX_RECALL_CHARS) -> None:
        self._session = session
        self._own = check_session(session)
        self._max_chars = max_chars

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        """Store the refs of a model's answer before its calls run."""
        await super().on_llm_end(context, agent, response)
        await await_in_proxy_loop(self._session, lambda: observe_message(self._own, response))

    async def add_recall(self, data: CallModelData[Any]) -> ModelInputData:
        """
        Insert recalled memories into a request, after the user messages they were recalled for.

        They are separate items that appear in no result and no history: they are held in the memory of this process,
        for 1,000 messages of a session.

        Args:
            data: The request of the SDK.

        Returns:
            The request with the recalled memories.

        """
        session, items, text = self._own, data.model_data.input, ""
        if find_pending_user_message(items):
            # Recall everything again in a new process, whose requests lack the texts that an earlier process recalled.
            is_new = session not in _recall_cache
            text = await await_in_proxy_loop(
                self._session,
                lambda: recall_for_messages(session, items, max_chars=self._max_chars, repeat=is_new),
            )
            _recall_cache.setdefault(session, LRUCache(_MAX_CACHED_MESSAGES))
        cache = _recall_cache.get(session)
        user_texts = [extract_user_text([item]) for item in items]
        last = max((place for place, words in enumerate(user_texts) if words), default=None)
        input_items: list[TResponseInputItem] = []
        for place, (item, words) in enumerate(zip(items, user_texts, strict=True)):
            input_items.append(item)
            if words and cache is not None:
                # Equal texts are different messages, so the key includes the number of earlier ones.
                key = words, user_texts[:place].count(words)
                known = cache.get(key) or ()
                if text and place == last:
                    known = (*known, text)
                    cache[key] = known
                input_items += [cast("TResponseInputItem", create_recall_message(one)) for one in known]
        return ModelInputData(input=input_items, instructions=data.model_data.instructions)


def hooks(session: Session | sync.Session, *, max_chars: int = DEFAULT_MAX_RECALL_CHARS) -> SessionHooks:
    """
    Return hooks that add recalled memories to requests and store the refs of answers.

    ``Runner.run(..., hooks=hooks)`` stores refs before the calls of the same answer run, so the calls can use them.
    ``RunConfig(call_model_input_filter=hooks.add_recall)`` adds the memories that are relevant to the user's
    message.

    Args:
        session: The session with the memories and refs; as for `tools`.
        max_chars: Maximum number of recalled characters, at least 300.

    """
    return SessionHooks(session, max_chars=max_chars)


def _create_content(session: Session, part: str | Media) -> ToolOutputText | ToolOutputImage:
    if is_supported_image(part):
        return ToolOutputImage(image_url=part.data_url)
    return ToolOutputText(text=store_unsupported_media(session, part) if isinstance(part, Media) else part)


def _create_function_tool(
    session: Session | sync.Session, wire: str, tool: Tool, *, turns: CallScheduler, strict: bool
) -> FunctionTool:
    own = check_session(session)

    async def is_enabled(_run: RunContextWrapper[Any], _agent: AgentBase[Any]) -> bool:
        async def check() -> None:
            own._check_here()

        # Raise for a closed session before the model is called.
        await await_in_proxy_loop(session, check)
        return True

    async def on_invoke_tool(context: ToolContext[Any], arguments: str) -> _Output | Any:
        async def answer() -> _Output | Any:
            answered = await turns.answer(wire, arguments, host=dict.fromkeys(HOST_PARAMETERS, context))
            if answered.is_native:
                return answered.data
            return [_create_content(own, part) for part in answered.parts] if answered.has_media else answered.text

        return await await_in_proxy_loop(session, answer)

    form = to_strict_schema(tool.input_schema) if strict else None
    return FunctionTool(
        name=wire,
        description=tool.description,
        params_json_schema=to_plain_schema(tool.input_schema) if form is None else form,
        strict_json_schema=form is not None,
        on_invoke_tool=on_invoke_tool,
        is_enabled=is_enabled,
    )
