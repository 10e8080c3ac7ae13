"""The clients of an MCP server, their tool lists and notifications of list changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import attrs
import mcp_types as types
from mcp.server import ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mama_structs._internal.control_flow import ControlFlow
from mama_structs.adapters.shared.tool_results import CallScheduler
from mama_structs.session.session import Session
from mama_structs.tools.exposed_tools import ExposedTools

_log = logging.getLogger("mama_structs")

# As in the SDK's own server, MCPError and its subclasses become JSON-RPC errors, not tool results.
CONTROL_FLOW: Final[ControlFlow] = ControlFlow(
    exceptions=(MCPError,), results=(types.CallToolResult, types.InputRequiredResult)
)
# Name of the protocol extension. Its setting "client" identifies a client that has no persistent connection.
EXTENSION: Final = "mama-structs/exposure"
# Maximum seconds to send a notification to a client (DESIGN 7).
NOTIFICATION_SECONDS: Final = 0.5
# Maximum number of identified HTTP clients that the server stores.
MAX_CLIENTS: Final = 1_000
_MAX_STREAMS_PER_CLIENT: Final = 8
_MAX_HANDLE_CHARS: Final = 128
_CALLBACK_STATE_KEY: Final = "mama-structs/end"

# Names of the listed tools, and the version of the tool set. A replaced tool may have another schema.
ToolListVersion: TypeAlias = tuple[frozenset[str], int]


@attrs.define(eq=False)
class McpClient:
    """
    State of one client.

    Its tool list is narrowed while it subscribes to list changes (2026-07-28), or always with ``force_dynamic``. A
    client that could not be notified gets the full list until it accepts a notification or subscribes again.
    """

    # Number of the client, for log messages.
    name: str
    session: Session
    # Each client has its own user and selects its own tools.
    # Until its first message, a client uses the session's selection.
    own_tools: ExposedTools = attrs.field(init=False)
    exposed_tools: ExposedTools = attrs.field(init=False)
    # False if the client's requests cannot be distinguished from requests of other clients.
    is_identified: bool = attrs.field(default=True, init=False)
    # Number of open subscription streams.
    stream_count: int = attrs.field(default=0, init=False)
    # Number of open streams that subscribe to tool list changes.
    list_stream_count: int = attrs.field(default=0, init=False)
    # Clients with a protocol version before 2026-07-28 are notified through this channel.
    notification_channel: ServerSession | None = attrs.field(default=None, init=False)
    notification_tasks: set[asyncio.Task[None]] = attrs.field(factory=set, init=False)
    # The scheduler treats calls as unrelated, because the protocol does not say which calls belong to one message.
    scheduler: CallScheduler = attrs.field(init=False)
    bus: InMemorySubscriptionBus = attrs.field(factory=InMemorySubscriptionBus, init=False)
    _handler: ListenHandler = attrs.field(init=False)
    # Tools in the last list that the client received, or None before the first list.
    _last_listed: ToolListVersion | None = attrs.field(default=None, init=False)
    # Tools at the time of the last notification, or None if the client's list is up to date.
    _last_notified: ToolListVersion | None = attrs.field(default=None, init=False)
    _is_unreachable: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.scheduler = CallScheduler(self.session, of_one_turn=False, control_flow=CONTROL_FLOW)
        shared = self.session.exposed_tools
        self.own_tools = ExposedTools(self.session.tools, selector=shared.selector, mode=shared.mode)
        self.exposed_tools = shared
        self._handler = ListenHandler(self.bus, max_subscriptions=_MAX_STREAMS_PER_CLIENT)

    @property
    def current_tool_names(self) -> tuple[str, ...]:
        """The names of the tools that the next tool list of this client contains."""
        mode = self.own_tools.mode
        narrows = mode == "force_dynamic" or (mode == "auto" and self.is_identified and self.list_stream_count)
        return self.exposed_tools.current.names if narrows and not self._is_unreachable else self.session.tools.names

    def list_tool_names(self, message: str | None = None) -> tuple[str, ...]:
        """Return the tool names for a tool list. A *message* of the user selects the tools first."""
        if message is not None:
            self._select_tools(message)
        names = self.current_tool_names
        self._last_listed, self._last_notified = (frozenset(names), self.session.tools._version), None
        _log.info("the client %s is listed %d of %d tools", self.name, len(names), len(self.session.tools))
        return names

    def observe(self, message: object) -> None:
        """Select the tools for a user's message, and notify the client if its tool list changed."""
        self._select_tools(message)
        self.notify_if_changed()

    def apply_session_selection(self) -> None:
        """Apply the session's tool selection, and notify the client if its list changed."""
        self.exposed_tools = self.session.exposed_tools
        self.notify_if_changed()

    def apply_tool_set(self) -> None:
        """Notify the client of added, replaced and removed tools, if its list contains them."""
        # Requests of an anonymous client are unrelated to its stream, so its last list is unknown.
        self.notify_if_changed(may_have_changed=self.list_stream_count > 0)

    async def listen(
        self, ctx: ServerRequestContext[Any], params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve a subscription stream, which protocol version 2026-07-28 introduced."""
        counts = bool(params.notifications.tools_list_changed)
        # The acknowledgement must name only the changes that this server reports.
        reported = types.SubscriptionFilter(tools_list_changed=counts or None)
        params = params.model_copy(update={"notifications": reported})
        self.list_stream_count += counts
        if counts:
            # Notify a reconnected client, because its list may be outdated.
            # The notification waits until the stream has started.
            self._is_unreachable, self._last_notified = False, None
            self.notify_if_changed(may_have_changed=self.is_identified)
        try:
            return await self._handler(ctx, params)
        finally:
            self.list_stream_count -= counts

    def close(self) -> None:
        """End the client's streams and pending notifications."""
        self._handler.close()
        for task in self.notification_tasks:
            task.cancel()

    def notify_if_changed(self, *, may_have_changed: bool = False) -> None:
        """Notify the client if its list changed or, with *may_have_changed*, if it never received a list."""
        wanted = (frozenset(self.current_tool_names), self.session.tools._version)
        if wanted == self._last_listed or (self._last_listed is None and not may_have_changed):
            self._last_notified = None
            return
        if wanted == self._last_notified or (self.notification_channel is None and not self.list_stream_count):
            return
        self._last_notified = wanted
        # Send the notification in a task, because a slow reader must not block the request.
        task = asyncio.get_running_loop().create_task(self._notify(self.notification_channel))
        self.notification_tasks.add(task)
        task.add_done_callback(self.notification_tasks.discard)

    def _select_tools(self, message: object) -> None:
        self.exposed_tools = self.own_tools
        self.own_tools.for_message(message)

    async def _notify(self, channel: ServerSession | None) -> None:
        try:
            async with asyncio.timeout(NOTIFICATION_SECONDS):
                if channel is not None:
                    await channel.send_tool_list_changed()
                else:
                    await self.bus.publish(ToolsListChanged())
        except Exception as error:  # noqa: BLE001 - any error means that the client was not notified
            self._is_unreachable, self._last_notified = True, None
            _log.warning("the client %s could not be told of a change: %s", self.name, type(error).__name__)
        else:
            self._is_unreachable = False
            _log.info("the client %s is told that the list of tools has changed", self.name)


class ClientRegistry:
    """All clients of a server: connected, subscribed, and recently active over HTTP."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._number = 0
        # In LRU order. The key of an HTTP client is its identifier, the key of any other client is the client itself.
        self._clients: dict[McpClient | tuple[str, str], McpClient] = {}

    def connect(self) -> McpClient:
        """Create and store the client of a new connection."""
        client = self._create_client()
        self._clients[client] = client
        return client

    def disconnect(self, client: McpClient) -> bool:
        """Remove a disconnected client. Return True if it was the last connection."""
        self._remove(client)
        is_last = not any(isinstance(key, McpClient) for key in self._clients)
        # After the last connection has ended, HTTP clients can no longer be served, so remove them.
        for key in [*self._clients] if is_last else ():
            self._remove(key)
        return is_last

    def find_client(self, ctx: ServerRequestContext[McpClient]) -> McpClient:
        """Return the client that sent a request, creating it if it is new."""
        # Over stdio, each connection has one client. Over HTTP, the handshake's session id identifies the client.
        # Since 2026-07-28, the handle in the extension setting identifies the client.
        # A client without session id and handle is anonymous.
        if ctx.request is None:
            client = ctx.lifespan_context
        else:
            key = _identify(ctx)
            client = self._create_client() if key is None else self._find_identified(key)
            client.is_identified = key is not None
            if key is not None and key[0] == "session":
                _on_connection_end(ctx, lambda: self._remove(key))
        client.notification_channel = None if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else ctx.session
        return client

    async def listen(
        self, ctx: ServerRequestContext[McpClient], params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve a stream. The registry retains the stream's client while the stream is open."""
        client = self.find_client(ctx)
        if not client.stream_count and sum(one.stream_count > 0 for one in self) >= MAX_CLIENTS:
            raise MCPError(types.INTERNAL_ERROR, "too many clients listen to changes")
        stream_key = ("stream", client.name)
        if not client.is_identified:
            self._clients[stream_key] = client
        client.stream_count += 1
        try:
            return await client.listen(ctx, params)
        finally:
            client.stream_count -= 1
            self._clients.pop(stream_key, None)

    def close(self) -> None:
        """End all streams."""
        for client in self:
            client.close()

    def __iter__(self) -> Iterator[McpClient]:
        """Iterate over a snapshot of the stored clients. Only stored clients can be notified of changes."""
        return iter([*self._clients.values()])

    def _create_client(self) -> McpClient:
        self._number += 1
        return McpClient(str(self._number), self._session)

    def _find_identified(self, key: tuple[str, str]) -> McpClient:
        client = self._clients.pop(key, None)
        if client is None:
            client = self._create_client()
            idle = [one for one, known in self._clients.items() if isinstance(one, tuple) and not known.stream_count]
            if len(idle) >= MAX_CLIENTS:
                del self._clients[idle[0]]
        self._clients[key] = client
        return client

    def _remove(self, key: McpClient | tuple[str, str]) -> None:
        client = self._clients.pop(key, None)
        if client is not None:
            client.close()


def _identify(ctx: ServerRequestContext[Any]) -> tuple[str, str] | None:
    """Return the identifier of a request's HTTP client, or None if it is anonymous."""
    if ctx.request is not None and ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        session = ctx.request.headers.get(MCP_SESSION_ID_HEADER)
        return None if session is None else ("session", session)
    capabilities = ctx.session.client_capabilities
    settings = ((capabilities.extensions if capabilities else None) or {}).get(EXTENSION)
    handle = settings.get("client") if isinstance(settings, dict) else None
    return ("handle", handle) if isinstance(handle, str) and 0 < len(handle) <= _MAX_HANDLE_CHARS else None


def _on_connection_end(ctx: ServerRequestContext[Any], callback: Callable[[], None]) -> None:
    """Register a callback for the end of a request's connection, at most one per connection."""
    # The SDK has no public access to the connection. If this attribute is missing, only the LRU limit removes clients.
    connection = getattr(ctx.session, "_connection", None)
    if isinstance(connection, Connection) and connection.state.setdefault(_CALLBACK_STATE_KEY, callback) is callback:
        connection.exit_stack.callback(callback)
