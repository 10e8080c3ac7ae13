"""Reading the journal's memories together with their views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import StoreDamaged
from mama_structs.memory.codec import Entry, read_entry, read_memory, vectors_from_bytes
from mama_structs.memory.contents import digest_of
from mama_structs.memory.embedded.keys import Keys, numbered, own_number, whole
from mama_structs.memory.embedded.touched import Touched
from mama_structs.memory.embedded.views import Views
from mama_structs.memory.engine import (
    Direction,
    EmbedderRecord,
    Filter,
    Matches,
    Nodes,
    Query,
    Scanned,
    Scores,
    Vectors,
)
from mama_structs.memory.model import DecisionMetadata, Link, Memory
from mama_structs.memory.text import query_terms
from mama_structs.storage import Damaged, Snapshot

T = TypeVar("T")

_SINGLE = 8
# How far a stored vector's length may be from 1, as in the vectors view.
_LENGTH = 1e-3


class Place:
    """Where a namespace's rows are."""

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
        """Return the entry in a row."""
        entry = self._read(key, value, read_entry)
        self._check(key, entry.memory)
        for link in entry.links:
            if link.from_id != entry.memory.id or link.to_id == link.from_id:
                raise self.damaged(key, f"the link {link.id!r:.100} begins at another memory, or leads to its own")
            if not 0 <= link.confidence <= 1 or link.created_at.tzinfo is None:
                raise self.damaged(key, f"the link {link.id!r:.100} has a confidence or time that none can have")
        return entry

    def memory(self, key: str, value: bytes | Damaged | None) -> Memory:
        """Return the memory in a row, without reading its links."""
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
        """Return the kept text in a row."""
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
        """Return the note in a row."""
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
    """A `Reader` of the embedded engine: the journal at one moment, and the views brought up to that moment."""

    def __init__(
        self, rows: Snapshot, views: Views, place: Place, change: int, touched: Touched, *, damaged: int = 0
    ) -> None:
        self._rows = rows
        self._views = views
        self._place = place
        self._change = change
        self._damaged = damaged
        self.find, self.find_many = views.catalogue.find, views.catalogue.find_many
        self.ids, self.topics, self.nearest_ids = (
            views.catalogue.ids,
            views.catalogue.topics_of,
            views.catalogue.nearest_ids,
        )
        self.count, self.facts, self.window = views.catalogue.count, views.catalogue.facts, views.catalogue.window
        self.vectors, self.pieces, self.first_vectors = views.vectors.get, views.vectors.pieces, views.vectors.first
        self.similarities = views.vectors.similarities
        self.links, self.relationships = views.links.links, views.links.relationships
        self.touched_since = touched.since

    @property
    def damaged(self) -> int:
        """How many memories are left out, since they are damaged."""
        return self._damaged

    @property
    def change(self) -> int:
        """The number of the last change."""
        return self._change

    def get(self, nodes: Sequence[int] | Nodes) -> list[Memory]:
        """Return memories, in the order of *nodes*."""
        return [self._place.memory(key, row) for key, row in self._stored(nodes)]

    def nearest(self, vector: Vectors, limit: int, where: Filter | None = None) -> Matches:
        """Return the nodes nearest to *vector*."""
        return self._views.vectors.nearest(vector, limit, self._views.catalogue.mask(where))

    def words(self, query: Query, limit: int, where: Filter | None = None) -> Matches:
        """Return the nodes that match the query's words best."""
        return self._views.words.search(terms_of(query), limit, self._views.catalogue.mask(where))

    def word_scores(self, query: Query, nodes: Nodes) -> Scores:
        """Return the BM25 score of the query for each of *nodes*."""
        return self._views.words.scores(terms_of(query), nodes)

    def rarity(self, query: Query) -> dict[str, float]:
        """Return the query's terms with how rare each is."""
        return self._views.words.rarity(terms_of(query))

    def links_of_many(self, nodes: Sequence[int] | Nodes, direction: Direction = "both") -> list[list[Link]]:
        """Return the links of each of *nodes* with all that is known of them."""
        wanted = np.asarray(nodes, np.int64)
        ends: dict[int, set[int]] = {node: set() for node in wanted.tolist()}
        if direction != "out":
            table = self.links(wanted, "in")
            for source, target in zip(table.sources.tolist(), table.targets.tolist(), strict=True):
                ends[target].add(source)
        read = set().union(*ends.values(), ends if direction != "in" else ())
        links = {node: entry.links for node, entry in zip(read, self._entries(list(read)), strict=True)}
        found = []
        for node, memory_id in zip(wanted.tolist(), self.ids(wanted), strict=True):
            own = list(links[node]) if direction != "in" else []
            own += [link for source in ends[node] for link in links[source] if link.to_id == memory_id]
            found.append(sorted(own, key=lambda link: (link.created_at, link.id)))
        return found

    def read_links(self, node: int, direction: Direction = "both") -> list[Link]:
        """Return a memory's links with all that is known of them."""
        return self.links_of_many([node], direction)[0]

    def find_links(self, link_ids: Sequence[str]) -> list[Link | None]:
        """Return links by their ids."""
        sources = sorted({source for link_id in link_ids for source, _ in self._views.links.find(link_id)})
        found = {link.id: link for entry in self._entries(sources) for link in entry.links}
        return [found.get(link_id) for link_id in link_ids]

    def scan(self, *, after: int = -1, limit: int | None = None) -> list[Scanned]:
        """Return memories in order of saving."""
        nodes = self._views.catalogue.after(after, limit)
        entries = self._entries(nodes)
        return [
            Scanned(int(node), entry.memory, self.vectors(int(node)), entry.links)
            for node, entry in zip(nodes, entries, strict=True)
        ]

    def contents(self, digests: Sequence[str]) -> dict[str, str]:
        """Return kept texts; one that is gone or damaged raises `StoreDamaged`."""
        keys = {digest: f"{self._place.contents}{digest}" for digest in digests}
        rows = self._many(list(keys.values()))
        return {digest: self._place.content(key, rows.get(key)) for digest, key in keys.items()}

    def known_contents(self, digests: Sequence[str]) -> set[str]:
        """Return the hashes under which a text is kept."""
        return {digest for digest in digests if (key := f"{self._place.contents}{digest}") in self._keys_under(key)}

    def note(self, name: str) -> str | None:
        """Return the note of a name; one that is damaged raises `StoreDamaged`."""
        key = f"{self._place.notes}{name}"
        value = self._row(key)
        return None if value is None else self._place.note(key, value)

    def notes(self, prefix: str = "") -> dict[str, str]:
        """Return the notes whose names begin with *prefix*; one that is damaged raises `StoreDamaged`."""
        found = self._under(f"{self._place.notes}{prefix}")
        return {
            key.removeprefix(self._place.notes): self._place.note(key, value) for key, value in sorted(found.items())
        }

    def without_vectors(self, embedder: EmbedderRecord) -> list[str]:
        """Return the ids of memories that have no vectors of an embedder."""
        prefix, catalogue = self._place.keys.vectors(embedder), self._views.catalogue
        having = {own_number(prefix, key) for key in self._keys_under(prefix)}
        nodes = catalogue.after(-1)
        numbers = catalogue.numbers(nodes)
        return catalogue.ids([node for node, number in zip(nodes, numbers, strict=True) if number not in having])

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

    def _keys_under(self, prefix: str) -> set[str]:
        # Reads no value, which may be long.
        return set(self._rows.keys(prefix))


def terms_of(query: Query) -> Mapping[str, float]:
    """Return what a query looks for, with the weight of each term."""
    return query_terms(query) if isinstance(query, str) else query


def read_vectors(place: Place, key: str, value: bytes | Damaged | None) -> NDArray[np.float32]:
    """Return the vectors in a row."""
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
