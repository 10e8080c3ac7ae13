"""Rows with ASCII keys and checksummed values: validation, merging of changes, and access."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, Self

import attrs
import diskcache  # type: ignore[import-untyped]  # it ships no types

from mama_structs.errors import InvalidArgument, SessionClosed
from mama_structs.storage.reserve import MAX_FREEING_BYTES

# Far below SQLite's maximum size of a value, so that a value with its checksum always fits.
MAX_VALUE_BYTES: Final = 2**29
MAX_KEY_CHARS: Final = 1024

MAGIC_PREFIX: Final = b"ms1\0"
DIGEST_BYTES: Final = 16
SEAL_BYTES: Final = len(MAGIC_PREFIX) + DIGEST_BYTES
# Value of diskcache's column `mode` for bytes that are stored in the database.
RAW_MODE: Final = diskcache.core.MODE_RAW
# Older SQLite versions allow at most 999 variables per statement.
MAX_VARIABLES: Final = 500

ERASING_KEY_PREFIX: Final = "erasing/"
"""Key prefix of rows that record unfinished erasures. The next process that opens the store finishes them."""
SELECT_SQL: Final = "SELECT key, value, mode, filename FROM Cache WHERE raw = 1"
# Writes the same columns as `diskcache.Cache.set`.
PUT_SQL: Final = (
    "INSERT INTO Cache(key, raw, size, mode, value) VALUES {values}"
    " ON CONFLICT(key, raw) DO UPDATE SET expire_time = NULL, tag = NULL, size = 0, mode = excluded.mode,"
    " filename = NULL, value = excluded.value"
)
# Numbers of rows per statement. A statement for many rows takes less time, and few numbers need few statements.
PUT_SQL_BY_ROWS: Final = {
    count: PUT_SQL.format(values=", ".join(["(?, 1, 0, ?, ?)"] * count)) for count in (100, 10, 1)
}


# Returns a number that changes when another connection changes the database.
DATA_VERSION_SQL: Final = "PRAGMA data_version"


@attrs.frozen
class DamagedValue:
    """Placeholder for a corrupt stored value. *reason* describes the damage in words."""

    reason: str


@attrs.frozen
class NewValue:
    """A value that is written unless an intact value is stored under its key."""

    value: bytes


RowChange = bytes | NewValue | None
"""The change of one key: set a value, set it if there is none, or delete the key (None)."""


@attrs.frozen(eq=False)
class PendingCall:
    """The changes of one `enqueue` call. They are written in one transaction. *size* is in bytes."""

    number: int
    changes: dict[str, RowChange]
    size: int
    namespace: str = ""


def check_key(key: object) -> str:
    """Return *key* if it is a valid row key, else raise `InvalidArgument`."""
    if type(key) is not str:
        raise InvalidArgument(f"a key must be a str, got {type(key).__name__}")
    if not 0 < len(key) <= MAX_KEY_CHARS or not key.isascii() or "\0" in key:
        raise InvalidArgument(
            f"a key must be 1 to {MAX_KEY_CHARS} ASCII characters without NUL, got {len(key)} characters"
        )
    return key


def check_value(value: object) -> None:
    """Raise `InvalidArgument` if *value* is not a valid row value."""
    if type(value) is not bytes:
        raise InvalidArgument(f"a value must be bytes, got {type(value).__name__}")
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidArgument(f"a value must be at most {MAX_VALUE_BYTES} bytes, got {len(value)}")


def seal(key: str, value: bytes) -> bytes:
    """Return the stored form of *value*: magic prefix, checksum of key and value, value."""
    return b"".join((MAGIC_PREFIX, _checksum(key, memoryview(value)), value))


def unseal(key: str, stored: object) -> bytes | DamagedValue:
    """Return the value from its stored form, or a description of its damage."""
    if type(stored) is not bytes:
        return DamagedValue(f"the row holds {type(stored).__name__} instead of bytes")
    if not stored.startswith(MAGIC_PREFIX) or len(stored) < SEAL_BYTES:
        return DamagedValue("the row has no valid beginning")
    value = memoryview(stored)[SEAL_BYTES:]
    if _checksum(key, value) != stored[len(MAGIC_PREFIX) : SEAL_BYTES]:
        return DamagedValue("the checksum does not match")
    return bytes(value)


def _checksum(key: str, value: memoryview) -> bytes:
    # Include the key in the checksum, so that swapped rows are detected. NUL separates it, because keys contain none.
    digest = blake2b(key.encode("ascii") + b"\0", digest_size=DIGEST_BYTES, person=b"mama-structs-row")
    digest.update(value)
    return digest.digest()


def is_package_key(key: object, raw: object = 1) -> bool:
    """Return True if this package may have written a row with these columns `key` and `raw`."""
    return raw == 1 and type(key) is str and key.isascii()


def describe_foreign_value(mode: object, filename: object, value: object) -> str | None:
    """
    Return why a value cannot come from this package, or None if it can.

    The arguments are columns of diskcache's table.
    """
    if filename is not None:
        return "the row names a file"
    if mode == diskcache.core.MODE_PICKLE:
        return "the row is pickled"
    if mode != RAW_MODE:
        return f"the row has the mode {mode!r:.20}"
    return None if type(value) is bytes else f"the row holds {type(value).__name__} instead of bytes"


def merge_changes(rows: Iterable[tuple[str, RowChange]]) -> dict[str, RowChange]:
    """
    Validate *rows* and merge them. The last row of a key wins.

    Error messages name the position of a row, but never its content.
    """
    changes: dict[str, RowChange] = {}
    for position, row in enumerate(rows):
        try:
            key, change = row
            check_key(key)
            if change is not None:
                check_value(_value_of(change))
        except InvalidArgument as error:
            error.add_note(f"in row {position}, from 0")
            raise
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"row {position}, from 0, must be a pair of key and value") from error
        _merge_change(changes, key, change)
    return changes


@attrs.frozen
class PreparedChanges:
    """The validated rows of one call, and their size in bytes. May be created in any thread."""

    changes: dict[str, RowChange]
    size: int

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[str, RowChange]]) -> PreparedChanges:
        """Validate rows and compute their size."""
        changes = merge_changes(rows)
        return cls(changes, total_bytes(changes))


def merge_calls(calls: Iterable[PendingCall]) -> dict[str, RowChange]:
    """Merge the changes of consecutive calls into one mapping. Later changes of a key win."""
    changes: dict[str, RowChange] = {}
    for call in calls:
        for key, change in call.changes.items():
            _merge_change(changes, key, change)
    return changes


def total_bytes(changes: dict[str, RowChange]) -> int:
    """Return the total size of keys and values in bytes."""
    return sum(len(key) + (0 if change is None else len(_value_of(change))) for key, change in changes.items())


def _value_of(change: bytes | NewValue) -> bytes:
    return change.value if isinstance(change, NewValue) else change


def _merge_change(changes: dict[str, RowChange], key: str, change: RowChange) -> None:
    if not isinstance(change, NewValue) or key not in changes:
        changes[key] = change
    elif changes[key] is None:
        # An earlier change deletes the stored value, so the stored value does not prevent the write.
        changes[key] = change.value


class Snapshot:
    """The rows of a store in one snapshot, empty if there is no database yet. Not thread-safe."""

    failure: Exception | None = None

    def in_namespace(self, namespace: str) -> Self:  # noqa: ARG002 - a directory stores all namespaces together
        """
        Return the rows of one namespace in the same snapshot.

        A directory does not separate namespaces, so all rows are returned.
        """
        return self

    @property
    def is_complete(self) -> bool:
        """
        True if no access policy can hide rows of a visible namespace.

        Only then a missing row is known to be deleted.
        """
        return True

    def get(self, key: str) -> bytes | DamagedValue | None:
        """Return the value stored under *key*, or None."""
        return self.get_many([check_key(key)]).get(key)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes | DamagedValue]:
        """Return the stored values by key. Keys without a value are omitted."""
        raise NotImplementedError

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with *prefix*, sorted."""
        raise NotImplementedError

    def page_of_keys(self, prefix: str, *, after: str | None, limit: int, last_first: bool) -> list[str]:
        """Return up to *limit* keys that begin with *prefix* and follow *after*, sorted, or in reverse."""
        raise NotImplementedError

    def last_key(self, prefix: str) -> str | None:
        """Return the last key that begins with *prefix*, or None."""
        raise NotImplementedError

    def items(self, prefix: str, *, after: str = "", limit: int = -1) -> list[tuple[str, bytes | DamagedValue]]:
        """
        Return the rows whose keys begin with *prefix* and follow *after*, sorted by key.

        A *limit* of -1 means no limit.
        """
        raise NotImplementedError

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the number of bytes of the stored value of each key that begins with *prefix*."""
        raise NotImplementedError


class Rows(Snapshot):
    """The rows of a store inside one write transaction."""

    def put(self, key: str, value: bytes) -> None:
        """Store *value* under *key*."""
        raise NotImplementedError

    def put_new(self, key: str, value: bytes) -> bool:
        """
        Store *value*, unless an intact value is stored under *key*.

        Return True if *value* was stored.
        """
        if is_new := not isinstance(self.get(key), bytes):
            self.put(key, value)
        return is_new

    def delete(self, key: str) -> bool:
        """Delete *key*. Return True if it existed."""
        raise NotImplementedError

    def delete_prefix(self, prefix: str) -> None:
        """Delete all rows whose keys begin with *prefix*."""
        raise NotImplementedError

    def apply_changes(self, changes: dict[str, RowChange]) -> None:
        """Apply *changes* in order."""
        for key, change in changes.items():
            if change is None:
                self.delete(key)
            elif isinstance(change, NewValue):
                self.put_new(key, change.value)
            else:
                self.put(key, change)

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Run the block in a savepoint, and roll back to it if the block raises."""
        raise NotImplementedError
        yield


class SqliteSnapshot(Snapshot):
    """Snapshot of a SQLite database. Only the store's thread may use it."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        self.failure: Exception | None = None
        self._connection = connection
        self._has_ended = False

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes | DamagedValue]:
        """Implements `Snapshot.get_many`."""
        found: dict[str, bytes | DamagedValue] = {}
        for start in range(0, len(keys), MAX_VARIABLES):
            some = keys[start : start + MAX_VARIABLES]
            found.update(self._read_values(f"{SELECT_SQL} AND key IN ({','.join('?' * len(some))})", some))
        return found

    def keys(self, prefix: str = "") -> list[str]:
        """Implements `Snapshot.keys`."""
        sql = "SELECT key FROM Cache WHERE raw = 1 AND key >= ? AND key < ? ORDER BY key"
        found = self._execute(sql, key_range(prefix) if prefix else ("", "\x80"))
        return [key for (key,) in found if is_package_key(key)]

    def page_of_keys(self, prefix: str, *, after: str | None, limit: int, last_first: bool) -> list[str]:
        """Implements `Snapshot.page_of_keys`."""
        order, sign = ("DESC", "<") if last_first else ("ASC", ">")
        bound = "" if after is None else f" AND key {sign} ?"
        sql = f"SELECT key FROM Cache WHERE raw = 1 AND key >= ? AND key < ?{bound} ORDER BY key {order} LIMIT ?"  # noqa: S608
        found = self._execute(sql, (*key_range(prefix), *([] if after is None else [after]), limit))
        return [key for (key,) in found if is_package_key(key)]

    def last_key(self, prefix: str) -> str | None:
        """Implements `Snapshot.last_key`."""
        sql = "SELECT key FROM Cache WHERE raw = 1 AND key >= ? AND key < ? ORDER BY key DESC LIMIT 1"
        found = self._execute(sql, key_range(prefix))
        return str(found[0][0]) if found else None

    def items(self, prefix: str, *, after: str = "", limit: int = -1) -> list[tuple[str, bytes | DamagedValue]]:
        """Implements `Snapshot.items`."""
        sql = f"{SELECT_SQL} AND key >= ? AND key < ? AND key > ? ORDER BY key LIMIT ?"
        return self._read_values(sql, (*key_range(prefix), after, limit))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Implements `Snapshot.sizes`."""
        # If diskcache stored the value in a file, the column is NULL.
        sql = "SELECT key, COALESCE(LENGTH(value), 0) FROM Cache WHERE raw = 1 AND key >= ? AND key < ?"
        found = self._execute(sql, key_range(prefix))
        return {key: max(size - SEAL_BYTES, 0) for key, size in found if is_package_key(key)}

    def end(self) -> None:
        """Reject further use. Called when the transaction has ended."""
        self._has_ended = True

    def _read_values(self, sql: str, arguments: Sequence[Any]) -> list[tuple[str, bytes | DamagedValue]]:
        opened: list[tuple[str, bytes | DamagedValue]] = []
        for key, value, mode, filename in self._execute(sql, arguments):
            if is_package_key(key):
                foreign = describe_foreign_value(mode, filename, value)
                opened.append((key, unseal(key, value) if foreign is None else DamagedValue(foreign)))
        return opened

    def _execute(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        if self._has_ended:
            raise SessionClosed("these rows belong to a transaction that is over")
        if self.failure is not None:
            # After an error SQLite may have rolled back, and further writes would be outside of any transaction.
            raise self.failure
        if self._connection is None:
            return []
        try:
            return self._connection.execute(sql, arguments).fetchall()
        except Exception as error:
            self.failure = error
            raise


class SqliteRows(SqliteSnapshot, Rows):
    """The rows of a SQLite database inside one write transaction."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        super().__init__(connection)
        # The statements of a small transaction, to repeat it after space was made for it.
        self._statements: list[tuple[str, Sequence[Any]]] | None = []
        # Bytes of the values that the transaction wrote.
        self.values_bytes: int = 0
        self._frees_space = False
        self._data_version: int | None = None

    def put(self, key: str, value: bytes) -> None:
        """Implements `Rows.put`."""
        self._put_many([(key, value)])

    def apply_changes(self, changes: dict[str, RowChange]) -> None:
        """Implements `Rows.apply_changes`. SQLite writes neighbouring rows faster, so values are sorted by key."""
        super().apply_changes({key: change for key, change in changes.items() if not isinstance(change, bytes)})
        self._put_many(sorted((key, change) for key, change in changes.items() if isinstance(change, bytes)))

    def _put_many(self, values: Sequence[tuple[str, bytes]]) -> None:
        rows = []
        for key, value in values:
            check_value(value)
            self.values_bytes += len(value)
            if key.startswith(ERASING_KEY_PREFIX):
                self._note_freed_space()
            rows.append((check_key(key), RAW_MODE, seal(key, value)))
        start = 0
        for count, sql in PUT_SQL_BY_ROWS.items():
            while len(rows) - start >= count:
                self._change(sql, [*itertools.chain.from_iterable(rows[start : start + count])])
                start += count

    def delete(self, key: str) -> bool:
        """Implements `Rows.delete`."""
        is_there = bool(self._execute("SELECT 1 FROM Cache WHERE key = ? AND raw = 1", (check_key(key),)))
        if is_there:
            self._note_freed_space()
            self._change("DELETE FROM Cache WHERE key = ? AND raw = 1", (key,))
        return is_there

    def delete_prefix(self, prefix: str) -> None:
        """Implements `Rows.delete_prefix`."""
        self._note_freed_space()
        self._change("DELETE FROM Cache WHERE raw = 1 AND key >= ? AND key < ?", key_range(prefix))

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Implements `Rows.savepoint`."""
        self._execute("SAVEPOINT attempt")
        done = None if self._statements is None else len(self._statements)
        try:
            yield
        except BaseException:
            if self.failure is None:
                self._execute("ROLLBACK TO attempt")
                if self._statements is not None:
                    del self._statements[done:]
            raise
        finally:
            if self.failure is None:
                self._execute("RELEASE attempt")

    def commit(self) -> None:
        """Commit durably. Raise the error of an earlier statement, even if the caller suppressed it."""
        self._execute("COMMIT")

    @property
    def can_repeat(self) -> bool:
        """True if the transaction frees space and is small, so that `repeat` can execute it again."""
        return self._frees_space and self._statements is not None

    def repeat(self, connection: sqlite3.Connection) -> bool:
        """
        Execute the statements again in the begun transaction of *connection*, and commit it durably.

        Return False if another connection has changed the database in the meantime.
        """
        if connection.execute(DATA_VERSION_SQL).fetchone()[0] != self._data_version:
            return False
        for sql, arguments in self._statements or ():
            connection.execute(sql, arguments)
        connection.execute("COMMIT")
        return True

    def _note_freed_space(self) -> None:
        if not self._frees_space:
            self._data_version = self._execute(DATA_VERSION_SQL)[0][0]
            self._frees_space = True

    def _change(self, sql: str, arguments: Sequence[Any]) -> None:
        self._execute(sql, arguments)
        if self.values_bytes > MAX_FREEING_BYTES:
            self._statements = None
        elif self._statements is not None:
            self._statements.append((sql, arguments))


def key_range(prefix: str) -> tuple[str, str]:
    """Return the range of the keys with *prefix*: the first key, and the end (excluded)."""
    check_key(prefix)
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)
