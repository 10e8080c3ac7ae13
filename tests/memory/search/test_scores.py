"""Scores of candidates: combination of signals, borrowed scores and reordering."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.search import scores as ranking
from mama_structs.memory.search.scores import WEIGHTS, CandidateSignals, CosineBaseline

scores = hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(0, 50))


def clues(nearness=(), matches=None, **known):
    """Return the signals of candidates. A signal that is not passed is equal for all of them."""
    count = len(nearness)
    return CandidateSignals(
        nearness=np.array(nearness, np.float64),
        nearest=max([0.0, *nearness]),
        matches=np.zeros(count) if matches is None else np.array(matches),
        shares=np.array(known.get("shares", [0.0] * count)),
        lengths=np.array(known.get("lengths", [20.0] * count)),
        foreign=np.array(known.get("foreign", [False] * count)),
    )


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=8))
def test_evidence_keeps_similarity_order_and_is_not_negative(nearness):
    """Without words, a higher similarity never gives less evidence."""
    found = ranking.candidate_evidence(clues(nearness))

    assert (found >= 0).all()
    assert (np.diff(found[np.argsort(nearness)]) >= 0).all()


def test_best_word_match_outranks_moderate_similarity():
    """A memory with the rare identifier of the query outranks one that is only similar."""
    found = ranking.candidate_evidence(clues([0.0, 4.0], [1.0, 0.0], shares=[1.0, 0.0]))

    assert found[0] > found[1]


def test_very_short_texts_have_less_evidence():
    """`Yes, true` is similar to many texts. Above a certain length, longer texts gain nothing."""
    short, middle, long, longer = ranking.candidate_evidence(clues([3.0] * 4, lengths=[2.0, 10.0, 30.0, 300.0]))

    assert short < middle < long == longer


def test_other_script_gets_word_score_from_similarity():
    """
    A memory that cannot share words gets estimated matches.

    One that could but does not gets none.
    """
    foreign, same, far = ranking.candidate_evidence(clues([4.0, 4.0, 0.0], foreign=[True, False, True]))

    assert foreign > same
    assert far == ranking.candidate_evidence(clues([4.0, 4.0, 0.0]))[2]


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
def test_temporal_neighbour_does_not_outrank_its_lender(first, second):
    """An answer gains from the question before it, but a better match stays first."""
    own = np.array([first, second])
    found = ranking.add_neighbour_scores(own, np.array([-1, 0]), np.array([1, -1]), np.zeros(2))

    assert (found >= own).all()
    assert first == second or np.argmax(own) == np.argmax(found)


def test_question_loses_score_to_following_answer():
    """A stored question answers nothing, so its score moves to the following memory."""
    own = np.array([5.0, 1.0, 5.0, 1.0])
    before, after = np.array([-1, 0, -1, 2]), np.array([1, -1, 3, -1])
    asking, answer, telling, reply = ranking.add_neighbour_scores(own, before, after, np.array([1.0, 0.0, 0.0, 0.0]))

    assert asking < telling
    assert answer > reply


@given(first=st.floats(0, 50), second=st.floats(0, 50))
def test_decision_ranks_before_memory_of_its_outcome(first, second):
    """A decision scores at least as much as the memory of its outcome."""
    outcome, decision = ranking.pair_outcomes(np.array([first, second]), np.array([0]), np.array([1]))

    assert decision >= max(first, second)
    assert outcome < decision or decision < 1e-9


@given(values=scores, data=st.data())
def test_best_direct_match_stays_first(values, data):
    """Whatever others borrow, one of the best direct matches leads, and the rest is unchanged."""
    lent = values + data.draw(hnp.arrays(np.float64, len(values), elements=st.floats(0, 50)))
    found = ranking.cap_below_best(lent, values)

    assert values[np.argmax(found)] == values.max() or found.max() == 0
    assert (found <= lent).all()
    (first,) = ranking.top_k(values, 1)
    assert found[first] == lent[first]


@given(values=scores, data=st.data())
def test_borrowed_score_stays_below_best_score(values, data):
    """Only linked memories lend."""
    lenders = ranking.top_k(values, 3)
    ties = data.draw(hnp.arrays(np.float64, (len(lenders), len(values)), elements=st.floats(0, 1)))
    gains, givers = ranking.borrowed_scores(values, lenders, ties)

    assert (gains <= values.max() + 1e-9).all()
    assert (gains >= 0).all()
    assert set(givers.tolist()) <= {-1, *lenders.tolist()}
    assert (gains[givers == -1] == 0).all()


def test_borrowed_scores_are_not_summed():
    """A neighbour of two good memories gains only from the better one."""
    values = np.array([10.0, 10.0, 0.0])
    gains, _ = ranking.borrowed_scores(values, np.array([0, 1]), np.array([[0, 0, 0.5], [0, 0, 0.5]]))

    assert pytest.approx(5.0) == gains[2]


def test_period_without_memories_changes_no_score():
    values = np.array([3.0, 1.0])

    assert [3.0, 1.0] == ranking.favour_period(values, np.array([False, False]), 1.0).tolist()


def test_certain_period_promotes_memories_inside():
    """Memories in the requested period outrank slightly better ones outside of it."""
    favoured = ranking.favour_period(np.array([3.0, 1.6]), np.array([False, True]), 1.0)

    assert favoured[1] > favoured[0]


def test_vague_period_keeps_clear_answer_first():
    """`Recently` is a preference, not a condition."""
    favoured = ranking.favour_period(np.array([9.0, 1.0]), np.array([False, True]), 0.3)

    assert favoured[0] > favoured[1]


@given(days=st.floats(0, 4000), more=st.floats(0, 4000))
def test_recency_bonus_decreases_with_age(days, more):
    """It never exceeds its maximum."""
    day = 86_400_000
    new, old = ranking.recency_bonus(np.array([-days * day, -(days + more) * day]).astype(np.int64), 0)

    assert WEIGHTS.recency >= new >= old >= 0


def test_successor_takes_score_of_superseded_memory():
    """The superseded memory ranks after its successor."""
    led = ranking.promote(np.array([9.0, 1.0, 5.0]), np.array([0]), np.array([1]))

    assert 9.0 == led[1]
    assert led[1] > led[0] > led[2]


@given(values=scores, unknown=st.floats(0, 1))
def test_relevance_is_between_0_and_1_and_increases_with_score(values, unknown):
    """It decreases with unknown words."""
    ordered = np.sort(values)
    found = ranking.answer_probability(ordered, 3.0, unknown)

    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found) >= 0).all()
    assert (found <= ranking.answer_probability(ordered, 3.0, 0.0)).all()


@given(values=scores, times=st.integers(1, 70))
def test_relevance_is_independent_of_copies(values, times):
    """Copies of a memory do not lower its relevance or that of others."""
    said = np.arange(len(values))
    once = ranking.answer_probability(values, 3.0, 0.1, fingerprints=said)
    often = ranking.answer_probability(np.tile(values, times), 3.0, 0.1, fingerprints=np.tile(said, times))

    assert np.allclose(np.tile(once, times), often)


@given(values=scores, limit=st.integers(0, 20))
def test_best_returns_distinct_items_best_first(values, limit):
    """It returns all items if there are fewer than requested."""
    found = ranking.top_k(values, limit)

    assert min(limit, len(values)) == len(set(found.tolist()))
    assert sorted(values.tolist(), reverse=True)[:limit] == values[found].tolist()


def test_newer_of_equal_memories_stays_first():
    """A borrowed score does not move the older one before it."""
    found = ranking.cap_below_best(np.array([0.5, 0.4, 0.3]), np.array([0.3, 0.3, 0.1]))

    assert 1 == int(found.argmax())
