"""Records: comparison of a record store with a plain dict, and combination of records with memories."""

from __future__ import annotations

import asyncio
import itertools
import json
import string
from datetime import timedelta
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_helpers import SMALL, OpenedDirectory, PlainEngines, is_on_server

from mama_structs import Filter, HashEmbedder, admin
from mama_structs.errors import InvalidArgument, StoreDamaged, VersionConflict
from mama_structs.memory.records import record_plans
from mama_structs.memory.save.save_plan import embed_memories
from mama_structs.memory.search import search_plan
from mama_structs.memory.search.candidates import collect_candidates
from mama_structs.memory.types.model import MemoryType, from_milliseconds
from mama_structs.memory.types.record import MAX_VALUE_BYTES, note_name, record_memory_id
from mama_structs.settings import MemorySettings
from mama_structs.testing import FakeClock
from mama_structs.types import NewRecord, RecordStore

START = 1_790_000_000
NOON = from_milliseconds(START * 1000)
ALICE, BOB = ("users", "alice"), ("users", "bob")
NAMES = itertools.count()
# Only the start of a long text is embedded, so no vector covers the end of this text.
LONG = "x y " * 17_000 + "treasure oak " * 2_000


@pytest.fixture(params=[lambda: None, PlainEngines], ids=["embedded", "plain"])
async def place(request, tmp_path):
    clock = FakeClock(start=START)
    opened = OpenedDirectory.open(tmp_path, clock=clock.now, engines=request.param(), find_mentions=named_planets)
    yield opened, await opened.memories(), clock
    await opened.close()


def named_planets(text):
    return [word for word in text.split() if word.startswith("2-")]


@pytest.fixture
def store(place):
    return place[1]


def records_of(store):
    """Return the records of a memory store, as `Session.records` does."""
    return RecordStore(store._shared)


@pytest.fixture
def records(store):
    return records_of(store)


# Round trips


async def test_put_and_get_preserve_any_json_value(records):
    """The value is an equal copy, with the same numbers, key order and characters."""
    value = {"z": [1, 2.5, -0.0, None, True, 2**70], "a": {"\0": "한국어\u2028", "": []}}
    put = await records.put(ALICE, "anything / = % +", value)
    value["z"].append("later")
    got = await records.get(ALICE, "anything / = % +")

    assert put == got
    assert {"z": [1, 2.5, -0.0, None, True, 2**70], "a": {"\0": "한국어\u2028", "": []}} == got.value
    assert ["z", "a"] == list(got.value)
    assert (1, NOON, NOON, None, None) == (got.version, got.created_at, got.updated_at, got.text, got.memory_id)


async def test_search_finds_records_with_text_only(store):
    """
    A record with text is a memory for search, recent and about.

    Without text, it is only found by its key.
    """
    kept = await records_of(store).put(ALICE, "food", {"likes": "kimchi"}, text="alice likes kimchi on 2-1")
    await records_of(store).put(ALICE, "token", {"secret": "kimchi 2-1"})

    assert [kept.memory_id] == [hit.memory.id for hit in await store.search("who likes kimchi?")]
    assert [kept.memory_id] == [one.id for one in await store.list()]
    assert [kept.memory_id] == [one.id for one in await store.list(where=Filter(mentions="2-1"))]
    assert [MemoryType.RECORD] == [one.type for one in await store.list()]
    assert 1 == await store.count()
    assert ["food"] == [hit.record.key for hit in await records_of(store).search("kimchi", ("users",))]
    assert ["food"] == [hit.record.key for hit in await records_of(store).nearest("kimchi", ("users",))]
    assert ["food", "token"] == [one.key for one in await records_of(store).list(("users",))]


async def test_record_gains_and_loses_text_at_same_key(store):
    """Putting it with or without text continues its version and history."""
    records = records_of(store)
    await records.put(ALICE, "food", 1, keep_history=True)
    await records.put(ALICE, "food", 2, text="kimchi", keep_history=True)
    found = await store.search("kimchi")
    await records.put(ALICE, "food", 3, keep_history=True)

    assert [2] == [hit.memory.metadata.value for hit in found]
    assert 0 == await store.count()
    assert [(3, 3, None), (2, 2, "kimchi"), (1, 1, None)] == [
        (one.version, one.value, one.text) for one in await records.history(ALICE, "food")
    ]


async def test_history_is_stored_on_request_only(records):
    """A put without *history* replaces the value without storing the previous version."""
    for number in range(3):
        await records.put(ALICE, "note", number, text=f"number {number}", keep_history=number == 2)

    assert [2, 1] == [one.value for one in await records.history(ALICE, "note")]
    assert [] == await records.history(ALICE, "none")


async def test_search_as_of_finds_former_value(place):
    """It finds the text and value that the record had at that time."""
    _, store, clock = place
    await records_of(store).put(ALICE, "food", "old", text="alice eats kimchi", keep_history=True)
    clock.advance(60)
    await records_of(store).put(ALICE, "food", "new", text="alice eats pizza", keep_history=True)
    (then,) = await store.search("alice eats", as_of=NOON + timedelta(seconds=30))
    (now,) = await store.search("alice eats")

    assert ("alice eats kimchi", "old", 1) == (
        then.memory.content,
        then.memory.metadata.value,
        then.memory.metadata.version,
    )
    assert ("alice eats pizza", "new", 2) == (
        now.memory.content,
        now.memory.metadata.value,
        now.memory.metadata.version,
    )


async def test_several_texts_of_record_are_embedded_separately(records):
    """
    The best text determines the score, also after `reembed`.

    As one long text it would not be found.
    """
    noise = " ".join(f"noise{number}" for number in range(200))
    await records.put(ALICE, "both", 1, text=[noise, "the treasure is under the oak"])
    await records.put(ALICE, "one", 2, text=f"{noise} the treasure is under the oak")
    best, other = await records.nearest("the treasure is under the oak", ALICE)

    assert "both" == best.record.key
    assert best.cosine == pytest.approx(1.0, abs=1e-5)
    assert other.cosine < 0.9


@pytest.mark.parametrize("text", [LONG, ["short", LONG]], ids=["one", "several"])
async def test_record_embedding_is_equal_after_reembed(store, text):
    """Also for long texts, `put` and `reembed` compute the same vectors."""
    record = await records_of(store).put(ALICE, "long", 1, text=text)
    memory = await store.get(record.memory_id)
    (anew,) = await embed_memories(store._shared.embedding, [memory])

    assert np.array_equal(anew, await store._get_vectors(memory.id))


# Expiry


@pytest.mark.parametrize("text", ["tea at four", None])
async def test_expired_record_is_absent_and_key_is_free(place, text):
    """A new record at its key has version 1, and `sweep` deletes other expired records."""
    _, store, clock = place
    records = records_of(store)
    await records.put(ALICE, "tea", 1, text=text, expires_at=NOON + timedelta(seconds=10))
    await records.put(BOB, "tea", 1, text=text, expires_at=NOON + timedelta(seconds=10))
    clock.advance(10)
    anew = await records.put(ALICE, "tea", 2, text=text, if_version=0)

    assert (1, 2, NOON + timedelta(seconds=10)) == (anew.version, anew.value, anew.created_at)
    assert [anew] == await records.list()
    assert [] == await records.history(BOB, "tea")
    assert None is await records.pop(BOB)
    assert [] == [hit for hit in await records.search("tea") if hit.record.labels == BOB]
    assert 1 == await records.delete_expired()
    assert [ALICE] == await records.labels()


@pytest.mark.parametrize("text", ["tea at four", None])
async def test_expire_changes_expiry_without_new_version(place, text):
    """`expire` keeps value and version. None removes the expiry."""
    _, store, clock = place
    put = await records_of(store).put(ALICE, "tea", 1, text=text, expires_at=NOON + timedelta(seconds=10))

    assert 1 == await records_of(store).expire([(ALICE, "tea"), (BOB, "none")], None)
    clock.advance(100)
    got = await records_of(store).get(ALICE, "tea")
    assert (put.version, put.value, None) == (got.version, got.value, got.expires_at)


@pytest.mark.parametrize("text", ["tea at four", None])
async def test_expire_with_version_rejects_other_versions(place, text):
    """A record that was replaced or created since it was read keeps its own expiry."""
    _, store, clock = place
    put = await records_of(store).put(ALICE, "tea", 1, text=text)
    await records_of(store).put(ALICE, "tea", 2, text=text)

    assert 0 == await records_of(store).expire([(ALICE, "tea", put.version)], NOON + timedelta(seconds=10))
    assert 1 == await records_of(store).expire([(ALICE, "tea", put.version + 1)], NOON + timedelta(seconds=20))
    clock.advance(15)
    assert 2 == (await records_of(store).get(ALICE, "tea")).value


@pytest.mark.parametrize("text", ["tea at four", None])
async def test_delete_expired_keeps_record_put_meanwhile(place, monkeypatch, text):
    """A record that was put again between the sweep's read and its deletion is kept."""
    records = records_of(place[1])
    await records.put(ALICE, "tea", 1, text=text, expires_at=NOON)
    delete = RecordStore._delete

    async def late(self, places, **how):
        await records.put(ALICE, "tea", 2, text=text)
        return await delete(self, places, **how)

    monkeypatch.setattr(RecordStore, "_delete", late)

    assert 0 == await records.delete_expired()
    assert 2 == (await records.get(ALICE, "tea")).value


# Compare and set, batches


@pytest.mark.parametrize("text", ["text", None])
async def test_compare_and_set_rejects_other_versions(records, text):
    """
    Version 0 means that no record exists.

    The error contains the current version, and nothing is changed.
    """
    with pytest.raises(VersionConflict) as missing:
        await records.put(ALICE, "n", 1, text=text, if_version=1)
    await records.put(ALICE, "n", 1, text=text, if_version=0)
    with pytest.raises(VersionConflict) as there:
        await records.put(ALICE, "n", 2, text=text, if_version=0)
    with pytest.raises(VersionConflict):
        await records.delete(ALICE, "n", if_version=2)

    assert (0, ALICE, "n") == (missing.value.version, missing.value.labels, missing.value.key)
    assert 1 == there.value.version
    assert 1 == (await records.get(ALICE, "n")).value
    assert await records.delete(ALICE, "n", if_version=1)
    assert not await records.delete(ALICE, "n")


async def test_batch_is_atomic(records):
    """
    One conflict undoes all changes, deletions too.

    Of two values for a key the last one wins, and both count.
    """
    await records.put(ALICE, "old", 0, text="old")
    with pytest.raises(VersionConflict) as conflict:
        await records.put_many(
            [NewRecord(ALICE, "a", 1, text="new"), NewRecord(BOB, "b", 2, if_version=3)], delete=[(ALICE, "old")]
        )
    with pytest.raises(VersionConflict):
        await records.put_many([NewRecord(ALICE, "a", 1)], delete=[(ALICE, "old", 2)])
    written = await records.put_many(
        [NewRecord(ALICE, "a", 1, text="one"), NewRecord(ALICE, "a", 2, text="two")], delete=[(ALICE, "old", 1)]
    )

    assert (BOB, "b", 0) == (conflict.value.labels, conflict.value.key, conflict.value.version)
    assert [1, 2] == [one.version for one in written]
    assert [("a", 2, "two")] == [(one.key, one.value, one.text) for one in await records.list()]


async def test_concurrent_compare_and_set_loses_no_update(records):
    """All concurrent increments of a counter succeed eventually, and the sum is right."""

    async def count():
        while True:
            present = await records.get(ALICE, "n")
            try:
                return await records.put(
                    ALICE, "n", (present.value if present else 0) + 1, if_version=present.version if present else 0
                )
            except VersionConflict:
                continue

    await asyncio.gather(*(count() for _ in range(10)))

    assert (10, 10) == ((await records.get(ALICE, "n")).value, (await records.get(ALICE, "n")).version)


async def test_append_numbers_values_and_pop_returns_each_once(records):
    """Concurrent appends get consecutive keys, and concurrent pops return different values."""
    await asyncio.gather(*(records.append(ALICE, [number, -number]) for number in range(5)))
    listed = await records.list(ALICE, nested=False)
    popped = await asyncio.gather(*(records.pop(ALICE) for _ in range(12)))

    assert [f"{number:012d}" for number in range(1, 11)] == [one.key for one in listed]
    assert all(one.value == -other.value for one, other in zip(listed[::2], listed[1::2], strict=True))
    assert sorted(one.key for one in listed) == sorted(one.key for one in popped if one is not None)
    assert 2 == popped.count(None)


# Moving


async def test_append_rejects_key_beyond_last_number(records):
    """After the highest number there is no next key."""
    await records.put(ALICE, "9" * 12, "last")
    with pytest.raises(InvalidArgument, match="no number"):
        await records.append(ALICE, ["lost"])

    assert ["last"] == [one.value for one in await records.list(ALICE)]


async def test_move_keeps_history_and_links(store):
    """Under the new key, versions, times and incoming links are unchanged."""
    records = records_of(store)
    await records.put(ALICE, "draft", 1, text="the plan of the harbour", keep_history=True)
    old = await records.put(ALICE, "draft", 2, text="the plan of the new harbour", keep_history=True)
    await records.put(ALICE, "raw", 3)
    insight = await store.save_insight("see the plan", links=[{"to_id": old.memory_id, "relationship": "refers_to"}])
    moved = await records.move(
        [((ALICE, "draft"), (BOB, "plan")), ((ALICE, "raw"), (BOB, "raw")), ((ALICE, "no"), (BOB, "no"))]
    )
    plan = await records.get(BOB, "plan")

    assert 2 == moved
    assert [("plan", 2), ("raw", 3)] == [(one.key, one.value) for one in await records.list()]
    assert [2, 1] == [one.value for one in await records.history(BOB, "plan")]
    assert (old.created_at, old.version, old.text) == (plan.created_at, plan.version, plan.text)
    assert [(insight.id, plan.memory_id)] == [
        (link.from_id, link.to_id) for link in await store.links(insight.id) if link.created_by == "user"
    ]
    assert [plan.memory_id] == [hit.memory.id for hit in await store.search("new harbour", type=["record"])]


async def test_move_to_existing_key_raises_conflict_unless_allowed(records):
    """Two records may be swapped in one call. Any other existing target is a conflict."""
    for key, text in (("a", "first"), ("b", None), ("c", "third")):
        await records.put(ALICE, key, key, text=text)
    with pytest.raises(VersionConflict):
        await records.move([((ALICE, "a"), (ALICE, "c"))])
    assert 2 == await records.move([((ALICE, "a"), (ALICE, "b")), ((ALICE, "b"), (ALICE, "a"))])
    assert 1 == await records.move([((ALICE, "b"), (ALICE, "c"))], overwrite=True)

    assert [("a", "b"), ("c", "a")] == [(one.key, one.value) for one in await records.list()]


# Order and scopes


async def test_list_returns_key_order_within_bounds(records):
    """Tested with prefix, after, limit, reverse order and a condition."""
    for number in range(6):
        await records.put(ALICE, f"k{number}", number, text=f"text {number}" if number % 2 else None)
    await records.put((*ALICE, "more"), "k9", 9)
    await records.put(("users",), "k0", 0)

    def keys(found):
        return [one.key for one in found]

    assert ["k0", "k1", "k2", "k3", "k4", "k5"] == keys(await records.list(ALICE, nested=False))
    assert {"k0", "k1", "k2", "k3", "k4", "k5", "k9"} == set(keys(await records.list(ALICE)))
    assert ["k5", "k4"] == keys(await records.list(ALICE, nested=False, reverse=True, limit=2))
    assert ["k3", "k4"] == keys(await records.list(ALICE, nested=False, cursor="k2", limit=2))
    assert ["k1", "k0"] == keys(await records.list(ALICE, nested=False, cursor="k2", reverse=True))
    assert ["k3"] == keys(await records.list(ALICE, nested=False, prefix="k3"))
    assert ["k4", "k5"] == keys(await records.list(ALICE, nested=False, limit=2, predicate=lambda one: one.value > 3))
    assert [("users",), ALICE, (*ALICE, "more")] == await records.labels(("users",))
    assert [(*ALICE, "more")] == await records.labels((*ALICE, "more"))
    assert 7 == await records.delete_all(ALICE)
    assert [("users",)] == await records.labels()


async def test_list_includes_long_keys_in_order(records):
    """A key too long for a row name is sorted correctly, and can be a page boundary."""
    keys = ["a" * 300, "a" * 300 + "b", "a" * 130 + "c" * 200]
    for position, key in enumerate(keys):
        await records.put(ALICE, key, position, text="ducks" if position == 1 else None)

    def found(**asked):
        return records.list(ALICE, nested=False, **asked)

    assert keys == [one.key for one in await found()]
    assert keys[:2] == [one.key for one in await found(prefix="a" * 200)]
    assert keys[1:] == [one.key for one in await found(cursor=keys[0])]
    assert [keys[0]] == [one.key for one in await found(cursor=keys[1], reverse=True)]


async def test_list_sorts_by_label_for_any_characters(records):
    """A label comes before its sublabels, and before longer labels with the same prefix."""
    labels = [(), ("a",), ("a", "1"), ("a", "b"), ("a-b",), ("a.b",)]
    for position, one in enumerate(reversed(labels)):
        await records.put(one, "k", 1, text="ducks" if position % 2 else None)

    assert labels == [one.labels for one in await records.list()] == await records.labels()
    assert labels[::-1] == [one.labels for one in await records.list(reverse=True)]


async def test_labels_and_keys_with_separators_stay_distinct(records):
    """No label is a prefix of another one's rows, and no key is mistaken for a label."""
    places = [(("a",), "b/c"), (("a", "b"), "c"), (("a/b",), "c"), ((), "a/b/c"), (("a", "=b"), "c"), (("a",), "=b/=c")]
    for number, (labels, key) in enumerate(places):
        await records.put(labels, key, number, text=f"text {number}" if number % 2 else None)

    assert list(range(len(places))) == [one.value for one in await records.get_many(places)]
    assert {0, 1, 4, 5} == {one.value for one in await records.list(("a",))}
    assert {0, 5} == {one.value for one in await records.list(("a",), nested=False)}
    assert sorted({labels for labels, _ in places}) == await records.labels()


async def test_search_under_labels_is_exact(store):
    """All records under the labels are found, even if others match better."""
    records = records_of(store)
    for number in range(30):
        await records.put(BOB, f"b{number}", number, text=f"the treasure is under the oak, says bob {number}")
    for number in range(12):
        await records.put(ALICE, f"a{number}", number, text=f"alice counts ducks {number}")
    found = await records.search("treasure under the oak", ALICE, limit=12)
    odd = await records.search("treasure", ALICE, predicate=lambda one: one.value % 2 == 1, limit=6)
    near = await records.nearest("treasure", ALICE, predicate=lambda one: one.value % 2 == 1, limit=6)
    pages = [await records.search("treasure", ALICE, limit=4, offset=start) for start in (0, 4, 8)]

    assert {f"a{number}" for number in range(12)} == {hit.record.key for hit in found}
    assert {1, 3, 5, 7, 9, 11} == {hit.record.value for hit in odd} == {hit.record.value for hit in near}
    assert [hit.record.key for hit in await records.search("treasure", ALICE, limit=12)] == [
        hit.record.key for page in pages for hit in page
    ]
    assert all(one.cosine >= other.cosine for one, other in itertools.pairwise(near))


@pytest.mark.once
async def test_search_with_selective_condition_ranks_few_times(records, monkeypatch):
    """The number of candidates grows by a factor, so that few searches read all records."""
    await records.put_many([NewRecord(ALICE, f"{n}", n, text=f"ducks {n}") for n in range(1_500)])
    limits = []

    def counted(reader, request):
        limits.append(request.limit)
        return collect_candidates(reader, request)

    monkeypatch.setattr(search_plan, "collect_candidates", counted)
    (hit,) = await records.search("ducks", predicate=lambda one: one.value == 700)

    assert 700 == hit.record.value
    assert len(limits) <= 6
    assert all(4 * one <= other for one, other in itertools.pairwise(limits))


async def test_async_condition_raises(records):
    """The coroutine that it returns would be true for every record."""
    await records.put(ALICE, "a", 1, text="ducks")

    async def none(_one):
        return False

    for call in (
        records.list(predicate=none),
        records.search("ducks", predicate=none),
        records.nearest("ducks", predicate=none),
    ):
        with pytest.raises(InvalidArgument, match="async"):
            await call


def test_search_without_labels_applies_no_label_filter():
    """All records match then. On a server, filtering each one took a hundred times as long."""
    assert [] == record_plans.filter_below((), nested=True).names
    assert 1 == len(record_plans.filter_below((), nested=False).names)


async def test_search_returns_equal_records_separately(records):
    """Records with equal text are neither folded nor merged."""
    await records.put(ALICE, "a", 1, text="use the registry mirror for builds")
    await records.put(BOB, "b", 2, text="use the registry mirror for builds")

    assert {1, 2} == {hit.record.value for hit in await records.search("registry mirror")}
    assert {1, 2} == {hit.record.value for hit in await records.nearest("registry mirror")}


async def test_nearest_accepts_vectors_of_any_length(records):
    """
    A vector of the embedder and a multiple of it find the same records.

    Another shape raises an error.
    """
    await records.put(ALICE, "a", 1, text="ducks")
    (vector,) = [pieces[0] for pieces in await records.embed(["ducks"])]

    assert 1.0 == pytest.approx((await records.nearest(vector * 7))[0].cosine, abs=1e-5)
    assert 1.0 == pytest.approx((await records.nearest(vector.tolist()))[0].cosine, abs=1e-5)
    for wrong in (vector[:-1], np.zeros_like(vector), vector * np.nan, [[1.0]], object()):
        with pytest.raises(InvalidArgument):
            await records.nearest(wrong)


async def test_records_are_isolated_between_namespaces(place):
    """The same key contains another record in each namespace."""
    opened, store, _ = place
    other = await opened.memories("other")
    await records_of(store).put(ALICE, "a", 1, text="ducks")
    await records_of(store).put(ALICE, "b", 1)

    assert [] == await records_of(other).list()
    assert [] == await records_of(other).search("ducks")
    assert [] == await records_of(other).labels()
    assert 0 == await records_of(other).delete_all(())
    assert 2 == len(await records_of(store).list())


async def test_read_namespace_is_searched_but_not_written(place):
    """
    With `reads=`, memory searches find records of another namespace.

    Record methods use the own namespace.
    """
    opened, store, _ = place
    await records_of(store).put(ALICE, "a", 1, text="ducks on the pond")
    reader = await opened.memories("other", reads=["default"])

    assert ["ducks on the pond"] == [hit.memory.content for hit in await reader.search("ducks")]
    assert [] == await records_of(reader).list()


# Records with a text, which are also memories


async def test_erase_of_memory_removes_record_from_its_key(store):
    """After `erase` or `delete` of its memory the key is free, and the next record is new."""
    one = await records_of(store).put(ALICE, "a", 1, text="ducks")
    other = await records_of(store).put(ALICE, "b", 1, text="geese")
    await store.erase([one.memory_id])
    await store.delete(other.memory_id)

    assert [None, None] == await records_of(store).get_many([(ALICE, "a"), (ALICE, "b")])
    assert 1 == (await records_of(store).put(ALICE, "a", 2, text="ducks")).version


async def test_erase_under_labels_redacts_ids_in_other_memories(store):
    """An id contains words of the key, so it is removed from evidence too."""
    put = await records_of(store).put(ALICE, "a secret key", 1, text="ducks")
    await records_of(store).put(ALICE, "kept", 1)
    decision = await store.save_decision("Dig one", topic="ponds", reasoning="ducks", evidence=[put.memory_id])

    assert 2 == await records_of(store).delete_all(ALICE, erase=True)
    assert () == (await store.get(decision.id)).evidence
    assert [] == await records_of(store).list()


async def test_records_do_not_separate_temporal_neighbours(store):
    """A recent decision is linked in time, however many records were put in between."""
    before = await store.save_decision("Raise the shield", topic="shield", reasoning="raids doubled")
    await records_of(store).put_many([NewRecord(ALICE, f"{n}", n, text=f"message {n}") for n in range(60)])
    after = await store.save_decision("Feed it with ore", topic="reactor", reasoning="power is short")

    assert [before.id] == [link.to_id for link in await store.links(after.id)]


async def test_update_of_record_creates_version(place):
    """A stale compare-and-set conflicts, and history and `as_of` have the old text."""
    _, store, clock = place
    put = await records_of(store).put(ALICE, "a", {"n": 1}, text=["ducks swim", "geese fly"])
    clock.advance(10)
    then = from_milliseconds((START + 5) * 1000)
    await store.update(put.memory_id, "ducks dive")
    with pytest.raises(VersionConflict):
        await records_of(store).put(ALICE, "a", {"n": 2}, text="ducks", if_version=put.version)
    history = await records_of(store).history(ALICE, "a")

    assert [(2, "ducks dive"), (1, "ducks swim\n\ngeese fly")] == [(one.version, one.text) for one in history]
    (hit,) = await store.search("ducks", as_of=then)
    assert "ducks swim\n\ngeese fly" == hit.memory.content
    await admin.reembed(store, HashEmbedder(dimensions=64))
    assert 1 == len(await records_of(store).nearest("ducks dive"))


async def test_record_is_neither_linked_nor_merged(store):
    """
    Saving it creates no links.

    A decision with the same words may link to it, and remains separate.
    """
    await store.save_decision("feed the ducks at noon", topic="ducks", reasoning="")
    record = await records_of(store).put(ALICE, "a", 1, text="feed the ducks at noon")
    again = await store.save_context("feed the ducks at noon", on_duplicate="merge")

    assert [] == [link for link in await store.links(record.memory_id) if link.from_id == record.memory_id]
    assert 3 == await store.count()
    assert record.memory_id not in {one.id for one in again.warnings.duplicate_of}


async def test_export_and_import_restore_records_with_text(place, tmp_path):
    """An imported record is found under its labels and key, with value, version and history."""
    _, store, _ = place
    await records_of(store).put(ALICE, "a", {"n": 1}, text="ducks", keep_history=True)
    await records_of(store).put(ALICE, "a", {"n": 2}, text="geese", keep_history=True)
    await admin.export_jsonl(store, tmp_path / "export.jsonl")
    other = OpenedDirectory.open(tmp_path / "other", engines=PlainEngines())
    target = await other.memories()
    await admin.import_jsonl(target, tmp_path / "export.jsonl")

    assert await records_of(store).history(ALICE, "a") == await records_of(target).history(ALICE, "a")
    assert await records_of(store).get(ALICE, "a") == await records_of(target).get(ALICE, "a")
    await other.close()


@pytest.mark.parametrize(
    "change",
    [
        {"key": "b"},
        {"key": ""},
        {"labels": ["users"]},
        {"labels": ["x" * 513]},
        {"version": 0},
        {"lengths": [5, 5]},
        {"lengths": [-3, 6]},
    ],
)
async def test_import_rejects_record_with_inconsistent_id(place, tmp_path, change):
    """The id of a record must match its labels and key."""
    _, store, _ = place
    put = await records_of(store).put(ALICE, "a", 1, text="ducks")
    path = tmp_path / "export.jsonl"
    await admin.export_jsonl(store, path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["memory"]["metadata"] |= change
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    await store.delete(put.memory_id)

    with pytest.raises(InvalidArgument, match="line 2"):
        await admin.import_jsonl(store, path)
    assert [] == await records_of(store).list()


async def test_import_rejects_record_at_key_of_record_without_text(place, tmp_path):
    """A key has one record. The existing one is kept, and the error names it."""
    _, store, _ = place
    await records_of(store).put(ALICE, "a", 1, text="ducks")
    await admin.export_jsonl(store, tmp_path / "export.jsonl")
    await records_of(store).put(ALICE, "a", 2)

    with pytest.raises(InvalidArgument, match="line 2"):
        await admin.import_jsonl(store, tmp_path / "export.jsonl")
    assert [2] == [one.value for one in await records_of(store).list()]


# Validation


@pytest.mark.parametrize(
    "given",
    [
        {"labels": ""},
        {"labels": 7},
        {"labels": [""]},
        {"labels": ["x" * 513]},
        {"labels": ["a"] * 33},
        {"labels": ["한" * 60]},
        {"labels": [1]},
        {"key": ""},
        {"key": "x" * 1025},
        {"key": None},
        {"value": float("nan")},
        {"value": {"a": [float("inf")]}},
        {"value": {1: 2}},
        {"value": b"bytes"},
        {"value": {"a": "\ud800"}},
        {"value": object()},
        {"value": "x" * MAX_VALUE_BYTES},
        {"text": 7},
        {"text": ["a", None]},
        {"text": "\ud800"},
        {"expires_at": "soon"},
        {"expires_at": timedelta(seconds=-1)},
        {"created_at": 7},
        {"origin": "nobody"},
        {"if_version": -1},
        {"if_version": "1"},
        {"keep_history": "yes"},
        {"created_by": "me"},
    ],
    ids="-".join,
)
async def test_invalid_put_raises_and_writes_nothing(records, given):
    """The error names the argument and contains no content."""
    whole = {"labels": ALICE, "key": "k", "value": 1} | given
    with pytest.raises(InvalidArgument) as error:
        await records.put(whole.pop("labels"), whole.pop("key"), whole.pop("value"), **whole)

    assert next(iter(given)) in str(error.value)
    assert "\ud800" not in str(error.value)
    assert [] == await records.list()


async def test_single_text_is_one_label(records):
    """In every method, a text and a sequence with this text name the same place."""
    await records.put("notes", "a", 1)
    await records.append("log", [2])

    assert await records.get(("notes",), "a") == await records.get("notes", "a")
    assert ("notes",) == (await records.list("notes"))[0].labels
    assert [("log",), ("notes",)] == await records.labels()
    assert [("notes",)] == await records.labels("notes")
    assert 1 == await records.move([(("notes", "a"), ("notes", "b"))])
    assert 2 == (await records.pop("log")).value
    assert await records.delete("notes", "b")
    assert 0 == await records.delete_all("notes")


async def test_timedelta_as_expiry_counts_from_now(place):
    _, store, clock = place
    records = records_of(store)
    now = from_milliseconds(int(clock.now() * 1000))
    put = await records.put("notes", "a", 1, expires_at=timedelta(minutes=5), created_at=timedelta(days=1))
    await records.expire([("notes", "a")], timedelta(minutes=7))

    assert (now - timedelta(days=1), now + timedelta(minutes=5)) == (put.created_at, put.expires_at)
    assert now + timedelta(minutes=7) == (await records.get("notes", "a")).expires_at


@pytest.mark.parametrize("nested", [True, False], ids=["nested", "one place"])
@pytest.mark.parametrize("reverse", [True, False], ids=["reverse", "forward"])
async def test_pages_of_records_contain_each_record_once(records, nested, reverse):
    """Records with and without text, and keys too long for a row name, are in the order of the whole list."""
    for number, key in enumerate(["a", "b c", "é/=", "x" * 1000, "z"]):
        await records.put(ALICE, key, number, text="tea" if number % 2 else None)
        if nested:
            await records.put((*ALICE, "more"), key, number)
    whole = await records.list(ALICE, nested=nested, reverse=reverse)
    found, cursor = [], None
    for _ in whole:
        page = await records.list(ALICE, nested=nested, reverse=reverse, limit=2, cursor=cursor)
        found += page
        if (cursor := page.next_cursor) is None:
            break
        assert 2 == len(page)

    assert whole == found
    assert cursor is None
    assert whole.next_cursor is None


async def test_put_rejects_deeply_nested_value(records):
    """The limit is 100 levels, which exports support. Much deeper values are rejected too."""
    value = 1
    for _ in range(99):
        value = [value]
    await records.put(ALICE, "deep", value, text="deep")
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidArgument, match="deep"):
        await records.put(ALICE, "deeper", value)


async def test_invalid_arguments_of_other_methods_raise(records):
    """Keys, moves, lists and conditions are validated."""
    bad = [
        records.get_many([("alice",)]),
        records.get_many([(ALICE, "a", "b")]),
        records.get_many("ab"),
        records.move([((ALICE, "a"),)]),
        records.move([((ALICE, "a"), (ALICE, "b")), ((ALICE, "c"), (ALICE, "b"))]),
        records.list(ALICE, prefix="a"),
        records.list(ALICE, cursor="a"),
        records.list(ALICE, nested=False, cursor=""),
        records.list(ALICE, limit=-1),
        records.list(ALICE, predicate=7),
        records.search("", ALICE),
        records.search("a", ALICE, min_relevance=2),
        records.search("a", ALICE, offset=-1),
        records.put_many([{"labels": ALICE}]),
        records.put_many([], delete=[(ALICE, "a", -1)]),
        records.expire([(ALICE, "a")], "tomorrow"),
        records.expire([(ALICE, "a")], timedelta(days=-1)),
        records.list(cursor=7),
        records.append(ALICE, [object()]),
        records.delete_all(ALICE, erase="yes"),
    ]
    for call in bad:
        with pytest.raises(InvalidArgument):
            await call


def test_long_keys_get_distinct_row_names():
    """Any labels and key fit into a row key, and two long keys with a common prefix differ."""
    labels = tuple("x" * 60 for _ in range(8))
    names = {note_name((labels, "한" * 1000 + end)) for end in "ab"}

    assert 2 == len(names)
    assert all(len(name) < 800 and name.isascii() for name in names)
    assert record_memory_id((("a",), "b")) != record_memory_id((("a", "b"), ""))


@pytest.mark.parametrize("key", ["a", "b/c", "=", "+", "한" * 100, "x" * 1024, "%2F", "."])
async def test_delete_under_labels_removes_all_keys(records, key):
    """It includes keys too long for a row name, and nothing under other labels."""
    await records.put(ALICE, key, 1)
    await records.put((*ALICE, "more"), key, 2, text="two")
    await records.put(BOB, key, 3)

    assert [ALICE, (*ALICE, "more"), BOB] == await records.labels()
    assert 2 == await records.delete_all(ALICE)
    assert [3] == [one.value for one in await records.list()]


@pytest.mark.parametrize("delete", ["delete", "delete_all"])
async def test_delete_removes_damaged_record(store, delete):
    """Reading a damaged record raises an error, and deleting it works as the hint says."""
    await records_of(store).put(ALICE, "a", 1)
    await store._shared.engine.write(lambda writer: writer.set_note(note_name((ALICE, "a")), '{"a": "secret'))
    with pytest.raises(StoreDamaged) as damaged:
        await records_of(store).get(ALICE, "a")
    with pytest.raises(StoreDamaged):
        await records_of(store).delete(ALICE, "a", if_version=1)

    assert "secret" not in f"{damaged.value!r} {damaged.value}"
    assert await (records_of(store).delete(ALICE, "a") if delete == "delete" else records_of(store).delete_all(ALICE))
    assert [] == await records_of(store).list()


async def test_list_and_delete_expired_skip_damaged_records(store, caplog):
    """`check` and the log report them, and `delete_all` deletes them."""
    records = records_of(store)
    long = "x" * 1000
    for key in ("a", "b", long):
        await records.put(ALICE, key, 1)
    whole = (await store._shared.engine.read(lambda reader: reader.notes_by_name([note_name((ALICE, "b"))]))).popitem()[
        1
    ]
    spoilt = {note_name((ALICE, "a")): '{"a": "secret', note_name((ALICE, long)): whole}
    await store._shared.engine.write(lambda writer: writer.set_notes(spoilt))
    found = await admin.check(store)

    assert ["b"] == [one.key for one in await records.list(ALICE)]
    assert ["b"] == [one.key for one in await records.list(ALICE, limit=1)]
    assert [True, True] == ["damaged record is skipped" in one.message for one in caplog.records[:2]]
    assert {*spoilt} == {one.key for one in found.issues}
    assert all(one.key in one.message for one in found.issues)
    assert "secret" not in f"{found}"
    assert [ALICE] == await records.labels()
    assert 0 == await records.delete_expired()
    assert 3 == await records.delete_all(ALICE)
    assert [] == [*(await admin.check(store)).issues]
    assert [] == await records.labels()


# Comparison with a dict

KEYS = st.sampled_from(["a", "b", "c/d", "=", "키"])
LABELS = st.sampled_from([(), ("x",), ("x", "y"), ("x/y",), ("ÿ",)])
PLACES = st.tuples(LABELS, KEYS)
TEXTS = st.none() | st.text(string.ascii_lowercase + " ", min_size=1, max_size=12).filter(str.strip)
VERSIONS = st.none() | st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("put"), PLACES, st.integers(), TEXTS, VERSIONS, st.booleans(), st.none() | st.integers(1, 30)),
    st.tuples(st.just("put"), PLACES, st.integers(), TEXTS, st.none(), st.booleans(), st.none()),
    st.tuples(st.just("delete"), PLACES, VERSIONS),
    st.tuples(st.just("append"), LABELS, st.lists(st.integers(), min_size=1, max_size=3)),
    st.tuples(st.just("pop"), LABELS),
    st.tuples(st.just("move"), PLACES, PLACES, st.booleans()),
    st.tuples(st.just("expire"), PLACES, st.none() | st.integers(1, 30)),
    st.tuples(st.just("delete_all"), LABELS, st.booleans()),
    st.tuples(st.just("wait"), st.integers(1, 40)),
    st.tuples(st.just("sweep")),
    st.tuples(st.just("reopen")),
)


def quoted(place):
    """Return labels and a key in a form that can be sorted and compared."""
    return [quote(label, safe="") for label in place[0]], quote(place[1], safe="")


class Model:
    """Reference model of records: a dict with value, version, text, expiry and former values."""

    def __init__(self):
        self.now, self.there = 0, {}

    def live(self):
        return {place: one for place, one in self.there.items() if one["end"] is None or one["end"] > self.now}

    def version(self, place):
        return self.live()[place]["version"] if place in self.live() else 0

    def step(self, what, *given):
        return getattr(self, f"do_{what}")(*given)

    def do_put(self, place, value, text, version, keep, lasts):  # noqa: PLR0917 - as a step has them
        if version is not None and version != self.version(place):
            return "conflict"
        before = self.live().get(place)
        former = [] if before is None else before["former"]
        if before is not None and keep:
            former = [before["value"], *former]
        end = None if lasts is None else self.now + lasts
        self.there[place] = {
            "value": value,
            "version": self.version(place) + 1,
            "text": text,
            "end": end,
            "former": former,
        }
        return self.there[place]["version"]

    def do_delete(self, place, version):
        if version is not None and version != self.version(place):
            return "conflict"
        was = place in self.live()
        self.there.pop(place, None)
        return was

    def numbers(self, labels):
        return [int(key) for own, key in self.there if own == labels and len(key) == 12 and key.isdecimal()]

    def do_append(self, labels, values):
        first = max(self.numbers(labels), default=0) + 1
        for number, value in enumerate(values, first):
            self.do_put((labels, f"{number:012d}"), value, None, None, False, None)
        return [f"{number:012d}" for number in range(first, first + len(values))]

    def do_pop(self, labels):
        own = [(note_name(place), place) for place in self.live() if place[0] == labels]
        return self.there.pop(max(own)[1])["value"] if own else None

    def do_move(self, old, new, overwrite):
        if old == new or old not in self.live():
            return 0
        if new in self.live() and not overwrite:
            return "conflict"
        self.there[new] = self.there.pop(old)
        return 1

    def do_expire(self, place, lasts):
        if place not in self.live():
            return 0
        self.there[place]["end"] = None if lasts is None else self.now + lasts
        return 1

    def do_delete_all(self, labels, nested):
        gone = [one for one in self.there if (one[0][: len(labels)] if nested else one[0]) == labels]
        for place in gone:
            del self.there[place]
        return len(gone)

    def do_wait(self, seconds):
        self.now += seconds

    def do_sweep(self):
        gone = self.there.keys() - self.live().keys()
        for place in gone:
            del self.there[place]
        return len(gone)


async def done(records, clock, what, *given):  # noqa: PLR0911 - one for each step
    """Execute one step of the model on real records, and return its result."""
    now = from_milliseconds(int(clock.now() * 1000))

    def end(lasts):
        return None if lasts is None else now + timedelta(seconds=lasts)

    try:
        match what, given:
            case "put", (place, value, text, version, keep, lasts):
                put = await records.put(
                    *place, value, text=text, if_version=version, keep_history=keep, expires_at=end(lasts)
                )
                return put.version
            case "delete", (place, version):
                return await records.delete(*place, if_version=version)
            case "append", (labels, values):
                return [one.key for one in await records.append(labels, values)]
            case "pop", (labels,):
                popped = await records.pop(labels)
                return None if popped is None else popped.value
            case "move", (old, new, overwrite):
                return await records.move([(old, new)], overwrite=overwrite)
            case "expire", (place, lasts):
                return await records.expire([place], end(lasts))
            case "delete_all", (labels, nested):
                return await records.delete_all(labels, nested=nested)
            case "sweep", ():
                return await records.delete_expired()
    except VersionConflict:
        return "conflict"


def test_records_behave_like_versioned_dict(tmp_path):
    """Any sequence of operations, including reopening, gives the same results as a plain dict."""

    @given(steps=st.lists(STEPS, min_size=1, max_size=12))
    @settings(
        max_examples=max(5, settings.default.max_examples // (5 if is_on_server() else 2)),
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    def compared(steps):
        asyncio.run(compare(steps))

    async def compare(steps):
        namespace, clock, model = f"n{next(NAMES)}", FakeClock(start=START), Model()
        opened = OpenedDirectory.open(tmp_path, clock=clock.now, settings=MemorySettings(), embedder=SMALL)
        store = await opened.memories(namespace)
        try:
            for what, *given_ in steps:
                if what == "reopen":
                    await opened.close()
                    opened = OpenedDirectory.open(tmp_path, clock=clock.now, settings=MemorySettings(), embedder=SMALL)
                    store = await opened.memories(namespace)
                    continue
                if what == "wait":
                    clock.advance(given_[0])
                expected = model.step(what, *given_)
                assert expected == await done(records_of(store), clock, what, *given_)
                live = model.live()
                listed = await records_of(store).list()
                assert {place: (one["value"], one["version"], one["text"]) for place, one in live.items()} == {
                    (one.labels, one.key): (one.value, one.version, one.text) for one in listed
                }
                assert sorted(live, key=quoted) == [(one.labels, one.key) for one in listed]
            for place, one in model.live().items():
                values = [former.value for former in await records_of(store).history(*place)]
                assert [one["value"], *one["former"]] == values
            with_text = {record_memory_id(place) for place, one in model.live().items() if one["text"] is not None}
            assert with_text == {one.id for one in await store.list(limit=1000)}
            assert [] == await opened.findings()
        finally:
            await opened.close()

    compared()
