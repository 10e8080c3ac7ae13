"""
Approximate nearest-neighbour graph (HNSW).

It is built in a background thread, and used only if its recall is sufficient.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal.lazy_import import loaded
from mama_structs._internal.telemetry import raised
from mama_structs.memory.engines.local.views.snapshots import LoadedPart, Part
from mama_structs.memory.engines.local.views.vector_store import Labels, VectorRows, Vectors

SEED: Final = 100
SPACE: Final = "ip"
"""Inner product: the cosine of normalised vectors, without the normalised copy that hnswlib makes for cosine."""

_FIRST_CAPACITY: Final = 1024

_log: Final = logging.getLogger(__name__)


class GraphFailed(Exception):
    """
    Raised if hnswlib raised an exception or a graph is invalid.

    The graph must not be used any more.
    """


class GraphBusy(Exception):
    """Raised if a graph stayed locked for too long, because it was extended or saved."""


@attrs.frozen(kw_only=True)
class GraphPlan:
    """Build parameters of a graph."""

    m: int = 16
    ef_construction: int = 150
    reduced: bool = False
    """True if vectors are projected to half the dimensions: half the memory and time, slightly lower recall."""


@functools.cache
def _library() -> Any:
    try:
        return loaded("hnswlib")
    except Exception as error:  # noqa: BLE001 - a native module built for another machine can raise anything
        _log.warning(
            "hnswlib cannot be imported (%s): large memories are searched exactly, which is slower; "
            "pip install 'mama-structs[hnsw]' brings it",
            type(error).__name__,
        )
        return None


def available() -> bool:
    """Return True if hnswlib can be imported."""
    return _library() is not None


class Graph:
    """HNSW index of vectors with the labels 0, 1, 2, … in insertion order. Thread-safe."""

    def __init__(
        self,
        dimensions: int,
        *,
        plan: GraphPlan | None = None,
        capacity: int = _FIRST_CAPACITY,
        basis: Vectors | None = None,
    ) -> None:
        self.dimensions = dimensions
        self.plan: GraphPlan = GraphPlan() if plan is None else plan
        self.basis: Vectors | None = basis
        """Projection matrix of shape (dimensions, fewer), or None if vectors are not projected."""
        self._lock = threading.Lock()
        self._waiting = 0
        self._count = 0
        self._marked = np.zeros(max(1, capacity), np.bool_)
        self._dead = 0
        self._ef = 0
        self._pace = 4
        with _guarded():
            self._index = self._made()
            self._index.init_index(
                max_elements=len(self._marked),
                M=self.plan.m,
                ef_construction=self.plan.ef_construction,
                random_seed=SEED,
            )

    @classmethod
    def load(
        cls, path: Path, *, dimensions: int, plan: GraphPlan, marked: NDArray[np.bool_], basis: Vectors | None = None
    ) -> Graph:
        """Load a graph. Verify the file first: damaged bytes can crash the process inside hnswlib."""
        capacity = max(_FIRST_CAPACITY, 1 << len(marked).bit_length())
        graph = cls(dimensions, plan=plan, capacity=1, basis=basis)
        graph._count = len(marked)
        graph._marked = np.zeros(capacity, np.bool_)
        graph._marked[: len(marked)] = marked
        graph._dead = int(np.count_nonzero(marked))
        with _guarded():
            graph._index = graph._made()
            graph._index.load_index(str(path), max_elements=capacity)
            found = (graph._index.get_current_count(), graph._index.M, graph._index.ef_construction)
        if found != (len(marked), plan.m, plan.ef_construction):
            raise GraphFailed(f"the file has (count, M, ef_construction) {found}, which differs from its metadata")
        return graph

    def __len__(self) -> int:
        return self._count

    @property
    def live(self) -> int:
        """Number of vectors that are not marked as deleted."""
        return self._count - self._dead

    def add(self, vectors: Vectors, *, threads: int = 1, hold: float = math.inf) -> None:
        """
        Add vectors with the next labels.

        Args:
            vectors: Float32 rows of shape (n, dimensions).
            threads: Number of threads for hnswlib.
            hold: The approximate maximum time in seconds for which one batch blocks queries.

        """
        check_vectors(vectors, self.dimensions)
        # Project all rows in one product: many small products are slow, especially if BLAS starts threads for each.
        taken, at = self._reduced(vectors), 0
        while at < len(taken):
            some = taken[at : at + self._pace] if hold < math.inf else taken
            started = time.perf_counter()
            with self._lock, _guarded():
                end = self._count + len(some)
                self._make_room(end)
                self._index.add_items(some, np.arange(self._count, end), num_threads=threads)
                self._count = end
            seconds, at = time.perf_counter() - started, at + len(some)
            if hold < math.inf:
                self._pace = 2 * len(some) if seconds < hold else max(1, len(some) // (1 + (seconds > 2 * hold)))
            # The lock is not fair, so yield to waiting queries explicitly.
            while self._waiting and at < len(taken):
                time.sleep(0.0002)

    def mark(self, alive: NDArray[np.bool_], *, wait: float = -1) -> None:
        """Set the deletion marks so that exactly the rows not in *alive* are marked as deleted."""
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
        """Return the labels of the nearest vectors of each query, best first."""
        check_vectors(vectors, self.dimensions)
        taken = self._reduced(vectors)
        with self._held(wait), _guarded():
            wanted = min(limit, self.live)
            if wanted < 1:
                return np.empty((len(vectors), 0), np.int64)
            needed = max(ef, wanted)
            if needed != self._ef:
                # A new or loaded index has ef=10, which finds only half of the neighbours.
                self._index.set_ef(needed)
                self._ef = needed
            labels, _ = self._index.knn_query(taken, k=wanted, num_threads=1)
            found: Labels = labels.astype(np.int64)
            return found

    def save(self, path: Path, *, at_most: int) -> NDArray[np.bool_] | None:
        """
        Write the graph to a file, and return its deletion marks.

        Returns None, without a file, if the graph has more than *at_most* vectors.
        """
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

    def _made(self) -> Any:
        width = self.dimensions if self.basis is None else self.basis.shape[1]
        return _library().Index(space=SPACE, dim=width)

    def _reduced(self, vectors: Vectors) -> Vectors:
        return vectors if self.basis is None else vectors @ self.basis

    @contextmanager
    def _held(self, wait: float) -> Iterator[None]:
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
        # Grow before the index is full: the behaviour of hnswlib when it is full is not documented.
        if needed < capacity:
            return
        while capacity <= needed:
            capacity *= 2
        self._index.resize_index(capacity)
        marked = np.zeros(capacity, np.bool_)
        marked[: self._count] = self._marked[: self._count]
        self._marked = marked


def check_vectors(vectors: Vectors, dimensions: int) -> None:
    """
    Raise ValueError for vectors that hnswlib must not receive, but accepts silently.

    These are other types and shapes, NaN, infinity and zero vectors.
    """
    if vectors.dtype != np.float32 or vectors.ndim != 2 or vectors.shape[1] != dimensions:  # noqa: PLR2004 - rows
        raise ValueError(
            f"vectors must be float32 of shape (n, {dimensions}), got {vectors.dtype} of shape {vectors.shape}"
        )
    squares = np.einsum("ij,ij->i", vectors, vectors)
    if not (np.isfinite(squares) & (squares > 0)).all():
        raise ValueError("vectors must be finite and not zero")


@contextmanager
def _guarded() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise GraphFailed(f"hnswlib failed: {type(error).__name__}") from error


RECALL: Final = 0.98
"""Required recall at 10 (issue 4). The number of candidates (ef) is chosen for a recall of 0.99."""
EFS: Final = (64, 96, 128, 192, 256, 384, 512)
"""Numbers of candidates to try, ascending. More candidates increase recall and latency."""
PLANS: Final = (GraphPlan(ef_construction=100, reduced=True), GraphPlan(), GraphPlan(m=32, ef_construction=300))
"""Build parameters to try in this order. The first needs many dimensions, the last a nearly sufficient recall."""

# If recall suffices, only this many results of the graph are rescored with all dimensions. Reading vectors from files
# takes longer than the graph search.
_COMPARED: Final = 192
_CHOSEN: Final = 0.99
_ALMOST: Final = 0.85
# Minimum dimensions for projecting to half of them, and number of sampled rows for computing the axes.
_MANY: Final = 128
_TELLING: Final = 4_096
_NEAREST: Final = 10
_QUERIES: Final = 64
_PROBES: Final = 48
_PROBE_EVERY: Final = 2_048
_SLICE: Final = 512
_AT_ONCE: Final = 1_024
_WAIT: Final = 0.010
_HOLD: Final = 0.002
_FAILURES: Final = 3
_NICENESS: Final = 5
_GROWTH: Final = 1.125
_OPPOSITE: Final = 1e-3
_ROUNDING: Final = 1e-6

_running: Final[weakref.WeakSet[ServedGraph]] = weakref.WeakSet()


@attrs.frozen(kw_only=True)
class Proved:
    """A graph with its measured recall and the search parameters that reach it."""

    graph: Graph
    ef: int
    compared: int
    """Minimum number of results of the graph that are rescored with all dimensions."""
    recall: float
    count: int


class ServedGraph:
    """Maintains the graph of some rows in a background thread, if a graph is worth it."""

    def __init__(self, rows: VectorRows, stored: LoadedPart | None = None) -> None:
        self._rows = rows
        # The graph in the snapshot, until it is loaded.
        self._stored = stored
        self.proved: Proved | None = None
        """The graph that serves searches, or None while searches are exact."""
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._refused = 0
        self._failures = 0
        self._probed = 0
        self._synced: tuple[Graph, int] | None = None
        # The graph that was last written or loaded, and its files.
        self._saved: tuple[Graph, LoadedPart] | None = None

    def part(self) -> Part | None:
        """Return the snapshot part of the graph, or None if there is no graph."""
        stored, proved = self._stored, self.proved
        if stored is None and proved is not None and self._saved is not None and self._saved[0] is proved.graph:
            # Reuse the file if it lacks only few rows, since they are quickly added again after loading.
            held = self._saved[1].files["marks"].stored.size
            stored = self._saved[1] if len(proved.graph) <= held * _GROWTH + _AT_ONCE else None
        if stored is not None:
            return Part(stored.meta, stored.arrays, files=stored.files)
        if proved is None:
            return None
        graph, found = proved.graph, attrs.asdict(proved, filter=lambda field, _: field.name != "graph")
        arrays = {} if graph.basis is None else {"basis": graph.basis}
        return Part({**attrs.asdict(graph.plan), **found}, arrays, files=_saving(graph, self._rows.count))

    def saved(self, loaded: LoadedPart) -> None:
        """Remember the files that contain the current graph, for reuse by later snapshots."""
        if self.proved is not None and {"graph", "marks"} <= loaded.files.keys():
            self._saved = (self.proved.graph, loaded)

    @property
    def mode(self) -> Literal["exact", "building", "hnsw"]:
        """Search mode: exact, exact while a graph is being built, or served by the graph."""
        if self.proved is not None:
            return "hnsw"
        return "building" if self._thread is not None else "exact"

    def usable(self) -> Proved | None:
        """Return the graph for a search, after small updates. Never blocks for long."""
        if self._thread is None:
            self._do_little()
        proved = self.proved
        if proved is not None and self._synced != (proved.graph, self._rows.changes):
            try:
                proved.graph.mark(self._rows.alive, wait=_WAIT)
            except GraphBusy:
                return None
            except GraphFailed as error:
                self.fail(error)
                return None
            self._synced = (proved.graph, self._rows.changes)
        self.wake()
        return self.proved

    def search(self, proved: Proved, vectors: Vectors, limit: int) -> Labels | None:
        """Return *limit* or more labels per vector, or None if the search must be exact."""
        try:
            # Larger limits need more candidates.
            most = max(proved.ef, limit + limit // 4)
            found: Labels = proved.graph.query(vectors, most, ef=most, wait=_WAIT)[:, : max(proved.compared, 2 * limit)]
        except GraphBusy:
            return None
        except (GraphFailed, ValueError) as error:
            self.fail(error)
            return None
        return found

    def wake(self) -> None:
        """Start the background thread if there is work to do."""
        if self._thread is not None or self._stop.is_set():
            return
        step = self._next_step()
        # A small graph is built by the first search that uses it.
        if step is None or (step == self._build and self._rows.count <= _AT_ONCE):
            return
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="mama-structs vectors", daemon=True)
                _running.add(self)
                self._thread.start()

    def rebuild(self) -> None:
        """Discard the graph and build a new one. Searches are exact until then."""
        with self._guard:
            self.proved, self._stored, self._refused = None, None, 0
        self.wake()

    def fail(self, error: Exception) -> None:
        """Discard the graph after an error. It is built again unless it failed too often."""
        with self._guard:
            self.proved = None
            self._failures += 1
        if self._failures == 1:
            _log.warning("the vector graph failed (%s); searching exactly until it is built again", error)
        elif self._failures == _FAILURES:
            _log.warning("the vector graph failed %d times; searching exactly from now on", _FAILURES)

    def settled(self, timeout: float | None = None) -> bool:
        """
        Wait until the background thread is idle.

        Return False if *timeout* seconds passed before that.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self.wake()
            thread = self._thread
            if thread is None:
                return True
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
            if thread.is_alive():
                return False

    @property
    def is_working(self) -> bool:
        """True if the background thread is running."""
        return self._thread is not None

    def abandon(self) -> None:
        """Stop using the graph, and let the background thread stop without waiting for it."""
        self._stop.set()
        self.proved = None

    def close(self) -> None:
        """Stop the background thread after its current slice. Unfinished work is discarded."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.proved = None

    # Methods below run in the background thread.

    def _next_step(self) -> Callable[[], None] | None:
        if self._failures >= _FAILURES:
            return None
        proved = self.proved
        if proved is None:
            if self._stored is not None:
                return self._load if available() else None
            return self._build if self._rows.count >= self._refused and available() else None
        # Recall decreases as a graph grows, so measure it again.
        if proved.count >= _AT_ONCE // 2 and len(proved.graph) >= 2 * proved.count:
            return self._prove_again
        if self._rows.count - len(proved.graph) > max(64, _AT_ONCE // 4):
            return self._catch_up
        return self._probe if self._rows.changes - self._probed >= _PROBE_EVERY else None

    def _work(self) -> None:
        _be_modest()
        while True:
            with self._guard:
                step = None if self._stop.is_set() else self._next_step()
                if step is None:
                    self._thread = None
                    return
            try:
                step()
            except GraphFailed as error:
                self.fail(error)
            except Exception as error:  # noqa: BLE001 - such as MemoryError; searches work without a graph
                _log.error("the vector graph cannot be built; searching exactly from now on: %s", raised(error))
                self._failures = _FAILURES

    def _do_little(self) -> None:
        try:
            step = self._next_step()
            if step == self._build and self._rows.count <= _AT_ONCE:
                self._build()
            proved = self.proved
            if proved is not None and self._rows.count <= 4 * _AT_ONCE:
                missing = self._rows.count - len(proved.graph)
                if 0 < missing <= _AT_ONCE // 16:
                    self._fill(proved.graph, self._rows.count)
        except (GraphFailed, ValueError) as error:
            self.fail(error)

    def _load(self) -> None:
        stored = self._stored
        if stored is None:
            return
        try:
            proved = self._loaded(stored)
        except (GraphFailed, OSError, KeyError, TypeError, ValueError) as error:
            _log.warning("the stored vector graph cannot be used (%s); it is built again", type(error).__name__)
        else:
            self._saved = (proved.graph, stored)
            self._publish(proved)
        self._stored = None

    def _loaded(self, stored: LoadedPart) -> Proved:
        meta, file, marks = stored.meta, stored.files["graph"], stored.files["marks"]
        plan = GraphPlan(
            m=int(meta["m"]), ef_construction=int(meta["ef_construction"]), reduced=bool(meta.get("reduced"))
        )
        before = file.state(), marks.state()
        if not file.is_whole() or not marks.is_whole():
            raise GraphFailed("its files do not match their checksums")
        marked = np.frombuffer(marks.path.read_bytes(), np.uint8) != 0
        if len(marked) > self._rows.count:
            raise GraphFailed("it has more vectors than there are")
        basis = stored.arrays["basis"] if plan.reduced else None
        if basis is not None and (basis.dtype != np.float32 or basis.shape[:1] != (self._rows.dimensions,)):
            raise GraphFailed("what reduces its vectors is of other dimensions")
        graph = Graph.load(file.path, dimensions=self._rows.dimensions, plan=plan, marked=marked, basis=basis)
        # hnswlib opened the files itself, so it may have read a version that was never verified.
        if before != (file.state(), marks.state()):
            raise GraphFailed("its files were changed while they were read")
        if not self._knows_itself(graph):
            raise GraphFailed("it does not find its own vectors")
        ef = int(meta["ef"])
        return Proved(
            graph=graph,
            ef=ef,
            compared=int(meta.get("compared", ef)),
            recall=float(meta["recall"]),
            count=int(meta["count"]),
        )

    def _build(self) -> None:
        best = 0.0
        for plan in PLANS:
            if plan.reduced and self._rows.dimensions < _MANY:
                continue
            proved = self._built(plan)
            if proved is None:
                return
            if proved.recall >= RECALL or self._stop.is_set():
                self._publish(proved)
                return
            recall, best = proved.recall, max(best, proved.recall)
            # Free its memory before the next graph needs as much.
            del proved
            if recall < _ALMOST and not plan.reduced:
                break
        self._refused = 2 * self._rows.count
        _log.warning(
            "a graph of %d vectors finds only %.0f %% of the nearest; searching exactly", self._rows.count, 100 * best
        )

    def _built(self, plan: GraphPlan) -> Proved | None:
        """Return a graph of the current rows with its measured recall, or None if it was stopped."""
        basis = self._axes() if plan.reduced else None
        graph = Graph(self._rows.dimensions, plan=plan, capacity=self._rows.count + 1, basis=basis)
        # Publish before rows that arrive meanwhile are added: an import may go on for minutes.
        return self._proof(graph) if self._fill(graph, self._rows.count, threads=_cores()) else None

    def _publish(self, proved: Proved) -> None:
        with self._guard:
            if not self._stop.is_set():
                self.proved = proved

    def _catch_up(self) -> None:
        """Add missing rows to the current graph, in batches that do not block searches."""
        proved = self.proved
        if proved is None:
            return
        graph, enough = proved.graph, 2 * max(proved.count, _AT_ONCE // 2)
        missing = self._rows.count - len(graph)
        threads = _cores() if missing > 4 * _AT_ONCE else 1
        self._fill(graph, min(enough, self._rows.count), threads=threads, hold=_HOLD)

    def _fill(self, graph: Graph, count: int, *, threads: int = 1, hold: float = math.inf) -> bool:
        """Add the missing rows up to *count* in slices. Return False if it was stopped."""
        for _, block in self._rows.slices(len(graph), count, most=_SLICE):
            if self._stop.is_set():
                return False
            graph.add(block, threads=threads, hold=hold)
        return True

    def _axes(self) -> Vectors:
        """Return half of the principal axes of the rows, of shape (dimensions, axes)."""
        # The leading eigenvectors of the second moments preserve inner products best of all linear projections.
        rows = self._rows.take(np.sort(self._sample(self._rows.count, _TELLING)))
        _, axes = np.linalg.eigh((rows.T @ rows).astype(np.float64))
        kept: Vectors = np.ascontiguousarray(axes[:, self._rows.dimensions // 2 :], np.float32)
        return kept

    def _prove_again(self) -> None:
        proved = self.proved
        if proved is None:
            return
        again = self._proof(proved.graph)
        if again.recall >= RECALL:
            with self._guard:
                if self.proved is proved:
                    self.proved = again
        else:
            _log.info("the vector graph finds too little since it has grown; it is built again")
            self.rebuild()

    def _probe(self) -> None:
        """Check that the graph still finds its own vectors, since deletions can disconnect it."""
        self._probed = self._rows.changes
        proved = self.proved
        if proved is not None and not self._knows_itself(proved.graph):
            _log.info("the vector graph does not find its own vectors any more; it is built again")
            self.rebuild()

    def _knows_itself(self, graph: Graph) -> bool:
        """Return True if the graph finds sampled vectors, with one miss at most."""
        labels = self._sample(len(graph), _PROBES)
        misses = 0
        for label in labels.tolist():
            found = graph.query(self._rows.take(np.array([label])), EFS[2], ef=EFS[2])[0]
            misses += label not in found.tolist()
        # A vector that was deleted meanwhile does not justify a rebuild.
        return misses <= 1

    def _proof(self, graph: Graph) -> Proved:
        """Find the smallest search parameters with the required recall, by exact comparison."""
        count = len(graph)
        graph.mark(self._rows.alive[:count])
        live = self._rows.alive[:count].copy()
        wanted = min(_NEAREST, graph.live)
        groups = [self._sums(count, rows) for rows in (2, 3)] if wanted else []
        rivals = [(queries, self._worst_of_the_best(queries, live, wanted)) for queries in groups if len(queries)]
        all_of_it = Proved(graph=graph, ef=EFS[-1], compared=EFS[-1], recall=1.0, count=count)
        tried = []
        for ef in EFS if rivals else ():
            shares = [self._recalls(graph, queries, worst, wanted, ef) for queries, worst in rivals]
            few, whole = (min(recalls) for recalls in zip(*shares, strict=True))
            tried.append(attrs.evolve(all_of_it, ef=ef, compared=min(ef, _COMPARED), recall=few))
            tried.append(attrs.evolve(all_of_it, ef=ef, compared=ef, recall=whole))
            if few >= _CHOSEN or self._stop.is_set():
                break
        # Prefer the sufficient settings that read the fewest rows, since rows may be in files.
        return max(tried, key=lambda one: (min(one.recall, _CHOSEN), -one.compared, -one.ef), default=all_of_it)

    def _sums(self, count: int, rows: int) -> Vectors:
        samples = [self._sample(count, _QUERIES, seed=10 * rows + part) for part in range(rows)]
        number = min(map(len, samples))
        sums = np.zeros((number, self._rows.dimensions), np.float32)
        for sample in samples:
            sums += self._rows.take(sample[:number])
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        usable = norms[:, 0] > _OPPOSITE
        result: Vectors = np.ascontiguousarray((sums[usable] / norms[usable]).astype(np.float32))
        return result

    def _recalls(
        self, graph: Graph, queries: Vectors, worst: NDArray[np.float32], wanted: int, ef: int
    ) -> tuple[float, float]:
        """Return the recall if only the first results are rescored, and the recall if all are."""
        few = whole = 0
        for query, score in zip(queries, worst.tolist(), strict=True):
            if self._stop.is_set():
                return 0.0, 0.0
            found = graph.query(query[None], ef, ef=ef)[0]
            # Score the results exactly, as a search does.
            right = self._rows.scores(query, found) >= score - _ROUNDING
            few += min(wanted, int(np.count_nonzero(right[:_COMPARED])))
            whole += min(wanted, int(np.count_nonzero(right)))
        return few / (len(queries) * wanted), whole / (len(queries) * wanted)

    def _worst_of_the_best(self, queries: Vectors, live: NDArray[np.bool_], wanted: int) -> NDArray[np.float32]:
        """Return, for each query, the score of its *wanted*-th nearest live row."""
        best = np.full((len(queries), wanted), -np.inf, np.float32)
        for at, block in self._rows.slices(0, len(live), most=8 * _SLICE):
            scores = queries @ block.T
            scores[:, ~live[at : at + len(block)]] = -np.inf
            together = np.concatenate([best, scores], axis=1)
            best = np.partition(together, together.shape[1] - wanted, axis=1)[:, -wanted:]
        result: NDArray[np.float32] = best.min(axis=1)
        return result

    def _sample(self, count: int, number: int, *, seed: int = 0) -> Labels:
        live = np.flatnonzero(self._rows.alive[:count])
        chosen = np.random.default_rng(SEED + seed).permutation(len(live))[:number]
        return live[chosen]


def _saving(graph: Graph, at_most: int) -> dict[str, Callable[[Path], bool]]:
    """Return the functions that write the graph file and the file with its deletion marks."""
    marks: list[NDArray[np.bool_]] = []

    def save_graph(path: Path) -> bool:
        try:
            marked = graph.save(path, at_most=at_most)
        except GraphFailed as error:
            raise OSError("hnswlib did not write the graph") from error
        marks[:] = [] if marked is None else [marked]
        return marked is not None

    def save_marks(path: Path) -> bool:
        for marked in marks:
            path.write_bytes(marked.astype(np.uint8).tobytes())
        return bool(marks)

    return {"graph": save_graph, "marks": save_marks}


def _cores() -> int:
    """Return the number of cores to build a graph with, leaving one for other threads."""
    return max(1, (os.cpu_count() or 1) - 1)


def _be_modest() -> None:
    """Lower the priority of this thread. Only Linux has a niceness per thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


@atexit.register
def _stop_all(*_: Any) -> None:
    """
    Stop all threads before the interpreter shuts down.

    A thread inside hnswlib would crash the process.
    """
    for served in list(_running):
        served.close()
