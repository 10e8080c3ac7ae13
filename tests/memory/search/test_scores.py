"""Similarities in a store, and scores that rules change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
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


def test_best_chunk_of_long_text_counts_less():
    """The best of many similarities is high by chance. A memory without vectors has no nearness."""
    baseline = CosineBaseline(mean=0.2, spread=0.1)
    found = ranking.best_of_pieces(np.array([0.5, 0.5, 0.1, 0.1], np.float32), np.array([1, 0, 3]), baseline)

    assert found[0] == pytest.approx(3.0)
    assert found[1] == 0.0
    assert found[2] < found[0]


@given(hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(-20, 20)))
def test_baseline_converts_back_to_cosines(nearness):
    baseline = CosineBaseline(mean=0.2, spread=0.1)

    np.testing.assert_allclose(nearness, baseline(baseline.cosines(nearness)), atol=1e-9)
