"""Reader and writer of the local engine. Both work on journal rows and on the views derived from these rows."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import attrs
import numpy as np

from mama_structs.errors import StoreDamaged
from mama_structs.memory.engines.local.erasure import erasure_marker_key
from mama_structs.memory.engines.local.journal_rows import (
    NAMESPACE_FORMAT,
    SPLIT_HISTORY_FORMAT,
    SPLIT_HISTORY_MARK,
    ChangeRow,
    CleanupRow,
    RowKeys,
    encode_row,
    find_numbers,
    number_key,
)
from mama_structs.memory.engines.local.text_repair import FindRepairs
from mama_structs.memory.engines.local.views.view_set import ViewSet
from mama_structs.memory.types.codec import (
    Entry,
    SplitRecordMetadata,
    check_vectors,
    content_digests,
    encode_entry,
    join_histories,
    split_history,
    vectors_to_bytes,
)
from mama_structs.memory.types.engine import (
    Direction,
    EmbedderRecord,
    EngineFilter,
    Matches,
    NewMemory,
    Nodes,
    Prefetch,
    Query,
    ScannedMemory,
    Scores,
    Vectors,
    filter_names,
    select_names,
    write_until_due,
)
from mama_structs.memory.types.model import Link, Memory
from mama_structs.memory.types.text_analysis import resolve_terms
from mama_structs.storage.sealed_rows import DamagedValue, RowChange, Rows, Snapshot

T = TypeVar("T")

# If more memories than this link to a deleted memory, the links are removed later, in several parts.
MAX_IMMEDIATE_CLEANUPS: Final = 100
CLEANUP_PART_SOURCES: Final = 256


class JournalReader:
    """`Reader` of the local engine. Journal and views are at the same change number."""

    def __init__(self, rows: Snapshot, views: ViewSet, place: RowKeys, change: int, *, damaged: int = 0) -> None:
        self._rows = rows
        self._views = views
        self._row_keys = place
        self._change = change
        self._damaged = damaged
        self._dead: frozenset[str] | None = None
        self.find: Final = views.memory_table.find
        self.find_many: Final = views.memory_table.find_many
        self.ids: Final = views.memory_table.ids
        self.topics: Final = views.memory_table.topics
        self.duplicates: Final = views.memory_table.duplicates
        self.nearest_ids: Final = views.memory_table.nearest_ids
        self.record_paths: Final = views.memory_table.record_paths
        self.count: Final = views.memory_table.count
        self.facts: Final = views.memory_table.facts
        self.window: Final = views.memory_table.window
        self.find_temporal_neighbours: Final = views.memory_table.temporal_neighbours
        self.vectors: Final = views.vectors.get
        self.pieces: Final = views.vectors.pieces
        self.similarities: Final = views.vectors.similarities
        self.sample: Final = views.vectors.sample
        self.links: Final = views.links.links
        self.lengths: Final = views.words.lengths
        self.relationships: Final = views.links.relationships

    @property
    def damaged(self) -> int:
        """Number of memories that readers do not see because they are damaged."""
        return self._damaged

    @property
    def change(self) -> int:
        """The number of the last change."""
        return self._change

    def expect(self, ask: Callable[[Prefetch], object], *, around: int | None = 0) -> None:
        """Do nothing, because a local reader does not fetch data in advance."""

    def get(self, nodes: Sequence[int] | Nodes) -> list[Memory]:
        """Return memories in the order of *nodes*."""
        return join_histories(self.get_stored(nodes), self.contents)

    def get_stored(self, nodes: Sequence[int] | Nodes) -> list[Memory]:
        """Return memories without the former versions that `split_history` removed."""
        return [self._row_keys.memory(key, row) for key, row in self._read_rows(nodes)]

    def filter_stored(self, nodes: list[int], is_wanted: Callable[[bytes], bool]) -> list[int]:
        """Return the nodes whose rows are wanted, are damaged, or refer to other rows with the history of a record."""
        return [
            node
            for node, (_, row) in zip(nodes, self._read_rows(nodes), strict=True)
            if not isinstance(row, bytes) or is_wanted(row) or SPLIT_HISTORY_MARK in row
        ]

    def nearest(self, vector: Vectors, limit: int, where: EngineFilter | None = None) -> Matches:
        """Return the nodes whose vectors are nearest to *vector*."""
        self._record_queries(vector[None])
        return self._views.vectors.nearest(vector, limit, self._views.memory_table.mask(where))

    def nearest_many(self, vectors: Vectors, limit: int, where: EngineFilter | None = None) -> list[Matches]:
        """Return the results of `nearest` for each row of *vectors*."""
        self._record_queries(vectors)
        return self._views.vectors.nearest_many(vectors, limit, self._views.memory_table.mask(where))

    def _record_queries(self, vectors: Vectors) -> None:
        self._views.vectors.record_queries(vectors)

    def words(self, query: Query, limit: int, where: EngineFilter | None = None) -> Matches:
        """Return the nodes with the highest BM25 scores for the query."""
        return self._views.words.search(resolve_terms(query), limit, self._views.memory_table.mask(where))

    def word_scores(self, query: Query, nodes: Nodes) -> Scores:
        """Return the BM25 score of the query for each of *nodes*."""
        return self._views.words.scores(resolve_terms(query), nodes)

    def words_many(self, queries: Sequence[Query], limit: int) -> list[Matches]:
        """Return the results of `words` for each query."""
        return self._views.words.search_many([resolve_terms(query) for query in queries], limit)

    def word_scores_many(self, queries: Sequence[Query], nodes: Sequence[Nodes]) -> list[Scores]:
        """Return the results of `word_scores` for each query and its nodes."""
        return self._views.words.scores_many([resolve_terms(query) for query in queries], nodes)

    def rarity(self, query: Query) -> dict[str, float]:
        """Return the inverse document frequency of each query term."""
        return self._views.words.rarity(resolve_terms(query))

    def links_of_many(self, nodes: Sequence[int] | Nodes, direction: Direction = "both") -> list[list[Link]]:
        """Return the links of each of *nodes* as `Link` objects."""
        wanted = np.asarray(nodes, np.int64)
        ends: dict[int, set[int]] = {node: set() for node in wanted.tolist()}
        if direction != "out":
            table = self.links(wanted, "in")
            for source, target in zip(table.sources.tolist(), table.targets.tolist(), strict=True):
                ends[target].add(source)
        read = set().union(*ends.values(), ends if direction != "in" else ())
        links = {node: entry.links for node, entry in zip(read, self._read_entries(list(read)), strict=True)}
        found = []
        for node, memory_id in zip(wanted.tolist(), self.ids(wanted), strict=True):
            own = list(links[node]) if direction != "in" else []
            own += [link for source in ends[node] for link in links[source] if link.to_id == memory_id]
            found.append(sorted(own, key=lambda link: (link.created_at, link.id)))
        return found

    def read_links(self, node: int, direction: Direction = "both") -> list[Link]:
        """Return the links of a memory in the given direction as `Link` objects."""
        return self.links_of_many([node], direction)[0]

    def find_links(self, link_ids: Sequence[str]) -> list[Link | None]:
        """Return links by id as `Link` objects, or None for ids that do not exist."""
        sources = sorted({source for link_id in link_ids for source, _ in self._views.links.find(link_id)})
        found = {link.id: link for entry in self._read_entries(sources) for link in entry.links}
        return [found.get(link_id) for link_id in link_ids]

    def scan(self, *, after: int = -1, limit: int | None = None) -> list[ScannedMemory]:
        """Return memories in save order."""
        nodes = self._views.memory_table.after(after, limit)
        entries = self._read_entries(nodes)
        memories = join_histories([entry.memory for entry in entries], self.contents)
        return [
            ScannedMemory(int(node), memory, self.vectors(int(node)), entry.links)
            for node, memory, entry in zip(nodes, memories, entries, strict=True)
        ]

    def contents(self, digests: Sequence[str]) -> dict[str, str]:
        """
        Return evidence texts by hash.

        Raise `StoreDamaged` if one is missing or damaged.
        """
        keys = {digest: f"{self._row_keys.contents}{digest}" for digest in digests}
        rows = self._rows.get_many(list(keys.values()))
        return {digest: self._row_keys.content(key, rows.get(key)) for digest, key in keys.items()}

    def known_contents(self, digests: Sequence[str]) -> set[str]:
        """Return the hashes among *digests* whose evidence texts are stored."""
        keys = {digest: f"{self._row_keys.contents}{digest}" for digest in digests}
        # Read keys instead of values, because values may be long.
        return {digest for digest, key in keys.items() if key in self._rows.keys(key)}

    def users_of_content(self, digest: str) -> Nodes:
        """Return the memories whose evidence refers to the text with this hash."""
        found = map(self._views.memory_table.node_of, find_numbers(self._rows, self._row_keys.uses_prefix(digest)))
        return np.array([node for node in found if node is not None], np.int64)

    def notes(self, prefix: str = "") -> dict[str, str]:
        """
        Return the notes whose names start with *prefix*.

        Raise `StoreDamaged` if one is damaged.
        """
        found = self._rows.items(f"{self._row_keys.notes}{prefix}")
        return {key.removeprefix(self._row_keys.notes): self._row_keys.note(key, value) for key, value in found}

    def note_names(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, last_first: bool = False
    ) -> list[str]:
        """Return the names of the notes that start with *prefix*."""
        begin = self._row_keys.notes
        if limit is None:
            return select_names(
                (key.removeprefix(begin) for key in self._rows.keys(f"{begin}{prefix}")), after, limit, last_first
            )
        bound = None if after is None else f"{begin}{after}"
        found = self._rows.page_of_keys(f"{begin}{prefix}", after=bound, limit=limit, last_first=last_first)
        return [key.removeprefix(begin) for key in found]

    def notes_by_name(self, names: Sequence[str]) -> dict[str, str]:
        """Return the existing notes with these names. Raise `StoreDamaged` if one is damaged."""
        keys = {name: f"{self._row_keys.notes}{name}" for name in names}
        rows = self._rows.get_many(list(keys.values()))
        return {name: self._row_keys.note(key, rows[key]) for name, key in keys.items() if key in rows}

    def without_vectors(self, embedder: EmbedderRecord) -> list[str]:
        """Return the ids of memories without vectors of *embedder*."""
        prefix, catalogue = self._row_keys.vectors_prefix(embedder), self._views.memory_table
        having = set(find_numbers(self._rows, prefix))
        nodes = catalogue.after(-1)
        numbers = catalogue.numbers(nodes)
        return catalogue.ids([node for node, number in zip(nodes, numbers, strict=True) if number not in having])

    def _read_entries(self, nodes: Sequence[int] | Nodes) -> list[Entry]:
        entries = [self._row_keys.entry(key, row) for key, row in self._read_rows(nodes)]
        dead = self._dead_ids()
        return [_without_links(entry, dead) for entry in entries] if dead else entries

    def _dead_ids(self) -> frozenset[str]:
        """
        Return the ids of deleted memories to which rows may still contain links.

        Readers do not return these links.
        """
        if self._dead is None:
            ids = (dead.id for _, dead in self._row_keys.read_cleanups(self._rows))
            self._dead = frozenset(one for one in ids if self.find(one) is None)
        return self._dead

    def _read_rows(self, nodes: Sequence[int] | Nodes) -> list[tuple[str, bytes | DamagedValue | None]]:
        keys = [number_key(self._row_keys.memories, number) for number in self._views.memory_table.numbers(nodes)]
        rows = self._rows.get_many(keys)
        return [(key, rows.get(key)) for key in keys]


class JournalWriter(JournalReader):
    """`Writer` of the local engine, for one plan."""

    def __init__(
        self,
        rows: Rows,
        views: ViewSet,
        place: RowKeys,
        change: int,
        *,
        damaged: int = 0,
        is_due: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(rows, views, place, change, damaged=damaged)
        self._is_due = is_due
        self.needs_cleanup: bool = False
        # The format that the head row needs after this plan.
        self.format: int = NAMESPACE_FORMAT
        self._rows_to_write = rows
        self._undo: list[Callable[[], object]] = []
        self._plan_change_number: int | None = None
        self._changed: set[int] = set()
        self._deleted: list[int] = []
        self._erases = False
        # False while a view is being changed, because an error then leaves the view half changed.
        self._is_consistent = True

    def _record_queries(self, vectors: Vectors) -> None:
        """Do nothing. A write searches for memories to link, with vectors that do not resemble questions."""

    @property
    def should_yield(self) -> bool:
        """True if the plan should end soon, because other plans or processes are waiting."""
        return self._is_due()

    def put(
        self,
        memory: Memory,
        *,
        vectors: Vectors | None = None,
        links: Sequence[Link] = (),
        contents: Mapping[str, str] | None = None,
    ) -> int:
        """Store a new memory, or a new version of a memory, and return its node."""
        for link in links:
            self._check_link(link, memory.id)
        if vectors is not None:
            check_vectors(vectors, self._row_keys.embedder.dimensions)
        node = self.find(memory.id)
        if node is None:
            if vectors is None:
                raise ValueError("a new memory needs vectors")
            new = NewMemory(memory=memory, vectors=vectors, links=links, contents=contents or {})
            node = int(self.put_new([new], lambda _nodes: [()])[0])
        else:
            (before,) = self._read_entries([node])
            memory, former = self._split_history(memory, before.memory)
            texts = {**(contents or {}), **former}
            self._check_contents(before.memory, memory, texts)
            self._put_version(node, before, memory, vectors, links)
            self._update_contents(node, before.memory, memory, texts)
        return node

    def put_new(self, new: Sequence[NewMemory], links_of: Callable[[Nodes], Sequence[Sequence[Link]]]) -> Nodes:
        """Store new memories in the given order, and return their nodes in this order."""
        numbers, nodes = [], []
        split = [self._split_history(one.memory) for one in new]
        for one, (memory, former) in zip(new, split, strict=True):
            if self.find(memory.id) is not None:
                raise ValueError(f"there is a memory with the id {memory.id}")
            for link in one.links:
                self._check_link(link, memory.id)
            check_vectors(one.vectors, self._row_keys.embedder.dimensions)
            self._check_contents(None, memory, {**one.contents, **former})
            self._clean_up_after(memory.id)
            numbers.append(self._next_change())
            self._is_consistent = False
            node = self._views.add(numbers[-1], Entry(memory, (), numbers[-1]), one.vectors)
            self._undo.append(partial(self._views.remove, node))
            self._views.link(node, one.links)
            self._is_consistent = True
            nodes.append(node)
        found = np.array(nodes, np.int64)
        for one, (memory, former), number, node, more in zip(new, split, numbers, nodes, links_of(found), strict=True):
            for link in more:
                self._check_link(link, memory.id)
            entry = Entry(memory, (*one.links, *more), number)
            self._rows_to_write.put(number_key(self._row_keys.memories, number), encode_entry(entry))
            self._rows_to_write.put(number_key(self._row_keys.vectors, number), vectors_to_bytes(one.vectors))
            self._is_consistent = False
            self._views.link(node, more)
            self._is_consistent = True
            self._update_contents(node, None, memory, {**one.contents, **former})
        return found

    def put_link(self, link: Link) -> None:
        """Store a link. It replaces a link with the same id."""
        self._check_link(link, link.from_id)
        source = self._require_node(link.from_id)
        (before,) = self._read_entries([source])
        self._put_version(source, before, before.memory, None, [link])

    def delete(self, memory_id: str) -> int:
        """Delete a memory and all its links, and return the number of links."""
        node = self._require_node(memory_id)
        (entry,) = self._read_entries([node])
        incoming = self.links(np.array([node]), "in").sources
        sources = np.unique(incoming).tolist()
        vectors = self.vectors(node)
        number = self._views.memory_table.number_of(node)
        self._update_contents(node, entry.memory, None, {})
        self._is_consistent = False
        links = self._views.remove(node)
        self._undo.append(lambda: self._views.restore(node, number, entry, vectors, links))
        self._is_consistent = True
        self._rows_to_write.delete(number_key(self._row_keys.memories, number))
        self._rows_to_write.delete(number_key(self._row_keys.vectors, number))
        self._plan_change()
        self._changed.discard(number)
        self._deleted.append(number)
        self._clean_up_or_defer(number, CleanupRow(id=memory_id, sources=self._views.memory_table.numbers(sources)))
        return len(entry.links) + len(incoming)

    def delete_links(self, link_ids: Collection[str]) -> int:
        """Delete links by id, and return how many existed."""
        found = [link for link in self.find_links(list(dict.fromkeys(link_ids))) if link is not None]
        self._drop_links(found)
        return len(found)

    def clean_up(self) -> bool:
        """
        Remove some links to deleted memories from the rows.

        Return False if there are none.
        """
        key, dead = next(self._row_keys.read_cleanups(self._rows), (None, None))
        if key is None or dead is None:
            return False
        # If the memory exists, an older version of this package restored it, so the links are valid again.
        left = dead.sources if self.find(dead.id) is None else []
        done = len(write_until_due(self, left, lambda _writer, number: self._remove_links_to(number, dead.id)))
        self._rows_to_write.delete(key)
        if left[done:]:
            self._rows_to_write.put(key, encode_row(CleanupRow(id=dead.id, sources=left[done:])))
        return True

    def mark_for_erasure(self) -> None:
        """Mark the data that this plan deletes or replaces, so that `Engine.erase` removes the data from disk."""
        key, change = erasure_marker_key(self._row_keys.namespace), self._plan_change()
        self._erases = self._views.has_erased_data = True
        self._rows_to_write.put(key, encode_row(change))

    def repair(self, find: FindRepairs, keys: Sequence[str]) -> None:
        """Repair the rows under *keys*. Deleted texts count as erased, because a deletion should have erased them."""
        changes = find(self._rows, self._row_keys, keys)
        self._rows_to_write.apply_changes(changes)
        if None in changes.values():
            self.mark_for_erasure()

    def set_note(self, name: str, text: str | None) -> None:
        """Store a note, or delete it if *text* is None."""
        self.set_notes({name: text})

    def set_notes(self, notes: Mapping[str, str | None]) -> None:
        """Store notes. A text of None deletes the note."""
        rows: dict[str, RowChange] = {
            f"{self._row_keys.notes}{name}": None if text is None else text.encode() for name, text in notes.items()
        }
        self._rows_to_write.apply_changes(rows)

    def put_vectors(self, embedder: EmbedderRecord, vectors: Mapping[str, Vectors]) -> None:
        """Store vectors of an embedder that is not the current one."""
        prefix = self._row_keys.vectors_prefix(embedder)
        for memory_id, found in vectors.items():
            node = self.find(memory_id)
            if node is not None:
                number = self._views.memory_table.number_of(node)
                self._rows_to_write.put(number_key(prefix, number), vectors_to_bytes(found))

    def finish(self) -> int:
        """Write the change row, and return the number of the last change."""
        if self._plan_change_number is not None:
            if self._change in self._deleted:
                # The row of the last number was deleted. Take a new number, or readers would see the journal go back.
                self._plan_change_number = self._next_change()
            change = ChangeRow(
                salt=secrets.token_hex(8), changed=sorted(self._changed), deleted=self._deleted, erased=self._erases
            )
            self._rows_to_write.put(number_key(self._row_keys.changes, self._plan_change_number), encode_row(change))
        return self._change

    def undo(self) -> None:
        """Undo the changes of this plan in the views."""
        if not self._is_consistent:
            raise RuntimeError("a view was left half changed")
        for step in reversed(self._undo):
            step()
        self._undo.clear()

    def _split_history(self, memory: Memory, before: Memory | None = None) -> tuple[Memory, dict[str, str]]:
        memory, former = split_history(memory, before)
        if isinstance(memory.metadata, SplitRecordMetadata):
            self.format = SPLIT_HISTORY_FORMAT
        return memory, former

    def _put_version(
        self, node: int, before: Entry, memory: Memory, vectors: Vectors | None, links: Sequence[Link]
    ) -> None:
        replaced = {link.id for link in links}
        kept = tuple(link for link in before.links if link.id not in replaced)
        after = Entry(memory, (*kept, *links), self._plan_change())
        self._rewrite(node, before, after, vectors)

    def _rewrite(self, node: int, before: Entry, after: Entry, vectors: Vectors | None) -> None:
        number = self._views.memory_table.number_of(node)
        self._rows_to_write.put(number_key(self._row_keys.memories, number), encode_entry(after))
        old_vectors = None
        if vectors is not None:
            old_vectors = self.vectors(node)
            self._rows_to_write.put(number_key(self._row_keys.vectors, number), vectors_to_bytes(vectors))
        self._changed.add(number)
        self._is_consistent = False
        self._update_views(node, before, after, vectors)
        self._undo.append(lambda: self._update_views(node, after, before, old_vectors))
        self._is_consistent = True

    def _update_views(self, node: int, before: Entry, after: Entry, vectors: Vectors | None) -> None:
        """Replace a memory in the views with a new version."""
        if before.memory != after.memory or vectors is not None:
            self._views.change(node, after, vectors)
        else:
            self._views.memory_table.change(
                node, version=after.version, topic=after.memory.topic, mentions=filter_names(after.memory)
            )
        old, now = ({link.id: link for link in one.links} for one in (before, after))
        gone = [link for link in before.links if now.get(link.id) != link]
        new = [link for link in after.links if old.get(link.id) != link]
        self._views.unlink(node, gone)
        self._views.link(node, new)

    def _drop_links(self, links: Sequence[Link]) -> None:
        by_source: dict[str, set[str]] = {}
        for link in links:
            by_source.setdefault(link.from_id, set()).add(link.id)
        for memory_id, link_ids in by_source.items():
            node = self._require_node(memory_id)
            (before,) = self._read_entries([node])
            kept = tuple(link for link in before.links if link.id not in link_ids)
            self._rewrite(node, before, attrs.evolve(before, links=kept, version=self._plan_change()), None)

    def _clean_up_or_defer(self, number: int, dead: CleanupRow) -> None:
        """Remove the links to a deleted memory from the rows. If there are many, defer the removal."""
        # Do not change the version of the linking rows, because the views already omit the links.
        self._dead = None
        if len(dead.sources) <= MAX_IMMEDIATE_CLEANUPS:
            for source in dead.sources:
                self._remove_links_to(source, dead.id)
            return
        self.needs_cleanup = True
        for start in range(0, len(dead.sources), CLEANUP_PART_SOURCES):
            part = CleanupRow(id=dead.id, sources=dead.sources[start : start + CLEANUP_PART_SOURCES])
            self._rows_to_write.put(
                number_key(self._row_keys.cleanup_prefix(number), start // CLEANUP_PART_SOURCES), encode_row(part)
            )

    def _remove_links_to(self, number: int, memory_id: str) -> None:
        key = number_key(self._row_keys.memories, number)
        value = self._rows.get(key)
        if value is not None:
            # Skip damaged rows. check() and readers report them.
            with contextlib.suppress(StoreDamaged):
                before = self._row_keys.entry(key, value)
                after = _without_links(before, {memory_id})
                if after is not before:
                    self._rows_to_write.put(key, encode_entry(after))

    def _clean_up_after(self, memory_id: str) -> None:
        """Remove all links to a deleted memory, because a new memory is about to use its id."""
        if memory_id in self._dead_ids():
            for key, dead in list(self._row_keys.read_cleanups(self._rows)):
                if dead.id == memory_id:
                    for number in dead.sources:
                        self._remove_links_to(number, memory_id)
                    self._rows_to_write.delete(key)
            self._dead = None

    def _update_contents(
        self, node: int, before: Memory | None, after: Memory | None, contents: Mapping[str, str]
    ) -> None:
        """Store the texts to which a memory refers, and delete texts that no memory uses any more."""
        number = self._views.memory_table.number_of(node)
        named, kept = (() if one is None else content_digests(one) for one in (before, after))
        for digest in kept:
            if digest in contents:
                key, value = f"{self._row_keys.contents}{digest}", contents[digest].encode()
                # Compare with the stored value, so that a damaged text is repaired.
                if self._rows.get(key) != value:
                    self._rows_to_write.put(key, value)
            if digest not in named:
                self._rows_to_write.put(number_key(self._row_keys.uses_prefix(digest), number), b"")
        for digest in named:
            if digest not in kept:
                self._rows_to_write.delete(number_key(self._row_keys.uses_prefix(digest), number))
                if self._rows.last_key(self._row_keys.uses_prefix(digest)) is None:
                    self._rows_to_write.delete(f"{self._row_keys.contents}{digest}")

    def _check_contents(self, before: Memory | None, memory: Memory, contents: Mapping[str, str]) -> None:
        named = () if before is None else content_digests(before)
        for digest in content_digests(memory):
            # Accept a lost text that the memory already refers to. Otherwise the memory could no longer be changed.
            if digest not in named and digest not in contents and not self.known_contents([digest]):
                raise KeyError(digest)

    def _next_change(self) -> int:
        self._change += 1
        return self._change

    def _plan_change(self) -> int:
        if self._plan_change_number is None:
            self._plan_change_number = self._next_change()
        return self._plan_change_number

    def _check_link(self, link: Link, source: str) -> None:
        if link.from_id != source:
            raise ValueError(f"the link {link.id} begins at another memory")
        if link.to_id != source:
            self._require_node(link.to_id)
        else:
            raise ValueError(f"the link {link.id} leads to the memory where it begins")

    def _require_node(self, memory_id: str) -> int:
        node = self.find(memory_id)
        if node is None:
            raise KeyError(memory_id)
        return node


def _without_links(entry: Entry, dead: Collection[str]) -> Entry:
    """
    Return an entry without its links to deleted memories.

    An entry without such links is returned unchanged.
    """
    links = tuple(link for link in entry.links if link.to_id not in dead)
    return entry if len(links) == len(entry.links) else attrs.evolve(entry, links=links)
