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
from mama_structs.references.results import QueryAttempt

Clock: TypeAlias = Callable[[], float]

# Caps Retry-After, so that a misconfigured proxy cannot block a node for the lifetime of the process.
MAX_COOLDOWN_SECONDS: Final = 3600.0
MAX_TRACKED_NODES: Final = 1024
# Below the timer resolution, so treat smaller remainders as zero.
MIN_COOLDOWN_SECONDS: Final = 1e-6


class Cooldown:
    """
    Remaining time, in monotonic seconds, during which a node must not be queried.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._remaining = 0.0
        self._last_time = -math.inf

    def remaining(self, clock: Clock) -> float:
        """Return the remaining seconds, or 0 if the node may be queried."""
        with self._lock:
            self._elapse(clock())
            return self._remaining if self._remaining > MIN_COOLDOWN_SECONDS else 0.0

    def extend(self, seconds: float, clock: Clock) -> None:
        """Extend the cooldown to at least *seconds* from now."""
        with self._lock:
            self._elapse(clock())
            self._remaining = max(self._remaining, min(seconds, MAX_COOLDOWN_SECONDS))

    def clear(self) -> None:
        """End the cooldown."""
        with self._lock:
            self._remaining = 0.0

    def _elapse(self, now: float) -> None:
        # Ignore clocks that step backwards.
        self._remaining = max(0.0, self._remaining - max(0.0, now - self._last_time))
        self._last_time = now


@attrs.define(eq=False)
class RateLimiter:
    """Concurrency limit and cooldown for the queries of one event loop to one node."""

    cooldown: Cooldown
    clock: Clock
    # The smallest limit of all registered clients.
    max_concurrent: int = 1
    # Number of consecutive rate-limit responses. Until the next success, requests are sent one at a time.
    consecutive_rejections: int = 0
    _client_limits: weakref.WeakKeyDictionary[object, int] = attrs.field(factory=weakref.WeakKeyDictionary, init=False)
    _slots_in_use: int = attrs.field(default=0, init=False)
    _slot_waiters: deque[asyncio.Future[None]] = attrs.field(factory=deque, init=False)
    _probe: asyncio.Future[None] | None = attrs.field(default=None, init=False)
    _period: int = attrs.field(default=0, init=False)

    def register(self, client: object, max_concurrent: int) -> None:
        """
        Register a client and its maximum number of concurrent queries.

        It is unregistered explicitly or when it is garbage-collected.
        """
        self._client_limits[client] = max_concurrent
        self.max_concurrent = min(self._client_limits.values())

    def unregister(self, client: object) -> None:
        """Unregister a client. Idempotent."""
        self._client_limits.pop(client, None)
        self.max_concurrent = min(self._client_limits.values(), default=1)
        self._admit_waiters()

    def remaining_cooldown(self) -> float:
        """Return the remaining cooldown in seconds, or 0."""
        return self.cooldown.remaining(self.clock)

    @contextlib.asynccontextmanager
    async def acquire_slot(self, attempt: QueryAttempt) -> AsyncIterator[None]:
        """Hold a query slot for the duration of the block. Waiters are served in FIFO order."""
        if self._slots_in_use < self.max_concurrent and not self._slot_waiters:
            self._slots_in_use += 1
        else:
            attempt.gate_waits += 1
            await self._wait_for_slot()
        try:
            yield
        finally:
            self._slots_in_use -= 1
            self._admit_waiters()

    @contextlib.asynccontextmanager
    async def wait_for_turn(
        self,
        attempt: QueryAttempt,
        *,
        remaining_seconds: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> AsyncIterator[int]:
        """
        Wait for the end of the cooldown and yield the number of the current period.

        The first rejection in a period ends it and begins the next one.
        Raise `RateLimited` if the cooldown is not shorter than the time that *remaining_seconds* returns.
        """
        waited = False
        while (cooldown_seconds := self.remaining_cooldown()) or self._probe is not None:
            if cooldown_seconds and cooldown_seconds >= remaining_seconds():
                message = "the node refuses more requests for now, and was not asked"
                raise RateLimited(message, retry_after=cooldown_seconds, hint="ask again later")
            attempt.gate_waits += not waited
            waited = True
            if cooldown_seconds:
                await sleep(cooldown_seconds)
            elif self._probe is not None:
                await asyncio.wait([self._probe])
        attempt.requests += 1
        if not self.consecutive_rejections:
            yield self._period
            return
        self._probe = trial = asyncio.get_running_loop().create_future()
        try:
            yield self._period
        finally:
            self._probe = None
            trial.set_result(None)

    def record_rejection(self, period: int, *, retry_after: float | None, backoff_seconds: float) -> None:
        """
        Start a cooldown after a rate-limit response to a request of *period*.

        *retry_after* is the Retry-After of the node, *backoff_seconds* the client's own backoff, both in seconds.
        """
        # Concurrent requests that are rejected together count as one rejection.
        if is_first_of_period := period == self._period:
            self._period += 1
            self.consecutive_rejections += 1
        if is_first_of_period or retry_after is not None:
            self.cooldown.extend(max(backoff_seconds if is_first_of_period else 0.0, retry_after or 0.0), self.clock)

    def record_success(self, period: int) -> None:
        """Reset the backoff after a request of *period* that was not rate limited. Earlier periods are ignored."""
        if period == self._period:
            self.consecutive_rejections = 0

    async def _wait_for_slot(self) -> None:
        admitted = asyncio.get_running_loop().create_future()
        self._slot_waiters.append(admitted)
        try:
            await admitted
        except BaseException:
            if admitted.cancelled():
                # An admitted waiter is no longer in the queue.
                with contextlib.suppress(ValueError):
                    self._slot_waiters.remove(admitted)
            else:
                # The waiter was cancelled in the same loop iteration in which it was admitted, so release its slot.
                self._slots_in_use -= 1
                self._admit_waiters()
            raise

    def _admit_waiters(self) -> None:
        while self._slot_waiters and self._slots_in_use < self.max_concurrent:
            first = self._slot_waiters.popleft()
            if not first.done():
                self._slots_in_use += 1
                first.set_result(None)


# A limiter is deleted with its last client, but the cooldown of its node remains.
_limiters: weakref.WeakValueDictionary[tuple[asyncio.AbstractEventLoop, Hashable], RateLimiter] = (
    weakref.WeakValueDictionary()
)
_cooldowns: Final[dict[Hashable, Cooldown]] = {}


def get_rate_limiter(node: Hashable, *, is_shared: bool = True, clock: Clock = time.monotonic) -> RateLimiter:
    """
    Return the running loop's limiter for *node*.

    An unshared limiter has a separate cooldown.
    """
    key = (asyncio.get_running_loop(), node)
    gate = _limiters.get(key)
    if gate is None:
        gate = _limiters[key] = RateLimiter(_get_cooldown(node, clock) if is_shared else Cooldown(), clock)
    return gate


def clear_cooldown(node: Hashable) -> None:
    """Clear the cooldown of *node*, because another server may now listen at its address."""
    closure = _cooldowns.get(node)
    if closure is not None:
        closure.clear()


def _get_cooldown(node: Hashable, clock: Clock) -> Cooldown:
    if len(_cooldowns) >= MAX_TRACKED_NODES:
        for other in [other for other, closure in list(_cooldowns.items()) if not closure.remaining(clock)]:
            _cooldowns.pop(other, None)
    return _cooldowns.setdefault(node, Cooldown())


if hasattr(os, "register_at_fork"):  # pragma: no branch - not available on Windows
    # A lock held by another thread at the fork would stay locked in the child process.
    os.register_at_fork(after_in_child=_cooldowns.clear)
