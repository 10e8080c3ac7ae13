"""How much of a text a model may be shown: a number, and what counts up to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import attrs


@attrs.frozen
class Budget:
    """At most *limit* of what *size* counts, which is characters where nothing else is said."""

    limit: int
    size: Callable[[str], int] = attrs.field(default=len, kw_only=True)

    def holds(self, text: str) -> bool:
        """Tell whether a text is within the budget."""
        return self.size(text) <= self.limit

    def less(self, used: int) -> Self:
        """Return what is left when so much is used, nothing at the least."""
        return attrs.evolve(self, limit=max(0, self.limit - used))

    def most(self, total: int, shown: Callable[[int], str], *, each: int = 1) -> int:
        """
        Return how many of *total* things may be shown, 0 where not even one.

        *shown* gives the text of so many; *each* is about what one takes.
        """
        # From a guess on, by doubling: what is far too much is never made.
        least, tried = 0, min(total, self.limit // each)
        while tried > least and self.holds(shown(tried)):
            least, tried = tried, min(total, 2 * tried)
        while tried - least > 1:
            middle = (least + tried) // 2
            least, tried = (middle, tried) if self.holds(shown(middle)) else (least, middle)
        return least
