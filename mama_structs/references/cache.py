"""Answers that may be reused: least recently used goes first, bounded in age, number and bytes."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from mama_structs._lru import Lru
from mama_structs.references.outcomes import SourceAnswer, SourceOutcome
from mama_structs.settings import ReferenceSettings


@attrs.define
class _ChainHeight:
    """The height of one source's chain, and how many answers in a row were below it."""

    height: int | None = None
    below: int = 0


class AnswerCache:
    """Recent answers of one resolver; *clock* gives monotonic seconds."""

    def __init__(self, settings: ReferenceSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        # An answer, the word by which it is invalidated, and the source that gave it.
        self._kept: Lru[str, tuple[SourceOutcome, str, object]] = Lru(
            settings.cache_entries, max_cost=settings.cache_bytes, clock=clock
        )
        self._chains: dict[int, _ChainHeight] = {}

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

    def invalidate(self, matches: Callable[[str, str], bool]) -> int:
        """Forget every entry for which ``matches(id, type)``; return how many."""
        stale = [key for key in self._kept if (kept := self._kept.peek(key)) is not None and matches(key, kept[1])]
        return sum(self._kept.drop(key) is not None for key in stale)

    def _chain(self, origin: object) -> _ChainHeight:
        return self._chains.setdefault(id(origin), _ChainHeight())
