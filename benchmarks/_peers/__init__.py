"""
Drivers of the compared stores (peers) of `peers.py`, one module each.

The class `Peer` of a module runs the benchmark's operations with the peer's own API.
A module is imported in the environment of its peer, which also contains NumPy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from _scale import NEAREST, Rows, Vectors, clock

Timed = tuple[list[float], list[list[int]]]


class Driver:
    """
    Base class of the peers. Memories and questions are identified by their numbers in *rows*.

    A peer implements `open`, `put`, `stored`, `close` and `by_vector`. It may also implement `by_question` (search with
    words), `tune` (adjustable recall) and `wait_until_idle` (wait for background indexing).
    """

    at_once = 1_000

    def __init__(self, rows: Rows, settings: dict[str, Any]) -> None:
        self.rows, self.settings = rows, settings

    def open(self, store: Path) -> None:
        raise NotImplementedError

    def put(self, start: int, stop: int) -> None:
        """Save the memories from *start* to *stop* in one call. Return when the store has acknowledged all saves."""
        raise NotImplementedError

    def stored(self) -> list[int]:
        """Return the numbers of the stored memories."""
        raise NotImplementedError

    def by_vector(self, vector: Vectors) -> Sequence[int]:
        """Return the numbers of the memories nearest to a vector."""
        raise NotImplementedError

    def by_question(self, number: int) -> Sequence[int]:
        """Return the hits of the peer's best search mode for a question. The default is a vector search."""
        return self.by_vector(self.get_question_vector(number))

    def close(self) -> None:
        pass

    def tunable(self) -> bool:
        return hasattr(self, "tune")

    def get_question_vector(self, number: int) -> Vectors:
        return self.vector(self.rows.count + number)

    def vector(self, at: int) -> Vectors:
        return self.rows.vectors(at, at + 1)[0]

    # Requests of the runner

    def bulk(self, start: int, stop: int) -> None:
        for at in range(start, stop, self.at_once):
            self.put(at, min(at + self.at_once, stop))

    def save(self, start: int, stop: int) -> tuple[list[float], list[Any]]:
        return [clock(self.put, at, at + 1)[0] for at in range(start, stop)], []

    def nearest(self, start: int, stop: int) -> Timed:
        return self._timed(lambda number: self.by_vector(self.get_question_vector(number)), start, stop)

    def search(self, start: int, stop: int) -> Timed:
        return self._timed(self.by_question, start, stop)

    def _timed(self, find: Callable[[int], Sequence[int]], start: int, stop: int) -> Timed:
        pairs = [clock(find, number) for number in range(start, stop)]
        return [seconds for seconds, _ in pairs], [[int(one) for one in found] for _, found in pairs]

    def stream(self, start: int, stop: int, path: str) -> str:
        """
        Save memories one by one, and write each acknowledged number to a file. Return the last error's type, if any.
        """
        told, wrong = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), ""
        for at in range(start, stop):
            try:
                self.put(at, at + 1)
            except Exception as error:  # noqa: BLE001 - a peer may raise any error when two processes write
                wrong = type(error).__name__
            else:
                os.write(told, f"{at}\n".encode())
        os.close(told)
        return wrong

    def find_by_own_vectors(self, numbers: list[int]) -> list[int]:
        """Search for each memory with its own vector, and return the numbers of the memories that were found."""
        return [at for at in numbers if at in {int(one) for one in self.by_vector(self.vector(at))}]

    def looked_up(self) -> Callable[[Sequence[str]], list[list[float]]]:
        """Return an embedding function that looks up the vectors of known texts."""
        places = {text: at for at, text in enumerate(self.rows.texts)}
        return lambda texts: [self.vector(places[text]).tolist() for text in texts]


def loadable_sqlite() -> ModuleType:
    """Return an `sqlite3` module that can load extensions. The standard module of some interpreters cannot."""
    import sqlite3  # noqa: PLC0415 - selected at run time

    if hasattr(sqlite3.Connection, "enable_load_extension"):
        return sqlite3
    import pysqlite3  # noqa: PLC0415 - as above

    return pysqlite3


__all__ = ["NEAREST", "Driver", "Rows", "Vectors", "loadable_sqlite"]
