"""LRU cache with limits for the number, the total cost and the age of its entries."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

import attrs

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@attrs.define(eq=False)
class Lru(Generic[K, V]):
    """LRU cache. An entry that alone exceeds `max_cost` is not stored."""

    entries: int
    max_cost: int | None = attrs.field(default=None, kw_only=True)
    clock: Callable[[], float] = attrs.field(default=time.monotonic, kw_only=True)
    # Called with "evicted" or "expired" when an entry is removed for that reason.
    dropped: Callable[[str], object] = attrs.field(default=lambda _reason: None, kw_only=True)
    cost: int = attrs.field(default=0, init=False)
    _kept: OrderedDict[K, tuple[V, int, float, float | None]] = attrs.field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[K]:
        """Iterate over a copy of the keys, least recently used first."""
        return iter(list(self._kept))

    def get(self, key: K) -> V | None:
        """Return the value of *key* and mark it as used, or None if it is missing or expired."""
        found = self._kept.get(key)
        if found is None:
            return None
        value, _, made, ttl = found
        # Without the lower bound, a clock that steps back would keep an entry alive forever.
        if ttl is not None and not 0 <= self.clock() - made < ttl:
            self.drop(key)
            self.dropped("expired")
            return None
        self._kept.move_to_end(key)
        return value

    def peek(self, key: K) -> V | None:
        """Return the value of *key*, even if it is expired, without marking it as used."""
        found = self._kept.get(key)
        return None if found is None else found[0]

    def put(self, key: K, value: V, *, cost: int = 0, ttl: float | None = None) -> None:
        """
        Store *value* under *key*, replacing an old value.

        It expires after *ttl* seconds; None means never.
        """
        self.drop(key)
        if self.entries == 0 or (ttl is not None and ttl <= 0) or (self.max_cost is not None and cost > self.max_cost):
            return
        self._kept[key] = value, cost, self.clock() if ttl is not None else 0.0, ttl
        self.cost += cost
        while len(self._kept) > self.entries or (self.max_cost is not None and self.cost > self.max_cost):
            self.drop(next(iter(self._kept)))
            self.dropped("evicted")

    def drop(self, key: K) -> V | None:
        """Remove *key* and return its value, or None if it is missing."""
        found = self._kept.pop(key, None)
        if found is None:
            return None
        self.cost -= found[1]
        return found[0]

    def clear(self) -> None:
        """Remove all entries."""
        self._kept.clear()
        self.cost = 0
