"""Damage to the files of a store, while it is open or before a new process opens it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
from crash.changes import write
from crash.comparison import Comparison, note_findings
from crash.model import ExpectedState
from crash.oracle import Child, Tally, Verdict, judged, opened

from mama_structs import admin
from mama_structs.testing.conformance.ack_log import AckLog

FILES: Final = (
    "cache.db",
    "cache.db-wal",
    "cache.db-shm",
    "FORMAT",
    "locks",
    "manifest",
    "manifest-before",
    "lock",
    "catalogue",
    "journal",
    "links",
    "vectors",
    "words",
)
"""All kinds of files. Files in ``views`` (the last five) have a suffix; `_path` finds them by these prefixes."""

STATES: Final = ("closed", "killed", "live")
"""The store's last process has closed it or was killed before the damage, or a live process has the store open."""

_PAGE_BYTES: Final = 4096
_CONVERSATION: Final = "c-sample"


def _cut(path: Path, size: int) -> None:
    os.truncate(path, max(size, 0))


def _overwrite(path: Path, place: int, text: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(text)


def _flip(path: Path, place: int) -> None:
    with path.open("rb") as file:
        file.seek(place)
        text = file.read(16)
    _overwrite(path, place, bytes(byte ^ 0x5A for byte in text))


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _size(path: Path) -> int:
    return path.stat().st_size


# Functions that damage the file at a path; some of them use the random number generator.
DAMAGES: Final[dict[str, Callable[[Path, random.Random], None]]] = {
    "emptied": lambda path, _: _cut(path, 0),
    "cut in half": lambda path, _: _cut(path, _size(path) // 2),
    "cut by a byte": lambda path, _: _cut(path, _size(path) - 1),
    "a page of zeros": lambda path, chance: _overwrite(
        path, chance.randrange(_size(path) // _PAGE_BYTES + 1) * _PAGE_BYTES, bytes(min(_PAGE_BYTES, _size(path)))
    ),
    "flipped head": lambda path, _: _flip(path, 0),
    "flipped middle": lambda path, _: _flip(path, _size(path) // 2),
    "flipped end": lambda path, _: _flip(path, max(_size(path) - 16, 0)),
    "deleted": lambda path, _: path.unlink(),
    "a directory": lambda path, _: _directory(path),
    "rubbish": lambda path, chance: _replace(path, chance.randbytes(_size(path) or 100)),
}
REPLACEMENTS: Final = ("an older copy", "another store's")


def _replace(path: Path, text: bytes) -> None:
    other = path.with_name(f"{path.name}.new")
    other.write_bytes(text)
    other.replace(path)


@attrs.frozen
class Case:
    """A test case: the damaged file, the kind of damage, and the state of the store."""

    file: str
    damage: str
    state: str

    def __str__(self) -> str:
        return f"{self.file} {self.damage} ({self.state})"

    @classmethod
    def all(cls) -> list[Case]:
        """Return all cases. A closed store has no write-ahead log, so no case damages it."""
        return [
            cls(file, damage, state)
            for state in STATES
            for file in FILES
            for damage in (*DAMAGES, *REPLACEMENTS)
            if state != "closed" or not file.startswith("cache.db-")
        ]

    @classmethod
    def any(cls, chance: random.Random) -> Case:
        """Return a random case that does not replace the file with a file of another store."""
        return cls(chance.choice(FILES), chance.choice(list(DAMAGES)), chance.choice(("killed", "live")))

    def apply(self, directory: Path, chance: random.Random, *, older: Path | None, other: Path | None) -> bool:
        """Damage the file, and return True if it existed."""
        path = _path(directory, self.file)
        if path is None:
            return False
        if self.damage in DAMAGES:
            DAMAGES[self.damage](path, chance)
            return True
        origin = older if self.damage == REPLACEMENTS[0] else other
        source = None if origin is None else _path(origin, self.file)
        if source is None:
            return False
        _replace(path, source.read_bytes())
        return True


def _path(directory: Path, file: str) -> Path | None:
    """Return the path of the first file of this kind in a store, or None if there is no such file."""
    if file.startswith("cache.db") or file == "FORMAT":
        found = [directory / "journal" / file]
    elif file == "locks":
        found = [directory / file]
    else:
        found = sorted(
            one for one in directory.glob("views/*/*") if one.name == file or one.name.startswith(f"{file}-")
        )
        found = [one for one in found if file != "manifest" or one.name == file]
    return next((one for one in found if one.is_file()), None)


@attrs.frozen
class Sample:
    """A template store whose copies are damaged, its expected state, and two stores with replacement files."""

    place: Path
    store: Path
    facts: ExpectedState
    older: Path | None
    other: Path | None


def outcome_of(case: Case, sample: Sample, *, seed: int, sabotage: bool = False) -> tuple[str, str]:
    """
    Damage a copy of the sample, and return the outcome and its first message.

    ``correct``: all acknowledged changes are there. ``error``, ``finding``, ``warning``: a change is missing or uncertain,
    and the store reports it in this way. ``none``: the file does not exist. ``SILENT``, ``WRONG``, ``UNTYPED`` and
    ``DEAD`` are failures.
    """
    shutil.rmtree(sample.place, ignore_errors=True)
    sample.place.mkdir()
    directory, errors = sample.place / "store", sample.place / "errors"
    # Sabotage: replace the store with an older copy. No check detects this, so the sweep must report a silent loss.
    origin = sample.older if sabotage and sample.older is not None else sample.store
    shutil.copytree(origin, directory)
    chance = random.Random(f"{seed}-{case}")

    def damage() -> bool:
        return case.apply(directory, chance, older=sample.older, other=sample.other)

    known, seen = sample.facts, Verdict()
    if case.state == "live":
        book = sample.place / "book"
        live = Child.start(lambda pause: _live(directory, known, book, pause), errors)
        if live.wait() is None:
            return "DEAD", f"before the damage, with {live.end()}"
        done = damage()
        live.go_on()
        line = live.wait()
        ended = live.end()
        if line is None:
            return "DEAD", f"the process that had it open ended with {ended}"
        seen = Verdict(**json.loads(line))
        said = _lines_of(book)
        known = known.copy().hear(said)
    else:
        done = damage()
    if not done:
        return "none", ""
    fresh, ended = judged(directory, known, errors)
    if fresh is None:
        return "DEAD", f"the process that opened it ended with {ended}"
    return _classified(seen, fresh)


def _classified(live: Verdict, fresh: Verdict) -> tuple[str, str]:
    both = live.joined(fresh)
    if both.untyped:
        return "UNTYPED", both.untyped[0]
    if both.wrong and not both.is_said:
        return "WRONG", both.wrong[0]
    if both.lost and not both.is_said:
        return "SILENT", f"{len(both.lost)} lost, the first {both.lost[0]}"
    for name, lines in (("error", both.errors), ("finding", both.findings), ("warning", both.warnings)):
        if lines:
            return name, lines[0]
    return "correct", ""


def _live(directory: Path, facts: ExpectedState, book: Path, pause: Callable[[], None]) -> dict[str, Any]:
    """Write to a store, pause while it is damaged, write again, and then read and check the whole store."""
    verdict = Verdict()
    own = AckLog.open(book)

    async def main() -> None:
        async with opened(directory, "default", _CONVERSATION) as session:
            await write(session, own, "live-a", random.Random(1), 6)
            await session.memories.search("shield raid")
            pause()
            with verdict.noting("a search"):
                await session.memories.search("shield raid guild")
            await write(session, own, "live-b", random.Random(2), 6)
            now = Comparison(facts.copy().hear(_lines_of(book)), verdict)
            with verdict.noting("reading"):
                await now.compare_memories(session)
                await now.compare_records(session)
            now.compare_refs(session, now.facts.conversation("default", _CONVERSATION))
            with verdict.noting("the check"):
                note_findings(verdict, (await admin.check(session)).issues)

    with verdict.listening(), verdict.noting("the session"):
        asyncio.run(main())
    for line in _lines_of(book):
        match json.loads(line):
            case ["refused", kind, text]:
                verdict.errors.append(f"{kind}: {text}")
            case ["untyped", text]:
                verdict.untyped.append(text)
    return attrs.asdict(verdict)


def _lines_of(book: Path) -> list[str]:
    return book.read_text().splitlines()


@contextlib.contextmanager
def _samples(place: Path) -> Iterator[dict[str, Sample]]:
    """
    Create the stores that the sweep damages, and yield a sample per state.

    Only the store of the state "closed" is closed properly. All others still have a write-ahead log.
    """
    stores = {name: place / f"sample-{name}" for name in ("older", "closed", "killed", "other")}
    book = place / "sample.jsonl"

    def fill(directory: Path, name: str, seed: int, *, dies: bool = False) -> None:
        async def main() -> None:
            async with opened(directory, "default", _CONVERSATION) as session:
                own = AckLog.open(book if not name.startswith("other") else place / "other.jsonl")
                await write(session, own, f"sample-{name}", random.Random(seed), 35)
                if dies:
                    os._exit(0)

        ended = Child.start(lambda _pause: asyncio.run(main()), place / "errors")
        ended.wait()
        ended.end()

    facts = {}
    fill(stores["older"], "older-0", 0)
    for number, name in enumerate(("older", "closed", "killed"), start=1):
        if name != "older":
            shutil.copytree(stores["older" if name == "closed" else "closed"], stores[name])
        # A process that dies leaves its write-ahead log, which can then replace the log of another store.
        fill(stores[name], f"{name}-{number}", number, dies=name != "closed")
        facts[name] = ExpectedState().hear(_lines_of(book))
    fill(stores["other"], "other-1", 9)
    fill(stores["other"], "other-2", 10, dies=True)
    work = place / "case"
    yield {
        state: Sample(work, stores[name], facts[name], stores["older"], stores["other"])
        for state, name in (("closed", "closed"), ("killed", "killed"), ("live", "killed"))
    }


def sweep(
    place: Path,
    tally: Tally,
    *,
    seed: int,
    sample: int | None,
    sabotage: bool,
    say: Callable[[str], None],
) -> None:
    """Damage every kind of file in every way, or a random sample of these cases, and print the outcomes per file."""
    cases = Case.all()
    if sample is not None:
        cases = random.Random(seed).sample(cases, min(sample, len(cases)))
    table: dict[str, Counter[str]] = {file: Counter() for file in FILES}
    try:
        with _samples(place) as samples:
            for number, case in enumerate(cases):
                tally.go_on()
                outcome, text = outcome_of(case, samples[case.state], seed=seed, sabotage=sabotage)
                table[case.file][outcome] += 1
                if outcome != "none":
                    tally.counts["damaged files"] += 1
                if outcome.isupper():
                    tally.note({"SILENT": "silent", "DEAD": "dead"}.get(outcome, "wrong"), f"{case}: {outcome}: {text}")
                if number % 20 == 19:
                    say(f"{number + 1} of {len(cases)} files")
    finally:
        for line in _lines(table):
            say(line)


def _lines(table: dict[str, Counter[str]]) -> Iterator[str]:
    names = ("correct", "error", "finding", "warning", "SILENT", "WRONG", "UNTYPED", "DEAD")
    yield f"{'':16}" + "".join(f"{name:>9}" for name in names)
    for file, outcomes in table.items():
        yield f"{file:16}" + "".join(f"{outcomes[name] or '':>9}" for name in names)
