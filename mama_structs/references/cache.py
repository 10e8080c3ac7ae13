"""Answers that may be reused: least recently used goes first, bounded in age, number and bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import attrs

from mama_structs.references.failures import Failure
from mama_structs.settings import ReferenceSettings


@attrs.frozen(eq=False)
class Answer:
    """
    A source's answer for one id.

    Args:
        data: The answer as it came: plain data that nobody else holds.
        size: Its bytes as compact JSON.
        height: The chain's height that it was read at, None where the source does not say.

    """

    data: dict[str, Any]
    size: int
    height: int | None = None


@attrs.frozen
class _Entry:
    outcome: Answer | Failure
    kind: str
    origin: object
    expires: float
    size: int


@attrs.define
class _Chain:
    """The height of one source's chain, and how many answers in a row were below it."""

    height: int | None = None
    below: int = 0

    def see(self, height: int, *, patience: int) -> None:
        """
        Take an answer's height.

        Queries under way when a block came may answer late with the one before.
        More of them than can be under way mean that the chain started anew, or that a header was wrong once.
        """
        if self.height is None or height >= self.height or self.below >= patience:
            self.height, self.below = height, 0
        else:
            self.below += 1


class Cache:
    """
    Recent answers of one resolver.

    Args:
        settings: How long and how many.
        clock: Monotonic seconds.

    """

    def __init__(self, settings: ReferenceSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.size: int = 0
        self._chains: dict[int, _Chain] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, entity_id: str) -> Answer | Failure | None:
        """Return what is known of *entity_id* and still valid, else None."""
        entry = self._entries.get(entity_id)
        if entry is None:
            return None
        if self._clock() >= entry.expires or self._overtaken(entry):
            self._drop(entity_id)
            return None
        self._entries.move_to_end(entity_id)
        return entry.outcome

    def see(self, height: int | None, *, origin: object = None) -> None:
        """Note the height that an answer of *origin* told."""
        if height is not None:
            self._chain(origin).see(height, patience=self._settings.max_parallel_queries)

    def put(self, entity_id: str, kind: str, outcome: Answer | Failure, *, origin: object = None) -> None:
        """
        Keep *outcome*: an answer, or that there is no such entity.

        Args:
            entity_id: The id.
            kind: Its type, or what else `invalidate` finds it by.
            outcome: What to keep.
            origin: Whose height the answer tells; sources are on chains of their own.

        """
        if isinstance(outcome, Answer):
            self.see(outcome.height, origin=origin)
        settings = self._settings
        is_answer = isinstance(outcome, Answer)
        lifetime = settings.cache_ttl if is_answer else min(settings.not_found_ttl, settings.cache_ttl)
        size = (outcome.size if isinstance(outcome, Answer) else 0) + len(entity_id)
        self._drop(entity_id)
        if lifetime <= 0 or size > settings.cache_bytes:
            return
        self._entries[entity_id] = _Entry(outcome, kind, origin, self._clock() + lifetime, size)
        self.size += size
        while len(self._entries) > settings.cache_entries or self.size > settings.cache_bytes:
            self._drop(next(iter(self._entries)))

    def invalidate(self, matches: Callable[[str, str], bool]) -> int:
        """Forget every entry for which ``matches(id, type)``; return how many."""
        stale = [entity_id for entity_id, entry in self._entries.items() if matches(entity_id, entry.kind)]
        for entity_id in stale:
            self._drop(entity_id)
        return len(stale)

    def _chain(self, origin: object) -> _Chain:
        return self._chains.setdefault(id(origin), _Chain())

    def _overtaken(self, entry: _Entry) -> bool:
        outcome = entry.outcome
        if self._settings.cache_until != "block" or isinstance(outcome, Failure) or outcome.height is None:
            return False
        return outcome.height != self._chain(entry.origin).height

    def _drop(self, entity_id: str) -> None:
        entry = self._entries.pop(entity_id, None)
        if entry is not None:
            self.size -= entry.size
