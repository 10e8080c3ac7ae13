"""Budget for the size of a text that is returned to a model, in characters or tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import attrs


@attrs.frozen
class Budget:
    """Maximum size of a text. *size* measures a text; by default it counts characters."""

    limit: int
    size: Callable[[str], int] = attrs.field(default=len, kw_only=True)

    def holds(self, text: str) -> bool:
        """Return True if the text fits into the budget."""
        return self.size(text) <= self.limit

    def less(self, used: int) -> Self:
        """Return the budget that remains after *used* units, at least 0."""
        return attrs.evolve(self, limit=max(0, self.limit - used))

    def most(self, total: int, shown: Callable[[int], str], *, each: int = 1) -> int:
        """
        Return the largest number of *total* items whose rendered text fits, or 0.

        Args:
            total: Number of available items.
            shown: Renders the text of the given number of items.
            each: Approximate size of one item.

        """
        # Start from an estimate and double it, so that a text far over the budget is never rendered.
        least, tried = 0, min(total, self.limit // each)
        while tried > least and self.holds(shown(tried)):
            least, tried = tried, min(total, 2 * tried)
        while tried - least > 1:
            middle = (least + tried) // 2
            least, tried = (middle, tried) if self.holds(shown(middle)) else (least, middle)
        return least
