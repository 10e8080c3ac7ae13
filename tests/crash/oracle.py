"""Processes that compare a store with its expected state, their verdicts, and the counters of a run."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import logging
import os
import select
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
from crash.model import ExpectedState

from mama_structs._internal.validation import is_url
from mama_structs.errors import EmbedderMismatch, MamaStructsError, StoreBusy
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.session.session import Session
from mama_structs.settings import MemorySettings, ServerSettings, Settings
from mama_structs.testing.conformance.ack_log import HANG_TIMEOUT_SECONDS

EMBEDDERS: Final = (HashEmbedder(dimensions=64), HashEmbedder(dimensions=32))
"""Fast embedders. The second one is the embedder of re-embedded namespaces."""
SETTINGS: Final = Settings(
    memory=MemorySettings(snapshot_every=40),
    server=ServerSettings(
        max_connections=4, connect_timeout=2.0, pool_timeout=5.0, statement_timeout=10.0, lease_seconds=1.5
    ),
)
"""Snapshots are frequent, so that kills interrupt them, and leases of killed hosts expire soon."""

Store = Path | str
"""A directory or the address of a server."""


@attrs.define
class Verdict:
    """
    The differences that a comparison found, one line each.

    Args:
        lost: Acknowledged items that are missing.
        duplicated: Items that were stored once and exist several times.
        wrong: Items with unexpected content, partly applied operations, and unexpected items.
        errors: Typed errors during opening and reading.
        findings: Findings of `admin.check`, except the one about an old SQLite.
        warnings: Logged warnings.
        untyped: Other exceptions.
        memories: The number of memories.

    """

    lost: list[str] = attrs.field(factory=list)
    duplicated: list[str] = attrs.field(factory=list)
    wrong: list[str] = attrs.field(factory=list)
    errors: list[str] = attrs.field(factory=list)
    findings: list[str] = attrs.field(factory=list)
    warnings: list[str] = attrs.field(factory=list)
    untyped: list[str] = attrs.field(factory=list)
    memories: int = 0

    @property
    def is_said(self) -> bool:
        """True if the store reported a problem."""
        return bool(self.errors or self.findings or self.warnings)

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Record an exception of the block, and continue."""
        try:
            yield
        except MamaStructsError as error:
            self.errors.append(f"{what}: {type(error).__name__}: {error}")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.untyped.append(f"{what}: {type(error).__name__} at {where.filename}:{where.lineno}: {error}")

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Record the warnings that the package logs during the block."""
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.warnings.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("mama_structs")
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    def joined(self, other: Verdict) -> Verdict:
        """Return a verdict that contains the lines of both verdicts."""
        both = attrs.asdict(self), attrs.asdict(other)
        return Verdict(**{name: value + both[1][name] for name, value in both[0].items()})


@contextlib.asynccontextmanager
async def opened(
    store: Store, namespace: str = "default", conversation: str | None = None, *, settings: Settings = SETTINGS
) -> AsyncIterator[Session]:
    """
    Open a session with the namespace's current embedder.

    If a killed host still holds a lease, retry until the lease expires.
    """
    session = None
    embedders = list(EMBEDDERS)
    until = time.monotonic() + (4 * SETTINGS.server.lease_seconds if is_url(store) else 0)
    while session is None:
        opening = Session.open(
            store, embedder=embedders[0], namespace=namespace, conversation=conversation, settings=settings
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


def fork(work: Callable[[], object]) -> int:
    """Run *work* in a forked process that exits afterwards, and return its id."""
    with warnings.catch_warnings():
        # Python warns about forking with running threads, but this test does so on purpose.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


@attrs.define
class Child:
    """
    A forked process that runs *work* and returns its result as JSON.

    The argument of *work* is a function that blocks until the parent calls `go_on`.
    """

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
        """
        Return the next line of the child's output, or None if the process exited or hung.

        The line is the result, or empty if the process waits for `go_on`.
        """
        until = time.monotonic() + HANG_TIMEOUT_SECONDS
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
        """
        Wait for the exit, and return the exit status, or the negative number of the signal that ended the process.

        A process that hangs is killed, and -SIGALRM is returned.
        """
        os.close(self.orders)
        os.close(self.answer)
        until = time.monotonic() + HANG_TIMEOUT_SECONDS / 10
        while not (done := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return -signal.SIGALRM
            time.sleep(0.002)
        return os.waitstatus_to_exitcode(done[1])


def ask(work: Callable[[], Verdict], errors: Path) -> tuple[Verdict | None, int]:
    """Run *work* in a new process, and return its verdict (None if it died) and exit status."""
    child = Child.start(lambda _pause: attrs.asdict(work()), errors)
    line = child.wait()
    ended = child.end()
    return (None if line is None else Verdict(**json.loads(line))), ended


def judged(store: Store, facts: ExpectedState, errors: Path) -> tuple[Verdict | None, int]:
    """Compare a store with its expected state in a new process. Return the verdict and the exit status."""
    from crash.comparison import compare  # noqa: PLC0415 - avoids a circular import

    return ask(lambda: asyncio.run(compare(store, facts)), errors)


BAD: Final = ("lost", "duplicated", "silent", "wrong", "dead")
"""The kinds of faults. A run without faults succeeds."""
_ALWAYS: Final = (
    "rounds", "processes", "kills", "stops", "forks", "parents that closed", "parents that died",
    "parents that forked again", "full disks", "failing SQLite calls", "interrupted SQLite calls",
    "power failures", "damaged files", "acknowledged changes",
)  # fmt: skip


@attrs.define
class Tally:
    """Counters of a run's actions by name, and one line per fault."""

    counts: Counter[str] = attrs.field(factory=Counter)
    bad: list[str] = attrs.field(factory=list)
    is_over: bool = False
    _is_held: bool = False

    def interrupt(self, *_: object) -> None:
        """Handle a signal: raise KeyboardInterrupt, and set a flag for `go_on` in case the exception gets lost."""
        self.is_over = True
        if not self._is_held:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """
        Defer interrupts during the block.

        An interrupt between the start and the registration of a process would leave the process running.
        """
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def go_on(self) -> None:
        """Raise KeyboardInterrupt if the run was interrupted."""
        if self.is_over:
            raise KeyboardInterrupt

    def note(self, kind: str, *lines: str) -> None:
        """Count faults of one kind, and store their lines."""
        self.counts[kind] += len(lines)
        self.bad += [f"{kind}: {line}" for line in lines]

    @property
    def ok(self) -> bool:
        """True if no fault was found."""
        return not any(self.counts[kind] for kind in BAD)

    def __str__(self) -> str:
        others = [name for name in sorted(self.counts) if name not in (*_ALWAYS, *BAD)]
        names = [*_ALWAYS, *others, *BAD]
        width = max(map(len, names))
        return "\n".join(f"{name:<{width}}  {self.counts[name]:,}" for name in names)
