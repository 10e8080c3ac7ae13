"""Similarities in a store, and scores that rules change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.search import scores as ranking
from mama_structs.memory.search.scores import CosineBaseline

scores = hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(0, 50))


@given(st.lists(st.floats(-1, 1), max_size=600), st.floats(-0.5, 0.9), st.floats(0.5, 200))
def test_baseline_is_finite_and_monotonic(cosines, midpoint, slope):
    """Tested for few and for equal cosines."""
    scale = CosineBaseline.from_cosines(np.array(cosines, np.float32), Calibration(midpoint, slope))
    found = scale(np.array([-1.0, 0.0, 1.0]))

    assert np.isfinite(found).all()
    assert found[0] < found[1] < found[2]


def test_small_stores_use_baseline_of_embedder():
    """With three memories the embedder's baseline decides, with a thousand the store's."""
    usual = CosineBaseline.from_cosines(np.zeros(0, np.float32), Calibration(0.3, 10.0))
    few, many = (
        CosineBaseline.from_cosines(np.full(count, 0.6, np.float32), Calibration(0.3, 10.0)) for count in (3, 1_000)
    )

    assert usual.mean < 0.3
    assert abs(few.mean - usual.mean) < 0.1 < abs(many.mean - usual.mean)
    assert many.mean == pytest.approx(0.6, abs=0.02)


@given(first=st.floats(0, 50), second=st.floats(0, 50))
def test_decision_ranks_before_memory_of_its_outcome(first, second):
    """A decision scores at least as much as the memory of its outcome."""
    outcome, decision = ranking.pair_outcomes(np.array([first, second]), np.array([0]), np.array([1]))

    assert decision >= max(first, second)
    assert outcome < decision


def test_successor_takes_score_of_superseded_memory():
    """The superseded memory ranks after its successor."""
    led = ranking.promote(np.array([9.0, 1.0, 5.0]), np.array([0]), np.array([1]))

    assert 9.0 == led[1]
    assert led[1] > led[0] > led[2]


@given(values=scores, limit=st.integers(0, 20))
def test_best_returns_distinct_items_best_first(values, limit):
    """It returns all items if there are fewer than requested."""
    found = ranking.top_k(values, limit)

    assert min(limit, len(values)) == len(set(found.tolist()))
    assert sorted(values.tolist(), reverse=True)[:limit] == values[found].tolist()


@given(pieces=st.lists(st.lists(st.floats(-1, 1, width=32), max_size=3), min_size=1, max_size=6))
def test_combined_similarities_are_between_mean_and_maximum_of_chunks(pieces):
    """The best of many chunks is similar by chance. A memory without vectors has the similarity 0."""
    values = np.array([value for own in pieces for value in own], np.float32)
    assume(values.any())
    found = ranking.combine_pieces(np.stack([values, values], axis=1), np.array([len(own) for own in pieces]))

    for own, (several, best) in zip(pieces, found, strict=True):
        highest, mean = max(own, default=0.0), sum(own) / max(len(own), 1)
        assert best == pytest.approx(highest, abs=1e-6)
        highest -= ranking.PIECE_PENALTY * math.log(max(len(own), 1))
        assert several == pytest.approx((highest + mean) / 2, abs=1e-6)


def test_query_without_vector_is_equally_similar_to_texts_of_any_length():
    found = ranking.combine_pieces(np.zeros((4, 2), np.float32), np.array([1, 0, 3]))

    np.testing.assert_array_equal(np.zeros((3, 2)), found)


@given(hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(-20, 20)))
def test_baseline_converts_back_to_cosines(nearness):
    baseline = CosineBaseline(mean=0.2, spread=0.1)

    np.testing.assert_allclose(nearness, baseline(baseline.cosines(nearness)), atol=1e-9)
