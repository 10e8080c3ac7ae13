"""
Links that v1.0 did not create, added once during a migration (DESIGN section 6).

Memories are linked by topic, by meaning and by time.
All links are chosen before any is written, from the memories and the links of the old file only. An interrupted
migration therefore chooses the same links again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import attrs
import numpy as np

from mama_structs.importers.mama_v1.migration_plan import BACKFILLED, MARK, PlannedMemory, link_id
from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.save.automatic_links import CLOSE_IN_TIME, RELATED, Nearest, gather, probabilities
from mama_structs.memory.types.engine import Filter, Matches, Reader, Vectors
from mama_structs.memory.types.model import Link, LinkMetadata, LinkType, Memory, MemoryType, milliseconds
from mama_structs.settings import LinkingPolicy

# The maximum number of back-filled links at one memory, in both directions.
_MOST: Final = 8
_ASSOCIATIONS: Final = 5
# More than the number of links per memory, because other pairs may use up the limit first.
_PROPOSED: Final = 10
_TEMPORAL: Final = 3
_HOUR: Final = timedelta(hours=1)
# Only the first pieces of a long memory are compared, as in `mama_structs.memory.evidence`.
_PIECES: Final = 4
# Type, relationship and confidence (DESIGN section 6; for evolution, the value of ADR-001 for one topic).
_EVOLUTION: Final = (LinkType.EVOLUTION, "evolves_from", 0.6)
_ASSOCIATION: Final = (LinkType.ASSOCIATION, RELATED, 0.4)
_CLOSE: Final = (LinkType.TEMPORAL, CLOSE_IN_TIME, 0.3)


class LikelyPair(NamedTuple):
    """
    Two memories on the same subject.

    `probability` is that of the same subject, `similarity` the cosine of their nearest pieces.
    """

    newer: str
    older: str
    probability: float
    similarity: float


@attrs.define(eq=False, kw_only=True)
class BackFill:
    """Chooses the links to add to the old links. Memories are ordered oldest first."""

    planned: Sequence[PlannedMemory]
    links: Iterable[Link]
    policy: LinkingPolicy
    # Ids of memories that were not back-filled before; every new link has such a memory at one end. Then the number
    # of existing back-filled links by memory id.
    fresh: AbstractSet[str]
    before: Mapping[str, int]
    namespace: str
    migration: str
    # The start time of the migration, from which the new links age.
    at: datetime
    chosen: list[Link] = attrs.field(init=False, factory=list)
    _places: dict[str, int] = attrs.field(init=False)
    _covered: defaultdict[str, set[str]] = attrs.field(init=False, factory=partial(defaultdict, set))
    _degrees: Counter[str] = attrs.field(init=False)
    _chains: dict[str, str] = attrs.field(init=False, factory=dict)
    # Caches the vectors of all memories at one change number: reading them for each slice would cost more than linking.
    _among: tuple[int, _Among] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self._places = {one.memory.id: place for place, one in enumerate(self.planned)}
        self._degrees = Counter(self.before)
        for link in self.links:
            self._cover(link.from_id, link.to_id)
            if link.link_type is LinkType.EVOLUTION:
                self._chains[self._chain_of(link.from_id)] = self._chain_of(link.to_id)
        # Link each decision to its predecessor in the topic, unless the old file already relates both.
        last: dict[str, str] = {}
        for one in self.planned:
            if one.memory.type is MemoryType.DECISION and one.topic is not None:
                newer, before = one.memory.id, last.get(one.topic)
                last[one.topic] = newer
                # Decisions on different branches of a fork have one chain already; neither supersedes the other.
                if before is not None and self._chain_of(newer) != self._chain_of(before):
                    self._choose(newer, before, _EVOLUTION)

    def likely(self, reader: Reader, some: Sequence[PlannedMemory], calibration: Calibration) -> list[LikelyPair]:
        """Return the older memories on the same subject, most probable first for each memory."""
        if not self.policy.max_semantic:
            return []
        memories = [one.memory for one in some if one.memory.type is not MemoryType.CHECKPOINT]
        nodes = reader.find_many([memory.id for memory in memories])
        asked = [(one, reader.vectors(node)) for one, node in zip(memories, nodes, strict=True) if node is not None]
        if not asked:
            return []
        if self._among is None or self._among[0] != reader.change:
            self._among = reader.change, _Among.of(reader, list(self._places))
        nearest = self._among[1].nearest(np.concatenate([vectors[:_PIECES] for _, vectors in asked]))
        return [pair for one, vectors in asked for pair in self._likely(reader, one, vectors, calibration, nearest)]

    def _likely(
        self, reader: Reader, memory: Memory, vectors: Vectors, calibration: Calibration, nearest: Nearest
    ) -> list[LikelyPair]:
        covered = self._covered[memory.id]
        found = gather(reader, memory, vectors, calibration=calibration, explicit=covered, nearest=nearest)
        probable = probabilities(found.features)
        order = np.argsort(-probable, kind="stable")
        rows = order[probable[order] >= self.policy.threshold].tolist()
        pairs = []
        for row, other in zip(rows, reader.ids(found.nodes[rows]), strict=True):
            if other in self._places:
                older, newer = sorted((memory.id, other), key=self._places.__getitem__)
                similarity = _cosine(vectors, reader.vectors(int(found.nodes[row])))
                pairs.append(LikelyPair(newer, older, round(float(probable[row]), 6), similarity))
        return pairs[:_PROPOSED]

    def by_meaning(self, likely: Iterable[LikelyPair]) -> None:
        """Add association links between memories on the same subject, most probable first."""
        begun: Counter[str] = Counter()
        most = min(_ASSOCIATIONS, self.policy.max_semantic)
        places = self._places
        for pair in sorted(likely, key=lambda one: (-one.probability, places[one.newer], places[one.older])):
            if begun[pair.newer] < most:
                begun[pair.newer] += self._choose(pair.newer, pair.older, _ASSOCIATION, pair.similarity)

    def by_time(self) -> None:
        """Add temporal links from each memory to those shortly before it, nearest first."""
        most = min(_TEMPORAL, self.policy.max_temporal)
        within = min(_HOUR, timedelta(seconds=self.policy.temporal_window))
        dated = [one for one in self.planned if one.is_dated]
        for place, one in enumerate(dated):
            made = 0
            for near in reversed(dated[max(place - _MOST, 0) : place]):
                if made >= most or not within or one.memory.created_at - near.memory.created_at > within:
                    break
                if not self.policy.temporal_same_topic or one.topic == near.topic is not None:
                    made += self._choose(one.memory.id, near.memory.id, _CLOSE)

    def _choose(
        self, newer: str, older: str, kind: tuple[LinkType, str, float], similarity: float | None = None
    ) -> bool:
        link_type, word, confidence = kind
        if (
            confidence < self.policy.minimum
            or older in self._covered[newer]
            or max(self._degrees[newer], self._degrees[older]) >= _MOST
            or self.fresh.isdisjoint((newer, older))
        ):
            return False
        self._cover(newer, older)
        self._degrees.update((newer, older))
        extra = {BACKFILLED: True, MARK: self.migration}
        self.chosen.append(
            Link(
                id=link_id(self.namespace, newer, older, f"{BACKFILLED} {word}"),
                from_id=newer,
                to_id=older,
                link_type=link_type,
                confidence=confidence,
                created_by="system",
                metadata=LinkMetadata(original_relationship=word, similarity=similarity, extra=extra),
                created_at=self.at,
            )
        )
        return True

    def _cover(self, one: str, other: str) -> None:
        self._covered[one].add(other)
        self._covered[other].add(one)

    def _chain_of(self, memory_id: str) -> str:
        """Return the representative id of the evolution chain that contains a memory (union-find)."""
        one = memory_id
        while (further := self._chains.get(one, one)) != one:
            self._chains[one] = self._chains.get(further, further)
            one = further
        return one


@attrs.frozen(eq=False)
class _Among:
    """The vectors of all memories of a migration, loaded once for a whole slice."""

    nodes: Any
    # Milliseconds since 1970.
    created: Any
    # All vectors in the order of the nodes, and the index of the first vector of each node.
    pieces: Vectors
    begins: Any

    @classmethod
    def of(cls, reader: Reader, ids: Sequence[str]) -> _Among:
        nodes = np.array([node for node in reader.find_many(ids) if node is not None], np.int64)
        pieces, counts = reader.pieces(nodes)
        return cls(nodes, reader.facts(nodes).created, pieces, np.cumsum(counts) - counts)

    def nearest(self, asked: Vectors) -> Nearest:
        """
        Return a replacement for `Reader.nearest` that searches these memories only.

        It accepts only the vectors *asked*.
        """
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
    """Return the cosine of the nearest two pieces, rounded to six digits."""
    return round(float((vectors.astype(np.float64) @ others.astype(np.float64).T).max()), 6)
