"""
Back-filled links: links that v1.0 did not create, added once during a migration (DESIGN section 6).

Memories are linked by topic, by meaning and by time.
All links are chosen before any is written. The choice depends only on the memories and links of the old file, so an
interrupted migration chooses the same links again.
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

from mama_structs.importers.mama_v1.migration_plan import BACKFILLED_KEY, MIGRATION_MARK_KEY, PlannedMemory, link_id
from mama_structs.memory.embedding.protocol import cosine_table
from mama_structs.memory.save.automatic_links import (
    CLOSE_IN_TIME_WORD,
    RELATED_WORD,
    LinkingContext,
)
from mama_structs.memory.save.link_candidates import NearestFunction, collect_link_candidates
from mama_structs.memory.types.engine import EngineFilter, Matches, Reader, Vectors
from mama_structs.memory.types.model import Link, LinkMetadata, LinkType, Memory, MemoryType, to_milliseconds
from mama_structs.settings import LinkingPolicy

# The maximum number of back-filled links at one memory, in both directions.
MAX_LINKS_PER_MEMORY: Final = 8
MAX_ASSOCIATIONS: Final = 5
# More than MAX_ASSOCIATIONS, because a candidate is rejected if its memory already has the maximum number of links.
MAX_CANDIDATES: Final = 10
MAX_TEMPORAL_LINKS: Final = 3
MAX_TEMPORAL_DISTANCE: Final = timedelta(hours=1)
# Maximum number of chunks of a long memory that are compared. `collect_link_candidates` has the same limit.
MAX_COMPARED_PIECES: Final = 4
# Type, relationship and confidence of each kind of link (DESIGN section 6; evolution: ADR-001, "same topic").
EVOLUTION_LINK: Final = (LinkType.EVOLUTION, "evolves_from", 0.6)
ASSOCIATION_LINK: Final = (LinkType.ASSOCIATION, RELATED_WORD, 0.4)
TEMPORAL_LINK: Final = (LinkType.TEMPORAL, CLOSE_IN_TIME_WORD, 0.3)


class LinkCandidate(NamedTuple):
    """
    Two memories that probably have the same subject.

    `probability` is the probability that they do. `similarity` is the cosine of their most similar pieces.
    """

    newer: str
    older: str
    probability: float
    similarity: float


@attrs.define(eq=False, kw_only=True)
class LinkBackfill:
    """Chooses the back-filled links. *planned* contains the memories, oldest first."""

    planned: Sequence[PlannedMemory]
    links: Iterable[Link]
    policy: LinkingPolicy
    # Ids of the memories that were not back-filled before. Each new link must begin or end at such a memory.
    # `before` maps memory ids to the number of their existing back-filled links.
    fresh: AbstractSet[str]
    before: Mapping[str, int]
    namespace: str
    migration: str
    # The start time of the migration. It becomes the creation time of the links.
    at: datetime
    chosen: list[Link] = attrs.field(init=False, factory=list)
    _places: dict[str, int] = attrs.field(init=False)
    _linked_ids: defaultdict[str, set[str]] = attrs.field(init=False, factory=partial(defaultdict, set))
    _degrees: Counter[str] = attrs.field(init=False)
    _chains: dict[str, str] = attrs.field(init=False, factory=dict)
    # Cache of the vectors of all memories, with the store's change number at which they were read.
    # Without the cache, each batch would read all vectors again, which would take longer than the linking.
    _vector_table: tuple[int, VectorTable] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self._places = {one.memory.id: place for place, one in enumerate(self.planned)}
        self._degrees = Counter(self.before)
        for link in self.links:
            self._mark_linked(link.from_id, link.to_id)
            if link.link_type is LinkType.EVOLUTION:
                self._chains[self._find_chain(link.from_id)] = self._find_chain(link.to_id)
        # Link each decision to the previous decision of its topic, unless the old file already relates the two.
        last: dict[str, str] = {}
        for one in self.planned:
            if one.memory.type is MemoryType.DECISION and one.topic is not None:
                newer, before = one.memory.id, last.get(one.topic)
                last[one.topic] = newer
                # Do not link decisions that an evolution chain already relates.
                # If they are on two branches of a fork, neither decision supersedes the other.
                if before is not None and self._find_chain(newer) != self._find_chain(before):
                    self._add_link(newer, before, EVOLUTION_LINK)

    def find_candidates(
        self, reader: Reader, batch: Sequence[PlannedMemory], linking: LinkingContext
    ) -> list[LinkCandidate]:
        """Pair each memory of a batch with memories on the same subject, the most probable pairs first."""
        if not self.policy.max_semantic:
            return []
        memories = [one.memory for one in batch if one.memory.type is not MemoryType.CHECKPOINT]
        nodes = reader.find_many([memory.id for memory in memories])
        asked = [(one, reader.vectors(node)) for one, node in zip(memories, nodes, strict=True) if node is not None]
        if not asked:
            return []
        if self._vector_table is None or self._vector_table[0] != reader.change:
            self._vector_table = reader.change, VectorTable.from_ids(reader, list(self._places))
        nearest = self._vector_table[1].nearest(np.concatenate([vectors[:MAX_COMPARED_PIECES] for _, vectors in asked]))
        return [
            pair for one, vectors in asked for pair in self._find_candidates_of(reader, one, vectors, linking, nearest)
        ]

    def _find_candidates_of(
        self, reader: Reader, memory: Memory, vectors: Vectors, linking: LinkingContext, nearest: NearestFunction
    ) -> list[LinkCandidate]:
        covered = self._linked_ids[memory.id]
        found = collect_link_candidates(
            reader,
            memory,
            vectors,
            calibration=linking.calibration,
            shared_dimensions=linking.shared_dimensions,
            explicit=covered,
            nearest=nearest,
        )
        probable = found.probabilities
        order = np.argsort(-probable, kind="stable")
        rows = order[probable[order] >= self.policy.threshold].tolist()
        pairs = []
        for row, other in zip(rows, reader.ids(found.nodes[rows]), strict=True):
            if other in self._places:
                older, newer = sorted((memory.id, other), key=self._places.__getitem__)
                table = cosine_table(vectors, reader.vectors(int(found.nodes[row])), linking.shared_dimensions)
                similarity = round(float(table.max()), 6)
                pairs.append(LinkCandidate(newer, older, round(float(probable[row]), 6), similarity))
        return pairs[:MAX_CANDIDATES]

    def add_associations(self, candidates: Iterable[LinkCandidate]) -> None:
        """Add association links between memories on the same subject, most probable first."""
        begun: Counter[str] = Counter()
        most = min(MAX_ASSOCIATIONS, self.policy.max_semantic)
        places = self._places
        for pair in sorted(candidates, key=lambda one: (-one.probability, places[one.newer], places[one.older])):
            if begun[pair.newer] < most:
                begun[pair.newer] += self._add_link(pair.newer, pair.older, ASSOCIATION_LINK, pair.similarity)

    def add_temporal_links(self) -> None:
        """Add temporal links from each memory to the memories shortly before it, nearest in time first."""
        most = min(MAX_TEMPORAL_LINKS, self.policy.max_temporal)
        within = min(MAX_TEMPORAL_DISTANCE, timedelta(seconds=self.policy.temporal_window))
        dated = [one for one in self.planned if one.is_dated]
        for place, one in enumerate(dated):
            made = 0
            for near in reversed(dated[max(place - MAX_LINKS_PER_MEMORY, 0) : place]):
                if made >= most or not within or one.memory.created_at - near.memory.created_at > within:
                    break
                if not self.policy.temporal_same_topic or one.topic == near.topic is not None:
                    made += self._add_link(one.memory.id, near.memory.id, TEMPORAL_LINK)

    def _add_link(
        self, newer: str, older: str, kind: tuple[LinkType, str, float], similarity: float | None = None
    ) -> bool:
        link_type, word, confidence = kind
        if (
            confidence < self.policy.min_confidence
            or older in self._linked_ids[newer]
            or max(self._degrees[newer], self._degrees[older]) >= MAX_LINKS_PER_MEMORY
            or self.fresh.isdisjoint((newer, older))
        ):
            return False
        self._mark_linked(newer, older)
        self._degrees.update((newer, older))
        extra = {BACKFILLED_KEY: True, MIGRATION_MARK_KEY: self.migration}
        self.chosen.append(
            Link(
                id=link_id(self.namespace, newer, older, f"{BACKFILLED_KEY} {word}"),
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

    def _mark_linked(self, one: str, other: str) -> None:
        self._linked_ids[one].add(other)
        self._linked_ids[other].add(one)

    def _find_chain(self, memory_id: str) -> str:
        """Return the representative memory id of a memory's evolution chain (union-find with path halving)."""
        one = memory_id
        while (further := self._chains.get(one, one)) != one:
            self._chains[one] = self._chains.get(further, further)
            one = further
        return one


@attrs.frozen(eq=False)
class VectorTable:
    """The vectors of all memories of a migration, loaded once for all batches."""

    nodes: Any
    # Creation times in milliseconds since 1970.
    created: Any
    # The chunk vectors of all nodes, in node order. `begins` contains the index of each node's first vector.
    pieces: Vectors
    begins: Any

    @classmethod
    def from_ids(cls, reader: Reader, ids: Sequence[str]) -> VectorTable:
        """Load the vectors of the memories. Unknown ids are ignored."""
        nodes = np.array([node for node in reader.find_many(ids) if node is not None], np.int64)
        pieces, counts = reader.pieces(nodes)
        return cls(nodes, reader.facts(nodes).created, pieces, np.cumsum(counts) - counts)

    def nearest(self, asked: Vectors) -> NearestFunction:
        """
        Return a replacement for `Reader.nearest` that searches these memories only.

        It accepts only vectors from *asked*, because all scores are computed in advance.
        """
        rows = {vector.tobytes(): row for row, vector in enumerate(asked)}
        cosines = self.pieces @ asked.T
        if len(self.pieces) > len(self.nodes):
            cosines = np.maximum.reduceat(cosines, self.begins, axis=0)
        table = np.ascontiguousarray(cosines.T)

        def nearest(vector: Vectors, limit: int, where: EngineFilter | None) -> Matches:
            scores = table[rows[vector.tobytes()]]
            kept = np.arange(len(scores))
            if where is not None and where.until is not None:
                kept = np.flatnonzero(self.created < to_milliseconds(where.until))
            if len(kept) > limit:
                kept = kept[np.argpartition(-scores[kept], limit - 1)[:limit]]
            order = kept[np.lexsort((-self.nodes[kept], -scores[kept]))]
            return Matches(self.nodes[order], scores[order])

        return nearest
