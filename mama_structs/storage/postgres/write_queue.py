"""Queues of writers within one process, so that waiting writers do not occupy connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

import attrs

from mama_structs.errors import MamaStructsError, StoreBusy, StoreUnreachable

_LOST: Final = 2
_BEFORE: Final = "the server was unreachable for earlier writes in the queue; nothing of this was stored"
_HINT: Final = "check that the server is running and reachable"


@attrs.define(eq=False)
class _Queue:
    """
    Waiting writers in FIFO order.

    *done* counts finished writers, *lost* the last ones that found the server unreachable.
    """

    waiting: deque[asyncio.Future[None]] = attrs.field(factory=deque)
    done: int = 0
    lost: int = 0


class WriteQueues:
    """The write queues of one event loop, by name."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}

    @contextlib.asynccontextmanager
    async def one(self, name: str, *, wait: float, busy: Callable[[], StoreBusy]) -> AsyncIterator[None]:
        """
        Wait for a turn in a queue. The timeout restarts whenever an earlier writer finishes.

        After two consecutive unreachable errors all waiting writers fail, because each would time out in turn.

        Raises:
            StoreBusy: No earlier writer finished within *wait* seconds. The error is created by *busy*.
            StoreUnreachable: Two earlier writers found the server unreachable.

        """
        if (queue := self._queues.get(name)) is None:
            queue = self._queues[name] = _Queue()
        else:
            await _reached(queue, wait, busy)
        try:
            yield
        except StoreUnreachable:
            queue.lost += 1
            raise
        except StoreBusy:
            raise
        except BaseException:
            queue.done += 1
            raise
        else:
            queue.done, queue.lost = queue.done + 1, 0
        finally:
            if queue.lost >= _LOST:
                _end(queue, lambda: StoreUnreachable(_BEFORE, hint=_HINT))
            if queue.waiting:
                queue.waiting.popleft().set_result(None)
            else:
                del self._queues[name]

    def end(self, failure: Callable[[], MamaStructsError]) -> None:
        """Fail all waiting writers."""
        for queue in self._queues.values():
            _end(queue, failure)


def _end(queue: _Queue, failure: Callable[[], MamaStructsError]) -> None:
    while queue.waiting:
        queue.waiting.popleft().set_exception(failure())


async def _reached(queue: _Queue, wait: float, busy: Callable[[], StoreBusy]) -> None:
    turn = asyncio.get_running_loop().create_future()
    queue.waiting.append(turn)
    while not turn.done():
        before = queue.done
        await asyncio.wait([turn], timeout=wait)
        if not turn.done() and queue.done == before:
            queue.waiting.remove(turn)
            raise busy()
    turn.result()
