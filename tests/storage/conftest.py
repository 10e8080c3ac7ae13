"""Fixtures for both kinds of stores: in a directory and on a PostgreSQL server."""

import sqlite3
from contextlib import closing

import attrs
import pytest
from postgres_helpers import administer, database, empty_database, own_postgres, postgres, prepared, proxy

from mama_structs.storage.postgres.pool import PostgresPool
from mama_structs.storage.postgres.store import PostgresStorage
from mama_structs.storage.sqlite_store import SqliteStorage

__all__ = ["database", "empty_database", "own_postgres", "postgres", "prepared", "proxy"]


@attrs.frozen
class InDirectory:
    """Opens a store in a directory."""

    directory: object

    def open(self):
        """Open the store."""
        return SqliteStorage.open(self.directory / "journal")


@attrs.frozen
class OnServer:
    """Opens a store on a server."""

    url: str

    def open(self):
        """Open the store."""
        return PostgresStorage(PostgresPool.open(self.url), namespace="default")


@pytest.fixture(params=["directory", "server"])
def place(request, tmp_path):
    """Return an object whose method `open` opens the same store at each call."""
    if request.param == "directory":
        return InDirectory(tmp_path)
    return OnServer(request.getfixturevalue("database"))


@pytest.fixture
def damage(place):
    """Return a function that overwrites the bytes of every row."""

    def damage():
        if isinstance(place, OnServer):
            administer(place.url, r"UPDATE mama_structs.rows SET value = decode(repeat('00', 40), 'hex')")
            return
        with closing(sqlite3.connect(place.directory / "journal" / "cache.db")) as connection, connection:
            connection.execute("UPDATE Cache SET value = zeroblob(40)")

    return damage
