"""Batched reads return the same results as single reads, and caches never return stale results."""

from __future__ import annotations

from itertools import count

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from memory_helpers import plain_link, plain_memory

from mama_structs.memory.engines.local.views.memory_table import MemoryRow, MemoryTable
from mama_structs.memory.engines.local.views.vector_index import VectorIndex
from mama_structs.memory.engines.local.views.word_index import WordIndex
from mama_structs.memory.types import engine
from mama_structs.memory.types.codec import Entry, decode_entry, decode_memory, encode_entry
from mama_structs.memory.types.text_analysis import query_terms
from mama_structs.testing.plain_engine import PlainReader

VECTORS = np.random.default_rng(7).standard_normal((41, 4)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
TERMS = [f"t{number}" for number in range(6)]
DOCUMENTS = st.dictionaries(st.sampled_from(TERMS), st.sampled_from([0.5, 1.0, 2.0]), max_size=4)
STEPS = st.lists(
    st.tuples(st.just("add"), st.integers(0, 12), DOCUMENTS)
    | st.tuples(st.just("remove"), st.integers(0, 12), st.none())
    | st.tuples(st.just("search"), st.none(), DOCUMENTS),
    max_size=30,
)


@given(STEPS, DOCUMENTS)
def test_word_scores_do_not_depend_on_earlier_searches(steps, query):
    """Indexes with equal changes give equal scores, although only one was searched between the changes."""
    searched, fresh = WordIndex(), WordIndex()
    nodes = np.array([*range(14), -1, 10**6])
    for what, node, terms in steps:
        if what == "search":
            searched.search(terms, 3)
            assert fresh.scores(terms, nodes).tolist() == searched.scores(terms, nodes).tolist()
        else:
            for index in (searched, fresh):
                index.add(node, terms) if what == "add" else index.remove(node)
    searched.search(query, 100)

    assert fresh.scores(query, nodes).tolist() == searched.scores(query, nodes).tolist()
    assert not searched.scores(query, nodes)[-2:].any()


@given(STEPS, st.lists(st.tuples(DOCUMENTS, st.lists(st.integers(-1, 14), unique=True)), max_size=4), st.integers(0, 5))
def test_queries_of_a_batch_find_what_single_queries_find(steps, asked, limit):
    """Scores of removed and of unknown memories are 0."""
    index = WordIndex()
    for what, node, terms in steps:
        if what == "add":
            index.add(node, terms)
        elif what == "remove":
            index.remove(node)
    queries, nodes = [query for query, _ in asked], [np.array(own, np.int64) for _, own in asked]
    for query, own, scores in zip(queries, nodes, index.scores_many(queries, nodes), strict=True):
        assert scores.tolist() == index.scores(query, own).tolist()
    for query, matches in zip(queries, index.search_many(queries, limit), strict=True):
        assert matches.nodes.tolist() == index.search(query, limit).nodes.tolist()
        assert matches.scores.tolist() == index.search(query, limit).scores.tolist()


@given(st.lists(st.integers(0, 3), max_size=12), st.data())
def test_pieces_returns_vectors_of_all_nodes_in_order(pieces, data):
    """The batched vectors of several nodes are the concatenated vectors of each node."""
    index = VectorIndex(4, exact_up_to=100)
    number = count()
    for node, several in enumerate(pieces):
        vectors = np.eye(4, dtype=np.float32)[[next(number) % 4 for _ in range(several)]]
        index.add(node, vectors)
    nodes = np.array(data.draw(st.lists(st.integers(-1, len(pieces) + 1), max_size=8)), np.int64)
    expected = [index.get(int(node)).tolist() for node in nodes]
    vectors, counts = index.pieces(nodes)

    assert [len(one) for one in expected] == counts.tolist()
    assert [row for one in expected for row in one] == vectors.tolist()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 3)), max_size=60), st.integers(1, 6))
def test_sample_depends_only_on_present_memories(steps, bits):
    """
    After additions, removals, restores and queries, the sample equals that of an index with only the remaining
    memories.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_SAMPLE_BITS", bits)
        index, kept, reader = VectorIndex(4, exact_up_to=100), {}, PlainReader()
        for is_asked, node, pieces in steps:
            if node in index:
                index.remove(node)
                del kept[node]
            elif pieces:
                kept[node] = VECTORS[[node, *range(pieces - 1)]]
                index.add(node, kept[node])
            if is_asked:
                index.sample()
        fresh = VectorIndex(4, exact_up_to=100)
        for number, node in enumerate(sorted(kept)):
            fresh.add(number, kept[node])
            reader.put(plain_memory(f"m{number}"), vectors=kept[node])

        assert fresh.sample().tolist() == index.sample().tolist() == reader.sample().tolist()
        assert index.sample() is index.sample()


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 1), (1_023, 1_023), (1_024, 512), (2_047, 1_023)])
def test_sample_contains_all_of_few_and_some_of_many(count, expected):
    """The sample has all of fewer than 1,024 memories, otherwise 512 to 1,023 of them at equal distances."""
    assert expected == len(range(count)[engine.sample_slice(count)])
    assert 512 <= len(range(7 * count + 512)[engine.sample_slice(7 * count + 512)]) < 1_024


@given(st.lists(st.sampled_from([None, "auth", "인증", ""]), max_size=8))
def test_topics_are_read_in_node_order(topics):
    """Topics have the order of the nodes, with None for a memory without one."""
    catalogue = MemoryTable()
    for number, topic in enumerate(topics):
        catalogue.add(
            MemoryRow(
                memory_id=f"m{number}", number=number, version=1, created_ms=0, type_index=0, topic=topic, mentions=()
            )
        )

    assert topics[::-1] == catalogue.topics(list(range(len(topics)))[::-1])


@given(st.lists(st.text("ab 가나", max_size=12), min_size=1, max_size=6), st.text("ab 가나", max_size=12))
def test_query_terms_give_same_results_as_text(texts, query):
    """A text and its terms yield equal matches, scores and rarities."""
    reader = PlainReader()
    for number, text in enumerate(texts):
        reader.put(plain_memory(f"m{number}", text), vectors=np.ones((1, 1), np.float32))
    terms, nodes = query_terms(query), reader.window()

    assert reader.words(query, 5).nodes.tolist() == reader.words(terms, 5).nodes.tolist()
    assert reader.word_scores(query, nodes).tolist() == reader.word_scores(terms, nodes).tolist()
    assert reader.rarity(query) == reader.rarity(terms)


def test_read_memory_equals_memory_of_entry():
    """The memory read without links equals that of the whole entry, and an unknown format is rejected."""
    memory = plain_memory("m1", "Sessions live 14 days.", topic="auth", mentions=["1-11"])
    row = encode_entry(Entry(memory, (plain_link("m1", "m2"),), 7))

    assert decode_entry(row).memory == decode_memory(row)
    later = msgspec.json.encode({**msgspec.json.decode(row), "format": 2})
    for broken in (later, row[:-2], b"{}", b"[]", row.replace(b'"content"', b'"contents"')):
        with pytest.raises(ValueError, match=r".") as refused:
            decode_memory(broken)
        assert "Sessions" not in str(refused.value)


def test_word_scores_change_after_rewrite_with_equal_frequencies():
    """A rewrite changes scores even if the frequency of every term stays the same."""
    index = WordIndex()
    index.add(1, {"t0": 1.0, "t1": 1.0})
    index.add(2, {"t0": 1.0})
    before = index.search({"t0": 1.0}, 2).scores
    index.add(1, {"t0": 7.0, "t1": 1.0})
    fresh = WordIndex()
    fresh.add(1, {"t0": 7.0, "t1": 1.0})
    fresh.add(2, {"t0": 1.0})
    nodes = np.array([1, 2])

    assert fresh.scores({"t0": 1.0}, nodes).tolist() == index.scores({"t0": 1.0}, nodes).tolist()
    assert sorted(before.tolist()) != sorted(index.scores({"t0": 1.0}, nodes).tolist())


@given(
    created=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    gone=st.sets(st.integers(0, 11)),
    apart=st.integers(0, 3),
)
@example(created=[0] * 40, gone=set(range(1, 39)), apart=0)
def test_temporal_neighbours_returns_neighbours_within_distance(created, gone, apart):
    """Neighbours are found regardless of the order of saving, gaps and equal times."""
    catalogue, reader = MemoryTable(), PlainReader()
    for number, second in enumerate(created):
        memory = plain_memory(f"m{number}", at=second)
        catalogue.add(MemoryRow.from_entry(number, Entry(memory, (), number)))
        reader.put(memory)
    for number in gone & set(range(len(created))):
        catalogue.remove(number)
        reader.delete(f"m{number}")
    nodes = np.array([number for number in range(len(created)) if number not in gone], np.int64)
    expected = reader.find_temporal_neighbours(nodes, apart * 1_000)
    found = catalogue.temporal_neighbours(nodes, apart * 1_000)

    assert [side.tolist() for side in expected] == [side.tolist() for side in found]
    assert all(
        after == node
        for node, there in zip(nodes, found[0], strict=True)
        if there >= 0
        for after in catalogue.temporal_neighbours(np.array([there]), apart * 1_000)[1]
    )


@given(st.lists(DOCUMENTS, max_size=6), st.sets(st.integers(0, 5)))
def test_lengths_equal_sum_of_term_weights(documents, gone):
    """The length of a text is the sum of its term weights, and 0 for a missing one."""
    index = WordIndex()
    for node, terms in enumerate(documents):
        index.add(node, terms)
    for node in gone & set(range(len(documents))):
        index.remove(node)
    expected = [0.0 if node in gone else sum(terms.values()) for node, terms in enumerate(documents)]
    found = index.lengths(np.array([*range(len(documents)), -1, 10**6]))

    assert found.tolist() == pytest.approx([*expected, 0.0, 0.0])
