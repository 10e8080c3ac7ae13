"""The clients of a server: who asks, what each is shown, and how each is told of a change."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

import mcp_types as types
from mcp.server import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mama_structs.adapters.mcp.exchange import client_handle, when_ended
from mama_structs.adapters.mcp.following import LIMIT, Following
from mama_structs.tools.exposure import ToolView

_log = logging.getLogger("mama_structs")

# Clients over HTTP that are known at a time; who is forgotten is told to ask for the list again.
MAX_CLIENTS: Final = 1_000
_MAX_STREAMS: Final = 8
_MAX_ANONYMOUS_STREAMS: Final = 1024


class Client:
    """
    One client, for as long as it is connected.

    Args:
        name: For the log.
        shared: The session's choice of tools, which holds until the client says a message of its own.
        own: The choice for the messages of this client.
        following: What is known of it.
        clock: Seconds that never step back.
        streams: How many streams of changes it may listen to at a time.

    """

    def __init__(
        self,
        name: str,
        *,
        shared: ToolView,
        own: ToolView,
        following: Following,
        clock: Callable[[], float],
        streams: int = _MAX_STREAMS,
    ) -> None:
        self.name: str = name
        self.following: Following = following
        self._shared = shared
        self._own = own
        self._exposed = shared
        self._clock = clock
        self._bus = InMemorySubscriptionBus()
        self._streams = ListenHandler(self._bus, max_subscriptions=streams)
        self._listening = 0
        # Where a client of before 2026-07-28 hears of changes.
        self._channel: ServerSession | None = None
        self._telling: set[asyncio.Task[None]] = set()

    def seen(self, ctx: ServerRequestContext[Any]) -> None:
        """Take note of how the client can be told of changes."""
        self._channel = None if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else ctx.session

    @property
    def worth(self) -> tuple[bool, bool]:
        """
        How bad it would be to forget the client: that of a higher worth is forgotten later.

        One with a narrowed list does not get the rest of the tools back unless it hears of it and asks. One that
        listens has its stream cut, and opens another.
        """
        return self.following.is_narrowed, bool(self._listening)

    def listed(self, full: tuple[str, ...], message: str | None = None) -> tuple[str, ...]:
        """
        Return the names of the tools to list.

        Args:
            full: All names.
            message: What the user wrote, where this request says it.

        """
        is_first = self.following.held is None
        if self.following.asked(now=self._clock()):
            if message is not None:
                self._choose(message)
            names, message = self._exposed.current.names, None
        else:
            names = full
        self.following.listed(frozenset(names), narrowed=len(names) < len(full))
        _log.info("the client %s is listed %d of %d tools", self.name, len(names), len(full))
        if message is not None:
            self.observe(message)
        elif is_first:
            self._offer()
        return names

    def observe(self, message: object) -> None:
        """
        Choose the tools for what the user wrote, and tell the client where the list has changed.

        Args:
            message: See `Exposure.detect`.

        """
        self._choose(message)
        self._offer()

    def remind(self) -> None:
        """Tell the client that the list has changed, where it may hold one of which it was not told in time."""
        if self.following.is_owed:
            self._offer()

    def adopt(self) -> None:
        """Go by the session's choice of tools, and tell the client where the list has changed."""
        self._exposed = self._shared
        self._offer()

    async def listen(
        self, ctx: ServerRequestContext[Any], params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve a stream on which the client hears of changes (2026-07-28)."""
        counts = bool(params.notifications.tools_list_changed)
        self._listening += counts
        if counts:
            # The notice goes out after the stream has begun.
            self.remind()
        try:
            return await self._streams(ctx, params)
        finally:
            self._listening -= counts

    async def dismiss(self) -> None:
        """Have the client ask for the list again, and end its streams; nothing is known of it afterwards."""
        if self._channel is not None or self._listening:
            await self._tell(self._channel)
        self.close()

    def close(self) -> None:
        """End the streams on which the client listens."""
        self._streams.close()
        for task in self._telling:
            task.cancel()

    def _choose(self, message: object) -> None:
        self._exposed = self._own
        self._own.for_message(message)

    def _offer(self) -> None:
        wanted = self.following.wanted(frozenset(self._exposed.current.names), now=self._clock())
        if not wanted and not self.following.is_owed:
            return
        if self._channel is None and not self._listening:
            self.following.failed()
            _log.info("the client %s listens to no changes and keeps the list that it has", self.name)
            return
        self.following.telling()
        # A client that does not read must not hold up the request at hand.
        task = asyncio.get_running_loop().create_task(self._tell(self._channel))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self, channel: ServerSession | None) -> None:
        try:
            async with asyncio.timeout(LIMIT):
                if channel is not None:
                    await channel.send_tool_list_changed()
                else:
                    await self._bus.publish(ToolsListChanged())
        except Exception as error:  # noqa: BLE001 - whatever it is, the client did not hear it
            self.following.failed()
            _log.warning("the client %s could not be told of a change: %s", self.name, type(error).__name__)
        else:
            _log.info("the client %s is told that the list of tools has changed", self.name)


class Clients:
    """
    All clients of a server.

    Args:
        make: Makes a client: takes its name, whether its list may be narrowed, and how many streams it may have.

    """

    def __init__(self, make: Callable[..., Client]) -> None:
        self._make = make
        self._number = 0
        # Over stdio and in-process: one a connection.
        self._connected: set[Client] = set()
        # Over HTTP, the one that was heard of last at the end.
        self._remembered: OrderedDict[tuple[str, str], Client] = OrderedDict()
        self._leaving: set[asyncio.Task[None]] = set()
        self._anonymous = make("anonymous", follows=False, streams=_MAX_ANONYMOUS_STREAMS)

    def connect(self) -> Client:
        """Return a client for a new connection."""
        self._number += 1
        client = self._make(str(self._number))
        self._connected.add(client)
        return client

    def disconnect(self, client: Client) -> None:
        """Forget a client whose connection has ended."""
        self._connected.discard(client)
        client.close()

    def of(self, ctx: ServerRequestContext[Client]) -> Client:
        """
        Return the client that a request comes from.

        Over stdio that is the one of the connection. Over HTTP it is known by the session of the handshake, or from
        2026-07-28 on, where there is none, by what it calls itself in every request. One that does not is anybody.
        """
        if ctx.request is None:
            client = ctx.lifespan_context
        elif ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            session = ctx.request.headers.get(MCP_SESSION_ID_HEADER)
            client = self._named("session", session)
            when_ended(ctx, lambda: self._end("session", session))
        else:
            client = self._named("handle", client_handle(ctx))
        client.seen(ctx)
        return client

    def close(self) -> None:
        """End all streams."""
        for client in self:
            client.close()
        self._anonymous.close()
        for task in self._leaving:
            task.cancel()

    def forget(self) -> None:
        """Forget all clients over HTTP: nobody serves them any more."""
        for key in tuple(self._remembered):
            self._end(*key)

    def __iter__(self) -> Iterator[Client]:
        """Go through the clients whose lists may be narrowed."""
        return iter([*self._connected, *self._remembered.values()])

    def _named(self, kind: str, name: str | None) -> Client:
        if name is None:
            return self._anonymous
        key = kind, name
        if key not in self._remembered:
            self._number += 1
            if len(self._remembered) >= MAX_CLIENTS:
                self._make_room()
            # It may have been here before, and have a list of then.
            self._remembered[key] = self._make(str(self._number), owed=True)
        self._remembered.move_to_end(key)
        return self._remembered[key]

    def _make_room(self) -> None:
        # Of those that are worth the same the first, which was heard of longest ago.
        client = self._remembered.pop(min(self._remembered, key=lambda key: self._remembered[key].worth))
        if not client.following.is_narrowed:
            client.close()
            return
        task = asyncio.get_running_loop().create_task(client.dismiss())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _end(self, kind: str, name: str | None) -> None:
        client = self._remembered.pop((kind, name), None) if name is not None else None
        if client is not None:
            client.close()
