"""A mapping that can be forked at the price of what was written since the last fork."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Self, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Layers(Generic[K, V]):
    """
    A mapping of frozen layers that forks share, and one layer of its own for what is written later.

    Nothing is ever removed: what is gone is written over with a value that says so.
    Layers are merged so that each is more than twice the one above it: *n* entries are found in O(log n) layers, and
    are copied O(log n) times at the most, however often the mapping is forked.
    """

    __slots__ = ("_below", "_top")

    def __init__(self, below: tuple[dict[K, V], ...] = ()) -> None:
        self._below = below
        self._top: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return the newest value of a key, None where there is none."""
        if key in self._top:
            return self._top[key]
        for layer in reversed(self._below):
            if key in layer:
                return layer[key]
        return None

    def __setitem__(self, key: K, value: V) -> None:
        """Write a value that only this mapping, and forks of it, will see."""
        self._top[key] = value

    def fork(self) -> Self:
        """Return a mapping that holds the same, and that later writes do not cross into or out of."""
        if self._top:
            top, below = self._top, self._below
            while below and len(below[-1]) <= 2 * len(top):
                # Into a new dict: other forks still read the old ones.
                top, below = below[-1] | top, below[:-1]
            self._below, self._top = (*below, top), {}
        return type(self)(self._below)

    def items(self) -> Iterator[tuple[K, V]]:
        """Go through keys and newest values, in the order in which keys were first written."""
        merged: dict[K, V] = {}
        for layer in (*self._below, self._top):
            merged.update(layer)
        return iter(merged.items())
