"""Objects that belong to one event loop and one process."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from mama_structs.errors import WrongLoop

T = TypeVar("T")


class LoopBound:
    """
    Remembers the loop, thread and process of its first use, and refuses any other.

    Args:
        what: The object's name in messages.

    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._pid = os.getpid()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, which must be known by now."""
        if self._loop is None:
            raise WrongLoop(f"the {self._what} was used in no event loop yet", hint="call it from async code first")
        return self._loop

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a forked child of the process that made the object."""
        return os.getpid() != self._pid

    @property
    def is_over(self) -> bool:
        """Whether the object can never be used here: its loop was closed, or this is a forked child."""
        return self.is_elsewhere or (self._loop is not None and self._loop.is_closed())

    def check(self) -> None:
        """
        Bind to the running loop, or refuse.

        Raises:
            WrongLoop: This is another loop, no loop, or another process.

        """
        self._check_process()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError as error:
            message = f"the {self._what} is used outside an event loop"
            raise WrongLoop(message, hint="call it from async code") from error
        if self._loop is None:
            self._loop, self._thread = running, threading.get_ident()
        elif self._loop is not running:
            raise WrongLoop(f"the {self._what} belongs to another event loop", hint="open another one in this loop")

    def check_thread(self) -> None:
        """
        Refuse another thread or process than that of the loop; for what needs no running loop.

        Raises:
            WrongLoop: This is another thread or process.

        """
        self._check_process()
        if self._thread is not None and self._thread != threading.get_ident():
            raise WrongLoop(f"the {self._what} belongs to another thread", hint="call it in its loop's thread")

    def check_here(self) -> None:
        """
        Bind to the calling thread at the first use, or refuse another; for what works without any loop.

        Raises:
            WrongLoop: This is another thread or process.

        """
        if self._thread is None:
            self._thread = threading.get_ident()
        self.check_thread()

    def _check_process(self) -> None:
        if self.is_elsewhere:
            raise WrongLoop(f"the {self._what} belongs to the process that made it", hint="open another one here")


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """
    Await something that must not be left half done: a cancelled caller waits until it has ended.

    Raises:
        CancelledError: The caller was cancelled meanwhile, however often.

    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001, S110 - it is raised below
            pass
    if cancelled is not None:
        raise cancelled
    task.result()


async def in_own_thread(work: Callable[[], T], *, is_left: bool = False) -> T:
    """
    Run something that may block for long in a thread of its own, so that it takes no place from others.

    The interpreter's end waits for the thread.

    Args:
        work: Called in a copy of the caller's context.
        is_left: Whether a caller that is cancelled leaves at once, and the thread ends when it likes;
            else it waits until the thread has ended.

    Raises:
        CancelledError: The caller was cancelled meanwhile, however often.
        RuntimeError: No thread can be started.

    """
    loop = asyncio.get_running_loop()
    # No task: the loop's end cancels all tasks, and would not wait for the thread.
    ended: asyncio.Future[None] = loop.create_future()
    outcome: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(work)
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            outcome.set_exception(error)
        else:
            outcome.set_result(result)
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))

    thread = threading.Thread(target=run, name="mama-structs", daemon=False)
    thread.start()
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as error:
            if is_left:
                raise
            cancelled = error
    thread.join()  # a moment: it has nothing left to do
    if cancelled is not None:
        raise cancelled
    return outcome.result()
