"""Reader of v1.0 databases, from a private copy of the file."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs.errors import MigrationError
from mama_structs.importers.shared.safe_files import refused
from mama_structs.importers.shared.sqlite_copy import CopiedDatabase, copied, quoted, rowid_of
from mama_structs.importers.shared.value_readers import ForeignRow

DECISIONS: Final = "decisions"
EDGES: Final = "decision_edges"
CHECKPOINTS: Final = "checkpoints"
VERSIONS: Final = "schema_version"
VECTORS: Final = "vss_memories"
# The newest schema version of v1.0.
_SCHEMA: Final = 4
_READ: Final = (DECISIONS, EDGES, CHECKPOINTS)
_NEEDED: Final = ("id", "topic", "decision")
# The maximum number of rows of a skipped table that are listed individually; further rows are only counted.
_NAMED: Final = 1000
_KEY_LENGTH: Final = 200
_ELSEWHERE: Final = "v1.0 keeps its own in ~/.claude/mama-memory.db unless told otherwise"
_VIRTUAL: Final = re.compile(r'(?is)\s*CREATE\s+VIRTUAL\s+TABLE\s.*?\sUSING\s+"?([a-z0-9_]+)')
# Shadow tables that vector extensions create inside a virtual table, according to their documentation.
_INNER: Final[Mapping[str, str]] = {
    "vec0": "chunks|rowids|info|auxiliary|(?:vector_chunks|metadatachunks|metadatatext)[0-9]+",
    "vss0": "index|data",
}


@attrs.frozen
class OtherTable:
    """A table without memories: its name, its number of rows, and the keys of the first rows."""

    name: str
    rows: int
    keys: tuple[str, ...]


@attrs.frozen(kw_only=True)
class OldDatabase:
    """The content of a v1.0 database, with rows in the order in which they were saved."""

    path: str
    # SHA-256 of the file.
    checksum: str
    # A digest of the rows' values, independent of the file's layout.
    content: str
    # The newest schema migration of the old program that was applied to the file.
    version: int
    decisions: tuple[ForeignRow, ...]
    edges: tuple[ForeignRow, ...]
    checkpoints: tuple[ForeignRow, ...]
    others: tuple[OtherTable, ...]


def read_old(path: Path) -> OldDatabase:
    """
    Read a v1.0 database. Blocks.

    Raises:
        InvalidArgument: The file does not exist.
        MigrationError: The file is not a MAMA v1.0 database, damaged, truncated, too large, or being written to.

    """
    with copied(path, kind="a database of MAMA v1.0", program="MAMA") as database:
        database.check(lambda: _tables(database))
        return _read(database)


# The rows


def _read(database: CopiedDatabase) -> OldDatabase:
    path = database.path
    tables = _tables(database)
    columns = database.columns(DECISIONS) if DECISIONS in tables else []
    if VERSIONS not in tables or not set(_NEEDED) <= set(columns):
        raise _foreign(path, "it has no table of decisions with their topics")
    version = _version(database)
    digest = hashlib.sha256()
    rows = {name: tuple(database.rows(name)) if name in tables else () for name in _READ}
    for name in _READ:
        for row in rows[name]:
            digest.update(repr((name, *row.values.items())).encode("utf-8", "surrogatepass"))
    return OldDatabase(
        path=str(path),
        checksum=database.checksum,
        content=digest.hexdigest()[:16],
        version=version,
        decisions=rows[DECISIONS],
        edges=rows[EDGES],
        checkpoints=rows[CHECKPOINTS],
        others=tuple(_other(database, name) for name in tables if name not in _READ),
    )


def _tables(database: CopiedDatabase) -> list[str]:
    """Return the names of all tables except internal and shadow tables."""
    names = database.definitions()
    # PRAGMA table_list marks shadow tables only for modules that this SQLite has loaded.
    inner = {str(row[1]) for row in database.connection.execute("PRAGMA table_list") if row[2] == "shadow"}
    for name, sql in names.items():
        virtual = _VIRTUAL.match(sql)
        suffixes = virtual and _INNER.get(virtual[1].lower())
        if suffixes:
            inner |= {other for other in names if re.fullmatch(f"{re.escape(name)}_(?:{suffixes})", other)}
    # The tables to import are never skipped, even if their names look like shadow tables.
    inner -= {*_READ, VERSIONS}
    return [name for name in names if not name.startswith("sqlite_") and name not in inner]


def _version(database: CopiedDatabase) -> int:
    versions = [row.get("version") for row in database.rows(VERSIONS)]
    newest = max((version for version in versions if isinstance(version, int)), default=None)
    if newest is None:
        what = f"does not say which version of MAMA wrote it: {VERSIONS} has no number"
        raise refused(database.path, what, "open it with MAMA v1.0 once, which completes it")
    if newest > _SCHEMA:
        what = f"was written by a later MAMA: its tables have the form {newest}, those of v1.0 have {_SCHEMA}"
        raise refused(database.path, what, "migrate the copy of the file that was made before MAMA was updated")
    return newest


def _other(database: CopiedDatabase, table: str) -> OtherTable:
    counted = f"{table}_rowids" if table == VECTORS else table
    try:
        ((rows,),) = database.connection.execute(f"SELECT count(*) FROM {quoted(counted)}")  # noqa: S608 - quoted
    except sqlite3.OperationalError:
        # A virtual table of a missing extension, or one without its shadow tables.
        return OtherTable(table, 0, ())
    if table in {VECTORS, VERSIONS}:
        return OtherTable(table, rows, ())
    # Read only the keys of these rows; their other columns may be private.
    columns = database.columns(table)
    key, form = (quoted("id"), "{}") if "id" in columns else (rowid_of(columns), "row {}")
    # The fallback if the table has no rowid, or if its columns use all names of the rowid.
    found: list[tuple[Any]] = [(number + 1,) for number in range(min(rows, _NAMED))]
    with contextlib.suppress(sqlite3.OperationalError):
        if key is not None:
            # Truncate in SQL: a thousand keys could take hundreds of gigabytes of memory.
            cut = f"CASE WHEN typeof({key}) IN ('text', 'blob') THEN substr({key}, 1, {_KEY_LENGTH}) ELSE {key} END"
            keys = f"SELECT {cut} FROM {quoted(table)} LIMIT {_NAMED}"  # noqa: S608 - quoted
            found = database.connection.execute(keys).fetchall()
    return OtherTable(table, rows, tuple(form.format(_key(value)) for (value,) in found))


def _key(value: Any) -> str:
    return str(value)[:_KEY_LENGTH] if isinstance(value, str | int | float) else f"({type(value).__name__})"


def _foreign(path: Path, why: str) -> MigrationError:
    return refused(path, f"is a database, and none of MAMA v1.0: {why}", _ELSEWHERE)
