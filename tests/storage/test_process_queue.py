"""Queue of writers between processes, and reads while a writer waits."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from mama_structs.errors import StoreBusy, StoreDamaged
from mama_structs.storage.postgres.pool import PostgresPool
from mama_structs.storage.postgres.store import PostgresStorage
from mama_structs.storage.sqlite_store import SqliteStorage

LOADER = """
import sys
from pathlib import Path
from mama_structs.storage.sqlite_store import SqliteStorage
storage = SqliteStorage.open(Path(sys.argv[1]))
print("open", flush=True)
for number in range(100_000):
    storage.submit_job(lambda: storage.transact_in_job(lambda rows: rows.put(f"l/{number:06}", b"x" * 2000))).result()
    if number == 20:
        print("loading", flush=True)
"""


async def test_waiting_writer_is_next_to_write(tmp_path):
    """At most one transaction of a process that writes continuously precedes a waiting writer."""
    storage = SqliteStorage.open(tmp_path / "journal", wait=600)
    database = storage._open()
    queue, seen = database.enter_queue, []

    def queued():
        is_next = queue()
        if is_next and not seen:
            with closing(sqlite3.connect(storage.directory / "cache.db")) as other:
                seen.append(other.execute("SELECT COUNT(*) FROM Cache WHERE key LIKE 'l/%'").fetchone()[0])
        return is_next

    database.enter_queue = queued
    command = [sys.executable, "-c", LOADER, str(storage.directory)]
    loader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - nothing else runs in the loop
    try:
        assert ["open\n", "loading\n"] == [loader.stdout.readline(), loader.stdout.readline()]
        passed = []
        for _ in range(20):
            seen.clear()
            there = await storage.transact(lambda rows: len(rows.keys("l/")))
            passed.append(there - seen[0])
        assert loader.poll() is None
    finally:
        loader.kill()
        loader.communicate()
    assert set(passed) <= {0, 1}, passed
    await storage.close()


async def test_queue_is_free_during_a_transaction(tmp_path):
    """A running writer has left the queue, so that another one can become next."""
    writing, waiting = (SqliteStorage.open(tmp_path / "journal") for _ in range(2))
    begun = []

    def work(_rows):
        begun.append(
            waiting.submit_job(lambda: (waiting._open().enter_queue(), waiting._open().leave_queue())).result()
        )

    # Both stores share the kernel lock of this process, but a second writer must still be able to enter the queue.
    await writing.transact(work)

    assert [(True, None)] == begun
    await writing.close()
    await waiting.close()


async def test_reads_complete_while_write_waits_for_lock(tmp_path):
    """Reads are answered while another connection holds the lock; the waiting write completes later."""
    storage = SqliteStorage.open(tmp_path / "journal", wait=600)
    await storage.transact(lambda rows: rows.put("a", b"1"))
    with closing(sqlite3.connect(storage.directory / "cache.db", isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        saving = asyncio.ensure_future(storage.transact(lambda rows: rows.put("b", b"2")))
        storage.enqueue([("c", b"3")])
        for _ in range(10):
            assert 1 == await storage.run_read(lambda rows: len(rows.keys()))
            assert {"a": b"1", "c": b"3"} == await storage.read(["a", "b", "c"])
            assert ["a", "c"] == await storage.keys()
        assert not saving.done()
        stranger.execute("ROLLBACK")
        await saving
    await storage.flush()
    assert ["a", "b", "c"] == await storage.keys()
    await storage.close()


async def test_server_reads_complete_while_write_waits_for_other_host(database):
    """The same on a server: writes without wait fail immediately, and enqueued rows are kept."""
    storage = PostgresStorage(PostgresPool.open(database), namespace="default")
    stranger = PostgresPool.open(f"{database}?application_name=stranger")
    await storage.transact(lambda rows: rows.put("a", b"1"))
    begun, go = threading.Event(), threading.Event()
    holding = stranger.run(lambda _one: (begun.set(), go.wait(30)), write=True, namespace="default")
    assert begun.wait(30)
    with pytest.raises(StoreBusy):
        await storage.transact(lambda rows: rows.put("x", b"1"), wait=0)
    saving = asyncio.ensure_future(storage.transact(lambda rows: rows.put("b", b"2")))
    storage.enqueue([("c", b"3")])
    for _ in range(10):
        assert 1 == await storage.run_read(lambda rows: len(rows.keys()))
        assert {"a": b"1", "c": b"3"} == await storage.read(["a", "b", "c"])
        assert ["a", "c"] == await storage.keys()
    assert not saving.done()
    go.set()
    holding.result()
    await saving
    await storage.flush()

    assert ["a", "b", "c"] == await storage.keys()
    await storage.close()
    stranger.close()


async def test_failing_read_during_waiting_write_raises_only_to_its_caller(tmp_path):
    """The write continues to wait and completes."""
    storage = SqliteStorage.open(tmp_path / "journal", wait=600)
    with closing(sqlite3.connect(storage.directory / "cache.db", isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        saving = asyncio.ensure_future(storage.transact(lambda rows: rows.put("b", b"2")))
        with pytest.raises(ZeroDivisionError):
            await storage.run_read(lambda rows: 1 / 0)
        stranger.execute("ROLLBACK")
        await saving
    await storage.close()


async def test_transact_with_zero_wait_fails_immediately(tmp_path):
    """`wait=0` overrides the wait of the store, and the place in the queue is released."""
    storage = SqliteStorage.open(tmp_path / "journal", wait=600)
    with closing(sqlite3.connect(storage.directory / "cache.db", isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy):
            await storage.transact(lambda rows: rows.put("a", b"1"), wait=0)
    other = SqliteStorage.open(tmp_path / "journal")
    await other.transact(lambda rows: rows.put("b", b"2"))
    await storage.transact(lambda rows: rows.put("a", b"1"), wait=0)
    await other.close()
    await storage.close()


STOPPED = """
import sys
from pathlib import Path
from mama_structs.storage.sqlite_store import SqliteStorage
storage = SqliteStorage.open(Path(sys.argv[1]), wait=600)
queue = storage._open().enter_queue

def queued():
    is_next = queue()
    if is_next:
        print("next", flush=True)
        sys.stdin.read()
    return is_next

storage._open().enter_queue = queued
storage.submit_job(lambda: storage.transact_in_job(lambda rows: rows.put("w", b""))).result()
"""


async def test_stopped_next_writer_does_not_block_others_forever(tmp_path):
    """The queue is best effort: after half of its wait a write ignores it and needs only SQLite's lock."""
    storage = SqliteStorage.open(tmp_path / "journal", wait=2)
    command = [sys.executable, "-c", STOPPED, str(storage.directory)]
    waiter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - nothing else runs in the loop
    try:
        assert "next\n" == waiter.stdout.readline()
        await storage.transact(lambda rows: rows.put("a", b"1"))
    finally:
        waiter.kill()
        waiter.communicate()

    assert ["a"] == await storage.keys()
    await storage.close()


async def test_truncated_grown_index_is_damage(tmp_path):
    """The size is compared with the last check, not with the opening, because SQLite has mapped the whole index."""
    storage = SqliteStorage.open(tmp_path / "journal")
    index = storage.directory / "cache.db-shm"
    opened = index.stat().st_size
    with closing(sqlite3.connect(storage.directory / "cache.db", isolation_level=None)) as reader:
        # The open read transaction prevents a restart of the log. The log grows to 17 MB and needs a second index page.
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM Cache").fetchone()
        await storage.transact(lambda rows: [rows.put(f"{number}", b"x" * 2**20) for number in range(20)] and None)
        grown = index.stat().st_size
        with index.open("r+b") as file:
            file.truncate(opened)

        # The function must not run, because access to the truncated memory map would crash the process.
        with pytest.raises(StoreDamaged, match="while it was open"):
            await storage.transact(lambda rows: None)
        with index.open("r+b") as file:
            file.truncate(grown)
    assert opened < grown
    await storage.close()


# SQLite itself detects truncated files, except for the memory-mapped index, so only the index is truncated.
CHANGES = [(name, how) for name in ("cache.db", "cache.db-wal", "cache.db-shm") for how in ("deleted", "replaced")]


@pytest.mark.parametrize(("name", "how"), [*CHANGES, ("cache.db-shm", "cut")])
async def test_changed_file_of_open_store_is_damage(tmp_path, name, how):
    """The next write and the next read raise, whatever SQLite would do with the changed file."""
    storage = SqliteStorage.open(tmp_path / "journal")
    await storage.transact(lambda rows: rows.put("a", b"1"))
    path = storage.directory / name
    if how == "cut":
        path.write_bytes(b"")
    else:
        content = path.read_bytes()
        path.unlink()
        if how == "replaced":
            path.write_bytes(content)

    with pytest.raises(StoreDamaged, match="while it was open"):
        await storage.transact(lambda rows: rows.put("b", b"2"))
    with pytest.raises(StoreDamaged, match="while it was open"):
        await storage.read(["a"])
    await storage.close()


OTHER_PROCESS_SCRIPT = """
import asyncio, os, signal, sys
from pathlib import Path
from mama_structs.storage.sqlite_store import SqliteStorage
storage = SqliteStorage.open(Path(sys.argv[1]))
for number in range(20):
    storage.enqueue([(f"k{number:02}", b"x" * 500)])
    asyncio.run(storage.flush())
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_close_does_not_touch_replaced_files(tmp_path):
    """The directory was moved while a store was open, and its path now contains the log of another store."""
    storage = SqliteStorage.open(tmp_path / "journal")
    await storage.transact(lambda rows: rows.put("a", b"1"))
    storage.directory.rename(tmp_path / "moved")
    command = [sys.executable, "-c", OTHER_PROCESS_SCRIPT, str(storage.directory)]
    subprocess.run(command, check=False)  # noqa: ASYNC221 - nothing else runs in the loop

    await storage.close()

    other = SqliteStorage.open(tmp_path / "journal")
    assert 20 == len(await other.keys())
    await other.close()
    moved = SqliteStorage.open(tmp_path / "moved")
    assert ["a"] == await moved.keys()
    await moved.close()


WAITER = """
import asyncio, sys
from pathlib import Path
from mama_structs.errors import StoreBusy
from mama_structs.storage.sqlite_store import SqliteStorage
storage = SqliteStorage.open(Path(sys.argv[1]), wait=1)
print("open", flush=True)
try:
    asyncio.run(storage.transact(lambda rows: rows.put("a", b"1")))
except StoreBusy:
    print("busy", flush=True)
storage.close_now()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no SIGSTOP")
def test_stopped_waiter_still_times_out(tmp_path):
    """Repeated SIGSTOP and SIGCONT do not prevent the timeout."""
    with closing(sqlite3.connect(made(tmp_path / "journal") / "cache.db", isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        command = [sys.executable, "-c", WAITER, str(tmp_path / "journal")]
        waiter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert "open\n" == waiter.stdout.readline()
            for _ in range(20):
                waiter.send_signal(signal.SIGSTOP)
                time.sleep(0.02)
                waiter.send_signal(signal.SIGCONT)
                time.sleep(0.01)
            assert ("busy\n", None) == waiter.communicate(timeout=300)
        finally:
            waiter.kill()
            waiter.communicate()


def made(directory):
    """Create a store and close it."""
    SqliteStorage.open(directory).close_now()
    return directory
