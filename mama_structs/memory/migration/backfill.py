"""
The links that v1.0 never made, added once: by topic, by what belongs together, and by time (DESIGN section 6).

All is decided before any of it is written, from the memories and the old file's links alone: an interrupted migration
decides the same again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.engine import Reader
from mama_structs.memory.evidence import Calibrate, gather
from mama_structs.memory.ids import milliseconds
from mama_structs.memory.linking import CLOSE_IN_TIME, RELATED, probabilities
from mama_structs.memory.migration.marks import BACKFILLED, MARK, link_id
from mama_structs.memory.migration.nearest import Among, prefetched
from mama_structs.memory.migration.rows import Planned
from mama_structs.memory.model import Link, LinkMetadata, LinkType, MemoryType
from mama_structs.settings import LinkingPolicy

EVOLVES: Final = "evolves_from"
"""The word for what follows on another decision of its topic, without a word of v1.0 about it."""

MOST: Final = 8
"""Back-filled links that begin or end at one memory, at the most."""

_ASSOCIATIONS: Final = 5
# More than are made: others may have taken the places by then.
_PROPOSED: Final = 10
_TEMPORAL: Final = 3
_HOUR_MS: Final = 3_600_000


@attrs.frozen
class Kind:
    """
    What is the same for all back-filled links of one type.

    Args:
        link_type: The type.
        word: The word for it.
        confidence: How sure it is, 0 to 1.

    """

    link_type: LinkType
    word: str
    confidence: float


EVOLUTION: Final = Kind(LinkType.EVOLUTION, EVOLVES, 0.6)
ASSOCIATION: Final = Kind(LinkType.ASSOCIATION, RELATED, 0.4)
TEMPORAL: Final = Kind(LinkType.TEMPORAL, CLOSE_IN_TIME, 0.3)
"""Their confidence is that of DESIGN section 6; evolution has what ADR-001 gives one topic."""


@attrs.frozen
class Likely:
    """
    Two memories that belong to one matter.

    Args:
        newer: The position of the newer one.
        older: The position of the older one.
        probability: How probable that is, 0 to 1.
        similarity: The cosine of their nearest pieces.

    """

    newer: int
    older: int
    probability: float
    similarity: float


@attrs.define(eq=False, kw_only=True)
class BackFill:
    """
    Decides which links are added.

    Args:
        planned: The memories, oldest first.
        links: Those that the old file says.
        policy: Which automatic links the store's host wants.
        fresh: The ids of the memories that have not been through this before: a link has one of them at an end.
        before: How many back-filled links each of the others has, by id.

    """

    planned: Sequence[Planned]
    links: Iterable[Link]
    policy: LinkingPolicy
    fresh: Collection[str]
    before: Mapping[str, int] = attrs.field(factory=dict)
    positions: dict[str, int] = attrs.field(init=False)
    covered: dict[int, set[int]] = attrs.field(init=False, factory=dict)
    chosen: list[tuple[int, int, Kind, float | None]] = attrs.field(init=False, factory=list)
    _degrees: Counter[int] = attrs.field(init=False, factory=Counter)
    _chains: dict[int, int] = attrs.field(init=False, factory=dict)
    # The vectors of all, as of a change: for each slice anew they would cost more than the links.
    _among: tuple[int, Among] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        """Take up what the old file says."""
        self.positions = {one.memory.id: at for at, one in enumerate(self.planned)}
        self._degrees.update({self.positions[one]: count for one, count in self.before.items()})
        for link in self.links:
            ends = self.positions[link.from_id], self.positions[link.to_id]
            self._cover(*ends)
            if link.link_type is LinkType.EVOLUTION:
                self._join(*ends)

    def by_topic(self) -> None:
        """Link each decision to the one of its topic before it, where nothing says already how they follow."""
        last: dict[str | None, int] = {}
        for at, one in enumerate(self.planned):
            if one.memory.type is not MemoryType.DECISION or not one.is_named:
                continue
            before = last.get(one.memory.topic)
            last[one.memory.topic] = at
            # A fork says how its branches follow: neither took the place of the other.
            if before is not None and self._chain_of(at) != self._chain_of(before):
                self._choose(at, before, EVOLUTION)

    def likely(self, reader: Reader, places: Sequence[int], calibration: Calibrate) -> list[Likely]:
        """
        Return the older memories that some belong together with.

        Args:
            reader: The store, with all memories.
            places: The positions of these memories.
            calibration: What the embedder's cosines mean.

        """
        asked: dict[int, NDArray[np.float32]] = {}
        for at in places:
            memory = self.planned[at].memory
            node = reader.find(memory.id)
            if node is not None and memory.type is not MemoryType.CHECKPOINT and self.policy.max_semantic:
                asked[at] = reader.vectors(node)
        if not asked:
            return []
        if self._among is None or self._among[0] != reader.change:
            self._among = reader.change, Among.of(reader, list(self.positions))
        ahead = prefetched(reader, self._among[1], list(asked.values()))
        return [pair for at, vectors in asked.items() for pair in self._likely(ahead, at, vectors, calibration)]

    def _likely(self, reader: Reader, at: int, vectors: NDArray[np.float32], calibration: Calibrate) -> list[Likely]:
        """Return the older memories that one belongs together with, likeliest first."""
        covered = [self.planned[other].memory.id for other in self.covered.get(at, ())]
        found = gather(reader, self.planned[at].memory, vectors, calibration=calibration, explicit=covered)
        probable = probabilities(found.evidence)
        order = np.argsort(-probable, kind="stable")
        chosen = order[probable[order] >= self.policy.threshold].tolist()
        likely = []
        for row, memory_id in zip(chosen, reader.ids(found.nodes[chosen]), strict=True):
            other = self.positions.get(memory_id)
            if other is not None:
                cosine = _cosine(vectors, reader.vectors(int(found.nodes[row])))
                likely.append(Likely(max(at, other), min(at, other), round(float(probable[row]), 6), cosine))
        return likely[:_PROPOSED]

    def by_meaning(self, likely: Iterable[Likely]) -> None:
        """Link what belongs together, the likeliest first."""
        begun: Counter[int] = Counter()
        most = min(_ASSOCIATIONS, self.policy.max_semantic)
        for pair in sorted(likely, key=lambda one: (-one.probability, one.newer, one.older)):
            if begun[pair.newer] < most and self._choose(pair.newer, pair.older, ASSOCIATION, pair.similarity):
                begun[pair.newer] += 1

    def by_time(self) -> None:
        """Link each memory to those shortly before it, the nearest first."""
        most = min(_TEMPORAL, self.policy.max_temporal)
        within = min(_HOUR_MS, int(self.policy.temporal_window * 1000))
        dated = [at for at, one in enumerate(self.planned) if one.is_dated]
        times = [milliseconds(self.planned[at].memory.created_at) for at in dated]
        for place, at in enumerate(dated):
            made = 0
            for near in range(place - 1, max(place - 1 - MOST, -1), -1):
                if made >= most or not within or times[place] - times[near] > within:
                    break
                if self.policy.temporal_same_topic and not self._same_topic(at, dated[near]):
                    continue
                made += self._choose(at, dated[near], TEMPORAL)

    def made(self, *, namespace: str, migration: str, at: datetime) -> list[Link]:
        """
        Return the links that were chosen.

        Args:
            namespace: Where they will be.
            migration: The migration's name.
            at: When it was begun, from when on they age.

        """
        return [
            Link(
                id=link_id(namespace, self._id(newer), self._id(older), f"{BACKFILLED} {kind.word}"),
                from_id=self._id(newer),
                to_id=self._id(older),
                link_type=kind.link_type,
                confidence=kind.confidence,
                created_by="system",
                metadata=LinkMetadata(
                    original_relationship=kind.word, similarity=similarity, extra={BACKFILLED: True, MARK: migration}
                ),
                created_at=at,
            )
            for newer, older, kind, similarity in self.chosen
        ]

    def _choose(self, newer: int, older: int, kind: Kind, similarity: float | None = None) -> bool:
        if (
            kind.confidence < self.policy.minimum
            or older in self.covered.get(newer, ())
            or max(self._degrees[newer], self._degrees[older]) >= MOST
            or not (self._id(newer) in self.fresh or self._id(older) in self.fresh)
        ):
            return False
        self._cover(newer, older)
        self._degrees.update((newer, older))
        self.chosen.append((newer, older, kind, similarity))
        return True

    def _id(self, at: int) -> str:
        return self.planned[at].memory.id

    def _cover(self, one: int, other: int) -> None:
        self.covered.setdefault(one, set()).add(other)
        self.covered.setdefault(other, set()).add(one)

    def _same_topic(self, one: int, other: int) -> bool:
        first, second = self.planned[one], self.planned[other]
        named = first.is_named and second.is_named and first.memory.topic is not None
        return named and first.memory.topic == second.memory.topic

    def _join(self, one: int, other: int) -> None:
        self._chains[self._chain_of(one)] = self._chain_of(other)

    def _chain_of(self, at: int) -> int:
        """Return what stands for all that the old file says to have followed from each other."""
        end = at
        while (further := self._chains.get(end, end)) != end:
            end = further
        while (further := self._chains.get(at, at)) != end:
            self._chains[at], at = end, further
        return end


def _cosine(vectors: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    """Return the cosine of the nearest two pieces, to as many digits as mean something."""
    best: Any = (vectors.astype(np.float64) @ others.astype(np.float64).T).max()
    return round(float(best), 6)


def spread(links: Iterable[Link]) -> dict[str, int]:
    """Return how many links there are of each type."""
    counts = Counter(link.link_type.value for link in links)
    return {kind.value: counts[kind.value] for kind in LinkType if counts[kind.value]}
