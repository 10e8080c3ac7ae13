"""The clients of a server: what each is listed, and how each is told of a change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
import mcp_types as types
from mcp.server import ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mama_structs._control_flow import ControlFlow
from mama_structs.adapters.answers import Turns
from mama_structs.session import Session
from mama_structs.tools.view import ToolView

_log = logging.getLogger("mama_structs")

# As in the SDK's own server: an MCPError, such as UrlElicitationRequiredError, is an error of the protocol.
CONTROL_FLOW: Final[ControlFlow] = ControlFlow(
    exceptions=(MCPError,), results=(types.CallToolResult, types.InputRequiredResult)
)
# An extension of the protocol: its setting "client" tells apart the clients of a stateless connection.
EXTENSION: Final = "mama-structs/exposure"
# Seconds in which a client has to take a notice (DESIGN 7).
LIMIT: Final = 0.5
# Maximum number of remembered HTTP clients, and of open streams.
MAX_CLIENTS: Final = 1_000
_MAX_STREAMS: Final = 8
_MAX_HANDLE: Final = 128
_IS_HEARD: Final = "mama-structs/end"


@attrs.define(eq=False)
class Client:
    """
    What is known of one client.

    Its list is narrowed while it has an open subscription to the list of tools (2026-07-28), or always with
    ``force_dynamic``; who could not be told of a change has the full list until it takes a notice or subscribes again.
    """

    # For the log.
    name: str
    session: Session
    # The clients' users write different messages: until one does, the session's choice of tools holds.
    own: ToolView = attrs.field(init=False)
    exposed: ToolView = attrs.field(init=False)
    # Whether its requests can be told from those of others.
    known: bool = attrs.field(default=True, init=False)
    # Its open streams, and on how many of them it hears of the list of tools.
    streams: int = attrs.field(default=0, init=False)
    listening: int = attrs.field(default=0, init=False)
    # Where a client of before 2026-07-28 hears of changes.
    channel: ServerSession | None = attrs.field(default=None, init=False)
    telling: set[asyncio.Task[None]] = attrs.field(factory=set, init=False)
    # Which calls are of one message is not known, nor of one model.
    turns: Turns = attrs.field(init=False)
    bus: InMemorySubscriptionBus = attrs.field(factory=InMemorySubscriptionBus, init=False)
    _handler: ListenHandler = attrs.field(init=False)
    # What it was listed, and for which list it was told to ask since; None for not at all.
    _held: frozenset[str] | None = attrs.field(default=None, init=False)
    _told: frozenset[str] | None = attrs.field(default=None, init=False)
    _deaf: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.turns = Turns(self.session, of_one_turn=False, control_flow=CONTROL_FLOW)
        shared = self.session.exposed
        self.own = ToolView(self.session.tools, exposure=shared.exposure, mode=shared.mode)
        self.exposed = shared
        self._handler = ListenHandler(self.bus, max_subscriptions=_MAX_STREAMS)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The names of the tools that the client should see now."""
        mode = self.own.mode
        narrows = mode == "force_dynamic" or (mode == "auto" and self.known and self.listening)
        return self.exposed.current.names if narrows and not self._deaf else self.session.tools.names

    def listed(self, message: str | None = None) -> tuple[str, ...]:
        """Return the names of the tools to list; *message* is what the user wrote, where the request says it."""
        if message is not None:
            self._choose(message)
        names = self.wanted
        self._held, self._told = frozenset(names), None
        _log.info("the client %s is listed %d of %d tools", self.name, len(names), len(self.session.tools))
        return names

    def observe(self, message: object) -> None:
        """Choose the tools for what the user wrote, and tell the client where its list has changed."""
        self._choose(message)
        self.offer()

    def adopt(self) -> None:
        """Go by the session's choice of tools, and tell the client where its list has changed."""
        self.exposed = self.session.exposed
        self.offer()

    async def listen(
        self, ctx: ServerRequestContext[Any], params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve a stream on which the client hears of changes (2026-07-28)."""
        counts = bool(params.notifications.tools_list_changed)
        self.listening += counts
        if counts:
            # Who is new here may have a list of before; the notice goes out after the stream has begun.
            self._deaf, self._told = False, None
            self.offer(unknown=self.known)
        try:
            return await self._handler(ctx, params)
        finally:
            self.listening -= counts

    def close(self) -> None:
        """End the streams on which the client listens."""
        self._handler.close()
        for task in self.telling:
            task.cancel()

    def offer(self, *, unknown: bool = False) -> None:
        """Tell the client to ask for its list, where that has changed or, with *unknown*, may have."""
        wanted = frozenset(self.wanted)
        if wanted == self._held or (self._held is None and not unknown):
            self._told = None
            return
        if wanted == self._told or (self.channel is None and not self.listening):
            return
        self._told = wanted
        # A client that does not read must not hold up the request at hand.
        task = asyncio.get_running_loop().create_task(self._tell(self.channel))
        self.telling.add(task)
        task.add_done_callback(self.telling.discard)

    def _choose(self, message: object) -> None:
        self.exposed = self.own
        self.own.for_message(message)

    async def _tell(self, channel: ServerSession | None) -> None:
        try:
            async with asyncio.timeout(LIMIT):
                if channel is not None:
                    await channel.send_tool_list_changed()
                else:
                    await self.bus.publish(ToolsListChanged())
        except Exception as error:  # noqa: BLE001 - whatever it is, the client did not hear it
            self._deaf, self._told = True, None
            _log.warning("the client %s could not be told of a change: %s", self.name, type(error).__name__)
        else:
            self._deaf = False
            _log.info("the client %s is told that the list of tools has changed", self.name)


class Clients:
    """All clients of a server: those of connections, those that listen, and those heard of last over HTTP."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._number = 0
        # Over stdio and in-process by themselves, one a connection. Over HTTP by what they are known, used last behind.
        self._clients: dict[Client | tuple[str, str], Client] = {}

    def connect(self) -> Client:
        """Return a client for a new connection."""
        client = self._new()
        self._clients[client] = client
        return client

    def disconnect(self, client: Client) -> bool:
        """Forget a client whose connection has ended; tell whether that was the last one."""
        self._end(client)
        is_last = not any(isinstance(key, Client) for key in self._clients)
        # Then nobody serves clients over HTTP any more.
        for key in [*self._clients] if is_last else ():
            self._end(key)
        return is_last

    def of(self, ctx: ServerRequestContext[Client]) -> Client:
        """Return the client that a request comes from."""
        # Over stdio that of the connection; over HTTP known by the session of the handshake or, from 2026-07-28 on,
        # where there is none, by what it calls itself in every request; else nothing is known of it.
        if ctx.request is None:
            client = ctx.lifespan_context
        else:
            key = _key(ctx)
            client = self._new() if key is None else self._known(key)
            client.known = key is not None
            if key is not None and key[0] == "session":
                _when_ended(ctx, lambda: self._end(key))
        client.channel = None if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else ctx.session
        return client

    async def listen(
        self, ctx: ServerRequestContext[Client], params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve a stream; for as long as it is open, its client is not forgotten."""
        client = self.of(ctx)
        if not client.streams and sum(one.streams > 0 for one in self) >= MAX_CLIENTS:
            raise MCPError(types.INTERNAL_ERROR, "too many clients listen to changes")
        nobody = ("stream", client.name)
        if not client.known:
            self._clients[nobody] = client
        client.streams += 1
        try:
            return await client.listen(ctx, params)
        finally:
            client.streams -= 1
            self._clients.pop(nobody, None)

    def close(self) -> None:
        """End all streams."""
        for client in self:
            client.close()

    def __iter__(self) -> Iterator[Client]:
        """Go through the clients that can be told of changes."""
        return iter([*self._clients.values()])

    def _new(self) -> Client:
        self._number += 1
        return Client(str(self._number), self._session)

    def _known(self, key: tuple[str, str]) -> Client:
        client = self._clients.pop(key, None)
        if client is None:
            client = self._new()
            idle = [one for one, known in self._clients.items() if isinstance(one, tuple) and not known.streams]
            if len(idle) >= MAX_CLIENTS:
                del self._clients[idle[0]]
        self._clients[key] = client
        return client

    def _end(self, key: Client | tuple[str, str]) -> None:
        client = self._clients.pop(key, None)
        if client is not None:
            client.close()


def _key(ctx: ServerRequestContext[Any]) -> tuple[str, str] | None:
    """Return by what a client over HTTP is known."""
    if ctx.request is not None and ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        session = ctx.request.headers.get(MCP_SESSION_ID_HEADER)
        return None if session is None else ("session", session)
    capabilities = ctx.session.client_capabilities
    settings = ((capabilities.extensions if capabilities else None) or {}).get(EXTENSION)
    handle = settings.get("client") if isinstance(settings, dict) else None
    return ("handle", handle) if isinstance(handle, str) and 0 < len(handle) <= _MAX_HANDLE else None


def _when_ended(ctx: ServerRequestContext[Any], callback: Callable[[], None]) -> None:
    """Have a function called when the SDK ends the connection of a request; only a connection's first one counts."""
    # The SDK has no public attribute for the connection. Without it, a client is removed only when there are too many.
    connection = getattr(ctx.session, "_connection", None)
    if isinstance(connection, Connection) and connection.state.setdefault(_IS_HEARD, callback) is callback:
        connection.exit_stack.callback(callback)
