"""Deduplication of results: memories with the same statement become one hit that lists the others."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import OpenedDirectory, PlainEngines, plain_memory

from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.search.result_dedup import find_folds
from mama_structs.memory.types.duplicates import duplicate_fingerprint
from mama_structs.memory.types.model import MemoryType, Outcome
from mama_structs.memory.types.requests import parse_request
from mama_structs.memory.types.text_analysis import embedded_text

MONTH = Path(__file__).parents[2] / "data" / "month" / "saves.jsonl"
START = datetime(2026, 1, 1, tzinfo=UTC)


CALIBRATION = Calibration(0.3, 12.0)


def fold(memories, *, similar=True):
    """Fold memories that have equal vectors, or orthogonal ones."""
    vectors = np.ones((len(memories), 1)) if similar else np.eye(len(memories))
    return find_folds(
        memories,
        [None] * len(memories),
        wordings(memories),
        (vectors @ vectors.T).astype(np.float32),
        CALIBRATION,
    )


def wordings(memories):
    return np.array([duplicate_fingerprint(memory) for memory in memories], np.int64)


def are_folded(first, second, **fields):
    memories = [plain_memory("a", first, topic="x"), attrs.evolve(plain_memory("b", second, topic="x"), **fields)]
    return [0, 0] == fold(memories)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Deploys need 2 approvals.", "Deploys need 3 approvals."),
        ("Retry a payment three times.", "Retry a payment two times."),
        ("Fleet 9-11 guards the gate.", "Fleet 9-12 guards the gate."),
        ("Fleet 9-11 guards the gate.", "Fleet 9-11 does not guard the gate."),
        ("Back up the store before each deploy.", "Back up the store after each deploy."),
        ("Keep sessions in Redis for now", "Keep the sessions in Postgres for now"),
        ("Data moves from the cache to the disk.", "Data moves from the disk to the cache."),
        ("Hashes use SHA256 here.", "Hashes use BLAKE2 here."),
        ("결제 로그는 5년 보관한다", "결제 로그는 3년 보관한다"),
        ("재고는 결제 이전 차감한다", "재고는 결제 이후 차감한다"),
        ("스테이징 배포는 자동으로 한다", "스테이징 배포는 자동으로 하지 않는다"),
        ("It is -5 degrees", "It is 5 degrees"),
        ("Write it in C++", "Write it in C#"),
        ("x >= 3 holds", "x <= 3 holds"),
        ("The reply was 👍", "The reply was 👎"),
    ],
)
def test_folded_separates_contradictions(first, second):
    """Another number, id, name, order, polarity word or negation gives a separate hit, even with equal vectors."""
    assert not are_folded(first, second)


@pytest.mark.parametrize(
    "second",
    [
        "Guild 0-1 asks a join fee of 10 alpha.",
        "guild 0-1 asks a  join fee of 10 ALPHA",
        "Join fee of guild 0-1: it asks 10 alpha",
    ],
)
def test_folded_joins_rewordings(second):
    """Letter case, whitespace and stop words do not change the statement."""
    assert are_folded("Guild 0-1 asks a join fee of 10 alpha.", second)


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "y"},
        {"trust": "outside"},
        {"valid_until": START},
        {"type": MemoryType.CHECKPOINT},
        {"metadata": attrs.evolve(plain_memory("b").metadata, outcome=Outcome.FAILED)},
    ],
)
def test_folded_separates_memories_with_different_metadata(fields):
    """Equal words with another topic, trust, expiry, type or outcome are not copies."""
    assert not are_folded("Deploys need 2 approvals.", "Deploys need 2 approvals.", **fields)


@given(texts=st.lists(st.sampled_from(["a b c", "a b c d", "a b 1", "A b c.", "x"]), max_size=9), yes=st.booleans())
def test_folded_assigns_copies_only_to_displayed_results(texts, yes):
    """For any similarities, the result that a copy belongs to is displayed itself."""
    memories = [plain_memory(f"m{number}", text) for number, text in enumerate(texts)]
    shown = fold(memories, similar=yes)

    assert len(texts) == len(shown)
    assert all(first <= place and shown[first] == first for place, first in enumerate(shown))
    for place, text in enumerate(texts):
        assert shown[texts.index(text)] == shown[place]


@pytest.fixture(params=[lambda: None, PlainEngines], ids=["embedded", "plain"])
async def store(request, tmp_path):
    opened = OpenedDirectory.open(tmp_path, engines=request.param())
    yield await opened.memories()
    await opened.close()


async def test_sixty_copies_of_an_insight_are_one_hit(store):
    """Other memories take the free places, even if the copies exceed the first batch of results."""
    copies = await store.save_many(
        [{"type": "insight", "content": "Cached pages expire after a day."} for _ in range(60)]
    )
    others = [await store.save_insight(f"Cached pages of guild 0-{number} never expire.") for number in range(1, 13)]
    hits = await store.search("do cached pages expire after a day", limit=10)
    (told,) = (hit for hit in hits if hit.duplicates)

    assert 10 == len(hits)
    assert {one.id for one in copies} == {told.memory.id, *told.duplicates}
    assert {hit.memory.id for hit in hits} - {told.memory.id} <= {one.id for one in others}


async def test_duplicate_failures_are_one_hit_with_same_relevance(store):
    """Their successors are duplicates of each other as well."""
    relevances = []
    for _ in range(3):
        first = await store.save_decision("Use JWT for logins", topic="auth", reasoning="The server keeps no state")
        await store.set_outcome(first.id, "FAILED", reason="A stolen JWT could not be revoked")
        await store.supersede(first.id, "Keep logins in Redis", reasoning="They can be ended at once")
        hits = await store.search("Shall we use JWT for the mobile app?")
        relevances.append(max(hit.relevance for hit in hits))

        assert 3 == len(hits)
    assert 0.75 * relevances[0] < relevances[2]


async def test_folding_parses_no_text_without_similar_hits(store, monkeypatch):
    """Vectors are compared first, because parsing a text takes much longer."""
    for number, subject in enumerate(("harbours", "taxes", "recipes", "trains", "songs", "hospitals")):
        await store.save_insight(f"A note on {subject}, number {number}, for the harbour.")
    monkeypatch.setattr("mama_structs.memory.search.result_dedup.can_fold", None)

    assert 6 == len(await store.search("harbour"))


def test_folding_is_correct_on_half_b_of_month():
    """
    Only duplicates and near duplicates are folded, and all exact duplicates are.

    The thresholds were tuned on half a.
    """
    universal = pytest.importorskip("mama_structs.memory.embedding.sentence_encoder")
    if not universal.is_installed():
        pytest.skip("the default embedder is not installed")
    embedder = universal.UniversalSentenceEmbedder()
    rows = [json.loads(line) for line in MONTH.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["half"] == "b"]
    memories = [
        attrs.evolve(
            parse_request(row["save"], now=START).memory("x", now=START + timedelta(days=at), max_content=10**6),
            id=row["id"],
        )
        for at, row in enumerate(rows)
    ]
    vectors = embedder.embed([embedded_text(memory) for memory in memories])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    stands, groups = {}, {row["id"]: {row["id"]} for row in rows}
    for row in rows:
        for one in row["stands"] or ():
            stands[row["id"], one["of"]] = one["kind"]
            if one["kind"] in {"copy", "near"} and one["of"] in groups:
                groups[one["of"]] |= groups[row["id"]]
                for name in groups[one["of"]]:
                    groups[name] = groups[one["of"]]
    counts = Counter()
    for at, row in enumerate(rows):
        for before in range(at):
            both = [before, at]
            pair = [memories[one] for one in both]
            if [0, 0] == find_folds(
                pair,
                [None, None],
                wordings(pair),
                vectors[both] @ vectors[both].T,
                embedder.calibration,
            ):
                kind = stands.get((row["id"], rows[before]["id"]))
                same = memories[before].content == memories[at].content
                assert same or rows[before]["id"] in groups[row["id"]], (rows[before]["id"], row["id"])
                counts[kind] += 1

    assert sum(kind == "copy" for kind in stands.values()) == counts["copy"]


async def test_newest_of_several_values_comes_first_at_any_limit(store):
    """Results beyond the limit may replace those within it."""
    for year in range(5):
        await store.save_insight(f"The server port is {8000 + year}.", created_at=START + timedelta(days=400 * year))
    for limit in (1, 2, 5):
        hits = await store.search("What is the server port?", limit=limit)

        assert ["The server port is 8004.", limit] == [hits[0].content, len(hits)]


async def test_untrusted_or_failed_statement_does_not_come_before_older_one(store):
    """Neither a text from outside nor a failed decision replaces what the user said."""
    await store.save_insight("The cache backend is Redis.", created_at=START)
    await store.save_insight("The cache backend is Etcd.", origin="outside", created_at=START + timedelta(days=1))
    failed = await store.save_decision(
        "The cache backend is Memcached.", topic="cache", reasoning="fast", created_at=START + timedelta(days=2)
    )
    await store.set_outcome(failed, "FAILED", reason="It lost data")
    hits = await store.search("Is the cache backend Redis?")

    assert "The cache backend is Redis." == hits[0].content
