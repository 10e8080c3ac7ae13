"""The reference model of the memory engines implements the engine protocol."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import plain_link, plain_memory

from mama_structs.memory.engines.local.views.word_index import WordIndex
from mama_structs.memory.types.engine import EngineFilter
from mama_structs.memory.types.model import LinkType, MemoryType
from mama_structs.memory.types.text_analysis import query_terms, weighted_terms
from mama_structs.testing.plain_engine import PlainEngine, PlainReader


def unit(*numbers):
    vector = np.array(numbers, np.float32)
    return vector / np.linalg.norm(vector)


def three():
    """Return a reader of three memories. One memory has two chunks."""
    reader = PlainReader()
    reader.put(plain_memory("a", "shield the fleet", topic="defence", at=2), vectors=np.stack([unit(1, 0)]))
    reader.put(plain_memory("b", "raid the shield yard", at=1), vectors=np.stack([unit(0, 1), unit(1, 0.1)]))
    reader.put(
        plain_memory("c", "mine the ore", type=MemoryType.INSIGHT, mentions=["2-1"], at=1),
        vectors=np.stack([unit(0, 1)]),
    )
    return reader


def test_similarity_of_memory_is_that_of_its_nearest_chunk():
    """Memories are ordered by similarity."""
    found = three().nearest(unit(1, 0), 2)

    assert [0, 1] == found.nodes.tolist()
    assert [1.0, 0.995] == pytest.approx(found.scores.tolist(), abs=1e-3)
    assert 0.0 == three().similarities(unit(1, 0), np.array([2]))[0]


def test_equally_near_memories_are_ordered_newest_first():
    assert [2, 1] == three().nearest(unit(0, 1), 2).nodes.tolist()


def test_word_search_excludes_memories_without_shared_words():
    """Rare words have more weight than frequent ones."""
    found = three().words("shield raids", 10)

    assert [1, 0] == found.nodes.tolist()
    assert [] == three().words("nothing", 10).nodes.tolist()
    assert three().rarity("shield raid")["shield"] < max(three().rarity("raid").values())


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, [0, 2, 1]),
        (EngineFilter(topic="defence"), [0]),
        (EngineFilter(types=frozenset({MemoryType.INSIGHT})), [2]),
        (EngineFilter(mentions=frozenset({"2-1"})), [2]),
        (EngineFilter(since=plain_memory("x", at=2).created_at), [0]),
        (EngineFilter(until=plain_memory("x", at=2).created_at), [2, 1]),
    ],
)
def test_window_is_ordered_by_time(where, expected):
    """Memories of equal time are ordered by the time of saving."""
    assert expected == three().window(where).tolist()
    assert expected[::-1] == three().window(where, newest_first=False).tolist()
    assert len(expected) == three().count(where)


@pytest.mark.parametrize("newest_first", [True, False])
def test_window_continues_strictly_after_a_position(newest_first):
    """The position may be that of a memory, or before or after all memories of a millisecond."""
    reader = three()
    every = reader.window(newest_first=newest_first)
    times = reader.facts(every).created.tolist()
    first, last = (2**62, -1) if newest_first else (-1, 2**62)

    def later(created, node):
        return reader.window(newest_first=newest_first, after=(created, node)).tolist()

    for place, (created, node) in enumerate(zip(times, every.tolist(), strict=True)):
        assert every[place + 1 :].tolist() == later(created, node)
        assert every[times.index(created) :].tolist() == later(created, first)
        assert every[times.index(created) + times.count(created) :].tolist() == later(created, last)
    assert (
        every[1:2].tolist()
        == reader.window(newest_first=newest_first, after=(times[0], int(every[0])), limit=1).tolist()
    )


def test_delete_removes_links_of_the_memory():
    """The node number is not reused."""
    reader = three()
    reader.put_link(plain_link("a", "b"))
    reader.put_link(plain_link("c", "a"))
    reader.put_link(plain_link("c", "b"))

    assert 2 == reader.delete("a")
    assert [("c", "b")] == [(link.from_id, link.to_id) for link in reader.read_links(1)]
    assert 3 == reader.put(plain_memory("a"))


def test_link_with_same_id_is_replaced():
    """It leads to its new ends only."""
    reader = three()
    reader.put_link(plain_link("a", "b", link_id="l"))
    reader.put_link(plain_link("c", "b", "implements", link_id="l", type=LinkType.IMPLEMENTATION))

    assert 0 == len(reader.links(np.array([0])))
    assert 1 == len(reader.links(np.array([1, 2])))
    assert 0 == len(reader.links(np.array([1, 2]), "both", {LinkType.ASSOCIATION}))
    assert {"implements": 1} == reader.relationships()


def test_invalid_links_are_rejected():
    reader = three()

    with pytest.raises(KeyError):
        reader.put_link(plain_link("a", "z"))
    with pytest.raises(ValueError, match="where it begins"):
        reader.put_link(plain_link("a", "a"))
    with pytest.raises(ValueError, match="another memory"):
        reader.put(plain_memory("a"), links=[plain_link("b", "a")])
    with pytest.raises(KeyError):
        reader.delete("z")


async def test_failed_plan_is_rolled_back():
    """Includes the number of changes."""
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


async def test_new_version_keeps_vectors_and_links():
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
def test_word_scores_equal_those_of_word_index(texts, asked):
    """Both use the same form of BM25."""
    reader, index = PlainReader(), WordIndex()
    for number, words in enumerate(texts):
        text = " ".join(words)
        reader.put(plain_memory(f"m{number}", text))
        index.add(number, weighted_terms(text))
    query, nodes = query_terms(" ".join(asked)), np.arange(len(texts))

    assert index.rarity(query) == pytest.approx(reader.rarity(query))
    assert index.scores(query, nodes) == pytest.approx(reader.word_scores(query, nodes), rel=1e-5, abs=1e-6)


def test_pieces_are_in_the_order_of_nodes():
    reader = three()
    reader.put(plain_memory("d", "nothing to compare"))
    vectors, counts = reader.pieces(np.array([1, 3, 0]))

    assert [2, 0, 1] == counts.tolist()
    assert np.concatenate([reader.vectors(1), reader.vectors(0)]).tolist() == vectors.tolist()
    assert (0, [0]) == (len(reader.pieces(np.array([3]))[0]), reader.pieces(np.array([3]))[1].tolist())
