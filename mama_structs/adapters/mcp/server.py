"""The server: a session's tools, and to each client the list that it can cope with."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import mcp_types as types
from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError

from mama_structs.adapters.answers import answer, offered, wire_names
from mama_structs.adapters.mcp.clients import Client, Clients
from mama_structs.adapters.mcp.exchange import EXTENSION, MESSAGE_METHOD, message_in, wire_result, wire_tool
from mama_structs.adapters.mcp.following import Following
from mama_structs.errors import InvalidArgument, UnknownTool
from mama_structs.session import Session
from mama_structs.tools.exposure import Exposed, ToolView
from mama_structs.tools.tool import Tool

_INSTRUCTIONS: Final = (
    "A memory that outlives this conversation: decisions with their reasons and outcomes, checkpoints and insights. "
    "When work goes on from earlier, load the checkpoint first. Before deciding, search for what was decided on the "
    "subject; when a decision turns out well or badly, mark its outcome; supersede it rather than save it twice. "
    "A long result comes back as <fd_result> with a number that read_fd and search_fd take."
)


class MessageParams(types.RequestParams):
    """
    What a request of the method `MESSAGE_METHOD` says.

    Args:
        message: What the user wrote.

    """

    message: str


class McpServer(Server[Client]):
    """
    An MCP server for a session; `server` makes one.

    Whatever the SDK can do with a `mcp.server.Server` can be done with this one. All clients share the session: its
    memories, and also the refs of its conversation.

    Args:
        session: Whose tools.
        name: By which clients know the server.
        clock: Seconds that never step back.

    """

    def __init__(self, session: Session, *, name: str, clock: Callable[[], float]) -> None:
        self.session: Session = session
        self._clock = clock
        self._clients = Clients(self._client)
        self._connections = 0
        self._unsubscribe: Callable[[], None] | None = None
        super().__init__(
            name,
            version=importlib.metadata.version("mama-structs"),
            title="mama-structs",
            instructions=_INSTRUCTIONS,
            lifespan=self._connection,
            # Else the SDK would ask for the list itself, and a client would seem to have asked.
            get_tool_input_schema=self._input_schema,
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_subscriptions_listen=self._listen,
        )
        self.extensions[EXTENSION] = {}
        self.add_request_handler(MESSAGE_METHOD, MessageParams, self._take_message)

    def observe(self, message: object) -> None:
        """
        Take note of what the user wrote, for hosts that embed the server and have one user.

        Each client that follows changes is told where its list changes; the others keep the full list. What changes
        `mama_structs.Session.exposed` otherwise, such as `mama_structs.Session.tools_for`, has the same effect.

        Args:
            message: See `mama_structs.Exposure.detect`.

        """
        exposed = self.session.exposed
        before = exposed.current.version
        if exposed.for_message(message).version == before:
            # The session's choice is the same, and a client's own may have been another.
            self._adopt(exposed.current)

    def end_streams(self) -> None:
        """End the streams on which clients listen, so that a server that stops need not wait for them."""
        self._clients.close()

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Return what a client of before 2026-07-28 is told when it connects: that the list of tools can change."""
        return super().create_initialization_options(
            notification_options or NotificationOptions(tools_changed=True), experimental_capabilities, extensions
        )

    def _client(self, name: str, *, follows: bool = True, owed: bool = False, **options: Any) -> Client:
        mode = self.session.exposed.mode if follows else "force_static"
        shared = self.session.exposed
        # The clients' users write different messages: what they should see is kept apart.
        own = ToolView(self.session.tools, exposure=shared.exposure, mode=mode)
        following = Following(mode, owed=owed)
        return Client(name, shared=shared, own=own, following=following, clock=self._clock, **options)

    def _adopt(self, _exposed: Exposed) -> None:
        for client in self._clients:
            client.adopt()

    @asynccontextmanager
    async def _connection(self, _server: Server[Client]) -> AsyncIterator[Client]:
        # The session outlives its servers: only one that serves hears of its changes.
        if self._unsubscribe is None:
            self._unsubscribe = self.session.exposed.subscribe(self._adopt)
        self._connections += 1
        client = self._clients.connect()
        try:
            yield client
        finally:
            self._clients.disconnect(client)
            self._connections -= 1
            if not self._connections:
                self._unsubscribe()
                self._unsubscribe = None
                self._clients.forget()

    async def _list(
        self, ctx: ServerRequestContext[Client], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        if params is not None and params.cursor is not None:
            raise MCPError(types.INVALID_PARAMS, "the list of tools has one page: leave out cursor")
        tools = {tool.name: wire_tool(wire, tool) for wire, tool in offered(self.session)}
        names = self._clients.of(ctx).listed(tuple(tools), message_in(ctx))
        return types.ListToolsResult(tools=[tools[name] for name in names])

    async def _call(
        self, ctx: ServerRequestContext[Client], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        message = message_in(ctx)
        client = self._clients.of(ctx)
        if message is not None:
            client.observe(message)
        else:
            client.remind()
        return wire_result(await answer(self.session, params.name, params.arguments), self._tool(params.name))

    async def _listen(
        self, ctx: ServerRequestContext[Client], params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        return await self._clients.of(ctx).listen(ctx, params)

    async def _take_message(self, ctx: ServerRequestContext[Client], params: MessageParams) -> dict[str, Any]:
        self._clients.of(ctx).observe(params.message)
        return {}

    def _tool(self, wire: str) -> Tool | None:
        """Return the tool, or None where no client was ever listed it: its schema promised nobody a structure."""
        try:
            return self.session.tools[wire_names(self.session).tool(wire)]
        except UnknownTool:
            return None

    def _input_schema(self, wire: str) -> Mapping[str, Any] | None:
        tool = self._tool(wire)
        return None if tool is None else tool.input_schema


def server(session: Session, *, name: str = "mama-structs", clock: Callable[[], float] = time.monotonic) -> McpServer:
    """
    Return an MCP server for a session's tools.

    Args:
        session: Whose tools; it must stay open for as long as the server runs, and is not closed by it.
        name: By which clients know the server.
        clock: Seconds that never step back, for tests.

    Raises:
        InvalidArgument: *session* is no session.

    """
    if not isinstance(session, Session):
        raise InvalidArgument(f"session must be a Session, got {type(session).__name__}", hint="open one first")
    return McpServer(session, name=name, clock=clock)


def server_of(served: Session | McpServer) -> McpServer:
    """Return a server as it is, or one for a session."""
    return served if isinstance(served, McpServer) else server(served)
