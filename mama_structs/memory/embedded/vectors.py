"""The vectors of memories: each distinct one once, which memories they belong to, and which of them are nearest."""

from __future__ import annotations

import uuid
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedded.catalogue import Columns, Order, grown, runs
from mama_structs.memory.embedded.snapshots import FileRows, LoadedPart, Part, Stored, StoredArray
from mama_structs.memory.embedding.protocol import are_unit
from mama_structs.memory.engine import Matches, Nodes, Scores, sampled

if TYPE_CHECKING:
    from mama_structs.memory.embedded.graph import ServedGraph

Labels = NDArray[np.int64]
Vectors = NDArray[np.float32]
Mask = NDArray[np.bool_]
Block = NDArray[np.float32] | FileRows

VECTORS: Final = "vectors"
GRAPH: Final = "graph"

BLOCK: Final = 8_192
"""Rows of a block of the process's own memory; a snapshot writes so many as a segment, and less in with the rest."""
HELD: Final = 16_384
"""From so many rows on those of segments are left in their files, which is slower for a scan than for a graph."""

_SMALLEST_BLOCK: Final = 64
_ROW: Final = {"alive": np.bool_, "print": np.uint64}
# So many rows that are collected fit the cache.
_GATHER: Final = 2_048

# Instead of the one node of a label.
_NONE: Final = -1
_SHARED: Final = -2
_PIECE: Final = {"node": np.int32, "label": np.int32}
_SMALLEST: Final = 64

_NO_MATCHES: Final = Matches(np.empty(0, np.int64), np.empty(0, np.float32))
# Comparing so many rows one by one is about as fast as asking a graph for many more than are wanted.
_FEW: Final = 4_096
# Beyond so many the graph is slower than comparing all.
_MOST: Final = 768
# Below this share of the rows it is faster to collect those that count than to compare all, in memory and in files.
_SPARSE: Final = 0.4
_SPARSE_IN_FILES: Final = 0.1
# Rows of a file that are read at once: so many stay in the cache until they were compared.
_READ: Final = 256
_SMALLEST_DEAD: Final = 64
# So many are compared with all rows at once: of more the scores would take much memory.
_TOGETHER: Final = 64


class VectorRows:
    """Vectors with labels 0, 1, 2, …, no two of them equal."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.dead: int = 0
        """How many belong to nothing any more; a label comes alive again when its vector is added again."""
        self.changes: int = 0
        """Grows whenever a label dies or comes alive."""
        self.segments: tuple[tuple[Stored, int], ...] = ()
        """The files that hold them, from the first on, and how many are in each."""
        # Blocks, and the label of each one's first row: one attribute, for another thread must read them together.
        self._layout: tuple[tuple[Block, ...], Labels] = ((), np.empty(0, np.int64))
        self._known = Columns(_ROW)
        self._by_print = Order()

    @classmethod
    def of_blocks(
        cls,
        dimensions: int,
        blocks: tuple[Block, ...],
        *,
        alive: NDArray[np.bool_],
        prints: NDArray[np.uint64],
        segments: tuple[tuple[Stored, int], ...] = (),
    ) -> VectorRows:
        """Take over rows that a snapshot or another object holds."""
        rows = cls(dimensions)
        blocks = tuple(block for block in blocks if len(block))
        if any(block.dtype != np.float32 or block.shape[1:] != (dimensions,) for block in blocks):
            raise ValueError(f"rows must be float32 of {dimensions} dimensions")
        count = sum(map(len, blocks))
        if alive.shape != (count,) or prints.shape != (count,) or alive.dtype != np.bool_:
            raise ValueError(f"what is said of {count} rows is of other lengths")
        rows._known.extend({"alive": alive, "print": prints})
        rows.dead = count - int(np.count_nonzero(alive))
        if count < HELD:
            blocks = tuple(block.slice(0, len(block)) if isinstance(block, FileRows) else block for block in blocks)
        rows._set_blocks(blocks)
        rows.segments = segments
        return rows

    @property
    def count(self) -> int:
        """How many there are, dead ones too."""
        return len(self._known)

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Which of them belong to something."""
        return self._known["alive"]

    @property
    def live(self) -> int:
        """How many belong to something."""
        return self.count - self.dead

    @property
    def unsaved(self) -> int:
        """How many are in no segment."""
        return self.count - sum(length for _, length in self.segments)

    @property
    def sparse(self) -> float:
        """Below which share of the rows it is faster to collect those that count than to compare all."""
        return _SPARSE_IN_FILES if isinstance(next(iter(self._layout[0]), None), FileRows) else _SPARSE

    @property
    def prints(self) -> NDArray[np.uint64]:
        """The fingerprint of each row."""
        return self._known["print"]

    def place(self, vector: Vectors) -> int:
        """Return the label of a vector of shape (dimensions,), appending it if there is none; it is alive then."""
        fingerprint = int.from_bytes(blake2b(vector.tobytes(), digest_size=8).digest(), "little")
        for label in self._by_print.find(self.prints, fingerprint).tolist():
            # The bytes decide: a fingerprint is only where to look.
            if self.take(np.array([label])).tobytes() == vector.tobytes():
                if not self.alive[label]:
                    self.alive[label] = True
                    self.dead -= 1
                    self.changes += 1
                return int(label)
        block, start = self._block()
        block[self.count - start] = vector
        # Last: whoever reads in another thread goes by how many are known.
        return self._known.append(alive=True, print=fingerprint)

    def bury(self, label: int) -> None:
        """Say that a label belongs to nothing any more."""
        if self.alive[label]:
            self.alive[label] = False
            self.dead += 1
            self.changes += 1

    def take(self, labels: Labels) -> Vectors:
        """Return rows, of shape (n, dimensions)."""
        blocks, starts = self._layout
        if len(blocks) == 1:
            return _taken(blocks[0], labels)
        taken = np.empty((len(labels), self.dimensions), np.float32)
        where = np.searchsorted(starts, labels, side="right") - 1
        for number in np.unique(where).tolist():
            here = where == number
            taken[here] = _taken(blocks[number], labels[here] - starts[number])
        return taken

    def scores(self, vector: Vectors, labels: Labels) -> Scores:
        """Return the inner product of *vector* and some rows, in steps that fit the cache."""
        if len(labels) <= _GATHER:
            result: Scores = self.take(labels) @ vector
            return result
        return np.concatenate([self.take(labels[at : at + _GATHER]) @ vector for at in range(0, len(labels), _GATHER)])

    def all_scores(self, vector: Vectors, start: int = 0) -> Scores:
        """Return the inner product of *vector* and each row from *start* on."""
        result = np.empty(self.count - start, np.float32)
        for at, block in self.slices(start, self.count):
            np.dot(block, vector, out=result[at - start : at - start + len(block)])
        return result

    def slices(self, start: int, stop: int, *, most: int | None = None) -> Iterator[tuple[int, Vectors]]:
        """Give the rows from *start* to *stop*, at most *most* at a time, each time with the first one's label."""
        # Read once: the engine's thread adds blocks and replaces the last one meanwhile, but never changes a row.
        blocks, starts = self._layout
        for begin, block in zip(starts.tolist(), blocks, strict=True):
            first, last = max(start, begin), min(stop, begin + len(block))
            is_read = isinstance(block, FileRows)
            step = most or (_READ if is_read else max(1, last - first))
            for at in range(first, last, step):
                place = slice(at - begin, min(last, at + step) - begin)
                yield at, block.slice(place.start, place.stop) if isinstance(block, FileRows) else block[place]

    def blocks(self, start: int, stop: int) -> tuple[Block, ...]:
        """Return what holds the rows from *start* to *stop*, of which a file has all or none."""
        blocks, starts = self._layout
        parts = zip(blocks, starts.tolist(), strict=True)
        within = [(block, begin) for block, begin in parts if begin < stop and start < begin + len(block)]
        return tuple(
            block if isinstance(block, FileRows) else block[max(0, start - begin) : stop - begin]
            for block, begin in within
        )

    def written(self, segments: Sequence[StoredArray]) -> None:
        """Take note of the files that hold the first rows, and leave these to them where they are many."""
        self.segments = tuple((one.stored, len(one)) for one in segments if one.stored is not None)
        files = tuple(block for one in segments for block in one.blocks)
        held = sum(map(len, files))
        if self.count >= HELD and all(isinstance(block, FileRows) for block in files):
            rest = tuple(block.copy() for _, block in self.slices(held, self.count))
            self._set_blocks((*files, *rest))

    def compacted(self) -> tuple[VectorRows, NDArray[np.int32]]:
        """Return the rows that are alive as new ones, and for each old label the new one, -1 for the dead."""
        kept = np.flatnonzero(self.alive)
        blocks = tuple(self.take(kept[at : at + BLOCK]) for at in range(0, len(kept), BLOCK))
        alive = np.ones(len(kept), np.bool_)
        fresh = VectorRows.of_blocks(self.dimensions, blocks, alive=alive, prints=self.prints[kept])
        moved = np.full(self.count, -1, np.int32)
        moved[kept] = np.arange(len(kept))
        return fresh, moved

    def _block(self) -> tuple[Vectors, int]:
        """Return the block that the next row goes into, and the label of its first row."""
        blocks, starts = self._layout
        last = blocks[-1] if blocks else None
        # What a file holds is never written to.
        if not isinstance(last, np.ndarray) or not last.flags.writeable or self.count - int(starts[-1]) >= BLOCK:
            last = np.empty((_SMALLEST_BLOCK, self.dimensions), np.float32)
            blocks, starts = (*blocks, last), np.append(starts, self.count)
        elif self.count - int(starts[-1]) == len(last):
            larger = np.empty((min(BLOCK, max(_SMALLEST_BLOCK, 2 * len(last))), self.dimensions), np.float32)
            larger[: len(last)] = last
            blocks, last = (*blocks[:-1], larger), larger
        self._layout = (blocks, starts)
        return last, int(starts[-1])

    def _set_blocks(self, blocks: tuple[Block, ...]) -> None:
        lengths = [len(block) for block in blocks]
        self._layout = (blocks, np.cumsum([0, *lengths])[: len(lengths)].astype(np.int64))


class NodeLabels:
    """Nodes and the labels of their vectors, both ways."""

    def __init__(self) -> None:
        self.live: int = 0
        """How many nodes there are."""
        self.several: int = 0
        """How many of them have several pieces."""
        self.last: int = -1
        """The highest node that ever had vectors here."""
        # Pieces, those of a node behind one another: the node (-1 when it was removed) and the label.
        self._parts = Columns(_PIECE)
        self._removed = 0
        # By node: its first piece, and how many it has.
        self._first = np.zeros(_SMALLEST, np.int32)
        self._pieces = np.zeros(_SMALLEST, np.int32)
        # By label: its node, or one of the words above.
        self._owner = np.full(_SMALLEST, _NONE, np.int32)
        self._shared: dict[int, array[int]] = {}

    @classmethod
    def from_state(cls, nodes: NDArray[np.int32], labels: NDArray[np.int32], *, rows: int) -> NodeLabels:
        """Make them from what `state` gave."""
        known = cls()
        if nodes.dtype != np.int32 or labels.dtype != np.int32 or nodes.ndim != 1 or nodes.shape != labels.shape:
            raise ValueError("pieces must be two int32 arrays of one length")
        if len(nodes) and (nodes.min() < 0 or labels.min() < 0 or labels.max() >= rows):
            raise ValueError(f"pieces must name nodes and one of {rows} labels")
        known._parts.extend({"node": nodes, "label": labels})
        known._pieces = np.bincount(nodes, minlength=_SMALLEST).astype(np.int32)
        known.last = int(nodes.max(initial=-1))
        known._first = np.zeros(len(known._pieces), np.int32)
        known.live, known.several = (int(np.count_nonzero(known._pieces > least)) for least in (0, 1))
        if known._find_first() != known.live:
            raise ValueError("the pieces of a node must stand behind one another")
        known._owner = np.full(max(_SMALLEST, rows), _NONE, np.int32)
        # Each pair once, by label and then node.
        pairs = np.unique(labels.astype(np.int64) << 32 | nodes)
        owned, owners = (pairs >> 32).astype(np.int64), (pairs & 0xFFFFFFFF).astype(np.int32)
        distinct, begin, counts = np.unique(owned, return_index=True, return_counts=True)
        known._owner[distinct] = np.where(counts == 1, owners[begin], _SHARED)
        for at in np.flatnonzero(counts > 1).tolist():
            known._shared[int(distinct[at])] = array("i", owners[begin[at] : begin[at] + counts[at]].tobytes())
        return known

    def state(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the node and the label of each piece."""
        self._close_gaps()
        return self._parts["node"].copy(), self._parts["label"].copy()

    @property
    def size(self) -> int:
        """One more than the highest node that may be here."""
        return len(self._pieces)

    def __contains__(self, node: int) -> bool:
        return 0 <= node < len(self._pieces) and bool(self._pieces[node])

    def add(self, node: int, labels: list[int]) -> None:
        """Give a node that has none its labels, one for each piece."""
        if not labels:
            return
        if node >= len(self._pieces):
            self._first, self._pieces = (grown(known, node + 1, 0) for known in (self._first, self._pieces))
        if max(labels) >= len(self._owner):
            self._owner = grown(self._owner, max(labels) + 1, _NONE)
        self._first[node], self._pieces[node] = len(self._parts), len(labels)
        self._parts.extend({"node": np.full(len(labels), node), "label": np.array(labels)})
        self.live += 1
        self.last = max(node, self.last)
        self.several += len(labels) > 1
        for label in set(labels):
            self._own(label, node)

    def remove(self, node: int) -> list[int]:
        """Take a node's labels from it, and return those that no other node has."""
        if node not in self:
            return []
        first = int(self._first[node])
        labels = self._parts["label"][first : first + int(self._pieces[node])].tolist()
        self._parts["node"][first : first + len(labels)] = _NONE
        self._pieces[node] = 0
        self._removed += len(labels)
        self.live -= 1
        self.several -= len(labels) > 1
        if self._removed > max(_SMALLEST, len(self._parts) // 2):
            self._close_gaps()
        return [label for label in set(labels) if self._disown(label, node)]

    def pieces(self, nodes: Nodes) -> tuple[Labels, Labels]:
        """Return the labels of several nodes behind one another, and how many each node has."""
        inside = (nodes >= 0) & (nodes < len(self._pieces))
        known = np.where(inside, nodes, 0)
        counts = np.where(inside, self._pieces[known], 0).astype(np.int64)
        return self._parts["label"][runs(self._first[known], counts)].astype(np.int64), counts

    def sampled(self) -> Labels:
        """Return the label of the first piece of each node that is `sampled`."""
        nodes = np.flatnonzero(self._pieces)[sampled(self.live)]
        return self._parts["label"][self._first[nodes]].astype(np.int64)

    def selected(self, mask: Mask) -> Labels:
        """Return the labels of the nodes that *mask* (of `size` at least) lets pass, each once, in order."""
        nodes = self._parts["node"]
        # A removed piece's -1 asks for the last item, which says nothing of it.
        wanted = mask[nodes] & (nodes >= 0) if self._removed else mask[nodes]
        found = np.zeros(len(self._owner), np.bool_)
        found[self._parts["label"][wanted]] = True
        return np.flatnonzero(found)

    def best(self, labels: Labels, scores: Scores, limit: int, mask: Mask | None) -> Matches:
        """Return the nodes of labels, each once with its best score, best first and then the newest first."""
        owners = self._owner[labels].astype(np.int64)
        single = owners >= 0
        if mask is not None:
            single[single] = mask[owners[single]]
        nodes, values = [owners[single]], [scores[single]]
        for at in np.flatnonzero(owners == _SHARED).tolist():
            several = np.array(self._shared[int(labels[at])], np.int64)
            if mask is not None:
                several = several[mask[several]]
            several = several[-limit:]
            nodes.append(several)
            values.append(np.full(len(several), scores[at], np.float32))
        found, value = np.concatenate(nodes), np.concatenate(values)
        order = np.lexsort((-found, -value))
        if self.several:
            _, first = np.unique(found[order], return_index=True)
            order = order[np.sort(first)]
        order = order[:limit]
        return Matches(found[order], value[order].astype(np.float32))

    def _own(self, label: int, node: int) -> None:
        owner = int(self._owner[label])
        if owner == _NONE:
            self._owner[label] = node
            return
        if owner >= 0:
            self._owner[label] = _SHARED
            self._shared[label] = array("i", [owner])
        nodes = self._shared[label]
        nodes.insert(bisect_left(nodes, node), node)

    def _disown(self, label: int, node: int) -> bool:
        if int(self._owner[label]) != _SHARED:
            self._owner[label] = _NONE
            return True
        nodes = self._shared[label]
        del nodes[bisect_left(nodes, node)]
        if len(nodes) == 1:
            self._owner[label] = nodes[0]
            del self._shared[label]
        return False

    def _close_gaps(self) -> None:
        if not self._removed:
            return
        self._parts.keep(self._parts["node"] >= 0)
        self._removed = 0
        self._find_first()

    def _find_first(self) -> int:
        """Look where the pieces of each node begin, and return how often those of another one do."""
        nodes = self._parts["node"]
        first = np.flatnonzero(np.diff(nodes, prepend=-1))
        self._first[nodes[first]] = first
        return len(first)


class VectorIndex:
    """Vectors by node; all calls come from one thread."""

    def __init__(self, dimensions: int, *, exact_up_to: int) -> None:
        if dimensions < 1:
            raise InvalidArgument(f"dimensions must be 1 or more, got {dimensions!r}")
        self._exact_up_to = exact_up_to
        self._retired: list[ServedGraph] = []
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
                segments=tuple((one.stored, len(one)) for one in loaded.segments if one.stored is not None),
            )
            nodes = NodeLabels.from_state(arrays["piece_nodes"], arrays["piece_labels"], rows=rows.count)
            epoch = str(loaded.meta["epoch"])
        except (KeyError, TypeError, ValueError, IndexError):
            return None
        index = cls(dimensions, exact_up_to=exact_up_to)
        index._adopt(rows, nodes)
        index._epoch = epoch
        graph = parts.get(GRAPH)
        is_usable = graph is not None and graph.files and graph.meta.get("epoch") == epoch
        index._wake(graph if is_usable else None)
        return index

    def _adopt(self, rows: VectorRows, nodes: NodeLabels) -> None:
        self._rows = rows
        self._nodes = nodes
        self._graph: ServedGraph | None = None
        self._sample: Vectors | None = None
        # Labels mean something within one epoch only.
        self._epoch = uuid.uuid4().hex

    def _wake(self, stored: LoadedPart | None = None) -> None:
        """Keep a graph from when there are enough rows, and let it do behind what there is to do."""
        if self._graph is None and self._rows.live > self._exact_up_to:
            from mama_structs.memory.embedded import graph  # noqa: PLC0415 - only large memories have one

            self._graph = graph.ServedGraph(self._rows, stored)
        if self._graph is not None:
            self._graph.wake()

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
        is_last = node > self._nodes.last
        self._nodes.add(node, [self._rows.place(vector) for vector in vectors])
        live = len(self)
        # A new memory changes the sample where it is one of it, or is not the last one.
        if not (is_last and live % sampled(live).step):
            self._sample = None
        self._wake()

    def remove(self, node: int) -> None:
        """Take a node's vectors from it; nothing happens where it has none."""
        self._sample = None
        for label in self._nodes.remove(node):
            self._rows.bury(label)
        if self._rows.dead > max(_SMALLEST_DEAD, self._rows.count // 3):
            self._compact()

    def get(self, node: int) -> Vectors:
        """Return a node's vectors, of shape (pieces, dimensions); no pieces where it has none."""
        return self.pieces([node])[0]

    def pieces(self, nodes: Sequence[int] | Nodes) -> tuple[Vectors, NDArray[np.int64]]:
        """Return the vectors of *nodes*, in their order, of shape (pieces, dimensions), and how many each has."""
        labels, counts = self._nodes.pieces(np.asarray(nodes, np.int64))
        return self._rows.take(labels), counts

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
            return _NO_MATCHES
        chosen = None
        if mask is not None:
            if len(mask) < self._nodes.size:
                mask = np.concatenate([mask, np.zeros(self._nodes.size - len(mask), np.bool_)])
            chosen = self._nodes.selected(mask)
            if not len(chosen):
                return _NO_MATCHES
        found = self._by_graph(query, limit, mask, chosen)
        return self._by_scan(query, limit, mask, chosen) if found is None else found

    def nearest_many(self, vectors: NDArray[np.float32], limit: int, mask: NDArray[np.bool_] | None) -> list[Matches]:
        """Return what `nearest` does for each of *vectors*."""
        if limit < 1 or not len(self) or mask is not None:
            return [self.nearest(vector, limit, mask) for vector in vectors]
        queries = np.stack([self._query(vector) for vector in vectors]) if len(vectors) else vectors
        found: list[Matches] = []
        for start in range(0, len(queries), _TOGETHER):
            some = queries[start : start + _TOGETHER]
            found += self._many_by_graph(some, limit) or self._many_by_scan(some, limit)
        return found

    def sample(self) -> Vectors:
        """Return the first vectors of the nodes that are `sampled`, the same array as long as they are the same."""
        if self._sample is None:
            self._sample = self._rows.take(self._nodes.sampled())
            self._sample.flags.writeable = False
        return self._sample

    def parts(self) -> dict[str, Part]:
        """Return what a snapshot keeps; it may be written in another thread while the index goes on changing."""
        rows = self._rows
        segments, start = [], 0
        for stored, length in (*rows.segments, *([(None, rows.unsaved)] if rows.unsaved >= BLOCK else [])):
            segments.append(StoredArray(rows.blocks(start, start + length), stored))
            start += length
        tail = tuple(block for _, block in rows.slices(start, rows.count))
        nodes, labels = self._nodes.state()
        arrays: dict[str, NDArray[Any]] = {
            "tail": np.concatenate([np.empty((0, rows.dimensions), np.float32), *tail]),
            "alive": rows.alive.copy(),
            "prints": rows.prints.copy(),
            "piece_nodes": nodes,
            "piece_labels": labels,
        }
        meta = {"dimensions": rows.dimensions, "epoch": self._epoch}
        parts = {VECTORS: Part(meta, arrays, segments)}
        graph = None if self._graph is None else self._graph.part()
        if graph is not None:
            parts[GRAPH] = Part({**graph.meta, "epoch": self._epoch}, graph.arrays, files=graph.files)
        return parts

    def saved(self, parts: Mapping[str, LoadedPart]) -> bool:
        """Take note of the files that `parts` was written to: later snapshots use them again."""
        loaded = parts.get(VECTORS)
        if loaded is None or loaded.meta.get("epoch") != self._epoch:
            return False
        self._rows.written(loaded.segments)
        graph = parts.get(GRAPH)
        if graph is not None and self._graph is not None:
            self._graph.saved(graph)
        return True

    def stats(self) -> dict[str, Any]:
        """Return counts, and how searches are served."""
        graph = self._graph
        proved = None if graph is None else graph.proved
        return {
            "nodes": len(self),
            "vectors": self._rows.live,
            "dead": self._rows.dead,
            "unsaved": self.unsaved,
            "mode": "exact" if graph is None else graph.mode,
            "recall": None if proved is None else proved.recall,
            "ef": None if proved is None else proved.ef,
        }

    def settled(self, timeout: float | None = None) -> bool:
        """Wait until the graph is built, loaded or refused, and tell whether it is so after *timeout* seconds."""
        if self._graph is None:
            return True
        self._graph.usable()
        return self._graph.settled(timeout)

    def rebuild(self) -> None:
        """Build the graph anew; searches are exact until then."""
        if self._graph is not None:
            self._graph.rebuild()

    def close(self) -> None:
        """Stop what runs behind; searches are exact from then on."""
        for graph in (*self._retired, self._graph):
            if graph is not None:
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
            chosen = np.flatnonzero(rows.alive)
        if chosen is None:
            scores, chosen = rows.all_scores(query), np.arange(rows.count)
        elif len(chosen) < rows.sparse * rows.count:
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

    def _by_graph(self, query: Vectors, limit: int, mask: Mask | None, chosen: Labels | None) -> Matches | None:
        """Ask the graph, and compare what is not in it yet; None where that would not give all that is wanted."""
        served = self._graph
        proved = None if served is None else served.usable()
        if served is None or proved is None or not query.any():
            return None
        rows, graph = self._rows, proved.graph
        wanted = 2 * limit if self._nodes.several else limit
        if chosen is not None:
            if len(chosen) <= min(_FEW, rows.live // 2):
                return None
            wanted = int(1.3 * wanted * rows.live / len(chosen)) + limit
        start = len(graph)
        waiting = start + np.flatnonzero(rows.alive[start:])
        others = rows.all_scores(query, start)[waiting - start]
        while wanted <= _MOST:
            searched = served.search(proved, query[None], wanted)
            if searched is None:
                return None
            found = searched[0]
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

    def _many_by_scan(self, queries: Vectors, limit: int) -> list[Matches]:
        rows = self._rows
        scores = np.empty((len(queries), rows.count), np.float32)
        for at, block in rows.slices(0, rows.count):
            np.matmul(queries, block.T, out=scores[:, at : at + len(block)])
        if rows.dead:
            scores[:, ~rows.alive] = -np.inf
        return [self._best_of(own, query, limit) for own, query in zip(scores, queries, strict=True)]

    def _best_of(self, scores: Scores, query: Vectors, limit: int) -> Matches:
        """Return the best by the scores of all rows."""
        if limit < len(scores):
            worst = np.partition(scores, len(scores) - limit)[len(scores) - limit]
            best = np.flatnonzero(scores >= worst)
            best = best[np.isfinite(scores[best])]
            matches = self._nodes.best(best, scores[best], limit, None)
            if len(matches) >= limit:
                return matches
        # Several pieces of one node were among them, or there are not as many.
        return self._by_scan(query, limit, None, None)

    def _many_by_graph(self, queries: Vectors, limit: int) -> list[Matches] | None:
        """Ask the graph for all at once, and one by one where it gives too few; None where it gives nothing."""
        served = self._graph
        proved = None if served is None else served.usable()
        if served is None or proved is None or not queries.any(axis=1).all():
            return None
        rows, start = self._rows, len(proved.graph)
        waiting = start + np.flatnonzero(rows.alive[start:])
        others = np.empty((len(queries), rows.count - start), np.float32)
        for at, block in rows.slices(start, rows.count):
            np.matmul(queries, block.T, out=others[:, at - start : at - start + len(block)])
        searched = served.search(proved, queries, 2 * limit if self._nodes.several else limit)
        if searched is None:
            return None
        found = []
        for query, all_labels, late in zip(queries, searched, others[:, waiting - start], strict=True):
            # A graph that grew meanwhile gives what was compared already.
            labels = all_labels[rows.alive[all_labels] & (all_labels < start)]
            scores = np.concatenate([rows.scores(query, labels), late])
            matches = self._nodes.best(np.concatenate([labels, waiting]), scores, limit, None)
            found.append(matches if len(matches) >= limit else self.nearest(query, limit))
        return found

    def _compact(self) -> None:
        rows, moved = self._rows.compacted()
        nodes, labels = self._nodes.state()
        if self._graph is not None:
            self._graph.abandon()
            self._retired = [graph for graph in (*self._retired, self._graph) if graph.is_working]
        self._adopt(rows, NodeLabels.from_state(nodes, moved[labels], rows=rows.count))
        self._wake()


def _taken(block: Block, rows: Labels) -> Vectors:
    taken: Vectors = block.take(rows) if isinstance(block, FileRows) else block[rows]
    return taken


def _checked(vectors: NDArray[np.float32], dimensions: int) -> Vectors:
    """Return vectors as rows may keep them: a negative zero is a zero, so that what is equal has equal bytes."""
    checked = np.ascontiguousarray(vectors, np.float32)
    if checked.ndim != 2 or checked.shape[1] != dimensions:  # noqa: PLR2004 - rows
        raise InvalidArgument(f"vectors must be of shape (pieces, {dimensions}), got {checked.shape}")
    if not are_unit(checked):
        raise InvalidArgument("vectors must be finite and of length 1")
    return checked + np.float32(0)
