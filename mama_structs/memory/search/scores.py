"""
How candidates of a search are scored: pure functions on arrays, an item for each candidate.

A memory's *evidence* is counted in log-odds: by how many spreads its cosine is above what is usual for the question in
this store, and what it has of the question's words, as a share of the best match and of the most there could be. A
cosine means something within its store only, and fixed sums of normalised scores, and reciprocal ranks, fail on short
or on long texts (domain/embedders.md section 2). On top comes what good candidates lend to those beside them in time
and to those that they are tied to.
The figures of `Weights` are chosen by ``benchmarks/_fitting.py`` on sets of texts of several kinds, each of which is
judged with what was chosen on the others (``benchmarks/retrieval.py --leave-one-out``, docs/explanation/search.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedding.protocol import Calibration

Values = NDArray[np.float64]
Positions = NDArray[np.intp]
"""Where candidates stand in the arrays."""

_DAY_MS: Final = 86_400_000
# Where cosines of texts on other matters lie, and how wide, by the slope of the calibration; that counts as so many.
_USUAL: Final = 1.4
_SPREAD: Final = 0.65
_FEW: Final = 30
_LEAST: Final = 0.1
_BEHIND: Final = 0.99


@attrs.frozen(kw_only=True, eq=False)
class Clues:
    """What is known of candidates for a question, an item for each."""

    nearness: Values
    """By how many spreads its cosine is above what is usual for the question in this store."""
    nearest: float
    """The nearness of the nearest memory of all."""
    matches: Values
    """The BM25 score as a share of the best one of all, 0 to 1."""
    shares: Values
    """That as a share of the highest that the question could have, 0 to 1."""
    lengths: Values
    """Terms."""
    foreign: NDArray[np.bool_]
    """Whether it is in a script that the question is not in."""


@attrs.frozen(kw_only=True)
class Scale:
    """What a question's cosines are like in a store: their mean and spread over the store's sample."""

    mean: float
    spread: float

    @classmethod
    def of(cls, cosines: NDArray[np.floating], calibration: Calibration) -> Scale:
        """Return the scale of a sample's cosines; few count less than what is usual for the embedder."""
        usual, wide = calibration.midpoint - _USUAL / calibration.slope, _SPREAD / calibration.slope
        count = len(cosines)
        found = float(cosines.mean()) if count else usual
        mean = (count * found + _FEW * usual) / (count + _FEW)
        # By those below the mean, twice: what answers is above, and must not widen what it is measured by.
        squares = 2 * float(np.square(np.minimum(cosines - mean, 0.0)).sum()) + _FEW * wide**2
        return cls(mean=mean, spread=max(math.sqrt(squares / (count + _FEW)), _LEAST * wide))

    def __call__(self, cosines: NDArray[np.floating]) -> Values:
        """Return by how many spreads cosines are above the mean."""
        return (cosines.astype(np.float64) - self.mean) / self.spread


@attrs.frozen(kw_only=True)
class Weights:
    """What counts how much."""

    meaning: float = 0.7  # log-odds for each spread by which a cosine is above what is usual in this store
    words: float = 3.0  # log-odds that the best match of the question's words gains, and others by their share of that
    share: float = 0.0  # log-odds that a memory gains that has all of the question's words, whatever others have
    brevity: float = 0.9  # log-odds that a text loses for each time that it is e times shorter than `long`
    short: float = 3.0  # terms: a text of fewer counts as one of so many
    long: float = 30.0  # terms: a text of more counts as one of so many
    foreign: float = 0.7  # the share of the best match that the nearest memory has in a script that shares no words
    before: float = 0.2  # what a memory gains of what speaks for the one before it in time
    after: float = 0.2  # and of what speaks for the one after it
    answer: float = 0.3  # and more of the one before it, as far as that asks
    asking: float = 0.45  # the share that a memory loses that does nothing but ask: questions are like questions
    lenders: int = 8  # so many of the best candidates lend to those that they are tied to
    # How close two memories are, 0 to 1, that follow each other, or of which one carries the other out; with another
    # link, that times its strength.
    tie: float = 0.5
    automatic: float = 0.0  # the same for a link that was made automatically
    topic: float = 0.3  # how close two memories of one topic are at the least
    outcome: float = 0.7  # what the memory of an outcome may have at the most, as a share of its decision's score
    superseded: float = 0.9  # what is left to a superseded memory
    outside: float = 1.0  # what is left to a memory outside the period that was asked for
    inside: float = 0.5  # what one within it gains, as a share of the best score
    recency: float = 0.05  # what a memory of this moment gains, as a share of its score
    half_life: float = 30.0  # days in which that halves
    # Log-odds of an answer: so much for each time that a score is e times higher, and that one more than the best BM25
    # score is, and so much less.
    belief: float = 3.5
    told: float = 0.31
    doubt: float = 4.7
    unknown: float = 1.5  # log-odds that a question's results lose all of whose words occur nowhere


WEIGHTS: Final = Weights()


@attrs.frozen(kw_only=True)
class Bounds:
    """Which hits are worth showing; chosen on half of the questions of all sets by ``benchmarks/precision.py``."""

    relevance: float = 0.15  # with less of it the best hit says that nothing was found
    share: float = 0.85  # of the best score: what has less is behind those that answer


SHOWN: Final = Bounds()

# A hit's relevance goes by its score as against the mean of so many of the best others, of which so much counts.
_RIVALS: Final = 5
_RIVALRY: Final = 0.46
_LOW: Final = 0.1


def odds(clues: Clues, weights: Weights = WEIGHTS) -> dict[str, Values]:
    """Return the log-odds that speak for each candidate by itself, by what they come from."""
    # What is written in another script says the same in other words: it is given those that go with its meaning.
    instead = weights.foreign * np.clip(clues.nearness / max(clues.nearest, 1.0), 0.0, 1.0) ** 2
    matches = np.where(clues.foreign, np.maximum(clues.matches, instead), clues.matches)
    lengths = np.clip(clues.lengths, weights.short, weights.long)
    return {
        "meaning": weights.meaning * clues.nearness,
        "words": weights.words * matches + weights.share * clues.shares,
        "length": weights.brevity * np.log(lengths / weights.long),
    }


def evidence(clues: Clues, weights: Weights = WEIGHTS) -> Values:
    """Return what speaks for each candidate by itself, more than 0."""
    return together(odds(clues, weights))


def together(found: Mapping[str, Values]) -> Values:
    """Return what log-odds say together, more than 0."""
    meaning, words, length = found.values()
    # Soft at 0: the order of the weakest stays, and what they lend vanishes.
    return np.logaddexp(0.0, meaning + words + length)


def beside(
    scores: Values,
    before: Positions,
    after: Positions,
    asking: Values,
    *,
    certainty: float = 1.0,
    weights: Weights = WEIGHTS,
) -> Values:
    """
    Return scores with what candidates gain of those next to them in time, -1 for none, and lose as far as they ask.

    Answers follow questions, and a question answers none, much as it is like another one; *asking* is from 0 to 1.
    """
    known, asks = np.append(certainty * scores, 0.0), np.append(asking, 0.0)
    first, second = (weights.before + weights.answer * asks[before]) * known[before], weights.after * known[after]
    gained = below_givers(scores + first + second, scores, np.where(first >= second, before, after))
    return gained * (1 - weights.asking * asking)


def paired(scores: Values, outcomes: Positions, decisions: Positions, weights: Weights = WEIGHTS) -> Values:
    """Return scores in which a decision is found by what the memory of its outcome says, which stands behind it."""
    together = scores.copy()
    np.maximum.at(together, decisions, scores[outcomes])
    np.minimum.at(together, outcomes, weights.outcome * together[decisions])
    return together


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
    """Return scores in which nothing passes what it was lent by, -1 for nothing, unless it says more by itself."""
    # Else a memory that is the question word for word would come behind its neighbours.
    bounded = summed.copy()
    lent = np.flatnonzero((givers >= 0) & (own < own[givers]))
    # The best first, so that a bound is passed on.
    lent = lent[np.argsort(-own[lent], kind="stable")]
    for position, giver in zip(lent.tolist(), givers[lent].tolist(), strict=True):
        # A little less, or of equal ones the newer would come first.
        bounded[position] = min(bounded[position], _BEHIND * bounded[giver])
    return bounded


def behind_the_first(summed: Values, own: Values) -> Values:
    """Return scores in which what says most by itself stays the first, whatever was lent to others."""
    if not len(own):
        return summed
    # Of equals the last: nodes ascend, and the newer goes first.
    first = len(own) - 1 - int(own[::-1].argmax())
    bounded: Values = np.minimum(summed, _BEHIND * summed[first])
    bounded[first] = summed[first]
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
    order = len(scores) - 1 - np.argsort(-scores[::-1], kind="stable")
    return order[: max(limit, 0)]


def relevance(
    scores: Values,
    told: float,
    unknown: float,
    weights: Weights = WEIGHTS,
    *,
    wordings: NDArray[np.int64] | None = None,
) -> Values:
    """
    Return how likely candidates answer, 0 to 1.

    Args:
        scores: Of all candidates.
        told: The best BM25 score of any memory.
        unknown: The share of the question's rarity that is in words that occur nowhere.
        weights: What counts how much.
        wordings: Equal for candidates that say the same, word for word: these are one.

    """
    # What many say as well as the best is about all of them, and hardly answered by one.
    rivals = np.sort(scores)
    if wordings is not None:
        order = np.argsort(-scores, kind="stable")
        _, first = np.unique(wordings[order], return_index=True)
        rivals = np.sort(scores[order[first]])
    others = float(rivals[-_RIVALS - 1 : -1].sum()) / _RIVALS
    odds = weights.belief * (np.log(scores + _LOW) - _RIVALRY * math.log(others + _LOW)) - weights.doubt
    odds += weights.told * math.log1p(told) - weights.unknown * unknown
    relevances: Values = 1 / (1 + np.exp(-odds))
    return relevances
