"""Objects that belong to one event loop and one process."""

from __future__ import annotations

import asyncio
import os

from mama_structs.errors import WrongLoop


class LoopBound:
    """
    Remembers the loop and process of its first use, and refuses any other.

    Args:
        what: The object's name in messages.

    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()

    @property
    def is_over(self) -> bool:
        """Whether the object can never be used again: its loop was closed, or this is a forked child."""
        return os.getpid() != self._pid or (self._loop is not None and self._loop.is_closed())

    def check(self) -> None:
        """
        Bind to the running loop, or refuse.

        Raises:
            WrongLoop: This is another loop, no loop, or another process.

        """
        if os.getpid() != self._pid:
            raise WrongLoop(f"the {self._what} belongs to the process that made it", hint="open another one here")
        try:
            running = asyncio.get_running_loop()
        except RuntimeError as error:
            message = f"the {self._what} is used outside an event loop"
            raise WrongLoop(message, hint="call it from async code") from error
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise WrongLoop(f"the {self._what} belongs to another event loop", hint="open another one in this loop")
