"""Rows with a valid checksum but invalid content, and remains of deleted memories in views."""

import json
import os
import shutil
import stat
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import SMALL, OpenedDirectory

from mama_structs import admin
from mama_structs.errors import EmbedderMismatch, InvalidArgument, StoreDamaged
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.engines.local import engine as engine_module
from mama_structs.memory.engines.local.journal_rows import RowKeys, find_last_number, number_key, parse_number
from mama_structs.memory.engines.local.views import view_set as loading
from mama_structs.memory.types.engine import EmbedderRecord
from mama_structs.memory.types.requests import check_namespace
from mama_structs.memory.upkeep import jsonl_transfer as transfer
from mama_structs.memory.upkeep.maintenance import embedder_record
from mama_structs.session.session import Session
from mama_structs.storage.sqlite_store import SqliteStorage

pytestmark = pytest.mark.of_the_directory("it is about the rows of its journal, and its views")
RECORD = embedder_record(SMALL)
ROW_KEYS = RowKeys("default", RECORD, "/journal")


class Opposite:
    """An embedder with the dimensions of `SMALL` whose vectors point in the opposite direction."""

    name, fingerprint, dimensions, max_tokens = "opposite", "opposite-1", SMALL.dimensions, 1000
    calibration = Calibration()

    def embed(self, texts, *, kind="document"):
        return -SMALL.embed(texts, kind=kind)


@asynccontextmanager
async def opened(path, **options):
    place = OpenedDirectory.open(path, **options)
    try:
        yield place, await place.memories()
    finally:
        await place.close()


async def plant(path, work):
    """Write rows to the journal without validation of their content. Their checksums are valid."""
    storage = SqliteStorage.open(path / "journal")
    await storage.transact(work)
    await storage.close()


def key_of(number):
    return number_key(ROW_KEYS.memories, number)


def rewrite(number, change):
    """Return a function that applies *change* to the JSON of a memory row."""

    def work(rows):
        row = json.loads(rows.get(key_of(number)))
        change(row, row["memory"]["id"])
        rows.put(key_of(number), json.dumps(row).encode())

    return work


def link(source, target, **changed):
    return {
        "id": "l1",
        "from_id": source,
        "to_id": target,
        "link_type": "association",
        "confidence": 0.5,
        "created_by": "user",
        "metadata": {"original_relationship": "x"},
        "created_at": "2026-01-01T00:00:00Z",
        **changed,
    }


def vectors(value):
    row = np.full((1, RECORD.dimensions), value, "<f4").tobytes()
    return lambda rows: rows.put(number_key(ROW_KEYS.vectors, 2), row)


def deep(rows):
    row = rows.get(key_of(2)).replace(b'"extra":{}', b'"extra":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    rows.put(key_of(2), row)


PLANTED = {
    "the id of another memory": lambda rows: rows.put(key_of(2), rows.get(key_of(1))),
    "NaN": vectors(np.nan),
    "zeros": vectors(0),
    "too long": vectors(7),
    "deep JSON": deep,
    "another namespace": rewrite(2, lambda row, _: row["memory"].update(namespace="other")),
    "a time without zone": rewrite(2, lambda row, _: row["memory"].update(created_at="2026-01-01T00:00:00")),
    "a change without zone": rewrite(2, lambda row, _: row["memory"].update(updated_at="2026-01-01T00:00:00")),
    "a confidence": rewrite(2, lambda row, _: row["memory"]["metadata"].update(confidence=7)),
    "an outcome without zone": rewrite(
        2, lambda row, _: row["memory"]["metadata"].update(outcome_at="2026-01-01T00:00:00")
    ),
    "a link to itself": rewrite(2, lambda row, own: row.update(links=[link(own, own)])),
    "a link of another": rewrite(2, lambda row, own: row.update(links=[link("another", own)])),
    "a link that is too strong": rewrite(2, lambda row, own: row.update(links=[link(own, "a", confidence=1e300)])),
    "a link without zone": rewrite(
        2, lambda row, own: row.update(links=[link(own, "a", created_at="2026-01-01T00:00:00")])
    ),
}


@pytest.mark.parametrize("name", PLANTED)
async def test_invalid_row_is_left_out_and_reported(tmp_path, name):
    """Opening and rebuilding continue without it, and no message quotes its content."""
    async with opened(tmp_path) as (_, store):
        saved = [await store.save_decision(f"secret{n}", topic=f"topic {n}", reasoning="because") for n in range(3)]
    await plant(tmp_path, PLANTED[name])

    async with opened(tmp_path) as (_, store):
        assert [saved[2].id, saved[0].id] == [memory.id for memory in await store.list()]
        (line,) = await admin.rebuild(store)
        assert 2 == await store.count()
        findings = {finding.key: finding for finding in (await admin.check(store)).issues if finding.kind == "damaged"}
        later = await store.save_context("later")
        assert later == await store.get(later.id)
    ((key, finding),) = findings.items()
    assert (finding.message, "error") == (line, finding.severity)
    assert 2 == parse_number(key.rpartition("/")[0] + "/", key)
    assert "secret" not in line


def test_rows_are_validated_at_each_read():
    """Reading a memory without its links applies the same rules."""
    row = {
        "format": 1,
        "version": 1,
        "memory": {
            "id": "a",
            "type": "context",
            "content": "c",
            "metadata": {},
            "created_at": "2026-01-01T00:00:00Z",
            "updated_at": "2026-01-01T00:00:00Z",
            "namespace": "other",
        },
    }

    for read in (ROW_KEYS.memory, ROW_KEYS.entry):
        with pytest.raises(StoreDamaged, match="another namespace"):
            read("key", json.dumps(row).encode())


@given(st.floats(0, 2))
def test_stored_vectors_must_be_nearly_unit_length(length):
    """Rounding errors are accepted. The vectors view rejects everything else."""
    row = np.zeros((1, RECORD.dimensions), "<f4")
    row[0, 3] = length
    if abs(row[0, 3] - 1) <= 1e-3:
        assert row.tobytes() == ROW_KEYS.read_vectors("key", row.tobytes()).tobytes()
    else:
        with pytest.raises(StoreDamaged, match="length 1"):
            ROW_KEYS.read_vectors("key", row.tobytes())


# Keys


class SomeKeys:
    """A fake row store that contains keys without values."""

    def __init__(self, keys):
        self.all = sorted(keys)
        self.calls = 0

    def last_key(self, prefix):
        self.calls += 1
        return max((key for key in self.all if key.startswith(prefix)), default=None)

    def get(self, key):
        return b"x" if key in self.all else None


@given(
    st.sets(st.integers(0, 2**20) | st.integers(0, 2**48 - 1), max_size=8),
    st.sets(st.text("0123456789abcdefxz/", max_size=20) | st.integers(0, 99).map("{:016x}/".format), max_size=8),
)
def test_last_number_ignores_malformed_keys(numbers, strange):
    """Malformed keys neither count nor hide earlier keys."""
    strange = {f"m/{text}" for text in strange}
    rows = SomeKeys({number_key("m/", number) for number in numbers} | strange)
    numbers |= {number for key in strange if (number := parse_number("m/", key)) is not None}

    assert max(numbers, default=0) == find_last_number(rows, "m/")


def test_last_number_needs_one_lookup_with_wellformed_keys():
    """Each write calls it, so it must be fast."""
    rows = SomeKeys({number_key("m/", number) for number in range(20)})

    assert (19, 1) == (find_last_number(rows, "m/"), rows.calls)


@pytest.mark.parametrize("key", ["m/zz", "m/x/000000000000000a", "m/00000000000000001", "m/ffffffffffffffff", "n/"])
def test_own_number_returns_none_for_malformed_key(key):
    """A number has sixteen digits directly after the prefix."""
    assert parse_number("m/", key) is None


async def test_check_reports_malformed_keys_and_orphaned_vectors(tmp_path):
    """Malformed keys are errors. All vectors of another embedder are one warning."""
    other = ROW_KEYS.vectors_prefix(EmbedderRecord("other", "1", 8))

    def work(rows):
        for key in ("c/zz", "v/zz"):
            rows.put(f"memories/default/{key}", b"x")
        for number in (1, 2):
            rows.put(number_key(other, number), b"x")
        rows.put(number_key(ROW_KEYS.vectors, 77), rows.get(number_key(ROW_KEYS.vectors, 1)))
        rows.put(number_key(ROW_KEYS.changes, 1), b"[" * 100_000)

    async with opened(tmp_path) as (_, store):
        for number in range(3):
            await store.save_context(f"note {number}")
        await store.delete((await store.list())[0].id)
        assert () == (await admin.check(store)).issues
        await (await engine_of(store)).write(lambda writer: work(writer._rows_to_write))
        findings = (await admin.check(store)).issues

    assert {
        ("error", "foreign", "memories/default/c/zz"),
        ("error", "foreign", "memories/default/v/zz"),
        ("error", "orphan", number_key(ROW_KEYS.vectors, 77)),
        ("error", "damaged", number_key(ROW_KEYS.changes, 1)),
        ("warning", "orphan", number_key(other, 1)),
    } == {(finding.severity, finding.kind, finding.key) for finding in findings}
    assert 5 == len(findings)


async def engine_of(store):
    return store._engine


async def test_check_continues_while_memories_change(tmp_path, monkeypatch):
    """A memory that is deleted and imported again between two pages is not a duplicate id."""
    monkeypatch.setattr(engine_module, "CHECK_PAGE_ROWS", 2)
    async with opened(tmp_path) as (_, store):
        saved = [await store.save_context(f"note {number} about thing {number}") for number in range(9)]
        await admin.export_jsonl(store, tmp_path / "x")
        engine = await engine_of(store)
        inspect, looks = engine._run_read, []

        async def counted(look):
            looks.append(look)
            if len(looks) == 3:
                for memory in saved[:2]:
                    await store.delete(memory.id)
                await admin.import_jsonl(store, tmp_path / "x")
            return await inspect(look)

        monkeypatch.setattr(engine, "_run_read", counted)
        assert () == (await admin.check(store)).issues

    assert len(looks) > 9


# Exports and imports


async def test_export_during_rebuild_contains_every_memory_once(tmp_path, monkeypatch):
    """A rebuild renumbers nodes between two pages of the export."""
    monkeypatch.setattr(transfer, "PAGE_MEMORIES", 4)
    async with opened(tmp_path / "a") as (_, store):
        saved = [await store.save_context(f"note {number} about thing {number}") for number in range(20)]
        for memory in saved[:7]:
            await store.delete(memory.id)
        engine = await engine_of(store)
        read, reads = engine.read, []

        async def between(plan):
            reads.append(plan)
            if len(reads) == 3:
                await admin.rebuild(store)
                await store.save_context("meanwhile")
                await store.delete(saved[19].id)
            return await read(plan)

        monkeypatch.setattr(engine, "read", between)
        assert 13 == await admin.export_jsonl(store, tmp_path / "x")
        there = {memory.id for memory in await store.list(limit=99)}
    lines = [json.loads(line) for line in (tmp_path / "x").read_text().splitlines()[1:-1]]
    exported = [line["memory"]["id"] for line in lines]

    assert 13 == len(exported)
    assert there == set(exported)
    assert [memory.id for memory in saved[7:19]] == exported[:12]


async def test_import_during_reembed_stores_no_old_vectors(tmp_path, monkeypatch):
    """The import fails, and a repeated one embeds everything with the new embedder."""
    monkeypatch.setattr(transfer, "CHUNK_LINES", 2)
    # Remove the time limit of transactions, so that a chunk is one transaction even on a busy machine.
    monkeypatch.setattr(engine_module, "MAX_TRANSACTION_SECONDS", 1e9)
    async with opened(tmp_path / "a") as (_, store):
        for number in range(6):
            await store.save_context(f"note {number} about thing {number}")
        await admin.export_jsonl(store, tmp_path / "x")
    async with Session.open(tmp_path / "b", embedder=SMALL) as session:
        store = session.memories
        engine = await engine_of(store)
        write, writes = engine.write, []

        async def between(plan):
            writes.append(plan)
            if len(writes) == 2:
                await admin.reembed(store, Opposite())
            return await write(plan)

        monkeypatch.setattr(engine, "write", between)
        with pytest.raises(EmbedderMismatch, match="was changed to") as caught:
            await admin.import_jsonl(store, tmp_path / "x")
        imported = await admin.import_jsonl(store, tmp_path / "x")
        found = await engine.read(lambda reader: [(one.memory.content, one.vectors) for one in reader.scan()])

    assert "repeat" in caught.value.hint
    assert (4, 2) == (imported.added, imported.existing)
    for content, vector in found:
        assert np.allclose(Opposite().embed([content]), vector, atol=1e-6)


# Snapshots


def bytes_in(directory):
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


async def test_memory_table_forgets_deleted_memory(tmp_path):
    """Its id, which is derived from its text, its topic and its mentions are removed."""
    async with opened(tmp_path, find_mentions=lambda text: ("9-77777",) if "zebra" in text else ()) as (_, store):
        await store.save_context("the login", topic="auth")
        gone = await store.save_context("zebra crossing", topic="giraffe")
        engine = await engine_of(store)
        assert await engine.snapshot()
        before = bytes_in(tmp_path / "views")
        await store.delete(gone.id)
        # Each snapshot deletes the generation before the previous one, so write two.
        await engine.snapshot()
        await store.save_context("another one")
        await engine.snapshot()
        after = b"".join(path.read_bytes() for path in (tmp_path / "views").rglob("catalogue-*"))

    for text in (b"zebra", b"giraffe", b"9-77777"):
        assert text in before
        assert text not in after
    assert b"auth" in after


async def test_views_with_mostly_deleted_nodes_are_rebuilt(tmp_path, monkeypatch):
    """Deleted memories must not occupy memory forever."""
    monkeypatch.setattr(loading, "MIN_HOLES_TO_REBUILD", 4)
    monkeypatch.setattr(engine_module, "SNAPSHOT_MIN_CHANGES", 1)
    sizes = []
    async with opened(tmp_path) as (_, store):
        saved = [await store.save_context(f"note {number}") for number in range(12)]
    for count in (4, 1, 0):
        async with opened(tmp_path) as (_, store):
            for memory in saved[:count]:
                await store.delete(memory.id)
            saved = saved[count:]
            sizes.append(len((await engine_of(store))._views.memory_table))
            assert saved[::-1] == await store.list(limit=99)
            assert () == (await admin.check(store)).issues

    assert [12, 12, 7] == sizes


async def test_inconsistent_snapshot_is_not_used(tmp_path, monkeypatch):
    """Whatever error the views raise, they are rebuilt from the journal."""
    monkeypatch.setattr(engine_module, "SNAPSHOT_MIN_CHANGES", 1)
    async with opened(tmp_path) as (_, store):
        saved = [await store.save_context(f"note {number}") for number in range(3)]

    def broken(*_arguments, **_options):
        raise IndexError("from the views")

    monkeypatch.setattr(loading, "_restore_snapshot", broken)
    async with opened(tmp_path) as (_, store):
        assert saved[::-1] == await store.list()


async def test_marker_of_unreadable_change_is_none(tmp_path):
    """Writing and loading snapshots still work."""
    async with opened(tmp_path) as (_, store):
        await store.save_context("note")
        await store.delete((await store.list())[0].id)
        engine = await engine_of(store)
        marks = []

        def work(writer):
            rows = writer._rows_to_write
            marks.append(loading._history_marker(rows, ROW_KEYS, 2))
            for row in (b"x", b"[" * 100_000):
                rows.put(number_key(ROW_KEYS.changes, 2), row)
                marks.append(loading._history_marker(rows, ROW_KEYS, 2))
            rows.put(key_of(5), b"x")
            marks.append(loading._history_marker(rows, ROW_KEYS, 5))
            marks.append(loading._history_marker(rows, ROW_KEYS, 6))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await engine.write(work)

    assert marks[0].startswith("change ")
    assert [None] * 4 == marks[1:]


async def test_snapshot_newer_than_journal_is_replaced(tmp_path):
    """Otherwise no snapshot could be written after a backup was restored."""
    async with opened(tmp_path / "a") as (_, store):
        await store.save_context("one")
        backup = shutil.copytree(tmp_path / "a" / "journal", tmp_path / "backup")
        await store.save_context("two")
        assert await (await engine_of(store)).snapshot()
    shutil.rmtree(tmp_path / "a" / "journal")
    shutil.copytree(backup, tmp_path / "a" / "journal")

    async with opened(tmp_path / "a") as (_, store):
        engine = await engine_of(store)
        snapshots = engine._snapshots
        assert snapshots.write(1, {}) is None
        assert 1 == snapshots.write(1, {}, last=1).change
        assert 1 == snapshots.load().change


# Files


@pytest.mark.skipif(os.name != "posix", reason="files of this kind are POSIX's")
@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
@pytest.mark.parametrize("name", ["manifest", "manifest-before", "catalogue-*"])
async def test_special_file_in_place_of_view_does_not_block(tmp_path, kind, name):
    """Opening a FIFO may block forever, and a symbolic link may lead anywhere."""
    async with opened(tmp_path / "a") as (_, store):
        await store.save_context("one")
        engine = await engine_of(store)
        assert await engine.snapshot()
        await store.save_context("two")
        assert await engine.snapshot()
    path = next((tmp_path / "a" / "views").rglob(name))
    path.rename(tmp_path / "moved")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / "moved")
    else:
        path.mkdir()

    async with opened(tmp_path / "a") as (_, store):
        assert 2 == await store.count()
        assert () == (await admin.check(store)).issues


@pytest.mark.skipif(os.name != "posix", reason="other systems have no modes")
async def test_files_are_private(tmp_path):
    """Their mode is independent of the umask."""
    before = os.umask(0)
    try:
        async with opened(tmp_path / "a") as (_, store):
            await store.save_context("one")
            await (await engine_of(store)).snapshot()
            modes = {
                path.relative_to(tmp_path): stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").rglob("*")
            }
    finally:
        os.umask(before)

    assert Path("a", "journal", "FORMAT") in modes
    assert {0o600, 0o700} == set(modes.values()), modes


# Names


def test_namespace_with_too_long_keys_is_rejected():
    """Each byte may take three bytes in a key. Accepted names have keys that can be stored."""
    widest = "가" * 66
    assert widest == check_namespace(widest)
    assert len(RowKeys(widest, RECORD, "").vectors) + 16 <= 1024

    with pytest.raises(InvalidArgument, match="200 bytes"):
        check_namespace("가" * 67)


def test_opposite_embedder_differs():
    """Otherwise the import test above would prove nothing."""
    assert not np.allclose(Opposite().embed(["note"]), HashEmbedder(dimensions=SMALL.dimensions).embed(["note"]))
