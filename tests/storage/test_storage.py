"""Regular behaviour of stores in a directory and on a server."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import warnings
from contextlib import closing, contextmanager
from pathlib import Path

import diskcache
import pytest

import mama_structs
from mama_structs.errors import InvalidArgument, SessionClosed, StoreError
from mama_structs.storage.cache_factory import SETTINGS
from mama_structs.storage.sealed_rows import MAX_VALUE_BYTES, DamagedValue, NewValue
from mama_structs.storage.sqlite_store import SqliteStorage

# Child processes must import the package under test.
SRC = str(Path(mama_structs.__file__).parents[1])


async def assert_sound(storage):
    """Assert that `check` reports no issue except an old SQLite version."""
    assert [] == [finding for finding in await storage.check() if finding.kind != "sqlite"]


_others = set()


@pytest.fixture(autouse=True)
def _threads_of_other_tests():
    """Remember the threads that other tests left running."""
    _others.clear()
    _others.update(threading.enumerate())


def threads():
    own = set(threading.enumerate()) - _others
    return [thread for thread in own if thread.name.startswith("mama-structs")]


def run(code, *arguments, check=True, **options):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        check=check,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": SRC},
        **options,
    )


@pytest.fixture
async def storage(place):
    storage = place.open()
    yield storage
    await assert_sound(storage)
    await storage.close()


def test_child_process_imports_package_under_test(tmp_path):
    """A child in another working directory imports the same package and no top-level rooms."""
    code = """
import importlib.util, mama_structs.storage
print(mama_structs.storage.__file__, importlib.util.find_spec("storage"), importlib.util.find_spec("structs"))
"""
    expected = Path(mama_structs.__file__).parent / "storage" / "__init__.py"

    assert f"{expected} None None\n" == run(code, cwd=tmp_path).stdout


async def test_flush_persists_rows_across_reopen(place):
    """Flushed rows are readable after the store was closed and reopened."""
    storage = place.open()
    storage.enqueue([("k", b"1"), ("l", b"2")])
    storage.enqueue([("k", None), ("m", b"")])
    await storage.flush()

    assert 0 == storage.pending
    await storage.close()
    again = place.open()
    assert {"l": b"2", "m": b""} == await again.read(["k", "l", "m"])
    await assert_sound(again)
    await again.close()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\r\n\r",
        bytes(range(256)),
        b"\0",
        "\ud800".encode("utf-8", "surrogatepass"),
        b"x\r" * 40_000,
        bytes(10**7),
    ],
    ids=["empty", "cr", "every byte", "nul", "surrogate", "large with cr", "10 MB"],
)
async def test_read_returns_value_byte_for_byte(storage, value):
    """Values of any content and size are returned unchanged."""
    storage.enqueue([("k", value)])
    await storage.flush()

    assert {"k": value} == await storage.read(["k"])
    assert not isinstance(storage, SqliteStorage) or not list(storage.directory.glob("*.val"))


async def test_new_value_is_written_only_if_key_is_absent(storage):
    """A `New` value never replaces an existing one, but is written after a delete in the same call."""
    storage.enqueue([("a", NewValue(b"1"))])
    storage.enqueue([("a", NewValue(b"2")), ("b", b"3"), ("c", b"4"), ("c", None), ("c", NewValue(b"5"))])
    await storage.flush()
    storage.enqueue([("b", NewValue(b"6")), ("d", NewValue(b"7"))])

    expected = {"a": b"1", "b": b"3", "c": b"5", "d": b"7"}
    assert expected == await storage.read(list("abcd"))
    await storage.flush()
    assert expected == await storage.read(list("abcd"))


async def test_new_value_replaces_damaged_value(storage, damage):
    """A damaged value does not prevent the same content from being stored again."""
    storage.enqueue([("blob", b"content")])
    await storage.flush()
    damage()
    assert isinstance((await storage.read(["blob"]))["blob"], DamagedValue)
    assert ["damaged"] == [finding.kind for finding in await storage.check() if finding.kind != "sqlite"]
    storage.enqueue([("blob", NewValue(b"content"))])
    await storage.flush()

    assert {"blob": b"content"} == await storage.read(["blob"])


async def test_keys_returns_exact_prefix_matches_including_pending_rows(storage):
    """A prefix matches exactly the keys that begin with it, and enqueued changes count."""
    storage.enqueue([(key, b"") for key in ["a", "a:1", "a:2", "a;", "b", "a\x7f", "\x7f\x7f"]])
    await storage.flush()
    storage.enqueue([("a:0", b""), ("a:2", None), ("c", b"")])

    assert ["a:0", "a:1"] == await storage.keys("a:")
    assert ["\x7f\x7f"] == await storage.keys("\x7f")
    assert ["a", "a:0", "a:1", "a;", "a\x7f", "b", "c", "\x7f\x7f"] == await storage.keys()


@pytest.mark.parametrize(
    "row", [("ä", b""), (1, b""), ("k", "text"), ("k", bytearray()), ("k", NewValue("x")), ("k",), 5, "kv"]
)
async def test_enqueue_rejects_whole_call_when_one_row_is_invalid(storage, row):
    """One invalid row prevents all rows of its call from being enqueued."""
    with pytest.raises(InvalidArgument):
        storage.enqueue([("good", b"1"), row])

    assert 0 == storage.pending
    assert {} == await storage.read(["good"])


async def test_enqueue_rejects_value_above_size_limit(storage):
    """The error names the size of the value."""
    with pytest.raises(InvalidArgument, match=str(MAX_VALUE_BYTES + 1)):
        storage.enqueue([("k", bytes(MAX_VALUE_BYTES + 1))])


async def test_enqueue_writes_each_call_in_one_transaction(storage, monkeypatch):
    """The rows of one call are never split, while the bytes of combined calls are bounded."""
    monkeypatch.setattr("mama_structs.storage.sqlite_store.MAX_TRANSACTION_BYTES", 10)
    hold = threading.Event()
    holding = asyncio.ensure_future(storage.transact(lambda rows: hold.wait(10)))
    await asyncio.sleep(0.05)
    for call in range(4):
        storage.enqueue([(f"{call}-{row}", b"12345") for row in range(3 if call == 1 else 1)])
    writes = []
    real = storage._write_changes

    def counting(*given):
        before = storage.pending
        real(*given)
        writes.append(before)

    monkeypatch.setattr(storage, "_write_changes", counting)
    hold.set()
    await holding
    await storage.flush()

    assert [4, 3, 2, 1] == writes
    assert 6 == len(await storage.keys())


async def test_concurrent_flushes_share_transactions(storage, monkeypatch):
    """64 concurrent flushes need at most 8 transactions."""
    transactions = []
    real = storage._write_changes
    monkeypatch.setattr(storage, "_write_changes", lambda *given: (transactions.append(1), real(*given))[1])

    async def save(number):
        storage.enqueue([(f"k{number}", b"1")])
        await storage.flush()

    await asyncio.gather(*map(save, range(64)))

    assert 64 == len(await storage.keys())
    assert len(transactions) <= 8


async def test_transact_sees_own_writes_and_enqueued_rows(storage):
    """Inside a transaction rows can be read, listed, written and deleted, and enqueued rows are visible."""
    storage.enqueue([("a", b"1"), ("b", b"2")])

    def work(rows):
        rows.put("c", rows.get("a") + b"!")
        return (
            rows.put_new("a", b"9"),
            rows.put_new("d", b"4"),
            rows.delete("b"),
            rows.delete("b"),
            rows.keys(),
            rows.get("x"),
        )

    assert (False, True, True, False, ["a", "c", "d"], None) == await storage.transact(work)
    assert {"a": b"1", "c": b"1!", "d": b"4"} == await storage.read(list("abcd"))


async def test_transact_rolls_back_when_work_raises(storage):
    """The error of the function is raised, its writes are rolled back, and the store stays usable."""
    storage.enqueue([("a", b"1")])

    def work(rows):
        rows.put("a", b"2")
        rows.delete("a")
        rows.put("b", b"3")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await storage.transact(work)
    assert {"a": b"1"} == await storage.read(["a", "b"])


async def test_transact_continues_after_caught_invalid_argument(storage):
    """A rejected key does not fail the transaction."""

    def work(rows):
        with pytest.raises(InvalidArgument):
            rows.put("ä", b"")
        rows.put("a", b"1")

    await storage.transact(work)

    assert {"a": b"1"} == await storage.read(["a"])


async def test_transact_rejects_async_function(storage):
    """An async function is rejected and nothing is written."""

    async def work(rows):
        """Never runs."""

    with pytest.raises(InvalidArgument):
        await storage.transact(work)


async def test_rows_raise_session_closed_after_transaction(storage):
    """Rows of a finished transaction cannot be used."""
    kept = await storage.transact(lambda rows: rows)

    with pytest.raises(SessionClosed):
        kept.get("a")


async def test_concurrent_transactions_do_not_interleave(storage):
    """No increment of concurrent transactions is lost."""

    def add(rows):
        rows.put("n", b"%d" % (int(rows.get("n") or b"0") + 1))

    await asyncio.gather(*(storage.transact(add) for _ in range(50)))

    assert {"n": b"50"} == await storage.read(["n"])


async def test_close_writes_pending_rows_and_ends_thread(place):
    """Closing flushes, is idempotent and leaves no thread; later calls raise SessionClosed."""
    storage = place.open()
    storage.enqueue([("k", b"1")])
    await asyncio.gather(storage.close(), storage.close())
    await storage.close()

    assert [] == threads()
    for call in (
        storage.flush,
        lambda: storage.read(["k"]),
        storage.keys,
        storage.check,
        lambda: storage.transact(len),
    ):
        with pytest.raises(SessionClosed):
            await call()
    with pytest.raises(SessionClosed):
        storage.enqueue([("k", b"1")])
    assert "closed" in repr(storage)
    again = place.open()
    assert {"k": b"1"} == await again.read(["k"])
    await again.close()


def test_close_now_writes_pending_rows_without_event_loop(tmp_path):
    """`close_now` returns after everything is written and the thread has ended; repeated closing has no effect."""
    storage = SqliteStorage.open(tmp_path / "journal")
    storage.enqueue([(f"k{number}", b"x" * 10_000) for number in range(100)])
    storage.close_now()

    assert [] == threads()
    assert "closed" in repr(storage)
    storage.close_now()
    asyncio.run(storage.close())
    storage.close_now()
    with pytest.raises(SessionClosed):
        storage.enqueue([("k", b"1")])
    with closing(sqlite3.connect(tmp_path / "journal" / "cache.db")) as connection:
        assert [(100,)] == connection.execute("SELECT count(*) FROM Cache").fetchall()
    SqliteStorage.temporary().close_now()


async def test_close_now_waits_for_running_close(place):
    """A second close returns when the first one has finished."""
    storage = place.open()
    hold = threading.Event()
    holding = asyncio.ensure_future(storage.transact(lambda rows: (hold.wait(600), rows.put("a", b"1"))))
    closing_task = asyncio.ensure_future(storage.close())
    await asyncio.sleep(0.01)
    threading.Timer(0.05, hold.set).start()
    storage.close_now()

    assert [] == threads()
    await asyncio.gather(holding, closing_task)


async def test_cancelled_close_runs_to_completion(tmp_path):
    """After a cancelled close the pending rows are written and the thread ends."""
    storage = SqliteStorage.open(tmp_path / "journal")
    hold = threading.Event()
    holding = asyncio.ensure_future(storage.transact(lambda rows: (hold.wait(600), rows.put("a", b"1"))))
    storage.enqueue([("k", b"1")])
    closing_task = asyncio.ensure_future(storage.close())
    await asyncio.sleep(0.01)
    closing_task.cancel()
    await asyncio.wait([closing_task])
    assert closing_task.cancelled()
    hold.set()
    await holding
    for thread in threads():
        await asyncio.to_thread(thread.join, 600)

    assert [] == threads()
    with closing(sqlite3.connect(tmp_path / "journal" / "cache.db")) as connection:
        assert [("a",), ("k",)] == connection.execute("SELECT key FROM Cache ORDER BY key").fetchall()


async def test_cancelled_waiters_do_not_stop_their_jobs(storage):
    """Cancelled flushes and transactions continue, and the remaining waiters are answered."""
    begun, hold = threading.Event(), threading.Event()
    storage.enqueue([("a", b"1")])
    tasks = [
        asyncio.ensure_future(storage.transact(lambda rows: (begun.set(), hold.wait(600), rows.put("b", b"2")))),
        asyncio.ensure_future(storage.flush()),
        asyncio.ensure_future(storage.read(["a"])),
    ]
    # Until the transaction has begun, the thread may still run the read below before it.
    await asyncio.to_thread(begun.wait, 600)
    other = asyncio.ensure_future(storage.flush())
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    hold.set()
    await other

    assert {"a": b"1", "b": b"2"} == await storage.read(["a", "b"])


def test_job_completes_after_event_loop_ended(tmp_path, caplog):
    """A job that outlives the loop of its caller logs nothing, and its writes are stored."""
    storage = SqliteStorage.open(tmp_path / "journal")
    hold = threading.Event()

    async def leave():
        storage.enqueue([("a", b"1")])
        waiting = asyncio.ensure_future(storage.transact(lambda rows: (hold.wait(600), rows.put("b", b"2"))))
        await asyncio.sleep(0.02)
        waiting.cancel()

    asyncio.run(leave())
    hold.set()

    async def look():
        assert ["a", "b"] == await storage.keys()
        await storage.close()

    asyncio.run(look())
    assert [] == caplog.records


def test_store_is_usable_from_any_loop_and_thread(tmp_path):
    """Event loops may use a store consecutively and concurrently."""
    storage = SqliteStorage.open(tmp_path / "journal")

    async def save(number):
        storage.enqueue([(f"k{number}", b"1")])
        await storage.flush()

    workers = [threading.Thread(target=lambda n=n: asyncio.run(save(n))) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    async def finish():
        assert 8 == len(await storage.keys())
        await storage.close()

    asyncio.run(finish())


async def test_unclosed_store_warns_and_its_thread_ends(tmp_path):
    """A store that was not closed warns with its directory, and its enqueued rows are written."""
    storage = SqliteStorage.open(tmp_path / "journal")
    storage.enqueue([("k", b"1")])
    with pytest.warns(ResourceWarning, match="journal was not closed"):
        del storage
    for thread in threads():
        await asyncio.to_thread(thread.join, 600)
        assert not thread.is_alive()

    again = SqliteStorage.open(tmp_path / "journal")
    assert {"k": b"1"} == await again.read(["k"])
    await assert_sound(again)
    await again.close()


def test_interpreter_exit_writes_pending_rows(tmp_path):
    """The interpreter waits for enqueued rows at exit, and does not hang."""
    run(
        """
import sys
from pathlib import Path
from mama_structs.storage.sqlite_store import SqliteStorage
storage = SqliteStorage.open(Path(sys.argv[1]))
for number in range(200):
    storage.enqueue([(f"k{number}", b"x" * 10_000)])
temporary = SqliteStorage.temporary()
temporary.enqueue([("k", b"1")])
print(temporary.directory.parent)
""",
        tmp_path / "journal",
    )

    async def look():
        storage = SqliteStorage.open(tmp_path / "journal")
        assert 200 == len(await storage.keys())
        await assert_sound(storage)
        await storage.close()

    asyncio.run(look())


def test_interpreter_exit_deletes_temporary_store(tmp_path):
    """A temporary store is deleted when its process exits."""
    code = """
from mama_structs.storage.sqlite_store import SqliteStorage
storage = SqliteStorage.temporary()
storage.enqueue([("k", b"1")])
"""
    environment = {**os.environ, "PYTHONPATH": SRC, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600, env=environment)

    assert [] == list(tmp_path.iterdir())


async def test_open_creates_private_directories(tmp_path):
    """Created directories have mode 0700, and other users cannot read the database."""
    storage = SqliteStorage.open(tmp_path / "a" / "b" / "journal")
    storage.enqueue([("k", b"1")])
    await storage.flush()

    for directory in ("a", "a/b", "a/b/journal"):
        assert 0o700 == stat.S_IMODE((tmp_path / directory).stat().st_mode)
    for path in storage.directory.iterdir():
        if path.name != "FORMAT":
            assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    storage.directory.chmod(0o755)
    assert ["files"] == [finding.kind for finding in await storage.check() if finding.kind != "sqlite"]
    await storage.close()


async def test_open_repairs_settings_that_would_lose_rows(tmp_path):
    """Manipulated settings, which diskcache would apply, are repaired when the store is opened."""
    directory = tmp_path / "journal"
    await SqliteStorage.open(directory).close()
    with closing(sqlite3.connect(directory / "cache.db")) as connection, connection:
        connection.execute("UPDATE Settings SET value = 'least-recently-stored' WHERE key = 'eviction_policy'")
        connection.execute(
            "UPDATE Settings SET value = 10 WHERE key IN ('cull_limit', 'size_limit', 'disk_min_file_size')"
        )
        connection.execute("UPDATE Settings SET value = 0 WHERE key = 'sqlite_synchronous'")
        connection.execute("INSERT INTO Settings VALUES ('sqlite_query_only', 1), ('disk_trap', 1), ('other', 1)")
    storage = SqliteStorage.open(directory)
    for number in range(100):
        storage.enqueue([(f"k{number}", b"x" * 1000)])
    await storage.flush()

    assert 100 == len(await storage.keys())
    with closing(sqlite3.connect(directory / "cache.db")) as connection:
        stored = dict(connection.execute("SELECT key, value FROM Settings"))
        assert SETTINGS == {key: stored[key] for key in SETTINGS}
        assert set(diskcache.core.METADATA) == set(stored) - set(SETTINGS)
    await assert_sound(storage)
    with closing(sqlite3.connect(directory / "cache.db")) as connection, connection:
        connection.execute("UPDATE Settings SET value = 7 WHERE key = 'cull_limit'")
    assert ["settings"] == [finding.kind for finding in await storage.check() if finding.kind != "sqlite"]
    await storage.close()


@pytest.mark.parametrize("place", ["directory"], indirect=True)
async def test_settings_disable_eviction_and_sync_every_commit(storage):
    """The settings that make rows durable are in effect."""
    stored = {"eviction_policy": "none", "cull_limit": 0, "size_limit": 2**62, "disk_min_file_size": 2**62}
    assert stored == {name: SETTINGS[name] for name in stored}
    in_force = {"journal_mode": [("wal",)], "synchronous": [(2,)], "mmap_size": [(0,)], "temp_store": [(2,)]}

    def pragmas(_rows):
        connection = storage._database.connection
        return {name: connection.execute(f"PRAGMA {name}").fetchall() for name in in_force}

    found = await storage.transact(pragmas)
    # SQLite builds without memory mapping return no row for this setting.
    assert in_force == {name: rows or [(0,)] for name, rows in found.items()}


async def test_open_rejects_database_of_another_program(tmp_path):
    """A directory with another program's cache or database is not modified."""
    with closing(diskcache.Cache(str(tmp_path / "theirs"), eviction_policy="least-recently-used")) as cache:
        cache.set("k", {"any": "thing"})
    (tmp_path / "other").mkdir()
    with closing(sqlite3.connect(tmp_path / "other" / "cache.db")) as connection:
        connection.execute("CREATE TABLE Theirs (x)")
    before = {path: path.read_bytes() for path in tmp_path.rglob("cache.db")}

    for name in ("theirs", "other"):
        with pytest.raises(StoreError, match="another program"):
            SqliteStorage.open(tmp_path / name)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("cache.db")}


def test_open_rejects_newer_format(tmp_path):
    """A store written by a later version is not opened."""
    asyncio.run(SqliteStorage.open(tmp_path / "journal").close())
    (tmp_path / "journal" / "FORMAT").write_text("mama-structs journal 2\n")

    with pytest.raises(StoreError, match="version"):
        SqliteStorage.open(tmp_path / "journal")


def test_open_rejects_directory_with_variable_in_name(tmp_path, monkeypatch):
    """Because diskcache expands variables in paths, such a directory is rejected before anything is created."""
    monkeypatch.setenv("ELSEWHERE", "elsewhere")

    with pytest.raises(InvalidArgument):
        SqliteStorage.open(tmp_path / "$ELSEWHERE")
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), "1", None, True])
def test_open_rejects_invalid_wait(tmp_path, wait):
    """`wait` must be a finite, non-negative number."""
    with pytest.raises(InvalidArgument):
        SqliteStorage.open(tmp_path, wait=wait)
    with pytest.raises(InvalidArgument):
        SqliteStorage.temporary(wait=wait)


async def test_check_reports_unexpected_file(tmp_path):
    """A file that does not belong in the directory is reported as a warning."""
    storage = SqliteStorage.open(tmp_path / "journal")
    (storage.directory / "stray").touch()

    findings = [finding for finding in await storage.check() if finding.kind != "sqlite"]

    assert [("warning", "files")] == [(finding.severity, finding.kind) for finding in findings]
    await storage.close()


SECOND = """
import sys
from pathlib import Path
from mama_structs.storage.sqlite_store import SqliteStorage
storage = SqliteStorage.open(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
storage.close_now()
"""


@contextmanager
def second_process(directory):
    """Keep the store open in another process during the block."""
    command = [sys.executable, "-c", SECOND, str(directory)]
    environment = {**os.environ, "PYTHONPATH": SRC}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert b"open\n" == process.stdout.readline()
        yield
        process.stdin.close()
        assert 0 == process.wait(600)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is not known whether others have it open")
async def test_check_reports_old_sqlite_when_second_process_was_seen(tmp_path, monkeypatch):
    """An old SQLite is safe for one process, but reported once a second one was seen; a fixed version never is."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 2))
    storage = SqliteStorage.open(tmp_path / "journal")
    again = SqliteStorage.open(tmp_path / "journal")
    for one in (storage, again):
        assert [] == await one.check()
    with second_process(storage.directory):
        (finding,) = await storage.check()
        later = SqliteStorage.open(storage.directory)
    assert ("warning", "sqlite") == (finding.severity, finding.kind)
    assert "a second one" in finding.message

    for one in (storage, later):
        assert [finding] == await one.check()
    assert [] == await again.check()
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 3))
    for one in (storage, again, later):
        assert [] == await one.check()
        await one.close()


@pytest.mark.parametrize("place", ["directory"], indirect=True)
async def test_check_reports_old_sqlite_when_other_processes_are_undetectable(storage, monkeypatch):
    """If other processes cannot be detected, one may have the store open."""
    monkeypatch.setattr("mama_structs.storage.locks.HAS_OFD_LOCKS", False)
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 2))

    assert [("warning", "sqlite")] == [(f.severity, f.kind) for f in await storage.check()]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of what is open")  # noqa: PTH112 - needs no Path
async def test_check_keeps_sqlite_locks_and_leaks_no_descriptor(tmp_path):
    """Closing any descriptor of a file would release SQLite's locks on it, so a check must not do that."""
    storage = SqliteStorage.open(tmp_path / "journal")
    with closing(sqlite3.connect(storage.directory / "cache.db", isolation_level=None)) as own:
        own.execute("BEGIN IMMEDIATE")
        await storage.check()
        SqliteStorage.open(tmp_path / "journal").close_now()
        code = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
        assert "database is locked" in run(code, storage.directory / "cache.db", check=False).stderr
        own.execute("ROLLBACK")
    await storage.close()

    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - needs only names
    assert not [link for link in links if str(tmp_path) in str(link.resolve())]


async def test_temporary_store_is_created_by_first_write(tmp_path, monkeypatch):
    """Reading creates nothing, the first write creates a private directory, and closing deletes it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    storage = SqliteStorage.temporary()
    assert {} == await storage.read(["k"])
    assert [] == await storage.keys()
    assert [] == await storage.check()
    await storage.flush()
    assert [] == list(tmp_path.iterdir())
    storage.enqueue([("k", b"1")])
    await storage.flush()

    (made,) = tmp_path.iterdir()
    assert made.name.startswith("mama-structs-")
    assert 0o700 == stat.S_IMODE(made.stat().st_mode)
    assert {"k": b"1"} == await storage.read(["k"])
    await assert_sound(storage)
    await storage.close()
    assert [] == list(tmp_path.iterdir())
    assert [] == threads()


async def test_unused_temporary_store_creates_nothing(tmp_path, monkeypatch):
    """A temporary store that was never written to leaves no files, whether closed or not."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    await SqliteStorage.temporary().close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        SqliteStorage.temporary()
        gc.collect()

    assert [] == list(tmp_path.iterdir())
