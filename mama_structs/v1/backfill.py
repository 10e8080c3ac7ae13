"""
The links that v1.0 never made, added once: by topic, by what belongs together, and by time (DESIGN section 6).

All is decided before any of it is written, from the memories and the old file's links alone: an interrupted migration
decides the same again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import attrs
import numpy as np

from mama_structs.memory.engine import Filter, Matches, Reader, Vectors
from mama_structs.memory.linking import CLOSE_IN_TIME, RELATED, Calibrate, Nearest, gather, probabilities
from mama_structs.memory.model import Link, LinkMetadata, LinkType, MemoryType, milliseconds
from mama_structs.settings import LinkingPolicy
from mama_structs.v1.plan import BACKFILLED, MARK, PlannedMemory, link_id

# Back-filled links that begin or end at one memory, at the most.
_MOST: Final = 8
_ASSOCIATIONS: Final = 5
# More than are made: others may have taken the places by then.
_PROPOSED: Final = 10
_TEMPORAL: Final = 3
_HOUR_MS: Final = 3_600_000
# Of a long memory its beginning decides, as in `mama_structs.memory.evidence`.
_PIECES: Final = 4
# Type, word and confidence, which is that of DESIGN section 6; evolution has what ADR-001 gives one topic.
_EVOLUTION: Final = (LinkType.EVOLUTION, "evolves_from", 0.6)
_ASSOCIATION: Final = (LinkType.ASSOCIATION, RELATED, 0.4)
_CLOSE: Final = (LinkType.TEMPORAL, CLOSE_IN_TIME, 0.3)


class LikelyPair(NamedTuple):
    """Two memories of one matter, by position: how probable that is, and the cosine of their nearest pieces."""

    newer: int
    older: int
    probability: float
    similarity: float


@attrs.define(eq=False, kw_only=True)
class BackFill:
    """Decides which links are added between memories, oldest first, beside the links that the old file says."""

    planned: Sequence[PlannedMemory]
    links: Iterable[Link]
    policy: LinkingPolicy
    # Of these, which have not been through this before, each new link has one; how many the others have already.
    fresh: Collection[str]
    before: Mapping[str, int]
    _positions: dict[str, int] = attrs.field(init=False)
    _covered: dict[int, set[int]] = attrs.field(init=False, factory=dict)
    _chosen: list[tuple[int, int, tuple[LinkType, str, float], float | None]] = attrs.field(init=False, factory=list)
    _degrees: Counter[int] = attrs.field(init=False, factory=Counter)
    _chains: dict[int, int] = attrs.field(init=False, factory=dict)
    # The vectors of all, as of a change: for each slice anew they would cost more than the links.
    _among: tuple[int, _Among] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self._positions = {one.memory.id: at for at, one in enumerate(self.planned)}
        self._degrees.update({self._positions[one]: count for one, count in self.before.items()})
        for link in self.links:
            ends = self._positions[link.from_id], self._positions[link.to_id]
            self._cover(*ends)
            if link.link_type is LinkType.EVOLUTION:
                self._chains[self._chain_of(ends[0])] = self._chain_of(ends[1])
        # Each decision follows the one of its topic before it, where nothing says already how they follow.
        last: dict[str | None, int] = {}
        for at, one in enumerate(self.planned):
            if one.memory.type is MemoryType.DECISION and one.is_named:
                before = last.get(one.memory.topic)
                last[one.memory.topic] = at
                # A fork says how its branches follow: neither took the place of the other.
                if before is not None and self._chain_of(at) != self._chain_of(before):
                    self._choose(at, before, _EVOLUTION)

    def likely(self, reader: Reader, places: Sequence[int], calibration: Calibrate) -> list[LikelyPair]:
        """Return the older memories that those at some positions belong together with, likeliest first for each."""
        if not self.policy.max_semantic:
            return []
        places = [at for at in places if self.planned[at].memory.type is not MemoryType.CHECKPOINT]
        nodes = reader.find_many([self._id(at) for at in places])
        asked = {at: reader.vectors(node) for at, node in zip(places, nodes, strict=True) if node is not None}
        if not asked:
            return []
        if self._among is None or self._among[0] != reader.change:
            self._among = reader.change, _Among.of(reader, list(self._positions))
        nearest = self._among[1].nearest(np.concatenate([vectors[:_PIECES] for vectors in asked.values()]))
        return [
            pair for at, vectors in asked.items() for pair in self._likely(reader, at, vectors, calibration, nearest)
        ]

    def _likely(
        self, reader: Reader, at: int, vectors: Vectors, calibration: Calibrate, nearest: Nearest
    ) -> list[LikelyPair]:
        covered = [self._id(other) for other in self._covered.get(at, ())]
        memory = self.planned[at].memory
        found = gather(reader, memory, vectors, calibration=calibration, explicit=covered, nearest=nearest)
        probable = probabilities(found.features)
        order = np.argsort(-probable, kind="stable")
        rows = order[probable[order] >= self.policy.threshold].tolist()
        others = [self._positions.get(one) for one in reader.ids(found.nodes[rows])]
        return [
            LikelyPair(
                max(at, other),
                min(at, other),
                round(float(probable[row]), 6),
                _cosine(vectors, reader.vectors(int(found.nodes[row]))),
            )
            for row, other in zip(rows, others, strict=True)
            if other is not None
        ][:_PROPOSED]

    def by_meaning(self, likely: Iterable[LikelyPair]) -> None:
        """Link what belongs together, the likeliest first."""
        begun: Counter[int] = Counter()
        most = min(_ASSOCIATIONS, self.policy.max_semantic)
        for pair in sorted(likely, key=lambda one: (-one.probability, one.newer, one.older)):
            if begun[pair.newer] < most:
                begun[pair.newer] += self._choose(pair.newer, pair.older, _ASSOCIATION, pair.similarity)

    def by_time(self) -> None:
        """Link each memory to those shortly before it, the nearest first."""
        most = min(_TEMPORAL, self.policy.max_temporal)
        within = min(_HOUR_MS, int(self.policy.temporal_window * 1000))
        dated = [at for at, one in enumerate(self.planned) if one.is_dated]
        times = [milliseconds(self.planned[at].memory.created_at) for at in dated]
        for place, at in enumerate(dated):
            made = 0
            for near in range(place - 1, max(place - 1 - _MOST, -1), -1):
                if made >= most or not within or times[place] - times[near] > within:
                    break
                if not self.policy.temporal_same_topic or self._is_same_topic(at, dated[near]):
                    made += self._choose(at, dated[near], _CLOSE)

    def made(self, *, namespace: str, migration: str, at: datetime) -> list[Link]:
        """Return the links that were chosen, which age from when the migration was begun."""
        extra = {BACKFILLED: True, MARK: migration}
        return [
            Link(
                id=link_id(namespace, source := self._id(newer), target := self._id(older), f"{BACKFILLED} {word}"),
                from_id=source,
                to_id=target,
                link_type=link_type,
                confidence=confidence,
                created_by="system",
                metadata=LinkMetadata(original_relationship=word, similarity=similarity, extra=extra),
                created_at=at,
            )
            for newer, older, (link_type, word, confidence), similarity in self._chosen
        ]

    def _id(self, at: int) -> str:
        return self.planned[at].memory.id

    def _choose(
        self, newer: int, older: int, kind: tuple[LinkType, str, float], similarity: float | None = None
    ) -> bool:
        if (
            kind[2] < self.policy.minimum
            or older in self._covered.get(newer, ())
            or max(self._degrees[newer], self._degrees[older]) >= _MOST
            or not any(self._id(at) in self.fresh for at in (newer, older))
        ):
            return False
        self._cover(newer, older)
        self._degrees.update((newer, older))
        self._chosen.append((newer, older, kind, similarity))
        return True

    def _cover(self, one: int, other: int) -> None:
        self._covered.setdefault(one, set()).add(other)
        self._covered.setdefault(other, set()).add(one)

    def _is_same_topic(self, one: int, other: int) -> bool:
        named = (self.planned[at] for at in (one, other))
        first, second = (each.memory.topic if each.is_named else None for each in named)
        return first is not None and first == second

    def _chain_of(self, at: int) -> int:
        """Return what stands for all that the old file says to have followed from each other."""
        end = at
        while (further := self._chains.get(end, end)) != end:
            end = further
        while (further := self._chains.get(at, at)) != end:
            self._chains[at], at = end, further
        return end


@attrs.frozen(eq=False)
class _Among:
    """The vectors of all memories among which a migration looks: one look at them serves a whole slice."""

    nodes: Any
    # Milliseconds since 1970.
    created: Any
    # All vectors in the order of the nodes, and where those of each node begin.
    pieces: Vectors
    begins: Any

    @classmethod
    def of(cls, reader: Reader, ids: Sequence[str]) -> _Among:
        nodes = np.array([node for node in reader.find_many(ids) if node is not None], np.int64)
        pieces, counts = reader.pieces(nodes)
        return cls(nodes, reader.facts(nodes).created, pieces, np.cumsum(counts) - counts)

    def nearest(self, asked: Vectors) -> Nearest:
        """Return what stands for `Reader.nearest` with one of *asked*, among these memories only."""
        rows = {vector.tobytes(): row for row, vector in enumerate(asked)}
        cosines = self.pieces @ asked.T
        if len(self.pieces) > len(self.nodes):
            cosines = np.maximum.reduceat(cosines, self.begins, axis=0)
        table = np.ascontiguousarray(cosines.T)

        def nearest(vector: Vectors, limit: int, where: Filter | None) -> Matches:
            scores = table[rows[vector.tobytes()]]
            kept = np.arange(len(scores))
            if where is not None and where.until is not None:
                kept = np.flatnonzero(self.created < milliseconds(where.until))
            if len(kept) > limit:
                kept = kept[np.argpartition(-scores[kept], limit - 1)[:limit]]
            order = kept[np.lexsort((-self.nodes[kept], -scores[kept]))]
            return Matches(self.nodes[order], scores[order])

        return nearest


def _cosine(vectors: Vectors, others: Vectors) -> float:
    """Return the cosine of the nearest two pieces, to as many digits as mean something."""
    return round(float((vectors.astype(np.float64) @ others.astype(np.float64).T).max()), 6)
