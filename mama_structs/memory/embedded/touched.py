"""Which memories the last changes were about, so that what was read before them can be used again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

_SIZE: Final = 4096


class Touched:
    """Which nodes the last changes touched."""

    def __init__(self, size: int = _SIZE) -> None:
        self._changes: deque[tuple[int, frozenset[int]]] = deque()
        self._size = size
        self._floor = 0

    def reset(self, change: int) -> None:
        """Know nothing of what was before *change*."""
        self._changes.clear()
        self._floor = change

    def note(self, change: int, nodes: Iterable[int]) -> None:
        """Note what a change touched; changes are noted in their order."""
        self._changes.append((change, frozenset(nodes)))
        while len(self._changes) > self._size:
            self._floor = max(self._floor, self._changes.popleft()[0])

    def forget(self, after: int) -> None:
        """Take changes back that did not come to be."""
        while self._changes and self._changes[-1][0] > after:
            self._changes.pop()

    def since(self, change: int) -> frozenset[int] | None:
        """Return what changes after *change* touched, None where that is not known any more."""
        if change < self._floor:
            return None
        touched: set[int] = set()
        for number, nodes in reversed(self._changes):
            if number <= change:
                break
            touched |= nodes
        return frozenset(touched)
