"""Consistency check: comparison of a namespace's views with its journal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np

from mama_structs.errors import StoreDamaged
from mama_structs.memory.engines.local.journal_rows import RowKeys, number_key, parse_number, read_change, read_cleanup
from mama_structs.memory.engines.local.views.memory_table import TYPE_INDEX
from mama_structs.memory.engines.local.views.view_set import ViewSet
from mama_structs.memory.types.codec import Entry, content_digests, indexed_terms
from mama_structs.memory.types.model import is_digest, to_milliseconds
from mama_structs.storage.sealed_rows import DamagedValue, Snapshot
from mama_structs.storage.sqlite_errors import Issue

# Maximum number of characters of evidence texts to check per step.
MAX_TEXT_CHARS_PER_STEP: Final = 2**20


@attrs.define
class ConsistencyCheck:
    """
    Consistency check of one namespace, run in steps.

    Each step receives the current rows, views and row keys.
    """

    # Number of rows per step.
    _page_rows: int
    rows: Snapshot = attrs.field(init=False)
    views: ViewSet = attrs.field(init=False)
    row_keys: RowKeys = attrs.field(init=False)
    findings: list[Issue] = attrs.field(factory=list, init=False)
    memories: int = attrs.field(default=0, init=False)
    _steps: Iterator[bool] = attrs.field(init=False)
    # By memory id: the key of the first row with this id.
    _ids: dict[str, str] = attrs.field(factory=dict, init=False)
    _links: dict[str, str] = attrs.field(factory=dict, init=False)
    # Ids of deleted memories to which rows may still contain links.
    _dead: set[str] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._steps = self._check_all()

    def step(self, rows: Snapshot, views: ViewSet, place: RowKeys) -> bool:
        """Run the next step. Return False when the check is complete."""
        self.rows, self.views, self.row_keys = rows, views, place
        return next(self._steps)

    def _check_all(self) -> Iterator[bool]:
        for part in (
            self._check_memories,
            self._check_vectors,
            self._check_changes,
            self._check_table,
            self._check_contents,
            self._check_uses,
            self._check_notes,
        ):
            for _ in part():
                yield True
        yield False

    def _pages(self, prefix: str, size: int | None = None) -> Iterator[list[tuple[str, bytes | DamagedValue]]]:
        """Yield all rows with a key prefix, page by page. Each page is read when its step runs."""
        after = ""
        while page := self.rows.items(prefix, after=after, limit=size or self._page_rows):
            after = page[-1][0]
            yield page

    def _add_issue(self, kind: str, key: str, message: str) -> None:
        self.findings.append(Issue("error", kind, f"{key}: {message}", key))

    def _add_damage(self, key: str, error: StoreDamaged, value: object = None, *, kind: str = "damaged") -> None:
        """
        Report unreadable content.

        Rows with an invalid checksum are skipped, because the check of all rows reports them.
        """
        if not isinstance(value, DamagedValue):
            self.findings.append(Issue("error", kind, error.findings[0], key))

    def _add_foreign_key(self, key: str) -> None:
        self.findings.append(Issue("error", "foreign", f"{key:.200}: the key is none of the memories' own", key))

    def _check_memories(self) -> Iterator[None]:
        """Compare the memories with the views."""
        for page in self._pages(self.row_keys.memories):
            place = self.row_keys
            numbers = {key: parse_number(place.memories, key) for key, _ in page}
            keys = {key: number_key(place.vectors, number) for key, number in numbers.items() if number is not None}
            vectors = self.rows.get_many(list(keys.values()))
            self._dead = {dead.id for _, dead in place.read_cleanups(self.rows)}
            for key, value in page:
                number = numbers[key]
                if number is None:
                    self._add_foreign_key(key)
                    continue
                self.memories += 1
                try:
                    entry = place.entry(key, value)
                except StoreDamaged as error:
                    self._add_damage(key, error, value)
                    continue
                self._check_evidence(key, number, entry)
                self._check_indexes(key, number, entry, vectors.get(keys[key]))
            yield

    def _check_vectors(self) -> Iterator[None]:
        """Check that all vectors belong to a memory."""
        others: set[str] = set()
        for page in self._pages(self.row_keys.all_vectors):
            place = self.row_keys
            own = {key: parse_number(place.vectors, key) for key, _ in page}
            memories = {key: number_key(place.memories, number) for key, number in own.items() if number is not None}
            found = self.rows.get_many(list(memories.values()))
            for key in own:
                folder = key.rpartition("/")[0]
                if key in memories:
                    if memories[key] not in found:
                        self._add_issue("orphan", key, "vectors without a memory")
                elif folder + "/" == place.vectors or parse_number(folder + "/", key) is None:
                    self._add_foreign_key(key)
                elif folder not in others:
                    others.add(folder)
                    message = (
                        f"{folder}: vectors of another embedder, left by an interrupted `reembed`; "
                        "the next one that is completed deletes them"
                    )
                    self.findings.append(Issue("warning", "orphan", message, key))
            yield

    def _check_changes(self) -> Iterator[None]:
        """Check the change rows, and the clean-up rows of deleted memories."""
        for prefix, read, form in (
            (self.row_keys.changes, read_change, "it does not have the form of a change"),
            (
                self.row_keys.all_cleanups,
                read_cleanup,
                "it does not say what is to be cleaned up after a deleted memory",
            ),
        ):
            for page in self._pages(prefix):
                for key, value in page:
                    if parse_number(key.rpartition("/")[0] + "/", key) is None:
                        self._add_foreign_key(key)
                        continue
                    try:
                        if not isinstance(value, DamagedValue):
                            read(value)
                    except (ValueError, RecursionError):
                        self._add_issue("damaged", key, form)
                yield

    def _check_table(self) -> Iterator[None]:
        """Check that every memory in the views has a row."""
        catalogue = self.views.memory_table
        # Use journal numbers instead of nodes, because a rebuild of the views between two steps renumbers the nodes.
        numbers = catalogue.numbers(catalogue.after(-1, None))
        for start in range(0, len(numbers), self._page_rows):
            keys = {
                number_key(self.row_keys.memories, number): number
                for number in numbers[start : start + self._page_rows]
            }
            found = self.rows.get_many(list(keys))
            for key, number in keys.items():
                if key not in found and self.views.memory_table.node_of(number) is not None:
                    self._add_issue("view", key, "the catalogue has a memory that the journal does not have")
            yield

    def _check_contents(self) -> Iterator[None]:
        """Check the evidence texts."""
        count = characters = 0
        # Read one text per page, because each may be long.
        for ((key, value),) in self._pages(self.row_keys.contents, 1):
            place = self.row_keys
            digest = key.removeprefix(place.contents)
            if is_digest(digest):
                try:
                    characters += len(place.content(key, value))
                except StoreDamaged as error:
                    self._add_damage(key, error, kind="evidence")
                if self.rows.last_key(place.uses_prefix(digest)) is None:
                    self._add_issue("orphan", key, "a kept text that no memory names")
            else:
                self._add_foreign_key(key)
            count += 1
            if count == self._page_rows or characters > MAX_TEXT_CHARS_PER_STEP:
                count = characters = 0
                yield

    def _check_uses(self) -> Iterator[None]:
        """Check that each recorded use of an evidence text belongs to a memory that refers to the text."""
        for page in self._pages(self.row_keys.all_uses):
            place = self.row_keys
            numbers = {key: parse_number(key.rpartition("/")[0] + "/", key) for key, _ in page}
            memories = {
                key: number_key(place.memories, number) for key, number in numbers.items() if number is not None
            }
            found = self.rows.get_many(list(set(memories.values())))
            for key in numbers:
                digest = key.removeprefix(place.all_uses).rpartition("/")[0]
                if key not in memories or not is_digest(digest):
                    self._add_foreign_key(key)
                    continue
                memory = found.get(memories[key])
                try:
                    named = memory is not None and digest in content_digests(place.memory(memories[key], memory))
                except StoreDamaged:
                    # The evidence of a damaged memory is unknown, so do not report the uses of its texts.
                    continue
                if not named:
                    self._add_issue("orphan", key, "a text is kept for a memory that does not name it")
            yield

    def _check_notes(self) -> Iterator[None]:
        """Check the notes."""
        for page in self._pages(self.row_keys.notes):
            for key, value in page:
                try:
                    self.row_keys.note(key, value)
                except StoreDamaged as error:
                    self._add_damage(key, error, value)
            yield

    def _is_duplicate_id(self, seen: dict[str, str], known_id: str, key: str) -> bool:
        """Return True if an earlier row with the same id still exists. Otherwise record this row's key for the id."""
        earlier = seen.setdefault(known_id, key)
        if earlier == key:
            return False
        # The earlier row may have been deleted after its check, and its memory imported again under this key.
        if self.rows.get(earlier) is None:
            seen[known_id] = key
            return False
        return True

    def _check_evidence(self, key: str, number: int, entry: Entry) -> None:
        """Check that the texts of a memory exist, and that their use by the memory is recorded."""
        place, rows = self.row_keys, self.rows
        for digest in content_digests(entry.memory):
            content, use = f"{place.contents}{digest}", number_key(place.uses_prefix(digest), number)
            if content not in rows.keys(content):
                self._add_issue("evidence", key, f"the text {digest} of its evidence or former versions is missing")
            if rows.get(use) is None:
                self._add_issue(
                    "evidence", key, f"the text {digest} of its evidence or former versions is not kept for it"
                )

    def _check_indexes(self, key: str, number: int, entry: Entry, stored: bytes | DamagedValue | None) -> None:
        """Compare one memory and its *stored* vectors with the views."""
        vector_key = number_key(self.row_keys.vectors, number)
        try:
            vectors = self.row_keys.read_vectors(vector_key, stored)
        except StoreDamaged as error:
            # The views omit damaged memories, so there is nothing to compare.
            self._add_damage(vector_key, error, stored)
            return
        if self._is_duplicate_id(self._ids, entry.memory.id, key):
            self._add_issue("damaged", key, "another memory has the same id")
            return
        node = self.views.memory_table.node_of(number)
        if node is None or self.views.memory_table.find(entry.memory.id) != node:
            self._add_issue("view", key, "the catalogue does not have this memory")
        else:
            self._check_entry(key, entry, node)
        if node is not None and not self.views.has_vectors(node, vectors):
            self._add_issue("view", vector_key, "the vectors view has other vectors")

    def _check_entry(self, key: str, entry: Entry, node: int) -> None:
        memory, views = entry.memory, self.views
        facts = views.memory_table.facts(np.array([node]))
        if views.memory_table.version_of(node) != entry.version or facts.created[0] != to_milliseconds(
            memory.created_at
        ):
            self._add_issue("view", key, "the catalogue has another version of this memory")
        if facts.types[0] != TYPE_INDEX[memory.type]:
            self._add_issue("view", key, "the catalogue has another type of this memory")
        if node not in views.unindexed_nodes and set(views.words.terms(node)) != set(indexed_terms(memory)):
            self._add_issue("view", key, "its words are indexed wrongly")
        ends = []
        own: set[str] = set()
        for link in entry.links:
            target = views.memory_table.find(link.to_id)
            if target is None:
                if link.to_id in self._dead:
                    # Readers do not see this link, and the pending clean-up removes it, so it is no issue.
                    continue
                self._add_issue("link", key, f"the link {link.id} ends at no memory")
            else:
                ends.append(target)
            if link.id in own or self._is_duplicate_id(self._links, link.id, key):
                self._add_issue("link", key, f"there are two links of the id {link.id}")
            own.add(link.id)
        known = views.links.links(np.array([node]), "out")
        if sorted(ends) != sorted(known.targets.tolist()):
            self._add_issue("view", key, "its links are not those of the links view")
