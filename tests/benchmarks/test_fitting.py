"""Fit of the ranking and the relevance of search (benchmarks/_fitting.py), on generated candidates."""

import importlib
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

FOLDER = Path(__file__).parents[2] / "benchmarks"
TRUE_WEIGHTS = np.array([2.0, -1.0, 0.0])


@pytest.fixture(scope="module")
def fitting():
    """The module with the regressions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("_fitting")
        for name in {"_fitting", "_retrieval"} & set(sys.modules):
            del sys.modules[name]


def candidates(fitting, seed, questions=150, scale=1.0):
    """Return candidates. The answer of each question is drawn by the softmax of the true scores."""
    chance = np.random.default_rng(seed)
    lists = []
    for _ in range(questions):
        features = chance.normal(size=(20, 3))
        shares = np.exp(features @ TRUE_WEIGHTS)
        answer = chance.choice(20, p=shares / shares.sum())
        question = fitting.Question("", (f"m{answer}",), "words", "en", datetime(2026, 1, 1, tzinfo=UTC))
        lists.append(fitting.Candidates(question, [f"m{at}" for at in range(20)], features * scale))
    return lists


def test_fit_ranking_recovers_the_weights_of_the_generator(fitting):
    sets = {"first": candidates(fitting, 1, 600), "second": candidates(fitting, 2, 600)}

    np.testing.assert_allclose(TRUE_WEIGHTS, fitting.fit_ranking(sets, penalty=0.0), atol=0.25)


def test_fit_ranking_does_not_depend_on_units(fitting):
    """The same candidates with another unit of each feature give the same ranking, also with a penalty."""
    scale = np.array([0.001, 5.0, 300.0])
    plain = fitting.fit_ranking({"one": candidates(fitting, 3)}, penalty=0.1)
    scaled = fitting.fit_ranking({"one": candidates(fitting, 3, scale=scale)}, penalty=0.1)

    np.testing.assert_allclose(plain, scaled * scale, rtol=1e-6)


def test_fit_ranking_weighs_sets_equally(fitting):
    """Repeating the questions of one set changes nothing."""
    first, second = candidates(fitting, 4, 30), candidates(fitting, 5, 200)

    np.testing.assert_allclose(
        fitting.fit_ranking({"first": first, "second": second}),
        fitting.fit_ranking({"first": first * 5, "second": second}),
        rtol=1e-6,
    )


def test_fit_ranking_ignores_constant_features_and_unanswerable_questions(fitting):
    some = candidates(fitting, 6, 50)
    none = [fitting.attrs.evolve(one, question=fitting.attrs.evolve(one.question, relevant=())) for one in some]
    constant = [
        fitting.attrs.evolve(one, features=np.column_stack([one.features, np.full(20, 7.0)])) for one in some + none
    ]

    found = fitting.fit_ranking({"one": constant})

    assert 0.0 == found[3]
    np.testing.assert_allclose(fitting.fit_ranking({"one": some}), found[:3], rtol=1e-6)


def test_fit_ranking_shares_the_target_between_several_answers(fitting):
    """A feature of both answers gets more weight than a feature of one of them."""
    question = fitting.Question("", ("m0", "m1"), "words", "en", datetime(2026, 1, 1, tzinfo=UTC))
    features = np.zeros((10, 2))
    features[:2, 0], features[0, 1] = 1.0, 1.0

    both, one = fitting.fit_ranking({"one": [fitting.Candidates(question, [f"m{at}" for at in range(10)], features)]})

    assert both > 2.0
    assert abs(one) < both / 10


def test_leave_one_out_does_not_use_the_left_out_set(fitting):
    """The weights of a set are the same without the set, and also serve the sets that share its texts."""
    first, second, third = (candidates(fitting, seed, 40) for seed in (7, 8, 9))

    found = fitting.leave_one_out({"a": first, "b": second, "c": third}, {"c": "a"})

    np.testing.assert_allclose(fitting.fit_ranking({"b": second}), found["a"], rtol=1e-9)
    np.testing.assert_allclose(found["a"], found["c"], rtol=1e-9)
    np.testing.assert_allclose(fitting.fit_ranking({"a": first}), found["b"], rtol=1e-9)


def test_candidates_with_equal_scores_rank_newest_first_and_labels_once(fitting):
    question = fitting.Question("", ("a",), "words", "en", datetime(2026, 1, 1, tzinfo=UTC))
    one = fitting.Candidates(question, ["a", "b", "a", "c"], np.array([[1.0], [2.0], [1.0], [0.0]]))

    assert [1, 2, 3] == one.ranked(np.array([1.0]))
    assert [3, 2, 1] == one.ranked(np.array([0.0]))


def test_fit_logistic_is_calibrated_on_its_data(fitting):
    """Predicted probabilities have the mean of the outcomes, and recover the weights of the generator."""
    chance = np.random.default_rng(10)
    features = chance.normal(size=(20_000, 2)) * (1.0, 40.0)
    right = chance.random(20_000) < fitting.sigmoid(features @ (1.5, -0.02) - 1.0)

    found = fitting.fit_logistic([features[:5_000], features[5_000:]], [right[:5_000], right[5_000:]], penalty=0.0)

    np.testing.assert_allclose((1.5, -0.02, -1.0), found, rtol=0.15)


@given(odds=st_numpy.arrays(float, st.integers(1, 5), elements=st.floats(-1e6, 1e6)))
def test_sigmoid_is_monotonic_and_between_0_and_1(fitting, odds):
    values = fitting.sigmoid(np.sort(odds))

    assert ((values >= 0) & (values <= 1)).all()
    assert (np.diff(values) >= 0).all()
