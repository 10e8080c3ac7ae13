"""
Connection to a SQLite store: file identity checks, queue of writers, and fork safety.

SQLite tracks file locks in process memory. A forked child inherits that state but not the locks. So no connection
survives a fork: each is closed before, and reopened at its next use. If a connection cannot be closed in time because
of a long operation, the child must not open that directory.
"""

from __future__ import annotations

import concurrent.futures.thread
import contextlib
import ctypes
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from weakref import WeakMethod

import attrs

from mama_structs.errors import StoreError
from mama_structs.storage.cache_factory import check_format, check_schema, open_database
from mama_structs.storage.files import DATABASE, MARK_FILE, TemporaryDirectory
from mama_structs.storage.locks import LockFile, unwatch
from mama_structs.storage.sqlite_errors import Finding, damaged, is_busy, store_error
from mama_structs.storage.wal import others

# Seconds that a fork waits for running operations.
_PATIENCE: Final = 5.0
# Seconds between attempts to erase deleted data.
_PAUSE: Final = 0.01
# Byte of the mark file that a process locks while it is next in the queue of writers.
_TURN: Final = 1
ERASING: Final = "erasing/"
"""Key prefix of rows that record unfinished erasures. The next process that opens the store finishes them."""
_WAL: Final = f"{DATABASE}-wal"
_INDEX: Final = f"{DATABASE}-shm"

Identity = tuple[int, int]


@attrs.define(eq=False)
class _Seat:
    """An open database. The user of the connection holds *busy*; *close* requires it, too."""

    directory: Path
    close: Callable[[], object]
    busy: threading.Lock = attrs.field(factory=threading.Lock)
    user: int = 0
    identity: Identity | None = None
    connection: sqlite3.Connection | None = None


class _Forks:
    """Registry of the databases that this process has open and those it inherited by a fork."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._seats: set[_Seat] = set()
        self._inherited: set[Identity] = set()
        # Ids of threads that are forking. Not a counter: Ctrl-C in a hook would leave it wrong permanently.
        self._near: set[int] = set()

    def enter(self, seat: _Seat) -> None:
        """
        Register a database as open.

        Wait for forks in progress, and reject databases that the parent had open.
        """
        if self._pid != os.getpid():
            self.forget()  # forked by native code, which does not run Python's hooks
        with self._changed:
            self._changed.wait_for(lambda: not self._near)
            if _look(seat.directory / DATABASE)[0] in self._inherited:
                raise StoreError(
                    f"{seat.directory} was in use when this process was forked",
                    hint="start workers by spawn or forkserver, or fork them before the session is opened",
                )
            self._seats.add(seat)

    def leave(self, seat: _Seat) -> None:
        """Unregister a database."""
        with self._changed:
            self._seats.discard(seat)

    def before(self) -> None:
        """
        Close all connections before a fork.

        Connections of the forking thread, and ones that stay busy too long, remain open.
        """
        with self._changed:
            self._near.add(threading.get_ident())
            seats = list(self._seats)
        until = time.monotonic() + _PATIENCE
        for seat in seats:
            if seat.user != threading.get_ident() and seat.busy.acquire(timeout=max(0, until - time.monotonic())):
                try:
                    seat.close()
                finally:
                    seat.busy.release()

    def after(self) -> None:
        """Resume waiting threads in the parent after a fork."""
        with self._changed:
            self._near.discard(threading.get_ident())
            self._changed.notify_all()

    def forget(self) -> None:
        """
        Reset the state in the child.

        Never close inherited connections: SQLite might delete the parent's files.
        """
        seats, inherited = self._seats, self._inherited
        self.__init__()  # type: ignore[misc]  # in place, because hooks reference this object
        self._inherited = inherited
        for seat in seats:
            _never_close(seat.connection)
            self._inherited |= {one for one in (seat.identity, _look(seat.directory / DATABASE)[0]) if one}


_forks: Final = _Forks()
# Fork hooks run in reverse order of registration.
# These modules register theirs on import, so ours run earlier.
# A thread that uses a database may still log and submit jobs meanwhile.
_REGISTERED_BEFORE: Final = (logging, concurrent.futures.thread)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forks.before, after_in_parent=_forks.after, after_in_child=_forks.forget)


@contextlib.contextmanager
def in_use(directory: Path) -> Iterator[None]:
    """Register a database that is read through a separate connection: forks wait meanwhile."""
    seat = _Seat(directory, int, user=threading.get_ident())
    with seat.busy:
        _forks.enter(seat)
        try:
            yield
        finally:
            _forks.leave(seat)


class Database:
    """
    The database connection of a store's thread, used by one thread at a time.

    Acquired at construction.
    """

    def __init__(self, directory: Path, *, temporary: TemporaryDirectory | None) -> None:
        self._directory = directory
        # Strings instead of paths for speed: they are checked before every transaction.
        self._paths = [os.fspath(directory / name) for name in (DATABASE, _WAL, _INDEX)]
        self._mark_path = os.fspath(directory / MARK_FILE)
        self._busy = threading.Lock()
        self._temporary = temporary
        self._pid = os.getpid()
        self._files: tuple[Identity | None, ...] = ()
        self._index_size = 0
        self._turn: LockFile | None = None
        self._is_next = False
        self._closed = False
        self._schema_version = 0
        self._is_shared = False
        # Data lost by crashes before the database was opened.
        self.findings: list[Finding] = []
        self._seat: _Seat | None = None
        self.take()
        self._seat = self._open()

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, reopened after a fork."""
        if self._seat is None:
            # Never create or open another file under the same name.
            if _look(self._paths[0])[0] != self._files[0]:
                raise self._moved()
            self._seat = self._open()
        assert self._seat.connection is not None  # noqa: S101 - for the type checker
        return self._seat.connection

    def take(self) -> None:
        """Acquire exclusive use. Forks wait meanwhile, and this waits for a fork in progress."""
        self._busy.acquire()
        if self._seat is not None:
            self._seat.user = threading.get_ident()

    def let_go(self) -> None:
        """Release exclusive use. A fork may then close the connection, which is reopened at its next use."""
        if self._seat is not None:
            self._seat.user = 0
        self._busy.release()

    def check_place(self) -> None:
        """
        Raise if a file was replaced or deleted.

        SQLite would write to deleted files without an error.
        """
        if self.connection and not self._is_in_place():
            raise self._moved()

    def begin(self, kind: str) -> None:
        """Begin a transaction. A write transaction requires the format and schema of this version."""
        connection = self.connection
        # The rollback of the previous transaction may have failed.
        self.leave_transaction()
        connection.execute(f"BEGIN {kind}")
        if kind != "IMMEDIATE":
            return
        try:
            # Check while holding the write lock: a newer version may have upgraded the store since it was opened.
            check_format(self._directory, fd=self._mark())
            # A trigger that was added since then would run.
            if connection.execute("PRAGMA schema_version").fetchone()[0] != self._schema_version:
                self._schema_version = check_schema(connection, self._directory)
        except OSError as error:
            self.leave_transaction()
            raise store_error(error, self._directory) from error
        except BaseException:
            self.leave_transaction()
            raise

    def _mark(self) -> int | None:
        """Return the descriptor of the mark file, or None if another file has its name now."""
        if self._turn is None or not hasattr(os, "pread"):
            return None
        opened = os.fstat(self._turn.fd)
        found, _ = _look(self._mark_path)
        return self._turn.fd if found == (opened.st_dev, opened.st_ino) else None

    def leave_transaction(self) -> None:
        """Roll back an open transaction, which would prevent the next one from beginning."""
        if self._seat is not None and self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")

    def queue(self) -> bool:
        """Become the next writer. Return False if another process already is."""
        if not self._is_next:
            # On a file system without locks, writers are not queued.
            with contextlib.suppress(OSError):
                if self._turn is not None and not self._turn.try_lock(_TURN):
                    return False
            self._is_next = True
        return True

    def leave_queue(self) -> None:
        """Give up the position of next writer."""
        self._is_next = False
        if self._turn is not None:
            with contextlib.suppress(OSError):
                self._turn.unlock(_TURN)

    def is_shared(self) -> bool:
        """Return True if another process was ever seen to have the database open."""
        self._is_shared |= self.connection is not None and others(self._directory)
        return self._is_shared

    def close(self) -> None:
        """Close the connection permanently. Idempotent."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._disconnect()
        if self._temporary is not None:
            self._temporary.remove()

    def _open(self) -> _Seat:
        disconnect = WeakMethod(self._disconnect)
        # A weak reference, so that a store that was never closed closes its connection when its thread ends.
        seat = _Seat(self._directory, lambda: (method := disconnect()) and method(), self._busy, threading.get_ident())
        _forks.enter(seat)
        try:
            opened = open_database(self._directory)
            seat.connection = opened.connection
            # Open it now, because a write must not need another descriptor.
            with contextlib.suppress(OSError):
                self._turn = LockFile.open(self._mark_path, create=False)
        except BaseException:
            _forks.leave(seat)
            raise
        self._files, self._index_size = self._look()
        seat.identity = self._files[0]
        self.findings += opened.findings
        self._schema_version = opened.schema_version
        self._is_shared |= others(self._directory)
        return seat

    def _disconnect(self) -> None:
        seat, self._seat = self._seat, None
        if seat is None:
            return
        self.leave_queue()
        if self._turn is not None:
            self._turn.close()
            self._turn = None
        try:
            if seat.connection is not None and self._is_in_place():
                with contextlib.suppress(sqlite3.Error):
                    seat.connection.close()
            else:
                # Closing would checkpoint a stale log into the database, or delete the log of another database.
                _never_close(seat.connection)
        finally:
            unwatch()
            _forks.leave(seat)

    def _look(self) -> tuple[tuple[Identity | None, ...], int]:
        looks = [_look(path) for path in self._paths]
        return tuple(identity for identity, _ in looks), looks[-1][1]

    def _is_in_place(self) -> bool:
        files, index_size = self._look()
        # The index is memory-mapped and only grows. If it was truncated, the next access would crash the process.
        if files != self._files or index_size < self._index_size:
            return False
        self._index_size = index_size
        return True

    def _moved(self) -> StoreError:
        return damaged(self._directory, "a file of it was moved, replaced, cut or deleted while it was open")

    def __del__(self) -> None:
        # Without an explicit close, the thread's own reference is the last one.
        if hasattr(self, "_seat"):
            self.close()


def _never_close(connection: sqlite3.Connection | None) -> None:
    """Leak a connection, so that neither garbage collection nor interpreter exit closes it."""
    if connection is not None:
        with contextlib.suppress(AttributeError):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _look(path: str | Path) -> tuple[Identity | None, int]:
    """Return device and inode, and the size of a file; None and 0 if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116 - twice as fast as Path.stat, called three times per transaction
    except OSError:
        return None, 0
    return (status.st_dev, status.st_ino), status.st_size


# Erasing deleted data: old bytes survive in free pages, in gaps within pages and in the log.
# SQLite's `secure_delete` overwrites freed space but misses copies in the gaps of pages that were split.
# So the database is rewritten and the log truncated.
# Both require that no connection still reads the old state.


def scrub(directory: Path, *, wait: float) -> bool:
    """
    Rewrite a database and truncate its log.

    Return False if readers prevent that for *wait* seconds. Blocks.
    """
    until = time.monotonic() + wait
    with in_use(directory):
        connection = sqlite3.connect(directory / DATABASE, timeout=0, isolation_level=None)
        with contextlib.closing(connection):
            try:
                # Keep temporary data in memory: on disk, deleted data could survive in a temporary file.
                connection.execute("PRAGMA temp_store = 2").fetchall()
                connection.execute("PRAGMA synchronous = 2").fetchall()
                # Truncate first, because it is cheap: a reader of the old state blocks both steps.
                return _emptied(connection, until) and _rewritten(connection, until) and _emptied(connection, until)
            except sqlite3.Error as error:
                raise store_error(error, directory) from error


def _emptied(connection: sqlite3.Connection, until: float) -> bool:
    """Truncate the log. Return False if readers prevent that until the deadline."""
    while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() >= until:
            return False
        # Do not use SQLite's own busy timeout, which would block all writers meanwhile.
        time.sleep(_PAUSE)
    return True


def _rewritten(connection: sqlite3.Connection, until: float) -> bool:
    while True:
        try:
            connection.execute("VACUUM")
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if time.monotonic() >= until:
                return False
            time.sleep(_PAUSE)
        else:
            return True
