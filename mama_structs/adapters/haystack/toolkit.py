"""A session's tools and recall for Haystack agents; needs the extra ``haystack``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn, Self

from mama_structs._internal.control_flow import ControlFlow, find_available_types
from mama_structs._internal.prompt_quoting import remove_recalled
from mama_structs.adapters.haystack.connection import SessionComponent, SessionLocation
from mama_structs.adapters.shared.tool_results import (
    DEFAULT_MAX_RECALL_CHARS,
    answer_tool_call,
    is_supported_image,
    list_wire_tools,
    observe_message,
    recall_for_messages,
    store_unsupported_media,
)
from mama_structs.adapters.shared.tool_schemas import to_always_strict_schema, to_plain_schema
from mama_structs.errors import InvalidArgument, SessionClosed
from mama_structs.refs.messages.media import Media
from mama_structs.session.session import Session
from mama_structs.tools.schema import HOST_PARAMETERS
from mama_structs.tools.tool import Tool

try:
    from haystack import default_from_dict, default_to_dict
    from haystack.components.agents.state import State
    from haystack.core.serialization import generate_qualified_class_name
    from haystack.dataclasses import ChatMessage, FileContent, ImageContent, TextContent
    from haystack.hooks import HookPoint
    from haystack.tools import Toolset
    from haystack.tools.errors import ToolInvocationError
    from haystack.tools.tool import Tool as HaystackTool
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.haystack needs Haystack: pip install 'mama-structs[haystack]'"
    ) from _missing

_CONTENT_TYPES: Final = (TextContent, ImageContent, FileContent)
_CONTROL_FLOW: Final = ControlFlow(
    exceptions=find_available_types("haystack.core.errors", "BreakpointException"), results=_CONTENT_TYPES
)
# Name of the parameter that receives Haystack's state. Haystack replaces an argument of the same name.
_STATE_PARAMETER: Final = "_mama_structs_state"
_HOOK_POINTS: Final[tuple[HookPoint, ...]] = ("before_llm", "before_tool", "on_exit")


class HaystackToolset(SessionComponent, Toolset):
    """
    A session's tools: ``Agent(tools=HaystackToolset(session))``.

    The model is offered all tools, regardless of ``settings.tools.dynamic``.
    A failed call returns a tool message with ``error=True`` that says what to change.
    The calls of one answer run one after the other, in order.
    A host's own tool with a parameter ``ctx``, ``run_context`` or ``tool_context`` receives the agent's `State`. If it
    returns a `TextContent`, `ImageContent`, `FileContent` or a list of them, the result reaches Haystack unchanged.

    Args:
        session: As for `HaystackToolResultStore`. Use an async session with ``run_async`` only.
        namespace: The namespace of a session that is opened here.
        conversation: The conversation of a session that is opened here; None for a new one.
        strict: True for schemas that are valid with and without a generator's ``tools_strict=True``: optional arguments
            are required and may be null, and the model writes free-form data as JSON text. `Any` has no strict form,
            and additional arguments (``**options``) are lost in strict mode. False for plain schemas.
        images: True to pass images of tools to the model. Haystack's generator for Chat Completions rejects them. By
            default the model receives a text with a handle.

    """

    def __init__(
        self,
        session: SessionLocation,
        *,
        namespace: str = "default",
        conversation: str | None = None,
        strict: bool = True,
        images: bool = False,
    ) -> None:
        super().__init__(session, namespace=namespace, conversation=conversation)
        self._strict = strict
        self._images = images
        self._listed: tuple[Tool, ...] = ()
        self._tools: list[HaystackTool] = []

    @property
    def tools(self) -> list[HaystackTool]:  # type: ignore[override]
        """The current tools of the session."""
        session = self._bridge.session
        # Build the tools only if the session's tools have changed, because Haystack validates each schema.
        if self._listed != (listed := tuple(session.tools.values())):
            self._tools = [self._create_tool(*one) for one in list_wire_tools(session)]
            self._listed = listed
        return self._tools

    def __iter__(self) -> Iterator[HaystackTool]:
        return iter(self.tools)

    def warm_up(self) -> None:
        """Raise `SessionClosed` before the model is called if the session is closed."""
        if not self._bridge.session.is_open:
            raise SessionClosed("the session of the toolset is closed")

    def add(self, tool: HaystackTool) -> NoReturn:
        """Raise `InvalidArgument`, because the toolset offers the tools of the session only."""
        raise InvalidArgument(
            f"{tool.name} cannot be added to the session's tools",
            hint="use session.tools.add(function), or Agent(tools=[toolset, tool])",
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Return the toolset's serialized form for a pipeline file.

        Raise `InvalidArgument` for a temporary session, or a URL with a password.
        """
        options = {"strict": self._strict, "images": self._images}
        data = default_to_dict(self, **self._serialize_location(), **options)["init_parameters"]
        return {"type": generate_qualified_class_name(type(self)), "data": data}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return a toolset from its serialized form."""
        return default_from_dict(cls, {"type": data["type"], "init_parameters": data["data"]})

    def _create_tool(self, wire: str, tool: Tool) -> HaystackTool:
        schema, state_name = tool.input_schema, _STATE_PARAMETER
        while state_name in schema.get("properties", {}):
            state_name += "_"

        def call(**arguments: Any) -> Any:
            state = arguments.pop(state_name, None)
            return self._bridge.run(lambda: self._answer(wire, arguments, state))

        async def acall(**arguments: Any) -> Any:
            state = arguments.pop(state_name, None)
            return await self._bridge.arun(lambda: self._answer(wire, arguments, state))

        # A parameter of the type State makes Haystack run the calls of an answer one after the other.
        parameter = inspect.Parameter(state_name, inspect.Parameter.KEYWORD_ONLY, annotation=State)
        for function in (call, acall):
            function.__signature__ = inspect.Signature([parameter])  # type: ignore[union-attr]
        return _HaystackSessionTool(
            name=wire,
            description=tool.description,
            parameters=to_always_strict_schema(schema, require_all=True) if self._strict else to_plain_schema(schema),
            function=call,
            async_function=acall,
            outputs_to_string={"raw_result": True},
        )

    async def _answer(self, wire: str, arguments: dict[str, Any], state: State | None) -> Any:
        session = self._bridge.session
        host = dict.fromkeys(HOST_PARAMETERS, state)
        answered = await answer_tool_call(session, wire, arguments, host=host, control_flow=_CONTROL_FLOW)
        if answered.is_native:
            return [answered.data] if isinstance(answered.data, _CONTENT_TYPES) else answered.data
        if answered.is_error:
            raise ToolInvocationError(answered.text, tool_name=wire)
        if not answered.has_media:
            return answered.text
        return [_create_content(session, part, images=self._images) for part in answered.parts]


class HaystackRecallHook(SessionComponent):
    """
    Adds recalled memories to the conversation, and stores the refs of answers.

    Pass ``Agent(hooks=HaystackRecallHook(session).hooks)``. The memories recalled for the user's message are appended
    as a separate user message, which is part of the agent's result. Facts may be recalled again if the conversation
    contains no recalled memories. Refs are stored before the calls of the same answer run, so the calls can use them.

    Args:
        session: As for `HaystackToolset`.
        namespace: The namespace of a session that is opened here.
        conversation: The conversation of a session that is opened here. Pass the same name to the `HaystackToolset`, so
            that its tools can use the refs.
        max_chars: Maximum number of recalled characters, at least 300.

    Attributes:
        allowed_hook_points: The hook points of an agent under which the hook must be registered.

    """

    allowed_hook_points: Final = _HOOK_POINTS

    def __init__(
        self,
        session: SessionLocation,
        *,
        namespace: str = "default",
        conversation: str | None = None,
        max_chars: int = DEFAULT_MAX_RECALL_CHARS,
    ) -> None:
        super().__init__(session, namespace=namespace, conversation=conversation)
        self._max_chars = max_chars

    @property
    def hooks(self) -> dict[HookPoint, list[Any]]:
        """The hook under each of its hook points, for ``Agent(hooks=...)``."""
        return {point: [self] for point in self.allowed_hook_points}

    def run(self, state: State) -> None:
        """Append recalled memories to a conversation that ends with the user's message; store an answer's refs."""
        _append_message(state, self._bridge.run(lambda: self._process(state.data["messages"])))

    async def run_async(self, state: State) -> None:
        """Append recalled memories to a conversation that ends with the user's message; store an answer's refs."""
        _append_message(state, await self._bridge.arun(lambda: self._process(state.data["messages"])))

    def to_dict(self) -> dict[str, Any]:
        """
        Return the hook's serialized form for a pipeline file.

        Raise `InvalidArgument` for a temporary session, or a URL with a password.
        """
        return default_to_dict(self, **self._serialize_location(), max_chars=self._max_chars)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return a hook from its serialized form."""
        return default_from_dict(cls, data)

    async def _process(self, messages: Sequence[ChatMessage]) -> str:
        """Store the refs of the last message if it is an answer; return the text recalled for it otherwise."""
        session, texts = self._bridge.session, ["\n".join(one.texts) for one in messages]
        if messages and messages[-1].role == "assistant":
            await observe_message(session, texts[-1])
            return ""
        asked = [{"role": one.role.value, "content": text} for one, text in zip(messages, texts, strict=True)]
        is_kept = any(text != remove_recalled(text) for text in texts)
        return await recall_for_messages(session, asked, max_chars=self._max_chars, repeat=not is_kept)


class _HaystackSessionTool(HaystackTool):
    """Tool whose calls raise the session's own errors, and accept arguments of any name."""

    def invoke(self, /, **arguments: Any) -> Any:
        return self.function(**arguments)  # type: ignore[misc]

    async def invoke_async(self, /, **arguments: Any) -> Any:
        return await self.async_function(**arguments)  # type: ignore[misc]


def _append_message(state: State, text: str) -> None:
    if text:
        state.set("messages", [ChatMessage.from_user(text)])


def _create_content(session: Session, part: str | Media, *, images: bool) -> TextContent | ImageContent:
    if images and is_supported_image(part) and part.data:
        return ImageContent(part.data, mime_type=part.mime_type)
    return TextContent(store_unsupported_media(session, part) if isinstance(part, Media) else part)
