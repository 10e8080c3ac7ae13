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
from mama_structs.memory.embedded.keys import numbered, own_number, read_change
from mama_structs.memory.embedded.reading import Place, read_vectors
from mama_structs.memory.embedded.snapshots import Generation, Part, SnapshotStore
from mama_structs.memory.embedded.vectors import VectorIndex
from mama_structs.memory.embedded.views import Vectors, Views
from mama_structs.memory.embedded.words import WordIndex
from mama_structs.memory.model import Link
from mama_structs.storage import Snapshot

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
class Loaded:
    """Views, and what they are of."""

    views: Views
    change: int = 0
    snapshot_at: int = 0
    damaged: dict[str, str] = attrs.field(factory=dict)

    @classmethod
    def empty(cls, dimensions: int, exact_up_to: int) -> Self:
        """Return views of nothing."""
        return cls(Views(dimensions, exact_up_to=exact_up_to))


def load_views(rows: Snapshot, place: Place, snapshots: SnapshotStore | None, *, last: int, exact_up_to: int) -> Loaded:
    """Return the views, of the snapshot's change or of the journal's last one."""
    generation = None if snapshots is None else snapshots.load(at_most=last)
    if generation is not None:
        if generation.damaged:
            _log.warning("derived anew, since their files are damaged: %s", ", ".join(generation.damaged))
        loaded = _usable(rows, place, generation, exact_up_to)
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


def _usable(rows: Snapshot, place: Place, generation: Generation, exact_up_to: int) -> Loaded | None:
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
    except UNUSABLE:
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
        except UNUSABLE:
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
            for node, key in zip(map(int, some), keys, strict=True):
                # One that is gone was deleted since the snapshot: the replay sees to it.
                if key in found:
                    try:
                        views.vectors.add(node, read_vectors(place, key, found[key]))
                    except StoreDamaged as error:
                        # Left out, as it would be if everything were derived anew.
                        number = views.catalogue.number_of(node)
                        loaded.damaged[numbered(place.memories, number)] = error.findings[0]
                        views.remove(node)


def _entries(
    rows: Snapshot, place: Place, damaged: dict[str, str], *, with_vectors: bool
) -> Iterator[tuple[int, tuple[Entry, Vectors | None]]]:
    """Give every memory of the journal that is whole; of two with one id the one that was there first."""
    after = ""
    seen: set[str] = set()
    while page := rows.items(place.memories, after=after, limit=_PAGE):
        after = page[-1][0]
        numbers = {key: number for key, _ in page if (number := own_number(place.memories, key)) is not None}
        keys = {key: numbered(place.vectors, number) for key, number in numbers.items()} if with_vectors else {}
        vectors = rows.get_many(list(keys.values()))
        for key, value in page:
            try:
                if key not in numbers:
                    raise place.damaged(key, "the key is none of the memories' own")
                entry = place.entry(key, value)
                found = read_vectors(place, keys[key], vectors.get(keys[key])) if with_vectors else None
                if entry.memory.id in seen:
                    raise place.damaged(key, "another memory has the same id")
            except StoreDamaged as error:
                damaged[key] = error.findings[0]
                continue
            seen.add(entry.memory.id)
            yield numbers[key], (entry, found)


def _mark(rows: Snapshot, place: Place, change: int) -> str | None:
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
