"""A session's tools and recall for Google ADK; needs the extra ``google-adk``."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import attrs

from mama_structs import sync
from mama_structs._internal.control_flow import ControlFlow, find_available_types
from mama_structs._internal.prompt_quoting import remove_recalled
from mama_structs.adapters.google_adk.common import extract_text
from mama_structs.adapters.shared.loop_bridge import LoopBridge
from mama_structs.adapters.shared.tool_results import (
    DEFAULT_MAX_RECALL_CHARS,
    CallScheduler,
    create_cut_off_answer,
    create_recall_message,
    list_wire_tools,
    log_cut_off,
    observe_message,
    recall_for_messages,
    store_unsupported_media,
)
from mama_structs.adapters.shared.tool_schemas import to_plain_schema
from mama_structs.refs.messages.media import Media
from mama_structs.session.session import Session
from mama_structs.tools.schema import HOST_PARAMETERS
from mama_structs.tools.tool import Tool

try:
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.agents.readonly_context import ReadonlyContext
    from google.adk.models.llm_request import LlmRequest
    from google.adk.models.llm_response import LlmResponse
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.base_toolset import BaseToolset, ToolPredicate
    from google.adk.tools.tool_context import ToolContext
    from google.genai import types
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.google_adk needs the Agent Development Kit: pip install 'mama-structs[google-adk]'"
    ) from _missing

_CONTROL_FLOW: Final = ControlFlow(
    # A tool that runs an agent raises this error if the run exceeds its limit of model calls.
    exceptions=find_available_types("google.adk.agents.invocation_context", "LlmCallsLimitExceededError"),
    results=(types.Part, types.FunctionResponse),
)
# Image types that Gemini accepts in a function response. It rejects a request that contains any other type.
_IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/webp"})


class AdkToolset(BaseToolset):
    """
    A session's tools: ``Agent(tools=[AdkToolset(session)])``.

    The model is offered all tools, regardless of ``settings.tools.dynamic``.
    A failed call returns ``{"error": ...}`` with a hint that says what to change.
    Calls of one answer run in order, but read-only calls run concurrently.
    A host's own tool with a parameter ``ctx``, ``run_context`` or ``tool_context`` receives the `ToolContext`. If it
    returns a ``types.Part``, a ``types.FunctionResponse`` or a list of them, the result reaches ADK unchanged.

    Args:
        session: The session that has the tools. It must stay open while they are used. An async one may be used in any
            event loop while its own runs.
        tool_filter: As in ADK: the names of the tools to offer, as they are sent to the model, or a predicate; None for
            all tools.

    """

    def __init__(
        self, session: Session | sync.Session, *, tool_filter: ToolPredicate | list[str] | None = None
    ) -> None:
        super().__init__(tool_filter=tool_filter)
        self._bridge = LoopBridge(session)
        self._turns = CallScheduler(self._bridge.session, control_flow=_CONTROL_FLOW)

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return the session's tools that pass the filter."""
        tools = [_AdkSessionTool(self._bridge, self._turns, *one) for one in list_wire_tools(self._bridge.session)]
        return [one for one in tools if self._is_tool_selected(one, readonly_context)]

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: LlmRequest) -> None:  # noqa: ARG002
        """Raise `SessionClosed` before the model is called if the session is closed."""

        async def check() -> None:
            self._bridge.session._check_here()

        await self._bridge.arun(check)


class AdkRecallPlugin(BasePlugin):
    """
    Adds recalled memories to the user's messages, and stores the refs of answers: ``App(plugins=[...])``.

    The memories recalled for a message are a separate part of it, which ADK's session service stores with the message.
    Facts may be recalled again if no message of the ADK session contains recalled memories. `AdkMemoryService` does not
    store them. Refs are stored before the calls of the same answer run, so the calls can use them. A call that the
    token limit cut off is not run. ADK raises the plugin's errors, such as `SessionClosed`, as the cause of a
    RuntimeError.

    Args:
        session: The session with the memories and refs; as for `AdkToolset`.
        name: The plugin's name, unique within an app.
        max_chars: Maximum number of recalled characters, at least 300.

    """

    def __init__(
        self,
        session: Session | sync.Session,
        *,
        name: str = "mama-structs",
        max_chars: int = DEFAULT_MAX_RECALL_CHARS,
    ) -> None:
        super().__init__(name)
        self._bridge = LoopBridge(session)
        self._max_chars = max_chars
        # Calls that may be incomplete, by the id of the invocation. ADK sets their ids after the model's answer.
        self._cut_off_calls: defaultdict[str, list[types.FunctionCall]] = defaultdict(list)

    async def on_user_message_callback(
        self, *, invocation_context: InvocationContext, user_message: types.Content
    ) -> types.Content | None:
        """Append the recalled text to the user's message as a separate part."""
        stored = [one.content for one in invocation_context.session.events]
        is_kept = any(text != remove_recalled(text) for text in map(extract_text, filter(None, stored)))
        asked = [create_recall_message(extract_text(user_message))]
        text = await self._bridge.arun(
            lambda: recall_for_messages(self._bridge.session, asked, max_chars=self._max_chars, repeat=not is_kept)
        )
        if not text:
            return None
        return user_message.model_copy(update={"parts": [*(user_message.parts or ()), types.Part(text=text)]})

    async def after_model_callback(
        self,
        *,
        callback_context: CallbackContext,
        llm_response: LlmResponse,
    ) -> None:
        """Store the refs of a complete answer, and find a call that the token limit cut off."""
        parts = (llm_response.content and llm_response.content.parts) or ()
        calls = [part.function_call for part in parts if part.function_call]
        if calls and llm_response.finish_reason == types.FinishReason.MAX_TOKENS and not llm_response.partial:
            log_cut_off(llm_response.finish_reason.value)
            self._cut_off_calls[callback_context.invocation_id].append(calls[-1])
        text = extract_text(llm_response.content, "") if llm_response.content and not llm_response.partial else ""
        if text:
            await self._bridge.arun(lambda: observe_message(self._bridge.session, text))

    async def before_tool_callback(
        self,
        *,
        tool: BaseTool,  # noqa: ARG002 - the framework's signature
        tool_args: dict[str, Any],  # noqa: ARG002
        tool_context: ToolContext,
    ) -> dict[str, Any] | None:
        """Return an error for a call that the token limit cut off, so that it is not run."""
        call_ids = [one.id for one in self._cut_off_calls.get(tool_context.invocation_id, ())]
        return create_cut_off_answer().value if tool_context.function_call_id in call_ids else None

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Forget the run's calls."""
        self._cut_off_calls.pop(invocation_context.invocation_id, None)


class _AdkSessionTool(BaseTool):
    """A tool of a session; see `AdkToolset`."""

    def __init__(self, bridge: LoopBridge, turns: CallScheduler, wire: str, tool: Tool) -> None:
        super().__init__(
            name=wire,
            description=tool.description,
            custom_metadata={"title": tool.title, **attrs.asdict(tool.annotations)},
        )
        self._bridge = bridge
        self._turns = turns
        self._input_schema = tool.input_schema

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name,
            description=self.description,
            parameters_json_schema=to_plain_schema(self._input_schema),
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Run a call of a model. Errors are answers, too."""

        async def answer() -> Any:
            answered = await self._turns.answer(self.name, args, host=dict.fromkeys(HOST_PARAMETERS, tool_context))
            if answered.is_native:
                return answered.data
            if answered.has_media:
                return {"result": [_create_content(self._bridge.session, part) for part in answered.parts]}
            value = answered.value
            return value if isinstance(value, dict) else {"error" if answered.is_error else "result": value}

        return await self._bridge.arun(answer)


def _create_content(session: Session, part: str | Media) -> str | types.Part:
    if not isinstance(part, Media):
        return part
    if part.content is not None and part.mime_type in _IMAGE_TYPES:
        return types.Part.from_bytes(data=part.content, mime_type=part.mime_type)
    return store_unsupported_media(session, part)
