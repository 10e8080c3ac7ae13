"""Answers that may be reused, by resolvers of one event loop that ask alike; bounded in age, number and bytes."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Final, TypeAlias

import attrs

from mama_structs._internal.lru import Lru
from mama_structs.references.results import SourceAnswer, SourceOutcome
from mama_structs.settings import ReferenceSettings

# Tells whether an answer is meant, by its key and the word for its kind.
Matches: TypeAlias = Callable[[str, str], bool]


@attrs.define
class _ChainHeight:
    """The height of one source's chain, and how many answers in a row were below it."""

    height: int | None = None
    below: int = 0


class AnswerCache:
    """Recent answers; *clock* gives monotonic seconds."""

    def __init__(self, settings: ReferenceSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        # An answer, the word by which it is invalidated, and the source that gave it.
        self._kept: Lru[str, tuple[SourceOutcome, str, object]] = Lru(
            settings.cache_entries, max_cost=settings.cache_bytes, clock=clock
        )
        self._chains: dict[int, _ChainHeight] = {}
        # Who else has it, where resolvers share it.
        self.users: weakref.WeakSet[Caches] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """The bytes of all that is kept."""
        return self._kept.cost

    def get(self, entity_id: str) -> SourceOutcome | None:
        """Return what is known of *entity_id* and still valid, else None."""
        kept = self._kept.get(entity_id)
        if kept is None:
            return None
        outcome, _, origin = kept
        height = getattr(outcome, "height", None)
        if self._settings.cache_until == "block" and height not in (None, self._chain(origin).height):
            self._kept.drop(entity_id)
            return None
        return outcome

    def see(self, height: int | None, *, origin: object = None) -> None:
        """Note the height that an answer of *origin* told."""
        if height is None:
            return
        chain = self._chain(origin)
        # Queries under way when a block came may answer late with the one before. More of them than can be under way
        # mean that the chain started anew, or that a header was wrong once.
        if chain.height is None or height >= chain.height or chain.below >= self._settings.max_parallel_queries:
            chain.height, chain.below = height, 0
        else:
            chain.below += 1

    def put(self, entity_id: str, kind: str, outcome: SourceOutcome, *, origin: object = None) -> None:
        """Keep an answer, or that there is no such entity; sources are on chains of their own, with their heights."""
        settings, size, lifetime = self._settings, len(entity_id), self._settings.cache_ttl
        if isinstance(outcome, SourceAnswer):
            self.see(outcome.height, origin=origin)
            size += outcome.size
        else:
            lifetime = min(settings.not_found_ttl, lifetime)
        self._kept.put(entity_id, (outcome, kind, origin), cost=size, ttl=lifetime)

    def invalidate(self, matches: Matches) -> int:
        """Forget every entry for which ``matches(id, type)``; return how many."""
        stale = [key for key in self._kept if (kept := self._kept.peek(key)) is not None and matches(key, kept[1])]
        return sum(self._kept.drop(key) is not None for key in stale)

    def _chain(self, origin: object) -> _ChainHeight:
        return self._chains.setdefault(id(origin), _ChainHeight())


class Caches:
    """The caches that one resolver uses: one of its own, and those of sources that share theirs by ``shared_as``."""

    def __init__(
        self, settings: ReferenceSettings, clock: Callable[[], float], *, forget: Callable[[Matches], None]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self.forget = forget
        self._own = AnswerCache(settings, clock)
        # By event loop and name.
        self._shared: dict[tuple[Hashable, ...], AnswerCache] = {}

    def __len__(self) -> int:
        return len(self._own) + sum(map(len, self._shared.values()))

    def get(self, key: str, origin: object) -> SourceOutcome | None:
        """Return what is known of *key*, which *origin* answers for, and still valid, else None."""
        return self._of(origin)[0].get(key)

    def put(self, key: str, kind: str, outcome: SourceOutcome, *, origin: object) -> None:
        """Keep what *origin* answered."""
        cache, chain = self._of(origin)
        cache.put(key, kind, outcome, origin=chain)

    def invalidate(self, matches: Matches, origins: Iterable[object]) -> int:
        """Forget every matching answer of *origins*, wherever it is kept; return how many there were."""
        for origin in origins:
            self._of(origin)
        self.forget(matches)
        dropped = self._own.invalidate(matches)
        for (loop, name, _, _), cache in list(_shared.items()):
            if (loop, name) in self._shared:
                for user in list(cache.users):
                    user.forget(matches)
                dropped += cache.invalidate(matches)
        return dropped

    def close(self) -> None:
        """Use what is shared no more; the last one takes it along."""
        self._shared.clear()
        self._own = AnswerCache(self._settings, self._clock)

    def _of(self, origin: object) -> tuple[AnswerCache, object]:
        """Return the cache for *origin*, and whose chain it is on there."""
        name = getattr(origin, "shared_as", None)
        loop = _running_loop()
        if name is None or loop is None:
            return self._own, origin
        if (loop, name) not in self._shared:
            alike = tuple(getattr(self._settings, setting) for setting in _ALIKE)
            key = loop, name, self._clock, alike
            cache = self._shared[loop, name] = _shared.setdefault(key, AnswerCache(self._settings, self._clock))
            cache.users.add(self)
        return self._shared[loop, name], None


# What the resolvers of one event loop have in common of sources that answer alike.
_ALIKE: Final = ("cache_ttl", "cache_until", "cache_entries", "cache_bytes", "not_found_ttl")
_shared: Final[weakref.WeakValueDictionary[tuple[Hashable, ...], AnswerCache]] = weakref.WeakValueDictionary()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
