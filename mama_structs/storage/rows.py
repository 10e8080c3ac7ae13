"""Rows: ASCII keys and sealed bytes, what several writes of them come to, and the inside of a transaction."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, Self

import attrs
import diskcache  # type: ignore[import-untyped]  # it ships no types

from mama_structs.errors import InvalidArgument, SessionClosed

# Far below the largest value that SQLite takes, so that a sealed row always fits.
LARGEST_VALUE: Final = 2**29
LONGEST_KEY: Final = 1024

_MAGIC: Final = b"ms1\0"
_DIGEST: Final = 16
SEAL_BYTES: Final = len(_MAGIC) + _DIGEST
# What the column `mode` says of bytes in the row itself.
_RAW: Final = diskcache.core.MODE_RAW
# Older SQLite takes 999 variables in a statement.
_MARKS: Final = 500

_SELECT: Final = "SELECT key, value, mode, filename FROM Cache WHERE raw = 1"
# What the library's own `set` leaves behind.
_PUT: Final = (
    "INSERT INTO Cache(key, raw, size, mode, value) VALUES (?, 1, 0, ?, ?)"
    " ON CONFLICT(key, raw) DO UPDATE SET expire_time = NULL, tag = NULL, size = 0, mode = excluded.mode,"
    " filename = NULL, value = excluded.value"
)


@attrs.frozen
class Damaged:
    """What is read instead of a value that is not what was stored; *reason* says to people what is wrong."""

    reason: str


@attrs.frozen
class New:
    """A value that is written only where nothing whole is stored under its key."""

    value: bytes


Change = bytes | New | None
"""What happens to a key: it gets a value, or gets one if it has none, or is deleted."""


@attrs.frozen(eq=False)
class PendingCall:
    """The rows of one call, which one transaction writes: sequence number, changes, size in bytes and namespace."""

    number: int
    changes: dict[str, Change]
    size: int
    namespace: str = ""


def check_key(key: object) -> str:
    """Return *key* if it may be a row's key, else raise `InvalidArgument`."""
    if type(key) is not str:
        raise InvalidArgument(f"a key must be a str, got {type(key).__name__}")
    if not 0 < len(key) <= LONGEST_KEY or not key.isascii() or "\0" in key:
        raise InvalidArgument(
            f"a key must be 1 to {LONGEST_KEY} ASCII characters without NUL, got {len(key)} characters"
        )
    return key


def check_value(value: object) -> None:
    """Raise `InvalidArgument` for what may not be a row's value."""
    if type(value) is not bytes:
        raise InvalidArgument(f"a value must be bytes, got {type(value).__name__}")
    if len(value) > LARGEST_VALUE:
        raise InvalidArgument(f"a value must be at most {LARGEST_VALUE} bytes, got {len(value)}")


def seal(key: str, value: bytes) -> bytes:
    """Return *value* as it is written: a mark, a checksum over key and value, and the value."""
    return b"".join((_MAGIC, _checksum(key, memoryview(value)), value))


def unseal(key: str, stored: object) -> bytes | Damaged:
    """Return the value that was sealed for *key*, or what is wrong with what is there."""
    if type(stored) is not bytes:
        return Damaged(f"the row holds {type(stored).__name__} instead of bytes")
    if not stored.startswith(_MAGIC) or len(stored) < SEAL_BYTES:
        return Damaged("the row has no valid beginning")
    value = memoryview(stored)[SEAL_BYTES:]
    if _checksum(key, value) != stored[len(_MAGIC) : SEAL_BYTES]:
        return Damaged("the checksum does not match")
    return bytes(value)


def _checksum(key: str, value: memoryview) -> bytes:
    # Keys hold no NUL, so the two cannot run into each other; with the key in it, swapped rows are noticed.
    digest = blake2b(key.encode("ascii") + b"\0", digest_size=_DIGEST, person=b"mama-structs-row")
    digest.update(value)
    return digest.digest()


def is_own_key(key: object, raw: object = 1) -> bool:
    """Tell whether the columns of a key are such as we write."""
    return raw == 1 and type(key) is str and key.isascii()


def foreign_value(mode: object, filename: object, value: object) -> str | None:
    """Say in which way the columns of a value are none of ours, None where they are."""
    if filename is not None:
        return "the row names a file"
    if mode == diskcache.core.MODE_PICKLE:
        return "the row is pickled"
    if mode != _RAW:
        return f"the row has the mode {mode!r:.20}"
    return None if type(value) is bytes else f"the row holds {type(value).__name__} instead of bytes"


def checked_changes(rows: Iterable[tuple[str, Change]]) -> dict[str, Change]:
    """Return what *rows*, one after the other, come to; the error of one names its position, never its content."""
    changes: dict[str, Change] = {}
    for position, row in enumerate(rows):
        try:
            key, change = row
            check_key(key)
            if change is not None:
                check_value(_bytes(change))
        except InvalidArgument as error:
            error.add_note(f"in row {position}, from 0")
            raise
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"row {position}, from 0, must be a pair of key and value") from error
        _fold(changes, key, change)
    return changes


@attrs.frozen
class PreparedChanges:
    """Checked rows of one call, and their bytes; made in any thread and enqueued in the store's."""

    changes: dict[str, Change]
    size: int

    @classmethod
    def of(cls, rows: Iterable[tuple[str, Change]]) -> PreparedChanges:
        """Check rows and add up their bytes."""
        changes = checked_changes(rows)
        return cls(changes, size_of(changes))


def combined(calls: Iterable[PendingCall]) -> dict[str, Change]:
    """Return what the calls, one after the other, come to."""
    changes: dict[str, Change] = {}
    for call in calls:
        for key, change in call.changes.items():
            _fold(changes, key, change)
    return changes


def size_of(changes: dict[str, Change]) -> int:
    """Return the bytes of keys and values."""
    return sum(len(key) + (0 if change is None else len(_bytes(change))) for key, change in changes.items())


def _bytes(change: bytes | New) -> bytes:
    return change.value if isinstance(change, New) else change


def _fold(changes: dict[str, Change], key: str, change: Change) -> None:
    if not isinstance(change, New) or key not in changes:
        changes[key] = change
    elif changes[key] is None:
        # It is written after a delete: whatever is on the disk does not count.
        changes[key] = change.value


class Snapshot:
    """The rows of a store at one moment, none where it has no database yet; used by one thread at a time."""

    failure: Exception | None = None

    def within(self, namespace: str) -> Self:  # noqa: ARG002 - a directory stores all namespaces together
        """Return the rows of one namespace. A directory does not separate namespaces and returns all rows."""
        return self

    @property
    def is_complete(self) -> bool:
        """Whether no rule of the store can hide a row of a visible namespace, so that absence proves deletion."""
        return True

    def get(self, key: str) -> bytes | Damaged | None:
        """Return what is stored under *key*, None for nothing."""
        return self.get_many([check_key(key)]).get(key)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes | Damaged]:
        """Return what is stored under *keys*, without those that nothing is stored under."""
        raise NotImplementedError

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with *prefix*, sorted."""
        raise NotImplementedError

    def last(self, prefix: str) -> str | None:
        """Return the last key that begins with *prefix*, None where none does."""
        raise NotImplementedError

    def items(self, prefix: str, *, after: str = "", limit: int = -1) -> list[tuple[str, bytes | Damaged]]:
        """Return up to *limit* rows (all by default) whose keys begin with *prefix* and come after *after*, sorted."""
        raise NotImplementedError

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the number of stored bytes for each key that begins with *prefix*."""
        raise NotImplementedError


class Rows(Snapshot):
    """The rows of a store inside one write transaction."""

    def put(self, key: str, value: bytes) -> None:
        """Store *value* under *key*."""
        raise NotImplementedError

    def put_new(self, key: str, value: bytes) -> bool:
        """Store *value* if nothing whole is stored under *key*; tell whether it was."""
        if is_new := not isinstance(self.get(key), bytes):
            self.put(key, value)
        return is_new

    def delete(self, key: str) -> bool:
        """Delete *key*; tell whether it was there."""
        raise NotImplementedError

    def apply(self, changes: dict[str, Change]) -> None:
        """Make *changes*."""
        for key, change in changes.items():
            if change is None:
                self.delete(key)
            elif isinstance(change, New):
                self.put_new(key, change.value)
            else:
                self.put(key, change)

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Take back what is written inside where that raises, and leave the rest of the transaction."""
        raise NotImplementedError
        yield


class SqliteSnapshot(Snapshot):
    """The rows of a database of SQLite, used in the store's thread only."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        self.failure: Exception | None = None
        self._connection = connection
        self._over = False

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes | Damaged]:
        """See `Snapshot`."""
        found: dict[str, bytes | Damaged] = {}
        for start in range(0, len(keys), _MARKS):
            some = keys[start : start + _MARKS]
            found.update(self._opened(f"{_SELECT} AND key IN ({','.join('?' * len(some))})", some))
        return found

    def keys(self, prefix: str = "") -> list[str]:
        """See `Snapshot`."""
        sql = "SELECT key FROM Cache WHERE raw = 1 AND key >= ? AND key < ? ORDER BY key"
        found = self._do(sql, range_of(prefix) if prefix else ("", "\x80"))
        return [key for (key,) in found if is_own_key(key)]

    def last(self, prefix: str) -> str | None:
        """See `Snapshot`."""
        sql = "SELECT key FROM Cache WHERE raw = 1 AND key >= ? AND key < ? ORDER BY key DESC LIMIT 1"
        found = self._do(sql, range_of(prefix))
        return str(found[0][0]) if found else None

    def items(self, prefix: str, *, after: str = "", limit: int = -1) -> list[tuple[str, bytes | Damaged]]:
        """See `Snapshot`."""
        sql = f"{_SELECT} AND key >= ? AND key < ? AND key > ? ORDER BY key LIMIT ?"
        return self._opened(sql, (*range_of(prefix), after, limit))

    def sizes(self, prefix: str) -> dict[str, int]:
        """See `Snapshot`."""
        # A row that names a file has no value.
        sql = "SELECT key, COALESCE(LENGTH(value), 0) FROM Cache WHERE raw = 1 AND key >= ? AND key < ?"
        found = self._do(sql, range_of(prefix))
        return {key: max(size - SEAL_BYTES, 0) for key, size in found if is_own_key(key)}

    def end(self) -> None:
        """Refuse any further use, outside of its transaction."""
        self._over = True

    def _opened(self, sql: str, arguments: Sequence[Any]) -> list[tuple[str, bytes | Damaged]]:
        opened: list[tuple[str, bytes | Damaged]] = []
        for key, value, mode, filename in self._do(sql, arguments):
            if is_own_key(key):
                foreign = foreign_value(mode, filename, value)
                opened.append((key, unseal(key, value) if foreign is None else Damaged(foreign)))
        return opened

    def _do(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        if self._over:
            raise SessionClosed("these rows belong to a transaction that is over")
        if self.failure is not None:
            # SQLite may have rolled back the transaction itself, so further rows would be written outside of one.
            raise self.failure
        if self._connection is None:
            return []
        try:
            return self._connection.execute(sql, arguments).fetchall()
        except Exception as error:
            self.failure = error
            raise


class SqliteRows(SqliteSnapshot, Rows):
    """The rows of a database of SQLite inside one write transaction."""

    def put(self, key: str, value: bytes) -> None:
        """See `Rows`."""
        check_value(value)
        self._do(_PUT, (check_key(key), _RAW, seal(key, value)))

    def delete(self, key: str) -> bool:
        """See `Rows`."""
        is_there = bool(self._do("SELECT 1 FROM Cache WHERE key = ? AND raw = 1", (check_key(key),)))
        if is_there:
            self._do("DELETE FROM Cache WHERE key = ? AND raw = 1", (key,))
        return is_there

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """See `Rows`."""
        self._do("SAVEPOINT attempt")
        try:
            yield
        except BaseException:
            if self.failure is None:
                self._do("ROLLBACK TO attempt")
            raise
        finally:
            if self.failure is None:
                self._do("RELEASE attempt")

    def commit(self) -> None:
        """Make it durable; what failed before is raised again, though the work may have swallowed it."""
        self._do("COMMIT")


def range_of(prefix: str) -> tuple[str, str]:
    """Return from which key on, and up to which, keys begin with *prefix*."""
    check_key(prefix)
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)
