"""The two kinds of stores: rows in a directory, and rows on a PostgreSQL server."""

import sqlite3
from contextlib import closing

import attrs
import pytest
from postgres_helpers import administer, database, empty_database, own_postgres, postgres, prepared, proxy

from mama_structs.storage.server import Server
from mama_structs.storage.server_store import ServerStorage
from mama_structs.storage.store import Storage

__all__ = ["database", "empty_database", "own_postgres", "postgres", "prepared", "proxy"]


@attrs.frozen
class InDirectory:
    """A directory for the stores of a test."""

    directory: object

    def open(self):
        """Open the store."""
        return Storage.open(self.directory / "journal")


@attrs.frozen
class OnServer:
    """A place for stores on a server."""

    url: str

    def open(self):
        """Open the store."""
        return ServerStorage(Server.open(self.url), namespace="default")


@pytest.fixture(params=["directory", "server"])
def place(request, tmp_path):
    """Where a store can be opened again and again."""
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
