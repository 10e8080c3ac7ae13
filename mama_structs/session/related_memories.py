"""Memories that are related to the hits of a recall: successors, predecessors, newer statements and contradictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final

import attrs
import numpy as np

from mama_structs.memory.graph.results import Hit
from mama_structs.memory.graph.traversal import Successors, select_rows
from mama_structs.memory.save.conflict_detection import find_foreign_conflicts
from mama_structs.memory.save.conflict_records import (
    DISMISSED_TAG,
    MemoryConflict,
    find_conflict_sources,
    select_unresolved,
)
from mama_structs.memory.search.newer_statements import find_newer_statements, prefetch_newer
from mama_structs.memory.statements.comparison import same_subject_other_value
from mama_structs.memory.types.duplicates import duplicate_fingerprint
from mama_structs.memory.types.engine import SYSTEM_CREATOR_INDEX, TYPE_NUMBERS, EngineFilter, Prefetch, Reader
from mama_structs.memory.types.model import (
    ORIGINS,
    DecisionMetadata,
    Link,
    LinkType,
    Memory,
    MemoryType,
    Outcome,
    is_outcome_reason,
)
from mama_structs.memory.types.relationships import normalize_relationship
from mama_structs.recall import Conflict

# Maximum number of items of each kind: conflicts, memories that implement a checkpoint, and predecessors.
MAX_RELATED: Final = 3
# To find contradictions, the links of at most this many memories are read.
MAX_LINKED_MEMORIES: Final = 64
# To find conflicts between namespaces, the texts of at most this many hits are compared.
MAX_COMPARED_HITS: Final = 6
CONTRADICTION_WORDS: Final = frozenset(
    map(
        normalize_relationship,
        ("contradicts", "may contradict", "contradicted by", "conflicts with", "in conflict with", "모순", "충돌"),
    )
)
READ_LINK_TYPES: Final = (LinkType.EVOLUTION, LinkType.IMPLEMENTATION, LinkType.ASSOCIATION)
EVOLUTION_NUMBER, IMPLEMENTATION_NUMBER, ASSOCIATION_NUMBER = (TYPE_NUMBERS[kind] for kind in READ_LINK_TYPES)
CHECKPOINT_TYPES: Final = frozenset({MemoryType.CHECKPOINT})


@attrs.frozen(kw_only=True)
class RelatedMemories:
    """
    Data of the store that is related to the hits, read at one change number.

    All keys are memory ids.
    """

    memories: Mapping[str, Memory]
    """The hits and the related memories that may be recalled with them."""
    superseded_by: Mapping[str, str] = attrs.field(factory=dict)
    """Current successor of each replaced memory."""
    explained_by: Mapping[str, Sequence[str]] = attrs.field(factory=dict)
    """Memories that carry out a checkpoint, and the decisions whose outcome a context memory explains."""
    predecessors: Mapping[str, Sequence[str]] = attrs.field(factory=dict)
    """Direct predecessors of each memory."""
    newer: Mapping[str, str] = attrs.field(factory=dict)
    """Newer memory on the same subject, of each memory that has one but no successor."""
    outdated: frozenset[str] = frozenset()
    """The keys of `newer` whose newer memory states another value."""
    contradiction_links: Sequence[Link] = ()
    """Links that mark two memories as contradictory."""
    stored_conflicts: Sequence[MemoryConflict] = ()
    """Unresolved contradictions of the hits that saves detected."""
    checkpoint: Memory | None = None
    own_namespace: str | None = None
    """The session's own namespace, which is not named in the text."""
    hits: Mapping[str, Hit] = attrs.field(factory=dict)
    """The hits of the search."""

    @classmethod
    def read(
        cls,
        reader: Reader,
        hits: Sequence[Hit],
        *,
        query: str,
        where: EngineFilter,
        shared_dimensions: int,
        resuming: bool,
        others: Sequence[Hit] = (),
    ) -> RelatedMemories:
        """
        Read the last checkpoint, and the memories that are related to *hits* of *query* and pass *where*.

        *others* are hits that are not recalled, but may be newer than those that are. *shared_dimensions* is the number
        of leading dimensions that the vectors of all texts have in common.
        """
        found = [hit.memory for hit in hits]
        checkpoints = attrs.evolve(where, types=CHECKPOINT_TYPES)

        def prefetch(ahead: Prefetch) -> None:
            prefetch_newer(ahead, hits)
            ahead.links(np.zeros(0, np.int64), "both", READ_LINK_TYPES)
            if resuming:
                ahead.window(checkpoints, limit=1)

        reader.expect(prefetch)
        last = reader.window(checkpoints, limit=1) if resuming else ()
        checkpoint = next(iter(reader.get(last)), None)
        hit_nodes = reader.find_many([memory.id for memory in found])
        nodes = {node: memory for node, memory in zip(hit_nodes, found, strict=True) if node is not None}
        superseded = {hit.memory.id: hit.superseded_by for hit in hits if hit.superseded_by is not None}
        newer = find_newer_statements(
            reader,
            {
                node: hit
                for node, hit in zip(hit_nodes, hits, strict=True)
                if node is not None and hit.superseded_by is None
            },
            [hit for hit in (*hits, *others) if hit.superseded_by is None],
            query=query,
            has_other_value=same_subject_other_value,
            shared_dimensions=shared_dimensions,
            valid_at=where.valid_at,
        )
        nodes.update((int(node), checkpoint) for node in last if checkpoint is not None)
        pairs = _read_links(reader, nodes)
        implementation_pairs = [
            (one, other)
            for one, other, kind in pairs
            if kind == IMPLEMENTATION_NUMBER and _has_implementations(nodes.get(one))
        ]
        if decisions := {other for _, other in implementation_pairs} - nodes.keys():
            pairs += _read_links(reader, decisions)
        replaced_pairs = [
            (one, other) for one, other, kind in pairs if kind == EVOLUTION_NUMBER and one in {*nodes, *decisions}
        ]
        # These links are few, so reading them is cheap.
        opposing = {one for one, _, kind in pairs if kind == ASSOCIATION_NUMBER}
        opposing.update(find_conflict_sources(reader, np.array(sorted(nodes), np.int64)).tolist())
        if replacing_ids := [one.memory.id for one in newer.values() if one.is_replacement]:
            opposing.update(node for node in reader.find_many(replacing_ids) if node is not None)
        read = reader.links_of_many(sorted(opposing, reverse=True)[:MAX_LINKED_MEMORIES], "out")
        links = [link for own in read for link in own]
        against = [link for link in links if _is_contradiction(link)]
        dismissed = {(link.to_id, link.from_id) for link in links if DISMISSED_TAG in link.metadata.tags}
        recalled = {memory.id for memory in nodes.values()}
        stored = [
            one
            for one in select_unresolved(reader, links, where.valid_at)
            if not recalled.isdisjoint({one.newer.id, one.older.id})
        ]
        replacing = {one.older.id: one.newer for one in stored if _is_replacement(one)}
        replacing |= {
            memory_id: one.memory
            for memory_id, one in newer.items()
            if one.is_replacement and (memory_id, one.memory.id) not in dismissed
        }
        # Read the successors, so that a superseded memory is never recalled alone.
        wanted = [*superseded.values(), *(end for link in against for end in (link.from_id, link.to_id))]
        ends = reader.find_many(wanted)
        related_nodes = sorted(
            {*decisions, *(other for _, other in replaced_pairs), *(end for end in ends if end is not None)} - {*nodes}
        )
        related = zip(related_nodes, reader.get(related_nodes), strict=True)
        nodes.update((node, memory) for node, memory in related if not _has_ended(memory, where.valid_at))
        current_successors = Successors(reader).newest(related_nodes) if related_nodes else {}
        named_nodes = list({*nodes, *related_nodes, *current_successors.values()})
        ids = dict(zip(named_nodes, reader.ids(named_nodes), strict=True))
        newest = {memory_id: one.memory for memory_id, one in newer.items()} | replacing
        return cls(
            memories={one.id: one for one in (*newest.values(), *nodes.values())},
            newer={memory_id: one.id for memory_id, one in newest.items()},
            outdated=frozenset(replacing),
            superseded_by={**superseded, **{ids[node]: ids[newer] for node, newer in current_successors.items()}},
            explained_by=_group_pairs((ids[one], ids[other]) for one, other in implementation_pairs),
            predecessors=_group_pairs((ids[one], ids[other]) for one, other in replaced_pairs),
            contradiction_links=against,
            stored_conflicts=[one for one in stored if not _is_replacement(one)],
            checkpoint=checkpoint,
        )

    @classmethod
    def merge(cls, several: Sequence[RelatedMemories]) -> RelatedMemories:
        """Merge the data of several namespaces. The checkpoint of the first namespace is used."""
        first, *others = several
        if not others:
            return first
        field_values = [attrs.asdict(one, recurse=False) for one in reversed(several)]
        names = ("memories", "superseded_by", "explained_by", "predecessors", "newer")
        maps: dict[str, Any] = {
            name: {key: value for one in field_values for key, value in one[name].items()} for name in names
        }
        return cls(
            **maps,
            contradiction_links=[link for one in several for link in one.contradiction_links],
            stored_conflicts=[conflict for one in several for conflict in one.stored_conflicts],
            checkpoint=first.checkpoint,
            outdated=frozenset().union(*(one.outdated for one in several)),
        )

    def get_memories(self, ids: Iterable[str]) -> list[Memory]:
        """Return the memories with these ids that may be recalled."""
        return [self.memories[one] for one in ids if one in self.memories]

    def is_current(self, memory_id: str) -> bool:
        """Return True if a memory can be recalled, was not replaced and did not fail."""
        memory = self.memories.get(memory_id)
        return memory is not None and memory_id not in self.superseded_by and get_outcome(memory) is not Outcome.FAILED

    def conflicts(self, hits: Iterable[Hit]) -> Iterator[Conflict]:
        """Yield pairs of contradicting memories: linked ones, stored conflicts, and *hits* of two namespaces."""
        # Copies of a memory contradict the same memories.
        seen: set[frozenset[int | str]] = set()
        for link in self.contradiction_links:
            pair = frozenset((link.from_id, link.to_id))
            if all(map(self.is_current, pair)):
                older, newer = sorted((self.memories[one] for one in pair), key=lambda one: (one.created_at, one.id))
                if (key := _wordings((newer, older))) not in seen:
                    seen.add(key)
                    yield Conflict(memories=(newer, older), reason=link.metadata.reason)
        for one in self.stored_conflicts:
            if (key := _wordings((one.newer, one.older))) not in seen:
                seen.add(key)
                yield Conflict(memories=(one.newer, one.older))
        found = (hit.memory for hit in hits if self.is_current(hit.memory.id) and not is_outcome_reason(hit.memory))
        yield from (Conflict(memories=pair) for pair in find_foreign_conflicts(islice(found, MAX_COMPARED_HITS)))


def _wordings(memories: Iterable[Memory]) -> frozenset[int | str]:
    """Return the duplicate fingerprints of memories, or the ids of memories without one."""
    return frozenset(duplicate_fingerprint(one) or one.id for one in memories)


def _read_links(reader: Reader, nodes: Iterable[int]) -> list[tuple[int, int, int]]:
    """Return (source, target, type) of the nodes' links, without automatic associations."""
    table = reader.links(np.array(sorted(nodes), np.int64), "both", READ_LINK_TYPES)
    chosen = select_rows(table, (table.types != ASSOCIATION_NUMBER) | (table.creators != SYSTEM_CREATOR_INDEX))
    return list(zip(chosen.sources.tolist(), chosen.targets.tolist(), chosen.types.tolist(), strict=True))


def _group_pairs(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for one, other in pairs:
        groups.setdefault(one, []).append(other)
    return groups


def _has_implementations(memory: Memory | None) -> bool:
    return memory is not None and (memory.type is MemoryType.CHECKPOINT or is_outcome_reason(memory))


def _has_ended(memory: Memory, at: datetime | None) -> bool:
    return at is not None and memory.valid_until is not None and memory.valid_until <= at


def _is_replacement(conflict: MemoryConflict) -> bool:
    """Return True if the newer memory states a change and is at least as trusted as the older one."""
    newer, older = conflict.newer, conflict.older
    return conflict.kind == "replaces" and ORIGINS.index(newer.trust) <= ORIGINS.index(older.trust)


def _is_contradiction(link: Link) -> bool:
    return normalize_relationship(link.metadata.original_relationship) in CONTRADICTION_WORDS


def get_outcome(memory: Memory) -> Outcome | None:
    """Return the outcome of a decision, or None."""
    return memory.metadata.outcome if isinstance(memory.metadata, DecisionMetadata) else None
