"""Writing memories and links: rows of the journal, and the views that follow."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.codec import Entry, vectors_to_bytes, write_entry
from mama_structs.memory.contents import digests_in
from mama_structs.memory.embedded.keys import Change, encode, numbered
from mama_structs.memory.embedded.reading import JournalReader, Place
from mama_structs.memory.embedded.touched import Touched
from mama_structs.memory.embedded.views import Views
from mama_structs.memory.engine import EmbedderRecord, Vectors
from mama_structs.memory.model import Link, Memory
from mama_structs.storage import Damaged, Rows

# How far a vector's length may be from 1, as in the vectors view.
_LENGTH = 1e-3
# Keys that are looked at together.
_PAGE = 100


class JournalWriter(JournalReader):
    """A `Writer` of the embedded engine, for one plan."""

    def __init__(
        self, rows: Rows, views: Views, place: Place, change: int, touched: Touched, *, damaged: int = 0
    ) -> None:
        super().__init__(rows, views, place, change, touched, damaged=damaged)
        self._writable = rows
        self._touched = touched
        self._before = change
        self._pending: dict[str, bytes | None] = {}
        self._undo: list[Callable[[], object]] = []
        self._own: int | None = None
        self._changed: set[int] = set()
        self._deleted: list[int] = []
        self._touched_now: set[int] = set()
        # False while a view is being changed: an error there leaves it half done.
        self._is_whole = True

    def put(
        self,
        memory: Memory,
        *,
        vectors: NDArray[np.float32] | None = None,
        links: Sequence[Link] = (),
        contents: Mapping[str, str] | None = None,
    ) -> int:
        """Store a memory, or a new version of one."""
        for link in links:
            self._check_link(link, memory.id)
        if vectors is not None:
            _check_vectors(vectors, self._place.embedder.dimensions)
        node = self.find(memory.id)
        if node is None:
            if vectors is None:
                raise ValueError("a new memory needs vectors")
            self._check_contents((), memory, contents or {})
            node = self._put_new(memory, vectors, links)
            self._keep(node, (), memory.evidence, contents or {})
        else:
            (before,) = self._entries([node])
            self._check_contents(before.memory.evidence, memory, contents or {})
            self._put_again(node, before, memory, vectors, links)
            self._keep(node, before.memory.evidence, memory.evidence, contents or {})
        return node

    def put_link(self, link: Link) -> None:
        """Store a link, replacing the one of that id."""
        self._check_link(link, link.from_id)
        source = self._node(link.from_id)
        (before,) = self._entries([source])
        self._put_again(source, before, before.memory, None, [link])

    def delete(self, memory_id: str) -> int:
        """Delete a memory and all its links, and return how many links that were."""
        node = self._node(memory_id)
        (entry,) = self._entries([node])
        incoming = [link for link in self.read_links(node, "in") if link.from_id != memory_id]
        self._drop_links(incoming)
        vectors = self.vectors(node)
        # The other end may have been left out as damaged.
        targets = [end for end in (self.find(link.to_id) for link in entry.links) if end is not None]
        number = self._views.catalogue.number_of(node)
        self._keep(node, entry.memory.evidence, (), {})
        self._is_whole = False
        self._views.remove(node)
        self._undo.append(lambda: self._bring_back(node, number, entry, vectors))
        self._is_whole = True
        self._pending[numbered(self._place.memories, number)] = None
        self._pending[numbered(self._place.vectors, number)] = None
        self._change_of_plan()
        self._changed.discard(number)
        self._deleted.append(number)
        self._touched_now.update([node, *targets])
        return len(entry.links) + len(incoming)

    def delete_links(self, link_ids: Collection[str]) -> int:
        """Delete links, and return how many of them there were."""
        found = [link for link in self.find_links(list(dict.fromkeys(link_ids))) if link is not None]
        self._drop_links(found)
        return len(found)

    def set_note(self, name: str, text: str | None) -> None:
        """Keep a text beside the memories, or forget it."""
        self._pending[f"{self._place.notes}{name}"] = None if text is None else text.encode()

    def put_vectors(self, embedder: EmbedderRecord, vectors: Mapping[str, Vectors]) -> None:
        """Store vectors of an embedder that do not count yet."""
        prefix = self._place.keys.vectors(embedder)
        for memory_id, found in vectors.items():
            node = self.find(memory_id)
            if node is not None:
                number = self._views.catalogue.number_of(node)
                self._pending[numbered(prefix, number)] = vectors_to_bytes(found)

    def finish(self) -> int:
        """Write the rows, and return the number of the last change."""
        if self._own is not None:
            change = Change(salt=secrets.token_hex(8), changed=sorted(self._changed), deleted=self._deleted)
            self._pending[numbered(self._place.changes, self._own)] = encode(change)
        for key, value in self._pending.items():
            if value is None:
                self._writable.delete(key)
            else:
                self._writable.put(key, value)
        if self._change != self._before:
            self._touched.note(self._change, self._touched_now)
        return self._change

    def undo(self) -> None:
        """Take back in the views what this plan did."""
        if not self._is_whole:
            raise RuntimeError("a view was left half changed")
        for step in reversed(self._undo):
            step()
        self._undo.clear()
        self._touched.forget(self._before)

    def _put_new(self, memory: Memory, vectors: NDArray[np.float32], links: Sequence[Link]) -> int:
        number = self._next_change()
        entry = Entry(memory, tuple(links), number)
        self._pending[numbered(self._place.memories, number)] = write_entry(entry)
        self._pending[numbered(self._place.vectors, number)] = vectors_to_bytes(vectors)
        self._is_whole = False
        node = self._views.add(number, entry, vectors)
        self._undo.append(lambda: self._views.remove(node))
        ends = self._views.link(node, links)
        self._is_whole = True
        self._touched_now.update([node, *ends])
        return node

    def _put_again(
        self,
        node: int,
        before: Entry,
        memory: Memory,
        vectors: NDArray[np.float32] | None,
        links: Sequence[Link],
    ) -> None:
        replaced = {link.id for link in links}
        kept = tuple(link for link in before.links if link.id not in replaced)
        after = Entry(memory, (*kept, *links), self._change_of_plan())
        self._rewrite(node, before, after, vectors)

    def _rewrite(self, node: int, before: Entry, after: Entry, vectors: NDArray[np.float32] | None) -> None:
        number = self._views.catalogue.number_of(node)
        self._pending[numbered(self._place.memories, number)] = write_entry(after)
        old_vectors = None
        if vectors is not None:
            old_vectors = self.vectors(node)
            self._pending[numbered(self._place.vectors, number)] = vectors_to_bytes(vectors)
        self._changed.add(number)
        self._is_whole = False
        ends = self._move(node, before, after, vectors)
        self._undo.append(lambda: self._move(node, after, before, old_vectors))
        self._is_whole = True
        self._touched_now.update([node, *ends])

    def _move(self, node: int, before: Entry, after: Entry, vectors: NDArray[np.float32] | None) -> list[int]:
        """Take the views from one version of a memory to another, and return the nodes whose links changed."""
        if before.memory != after.memory or vectors is not None:
            self._views.change(node, after, vectors)
        else:
            self._views.catalogue.change(
                node, version=after.version, topic=after.memory.topic, mentions=after.memory.mentions
            )
        gone = [link for link in before.links if link not in after.links]
        new = [link for link in after.links if link not in before.links]
        self._views.unlink(gone)
        ends = self._views.link(node, new)
        lost = [self.find(link.to_id) for link in gone]
        return ends + [end for end in lost if end is not None]

    def _drop_links(self, links: Sequence[Link]) -> None:
        by_source: dict[str, set[str]] = {}
        for link in links:
            by_source.setdefault(link.from_id, set()).add(link.id)
        for memory_id, link_ids in by_source.items():
            node = self._node(memory_id)
            (before,) = self._entries([node])
            kept = tuple(link for link in before.links if link.id not in link_ids)
            self._rewrite(node, before, attrs.evolve(before, links=kept, version=self._change_of_plan()), None)

    def _bring_back(self, node: int, number: int, entry: Entry, vectors: NDArray[np.float32]) -> None:
        self._views.restore(node, number, entry, vectors)

    def _keep(self, node: int, before: Iterable[str], after: Iterable[str], contents: Mapping[str, str]) -> None:
        """Keep the texts that a memory's evidence names now, and drop those that nobody names any more."""
        number = self._views.catalogue.number_of(node)
        named, kept = digests_in(before), digests_in(after)
        for digest in kept:
            if digest in contents:
                key, value = f"{self._place.contents}{digest}", contents[digest].encode()
                # One that is damaged is put right.
                if self._row(key) != value:
                    self._pending[key] = value
            if digest not in named:
                self._pending[numbered(self._place.keys.uses(digest), number)] = b""
        for digest in named:
            if digest not in kept:
                self._pending[numbered(self._place.keys.uses(digest), number)] = None
                if not self._is_named(digest):
                    self._pending[f"{self._place.contents}{digest}"] = None

    def _is_named(self, digest: str) -> bool:
        """Tell whether any memory names a kept text."""
        prefix = self._place.keys.uses(digest)
        if any(value is not None and key.startswith(prefix) for key, value in self._pending.items()):
            return True
        after = ""
        while page := self._rows.items(prefix, after=after, limit=_PAGE):
            if any(key not in self._pending for key, _ in page):
                return True
            after = page[-1][0]
        return False

    def _check_contents(self, before: Iterable[str], memory: Memory, contents: Mapping[str, str]) -> None:
        named = digests_in(before)
        for digest in digests_in(memory.evidence):
            # One that it named before may be lost: everything else can still be changed.
            if digest not in named and digest not in contents and not self.known_contents([digest]):
                raise KeyError(digest)

    def _next_change(self) -> int:
        self._change += 1
        return self._change

    def _change_of_plan(self) -> int:
        if self._own is None:
            self._own = self._next_change()
        return self._own

    def _check_link(self, link: Link, source: str) -> None:
        if link.from_id != source:
            raise ValueError(f"the link {link.id} begins at another memory")
        if link.to_id != source:
            self._node(link.to_id)
        else:
            raise ValueError(f"the link {link.id} leads to the memory where it begins")

    def _node(self, memory_id: str) -> int:
        node = self.find(memory_id)
        if node is None:
            raise KeyError(memory_id)
        return node

    def _row(self, key: str) -> bytes | Damaged | None:
        return self._pending[key] if key in self._pending else super()._row(key)

    def _keys_under(self, prefix: str) -> set[str]:
        pending = {key: value is not None for key, value in self._pending.items() if key.startswith(prefix)}
        return {key for key in super()._keys_under(prefix) | set(pending) if pending.get(key, True)}

    def _under(self, prefix: str) -> dict[str, bytes | Damaged]:
        pending = {key: value for key, value in self._pending.items() if key.startswith(prefix)}
        found: dict[str, Any] = super()._under(prefix) | pending
        return {key: value for key, value in found.items() if value is not None}

    def _many(self, keys: Sequence[str]) -> dict[str, bytes | Damaged]:
        stored: dict[str, Any] = super()._many([key for key in keys if key not in self._pending])
        return stored | {key: value for key in keys if (value := self._pending.get(key)) is not None}


def _check_vectors(vectors: NDArray[np.float32], dimensions: int) -> None:
    """Refuse what the views would refuse half-way."""
    if vectors.ndim != 2 or not len(vectors) or vectors.shape[1] != dimensions:  # noqa: PLR2004 - rows
        raise ValueError(f"vectors must be of shape (pieces, {dimensions}), got {vectors.shape}")
    if not (np.abs(np.linalg.norm(vectors.astype(np.float64), axis=1) - 1) <= _LENGTH).all():
        raise ValueError("vectors must be finite and of length 1")
