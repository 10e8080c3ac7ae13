"""Lookup of the successors of superseded memories."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import plain_link, plain_memory

from mama_structs.memory.graph.traversal import Successors, links_as_of
from mama_structs.memory.types.model import LinkType
from mama_structs.testing.plain_engine import PlainReader

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 86_400.0


def store(chain: list[tuple[int, int]], size: int, **fields: object) -> PlainReader:
    """Return a reader with *size* memories, one day apart, and a link per (successor, predecessor) in *chain*."""
    reader = PlainReader()
    for number in range(size):
        reader.put(plain_memory(f"m{number}", at=number * DAY))
    for place, (newer, older) in enumerate(chain):
        link = plain_link(
            f"m{newer}",
            f"m{older}",
            "supersedes",
            link_id=f"l{place}",
            type=LinkType.EVOLUTION,
            **{"created_by": "user", "at": newer * DAY} | fields,
        )
        reader.put_link(link)
    return reader


def test_successor_is_end_of_chain():
    """For any length of the chain. With a fork it is the newest end."""
    reader = store([(1, 0), (2, 1), (3, 1), (4, 2), (6, 5)], 8)
    newest = Successors(reader, None).newest(np.arange(8))

    assert {0: 4, 1: 4, 2: 4, 5: 6} == newest


def test_links_created_later_are_ignored():
    """A user's link counts from its creation on, a system link as soon as both memories exist."""
    late = 30 * DAY
    then = START + timedelta(days=10)
    nodes = np.arange(2)

    assert {} == Successors(store([(1, 0)], 2, at=late), then).newest(nodes)
    assert {0: 1} == Successors(store([(1, 0)], 2, at=late), None).newest(nodes)
    assert {0: 1} == Successors(store([(1, 0)], 2, at=late), then + timedelta(days=60)).newest(nodes)
    assert {0: 1} == Successors(store([(1, 0)], 2, at=late, created_by="system"), then).newest(nodes)
    assert {} == Successors(store([(1, 0)], 2), START + timedelta(hours=1)).newest(nodes)


@given(
    links=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] != pair[1]), max_size=12
    ),
    first=st.sets(st.integers(0, 7)),
    second=st.sets(st.integers(0, 7)),
    day=st.none() | st.integers(0, 9),
)
def test_successors_are_equal_for_split_queries(links, first, second, day):
    """Two calls, with or without given links, return the same as one call."""
    reader = store(links, 8)
    as_of = None if day is None else START + timedelta(days=day)
    at_once = Successors(reader, as_of).newest(np.array(sorted(first | second), np.int64))
    steps = Successors(reader, as_of)
    nodes = np.array(sorted(first), np.int64)
    found = steps.newest(nodes, links_as_of(reader.links(nodes, "both"), as_of))
    found |= steps.newest(np.array(sorted(second), np.int64))

    assert at_once == found
