"""
The recall of filtered HNSW searches on a PostgreSQL server, compared with an exact search.

It starts a server, or uses the empty database of ``--url`` and leaves its data there.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from _common import MILLI, RESULTS, report
from _postgres import run_server
from vectors import corpus

from mama_structs.memory.engines.postgres.engine import PostgresEngine, PostgresEngines
from mama_structs.memory.types.engine import EmbedderRecord, EngineFilter, NewMemory, Reader
from mama_structs.memory.types.model import METADATA_TYPES, Memory, MemoryType
from mama_structs.settings import MemorySettings, ServerSettings
from mama_structs.storage.postgres.pool import PostgresPool

START, DAYS = datetime(2024, 1, 1, tzinfo=UTC), 1_000
NEAREST, BATCH_SIZE, EXACT = 10, 500, 2**62
# Memory types and their shares. The type of host records is left out, because records have their own labels.
KINDS, SHARES = [*MemoryType][:4], (0.5, 0.09, 0.4, 0.01)
MENTIONED = {"1-1": 0.3, "1-2": 0.1, "1-3": 0.03, "1-4": 0.01, "1-5": 0.001, "1-6": 0.0001}
TOPICS = 100


def memories(count: int, namespace: str, vectors: Any) -> Iterator[NewMemory]:
    """Yield memories with random types, times and mentions. The topic depends on the vector."""
    chance = np.random.default_rng(3)
    centres = vectors[chance.integers(0, len(vectors), TOPICS)]
    for number in range(count):
        kind = KINDS[chance.choice(len(KINDS), p=SHARES)]
        created = START + timedelta(days=float(chance.uniform(0, DAYS)))
        topic = f"topic_{int(np.argmax(centres @ vectors[number]))}"
        memory = Memory(
            id=f"m_{number}",
            type=kind,
            namespace=namespace,
            content=f"memory {number} of {topic}",
            topic=topic,
            metadata=METADATA_TYPES[kind](),
            mentions=tuple(one for one, share in MENTIONED.items() if chance.random() < share),
            created_at=created,
            updated_at=created,
        )
        yield NewMemory(memory=memory, vectors=vectors[number][None])


def filters(topics: list[str]) -> dict[str, EngineFilter]:
    """Return the filters to measure, by name."""
    after, half, late = (START + timedelta(days=DAYS * share) for share in (0.1, 0.5, 0.99))
    some = {f"mentions {one}": EngineFilter(mentions=frozenset({one})) for one in MENTIONED}
    return {
        "none": EngineFilter(),
        "type decision": EngineFilter(types=frozenset({KINDS[0]})),
        "type checkpoint": EngineFilter(types=frozenset({KINDS[1]})),
        "type context": EngineFilter(types=frozenset({KINDS[3]})),
        **{
            f"topic, {place}": EngineFilter(topic=topic)
            for place, topic in zip(("largest", "smallest"), topics, strict=True)
        },
        "since, half": EngineFilter(since=half),
        "since, 1 %": EngineFilter(since=late),
        "until, 10 %": EngineFilter(until=after),
        **some,
        "decision since half, mentions 1-2": EngineFilter(
            types=frozenset({KINDS[0]}), since=half, mentions=frozenset({"1-2"})
        ),
    }


async def filled(engine: PostgresEngine, count: int, vectors: Any) -> None:
    """Write all memories in batches."""
    some: list[NewMemory] = []
    for one in memories(count, engine.namespace, vectors):
        some.append(one)
        if len(some) == BATCH_SIZE:
            await engine.write(lambda writer, new=tuple(some): writer.put_new(new, lambda _: [()] * len(new)))  # type: ignore[misc]
            some.clear()
    if some:
        await engine.write(lambda writer: writer.put_new(some, lambda _: [()] * len(some)))


async def time_search(engine: PostgresEngine, vector: Any, where: EngineFilter) -> tuple[float, Any]:
    """Return the duration and the result of one search."""
    started = time.perf_counter()
    found = await engine.read(lambda reader: reader.nearest(vector, NEAREST, where))
    return time.perf_counter() - started, found


async def compared(
    approximate: PostgresEngine, exact: PostgresEngine, queries: Any, where: EngineFilter
) -> dict[str, Any]:
    """Run each query on the approximate and the exact engine in turn, and return the figures."""
    passing = await exact.read(lambda reader: reader.count(where))
    recalls, few, fast, slow = [], 0, [], []
    for vector in queries:
        took, found = await time_search(approximate, vector, where)
        all_of_it, true = await time_search(exact, vector, where)
        fast.append(took)
        slow.append(all_of_it)
        few += len(found) < min(NEAREST, passing)
        worst = true.scores[-1] - 1e-6 if len(true) else 0.0
        recalls.append(float((found.scores >= worst).sum() / max(len(true), 1)) if len(true) else 1.0)
    return {
        "passing": passing,
        "too_few": few,
        "recall": statistics.fmean(recalls),
        "lowest": min(recalls),
        "hnsw": statistics.median(fast),
        "exact": statistics.median(slow),
    }


async def run(url: str, count: int, queries: int, settings: ServerSettings, *, quick: bool) -> dict[str, Any]:
    vectors, asking, kind = corpus(count, quick=quick)
    # Measure only with every second query, because the settings of the index were chosen with the remaining ones.
    asking = asking[1::2]
    record = EmbedderRecord("benchmark", "benchmark", vectors.shape[1])
    server = PostgresPool.open(url, options=settings)
    try:
        exact = await PostgresEngines(server).open("filters", record, MemorySettings(exact_up_to=EXACT))
        started = time.perf_counter()
        if not await exact.read(lambda reader: reader.count()):
            await filled(exact, count, vectors)
        written = time.perf_counter() - started
        await asyncio.wrap_future(server.run_on_dedicated_connection(_analysed))
        started = time.perf_counter()
        approximate = await PostgresEngines(server).open("filters", record, MemorySettings())
        await approximate.index.wait_until_idle()
        await approximate.read(Reader.count)
        made = time.perf_counter() - started
        rows = await exact.read(lambda reader: reader.topics(reader.window()))
        often = sorted(set(rows), key=rows.count)
        topics = [str(often[-1]), str(next(one for one in often if rows.count(one) >= NEAREST))]
        found = {
            name: await compared(approximate, exact, asking[:queries], where) for name, where in filters(topics).items()
        }
        return {
            "vectors": kind,
            "count": count,
            "dimensions": record.dimensions,
            "queries": len(asking[:queries]),
            "figures": approximate.figures()["vectors"],
            "written_s": written,
            "index_s": made,
            "filters": found,
        }
    finally:
        server.close()


async def _analysed(held: Any) -> None:
    await held.execute("VACUUM ANALYZE", timeout=600)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    parser.add_argument("--count", type=int, default=100_000, help="memories (%(default)s)")
    parser.add_argument("--queries", type=int, default=100, help="questions for each filter (%(default)s)")
    parser.add_argument("--halfvec", action="store_true", help="keep vectors in half the bytes")
    parser.add_argument("--url", help="an empty database, instead of that of a server that is started")
    given = parser.parse_args()
    count, queries = (6_000, 5) if given.quick else (given.count, given.queries)
    with run_server() if given.url is None else nullcontext(given.url) as url:
        made = asyncio.run(run(url, count, queries, ServerSettings(half_precision=given.halfvec), quick=given.quick))
    rows = [
        [
            name,
            f"{one['passing']:,}",
            str(one["too_few"]),
            f"{one['recall']:.3f}",
            f"{one['lowest']:.1f}",
            f"{one['hnsw'] * MILLI:.0f}",
            f"{one['exact'] * MILLI:.0f}",
        ]
        for name, one in made["filters"].items()
    ]
    title = f"{count} memories ({made['vectors']}), {made['queries']} questions for each filter; median ms of a search"
    header = ["filter", "pass", "too few", f"recall@{NEAREST}", "lowest", "HNSW", "exact"]
    report("server_filters", title, header, rows, figures=made, folder=given.results, words=1)


if __name__ == "__main__":
    main()
