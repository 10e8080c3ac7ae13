"""Copying of the memories of one namespace to another engine, and verification of the copy."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NoReturn

import attrs
import msgspec
import numpy as np

from mama_structs._internal.offload import InputSize, run_inline_or_in_thread
from mama_structs.errors import StoreDamaged, StoreMismatch
from mama_structs.memory.types.codec import vectors_from_bytes, vectors_to_bytes
from mama_structs.memory.types.engine import Engine, NewMemory, Reader, Writer, write_in_transactions
from mama_structs.memory.types.model import Link
from mama_structs.memory.types.record import INDEX_NOTE, is_index_note
from mama_structs.memory.upkeep.jsonl_transfer import (
    ExportPage,
    MemoryExport,
    iter_export_pages,
    put_links,
    serialize_memory,
)

BATCH_MEMORIES: Final = 32
# Estimated cost of a memory, as a number of items. The estimate decides whether a computation runs in a thread.
ITEMS_PER_MEMORY: Final = 20
MAX_ERROR_IDS: Final = 10
MAX_MESSAGE_IDS: Final = 3
DIGEST_BYTES: Final = 16
DEFAULT_HINT: Final = "nothing there was replaced or deleted; copy into a new place, or into one that nobody writes to"

_encode: Final = msgspec.json.Encoder().encode


@attrs.define(eq=False)
class CopyDigest:
    """Number and digest of the copied items of each kind, for comparing a copy with its source."""

    counts: Counter[str] = attrs.field(factory=Counter)
    _hashes: dict[str, Any] = attrs.field(factory=dict)

    def add(self, kind: str, data: bytes, count: int = 1) -> None:
        """Count items of a kind, and add their serialized form to the digest of the kind."""
        self.counts[kind] += count
        self._hashes.setdefault(kind, blake2b(digest_size=DIGEST_BYTES)).update(data)

    @property
    def digests(self) -> Mapping[str, str]:
        """The hexadecimal digest of each kind of items."""
        return {kind: found.hexdigest() for kind, found in self._hashes.items()}


def raise_store_mismatch(namespace: str, what: str, ids: Sequence[str], *, hint: str = DEFAULT_HINT) -> NoReturn:
    """Raise `StoreMismatch` for a copy that differs from its source. The message names up to three ids."""
    named = ", ".join(f"{one!r:.100}" for one in ids[:MAX_MESSAGE_IDS]) + (
        f" and {len(ids) - MAX_MESSAGE_IDS} more" * (len(ids) > MAX_MESSAGE_IDS)
    )
    raise StoreMismatch(
        f"the namespace {namespace!r:.80} of the copy {what}{': ' * bool(ids)}{named}",
        namespace=namespace,
        ids=tuple(ids[:MAX_ERROR_IDS]),
        hint=hint,
    )


@attrs.define(eq=False)
class _CopyBatch:
    """Result of one transaction of a copy: counts, and links to memories that are not copied yet."""

    done: int = 0
    added: int = 0
    waiting: list[Link] = attrs.field(factory=list)


@attrs.define(eq=False)
class NamespaceCopier:
    """
    One run that copies a namespace.

    *report_progress* is called for each copied or compared page, with its number of memories.
    """

    source: Engine
    target: Engine
    report_progress: Callable[[int], object]
    digest: CopyDigest
    damaged: list[str] = attrs.field(factory=list, init=False)
    added: int = attrs.field(default=0, init=False)
    # Number of unreadable memories, which are not copied.
    missing: int = attrs.field(default=0, init=False)
    # Reasons why readable memories are not copied, by id.
    _lost: dict[str, str] = attrs.field(factory=dict, init=False)
    # Reasons why notes are not copied, by name.
    _unreadable_notes: dict[str, str] = attrs.field(factory=dict, init=False)
    _waiting: dict[str, list[Link]] = attrs.field(factory=dict, init=False)
    _dropped: set[str] = attrs.field(factory=set, init=False)

    async def run(self) -> None:
        """Add missing data to the copy, then compare the whole copy. Existing data is never replaced or deleted."""
        before = await self.source.read(lambda reader: reader.change)
        if await self.target.read(lambda reader: bool(reader.count() or _note_names(reader))):
            await self._check_target_is_subset()
        # This also creates the namespace if there is nothing to copy. The index of the copy lacks the copied records.
        await self.target.write(lambda writer: writer.set_note(INDEX_NOTE, None))
        async for notes in self._notes():
            await self.target.write(lambda writer: writer.set_notes(notes))  # noqa: B023 - awaited
        async for page in iter_export_pages(self.source):
            await self._put(await self._without_dropped_links(page))
            self.report_progress(len(page.lines))
        await self._compare()
        if before != await self.source.read(lambda reader: reader.change):
            raise_store_mismatch(self.source.namespace, "is not of one moment: the source was written to meanwhile", [])
        await self._list_damage()

    async def _notes(self) -> AsyncIterator[Mapping[str, str]]:
        """Yield the notes in batches, because there may be many large notes."""
        names = await self.source.read(_note_names)
        for start in range(0, len(names), BATCH_MEMORIES):
            some = names[start : start + BATCH_MEMORIES]
            try:
                yield await self.source.read(lambda reader: reader.notes_by_name(some))  # noqa: B023 - awaited
            except StoreDamaged:
                yield await self._read_valid_notes(some)

    async def _read_valid_notes(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return the notes that are readable."""
        found: dict[str, str] = {}
        for name in names:
            try:
                found |= await self.source.read(lambda reader: reader.notes_by_name([name]))  # noqa: B023 - awaited
            except StoreDamaged as error:
                self._unreadable_notes[name] = "; ".join(error.findings)
        return found

    async def _list_damage(self) -> None:
        self.missing = await self.source.read(lambda reader: reader.damaged)
        if self.missing:
            self.damaged += [one.message for one in await self.source.check() if one.kind == "damaged"]
        self.damaged += [f"{one}: {why}" for one, why in {**self._lost, **self._unreadable_notes}.items()]
        if self._dropped:
            self.damaged.append(f"{len(self._dropped)} links lead to what is left out")

    async def _check_target_is_subset(self) -> None:
        """Raise an error if the copy contains data that is missing or different in the source."""
        name = self.source.namespace
        ids, names = await self.target.read(lambda reader: (reader.ids(reader.window()), _note_names(reader)))
        found = await self.source.read(lambda reader: reader.find_many(ids))
        if others := [one for one, node in zip(ids, found, strict=True) if node is None]:
            raise_store_mismatch(name, "has memories that the source has not", others)
        others = await self.source.read(lambda reader: sorted({*names}.difference(_note_names(reader))))
        async for notes in self._notes():
            there = await self.target.read(lambda reader: reader.notes_by_name([*notes]))  # noqa: B023 - awaited
            others += [one for one, text in there.items() if notes[one] != text]
        if others:
            raise_store_mismatch(name, "has notes that the source has not", others)
        async for page in iter_export_pages(self.source):
            whole = await self._without_dropped_links(page)
            await self.target.read(lambda reader: self._find_missing_links(reader, whole))  # noqa: B023 - awaited

    async def _without_dropped_links(self, page: ExportPage) -> list[MemoryExport]:
        """Return the memories of a page without their links to memories that are not copied."""
        self._lost |= {memory_id: "; ".join(error.findings) for memory_id, error in page.lost.items()}
        load = InputSize(items=sum(ITEMS_PER_MEMORY + len(one.links) for one in page.lines))
        ends = await run_inline_or_in_thread(
            load, lambda: list(dict.fromkeys(link.to_id for one in page.lines for link in one.links))
        )
        found = await self.source.read(lambda reader: reader.find_many(ends))
        there = {end for end, node in zip(ends, found, strict=True) if node is not None and end not in self._lost}

        def without_dropped() -> list[MemoryExport]:
            self._dropped.update(link.id for one in page.lines for link in one.links if link.to_id not in there)
            return [
                attrs.evolve(
                    one,
                    links=[link for link in one.links if link.to_id in there],
                    vectors=self._in_target_precision(one.vectors),
                )
                for one in page.lines
            ]

        return await run_inline_or_in_thread(load, without_dropped)

    def _in_target_precision(self, vectors: bytes) -> bytes:
        """Return vectors in the precision of the target's stored vectors."""
        if self.target.figures().get("vectors", {}).get("kept_as") != "halfvec":
            return vectors
        return vectors_to_bytes(vectors_from_bytes(vectors, self.source.embedder.dimensions).astype(np.float16))

    async def _put(self, items: Sequence[MemoryExport]) -> None:
        rest = items
        while rest:
            taken = await self.target.write(lambda writer: self._store_batch(writer, rest))  # noqa: B023 - awaited
            done, rest = rest[: taken.done], rest[taken.done :]
            self.added += taken.added
            for link in taken.waiting:
                self._waiting.setdefault(link.to_id, []).append(link)
            awaited: dict[str, list[Link]] = {}
            for one in done:
                for link in self._waiting.pop(one.memory.id, ()):
                    awaited.setdefault(link.from_id, []).append(link)
            async for _ in write_in_transactions(
                self.target.write, [*awaited.items()], put_links, max_items=BATCH_MEMORIES
            ):
                pass

    def _store_batch(self, writer: Writer, rest: Sequence[MemoryExport]) -> _CopyBatch:
        """Write memories with texts and links, in order, until the transaction should yield to other writers."""
        taken = _CopyBatch()
        while taken.done < len(rest) and not (taken.done and writer.should_yield):
            some = rest[taken.done : taken.done + BATCH_MEMORIES]
            lacking = self._find_missing_links(writer, some)
            new = [one for one in some if one.memory.id not in lacking]
            links = {one.memory.id: lacking.get(one.memory.id, one.links) for one in some}
            ends = list(dict.fromkeys(link.to_id for own in links.values() for link in own))
            there = {one.memory.id for one in new}
            there.update(end for end, node in zip(ends, writer.find_many(ends), strict=True) if node is not None)
            ready = {one: [link for link in own if link.to_id in there] for one, own in links.items()}
            taken.waiting += [link for own in links.values() for link in own if link.to_id not in there]
            self._put_new(writer, new, [ready[one.memory.id] for one in new], some)
            for one in some:
                if one.memory.id in lacking and ready[one.memory.id]:
                    writer.put(one.memory, links=ready[one.memory.id])
            taken.done += len(some)
            taken.added += len(new)
        return taken

    def _put_new(
        self, writer: Writer, new: Sequence[MemoryExport], links: Sequence[Sequence[Link]], some: Sequence[MemoryExport]
    ) -> None:
        # Use the texts of the whole batch, because the memory exported with a text may already exist in the copy.
        texts = {digest: text for one in some for digest, text in one.texts.items()}
        dimensions = self.source.embedder.dimensions
        made = [
            NewMemory(memory=one.memory, vectors=vectors_from_bytes(one.vectors, dimensions), contents=texts)
            for one in new
        ]
        try:
            writer.put_new(made, lambda _nodes: links)
        except KeyError as error:
            hint = "rebuild or restore it, or copy into a new place"
            raise_store_mismatch(
                self.source.namespace, "has lost texts that its memories name", [str(error.args[0])], hint=hint
            )

    def _find_missing_links(self, reader: Reader, items: Sequence[MemoryExport]) -> dict[str, list[Link]]:
        """
        Return the links that existing memories lack, by memory id.

        Raise `StoreMismatch` if an existing memory differs otherwise.
        """
        lacking, others = {}, []
        stored = self._read_existing(reader, items)
        for one in items:
            if (have := stored.get(one.memory.id)) is not None:
                own, there = ({link.id: link for link in links} for links in (one.links, have.links))
                if (one.memory, one.vectors) != (have.memory, have.vectors) or not there.items() <= own.items():
                    others.append(one.memory.id)
                lacking[one.memory.id] = [link for link in one.links if link.id not in there]
        if others:
            raise_store_mismatch(
                self.source.namespace, "has memories of the same ids with other content, links or vectors", others
            )
        return lacking

    def _read_existing(self, reader: Reader, items: Sequence[MemoryExport]) -> dict[str, MemoryExport]:
        """Return the memories that the target already contains, in the target's save order."""
        nodes = sorted(node for node in reader.find_many([one.memory.id for one in items]) if node is not None)
        found, links = reader.get(nodes), reader.links_of_many(nodes, "out")
        vectors, counts = reader.pieces(nodes)
        stored, begin = {}, 0
        for memory, own, count in zip(found, links, counts.tolist(), strict=True):
            pieces = vectors_to_bytes(vectors[begin : begin + count])
            stored[memory.id], begin = MemoryExport(memory, own, pieces, {}), begin + count
        return stored

    async def _compare(self) -> None:
        """Compare the whole copy with the source, including the save order."""
        last = -1
        async for page in iter_export_pages(self.source):
            whole = await self._without_dropped_links(page)
            digests = [digest for one in whole for digest in one.texts]
            stored, texts, ends = await self.target.read(
                lambda reader: (
                    self._read_existing(reader, whole),  # noqa: B023 - awaited
                    reader.contents(digests),  # noqa: B023 - awaited
                    self._first_and_last_node(reader, whole),  # noqa: B023 - awaited
                )
            )
            compare = functools.partial(self._compare_page, whole, stored, texts, is_next=not ends or ends[0] > last)
            links = sum(len(one.links) for one in whole)
            await run_inline_or_in_thread(InputSize(items=ITEMS_PER_MEMORY * len(whole) + links), compare)
            last = ends[-1] if ends else last
            self.report_progress(len(page.lines))
        await self._compare_notes_and_counts()

    def _compare_page(
        self,
        whole: Sequence[MemoryExport],
        stored: Mapping[str, MemoryExport],
        texts: Mapping[str, str],
        *,
        is_next: bool,
    ) -> None:
        """
        Compare and count the memories of one page.

        *is_next* is False if the target did not save them after those of the previous page.
        """
        name = self.source.namespace
        written = {one: serialize_memory(have.memory, have.links, have.vectors) for one, have in stored.items()}
        wanted = {one.memory.id: serialize_memory(one.memory, one.links, one.vectors) for one in whole}
        if others := [one for one in wanted if written.get(one) != wanted[one]]:
            raise_store_mismatch(name, "lacks memories, or has them otherwise", others)
        if list(written) != list(wanted) or not is_next:
            raise_store_mismatch(name, "has the memories in another order", list(wanted))
        if others := [one for exported in whole for one in exported.texts if texts[one] != exported.texts[one]]:
            raise_store_mismatch(name, "has other texts", others)
        for one in whole:
            self.digest.add("memories", serialize_memory(one.memory, (), one.vectors))
            for link in sorted(one.links, key=lambda link: (link.created_at, link.id)):
                self.digest.add("links", _encode(link))
        for digest in (digest for one in whole for digest in one.texts):
            self.digest.add("texts", digest.encode())

    async def _compare_notes_and_counts(self) -> None:
        """Compare the notes and the total counts of the copy and the source."""
        others: list[str] = []
        async for notes in self._notes():
            there = await self.target.read(lambda reader: reader.notes_by_name([*notes]))  # noqa: B023 - awaited
            others += [one for one, text in notes.items() if there.get(one) != text]
            for note in notes.items():
                self.digest.add("notes", _encode(note))
        count, names = await self.target.read(lambda reader: (reader.count(), _note_names(reader)))
        if count != self.digest.counts["memories"] or others or len(names) != self.digest.counts["notes"]:
            counted = [f"{count} memories", f"{len(names)} notes"]
            raise_store_mismatch(self.source.namespace, "has more or less than the source", counted)

    def _first_and_last_node(self, reader: Reader, items: Sequence[MemoryExport]) -> list[int]:
        """Return the lowest and the highest node of the existing items, or an empty list if none exists."""
        nodes = [node for node in reader.find_many([one.memory.id for one in items]) if node is not None]
        return [min(nodes), max(nodes)] if nodes else []


def _note_names(reader: Reader) -> list[str]:
    """Return the names of all notes without the index of records. Each store derives its own index."""
    return [name for name in reader.note_names() if not is_index_note(name)]
