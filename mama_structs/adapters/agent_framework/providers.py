"""A session's memory for Microsoft's Agent Framework; needs the extra ``agent-framework``."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from mama_structs._internal.control_flow import ControlFlow, find_available_types
from mama_structs._internal.telemetry import format_error
from mama_structs.adapters.agent_framework.message_dedup import count_repeated
from mama_structs.adapters.shared.loop_bridge import require_async_session
from mama_structs.adapters.shared.tool_results import (
    DEFAULT_MAX_RECALL_CHARS,
    CallScheduler,
    list_wire_tools,
    observe_message,
    recall_for_messages,
    store_unsupported_media,
)
from mama_structs.adapters.shared.tool_schemas import to_plain_schema
from mama_structs.errors import SessionClosed, WrongLoop
from mama_structs.refs.messages.media import Media
from mama_structs.session.session import Session
from mama_structs.tools.schema import HOST_PARAMETERS, JSONSchema
from mama_structs.tools.tool import Tool

try:
    from agent_framework import (
        AgentSession,
        ChatContext,
        ChatMiddleware,
        ChatResponse,
        Content,
        ContextProvider,
        FunctionInvocationContext,
        FunctionTool,
        HistoryProvider,
        Message,
        ResponseStream,
        SessionContext,
        SupportsAgentRun,
    )
    from pydantic import BaseModel, ConfigDict
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.agent_framework needs Microsoft's Agent Framework: "
        "pip install 'mama-structs[agent-framework]'"
    ) from _missing

_log = logging.getLogger("mama_structs")
_CONTROL_FLOW: Final = ControlFlow(
    exceptions=(
        *find_available_types("agent_framework", "MiddlewareTermination", "MiddlewareFailure"),
        *find_available_types("agent_framework.exceptions", "UserInputRequiredException"),
    ),
    results=(Content,),
)
# Name of the framework in error messages.
_FRAMEWORK: Final = "Microsoft's Agent Framework"
_DEFAULT_SOURCE_ID: Final = "mama-structs"
_DEFAULT_HISTORY_ID: Final = "mama-structs-history"
_HOST_LABEL: Final = "agent-framework"
# The framework passes arguments that are no JSON object under this name.
_UNPARSED_KEY: Final = "raw"
# Key of a call's metadata that is True if the framework could not parse the call's arguments.
_IS_UNPARSED_KEY: Final = "mama_structs_is_unparsed"
# Name of a conversation without an id. The framework's own history provider uses the same name.
_DEFAULT_CONVERSATION: Final = "default"


class SessionContextProvider(ContextProvider):
    """
    Adds a session's memory and tools to an agent: ``Agent(..., context_providers=[...])``.

    Before a run, the memories recalled for the user's message are inserted before it as a separate message, and the
    session's tools are offered. The refs of an answer are stored before the calls of the same answer run. After the run
    the session can extract memories from the messages. Memory errors do not end a run, except for a session that was
    closed, or belongs to another event loop.

    Args:
        session: The session with the memories, tools and refs; it must be open while the agent runs, on the event loop
            that opened it.
        source_id: The provider's name, unique within an agent.
        max_chars: Maximum number of recalled characters, at least 300.
        tools: Whether the model is offered the session's tools.
        extract: A function that asks a model which facts to store, as in `Session.remember`; None to extract nothing.

    Raises:
        InvalidArgument: *session* is one of `mama_structs.sync`. The framework is async only.

    """

    def __init__(
        self,
        session: Session,
        *,
        source_id: str = _DEFAULT_SOURCE_ID,
        max_chars: int = DEFAULT_MAX_RECALL_CHARS,
        tools: bool = True,
        extract: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(source_id)
        self._session = require_async_session(session, _FRAMEWORK)
        self._max_chars = max_chars
        self._offers_tools = tools
        self._extract = extract

    async def before_run(
        self,
        *,
        agent: SupportsAgentRun,  # noqa: ARG002 - the framework's signature
        session: AgentSession,  # noqa: ARG002
        context: SessionContext,
        state: dict[str, Any],  # noqa: ARG002
    ) -> None:
        """Insert the recalled text before the user's message, and offer the tools."""
        # Recall all facts again if the loaded history contains no recalled text.
        is_kept = any(self._is_recall_message(one) for one in context.get_messages())
        text = await recall_for_messages(
            self._session, _to_dicts(context.input_messages), max_chars=self._max_chars, repeat=not is_kept
        )
        if text:
            context.extend_messages(self, [Message("user", [text])])
        unparsed_calls: set[str] = set()
        if self._offers_tools:
            turns = CallScheduler(self._session, control_flow=_CONTROL_FLOW)
            tools = [_create_function_tool(turns, self._session, *one) for one in list_wire_tools(self._session)]
            for tool in tools:
                tool.unparsed_calls = unparsed_calls
            context.extend_tools(self.source_id, tools)
        context.extend_middleware(self.source_id, _AnswerMiddleware(self._session, unparsed_calls))

    async def after_run(
        self,
        *,
        agent: SupportsAgentRun,  # noqa: ARG002
        session: AgentSession,  # noqa: ARG002
        context: SessionContext,
        state: dict[str, Any],  # noqa: ARG002
    ) -> None:
        """Store the refs of the answer, and extract memories from the run's messages."""
        answered = context.response.messages if context.response is not None else []
        await _observe_messages(self._session, answered)
        if self._extract is None:
            return
        try:
            await self._session.remember(_to_dicts([*context.input_messages, *answered]), extract=self._extract)
        except (SessionClosed, WrongLoop):
            raise
        except Exception as error:  # noqa: BLE001 - a failing extraction must not fail the run
            _log.error("nothing is learnt of a run: %s", format_error(error))

    def _is_recall_message(self, message: Message) -> bool:
        source = message.additional_properties.get("_attribution")
        return isinstance(source, dict) and source.get("source_id") == self.source_id


class SessionHistoryProvider(HistoryProvider):
    """
    Stores the messages of conversations, for ``Agent(..., context_providers=[...])``.

    Each message is a record under the labels ``("agent-framework", session_id)``, in order, as the framework's own
    JSON. Search and recall do not find them. The framework's options select the messages of a run to store and to load.

    Args:
        session: The session that stores the messages.
        source_id: The provider's name, unique within an agent. A provider with a name other than the default stores its
            own messages, below a label of that name.
        skip_excluded: Whether to skip messages that a compaction of the framework marked as excluded.
        options: As for `agent_framework.HistoryProvider`: *load_messages*, *store_inputs*, *store_outputs*,
            *store_context_messages*, *store_context_from*.

    Raises:
        InvalidArgument: *session* is one of `mama_structs.sync`, but the framework is async only. Or a message is not
            JSON, or too large; nothing of its run was stored.
        StoreError: The messages cannot be read or written.

    """

    def __init__(
        self, session: Session, *, source_id: str = _DEFAULT_HISTORY_ID, skip_excluded: bool = False, **options: Any
    ) -> None:
        super().__init__(source_id, **options)
        self._session = require_async_session(session, _FRAMEWORK)
        self._skips_excluded = skip_excluded

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> list[Message]:
        """Return the messages of a conversation in order."""
        found = await self._load_messages(session_id)
        return [
            one for one in found if not (self._skips_excluded and one.additional_properties.get("_excluded", False))
        ]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Store the messages of a run, except those at its beginning that are already stored."""
        known = await self._load_messages(session_id, limit=len(messages)) if messages else []
        if new := messages[count_repeated(known, messages) :]:
            await self._session.records.append(self._labels(session_id), [one.to_dict() for one in new])

    async def _load_messages(self, session_id: str | None, *, limit: int | None = None) -> list[Message]:
        labels = self._labels(session_id)
        found = await self._session.records.list(labels, nested=False, limit=limit, reverse=True)
        return [Message.from_dict(one.value) for one in reversed(found)]

    def _labels(self, session_id: str | None) -> tuple[str, ...]:
        labels = (_HOST_LABEL, session_id or _DEFAULT_CONVERSATION)
        return labels if self.source_id == _DEFAULT_HISTORY_ID else (*labels, self.source_id)


class _AnswerMiddleware(ChatMiddleware):
    """
    Chat middleware that reads an answer before its tool calls run.

    It stores the refs, and adds the ids of calls whose arguments are no JSON object to *unparsed_calls*.
    """

    def __init__(self, session: Session, unparsed_calls: set[str]) -> None:
        self._session = session
        self._unparsed_calls = unparsed_calls

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        await call_next()
        if isinstance(context.result, ResponseStream):
            context.result = context.result.with_result_hook(self._read)
        elif context.result is not None:
            await self._read(context.result)

    async def _read(self, response: ChatResponse) -> ChatResponse:
        called = [one for message in response.messages for one in message.contents if one.type == "function_call"]
        self._unparsed_calls.update(one.call_id for one in called if one.call_id and _is_unparsed(one))
        await _observe_messages(self._session, response.messages)
        return response


async def _observe_messages(session: Session, messages: Sequence[Message]) -> None:
    for message in messages:
        if message.role == "assistant" and message.text:
            await observe_message(session, message.text)


def _to_dicts(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Convert messages with text to dicts with the keys ``role`` and ``content``."""
    return [{"role": one.role, "content": one.text} for one in messages if one.text]


def _is_unparsed(call: Content) -> bool:
    """Return True if the framework replaces the arguments of a call by a dict with one key, `_UNPARSED_KEY`."""
    if not isinstance(call.arguments, str) or not call.arguments:
        return False
    try:
        return not isinstance(json.loads(call.arguments), dict)
    except ValueError:
        return True


class _SessionFunctionTool(FunctionTool):
    """Function tool that marks the calls whose arguments the framework could not parse."""

    unparsed_calls: AbstractSet[str] = frozenset()

    async def invoke(
        self, *, context: FunctionInvocationContext | None = None, tool_call_id: str | None = None, **options: Any
    ) -> Any:
        if context is not None and tool_call_id in self.unparsed_calls:
            context.metadata[_IS_UNPARSED_KEY] = True
        return await super().invoke(context=context, tool_call_id=tool_call_id, **options)


def _create_function_tool(turns: CallScheduler, session: Session, wire: str, tool: Tool) -> _SessionFunctionTool:
    schema = tool.input_schema
    is_key_free = _UNPARSED_KEY not in schema.get("properties", {}) and schema.get("additionalProperties") is False

    async def call(ctx: FunctionInvocationContext, **arguments: Any) -> str | list[Content] | Any:
        # A call that a user approves later is not marked.
        is_unparsed = [*arguments] == [_UNPARSED_KEY] and (is_key_free or ctx.metadata.get(_IS_UNPARSED_KEY, False))
        given = arguments[_UNPARSED_KEY] if is_unparsed else arguments
        answered = await turns.answer(wire, given, host=dict.fromkeys(HOST_PARAMETERS, ctx))
        if answered.is_native:
            return answered.data
        # Return errors instead of raising, because the framework does not show an exception's text to the model.
        return [_create_content(session, part) for part in answered.parts] if answered.has_media else answered.text

    model = _create_input_model(to_plain_schema(schema))
    return _SessionFunctionTool(name=wire, description=tool.description, func=call, input_model=model)


def _create_input_model(schema: JSONSchema) -> type[BaseModel]:
    """
    Return a model that accepts all arguments and announces *schema*.

    The framework would answer a wrong call with "Argument parsing failed" only. The session explains what is wrong.
    """

    class Arguments(BaseModel):
        model_config = ConfigDict(extra="allow")

        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> JSONSchema:
            return copy.deepcopy(schema)

    return Arguments


def _create_content(session: Session, part: str | Media) -> Content:
    if not isinstance(part, Media):
        return Content.from_text(part)
    if part.url or (part.content is not None and part.kind != "file"):
        return Content.from_uri(part.url or part.data_url, media_type=part.mime_type)
    return Content.from_text(store_unsupported_media(session, part))
