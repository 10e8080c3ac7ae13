"""State of a namespace that a client process caches between transactions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import attrs

from mama_structs.memory.engines.postgres.queries import HnswIndex
from mama_structs.memory.types.codec import RecentChangeLog
from mama_structs.memory.types.engine import Vectors

# Concurrent transactions are never this many changes apart. A larger gap means that a backup was restored.
MIN_RESTORED_BACKUP_GAP: Final = 1_000
# Added to change numbers when the history was replaced. Larger than the number of changes of any namespace.
CHANGE_NUMBER_OFFSET: Final = 2**48


@attrs.frozen(eq=False)
class CachedSample:
    """
    Cached result of `Reader.sample`, as of one change.

    At this change the namespace had *memory_count* memories, all with nodes below *next_node*.
    """

    change: int
    memory_count: int
    next_node: int
    step: int
    vectors: Vectors


class ClientState:
    """Nodes touched by the recent changes of all hosts, and the last sample of vectors. Thread-safe."""

    def __init__(self, *, half: bool) -> None:
        self.half_precision: bool = half
        """True if a namespace without memories is to store its vectors in half precision."""
        self.hnsw_index: HnswIndex | None = None
        """The index that searches use, None for exact search."""
        self._guard = threading.Lock()
        self._touched = RecentChangeLog()
        self.sample: CachedSample | None = None
        # Added to the server's change numbers. It grows when the history is replaced, so that no number is reused.
        self.change_offset: int = 0
        self._change = 0
        self._change_token: str | None = None

    @property
    def last_change(self) -> tuple[int, str | None]:
        """The last known change and its token. A replaced history has other tokens."""
        with self._guard:
            return self._change, self._change_token

    def record_changes(
        self, change: int, touched: Sequence[tuple[int, Sequence[int]]], token: str | None, *, is_history_replaced: bool
    ) -> bool:
        """
        Record the changes up to *change* that a transaction saw.

        Return False if the transaction's snapshot is older than the recorded state.
        *is_history_replaced* means that the last known change is missing on the server, or has another token.
        """
        with self._guard:
            is_behind = change < self._change
            # The server lost the last known change: an outdated replica became the primary, or a backup was restored.
            if is_history_replaced and (
                not is_behind or (not touched and self._change - change > MIN_RESTORED_BACKUP_GAP)
            ):
                self._touched.reset(change)
                self._change, self._change_token, self.sample = change, token, None
                self.change_offset += CHANGE_NUMBER_OFFSET
                return True
            if is_behind:
                # This snapshot is outdated, or the server lost changes. The next transaction shows which.
                return False
            new = sorted(one for one in touched if self._change < one[0] <= change)
            if len(new) < change - self._change:
                self._touched.reset(change)
            else:
                for number, nodes in new:
                    self._touched.note(number, nodes)
            self._change, self._change_token = change, token
            return True

    def changed_nodes_since(self, change: int) -> frozenset[int] | None:
        """Return the nodes touched after a change, or None if the recorded changes do not reach back that far."""
        with self._guard:
            return self._touched.since(change - self.change_offset)

    def cache_sample(self, sample: CachedSample) -> None:
        """Cache a sample, unless a newer one is cached."""
        with self._guard:
            if self.sample is None or self.sample.change <= sample.change:
                self.sample = sample
