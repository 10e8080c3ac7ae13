"""
Stores of byte rows under ASCII keys. Each store has a thread and writes changes in the background.

Enqueued changes are written in order, several calls per transaction; `flush` waits until they are durable. Jobs of all
loops and threads run in submission order, but reads do not wait for a transaction that waits for a lock. Cancelling a
caller does not stop its job, and a job that raises is rolled back. `RowStorage` implements this; its subclasses store
the rows in a directory or on a PostgreSQL server.

Every call raises `SessionClosed` after closing, `WrongLoop` in a forked child, and `StoreError` if the database cannot
be read or written.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import logging
import random
import sqlite3
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, ref

import diskcache  # type: ignore[import-untyped]  # it ships no types

from mama_structs._internal.event_loop import LoopGuard, call_sync, run_in_own_thread
from mama_structs._internal.validation import check_seconds
from mama_structs.errors import SessionClosed, StoreBusy, StoreError, StoreFull, StoreReadOnly
from mama_structs.storage.cache_factory import inspect_store
from mama_structs.storage.connection import WAL_FILE, Database, erase_deleted_data
from mama_structs.storage.files import TemporaryDirectory, absolute_path, delete_leftovers
from mama_structs.storage.reserve import create_reserve, release_reserve, reserve_size, shrink_reserve
from mama_structs.storage.sealed_rows import (
    DamagedValue,
    NewValue,
    PendingCall,
    PreparedChanges,
    RowChange,
    Rows,
    Snapshot,
    SqliteRows,
    SqliteSnapshot,
    check_key,
    merge_calls,
)
from mama_structs.storage.sqlite_errors import Issue, is_busy, read_only_error, store_error

T = TypeVar("T")

DEFAULT_WAIT_SECONDS: Final = 10.0
# Maximum size of a transaction's rows in bytes. A larger single call is still written in one transaction.
MAX_TRANSACTION_BYTES: Final = 2 * 2**20

MIN_RETRY_SECONDS: Final = 0.001
MAX_READS_OF_CHANGED_FILES: Final = 10
MAX_RETRY_SECONDS: Final = 0.005
# After this time a stuck process probably holds the lock, so poll less often.
SLOW_RETRY_AFTER_SECONDS: Final = 0.5
SLOW_RETRY_SECONDS: Final = 0.05

_thread_state: Final = threading.local()

_log: Final = logging.getLogger("mama_structs")


class RowStorage:
    """
    Base class of stores.

    Args:
        location: The directory or redacted URL, for messages.
        name: Part of the name of the store's thread.
        wait: Seconds that writes wait for other writers.

    """

    def __init__(self, location: str, *, name: str, wait: float) -> None:
        self.location: str = location
        self._wait = check_seconds("wait", wait, allow_zero=True)
        self._bound = LoopGuard("store")
        # Reentrant: garbage collection may run another store's finalizer, which takes this lock, while we hold it.
        self._guard = threading.RLock()
        self._queue: deque[PendingCall] = deque()
        # Not a SimpleQueue, because in CPython 3.11 its `get` may block forever if the timeout expires early.
        self._queued_reads: Queue[Callable[[], None]] = Queue()
        self._enqueued_number = 0
        self._durable_number = 0
        self._flush_waiters: list[tuple[int, Future[None]]] = []
        self._is_drain_due = False
        self._failure: StoreError | None = None
        self._closing: Future[None] | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"mama-structs {name}")

    def __repr__(self) -> str:
        state = "" if self._closing is None else " closed"
        return f"<{type(self).__name__} {self.location!r}{state}>"

    def __del__(self) -> None:
        # Take no lock and submit no job, because garbage collection may run this while a lock is held.
        if not hasattr(self, "_executor") or self._closing is not None or self._bound.is_forked_child:
            return
        if self._has_database():
            warnings.warn(f"the store in {self.location} was not closed", ResourceWarning, stacklevel=2, source=self)

    @property
    def pending(self) -> int:
        """Number of enqueued calls whose changes are not durable yet."""
        with self._guard:
            return len(self._queue)

    @property
    def is_read_only(self) -> bool:
        """True if the store was read-only when it was opened."""
        return False

    def storage_namespace(self, namespace: str | None) -> str:  # noqa: ARG002 - used by subclasses
        """
        Return the storage namespace in which the rows of a namespace are stored.

        A directory stores all namespaces together, as ``""``.
        """
        return ""

    async def storage_namespaces(self) -> tuple[str, ...]:
        """Return the storage namespaces that contain visible rows."""
        return ("",)

    def enqueue(self, rows: Iterable[tuple[str, RowChange]] | PreparedChanges, *, namespace: str | None = None) -> None:
        """
        Write rows in the background.

        Each call is atomic: if one row is invalid, no row is written.
        """
        self._check_open()
        space = self.storage_namespace(namespace)
        prepared = rows if isinstance(rows, PreparedChanges) else PreparedChanges.from_rows(rows)
        if not prepared.changes:
            return
        self._check_changes(prepared.changes)
        with self._guard:
            self._schedule_drain()
            self._enqueued_number += 1
            self._queue.append(PendingCall(self._enqueued_number, prepared.changes, prepared.size, space))

    def _check_changes(self, changes: dict[str, RowChange]) -> None:
        """Raise an error if the changes cannot be written."""

    async def flush(self) -> None:
        """
        Wait until all changes enqueued before this call are durable.

        After a failure, the next call tries again.
        """
        done: Future[None] = Future()
        # Mark the future as running. Otherwise a caller that stops waiting would cancel it.
        done.set_running_or_notify_cancel()
        with self._guard:
            self._check_open()
            if self._durable_number == self._enqueued_number:
                done.set_result(None)
            else:
                self._schedule_drain()
                self._flush_waiters.append((self._enqueued_number, done))
        await await_job(done)

    async def read(self, keys: Sequence[str], *, namespace: str | None = None) -> dict[str, bytes | DamagedValue]:
        """Return the existing values of *keys* from one snapshot, with enqueued changes applied."""
        wanted, space = [check_key(key) for key in keys], self.storage_namespace(namespace)
        return await await_job(self._submit_read(lambda: self._read(wanted, space)))

    def has(self, key: str, *, namespace: str | None = None) -> bool:
        """Return True if there is a value under *key*, with enqueued changes applied. Blocks."""
        wanted, space = [check_key(key)], self.storage_namespace(namespace)
        return key in self._submit_read(lambda: self._read(wanted, space)).result()

    async def keys(self, prefix: str = "", *, namespace: str | None = None) -> list[str]:
        """Return the sorted keys that begin with *prefix*, with enqueued changes applied."""
        if prefix != "":
            check_key(prefix)
        space = self.storage_namespace(namespace)
        return await await_job(self._submit_read(lambda: self._keys(prefix, space)))

    async def transact(
        self, work: Callable[[Rows], T], *, namespaces: Sequence[str] = (), wait: float | None = None
    ) -> T:
        """
        Run the synchronous function *work* in a write transaction, after all enqueued changes.

        *work* gets the rows of the first of *namespaces*. `Snapshot.in_namespace` returns those of another namespace.
        """
        return await await_job(self.submit_job(lambda: self.transact_in_job(work, namespaces=namespaces, wait=wait)))

    async def run_read(self, work: Callable[[Snapshot], T], *, namespace: str | None = None) -> T:
        """
        Run *work* on one snapshot in the store's thread.

        It may run more than once, and before jobs that were submitted earlier.

        It gets the rows of *namespace*, or by default the rows of all visible namespaces.
        """
        return await await_job(self._submit_read(lambda: self.run_read_in_job(work, namespace=namespace)))

    def submit_job(self, job: Callable[[], T]) -> Future[T]:
        """
        Run *job* in the store's thread, after all jobs that were submitted earlier.

        It may call `transact_in_job` and `run_read_in_job`.
        """
        with self._guard:
            self._check_open()
            return self._submit(job)

    def _submit(self, job: Callable[[], T]) -> Future[T]:
        try:
            return self._executor.submit(self._run_job, job)
        except RuntimeError as error:
            raise SessionClosed("the interpreter is shutting down") from error

    def _submit_read(self, look: Callable[[], T]) -> Future[T]:
        """Submit a read. It runs in submission order, or earlier if a transaction waits for a lock."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                result = look()
            except BaseException as error:  # noqa: BLE001 - passed to the caller's future
                done.set_exception(error)
            else:
                done.set_result(result)

        with self._guard:
            self._check_open()
            self._queued_reads.put(run)
            self._submit(functools.partial(_run_queued_read, self._queued_reads))
        return done

    async def erase_deleted_data(self, *, wait: float | None = None) -> bool:
        """
        Erase deleted data from disk.

        Return False if that was not possible within *wait* seconds.
        """
        raise NotImplementedError

    async def check(self) -> list[Issue]:
        """Check all pages, rows, settings and files, and return the issues."""
        return await await_job(self.submit_job(self._check))

    async def close(self) -> None:
        """
        Write enqueued changes, close the database and end the thread.

        Continues even if the caller is cancelled.
        """
        closing = self._begin_close()
        try:
            await await_job(closing)
        finally:
            self._join_thread()

    def close_now(self) -> None:
        """
        Close the store as `close` does, but block.

        Must not be called inside a transaction, because it would deadlock.
        """
        try:
            self._begin_close().result()
        finally:
            self._join_thread()

    def _begin_close(self) -> Future[None]:
        self._bound.check_thread()
        with self._guard:
            # Retry a close that failed. The disk may have space again, or the lock may be free by now.
            if self._closing is None or (self._closing.done() and self._closing.exception() is not None):
                self._closing = self._submit(self._close)
                self._closing.add_done_callback(self._end_thread)
            return self._closing

    def _end_thread(self, closing: Future[None]) -> None:
        if closing.exception() is None:
            self._executor.shutdown(wait=False)

    def _join_thread(self) -> None:
        """Wait for the end of the thread. If the store was not closed, do nothing."""
        if self._closing is not None and self._closing.done() and self._closing.exception() is None:
            self._executor.shutdown(wait=True)

    def _check_open(self) -> None:
        self._bound.check_thread()
        if self._closing is not None:
            raise SessionClosed(f"the store in {self.location} was closed")

    def _schedule_drain(self) -> None:
        """Schedule a job that writes the queue. The caller must hold the guard."""
        self._check_open()
        if not self._is_drain_due:
            # Give the thread a proxy that shares the state, so that an unclosed store can be garbage-collected.
            proxy = object.__new__(_without_finalizer(type(self)))  # type: ignore[arg-type]  # a class can be hashed
            proxy.__dict__ = self.__dict__
            self.submit_job(proxy._drain)
            self._is_drain_due = True

    def _has_database(self) -> bool:
        """Return True if the database exists. A temporary store creates it at the first write."""
        return True

    # The methods below run in the store's thread.

    def transact_in_job(
        self,
        work: Callable[[Rows], T],
        *,
        namespaces: Sequence[str] = (),
        wait: float | None = None,
        is_independent: bool = False,
    ) -> T:
        """
        Like `transact`, but synchronous. May only be called in a job.

        Independent work also runs if the disk is too full for the enqueued changes.
        """
        spaces = [self.storage_namespace(one) for one in namespaces or (None,)]
        try:
            self._write_pending(spaces)
        except StoreFull:
            if not is_independent:
                raise
        return self._run_transaction(work, spaces=spaces, wait=wait)

    def run_read_in_job(self, work: Callable[[Snapshot], T], *, namespace: str | None = None) -> T:
        """Like `run_read`, but synchronous. May only be called in a job."""
        raise NotImplementedError

    def _run_transaction(self, work: Callable[[Rows], T], *, spaces: Sequence[str], wait: float | None = None) -> T:
        """Run *work* in one write transaction on the rows of *spaces*."""
        raise NotImplementedError

    def _write_changes(self, changes: dict[str, RowChange], space: str) -> None:
        """Apply changes in one write transaction."""
        self._run_transaction(lambda rows: rows.apply_changes(changes), spaces=[space])

    def _inspect(self) -> list[Issue]:
        """Return the issues in the stored data."""
        raise NotImplementedError

    def _close_database(self) -> None:
        """Close the database."""
        raise NotImplementedError

    @staticmethod
    def _run_job(job: Callable[[], T]) -> T:
        """Run a job in the store's thread."""
        return job()

    def _close(self) -> None:
        try:
            self._write_pending()
        except StoreError as error:
            error.add_note(f"the rows of {len(self._queue)} calls were not written: close it again when they can be")
            raise
        self._close_database()

    def _drain(self) -> None:
        with self._guard:
            self._is_drain_due = False
            waiting, self._flush_waiters = self._flush_waiters, []
        failure: BaseException | None = None
        try:
            self._write_pending()
        except Exception as error:  # noqa: BLE001 - passed to every waiting flush
            failure = error
            if not waiting:
                _log.warning("the rows of %d calls are not written yet: %s", len(self._queue), error)
        for number, done in waiting:
            if failure is None or number <= self._durable_number:
                done.set_result(None)
            else:
                done.set_exception(copy_error(failure))

    def _write_pending(self, spaces: Sequence[str] | None = None) -> None:
        """
        Write the changes enqueued until now, in order and in few transactions.

        Changes that could not be written stay enqueued.
        If the database denies writes in a namespace, the changes of other namespaces are still written.
        Then the error is raised if the namespace is in *spaces*, or if *spaces* is None.
        """
        with self._guard:
            target = self._enqueued_number
        one_by_one = False
        denied: dict[str, StoreReadOnly] = {}
        while group := self._next_group(target, 1 if one_by_one else None, denied):
            changes = merge_calls(group)
            try:
                self._write_changes(changes, group[0].namespace)
            except StoreError as error:
                self._failure = error
                if isinstance(error, StoreReadOnly) and error.namespace is not None:
                    denied[group[0].namespace] = error
                    continue
                if not isinstance(error, StoreFull) or len(group) == 1:
                    raise
                # The disk is full. Write each call separately, because small ones may still fit.
                one_by_one = True
                continue
            with self._guard:
                if denied:
                    written = {call.number for call in group}
                    self._queue = deque(call for call in self._queue if call.number not in written)
                else:
                    for _ in group:
                        self._queue.popleft()
                self._durable_number = self._queue[0].number - 1 if self._queue else self._enqueued_number
        self._failure = next(iter(denied.values()), None)
        for space, denial in denied.items():
            if spaces is None or space in spaces:
                raise denial

    def _next_group(self, target: int, count: int | None, denied: Container[str]) -> list[PendingCall]:
        """
        Return the next calls up to number *target* that one transaction can write. All have the same namespace.

        They stay in the queue. Calls of *denied* namespaces are skipped.
        """
        group: list[PendingCall] = []
        size = 0
        with self._guard:
            for call in islice((call for call in self._queue if call.namespace not in denied), count):
                if call.number > target or (group and size + call.size > MAX_TRANSACTION_BYTES):
                    break
                if group and call.namespace != group[0].namespace:
                    break
                group.append(call)
                size += call.size
        return group

    def _read(self, keys: list[str], storage_namespace: str) -> dict[str, bytes | DamagedValue]:
        found = self.run_read_in_job(lambda rows: rows.get_many(keys), namespace=storage_namespace)
        for key, change in self._pending_changes(storage_namespace).items():
            if key not in keys or (isinstance(change, NewValue) and isinstance(found.get(key), bytes)):
                continue
            if change is None:
                found.pop(key, None)
            else:
                found[key] = change.value if isinstance(change, NewValue) else change
        return {key: found[key] for key in keys if key in found}

    def _keys(self, prefix: str, space: str) -> list[str]:
        keys = set(self.run_read_in_job(lambda rows: rows.keys(prefix), namespace=space))
        for key, change in self._pending_changes(space).items():
            if key.startswith(prefix):
                (keys.discard if change is None else keys.add)(key)
        return sorted(keys)

    def _pending_changes(self, space: str) -> dict[str, RowChange]:
        with self._guard:
            calls = [call for call in self._queue if call.namespace == space]
        return merge_calls(calls)

    def _check(self) -> list[Issue]:
        findings = self._inspect()
        if self._failure is not None:
            message = f"the rows of {len(self._queue)} calls are not written yet: {self._failure}"
            findings.append(Issue("error", "pending", message))
        return findings


class SqliteStorage(RowStorage):
    """A store in a directory. Create it with `open` or `temporary`."""

    def __init__(
        self, directory: Path, *, wait: float = DEFAULT_WAIT_SECONDS, temporary: TemporaryDirectory | None = None
    ) -> None:
        self.directory: Path = directory
        self._temporary = temporary
        self._database: Database | None = None
        super().__init__(str(directory), name=directory.name, wait=wait)

    @classmethod
    def open(cls, directory: Path, *, wait: float = DEFAULT_WAIT_SECONDS) -> SqliteStorage:
        """Open the store in *directory*. Create missing directories (mode 0700). Blocks."""
        storage = cls(absolute_path(directory), wait=wait)
        executor = storage._executor
        try:
            executor.submit(storage._run_job, storage._open).result()
            executor.submit(storage._run_job, storage._extend_reserve).result()
        except BaseException:
            # After Ctrl-C the thread may still be opening the database. It closes the database when it ends.
            storage._closing = Future()
            executor.shutdown(wait=False)
            raise
        executor.submit(delete_leftovers)
        return storage

    @classmethod
    def temporary(cls, *, wait: float = DEFAULT_WAIT_SECONDS) -> SqliteStorage:
        """Return a store that is deleted when it is closed. The first write creates its directory."""
        temporary = TemporaryDirectory()
        return cls(temporary.path / "journal", wait=wait, temporary=temporary)

    async def erase_deleted_data(self, *, wait: float | None = None) -> bool:
        """
        Erase deleted data from disk.

        Return False if that was not possible within *wait* seconds.
        """
        self._check_open()
        if not self._has_database():
            return True
        if self.is_read_only:
            return False
        seconds = self._wait if wait is None else min(wait, self._wait)
        return await run_in_own_thread(lambda: erase_deleted_data(self.directory, wait=seconds))

    @property
    def is_read_only(self) -> bool:
        """Implements `RowStorage.is_read_only`."""
        return self._database is not None and self._database.is_read_only

    def _check_changes(self, changes: dict[str, RowChange]) -> None:  # noqa: ARG002 - unused
        if self.is_read_only:
            raise read_only_error(self.directory)

    def _has_database(self) -> bool:
        """Return True if the database exists. A temporary store creates it at the first write."""
        return self._temporary is None or self._database is not None

    # The methods below run in the store's thread.

    def run_read_in_job(self, work: Callable[[Snapshot], T], *, namespace: str | None = None) -> T:  # noqa: ARG002 - unused
        """Implements `RowStorage.run_read_in_job`."""
        if not self._has_database():
            return work(SqliteSnapshot(None))

        def looked(connection: sqlite3.Connection) -> T:
            rows = SqliteSnapshot(connection)
            try:
                return work(rows)
            finally:
                rows.end()

        return self._run_on_snapshot(looked)

    def _open(self) -> Database:
        if self._database is None:
            try:
                if self._temporary is not None:
                    self._temporary.create()
                try:
                    self._database = self._retry_while_busy(self._connect)
                except StoreFull:
                    # SQLite creates the log and its index when the first process opens the database.
                    if not release_reserve(self.directory):
                        raise
                    self._database = self._retry_while_busy(self._connect)
            except OSError as error:
                raise store_error(error, self.directory) from error
            finally:
                if self._database is None and self._temporary is not None:
                    self._temporary.remove()
            _thread_state.opened = self._database
            if self._temporary is not None:
                delete_leftovers()
        return self._database

    def _connect(self) -> Database:
        return Database(self.directory, temporary=self._temporary)

    def _extend_reserve(self) -> None:
        """Make the reserve large enough for a deletion and the log. Without space for it, keep the log empty."""
        opened = self._open()
        size = reserve_size(opened.database_bytes, opened.log_bytes)
        if self._temporary is not None or self.is_read_only or create_reserve(self.directory, size):
            return
        # Deletions need the space to which the log could not be copied later.
        self._restart_log()

    def _close_database(self) -> None:
        if self._database is not None:
            self._database.close()
            # SQLite deletes the log when the last process closes the database.
            if self._temporary is None and not self.is_read_only and not (self.directory / WAL_FILE).exists():
                shrink_reserve(self.directory)

    @staticmethod
    def _run_job(job: Callable[[], T]) -> T:
        """Run a job in the store's thread, with exclusive use of the database."""
        opened: Database | None = getattr(_thread_state, "opened", None)
        if opened is not None:
            opened.acquire()
        try:
            return job()
        finally:
            # Get the database again, because the job may have opened it.
            opened = getattr(_thread_state, "opened", None)
            if opened is not None:
                opened.release()

    def _run_transaction(
        self,
        work: Callable[[Rows], T],
        *,
        spaces: Sequence[str] = (),  # noqa: ARG002 - unused
        wait: float | None = None,
    ) -> T:
        opened = self._begin_write(self._wait if wait is None else wait)
        rows = SqliteRows(opened.connection)
        try:
            result = call_sync(work, rows)
            self._commit(rows)
        except Exception as error:
            if rows.failure is None or isinstance(error, StoreError):
                raise
            raise store_error(rows.failure, self.directory) from error
        finally:
            rows.end()
            opened.rollback()
        opened.check_files()
        self._extend_reserve()
        return result

    def _commit(self, rows: SqliteRows) -> None:
        """Commit a transaction. If the disk is full and the transaction frees space, make space for it."""
        try:
            rows.commit()
        except sqlite3.Error as error:
            if not rows.can_repeat or not isinstance(store_error(error, self.directory), StoreFull):
                raise
            # The log may have space that a checkpoint makes reusable. Deletions reuse it until the disk has space.
            if not self._repeat(rows) and not (
                release_reserve(self.directory, values_bytes=rows.values_bytes) and self._repeat(rows)
            ):
                raise
            rows.failure = None

    def _repeat(self, rows: SqliteRows) -> bool:
        """Restart the log and execute a transaction again. Return False if there is no space for it."""
        opened = self._open()
        opened.rollback()
        self._restart_log()
        try:
            return rows.repeat(self._begin_write(self._wait).connection)
        except sqlite3.Error as error:
            if not isinstance(store_error(error, self.directory), StoreFull):
                raise
            return False
        finally:
            opened.rollback()

    def _restart_log(self) -> None:
        """Copy the log to the database, so that the next transaction overwrites it from its beginning. Best effort."""
        with contextlib.suppress(sqlite3.Error):
            self._open().connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    def _begin_write(self, wait: float) -> Database:
        """
        Wait until this process is the next writer, and begin a write transaction.

        Meanwhile run queued reads.
        """
        opened = self._open()
        if opened.is_read_only:
            raise read_only_error(self.directory)
        started = time.monotonic()

        def begin() -> None:
            # Check the files, because the directory may have been moved after the database was opened.
            opened.check_files()
            # The process ahead in the queue may have been stopped, so ignore the queue after half of *wait*.
            if not opened.enter_queue() and time.monotonic() - started < wait / 2:
                raise _NotNextWriter
            opened.begin("IMMEDIATE")

        def pause(seconds: float) -> None:
            until = time.monotonic() + seconds
            with contextlib.suppress(Empty):
                while (left := until - time.monotonic()) > 0:
                    # Release the database meanwhile, so that a fork need not wait for this transaction to begin.
                    opened.release()
                    try:
                        look = self._queued_reads.get(timeout=left)
                    finally:
                        opened.acquire()
                    look()

        try:
            self._retry_while_busy(begin, wait=wait, pause=pause)
        finally:
            opened.leave_queue()
        return opened

    def _inspect(self) -> list[Issue]:
        findings = []
        if self._has_database():
            try:
                opened = self._open()
                look = functools.partial(inspect_store, directory=self.directory, is_shared=opened.is_shared())
                findings = [*self._run_on_snapshot(look), *opened.findings]
            except StoreError:
                raise
            except OSError as error:
                raise store_error(error, self.directory) from error
        return findings

    def _run_on_snapshot(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """Run *look* in one read transaction, so that all of its queries see the same snapshot."""
        opened = self._open()

        def attempt() -> T:
            for _ in range(MAX_READS_OF_CHANGED_FILES):
                opened.check_files()
                try:
                    opened.begin("DEFERRED")
                    result = look(opened.connection)
                except (sqlite3.Error, StoreError):
                    # The pages of a file that changes meanwhile do not fit together.
                    if not opened.is_outdated():
                        raise
                else:
                    if not opened.is_outdated():
                        return result
                finally:
                    opened.rollback()
            raise StoreBusy(f"another process changes {self.directory}, and this one cannot lock it", hint="try again")

        return self._retry_while_busy(attempt)

    def _retry_while_busy(
        self, attempt: Callable[[], T], *, wait: float | None = None, pause: Callable[[float], object] = time.sleep
    ) -> T:
        """Retry *attempt* while other connections hold the lock, for *wait* seconds at most."""
        started = time.monotonic()
        max_wait = self._wait if wait is None else wait
        seconds = MIN_RETRY_SECONDS
        while True:
            try:
                return attempt()
            except (_NotNextWriter, diskcache.Timeout, sqlite3.Error) as error:
                waited = time.monotonic() - started
                if not (isinstance(error, _NotNextWriter) or is_busy(error)):
                    raise store_error(error, self.directory) from error
                if waited >= max_wait:
                    raise StoreBusy(
                        f"another process kept {self.directory} from being written for {waited:.1f} s",
                        waited=waited,
                        hint="try again, or look for a process that holds a transaction open",
                    ) from error
            # Add jitter, so that processes that collided once do not collide at every retry.
            pause(min(random.uniform(seconds / 2, seconds), max_wait - waited))  # noqa: S311 - not security-relevant
            seconds = min(2 * seconds, MAX_RETRY_SECONDS if waited < SLOW_RETRY_AFTER_SECONDS else SLOW_RETRY_SECONDS)


class _NotNextWriter(Exception):
    """Raised if another process is the next writer."""


def _run_queued_read(queued_reads: Queue[Callable[[], None]]) -> None:
    """Run the oldest queued read. The queue is empty if a waiting transaction has already run the read."""
    with contextlib.suppress(Empty):
        queued_reads.get_nowait()()


@functools.cache
def _without_finalizer(kind: type[Any]) -> type[Any]:
    """Return a subclass without a finalizer. The thread uses it to reference a store."""
    return type(kind.__name__, (kind,), {"__del__": lambda _self: None})


async def await_job(job: Future[T]) -> T:
    """Wait for *job*. The job continues if the caller is cancelled or the caller's loop is closed."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    due = _wake_batches.setdefault(loop, _WakeBatch())
    job.add_done_callback(lambda _job: due.wake(loop, woken))
    await woken
    return job.result()


class _WakeBatch:
    """
    Futures of one event loop that are resolved in a single wake-up of the loop.

    Waking up a loop costs as much as writing a row.
    """

    # Uses no lock, because a forked child could inherit it while it is held.
    # `_wake_all` clears `_is_scheduled` first, so a future that is added while the flag is set is always resolved.

    def __init__(self) -> None:
        # Weak references: a future references its loop, so strong ones would keep the loop in `_wake_batches` forever.
        self._waiting: deque[ref[asyncio.Future[None]]] = deque()
        self._is_scheduled = False

    def wake(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        """Schedule the resolution of a future. Thread-safe."""
        self._waiting.append(ref(waiter))
        if not self._is_scheduled:
            self._is_scheduled = True
            with contextlib.suppress(RuntimeError):  # Ignore the RuntimeError that is raised if the loop is closed.
                loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        self._is_scheduled = False
        while self._waiting:
            one = self._waiting.popleft()()
            if one is not None and not one.done():
                one.set_result(None)


_wake_batches: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _WakeBatch]] = WeakKeyDictionary()


def copy_error(error: BaseException) -> BaseException:
    """Return a copy of an error, so that each waiter raises its own copy with its own traceback."""
    try:
        other = copy.copy(error)
    except Exception:  # noqa: BLE001 - any error may have been raised
        return error
    other.__cause__ = error.__cause__
    return other
