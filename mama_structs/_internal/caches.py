"""
Shared values and cached results.

Values with reference counts: the first user of a key creates its value, and the last user releases it. Caches of
functions of texts and values: erasing memories clears them, because they contain data of memories.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from typing import Final, Generic, ParamSpec, TypeVar, cast

import attrs

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")
T = TypeVar("T")


@attrs.define(eq=False)
class _Entry(Generic[V]):
    creation_lock: threading.Lock = attrs.field(factory=threading.Lock)
    values: list[V] = attrs.field(factory=list)
    users: int = 0


class RefCountedRegistry(Generic[K, V]):
    """Shared values by key, with the number of users of each. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._slots: dict[K, _Entry[V]] = {}

    def acquire(self, key: K, make: Callable[[], V]) -> V:
        """
        Return the value of *key*, and count a user of it. If the value does not exist, *make* creates it.

        Other users of the key wait while *make* runs. Each `acquire` needs one `release`.
        """
        with self._guard:
            slot = self._slots.setdefault(key, _Entry())
            slot.users += 1
        try:
            with slot.creation_lock:
                if not slot.values:
                    slot.values.append(make())
                return slot.values[0]
        except BaseException:
            self.release(key)
            raise

    def release(self, key: K) -> V | None:
        """
        Remove a user of *key*.

        If it was the last user, return the value, which the caller must close. Otherwise return None.
        """
        with self._guard:
            slot = self._slots[key]
            slot.users -= 1
            if slot.users:
                return None
            del self._slots[key]
            return slot.values[0] if slot.values else None

    def count_users(self, key: K) -> int:
        """Return the number of users of *key*."""
        with self._guard:
            return self._slots[key].users if key in self._slots else 0

    def reset(self) -> None:
        """Discard all entries. A forked child calls this, because the open values belong to its parent."""
        self.__init__()  # type: ignore[misc]  # in place, because modules hold a reference to this object


_clear_functions: Final[list[Callable[[], None]]] = []


def cache_by_text(max_entries: int, *, typed: bool = False) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """
    Return a decorator that caches the results of the most recent calls of a function of texts or other stored values.

    If *typed*, equal arguments of different types have results of their own.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        cached = functools.lru_cache(max_entries, typed)(function)
        _clear_functions.append(cached.cache_clear)
        return cast("Callable[P, T]", cached)

    return decorate


def clear_text_caches() -> None:
    """Remove all texts from the caches of this process."""
    for clear in _clear_functions:
        clear()
