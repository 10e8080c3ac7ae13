"""
One gate a node: how many queries go to it at once, and until when it wants none.

All who ask a node from one event loop share its gate. Loops share only the time until which the node is closed.
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

# A proxy that says a year, or a date by a wrong clock, must not close a node until the process ends.
LONGEST: Final = 3600.0
_NODES: Final = 1024
# No timer is finer, and what rounding leaves is no time.
_NOTHING: Final = 1e-6


class Closure:
    """How long a node wants no requests, in monotonic seconds; usable from any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._left = 0.0
        self._seen = -math.inf

    def left(self, clock: Clock) -> float:
        """Return the seconds that are left, 0 where the node is open."""
        with self._guard:
            self._pass(clock())
            return self._left if self._left > _NOTHING else 0.0

    def extend(self, seconds: float, clock: Clock) -> None:
        """Close the node for so long, unless it is closed for longer."""
        with self._guard:
            self._pass(clock())
            self._left = max(self._left, min(seconds, LONGEST))

    def end(self) -> None:
        """Open the node."""
        with self._guard:
            self._left = 0.0

    def _pass(self, now: float) -> None:
        # While a clock steps back no time passes, and what was left stays so.
        self._left = max(0.0, self._left - max(0.0, now - self._seen))
        self._seen = now


@attrs.define(eq=False)
class Gate:
    """What the queries of one event loop to one node have in common."""

    closure: Closure
    clock: Clock
    # How many queries at once all users together may have: the least that any of them allows.
    limit: int = 1
    # Refusals in a row; only one request at a time goes to a node that refused the last one.
    refusals: int = 0
    _limits: weakref.WeakKeyDictionary[object, int] = attrs.field(factory=weakref.WeakKeyDictionary, init=False)
    _busy: int = attrs.field(default=0, init=False)
    _queue: deque[asyncio.Future[None]] = attrs.field(factory=deque, init=False)
    _trial: asyncio.Future[None] | None = attrs.field(default=None, init=False)
    _period: int = attrs.field(default=0, init=False)

    def join(self, user: object, limit: int) -> None:
        """Let *user*, who has so many queries at once at the most, through, until it leaves or is gone."""
        self._limits[user] = limit
        self.limit = min(self._limits.values())

    def leave(self, user: object) -> None:
        """Undo `join`; again is no error."""
        self._limits.pop(user, None)
        self.limit = min(self._limits.values(), default=1)
        self._admit()

    def closed_for(self) -> float:
        """Return how many seconds the node asked to wait, 0 where it is open."""
        return self.closure.left(self.clock)

    @contextlib.asynccontextmanager
    async def slot(self, attempt: Attempt) -> AsyncIterator[None]:
        """Hold one of the slots for queries, the first who came first."""
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
        """Wait until the node is open, and give this open period's number; `RateLimited` where less time is *left*."""
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
        """Close the node, as *asked* by it or for a *pause* of our own, after a request that was sent in *period*."""
        # Requests that were under way together are refused together: that is one refusal.
        if is_news := period == self._period:
            self._period += 1
            self.refusals += 1
        if is_news or asked is not None:
            self.closure.extend(max(pause if is_news else 0.0, asked or 0.0), self.clock)

    def accept(self, period: int) -> None:
        """Note that a request which was sent in *period* was not refused."""
        if period == self._period:
            self.refusals = 0

    async def _queued(self) -> None:
        admitted = asyncio.get_running_loop().create_future()
        self._queue.append(admitted)
        try:
            await admitted
        except BaseException:
            if admitted.cancelled():
                # Who is admitted is in the queue no more.
                with contextlib.suppress(ValueError):
                    self._queue.remove(admitted)
            else:
                # It was admitted in the very turn of the loop in which it was cancelled.
                self._busy -= 1
                self._admit()
            raise

    def _admit(self) -> None:
        while self._queue and self._busy < self.limit:
            first = self._queue.popleft()
            if not first.done():
                self._busy += 1
                first.set_result(None)


# A gate goes with the last of its users, but a node stays closed when they have gone.
_gates: weakref.WeakValueDictionary[tuple[asyncio.AbstractEventLoop, Hashable], Gate] = weakref.WeakValueDictionary()
_closures: Final[dict[Hashable, Closure]] = {}


def gate_to(node: Hashable, *, is_shared: bool = True, clock: Clock = time.monotonic) -> Gate:
    """Return the running loop's gate to *node*; one that is not shared knows nothing of other loops."""
    key = (asyncio.get_running_loop(), node)
    gate = _gates.get(key)
    if gate is None:
        gate = _gates[key] = Gate(_closure_of(node, clock) if is_shared else Closure(), clock)
    return gate


def reopen(node: Hashable) -> None:
    """Forget that *node* asked to wait: another one may listen there now."""
    closure = _closures.get(node)
    if closure is not None:
        closure.end()


def _closure_of(node: Hashable, clock: Clock) -> Closure:
    if len(_closures) >= _NODES:
        for other in [other for other, closure in list(_closures.items()) if not closure.left(clock)]:
            _closures.pop(other, None)
    return _closures.setdefault(node, Closure())


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has none
    # A lock that another thread held at the fork stays locked in the child for ever.
    os.register_at_fork(after_in_child=_closures.clear)
