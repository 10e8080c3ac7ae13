"""
The number of engine calls per operation must not grow with the number of results.

An engine may be remote, so each call may cost a round trip.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest
from memory_helpers import OpenedDirectory, PlainEngines

import mama_structs
from mama_structs import Filter
from mama_structs.testing.plain_engine import PlainEngine


class CountingReader:
    """A reader that counts its calls."""

    def __init__(self, reader, counts):
        self._reader = reader
        self._counts = counts

    def __getattr__(self, name):
        answer = getattr(self._reader, name)
        if callable(answer):
            self._counts[name] += 1
        return answer


class CountingEngine(PlainEngine):
    counts: ClassVar = Counter()

    async def read(self, plan):
        return await super().read(lambda reader: plan(CountingReader(reader, self.counts)))


class CountingEngines(PlainEngines):
    async def open(self, namespace, embedder, settings):
        self.kept.setdefault(namespace, CountingEngine(namespace, embedder=embedder))
        return await super().open(namespace, embedder, settings)


READS = {
    "search": lambda store, ids: store.search("how long do sessions last", limit=len(ids)),
    "search as of": lambda store, ids: store.search("sessions", limit=len(ids), as_of=store._shared.now),
    "similar": lambda store, ids: store.similar(ids[0], threshold=0.0, limit=len(ids)),
    "list": lambda store, ids: store.list(limit=len(ids)),
    "list of mentions": lambda store, ids: store.list(limit=len(ids), where=Filter(mentions="2-1")),
    "history of a topic": lambda store, ids: store.history(topic="sessions"),
    "history": lambda store, ids: store.history(ids[0]),
    "links": lambda store, ids: store.links(ids[0]),
    "traverse": lambda store, ids: store.traverse(ids[0], max_depth=1, limit=None),
    "details": lambda store, ids: store.details(ids[-1]),
    "evidence": lambda store, ids: store.evidence(ids[0]),
}


async def count_calls(path, count):
    """Return the number of engine calls of each operation, whose result has *count* memories."""
    opened = OpenedDirectory.open(
        path, engines=CountingEngines(), find_mentions=lambda text: ["2-1"], find_content=lambda source: None
    )
    store = await opened.memories()
    first = await store.save_decision(
        "sessions last 1 day near 2-1", topic="sessions", reasoning="reason", evidence=["x"]
    )
    ids = [first.id]
    for number in range(1, count):
        memory = await store.save_decision(
            f"sessions last {number + 1} days near 2-1",
            topic="sessions",
            reasoning=f"reason {number}",
            supersedes=first.id,
        )
        ids.append(memory.id)
    counts = {}
    for name, read in READS.items():
        CountingEngine.counts.clear()
        await read(store, ids)
        counts[name] = Counter(CountingEngine.counts)
    await opened.close()
    return counts


@pytest.mark.once
async def test_number_of_engine_calls_is_independent_of_results(tmp_path):
    """Fifty results need as many calls as five, or at most one more per level of a traversal."""
    few = await count_calls(tmp_path / "few", 5)
    many = await count_calls(tmp_path / "many", 50)

    assert all(counts.total() > 0 for counts in few.values()), few
    more = {name: counts - few[name] for name, counts in many.items() if counts.total() > few[name].total() + 6}
    assert {} == more


def test_only_one_module_imports_local_engine():
    """All other modules use the engine protocol."""
    package = Path(mama_structs.__file__).parent
    users = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "mama_structs.memory.engines.local" in path.read_text(encoding="utf-8") and "local" not in path.parts
    ]

    assert 1 == len(users), users
