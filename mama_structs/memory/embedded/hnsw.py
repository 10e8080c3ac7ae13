"""The only module that imports hnswlib, and the guard around it."""

from __future__ import annotations

import functools
import importlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
Vectors = NDArray[np.float32]

SEED: Final = 100
SPACE: Final = "ip"
"""Of normalised vectors the inner product is the cosine, and the library makes no copy to normalise them again."""

_FIRST_CAPACITY: Final = 1024

_log: Final = logging.getLogger(__name__)


class GraphFailed(Exception):
    """The library raised, or did not do what it was asked: the graph must not be used any more."""


class GraphBusy(Exception):
    """The graph is being added to or saved, and was not free in time."""


@attrs.frozen(kw_only=True)
class Plan:
    """How a graph is built."""

    m: int = 16
    ef_construction: int = 150


@functools.cache
def _library() -> Any:
    """Return hnswlib, or None where it cannot be imported, which is said once."""
    try:
        return importlib.import_module("hnswlib")
    except Exception as error:  # noqa: BLE001 - a native module built for another machine can raise anything
        _log.warning(
            "hnswlib cannot be imported (%s): large memories are searched exactly, which is slower",
            type(error).__name__,
        )
        return None


def available() -> bool:
    """Tell whether graphs can be made here."""
    return _library() is not None


class Graph:
    """Approximate nearest neighbours among vectors with the labels 0, 1, 2, … in order of adding."""

    def __init__(self, dimensions: int, *, plan: Plan | None = None, capacity: int = _FIRST_CAPACITY) -> None:
        self.dimensions = dimensions
        self.plan: Plan = Plan() if plan is None else plan
        self._lock = threading.Lock()
        self._waiting = 0
        self._count = 0
        self._marked = np.zeros(max(1, capacity), np.bool_)
        self._dead = 0
        self._ef = 0
        with _guarded():
            self._index = _library().Index(space=SPACE, dim=dimensions)
            self._index.init_index(
                max_elements=len(self._marked),
                M=self.plan.m,
                ef_construction=self.plan.ef_construction,
                random_seed=SEED,
            )

    @classmethod
    def load(cls, path: Path, *, dimensions: int, plan: Plan, marked: NDArray[np.bool_]) -> Graph:
        """Read a graph from a file that is known to be what `save` wrote: damaged bytes can kill the process."""
        capacity = max(_FIRST_CAPACITY, 1 << len(marked).bit_length())
        graph = cls(dimensions, plan=plan, capacity=1)
        graph._count = len(marked)
        graph._marked = np.zeros(capacity, np.bool_)
        graph._marked[: len(marked)] = marked
        graph._dead = int(np.count_nonzero(marked))
        with _guarded():
            graph._index = _library().Index(space=SPACE, dim=dimensions)
            graph._index.load_index(str(path), max_elements=capacity)
            found = (graph._index.get_current_count(), graph._index.M, graph._index.ef_construction)
        if found != (len(marked), plan.m, plan.ef_construction):
            raise GraphFailed(f"the file's count, M and ef_construction are {found}, not those of its description")
        return graph

    def __len__(self) -> int:
        return self._count

    @property
    def is_wanted(self) -> bool:
        """Whether a query waits: the lock is not fair, so whoever adds slice by slice must let it pass."""
        return self._waiting > 0

    @property
    def live(self) -> int:
        """How many vectors are not marked as deleted."""
        return self._count - self._dead

    def add(self, vectors: Vectors, *, threads: int = 1) -> None:
        """Add vectors, whose labels follow those that there are."""
        check_vectors(vectors, self.dimensions)
        if not len(vectors):
            return
        with self._lock, _guarded():
            end = self._count + len(vectors)
            self._make_room(end)
            self._index.add_items(vectors, np.arange(self._count, end), num_threads=threads)
            self._count = end

    def mark(self, alive: NDArray[np.bool_], *, wait: float = -1) -> None:
        """Mark as deleted what is not alive, and as not deleted what is so again."""
        with self._held(wait), _guarded():
            count = min(self._count, len(alive))
            for label in np.flatnonzero(self._marked[:count] == alive[:count]).tolist():
                deleted = not alive[label]
                if deleted:
                    self._index.mark_deleted(label)
                else:
                    self._index.unmark_deleted(label)
                self._marked[label] = deleted
                self._dead += 1 if deleted else -1

    def query(self, vectors: Vectors, limit: int, *, ef: int, wait: float = -1) -> Labels:
        """Return the labels nearest to each vector, best first."""
        check_vectors(vectors, self.dimensions)
        with self._held(wait), _guarded():
            wanted = min(limit, self.live)
            if wanted < 1:
                return np.empty((len(vectors), 0), np.int64)
            needed = max(ef, wanted)
            if needed != self._ef:
                # Neither a new nor a loaded index has it: its default of 10 finds half of what there is.
                self._index.set_ef(needed)
                self._ef = needed
            labels, _ = self._index.knn_query(vectors, k=wanted, num_threads=1)
            found: Labels = labels.astype(np.int64)
            return found

    def save(self, path: Path, *, at_most: int) -> NDArray[np.bool_] | None:
        """Write the graph to a file, and return the marks that belong to it."""
        with self._lock:
            if self._count > at_most:
                return None
            with _guarded():
                self._index.save_index(str(path))
                expected = self._index.index_file_size()
            size = path.stat().st_size
            if size != expected:
                raise OSError(f"the graph's file has {size} bytes instead of {expected}")
            return self._marked[: self._count].copy()

    @contextmanager
    def _held(self, wait: float) -> Iterator[None]:
        """Have the lock, before the next slice of whoever adds."""
        self._waiting += 1
        try:
            if not self._lock.acquire(timeout=wait):
                raise GraphBusy
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()

    def _make_room(self, needed: int) -> None:
        capacity = len(self._marked)
        # Before the last place is taken: what the library does when it is full is not worth finding out.
        if needed < capacity:
            return
        while capacity <= needed:
            capacity *= 2
        self._index.resize_index(capacity)
        marked = np.zeros(capacity, np.bool_)
        marked[: self._count] = self._marked[: self._count]
        self._marked = marked


def check_vectors(vectors: Vectors, dimensions: int) -> None:
    """Refuse what the library would take in silence: other types and widths, NaN, infinity and zero vectors."""
    if vectors.dtype != np.float32 or vectors.ndim != 2 or vectors.shape[1] != dimensions:  # noqa: PLR2004 - rows
        raise ValueError(
            f"vectors must be float32 of shape (n, {dimensions}), got {vectors.dtype} of shape {vectors.shape}"
        )
    squares = np.einsum("ij,ij->i", vectors, vectors)
    if not (np.isfinite(squares) & (squares > 0)).all():
        raise ValueError("vectors must be finite and not zero")


@contextmanager
def _guarded() -> Iterator[None]:
    """Turn whatever the library raises into one error."""
    try:
        yield
    except Exception as error:
        raise GraphFailed(f"hnswlib failed: {type(error).__name__}") from error
