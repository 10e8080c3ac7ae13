"""Placement of labels in a plot, so that they cover neither lines nor points nor each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
"""Points in pixels, of shape (points, 2)."""

_DIAGONAL: Final = 0.7
_CHAR_WIDTH_RATIO: Final = 0.6
_LINE_HEIGHT_RATIO: Final = 1.3
"""Size of a character, relative to the size of the font."""
_LINE_MARGIN: Final = 2.0
_POINT_RADIUS: Final = 5.0
"""Free space around a label, in typographic points."""
_COVERED_POINT_COST: Final = 4.0
_COVERED_LABEL_COST: Final = 3.0
_OUTSIDE_COST: Final = 1_000.0
"""Costs of a place, relative to the cost of a crossed line."""


class LabelPlace(NamedTuple):
    """Place of a label relative to its point."""

    text: str
    offset: tuple[float, float]
    """Distance from the point, in typographic points."""
    ha: Literal["left", "center", "right"]
    va: Literal["top", "center", "bottom"]
    cost: float
    """0 if the label covers nothing."""


class LabelPlacer:
    """
    Finds places for labels, one after another.

    Args:
        points: All points of the plot.
        starts: Start of each line, in pixels.
        ends: End of each line.
        frame: Left, bottom, right and top of the area for labels, in pixels.
        dpi: Pixels per inch.
        gap: Distance of a label from its point, in typographic points.

    """

    def __init__(
        self,
        points: Points,
        starts: Points,
        ends: Points,
        *,
        frame: tuple[float, float, float, float],
        dpi: float,
        gap: float,
    ) -> None:
        self._points, self._starts = points, starts
        steps = ends - starts
        self._steps = np.where(steps == 0, 1e-9, steps)
        self._low, self._high = np.array(frame[:2]), np.array(frame[2:])
        self._pixels, self._gap = dpi / 72, gap
        self._taken = np.empty((0, 4))

    def place(
        self, at: int, texts: Sequence[str], *, size: float, sides: Sequence[tuple[int, int]], max_cost: float = np.inf
    ) -> LabelPlace | None:
        """
        Return the place that covers the least, or None if all places cost more than *max_cost*.

        Args:
            at: Index of the label's point.
            texts: The text, and shorter ones to use if it does not fit.
            size: Size of the font, in typographic points.
            sides: Directions from the point to try, the best first: 1 is right and up, -1 left and down.
            max_cost: The maximum cost.

        """
        best, best_box = None, None
        for text in texts:
            for side in sides:
                box, offset = self._box(at, len(text), size, side)
                cost = self._cost(at, box)
                if best is None or cost < best.cost:
                    has, vas = ("center", "left", "right"), ("center", "bottom", "top")
                    best = LabelPlace(text, offset, has[side[0]], vas[side[1]], cost)  # type: ignore[arg-type]
                    best_box = box
            if best is not None and best.cost == 0:
                break
        if best is None or best_box is None or best.cost > max_cost:
            return None
        self._taken = np.vstack([self._taken, best_box])
        return best

    def _box(
        self, at: int, length: int, size: float, side: tuple[int, int]
    ) -> tuple[NDArray[np.float64], tuple[float, float]]:
        gap = self._gap * (_DIAGONAL if all(side) else 1.0)
        offset = np.array(side) * gap
        extent = np.array([_CHAR_WIDTH_RATIO * length, _LINE_HEIGHT_RATIO]) * size * self._pixels
        middle = self._points[at] + offset * self._pixels + np.array(side) * extent / 2
        return np.concatenate([middle - extent / 2, middle + extent / 2]), (float(offset[0]), float(offset[1]))

    def _cost(self, at: int, box: NDArray[np.float64]) -> float:
        low, high = box[:2], box[2:]
        radius, margin = _POINT_RADIUS * self._pixels, _LINE_MARGIN * self._pixels
        covered = ((self._points > low - radius) & (self._points < high + radius)).all(axis=1)
        others = np.arange(len(self._points)) != at
        overlaps = ((self._taken[:, :2] < high) & (self._taken[:, 2:] > low)).all(axis=1)
        is_outside = bool((low < self._low).any() or (high > self._high).any())
        return (
            float(self._crossed_lines(low - margin, high + margin).sum())
            + _COVERED_POINT_COST * float((covered & others).sum())
            + _COVERED_LABEL_COST * float(overlaps.sum())
            + _OUTSIDE_COST * is_outside
        )

    def _crossed_lines(self, low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which lines cross a box, by the intersection of the parts of a line inside its width and height."""
        one, other = (low - self._starts) / self._steps, (high - self._starts) / self._steps
        enter, leave = np.minimum(one, other).max(axis=1), np.maximum(one, other).min(axis=1)
        crossed: NDArray[np.bool_] = (enter <= leave) & (leave >= 0) & (enter <= 1)
        return crossed


ABOVE: Final = (0, 1)
BELOW: Final = (0, -1)
"""Sides of a point, as directions: 1 is right and up, -1 left and down."""


def sort_sides(point: Iterable[float], centre: Iterable[float]) -> list[tuple[int, int]]:
    """Return all sides of a point, those away from the centre of the plot first."""
    away = np.asarray([*point]) - np.asarray([*centre])
    above, below = (ABOVE, BELOW) if away[1] >= 0 else (BELOW, ABOVE)
    beside = 1 if away[0] >= 0 else -1
    return [
        above,
        (beside, 0),
        (beside, above[1]),
        (-beside, above[1]),
        (beside, below[1]),
        (-beside, 0),
        below,
        (-beside, below[1]),
    ]
