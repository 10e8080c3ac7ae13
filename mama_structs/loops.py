"""Objects that belong to one event loop and one process."""

from __future__ import annotations

import asyncio
import os
import threading

from mama_structs.errors import WrongLoop


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
