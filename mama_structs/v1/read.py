"""A v1.0 database, read from a private copy of its file; and what its values, which may be anything, say."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
import os
import re
import shutil
import sqlite3
import stat
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs
import msgspec

from mama_structs._check import FIRST, LAST, printable
from mama_structs.errors import InvalidArgument, MigrationError
from mama_structs.memory.model import from_milliseconds, milliseconds
from mama_structs.storage.locks import is_locked

DECISIONS: Final = "decisions"
EDGES: Final = "decision_edges"
CHECKPOINTS: Final = "checkpoints"
VERSIONS: Final = "schema_version"
VECTORS: Final = "vss_memories"
# Seconds, as long as a program that only saves something now may take.
PATIENCE: Final = 1.0
_PAUSE: Final = 0.05
# The newest form that v1.0 gives its tables.
_SCHEMA: Final = 4
_READ: Final = (DECISIONS, EDGES, CHECKPOINTS)
_NEEDED: Final = ("id", "topic", "decision")
# Rows of a table that is left out which are named one by one; of more their number says enough.
_NAMED: Final = 1000
_SHOWN: Final = 5
_ELSEWHERE: Final = "v1.0 keeps its own in ~/.claude/mama-memory.db unless told otherwise"
_BUSY: Final = "stop MAMA, or copy the file, and try again"
_VIRTUAL: Final = re.compile(r'(?is)\s*CREATE\s+VIRTUAL\s+TABLE\s.*?\sUSING\s+"?([a-z0-9_]+)')
# The tables that the modules for vectors keep inside a virtual one, as their documentation names them.
_INNER: Final[Mapping[str, str]] = {
    "vec0": "chunks|rowids|info|auxiliary|(?:vector_chunks|metadatachunks|metadatatext)[0-9]+",
    "vss0": "index|data",
}
# What `integrity_check` also finds, and which harms nothing here: each value is looked at one by one.
_HARMLESS: Final = re.compile("CHECK constraint failed|NULL (value )?in|non-unique entry|TEXT value in|NUMERIC")
_NO_MODULE: Final = "no such module"
_MAGIC: Final = b"SQLite format 3\x00"
# https://www.sqlite.org/fileformat2.html, 1.3: page size, count of changes, pages, and the change as of which.
_HEADER: Final = struct.Struct(">16xH6xII60xI4x")
# Its source, os.h and wal.c: the bytes that it locks; a reader locks only the last ones, and only against writers.
_PENDING: Final = 0x40000000
_LOCKED: Final = 512
_WAL_WRITE: Final = 120
_WAL_LOCKED: Final = 3
# A text of a memory that is longer is cut: SQLite takes up to a gigabyte, a line of an export a quarter of that.
_MAX_TEXT: Final = 2**24
_MAX_DEPTH: Final = 50
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Below the first it is seconds: as milliseconds it would be before March 1973, as seconds it may be the year 5138.
_UNITS: Final = (
    (10**11, 1000, 1, "it is in seconds"),
    (10**14, 1, 1, None),
    (10**17, 1, 1000, "it is in microseconds"),
    (math.inf, 1, 1_000_000, "it is in nanoseconds"),
)
_LONGEST_TIME: Final = 100


@attrs.frozen
class Undecoded:
    """A text that is no UTF-8."""

    data: bytes


Value = int | float | str | bytes | Undecoded | None
"""What a column may hold; `bytes` is a BLOB."""


@attrs.frozen
class OldRow:
    """A row with its rowid, which rises in the order of writing, and what it holds by column."""

    number: int
    values: Mapping[str, Value]

    def get(self, column: str) -> Value:
        """Return a column's value, None where the table has no such column."""
        return self.values.get(column)

    def text(self, column: str) -> str | None:
        """Return a column's value as a text."""
        return read_text(self.get(column)).text


@attrs.frozen
class OtherTable:
    """A table that holds no memories: its name, how many rows it has, and the keys of the first ones."""

    name: str
    rows: int
    keys: tuple[str, ...]


@attrs.frozen(kw_only=True)
class OldDatabase:
    """What a v1.0 database holds, the rows in order of saving."""

    path: str
    # SHA-256 of the file.
    checksum: str
    # A name for what the rows say, the same whatever the file looks like.
    content: str
    # The newest of the old program's own migrations that made its tables.
    version: int
    decisions: tuple[OldRow, ...]
    edges: tuple[OldRow, ...]
    checkpoints: tuple[OldRow, ...]
    others: tuple[OtherTable, ...]


def read_old(path: Path) -> OldDatabase:
    """
    Read a v1.0 database; blocks, and changes nothing.

    Raises:
        InvalidArgument: There is no such file.
        MigrationError: It is no database of MAMA v1.0, damaged, cut off, or being written to.

    """
    with tempfile.TemporaryDirectory(prefix="mama-structs-") as directory:
        try:
            copy = Path(directory, "old.db")
            checksum = _copy(path, copy)
            # Not read-only: what the old program had not yet moved into the file is moved here, in the copy.
            with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as database:
                database.execute("PRAGMA trusted_schema = OFF")
                database.execute("PRAGMA cell_size_check = ON")
                database.text_factory = _decoded
                _check_whole(path, database)
                return _read(path, checksum, database)
        except sqlite3.Error as error:
            raise _damaged(path, [str(error)]) from error
        except OSError as error:
            what = f"cannot be copied to be read: {error.strerror or type(error).__name__}"
            hint = "see that it may be read, and that the temporary directory has room for it"
            raise _refused(path, what, hint) from error


# The copy. Not even reading it in place leaves a file alone: SQLite makes -wal and -shm beside a database in WAL mode.


def _copy(path: Path, copy: Path) -> str:
    """Copy a database with what its program has not yet moved into it, and return its checksum."""
    # A file's locks are the process's: closing it drops them, so that is done last.
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_opened(path))
        # Its program keeps what belongs to it beside the file itself, not beside a link to it.
        real = Path(os.path.realpath(path))
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size or not head.startswith(_MAGIC):
            what = "is no SQLite database" if head else "is empty"
            raise _refused(path, what, "nothing was made or written")
        _wait_for_writers(path, real, file, stack)
        pieces = {"": file, **_beside(real, stack)}
        for suffix, piece in pieces.items():
            piece.seek(0)
            with Path(f"{copy}{suffix}").open("xb") as target:
                shutil.copyfileobj(piece, target)
        sums = {suffix: _sum(stack.enter_context(Path(f"{copy}{suffix}").open("rb", buffering=0))) for suffix in pieces}
        now = {"": file, **_beside(real, stack)}
        is_same = all(_is_at(one, file) for one in (path, real))
        if not is_same or sums != {suffix: _sum(piece) for suffix, piece in now.items()}:
            raise _refused(path, "was changed while it was read", _BUSY)
        if len(pieces) == 1:
            _check_size(path, head, file.seek(0, os.SEEK_END))
        return sums[""]


def _opened(path: Path) -> FileIO:
    try:
        file = _regular(path)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise InvalidArgument(f"path must be a database of MAMA v1.0, {str(path)!r:.200}: {said}") from error
    if file is None:
        raise InvalidArgument(f"path must be a file, and {str(path)!r:.200} is none")
    return file


def _regular(path: Path) -> FileIO | None:
    """Open a file, None for what is none, such as a FIFO."""
    # Without O_NONBLOCK the opening of a FIFO waits for its other end.
    wanted = ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
    fd = os.open(path, sum((getattr(os, name, 0) for name in wanted), os.O_RDONLY))
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.fdopen(fd, "rb", buffering=0)
    os.close(fd)
    return None


def _beside(path: Path, stack: contextlib.ExitStack) -> dict[str, FileIO]:
    """Open what stands beside a database, and holds something that belongs to it."""
    found = {}
    for suffix in ("-wal", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            file = _regular(Path(f"{path}{suffix}"))
            if file is not None:
                stack.enter_context(file)
                if os.fstat(file.fileno()).st_size:
                    found[suffix] = file
    return found


def _sum(file: FileIO) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def _is_at(path: Path, file: FileIO) -> bool:
    """Tell whether no other file has come to stand in the place of the one that was read."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False


def _check_size(path: Path, head: bytes, size: int) -> None:
    page, changes, pages, as_of = _HEADER.unpack(head)
    named = pages * (65536 if page == 1 else page)
    # An old SQLite does not keep the number of pages up to date; then the two counters differ.
    if size < named and changes == as_of:
        what = f"has {size:,} bytes of the {named:,} that its first page names: it was cut off"
        raise _refused(path, what, "copy it again, as a whole")


def _wait_for_writers(path: Path, real: Path, file: FileIO, stack: contextlib.ExitStack) -> None:
    shared = None
    with contextlib.suppress(OSError):
        shared = _regular(Path(f"{real}-shm"))
    if shared is not None:
        stack.enter_context(shared)
    asked = [(file, _PENDING, _LOCKED), *([(shared, _WAL_WRITE, _WAL_LOCKED)] if shared else [])]
    until = time.monotonic() + PATIENCE
    # Where the system tells nothing of locks, it is still found out whether the file changes while it is read.
    while any(is_locked(one.fileno(), at, by_others=False, length=size, to_read=True) for one, at, size in asked):
        if time.monotonic() >= until:
            raise _refused(path, "is locked: another program is writing to it", _BUSY)
        time.sleep(_PAUSE)


def _refused(path: Path, what: str, hint: str) -> MigrationError:
    return MigrationError(f"{str(path)!r:.200} {what}", path=str(path), hint=hint)


# The rows


def _check_whole(path: Path, database: sqlite3.Connection) -> None:
    lines = _integrity(database, "100")
    if lines is None:
        # Newer ones ask virtual tables, too, and the one of the vectors needs its extension.
        lines = [line for name in _tables(database) for line in _integrity(database, _quoted(name)) or ()]
    found = [line for line in lines if line != "ok" and not _HARMLESS.match(line) and _NO_MODULE not in line]
    if found:
        raise _damaged(path, found)


def _integrity(database: sqlite3.Connection, what: str) -> list[str] | None:
    """Return what SQLite finds, None where a module that it needs for that is missing."""
    try:
        return [str(line) for (line,) in database.execute(f"PRAGMA integrity_check({what})")]
    except sqlite3.OperationalError as error:
        if _NO_MODULE not in str(error):
            raise
        return None


def _read(path: Path, checksum: str, database: sqlite3.Connection) -> OldDatabase:
    tables = _tables(database)
    columns = _columns(database, DECISIONS) if DECISIONS in tables else []
    if VERSIONS not in tables or not set(_NEEDED) <= set(columns):
        raise _foreign(path, "it has no table of decisions with their topics")
    version = _version(path, database)
    digest = hashlib.sha256()
    rows = {name: tuple(_rows(path, database, name)) if name in tables else () for name in _READ}
    for name in _READ:
        for row in rows[name]:
            digest.update(repr((name, *row.values.items())).encode("utf-8", "surrogatepass"))
    return OldDatabase(
        path=str(path),
        checksum=checksum,
        content=digest.hexdigest()[:16],
        version=version,
        decisions=rows[DECISIONS],
        edges=rows[EDGES],
        checkpoints=rows[CHECKPOINTS],
        others=tuple(_other(database, name) for name in tables if name not in _READ),
    )


def _tables(database: sqlite3.Connection) -> list[str]:
    """Return the tables that a program made, those within a virtual one left out."""
    names = {
        str(name): "" if sql is None else str(sql)
        for name, sql in database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name")
    }
    # It names those of the modules that this SQLite has.
    inner = {str(row[1]) for row in database.execute("PRAGMA table_list") if row[2] == "shadow"}
    for name, sql in names.items():
        virtual = _VIRTUAL.match(sql)
        suffixes = virtual and _INNER.get(virtual[1].lower())
        if suffixes:
            inner |= {other for other in names if re.fullmatch(f"{re.escape(name)}_(?:{suffixes})", other)}
    # However they are named: these are what the file is read for.
    inner -= {*_READ, VERSIONS}
    return [name for name in names if not name.startswith("sqlite_") and name not in inner]


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in database.execute(f"PRAGMA table_info({_quoted(table)})")]


def _version(path: Path, database: sqlite3.Connection) -> int:
    versions = [version for (version,) in database.execute(f"SELECT version FROM {_quoted(VERSIONS)}")]  # noqa: S608 - a constant
    newest = max((version for version in versions if isinstance(version, int)), default=None)
    if newest is None:
        what = f"does not say which version of MAMA wrote it: {VERSIONS} has no number"
        raise _refused(path, what, "open it with MAMA v1.0 once, which completes it")
    if newest > _SCHEMA:
        what = f"was written by a later MAMA: its tables have the form {newest}, those of v1.0 have {_SCHEMA}"
        raise _refused(path, what, "migrate the copy of the file that was made before MAMA was updated")
    return newest


def _rows(path: Path, database: sqlite3.Connection, table: str) -> Iterator[OldRow]:
    columns = _columns(database, table)
    alias = _rowid(columns)
    if alias is None:
        raise _foreign(path, f"columns of {table} have all the names that a row's number goes by")
    names = ", ".join(map(_quoted, columns))
    for number, *values in database.execute(f"SELECT {alias}, {names} FROM {_quoted(table)} ORDER BY {alias}"):  # noqa: S608 - quoted
        yield OldRow(number, dict(zip(columns, values, strict=True)))


def _rowid(columns: list[str]) -> str | None:
    used = {column.lower() for column in columns}
    return next((name for name in ("rowid", "_rowid_", "oid") if name not in used), None)


def _other(database: sqlite3.Connection, table: str) -> OtherTable:
    counted = f"{table}_rowids" if table == VECTORS else table
    try:
        ((rows,),) = database.execute(f"SELECT count(*) FROM {_quoted(counted)}")  # noqa: S608 - quoted
    except sqlite3.OperationalError:
        # A virtual table of an extension that is not there, or a table without what it is made of.
        return OtherTable(table, 0, ())
    if table in {VECTORS, VERSIONS}:
        return OtherTable(table, rows, ())
    # What else a row holds is nobody's business here.
    columns = _columns(database, table)
    key, form = (_quoted("id"), "{}") if "id" in columns else (_rowid(columns), "row {}")
    # It may have no rowid, or columns that have all its names.
    found: list[tuple[Any]] = [(number + 1,) for number in range(min(rows, _NAMED))]
    with contextlib.suppress(sqlite3.OperationalError):
        if key is not None:
            found = database.execute(f"SELECT {key} FROM {_quoted(table)} LIMIT {_NAMED}").fetchall()  # noqa: S608 - quoted
    return OtherTable(table, rows, tuple(form.format(_key(value)) for (value,) in found))


def _key(value: Any) -> str:
    return str(value)[:200] if isinstance(value, str | int | float) else f"({type(value).__name__})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _foreign(path: Path, why: str) -> MigrationError:
    return _refused(path, f"is a database, and none of MAMA v1.0: {why}", _ELSEWHERE)


def _damaged(path: Path, found: list[str]) -> MigrationError:
    shown = "; ".join(printable(line.replace("\n", " ")) for line in found[:_SHOWN])
    hint = "copy it again, or recover it first: sqlite3 OLD.db .recover"
    return _refused(path, f"is damaged or not whole: {shown:.300}", hint)


# The values


class ReadText(NamedTuple):
    """A column's text, None for NULL; what is odd about it, in a word and in some; whether it says all."""

    text: str | None
    kind: str | None = None
    note: str | None = None
    is_whole: bool = True


class ReadTime(NamedTuple):
    """A column's time (UTC), None where it is none, and what is odd about how it is written, or why it is none."""

    at: datetime | None
    note: str | None = None


def _decoded(data: bytes) -> str | Undecoded:
    """Return a text of the database, which SQLite does not check."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return Undecoded(data)


def read_text(value: Value) -> ReadText:
    """Return a column's text, as near to what it says as a text can be."""
    if value is None or isinstance(value, str):
        found = ReadText(value)
    elif isinstance(value, int | float):
        found = ReadText(str(value), "number_in_text", "it is a number")
    else:
        data, where = (value, "a BLOB") if isinstance(value, bytes) else (value.data, "no UTF-8")
        try:
            found = ReadText(data.decode(), "blob_in_text", f"it is {where}, and was read as UTF-8")
        except UnicodeDecodeError:
            note = f"it is {where} with bytes that are no UTF-8: these are shown as U+FFFD, and kept in metadata.extra"
            found = ReadText(data.decode("utf-8", "replace"), "not_utf8", note, is_whole=False)
    if found.text is None:
        return found
    if len(found.text) > _MAX_TEXT:
        note = f"it has {len(found.text):,} characters, and was cut at {_MAX_TEXT:,}"
        return ReadText(found.text[:_MAX_TEXT], "cut", note, is_whole=False)
    if found.kind is None and _CONTROL.search(found.text):
        return found._replace(kind="control_characters", note="it has control characters, which are kept")
    return found


def read_json(text: str) -> Any:
    """Return what a text says as JSON, also within a JSON text; what this store cannot hold is a ValueError."""
    try:
        found = msgspec.json.decode(text)
        if isinstance(found, str) and found.lstrip()[:1] in {"{", "["}:
            found = msgspec.json.decode(found)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    level = [found]
    for _ in range(_MAX_DEPTH):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = list(chain.from_iterable(inner))
        if not level:
            return found
    raise ValueError("it is nested too deeply")


def kept(value: Value) -> Any:
    """Return a value as JSON-able data that says the same."""
    if isinstance(value, bytes | Undecoded):
        return {"base64": base64.b64encode(value if isinstance(value, bytes) else value.data).decode()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_time(value: Value) -> ReadTime:  # noqa: PLR0911 - one for each kind of value
    """Return the time that a column says."""
    # Numbers of seconds to nanoseconds are told apart by their magnitude; a text is such a number, ISO 8601 (UTC where
    # it names no zone) or the form of e-mail and HTTP.
    if value is None:
        return ReadTime(None, "it is NULL")
    if isinstance(value, int | float):
        return _of_number(value)
    if isinstance(value, Undecoded):
        return ReadTime(None, "it is no text")
    text = (value if isinstance(value, str) else value[:_LONGEST_TIME].decode("utf-8", "replace")).strip()
    if not text or len(text) > _LONGEST_TIME:
        return ReadTime(None, "it is no time")
    try:
        number = float(text)
    except ValueError:
        moment = _dated(text)
        if moment is None or not FIRST < moment < LAST:
            return ReadTime(None, "it is no time")
        return ReadTime(from_milliseconds(milliseconds(moment)), "it is a text")
    found = _of_number(int(text) if text.lstrip("+").isdecimal() else number)
    return found if found.at is None else ReadTime(found.at, "it is a text")


def _of_number(number: float) -> ReadTime:
    if not math.isfinite(number) or number <= 0:
        return ReadTime(None, "it is 0 or less" if number <= 0 else "it is not finite")
    times, by, note = next((times, by, note) for below, times, by, note in _UNITS if number < below)
    count = math.floor(number * times / by)
    if count >= milliseconds(LAST):
        return ReadTime(None, "it is too large")
    return ReadTime(from_milliseconds(count), note or (None if isinstance(number, int) else "it is a fraction"))


def _dated(text: str) -> datetime | None:
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(text)
            # SQLite's own functions give UTC, and name no zone.
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
    return None
