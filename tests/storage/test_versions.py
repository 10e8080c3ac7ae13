"""Upgrade of a directory by a newer version while a session of this version has it open."""

import asyncio
import json
import sqlite3
import threading
from contextlib import closing

import pytest
from memory_helpers import SMALL
from version_helpers import accepted_writes, fill

from mama_structs import Session
from mama_structs.errors import StoreError
from mama_structs.memory.engines.local.journal_rows import SPLIT_HISTORY_FORMAT
from mama_structs.storage.sqlite_store import SqliteStorage

NEXT_VERSION_HEADER = b"mama-structs journal 2\n"
CURRENT_VERSION_HEADER = b"mama-structs journal 1\n"
NEWER = "written by a newer version"


def raise_in_place(journal):
    """Overwrite the version mark inside its file."""
    with (journal / "FORMAT").open("r+b") as file:
        file.write(NEXT_VERSION_HEADER)


def raise_by_rename(journal):
    """Replace the file of the version mark with another file."""
    (journal / "new").write_bytes(NEXT_VERSION_HEADER)
    (journal / "new").replace(journal / "FORMAT")


def rows_of(journal):
    """Return all rows in their stored form."""
    with closing(sqlite3.connect(journal / "cache.db")) as connection:
        return connection.execute("SELECT key, mode, value FROM Cache ORDER BY key").fetchall()


@pytest.mark.parametrize("upgrade", [raise_in_place, raise_by_rename])
async def test_session_writes_raise_when_format_was_raised(tmp_path, upgrade):
    """An open session of an older version can read an upgraded directory but not write to it."""
    journal = tmp_path / "journal"
    session = await Session.open(tmp_path, conversation="talk", embedder=SMALL)
    known = await fill(session)
    before, count = rows_of(journal), await session.memories.count()
    upgrade(journal)

    assert [] == await accepted_writes(session, known, StoreError, NEWER)
    assert count == await session.memories.count()
    with pytest.raises(StoreError, match=NEWER):
        await session.close()
    assert before == rows_of(journal)
    (journal / "FORMAT").write_bytes(CURRENT_VERSION_HEADER)
    await session.close()


async def test_transact_raises_when_format_was_raised_during_wait(tmp_path):
    """A write that waits for the upgrade of another process sees its format, and changes nothing."""
    storage = SqliteStorage.open(tmp_path / "journal")
    storage.enqueue([("a", b"1")])
    await storage.flush()
    with closing(sqlite3.connect(tmp_path / "journal" / "cache.db", isolation_level=None)) as newer:
        newer.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(storage.transact(lambda rows: rows.put("a", b"2")))
        await asyncio.sleep(0.05)
        raise_in_place(storage.directory)
        newer.execute("COMMIT")
        with pytest.raises(StoreError, match=NEWER):
            await waiting

    assert {"a": b"1"} == await storage.read(["a"])
    await storage.close()


async def test_upgrade_waits_for_transaction_of_older_version(tmp_path):
    """The format cannot be raised between the check of a write transaction and its commit."""
    storage = SqliteStorage.open(tmp_path / "journal")
    begun, go_on = threading.Event(), threading.Event()

    def work(rows):
        begun.set()
        go_on.wait(60)
        rows.put("a", b"1")

    writing = asyncio.create_task(storage.transact(work))
    await asyncio.to_thread(begun.wait, 60)
    with closing(sqlite3.connect(storage.directory / "cache.db", isolation_level=None, timeout=0)) as newer:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            newer.execute("BEGIN IMMEDIATE")
        go_on.set()
        await writing
        newer.execute("BEGIN IMMEDIATE")
        raise_in_place(storage.directory)
        newer.execute("COMMIT")

    assert {"a": b"1"} == await storage.read(["a"])
    with pytest.raises(StoreError, match=NEWER):
        await storage.transact(lambda rows: rows.put("a", b"2"))
    await storage.close()


async def test_pending_rows_are_written_when_format_is_supported_again(tmp_path):
    """Rows that could not be written stay pending, and `check` reports them."""
    storage = SqliteStorage.open(tmp_path / "journal")
    raise_in_place(storage.directory)
    storage.enqueue([("a", b"1")])
    with pytest.raises(StoreError, match=NEWER):
        await storage.flush()
    found = [finding.message for finding in await storage.check() if finding.kind == "pending"]
    (storage.directory / "FORMAT").write_bytes(CURRENT_VERSION_HEADER)
    await storage.flush()

    assert [True] == [NEWER in message for message in found]
    assert {"a": b"1"} == await storage.read(["a"])
    await storage.close()


async def test_write_raises_when_format_of_namespace_was_raised(tmp_path):
    """Memories and records of a namespace with a newer format are not written; other namespaces are."""
    head = "memories/default/head"
    async with (
        Session.open(tmp_path, embedder=SMALL) as session,
        Session.open(tmp_path, embedder=SMALL, namespace="other") as other,
    ):
        await session.memories.save_insight("one")
        await other.memories.save_insight("two")
        storage = session._shared.home.storage
        stored = json.loads((await storage.read([head]))[head])
        await storage.transact(
            lambda rows: rows.put(head, json.dumps({**stored, "format": SPLIT_HISTORY_FORMAT + 1}).encode())
        )
        before = rows_of(tmp_path / "journal")

        with pytest.raises(StoreError, match="later version"):
            await session.memories.save_insight("lost")
        with pytest.raises(StoreError, match="later version"):
            await session.records.put(("raid",), "plan", {"step": 1})
        assert before == rows_of(tmp_path / "journal")
        await other.memories.save_insight("three")


async def test_check_reports_unsafe_database_settings(tmp_path):
    """A journal mode or synchronous setting that loses acknowledged rows is reported as an error."""
    storage = SqliteStorage.open(tmp_path / "journal")
    storage.submit_job(lambda: storage._database.connection.execute("PRAGMA synchronous = 1")).result()
    with closing(sqlite3.connect(storage.directory / "cache.db")) as connection, connection:
        connection.execute("UPDATE Settings SET value = 'delete' WHERE key = 'sqlite_journal_mode'")

    found = [finding.message for finding in await storage.check() if finding.kind == "settings"]
    await storage.close()

    assert ["synchronous is 1", "sqlite_journal_mode is stored as 'delete'"] == found
