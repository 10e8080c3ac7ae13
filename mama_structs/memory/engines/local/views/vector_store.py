"""Distinct vectors, in the process's own memory or in the files of snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.engines.local.views.memory_table import Columns, Order, grown
from mama_structs.memory.engines.local.views.snapshots import FileRows, Stored, StoredArray
from mama_structs.memory.types.engine import Scores

Labels = NDArray[np.int64]
Vectors = NDArray[np.float32]
Block = NDArray[np.float32] | FileRows

BLOCK: Final = 8_192
"""Rows of a block of the process's own memory; a snapshot writes so many as a segment, and less in with the rest."""
HELD: Final = 16_384
"""From so many rows on those of segments are left in their files, which is slower for a scan than for a graph."""

_SMALLEST_BLOCK: Final = 64
_ROW: Final = {"alive": np.bool_, "print": np.uint64}
# So many rows that are collected fit the cache.
_GATHER: Final = 2_048
# Below this share of the rows it is faster to collect those that count than to compare all, in memory and in files.
_SPARSE: Final = 0.4
_SPARSE_IN_FILES: Final = 0.1
# Rows of a file that are read at once: so many stay in the cache until they were compared.
_READ: Final = 256
# Rows of files that are kept for who asks for them next: a search asks for most of its own thrice.
_RECENT: Final = 2_048
_UNKNOWN: Final = -1


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
        return _SPARSE_IN_FILES if self.is_in_files else _SPARSE

    @property
    def is_in_files(self) -> bool:
        """Whether the first ones, and mostly all, are left in files."""
        return isinstance(next(iter(self._layout[0]), None), FileRows)

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

    def stored(self) -> tuple[list[StoredArray], Vectors]:
        """Return the rows as a snapshot keeps them: those of whole files, and the last ones."""
        segments, start = [], 0
        for stored, length in (*self.segments, *([(None, self.unsaved)] if self.unsaved >= BLOCK else [])):
            segments.append(StoredArray(self.blocks(start, start + length), stored))
            start += length
        tail = tuple(block for _, block in self.slices(start, self.count))
        return segments, np.concatenate([np.empty((0, self.dimensions), np.float32), *tail])

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


class RecentRows:
    """Rows that were asked for lately, so that those of files are read once for a search; for one thread."""

    def __init__(self, rows: VectorRows) -> None:
        self._rows = rows
        self._known = np.empty((0, rows.dimensions), np.float32)
        self._used = 0
        # By label: where it is known.
        self._place = np.full(_SMALLEST_BLOCK, _UNKNOWN, np.int32)

    def take(self, labels: Labels) -> Vectors:
        """Return rows, of shape (n, dimensions)."""
        if not self._rows.is_in_files or len(labels) > _RECENT:
            return self._rows.take(labels)
        if self._rows.count > len(self._place):
            self._place = grown(self._place, self._rows.count, _UNKNOWN)
        missing = np.unique(labels[self._place[labels] < 0])
        if self._used + len(missing) > len(self._known):
            self._known = np.empty((_RECENT, self._rows.dimensions), np.float32)
            self._place[:], self._used = _UNKNOWN, 0
            missing = np.unique(labels)
        end = self._used + len(missing)
        self._known[self._used : end] = self._rows.take(missing)
        self._place[missing] = np.arange(self._used, end)
        self._used = end
        taken: Vectors = self._known[self._place[labels]]
        return taken

    def scores(self, vector: Vectors, labels: Labels) -> Scores:
        """Return the inner product of *vector* and some rows."""
        if len(labels) > _RECENT:
            return self._rows.scores(vector, labels)
        result: Scores = self.take(labels) @ vector
        return result


def _taken(block: Block, rows: Labels) -> Vectors:
    taken: Vectors = block.take(rows) if isinstance(block, FileRows) else block[rows]
    return taken
