"""
One open store: the queue of what is to be written, and the thread that writes it.

Everything that touches the database runs in that one thread, in the order in which it was asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import logging
import os
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import diskcache  # type: ignore[import-untyped]  # it ships no types

from mama_structs._async import LoopBound
from mama_structs.errors import InvalidArgument, SessionClosed, StoreBusy, StoreError, StoreFull
from mama_structs.storage._disk import Damaged, check_key
from mama_structs.storage.failures import again, damaged, identity_of, is_busy, store_error
from mama_structs.storage.files import TemporaryDirectory
from mama_structs.storage.files import sweep as sweep_temporary
from mama_structs.storage.inspection import Finding, inspect_store, pending_finding
from mama_structs.storage.opening import open_cache
from mama_structs.storage.rows import (
    Call,
    Change,
    New,
    NoRows,
    Rows,
    Snapshot,
    check_prefix,
    checked_changes,
    combined,
    list_keys,
    read_row,
)
from mama_structs.storage.rows import size_of as size_of_changes

T = TypeVar("T")

# Bytes of rows that one transaction takes; the rows of one call are never divided.
_TRANSACTION_BYTES: Final = 64 * 2**20
_SHORTEST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.05

_log: Final = logging.getLogger("mama_structs")

_worker: Final = threading.local()
_connections: Final[set[sqlite3.Connection]] = set()


def _keep_connections() -> None:
    """Keep a forked child from ever closing its parent's connections: SQLite may then remove the parent's files."""
    for connection in _connections:
        with contextlib.suppress(AttributeError):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _connections.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_connections)


@attrs.define(eq=False)
class _Opened:
    """What the thread has open; closed in that thread, at the latest when it ends."""

    cache: Any
    connection: sqlite3.Connection
    directory: Path
    temporary: TemporaryDirectory | None
    identity: tuple[int, int] | None
    pid: int = attrs.field(factory=os.getpid)
    closed: bool = False

    def close(self) -> None:
        if self.closed or self.pid != os.getpid():
            return
        self.closed = True
        _connections.discard(self.connection)
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()
        if self.temporary is not None:
            self.temporary.remove()

    def check_place(self) -> None:
        """
        See that the file is still the one in the directory: into one that was deleted SQLite writes without complaint.

        Raises:
            StoreDamaged: It is gone, or another one is in its place.

        """
        if identity_of(self.directory) != self.identity:
            raise damaged(self.directory, "the file was moved or deleted while it was open")

    def __del__(self) -> None:
        # The thread's own reference is the last one where nobody closed: at the interpreter's exit, or forgotten.
        self.close()


class Journal:
    """
    One open store; see `Storage`, which is how it is used.

    Args:
        directory: The database's.
        wait: Seconds that a write waits for other connections.
        temporary: The directory to make around it when first written to, None for a store that stays.

    """

    def __init__(self, directory: Path, *, wait: float, temporary: TemporaryDirectory | None = None) -> None:
        self.directory: Path = directory
        self.bound: LoopBound = LoopBound("store")
        self._wait = wait
        self._temporary = temporary
        self._opened: _Opened | None = None
        # Reentrant: the collector may run a forgotten store's finalizer inside any of the blocks that hold it.
        self._guard = threading.RLock()
        self._queue: deque[Call] = deque()
        self._enqueued = 0
        self._durable = 0
        self._waiting: list[tuple[int, Future[None]]] = []
        self._is_drain_due = False
        self._failure: StoreError | None = None
        self._closing: Future[None] | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"mama-structs {directory.name}")

    def open(self) -> None:
        """
        Open the database, waiting for it.

        Raises:
            StoreError: It cannot be opened.

        """
        try:
            self._executor.submit(self._open).result()
        except BaseException:
            # The thread may still be opening, after Ctrl-C: what it opens is closed when it ends.
            self._executor.shutdown(wait=False)
            raise
        self._executor.submit(_sweep)

    @property
    def was_used(self) -> bool:
        """Whether there is anything to close."""
        return self._has_database()

    @property
    def pending(self) -> int:
        """How many calls' rows are not on the disk yet."""
        with self._guard:
            return len(self._queue)

    def enqueue(self, rows: Iterable[tuple[str, Change]]) -> None:
        """Take rows to be written behind."""
        self.bound.check_thread()
        changes = checked_changes(rows)
        if not changes:
            return
        size = size_of_changes(changes)
        with self._guard:
            self._check_open()
            self._schedule()
            self._enqueued += 1
            self._queue.append(Call(self._enqueued, changes, size))

    def flush(self) -> Future[None]:
        """Return what is done when everything taken so far is on the disk."""
        done: Future[None] = Future()
        # From here on nobody can cancel it; who waits for it may go away.
        done.set_running_or_notify_cancel()
        with self._guard:
            self._check_open()
            if self._durable == self._enqueued:
                done.set_result(None)
            else:
                self._schedule()
                self._waiting.append((self._enqueued, done))
        return done

    def read(self, keys: Sequence[str]) -> Future[dict[str, bytes | Damaged]]:
        """Look keys up, in what is on the disk and what is on its way there."""
        wanted = [check_key(key) for key in keys]
        return self._submit(lambda: self._read(wanted))

    def keys(self, prefix: str) -> Future[list[str]]:
        """List keys, of what is on the disk and what is on its way there."""
        check_prefix(prefix)
        return self._submit(lambda: self._keys(prefix))

    def transact(
        self, work: Callable[[Rows], T], *, settled: Callable[[BaseException | None], None] | None = None
    ) -> Future[T]:
        """Run *work* in one transaction, after what was taken before is on the disk."""
        return self._submit(lambda: self._transact(work, settled))

    def look(self, work: Callable[[Snapshot], T]) -> Future[T]:
        """Run *work* on what is on the disk, all of one moment."""
        return self._submit(lambda: self._look(work))

    def check(self) -> Future[list[Finding]]:
        """Look at every row and file."""
        return self._submit(self._check)

    def close(self) -> Future[None]:
        """Write what is left, close the database and end the thread; runs to its end whoever waits."""
        with self._guard:
            if self._closing is None:
                self._closing = self._submit(self._close)
                self._executor.shutdown(wait=False)
            return self._closing

    def join_closed(self) -> None:
        """Wait for the thread's end if the store was closed, which is a moment."""
        if self._closing is not None and self._closing.done():
            self._executor.shutdown(wait=True)

    # What follows the guard's holder calls.

    def _check_open(self) -> None:
        self.bound.check_thread()
        if self._closing is not None:
            raise SessionClosed("the store was closed")

    def _schedule(self) -> None:
        if not self._is_drain_due:
            self._submit(self._drain)
            self._is_drain_due = True

    def _submit(self, job: Callable[[], T]) -> Future[T]:
        with self._guard:
            self._check_open()
            try:
                return self._executor.submit(job)
            except RuntimeError as error:
                raise SessionClosed("the interpreter is shutting down") from error

    # What follows runs in the thread.

    def _open(self) -> _Opened:
        if self._opened is None:
            try:
                if self._temporary is not None:
                    self._temporary.make()
                cache = self._patiently(lambda: open_cache(self.directory))
                connection = cache._con  # noqa: SLF001 - closed in this thread
                place = identity_of(self.directory)
                self._opened = _Opened(cache, connection, self.directory, self._temporary, place)
            except OSError as error:
                raise store_error(error, self.directory) from error
            finally:
                if self._opened is None and self._temporary is not None:
                    self._temporary.remove()
            _connections.add(self._opened.connection)
            _worker.opened = self._opened
            if self._temporary is not None:
                sweep_temporary()
        return self._opened

    def _close(self) -> None:
        try:
            self._write_pending()
        except StoreError as error:
            error.add_note(f"the rows of {len(self._queue)} calls were not written")
            raise
        finally:
            if self._opened is not None:
                self._opened.close()

    def _drain(self) -> None:
        with self._guard:
            self._is_drain_due = False
            waiting, self._waiting = self._waiting, []
        failure: BaseException | None = None
        try:
            self._write_pending()
        except Exception as error:  # noqa: BLE001 - told to everyone who waits
            failure = error
            if not waiting:
                _log.warning("the rows of %d calls are not written yet: %s", len(self._queue), error)
        for number, done in waiting:
            if failure is None or number <= self._durable:
                done.set_result(None)
            else:
                done.set_exception(again(failure))

    def _write_pending(self) -> None:
        """Write what was taken until now, in order and in few transactions; what fails stays."""
        with self._guard:
            target = self._enqueued
        one_by_one = False
        while group := self._take(target, 1 if one_by_one else None):
            changes = combined(group)
            try:
                self._in_transaction(lambda rows, changes=changes: rows.apply(changes))  # type: ignore[misc]  # bound
            except StoreFull as error:
                self._failure = error
                if len(group) == 1:
                    raise
                # What comes before the call that there is no room for is saved.
                one_by_one = True
                continue
            except StoreError as error:
                self._failure = error
                raise
            self._failure = None
            with self._guard:
                for _ in group:
                    self._queue.popleft()
                self._durable = group[-1].number

    def _take(self, target: int, count: int | None) -> list[Call]:
        """Return the next calls up to number *target* that make up one transaction, leaving them in the queue."""
        group: list[Call] = []
        size = 0
        with self._guard:
            for call in islice(self._queue, count):
                if call.number > target or (group and size + call.size > _TRANSACTION_BYTES):
                    break
                group.append(call)
                size += call.size
        return group

    def _transact(self, work: Callable[[Rows], T], settled: Callable[[BaseException | None], None] | None) -> T:
        try:
            self._write_pending()
            result = self._in_transaction(work)
        except BaseException as error:
            if settled is not None:
                settled(error)
            raise
        if settled is not None:
            settled(None)
        return result

    def _in_transaction(self, work: Callable[[Rows], T]) -> T:
        opened = self._open()
        opened.check_place()
        # The rollback of the one before may have failed, too.
        self._leave_transaction(opened.connection)
        rows = Rows(opened.cache)
        own: BaseException | None = None
        try:
            with contextlib.ExitStack() as stack:
                self._patiently(lambda: stack.enter_context(opened.cache.transact(retry=False)))
                try:
                    result = work(rows)
                    if inspect.isawaitable(result):
                        if inspect.iscoroutine(result):
                            result.close()
                        raise InvalidArgument("a transaction's work must not be async")
                except BaseException as error:
                    own = error
                    raise
                if rows.failure is not None:
                    # The work has swallowed it; what it wrote is not whole.
                    raise rows.failure
        except Exception as error:
            if own is not None and rows.failure is None:
                raise own from own.__cause__
            if isinstance(error, StoreError):
                raise
            raise store_error(rows.failure or error, self.directory) from error
        finally:
            rows.end()
            self._leave_transaction(opened.connection)
        opened.check_place()
        return result

    def _leave_transaction(self, connection: sqlite3.Connection) -> None:
        """Roll back what a failed commit leaves open: the next transaction could not begin."""
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")

    def _read(self, keys: list[str]) -> dict[str, bytes | Damaged]:
        found: dict[str, bytes | Damaged | None] = dict.fromkeys(keys)
        if self._has_database():
            found = self._snapshot(lambda cache: {key: read_row(cache, key) for key in found})
        for key, change in self._on_their_way().items():
            if key in found and not (isinstance(change, New) and isinstance(found[key], bytes)):
                found[key] = change.value if isinstance(change, New) else change
        return {key: value for key, value in found.items() if value is not None}

    def _keys(self, prefix: str) -> list[str]:
        keys = set(self._snapshot(lambda cache: list_keys(cache, prefix))) if self._has_database() else set()
        for key, change in self._on_their_way().items():
            if key.startswith(prefix):
                (keys.discard if change is None else keys.add)(key)
        return sorted(keys)

    def _look(self, work: Callable[[Snapshot], T]) -> T:
        if not self._has_database():
            return work(NoRows())

        def looked(cache: Any) -> T:
            rows = Snapshot(cache)
            try:
                return work(rows)
            finally:
                rows.end()

        own: list[BaseException] = []

        def guarded(cache: Any) -> T | None:
            # What the work itself raises is the caller's: only the database's own errors are tried again.
            try:
                return looked(cache)
            except (diskcache.Timeout, sqlite3.Error):
                raise
            except BaseException as error:  # noqa: BLE001 - raised below
                own.append(error)
                return None

        result = self._snapshot(guarded)
        if own:
            raise own[0]
        return result  # type: ignore[return-value]  # None only where the work raised

    def _check(self) -> list[Finding]:
        findings = []
        if self._has_database():
            connection = self._open().connection
            findings = self._snapshot(lambda _cache: inspect_store(connection, self.directory))
        if self._failure is not None:
            findings.append(pending_finding(len(self._queue), self._failure))
        return findings

    def _snapshot(self, look: Callable[[Any], T]) -> T:
        """Run *look* in one reading transaction, so that all it sees is of one moment."""
        opened = self._open()

        def attempt() -> T:
            self._leave_transaction(opened.connection)
            opened.connection.execute("BEGIN")
            try:
                return look(opened.cache)
            finally:
                self._leave_transaction(opened.connection)

        return self._patiently(attempt)

    def _has_database(self) -> bool:
        """Tell whether there is one: a temporary store has none until something is written."""
        return self._temporary is None or self._opened is not None

    def _on_their_way(self) -> dict[str, Change]:
        with self._guard:
            calls = list(self._queue)
        return combined(calls)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """Make *attempt* until no other connection is in the way, as long as the store waits."""
        started = time.monotonic()
        pause = _SHORTEST_PAUSE
        while True:
            try:
                return attempt()
            except (diskcache.Timeout, sqlite3.Error, OSError) as error:
                waited = time.monotonic() - started
                if not is_busy(error):
                    raise store_error(error, self.directory) from error
                if waited >= self._wait:
                    raise StoreBusy(
                        f"another process kept {self.directory} from being written for {waited:.1f} s",
                        waited=waited,
                        hint="try again, or look for a process that holds a transaction open",
                    ) from error
            # Without jitter, processes that collided once would collide again.
            time.sleep(min(random.uniform(pause / 2, pause), self._wait - waited))  # noqa: S311 - no secret
            pause = min(2 * pause, _LONGEST_PAUSE)


def _sweep() -> None:
    sweep_temporary()
