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

from mama_structs._internal.jsonable import JsonMixin
from mama_structs.errors import MigrationError
from mama_structs.importers.shared.safe_files import import_error
from mama_structs.importers.shared.sqlite_copy import SqliteCopy, find_rowid_alias, open_copy, quote_identifier
from mama_structs.importers.shared.value_readers import ForeignRow

DECISIONS: Final = "decisions"
EDGES: Final = "decision_edges"
CHECKPOINTS: Final = "checkpoints"
VERSIONS: Final = "schema_version"
VECTORS: Final = "vss_memories"
# The newest schema version of v1.0.
MAX_SCHEMA_VERSION: Final = 4
IMPORTED_TABLES: Final = (DECISIONS, EDGES, CHECKPOINTS)
REQUIRED_COLUMNS: Final = ("id", "topic", "decision")
# The maximum number of keys that are listed for a skipped table. Further rows are only counted.
MAX_LISTED_ROWS: Final = 1000
MAX_KEY_CHARS: Final = 200
LOCATION_HINT: Final = "v1.0 keeps its own in ~/.claude/mama-memory.db unless told otherwise"
VIRTUAL_TABLE_PATTERN: Final = re.compile(r'(?is)\s*CREATE\s+VIRTUAL\s+TABLE\s.*?\sUSING\s+"?([a-z0-9_]+)')
# Suffixes of the shadow tables that vector extensions create for a virtual table, according to their documentation.
SHADOW_TABLE_SUFFIXES: Final[Mapping[str, str]] = {
    "vec0": "chunks|rowids|info|auxiliary|(?:vector_chunks|metadatachunks|metadatatext)[0-9]+",
    "vss0": "index|data",
}


@attrs.frozen
class SkippedTable:
    """A table that is not migrated: its name, its number of rows, and the keys of the first rows."""

    name: str
    rows: int
    keys: tuple[str, ...]


@attrs.frozen(kw_only=True)
class V1Database(JsonMixin):
    """The content of a v1.0 database, with rows in the order in which they were saved."""

    path: str
    # SHA-256 of the file.
    checksum: str
    # A digest of the rows' values, which does not change when SQLite rewrites the file.
    content: str
    # The highest schema version that the old program recorded in the file.
    version: int
    decisions: tuple[ForeignRow, ...]
    edges: tuple[ForeignRow, ...]
    checkpoints: tuple[ForeignRow, ...]
    others: tuple[SkippedTable, ...]


def read_v1(path: Path) -> V1Database:
    """
    Read a v1.0 database. Blocks.

    Args:
        path: The path of the database.

    Raises:
        InvalidArgument: The file does not exist.
        MigrationError: The file is not a MAMA v1.0 database, damaged, truncated, too large, or being written to.

    """
    with open_copy(path, kind="a database of MAMA v1.0", program="MAMA") as database:
        database.check(lambda: _user_tables(database))
        return _read_database(database)


# The rows of the imported tables.


def _read_database(database: SqliteCopy) -> V1Database:
    path = database.path
    tables = _user_tables(database)
    columns = database.columns(DECISIONS) if DECISIONS in tables else []
    if VERSIONS not in tables or not set(REQUIRED_COLUMNS) <= set(columns):
        raise _not_v1_error(path, "it has no table of decisions with their topics")
    version = _read_version(database)
    digest = hashlib.sha256()
    rows = {name: tuple(database.rows(name)) if name in tables else () for name in IMPORTED_TABLES}
    for name in IMPORTED_TABLES:
        for row in rows[name]:
            digest.update(repr((name, *row.values.items())).encode("utf-8", "surrogatepass"))
    return V1Database(
        path=str(path),
        checksum=database.checksum,
        content=digest.hexdigest()[:16],
        version=version,
        decisions=rows[DECISIONS],
        edges=rows[EDGES],
        checkpoints=rows[CHECKPOINTS],
        others=tuple(_read_skipped_table(database, name) for name in tables if name not in IMPORTED_TABLES),
    )


def _user_tables(database: SqliteCopy) -> list[str]:
    """Return the names of all tables except internal and shadow tables."""
    names = database.table_definitions()
    # The query lists only the shadow tables of loaded extensions. Other shadow tables are recognized by their names.
    inner = {str(row[1]) for row in database.connection.execute("PRAGMA table_list") if row[2] == "shadow"}
    for name, sql in names.items():
        virtual = VIRTUAL_TABLE_PATTERN.match(sql)
        suffixes = virtual and SHADOW_TABLE_SUFFIXES.get(virtual[1].lower())
        if suffixes:
            inner |= {other for other in names if re.fullmatch(f"{re.escape(name)}_(?:{suffixes})", other)}
    # Never skip an imported table, even if its name looks like that of a shadow table.
    inner -= {*IMPORTED_TABLES, VERSIONS}
    return [name for name in names if not name.startswith("sqlite_") and name not in inner]


def _read_version(database: SqliteCopy) -> int:
    versions = [row.get("version") for row in database.rows(VERSIONS)]
    newest = max((version for version in versions if isinstance(version, int)), default=None)
    if newest is None:
        what = f"does not say which version of MAMA wrote it: {VERSIONS} has no number"
        raise import_error(database.path, what, "open it with MAMA v1.0 once, which completes it")
    if newest > MAX_SCHEMA_VERSION:
        what = (
            f"was written by a later MAMA: its tables have the form {newest}, those of v1.0 have {MAX_SCHEMA_VERSION}"
        )
        raise import_error(database.path, what, "migrate the copy of the file that was made before MAMA was updated")
    return newest


def _read_skipped_table(database: SqliteCopy, table: str) -> SkippedTable:
    counted = f"{table}_rowids" if table == VECTORS else table
    try:
        ((rows,),) = database.connection.execute(f"SELECT count(*) FROM {quote_identifier(counted)}")  # noqa: S608 - quoted
    except sqlite3.OperationalError:
        # The table is virtual and its extension or shadow tables are missing, so its rows cannot be counted.
        return SkippedTable(table, 0, ())
    if table in {VECTORS, VERSIONS}:
        return SkippedTable(table, rows, ())
    # Read only the keys of the rows, because other columns may contain private data.
    columns = database.columns(table)
    key, form = (quote_identifier("id"), "{}") if "id" in columns else (find_rowid_alias(columns), "row {}")
    # Identify rows by number if the table has no rowid, or if its columns use all names of the rowid.
    found: list[tuple[Any]] = [(number + 1,) for number in range(min(rows, MAX_LISTED_ROWS))]
    with contextlib.suppress(sqlite3.OperationalError):
        if key is not None:
            # Truncate keys in SQL, because a thousand untruncated keys could take hundreds of gigabytes of memory.
            cut = f"CASE WHEN typeof({key}) IN ('text', 'blob') THEN substr({key}, 1, {MAX_KEY_CHARS}) ELSE {key} END"
            keys = f"SELECT {cut} FROM {quote_identifier(table)} LIMIT {MAX_LISTED_ROWS}"  # noqa: S608 - quoted
            found = database.connection.execute(keys).fetchall()
    return SkippedTable(table, rows, tuple(form.format(_format_key(value)) for (value,) in found))


def _format_key(value: Any) -> str:
    return str(value)[:MAX_KEY_CHARS] if isinstance(value, str | int | float) else f"({type(value).__name__})"


def _not_v1_error(path: Path, why: str) -> MigrationError:
    return import_error(path, f"is a database, and none of MAMA v1.0: {why}", LOCATION_HINT)
