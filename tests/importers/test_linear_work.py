"""The work of an import is proportional to the number of imported items."""

from __future__ import annotations

from collections import Counter

import pytest
from importing_helpers import entity, graph
from memory_helpers import SMALL

from mama_structs import Session, as_embedder
from mama_structs.importers import import_from
from mama_structs.memory.engines.local.plans import JournalWriter
from mama_structs.memory.save import conflict_detection, link_candidates
from mama_structs.storage.sealed_rows import Rows

WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty", "knoll"]


def observation(number):
    """Return a unique sentence that shares words with the other observations."""
    some = " ".join(WORDS[number * step % len(WORDS)] for step in (1, 3, 5, 7, 11))
    return f"Observation {number} of planet 2-{number % 20 + 1}: {some}."


@pytest.fixture
def work(monkeypatch):
    """Count the operations of saves: embedding, comparisons, reads and writes."""
    counts = Counter()

    def counted(owner, name, size=lambda *arguments, **named: 1, what=None):
        real = getattr(owner, name)

        def call(*arguments, **named):
            counts[what or name] += size(*arguments, **named)
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    real = link_candidates._LinkEvidence.from_query

    def found(reader, *arguments):
        candidates = real(reader, *arguments)
        counts["candidates of one"] = max(counts["candidates of one"], len(candidates.nodes))
        return candidates

    monkeypatch.setattr(link_candidates._LinkEvidence, "from_query", found)
    counted(conflict_detection, "compare_parsed", what="comparisons")
    counted(JournalWriter, "get", lambda self, nodes: len(nodes), "memories read")
    counted(JournalWriter, "put", what="memories written again")
    counted(JournalWriter, "links_of_many", lambda self, nodes, *more: len(nodes), "links read")
    counted(Rows, "put", what="rows")
    # Never end a plan early for waiting plans. Otherwise the counts would depend on the machine's speed.
    monkeypatch.setattr(JournalWriter, "should_yield", property(lambda self: False))

    def embed(texts):
        counts["embedded"] += len(texts)
        return SMALL.embed(texts)

    counts.embedder = as_embedder(embed, name="counted", dimensions=64, calibration=SMALL.calibration)
    return counts


async def imported(folder, work, count):
    """Import one entity with *count* observations, and return the counted operations."""
    file = graph(folder / f"{count}.jsonl", entity("Ada", "person", *map(observation, range(count))))
    work.clear()
    async with Session.open(folder / f"{count}.mama", embedder=work.embedder) as session:
        report = await import_from(session.memories, "mcp-memory", file)

    assert count + 1 == report.added
    return dict(work)


async def test_import_from_does_linear_work_for_observations_of_one_entity(tmp_path, work):
    """
    Twice the observations need twice the operations.

    Candidates are bounded, and no conflicts are searched.
    """
    few = await imported(tmp_path, work, 150)
    many = await imported(tmp_path, work, 300)

    assert 301 == many["embedded"]
    assert 0 == many.get("comparisons", 0)
    assert 200 >= many.pop("candidates of one")
    for what, done in many.items():
        assert 2.1 * few[what] + 20 >= done, (what, few, many)
