"""Adjacency lists of links, compared with a plain list of links."""

from __future__ import annotations

from collections import Counter

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import plain_link

from mama_structs.memory.engines.local.views import adjacency
from mama_structs.memory.engines.local.views import memory_table as catalogue
from mama_structs.memory.engines.local.views.adjacency import Adjacency
from mama_structs.memory.types.model import CREATORS, LinkType, to_milliseconds

WORDS = ["refers", "인증", "x" * 300, ""]
TYPES = tuple(LinkType)
NODES = 7

nodes = st.integers(0, NODES)
added = st.tuples(
    st.just("add"),
    nodes,
    nodes,
    st.builds(
        plain_link,
        st.just("a"),
        st.just("b"),
        st.sampled_from(WORDS),
        type=st.sampled_from(TYPES),
        created_by=st.sampled_from(CREATORS),
        confidence=st.floats(0, 1, width=32),
        at=st.integers(0, 10**6),
    ),
)
one_step = (
    added
    | added
    | added
    | st.tuples(st.just("remove"), st.integers(0, 60))
    | st.tuples(st.just("remove_node"), nodes)
    | st.tuples(st.just("reload"))
)
# Hypothesis draws mostly short lists unless they have a minimum size.
steps = st.lists(one_step, max_size=8) | st.lists(one_step, min_size=15, max_size=40)


@pytest.fixture(scope="module", params=[(2, 2), (1024, 64)], ids=["merged", "not merged"])
def merging(request):
    """Merge changes into the arrays after every few changes, or never."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "MIN_ROWS_TO_MERGE", request.param[0])
        patch.setattr(catalogue, "UNMERGED_ROWS_DIVISOR", request.param[1])
        patch.setattr(adjacency, "MIN_DEAD_LINKS_TO_COMPACT", request.param[0])
        yield


def rows_of(table):
    return sorted(zip(*(column.tolist() for column in attrs.astuple(table, recurse=False)), strict=True))


def row_of(source, target, link):
    kind, creator = TYPES.index(link.link_type), CREATORS.index(link.created_by)
    return (source, target, kind, creator, link.confidence, to_milliseconds(link.created_at))


def played(steps):
    """Apply the steps to adjacency lists and to a plain dict of links, and return both."""
    links, model, made = Adjacency(), {}, 0
    for kind, *values in steps:
        if kind == "add":
            source, target, link = values
            link = attrs.evolve(link, id=f"link {made}")
            links.add(source, target, link)
            model[link.id] = (source, target, link)
            made += 1
        elif kind == "remove":
            link_id = f"link {values[0]}"
            assert (link_id in model) == links.remove(link_id)
            model.pop(link_id, None)
        elif kind == "remove_node":
            gone = [link_id for link_id, (source, target, _) in model.items() if values[0] in (source, target)]
            assert len(gone) == links.remove_node(values[0])
            for link_id in gone:
                del model[link_id]
        else:
            links = Adjacency.from_state(*links.state())
    return links, model


@given(
    steps=steps,
    asked=st.lists(st.integers(-1, NODES + 3), max_size=6),
    direction=st.sampled_from(["out", "in", "both"]),
    types=st.none() | st.sets(st.sampled_from(TYPES)),
    words=st.none() | st.sets(st.sampled_from([*WORDS, "unknown"])),
)
def test_links_are_found_from_both_ends_after_changes_and_reloads(merging, steps, asked, direction, *, types, words):
    """After any changes and reloads, each link that starts or ends at the queried nodes is returned once."""
    links, model = played(steps)
    expected = [
        row_of(source, target, link)
        for source, target, link in model.values()
        if ((direction != "in" and source in asked) or (direction != "out" and target in asked))
        and (types is None or link.link_type in types)
        and (words is None or link.metadata.original_relationship in words)
    ]

    assert sorted(expected) == rows_of(links.links(np.array(asked, np.int64), direction, types, words=words))
    assert len(model) == len(links)


@given(steps=steps, creators=st.sets(st.sampled_from(CREATORS)))
def test_counts_words_and_ids_ignore_removed_links(merging, steps, creators):
    """Incoming links per creator, relationship words and the link of each id reflect only existing links."""
    links, model = played(steps)

    for node in range(NODES + 2):
        wanted = [link for _, target, link in model.values() if target == node and link.created_by in creators]
        found = links.links(np.array([node]), "in").creators.tolist()
        assert len(wanted) == sum(CREATORS[creator] in creators for creator in found)
    assert Counter(link.metadata.original_relationship for *_, link in model.values()) == links.relationships()
    for number in range(60):
        expected = [model[f"link {number}"][:2]] if f"link {number}" in model else []
        assert expected == links.find(f"link {number}")


@given(steps=steps)
def test_state_contains_existing_links_in_arrival_order(merging, steps):
    """Equal links yield equal states, without traces of removed links."""
    links, model = played(steps)
    meta, arrays = links.state()
    again_meta, again = Adjacency.from_state(meta, arrays).state()

    assert [source for source, *_ in model.values()] == arrays["source"].tolist()
    assert meta == again_meta
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)


def test_candidates_contain_all_ids_with_equal_hash(monkeypatch):
    """If two ids have equal hashes, both links are candidates, and their ends decide which one is removed."""
    monkeypatch.setattr(adjacency, "hash_link_id", lambda _link_id: 2**64 - 1)
    links = Adjacency()
    for source, target in ((1, 2), (3, 4), (5, 6)):
        links.add(source, target, plain_link("a", "b", link_id=str(source)))

    assert [(1, 2), (3, 4), (5, 6)] == links.find("3")
    assert 1 == links.remove("3", source=3, target=4)
    assert [(1, 2), (5, 6)] == links.find("3")
    assert 0 == links.remove("3", source=1, target=6)
    assert 1 == links.remove("3")
    assert 1 == len(links)


def test_links_of_first_and_last_node_are_found(merging):
    """Array bounds do not hide the links of the lowest and the highest node."""
    links = Adjacency()
    links.add(0, 1000, plain_link("a", "b", link_id="1"))
    links.add(1000, 0, plain_link("a", "b", link_id="2"))

    for node in (0, 1000):
        assert 2 == len(links.links(np.array([node]), "both"))
        assert 1 == len(links.links(np.array([node]), "out"))


def test_queries_on_empty_store_return_empty_results():
    """Queries to an empty store raise no error."""
    links = Adjacency()

    assert 0 == len(links.links(np.array([], np.int64)))
    assert 0 == len(links.links(np.array([0, 5])))
    assert ([], {}, 0) == (links.find("x"), links.relationships(), links.remove_node(3))
    assert 0 == len(Adjacency.from_state(*links.state()))


def test_merge_removes_deleted_links_and_frees_space():
    """Thousands of mostly removed links are found exactly, and take only the space of those that remain."""
    links, generator = Adjacency(), np.random.default_rng(5)
    ends = generator.integers(0, 500, (6000, 2)).tolist()
    for number, (source, target) in enumerate(ends):
        links.add(source, target, plain_link("a", "b", link_id=str(number)))
    for number in range(5000):
        links.remove(str(number))
    left = ends[5000:]
    asked = list(range(0, 500, 3))

    assert 1000 == len(links)
    assert len(links._rows) < 3000
    expected = sorted([pair[0], pair[1]] for pair in left if set(pair) & set(asked))
    assert expected == sorted([row[0], row[1]] for row in rows_of(links.links(np.array(asked))))
    assert [tuple(ends[5500])] == links.find("5500")


@pytest.mark.parametrize(
    "damage",
    [
        lambda arrays: arrays | {"source": arrays["source"][:1]},
        lambda arrays: arrays | {"target": arrays["target"] - 9},
        lambda arrays: arrays | {"word": arrays["word"] + 1},
        lambda arrays: arrays | {"type": arrays["type"] + 4},
        lambda arrays: arrays | {"creator": arrays["creator"] + 3},
        lambda arrays: arrays | {"words_ends": arrays["words_ends"] + 1},
        lambda arrays: arrays | {"words_text": arrays["words_text"][:-1]},
    ],
)
def test_load_rejects_state_with_inconsistent_parts(damage):
    """Inconsistencies that could make a later query fail or return wrong links are detected when loading."""
    links = Adjacency()
    links.add(1, 2, plain_link("a", "b", link_id="1"))
    links.add(2, 3, plain_link("a", "b", link_id="2"))
    meta, arrays = links.state()

    with pytest.raises(ValueError, match=r"fit|end"):
        Adjacency.from_state(meta, damage(arrays))
