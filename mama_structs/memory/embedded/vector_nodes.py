"""Which vectors belong to which nodes: a node has one for each piece of its text, and equal vectors are one label."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.engine import Matches, Nodes, Scores

Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]

NO_MATCHES: Final = Matches(np.empty(0, np.int64), np.empty(0, np.float32))

_NONE: Final = -1
_SHARED: Final = -2
_SMALLEST: Final = 64


class NodeLabels:
    """Nodes and the labels of their vectors, both ways."""

    def __init__(self) -> None:
        self.live: int = 0
        """How many nodes there are."""
        self.several: int = 0
        """How many of them have several pieces."""
        # Pieces, those of a node behind one another: the node (-1 when it was removed) and the label.
        self._used = 0
        self._removed = 0
        self._piece_nodes = np.empty(_SMALLEST, np.int32)
        self._piece_labels = np.empty(_SMALLEST, np.int32)
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
        heads = np.flatnonzero(np.diff(nodes, prepend=-1))
        if len(np.unique(nodes[heads])) != len(heads):
            raise ValueError("the pieces of a node must stand behind one another")
        known._used = len(nodes)
        known._piece_nodes = np.array(nodes)
        known._piece_labels = np.array(labels)
        size = int(nodes.max()) + 1 if len(nodes) else 0
        known._first = np.zeros(max(_SMALLEST, size), np.int32)
        known._first[nodes[heads]] = heads
        known._pieces = np.bincount(nodes, minlength=max(_SMALLEST, size)).astype(np.int32)
        known.live, known.several = len(heads), int(np.count_nonzero(known._pieces > 1))
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
        return self._piece_nodes[: self._used].copy(), self._piece_labels[: self._used].copy()

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
            self._first, self._pieces = (_wider(known, node + 1, 0) for known in (self._first, self._pieces))
        if self._used + len(labels) > len(self._piece_nodes):
            needed = self._used + len(labels)
            self._piece_nodes = _wider(self._piece_nodes, needed, 0)
            self._piece_labels = _wider(self._piece_labels, needed, 0)
        if max(labels) >= len(self._owner):
            self._owner = _wider(self._owner, max(labels) + 1, _NONE)
        end = self._used + len(labels)
        self._piece_nodes[self._used : end] = node
        self._piece_labels[self._used : end] = labels
        self._first[node], self._pieces[node] = self._used, len(labels)
        self._used = end
        self.live += 1
        self.several += len(labels) > 1
        for label in set(labels):
            self._own(label, node)

    def remove(self, node: int) -> list[int]:
        """Take a node's labels from it, and return those that no other node has."""
        labels = self.labels(node).tolist()
        if not labels:
            return []
        first = int(self._first[node])
        self._piece_nodes[first : first + len(labels)] = _NONE
        self._pieces[node] = 0
        self._removed += len(labels)
        self.live -= 1
        self.several -= len(labels) > 1
        if self._removed > max(_SMALLEST, self._used // 2):
            self._close_gaps()
        return [label for label in set(labels) if self._disown(label, node)]

    def labels(self, node: int) -> Labels:
        """Return a node's labels, one for each piece; none where it has none."""
        if node not in self:
            return np.empty(0, np.int64)
        first = int(self._first[node])
        return self._piece_labels[first : first + int(self._pieces[node])].astype(np.int64)

    def first(self, nodes: Nodes) -> tuple[Labels, NDArray[np.bool_]]:
        """Return the label of the first piece of those of *nodes* that have any, and which these are."""
        has = (nodes >= 0) & (nodes < len(self._pieces))
        has[has] = self._pieces[nodes[has]] > 0
        return self._piece_labels[self._first[nodes[has]]].astype(np.int64), has

    def pieces(self, nodes: Nodes) -> tuple[Labels, Labels]:
        """Return the labels of several nodes behind one another, and how many each node has."""
        counts = np.zeros(len(nodes), np.int64)
        inside = (nodes >= 0) & (nodes < len(self._pieces))
        counts[inside] = self._pieces[nodes[inside]]
        first = np.zeros(len(nodes), np.int64)
        first[inside] = self._first[nodes[inside]]
        places = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return self._piece_labels[places].astype(np.int64), counts

    def selected(self, mask: Mask) -> Labels:
        """Return the labels of the nodes that *mask* (of `size` at least) lets pass, each once, in order."""
        nodes = self._piece_nodes[: self._used]
        # A removed piece's -1 asks for the last item, which says nothing of it.
        wanted = mask[nodes] & (nodes >= 0) if self._removed else mask[nodes]
        found = np.zeros(len(self._owner), np.bool_)
        found[self._piece_labels[: self._used][wanted]] = True
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

    def relabel(self, moved: Labels) -> None:
        """Use other labels: for each old one the new one, -1 for those that no node has."""
        self._close_gaps()
        count = int(moved.max()) + 1 if len(moved) else 0
        self._piece_labels[: self._used] = moved[self._piece_labels[: self._used]]
        owner = np.full(max(_SMALLEST, count), _NONE, np.int32)
        kept = np.flatnonzero(moved >= 0)
        owner[moved[kept]] = self._owner[kept]
        self._owner = owner
        self._shared = {int(moved[label]): nodes for label, nodes in self._shared.items()}

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
        """Take a label from a node, and tell whether nobody has it now."""
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
        """Drop the pieces of removed nodes."""
        if not self._removed:
            return
        kept = self._piece_nodes[: self._used] >= 0
        self._piece_nodes = self._piece_nodes[: self._used][kept]
        self._piece_labels = self._piece_labels[: self._used][kept]
        self._used, self._removed = len(self._piece_nodes), 0
        heads = np.flatnonzero(np.diff(self._piece_nodes, prepend=-1))
        self._first[self._piece_nodes[heads]] = heads


def _wider(known: NDArray[np.int32], needed: int, fill: int) -> NDArray[np.int32]:
    wider = np.full(max(needed, 2 * len(known), _SMALLEST), fill, np.int32)
    wider[: len(known)] = known
    return wider
