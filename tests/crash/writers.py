"""The writing processes of the crash test: single, forked, and with faults."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from crash.changes import Author, began_at, write
from crash.comparison import rows_of
from crash.model import ANY, plain, text_of
from crash.oracle import EMBEDDERS, SETTINGS, fork, opened

from mama_structs import admin
from mama_structs._internal.validation import is_url
from mama_structs.memory.types.model import from_milliseconds
from mama_structs.session.session import Session
from mama_structs.settings import DescriptorSettings
from mama_structs.testing.conformance.ack_log import AckLog, log_errors

NAMESPACES: Final = ("default", "alice", "bob")
ENDINGS: Final = ("close", "die", "stay", "again")
"""The actions of a parent while its forked children write: close its session, die, continue, or fork again."""

# The tables of v1.0 that a migration needs.
_OLD: Final = """
CREATE TABLE decisions (id TEXT PRIMARY KEY, topic TEXT, decision TEXT, reasoning TEXT, outcome TEXT,
  failure_reason TEXT, supersedes TEXT, superseded_by TEXT, confidence REAL, created_at INTEGER, updated_at INTEGER);
CREATE TABLE decision_edges (from_id TEXT, to_id TEXT, relationship TEXT, reason TEXT, weight REAL, created_at INTEGER);
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, applied_at INTEGER, description TEXT);
INSERT INTO schema_version (version) VALUES (4);
"""
_OLD_START: Final = 1_748_822_400_000
_TTL: Final = 0.01


@attrs.frozen
class Task:
    """
    Parameters of one writing process.

    Args:
        kind: ``"writer"``, ``"parent"``, ``"preload"``, ``"pool"`` or ``"keeper"``.
        store: The directory, or the server's address.
        book: The file to which acknowledged changes are logged.
        name: The prefix of the names of its texts.
        seed: The seed of its random decisions.
        changes: The number of changes of each of its writers.
        fault: ``"full"``, ``"failing"``, ``"interrupted"`` or ``""``; always ``""`` for a server.
        ending: A member of `ENDINGS`, for a parent.
        children: The number of forked children.
        alive: A file descriptor that is open as long as any process of this family is alive.

    """

    kind: str
    store: str
    book: str
    name: str
    seed: int
    alive: int
    changes: int = 20
    fault: str = ""
    ending: str = "stay"
    children: int = 2


def run(task: Task) -> None:
    """Execute a task in this process, and log its start and its end."""
    book = AckLog.open(Path(task.book), store=task.store)
    book.append("born", os.getpid(), task.kind)
    faulthandler.enable()
    chance = random.Random(task.seed)
    # The runner counts a process as crashed if its "done" line is missing and no kill was logged.
    with log_errors(book), faulty(task.fault, task.store, chance):
        _KINDS[task.kind](task, book, chance)
    book.append("done", os.getpid())


def _writer(task: Task, book: AckLog, chance: random.Random) -> None:
    async def main() -> None:
        space = chance.choice(NAMESPACES)
        async with opened(task.store, space, f"c-{task.name}") as session:
            tasks = chance.choice((1, 1, 3))
            own = [random.Random(chance.random()) for _ in range(tasks)]
            await asyncio.gather(
                *(write(session, book, f"{task.name}-{n}", own[n], task.changes // tasks + 1) for n in range(tasks))
            )
            if chance.random() < 0.3:
                _die(book)

    asyncio.run(main())


def _die(book: AckLog) -> None:
    book.append("dies", os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


@attrs.define
class _Parent:
    """A process that forks while it has the store open."""

    task: Task
    book: AckLog
    chance: random.Random
    runner: asyncio.Runner
    session: Session
    children: list[Any] = attrs.field(factory=list)
    forked: int = 0

    def child(self, changes: int, *, deep: bool = False) -> None:
        """Fork a process that opens its own session, with `os.fork` or `multiprocessing`."""
        self.forked += 1
        task = attrs.evolve(
            self.task,
            kind="writer",
            name=f"{self.task.name}-{'g' if deep else 'f'}{self.forked}",
            seed=self.chance.randrange(2**32),
            changes=changes,
            fault="",
        )
        self.book.append("forks", os.getpid())
        collect = self.chance.random() < 0.5

        def work() -> None:
            if collect:
                # Do not close the event loop in a child, because this would unregister the wake-ups of the parent's loop.
                self.session = None  # type: ignore[assignment]  # the parent's session is unusable here
                gc.collect()
            run(task)

        if self.chance.random() < 0.5:
            self.children.append(fork(work))
        else:
            process = multiprocessing.get_context("fork").Process(target=work)
            process.start()
            self.children.append(process)

    def wait(self) -> None:
        """Wait for all children, and log each child that a signal killed."""
        for child in self.children:
            if isinstance(child, int):
                pid, status = child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            else:
                child.join()
                pid, status = child.pid, child.exitcode
            if status < 0:
                self.book.append("ended", pid, -status)
        self.children.clear()

    def write(self, name: str, count: int) -> None:
        self.runner.run(write(self.session, self.book, f"{self.task.name}-{name}", self.chance, count))

    def begin(self, name: str, count: int) -> asyncio.Task[None]:
        """Start changes in the background, so that the next step runs while some are in progress."""
        writing = write(self.session, self.book, f"{self.task.name}-{name}", self.chance, count)
        task = self.runner.get_loop().create_task(writing)
        self.runner.run(asyncio.sleep(self.chance.uniform(0, 0.01)))
        return task

    def close(self) -> None:
        with log_errors(self.book):
            self.runner.run(self.session.close())
        self.book.append("closes", os.getpid())


def _parent(task: Task, book: AckLog, chance: random.Random) -> None:
    with _opened_parent(task, book, chance) as parent:
        parent.write("a", task.changes // 4)
        # In half of the runs, fork while changes are in progress.
        under_way = [parent.begin("b", 8)] if chance.random() < 0.5 else []
        for _ in range(task.children):
            parent.child(task.changes)
        parent.runner.run(_all(under_way))
        time.sleep(chance.uniform(0, 0.1))
        if task.ending == "again":
            under_way = [parent.begin("c", 8)]
            parent.child(task.changes, deep=True)
            parent.runner.run(_all(under_way))
        if task.ending == "die":
            parent.begin("d", 4)
            _die(book)
        if task.ending == "close":
            parent.close()
        else:
            parent.write("e", task.changes // 2)
        parent.wait()


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


@contextlib.contextmanager
def _opened_parent(task: Task, book: AckLog, chance: random.Random) -> Iterator[_Parent]:
    runner = asyncio.Runner()
    space = chance.choice(NAMESPACES)

    async def made() -> Session:
        return await Session.open(
            task.store, embedder=EMBEDDERS[0], namespace=space, conversation=f"c-{task.name}", settings=SETTINGS
        )

    parent = _Parent(task, book, chance, runner, runner.run(made()))
    try:
        yield parent
    finally:
        if parent.session is not None:
            parent.wait()
            parent.runner.run(parent.session.close())
            parent.runner.close()


def _preload(task: Task, book: AckLog, chance: random.Random) -> None:
    """
    Open the store before forking, as preloading servers do.

    Two more children are forked: one after the first children have ended, and one after that child has ended.
    """
    with _opened_parent(task, book, chance) as parent:
        for _ in range(task.children):
            parent.child(task.changes)
        for _ in range(2):
            parent.wait()
            parent.child(task.changes // 2)
        parent.write("z", 3)


def _pool(task: Task, book: AckLog, chance: random.Random) -> None:
    """Save while a process pool works and after it. The pool's workers never touch the session."""
    with _opened_parent(task, book, chance) as parent:
        for turn in range(2):
            under_way = [parent.begin(f"p{turn}", 6)]
            book.append("forks", os.getpid())
            with multiprocessing.get_context("fork").Pool(2, _collected, (task.alive,)) as pool:
                parent.runner.run(_all(under_way))
                if pool.map(len, ["a", "bc", "def"]) != [1, 2, 3]:
                    book.append("untyped", "a pool that cannot count")
                if chance.random() < 0.5:
                    pool.close()
                    pool.join()
            parent.write(f"q{turn}", task.changes // 2)


def _collected(alive: int) -> None:
    # Workers of a killed parent block forever, so they must not hold open the pipe on which the runner waits.
    os.close(alive)
    gc.collect()


def _keeper(task: Task, book: AckLog, chance: random.Random) -> None:
    """Run rare operations, such as backups, exports, re-embedding and a migration, while other processes write."""
    at, name = _StoreAndFiles(task.store, Path(task.book).parent), task.name
    # Skip the backup on a server, which is backed up with its own tools.
    chores = [one for one in _CHORES if one is not _back_up or not is_url(task.store)]

    async def main() -> None:
        for turn in range(2):
            for chore in chance.sample(chores, 2):
                with log_errors(book):
                    await chore(at, book, f"{name}-{turn}", chance)

    asyncio.run(main())


@attrs.frozen
class _StoreAndFiles:
    """The location of a store, and a directory for files outside of it."""

    store: str
    files: Path


async def _back_up(at: _StoreAndFiles, book: AckLog, tag: str, chance: random.Random) -> None:
    target = at.files / f"backup-{tag}"
    length = os.fstat(book.fd).st_size
    async with opened(at.store, chance.choice(NAMESPACES)) as session:
        await admin.backup(session, target)
    book.append("backup", str(target), length)


async def _copy(at: _StoreAndFiles, book: AckLog, tag: str, chance: random.Random) -> None:
    """Export a namespace and import the file into another one."""
    file, space = at.files / f"export-{tag}", f"copy-{chance.randrange(3)}-{tag}"
    async with opened(at.store, chance.choice(NAMESPACES)) as session:
        await admin.export_jsonl(session.memories, file)
    rows = rows_of(file.read_text("utf-8").splitlines())
    async with opened(at.store, space) as session:
        with Author(session, book, tag, chance).change(f"{tag}-copy", "import", rows=rows):
            await admin.import_jsonl(session.memories, file)
    file.unlink()


async def _expire_conversation(at: _StoreAndFiles, book: AckLog, tag: str, chance: random.Random) -> None:
    """Start a conversation, and let its TTL expire."""
    space, name = f"expiring-{tag}", f"c-{tag}"
    async with opened(at.store, space, name) as session:
        await write(session, book, f"{tag}-x", chance, 0, kinds=["ref", "ref"])
    settings = attrs.evolve(SETTINGS, descriptors=DescriptorSettings(conversation_ttl=_TTL))
    await asyncio.sleep(2 * _TTL)
    drop = f"{tag}-drop"
    book.append("begin", drop, space, "drop_conversation", began_at(), {"conversation": name})
    async with opened(at.store, space, settings=settings) as session:
        await admin.maintain(session)
    book.append("end", drop, {})


async def _embed_anew(at: _StoreAndFiles, book: AckLog, tag: str, chance: random.Random) -> None:
    async with opened(at.store, "kept") as session:
        await write(session, book, f"{tag}-k", chance, 5)
        other = next(one for one in EMBEDDERS if one.dimensions != session.memories.embedder.dimensions)
        await admin.reembed(session.memories, other)


async def _migrate(at: _StoreAndFiles, book: AckLog, tag: str, chance: random.Random) -> None:
    """Migrate a v1.0 database into its own namespace."""
    from mama_structs.importers import migrate_v1  # noqa: PLC0415 - needed by few runs

    file, space, tags = at.files / f"old-{tag}.db", f"old-{tag}", [f"{tag}-{n}" for n in range(chance.randrange(5, 15))]
    specs = []
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.executescript(_OLD)
        for number, one in enumerate(tags):
            made = _OLD_START + number * 600_000
            text = text_of(one)
            row = (f"decision_{number}", f"topic {number % 3}", text, "It is simpler.", 0.5, made, made)
            database.execute(
                "INSERT INTO decisions (id, topic, decision, reasoning, confidence, created_at, updated_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            spec: dict[str, Any] = {
                "tag": one,
                "type": "decision",
                "topic": f"topic {number % 3}",
                "reasoning": "It is simpler.",
            }
            at_ms = plain(from_milliseconds(made))
            spec |= {"confidence": 0.5, "origin": ANY, "fields": {"created_at": at_ms, "updated_at": at_ms}}
            specs.append(spec | {"created_by": ANY, "extra": ANY})
    async with opened(at.store, space) as session:
        with Author(session, book, tag, chance).change(f"{tag}-old", "migrate", memories=specs):
            await migrate_v1(session.memories, file)
    file.unlink()


async def _tend(at: _StoreAndFiles, book: AckLog, tag: str, chance: random.Random) -> None:
    """Write some changes, then rebuild the indexes, prune automatic links, and run `admin.maintain`."""
    async with opened(at.store, chance.choice(NAMESPACES)) as session:
        await write(session, book, f"{tag}-t", chance, 3)
        await admin.rebuild(session.memories)
        await admin.prune(session.memories)
        await admin.maintain(session)


_CHORES: Final = (_back_up, _copy, _embed_anew, _expire_conversation, _migrate, _tend)
_KINDS: Final[dict[str, Callable[[Task, AckLog, random.Random], None]]] = {
    "writer": _writer,
    "parent": _parent,
    "preload": _preload,
    "pool": _pool,
    "keeper": _keeper,
}


@contextlib.contextmanager
def faulty(fault: str, directory: str, chance: random.Random) -> Iterator[None]:
    """During the block, simulate a full disk, or make SQLite calls fail, or interrupt them."""
    if fault == "full":
        with _full(Path(directory), chance):
            yield
    elif fault:
        with _failing(chance, interrupts=fault == "interrupted"):
            yield
    else:
        yield


@contextlib.contextmanager
def _full(directory: Path, chance: random.Random) -> Iterator[None]:
    """Repeatedly set a file-size limit near the current size of the database, and remove it again."""
    import resource  # noqa: PLC0415 - not available on all systems

    # While the limit is set, an import would write truncated bytecode, which would remain for other processes.
    sys.dont_write_bytecode = True
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    over = threading.Event()

    def limit() -> None:
        while not over.wait(chance.uniform(0.02, 0.2)):
            sizes = [file.stat().st_size for file in directory.rglob("cache.db*") if file.exists()]
            room = max(sizes, default=0) + chance.choice((-50_000, 0, 5_000, 50_000))
            resource.setrlimit(resource.RLIMIT_FSIZE, (max(room, 4096), most))
            over.wait(chance.uniform(0.02, 0.2))
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    with _beside(limit, over):
        yield


@contextlib.contextmanager
def _beside(work: Callable[[], None], over: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def _failing(chance: random.Random, *, interrupts: bool) -> Iterator[None]:
    """Make SQLite calls fail before or after their effect, or interrupt them from a thread."""
    made: list[sqlite3.Connection] = []
    codes = ("SQLITE_IOERR", "SQLITE_FULL", "SQLITE_BUSY", "SQLITE_INTERRUPT")

    class Failing(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            luck = chance.random()
            if interrupts or luck > 0.03:
                return super().execute(*arguments)
            if luck < 0.01:
                super().execute(*arguments)
            name = chance.choice(codes)
            error = sqlite3.OperationalError(f"{name}, as the crash test wants it")
            error.sqlite_errorcode, error.sqlite_errorname = getattr(sqlite3, name), name
            raise error

    real = sqlite3.connect

    def connect(*arguments: Any, **keywords: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = real(*arguments, **{"factory": Failing, **keywords})
        made.append(connection)
        return connection

    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(chance.uniform(0, 0.02)):
            for connection in tuple(made):
                with contextlib.suppress(sqlite3.Error):
                    connection.interrupt()

    sqlite3.connect = connect  # type: ignore[assignment]  # it has the same parameters
    try:
        if interrupts:
            with _beside(interrupt, over):
                yield
        else:
            yield
    finally:
        sqlite3.connect = real


if __name__ == "__main__":
    run(Task(**json.loads(sys.argv[1])))
