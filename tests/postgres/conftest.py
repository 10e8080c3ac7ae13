"""Fixtures with a PostgreSQL server and a database for each test."""

from postgres_helpers import (
    database,
    empty_database,
    memory_server,
    own_database,
    own_postgres,
    plain_database,
    postgres,
    prepared,
    proxy,
)

__all__ = [
    "database",
    "empty_database",
    "memory_server",
    "own_database",
    "own_postgres",
    "plain_database",
    "postgres",
    "prepared",
    "proxy",
]
