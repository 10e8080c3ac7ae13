"""The vectors of memories, each distinct one once, and which of them are nearest."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedded.distinct import BLOCK, NO_MATCHES, Labels, Mask, NodeLabels, VectorRows, Vectors
from mama_structs.memory.embedded.graph import Proved, ServedGraph
from mama_structs.memory.embedded.snapshots import LoadedPart, Part, StoredArray
from mama_structs.memory.embedding.protocol import are_unit
from mama_structs.memory.engine import Matches, Nodes, Scores

VECTORS: Final = "vectors"
GRAPH: Final = "graph"

# Comparing so many rows one by one is about as fast as asking a graph for many more than are wanted.
_FEW: Final = 4_096
# Beyond so many the graph is slower than comparing all.
_MOST: Final = 768
# Below this share of the rows it is faster to collect those that count than to compare all.
_SPARSE: Final = 0.4
_SMALLEST_DEAD: Final = 64


class VectorIndex:
    """Vectors by node; all calls come from one thread."""

    def __init__(self, dimensions: int, *, exact_up_to: int) -> None:
        if dimensions < 1:
            raise InvalidArgument(f"dimensions must be 1 or more, got {dimensions!r}")
        self._exact_up_to = exact_up_to
        self._adopt(VectorRows(dimensions), NodeLabels())

    @classmethod
    def restore(cls, parts: Mapping[str, LoadedPart], *, dimensions: int, exact_up_to: int) -> VectorIndex | None:
        """Return the index of a snapshot; its graph is loaded behind, and searches are exact until then."""
        loaded = parts.get(VECTORS)
        if loaded is None:
            return None
        try:
            if loaded.meta["dimensions"] != dimensions:
                return None
            arrays = loaded.arrays
            rows = VectorRows.of_blocks(
                dimensions,
                (*(segment.blocks[0] for segment in loaded.segments), arrays["tail"]),
                alive=arrays["alive"],
                prints=arrays["prints"],
                segments=loaded.segments,
            )
            nodes = NodeLabels.from_state(arrays["piece_nodes"], arrays["piece_labels"], rows=rows.count)
            epoch = str(loaded.meta["epoch"])
        except (KeyError, TypeError, ValueError, IndexError):
            return None
        index = cls(dimensions, exact_up_to=exact_up_to)
        index._adopt(rows, nodes)
        index._epoch = epoch
        graph = parts.get(GRAPH)
        if graph is not None and graph.meta.get("epoch") == epoch and rows.live > exact_up_to:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                index._graph = ServedGraph.of_part(rows, graph, exact_up_to=exact_up_to)
        index._graph.wake()
        return index

    def _adopt(self, rows: VectorRows, nodes: NodeLabels) -> None:
        self._rows = rows
        self._nodes = nodes
        self._graph = ServedGraph(rows, exact_up_to=self._exact_up_to)
        # Labels mean something within one epoch only.
        self._epoch = uuid.uuid4().hex
        self._retired: list[ServedGraph] = []

    @property
    def dimensions(self) -> int:
        """Of each vector."""
        return self._rows.dimensions

    @property
    def unsaved(self) -> int:
        """How many vectors are in no file that later snapshots use again: above some 16,000 one is worth it."""
        return self._rows.unsaved

    def __len__(self) -> int:
        """How many nodes have vectors."""
        return self._nodes.live

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def add(self, node: int, vectors: NDArray[np.float32]) -> None:
        """Give a node its vectors."""
        if node < 0 or node in self._nodes:
            raise InvalidArgument(f"node must be a new one, got {node}")
        vectors = _checked(vectors, self.dimensions)
        self._nodes.add(node, [self._rows.place(vector) for vector in vectors])
        self._graph.wake()

    def remove(self, node: int) -> None:
        """Take a node's vectors from it; nothing happens where it has none."""
        for label in self._nodes.remove(node):
            self._rows.bury(label)
        if self._rows.dead > max(_SMALLEST_DEAD, self._rows.count // 3):
            self._compact()

    def get(self, node: int) -> Vectors:
        """Return a node's vectors, of shape (pieces, dimensions); no pieces where it has none."""
        labels = self._nodes.labels(node)
        return self._rows.take(labels) if len(labels) else np.empty((0, self.dimensions), np.float32)

    def pieces(self, nodes: Sequence[int] | Nodes) -> tuple[Vectors, NDArray[np.int64]]:
        """Return the vectors of *nodes*, in their order, of shape (pieces, dimensions), and how many each has."""
        labels, counts = self._nodes.pieces(np.asarray(nodes, np.int64))
        return self._rows.take(labels), counts

    def first(self, nodes: Nodes) -> Vectors:
        """Return the first piece of each of *nodes*, of shape (nodes, dimensions); 0 for a node without vectors."""
        labels, has = self._nodes.first(np.asarray(nodes, np.int64))
        if has.all():
            return self._rows.take(labels)
        found = np.zeros((len(nodes), self.dimensions), np.float32)
        found[has] = self._rows.take(labels)
        return found

    def similarities(self, vector: NDArray[np.float32], nodes: Nodes) -> Scores:
        """Return the cosine of *vector* (dimensions,) and each node's best piece; 0 for a node without vectors."""
        query = self._query(vector)
        labels, counts = self._nodes.pieces(np.asarray(nodes, np.int64))
        result = np.zeros(len(counts), np.float32)
        if len(labels):
            has = counts > 0
            begin = (np.cumsum(counts) - counts)[has]
            result[has] = np.maximum.reduceat(self._rows.scores(query, labels), begin)
        return result

    def nearest(self, vector: NDArray[np.float32], limit: int, mask: NDArray[np.bool_] | None = None) -> Matches:
        """Return the nodes with the highest cosine to *vector*, each once, by its best piece."""
        query = self._query(vector)
        if limit < 1 or not len(self):
            return NO_MATCHES
        chosen = None
        if mask is not None:
            if len(mask) < self._nodes.size:
                mask = np.concatenate([mask, np.zeros(self._nodes.size - len(mask), np.bool_)])
            chosen = self._nodes.selected(mask)
            if not len(chosen):
                return NO_MATCHES
        proved = self._graph.usable()
        if proved is not None and query.any():
            found = self._by_graph(proved, query, limit, mask, chosen)
            if found is not None:
                return found
        return self._by_scan(query, limit, mask, chosen)

    def parts(self) -> dict[str, Part]:
        """Return what a snapshot keeps; it may be written in another thread while the index goes on changing."""
        rows = self._rows
        segments, tail = rows.segments, rows.tail()
        if rows.unsaved >= BLOCK:
            segments, tail = (*segments, StoredArray(tail)), ()
        nodes, labels = self._nodes.state()
        arrays: dict[str, NDArray[Any]] = {
            "tail": np.concatenate(tail) if tail else np.empty((0, rows.dimensions), np.float32),
            "alive": rows.alive[: rows.count].copy(),
            "prints": rows.prints.copy(),
            "piece_nodes": nodes,
            "piece_labels": labels,
        }
        meta = {"dimensions": rows.dimensions, "epoch": self._epoch}
        parts = {VECTORS: Part(meta, arrays, segments)}
        graph = self._graph.part()
        if graph is not None:
            parts[GRAPH] = Part({**graph.meta, "epoch": self._epoch}, files=graph.files)
        return parts

    def rebase(self, parts: Mapping[str, LoadedPart]) -> bool:
        """Read from a snapshot's files what they hold, after `parts` was written to them, and give its memory back."""
        loaded = parts.get(VECTORS)
        if loaded is None or loaded.meta.get("epoch") != self._epoch:
            return False
        try:
            self._rows.rebase(loaded.segments, loaded.arrays["tail"])
        except (KeyError, ValueError):
            return False
        graph = parts.get(GRAPH)
        if graph is not None:
            self._graph.saved(graph)
        return True

    def stats(self) -> dict[str, Any]:
        """Return counts, and how searches are served."""
        proved = self._graph.proved
        return {
            "nodes": len(self),
            "vectors": self._rows.live,
            "dead": self._rows.dead,
            "unsaved": self.unsaved,
            "mode": self._graph.mode,
            "recall": None if proved is None else proved.recall,
            "ef": None if proved is None else proved.ef,
        }

    def settled(self, timeout: float | None = None) -> bool:
        """Wait until the graph is built, loaded or refused, and tell whether it is so after *timeout* seconds."""
        self._graph.usable()
        return self._graph.settled(timeout)

    def rebuild(self) -> None:
        """Build the graph anew; searches are exact until then."""
        self._graph.rebuild()

    def close(self) -> None:
        """Stop what runs behind; searches are exact from then on."""
        for graph in (self._graph, *self._retired):
            graph.close()
        self._retired = []

    def _query(self, vector: NDArray[np.float32]) -> Vectors:
        query = np.ascontiguousarray(vector, np.float32)
        if query.shape != (self.dimensions,) or not np.isfinite(query).all():
            raise InvalidArgument(f"vector must be {self.dimensions} finite numbers, got shape {query.shape}")
        return query

    def _by_scan(self, query: Vectors, limit: int, mask: Mask | None, chosen: Labels | None) -> Matches:
        rows = self._rows
        if chosen is None and rows.dead:
            chosen = np.flatnonzero(rows.alive[: rows.count])
        if chosen is None:
            scores, chosen = rows.all_scores(query), np.arange(rows.count)
        elif len(chosen) < _SPARSE * rows.count:
            scores = rows.scores(query, chosen)
        else:
            scores = rows.all_scores(query)[chosen]
        wanted = limit
        while True:
            if wanted >= len(chosen):
                return self._nodes.best(chosen, scores, limit, mask)
            # With all that are equal to the last one, so that the newest of them come first.
            worst = np.partition(scores, len(scores) - wanted)[len(scores) - wanted]
            best = np.flatnonzero(scores >= worst)
            matches = self._nodes.best(chosen[best], scores[best], limit, mask)
            if len(matches) >= limit:
                return matches
            # Several pieces of one node were among them.
            wanted *= 4

    def _by_graph(
        self, proved: Proved, query: Vectors, limit: int, mask: Mask | None, chosen: Labels | None
    ) -> Matches | None:
        """Ask the graph, and compare what is not in it yet; None where that would not give all that is wanted."""
        rows, graph = self._rows, proved.graph
        wanted = 2 * limit if self._nodes.several else limit
        if chosen is not None:
            if len(chosen) <= min(_FEW, rows.live // 2):
                return None
            wanted = int(1.3 * wanted * rows.live / len(chosen)) + limit
        start = len(graph)
        waiting = start + np.flatnonzero(rows.alive[start : rows.count])
        others = rows.all_scores(query, start)[waiting - start]
        while wanted <= _MOST:
            found = self._graph.search(proved, query, wanted)
            if found is None:
                return None
            is_all = len(found) >= graph.live
            found = found[rows.alive[found]]
            # A graph that grew meanwhile gives what was compared already.
            found = found[found < start]
            labels = np.concatenate([found, waiting])
            scores = np.concatenate([rows.scores(query, found), others])
            matches = self._nodes.best(labels, scores, limit, mask)
            if len(matches) >= limit or is_all:
                return matches
            wanted *= 4
        return None

    def _compact(self) -> None:
        rows, moved = self._rows.compacted()
        self._nodes.relabel(moved)
        retired = [*self._retired, self._graph]
        self._graph.abandon()
        self._adopt(rows, self._nodes)
        self._retired = [graph for graph in retired if graph.is_working]
        self._graph.wake()


def _checked(vectors: NDArray[np.float32], dimensions: int) -> Vectors:
    """Return vectors as rows may keep them: a negative zero is a zero, so that what is equal has equal bytes."""
    checked = np.ascontiguousarray(vectors, np.float32)
    if checked.ndim != 2 or checked.shape[1] != dimensions:  # noqa: PLR2004 - rows
        raise InvalidArgument(f"vectors must be of shape (pieces, {dimensions}), got {checked.shape}")
    if not are_unit(checked):
        raise InvalidArgument("vectors must be finite and of length 1")
    return checked + np.float32(0)
