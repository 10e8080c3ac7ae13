"""What a host keeps of a namespace between plans, each time with the change that it is of."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import attrs

from mama_structs.memory.engines.postgres.queries import HnswIndex
from mama_structs.memory.types.codec import RecentChanges
from mama_structs.memory.types.engine import Vectors

# A transaction is not behind another one by so many changes.
_PUT_BACK: Final = 1_000
# More changes than a namespace ever has.
_HISTORY: Final = 2**48


@attrs.frozen(eq=False)
class KeptSample:
    """What `Reader.sample` gave at a change, when there were *live* memories, all below *next_node*."""

    change: int
    live: int
    next_node: int
    step: int
    vectors: Vectors


class HostKnowledge:
    """Which nodes the last changes touched, whoever made them, and the last sample; used from any thread."""

    def __init__(self, *, half: bool) -> None:
        self.half: bool = half
        """How a namespace is to keep vectors that is not there yet."""
        self.graph: HnswIndex | None = None
        """The index by which searches go."""
        self._guard = threading.Lock()
        self._touched = RecentChanges()
        self.sample: KeptSample | None = None
        # What is added to the numbers of changes, so that none stands for two.
        self.past: int = 0
        self._change = 0
        self._mark: str | None = None

    @property
    def known(self) -> tuple[int, str | None]:
        """The last change that is known, and its mark: no other one with its number has it."""
        with self._guard:
            return self._change, self._mark

    def learn(
        self, change: int, touched: Sequence[tuple[int, Sequence[int]]], mark: str | None, *, is_other: bool
    ) -> bool:
        """
        Take up what a transaction saw of changes after the last one, up to *change*, and tell whether it is not behind.

        *is_other* says that the last one is not there, or is another one.
        """
        with self._guard:
            is_behind = change < self._change
            # A replica that had not everything took over, or a backup was put in the server's place.
            if is_other and (not is_behind or (not touched and self._change - change > _PUT_BACK)):
                self._touched.reset(change)
                self._change, self._mark, self.sample = change, mark, None
                self.past += _HISTORY
                return True
            if is_behind:
                # An older moment than another plan's, or such a server; the next plan tells.
                return False
            new = sorted(one for one in touched if self._change < one[0] <= change)
            if len(new) < change - self._change:
                self._touched.reset(change)
            else:
                for number, nodes in new:
                    self._touched.note(number, nodes)
            self._change, self._mark = change, mark
            return True

    def touched_since(self, change: int) -> frozenset[int] | None:
        """Return the nodes that were touched after a change, None where that is not known any more."""
        with self._guard:
            return self._touched.since(change - self.past)

    def keep(self, sample: KeptSample) -> None:
        """Keep the newest sample."""
        with self._guard:
            if self.sample is None or self.sample.change <= sample.change:
                self.sample = sample
