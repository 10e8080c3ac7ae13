"""How the views come to be: from a snapshot as far as there is one, else from the journal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, Self

import attrs

from mama_structs.errors import StoreDamaged
from mama_structs.memory.codec import Entry
from mama_structs.memory.embedded.adjacency import Adjacency
from mama_structs.memory.embedded.catalogue import Catalogue
from mama_structs.memory.embedded.keys import number_in, numbered, read_change
from mama_structs.memory.embedded.reading import Place, read_vectors
from mama_structs.memory.embedded.snapshots import Generation, Part, SnapshotStore
from mama_structs.memory.embedded.vectors import VectorIndex
from mama_structs.memory.embedded.views import Vectors, Views
from mama_structs.memory.embedded.words import WordIndex
from mama_structs.memory.model import Link
from mama_structs.storage import Damaged, Snapshot

# Rows that are read at once.
_PAGE: Final = 1000
# Up to so many memories the words are indexed at once, which takes some tenths of a second.
_WORDS_AT_ONCE: Final = 2000
# What can be wrong with a whole file's content that an older or later version wrote.
_UNUSABLE: Final = (ValueError, KeyError, TypeError, IndexError, AttributeError)

_log: Final = logging.getLogger("mama_structs")


@attrs.define(eq=False)
class Loaded:
    """
    Views, and what they are of.

    Args:
        views: The views.
        change: The change that they are of.
        snapshot_at: The change that the snapshot is of which they came from; 0 for none.
        damaged: What is wrong with rows that were left out, by key.

    """

    views: Views
    change: int = 0
    snapshot_at: int = 0
    damaged: dict[str, str] = attrs.field(factory=dict)

    @classmethod
    def empty(cls, dimensions: int, exact_up_to: int) -> Self:
        """Return views of nothing."""
        return cls(Views(dimensions, exact_up_to=exact_up_to))


def load_views(rows: Snapshot, place: Place, snapshots: SnapshotStore | None, *, last: int, exact_up_to: int) -> Loaded:
    """
    Return the views, of the snapshot's change or of the journal's last one.

    Args:
        rows: The journal.
        place: Where the rows are.
        snapshots: Where snapshots are kept, None to derive everything from the journal.
        last: The journal's last change.
        exact_up_to: See `MemorySettings`.

    """
    generation = None if snapshots is None else snapshots.load(at_most=last)
    if generation is not None:
        if generation.damaged:
            _log.warning("derived anew, since their files are damaged: %s", ", ".join(generation.damaged))
        loaded = _from_snapshot(rows, place, generation, exact_up_to)
        if loaded is not None:
            return loaded
    loaded = Loaded.empty(place.embedder.dimensions, exact_up_to)
    loaded.change = last
    few = last <= _WORDS_AT_ONCE
    deferred: list[tuple[int, Link]] = []
    views = loaded.views
    for number, entry in _entries(rows, place, loaded.damaged, with_vectors=True):
        node = views.add(number, entry[0], entry[1], words=few)
        known = [link for link in entry[0].links if views.catalogue.find(link.to_id) is not None]
        views.link(node, known)
        deferred += [(node, link) for link in entry[0].links if link not in known]
    for node, link in deferred:
        views.link(node, [link])
    return loaded


def snapshot_parts(rows: Snapshot, place: Place, views: Views, change: int) -> dict[str, Part]:
    """Return what a snapshot holds."""
    return {
        "journal": Part({"mark": _mark(rows, place, change)}),
        "catalogue": Part(*views.catalogue.state()),
        "words": Part(*views.words.state()),
        "links": Part(*views.links.state()),
        **views.vectors.parts(),
    }


def _from_snapshot(rows: Snapshot, place: Place, generation: Generation, exact_up_to: int) -> Loaded | None:
    """Return views as far as a snapshot has them; None where it is of another history, or of no use."""
    parts = generation.parts
    if "journal" not in parts or "catalogue" not in parts:
        return None
    mark = parts["journal"].meta.get("mark")
    if not mark or mark != _mark(rows, place, generation.change):
        _log.info("the snapshot of the memories is of another history: the views are derived from the journal")
        return None
    dimensions = place.embedder.dimensions
    try:
        views = Views(dimensions, exact_up_to=exact_up_to)
        views.catalogue = Catalogue.from_state(parts["catalogue"].meta, parts["catalogue"].arrays)
        views.count()
    except _UNUSABLE:
        return None
    loaded = Loaded(views, generation.change, generation.change)
    missing = set()
    for name in ("words", "links"):
        try:
            part = parts[name]
            if name == "words":
                views.words = WordIndex.from_state(part.meta, part.arrays)
            else:
                views.links = Adjacency.from_state(part.meta, part.arrays)
        except _UNUSABLE:
            missing.add(name)
    vectors = VectorIndex.restore(parts, dimensions=dimensions, exact_up_to=exact_up_to)
    if vectors is None:
        missing.add("vectors")
    else:
        views.vectors = vectors
    _derive(rows, place, loaded, missing, exact_up_to=exact_up_to)
    return loaded


def _derive(rows: Snapshot, place: Place, loaded: Loaded, missing: set[str], *, exact_up_to: int) -> None:
    """Derive the views that a snapshot lacks."""
    views = loaded.views
    nodes = views.catalogue.after(-1, None)
    if "words" in missing:
        views.words = WordIndex()
        views.unindexed = dict.fromkeys(map(int, nodes))
    if "links" in missing:
        views.links = Adjacency()
        for number, (entry, _) in _entries(rows, place, loaded.damaged, with_vectors=False):
            node = views.catalogue.node_of(number)
            if node is not None:
                views.link(node, entry.links)
    if "vectors" in missing:
        views.vectors = VectorIndex(place.embedder.dimensions, exact_up_to=exact_up_to)
        for start in range(0, len(nodes), _PAGE):
            some = nodes[start : start + _PAGE]
            keys = [numbered(place.vectors, int(number)) for number in views.catalogue.numbers(some)]
            found = rows.get_many(keys)
            for node, key in zip(some, keys, strict=True):
                # One that is gone was deleted since the snapshot: the replay sees to it.
                if key in found:
                    try:
                        views.vectors.add(int(node), read_vectors(place, key, found[key]))
                    except StoreDamaged as error:
                        loaded.damaged[key] = error.findings[0]


def _entries(
    rows: Snapshot, place: Place, damaged: dict[str, str], *, with_vectors: bool
) -> Iterator[tuple[int, tuple[Entry, Vectors | None]]]:
    """Give every memory of the journal that is whole."""
    after = ""
    while page := rows.items(place.memories, after=after, limit=_PAGE):
        after = page[-1][0]
        keys = [numbered(place.vectors, number_in(key)) for key, _ in page] if with_vectors else []
        vectors = rows.get_many(keys)
        for position, (key, value) in enumerate(page):
            try:
                entry = place.entry(key, value)
                found = read_vectors(place, keys[position], vectors.get(keys[position])) if with_vectors else None
            except StoreDamaged as error:
                damaged[key] = error.findings[0]
                continue
            yield number_in(key), (entry, found)


def _mark(rows: Snapshot, place: Place, change: int) -> str | None:
    """
    Return what tells this history's change from another history's of the same number.

    A backup that was put back goes on with numbers that were used before.
    """
    key = numbered(place.changes, change)
    value = rows.get(key)
    if isinstance(value, bytes):
        return f"change {read_change(value).salt}"
    key = numbered(place.memories, change)
    value = rows.get(key)
    if value is None or isinstance(value, Damaged):
        return None
    return f"memory {place.entry(key, value).memory.id}"
