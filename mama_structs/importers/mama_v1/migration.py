"""
The migration of an old file's rows to memories and links in a store, and its rollback.

Memories are written oldest first, then the links of each memory. A note in the store then marks the migration complete.
The result depends only on the old file, the store and the start time of the migration, which is stored first. A
migration that is interrupted anywhere and repeated therefore produces the same store.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self, TypeVar, overload

import attrs
import msgspec

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs._internal.sync_proxy import await_or_run
from mama_structs.errors import MigrationError
from mama_structs.importers.mama_v1.link_backfill import LinkBackfill, LinkCandidate
from mama_structs.importers.mama_v1.migration_plan import (
    BACKFILLED_KEY,
    MIGRATION_MARK_KEY,
    OLD_COLUMNS_KEY,
    MigrationPlan,
    PlannedMemory,
    build_plan,
    count_tables,
    find_future_rows,
    iter_skipped_rows,
)
from mama_structs.importers.mama_v1.migration_report import (
    MigrationReport,
    MigrationWarning,
    RollbackReport,
    format_ids,
)
from mama_structs.importers.mama_v1.old_database import DECISIONS, EDGES, V1Database, read_v1
from mama_structs.importers.shared.item_keys import item_key, join_keys, split_chunks, split_keys
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.codec import Entry, decode_memory, encode_entry
from mama_structs.memory.types.engine import (
    EmbedderRecord,
    ProgressCallback,
    Reader,
    Vectors,
    Writer,
    read_in_pages,
    write_in_transactions,
)
from mama_structs.memory.types.model import (
    OUTCOME_OF_WORD,
    ContextMetadata,
    DecisionMetadata,
    Link,
    LinkType,
    Memory,
    MemoryType,
    to_milliseconds,
)
from mama_structs.memory.types.requests import check_file, check_progress
from mama_structs.memory.types.text_analysis import embedded_text
from mama_structs.memory.upkeep.namespace_services import NamespaceServices

if TYPE_CHECKING:
    from mama_structs import sync

T = TypeVar("T")
NoteState = Literal["begun", "complete", "undone"]
NOTE_PREFIX: Final = "migration/"
BATCH_SIZE: Final = 64
"""Twice the batch size of the default embedder, and the maximum number of memories per transaction."""

# The number of memories whose link candidates are determined in one uninterrupted read.
CANDIDATE_BATCH_SIZE: Final = 32
VOLATILE_COLUMNS: Final = frozenset({"supersedes", "superseded_by", "refined_from", "updated_at"})
UNKNOWN_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Notes for rows whose memory is not written in a repeated migration, by status.
ROW_STATUS_NOTES: Final = {
    "id_taken": "left out: a memory of that id is there that no migration made",
    "deleted_since": "left out: it was migrated before, and deleted since",
    "row_changed": "its row was changed since it was migrated: the memory is left as it is",
    "changed_since": "it was migrated before, and changed since: it is left as it is",
}
# Reasons for skipping the links of a row, keyed by the statuses of rows without a memory in the store.
MISSING_STATUS_NOTES: Final = {"id_taken": "has an id that was taken", "deleted_since": "was deleted since"}
UNLINKED_NOTE: Final = "left out: it was migrated before, and taken away since"
LINK_CHANGED_NOTE: Final = "its row was changed since it was migrated, and the link is left as it is"


# Marks: metadata that names the migration that created a memory or link


class MigrationMark(msgspec.Struct, frozen=True, kw_only=True):
    """
    The mark in a memory's metadata: its migration, the start time, and digests of the memory and its row.

    If the digest of the row is empty, it is computed from the stored memory.
    """

    migration: str
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    digest: str
    row: str = ""

    @classmethod
    def from_memory(cls, memory: Memory) -> Self | None:
        """Return the mark of a memory, or None if it has no valid mark."""
        try:
            return msgspec.convert(memory.metadata.extra.get(MIGRATION_MARK_KEY), cls)
        except msgspec.ValidationError:
            return None


def add_mark(memory: Memory, migration: str, at: datetime) -> Memory:
    """Return a copy of a memory with a `MigrationMark` in its metadata."""
    digests = {"digest": compute_digest(memory), "row": compute_row_digest(memory)}
    extra = {**memory.metadata.extra, MIGRATION_MARK_KEY: {"migration": migration, "at": at.isoformat(), **digests}}
    return attrs.evolve(memory, metadata=attrs.evolve(memory.metadata, extra=extra))


def compute_digest(memory: Memory) -> str:
    """Return a digest of a memory for detecting changes. It ignores the mark and the namespace."""
    extra = {name: value for name, value in memory.metadata.extra.items() if name != MIGRATION_MARK_KEY}
    plain = attrs.evolve(memory, namespace="", metadata=attrs.evolve(memory.metadata, extra=extra))
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()[:16]


def compute_row_digest(memory: Memory) -> str:
    """Return a digest of the memory's row in the old file, for detecting changes of the row."""
    # Ignore the update time and references to other rows, because v1.0 changes both when a row is superseded.
    # Ignore mentions, because they depend on the host.
    old = memory.metadata.extra.get(OLD_COLUMNS_KEY)
    columns = (
        {name: value for name, value in old.items() if name not in VOLATILE_COLUMNS} if isinstance(old, Mapping) else {}
    )
    metadata = attrs.evolve(memory.metadata, extra={**memory.metadata.extra, OLD_COLUMNS_KEY: columns})
    if isinstance(metadata, DecisionMetadata):
        metadata = attrs.evolve(metadata, outcome_at=None, history=())
    # Ignore a context's creation time, which is the row's update time: v1.0 changes it when the row is superseded.
    created = UNKNOWN_TIME if isinstance(metadata, ContextMetadata) else memory.created_at
    return compute_digest(attrs.evolve(memory, metadata=metadata, mentions=(), created_at=created, updated_at=created))


def round_trip(memory: Memory) -> Memory:
    """Return a memory as the store would return it, or raise ValueError if it is invalid."""
    return decode_memory(encode_entry(Entry(memory)))


def find_migration(link: Link) -> str | None:
    """Return the name of the migration that created a link, or None."""
    found = link.metadata.extra.get(MIGRATION_MARK_KEY)
    return found if isinstance(found, str) else None


def is_backfilled(link: Link) -> bool:
    """Return True if the link was back-filled by a migration instead of converted from the old file."""
    return find_migration(link) is not None and bool(link.metadata.extra.get(BACKFILLED_KEY))


# Notes: the state of each migration. A note is stored apart from the memories, because it must survive their deletion.


class MigrationNote(msgspec.Struct, frozen=True, kw_only=True):
    """
    The state of one migration.

    Later migrations have a higher *order*, independent of the clock.

    *settled* contains the digests (`item_key`) of memory and link ids from the old file. When the migration completed,
    each of these memories and links existed or had been deleted. If one is missing later, it was deleted and is not
    migrated again.
    """

    migration: str
    order: int
    begun: datetime
    checksum: str
    state: NoteState = "begun"
    settled: bytes = b""

    @property
    def keys(self) -> set[bytes]:
        """The digests of the ids of the settled memories and links."""
        return split_keys(self.settled)

    def write_state(self, writer: Writer, state: NoteState, settled: Iterable[str] = ()) -> Self:
        """Store the note with a new state and new settled ids, and return it."""
        changed = msgspec.structs.replace(self, state=state, settled=join_keys(map(item_key, settled)))
        writer.set_note(f"{NOTE_PREFIX}{self.migration}", msgspec.json.encode(changed).decode())
        return changed

    def guard_plan(self, error: MigrationError, plan: Callable[[Writer], T]) -> Callable[[Writer], T]:
        """Wrap *plan* so that it raises *error* if the migration was rolled back or restarted in the meantime."""

        def life(note: MigrationNote | None) -> tuple[object, ...] | None:
            return None if note is None else (note.order, note.begun, note.state == "undone")

        def checked(writer: Writer) -> T:
            if life(read_notes(writer).get(self.migration)) != life(self):
                raise error
            return plan(writer)

        return checked


_decode_note: Final = msgspec.json.Decoder(MigrationNote).decode


def read_notes(reader: Reader) -> dict[str, MigrationNote]:
    """Return the notes of all migrations in the store, by name."""
    found = {}
    for name, text in reader.notes(NOTE_PREFIX).items():
        try:
            found[name.removeprefix(NOTE_PREFIX)] = _decode_note(text)
        except (ValueError, RecursionError) as error:
            raise store_error(
                f"what the store notes of {name!r:.100} cannot be read: {error}", "restore a backup"
            ) from error
    return found


def store_error(what: str, hint: str) -> MigrationError:
    """Return an error for a migration or rollback that the state of the store prevents."""
    return MigrationError(what, path="", hint=hint)


def begin_migration(writer: Writer, migration: str, *, checksum: str, at: datetime) -> MigrationNote:
    """
    Return the note of a migration that starts or resumes.

    If the migration is new or was rolled back, its note is written first.
    """
    known = read_notes(writer)
    note = known.get(migration)
    if note is None:
        order = 1 + max((one.order for one in known.values()), default=0)
        note = MigrationNote(migration=migration, order=order, begun=at, checksum=checksum)
    elif note.state != "undone":
        return note
    return note.write_state(writer, "begun")


# The status of a plan: which items exist, are missing, or are skipped. It is determined before anything is written.


@attrs.frozen(eq=False, kw_only=True)
class PlanStatus:
    """Status of a plan: which of its parts are in the store, and which are written or left out."""

    # The planned memories that exist in the store, and the links that start at them, by id.
    present: Mapping[str, Memory]
    existing_links: Mapping[str, Link]
    # The planned memories and links that are in the store after the migration.
    target_memories: tuple[PlannedMemory, ...]
    links: tuple[Link, ...]
    # The ids of memories and links that a repeated migration must not restore. The completed note stores their digests.
    settled: tuple[str, ...]
    # The number of rows per table whose current content is not in the store. `odd` contains the reasons.
    left_out: Mapping[str, int]
    odd: tuple[MigrationWarning, ...]


def determine_status(
    plan: MigrationPlan,
    planned: Sequence[PlannedMemory],
    present: Mapping[str, Memory],
    existing_links: Mapping[str, Link],
    was_settled: Callable[[str], bool],
) -> PlanStatus:
    """Determine the status of a plan. *planned* are its memories with mentions."""
    odd: list[MigrationWarning] = []
    left_out: Counter[str] = Counter()
    fates: dict[str, str | None] = {}
    for one in planned:
        name = one.memory.id
        kind = fates[name] = _row_status(one.memory, present.get(name), was_settled)
        if kind is not None:
            left_out[one.table] += kind != "changed_since" and one.outcome_of is None
            odd.append(one.odd(kind, ROW_STATUS_NOTES[kind]))
    links = []
    for link in plan.links:
        names = plan.edges.get(link.id, ())
        lost = next((end for end in (link.from_id, link.to_id) if fates[end] in MISSING_STATUS_NOTES), None)
        known = existing_links.get(link.id)
        why = ""
        kind = None if lost is None else fates[lost]
        if kind is not None:
            why = f" is left out: {lost} {MISSING_STATUS_NOTES[kind]}"
        elif known is None and was_settled(link.id):
            kind, why = "unlinked_since", f": {UNLINKED_NOTE}"
        else:
            links.append(link)
            if known is not None and names and _link_values(known) != _link_values(link):
                kind, why = "row_changed", f": {LINK_CHANGED_NOTE}"
        fates[link.id] = kind
        if kind is not None:
            left_out[EDGES] += len(names)
            table, what = EDGES if names else DECISIONS, f"its link to {link.to_id}{why}"
            odd += [MigrationWarning(table=table, id=name, kind=kind, what=what) for name in names or [link.from_id]]
    return PlanStatus(
        present=present,
        existing_links=existing_links,
        target_memories=tuple(one for one in planned if fates[one.memory.id] not in MISSING_STATUS_NOTES),
        links=tuple(links),
        settled=tuple(one for one, kind in fates.items() if kind != "id_taken"),
        left_out=left_out,
        odd=tuple(odd),
    )


def _row_status(memory: Memory, present: Memory | None, was_there: Callable[[str], bool]) -> str | None:
    """Compare a row's memory with the stored memory. Return a key of `ROW_STATUS_NOTES`, or None if they agree."""
    if present is None:
        return "deleted_since" if was_there(memory.id) else None
    mark = MigrationMark.from_memory(present)
    if mark is None:
        return "id_taken"
    if compute_row_digest(memory) != (mark.row or compute_row_digest(present)):
        return "row_changed"
    return "changed_since" if compute_digest(present) != mark.digest else None


def _link_values(link: Link) -> tuple[object, ...]:
    return link.link_type, link.confidence, link.metadata.reason, to_milliseconds(link.created_at)


# Migrating


@overload
def migrate_v1(
    memories: MemoryStore,
    source: str | Path | V1Database,
    *,
    dry_run: bool = ...,
    progress: ProgressCallback | None = ...,
) -> Coroutine[Any, Any, MigrationReport]: ...
@overload
def migrate_v1(
    memories: sync.MemoryStore,
    source: str | Path | V1Database,
    *,
    dry_run: bool = ...,
    progress: ProgressCallback | None = ...,
) -> MigrationReport: ...


def migrate_v1(
    memories: Any,
    source: str | Path | V1Database,
    *,
    dry_run: bool = False,
    progress: ProgressCallback | None = None,
) -> Coroutine[Any, Any, MigrationReport] | MigrationReport:
    """
    Migrate the memories of a MAMA v1.0 database, which is not changed.

    A repeated migration changes nothing; an interrupted one continues when it is repeated. Memories and links that were
    deleted after completion are not migrated again, neither from the same file nor from a newer version of it.

    Args:
        memories: The store to migrate to. With one of an async session the call is awaited; with one of
            `mama_structs.sync` it returns the report.
        source: The old file, such as ``~/.claude/mama-memory.db``, or the result of `read_v1`.
        dry_run: If true, only report what a migration would do.
        progress: Called with the number of completed steps and their total number: two for each memory.

    Raises:
        InvalidArgument: The file does not exist.
        MigrationError: The file is not a MAMA v1.0 database, damaged, truncated, too large, or being written to;
            nothing was written. Or another process rolls back the migration at the same time.
        EmbeddingFailed: The embedder failed; memories that were already written stay.
        StoreError: The store cannot be read or written; memories that were already written stay.

    """
    report: Coroutine[Any, Any, MigrationReport] | MigrationReport = await_or_run(
        memories, lambda own: _migrate_v1(own, source, dry_run=dry_run, progress=progress)
    )
    return report


async def _migrate_v1(
    memories: MemoryStore, source: str | Path | V1Database, *, dry_run: bool, progress: ProgressCallback | None
) -> MigrationReport:
    _check.check_bool("dry_run", dry_run)
    check_progress(progress)
    shared = memories._shared
    shared.check()
    begun = time.perf_counter()
    if isinstance(source, V1Database):
        old = source
    else:
        file = check_file(source)
        old = await run_in_own_thread(lambda: read_v1(file))
    most = shared.settings.max_content
    plan = await run_in_own_thread(lambda: build_plan(old, namespace=shared.engine.namespace, max_content=most))
    report = await MigrationRun(shared, old, plan, dry_run, progress).run()
    return attrs.evolve(report, seconds=time.perf_counter() - begun)


@attrs.define(eq=False)
class MigrationRun:
    """One run of `migrate_v1`."""

    shared: NamespaceServices
    old: V1Database
    plan: MigrationPlan
    dry_run: bool
    progress: ProgressCallback | None
    # The migration's note in the store (None if it has none). `at` is the start time of the migration.
    note: MigrationNote | None = None
    at: datetime = UNKNOWN_TIME
    added: int = 0
    done: int = 0
    total: int = 0

    @property
    def name(self) -> str:
        """The name of the migration: the digest of the old content."""
        return self.old.content

    async def run(self) -> MigrationReport:
        """Run the migration, or resume an interrupted one, and return its report."""
        notes = await self.shared.read(read_notes)
        self.note, self.at = notes.get(self.name), self.shared.now
        if self.note is None:
            # Memories that were imported from an export may name a migration that has no note in this store.
            marks = map(MigrationMark.from_memory, (await self._read_existing())[0].values())
            self.at = next((mark.at for mark in marks if mark and mark.migration == self.name), self.at)
        if not self.dry_run and self.plan.planned:
            start = partial(begin_migration, migration=self.name, checksum=self.old.checksum, at=self.at)
            self.note = await self.shared.write(start)
        if self.note is not None:
            notes[self.name], self.at = self.note, self.note.begun
        # Read the memories after writing the note, because `guard_plan` detects only later concurrent rollbacks.
        present, there = await self._read_existing()
        complete = {name for name, one in notes.items() if one.state == "complete"}
        settled = set[bytes]().union(*(notes[name].keys for name in complete))
        is_over = self.name in complete
        planned = await self._add_mentions()
        standing = determine_status(self.plan, planned, present, there, lambda one: is_over or item_key(one) in settled)
        self.total = 2 * len(standing.target_memories)
        if is_over:
            self._report_progress(self.total)
            made = [link for link in there.values() if is_backfilled(link) and find_migration(link) == self.name]
            return self._build_report(standing, made)
        fill = self._create_backfill(standing, complete, notes)
        if self.dry_run or self.note is None:
            fill.add_temporal_links()
            self.added = sum(one.memory.id not in present for one in standing.target_memories)
        else:
            await self._write_plan(standing, fill)
        return self._build_report(standing, fill.chosen)

    async def _write_plan(self, standing: PlanStatus, fill: LinkBackfill) -> None:
        """Write the memories, then the links of each memory, and mark the migration as complete."""
        ours = standing.target_memories
        self._report_progress(0)
        new = [_mark_link(link, self.name) for link in standing.links if link.id not in standing.existing_links]
        await self._write_memories(standing, new)
        # Wait until all vectors and words are indexed.
        await self.shared.engine.wait_until_idle()
        await self.shared.embedding.calibration()
        likely: list[LinkCandidate] = []
        for asked in split_chunks([one for one in ours if one.memory.id in fill.fresh], CANDIDATE_BATCH_SIZE):
            likely += await self.shared.read(partial(fill.find_candidates, batch=asked, linking=self.shared.linking))
            self._report_progress(len(asked))
        fill.add_associations(likely)
        fill.add_temporal_links()
        by_source: dict[str, list[Link]] = {}
        for link in new + fill.chosen:
            by_source.setdefault(link.from_id, []).append(link)
        sources = [(one.memory.id, by_source[one.memory.id]) for one in ours if one.memory.id in by_source]
        async for _ in write_in_transactions(self._write, sources, _put_links, max_items=BATCH_SIZE):
            pass
        await self._write(partial(_mark_complete, migration=self.name, settled=standing.settled))
        self._report_progress(self.total - self.done)

    async def _read_existing(self) -> tuple[dict[str, Memory], dict[str, Link]]:
        """Return the planned memories that exist in the store, and the links that start at them, by id."""
        present: dict[str, Memory] = {}
        links: dict[str, Link] = {}
        async for page in read_in_pages(
            self.shared.read, [one.memory.id for one in self.plan.planned], _find_memories_and_links
        ):
            for memory, own in page:
                present[memory.id] = memory
                links.update((link.id, link) for link in own)
        return present, links

    async def _add_mentions(self) -> list[PlannedMemory]:
        """Return the planned memories with their mentions, as the store would return them."""
        planned = []
        for chunk in split_chunks(self.plan.planned, BATCH_SIZE):
            for one in chunk:
                found = tuple(self.shared.find_mentions(embedded_text(one.memory)))
                planned.append(attrs.evolve(one, memory=round_trip(attrs.evolve(one.memory, mentions=found))))
            await asyncio.sleep(0)
        return planned

    def _create_backfill(self, standing: PlanStatus, complete: Collection[str], notes: Collection[str]) -> LinkBackfill:
        ids = {one.memory.id for one in standing.target_memories}
        marks = {
            one: mark.migration
            for one, memory in standing.present.items()
            if (mark := MigrationMark.from_memory(memory))
        }
        # A migration without a note comes from an export. Such a migration cannot be resumed, so it counts as complete.
        done = {one for one, name in marks.items() if name in complete or name not in {*notes, self.name}}
        others = [
            link
            for link in standing.existing_links.values()
            if is_backfilled(link) and find_migration(link) != self.name
        ]
        return LinkBackfill(
            planned=standing.target_memories,
            links=standing.links,
            policy=self.shared.settings.linking,
            fresh=ids - done,
            before=Counter(end for link in others for end in (link.from_id, link.to_id) if end in ids),
            namespace=self.shared.engine.namespace,
            migration=self.name,
            at=self.at,
        )

    async def _write_memories(self, standing: PlanStatus, links: Sequence[Link]) -> None:
        # Reuse the vectors of an equal earlier text, because an embedder's results vary with the batch.
        first: dict[bytes, str] = {}
        # Outcome links count as evidence, so they must be written before links are chosen.
        outcomes = {link.from_id: link for link in links if link.metadata.original_relationship == OUTCOME_OF_WORD}
        for chunk in split_chunks(standing.target_memories, BATCH_SIZE):
            texts = {one.memory.id: embedded_text(one.memory) for one in chunk}
            alike = {name: first.setdefault(item_key(text), name) for name, text in texts.items()}
            new = [one.memory for one in chunk if one.memory.id not in standing.present]
            if new:
                write = partial(self._write, made_by=self.shared.record)
                vectors = await self.shared.embedding.embed_documents([texts[memory.id] for memory in new])
                memories = [add_mark(memory, self.name, self.at) for memory in new]
                put = partial(_put_memory, first_ids_by_text=alike, links=outcomes)
                async for put_in in write_in_transactions(
                    write, list(zip(memories, vectors, strict=True)), put, max_items=BATCH_SIZE
                ):
                    self.added += sum(put_in)
            self._report_progress(len(chunk))

    async def _write(self, plan: Callable[[Writer], T], *, made_by: EmbedderRecord | None = None) -> T:
        """Run *plan* in a transaction. Raise an error if the migration was rolled back in the meantime."""
        error = store_error(
            "the migration was taken back by somebody else while it ran", "run it again if it is wanted"
        )
        checked = plan if self.note is None else self.note.guard_plan(error, plan)
        return await self.shared.write(checked, made_by=made_by)

    def _report_progress(self, more: int) -> None:
        self.done += more
        if self.progress is not None and self.total:
            self.progress(self.done, self.total)

    def _build_report(self, standing: PlanStatus, backfilled: Sequence[Link]) -> MigrationReport:
        kinds = Counter(link.link_type for link in backfilled)
        types = Counter(one.memory.type for one in self.plan.planned)
        words = Counter(link.metadata.original_relationship for link in self.plan.links)
        ends = Counter(end for link in backfilled for end in (link.from_id, link.to_id))
        return MigrationReport(
            source=self.old.path,
            checksum=self.old.checksum,
            namespace=self.shared.engine.namespace,
            migration=self.name,
            at=self.at,
            dry_run=self.dry_run,
            tables=count_tables(self.old, self.plan, standing.left_out),
            memories={kind.value: types[kind] for kind in MemoryType if types[kind]},
            added=self.added,
            existing=len(standing.present),
            links=dict(sorted(words.items())),
            backfilled={kind.value: kinds[kind] for kind in LinkType if kinds[kind]},
            backfilled_average=len(backfilled) / len(standing.target_memories) if standing.target_memories else 0.0,
            backfilled_most=max(ends.values(), default=0),
            warnings=(
                *self.plan.odd,
                *find_future_rows(self.plan, self.at),
                *standing.odd,
                *iter_skipped_rows(self.old.others),
            ),
        )


def _find_memories_and_links(reader: Reader, nodes: list[int]) -> list[tuple[Memory, list[Link]]]:
    """Return each memory with its outgoing links."""
    return list(zip(reader.get(nodes), reader.links_of_many(nodes, "out"), strict=True))


def _put_memory(
    writer: Writer, made: tuple[Memory, Vectors], *, first_ids_by_text: Mapping[str, str], links: Mapping[str, Link]
) -> bool:
    """
    Write a memory if it is new, and return True if it was written.

    If an earlier memory has the same text, the vectors of that memory are used.
    """
    memory, pieces = made
    # Another process may be migrating the same file.
    is_new = writer.find(memory.id) is None
    if is_new:
        twin = writer.find(first_ids_by_text[memory.id])
        own = [links[memory.id]] if memory.id in links else []
        writer.put(memory, vectors=pieces if twin is None else writer.vectors(twin), links=own)
    return is_new


def _put_links(writer: Writer, source: tuple[str, Sequence[Link]]) -> None:
    """Write the missing links that start at a memory."""
    memory_id, wanted = source
    node = writer.find(memory_id)
    if node is None:
        return
    there = writer.read_links(node)
    ids = {link.id for link in there}
    # Skip a back-filled link if the two memories were linked in the meantime by anything other than a migration.
    taken = {end for link in there if find_migration(link) is None for end in (link.from_id, link.to_id)}
    ends = writer.find_many([link.to_id for link in wanted])
    missing = [
        link
        for link, end in zip(wanted, ends, strict=True)
        if end is not None and link.id not in ids and not (is_backfilled(link) and link.to_id in taken)
    ]
    if missing:
        writer.put(writer.get([node])[0], links=missing)


def _mark_complete(writer: Writer, migration: str, settled: Iterable[str]) -> None:
    note = read_notes(writer)[migration]
    # Another process may have completed the migration first.
    if note.state == "begun":
        note.write_state(writer, "complete", settled)


def _mark_link(link: Link, migration: str) -> Link:
    extra: dict[str, Any] = {**link.metadata.extra, MIGRATION_MARK_KEY: migration}
    return attrs.evolve(link, metadata=attrs.evolve(link.metadata, extra=extra))


# Rollback: delete what a migration added, unless this would lose later changes


class MigratedMemory(NamedTuple):
    """A migrated memory: its id, its mark, whether it has changed since, and its links."""

    id: str
    mark: MigrationMark
    is_changed: bool
    links: list[Link]


@overload
def rollback_v1(
    memories: MemoryStore, *, force: bool = ..., progress: ProgressCallback | None = ...
) -> Coroutine[Any, Any, RollbackReport]: ...
@overload
def rollback_v1(
    memories: sync.MemoryStore, *, force: bool = ..., progress: ProgressCallback | None = ...
) -> RollbackReport: ...


def rollback_v1(
    memories: Any, *, force: bool = False, progress: ProgressCallback | None = None
) -> Coroutine[Any, Any, RollbackReport] | RollbackReport:
    """
    Undo the last migration: delete its memories and links.

    An interrupted rollback continues when it is repeated.

    Args:
        memories: The store. With one of an async session the call is awaited; with one of `mama_structs.sync` it
            returns the report.
        force: Whether to also delete memories that were changed since, and later links to migrated memories.
        progress: Called with the number of deleted memories and their total number.

    Raises:
        MigrationError: A migrated memory was changed since, or has later links; nothing was deleted.
            Or another process migrates or rolls back at the same time.
        StoreError: The store cannot be read or written; memories that were already deleted stay deleted.

    """
    report: Coroutine[Any, Any, RollbackReport] | RollbackReport = await_or_run(
        memories, lambda own: _rollback_v1(own, force=force, progress=progress)
    )
    return report


async def _rollback_v1(memories: MemoryStore, *, force: bool, progress: ProgressCallback | None) -> RollbackReport:
    _check.check_bool("force", force)
    check_progress(progress)
    shared = memories._shared
    shared.check()
    known = await shared.read(read_notes)
    found = await _find_migrated(shared)
    # Memories that were imported from an export may name a migration that has no note in this store.
    unknown = [(0, one.mark.at, one.mark.migration) for one in found if one.mark.migration not in known]
    last = max([*unknown, *((one.order, one.begun, one.migration) for one in known.values())], default=None)
    if last is None:
        return RollbackReport(namespace=memories.namespace)
    migration = last[2]
    going = {one.id: one for one in found if one.mark.migration == migration}
    changed = tuple(one.id for one in going.values() if one.is_changed)
    links = {link.id: link for one in going.values() for link in one.links}
    others = [link for link in links.values() if find_migration(link) is None]
    linked = tuple(dict.fromkeys(end for link in others for end in (link.from_id, link.to_id) if end not in going))
    if (changed or others) and not force:
        raise _data_loss_error(changed, others, linked)
    noted = known.get(migration)
    lost = {item_key(one) for one in {*going, *links, *_links_of_migration(found, migration)}}
    note = await shared.write(partial(_begin_rollback, migration=migration, expected_note=noted, deleted_keys=lost))
    if noted is not None and noted.state != "complete":
        # Read the memories again, because a concurrent migration may have added some before the note changed.
        found = await _find_migrated(shared)
        going = {one.id: one for one in found if one.mark.migration == migration}
    # Delete this migration's links between memories of earlier migrations separately, because those memories stay.
    between = [
        one
        for one, link in _links_of_migration(found, migration).items()
        if going.keys().isdisjoint((link.from_id, link.to_id))
    ]

    async def write(plan: Callable[[Writer], T]) -> T:
        return await shared.write(plan if note is None else note.guard_plan(_concurrent_run_error(), plan))

    count = done = 0
    async for cut in write_in_transactions(write, sorted(between), _delete_link, max_items=BATCH_SIZE):
        count += sum(cut)
    async for deleted in write_in_transactions(write, [*reversed(going)], _delete_memory, max_items=BATCH_SIZE):
        count += sum(deleted)
        done += len(deleted)
        if progress is not None:
            progress(done, len(going))
    if note is not None:
        await write(methodcaller("set_note", f"{NOTE_PREFIX}{migration}", None))
    return RollbackReport(
        namespace=memories.namespace,
        migration=migration,
        memories=len(going),
        links=count,
        changed=changed,
        linked=linked,
        migrations_left=len({*known, *(one.mark.migration for one in found)} - {migration}),
    )


async def _find_migrated(shared: NamespaceServices) -> list[MigratedMemory]:
    """Return all migrated memories in the order in which they were saved."""

    def page(reader: Reader, nodes: list[int]) -> list[MigratedMemory]:
        marks = [
            (node, memory, MigrationMark.from_memory(memory))
            for node, memory in zip(nodes, reader.get(nodes), strict=True)
        ]
        migrated = [(node, memory, mark) for node, memory, mark in marks if mark is not None]
        # Read no links of other memories, because rows of unrelated links may be damaged.
        links = reader.links_of_many([node for node, _, _ in migrated])
        return [
            MigratedMemory(memory.id, mark, compute_digest(memory) != mark.digest, own_links)
            for (_, memory, mark), own_links in zip(migrated, links, strict=True)
        ]

    every = await shared.read(lambda reader: reader.ids(sorted(reader.window(newest_first=False).tolist())))
    return [one async for several in read_in_pages(shared.read, every, page) for one in several]


def _links_of_migration(found: Sequence[MigratedMemory], migration: str) -> dict[str, Link]:
    """Return the links of a migration by id."""
    return {link.id: link for one in found for link in one.links if find_migration(link) == migration}


def _data_loss_error(changed: Sequence[str], others: Sequence[Link], linked: Sequence[str]) -> MigrationError:
    parts = []
    if changed:
        parts.append(f"{len(changed)} migrated memories were changed since ({format_ids(changed)})")
    if others:
        automatic = sum(link.created_by == "system" for link in others)
        ends = f" with {len(linked)} later memories ({format_ids(linked)})" if linked else ""
        parts.append(f"{len(others)} links{ends} were made since, {automatic} of them automatic")
    return store_error(
        "the migration cannot be undone without loss: " + ", and ".join(parts),
        "nothing was deleted; force deletes the memories and these links with them: export the store first",
    )


def _begin_rollback(
    writer: Writer, migration: str, expected_note: MigrationNote | None, deleted_keys: Collection[bytes]
) -> MigrationNote | None:
    """Mark a migration as being rolled back. Return its note, or None if the store has no note for it."""
    notes = read_notes(writer)
    if notes.pop(migration, None) != expected_note:
        raise _concurrent_run_error()
    for one in notes.values():
        # The rollback deletes memories or links of this other migration, which is then no longer complete.
        if one.state == "complete" and not one.keys.isdisjoint(deleted_keys):
            one.write_state(writer, "begun")
    return None if expected_note is None else expected_note.write_state(writer, "undone")


def _delete_link(writer: Writer, link_id: str) -> int:
    return writer.delete_links([link_id])


def _delete_memory(writer: Writer, memory_id: str) -> int:
    return 0 if writer.find(memory_id) is None else writer.delete(memory_id)


def _concurrent_run_error() -> MigrationError:
    return store_error(
        "somebody else migrates, or takes it back, at the same time", "wait until that is done, and run it again then"
    )
