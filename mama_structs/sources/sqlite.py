"""Reference source for a SQLite database. Every foreign key is a reference."""

from __future__ import annotations

import math
import os
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.references.schemes import INFORMATIVE_FIELD_NAMES, IdScheme, Source

# Old versions of SQLite allow 999 variables per statement. Each id may need two variables.
_MAX_BATCH_IDS: Final = 400
# Seconds to wait for a lock while another process writes.
_LOCK_TIMEOUT_SECONDS: Final = 1.0
_MAX_BRIEF_COLUMNS: Final = 4
_MAX_INTEGER: Final = 2**63 - 1


@attrs.frozen(eq=False)
class SqliteTable:
    """A table: its columns, its primary key column, and its foreign key columns."""

    name: str
    columns: tuple[str, ...]
    # Primary key column. None if the table, such as a join table, has no single-column primary key.
    key: str | None
    foreign_keys: Mapping[str, str]

    @property
    def brief_columns(self) -> tuple[str, ...]:
        """The most informative columns of a row."""
        own = [name for name in self.columns if name != self.key and name not in self.foreign_keys]
        telling = [name for name in own if name.lower().rpartition("_")[2] in INFORMATIVE_FIELD_NAMES]
        return (*(telling or own)[:_MAX_BRIEF_COLUMNS], *list(self.foreign_keys)[:_MAX_BRIEF_COLUMNS])


def read_tables(
    connection: sqlite3.Connection, *, table_names: Collection[str] | None = None
) -> dict[str, SqliteTable]:
    """Return the tables by name, with the foreign keys between them."""
    listed = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY name"
    )
    columns: dict[str, tuple[str, ...]] = {}
    keys: dict[str, str] = {}
    for (name,) in listed.fetchall():
        if table_names is not None and name not in table_names:
            continue
        try:
            told = connection.execute("SELECT name, pk FROM pragma_table_info(?) ORDER BY cid", (name,)).fetchall()
        except sqlite3.OperationalError as error:
            # A virtual table of an extension that is not loaded must not prevent reading the other tables.
            if "no such module" in str(error):
                continue
            raise
        columns[name] = tuple(column for column, _ in told)
        primary = [column for column, place in told if place]
        if len(primary) == 1:
            keys[name] = primary[0]
    # SQLite table and column names are case-insensitive.
    spelt = {name.lower(): name for name in keys}
    foreign: dict[str, dict[str, str]] = defaultdict(dict)
    for name, own in columns.items():
        told = connection.execute(
            'SELECT id, "table", "from", "to" FROM pragma_foreign_key_list(?)', (name,)
        ).fetchall()
        numbers = [number for number, *_ in told]
        for number, target, column, named in told:
            parent = spelt.get(target.lower())
            # A composite foreign key, or one to a column other than the primary key, does not identify a row by one id.
            if (
                parent is not None
                and numbers.count(number) == 1
                and (named or keys[parent]).lower() == keys[parent].lower()
            ):
                held = next(one for one in own if one.lower() == column.lower())
                foreign[name][held] = parent
    return {name: SqliteTable(name, held, keys.get(name), dict(foreign[name])) for name, held in columns.items()}


def map_reference_fields(tables: Iterable[SqliteTable]) -> dict[str, str]:
    """
    Map the names of foreign key columns to the referenced tables.

    If the same column name refers to different tables, it is qualified with the name of its own table.
    """
    meanings: dict[str, dict[str, str]] = defaultdict(dict)
    for table in tables:
        for column, parent in table.foreign_keys.items():
            meanings[column][table.name] = parent
    fields: dict[str, str] = {}
    for column, by_table in meanings.items():
        if len(set(by_table.values())) == 1:
            fields[column] = next(iter(by_table.values()))
        else:
            fields |= {f"{name}.{column}": parent for name, parent in by_table.items()}
    return fields


@attrs.frozen
class SqliteDatabase:
    """A database that is opened read-only for each query."""

    path: Path
    tables: Mapping[str, SqliteTable] = attrs.field(factory=dict)

    @contextmanager
    def open_read_only(self) -> Iterator[sqlite3.Connection]:
        """Open the database read-only for the duration of the block."""
        connection = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=_LOCK_TIMEOUT_SECONDS)
        with closing(connection):
            # Replace invalid UTF-8 instead of raising an error.
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
            yield connection

    def fetch_rows(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return rows by id. An id is ``table:key``, or the key alone if there is only one table."""
        only = f"{next(iter(self.tables))}:" if len(self.tables) == 1 else ""
        wanted: dict[str, dict[str, str]] = defaultdict(dict)
        for one in ids:
            table, _, bare = f"{only}{one}".partition(":")
            wanted[table][bare] = one
        found: dict[str, dict[str, Any]] = {}
        with self.open_read_only() as connection:
            for table, asked in wanted.items():
                key = str(self.tables[table].key)
                values = [value for bare in asked for value in _to_key_values(bare)]
                marks = ", ".join("?" * len(values))
                # No SQL injection: the names of table and column come from the database's schema and are quoted.
                statement = f"SELECT * FROM {_quote_identifier(table)} WHERE {_quote_identifier(key)} IN ({marks})"  # noqa: S608
                cursor = connection.execute(statement, values)
                columns = [column[0] for column in cursor.description]
                for row in cursor:
                    shown = dict(zip(columns, map(_to_json_value, row), strict=True))
                    named = asked.get(str(shown[key]))
                    if named is not None:
                        found[named] = shown
        return found


def from_sqlite(
    path: str | os.PathLike[str], *, tables: Collection[str] | None = None, name: str | None = None
) -> Source:
    """
    Return a source for the rows of a SQLite database.

    Every single-column foreign key becomes a reference.
    The id of a row is ``table:key``, such as ``customers:7``, for tables with a single-column primary key.
    A column that references different tables in different tables counts only in a mapping named after its
    table.
    For each query the database is opened read-only, in a thread.

    Args:
        path: The database file.
        tables: Only these tables; None for all.
        name: The scheme's name; None for the name of the file.

    Raises:
        InvalidArgument: The file does not exist, is not a SQLite database, or has no such foreign key or table.

    """
    file = Path(os.fspath(path)).absolute() if isinstance(path, str | os.PathLike) else None
    if file is None or not file.is_file():
        raise InvalidArgument(f"path must be a SQLite database, and there is no file {path!r:.200}")
    database = SqliteDatabase(file)
    try:
        with database.open_read_only() as connection:
            every = read_tables(connection, table_names=None if tables is None else _check_table_names(tables))
    except sqlite3.Error as error:
        raise InvalidArgument(f"{file.name} cannot be read as a SQLite database: {error}") from error
    known = {name: table for name, table in every.items() if table.key is not None}
    useful = {*known, *(name for name, table in every.items() if table.foreign_keys)}
    missing = sorted(_check_table_names(tables) - useful) if tables is not None else []
    unfit = [table for table in known if ":" in table]
    if missing or unfit:
        raise InvalidArgument(
            f"{repr_short((missing or unfit)[0])} is no table whose rows one column names",
            hint=f"such tables are: {', '.join(known) or 'none'}; a name must not have a colon",
        )
    if not any(table.foreign_keys for table in every.values()):
        raise InvalidArgument(
            f"{file.name} has no foreign key of one column, so nothing in it refers to anything",
            hint="declare them (REFERENCES ...), or write a Source of your own: IdScheme(fields={...})",
        )
    # Exclude primary keys that share their name with a foreign key, because they may identify a row of another table.
    foreign = {column for table in every.values() for column in table.foreign_keys}
    scheme = IdScheme(
        name=file.stem if name is None else name,
        fields=map_reference_fields(every.values()),
        types=frozenset(known),
        own=frozenset({str(table.key) for table in known.values()} - foreign) | {"id"},
        brief={table.name: table.brief_columns for table in known.values()},
    )
    return Source(scheme, fetch_many=attrs.evolve(database, tables=known).fetch_rows, max_batch=_MAX_BATCH_IDS)


def _check_table_names(tables: object) -> frozenset[str]:
    if isinstance(tables, str) or not isinstance(tables, Collection):
        raise InvalidArgument(f"tables must be a collection of names, got {repr_short(tables)}")
    return frozenset(tables)


def _to_key_values(bare: str) -> tuple[str | int, ...]:
    """
    Return an id as text, and also as a number if possible.

    A column without a type compares values by type, so both are needed.
    """
    is_number = bare.isascii() and bare.removeprefix("-").isdecimal() and len(bare) < len(str(_MAX_INTEGER))
    return (bare, int(bare)) if is_number else (bare,)


def _to_json_value(value: Any) -> Any:
    """Return a column value as a JSON value."""
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>"
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
