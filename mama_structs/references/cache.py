"""
Cache of source answers with limited age, entry count and size.

Resolvers of one event loop may share caches.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Final, TypeAlias

import attrs
from cachetools import Cache, LRUCache

from mama_structs.references.results import SourceAnswer, SourceOutcome
from mama_structs.settings import ReferenceSettings

# Called with the key and the type of a cached answer. Returns True if the answer must be deleted.
AnswerPredicate: TypeAlias = Callable[[str, str], bool]


@attrs.define
class _ChainHeight:
    """Latest chain height of one source, and the number of consecutive answers with a lower height."""

    height: int | None = None
    consecutive_lower: int = 0


@attrs.frozen
class _CachedAnswer:
    outcome: SourceOutcome
    kind: str  # Entity type, by which `invalidate` selects answers.
    origin: object  # Source that returned the answer.
    size: int
    made: float
    ttl: float


class AnswerCache:
    """Cache of recent answers. *clock* returns monotonic seconds."""

    def __init__(self, settings: ReferenceSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._answers: LRUCache[str, _CachedAnswer] = LRUCache(settings.cache_bytes, getsizeof=lambda kept: kept.size)
        self._chains: dict[int, _ChainHeight] = {}
        # All cache groups that share this cache.
        self.sharers: weakref.WeakSet[CacheGroup] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def size(self) -> float:
        """The total size of the cached answers in bytes."""
        return self._answers.currsize

    def get(self, entity_id: str) -> SourceOutcome | None:
        """Return the valid cached answer for *entity_id*, else None."""
        kept = self._answers.get(entity_id)
        if kept is None:
            return None
        height = getattr(kept.outcome, "height", None)
        is_outdated = self._settings.cache_until == "block" and height not in (
            None,
            self._get_chain_height(kept.origin).height,
        )
        # Reject a negative age, because a clock that steps backwards would keep an answer valid forever.
        if is_outdated or not 0 <= self._clock() - kept.made < kept.ttl:
            del self._answers[entity_id]
            return None
        return kept.outcome

    def record_height(self, height: int | None, *, origin: object = None) -> None:
        """Record the chain height of an answer from *origin*."""
        if height is None:
            return
        chain = self._get_chain_height(origin)
        # A query in flight when a block arrives may return the previous height, so tolerate some lower heights.
        # More lower heights than parallel queries mean that the chain was restarted or the stored height was wrong.
        if (
            chain.height is None
            or height >= chain.height
            or chain.consecutive_lower >= self._settings.max_parallel_queries
        ):
            chain.height, chain.consecutive_lower = height, 0
        else:
            chain.consecutive_lower += 1

    def put(self, entity_id: str, kind: str, outcome: SourceOutcome, *, origin: object = None) -> None:
        """
        Cache an answer or a "not found".

        Heights are tracked per *origin*, since each may be a separate chain.
        """
        settings, size, lifetime = self._settings, len(entity_id), self._settings.cache_ttl
        if isinstance(outcome, SourceAnswer):
            self.record_height(outcome.height, origin=origin)
            size += outcome.size
        else:
            lifetime = min(settings.not_found_ttl, lifetime)
        self._answers.pop(entity_id, None)
        if lifetime > 0 and size <= settings.cache_bytes:
            self._answers[entity_id] = _CachedAnswer(outcome, kind, origin, size, self._clock(), lifetime)
            while len(self._answers) > settings.cache_entries:
                self._answers.popitem()

    def invalidate(self, matches: AnswerPredicate) -> int:
        """Delete every entry for which ``matches(id, type)`` is true. Return their number."""
        # Bypass `LRUCache.__getitem__`, which would mark every checked answer as recently used.
        stale = [key for key in self._answers if matches(key, Cache.__getitem__(self._answers, key).kind)]
        for key in stale:
            del self._answers[key]
        return len(stale)

    def _get_chain_height(self, origin: object) -> _ChainHeight:
        return self._chains.setdefault(id(origin), _ChainHeight())


class CacheGroup:
    """The caches of one resolver: a private cache, and caches that sources with equal ``_shared_as`` share."""

    def __init__(
        self,
        settings: ReferenceSettings,
        clock: Callable[[], float],
        *,
        detach_queries: Callable[[AnswerPredicate], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self.detach_queries = detach_queries
        self._own = AnswerCache(settings, clock)
        # Shared caches, keyed by event loop and `_shared_as`.
        self._shared: dict[tuple[Hashable, ...], AnswerCache] = {}

    def __len__(self) -> int:
        return len(self._own) + sum(map(len, self._shared.values()))

    def get(self, key: str, origin: object) -> SourceOutcome | None:
        """Return the valid cached answer of *origin* for *key*, else None."""
        return self._get_cache(origin)[0].get(key)

    def put(self, key: str, kind: str, outcome: SourceOutcome, *, origin: object) -> None:
        """Cache the answer of *origin*."""
        cache, chain = self._get_cache(origin)
        cache.put(key, kind, outcome, origin=chain)

    def invalidate(self, matches: AnswerPredicate, origins: Iterable[object]) -> int:
        """Delete the matching answers of *origins* from all caches. Return their number."""
        for origin in origins:
            self._get_cache(origin)
        self.detach_queries(matches)
        dropped = self._own.invalidate(matches)
        for (loop, name, _, _), cache in list(_shared_caches.items()):
            if (loop, name) in self._shared:
                for user in list(cache.sharers):
                    user.detach_queries(matches)
                dropped += cache.invalidate(matches)
        return dropped

    def close(self) -> None:
        """Release the shared caches. The last user deletes them."""
        self._shared.clear()
        self._own = AnswerCache(self._settings, self._clock)

    def _get_cache(self, origin: object) -> tuple[AnswerCache, object]:
        """Return the cache for *origin*, and the key for its chain height in that cache."""
        name = getattr(origin, "_shared_as", None)
        loop = _get_running_loop()
        if name is None or loop is None:
            return self._own, origin
        if (loop, name) not in self._shared:
            alike = tuple(getattr(self._settings, setting) for setting in _SHARED_SETTING_NAMES)
            key = loop, name, self._clock, alike
            cache = self._shared[loop, name] = _shared_caches.setdefault(key, AnswerCache(self._settings, self._clock))
            cache.sharers.add(self)
        return self._shared[loop, name], None


# Resolvers share a cache only if these settings are equal.
_SHARED_SETTING_NAMES: Final = ("cache_ttl", "cache_until", "cache_entries", "cache_bytes", "not_found_ttl")
_shared_caches: Final[weakref.WeakValueDictionary[tuple[Hashable, ...], AnswerCache]] = weakref.WeakValueDictionary()


def _get_running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
