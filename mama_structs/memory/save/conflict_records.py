"""
Conflicts that a save detected, stored until they are resolved.

A conflict is stored as an automatic link from the newer memory to the older one, so that it is exported, copied,
deleted and erased together with its memories.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, Literal

import attrs
import numpy as np

import mama_structs  # Imported for the annotations. The names are resolved lazily, when type hints are evaluated.
from mama_structs._internal.reprs import Columns, ReprContent, ReprMixin
from mama_structs.memory.save.automatic_links import RELATED_WORD
from mama_structs.memory.types.duplicates import has_failed, superseded_nodes
from mama_structs.memory.types.engine import SYSTEM_CREATOR_INDEX, Direction, Nodes, Reader, Writer
from mama_structs.memory.types.model import (
    Link,
    LinkMetadata,
    LinkType,
    Memory,
    SaveWarnings,
    new_link_id,
    to_milliseconds,
)

ConflictKind = Literal["contradicts", "replaces"]

CONTRADICTION_WORD: Final = "may_contradict"
REPLACEMENT_WORD: Final = "may_replace"
"""Relationship words of the links that store conflicts."""

DISMISSED_TAG: Final = "dismissed conflict"
"""Tag of the link between two memories whose conflict was dismissed."""

_KINDS: Final[Mapping[str, ConflictKind]] = {CONTRADICTION_WORD: "contradicts", REPLACEMENT_WORD: "replaces"}
# Number of memories whose links are read at once.
_PAGE_MEMORIES: Final = 4_096


@attrs.frozen(kw_only=True, repr=False)
class MemoryConflict(ReprMixin):
    """
    An unresolved conflict between two memories, detected when the newer one was saved.

    Args:
        newer: The memory that was saved later.
        older: The memory that it contradicts or replaces.
        kind: "contradicts" if both cannot be true, "replaces" if the newer one states a change.
        probability: Probability of the conflict, 0 to 1.
        detected_at: When the conflict was detected (UTC).

    """

    _table_columns: ClassVar[Columns] = {
        "newer": "text",
        "kind": "text",
        "older": "text",
        "probability": "float",
        "detected_at": "time",
        "newer_id": "text",
        "older_id": "text",
    }

    newer: mama_structs.Memory
    older: mama_structs.Memory
    kind: ConflictKind
    probability: float
    detected_at: datetime

    def _repr_content(self) -> ReprContent:
        facts = (f"{self.probability:.2f}", f"{self.detected_at:%Y-%m-%d}")
        return ReprContent(text=self.newer.content, second_text=(self.kind, self.older.content), facts=facts)

    def _table_row(self) -> dict[str, Any]:
        return {
            "newer": self.newer.content,
            "kind": self.kind,
            "older": self.older.content,
            "probability": self.probability,
            "detected_at": self.detected_at,
            "newer_id": self.newer.id,
            "older_id": self.older.id,
        }


def add_conflict_links(
    memory: Memory, warnings: SaveWarnings, automatic: Sequence[Link], explicit: Collection[str], *, now: datetime
) -> list[Link]:
    """
    Return the automatic links of a memory, with a link for each conflict in its warnings.

    A conflict replaces the automatic link to the same memory.

    Args:
        memory: The memory that is saved.
        warnings: Its conflicts.
        automatic: Its automatic links.
        explicit: Ids of the memories that explicit links connect with it. Their conflicts count as resolved.
        now: The time of the save, at which the conflicts are detected. The memory itself may have an earlier time.

    """
    found = {
        one.id: (word, one)
        for word, some in (
            (CONTRADICTION_WORD, warnings.possible_conflicts),
            (REPLACEMENT_WORD, warnings.possible_replacements),
        )
        for one in some
        if one.id not in explicit
    }
    similarities = {link.to_id: link.metadata.similarity for link in automatic}
    links = [link for link in automatic if link.to_id not in found]
    return links + [
        Link(
            id=new_link_id(),
            from_id=memory.id,
            to_id=older.id,
            link_type=LinkType.ASSOCIATION,
            confidence=older.probability,
            created_by="system",
            metadata=LinkMetadata(original_relationship=word, similarity=similarities.get(older.id)),
            created_at=now,
        )
        for word, older in found.values()
    ]


def find_conflicts(reader: Reader, now: datetime, limit: int) -> list[MemoryConflict]:
    """
    Return the unresolved conflicts, newest first.

    A conflict is resolved when either memory was superseded, updated or deleted, has failed or expired.
    """
    found: list[MemoryConflict] = []
    nodes = reader.window() if not _KINDS.keys().isdisjoint(reader.relationships()) else np.zeros(0, np.int64)
    for start in range(0, len(nodes), _PAGE_MEMORIES):
        sources = find_conflict_sources(reader, nodes[start : start + _PAGE_MEMORIES], "out")
        links = [link for own in reader.links_of_many(sources, "out") for link in own]
        found += select_unresolved(reader, links, now)
        if len(found) >= limit:
            break
    return found[:limit]


def find_conflict_sources(reader: Reader, nodes: Nodes, direction: Direction = "both") -> Nodes:
    """Return the source nodes of the conflict links of *nodes*."""
    table = reader.links(nodes, direction, [LinkType.ASSOCIATION], words=_KINDS)
    return np.unique(table.sources[table.creators == SYSTEM_CREATOR_INDEX])


def select_unresolved(reader: Reader, links: Iterable[Link], now: datetime | None) -> list[MemoryConflict]:
    """
    Return the unresolved conflicts that *links* store, newest first. Other links are ignored.

    If *now* is None, memories do not expire.
    """
    links = [*filter(_is_conflict, links)]
    if not links:
        return []
    ids = sorted({end for link in links for end in (link.from_id, link.to_id)})
    nodes = [node for node in reader.find_many(ids) if node is not None]
    gone = superseded_nodes(reader, np.array(nodes, np.int64))
    memories = {
        memory.id: memory
        for node, memory in zip(nodes, reader.get(nodes) if nodes else [], strict=True)
        if node not in gone
        and not has_failed(memory)
        and (now is None or memory.valid_until is None or memory.valid_until > now)
    }
    conflicts = [
        MemoryConflict(
            newer=memories[link.from_id],
            older=memories[link.to_id],
            kind=_KINDS[link.metadata.original_relationship],
            probability=link.confidence,
            detected_at=link.created_at,
        )
        for link in links
        if link.from_id in memories
        and link.to_id in memories
        and not any(_was_updated(memories[end], link) for end in (link.from_id, link.to_id))
    ]
    return sorted(conflicts, key=lambda one: (one.newer.created_at, one.newer.id), reverse=True)


def dismiss_conflict(writer: Writer, newer: int, older_id: str) -> None:
    """Mark the conflict of two memories as resolved. Idempotent."""
    for link in writer.read_links(newer, "out"):
        if link.to_id == older_id and _is_conflict(link):
            # Keep the link itself, because both memories have the same subject.
            tags = (*link.metadata.tags, DISMISSED_TAG)
            metadata = attrs.evolve(link.metadata, original_relationship=RELATED_WORD, tags=tags)
            writer.put_link(attrs.evolve(link, metadata=metadata))


def _is_conflict(link: Link) -> bool:
    return link.created_by == "system" and link.metadata.original_relationship in _KINDS


def _was_updated(memory: Memory, link: Link) -> bool:
    """Return True if the text of a memory changed after the conflict was detected."""
    changes = memory.previous_texts
    return bool(changes) and to_milliseconds(changes[-1].until) > to_milliseconds(link.created_at)
