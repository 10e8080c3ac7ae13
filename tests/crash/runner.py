"""
Crash test: kills, full disks, lost writes and damage must not lose data silently.

``python -m crash.runner --minutes 10`` starts processes that write to a store, and kills them at random.
Each process logs its changes in a file outside of the store. After each round a new process compares the two exactly.
``--damage`` damages every kind of file in every way, during open sessions and before a new one opens the store.

The exit status is 0 if nothing was lost, duplicated or wrong, no damage was silent and no interpreter died.
Needs a system with ``fork``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import random
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs
from crash.changes import began_at
from crash.damage import Case, Sample, outcome_of, sweep
from crash.model import ExpectedState
from crash.oracle import BAD, Child, Store, Tally, Verdict, fork, judged
from crash.power import KEPT, build, environment, lose_unsynced, record
from crash.sabotage import SABOTAGES, plant
from crash.writers import ENDINGS, Task, run

from mama_structs import admin
from mama_structs.storage.postgres.pool import has_session
from mama_structs.testing.conformance.ack_log import HANG_TIMEOUT_SECONDS, AckLog

EARLY: Final = "early"
UNSYNCED: Final = "unsynced"
PLANTED: Final = ("row", *SABOTAGES)
"""The faults that `--sabotage` adds to the store between rounds."""
# Probability that a round on a directory ends with a simulated power failure.
_POWER_FAILURES: Final = 0.2
# Types of errors that kills, forks and injected faults must not cause.
_FALSE: Final = ("store_damaged", "wrong_loop", "closed", "not_found")
_DELETIONS: Final = 50
# Maximum number of rounds per store, because comparing a store takes longer with each round.
_ROUNDS_OF_A_STORE: Final = 12
# Modules to import before a fork. Otherwise each forked process would take a second to import them.
_LOADED: Final = (
    "memory.store.factory session.backend session.wiring storage.backup "
    "tools.deprecated tools.exposed_tools tools.exposure tools.memory_results tools.memory_tools tools.ref_tools"
)
_POLL: Final = 0.004
_EVERY: Final = 5.0


@attrs.define
class Loop:
    """Runs the rounds of the crash test, and holds the state that they share."""

    place: Path
    seed: int
    writers: int
    sabotage: str
    table: Tally = attrs.field(factory=Tally)
    # The URL of the server's database, which all rounds use as one store, and the command that restarts the server.
    server: str | None = None
    restart: Sequence[str] = ()
    # The preloaded library, or None if power failures cannot be simulated.
    library: Path | None = None
    # The current store, and the lines of its log.
    store: Store = attrs.field(init=False)
    lines: list[str] = attrs.field(factory=list, init=False)
    # True after a fault. The next round then uses a new store, so that it does not report the same fault again.
    spoilt: bool = attrs.field(default=False, init=False)

    def round(self, number: int) -> None:
        """Run writers, kill some of them, and compare the store."""
        chance = random.Random(f"{self.seed}-{number}")
        if number == 0 or (self.server is None and (number % _ROUNDS_OF_A_STORE == 0 or self.spoilt)):
            self.begin(number)
        book = self.place / f"round-{number}.jsonl"
        self.table.counts["rounds"] += 1
        library = self.library if isinstance(self.store, Path) else None
        fails = library is not None and (self.sabotage == UNSYNCED or chance.random() < _POWER_FAILURES)
        shadow = self.place / "shadow"
        with contextlib.closing(_Round(self, number, chance, book, library=library if fails else None)) as one:
            with self.table.held():
                if fails and isinstance(self.store, Path):
                    record(self.store, shadow)
                one.start()
            self.table.go_on()
            one.watch()
        if fails and isinstance(self.store, Path):
            self.table.counts["power failures"] += 1
            kept = 0.0 if self.sabotage == UNSYNCED else KEPT
            self.table.counts["files that lost writes"] += lose_unsynced(self.store, shadow, chance, kept=kept)
        if self.sabotage == EARLY:
            # The runner writes these log lines itself, because a writer may be killed before it logs anything.
            spec = {"tag": f"r{number}-early", "type": "context", "origin": "user"}
            AckLog.open(book).append("begin", spec["tag"], "default", "save", began_at(), {"memories": [spec]})
            AckLog.open(book).append("end", spec["tag"], {})
        said = book.read_text().splitlines()
        self.account(said, one.killed)
        facts = ExpectedState().hear([*self.lines, *said])
        self.table.counts["acknowledged changes"] += facts.acknowledged - ExpectedState().hear(self.lines).acknowledged
        if self.sabotage in PLANTED:
            self.plant(facts)
        self.judge(facts, number)
        self.judge_backups(said, facts, number)
        self.lines += said
        if not self.spoilt and isinstance(self.store, Path) and chance.random() < 0.3:
            self.damage(facts, number, chance, self.store)

    def begin(self, number: int) -> None:
        """Switch to a new store, and delete the previous one unless it has a fault."""
        if number and not self.spoilt:
            shutil.rmtree(self.store)
        self.store, self.lines, self.spoilt = self.server or self.place / f"store-{number}", [], False

    def account(self, said: Sequence[str], killed: set[int]) -> None:
        """Count the actions and the exits of the processes."""
        born, done, ended = {}, set(), {}
        for line in said:
            match json.loads(line):
                case ["born", pid, kind]:
                    born[pid] = kind
                case ["done", pid]:
                    done.add(pid)
                case ["dies", pid]:
                    killed.add(pid)
                    self.table.counts["parents that died" if born.get(pid) == "parent" else "processes that died"] += 1
                case ["ended", pid, number]:
                    ended[pid] = number
                case ["unseen", _, memory_id]:
                    self.table.note("wrong", f"{memory_id} was acknowledged, and not seen by the next call")
                case ["forks", _]:
                    self.table.counts["forks"] += 1
                case ["closes", _]:
                    self.table.counts["parents that closed"] += 1
                case ["refused", kind, text]:
                    self.table.counts[f"refused: {kind}"] += 1
                    if kind in _FALSE:
                        self.table.note("wrong", f"{kind} where nothing was damaged: {text}")
                case ["untyped", text]:
                    self.table.note("wrong", f"an error without a type: {text}")
        self.table.counts["processes"] += len(born)
        for pid in (set(born) | set(ended)) - done - killed:
            self.table.note(
                "dead", f"a {born.get(pid, 'process')} ended by itself (signal {ended.get(pid, 'unknown')})"
            )

    def plant(self, facts: ExpectedState) -> None:
        """Add the requested fault to the store, in a separate process."""
        child = Child.start(lambda _pause: plant(self.store, facts, self.sabotage), self.place / "errors")
        self.table.counts["planted faults"] += child.wait() == "true"
        child.end()

    def judge(self, facts: ExpectedState, number: int) -> None:
        """Compare the store with its expected state in a new process, and count the faults."""
        verdict, ended = judged(self.store, facts, self.place / "errors")
        self.take(verdict, ended, f"round {number}")

    def take(self, verdict: Verdict | None, ended: int, where: str) -> None:
        """Count the faults in the verdict that a new process returned for an undamaged store."""
        if verdict is None:
            self.table.note("dead", f"{where}: who opened the store ended with {ended}")
            return
        for kind, lines in (("lost", verdict.lost), ("duplicated", verdict.duplicated)):
            self.table.note(kind, *(f"{where}: {one}" for one in lines))
        # A process that is killed during re-embedding leaves orphaned vectors, so this warning is expected.
        found = [one for one in verdict.findings if not one.startswith("warning orphan")]
        odd = [*verdict.wrong, *verdict.errors, *verdict.untyped, *found, *verdict.warnings]
        self.table.note("wrong", *(f"{where}: {one}" for one in odd))
        self.spoilt = self.spoilt or bool(verdict.lost or verdict.duplicated or odd)

    def judge_backups(self, said: Sequence[str], facts: ExpectedState, number: int) -> None:
        """Compare each backup with the possible states of the store during the backup."""
        text = "".join(f"{line}\n" for line in said).encode()
        for path, length in facts.backups[len(ExpectedState().hear(self.lines).backups) :]:
            before = text[: text.rfind(b"\n", 0, length) + 1].decode().splitlines()
            # The backup may also contain changes that were made during the copy.
            known = ExpectedState().hear([*self.lines, *before]).loosen().hear(said[len(before) :])
            verdict, ended = judged(Path(path), known, self.place / "errors")
            if not self.spoilt:
                self.take(verdict, ended, f"a backup of round {number}")
            self.table.counts["backups"] += 1
            shutil.rmtree(path)

    def damage(self, facts: ExpectedState, number: int, chance: random.Random, store: Path) -> None:
        """Damage a copy of the store, and count the outcome."""
        case = Case.any(chance)
        sample = Sample(self.place / "sample", store, facts, older=None, other=None)
        outcome, verdict = outcome_of(case, sample, seed=number)
        if outcome != "none":
            self.table.counts["damaged files"] += 1
            self.table.counts[f"damaged: {case.file}"] += 1
        if outcome in ("SILENT", "WRONG", "DEAD", "UNTYPED"):
            kind = {"SILENT": "silent", "DEAD": "dead"}.get(outcome, "wrong")
            self.table.note(kind, f"round {number}: {case}: {verdict}")


@attrs.define
class _Round:
    """The processes of one round."""

    loop: Loop
    number: int
    chance: random.Random
    book: Path
    # The preloaded library, or None unless the round ends with a simulated power failure.
    library: Path | None = attrs.field(default=None, kw_only=True)
    pids: list[int] = attrs.field(factory=list, init=False)
    killed: set[int] = attrs.field(factory=set, init=False)
    _alive: tuple[int, int] = attrs.field(factory=os.pipe, init=False)
    _offset: int = attrs.field(default=0, init=False)
    _lines: int = attrs.field(default=0, init=False)
    _born: list[int] = attrs.field(factory=list, init=False)
    _done: set[int] = attrs.field(factory=set, init=False)

    def start(self) -> None:
        """Start the process groups of this round."""
        AckLog.open(self.book)
        chance = self.chance
        try:
            for place in range(chance.randrange(1, self.loop.writers + 1)):
                kind = chance.choice(("writer", "writer", "parent", "parent", "preload", "pool", "keeper"))
                fault = chance.choice(("", "", "full", "failing", "interrupted")) if kind == "writer" else ""
                fault = "" if self.loop.server else fault
                task = Task(
                    kind=kind,
                    store=str(self.loop.store),
                    book=str(self.book),
                    name=f"r{self.number}-{kind[0]}{place}",
                    seed=chance.randrange(2**32),
                    alive=self._alive[1],
                    changes=chance.choice((5, 20, 40)),
                    fault=fault,
                    ending=chance.choice(ENDINGS),
                    children=chance.randrange(1, 4),
                )
                if fault:
                    self.loop.table.counts["full disks" if fault == "full" else f"{fault} SQLite calls"] += 1
                if task.kind == "parent" and task.ending == "again":
                    self.loop.table.counts["parents that forked again"] += 1
                # Fork most processes, because spawned interpreters start slowly. Preloading requires spawning.
                spawned = self.library is not None or chance.random() < 0.25
                self.pids.append(self._started(task, spawned=spawned))
        finally:
            os.close(self._alive[1])

    def _started(self, task: Task, *, spawned: bool) -> int:
        errors = (self.loop.place / "errors").open("ab")
        with errors:
            if spawned:
                command = [sys.executable, "-W", "ignore", "-m", "crash.writers"]
                process = subprocess.Popen(
                    [*command, json.dumps(attrs.asdict(task))],
                    stdout=errors, stderr=errors, pass_fds=[self._alive[1]], start_new_session=True,
                    env=self._environment(),
                )  # fmt: skip
                # `close` reaps the process with `waitpid`, so Popen must not wait for it.
                process.returncode = 0
                return process.pid

            def work() -> None:
                os.setsid()
                os.close(self._alive[0])
                os.dup2(errors.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                run(task)

            return fork(work)

    def _environment(self) -> dict[str, str] | None:
        if self.library is None or not isinstance(self.loop.store, Path):
            return None
        ignored = "cache.db-wal" if self.loop.sabotage == UNSYNCED else ""
        return environment(self.library, self.loop.store, self.loop.place / "shadow", unsynced=ignored)

    def watch(self) -> None:
        """Kill and pause random processes after random numbers of changes, then wait until all processes have exited."""
        if self.library is not None:
            self._fail_power()
            return
        until = time.monotonic() + HANG_TIMEOUT_SECONDS
        strikes = self.chance.randrange(1, 4 * self.loop.writers)
        restarted = self.chance.randrange(strikes) if self.loop.restart else None
        for number in range(strikes):
            after = self._lines + self.chance.randrange(0, 40)
            while self._lines < after and self._anyone(_POLL):
                self._listen()
            time.sleep(self.chance.uniform(0, 0.02))
            self._strike()
            if number == restarted:
                subprocess.run(self.loop.restart, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
                self.loop.table.counts["restarts of the server"] += 1
        while self._anyone(0.1):
            self._listen()
            if time.monotonic() > until:
                self.loop.table.note("dead", f"round {self.number}: processes hung")
                for pid in set(self._born) - self._done - self.killed:
                    with contextlib.suppress(ProcessLookupError):
                        # On SIGABRT, faulthandler writes the current traceback to the error file.
                        os.kill(pid, signal.SIGABRT)
                break

    def _fail_power(self) -> None:
        """Simulate a power failure: let the processes write for a while, then kill all of them."""
        until = time.monotonic() + HANG_TIMEOUT_SECONDS
        after = self.chance.randrange(10, 120)
        while self._lines < after and self._anyone(_POLL) and time.monotonic() < until:
            self._listen()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
                self.loop.table.counts["kills"] += 1
        self._anyone(HANG_TIMEOUT_SECONDS)
        self._listen()
        self.killed.update(pid for pid in self._born if pid not in self._done)

    def _strike(self) -> None:
        self._listen()
        alive = [pid for pid in self._born if pid not in self._done and pid not in self.killed]
        if not alive:
            return
        pid = self.chance.choice(alive)
        with contextlib.suppress(ProcessLookupError):
            if self.chance.random() < 0.25:
                os.kill(pid, signal.SIGSTOP)
                self.loop.table.counts["stops"] += 1
                self._anyone(self.chance.uniform(0, 0.3))
                os.kill(pid, signal.SIGCONT)
            else:
                self.killed.add(pid)
                os.kill(pid, signal.SIGKILL)
                self.loop.table.counts["kills"] += 1

    def _listen(self) -> None:
        """Read new log lines, and update the started and finished processes."""
        with self.book.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        for line in text.splitlines():
            self._lines += 1
            if line.startswith(b'["born"'):
                self._born.append(json.loads(line)[1])
            elif line.startswith(b'["done"'):
                self._done.add(json.loads(line)[1])

    def _anyone(self, seconds: float) -> bool:
        """Wait at most *seconds* for all processes to exit, and return True if one is still alive."""
        ready, _, _ = select.select([self._alive[0]], [], [], seconds)
        return not ready

    def close(self) -> None:
        """Kill the remaining processes, reap all children, and wait for their descendants."""
        with self.loop.table.held():
            for pid in self.pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    # Kill the process group, because orphaned pool workers would block forever.
                    os.killpg(pid, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):
                    # The child may not have created its process group yet, so kill the process itself, too.
                    os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                self._listen()
                code = os.waitstatus_to_exitcode(status)
                if code < 0:
                    AckLog.open(self.book).append("ended", pid, -code)
            self._anyone(HANG_TIMEOUT_SECONDS)
            os.close(self._alive[0])


@contextlib.contextmanager
def _place(directory: Path | None, table: Tally) -> Iterator[Path]:
    """Create the directory of a run, and delete it at the end unless there are faults."""
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="mama-structs-crash-", dir=directory))
    try:
        yield place
    finally:
        if table.ok:
            # Retry, because a process that was just killed may create a file during the deletion.
            for _ in range(_DELETIONS):
                shutil.rmtree(place, ignore_errors=True)
                if not place.exists():
                    break
                time.sleep(0.1)
        else:
            _say(f"kept: {place}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m crash.runner", description=__doc__.split("\n\n")[0].strip())
    parser.add_argument("--minutes", type=float, metavar="M", help="how long (1 where --rounds is not given either)")
    parser.add_argument("--rounds", type=int, metavar="N", help="how many rounds")
    parser.add_argument(
        "--damage", action="store_true", help="damage every kind of file in every way, instead of the loop"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="only so many cases of --damage, taken at random")
    parser.add_argument(
        "--seed", type=int, metavar="S", help="repeats the plan of a run; when processes run stays open"
    )
    parser.add_argument("--directory", type=Path, metavar="D", help="where the stores are made (a temporary place)")
    parser.add_argument(
        "--server", metavar="URL", help="write to a PostgreSQL server, in a database with no memories in it"
    )
    parser.add_argument(
        "--restart",
        metavar="COMMAND",
        help="with --server: what ends it in the middle of each round and starts it again",
    )
    parser.add_argument("--writers", type=int, default=4, metavar="N", help="families of processes at once, at most")
    parser.add_argument(
        "--sabotage", choices=(EARLY, "old", UNSYNCED, *PLANTED), default="", metavar="KIND",
        help="test this test, which must fail: acknowledge a change that was not made (early), restore an old store "
        "(old, with --damage), ignore the syncs of the log (unsynced), or plant a fault in the store: "
        + ", ".join(PLANTED),
    )  # fmt: skip
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rounds or the damage sweep, print a table, and return 0 if there are no faults."""
    given = _arguments(argv)
    if not hasattr(os, "fork"):
        _say("this system has no fork")
        return 2
    seed = random.randrange(2**32) if given.seed is None else given.seed
    _say(f"seed {seed}")
    is_used = given.server and has_session(given.server)
    if is_used and (full := asyncio.run(admin.list_namespaces(given.server))):
        _say(f"the database has memories or conversations of {full[0]!r:.80}; name an empty one")
        return 2
    table = Tally()
    before = signal.signal(signal.SIGINT, table.interrupt)
    for name in _LOADED.split():
        importlib.import_module(f"mama_structs.{name}")
    with _place(given.directory, table) as place:
        try:
            if given.damage:
                sweep(
                    place,
                    table,
                    seed=seed,
                    sample=given.sample,
                    sabotage=bool(given.sabotage),
                    say=_say,
                )
            else:
                library = build(place)
                if isinstance(library, str):
                    _say(f"no power failures: {library}")
                loop = Loop(
                    place,
                    seed,
                    given.writers,
                    given.sabotage,
                    table,
                    given.server,
                    shlex.split(given.restart or ""),
                    library if isinstance(library, Path) else None,
                )
                _rounds(loop, given.minutes, given.rounds)
        except KeyboardInterrupt:
            _say("interrupted")
        finally:
            signal.signal(signal.SIGINT, before)
    for line in table.bad[:40]:
        _say(line)
    _say(str(table))
    return 0 if table.ok else 1


def _rounds(loop: Loop, minutes: float | None, rounds: int | None) -> None:
    began = told = time.monotonic()
    end = began + 60 * (1.0 if minutes is None else minutes) if rounds is None or minutes is not None else float("inf")
    number = 0
    while time.monotonic() < end and (rounds is None or number < rounds) and not (loop.server and loop.spoilt):
        loop.table.go_on()
        loop.round(number)
        number += 1
        if time.monotonic() - told > _EVERY:
            told = time.monotonic()
            figures = ", ".join(
                f"{loop.table.counts[name]:,} {name}" for name in ("kills", "acknowledged changes", *BAD)
            )
            _say(f"{told - began:5.0f} s: {number} rounds, {figures}")


if __name__ == "__main__":
    sys.exit(main())
