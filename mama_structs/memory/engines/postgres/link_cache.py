"""Links that a transaction has read or written, as arrays until single links are needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.engines.postgres.namespace_rows import LinkRow
from mama_structs.memory.engines.postgres.queries import LINK_COLUMNS, unescape_text
from mama_structs.memory.engines.postgres.result_rows import ResultRow, split_columns
from mama_structs.memory.types.engine import LinkTable


@attrs.frozen(eq=False)
class LinkColumns:
    """Columns of deduplicated links in an answer of the server."""

    _packs: Sequence[ResultRow]
    numbers: NDArray[np.int64]
    """Sources, targets, types, creators and times, of shape (5, n)."""
    confidences: Sequence[float]

    @classmethod
    def decode(cls, rows: Sequence[ResultRow]) -> LinkColumns:
        """Return the links of packed result rows."""
        numbers = [row.array.reshape(len(LINK_COLUMNS), -1) for row in rows]
        return cls(
            rows,
            np.concatenate(numbers, axis=1),
            [confidence for row in rows for confidence in row.scores],
        )

    def rows(self) -> Iterable[tuple[str, LinkRow]]:
        """Return each link with its id. Texts are decoded here, because a traversal needs none."""
        texts = [split_columns(row.texts, 2) for row in self._packs]
        ids, words = ([unescape_text(text) for pack in column for text in pack] for column in zip(*texts, strict=True))
        return zip(ids, map(LinkRow, *self.numbers.tolist(), self.confidences, words), strict=True)

    def select(self, nodes: Sequence[int], ends: Collection[str]) -> LinkTable:
        """Return the links that start or end, depending on *ends*, at any of the nodes."""
        sources, targets, types, creators, created = self.numbers
        columns = {"source": sources, "target": targets}
        chosen = np.logical_or.reduce([np.isin(columns[end], nodes) for end in ends])
        confidences = np.array(self.confidences, np.float32)
        return LinkTable(
            sources[chosen],
            targets[chosen],
            types[chosen].astype(np.int8),
            creators[chosen].astype(np.int8),
            confidences[chosen],
            created[chosen],
        )


class LinkCache:
    """Cache of links by id and by end. Changes of the transaction take precedence over answers of the server."""

    def __init__(self) -> None:
        self._blocks: list[LinkColumns] = []
        self._rows: dict[str, LinkRow] = {}
        self._ends: dict[str, defaultdict[int, set[str]]] = {"source": defaultdict(set), "target": defaultdict(set)}
        # Ids of deleted links that may still exist on the server.
        self._deleted: set[str] = set()

    def add_columns(self, links: LinkColumns) -> None:
        """Add the links of an answer. Links that this transaction has written or deleted are ignored."""
        self._blocks.append(links)

    def put(self, link_id: str, link: LinkRow) -> None:
        """Add a written link, or replace it."""
        if link_id in self._rows:
            self.remove(link_id)
        self._deleted.discard(link_id)
        self._add(link_id, link)

    def remove(self, link_id: str, *, is_deleted: bool = False) -> None:
        """Remove a link. If it is deleted, later answers of the server do not add it again."""
        self._index()
        if is_deleted:
            self._deleted.add(link_id)
        link = self._rows.pop(link_id, None)
        if link is not None:
            self._ends["source"][link.source].discard(link_id)
            self._ends["target"][link.target].discard(link_id)

    def get(self, link_id: str) -> LinkRow | None:
        """Return a link, or None if it is not cached."""
        self._index()
        return self._rows.get(link_id)

    def is_deleted(self, link_id: str) -> bool:
        """Return True if the transaction has deleted a link."""
        return link_id in self._deleted

    def find_ids(self, nodes: Iterable[int], ends: Collection[str]) -> set[str]:
        """Return the ids of links that start or end, depending on *ends*, at any of the nodes."""
        self._index()
        return {link_id for end in ends for node in nodes for link_id in self._ends[end].get(node, ())}

    def select(self, nodes: Sequence[int], ends: Collection[str], words: Collection[str] | None = None) -> LinkTable:
        """Return the links that start or end, depending on *ends*, at any of the nodes, with any of the *words*."""
        if words is None and len(self._blocks) == 1 and not self._rows and not self._deleted:
            return self._blocks[0].select(nodes, ends)
        found = [self._rows[link_id] for link_id in self.find_ids(nodes, ends)]
        if words is not None:
            found = [link for link in found if link.word in words]
        return LinkTable(
            np.array([link.source for link in found], np.int64),
            np.array([link.target for link in found], np.int64),
            np.array([link.type for link in found], np.int8),
            np.array([link.creator for link in found], np.int8),
            np.array([link.confidence for link in found], np.float32),
            np.array([link.created for link in found], np.int64),
        )

    def _index(self) -> None:
        for block in self._blocks:
            for link_id, link in block.rows():
                if link_id not in self._rows and link_id not in self._deleted:
                    self._add(link_id, link)
        self._blocks.clear()

    def _add(self, link_id: str, link: LinkRow) -> None:
        self._rows[link_id] = link
        self._ends["source"][link.source].add(link_id)
        self._ends["target"][link.target].add(link_id)
