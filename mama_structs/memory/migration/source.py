"""The rows of a v1.0 database, read from a private copy of its file."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs.errors import MigrationError
from mama_structs.memory.migration.copying import copy_database
from mama_structs.memory.migration.values import Value, decoded, printable

SCHEMA: Final = 4
"""The newest form that v1.0 gives its tables."""

DECISIONS: Final = "decisions"
EDGES: Final = "decision_edges"
CHECKPOINTS: Final = "checkpoints"
VERSIONS: Final = "schema_version"
VECTORS: Final = "vss_memories"
_READ: Final = (DECISIONS, EDGES, CHECKPOINTS)
_NEEDED: Final = ("id", "topic", "decision")
# Rows of a table that is left out which are named one by one; of more their number says enough.
_NAMED: Final = 1000
_SHOWN: Final = 5
_VIRTUAL: Final = re.compile(r'(?is)\s*CREATE\s+VIRTUAL\s+TABLE\s.*?\sUSING\s+"?([a-z0-9_]+)')
# The tables that modules keep inside a virtual one, as their documentation names them.
_INNER: Final[Mapping[str, str]] = {
    "fts3": "content|segments|segdir|docsize|stat",
    "fts4": "content|segments|segdir|docsize|stat",
    "fts5": "data|idx|content|docsize|config",
    "rtree": "node|rowid|parent",
    "vec0": "chunks|rowids|info|auxiliary|(?:vector_chunks|metadatachunks|metadatatext)[0-9]+",
    "vss0": "index|data",
}
# What `integrity_check` also finds, and which harms nothing here: each value is looked at one by one.
_HARMLESS: Final = (
    "CHECK constraint failed",
    "NULL value in",
    "NULL in",
    "non-unique entry",
    "TEXT value in",
    "NUMERIC",
)


@attrs.frozen
class OldRow:
    """
    A row of the old database.

    Args:
        number: Its rowid: rows were written in this order.
        values: What it holds, by column.

    """

    number: int
    values: Mapping[str, Value]

    def get(self, column: str) -> Value:
        """Return a column's value, None where the table has no such column."""
        return self.values.get(column)


@attrs.frozen
class OtherTable:
    """
    A table that holds no memories.

    Args:
        name: Its name.
        rows: How many rows it has.
        keys: The key of each, or of the first ones where they are many.

    """

    name: str
    rows: int
    keys: tuple[str, ...]


@attrs.frozen(kw_only=True)
class OldDatabase:
    """
    What a v1.0 database holds.

    Args:
        path: The file, which was not changed.
        checksum: SHA-256 of it.
        content: A name for what the rows say, the same whatever the file looks like.
        version: The newest of the old program's own migrations that made its tables.
        decisions: In order of saving.
        edges: In order of saving.
        checkpoints: In order of saving.
        others: All other tables.

    """

    path: str
    checksum: str
    content: str
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
            copied = copy_database(path, Path(directory))
            with contextlib.closing(_connected(copied.path)) as database:
                _check_whole(path, database)
                return _read(path, copied.checksum, database)
        except sqlite3.Error as error:
            raise _damaged(path, [str(error)]) from error
        except OSError as error:
            raise MigrationError(
                f"{str(path)!r:.200} cannot be copied to be read: {error.strerror or type(error).__name__}",
                path=str(path),
                hint="see that it may be read, and that the temporary directory has room for it",
            ) from error


def _connected(copy: Path) -> sqlite3.Connection:
    # Not read-only: what the old program had not yet moved into the file is moved here, in the copy.
    database = sqlite3.connect(copy, isolation_level=None)
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    database.text_factory = decoded
    return database


def _check_whole(path: Path, database: sqlite3.Connection) -> None:
    try:
        lines = [str(line) for (line,) in database.execute("PRAGMA integrity_check(100)")]
    except sqlite3.OperationalError as error:
        # Newer ones ask virtual tables, too, and the one of the vectors needs its extension.
        if "no such module" not in str(error):
            raise
        lines = [line for name in _tables(database) for line in _table_check(database, name)]
    found = [line for line in lines if line != "ok" and not line.startswith(_HARMLESS) and "no such module" not in line]
    if found:
        raise _damaged(path, found)


def _table_check(database: sqlite3.Connection, table: str) -> list[str]:
    try:
        return [str(line) for (line,) in database.execute(f"PRAGMA integrity_check({_quoted(table)})")]
    except sqlite3.OperationalError as error:
        if "no such module" not in str(error):
            raise
        return []


def _read(path: Path, checksum: str, database: sqlite3.Connection) -> OldDatabase:
    tables = _tables(database)
    columns = {name: _columns(database, name) for name in _READ if name in tables}
    if VERSIONS not in tables or not set(_NEEDED) <= set(columns.get(DECISIONS, ())):
        raise MigrationError(
            f"{str(path)!r:.200} is a database, and none of MAMA v1.0: it has no table of decisions with their topics",
            path=str(path),
            hint="v1.0 keeps its own in ~/.claude/mama-memory.db unless told otherwise",
        )
    version = _version(path, database)
    digest = hashlib.sha256()
    rows: dict[str, tuple[OldRow, ...]] = {}
    for name in _READ:
        rows[name] = tuple(_rows(path, database, name)) if name in tables else ()
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
    # It names those of the modules that this SQLite has, and an SQLite before 3.37 gives no row.
    inner = {str(row[1]) for row in database.execute("PRAGMA table_list") if row[2] == "shadow"}
    for name, sql in names.items():
        virtual = _VIRTUAL.match(sql)
        suffixes = None if virtual is None else _INNER.get(virtual[1].lower())
        if suffixes is not None:
            inner |= {other for other in names if re.fullmatch(f"{re.escape(name)}_(?:{suffixes})", other)}
    # However they are named: these are what the file is read for.
    inner -= {*_READ, VERSIONS}
    return [name for name in names if not name.startswith("sqlite_") and name not in inner]


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in database.execute(f"PRAGMA table_info({_quoted(table)})")]


def _version(path: Path, database: sqlite3.Connection) -> int:
    versions = [version for (version,) in database.execute(f"SELECT version FROM {_quoted(VERSIONS)}")]  # noqa: S608 - a constant
    numbers = [version for version in versions if isinstance(version, int)]
    if not numbers:
        raise MigrationError(
            f"{str(path)!r:.200} does not say which version of MAMA wrote it: {VERSIONS} has no number",
            path=str(path),
            hint="open it with MAMA v1.0 once, which completes it",
        )
    if max(numbers) > SCHEMA:
        raise MigrationError(
            f"{str(path)!r:.200} was written by a later MAMA: its tables have the form {max(numbers)}, those of v1.0 "
            f"have {SCHEMA}",
            path=str(path),
            hint="migrate the copy of the file that was made before MAMA was updated",
        )
    return max(numbers)


def _rows(path: Path, database: sqlite3.Connection, table: str) -> Iterator[OldRow]:
    columns = _columns(database, table)
    alias = _rowid(columns)
    if alias is None:
        raise MigrationError(
            f"{str(path)!r:.200} is a database, and none of MAMA v1.0: columns of {table} have all the names that a "
            "row's number goes by",
            path=str(path),
            hint="v1.0 keeps its own in ~/.claude/mama-memory.db unless told otherwise",
        )
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
    alias = _rowid(columns)
    key, form = (_quoted("id"), "{}") if "id" in columns else (alias, "row {}")
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


def _damaged(path: Path, found: list[str]) -> MigrationError:
    shown = "; ".join(printable(line.replace("\n", " ")) for line in found[:_SHOWN])
    return MigrationError(
        f"{str(path)!r:.200} is damaged or not whole: {shown:.300}",
        path=str(path),
        hint="copy it again, or recover it first: sqlite3 OLD.db .recover",
    )
