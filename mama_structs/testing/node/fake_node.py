"""
Fake Structs node for tests: it serves the chain's REST interface over real sockets.

Pure modules (`World`, the routes, `Fault`) compute the answers. This module delays, counts and sends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
import warnings
from collections import Counter, UserDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import attrs
from aiohttp import web

from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import with_call_hints
from mama_structs._internal.validation import check_integer
from mama_structs.errors import InvalidArgument
from mama_structs.references.rate_limit import clear_cooldown
from mama_structs.testing.node.faults import Delivery, Fault, FaultAnswer, Faults
from mama_structs.testing.node.routes import (
    NOT_FOUND,
    ErrorAnswer,
    RouteMatch,
    check_request_name,
    compute_body,
    make_not_implemented_error,
    match_route,
)
from mama_structs.testing.node.world import World

HEIGHT_HEADER: Final = "Grpc-Metadata-X-Cosmos-Block-Height"

# gRPC code of a not-found answer, by the HTTP status that the test has chosen. The real chain sends 500.
_NOT_FOUND_CODES: Final = {500: 2, 404: 5, 200: 2}
_SHUTDOWN_SECONDS: Final = 0.1
_JOIN_SECONDS: Final = 10.0
_MAX_PORT: Final = 65535

T = TypeVar("T")


@attrs.frozen
class NodeRequest:
    """
    A request received by the node.

    Args:
        method: The HTTP method.
        path: The path, percent-decoded.
        query: The query's parameters.
        headers: The headers, their names in lower case.
        names: The names by which tests count, delay or fail the request.

    """

    method: str
    path: str
    query: Mapping[str, str] = attrs.field(factory=dict)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    names: tuple[str, ...] = attrs.field(default=(), repr=False)


Latency = float | Callable[[NodeRequest], float]


class LatencyTable(UserDict[str, Latency]):
    """Latency in seconds by request name. Names and values are validated when they are set."""

    def __setitem__(self, name: str, latency: Latency) -> None:
        if not callable(latency):
            _check_seconds(f"latency[{name!r:.80}]", latency)
        super().__setitem__(check_request_name("latency", name), latency)

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]  # UserDict's version bypasses __setitem__
        self.update(other)
        return self


def _make_latency_table(latency: Latency | Mapping[str, Latency]) -> LatencyTable:
    """Return the table for the argument *latency*; a number or a function applies to all requests."""
    if isinstance(latency, Mapping):
        return LatencyTable(latency)
    if not callable(latency):
        _check_seconds("latency", latency)
    return LatencyTable({"*": latency})


def _check_seconds(argument: str, seconds: object) -> None:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < math.inf:
        raise InvalidArgument(f"{argument} must be 0 or more seconds or a function of the request, got {seconds!r:.80}")


@with_call_hints(peer_names.FAKE_NODE)
class FakeNode:
    """
    A node that answers like the chain's REST interface. Tests can inject faults.

    An async context manager; `in_thread` is for code without an event loop.

    Args:
        world: The data to answer from; `World.generate` with its defaults if neither it nor *entities* is given.
        entities: A node with exactly these entities: id to record or to complete answer.
        latency: Seconds before every answer, or a mapping from a name (a path, an id, a route's pattern, a type,
            or ``*``) to seconds or to a function of the request; the most specific name applies.
            `Faults.add` lists the valid names.
        faults: Faults of every request from the start; add later ones through the attribute of this name.
        host: The address to listen on.
        port: The port to listen on; 0 for any free port.
        height: The block height at the start.
        block_time: Seconds after which the height advances automatically; None for never.
        clock: Returns the seconds for *block_time*.
        not_found_status: The HTTP status of a not-found: 500 as on the chain, 404, or 200 as in its documentation.

    Attributes:
        in_flight: Number of received requests that are not yet answered or cancelled by their client.
        most_in_flight: Maximum number of concurrent requests in flight.
        bytes_sent: Number of sent body bytes, after encoding.

    Raises:
        InvalidArgument: An argument is invalid; the message names it.

    """

    def __init__(
        self,
        world: World | None = None,
        *,
        entities: Mapping[str, Mapping[str, Any]] | None = None,
        latency: Latency | Mapping[str, Latency] = 0.0,
        faults: Iterable[Fault] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        height: int = 1_000_000,
        block_time: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        not_found_status: int = 500,
    ) -> None:
        if world is not None and entities is not None:
            raise InvalidArgument("world and entities exclude each other, got both")
        if world is not None and not isinstance(world, World):
            raise InvalidArgument(f"world must be a World, got {world!r:.80}", hint="entities=... takes plain records")
        if block_time is not None and (
            not isinstance(block_time, int | float) or isinstance(block_time, bool) or not 0 < block_time < math.inf
        ):
            raise InvalidArgument(f"block_time must be more than 0 seconds or None, got {block_time!r:.80}")
        if not isinstance(host, str) or not host:
            raise InvalidArgument(f"host must be a name or an address, got {host!r:.80}")
        check_integer("port", port, maximum=_MAX_PORT, separator=",")
        check_integer("height", height, separator=",")
        if not callable(clock):
            raise InvalidArgument(f"clock must be a function that returns seconds, got {clock!r:.80}")
        table = _make_latency_table(latency)
        if world is None:
            world = World.generate() if entities is None else World.from_entities(entities)
        self.data = world
        self._latency = table
        self.faults: Faults = Faults()
        if given := tuple(faults):
            self.faults.add(*given)
        self.not_found_status = not_found_status
        self._host, self._port = host, port
        self._height, self._block_time, self._clock = height, block_time, clock
        self._started_at = clock()
        self.in_flight: int = 0
        self.most_in_flight: int = 0
        self.bytes_sent: int = 0
        self._requests: list[NodeRequest] = []
        # Guards the counters, because a test may read and reset them in another thread.
        self._lock = threading.Lock()
        self._server: web.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._url: str | None = None
        self._handler_tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    def world(cls, *, seed: int = 0, players: int = 40, **options: Any) -> Self:
        """
        Return a node with a generated world. *options* are further arguments of the constructor.

        Args:
            seed: The seed of the world.
            players: The number of players.
            **options: Arguments of `FakeNode`.

        """
        return cls(World.generate(seed=seed, players=players), **options)

    def __repr__(self) -> str:
        players = len(self.data.tables.get("player", ()))
        return f"<FakeNode {self._url or 'not open'}, {players} player{'s' * (players != 1)}>"

    def __del__(self) -> None:
        """Emit a `ResourceWarning` if the node was not closed."""
        # If the constructor has rejected an argument, the object has no attributes.
        if getattr(self, "_runner", None) is not None:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=1)

    # Inspection by tests

    @property
    def url(self) -> str:
        """The base URL, such as ``http://127.0.0.1:1317``, while the node is open."""
        if self._url is None:
            raise InvalidArgument("the node is not open", hint="async with FakeNode.world() as node: ...")
        return self._url

    @property
    def height(self) -> int:
        """The block height that the node currently reports."""
        passed = 0 if self._block_time is None else int((self._clock() - self._started_at) / self._block_time)
        return self._height + passed

    @property
    def latency(self) -> LatencyTable:
        """
        Seconds before each answer, by name of a request; see the argument of this name.

        It may be set at any time, to seconds, to a function or to a mapping. Invalid values raise `InvalidArgument`.
        """
        return self._latency

    @latency.setter
    def latency(self, latency: Latency | Mapping[str, Latency]) -> None:
        self._latency = _make_latency_table(latency)

    @property
    def not_found_status(self) -> int:
        """The HTTP status of not-found answers. It may be changed at any time."""
        return self._not_found_status

    @not_found_status.setter
    def not_found_status(self, status: int) -> None:
        if not isinstance(status, int) or status not in _NOT_FOUND_CODES:
            raise InvalidArgument(f"not_found_status must be 500, 404 or 200, got {status!r}")
        self._not_found_status = status

    @property
    def requests(self) -> list[NodeRequest]:
        """All requests since the last reset, oldest first."""
        with self._lock:
            return list(self._requests)

    @property
    def requests_by_path(self) -> Counter[str]:
        """The number of requests since the last reset, by path."""
        return Counter(request.path for request in self.requests)

    @property
    def open_connections(self) -> int:
        """The number of open connections, including idle keep-alive connections."""
        return 0 if self._server is None else len(self._server.connections)

    def count(self, name: str) -> int:
        """
        Return the number of requests with this name since the last reset.

        A name is a path, an id, a route's pattern, a type, or ``*``.

        Args:
            name: The name of a route.

        """
        return sum(name in request.names for request in self.requests)

    def reset_counters(self) -> None:
        """Clear the recorded requests. The number of requests in flight is not reset."""
        with self._lock:
            self._requests.clear()
            self.most_in_flight = self.in_flight
            self.bytes_sent = 0

    def advance(self, *, blocks: int = 1) -> None:
        """Advance the block height."""
        check_integer("blocks", blocks, separator=",")
        self._height += blocks

    # Lifecycle

    async def start(self) -> Self:
        """
        Start listening. ``async with`` calls this.

        Raises:
            InvalidArgument: The node is open already.

        """
        if self._runner is not None:
            raise InvalidArgument("the node is open already")
        # If a client disconnects, its handler must be cancelled. Otherwise `in_flight` would stay too high.
        self._server = web.Server(self._handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=_SHUTDOWN_SECONDS)
        try:
            await self._runner.setup()
            site = web.TCPSite(self._runner, self._host, self._port)
            await site.start()
        except BaseException:
            await self.close()
            raise
        # Ask the socket for the port, because the argument may have been 0.
        port = self._runner.addresses[0][1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._url = f"http://{host}:{port}"
        clear_cooldown(self._url)  # An earlier node on the same port may have left a cooldown.
        return self

    async def close(self) -> None:
        """Stop listening and cancel all requests in flight. Idempotent."""
        runner, self._runner, self._url = self._runner, None, None
        if runner is None:
            return
        for task in self._handler_tasks:
            task.cancel()
        await runner.cleanup()
        self._server = None

    async def __aenter__(self) -> Self:
        """Start listening."""
        return await self.start()

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop listening."""
        await self.close()

    @contextlib.contextmanager
    def in_thread(self) -> Iterator[Self]:
        """
        Run the node in a thread with its own event loop.

        Use this in code that has no event loop, or that must not share its loop with the node.

        Returns:
            A context manager that provides the node.

        """
        loop = asyncio.new_event_loop()

        def main() -> None:
            try:
                loop.run_forever()
                loop.run_until_complete(loop.shutdown_asyncgens())
            finally:
                # Close the loop in this thread, because the calling thread may be running another loop.
                loop.close()

        def run(coroutine: Coroutine[Any, Any, T]) -> T:
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result(_JOIN_SECONDS)

        # Use a daemon thread, so that Ctrl-C ends the process even while a test uses the node.
        thread = threading.Thread(target=main, name="mama_structs FakeNode", daemon=True)
        thread.start()
        try:
            run(self.start())
            try:
                yield self
            finally:
                run(self.close())
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_JOIN_SECONDS)

    # Request handling

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.path
        query = {name: request.rel_url.query[name] for name in request.rel_url.query}
        headers = {name.lower(): value for name, value in request.headers.items()}
        matched = match_route(path)
        seen = NodeRequest(request.method, path, query, headers, matched.names)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in a task
        self._handler_tasks.add(task)
        with self._lock:
            self._requests.append(seen)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            answer = attrs.evolve(self._answer(seen, matched), delay=self._get_latency(seen))
            for fault in self.faults.take(seen.names):
                answer = fault.edit(answer)
            if answer.delivery is Delivery.HUNG:
                await asyncio.Event().wait()
            if answer.delay > 0:
                await asyncio.sleep(answer.delay)
        finally:
            # Decrement before the answer is sent, because the client may send its next request when the answer arrives.
            with self._lock:
                self.in_flight -= 1
            self._handler_tasks.discard(task)
        return await self._send(request, answer)

    def _answer(self, request: NodeRequest, route_match: RouteMatch) -> FaultAnswer:
        height = self.height
        headers = {HEIGHT_HEADER: str(height)}
        try:
            if request.method != "GET":
                raise make_not_implemented_error()
            body = compute_body(self.data, route_match, request.query, height=height)
            return FaultAnswer.json(200, body, headers=headers)
        except ErrorAnswer as refusal:
            status, code = refusal.status, refusal.code
            if refusal.message == NOT_FOUND:
                status, code = self.not_found_status, _NOT_FOUND_CODES[self.not_found_status]
            return FaultAnswer.json(status, {"code": code, "message": refusal.message, "details": []}, headers=headers)

    def _get_latency(self, request: NodeRequest) -> float:
        for name in request.names:
            latency = self._latency.get(name)
            if latency is not None:
                return latency(request) if callable(latency) else latency
        return 0.0

    async def _send(self, request: web.BaseRequest, answer: FaultAnswer) -> web.StreamResponse:
        if answer.delivery is Delivery.WHOLE:
            self._count_sent_bytes(answer.body)
            return web.Response(status=answer.status, headers=answer.headers, body=answer.body)
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        if answer.delivery is Delivery.CUT:
            half = answer.body[: len(answer.body) // 2]
            response.content_length = len(answer.body)
            await response.prepare(request)
            await response.write(half)
            self._count_sent_bytes(half)
        if request.transport is not None:  # pragma: no branch - None only if the client disconnected first
            request.transport.abort()
        return response

    def _count_sent_bytes(self, body: bytes) -> None:
        with self._lock:
            self.bytes_sent += len(body)
