"""Administration of stores: arguments, namespaces, erasure of a namespace, and what each kind of store allows."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
import sqlite3
import subprocess
import sys
from itertools import count
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from killing_helpers import killed_commands
from memory_helpers import SMALL
from postgres_helpers import administer, database, postgres, prepared

from mama_structs import HashEmbedder, Session, Settings, admin, as_embedder, sync
from mama_structs.errors import (
    InvalidArgument,
    MamaStructsError,
    SessionClosed,
    StoreBusy,
    UnknownNamespace,
)
from mama_structs.memory.types.namespace_erasure import NamespaceErasure
from mama_structs.session.backend import open_backend
from mama_structs.settings import DescriptorSettings
from mama_structs.storage.locks import DirectoryLocks

__all__ = ["database", "postgres", "prepared"]

SECRET = "Quokkafish"
DESCRIPTORS = DescriptorSettings(conversation_ttl=0.0001)
# Names that could be confused with each other in keys of rows.
NAMESPACES = ("default", "bob", "bob%.c", "bo", "ü/ö", "b" * 100, "ü" * 100)
DELETE = """
    import asyncio
    from mama_structs import admin

    def main(arguments):
        asyncio.run(admin.delete_namespace(*arguments))
        return 0
"""


@pytest.fixture
def place(tmp_path):
    return tmp_path / "agent.mama"


@pytest.fixture(params=["directory", "server"])
def store(request):
    """Return the location of an empty store: a directory, or the URL of a server."""
    if request.param == "directory":
        return request.getfixturevalue("tmp_path") / "agent.mama"
    return request.getfixturevalue("database")


def opened(store, namespace="default", conversation="c", **options):
    return Session.open(store, namespace=namespace, conversation=conversation, embedder=SMALL, **options)


async def fill(store, namespace="default", *, word=SECRET):
    """Store memories of several types, links, evidence, records, and a conversation with a fork."""
    async with opened(store, namespace) as session:
        await session.observe(f'<ref id="a">text of {word} in {namespace}</ref>')
        one = await session.memories.save_decision(
            f"use {word}", topic=f"topic of {word}", reasoning="quick", evidence=["ref:a"]
        )
        await session.memories.supersede(one, f"use {word} no more", reasoning="slow")
        await session.memories.save_insight(f"an insight about {word}", topic=f"topic of {word}")
        await session.records.put(["label"], "key", {"value": word})
        await session.records.put(["label"], "text", {"value": word}, text=f"a record about {word}")
        async with session.fork("fork") as fork:
            await fork.observe(f'<ref id="b">more of {word} in {namespace}</ref>')


async def contents(store, namespace="default"):
    """Return the texts of the memories, the records, and the texts of both conversations of a namespace."""
    async with opened(store, namespace, None) as session:
        memories = sorted(memory.content for memory in await session.memories.list(limit=100))
        records = [record.value for record in await session.records.list(["label"])]
    texts = []
    for name in ("c", "fork"):
        async with opened(store, namespace, name) as session:
            texts.append({handle: session.refs.get(handle).text for handle in session.refs})
    return memories, records, texts


def files_with(store, word):
    """Return the files of a directory that contain a word in any case."""
    found = (path for path in Path(store).rglob("*") if path.is_file())
    return [path for path in found if word.lower().encode() in path.read_bytes().lower()]


def rows_with(url, namespace):
    """Return the tables of a server that contain rows of a namespace, except for the number of its last change."""
    tables = administer(
        url,
        "SELECT table_name FROM information_schema.columns WHERE table_schema = 'mama_structs' "
        "AND column_name = 'namespace'",
    )
    names = {row["table_name"] for row in tables} - {"namespaces", "changes"}
    sql = "SELECT 1 FROM mama_structs.{} WHERE namespace = '{}' LIMIT 1"
    return [name for name in sorted(names) if administer(url, sql.format(name, namespace))]


async def test_delete_namespace_erases_everything_of_one_namespace(store):
    await fill(store, "bob")
    await fill(store, "default", word="Zebra")
    kept = await contents(store)
    receipt = await admin.delete_namespace(store, "bob")

    assert ("default",) == await admin.list_namespaces(store)
    assert kept == await contents(store)
    assert (await admin.check(store)).ok
    assert {"decision": 2, "insight": 1} == receipt.memories
    assert (2, 2, 0) == (receipt.records, receipt.conversations, receipt.unreadable)
    assert (1, 2, ()) == (receipt.evidence_texts, receipt.conversation_texts, receipt.pending)
    assert receipt.links
    if isinstance(store, Path):
        assert [] == files_with(store, SECRET)
    else:
        assert [] == rows_with(store, "bob")


async def test_deleted_namespace_can_be_filled_again(store):
    await fill(store, "bob")
    before = await contents(store, "bob")
    await admin.delete_namespace(store, "bob")
    other = HashEmbedder(dimensions=32)
    async with Session.open(store, namespace="bob", embedder=other) as session:
        assert 0 == await session.memories.count()
        assert [] == list(await session.records.list(["label"]))
    await fill(store, "bob")

    assert before == await contents(store, "bob")
    assert (await admin.check(store, namespace="bob")).ok


async def test_receipt_contains_numbers_and_the_name_only(store):
    await fill(store, "bob")
    receipt = await admin.delete_namespace(store, "bob")
    data = receipt.to_dict()

    assert data == json.loads(receipt.to_json())
    assert {field.name for field in attrs.fields(NamespaceErasure)} == data.keys()
    assert SECRET not in receipt.to_json()
    assert "bob" == data.pop("namespace")
    assert [] == data.pop("pending")
    assert all(
        type(one) is int
        for value in data.values()
        for one in (value.values() if value == data["memories"] else [value])
    )


async def test_delete_namespace_reports_progress(store):
    await fill(store, "bob")
    told = []
    await admin.delete_namespace(store, "bob", progress=lambda done, total: told.append((done, total)))

    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 3


async def test_deleting_unknown_namespace_names_similar_ones(store):
    await fill(store, "customers")
    with pytest.raises(UnknownNamespace, match="no namespace 'custmers'") as caught:
        await admin.delete_namespace(store, "custmers")

    assert "customers" in caught.value.hint
    assert ("customers",) == await admin.list_namespaces(store)


async def test_namespace_with_conversations_only_is_deleted(store):
    async with opened(store, "bob") as session:
        await session.observe(f'<ref id="a">{SECRET}</ref>')
    receipt = await admin.delete_namespace(store, "bob")

    assert NamespaceErasure(namespace="bob", conversations=1, conversation_texts=1) == receipt
    assert () == await admin.list_namespaces(store)


async def test_open_namespace_is_not_deleted(store):
    await fill(store, "bob")
    before = await contents(store, "bob")
    async with opened(store, "bob", None) as session:
        for given_store in (store, session):
            with pytest.raises(StoreBusy, match="has the namespace 'bob' open") as caught:
                await admin.delete_namespace(given_store, "bob")
            assert "close all sessions" in caught.value.hint

    assert before == await contents(store, "bob")


async def test_namespace_that_a_session_reads_is_not_deleted(store):
    await fill(store, "bob")
    async with opened(store, "default", read_namespaces=["bob"]) as session:
        with pytest.raises(StoreBusy, match="or reads it"):
            await admin.delete_namespace(session, "bob")
    await admin.delete_namespace(store, "bob")

    assert "bob" not in await admin.list_namespaces(store)


HOLDER = """
import asyncio, sys
from mama_structs import HashEmbedder, Session

async def main():
    session = await Session.open(sys.argv[1], namespace="bob", conversation="held", embedder=HashEmbedder(dimensions=64))
    await session.observe("<ref id='h'>held</ref>")
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await session.close()

asyncio.run(main())
"""


@contextlib.contextmanager
def another_process(store):
    """Run a process that has a session open in the namespace "bob"."""
    command = [sys.executable, "-c", HOLDER, str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert "open\n" == process.stdout.readline()
        yield process
        process.stdin.close()


@pytest.mark.skipif(os.name != "posix", reason="other systems have no locks between processes")
async def test_namespace_open_in_another_process_is_not_deleted(store):
    await fill(store, "bob")
    with another_process(store) as process:
        with pytest.raises(StoreBusy, match="has the namespace 'bob' open"):
            await admin.delete_namespace(store, "bob")
        await fill(store, "default", word="Zebra")
        assert "default" == (await admin.delete_namespace(store, "default")).namespace
        process.stdin.close()
        assert 0 == await asyncio.to_thread(process.wait)
    assert 3 == (await admin.delete_namespace(store, "bob")).conversations


@pytest.mark.skipif(os.name != "posix", reason="other systems have no locks between processes")
async def test_namespace_of_killed_process_is_deleted(place):
    await fill(place, "bob")
    with another_process(place) as process:
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        assert 3 == (await admin.delete_namespace(place, "bob")).conversations


async def test_namespace_that_is_being_deleted_is_not_opened(place):
    await fill(place, "bob")
    locks = DirectoryLocks(place)
    locks.claim("\ud800bob")
    with pytest.raises(StoreBusy, match="the namespace 'bob' is being deleted"):
        await opened(place, "bob")
    locks.close()

    async with opened(place, "bob") as session:
        assert 4 == await session.memories.count()


async def test_namespaces_with_similar_names_are_kept(place):
    for name in NAMESPACES:
        async with opened(place, name) as session:
            await session.memories.save_context(f"context of {name}")
            await session.records.put(["label"], "key", name)
            await session.observe(f'<ref id="a">text of {name}</ref>')
    before = {name: await contents(place, name) for name in NAMESPACES}
    for position, name in enumerate(NAMESPACES, 1):
        receipt = await admin.delete_namespace(place, name)
        left = NAMESPACES[position:]
        assert ({"context": 1}, 1, 1) == (receipt.memories, receipt.records, receipt.conversations)
        assert tuple(sorted(left)) == await admin.list_namespaces(place)
        assert {one: before[one] for one in left} == {one: await contents(place, one) for one in left}


async def test_forks_in_other_namespaces_keep_their_contents(place):
    await fill(place, "bob")
    expected = await contents(place, "bob")
    async with open_backend(place) as home:
        await home.assign("fork", origin="bob", namespace="alice")
    await admin.delete_namespace(place, "bob")

    assert expected[2][1] == (await contents(place, "alice"))[2][1]
    assert ("alice",) == await admin.list_namespaces(place)
    assert (await admin.check(place, namespace="alice")).ok


def damage(place, *prefixes):
    """Overwrite the stored values of the rows whose keys begin with a prefix."""
    with contextlib.closing(sqlite3.connect(place / "journal" / "cache.db")) as database, database:
        for prefix in prefixes:
            database.execute("UPDATE Cache SET value = x'00' WHERE key GLOB ?", (f"{prefix}*",))


async def test_damaged_namespace_is_deleted(place):
    await fill(place, "bob")
    await fill(place, "default", word="Zebra")
    kept = await contents(place)
    damage(place, "memories/bob/", "conversations/bob", "refs/bob", "told/bob")
    receipt = await admin.delete_namespace(place, "bob")

    assert ("default",) == await admin.list_namespaces(place)
    assert kept == await contents(place)
    assert 4 == receipt.unreadable
    assert (2, 2) == (receipt.conversations, receipt.conversation_texts)
    assert [] == files_with(place, SECRET)


async def test_deletion_whose_disk_cleanup_is_blocked_is_completed_by_next_session(place):
    """A reader of the old state keeps the deleted pages. The receipt says so, and the next session removes them."""
    await fill(place, "bob")
    await fill(place, "default", word="Zebra")
    with contextlib.closing(sqlite3.connect(place / "journal" / "cache.db", isolation_level=None)) as reader:
        reader.execute("BEGIN").fetchall()
        reader.execute("SELECT count(*) FROM Cache").fetchall()
        receipt = await admin.delete_namespace(place, "bob")
        assert receipt.pending
        assert files_with(place, SECRET)
    again = await admin.delete_namespace(place, "bob")

    assert NamespaceErasure(namespace="bob") == again
    assert [] == files_with(place, SECRET)
    with pytest.raises(UnknownNamespace):
        await admin.delete_namespace(place, "bob")


@pytest.mark.skipif(os.name != "posix", reason="nothing is killed so elsewhere")
async def test_killed_deletion_is_atomic_and_is_completed_by_next_session(store):
    """After a kill before any statement, the namespace is whole or gone, and others are unchanged."""
    await fill(store, "bob")
    await fill(store, "default", word="Zebra")
    whole, kept = await contents(store, "bob"), await contents(store)
    with killed_commands(store, "bob", program=DELETE) as is_killed:
        for steps in count():
            was_killed = await asyncio.to_thread(is_killed, steps)
            is_gone = "bob" not in await admin.list_namespaces(store)
            if isinstance(store, Path):
                # The check of a killed process's namespace reports no lost changes.
                assert (await admin.check(store)).ok
                assert is_gone or (await admin.check(store, namespace="bob")).ok
            if not is_gone:
                assert whole == await contents(store, "bob")
            if is_gone or not was_killed:
                break
    assert is_gone
    assert steps > 8
    assert kept == await contents(store)
    if isinstance(store, Path):
        assert [] == files_with(store, SECRET)
        if was_killed:
            assert (await admin.check(store)).ok
    else:
        assert [] == rows_with(store, "bob")


async def test_cancelled_deletion_leaves_whole_or_no_namespace(store):
    """Cancelling, as Ctrl-C does, leaves the namespace whole or erases it, and releases its lock."""
    await fill(store, "default", word="Zebra")
    kept = await contents(store)
    outcomes = set()
    for turns in (0, 1, 3, 10, 30, 100, 300):
        await fill(store, "bob")
        whole = await contents(store, "bob")
        task = asyncio.create_task(admin.delete_namespace(store, "bob"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        is_gone = "bob" not in await admin.list_namespaces(store)
        assert is_gone or whole == await contents(store, "bob")
        outcomes.add(is_gone)
        with contextlib.suppress(UnknownNamespace):
            await admin.delete_namespace(store, "bob")
    assert False in outcomes
    assert kept == await contents(store)


@given(deleted=st.lists(st.sampled_from(["default", "alice", "bob"]), max_size=4))
def test_deletions_in_random_order_leave_other_namespaces_unchanged(deleted, tmp_path_factory):
    async def run():
        place = tmp_path_factory.mktemp("store") / "agent.mama"
        for name in ("default", "alice", "bob"):
            async with opened(place, name) as session:
                await session.memories.save_context(f"context of {name}")
                await session.observe(f'<ref id="a">shared</ref><ref id="b">{name}</ref>')
        left = {"default", "alice", "bob"}
        for name in deleted:
            if name in left:
                await admin.delete_namespace(place, name)
            else:
                with pytest.raises(UnknownNamespace):
                    await admin.delete_namespace(place, name)
            left.discard(name)
            assert tuple(sorted(left)) == await admin.list_namespaces(place)
        for name in left:
            async with opened(place, name) as session:
                assert [f"context of {name}"] == [memory.content for memory in await session.memories.list()]
                assert ["shared", name] == [session.refs.get(handle).text for handle in sorted(session.refs)]

    asyncio.run(run())


# Stores


async def arguments_of(place):
    """Return calls of all functions that concern the memories of one namespace."""
    exported = place.parent / "export.jsonl"
    await admin.export_jsonl(place, exported, namespace="bob")
    return {
        "check": admin.check,
        "maintain": admin.maintain,
        "prune": admin.prune,
        "rebuild": admin.rebuild,
        "reembed": lambda store, **given: admin.reembed(store, SMALL, **given),
        "export_jsonl": lambda store, **given: admin.export_jsonl(store, place.parent / "other.jsonl", **given),
        "import_jsonl": lambda store, **given: admin.import_jsonl(store, exported, **given),
    }


async def test_functions_accept_location_session_and_memories(place):
    await fill(place, "bob")
    calls = await arguments_of(place)
    for call in calls.values():
        located = await call(place, namespace="bob")
        async with opened(place, "bob") as session:
            for store in (session, session.memories):
                for options in ({}, {"namespace": "bob"}):
                    assert type(located) is type(await call(store, **options))


async def test_session_rejects_other_namespace(place):
    await fill(place, "bob")
    calls = await arguments_of(place)
    async with opened(place, "bob") as session:
        for call in calls.values():
            for store in (session, session.memories):
                with pytest.raises(InvalidArgument, match="namespace must be 'bob', that of the session") as caught:
                    await call(store, namespace="default")
                assert "pass the location" in caught.value.hint


async def test_unknown_namespace_of_location_is_rejected(place):
    """Without the error, a check of a misspelled namespace would find no damage."""
    await fill(place, "bob")
    calls = await arguments_of(place)
    del calls["import_jsonl"]
    for call in calls.values():
        with pytest.raises(UnknownNamespace, match="no namespace 'bop'") as caught:
            await call(place, namespace="bop")
        assert "bob" in caught.value.hint
    assert ("bob",) == await admin.list_namespaces(place)


async def test_location_without_namespace_means_its_only_namespace(place):
    await fill(place, "bob")

    for call in (await arguments_of(place)).values():
        await call(place)
    assert {"c", "fork"} == {one.name for one in await admin.list_conversations(place)}
    await admin.delete_conversation(place, "c")

    assert ["fork"] == [one.name for one in await admin.list_conversations(place, namespace="bob")]
    assert ("bob",) == await admin.list_namespaces(place)


async def test_location_without_namespace_prefers_default(place):
    await fill(place, "bob")
    await fill(place, word="Zebra")
    out = place.parent / "out.jsonl"

    await admin.export_jsonl(place, out)

    assert "Zebra" in out.read_text()
    assert SECRET not in out.read_text()


async def test_location_without_namespace_is_rejected_if_it_has_several(place):
    await fill(place, "bob")
    await fill(place, "carol")
    calls = await arguments_of(place)
    calls["list_conversations"] = admin.list_conversations
    calls["delete_conversation"] = lambda store: admin.delete_conversation(store, "c")
    for call in calls.values():
        with pytest.raises(UnknownNamespace, match="no namespace 'default'") as caught:
            await call(place)
        assert "pass namespace=...; there are: bob, carol" == caught.value.hint
    assert ("bob", "carol") == await admin.list_namespaces(place)


async def test_missing_store_is_rejected_and_not_created(place):
    for call in (
        admin.check(place),
        admin.maintain(place),
        admin.prune(place),
        admin.rebuild(place),
        admin.reembed(place, SMALL),
        admin.export_jsonl(place, place.parent / "out.jsonl"),
        admin.backup(place, place.parent / "copy"),
        admin.copy(place, place.parent / "copy"),
        admin.list_namespaces(place),
        admin.list_conversations(place),
        admin.delete_conversation(place, "c"),
        admin.delete_namespace(place, "default"),
    ):
        with pytest.raises(InvalidArgument, match="is not the directory of a store"):
            await call
    assert [] == list(place.parent.iterdir())


@pytest.mark.parametrize("wrong", [None, 7, b"agent.mama", object()])
async def test_store_of_wrong_type_is_rejected(wrong, tmp_path):
    for call in (
        admin.check(wrong),
        admin.prune(wrong),
        admin.backup(wrong, tmp_path / "copy"),
        admin.list_namespaces(wrong),
        admin.delete_namespace(wrong, "default"),
    ):
        with pytest.raises(InvalidArgument, match="store must be a location or an open Session, got"):
            await call


@pytest.mark.parametrize("name", admin.__all__)
def test_sync_session_is_rejected_before_a_coroutine_is_created(name):
    """A coroutine that is not awaited would do nothing and raise nothing."""
    function = getattr(admin, name)
    with sync.Session.open(embedder=SMALL) as session:
        for arguments in ((session, "x"), (session.memories, "x")):
            with pytest.raises(InvalidArgument, match=r"from mama_structs\.sync import admin"):
                function(*arguments)
        first = next(iter(inspect.signature(function).parameters))
        with pytest.raises(InvalidArgument, match=r"from mama_structs\.sync import admin"):
            function(**{first: session})

    assert inspect.iscoroutinefunction(inspect.unwrap(function))


async def test_memories_are_no_store_for_functions_of_the_whole_store(place):
    await fill(place)
    async with opened(place) as session:
        for call in (
            admin.backup(session.memories, place.parent / "copy"),
            admin.list_namespaces(session.memories),
            admin.list_conversations(session.memories),
            admin.delete_conversation(session.memories, "c"),
            admin.delete_namespace(session.memories, "bob"),
        ):
            with pytest.raises(InvalidArgument, match="got MemoryStore"):
                await call


async def test_closed_session_is_rejected(place):
    await fill(place)
    async with opened(place) as session:
        pass
    for store in (session, session.memories):
        for call in (admin.check(store), admin.maintain(store), admin.prune(store), admin.rebuild(store)):
            with pytest.raises(SessionClosed):
                await call
    for call in (admin.backup(session, place.parent / "copy"), admin.list_namespaces(session)):
        with pytest.raises(SessionClosed):
            await call


async def test_location_needs_no_embedder(place):
    """Stores of embedders that are not installed can be checked, pruned and exported."""
    own = as_embedder(lambda texts: HashEmbedder(dimensions=48).embed(texts), name="own", dimensions=48)
    async with Session.open(place, embedder=own) as session:
        await session.memories.save_context("one")
    assert (await admin.check(place)).ok
    assert 0 == await admin.prune(place)
    assert [] == await admin.rebuild(place)
    assert not (await admin.maintain(place)).pruned
    assert 1 == await admin.export_jsonl(place, place.parent / "out.jsonl")
    assert 1 == await admin.reembed(place, SMALL)
    async with opened(place) as session:
        assert ["one"] == [hit.content for hit in await session.memories.search("one")]


async def test_check_of_location_changes_nothing(place):
    await fill(place)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.name != "cache.db-shm"}
    report = await admin.check(place)
    after = {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.name != "cache.db-shm"}

    assert report.ok
    assert before == after


async def test_check_of_session_also_reads_conversations(place):
    await fill(place)
    damage(place, "refs/c/")
    async with opened(place, conversation=None) as session:
        whole, memories = await admin.check(session), await admin.check(session.memories)
    located = await admin.check(place)

    assert (False, True) == (whole.ok, memories.ok)
    assert set(whole.issues) == set(located.issues)


async def test_import_creates_missing_store(place):
    await fill(place)
    exported = place.parent / "export.jsonl"
    number = await admin.export_jsonl(place, exported)
    done = await admin.import_jsonl(place.parent / "new.mama", exported, namespace="bob")

    assert number == done.added
    assert ("bob",) == await admin.list_namespaces(place.parent / "new.mama")
    assert 0 == (await admin.import_jsonl(place.parent / "new.mama", exported, namespace="bob")).added


async def test_invalid_export_creates_no_store(place):
    wrong = place.parent / "export.jsonl"
    wrong.write_text("{}\n")
    with pytest.raises(InvalidArgument):
        await admin.import_jsonl(place, wrong)
    assert not place.exists()


async def test_session_that_reads_other_namespaces_cannot_reembed(place):
    await fill(place, "bob")
    await fill(place)
    async with opened(place, read_namespaces=["bob"]) as session:
        for store in (session, session.memories):
            with pytest.raises(InvalidArgument, match="reads other namespaces") as caught:
                await admin.reembed(store, HashEmbedder(dimensions=32))
            assert "for each namespace" in caught.value.hint
        assert await session.memories.search(SECRET)


async def test_maintain_of_location_deletes_expired_conversations(place, monkeypatch):
    await fill(place)
    monkeypatch.setattr("mama_structs.admin.Settings", lambda: Settings(descriptors=DESCRIPTORS))
    await admin.maintain(place)

    assert () == await admin.list_conversations(place)


async def test_progress_must_be_callable(place):
    await fill(place)
    for call in (
        admin.check(place, progress=1),
        admin.rebuild(place, progress=1),
        admin.reembed(place, SMALL, progress=1),
        admin.export_jsonl(place, place.parent / "out.jsonl", progress=1),
        admin.import_jsonl(place, place.parent / "out.jsonl", progress=1),
        admin.backup(place, place.parent / "copy", progress=1),
        admin.delete_namespace(place, "default", progress=1),
    ):
        with pytest.raises(InvalidArgument, match="progress must be a function"):
            await call


@pytest.mark.parametrize("name", ["", "x" * 1000, None, 7, "\ud800"])
async def test_invalid_namespace_is_rejected(name, place):
    await fill(place)
    calls = [admin.delete_namespace(place, name)]
    if name is not None:
        calls += [admin.check(place, namespace=name), admin.list_conversations(place, namespace=name)]
    for call in calls:
        with pytest.raises(InvalidArgument, match="namespace"):
            await call


async def test_list_conversations_uses_namespace_of_session(place):
    await fill(place, "bob")
    async with opened(place, "bob") as session:
        assert "bob" == session.namespace
        assert {"c", "fork"} == {one.name for one in await admin.list_conversations(session)}
        assert () == await admin.list_conversations(session, namespace="default")
        with pytest.raises(StoreBusy):
            await admin.delete_conversation(session, "c")
        await admin.delete_conversation(session, "fork")
    assert ["c"] == [one.name for one in await admin.list_conversations(place, namespace="bob")]


async def test_namespace_is_in_repr_of_session(place):
    async with opened(place, "customer-17") as session:
        assert "customer-17" == session.namespace == session.memories.namespace
        assert "in namespace 'customer-17'" in repr(session)
        async with session.fork() as fork:
            assert "customer-17" == fork.namespace
    async with Session.open() as session:
        assert "default" == session.namespace


async def test_interrupted_functions_leave_data_whole(place):
    """Ctrl-C cancels the running call. The store can be used, and the data is unchanged."""
    await fill(place, "default", word="Zebra")
    expected = await contents(place)
    for make in (
        lambda: admin.check(place),
        lambda: admin.rebuild(place),
        lambda: admin.prune(place),
        lambda: admin.maintain(place),
        lambda: admin.export_jsonl(place, place.parent / "out.jsonl"),
        lambda: admin.backup(place, place.parent / "copy"),
        lambda: admin.reembed(place, SMALL),
        lambda: admin.copy(place, place.parent / "copied"),
    ):
        for turns in (0, 2, 20):
            task = asyncio.create_task(make())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, MamaStructsError):
                await task
        assert (await admin.check(place)).ok
        assert expected == await contents(place)


def test_sync_admin_deletes_namespace(place):
    for name in ("default", "bob"):
        with sync.Session.open(place, namespace=name, embedder=SMALL) as session:
            session.memories.save(f"a fact of {name}")
            with pytest.raises(StoreBusy):
                sync.admin.delete_namespace(place, name)
    receipt = sync.admin.delete_namespace(place, "bob")

    assert {"insight": 1} == receipt.memories
    assert ("default",) == sync.admin.list_namespaces(place)


async def test_backup_into_the_store_itself_is_rejected(place):
    """Otherwise the store would contain a copy of itself, and its next backup both."""
    async with Session.open(place, embedder=HashEmbedder()) as session:
        await session.memories.save("one")
        for inside in (place / "copy", place / "copies" / "first"):
            with pytest.raises(InvalidArgument, match="is in the store itself"):
                await admin.backup(session, inside)

        assert not (place / "copy").exists()
        assert not (place / "copies").exists()
