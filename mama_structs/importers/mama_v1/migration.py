"""
A migration, from an old file's rows to memories and links in a store, and how one is taken back.

Memories are written first, oldest first, then the links of each; a note of the store then says that all is there.
Everything follows from the old file, the store and the time at which the migration was begun, which is noted first:
interrupted anywhere and repeated, it gives the same store.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from operator import methodcaller
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeVar

import attrs
import msgspec

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import in_own_thread
from mama_structs.errors import MigrationError
from mama_structs.importers.mama_v1.link_backfill import BackFill, LikelyPair
from mama_structs.importers.mama_v1.migration_plan import (
    BACKFILLED,
    MARK,
    OLD,
    MigrationPlan,
    PlannedMemory,
    future,
    plan_of,
    rows_left_out,
    tables_of,
)
from mama_structs.importers.mama_v1.migration_report import MigrationReport, OddRow, RollbackReport, some
from mama_structs.importers.mama_v1.old_database import DECISIONS, EDGES, OldDatabase, read_old
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.codec import Entry, read_memory, write_entry
from mama_structs.memory.types.engine import EmbedderRecord, Progress, Reader, Vectors, Writer, in_turns
from mama_structs.memory.types.model import (
    OUTCOME_OF,
    ContextMetadata,
    DecisionMetadata,
    Link,
    LinkType,
    Memory,
    MemoryType,
    milliseconds,
)
from mama_structs.memory.types.requests import check_file, check_progress
from mama_structs.memory.types.text_analysis import embedded_text
from mama_structs.memory.upkeep.namespace_services import Shared

T = TypeVar("T")
NoteState = Literal["begun", "complete", "undone"]
PREFIX: Final = "migration/"
CHUNK: Final = 64
"""Both batches of the default embedder; a transaction takes as many."""
PAGE: Final = 500

# Memories whose likely partners are looked for before others have their turn.
_SLICE: Final = 32
_SIZE: Final = 12
_LINKS: Final = frozenset({"supersedes", "superseded_by", "refined_from", "updated_at"})
_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
# What becomes of a memory whose row is read again, and why.
_FATES: Final = {
    "id_taken": "left out: a memory of that id is there that no migration made",
    "deleted_since": "left out: it was migrated before, and deleted since",
    "row_changed": "its row was changed since it was migrated: the memory is left as it is",
    "changed_since": "it was migrated before, and changed since: it is left as it is",
}
# Of these no memory is in the store, and why a link to one is left out.
_MISSING: Final = {"id_taken": "has an id that was taken", "deleted_since": "was deleted since"}
_UNLINKED: Final = "left out: it was migrated before, and taken away since"
_LINK_CHANGED: Final = "its row was changed since it was migrated, and the link is left as it is"


# Marks: what made a memory or a link


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Which migration made a memory, when that was begun, and digests of the memory and of its row (may be empty)."""

    migration: str
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    digest: str
    row: str = ""

    @classmethod
    def of(cls, memory: Memory) -> Self | None:
        """Return a memory's mark, None where it has none."""
        try:
            return msgspec.convert(memory.metadata.extra.get(MARK), cls)
        except msgspec.ValidationError:
            return None


def marked(memory: Memory, migration: str, at: datetime) -> Memory:
    """Return a memory with the mark of a migration."""
    digests = {"digest": digest_of(memory), "row": row_digest_of(memory)}
    extra = {**memory.metadata.extra, MARK: {"migration": migration, "at": at.isoformat(), **digests}}
    return attrs.evolve(memory, metadata=attrs.evolve(memory.metadata, extra=extra))


def digest_of(memory: Memory) -> str:
    """Return what tells whether a memory was changed: the same for the same content, mark and namespace aside."""
    extra = {name: value for name, value in memory.metadata.extra.items() if name != MARK}
    plain = attrs.evolve(memory, namespace="", metadata=attrs.evolve(memory.metadata, extra=extra))
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()[:16]


def row_digest_of(memory: Memory) -> str:
    """Return what tells whether a memory's row was changed: the same where it says the same."""
    # When it was updated does not count, nor which rows it names: v1.0 changes that in a row that is superseded, and
    # these become links. Nor do mentions, which depend on the host.
    old = memory.metadata.extra.get(OLD)
    said = {name: value for name, value in old.items() if name not in _LINKS} if isinstance(old, Mapping) else {}
    metadata = attrs.evolve(memory.metadata, extra={**memory.metadata.extra, OLD: said})
    if isinstance(metadata, DecisionMetadata):
        metadata = attrs.evolve(metadata, outcome_at=None, history=())
    # Why a decision came out as it did has the time of its row's update.
    created = _NO_TIME if isinstance(metadata, ContextMetadata) else memory.created_at
    return digest_of(attrs.evolve(memory, metadata=metadata, mentions=(), created_at=created, updated_at=created))


def as_stored(memory: Memory) -> Memory:
    """Return a memory as it comes back from the store; ValueError where it cannot be written."""
    return read_memory(write_entry(Entry(memory)))


def migration_of(link: Link) -> str | None:
    """Return the migration that made a link, None for another link."""
    found = link.metadata.extra.get(MARK)
    return found if isinstance(found, str) else None


def is_backfilled(link: Link) -> bool:
    """Tell whether a migration added a link to those that the old file says."""
    return migration_of(link) is not None and bool(link.metadata.extra.get(BACKFILLED))


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield so many items at a time."""
    ahead = iter(items)
    return iter(lambda: list(islice(ahead, size)), [])


# Notes: what a store says of its migrations. Memories may be deleted one by one, and a note may not


class MigrationNote(msgspec.Struct, frozen=True, kw_only=True):
    """
    One migration: later ones have a higher *order*, whatever the clock says.

    *settled* holds the keys (`key_of`) of the memories and links of the old file that were there when it was complete,
    or deleted before; what is not there any more was deleted, and does not come back.
    """

    migration: str
    order: int
    begun: datetime
    checksum: str
    state: NoteState = "begun"
    settled: bytes = b""

    @property
    def keys(self) -> frozenset[bytes]:
        """The keys of what was settled."""
        return frozenset(self.settled[at : at + _SIZE] for at in range(0, len(self.settled), _SIZE))

    def written(self, writer: Writer, state: NoteState, settled: Iterable[str] = ()) -> Self:
        """Write it down in a state, with the ids that are settled then, and return it so."""
        changed = msgspec.structs.replace(self, state=state, settled=b"".join(sorted({key_of(one) for one in settled})))
        writer.set_note(f"{PREFIX}{self.migration}", msgspec.json.encode(changed).decode())
        return changed

    def unless_ended(self, error: MigrationError, plan: Callable[[Writer], T]) -> Callable[[Writer], T]:
        """Make a plan fail where somebody has taken the migration back meanwhile, or begun it anew."""

        def life(note: MigrationNote | None) -> tuple[object, ...] | None:
            return None if note is None else (note.order, note.begun, note.state == "undone")

        def checked(writer: Writer) -> T:
            if life(records_of(writer).get(self.migration)) != life(self):
                raise error
            return plan(writer)

        return checked


_decode: Final = msgspec.json.Decoder(MigrationNote).decode


def key_of(one: str) -> bytes:
    """Return what stands for a long text, or the id of a memory or link."""
    return hashlib.sha256(one.encode("utf-8", "surrogatepass")).digest()[:_SIZE]


def records_of(reader: Reader) -> dict[str, MigrationNote]:
    """Return the migrations that the store notes, by name."""
    found = {}
    for name, text in reader.notes(PREFIX).items():
        try:
            found[name.removeprefix(PREFIX)] = _decode(text)
        except (ValueError, RecursionError) as error:
            raise refused(
                f"what the store notes of {name!r:.100} cannot be read: {error}", "restore a backup"
            ) from error
    return found


def refused(what: str, hint: str) -> MigrationError:
    """Return the error of a migration or rollback that the store, and not the old file, stands in the way of."""
    return MigrationError(what, path="", hint=hint)


def begin(writer: Writer, migration: str, *, checksum: str, at: datetime) -> MigrationNote:
    """Return the note of a migration that goes on from now; it is written, unless it is under way or complete."""
    known = records_of(writer)
    note = known.get(migration)
    if note is None:
        order = 1 + max((one.order for one in known.values()), default=0)
        note = MigrationNote(migration=migration, order=order, begun=at, checksum=checksum)
    elif note.state != "undone":
        return note
    return note.written(writer, "begun")


# What of an old file is in a store, what is to be written, and what is left out: decided before any of it is.


@attrs.frozen(eq=False, kw_only=True)
class Standing:
    """What of a plan is in the store, and what becomes of the rest."""

    # The memories that are there, and the links that begin at these, by id.
    present: Mapping[str, Memory]
    there: Mapping[str, Link]
    # The memories and links that are there, or are to be written.
    ours: tuple[PlannedMemory, ...]
    links: tuple[Link, ...]
    # The ids that need not be looked for again once all is written.
    settled: tuple[str, ...]
    # How many rows of each table are not in the store then as they are in the old file, and why.
    left_out: Mapping[str, int]
    odd: tuple[OddRow, ...]


def standing_of(
    plan: MigrationPlan,
    planned: Sequence[PlannedMemory],
    present: Mapping[str, Memory],
    there: Mapping[str, Link],
    was_there: Callable[[str], bool],
) -> Standing:
    """Return what becomes of a plan, whose memories with what they mention are *planned*."""
    odd: list[OddRow] = []
    left_out: Counter[str] = Counter()
    fates: dict[str, str | None] = {}
    for one in planned:
        name = one.memory.id
        kind = fates[name] = _fate_of(one.memory, present.get(name), was_there)
        if kind is not None:
            left_out[one.table] += kind != "changed_since" and one.outcome_of is None
            odd.append(one.odd(kind, _FATES[kind]))
    links = []
    for link in plan.links:
        names = plan.edges.get(link.id, ())
        lost = next((end for end in (link.from_id, link.to_id) if fates[end] in _MISSING), None)
        known = there.get(link.id)
        why = ""
        kind = None if lost is None else fates[lost]
        if kind is not None:
            why = f" is left out: {lost} {_MISSING[kind]}"
        elif known is None and was_there(link.id):
            kind, why = "unlinked_since", f": {_UNLINKED}"
        else:
            links.append(link)
            if known is not None and names and _said_by(known) != _said_by(link):
                kind, why = "row_changed", f": {_LINK_CHANGED}"
        fates[link.id] = kind
        if kind is not None:
            left_out[EDGES] += len(names)
            table, what = EDGES if names else DECISIONS, f"its link to {link.to_id}{why}"
            odd += [OddRow(table=table, id=name, kind=kind, what=what) for name in names or [link.from_id]]
    return Standing(
        present=present,
        there=there,
        ours=tuple(one for one in planned if fates[one.memory.id] not in _MISSING),
        links=tuple(links),
        settled=tuple(one for one, kind in fates.items() if kind != "id_taken"),
        left_out=left_out,
        odd=tuple(odd),
    )


def _fate_of(memory: Memory, present: Memory | None, was_there: Callable[[str], bool]) -> str | None:
    """Return how a memory of the store is other than the one that its row says, None where it is not."""
    if present is None:
        return "deleted_since" if was_there(memory.id) else None
    mark = Mark.of(present)
    if mark is None:
        return "id_taken"
    if row_digest_of(memory) != (mark.row or row_digest_of(present)):
        return "row_changed"
    return "changed_since" if digest_of(present) != mark.digest else None


def _said_by(link: Link) -> tuple[object, ...]:
    return link.link_type, link.confidence, link.metadata.reason, milliseconds(link.created_at)


# Migrating


async def migrate(
    memories: MemoryStore, path: str | Path, *, dry_run: bool = False, progress: Progress | None = None
) -> MigrationReport:
    """
    Take over the memories of a MAMA v1.0 database, which is not changed.

    Running it again changes nothing; interrupted, it goes on when it is run again.
    What was deleted or unlinked after it was complete does not come back, from the same file or one that has grown.

    Args:
        memories: Where to.
        path: The old file, such as ``~/.claude/mama-memory.db``.
        dry_run: Whether only to say what would be done.
        progress: Called with how many steps are done, and of how many: two for each memory.

    Raises:
        InvalidArgument: There is no such file.
        MigrationError: It is no database of MAMA v1.0, damaged, cut off, too large, or being written to; nothing was
            written.
            Or somebody takes the migration back at the same time.
        EmbeddingFailed: The embedder failed; what was written before stays.
        StoreError: The store cannot be read or written; what was written before stays.

    """
    _check.flag("dry_run", dry_run)
    check_progress(progress)
    file = check_file(path)
    memories._shared.check()  # noqa: SLF001 - this package's
    begun = time.perf_counter()
    old = await in_own_thread(lambda: read_old(file))
    report = await migrate_old(memories, old, dry_run=dry_run, progress=progress)
    return attrs.evolve(report, seconds=time.perf_counter() - begun)


async def migrate_old(
    memories: MemoryStore, old: OldDatabase, *, dry_run: bool = False, progress: Progress | None = None
) -> MigrationReport:
    """Do what `migrate` does with a database that was read."""
    shared = memories._shared  # noqa: SLF001 - this package's
    most = shared.settings.max_content
    plan = await in_own_thread(lambda: plan_of(old, namespace=shared.engine.namespace, max_content=most))
    return await _Migration(shared, old, plan, dry_run, progress).run()


@attrs.define(eq=False)
class _Migration:
    """One run of `migrate`."""

    shared: Shared
    old: OldDatabase
    plan: MigrationPlan
    dry_run: bool
    progress: Progress | None
    # What was written down of it, None for one that writes nothing, and when it was begun.
    note: MigrationNote | None = None
    at: datetime = _NO_TIME
    added: int = 0
    done: int = 0
    total: int = 0

    @property
    def name(self) -> str:
        return self.old.content

    async def run(self) -> MigrationReport:
        notes = await self.shared.read(records_of)
        self.note, self.at = notes.get(self.name), self.shared.now
        if self.note is None:
            # Memories that came with an import name a migration which this store has no note of.
            marks = map(Mark.of, (await self._look())[0].values())
            self.at = next((mark.at for mark in marks if mark and mark.migration == self.name), self.at)
        if not self.dry_run and self.plan.planned:
            start = partial(begin, migration=self.name, checksum=self.old.checksum, at=self.at)
            self.note = await self.shared.write(start)
        if self.note is not None:
            notes[self.name], self.at = self.note, self.note.begun
        # After that: nobody takes it back any more while this looks.
        present, there = await self._look()
        complete = {name for name, one in notes.items() if one.state == "complete"}
        settled = frozenset[bytes]().union(*(notes[name].keys for name in complete))
        is_over = self.name in complete
        planned = await self._with_mentions()
        standing = standing_of(self.plan, planned, present, there, lambda one: is_over or key_of(one) in settled)
        self.total = 2 * len(standing.ours)
        if is_over:
            self._tell(self.total)
            made = [link for link in there.values() if is_backfilled(link) and migration_of(link) == self.name]
            return self._report(standing, made)
        fill = self._fill(standing, complete, notes)
        if self.dry_run or self.note is None:
            fill.by_time()
            self.added = sum(one.memory.id not in present for one in standing.ours)
        else:
            await self._carry_out(standing, fill)
        return self._report(standing, fill.chosen)

    async def _carry_out(self, standing: Standing, fill: BackFill) -> None:
        """Write the memories, then the links of each, and that all is there."""
        ours = standing.ours
        self._tell(0)
        new = [_with_mark(link, self.name) for link in standing.links if link.id not in standing.there]
        await self._write_memories(standing, new)
        # All vectors and words are there now.
        await self.shared.engine.settled()
        calibration = await self.shared.embedding.calibration()
        likely: list[LikelyPair] = []
        for asked in chunks((one for one in ours if one.memory.id in fill.fresh), _SLICE):
            likely += await self.shared.read(partial(fill.likely, some=asked, calibration=calibration))
            self._tell(len(asked))
        fill.by_meaning(likely)
        fill.by_time()
        by_source: dict[str, list[Link]] = {}
        for link in new + fill.chosen:
            by_source.setdefault(link.from_id, []).append(link)
        sources = [(one.memory.id, by_source[one.memory.id]) for one in ours if one.memory.id in by_source]
        async for _ in in_turns(self._write, sources, _put_links, most=CHUNK):
            pass
        await self._write(partial(_finish, migration=self.name, settled=standing.settled))
        self._tell(self.total - self.done)

    async def _look(self) -> tuple[dict[str, Memory], dict[str, Link]]:
        """Return the memories of the plan that are there already, and the links that begin at these."""
        present: dict[str, Memory] = {}
        links: dict[str, Link] = {}
        for ids in chunks((one.memory.id for one in self.plan.planned), PAGE):
            for memory, own in await self.shared.read(partial(_found, ids=ids)):
                present[memory.id] = memory
                links.update((link.id, link) for link in own)
        return present, links

    async def _with_mentions(self) -> list[PlannedMemory]:
        """Return the plan's memories with what they mention, as they come back from the store."""
        planned = []
        for chunk in chunks(self.plan.planned, CHUNK):
            for one in chunk:
                found = tuple(self.shared.find_mentions(embedded_text(one.memory)))
                planned.append(attrs.evolve(one, memory=as_stored(attrs.evolve(one.memory, mentions=found))))
            await asyncio.sleep(0)
        return planned

    def _fill(self, standing: Standing, complete: Collection[str], notes: Collection[str]) -> BackFill:
        ids = {one.memory.id for one in standing.ours}
        marks = {one: mark.migration for one, memory in standing.present.items() if (mark := Mark.of(memory))}
        # One that came with an import was complete where it was exported, as far as anybody can tell.
        done = {one for one, name in marks.items() if name in complete or name not in {*notes, self.name}}
        others = [link for link in standing.there.values() if is_backfilled(link) and migration_of(link) != self.name]
        return BackFill(
            planned=standing.ours,
            links=standing.links,
            policy=self.shared.settings.linking,
            fresh=ids - done,
            before=Counter(end for link in others for end in (link.from_id, link.to_id) if end in ids),
            namespace=self.shared.engine.namespace,
            migration=self.name,
            at=self.at,
        )

    async def _write_memories(self, standing: Standing, links: Sequence[Link]) -> None:
        # Memories with one text get the vectors of the first of them: an embedder gives others in other company.
        first: dict[bytes, str] = {}
        # These count as evidence for others: they must be there before that is asked for.
        outcomes = {link.from_id: link for link in links if link.metadata.original_relationship == OUTCOME_OF}
        for chunk in chunks(standing.ours, CHUNK):
            texts = {one.memory.id: embedded_text(one.memory) for one in chunk}
            alike = {name: first.setdefault(key_of(text), name) for name, text in texts.items()}
            new = [one.memory for one in chunk if one.memory.id not in standing.present]
            if new:
                write = partial(self._write, made_by=self.shared.record)
                vectors = await self.shared.embedding.documents([texts[memory.id] for memory in new])
                memories = [marked(memory, self.name, self.at) for memory in new]
                put = partial(_put, alike=alike, links=outcomes)
                async for put_in in in_turns(write, list(zip(memories, vectors, strict=True)), put, most=CHUNK):
                    self.added += sum(put_in)
            self._tell(len(chunk))

    async def _write(self, plan: Callable[[Writer], T], *, made_by: EmbedderRecord | None = None) -> T:
        """Run a plan in a transaction, unless the migration is being taken back."""
        error = refused("the migration was taken back by somebody else while it ran", "run it again if it is wanted")
        checked = plan if self.note is None else self.note.unless_ended(error, plan)
        return await self.shared.write(checked, made_by=made_by)

    def _tell(self, more: int) -> None:
        self.done += more
        if self.progress is not None and self.total:
            self.progress(self.done, self.total)

    def _report(self, standing: Standing, backfilled: Sequence[Link]) -> MigrationReport:
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
            tables=tables_of(self.old, self.plan, standing.left_out),
            memories={kind.value: types[kind] for kind in MemoryType if types[kind]},
            added=self.added,
            known=len(standing.present),
            links=dict(sorted(words.items())),
            backfilled={kind.value: kinds[kind] for kind in LinkType if kinds[kind]},
            backfilled_average=len(backfilled) / len(standing.ours) if standing.ours else 0.0,
            backfilled_most=max(ends.values(), default=0),
            odd_rows=(*self.plan.odd, *future(self.plan, self.at), *standing.odd, *rows_left_out(self.old.others)),
        )


def _found(reader: Reader, ids: Sequence[str]) -> list[tuple[Memory, list[Link]]]:
    nodes = [node for node in reader.find_many(ids) if node is not None]
    return list(zip(reader.get(nodes), reader.links_of_many(nodes, "out"), strict=True))


def _put(writer: Writer, made: tuple[Memory, Vectors], *, alike: Mapping[str, str], links: Mapping[str, Link]) -> bool:
    """Write a memory with its vectors, or those of another of the same text; tell whether it was not there."""
    memory, pieces = made
    # Another process may migrate the same.
    is_new = writer.find(memory.id) is None
    if is_new:
        twin = writer.find(alike[memory.id])
        own = [links[memory.id]] if memory.id in links else []
        writer.put(memory, vectors=pieces if twin is None else writer.vectors(twin), links=own)
    return is_new


def _put_links(writer: Writer, source: tuple[str, Sequence[Link]]) -> None:
    """Write the links that begin at a memory."""
    memory_id, wanted = source
    node = writer.find(memory_id)
    if node is None:
        return
    there = writer.read_links(node)
    ids = {link.id for link in there}
    # Somebody may have linked the two meanwhile, which says more.
    taken = {end for link in there if migration_of(link) is None for end in (link.from_id, link.to_id)}
    ends = writer.find_many([link.to_id for link in wanted])
    missing = [
        link
        for link, end in zip(wanted, ends, strict=True)
        if end is not None and link.id not in ids and not (is_backfilled(link) and link.to_id in taken)
    ]
    if missing:
        writer.put(writer.get([node])[0], links=missing)


def _finish(writer: Writer, migration: str, settled: Iterable[str]) -> None:
    note = records_of(writer)[migration]
    # Another process may have been faster.
    if note.state == "begun":
        note.written(writer, "complete", settled)


def _with_mark(link: Link, migration: str) -> Link:
    extra: dict[str, Any] = {**link.metadata.extra, MARK: migration}
    return attrs.evolve(link, metadata=attrs.evolve(link.metadata, extra=extra))


# Rolling back: what a migration added is deleted, unless that would lose what was made since.


class _Migrated(NamedTuple):
    """A migrated memory: what made it, whether it was changed since, and the links at it."""

    id: str
    mark: Mark
    is_changed: bool
    links: list[Link]


async def rollback(memories: MemoryStore, *, force: bool = False, progress: Progress | None = None) -> RollbackReport:
    """
    Undo the last migration: delete the memories and links that it added; interrupted, it goes on when it is run again.

    Args:
        memories: The store.
        force: Whether to delete also what was changed since, and what later memories link to.
        progress: Called with how many memories are deleted, and of how many.

    Raises:
        MigrationError: A migrated memory was changed since, or later links begin or end at one; nothing was deleted.
            Or somebody else migrates, or takes it back, at the same time.
        StoreError: The store cannot be read or written; what was deleted before stays so.

    """
    _check.flag("force", force)
    check_progress(progress)
    shared = memories._shared  # noqa: SLF001 - this package's
    shared.check()
    known = await shared.read(records_of)
    found = await _migrated(shared)
    # Memories that came with an import name a migration that the store has no note of.
    unknown = [(0, one.mark.at, one.mark.migration) for one in found if one.mark.migration not in known]
    last = max([*unknown, *((one.order, one.begun, one.migration) for one in known.values())], default=None)
    if last is None:
        return RollbackReport(namespace=memories.namespace)
    migration = last[2]
    going = {one.id: one for one in found if one.mark.migration == migration}
    changed = tuple(one.id for one in going.values() if one.is_changed)
    links = {link.id: link for one in going.values() for link in one.links}
    others = [link for link in links.values() if migration_of(link) is None]
    linked = tuple(dict.fromkeys(end for link in others for end in (link.from_id, link.to_id) if end not in going))
    if (changed or others) and not force:
        raise _refusal(changed, others, linked)
    noted = known.get(migration)
    lost = {key_of(one) for one in {*going, *links, *_made(found, migration)}}
    note = await shared.write(partial(_begin, migration=migration, noted=noted, lost=lost))
    if noted is not None and noted.state != "complete":
        # Who was migrating may have added more until then, and nothing after that.
        found = await _migrated(shared)
        going = {one.id: one for one in found if one.mark.migration == migration}
    # Links that it made between memories of earlier migrations go by themselves.
    between = [
        one for one, link in _made(found, migration).items() if going.keys().isdisjoint((link.from_id, link.to_id))
    ]

    async def write(plan: Callable[[Writer], T]) -> T:
        return await shared.write(plan if note is None else note.unless_ended(_busy(), plan))

    count = done = 0
    async for cut in in_turns(write, sorted(between), _unlink, most=CHUNK):
        count += sum(cut)
    async for deleted in in_turns(write, [*reversed(going)], _delete, most=CHUNK):
        count += sum(deleted)
        done += len(deleted)
        if progress is not None:
            progress(done, len(going))
    if note is not None:
        await write(methodcaller("set_note", f"{PREFIX}{migration}", None))
    return RollbackReport(
        namespace=memories.namespace,
        migration=migration,
        memories=len(going),
        links=count,
        changed=changed,
        linked=linked,
        migrations_left=len({*known, *(one.mark.migration for one in found)} - {migration}),
    )


async def _migrated(shared: Shared) -> list[_Migrated]:
    """Return all memories that migrations made, in order of saving."""

    def page(reader: Reader, ids: Sequence[str]) -> list[_Migrated]:
        nodes = [node for node in reader.find_many(ids) if node is not None]
        marks = [(node, memory, Mark.of(memory)) for node, memory in zip(nodes, reader.get(nodes), strict=True)]
        made = [(node, memory, mark) for node, memory, mark in marks if mark is not None]
        links = reader.links_of_many([node for node, _, _ in made])
        return [
            _Migrated(memory.id, mark, digest_of(memory) != mark.digest, own)
            for (_, memory, mark), own in zip(made, links, strict=True)
        ]

    every = await shared.read(lambda reader: reader.ids(sorted(reader.window(newest_first=False).tolist())))
    return [one for ids in chunks(every, PAGE) for one in await shared.read(partial(page, ids=ids))]


def _made(found: Sequence[_Migrated], migration: str) -> dict[str, Link]:
    """Return the links that a migration made, by id."""
    return {link.id: link for one in found for link in one.links if migration_of(link) == migration}


def _refusal(changed: Sequence[str], others: Sequence[Link], linked: Sequence[str]) -> MigrationError:
    parts = []
    if changed:
        parts.append(f"{len(changed)} migrated memories were changed since ({some(changed)})")
    if others:
        automatic = sum(link.created_by == "system" for link in others)
        ends = f" with {len(linked)} later memories ({some(linked)})" if linked else ""
        parts.append(f"{len(others)} links{ends} were made since, {automatic} of them automatic")
    return refused(
        "the migration cannot be undone without loss: " + ", and ".join(parts),
        "nothing was deleted; force deletes the memories and these links with them: export the store first",
    )


def _begin(
    writer: Writer, migration: str, noted: MigrationNote | None, lost: Collection[bytes]
) -> MigrationNote | None:
    """Note that a migration is being taken back, and return its note, None where the store has none."""
    notes = records_of(writer)
    if notes.pop(migration, None) != noted:
        raise _busy()
    for one in notes.values():
        # Two that were under way together: what goes now counts as there in the other one, too, and it must look again.
        if one.state == "complete" and not one.keys.isdisjoint(lost):
            one.written(writer, "begun")
    return None if noted is None else noted.written(writer, "undone")


def _unlink(writer: Writer, link_id: str) -> int:
    return writer.delete_links([link_id])


def _delete(writer: Writer, memory_id: str) -> int:
    return 0 if writer.find(memory_id) is None else writer.delete(memory_id)


def _busy() -> MigrationError:
    return refused(
        "somebody else migrates, or takes it back, at the same time", "wait until that is done, and run it again then"
    )
