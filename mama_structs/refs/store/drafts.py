"""
Drafts of a ref store: its changes are made on a copy, in a thread, and then recorded and applied in one step.

`RefStore.change` runs them, one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeVar

from mama_structs.refs.store.entries import DeletedEntry, Entry

PreparedT = TypeVar("PreparedT")


class Log(Protocol[PreparedT]):
    """The durable log of a store's changes, written behind."""

    def put(self, handle: str, slot: Entry | DeletedEntry) -> None:
        """Record an entry with its text, or a deletion."""

    def prepare(self, changes: Sequence[tuple[str, Entry | DeletedEntry]]) -> PreparedT:
        """Encode changes that follow the last recorded one; may run in any thread."""

    def follows(self, prepared: PreparedT) -> bool:
        """Return True if nothing was recorded since *prepared* was made."""

    def put_prepared(self, prepared: PreparedT) -> None:
        """Record prepared changes, all or none."""


class DraftLog:
    """The changes of a draft, in order."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, Entry | DeletedEntry]] = []

    def put(self, handle: str, slot: Entry | DeletedEntry) -> None:
        """Remember a change."""
        self.changes.append((handle, slot))


class WriterLock:
    """The lock of async writers, one for each event loop."""

    def __init__(self) -> None:
        self._lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    def of_loop(self) -> asyncio.Lock:
        """Return the lock of the running loop; a store without a session may be used in several, one after another."""
        loop = asyncio.get_running_loop()
        if self._lock is None or self._lock[0] is not loop:
            self._lock = loop, asyncio.Lock()
        return self._lock[1]
