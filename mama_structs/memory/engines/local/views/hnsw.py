"""
Approximate nearest-neighbour graph (HNSW).

A background thread builds the graph. Searches use it only if its recall is sufficient.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal.telemetry import format_error
from mama_structs.memory.engines.local.views.hnsw_libraries import (
    SEED,
    LibraryIndex,
    find_library,
    name_library,
    read_version,
)
from mama_structs.memory.engines.local.views.snapshots import LoadedPart, SnapshotPart, StoredFile
from mama_structs.memory.engines.local.views.vector_store import Labels, Vectors, VectorStore
from mama_structs.memory.types.codec import mix_queries

INITIAL_CAPACITY: Final = 1024

_log: Final = logging.getLogger(__name__)


class GraphError(Exception):
    """
    Raised if the HNSW library raised an exception or is missing, or if a graph is invalid.

    The graph must not be used afterwards.
    """


class GraphBusy(Exception):
    """Raised if the lock of a graph cannot be acquired in time, because the graph is being extended or saved."""


@attrs.frozen(kw_only=True)
class GraphParameters:
    """Parameters for building a graph."""

    m: int = 16
    ef_construction: int = 150
    reduced: bool = False
    """True if vectors are projected to half the dimensions: half the memory and time, slightly lower recall."""


class HnswGraph:
    """HNSW graph of vectors, which are labelled 0, 1, 2, … in insertion order. Thread-safe."""

    def __init__(
        self,
        dimensions: int,
        *,
        plan: GraphParameters | None = None,
        capacity: int = INITIAL_CAPACITY,
        basis: Vectors | None = None,
        bound: float = 1.0,
    ) -> None:
        self.dimensions = dimensions
        self.plan: GraphParameters = GraphParameters() if plan is None else plan
        self.basis: Vectors | None = basis
        """Projection matrix of shape (dimensions, fewer), or None if vectors are not projected."""
        self.bound: float = bound
        """The largest absolute component that must be stored exactly, see `LibraryIndex`."""
        self._lock = threading.Lock()
        self._waiting = 0
        self._count = 0
        self._deleted_marks = np.zeros(max(1, capacity), np.bool_)
        self._dead = 0
        self._batch_rows = 4
        self._library = _require_library()
        with _translate_errors(self._library):
            self._index: LibraryIndex = self._library.create(
                self._width,
                m=self.plan.m,
                ef_construction=self.plan.ef_construction,
                capacity=len(self._deleted_marks),
                bound=bound,
            )

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        dimensions: int,
        plan: GraphParameters,
        marked: NDArray[np.bool_],
        basis: Vectors | None = None,
        bound: float = 1.0,
    ) -> HnswGraph:
        """Load a graph from a file that the caller has verified. Damaged bytes can crash the process."""
        capacity = max(INITIAL_CAPACITY, 1 << len(marked).bit_length())
        graph = cls(dimensions, plan=plan, capacity=1, basis=basis, bound=bound)
        graph._count = len(marked)
        graph._deleted_marks = np.zeros(capacity, np.bool_)
        graph._deleted_marks[: len(marked)] = marked
        graph._dead = int(np.count_nonzero(marked))
        with _translate_errors(graph._library):
            graph._index = graph._library.load(path, graph._width, capacity=capacity, bound=bound)
            found = graph._index.describe()
        if found != (len(marked), plan.m, plan.ef_construction):
            raise GraphError(f"the file has (count, M, ef_construction) {found}, which differs from its metadata")
        return graph

    def __len__(self) -> int:
        return self._count

    @property
    def library(self) -> str:
        """Name of the library that contains the graph."""
        return self._library.library

    @property
    def live(self) -> int:
        """Number of vectors that are not marked as deleted."""
        return self._count - self._dead

    def add(self, vectors: Vectors, *, threads: int = 1, max_lock_seconds: float = math.inf) -> None:
        """
        Add vectors. Their labels follow the last label.

        Args:
            vectors: Float32 rows of shape (n, dimensions).
            threads: Number of threads for the library.
            max_lock_seconds: The approximate maximum time in seconds for which one batch blocks queries.

        """
        check_vectors(vectors, self.dimensions)
        # Project all rows in one matrix product. Many small products are slow, especially if each starts BLAS threads.
        taken, at = self._project(vectors), 0
        while at < len(taken):
            some = taken[at : at + self._batch_rows] if max_lock_seconds < math.inf else taken
            started = time.perf_counter()
            with self._lock, _translate_errors(self._library):
                end = self._count + len(some)
                self._ensure_capacity(end)
                self._index.add(some, self._count, threads=threads)
                self._count = end
            seconds, at = time.perf_counter() - started, at + len(some)
            if max_lock_seconds < math.inf:
                self._batch_rows = (
                    2 * len(some)
                    if seconds < max_lock_seconds
                    else max(1, len(some) // (1 + (seconds > 2 * max_lock_seconds)))
                )
            # Sleep while queries wait. The lock is not fair, so they would otherwise not acquire the lock.
            while self._waiting and at < len(taken):
                time.sleep(0.0002)

    def mark(self, alive: NDArray[np.bool_], *, wait: float = -1) -> None:
        """Mark exactly the rows that are not in *alive* as deleted."""
        with self._acquire_lock(wait), _translate_errors(self._library):
            count = min(self._count, len(alive))
            for label in np.flatnonzero(self._deleted_marks[:count] == alive[:count]).tolist():
                deleted = not alive[label]
                self._index.set_deleted(label, deleted=deleted)
                self._deleted_marks[label] = deleted
                self._dead += 1 if deleted else -1

    def query(self, vectors: Vectors, limit: int, *, ef: int, wait: float = -1) -> Labels:
        """
        Return the labels of the nearest vectors of each query, approximately in the order of their scores.

        There are fewer than *limit* if some vectors cannot be reached in the graph.
        """
        check_vectors(vectors, self.dimensions)
        taken = self._project(vectors)
        with self._acquire_lock(wait), _translate_errors(self._library):
            # Both libraries raise if fewer vectors than requested are live.
            wanted = min(limit, self.live)
            if wanted < 1 or not len(taken):
                return np.empty((len(vectors), 0), np.int64)
            while wanted > 1:
                # Both libraries also raise if links lead to too few vectors. This happens if nearly all are requested.
                with contextlib.suppress(Exception):
                    return self._index.query(taken, wanted, ef=max(ef, wanted))
                wanted -= -(-wanted // 8)
            return self._index.query(taken, 1, ef=ef)

    def save(self, path: Path, *, max_vectors: int) -> NDArray[np.bool_] | None:
        """
        Write the graph to a file, and return its deletion marks.

        If the graph has more than *max_vectors* vectors, write nothing and return None.
        """
        with self._lock:
            if self._count > max_vectors:
                return None
            with _translate_errors(self._library):
                self._index.save(path)
            return self._deleted_marks[: self._count].copy()

    @property
    def _width(self) -> int:
        return self.dimensions if self.basis is None else self.basis.shape[1]

    def _project(self, vectors: Vectors) -> Vectors:
        return vectors if self.basis is None else vectors @ self.basis

    @contextmanager
    def _acquire_lock(self, wait: float) -> Iterator[None]:
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

    def _ensure_capacity(self, needed: int) -> None:
        capacity = len(self._deleted_marks)
        # Grow the index before it is full: hnswlib does not document what happens then, and voyager grows by one row.
        if needed < capacity:
            return
        while capacity <= needed:
            capacity *= 2
        self._index.resize(capacity)
        marked = np.zeros(capacity, np.bool_)
        marked[: self._count] = self._deleted_marks[: self._count]
        self._deleted_marks = marked


def check_vectors(vectors: Vectors, dimensions: int) -> None:
    """
    Raise ValueError for vectors that the libraries would accept although they cannot handle them.

    These are vectors of other types or shapes, and vectors that are zero or not finite.
    """
    if vectors.dtype != np.float32 or vectors.ndim != 2 or vectors.shape[1] != dimensions:  # noqa: PLR2004 - rows
        raise ValueError(
            f"vectors must be float32 of shape (n, {dimensions}), got {vectors.dtype} of shape {vectors.shape}"
        )
    squares = np.einsum("ij,ij->i", vectors, vectors)
    if not (np.isfinite(squares) & (squares > 0)).all():
        raise ValueError("vectors must be finite and not zero")


def _require_library() -> type[LibraryIndex]:
    library = find_library()
    if library is None:
        raise GraphError("no HNSW library can be imported")
    return library


@contextmanager
def _translate_errors(library: type[LibraryIndex]) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise GraphError(f"{library.library} failed: {type(error).__name__}") from error


MIN_RECALL: Final = 0.98
"""Required recall at 10 (issue 4). The number of candidates (ef) is chosen for a recall of 0.99."""
EF_CANDIDATES: Final = (64, 96, 128, 192, 256, 384, 512)
"""Numbers of candidates to try, ascending. More candidates increase recall and latency."""
GRAPH_PARAMETERS: Final = (
    GraphParameters(ef_construction=100, reduced=True),
    GraphParameters(),
    GraphParameters(m=32, ef_construction=300),
)
"""Build parameters to try in this order. The first needs many dimensions, the last a nearly sufficient recall."""

# Numbers of results to rescore. The smallest sufficient one is used, because reading vectors is slow.
RESCORED_COUNTS: Final = (24, 32, 48, 64, 96, 128, 192)
# Try more candidates rather than rescore more results than this.
MAX_RESCORED: Final = 192
TARGET_RECALL: Final = 0.99
MIN_RECALL_TO_CONTINUE: Final = 0.85
# Vectors with at least this many dimensions are projected to half as many, if these keep enough of the squared norm.
# Vectors of neural encoders kept 0.95, and vectors of word hashes, whose projection found too little, 0.79.
MIN_DIMENSIONS_TO_PROJECT: Final = 128
MIN_PROJECTED_SHARE: Final = 0.9
# A graph that stores components in one byte stores larger ones than this quantile as the quantile. Fewer bits for the
# others would find less.
BOUND_QUANTILE: Final = 0.999
# Number of sampled rows from which the projection axes and the bound of components are computed.
AXES_SAMPLE_ROWS: Final = 4_096
RECALL_NEIGHBOURS: Final = 10
RECALL_QUERIES: Final = 128
# After this many queries, the recall is measured with them, and again with later queries after at most
# `MAX_QUERIES_PER_MEASUREMENT`. Queries made of stored vectors do not resemble the questions of every embedder: with
# word hashes, a graph that found 99 % for them found 89 % for questions.
MIN_RECENT_QUERIES: Final = 64
MAX_QUERIES_PER_MEASUREMENT: Final = 8_192
PROBE_QUERIES: Final = 48
PROBE_INTERVAL_CHANGES: Final = 2_048
SLICE_ROWS: Final = 512
MAX_SYNCHRONOUS_ROWS: Final = 1_024
LOCK_TIMEOUT_SECONDS: Final = 0.010
MAX_LOCK_SECONDS: Final = 0.002
MAX_FAILURES: Final = 3
THREAD_NICENESS: Final = 5
MAX_SAVED_GROWTH_RATIO: Final = 1.125
SCORE_TOLERANCE: Final = 1e-6

PART_PREFIX: Final = "graph_"
"""Prefix of the names of snapshot parts with a graph. The name and version of the library follow."""
DIGEST_BYTES: Final = 32

_active_graphs: Final[weakref.WeakSet[BackgroundGraph]] = weakref.WeakSet()


@attrs.frozen(kw_only=True)
class VerifiedGraph:
    """A graph with its measured recall, and the search parameters with which it was measured."""

    graph: HnswGraph
    ef: int
    compared: int
    """Minimum number of results of the graph that are rescored with all dimensions."""
    recall: float
    count: int


class BackgroundGraph:
    """Decides whether the rows need an HNSW graph. Builds and maintains the graph in a background thread."""

    def __init__(self, rows: VectorStore, stored: Mapping[str, LoadedPart] | None = None) -> None:
        self._rows = rows
        library = find_library()
        self._part_name = None if library is None else PART_PREFIX + name_library(library)
        own = None if stored is None or self._part_name is None else stored.get(self._part_name)
        # The snapshot's part with the graph. None if there is no graph of this library, or after the graph was loaded.
        self._stored = own if own is not None and own.files else None
        self.verified_graph: VerifiedGraph | None = None
        """The graph that serves searches, or None while searches are exact."""
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._min_rows_to_build = 0
        self._failures = 0
        self._changes_at_last_probe = 0
        # The latest distinct queries by their bytes, and the number of all queries.
        self._recent_queries: dict[bytes, Vectors] = {}
        self._query_count, self._next_measurement = 0, MIN_RECENT_QUERIES
        self._synced_state: tuple[HnswGraph, int] | None = None
        # The graph that was last saved or loaded, with its files.
        self._saved: tuple[HnswGraph, LoadedPart] | None = None

    def parts(self) -> dict[str, SnapshotPart]:
        """Return the graph as a part of the snapshot. Empty if there is no graph."""
        part = self._part()
        return {} if part is None or self._part_name is None else {self._part_name: part}

    def is_stored_graph(self, name: str, part: LoadedPart) -> bool:
        """
        Return True if a part of a stored snapshot is a graph of these rows, and lacks at most half of them.

        A process with another library or version uses it, so the next snapshot retains it.
        """
        if not name.startswith(PART_PREFIX):
            return False
        try:
            marks = _read_marks(part.files["marks"], self._rows)
        except (GraphError, OSError, KeyError):
            return False
        return 2 * len(marks) >= self._rows.count

    def _part(self) -> SnapshotPart | None:
        stored, proved = self._stored, self.verified_graph
        if stored is None and proved is not None and self._saved is not None and self._saved[0] is proved.graph:
            # Reuse a saved file that lacks only a few rows, because these are added quickly after loading.
            held = self._saved[1].files["marks"].stored.size - DIGEST_BYTES
            stored = (
                self._saved[1] if len(proved.graph) <= held * MAX_SAVED_GROWTH_RATIO + MAX_SYNCHRONOUS_ROWS else None
            )
        found = {} if proved is None else attrs.asdict(proved, filter=lambda field, _: field.name != "graph")
        if stored is not None:
            return SnapshotPart({**stored.meta, **found}, stored.arrays, files=stored.files)
        if proved is None:
            return None
        graph = proved.graph
        arrays = {} if graph.basis is None else {"basis": graph.basis}
        written_by = {"library": graph.library, "version": read_version(graph.library), "bound": graph.bound}
        meta = {**written_by, **attrs.asdict(graph.plan), **found}
        return SnapshotPart(meta, arrays, files=_graph_writers(graph, self._rows))

    def record_saved_files(self, parts: Mapping[str, LoadedPart]) -> None:
        """Record the files that contain the current graph, so that later snapshots reuse these files."""
        loaded = None if self._part_name is None else parts.get(self._part_name)
        if self.verified_graph is not None and loaded is not None and {"graph", "marks"} <= loaded.files.keys():
            self._saved = (self.verified_graph.graph, loaded)

    @property
    def mode(self) -> Literal["exact", "building", "hnsw"]:
        """Search mode: ``exact``, ``building`` (exact while the graph is being built) or ``hnsw``."""
        if self.verified_graph is not None:
            return "hnsw"
        return "building" if self._thread is not None else "exact"

    def get_usable_graph(self) -> VerifiedGraph | None:
        """Return the graph for a search, or None if the search must be exact. Small updates are applied first."""
        if self._thread is None:
            self._run_small_updates()
        proved = self.verified_graph
        if proved is not None and self._synced_state != (proved.graph, self._rows.changes):
            try:
                proved.graph.mark(self._rows.alive, wait=LOCK_TIMEOUT_SECONDS)
            except GraphBusy:
                return None
            except GraphError as error:
                self.fail(error)
                return None
            self._synced_state = (proved.graph, self._rows.changes)
        self.start_background_work()
        return self.verified_graph

    def search(self, proved: VerifiedGraph, vectors: Vectors, limit: int) -> Labels | None:
        """Return at least *limit* labels per vector, or None if the search must be exact."""
        try:
            # Request more candidates than results if the limit is large.
            most = max(proved.ef, limit + limit // 4)
            found: Labels = proved.graph.query(vectors, most, ef=most, wait=LOCK_TIMEOUT_SECONDS)[
                :, : max(proved.compared, 2 * limit)
            ]
        except GraphBusy:
            return None
        except (GraphError, ValueError) as error:
            self.fail(error)
            return None
        return found

    def record_queries(self, vectors: Iterable[Vectors]) -> None:
        """Record queries. The recall is measured with the latest ones."""
        with self._guard:
            for vector in vectors:
                if not vector.any():
                    continue
                key = vector.tobytes()
                self._query_count += key not in self._recent_queries
                self._recent_queries[key] = vector.copy()
            while len(self._recent_queries) > RECALL_QUERIES:
                del self._recent_queries[next(iter(self._recent_queries))]

    def forget_queries(self) -> None:
        """Forget the recorded queries, because they may be vectors of erased texts."""
        with self._guard:
            self._recent_queries.clear()

    def start_background_work(self) -> None:
        """Start the background thread if there is work."""
        if self._thread is not None or self._stop.is_set():
            return
        step = self._next_step()
        # Do not build a small graph here. The first search that uses it builds it.
        if step is None or (step == self._build and self._rows.count <= MAX_SYNCHRONOUS_ROWS):
            return
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="mama-structs vectors", daemon=True)
                _active_graphs.add(self)
                self._thread.start()

    def rebuild(self) -> None:
        """Discard the graph and build a new one. Until it is built, searches are exact."""
        with self._guard:
            self.verified_graph, self._stored, self._min_rows_to_build = None, None, 0
        self.start_background_work()

    def fail(self, error: Exception) -> None:
        """Discard the graph after an error. The graph is built again, unless there were too many errors."""
        with self._guard:
            self.verified_graph = None
            self._failures += 1
        if self._failures == 1:
            _log.warning("the vector graph failed (%s); searching exactly until it is built again", error)
        elif self._failures == MAX_FAILURES:
            _log.warning("the vector graph failed %d times; searching exactly from now on", MAX_FAILURES)

    def wait_until_idle(self, timeout: float | None = None) -> bool:
        """
        Wait until the background thread is idle.

        Return False if *timeout* seconds passed before that.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self.start_background_work()
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
        """Stop using the graph. Signal the background thread to stop, but do not wait for it."""
        self._stop.set()
        self.verified_graph = None

    def close(self) -> None:
        """Stop the background thread after its current slice of work. Unfinished work is discarded."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        # Free the memory of the graph, even if the index stays referenced.
        self.verified_graph = self._saved = self._synced_state = None

    # The methods below run in the background thread.

    def _next_step(self) -> Callable[[], None] | None:
        if self._failures >= MAX_FAILURES:
            return None
        proved = self.verified_graph
        if proved is None:
            if self._stored is not None:
                return self._load
            return self._build if self._rows.count >= self._min_rows_to_build and self._part_name is not None else None
        # Measure again when the graph has doubled, because the recall decreases as a graph grows.
        has_doubled = proved.count >= MAX_SYNCHRONOUS_ROWS // 2 and len(proved.graph) >= 2 * proved.count
        if has_doubled or self._query_count >= self._next_measurement:
            return self._verify_again
        if self._rows.count - len(proved.graph) > max(64, MAX_SYNCHRONOUS_ROWS // 4):
            return self._catch_up
        return self._probe if self._rows.changes - self._changes_at_last_probe >= PROBE_INTERVAL_CHANGES else None

    def _work(self) -> None:
        _lower_priority()
        while True:
            with self._guard:
                step = None if self._stop.is_set() else self._next_step()
                if step is None:
                    self._thread = None
                    return
            try:
                step()
            except GraphError as error:
                self.fail(error)
            except Exception as error:  # noqa: BLE001 - such as MemoryError; searches work without a graph
                _log.error("the vector graph cannot be built; searching exactly from now on: %s", format_error(error))
                self._failures = MAX_FAILURES

    def _run_small_updates(self) -> None:
        try:
            step = self._next_step()
            if step == self._build and self._rows.count <= MAX_SYNCHRONOUS_ROWS:
                self._build()
            proved = self.verified_graph
            if proved is not None and self._rows.count <= 4 * MAX_SYNCHRONOUS_ROWS:
                missing = self._rows.count - len(proved.graph)
                if 0 < missing <= MAX_SYNCHRONOUS_ROWS // 16:
                    self._fill(proved.graph, self._rows.count)
        except (GraphError, ValueError) as error:
            self.fail(error)

    def _load(self) -> None:
        stored = self._stored
        if stored is None:
            return
        try:
            proved = self._load_verified(stored)
        except (GraphError, OSError, KeyError, TypeError, ValueError) as error:
            _log.warning("the stored vector graph cannot be used (%s); it is built again", type(error).__name__)
        else:
            self._saved = (proved.graph, stored)
            self._publish(proved)
        self._stored = None

    def _load_verified(self, stored: LoadedPart) -> VerifiedGraph:
        meta, file, marks = stored.meta, stored.files["graph"], stored.files["marks"]
        library = _require_library().library
        if (meta["library"], meta["version"]) != (library, read_version(library)):
            raise GraphError("it was written by another library")
        plan = GraphParameters(
            m=int(meta["m"]), ef_construction=int(meta["ef_construction"]), reduced=bool(meta.get("reduced"))
        )
        before = file.state(), marks.state()
        if not file.is_intact() or not marks.is_intact():
            raise GraphError("its files do not match their checksums")
        marked = _read_marks(marks, self._rows)
        basis = stored.arrays["basis"] if plan.reduced else None
        if basis is not None and (basis.dtype != np.float32 or basis.shape[:1] != (self._rows.dimensions,)):
            raise GraphError("what reduces its vectors is of other dimensions")
        options: dict[str, Any] = {"plan": plan, "marked": marked, "basis": basis, "bound": float(meta["bound"])}
        graph = HnswGraph.load(file.path, dimensions=self._rows.dimensions, **options)
        # The library opened the file by path, so it may have read a version that was not verified.
        if before != (file.state(), marks.state()):
            raise GraphError("its files were changed while they were read")
        if not self._finds_own_vectors(graph):
            raise GraphError("it does not find its own vectors")
        ef = int(meta["ef"])
        return VerifiedGraph(
            graph=graph,
            ef=ef,
            compared=int(meta.get("compared", ef)),
            recall=float(meta["recall"]),
            count=int(meta["count"]),
        )

    def _build(self) -> None:
        best = 0.0
        for plan in GRAPH_PARAMETERS:
            if plan.reduced and self._rows.dimensions < MIN_DIMENSIONS_TO_PROJECT:
                continue
            proved = self._build_graph(plan)
            if proved is None:
                return
            if proved.recall >= MIN_RECALL or self._stop.is_set():
                self._publish(proved)
                return
            recall, best, is_reduced = proved.recall, max(best, proved.recall), proved.graph.plan.reduced
            # Free the memory of this graph before the next graph is built.
            del proved
            if recall < MIN_RECALL_TO_CONTINUE and not is_reduced:
                break
        self._min_rows_to_build = 2 * self._rows.count
        _log.warning(
            "a graph of %d vectors finds only %.0f %% of the nearest; searching exactly", self._rows.count, 100 * best
        )

    def _build_graph(self, plan: GraphParameters) -> VerifiedGraph | None:
        """Build a graph of the current rows, and measure its recall. Return None if the thread must stop."""
        sample = self._rows.take(np.sort(self._sample(self._rows.count, AXES_SAMPLE_ROWS)))
        basis = self._principal_axes(sample) if plan.reduced else None
        plan = attrs.evolve(plan, reduced=basis is not None)
        components = np.abs(sample if basis is None else sample @ basis)
        bound = float(np.quantile(components, BOUND_QUANTILE)) if len(sample) else 1.0
        graph = HnswGraph(
            self._rows.dimensions, plan=plan, capacity=self._rows.count + 1, basis=basis, bound=bound or 1.0
        )
        # Ignore rows that are added meanwhile, because an import may last for minutes.
        return self._verify_recall(graph) if self._fill(graph, self._rows.count, threads=_build_threads()) else None

    def _publish(self, proved: VerifiedGraph) -> None:
        with self._guard:
            if not self._stop.is_set():
                self.verified_graph = proved

    def _catch_up(self) -> None:
        """Add missing rows to the current graph, in batches that block searches only briefly."""
        proved = self.verified_graph
        if proved is None:
            return
        graph, enough = proved.graph, 2 * max(proved.count, MAX_SYNCHRONOUS_ROWS // 2)
        missing = self._rows.count - len(graph)
        threads = _build_threads() if missing > 4 * MAX_SYNCHRONOUS_ROWS else 1
        self._fill(graph, min(enough, self._rows.count), threads=threads, max_lock_seconds=MAX_LOCK_SECONDS)

    def _fill(self, graph: HnswGraph, count: int, *, threads: int = 1, max_lock_seconds: float = math.inf) -> bool:
        """Add the missing rows up to *count* in slices. Return False if the thread must stop."""
        for _, block in self._rows.slices(len(graph), count, max_rows=SLICE_ROWS):
            if self._stop.is_set():
                return False
            graph.add(block, threads=threads, max_lock_seconds=max_lock_seconds)
        return True

    def _principal_axes(self, sample: Vectors) -> Vectors | None:
        """
        Return the half of the principal axes with the largest eigenvalues, of shape (dimensions, axes).

        Return None if the projection to these axes loses too much.
        """
        # No linear projection preserves inner products better than the leading eigenvectors of the second moments.
        values, axes = np.linalg.eigh((sample.T @ sample).astype(np.float64))
        half = self._rows.dimensions // 2
        if values[half:].sum() < MIN_PROJECTED_SHARE * values.sum():
            return None
        kept: Vectors = np.ascontiguousarray(axes[:, half:], np.float32)
        return kept

    def _verify_again(self) -> None:
        proved = self.verified_graph
        if proved is None:
            return
        count = self._query_count
        self._next_measurement = count + min(max(3 * count, MIN_RECENT_QUERIES), MAX_QUERIES_PER_MEASUREMENT)
        again = self._verify_recall(proved.graph)
        if again.recall >= MIN_RECALL:
            with self._guard:
                if self.verified_graph is proved:
                    self.verified_graph = again
        else:
            _log.info("the vector graph finds only %.0f %% of the nearest; it is built again", 100 * again.recall)
            self.rebuild()

    def _probe(self) -> None:
        """Rebuild the graph if it no longer finds its own vectors, because deletions can disconnect parts of it."""
        self._changes_at_last_probe = self._rows.changes
        proved = self.verified_graph
        if proved is not None and not self._finds_own_vectors(proved.graph):
            _log.info("the vector graph does not find its own vectors any more; it is built again")
            self.rebuild()

    def _finds_own_vectors(self, graph: HnswGraph) -> bool:
        """Return True if searches for sampled vectors of the graph find them, with at most one miss."""
        labels = self._sample(len(graph), PROBE_QUERIES)
        misses = 0
        for label in labels.tolist():
            found = graph.query(self._rows.take(np.array([label])), EF_CANDIDATES[2], ef=EF_CANDIDATES[2])[0]
            misses += label not in found.tolist()
        # Tolerate one miss, because the vector may have been deleted in the meantime.
        return misses <= 1

    def _verify_recall(self, graph: HnswGraph) -> VerifiedGraph:
        """Find the cheapest search parameters with the required recall, by comparison with exact searches."""
        count = len(graph)
        graph.mark(self._rows.alive[:count])
        live = self._rows.alive[:count].copy()
        wanted = min(RECALL_NEIGHBOURS, graph.live)
        queries = self._sample_queries(count) if wanted else np.empty((0, self._rows.dimensions), np.float32)
        worst = self._exact_thresholds(queries, live, wanted) if len(queries) else np.zeros(0, np.float32)
        all_of_it = VerifiedGraph(
            graph=graph, ef=EF_CANDIDATES[-1], compared=EF_CANDIDATES[-1], recall=1.0, count=count
        )
        tried = []
        for ef in EF_CANDIDATES if len(queries) else ():
            recall_at = self._measure_recall(graph, queries, worst, wanted, ef)
            tried += [
                attrs.evolve(all_of_it, ef=ef, compared=compared, recall=recall_at[compared - 1])
                for compared in (*(count for count in RESCORED_COUNTS if count < ef), ef)
            ]
            if recall_at[min(ef, MAX_RESCORED) - 1] >= TARGET_RECALL or self._stop.is_set():
                break
        # Among sufficient parameters, prefer the fewest rescored rows, because reading rows from files is slow.
        best = max(tried, key=lambda one: (min(one.recall, TARGET_RECALL), -one.compared, -one.ef), default=all_of_it)
        # If a query has the same cosine with many vectors, the recall of a disconnected graph is 1 as well.
        is_proved = best.recall < MIN_RECALL or self._stop.is_set() or self._finds_own_vectors(graph)
        return best if is_proved else attrs.evolve(best, recall=0.0)

    def _sample_queries(self, count: int) -> Vectors:
        """
        Return the latest queries, or if there are too few, unit vectors that resemble queries.

        Each of these is near a vector of the graph, but equal to none.
        """
        with self._guard:
            recent = list(self._recent_queries.values())
        if len(recent) >= MIN_RECENT_QUERIES:
            return np.stack(recent)
        sample = self._sample(count, 2 * RECALL_QUERIES, seed=1)
        half = len(sample) // 2
        nearest, others = (self._rows.take(labels) for labels in (sample[:half], sample[half : 2 * half]))
        return mix_queries(nearest, others)

    def _measure_recall(
        self, graph: HnswGraph, queries: Vectors, worst: NDArray[np.float32], wanted: int, ef: int
    ) -> list[float]:
        """Return the recall when the first 1, 2, ..., *ef* results of the graph are rescored."""
        right = np.zeros((len(queries), ef), np.int64)
        for number, (query, score) in enumerate(zip(queries, worst.tolist(), strict=True)):
            if self._stop.is_set():
                return [0.0] * ef
            found = graph.query(query[None], ef, ef=ef)[0]
            # Compute exact scores, as a search does.
            right[number, : len(found)] = self._rows.scores(query, found) >= score - SCORE_TOLERANCE
        hits = np.minimum(np.cumsum(right, axis=1), wanted).sum(axis=0)
        result: list[float] = (hits / (len(queries) * wanted)).tolist()
        return result

    def _exact_thresholds(self, queries: Vectors, live: NDArray[np.bool_], wanted: int) -> NDArray[np.float32]:
        """Return the score of the *wanted*-th nearest live row for each query."""
        best = np.full((len(queries), wanted), -np.inf, np.float32)
        for at, block in self._rows.slices(0, len(live), max_rows=8 * SLICE_ROWS):
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


def _graph_writers(graph: HnswGraph, rows: VectorStore) -> dict[str, Callable[[Path], bool]]:
    """
    Return two functions: one writes the graph to a file, the other its deletion marks.

    The marks follow a digest of the rows, because other processes may give the same labels to other vectors.
    """
    max_vectors = rows.count
    marks: list[NDArray[np.bool_]] = []

    def save_graph(path: Path) -> bool:
        try:
            marked = graph.save(path, max_vectors=max_vectors)
        except GraphError as error:
            raise OSError("the library did not write the graph") from error
        marks[:] = [] if marked is None else [marked]
        return marked is not None

    def save_marks(path: Path) -> bool:
        for marked in marks:
            path.write_bytes(_digest_rows(rows, len(marked)) + marked.astype(np.uint8).tobytes())
        return bool(marks)

    return {"graph": save_graph, "marks": save_marks}


def _read_marks(file: StoredFile, rows: VectorStore) -> NDArray[np.bool_]:
    """Return the deletion marks of a stored graph. Raise GraphError if it is a graph of other vectors."""
    content = file.path.read_bytes()
    marked: NDArray[np.bool_] = np.frombuffer(content, np.uint8)[DIGEST_BYTES:] != 0
    if len(marked) > rows.count or content[:DIGEST_BYTES] != _digest_rows(rows, len(marked)):
        raise GraphError("it is a graph of other vectors")
    return marked


def _digest_rows(rows: VectorStore, count: int) -> bytes:
    return hashlib.sha256(rows.fingerprints[:count].tobytes()).digest()


def _build_threads() -> int:
    """Return the number of threads to build a graph: all cores but one, which is left for other work."""
    return max(1, (os.cpu_count() or 1) - 1)


def _lower_priority() -> None:
    """Lower the priority of this thread. Only Linux supports a niceness per thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), THREAD_NICENESS)


@atexit.register
def _stop_all(*_: Any) -> None:
    """
    Stop all background threads before the interpreter shuts down.

    Otherwise a thread inside hnswlib would crash the process, and voyager would print warnings about leaks.
    """
    for served in list(_active_graphs):
        served.close()
