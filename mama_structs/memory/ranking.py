"""
How candidates of a search are scored: pure functions on arrays, an item for each candidate.

A memory's *evidence* is counted in log-odds: what its cosine says by the embedder's own calibration, plus what shared
words say by the share of the question's rarity that they carry. So nothing depends on the size of the store; vectors
that cannot tell the candidates apart say nothing; a question whose words occur nowhere is left to the vectors, and a
rare identifier decides by itself. Fixed sums of normalised scores, and reciprocal ranks, fail on short or on long texts
(domain/embedders.md section 2). On top comes what good candidates lend to those that they are tied to.
The figures of `Weights` are round: around them recall changes by a point or so, and chosen anew on one half of the
sample's threads they serve the other half no better (``benchmarks/retrieval.py --holdout``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Positions = NDArray[np.intp]
"""Where candidates stand in the arrays."""

_DAY_MS: Final = 86_400_000
_CERTAIN: Final = 2e-9


@attrs.frozen(kw_only=True)
class Weights:
    """What counts how much."""

    words: float = 8.0  # log-odds that a memory gains that has all of the question's words
    lenders: int = 8  # so many of the best candidates lend to those that they are tied to
    # How close two memories are, 0 to 1, that are wholly alike, that follow each other, or of which one carries the
    # other out; with another link, that times its strength.
    tie: float = 0.6
    topic: float = 0.3  # how close two memories of one topic are at the least
    alike_at: float = 5.0  # calibrated log-odds at which two texts are wholly alike; at 0 they are not at all
    pair: float = 0.6  # how far a decision and the memory of its outcome add up
    outcome: float = 0.7  # what is left to the memory of an outcome, as a share of its decision's score
    superseded: float = 0.9  # what is left to a superseded memory
    outside: float = 0.3  # what is left to a memory outside the period that was asked for
    inside: float = 0.5  # what one within it gains, as a share of the best score
    recency: float = 0.05  # what a memory of this moment gains, as a share of its score
    half_life: float = 30.0  # days in which that halves
    unknown: float = 4.0  # log-odds that a question's results lose all of whose words occur nowhere


WEIGHTS: Final = Weights()

# Platt's scaling on the sample's questions with and without an answer (both weigh the same), shifted so that 0.3 parts
# them: log-odds of 0 are as likely the best of a question without an answer as of one with.
_RELEVANCE_SLOPE: Final = 0.7
_RELEVANCE_MIDDLE: Final = -0.5
_RELEVANCE_SHIFT: Final = math.log(0.3 / 0.7)


def log_odds(similarities: NDArray[np.floating]) -> Values:
    """Return the log-odds of calibrated similarities (0 to 1), cut at about 20 either way."""
    sure = np.minimum(np.maximum(np.asarray(similarities, np.float64), _CERTAIN), 1 - _CERTAIN)
    sure[np.isnan(sure)] = _CERTAIN
    return np.log(sure) - np.log1p(-sure)


def evidence(meanings: Values, shares: Values, weights: Weights = WEIGHTS) -> Values:
    """Return what speaks for each candidate by itself, more than 0, by log-odds and shares of the question's rarity."""
    # Soft at 0: the order of the weakest stays, and what they lend vanishes.
    return np.logaddexp(0.0, meanings + weights.words * shares)


def paired(scores: Values, outcomes: Positions, decisions: Positions, weights: Weights = WEIGHTS) -> Values:
    """Return scores in which a decision and the memory of its outcome are one matter, led by the decision."""
    # The decision is found by what either says; the other stands behind it, so that both do not take good places.
    together = scores.copy()
    np.maximum.at(
        together, decisions, np.maximum(scores[outcomes], weights.pair * (scores[outcomes] + scores[decisions]))
    )
    np.minimum.at(together, outcomes, weights.outcome * together[decisions])
    return together


def likeness(meanings: Values, weights: Weights = WEIGHTS) -> Values:
    """Return how close memories are by the log-odds of their texts' calibrated cosine, 0 to 1."""
    return weights.tie * np.clip(meanings / weights.alike_at, 0.0, 1.0)


def lent(scores: Values, lenders: Positions, ties: Values) -> tuple[Values, Positions]:
    """Return what each candidate gains from the best ones by its ties to them, and from which of them, -1 for none."""
    # It gains from the one that gives most: a matter with many memories must not win by their number.
    best = float(scores[lenders[0]]) if len(lenders) else 0.0
    if best <= 0:
        return np.zeros_like(scores), np.full(len(scores), -1, np.intp)
    gains = ties * (scores[lenders] ** 2 / best)[:, np.newaxis]
    most = gains.argmax(axis=0)
    gain = gains[most, np.arange(len(scores))]
    return gain, np.where(gain > 0, lenders[most], -1)


def below_givers(summed: Values, own: Values, givers: Positions) -> Values:
    """Return scores in which nothing passes what it was lent by, unless it says more by itself."""
    # Else a memory that is the question word for word would come behind its neighbours.
    bounded = summed.copy()
    # The best first, so that a bound is passed on.
    for position in np.argsort(-own, kind="stable").tolist():
        giver = givers[position]
        if giver >= 0 and own[position] < own[giver]:
            bounded[position] = min(bounded[position], bounded[giver])
    return bounded


def in_period(scores: Values, inside: NDArray[np.bool_], strength: float, weights: Weights = WEIGHTS) -> Values:
    """Return scores that favour what lies in the period that was asked for; where nothing does, nothing changes."""
    if not inside.any():
        return scores
    gained = scores + strength * weights.inside * scores.max()
    return np.where(inside, gained, scores * (1 - strength * (1 - weights.outside)))


def recency(created: NDArray[np.int64], now_ms: int, weights: Weights = WEIGHTS) -> Values:
    """Return what each candidate gains for being new, as a share of its score; times in milliseconds since 1970."""
    days = np.maximum(now_ms - created, 0) / _DAY_MS
    return weights.recency * np.exp2(-days / weights.half_life)


def led(scores: Values, old: Sequence[int], newest: Sequence[int], weights: Weights = WEIGHTS) -> Values:
    """Return scores in which what stands in a memory's place, -1 for no candidate, is at least as good as that was."""
    led = scores.copy()
    for position, leader in zip(old, newest, strict=True):
        if leader >= 0:
            led[leader] = max(led[leader], scores[position])
    for position in old:
        led[position] = min(led[position], weights.superseded * scores[position])
    return led


def best(scores: Values, limit: int) -> Positions:
    """Return the positions of the *limit* best scores, best first, of equal ones the last first: nodes ascend."""
    order = np.lexsort((-np.arange(len(scores)), -scores))
    return order[: max(limit, 0)]


def relevance(scores: Values, unknown: float, weights: Weights = WEIGHTS) -> Values:
    """Return how well candidates answer, 0 to 1; *unknown* is the share of rarity in words that occur nowhere."""
    # The inverse of `evidence`'s soft floor; for large scores that is the identity.
    odds = np.where(scores > 30, scores, np.log(np.expm1(np.clip(scores, 1e-9, 30))))  # noqa: PLR2004
    slope = _RELEVANCE_SLOPE * (odds - weights.unknown * unknown - _RELEVANCE_MIDDLE) + _RELEVANCE_SHIFT
    return 1 / (1 + np.exp(-np.clip(slope, -30, 30)))
