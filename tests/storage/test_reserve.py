"""Deletions on a full disk, and the file whose space they use."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from disk_helpers import SmallDisk

from mama_structs import HashEmbedder, Session, admin
from mama_structs.errors import StoreFull
from mama_structs.storage import cache_factory, connection, reserve
from mama_structs.storage.files import DATABASE_FILE
from mama_structs.storage.reserve import (
    MAX_DELETION_BYTES,
    MAX_FREEING_BYTES,
    MIN_RESERVE_BYTES,
    RESERVE_FILE,
    reserve_size,
)
from mama_structs.storage.sqlite_store import SqliteStorage, await_job
from mama_structs.types import NewRecord

ROOT = Path(__file__).parents[2]
DISK_BYTES = 12 * 2**20


@pytest.fixture
def small_disk(tmp_path):
    with SmallDisk.mount(tmp_path / "small", size=DISK_BYTES) as disk:
        yield disk


def is_reserved(directory):
    path = directory / RESERVE_FILE
    needed = reserve_size((directory / DATABASE_FILE).stat().st_size, 0)
    return path.exists() and path.stat().st_size >= needed and path.stat().st_blocks * 512 >= needed


async def test_deletion_succeeds_on_full_disk_and_put_does_not(small_disk):
    """All rows can be deleted one by one. The reserve is created again when there is space."""
    directory = small_disk.path / "journal"
    storage = SqliteStorage.open(directory, wait=1)
    storage.enqueue([(f"row {number:03}", bytes(5000)) for number in range(300)])
    await storage.flush()
    assert is_reserved(directory)
    small_disk.fill()
    storage.enqueue([("large", bytes(2 * MAX_FREEING_BYTES))])
    with pytest.raises(StoreFull):
        await storage.flush()
    with pytest.raises(StoreFull):
        await storage.transact(lambda rows: rows.delete("row 000"))
    deleted = [
        await storage_job(storage, lambda rows, number=number: rows.delete(f"row {number:03}")) for number in range(300)
    ]
    with pytest.raises(StoreFull):
        await storage_job(storage, lambda rows: [rows.delete("row 000"), rows.put("more", bytes(DISK_BYTES))])
    left = await storage.keys()
    small_disk.free()
    await storage.transact(lambda rows: rows.put("last", b""))

    assert [True] * 300 == deleted
    assert ["large"] == left
    assert is_reserved(directory)
    assert [] == [one for one in await storage.check() if one.kind != "sqlite"]
    assert {"large": bytes(2 * MAX_FREEING_BYTES)} == await storage.read(["large", "row 000", "row 299"])
    await storage.close()


async def storage_job(storage, work):
    """Run independent work, as the engine of memories does."""
    return await await_job(storage.submit_job(lambda: storage.transact_in_job(work, is_independent=True)))


async def test_rolled_back_statements_are_not_repeated(small_disk):
    """A savepoint that was rolled back leaves nothing in the transaction that is executed again."""
    storage = SqliteStorage.open(small_disk.path / "journal", wait=1)
    storage.enqueue([("a", bytes(5000)), ("b", bytes(5000))])
    await storage.flush()
    small_disk.fill()

    def work(rows):
        rows.delete("a")
        with contextlib.suppress(KeyError), rows.savepoint():
            rows.delete("b")
            rows.put("c", b"1")
            raise KeyError
        rows.put("d", b"2")

    await fill_log(storage)
    await storage.transact(work)

    assert ["b", "d"] == [key for key in await storage.keys() if not key.startswith("log")]
    await storage.close()


async def fill_log(storage):
    """Write rows until the log has no space, so that the next transaction fails at its commit."""
    with contextlib.suppress(StoreFull):
        for number in range(10_000):
            await storage.transact(lambda rows, number=number: rows.put(f"log {number % 3}", bytes(20_000)))
        raise AssertionError("the disk is not full")


async def test_deletion_of_many_rows_finds_full_disk_at_its_commit(small_disk, monkeypatch):
    """A statement that found it could not be repeated. It would, if SQLite wrote pages to make room in its cache."""
    monkeypatch.setattr(cache_factory, "PAGE_CACHE_SIZE", 1)
    storage = SqliteStorage.open(small_disk.path / "journal", wait=1)
    keys = [f"row {number:04}" for number in range(2_000)]
    storage.enqueue([(key, bytes(600)) for key in keys])
    await storage.flush()
    small_disk.fill()
    await fill_log(storage)
    await storage.transact(lambda rows: [rows.put("new", b"1"), *(rows.delete(key) for key in keys[::2])])

    assert ["new", *keys[1::2]] == [key for key in await storage.keys() if not key.startswith("log")]
    await storage.close()


async def test_change_of_other_process_prevents_repetition(small_disk, monkeypatch):
    """The statements were computed from an older state, so the deletion fails as it would without a reserve."""
    storage = SqliteStorage.open(small_disk.path / "journal", wait=1)
    storage.enqueue([("a", bytes(5000)), ("b", b"1")])
    await storage.flush()
    small_disk.fill()
    await fill_log(storage)
    other = SqliteStorage.open(small_disk.path / "journal", wait=1)
    real = SqliteStorage._repeat

    def repeat(self, rows):
        if self is storage:
            other.transact_in_job_elsewhere()
        return real(self, rows)

    def change():
        monkeypatch.setattr(SqliteStorage, "_repeat", real)
        other.submit_job(lambda: other.transact_in_job(lambda rows: rows.delete("b"))).result()

    other.transact_in_job_elsewhere = change
    monkeypatch.setattr(SqliteStorage, "_repeat", repeat)
    with pytest.raises(StoreFull):
        await storage.transact(lambda rows: rows.delete("a"))
    deleted = await storage.transact(lambda rows: rows.delete("a"))

    assert deleted
    assert {} == await storage.read(["a", "b"])
    await other.close()
    await storage.close()


async def test_memories_and_records_are_deleted_on_full_disk(small_disk):
    """Deleting and erasing work, also while a text of a conversation has no room and after the session was reopened."""
    place = small_disk.path / "agent.mama"
    async with Session.open(place, embedder=HashEmbedder()) as session:
        saved = [await session.memories.save(f"memory {at} " + "word " * 300, topic="x") for at in range(40)]
        await session.records.put_many([NewRecord("all", str(at), {"n": at}, keep_history=True) for at in range(40)])
        small_disk.fill()
        with contextlib.suppress(StoreFull):
            for at in range(1000):
                await session.memories.save(f"more {at} " + "word " * 1000)
            raise AssertionError("the disk is not full")
        saved_before = await session.memories.count()
        for memory in saved[:20]:
            await session.memories.delete(memory)
        erased = await session.memories.erase(saved[20])
        records = await session.records.delete_all("all", erase=True)
        left = await session.memories.count()
    small_disk.fill()
    async with Session.open(place, embedder=HashEmbedder()) as session:
        await session.memories.delete(saved[21])
        reopened = await session.memories.count()
    small_disk.free()
    async with Session.open(place, embedder=HashEmbedder()) as session:
        await session.memories.save("at last")
        report = await admin.check(session)

    assert 1 == sum(erased.memories.values())
    assert 40 == records
    assert saved_before - 21 == left
    assert left - 1 == reopened
    assert is_reserved(place / "journal")
    assert [] == [one for one in report.issues if one.kind != "sqlite"]


async def test_erasure_that_has_no_room_is_pending(tmp_path, monkeypatch):
    """The rows are deleted, the report names what remains, and the next opening with space removes it."""

    def fail(_connection, _deadline):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    place = tmp_path / "agent.mama"
    async with Session.open(place, embedder=HashEmbedder()) as session:
        saved = [await session.memories.save(f"zanzibar {at} ") for at in range(9)]
        with monkeypatch.context() as patched:
            patched.setattr(connection, "_vacuum", fail)
            report = await session.memories.erase([one.id for one in saved])
    left = (place / "journal" / "cache.db").read_bytes()

    assert 9 == sum(report.memories.values())
    assert "no room" in "".join(report.pending)
    assert b"zanzibar" not in left


KILLED = """
import os, signal, sys
from pathlib import Path
from mama_structs import HashEmbedder
from mama_structs.storage import sqlite_store
from mama_structs.sync import Session

real = sqlite_store.release_reserve

def release(directory):
    real(directory)
    os.kill(os.getpid(), signal.SIGKILL)

sqlite_store.release_reserve = release
session = Session.open(sys.argv[1], embedder=HashEmbedder())
for memory in session.memories.list(limit=1000):
    session.memories.delete(memory)
    print(memory.id, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
async def test_kill_after_release_of_reserve_loses_nothing(small_disk):
    """Deletions that returned are durable, the interrupted one is not, and the space remains for the next one."""
    place = small_disk.path / "agent.mama"
    async with Session.open(place, embedder=HashEmbedder()) as session:
        saved = [await session.memories.save(f"memory {at} " + "word " * 300) for at in range(20)]
    small_disk.fill()
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", KILLED, place], check=False, cwd=ROOT, capture_output=True, text=True
    )
    deleted = set(killed.stdout.split())
    async with Session.open(place, embedder=HashEmbedder()) as session:
        left = {memory.id for memory in await session.memories.list(limit=1000)}
        for memory in left:
            await session.memories.delete(memory)
        report = await admin.check(session)

    assert -signal.SIGKILL == killed.returncode, killed.stderr
    assert {one.id for one in saved} - deleted == left
    assert [] == [one for one in report.issues if one.kind != "sqlite"]


def test_reserve_is_not_created_without_space(small_disk, tmp_path, monkeypatch):
    assert reserve.create_reserve(tmp_path, MIN_RESERVE_BYTES)
    assert MIN_RESERVE_BYTES == (tmp_path / RESERVE_FILE).stat().st_blocks * 512
    small_disk.fill()

    assert not reserve.create_reserve(small_disk.path, MIN_RESERVE_BYTES)
    assert not (small_disk.path / RESERVE_FILE).exists()

    def fail(_fd, _size):
        raise OSError(28, "full")

    monkeypatch.setattr(reserve, "_allocate", fail)
    assert not reserve.create_reserve(tmp_path, 2 * MIN_RESERVE_BYTES)
    assert MIN_RESERVE_BYTES == (tmp_path / RESERVE_FILE).stat().st_size
    assert not reserve.release_reserve(tmp_path, values_bytes=MIN_RESERVE_BYTES)
    assert reserve.release_reserve(tmp_path)
    assert not reserve.release_reserve(tmp_path)


async def test_reserve_grows_with_log_and_shrinks_at_close(tmp_path):
    """It is large enough to copy the log to the database, and few transactions enlarge it."""
    storage = SqliteStorage.open(tmp_path / "journal")
    sizes = []
    for number in range(300):
        await storage.transact(lambda rows, number=number: rows.put(f"row {number}", bytes(20_000)))
        log = (tmp_path / "journal" / "cache.db-wal").stat().st_size
        sizes.append((tmp_path / "journal" / RESERVE_FILE).stat().st_size)
        assert sizes[-1] >= log
    await storage.close()

    assert len(set(sizes)) < 15
    assert MAX_DELETION_BYTES == (tmp_path / "journal" / RESERVE_FILE).stat().st_size


async def test_reserve_of_small_store_is_small(tmp_path):
    """It is proportional to the database, because a deletion writes each page at most once."""
    sizes = []
    for count in (0, 10, 50, 5_000):
        storage = SqliteStorage.open(tmp_path / str(count))
        storage.enqueue([(f"row {number}", bytes(1_000)) for number in range(count)])
        await storage.close()
        sizes.append((tmp_path / str(count) / RESERVE_FILE).stat().st_size)

    assert [MIN_RESERVE_BYTES, 2 * MIN_RESERVE_BYTES, 2 * MIN_RESERVE_BYTES, MAX_DELETION_BYTES] == sizes


async def test_temporary_store_has_no_reserve():
    storage = SqliteStorage.temporary()
    await storage.transact(lambda rows: rows.put("a", b"1"))

    assert not (storage.directory / RESERVE_FILE).exists()
    await storage.close()


async def test_process_that_closes_leaves_the_reserve_of_others(tmp_path):
    """The reserve shrinks when the last process closes the store, and grows again after another one released it."""
    directory = tmp_path / "journal"
    storage = SqliteStorage.open(directory)
    storage.enqueue([(f"row {number:03}", bytes(5000)) for number in range(500)])
    await storage.flush()
    size = (directory / RESERVE_FILE).stat().st_size
    code = (
        "import sys; from pathlib import Path\n"
        "from mama_structs.storage.sqlite_store import SqliteStorage\n"
        "SqliteStorage.open(Path(sys.argv[1])).close_now()"
    )
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code, str(directory)], check=True)
    after = (directory / RESERVE_FILE).stat().st_size
    assert reserve.release_reserve(directory)
    await storage.transact(lambda rows: rows.put("one more", b""))
    grown = (directory / RESERVE_FILE).stat().st_size
    await storage.close()

    assert grown >= size == after > MAX_DELETION_BYTES
    assert MAX_DELETION_BYTES == (directory / RESERVE_FILE).stat().st_size
