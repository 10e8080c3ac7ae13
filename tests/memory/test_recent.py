"""Answers of traversals are reused only where a fresh one would be the same."""

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
def test_a_cached_traversal_is_what_a_fresh_one_would_be(steps):
    """Whatever is linked, unlinked, deleted or changed, an answer from the cache holds."""
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
            cached = cache.get(key, reader.change, reader.touched_since)

            assert cached in (None, answer)
            if cached is None:
                cache.put(key, reader.change, graph.read_by(start, fresh), answer)


def test_an_answer_outlives_changes_elsewhere():
    """Memories and links that the traversal did not read may change."""
    cache = cache_with()
    cache.put("k", 1, frozenset({1, 2}), "answer")

    assert "answer" == cache.get("k", 5, lambda _change: frozenset({3, 4}))
    assert "answer" == cache.get("k", 5, lambda _change: frozenset({1}))


def test_only_changes_since_the_last_check_are_asked_for():
    """Having been found valid at a change, an answer is checked from there on."""
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
def test_a_doubtful_answer_is_dropped(change, touched):
    """What was touched, what may have been, and what a rolled-back change made is not given out, then or later."""
    cache = cache_with()
    cache.put("k", 1, frozenset({1}), "answer")

    assert cache.get("k", change, touched) is None
    assert cache.get("k", 1, nothing_touched) is None
    assert (0, 2, 1) == tuple(cache.statistics[what] for what in ("hits", "misses", "stale"))


def test_answers_end_after_their_time_however_often_they_are_used():
    """Strengths fade, so that using an answer does not make it younger."""
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


def test_a_clock_that_steps_back_ends_answers():
    """No answer lives longer because time was set back."""
    now = [100.0]
    cache = TraversalCache(clock=lambda: now[0])
    cache.put("k", 1, frozenset({1}), "answer")
    now[0] = 99.0

    assert cache.get("k", 1, nothing_touched) is None


def test_a_large_answer_is_kept_when_it_is_asked_for_again():
    """One walk over a thousand memories leaves nothing behind; of two the second one does."""
    cache, read = cache_with(), frozenset(range(1_000))
    cache.put("k", 1, read, "first")
    before = cache.get("k", 1, nothing_touched)
    cache.put("k", 1, read, "second")

    assert before is None
    assert "second" == cache.get("k", 1, nothing_touched)


def test_the_least_recently_used_answer_goes_first():
    """Using an answer keeps it."""
    cache = cache_with(entries=2)
    cache.put("a", 1, frozenset({1}), "A")
    cache.put("b", 1, frozenset({2}), "B")
    cache.get("a", 1, nothing_touched)
    cache.put("c", 1, frozenset({3}), "C")

    assert ["A", None, "C"] == [cache.get(key, 1, nothing_touched) for key in "abc"]
    assert 1 == cache.statistics["evicted"]


@given(sizes=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 12)), max_size=30))
def test_answers_stay_within_their_room(sizes):
    """All kept answers together have read at most so many nodes, and the one put last is kept if it can be."""
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
def test_nothing_is_kept_where_that_is_switched_off(settings):
    """No entries, no time or no room mean no cache."""
    cache = cache_with(**settings)
    cache.put("k", 1, frozenset({1}), "answer")

    assert cache.get("k", 1, nothing_touched) is None


def test_clearing_forgets_all():
    """After nodes were renumbered nothing that was read under the old ones is left."""
    cache = cache_with(max_items=2)
    cache.put("k", 1, frozenset({1, 2}), "answer")
    cache.clear()
    cache.put("l", 1, frozenset({1, 2}), "other")

    assert [None, "other"] == [cache.get(key, 1, nothing_touched) for key in "kl"]


def test_evolution_links_are_read_too():
    """A new successor ends the answer about what it supersedes."""
    reader, cache = PlainReader(), cache_with()
    for name in ("a", "b", "c"):
        reader.put(plain_memory(name))
    reader.put_link(plain_link("b", "a", type=LinkType.EVOLUTION))
    cache.put("a", reader.change, graph.read_by(0, graph.traverse(reader, 0, now_ms=NOW_MS)), "answer")
    reader.put_link(plain_link("c", "b", type=LinkType.EVOLUTION))

    assert cache.get("a", reader.change, reader.touched_since) is None


def test_while_a_walk_is_put_together_no_garbage_is_searched_for():
    """The search is on again afterwards, whatever happened; and off where the host has switched it off."""
    with graph.uncollected():
        during = gc.isenabled()
    with pytest.raises(ZeroDivisionError), graph.uncollected():
        raise ZeroDivisionError
    after = gc.isenabled()
    gc.disable()
    try:
        with graph.uncollected():
            pass
        off = gc.isenabled()
    finally:
        gc.enable()

    assert (False, True, False) == (during, after, off)
