"""A session's tools for Pydantic AI; needs the extra ``pydantic-ai``."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final, Self

import attrs

from mama_structs._internal.control_flow import ControlFlow, available_types
from mama_structs.adapters.shared.tool_results import MAX_CHARS, answer, hear, kept, offered, recall_for
from mama_structs.adapters.shared.tool_schemas import plain_schema
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
        *available_types(
            "pydantic_ai.exceptions",
            *("ApprovalRequired", "CallDeferred", "SkipToolExecution", "ToolRetryError", "ToolFailedError"),
            # Of an agent that runs inside a tool and shares the usage of the run, or is cancelled with it.
            *("UsageLimitExceeded", "RunCancelled"),
        ),
    ),
    # The other content types of Pydantic AI (BinaryContent) are read and sent as images and audio of any other tool.
    results=(ToolReturn, *available_types("pydantic_ai.messages", "FileUrl", "UploadedFile")),
)
# Accept any object: the session validates the arguments, with messages for a model.
_OBJECT: Final = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


class _SessionToolset(AbstractToolset[Any]):
    """The tools of a session; `toolset` makes one."""

    def __init__(
        self,
        session: Session,
        *,
        id: str | None = None,  # noqa: A002 - the framework's word
        max_retries: int | None = None,
    ) -> None:
        self._session = session
        self._id = id
        self._max_retries = max_retries
        self._ctx: RunContext[Any] | None = None
        self._known: tuple[str, ...] | None = None
        self._definitions: list[ToolDefinition] = []

    @property
    def id(self) -> str | None:
        """The toolset's name among those of an agent."""
        return self._id

    async def for_run(self, ctx: RunContext[Any]) -> Self:  # noqa: ARG002 - what a run is about shows in its steps
        """Return a toolset for one run, which stores what is marked in that run's answers."""
        return type(self)(self._session, id=self._id, max_retries=self._max_retries)

    async def __aexit__(self, *args: object) -> None:
        """Store what the model marked in its last answer, which called no tool of the session."""
        if self._ctx is not None and self._session.is_open:
            await self._hear(self._ctx)

    async def _hear(self, ctx: RunContext[Any]) -> None:
        """Store what the model marked in its last message of this run."""
        last = next((one for one in reversed(ctx.messages) if isinstance(one, ModelResponse)), None)
        if last is not None and last.run_id == ctx.run_id:
            await hear(self._session, last)

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return all tools."""
        self._ctx = ctx
        if self._known != (names := self._session.tools.names):
            self._definitions = [_definition(wire, tool) for wire, tool in offered(self._session)]
            self._known = names
        max_retries = ctx.max_retries if self._max_retries is None else self._max_retries
        return {
            one.name: ToolsetTool(toolset=self, tool_def=one, max_retries=max_retries, args_validator=_OBJECT)
            for one in self._definitions
        }

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[Any],
        tool: ToolsetTool[Any],  # noqa: ARG002 - the name says which
    ) -> Any:
        """Run a tool and return its result; raise `ModelRetry` if the model can correct the call, else `ToolFailed`."""
        await self._hear(ctx)
        answered = await answer(
            self._session,
            name,
            tool_args,
            host=dict.fromkeys(HOST_PARAMETERS, ctx),
            control_flow=_CONTROL_FLOW,
        )
        if answered.is_native:
            return answered.data
        if answered.has_media:
            return [_content(self._session, part) for part in answered.parts]
        if not answered.is_error:
            # By way of the text, which has no half of a surrogate pair: Pydantic AI could not write one as JSON.
            return answered.text if isinstance(answered.data, str) else json.loads(answered.text)
        # The types of `InvalidArgument` and of an id that nothing has: what better arguments mend.
        kind = answered.data["error"]["type"]
        if (kind == "not_found" or kind.startswith("invalid_")) and ctx.retry < ctx.max_retries:
            raise ModelRetry(answered.text)
        raise ToolFailed(answered.text)


def _content(session: Session, part: str | Media) -> str | BinaryContent | ImageUrl | AudioUrl:
    if not isinstance(part, Media):
        return part
    if part.url is not None:
        return ImageUrl(part.url) if part.kind == "image" else AudioUrl(part.url)
    content = None if part.kind == "file" else part.content
    if content is None or part.mime_type is None:
        return kept(session, part)
    return BinaryContent(content, media_type=part.mime_type)


def toolset(
    session: Session,
    *,
    id: str | None = None,  # noqa: A002 - the framework's word
    max_retries: int | None = None,
) -> AbstractToolset[Any]:
    """
    Return a session's tools as a toolset, for ``Agent(toolsets=[...])``.

    The model is offered all tools, whatever ``settings.tools.dynamic`` says; see `capability`.
    Wrong arguments raise `ModelRetry` as often as the tool may be retried. After that they raise `ToolFailed`, as every
    other error does, and the run goes on. Pydantic AI itself handles arguments that are no JSON.
    A host's own tool that takes ``ctx``, ``run_context`` or ``tool_context`` gets the `RunContext`. It may raise
    `ModelRetry`, `ToolFailed`, `ApprovalRequired` and `CallDeferred` and return a `ToolReturn` or a URL such as
    `ImageUrl`: these reach Pydantic AI unchanged.

    Args:
        session: Whose tools; it must be open while they are used, on the event loop that opened it.
        id: The toolset's name among those of an agent.
        max_retries: How often a model may correct the arguments of a call; None for the agent's own number.

    """
    return _SessionToolset(session, id=id, max_retries=max_retries)


class _SessionCapability(AbstractCapability[Any]):
    """What a session does for an agent; `capability` makes one."""

    def __init__(self, session: Session, toolset: _SessionToolset, *, max_chars: int) -> None:
        self._session = session
        self._toolset = toolset
        self._max_chars = max_chars
        self.id: str | None = toolset.id

    def get_toolset(self) -> AbstractToolset[Any]:
        """Return the session's tools."""
        return self._toolset

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Put what is recalled behind what the user wrote, and restrict the choice of tools where that is forced."""
        text = await recall_for(self._session, ctx.messages, max_chars=self._max_chars)
        if text:
            ctx.enqueue(UserPromptPart(text))
        settings = request_context.model_settings or {}
        if self._session.exposed.mode != "force_dynamic" or "tool_choice" in settings:
            return request_context
        wire = self._session.wire_names.by_tool
        hidden = {wire[name] for name in {*self._session.tools}.difference(self._session.allowed_for(ctx.messages))}
        tools = [one.name for one in request_context.model_request_parameters.function_tools]
        choice = ToolOrOutput([name for name in tools if name not in hidden])
        return replace(request_context, model_settings={**settings, "tool_choice": choice})


def capability(
    session: Session,
    *,
    id: str | None = None,  # noqa: A002 - the framework's word
    max_retries: int | None = None,
    max_chars: int = MAX_CHARS,
) -> AbstractCapability[Any]:
    """
    Return what gives an agent a session's tools and memory, for ``Agent(capabilities=[...])``.

    Its tools are those of `toolset`. What the session recalls for the user's message stands behind it, as a message of
    its own, which stays in the history. With ``settings.tools.dynamic="force_dynamic"`` the choice of tools is
    restricted to those that `Session.allowed_for` names for what the user said last, unless the agent's settings have a
    ``tool_choice``; a call of another tool works all the same.

    Args:
        session: Whose tools and memories; it must be open while they are used, on the event loop that opened it.
        id: The name of the capability and its toolset among those of an agent.
        max_retries: As for `toolset`.
        max_chars: Characters of what is recalled at the most, 300 or more.

    """
    return _SessionCapability(session, _SessionToolset(session, id=id, max_retries=max_retries), max_chars=max_chars)


def _definition(wire: str, tool: Tool) -> ToolDefinition:
    return ToolDefinition(
        name=wire,
        description=tool.description,
        parameters_json_schema=plain_schema(tool.input_schema),
        return_schema=tool.output_schema,
        metadata={"title": tool.title, **attrs.asdict(tool.annotations)},
        # What only reads may run beside others, and everything else in the order of the calls.
        sequential=not tool.annotations.read_only,
    )
