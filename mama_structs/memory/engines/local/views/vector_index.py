"""Nearest-neighbour search over the vectors of memories, exact or with an HNSW graph."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import InvalidArgument
from mama_structs.memory.engines.local.views.hnsw_labels import HnswLabels, Mask
from mama_structs.memory.engines.local.views.snapshots import LoadedPart, SnapshotPart
from mama_structs.memory.engines.local.views.vector_store import Labels, RowCache, Vectors, VectorStore
from mama_structs.memory.types.codec import are_unit_vectors
from mama_structs.memory.types.engine import Matches, Nodes, Scores, sample_slice

if TYPE_CHECKING:
    from mama_structs.memory.engines.local.views.hnsw import BackgroundGraph

VECTORS_PART: Final = "vectors"

_NO_MATCHES: Final = Matches(np.empty(0, np.int64), np.empty(0, np.float32))
# If a filter selects at most this many rows, scanning them is about as fast as searching the graph.
MAX_SCANNED_SELECTION: Final = 4_096
# If more results than this are requested, a graph search is slower than an exact scan.
MAX_GRAPH_RESULTS: Final = 768
MIN_DEAD_TO_COMPACT: Final = 64
# Maximum number of queries to score together, to limit the memory for scores.
MAX_QUERIES_PER_SCAN: Final = 64


class VectorIndex:
    """Vectors by node, with exact or approximate search. Not thread-safe."""

    def __init__(self, dimensions: int, *, exact_up_to: int) -> None:
        if dimensions < 1:
            raise InvalidArgument(f"dimensions must be 1 or more, got {dimensions!r}")
        self._exact_up_to = exact_up_to
        self._retired_graphs: list[BackgroundGraph] = []
        self._reset(VectorStore(dimensions), HnswLabels())

    @classmethod
    def restore(cls, parts: Mapping[str, LoadedPart], *, dimensions: int, exact_up_to: int) -> VectorIndex | None:
        """
        Restore the index from the parts of a snapshot, or return None if they are unusable.

        The graph is loaded in the background.
        """
        loaded = parts.get(VECTORS_PART)
        if loaded is None:
            return None
        try:
            if loaded.meta["dimensions"] != dimensions:
                return None
            arrays = loaded.arrays
            rows = VectorStore.from_blocks(
                dimensions,
                (*(segment.blocks[0] for segment in loaded.segments), arrays["tail"]),
                alive=arrays["alive"],
                fingerprints=arrays["prints"],
                segments=tuple((one.stored, len(one)) for one in loaded.segments if one.stored is not None),
            )
            nodes = HnswLabels.from_state(arrays["piece_nodes"], arrays["piece_labels"], rows=rows.count)
            epoch = str(loaded.meta["epoch"])
        except (KeyError, TypeError, ValueError, IndexError):
            return None
        index = cls(dimensions, exact_up_to=exact_up_to)
        index._reset(rows, nodes)
        index._epoch = epoch
        index._ensure_graph(parts)
        return index

    def _reset(self, rows: VectorStore, nodes: HnswLabels) -> None:
        self._rows = rows
        self._recent = RowCache(rows)
        self._nodes = nodes
        self._graph: BackgroundGraph | None = None
        self._sample: Vectors | None = None
        # Identifies the current numbering of labels. Snapshot files with another epoch use a different numbering.
        self._epoch = uuid.uuid4().hex

    def _ensure_graph(self, stored: Mapping[str, LoadedPart] | None = None) -> None:
        """Create the graph when there are enough rows, and start its background work."""
        if self._graph is None and self._rows.live > self._exact_up_to:
            from mama_structs.memory.engines.local.views import hnsw as graph  # noqa: PLC0415 - only for large stores

            self._graph = graph.BackgroundGraph(self._rows, stored)
        if self._graph is not None:
            self._graph.start_background_work()

    @property
    def dimensions(self) -> int:
        """Number of dimensions of each vector."""
        return self._rows.dimensions

    @property
    def unsaved(self) -> int:
        """
        Number of vectors that are not in a snapshot file.

        If there are more than about 16,000, a new snapshot saves time.
        """
        return self._rows.unsaved

    def __len__(self) -> int:
        """Return the number of nodes with vectors."""
        return self._nodes.live

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def add(self, node: int, vectors: NDArray[np.float32]) -> None:
        """Add the vectors of a new node."""
        if node < 0 or node in self._nodes:
            raise InvalidArgument(f"node must be a new one, got {node}")
        vectors = _validate_vectors(vectors, self.dimensions)
        is_last = node > self._nodes.last
        self._nodes.add(node, [self._rows.get_or_add_label(vector) for vector in vectors])
        live = len(self)
        # The cached sample stays valid if the new memory is the last node and does not belong to the sample.
        if not (is_last and live % sample_slice(live).step):
            self._sample = None
        self._ensure_graph()

    def remove(self, node: int) -> None:
        """Remove the vectors of a node, if it has any."""
        self._sample = None
        for label in self._nodes.remove(node):
            self._rows.mark_dead(label)
        if self._rows.dead > max(MIN_DEAD_TO_COMPACT, self._rows.count // 3):
            self._compact()

    def drop_erased_data(self) -> None:
        """Drop the vectors that no node uses, and the latest queries."""
        if self._rows.dead:
            self._compact()
        elif self._graph is not None:
            self._graph.forget_queries()

    def get(self, node: int) -> Vectors:
        """Return the vectors of a node, of shape (chunks, dimensions). Empty if the node has none."""
        return self.pieces([node])[0]

    def pieces(self, nodes: Sequence[int] | Nodes) -> tuple[Vectors, NDArray[np.int64]]:
        """Return the vectors of *nodes*, of shape (chunks, dimensions), and the number of vectors of each node."""
        labels, counts = self._nodes.pieces(np.asarray(nodes, np.int64))
        return self._recent.take(labels), counts

    def similarities(self, vector: NDArray[np.float32], nodes: Nodes) -> Scores:
        """Return the highest cosine of *vector* and the vectors of each node, or 0 for nodes without vectors."""
        query = self._validate_query(vector)
        labels, counts = self._nodes.pieces(np.asarray(nodes, np.int64))
        result = np.zeros(len(counts), np.float32)
        if len(labels):
            has = counts > 0
            begin = (np.cumsum(counts) - counts)[has]
            result[has] = np.maximum.reduceat(self._recent.scores(query, labels), begin)
        return result

    def nearest(self, vector: NDArray[np.float32], limit: int, mask: NDArray[np.bool_] | None = None) -> Matches:
        """Return the deduplicated nodes whose vectors are most similar to *vector*."""
        query = self._validate_query(vector)
        if limit < 1 or not len(self):
            return _NO_MATCHES
        chosen = None
        if mask is not None:
            if len(mask) < self._nodes.size:
                mask = np.concatenate([mask, np.zeros(self._nodes.size - len(mask), np.bool_)])
            chosen = self._nodes.labels_in_mask(mask)
            if not len(chosen):
                return _NO_MATCHES
        found = self._search_graph(query, limit, mask, chosen)
        return self._search_exact(query, limit, mask, chosen) if found is None else found

    def nearest_many(self, vectors: NDArray[np.float32], limit: int, mask: NDArray[np.bool_] | None) -> list[Matches]:
        """Return the results of `nearest` for each of *vectors*."""
        if limit < 1 or not len(self) or mask is not None:
            return [self.nearest(vector, limit, mask) for vector in vectors]
        queries = np.stack([self._validate_query(vector) for vector in vectors]) if len(vectors) else vectors
        found: list[Matches] = []
        for start in range(0, len(queries), MAX_QUERIES_PER_SCAN):
            some = queries[start : start + MAX_QUERIES_PER_SCAN]
            found += self._search_many_graph(some, limit) or self._search_many_exact(some, limit)
        return found

    def record_queries(self, vectors: NDArray[np.float32]) -> None:
        """Record queries of users, with which the recall of the graph is measured."""
        if self._graph is not None:
            self._graph.record_queries(map(self._validate_query, vectors))

    def sample(self) -> Vectors:
        """Return the first vector of each node in the sample. Cached until the sample changes."""
        if self._sample is None:
            self._sample = self._rows.take(self._nodes.sampled())
            self._sample.flags.writeable = False
        return self._sample

    def parts(self) -> dict[str, SnapshotPart]:
        """
        Return the parts for a snapshot.

        They remain unchanged when the index changes, so another thread may write them.
        """
        rows = self._rows
        segments, tail = rows.to_segments()
        nodes, labels = self._nodes.state()
        arrays: dict[str, NDArray[Any]] = {
            "tail": tail,
            "alive": rows.alive.copy(),
            "prints": rows.fingerprints.copy(),
            "piece_nodes": nodes,
            "piece_labels": labels,
        }
        meta = {"dimensions": rows.dimensions, "epoch": self._epoch}
        graph = {} if self._graph is None else self._graph.parts()
        return {VECTORS_PART: SnapshotPart(meta, arrays, segments), **graph}

    def should_retain(self, name: str, part: LoadedPart) -> bool:
        """Return True for a part of the stored snapshot that `parts` may lack, but other processes use."""
        return self._graph is not None and self._graph.is_stored_graph(name, part)

    def record_saved_files(self, parts: Mapping[str, LoadedPart]) -> bool:
        """
        Record the files that contain the result of `parts`, so that later snapshots reuse these files.

        Return False if the files are of another epoch.
        """
        loaded = parts.get(VECTORS_PART)
        if loaded is None or loaded.meta.get("epoch") != self._epoch:
            return False
        self._rows.record_segments(loaded.segments)
        if self._graph is not None:
            self._graph.record_saved_files(parts)
        return True

    def stats(self) -> dict[str, Any]:
        """Return statistics: counts and the search mode."""
        graph = self._graph
        proved = None if graph is None else graph.verified_graph
        return {
            "nodes": len(self),
            "vectors": self._rows.live,
            "dead": self._rows.dead,
            "unsaved": self.unsaved,
            "mode": "exact" if graph is None else graph.mode,
            "recall": None if proved is None else proved.recall,
            "ef": None if proved is None else proved.ef,
        }

    def wait_until_idle(self, timeout: float | None = None) -> bool:
        """
        Wait until the graph is built, loaded or rejected.

        Return False if *timeout* seconds passed before that.
        """
        if self._graph is None:
            return True
        self._graph.get_usable_graph()
        return self._graph.wait_until_idle(timeout)

    def rebuild(self) -> None:
        """Build the graph again. Until it is built, searches are exact."""
        if self._graph is not None:
            self._graph.rebuild()

    def close(self) -> None:
        """Stop background work. Afterwards searches are exact."""
        for graph in (*self._retired_graphs, self._graph):
            if graph is not None:
                graph.close()
        self._retired_graphs = []

    def _validate_query(self, vector: NDArray[np.float32]) -> Vectors:
        query = np.ascontiguousarray(vector, np.float32)
        if query.shape != (self.dimensions,) or not np.isfinite(query).all():
            raise InvalidArgument(f"vector must be {self.dimensions} finite numbers, got shape {query.shape}")
        return query

    def _search_exact(self, query: Vectors, limit: int, mask: Mask | None, chosen: Labels | None) -> Matches:
        rows = self._rows
        if chosen is None and rows.dead:
            chosen = np.flatnonzero(rows.alive)
        if chosen is None:
            scores, chosen = rows.all_scores(query), np.arange(rows.count)
        elif len(chosen) < rows.max_gather_ratio * rows.count:
            scores = rows.scores(query, chosen)
        else:
            scores = rows.all_scores(query)[chosen]
        wanted = limit
        while True:
            if wanted >= len(chosen):
                return self._nodes.top_matches(chosen, scores, limit, mask)
            # Include all rows that tie with the last one, so that the newest node wins a tie.
            worst = np.partition(scores, len(scores) - wanted)[len(scores) - wanted]
            best = np.flatnonzero(scores >= worst)
            matches = self._nodes.top_matches(chosen[best], scores[best], limit, mask)
            if len(matches) >= limit:
                return matches
            # Several rows belong to the same node, so take more rows.
            wanted *= 4

    def _search_graph(self, query: Vectors, limit: int, mask: Mask | None, chosen: Labels | None) -> Matches | None:
        """Search the graph and the rows added since. Return None if there is no usable graph or too few matches."""
        served = self._graph
        proved = None if served is None else served.get_usable_graph()
        if served is None or proved is None or not query.any():
            return None
        rows, graph = self._rows, proved.graph
        wanted = self._count_pieces(limit)
        if chosen is not None:
            if len(chosen) <= min(MAX_SCANNED_SELECTION, rows.live // 2):
                return None
            wanted = int(1.3 * wanted * rows.live / len(chosen)) + limit
        start = len(graph)
        waiting = start + np.flatnonzero(rows.alive[start:])
        others = rows.all_scores(query, start)[waiting - start]
        while wanted <= MAX_GRAPH_RESULTS:
            searched = served.search(proved, query[None], wanted)
            if searched is None:
                return None
            found = searched[0]
            is_all = len(found) >= graph.live
            found = found[rows.alive[found]]
            # The graph may have grown since the scan, so drop its results that the scan has already covered.
            found = found[found < start]
            labels = np.concatenate([found, waiting])
            scores = np.concatenate([self._recent.scores(query, found), others])
            matches = self._nodes.top_matches(labels, scores, limit, mask)
            if len(matches) >= limit or is_all:
                return matches
            wanted *= 4
        return None

    def _search_many_exact(self, queries: Vectors, limit: int) -> list[Matches]:
        rows = self._rows
        scores = rows.scores_of_many(queries)
        if rows.dead:
            scores[:, ~rows.alive] = -np.inf
        return [self._best_nodes(own, query, limit) for own, query in zip(scores, queries, strict=True)]

    def _best_nodes(self, scores: Scores, query: Vectors, limit: int) -> Matches:
        """Return the nodes with the best scores. *scores* contains the score of each row."""
        if limit < len(scores):
            worst = np.partition(scores, len(scores) - limit)[len(scores) - limit]
            best = np.flatnonzero(scores >= worst)
            best = best[np.isfinite(scores[best])]
            matches = self._nodes.top_matches(best, scores[best], limit, None)
            if len(matches) >= limit:
                return matches
        # Too few nodes were found, because several rows belong to the same node.
        return self._search_exact(query, limit, None, None)

    def _search_many_graph(self, queries: Vectors, limit: int) -> list[Matches] | None:
        """
        Return the matches of the graph for all queries, or None if the graph cannot be used.

        Queries with too few matches are searched again one by one.
        """
        served = self._graph
        proved = None if served is None else served.get_usable_graph()
        if served is None or proved is None or not queries.any(axis=1).all():
            return None
        rows, start = self._rows, len(proved.graph)
        waiting = start + np.flatnonzero(rows.alive[start:])
        others = rows.scores_of_many(queries, start)
        searched = served.search(proved, queries, self._count_pieces(limit))
        if searched is None:
            return None
        found = []
        for query, all_labels, late in zip(queries, searched, others[:, waiting - start], strict=True):
            # The graph may have grown since the scan, so drop its results that the scan has already covered.
            labels = all_labels[rows.alive[all_labels] & (all_labels < start)]
            scores = np.concatenate([self._recent.scores(query, labels), late])
            matches = self._nodes.top_matches(np.concatenate([labels, waiting]), scores, limit, None)
            found.append(matches if len(matches) >= limit else self.nearest(query, limit))
        return found

    def _count_pieces(self, nodes: int) -> int:
        """Return the number of vectors that usually belong to the given number of nodes: at most twice as many."""
        return nodes + nodes * min(2 * self._nodes.nodes_with_several_pieces, self._nodes.live) // max(
            self._nodes.live, 1
        )

    def _compact(self) -> None:
        rows, moved = self._rows.copy_compacted()
        nodes, labels = self._nodes.state()
        if self._graph is not None:
            self._graph.abandon()
            self._retired_graphs = [graph for graph in (*self._retired_graphs, self._graph) if graph.is_working]
        self._reset(rows, HnswLabels.from_state(nodes, moved[labels], rows=rows.count))
        self._ensure_graph()


def _validate_vectors(vectors: NDArray[np.float32], dimensions: int) -> Vectors:
    """
    Validate vectors and return them.

    Negative zeros become zeros, so that equal vectors have equal bytes.
    """
    checked = np.ascontiguousarray(vectors, np.float32)
    if checked.ndim != 2 or checked.shape[1] != dimensions:  # noqa: PLR2004 - rows
        raise InvalidArgument(f"vectors must be of shape (pieces, {dimensions}), got {checked.shape}")
    if not are_unit_vectors(checked):
        raise InvalidArgument("vectors must be finite and of length 1")
    return checked + np.float32(0)
