"""
Adapter for Pydantic AI: a session's tools and memory; needs the extra ``pydantic-ai``.

Use a session of `mama_structs.sync` for ``agent.run_sync``, and an async one for ``await agent.run``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Self

import attrs

from mama_structs import sync
from mama_structs._internal.control_flow import ControlFlow, find_available_types
from mama_structs._internal.sync_proxy import await_in_proxy_loop
from mama_structs.adapters.shared.loop_bridge import check_session
from mama_structs.adapters.shared.tool_results import (
    DEFAULT_MAX_RECALL_CHARS,
    ToolAnswer,
    answer_tool_call,
    list_wire_tools,
    observe_message,
    recall_for_messages,
    store_unsupported_media,
)
from mama_structs.adapters.shared.tool_schemas import to_adaptable_schema
from mama_structs.refs.messages.media import Media
from mama_structs.session.session import Session
from mama_structs.tools.schema import HOST_PARAMETERS
from mama_structs.tools.tool import Tool

try:
    from pydantic_ai import (
        AbstractToolset,
        AudioUrl,
        BinaryContent,
        ImageUrl,
        ModelResponse,
        ModelRetry,
        RunContext,
        ToolDefinition,
        ToolFailed,
        ToolOrOutput,
        ToolReturn,
        UserPromptPart,
    )
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.toolsets import ToolsetTool
    from pydantic_core import SchemaValidator, core_schema
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.pydantic_ai needs Pydantic AI: pip install 'mama-structs[pydantic-ai]'"
    ) from _missing

_CONTROL_FLOW: Final = ControlFlow(
    exceptions=(
        ModelRetry,
        ToolFailed,
        *find_available_types(
            "pydantic_ai.exceptions",
            *("ApprovalRequired", "CallDeferred", "SkipToolExecution", "ToolRetryError", "ToolFailedError"),
            # A tool that runs an agent raises these exceptions if the agent exceeds its usage limits or is cancelled.
            *("UsageLimitExceeded", "RunCancelled"),
        ),
    ),
    # Other content types of Pydantic AI, such as BinaryContent, are converted like media of any other tool.
    results=(ToolReturn, *find_available_types("pydantic_ai.messages", "FileUrl", "UploadedFile")),
)
# Accept any object here. The session validates the arguments, and its error messages are written for models.
_ANY_OBJECT_VALIDATOR: Final = SchemaValidator(
    core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema())
)


class _SessionToolset(AbstractToolset[Any]):
    """The tools of a session; see `toolset`."""

    def __init__(
        self,
        session: Session | sync.Session,
        *,
        id: str | None = None,  # noqa: A002 - the framework's parameter name
        max_retries: int | None = None,
    ) -> None:
        self._session = session
        self._own = check_session(session)
        self._id = id
        self._max_retries = max_retries
        self._ctx: RunContext[Any] | None = None
        self._known_tool_names: tuple[str, ...] | None = None
        self._definitions: list[ToolDefinition] = []

    @property
    def id(self) -> str | None:
        """The toolset's id, unique within an agent."""
        return self._id

    async def for_run(self, ctx: RunContext[Any]) -> Self:  # noqa: ARG002 - the framework's signature
        """Return a toolset for one run. It stores the refs of that run's answers."""
        return type(self)(self._session, id=self._id, max_retries=self._max_retries)

    async def __aexit__(self, *args: object) -> None:
        """
        Store the refs of the final answer.

        It has no tool calls, so nothing else stores its refs.
        """
        if self._ctx is not None and self._own.is_open:
            await self._observe_last_message(self._ctx)

    async def _observe_last_message(self, ctx: RunContext[Any]) -> None:
        """Store the refs of the model's last message in this run."""
        last = next((one for one in reversed(ctx.messages) if isinstance(one, ModelResponse)), None)
        if last is not None and last.run_id == ctx.run_id:
            await await_in_proxy_loop(self._session, lambda: observe_message(self._own, last))

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return all tools."""
        self._ctx = ctx
        if self._known_tool_names != (names := self._own.tools.names):
            self._definitions = [_create_definition(wire, tool) for wire, tool in list_wire_tools(self._own)]
            self._known_tool_names = names
        max_retries = ctx.max_retries if self._max_retries is None else self._max_retries
        return {
            one.name: ToolsetTool(
                toolset=self, tool_def=one, max_retries=max_retries, args_validator=_ANY_OBJECT_VALIDATOR
            )
            for one in self._definitions
        }

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[Any],
        tool: ToolsetTool[Any],  # noqa: ARG002 - the framework's signature
    ) -> Any:
        """
        Run a tool and return its result.

        Raise `ModelRetry` if the model can correct the call, otherwise `ToolFailed`.
        """
        await self._observe_last_message(ctx)

        async def answer() -> tuple[ToolAnswer, list[Any]]:
            answered = await answer_tool_call(
                self._own, name, tool_args, host=dict.fromkeys(HOST_PARAMETERS, ctx), control_flow=_CONTROL_FLOW
            )
            parts = answered.parts if answered.has_media else ()
            return answered, [_create_content(self._own, part) for part in parts]

        answered, contents = await await_in_proxy_loop(self._session, answer)
        if answered.is_native:
            return answered.data
        if answered.has_media:
            return contents
        if not answered.is_error:
            return answered.value
        # Only retry errors that other arguments can fix: `InvalidArgument` and unknown ids.
        kind = answered.data["error"]["type"]
        if (kind == "not_found" or kind.startswith("invalid_")) and ctx.retry < ctx.max_retries:
            raise ModelRetry(answered.text)
        raise ToolFailed(answered.text)


def _create_content(session: Session, part: str | Media) -> str | BinaryContent | ImageUrl | AudioUrl:
    if not isinstance(part, Media):
        return part
    if part.url is not None:
        return ImageUrl(part.url) if part.kind == "image" else AudioUrl(part.url)
    content = None if part.kind == "file" else part.content
    if content is None or part.mime_type is None:
        return store_unsupported_media(session, part)
    return BinaryContent(content, media_type=part.mime_type)


def toolset(
    session: Session | sync.Session,
    *,
    id: str | None = None,  # noqa: A002 - the framework's parameter name
    max_retries: int | None = None,
) -> AbstractToolset[Any]:
    """
    Return a session's tools as a toolset, for ``Agent(toolsets=[...])``.

    The model is offered all tools, regardless of ``settings.tools.dynamic``; see `capability`.
    Invalid arguments raise `ModelRetry` up to the retry limit of the tool. After that they raise `ToolFailed`, as every
    other error does, and the run continues. Pydantic AI itself handles arguments that are not JSON.
    A host's own tool with a parameter ``ctx``, ``run_context`` or ``tool_context`` receives the `RunContext`. It may
    raise `ModelRetry`, `ToolFailed`, `ApprovalRequired` and `CallDeferred` and return a `ToolReturn` or a URL such as
    `ImageUrl`: these reach Pydantic AI unchanged.

    Args:
        session: The session that has the tools. It must stay open while they are used. An async one is used on the
            event loop that opened it; one of `mama_structs.sync` in any thread and loop, such as by ``run_sync``.
        id: The toolset's id, unique within an agent.
        max_retries: How often a model may correct the arguments of a call; None for the agent's own limit.

    """
    return _SessionToolset(session, id=id, max_retries=max_retries)


class _SessionCapability(AbstractCapability[Any]):
    """The tools and memory of a session for an agent; see `capability`."""

    def __init__(self, session: Session | sync.Session, toolset: _SessionToolset, *, max_chars: int) -> None:
        self._session = session
        self._own = check_session(session)
        self._toolset = toolset
        self._max_chars = max_chars
        self.id: str | None = toolset.id

    def get_toolset(self) -> AbstractToolset[Any]:
        """Return the session's tools."""
        return self._toolset

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """
        Add the recalled text to the request.

        In mode ``force_dynamic``, also restrict the tool choice.
        """
        settings = request_context.model_settings or {}
        is_restricted = self._own.exposed_tools.mode == "force_dynamic" and "tool_choice" not in settings

        async def recall() -> tuple[str, tuple[str, ...]]:
            text = await recall_for_messages(self._own, ctx.messages, max_chars=self._max_chars)
            return text, self._own.tool_names_for(ctx.messages) if is_restricted else ()

        text, selected = await await_in_proxy_loop(self._session, recall)
        if text:
            ctx.enqueue(UserPromptPart(text))
        if not is_restricted:
            return request_context
        wire = self._own.tools.wire_names.by_tool
        hidden = {wire[name] for name in {*self._own.tools}.difference(selected)}
        tools = [one.name for one in request_context.model_request_parameters.function_tools]
        choice = ToolOrOutput([name for name in tools if name not in hidden])
        return replace(request_context, model_settings={**settings, "tool_choice": choice})


def capability(
    session: Session | sync.Session,
    *,
    id: str | None = None,  # noqa: A002 - the framework's parameter name
    max_retries: int | None = None,
    max_chars: int = DEFAULT_MAX_RECALL_CHARS,
) -> AbstractCapability[Any]:
    """
    Return a capability with a session's tools and memory for ``Agent(capabilities=[...])``.

    Its tools are those of `toolset`. The memories recalled for the user's message are appended as a separate message,
    which stays in the history. With ``settings.tools.dynamic="force_dynamic"`` the tool choice is restricted to
    `Session.tool_names_for` of the user's last message, unless the agent's settings have a ``tool_choice``. Calls of
    other tools still work.

    Args:
        session: The session with the tools and memories; as for `toolset`.
        id: The id of the capability and its toolset, unique within an agent.
        max_retries: As for `toolset`.
        max_chars: Maximum number of recalled characters, at least 300.

    """
    return _SessionCapability(session, _SessionToolset(session, id=id, max_retries=max_retries), max_chars=max_chars)


def _create_definition(wire: str, tool: Tool) -> ToolDefinition:
    return ToolDefinition(
        name=wire,
        description=tool.description,
        parameters_json_schema=to_adaptable_schema(tool.input_schema),
        return_schema=tool.output_schema,
        metadata={"title": tool.title, **attrs.asdict(tool.annotations)},
        # Read-only calls may run concurrently. Each other call runs alone.
        sequential=not tool.annotations.read_only,
    )
