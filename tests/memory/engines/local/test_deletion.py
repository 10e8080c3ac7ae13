"""Deletion of a memory with many incoming links: immediate for readers, incremental on disk."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from memory_helpers import SMALL, OpenedDirectory, Planned, failing_after, is_on_server, plain_link, plain_memory

import mama_structs
from mama_structs import admin
from mama_structs.errors import MemoryNotFound
from mama_structs.memory.engines.local import plans
from mama_structs.memory.engines.local.engine import LocalEngine
from mama_structs.memory.engines.local.plans import JournalWriter
from mama_structs.settings import MemorySettings
from mama_structs.storage.sealed_rows import SqliteRows

PATHS = os.pathsep.join((str(Path(mama_structs.__file__).parents[1]), str(Path(__file__).parents[3] / "support")))
QUIET = MemorySettings(linking="off")
LINK_COUNT = 2000
BY_PARTS = pytest.mark.of_the_directory("a server deletes a memory with all its links in one statement")


def unit(number=0):
    """Return the vectors of a memory: a matrix with one normalized row."""
    return SMALL.embed([f"note {number}"])[0].reshape(1, -1)


async def wheel(store, count):
    """Save a memory with *count* incoming links and one outgoing link, in one write to save time."""
    vectors, ids = unit(), (f"link_{number:024x}" for number in itertools.count())

    def plan(writer):
        writer.put(plain_memory("rim"), vectors=vectors)
        writer.put(plain_memory("hub"), vectors=vectors, links=[plain_link("hub", "rim", link_id=next(ids))])
        for number in range(count):
            one = f"spoke {number:05}"
            links = [
                plain_link(one, "hub", created_by="user", link_id=next(ids)),
                plain_link(one, "rim", link_id=next(ids)),
            ]
            writer.put(plain_memory(one), vectors=vectors, links=links)

    await store._engine.write(plan)


def opened(path, **options):
    return OpenedDirectory.open(path, embedder=SMALL, settings=QUIET, **options)


async def links_to(store, memory_id):
    """Return the links to a memory, as returned by every way to read them."""

    def plan(reader):
        nodes = reader.window()
        table = reader.links(nodes)
        named = [link for own in reader.links_of_many(nodes) for link in own if memory_id in {link.from_id, link.to_id}]
        named += [link for one in reader.scan() for link in one.links if link.to_id == memory_id]
        return named, len(table)

    return await store._engine.read(plan)


def rows_of(place, kind):
    """Return the journal rows of one kind."""
    return place.storage.submit_job(
        lambda: place.storage.run_read_in_job(lambda rows: rows.items(f"memories/default/{kind}/"))
    ).result()


@pytest.fixture
def interrupted(monkeypatch):
    """Disable the cleanup of links, as if the process were killed right after the deletion."""
    monkeypatch.setattr(JournalWriter, "clean_up", lambda _writer: False)
    return monkeypatch


@pytest.mark.once
@BY_PARTS
async def test_delete_with_many_links_lets_readers_run_between_batches(tmp_path, monkeypatch):
    """No transaction writes more rows than a batch has, and a concurrent read does not wait for the whole deletion."""
    place = opened(tmp_path)
    store = await place.memories()
    await wheel(store, LINK_COUNT)
    counts, order = [], []
    whole, put = LocalEngine._write_group, SqliteRows.put

    def counted(engine, rows, group):
        counts.append(0)
        return whole(engine, rows, group)

    def one_row(rows, key, value):
        counts[-1] += 1
        if len(counts) == 2 and not order:
            # Request a read in the middle of the second transaction.
            order.append("asked")
            reading = asyncio.run_coroutine_threadsafe(store.links("rim", limit=LINK_COUNT), loop)
            reading.add_done_callback(lambda done: order.append(len(done.result())))
        return put(rows, key, value)

    loop = asyncio.get_running_loop()
    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "_write_group", counted)
        patch.setattr(SqliteRows, "put", one_row)
        deleted = await store.delete("hub")
    order.append("deleted")

    assert 1 == deleted
    assert max(counts) <= plans.CLEANUP_PART_SOURCES + 2
    assert ["asked", LINK_COUNT, "deleted"] == order
    assert [] == rows_of(place, "d")
    assert not any(b'"hub"' in value for _, value in rows_of(place, "m"))
    assert ([], LINK_COUNT) == await links_to(store, "hub")
    assert [] == await place.findings()
    await place.close()


async def test_delete_with_few_links_uses_one_transaction(tmp_path):
    """No cleanup remains afterwards."""
    place = opened(tmp_path)
    store = await place.memories()
    await wheel(store, plans.MAX_IMMEDIATE_CLEANUPS)
    changes = await store._engine.read(lambda reader: reader.change)

    assert plans.MAX_IMMEDIATE_CLEANUPS + 1 == await store._engine.write(lambda writer: writer.delete("hub"))
    assert [] == rows_of(place, "d")
    assert changes + 1 == await store._engine.read(lambda reader: reader.change)
    assert not any(b'"hub"' in value for _, value in rows_of(place, "m"))
    assert [] == await place.findings()
    await place.close()


@BY_PARTS
async def test_links_to_deleted_memory_are_hidden_before_cleanup(tmp_path, interrupted):
    """Covers this and another process, with and without views, exports and checks."""
    place, other = opened(tmp_path / "a"), opened(tmp_path / "a")
    store, seen = await place.memories(), await other.memories()
    await wheel(store, 300)
    assert 302 == await seen.count()
    assert 1 == await store.delete("hub")
    assert rows_of(place, "d")
    again = opened(tmp_path / "a")
    for one in (store, seen, await again.memories()):
        assert ([], 300) == await links_to(one, "hub")
        assert [300, 1, 1] == [len(await one.links(name, limit=1000)) for name in ("rim", "spoke 00000", "spoke 00299")]
        assert () == (await admin.check(one)).issues
        with pytest.raises(MemoryNotFound):
            await one.get("hub")
    assert 301 == await admin.export_jsonl(seen, tmp_path / "file")
    assert b'"hub"' not in (tmp_path / "file").read_bytes()
    await store._engine.snapshot()
    for opening in (place, other, again):
        await opening.close()

    last = opened(tmp_path / "a")
    store = await last.memories()
    assert ([], 300) == await links_to(store, "hub")
    assert [] == await last.findings()
    # The next write continues the interrupted cleanup.
    interrupted.undo()
    await store._engine.write(lambda writer: writer.set_note("a", "b"))
    await store._engine.write(lambda writer: writer.set_note("a", None))
    while rows_of(last, "d"):
        await store.count()
    assert not any(b'"hub"' in value for _, value in rows_of(last, "m"))
    assert ([], 300) == await links_to(store, "hub")
    assert [] == await last.findings()
    await last.close()


@pytest.mark.parametrize("is_new", [False, True])
async def test_reused_id_gets_no_links_of_deleted_memory(tmp_path, interrupted, is_new):
    """A memory imported under the id before the cleanup has ended has only the imported links."""
    place = opened(tmp_path / "a")
    store = await place.memories()
    await wheel(store, 300)
    await admin.export_jsonl(store, tmp_path / "file")
    before = await store.links("hub", limit=1000)
    await store.delete("hub")
    if is_new:
        await store._engine.write(lambda writer: writer.put(plain_memory("hub"), vectors=unit(1)))
        expected = []
    else:
        assert 1 == (await admin.import_jsonl(store, tmp_path / "file")).added
        expected = before
    other = opened(tmp_path / "a")
    for one in (store, await other.memories()):
        assert expected == await one.links("hub", limit=1000)
        assert 300 == len(await one.links("rim", limit=1000)) - len(expected[:1])
    assert [] == rows_of(place, "d")
    assert [] == await place.findings()
    await other.close()
    await place.close()


@BY_PARTS
async def test_check_finds_dangling_link_during_cleanup(tmp_path, interrupted):
    """A pending cleanup excuses only links to the deleted memory. A malformed cleanup note is reported, too."""
    place = opened(tmp_path)
    store = await place.memories()
    await wheel(store, 300)
    await store.delete("hub")
    key, value = rows_of(place, "m")[-1]
    changed = value.replace(b'"to_id":"rim"', b'"to_id":"mir"')
    assert changed != value
    dead = rows_of(place, "d")[0][0]
    await place.storage.transact(lambda rows: rows.put(key, changed))
    assert {("link", key)} <= {(one.kind, one.key) for one in (await admin.check(store)).issues}
    await place.storage.transact(lambda rows: rows.put(dead, b"{}"))
    await place.storage.transact(lambda rows: rows.put(f"{dead[:-1]}x", b"{}"))
    kinds = {(one.kind, one.key) for one in (await admin.check(store)).issues}
    assert {("damaged", dead), ("foreign", f"{dead[:-1]}x")} <= kinds
    await place.close()


@pytest.mark.parametrize("few", [0, 10_000])
async def test_failed_deletion_changes_nothing(tmp_path, monkeypatch, few):
    """After a failure at any row, the memory has all its links, in the rows and in the views."""
    monkeypatch.setattr(plans, "MAX_IMMEDIATE_CLEANUPS", few)
    monkeypatch.setattr(plans, "CLEANUP_PART_SOURCES", 1)
    place = opened(tmp_path)
    store = await place.memories()
    await wheel(store, 4)
    expected = [await store.links(name) for name in ("hub", "rim", "spoke 00002")]
    engine, dropped = store._engine, []
    monkeypatch.setattr(engine, "_drop_views", lambda: dropped.append(1), raising=False)
    for number in range(100):

        def failing(writer, left=number):
            with failing_after(writer, left):
                writer.delete("hub")
                writer.finish()
            raise KeyError

        with pytest.raises((Planned, KeyError)) as caught:
            await engine.write(failing)
        assert expected == [await store.links(name) for name in ("hub", "rim", "spoke 00002")]
        assert () == (await admin.check(store)).issues
        if caught.type is KeyError:
            break
    assert number >= (3 if is_on_server() else 7)
    assert [] == dropped
    monkeypatch.undo()
    await place.close()


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from mama_structs.storage.sealed_rows import SqliteRows
from mama_structs.memory.engines.local.plans import JournalWriter
from memory_helpers import OpenedDirectory, SMALL

async def main(directory, number):
    place = OpenedDirectory.open(Path(directory), embedder=SMALL)
    store = await place.memories()
    clean_up, left = JournalWriter.clean_up, iter(range(number))

    def killing(writer):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return clean_up(writer)

    JournalWriter.clean_up = killing
    # Each time a whole part, however slow the machine is.
    JournalWriter.should_yield = False
    await store.delete("hub")

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.once
@BY_PARTS
@pytest.mark.parametrize("parts", [0, 1, 3])
async def test_killed_deletion_is_complete_for_readers(tmp_path, parts):
    """Links are hidden at any progress of the cleanup, which the next write continues."""
    place = opened(tmp_path)
    await wheel(await place.memories(), 1000)
    await place.close()
    environment = {**os.environ, "PYTHONPATH": PATHS}
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", KILLED, tmp_path, str(parts)], env=environment, check=False, timeout=600
    )
    assert -signal.SIGKILL == done.returncode
    place = opened(tmp_path)
    store = await place.memories()
    assert 4 - parts == len(rows_of(place, "d"))
    assert ([], 1000) == await links_to(store, "hub")
    assert [] == await place.findings()
    await store.save_context("the next write")
    while rows_of(place, "d"):
        await store.count()
    assert not any(b'"hub"' in value for _, value in rows_of(place, "m"))
    assert [] == await place.findings()
    await place.close()


async def test_linking_memory_with_many_links_avoids_quadratic_comparisons(tmp_path, monkeypatch):
    """The number of comparisons is at most a few times the number of its links."""
    place = opened(tmp_path)
    store = await place.memories()
    await wheel(store, 400)
    spokes = [f"spoke {number:05}" for number in range(400)]
    memory = await store.get("rim")
    links = [plain_link("rim", one) for one in spokes]
    await store._engine.write(lambda writer: writer.put(memory, links=links[1:]))
    compared = []
    equal = type(links[0]).__eq__
    monkeypatch.setattr(type(links[0]), "__eq__", lambda one, other: compared.append(1) or equal(one, other))
    await store._engine.write(lambda writer: writer.put_link(attrs.evolve(links[0])))

    assert len(compared) < 4 * 400
    monkeypatch.undo()
    assert 400 + 1 + 400 == len(await store.links("rim", limit=1000))
    await place.close()


async def test_linking_from_memory_with_many_links_reads_two_rows(tmp_path, monkeypatch):
    """The rows of its incoming links are not read."""
    place = opened(tmp_path)
    store = await place.memories()
    await wheel(store, 400)
    read = []
    stored = JournalWriter._read_rows
    monkeypatch.setattr(JournalWriter, "_read_rows", lambda writer, nodes: read.extend(nodes) or stored(writer, nodes))
    link = await store.link("rim", "spoke 00001", "part of")

    assert len(read) <= 8
    assert link in await store.links("rim", limit=1000)
    await place.close()
