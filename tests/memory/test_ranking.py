"""Scores of candidates: what speaks for each, what lends, and what stands behind what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.search import scores as ranking
from mama_structs.memory.search.scores import WEIGHTS, Clues, Scale

scores = hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(0, 50))


def clues(nearness=(), matches=None, **known):
    """Return what is known of candidates; what is not said is the same for all."""
    count = len(nearness)
    return Clues(
        nearness=np.array(nearness, np.float64),
        nearest=max([0.0, *nearness]),
        matches=np.zeros(count) if matches is None else np.array(matches),
        shares=np.array(known.get("shares", [0.0] * count)),
        lengths=np.array(known.get("lengths", [20.0] * count)),
        foreign=np.array(known.get("foreign", [False] * count)),
    )


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=8))
def test_evidence_keeps_the_order_of_meanings_and_is_never_negative(nearness):
    """Without words, what is closer in meaning has no less evidence."""
    found = ranking.evidence(clues(nearness))

    assert (found >= 0).all()
    assert (np.diff(found[np.argsort(nearness)]) >= 0).all()


def test_the_best_match_of_words_outweighs_a_fair_likeness():
    """A memory with the question's rare identifier beats one that is merely alike."""
    found = ranking.evidence(clues([0.0, 4.0], [1.0, 0.0], shares=[1.0, 0.0]))

    assert found[0] > found[1]


def test_a_very_short_text_says_less_and_long_ones_are_equal():
    """`Yes, true` is like much; from some length on a text is as good as a longer one."""
    short, middle, long, longer = ranking.evidence(clues([3.0] * 4, lengths=[2.0, 10.0, 30.0, 300.0]))

    assert short < middle < long == longer


def test_another_script_costs_a_memory_no_more_than_its_meaning_says():
    """What cannot share a word is given matches that go with its likeness, what could and does not is not."""
    foreign, same, far = ranking.evidence(clues([4.0, 4.0, 0.0], foreign=[True, False, True]))

    assert foreign > same
    assert far == ranking.evidence(clues([4.0, 4.0, 0.0]))[2]


@given(st.lists(st.floats(-1, 1), max_size=600), st.floats(-0.5, 0.9), st.floats(0.5, 200))
def test_a_scale_is_finite_and_keeps_the_order(cosines, midpoint, slope):
    """However few cosines there are, and however equal: a higher one is nearer."""
    scale = Scale.of(np.array(cosines, np.float32), Calibration(midpoint, slope))
    found = scale(np.array([-1.0, 0.0, 1.0]))

    assert np.isfinite(found).all()
    assert found[0] < found[1] < found[2]


def test_few_memories_say_little_of_what_is_usual():
    """In a store of three the embedder's own scale decides, in one of a thousand the store's."""
    usual = Scale.of(np.zeros(0, np.float32), Calibration(0.3, 10.0))
    few, many = (Scale.of(np.full(count, 0.6, np.float32), Calibration(0.3, 10.0)) for count in (3, 1_000))

    assert usual.mean < 0.3
    assert abs(few.mean - usual.mean) < 0.1 < abs(many.mean - usual.mean)
    assert many.mean == pytest.approx(0.6, abs=0.02)


@given(first=st.floats(0, 50), second=st.floats(0, 50))
def test_what_gains_by_standing_next_to_another_does_not_pass_it(first, second):
    """An answer rises beside its question, but what says more by itself stays in front."""
    own = np.array([first, second])
    found = ranking.beside(own, np.array([-1, 0]), np.array([1, -1]), np.zeros(2))

    assert (found >= own).all()
    assert first == second or np.argmax(own) == np.argmax(found)


def test_a_question_gives_way_to_what_follows_it():
    """What asks is like the question and answers nothing: it loses, and what comes after it gains the more for it."""
    own = np.array([5.0, 1.0, 5.0, 1.0])
    before, after = np.array([-1, 0, -1, 2]), np.array([1, -1, 3, -1])
    asking, answer, telling, reply = ranking.beside(own, before, after, np.array([1.0, 0.0, 0.0, 0.0]))

    assert asking < telling
    assert answer > reply


@given(first=st.floats(0, 50), second=st.floats(0, 50))
def test_a_decision_leads_the_memory_of_its_outcome(first, second):
    """A decision is at least as good as what tells of its outcome, which stands behind it."""
    outcome, decision = ranking.paired(np.array([first, second]), np.array([0]), np.array([1]))

    assert decision >= max(first, second)
    assert outcome < decision or decision < 1e-9


@given(values=scores, data=st.data())
def test_what_says_most_by_itself_stays_the_first(values, data):
    """However much others are lent, one of those that say most is in front, and nothing else changes."""
    lent = values + data.draw(hnp.arrays(np.float64, len(values), elements=st.floats(0, 50)))
    found = ranking.behind_the_first(lent, values)

    assert values[np.argmax(found)] == values.max() or found.max() == 0
    assert (found <= lent).all()
    (first,) = ranking.best(values, 1)
    assert found[first] == lent[first]


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
    """What lies in the period that was asked for passes what is somewhat better and does not."""
    favoured = ranking.in_period(np.array([3.0, 1.6]), np.array([False, True]), 1.0)

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
    found = ranking.relevance(ordered, 3.0, unknown)

    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found) >= 0).all()
    assert (found <= ranking.relevance(ordered, 3.0, 0.0)).all()


@given(values=scores, times=st.integers(1, 70))
def test_what_was_saved_often_is_as_relevant_as_what_was_saved_once(values, times):
    """Copies of one memory are no rivals of it, or of others."""
    said = np.arange(len(values))
    once = ranking.relevance(values, 3.0, 0.1, wordings=said)
    often = ranking.relevance(np.tile(values, times), 3.0, 0.1, wordings=np.tile(said, times))

    assert np.allclose(np.tile(once, times), often)


@given(values=scores, limit=st.integers(0, 20))
def test_best_gives_as_many_as_there_are(values, limit):
    """The best come first, each once."""
    found = ranking.best(values, limit)

    assert min(limit, len(values)) == len(set(found.tolist()))
    assert sorted(values.tolist(), reverse=True)[:limit] == values[found].tolist()


def test_of_equals_the_newer_stays_the_first():
    """What was lent to the older one does not put it in front."""
    found = ranking.behind_the_first(np.array([0.5, 0.4, 0.3]), np.array([0.3, 0.3, 0.1]))

    assert 1 == int(found.argmax())
