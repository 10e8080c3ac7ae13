"""
Reader of SQLite databases of other programs. It reads a private copy of the file.

Reading the original would change its folder, because SQLite creates -wal and -shm files next to a database in WAL mode.

The schema is untrusted. Only ordinary tables are read, never a view, a virtual table or a generated column, so that no
query evaluates an expression of the schema. Limits of SQLite and of this module bound the memory that a small file can
require.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final

import attrs

from mama_structs._internal.validation import to_printable
from mama_structs.errors import MigrationError
from mama_structs.importers.shared.safe_files import (
    MAX_DATABASE_BYTES,
    check_size,
    import_error,
    open_file,
    open_regular_file,
)
from mama_structs.importers.shared.value_readers import ForeignRow, UndecodableText, Value
from mama_structs.storage.locks import is_range_locked

# The maximum time to wait until another program has finished a write.
LOCK_WAIT_SECONDS: Final = 1.0
LOCK_POLL_SECONDS: Final = 0.05
MAX_SHOWN_ISSUES: Final = 5
_BLOCK_BYTES: Final = 2**20
VIRTUAL_TABLE_PATTERN: Final = re.compile(r"\s*CREATE\s+VIRTUAL\s", re.IGNORECASE)
BUSY_HINT: Final = "stop {}, or copy the file, and try again"
# Ignore these findings of the integrity check, because each value is validated when it is read.
HARMLESS_ISSUE_PATTERN: Final = re.compile(
    "CHECK constraint failed|NULL (value )?in|non-unique entry|TEXT value in|NUMERIC"
)
NO_MODULE_TEXT: Final = "no such module"
TOO_BIG_TEXT: Final = "too big"
MAX_VALUE_BYTES: Final = 2**28
"""The maximum size of a value or a row. Larger ones raise an error."""
_MAX_TABLES: Final = 1_000
# https://www.sqlite.org/security.html recommends low limits for a database file from an untrusted source.
SQLITE_LIMITS: Final[Mapping[int, int]] = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 10,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
# Maximum ratio of the memory for all rows to the file size. Only UTF-16 text needs more than its size in the file.
# A default value of an added column can exceed this ratio, because the file stores it once for all rows.
MAX_EXPANSION_FACTOR: Final = 2
_EXPANSION_SLACK_BYTES: Final = 2**20
SQLITE_MAGIC: Final = b"SQLite format 3\x00"
# Page size, change counter, number of pages and version-valid-for number (sqlite.org/fileformat2.html, section 1.3).
HEADER_STRUCT: Final = struct.Struct(">16xH6xII60xI4x")
# Byte offsets of SQLite's locks, from os.h and wal.c. Shared locks of readers are ignored.
PENDING_LOCK_OFFSET: Final = 0x40000000
LOCK_BYTES: Final = 512
WAL_WRITE_LOCK_OFFSET: Final = 120
WAL_LOCK_BYTES: Final = 3


@attrs.frozen(eq=False)
class SqliteCopy:
    """The private copy of a database, with the path, SHA-256 and size of the original."""

    path: Path
    checksum: str
    size: int
    connection: sqlite3.Connection

    def names(self) -> list[str]:
        """Return the names of all tables, including virtual tables."""
        return list(self.table_definitions())

    def table_definitions(self) -> dict[str, str]:
        """Return the SQL of all tables by name."""
        listed = "SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name LIMIT ?"
        found = {
            str(name): "" if sql is None else str(sql)
            for name, sql in self.connection.execute(listed, (_MAX_TABLES + 1,))
        }
        if len(found) > _MAX_TABLES:
            raise import_error(self.path, f"must have at most {_MAX_TABLES:,} tables", "nothing was written")
        return found

    def columns(self, table: str) -> list[str]:
        """
        Return the names of a table's columns.

        Generated columns are excluded, because their expressions are untrusted.
        """
        return [str(row[1]) for row in self.connection.execute(f"PRAGMA table_info({quote_identifier(table)})")]

    def count(self, table: str) -> int:
        """Return the number of rows of an ordinary table."""
        count: int = self.connection.execute(f"SELECT count(*) FROM {quote_identifier(table)}").fetchone()[0]  # noqa: S608 - quoted
        return count

    def rows(self, table: str, *, newest_first: bool = False) -> Iterator[ForeignRow]:
        """
        Yield the rows of a table in rowid order, which is the order of insertion.

        Raises:
            MigrationError: The table is virtual or has no rowid, or its rows are larger than the file.

        """
        if is_virtual(self.table_definitions().get(table, "")):
            raise self._unusual(f"{table} is a virtual table")
        columns = self.columns(table)
        alias = find_rowid_alias(columns)
        if alias is None:
            raise self._unusual(f"columns of {table} have all the names that a row's number goes by")
        names = ", ".join(map(quote_identifier, columns))
        order = f"{alias} DESC" if newest_first else alias
        left = MAX_EXPANSION_FACTOR * self.size + _EXPANSION_SLACK_BYTES
        for number, *values in self.connection.execute(
            f"SELECT {alias}, {names} FROM {quote_identifier(table)} ORDER BY {order}"  # noqa: S608 - quoted
        ):
            left -= sum(map(_size_of, values))
            if left < 0:
                raise self._unusual(f"the rows of {table} are larger than the file")
            yield ForeignRow(number, dict(zip(columns, values, strict=True)))

    def _unusual(self, why: str) -> MigrationError:
        return import_error(self.path, f"is not as its program makes it: {why}", "nothing was written")

    def check(self, tables: Callable[[], Iterable[str]] | None = None) -> None:
        """
        Raise MigrationError if SQLite finds damage.

        If SQLite cannot check the whole database, *tables* are checked individually.
        """
        lines = self._run_integrity_check("100")
        if lines is None:
            # Newer versions of SQLite also check virtual tables, whose extensions may not be installed.
            names = (tables or self.names)()
            lines = [line for name in names for line in self._run_integrity_check(quote_identifier(name)) or ()]
        found = [
            line
            for line in lines
            if line != "ok" and not HARMLESS_ISSUE_PATTERN.match(line) and NO_MODULE_TEXT not in line
        ]
        if found:
            raise _damage_error(self.path, found)

    def _run_integrity_check(self, what: str) -> list[str] | None:
        """Return the findings of SQLite's integrity check, or None if a virtual table's extension is missing."""
        try:
            return [str(line) for (line,) in self.connection.execute(f"PRAGMA integrity_check({what})")]
        except sqlite3.OperationalError as error:
            if NO_MODULE_TEXT not in str(error):
                raise
            return None


@contextlib.contextmanager
def open_copy(path: Path, *, kind: str, program: str) -> Iterator[SqliteCopy]:
    """
    Copy another program's database and open the copy. Blocks.

    Raises:
        InvalidArgument: The file does not exist.
        MigrationError: The file is not a database, damaged, truncated, too large, or being written to.

    """
    with tempfile.TemporaryDirectory(prefix="mama-structs-") as directory:
        try:
            copy = Path(directory, "copy.db")
            checksum, size = _copy_database(path, copy, program, kind)
            # The connection must be writable, because SQLite merges the copied write-ahead log into the copy.
            with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as connection:
                for category, limit in SQLITE_LIMITS.items():
                    connection.setlimit(category, limit)
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA cell_size_check = ON")
                connection.text_factory = _decode_text
                yield SqliteCopy(path, checksum, size, connection)
        except sqlite3.Error as error:
            if TOO_BIG_TEXT in str(error):
                what = f"has a value or a row of more than {MAX_VALUE_BYTES:,} bytes"
                raise import_error(path, what, "delete the value in a copy of the file, and import the copy") from error
            raise _damage_error(path, [str(error)]) from error
        except OSError as error:
            what = f"cannot be copied to be read: {error.strerror or type(error).__name__}"
            hint = "see that it may be read, and that the temporary directory has room for it"
            raise import_error(path, what, hint) from error


def _copy_database(path: Path, copy: Path, program: str, kind: str) -> tuple[str, int]:
    """Copy a database with its journals. Return the SHA-256 of the main file and the total size."""
    # Close the files last, because closing any handle of a file releases all locks that this process has on it.
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open_file(path, kind))
        # SQLite stores the journals next to the real file, not next to a symbolic link.
        real = Path(os.path.realpath(path))
        head = file.read(HEADER_STRUCT.size)
        if len(head) < HEADER_STRUCT.size or not head.startswith(SQLITE_MAGIC):
            what = "is no SQLite database" if head else "is empty"
            raise import_error(path, what, "nothing was made or written")
        _wait_for_writers(path, real, file, stack, program)
        pieces = {"": file, **_open_journals(real, stack)}
        size = sum(os.fstat(piece.fileno()).st_size for piece in pieces.values())
        check_size(path, size, MAX_DATABASE_BYTES)
        for suffix, piece in pieces.items():
            piece.seek(0)
            with Path(f"{copy}{suffix}").open("xb") as target:
                _copy_bytes(piece, target, MAX_DATABASE_BYTES)
        sums = {
            suffix: _compute_checksum(stack.enter_context(Path(f"{copy}{suffix}").open("rb", buffering=0)))
            for suffix in pieces
        }
        now = {"": file, **_open_journals(real, stack)}
        is_same = all(_is_same_file(one, file) for one in (path, real))
        if not is_same or sums != {suffix: _compute_checksum(piece) for suffix, piece in now.items()}:
            raise import_error(path, "was changed while it was read", BUSY_HINT.format(program))
        if len(pieces) == 1:
            _check_not_truncated(path, head, file.seek(0, os.SEEK_END))
        return sums[""], size


def _copy_bytes(source: FileIO, target: BinaryIO, limit: int) -> None:
    """Copy at most *limit* bytes. If the file grows during the copy, the checksums differ."""
    while limit > 0 and (block := source.read(min(_BLOCK_BYTES, limit))):
        target.write(block)
        limit -= len(block)


def _open_journals(path: Path, stack: contextlib.ExitStack) -> dict[str, FileIO]:
    """Open the non-empty journal files of a database."""
    found = {}
    for suffix in ("-wal", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            file = open_regular_file(Path(f"{path}{suffix}"))
            if file is not None:
                stack.enter_context(file)
                if os.fstat(file.fileno()).st_size:
                    found[suffix] = file
    return found


def _compute_checksum(file: FileIO) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def _is_same_file(path: Path, file: FileIO) -> bool:
    """Return True if the path still refers to the file that was read."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False


def _check_not_truncated(path: Path, head: bytes, size: int) -> None:
    page, changes, pages, as_of = HEADER_STRUCT.unpack(head)
    named = pages * (65536 if page == 1 else page)
    # If an old version of SQLite wrote the file, the counters differ and the number of pages is outdated.
    if size < named and changes == as_of:
        what = f"has {size:,} bytes of the {named:,} that its first page names: it was cut off"
        raise import_error(path, what, "copy it again, as a whole")


def _wait_for_writers(path: Path, real: Path, file: FileIO, stack: contextlib.ExitStack, program: str) -> None:
    shared = None
    with contextlib.suppress(OSError):
        shared = open_regular_file(Path(f"{real}-shm"))
    if shared is not None:
        stack.enter_context(shared)
    asked = [
        (file, PENDING_LOCK_OFFSET, LOCK_BYTES),
        *([(shared, WAL_WRITE_LOCK_OFFSET, WAL_LOCK_BYTES)] if shared else []),
    ]
    until = time.monotonic() + LOCK_WAIT_SECONDS
    # If the system cannot report locks, the checksums still detect a concurrent write.
    while any(
        is_range_locked(one.fileno(), at, ignore_own=False, length=size, ignore_shared=True) for one, at, size in asked
    ):
        if time.monotonic() >= until:
            raise import_error(path, "is locked: another program is writing to it", BUSY_HINT.format(program))
        time.sleep(LOCK_POLL_SECONDS)


def is_virtual(sql: str) -> bool:
    """Return True if the SQL creates a virtual table."""
    return VIRTUAL_TABLE_PATTERN.match(sql) is not None


def find_rowid_alias(columns: Iterable[str]) -> str | None:
    """Return an alias of the rowid that no column uses, or None if all aliases are used."""
    used = {column.lower() for column in columns}
    return next((name for name in ("rowid", "_rowid_", "oid") if name not in used), None)


def quote_identifier(name: str) -> str:
    """Quote the name of a table or column for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _decode_text(data: bytes) -> str | UndecodableText:
    """Decode a text. Return an `UndecodableText` for invalid UTF-8, which SQLite does not reject."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return UndecodableText(data)


def _size_of(value: Value) -> int:
    """Return the size of a value in characters or bytes; 0 for a number."""
    data = value.data if isinstance(value, UndecodableText) else value
    return len(data) if isinstance(data, str | bytes) else 0


def _damage_error(path: Path, found: list[str]) -> MigrationError:
    shown = "; ".join(to_printable(line.replace("\n", " ")) for line in found[:MAX_SHOWN_ISSUES])
    hint = "copy it again, or recover it first: sqlite3 OLD.db .recover"
    return import_error(path, f"is damaged or not whole: {shown:.300}", hint)
