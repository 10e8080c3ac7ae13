"""
The one place that opens diskcache, safely.

A `Storage` holds rows of bytes under ASCII keys in one directory.
What is written is enqueued and written behind; `flush` waits for the disk.
All work on the database is done in the store's own thread, whichever loop or thread asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar
from weakref import WeakKeyDictionary, ref

from mama_structs.errors import InvalidArgument, SessionClosed
from mama_structs.storage._disk import Damaged
from mama_structs.storage.files import TemporaryDirectory
from mama_structs.storage.inspection import Finding
from mama_structs.storage.journal import Journal
from mama_structs.storage.opening import check_path
from mama_structs.storage.rows import Change, Rows, Snapshot

T = TypeVar("T")

WAIT: Final = 10.0


class Storage:
    """
    A store; made by `open` or `temporary`.

    Args:
        journal: The store.

    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._closing: Future[None] | None = None

    @classmethod
    def open(cls, directory: Path, *, wait: float = WAIT) -> Storage:
        """
        Open the store in *directory*, making what is missing (mode 0700); blocks until it is open.

        Args:
            directory: The database's own: nothing else should be in it.
            wait: Seconds that each write waits for other processes.

        Raises:
            StoreDamaged: What is there is not what was written.
            StoreReadOnly: It cannot be written to.
            StoreBusy: Another process did not let go in time.
            StoreFull: There is no room.
            StoreError: It belongs to another program, or cannot be opened.
            InvalidArgument: An argument breaks its rule.

        """
        return cls(_open(directory, wait))

    @classmethod
    def temporary(cls, *, wait: float = WAIT) -> Storage:
        """
        Return a store that is removed at its close; its directory is made when first written to.

        Args:
            wait: Seconds that each write waits.

        """
        temporary = TemporaryDirectory()
        return cls(Journal(temporary.path / "journal", wait=_check_wait(wait), temporary=temporary))

    def __repr__(self) -> str:
        state = "" if self._closing is None else " closed"
        return f"<{type(self).__name__} {str(self.directory)!r}{state}>"

    def __del__(self) -> None:
        # No lock is taken and no job given to the thread: the collector runs this anywhere, even inside either.
        journal = getattr(self, "_journal", None)
        if journal is None or self._closing is not None or journal.bound.is_elsewhere or not journal.was_used:
            return
        self._closing = Future()
        warnings.warn(f"the store in {journal.directory} was not closed", ResourceWarning, stacklevel=2, source=self)

    @property
    def directory(self) -> Path:
        """The database's directory."""
        return self._journal.directory

    @property
    def pending(self) -> int:
        """How many calls' rows are not on the disk yet."""
        return self._journal.pending

    def enqueue(self, rows: Iterable[tuple[str, Change]]) -> None:
        """
        Have rows written behind, in order, all of one call in one transaction.

        It is not async and can be called in any thread.

        Args:
            rows: Pairs of key and what happens to it: bytes are stored, `New` bytes are stored where nothing whole is,
                None deletes.

        Raises:
            InvalidArgument: A row breaks a rule; none of the call's is taken.
            SessionClosed: The store was closed.
            WrongLoop: This is a forked child.

        """
        self._check_open()
        self._journal.enqueue(rows)

    async def flush(self) -> None:
        """
        Return when all that was enqueued before is on the disk.

        Raises:
            StoreError: It is not; nothing is lost, and the next flush or enqueue tries again.
            SessionClosed: The store was closed.
            WrongLoop: This is a forked child.

        """
        self._check_open()
        await outcome(self._journal.flush())

    async def read(self, keys: Sequence[str]) -> dict[str, bytes | Damaged]:
        """
        Return the values of *keys*, all of one moment, with what is enqueued taken as written.

        Missing keys are left out; a `Damaged` says why a value cannot be had.

        Raises:
            StoreError: The database cannot be read.
            InvalidArgument: A key breaks its rule.
            SessionClosed: The store was closed.
            WrongLoop: This is a forked child.

        """
        self._check_open()
        return await outcome(self._journal.read(keys))

    def has(self, key: str) -> bool:
        """
        Tell whether anything is stored or enqueued under *key*; blocks until the store's thread has looked.

        For the rare question in code that is not async; `read` is for everything else.

        Raises:
            StoreError: The database cannot be read.
            InvalidArgument: The key breaks its rule.
            SessionClosed: The store was closed.
            WrongLoop: This is a forked child.

        """
        self._check_open()
        return key in self._journal.read([key]).result()

    async def keys(self, prefix: str = "") -> list[str]:
        """
        Return the keys that begin with *prefix*, sorted, with what is enqueued taken as written.

        Raises:
            StoreError: The database cannot be read.
            InvalidArgument: The prefix is no ASCII str.
            SessionClosed: The store was closed.
            WrongLoop: This is a forked child.

        """
        self._check_open()
        return await outcome(self._journal.keys(prefix))

    async def transact(self, work: Callable[[Rows], T]) -> T:
        """
        Run *work* in the store's thread inside one write transaction, and return what it returns.

        No other process or holder writes between its first read and its end.
        What was enqueued before is written first.
        A cancelled caller does not stop it.

        Args:
            work: Called once, or not at all; rolled back when it raises. It must not be async.

        Raises:
            StoreError: The transaction, or what was enqueued before, cannot be written.
            InvalidArgument: *work* is async.
            SessionClosed: The store was closed.
            WrongLoop: This is a forked child.

        """
        return await outcome(self.transaction(work))

    def transaction(
        self, work: Callable[[Rows], T], *, settled: Callable[[BaseException | None], None] | None = None
    ) -> Future[T]:
        """
        Do as `transact`, without waiting.

        Args:
            work: As for `transact`.
            settled: Called in the store's thread when the transaction is durable, or with the error why it is not.

        Raises:
            SessionClosed: The store was closed.
            WrongLoop: This is a forked child.

        """
        self._check_open()
        return self._journal.transact(work, settled=settled)

    async def look(self, work: Callable[[Snapshot], T]) -> T:
        """
        Run *work* in the store's thread on what is on the disk, all of one moment, and return what it returns.

        A cancelled caller does not stop it.

        Args:
            work: Called until no other process is in its way, so possibly more than once.

        Raises:
            StoreError: The database cannot be read.
            SessionClosed: The store was closed.
            WrongLoop: This is a forked child.

        """
        return await outcome(self.looking(work))

    def looking(self, work: Callable[[Snapshot], T]) -> Future[T]:
        """
        Do as `look`, without waiting.

        Raises:
            SessionClosed: The store was closed.
            WrongLoop: This is a forked child.

        """
        self._check_open()
        return self._journal.look(work)

    async def check(self) -> list[Finding]:
        """
        Look at every page, row, setting and file, and return what is wrong.

        Raises:
            StoreError: The database cannot be read.
            SessionClosed: The store was closed.
            WrongLoop: This is a forked child.

        """
        self._check_open()
        return await outcome(self._journal.check())

    async def close(self) -> None:
        """
        Write what is left, close the database and end the thread.

        Once begun it runs to its end, whoever waits for it.

        Raises:
            StoreError: The rest could not be written; the store is closed all the same.
            WrongLoop: This is a forked child.

        """
        closing = self._begin_close()
        try:
            await outcome(closing)
        finally:
            self._journal.join_closed()

    def close_now(self) -> None:
        """
        Do what `close` does, blocking until it is done; for code that is not async.

        Not for a transaction's work, which would wait for itself.

        Raises:
            StoreError: The rest could not be written; the store is closed all the same.
            WrongLoop: This is a forked child.

        """
        try:
            self._begin_close().result()
        finally:
            self._journal.join_closed()

    def _begin_close(self) -> Future[None]:
        self._journal.bound.check_thread()
        if self._closing is None:
            self._closing = self._journal.close()
        return self._closing

    def _check_open(self) -> None:
        self._journal.bound.check_thread()
        if self._closing is not None:
            raise SessionClosed(f"the store in {self.directory} was closed")


async def outcome(job: Future[T]) -> T:
    """Wait for *job*, which goes on when the waiter is cancelled or its loop is closed."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    due = _due.setdefault(loop, _Due())

    def wake(_job: Future[T]) -> None:
        due.wake(loop, woken)

    job.add_done_callback(wake)
    await woken
    return job.result()


class _Due:
    """
    Those in one loop that are to be woken: all at once, for each wake-up of a loop costs as much as writing a row.

    It needs no lock, which a forked child might find held: the mark is taken away before anyone is woken, so that
    whoever finds it there came in time.
    """

    def __init__(self) -> None:
        # Not held, for they hold their loop, which would never go: it is what this is kept by.
        self._waiting: deque[ref[asyncio.Future[None]]] = deque()
        self._is_marked = False

    def wake(self, loop: asyncio.AbstractEventLoop, one: asyncio.Future[None]) -> None:
        """Have one woken; called in any thread."""
        self._waiting.append(ref(one))
        if not self._is_marked:
            self._is_marked = True
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        self._is_marked = False
        while self._waiting:
            one = self._waiting.popleft()()
            if one is not None and not one.done():
                one.set_result(None)


_due: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Due]] = WeakKeyDictionary()


def _open(directory: Path, wait: float) -> Journal:
    journal = Journal(check_path(directory), wait=_check_wait(wait))
    journal.open()
    return journal


def _check_wait(wait: float) -> float:
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < math.inf:
        raise InvalidArgument(f"wait must be 0 or more seconds, got {wait!r:.40}")
    return wait
