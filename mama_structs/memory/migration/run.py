"""
One migration, from an old file's rows to memories and links in a store.

Memories are written first, oldest first, then the links of each; a note of the store then says that all is there.
Everything follows from the old file, the store and the time at which the migration was begun, which is noted first:
interrupted anywhere and repeated, it gives the same store.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from mama_structs import _check
from mama_structs._async import in_own_thread
from mama_structs.errors import MigrationError
from mama_structs.memory.engine import EmbedderRecord, Reader, Writer
from mama_structs.memory.migration.backfill import BackFill, Likely, spread
from mama_structs.memory.migration.marks import (
    MARK,
    Mark,
    as_stored,
    digest_of,
    is_backfilled,
    migration_of,
    row_digest_of,
)
from mama_structs.memory.migration.plan import MigrationPlan, future, plan_of, rows_left_out, tables_of
from mama_structs.memory.migration.record import Record, begin, joined, keep, records_of, still
from mama_structs.memory.migration.report import MigrationReport
from mama_structs.memory.migration.rows import Planned
from mama_structs.memory.migration.source import OldDatabase, read_old
from mama_structs.memory.migration.standing import Present, Standing, State, standing_of
from mama_structs.memory.model import Link, Memory
from mama_structs.memory.requests import check_file, check_progress
from mama_structs.memory.saving import OUTCOME_OF
from mama_structs.memory.shared import Shared
from mama_structs.memory.store import MemoryStore
from mama_structs.memory.text import embedded_text

T = TypeVar("T")
Progress = Callable[[int, int], object]

# Both batches of the default embedder; a transaction takes as many.
_CHUNK: Final = 64
_PAGE: Final = 500
# Memories whose likely partners are looked for before others have their turn.
_SLICE: Final = 32


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
        MigrationError: It is no database of MAMA v1.0, damaged, cut off, or being written to; nothing was written.
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
    return await _Run(shared, old, plan, dry_run=dry_run, progress=progress).run()


@attrs.define(eq=False)
class _Run:
    """One run of `migrate`."""

    shared: Shared
    old: OldDatabase
    plan: MigrationPlan
    dry_run: bool
    progress: Progress | None
    migration: str = attrs.field(init=False)
    record: Record | None = attrs.field(init=False, default=None)
    added: int = attrs.field(init=False, default=0)
    done: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        """Name the migration."""
        self.migration = self.old.content

    async def run(self) -> MigrationReport:
        """Do it."""
        records = await self._read(records_of)
        record, at = records.get(self.migration), self.shared.now
        if record is None:
            # Memories that came with an import name a migration which this store has no note of.
            marks = (await self._look(records)).marks
            at = next((mark.at for mark in marks if mark.migration == self.migration), at)
        if not self.dry_run and self.plan.planned:
            record = await self._begin(at)
        self.record, at = record, at if record is None else record.begun
        # After that: nobody takes it back any more while this looks.
        state = await self._look(records)
        planned = [
            attrs.evolve(one, memory=await self._staged(one.memory, place))
            for place, one in enumerate(self.plan.planned)
        ]
        standing = standing_of(self.plan, planned, state)
        ours = standing.ours
        report = self._report(state, standing, at)
        if state.is_over:
            return self._again(report, ours, state)
        fill = self._fill(state, standing)
        if not self.dry_run:
            self._tell(0)
            new = [_marked(link, self.migration) for link in standing.new_links]
            await self._write_memories(ours, new, state, at)
            await self._complete_fill(fill, ours)
            made = fill.made(namespace=self.shared.engine.namespace, migration=self.migration, at=at)
            await self._write_links(ours, new + made)
            await self._finish(standing)
        else:
            fill.by_time()
            made = fill.made(namespace=self.shared.engine.namespace, migration=self.migration, at=at)
        return attrs.evolve(
            report,
            added=sum(one.memory.id not in state.present for one in ours) if self.dry_run else self.added,
            backfilled=spread(made),
            backfilled_average=len(made) / len(ours) if ours else 0.0,
            backfilled_most=_most(made),
        )

    async def _begin(self, at: datetime) -> Record:
        checksum = self.old.checksum
        return await self._write(lambda writer: begin(writer, self.migration, checksum=checksum, at=at))

    async def _look(self, records: Mapping[str, Record]) -> State:
        """Return what is there already."""
        present: dict[str, Present] = {}
        links: dict[str, Link] = {}
        ids = [one.memory.id for one in self.plan.planned]
        for start in range(0, len(ids), _PAGE):
            some = ids[start : start + _PAGE]
            for memory, own in await self._read(lambda reader, some=some: _found(reader, some)):  # type: ignore[misc]  # bound
                present[memory.id] = Present(memory, Mark.of(memory))
                links.update((link.id, link) for link in own)
        known = {**records, **({} if self.record is None else {self.migration: self.record})}
        complete = {name for name, one in known.items() if one.is_complete}
        noted = {one.mark.migration for one in present.values() if one.mark is not None}
        return State(
            present=present,
            links=links,
            # One that came with an import was complete where it was exported, as far as anybody can tell.
            complete=complete | (noted - {*known, self.migration}),
            settled=frozenset[bytes]().union(*(known[name].keys for name in complete)),
            is_over=self.migration in complete,
        )

    async def _staged(self, memory: Memory, place: int) -> Memory:
        """Return a memory with what it mentions, as the store would give it back."""
        if place % _CHUNK == _CHUNK - 1:
            await asyncio.sleep(0)
        mentions = tuple(self.shared.find_mentions(embedded_text(memory)))
        return as_stored(attrs.evolve(memory, mentions=mentions))

    def _report(self, state: State, standing: Standing, at: datetime) -> MigrationReport:
        return MigrationReport(
            source=self.old.path,
            checksum=self.old.checksum,
            namespace=self.shared.engine.namespace,
            migration=self.migration,
            at=at,
            dry_run=self.dry_run,
            tables=tables_of(self.old, self.plan, standing.left_out),
            memories=self.plan.types,
            known=len(state.present),
            links=self.plan.words,
            odd_rows=(*self.plan.odd, *future(self.plan, at), *standing.odd, *rows_left_out(self.old.others)),
        )

    def _again(self, report: MigrationReport, ours: Sequence[Planned], state: State) -> MigrationReport:
        """Return the report of a migration that was complete before: nothing is written."""
        links = state.links.values()
        found = [link for link in links if is_backfilled(link) and migration_of(link) == self.migration]
        self.done = 2 * len(ours)
        self._tell(2 * len(ours))
        return attrs.evolve(
            report,
            backfilled=spread(found),
            backfilled_average=len(found) / len(ours) if ours else 0.0,
            backfilled_most=_most(found),
        )

    def _fill(self, state: State, standing: Standing) -> BackFill:
        ids = {one.memory.id for one in standing.ours}
        done = {one for one in ids if (mark := state.of(one)) and mark.migration in state.complete}
        others = [link for link in state.links.values() if is_backfilled(link) and migration_of(link) != self.migration]
        before = Counter(end for link in others for end in (link.from_id, link.to_id) if end in ids)
        fill = BackFill(
            planned=standing.ours,
            links=standing.links,
            policy=self.shared.settings.linking,
            fresh=ids - done,
            before=before,
        )
        fill.by_topic()
        return fill

    async def _write_memories(self, ours: Sequence[Planned], links: Sequence[Link], state: State, at: datetime) -> None:
        # The memory whose text is the same: its vectors are taken, since an embedder gives others in other company.
        first: dict[bytes, str] = {}
        # These count as evidence for others: they must be there before that is asked for.
        outcomes = {link.from_id: [link] for link in links if link.metadata.original_relationship == OUTCOME_OF}
        for start in range(0, len(ours), _CHUNK):
            chunk = ours[start : start + _CHUNK]
            new = [one.memory for one in chunk if one.memory.id not in state.present]
            texts = {memory.id: embedded_text(memory) for memory in new}
            sums = {one.memory.id: _sum(embedded_text(one.memory)) for one in chunk}
            alike = {memory.id: first[sums[memory.id]] for memory in new if sums[memory.id] in first}
            for memory_id, digest in sums.items():
                first.setdefault(digest, memory_id)
            own = [memory.id for memory in new if memory.id not in alike]
            record = self.shared.record
            found = await self.shared.embedding.documents([texts[one] for one in own]) if own else []
            vectors = dict(zip(own, found, strict=True))
            marked = [_mark(memory, self.migration, at) for memory in new]
            if marked:
                self.added += await self._write(
                    lambda writer: _put(writer, marked, vectors, alike, outcomes),  # noqa: B023 - awaited
                    made_by=record,
                )
            self._tell(2 * len(ours), len(chunk))

    async def _complete_fill(self, fill: BackFill, ours: Sequence[Planned]) -> None:
        """Add what needs the vectors and words of all memories."""
        await self.shared.engine.settled()
        calibration = await self.shared.embedding.calibration()
        likely: list[Likely] = []
        places = [at for at, one in enumerate(ours) if one.memory.id in fill.fresh]
        for start in range(0, len(places), _SLICE):
            some = places[start : start + _SLICE]
            likely += await self._read(
                lambda reader, some=some: fill.likely(reader, some, calibration)  # type: ignore[misc]  # bound
            )
            self._tell(2 * len(ours), len(some))
        fill.by_meaning(likely)
        fill.by_time()

    async def _write_links(self, ours: Sequence[Planned], links: Sequence[Link]) -> None:
        by_source: dict[str, list[Link]] = {}
        for link in links:
            by_source.setdefault(link.from_id, []).append(link)
        sources = [one.memory.id for one in ours if one.memory.id in by_source]
        for start in range(0, len(sources), _CHUNK):
            some = [(source, by_source[source]) for source in sources[start : start + _CHUNK]]
            await self._write(lambda writer, some=some: _put_links(writer, some))  # type: ignore[misc]

    async def _finish(self, standing: Standing) -> None:
        """Note that all is there."""
        settled = joined(standing.settled)

        def plan(writer: Writer) -> None:
            now = None if self.record is None else still(writer, self.record)
            if now is not None and not now.is_complete:
                keep(writer, msgspec.structs.replace(now, state="complete", settled=settled))

        await self._write(plan)
        self.done = 2 * len(standing.ours)
        self._tell(2 * len(standing.ours))

    async def _write(self, plan: Callable[[Writer], T], *, made_by: EmbedderRecord | None = None) -> T:
        """Run a plan in a transaction, unless the migration is being taken back."""
        record = self.record

        def checked(writer: Writer) -> T:
            if record is not None:
                still(writer, record)
            return plan(writer)

        return await self.shared.write(checked, made_by=made_by)

    async def _read(self, plan: Callable[[Reader], T]) -> T:
        return await self.shared.read(plan)

    def _tell(self, total: int, more: int = 0) -> None:
        self.done += more
        if self.progress is not None and total:
            self.progress(self.done, total)


def _found(reader: Reader, ids: Sequence[str]) -> list[tuple[Memory, list[Link]]]:
    nodes = [node for node in map(reader.find, ids) if node is not None]
    return [(memory, reader.read_links(node, "out")) for node, memory in zip(nodes, reader.get(nodes), strict=True)]


def _most(links: Iterable[Link]) -> int:
    """Return how many of some links begin or end at one memory, at the most."""
    return max(Counter(end for link in links for end in (link.from_id, link.to_id)).values(), default=0)


def _mark(memory: Memory, migration: str, at: datetime) -> Memory:
    return Mark(migration=migration, at=at, digest=digest_of(memory), row=row_digest_of(memory)).on(memory)


def _put(
    writer: Writer,
    marked: Sequence[Memory],
    vectors: Mapping[str, NDArray[np.float32]],
    alike: Mapping[str, str],
    links: Mapping[str, Sequence[Link]],
) -> int:
    count = 0
    for memory in marked:
        if writer.find(memory.id) is not None:
            # Another process migrates the same.
            continue
        pieces = vectors.get(memory.id)
        if pieces is None:
            node = writer.find(alike[memory.id])
            if node is None:
                raise MigrationError(
                    f"{alike[memory.id]!r:.200} was deleted while it was migrated", path="", hint="run it again"
                )
            pieces = writer.vectors(node)
        writer.put(memory, vectors=pieces, links=links.get(memory.id, ()))
        count += 1
    return count


def _put_links(writer: Writer, sources: Sequence[tuple[str, Sequence[Link]]]) -> None:
    for source, wanted in sources:
        node = writer.find(source)
        if node is None:
            continue
        there = writer.read_links(node)
        ids = {link.id for link in there}
        # Somebody may have linked the two meanwhile, which says more.
        taken = {end for link in there if migration_of(link) is None for end in (link.from_id, link.to_id)}
        missing = [
            link
            for link in wanted
            if link.id not in ids
            and writer.find(link.to_id) is not None
            and not (is_backfilled(link) and link.to_id in taken)
        ]
        if missing:
            writer.put(writer.get([node])[0], links=missing)


def _marked(link: Link, migration: str) -> Link:
    extra = {**link.metadata.extra, MARK: migration}
    return attrs.evolve(link, metadata=attrs.evolve(link.metadata, extra=extra))


def _sum(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
