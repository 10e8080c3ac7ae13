"""
Writer of imported data to the memories and records of a session.

The id of each memory is derived from its key in the source, so that a repeated import finds it. A note in the store
lists all imported items. An item that is on the list but no longer in the store was deleted, and is not imported again.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs
import msgspec

from mama_structs.errors import InvalidArgument
from mama_structs.importers.shared.import_model import (
    ImportedData,
    ImportedLink,
    ImportedMemory,
    ImportedRecord,
    compute_digest,
)
from mama_structs.importers.shared.import_report import ImportReport, ItemCount
from mama_structs.importers.shared.item_keys import item_key, join_keys, split_chunks, split_keys
from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.save.automatic_links import LinkingContext
from mama_structs.memory.save.save_plan import BatchSizer, PreparedSave
from mama_structs.memory.types.codec import Entry, encode_entry
from mama_structs.memory.types.engine import ProgressCallback, Reader, Writer, write_in_transactions
from mama_structs.memory.types.model import LinkType, Memory, MemoryType, make_slug
from mama_structs.memory.types.record import NewRecord, Record, check_new_record
from mama_structs.memory.types.relationships import normalize_relationship
from mama_structs.memory.types.requests import LinkRequest, parse_request
from mama_structs.memory.upkeep.namespace_services import NamespaceServices

IMPORT_MARK_KEY: Final = "imported"
"""The key in a memory's metadata for the source of an imported memory."""
NOTE_PREFIX: Final = "import/"
BATCH_SIZE: Final = 64
# The configured maximum length applies to new memories only, so imported texts may be longer.
MAX_IMPORTED_CHARS: Final = 2**28
ID_TAKEN_NOTE: Final = "a memory of that id is there that no import made"
CHANGED_NOTE: Final = "the source has it otherwise than when it was taken over: what is here is left as it is"
DELETED_NOTE: Final = "it was taken over before, and deleted here since; again=True (--again) takes it over again"
DUPLICATE_NOTE: Final = "the source says the same before"


@attrs.define(eq=False)
class ImportWriter:
    """One run of `mama_structs.importers.import_from`. Problems are added to the report entries of *outside*."""

    shared: NamespaceServices
    records: RecordStore
    outside: ImportedData
    dry_run: bool
    again: bool
    progress: ProgressCallback | None
    added: Counter[str] = attrs.field(init=False, factory=Counter)
    known: Counter[str] = attrs.field(init=False, factory=Counter)
    done: int = attrs.field(init=False, default=0)
    settled: set[bytes] = attrs.field(init=False, factory=set)
    # Maps keys of the source to the ids of memories that exist or are added in this run.
    ids: dict[str, str] = attrs.field(init=False, factory=dict)

    async def run(self) -> ImportReport:
        """Add the missing items, and return the report."""
        begun = time.perf_counter()
        self.settled = await self.shared.read(partial(_read_imported_keys, kind=self.outside.kind))
        before = len(self.settled)
        self._report_progress(sum(one.skipped for one in self.outside.odd))
        drafts = await self._draft_memories()
        await self._add_memories(await self._select_new_memories(drafts))
        await self._add_links()
        await self._add_records()
        # No step counts the items that this run leaves out, so count them here to complete the progress.
        self._report_progress(self._total_items - self.done)
        if not self.dry_run and len(self.settled) > before:
            await self.shared.write(partial(_add_imported_keys, kind=self.outside.kind, keys=self.settled))
        return ImportReport(
            kind=self.outside.kind,
            source=self.outside.source,
            namespace=self.shared.engine.namespace,
            dry_run=self.dry_run,
            items=tuple(
                ItemCount(
                    item=what,
                    total=found,
                    added=self.added[what],
                    existing=self.known[what],
                    skipped=found - self.added[what] - self.known[what],
                )
                for what, found in self.outside.found.items()
            ),
            warnings=tuple(self.outside.odd),
            seconds=time.perf_counter() - begun,
        )

    # Memories

    async def _draft_memories(self) -> list[tuple[ImportedMemory, PreparedSave]]:
        """Return the memories to save, deduplicated by key. Invalid memories and duplicates are reported."""
        drafts: dict[str, tuple[ImportedMemory, PreparedSave]] = {}
        for position, one in enumerate(self.outside.memories):
            if position % saving.RECORDS_PER_YIELD == 0:
                await asyncio.sleep(0)
            if one.key in drafts:
                self.outside.leave_out(one.what, one.key, "said_twice", DUPLICATE_NOTE)
                continue
            try:
                drafts[one.key] = one, self._draft(one)
            except (InvalidArgument, ValueError, OverflowError, RecursionError) as error:
                why = error.args[0] if isinstance(error, InvalidArgument) else "it has a value that cannot be written"
                self.outside.leave_out(one.what, one.key, "refused", why)
        return list(drafts.values())

    def _draft(self, one: ImportedMemory) -> PreparedSave:
        request = parse_request({**one.record, "origin": "outside"}, now=self.shared.now)
        memory = request.memory(self.shared.engine.namespace, now=self.shared.now, max_content=MAX_IMPORTED_CHARS)
        kind = self.outside.kind
        # Exclude the creation time, because it may be the modification time of the file.
        digest = compute_digest(memory.content, memory.topic or "", _encode_metadata(memory))
        mark = {"from": kind, "key": one.key, "digest": digest}
        title = memory.topic or memory.content
        extra = {**one.extra, IMPORT_MARK_KEY: mark}
        memory = attrs.evolve(
            memory,
            # The time part of the id is always 0, because the creation time in the source may change.
            id=f"{memory.type.value}_{make_slug(title, max_chars=40)}_{0:013}_{compute_digest(kind, one.key)[:8]}",
            metadata=attrs.evolve(memory.metadata, extra=extra),
        )
        encode_entry(Entry(memory))
        return PreparedSave(request=request, memory=memory, now=self.shared.now)

    async def _select_new_memories(self, drafts: Sequence[tuple[ImportedMemory, PreparedSave]]) -> list[PreparedSave]:
        """
        Return the memories to add.

        A memory is reported instead if it was deleted after an earlier import, or if another memory has its id.
        An existing memory is reported if the source has changed since.
        """
        new = []
        for some in split_chunks(drafts, BATCH_SIZE):
            there = await self.shared.read(partial(_find_memories, ids=[draft.memory.id for _, draft in some]))
            for one, draft in some:
                memory = draft.memory
                present = there.get(memory.id)
                if present is not None and _read_mark(present).get("key") != one.key:
                    self.outside.leave_out(one.what, one.key, "id_taken", ID_TAKEN_NOTE)
                elif present is None and self._was_imported(memory.id):
                    self.outside.leave_out(one.what, one.key, "deleted_since", DELETED_NOTE)
                else:
                    self.ids[one.key] = memory.id
                    self.settled.add(item_key(memory.id))
                    if present is None:
                        new.append(draft)
                        self.added[one.what] += 1
                        continue
                    self.known[one.what] += 1
                    if _read_mark(present).get("digest") != _read_mark(memory)["digest"]:
                        self.outside.add_odd(one.what, one.key, "changed_since", CHANGED_NOTE)
                self._report_progress(1)
        return new

    async def _add_memories(self, new: Sequence[PreparedSave]) -> None:
        if self.dry_run:
            self._report_progress(len(new))
            return
        pace = BatchSizer()
        for chunk in split_chunks(new, BATCH_SIZE):
            record = self.shared.record
            prepared = await saving.prepare_saves(self.shared.embedding, chunk, self.shared.find_mentions)
            while prepared:
                save = partial(_save_new, prepared=prepared, pace=pace, linking=self._linking)
                gone = await self.shared.write(save, made_by=record)
                prepared = [one for one in prepared if one.memory.id not in gone]
            self._report_progress(len(chunk))

    @property
    def _linking(self) -> LinkingContext:
        """The settings of automatic linking during an import."""
        linking = self.shared.linking
        # Do not link by time, because items of one file may be unrelated.
        # Do not detect conflicts, because an import does not report them and the detection would take half of the time.
        policy = attrs.evolve(linking.policy, max_temporal=0)
        return attrs.evolve(linking, policy=policy, detects_conflicts=False)

    # Links

    async def _add_links(self) -> None:
        asked = list(self._iter_links())
        words = sorted({one.request.relationship for one in asked if not self.dry_run})
        put = partial(
            _put_link, types=await saving.resolve_link_types(self.shared.embedding, words), shared=self.shared
        )
        seen: set[str] = set()
        for some in split_chunks(asked, BATCH_SIZE):
            there = await self.shared.read(lambda reader: [_is_linked(reader, one) for one in some])  # noqa: B023 - awaited
            new = []
            for one, is_there in zip(some, there, strict=True):
                if one.key in seen:
                    if one.link.is_explicit:
                        self.outside.leave_out(one.link.what, one.name, "said_twice", DUPLICATE_NOTE)
                elif not is_there and self._was_imported(one.key):
                    self.outside.leave_out(
                        one.link.what, one.name, "unlinked_since", DELETED_NOTE, count=int(one.link.is_explicit)
                    )
                else:
                    (self.known if is_there else self.added)[one.link.what] += one.link.is_explicit
                    self.settled.add(item_key(one.key))
                    new += [] if is_there or self.dry_run else [one]
                seen.add(one.key)
            async for _ in write_in_transactions(self.shared.write, new, put, max_items=BATCH_SIZE):
                pass
            self._report_progress(sum(one.link.is_explicit for one in some))

    def _iter_links(self) -> Iterator[LinkToImport]:
        """Yield the links whose ends both exist. Report the other links."""
        for link in self.outside.links:
            name = f"{link.from_key} {link.relationship} {link.to_key}"
            missing = next((end for end in (link.from_key, link.to_key) if end not in self.ids), None)
            if missing is None:
                try:
                    yield LinkToImport.from_link(link, self.ids, name)
                except InvalidArgument as error:
                    self.outside.leave_out(link.what, name, "refused", error.args[0], count=int(link.is_explicit))
            elif link.is_explicit:
                self.outside.leave_out(link.what, name, "no_such_end", f"{missing} is not there")

    # Records

    async def _add_records(self) -> None:
        for some in split_chunks(self._checked(), BATCH_SIZE):
            there = await self.records.get_many([(one.labels, one.key) for one, _ in some])
            new = [
                (one, asked)
                for (one, asked), present in zip(some, there, strict=True)
                if self._should_add(one, present)
            ]
            if not self.dry_run:
                await self.records.put_many([asked for _, asked in new])
            for one, _ in new:
                self.added[one.what] += not one.is_auxiliary
                self.settled.add(item_key(one.name))
            self._report_progress(sum(not one.is_auxiliary for one, _ in some))

    def _checked(self) -> list[tuple[ImportedRecord, NewRecord]]:
        """Return the records to store. Invalid records and duplicates are reported."""
        most = self.shared.settings.max_content
        checked: dict[str, tuple[ImportedRecord, NewRecord]] = {}
        for one in self.outside.records:
            if one.name in checked:
                self._leave_out_record(one, "said_twice", DUPLICATE_NOTE)
                continue
            asked = one.to_new_record(most)
            try:
                check_new_record(asked, max_text=most, name="it")
                checked[one.name] = one, asked
            except InvalidArgument as error:
                self._leave_out_record(one, "refused", error.args[0])
        return list(checked.values())

    def _should_add(self, one: ImportedRecord, present: Record | None) -> bool:
        """Return True if the record must be added. Otherwise count it as known, or report why it is left out."""
        if present is not None:
            self.known[one.what] += not one.is_auxiliary
            self.settled.add(item_key(one.name))
            if present.value != one.value:
                self.outside.add_odd(one.what, one.source_location, "changed_since", CHANGED_NOTE)
        elif one.expires_at is not None and one.expires_at <= self.shared.now:
            self._leave_out_record(one, "expired", "its time is over")
        elif self._was_imported(one.name):
            self._leave_out_record(one, "deleted_since", DELETED_NOTE)
        else:
            return True
        return False

    def _leave_out_record(self, one: ImportedRecord, kind: str, why: str) -> None:
        if not one.is_auxiliary:
            self.outside.leave_out(one.what, one.source_location, kind, why)
        elif kind == "refused":
            # In the other cases its item is left out for the same reason, and reported.
            self.outside.leave_out(one.what, f"{one.labels[-1]} of {one.key}", kind, why, count=0)

    # Shared helpers

    def _was_imported(self, name: str) -> bool:
        return not self.again and item_key(name) in self.settled

    @property
    def _total_items(self) -> int:
        return self.outside.found.total()

    def _report_progress(self, more: int) -> None:
        self.done += more
        if self.progress is not None and self._total_items:
            self.progress(self.done, self._total_items)


@attrs.frozen
class LinkToImport:
    """A link to create between two memory ids. *key* identifies the link in the list of imported items."""

    link: ImportedLink
    name: str
    from_id: str
    request: LinkRequest
    key: str

    @classmethod
    def from_link(cls, link: ImportedLink, ids: Mapping[str, str], name: str) -> LinkToImport:
        """Convert an imported link. Raise `InvalidArgument` for a self-link or an invalid relationship."""
        from_id, to_id = ids[link.from_key], ids[link.to_key]
        if from_id == to_id:
            raise InvalidArgument("it links a memory to itself")
        request = LinkRequest(to_id=to_id, relationship=link.relationship, reason=link.reason)
        return cls(link, name, from_id, request, f"{from_id} {normalize_relationship(link.relationship)} {to_id}")


def _save_new(writer: Writer, prepared: Sequence[PreparedSave], pace: BatchSizer, linking: LinkingContext) -> set[str]:
    """Save one or more memories. Return the ids of all that exist now, even if another process saved them."""
    # Look up the existing memories again, because another process may be importing the same source.
    nodes = writer.find_many([one.memory.id for one in prepared])
    there = {one.memory.id for one, node in zip(prepared, nodes, strict=True) if node is not None}
    fresh = [one for one in prepared if one.memory.id not in there]
    return there | {memory.id for memory in pace.save(writer, fresh, linking)}


def _find_memories(reader: Reader, ids: Sequence[str]) -> dict[str, Memory]:
    nodes = [node for node in reader.find_many(ids) if node is not None]
    return {memory.id: memory for memory in reader.get(nodes)}


def _read_mark(memory: Memory) -> Mapping[str, Any]:
    found = memory.metadata.extra.get(IMPORT_MARK_KEY)
    return found if isinstance(found, Mapping) else {}


def _is_linked(reader: Reader, asked: LinkToImport) -> bool:
    """Return True if an explicit link with the same relationship exists."""
    node = reader.find(asked.from_id)
    if node is None:
        return False
    word = normalize_relationship(asked.request.relationship)
    return any(
        link.to_id == asked.request.to_id
        and link.created_by != "system"
        and normalize_relationship(link.metadata.original_relationship) == word
        for link in reader.links_of_many([node], "out")[0]
    )


def _put_link(writer: Writer, asked: LinkToImport, types: Mapping[str, LinkType], shared: NamespaceServices) -> bool:
    """Create a link. Return False if it already exists or if an end was deleted."""
    ends = writer.find_many([asked.from_id, asked.request.to_id])
    if None in ends or _is_linked(writer, asked):
        return False
    link_type = types[asked.request.relationship]
    saving.add_link(writer, asked.from_id, asked.request, link_type, created_by="user", now=shared.now)
    return True


def _read_imported_keys(reader: Reader, kind: str) -> set[bytes]:
    """Return the digests of all items of this source type that were imported before."""
    return split_keys(base64.b64decode(reader.notes(f"{NOTE_PREFIX}{kind}").get(f"{NOTE_PREFIX}{kind}", "")))


def _add_imported_keys(writer: Writer, kind: str, keys: Iterable[bytes]) -> None:
    # Read the keys again, because another process may have added some in the meantime.
    all_keys = join_keys([*keys, *_read_imported_keys(writer, kind)])
    writer.set_note(f"{NOTE_PREFIX}{kind}", base64.b64encode(all_keys).decode())


def _encode_metadata(memory: Memory) -> str:
    """Return the metadata as JSON for a digest. Without tags and source, it equals the JSON of older versions."""
    data = msgspec.to_builtins(memory.metadata)
    old = {MemoryType.INSIGHT: ("tags", "source"), MemoryType.CONTEXT: ("source",)}.get(memory.type, ())
    kept = {name: value for name, value in data.items() if name in old or name not in ("tags", "source") or value}
    return msgspec.json.encode(kept).decode()
