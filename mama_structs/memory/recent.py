"""Answers of traversals, kept until something that they read has changed, and which memories changed recently."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

import attrs

from mama_structs._lru import Lru

_REMEMBERED: Final = 4096

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class CacheStatistics:
    """What a cache did since it was made: *misses* count all questions that were not answered, whatever the reason."""

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
class _Answer(Generic[T]):
    value: T
    read: frozenset[int]
    change: int


class TraversalCache(Generic[T]):
    """The least recently used answers go first, and each has an end: strengths fade while it is kept."""

    def __init__(
        self,
        *,
        entries: int = 100,
        ttl: float = 300.0,
        max_items: int = 20_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttl = ttl
        self._counts: Counter[str] = Counter()
        # Its cost is how many nodes all kept answers together have read.
        self._kept: Lru[Hashable, _Answer[T]] = Lru(entries, max_cost=max_items, clock=clock, dropped=self._count)

    @property
    def statistics(self) -> CacheStatistics:
        """What it did since it was made."""
        return CacheStatistics(**self._counts)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, change: int, touched: Callable[[int], frozenset[int] | None]) -> T | None:
        """Return an answer as good as a fresh one at *change*, None for none; *touched* gives what changed since."""
        answer = self._kept.get(key)
        if answer is not None and answer.change != change:
            since = touched(answer.change) if answer.change < change else None
            if since is None or not since.isdisjoint(answer.read):
                self._kept.drop(key)
                self._count("stale")
                answer = None
            else:
                answer.change = change
        self._count("misses" if answer is None else "hits")
        return None if answer is None else answer.value

    def put(self, key: Hashable, change: int, read: frozenset[int], value: T) -> None:
        """Keep an answer, which nobody may change, with the nodes whose links or contents it depends on."""
        self._kept.put(key, _Answer(value, read, change), cost=len(read), ttl=self._ttl)

    def clear(self) -> None:
        """Forget all answers, as where the clock was set."""
        self._kept.clear()

    def _count(self, what: str) -> None:
        self._counts[what] += 1


class RecentChanges:
    """Which nodes the last changes touched."""

    def __init__(self, size: int = _REMEMBERED) -> None:
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
