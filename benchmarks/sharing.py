"""
The cost of sharing a directory between processes, compared with plain diskcache.

One process loads in bulk while another saves single memories. This alternates with the loader alone, so that slow phases
of the machine and the growth of the store affect both. The plain pair does the same, with equally large transactions.
Then another process holds the write lock, a process forks, a memory with many links is deleted, and the views are
rebuilt. Vectors are looked up: embedding is not measured, as in memories.py.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import diskcache
import numpy as np
from _common import MILLI, RESULTS, Seconds, quantiles, report
from _scale import some_link
from memories import DIMENSIONS, Corpus, LookupEmbedder, compute_created_at, corpus, normalize_vectors, row_sizes, timed

from mama_structs import Session, admin
from mama_structs.errors import StoreBusy
from mama_structs.memory.types.model import METADATA_TYPES, Memory, MemoryType
from mama_structs.settings import MemorySettings, Settings

# For each load, True if the saver runs too. The cases alternate, so that the store's growth affects them equally.
TURNS = (False, True, True, False)
SPARE = 5_000
RAW_WAIT = 10.0
LONGEST_RAW = 5.0  # Limits the disk usage: the files grow by 20 MB per second.


class Sizes(NamedTuple):
    """The amounts of data in a run."""

    memories: int
    windows: int
    seconds: float
    opens: int
    forks: int
    links: int


QUICK = Sizes(40, 4, 0.05, 1, 1, 12)


class Texts(NamedTuple):
    """The corpus in files, so that every process can read it."""

    folder: Path

    def write(self, lines: Corpus) -> None:
        (self.folder / "texts.json").write_text(json.dumps([lines.texts, lines.topics, lines.questions]))
        np.save(self.folder / "vectors.npy", np.concatenate([lines.vectors, lines.question_vectors]))

    def read(self) -> Corpus:
        texts, topics, questions = json.loads((self.folder / "texts.json").read_text())
        vectors = np.load(self.folder / "vectors.npy", allow_pickle=False)
        return Corpus("", texts, topics, vectors[: len(texts)], questions, vectors[len(texts) :])


class Helper:
    """A helper process that executes requests. Each request and each answer is a line of JSON."""

    def __init__(self, role: str, *given: object) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - a script of the benchmarks
            [sys.executable, __file__, "--role", role, *map(str, given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.hear()

    def send(self, told: object = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a helper ended: {self._process.wait()}")
        return json.loads(line)

    def request(self, told: object = None) -> Any:
        self.send(told)
        return self.hear()

    def end(self) -> None:
        """Close the input of the process, and wait until it ends."""
        with self._process:
            pass


@contextmanager
def helpers(*those: Helper) -> Iterator[tuple[Helper, ...]]:
    try:
        yield those
    finally:
        for one in those:
            one.end()


def say(said: object) -> None:
    print(json.dumps(said), flush=True)


def iterate_requests() -> Iterator[Any]:
    """Report that the helper is ready, and yield the requests until the input ends."""
    say("ready")
    for line in sys.stdin:
        yield json.loads(line)


def measured(owner: Any, name: str) -> Seconds:
    """Wrap a method, and return a list that receives the duration of each of its calls."""
    own, taken = getattr(owner, name), []

    def measuring(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return own(*args, **options)
        finally:
            taken.append(time.perf_counter() - started)

    setattr(owner, name, measuring)
    return taken


class Parts:
    """Durations of the parts of a write."""

    def __init__(self, session: Session) -> None:
        engine = session.memories._engine  # noqa: SLF001 - measured
        storage = engine._storage  # noqa: SLF001 - likewise
        self._begun, self._whole = measured(storage, "_begin_write"), measured(storage, "_run_transaction")
        self._taken_up = measured(engine, "_catch_up")

    @property
    def transactions(self) -> int:
        return len(self._whole)

    def pop_durations(self) -> dict[str, Seconds]:
        """Return the durations since the last call of this method."""
        found = {
            "waits for the lock": [*self._begun],
            "holds the lock": [whole - begun for whole, begun in zip(self._whole, self._begun, strict=True)],
            "takes up the others' changes": [*self._taken_up],
        }
        for one in (self._begun, self._whole, self._taken_up):
            one.clear()
        return found


class Stopped:
    """An object that becomes true when the next line of input arrives."""

    def __init__(self) -> None:
        self._line = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

    def __bool__(self) -> bool:
        return self._line.done()


async def lines_told() -> Any:
    """Report that the helper is ready, and yield the requests without blocking the event loop."""
    say("ready")
    while line := await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        yield json.loads(line)


# Helper processes


async def loader(directory: str, texts: str) -> None:
    """For each request, load a range of memories. Report the duration and the number of transactions."""
    lines = Texts(Path(texts)).read()
    async with Session.open(directory, embedder=lines.embedder()) as session:
        parts = Parts(session)
        async for start, stop in lines_told():
            seconds = await timed(session.memories.save_many(lines.records(start, stop)))
            say([seconds, parts.transactions, parts.pop_durations()])


async def saver(directory: str, texts: str, start: str) -> None:
    """
    Save single memories until the next line of input arrives.

    Report the durations and the number of busy errors.
    """
    lines = Texts(Path(texts)).read()
    numbers = itertools.count(int(start))
    async with Session.open(directory, embedder=lines.embedder()) as session:
        parts = Parts(session)
        async for _ in lines_told():
            stopped, taken, busy = Stopped(), [], 0
            while not stopped or not taken:
                at = next(numbers)
                text, topic = (lines.texts[at], lines.topics[at]) if at < len(lines.texts) else (f"later {at}", None)
                started = time.perf_counter()
                try:
                    await session.memories.save_context(text, topic=topic)
                except StoreBusy:
                    busy += 1
                taken.append(time.perf_counter() - started)
            say([taken, busy, parts.pop_durations()])


def raw_pairs(texts: str) -> list[tuple[bytes, bytes]]:
    return row_sizes(Texts(Path(texts)).read().texts[:2_000])


def raw_cache(folder: str) -> diskcache.Cache:
    """Open diskcache directly, with the same durability and lock timeout as this package."""
    return diskcache.Cache(
        folder,
        timeout=RAW_WAIT,
        eviction_policy="none",
        cull_limit=0,
        sqlite_synchronous=2,
        disk_min_file_size=2**30,
    )


def raw_put(cache: diskcache.Cache, key: str, pair: tuple[bytes, bytes]) -> None:
    cache.set(f"m/{key}", pair[0])
    cache.set(f"v/{key}", pair[1])


def raw_loader(directory: str, texts: str) -> None:
    """Write pairs of rows for some seconds, with several pairs per transaction."""
    pairs, numbers, busy = raw_pairs(texts), itertools.count(), 0
    with raw_cache(directory) as cache:
        for seconds, together in iterate_requests():
            started, written = time.perf_counter(), 0
            while time.perf_counter() - started < seconds:
                try:
                    with cache.transact():
                        for at in itertools.islice(numbers, together):
                            raw_put(cache, f"{at % 50_000:016x}", pairs[at % len(pairs)])
                    written += together
                except diskcache.Timeout:
                    busy += 1
            say([time.perf_counter() - started, written, {}])


async def raw_saver(directory: str, texts: str) -> None:
    pairs, numbers = raw_pairs(texts), itertools.count()
    with raw_cache(directory) as cache:
        async for _ in lines_told():
            stopped, taken, busy = Stopped(), [], 0
            while not stopped or not taken:
                at = next(numbers)
                started = time.perf_counter()
                try:
                    with cache.transact():
                        raw_put(cache, f"s{at % 50_000:015x}", pairs[at % len(pairs)])
                except diskcache.Timeout:
                    busy += 1
                taken.append(time.perf_counter() - started)
                await asyncio.sleep(0)
            say([taken, busy, {}])


async def searcher(directory: str, texts: str) -> None:
    """Search until the next line of input arrives."""
    lines = Texts(Path(texts)).read()
    async with Session.open(directory, embedder=lines.embedder()) as session:
        await searched(session, lines, until=lambda taken: len(taken) > 20)
        async for _ in lines_told():
            stopped = Stopped()
            say(await searched(session, lines, until=lambda _taken: bool(stopped)))  # noqa: B023 - awaited


async def opener(directory: str, texts: str) -> None:
    """Repeatedly open a session, and count its memories."""
    embedder = Texts(Path(texts)).read().embedder()
    async for times in lines_told():
        taken = []
        for _ in range(times):
            started = time.perf_counter()
            async with Session.open(directory, embedder=embedder) as session:
                await session.memories.count()
                taken.append(time.perf_counter() - started)
        say(taken)


def holder(directory: str) -> None:
    """Acquire the write lock at one line of input, and release it at the next line."""
    (database,) = Path(directory).glob("**/cache.db")
    connection = sqlite3.connect(database, timeout=RAW_WAIT, isolation_level=None)
    for step in iterate_requests():
        connection.execute("BEGIN IMMEDIATE" if step == "take" else "ROLLBACK")
        say("done")
    connection.close()


async def forker(directory: str, texts: str) -> None:
    """Fork once with an open connection and once without. Search and save after each fork."""
    # Since Python 3.12, forking a process with threads emits a warning. Ignore it, as the child exits immediately.
    warnings.simplefilter("ignore", DeprecationWarning)
    lines = Texts(Path(texts)).read()
    numbers = itertools.count()

    def fork() -> float:
        started = time.perf_counter()
        child = os.fork()
        if not child:
            os._exit(0)
        forked = time.perf_counter() - started
        os.waitpid(child, 0)
        return forked

    async with Session.open(directory, embedder=lines.embedder()) as session:

        async def search() -> float:
            return (await searched(session, lines, until=lambda taken: len(taken) == 1))[0]

        async def save() -> float:
            return await timed(session.memories.save_context(f"after a fork {next(numbers)} {os.getpid()}"))

        await save()
        async for times in lines_told():
            found: dict[str, Seconds] = {}

            def note(name: str, seconds: float, found: dict[str, Seconds] = found) -> None:
                found.setdefault(name, []).append(seconds)

            for _ in range(times):
                note("fork, a connection open", fork())
                note("fork, none open", fork())
                note("search, the first after it", await search())
                note("search, the next", await search())
                fork()
                note("save, the first after it", await save())
                note("save, the next", await save())
            say(found)


ROLES: dict[str, Callable[..., Any]] = {
    role.__name__: role for role in (loader, saver, raw_loader, raw_saver, searcher, opener, holder, forker)
}


# Measurements


async def searched(session: Session, lines: Corpus, *, until: Callable[[Seconds], bool]) -> Seconds:
    taken: Seconds = []
    while not until(taken):
        question = lines.questions[len(taken) % len(lines.questions)]
        await session.memories._shared.embedding.embed_query(question)  # noqa: SLF001 - not measured
        taken.append(await timed(session.memories.search(question)))
    return taken


class Pair:
    """A bulk loader and a saver of single memories. Their runs alternate with runs of the loader alone."""

    def __init__(self, load: Helper, save: Helper) -> None:
        self.load, self.save = load, save
        self.rates: dict[bool, list[float]] = {False: [], True: []}
        self.singles: Seconds = []
        self.first: Seconds = []
        self.busy = 0
        # The durations of the parts of a write while both processes write.
        self.parts: dict[str, dict[str, Seconds]] = {"loader": {}, "save": {}}
        self._written = {False: 0.0, True: 0.0}
        self._seconds = {False: 0.0, True: 0.0}

    def window(self, loading: object, count: int | None = None, *, beside: bool) -> tuple[float, int]:
        """
        Run one load, alone or together with the saver. Return its seconds and the number that the loader reports.

        *count* is the number of loaded memories. If it is None, the loader reports this number.
        """
        if beside:
            self.save.send()
        seconds, number, loader = self.load.request(loading)
        if beside:
            taken, busy, single = self.save.request()
            for who, parts in (("loader", loader), ("save", single)):
                for name, some in parts.items():
                    self.parts[who].setdefault(name, []).extend(some)
            # Separate the first save: it also applies the changes that were loaded while the saver was idle.
            self.first.append(taken[0])
            self.singles += taken[1:]
            self.busy += busy
        written = number if count is None else count
        self._written[beside] += written
        self._seconds[beside] += seconds
        self.rates[beside].append(written / seconds)
        return seconds, number

    def alone(self, seconds: float) -> Seconds:
        """Measure single saves while the loader is idle."""
        self.save.send()
        time.sleep(seconds)
        taken: Seconds = self.save.request()[0]
        return taken[1:] or taken

    def figures(self, seconds: float) -> dict[str, Any]:
        rates = {name: self._written[beside] / self._seconds[beside] for name, beside in (("alone", 0), ("beside", 1))}
        return {
            "single": quantiles(self.singles or self.first),
            "first after a pause": quantiles(self.first),
            "single alone": quantiles(self.alone(seconds)),
            "busy": self.busy,
            "parts": {who: {name: quantiles(some) for name, some in own.items()} for who, own in self.parts.items()},
            "rate": rates | {"kept": rates["beside"] / rates["alone"]},
            "rates": {"alone": self.rates[False], "beside": self.rates[True]},
        }


def loading(directory: Path, texts: Texts, sizes: Sizes) -> dict[str, Any]:
    """Load in bulk during single saves, alternating with the loader alone; then do the same with plain diskcache."""
    started = time.perf_counter()
    raw_folder = directory.with_name("raw")
    with helpers(
        Helper("loader", directory, texts.folder),
        Helper("saver", directory, texts.folder, sizes.memories),
        Helper("raw_loader", raw_folder, texts.folder),
        Helper("raw_saver", raw_folder, texts.folder),
    ) as (load, save, raw_load, raw_save):
        ours, raw = Pair(load, save), Pair(raw_load, raw_save)
        edges = np.linspace(0, sizes.memories, sizes.windows + 1).astype(int).tolist()
        together: list[float] = []
        for number, (start, stop) in enumerate(itertools.pairwise(edges)):
            beside = TURNS[number % len(TURNS)]
            seconds, transactions = ours.window([start, stop], stop - start, beside=beside)
            together.append((stop - start) / transactions)
            raw.window([min(seconds, LONGEST_RAW), max(1, round(together[-1]))], beside=beside)
            if sizes is not QUICK:
                print(
                    f"{stop:,} loaded after {time.perf_counter() - started:.0f} s, load average {os.getloadavg()[0]:.1f}",
                    file=sys.stderr,
                )
        alone = min(sizes.seconds, 5.0)
        return {
            "ours": ours.figures(alone),
            "raw": raw.figures(alone),
            "memories in a transaction": float(np.median(together)),
        }


async def held(directory: Path, texts: Texts, sizes: Sizes) -> dict[str, Any]:
    """Measure searches, saves and openings while another process holds the write lock."""
    lines = texts.read()
    with helpers(
        Helper("searcher", directory, texts.folder),
        Helper("opener", directory, texts.folder),
        Helper("holder", directory),
    ) as (other, opening, lock):
        async with Session.open(directory, embedder=lines.embedder()) as session:
            await searched(session, lines, until=lambda taken: len(taken) > 20)

            async def both(seconds: float) -> tuple[Seconds, Seconds]:
                other.send()
                until = time.perf_counter() + seconds
                here = await searched(session, lines, until=lambda _taken: time.perf_counter() > until)
                return here, await asyncio.to_thread(other.request)

            async def save() -> tuple[float, bool]:
                started, busy = time.perf_counter(), False
                try:
                    await session.memories.save_context("while somebody else holds the lock")
                except StoreBusy:
                    busy = True
                return time.perf_counter() - started, busy

            await asyncio.to_thread(opening.request, 1)  # Import the modules before the measurement.
            opened = await asyncio.to_thread(opening.request, sizes.opens)
            free = [await both(sizes.seconds / 2)]
            lock.request("take")
            saving = asyncio.create_task(save())
            during = await both(sizes.seconds * 0.9)
            opened_held = await asyncio.to_thread(opening.request, sizes.opens)
            if sizes is QUICK:
                lock.request("leave")
            saved, busy = await saving
            if sizes is not QUICK:
                lock.request("leave")
            free.append(await both(sizes.seconds / 2))
    before = [[*first, *second] for first, second in zip(*free, strict=True)]
    names = ("search here", "search in another process")
    return {
        **{
            name: {"free": quantiles(then), "held": quantiles(now)}
            for name, then, now in zip(names, before, during, strict=True)
        },
        "open": {"free": quantiles(opened), "held": quantiles(opened_held)},
        "save": saved,
        "busy": busy,
    }


def forks(directory: Path, texts: Texts, sizes: Sizes) -> dict[str, Any]:
    if not hasattr(os, "fork"):
        return {}
    with helpers(Helper("forker", directory, texts.folder)) as (one,):
        return {name: quantiles(taken) for name, taken in one.request(sizes.forks).items()}


async def meanwhile(directory: Path, count: int) -> dict[str, Any]:
    """Search while a memory with many links is deleted, and while the views are rebuilt."""
    chance = np.random.default_rng(7)
    questions = [f"what is known of {number}" for number in range(50)]
    lines = Corpus("", [], [], np.empty((0, DIMENSIONS), np.float32), questions, np.stack([*map(made, questions)]))
    kept = Settings(memory=MemorySettings(linking="off"))
    async with Session.open(directory, embedder=LookupEmbedder(), settings=kept) as session:
        hub = await session.memories.save_context("What everything rests on.")

        def put(writer: Any, start: int, stop: int) -> None:
            for number in range(start, stop):
                memory = Memory(
                    id=f"context_some_words_of_its_own_{number:013}_{number:08x}",
                    type=MemoryType.CONTEXT,
                    content=f"Of {number} it is known what it is worth, and since when it is so.",
                    metadata=METADATA_TYPES[MemoryType.CONTEXT](),
                    created_at=compute_created_at(number),
                    updated_at=compute_created_at(number),
                )
                vectors = normalize_vectors(chance.standard_normal((1, DIMENSIONS)))
                writer.put(memory, vectors=vectors, links=[some_link(memory.id, hub.id, number)])

        for start in range(0, count, 1_000):
            stop = min(start + 1_000, count)
            await session.memories._engine.write(lambda writer, at=start, to=stop: put(writer, at, to))  # noqa: SLF001
        found: dict[str, Any] = {}
        searches = await searched(session, lines, until=lambda taken: len(taken) > min(count, 200))
        found["with nothing else"] = {"seconds": sum(searches), "search": quantiles(searches)}
        for name, work in (
            (f"a memory with {count:,} links is deleted", lambda: session.memories.delete(hub.id)),
            (f"{count:,} memories are rebuilt", lambda: admin.rebuild(session)),
        ):
            working = asyncio.create_task(timed(work()))
            await asyncio.sleep(0)
            searches = await searched(session, lines, until=lambda _taken, work=working: work.done())
            found[name] = {"seconds": await working, "search": quantiles(searches)}
        return found


def made(text: str) -> Any:
    return LookupEmbedder().embed([text])[0]


def table(figures: dict[str, Any]) -> list[list[str]]:
    """Return table rows: operation, rival, median, p99, worst, ratio to the rival, and the target of this ratio."""

    def times(what: str, who: str, own: dict[str, float], ratio: str = "", target: str = "") -> list[str]:
        return [what, who, *(f"{own[name] * MILLI:.1f} ms" for name in ("median", "p99", "max")), ratio, target]

    def once(what: str, who: str, value: str, ratio: str = "", target: str = "") -> list[str]:
        return [what, who, value, "", "", ratio, target]

    shared, locked = figures["loading"], figures["held"]
    rows = []
    for name, target, kept in (("raw", "", ""), ("ours", "p99 500 ms", "0.8")):
        own = shared[name]
        rate = own["rate"]
        rows += [
            times("save alone", name, own["single alone"]),
            times("save beside a loader", name, own["single"], "", target),
            times("the first after a pause", name, own["first after a pause"]),
            *(
                times(f"{who} beside: {part}", name, some)
                for who, parts in own["parts"].items()
                for part, some in parts.items()
            ),
            once("saves given up as busy", name, str(own["busy"])),
            once("loaded alone", name, f"{rate['alone']:.0f} a second", "1.00"),
            once("loaded beside saves", name, f"{rate['beside']:.0f} a second", f"{rate['kept']:.2f}", kept),
        ]
    for name in ("search here", "search in another process", "open"):
        before, during = locked[name]["free"], locked[name]["held"]
        rows += [
            times(name, "lock free", before, "1.00"),
            times(name, "lock held", during, f"{during['median'] / before['median']:.2f}", "1"),
        ]
    rows.append(once("save, lock held", "StoreBusy" if locked["busy"] else "saved after", f"{locked['save']:.1f} s"))
    rows += [times("in a process that forks", name, own) for name, own in figures["forks"].items()]
    for name, own in figures["meanwhile"].items():
        rows.append(times("search while", name, own["search"]))
        rows.append(once("all of it", name, f"{own['seconds']:.2f} s"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    parser.add_argument("--memories", type=int, default=50_000, help="how many are loaded (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the lock is held (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role is not None:
        role, *options = given.role
        done = ROLES[role](*options)
        if done is not None:
            asyncio.run(done)
        return
    sizes = QUICK if given.quick else Sizes(given.memories, 20, given.seconds, 5, 20, 10_000)
    folder = Path(tempfile.mkdtemp())
    try:
        texts = Texts(folder)
        texts.write(corpus(sizes.memories + min(SPARE, sizes.memories), quick=given.quick))
        directory = folder / "store"
        figures = {
            "memories": sizes.memories,
            "load average": os.getloadavg(),
            "loading": loading(directory, texts, sizes),
            "held": asyncio.run(held(directory, texts, sizes)),
            "forks": forks(directory, texts, sizes),
            "meanwhile": asyncio.run(meanwhile(folder / "hub", sizes.links)),
        }
    finally:
        shutil.rmtree(folder)
    load = " to ".join(f"{one:.1f}" for one in (figures["load average"][0], os.getloadavg()[0]))
    report(
        "sharing",
        f"{sizes.memories:,} memories of {DIMENSIONS} dimensions loaded, {figures['loading']['memories in a transaction']:.0f} "
        f"in a transaction; the lock held for {sizes.seconds:.0f} s; load average {load}",
        ("what", "who", "median or once", "p99", "worst", "ratio", "target"),
        table(figures),
        figures=figures,
        folder=given.results,
    )


if __name__ == "__main__":
    main()
