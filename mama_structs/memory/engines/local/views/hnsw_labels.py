"""
Mapping between memories and the labels of their vectors.

A long memory is split into pieces, each with a vector and its label. Equal vectors share a label.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.engines.local.views.memory_table import GrowingColumns, expand_runs, grow_array
from mama_structs.memory.engines.local.views.vector_store import Labels
from mama_structs.memory.types.engine import Matches, Nodes, Scores, sample_slice

Mask = NDArray[np.bool_]

# Stored in place of a node if the label belongs to no node.
NO_NODE: Final = -1
# Stored in place of a node if the label belongs to several nodes.
SEVERAL_NODES: Final = -2
_PIECE_COLUMNS: Final = {"node": np.int32, "label": np.int32}
INITIAL_LENGTH: Final = 64


class HnswLabels:
    """Mapping between nodes and the labels of their vectors, in both directions. A node has one label per chunk."""

    def __init__(self) -> None:
        self.live: int = 0
        """Number of nodes."""
        self.nodes_with_several_pieces: int = 0
        """Number of nodes with several chunks."""
        self.last: int = -1
        """The highest node that ever had vectors."""
        # Node and label of each chunk, grouped by node. The node of a removed chunk is -1.
        self._parts = GrowingColumns(_PIECE_COLUMNS)
        self._removed = 0
        # By node: position of its first chunk, and number of chunks.
        self._first = np.zeros(INITIAL_LENGTH, np.int32)
        self._pieces = np.zeros(INITIAL_LENGTH, np.int32)
        # By label: its node, NO_NODE or SEVERAL_NODES.
        self._owner = np.full(INITIAL_LENGTH, NO_NODE, np.int32)
        self._shared: dict[int, array[int]] = {}

    @classmethod
    def from_state(cls, nodes: NDArray[np.int32], labels: NDArray[np.int32], *, rows: int) -> HnswLabels:
        """Restore the mapping from the result of `state`. Raise ValueError if it is inconsistent."""
        known = cls()
        if nodes.dtype != np.int32 or labels.dtype != np.int32 or nodes.ndim != 1 or nodes.shape != labels.shape:
            raise ValueError("pieces must be two int32 arrays of one length")
        if len(nodes) and (nodes.min() < 0 or labels.min() < 0 or labels.max() >= rows):
            raise ValueError(f"pieces must have nodes of 0 or more and labels from 0 to {rows - 1}")
        known._parts.extend({"node": nodes, "label": labels})
        known._pieces = np.bincount(nodes, minlength=INITIAL_LENGTH).astype(np.int32)
        known.last = int(nodes.max(initial=-1))
        known._first = np.zeros(len(known._pieces), np.int32)
        known.live, known.nodes_with_several_pieces = (int(np.count_nonzero(known._pieces > least)) for least in (0, 1))
        if known._index_first_pieces() != known.live:
            raise ValueError("the pieces of a node must be contiguous")
        known._owner = np.full(max(INITIAL_LENGTH, rows), NO_NODE, np.int32)
        # Distinct pairs of label and node, sorted by label, then by node. The pairs are nearly sorted, for which sort()
        # takes a tenth of the time of unique().
        pairs = np.sort(labels.astype(np.int64) << 32 | nodes)
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        owned, owners = pairs >> 32, (pairs & 0xFFFFFFFF).astype(np.int32)
        begin = np.flatnonzero(np.diff(owned, prepend=-1))
        counts = np.diff(begin, append=len(owned))
        known._owner[owned[begin]] = np.where(counts == 1, owners[begin], SEVERAL_NODES)
        for at in np.flatnonzero(counts > 1).tolist():
            known._shared[int(owned[begin[at]])] = array("i", owners[begin[at] : begin[at] + counts[at]].tobytes())
        return known

    def state(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return two arrays: the node of each chunk, and the label of each chunk."""
        self._drop_removed()
        return self._parts["node"].copy(), self._parts["label"].copy()

    @property
    def size(self) -> int:
        """Exclusive upper bound of the nodes."""
        return len(self._pieces)

    def __contains__(self, node: int) -> bool:
        return 0 <= node < len(self._pieces) and bool(self._pieces[node])

    def add(self, node: int, labels: list[int]) -> None:
        """Assign labels, one per chunk, to a node without labels."""
        if not labels:
            return
        if node >= len(self._pieces):
            self._first, self._pieces = (grow_array(known, node + 1, 0) for known in (self._first, self._pieces))
        if max(labels) >= len(self._owner):
            self._owner = grow_array(self._owner, max(labels) + 1, NO_NODE)
        self._first[node], self._pieces[node] = len(self._parts), len(labels)
        self._parts.extend({"node": np.full(len(labels), node), "label": np.array(labels)})
        self.live += 1
        self.last = max(node, self.last)
        self.nodes_with_several_pieces += len(labels) > 1
        for label in set(labels):
            self._add_owner(label, node)

    def remove(self, node: int) -> list[int]:
        """Remove a node, and return its labels that belong to no other node."""
        if node not in self:
            return []
        first = int(self._first[node])
        labels = self._parts["label"][first : first + int(self._pieces[node])].tolist()
        self._parts["node"][first : first + len(labels)] = NO_NODE
        self._pieces[node] = 0
        self._removed += len(labels)
        self.live -= 1
        self.nodes_with_several_pieces -= len(labels) > 1
        if self._removed > max(INITIAL_LENGTH, len(self._parts) // 2):
            self._drop_removed()
        return [label for label in set(labels) if self._remove_owner(label, node)]

    def pieces(self, nodes: Nodes) -> tuple[Labels, Labels]:
        """Return the concatenated labels of several nodes, and the number of labels of each node."""
        inside = (nodes >= 0) & (nodes < len(self._pieces))
        known = np.where(inside, nodes, 0)
        counts = np.where(inside, self._pieces[known], 0).astype(np.int64)
        return self._parts["label"][expand_runs(self._first[known], counts)].astype(np.int64), counts

    def sampled(self) -> Labels:
        """Return the label of the first chunk of each node in the sample."""
        nodes = np.flatnonzero(self._pieces)[sample_slice(self.live)]
        return self._parts["label"][self._first[nodes]].astype(np.int64)

    def labels_in_mask(self, mask: Mask) -> Labels:
        """
        Return the distinct labels of the nodes that pass *mask*, ascending.

        *mask* has at least `size` items.
        """
        nodes = self._parts["node"]
        # A removed chunk has the node -1, which would select the last item of the mask.
        wanted = mask[nodes] & (nodes >= 0) if self._removed else mask[nodes]
        found = np.zeros(len(self._owner), np.bool_)
        found[self._parts["label"][wanted]] = True
        return np.flatnonzero(found)

    def top_matches(self, labels: Labels, scores: Scores, limit: int, mask: Mask | None) -> Matches:
        """Return the nodes of the given labels with their best scores, best first. Equal scores: newest first."""
        owners = self._owner[labels].astype(np.int64)
        single = owners >= 0
        if mask is not None:
            single[single] = mask[owners[single]]
        nodes, values = [owners[single]], [scores[single]]
        for at in np.flatnonzero(owners == SEVERAL_NODES).tolist():
            several = np.array(self._shared[int(labels[at])], np.int64)
            if mask is not None:
                several = several[mask[several]]
            several = several[-limit:]
            nodes.append(several)
            values.append(np.full(len(several), scores[at], np.float32))
        found, value = np.concatenate(nodes), np.concatenate(values)
        order = np.lexsort((-found, -value))
        if self.nodes_with_several_pieces:
            _, first = np.unique(found[order], return_index=True)
            order = order[np.sort(first)]
        order = order[:limit]
        return Matches(found[order], value[order].astype(np.float32))

    def _add_owner(self, label: int, node: int) -> None:
        owner = int(self._owner[label])
        if owner == NO_NODE:
            self._owner[label] = node
            return
        if owner >= 0:
            self._owner[label] = SEVERAL_NODES
            self._shared[label] = array("i", [owner])
        nodes = self._shared[label]
        nodes.insert(bisect_left(nodes, node), node)

    def _remove_owner(self, label: int, node: int) -> bool:
        if int(self._owner[label]) != SEVERAL_NODES:
            self._owner[label] = NO_NODE
            return True
        nodes = self._shared[label]
        del nodes[bisect_left(nodes, node)]
        if len(nodes) == 1:
            self._owner[label] = nodes[0]
            del self._shared[label]
        return False

    def _drop_removed(self) -> None:
        if not self._removed:
            return
        self._parts.keep(self._parts["node"] >= 0)
        self._removed = 0
        self._index_first_pieces()

    def _index_first_pieces(self) -> int:
        """
        Recompute the position of each node's first chunk, and return the number of runs.

        A run is a sequence of adjacent chunks of the same node.
        """
        nodes = self._parts["node"]
        first = np.flatnonzero(np.diff(nodes, prepend=-1))
        self._first[nodes[first]] = first
        return len(first)
