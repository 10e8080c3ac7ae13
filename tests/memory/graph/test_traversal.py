"""Traversals, evolution chains and supersession, compared with simple reference implementations."""

from __future__ import annotations

import gc
import unicodedata
from datetime import UTC, datetime

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import plain_link, plain_memory

from mama_structs.memory.graph import traversal as graph
from mama_structs.memory.types.model import LinkType, MemoryType, from_milliseconds, to_milliseconds
from mama_structs.testing.plain_engine import PlainReader

START = to_milliseconds(datetime(2026, 1, 1, tzinfo=UTC))
NOW_MS = START + 100 * 86_400_000
TYPES = tuple(LinkType)


@st.composite
def readers(draw, *, types=TYPES, most=8):
    """Draw a reader whose links contain cycles, forks and parallel links, with deleted memories and random times."""
    count = draw(st.integers(1, most))
    reader = PlainReader()
    for node in range(count):
        reader.put(plain_memory(f"m{node}", topic=draw(st.sampled_from([None, "x", "y"])), at=draw(st.integers(0, 5))))
    nodes = st.integers(0, count - 1)
    # Hypothesis draws mostly short lists unless they have a minimum size.
    ends = st.lists(
        st.tuples(nodes, nodes).filter(lambda pair: pair[0] != pair[1]), min_size=draw(st.integers(0, 12)), max_size=20
    )
    for number, (source, target) in enumerate(draw(ends) if count > 1 else []):
        reader.put_link(
            plain_link(
                f"m{source}",
                f"m{target}",
                link_id=str(number),
                type=draw(st.sampled_from(types)),
                confidence=draw(st.sampled_from([0.1, 0.5, 0.7, 1.0])),
                created_by=draw(st.sampled_from(["system", "user"])),
                at=draw(st.integers(0, 5)),
            )
        )
    for node in draw(st.sets(nodes, max_size=count - 1)) if draw(st.booleans()) else ():
        reader.delete(f"m{node}")
    return reader


def chain_of(*pairs, at=None, count=None):
    """Return a reader in which the first memory of each pair supersedes the second one."""
    reader = PlainReader()
    for node in range(count or 1 + max(map(max, pairs))):
        reader.put(plain_memory(f"m{node}", topic="x", at=node if at is None else at[node]))
    for number, (source, target) in enumerate(pairs):
        reader.put_link(plain_link(f"m{source}", f"m{target}", link_id=str(number), type=LinkType.EVOLUTION))
    return reader


def alive(reader):
    return sorted(reader.window().tolist())


def edges_of(reader, direction, types, as_of_ms=None):
    """Return (from, to, strength) for each link that exists, in each direction in which it can be traversed."""
    made = {node: to_milliseconds(reader.get([node])[0].created_at) for node in alive(reader)}
    ways = []
    for link in {link.id: link for node in alive(reader) for link in reader.read_links(node)}.values():
        source, target = reader.find(link.from_id), reader.find(link.to_id)
        # Ignore the creation time of an automatic link, because it exists as soon as both its memories exist.
        linked = 0 if link.created_by == "system" else to_milliseconds(link.created_at)
        exists = as_of_ms is None or max(made[source], made[target], linked) <= as_of_ms
        if exists and (types is None or link.link_type in types):
            power = link.strength(from_milliseconds(NOW_MS))
            ways += [(source, target, power)] if direction != "in" else []
            ways += [(target, source, power)] if direction != "out" else []
    return ways


def plainly_traversed(reader, start, *, types, max_depth, direction, min_strength, limit):
    """Return (node, depth, strength) in traversal order, with a simple scan of all edges at each depth."""
    ways = edges_of(reader, direction, types)
    level, seen, found = {start: 1.0}, {start}, []
    for depth in range(1, min(max_depth, 5) + 1):
        reached = {}
        for here, there, power in ways:
            if here in level and there not in seen:
                total = round(level[here] * power, 6)
                if total >= min_strength:
                    reached[there] = max(reached.get(there, 0.0), total)
        ranked = sorted(reached.items(), key=lambda item: (-item[1], -item[0]))[: limit - len(found)]
        found += [(node, depth, total) for node, total in ranked]
        level = dict(ranked)
        seen |= set(level)
        if not level:
            break
    return found


traversals = st.fixed_dictionaries(
    {
        "types": st.none() | st.sets(st.sampled_from(TYPES)),
        "max_depth": st.integers(0, 7),
        "direction": st.sampled_from(["out", "in", "both"]),
        "min_strength": st.sampled_from([0.0, 0.05, 0.5, 0.7]),
        "limit": st.integers(0, 8),
    }
)


@given(reader=readers(), options=traversals, data=st.data())
def test_traverse_matches_plain_definition(reader, options, data):
    """Breadth first, strongest first within a level, each memory once, for any graph and arguments."""
    start = data.draw(st.sampled_from(alive(reader)))
    steps = graph.traverse(reader, start, now_ms=NOW_MS, **options)
    expected = plainly_traversed(reader, start, **options)

    # Strengths have single precision, so the values may differ by rounding, but the order may not.
    assert [found[:2] for found in expected] == [(step.node, step.depth) for step in steps]
    assert [found[2] for found in expected] == pytest.approx([step.strength for step in steps], abs=5e-6)


@given(reader=readers(), options=traversals, data=st.data())
def test_traverse_paths_follow_links(reader, options, data):
    """Each path leads from the start to its memory, has the length of the depth, and has a link at every step."""
    start = data.draw(st.sampled_from(alive(reader)))
    ways = {(here, there) for here, there, _ in edges_of(reader, options["direction"], options["types"])}

    for step in graph.traverse(reader, start, now_ms=NOW_MS, **options):
        assert (start, step.node, step.depth + 1) == (step.path[0], step.path[-1], len(step.path))
        assert ways.issuperset(zip(step.path, step.path[1:], strict=False))


def test_traverse_depth_is_capped():
    """For any requested depth, a traversal ends five links away."""
    reader = chain_of(*((node + 1, node) for node in range(9)))
    depths = [step.depth for step in graph.traverse(reader, 0, now_ms=NOW_MS, max_depth=99)]

    assert [1, 2, 3, 4, 5] == depths


def test_traverse_follows_link_at_minimum_strength():
    """A confidence of 0.7 passes a minimum of 0.7, and is returned as 0.7."""
    reader = PlainReader()
    for node in range(3):
        reader.put(plain_memory(f"m{node}"))
    reader.put_link(plain_link("m1", "m0", confidence=0.7, created_by="user"))
    reader.put_link(plain_link("m2", "m0", confidence=0.69, created_by="user"))

    (step,) = graph.traverse(reader, 0, now_ms=NOW_MS, min_strength=0.7)

    assert (1, 0.7) == (step.node, step.strength)


def test_traverse_limit_drops_weakest_neighbours():
    """A hub with more links than the limit keeps the strongest ones."""
    reader = PlainReader()
    for node in range(30):
        reader.put(plain_memory(f"m{node}"))
    for node in range(1, 30):
        reader.put_link(plain_link(f"m{node}", "m0", confidence=node / 30, created_by="user"))

    assert [29, 28, 27] == [step.node for step in graph.traverse(reader, 0, now_ms=NOW_MS, limit=3)]
    assert list(range(29, 0, -1)) == [step.node for step in graph.traverse(reader, 0, now_ms=NOW_MS, max_depth=1)]
    assert [] == graph.traverse(reader, 0, now_ms=NOW_MS, max_depth=1, direction="out")


def test_context_neighbourhood_has_depth_two():
    """Memories further away are left out."""
    reader = chain_of(*((node + 1, node) for node in range(6)))

    assert {1, 2, 4, 5} == {
        step.node for step in graph.traverse(reader, 3, now_ms=NOW_MS, max_depth=graph.CONTEXT_DEPTH)
    }


def members(reader, begun):
    """Return the nodes in *begun*, and all nodes that evolution links connect to these nodes."""
    found = set(begun)
    ways = edges_of(reader, "both", {LinkType.EVOLUTION})
    while more := {there for here, there, _ in ways if here in found} - found:
        found |= more
    return found


@given(reader=readers(), data=st.data())
def test_evolution_contains_whole_component(reader, data):
    """The chain contains all connected memories once, newest first, with each link once."""
    node = data.draw(st.sampled_from(alive(reader)))
    chain = graph.find_evolution(reader, node)
    expected = members(reader, {node})
    ways = [way for way in edges_of(reader, "out", {LinkType.EVOLUTION}) if way[0] in expected]
    pairs = {(source, target) for source, target, _ in ways}
    forks = {one for one in expected for side in (0, 1) if sum(pair[side] == one for pair in pairs) > 1}
    order = [one for one in reader.window().tolist() if one in expected]

    assert order == chain.nodes.tolist()
    assert sorted(way[:2] for way in ways) == sorted(
        zip(chain.links.sources.tolist(), chain.links.targets.tolist(), strict=True)
    )
    assert [one for one in order if one in forks] == chain.forks.tolist()


@pytest.mark.parametrize("topics", [1, 1000])
def test_long_chain_is_complete(topics):
    """A chain of hundreds is not capped, whether or not its memories have one topic."""
    reader = PlainReader()
    for node in range(200):
        reader.put(plain_memory(f"m{node}", topic=f"t{node % topics}", at=node))
    for node in range(199):
        reader.put_link(plain_link(f"m{node + 1}", f"m{node}", type=LinkType.EVOLUTION))

    assert list(range(199, -1, -1)) == graph.find_evolution(reader, 70).nodes.tolist()
    assert {3: 199, 150: 199} == graph.Successors(reader).newest([3, 150, 199])


def test_evolution_reports_forks():
    """A decision with two successors, or that replaces two, is a fork; a duplicate link is not."""
    reader = chain_of((1, 0), (2, 0), (3, 1), (3, 2), (4, 3), (4, 3))
    chain = graph.find_evolution(reader, 4)

    assert [4, 3, 2, 1, 0] == chain.nodes.tolist()
    assert [3, 0] == chain.forks.tolist()
    assert 6 == len(chain.links)


def test_single_memory_is_its_own_chain():
    """Without evolution links, the chain has one memory and neither links nor forks."""
    reader = chain_of((1, 0), count=3)
    chain = graph.find_evolution(reader, 2)

    assert ([2], 0, []) == (chain.nodes.tolist(), len(chain.links), chain.forks.tolist())


def test_by_topic_returns_chains_and_neighbourhood():
    """
    Chains follow evolution links to other topics.

    Other links are followed up to depth three.
    """
    reader = chain_of((1, 0), count=8)
    reader.put(attrs.evolve(reader.get([1])[0], topic="renamed"))
    for node in range(2, 8):
        reader.put(attrs.evolve(reader.get([node])[0], topic=None))
        reader.put_link(plain_link(f"m{node}", f"m{node - 1}", confidence=0.9, created_by="user"))

    found = graph.topic_evolution(reader, "x", now_ms=NOW_MS)

    assert [1, 0] == found.chain.nodes.tolist()
    assert [(2, 1), (3, 2), (4, 3)] == [(step.node, step.depth) for step in found.around]


def test_by_topic_of_unknown_topic_is_empty():
    """The chain and the neighbourhood are empty."""
    found = graph.topic_evolution(chain_of((1, 0)), "nobody's", now_ms=NOW_MS)

    assert ([], 0, [], []) == (
        found.chain.nodes.tolist(),
        len(found.chain.links),
        found.chain.forks.tolist(),
        found.around,
    )


def test_by_topic_ignores_unicode_composition():
    """A decomposed Korean topic is the same topic."""
    reader = PlainReader()
    reader.put(plain_memory("m0", topic="인증 방식"))

    assert [0] == graph.topic_evolution(
        reader, unicodedata.normalize("NFD", "인증 방식"), now_ms=NOW_MS
    ).chain.nodes.tolist()


@given(
    reader=readers(types=(LinkType.EVOLUTION, LinkType.EVOLUTION, LinkType.ASSOCIATION)),
    as_of=st.none() | st.integers(0, 5),
)
def test_current_successor_is_newest_end(reader, as_of):
    """It is reachable from the memory, leads nowhere outside its own cycle, and is the newest such memory."""
    as_of_ms = None if as_of is None else START + 1000 * as_of
    moment = None if as_of is None else from_milliseconds(as_of_ms)
    there = [node for node in alive(reader) if moment is None or reader.get([node])[0].created_at <= moment]
    ways = edges_of(reader, "in", {LinkType.EVOLUTION}, as_of_ms)
    ahead = {node: {node} for node in there}
    for _ in ahead:
        for older, newer, _ in ways:
            ahead[older] |= ahead[newer]
    age = {node: position for position, node in enumerate(reader.window().tolist())}
    successors = {node: {newer for older, newer, _ in ways if older == node} for node in ahead}
    found = graph.Successors(reader, moment).newest(there)

    for node, reached in ahead.items():
        ends = {one for one in reached if not successors[one]}
        # `last` contains final memories and members of final cycles: each memory that they reach also reaches them.
        last = {one for one in reached if all(one in ahead[other] for other in ahead[one])}
        stands = found.get(node, node)

        assert stands in last
        assert min(ends or [stands], key=age.get) == stands
        assert min((one for one in last if ahead[one] == ahead[stands]), key=age.get) == stands


@pytest.mark.parametrize("asked", [[], [0]])
def test_memory_without_evolution_has_no_successor(asked):
    """The result does not contain it."""
    assert {} == graph.Successors(chain_of((2, 1))).newest(asked)


def test_successors_as_of_ignore_later_decisions():
    """As of a time before the successor was created, the old decision is current."""
    reader = chain_of((1, 0), (2, 1), at=[0, 100, 200])

    assert {0: 2, 1: 2} == graph.Successors(reader).newest([0, 1, 2])
    assert {0: 1} == graph.Successors(reader, from_milliseconds(START + 150_000)).newest([0, 1])
    assert {} == graph.Successors(reader, from_milliseconds(START + 50_000)).newest([0, 1])


def test_current_memory_of_cycle_is_its_newest():
    """The same memory is the current successor of memories that the cycle supersedes."""
    reader = chain_of((1, 0), (2, 1), (1, 2))

    assert {0: 2, 1: 2} == graph.Successors(reader).newest(np.array([0, 1, 2]))


def test_current_memory_of_left_cycle_is_outside():
    """A decision that supersedes one of a cycle replaces all of it, even if its time is earlier."""
    reader = chain_of((1, 0), (0, 1), (2, 0), at=[10, 20, 5])

    assert {0: 2, 1: 2} == graph.Successors(reader).newest([0, 1, 2])


def test_cycle_that_leads_to_other_cycle_is_superseded():
    """Of two cycles, the newest memory of the last one is current, even if the first is newer."""
    reader = chain_of((1, 0), (0, 1), (2, 1), (3, 2), (2, 3), at=[10, 11, 1, 2])

    assert {0: 3, 1: 3, 2: 3} == graph.Successors(reader).newest([0, 1, 2, 3])


def test_answer_extras_are_loaded_in_one_batch():
    """It returns links, current successor and the decision of an outcome, and leaves out unknown ids."""
    reader = chain_of((1, 0), (2, 0), (3, 1))
    reader.put(plain_memory("why", type=MemoryType.CONTEXT, source="outcome_of"))
    reader.put_link(plain_link("why", "m0", "outcome_of", type=LinkType.IMPLEMENTATION, at=9))
    shown = graph.load_answer_extras(reader, ["m0", "m3", "gone", "why"])

    assert ["m0", "m3", "why"] == list(shown)
    assert ["m3", None, "m3"] == [one.superseded_by and one.superseded_by.id for one in shown.values()]
    assert [None, None, "m0"] == [one.outcome_of for one in shown.values()]
    assert [{"m1", "m2"}, set(), set()] == [{*one.successors} for one in shown.values()]
    assert [reader.read_links(0), reader.read_links(3), reader.read_links(4)] == [
        [*one.links] for one in shown.values()
    ]


@given(
    ages=st.permutations(range(7)),
    links=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=16),
)
def test_holding_returns_newest_end_or_cycle_member(ages, links):
    """Candidates are all ends that supersede the memory, or else members of a cycle without exit."""
    between = [(newer, older) for newer, older in links if newer in ages and older in ages]
    ahead = {one: {one} for one in ages}
    for _ in ages:
        for newer, older in between:
            ahead[older] |= ahead[newer]
    superseded = {older for _, older in between}
    expected = {}
    for one, reached in ahead.items():
        ends = {end for end in reached if end not in superseded}
        circles = {end for end in reached if all(end in ahead[other] for other in ahead[end])}
        expected[one] = min(ends or circles, key=ages.index)

    assert {one: end for one, end in expected.items() if one != end} == graph.find_superseded(links, ages)


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
