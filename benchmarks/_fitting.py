"""
Regressions that fit the ranking and the relevance of search, in NumPy only.

Both are convex and solved by Newton's method from zero, so that a fit depends on its data alone. Every set has the same
total weight, and every question the same weight within its set. Features are divided by their spread before the L2
penalty is applied, so that the penalty does not depend on their units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
from _retrieval import LIMIT, Question, Sample, Values, measured
from numpy.typing import NDArray

RANKING_PENALTY: Final = 0.05
RELEVANCE_PENALTY: Final = 0.001
MAX_STEPS: Final = 100
TOLERANCE: Final = 1e-9
MIN_SPREAD: Final = 1e-9


@attrs.frozen(eq=False)
class Candidates:
    """
    The candidates of one question.

    Args:
        question: The question.
        labels: The label of each candidate. Candidates of one memory's parts share a label.
        features: Shape (candidates, features).
        evidence: Evidence of the relevance of each candidate (`ranking.collect_features`), of shape (3, candidates).

    """

    question: Question
    labels: Sequence[str]
    features: Values
    evidence: Values = attrs.field(factory=lambda: np.zeros((3, 0)))

    @property
    def is_answer(self) -> NDArray[np.bool_]:
        """True for the candidates that are relevant."""
        return np.array([label in self.question.relevant for label in self.labels], np.bool_)

    @property
    def is_right(self) -> NDArray[np.bool_]:
        """True for the candidates that are relevant or accepted."""
        right = {*self.question.relevant, *self.question.accepted}
        return np.array([label in right for label in self.labels], np.bool_)

    def ranked(self, weights: Values) -> list[int]:
        """Return the best candidates, deduplicated by label. Among equal scores, the last one comes first."""
        scores = (self.features @ weights)[::-1]
        first: dict[str, int] = {}
        for at in (len(scores) - 1 - np.argsort(-scores, kind="stable")).tolist():
            first.setdefault(self.labels[at], at)
        return list(first.values())[:LIMIT]


Lists = Mapping[str, Sequence[Candidates]]
"""The questions of each set with their candidates, by the name of the set."""


def fit_ranking(sets: Lists, *, penalty: float = RANKING_PENALTY) -> Values:
    """
    Return the weights of the features that minimise the listwise softmax cross-entropy.

    The target distribution of a question is uniform over its relevant candidates. Questions without one are ignored.

    Returns:
        Shape (features,), for features as given.

    """
    usable = {
        name: kept
        for name, some in sets.items()
        if (kept := [(one, one.is_answer) for one in some if one.is_answer.any()])
    }
    lists = [(one, answers, 1 / len(usable) / len(kept)) for kept in usable.values() for one, answers in kept]
    table = np.concatenate([one.features - one.features.mean(axis=0) for one, _, _ in lists])
    target = np.concatenate([answers / answers.sum() for _, answers, _ in lists])
    weight = np.array([share for _, _, share in lists])
    sizes = np.array([len(one.labels) for one, _, _ in lists])
    begins = np.cumsum(sizes) - sizes
    row_weight = np.repeat(weight, sizes)
    spread = np.sqrt((row_weight / np.repeat(sizes, sizes)) @ table**2)
    table /= np.where(spread > MIN_SPREAD, spread, 1.0)

    def derivatives(found: Values) -> tuple[float, Values, Values]:
        scores = table @ found
        scores -= np.repeat(np.maximum.reduceat(scores, begins), sizes)
        shares = np.exp(scores)
        totals = np.add.reduceat(shares, begins)
        shares /= np.repeat(totals, sizes)
        loss = -float(row_weight @ (target * (scores - np.repeat(np.log(totals), sizes))))
        means = np.add.reduceat(table * shares[:, np.newaxis], begins)
        hessian = table.T @ (table * (shares * row_weight)[:, np.newaxis]) - means.T @ (means * weight[:, np.newaxis])
        return loss, table.T @ (row_weight * (shares - target)), hessian

    return minimize(derivatives, np.full(table.shape[1], penalty)) / np.where(spread > MIN_SPREAD, spread, np.inf)


def fit_logistic(
    features: Sequence[Values], right: Sequence[NDArray[np.bool_]], *, penalty: float = RELEVANCE_PENALTY
) -> Values:
    """
    Return the weights of a logistic regression and its intercept, which is last and has no penalty.

    Args:
        features: For each set, shape (rows, features).
        right: For each set, the outcome of each row.
        penalty: The L2 penalty of each weight.

    """
    weight = np.concatenate([np.full(len(one), 1 / len(one) / len(right)) for one in right])
    table, outcome = np.concatenate(features), np.concatenate(right).astype(np.float64)
    centre = weight @ table
    spread = np.sqrt(weight @ (table - centre) ** 2)
    scaled = np.column_stack([(table - centre) / np.where(spread > MIN_SPREAD, spread, 1.0), np.ones(len(table))])

    def derivatives(found: Values) -> tuple[float, Values, Values]:
        odds = scaled @ found
        predicted = sigmoid(odds)
        loss = float(weight @ (np.logaddexp(0.0, odds) - outcome * odds))
        curvature = weight * predicted * (1 - predicted)
        return loss, scaled.T @ (weight * (predicted - outcome)), (scaled.T * curvature) @ scaled

    found = minimize(derivatives, np.append(np.full(table.shape[1], penalty), 0.0))
    weights = found[:-1] / np.where(spread > MIN_SPREAD, spread, np.inf)
    return np.append(weights, found[-1] - centre @ weights)


def sigmoid(odds: Values) -> Values:
    """Convert log-odds to probabilities."""
    return 0.5 + 0.5 * np.tanh(0.5 * odds)


def minimize(derivatives: Any, penalties: Values) -> Values:
    """
    Minimise a convex function plus half the penalised sum of squares, with damped Newton steps from zero.

    Args:
        derivatives: Returns the value, gradient and Hessian at a point.
        penalties: The L2 penalty of each variable.

    """
    found = np.zeros(len(penalties))
    loss, gradient, hessian = derivatives(found)
    for _ in range(MAX_STEPS):
        slope = gradient + penalties * found
        step = np.linalg.solve(hessian + np.diag(penalties + 1e-12), slope)
        before = loss + 0.5 * float(penalties @ found**2)
        if float(slope @ step) < TOLERANCE:
            break
        for _ in range(30):
            loss, gradient, hessian = derivatives(found - step)
            if loss + 0.5 * float(penalties @ (found - step) ** 2) <= before:
                break
            step /= 2
        found = found - step
    return found


def recalls(candidates: Sequence[Candidates], weights: Values) -> dict[str, float]:
    """Return the mean of each metric over the answerable questions, ranked by the weighted sum of the features."""
    asked = [Sample([], [one.question for one in candidates])]
    found = [[(one.labels[at],) for at in one.ranked(weights)] for one in candidates]
    values = measured(asked, [found])
    return {metric: float(value.mean()) for metric, value in values.items()}


def leave_one_out(
    sets: Lists, same: Mapping[str, str], *, fit: Callable[[Lists], Values] = fit_ranking
) -> dict[str, Values]:
    """
    Return, for each set, the weights that were fitted to the other sets.

    Args:
        sets: The sets.
        same: Sets that are only evaluated, with the set whose texts they share (which they leave out, too).
        fit: Fits the weights to sets.

    """
    training = {name: some for name, some in sets.items() if name not in same}
    fits: dict[str, Values] = {}
    for left_out in dict.fromkeys(same.get(name, name) for name in sets):
        fits[left_out] = fit({name: training[name] for name in training if name != left_out})
    return {name: fits[same.get(name, name)] for name in sets}
