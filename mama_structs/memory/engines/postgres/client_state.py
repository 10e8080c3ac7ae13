"""State of a namespace that a client process caches between transactions."""

from __future__ import annotations

import threading
from typing import Final

import attrs

from mama_structs.memory.engines.postgres.queries import HnswIndex
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
    """The last change of all hosts, and the last sample of vectors. Thread-safe."""

    def __init__(self, *, half: bool) -> None:
        self.half_precision: bool = half
        """True if a namespace without memories is to store its vectors in half precision."""
        self.hnsw_index: HnswIndex | None = None
        """The index that searches use, None for exact search."""
        self.memory_count: int = 0
        """Number of memories of the last seen state, for the choice of plans."""
        self._guard = threading.Lock()
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

    def record_change(self, change: int, token: str | None, *, last_seen: int, is_history_replaced: bool) -> None:
        """
        Record the last change that a transaction saw.

        Args:
            change: Its number.
            token: Its token.
            last_seen: The last known change when the transaction began.
            is_history_replaced: True if that change is missing on the server, or has another token.

        """
        with self._guard:
            is_behind = change < self._change
            # The server lost the last known change: an outdated replica became the primary, or a backup was restored.
            if is_history_replaced and (
                not is_behind or (change <= last_seen and self._change - change > MIN_RESTORED_BACKUP_GAP)
            ):
                self._change, self._change_token, self.sample = change, token, None
                self.change_offset += CHANGE_NUMBER_OFFSET
            elif not is_behind:
                self._change, self._change_token = change, token
            # Otherwise this snapshot is outdated, or the server lost changes. The next transaction shows which.

    def cache_sample(self, sample: CachedSample) -> None:
        """Cache a sample, unless a newer one is cached."""
        with self._guard:
            if self.sample is None or self.sample.change <= sample.change:
                self.sample = sample
