"""Records: what hosts keep under labels and a key, against a plain dict and beside memories."""

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

from mama_structs import HashEmbedder
from mama_structs.errors import InvalidArgument, StoreDamaged, VersionConflict
from mama_structs.memory.records import record_plans
from mama_structs.memory.save.save_plan import documents
from mama_structs.memory.search import search_plan as search
from mama_structs.memory.types.model import MemoryType, from_milliseconds
from mama_structs.memory.types.record import MAX_VALUE, memory_id_of, name_of
from mama_structs.records import NewRecord, RecordStore
from mama_structs.settings import MemorySettings
from mama_structs.testing import FakeClock

START = 1_790_000_000
NOON = from_milliseconds(START * 1000)
ALICE, BOB = ("users", "alice"), ("users", "bob")
NAMES = itertools.count()
# Of which the end is not embedded.
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


@pytest.fixture
def records(store):
    return store.records


# What comes back


async def test_what_was_put_comes_back_whatever_json_it_is(records):
    """A value is what it was, another object, and keeps its numbers, its order of keys and signs that JSON escapes."""
    value = {"z": [1, 2.5, -0.0, None, True, 2**70], "a": {"\0": "한국어\u2028", "": []}}
    put = await records.put(ALICE, "anything / = % +", value)
    value["z"].append("later")
    got = await records.get(ALICE, "anything / = % +")

    assert put == got
    assert {"z": [1, 2.5, -0.0, None, True, 2**70], "a": {"\0": "한국어\u2028", "": []}} == got.value
    assert ["z", "a"] == list(got.value)
    assert (1, NOON, NOON, None, None) == (got.version, got.created_at, got.updated_at, got.text, got.memory_id)


async def test_a_record_with_text_is_found_by_every_search_and_one_without_by_none(store):
    """Text makes a memory of it: search, recent and about know it; without it only its place does."""
    kept = await store.records.put(ALICE, "food", {"likes": "kimchi"}, text="alice likes kimchi on 2-1")
    await store.records.put(ALICE, "token", {"secret": "kimchi 2-1"})

    assert [kept.memory_id] == [hit.memory.id for hit in await store.search("who likes kimchi?")]
    assert [kept.memory_id] == [one.id for one in await store.recent()]
    assert [kept.memory_id] == [one.id for one in await store.about("2-1")]
    assert [MemoryType.RECORD] == [one.type for one in await store.recent()]
    assert 1 == await store.count()
    assert ["food"] == [hit.record.key for hit in await store.records.search("kimchi", ("users",))]
    assert ["food"] == [hit.record.key for hit in await store.records.nearest("kimchi", ("users",))]
    assert ["food", "token"] == [one.key for one in await store.records.list(("users",))]


async def test_a_record_gains_and_loses_its_text_at_the_same_place(store):
    """Putting it again with or without text moves it, and its version and history go on."""
    records = store.records
    await records.put(ALICE, "food", 1, history=True)
    await records.put(ALICE, "food", 2, text="kimchi", history=True)
    found = await store.search("kimchi")
    await records.put(ALICE, "food", 3, history=True)

    assert [2] == [hit.memory.metadata.value for hit in found]
    assert 0 == await store.count()
    assert [(3, 3, None), (2, 2, "kimchi"), (1, 1, None)] == [
        (one.version, one.value, one.text) for one in await records.history(ALICE, "food")
    ]


async def test_history_is_kept_only_where_it_is_asked_for(records):
    """A put without *history* replaces the value and leaves no version of it behind."""
    for number in range(3):
        await records.put(ALICE, "note", number, text=f"number {number}", history=number == 2)

    assert [2, 1] == [one.value for one in await records.history(ALICE, "note")]
    assert [] == await records.history(ALICE, "none")


async def test_the_past_has_the_value_of_then(place):
    """A search as of an earlier moment finds the text and value that a record had then."""
    _, store, clock = place
    await store.records.put(ALICE, "food", "old", text="alice eats kimchi", history=True)
    clock.advance(60)
    await store.records.put(ALICE, "food", "new", text="alice eats pizza", history=True)
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


async def test_several_texts_are_embedded_each_by_itself(records):
    """The best one decides, also after everything was embedded anew, as one long text it would be drowned."""
    noise = " ".join(f"noise{number}" for number in range(200))
    await records.put(ALICE, "both", 1, text=[noise, "the treasure is under the oak"])
    await records.put(ALICE, "one", 2, text=f"{noise} the treasure is under the oak")
    best, other = await records.nearest("the treasure is under the oak", ALICE)

    assert "both" == best.record.key
    assert best.cosine == pytest.approx(1.0, abs=1e-5)
    assert other.cosine < 0.9


@pytest.mark.parametrize("text", [LONG, ["short", LONG]], ids=["one", "several"])
async def test_a_record_is_embedded_as_it_would_be_anew(store, text):
    """What is compared of texts, long ones too, is the same after `reembed` as after `put`."""
    record = await store.records.put(ALICE, "long", 1, text=text)
    memory = await store.get(record.memory_id)
    (anew,) = await documents(store._shared.embedding, [memory])

    assert np.array_equal(anew, await store._vectors_of(memory.id))


# Expiry


@pytest.mark.parametrize("text", ["tea at four", None])
async def test_what_has_expired_is_not_there_and_its_place_is_free(place, text):
    """Nobody finds it, a new one begins at version 1, and `sweep` deletes what is left of others."""
    _, store, clock = place
    records = store.records
    await records.put(ALICE, "tea", 1, text=text, expires_at=NOON + timedelta(seconds=10))
    await records.put(BOB, "tea", 1, text=text, expires_at=NOON + timedelta(seconds=10))
    clock.advance(10)
    anew = await records.put(ALICE, "tea", 2, text=text, if_version=0)

    assert (1, 2, NOON + timedelta(seconds=10)) == (anew.version, anew.value, anew.created_at)
    assert [anew] == await records.list()
    assert [] == await records.history(BOB, "tea")
    assert None is await records.pop(BOB)
    assert [] == [hit for hit in await records.search("tea") if hit.record.labels == BOB]
    assert 1 == await records.sweep()
    assert [ALICE] == await records.labels()


@pytest.mark.parametrize("text", ["tea at four", None])
async def test_an_expiry_is_moved_without_a_new_version(place, text):
    """`expire` keeps value and version; None lets it live for ever."""
    _, store, clock = place
    put = await store.records.put(ALICE, "tea", 1, text=text, expires_at=NOON + timedelta(seconds=10))

    assert 1 == await store.records.expire([(ALICE, "tea"), (BOB, "none")], None)
    clock.advance(100)
    got = await store.records.get(ALICE, "tea")
    assert (put.version, put.value, None) == (got.version, got.value, got.expires_at)


@pytest.mark.parametrize("text", ["tea at four", None])
async def test_an_expiry_is_moved_at_a_version_only(place, text):
    """What took a record's place since it was read keeps its own end, and so does what is there anew."""
    _, store, clock = place
    put = await store.records.put(ALICE, "tea", 1, text=text)
    await store.records.put(ALICE, "tea", 2, text=text)

    assert 0 == await store.records.expire([(ALICE, "tea", put.version)], NOON + timedelta(seconds=10))
    assert 1 == await store.records.expire([(ALICE, "tea", put.version + 1)], NOON + timedelta(seconds=20))
    clock.advance(15)
    assert 2 == (await store.records.get(ALICE, "tea")).value


@pytest.mark.parametrize("text", ["tea at four", None])
async def test_what_is_put_while_a_sweep_looks_is_not_swept(place, monkeypatch, text):
    """A place that was over when the sweep read it, and is put anew before it deletes, keeps the new record."""
    records = place[1].records
    await records.put(ALICE, "tea", 1, text=text, expires_at=NOON)
    delete = RecordStore._delete

    async def late(self, places, **how):
        await records.put(ALICE, "tea", 2, text=text)
        return await delete(self, places, **how)

    monkeypatch.setattr(RecordStore, "_delete", late)

    assert 0 == await records.sweep()
    assert 2 == (await records.get(ALICE, "tea")).value


# Compare and set, batches


@pytest.mark.parametrize("text", ["text", None])
async def test_compare_and_set_refuses_every_version_but_the_present_one(records, text):
    """0 means that nothing is there; the error says what is, and nothing was changed."""
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


async def test_a_batch_is_written_whole_or_not_at_all(records):
    """One conflict in it undoes all, deletions too; a place named twice keeps the last and counts both."""
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


async def test_concurrent_writers_of_one_record_lose_nothing(records):
    """Of many who compare and set at once each succeeds in the end, so a counter counts all of them."""

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


async def test_appended_values_have_numbers_and_the_last_is_popped_once(records):
    """Keys follow one another, whoever appends at once; of many who pop each gets another one."""
    await asyncio.gather(*(records.append(ALICE, [number, -number]) for number in range(5)))
    listed = await records.list(ALICE, nested=False)
    popped = await asyncio.gather(*(records.pop(ALICE) for _ in range(12)))

    assert [f"{number:012d}" for number in range(1, 11)] == [one.key for one in listed]
    assert all(one.value == -other.value for one, other in zip(listed[::2], listed[1::2], strict=True))
    assert sorted(one.key for one in listed) == sorted(one.key for one in popped if one is not None)
    assert 2 == popped.count(None)


# Moving


async def test_nothing_is_appended_behind_the_last_number(records):
    """A key of a host's own that is the last number is not gone beyond: the next key would be taken twice."""
    await records.put(ALICE, "9" * 12, "last")
    with pytest.raises(InvalidArgument, match="no number"):
        await records.append(ALICE, ["lost"])

    assert ["last"] == [one.value for one in await records.list(ALICE)]


async def test_what_is_moved_keeps_its_history_and_its_links(store):
    """Under its new key it is the same: versions, times, and who links to it."""
    records = store.records
    await records.put(ALICE, "draft", 1, text="the plan of the harbour", history=True)
    old = await records.put(ALICE, "draft", 2, text="the plan of the new harbour", history=True)
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
        (link.from_id, link.to_id) for link in await store.links_of(insight.id) if link.created_by == "user"
    ]
    assert [plan.memory_id] == [hit.memory.id for hit in await store.search("new harbour", types=["record"])]


async def test_a_taken_place_is_not_moved_to_unless_it_is_said_so(records):
    """Two records may change places in one call; anything else that is there is a conflict."""
    for key, text in (("a", "first"), ("b", None), ("c", "third")):
        await records.put(ALICE, key, key, text=text)
    with pytest.raises(VersionConflict):
        await records.move([((ALICE, "a"), (ALICE, "c"))])
    assert 2 == await records.move([((ALICE, "a"), (ALICE, "b")), ((ALICE, "b"), (ALICE, "a"))])
    assert 1 == await records.move([((ALICE, "b"), (ALICE, "c"))], overwrite=True)

    assert [("a", "b"), ("c", "a")] == [(one.key, one.value) for one in await records.list()]


# Order and scopes


async def test_lists_have_the_order_of_keys_and_end_where_they_are_told(records):
    """Prefix, after, limit, backwards and a condition, over records with and without text."""
    for number in range(6):
        await records.put(ALICE, f"k{number}", number, text=f"text {number}" if number % 2 else None)
    await records.put((*ALICE, "more"), "k9", 9)
    await records.put(("users",), "k0", 0)

    def keys(found):
        return [one.key for one in found]

    assert ["k0", "k1", "k2", "k3", "k4", "k5"] == keys(await records.list(ALICE, nested=False))
    assert {"k0", "k1", "k2", "k3", "k4", "k5", "k9"} == set(keys(await records.list(ALICE)))
    assert ["k5", "k4"] == keys(await records.list(ALICE, nested=False, last_first=True, limit=2))
    assert ["k3", "k4"] == keys(await records.list(ALICE, nested=False, after="k2", limit=2))
    assert ["k1", "k0"] == keys(await records.list(ALICE, nested=False, after="k2", last_first=True))
    assert ["k3"] == keys(await records.list(ALICE, nested=False, prefix="k3"))
    assert ["k4", "k5"] == keys(await records.list(ALICE, nested=False, limit=2, where=lambda one: one.value > 3))
    assert [("users",), ALICE, (*ALICE, "more")] == await records.labels(("users",))
    assert [(*ALICE, "more")] == await records.labels((*ALICE, "more"))
    assert 7 == await records.delete_all(ALICE)
    assert [("users",)] == await records.labels()


async def test_a_key_that_is_too_long_for_a_name_is_listed_where_it_belongs(records):
    """A long key has its place in the order, is found by all that it begins with, and is what a page goes on from."""
    keys = ["a" * 300, "a" * 300 + "b", "a" * 130 + "c" * 200]
    for position, key in enumerate(keys):
        await records.put(ALICE, key, position, text="ducks" if position == 1 else None)

    def found(**asked):
        return records.list(ALICE, nested=False, **asked)

    assert keys == [one.key for one in await found()]
    assert keys[:2] == [one.key for one in await found(prefix="a" * 200)]
    assert keys[1:] == [one.key for one in await found(after=keys[0])]
    assert [keys[0]] == [one.key for one in await found(after=keys[1], last_first=True)]


async def test_lists_go_label_by_label_whatever_signs_these_have(records):
    """Labels come before those below them, and a label before a longer one that begins so."""
    labels = [(), ("a",), ("a", "1"), ("a", "b"), ("a-b",), ("a.b",)]
    for position, one in enumerate(reversed(labels)):
        await records.put(one, "k", 1, text="ducks" if position % 2 else None)

    assert labels == [one.labels for one in await records.list()] == await records.labels()
    assert labels[::-1] == [one.labels for one in await records.list(last_first=True)]


async def test_labels_are_told_apart_whatever_is_in_them(records):
    """No label is another one's prefix, and no key looks like a label."""
    places = [(("a",), "b/c"), (("a", "b"), "c"), (("a/b",), "c"), ((), "a/b/c"), (("a", "=b"), "c"), (("a",), "=b/=c")]
    for number, (labels, key) in enumerate(places):
        await records.put(labels, key, number, text=f"text {number}" if number % 2 else None)

    assert list(range(len(places))) == [one.value for one in await records.get_many(places)]
    assert {0, 1, 4, 5} == {one.value for one in await records.list(("a",))}
    assert {0, 5} == {one.value for one in await records.list(("a",), nested=False)}
    assert sorted({labels for labels, _ in places}) == await records.labels()


async def test_searches_below_labels_find_all_there_and_nothing_else(store):
    """Filters are exact: so many as there are, however much better others match, with a condition too."""
    records = store.records
    for number in range(30):
        await records.put(BOB, f"b{number}", number, text=f"the treasure is under the oak, says bob {number}")
    for number in range(12):
        await records.put(ALICE, f"a{number}", number, text=f"alice counts ducks {number}")
    found = await records.search("treasure under the oak", ALICE, limit=12)
    odd = await records.search("treasure", ALICE, where=lambda one: one.value % 2 == 1, limit=6)
    near = await records.nearest("treasure", ALICE, where=lambda one: one.value % 2 == 1, limit=6)
    pages = [await records.search("treasure", ALICE, limit=4, offset=start) for start in (0, 4, 8)]

    assert {f"a{number}" for number in range(12)} == {hit.record.key for hit in found}
    assert {1, 3, 5, 7, 9, 11} == {hit.record.value for hit in odd} == {hit.record.value for hit in near}
    assert [hit.record.key for hit in await records.search("treasure", ALICE, limit=12)] == [
        hit.record.key for page in pages for hit in page
    ]
    assert all(one.cosine >= other.cosine for one, other in itertools.pairwise(near))


@pytest.mark.once
async def test_a_condition_that_hardly_any_record_meets_compares_few_of_them(records, monkeypatch):
    """However many hits a search is asked for, only the best are compared with what is beside all others."""
    await records.put_many([NewRecord(ALICE, f"{n}", n, text=f"ducks {n}") for n in range(1_500)])
    asked, kinship = [], search._kinship

    def counted(reader, nodes, before, after):
        asked.append(len(nodes))
        return kinship(reader, nodes, before, after)

    monkeypatch.setattr(search, "_kinship", counted)
    (hit,) = await records.search("ducks", where=lambda one: one.value == 700)

    assert 700 == hit.record.value
    assert max(asked) <= 512
    assert len(asked) <= 6


async def test_a_condition_that_is_async_is_refused(records):
    """What it gives would be true of every record."""
    await records.put(ALICE, "a", 1, text="ducks")

    async def none(_one):
        return False

    for call in (records.list(where=none), records.search("ducks", where=none), records.nearest("ducks", where=none)):
        with pytest.raises(InvalidArgument, match="async"):
            await call


def test_below_no_labels_nothing_is_asked_of_what_records_name():
    """All records are below none: on a server, asking each one for its labels took a hundred times as long."""
    assert [] == record_plans.below((), nested=True).names
    assert 1 == len(record_plans.below((), nested=False).names)


async def test_records_that_say_the_same_are_two_hits(records):
    """What a host keeps twice is there twice: nothing is folded or merged."""
    await records.put(ALICE, "a", 1, text="use the registry mirror for builds")
    await records.put(BOB, "b", 2, text="use the registry mirror for builds")

    assert {1, 2} == {hit.record.value for hit in await records.search("registry mirror")}
    assert {1, 2} == {hit.record.value for hit in await records.nearest("registry mirror")}


async def test_nearest_takes_a_vector_of_any_length(records):
    """The embedder's own vector, and a multiple of it, find the same; another shape is refused."""
    await records.put(ALICE, "a", 1, text="ducks")
    (vector,) = [pieces[0] for pieces in await records.embed(["ducks"])]

    assert 1.0 == pytest.approx((await records.nearest(vector * 7))[0].cosine, abs=1e-5)
    assert 1.0 == pytest.approx((await records.nearest(vector.tolist()))[0].cosine, abs=1e-5)
    for wrong in (vector[:-1], np.zeros_like(vector), vector * np.nan, [[1.0]], object()):
        with pytest.raises(InvalidArgument):
            await records.nearest(wrong)


async def test_namespaces_never_see_each_other(place):
    """The same place holds another record in each namespace."""
    opened, store, _ = place
    other = await opened.memories("other")
    await store.records.put(ALICE, "a", 1, text="ducks")
    await store.records.put(ALICE, "b", 1)

    assert [] == await other.records.list()
    assert [] == await other.records.search("ducks")
    assert [] == await other.records.labels()
    assert 0 == await other.records.delete_all(())
    assert 2 == len(await store.records.list())


async def test_a_read_namespace_is_found_and_never_written(place):
    """`reads=` finds another namespace's records among memories; records themselves are the own ones."""
    opened, store, _ = place
    await store.records.put(ALICE, "a", 1, text="ducks on the pond")
    reader = await opened.memories("other", reads=["default"])

    assert ["ducks on the pond"] == [hit.memory.content for hit in await reader.search("ducks")]
    assert [] == await reader.records.list()


# Memories that are records


async def test_forgetting_a_record_takes_it_from_its_place(store):
    """`forget` and `delete` of its memory leave nothing at its key; what is put there then is new."""
    one = await store.records.put(ALICE, "a", 1, text="ducks")
    other = await store.records.put(ALICE, "b", 1, text="geese")
    await store.forget(ids=[one.memory_id])
    await store.delete(other.memory_id)

    assert [None, None] == await store.records.get_many([(ALICE, "a"), (ALICE, "b")])
    assert 1 == (await store.records.put(ALICE, "a", 2, text="ducks")).version


async def test_forgetting_all_below_labels_leaves_no_id_of_them_with_others(store):
    """As with `MemoryStore.forget`: an id has words of the key, and goes from what named it as evidence."""
    put = await store.records.put(ALICE, "a secret key", 1, text="ducks")
    await store.records.put(ALICE, "kept", 1)
    decision = await store.save_decision("ponds", "Dig one", "ducks", evidence=[put.memory_id])

    assert 2 == await store.records.delete_all(ALICE, forget=True)
    assert () == (await store.get(decision.id)).evidence
    assert [] == await store.records.list()


async def test_records_do_not_stand_between_memories_of_one_hour(store):
    """What was decided shortly before is linked in time, however many records a host has put since."""
    before = await store.save_decision("shield", "Raise the shield", "raids doubled")
    await store.records.put_many([NewRecord(ALICE, f"{n}", n, text=f"message {n}") for n in range(60)])
    after = await store.save_decision("reactor", "Feed it with ore", "power is short")

    assert [before.id] == [link.to_id for link in await store.links_of(after.id)]


async def test_a_correction_is_a_version(place):
    """Who read the record before conflicts, its history and the past have what it said, and it has one text again."""
    _, store, clock = place
    put = await store.records.put(ALICE, "a", {"n": 1}, text=["ducks swim", "geese fly"])
    clock.advance(10)
    then = from_milliseconds((START + 5) * 1000)
    await store.correct(put.memory_id, content="ducks dive")
    with pytest.raises(VersionConflict):
        await store.records.put(ALICE, "a", {"n": 2}, text="ducks", if_version=put.version)
    history = await store.records.history(ALICE, "a")

    assert [(2, "ducks dive"), (1, "ducks swim\n\ngeese fly")] == [(one.version, one.text) for one in history]
    (hit,) = await store.search("ducks", as_of=then)
    assert "ducks swim\n\ngeese fly" == hit.memory.content
    await store.reembed(HashEmbedder(dimensions=64))
    assert 1 == len(await store.records.nearest("ducks dive"))


async def test_a_record_makes_no_links_and_is_judged_a_copy_of_nothing(store):
    """Saving it links nothing; a decision of the same words may link to it, and stands by itself."""
    await store.save_decision("ducks", "feed the ducks at noon", "")
    record = await store.records.put(ALICE, "a", 1, text="feed the ducks at noon")
    again = await store.save_context("feed the ducks at noon", on_duplicate="merge")

    assert [] == [link for link in await store.links_of(record.memory_id) if link.from_id == record.memory_id]
    assert 3 == await store.count()
    assert record.memory_id not in {one.id for one in again.noticed.copy_of}


async def test_an_export_carries_records_with_text_and_a_second_store_has_them_at_their_place(place, tmp_path):
    """What is imported is found under its labels and key, with its value, version and history."""
    _, store, _ = place
    await store.records.put(ALICE, "a", {"n": 1}, text="ducks", history=True)
    await store.records.put(ALICE, "a", {"n": 2}, text="geese", history=True)
    await store.export_jsonl(tmp_path / "export.jsonl")
    other = OpenedDirectory.open(tmp_path / "other", engines=PlainEngines())
    target = await other.memories()
    await target.import_jsonl(tmp_path / "export.jsonl")

    assert await store.records.history(ALICE, "a") == await target.records.history(ALICE, "a")
    assert await store.records.get(ALICE, "a") == await target.records.get(ALICE, "a")
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
async def test_an_export_whose_record_no_call_would_find_is_refused(place, tmp_path, change):
    """A record whose id is not that of its labels and key, or that was never put so, is not imported."""
    _, store, _ = place
    put = await store.records.put(ALICE, "a", 1, text="ducks")
    path = tmp_path / "export.jsonl"
    await store.export_jsonl(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["memory"]["metadata"] |= change
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    await store.delete(put.memory_id)

    with pytest.raises(InvalidArgument, match="line 2"):
        await store.import_jsonl(path)
    assert [] == await store.records.list()


async def test_a_record_is_not_imported_beside_one_without_text(place, tmp_path):
    """A place has one record: what is there stays, and the import says so."""
    _, store, _ = place
    await store.records.put(ALICE, "a", 1, text="ducks")
    await store.export_jsonl(tmp_path / "export.jsonl")
    await store.records.put(ALICE, "a", 2)

    with pytest.raises(InvalidArgument, match="line 2"):
        await store.import_jsonl(tmp_path / "export.jsonl")
    assert [2] == [one.value for one in await store.records.list()]


# What is refused
# What is refused


@pytest.mark.parametrize(
    "given",
    [
        {"labels": "alice"},
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
        {"value": "x" * MAX_VALUE},
        {"text": 7},
        {"text": ["a", None]},
        {"text": "\ud800"},
        {"expires_at": NOON.replace(tzinfo=None)},
        {"origin": "nobody"},
        {"if_version": -1},
        {"if_version": "1"},
        {"history": "yes"},
        {"created_by": "me"},
    ],
    ids="-".join,
)
async def test_what_breaks_a_rule_is_refused_before_anything_is_written(records, given):
    """The error names the argument and says no content."""
    whole = {"labels": ALICE, "key": "k", "value": 1} | given
    with pytest.raises(InvalidArgument) as error:
        await records.put(whole.pop("labels"), whole.pop("key"), whole.pop("value"), **whole)

    assert next(iter(given)) in str(error.value)
    assert "\ud800" not in str(error.value)
    assert [] == await records.list()


async def test_a_value_nested_too_deeply_is_refused(records):
    """At 100 levels, where an export still holds it, and far beyond."""
    value = 1
    for _ in range(99):
        value = [value]
    await records.put(ALICE, "deep", value, text="deep")
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidArgument, match="deep"):
        await records.put(ALICE, "deeper", value)


async def test_other_arguments_that_break_a_rule_are_refused(records):
    """Places, moves, lists and conditions are checked at the door."""
    bad = [
        records.get_many([ALICE]),
        records.get_many([(ALICE, "a", "b")]),
        records.get_many("ab"),
        records.move([((ALICE, "a"),)]),
        records.move([((ALICE, "a"), (ALICE, "b")), ((ALICE, "c"), (ALICE, "b"))]),
        records.list(ALICE, prefix="a"),
        records.list(ALICE, after="a"),
        records.list(ALICE, limit=-1),
        records.list(ALICE, where=7),
        records.search("", ALICE),
        records.search("a", ALICE, min_relevance=2),
        records.search("a", ALICE, offset=-1),
        records.put_many([{"labels": ALICE}]),
        records.put_many([], delete=[(ALICE, "a", -1)]),
        records.expire([(ALICE, "a")], "tomorrow"),
        records.append(ALICE, [object()]),
        records.delete_all(ALICE, forget="yes"),
    ]
    for call in bad:
        with pytest.raises(InvalidArgument):
            await call


def test_a_long_key_has_a_name_of_its_own_that_fits():
    """However long labels and key are, the row's key has room; two long keys of one beginning stay apart."""
    labels = tuple("x" * 60 for _ in range(8))
    names = {name_of((labels, "한" * 1000 + end)) for end in "ab"}

    assert 2 == len(names)
    assert all(len(name) < 800 and name.isascii() for name in names)
    assert memory_id_of((("a",), "b")) != memory_id_of((("a", "b"), ""))


@pytest.mark.parametrize("key", ["a", "b/c", "=", "+", "한" * 100, "x" * 1024, "%2F", "."])
async def test_records_are_deleted_whatever_their_keys_are(records, key):
    """All below labels go, with keys that are too long for a name too, and nothing elsewhere."""
    await records.put(ALICE, key, 1)
    await records.put((*ALICE, "more"), key, 2, text="two")
    await records.put(BOB, key, 3)

    assert [ALICE, (*ALICE, "more"), BOB] == await records.labels()
    assert 2 == await records.delete_all(ALICE)
    assert [3] == [one.value for one in await records.list()]


@pytest.mark.parametrize("delete", ["delete", "delete_all"])
async def test_what_cannot_be_read_any_more_is_deleted_all_the_same(store, delete):
    """A damaged record is an error to who reads it, and goes as the error's hint says."""
    await store.records.put(ALICE, "a", 1)
    await store._shared.engine.write(lambda writer: writer.set_note(name_of((ALICE, "a")), '{"a": "secret'))
    with pytest.raises(StoreDamaged) as damaged:
        await store.records.get(ALICE, "a")
    with pytest.raises(StoreDamaged):
        await store.records.delete(ALICE, "a", if_version=1)

    assert "secret" not in f"{damaged.value!r} {damaged.value}"
    assert await (store.records.delete(ALICE, "a") if delete == "delete" else store.records.delete_all(ALICE))
    assert [] == await store.records.list()


async def test_what_cannot_be_read_is_named_and_goes_with_the_others(store):
    """A list raises, for it would lack something; `check` names the rows, and sweeping and deleting go on past them."""
    records = store.records
    long = "x" * 1000
    for key in ("a", "b", long):
        await records.put(ALICE, key, 1)
    whole = (await store._shared.engine.read(lambda reader: reader.notes_named([name_of((ALICE, "b"))]))).popitem()[1]
    spoilt = {name_of((ALICE, "a")): '{"a": "secret', name_of((ALICE, long)): whole}
    await store._shared.engine.write(lambda writer: writer.set_notes(spoilt))
    with pytest.raises(StoreDamaged):
        await records.list(ALICE)
    found = await store.check()

    assert {*spoilt} == {one.key for one in found}
    assert all(one.key in one.message for one in found)
    assert "secret" not in f"{found}"
    assert [ALICE] == await records.labels()
    assert 0 == await records.sweep()
    assert 3 == await records.delete_all(ALICE)
    assert [] == await store.check()
    assert [] == await records.labels()


# Against a dict

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
    """Labels and key as they are compared."""
    return [quote(label, safe="") for label in place[0]], quote(place[1], safe="")


class Model:
    """Records as a dict has them: value, version, text, end, and the values before."""

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
        own = [(name_of(place), place) for place in self.live() if place[0] == labels]
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
    """Do a step of the model on records, and return what it returns."""
    now = from_milliseconds(int(clock.now() * 1000))

    def end(lasts):
        return None if lasts is None else now + timedelta(seconds=lasts)

    try:
        match what, given:
            case "put", (place, value, text, version, keep, lasts):
                put = await records.put(
                    *place, value, text=text, if_version=version, history=keep, expires_at=end(lasts)
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
                return await records.sweep()
    except VersionConflict:
        return "conflict"


def test_records_are_a_dict_with_versions(tmp_path):
    """Whatever is done in whatever order, also after opening again, records are what a plain dict of them is."""

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
                assert expected == await done(store.records, clock, what, *given_)
                live = model.live()
                listed = await store.records.list()
                assert {place: (one["value"], one["version"], one["text"]) for place, one in live.items()} == {
                    (one.labels, one.key): (one.value, one.version, one.text) for one in listed
                }
                assert sorted(live, key=quoted) == [(one.labels, one.key) for one in listed]
            for place, one in model.live().items():
                values = [former.value for former in await store.records.history(*place)]
                assert [one["value"], *one["former"]] == values
            with_text = {memory_id_of(place) for place, one in model.live().items() if one["text"] is not None}
            assert with_text == {one.id for one in await store.recent(limit=1000)}
            assert [] == await opened.findings()
        finally:
            await opened.close()

    compared()
