"""
Connection to a SQLite store, with checks of file identity, a queue of writers, and fork safety.

SQLite tracks file locks in process memory. A forked child inherits that state but not the locks. So no connection
survives a fork: each is closed before the fork, and reopened at its next use. If a connection cannot be closed in time
because of a long operation, the child must not open that directory.
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
from mama_structs.storage.files import DATABASE_FILE, MARK_FILE, TemporaryDirectory
from mama_structs.storage.locks import LockFile, close_deleted_watches
from mama_structs.storage.sqlite_errors import Issue, damaged_database_error, is_busy, store_error
from mama_structs.storage.wal import others

# Maximum seconds that a fork waits for running operations.
FORK_TIMEOUT_SECONDS: Final = 5.0
# Seconds between two attempts to erase deleted data.
RETRY_INTERVAL_SECONDS: Final = 0.01
# Offset of a byte in the mark file. The process that is next in the queue of writers locks this byte.
WRITER_QUEUE_LOCK_OFFSET: Final = 1
WAL_FILE: Final = f"{DATABASE_FILE}-wal"
WAL_INDEX_FILE: Final = f"{DATABASE_FILE}-shm"

FileIdentity = tuple[int, int]


@attrs.define(eq=False)
class _DatabaseHandle:
    """An open database. Callers must hold *busy* to use or close its connection."""

    directory: Path
    close: Callable[[], object]
    busy: threading.Lock = attrs.field(factory=threading.Lock)
    owner_thread: int = 0
    identity: FileIdentity | None = None
    connection: sqlite3.Connection | None = None


class _DatabaseRegistry:
    """The databases that this process has open, and the database files that its parent had open at the fork."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._handles: set[_DatabaseHandle] = set()
        self._inherited_files: set[FileIdentity] = set()
        # Ids of the threads that are forking. A counter would become wrong if Ctrl-C interrupted a fork hook.
        self._forking_threads: set[int] = set()

    def register(self, handle: _DatabaseHandle) -> None:
        """
        Register a database as open, after waiting for running forks.

        Raise `StoreError` if the parent process had the database open at the fork.
        """
        if self._pid != os.getpid():
            self.after_fork_in_child()  # The process was forked by native code, which does not run Python's fork hooks.
        with self._changed:
            self._changed.wait_for(lambda: not self._forking_threads)
            if _stat_file(handle.directory / DATABASE_FILE)[0] in self._inherited_files:
                raise StoreError(
                    f"{handle.directory} was in use when this process was forked",
                    hint="start workers by spawn or forkserver, or fork them before the session is opened",
                )
            self._handles.add(handle)

    def unregister(self, handle: _DatabaseHandle) -> None:
        """Unregister a database."""
        with self._changed:
            self._handles.discard(handle)

    def before_fork(self) -> None:
        """
        Close all connections before a fork.

        Connections of the forking thread stay open, and so do those that are in use for too long.
        """
        with self._changed:
            self._forking_threads.add(threading.get_ident())
            handles = list(self._handles)
        until = time.monotonic() + FORK_TIMEOUT_SECONDS
        for handle in handles:
            if handle.owner_thread != threading.get_ident() and handle.busy.acquire(
                timeout=max(0, until - time.monotonic())
            ):
                try:
                    handle.close()
                finally:
                    handle.busy.release()

    def after_fork_in_parent(self) -> None:
        """Resume the waiting threads of the parent after a fork."""
        with self._changed:
            self._forking_threads.discard(threading.get_ident())
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """
        Reset the state in a forked child.

        Inherited connections are not closed, because SQLite might delete the parent's files.
        """
        handles, inherited = self._handles, self._inherited_files
        self.__init__()  # type: ignore[misc]  # in place, because hooks reference this object
        self._inherited_files = inherited
        for handle in handles:
            _leak_connection(handle.connection)
            self._inherited_files |= {
                one for one in (handle.identity, _stat_file(handle.directory / DATABASE_FILE)[0]) if one
            }


_database_registry: Final = _DatabaseRegistry()
# Import these modules first, because the import registers their fork hooks, and hooks run in reverse order.
# Our hook must run before theirs, because the threads that it waits for may still log and submit jobs.
HOOKS_REGISTERED_BEFORE: Final = (logging, concurrent.futures.thread)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_database_registry.before_fork,
        after_in_parent=_database_registry.after_fork_in_parent,
        after_in_child=_database_registry.after_fork_in_child,
    )


@contextlib.contextmanager
def register_use(directory: Path) -> Iterator[None]:
    """Register a database that the block reads through a separate connection. Forks wait until the block ends."""
    handle = _DatabaseHandle(directory, int, owner_thread=threading.get_ident())
    with handle.busy:
        _database_registry.register(handle)
        try:
            yield
        finally:
            _database_registry.unregister(handle)


class Database:
    """
    A store's database connection. Only one thread may use it at a time.

    At first, the thread that creates this object has exclusive use of it.
    """

    def __init__(self, directory: Path, *, temporary: TemporaryDirectory | None) -> None:
        self._directory = directory
        # Strings instead of `Path` objects for speed, because these paths are checked before every transaction.
        self._paths = [os.fspath(directory / name) for name in (DATABASE_FILE, WAL_FILE, WAL_INDEX_FILE)]
        self._mark_path = os.fspath(directory / MARK_FILE)
        self._in_use = threading.Lock()
        self._temporary = temporary
        self._pid = os.getpid()
        self._files: tuple[FileIdentity | None, ...] = ()
        self._wal_index_size = 0
        # Sizes of the database and of its log when the files were last checked.
        self.database_bytes: int = 0
        self.log_bytes: int = 0
        self._mark_lock: LockFile | None = None
        self._is_next_writer = False
        self._closed = False
        self._schema_version = 0
        self._is_shared = False
        # True if the files could not be written to when the database was opened.
        self.is_read_only: bool = False
        # Sizes and modification times of the database and its log, if the connection does not see later changes.
        self._stamp: tuple[tuple[int, int] | None, ...] | None = None
        self._copied: TemporaryDirectory | None = None
        # Findings about data that crashes lost before the database was opened.
        self.findings: list[Issue] = []
        self._handle: _DatabaseHandle | None = None
        self.acquire()
        self._handle = self._open()

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection. It is opened again after a fork."""
        if self._handle is None:
            # Raise if the database file was replaced or deleted. Otherwise SQLite would use or create another file.
            if _stat_file(self._paths[0])[0] != self._files[0]:
                raise self._files_changed_error()
            self._handle = self._open()
        assert self._handle.connection is not None  # noqa: S101 - for the type checker
        return self._handle.connection

    def acquire(self) -> None:
        """Acquire exclusive use, after waiting for a running fork. New forks wait until `release`."""
        self._in_use.acquire()
        if self._handle is not None:
            self._handle.owner_thread = threading.get_ident()

    def release(self) -> None:
        """Release exclusive use. A fork may then close the connection, and the next use opens it again."""
        if self._handle is not None:
            self._handle.owner_thread = 0
        self._in_use.release()

    def check_files(self) -> None:
        """
        Raise if a database file was replaced or deleted.

        Otherwise SQLite would write to deleted files without an error.
        If the files cannot be written to and another process has changed them, open them again.
        """
        if not self.connection or (self._has_same_files() and not self.is_outdated()):
            return
        if not self.is_read_only:
            raise self._files_changed_error()
        self._disconnect()
        self.connection  # noqa: B018 - opens the files

    def is_outdated(self) -> bool:
        """Return True if the connection does not see the changes of another process."""
        return self._stamp is not None and self._read_stamp() != self._stamp

    def begin(self, kind: str) -> None:
        """Begin a transaction. A write transaction requires the format and the schema of this version."""
        connection = self.connection
        # The rollback of the previous transaction may have failed, so try it again.
        self.rollback()
        connection.execute(f"BEGIN {kind}")
        if kind != "IMMEDIATE":
            return
        try:
            # Check while holding the write lock, because a newer version may have upgraded the store in the meantime.
            check_format(self._directory, fd=self._mark_descriptor())
            # Check the schema again if it changed, because writes would run a trigger that was added to it.
            if connection.execute("PRAGMA schema_version").fetchone()[0] != self._schema_version:
                self._schema_version = check_schema(connection, self._directory)
        except OSError as error:
            self.rollback()
            raise store_error(error, self._directory) from error
        except BaseException:
            self.rollback()
            raise

    def _mark_descriptor(self) -> int | None:
        """Return the descriptor of the open mark file, or None if another file has replaced it."""
        if self._mark_lock is None or not hasattr(os, "pread"):
            return None
        opened = os.fstat(self._mark_lock.fd)
        found, _ = _stat_file(self._mark_path)
        return self._mark_lock.fd if found == (opened.st_dev, opened.st_ino) else None

    def rollback(self) -> None:
        """Roll back an open transaction. Otherwise the next transaction could not begin."""
        if self._handle is not None and self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")

    def enter_queue(self) -> bool:
        """Become the next writer. Return False if another process is the next writer."""
        if not self._is_next_writer:
            # If the file system does not support locks, writers do not queue.
            with contextlib.suppress(OSError):
                if self._mark_lock is not None and not self._mark_lock.try_lock(WRITER_QUEUE_LOCK_OFFSET):
                    return False
            self._is_next_writer = True
        return True

    def leave_queue(self) -> None:
        """Stop being the next writer."""
        self._is_next_writer = False
        if self._mark_lock is not None:
            with contextlib.suppress(OSError):
                self._mark_lock.unlock(WRITER_QUEUE_LOCK_OFFSET)

    def is_shared(self) -> bool:
        """Return True if this or an earlier call saw that another process has the database open."""
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

    def _open(self) -> _DatabaseHandle:
        disconnect = WeakMethod(self._disconnect)
        # Use a weak reference, so that an unclosed store can be collected and closes its connection.
        handle = _DatabaseHandle(
            self._directory, lambda: (method := disconnect()) and method(), self._in_use, threading.get_ident()
        )
        _database_registry.register(handle)
        try:
            opened = open_database(self._directory)
            handle.connection = opened.connection
            # Open the mark file now, so that a write needs no further descriptor.
            with contextlib.suppress(OSError):
                self._mark_lock = LockFile.open(self._mark_path, create=False)
        except BaseException:
            _database_registry.unregister(handle)
            raise
        self._files, self._wal_index_size = self._stat_files()
        handle.identity = self._files[0]
        self.findings += opened.findings
        self._schema_version = opened.schema_version
        self.is_read_only, self._copied = opened.is_read_only, opened.copied
        self._stamp = self._read_stamp() if opened.is_fixed else None
        self._is_shared |= others(self._directory)
        return handle

    def _disconnect(self) -> None:
        handle, self._handle = self._handle, None
        if handle is None:
            return
        self.leave_queue()
        if self._mark_lock is not None:
            self._mark_lock.close()
            self._mark_lock = None
        try:
            if handle.connection is not None and (self.is_read_only or self._has_same_files()):
                with contextlib.suppress(sqlite3.Error):
                    handle.connection.close()
            else:
                # Closing the connection could write an outdated log to the database, or delete a foreign log.
                _leak_connection(handle.connection)
        finally:
            if self._copied is not None:
                self._copied.remove()
            close_deleted_watches()
            _database_registry.unregister(handle)

    def _stat_files(self) -> tuple[tuple[FileIdentity | None, ...], int]:
        stats = [_stat_file(path) for path in self._paths]
        self.database_bytes, self.log_bytes = stats[0][1], stats[1][1]
        return tuple(identity for identity, _ in stats), stats[-1][1]

    def _has_same_files(self) -> bool:
        files, index_size = self._stat_files()
        # SQLite never shrinks the memory-mapped index, so a smaller one was truncated. Access would crash the process.
        if files != self._files or index_size < self._wal_index_size:
            return False
        self._wal_index_size = index_size
        return True

    def _read_stamp(self) -> tuple[tuple[int, int] | None, ...]:
        found: list[tuple[int, int] | None] = []
        for path in self._paths[:2]:
            try:
                stat = os.stat(path)  # noqa: PTH116 - as fast as possible
            except FileNotFoundError:
                found.append(None)
            else:
                found.append((stat.st_size, stat.st_mtime_ns))
        return tuple(found)

    def _files_changed_error(self) -> StoreError:
        return damaged_database_error(
            self._directory, "a file of it was moved, replaced, cut or deleted while it was open"
        )

    def __del__(self) -> None:
        # If the store was never closed, its thread holds the last reference to this object until the thread ends.
        if hasattr(self, "_handle"):
            self.close()


def _leak_connection(connection: sqlite3.Connection | None) -> None:
    """Keep a reference forever, so that neither garbage collection nor interpreter exit closes the connection."""
    if connection is not None:
        with contextlib.suppress(AttributeError):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _stat_file(path: str | Path) -> tuple[FileIdentity | None, int]:
    """Return the identity (device, inode) and the size of a file, or None and 0 if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116 - twice as fast as Path.stat, called three times per transaction
    except OSError:
        return None, 0
    return (status.st_dev, status.st_ino), status.st_size


# Deleted data survives in free pages, in gaps within pages, and in the log.
# SQLite's `secure_delete` overwrites freed space, but misses copies in the gaps of pages that were split.
# Therefore erasing rewrites the database and truncates the log.
# Rewriting and truncating are impossible while a connection reads an old state.


def erase_deleted_data(directory: Path, *, wait: float) -> bool:
    """
    Rewrite a database and truncate its log, so that deleted data is erased. Blocks.

    Return False if readers prevent that for *wait* seconds.
    """
    until = time.monotonic() + wait
    with register_use(directory):
        connection = sqlite3.connect(directory / DATABASE_FILE, timeout=0, isolation_level=None)
        with contextlib.closing(connection):
            try:
                # Keep temporary data in memory, because deleted data could survive in a temporary file.
                connection.execute("PRAGMA temp_store = 2").fetchall()
                connection.execute("PRAGMA synchronous = 2").fetchall()
                # Truncate first: this is cheap, and fails if a reader of an old state would block rewriting too.
                return (
                    _truncate_wal(connection, until) and _vacuum(connection, until) and _truncate_wal(connection, until)
                )
            except sqlite3.Error as error:
                raise store_error(error, directory) from error


def _truncate_wal(connection: sqlite3.Connection, deadline: float) -> bool:
    """Truncate the log. Return False if readers prevent that until *deadline*."""
    while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() >= deadline:
            return False
        # Sleep here instead of using SQLite's busy timeout, which would block all writers meanwhile.
        time.sleep(RETRY_INTERVAL_SECONDS)
    return True


def _vacuum(connection: sqlite3.Connection, deadline: float) -> bool:
    while True:
        try:
            connection.execute("VACUUM")
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if time.monotonic() >= deadline:
                return False
            time.sleep(RETRY_INTERVAL_SECONDS)
        else:
            return True
