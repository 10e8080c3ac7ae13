"""Size limit, in characters or tokens, for a text that is returned to a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import attrs


@attrs.frozen
class Budget:
    """Maximum size of a text. *size* returns the size of a text; by default it counts characters."""

    limit: int
    size: Callable[[str], int] = attrs.field(default=len, kw_only=True)

    def fits(self, text: str) -> bool:
        """Return True if the text is within the budget."""
        return self.size(text) <= self.limit

    def subtract(self, used: int) -> Self:
        """Return the budget that remains after *used* units, at least 0."""
        return attrs.evolve(self, limit=max(0, self.limit - used))

    def find_max_items(self, total: int, render: Callable[[int], str], *, item_size: int = 1) -> int:
        """
        Return the largest number of items, at most *total*, whose rendered text fits; 0 if none does.

        Args:
            total: Number of available items.
            render: Renders the text of the given number of items.
            item_size: Approximate size of one item.

        """
        # Start with an estimated number of items and double it, so that a much too long text is never rendered.
        fitting, tried = 0, min(total, self.limit // item_size)
        while tried > fitting and self.fits(render(tried)):
            fitting, tried = tried, min(total, 2 * tried)
        while tried - fitting > 1:
            middle = (fitting + tried) // 2
            fitting, tried = (middle, tried) if self.fits(render(middle)) else (fitting, middle)
        return fitting
