"""Distinct vectors, each once: behind 2,000 equal ones a graph does not find the others (house-style section 5)."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedded.snapshots import Segment
from mama_structs.memory.engine import Scores

Labels = NDArray[np.int64]
Vectors = NDArray[np.float32]
T = TypeVar("T", bound=np.generic)

BLOCK: Final = 16_384
"""Rows of a block of the process's own memory; a snapshot writes so many as a segment, and less in with the rest."""

_SMALLEST_BLOCK: Final = 64
_SMALLEST_MERGE: Final = 8_192


class Rows:
    """Vectors with labels 0, 1, 2, …, no two of them equal."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.count: int = 0
        """How many there are, dead ones too."""
        self.dead: int = 0
        """How many belong to nothing any more; a label comes alive again when its vector is added again."""
        self.alive: NDArray[np.bool_] = np.zeros(_SMALLEST_BLOCK, np.bool_)
        self.changes: int = 0
        """Grows whenever a label dies or comes alive."""
        self.segments: tuple[Segment, ...] = ()
        """What files hold of them, from the first on."""
        # Blocks, and the label of each one's first row: one attribute, for another thread must read them together.
        self._layout: tuple[tuple[Vectors, ...], Labels] = ((), np.empty(0, np.int64))
        self._prints: NDArray[np.uint64] = np.zeros(_SMALLEST_BLOCK, np.uint64)
        # Labels by fingerprint: a sorted array, and a dictionary of those that are not in it yet.
        self._sorted: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._order: Labels = np.empty(0, np.int64)
        self._recent: dict[int, int] = {}

    @classmethod
    def of_blocks(
        cls,
        dimensions: int,
        blocks: tuple[Vectors, ...],
        *,
        alive: NDArray[np.bool_],
        prints: NDArray[np.uint64],
        segments: tuple[Segment, ...] = (),
    ) -> Rows:
        """Take over rows that a snapshot or another object holds."""
        rows = cls(dimensions)
        blocks = tuple(block for block in blocks if len(block))
        if any(block.dtype != np.float32 or block.shape[1:] != (dimensions,) for block in blocks):
            raise ValueError(f"rows must be float32 of {dimensions} dimensions")
        rows.count = sum(map(len, blocks))
        if alive.shape != (rows.count,) or prints.shape != (rows.count,) or alive.dtype != np.bool_:
            raise ValueError(f"what is said of {rows.count} rows is of other lengths")
        rows.alive = _grown(alive, rows.count + _SMALLEST_BLOCK)
        rows.dead = rows.count - int(np.count_nonzero(alive))
        rows._prints = _grown(prints.astype(np.uint64), rows.count + _SMALLEST_BLOCK)
        rows._set_blocks(blocks)
        rows.segments = segments
        rows._merge()
        return rows

    @property
    def live(self) -> int:
        """How many belong to something."""
        return self.count - self.dead

    @property
    def unsaved(self) -> int:
        """How many are in no segment."""
        return self.count - sum(map(len, self.segments))

    @property
    def prints(self) -> NDArray[np.uint64]:
        """The fingerprint of each row."""
        return self._prints[: self.count]

    def place(self, vector: Vectors) -> int:
        """Return the label of a vector of shape (dimensions,), appending it if there is none; it is alive then."""
        fingerprint = int.from_bytes(blake2b(vector.tobytes(), digest_size=8).digest(), "little")
        label = self._find(fingerprint, vector)
        if label is None:
            label = self._append(fingerprint, vector)
        elif not self.alive[label]:
            self.alive[label] = True
            self.dead -= 1
            self.changes += 1
        return label

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
            return blocks[0][labels]
        taken = np.empty((len(labels), self.dimensions), np.float32)
        where = np.searchsorted(starts, labels, side="right") - 1
        for number in np.unique(where).tolist():
            here = where == number
            taken[here] = blocks[number][labels[here] - starts[number]]
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
            for at in range(first, last, most or max(1, last - first)):
                end = min(last, at + (most or last))
                yield at, block[at - begin : end - begin]

    def tail(self) -> tuple[Vectors, ...]:
        """Return the rows that are in no segment, in blocks."""
        return tuple(block for _, block in self.slices(self.count - self.unsaved, self.count))

    def rebase(self, segments: tuple[Segment, ...], tail: Vectors) -> None:
        """Read rows from files from now on, and give their memory back."""
        blocks = (*(segment.blocks[0] for segment in segments), tail)
        blocks = tuple(block for block in blocks if len(block))
        held = sum(map(len, blocks))
        if held > self.count or any(block.shape[1:] != (self.dimensions,) for block in blocks):
            raise ValueError(f"the files hold {held} rows, and there are {self.count}")
        rest = tuple(block.copy() for _, block in self.slices(held, self.count, most=BLOCK))
        self._set_blocks(blocks + rest)
        self.segments = segments

    def compacted(self) -> tuple[Rows, Labels]:
        """Return the rows that are alive as new ones, and for each old label the new one, -1 for the dead."""
        kept = np.flatnonzero(self.alive[: self.count])
        blocks = tuple(self.take(kept[at : at + BLOCK]) for at in range(0, len(kept), BLOCK))
        fresh = Rows.of_blocks(
            self.dimensions, blocks, alive=np.ones(len(kept), np.bool_), prints=self._prints[: self.count][kept]
        )
        moved = np.full(self.count, -1, np.int64)
        moved[kept] = np.arange(len(kept))
        return fresh, moved

    def _find(self, fingerprint: int, vector: Vectors) -> int | None:
        candidates = [self._recent[fingerprint]] if fingerprint in self._recent else []
        wanted = np.uint64(fingerprint)
        at = int(np.searchsorted(self._sorted, wanted))
        while at < len(self._sorted) and self._sorted[at] == wanted:
            candidates.append(int(self._order[at]))
            at += 1
        for label in candidates:
            # The bytes decide: a fingerprint is only where to look.
            if self.take(np.array([label]))[0].tobytes() == vector.tobytes():
                return label
        return None

    def _append(self, fingerprint: int, vector: Vectors) -> int:
        label = self.count
        block, start = self._last_block()
        if block is None or label - start >= len(block):
            block, start = self._make_room()
        if label >= len(self.alive):
            self.alive = _grown(self.alive, 2 * label)
            self._prints = _grown(self._prints, 2 * label)
        block[label - start] = vector
        self.alive[label] = True
        self._prints[label] = fingerprint
        self._recent[fingerprint] = label
        # Last: whoever reads in another thread goes by it.
        self.count = label + 1
        if len(self._recent) > max(_SMALLEST_MERGE, self.count // 8):
            self._merge()
        return label

    def _last_block(self) -> tuple[Vectors | None, int]:
        """Return the block that rows are written to, if the last one is the process's own, and its first label."""
        blocks, starts = self._layout
        if blocks and blocks[-1].flags.writeable and blocks[-1].flags.owndata:
            return blocks[-1], int(starts[-1])
        return None, self.count

    def _make_room(self) -> tuple[Vectors, int]:
        """Put a larger block in the last one's place, or another one behind it."""
        blocks, starts = self._layout
        last, start = self._last_block()
        used = self.count - start
        if last is not None and len(last) < BLOCK:
            larger = np.empty((min(BLOCK, max(_SMALLEST_BLOCK, 2 * used)), self.dimensions), np.float32)
            larger[:used] = last[:used]
            self._layout = ((*blocks[:-1], larger), starts)
            return larger, start
        another: Vectors = np.empty((_SMALLEST_BLOCK, self.dimensions), np.float32)
        self._layout = ((*blocks, another), np.append(starts, self.count))
        return another, self.count

    def _set_blocks(self, blocks: tuple[Vectors, ...]) -> None:
        lengths = [len(block) for block in blocks]
        self._layout = (blocks, np.cumsum([0, *lengths])[: len(lengths)].astype(np.int64))

    def _merge(self) -> None:
        self._order = np.argsort(self.prints, kind="stable")
        self._sorted = self.prints[self._order]
        self._recent = {}


_GATHER: Final = 2_048


def _grown(array: NDArray[T], size: int) -> NDArray[T]:
    grown = np.zeros(max(size, 2 * len(array)), array.dtype)
    grown[: len(array)] = array
    return grown
