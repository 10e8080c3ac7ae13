"""Rows as callers see them: what may be written, what several writes come to, and the inside of a transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import attrs

from mama_structs.errors import InvalidArgument, SessionClosed
from mama_structs.storage._disk import (
    RAW,
    Damaged,
    ForeignRow,
    check_key,
    check_value,
    foreign_value,
    is_own,
    seal,
    unseal,
)

T = TypeVar("T")

# Older SQLite takes 999 variables in a statement.
_MARKS: Final = 500

# What the library's own `set` leaves behind, in one statement in place of two and a nested transaction.
_PUT: Final = (
    "INSERT INTO Cache(key, raw, store_time, expire_time, access_time, access_count, tag, size, mode, filename, value)"
    " VALUES (?, 1, ?, NULL, ?, 0, NULL, 0, ?, NULL, ?)"
    " ON CONFLICT(key, raw) DO UPDATE SET store_time = excluded.store_time, expire_time = NULL,"
    " access_time = excluded.access_time, access_count = 0, tag = NULL, size = 0, mode = excluded.mode,"
    " filename = NULL, value = excluded.value"
)


@attrs.frozen
class New:
    """
    A value that is written only where nothing whole is stored under its key.

    Args:
        value: The bytes.

    """

    value: bytes


Change = bytes | New | None
"""What happens to a key: it gets a value, or gets one if it has none, or is deleted."""


@attrs.frozen(eq=False)
class Call:
    """
    The rows of one call, which are written together.

    Args:
        number: Its place in the order of calls.
        changes: What happens to each key.
        size: Bytes.

    """

    number: int
    changes: dict[str, Change]
    size: int


def checked_changes(rows: Iterable[tuple[str, Change]]) -> dict[str, Change]:
    """
    Return what *rows*, one after the other, come to.

    Raises:
        InvalidArgument: A row breaks a rule; its position is named, never its content.

    """
    changes: dict[str, Change] = {}
    for position, row in enumerate(rows):
        try:
            key, change = row
            check_key(key)
            if change is not None:
                check_value(change.value if isinstance(change, New) else change)
        except InvalidArgument as error:
            error.add_note(f"in row {position}, from 0")
            raise
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"row {position}, from 0, must be a pair of key and value") from error
        _fold(changes, key, change)
    return changes


def combined(calls: Iterable[Call]) -> dict[str, Change]:
    """Return what the calls, one after the other, come to."""
    changes: dict[str, Change] = {}
    for call in calls:
        for key, change in call.changes.items():
            _fold(changes, key, change)
    return changes


def size_of(changes: dict[str, Change]) -> int:
    """Return the bytes of keys and values."""
    return sum(
        len(key) + (0 if change is None else len(change.value if isinstance(change, New) else change))
        for key, change in changes.items()
    )


def _fold(changes: dict[str, Change], key: str, change: Change) -> None:
    if not isinstance(change, New) or key not in changes:
        changes[key] = change
    elif changes[key] is None:
        # It is written after a delete: whatever is on the disk does not count.
        changes[key] = change.value


class Snapshot:
    """
    The rows of a store at one moment.

    Args:
        cache: The diskcache `Cache`; used in its own thread only.

    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._over = False
        self.failure: Exception | None = None

    def get(self, key: str) -> bytes | Damaged | None:
        """Return what is stored under *key*, None for nothing."""
        check_key(key)
        return self._do(lambda: read_row(self._cache, key))

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes | Damaged]:
        """Return what is stored under *keys*, without those that nothing is stored under."""
        return self._do(lambda: read_rows(self._cache, keys))

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with *prefix*, sorted."""
        return self._do(lambda: list_keys(self._cache, prefix))

    def last(self, prefix: str) -> str | None:
        """Return the last key that begins with *prefix*, None where none does."""
        return self._do(lambda: last_key(self._cache, prefix))

    def items(self, prefix: str, *, after: str = "", limit: int = -1) -> list[tuple[str, bytes | Damaged]]:
        """Return up to *limit* rows (all by default) whose keys begin with *prefix* and come after *after*, sorted."""
        return self._do(lambda: list_rows(self._cache, prefix, after, limit))

    def end(self) -> None:
        """Refuse any further use: outside its transaction and thread it would open a connection of its own."""
        self._over = True

    def _do(self, step: Callable[[], T]) -> T:
        if self._over:
            raise SessionClosed("these rows belong to a transaction that is over")
        if self.failure is not None:
            # SQLite may have rolled back by itself: what followed would be written outside any transaction.
            raise self.failure
        try:
            return step()
        except Exception as error:
            self.failure = error
            raise


class NoRows(Snapshot):
    """The rows of a store that has no database yet."""

    def __init__(self) -> None:
        super().__init__(None)

    def get(self, key: str) -> None:
        """Return None."""
        check_key(key)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes | Damaged]:  # noqa: ARG002 - whatever they are
        """Return nothing."""
        return {}

    def keys(self, prefix: str = "") -> list[str]:
        """Return no key."""
        check_prefix(prefix)
        return []

    def last(self, prefix: str) -> None:
        """Return None."""
        check_prefix(prefix)

    def items(self, prefix: str, *, after: str = "", limit: int = -1) -> list[tuple[str, bytes | Damaged]]:  # noqa: ARG002 - whatever they are
        """Return no row."""
        check_prefix(prefix)
        return []


class Rows(Snapshot):
    """The rows of a store inside one write transaction."""

    def put(self, key: str, value: bytes) -> None:
        """Store *value* under *key*."""
        check_key(key)
        check_value(value)
        self._do(lambda: put_row(self._cache, key, seal(key, value)))

    def put_new(self, key: str, value: bytes) -> bool:
        """Store *value* if nothing whole is stored under *key*; tell whether it was."""
        check_value(value)
        if isinstance(self.get(key), bytes):
            return False
        self.put(key, value)
        return True

    def delete(self, key: str) -> bool:
        """Delete *key*; tell whether it was there."""
        check_key(key)
        return bool(self._do(lambda: self._cache.delete(key, retry=False)))

    def apply(self, changes: dict[str, Change]) -> None:
        """Make *changes*."""
        for key, change in changes.items():
            if change is None:
                self.delete(key)
            elif isinstance(change, New):
                self.put_new(key, change.value)
            else:
                self.put(key, change)


def put_row(cache: Any, key: str, sealed: bytes) -> None:
    """Store sealed bytes under *key*, inside a transaction."""
    now = time.time()
    cache._sql(_PUT, (key, now, now, RAW, sealed))  # noqa: SLF001 - the library looks first, and then writes


def read_row(cache: Any, key: str) -> bytes | Damaged | None:
    """Return what is stored under *key*: its value, what is wrong with it, or None."""
    try:
        stored = cache.get(key, retry=False)
    except ForeignRow as error:
        return Damaged(str(error))
    return None if stored is None else unseal(key, stored)


def read_rows(cache: Any, keys: Sequence[str]) -> dict[str, bytes | Damaged]:
    """Return what is stored under *keys*, in few look-ups of the index."""
    found: dict[str, bytes | Damaged] = {}
    for start in range(0, len(keys), _MARKS):
        some = keys[start : start + _MARKS]
        marks = ",".join("?" * len(some))
        rows = cache._sql(  # noqa: SLF001 - the library reads one row at a time
            f"SELECT key, value, mode, filename FROM Cache WHERE raw = 1 AND key IN ({marks})",  # noqa: S608 - marks only
            some,
        )
        found.update((key, _opened(key, value, mode, filename)) for key, value, mode, filename in rows)
    return found


def list_rows(cache: Any, prefix: str, after: str, limit: int) -> list[tuple[str, bytes | Damaged]]:
    """Return rows whose keys begin with *prefix* and come after *after*, sorted."""
    start, end = _range(prefix)
    rows = cache._sql(  # noqa: SLF001 - as above
        "SELECT key, value, mode, filename FROM Cache WHERE raw = 1 AND key >= ? AND key < ? AND key > ?"
        " ORDER BY key LIMIT ?",
        (start, end, after, limit),
    )
    return [(key, _opened(key, value, mode, filename)) for key, value, mode, filename in rows if _is_key(key)]


def last_key(cache: Any, prefix: str) -> str | None:
    """Return the last key that begins with *prefix*."""
    rows = cache._sql(  # noqa: SLF001 - as above
        "SELECT key FROM Cache WHERE raw = 1 AND key >= ? AND key < ? ORDER BY key DESC LIMIT 1", _range(prefix)
    ).fetchall()
    return str(rows[0][0]) if rows else None


def _opened(key: str, value: Any, mode: Any, filename: Any) -> bytes | Damaged:
    return unseal(key, value) if is_own(mode, filename, value) else Damaged(foreign_value(mode, filename, value))


def _range(prefix: str) -> tuple[str, str]:
    check_key(prefix)
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _is_key(key: object) -> bool:
    return type(key) is str and key.isascii()


def list_keys(cache: Any, prefix: str) -> list[str]:
    """Return the keys that begin with *prefix*, sorted, in one look-up of the index."""
    check_prefix(prefix)
    # The library lists all keys only, and stops at a row that it cannot decode.
    sql = cache._sql  # noqa: SLF001 - as above
    if prefix:
        found = sql("SELECT key FROM Cache WHERE raw = 1 AND key >= ? AND key < ? ORDER BY key", _range(prefix))
    else:
        found = sql("SELECT key FROM Cache WHERE raw = 1 ORDER BY key")
    return [key for (key,) in found.fetchall() if _is_key(key)]


def check_prefix(prefix: object) -> str:
    """
    Return *prefix* if keys may begin with it.

    Raises:
        InvalidArgument: It is no ASCII str.

    """
    return "" if prefix == "" else check_key(prefix)
