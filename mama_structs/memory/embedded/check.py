"""Comparing the indexes of a namespace with its journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import StoreDamaged
from mama_structs.memory.codec import Entry
from mama_structs.memory.embedded.catalogue import TYPE_INDEX
from mama_structs.memory.embedded.indexes import Indexes, indexed_terms
from mama_structs.memory.embedded.rows import RowPlaces, numbered, own_number, read_change, read_vectors
from mama_structs.memory.model import digests_in, is_digest, milliseconds
from mama_structs.storage.failures import Finding
from mama_structs.storage.rows import Damaged, Snapshot

# Characters of kept texts that are looked at in one go.
_AT_ONCE: Final = 2**20


@attrs.define
class CheckState:
    """A namespace at one moment, and how far a check has come: the last key by prefix, and where each id was seen."""

    rows: Snapshot
    views: Indexes
    place: RowPlaces
    findings: list[Finding] = attrs.field(factory=list, init=False)
    memories: int = attrs.field(default=0, init=False)
    after: dict[str, str] = attrs.field(factory=dict, init=False)
    seen: dict[str, str] = attrs.field(factory=dict, init=False)
    links: dict[str, str] = attrs.field(factory=dict, init=False)
    others: set[str] = attrs.field(factory=set, init=False)
    numbers: list[int] | None = attrs.field(default=None, init=False)

    def page(self, prefix: str, limit: int) -> list[tuple[str, bytes | Damaged]]:
        """Return the next rows whose keys begin with *prefix*."""
        found = self.rows.items(prefix, after=self.after.get(prefix, ""), limit=limit)
        if found:
            self.after[prefix] = found[-1][0]
        return found

    def note(self, kind: str, message: str, key: str) -> None:
        """Note something wrong."""
        self.findings.append(Finding("error", kind, message, key))

    def note_foreign(self, key: str) -> None:
        """Note a key that nobody of ours made."""
        self.note("foreign", f"{key:.200}: the key is none of the memories' own", key)


def check_memories(state: CheckState, limit: int) -> bool:
    """Compare the next memories with the views, and tell whether there may be more."""
    place = state.place
    page = state.page(place.memories, limit)
    numbers = {key: number for key, _ in page if (number := own_number(place.memories, key)) is not None}
    vectors = state.rows.get_many([numbered(place.vectors, number) for number in numbers.values()])
    for key, value in page:
        if key not in numbers:
            state.note_foreign(key)
            continue
        state.memories += 1
        number = numbers[key]
        try:
            entry = place.entry(key, value)
        except StoreDamaged as error:
            # A damaged row is also found where all rows are looked at.
            if not isinstance(value, Damaged):
                state.note("damaged", error.findings[0], key)
            continue
        _check_evidence(state, key, number, entry)
        vector_key = numbered(place.vectors, number)
        found = _vectors(state, vector_key, vectors.get(vector_key))
        # What is damaged is left out of the views, and so is the later one of two that have one id.
        if found is None:
            continue
        if _is_elsewhere(state.rows, state.seen, entry.memory.id, key):
            state.note("damaged", f"{key}: another memory has the same id", key)
            continue
        node = state.views.catalogue.node_of(number)
        _check_entry(state, key, entry, node)
        if node is not None and not state.views.has_vectors(node, found):
            state.note("view", f"{vector_key}: the vectors view has other vectors", vector_key)
    return len(page) == limit


def check_vectors(state: CheckState, limit: int) -> bool:
    """Look at whose the next vectors are, and tell whether there may be more."""
    place, rows = state.place, state.rows
    page = [key for key, _ in state.page(place.keys.all_vectors, limit)]
    own = {key: own_number(place.vectors, key) for key in page}
    memories = {key: numbered(place.memories, number) for key, number in own.items() if number is not None}
    found = rows.get_many(list(memories.values()))
    for key in page:
        folder, _, digits = key.rpartition("/")
        if key in memories:
            if memories[key] not in found:
                state.note("orphan", f"{key}: vectors without a memory", key)
        elif folder + "/" != place.vectors and own_number(folder + "/", f"{folder}/{digits}") is not None:
            if folder not in state.others:
                state.findings.append(
                    Finding(
                        "warning",
                        "orphan",
                        f"{folder}: vectors of another embedder, as a `reembed` leaves that was interrupted; "
                        "the next one that is completed deletes them",
                        key,
                    )
                )
            state.others.add(folder)
        else:
            state.note_foreign(key)
    return len(page) == limit


def check_changes(state: CheckState, limit: int) -> bool:
    """Look at the next changes, and tell whether there may be more."""
    place = state.place
    page = state.page(place.changes, limit)
    for key, value in page:
        if own_number(place.changes, key) is None:
            state.note_foreign(key)
            continue
        try:
            if not isinstance(value, Damaged):
                read_change(value)
        except (ValueError, RecursionError):
            state.note("damaged", f"{key}: it does not have the form of a change", key)
    return len(page) == limit


def check_catalogue(state: CheckState, limit: int) -> bool:
    """Look for memories in the views that no row is of, and tell whether there may be more."""
    place, catalogue = state.place, state.views.catalogue
    if state.numbers is None:
        # By numbers, not by nodes: these may be given anew between two looks.
        state.numbers = catalogue.numbers(catalogue.after(-1, None))[::-1]
    some = [state.numbers.pop() for _ in range(min(limit, len(state.numbers)))]
    keys = {numbered(place.memories, number): number for number in some}
    found = state.rows.get_many(list(keys))
    for key, number in keys.items():
        if key not in found and catalogue.node_of(number) is not None:
            state.note("view", f"{key}: the catalogue has a memory that the journal does not have", key)
    return bool(state.numbers)


def check_contents(state: CheckState, limit: int) -> bool:
    """Look at the next texts that are kept as evidence, and tell whether there may be more."""
    place, rows = state.place, state.rows
    size = 0
    for _ in range(limit):
        # One by one: each may be long.
        page = state.page(place.contents, 1)
        if not page:
            return False
        ((key, value),) = page
        digest = key.removeprefix(place.contents)
        if not is_digest(digest):
            state.note_foreign(key)
            continue
        try:
            size += len(place.content(key, value))
        except StoreDamaged as error:
            state.note("evidence", error.findings[0], key)
        if rows.last(place.keys.uses(digest)) is None:
            state.note("orphan", f"{key}: a kept text that no memory names", key)
        if size > _AT_ONCE:
            break
    return True


def check_uses(state: CheckState, limit: int) -> bool:
    """Look whether memories name the kept texts that they are said to, and tell whether there may be more."""
    place, rows = state.place, state.rows
    page = [key for key, _ in state.page(place.keys.all_uses, limit)]
    numbers = {key: own_number(key.rpartition("/")[0] + "/", key) for key in page}
    found = rows.get_many(list({numbered(place.memories, number) for number in numbers.values() if number is not None}))
    for key, number in numbers.items():
        digest = key.removeprefix(place.keys.all_uses).rpartition("/")[0]
        if number is None or not is_digest(digest):
            state.note_foreign(key)
            continue
        memory_key = numbered(place.memories, number)
        try:
            named = memory_key in found and digest in digests_in(place.memory(memory_key, found[memory_key]).evidence)
        except StoreDamaged:
            # Nobody knows what it names: the text stays.
            continue
        if not named:
            state.note("orphan", f"{key}: a text is kept for a memory that does not name it", key)
    return len(page) == limit


def check_notes(state: CheckState, limit: int) -> bool:
    """Look at the next notes, and tell whether there may be more."""
    place = state.place
    page = state.page(place.notes, limit)
    for key, value in page:
        try:
            # A damaged row is also found where all rows are looked at.
            if not isinstance(value, Damaged):
                place.note(key, value)
        except StoreDamaged as error:
            state.note("damaged", error.findings[0], key)
    return len(page) == limit


Step = Callable[[CheckState, int], bool]
STEPS: Final[tuple[Step, ...]] = (
    check_memories,
    check_vectors,
    check_changes,
    check_catalogue,
    check_contents,
    check_uses,
    check_notes,
)
"""What a check does, one after the other, each again and again as long as there may be more."""


def _is_elsewhere(rows: Snapshot, seen: dict[str, str], known_id: str, key: str) -> bool:
    """Tell whether an earlier row that is still there has an id, and note where the id is."""
    earlier = seen.setdefault(known_id, key)
    if earlier == key:
        return False
    # It may have been deleted since it was looked at, and imported again.
    if rows.get(earlier) is None:
        seen[known_id] = key
        return False
    return True


def _check_evidence(state: CheckState, key: str, number: int, entry: Entry) -> None:
    """See that the texts which a memory's evidence names are there, and kept for it."""
    place, rows = state.place, state.rows
    for digest in digests_in(entry.memory.evidence):
        content, use = f"{place.contents}{digest}", numbered(place.keys.uses(digest), number)
        if content not in rows.keys(content):
            state.note("evidence", f"{key}: the text {digest} that its evidence names is missing", key)
        if rows.get(use) is None:
            state.note("evidence", f"{key}: the text {digest} is not kept for it", key)


def _check_entry(state: CheckState, key: str, entry: Entry, node: int | None) -> None:
    memory, views = entry.memory, state.views
    if node is None or views.catalogue.find(memory.id) != node:
        state.note("view", f"{key}: the catalogue does not have this memory", key)
        return
    facts = views.catalogue.facts(np.array([node]))
    if views.catalogue.version_of(node) != entry.version or facts.created[0] != milliseconds(memory.created_at):
        state.note("view", f"{key}: the catalogue has another version of this memory", key)
    if facts.types[0] != TYPE_INDEX[memory.type]:
        state.note("view", f"{key}: the catalogue has another type of this memory", key)
    if node not in views.unindexed and set(views.words.terms(node)) != set(indexed_terms(memory)):
        state.note("view", f"{key}: its words are indexed wrongly", key)
    ends = []
    own: set[str] = set()
    for link in entry.links:
        target = views.catalogue.find(link.to_id)
        if target is None:
            state.note("link", f"{key}: the link {link.id} ends at no memory", key)
        else:
            ends.append(target)
        if link.id in own or _is_elsewhere(state.rows, state.links, link.id, key):
            state.note("link", f"{key}: there are two links of the id {link.id}", key)
        own.add(link.id)
    known = views.links.links(np.array([node]), "out")
    if sorted(ends) != sorted(known.targets.tolist()):
        state.note("view", f"{key}: its links are not those of the links view", key)


def _vectors(state: CheckState, key: str, value: bytes | Damaged | None) -> NDArray[np.float32] | None:
    try:
        return read_vectors(state.place, key, value)
    except StoreDamaged as error:
        if not isinstance(value, Damaged):
            state.note("damaged", error.findings[0], key)
        return None
