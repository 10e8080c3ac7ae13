"""Finds out what the cosines of an embedder mean, on built-in sentences."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mama_structs import _check
from mama_structs._async import in_own_thread
from mama_structs.errors import EmbeddingFailed, InvalidArgument
from mama_structs.memory.embedding.pieces import LEAST_TOKENS
from mama_structs.memory.embedding.protocol import Calibration, Embedder, InThread, embedded

THRESHOLD: Final = 0.85
"""The similarity that counts as similar where nothing better is known of an embedder."""

PROVISIONAL: Final = Calibration(threshold=THRESHOLD)
"""What stands for the calibration of an embedder until it is known."""

_logger: Final = logging.getLogger("mama_structs")
_CHANCE: Final = 0.6  # An embedder that tells the built-in sentences apart no more often knows next to nothing.
_STEPS: Final = 100
_CLOSE: Final = 1e-10
_LEAST_SLOPE: Final = 0.5  # Cosines that tell nothing, or the wrong way round, still need a rising curve.
_MOST_SLOPE: Final = 200.0


@functools.cache
def triples() -> tuple[tuple[str, str, str], ...]:
    """
    Return the built-in sentences: one, another about the same matter, and one about another matter of that world.

    They are of the kind that agents remember: decisions, findings and notes; English, Korean, and one in each.
    """
    text = Path(__file__).with_name("pairs.json").read_text(encoding="utf-8")
    return tuple((first, same, other) for first, same, other in json.loads(text))


def fit(
    same: Sequence[NDArray[np.floating]], other: Sequence[NDArray[np.floating]], *, threshold: float = THRESHOLD
) -> Calibration:
    """
    Fit a calibration to the cosines of pairs about the same matter, in groups, and of pairs about different ones.

    Logistic regression by Newton's method with Platt's targets (a little inside 0 and 1, by the number of pairs),
    which keep the slope finite where the classes do not overlap.
    Both classes weigh the same, and so do the groups of each; so both have the targets of the smaller one,
    and the midpoint lies among the cosines.
    """
    parts: list[tuple[NDArray[np.float64], float, float]] = []
    count = min(sum(map(len, same)), sum(map(len, other)))
    for name, groups, target in (("same", same, (count + 1) / (count + 2)), ("other", other, 1 / (count + 2))):
        if not groups or not all(len(group) and np.isfinite(group).all() for group in groups):
            raise InvalidArgument(f"{name} must be groups of finite cosines, none of them empty")
        parts.extend((np.asarray(group, np.float64), target, 0.5 / len(groups) / len(group)) for group in groups)
    x = np.concatenate([group for group, _, _ in parts])
    y = np.concatenate([np.full(len(group), target) for group, target, _ in parts])
    w = np.concatenate([np.full(len(group), weight) for group, _, weight in parts])
    centre = float(w @ x)
    scale = max(float(np.sqrt(w @ (x - centre) ** 2)), 1e-6)
    slope, intercept = _regression((x - centre) / scale, y, w)
    if slope / scale <= _LEAST_SLOPE:
        return Calibration(centre, _LEAST_SLOPE, threshold=threshold)
    midpoint = float(np.clip(centre - intercept / slope * scale, x.min(), x.max()))
    return Calibration(midpoint, min(slope / scale, _MOST_SLOPE), threshold=threshold)


def sentence_cosines(
    vectors: NDArray[np.floating],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """
    Return the cosines of the built-in sentences, whose vectors come one after the other.

    They are those of each triple's first sentence with that on the same matter, with that on another one in similar
    words, and with the first sentences of all other triples.
    """
    table = vectors.reshape(len(triples()), 3, -1).astype(np.float64)
    first, same, other = table[:, 0], table[:, 1], table[:, 2]
    across = (first @ first.T)[np.triu_indices(len(first), 1)]
    return (first * same).sum(axis=1), (first * other).sum(axis=1), across


def tells_apart(same: ArrayLike, other: ArrayLike) -> float:
    """Return how often a pair of *same* has a higher cosine than one of *other*: 1 always, 0.5 by chance (AUC)."""
    positive, negative = (
        np.asarray(same, dtype=np.float64).ravel(),
        np.sort(np.asarray(other, dtype=np.float64).ravel()),
    )
    below = np.searchsorted(negative, positive, side="left") + np.searchsorted(negative, positive, side="right")
    return float(below.mean() / 2 / len(negative))


def _or_provisional(calibration: Calibration | None) -> Calibration:
    return PROVISIONAL if calibration is None else calibration


@attrs.define(kw_only=True)
class Calibrating:
    """
    What embedders have in common whose scale is not known beforehand, and whose figures a caller gives.

    Until it is calibrated, the ``calibration`` is a guess that fits no embedder well.
    An `EmbeddingService` sees to it before its first vectors, and so does `calibrated`.
    """

    calibration: Calibration = attrs.field(default=None, converter=_or_provisional)
    is_calibrated: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self.is_calibrated = self.calibration is not PROVISIONAL
        embedder: Any = self
        if not isinstance(embedder.name, str) or not embedder.name:
            raise _check.refused("name", "must be text that is not empty", embedder.name)
        _check.whole("dimensions", embedder.dimensions, 1, mark=",")
        _check.whole("max_tokens", embedder.max_tokens, LEAST_TOKENS, mark=",")
        _check.whole("batch_size", embedder.batch_size, 1, mark=",")

    def calibrate(self, calibration: Calibration) -> None:
        """Take a calibration as known, such as one that was kept with the vectors."""
        self.calibration = calibration
        self.is_calibrated = True


async def calibrated(embedder: Embedder, *, in_thread: InThread = in_own_thread) -> Calibration:
    """
    Return an embedder's calibration, made on built-in sentences where it is not known yet.

    The sentences, some hundred in English and Korean, are embedded in one call.
    """
    if not isinstance(embedder, Calibrating) or embedder.is_calibrated:
        return embedder.calibration
    done = await embedded(embedder, [text for triple in triples() for text in triple], "document", in_thread=in_thread)
    if done.faults:
        raise EmbeddingFailed(f"the embedder's vector of a built-in sentence {next(iter(done.faults.values()))}")
    same, near, far = sentence_cosines(done.vectors)
    apart = tells_apart(same, far)
    if apart < _CHANCE:
        _logger.warning(
            "the embedder %s tells sentences on one matter from others in %.0f %% of the cases, where chance gives 50",
            embedder.name,
            apart * 100,
        )
    embedder.calibrate(fit([same], [near, far]))
    return embedder.calibration


def _regression(x: NDArray[np.float64], y: NDArray[np.float64], w: NDArray[np.float64]) -> tuple[float, float]:
    slope = intercept = 0.0
    for _ in range(_STEPS):
        predicted = 0.5 + 0.5 * np.tanh(0.5 * (slope * x + intercept))
        error, spread = w * (predicted - y), w * predicted * (1 - predicted) + 1e-12
        gradient = np.array([error @ x, error.sum()])
        cross = spread @ x
        hessian = np.array([[spread @ (x * x), cross], [cross, spread.sum()]]) + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        # A Newton step from far away can overshoot.
        step *= min(1.0, 2.0 / float(np.abs(step).max() + 1e-300))
        slope, intercept = slope - float(step[0]), intercept - float(step[1])
        if np.abs(step).max() < _CLOSE:
            break
    return slope, intercept
