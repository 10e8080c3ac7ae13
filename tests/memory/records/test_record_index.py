"""Conditions on values of records, their index, and their former versions."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from memory_helpers import OpenedDirectory, PlainEngines, is_on_server

from mama_structs import HashEmbedder, Session, admin
from mama_structs._internal.json_conditions import (
    MAX_COMPARED_VALUES,
    MAX_INDEXED_VALUES,
    UNINDEXED_NAME,
    check_json_condition,
    value_filter_names,
)
from mama_structs._internal.jsonable import canonical_json
from mama_structs.errors import InvalidArgument, StoreError, StoreReadOnly
from mama_structs.memory.engines.local import journal_rows, plans
from mama_structs.memory.records import record_notes, record_plans
from mama_structs.memory.types import codec
from mama_structs.memory.types.codec import (
    Entry,
    content_digests,
    decode_memory,
    encode_entry,
    join_histories,
    split_history,
)
from mama_structs.memory.types.model import (
    Memory,
    MemoryType,
    PreviousText,
    PreviousValue,
    RecordMetadata,
    record_path,
    text_digest,
)
from mama_structs.memory.types.record import note_name, record_from_note, record_to_note
from mama_structs.settings import MemorySettings
from mama_structs.storage.sealed_rows import SqliteRows
from mama_structs.testing import FakeClock
from mama_structs.types import NewRecord, RecordStore

START = 1_790_000_000
NAMES = itertools.count()
ROOT = Path(__file__).parents[3]
SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.sampled_from(["", "a", "1", "x" * 200])
KEYS = st.sampled_from(["a", "b", "a.b"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
CONDITIONS = st.dictionaries(KEYS, SCALARS | st.dictionaries(KEYS, SCALARS, min_size=1, max_size=2), min_size=1)
# Values that the index leaves out: too many, too deep, too long.
LARGE = {str(number): number for number in range(MAX_INDEXED_VALUES)} | {"a": 1}
DEEP = {"a": [[[[[[[[1]]]]]]]]}


@pytest.fixture(params=[lambda: None, PlainEngines], ids=["embedded", "plain"])
async def place(request, tmp_path):
    clock = FakeClock(start=START)
    opened = OpenedDirectory.open(tmp_path, clock=clock.now, engines=request.param())
    yield opened, await opened.memories(), clock
    await opened.close()


@pytest.fixture
def records(place):
    return RecordStore(place[1]._shared)


async def all_notes(records, prefix="record-"):
    return await records._shared.engine.read(lambda reader: reader.notes(prefix))


def matches(value, where):
    """Return True if a value matches a condition. Written without the package's functions, except for JSON equality."""
    if isinstance(value, list):
        return any(matches(one, where) for one in value)
    if isinstance(where, dict):
        return isinstance(value, dict) and all(key in value and matches(value[key], one) for key, one in where.items())
    return not isinstance(value, dict) and canonical_json(value) == canonical_json(where)


def matches_separately(value, where):
    """Return True if a value matches each value of a condition. In a list, they may be in different items."""
    if not isinstance(where, dict):
        return matches(value, where)

    def paths(part):
        return [{key: rest} for key, one in part.items() for rest in (paths(one) if isinstance(one, dict) else [one])]

    return all(matches(value, one) for one in paths(where))


@given(value=VALUES | st.sampled_from([LARGE, DEEP]), where=CONDITIONS)
def test_index_names_of_condition_are_among_those_of_matching_value(value, where):
    condition = check_json_condition(where)
    names = set(value_filter_names(value))

    assert matches_separately(value, where) == condition.matches(value)
    assert not condition.matches(value) or names == {UNINDEXED_NAME} or names >= set(condition.names)


@given(rows=st.lists(st.tuples(VALUES, st.booleans()), max_size=6), where=CONDITIONS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
async def test_condition_selects_matching_records(records, rows, where):
    """List, search and nearest find the records that the condition describes, with and without text."""
    rows = [*rows, (LARGE, False), (LARGE, True), (DEEP, False), ({"a": "x" * 200}, True)]
    labels = f"run {next(NAMES)}"
    await records.put_many(
        [
            NewRecord((labels, "in"), f"{at:02}", value, text="kimchi" if text else None)
            for at, (value, text) in enumerate(rows)
        ]
    )
    wanted = [(f"{at:02}", text) for at, (value, text) in enumerate(rows) if matches_separately(value, where)]
    texts = {key for key, text in wanted if text}

    assert [key for key, _ in wanted] == [one.key for one in await records.list(labels, where=where)]
    assert [key for key, _ in wanted][:2] == [one.key for one in await records.list(labels, where=where, limit=2)]
    assert texts == {one.record.key for one in await records.nearest("kimchi", labels, where=where)}
    assert texts == {one.record.key for one in await records.search("kimchi", labels, where=where)}
    assert [] == await records.list((labels, "i"), where=where)


@pytest.mark.parametrize("text", [None, "kimchi"])
async def test_condition_reads_matching_records_only(records, monkeypatch, text):
    """The number of records that are read does not depend on the number of records below the labels."""
    await records.put_many([NewRecord("all", str(number), {"n": number}, text=text) for number in range(300)])
    read = []
    for module, name in (
        (record_notes, "record_from_note"),
        (record_plans, "record_from_memory"),
        (record_plans, "record_from_note"),
    ):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda one, real=real: read.append(one) or real(one))
    found = await records.list("all", where={"n": 7})

    assert ["7"] == [one.key for one in found]
    assert 1 == len(read)


async def test_page_of_records_with_text_reads_its_records_only(records, monkeypatch):
    """The first page and the second one read the records that they return."""
    await records.put_many([NewRecord("all", f"{number:03}", number, text="kimchi") for number in range(300)])
    read, real = [], record_plans.record_from_memory
    monkeypatch.setattr(record_plans, "record_from_memory", lambda one: read.append(one) or real(one))
    first = await records.list("all", limit=10)
    second = await records.list("all", limit=10, cursor=first.next_cursor)

    assert [f"{number:03}" for number in range(20)] == [one.key for one in [*first, *second]]
    assert len(read) <= 22


async def test_page_leaves_out_deleted_records_with_text(records):
    """Records that were deleted, moved or replaced by one without text are at their present places only."""
    await records.put_many([NewRecord("all", f"{number:03}", number, text="kimchi") for number in range(60)])
    await records.list("all", limit=1)
    for number in range(40):
        await records.delete("all", f"{number:03}")
    await records.put("all", "041", "new")
    await records.move([(("all", "042"), ("all", "9"))])
    await records.put("all", "000", 0, text="kimchi")
    found = [one.key for one in await records.list("all", limit=5)]
    last = [one.key for one in await records.list("all", limit=2, reverse=True)]

    assert ["000", "040", "041", "043", "044"] == found
    assert ["9", "059"] == last


async def test_page_reads_no_deleted_records(records, monkeypatch):
    """A page reads as much as before the deletion of other records, also of records with further labels."""
    below = [("all", "more")] * 2 + ["all"] * 600
    await records.put_many([NewRecord(labels, f"{at:03}", at, text="kimchi") for at, labels in enumerate(below)])
    await records.list("all", limit=1)
    await records.delete_all(("all", "more"))
    for at in range(2, 600):
        await records.delete("all", f"{at:03}")
    read, real = [], record_plans.record_memory_id
    monkeypatch.setattr(record_plans, "record_memory_id", lambda place: read.append(place) or real(place))
    monkeypatch.setattr(record_plans.RecordListing, "select_paths", lambda *_: pytest.fail("reads all paths"))
    first = [one.key for one in await records.list("all", limit=1)]
    last = [one.key for one in await records.list("all", limit=1, reverse=True)]

    assert (["600"], ["601"]) == (first, last)
    assert len(read) <= 6


@pytest.mark.parametrize("text", [None, "kimchi"])
async def test_page_reads_expired_records_with_few_queries(place, records, monkeypatch, text):
    """The number of queries depends on the logarithm of the number of expired records."""
    await records.put_many(
        [NewRecord("all", f"{at:03}", at, text=text, expires_at=timedelta(seconds=1)) for at in range(298)]
    )
    await records.put("all", "298", 298, text=text)
    place[2].advance(2)
    queries = []
    for owner, name in (
        (record_plans, "_read_memories"),
        (record_plans, "iter_readable_or_error"),
        (record_plans, "_note_paths"),
    ):
        real = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *given, real=real, **more: queries.append(given) or real(*given, **more)
        )
    found = [one.key for one in await records.list("all", limit=1)]

    assert ["298"] == found
    assert len(queries) <= 30


PLACES = st.tuples(
    st.sampled_from([(), ("a",), ("a", "b"), ("a-b",), ("a", "1"), ("b",)]),
    st.sampled_from(
        ["", "x", "y", "x/y", "한", "l" * 127, "l" * 128, "l" * 200, "l" * 300, "l" * 300 + "m", "l" * 128 + "%"]
    ),
).filter(lambda place: place[1])


@given(
    places=st.sets(PLACES, min_size=1),
    texts=st.sets(PLACES),
    labels=st.sampled_from([(), ("a",)]),
    nested=st.booleans(),
    reverse=st.booleans(),
    limit=st.integers(1, 3),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
async def test_pages_contain_records_in_order(records, *, places, texts, labels, nested, reverse, limit):
    """The pages of a listing contain the same records as the listing without a limit, with and without text."""
    await records.delete_all(())
    await records.put_many([NewRecord(*place, 1, text="kimchi" if place in texts else None) for place in places])
    every = [(one.labels, one.key) for one in await records.list(labels, nested=nested, reverse=reverse)]
    found, cursor = [], None
    while True:
        page = await records.list(labels, nested=nested, reverse=reverse, limit=limit, cursor=cursor)
        found += [(one.labels, one.key) for one in page]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert every == found
    assert {one for one in places if (one[0][: len(labels)] if nested else one[0]) == labels} == set(found)


LONG_KEYS = st.builds(
    lambda begin, count, end: f"{begin * count}{end}",
    st.sampled_from(["x", "é"]),
    st.sampled_from([1, 20, 21, 22, 125, 126, 127, 128, 129, 256, 257, 299]),
    st.sampled_from(["", "a", "b", "/"]),
)


@given(
    places=st.dictionaries(LONG_KEYS, st.booleans(), min_size=1, max_size=6),
    prefix=st.just("") | LONG_KEYS,
    cursor=st.none() | LONG_KEYS,
    nested=st.booleans(),
    reverse=st.booleans(),
    limit=st.integers(1, 3),
)
@example(
    places={"x" * 299 + end: True for end in "abc"}, prefix="", cursor=None, nested=True, reverse=False, limit=1
).via("skipped the keys after the first")
@example(
    places={"x" * 299 + end: False for end in "abc"}, prefix="x" * 200, cursor=None, nested=False, reverse=True, limit=1
).via("found no key with the prefix")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
async def test_pages_contain_long_keys_in_order(records, *, places, prefix, cursor, nested, reverse, limit):
    """Keys, cursors and prefixes of any length select the same records with and without a limit."""
    await records.delete_all("all")
    await records.put_many([NewRecord("all", key, 1, text="kimchi" if text else None) for key, text in places.items()])
    prefix = "" if nested else prefix
    bound = cursor and record_path(("all",), cursor)
    expected = [
        key
        for path, key in sorted(((record_path(("all",), key), key) for key in places), reverse=reverse)
        if key.startswith(prefix) and (bound is None or (path < bound if reverse else path > bound))
    ]
    cursor = bound if nested else cursor
    whole = await records.list("all", nested=nested, prefix=prefix, cursor=cursor, reverse=reverse)
    found = []
    while True:
        page = await records.list("all", nested=nested, prefix=prefix, cursor=cursor, reverse=reverse, limit=limit)
        found += [one.key for one in page]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert expected == [one.key for one in whole] == found


async def test_page_reads_names_of_its_notes_only(records, monkeypatch):
    """The number of names that are read does not depend on the number of records under the labels."""
    await records.put_many([NewRecord("all", f"{number:04}", number) for number in range(3 * record_notes.PAGE_ROWS)])
    names, real = [], record_plans.RecordListing.iter_paths

    def count(self, read, prefix):
        for name in real(self, read, prefix):
            names.append(name)
            yield name

    monkeypatch.setattr(record_plans.RecordListing, "iter_paths", count)
    page = await records.list("all", limit=5, cursor=record_path(("all",), "0300"))
    last = await records.list("all", nested=False, limit=2, reverse=True)

    assert [*range(301, 306)] == [one.value for one in page]
    assert [767, 766] == [one.value for one in last]
    assert len(names) < 20


async def test_condition_and_predicate_apply_together(records):
    await records.put_many(
        [NewRecord("all", str(number), {"even": number % 2 == 0, "n": number}) for number in range(9)]
    )
    found = await records.list("all", where={"even": True}, predicate=lambda one: one.value["n"] > 4)

    assert ["6", "8"] == [one.key for one in found]


@pytest.mark.parametrize(
    "where",
    [
        {},
        [],
        "a",
        {1: 2},
        {"a": {}},
        {"a": [1]},
        {"a": float("nan")},
        {"a": b""},
        {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}}}}},
        {str(number): 1 for number in range(MAX_INDEXED_VALUES + 1)},
    ],
)
async def test_invalid_condition_raises(records, where):
    for call in (
        records.list,
        lambda **given: records.search("x", **given),
        lambda **given: records.nearest("x", **given),
    ):
        with pytest.raises(InvalidArgument, match="where"):
            await call(where=where)


def test_large_value_is_not_compared_as_a_whole():
    assert (UNINDEXED_NAME,) == value_filter_names([1] * (MAX_COMPARED_VALUES + 1))


@pytest.mark.parametrize("key", ["a", "b/c", "한" * 1000, "x" * 1024])
@pytest.mark.parametrize("how", ["delete", "delete_all", "erase", "pop", "text", "move", "expire"])
async def test_deleted_record_leaves_no_entries(place, records, key, how):
    """No name or text of the index or the history remains, in particular none that contains the value."""
    labels = ("l" * 500,)
    for number in range(3):
        await records.put(labels, key, {"n": number}, keep_history=True, expires_at=timedelta(days=1))
    assert ["2", "1", "0"] == [str(one.value["n"]) for one in await records.history(labels, key)]
    assert [key] == [one.key for one in await records.list(labels, where={"n": 2})]
    if how == "delete":
        await records.delete(labels, key)
    elif how in {"delete_all", "erase"}:
        await records.delete_all(labels, erase=how == "erase")
    elif how == "pop":
        await records.pop(labels)
    elif how == "text":
        await records.put(labels, key, 1, text="kimchi")
    elif how == "move":
        await records.move([((labels, key), ("other", "k"))])
        assert 3 == len(await records.history("other", "k"))
        await records.delete("other", "k")
    else:
        place[2].advance(2 * 86_400)
        await records.delete_expired()

    assert {record_notes.INDEX_NOTE} == set(await all_notes(records, "record"))


async def test_damaged_record_that_is_deleted_leaves_no_entries(records):
    for key in ("a", "x" * 1024):
        await records.put("all", key, {"n": 1}, keep_history=True, expires_at=timedelta(days=1))
        await records.put("all", key, {"n": 2}, keep_history=True, expires_at=timedelta(days=1))
        await records._shared.engine.write(lambda writer: writer.set_note(note_name((("all",), key)), "{"))  # noqa: B023
    assert 2 == await records.delete_all("all")

    assert {record_notes.INDEX_NOTE} == set(await all_notes(records, "record"))


# Former versions


async def test_put_writes_only_the_replaced_version(records):
    """Each put adds one note to the history, and the notes before stay as they are."""
    for number in range(20):
        await records.put("all", "k", {"n": number, "long": "x" * 1000}, keep_history=True)
    before = await all_notes(records, record_notes.VERSION_PREFIX)
    (record,) = (await all_notes(records, "record/")).values()
    await records.put("all", "k", 20, keep_history=True)
    after = await all_notes(records, record_notes.VERSION_PREFIX)

    assert before.items() <= after.items()
    assert 1 == len(after) - len(before)
    assert len(record) < 2000
    assert [20, *reversed(range(20))] == [
        one.value if one.version == 21 else one.value["n"] for one in await records.history("all", "k")
    ]


async def put_versions(place, records, count, key="k"):
    """Put versions one second apart, each with its own text."""
    for number in range(count):
        await records.put("all", key, {"n": number}, text=f"kimchi {'x' * 500} {number}", keep_history=True)
        place[2].advance(1)


async def found_records(hits):
    return [hit.record for hit in await hits]


@pytest.mark.skipif(is_on_server(), reason="counts the rows of a directory")
async def test_put_with_text_writes_bounded_bytes(tmp_path, monkeypatch):
    """A put with a long history writes about as much as one with a short history."""
    opened = OpenedDirectory.open(tmp_path, clock=(clock := FakeClock(start=START)).now)
    memories = await opened.memories()
    records, written, real = RecordStore(memories._shared), [], SqliteRows.put
    monkeypatch.setattr(
        SqliteRows, "put", lambda self, key, value: written.append(len(value)) or real(self, key, value)
    )
    sizes = []
    for number in range(64):
        written.clear()
        await records.put("all", "k", {"n": number}, text=f"kimchi {'x' * 500} {number}", keep_history=True)
        sizes.append(sum(written))
        clock.advance(1)
    found = [one.value["n"] for one in await records.history("all", "k")]
    issues = [*(await admin.check(memories)).issues]
    await opened.close()

    assert [*reversed(range(64))] == found
    assert [] == issues
    assert sum(sizes[56:64]) < 1.5 * sum(sizes[8:16])


async def test_history_with_text_is_read_at_each_time(place, records):
    """A long history is complete in `history`, in the memory, and in searches as of each time."""
    await put_versions(place, records, 20)
    memory = await place[1].get((await records.get("all", "k")).memory_id)
    seen = []
    for number in range(20):
        at = datetime.fromtimestamp(START + number, UTC)
        seen += [hit.memory for hit in await place[1].search("kimchi", as_of=at, limit=1)]

    assert [*reversed(range(20))] == [one.value["n"] for one in await records.history("all", "k")]
    assert [*range(19)] == [one.value["n"] for one in memory.metadata.history]
    assert [*range(19)] == [int(one.content.rpartition(" ")[2]) for one in memory.previous_texts]
    assert [*range(20)] == [one.metadata.value["n"] for one in seen]
    assert [*range(20)] == [int(one.content.rpartition(" ")[2]) for one in seen]


@pytest.mark.skipif(is_on_server(), reason="counts the texts that a directory reads")
async def test_only_history_reads_former_versions_with_text(tmp_path, monkeypatch):
    """Calls that return the present version read no text with former versions."""
    opened = OpenedDirectory.open(tmp_path, clock=(clock := FakeClock(start=START)).now)
    memories = await opened.memories()
    records, read, real = RecordStore(memories._shared), [], plans.JournalReader.contents
    monkeypatch.setattr(
        plans.JournalReader, "contents", lambda self, digests: read.append(len(digests)) or real(self, digests)
    )
    await put_versions((None, memories, clock), records, 41)
    counts = {}

    async def count(name, call, values):
        read.clear()
        found = await call
        assert values == [one.value["n"] for one in found]
        counts[name] = sum(read)

    await count("get", records.get_many([("all", "k")]), [40])
    await count("list", records.list("all"), [40])
    await count("condition", records.list("all", where={"n": 40}), [40])
    await count("search", found_records(records.search("kimchi", "all")), [40])
    await count("nearest", found_records(records.nearest("kimchi", "all")), [40])
    await count("history", records.history("all", "k"), [*reversed(range(41))])
    read.clear()
    assert 40 == len((await memories.search("kimchi"))[0].memory.metadata.history)
    counts["search of memories"] = sum(read)
    read.clear()
    await records.delete("all", "k")
    counts["delete"] = sum(read)
    await opened.close()

    assert {"history": 10, "search of memories": 10} == {name: texts for name, texts in counts.items() if texts}


@pytest.mark.parametrize("how", ["delete", "erase", "move", "forget"])
async def test_deleted_history_with_text_leaves_no_texts(place, records, how):
    await put_versions(place, records, 12)
    memory_id = (await records.get("all", "k")).memory_id
    digests = {text_digest(text) for text in split_history(await place[1].get(memory_id))[1].values()}
    if how == "delete":
        await records.delete("all", "k")
    elif how == "erase":
        await records.delete_all("all", erase=True)
    elif how == "move":
        await records.move([(("all", "k"), ("all", "l"))])
        assert 12 == len(await records.history("all", "l"))
        await records.delete("all", "l")
    else:
        await place[1].delete(memory_id)
    left = await records._shared.engine.read(lambda reader: reader.known_contents([*digests]))

    assert len(digests) == 2
    assert set() == left
    assert [] == [*(await admin.check(place[1])).issues]


@pytest.mark.skipif(is_on_server(), reason="damages a row of a directory")
async def test_damaged_text_of_history_is_left_out(tmp_path):
    opened = OpenedDirectory.open(tmp_path, clock=(clock := FakeClock(start=START)).now)
    memories = await opened.memories()
    records = RecordStore(memories._shared)
    await put_versions((None, memories, clock), records, 12)
    memory = await memories.get((await records.get("all", "k")).memory_id)
    first, _ = map(text_digest, split_history(memory)[1].values())
    store, keys = opened.storage, memories._shared.engine._row_keys
    await store.transact(lambda rows: rows.put(f"{keys.contents}{first}", b"{"))
    found = [one.value["n"] for one in await records.history("all", "k")]
    await records.put("all", "k", {"n": 12}, text="kimchi", keep_history=True)
    later = [one.value["n"] for one in await records.history("all", "k")]
    issues = [*(await admin.check(memories)).issues]
    await opened.close()

    assert [*reversed(range(3, 12))] == found
    assert [12, *reversed(range(3, 12))] == later
    assert [] == issues


@pytest.mark.skipif(is_on_server(), reason="reads the head row of a directory")
@pytest.mark.parametrize("how", ["put", "move"])
async def test_earlier_version_rejects_directory_with_split_history(tmp_path, monkeypatch, how):
    """An earlier version would show the last versions only, and its next put would lose the others."""
    opened = OpenedDirectory.open(tmp_path, clock=(clock := FakeClock(start=START)).now)
    memories = await opened.memories()
    records, formats = RecordStore(memories._shared), []

    async def add_format():
        head = await opened.storage.run_read(lambda rows: journal_rows.read_head(rows, "default", ""))
        formats.append(head.format)

    await put_versions((None, memories, clock), records, codec.VERSIONS_PER_TEXT)
    await add_format()
    with monkeypatch.context() as patched:
        # As an earlier version wrote the record: with the complete history in its row.
        patched.setattr(codec, "VERSIONS_PER_TEXT", 100)
        await put_versions((None, memories, clock), records, 12)
    await add_format()
    if how == "put":
        await put_versions((None, memories, clock), records, 1)
    else:
        await records.move([(("all", "k"), ("all", "l"))])
    await add_format()
    await records.delete_all("all")
    await records.put("all", "k", 1, text="kimchi")
    await add_format()
    await opened.close()
    monkeypatch.setattr(journal_rows, "SPLIT_HISTORY_FORMAT", journal_rows.NAMESPACE_FORMAT)
    earlier = OpenedDirectory.open(tmp_path, clock=clock.now)

    assert [1, 1, 2, 2] == formats
    with pytest.raises(StoreError, match="later version"):
        await earlier.memories()
    await earlier.close()


TIMES = st.integers(0, 5).map(lambda seconds: datetime.fromtimestamp(START + seconds, UTC))


@given(
    history=st.lists(st.tuples(st.integers(1, 30), TIMES), max_size=20),
    previous=st.lists(TIMES, max_size=20),
    is_sorted=st.booleans(),
)
def test_split_history_is_joined_to_the_same_memory(history, previous, is_sorted):
    if is_sorted:
        history, previous = sorted(history), sorted(previous)
    memory = Memory(
        id="record_k_1",
        type=MemoryType.RECORD,
        content="kimchi",
        metadata=RecordMetadata(
            history=tuple(PreviousValue(value=[one], version=one, at=at, text="kimchi") for one, at in history)
        ),
        created_at=datetime.fromtimestamp(START, UTC),
        updated_at=datetime.fromtimestamp(START, UTC),
        previous_texts=tuple(PreviousText(content=str(at), until=at) for at in previous),
    )
    split, texts = split_history(memory)
    stored = decode_memory(encode_entry(Entry(split)))

    assert [memory] == join_histories([stored], lambda digests: {one: texts[one] for one in digests})
    assert {*texts} == {*content_digests(stored)}
    assert {} == split_history(memory, split)[1]


def test_split_history_compares_versions_a_linear_number_of_times(monkeypatch):
    """The number of comparisons grows with the number of versions, and not with its square."""
    compared = []

    class Number(int):
        __hash__ = int.__hash__

        def __eq__(self, other):
            return compared.append(1) or int(self) == int(other)

        def __lt__(self, other):
            return compared.append(1) or int(self) < int(other)

        def __rfloordiv__(self, other):
            return Number(other // int(self))

    monkeypatch.setattr(codec, "VERSIONS_PER_TEXT", Number(codec.VERSIONS_PER_TEXT))
    counts = []
    for count in (100, 1_000):
        at = [datetime.fromtimestamp(START + number, UTC) for number in range(count + 1)]
        history = tuple(PreviousValue(value=one, version=one, at=at[one], text="kimchi") for one in range(count))
        memory = Memory(
            id="record_k_1",
            type=MemoryType.RECORD,
            content="kimchi",
            metadata=RecordMetadata(history=history),
            created_at=at[0],
            updated_at=at[-1],
            previous_texts=tuple(PreviousText(content=str(one), until=one) for one in at[1:]),
        )
        compared.clear()
        assert count // 4 - 1 == len(split_history(memory)[1])
        counts.append(len(compared))

    assert counts[1] < 20 * counts[0]


@pytest.mark.parametrize("text", [None, "kimchi"])
async def test_history_is_bounded_by_count(place, text):
    records = RecordStore(attrs.evolve(place[1]._shared, settings=MemorySettings(record_versions=3)))
    for number in range(10):
        await records.put("all", "k", number, text=text and f"{text} {number}", keep_history=True)

    assert [9, 8, 7, 6] == [one.value for one in await records.history("all", "k")]
    assert (0 if text else 3) == len(await all_notes(records, record_notes.VERSION_PREFIX))
    if text:
        memory = await place[1].get((await records.get("all", "k")).memory_id)
        assert ["kimchi 6", "kimchi 7", "kimchi 8"] == [one.content for one in memory.previous_texts]


@pytest.mark.parametrize("text", [None, "kimchi"])
async def test_history_is_bounded_by_age(place, text):
    """A version is left out when it was replaced too long ago, and the next put deletes it."""
    records = RecordStore(attrs.evolve(place[1]._shared, settings=MemorySettings(record_versions_ttl=60.0)))
    for number in range(4):
        await records.put("all", "k", number, text=text, keep_history=True)
        place[2].advance(25)
    found = [one.value for one in await records.history("all", "k")]
    place[2].advance(61)
    later = [one.value for one in await records.history("all", "k")]
    await records.put("all", "k", 4, text=text)

    assert [3, 2, 1] == found
    assert [3] == later
    assert {} == await all_notes(records, record_notes.VERSION_PREFIX)
    assert [4] == [one.value for one in await records.history("all", "k")]


@pytest.mark.parametrize("setting", [{"record_versions": -1}, {"record_versions_ttl": 0.0}, {"record_versions": 1.5}])
def test_invalid_history_setting_raises(setting):
    with pytest.raises(ValueError, match="record_versions"):
        MemorySettings(**setting)


async def test_damaged_version_is_left_out_of_history(records):
    for number in range(3):
        await records.put("all", "k", number, keep_history=True)
    first, _ = await all_notes(records, record_notes.VERSION_PREFIX)
    await records._shared.engine.write(lambda writer: writer.set_note(first, "{"))

    assert [2, 1] == [one.value for one in await records.history("all", "k")]


# Labels, damage


async def test_labels_of_expired_records_are_left_out(place, records):
    for text in (None, "kimchi"):
        await records.put(("over", str(text)), "k", 1, text=text, expires_at=timedelta(seconds=5))
        await records.put(("both", str(text)), "k", 1, text=text, expires_at=timedelta(seconds=5))
        await records.put(("both", str(text)), "l", 1, text=text)
        await records.put(("later", "l" * 480), "k" * 400, 1, text=text, expires_at=timedelta(seconds=5))
    place[2].advance(6)
    before = await records.labels()
    await records.expire([(("over", "None"), "k")], None)

    assert [("both", "None"), ("both", "kimchi")] == before
    assert before == await records.labels()


# Records of earlier commits


def earlier_note(record, *history):
    """Return a note as earlier commits wrote it: without index entries, with the history inside."""
    kept = msgspec.json.decode(record_to_note(record_from_note(record)))
    former = [{"value": value, "version": at + 1, "at": kept["created_at"]} for at, value in enumerate(history)]
    return msgspec.json.encode(kept | {"history": former, "version": len(history) + 1}).decode()


async def remove_index(records, *history):
    """Leave only what an earlier commit would have written."""
    notes = await all_notes(records, "record")
    written = {
        name: earlier_note(text, *history) if name.startswith("record/") else None for name, text in notes.items()
    }
    await records._shared.engine.write(lambda writer: writer.set_notes(written))


async def test_records_of_earlier_commit_are_found_and_indexed(place, records, monkeypatch):
    monkeypatch.setattr(record_notes, "PAGE_ROWS", 2)
    for key in ("a", "b", "c", "x" * 1024):
        await records.put("all", key, {"key": key[0]}, expires_at=timedelta(days=1))
    await remove_index(records, "old", "older")
    again = RecordStore(place[1]._shared)
    await again.put("all", "d", {"key": "d"})
    partly = await all_notes(again, record_notes.INDEX_NOTE)
    found = [[one.key[0] for one in await again.list("all", where={"key": key})] for key in "abcdx"]
    await again.put("all", "a", {"key": "new"}, keep_history=True)

    assert {} == partly
    assert [["a"], ["b"], ["c"], ["d"], ["x"]] == found
    assert {record_notes.INDEX_NOTE} == set(await all_notes(again, record_notes.INDEX_NOTE))
    assert [{"key": "new"}, {"key": "a"}, "older", "old"] == [one.value for one in await again.history("all", "a")]
    assert [] == await again.list("all", where={"key": "a"})
    assert [("all",)] == await again.labels()


async def test_check_reports_missing_entries_and_rebuild_adds_them(place, records):
    await records.put_many([NewRecord("all", str(at), {"n": at}, expires_at=timedelta(days=at + 1)) for at in range(3)])
    (lost, *_) = [one for one in await all_notes(records, record_notes.VALUE_PREFIX) if one.endswith("=1")]
    await records._shared.engine.write(lambda writer: writer.set_note(lost, None))
    found = await admin.check(place[1])
    missing = await records.list("all", where={"n": 1})
    await admin.rebuild(place[1])

    assert [("integrity", note_name((("all",), "1")))] == [(one.kind, one.key) for one in found.issues]
    assert [] == missing
    assert [] == [*(await admin.check(place[1])).issues]
    assert ["1"] == [one.key for one in await records.list("all", where={"n": 1})]


async def test_list_compares_all_records_if_index_cannot_be_written(place, records, monkeypatch):
    """On read-only media, records of an earlier commit are found without an index."""
    await records.put_many([NewRecord("all", str(number), {"n": number % 2}) for number in range(4)])
    await remove_index(records)
    again = RecordStore(place[1]._shared)

    def reject(*_given, **_more):
        raise StoreReadOnly("read-only")

    monkeypatch.setattr(record_notes, "add_index_entries", reject)

    assert ["1", "3"] == [one.key for one in await again.list("all", where={"n": 1})]
    assert [("all",)] == await again.labels()


KILLED = """
import os, signal, sys
from mama_structs import HashEmbedder
from mama_structs.memory.records import record_notes
from mama_structs.sync import Session

real, record_notes.PAGE_ROWS, pages = record_notes.add_index_entries, 2, []

def add(writer, names, is_last):
    pages.append(real(writer, names, is_last=is_last))
    if len(pages) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

record_notes.add_index_entries = add
Session.open(sys.argv[1], embedder=HashEmbedder()).records.list("all", where={"n": 1})
"""


@pytest.mark.skipif(is_on_server(), reason="opens a directory")
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
async def test_index_is_completed_after_kill(tmp_path):
    """A process that is killed while it adds the records of an earlier commit leaves no record out."""
    async with Session.open(tmp_path / "agent.mama", embedder=HashEmbedder()) as session:
        await session.records.put_many([NewRecord("all", str(number), {"n": number % 3}) for number in range(9)])
        await remove_index(session.records)
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", KILLED, tmp_path / "agent.mama"], check=False, cwd=ROOT
    )
    async with Session.open(tmp_path / "agent.mama", embedder=HashEmbedder()) as session:
        left = await all_notes(session.records, record_notes.INDEX_NOTE)
        found = await session.records.list("all", where={"n": 1})

    assert -signal.SIGKILL == killed.returncode
    assert {} == left
    assert ["1", "4", "7"] == [one.key for one in found]


async def test_rebuild_removes_stale_entries(records, place):
    """Entries of deleted and of changed records are reported by check, and rebuild removes them."""
    for key in ("a", "b", "x" * 1024):
        await records.put("all", key, {"n": 1}, expires_at=timedelta(days=1))
    stale = {name: text for name, text in (await all_notes(records)).items() if name != record_notes.INDEX_NOTE}
    await records.put("all", "b", {"n": 2})
    await records.delete("all", "a")
    await records.delete("all", "x" * 1024)
    kept = await all_notes(records)
    await records._shared.engine.write(lambda writer: writer.set_notes(stale))
    found = await admin.check(place[1])
    await admin.rebuild(place[1])

    assert stale.keys() - kept.keys() == {one.key for one in found.issues}
    assert kept == await all_notes(records)
    assert [] == [*(await admin.check(place[1])).issues]


async def test_index_is_completed_after_another_process_removed_it(records, monkeypatch):
    """A store that has used the index notices that another process replaced the records without an index."""
    await records.put("all", "a", {"n": 1})
    await records.list("all", where={"n": 1})
    await remove_index(records)
    await records.put("all", "b", {"n": 1})
    found = [one.key for one in await records.list("all", where={"n": 1})]
    left = await all_notes(records, record_notes.INDEX_NOTE)
    await records._shared.engine.write(lambda writer: writer.set_notes(dict.fromkeys(writer.note_names("record"))))
    await records.put("all", "c", {"n": 1})

    assert ["a", "b"] == found
    assert {record_notes.INDEX_NOTE} == set(left) == set(await all_notes(records, record_notes.INDEX_NOTE))
