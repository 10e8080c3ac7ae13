"""
A thread's connection to a store's database: whose files it has, its turn among the writers, and what a fork does to it.

SQLite keeps the locks of a file in the memory of the process, where a forked child finds its parent's and takes none of
its own. So no connection lives through a fork: each is closed before, and opened again when it is next used.
Where one cannot be closed, as it is in the midst of something long, the child is refused that directory.
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

# How long a fork waits for what is going on, in seconds.
_PATIENCE: Final = 5.0
# Seconds between tries to leave nothing of what was deleted.
_PAUSE: Final = 0.01
# The place in the mark file that a process locks until it has the right to write.
_TURN: Final = 1
ERASING: Final = "erasing/"
"""How the keys of rows begin that say what is still to be done, by whoever has the store open next."""
_WAL: Final = f"{DATABASE}-wal"
_INDEX: Final = f"{DATABASE}-shm"

Identity = tuple[int, int]


@attrs.define(eq=False)
class _Seat:
    """A database that is open, or being opened; *busy* is held by who uses it, *close* closes it for who holds that."""

    directory: Path
    close: Callable[[], object]
    busy: threading.Lock = attrs.field(factory=threading.Lock)
    user: int = 0
    identity: Identity | None = None
    connection: sqlite3.Connection | None = None


class _Forks:
    """Which databases this process has open, and which ones its parent had when it was forked."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._seats: set[_Seat] = set()
        self._inherited: set[Identity] = set()
        # Threads that are about to fork. No count: Ctrl-C in a hook would leave it wrong for ever.
        self._near: set[int] = set()

    def enter(self, seat: _Seat) -> None:
        """Count a database as open from here on; waits until nobody forks, and refuses what the parent had open."""
        if self._pid != os.getpid():
            self.forget()  # it was forked by something that knows nothing of Python
        with self._changed:
            self._changed.wait_for(lambda: not self._near)
            if _look(seat.directory / DATABASE)[0] in self._inherited:
                raise StoreError(
                    f"{seat.directory} was in use when this process was forked",
                    hint="start workers by spawn or forkserver, or fork them before the session is opened",
                )
            self._seats.add(seat)

    def leave(self, seat: _Seat) -> None:
        """Count it as closed."""
        with self._changed:
            self._seats.discard(seat)

    def before(self) -> None:
        """Have everything closed, but for what is in use for too long or by who forks."""
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
        """Let the parent go on."""
        with self._changed:
            self._near.discard(threading.get_ident())
            self._changed.notify_all()

    def forget(self) -> None:
        """Start anew in the child, which must never close what the parent has open: SQLite might delete its files."""
        seats, inherited = self._seats, self._inherited
        self.__init__()  # type: ignore[misc]  # in place: it is a module's name
        self._inherited = inherited
        for seat in seats:
            _never_close(seat.connection)
            self._inherited |= {one for one in (seat.identity, _look(seat.directory / DATABASE)[0]) if one}


_forks: Final = _Forks()
# What is registered last is done first: who uses a database may still log, and give jobs to executors.
_REGISTERED_BEFORE: Final = (logging, concurrent.futures.thread)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forks.before, after_in_parent=_forks.after, after_in_child=_forks.forget)


@contextlib.contextmanager
def in_use(directory: Path) -> Iterator[None]:
    """Count a database as open that is read by a connection of its own: a fork waits for it."""
    seat = _Seat(directory, int, user=threading.get_ident())
    with seat.busy:
        _forks.enter(seat)
        try:
            yield
        finally:
            _forks.leave(seat)


class Database:
    """What a store's thread has open, taken from when it is made; one thread at a time takes and uses it."""

    def __init__(self, directory: Path, *, temporary: TemporaryDirectory | None) -> None:
        self._directory = directory
        # As texts: they are looked at before every transaction.
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
        # What crashes before the openings lost.
        self.findings: list[Finding] = []
        self._seat: _Seat | None = None
        self.take()
        self._seat = self._open()

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, opened again after a fork."""
        if self._seat is None:
            # Nothing is made anew, and nothing else is opened instead.
            if _look(self._paths[0])[0] != self._files[0]:
                raise self._moved()
            self._seat = self._open()
        assert self._seat.connection is not None  # noqa: S101 - for the type checker
        return self._seat.connection

    def take(self) -> None:
        """Use it from here on; a fork waits meanwhile, and this for a fork."""
        self._busy.acquire()
        if self._seat is not None:
            self._seat.user = threading.get_ident()

    def let_go(self) -> None:
        """Let a fork close the connection, which is opened again when it is next used."""
        if self._seat is not None:
            self._seat.user = 0
        self._busy.release()

    def check_place(self) -> None:
        """See that the files are those that were opened: SQLite writes into deleted ones without complaint."""
        if self.connection and not self._is_in_place():
            raise self._moved()

    def begin(self, kind: str) -> None:
        """Begin a transaction. A write transaction begins only on the format and schema of this version."""
        connection = self.connection
        # The rollback of the previous transaction may have failed.
        self.leave_transaction()
        connection.execute(f"BEGIN {kind}")
        if kind != "IMMEDIATE":
            return
        try:
            # With the write lock held: a newer version may have upgraded the store since it was opened here.
            check_format(self._directory, fd=self._mark())
            # A trigger that was planted since then would run.
            if connection.execute("PRAGMA schema_version").fetchone()[0] != self._schema_version:
                self._schema_version = check_schema(connection, self._directory)
        except OSError as error:
            self.leave_transaction()
            raise store_error(error, self._directory) from error
        except BaseException:
            self.leave_transaction()
            raise

    def _mark(self) -> int | None:
        """Return the mark file's descriptor if the file under that name is still the one that is open."""
        if self._turn is None or not hasattr(os, "pread"):
            return None
        opened = os.fstat(self._turn.fd)
        found, _ = _look(self._mark_path)
        return self._turn.fd if found == (opened.st_dev, opened.st_ino) else None

    def leave_transaction(self) -> None:
        """Roll back what a failed commit leaves open: the next transaction could not begin."""
        if self._seat is not None and self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")

    def queue(self) -> bool:
        """Be the next to write, which one process at a time is; False where another one is."""
        if not self._is_next:
            # A file system without locks: the first to come is the first to write.
            with contextlib.suppress(OSError):
                if self._turn is not None and not self._turn.try_lock(_TURN):
                    return False
            self._is_next = True
        return True

    def leave_queue(self) -> None:
        """Let another process be the next."""
        self._is_next = False
        if self._turn is not None:
            with contextlib.suppress(OSError):
                self._turn.unlock(_TURN)

    def is_shared(self) -> bool:
        """Tell whether another process was seen with the database, now or when this one opened it or asked before."""
        self._is_shared |= self.connection is not None and others(self._directory)
        return self._is_shared

    def close(self) -> None:
        """Close it for good; again is no error."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._disconnect()
        if self._temporary is not None:
            self._temporary.remove()

    def _open(self) -> _Seat:
        disconnect = WeakMethod(self._disconnect)
        # Held weakly: a store that is forgotten closes its connection at the end of its thread.
        seat = _Seat(self._directory, lambda: (method := disconnect()) and method(), self._busy, threading.get_ident())
        _forks.enter(seat)
        try:
            opened = open_database(self._directory)
            seat.connection = opened.connection
            # Now, because a write must not need a further descriptor.
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
                # It would write the log that it knows into the database, or delete one that belongs to others now.
                _never_close(seat.connection)
        finally:
            unwatch()
            _forks.leave(seat)

    def _look(self) -> tuple[tuple[Identity | None, ...], int]:
        looks = [_look(path) for path in self._paths]
        return tuple(identity for identity, _ in looks), looks[-1][1]

    def _is_in_place(self) -> bool:
        files, index_size = self._look()
        # It is mapped, and only ever grows: where it was cut, the next statement would end the process.
        if files != self._files or index_size < self._index_size:
            return False
        self._index_size = index_size
        return True

    def _moved(self) -> StoreError:
        return damaged(self._directory, "a file of it was moved, replaced, cut or deleted while it was open")

    def __del__(self) -> None:
        # The thread's own reference is the last one where nobody closed: at the interpreter's exit, or forgotten.
        if hasattr(self, "_seat"):
            self.close()


def _never_close(connection: sqlite3.Connection | None) -> None:
    """Keep a connection from ever being closed, by the collector and at the interpreter's exit, too."""
    if connection is not None:
        with contextlib.suppress(AttributeError):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _look(path: str | Path) -> tuple[Identity | None, int]:
    """Return which file this is and its size; None and 0 where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - half the time, three times a call
    except OSError:
        return None, 0
    return (status.st_dev, status.st_ino), status.st_size


# Leaving nothing of what was deleted: old bytes outlive their row in free pages, gaps of pages, and the log.
# SQLite's `secure_delete` overwrites what it frees, and misses copies in the gaps of pages which were divided. So the
# database is written anew, and the log emptied; neither can be done while somebody reads what was there before.


def scrub(directory: Path, *, wait: float) -> bool:
    """Write a database anew and empty its log, and tell whether others let it within *wait* seconds, blocking."""
    until = time.monotonic() + wait
    with in_use(directory):
        connection = sqlite3.connect(directory / DATABASE, timeout=0, isolation_level=None)
        with contextlib.closing(connection):
            try:
                # A temporary file would be elsewhere, where it may stay.
                connection.execute("PRAGMA temp_store = 2").fetchall()
                connection.execute("PRAGMA synchronous = 2").fetchall()
                # First, as it is little work: whoever reads what was there before is in the way of both.
                return _emptied(connection, until) and _rewritten(connection, until) and _emptied(connection, until)
            except sqlite3.Error as error:
                raise store_error(error, directory) from error


def _emptied(connection: sqlite3.Connection, until: float) -> bool:
    """Empty the log, and tell whether that was possible."""
    while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() >= until:
            return False
        # Without SQLite's own waiting, which would keep everybody from writing meanwhile.
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
