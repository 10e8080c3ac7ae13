"""
Drafts of a ref store: changes made on a copy in a thread, then recorded and applied.

`RefStore.change` runs drafts one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeVar

from mama_structs.refs.store.entries import DeletedEntry, Entry

PreparedT = TypeVar("PreparedT")


class ChangeLog(Protocol[PreparedT]):
    """The durable, asynchronously written log of a store's changes."""

    def put(self, handle: str, slot: Entry | DeletedEntry) -> None:
        """Record an entry with its text, or a deletion."""

    def prepare(self, changes: Sequence[tuple[str, Entry | DeletedEntry]]) -> PreparedT:
        """Serialize changes that follow the last recorded one. May run in any thread."""

    def follows(self, prepared: PreparedT) -> bool:
        """Return True if nothing was recorded since *prepared* was made."""

    def put_prepared(self, prepared: PreparedT) -> None:
        """Record prepared changes atomically."""


class DraftLog:
    """The changes of a draft, in order."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, Entry | DeletedEntry]] = []

    def put(self, handle: str, slot: Entry | DeletedEntry) -> None:
        """Append a change."""
        self.changes.append((handle, slot))


class WriterLock:
    """The lock of async writers, one for each event loop."""

    def __init__(self) -> None:
        self._lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    def for_running_loop(self) -> asyncio.Lock:
        """
        Return the lock of the running loop.

        A store without a session may be used in several loops, one after another.
        """
        loop = asyncio.get_running_loop()
        if self._lock is None or self._lock[0] is not loop:
            self._lock = loop, asyncio.Lock()
        return self._lock[1]
