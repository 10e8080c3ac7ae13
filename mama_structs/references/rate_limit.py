"""
Client-side rate limiting: a concurrency limit and a cooldown (Retry-After) per node.

All clients of one event loop share the limiter of a node. Limiters of different loops share only its cooldown.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Final, TypeAlias

import attrs

from mama_structs.errors import RateLimited
from mama_structs.references.results import Attempt

Clock: TypeAlias = Callable[[], float]

# Caps Retry-After: a misconfigured proxy must not block a node for the lifetime of the process.
LONGEST: Final = 3600.0
_NODES: Final = 1024
# Below timer resolution; treat smaller remainders as zero.
_NOTHING: Final = 1e-6


class Closure:
    """
    Remaining time, in monotonic seconds, during which a node must not be queried.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._left = 0.0
        self._seen = -math.inf

    def left(self, clock: Clock) -> float:
        """Return the remaining seconds, or 0 if the node may be queried."""
        with self._guard:
            self._pass(clock())
            return self._left if self._left > _NOTHING else 0.0

    def extend(self, seconds: float, clock: Clock) -> None:
        """Extend the cooldown to at least *seconds* from now."""
        with self._guard:
            self._pass(clock())
            self._left = max(self._left, min(seconds, LONGEST))

    def end(self) -> None:
        """End the cooldown."""
        with self._guard:
            self._left = 0.0

    def _pass(self, now: float) -> None:
        # Ignore clocks that step backwards.
        self._left = max(0.0, self._left - max(0.0, now - self._seen))
        self._seen = now


@attrs.define(eq=False)
class Gate:
    """Concurrency limit and cooldown for the queries of one event loop to one node."""

    closure: Closure
    clock: Clock
    # The smallest limit of all registered clients.
    limit: int = 1
    # Number of consecutive rate-limit responses. After one, requests are sent one at a time.
    refusals: int = 0
    _limits: weakref.WeakKeyDictionary[object, int] = attrs.field(factory=weakref.WeakKeyDictionary, init=False)
    _busy: int = attrs.field(default=0, init=False)
    _queue: deque[asyncio.Future[None]] = attrs.field(factory=deque, init=False)
    _trial: asyncio.Future[None] | None = attrs.field(default=None, init=False)
    _period: int = attrs.field(default=0, init=False)

    def join(self, user: object, limit: int) -> None:
        """
        Register a client and its maximum number of concurrent queries.

        It is unregistered explicitly or when it is garbage-collected.
        """
        self._limits[user] = limit
        self.limit = min(self._limits.values())

    def leave(self, user: object) -> None:
        """Unregister a client. Idempotent."""
        self._limits.pop(user, None)
        self.limit = min(self._limits.values(), default=1)
        self._admit()

    def closed_for(self) -> float:
        """Return the remaining cooldown in seconds, or 0."""
        return self.closure.left(self.clock)

    @contextlib.asynccontextmanager
    async def slot(self, attempt: Attempt) -> AsyncIterator[None]:
        """Hold a query slot for the duration of the block. Waiters are served in FIFO order."""
        if self._busy < self.limit and not self._queue:
            self._busy += 1
        else:
            attempt.gate_waits += 1
            await self._queued()
        try:
            yield
        finally:
            self._busy -= 1
            self._admit()

    @contextlib.asynccontextmanager
    async def turn(
        self, attempt: Attempt, *, left: Callable[[], float], sleep: Callable[[float], Awaitable[None]]
    ) -> AsyncIterator[int]:
        """
        Wait for the end of the cooldown and yield the number of the current period.

        Raise `RateLimited` if the cooldown is not shorter than the time that *left* returns.
        """
        waited = False
        while (closed := self.closed_for()) or self._trial is not None:
            if closed and closed >= left():
                message = "the node refuses more requests for now, and was not asked"
                raise RateLimited(message, retry_after=closed, hint="ask again later")
            attempt.gate_waits += not waited
            waited = True
            if closed:
                await sleep(closed)
            elif self._trial is not None:
                await asyncio.wait([self._trial])
        attempt.requests += 1
        if not self.refusals:
            yield self._period
            return
        self._trial = trial = asyncio.get_running_loop().create_future()
        try:
            yield self._period
        finally:
            self._trial = None
            trial.set_result(None)

    def refuse(self, period: int, *, asked: float | None, pause: float) -> None:
        """
        Start a cooldown after a rate-limit response to a request of *period*.

        *asked* is the Retry-After of the node, *pause* the client's own backoff, both in seconds.
        """
        # Concurrent requests that are rejected together count as one rejection.
        if is_news := period == self._period:
            self._period += 1
            self.refusals += 1
        if is_news or asked is not None:
            self.closure.extend(max(pause if is_news else 0.0, asked or 0.0), self.clock)

    def accept(self, period: int) -> None:
        """Record that a request of *period* was not rate limited."""
        if period == self._period:
            self.refusals = 0

    async def _queued(self) -> None:
        admitted = asyncio.get_running_loop().create_future()
        self._queue.append(admitted)
        try:
            await admitted
        except BaseException:
            if admitted.cancelled():
                # Admitted waiters are already removed from the queue.
                with contextlib.suppress(ValueError):
                    self._queue.remove(admitted)
            else:
                # The waiter was admitted and cancelled in the same iteration of the event loop.
                self._busy -= 1
                self._admit()
            raise

    def _admit(self) -> None:
        while self._queue and self._busy < self.limit:
            first = self._queue.popleft()
            if not first.done():
                self._busy += 1
                first.set_result(None)


# A limiter is deleted with its last client, but the cooldown of its node remains.
_gates: weakref.WeakValueDictionary[tuple[asyncio.AbstractEventLoop, Hashable], Gate] = weakref.WeakValueDictionary()
_closures: Final[dict[Hashable, Closure]] = {}


def gate_to(node: Hashable, *, is_shared: bool = True, clock: Clock = time.monotonic) -> Gate:
    """
    Return the running loop's limiter for *node*.

    An unshared limiter has a separate cooldown.
    """
    key = (asyncio.get_running_loop(), node)
    gate = _gates.get(key)
    if gate is None:
        gate = _gates[key] = Gate(_closure_of(node, clock) if is_shared else Closure(), clock)
    return gate


def reopen(node: Hashable) -> None:
    """Clear the cooldown of *node*, because another server may now listen at its address."""
    closure = _closures.get(node)
    if closure is not None:
        closure.end()


def _closure_of(node: Hashable, clock: Clock) -> Closure:
    if len(_closures) >= _NODES:
        for other in [other for other, closure in list(_closures.items()) if not closure.left(clock)]:
            _closures.pop(other, None)
    return _closures.setdefault(node, Closure())


if hasattr(os, "register_at_fork"):  # pragma: no branch - not available on Windows
    # A lock held by another thread at the fork would stay locked in the child process.
    os.register_at_fork(after_in_child=_closures.clear)
