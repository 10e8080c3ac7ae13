"""
Scoring of search candidates: pure functions on arrays with one item per candidate.

The *evidence* of a memory is measured in log-odds, from its cosine and its word matches. The cosine is measured in
standard deviations above the expected cosine of the query in this store: raw cosines of two stores are not comparable.
Word matches are relative to the best match and to the maximum. Fixed sums of normalized scores and reciprocal ranks
fail on short or on long texts (domain/embedders.md section 2). Good candidates also raise the scores of their
neighbours in time and of linked memories.
``benchmarks/_fitting.py`` fits `ScoreWeights` to several data sets. Each set is evaluated with the weights fitted to
the others (``benchmarks/retrieval.py --leave-one-out``, docs/concepts/search.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedding.protocol import Calibration

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]
"""Indexes of candidates in the arrays."""

_DAY_MS: Final = 86_400_000
# Prior of the cosines of unrelated texts: its mean is this many calibration steps (1 / slope) below the midpoint.
_PRIOR_MEAN_STEPS: Final = 1.4
# Standard deviation of the prior in calibration steps.
_PRIOR_SPREAD_STEPS: Final = 0.65
# Weight of the prior, as a number of sampled cosines.
_PRIOR_SAMPLES: Final = 30
_MIN_SPREAD_RATIO: Final = 0.1
_BEHIND_RATIO: Final = 0.99


@attrs.frozen(kw_only=True, eq=False)
class CandidateSignals:
    """Signals of candidates for a query, with one item per candidate."""

    nearness: FloatArray
    """Cosine, in standard deviations above the expected cosine of the query in this store."""
    nearest: float
    """Highest nearness of any memory."""
    matches: FloatArray
    """BM25 score relative to the best one, 0 to 1."""
    shares: FloatArray
    """BM25 score relative to the maximum for the query, 0 to 1."""
    lengths: FloatArray
    """Number of terms."""
    foreign: NDArray[np.bool_]
    """True if the memory is written in another script than the query."""


@attrs.frozen(kw_only=True)
class CosineBaseline:
    """Mean and standard deviation of a query's cosines to a store, estimated from a sample."""

    mean: float
    spread: float

    @classmethod
    def from_cosines(cls, cosines: NDArray[np.floating], calibration: Calibration) -> CosineBaseline:
        """Estimate the baseline from a sample's cosines, mixed with the embedder's prior."""
        usual, wide = (
            calibration.midpoint - _PRIOR_MEAN_STEPS / calibration.slope,
            _PRIOR_SPREAD_STEPS / calibration.slope,
        )
        count = len(cosines)
        found = float(cosines.mean()) if count else usual
        mean = (count * found + _PRIOR_SAMPLES * usual) / (count + _PRIOR_SAMPLES)
        # Double the squares below the mean and ignore those above it, because answers would widen the distribution.
        squares = 2 * float(np.square(np.minimum(cosines - mean, 0.0)).sum()) + _PRIOR_SAMPLES * wide**2
        return cls(mean=mean, spread=max(math.sqrt(squares / (count + _PRIOR_SAMPLES)), _MIN_SPREAD_RATIO * wide))

    def __call__(self, cosines: NDArray[np.floating]) -> FloatArray:
        """Convert cosines to the number of standard deviations above the mean."""
        return (cosines.astype(np.float64) - self.mean) / self.spread


@attrs.frozen(kw_only=True)
class ScoreWeights:
    """Weights of the scoring function."""

    meaning: float = 0.7  # log-odds per standard deviation of the cosine above the expected one
    words: float = 3.0  # log-odds of the best keyword match; weaker matches get proportionally less
    share: float = 0.0  # log-odds of a memory that contains all words of the query, regardless of other memories
    brevity: float = 0.9  # log-odds that a text loses for each factor of e by which it is shorter than `long`
    short: float = 3.0  # minimum length in terms; shorter texts count as this long
    long: float = 30.0  # maximum length in terms; longer texts count as this long
    foreign: float = 0.7  # keyword match assumed for the nearest memory in another script, relative to the best match
    before: float = 0.2  # share of the predecessor's score (in time) that is added to a memory's score
    after: float = 0.2  # share of the successor's score (in time) that is added to a memory's score
    answer: float = 0.3  # further share if the predecessor contains questions, proportional to the ratio of questions
    asking: float = 0.45  # relative penalty for a memory that contains questions, because they resemble any query
    lenders: int = 8  # number of best candidates that raise the scores of candidates linked to them
    # Tie strength, 0 to 1, of evolution and implementation links: the ratio of a score that a link can transfer.
    # For other links, this ratio is multiplied by the strength of the link.
    tie: float = 0.5
    automatic: float = 0.0  # tie strength of automatic links
    topic: float = 0.3  # minimum tie strength of memories with the same topic
    outcome: float = 0.7  # maximum score of the memory of an outcome, relative to the score of its decision
    superseded: float = 0.9  # factor on the score of a superseded memory
    outside: float = 1.0  # factor on the score of a memory outside of the requested period
    inside: float = 0.5  # bonus of a memory inside the period, relative to the best score
    recency: float = 0.05  # bonus of a memory created now, relative to its score
    half_life: float = 30.0  # half-life of the recency bonus in days
    # Log-odds of relevance: `belief` times ln(relative score), plus `told` times ln(1 + best BM25), minus `doubt`.
    belief: float = 3.5
    told: float = 0.31
    doubt: float = 4.7
    unknown: float = 1.5  # also subtracted from the log-odds if no word of the query occurs in the store


WEIGHTS: Final = ScoreWeights()

# Number of the best other hits (rivals). Their mean score is compared with the score of a hit to get its relevance.
_RIVAL_COUNT: Final = 5
# Weight of the rivals' mean score in this comparison.
_RIVAL_WEIGHT: Final = 0.46
_LOG_OFFSET: Final = 0.1


def log_odds(clues: CandidateSignals, weights: ScoreWeights = WEIGHTS) -> dict[str, FloatArray]:
    """Return each candidate's log-odds by source, without contributions of other candidates."""
    # A text in another script cannot match words, so it gets a word match that corresponds to its cosine.
    instead = weights.foreign * np.clip(clues.nearness / max(clues.nearest, 1.0), 0.0, 1.0) ** 2
    matches = np.where(clues.foreign, np.maximum(clues.matches, instead), clues.matches)
    lengths = np.clip(clues.lengths, weights.short, weights.long)
    return {
        "meaning": weights.meaning * clues.nearness,
        "words": weights.words * matches + weights.share * clues.shares,
        "length": weights.brevity * np.log(lengths / weights.long),
    }


def candidate_evidence(clues: CandidateSignals, weights: ScoreWeights = WEIGHTS) -> FloatArray:
    """Return each candidate's evidence, above 0, without contributions of other candidates."""
    return sum_log_odds(log_odds(clues, weights))


def sum_log_odds(found: Mapping[str, FloatArray]) -> FloatArray:
    """Sum the log-odds of each candidate, and map the sums to values greater than 0."""
    meaning, words, length = found.values()
    # The softplus preserves the order of weak candidates, and makes their contributions to others vanish.
    return np.logaddexp(0.0, meaning + words + length)


def add_neighbour_scores(
    scores: FloatArray,
    before: IndexArray,
    after: IndexArray,
    asking: FloatArray,
    *,
    certainty: float = 1.0,
    weights: ScoreWeights = WEIGHTS,
) -> FloatArray:
    """
    Return scores with contributions of neighbours in time and a penalty for questions.

    *before* and *after* contain -1 for a missing neighbour. *asking* contains ratios of questions, 0 to 1. Answers
    follow questions, and a question is no answer even if it resembles the query.
    """
    known, asks = np.append(certainty * scores, 0.0), np.append(asking, 0.0)
    first, second = (weights.before + weights.answer * asks[before]) * known[before], weights.after * known[after]
    gained = cap_below_contributors(scores + first + second, scores, np.where(first >= second, before, after))
    return gained * (1 - weights.asking * asking)


def pair_outcomes(
    scores: FloatArray, outcomes: IndexArray, decisions: IndexArray, weights: ScoreWeights = WEIGHTS
) -> FloatArray:
    """
    Return scores in which a decision scores at least as high as the memory of its outcome.

    The memory of the outcome is ranked behind its decision.
    """
    together = scores.copy()
    np.maximum.at(together, decisions, scores[outcomes])
    np.minimum.at(together, outcomes, weights.outcome * together[decisions])
    return together


def borrowed_scores(scores: FloatArray, lenders: IndexArray, ties: FloatArray) -> tuple[FloatArray, IndexArray]:
    """
    Return, for each score, the highest contribution of a linked candidate, and the position of this candidate.

    The position is -1 if there is no contribution.
    """
    # Only the largest contribution counts, so that a subject with many memories has no advantage.
    best = float(scores[lenders[0]]) if len(lenders) else 0.0
    if best <= 0:
        return np.zeros_like(scores), np.full(len(scores), -1, np.intp)
    gains = ties * (scores[lenders] ** 2 / best)[:, np.newaxis]
    most = gains.argmax(axis=0)
    gain = gains[most, np.arange(len(scores))]
    return gain, np.where(gain > 0, lenders[most], -1)


def cap_below_contributors(summed: FloatArray, own: FloatArray, givers: IndexArray) -> FloatArray:
    """
    Limit each score to slightly below its contributor's score, unless its own score is at least as high.

    *own* contains the scores without contributions, and *givers* the positions of the contributors, or -1 for none.
    """
    # Without this limit, a memory that equals the query could rank behind its neighbours.
    bounded = summed.copy()
    lent = np.flatnonzero((givers >= 0) & (own < own[givers]))
    # Process the best scores first, so that a contributor is limited before the scores that it raises.
    lent = lent[np.argsort(-own[lent], kind="stable")]
    for position, giver in zip(lent.tolist(), givers[lent].tolist(), strict=True):
        # The score must be slightly lower, because among equal scores the newer memory would come first.
        bounded[position] = min(bounded[position], _BEHIND_RATIO * bounded[giver])
    return bounded


def cap_below_best(summed: FloatArray, own: FloatArray) -> FloatArray:
    """Limit scores so that the candidate with the highest own score stays the first."""
    if not len(own):
        return summed
    # Among equal scores, choose the last position, which is the newest memory.
    first = len(own) - 1 - int(own[::-1].argmax())
    bounded: FloatArray = np.minimum(summed, _BEHIND_RATIO * summed[first])
    bounded[first] = summed[first]
    return bounded


def favour_period(
    scores: FloatArray, inside: NDArray[np.bool_], strength: float, weights: ScoreWeights = WEIGHTS
) -> FloatArray:
    """Return scores that favour candidates in the requested period, if there are any."""
    if not inside.any():
        return scores
    gained = scores + strength * weights.inside * scores.max()
    return np.where(inside, gained, scores * (1 - strength * (1 - weights.outside)))


def recency_bonus(created: NDArray[np.int64], now_ms: int, weights: ScoreWeights = WEIGHTS) -> FloatArray:
    """
    Return each candidate's recency bonus as a ratio of its score.

    Times are in milliseconds since 1970.
    """
    days = np.maximum(now_ms - created, 0) / _DAY_MS
    return weights.recency * np.exp2(-days / weights.half_life)


def promote(
    scores: FloatArray, old: Sequence[int], newest: Sequence[int], weights: ScoreWeights = WEIGHTS
) -> FloatArray:
    """
    Return scores in which no superseded memory scores higher than its successor.

    *old* and *newest* contain positions. A successor that is no candidate has the position -1.
    """
    led = scores.copy()
    for position, leader in zip(old, newest, strict=True):
        if leader >= 0:
            led[leader] = max(led[leader], scores[position])
    for position in old:
        led[position] = min(led[position], weights.superseded * scores[position])
    return led


def top_k(scores: FloatArray, limit: int) -> IndexArray:
    """
    Return the positions of the *limit* highest scores, best first.

    Among equal scores, the highest position comes first.
    """
    order = len(scores) - 1 - np.argsort(-scores[::-1], kind="stable")
    return order[: max(limit, 0)]


def answer_probability(
    scores: FloatArray,
    best_bm25: float,
    unknown_ratio: float,
    weights: ScoreWeights = WEIGHTS,
    *,
    fingerprints: NDArray[np.int64] | None = None,
) -> FloatArray:
    """
    Return the probability, 0 to 1, that each candidate answers the query.

    Args:
        scores: Scores of all candidates.
        best_bm25: Best BM25 score of any memory.
        unknown_ratio: Ratio of the query's rarity that belongs to words which do not occur in the store.
        weights: Weights of the scoring function.
        fingerprints: Duplicate fingerprints; equal ones count as one candidate.

    """
    # If many candidates score as high as the best one, the query is about all of them, so no single one answers it.
    rivals = np.sort(scores)
    if fingerprints is not None:
        order = np.argsort(-scores, kind="stable")
        _, first = np.unique(fingerprints[order], return_index=True)
        rivals = np.sort(scores[order[first]])
    others = float(rivals[-_RIVAL_COUNT - 1 : -1].sum()) / _RIVAL_COUNT
    odds = (
        weights.belief * (np.log(scores + _LOG_OFFSET) - _RIVAL_WEIGHT * math.log(others + _LOG_OFFSET)) - weights.doubt
    )
    odds += weights.told * math.log1p(best_bm25) - weights.unknown * unknown_ratio
    relevances: FloatArray = 1 / (1 + np.exp(-odds))
    return relevances
