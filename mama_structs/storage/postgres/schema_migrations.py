"""
Schema migrations of a server's database: numbered SQL files, each applied once.

All pending files are applied in one transaction.

An advisory lock serializes them, so that many hosts may start concurrently. Either all files are applied or none.
"""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

import attrs

from mama_structs.errors import StoreError, StoreReadOnly
from mama_structs.storage.postgres.shared_rows import assign_shared_rows

SCHEMA: Final = "mama_structs"
"""The database schema that contains all tables of this package."""

OLDEST_SERVER: Final = 15
OLDEST_VECTOR: Final = (0, 8, 4)
# An arbitrary number that other programs are unlikely to use: "mama" in ASCII.
MIGRATION_LOCK: Final = 0x6D616D61
"""The advisory lock that a migration holds exclusively and write transactions share, so that they never overlap."""

# Timeout of each statement in seconds: a migration may rewrite large tables.
_LONGEST: Final = 600.0
# Row checksums cannot be computed in SQL, so these functions run before the file of that number.
_BEFORE: Final = {5: assign_shared_rows}

_LOOK: Final = """
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
_BEGUN: Final = """
CREATE SCHEMA IF NOT EXISTS mama_structs;
CREATE TABLE IF NOT EXISTS mama_structs.migrations (
    version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""


@attrs.frozen
class Prepared:
    """Schema version and properties of a database, and the connected role."""

    is_read_only: bool  # True if the server is a replica or the role may not insert.
    vector_schema: str
    version: int
    role: str = ""

    @property
    def path(self) -> str:
        """The search path, with quoted identifiers."""
        return ", ".join(dict.fromkeys((SCHEMA, self.vector_schema)))


def migrations() -> list[tuple[int, str, str]]:
    """Return number, name and SQL of every migration, in ascending order."""
    found = resources.files(__package__).joinpath("migrations")
    files = sorted((file.name, file.read_text("utf-8")) for file in found.iterdir() if file.name.endswith(".sql"))
    return [(int(name[:4]), name.removesuffix(".sql"), sql) for name, sql in files]


def check_vector(installed: str | None, available: str | None, where: str) -> bool:
    """
    Return True if pgvector is installed, False if it is available.

    Raise if it is missing or too old.
    """
    wanted = ".".join(map(str, OLDEST_VECTOR))
    version = installed or available
    if version is None:
        hint = f"install pgvector {wanted} or newer on the server, then: CREATE EXTENSION vector"
        raise StoreError(f"{where} has no pgvector", hint=hint)
    if _numbers(version) < OLDEST_VECTOR:
        # Earlier versions are unsafe: out-of-bounds index reads before 0.8.2, damaging inserts before 0.8.4.
        newer = available is not None and _numbers(available) >= OLDEST_VECTOR
        hint = "ALTER EXTENSION vector UPDATE" if newer else f"install pgvector {wanted} or newer on the server"
        raise StoreError(f"{where} has pgvector {version:.20}, and {wanted} is the oldest that is safe", hint=hint)
    return installed is not None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))


async def prepare(connection: Any, where: str, *, wait: float) -> Prepared:
    """
    Migrate the database to this version and return its state.

    Wait for other hosts that are migrating.
    """
    files = migrations()
    newest = files[-1][0]
    found = await connection.fetchrow(_LOOK)
    if found["server"] < OLDEST_SERVER or found["encoding"] != "UTF8":
        what = f"PostgreSQL {found['server']} with the encoding {found['encoding']}"
        raise StoreError(f"{where} is {what}", hint=f"PostgreSQL {OLDEST_SERVER} or newer, in UTF8, is needed")
    has_vector = check_vector(found["vector"], found["available"], where)
    version = await _version(connection) if found["is_begun"] else 0
    check_version(version, newest, where)
    if found["is_read_only"]:
        if version < newest:
            raise StoreReadOnly(
                f"{where} can only be read, and is of an older version ({version}) than this package ({newest})",
                hint="open a session on the primary once: it brings the database to this version",
            )
    elif version < newest:
        # `is_owner` is None if the tables do not exist yet.
        if found["is_owner"] is False:
            raise StoreReadOnly(
                f"{where} is of an older version ({version}) than this package ({newest}), "
                f"and the role {found['role']!r:.80} does not own its tables",
                hint="open a session as the owner of the tables once: it brings the database to this version",
            )
        await _migrate(connection, files, where, wait=wait, has_vector=has_vector)
    if not has_vector:
        found = await connection.fetchrow(_LOOK)
    # `can_insert` is None if this call has created the tables.
    is_read_only = found["is_read_only"] or found["can_insert"] is False
    return Prepared(is_read_only, found["vector_schema"], newest, found["role"])


def check_version(version: int, known: int, where: str) -> None:
    """Raise `StoreError` if the database has a newer schema version than this package."""
    if version > known:
        raise StoreError(
            f"{where} was written by a newer version of this package (its version is {version}, ours {known})",
            hint="update mama-structs on this host: pip install -U mama-structs",
        )


def check_same_version(version: int, known: int, where: str) -> None:
    """Raise `StoreError` if the schema version has changed since the session was opened."""
    check_version(version, known, where)
    if version < known:
        raise StoreError(
            f"{where} was replaced by a database of an older version (its version is {version}, ours {known})",
            hint="close all sessions and open a new one: it brings the database to this version",
        )


async def _has_made_vector(connection: Any) -> bool:
    """Create the extension unless it exists. Return False if the user lacks the privilege."""
    import asyncpg  # noqa: PLC0415 - optional dependency

    try:
        await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except asyncpg.InsufficientPrivilegeError:
        return False
    return True


async def _version(connection: Any) -> int:
    version: int = await connection.fetchval("SELECT coalesce(max(version), 0) FROM mama_structs.migrations")
    return version


async def _migrate(
    connection: Any, files: list[tuple[int, str, str]], where: str, *, wait: float, has_vector: bool
) -> None:
    async with connection.transaction(isolation="read_committed", readonly=False):
        # A transaction-level lock, because a pooler may share the connection with other clients.
        lock = f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"
        await connection.execute(f"SET LOCAL lock_timeout = {int(wait * 1000)}; {lock}")
        if not has_vector and not await _has_made_vector(connection):
            hint = "have an administrator of the server run in this database: CREATE EXTENSION vector"
            raise StoreError(f"{where} has no pgvector in this database, and its user may not add it", hint=hint)
        found = await connection.fetchrow(_LOOK)
        # An owner of the tables may lack the privilege to create schemas, which is checked even if the schema exists.
        if not found["is_begun"]:
            await connection.execute(_BEGUN)
        prepared = Prepared(is_read_only=False, vector_schema=found["vector_schema"], version=files[-1][0])
        await connection.execute(f"SET LOCAL search_path = {prepared.path}")
        version = await _version(connection)
        check_version(version, files[-1][0], where)
        for number, name, sql in (one for one in files if one[0] > version):
            if number in _BEFORE:
                await _BEFORE[number](connection, timeout=_LONGEST)
            await connection.execute(sql, timeout=_LONGEST)
            await connection.execute(
                "INSERT INTO mama_structs.migrations (version, name) VALUES ($1, $2)", number, name
            )
