"""Scores of candidates: what speaks for each, what lends, and what stands behind what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mama_structs.memory import ranking
from mama_structs.memory.ranking import WEIGHTS

scores = hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(0, 50))


@given(meanings=hnp.arrays(np.float64, 6, elements=st.floats(-20, 20)))
def test_evidence_keeps_the_order_of_meanings_and_is_never_negative(meanings):
    """Without words, what is closer in meaning has no less evidence."""
    found = ranking.evidence(meanings, np.zeros(6))

    assert (found >= 0).all()
    assert (np.diff(found[np.argsort(meanings)]) >= 0).all()


def test_all_words_outweigh_a_fair_likeness():
    """A memory with the question's rare identifier beats one that is merely alike."""
    found = ranking.evidence(np.array([-2.0, 3.0]), np.array([1.0, 0.0]))

    assert found[0] > found[1]


@pytest.mark.parametrize("similarity", [0.0, 1.0, float("nan")])
def test_log_odds_are_finite_at_the_ends(similarity):
    """Similarities of 0 and 1, and what is no number, give no infinity."""
    assert np.isfinite(ranking.log_odds(np.array([similarity]))).all()


@given(first=st.floats(0, 50), second=st.floats(0, 50))
def test_a_decision_leads_the_memory_of_its_outcome(first, second):
    """A decision is at least as good as what tells of its outcome, which stands behind it."""
    outcome, decision = ranking.paired(np.array([first, second]), np.array([0]), np.array([1]))

    assert decision >= max(first, second)
    assert outcome <= WEIGHTS.outcome * decision


@given(values=scores, data=st.data())
def test_nobody_gains_more_than_the_best_has(values, data):
    """What is lent stays below the best score, and comes from a lender that is tied."""
    lenders = ranking.best(values, 3)
    ties = data.draw(hnp.arrays(np.float64, (len(lenders), len(values)), elements=st.floats(0, 1)))
    gains, givers = ranking.lent(values, lenders, ties)

    assert (gains <= values.max() + 1e-9).all()
    assert (gains >= 0).all()
    assert set(givers.tolist()) <= {-1, *lenders.tolist()}
    assert (gains[givers == -1] == 0).all()


def test_many_weak_ties_do_not_add_up():
    """A neighbour of two good memories gains from the better one only."""
    values = np.array([10.0, 10.0, 0.0])
    gains, _ = ranking.lent(values, np.array([0, 1]), np.array([[0, 0, 0.5], [0, 0, 0.5]]))

    assert pytest.approx(5.0) == gains[2]


def test_an_empty_period_changes_nothing():
    """Where nothing was written in the period, scores stay."""
    values = np.array([3.0, 1.0])

    assert [3.0, 1.0] == ranking.in_period(values, np.array([False, False]), 1.0).tolist()


def test_a_sure_period_lifts_what_lies_in_it():
    """What lies in the period that was asked for passes what does not."""
    favoured = ranking.in_period(np.array([3.0, 1.0]), np.array([False, True]), 1.0)

    assert favoured[1] > favoured[0]


def test_a_vague_period_leaves_a_clear_answer_in_front():
    """`Recently` is a wish and no condition."""
    favoured = ranking.in_period(np.array([9.0, 1.0]), np.array([False, True]), 0.3)

    assert favoured[0] > favoured[1]


@given(days=st.floats(0, 4000), more=st.floats(0, 4000))
def test_the_newer_gains_no_less(days, more):
    """Recency falls with age and never passes its share."""
    day = 86_400_000
    new, old = ranking.recency(np.array([-days * day, -(days + more) * day]).astype(np.int64), 0)

    assert WEIGHTS.recency >= new >= old >= 0


def test_what_holds_is_as_good_as_what_it_replaced():
    """The successor takes the score of what it superseded, which falls behind."""
    led = ranking.led(np.array([9.0, 1.0, 5.0]), np.array([0]), np.array([1]))

    assert 9.0 == led[1]
    assert led[1] > led[0] > led[2]


@given(values=scores, unknown=st.floats(0, 1))
def test_relevance_is_a_share_that_rises_with_evidence(values, unknown):
    """Relevance lies between 0 and 1, rises with the score, and falls with unknown words."""
    ordered = np.sort(values)
    found = ranking.relevance(ordered, unknown)

    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found) >= 0).all()
    assert (found <= ranking.relevance(ordered, 0.0)).all()


@given(values=scores, limit=st.integers(0, 20))
def test_best_gives_as_many_as_there_are(values, limit):
    """The best come first, each once."""
    found = ranking.best(values, limit)

    assert min(limit, len(values)) == len(set(found.tolist()))
    assert sorted(values.tolist(), reverse=True)[:limit] == values[found].tolist()
