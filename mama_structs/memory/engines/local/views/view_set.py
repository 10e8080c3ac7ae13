"""The four views of a namespace, and how they are loaded from a snapshot or from the journal."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import StoreDamaged
from mama_structs.memory.engines.local.journal_rows import (
    RowKeys,
    number_key,
    parse_number,
    read_change,
    require_intact,
)
from mama_structs.memory.engines.local.views.adjacency import Adjacency
from mama_structs.memory.engines.local.views.memory_table import MemoryRow, MemoryTable
from mama_structs.memory.engines.local.views.snapshots import Generation, SnapshotPart, SnapshotStore
from mama_structs.memory.engines.local.views.vector_index import VectorIndex
from mama_structs.memory.engines.local.views.word_index import WordIndex
from mama_structs.memory.types.codec import Entry, indexed_terms, mutable_columns
from mama_structs.memory.types.engine import FILTER_NAMES_VERSION, EngineFilter, filter_names
from mama_structs.memory.types.model import Link, Memory, MemoryType
from mama_structs.memory.types.text_analysis import ANALYSIS_VERSION
from mama_structs.storage.sealed_rows import DamagedValue, Snapshot

Vectors = NDArray[np.float32]

_TYPES: Final = tuple(MemoryType)


class ViewSet:
    """The views derived from the journal: memory table, word index, vector index and links."""

    def __init__(self, dimensions: int, *, exact_up_to: int) -> None:
        self.memory_table: MemoryTable = MemoryTable()
        self.words: WordIndex = WordIndex()
        self.vectors: VectorIndex = VectorIndex(dimensions, exact_up_to=exact_up_to)
        self.links: Adjacency = Adjacency()
        self._counts: Counter[str] = Counter()
        # True if the indexes contain erased data, which must be dropped before a snapshot is written.
        self.has_erased_data: bool = False
        # Nodes whose words are not indexed yet. Background slices index them.
        self.unindexed_nodes: dict[int, None] = {}

    def add(self, number: int, entry: Entry, vectors: Vectors, *, words: bool = True) -> int:
        """Add a memory without its links, and return its node."""
        memory = entry.memory
        node = self.memory_table.add(MemoryRow.from_entry(number, entry))
        self._counts[memory.type.value] += 1
        self.vectors.add(node, vectors)
        if words:
            self.words.add(node, indexed_terms(memory))
        else:
            self.unindexed_nodes[node] = None
        return node

    def change(self, node: int, entry: Entry, vectors: Vectors | None) -> None:
        """Replace a memory with a new version, without changing its links."""
        memory = entry.memory
        self.memory_table.change(
            node,
            version=entry.version,
            topic=memory.topic,
            mentions=filter_names(memory),
            **mutable_columns(memory),
        )
        if vectors is not None:
            self.vectors.remove(node)
            self.vectors.add(node, vectors)
        if node not in self.unindexed_nodes:
            self.words.add(node, indexed_terms(memory))

    def remove(self, node: int) -> dict[str, NDArray[Any]]:
        """Remove a memory and all its links. Return the links, as input for `restore`."""
        links = self.links.get_node_links(node)
        facts = self.memory_table.facts(np.array([node]))
        self._counts[_TYPES[int(facts.types[0])].value] -= 1
        self.links.remove_node(node)
        self.vectors.remove(node)
        if self.unindexed_nodes.pop(node, 0) == 0:
            self.words.remove(node)
        self.memory_table.remove(node)
        return links

    def restore(
        self, node: int, number: int, entry: Entry, vectors: Vectors, links: Mapping[str, NDArray[Any]]
    ) -> None:
        """Undo the removal of a memory."""
        memory = entry.memory
        self.memory_table.restore(node, MemoryRow.from_entry(number, entry))
        self._counts[memory.type.value] += 1
        self.vectors.add(node, vectors)
        self.words.add(node, indexed_terms(memory))
        self.links.restore_links(links)

    def link(self, source: int, links: Iterable[Link]) -> None:
        """Add links from a node, except those whose target does not exist."""
        for link in links:
            target = self.memory_table.find(link.to_id)
            if target is not None:
                self.links.add(source, target, link)

    def relink(self, source: int, links: Iterable[Link]) -> None:
        """Replace all links from a node."""
        self.links.remove_outgoing(source)
        self.link(source, links)

    def has_vectors(self, node: int, vectors: Vectors) -> bool:
        """Return True if the node has exactly these vectors."""
        return np.array_equal(self.vectors.get(node), vectors)

    def unlink(self, source: int, links: Iterable[Link]) -> None:
        """
        Remove links from a node.

        Targets are compared too, because different link ids may have the same hash.
        """
        for link in links:
            target = self.memory_table.find(link.to_id)
            if target is not None:
                self.links.remove(link.id, source=source, target=target)

    def index(self, node: int, memory: Memory) -> None:
        """Index the words of a memory, if their indexing was deferred."""
        if self.unindexed_nodes.pop(node, 0) is None:
            self.words.add(node, indexed_terms(memory))

    def drop_erased_data(self) -> None:
        """Drop erased data from the word index and the vector index."""
        if self.has_erased_data:
            self.words.drop_erased_data()
            self.vectors.drop_erased_data()
            self.has_erased_data = False

    def count(self) -> None:
        """Recount the memories of each type after the memory table was loaded."""
        self._counts = Counter(
            {kind.value: self.memory_table.count(EngineFilter(types=frozenset({kind}))) for kind in MemoryType}
        )

    def stats(self) -> dict[str, Any]:
        """Return statistics about the views. May be called from any thread, unlike all other methods."""
        return {
            "memories": sum(self._counts.values()),
            "types": {kind.value: self._counts[kind.value] for kind in MemoryType},
            "links": len(self.links),
            "vectors": self.vectors.stats(),
            "words_to_index": len(self.unindexed_nodes),
        }


# Number of rows to read per page.
PAGE_ROWS: Final = 1000
# When views are loaded, words of up to this many memories are indexed immediately, in some tenths of a second.
MAX_MEMORIES_INDEXED_AT_LOAD: Final = 2000
# If other processes added more memories than this, their words are indexed in background slices.
MAX_MEMORIES_INDEXED_AT_REPLAY: Final = 500
# If both the number and the ratio of deleted nodes exceed these limits, the views are built again without them.
MIN_HOLES_TO_REBUILD: Final = 1000
MIN_HOLE_RATIO_TO_REBUILD: Final = 1 / 3

INVALID_VIEW_ERRORS: Final = (ValueError, KeyError, TypeError, IndexError, AttributeError)
"""Exceptions raised when a change is applied to views that do not match the journal or one another."""

_log: Final = logging.getLogger("mama_structs")


@attrs.define(eq=False)
class LoadedViews:
    """Views, the number of the last change that they contain, and the damaged rows that they omit."""

    views: ViewSet
    change: int = 0
    snapshot_at: int = 0
    damaged: dict[str, str] = attrs.field(factory=dict)


def load_views(
    rows: Snapshot, row_keys: RowKeys, snapshots: SnapshotStore | None, *, last: int, exact_up_to: int
) -> LoadedViews:
    """Load the views from a snapshot, or else build them from the journal up to its last change."""
    generation = None if snapshots is None else snapshots.load(max_change=last)
    if generation is not None:
        if generation.damaged:
            _log.warning("rebuilt because their files are damaged: %s", ", ".join(generation.damaged))
        loaded = _load_snapshot(rows, row_keys, generation, exact_up_to)
        if loaded is not None:
            return loaded
    derivation = ViewBuilder(row_keys, last, exact_up_to=exact_up_to, words=last <= MAX_MEMORIES_INDEXED_AT_LOAD)
    while derivation.step(rows, PAGE_ROWS):
        pass
    return derivation.loaded


class ViewBuilder:
    """
    Builds views from the journal page by page, up to the change number *last*.

    Pages may be read at different times, so `apply_changes` with *force_update* must bring all rows up to date
    afterwards.
    """

    def __init__(self, place: RowKeys, last: int, *, exact_up_to: int, words: bool = True) -> None:
        self.loaded: LoadedViews = LoadedViews(ViewSet(place.embedder.dimensions, exact_up_to=exact_up_to), last)
        self._row_keys = place
        self._words = words
        self._after = ""
        self._deferred: list[tuple[int, Link]] = []

    def step(self, rows: Snapshot, size: int) -> bool:
        """Add the next page of rows. Return True if there may be more."""
        views, place = self.loaded.views, self._row_keys
        page = rows.items(place.memories, after=self._after, limit=size)
        # Leave newer rows to `apply_changes`, because they may reuse ids of memories that were deleted in the meantime.
        known = [row for row in page if (parse_number(place.memories, row[0]) or 0) <= self.loaded.change]
        for number, entry, vectors in read_entries(rows, place, known, views.memory_table.find, self._record_damaged):
            node = views.add(number, entry, vectors, words=self._words)
            views.link(node, entry.links)
            self._deferred += [(node, link) for link in entry.links if views.memory_table.find(link.to_id) is None]
        if len(page) == size and len(known) == size:
            self._after = page[-1][0]
            return True
        for node, link in self._deferred:
            views.link(node, [link])
        self._deferred.clear()
        return False

    def _record_damaged(self, key: str, error: StoreDamaged) -> None:
        self.loaded.damaged[key] = error.findings[0]


@attrs.frozen
class ChangeSet:
    """Journal numbers of memories that were changed or deleted since a change. New memories are not included."""

    count: int
    changed: set[int]
    deleted: set[int]
    erased: bool = False  # True if deleted or replaced data must be removed from disk.


def read_changes_since(rows: Snapshot, row_keys: RowKeys, change: int) -> ChangeSet | None:
    """Return the changes after a change number, or None if a change row is unreadable."""
    changed: set[int] = set()
    deleted: set[int] = set()
    erased = False
    after = rows.items(row_keys.changes, after=number_key(row_keys.changes, change))
    # Skip malformed keys, which would prevent every update. check() reports them.
    found = [value for key, value in after if parse_number(row_keys.changes, key) is not None]
    for value in found:
        try:
            row = read_change(require_intact(value))
        except (ValueError, RecursionError) as error:
            _log.warning("a change cannot be read (%s): the views are rebuilt", error)
            return None
        changed.update(row.changed)
        deleted.update(row.deleted)
        erased |= row.erased
    return ChangeSet(len(found), changed, deleted, erased)


def apply_changes(
    rows: Snapshot,
    row_keys: RowKeys,
    loaded: LoadedViews,
    last: int,
    changes: ChangeSet,
    *,
    force_update: bool = False,
) -> None:
    """
    Update views with all changes up to *last*.

    With *force_update*, changed memories are updated even if their version matches, because rows may have been read at
    different times.
    """
    views = loaded.views
    views.has_erased_data |= changes.erased
    new = rows.items(row_keys.memories, after=number_key(row_keys.memories, loaded.change))

    def leave_out(key: str, error: StoreDamaged) -> None:
        loaded.damaged[key] = error.findings[0]
        _log.warning("a damaged row of the memories is skipped: see admin.check()")

    at_once = len(new) <= MAX_MEMORIES_INDEXED_AT_REPLAY
    # Apply deletions first, because a deleted memory may have been saved again with the same id.
    for number in sorted(changes.deleted):
        loaded.damaged.pop(number_key(row_keys.memories, number), None)
        gone = views.memory_table.node_of(number)
        if gone is not None:
            views.remove(gone)
    # Skip malformed keys. check() reports them.
    page = [(key, value) for key, value in new if parse_number(row_keys.memories, key) is not None]
    added = [
        (views.add(number, entry, found, words=at_once), entry)
        for number, entry, found in read_entries(rows, row_keys, page, views.memory_table.find, leave_out)
    ]
    for node, entry in added:
        views.link(node, entry.links)
    for number in sorted(changes.changed - changes.deleted):
        known = views.memory_table.node_of(number)
        key, vector_key = number_key(row_keys.memories, number), number_key(row_keys.vectors, number)
        if known is None:
            continue
        try:
            entry = row_keys.entry(key, rows.get(key))
            vectors = row_keys.read_vectors(vector_key, rows.get(vector_key))
        except StoreDamaged as error:
            # Omit damaged memories, as a full rebuild does.
            leave_out(key, error)
            views.remove(known)
            continue
        # The views may have an older version of the memory, or lack its links to memories that were added since.
        if force_update or views.memory_table.version_of(known) != entry.version:
            views.relink(known, entry.links)
            views.change(known, entry, None if views.has_vectors(known, vectors) else vectors)
    loaded.change = last


def build_snapshot_parts(rows: Snapshot, row_keys: RowKeys, views: ViewSet, change: int) -> dict[str, SnapshotPart]:
    """Return the parts of a snapshot of the views."""
    views.drop_erased_data()
    words, arrays = views.words.state()
    table, columns = views.memory_table.state()
    return {
        "journal": SnapshotPart({"mark": _history_marker(rows, row_keys, change)}),
        "catalogue": SnapshotPart({**table, "names": FILTER_NAMES_VERSION, "analysis": ANALYSIS_VERSION}, columns),
        "words": SnapshotPart({**words, "analysis": ANALYSIS_VERSION}, arrays),
        "links": SnapshotPart(*views.links.state()),
        **views.vectors.parts(),
    }


def _load_snapshot(rows: Snapshot, row_keys: RowKeys, generation: Generation, exact_up_to: int) -> LoadedViews | None:
    """Return the views of a snapshot, or None if it is invalid or consists mostly of deleted nodes."""
    try:
        loaded = _restore_snapshot(rows, row_keys, generation, exact_up_to)
    except INVALID_VIEW_ERRORS as error:
        # Log only the error's type, because its message may contain a memory id.
        _log.warning("the snapshot of the memories cannot be used (%s): derived from the journal", type(error).__name__)
        return None
    if loaded is None:
        return None
    nodes, memories = len(loaded.views.memory_table), loaded.views.memory_table.count()
    if nodes - memories > max(MIN_HOLES_TO_REBUILD, nodes * MIN_HOLE_RATIO_TO_REBUILD):
        _log.info("%d of %d nodes are holes: the views are derived from the journal", nodes - memories, nodes)
        loaded.views.vectors.close()
        return None
    return loaded


def _restore_snapshot(
    rows: Snapshot, row_keys: RowKeys, generation: Generation, exact_up_to: int
) -> LoadedViews | None:
    """
    Return the views of a snapshot, or None if it belongs to another history or has filter names of another version.

    If the snapshot's word index is unusable, the words of all memories are indexed later.
    """
    parts = generation.parts
    mark = parts["journal"].meta.get("mark")
    if not mark or mark != _history_marker(rows, row_keys, generation.change):
        _log.info("the snapshot of the memories is of another history: the views are derived from the journal")
        return None
    if parts["catalogue"].meta.get("names") != FILTER_NAMES_VERSION:
        _log.info("the snapshot of the memories has other filter names: the views are derived from the journal")
        return None
    if parts["catalogue"].meta.get("analysis") != ANALYSIS_VERSION:
        _log.info("the snapshot of the memories has other text features: the views are derived from the journal")
        return None
    views = ViewSet(row_keys.embedder.dimensions, exact_up_to=exact_up_to)
    views.memory_table = MemoryTable.from_state(parts["catalogue"].meta, parts["catalogue"].arrays)
    views.links = Adjacency.from_state(parts["links"].meta, parts["links"].arrays)
    views.count()
    try:
        if parts["words"].meta.get("analysis") != ANALYSIS_VERSION:
            raise ValueError("the words were found by other rules")
        views.words = WordIndex.from_state(parts["words"].meta, parts["words"].arrays)
    except INVALID_VIEW_ERRORS:
        views.unindexed_nodes = dict.fromkeys(map(int, views.memory_table.after(-1, None)))
    vectors = VectorIndex.restore(parts, dimensions=row_keys.embedder.dimensions, exact_up_to=exact_up_to)
    if vectors is None:
        raise ValueError("the snapshot has no vectors")
    views.vectors = vectors
    return LoadedViews(views, generation.change, generation.change)


def read_entries(
    rows: Snapshot,
    row_keys: RowKeys,
    page: Sequence[tuple[str, bytes | DamagedValue]],
    find: Callable[[str], int | None],
    leave_out: Callable[[str, StoreDamaged], None],
) -> Iterator[tuple[int, Entry, Vectors]]:
    """Yield the valid memories in a page of rows. Pass the damaged ones to *leave_out*."""
    numbers = {key: number for key, _ in page if (number := parse_number(row_keys.memories, key)) is not None}
    keys = {key: number_key(row_keys.vectors, number) for key, number in numbers.items()}
    vectors = rows.get_many(list(keys.values()))
    for key, value in page:
        try:
            if key not in numbers:
                raise row_keys.damaged(key, "the key is none of the memories' own")
            entry = row_keys.entry(key, value)
            found = row_keys.read_vectors(keys[key], vectors.get(keys[key]))
            if find(entry.memory.id) is not None:
                raise row_keys.damaged(key, "another memory has the same id")
        except StoreDamaged as error:
            leave_out(key, error)
            continue
        yield numbers[key], entry, found


def _history_marker(rows: Snapshot, row_keys: RowKeys, change: int) -> str | None:
    """Return a string that identifies the history up to a change number. None if the row of the change is damaged."""
    key = number_key(row_keys.changes, change)
    value = rows.get(key)
    if isinstance(value, bytes):
        try:
            return f"change {read_change(value).salt}"
        except (ValueError, RecursionError):
            return None
    key = number_key(row_keys.memories, change)
    try:
        return f"memory {row_keys.entry(key, rows.get(key)).memory.id}"
    except StoreDamaged:
        return None
