"""Copies of a store: completeness, resumption after interruptions, and rejected targets."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count
from pathlib import Path

import attrs
import numpy as np
import pytest
from copying_helpers import ADA, TEXT, exported, filled, opened
from hypothesis import given, settings
from hypothesis import strategies as st
from killing_helpers import killed_commands
from memory_helpers import OpenedDirectory, plain_link, plain_memory

import mama_structs
from mama_structs import HashEmbedder, Session, admin
from mama_structs.cli.main import main
from mama_structs.errors import (
    EmbedderMismatch,
    InvalidArgument,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreMismatch,
    UnknownNamespace,
)
from mama_structs.memory.types.engine import EmbedderRecord
from mama_structs.memory.upkeep import jsonl_transfer as transfer
from mama_structs.memory.upkeep.jsonl_transfer import export_jsonl
from mama_structs.memory.upkeep.namespace_copy import CopyDigest, NamespaceCopier
from mama_structs.storage.sealed_rows import SqliteRows
from mama_structs.storage.sqlite_store import SqliteStorage
from mama_structs.testing.plain_engine import PlainEngine
from mama_structs.testing.strategies import memories

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mama_structs.__file__).parents[1])}
# Searches use a fixed time, since scores depend on the age of memories.
LATER = datetime(2100, 1, 1, tzinfo=UTC)


async def rows_of(place):
    """Return the deterministic rows of a store: equal operations produce equal rows."""
    storage = SqliteStorage.open(place / "journal")
    rows = dict(
        await storage.run_read(
            lambda rows: [one for prefix in "abcdefghijklmnopqrstuvwxyz" for one in rows.items(prefix)]
        )
    )
    await storage.close()
    return rows


def files_of(place):
    """Return the digests of a store's files by path, except SQLite's two temporary files."""
    found = {path: sha256(path.read_bytes()).hexdigest() for path in sorted(place.rglob("*")) if path.is_file()}
    return {path: digest for path, digest in found.items() if not path.name.endswith(("-wal", "-shm"))}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("made") / "a"
    asyncio.run(filled(place))
    return place


@pytest.fixture
def source(made, tmp_path):
    return shutil.copytree(made, tmp_path / "a")


async def test_copy_is_equal_to_source(source, tmp_path):
    """The copy has all memories, versions, links, vectors, texts, records, refs, forks and recall logs."""
    target = tmp_path / "b"
    before = files_of(source)
    steps = []
    copied = await admin.copy(source, target, progress=lambda *step: steps.append(step))

    assert copied.ok
    assert before == files_of(source), "the source is not written to"
    assert ["a", "b"] == sorted(path.name for path in tmp_path.iterdir())
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1]
    everything = await exported(source)
    assert everything == await exported(target)
    assert TEXT.strip().encode() in everything["default"][0]
    assert "kept beside" == everything["default"][1]["own/note"]
    async with opened(target) as session:
        assert ["pizza", "kimchi"] == [one.value for one in await session.records.history(("users", "ada"), "food")]
        assert [*range(70)] == [one.value for one in await session.records.list(("threads",))]
        assert (await admin.check(session)).ok
    own = {one.name: one for one in copied.namespaces}
    assert (1, 71, 6) == (*(own["default"].counts[kind] for kind in ("texts", "notes")), own["default"].added)
    assert {"memories": 1, "conversations": 1, "changes": 1, "conversations' texts": 1} == own[ADA].counts


async def test_second_copy_changes_nothing(source, tmp_path):
    """Both runs return the same counts and digests."""
    target = tmp_path / "b"
    first = await admin.copy(source, target)
    before = await rows_of(target)
    second = await admin.copy(source, target)

    assert before == await rows_of(target)
    assert [0, 0] == [one.added for one in second.namespaces]
    assert [(one.counts, one.digests) for one in first.namespaces] == [
        (one.counts, one.digests) for one in second.namespaces
    ]


async def test_copy_derives_the_index_of_records_itself(source, tmp_path):
    """A copy that was searched by value can be copied to again, and then finds the records that were added."""
    target = tmp_path / "b"
    await admin.copy(source, target)
    async with opened(target) as session:
        await session.records.put("own", "here", {"n": 1})
        assert ["here"] == [one.key for one in await session.records.list("own", where={"n": 1})]
        await session.records.delete("own", "here")
    async with opened(source) as session:
        await session.records.put("own", "later", {"n": 1})
    await admin.copy(source, target)
    async with opened(target) as session:
        found = await session.records.list("own", where={"n": 1})
        report = await admin.check(session)

    assert ["later"] == [one.key for one in found]
    assert report.ok


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["save", "save", "save", "supersede", "outcome", "link", "correct", "forget", "delete", "ref"]),
        memories(),
        st.integers(0, 99),
        st.booleans(),
    ),
    max_size=6,
)


async def do(session, step, record, number):
    """Execute one random operation. Operations that need a memory use an existing one."""
    store = session.memories
    known = await store.list(limit=100)
    chosen = known[number % len(known)] if known else None
    text = f"said {number} {record['type']}"
    if step == "save" or chosen is None:
        await store.save_many([record])
    elif step == "ref":
        await session.observe(f'<ref id="r{number % 3}">{text}</ref>')
    elif step == "forget":
        await store.erase(chosen.id)
    elif step == "delete":
        await store.delete(chosen.id)
    elif step == "correct":
        await store.update(chosen.id, text)
    elif step == "link" and known[0] != chosen:
        await store.link(chosen.id, known[0].id, f"word {number % 4}")
    elif step == "supersede" and chosen.type == "decision":
        await store.supersede(chosen.id, text, reasoning="better")
    elif step == "outcome" and chosen.type == "decision":
        await store.set_outcome(chosen.id, "FAILED", reason=text)


@settings(max_examples=5)
@given(steps=STEPS)
def test_copy_exports_and_finds_the_same_after_random_operations(steps):
    """A copy that is started between the operations does not change the result."""

    async def run(place):
        source, target = place / "a", place / "b"
        async with opened(source):
            pass
        for step, record, number, is_ada in steps:
            async with opened(source, ADA if is_ada else "default") as session:
                await do(session, step, record, number)
        assert (await admin.copy(source, target)).ok
        found = []
        for one in (source, target):
            for name in ("default", ADA):
                async with opened(one, name) as session:
                    hits = await session.memories.search("said 1 decision", limit=5, as_of=LATER)
                    found.append([(hit.memory, hit.score) for hit in hits])
        assert found[:2] == found[2:]
        assert await exported(source) == await exported(target)

    with tempfile.TemporaryDirectory() as place:
        asyncio.run(run(Path(place)))


@pytest.mark.skipif(os.name != "posix", reason="nothing is killed so elsewhere")
async def test_killed_copy_can_be_continued(source, tmp_path):
    """The process is killed at each SQL statement."""
    target = tmp_path / "b"
    with killed_commands("copy", source, target) as is_killed:
        for steps in count(2, 8):
            if not await asyncio.to_thread(is_killed, steps):
                break
        killed = steps // 8
    assert killed > 4
    assert await exported(source) == await exported(target)
    assert ["a", "a.jsonl", "b", "b.jsonl"] == sorted(path.name for path in tmp_path.iterdir())


async def test_cancelled_copy_can_be_continued(source, tmp_path):
    """A cancelled copy leaves no temporary files."""
    target = tmp_path / "b"
    for wanted in count(1):
        told = []

        def stop(done, total, wanted=wanted, told=told):
            told.append(done)
            if len(told) == wanted:
                asyncio.current_task().cancel()

        task = asyncio.ensure_future(admin.copy(source, target, progress=stop))
        try:
            await task
        except asyncio.CancelledError:
            continue
        break
    assert wanted > 4
    assert ["a", "b"] == sorted(path.name for path in tmp_path.iterdir())
    assert await exported(source) == await exported(target)


async def test_concurrent_copies_have_the_same_result(source, tmp_path):
    """Two processes and a task of this process copy concurrently."""
    command = [sys.executable, "-m", "mama_structs", "copy", str(source), str(tmp_path / "b")]
    both = [await asyncio.create_subprocess_exec(*command, env=ENVIRONMENT, stdout=-3) for _ in range(2)]
    await asyncio.gather(admin.copy(source, tmp_path / "c"), admin.copy(source, tmp_path / "c"))

    assert [0, 0] == [await one.wait() for one in both]
    everything = await exported(source)
    assert everything == await exported(tmp_path / "b")
    assert everything == await exported(tmp_path / "c")


@pytest.mark.parametrize("failing", [3, 9, 14, 20])
async def test_copy_on_full_disk_can_be_continued(source, tmp_path, monkeypatch, failing):
    """The error is typed, and transactions are atomic."""
    done = []

    def write(self, sql, arguments=()):
        done.append(sql)
        if len(done) >= failing:
            self.failure = sqlite3.OperationalError("database or disk is full")
            self.failure.sqlite_errorcode = sqlite3.SQLITE_FULL
            self.failure.sqlite_errorname = "SQLITE_FULL"
            raise self.failure
        return type(self).__mro__[1]._execute(self, sql, arguments)

    monkeypatch.setattr(SqliteRows, "_execute", write, raising=False)
    with pytest.raises(StoreFull):
        await admin.copy(source, tmp_path / "b")
    monkeypatch.undo()
    async with opened(tmp_path / "b") as session:
        assert (await admin.check(session)).ok
    assert (await admin.copy(source, tmp_path / "b")).ok
    assert await exported(source) == await exported(tmp_path / "b")


# Damage and rejected targets


async def spoil(place, prefix, number=0):
    """Change a byte of a row, and return its key."""
    with closing(sqlite3.connect(place / "journal" / "cache.db")) as database, database:
        rows = database.execute(
            "SELECT key, value FROM Cache WHERE key GLOB ? ORDER BY key", (f"{prefix}*",)
        ).fetchall()
        key, value = rows[number]
        database.execute("UPDATE Cache SET value = ? WHERE key = ?", (value[:-1] + b"?", key))
    return key


@pytest.mark.parametrize(
    ("prefix", "memories_left"),
    [
        ("memories/default/m/", 5),
        ("memories/default/e/", 4),
        ("memories/default/n/", 6),
        ("refs/", 6),
        ("texts/", 6),
        ("conversations/", 6),
        ("memories/default/head", 0),
    ],
)
async def test_copy_names_damaged_rows_and_copies_the_rest(source, tmp_path, capsys, prefix, memories_left):
    """Rows of each kind may be damaged. The command exits with 1."""
    spoilt = await spoil(source, prefix)
    code = await asyncio.to_thread(main, ["copy", str(source), str(tmp_path / "b"), "--json"])
    said = json.loads(capsys.readouterr().out)

    assert (1, False) == (code, said["ok"])
    assert any(spoilt.rsplit("/", 1)[-1] in line for line in said["damaged"])
    counts = {one["name"]: one["counts"] for one in said["namespaces"]}
    assert memories_left == counts["default"].get("memories", 0)
    assert 1 == counts[ADA]["memories"]
    # A second copy reports only the damaged rows.
    assert 1 == await asyncio.to_thread(main, ["copy", str(source), str(tmp_path / "b")])
    assert "except for damaged items" in capsys.readouterr().out


async def test_copy_rejects_target_with_other_data(source, tmp_path):
    """The rejected copy writes nothing, and the error names the namespace."""
    first = tmp_path / "first"
    await admin.copy(source, first)

    async def more(session):
        await session.memories.save_context("somebody else's")

    async def other(session):
        await session.memories.update((await session.memories.list())[-1].id, "another text")

    async def note(session):
        await session.memories._shared.write(lambda writer: writer.set_note("own/note", "another"))

    async def ref(session):
        await session.observe('<ref id="more">said in the copy</ref>')

    async def unlinked(session):
        await session.memories.link(
            (await session.memories.list())[-1].id, (await session.memories.list())[0].id, "word"
        )

    for position, change in enumerate([more, other, note, ref, unlinked]):
        target = tmp_path / f"b{position}"
        shutil.copytree(first, target)
        async with opened(target) as session:
            await change(session)
        before = await rows_of(target)
        with pytest.raises(StoreMismatch, match="'default'") as caught:
            await admin.copy(source, target)

        assert ("default", True) == (caught.value.namespace, bool(caught.value.ids))
        assert "new place" in caught.value.hint
        assert before == await rows_of(target)


async def test_copy_rejects_unsuitable_targets(source, tmp_path):
    """Foreign files, a later version's store, another embedder, the source and its subdirectories."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("dear ada")
    with pytest.raises(InvalidArgument, match="neither"):
        await admin.copy(source, foreign)
    assert ["letter.txt"] == [path.name for path in foreign.iterdir()]
    for inside in (source, source / "inside", source.parent):
        with pytest.raises(InvalidArgument, match=r"same store|is in the source"):
            await admin.copy(source, inside)
    with pytest.raises(InvalidArgument, match="not the directory of a store"):
        await admin.copy(tmp_path / "nowhere", tmp_path / "b")
    with pytest.raises(UnknownNamespace):
        await admin.copy(source, tmp_path / "b", namespace="user:eve")
    async with Session.open(tmp_path / "other", embedder=HashEmbedder()) as session:
        await session.memories.save_context("by another embedder")
    with pytest.raises(EmbedderMismatch):
        await admin.copy(source, tmp_path / "other")
    await admin.copy(source, tmp_path / "later")
    storage = SqliteStorage.open(tmp_path / "later" / "journal")
    head = json.loads((await storage.read(["memories/default/head"]))["memories/default/head"])
    await storage.transact(lambda rows: rows.put("memories/default/head", json.dumps({**head, "format": 99}).encode()))
    await storage.close()
    with pytest.raises(StoreError, match="later version"):
        await admin.copy(source, tmp_path / "later")
    (tmp_path / "malformed" / "journal").mkdir(parents=True)
    (tmp_path / "malformed" / "journal" / "cache.db").write_bytes(b"no database" * 500)
    with pytest.raises(StoreDamaged):
        await admin.copy(source, tmp_path / "malformed")


async def test_copy_of_one_namespace_contains_only_that(source, tmp_path):
    """A fork is complete even if its parent's conversation is not copied."""
    async with opened(source):
        pass
    assert 0 == await asyncio.to_thread(main, ["conversations", "assign", "branch", str(source), "--namespace", ADA])
    wanted = {key: one for key, one in (await exported(source)).items() if ADA in key}
    target = tmp_path / "b"
    copied = await admin.copy(source, target, namespace=ADA)
    again = await admin.copy(source, target, namespace=ADA)

    assert [ADA] == [one.name for one in copied.namespaces]
    assert [one.digests for one in copied.namespaces] == [one.digests for one in again.namespaces]
    assert (ADA,) == await admin.list_namespaces(target)
    assert wanted == await exported(target)
    assert b"Redis" not in b"".join(path.read_bytes() for path in target.rglob("*") if path.is_file())
    # The copied fork depends on no other namespace, so the rest can be copied later.
    assert (await admin.copy(source, target)).ok
    assert await exported(source) == await exported(target)


async def test_copy_of_source_in_use_is_a_snapshot(source, tmp_path):
    """The copy contains no later saves, and no links to them."""
    async with opened(source) as session:
        await session.memories.save_context("just before")
        late = []

        def save(*_):
            late.append(asyncio.ensure_future(session.memories.save_context(f"too late {len(late)}")))

        copied = await admin.copy(source, tmp_path / "b", progress=save)
        await asyncio.gather(*late)
    async with opened(tmp_path / "b") as session:
        contents = [memory.content for memory in await session.memories.list(limit=100)]

    assert copied.ok
    assert late
    assert "just before" in contents
    assert not [content for content in contents if "too late" in content]


# All engines


RECORD = EmbedderRecord("four", "four-1", 4)


def plain(memories_there):
    """Return an in-memory engine with a chain of memories; the first one also links to the last."""
    engine = PlainEngine("default", embedder=RECORD)
    for number in range(memories_there):
        vector = np.eye(4, dtype=np.float32)[[number % 4]]
        engine.memories.put(plain_memory(f"m{number}", f"text {number}", at=number), vectors=vector)
        if number:
            engine.memories.put_link(plain_link(f"m{number}", f"m{number - 1}", at=number))
    if memories_there > 1:
        engine.memories.put_link(plain_link("m0", f"m{memories_there - 1}", at=99))
    return engine


async def test_engines_of_different_kinds_copy_to_each_other(tmp_path, monkeypatch):
    """From memory to disk and back, with several batches and pages: the exports are equal."""
    monkeypatch.setattr(transfer, "PAGE_MEMORIES", 50)
    first, last = plain(120), PlainEngine("default", embedder=RECORD)
    directory = OpenedDirectory.open(tmp_path / "b")
    middle = await directory.engines.open("default", RECORD, directory.settings)
    for source, target in ((first, middle), (middle, last)):
        await NamespaceCopier(source, target, lambda _: None, CopyDigest()).run()
    files = [tmp_path / name for name in ("first", "middle", "last")]
    for engine, file in zip((first, middle, last), files, strict=True):
        assert 120 == await export_jsonl(engine, file, None)
    await directory.engines.release("default")
    await directory.close()

    assert 1 == len({file.read_bytes() for file in files})


async def test_copy_detects_changes_of_source_without_snapshots():
    source, target = plain(3), PlainEngine("default", embedder=RECORD)

    def write(_):
        (memory,) = source.memories.get([source.memories.find("m1")])
        source.memories.put(attrs.evolve(memory, content="other"))

    with pytest.raises(StoreMismatch) as caught:
        await NamespaceCopier(source, target, write, CopyDigest()).run()
    assert "nobody writes to" in caught.value.hint


async def test_copy_detects_changes_of_target():
    """The final comparison reads the target."""
    for lose in (
        lambda memories: memories.delete("m1"),
        lambda memories: memories.delete_links(["m2>m1:relates_to"]),
        lambda memories: memories.put(plain_memory("m9"), vectors=np.eye(4, dtype=np.float32)[:1]),
        lambda memories: memories.set_note("more", "than there was"),
    ):
        source, target = plain(3), PlainEngine("default", embedder=RECORD)
        told = []
        with pytest.raises(StoreMismatch, match="default"):
            await NamespaceCopier(
                source,
                target,
                lambda _, told=told, lose=lose, target=target: told or (told.append(1), lose(target.memories)),
                CopyDigest(),
            ).run()


async def test_copy_of_open_session_or_none_asks_for_location(tmp_path):
    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder()) as session:
        for source, target, name, got in (
            (session, tmp_path / "b", "source", "a Session"),
            (None, tmp_path / "b", "source", "None"),
            (tmp_path / "a.mama", session, "target", "a Session"),
        ):
            message = rf"{name} must be a directory or the URL of a server, got {got} \(for an open session, pass its location\)"
            with pytest.raises(InvalidArgument, match=message):
                await admin.copy(source, target)
    assert not (tmp_path / "b").exists()
