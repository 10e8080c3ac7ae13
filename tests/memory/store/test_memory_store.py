"""Results, validation and failure behaviour of each method of `MemoryStore`."""

# Allow blocking file system calls, which are fast here, and lambdas, which keep the tables of calls uniform.
# ruff: noqa: ASYNC240, PLW0108

from __future__ import annotations

import asyncio
import contextlib
import inspect
import tempfile
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import SMALL, OpenedDirectory, PlainEngines, vectors_settled
from row_helpers import every_row

from mama_structs import Filter, Session, admin
from mama_structs.errors import EmbeddingFailed, InvalidArgument, LinkNotFound, MemoryNotFound, SessionClosed
from mama_structs.memory.embedding.factory import as_embedder
from mama_structs.memory.engines.local import engine as embedded_engine
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.model import LinkType, MemoryType, Outcome, is_misspelled_id
from mama_structs.settings import MemorySettings

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self):
        self.now = START.timestamp()

    def __call__(self):
        return self.now

    def at(self):
        return datetime.fromtimestamp(self.now, UTC)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["exact", "graph", "plain"])
async def place(request, clock):
    """A directory with exact search, a directory with graph search, or an engine on plain dicts."""
    memory = Path("/dev/shm")
    options = {"exact_up_to": 0} if request.param == "graph" else {}
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as home:
        opened = OpenedDirectory.open(
            Path(home), engines=PlainEngines() if request.param == "plain" else None, clock=clock,
            settings=MemorySettings(**options),
            find_mentions=lambda text: [word for word in text.split() if word in {"1-11", "2-1"}],
        )  # fmt: skip
        yield opened
        assert [] == await opened.findings()
        await opened.close()


@pytest.fixture
async def store(place):
    return await place.memories()


# Saving


async def test_save_decision_returns_given_fields(store, clock):
    """All fields are returned unchanged, immediately and when the memory is read again."""
    first = await store.save_context("the raid of yesterday")
    memory = await store.save_decision(
        "shield 2-1 first", topic="Défense", reasoning="raids doubled near 1-11", confidence=0.9, implements=[first.id],
        evidence=["ref:x", "fd:1"], created_by="llm",
        links=[{"to_id": first.id, "relationship": "refines", "confidence": 0.6, "reason": "so", "tags": ["a"]}],
    )  # fmt: skip

    assert memory == await store.get(memory.id)
    assert (MemoryType.DECISION, "shield 2-1 first", "Défense") == (memory.type, memory.content, memory.topic)
    assert ("raids doubled near 1-11", 0.9, "llm", None) == (
        memory.metadata.reasoning, memory.metadata.confidence, memory.metadata.created_by, memory.metadata.outcome
    )  # fmt: skip
    assert ("ref:x", "fd:1") == memory.evidence
    assert {"2-1", "1-11"} == set(memory.mentions)
    assert clock.at() == memory.created_at == memory.updated_at
    assert memory.id.startswith("decision_défense_1767225600000_")
    links = {link.metadata.original_relationship: link for link in await store.links(memory.id)}
    assert ("llm", 1.0, LinkType.IMPLEMENTATION) == (
        links["implements"].created_by, links["implements"].confidence, links["implements"].link_type
    )  # fmt: skip
    assert (0.6, "so", ("a",), memory.id, first.id) == (
        links["refines"].confidence, links["refines"].metadata.reason, links["refines"].metadata.tags,
        links["refines"].from_id, links["refines"].to_id,
    )  # fmt: skip


async def test_save_of_other_types_returns_given_fields(store):
    """Checkpoints, insights and contexts keep their specific fields."""
    checkpoint = await store.save_checkpoint("half done", open_files=["a.py"], next_steps=["b", "c"])
    insight = await store.save_insight("raids come at night", category="war", tags=["x", "y"], source="log")
    context = await store.save_context("the wiki says so", topic="raids", source="https://wiki")

    assert (("a.py",), ("b", "c")) == (checkpoint.metadata.open_files, checkpoint.metadata.next_steps)
    assert ("war", ("x", "y"), "log") == (insight.metadata.category, insight.metadata.tags, insight.metadata.source)
    assert ("raids", "https://wiki") == (context.topic, context.metadata.source)
    assert checkpoint == await store.latest_checkpoint()
    assert [context, insight, checkpoint] == await store.list()


BAD = [
    (lambda s: s.save_decision("x", topic="", reasoning=""), "topic"),
    (lambda s: s.save_decision("  ", topic="t", reasoning=""), "content"),
    (lambda s: s.save_decision(7, topic="t", reasoning=""), "content"),
    (lambda s: s.save_decision("x", topic="t", reasoning=None), "reasoning"),
    (lambda s: s.save_decision("x", topic="t", reasoning="", confidence=1.5), "confidence"),
    (lambda s: s.save_decision("x", topic="t", reasoning="", confidence=float("nan")), "confidence"),
    (lambda s: s.save_decision("x", topic="t", reasoning="", confidence=True), "confidence"),
    (lambda s: s.save_decision("x", topic="t" * 201, reasoning=""), "topic"),
    (lambda s: s.save_decision("x", topic="t", reasoning="", supersedes=""), "supersedes"),
    (lambda s: s.save_decision("x", topic="t", reasoning="", implements=7), "implements"),
    (lambda s: s.save_decision("x", topic="t", reasoning="", links=[{"to_id": "a"}]), "relationship"),
    (
        lambda s: s.save_decision("x", topic="t", reasoning="", links=[{"to_id": "a", "relationship": "b", "c": 1}]),
        "'c'",
    ),
    (lambda s: s.save_decision("x", topic="t", reasoning="", links={"to_id": "a"}), "links"),
    (lambda s: s.save_decision("x", topic="t", reasoning="", created_at=5), "created_at"),
    (lambda s: s.save_decision("x", topic="t", reasoning="", created_at="soon"), "created_at"),
    (lambda s: s.save_decision("x", topic="t", reasoning="", created_at=timedelta(days=-1)), "created_at"),
    (lambda s: s.save_decision("x", topic="t", reasoning="", valid_until=timedelta(days=10**8)), "valid_until"),
    (
        lambda s: s.save_decision("x", topic="t", reasoning="", created_at=datetime(9999, 1, 1, tzinfo=UTC)),
        "created_at",
    ),
    (lambda s: s.save_decision("x", topic="t", reasoning="", created_by="me"), "created_by"),
    (lambda s: s.save_decision("\ud800", topic="t", reasoning=""), "surrogate"),
    (lambda s: s.save_context("x" * 1_000_001), "content"),
    (lambda s: s.save_checkpoint("x", open_files="a.py"), "open_files"),
    (lambda s: s.save_insight("x", tags=[""]), "tags"),
    (lambda s: s.save_many([{"type": "context", "content": "x"}, {"type": "idea"}]), r"items\[1\].*type"),
    (lambda s: s.save_many([{"type": "context", "content": "x", "wrong": 1}]), r"items\[0\].*wrong"),
    (lambda s: s.save_many([{"type": "decision", "topic": "t"}]), r"items\[0\]"),
    (lambda s: s.get(""), "memory"),
    (lambda s: s.get(None), "memory"),
    (lambda s: s.count(type="idea"), "type"),
    (lambda s: s.list(limit=0), "limit"),
    (lambda s: s.list(limit=True), "limit"),
    (lambda s: s.list(since="yesterday"), "since"),
    (lambda s: s.list(order="best"), "order"),
    (lambda s: s.list(cursor="?"), "cursor"),
    (lambda s: s.list(cursor=5), "cursor"),
    (lambda s: s.list(where={"tags": "a"}), "Filter"),
    (lambda s: s.list(topic="a", where=Filter(topic="a")), "twice"),
    (lambda s: s.links(cursor="?"), "cursor"),
    (lambda s: s.links(limit=0), "limit"),
    (lambda s: s.similar("x", threshold=2), "threshold"),
    (lambda s: s.similar(), "either"),
    (lambda s: s.similar("x", content="x"), "either"),
    (lambda s: s.history(), "either"),
    (lambda s: s.history("x", topic="x"), "either"),
    (lambda s: s.delete(), "where"),
    (lambda s: s.delete(where=Filter()), "where"),
    (lambda s: s.delete("x", dry_run=1), "dry_run"),
    (lambda s: s.erase(), "where"),
    (lambda s: s.erase(where=Filter()), "where"),
    (lambda s: s.update("x"), "update"),
    (lambda s: s.update("x", " "), "content"),
    (lambda s: s.save("x", type="decision"), "type"),
    (lambda s: s.save("x", extra=5), "extra"),
    (lambda s: s.save("x", extra={str(number): 0 for number in range(65)}), "extra"),
    (lambda s: s.save("x", extra={"a": "b" * 10_000}), "extra"),
    (lambda s: s.save("x", extra={"a": {1}}), "extra"),
    (lambda s: s.unlink(5), "link"),
    (lambda s: s.search(""), "query"),
    (lambda s: s.search("x" * 10_001), "query"),
    (lambda s: s.search("x", since=5), "since"),
    (lambda s: s.search("x", type=["decision", "x"]), "type"),
    (lambda s: s.list(where=Filter(mentions=[])), "mentions"),
    (lambda s: s.search("x", type=[]), "type"),
    (lambda s: s.search("x", superseded="never"), "superseded"),
    (lambda s: s.search("x", min_relevance=1.5), "min_relevance"),
    (lambda s: s.search("x", max_chars=0), "max_chars"),
    (lambda s: s.save_many(None), "items"),
    (lambda s: s.save_many([{"type": "context", "content": "x", "now": 5}]), "now"),
    (lambda s: s.save_many([], progress=5), "progress"),
    (lambda s: admin.export_jsonl(s, 5), "path"),
    (lambda s: s.search("x", as_of=5), "as_of"),
    (lambda s: s.history(topic=" "), "topic"),
    (lambda s: s.set_outcome("x", "GOOD"), "outcome"),
    (lambda s: s.set_outcome("x", "FAILED"), "reason"),
    (lambda s: s.set_outcome("x", "FAILED", reason=" "), "reason"),
    (lambda s: s.link("a", "b", ""), "relationship"),
    (lambda s: s.link("a", "b", "c", confidence=-1), "confidence"),
    (lambda s: s.traverse("a", direction="up"), "direction"),
    (lambda s: s.traverse("a", max_depth=0), "max_depth"),
    (lambda s: s.traverse("a", link_types=["x"]), "link_types"),
    (lambda s: s.traverse("a", min_strength=-0.1), "min_strength"),
    (lambda s: admin.prune(s, now="x"), "now"),
]


@every_row(("call", "named"), BAD)
async def test_save_with_invalid_argument_raises_and_saves_nothing(store, call, named):
    """The error names the argument, and is raised before anything is saved."""
    with pytest.raises(InvalidArgument, match=named):
        await call(store)

    assert 0 == await store.count()


UNKNOWN = [
    lambda s, near: s.get(near),
    lambda s, near: s.delete(near),
    lambda s, near: s.delete([near]),
    lambda s, near: s.erase(near),
    lambda s, near: s.update(near, "y"),
    lambda s, near: s.evidence(near),
    lambda s, near: s.explain("x", near),
    lambda s, near: s.similar(near),
    lambda s, near: s.history(near),
    lambda s, near: s.links(near),
    lambda s, near: s.traverse(near),
    lambda s, near: s.details(near),
    lambda s, near: s.set_outcome(near, "SUCCESS"),
    lambda s, near: s.supersede(near, "x", reasoning=""),
    lambda s, near: s.save_decision("x", topic="t", reasoning="", supersedes=near),
    lambda s, near: s.save_checkpoint("x", implements=[near]),
    lambda s, near: s.save_insight("x", links=[{"to_id": near, "relationship": "refines"}]),
    lambda s, near: s.save_many([{"type": "checkpoint", "content": "x", "implements": [near]}]),
]


@pytest.mark.parametrize("call", UNKNOWN)
async def test_unknown_id_raises_error_with_similar_ids(store, call):
    """Nothing is saved, and the hint contains the intended id."""
    memory = await store.save_decision("use JWT", topic="auth", reasoning="")
    near = memory.id[:-1] + ("0" if memory.id[-1] != "0" else "1")

    with pytest.raises(MemoryNotFound) as caught:
        await call(store, near)
    assert (near, (memory.id,)) == (caught.value.memory_id, caught.value.nearest)
    assert memory.id in caught.value.hint
    assert 1 == await store.count()
    assert [] == await store.links(memory.id)


@pytest.mark.parametrize("call", [MemoryStore.get, MemoryStore.history, MemoryStore.delete, MemoryStore.links])
async def test_id_of_deleted_memory_suggests_no_other_memory(store, call):
    """Customers have similar ids, so a suggestion could be the memory of another customer."""
    texts = [f"Customer number {number} lives in {town}" for number in range(12) for town in ("Rome", "Oslo")]
    saved = await store.save_many(texts)
    await store.delete(saved[1])

    with pytest.raises(MemoryNotFound) as caught:
        await call(store, saved[1].id)
    assert ((), None) == (caught.value.nearest, caught.value.hint)


SLUGS = st.sampled_from(["auth", "customer_1", "customer_18", "lives_in_rome", "인증"])
ENDS = st.tuples(st.integers(10**12, 10**13 - 1), st.integers(0, 2**32 - 1))


@given(SLUGS, ENDS, st.data())
def test_is_misspelled_id_accepts_one_typing_error_and_cut_ends(slug, end, data):
    memory_id = f"insight_{slug}_{end[0]}_{end[1]:08x}"
    place = data.draw(st.integers(0, len(memory_id) - 1))
    letter = data.draw(st.sampled_from("abc0"))
    start = memory_id.rindex("_") + 2

    for text in (
        memory_id[:place] + memory_id[place + 1 :],
        memory_id[: data.draw(st.integers(start, len(memory_id)))],
        memory_id.removeprefix("insight_"),
    ):
        assert is_misspelled_id(text, memory_id), text
    if memory_id[place] not in "_0123456789":
        assert is_misspelled_id(memory_id[:place] + letter + memory_id[place + 1 :], memory_id)


def test_is_misspelled_id_rejects_id_of_other_memory_of_same_time():
    random = Random(1)
    for _ in range(2_000):
        one, other = (f"insight_auth_1790000000000_{random.getrandbits(32):08x}" for _ in range(2))

        assert not is_misspelled_id(one, other)


@pytest.mark.parametrize(
    ("text", "is_meant"),
    [
        ("insight_customer_1", False),
        ("customer_18", True),
        ("insight_customer_18_lives", True),
        ("customer", True),
        ("insight_customer_18_lives_17900000", False),
    ],
)
def test_is_misspelled_id_compares_numbers_of_names(text, is_meant):
    assert is_meant == is_misspelled_id(text, "insight_customer_18_lives_1790000000000_0a1b2c3d")


async def test_unlink_keeps_link_whose_id_has_equal_hash(monkeypatch, store):
    """
    The index stores 64-bit hashes of link ids.

    On a collision, the link of the right source is removed.
    """
    monkeypatch.setattr("mama_structs.memory.engines.local.views.adjacency.hash_link_id", lambda _link_id: 7)
    memories = [await store.save_context(text) for text in ("the wall", "the mine", "the fleet")]
    kept = await store.link(memories[0].id, memories[2].id, "builds on")
    gone = [await store.link(memories[1].id, memories[end].id, "builds on") for end in (0, 2)]
    await store.unlink(gone[1].id)
    await store.unlink(gone[0].id)

    assert {kept.id} == {link.id for link in await store.links(memories[2].id) if link.created_by != "system"}
    assert memories[0].id in {one.memory.id for one in await store.traverse(memories[2].id, max_depth=1)}


async def test_link_rejects_self_links_and_supersede_rejects_non_decisions(store):
    """Both raise an error with an explanation."""
    memory = await store.save_context("x")
    with pytest.raises(InvalidArgument, match="itself"):
        await store.link(memory.id, memory.id, "refines")
    for call in (
        lambda: store.supersede(memory.id, "x", reasoning=""),
        lambda: store.save_decision("x", topic="t", reasoning="", supersedes=memory.id),
        lambda: store.set_outcome(memory.id, "SUCCESS"),
    ):
        with pytest.raises(InvalidArgument, match="must be a decision"):
            await call()
    with pytest.raises(LinkNotFound):
        await store.unlink("link_x")


async def test_save_many_keeps_order_and_reports_progress(tmp_path):
    """A record with a link to an unknown memory is reported before any record is saved."""
    place = OpenedDirectory.open(tmp_path, settings=MemorySettings(linking="off"))
    store = await place.memories()
    told = []
    records = [{"type": "context", "content": f"note {number}"} for number in range(300)]
    saved = await store.save_many(iter(records), progress=lambda *figures: told.append(figures))
    assert [record["content"] for record in records] == [memory.content for memory in saved]
    assert list(reversed(saved)) == await store.list(limit=1000)
    assert (300, 300) == told[-1]

    bad = {"type": "checkpoint", "content": "x", "implements": ["nothing"]}
    with pytest.raises(MemoryNotFound) as caught:
        await store.save_many([*records, bad])
    assert ["in items[300]"] == caught.value.__notes__
    assert 300 == await store.count()
    assert [] == await store.save_many([])
    await place.close()


# Links


async def test_duplicate_link_keeps_higher_confidence(store):
    """
    Equal words in different spellings are one link between two memories.

    A lower confidence changes nothing.
    """
    one, other = await store.save_checkpoint("one thing"), await store.save_checkpoint("quite another")
    link = await store.link(one.id, other.id, "depends on", confidence=0.5)
    assert link == await store.link(one.id, other.id, "depends on", confidence=0.2)
    stronger = await store.link(one.id, other.id, "Depends_On", confidence=0.9, reason="why")
    assert (link.id, 0.9, "why") == (stronger.id, stronger.confidence, stronger.metadata.reason)
    back = await store.link(other.id, one.id, "depends on")
    links = [found for found in await store.links(one.id) if found.created_by == "user"]

    assert sorted([stronger.id, back.id]) == sorted(found.id for found in links)


@pytest.mark.parametrize("creator", ["user", "llm"])
async def test_explicit_link_replaces_automatic_link(store, clock, creator):
    """Afterwards there is one link between the two memories, the explicit one."""
    first = await store.save_context("use JWT for the login")
    clock.now += 60
    second = await store.save_context("use JWT for the login of the game")
    assert {"system"} == {link.created_by for link in await store.links(first.id)}
    link = await store.link(second.id, first.id, "refines", created_by=creator)

    assert [link] == await store.links(first.id)
    assert creator == link.created_by


async def test_repeated_system_link_is_stored_once(store):
    """A host that links twice as the system, with the same word, creates one link."""
    one, other = await store.save_checkpoint("one thing"), await store.save_checkpoint("quite another")
    for confidence in (0.5, 0.7, 0.4):
        await store.link(one.id, other.id, "seen with", confidence=confidence, created_by="system")
    found = [link for link in await store.links(one.id) if link.metadata.original_relationship == "seen with"]

    assert [0.7] == [link.confidence for link in found]


async def test_delete_removes_all_links_of_memory_only(store):
    """Neighbours and their other links remain."""
    saved = [await store.save_decision("use JWT", topic="auth", reasoning="")]
    for number in range(3):
        saved.append(await store.supersede(saved[-1].id, f"use {number}", reasoning=""))
    before = {link.id for memory in saved for link in await store.links(memory.id)}
    own = {link.id for link in await store.links(saved[1].id)}

    assert 1 == await store.delete(saved[1].id)
    left = [saved[0], *saved[2:]]
    assert before - own == {link.id for memory in left for link in await store.links(memory.id)}
    assert [saved[0].id] == [memory.id for memory in await store.history(saved[0].id)]
    assert [saved[3].id, saved[2].id] == [memory.id for memory in await store.history(saved[2].id)]


# Outcomes


async def test_update_outcome_keeps_history_and_searchable_reason(store, clock):
    """The last outcome is current, and searching for its reason also finds the decision."""
    decision = await store.save_decision("use JWT for the login", topic="auth", reasoning="stateless")
    clock.now += 60
    await store.set_outcome(decision.id, "PARTIAL")
    clock.now += 60
    after = await store.set_outcome(decision.id, Outcome.FAILED, reason="nobody could revoke stolen tokens")

    assert after == await store.get(decision.id)
    assert (Outcome.FAILED, "nobody could revoke stolen tokens", clock.at()) == (
        after.metadata.outcome, after.metadata.outcome_reason, after.metadata.outcome_at
    )  # fmt: skip
    assert [Outcome.PARTIAL, Outcome.FAILED] == [change.outcome for change in after.metadata.history]
    assert (decision.created_at, clock.at()) == (after.created_at, after.updated_at)
    hits = [hit.memory for hit in (await store.search("nobody could revoke stolen tokens"))[:2]]
    (hit,) = [memory for memory in hits if memory.type is MemoryType.CONTEXT]
    assert "nobody could revoke stolen tokens" == hit.content
    assert [decision.id] == [one.memory.id for one in await store.traverse(hit.id, max_depth=1) if one.strength == 1.0]
    earlier = await store.set_outcome(decision.id, "SUCCESS", at=clock.at() - timedelta(seconds=90))
    assert Outcome.FAILED == earlier.metadata.outcome
    assert 3 == len(earlier.metadata.history)


async def test_search_as_of_ignores_later_changes(store, clock):
    """With as_of, later memories, outcomes and replacements have no effect."""
    first = await store.save_decision("use JWT for the login", topic="auth", reasoning="")
    clock.now += 86400
    moment = clock.at()
    clock.now += 86400
    second = await store.supersede(first.id, "use sessions for the login", reasoning="")
    await store.set_outcome(first.id, "FAILED", reason="it leaked")

    (then,) = await store.search("login", as_of=moment)
    assert (first, None) == (then.memory, then.superseded_by)
    now = {hit.memory.id: hit for hit in await store.search("login")}
    assert second.id == now[first.id].superseded_by
    assert Outcome.FAILED == now[first.id].memory.metadata.outcome
    assert [] == await store.search("login", as_of=START - timedelta(days=1))


# Times


async def test_times_are_utc_in_whole_milliseconds(store):
    """Times in any time zone are converted."""
    zone = timezone(timedelta(hours=9))
    memory = await store.save_context("x", created_at=datetime(2026, 1, 1, 9, 0, 0, 123_999, tzinfo=zone))

    assert datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC) == memory.created_at
    assert timedelta(0) == memory.created_at.utcoffset()
    assert [memory] == await store.list(since=datetime(2026, 1, 1, 9, tzinfo=zone))
    assert [] == await store.list(since=datetime(2026, 1, 1, 9, 0, 1, tzinfo=zone))


# Searching

WORDS = st.sampled_from(["login", "token", "shield", "planet", "raid", "fleet"])
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sets(st.sampled_from(list(MemoryType)), min_size=1),
        "topic": st.sampled_from(["auth", "raids", "none of them"]),
        "since": st.integers(0, 60).map(lambda hours: START + timedelta(hours=hours)),
        "until": st.integers(0, 60).map(lambda hours: START + timedelta(hours=hours)),
        "mentions": st.sets(st.sampled_from(["1-11", "2-1"]), min_size=1),
        "superseded": st.sampled_from(["demote", "exclude", "keep"]),
    },
)


@pytest.mark.parametrize("exact_up_to", [20_000, 0])
async def test_search_filters_are_exact(exact_up_to):
    """With any filters, up to `limit` distinct matching memories are returned, best first."""
    memory = Path("/dev/shm")
    chance = np.random.default_rng(7)
    words = ["login", "token", "shield", "planet", "raid", "fleet", "night"]
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as home:
        place = OpenedDirectory.open(
            Path(home), clock=lambda: START.timestamp(), settings=MemorySettings(exact_up_to=exact_up_to, linking="off"),
            find_mentions=lambda text: [word for word in text.split() if word in {"1-11", "2-1"}],
        )  # fmt: skip
        store = await place.memories()
        records = []
        for number in range(400):
            text = " ".join(
                [
                    *chance.choice(words, 3),
                    *(["1-11"] if number % 5 == 0 else []),
                    *(["2-1"] if number % 7 == 0 else []),
                ]
            )
            at = START + timedelta(hours=int(chance.integers(0, 60)))
            topic = ["auth", "raids"][number % 2]
            match number % 4:
                case 0:
                    records.append(
                        {"type": "decision", "topic": topic, "content": text, "reasoning": "", "created_at": at}
                    )
                case 1:
                    records.append({"type": "checkpoint", "content": text, "created_at": at})
                case 2:
                    records.append({"type": "insight", "content": text, "created_at": at})
                case 3:
                    records.append({"type": "context", "content": text, "topic": topic, "created_at": at})
        everything = await store.save_many(records)
        for gone in everything[::9]:
            await store.delete(gone.id)
        everything = [one for number, one in enumerate(everything) if number % 9]
        if exact_up_to == 0:
            vectors_settled(store)

        @settings(max_examples=max(20, settings.default.max_examples // 4))
        @given(
            query=st.lists(WORDS, min_size=1, max_size=3).map(" ".join),
            where=FILTERS,
            limit=st.sampled_from([1, 3, 10, 500]),
        )
        def compare(query, where, limit):
            passing = {
                one.id
                for one in everything
                if ("type" not in where or one.type in where["type"])
                and ("topic" not in where or one.topic == where["topic"])
                and ("since" not in where or one.created_at >= where["since"])
                and ("until" not in where or one.created_at < where["until"])
                and ("mentions" not in where or where["mentions"] <= set(one.mentions))
            }
            further = {name: where[name] for name in ("until", "mentions") if name in where}
            direct = {name: value for name, value in where.items() if name not in further}
            hits = runner(store.search(query, limit=limit, where=Filter(**further), **direct))
            found = [hit.memory.id for hit in hits]
            copies = [name for hit in hits for name in hit.duplicates]
            assert passing >= {*found, *copies}
            assert len({*found, *copies}) == len(found) + len(copies)
            assert limit == len(found) or passing == {*found, *copies}
            scores = [hit.score for hit in hits]
            assert sorted(scores, reverse=True) == scores
            assert all(0 <= hit.relevance <= 1 for hit in hits)
            recent = runner(store.list(limit=limit, **{key: where[key] for key in ("type", "since") if key in where}))
            assert sorted(recent, key=lambda one: one.created_at, reverse=True) == recent
            assert len(everything) == runner(store.count())

        loop = asyncio.get_running_loop()

        def runner(coroutine):
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

        await asyncio.to_thread(compare)
        assert [] == await place.findings()
        await place.close()


@pytest.mark.parametrize("exact_up_to", [20_000, 0])
async def test_search_finds_others_among_two_thousand_equal_memories(tmp_path, exact_up_to):
    """Each other memory is found by its own words and by similarity, also with filters."""
    place = OpenedDirectory.open(tmp_path, settings=MemorySettings(exact_up_to=exact_up_to, linking="off"))
    store = await place.memories()
    others = [
        {"type": "insight", "content": f"{word} of the {other}"}
        for word in ("speed", "price", "colour", "weight")
        for other in ("fleet", "planet", "reactor", "guild")
    ]
    saved = await store.save_many(others[:8])
    await store.save_many([{"type": "context", "content": "nothing new on the login"}] * 2000)
    saved += await store.save_many(others[8:])
    vectors_settled(store)
    for memory in saved:
        assert memory.id == (await store.search(memory.content))[0].memory.id
        similar = await store.similar(content=memory.content, threshold=0.0, limit=3)
        assert memory.id == similar[0].memory.id
    assert 16 == len(await store.search("nothing new on the login", type=["insight"], limit=20))
    assert 50 == len({hit.memory.id for hit in await store.search("nothing new on the login", limit=50)})
    assert [] == await place.findings()
    await place.close()


async def test_automatic_links_per_memory_are_limited(store, clock):
    """Of sixty equal memories, none has more than thirty-two incoming or eight outgoing links."""
    saved = []
    for _ in range(60):
        clock.now += 1
        saved.append(await store.save_insight("nothing new on the login"))
    for memory in saved:
        links = await store.links(memory.id)
        assert sum(link.to_id == memory.id for link in links) <= 32
        assert sum(link.from_id == memory.id for link in links) <= 8


# Sharing a transaction


async def test_concurrent_calls_share_transactions(tmp_path, monkeypatch):
    """
    Sixty-four concurrent saves need at most one fsync per sixteen.

    A failing call does not affect the others.
    """
    # Remove the time limit. Otherwise a slow machine could end the transaction before it contains all waiting calls.
    monkeypatch.setattr(embedded_engine, "MAX_TRANSACTION_SECONDS", 1e9)
    place = OpenedDirectory.open(tmp_path)
    store = await place.memories()
    await store.save_context("the first")
    journal = place.storage
    whole, transactions = type(journal)._run_transaction, []

    def counted(work, **how):
        transactions.append(work)
        return whole(journal, work, **how)

    journal._run_transaction = counted
    results = await asyncio.gather(
        *(store.save_context(f"note {number}") for number in range(64)),
        *(store.save_checkpoint(f"bad {number}", implements=["nothing"]) for number in range(8)),
        return_exceptions=True,
    )
    del journal._run_transaction

    assert len(transactions) <= 72 // 16
    assert [f"note {number}" for number in range(64)] == [memory.content for memory in results[:64]]
    assert {MemoryNotFound} == {type(error) for error in results[64:]}
    assert 65 == await store.count()
    assert [] == await place.findings()
    await place.close()


# Cancelling

CALLS = {
    "save_decision": lambda s, ids: s.save_decision("use keys", topic="auth", reasoning="why", implements=[ids[0]], links=[{"to_id": ids[1], "relationship": "some new word"}]),
    "save_many": lambda s, ids: s.save_many([{"type": "context", "content": f"n {n}"} for n in range(300)]),
    "supersede": lambda s, ids: s.supersede(ids[0], "use nothing", reasoning=""),
    "set_outcome": lambda s, ids: s.set_outcome(ids[0], "FAILED", reason="it leaked"),
    "link": lambda s, ids: s.link(ids[0], ids[1], "another new word"),
    "delete": lambda s, ids: s.delete(ids[1]),
    "search": lambda s, ids: s.search("login"),
    "similar": lambda s, ids: s.similar(content="the login"),
    "traverse": lambda s, ids: s.traverse(ids[0]),
    "relationships": lambda s, ids: s.relationships(),
    "prune": lambda s, ids: admin.prune(s, now=START + timedelta(days=100)),
    "check": lambda s, ids: admin.check(s),
    "rebuild": lambda s, ids: admin.rebuild(s),
    "import_jsonl": lambda s, ids: admin.import_jsonl(s, s.file),
    "export_jsonl": lambda s, ids: admin.export_jsonl(s, s.file.with_name("another")),
    "reembed": lambda s, ids: admin.reembed(s, SMALL),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
async def test_cancelled_call_is_complete_or_has_no_effect(tmp_path, monkeypatch, name):
    """
    After a cancellation at any point the store is usable, and no task is left.

    Each memory that exists has all its links.
    """
    # Remove the time limit, so that a busy machine cannot end the transaction early.
    monkeypatch.setattr(embedded_engine, "MAX_TRANSACTION_SECONDS", 1e9)
    source = OpenedDirectory.open(tmp_path / "source")
    exported = await source.memories()
    await exported.save_many([{"type": "insight", "content": f"imported {n}"} for n in range(20)])
    await admin.export_jsonl(exported, tmp_path / "file")
    await source.close()
    place = OpenedDirectory.open(tmp_path / "a")
    store = await place.memories()
    store.file = tmp_path / "file"
    tasks = asyncio.all_tasks()
    for waits in [0, 2, 5, 9, 25] if name == "save_many" else [*range(10), 14, 20, 40]:
        ids = [
            (await store.save_decision(text, topic="auth", reasoning="")).id
            for text in ("use JWT for the login", "login")
        ]
        before = await store.count()
        links = len(await store.links(ids[0]))
        task = asyncio.ensure_future(CALLS[name](store, ids))
        for _ in range(waits):
            await asyncio.sleep(0)
            if task.done():
                break
        # Yield to the store's thread, so that the cancellation also reaches later steps of the call.
        await asyncio.sleep(0.002 * (waits % 4))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        added = await store.count() - before
        assert added in {"save_decision": {0, 1}, "supersede": {0, 1}, "set_outcome": {0, 1}, "delete": {0, -1},
                         "save_many": {*range(301)}, "import_jsonl": {0, 20}}.get(name, {0})  # fmt: skip
        if name == "set_outcome":
            decision = await store.get(ids[0])
            assert added == (decision.metadata.outcome is not None)
            assert added == sum(
                link.metadata.original_relationship == "outcome_of" for link in await store.links(ids[0])
            )
        if name == "save_decision":
            made = [link for link in await store.links(ids[0]) if link.metadata.original_relationship == "implements"]
            assert added == len(made)
            assert len(await store.links(ids[0])) >= links
    if name == "import_jsonl":
        await CALLS[name](store, ids)
        assert 20 == len([memory for memory in await store.list(limit=10**6) if memory.content.startswith("imported")])
    for _ in range(50):
        if tasks >= asyncio.all_tasks():
            break
        await asyncio.sleep(0.01)

    assert tasks >= asyncio.all_tasks()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
    assert [] == await place.findings()
    await place.close()


# Embedders that fail


async def test_save_with_failing_embedder_saves_nothing(tmp_path):
    """The error is typed, and the store remains usable."""
    broken = {"now": False}

    async def embed(texts):
        if broken["now"]:
            raise RuntimeError("no network")
        return SMALL.embed(texts)

    place = OpenedDirectory.open(tmp_path, embedder=as_embedder(embed, name="mine", dimensions=64))
    store = await place.memories()
    memory = await store.save_decision("use JWT", topic="auth", reasoning="")
    broken["now"] = True
    for call in (
        lambda: store.save_context("x"),
        lambda: store.search("something else"),
        lambda: store.set_outcome(memory.id, "FAILED", reason="why not"),
        lambda: store.save_many([{"type": "context", "content": "y"}]),
    ):
        with pytest.raises(EmbeddingFailed):
            await call()
    assert memory == await store.get(memory.id)
    assert 1 == await store.count()
    broken["now"] = False
    await store.save_context("x")
    assert [] == await place.findings()
    await place.close()


# Empty results and other cases


async def test_methods_return_empty_results_for_empty_store(store):
    assert 0 == await store.count()
    assert (
        []
        == await store.list()
        == await store.search("x")
        == await store.similar(content="x")
        == await store.list(where=Filter(mentions="2-1"))
    )
    assert await store.latest_checkpoint() is None
    assert () == (await store.history(topic="x")).memories
    assert [] == await store.relationships()
    assert 0 == await admin.prune(store)
    assert not (await admin.maintain(store)).due
    assert [] == await admin.rebuild(store)
    assert () == (await admin.check(store)).issues
    assert 0 == (await store.stats())["memories"]


async def test_methods_work_with_single_memory(store):
    memory = await store.save_checkpoint("half done near 2-1")
    assert [memory] == await store.list(where=Filter(mentions="2-1")) == await store.list()
    assert [memory] == [hit.memory for hit in await store.search("anything at all")]
    assert [] == await store.similar(memory.id) == await store.traverse(memory.id) == await store.links(memory.id)
    assert (memory,) == (await store.history(memory.id)).memories
    details = await store.details(memory.id)
    assert (memory, (), ()) == (details.memory, details.nearby, details.links)
    assert 1 == await store.delete(memory.id)
    assert 0 == await store.count()
    assert memory.id != (await store.save_checkpoint("half done near 2-1")).id


async def test_ids_and_topics_are_compared_in_nfc(store):
    """Composed and decomposed spellings of an id or topic are equal."""
    memory = await store.save_decision("x", topic="De\u0301fense", reasoning="")
    assert "D\u00e9fense" == memory.topic
    decomposed = memory.id.replace("\u00e9", "e\u0301")
    assert decomposed != memory.id

    assert memory == await store.get(decomposed)
    assert (memory,) == (await store.history(topic="De\u0301fense")).memories
    assert [memory.id] == [hit.memory.id for hit in await store.search("x", topic="De\u0301fense")]
    later = await store.save_checkpoint("y", implements=[decomposed])
    assert memory.id in {link.to_id for link in await store.links(later.id)}
    assert [] == [one for one in await store.similar(decomposed, threshold=0.0) if one.memory.id == memory.id]


async def test_call_on_closed_store_raises(tmp_path):
    """The typed error precedes the validation of arguments."""
    session = await Session.open(tmp_path, embedder=SMALL)
    store = session.memories
    await session.close()
    given = {
        "items": [{"type": "context", "content": "x"}],
    }
    for name, method in inspect.getmembers(MemoryStore, inspect.iscoroutinefunction):
        if name.startswith("_"):
            continue
        needed = [
            parameter
            for parameter in list(inspect.signature(method).parameters.values())[1:]
            if parameter.default is inspect.Parameter.empty
        ]
        values = {parameter.name: given.get(parameter.name, "SUCCESS") for parameter in needed}
        with pytest.raises(SessionClosed):
            await getattr(store, name)(**values)
    await store._close()


async def test_session_without_directory_has_memories():
    """They behave like stored ones, and end with the session."""
    async with Session.open(embedder=SMALL) as session:
        first = await session.memories.save_decision("use JWT", topic="auth", reasoning="")
        second = await session.memories.supersede(first.id, "use sessions", reasoning="")
        assert [second, first] == await session.memories.list()
        assert second.id == (await session.memories.search("what do we use"))[0].memory.id
        assert [] == [one for one in (await admin.check(session)).issues if one.severity == "error"]
        await admin.rebuild(session.memories)
        assert 2 == await session.memories.count()


async def test_search_max_chars_omits_hits_and_never_truncates(store):
    """All hits together have at most *max_chars* characters, and each hit is complete."""
    long = await store.save_decision("backup of the store", topic="backup", reasoning="why " * 20)
    short = await store.save_insight("backup of disks")
    whole = await store.search("backup of the store")
    (least,) = await store.search("backup of the store", max_chars=98)

    assert {long.id, short.id} == {hit.memory.id for hit in whole}
    assert short == least.memory
    assert whole == await store.search("backup of the store", max_chars=19 + 80 + 15)
    assert [] == await store.search("backup of the store", max_chars=14)


async def test_search_min_relevance_drops_less_relevant_hits(store):
    """The remaining hits equal those of an unfiltered search."""
    for text in ("a stolen token could not be revoked", "lunch is at noon", "the harbour freezes in winter"):
        await store.save_context(text)
    hits = await store.search("a stolen token could not be revoked")
    least = sorted(hit.relevance for hit in hits)[1]

    kept = await store.search("a stolen token could not be revoked", min_relevance=least)

    assert [hit for hit in hits if hit.relevance >= least] == kept
    assert len(kept) < len(hits)
