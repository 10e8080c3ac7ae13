"""A backup is complete and consistent, or it is not created at all."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import mama_structs
from mama_structs import admin
from mama_structs.errors import InvalidArgument, StoreBusy, StoreDamaged, StoreError, StoreFull
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.session.session import Session
from mama_structs.storage import backup as module
from mama_structs.storage import files
from mama_structs.storage.backup import backup
from mama_structs.storage.sqlite_store import SqliteStorage

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mama_structs.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
ROWS = 200

WRITER = """
import asyncio, sys
from pathlib import Path
from mama_structs.storage.sqlite_store import SqliteStorage

async def main():
    storage = SqliteStorage.open(Path(sys.argv[1]) / "journal", wait=60)
    for number in range(1_000_000):
        storage.enqueue([(f"w{number:06}", b"x" * 5000), (f"z{number:06}", b"too")])
        await storage.flush()
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.fixture
async def source(tmp_path):
    """The directory of a session. Its store is open, and most of the store's rows are in the write-ahead log."""
    storage = SqliteStorage.open(tmp_path / "a" / "journal")
    for number in range(ROWS):
        storage.enqueue([(f"k{number:04}", b"%d" % number * 1000)])
    await storage.flush()
    yield tmp_path / "a"
    await storage.close()


async def rows_of(directory, prefix=""):
    """Return the keys of a store, and assert that `check` reports no issue."""
    storage = SqliteStorage.open(directory / "journal")
    keys = await storage.keys(prefix)
    findings = [one for one in await storage.check() if one.kind != "sqlite"]
    await storage.close()

    assert [] == findings
    return keys


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


async def test_backup_copies_rows_from_log(source, tmp_path):
    """Rows that are only in the log and not yet in the database are copied, too."""
    assert (source / "journal" / "cache.db-wal").stat().st_size > 0
    await backup(source, tmp_path / "b")

    assert [f"k{number:04}" for number in range(ROWS)] == await rows_of(tmp_path / "b")


async def test_backup_is_consistent_while_another_process_writes(tmp_path, monkeypatch):
    """The copy contains all earlier acknowledged rows, no row without its pair, and no gaps."""
    monkeypatch.setattr(module, "PAGES_PER_STEP", 16)
    told = []
    command = [sys.executable, "-c", WRITER, str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as writer:  # noqa: ASYNC220 - nothing else runs
        try:
            for line in writer.stdout:
                if int(line) == 100:
                    break
            await backup(tmp_path / "a", tmp_path / "b", progress=lambda *how_far: told.append(how_far))
        finally:
            writer.kill()
    first, second = await rows_of(tmp_path / "b", "w"), await rows_of(tmp_path / "b", "z")

    assert len(first) > 100
    assert [f"w{number:06}" for number in range(len(first))] == first
    assert [key.replace("w", "z") for key in first] == second
    # The progress never decreases and its total never changes, so concurrent writes do not restart the copy.
    assert sorted(told) == told
    assert 1 == len({total for _, total in told})


async def test_session_opens_at_backup(tmp_path):
    """The copy can be opened as a session with all memories, and is independent of the original."""
    async with Session.open(tmp_path / "a", embedder=HashEmbedder()) as session:
        saved = await session.memories.save_decision("shield first", topic="defence", reasoning="raids doubled")
        await admin.backup(session, tmp_path / "b")
        await session.memories.save_context("later")
    async with Session.open(tmp_path / "b", embedder=HashEmbedder()) as copied:
        assert saved == await copied.memories.get(saved.id)
        assert 1 == await copied.memories.count()
        assert (await admin.check(copied)).ok


async def test_backup_is_private(source, tmp_path):
    """Directories have mode 0700 and files 0600, and there are no other files."""
    await backup(source, tmp_path / "b")
    found = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in (tmp_path / "b").rglob("*")}

    assert {"b/journal": 0o700, "b/journal/FORMAT": 0o600, "b/journal/cache.db": 0o600} == found
    assert 0o700 == (tmp_path / "b").stat().st_mode & 0o777


async def test_backup_accepts_empty_or_missing_target(source, tmp_path):
    """An empty directory is accepted, and missing parents are created."""
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "empty", tmp_path / "new" / "deep"):
        await backup(source, target)

        assert ROWS == len(await rows_of(target))
        assert all(not name.startswith(".") for name in names_in(target.parent))


@pytest.mark.parametrize("make", [lambda path: path.write_text("x"), lambda path: (path / "x").mkdir(parents=True)])
async def test_backup_rejects_existing_target(make, source, tmp_path):
    """Existing files and directories with content are never replaced."""
    make(tmp_path / "b")

    with pytest.raises(InvalidArgument, match="is not an empty directory"):
        await backup(source, tmp_path / "b")
    assert ["a", "b"] == names_in(tmp_path)


async def test_backup_fails_when_target_appears_meanwhile(source, tmp_path):
    """A target created during the copy stays unchanged, and no temporary files remain."""

    def appear(_done, _total):
        (tmp_path / "b" / "x").mkdir(parents=True, exist_ok=True)

    with pytest.raises(StoreError):
        await asyncio.to_thread(module.copy_store, source, tmp_path / "b", appear)
    assert ["a", "b"] == names_in(tmp_path)
    assert ["x"] == names_in(tmp_path / "b")


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir, lambda path: path.write_text("x")])
async def test_backup_rejects_source_that_is_no_session(make, tmp_path):
    """If the source is not a session's directory, nothing is created."""
    make(tmp_path / "a")
    before = names_in(tmp_path)

    with pytest.raises(StoreError, match="is not the directory of a store"):
        await backup(tmp_path / "a", tmp_path / "b")
    assert before == names_in(tmp_path)


async def test_backup_rejects_target_inside_store(source):
    """A copy inside the database's directory would be taken for a part of it."""
    with pytest.raises(StoreError, match="session's own data"):
        await backup(source, source / "journal" / "copy")
    assert ["FORMAT", "cache.db", "cache.db-shm", "cache.db-wal", "reserve"] == names_in(source / "journal")


async def test_backup_raises_store_damaged_when_source_is_damaged(tmp_path):
    """Damaged pages are detected before the copy gets its final name."""
    storage = SqliteStorage.open(tmp_path / "a" / "journal")
    storage.enqueue([(f"k{number:04}", b"%d" % number * 1000) for number in range(ROWS)])
    await storage.close()
    database = tmp_path / "a" / "journal" / "cache.db"
    data = bytearray(database.read_bytes())
    for page in range(3, 40):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    database.write_bytes(data)

    with pytest.raises(StoreDamaged, match=r"a/journal/cache\.db is damaged") as refused:
        await backup(tmp_path / "a", tmp_path / "b")
    assert str(database) == refused.value.file
    assert ["a"] == names_in(tmp_path)


FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from mama_structs.errors import StoreFull
from mama_structs.storage.backup import backup

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
# Else a module that is imported below the limit leaves bytecode that is cut off, for everybody.
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    asyncio.run(backup(Path(sys.argv[1]), Path(sys.argv[2])))
except StoreFull:
    print("full")
"""


@pytest.mark.parametrize("size", [0, 4096, 200_000])
async def test_backup_leaves_nothing_when_disk_is_full(size, source, tmp_path):
    """At any stage a full disk raises StoreFull, and nothing of the copy remains."""
    command = [sys.executable, "-c", FULL, str(source), str(tmp_path / "b"), str(size)]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, env=ENVIRONMENT, check=False
    )

    assert ("full\n", "") == (done.stdout, done.stderr)
    assert ["a"] == names_in(tmp_path)


@pytest.mark.parametrize("call", ["fsync", "open", "write"])
async def test_backup_leaves_nothing_when_any_system_call_fails(call, source, tmp_path, monkeypatch):
    """After a failure of any call there is a complete copy or none, and no temporary files."""
    plain = getattr(os, call)
    failed = 0
    for number in range(1, 50):
        calls = 0

        def counted(*arguments, number=number, **options):
            nonlocal calls
            calls += 1
            if calls == number:
                raise OSError(errno.ENOSPC, "No space left on device")
            return plain(*arguments, **options)

        with monkeypatch.context() as patched:
            patched.setattr(files.os, call, counted)
            try:
                await asyncio.to_thread(module.copy_store, source, tmp_path / "b", lambda *_: None)
            except StoreFull:
                failed += 1
            else:
                if calls < number:
                    break
        assert names_in(tmp_path) in (["a"], ["a", "b"])
        if (tmp_path / "b").exists():
            assert ROWS == len(await rows_of(tmp_path / "b"))
            (tmp_path / "b").rename(tmp_path.parent / f"{tmp_path.name}-{call}-{number}")

    assert failed


async def test_cancelled_backup_leaves_nothing(source, tmp_path, monkeypatch):
    """The cancelled caller waits until the partial copy is deleted."""
    monkeypatch.setattr(module, "PAGES_PER_STEP", 1)
    monkeypatch.setattr(module, "PROGRESS_INTERVAL_SECONDS", 0.0)
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    tell_loop = loop.call_soon_threadsafe
    told = []

    def cancel(done, total):
        told.append((done, total))
        task.cancel()

    def patient(callback, *arguments):
        """Pass a callback to the event loop, and let the copy continue only after the loop has run it."""
        handle = tell_loop(callback, *arguments)
        if callback is cancel:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)
        return handle

    monkeypatch.setattr(loop, "call_soon_threadsafe", patient)
    with pytest.raises(asyncio.CancelledError):
        await backup(source, tmp_path / "b", progress=cancel)
    task.uncancel()

    assert [1] == [done for done, _total in told]
    assert ["a"] == names_in(tmp_path)


async def test_progress_is_called_in_event_loop(source, tmp_path):
    """The last call reports that all pages were copied."""
    told = []
    loop = asyncio.get_running_loop()

    def tell(done, total):
        assert loop is asyncio.get_running_loop()
        told.append((done, total))

    await backup(source, tmp_path / "b", progress=tell)
    await asyncio.sleep(0)

    assert told[-1][0] == told[-1][1] > ROWS / 10


async def test_backup_raises_busy_when_database_is_locked(source, tmp_path, monkeypatch):
    """An exclusive lock of another process causes a timeout."""
    storage = SqliteStorage.open(tmp_path / "c" / "journal")
    await storage.close()
    monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 0.1)
    other = sqlite3.connect(tmp_path / "c" / "journal" / "cache.db", isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(StoreBusy):
            await backup(tmp_path / "c", tmp_path / "b")
    finally:
        other.close()
    assert ["a", "c"] == names_in(tmp_path)


async def test_backup_deletes_leftovers_of_killed_backup(source, tmp_path):
    """The next backup deletes the partial copy of a killed one."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from mama_structs.storage.backup import copy_store\n"
        "copy_store(Path(sys.argv[1]), Path(sys.argv[2]), lambda *_: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "b")]
    done = await asyncio.to_thread(subprocess.run, command, env=ENVIRONMENT, check=False)
    left = names_in(tmp_path)
    await backup(source, tmp_path / "b")

    assert -signal.SIGKILL == done.returncode
    assert 2 == len(left)
    assert ["a", "b"] == names_in(tmp_path)
