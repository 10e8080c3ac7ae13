"""Cached traversals are reused only if a new traversal would return the same result."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import plain_link, plain_memory

from mama_structs.memory.graph import traversal as graph
from mama_structs.memory.graph.traversal import TraversalCache
from mama_structs.memory.types.model import LinkType
from mama_structs.testing import FakeClock
from mama_structs.testing.plain_engine import PlainReader

NOW_MS = 1_790_000_000_000


def nothing_touched(_change):
    return frozenset()


def cache_with(clock=None, **settings):
    return TraversalCache(clock=(clock or FakeClock()).now, **settings)


nodes = st.integers(0, 6)
questions = st.tuples(
    st.just("ask"),
    nodes,
    st.integers(1, 3),
    st.sampled_from(["out", "in", "both"]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([2, 1000]),
)
changes = (
    st.tuples(st.just("link"), nodes, nodes, st.sampled_from([0.3, 0.8]))
    | st.tuples(st.just("unlink"), st.integers(0, 20))
    | st.tuples(st.just("delete"), nodes)
    | st.tuples(st.just("save"), nodes)
)


@given(steps=st.lists(questions | questions | changes, min_size=20, max_size=40))
def test_cached_traversal_equals_new_traversal(steps):
    """Tested after any links, unlinks, deletions and changes."""
    reader, cache, made = PlainReader(), cache_with(), 0
    for node in range(7):
        reader.put(plain_memory(f"m{node}"))
    for kind, *values in steps:
        if kind == "save":
            reader.put(plain_memory(f"m{values[0]}", "changed"))
        elif kind == "delete" and reader.find(f"m{values[0]}") is not None:
            reader.delete(f"m{values[0]}")
        elif kind == "unlink":
            reader.delete_links([str(values[0])])
        elif kind == "link":
            source, target, confidence = values
            if source != target and None not in (reader.find(f"m{source}"), reader.find(f"m{target}")):
                reader.put_link(
                    plain_link(f"m{source}", f"m{target}", link_id=str(made), confidence=confidence, created_by="user")
                )
                made += 1
        elif kind == "ask" and (start := reader.find(f"m{values[0]}")) is not None:
            _, depth, direction, least, limit = values
            fresh = graph.traverse(
                reader, start, now_ms=NOW_MS, max_depth=depth, direction=direction, min_strength=least, limit=limit
            )
            answer = [(step, reader.get([step.node])[0]) for step in fresh]
            key = ("traverse", start, depth, direction, least, limit)
            cached = cache.get(key, reader.change, reader.changed_nodes_since)

            assert cached in (None, answer)
            if cached is None:
                cache.put(key, reader.change, graph.nodes_read(start, fresh), answer)


def test_cached_traversal_survives_unrelated_changes():
    """Memories and links outside of the traversal may change."""
    cache = cache_with()
    cache.put("k", 1, frozenset({1, 2}), "answer")

    assert "answer" == cache.get("k", 5, lambda _change: frozenset({3, 4}))
    assert "answer" == cache.get("k", 5, lambda _change: frozenset({1}))


def test_cached_traversal_checks_only_changes_since_last_check():
    """After a successful check, the next one starts at the change number of that check."""
    cache = cache_with()
    cache.put("k", 1, frozenset({1}), "answer")
    asked = []

    def touched(change):
        asked.append(change)
        return frozenset()

    for change in (5, 5, 9):
        cache.get("k", change, touched)

    assert [1, 5] == asked


@pytest.mark.parametrize(
    ("change", "touched"),
    [(2, lambda _change: frozenset({1, 7})), (2, lambda _change: None), (0, nothing_touched)],
    ids=["touched", "forgotten", "behind"],
)
def test_cached_traversal_is_dropped_when_possibly_outdated(change, touched):
    """That includes touched nodes, unknown changes, and changes that were rolled back."""
    cache = cache_with()
    cache.put("k", 1, frozenset({1}), "answer")

    assert cache.get("k", change, touched) is None
    assert cache.get("k", 1, nothing_touched) is None
    assert (0, 2, 1) == tuple(cache.statistics[what] for what in ("hits", "misses", "stale"))


def test_cached_traversal_expires_in_spite_of_use():
    """Link strengths decay with time, so using a result does not extend its lifetime."""
    clock = FakeClock(start=50.0)
    cache = cache_with(clock, ttl=300.0)
    cache.put("k", 1, frozenset({1}), "answer")
    clock.advance(299.0)
    before = cache.get("k", 1, nothing_touched)
    clock.advance(1.0)

    assert "answer" == before
    assert cache.get("k", 1, nothing_touched) is None
    assert 1 == cache.statistics["expired"]
    assert 0 == len(cache)


def test_cached_traversal_expires_when_clock_steps_back():
    """A clock that steps back never extends a lifetime."""
    now = [100.0]
    cache = TraversalCache(clock=lambda: now[0])
    cache.put("k", 1, frozenset({1}), "answer")
    now[0] = 99.0

    assert cache.get("k", 1, nothing_touched) is None


def test_large_traversal_is_cached_at_second_request():
    """A single traversal of a thousand memories is not stored. The second one is."""
    cache, read = cache_with(), frozenset(range(1_000))
    cache.put("k", 1, read, "first")
    before = cache.get("k", 1, nothing_touched)
    cache.put("k", 1, read, "second")

    assert before is None
    assert "second" == cache.get("k", 1, nothing_touched)


def test_least_recently_used_traversal_is_evicted_first():
    cache = cache_with(entries=2)
    cache.put("a", 1, frozenset({1}), "A")
    cache.put("b", 1, frozenset({2}), "B")
    cache.get("a", 1, nothing_touched)
    cache.put("c", 1, frozenset({3}), "C")

    assert ["A", None, "C"] == [cache.get(key, 1, nothing_touched) for key in "abc"]
    assert 1 == cache.statistics["evicted"]


@given(sizes=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 12)), max_size=30))
def test_cached_traversals_respect_node_limit(sizes):
    """
    All cached results together cover at most the configured number of nodes.

    The newest one is kept if it fits.
    """
    cache = cache_with(entries=3, max_items=10)
    kept = {}
    for key, size in sizes:
        cache.put(key, 1, frozenset(range(size)), size)
        kept[key] = size
        found = [cache.get(other, 1, nothing_touched) for other in kept]

        assert sum(size for size in found if size) <= 10
        assert len(cache) <= 3
        assert (size if size <= 10 else None) == cache.get(key, 1, nothing_touched)


@pytest.mark.parametrize("settings", [{"entries": 0}, {"ttl": 0.0}, {"max_items": 0}])
def test_traversals_are_not_cached_when_disabled(settings):
    """Zero entries, lifetime or nodes disable the cache."""
    cache = cache_with(**settings)
    cache.put("k", 1, frozenset({1}), "answer")

    assert cache.get("k", 1, nothing_touched) is None


def test_clear_removes_all_cached_traversals():
    """Cached results contain nodes, which are invalid after nodes were renumbered."""
    cache = cache_with(max_items=2)
    cache.put("k", 1, frozenset({1, 2}), "answer")
    cache.clear()
    cache.put("l", 1, frozenset({1, 2}), "other")

    assert [None, "other"] == [cache.get(key, 1, nothing_touched) for key in "kl"]
    assert 0 == cache.statistics["evicted"]


def test_new_evolution_link_invalidates_cached_traversal():
    """A new successor changes the results about the memory that it supersedes."""
    reader, cache = PlainReader(), cache_with()
    for name in ("a", "b", "c"):
        reader.put(plain_memory(name))
    reader.put_link(plain_link("b", "a", type=LinkType.EVOLUTION))
    cache.put("a", reader.change, graph.nodes_read(0, graph.traverse(reader, 0, now_ms=NOW_MS)), "answer")
    reader.put_link(plain_link("c", "b", type=LinkType.EVOLUTION))

    assert cache.get("a", reader.change, reader.changed_nodes_since) is None


def test_garbage_collection_is_paused_during_traversal():
    """It is enabled again afterwards, also after errors, unless the host had disabled it."""
    with graph.disable_garbage_collection():
        during = gc.isenabled()
    with pytest.raises(ZeroDivisionError), graph.disable_garbage_collection():
        raise ZeroDivisionError
    after = gc.isenabled()
    gc.disable()
    try:
        with graph.disable_garbage_collection():
            pass
        off = gc.isenabled()
    finally:
        gc.enable()

    assert (False, True, False) == (during, after, off)
