"""Injection of faults into a session: errors of the disk, locks of other writers, and errors of the embedder."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

from mama_structs import Session
from mama_structs._internal.sync_proxy import unwrap
from mama_structs._internal.validation import check_choice
from mama_structs.errors import EmbeddingFailed, StoreBusy
from mama_structs.storage.sealed_rows import Rows
from mama_structs.storage.sqlite_store import RowStorage

__all__ = ["DiskFault", "SessionFaults"]

T = TypeVar("T")

DiskFault = Literal["failing", "full", "read_only", "busy"]
"""An I/O error, a full disk, a file that is no longer writable, or a lock held by another process."""

_SQLITE_CODES: Final = {
    "failing": sqlite3.SQLITE_IOERR,
    "full": sqlite3.SQLITE_FULL,
    "read_only": sqlite3.SQLITE_READONLY,
}


def inject_transaction_faults(storage: RowStorage, get_next_fault: Callable[[], DiskFault | None]) -> None:
    """
    Inject faults into the transactions of a storage.

    Each transaction calls *get_next_fault*, which returns the fault to inject, or None.
    """

    def in_transaction(work: Callable[[Rows], T], **given: Any) -> T:
        kind = get_next_fault()
        if kind is None:
            return type(storage)._run_transaction(storage, work, **given)
        if kind == "busy":
            raise StoreBusy("another process kept the directory from being written (planned)", waited=0.0)

        def undone(rows: Rows) -> T:
            work(rows)
            rows.failure = sqlite3.OperationalError("planned")
            rows.failure.sqlite_errorcode = _SQLITE_CODES[kind]
            rows.failure.sqlite_errorname = "SQLITE_PLANNED"
            raise rows.failure

        return type(storage)._run_transaction(storage, undone, **given)

    vars(storage)["_run_transaction"] = in_transaction


class SessionFaults:
    """
    Makes the storage or the embedder of a session fail when a test requests it.

    A failing transaction is rolled back after all of its work, as on a disk that fails during the commit. A
    ``"busy"`` transaction does not begin, and fails without waiting.
    Sessions of this process that share the directory share the disk faults.

    Args:
        session: The session; a `mama_structs.sync.Session` as well.

    Attributes:
        met: The number of transactions and embedder calls that failed so far.

    """

    def __init__(self, session: Any) -> None:
        inner: Session = unwrap(session)
        self.met: int = 0
        storage: RowStorage = inner._shared.home.storage
        self._embedding = inner.memories._shared.embedding
        self._disk: DiskFault = "failing"
        self._remaining = {"disk": 0.0, "embedder": 0.0}
        inject_transaction_faults(storage, lambda: self._disk if self._use_fault("disk") else None)
        vars(self._embedding)["_call_embedder"] = self._call_embedder

    def __repr__(self) -> str:
        planned = ", ".join(f"{what} {left:g}" for what, left in self._remaining.items() if left)
        return f"<SessionFaults, {self.met} met, planned: {planned or 'none'}>"

    @property
    def planned(self) -> bool:
        """True if at least one requested fault has not occurred yet."""
        return any(self._remaining.values())

    def disk(self, kind: DiskFault = "failing", *, times: int | None = 1) -> None:
        """
        Make the next write transactions fail.

        Args:
            kind: The fault. After ``"full"`` in a group of concurrent saves, each save is retried on its own.
            times: The number of failures; None for all until `clear`.

        """
        self._disk = check_choice("kind", kind, ("failing", "full", "read_only", "busy"))
        self._remaining["disk"] = math.inf if times is None else times

    def embedder(self, *, times: int | None = 1) -> None:
        """
        Make the next calls of the embedder fail. A text with a cached embedding does not cause a call.

        Args:
            times: The number of failures; None for all until `clear`.

        """
        self._remaining["embedder"] = math.inf if times is None else times

    def clear(self) -> None:
        """Cancel all requested faults."""
        self._remaining = dict.fromkeys(self._remaining, 0.0)

    def _use_fault(self, what: str) -> bool:
        if not self._remaining[what]:
            return False
        self._remaining[what] -= 1
        self.met += 1
        return True

    async def _call_embedder(self, batch: Any) -> EmbeddingFailed | None:
        if self._use_fault("embedder"):
            return EmbeddingFailed("the embedder failed: planned")
        return await type(self._embedding)._call_embedder(self._embedding, batch)
