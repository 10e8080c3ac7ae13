"""Long writes are split into short transactions, so that other writes can run in between."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace

import attrs
import pytest
from mama_v1_0 import OldStore
from memory_helpers import SMALL, OpenedDirectory, Planned, failing_after, is_on_server

from mama_structs import admin
from mama_structs.errors import MemoryNotFound
from mama_structs.importers import migrate_v1, rollback_v1
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.engines.local import engine as embedded_engine
from mama_structs.memory.engines.local.engine import LocalEngine
from mama_structs.memory.engines.local.plans import JournalWriter
from mama_structs.memory.engines.postgres import writer as postgres_writer
from mama_structs.memory.engines.postgres.engine import PostgresEngine
from mama_structs.memory.engines.postgres.writer import PostgresWriter
from mama_structs.settings import MemorySettings

# Each write takes 40 ms, and a transaction may take 100 ms, so a transaction contains at most three writes.
STEP, MOST = 0.04, 3


@attrs.define
class Slow:
    """
    A simulated slow disk: each write takes some time.

    Records the number of writes per transaction.
    """

    now: float = 0.0
    counts: list[int] = attrs.field(factory=list)
    depth: int = 0

    def slowed(self, method):
        def slow(writer, first, *given, **named):
            # A nested call is part of the outer call, which has already counted it.
            count = 0 if self.depth else len(first) if method.__name__ == "put_new" else 1
            self.now += STEP * count
            self.counts[-1] += count
            self.depth += 1
            try:
                return method(writer, first, *given, **named)
            finally:
                self.depth -= 1

        return slow


WRITER, ENGINE = (PostgresWriter, PostgresEngine) if is_on_server() else (JournalWriter, LocalEngine)


@pytest.fixture
def slow(monkeypatch):
    """Make every write and deletion of a memory take 40 ms of simulated time."""
    disk = Slow()
    for module in (embedded_engine, postgres_writer):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: disk.now))
    for name in ("put", "put_new", "delete", "put_vectors", "delete_links"):
        monkeypatch.setattr(WRITER, name, disk.slowed(getattr(WRITER, name)))
    # Find the method that starts a transaction, to count the transactions.
    owner, name = (PostgresWriter, "__init__") if is_on_server() else (LocalEngine, "_write_group")
    begun = getattr(owner, name)

    def counted(*given):
        disk.counts.append(0)
        return begun(*given)

    monkeypatch.setattr(owner, name, counted)
    return disk


async def filled(store, count=40):
    """Save *count* memories in one call of `save_many`."""
    records = [{"type": "insight", "content": f"note {number} about raids"} for number in range(count)]
    return await store.save_many(records)


async def imported(place, store):
    await filled(store)
    await admin.export_jsonl(store, place.path / "file")
    other = await place.memories("other")
    return lambda: admin.import_jsonl(other, place.path / "file"), other.count


async def migrated(place, store):
    with OldStore.made(place.path / "old.db") as old:
        old.history(40)
    return lambda: migrate_v1(store, place.path / "old.db"), store.count


async def taken_back(place, store):
    call, _ = await migrated(place, store)
    await call()

    async def left():
        return 40 - await store.count()

    return lambda: rollback_v1(store, force=True), left


async def pruned(place, store):
    saved = await filled(store)

    async def without():
        return sum([not await store.links(memory.id) for memory in saved])

    place.clock.now += 86_400 * 365
    return lambda: admin.prune(store, now=saved[0].created_at + timedelta(days=900)), without


async def embedded_anew(place, store):
    await filled(store)
    return lambda: admin.reembed(store, HashEmbedder(dimensions=32)), store.count


@attrs.define(eq=False)
class Clock:
    now: float = 1_800_000_000.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("prepare", [imported, migrated, taken_back, pruned, embedded_anew])
async def test_long_writes_are_split_when_disk_is_slow(tmp_path, slow, prepare):
    """Import, migration, rollback, pruning and reembed end a transaction after three memories."""
    weak = MemorySettings(prune_below=1.0) if prepare is pruned else MemorySettings()
    place = OpenedDirectory.open(tmp_path, clock=Clock(), settings=weak)
    call, count = await prepare(place, await place.memories())
    slow.counts.clear()
    await call()

    assert max(slow.counts) <= MOST
    assert len([number for number in slow.counts if number]) >= 40 // MOST
    assert await count() >= 40
    assert [] == await place.findings()
    await place.close()


async def test_save_many_is_split_when_disk_is_slow(tmp_path, slow):
    """A hundred records need several short transactions, and all are stored in order."""
    place = OpenedDirectory.open(tmp_path)
    store = await place.memories()
    told = []
    records = [{"type": "context", "content": f"note {number}"} for number in range(100)]
    saved = await store.save_many(records, progress=lambda *figures: told.append(figures))

    assert max(slow.counts) <= MOST
    assert len(slow.counts) >= 100 // MOST
    assert [record["content"] for record in records] == [memory.content for memory in saved]
    assert (100, 100) == told[-1]
    assert 100 == await store.count()
    await place.close()


async def test_save_many_reports_number_saved_before_error(tmp_path, slow, monkeypatch):
    """Records of earlier transactions are kept, those of the failed one are not."""
    place = OpenedDirectory.open(tmp_path)
    store = await place.memories()
    first = await store.save_context("the first")
    records = [{"type": "checkpoint", "content": f"part {n}", "implements": [first.id]} for n in range(20)]
    whole = WRITER.put_new

    def put_new(writer, new, *given):
        if "part 10" in {one.memory.content for one in new}:
            raise MemoryNotFound("gone")
        return whole(writer, new, *given)

    monkeypatch.setattr(WRITER, "put_new", put_new)
    with pytest.raises(MemoryNotFound) as caught:
        await store.save_many(records)

    assert ["9 of 20 memories were saved"] == caught.value.__notes__
    assert 1 + 9 == await store.count()
    assert [] == await place.findings()
    await place.close()


async def test_single_saves_run_between_transactions_of_save_many(tmp_path, slow, monkeypatch):
    """In one process, a save waits for at most two transactions of a concurrent `save_many`."""
    place = OpenedDirectory.open(tmp_path)
    store = await place.memories()
    alone, waits = asyncio.current_task(), []
    write = ENGINE.write

    async def watched(engine, plan):
        # Count only transactions that start while the plan waits. A busy machine may start more before and after.
        before = len(slow.counts)

        def run(writer):
            waits.append(len(slow.counts) - before)
            return plan(writer)

        return await write(engine, run if asyncio.current_task() is alone else plan)

    monkeypatch.setattr(ENGINE, "write", watched)
    loading = asyncio.create_task(store.save_many([{"type": "context", "content": f"n {n}"} for n in range(150)]))
    while not loading.done():
        await store.save_insight(f"single {len(waits)}")
    await loading

    assert len(waits) > 10
    # A save waits for the running transaction, for at most one more transaction of `save_many`, and for its own.
    assert max(waits) <= 3
    await place.close()


async def test_plan_failing_at_any_row_is_rolled_back_in_shared_transaction(tmp_path, monkeypatch):
    """Neither rows nor views contain its changes, in this process and after reopening."""
    place = OpenedDirectory.open(tmp_path, find_content=lambda item: (item + "@1", "text " + item), embedder=SMALL)
    store = await place.memories()
    monkeypatch.setattr(embedded_engine, "MAX_TRANSACTION_SECONDS", 1e9)
    first = await store.save_decision("use tokens", topic="auth", reasoning="why", evidence=["ref:a"])
    linked = await store.save_decision("use keys", topic="auth", reasoning="why", supersedes=first.id)
    expected = [linked.id, first.id]
    failures = 0
    for number in range(100):

        def failing(writer, left=number):
            with failing_after(writer, left):
                fresh = attrs.evolve(writer.get([writer.find(first.id)])[0], id="fresh", content="other words")
                writer.put(fresh, vectors=writer.vectors(writer.find(first.id)))
                writer.delete(first.id)
                writer.set_note("a", "b")
                writer.finish()
            raise AssertionError("nothing failed")

        results = await asyncio.gather(
            store.save_context(f"before {number}"),
            store._engine.write(failing),
            store.save_context(f"after {number}"),
            return_exceptions=True,
        )
        expected = [results[2].id, results[0].id, *expected]
        if isinstance(results[1], AssertionError):
            break
        assert isinstance(results[1], Planned)
        failures += 1
        assert sorted(expected) == sorted(memory.id for memory in await store.list(limit=1000))
        assert [linked.id] == [link.from_id for link in await store.links(first.id) if link.created_by == "user"]
    assert failures >= 6
    assert [] == await place.findings()
    fresh = OpenedDirectory.open(tmp_path, embedder=SMALL)
    again = await fresh.memories()
    assert sorted(expected) == sorted(memory.id for memory in await again.list(limit=1000))
    assert {} == await again._engine.read(lambda reader: reader.notes())
    assert [] == await fresh.findings()
    await fresh.close()
    await place.close()
