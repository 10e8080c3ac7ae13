"""The model that engines are compared with keeps the protocol's promises itself."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import plain_link, plain_memory

from mama_structs.memory.engines.local.views.word_index import WordIndex
from mama_structs.memory.types.engine import Filter
from mama_structs.memory.types.model import LinkType, MemoryType
from mama_structs.memory.types.text_analysis import query_terms, weighted_terms
from mama_structs.testing.plain_engine import PlainEngine, PlainReader


def unit(*numbers):
    vector = np.array(numbers, np.float32)
    return vector / np.linalg.norm(vector)


def three():
    """Return a reader with three memories, of which one has two pieces."""
    reader = PlainReader()
    reader.put(plain_memory("a", "shield the fleet", topic="defence", at=2), vectors=np.stack([unit(1, 0)]))
    reader.put(plain_memory("b", "raid the shield yard", at=1), vectors=np.stack([unit(0, 1), unit(1, 0.1)]))
    reader.put(
        plain_memory("c", "mine the ore", type=MemoryType.INSIGHT, mentions=["2-1"], at=1),
        vectors=np.stack([unit(0, 1)]),
    )
    return reader


def test_a_memory_is_as_near_as_its_best_piece():
    """The cosine of a memory is that of its nearest piece, and the best memory comes first."""
    found = three().nearest(unit(1, 0), 2)

    assert [0, 1] == found.nodes.tolist()
    assert [1.0, 0.995] == pytest.approx(found.scores.tolist(), abs=1e-3)
    assert 0.0 == three().similarities(unit(1, 0), np.array([2]))[0]


def test_equals_are_given_newest_first():
    """Where two memories are equally near, the one saved last comes first."""
    assert [2, 1] == three().nearest(unit(0, 1), 2).nodes.tolist()


def test_words_leave_out_what_shares_none():
    """A rare word counts more than a frequent one, and what has none of the words is not found."""
    found = three().words("shield raids", 10)

    assert [1, 0] == found.nodes.tolist()
    assert [] == three().words("nothing", 10).nodes.tolist()
    assert three().rarity("shield raid")["shield"] < max(three().rarity("raid").values())


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, [0, 2, 1]),
        (Filter(topic="defence"), [0]),
        (Filter(types=frozenset({MemoryType.INSIGHT})), [2]),
        (Filter(mentions=frozenset({"2-1"})), [2]),
        (Filter(since=plain_memory("x", at=2).created_at), [0]),
        (Filter(until=plain_memory("x", at=2).created_at), [2, 1]),
    ],
)
def test_windows_go_back_in_time(where, expected):
    """The newest is first, of equal times the one saved last."""
    assert expected == three().window(where).tolist()
    assert expected[::-1] == three().window(where, newest_first=False).tolist()
    assert len(expected) == three().count(where)


def test_a_deleted_memory_takes_its_links_along():
    """No link leads to a memory that is gone, the other ends are touched, and its node is not given again."""
    reader = three()
    reader.put_link(plain_link("a", "b"))
    reader.put_link(plain_link("c", "a"))
    reader.put_link(plain_link("c", "b"))
    before = reader.change

    assert 2 == reader.delete("a")
    assert [("c", "b")] == [(link.from_id, link.to_id) for link in reader.read_links(1)]
    assert {0, 1, 2} == reader.touched_since(before)
    assert 3 == reader.put(plain_memory("a"))
    assert frozenset() == reader.touched_since(reader.change)


def test_a_link_is_replaced_by_its_id():
    """Storing a link again moves it, and touches the ends that it had."""
    reader = three()
    reader.put_link(plain_link("a", "b", link_id="l"))
    before = reader.change
    reader.put_link(plain_link("c", "b", "implements", link_id="l", type=LinkType.IMPLEMENTATION))

    assert 0 == len(reader.links(np.array([0])))
    assert 1 == len(reader.links(np.array([1, 2])))
    assert 0 == len(reader.links(np.array([1, 2]), "both", {LinkType.ASSOCIATION}))
    assert {"implements": 1} == reader.relationships()
    assert {0, 1, 2} == reader.touched_since(before)


def test_unknown_ends_and_loops_are_refused():
    """A link needs two memories."""
    reader = three()

    with pytest.raises(KeyError):
        reader.put_link(plain_link("a", "z"))
    with pytest.raises(ValueError, match="where it begins"):
        reader.put_link(plain_link("a", "a"))
    with pytest.raises(ValueError, match="another memory"):
        reader.put(plain_memory("a"), links=[plain_link("b", "a")])
    with pytest.raises(KeyError):
        reader.delete("z")


async def test_a_plan_that_fails_leaves_nothing():
    """What a failed plan wrote is undone, its number of changes too."""
    backend = PlainEngine(memories=three())
    before = backend.memories.change

    def failing(writer):
        writer.put(plain_memory("d"), links=[plain_link("d", "a")])
        writer.delete("b")
        raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        await backend.write(failing)

    assert before == await backend.read(lambda reader: reader.change)
    assert ["a", "b", "c"] == await backend.read(lambda reader: [one.memory.id for one in reader.scan()])


async def test_a_new_version_keeps_vectors_and_links():
    """Saving a memory again without vectors keeps those it has, and its links."""
    backend = PlainEngine(memories=three())
    node = await backend.write(lambda writer: writer.put(plain_memory("b", "changed"), links=[plain_link("b", "a")]))
    again = await backend.write(lambda writer: writer.put(attrs.evolve(writer.get([node])[0], topic="t")))
    (one,) = await backend.read(lambda reader: reader.scan(after=0, limit=1))

    assert 1 == node == again
    assert ("changed", "t", 2, 1) == (one.memory.content, one.memory.topic, len(one.vectors), len(one.links))


@given(
    texts=st.lists(st.lists(st.sampled_from(["raid", "shield yard", "백업을", "m_1-2"]), max_size=6), max_size=6),
    asked=st.lists(st.sampled_from(["raid", "the shield", "백업", "m_1-2", "zebra"]), max_size=3),
)
def test_words_count_as_much_as_in_the_index(texts, asked):
    """BM25 has the form that the engine's index has."""
    reader, index = PlainReader(), WordIndex()
    for number, words in enumerate(texts):
        text = " ".join(words)
        reader.put(plain_memory(f"m{number}", text))
        index.add(number, weighted_terms(text))
    query, nodes = query_terms(" ".join(asked)), np.arange(len(texts))

    assert index.rarity(query) == pytest.approx(reader.rarity(query))
    assert index.scores(query, nodes) == pytest.approx(reader.word_scores(query, nodes), rel=1e-5, abs=1e-6)


def test_pieces_come_node_by_node():
    """The vectors of several memories come in the order asked for, with how many each has."""
    reader = three()
    reader.put(plain_memory("d", "nothing to compare"))
    vectors, counts = reader.pieces(np.array([1, 3, 0]))

    assert [2, 0, 1] == counts.tolist()
    assert np.concatenate([reader.vectors(1), reader.vectors(0)]).tolist() == vectors.tolist()
    assert (0, [0]) == (len(reader.pieces(np.array([3]))[0]), reader.pieces(np.array([3]))[1].tolist())
