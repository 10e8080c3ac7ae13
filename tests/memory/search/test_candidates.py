"""Signals that search plans read about each candidate."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import plain_memory

from mama_structs.memory.embedding.protocol import Calibration, QueryVectors, pair_cosines, unadjusted_query
from mama_structs.memory.engines.local.views.vector_index import VectorIndex
from mama_structs.memory.search.candidates import PreparedQuery, StoreSample, collect_candidates
from mama_structs.memory.search.search_request import SearchRequest
from mama_structs.memory.search.time_expressions import Period, find_period
from mama_structs.testing.plain_engine import PlainReader

CALIBRATION = Calibration(0.3, 12.0)
NOW = datetime(2026, 4, 1, tzinfo=UTC)


def make_request(text: str, vectors: QueryVectors, *, period: Period | None = None) -> SearchRequest:
    """Return a request for a search at a fixed time."""
    return SearchRequest(text=text, content=text, vectors=vectors, period=period, now=NOW, calibration=CALIBRATION)


def prepare_query(reader: PlainReader, words: str = "", seed: int = 0) -> PreparedQuery:
    """Return a prepared query with a random vector."""
    (vector,) = unit_rows(np.random.default_rng(seed), 1, 6)
    return PreparedQuery.read(reader, make_request(words, unadjusted_query(vector)))


def unit_rows(chance: np.random.Generator, count: int, dimensions: int) -> np.ndarray:
    """Return random unit vectors."""
    rows = chance.standard_normal((count, dimensions)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@given(seed=st.integers(0, 100), count=st.integers(1, 40))
def test_centred_similarity_is_cosine_less_half_the_mean_cosine_to_the_store(seed, count):
    """Texts that resemble all others lose most."""
    chance = np.random.default_rng(seed)
    sample, (vector,) = unit_rows(chance, count, 6), unit_rows(chance, 1, 6)
    centred = StoreSample.from_vectors(sample, 6).center(unadjusted_query(vector))
    expected = sample @ vector - 0.5 * (sample @ sample.mean(axis=0))

    np.testing.assert_allclose(expected, centred.similarities(sample), atol=1e-5)


@given(seed=st.integers(0, 100), is_first=st.booleans())
def test_centred_similarities_compare_groups_by_the_shared_dimensions(seed, is_first):
    """A text with a rest and one without are compared as two texts without."""
    chance = np.random.default_rng(seed)
    shared, rest = unit_rows(chance, 12, 4), unit_rows(chance, 12, 3)
    first = np.concatenate([np.sqrt(0.3) * shared, np.sqrt(0.7) * rest], axis=1).astype(np.float32)
    other = np.concatenate([shared, np.zeros_like(rest)], axis=1)
    sample = np.concatenate([first[:6], other[6:]])
    vector = first[0] if is_first else other[0]
    query = QueryVectors(plain=vector, same=vector, other=vector, has_rest=is_first, shared_dimensions=4)
    centred = StoreSample.from_vectors(sample, 4).center(query)
    means = 0.5 * np.array(
        [np.mean([pair_cosines(row[np.newaxis], one[np.newaxis], 4)[0] for one in sample]) for row in sample]
    )
    expected = [pair_cosines(row[np.newaxis], vector[np.newaxis], 4)[0] for row in sample] - means

    np.testing.assert_allclose(expected, centred.similarities(sample), atol=1e-4)


def test_prepared_query_sums_the_rarity_of_its_words():
    """A word that occurs nowhere counts, too, so that a memory with all known words is not certain to answer."""
    reader = PlainReader()
    reader.put(plain_memory("a", "backup"))
    reader.put(plain_memory("b", "lunch"))

    assert (
        prepare_query(reader, "backup zebra").rarity
        > prepare_query(reader, "zebra").rarity
        > prepare_query(reader, "").rarity
        == 0
    )


@given(pieces=st.lists(st.integers(0, 3), max_size=6), asked=st.lists(st.integers(0, 7), max_size=8))
def test_reader_pieces_follow_order_of_nodes(pieces, asked):
    """The vectors of several nodes have the requested order. An unknown node has none."""
    index, chance = VectorIndex(6, exact_up_to=100), np.random.default_rng(3)
    for number, count in enumerate(pieces):
        vectors = chance.standard_normal((count, 6)).astype(np.float32)
        index.add(number, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    found, counts = index.pieces(np.array(asked, np.int64))

    assert [len(index.get(node)) for node in asked] == counts.tolist()
    assert [row.tolist() for node in asked for row in index.get(node)] == found.tolist()


@pytest.mark.parametrize("is_first", [True, False])
def test_sample_contains_a_vector_of_each_group(is_first):
    """A group is searched even if all its vectors have the first component of another vector."""
    with_rest, without = [0.5, 0.1, 0.6], [0.5, 0.8, 0.0]
    rows = [with_rest, without] if is_first else [without, with_rest]
    sample = StoreSample.from_vectors(np.array(rows, np.float32), 2)
    vector = np.array(with_rest, np.float32)
    query = QueryVectors(plain=vector, same=vector, other=vector, has_rest=True, shared_dimensions=2)

    assert [1, 1] == [len(group) for group in sample.groups]
    assert 2 == len(sample.nearest(sample.center(query)))


def test_groups_have_nearly_the_same_mean_nearness():
    """Memories in the language of the query do not rank before others for their language alone."""
    chance, reader, count = np.random.default_rng(1), PlainReader(), 30
    rows = np.zeros((2 * count, 6), np.float32)
    rows[:count, 4:] = np.sqrt(0.7) * unit_rows(chance, count, 2)
    rows[:count, :4] = np.sqrt(0.3) * unit_rows(chance, count, 4)
    rows[count:, :4] = unit_rows(chance, count, 4) + 0.8
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for number, row in enumerate(rows):
        reader.put(plain_memory(f"m{number}"), vectors=row[np.newaxis])
    vector = np.concatenate([np.full(4, np.sqrt(0.3) / 2), [np.sqrt(0.7), 0]]).astype(np.float32)
    across = np.append(vector[:4] / np.linalg.norm(vector[:4]), [0, 0]).astype(np.float32)
    vectors = QueryVectors(plain=vector, same=vector, other=across, has_rest=True, shared_dimensions=4)
    query = PreparedQuery.read(reader, make_request("", vectors))
    nearness = query.collect(reader, reader.window()[::-1]).signals.nearness
    raw = np.concatenate([rows[:count] @ query.same[0], rows[count:] @ query.other[0]])
    difference = raw[count:].mean() - raw[:count].mean()
    remaining = query.baseline.spread * (nearness[count:].mean() - nearness[:count].mean())

    assert difference > 0.1
    assert remaining == pytest.approx(difference * 10 / (count + 10), abs=1e-4)


class Recorder:
    """Records the queries that a plan issues, as comparable values."""

    NAMES = frozenset({"nearest_many", "words", "window", "rarity", "sample", "find_temporal_neighbours"})

    def __init__(self, target: PlainReader | None, calls: list) -> None:
        self.target, self.calls = target, calls

    def __getattr__(self, name):
        def call(*args, **options):
            if name in self.NAMES:
                arguments = [one.tolist() if isinstance(one, np.ndarray) else one for one in args]
                self.calls.append(name if name == "find_temporal_neighbours" else (name, str(arguments), str(options)))
            return None if self.target is None else getattr(self.target, name)(*args, **options)

        return call


class ExpectingReader(Recorder):
    """A reader that records the queries that are prefetched."""

    def __init__(self, target: PlainReader) -> None:
        super().__init__(target, [])
        self.expected = []

    def expect(self, ask, **_options):
        ask(Recorder(None, self.expected))


@pytest.mark.parametrize("text", ["backup", "backup last week"])
def test_collecting_prefetches_its_queries(text):
    """An engine on a server answers the queries for candidates in few round trips."""
    reader = PlainReader()
    for number, row in enumerate(unit_rows(np.random.default_rng(2), 12, 6)):
        reader.put(plain_memory(f"m{number}", "backup"), vectors=row[np.newaxis])
    recorded = ExpectingReader(reader)
    vectors = unadjusted_query(unit_rows(np.random.default_rng(3), 1, 6)[0])
    request = make_request(text, vectors, period=find_period(text, NOW))

    assert 12 == len(collect_candidates(recorded, request).candidates.nodes)
    assert {"nearest_many", "words", "rarity", "sample"} <= {one[0] for one in recorded.calls}
    assert set(recorded.calls) <= set(recorded.expected)


def test_sample_keeps_different_vectors_with_equal_first_component():
    rows = np.eye(4, dtype=np.float32)[[1, 2, 1, 3]]

    assert [1, 2, 3] == StoreSample.from_vectors(rows, 4).groups[0].argmax(axis=1).tolist()


def test_long_memory_has_less_nearness_than_short_one_with_equal_similarity():
    """The best of many similarities is high by chance. A memory without vectors has no nearness."""
    reader, (vector,) = PlainReader(), unit_rows(np.random.default_rng(0), 1, 6)
    for number, pieces in enumerate([[vector], [vector, -vector, -vector], []]):
        reader.put(plain_memory(f"m{number}"), vectors=np.array(pieces, np.float32).reshape(-1, 6))
    query = PreparedQuery.read(reader, make_request("", unadjusted_query(vector)))
    signals = query.collect(reader, reader.window()[::-1]).signals

    assert signals.nearness[0] > signals.nearness[1] > signals.nearness[2] == 0
    assert signals.standings[0] == signals.standings[1] > signals.standings[2] == 0
