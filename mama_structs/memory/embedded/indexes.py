"""The four indexes of a namespace, kept in step, and how they come to be: from a snapshot, else from the journal."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import StoreDamaged
from mama_structs.memory.codec import Entry
from mama_structs.memory.embedded.catalogue import Catalogue, CatalogueItem
from mama_structs.memory.embedded.links import Adjacency
from mama_structs.memory.embedded.rows import RowPlaces, numbered, own_number, read_change
from mama_structs.memory.embedded.snapshots import Generation, Part, SnapshotStore
from mama_structs.memory.embedded.vectors import VectorIndex
from mama_structs.memory.embedded.words import WordIndex
from mama_structs.memory.engine import Filter
from mama_structs.memory.model import Link, Memory, MemoryType
from mama_structs.memory.text import indexed_text, weighted_terms
from mama_structs.storage.rows import Damaged, Snapshot

Vectors = NDArray[np.float32]

_TYPES: Final = tuple(MemoryType)


class Indexes:
    """What is derived from the journal: each memory's place, words, vectors and links."""

    def __init__(self, dimensions: int, *, exact_up_to: int) -> None:
        self.catalogue: Catalogue = Catalogue()
        self.words: WordIndex = WordIndex()
        self.vectors: VectorIndex = VectorIndex(dimensions, exact_up_to=exact_up_to)
        self.links: Adjacency = Adjacency()
        self._counts: Counter[str] = Counter()
        # Nodes whose words are not indexed yet; they are taken up in slices.
        self.unindexed: dict[int, None] = {}

    def add(self, number: int, entry: Entry, vectors: Vectors, *, words: bool = True) -> int:
        """Add a memory without its links, and return its node."""
        memory = entry.memory
        node = self.catalogue.add(CatalogueItem.of(number, entry))
        self._counts[memory.type.value] += 1
        self.vectors.add(node, vectors)
        if words:
            self.words.add(node, indexed_terms(memory))
        else:
            self.unindexed[node] = None
        return node

    def change(self, node: int, entry: Entry, vectors: Vectors | None) -> None:
        """Take a new version of a memory, without its links."""
        memory = entry.memory
        self.catalogue.change(node, version=entry.version, topic=memory.topic, mentions=memory.mentions)
        if vectors is not None:
            self.vectors.remove(node)
            self.vectors.add(node, vectors)
        if node not in self.unindexed:
            self.words.add(node, indexed_terms(memory))

    def remove(self, node: int) -> dict[str, NDArray[Any]]:
        """Forget a memory and all its links, and return these for `restore`."""
        links = self.links.of_node(node)
        facts = self.catalogue.facts(np.array([node]))
        self._counts[_TYPES[int(facts.types[0])].value] -= 1
        self.links.remove_node(node)
        self.vectors.remove(node)
        if self.unindexed.pop(node, 0) == 0:
            self.words.remove(node)
        self.catalogue.remove(node)
        return links

    def restore(
        self, node: int, number: int, entry: Entry, vectors: Vectors, links: Mapping[str, NDArray[Any]]
    ) -> None:
        """Take a memory's removal back."""
        memory = entry.memory
        self.catalogue.restore(node, CatalogueItem.of(number, entry))
        self._counts[memory.type.value] += 1
        self.vectors.add(node, vectors)
        self.words.add(node, indexed_terms(memory))
        self.links.put_back(links)

    def link(self, source: int, links: Iterable[Link]) -> list[int]:
        """Add links that begin at a node, as far as their other ends exist, and return these."""
        ends = []
        for link in links:
            target = self.catalogue.find(link.to_id)
            if target is not None:
                self.links.add(source, target, link)
                ends.append(target)
        return ends

    def relink(self, source: int, links: Iterable[Link]) -> list[int]:
        """Put links in the place of all that begin at a node, and return the nodes at whose ends something changed."""
        before = [int(node) for node in self.links.links(np.array([source]), "out").targets]
        self.links.remove_outgoing(source)
        return before + self.link(source, links)

    def neighbours(self, node: int) -> list[int]:
        """Return the other ends of a node's links."""
        table = self.links.links(np.array([node]), "both")
        return [int(end) for end in (*table.sources, *table.targets) if end != node]

    def has_vectors(self, node: int, vectors: Vectors) -> bool:
        """Tell whether a node's vectors are these."""
        return np.array_equal(self.vectors.get(node), vectors)

    def unlink(self, source: int, links: Iterable[Link]) -> None:
        """Remove links that begin at a node; two ids may have one key, so their ends count as well."""
        for link in links:
            target = self.catalogue.find(link.to_id)
            if target is not None:
                self.links.remove(link.id, source=source, target=target)

    def index(self, node: int, memory: Memory) -> None:
        """Index the words of a memory that were left out before."""
        if self.unindexed.pop(node, 0) is None:
            self.words.add(node, indexed_terms(memory))

    def count(self) -> None:
        """Count the memories of each type, after the catalogue was loaded."""
        self._counts = Counter(
            {kind.value: self.catalogue.count(Filter(types=frozenset({kind}))) for kind in MemoryType}
        )

    def stats(self) -> dict[str, Any]:
        """Return what is worth knowing about the views; unlike everything else here, from any thread."""
        return {
            "memories": sum(self._counts.values()),
            "types": {kind.value: self._counts[kind.value] for kind in MemoryType},
            "links": len(self.links),
            "vectors": self.vectors.stats(),
            "words_to_index": len(self.unindexed),
        }


def indexed_terms(memory: Memory) -> dict[str, float]:
    """Return the terms under which a memory is found, with how often each counts."""
    return weighted_terms(indexed_text(memory))


# Rows that are read at once.
_PAGE: Final = 1000
# Up to so many memories the words are indexed at once, which takes some tenths of a second.
_WORDS_AT_ONCE: Final = 2000
# Above so many holes, and where they are so much of all nodes, the views are worth deriving without them.
_FEW_HOLES: Final = 1000
_MOSTLY_HOLES: Final = 1 / 3

UNUSABLE: Final = (ValueError, KeyError, TypeError, IndexError, AttributeError)
"""What views that do not fit the journal, or one another, make of a change that is taken up on top of them."""

_log: Final = logging.getLogger("mama_structs")


@attrs.define(eq=False)
class LoadedIndexes:
    """Indexes, and what they are of."""

    views: Indexes
    change: int = 0
    snapshot_at: int = 0
    damaged: dict[str, str] = attrs.field(factory=dict)


def load_views(
    rows: Snapshot, place: RowPlaces, snapshots: SnapshotStore | None, *, last: int, exact_up_to: int
) -> LoadedIndexes:
    """Return the views, of the snapshot's change or of the journal's last one."""
    generation = None if snapshots is None else snapshots.load(at_most=last)
    if generation is not None:
        if generation.damaged:
            _log.warning("derived anew, since their files are damaged: %s", ", ".join(generation.damaged))
        loaded = _usable(rows, place, generation, exact_up_to)
        if loaded is not None:
            return loaded
    loaded = LoadedIndexes(Indexes(place.embedder.dimensions, exact_up_to=exact_up_to), last)
    views = loaded.views
    deferred: list[tuple[int, Link]] = []
    after = ""

    def leave_out(key: str, error: StoreDamaged) -> None:
        loaded.damaged[key] = error.findings[0]

    while page := rows.items(place.memories, after=after, limit=_PAGE):
        after = page[-1][0]
        for number, entry, vectors in read_entries(rows, place, page, views.catalogue.find, leave_out):
            node = views.add(number, entry, vectors, words=last <= _WORDS_AT_ONCE)
            views.link(node, entry.links)
            deferred += [(node, link) for link in entry.links if views.catalogue.find(link.to_id) is None]
    for node, link in deferred:
        views.link(node, [link])
    return loaded


def snapshot_parts(rows: Snapshot, place: RowPlaces, views: Indexes, change: int) -> dict[str, Part]:
    """Return what a snapshot holds."""
    return {
        "journal": Part({"mark": _mark(rows, place, change)}),
        "catalogue": Part(*views.catalogue.state()),
        "words": Part(*views.words.state()),
        "links": Part(*views.links.state()),
        **views.vectors.parts(),
    }


def _usable(rows: Snapshot, place: RowPlaces, generation: Generation, exact_up_to: int) -> LoadedIndexes | None:
    """Return views as far as a snapshot has them; None where they are of no use or mostly holes."""
    try:
        loaded = _from_snapshot(rows, place, generation, exact_up_to)
    except UNUSABLE as error:
        # No content: the message of an error from the views may have an id.
        _log.warning("the snapshot of the memories cannot be used (%s): derived from the journal", type(error).__name__)
        return None
    if loaded is None:
        return None
    nodes, memories = len(loaded.views.catalogue), loaded.views.catalogue.count()
    if nodes - memories > max(_FEW_HOLES, nodes * _MOSTLY_HOLES):
        _log.info("%d of %d nodes are holes: the views are derived from the journal", nodes - memories, nodes)
        loaded.views.vectors.close()
        return None
    return loaded


def _from_snapshot(rows: Snapshot, place: RowPlaces, generation: Generation, exact_up_to: int) -> LoadedIndexes | None:
    """Return a snapshot's views, perhaps with all words still to be indexed; None where it is of another history."""
    parts = generation.parts
    mark = parts["journal"].meta.get("mark")
    if not mark or mark != _mark(rows, place, generation.change):
        _log.info("the snapshot of the memories is of another history: the views are derived from the journal")
        return None
    views = Indexes(place.embedder.dimensions, exact_up_to=exact_up_to)
    views.catalogue = Catalogue.from_state(parts["catalogue"].meta, parts["catalogue"].arrays)
    views.links = Adjacency.from_state(parts["links"].meta, parts["links"].arrays)
    views.count()
    try:
        views.words = WordIndex.from_state(parts["words"].meta, parts["words"].arrays)
    except UNUSABLE:
        views.unindexed = dict.fromkeys(map(int, views.catalogue.after(-1, None)))
    vectors = VectorIndex.restore(parts, dimensions=place.embedder.dimensions, exact_up_to=exact_up_to)
    if vectors is None:
        raise ValueError("the snapshot has no vectors")
    views.vectors = vectors
    return LoadedIndexes(views, generation.change, generation.change)


def read_entries(
    rows: Snapshot,
    place: RowPlaces,
    page: Sequence[tuple[str, bytes | Damaged]],
    find: Callable[[str], int | None],
    leave_out: Callable[[str, StoreDamaged], None],
) -> Iterator[tuple[int, Entry, Vectors]]:
    """Give those of some rows that are memories, whole, and of an id that no other has."""
    numbers = {key: number for key, _ in page if (number := own_number(place.memories, key)) is not None}
    keys = {key: numbered(place.vectors, number) for key, number in numbers.items()}
    vectors = rows.get_many(list(keys.values()))
    for key, value in page:
        try:
            if key not in numbers:
                raise place.damaged(key, "the key is none of the memories' own")
            entry = place.entry(key, value)
            found = place.read_vectors(keys[key], vectors.get(keys[key]))
            if find(entry.memory.id) is not None:
                raise place.damaged(key, "another memory has the same id")
        except StoreDamaged as error:
            leave_out(key, error)
            continue
        yield numbers[key], entry, found


def _mark(rows: Snapshot, place: RowPlaces, change: int) -> str | None:
    """Return what tells this history's change from another history's of the same number."""
    key = numbered(place.changes, change)
    value = rows.get(key)
    if isinstance(value, bytes):
        try:
            return f"change {read_change(value).salt}"
        except (ValueError, RecursionError):
            return None
    key = numbered(place.memories, change)
    try:
        return f"memory {place.entry(key, rows.get(key)).memory.id}"
    except StoreDamaged:
        return None
