"""
Processes of the crash test, and what it knows apart from the store.

`Known` is what was acknowledged, and `compare` how a store is compared with it; a `Task` is what a process does that
writes: alone, below a parent that has the store open, and with faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import logging
import multiprocessing
import os
import random
import re
import select
import signal
import sqlite3
import sys
import threading
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs.errors import EmbedderMismatch, HandleNotFound, MamaStructsError, MemoryNotFound
from mama_structs.memory.embedding.hashed import HashEmbedder
from mama_structs.memory.model import Link, Memory
from mama_structs.memory.store import MemoryStore
from mama_structs.session import Session
from mama_structs.settings import MemorySettings, Settings

EMBEDDERS: Final = (HashEmbedder(dimensions=64), HashEmbedder(dimensions=32))
"""Quick ones; only what is embedded anew has the second."""
SETTINGS: Final = Settings(memory=MemorySettings(snapshot_every=40))
"""Views are written often, so that processes are killed while they are."""

# Seconds after which a process counts as hung; a busy machine must never reach it.
PATIENCE: Final = 300.0
_WORDS: Final = (
    "shield", "raid", "guild", "reactor", "planet", "fleet", "login", "token",
    "cache", "queue", "index", "journal", "ore", "tax", "vote", "trade",
)  # fmt: skip
_TAG: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+")
_ALL: Final = 10**6


def text_of(tag: str) -> str:
    """Return the text that is saved under a name: who reads it can tell what it must be."""
    digest = blake2b(tag.encode(), digest_size=12).hexdigest()
    words = " ".join(_WORDS[int(digit, 16)] for digit in digest)
    # Some fill several pages of the database.
    return f"{tag} {words}" + f" {words}" * (40 if digest[0] == "0" else 0)


@attrs.frozen
class Book:
    """A file of what was done, a line each, to which many processes append; a killed writer takes nothing back."""

    fd: int

    @classmethod
    def open(cls, path: Path) -> Book:
        return cls(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))

    def say(self, *what: Any) -> None:
        line = json.dumps(what, separators=(",", ":")).encode() + b"\n"
        with _unlimited():
            if os.write(self.fd, line) != len(line):
                raise OSError("the file of what was acknowledged is full")


@contextlib.contextmanager
def _unlimited() -> Iterator[None]:
    """Let a process whose disk is made full go on saying what it does."""
    import resource  # noqa: PLC0415 - not everywhere

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


Key = tuple[str, str]


@attrs.define
class Known:
    """What the lines of a book say; memories and links are told apart by namespace and id."""

    # By the name of its text: where, and what it was to come with.
    planned: dict[str, tuple[str, list[str], list[str], str | None]] = attrs.field(factory=dict)
    saved: dict[Key, str] = attrs.field(factory=dict)
    unnamed: set[Key] = attrs.field(factory=set)
    outcomes: dict[Key, set[str]] = attrs.field(factory=lambda: defaultdict(set))
    links: dict[Key, tuple[str, str]] = attrs.field(factory=dict)
    copied: set[Key] = attrs.field(factory=set)
    refs: dict[tuple[str, str], dict[str, str]] = attrs.field(factory=lambda: defaultdict(dict))
    deleted: set[Key] = attrs.field(factory=set)
    doubtful: set[Key] = attrs.field(factory=set)
    backups: list[tuple[str, int]] = attrs.field(factory=list)
    namespaces: set[str] = attrs.field(factory=lambda: {"default"})

    @property
    def acknowledged(self) -> int:
        """How many changes were."""
        sizes = (len(one) for one in (self.saved, self.unnamed, self.links, self.copied, self.deleted))
        return sum(sizes) + sum(map(len, self.outcomes.values())) + sum(map(len, self.refs.values()))

    def hear(self, lines: Iterable[str]) -> Known:  # noqa: C901 - a line for each kind
        """Take up lines, and return this."""
        for line in lines:
            match json.loads(line):
                case ["saving", space, tag, targets, handles, before]:
                    self.planned[tag] = space, targets, handles, before
                    self.namespaces.add(space)
                case ["saved", space, None, tag]:
                    self.unnamed.add((space, tag))
                case ["saved", space, memory_id, tag]:
                    self.saved[space, memory_id] = tag
                case ["outcome", space, memory_id, tag]:
                    self.outcomes[space, memory_id].add(text_of(tag))
                case ["linked", space, link_id, one, other]:
                    self.links[space, link_id] = one, other
                case ["deleting", space, memory_id]:
                    self.doubtful.add((space, memory_id))
                case ["deleted", space, memory_id]:
                    self.deleted.add((space, memory_id))
                case ["copied", space, ids]:
                    self.copied |= {(space, memory_id) for memory_id in ids}
                    self.namespaces.add(space)
                case ["ref", space, conversation, tag]:
                    self.refs[space, conversation][tag] = text_of(tag)
                case ["backup", path, length]:
                    self.backups.append((path, length))
        return self


@attrs.define
class Verdict:
    """
    What a comparison found, a line each.

    Args:
        lost: Acknowledged, and not there.
        wrong: There, and not as it was written, or only in part; what was deleted and is there.
        errors: Typed errors of opening and reading.
        findings: Of `Session.check`, all but that SQLite is old.
        warnings: What was logged.
        untyped: Errors that this package should have explained.
        memories: How many there are.

    """

    lost: list[str] = attrs.field(factory=list)
    wrong: list[str] = attrs.field(factory=list)
    errors: list[str] = attrs.field(factory=list)
    findings: list[str] = attrs.field(factory=list)
    warnings: list[str] = attrs.field(factory=list)
    untyped: list[str] = attrs.field(factory=list)
    memories: int = 0

    @property
    def is_said(self) -> bool:
        """Whether somebody who looks can know that not all is well."""
        return bool(self.errors or self.findings or self.warnings)

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Take down what a call raises."""
        try:
            yield
        except MamaStructsError as error:
            self.errors.append(f"{what}: {type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - that it is another one is what is noted
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.untyped.append(f"{what}: {type(error).__name__} at {where.filename}:{where.lineno}: {error}")

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take down what is logged and warned of."""
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.warnings.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("mama_structs")
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    def joined(self, other: Verdict) -> Verdict:
        """Return both."""
        both = attrs.asdict(self), attrs.asdict(other)
        return Verdict(**{name: value + both[1][name] for name, value in both[0].items()})


@contextlib.asynccontextmanager
async def opened(
    directory: Path, namespace: str = "default", conversation: str | None = None
) -> AsyncIterator[Session]:
    """Open a session with the embedder that the namespace has at present."""
    session = None
    for embedder in EMBEDDERS:
        opening = Session.open(
            directory, embedder=embedder, namespace=namespace, conversation=conversation, settings=SETTINGS
        )
        try:
            session = await opening
            break
        except EmbedderMismatch:
            if embedder is EMBEDDERS[-1]:
                raise
    assert session is not None  # noqa: S101 - the loop ends with one or an error
    async with session:
        yield session


async def compare(directory: Path, facts: Known, *, doubtful: frozenset[Key] = frozenset()) -> Verdict:
    """Open a store in this process and compare all of it; *doubtful* memories may be there or not."""
    verdict = Verdict()
    with verdict.listening():
        first = True
        for space in sorted(facts.namespaces):
            with verdict.noting(f"opening {space}"):
                async with opened(directory, space) as session:
                    await compare_memories(session, facts, verdict, doubtful)
                    # The journal is looked at once.
                    note_findings(
                        verdict, (await session.check()).findings if first else await session.memories.check()
                    )
                    first = False
        for space, conversation in sorted(facts.refs):
            with verdict.noting(f"opening {conversation}"):
                async with opened(directory, space, conversation) as session:
                    compare_refs(session, facts.refs[space, conversation], verdict)
    return verdict


def note_findings(verdict: Verdict, found: Iterable[Any]) -> None:
    """Take down what a check found; that SQLite is old is no news."""
    verdict.findings += [f"{one.severity} {one.kind}: {one.message}" for one in found if one.kind != "sqlite"]


def compare_refs(session: Session, wanted: dict[str, str], verdict: Verdict) -> None:
    """Compare the refs of a session's conversation."""
    for tag, text in wanted.items():
        with verdict.noting(f"ref {tag}"):
            try:
                if session.refs.get(tag).text != text:
                    verdict.wrong.append(f"the text of ref:{tag}")
            except HandleNotFound:
                verdict.lost.append(f"ref:{tag} of {session.conversation}")


async def compare_memories(session: Session, facts: Known, verdict: Verdict, doubtful: frozenset[Key]) -> None:
    """Compare the memories of a session's namespace."""
    store, space = session.memories, session.memories.namespace
    there = {memory.id: memory for memory in await store.recent(limit=_ALL)}
    links = dict(zip(there, await asyncio.gather(*map(store.links_of, there)), strict=True))
    tags = {memory.content.split(" ", 1)[0]: memory for memory in there.values()}
    maybe = {memory_id for where, memory_id in facts.doubtful | doubtful if where == space}
    dead = {memory_id for where, memory_id in facts.deleted if where == space}
    seen = _Seen(store, facts, verdict, there, links, tags, (maybe | dead) - set(there))
    verdict.memories += len(there)
    verdict.wrong += [f"{memory_id} is there, which was deleted" for memory_id in dead & set(there)]
    seen.compare_acknowledged(space)
    for tag, memory in tags.items():
        if _TAG.fullmatch(tag) and tag in facts.planned:
            await seen.compare_plan(tag, memory)


@attrs.frozen
class _Seen:
    """What there is in a namespace, and what is known of it; some of it was deleted, or may have been."""

    store: MemoryStore
    facts: Known
    verdict: Verdict
    there: dict[str, Memory]
    links: dict[str, list[Link]]
    tags: dict[str, Memory]
    gone: set[str]

    def compare_acknowledged(self, space: str) -> None:
        """See that all that was acknowledged is there."""
        facts, there, lost = self.facts, self.there, self.verdict.lost
        wanted = {memory_id: tag for (where, memory_id), tag in facts.saved.items() if where == space}
        for memory_id, tag in wanted.items():
            if memory_id in there and there[memory_id].content != text_of(tag):
                self.verdict.wrong.append(f"the content of {memory_id}")
            if memory_id not in there and memory_id not in self.gone:
                lost.append(f"{memory_id} ({tag})")
        copied = {memory_id for where, memory_id in facts.copied if where == space}
        lost += [f"{memory_id} (a copy)" for memory_id in copied - set(there)]
        lost += [f"a memory ({tag})" for where, tag in facts.unnamed if where == space and tag not in self.tags]
        for (where, memory_id), reasons in facts.outcomes.items():
            if where == space and memory_id in there and not reasons <= set(_reasons(there[memory_id])):
                lost.append(f"an outcome of {memory_id}")
        for (where, link_id), ends in facts.links.items():
            if where == space and set(ends) <= set(there) and link_id not in {link.id for link in self.links[ends[0]]}:
                lost.append(f"the link {link_id}")

    async def compare_plan(self, tag: str, memory: Memory) -> None:
        """See that a memory, acknowledged or not, is as it was to be, with all that was to come with it."""
        wrong = self.verdict.wrong
        where, targets, handles, before = self.facts.planned[tag]
        if memory.content != text_of(tag):
            wrong.append(f"the content of {memory.id} ({tag})")
        if where != self.store.namespace:
            # A copy of what there was at some moment.
            return
        if before is not None and before not in self.tags:
            # Of one call to save many, what is saved is saved in order.
            wrong.append(f"{tag} is there without {before}, which came before it")
        made = {link.to_id for link in self.links[memory.id] if link.from_id == memory.id}
        wrong += [f"{memory.id} ({tag}) has no link to {one}" for one in targets if one not in made | self.gone]
        if handles:
            with self.verdict.noting(f"the evidence of {memory.id}"):
                kept = [(one.source.partition("@")[0], one.text) for one in await self.store.evidence_of(memory.id)]
                if kept != [(f"ref:{handle}", text_of(handle)) for handle in handles]:
                    wrong.append(f"the evidence of {memory.id} ({tag})")
        ends = {one.from_id for one in self.links[memory.id] if one.metadata.original_relationship == "outcome_of"}
        contents = [one.content for one in self.there.values() if one.id in ends]
        if sorted(_reasons(memory)) != sorted(contents):
            wrong.append(f"{memory.id} ({tag}) and the memories of its outcomes")


def _reasons(memory: Memory) -> list[str]:
    return [change.reason for change in getattr(memory.metadata, "history", ()) if change.reason is not None]


def fork(work: Callable[[], object]) -> int:
    """Run *work* in a forked process, which ends after it, and return its id."""
    with warnings.catch_warnings():
        # That threads do not survive is known, and what is tried out.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - the parent's work is not this process's
        traceback.print_exc()
    finally:
        os._exit(status)


@attrs.define
class Child:
    """A forked process whose answer, in JSON, is waited for; it runs *work* with a function that waits to be told."""

    pid: int
    answer: int
    orders: int
    _read: bytes = b""

    @classmethod
    def start(cls, work: Callable[[Callable[[], None]], Any], errors: Path) -> Child:
        answer, answering = os.pipe()
        ordered, orders = os.pipe()

        def run() -> None:
            os.close(answer)
            os.close(orders)
            file = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(file, 2)
            faulthandler.enable(file)

            def pause() -> None:
                os.write(answering, b"\n")
                if not os.read(ordered, 1):
                    os._exit(0)

            said = json.dumps(work(pause)).encode() + b"\n"
            while said:
                said = said[os.write(answering, said) :]

        pid = fork(run)
        os.close(answering)
        os.close(ordered)
        return cls(pid, answer, orders)

    def wait(self) -> str | None:
        """Return the next line, empty where it waits to be told to go on, None where it ended or hung."""
        until = time.monotonic() + PATIENCE
        while b"\n" not in self._read:
            ready, _, _ = select.select([self.answer], [], [], max(until - time.monotonic(), 0))
            got = os.read(self.answer, 2**16) if ready else b""
            if not got:
                return None
            self._read += got
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def go_on(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self.orders, b".")

    def end(self) -> int:
        """Return how it ended: its status, or a signal's number, negative; SIGALRM stands for a process that hung."""
        os.close(self.orders)
        os.close(self.answer)
        until = time.monotonic() + PATIENCE / 10
        while not (done := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return -signal.SIGALRM
            time.sleep(0.002)
        return os.waitstatus_to_exitcode(done[1])


def ask(work: Callable[[], Verdict], errors: Path) -> tuple[Verdict | None, int]:
    """Let a fresh process judge; gives its verdict, None where it died, and how it ended."""
    child = Child.start(lambda _pause: attrs.asdict(work()), errors)
    line = child.wait()
    ended = child.end()
    return (None if line is None else Verdict(**json.loads(line))), ended


def judged(
    directory: Path, facts: Known, errors: Path, doubtful: frozenset[Key] = frozenset()
) -> tuple[Verdict | None, int]:
    """Let a fresh process compare a store."""
    return ask(lambda: asyncio.run(compare(directory, facts, doubtful=doubtful)), errors)


NAMESPACES: Final = ("default", "alice", "bob")
ENDINGS: Final = ("close", "die", "stay", "again")
"""What a parent does while its forked children write: close its session, die, write on, or fork again."""

_CHANGES: Final = ("decision", "decision", "many", "supersede", "outcome", "delete", "link", "ref", "evidence")
# The tables of v1.0 that a migration needs.
_OLD: Final = """
CREATE TABLE decisions (id TEXT PRIMARY KEY, topic TEXT, decision TEXT, reasoning TEXT, outcome TEXT,
  failure_reason TEXT, supersedes TEXT, superseded_by TEXT, confidence REAL, created_at INTEGER, updated_at INTEGER);
CREATE TABLE decision_edges (from_id TEXT, to_id TEXT, relationship TEXT, reason TEXT, weight REAL, created_at INTEGER);
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, applied_at INTEGER, description TEXT);
INSERT INTO schema_version (version) VALUES (4);
"""
_OLD_START: Final = 1_748_822_400_000


@attrs.frozen
class Task:
    """
    What a process is to do.

    Args:
        kind: ``"writer"``, ``"parent"``, ``"preload"``, ``"pool"`` or ``"keeper"``.
        directory: The store's.
        book: The file in which it says what was acknowledged.
        name: The beginning of the names of its texts.
        seed: Of what it does at random.
        changes: How many changes each of its writers makes.
        fault: ``"full"``, ``"failing"``, ``"interrupted"`` or ``""``.
        ending: One of `ENDINGS`, of a parent.
        children: How many it forks.
        alive: A descriptor that is open as long as any process of this family lives.
        early: Whether to acknowledge what was not done: a lie, which the test has to find out.

    """

    kind: str
    directory: str
    book: str
    name: str
    seed: int
    alive: int
    changes: int = 20
    fault: str = ""
    ending: str = "stay"
    children: int = 2
    early: bool = False


def run(task: Task) -> None:
    """Do a task in this process, which is another one's child."""
    book = Book.open(Path(task.book))
    book.say("born", os.getpid(), task.kind)
    faulthandler.enable()
    chance = random.Random(task.seed)  # noqa: S311 - to be repeated
    # Ended by its end or by a kill, and by nothing else: the next line is missed otherwise.
    with _told(book), faulty(task.fault, task.directory, chance):
        _KINDS[task.kind](task, book, chance)
    book.say("done", os.getpid())


@contextlib.contextmanager
def _told(book: Book) -> Iterator[None]:
    """Say what this package should have explained, and what a fault left nothing else to do than to give up."""
    try:
        yield
    except MamaStructsError as error:
        book.say("refused", error.type, str(error))
    except Exception as error:  # noqa: BLE001 - it is written down
        where = traceback.extract_tb(error.__traceback__)[-1]
        book.say("untyped", f"{type(error).__name__} at {where.filename}:{where.lineno}: {error}"[:500])


async def write(session: Session, book: Book, name: str, chance: random.Random, count: int) -> None:
    """Make *count* changes, one after the other, and acknowledge each when its call has returned."""
    mine: list[str] = []
    for number in range(count):
        with _told(book):
            await _change(session, book, f"{name}-{number}", chance, mine)


async def _change(session: Session, book: Book, tag: str, chance: random.Random, mine: list[str]) -> None:  # noqa: C901 - a case for each kind
    store, space, text = session.memories, session.memories.namespace, text_of(tag)
    kind = chance.choice(_CHANGES if mine else ("decision", "many", "ref"))
    match kind:
        case "decision" | "evidence":
            handles = []
            if kind == "evidence":
                handles = [f"{tag}-e"]
                await session.observe(f'<ref id="{handles[0]}">{text_of(handles[0])}</ref>')
                book.say("ref", space, session.conversation, handles[0])
            targets = chance.sample(mine, min(len(mine), chance.randrange(4)))
            book.say("saving", space, tag, targets, handles, None)
            memory = await store.save_decision(
                "topic", text, "why", implements=targets, evidence=[f"ref:{one}" for one in handles]
            )
            book.say("saved", space, memory.id, tag)
            mine.append(memory.id)
        case "many":
            tags = [f"{tag}-{part}" for part in range(chance.choice((3, 3, 5, 60)))]
            for before, one in zip([None, *tags], tags, strict=False):
                book.say("saving", space, one, [], [], before)
            saved = await store.save_many([{"type": "context", "content": text_of(one)} for one in tags])
            for memory, one in zip(saved, tags, strict=True):
                book.say("saved", space, memory.id, one)
        case "supersede":
            target = chance.choice(mine)
            book.say("saving", space, tag, [target], [], None)
            memory = await store.supersede(target, text, "better")
            book.say("saved", space, memory.id, tag)
            mine.append(memory.id)
        case "outcome":
            target = chance.choice(mine)
            await store.set_outcome(target, "FAILED", reason=text)
            book.say("outcome", space, target, tag)
        case "link":
            one, other = (chance.choice(mine) for _ in range(2))
            if one != other:
                link = await store.link(one, other, "refines")
                book.say("linked", space, link.id, one, other)
        case "delete":
            target = mine.pop(chance.randrange(len(mine)))
            book.say("deleting", space, target)
            with contextlib.suppress(MemoryNotFound):
                await store.delete(target)
            book.say("deleted", space, target)
        case "ref":
            await session.observe(f'<ref id="{tag}">{text}</ref>')
            book.say("ref", space, session.conversation, tag)


def _writer(task: Task, book: Book, chance: random.Random) -> None:
    async def main() -> None:
        space = chance.choice(NAMESPACES)
        async with opened(Path(task.directory), space, f"c-{task.name}") as session:
            if task.early:
                book.say("saving", space, task.name, [], [], None)
                book.say("saved", space, None, task.name)
                _die(book)
            tasks = chance.choice((1, 1, 3))
            own = [random.Random(chance.random()) for _ in range(tasks)]  # noqa: S311 - to be repeated
            await asyncio.gather(
                *(write(session, book, f"{task.name}-{n}", own[n], task.changes // tasks + 1) for n in range(tasks))
            )
            if chance.random() < 0.3:  # noqa: PLR2004 - some leave a file of the log behind
                _die(book)

    asyncio.run(main())


def _die(book: Book) -> None:
    book.say("dies", os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


@attrs.define
class _Parent:
    """A process that has the store open while it forks."""

    task: Task
    book: Book
    chance: random.Random
    runner: asyncio.Runner
    session: Session
    children: list[Any] = attrs.field(factory=list)
    forked: int = 0

    def child(self, changes: int, *, deep: bool = False) -> None:
        """Fork a process that opens a session of its own, with what `os` or `multiprocessing` has."""
        self.forked += 1
        task = attrs.evolve(
            self.task,
            kind="writer",
            name=f"{self.task.name}-{'g' if deep else 'f'}{self.forked}",
            seed=self.chance.randrange(2**32),
            changes=changes,
            fault="",
        )
        self.book.say("forks", os.getpid())
        collect = self.chance.random() < 0.5  # noqa: PLR2004 - whether what it inherited is thrown away

        def work() -> None:
            if collect:
                # The loop stays: closed in a child, it would take the parent's wake-ups away.
                self.session = None  # type: ignore[assignment]  # the parent's, of no use here
                gc.collect()
            run(task)

        if self.chance.random() < 0.5:  # noqa: PLR2004 - one way or the other
            self.children.append(fork(work))
        else:
            process = multiprocessing.get_context("fork").Process(target=work)
            process.start()
            self.children.append(process)

    def wait(self) -> None:
        """Wait for all children, and note those that were ended by a signal."""
        for child in self.children:
            if isinstance(child, int):
                pid, status = child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            else:
                child.join()
                pid, status = child.pid, child.exitcode
            if status < 0:
                self.book.say("ended", pid, -status)
        self.children.clear()

    def write(self, name: str, count: int) -> None:
        self.runner.run(write(self.session, self.book, f"{self.task.name}-{name}", self.chance, count))

    def begin(self, name: str, count: int) -> asyncio.Task[None]:
        """Have changes made for a moment, so that what comes next finds some of them under way."""
        writing = write(self.session, self.book, f"{self.task.name}-{name}", self.chance, count)
        task = self.runner.get_loop().create_task(writing)
        self.runner.run(asyncio.sleep(self.chance.uniform(0, 0.01)))
        return task

    def close(self) -> None:
        with _told(self.book):
            self.runner.run(self.session.close())
        self.book.say("closes", os.getpid())


def _parent(task: Task, book: Book, chance: random.Random) -> None:
    with _opened_parent(task, book, chance) as parent:
        parent.write("a", task.changes // 4)
        # In the middle of a transaction, or between two.
        under_way = [parent.begin("b", 8)] if chance.random() < 0.5 else []  # noqa: PLR2004 - one way or the other
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
def _opened_parent(task: Task, book: Book, chance: random.Random) -> Iterator[_Parent]:
    runner = asyncio.Runner()
    space = chance.choice(NAMESPACES)

    async def made() -> Session:
        return await Session.open(
            task.directory, embedder=EMBEDDERS[0], namespace=space, conversation=f"c-{task.name}", settings=SETTINGS
        )

    parent = _Parent(task, book, chance, runner, runner.run(made()))
    try:
        yield parent
    finally:
        if parent.session is not None:
            parent.wait()
            parent.runner.run(parent.session.close())
            parent.runner.close()


def _preload(task: Task, book: Book, chance: random.Random) -> None:
    """Open first and fork then, as servers do that load the program once; who is killed is replaced."""
    with _opened_parent(task, book, chance) as parent:
        for _ in range(task.children):
            parent.child(task.changes)
        for _ in range(2):
            parent.wait()
            parent.child(task.changes // 2)
        parent.write("z", 3)


def _pool(task: Task, book: Book, chance: random.Random) -> None:
    """Give work to processes that never touch the session, and save what comes of it."""
    with _opened_parent(task, book, chance) as parent:
        for turn in range(2):
            under_way = [parent.begin(f"p{turn}", 6)]
            book.say("forks", os.getpid())
            with multiprocessing.get_context("fork").Pool(2, _collected, (task.alive,)) as pool:
                parent.runner.run(_all(under_way))
                if pool.map(len, ["a", "bc", "def"]) != [1, 2, 3]:
                    book.say("untyped", "a pool that cannot count")
                if chance.random() < 0.5:  # noqa: PLR2004 - ended, or left to end
                    pool.close()
                    pool.join()
            parent.write(f"q{turn}", task.changes // 2)


def _collected(alive: int) -> None:
    # Workers of a parent that was killed wait for ever: nobody is to wait for them.
    os.close(alive)
    gc.collect()


def _keeper(task: Task, book: Book, chance: random.Random) -> None:
    """Do what is done rarely, while others write: backups, exports, another embedder, a migration."""
    directory, name = Path(task.directory), task.name

    async def main() -> None:
        for turn in range(2):
            for chore in chance.sample(_CHORES, 2):
                with _told(book):
                    await chore(directory, book, f"{name}-{turn}", chance)

    asyncio.run(main())


async def _back_up(directory: Path, book: Book, tag: str, chance: random.Random) -> None:
    target = directory.with_name(f"backup-{tag}")
    length = os.fstat(book.fd).st_size
    async with opened(directory, chance.choice(NAMESPACES)) as session:
        await session.backup(target)
    book.say("backup", str(target), length)


async def _copy(directory: Path, book: Book, tag: str, chance: random.Random) -> None:
    file, space = directory.with_name(f"export-{tag}"), f"copy-{chance.randrange(3)}-{tag}"
    async with opened(directory, chance.choice(NAMESPACES)) as session:
        await session.memories.export_jsonl(file)
    with file.open("rb") as lines:
        found = [json.loads(line) for line in lines]
    file.unlink()
    async with opened(directory, space) as session:
        await session.memories.import_jsonl(_written(file, found))
    file.unlink()
    book.say("copied", space, [line["memory"]["id"] for line in found if "memory" in line])


def _written(file: Path, lines: Sequence[Any]) -> Path:
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


async def _embed_anew(directory: Path, book: Book, tag: str, chance: random.Random) -> None:
    async with opened(directory, "kept") as session:
        await write(session, book, f"{tag}-k", chance, 5)
        other = next(one for one in EMBEDDERS if one.dimensions != session.memories.embedder.dimensions)
        await session.memories.reembed(other)


async def _migrate(directory: Path, book: Book, tag: str, chance: random.Random) -> None:
    from mama_structs.v1 import migrate  # noqa: PLC0415 - few need it

    file, space, count = directory.with_name(f"old-{tag}.db"), f"old-{tag}", chance.randrange(5, 15)
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.executescript(_OLD)
        for number in range(count):
            made = _OLD_START + number * 600_000
            row = (f"decision_{number}", f"topic {number % 3}", f"Use part {number}", "It is simpler.", 0.5, made, made)
            database.execute(
                "INSERT INTO decisions (id, topic, decision, reasoning, confidence, created_at, updated_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )
    async with opened(directory, space) as session:
        await migrate(session.memories, file)
        ids = [memory.id for memory in await session.memories.recent(limit=count * 2)]
    if len(ids) != count:
        book.say("untyped", f"{len(ids)} of {count} memories were migrated")
    book.say("copied", space, ids)
    file.unlink()


async def _tend(directory: Path, book: Book, tag: str, chance: random.Random) -> None:
    async with opened(directory, chance.choice(NAMESPACES)) as session:
        await write(session, book, f"{tag}-t", chance, 3)
        await session.memories.rebuild()
        await session.memories.prune()
        await session.maintain()


_CHORES: Final = (_back_up, _copy, _embed_anew, _migrate, _tend)
_KINDS: Final[dict[str, Callable[[Task, Book, random.Random], None]]] = {
    "writer": _writer,
    "parent": _parent,
    "preload": _preload,
    "pool": _pool,
    "keeper": _keeper,
}


@contextlib.contextmanager
def faulty(fault: str, directory: str, chance: random.Random) -> Iterator[None]:
    """Make the disk full, statements of SQLite fail, or interrupt them; also when the store is opened in the block."""
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
    """Let no file grow beyond a size that is nearly reached; room is made for a moment again and again."""
    import resource  # noqa: PLC0415 - not everywhere

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
    """Have SQLite's own calls fail, before or after they did what they do, or interrupt them from another thread."""
    made: list[sqlite3.Connection] = []
    codes = ("SQLITE_IOERR", "SQLITE_FULL", "SQLITE_BUSY", "SQLITE_INTERRUPT")

    class Failing(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            luck = chance.random()
            if interrupts or luck > 0.03:  # noqa: PLR2004 - of a hundred
                return super().execute(*arguments)
            if luck < 0.01:  # noqa: PLR2004 - of a hundred
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

    sqlite3.connect = connect  # type: ignore[assignment]  # it takes the same
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
