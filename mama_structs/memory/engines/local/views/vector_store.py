"""Distinct vectors, stored in memory or in snapshot files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.engines.local.views.memory_table import GrowingColumns, SortedRows, grow_array
from mama_structs.memory.engines.local.views.snapshots import FileRows, ManifestEntry, StoredArray
from mama_structs.memory.types.engine import Scores

Labels = NDArray[np.int64]
Vectors = NDArray[np.float32]
Block = NDArray[np.float32] | FileRows

BLOCK_ROWS: Final = 8_192
"""Rows per block in process memory. A snapshot writes full blocks as a segment, fewer rows with the other arrays."""
MIN_ROWS_ON_DISK: Final = 16_384
"""From this many rows on, rows of segments stay in their files, which slows down scans more than graph searches."""

MIN_BLOCK_ROWS: Final = 64
_ROW_COLUMNS: Final = {"alive": np.bool_, "print": np.uint64}
# Number of rows to gather per step, so that they fit into the CPU cache.
GATHER_ROWS: Final = 2_048
# Number of rows that are multiplied with several vectors at once.
MULTIPLIED_ROWS: Final = 256
# Ratio of selected rows below which gathering these rows is faster than scoring all rows.
MAX_GATHER_RATIO: Final = 0.4
MAX_GATHER_RATIO_ON_DISK: Final = 0.1
# Number of rows to read from a file per step, so that they stay in the CPU cache until they are scored.
READ_ROWS: Final = 256
# Size of the row cache of a file. One search reads most of its rows three times.
MAX_CACHED_ROWS: Final = 2_048
NOT_CACHED: Final = -1


class VectorStore:
    """Distinct vectors, stored as rows with the labels 0, 1, 2, …."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.dead: int = 0
        """Number of dead rows, which no node uses. A row becomes alive again if its vector is added again."""
        self.changes: int = 0
        """Counter of rows that died or became alive again."""
        self.segments: tuple[tuple[ManifestEntry, int], ...] = ()
        """The files that contain the first rows, with the number of rows of each."""
        # Blocks, and the label of each block's first row. One attribute, so that threads read both atomically.
        self._layout: tuple[tuple[Block, ...], Labels] = ((), np.empty(0, np.int64))
        self._known = GrowingColumns(_ROW_COLUMNS)
        self._by_fingerprint = SortedRows()

    @classmethod
    def from_blocks(
        cls,
        dimensions: int,
        blocks: tuple[Block, ...],
        *,
        alive: NDArray[np.bool_],
        fingerprints: NDArray[np.uint64],
        segments: tuple[tuple[ManifestEntry, int], ...] = (),
    ) -> VectorStore:
        """Create a store from the blocks of a snapshot or of another store."""
        rows = cls(dimensions)
        blocks = tuple(block for block in blocks if len(block))
        if any(block.dtype != np.float32 or block.shape[1:] != (dimensions,) for block in blocks):
            raise ValueError(f"rows must be float32 of {dimensions} dimensions")
        count = sum(map(len, blocks))
        if alive.shape != (count,) or fingerprints.shape != (count,) or alive.dtype != np.bool_:
            raise ValueError(f"alive (bool) and prints must have one item for each of the {count} rows")
        rows._known.extend({"alive": alive, "print": fingerprints})
        rows.dead = count - int(np.count_nonzero(alive))
        if count < MIN_ROWS_ON_DISK:
            blocks = tuple(block.slice(0, len(block)) if isinstance(block, FileRows) else block for block in blocks)
        rows._set_blocks(blocks)
        rows.segments = segments
        return rows

    @property
    def count(self) -> int:
        """Number of rows, including rows that no node uses."""
        return len(self._known)

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Mask of the rows that at least one node uses."""
        return self._known["alive"]

    @property
    def live(self) -> int:
        """Number of rows that at least one node uses."""
        return self.count - self.dead

    @property
    def unsaved(self) -> int:
        """Number of rows that are not in a segment file."""
        return self.count - sum(length for _, length in self.segments)

    @property
    def max_gather_ratio(self) -> float:
        """Ratio of selected rows below which gathering these rows is faster than scoring all rows."""
        return MAX_GATHER_RATIO_ON_DISK if self.is_in_files else MAX_GATHER_RATIO

    @property
    def is_in_files(self) -> bool:
        """True if the first rows, usually most of the rows, are read from files."""
        return isinstance(next(iter(self._layout[0]), None), FileRows)

    @property
    def fingerprints(self) -> NDArray[np.uint64]:
        """The 64-bit hash of each row."""
        return self._known["print"]

    def get_or_add_label(self, vector: Vectors) -> int:
        """
        Return the label of a vector of shape (dimensions,). Append the vector if it is new.

        The row counts as used from then on.
        """
        fingerprint = int.from_bytes(blake2b(vector.tobytes(), digest_size=8).digest(), "little")
        for label in self._by_fingerprint.find(self.fingerprints, fingerprint).tolist():
            # Compare the bytes, because different vectors may have the same fingerprint.
            if self.take(np.array([label])).tobytes() == vector.tobytes():
                if not self.alive[label]:
                    self.alive[label] = True
                    self.dead -= 1
                    self.changes += 1
                return int(label)
        block, start = self._block()
        block[self.count - start] = vector
        # Append to `_known` last, because other threads take the number of rows from its length.
        return self._known.append(alive=True, print=fingerprint)

    def mark_dead(self, label: int) -> None:
        """Mark a row as not used by any node."""
        if self.alive[label]:
            self.alive[label] = False
            self.dead += 1
            self.changes += 1

    def take(self, labels: Labels) -> Vectors:
        """Return the rows with the given labels, of shape (n, dimensions)."""
        blocks, starts = self._layout
        if len(blocks) == 1:
            return _take_rows(blocks[0], labels)
        taken = np.empty((len(labels), self.dimensions), np.float32)
        where = np.searchsorted(starts, labels, side="right") - 1
        for number in set(where.tolist()):
            here = np.flatnonzero(where == number)
            taken[here] = _take_rows(blocks[number], labels[here] - starts[number])
        return taken

    def scores(self, vector: Vectors, labels: Labels) -> Scores:
        """Return the inner products of *vector* and the given rows, computed in steps that fit into the CPU cache."""
        if len(labels) <= GATHER_ROWS:
            result: Scores = self.take(labels) @ vector
            return result
        return np.concatenate(
            [self.take(labels[at : at + GATHER_ROWS]) @ vector for at in range(0, len(labels), GATHER_ROWS)]
        )

    def all_scores(self, vector: Vectors, start: int = 0) -> Scores:
        """Return the inner products of *vector* and all rows from *start* on."""
        result = np.empty(self.count - start, np.float32)
        for at, block in self.slices(start, self.count):
            np.dot(block, vector, out=result[at - start : at - start + len(block)])
        return result

    def scores_of_many(self, vectors: Vectors, start: int = 0) -> Scores:
        """Return the inner products of several vectors and all rows from *start* on, of shape (vectors, rows)."""
        # BLAS writes only to contiguous arrays directly, so the rows come first. It copies the rows to a buffer, which
        # takes half the time if they fit into the CPU cache.
        result = np.empty((self.count - start, len(vectors)), np.float32)
        for at, block in self.slices(start, self.count, max_rows=MULTIPLIED_ROWS):
            np.matmul(block, vectors.T, out=result[at - start : at - start + len(block)])
        return np.ascontiguousarray(result.T)

    def slices(self, start: int, stop: int, *, max_rows: int | None = None) -> Iterator[tuple[int, Vectors]]:
        """
        Yield the rows from *start* to *stop* in blocks, with the label of each block's first row.

        A block has at most *max_rows* rows.
        """
        # Read `_layout` only once, because the engine's thread may replace it meanwhile. Existing rows never change.
        blocks, starts = self._layout
        for begin, block in zip(starts.tolist(), blocks, strict=True):
            first, last = max(start, begin), min(stop, begin + len(block))
            is_read = isinstance(block, FileRows)
            step = max_rows or (READ_ROWS if is_read else max(1, last - first))
            for at in range(first, last, step):
                place = slice(at - begin, min(last, at + step) - begin)
                yield at, block.slice(place.start, place.stop) if isinstance(block, FileRows) else block[place]

    def blocks(self, start: int, stop: int) -> tuple[Block, ...]:
        """Return the blocks that contain the rows from *start* to *stop*. Blocks in files are returned whole."""
        blocks, starts = self._layout
        parts = zip(blocks, starts.tolist(), strict=True)
        within = [(block, begin) for block, begin in parts if begin < stop and start < begin + len(block)]
        return tuple(
            block if isinstance(block, FileRows) else block[max(0, start - begin) : stop - begin]
            for block, begin in within
        )

    def to_segments(self) -> tuple[list[StoredArray], Vectors]:
        """Return the rows for a snapshot: segments for separate files, and the remaining rows."""
        segments, start = [], 0
        for stored, length in (*self.segments, *([(None, self.unsaved)] if self.unsaved >= BLOCK_ROWS else [])):
            segments.append(StoredArray(self.blocks(start, start + length), stored))
            start += length
        tail = tuple(block for _, block in self.slices(start, self.count))
        return segments, np.concatenate([np.empty((0, self.dimensions), np.float32), *tail])

    def record_segments(self, segments: Sequence[StoredArray]) -> None:
        """Record the segment files. From `MIN_ROWS_ON_DISK` rows on, read rows from these files instead of memory."""
        self.segments = tuple((one.stored, len(one)) for one in segments if one.stored is not None)
        files = tuple(block for one in segments for block in one.blocks)
        held = sum(map(len, files))
        if self.count >= MIN_ROWS_ON_DISK and all(isinstance(block, FileRows) for block in files):
            rest = tuple(block.copy() for _, block in self.slices(held, self.count))
            self._set_blocks((*files, *rest))

    def copy_compacted(self) -> tuple[VectorStore, NDArray[np.int32]]:
        """Return a copy without unused rows, and an array with the new label of each old one, -1 for unused rows."""
        kept = np.flatnonzero(self.alive)
        blocks = tuple(self.take(kept[at : at + BLOCK_ROWS]) for at in range(0, len(kept), BLOCK_ROWS))
        alive = np.ones(len(kept), np.bool_)
        fresh = VectorStore.from_blocks(self.dimensions, blocks, alive=alive, fingerprints=self.fingerprints[kept])
        moved = np.full(self.count, -1, np.int32)
        moved[kept] = np.arange(len(kept))
        return fresh, moved

    def _block(self) -> tuple[Vectors, int]:
        """Return the block for the next row, and the label of the block's first row."""
        blocks, starts = self._layout
        last = blocks[-1] if blocks else None
        # Start a new block if the last one is full or read-only. Rows in files are read-only.
        if not isinstance(last, np.ndarray) or not last.flags.writeable or self.count - int(starts[-1]) >= BLOCK_ROWS:
            last = np.empty((MIN_BLOCK_ROWS, self.dimensions), np.float32)
            blocks, starts = (*blocks, last), np.append(starts, self.count)
        elif self.count - int(starts[-1]) == len(last):
            larger = np.empty((min(BLOCK_ROWS, max(MIN_BLOCK_ROWS, 2 * len(last))), self.dimensions), np.float32)
            larger[: len(last)] = last
            blocks, last = (*blocks[:-1], larger), larger
        self._layout = (blocks, starts)
        return last, int(starts[-1])

    def _set_blocks(self, blocks: tuple[Block, ...]) -> None:
        lengths = [len(block) for block in blocks]
        self._layout = (blocks, np.cumsum([0, *lengths])[: len(lengths)].astype(np.int64))


class RowCache:
    """
    Cache of recently read rows, so that a search reads each row of a file only once.

    Not thread-safe.
    """

    def __init__(self, rows: VectorStore) -> None:
        self._rows = rows
        self._known = np.empty((0, rows.dimensions), np.float32)
        self._used = 0
        # By label: position of the row in the cache.
        self._cache_index = np.full(MIN_BLOCK_ROWS, NOT_CACHED, np.int32)

    def take(self, labels: Labels) -> Vectors:
        """Return the rows with the given labels, of shape (n, dimensions)."""
        if not self._rows.is_in_files or len(labels) > MAX_CACHED_ROWS:
            return self._rows.take(labels)
        if self._rows.count > len(self._cache_index):
            self._cache_index = grow_array(self._cache_index, self._rows.count, NOT_CACHED)
        missing = np.unique(labels[self._cache_index[labels] < 0])
        if self._used + len(missing) > len(self._known):
            self._known = np.empty((MAX_CACHED_ROWS, self._rows.dimensions), np.float32)
            self._cache_index[:], self._used = NOT_CACHED, 0
            missing = np.unique(labels)
        end = self._used + len(missing)
        self._known[self._used : end] = self._rows.take(missing)
        self._cache_index[missing] = np.arange(self._used, end)
        self._used = end
        taken: Vectors = self._known[self._cache_index[labels]]
        return taken

    def scores(self, vector: Vectors, labels: Labels) -> Scores:
        """Return the inner products of *vector* and the given rows."""
        if len(labels) > MAX_CACHED_ROWS:
            return self._rows.scores(vector, labels)
        result: Scores = self.take(labels) @ vector
        return result


def _take_rows(block: Block, rows: Labels) -> Vectors:
    taken: Vectors = block.take(rows) if isinstance(block, FileRows) else block[rows]
    return taken
