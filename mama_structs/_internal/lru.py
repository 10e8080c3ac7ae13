"""A cache whose least recently used entries go first, bounded in number, cost and age."""

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
    """Entries kept for reuse, so many and of so much cost together at the most; what costs more is not kept."""

    entries: int
    max_cost: int | None = attrs.field(default=None, kw_only=True)
    clock: Callable[[], float] = attrs.field(default=time.monotonic, kw_only=True)
    # Called with "evicted" or "expired" when an entry goes for that reason.
    dropped: Callable[[str], object] = attrs.field(default=lambda _reason: None, kw_only=True)
    cost: int = attrs.field(default=0, init=False)
    _kept: OrderedDict[K, tuple[V, int, float, float | None]] = attrs.field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys, the least recently used first; entries may be dropped meanwhile."""
        return iter(list(self._kept))

    def get(self, key: K) -> V | None:
        """Return what is kept under *key* and has not expired, which counts as a use, else None."""
        found = self._kept.get(key)
        if found is None:
            return None
        value, _, made, ttl = found
        # A clock that steps back would let an entry live for ever.
        if ttl is not None and not 0 <= self.clock() - made < ttl:
            self.drop(key)
            self.dropped("expired")
            return None
        self._kept.move_to_end(key)
        return value

    def peek(self, key: K) -> V | None:
        """Return what is kept under *key*, expired or not, without counting it as a use."""
        found = self._kept.get(key)
        return None if found is None else found[0]

    def put(self, key: K, value: V, *, cost: int = 0, ttl: float | None = None) -> None:
        """Keep *value* for *ttl* seconds (None: for ever), in place of what is kept under *key*."""
        self.drop(key)
        if self.entries == 0 or (ttl is not None and ttl <= 0) or (self.max_cost is not None and cost > self.max_cost):
            return
        self._kept[key] = value, cost, self.clock() if ttl is not None else 0.0, ttl
        self.cost += cost
        while len(self._kept) > self.entries or (self.max_cost is not None and self.cost > self.max_cost):
            self.drop(next(iter(self._kept)))
            self.dropped("evicted")

    def drop(self, key: K) -> V | None:
        """Forget *key*, and return what was kept under it."""
        found = self._kept.pop(key, None)
        if found is None:
            return None
        self.cost -= found[1]
        return found[0]

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self.cost = 0
