"""What the crash test knows apart from the store: what was acknowledged, and how a store is compared with it."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import logging
import os
import re
import select
import signal
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs._check import is_address
from mama_structs.errors import EmbedderMismatch, HandleNotFound, MamaStructsError, StoreBusy
from mama_structs.memory.embedding.hashed import HashEmbedder
from mama_structs.memory.model import Link, Memory
from mama_structs.memory.store import MemoryStore
from mama_structs.session import Session
from mama_structs.settings import MemorySettings, ServerSettings, Settings
from mama_structs.testing._book import PATIENCE

EMBEDDERS: Final = (HashEmbedder(dimensions=64), HashEmbedder(dimensions=32))
"""Quick ones; only what is embedded anew has the second."""
SETTINGS: Final = Settings(
    memory=MemorySettings(snapshot_every=40),
    server=ServerSettings(connections=4, connect_timeout=2.0, wait=5.0, statement_timeout=10.0, lease=1.5),
)
"""Views are written often, so that processes are killed while they are; a killed host's conversations are free soon."""

Store = Path | str
"""A directory, or a server's address."""
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
async def opened(store: Store, namespace: str = "default", conversation: str | None = None) -> AsyncIterator[Session]:
    """Open a session with the embedder that the namespace has at present; waits for the lease of a host that died."""
    session = None
    embedders = list(EMBEDDERS)
    until = time.monotonic() + (4 * SETTINGS.server.lease if is_address(store) else 0)
    while session is None:
        opening = Session.open(
            store, embedder=embedders[0], namespace=namespace, conversation=conversation, settings=SETTINGS
        )
        try:
            session = await opening
        except EmbedderMismatch:
            if len(embedders) == 1:
                raise
            del embedders[0]
        except StoreBusy:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)
    async with session:
        yield session


async def compare(store: Store, facts: Known, *, doubtful: frozenset[Key] = frozenset()) -> Verdict:
    """Open a store in this process and compare all of it; *doubtful* memories may be there or not."""
    verdict = Verdict()
    with verdict.listening():
        first = True
        for space in sorted(facts.namespaces):
            with verdict.noting(f"opening {space}"):
                async with opened(store, space) as session:
                    await compare_memories(session, facts, verdict, doubtful)
                    # Rows are looked at once.
                    note_findings(
                        verdict, (await session.check()).findings if first else await session.memories.check()
                    )
                    first = False
        for space, conversation in sorted(facts.refs):
            with verdict.noting(f"opening {conversation}"):
                async with opened(store, space, conversation) as session:
                    compare_refs(session, facts.refs[space, conversation], verdict)
    return verdict


def note_findings(verdict: Verdict, found: Iterable[Any]) -> None:
    """Record the findings of a check, except those about the environment: an old SQLite, the server's settings."""
    about_store = (one for one in found if one.kind not in {"sqlite", "server"})
    verdict.findings += [f"{one.severity} {one.kind}: {one.message}" for one in about_store]


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
    links: Mapping[str, Sequence[Link]]
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
        ways = Counter(
            (link.from_id, link.to_id, link.metadata.original_relationship) for link in self.links[memory.id]
        )
        wrong += [f"{memory.id} ({tag}) has a link twice: {way}" for way, count in ways.items() if count > 1]
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
    store: Store, facts: Known, errors: Path, doubtful: frozenset[Key] = frozenset()
) -> tuple[Verdict | None, int]:
    """Let a fresh process compare a store."""
    return ask(lambda: asyncio.run(compare(store, facts, doubtful=doubtful)), errors)


BAD: Final = ("lost", "silent", "wrong", "dead")
"""What there must be none of."""
_ALWAYS: Final = (
    "rounds", "processes", "kills", "stops", "forks", "parents that closed", "parents that died",
    "parents that forked again", "full disks", "failing SQLite calls", "interrupted SQLite calls",
    "damaged files", "acknowledged changes",
)  # fmt: skip


@attrs.define
class Tally:
    """What was done and what came of it: numbers by their names, and a line for each thing that is bad."""

    counts: Counter[str] = attrs.field(factory=Counter)
    bad: list[str] = attrs.field(factory=list)
    is_over: bool = False
    _is_held: bool = False

    def interrupt(self, *_: object) -> None:
        """End the run: where the interpreter swallows what is raised here, before what would come next."""
        self.is_over = True
        if not self._is_held:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let what is begun here come to its end: a process that is started and not known yet would never be ended."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def go_on(self) -> None:
        """Raise where the run was interrupted."""
        if self.is_over:
            raise KeyboardInterrupt

    def note(self, kind: str, *lines: str) -> None:
        """Count what is bad and keep it."""
        self.counts[kind] += len(lines)
        self.bad += [f"{kind}: {line}" for line in lines]

    @property
    def ok(self) -> bool:
        """Whether nothing bad was found."""
        return not any(self.counts[kind] for kind in BAD)

    def __str__(self) -> str:
        others = [name for name in sorted(self.counts) if name not in (*_ALWAYS, *BAD)]
        names = [*_ALWAYS, *others, *BAD]
        width = max(map(len, names))
        return "\n".join(f"{name:<{width}}  {self.counts[name]:,}" for name in names)
