"""The nearest memories of many at once: one look at all vectors serves a whole slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.engine import Filter, Matches, Nodes, Reader
from mama_structs.memory.ids import milliseconds

# Of a long memory its beginning decides, as in `mama_structs.memory.evidence`.
_PIECES: Final = 4


@attrs.frozen(eq=False)
class Among:
    """
    The memories among which a migration looks.

    Args:
        nodes: Each once.
        created: When each was made, in milliseconds since 1970.
        pieces: All vectors, in the order of the nodes.
        begins: Where those of each node begin.

    """

    nodes: Nodes
    created: NDArray[np.int64]
    pieces: NDArray[np.float32]
    begins: NDArray[np.int64]

    @classmethod
    def of(cls, reader: Reader, ids: Sequence[str]) -> Among:
        """Return those of some memories that are there."""
        nodes = np.array([node for node in map(reader.find, ids) if node is not None], np.int64)
        pieces, counts = reader.pieces(nodes)
        return cls(nodes, reader.facts(nodes).created, pieces, np.cumsum(counts) - counts)

    def scores(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the cosine of each node's nearest piece to each vector, of shape (vectors, nodes)."""
        cosines: NDArray[np.float32] = self.pieces @ vectors.T
        if len(self.pieces) > len(self.nodes):
            cosines = np.maximum.reduceat(cosines, self.begins, axis=0)
        return np.ascontiguousarray(cosines.T)


class Prefetched:
    """
    A `Reader` that has looked for what is nearest to some vectors already, among migrated memories only.

    Args:
        reader: It answers everything else.
        among: The memories.
        vectors: Those that will be asked for, of shape (vectors, dimensions).

    """

    def __init__(self, reader: Reader, among: Among, vectors: NDArray[np.float32]) -> None:
        self._reader = reader
        self._among = among
        self._rows = {vector.tobytes(): row for row, vector in enumerate(vectors)}
        self._scores = among.scores(vectors)

    def __getattr__(self, name: str) -> Any:
        """Return what the reader has of this name."""
        return getattr(self._reader, name)

    def nearest(self, vector: NDArray[np.float32], limit: int, where: Filter | None = None) -> Matches:
        """Return the nodes with the highest cosine to one of the vectors, *limit* of them if there are so many."""
        scores = self._scores[self._rows[vector.tobytes()]]
        kept = np.arange(len(scores))
        if where is not None and where.until is not None:
            kept = np.flatnonzero(self._among.created < milliseconds(where.until))
        if len(kept) > limit:
            kept = kept[np.argpartition(-scores[kept], limit - 1)[:limit]]
        order = kept[np.lexsort((-self._among.nodes[kept], -scores[kept]))]
        return Matches(self._among.nodes[order], scores[order])


def prefetched(reader: Reader, among: Among, vectors: Sequence[NDArray[np.float32]]) -> Reader:
    """
    Return a reader for which the nearest of some memories are found already.

    Args:
        reader: The store.
        among: The memories among which to look.
        vectors: Those of each memory, of shape (pieces, dimensions).

    """
    asked = np.concatenate([pieces[:_PIECES] for pieces in vectors])
    return cast("Reader", Prefetched(reader, among, asked))
