"""
Signals of search candidates, and arithmetic on their scores: pure functions on arrays with one item per candidate.

Similarities are measured in standard deviations above the expected similarity of the query in this store, because
cosines of two stores are not comparable.
"""

from __future__ import annotations

import math
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedding.protocol import Calibration

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]
"""Indexes of candidates in the arrays."""

# Prior of the cosines of unrelated texts: its mean is this many calibration steps (1 / slope) below the midpoint.
_PRIOR_MEAN_STEPS: Final = 1.4
# Standard deviation of the prior in calibration steps.
_PRIOR_SPREAD_STEPS: Final = 0.65
# Weight of the prior, as a number of sampled cosines.
_PRIOR_SAMPLES: Final = 30
_MIN_SPREAD_RATIO: Final = 0.1
PIECE_PENALTY: Final = 0.06
"""Factor of ln(n) by which the similarity of a text with n chunks is reduced."""
MEAN_WEIGHT: Final = 0.5
"""Weight of the mean of all chunks of a text in its nearness, because the best of many may match by chance."""
MIN_DISTANCE: Final = 0.01
"""Score by which the memory of an outcome is behind its decision at least."""
SUPERSEDED_PENALTY: Final = 0.1
"""Score that a superseded memory loses."""


@attrs.frozen(eq=False)
class CandidateSignals:
    """Signals of candidates for a query, as columns with one item per candidate."""

    nearness: FloatArray
    """Centred similarity, in standard deviations above the query's expected one in this store."""
    standings: FloatArray
    """Adjusted similarity of the best chunk, in standard deviations above the expected one in this store."""
    words: FloatArray
    """BM25 score."""
    lengths: FloatArray
    """Number of terms."""
    foreign: NDArray[np.bool_]
    """True if the memory is written in another script than the query."""
    asking: FloatArray
    """Share of the text that consists of questions, 0 to 1."""


@attrs.frozen(kw_only=True)
class CosineBaseline:
    """Mean and standard deviation of a query's cosines to a store, estimated from a sample."""

    mean: float
    spread: float

    @classmethod
    def from_cosines(
        cls, cosines: NDArray[np.floating], calibration: Calibration, *, is_adjusted: bool = False
    ) -> CosineBaseline:
        """
        Estimate the baseline from a sample's cosines, mixed with the embedder's prior.

        *is_adjusted*: the cosines are differences from the mean of unrelated texts (`QueryVectors`).
        """
        usual = 0.0 if is_adjusted else unrelated_cosine(calibration)
        wide = _PRIOR_SPREAD_STEPS / calibration.slope
        count = len(cosines)
        found = float(cosines.mean()) if count else usual
        mean = (count * found + _PRIOR_SAMPLES * usual) / (count + _PRIOR_SAMPLES)
        # Double the squares below the mean and ignore those above it, because answers would widen the distribution.
        squares = 2 * float(np.square(np.minimum(cosines - mean, 0.0)).sum()) + _PRIOR_SAMPLES * wide**2
        return cls(mean=mean, spread=max(math.sqrt(squares / (count + _PRIOR_SAMPLES)), _MIN_SPREAD_RATIO * wide))

    def __call__(self, cosines: NDArray[np.floating]) -> FloatArray:
        """Convert cosines to the number of standard deviations above the mean."""
        return (cosines.astype(np.float64) - self.mean) / self.spread

    def cosines(self, nearness: FloatArray) -> FloatArray:
        """Return the cosines for numbers of standard deviations: the inverse of calling the baseline."""
        return nearness * self.spread + self.mean


def unrelated_cosine(calibration: Calibration) -> float:
    """Return the expected cosine of unrelated texts."""
    return calibration.midpoint - _PRIOR_MEAN_STEPS / calibration.slope


def combine_pieces(similarities: NDArray[np.float32], counts: NDArray[np.int64]) -> FloatArray:
    """
    Return two similarities of each memory, of shape (memories, 2): of several chunks, and of its best chunk.

    Args:
        similarities: Two similarities of each chunk, of shape (chunks, 2), in the order of the memories. The best chunk
            and the mean of all chunks of a memory determine the first result, the best chunk alone the second one.
        counts: Number of chunks of each memory. A memory without chunks gets the similarity 0.

    """
    if len(similarities) == len(counts) and counts.all():
        return similarities.astype(np.float64)
    combined, has = np.zeros((len(counts), 2)), counts > 0
    # A query by words alone has the vector zero. It is equally similar to texts of any length.
    if similarities.any():
        begins, sizes = (np.cumsum(counts) - counts)[has], counts[has]
        best = np.maximum.reduceat(similarities, begins).astype(np.float64)
        # The maximum of n similarities grows with n by chance.
        best[:, 0] -= PIECE_PENALTY * np.log(sizes)
        best[:, 0] += MEAN_WEIGHT * (np.add.reduceat(similarities[:, 0], begins) / sizes - best[:, 0])
        combined[has] = best
    return combined


def pair_outcomes(scores: FloatArray, outcomes: IndexArray, decisions: IndexArray) -> FloatArray:
    """
    Return scores in which a decision scores at least as high as the memory of its outcome.

    The memory of the outcome is ranked behind its decision.
    """
    together = scores.copy()
    np.maximum.at(together, decisions, scores[outcomes])
    return follow_decisions(together, outcomes, decisions)


def follow_decisions(scores: FloatArray, outcomes: IndexArray, decisions: IndexArray) -> FloatArray:
    """Return scores in which the memory of an outcome is ranked behind its decision."""
    behind = scores.copy()
    np.minimum.at(behind, outcomes, scores[decisions] - MIN_DISTANCE)
    return behind


def promote(scores: FloatArray, old: IndexArray, newest: IndexArray) -> FloatArray:
    """
    Return scores in which no superseded memory scores higher than its successor.

    *old* and *newest* contain positions. A successor that is no candidate has the position -1.
    """
    led = scores.copy()
    known = newest >= 0
    np.maximum.at(led, newest[known], scores[old[known]])
    led[old] = np.minimum(led[old], scores[old] - SUPERSEDED_PENALTY)
    return led


def top_k(scores: FloatArray, limit: int) -> IndexArray:
    """
    Return the positions of the *limit* highest scores, best first.

    Among equal scores, the highest position comes first.
    """
    order = len(scores) - 1 - np.argsort(-scores[::-1], kind="stable")
    return order[: max(limit, 0)]
