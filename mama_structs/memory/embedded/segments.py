"""A finished part of the word index: postings of some memories, in arrays that nothing changes any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int32]
Counts = NDArray[np.uint8]
"""How much a term counts in a memory, in parts of `UNIT`, 255 for more: there BM25 hardly grows any more."""

UNIT: Final = 1 / 10

_NODE_BITS: Final = 32
_AT_ONCE: Final = 250_000


@attrs.frozen(eq=False)
class Segment:
    """Postings by term, and the terms of each memory, both as rows of one long array."""

    keys: Whole
    bounds: Whole
    nodes: Whole
    counts: Counts
    members: Whole
    starts: Whole
    terms: Whole

    def __len__(self) -> int:
        return len(self.nodes)

    @classmethod
    def of(cls, memories: Mapping[int, tuple[Whole, Counts]]) -> Segment:
        """Make one of what is known of some memories: the numbers of their terms, and how much each counts."""
        members = np.fromiter(memories, dtype=np.int32, count=len(memories))
        starts = _bounds([len(numbers) for numbers, _ in memories.values()])
        terms = np.concatenate([np.empty(0, np.int32), *(numbers for numbers, _ in memories.values())])
        counts = np.concatenate([np.empty(0, np.uint8), *(counts for _, counts in memories.values())])
        nodes = np.repeat(members, np.diff(starts))
        order = np.lexsort((nodes, terms))
        keys, sizes = np.unique(terms, return_counts=True)
        return cls(keys, _bounds(sizes), nodes[order], counts[order], members, starts, terms)

    def postings(self, number: int) -> slice:
        """Return where the postings of a term lie."""
        place = int(self.keys.searchsorted(number))
        if place == len(self.keys) or int(self.keys[place]) != number:
            return slice(0, 0)
        return slice(int(self.bounds[place]), int(self.bounds[place + 1]))

    def bounds_of(self, numbers: Whole) -> tuple[list[int], list[int]]:
        """Return where the postings of each of some terms begin and end."""
        if not len(self.keys):
            return [0] * len(numbers), [0] * len(numbers)
        places = np.minimum(self.keys.searchsorted(numbers), len(self.keys) - 1)
        return self.bounds[places].tolist(), self.bounds[places + (self.keys[places] == numbers)].tolist()

    def terms_of(self, row: int) -> Whole:
        """Return the numbers of the terms of a member."""
        return self.terms[self.starts[row] : self.starts[row + 1]]

    def only(self, living: Callable[[Whole], NDArray[np.bool_]]) -> Segment:
        """Return it without the memories that are not *living* any more."""
        kept_rows = living(self.members)
        if kept_rows.all():
            return self
        kept = living(self.nodes)
        sizes = np.add.reduceat(kept, self.bounds[:-1], dtype=np.int32) if len(self.keys) else self.keys
        used = sizes > 0
        row_sizes = np.diff(self.starts)
        return Segment(
            self.keys[used],
            _bounds(sizes[used]),
            self.nodes[kept],
            self.counts[kept],
            self.members[kept_rows],
            _bounds(row_sizes[kept_rows]),
            self.terms[np.repeat(kept_rows, row_sizes)],
        )

    def joined(self, other: Segment) -> Segment:
        """Return one with the memories of both, which have none in common."""
        keys = np.union1d(self.keys, other.keys)
        sizes = np.zeros((len(keys), 2), np.int32)
        sizes[np.searchsorted(keys, self.keys), 0] = np.diff(self.bounds)
        sizes[np.searchsorted(keys, other.keys), 1] = np.diff(other.bounds)
        if not len(self) or not len(other) or self.members.max() < other.members.min():
            # Those of one term in *other* simply follow those in *self*.
            from_other = np.repeat(np.tile(np.array([False, True]), len(keys)), sizes.ravel())
        else:
            from_other = self._places_of(other, sizes)
        return Segment(
            keys,
            _bounds(sizes.sum(axis=1)),
            _merged(self.nodes, other.nodes, from_other),
            _merged(self.counts, other.counts, from_other),
            np.concatenate([self.members, other.members]),
            np.concatenate([self.starts, other.starts[1:] + self.starts[-1]]),
            np.concatenate([self.terms, other.terms]),
        )

    def renumbered(self, numbers: Whole) -> Segment:
        """Return it with ``numbers[i]`` for term *i*, in the same order."""
        return attrs.evolve(self, keys=numbers[self.keys], terms=numbers[self.terms])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return its arrays by their names."""
        return {name: getattr(self, name) for name in NAMES}

    def _places_of(self, other: Segment, sizes: Whole) -> NDArray[np.bool_]:
        """Return, for each posting of both in order, whether it comes from *other*; *sizes* is how many each has."""
        mine, others = _bounds(sizes[:, 0]), _bounds(sizes[:, 1])
        ends = mine + others
        from_other = np.zeros(ends[-1], np.bool_)
        # Some at a time, because what is sorted by takes more memory than what is sorted.
        edges = np.unique(np.append(np.searchsorted(ends, np.arange(0, ends[-1], _AT_ONCE)), len(sizes)))
        for low, high in pairwise(edges.tolist()):
            first = _sort_keys(sizes[low:high, 0], self.nodes[mine[low] : mine[high]])
            second = _sort_keys(sizes[low:high, 1], other.nodes[others[low] : others[high]])
            from_other[ends[low] + np.searchsorted(first, second) + np.arange(len(second))] = True
        return from_other


NAMES: Final = tuple(field.name for field in attrs.fields(Segment))


def _sort_keys(sizes: Whole, nodes: Whole) -> NDArray[np.int64]:
    keys = np.repeat(np.arange(len(sizes), dtype=np.int64) << _NODE_BITS, sizes)
    keys += nodes
    return keys


def _bounds(sizes: Sequence[int] | NDArray[Any]) -> Whole:
    bounds = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def _merged(mine: NDArray[Any], others: NDArray[Any], from_other: NDArray[np.bool_]) -> NDArray[Any]:
    merged = np.empty(len(from_other), mine.dtype)
    merged[from_other] = others
    merged[~from_other] = mine
    return merged
