"""Equal behaviour of the server and directory engines: the same exports and searches."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_helpers import SMALL, OpenedDirectory

from mama_structs import admin
from mama_structs.errors import InvalidArgument, MemoryNotFound
from mama_structs.memory.engines.postgres.engine import PostgresEngines
from mama_structs.memory.types import model
from mama_structs.testing.strategies import memories

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "retrieval"
NAMES = itertools.count()
PICKS = st.integers(0, 20)
STEPS = st.one_of(
    st.tuples(st.just("save"), memories()),
    st.tuples(st.just("save"), memories()),
    st.tuples(st.sampled_from(["supersede", "outcome", "correct", "delete", "forget", "again", "checkpoint"]), PICKS),
    st.tuples(st.just("wait"), st.sampled_from([86_400.0, 40 * 86_400.0])),
    st.tuples(st.just("link"), st.tuples(PICKS, PICKS, st.sampled_from(["refines", "contradicts"]))),
)


class Clock:
    def __init__(self):
        self.now = 1_800_000_000.0

    def __call__(self):
        return self.now


async def done(store, clock, steps):
    """Execute *steps*, and return the ids of the saved memories, which depend only on the steps."""
    numbers, ids = itertools.count(), []
    drawn = SimpleNamespace(token_hex=lambda size: f"{next(numbers):0{2 * size}x}")
    with patch.object(model, "secrets", drawn):
        for what, value in steps:
            clock.now += 61
            with contextlib.suppress(InvalidArgument, MemoryNotFound):
                if what == "save":
                    ids += [one.id for one in await store.save_many([value])]
                elif what == "again" and ids:
                    old = await store.get(ids[value % len(ids)])
                    ids.append((await store.save_context(old.content, on_duplicate="merge")).id)
                elif what == "supersede" and ids:
                    ids.append((await store.supersede(ids[value % len(ids)], "what came next", reasoning="better")).id)
                elif what == "outcome" and ids:
                    await store.set_outcome(ids[value % len(ids)], "FAILED", reason="it did not hold")
                elif what == "update" and ids:
                    ids.append((await store.update(ids[value % len(ids)], f"in other words {value}")).id)
                elif what == "checkpoint" and ids:
                    others = {
                        "open_files": ["a.py"],
                        "next_steps": [f"undo {ids[0]}"],
                        "implements": [ids[value % len(ids)]],
                    }
                    ids.append((await store.save_checkpoint(f"where we are: {value}", **others)).id)
                elif what == "erase" and ids:
                    await store.erase(ids[value % len(ids)])
                elif what == "wait":
                    clock.now += value
                    await admin.maintain(store)
                    await store._engine.write(lambda writer: writer.set_note("waited", str(clock.now)))
                elif what == "delete" and ids:
                    await store.delete(ids[value % len(ids)])
                elif what == "link" and ids:
                    await store.link(ids[value[0] % len(ids)], ids[value[1] % len(ids)], value[2])
    return ids


def close(one, other):
    """Return True if two lists of hits are equal, ignoring the order of almost equal scores."""
    if len(one) != len(other):
        return False
    scores = all(
        abs(mine.score - its.score) < 1e-6 and abs(mine.relevance - its.relevance) < 1e-6
        for mine, its in zip(one, other, strict=True)
    )
    places = {hit.memory.id: hit.score for hit in other}
    return scores and all(hit.memory.id in places and abs(hit.score - places[hit.memory.id]) < 1e-6 for hit in one)


@pytest.mark.parametrize("reads", ["exports", "searches"])
def test_server_matches_directory(memory_server, reads):
    """After the same calls both export the same bytes and return the same hits with the same scores."""

    @given(steps=st.lists(STEPS, min_size=1, max_size=8), question=memories())
    @settings(max_examples=max(5, settings.default.max_examples // 16), suppress_health_check=list(HealthCheck))
    def compared(steps, question):
        asyncio.run(compare(steps, " ".join(str(value) for value in question.values())))

    async def compare(steps, question):
        namespace, found = f"same{next(NAMES)}", []
        for engines in (None, PostgresEngines(memory_server)):
            with tempfile.TemporaryDirectory() as home:
                clock = Clock()
                place = OpenedDirectory.open(Path(home), engines=engines, embedder=SMALL, clock=clock)
                try:
                    store = await place.memories(namespace)
                    await done(store, clock, steps)
                    if reads == "exports":
                        await admin.export_jsonl(store, Path(home) / "export")
                        found.append((Path(home) / "export").read_bytes())
                    else:
                        found.append(
                            [await store.search(question), await store.search(question, type=["decision"], limit=2)]
                        )
                finally:
                    await place.close()
        directory, on_server = found
        if reads == "exports":
            assert directory == on_server
        else:
            assert all(map(close, directory, on_server)), found

    compared()


async def with_sample(store, clock):
    """Save the sample memories with their links and outcomes, in independent batches."""
    ids, waiting = {}, []

    async def save():
        records = [
            {
                "type": row["type"],
                "content": row["content"],
                "created_at": row["created_at"],
                **({"reasoning": row["reasoning"] or ""} if row["type"] == "decision" else {}),
                **({"topic": row["topic"]} if row["type"] in {"decision", "context"} and row["topic"] else {}),
                **({"supersedes": ids[row["supersedes"]]} if row["supersedes"] else {}),
                **({"implements": [ids[one] for one in row["implements"]]} if row["implements"] else {}),
            }
            for row in waiting
        ]
        ids.update(zip((row["id"] for row in waiting), [one.id for one in await store.save_many(records)], strict=True))
        for row in waiting:
            if row["outcome"]:
                clock.now += 61
                await store.set_outcome(ids[row["id"]], row["outcome"], reason=row["outcome_reason"])
        waiting.clear()

    numbers = itertools.count()
    with patch.object(model, "secrets", SimpleNamespace(token_hex=lambda size: f"{next(numbers):0{2 * size}x}")):
        for line in (SAMPLE / "memories.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if {row["supersedes"], *row["implements"]} - {None}:
                await save()
            waiting.append(row)
        await save()


async def test_sample_searches_match_directory(memory_server, tmp_path, monkeypatch):
    """The sample queries return the same memories and scores, and the exports are equal."""
    for module in ("local.engine", "postgres.writer"):
        # Remove the time limit, so that batches and word weights do not depend on the machine's speed.
        monkeypatch.setattr(f"mama_structs.memory.engines.{module}.MAX_TRANSACTION_SECONDS", 1e9)
    if not SAMPLE.exists():
        pytest.skip("the retrieval sample is not beside the checkout")
    lines = (SAMPLE / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    namespace, found, exported = f"sample{next(NAMES)}", [], []
    for name, engines in (("directory", None), ("server", PostgresEngines(memory_server))):
        clock = Clock()
        place = OpenedDirectory.open(tmp_path / name, engines=engines, embedder=SMALL, clock=clock)
        store = await place.memories(namespace)
        await with_sample(store, clock)
        found.append([await store.search(json.loads(line)["query"]) for line in lines[::5]])
        await admin.export_jsonl(store, tmp_path / f"{name}.jsonl")
        exported.append((tmp_path / f"{name}.jsonl").read_bytes())
        await place.close()

    assert len(found[0]) > 50
    assert all(map(close, *found))
    assert exported[0] == exported[1]
