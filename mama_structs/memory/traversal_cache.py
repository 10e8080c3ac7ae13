"""Answers of traversals, kept until something that they read has changed."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class CacheStatistics:
    """
    What a cache did since it was made.

    Args:
        hits: Answers that were reused.
        misses: Questions that were not answered, those below among them.
        stale: Answers dropped because something that they read had changed.
        expired: Answers dropped because of their age.
        evicted: Answers dropped to make room.

    """

    hits: int = 0
    misses: int = 0
    stale: int = 0
    expired: int = 0
    evicted: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of questions that were answered, 0 where there was none."""
        return self.hits / max(self.hits + self.misses, 1)


@attrs.define
class _Entry(Generic[T]):
    value: T
    read: frozenset[int]
    change: int
    made: float


@attrs.define
class TraversalCache(Generic[T]):
    """
    The least recently used answers go first, and each has an end: strengths fade while it is kept.

    Args:
        entries: Answers kept at the most.
        ttl: Seconds for which an answer may be reused, counted from when it was made.
        max_items: Nodes that all kept answers together may have read.
        clock: Gives monotonic seconds.

    """

    entries: int = attrs.field(default=100, kw_only=True)
    ttl: float = attrs.field(default=300.0, kw_only=True)
    max_items: int = attrs.field(default=20_000, kw_only=True)
    clock: Callable[[], float] = attrs.field(default=time.monotonic, kw_only=True)
    _kept: OrderedDict[Hashable, _Entry[T]] = attrs.field(factory=OrderedDict, init=False)
    _items: int = attrs.field(default=0, init=False)
    _statistics: CacheStatistics = attrs.field(factory=CacheStatistics, init=False)

    @property
    def statistics(self) -> CacheStatistics:
        """What it did since it was made."""
        return self._statistics

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, change: int, touched: Callable[[int], frozenset[int] | None]) -> T | None:
        """
        Return an answer that is as good as a fresh one, else None.

        Args:
            key: The question.
            change: The number of the last change.
            touched: Gives the nodes that changed, or whose links did, after a change; None where that is not known.

        """
        entry = self._kept.get(key)
        if entry is None:
            self._count(misses=1)
            return None
        # A clock that steps back would let an answer live for ever.
        if not 0 <= self.clock() - entry.made < self.ttl:
            self._drop(key)
            self._count(misses=1, expired=1)
            return None
        if entry.change != change:
            after = touched(entry.change) if entry.change < change else None
            if after is None or not after.isdisjoint(entry.read):
                self._drop(key)
                self._count(misses=1, stale=1)
                return None
            entry.change = change
        self._kept.move_to_end(key)
        self._count(hits=1)
        return entry.value

    def put(self, key: Hashable, change: int, read: frozenset[int], value: T) -> None:
        """
        Keep an answer.

        Args:
            key: The question.
            change: The number of the last change when it was made.
            read: The nodes whose links or contents the answer depends on.
            value: The answer; whoever gets it must not change it.

        """
        self._drop(key)
        if len(read) > self.max_items or self.entries == 0 or self.ttl == 0:
            return
        self._kept[key] = _Entry(value, read, change, self.clock())
        self._items += len(read)
        while len(self._kept) > self.entries or self._items > self.max_items:
            self._drop(next(iter(self._kept)))
            self._count(evicted=1)

    def clear(self) -> None:
        """Forget all answers, as where nodes have got other numbers."""
        self._kept.clear()
        self._items = 0

    def _drop(self, key: Hashable) -> None:
        entry = self._kept.pop(key, None)
        if entry is not None:
            self._items -= len(entry.read)

    def _count(self, **more: int) -> None:
        now = self._statistics
        self._statistics = attrs.evolve(now, **{name: getattr(now, name) + number for name, number in more.items()})
