"""
Schema migrations of a server's database: numbered SQL files, each applied once.

All pending files are applied in one transaction, so either all of them are applied or none.

An advisory lock serializes migrations, so that many hosts may start concurrently.
"""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

import attrs

from mama_structs.errors import StoreError, StoreReadOnly
from mama_structs.storage.postgres.filter_name_rows import add_filter_names, add_path_names, add_value_names
from mama_structs.storage.postgres.shared_rows import assign_shared_rows

SCHEMA: Final = "mama_structs"
"""The database schema that contains all tables of this package."""

MIN_POSTGRES_VERSION: Final = 15
MIN_PGVECTOR_VERSION: Final = (0, 8, 4)
# The bytes of "mama" in ASCII. Other programs are unlikely to use this number as a lock id.
MIGRATION_LOCK_ID: Final = 0x6D616D61
"""The advisory lock that a migration holds exclusively and write transactions share, so that they never overlap."""

# Timeout per statement in seconds. It is long, because a migration may rewrite large tables.
STATEMENT_TIMEOUT_SECONDS: Final = 600.0
# Functions to run before the SQL file with the same number, for what SQL cannot compute: row checksums, canonical JSON.
PYTHON_MIGRATIONS: Final = {5: assign_shared_rows, 6: add_filter_names, 7: add_value_names, 9: add_path_names}

DATABASE_STATE_SQL: Final = """
SELECT current_setting('server_version_num')::int / 10000 AS server,
    current_setting('server_encoding') AS encoding,
    pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' AS is_read_only,
    (SELECT extversion FROM pg_extension WHERE extname = 'vector') AS vector,
    (SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace
        WHERE extname = 'vector') AS vector_schema,
    (SELECT default_version FROM pg_available_extensions WHERE name = 'vector') AS available,
    to_regclass('mama_structs.migrations') IS NOT NULL AS is_begun,
    current_user::text AS role,
    (SELECT pg_has_role(relowner, 'USAGE') FROM pg_class
        WHERE oid = to_regclass('mama_structs.migrations')) AS is_owner,
    has_table_privilege(to_regclass('mama_structs.rows'), 'INSERT') AS can_insert
"""
CREATE_MIGRATIONS_SQL: Final = """
CREATE SCHEMA IF NOT EXISTS mama_structs;
CREATE TABLE IF NOT EXISTS mama_structs.migrations (
    version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""


@attrs.frozen
class SchemaState:
    """Schema version and properties of a database, and the role of the connection."""

    is_read_only: bool  # True if the server is a replica or the role may not insert.
    vector_schema: str
    version: int
    role: str = ""

    @property
    def search_path(self) -> str:
        """The search path, with quoted identifiers."""
        return ", ".join(dict.fromkeys((SCHEMA, self.vector_schema)))


def load_migrations() -> list[tuple[int, str, str]]:
    """Return number, name and SQL text of every migration, in ascending order."""
    found = resources.files(__package__).joinpath("migrations")
    files = sorted((file.name, file.read_text("utf-8")) for file in found.iterdir() if file.name.endswith(".sql"))
    return [(int(name[:4]), name.removesuffix(".sql"), sql) for name, sql in files]


def check_pgvector(installed: str | None, available: str | None, location: str) -> bool:
    """
    Return True if pgvector is installed in the database, False if the server can install it.

    Raise an error if it is missing or too old.
    """
    wanted = ".".join(map(str, MIN_PGVECTOR_VERSION))
    version = installed or available
    if version is None:
        hint = f"install pgvector {wanted} or newer on the server, then: CREATE EXTENSION vector"
        raise StoreError(f"{location} has no pgvector", hint=hint)
    if _parse_version(version) < MIN_PGVECTOR_VERSION:
        # Older versions are unsafe: they read out of bounds before 0.8.2, and damage indexes on inserts before 0.8.4.
        newer = available is not None and _parse_version(available) >= MIN_PGVECTOR_VERSION
        hint = "ALTER EXTENSION vector UPDATE" if newer else f"install pgvector {wanted} or newer on the server"
        raise StoreError(f"{location} has pgvector {version:.20}, and {wanted} is the oldest that is safe", hint=hint)
    return installed is not None


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))


async def prepare_database(connection: Any, location: str, *, wait: float) -> SchemaState:
    """
    Migrate the database to this version, and return its state.

    If another host is migrating it, wait for the end of this migration.
    """
    files = load_migrations()
    newest = files[-1][0]
    found = await connection.fetchrow(DATABASE_STATE_SQL)
    if found["server"] < MIN_POSTGRES_VERSION or found["encoding"] != "UTF8":
        what = f"PostgreSQL {found['server']} with the encoding {found['encoding']}"
        raise StoreError(
            f"{location} is {what}", hint=f"PostgreSQL {MIN_POSTGRES_VERSION} or newer, in UTF8, is needed"
        )
    has_vector = check_pgvector(found["vector"], found["available"], location)
    version = await _read_version(connection) if found["is_begun"] else 0
    check_version(version, newest, location)
    if found["is_read_only"]:
        if version < newest:
            raise StoreReadOnly(
                f"{location} can only be read, and is of an older version ({version}) than this package ({newest})",
                hint="open a session on the primary once: it brings the database to this version",
            )
    elif version < newest:
        # If the tables do not exist yet, `is_owner` is None.
        if found["is_owner"] is False:
            raise StoreReadOnly(
                f"{location} is of an older version ({version}) than this package ({newest}), "
                f"and the role {found['role']!r:.80} does not own its tables",
                hint="open a session as the owner of the tables once: it brings the database to this version",
            )
        await _migrate(connection, files, location, wait=wait, has_vector=has_vector)
    if not has_vector:
        found = await connection.fetchrow(DATABASE_STATE_SQL)
    # If this call has created the tables, `can_insert` is None.
    is_read_only = found["is_read_only"] or found["can_insert"] is False
    return SchemaState(is_read_only, found["vector_schema"], newest, found["role"])


def check_version(version: int, known: int, location: str) -> None:
    """Raise `StoreError` if the database has a newer schema version than this package."""
    if version > known:
        raise StoreError(
            f"{location} was written by a newer version of this package (its version is {version}, ours {known})",
            hint="update mama-structs on this host: pip install -U mama-structs",
        )


def check_same_version(version: int, known: int, location: str) -> None:
    """Raise `StoreError` if the schema version has changed since this package opened the database."""
    check_version(version, known, location)
    if version < known:
        raise StoreError(
            f"{location} was replaced by a database of an older version (its version is {version}, ours {known})",
            hint="close all sessions and open a new one: it brings the database to this version",
        )


async def _create_pgvector(connection: Any) -> bool:
    """Create the extension unless it exists. Return False if the role lacks the privilege."""
    import asyncpg  # noqa: PLC0415 - optional dependency

    try:
        await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except asyncpg.InsufficientPrivilegeError:
        return False
    return True


async def _read_version(connection: Any) -> int:
    version: int = await connection.fetchval("SELECT coalesce(max(version), 0) FROM mama_structs.migrations")
    return version


async def _migrate(
    connection: Any, files: list[tuple[int, str, str]], location: str, *, wait: float, has_vector: bool
) -> None:
    async with connection.transaction(isolation="read_committed", readonly=False):
        # Lock until the end of the transaction, because a pooler may share the connection with other clients.
        lock = f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK_ID})"
        await connection.execute(f"SET LOCAL lock_timeout = {int(wait * 1000)}; {lock}")
        if not has_vector and not await _create_pgvector(connection):
            hint = "have an administrator of the server run in this database: CREATE EXTENSION vector"
            raise StoreError(f"{location} has no pgvector in this database, and its user may not add it", hint=hint)
        found = await connection.fetchrow(DATABASE_STATE_SQL)
        # Skip this if the table exists, because even IF NOT EXISTS requires the privilege to create schemas.
        if not found["is_begun"]:
            await connection.execute(CREATE_MIGRATIONS_SQL)
        prepared = SchemaState(is_read_only=False, vector_schema=found["vector_schema"], version=files[-1][0])
        await connection.execute(f"SET LOCAL search_path = {prepared.search_path}")
        version = await _read_version(connection)
        check_version(version, files[-1][0], location)
        for number, name, sql in (one for one in files if one[0] > version):
            if number in PYTHON_MIGRATIONS:
                await PYTHON_MIGRATIONS[number](connection, timeout=STATEMENT_TIMEOUT_SECONDS)
            await connection.execute(sql, timeout=STATEMENT_TIMEOUT_SECONDS)
            await connection.execute(
                "INSERT INTO mama_structs.migrations (version, name) VALUES ($1, $2)", number, name
            )
