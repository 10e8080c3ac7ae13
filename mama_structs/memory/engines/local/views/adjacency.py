"""
Index of the links between memories.

Links are stored in arrays sorted by source and by target. Recent links are in an unsorted tail.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.engines.local.views.memory_table import (
    GrowingColumns,
    Rows,
    SortedRows,
    Vocabulary,
    compact_vocabulary,
    expand_runs,
    pack_texts,
    should_merge,
    unpack_texts,
)
from mama_structs.memory.types.engine import Direction, LinkTable, Nodes
from mama_structs.memory.types.model import CREATORS, Link, LinkType, to_milliseconds

_LINK_TYPES: Final = {kind: position for position, kind in enumerate(LinkType)}
_CREATORS: Final = {creator: position for position, creator in enumerate(CREATORS)}
_STORED_COLUMNS: Final = {
    "source": np.int32,
    "target": np.int32,
    "type": np.int8,
    "creator": np.int8,
    "confidence": np.float32,
    "created": np.int64,
    "word": np.int32,
    "key": np.uint64,
}
_COLUMNS: Final = {**_STORED_COLUMNS, "alive": np.bool_}
MIN_DEAD_LINKS_TO_COMPACT: Final = 1024


def hash_link_id(link_id: str) -> int:
    """Return a 64-bit hash of a link id. Different ids may have equal hashes."""
    return int.from_bytes(blake2b(link_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class Adjacency:
    """Index of the links between nodes. Link ids and texts are stored only in the journal."""

    def __init__(self) -> None:
        self._rows = GrowingColumns(_COLUMNS)
        self._words = Vocabulary()
        self._merged = 0
        self._dead = 0
        self._out = _NodeRows()
        self._in = _NodeRows()
        self._by_key = SortedRows()
        # Scratch array that marks the nodes of one query. All values are False between queries.
        self._query_marks = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return len(self._rows) - self._dead

    def add(self, source: int, target: int, link: Link) -> None:
        """Add a link. The caller must first remove a link with the same id."""
        self._rows.append(
            source=source,
            target=target,
            type=_LINK_TYPES[link.link_type],
            creator=_CREATORS[link.created_by],
            confidence=link.confidence,
            created=to_milliseconds(link.created_at),
            word=self._words.number(link.metadata.original_relationship),
            key=hash_link_id(link.id),
            alive=True,
        )
        self._reserve_nodes(max(source, target) + 1)
        if should_merge(len(self._rows) - self._merged, self._merged):
            self._merge()

    def find(self, link_id: str) -> list[tuple[int, int]]:
        """
        Return (source, target) of each link that may have this id.

        The result may contain other links whose ids have the same hash.
        """
        rows = self._find_rows(link_id)
        return list(zip(self._rows["source"][rows].tolist(), self._rows["target"][rows].tolist(), strict=True))

    def remove(self, link_id: str, *, source: int | None = None, target: int | None = None) -> int:
        """
        Remove the link with this id, and return how many links were removed (0 or 1).

        Args:
            link_id: The id of the link.
            source: If given, only a link from this node is removed.
            target: If given, only a link to this node is removed.

        """
        rows = self._find_rows(link_id)
        if source is not None:
            rows = rows[self._rows["source"][rows] == source]
        if target is not None:
            rows = rows[self._rows["target"][rows] == target]
        return self._mark_dead(rows[:1])

    def remove_node(self, node: int) -> int:
        """Remove all links of a node, and return their number."""
        return self._mark_dead(self._find_link_rows(np.array([node]), "both"))

    def get_node_links(self, node: int) -> dict[str, NDArray[Any]]:
        """Return the columns of all links of a node, as input for `restore_links`."""
        rows = self._find_link_rows(np.array([node]), "both")
        return {name: self._rows[name][rows] for name in _COLUMNS}

    def restore_links(self, links: Mapping[str, NDArray[Any]]) -> None:
        """Restore removed links from the result of `get_node_links`."""
        self._rows.extend(links)
        if should_merge(len(self._rows) - self._merged, self._merged):
            self._merge()

    def remove_outgoing(self, node: int) -> int:
        """Remove the links that start at a node, and return their number."""
        return self._mark_dead(self._find_link_rows(np.array([node]), "out"))

    def links(
        self,
        nodes: Nodes,
        direction: Direction = "both",
        types: Collection[LinkType] | None = None,
        *,
        words: Collection[str] | None = None,
    ) -> LinkTable:
        """
        Return the links of *nodes* in no particular order, without duplicates.

        Args:
            nodes: The nodes.
            direction: ``out`` for links from the nodes, ``in`` for links to them, ``both`` for all.
            types: If given, only links of these types are returned.
            words: If given, only links with one of these relationship words are returned.

        """
        rows = self._find_link_rows(nodes, direction)
        if types is not None and len(rows):
            rows = rows[_type_mask(frozenset(types))[self._rows["type"][rows]]]
        if words is not None and len(rows):
            numbers = [self._words.numbers[word] for word in words if word in self._words.numbers]
            rows = rows[np.isin(self._rows["word"][rows], numbers)]
        return LinkTable(
            self._rows["source"][rows].astype(np.int64),
            self._rows["target"][rows].astype(np.int64),
            self._rows["type"][rows],
            self._rows["creator"][rows],
            self._rows["confidence"][rows],
            self._rows["created"][rows],
        )

    def relationships(self) -> dict[str, int]:
        """Return the number of links per relationship word."""
        counts = np.bincount(self._rows["word"][self._rows["alive"]], minlength=len(self._words)).tolist()
        return {word: count for word, count in zip(self._words, counts, strict=True) if count}

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return metadata and arrays for a snapshot, as input for `from_state`."""
        alive = self._rows["alive"]
        arrays = {name: self._rows[name][alive] for name in _STORED_COLUMNS}
        words, arrays["word"] = compact_vocabulary(self._words, arrays["word"])
        arrays["words_text"], arrays["words_ends"] = pack_texts(words)
        return {"links": len(self)}, arrays

    @classmethod
    def from_state(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Adjacency:
        """Return the index restored from the result of `state`. Raise ValueError if it is inconsistent."""
        made = cls()
        count = len(arrays["source"])
        made._words = Vocabulary(unpack_texts(arrays["words_text"], arrays["words_ends"]))
        fits = (
            count == meta["links"]
            and all(len(arrays[name]) == count for name in _STORED_COLUMNS)
            and all(not count or arrays[name].min() >= 0 for name in ("source", "target", "type", "creator", "word"))
            and (not count or arrays["type"].max() < len(_LINK_TYPES))
            and (not count or arrays["creator"].max() < len(CREATORS))
            and (not count or arrays["word"].max() < len(made._words))
        )
        if not fits:
            raise ValueError("the parts of the links' state do not fit together")
        made._rows.extend({**{name: arrays[name] for name in _STORED_COLUMNS}, "alive": np.ones(count, np.bool_)})
        if count:
            made._reserve_nodes(int(max(arrays["source"].max(), arrays["target"].max())) + 1)
        made._merge()
        return made

    def _find_rows(self, link_id: str) -> Rows:
        rows = self._by_key.find(self._rows["key"], hash_link_id(link_id))
        found: Rows = rows[self._rows["alive"][rows]]
        return found

    def _find_link_rows(self, nodes: Nodes, direction: Direction) -> Rows:
        marks = self._query_marks
        known = nodes[(nodes >= 0) & (nodes < len(marks))]
        if len(known) > 1 and not (known[1:] > known[:-1]).all():
            known = np.unique(known)
        marks[known] = True
        sources, targets = self._rows["source"], self._rows["target"]
        parts = []
        if direction != "in":
            parts += [self._out.find_rows(known), self._merged + np.flatnonzero(marks[sources[self._merged :]])]
        if direction != "out":
            rows = np.concatenate(
                [self._in.find_rows(known), self._merged + np.flatnonzero(marks[targets[self._merged :]])]
            )
            parts.append(rows[~marks[sources[rows]]] if direction == "both" else rows)
        marks[known] = False
        found = np.concatenate(parts)
        living: Rows = found[self._rows["alive"][found]]
        return living

    def _mark_dead(self, rows: Rows) -> int:
        self._rows["alive"][rows] = False
        self._dead += len(rows)
        if self._dead > max(MIN_DEAD_LINKS_TO_COMPACT, len(self._rows) // 3):
            self._compact()
        return len(rows)

    def _reserve_nodes(self, nodes: int) -> None:
        if nodes > len(self._query_marks):
            self._query_marks = np.zeros(max(nodes, 2 * len(self._query_marks)), np.bool_)

    def _merge(self) -> None:
        self._merged = len(self._rows)
        self._out.merge(self._rows["source"])
        self._in.merge(self._rows["target"])

    def _compact(self) -> None:
        self._rows.keep(self._rows["alive"])
        self._merged = self._dead = 0
        self._out, self._in, self._by_key = _NodeRows(), _NodeRows(), SortedRows()
        self._merge()


@functools.cache
def _type_mask(types: frozenset[LinkType]) -> NDArray[np.bool_]:
    """Return the mask of the numbers of link types."""
    return np.array([kind in types for kind in _LINK_TYPES])


class _NodeRows:
    """Sorted link rows, grouped by the node at one end of the links."""

    def __init__(self) -> None:
        self._order = SortedRows()
        self._rows = np.empty(0, np.int32)
        self._starts = np.zeros(1, np.int32)

    def merge(self, ends: NDArray[np.int32]) -> None:
        """Sort the rows that were appended since the last merge. *ends* contains one node per row."""
        self._rows = self._order.rows(ends)
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(ends))]).astype(np.int32)

    def find_rows(self, nodes: Nodes) -> Rows:
        """Return the rows of the given distinct nodes."""
        nodes = nodes[nodes < len(self._starts) - 1]
        starts = self._starts[nodes].astype(np.int64)
        counts = self._starts[nodes + 1] - starts
        rows: Rows = self._rows[expand_runs(starts, counts)].astype(np.int64)
        return rows
