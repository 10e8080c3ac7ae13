"""Queues of writers within one process, so that writers do not occupy connections while they wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

import attrs

from mama_structs.errors import MamaStructsError, StoreBusy, StoreUnreachable

MAX_UNREACHABLE_WRITERS: Final = 2
QUEUE_UNREACHABLE_MESSAGE: Final = (
    "the server was unreachable for earlier writes in the queue; nothing of this was stored"
)
UNREACHABLE_HINT: Final = "check that the server is running and reachable"


@attrs.define(eq=False)
class _WriteQueue:
    """
    Waiting writers in FIFO order.

    *finished_count* is the number of finished writers.
    *unreachable_count* is the number of consecutive writers that found the server unreachable.
    """

    waiters: deque[asyncio.Future[None]] = attrs.field(factory=deque)
    finished_count: int = 0
    unreachable_count: int = 0


class WriteQueues:
    """The write queues of one event loop by name."""

    def __init__(self) -> None:
        self._queues: dict[str, _WriteQueue] = {}

    @contextlib.asynccontextmanager
    async def acquire_turn(
        self, name: str, *, wait: float, make_busy_error: Callable[[], StoreBusy]
    ) -> AsyncIterator[None]:
        """
        Wait for a turn in a queue. The timeout restarts whenever an earlier writer finishes.

        If two consecutive writers found the server unreachable, all waiting writers fail.
        Otherwise each of them would wait for its own timeout.

        Raises:
            StoreBusy: No earlier writer finished within *wait* seconds. The error is created by *make_busy_error*.
            StoreUnreachable: Two earlier writers found the server unreachable.

        """
        if (queue := self._queues.get(name)) is None:
            queue = self._queues[name] = _WriteQueue()
        else:
            await _wait_for_turn(queue, wait, make_busy_error)
        try:
            yield
        except StoreUnreachable:
            queue.unreachable_count += 1
            raise
        except StoreBusy:
            raise
        except BaseException:
            queue.finished_count += 1
            raise
        else:
            queue.finished_count, queue.unreachable_count = queue.finished_count + 1, 0
        finally:
            if queue.unreachable_count >= MAX_UNREACHABLE_WRITERS:
                _fail_queue(queue, lambda: StoreUnreachable(QUEUE_UNREACHABLE_MESSAGE, hint=UNREACHABLE_HINT))
            if queue.waiters:
                queue.waiters.popleft().set_result(None)
            else:
                del self._queues[name]

    def fail_waiters(self, make_error: Callable[[], MamaStructsError]) -> None:
        """Make all waiting writers fail with errors from *make_error*."""
        for queue in self._queues.values():
            _fail_queue(queue, make_error)


def _fail_queue(queue: _WriteQueue, make_error: Callable[[], MamaStructsError]) -> None:
    while queue.waiters:
        queue.waiters.popleft().set_exception(make_error())


async def _wait_for_turn(queue: _WriteQueue, wait: float, make_busy_error: Callable[[], StoreBusy]) -> None:
    turn = asyncio.get_running_loop().create_future()
    queue.waiters.append(turn)
    while not turn.done():
        before = queue.finished_count
        await asyncio.wait([turn], timeout=wait)
        if not turn.done() and queue.finished_count == before:
            queue.waiters.remove(turn)
            raise make_busy_error()
    turn.result()
