"""Reference counts: what several use under one key, opened by the first and given up by the last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import attrs

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@attrs.define(eq=False)
class _Slot(Generic[V]):
    opening: threading.Lock = attrs.field(factory=threading.Lock)
    values: list[V] = attrs.field(factory=list)
    users: int = 0


class Registry(Generic[K, V]):
    """What is open, by its key; usable from any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._slots: dict[K, _Slot[V]] = {}

    def join(self, key: K, make: Callable[[], V]) -> V:
        """Return what is under *key*, or make it, which may block and makes others of this key wait; undo: `leave`."""
        with self._guard:
            slot = self._slots.setdefault(key, _Slot())
            slot.users += 1
        try:
            with slot.opening:
                if not slot.values:
                    slot.values.append(make())
                return slot.values[0]
        except BaseException:
            self.leave(key)
            raise

    def leave(self, key: K) -> V | None:
        """Use what is under *key* no more, and return it where nobody does: then the caller closes it."""
        with self._guard:
            slot = self._slots[key]
            slot.users -= 1
            if slot.users:
                return None
            del self._slots[key]
            return slot.values[0] if slot.values else None

    def users(self, key: K) -> int:
        """Return how many use what is under *key*."""
        with self._guard:
            return self._slots[key].users if key in self._slots else 0

    def forget(self) -> None:
        """Start anew in a forked child: what is open is its parent's."""
        self.__init__()  # type: ignore[misc]  # in place: it is a module's name
