"""Check for PostgreSQL settings with which a crash may lose acknowledged data."""

from __future__ import annotations

from typing import Final

from mama_structs.storage.postgres.pool import Connection
from mama_structs.storage.postgres.schema_migrations import SCHEMA
from mama_structs.storage.sqlite_errors import Issue

# Run this in a read transaction: only there synchronous_commit has the value of the user, database or server.
SETTINGS_SQL: Final = """
SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    ARRAY(SELECT relname::text FROM pg_class WHERE relnamespace = 'mama_structs'::regnamespace AND relpersistence = 'u'
        AND relkind IN ('r', 'p') ORDER BY relname) AS unlogged
"""
ISSUE_KIND: Final = "server"


def check_durability(connection: Connection) -> list[Issue]:
    """
    Return an issue for each setting with which a crash may lose acknowledged data.

    The connection must be in a read transaction.
    """
    (found,) = connection.fetch(SETTINGS_SQL)
    findings = []
    if found["fsync"] == "off":
        message = (
            "the server has fsync=off: a crash of its machine may lose acknowledged data and damage the database; "
            "set fsync=on in its configuration"
        )
        findings.append(Issue("error", ISSUE_KIND, message))
    if found["full_page_writes"] == "off":
        message = (
            "the server has full_page_writes=off: a crash of its machine may damage pages, unless its file system "
            "writes each page as a whole; set full_page_writes=on in its configuration"
        )
        findings.append(Issue("warning", ISSUE_KIND, message))
    for table in found["unlogged"]:
        message = (
            f"the table {table} is unlogged: a crash of the server empties it; ALTER TABLE {SCHEMA}.{table} SET LOGGED"
        )
        findings.append(Issue("error", ISSUE_KIND, message))
    if found["synchronous_commit"] == "off":
        message = (
            "this user, database or server has synchronous_commit=off: each write transaction of a session sets it to "
            "on, but a crash may lose the last transactions of other programs"
        )
        findings.append(Issue("warning", ISSUE_KIND, message))
    return findings
