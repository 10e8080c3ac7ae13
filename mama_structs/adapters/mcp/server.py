"""The MCP server: a session's tools, prompts and resources, with a tool list per client."""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, get_args
from urllib.parse import unquote

import attrs
import mcp_types as types
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError

from mama_structs.adapters.mcp.clients import CONTROL_FLOW, EXTENSION, ClientRegistry, McpClient
from mama_structs.adapters.shared.loop_bridge import require_async_session
from mama_structs.adapters.shared.tool_results import (
    DEFAULT_MAX_RECALL_CHARS,
    ToolAnswer,
    list_wire_tools,
    recall_or_log,
    store_unsupported_media,
)
from mama_structs.errors import UnknownTool, repr_short
from mama_structs.refs.messages.media import Media
from mama_structs.session.recall_builder import build_recall
from mama_structs.session.session import Session
from mama_structs.tools.exposed_tools import ExposedToolNames
from mama_structs.tools.schema import HOST_PARAMETERS
from mama_structs.tools.tool import Tool

_log = logging.getLogger("mama_structs")

# Key of the user's message in a request's `_meta`, since the protocol has no field for it.
MESSAGE_KEY: Final = "mama-structs/message"
# Method of a request that only transmits the user's message, for hosts with no other request to attach it to.
MESSAGE_METHOD: Final = "mama-structs/message"

_INVALID_RESULT_NOTE: Final = (
    "The tool has run: do not call it again for this result. The result does not fit its schema, at {}:"
)
_MAX_PATH_CHARS: Final = 100

# Names of the prompt and the resource that return recalled memories.
PROMPT_NAME: Final = "recall"
RESOURCE_URI: Final = "mama-structs://recall"
# Texts for clients: instructions per tool, titles and descriptions of ref tools, lists of prompts and resources.
# They describe put_ref instead of ref markup, because the server does not see a model's answers.
_TEXTS: Final = json.loads(Path(__file__).with_name("texts.json").read_text(encoding="utf-8"))
_LIST_RESULTS: Final[Mapping[str, type[types.PaginatedResult]]] = {
    "prompts/list": types.ListPromptsResult,
    "resources/list": types.ListResourcesResult,
    "resources/templates/list": types.ListResourceTemplatesResult,
}


class MessageParams(types.RequestParams):
    """
    Parameters of a request of the method `MESSAGE_METHOD`.

    Args:
        message: The user's message.

    """

    message: str


class McpServer(Server[McpClient]):
    """
    An MCP server for a session, created by `server`.

    It supports everything that the SDK supports for a `mcp.server.Server`. All clients share the session: its memories,
    and also the refs of its conversation.

    Args:
        session: The session that has the tools.
        name: The server's name in the protocol.

    """

    def __init__(self, session: Session, *, name: str) -> None:
        self.session: Session = session
        self._clients = ClientRegistry(session)
        self._validators: dict[str, Any] = {}
        self._subscriptions = ExitStack()
        instructions = [text for name, text in _TEXTS["instructions"].items() if name in session.tools]
        super().__init__(
            name,
            version=importlib.metadata.version("mama-structs"),
            title="mama-structs",
            instructions=" ".join(instructions) or None,
            lifespan=self._serve_connection,
            # Without this handler, the SDK would call the tool list handler, as if the client had requested the list.
            get_tool_input_schema=self._get_input_schema,
            on_list_tools=self._handle_list_tools,
            on_call_tool=self._handle_call_tool,
            on_subscriptions_listen=self._clients.listen,
        )
        self.extensions[EXTENSION] = {}
        self.add_request_handler(MESSAGE_METHOD, MessageParams, self._handle_user_message)
        if "load/checkpoint" in session.tools:
            for method, kind in _LIST_RESULTS.items():
                listed = kind.model_validate(_TEXTS[method])
                self.add_request_handler(method, types.PaginatedRequestParams, _create_constant_handler(listed))
            self.add_request_handler("prompts/get", types.GetPromptRequestParams, self._handle_get_prompt)
            self.add_request_handler("resources/read", types.ReadResourceRequestParams, self._handle_read_resource)

    def observe(self, message: object) -> None:
        """
        Select the tools for a user's message.

        For hosts that embed the server and have one user.

        Each client that has subscribed to changes is notified if its list changes; the others keep the full list. Other
        changes of `mama_structs.Session.exposed_tools`, such as by `mama_structs.Session.tools_for`, have the same
        effect.

        Args:
            message: See `mama_structs.ToolSelector.detect`.

        """
        exposed = self.session.exposed_tools
        before = exposed.current.version
        if exposed.for_message(message).version == before:
            # Apply the unchanged selection of the session anyway, because a client may have its own selection.
            self._apply_session_selection(exposed.current)

    def _end_streams(self) -> None:
        """End the subscription streams, because a stopping server would wait for them."""
        self._clients.close()

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """
        Return the handshake options.

        They announce tool list changes to clients before 2026-07-28.
        """
        return super().create_initialization_options(
            notification_options or NotificationOptions(tools_changed=True), experimental_capabilities, extensions
        )

    def get_capabilities(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
        *,
        protocol_version: str | None = None,
    ) -> types.ServerCapabilities:
        """
        Return the capabilities, as in the SDK, without changes that this server never reports.

        For clients since 2026-07-28 the SDK announces all kinds of changes.
        """
        found = super().get_capabilities(
            notification_options, experimental_capabilities, extensions, protocol_version=protocol_version
        )
        prompts = found.prompts and types.PromptsCapability(list_changed=False)
        resources = found.resources and types.ResourcesCapability(subscribe=False, list_changed=False)
        return found.model_copy(update={"prompts": prompts, "resources": resources})

    def _apply_session_selection(self, _exposed: ExposedToolNames) -> None:
        for client in self._clients:
            client.apply_session_selection()

    def _apply_tool_set(self) -> None:
        for client in self._clients:
            client.apply_tool_set()

    @asynccontextmanager
    async def _serve_connection(self, _server: Server[McpClient]) -> AsyncIterator[McpClient]:
        # Subscribe only while there are connections, because the session may outlive the server.
        if next(iter(self._clients), None) is None:
            self._subscriptions.callback(self.session.exposed_tools.subscribe(self._apply_session_selection))
            # A tool may be added in another thread. Several tools that are added together cause one notification.
            loop = asyncio.get_running_loop()
            apply = functools.partial(loop.call_soon_threadsafe, self._apply_tool_set)
            self._subscriptions.callback(self.session.tools._subscribe(apply))
        client = self._clients.connect()
        try:
            yield client
        finally:
            if self._clients.disconnect(client):
                self._subscriptions.close()

    async def _handle_list_tools(
        self, ctx: ServerRequestContext[McpClient], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        _check_cursor(params)
        tools = {tool.name: _create_wire_tool(wire, tool) for wire, tool in list_wire_tools(self.session)}
        names = self._clients.find_client(ctx).list_tool_names(_get_message(ctx))
        return types.ListToolsResult(tools=[tools[name] for name in names])

    async def _handle_call_tool(
        self, ctx: ServerRequestContext[McpClient], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        message, client = _get_message(ctx), self._clients.find_client(ctx)
        if message is not None:
            client.observe(message)
        else:
            client.notify_if_changed()
        tool = self._find_tool(params.name)
        host = dict.fromkeys(HOST_PARAMETERS, ctx)
        answered = await client.scheduler.answer(params.name, params.arguments, host=host)
        if answered.is_native:
            native: types.CallToolResult | types.InputRequiredResult = answered.data
            return native
        structure = None
        if tool is not None and _get_output_schema(tool) is not None and not answered.is_error:
            structure = _parse_structure(answered)
            if (fault := self._find_schema_violation(tool, structure)) is not None:
                _log.warning("%s gave what its return type does not allow, at %s", tool.name, fault)
                structure, answered = None, self._mark_invalid(answered, fault)
        return types.CallToolResult(
            content=[_create_content(self.session, part) for part in answered.parts],
            structured_content=structure,
            is_error=answered.is_error,
        )

    async def _handle_user_message(self, ctx: ServerRequestContext[McpClient], params: MessageParams) -> dict[str, Any]:
        self._clients.find_client(ctx).observe(params.message)
        return {}

    def _find_tool(self, wire: str) -> Tool | None:
        """Return the tool, or None if it is unknown."""
        try:
            return self.session.tools[self.session.tools.wire_names._tool(wire)]
        except UnknownTool:
            return None

    def _find_schema_violation(self, tool: Tool, structure: object) -> str | None:
        """
        Return the JSON path at which a result violates its tool's output schema, or None.

        Clients reject a result that does not match its schema.
        """
        if tool.name not in self._validators:
            self._validators[tool.name] = Draft202012Validator(tool.output_schema)
        try:
            fault = best_match(self._validators[tool.name].iter_errors(structure))
        except RecursionError:
            return "its depth"
        return None if fault is None else str(fault.json_path)

    def _mark_invalid(self, answered: ToolAnswer, fault: str) -> ToolAnswer:
        """Convert a result that violates its schema to an error, because clients do not validate errors."""
        note = _INVALID_RESULT_NOTE.format(fault[:_MAX_PATH_CHARS])
        refs = self.session.refs
        shown = refs._within(answered.text, refs._budget.subtract(refs._budget.size(note) + 1), keeps=False)
        parts = [part for part in answered.parts if isinstance(part, Media)]
        return attrs.evolve(answered, is_error=True, parts=(f"{note}\n{shown}", *parts))

    async def _handle_get_prompt(
        self, _ctx: ServerRequestContext[Any], params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        """Return a prompt of two messages: the user's message, and the memories recalled for it."""
        if params.name != PROMPT_NAME:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {repr_short(params.name)}, only recall")
        message = (params.arguments or {}).get("message", "")
        if not message.strip():
            raise MCPError(types.INVALID_PARAMS, "the prompt recall needs its argument message")
        texts = [message, await self._recall(message)]
        return types.GetPromptResult(
            messages=[types.PromptMessage(role="user", content=types.TextContent(text=text)) for text in texts if text]
        )

    async def _handle_read_resource(
        self, _ctx: ServerRequestContext[Any], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Return the memories that are recalled for the message contained in the resource's URI."""
        base, _, message = params.uri.partition(f"{RESOURCE_URI}/")
        if params.uri != RESOURCE_URI and (base or not message):
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {params.uri!r:.80}")
        text = await self._recall(unquote(message))
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, mime_type="text/plain", text=text)]
        )

    async def _recall(self, message: str) -> str:
        session = self.session
        # Without a message, only the last checkpoint is recalled.
        recalling = build_recall(
            session.memories,
            message,
            tool_selector=session.exposed_tools.selector,
            is_resuming=not message,
            max_chars=DEFAULT_MAX_RECALL_CHARS,
        )
        return await recall_or_log(recalling)

    def _get_input_schema(self, wire: str) -> Mapping[str, Any] | None:
        tool = self._find_tool(wire)
        return None if tool is None else tool.input_schema


def server(session: Session, *, name: str = "mama-structs") -> McpServer:
    """
    Return an MCP server for a session's tools.

    Args:
        session: The session that has the tools. It must stay open while the server runs. The server does not close it.
        name: The server's name in the protocol.

    Raises:
        InvalidArgument: *session* is not a session, or one of `mama_structs.sync`: a server is async only.

    """
    return McpServer(require_async_session(session, "an MCP server"), name=name)


def _create_wire_tool(wire: str, tool: Tool) -> types.Tool:
    hints = tool.annotations
    # Replace the texts of tools that take handles. A host's tool may have the name of a ref tool, but takes no handles.
    title, description = tool.title, tool.description
    if tool.handles:
        title, description = _TEXTS["without_marks"].get(tool.name, (title, description))
    return types.Tool(
        name=wire,
        title=title,
        description=description,
        input_schema=tool.input_schema,
        output_schema=_get_output_schema(tool),
        annotations=types.ToolAnnotations(
            title=title,
            read_only_hint=hints.read_only,
            destructive_hint=hints.destructive,
            idempotent_hint=hints.idempotent,
            open_world_hint=hints.open_world,
        ),
    )


def _get_output_schema(tool: Tool) -> dict[str, Any] | None:
    """Return a tool's output schema, or None if it returns a protocol result."""
    returns = tool._signature.return_type
    members = (returns, *get_args(returns))
    is_native = any(isinstance(one, type) and issubclass(one, CONTROL_FLOW.results) for one in members)
    return None if is_native else tool.output_schema


def _parse_structure(answered: ToolAnswer) -> Any:
    """Return the structured content of an answer: its data, or its text parsed as JSON."""
    if answered.has_media:
        return answered.data
    try:
        return json.loads(answered.text)
    except (ValueError, RecursionError):
        return answered.text


def _create_content(session: Session, part: str | Media) -> types.ContentBlock:
    if not isinstance(part, Media):
        return types.TextContent(text=part)
    if part.data is None or part.mime_type is None or part.kind == "file":
        return types.TextContent(text=store_unsupported_media(session, part))
    made = types.ImageContent if part.kind == "image" else types.AudioContent
    return made(data=part.data, mime_type=part.mime_type)


def _get_message(ctx: ServerRequestContext[Any]) -> str | None:
    """Return the user's message, if the request contains it."""
    message = (ctx.meta or {}).get(MESSAGE_KEY)
    return message if isinstance(message, str) else None


def ensure_server(served: Session | McpServer) -> McpServer:
    """Return a server unchanged, or create one for a session."""
    return served if isinstance(served, McpServer) else server(served)


def _create_constant_handler(
    answer: types.Result,
) -> Callable[[ServerRequestContext[Any], types.PaginatedRequestParams | None], Awaitable[types.Result]]:
    """Return a request handler for a list of one page that never changes."""

    async def give(_ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None) -> types.Result:
        _check_cursor(params)
        return answer

    return give


def _check_cursor(params: types.PaginatedRequestParams | None) -> None:
    # Some clients send an empty cursor for the first page.
    if params is not None and params.cursor:
        raise MCPError(types.INVALID_PARAMS, "the list has one page: leave out cursor")
