"""Signals that search plans read about each candidate."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import plain_memory

from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.engines.local.views.vector_index import VectorIndex
from mama_structs.memory.search.scores import WEIGHTS
from mama_structs.memory.search.search_plan import PreparedQuery
from mama_structs.testing.plain_engine import PlainReader

CALIBRATION = Calibration(0.3, 12.0)


def question(reader: PlainReader, words: str = "", seed: int = 0) -> PreparedQuery:
    """Return a prepared query with a random vector."""
    vector = np.random.default_rng(seed).standard_normal(6).astype(np.float32)
    vector /= np.linalg.norm(vector)
    return PreparedQuery.from_words(reader, words, vector, calibration=CALIBRATION, weights=WEIGHTS)


def test_prepared_query_reports_ratio_of_unknown_words():
    """With one known word of two, half of the rarity is unknown, but it counts little in a small store."""
    few = 2 / 12
    reader = PlainReader()
    reader.put(plain_memory("a", "backup"))
    reader.put(plain_memory("b", "lunch"))

    assert 0 == question(reader, "backup").unknown
    assert 0.5 < question(reader, "backup zebra").unknown / few < 1
    assert few == question(reader, "zebra").unknown
    assert 0 == question(reader, "").unknown


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
