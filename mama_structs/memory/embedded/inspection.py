"""Comparing the views of a namespace with its journal."""

from __future__ import annotations

import attrs
import numpy as np

from mama_structs.errors import StoreDamaged
from mama_structs.memory.codec import Entry
from mama_structs.memory.embedded.keys import number_in, numbered, read_change
from mama_structs.memory.embedded.reading import Place, read_vectors
from mama_structs.memory.embedded.views import TYPE_INDEX, Views, indexed_terms
from mama_structs.memory.ids import milliseconds
from mama_structs.storage import Damaged, Finding, Snapshot

# How far a stored vector's length may be from 1.
_LENGTH = 1e-3


@attrs.frozen
class Inspected:
    """
    A namespace at one moment.

    Args:
        rows: The journal.
        views: What is derived from it, brought up to that moment.
        place: Where the rows are.

    """

    rows: Snapshot
    views: Views
    place: Place


@attrs.define
class Checked:
    """
    How far a check has come.

    Args:
        findings: What is wrong.
        memories: How many were looked at.
        after: The key of the last one.
        seen: Their ids, to find two of one id.
        links: Ids of links, likewise.

    """

    findings: list[Finding] = attrs.field(factory=list)
    memories: int = 0
    after: str = ""
    seen: set[str] = attrs.field(factory=set)
    links: set[str] = attrs.field(factory=set)

    def note(self, kind: str, message: str, key: str) -> None:
        """Note something wrong."""
        self.findings.append(Finding("error", kind, message, key))


def check_memories(inspected: Inspected, state: Checked, limit: int) -> bool:
    """Compare the next memories with the views, and tell whether there may be more."""
    place, views = inspected.place, inspected.views
    page = inspected.rows.items(place.memories, after=state.after, limit=limit)
    vectors = inspected.rows.get_many([numbered(place.vectors, number_in(key)) for key, _ in page])
    for key, value in page:
        state.after = key
        state.memories += 1
        try:
            entry = place.entry(key, value)
        except StoreDamaged as error:
            # A damaged row is also found where all rows are looked at.
            if not isinstance(value, Damaged):
                state.note("damaged", error.findings[0], key)
            continue
        vector_key = numbered(place.vectors, number_in(key))
        _check_entry(place, views, state, key, entry)
        _check_vectors(inspected, state, vector_key, vectors.get(vector_key), number_in(key))
    return len(page) == limit


def check_rows(inspected: Inspected, state: Checked) -> None:
    """Look at the rows that belong to no memory, and for memories in the views that no row is of."""
    place, views, rows = inspected.place, inspected.views, inspected.rows
    for key in rows.keys(place.vectors):
        if rows.get(numbered(place.memories, number_in(key))) is None:
            state.note("orphan", f"{key}: vectors without a memory", key)
    for key, value in rows.items(place.changes):
        try:
            if not isinstance(value, Damaged):
                read_change(value)
        except ValueError:
            state.note("damaged", f"{key}: it does not have the form of a change", key)
    nodes = views.catalogue.after(-1, None)
    for start in range(0, len(nodes), 1000):
        some = nodes[start : start + 1000]
        keys = [numbered(place.memories, int(number)) for number in views.catalogue.numbers(some)]
        found = rows.get_many(keys)
        for key in keys:
            if key not in found:
                state.note("view", f"{key}: the catalogue has a memory that the journal does not have", key)


def _check_entry(place: Place, views: Views, state: Checked, key: str, entry: Entry) -> None:
    memory = entry.memory
    node = views.catalogue.node_of(number_in(key))
    if node is None or views.catalogue.find(memory.id) != node:
        state.note("view", f"{key}: the catalogue does not have this memory", key)
        return
    facts = views.catalogue.facts(np.array([node]))
    if views.catalogue.version_of(node) != entry.version or facts.created[0] != milliseconds(memory.created_at):
        state.note("view", f"{key}: the catalogue has another version of this memory", key)
    if facts.types[0] != TYPE_INDEX[memory.type] or memory.namespace != place.keys.namespace:
        state.note("view", f"{key}: the memory is of another type or namespace", key)
    if memory.id in state.seen:
        state.note("damaged", f"{key}: another memory has the same id", key)
    state.seen.add(memory.id)
    if node not in views.unindexed and set(views.words.terms(node)) != set(indexed_terms(memory)):
        state.note("view", f"{key}: its words are indexed wrongly", key)
    ends = []
    for link in entry.links:
        target = views.catalogue.find(link.to_id)
        if link.from_id != memory.id:
            state.note("damaged", f"{key}: the link {link.id} begins at another memory", key)
        elif target is None:
            state.note("link", f"{key}: the link {link.id} ends at no memory", key)
        else:
            ends.append(target)
        if link.id in state.links:
            state.note("link", f"{key}: there are two links of the id {link.id}", key)
        state.links.add(link.id)
    known = views.links.links(np.array([node]), "out")
    if sorted(ends) != sorted(known.targets.tolist()):
        state.note("view", f"{key}: its links are not those of the links view", key)


def _check_vectors(inspected: Inspected, state: Checked, key: str, value: bytes | Damaged | None, number: int) -> None:
    try:
        vectors = read_vectors(inspected.place, key, value)
    except StoreDamaged as error:
        if not isinstance(value, Damaged):
            state.note("damaged", error.findings[0], key)
        return
    if not np.isfinite(vectors).all() or (np.abs(np.linalg.norm(vectors, axis=1) - 1) > _LENGTH).any():
        state.note("damaged", f"{key}: its vectors are not of length 1", key)
    node = inspected.views.catalogue.node_of(number)
    if node is not None and not inspected.views.has_vectors(node, vectors):
        state.note("view", f"{key}: the vectors view has other vectors", key)
