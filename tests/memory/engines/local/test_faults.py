"""Memories under failing disks, files, clocks and embedders."""

# The tests use blocking calls to wait for child processes.
# ruff: noqa: ASYNC221

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import random
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import SMALL, OpenedDirectory, PlainEngines

import mama_structs
from mama_structs import Session, admin
from mama_structs.errors import EmbedderMismatch, MamaStructsError, MemoryNotFound, StoreBusy, StoreError, StoreFull
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.engines.local import engine as engine_module
from mama_structs.memory.engines.local.change_watermark import ChangeWatermark
from mama_structs.memory.engines.local.views import vector_store as rows_module
from mama_structs.memory.engines.local.views import view_set as indexes_module
from mama_structs.memory.engines.local.views.snapshots import SnapshotStore
from mama_structs.memory.types import codec
from mama_structs.settings import MemorySettings, Settings

SRC = str(Path(mama_structs.__file__).parents[1])
TESTS = str(Path(__file__).parents[3] / "support")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join((SRC, TESTS)),
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
}
OTHER_EMBEDDER = HashEmbedder(dimensions=128)
IN_FILES = pytest.mark.of_the_directory("what goes wrong is of its journal, its views or its disk")


@pytest.fixture
def quick_path(tmp_path):
    """A directory in memory if the system has one, because some tests create many stores."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


@pytest.fixture
def always_snapshots(monkeypatch):
    """Write a snapshot at every close."""
    monkeypatch.setattr(engine_module, "SNAPSHOT_MIN_CHANGES", 1)


@contextlib.asynccontextmanager
async def opened(path, namespace="default", **options):
    """Open a directory, yield it with the memories of a namespace, and close it."""
    place = OpenedDirectory.open(path, **options)
    try:
        yield place, await place.memories(namespace)
    finally:
        await place.close()


@contextlib.contextmanager
def rows_of(path):
    """Yield a connection to the journal's database that bypasses the engine."""
    with closing(sqlite3.connect(path / "journal" / "cache.db")) as connection, connection:
        yield connection


async def filled(memories, count=12):
    """Save decisions that supersede one another, and context memories on the same topic."""
    saved = [await memories.save_decision("number 0 of the login", topic="auth", reasoning="why")]
    for number in range(1, count):
        if number % 3:
            saved.append(await memories.save_context(f"note {number} about the login", topic="auth"))
        else:
            saved.append(await memories.supersede(saved[-3].id, f"number {number} of the login", reasoning="because"))
    return saved


async def contents(memories):
    """Return all readable data for comparison."""
    found = await memories.list(limit=1000)
    links = {memory.id: await memories.links(memory.id) for memory in found}
    evidence = {memory.id: await memories.evidence(memory.id) for memory in found}
    kept = await memories._engine.read(lambda reader: reader._rows.keys(reader._row_keys.contents))
    return found, links, evidence, kept


# Failing statements


class Plan:
    """Counts SQL statements, and makes one statement fail, before or after its execution."""

    def __init__(self):
        self.at = 0
        self.after = False
        self.count = 0
        self.failed = ""
        self.code = sqlite3.SQLITE_IOERR

    def fail(self, statement):
        self.failed = statement.split()[0]
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


HANDLES = {"ref:x": ("ref:x@1", "the report"), "ref:y": ("ref:y@1", "the log")}
STEPS = [
    lambda store, ids: store.save_decision("use JWT for the login", topic="t", reasoning="quick", evidence=["ref:x"]),
    lambda store, ids: store.supersede(
        ids[0], "use sessions for the login", reasoning="safe", evidence=["ref:x", "ref:y"]
    ),
    lambda store, ids: store.save_checkpoint("moved the login", implements=[ids[1]]),
    lambda store, ids: store.link(ids[2], ids[0], "refines"),
    lambda store, ids: store.set_outcome(ids[0], "FAILED", reason="tokens leak"),
    lambda store, ids: store.search("login"),
    lambda store, ids: store.traverse(ids[0]),
    lambda store, ids: store.delete(ids[1]),
]


@IN_FILES
@pytest.mark.parametrize(("after", "code"), [(False, sqlite3.SQLITE_IOERR), (True, sqlite3.SQLITE_FULL)])
async def test_call_is_atomic_when_any_statement_fails(quick_path, plan, after, code):
    """If the N-th statement fails, a typed error is raised, nothing changes, and a retry works."""
    plan.after, plan.code = after, code
    failures = 0
    async with opened(quick_path, wait=1, find_content=HANDLES.get) as (place, store):
        watcher = OpenedDirectory.open(quick_path, wait=1)
        others = await watcher.memories()
        ids = []
        for step in STEPS:
            for number in range(1, 200):
                before = await contents(store)
                plan.at, plan.count = number, 0
                try:
                    await step(store, ids)
                except StoreError:
                    failures += 1
                    plan.at = 0
                    now = await contents(store)
                    assert now == await contents(others)
                    # If COMMIT fails after its execution, the whole change is stored.
                    if (plan.failed, after) != ("COMMIT", True):
                        assert before == now
                    elif before != now:
                        break
                else:
                    plan.at = 0
                    break
            ids = [memory.id for memory in reversed(await store.list(limit=100))]
            assert await contents(store) == await contents(others)
        assert [] == await place.findings()
        assert [] == await watcher.findings()
        await watcher.close()

    assert failures > 40


@IN_FILES
@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL])
async def test_engine_opens_on_retry_after_failed_statement(quick_path, plan, always_snapshots, code):
    """After a failure at any statement while views are loaded or updated, the next call sees everything."""
    plan.code = code
    async with opened(quick_path / "a") as (_, store):
        await filled(store)
        expected = await store.list(limit=100)
    async with opened(quick_path / "a", wait=1) as (place, _), opened(quick_path / "a") as (_, writer):
        for number in range(1, 100):
            plan.at, plan.count = number, 0
            try:
                store = await place.memories()
                found = await store.list(limit=100)
            except StoreError:
                plan.at = 0
                assert expected == await (await place.memories()).list(limit=100)
            else:
                assert expected == found
                if plan.count < number:
                    break
            plan.at = 0
            # Make changes with the second engine, which the first engine must process in its next call.
            memory = await writer.save_context(f"more {number} of the login")
            await writer.set_outcome(expected[-1].id, "PARTIAL")
            if number % 3 == 0:
                await writer.delete(memory.id)
            expected = await writer.list(limit=100)
        plan.at = 0
        assert await contents(writer) == await contents(await place.memories())
        assert [] == await place.findings()

    assert number > 5


# Disks

FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from mama_structs.errors import StoreFull
from memory_helpers import OpenedDirectory

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    place = OpenedDirectory.open(Path(sys.argv[1]))
    store = await place.memories()
    early = await store.save_context("early")
    sys.dont_write_bytecode = True  # as in test_backup.py
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    results = await asyncio.gather(
        store.save_context("small"), store.save_context("large " + "x " * 450_000), store.save_context("late"),
        return_exceptions=True,
    )
    assert [False, True, False] == [isinstance(result, StoreFull) for result in results], results
    full = 0
    for number in range(2000):
        try:
            await store.save_context(f"more {number} " + "y " * 5000)
        except StoreFull:
            full += 1
            if full == 3:
                break
    assert full == 3
    count = await store.count()
    assert count == 3 + number - 2, (count, number)
    assert (await store.search("early"))[0].memory == early
    assert [] == await place.findings()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.save_context("at last")
    assert count + 1 == await store.count()
    assert [] == await place.findings()
    await place.close()

asyncio.run(main())
"""


@IN_FILES
@pytest.mark.skipif(sys.platform == "win32", reason="no file-size limits")
def test_file_size_limit_acts_like_full_disk(tmp_path):
    """Only writes without space fail, reads continue, and with enough space everything works again."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env=ENVIRONMENT,
    )

    assert 0 == done.returncode, done.stderr


@pytest.fixture
def small_disk(tmp_path):
    directory = tmp_path / "small"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(directory)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user cannot mount a small file system")
    yield directory
    # Unmount lazily, because errors in the captured log keep files open.
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


@IN_FILES
async def test_full_disk_loses_no_memory_and_no_view(small_disk, always_snapshots):
    """Saves and snapshots fail on a full disk, but no acknowledged write is lost."""
    async with opened(small_disk, wait=1, settings=MemorySettings(snapshot_every=5)) as (place, store):
        saved = await filled(store)
        with (small_disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while ballast.write(bytes(4096)):
                pass
        failed = 0
        for number in range(30):
            try:
                saved.append(await store.save_context(f"more {number} " + "z " * 20_000))
            except StoreFull:
                failed += 1
        assert failed
        assert not await store._engine.snapshot()
        assert {memory.id for memory in saved} == {memory.id for memory in (await contents(store))[0]}
        assert [] == await place.findings()
    (small_disk / "ballast").unlink()
    async with opened(small_disk, wait=1) as (place, store):
        assert len(saved) == await store.count()
        await store.save_context("at last")
        assert await store._engine.snapshot()
        assert [] == await place.findings()


@IN_FILES
async def test_save_waits_for_stuck_writer_and_reports_it(tmp_path):
    """
    While another process holds a transaction, saves fail as busy and searches work.

    Later everything works.
    """
    async with opened(tmp_path) as (_, store):
        await store.save_context("the login")
    async with opened(tmp_path, wait=0.2) as (place, store):
        with closing(sqlite3.connect(tmp_path / "journal" / "cache.db", isolation_level=None)) as stuck:
            stuck.execute("BEGIN IMMEDIATE")
            results = await asyncio.gather(
                *(store.save_context(f"note {number}") for number in range(20)), return_exceptions=True
            )
            assert {StoreBusy} == {type(result) for result in results}
            assert 1 == len(await store.search("login"))
            stuck.execute("ROLLBACK")
        await store.save_context("after that")

        assert 2 == await store.count()
        assert [] == await place.findings()


TEMPORARY = Path(tempfile.gettempdir()).resolve()
READ_ONLY = """
import asyncio, os, sys
from mama_structs import HashEmbedder, Session
from mama_structs.errors import StoreReadOnly
async def load():
    # What a session loads when it opens: nobody else may be allowed to read the interpreter's own files.
    async with Session.open(embedder=HashEmbedder(dimensions=64)) as session:
        await session.memories.save("a")
        await session.memories.search("a")
asyncio.run(load())
import mama_structs.refs.conversations.conversation_log
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
async def main():
    async with Session.open(sys.argv[1], embedder=HashEmbedder(dimensions=64)) as session:
        print([hit.content for hit in await session.memories.search("login")])
        try:
            await session.memories.save("more")
        except StoreReadOnly as error:
            assert sys.argv[1] in str(error)
            print("read-only")
asyncio.run(main())
"""


@IN_FILES
async def test_unwritable_directory_is_opened_for_reading(tmp_path):
    """A search works, and the error of a save contains the directory."""
    directory = tmp_path / "agent.mama"
    async with opened(directory) as (_, store):
        await store.save_context("the login")
    # Change only directories that pytest made for this user, never the system's own directory.
    above = {one: one.stat().st_mode for one in tmp_path.parents if TEMPORARY in one.parents}
    for one in above:
        one.chmod(0o711)
    for one in (*directory.rglob("*"), directory, tmp_path):
        one.chmod(0o555 if one.is_dir() else 0o444)
    try:
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(directory)], check=False, capture_output=True, text=True, timeout=600,
            env={**ENVIRONMENT, "TMPDIR": "/tmp"},
        )  # fmt: skip
    finally:
        for one in (tmp_path, directory, *directory.rglob("*")):
            one.chmod(0o700 if one.is_dir() else 0o600)
        for one, mode in above.items():
            one.chmod(stat.S_IMODE(mode))

    assert "['the login']\nread-only\n" == done.stdout, done.stderr


# Views


async def views_of(path, **options):
    """Create a directory with two generations of snapshots, and return all its readable data."""
    async with opened(path, **options) as (_, store):
        await filled(store, 9)
    async with opened(path, **options) as (_, store):
        await store.delete((await store.list())[3].id)
        await filled(store, 6)
        expected = await contents(store)
    assert [file for file in (path / "views").rglob("*") if file.is_file()]
    return expected


DAMAGES = ["truncated", "flipped", "emptied", "gone", "foreign", "older"]


@IN_FILES
@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_snapshot_is_ignored(quick_path, always_snapshots, damage):
    """If any file of a snapshot is truncated, corrupted, emptied, deleted or swapped, all results stay the same."""
    chance = random.Random(DAMAGES.index(damage))
    expected = await views_of(quick_path / "whole")
    shutil.copytree(quick_path / "whole", quick_path / "older")
    async with opened(quick_path / "whole") as (_, store):
        await store.save_context("one more about the login")
        expected = await contents(store)
    async with opened(quick_path / "foreign") as (_, store):
        await filled(store, 30)
    (folder,) = (quick_path / "whole" / "views").iterdir()
    (foreign,) = (quick_path / "foreign" / "views").iterdir()
    (older,) = (quick_path / "older" / "views").iterdir()
    others = {"foreign": sorted(foreign.iterdir()), "older": sorted(older.iterdir())}
    for name in sorted(file.name for file in folder.iterdir() if file.is_file()):
        place = quick_path / "try"
        shutil.copytree(quick_path / "whole", place)
        file = place / "views" / folder.name / name
        data = bytearray(file.read_bytes())
        match damage:
            case "truncated":
                file.write_bytes(data[: len(data) // 2])
            case "flipped":
                for position in chance.sample(range(len(data)), min(3, len(data))):
                    data[position] ^= 1 << chance.randrange(8)
                file.write_bytes(data)
            case "emptied":
                file.write_bytes(b"")
            case "gone":
                file.unlink()
            case _:
                kind = name.partition("-")[0].partition(".")[0]
                like = [one for one in others[damage] if one.name.startswith(kind)]
                file.write_bytes(chance.choice(like or others[damage]).read_bytes())
        async with opened(place) as (directory, store):
            assert expected == await contents(store)
            # Only a watermark that belongs to another store is reported.
            is_told = damage == "foreign" and name == "last"
            assert (["lost"] if is_told else []) == [finding.kind for finding in await directory.findings()]
            hits = await store.search("one more about the login")
            assert "one more about the login" == hits[0].memory.content
        shutil.rmtree(place)


@IN_FILES
@pytest.mark.parametrize("name", ["foreign", "older"])
async def test_swapped_snapshot_directory_is_ignored(quick_path, always_snapshots, name):
    """Views of another namespace, another store or an older state are rebuilt or updated."""
    await views_of(quick_path / "whole")
    shutil.copytree(quick_path / "whole", quick_path / "older")
    async with opened(quick_path / "whole", "other") as (_, store):
        await filled(store, 20)
    async with opened(quick_path / "whole") as (_, store):
        await filled(store, 4)
        expected = await contents(store)
    folder = min((quick_path / "older" / "views").iterdir())
    target = quick_path / "whole" / "views" / folder.name
    source = folder if name == "older" else next(f for f in target.parent.iterdir() if f.name != folder.name)
    shutil.rmtree(target)
    shutil.copytree(source, target)

    async with opened(quick_path / "whole") as (place, store):
        assert expected == await contents(store)
        # The name of the directory identifies its store, so views of another store are reported as lost changes.
        assert ({"lost"} if name == "foreign" else set()) == {finding.kind for finding in await place.findings()}


TRUNCATED_VIEWS_SCRIPT = """
import asyncio, os, sys
from pathlib import Path
from memory_helpers import SMALL
from mama_structs import Session, admin
from mama_structs.settings import MemorySettings, Settings

SETTINGS = Settings(memory=MemorySettings(linking="off", exact_up_to=100))

async def main(directory, share):
    async with Session.open(directory, embedder=SMALL, settings=SETTINGS) as session:
        store = session.memories
        await store.save_many([{"type": "context", "content": f"note {number}"} for number in range(300)])
        assert await store._engine.snapshot()
    async with Session.open(directory, embedder=SMALL, settings=SETTINGS) as session:
        store = session.memories
        await store.save_many([{"type": "context", "content": f"letter {number}"} for number in range(20)])
        assert await store._engine.snapshot()
        for path in Path(directory, "views").rglob("*"):
            if path.is_file():
                os.truncate(path, int(path.stat().st_size * share))
        assert "note 217" == (await store.search("note 217", limit=1))[0].memory.content
        new = await store.save_decision("note 300 is about the login", topic="note", reasoning="why")
        assert new == (await store.search("note 300 is about the login", limit=1))[0].memory
        await store._engine.snapshot()
        found = [finding for finding in (await admin.check(store)).issues if finding.severity == "error"]
        assert [] == found, found
    async with Session.open(directory, embedder=SMALL, settings=SETTINGS) as session:
        assert 321 == await session.memories.count()
        assert "note 217" == (await session.memories.search("note 217", limit=1))[0].memory.content
    print("lives")

asyncio.run(main(sys.argv[1], float(sys.argv[2])))
"""


@IN_FILES
@pytest.mark.parametrize("share", ["0", "0.5"])
def test_truncated_view_files_in_use_do_no_harm(quick_path, share):
    """If all view files shrink under an open session, it still searches, saves, snapshots, closes and opens again."""
    done = subprocess.run(
        [sys.executable, "-c", TRUNCATED_VIEWS_SCRIPT, str(quick_path / "agent"), share],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env=ENVIRONMENT,
    )

    assert (0, "lives\n") == (done.returncode, done.stdout), done.stderr


@IN_FILES
async def test_deleted_views_are_rebuilt(quick_path, always_snapshots):
    """
    Views may be deleted while the store is closed or open.

    The next snapshot is written again.
    """
    expected = await views_of(quick_path)
    shutil.rmtree(quick_path / "views")
    async with opened(quick_path) as (place, store):
        assert expected == await contents(store)
        shutil.rmtree(quick_path / "views", ignore_errors=True)
        await store.save_context("one more")
        assert await store._engine.snapshot()
        shutil.rmtree(quick_path / "views")
        memory = await store.save_context("and another one about the login")
        assert memory == (await store.search("and another one about the login"))[0].memory
        assert [] == await place.findings()
        await admin.rebuild(store)
        assert [] == await place.findings()


@IN_FILES
async def test_words_of_other_analysis_version_are_rebuilt(quick_path, always_snapshots, monkeypatch):
    """A snapshot of an older analysis version does not affect search results."""
    with monkeypatch.context() as older:
        older.setattr(indexes_module, "ANALYSIS_VERSION", 1)
        older.setattr(codec, "weighted_terms", lambda text: {text.lower(): 1.0})
        older.setattr(codec, "question_percentage", lambda _: 77)
        async with opened(quick_path) as (_, store):
            saved = await store.save_context("A lighthouse keeper.")
            await store.save_context("A shield wall.")
    async with opened(quick_path) as (_, store):
        (first, *_) = await store.search("lighthouse")
        facts = await store._engine.read(lambda reader: reader.facts(np.array([0, 1])))

    assert saved.id == first.memory.id
    assert first.signals["words"] > 0
    assert [0, 0] == facts.asking.tolist()


@IN_FILES
async def test_file_in_place_of_views_directory_is_tolerated(quick_path, always_snapshots):
    """Memories work even if views cannot be written."""
    quick_path.joinpath("views").write_text("no folder")
    async with opened(quick_path) as (place, store):
        saved = await filled(store)
        assert not await store._engine.snapshot()
        assert [] == await place.findings()
    async with opened(quick_path) as (_, store):
        assert len(saved) == await store.count()


@IN_FILES
async def test_restored_backup_ignores_newer_views(quick_path, always_snapshots):
    """If an old journal is written to until the change numbers match newer views, the views are still not used."""
    place = quick_path / "agent"
    async with opened(place) as (_, store):
        await filled(store, 5)
    shutil.copytree(place / "journal", quick_path / "backup")
    async with opened(place) as (_, store):
        await filled(store, 6)
        await store.delete((await store.list())[0].id)
    shutil.rmtree(place / "journal")
    shutil.copytree(quick_path / "backup", place / "journal")
    views = quick_path / "views"
    shutil.move(place / "views", views)
    async with opened(place) as (_, store):
        for number in range(6):
            await store.save_insight(f"another history, {number}")
        await store.delete((await store.list())[0].id)
        expected = await contents(store)
    shutil.rmtree(place / "views")
    shutil.move(views, place / "views")

    async with opened(place) as (directory, store):
        assert expected == await contents(store)
        assert [] == await directory.findings()


# Changes that the views contain and the journal lacks


def went_back(findings):
    return [finding.message for finding in findings if finding.kind == "lost"]


KILLED = """
import asyncio, os, signal, sys
from memory_helpers import SMALL
from mama_structs import Session, admin

async def main(directory):
    session = await Session.open(directory, embedder=SMALL)
    for number in range(int(sys.argv[2])):
        await session.memories.save_context(f"note {number} about the login")
    if sys.argv[3] == "snapshot":
        assert await session.memories._engine.snapshot()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(sys.argv[1]))
"""


@IN_FILES
@pytest.mark.parametrize("known_by", ["witness", "snapshot"])
async def test_lost_write_ahead_log_is_reported(quick_path, known_by, caplog):
    """Opening the store and every check report both change numbers until a rebuild, regardless of later saves."""
    place = quick_path / "agent"
    async with opened(place) as (_, store):
        await filled(store, 6)
        first = await store._engine.read(lambda reader: reader.change)
    command = [sys.executable, "-c", KILLED, str(place), "10", known_by]
    assert -9 == subprocess.run(command, check=False, env=ENVIRONMENT, timeout=600).returncode
    if known_by == "snapshot":
        (witness,) = (place / "views").glob("*/last")
        witness.unlink()
    for name in ("cache.db-wal", "cache.db-shm"):
        (place / "journal" / name).unlink()

    caplog.clear()
    async with opened(place) as (directory, store):
        assert 6 == await store.count()
        (message,) = went_back(await directory.findings())
        numbers = [int(word) for word in re.findall("number ([0-9]+)", message)]
        assert numbers[0] >= first + 10
        assert first == numbers[1]
        assert message in caplog.text
        for number in range(30):
            await store.save_context(f"later {number}")
        assert await store._engine.snapshot()
        assert await store._engine.snapshot()
    async with opened(place) as (directory, store):
        assert [message] == went_back(await directory.findings())
        assert [] == await admin.rebuild(store)
        assert [] == await directory.findings()
        await store.save_context("one more")
    caplog.clear()
    async with opened(place) as (directory, store):
        assert [] == await directory.findings()
        assert 37 == await store.count()
    assert "journal ended" not in caplog.text


@IN_FILES
async def test_backup_under_newer_views_is_reported(tmp_path):
    """A backup in its own directory has no finding. Its journal alone in the original directory has one."""
    async with Session.open(tmp_path / "a", embedder=SMALL) as session:
        await filled(session.memories, 6)
        await admin.backup(session, tmp_path / "b")
        await filled(session.memories, 6)
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    async with Session.open(tmp_path / "c", embedder=SMALL) as session:
        assert [] == went_back((await admin.check(session)).issues)
    shutil.rmtree(tmp_path / "a" / "journal")
    shutil.copytree(tmp_path / "b" / "journal", tmp_path / "a" / "journal")
    async with Session.open(tmp_path / "a", embedder=SMALL) as session:
        assert 1 == len(went_back((await admin.check(session)).issues))
        # Re-embedding restores no lost memories, so the finding stays.
        await admin.reembed(session.memories, OTHER_EMBEDDER)
        assert 1 == len(went_back((await admin.check(session)).issues))
        await admin.rebuild(session.memories)
        assert [] == went_back((await admin.check(session)).issues)


@IN_FILES
async def test_journal_rollback_under_open_session_is_reported(tmp_path):
    """Rows that vanish are removed from the views as well, and check() reports it."""
    async with opened(tmp_path) as (place, store):
        saved = [await store.save_context(f"note {number}") for number in range(6)]
        before = await store._engine.read(lambda reader: reader.change)
        with rows_of(tmp_path) as connection:
            connection.execute("DELETE FROM Cache WHERE key LIKE '%/m/%6' OR key LIKE '%/v/%6'")
        assert before == 6
        assert 5 == await store.count()
        assert saved[5].id not in {hit.memory.id for hit in await store.search("note 5", limit=9)}
        await store.save_context("another sixth")
        assert 1 == len(went_back(await place.findings()))
        assert 6 == await store.count()


async def test_other_processes_and_reembed_raise_no_false_alarm(tmp_path):
    """Opening while others write or re-embed reports no lost changes."""
    places = [OpenedDirectory.open(tmp_path / "a") for _ in range(2)]
    stores = [await place.memories() for place in places]
    for number in range(12):
        await stores[number % 2].save_context(f"note {number}")
        assert [] == went_back((await admin.check(stores[(number + 1) % 2])).issues)
    for place in places:
        await place.close()
    async with Session.open(tmp_path / "a", embedder=SMALL) as session:
        await admin.reembed(session.memories, OTHER_EMBEDDER)
        assert [] == went_back((await admin.check(session)).issues)
    async with Session.open(tmp_path / "a", embedder=OTHER_EMBEDDER) as session:
        await admin.reembed(session.memories, SMALL)
        await session.memories.save_context("one more")
        assert [] == went_back((await admin.check(session)).issues)


@IN_FILES
@pytest.mark.parametrize("other", ["nothing", "one with less", "one with more"])
async def test_journal_of_other_store_is_reported(tmp_path, other, caplog):
    """Opening the store and every check report the other journal until a rebuild accepts it."""
    ends = {"nothing": ["0"], "one with less": ["1"], "one with more": ["9"]}[other]
    for name, count in (("a", 6), ("b", {"nothing": 0, "one with less": 0, "one with more": 9}[other])):
        async with Session.open(tmp_path / name, embedder=SMALL) as session:
            await filled(session.memories, count)
    shutil.rmtree(tmp_path / "a" / "journal")
    if other != "nothing":
        shutil.copytree(tmp_path / "b" / "journal", tmp_path / "a" / "journal")

    caplog.clear()
    async with Session.open(tmp_path / "a", embedder=SMALL) as session:
        (message,) = went_back((await admin.check(session)).issues)
        assert message in caplog.text
        assert ["6", *ends] == re.findall("number ([0-9]+)", message)
        await session.memories.save_context("one more")
        assert 1 == len(went_back((await admin.check(session)).issues))
    async with Session.open(tmp_path / "a", embedder=SMALL) as session:
        assert 1 == len(went_back((await admin.check(session)).issues))
        await admin.rebuild(session.memories)
        assert [] == went_back((await admin.check(session)).issues)
    async with Session.open(tmp_path / "a", embedder=SMALL) as session:
        assert [] == went_back((await admin.check(session)).issues)


def witness_of(folder, history):
    witness = ChangeWatermark(folder)
    witness.use(history)
    return witness


@given(data=st.binary(max_size=200) | st.integers(0, 63))
def test_torn_watermark_file_is_treated_as_unknown(data):
    """For any file contents, the watermark returns a recorded value or nothing."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory, "views", "one")
        witness = witness_of(folder, "identity")
        assert 0 == witness.last
        witness.record(7)
        witness.record(5)
        witness.close()
        assert (7, 0) == (witness_of(folder, "identity").last, witness_of(folder, "other").last)
        content = bytearray((folder / "last").read_bytes())
        if isinstance(data, int):
            content[data] ^= 1
        (folder / "last").write_bytes(content if isinstance(data, int) else data)
        again = witness_of(folder, "identity")
        assert 0 == again.last
        assert again.lost is None
        again.record(9)
        assert 9 == again.last


@IN_FILES
async def test_removed_directory_is_not_created_again(tmp_path, caplog):
    """A rebuild reports the problem, closing works, and neither of them creates files."""
    place = OpenedDirectory.open(tmp_path / "agent", settings=MemorySettings(snapshot_every=5))
    store = await place.memories()
    await filled(store, 12)
    for _ in range(2):
        # The first call waits for the last write, and the second one for the snapshot after that write.
        await store.count()
    shutil.rmtree(tmp_path / "agent")

    with pytest.raises(StoreError):
        await admin.rebuild(store)
    with pytest.raises(StoreError):
        await store._engine.snapshot()
    assert [] == list(tmp_path.iterdir())
    with contextlib.suppress(StoreError):
        await place.close()
    assert [] == list(tmp_path.iterdir())


@IN_FILES
async def test_snapshot_bytes_grow_linearly_with_saves(tmp_path, monkeypatch):
    """A snapshot contains all memories, so snapshots are written less often as the store grows."""
    written, write = [], SnapshotStore.write
    monkeypatch.setattr(
        SnapshotStore, "write", lambda self, *given, **more: written.append(given[0]) or write(self, *given, **more)
    )
    async with opened(tmp_path / "agent", settings=MemorySettings(snapshot_every=1, linking="off")) as (_, store):
        for number in range(150):
            await store.save_context(f"number {number}")
        await store.count()

    assert 8 < len(written) < 60
    assert sum(written) <= 10 * 150


def test_snapshot_creates_only_view_directories(tmp_path):
    """Missing parent directories of the store are not created."""
    store = SnapshotStore(tmp_path / "agent" / "views" / "one", identity="x")

    assert store.write(1, {}) is None
    witness_of(tmp_path / "agent" / "views" / "one", "x").record(1)
    assert [] == list(tmp_path.iterdir())
    (tmp_path / "agent").mkdir()
    assert store.write(1, {}) is not None


# A rebuild with concurrent operations


@IN_FILES
async def test_search_is_answered_during_rebuild(tmp_path):
    """A search during the rebuild of 3,000 memories is answered before its end, from all memories."""
    async with opened(tmp_path, settings=MemorySettings(linking="off")) as (place, store):
        await store.save_many([{"type": "context", "content": f"note {number}"} for number in range(3_000)])
        order, begun = [], asyncio.Event()
        old = store._engine._views

        async def rebuild():
            await admin.rebuild(store, progress=lambda _done, _total: begun.set())
            order.append("rebuilt")

        async def search(text):
            assert text == (await store.search(text, limit=1))[0].memory.content
            order.append(text)

        async def search_the_old(text):
            await search(text)
            assert old is store._engine._views

        rebuilding = asyncio.create_task(rebuild())
        await begun.wait()
        for text in ("note 2999", "note 7"):
            await search_the_old(text)
        await rebuilding
        assert old is not store._engine._views
        assert ["note 2999", "note 7", "rebuilt"] == order
        await search("note 2999")
        assert [] == await place.findings()


@IN_FILES
@pytest.mark.parametrize("damage", [lambda path: os.truncate(path, 100), lambda path: path.write_bytes(b"x" * 9_000)])
async def test_damaged_vector_file_is_rebuilt_under_open_session(tmp_path, monkeypatch, caplog, damage):
    """The next reads, searches and saves are correct, and one warning is logged."""
    for name in ("BLOCK_ROWS", "MIN_ROWS_ON_DISK", "MIN_BLOCK_ROWS"):
        monkeypatch.setattr(rows_module, name, 20)
    async with opened(tmp_path, settings=MemorySettings(linking="off", snapshot_every=30)) as (place, store):
        await store.save_many([{"type": "context", "content": f"note {number}"} for number in range(40)])
        calls = (lambda: store.search("note 7", limit=1), lambda: store.save_context("note 7"))
        for damaged, call in enumerate(calls, 1):
            assert await store._engine.snapshot()
            for path in (tmp_path / "views").glob("*/vectors-*.npy"):
                damage(path)
            await call()
            assert damaged == caplog.text.count("the views of the memories are rebuilt\n")
            assert "note 7" == (await store.search("note 7", limit=1))[0].memory.content
        assert 41 == await store.count()
        assert [] == await place.findings()


@IN_FILES
@pytest.mark.parametrize("call", ["save", "adopt"])
async def test_damaged_vector_file_does_not_block_updates_of_others(tmp_path, monkeypatch, call):
    """The update from another process detects the damage and continues with rebuilt views."""
    for name in ("BLOCK_ROWS", "MIN_ROWS_ON_DISK", "MIN_BLOCK_ROWS"):
        monkeypatch.setattr(rows_module, name, 20)
    options = {"settings": MemorySettings(linking="off")}
    async with opened(tmp_path, **options) as (place, store):
        one, two, *_ = await store.save_many([{"type": "context", "content": f"note {at}"} for at in range(40)])
        async with opened(tmp_path, **options) as (_, other):
            assert await store._engine.snapshot()
            await other.link(one.id, two.id, "belongs to")
        for path in (tmp_path / "views").glob("*/vectors-*.npy"):
            os.truncate(path, 100)
        if call == "save":
            async with asyncio.timeout(60):
                await store.save_context("note 40")
        else:
            assert await store._engine.adopt(store._engine.embedder)

        assert ["belongs to"] == [link.metadata.original_relationship for link in await store.links(one.id)]
        assert [] == await place.findings()


async def test_cancelled_rebuild_keeps_old_views(tmp_path):
    """After a cancellation at any step, searches use the old views, and no task remains."""
    async with opened(tmp_path, settings=MemorySettings(linking="off", exact_up_to=100)) as (place, store):
        await store.save_many([{"type": "context", "content": f"note {number}"} for number in range(900)])
        for steps in range(1, 6):
            told = []
            with pytest.raises(ZeroDivisionError):
                await admin.rebuild(store, progress=lambda *numbers: told.append(numbers) or 1 / (len(told) - steps))  # noqa: B023
            assert "note 77" == (await store.search("note 77", limit=1))[0].memory.content
        assert [] == await place.findings()


steps = st.lists(
    st.tuples(st.sampled_from(["save", "delete", "again", "link", "supersede", "outcome"]), st.integers(0, 99)),
    max_size=12,
)


@IN_FILES
@settings(max_examples=30)
@given(before=steps, meanwhile=st.lists(steps, max_size=8), is_other=st.booleans())
async def test_rebuild_with_concurrent_changes_yields_correct_views(before, meanwhile, is_other):
    """Memories are saved, deleted, restored, linked and superseded between two pages, in this or another process."""
    numbers = itertools.count()

    async def do(store, step, number):
        known = sorted(memory.id for memory in await store.list(limit=999))
        one = known[number % len(known)] if known else None
        match step if one else "save":
            case "save":
                await store.save_decision(
                    f"number {next(numbers)} of the login", topic=f"t{number % 3}", reasoning="why"
                )
            case "delete":
                await store.delete(one)
            case "again":
                memory, links = await store.get(one), await store.links(one)
                vectors = await store._engine.read(lambda reader: reader.vectors(reader.find(one)))
                await store.delete(one)

                def put(writer):
                    writer.put(memory, vectors=vectors)
                    for link in links:
                        if writer.find(link.from_id) is not None and writer.find(link.to_id) is not None:
                            writer.put_link(link)

                await store._engine.write(put)
            case "link" if len(known) > 1:
                await store.link(one, known[(number + 1) % len(known)], f"relates {number}")
            case "supersede" | "outcome":
                if (await store.get(one)).metadata.__class__.__name__ == "DecisionMetadata":
                    if step == "supersede":
                        await store.supersede(one, f"number {next(numbers)} of the login", reasoning="because")
                    else:
                        await store.set_outcome(one, "SUCCESS")

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr(engine_module, "REBUILD_PAGE_ROWS", 2)
        async with opened(Path(directory)) as (place, store), opened(Path(directory)) as (_, other):
            for number in range(5):
                await do(store, "save", number)
            for step, number in before:
                await do(store, step, number)
            engine, left = store._engine, list(meanwhile)
            some = engine._run_read

            async def between(look):
                if left:
                    patch.setattr(engine, "_run_read", some)
                    for step, number in left.pop():
                        await do(other if is_other else store, step, number)
                    patch.setattr(engine, "_run_read", between)
                return await some(look)

            patch.setattr(engine, "_run_read", between)
            assert [] == await admin.rebuild(store)
            patch.setattr(engine, "_run_read", some)
            assert [] == await place.findings()
            found = [await contents(each) for each in (store, other)]
            assert found[0] == found[1]


# Rows


class Trap:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path(self.path).touch, ())


KINDS = ["head", "m/0000000000000002", "v/%/0000000000000002", "c/%"]


@IN_FILES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_open", [False, True])
async def test_planted_pickle_is_rejected_and_never_executed(tmp_path, kind, is_open):
    """A pickle in place of a memory, vectors, a change or the head, as value or key, is reported as damage."""
    trap = tmp_path / "sprung"
    payload = pickle.dumps(Trap(str(trap)))
    path = tmp_path / "agent"
    async with opened(path) as (_, store):
        saved = await filled(store, 4)
        await store.set_outcome(saved[0].id, "SUCCESS")
    ids = [memory.id for memory in saved]

    async def look(place):
        store = await place.memories()
        for call in (
            store.count, store.list, store.relationships, store.stats,
            lambda: admin.rebuild(store), lambda: admin.prune(store),
            lambda: store.search("login"), lambda: store.get(ids[0]), lambda: store.links(ids[3]),
            lambda: store.save_context("new"), lambda: store.set_outcome(ids[0], "PARTIAL"), lambda: store.delete(ids[1]),
        ):  # fmt: skip
            with contextlib.suppress(MamaStructsError):
                await call()

    place = OpenedDirectory.open(path)
    if is_open:
        await place.memories()
    with rows_of(path) as rows:
        changed = rows.execute(
            "UPDATE Cache SET value = ?, mode = 4 WHERE key LIKE ?", (payload, f"memories/default/{kind}")
        )
        assert changed.rowcount
        columns = "store_time, access_time, access_count, tag, size, mode, filename"
        rows.execute(
            f"INSERT INTO Cache (key, raw, value, {columns}) VALUES (?, 0, ?, 0, 0, 0, NULL, 0, 4, NULL)",
            (payload, payload),
        )
    findings = [finding for finding in await place.storage.check() if finding.severity == "error"]
    with contextlib.suppress(MamaStructsError):
        await look(place)
    await place.close()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback((again := OpenedDirectory.open(path)).close)
        with contextlib.suppress(MamaStructsError):
            await look(again)

    assert len(findings) >= 2
    assert not trap.exists()


@IN_FILES
@pytest.mark.parametrize("key", ["m/zzz", "m/", "m/00000000000000gg", "c/x", "v/abc/1", "m/fffffffffffffffff"])
async def test_row_with_foreign_key_does_no_harm(tmp_path, key):
    """Rows of other programs cause only typed errors or findings."""
    async with opened(tmp_path) as (_, store):
        await filled(store, 4)
    with rows_of(tmp_path) as rows:
        rows.execute(
            "INSERT INTO Cache SELECT NULL, ?, raw, store_time, expire_time, access_time, access_count, tag, size, mode,"
            " filename, value FROM Cache WHERE key = 'memories/default/m/0000000000000001'",
            (f"memories/default/{key}",),
        )
    place = OpenedDirectory.open(tmp_path)
    try:
        with contextlib.suppress(MamaStructsError):
            store = await place.memories()
            for call in (
                store.count,
                lambda: admin.check(store),
                lambda: admin.rebuild(store),
                lambda: store.save_context("new"),
            ):
                with contextlib.suppress(MamaStructsError):
                    await call()
        assert [finding for finding in await place.storage.check() if finding.severity == "error"]
    finally:
        await place.close()


@IN_FILES
async def test_damaged_memory_is_skipped(tmp_path):
    """Other memories are read, changed and deleted, check() reports it, and its links cause no errors."""
    async with opened(tmp_path) as (_, store):
        first = await store.save_decision("one", topic="t", reasoning="")
        second = await store.supersede(first.id, "two", reasoning="")
        third = await store.supersede(second.id, "three", reasoning="")
    with rows_of(tmp_path) as rows:
        rows.execute("UPDATE Cache SET value = zeroblob(60) WHERE key LIKE '%m/0000000000000002'")
    async with opened(tmp_path) as (place, store):
        assert [third.id, first.id] == [memory.id for memory in await store.list()]
        assert {"damaged", "link"} == {finding.kind for finding in await place.findings()}
        with pytest.raises(MemoryNotFound):
            await store.get(second.id)
        assert [third.id] == [memory.id for memory in (await store.history(third.id)).memories]
        await store.set_outcome(third.id, "SUCCESS", reason="it holds")
        assert 1 == await store.delete(third.id)
        assert 1 == await store.delete(first.id)
        assert 0 == await store.count()


@IN_FILES
async def test_memory_damaged_while_open_raises_error_with_row(tmp_path):
    """Reading it raises. After a rebuild it is left out."""
    async with opened(tmp_path) as (_, store):
        memory = await store.save_context("the login")
        await store.save_context("something else")
        with rows_of(tmp_path) as rows:
            rows.execute("UPDATE Cache SET value = zeroblob(60) WHERE key LIKE '%m/0000000000000001'")
        with pytest.raises(StoreError, match="0000000000000001") as caught:
            await store.get(memory.id)
        assert "login" not in str(caught.value)
        (line,) = await admin.rebuild(store)
        assert "0000000000000001" in line
        with pytest.raises(MemoryNotFound):
            await store.get(memory.id)
        assert 1 == await store.count()


@IN_FILES
async def test_unreadable_change_row_makes_other_process_rebuild(tmp_path):
    """The other process does not miss the change."""
    async with opened(tmp_path) as (_, store), opened(tmp_path) as (_, other):
        saved = await filled(store, 6)
        assert 6 == await other.count()
        await store.delete(saved[1].id)
        with rows_of(tmp_path) as rows:
            assert rows.execute("UPDATE Cache SET value = zeroblob(50) WHERE key LIKE '%/c/%'").rowcount
        assert 5 == await other.count()
        assert [saved[0].id] == [m.id for m in await other.list(limit=100) if m.id == saved[0].id]


# Embedders


async def test_empty_store_accepts_embedder_of_first_save_only(tmp_path):
    """If two sessions open an empty directory with different embedders, the first save decides."""
    async with opened(tmp_path) as (_, store), opened(tmp_path, embedder=OTHER_EMBEDDER) as (_, other):
        assert 0 == await store.count() == await other.count()
        await other.save_context("the login")
        for call in (store.count, lambda: store.save_context("x"), lambda: store.search("login")):
            with pytest.raises(EmbedderMismatch):
                await call()
        assert 1 == await other.count()


async def test_other_session_raises_embedder_mismatch_after_reembed(tmp_path):
    """Every call of the session with the old embedder raises, and it saves nothing."""
    async with (
        Session.open(tmp_path, embedder=SMALL) as session,
        Session.open(tmp_path, embedder=SMALL) as other,
    ):
        memory = await session.memories.save_context("the login")
        assert 1 == await admin.reembed(session.memories, OTHER_EMBEDDER)
        for call in (
            other.memories.count,
            lambda: other.memories.save_context("x"),
            lambda: other.memories.search("login"),
            lambda: other.memories.similar("login"),
            lambda: other.memories.save_many([{"type": "context", "content": "x"}]),
        ):
            with pytest.raises(EmbedderMismatch):
                await call()
        assert [memory] == [hit.memory for hit in await session.memories.search("login")]


async def test_reembed_back_does_not_restore_deleted_vectors(tmp_path):
    """Embedders may be changed back and forth while memories are deleted."""
    async with opened(tmp_path) as (place, store):
        saved = await filled(store, 5)
        changes = {"gulls in the harbour": OTHER_EMBEDDER, "a locked drawer": SMALL, "lunch at noon": OTHER_EMBEDDER}
        for number, (text, embedder) in enumerate(changes.items()):
            await admin.reembed(store, embedder)
            await store.delete(saved[number].id)
            saved.append(await store.save_context(text))
            assert [] == await place.findings()
            assert saved[-1] == (await store.search(text))[0].memory
        assert len(saved) - 3 == await store.count()


# Clocks


@attrs.define
class Clock:
    now: float

    def __call__(self):
        return self.now


async def test_clock_jumps_lose_no_memory_and_no_link(tmp_path):
    """After jumps by years, times stay as recorded, order follows time, and links keep their strength."""
    clock = Clock(1_800_000_000.0)
    async with opened(tmp_path, clock=clock) as (place, store):
        saved = []
        for step in (0, -50 * 86400, 400 * 86400, -399 * 86400, 10, -1_700_000_000, 1_700_000_000):
            clock.now += step
            saved.append(
                await store.save_decision(f"use JWT for the login, {len(saved)}", topic="auth", reasoning="why")
            )
            assert datetime.fromtimestamp(clock.now, UTC) == saved[-1].created_at
        by_time = sorted(enumerate(saved), key=lambda one: (one[1].created_at, one[0]), reverse=True)
        assert [memory.id for _, memory in by_time] == [memory.id for memory in await store.list()]
        clock.now -= 500 * 86400
        for memory in saved:
            for link in await store.links(memory.id):
                assert 0 <= link.strength(datetime.fromtimestamp(clock.now, UTC)) <= link.confidence
            for reached in await store.traverse(memory.id):
                assert 0 <= reached.strength <= 1
        assert 7 == len(await store.search("login", limit=7))
        assert [] == await place.findings()


async def test_maintenance_is_due_weekly_despite_wrong_clock(tmp_path):
    """A clock that was wrong by years at the previous run does not postpone maintenance for years."""
    clock = Clock(1_800_000_000.0)
    async with opened(tmp_path, clock=clock) as (_, store):
        assert not (await admin.maintain(store)).due
        first = await store.save_context("the login")
        clock.now += 60
        await store.save_context("the weather of yesterday")
        assert ["close_in_time"] == [link.metadata.original_relationship for link in await store.links(first.id)]
        # A new store has no old links, so no maintenance is due.
        assert not (await admin.maintain(store)).due
        clock.now += 6 * 86400
        assert not (await admin.maintain(store)).due
        clock.now += 2 * 86400
        assert (True, 0) == attrs.astuple(await admin.maintain(store))[::-1]
        assert not (await admin.maintain(store)).due
        clock.now += 3650 * 86400
        # Ages are computed for the time of the previous run, so this run prunes nothing.
        assert (True, 0) == attrs.astuple(await admin.maintain(store))[::-1]
        clock.now -= 3600 * 86400
        assert (True, 1) == attrs.astuple(await admin.maintain(store))[::-1]
        assert not (await admin.maintain(store)).due
    async with opened(tmp_path, clock=clock) as (_, store):
        assert not (await admin.maintain(store)).due


DAYS = st.lists(st.integers(0, 120), min_size=1, max_size=6)


@settings(max_examples=25)
@given(before=DAYS, after=DAYS, wrong=st.integers(-15_000, 15_000))
async def test_single_wrong_clock_reading_prunes_no_young_link(before, after, wrong):
    """For any opening times and clock error, links that are young by the correct clock are kept."""
    clock = Clock(1_800_000_000.0)
    true, made = clock.now, {}
    with tempfile.TemporaryDirectory() as directory:
        async with opened(Path(directory), clock=clock, engines=PlainEngines()) as (_, store):
            for days, error in [*((each, 0) for each in before), (0, wrong), *((each, 0) for each in after)]:
                true += days * 86400
                clock.now = true + error * 86400
                await admin.maintain(store)
                for memory, at in made.items():
                    if true - at <= 30 * 86400:
                        assert "temporal" in {link.link_type for link in await store.links(memory)}
                if not error:
                    first = await store.save_context(f"the {len(made)}th weather")
                    made[first.id] = clock.now
                    clock.now = true = true + 60
                    await store.save_context("login")


async def test_time_before_1970_is_rejected(tmp_path):
    """A save at such a clock reading fails, unless the caller passes a time."""
    clock = Clock(-5.0)
    async with opened(tmp_path, clock=clock) as (_, store):
        with pytest.raises(MamaStructsError):
            await store.save_context("x")
        memory = await store.save_context("x", created_at=datetime(2020, 1, 1, tzinfo=UTC))
        assert timedelta(0) == memory.created_at - datetime(2020, 1, 1, tzinfo=UTC)


# Sessions


async def test_restored_backup_contains_all_memories_and_links(tmp_path):
    """A backup during concurrent saves is consistent."""
    async with Session.open(tmp_path / "a", embedder=SMALL, settings=Settings()) as session:
        await filled(session.memories, 6)
        saving = asyncio.gather(*(session.memories.save_context(f"note {number}") for number in range(40)))
        await admin.backup(session, tmp_path / "b")
        await saving
    async with Session.open(tmp_path / "b", embedder=SMALL) as session:
        assert 6 <= await session.memories.count() <= 46
        assert not [finding for finding in (await admin.check(session)).issues if finding.severity == "error"]
        vector = await session.memories._engine.read(lambda reader: reader.vectors(0))
        assert np.isfinite(vector).all()
