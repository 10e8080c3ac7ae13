"""A backup is one moment of a store, whole, or nothing at all."""

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
from mama_structs.errors import InvalidArgument, StoreBusy, StoreDamaged, StoreError, StoreFull
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.session.session import Session
from mama_structs.storage import backup as module
from mama_structs.storage import files
from mama_structs.storage.backup import backup
from mama_structs.storage.sqlite_store import Storage

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mama_structs.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
ROWS = 200

WRITER = """
import asyncio, sys
from pathlib import Path
from mama_structs.storage.sqlite_store import Storage

async def main():
    storage = Storage.open(Path(sys.argv[1]) / "journal", wait=60)
    for number in range(1_000_000):
        storage.enqueue([(f"w{number:06}", b"x" * 5000), (f"z{number:06}", b"too")])
        await storage.flush()
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.fixture
async def source(tmp_path):
    """Return a session's directory, whose store is open and has most of its rows in the log."""
    storage = Storage.open(tmp_path / "a" / "journal")
    for number in range(ROWS):
        storage.enqueue([(f"k{number:04}", b"%d" % number * 1000)])
    await storage.flush()
    yield tmp_path / "a"
    await storage.close()


async def rows_of(directory, prefix=""):
    """Return the keys of a store, in which nothing may be wrong."""
    storage = Storage.open(directory / "journal")
    keys = await storage.keys(prefix)
    findings = [one for one in await storage.check() if one.kind != "sqlite"]
    await storage.close()

    assert [] == findings
    return keys


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


async def test_all_rows_are_in_the_copy(source, tmp_path):
    """What is in the log only, and in no page of the database yet, is copied too."""
    assert (source / "journal" / "cache.db-wal").stat().st_size > 0
    await backup(source, tmp_path / "b")

    assert [f"k{number:04}" for number in range(ROWS)] == await rows_of(tmp_path / "b")


async def test_a_copy_is_one_moment_while_another_process_writes(tmp_path, monkeypatch):
    """Everything acknowledged before is there, no row without its pair, and no row before a missing one."""
    monkeypatch.setattr(module, "_PAGES", 16)
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
    # It did not begin again, whatever was written meanwhile.
    assert sorted(told) == told
    assert 1 == len({total for _, total in told})


async def test_a_session_opens_at_the_copy(tmp_path):
    """The copy is a session's directory with the memories, and going on in one does not change the other."""
    async with Session.open(tmp_path / "a", embedder=HashEmbedder()) as session:
        saved = await session.memories.save_decision("defence", "shield first", "raids doubled")
        await session.backup(tmp_path / "b")
        await session.memories.save_context("later")
    async with Session.open(tmp_path / "b", embedder=HashEmbedder()) as copied:
        assert saved == await copied.memories.get(saved.id)
        assert 1 == await copied.memories.count()
        assert (await copied.check()).ok


async def test_only_its_owner_reads_a_copy(source, tmp_path):
    """Directories are 0700 and files 0600, and nothing else is in them."""
    await backup(source, tmp_path / "b")
    found = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in (tmp_path / "b").rglob("*")}

    assert {"b/journal": 0o700, "b/journal/FORMAT": 0o600, "b/journal/cache.db": 0o600} == found
    assert 0o700 == (tmp_path / "b").stat().st_mode & 0o777


async def test_where_a_copy_can_be(source, tmp_path):
    """An empty directory takes a copy, and what is missing above is made."""
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "empty", tmp_path / "new" / "deep"):
        await backup(source, target)

        assert ROWS == len(await rows_of(target))
        assert all(not name.startswith(".") for name in names_in(target.parent))


@pytest.mark.parametrize("make", [lambda path: path.write_text("x"), lambda path: (path / "x").mkdir(parents=True)])
async def test_where_something_is(make, source, tmp_path):
    """What is there is never replaced."""
    make(tmp_path / "b")

    with pytest.raises(InvalidArgument, match="is no empty directory"):
        await backup(source, tmp_path / "b")
    assert ["a", "b"] == names_in(tmp_path)


async def test_what_comes_there_meanwhile(source, tmp_path):
    """Something that appears at the target while the copy is made stays, and nothing lies beside it."""

    def appear(_done, _total):
        (tmp_path / "b" / "x").mkdir(parents=True, exist_ok=True)

    with pytest.raises(StoreError):
        await asyncio.to_thread(module.copy, source, tmp_path / "b", appear)
    assert ["a", "b"] == names_in(tmp_path)
    assert ["x"] == names_in(tmp_path / "b")


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir, lambda path: path.write_text("x")])
async def test_nothing_to_copy(make, tmp_path):
    """What is no session's directory is refused, and nothing is made there."""
    make(tmp_path / "a")
    before = names_in(tmp_path)

    with pytest.raises(StoreError, match="is no session's directory"):
        await backup(tmp_path / "a", tmp_path / "b")
    assert before == names_in(tmp_path)


async def test_no_copy_within_the_store(source):
    """A copy in the database's own directory would be taken for a part of it."""
    with pytest.raises(StoreError, match="session's own data"):
        await backup(source, source / "journal" / "copy")
    assert ["FORMAT", "cache.db", "cache.db-shm", "cache.db-wal"] == names_in(source / "journal")


async def test_a_damaged_store_gives_no_copy(tmp_path):
    """Pages that are not what was written are noticed before the copy gets its name."""
    storage = Storage.open(tmp_path / "a" / "journal")
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
async def test_a_full_disk_leaves_nothing(size, source, tmp_path):
    """However soon there is no room, it is said so, and nothing of the copy is left."""
    command = [sys.executable, "-c", FULL, str(source), str(tmp_path / "b"), str(size)]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, env=ENVIRONMENT, check=False
    )

    assert ("full\n", "") == (done.stdout, done.stderr)
    assert ["a"] == names_in(tmp_path)


@pytest.mark.parametrize("call", ["fsync", "open", "write"])
async def test_any_failure_leaves_nothing(call, source, tmp_path, monkeypatch):
    """Whichever call fails, there is a whole copy or none, and nothing lies beside it."""
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
                await asyncio.to_thread(module.copy, source, tmp_path / "b", lambda *_: None)
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


async def test_a_cancelled_copy_leaves_nothing(source, tmp_path, monkeypatch):
    """Whoever is cancelled while it copies waits until nothing is left of it."""
    monkeypatch.setattr(module, "_PAGES", 1)
    monkeypatch.setattr(module, "_TOLD_EVERY", 0.0)
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    tell_loop = loop.call_soon_threadsafe
    told = []

    def cancel(done, total):
        told.append((done, total))
        task.cancel()

    def patient(callback, *arguments):
        """Go on in the copy's thread when the loop has been told."""
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


async def test_progress_is_told_in_the_loop(source, tmp_path):
    """The last that is told is that all pages are copied."""
    told = []
    loop = asyncio.get_running_loop()

    def tell(done, total):
        assert loop is asyncio.get_running_loop()
        told.append((done, total))

    await backup(source, tmp_path / "b", progress=tell)
    await asyncio.sleep(0)

    assert told[-1][0] == told[-1][1] > ROWS / 10


async def test_a_store_that_cannot_be_read(source, tmp_path, monkeypatch):
    """Where another process keeps everybody out, that is said after a while."""
    storage = Storage.open(tmp_path / "c" / "journal")
    await storage.close()
    monkeypatch.setattr(module, "_WAIT", 0.1)
    other = sqlite3.connect(tmp_path / "c" / "journal" / "cache.db", isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(StoreBusy):
            await backup(tmp_path / "c", tmp_path / "b")
    finally:
        other.close()
    assert ["a", "c"] == names_in(tmp_path)


async def test_what_a_killed_process_left_is_removed(source, tmp_path):
    """A copy that was killed half-way is removed by the next one."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from mama_structs.storage.backup import copy\n"
        "copy(Path(sys.argv[1]), Path(sys.argv[2]), lambda *_: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "b")]
    done = await asyncio.to_thread(subprocess.run, command, env=ENVIRONMENT, check=False)
    left = names_in(tmp_path)
    await backup(source, tmp_path / "b")

    assert -signal.SIGKILL == done.returncode
    assert 2 == len(left)
    assert ["a", "b"] == names_in(tmp_path)
