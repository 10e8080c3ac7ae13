"""Behaviour of stores under faults: crashes, damage, full disks, locks and forks."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from hashlib import blake2b
from pathlib import Path

import pytest
from disk_helpers import SmallDisk

import mama_structs
from mama_structs.errors import (
    MamaStructsError,
    SessionClosed,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from mama_structs.storage import cache_factory as _opening
from mama_structs.storage import sqlite_store as _store
from mama_structs.storage.sealed_rows import DamagedValue, NewValue
from mama_structs.storage.sqlite_store import SqliteStorage

# Child processes must import the package under test.
SRC = str(Path(mama_structs.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": SRC, "PYTHONUNBUFFERED": "1"}


async def assert_sound(storage):
    """Assert that `check` reports no issue except an old SQLite version."""
    assert [] == [finding for finding in await storage.check() if finding.kind != "sqlite"]


def run(code, *arguments, timeout=600, **options):
    """Run *code* in a child process and return its output."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=ENVIRONMENT,
        **options,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def fresh_seed():
    """Return a random seed and print it, so that a failure can be reproduced."""
    seed = random.randrange(2**32)
    sys.stdout.write(f"seed {seed}\n")
    return seed


def fill(directory, count, size=100):
    """Create a store with *count* rows and close it."""
    storage = SqliteStorage.open(directory)
    for number in range(count):
        storage.enqueue([(f"k{number:04}", bytes([number % 256]) * size)])
    storage.close_now()


WRITER = """
import asyncio, random, sys
from pathlib import Path
from mama_structs.storage.sealed_rows import NewValue
from mama_structs.storage.sqlite_store import SqliteStorage

async def main(directory, name, seed, count):
    random.seed(seed)
    storage = SqliteStorage.open(Path(directory), wait=60)
    async def save(number):
        size = random.choice([0, 10, 1000, 100_000])
        storage.enqueue([(f"{name}-{number}", b"%d" % number * (size // 4 + 1)), (f"{name}-{number}-too", NewValue(b"1"))])
        await storage.flush()
        print(f"{name}-{number}", flush=True)
    for start in range(0, count, 4):
        await asyncio.gather(*(save(number) for number in range(start, min(start + 4, count))))
    await storage.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


def start_writer(directory, name, *, seed, count):
    command = [sys.executable, "-c", WRITER, str(directory), name, str(seed), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)


def test_killed_process_loses_no_acknowledged_rows(tmp_path):
    """After a kill at any time, every flushed call is stored completely."""
    seed = fresh_seed()
    chance = random.Random(seed)
    acknowledged = set()
    for turn in range(12):
        writer = start_writer(tmp_path / "journal", f"t{turn}", seed=chance.randrange(2**32), count=10_000)
        # In odd turns the writer is killed while it writes, in even turns while it opens the store.
        if turn % 2:
            for line in writer.stdout:
                acknowledged.add(line.strip())
                if chance.random() < 0.03:
                    break
        else:
            time.sleep(chance.uniform(0.05, 0.35))
        writer.kill()
        acknowledged.update(line for line in writer.stdout.read().split("\n")[:-1] if line)
        writer.stdout.close()
        writer.wait()

    async def look():
        storage = SqliteStorage.open(tmp_path / "journal")
        keys = set(await storage.keys())
        assert acknowledged <= keys
        assert all(key.removesuffix("-too") in keys and f"{key.removesuffix('-too')}-too" in keys for key in keys)
        found = await storage.read(sorted(acknowledged))
        assert all(value.startswith(key.rpartition("-")[2].encode()) for key, value in found.items())
        await assert_sound(storage)
        await storage.close()

    assert acknowledged
    asyncio.run(look())


def test_open_succeeds_after_kill_during_creation(tmp_path):
    """A process may be killed at any time during the first opening; the next one opens the store."""
    seed = fresh_seed()
    chance = random.Random(seed)
    code = (
        "import os, sys, threading, time\n"
        "from pathlib import Path\n"
        "from mama_structs.storage.sqlite_store import SqliteStorage\n"
        "threading.Thread(target=lambda: (time.sleep(float(sys.argv[2])), os.kill(os.getpid(), 9)), daemon=True).start()\n"
        "SqliteStorage.open(Path(sys.argv[1]))\n"
        "time.sleep(10)\n"
    )
    for turn in range(10):
        directory = tmp_path / str(turn)
        command = [sys.executable, "-c", code, str(directory), str(chance.uniform(0, 0.03))]
        assert -signal.SIGKILL == subprocess.run(command, check=False, env=ENVIRONMENT, timeout=600).returncode

        async def look(directory=directory):
            storage = SqliteStorage.open(directory)
            storage.enqueue([("k", b"1")])
            await storage.flush()
            await assert_sound(storage)
            await storage.close()

        asyncio.run(look())


def test_concurrent_processes_lose_no_rows(tmp_path):
    """Processes that open and write one directory concurrently keep each other's rows."""
    seed = fresh_seed()
    writers = [start_writer(tmp_path / "journal", f"w{n}", seed=seed + n, count=40) for n in range(4)]
    outputs = [writer.communicate(timeout=600)[0] for writer in writers]
    assert [0] * 4 == [writer.returncode for writer in writers]

    async def look():
        storage = SqliteStorage.open(tmp_path / "journal")
        assert 4 * 40 * 2 == len(await storage.keys())
        assert set("".join(outputs).split()) <= set(await storage.keys())
        await assert_sound(storage)
        await storage.close()

    asyncio.run(look())


async def test_read_reports_damaged_rows_and_returns_others(tmp_path):
    """A flipped bit damages one row, swapped values damage two; all other rows are readable."""
    storage = SqliteStorage.open(tmp_path / "journal")
    storage.enqueue([(f"k{number}", b"content %d" % number) for number in range(10)])
    await storage.flush()
    with closing(sqlite3.connect(storage.directory / "cache.db")) as connection, connection:
        ((value,),) = connection.execute("SELECT value FROM Cache WHERE key = 'k3'").fetchall()
        connection.execute("UPDATE Cache SET value = ? WHERE key = 'k3'", (value[:-1] + bytes([value[-1] ^ 1]),))
        rows = dict(connection.execute("SELECT key, value FROM Cache WHERE key IN ('k5', 'k6')"))
        connection.execute("UPDATE Cache SET value = ? WHERE key = 'k5'", (rows["k6"],))
        connection.execute("UPDATE Cache SET value = ? WHERE key = 'k6'", (rows["k5"],))
        connection.execute("UPDATE Cache SET value = 'text' WHERE key = 'k7'")

    found = await storage.read([f"k{number}" for number in range(10)])

    assert {"k3", "k5", "k6", "k7"} == {key for key, value in found.items() if isinstance(value, DamagedValue)}
    assert b"content 4" == found["k4"]
    findings = [finding for finding in await storage.check() if finding.severity == "error"]
    assert {"k3", "k5", "k6", "k7"} == {finding.key for finding in findings}
    assert not any("content" in finding.message for finding in findings)
    storage.enqueue([(key, b"anew") for key in ("k3", "k5", "k6", "k7")])
    await storage.flush()
    await assert_sound(storage)
    await storage.close()


@pytest.mark.parametrize("damage", ["truncated", "cut to a page", "garbage", "empty", "missing", "head"])
def test_open_raises_store_damaged_when_database_file_is_damaged(tmp_path, damage):
    """A truncated, overwritten, emptied or missing database raises an error, and is never taken for a new store."""
    fill(tmp_path / "journal", 300)
    file = tmp_path / "journal" / "cache.db"
    data = file.read_bytes()
    match damage:
        case "truncated":
            file.write_bytes(data[: len(data) // 2 + 123])
        case "cut to a page":
            file.write_bytes(data[:4096])
        case "garbage":
            file.write_bytes(random.Random(1).randbytes(len(data)))
        case "empty":
            file.write_bytes(b"")
        case "missing":
            file.unlink()
        case "head":
            file.write_bytes(b"\0" * 100 + data[100:])

    with pytest.raises(StoreDamaged) as caught:
        SqliteStorage.open(tmp_path / "journal")

    assert str(file) == caught.value.file
    assert caught.value.findings
    assert (damage == "missing") == ("the file is missing" in caught.value.findings)
    assert caught.value.hint


FIFO = """
import sys
from pathlib import Path
from mama_structs.errors import StoreDamaged
from mama_structs.storage.sqlite_store import SqliteStorage
try:
    SqliteStorage.open(Path(sys.argv[1]))
except StoreDamaged as error:
    print(error.file)
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs")
@pytest.mark.parametrize("name", ["FORMAT", "cache.db", "cache.db-wal", "cache.db-shm", "cache.db-journal"])
def test_open_raises_store_damaged_when_file_is_fifo(tmp_path, name):
    """Opening a store does not block on a FIFO."""
    fill(tmp_path / "journal", 1)
    (tmp_path / "journal" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "journal" / name)

    assert f"{tmp_path / 'journal' / name}\n" == run(FIFO, tmp_path / "journal", timeout=600)


@pytest.mark.parametrize("seed", range(8))
def test_overwritten_page_never_returns_wrong_data(tmp_path, seed):
    """After any page was overwritten, values are correct or damaged, or opening fails; `check` reports it."""
    fill(tmp_path / "journal", 200, size=500)
    file = tmp_path / "journal" / "cache.db"
    data = bytearray(file.read_bytes())
    chance = random.Random(seed)
    page = chance.randrange(1, len(data) // 4096) * 4096
    data[page : page + 4096] = chance.randbytes(4096)
    file.write_bytes(data)

    async def look():
        try:
            storage = SqliteStorage.open(tmp_path / "journal")
        except StoreDamaged:
            return
        try:
            for number in range(200):
                try:
                    found = await storage.read([f"k{number:04}"])
                except StoreDamaged:
                    continue
                value = found.get(f"k{number:04}")
                assert value is None or isinstance(value, DamagedValue) or bytes([number]) * 500 == value
            assert [finding for finding in await storage.check() if finding.severity == "error"]
        finally:
            await storage.close()

    asyncio.run(look())


async def test_write_raises_store_busy_when_lock_is_held(tmp_path):
    """While another connection holds the lock, writes fail after `wait` and reads succeed. Nothing is lost."""
    await SqliteStorage.open(tmp_path / "journal").close()
    storage = SqliteStorage.open(tmp_path / "journal", wait=0.3)
    storage.enqueue([("a", b"1")])
    await storage.flush()
    with closing(sqlite3.connect(storage.directory / "cache.db", isolation_level=None)) as stuck:
        stuck.execute("BEGIN IMMEDIATE")
        started = time.monotonic()  # measured before the enqueue, which makes the writer wait
        storage.enqueue([("a", b"2"), ("b", b"1")])
        with pytest.raises(StoreBusy) as caught:
            await storage.flush()
        assert 0.3 <= caught.value.waited <= time.monotonic() - started
        with pytest.raises(StoreBusy):
            await storage.transact(len)
        reader = SqliteStorage.open(tmp_path / "journal", wait=0)
        assert {"a": b"1"} == await reader.read(["a", "b"])
        await reader.close()
        assert {"a": b"2", "b": b"1"} == await storage.read(["a", "b"])
        assert "pending" in {finding.kind for finding in await storage.check()}
        assert 1 == storage.pending
        stuck.execute("ROLLBACK")
    assert b"2" == await storage.transact(lambda rows: rows.get("a"))

    assert 0 == storage.pending
    await assert_sound(storage)
    await storage.close()


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
connection.execute("ROLLBACK")
"""


@contextlib.contextmanager
def held(directory):
    """Hold the write lock in another process during the block."""
    command = [sys.executable, "-c", HOLDER, str(directory / "cache.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert b"held\n" == process.stdout.readline()
        yield
        assert process.poll() is None
        process.stdin.close()
        assert 0 == process.wait(600)


async def test_open_and_read_succeed_when_write_lock_is_held(tmp_path):
    """If nothing must be repaired, opening, reading and checking do not wait for a writer."""
    fill(tmp_path / "journal", 3)
    with held(tmp_path / "journal"):
        for _ in range(2):
            storage = SqliteStorage.open(tmp_path / "journal", wait=0)
            assert ["k0000", "k0001", "k0002"] == await storage.keys()
            await assert_sound(storage)
            with pytest.raises(StoreBusy):
                await storage.transact(len)
            await storage.close()


async def test_open_waits_for_lock_when_settings_need_repair(tmp_path):
    """With unsafe settings opening is busy while the lock is held, and repairs them afterwards."""
    fill(tmp_path / "journal", 3)
    with closing(sqlite3.connect(tmp_path / "journal" / "cache.db")) as connection, connection:
        connection.execute("UPDATE Settings SET value = 10 WHERE key = 'cull_limit'")
        connection.execute("DROP INDEX Cache_key_raw")
    with held(tmp_path / "journal"), pytest.raises(StoreBusy):
        SqliteStorage.open(tmp_path / "journal", wait=0)

    storage = SqliteStorage.open(tmp_path / "journal")
    assert 3 == len(await storage.keys())
    await assert_sound(storage)
    await storage.close()


PLANTED = {
    "trigger": "CREATE TRIGGER planted AFTER UPDATE ON Settings BEGIN DELETE FROM Cache; END",
    "view": "CREATE VIEW planted AS SELECT * FROM Cache",
    "index": "CREATE INDEX planted ON Cache (tag)",
    "table": "CREATE TABLE planted (x)",
}


def plant(directory, statement):
    with closing(sqlite3.connect(directory / "cache.db")) as connection, connection:
        connection.executescript(statement)


def rows_of(directory):
    with closing(sqlite3.connect(directory / "cache.db")) as connection:
        return connection.execute("SELECT * FROM Cache").fetchall(), connection.execute(
            "SELECT * FROM Settings"
        ).fetchall()


@pytest.mark.parametrize("kind", PLANTED)
def test_open_rejects_foreign_schema_item_before_writing(tmp_path, kind):
    """A trigger would run at the first write, so opening names the foreign item and changes nothing."""
    directory = tmp_path / "journal"
    fill(directory, 3)
    plant(directory, PLANTED[kind])
    before = rows_of(directory)

    with pytest.raises(StoreDamaged, match=f"the {kind} 'planted'") as caught:
        SqliteStorage.open(directory)

    assert f"DROP {kind} planted" in caught.value.hint
    assert 1 == len(caught.value.findings)
    assert 3 == len(before[0])
    assert before == rows_of(directory)
    plant(directory, f"DROP {kind} planted")
    SqliteStorage.open(directory).close_now()


def test_open_rejects_modified_trigger(tmp_path):
    """A trigger with a known name but another definition is rejected."""
    directory = tmp_path / "journal"
    fill(directory, 3)
    name = "Settings_count_insert"
    plant(directory, f"DROP TRIGGER {name}; CREATE TRIGGER {name} AFTER INSERT ON Cache BEGIN DELETE FROM Cache; END")

    with pytest.raises(StoreDamaged, match=name):
        SqliteStorage.open(directory)
    plant(directory, f"DROP TRIGGER {name}")
    storage = SqliteStorage.open(directory)
    storage.enqueue([("k", b"1")])
    storage.close_now()
    assert 4 == len(rows_of(directory)[0])


@pytest.mark.parametrize("kind", PLANTED)
async def test_foreign_schema_item_in_open_store_never_runs(tmp_path, kind):
    """The next transaction is rejected and `check` names the item; after its removal writes continue."""
    storage = SqliteStorage.open(tmp_path / "journal")
    storage.enqueue([("a", b"1"), ("b", b"2")])
    await storage.flush()
    plant(storage.directory, PLANTED[kind])
    storage.enqueue([("c", b"3")])
    with pytest.raises(StoreDamaged, match=f"the {kind} 'planted'"):
        await storage.flush()
    found = [finding for finding in await storage.check() if finding.kind == "foreign"]

    assert 1 == len(found)
    assert f"the {kind} 'planted'" in found[0].message
    plant(storage.directory, f"DROP {kind} planted")
    await storage.flush()
    assert {"a": b"1", "b": b"2", "c": b"3"} == await storage.read(list("abc"))
    await assert_sound(storage)
    await storage.close()


async def test_missing_index_in_open_store_is_damage(tmp_path):
    """Without the index duplicate keys would be possible: nothing is written, and the next opening recreates it."""
    storage = SqliteStorage.open(tmp_path / "journal")
    storage.enqueue([("a", b"1")])
    await storage.flush()
    plant(storage.directory, "DROP INDEX Cache_key_raw")
    with pytest.raises(StoreDamaged, match="Cache_key_raw"):
        await storage.transact(lambda rows: rows.put("a", b"2"))

    assert ["integrity"] == [finding.kind for finding in await storage.check() if finding.kind != "sqlite"]
    await storage.close()
    again = SqliteStorage.open(tmp_path / "journal")
    assert {"a": b"1"} == await again.read(["a"])
    await assert_sound(again)
    await again.close()


def test_open_compares_schema_with_installed_diskcache_when_hash_is_unknown(tmp_path, monkeypatch):
    """An unknown schema is compared with the one that the installed diskcache creates."""
    monkeypatch.setattr("mama_structs.storage.cache_factory.SCHEMA_HASH", "of another version")
    fill(tmp_path / "journal", 3)
    fill(tmp_path / "journal", 3)
    plant(tmp_path / "journal", PLANTED["trigger"])

    with pytest.raises(StoreDamaged, match="planted") as caught:
        SqliteStorage.open(tmp_path / "journal")
    assert 1 == len(caught.value.findings)


def test_schema_hash_matches_installed_diskcache():
    """The stored hash equals the schema of the installed diskcache, so no comparison is necessary."""
    assert ([], []) == _opening._compare_schema(list(_opening._expected_schema()))
    assert _opening.SCHEMA_HASH == blake2b(repr(list(_opening._expected_schema())).encode(), digest_size=16).hexdigest()


async def test_concurrent_flushes_share_one_wait_for_lock(tmp_path):
    """30 failing flushes wait at most twice, not one after the other."""
    storage = SqliteStorage.open(tmp_path / "journal", wait=0.2)
    with closing(sqlite3.connect(storage.directory / "cache.db", isolation_level=None)) as stuck:
        stuck.execute("BEGIN IMMEDIATE")

        async def save(number):
            storage.enqueue([(f"k{number}", b"1")])
            await storage.flush()

        results = await asyncio.gather(*map(save, range(30)), return_exceptions=True)
        assert {StoreBusy} == {type(result) for result in results}
        assert 30 == len({id(result) for result in results})
        assert 2 >= len({result.waited for result in results})
        stuck.execute("ROLLBACK")
    await storage.flush()

    assert 30 == len(await storage.keys())
    await assert_sound(storage)
    await storage.close()


async def test_flush_succeeds_when_lock_is_released_in_time(tmp_path):
    """A transaction elsewhere that ends within `wait` only delays the flush."""
    storage = SqliteStorage.open(tmp_path / "journal", wait=30)
    stuck = sqlite3.connect(storage.directory / "cache.db", isolation_level=None, check_same_thread=False)
    stuck.execute("BEGIN IMMEDIATE")
    threading.Timer(0.2, stuck.execute, ["ROLLBACK"]).start()
    storage.enqueue([("a", b"1")])
    await storage.flush()
    stuck.close()

    await assert_sound(storage)
    await storage.close()


async def test_close_reports_unwritten_calls_and_can_be_repeated(tmp_path):
    """A failing close names the number of unwritten calls; closing again later loses nothing."""
    before = set(threading.enumerate())
    storage = SqliteStorage.open(tmp_path / "journal", wait=0.05)
    with closing(sqlite3.connect(storage.directory / "cache.db", isolation_level=None)) as stuck:
        stuck.execute("BEGIN IMMEDIATE")
        storage.enqueue([("a", b"1")])
        storage.enqueue([("b", b"1")])
        with pytest.raises(StoreBusy) as caught:
            await storage.close()
        with pytest.raises(SessionClosed):
            await storage.keys()
    assert ["the rows of 2 calls were not written: close it again when they can be"] == caught.value.__notes__

    await storage.close()
    await storage.close()
    assert set() == set(threading.enumerate()) - before

    again = SqliteStorage.open(tmp_path / "journal")
    assert {"a": b"1", "b": b"1"} == await again.read(["a", "b"])
    await assert_sound(again)
    await again.close()


FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from mama_structs.errors import StoreFull
from mama_structs.storage.sqlite_store import SqliteStorage

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    storage = SqliteStorage.open(Path(sys.argv[1]))
    storage.enqueue([("early", b"1" * 1000)])
    await storage.flush()
    sys.dont_write_bytecode = True  # as in test_backup.py
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    storage.enqueue([("small", b"2")])
    small = asyncio.ensure_future(storage.flush())
    await asyncio.sleep(0)
    storage.enqueue([("large", b"3" * 2_000_000)])
    large = asyncio.ensure_future(storage.flush())
    await asyncio.sleep(0)
    storage.enqueue([("late", b"4")])
    await small
    try:
        await large
    except StoreFull:
        large = None
    assert large is None
    for _ in range(3):
        try:
            await storage.flush()
        except StoreFull:
            continue
        raise SystemExit("it was not full")
    assert {"early": b"1" * 1000} == await storage.read(["early"])
    assert ["early", "large", "late", "small"] == await storage.keys()
    try:
        await storage.transact(lambda rows: rows.put("x", b""))
    except StoreFull:
        pass
    assert ["pending"] == [finding.kind for finding in await storage.check() if finding.kind != "sqlite"]
    # What came before the call that there is no room for is saved.
    assert 2 == storage.pending
    try:
        SqliteStorage.open(Path(sys.argv[1] + "-other"))
    except StoreFull:
        pass
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await storage.flush()
    assert 0 == storage.pending
    found = await storage.read(["early", "small", "large", "late"])
    assert [1000, 1, 2_000_000, 1] == [len(value) for value in found.values()]
    assert [] == [finding for finding in await storage.check() if finding.kind != "sqlite"]
    await storage.close()

asyncio.run(main())
"""


def test_file_size_limit_raises_store_full(tmp_path):
    """At the limit writes raise StoreFull and reads succeed; when there is space again, everything is written."""
    run(FULL, tmp_path / "journal")


@pytest.fixture
def small_disk(tmp_path):
    with SmallDisk.mount(tmp_path / "small", size=2 * 2**20) as disk:
        yield disk


async def test_full_disk_raises_store_full_and_allows_reads(small_disk):
    """On a full disk writes and deletes raise StoreFull; when there is space again, everything is written."""
    storage = SqliteStorage.open(small_disk.path / "journal", wait=1)
    storage.enqueue([("early", b"1")])
    await storage.flush()
    small_disk.fill()
    storage.enqueue([("large", bytes(200_000)), ("early", None)])
    with pytest.raises(StoreFull):
        await storage.flush()
    with pytest.raises(StoreFull):
        SqliteStorage.open(small_disk.path / "other")
    assert ["large"] == await storage.keys()
    small_disk.free()
    await storage.flush()

    assert {"large": bytes(200_000)} == await storage.read(["early", "large"])
    await assert_sound(storage)
    await storage.close()


@pytest.fixture
def quick_path(tmp_path):
    """Return a directory in memory if possible, because the test creates hundreds of stores."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


class Plan:
    """Counts SQL statements, and makes one statement fail, before or after its execution."""

    def __init__(self):
        self.at = 0
        self.after = False
        self.count = 0
        self.code = sqlite3.SQLITE_IOERR

    def fail(self, statement):
        error = sqlite3.OperationalError(f"planned, at {statement.split()[0]}")
        error.sqlite_errorcode = self.code
        error.sqlite_errorname = "SQLITE_PLANNED"
        raise error


@pytest.fixture
def plan(monkeypatch):
    plan = Plan()

    class Failing(sqlite3.Connection):
        def execute(self, statement, *arguments):
            plan.count += 1
            if plan.count == plan.at and not plan.after:
                plan.fail(statement)
            result = super().execute(statement, *arguments)
            if plan.count == plan.at:
                # Close the cursor: the traceback would keep it open, and an open cursor keeps its lock.
                result.close()
                plan.fail(statement)
            return result

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, factory=Failing, **kwargs))
    return plan


@pytest.mark.parametrize(("after", "code"), [(False, sqlite3.SQLITE_IOERR), (True, sqlite3.SQLITE_FULL)])
async def test_no_row_is_lost_when_any_statement_fails(quick_path, plan, after, code):
    """Fail the N-th statement for N = 1, 2, ... until a run succeeds: each failure is typed and loses no row."""
    plan.after, plan.code = after, code
    for number in range(1, 2000):
        directory = quick_path / str(number)
        plan.at, plan.count = number, 0
        failed = []
        storage = None
        expected = {"a": b"3", "b": b"2", "c": b"5"}

        def work(rows):
            rows.put("c", b"5")

        try:
            storage = SqliteStorage.open(directory)
            storage.enqueue([("a", b"1"), ("b", NewValue(b"2"))])
            await storage.flush()
            storage.enqueue([("a", b"3"), ("d", b"4")])
            storage.enqueue([("d", None)])
            await storage.transact(work)
            await storage.read(["a"])
            await storage.keys("a")
            await storage.check()
        except StoreError as error:
            failed.append(error)
        clean = plan.count < number
        plan.at = 0
        if storage is None:
            storage = SqliteStorage.open(directory)
        storage.enqueue([("a", b"1"), ("b", NewValue(b"2")), ("a", b"3"), ("d", b"4"), ("d", None)])
        await storage.transact(work)
        await storage.flush()
        assert expected == await storage.read(list("abcd"))
        await assert_sound(storage)
        await storage.close()
        again = SqliteStorage.open(directory)
        assert expected == await again.read(list("abcd"))
        await assert_sound(again)
        await again.close()
        if clean:
            break

    assert number > 100


async def test_flush_retries_rows_after_failed_statement(tmp_path, plan):
    """If a statement fails, the rows stay enqueued and the next flush writes them."""
    storage = SqliteStorage.open(tmp_path / "journal")
    for number in range(1, 40):
        rows = [(f"{number}-{row}", b"1") for row in range(3)]
        plan.at, plan.count = number, 0
        storage.enqueue(rows)
        try:
            await storage.flush()
        except StoreError:
            assert 1 == storage.pending
            assert {key: b"1" for key, _ in rows} == await storage.read([key for key, _ in rows])
        else:
            assert plan.count < number
            break
        await storage.flush()
        assert 0 == storage.pending

    plan.at = 0
    assert number > 5
    assert 3 * number == len(await storage.keys())
    await assert_sound(storage)
    await storage.close()


async def test_transact_rolls_back_when_work_swallows_failure(tmp_path, plan):
    """If a statement fails and the function continues, nothing is written."""
    storage = SqliteStorage.open(tmp_path / "journal")

    def work(rows):
        rows.put("a", b"1")
        plan.at, plan.count = 1, 0
        for key in ("b", "c"):
            with pytest.raises(sqlite3.OperationalError):
                rows.put(key, b"1")

    with pytest.raises(StoreError):
        await storage.transact(work)
    plan.at = 0

    assert [] == await storage.keys()
    await assert_sound(storage)
    await storage.close()


READ_ONLY = """
import asyncio, os, sys
from pathlib import Path
from mama_structs.errors import StoreReadOnly
from mama_structs.storage.locks import DirectoryLocks
from mama_structs.storage.sqlite_store import SqliteStorage
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)

async def main():
    storage = SqliteStorage.open(Path(sys.argv[1]))
    assert storage.is_read_only
    assert 1 == len(await storage.keys())
    assert [] == [one for one in await storage.check() if one.severity == "error"]
    for call in (lambda: storage.transact(lambda rows: 1), lambda: storage.enqueue([("b", b"")])):
        try:
            await call()
        except StoreReadOnly as error:
            assert str(error).startswith(sys.argv[1]), error
        else:
            raise SystemExit("it was written")
    await storage.close()

asyncio.run(main())
for directory in sys.argv[2:]:
    try:
        SqliteStorage.open(Path(directory))
    except StoreReadOnly as error:
        assert directory.startswith(str(Path(str(error).split(" cannot")[0]).parent)), error
    else:
        raise SystemExit(directory)
try:
    DirectoryLocks(Path(sys.argv[1]))
except StoreReadOnly:
    print("read-only")
"""


def test_unwritable_store_is_opened_for_reading(tmp_path):
    """A directory and a database file without write permission can be read. A new store there raises StoreReadOnly."""
    fill(tmp_path / "journal", 1)
    for path in (tmp_path / "journal").iterdir():
        path.chmod(0o644)
    # Allow the other user to traverse pytest's private directories.
    root = Path(tempfile.gettempdir()).resolve()
    above = [one for one in tmp_path.parents if root in one.parents]
    for directory in above:
        directory.chmod(0o711)
    for directory in (tmp_path / "journal", tmp_path):
        directory.chmod(0o555)
    try:
        assert "read-only\n" == run(READ_ONLY, tmp_path / "journal", tmp_path / "new" / "journal")
        (tmp_path / "journal").chmod(0o777)
        (tmp_path / "journal" / "cache.db").chmod(0o444)
        run(READ_ONLY.replace("try:\n    DirectoryLocks", "sys.exit()\ntry:\n    DirectoryLocks"), tmp_path / "journal")
    finally:
        for directory in (tmp_path / "journal", tmp_path, *above):
            directory.chmod(0o700)


FORK = """
import asyncio, os, sys, signal, threading
from pathlib import Path
from mama_structs.errors import WrongLoop
from mama_structs.storage.locks import DirectoryLocks
from mama_structs.storage.sqlite_store import SqliteStorage

def refused(call):
    try:
        result = call()
        if asyncio.iscoroutine(result):
            asyncio.run(result)
    except WrongLoop:
        return
    raise SystemExit(f"{call} was not refused")

def names_of_open_files():
    files = "/proc/self/fd"
    listed = os.listdir(files) if os.path.isdir(files) else []
    return [os.readlink(f"{files}/{fd}") for fd in listed if os.path.lexists(f"{files}/{fd}")]

directory = Path(sys.argv[1])
storage, common = SqliteStorage.open(directory / "a"), SqliteStorage.open(directory / "b")
temporary = SqliteStorage.temporary()
locks = DirectoryLocks(directory)
locks.claim("x")
temporary.enqueue([("t", b"1")])
asyncio.run(temporary.flush())
for number in range(300):
    storage.enqueue([(f"k{number}", b"x" * 10_000)])
child = os.fork()
if child == 0:
    signal.alarm(600)
    for one in (storage, common, temporary):
        refused(lambda: one.enqueue([("child", b"1")]))
        for method in (one.flush, one.keys, one.check, one.close, lambda: one.transact(len), lambda: one.read(["k1"])):
            refused(method)
    refused(lambda: locks.claim("x"))
    locks.close()
    # The parent's connections were closed before: SQLite knows of no locks that it would take for the child's own.
    assert [] == [name for name in names_of_open_files() if "/cache.db" in name]
    own = SqliteStorage.open(directory / "b")
    own.enqueue([("own", b"1")])
    asyncio.run(own.close())
    del storage, common, temporary, own, one
    sys.exit(0)
status = os.waitpid(child, 0)[1]
assert status == 0, status
assert asyncio.run(temporary.read(["t"])) == {"t": b"1"}
asyncio.run(storage.flush())
assert len(asyncio.run(storage.keys())) == 300
assert asyncio.run(common.keys()) == ["own"]
for one in (storage, common, temporary):
    assert [] == [finding for finding in asyncio.run(one.check()) if finding.kind != "sqlite"]
    asyncio.run(one.close())
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_child_is_rejected_and_parent_keeps_working(tmp_path):
    """Calls in a child raise WrongLoop, the child can open its own store, and its exit does not harm the parent."""
    assert "done\n" == run(FORK, tmp_path)


COLLECTED = """
import asyncio, gc, os, sqlite3, sys
from pathlib import Path

class Told(sqlite3.Connection):
    def __del__(self, getpid=os.getpid, write=os.write, parent=os.getpid()):
        if getpid() != parent:
            write(1, b"a connection was collected\\n")

connect = sqlite3.connect
sqlite3.connect = lambda *args, **kwargs: connect(*args, factory=Told, **kwargs)
from mama_structs.storage.sqlite_store import SqliteStorage

storage = SqliteStorage.open(Path(sys.argv[1]))
storage.enqueue([("k", b"1")])
asyncio.run(storage.flush())
child = os.fork()
if child == 0:
    if sys.argv[2] == "own too":
        SqliteStorage.open(Path(sys.argv[1]).parent / "own").close_now()
    del storage
    gc.collect()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
storage.close_now()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_child_never_collects_parent_connections(tmp_path):
    """SQLite might delete the parent's files if the child closed them; the child's own connections are collected."""
    assert "" == run(COLLECTED, tmp_path / "journal", "none")
    assert run(COLLECTED, tmp_path / "journal", "own too").startswith("a connection was collected\n")


DESCRIPTORS = """
import asyncio, os, resource, sys
from pathlib import Path
from mama_structs.errors import StoreError
from mama_structs.storage.sqlite_store import SqliteStorage
directory = Path(sys.argv[1])
storage = SqliteStorage.open(directory / "a")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

async def main():
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    storage.enqueue([(f"k{number}", b"x" * 100_000) for number in range(30)])
    await storage.flush()
    try:
        SqliteStorage.open(directory / "b")
    except StoreError as error:
        print(error)
    for fd in held:
        os.close(fd)
    other = SqliteStorage.open(directory / "b")
    for one in (storage, other):
        assert [] == [finding for finding in await one.check() if finding.kind != "sqlite"]
        await one.close()

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
"""


def test_open_store_needs_no_further_descriptor(tmp_path):
    """Without free descriptors an open store still writes, and opening another one raises a clear error."""
    said = run(DESCRIPTORS, tmp_path).lower()

    # SQLite reports "unable to open" if a descriptor was free for the directory but not for the database.
    assert "open files" in said or "unable to open" in said


async def test_write_raises_when_database_file_was_deleted(tmp_path):
    """A write after the deletion raises instead of writing to the deleted file."""
    storage = SqliteStorage.open(tmp_path / "journal")
    storage.enqueue([("a", b"1")])
    await storage.flush()
    for path in storage.directory.iterdir():
        path.unlink()
    storage.enqueue([("b", b"1")])

    with pytest.raises(MamaStructsError):
        await storage.flush()
    with pytest.raises(StoreError):
        await storage.close()


async def test_transact_does_not_run_work_when_database_was_moved(tmp_path):
    """The files are checked before the first statement, so that the function reads no stale data."""
    storage = SqliteStorage.open(tmp_path / "journal")
    storage.enqueue([("a", b"1")])
    await storage.flush()
    (storage.directory / "cache.db").rename(tmp_path / "elsewhere.db")
    begun = []

    with pytest.raises(StoreDamaged, match="moved, replaced, cut or deleted"):
        await storage.transact(begun.append)
    assert [] == begun
    await storage.close()


async def test_transact_raises_when_database_was_moved_meanwhile(tmp_path):
    """A commit to a file that was moved away raises an error."""
    storage = SqliteStorage.open(tmp_path / "journal")

    def work(rows):
        rows.put("a", b"1")
        (storage.directory / "cache.db").rename(tmp_path / "elsewhere.db")

    with pytest.raises(StoreDamaged):
        await storage.transact(work)
    await storage.close()


def test_interrupted_open_leaves_no_thread(tmp_path, monkeypatch):
    """After Ctrl-C the thread closes the database and ends."""

    class Interrupted:
        def result(self):
            raise KeyboardInterrupt

    class Executor(_store.ThreadPoolExecutor):
        def submit(self, *job):
            super().submit(*job)
            return Interrupted()

    before = set(threading.enumerate())
    monkeypatch.setattr(_store, "ThreadPoolExecutor", Executor)
    with pytest.raises(KeyboardInterrupt):
        SqliteStorage.open(tmp_path / "journal")
    monkeypatch.undo()
    for thread in set(threading.enumerate()) - before:
        thread.join(600)
        assert not thread.is_alive()

    fill(tmp_path / "journal", 1)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, StoreFull), (errno.EROFS, StoreReadOnly), (errno.EACCES, StoreReadOnly), (errno.EIO, StoreError)],
)
def test_open_converts_file_system_errors(tmp_path, monkeypatch, number, kind):
    """The errno of a failed mkdir determines the type of the error."""

    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(StoreError) as caught:
        SqliteStorage.open(tmp_path / "journal")

    assert kind is type(caught.value)


async def test_analyze_tables_are_not_damage(tmp_path):
    """ANALYZE adds tables of SQLite: an open store stays usable and can be reopened."""
    storage = SqliteStorage.open(tmp_path / "journal")
    await storage.transact(lambda rows: rows.put("a", b"1"))
    with closing(sqlite3.connect(storage.directory / "cache.db", isolation_level=None)) as stranger:
        stranger.execute("ANALYZE")
    await storage.transact(lambda rows: rows.put("b", b"2"))
    await storage.close()

    again = SqliteStorage.open(tmp_path / "journal")
    assert ["a", "b"] == await again.keys()
    await assert_sound(again)
    await again.close()
