"""Reading the journal's memories together with their views."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import StoreDamaged
from mama_structs.memory.backend import (
    Direction,
    Facts,
    Filter,
    LinkTable,
    Matches,
    Nodes,
    Query,
    Scanned,
    Scores,
)
from mama_structs.memory.codec import Entry, read_entry, read_memory
from mama_structs.memory.contents import digest_of
from mama_structs.memory.embedded.keys import EmbedderRecord, Keys, numbered, vectors_from_bytes, whole
from mama_structs.memory.embedded.touched import Touched
from mama_structs.memory.embedded.views import Views
from mama_structs.memory.model import DecisionMetadata, Link, LinkType, Memory
from mama_structs.memory.text import query_terms
from mama_structs.storage import Damaged, Snapshot

T = TypeVar("T")

_SINGLE = 8
# How far a stored vector's length may be from 1, as in the vectors view.
_LENGTH = 1e-3


class Place:
    """
    Where a namespace's rows are.

    Args:
        keys: Their keys.
        embedder: Which embedder's vectors count.
        directory: The journal's, for messages.

    """

    def __init__(self, keys: Keys, embedder: EmbedderRecord, directory: str) -> None:
        self.keys: Keys = keys
        self.embedder: EmbedderRecord = embedder
        self.directory: str = directory
        self.memories: str = keys.memories
        self.changes: str = keys.changes
        self.vectors: str = keys.vectors(embedder)
        self.contents: str = keys.contents
        self.notes: str = keys.notes

    def entry(self, key: str, value: bytes | Damaged | None) -> Entry:
        """
        Return the entry in a row.

        Raises:
            StoreDamaged: The row is gone, or not what was written, or no save of ours would have written it.

        """
        entry = self._read(key, value, read_entry)
        self._check(key, entry.memory)
        for link in entry.links:
            if link.from_id != entry.memory.id or link.to_id == link.from_id:
                raise self.damaged(key, f"the link {link.id!r:.100} begins at another memory, or leads to its own")
            if not 0 <= link.confidence <= 1 or link.created_at.tzinfo is None:
                raise self.damaged(key, f"the link {link.id!r:.100} has a confidence or time that none can have")
        return entry

    def memory(self, key: str, value: bytes | Damaged | None) -> Memory:
        """
        Return the memory in a row, without reading its links.

        Raises:
            StoreDamaged: As `entry`.

        """
        memory = self._read(key, value, read_memory)
        self._check(key, memory)
        return memory

    def _check(self, key: str, memory: Memory) -> None:
        # A good seal says that a row is whole, not who wrote it. Only comparisons: a traversal reads a thousand rows.
        if memory.namespace != self.keys.namespace:
            raise self.damaged(key, "the memory is of another namespace")
        if memory.created_at.tzinfo is None or memory.updated_at.tzinfo is None:
            raise self.damaged(key, "a time of the memory has no time zone")
        metadata = memory.metadata
        if type(metadata) is DecisionMetadata:
            if not 0 <= metadata.confidence <= 1:
                raise self.damaged(key, "the decision's confidence is not from 0 to 1")
            if metadata.history and any(change.at.tzinfo is None for change in metadata.history):
                raise self.damaged(key, "a time of the decision has no time zone")
            if metadata.outcome_at is not None and metadata.outcome_at.tzinfo is None:
                raise self.damaged(key, "a time of the decision has no time zone")

    def _read(self, key: str, value: bytes | Damaged | None, read: Callable[[bytes], T]) -> T:
        if value is None:
            raise self.damaged(key, "the row is missing")
        if isinstance(value, Damaged):
            raise self.damaged(key, value.reason)
        try:
            return read(value)
        except (ValueError, RecursionError) as error:
            raise self.damaged(key, "it does not have the form of a memory") from error

    def damaged(self, key: str, reason: str) -> StoreDamaged:
        """Return the error for a row that is not what was written."""
        return StoreDamaged(
            f"a memory cannot be read: the row {key}: {reason}",
            file=self.directory,
            findings=(f"{key}: {reason}",),
            hint="check() lists all damage; rebuild() goes on without the damaged rows, or restore a backup",
        )

    def content(self, key: str, value: bytes | Damaged | None) -> str:
        """
        Return the kept text in a row.

        Raises:
            StoreDamaged: The row is gone, or not what was kept.

        """
        if value is None:
            raise self.lost(key, "the row is missing")
        if isinstance(value, Damaged):
            raise self.lost(key, value.reason)
        try:
            text = value.decode()
        except UnicodeDecodeError as error:
            raise self.lost(key, "it is not UTF-8") from error
        if digest_of(text) != key.removeprefix(self.contents):
            raise self.lost(key, "its text has another hash")
        return text

    def note(self, key: str, value: bytes | Damaged) -> str:
        """
        Return the note in a row.

        Raises:
            StoreDamaged: The row is not what was written.

        """
        try:
            return whole(value).decode()
        except ValueError as error:
            raise StoreDamaged(
                f"a note about the memories cannot be read: the row {key}: {error}",
                file=self.directory,
                findings=(f"{key}: {error}",),
                hint="check() lists all damage; restore a backup",
            ) from error

    def lost(self, key: str, reason: str) -> StoreDamaged:
        """Return the error for a kept text that is not what was kept."""
        return StoreDamaged(
            f"kept evidence cannot be read: the row {key}: {reason}",
            file=self.directory,
            findings=(f"{key}: {reason}",),
            hint="check() lists all damage; restore a backup, or save the memory again with its evidence",
        )


class JournalReader:
    """
    A `Reader` of the embedded engine.

    Args:
        rows: The journal at one moment.
        views: What is derived from it, brought up to that moment.
        place: Where the rows are.
        change: The number of the last change.
        touched: The nodes of recent changes.
        damaged: How many memories are left out, since their rows are damaged.

    """

    def __init__(
        self, rows: Snapshot, views: Views, place: Place, change: int, touched: Touched, *, damaged: int = 0
    ) -> None:
        self._rows = rows
        self._views = views
        self._place = place
        self._change = change
        self._touched = touched
        self._damaged = damaged

    @property
    def damaged(self) -> int:
        """How many memories are left out, since they are damaged."""
        return self._damaged

    @property
    def change(self) -> int:
        """The number of the last change."""
        return self._change

    def find(self, memory_id: str) -> int | None:
        """Return the node of a memory."""
        return self._views.catalogue.find(memory_id)

    def nearest_ids(self, text: str, limit: int) -> list[str]:
        """Return ids that look most like *text*."""
        return self._views.catalogue.nearest_ids(text, limit)

    def get(self, nodes: Sequence[int] | Nodes) -> list[Memory]:
        """Return memories, in the order of *nodes*."""
        return [self._place.memory(key, row) for key, row in self._stored(nodes)]

    def ids(self, nodes: Sequence[int] | Nodes) -> list[str]:
        """Return the ids of memories."""
        return self._views.catalogue.ids(nodes)

    def topics(self, nodes: Sequence[int] | Nodes) -> list[str | None]:
        """Return the topics of memories."""
        return self._views.catalogue.topics_of(nodes)

    def vectors(self, node: int) -> NDArray[np.float32]:
        """Return a memory's vectors."""
        return self._views.vectors.get(node)

    def pieces(self, nodes: Nodes) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return all vectors of *nodes*, and how many each has."""
        return self._views.vectors.pieces(nodes)

    def first_vectors(self, nodes: Nodes) -> NDArray[np.float32]:
        """Return the vector of each memory's first piece."""
        return self._views.vectors.first(nodes)

    def count(self, where: Filter | None = None) -> int:
        """Return how many memories there are."""
        return self._views.catalogue.count(where)

    def facts(self, nodes: Nodes) -> Facts:
        """Return what is known of *nodes* without their text."""
        return self._views.catalogue.facts(nodes)

    def nearest(self, vector: NDArray[np.float32], limit: int, where: Filter | None = None) -> Matches:
        """Return the nodes nearest to *vector*."""
        return self._views.vectors.nearest(vector, limit, self._views.catalogue.mask(where))

    def similarities(self, vector: NDArray[np.float32], nodes: Nodes) -> Scores:
        """Return the cosine of *vector* and each node's best piece."""
        return self._views.vectors.similarities(vector, nodes)

    def words(self, query: Query, limit: int, where: Filter | None = None) -> Matches:
        """Return the nodes that match the query's words best."""
        return self._views.words.search(terms_of(query), limit, self._views.catalogue.mask(where))

    def word_scores(self, query: Query, nodes: Nodes) -> Scores:
        """Return the BM25 score of the query for each of *nodes*."""
        return self._views.words.scores(terms_of(query), nodes)

    def rarity(self, query: Query) -> dict[str, float]:
        """Return the query's terms with how rare each is."""
        return self._views.words.rarity(terms_of(query))

    def terms(self, node: int) -> Collection[str]:
        """Return the terms of a memory's indexed text."""
        return self._views.words.terms(node)

    def links(
        self, nodes: Nodes, direction: Direction = "both", types: Collection[LinkType] | None = None
    ) -> LinkTable:
        """Return the links that begin, end or do either at *nodes*."""
        return self._views.links.links(nodes, direction, types)

    def read_links(self, node: int, direction: Direction = "both") -> list[Link]:
        """Return a memory's links with all that is known of them."""
        (memory_id,) = self.ids([node])
        found = list(self._entries([node])[0].links) if direction != "in" else []
        if direction != "out":
            sources = np.unique(self.links(np.array([node]), "in").sources)
            found += [
                link
                for entry in self._entries(sources[sources != node])
                for link in entry.links
                if link.to_id == memory_id
            ]
        return sorted(found, key=lambda link: (link.created_at, link.id))

    def find_link(self, link_id: str) -> Link | None:
        """Return a link."""
        for source, _target in self._views.links.find(link_id):
            for link in self._entries([source])[0].links:
                if link.id == link_id:
                    return link
        return None

    def window(self, where: Filter | None = None, *, newest_first: bool = True, limit: int | None = None) -> Nodes:
        """Return nodes in order of creation."""
        return self._views.catalogue.window(where, newest_first=newest_first, limit=limit)

    def relationships(self) -> dict[str, int]:
        """Return the words used for links, with how many links have each."""
        return self._views.links.relationships()

    def touched_since(self, change: int) -> frozenset[int] | None:
        """Return the nodes that changed after a change."""
        return self._touched.since(change)

    def scan(self, *, after: int = -1, limit: int | None = None) -> list[Scanned]:
        """Return memories in order of saving."""
        nodes = self._views.catalogue.after(after, limit)
        entries = self._entries(nodes)
        return [
            Scanned(int(node), entry.memory, self.vectors(int(node)), entry.links)
            for node, entry in zip(nodes, entries, strict=True)
        ]

    def content(self, digest: str) -> str | None:
        """
        Return a kept text.

        Raises:
            StoreDamaged: It is not what was kept.

        """
        key = f"{self._place.contents}{digest}"
        value = self._row(key)
        return None if value is None else self._place.content(key, value)

    def has_content(self, digest: str) -> bool:
        """Tell whether a text is kept."""
        return self._has(f"{self._place.contents}{digest}")

    def note(self, name: str) -> str | None:
        """
        Return the note of a name, None where there is none.

        Raises:
            StoreDamaged: It is not what was written.

        """
        key = f"{self._place.notes}{name}"
        value = self._row(key)
        return None if value is None else self._place.note(key, value)

    def notes(self, prefix: str = "") -> dict[str, str]:
        """
        Return the notes whose names begin with *prefix*.

        Raises:
            StoreDamaged: One of them is not what was written.

        """
        found = self._under(f"{self._place.notes}{prefix}")
        return {
            key.removeprefix(self._place.notes): self._place.note(key, value) for key, value in sorted(found.items())
        }

    def stats(self) -> Mapping[str, Any]:
        """Return what is worth knowing about the views."""
        return self._views.stats()

    def _entries(self, nodes: Sequence[int] | Nodes) -> list[Entry]:
        return [self._place.entry(key, row) for key, row in self._stored(nodes)]

    def _stored(self, nodes: Sequence[int] | Nodes) -> list[tuple[str, bytes | Damaged | None]]:
        """Return the key and row of each memory."""
        keys = [numbered(self._place.memories, number) for number in self._views.catalogue.numbers(nodes)]
        if len(keys) < _SINGLE:
            return [(key, self._row(key)) for key in keys]
        rows = self._many(keys)
        return [(key, rows.get(key)) for key in keys]

    def _row(self, key: str) -> bytes | Damaged | None:
        return self._rows.get(key)

    def _many(self, keys: Sequence[str]) -> dict[str, bytes | Damaged]:
        return self._rows.get_many(keys)

    def _under(self, prefix: str) -> dict[str, bytes | Damaged]:
        return dict(self._rows.items(prefix))

    def _has(self, key: str) -> bool:
        # Reads no value, which may be long.
        return key in self._rows.keys(key)


def terms_of(query: Query) -> Mapping[str, float]:
    """Return what a query looks for, with the weight of each term."""
    return query_terms(query) if isinstance(query, str) else query


def read_vectors(place: Place, key: str, value: bytes | Damaged | None) -> NDArray[np.float32]:
    """
    Return the vectors in a row.

    Raises:
        StoreDamaged: The row is gone, or not what was written.

    """
    if value is None:
        raise place.damaged(key, "the vectors are missing")
    if isinstance(value, Damaged):
        raise place.damaged(key, value.reason)
    try:
        vectors = vectors_from_bytes(value, place.embedder.dimensions)
    except ValueError as error:
        raise place.damaged(key, str(error)) from error
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    # So said that a NaN does not pass.
    if not np.abs(lengths - 1).max() <= _LENGTH:
        raise place.damaged(key, "its vectors are not of length 1")
    return vectors
