"""The memory table, compared with a plain dict."""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.memory.engines.local.views import memory_table
from mama_structs.memory.engines.local.views.memory_table import MemoryRow, MemoryTable
from mama_structs.memory.types.engine import NEVER_EXPIRES_MS, EngineFilter
from mama_structs.memory.types.model import ORIGINS, PATH_FILTER_PREFIX, MemoryType, from_milliseconds

TYPES = tuple(MemoryType)
BASE = 1_790_000_000_000
EVIDENCE = "insight_x_1790000000000_0a1b2c3d"
TOPICS = ["auth", "인증", unicodedata.normalize("NFD", "인증"), "café", "cafe\u0301", ""]

facts = {
    "topic": st.none() | st.sampled_from(TOPICS),
    "mentions": st.lists(st.sampled_from(["1-11", "2-1", "0-1", f"\0{EVIDENCE}", "\0\0tag=raid"]), max_size=3),
    "ends_ms": st.just(NEVER_EXPIRES_MS) | st.integers(BASE, BASE + 6),
    "origin": st.integers(0, len(ORIGINS) - 1),
    "trust": st.integers(0, len(ORIGINS) - 1),
}
adds = st.tuples(
    st.just("add"),
    st.fixed_dictionaries(
        {"created_ms": st.integers(BASE, BASE + 5), "type_index": st.integers(0, len(TYPES) - 1), **facts}
    ),
)
one_step = (
    adds
    | adds
    | adds
    | st.tuples(st.just("change"), st.integers(0, 20), st.fixed_dictionaries(facts))
    | st.tuples(st.just("remove"), st.integers(0, 20))
    | st.tuples(st.just("restore"), st.integers(0, 20))
    | st.tuples(st.just("ask"))
    | st.tuples(st.just("reload"))
)
# Hypothesis draws mostly short lists unless they have a minimum size.
steps = st.lists(one_step, max_size=8) | st.lists(one_step, min_size=15, max_size=30)
moments = st.none() | st.integers(2 * BASE - 1, 2 * BASE + 13).map(
    lambda half: from_milliseconds(half // 2) + (half % 2) * timedelta(microseconds=500)
)
fields = {
    "types": st.frozensets(st.sampled_from(TYPES)),
    "topic": st.sampled_from([*TOPICS, "unknown"]),
    "since": moments,
    "until": moments,
    "mentions": st.frozensets(st.sampled_from(["1-11", "2-1", "9-9"]), max_size=2),
    "valid_at": moments,
    "origins": st.frozensets(st.sampled_from(ORIGINS)),
    "trust": st.sampled_from(ORIGINS),
    "evidence": st.frozensets(st.just(EVIDENCE), max_size=1),
    "tags": st.sampled_from([(), ("raid",), ("raid", "other")]),
}
places = st.none() | st.tuples(
    st.integers(BASE - 1, BASE + 6) | st.sampled_from([-(2**70), 2**70]), st.integers(-1, 30)
)
# Draw filters with a single field, too, because filters with all fields rarely match.
filters = st.sampled_from(sorted(fields)).flatmap(lambda name: st.builds(EngineFilter, **{name: fields[name]}))
filters |= st.builds(EngineFilter, **{name: st.none() | values for name, values in fields.items()})


def mentioned(catalogue, mention):
    return sorted(catalogue.window(EngineFilter(mentions=frozenset({mention}))).tolist())


def played(steps, where=None):
    """Apply the steps to a table and to a plain dict of rows by node. Return both, and the number of used nodes."""
    catalogue, model, removed, holes, versions = MemoryTable(), {}, {}, set(), itertools.count(100)
    for kind, *values in steps:
        known = removed if kind == "restore" else model
        if kind in ("change", "remove", "restore") and known:
            values[0] = sorted(known)[values[0] % len(known)]
        if kind == "add":
            node = len(model) + len(removed) + len(holes)
            row = {
                "memory_id": f"decision_인증_{node}",
                "number": (node * 7) % 64,
                "version": next(versions),
                **values[0],
            }
            assert node == catalogue.add(MemoryRow(**row))
            model[node] = row
        elif kind == "change" and values[0] in model:
            row = model[values[0]]
            row |= {"version": next(versions), **values[1]}
            said = {name: row[name] for name in ("version", *facts)}
            catalogue.change(values[0], **said, scripts=0)
        elif kind == "remove" and values[0] in model:
            catalogue.remove(values[0])
            removed[values[0]] = model.pop(values[0])
        elif kind == "restore" and values[0] in removed:
            model[values[0]] = removed.pop(values[0])
            catalogue.restore(values[0], MemoryRow(**model[values[0]]))
        elif kind == "ask":
            # Fill the cached masks, which the next change must invalidate.
            catalogue.mask(where)
            catalogue.mask(None)
            catalogue.window()
        elif kind == "reload":
            catalogue = MemoryTable.from_state(*catalogue.state())
            # A reloaded table keeps the node numbers of removed memories as gaps, and cannot restore them.
            holes |= removed.keys()
            removed.clear()
    return catalogue, dict(sorted(model.items())), len(model) + len(removed) + len(holes)


def place(model, node):
    return model[node]["created_ms"], node


def nfc(topic):
    return None if topic is None else unicodedata.normalize("NFC", topic)


def passes(row, where):
    moment = from_milliseconds(row["created_ms"])
    return (
        (where.types is None or TYPES[row["type_index"]] in where.types)
        and (where.topic is None or nfc(row["topic"]) == nfc(where.topic))
        and (where.since is None or moment >= where.since)
        and (where.until is None or moment < where.until)
        and (where.mentions is None or where.mentions <= set(row["mentions"]))
        and (where.origins is None or ORIGINS[row["origin"]] in where.origins)
        and (where.trust is None or row["trust"] <= ORIGINS.index(where.trust))
        and (not where.evidence or f"\0{EVIDENCE}" in row["mentions"])
        and {f"\0\0tag={tag}" for tag in where.tags or ()} <= set(row["mentions"])
        and (
            where.valid_at is None
            or row["ends_ms"] == NEVER_EXPIRES_MS
            or from_milliseconds(row["ends_ms"]) > where.valid_at
        )
    )


@given(
    steps=steps,
    where=st.none() | filters,
    newest_first=st.booleans(),
    after=places,
    limit=st.none() | st.integers(0, 4),
)
def test_filters_match_their_definition(steps, where, newest_first, after, limit):
    """After any changes, masks, counts and ordered windows contain exactly the memories that pass the filter."""
    catalogue, model, total = played(steps, where)
    expected = [node for node, row in model.items() if where is None or passes(row, where)]
    mask = catalogue.mask(where)
    ordered = sorted(expected, key=lambda node: place(model, node), reverse=newest_first)
    window = catalogue.window(where, newest_first=newest_first, limit=limit)
    later = catalogue.window(where, newest_first=newest_first, after=after, limit=limit)
    behind = [
        node
        for node in ordered
        if after is None or (place(model, node) < after if newest_first else place(model, node) > after)
    ]

    assert (range(total) if mask is None else np.flatnonzero(mask).tolist()) == (
        range(total) if mask is None else expected
    )
    assert mask is not None or expected == list(range(total))
    assert len(expected) == catalogue.count(where)
    assert ordered[:limit] == window.tolist()
    assert behind[:limit] == later.tolist()
    assert np.int64 == window.dtype == later.dtype


@given(steps=steps)
def test_attributes_are_those_of_last_versions(steps):
    """Ids, numbers, versions, attributes, topics and mentions reflect the last version of each remaining memory."""
    catalogue, model, total = played(steps)
    nodes = np.array(list(model), np.int64)
    known = catalogue.facts(nodes)
    topics = [nfc(row["topic"]) for row in model.values()]
    named = dict(zip(known.topics.tolist(), topics, strict=True))

    assert total == len(catalogue)
    assert [row["memory_id"] for row in model.values()] == catalogue.ids(nodes) == catalogue.ids(list(model))
    assert [row["number"] for row in model.values()] == catalogue.numbers(nodes) == catalogue.numbers(list(model))
    assert [row["number"] for row in model.values()] == [catalogue.number_of(node) for node in model]
    assert [row["version"] for row in model.values()] == [catalogue.version_of(node) for node in model]
    assert [row["created_ms"] for row in model.values()] == known.created.tolist()
    assert [row["type_index"] for row in model.values()] == known.types.tolist()
    assert [row["ends_ms"] for row in model.values()] == known.ends.tolist()
    assert [row["origin"] for row in model.values()] == known.origins.tolist()
    assert [row["trust"] for row in model.values()] == known.trusts.tolist()
    assert topics == [named[number] for number in known.topics.tolist()]
    assert len(set(topics)) == len(named)
    assert all((number == -1) == (topic is None) for number, topic in named.items())
    assert sorted(model) == catalogue.after(-1).tolist()
    assert list(model) == catalogue.after(-1).tolist()
    for node in range(total):
        row = model.get(node)
        assert (node if row else None) == catalogue.find(f"decision_인증_{node}")
        assert (node if row else None) == catalogue.node_of((node * 7) % 64)
        assert [other for other in model if other > node][:2] == catalogue.after(node, 2).tolist()


@given(steps=steps)
def test_topics_and_mentions_find_their_memories(steps):
    """Each topic, in any Unicode composition, and each mention finds its memories in the order of saving."""
    catalogue, model, _ = played(steps)
    topics = [nfc(row["topic"]) for row in model.values() if row["topic"] is not None]

    assert {topic: topics.count(topic) for topic in topics} == Counter(
        topic for topic in catalogue.topics(catalogue.after(-1)) if topic is not None
    )
    for topic in [*TOPICS, "unknown"]:
        expected = [node for node, row in model.items() if row["topic"] is not None and nfc(row["topic"]) == nfc(topic)]
        assert expected == sorted(catalogue.window(EngineFilter(topic=topic)).tolist())
    for mention in ("1-11", "2-1", "0-1", "9-9"):
        expected = [node for node, row in model.items() if mention in row["mentions"]]
        assert expected == mentioned(catalogue, mention)


@given(steps=steps)
def test_state_round_trip_preserves_memories_and_gaps(steps):
    """A loaded table has the same state, including gaps, and accepts further changes in the same way."""
    catalogue, _, total = played(steps)
    meta, arrays = catalogue.state()
    loaded = MemoryTable.from_state(meta, arrays)
    again_meta, again = loaded.state()

    assert meta == again_meta
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)
    assert total == loaded.add(MemoryRow(**memory("new")))


def test_validity_filter_is_cached_until_next_expiry():
    """The mask of unexpired memories is reused until one expires, and costs nothing if none ever expires."""
    catalogue = catalogue_of("one", "two")
    catalogue.add(MemoryRow(**memory("three", number=3, ends_ms=BASE + 5)))
    masks = [catalogue.mask(EngineFilter(valid_at=from_milliseconds(BASE + more))) for more in (0, 4, 5, 90)]

    assert masks[0] is None
    assert masks[1] is None
    assert [True, True, False] == masks[2].tolist()
    assert masks[3] is masks[2]


def memory(name, **changed):
    return {
        "memory_id": name,
        "number": 1,
        "version": 1,
        "created_ms": BASE,
        "type_index": 0,
        "topic": None,
        "mentions": (),
        **changed,
    }


def catalogue_of(*names, **changed):
    made = MemoryTable()
    for number, name in enumerate(names):
        made.add(MemoryRow(**memory(name, number=number, **changed)))
    return made


def test_add_rejects_existing_id():
    """A second memory with an existing id is rejected, whether it is new or restored."""
    catalogue = catalogue_of("a")
    with pytest.raises(ValueError, match="there is a memory with the id a"):
        catalogue.add(MemoryRow(**memory("a")))
    catalogue.remove(0)
    catalogue.add(MemoryRow(**memory("a")))

    with pytest.raises(ValueError, match="there is a memory with the id a"):
        catalogue.restore(0, MemoryRow(**memory("a", number=0)))
    assert 1 == catalogue.find("a")


@pytest.mark.parametrize(("node", "name"), [(0, "b"), (0, "a"), (7, "a"), (-1, "a")])
def test_restore_accepts_only_removed_memory(node, name):
    """A node that is occupied, was occupied by another memory, or was never used cannot be restored."""
    catalogue = catalogue_of("a")
    if name == "b":
        catalogue.remove(0)

    with pytest.raises(ValueError, match="memory"):
        catalogue.restore(node, MemoryRow(**memory(name, number=0)))


@pytest.mark.parametrize("node", [0, 1, -1])
def test_gaps_cannot_be_removed_or_changed(node):
    """A missing memory cannot be removed or changed."""
    catalogue = catalogue_of("a")
    catalogue.remove(0)

    with pytest.raises(ValueError, match="no memory at node"):
        catalogue.remove(node)
    with pytest.raises(ValueError, match="no memory at node"):
        catalogue.change(node, version=2, topic=None, mentions=())


def test_reused_number_refers_to_later_memory():
    """After a rollback, a reused number refers to the later memory."""
    catalogue = catalogue_of("a", "b", "c")
    for node in (2, 1):
        catalogue.remove(node)
    catalogue.add(MemoryRow(**memory("d", number=1)))

    assert [0, 3, None] == [catalogue.node_of(number) for number in range(3)]


def test_masks_are_read_only():
    """Masks are shared between callers, so they must not be changed."""
    mask = catalogue_of("a").mask(EngineFilter(topic="x"))

    with pytest.raises(ValueError, match="read-only"):
        mask[0] = True


@given(st.lists(st.lists(st.sampled_from("abcde"), max_size=4), min_size=1, max_size=8))
def test_replaced_mentions_leave_other_memories_unchanged(versions):
    """Places of removed mentions are reused, and the mentions of the memories before and after them stay."""
    catalogue = catalogue_of("x", "y", "z", mentions=["a", "b"])
    for version, mentions in enumerate(versions):
        catalogue.change(1, version=version, topic=None, mentions=mentions)

    for letter in "abcde":
        others = [0, 2] if letter in "ab" else []
        assert sorted([*others, *([1] if letter in versions[-1] else [])]) == mentioned(catalogue, letter)
    assert 4 + len(set(versions[-1])) == len(catalogue._mention_pairs)


def test_repeated_updates_do_not_accumulate_mentions():
    """A memory that was changed a thousand times has only its last mentions."""
    catalogue = catalogue_of("a")
    for number in range(1000):
        catalogue.change(0, version=number, topic=None, mentions=[f"1-{number}", "2-1"])

    assert [0] == mentioned(catalogue, "1-999") == mentioned(catalogue, "2-1")
    assert [] == mentioned(catalogue, "1-5")
    assert len(catalogue._mention_pairs) < 600


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "put", "delete", "undo", "list", "reload"]), st.integers(0, 5)), max_size=40
    ),
    most_changes=st.sampled_from([2, 1024]),
)
def test_record_paths_are_those_of_existing_records(steps, most_changes):
    """Paths of deleted records are left out, and those of restored ones are included, also after a reload."""
    catalogue, nodes, deleted, named = MemoryTable(), {}, {}, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_table, "MIN_ROWS_TO_MERGE", most_changes)
        for version, (kind, key) in enumerate(steps):
            mentions = [f"{PATH_FILTER_PREFIX}{key}", *(f"1-{number}" for number in range(version % 3))]
            named |= {key: mentions} if kind == "put" else {}
            if kind == "put" and key in nodes:
                catalogue.change(nodes[key], version=version, topic=None, mentions=mentions)
            elif kind == "put":
                nodes[key] = catalogue.add(MemoryRow(**memory(str(key), mentions=mentions)))
            elif kind == "delete" and key in nodes:
                catalogue.remove(nodes[key])
                deleted[key] = nodes.pop(key)
            elif kind == "undo" and key in deleted and key not in nodes:
                nodes[key], named[key] = deleted.pop(key), mentions
                catalogue.restore(nodes[key], MemoryRow(**memory(str(key), mentions=mentions)))
            elif kind == "list":
                assert sorted(map(str, nodes)) == catalogue.record_paths()
            elif kind == "reload":
                catalogue, deleted = MemoryTable.from_state(*catalogue.state()), {}
    paths = sorted(map(str, nodes))

    assert paths == catalogue.record_paths()
    assert paths[:2] == catalogue.record_paths(limit=2)
    assert paths[:-3:-1] == catalogue.record_paths(limit=2, last_first=True)
    assert [path for path in paths if path > "2"][:1] == catalogue.record_paths(after="2", limit=1)
    assert [path for path in paths if path < "4"][:-2:-1] == catalogue.record_paths(after="4", limit=1, last_first=True)
    for mention in ("1-0", "1-1"):
        assert sorted(nodes[key] for key in nodes if mention in named[key]) == mentioned(catalogue, mention)


REAL = [
    "decision_auth_strategy_1790000000000_0a1b2c3d",
    "decision_auth_storage_1790000000001_1a1b2c3d",
    "checkpoint_release_plan_1790000000002_2a1b2c3d",
    "decision_인증_방식_1790000000003_3a1b2c3d",
]


@pytest.mark.parametrize(
    ("text", "best"),
    [
        ("decision_auth_strategy_1790000000000_0a1b2c3e", 0),
        ("decision_auth_stratgy_1790000000000_0a1b2c3d", 0),
        ("decision_auth_storage", 1),
        ("auth_storage_1790000000001_1a1b2c3d", 1),
        ("decison_release_plan_1790000000002_2a1b2c3d", 2),
        (unicodedata.normalize("NFD", "decision_인증_방식_1790000000003_3a1b2c3"), 3),
    ],
)
def test_nearest_ids_finds_intended_id_for_typo(text, best):
    """With a wrong letter, a missing end or type, or another composition, the intended id is first among thousands."""
    names = [f"insight_note_{number}_{1_780_000_000_000 + number}_{number:08x}" for number in range(3000)]
    catalogue = catalogue_of(*REAL, *names)

    assert REAL[best] == catalogue.nearest_ids(text, 3)[0]


@pytest.mark.parametrize("text", ["", "_", "__", "x" * 1_000_000, "_" * 1_000_000, "a_b_c", "\ud800", "\0"])
def test_nearest_ids_accepts_adversarial_text(text):
    """For any text, the result is short and no error is raised."""
    catalogue = catalogue_of(*REAL)

    assert len(catalogue.nearest_ids(text, 2)) <= 2
    assert [] == catalogue.nearest_ids(REAL[0], 0)
    assert [] == MemoryTable().nearest_ids(text, 2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda arrays: arrays | {"created": arrays["created"][:1]},
        lambda arrays: arrays | {"topic": arrays["topic"] + 1},
        lambda arrays: arrays | {"type": arrays["type"] + 5},
        lambda arrays: arrays | {"pair_node": arrays["pair_node"] + 2},
        lambda arrays: arrays | {"pair_mention": arrays["pair_mention"] - 1},
        lambda arrays: arrays | {"ids_ends": arrays["ids_ends"][:1]},
        lambda arrays: arrays | {"ids_text": arrays["ids_text"][:-1]},
        lambda arrays: arrays | {"ids_text": np.frombuffer(b"aa", np.uint8)},
        lambda arrays: arrays | {"ids_text": np.frombuffer(b"a\xff", np.uint8)},
        lambda arrays: arrays | {"ids_ends": arrays["ids_ends"][::-1].copy()},
    ],
)
def test_load_rejects_state_with_inconsistent_parts(damage):
    """Inconsistencies that could make a later query fail or return wrong memories are detected when loading."""
    meta, arrays = catalogue_of("a", "b", topic="x", mentions=["1-1"]).state()

    with pytest.raises(ValueError, match=r"fit|end|decode|unpack|broadcast"):
        MemoryTable.from_state(meta, damage(arrays))


def test_time_bounds_have_submillisecond_precision():
    """A memory created half a millisecond before a bound is before it."""
    catalogue = catalogue_of("a")
    bound = from_milliseconds(BASE) + timedelta(microseconds=500)

    assert (0, 1) == (catalogue.count(EngineFilter(since=bound)), catalogue.count(EngineFilter(until=bound)))
    assert [] == catalogue.window(EngineFilter(since=bound)).tolist()
    assert [0] == catalogue.window(EngineFilter(until=bound)).tolist()


def test_window_sorts_memories_saved_out_of_order():
    """Old memories that are saved after newer ones are sorted by time, now and after further saves."""
    catalogue = MemoryTable()
    for number, created in enumerate([50, 30, 10, 20, 30, 60, 10]):
        catalogue.add(MemoryRow(**memory(str(number), number=number, created_ms=created)))
    before = catalogue.window(newest_first=False).tolist()
    for number, created in enumerate([15, 5, 60]):
        catalogue.add(MemoryRow(**memory(f"late {number}", number=7 + number, created_ms=created)))

    assert [2, 6, 3, 1, 4, 0, 5] == before
    assert [8, 2, 6, 7, 3, 1, 4, 0, 5, 9] == catalogue.window(newest_first=False).tolist()


def test_cached_mask_is_invalidated_by_any_change():
    """After each kind of change, the mask is computed again."""
    catalogue = catalogue_of("a", topic="x")
    where = EngineFilter(topic="x")
    seen = [catalogue.count(where)]
    changes = [
        lambda: catalogue.add(MemoryRow(**memory("b", number=1, topic="x"))),
        lambda: catalogue.change(1, version=2, topic="y", mentions=()),
        lambda: catalogue.remove(0),
        lambda: catalogue.restore(0, MemoryRow(**memory("a", number=0, topic="x"))),
    ]
    for change in changes:
        change()
        seen.append(catalogue.count(where))

    assert [1, 2, 1, 0, 1] == seen
