"""Notes that migrations store: growing databases, later deletions, and the rollback of single migrations."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import sqlite3
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mama_v1_0 import NOW, START, OldStore, Open, exported

from mama_structs import admin
from mama_structs.errors import MigrationError
from mama_structs.importers import migrate_v1, read_v1, rollback_v1
from mama_structs.importers.mama_v1.migration import NOTE_PREFIX, read_notes
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.session.session import Session
from mama_structs.testing.plain_engine import PlainEngine

DAY = 86_400_000


class Interrupted(BaseException):
    """Raised to simulate the end of the process."""


class Refused(Exception):
    """Raised by a plan so that its writes are rolled back."""


@pytest.fixture
def small_chunks(monkeypatch):
    """Use small transactions, so that a few memories need many transactions."""
    monkeypatch.setattr("mama_structs.importers.mama_v1.migration.BATCH_SIZE", 2)
    monkeypatch.setattr("mama_structs.importers.mama_v1.migration.BATCH_SIZE", 2)


def supersede(store, topic, number, before):
    """Write a decision as v1.0 does, and update the superseded row."""
    new = store.decision(topic, id=f"{topic}_{number}", supersedes=before, created_at=START + number * DAY)
    store.edge(new, before, reason="User changed it")
    store.database.execute(
        "UPDATE decisions SET superseded_by = ?, updated_at = ? WHERE id = ?", (new, START + number * DAY, before)
    )
    return new


class Old:
    """A v1.0 database that gets new rows between migrations."""

    def __init__(self, folder):
        self.path = folder / "old.db"
        self.count = 0
        with OldStore.made(self.path) as store:
            store.decision("auth", id="auth_0", outcome="FAILED", failure_reason="Tokens stayed valid for an hour.")
            store.decision("cache", id="cache_0", created_at=START + 1)
            store.row("checkpoints", timestamp=START + 2, summary="Half is done", next_steps="Go on.")

    @contextlib.contextmanager
    def opened(self):
        """Open the old database for writing."""
        with contextlib.closing(sqlite3.connect(self.path)) as database, database:
            yield OldStore(self.path, database)

    def grow(self):
        """Add a decision that supersedes the newest decision of its topic."""
        self.count += 1
        with self.opened() as store:
            return supersede(store, "auth", self.count, f"auth_{self.count - 1}")

    def run(self, statement, *values):
        """Execute a statement on the old database."""
        with self.opened() as store:
            store.database.execute(statement, values)

    def link(self, from_id="cache_0", to_id="auth_0", word="contradicts"):
        """Add an edge between two rows of the old database."""
        with self.opened() as store:
            store.edge(from_id, to_id, word)


@pytest.fixture
def old(tmp_path):
    """A small v1.0 database."""
    return Old(tmp_path)


def counts(report):
    """Return the numbers of migrated and skipped rows for each table."""
    names = ("decisions", "checkpoints", "decision_edges")
    return {one.table: (one.migrated, one.skipped) for one in report.tables if one.table in names}


def kinds(report):
    """Return the table and the kind of each row that changed since its migration."""
    since = {"row_changed", "changed_since", "deleted_since", "unlinked_since", "id_taken"}
    return [(one.table, one.kind) for one in report.warnings if one.kind in since]


async def test_migrate_restores_new_rows_of_a_grown_file_after_a_rollback(old, tmp_path):
    """New rows are in the store after migration, growth, migration, rollback and migration."""
    async with Open() as memories:
        await migrate_v1(memories, old.path)
        before = await exported(memories, tmp_path)
        new = old.grow()
        await migrate_v1(memories, old.path)
        after = await exported(memories, tmp_path)
        await rollback_v1(memories)

        assert before == await exported(memories, tmp_path)

        report = await migrate_v1(memories, old.path)

        assert after == await exported(memories, tmp_path)
        assert (await memories.get(new)).topic == "auth"

    assert (1, {"decisions": (3, 0), "checkpoints": (1, 0), "decision_edges": (1, 0)}) == (report.added, counts(report))


@pytest.mark.parametrize("how", ["edge", "supersedes", "superseded_by"])
async def test_rollback_deletes_a_new_link_between_old_rows_only(old, tmp_path, how):
    """A new link alone belongs to the newer migration, whose rollback deletes only this link."""
    async with Open() as memories:
        await migrate_v1(memories, old.path)
        before = await exported(memories, tmp_path)
        if how == "edge":
            old.link("cache_0", "auth_0", "contradicts")
        elif how == "supersedes":
            old.run("UPDATE decisions SET supersedes = 'auth_0' WHERE id = 'cache_0'")
        else:
            old.run("UPDATE decisions SET superseded_by = 'cache_0', updated_at = 1 WHERE id = 'auth_0'")
        report = await migrate_v1(memories, old.path)
        words = {one.metadata.original_relationship for one in await memories.links("cache_0")}
        undone = await rollback_v1(memories)

        assert before == await exported(memories, tmp_path)

    assert ("contradicts" if how == "edge" else "supersedes") in words
    assert [] == kinds(report)
    assert (0, 1, 1) == (undone.memories, undone.links, undone.migrations_left)


async def test_rollback_undoes_the_last_migration_despite_clock_changes(old, tmp_path):
    """A clock that was set back does not change the order of migrations."""
    async with Open() as memories:
        first = await migrate_v1(memories, old.path)
        before = await exported(memories, tmp_path)
        old.grow()
        memories._shared.clock = lambda: NOW - 10**7
        second = await migrate_v1(memories, old.path)
        undone = [await rollback_v1(memories), await exported(memories, tmp_path), await rollback_v1(memories)]

    assert second.at < first.at
    assert (second.migration, before, first.migration) == (undone[0].migration, undone[1], undone[2].migration)


@pytest.mark.parametrize("grown", [False, True])
async def test_migrate_does_not_restore_deleted_memories(old, tmp_path, grown):
    """Deleted memories are skipped and counted, for the same file and for a grown one."""
    async with Open() as memories:
        await migrate_v1(memories, old.path)
        await memories.delete("cache_0")
        checkpoint = await memories.latest_checkpoint()
        await memories.delete(checkpoint.id)
        before = await exported(memories, tmp_path)
        if grown:
            old.grow()
            old.link("cache_0", "auth_0")
        would = await migrate_v1(memories, old.path, dry_run=True)
        report = await migrate_v1(memories, old.path)
        if grown:
            await rollback_v1(memories)

        assert before == await exported(memories, tmp_path)

    edges = (1, 1) if grown else (0, 0)
    assert {"decisions": (1 + grown, 1), "checkpoints": (0, 1), "decision_edges": edges} == counts(report)
    assert counts(report) == counts(would)
    assert {"deleted_since"} == {kind for _, kind in kinds(report)}
    assert 2 + grown == len(kinds(report))


@pytest.mark.parametrize("grown", [False, True])
async def test_migrate_does_not_restore_deleted_links(old, tmp_path, grown):
    """Deleted links are skipped and counted, for the same file and for a grown one."""
    old.link()
    async with Open() as memories:
        await migrate_v1(memories, old.path)
        (link,) = [
            one for one in await memories.links("cache_0") if one.metadata.original_relationship == "contradicts"
        ]
        await memories.unlink(link.id)
        before = await exported(memories, tmp_path)
        if grown:
            old.grow()
        report = await migrate_v1(memories, old.path)
        if grown:
            await rollback_v1(memories)

        assert before == await exported(memories, tmp_path)

    assert [("decision_edges", "unlinked_since")] == kinds(report)
    assert (int(grown), 1) == counts(report)["decision_edges"]


async def test_migrate_counts_rows_changed_in_the_old_file_as_skipped(old):
    """A row changed after its migration counts as left out, and its memory is unchanged."""
    old.link()
    async with Open() as memories:
        await migrate_v1(memories, old.path)
        old.run("UPDATE decisions SET decision = 'Use something else' WHERE id = 'auth_0'")
        old.run("UPDATE decision_edges SET reason = 'Another reason'")
        report = await migrate_v1(memories, old.path)

        assert "Use auth" == (await memories.get("auth_0")).content

    assert {"decisions": (1, 1), "checkpoints": (1, 0), "decision_edges": (0, 1)} == counts(report)
    assert [("decisions", "row_changed"), ("decision_edges", "row_changed")] == kinds(report)


async def test_migrate_recognizes_rows_that_were_superseded_since(old):
    """Changes of v1.0 in a superseded row create no second context and no odd row."""
    async with Open() as memories:
        await migrate_v1(memories, old.path)
        old.grow()
        report = await migrate_v1(memories, old.path)

        assert 1 == await memories.count(type="context")

    assert [] == kinds(report)


async def test_migrate_ignores_changed_mentions(old):
    """A host that finds other mentions in the texts does not make rows count as changed."""
    async with Open() as memories:
        await migrate_v1(memories, old.path)
        old.grow()
        memories._shared.find_mentions = lambda text: ["id:1"]
        report = await migrate_v1(memories, old.path)

    assert [] == kinds(report)


async def test_migrate_writes_nothing_when_already_complete(old):
    """A repeated migration writes nothing, not even a note."""
    async with Open() as memories:
        await migrate_v1(memories, old.path)
        old.grow()
        await migrate_v1(memories, old.path)
        before = await memories._shared.read(lambda reader: (reader.change, reader.notes()))
        await migrate_v1(memories, old.path)

        assert before == await memories._shared.read(lambda reader: (reader.change, reader.notes()))

    assert 2 == len(before[1])


async def test_rollback_treats_imported_migration_marks_as_earlier_migrations(old, tmp_path):
    """Imported migrated memories are an earlier migration to resume or roll back."""
    async with Open() as memories:
        await migrate_v1(memories, old.path)
        await exported(memories, tmp_path)
    async with Open(now=NOW + 1000) as memories:
        await admin.import_jsonl(memories, tmp_path / "out.jsonl")
        imported = await exported(memories, tmp_path)
        again = await migrate_v1(memories, old.path)

        assert imported == await exported(memories, tmp_path)

        await rollback_v1(memories)

        assert 0 == await memories.count()

        await admin.import_jsonl(memories, copied(imported, tmp_path))
        old.grow()
        await migrate_v1(memories, old.path)
        first = await rollback_v1(memories)

        assert imported == await exported(memories, tmp_path)

        second = await rollback_v1(memories)

    assert (0, datetime.fromtimestamp(NOW, UTC)) == (again.added, again.at)
    assert (1, 0) == (first.migrations_left, second.migrations_left)


def copied(data, folder):
    """Write exported data to a file, and return its path."""
    path = folder / "copy.jsonl"
    path.write_bytes(data)
    return path


async def stopped(memories, end, work):
    """Run *work* and interrupt it before transaction number *end*. Return True if it was interrupted."""
    backend = memories._shared.engine
    written, left = backend.write, end

    async def write(plan):
        nonlocal left
        if left == 0:
            raise Interrupted
        left -= 1
        return await written(plan)

    backend.write = write
    try:
        await work
    except Interrupted:
        return True
    finally:
        del backend.write
    return False


@pytest.mark.usefixtures("small_chunks")
async def test_second_migration_continues_after_an_interruption(old, tmp_path):
    """
    A second migration interrupted at any transaction and repeated has the same result.

    The same is true if it is rolled back.
    """
    async with Open() as memories:
        await migrate_v1(memories, old.path)
        before = await exported(memories, tmp_path)
        old.grow()
        old.link()
        await migrate_v1(memories, old.path)
        after = await exported(memories, tmp_path)
        await rollback_v1(memories)
        for end in itertools.count():
            memories._shared.clock = lambda: NOW
            is_ended = await stopped(memories, end, migrate_v1(memories, old.path))
            if end:
                memories._shared.clock = lambda: NOW + 1000
                await migrate_v1(memories, old.path)

                assert after == await exported(memories, tmp_path)

                await rollback_v1(memories)

            assert before == await exported(memories, tmp_path)

            if not is_ended:
                break
    assert 5 <= end


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("then", [rollback_v1, migrate_v1])
async def test_second_rollback_continues_after_an_interruption(old, tmp_path, then):
    """
    A rollback interrupted at any transaction continues when it is repeated.

    A migration can follow instead.
    """
    async with Open() as memories:
        await migrate_v1(memories, old.path)
        before = await exported(memories, tmp_path)
        old.grow()
        old.link()
        old.link("auth_0", "cache_0", "refines")
        await migrate_v1(memories, old.path)
        after = await exported(memories, tmp_path)
        for end in itertools.count():
            is_ended = await stopped(memories, end, rollback_v1(memories))
            if not is_ended:
                break
            await (rollback_v1(memories) if then is rollback_v1 else migrate_v1(memories, old.path))

            assert (before if then is rollback_v1 else after) == await exported(memories, tmp_path)

            await migrate_v1(memories, old.path)

        assert before == await exported(memories, tmp_path)
    assert 3 <= end


@pytest.mark.usefixtures("small_chunks")
async def test_concurrent_migrations_of_one_file_have_the_same_result(old, tmp_path):
    """Two concurrent migrations of one file have the same result as one."""
    async with Open() as memories:
        await migrate_v1(memories, old.path)
        expected = await exported(memories, tmp_path)
    async with Open() as memories:
        reports = await asyncio.gather(*(migrate_v1(memories, old.path) for _ in range(2)))

        assert expected == await exported(memories, tmp_path)

    assert sum(reports[0].memories.values()) == sum(report.added for report in reports)


@pytest.mark.usefixtures("small_chunks")
async def test_rollback_of_an_overlapping_migration_allows_the_earlier_one_to_continue(old, tmp_path):
    """Memories deleted by another migration's rollback do not count as deleted by the user."""
    copy = tmp_path / "copy.db"
    shutil.copy(old.path, copy)
    old.grow()
    async with Open() as memories:
        before = await exported(memories, tmp_path)
        await migrate_v1(memories, copy)
        expected = await exported(memories, tmp_path)
        await rollback_v1(memories)

        assert await stopped(memories, 2, migrate_v1(memories, copy))

        await migrate_v1(memories, old.path)
        await migrate_v1(memories, copy)
        later = await rollback_v1(memories)
        report = await migrate_v1(memories, copy)

        # The last line contains the number of exported items.
        assert expected.splitlines()[-1] == (await exported(memories, tmp_path)).splitlines()[-1]

        await rollback_v1(memories)

        assert before == await exported(memories, tmp_path)

    assert 1 == later.migrations_left
    assert [] == kinds(report)
    assert all(left_out == 0 for _, left_out in counts(report).values())


async def test_migration_stops_when_it_is_rolled_back_concurrently(old, small_chunks, tmp_path):
    """A migration that is rolled back while it runs stops with an error, and leaves nothing."""
    async with Open() as memories:
        before = await exported(memories, tmp_path)
        backend = memories._shared.engine
        written, count = backend.write, 0

        async def write(plan):
            nonlocal count
            count += 1
            if count == 3:
                backend.write = written
                await rollback_v1(memories)
            return await written(plan)

        backend.write = write
        with pytest.raises(MigrationError, match="was taken back by somebody else while it ran"):
            await migrate_v1(memories, old.path)

        assert before == await exported(memories, tmp_path)
        assert {} == await memories._shared.read(read_notes)


async def test_rollback_stops_when_the_migration_is_restarted(old, small_chunks, tmp_path):
    """A rollback stops with an error if the migration restarts, and the migration completes."""
    async with Open() as memories:
        await migrate_v1(memories, old.path)
        after = await exported(memories, tmp_path)
        running = None

        def again(done, total):
            nonlocal running
            running = running or asyncio.ensure_future(migrate_v1(memories, old.path))

        backend = memories._shared.engine
        written = backend.write

        async def write(plan):
            if running is not None and not running.done():
                backend.write = written
                await running
            return await written(plan)

        backend.write = write
        with pytest.raises(MigrationError, match="somebody else migrates"):
            await rollback_v1(memories, progress=again)

        assert after == await exported(memories, tmp_path)


async def test_unreadable_note_raises_an_error_that_names_it(old):
    """An unreadable note makes migration and rollback fail with an error that names the note."""
    async with Open() as memories:
        await memories._shared.write(lambda writer: writer.set_note(f"{NOTE_PREFIX}abc", "[" * 5000))
        for work in (migrate_v1(memories, old.path), rollback_v1(memories)):
            with pytest.raises(MigrationError, match="migration/abc"):
                await work


class Changing:
    """A v1.0 database and a store, which steps change in any order."""

    def __init__(self, folder, memories):
        self.old = Old(folder)
        self.folder = folder
        self.memories = memories
        self.stack = []
        self.linked = set()

    async def migrate(self):
        """Migrate the database, and compare the counts of the report with the store."""
        name = read_v1(self.old.path).content
        before = await exported(self.memories, self.folder)
        report = await migrate_v1(self.memories, self.old.path)
        if name in [known for known, _ in self.stack]:
            assert before == await exported(self.memories, self.folder)
        else:
            self.stack.append((name, before))
        rows = read_v1(self.old.path)
        there = {one.id: one for one in await self.memories.list(limit=1000)}
        links = {
            (one.from_id, one.to_id, one.metadata.original_relationship)
            for memory in there
            for one in await self.memories.links(memory)
        }
        same = [
            row
            for row in rows.decisions
            if (found := there.get(row.get("id"))) and found.content == row.get("decision")
        ]
        edges = [row for row in rows.edges if (row.get("from_id"), row.get("to_id"), row.get("relationship")) in links]
        assert (len(same), len(edges)) == tuple(counts(report)[name][0] for name in ("decisions", "decision_edges"))
        assert all(one.rows == one.migrated + one.skipped for one in report.tables)

    async def rollback(self):
        """Roll back the last migration, and compare the store with its export from before that migration."""
        undone = await rollback_v1(self.memories)
        if self.stack:
            name, before = self.stack.pop()
            assert (name, before) == (undone.migration, await exported(self.memories, self.folder))

    async def do(self, step):
        """Execute a step."""
        if step in {"migrate", "rollback"}:
            await getattr(self, step)()
        elif step == "grow":
            self.old.grow()
        elif step == "link":
            # v1.0 allows only one edge per relationship between two rows.
            if self.old.count not in self.linked:
                self.linked.add(self.old.count)
                self.old.link("cache_0", f"auth_{self.old.count}", "refines")
        else:
            self.old.run("UPDATE decisions SET decision = ? WHERE id = 'cache_0'", step)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from(["migrate", "migrate", "rollback", "grow", "link", "Use A", "Use B"]), max_size=12))
def test_stacked_migrations_are_rolled_back_one_by_one(tmp_path_factory, steps):
    """In any order of steps, each rollback restores the previous store, and counts match."""

    async def work():
        async with Open() as memories:
            await memories.save_decision("Keep this", topic="own", reasoning="It is the user's.")
            changing = Changing(tmp_path_factory.mktemp("old"), memories)
            before = await exported(memories, changing.folder)
            for step in steps:
                await changing.do(step)
            while changing.stack:
                await changing.rollback()

            assert before == await exported(memories, changing.folder)
            assert {} == await memories._shared.read(read_notes)
            assert not [one for one in (await admin.check(memories)).issues if one.severity == "error"]

    asyncio.run(work())


@pytest.fixture(params=["plain", "embedded"])
async def backend(request):
    """A backend of each engine."""
    if request.param == "plain":
        yield PlainEngine()
    else:
        async with Open() as memories:
            yield memories._shared.engine


async def test_notes_are_found_by_name_and_prefix(backend):
    """Notes are found by name and by prefix, within the transaction and after it."""

    def plan(writer):
        for name in ("b/2", "a", "b/1"):
            writer.set_note(name, f"text {name} 한글")
        writer.set_note("a", None)
        writer.set_note("none", None)
        return writer.notes(), writer.notes("b/2"), writer.notes("a")

    first = await backend.write(plan)
    await backend.write(lambda writer: writer.set_note("b/2", "other"))

    assert ({"b/1": "text b/1 한글", "b/2": "text b/2 한글"}, {"b/2": "text b/2 한글"}, {}) == first
    assert [("b/1", "text b/1 한글"), ("b/2", "other")] == list((await backend.read(lambda one: one.notes())).items())


async def test_notes_of_a_failing_plan_are_rolled_back(backend):
    """Notes that a plan sets or deletes before it raises are unchanged."""
    await backend.write(lambda writer: writer.set_note("a", "1"))

    def plan(writer):
        writer.set_note("a", None)
        writer.set_note("b", "2")
        raise Refused

    with pytest.raises(Refused):
        await backend.write(plan)

    assert {"a": "1"} == await backend.read(lambda reader: reader.notes())


async def test_notes_are_not_exported_and_survive_reopening(tmp_path):
    """A note is not exported, is limited to its namespace, and survives reopening the store."""
    async with Open(tmp_path / "store") as memories:
        await memories.save_context("something")
        before = await exported(memories, tmp_path), await memories._shared.read(lambda reader: reader.change)
        await memories._shared.write(lambda writer: writer.set_note("a", "1"))

        assert before == (await exported(memories, tmp_path), await memories._shared.read(lambda reader: reader.change))
    async with Session.open(tmp_path / "store", namespace="other", embedder=HashEmbedder(dimensions=64)) as session:
        assert {} == await session.memories._shared.read(lambda reader: reader.notes())
    async with Open(tmp_path / "store") as memories:
        assert {"a": "1"} == await memories._shared.read(lambda reader: reader.notes("a"))
        assert [] == [one for one in (await admin.check(memories)).issues if one.severity == "error"]
