"""After a memory is erased, no call returns it and no file of the store contains its text."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest
from memory_helpers import SMALL, OpenedDirectory, PlainEngines
from tree_helpers import tree_of

import mama_structs
from mama_structs import Filter, MemorySettings, Session, Settings, admin
from mama_structs._internal import caches
from mama_structs.errors import InvalidArgument, MemoryNotFound
from mama_structs.memory.engines.local.erasure import JOURNAL_HELD_MESSAGE, VIEWS_HELD_MESSAGE
from mama_structs.memory.engines.local.plans import JournalReader
from mama_structs.memory.engines.local.views.snapshots import LOCK_FILE, SnapshotStore
from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.statements import parser
from mama_structs.memory.types.engine import Reader
from mama_structs.memory.upkeep import erasure
from mama_structs.memory.upkeep.erasure import EraseRequest
from mama_structs.refs.conversations.conversation_log import ConversationKey
from mama_structs.refs.conversations.recall_log import RecalledFact, RecallLog
from mama_structs.session.backend import CONVERSATION_DAMAGED_MESSAGE, CONVERSATION_OPEN_MESSAGE
from mama_structs.storage import connection
from mama_structs.storage.backup import backup
from mama_structs.storage.locks import DirectoryLocks, LockFile
from mama_structs.storage.sealed_rows import SqliteRows

PATHS = os.pathsep.join((str(Path(mama_structs.__file__).parents[1]), str(Path(__file__).parents[2] / "support")))
QUIET = MemorySettings(linking="off")
SETTINGS = Settings(memory=attrs.evolve(QUIET, snapshot_every=50))
SECRET = 'the Quokkafish "vault" is at Zürichsee\n\tbehind 비밀계좌의 문 \\ öffnen ✓ \U0001f512'
IN_FILES = pytest.mark.of_the_directory("it counts what its log, its free pages and its views still hold")
WORDS = ("quokkafish", "zürichsee", "비밀계좌", "\U0001f512")


def spellings(text):
    """Return all encodings in which a file may contain a text: UTF-8, and JSON with either kind of escapes."""
    short, long = (json.dumps(text, ensure_ascii=escaped)[1:-1].encode() for escaped in (False, True))
    return {text.encode(), short, long, long.replace(rb"\u", rb"\U"), text.encode("utf-16-le")}


def files_with(directory, *texts):
    """Return the files below a directory that contain any of the texts, ignoring case."""
    wanted = {one for text in texts for way in (text, text.lower(), text.upper()) for one in spellings(way)}
    holding = []
    for path in Path(directory).rglob("*"):
        # An unfinished snapshot may be deleted between the listing and the read.
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            held = path.read_bytes()
            holding += [path.name] if any(one in held for one in wanted) else []
    return sorted(holding)


async def erase_as_tool(store, *, ids=None, about=None, source=None, before=None, dry_run=False):
    """Erase memories with the conditions of the tool ``evolve/forget``."""
    request = EraseRequest.checked(ids=ids, about=about, source=source, before=before)
    return await store._erase(request, dry_run=dry_run)


def opened(path, **options):
    return OpenedDirectory.open(path, embedder=SMALL, settings=QUIET, **options)


async def keep_traces(storage):
    """Disable SQLite's secure deletion, which some builds enable and which would hide remaining traces."""
    await storage.transact(lambda rows: None)
    connection = storage._database.connection
    done = storage.submit_job(lambda: connection.execute("PRAGMA secure_delete = 0").fetchall())
    assert [(0,)] == await asyncio.wrap_future(done)


@contextlib.asynccontextmanager
async def filled(path, *, settings=QUIET, count=60):
    """Yield an open directory, its memories, and the memory that the test will erase."""
    place = OpenedDirectory.open(path, embedder=SMALL, settings=settings, wait=0.2)
    store = await place.memories()
    await keep_traces(place.storage)
    await store.save_many([{"type": "context", "content": f"note {number} of the day"} for number in range(count)])
    secret = await store.save_insight(SECRET, tags=["quokkafish"], source="crm", extra={"vault": SECRET[:50]})
    for number in range(3):
        other = await store.save_context(f"after it came {number}")
        await store.link(secret.id, other.id, "quokkafish rule")
    try:
        yield place, store, secret
    finally:
        await place.close()


async def life_of_a_secret(session):
    """Put a secret into all fields of a memory by ordinary calls, and return the decision."""
    memories = session.memories
    session.refs.put("plan", f"```text\n{SECRET} plan\n```")
    session.refs.put("other", "a plan of no interest")
    decision = await memories.save_decision(
        "one vault", topic="storage", reasoning="cheap", evidence=["ref:plan", "ref:other"]
    )
    await memories.save_decision("trust nobody", topic="trust", reasoning="as said", evidence=["ref:other"])
    await memories.update(decision.id, f"{SECRET} one", change_reason=f"{SECRET} two")
    await memories.update(decision.id, "two vaults", reasoning=f"{SECRET} three")
    await memories.set_outcome(decision.id, "FAILED", reason=f"{SECRET} four")
    topic = await memories.save_decision(
        "hide it",
        topic="Quokkafish",
        reasoning="quiet",
        links=[{"to_id": decision.id, "relationship": "part of", "reason": f"{SECRET} five"}],
    )
    told = f"The vault that was spoken of yesterday is no longer in use: see {topic.id}, it names Quokkafish by its id alone".replace(
        "Quokkafish", "that"
    )
    await memories.save_checkpoint(told, next_steps=[f"undo {topic.id}"])
    return decision, topic


async def test_erase_leaves_no_byte_in_any_file(tmp_path):
    """Content, previous texts, reasons, evidence, refs, ids, words and topics are removed, even from backups."""
    path = tmp_path / "agent.mama"
    async with Session.open(path, embedder=SMALL, settings=SETTINGS, conversation="talk") as session:
        memories = session.memories
        await keep_traces(session._shared.home.storage)
        await memories.save_many([{"type": "context", "content": f"note {number} of a day"} for number in range(200)])
        decision, topic = await life_of_a_secret(session)
        await session.flush()
        await admin.rebuild(memories)
        before = files_with(path, *WORDS)
        dry = await memories.erase([decision.id, topic.id], dry_run=True)
        untouched = await memories.count()
        receipt = await memories.erase([decision.id, topic.id])
        at_once = files_with(path, *WORDS)
        await admin.backup(session, tmp_path / "backup")
        left = await memories.list(type=["checkpoint"])
        found = [hit.memory.id for hit in await memories.search(SECRET)]
        report = await admin.check(session)
        handles = [(one.versioned_handle, one.text) for one in [session.refs.get("ref:other")]]
        with pytest.raises(mama_structs.errors.HandleNotFound):
            session.refs.get("ref:plan")
    async with Session.open(path, embedder=SMALL, settings=SETTINGS, conversation="talk") as session:
        kept = await session.memories.count()
        evidence = await session.memories.evidence((await session.memories.history(topic="trust")).newest.id)

    assert {"cache.db", "cache.db-wal"} & set(before)
    assert any(name.endswith(".npy") for name in before)
    assert ([], [], []) == (at_once, files_with(path, *WORDS), files_with(tmp_path / "backup", *WORDS))
    assert {"decision": 2, "context": 1} == receipt.memories == dry.memories
    assert (3, 1, 1, 1) == (receipt.count, receipt.evidence_texts, receipt.refs, receipt.updated_memories)
    assert receipt == attrs.evolve(dry, dry_run=False)
    assert () == receipt.pending
    assert not any(word in repr(receipt).lower() for word in WORDS)
    assert (205, 202) == (untouched, kept)
    assert [
        "The vault that was spoken of yesterday is no longer in use: see forgotten, it names that by its id alone"
    ] == [one.content for one in left]
    assert ("undo forgotten",) == left[0].metadata.next_steps
    assert not {decision.id, topic.id} & set(found)
    assert report.ok, str(report)
    assert [("ref:other@1", "a plan of no interest")] == handles
    assert ["a plan of no interest"] == [one.text for one in evidence]


@pytest.mark.parametrize("engines", [lambda: None, PlainEngines], ids=["embedded", "plain"])
async def test_erase_request_requires_all_conditions_to_match(tmp_path, engines):
    """Ids, mention, topic, source and time each narrow the selection of the tool. Nothing else is deleted."""
    place = opened(tmp_path, engines=engines(), find_mentions=lambda text: [w for w in text.split() if "-" in w])
    store, other = await place.memories(), await place.memories("other")
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)
    saved = {
        "named": await store.save_context("dock at 2-1", created_at=early),
        "topic": await store.save_decision(
            "dock", topic="2-1", reasoning="near", created_at=late, evidence=["https://crm.example/7"]
        ),
        "crm": await store.save_insight("ships", source="crm", created_at=late),
        "2-1 far": await store.save_insight("not at 2-11 docks", source="crm", created_at=early),
    }
    kept = await other.save_insight("dock at 2-1", source="crm", created_at=early)
    questions = {
        "about": {"about": "2-1"},
        "about before": {"about": "2-1", "before": late},
        "source": {"source": "crm"},
        "source before": {"source": "crm", "before": late},
        "evidence": {"source": "https://crm.example/7"},
        "ids about": {"ids": [saved["named"].id, saved["crm"].id], "about": "2-1"},
        "before": {"before": early},
        "unknown": {"about": "3-1"},
    }
    dry = {name: (await erase_as_tool(store, **asked, dry_run=True)).count for name, asked in questions.items()}

    assert dry == {
        "about": 2, "about before": 1, "source": 2, "source before": 1, "evidence": 1, "ids about": 1, "before": 0,
        "unknown": 0,
    }  # fmt: skip
    assert 4 == await store.count()
    assert 1 == (await erase_as_tool(store, about="2-1", before=late)).count
    with pytest.raises(MemoryNotFound):
        await store.get(saved["named"].id)
    assert 2 == (await store.erase(where=Filter(source="crm"))).count
    assert [saved["topic"]] == await store.list()
    assert [kept] == await other.list()
    assert [] == await place.findings()
    await place.close()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "forget needs ids, about, source or before"),
        ({"about": " "}, "about must not be empty"),
        ({"ids": 7}, "ids must be a list"),
        ({"source": ""}, "source must not be empty"),
    ],
)
def test_erase_request_without_condition_is_rejected(asked, said):
    """A tool's request without a condition never selects everything."""
    with pytest.raises(InvalidArgument, match=said):
        EraseRequest.checked(**{"ids": None, "about": None, "source": None, "before": None, **asked})


@pytest.mark.parametrize("method", ["delete", "erase"])
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, r"needs memories or where="),
        ({"where": Filter()}, r"needs memories or where="),
        ({"where": {"topic": "x"}}, "where must be a Filter"),
        ({"memories": 7}, "memories must be"),
        ({"where": Filter(topic="x"), "dry_run": 1}, "dry_run must be True or False"),
    ],
)
async def test_deletion_without_condition_is_rejected(tmp_path, method, asked, said):
    """A missing or empty filter never selects everything, and nothing is deleted."""
    place = opened(tmp_path)
    store = await place.memories()
    await store.save_context("kept")
    with pytest.raises(InvalidArgument, match=said):
        await getattr(store, method)(**asked)
    with pytest.raises(InvalidArgument, match="progress must be a function"):
        await store.erase(where=Filter(topic="x"), progress=1)
    with pytest.raises(MemoryNotFound):
        await getattr(store, method)([(await store.list())[0].id, "context_none_1790000000000_00000000"])

    assert 1 == await store.count()
    await place.close()


@pytest.mark.parametrize("engines", [lambda: None, PlainEngines], ids=["embedded", "plain"])
@pytest.mark.parametrize("method", ["delete", "erase"])
async def test_deletion_requires_ids_and_filter_to_match(tmp_path, engines, method):
    """Memories and a filter narrow each other. An empty list of memories selects nothing."""
    place = opened(tmp_path, engines=engines())
    store = await place.memories()
    tea, coffee = await store.save("tea is hot", topic="tea"), await store.save("coffee is hot", topic="coffee")
    other = await store.save("tea is green", topic="tea")
    delete = getattr(store, method)

    def counted(answer):
        return answer if method == "delete" else answer.count

    assert 2 == counted(await delete(where=Filter(topic="tea"), dry_run=True))
    assert 0 == counted(await delete([]))
    assert 0 == counted(await delete(coffee, where=Filter(topic="tea")))
    assert 3 == await store.count()
    assert 1 == counted(await delete([tea, coffee], where=Filter(topic="tea")))
    assert 1 == counted(await delete((await store.search("green", limit=1))[0]))
    assert [coffee] == await store.list()
    with pytest.raises(MemoryNotFound):
        await delete(other)
    assert [] == await place.findings()
    await place.close()


async def test_erase_clears_caches_of_parsed_texts(tmp_path):
    """Detecting a conflict parses both texts, and no cache of the process retains them."""
    async with Session.open(tmp_path / "agent.mama", embedder=SMALL) as session:
        await session.memories.save_context("The vault of the harbour opens at 8.")
        newer = await session.memories.save_context("The vault of the harbour does not open at 8.")
        before = parser._parse.cache_info().currsize
        await session.memories.erase([newer.id])

    assert before
    assert 0 == sum(clear.__self__.cache_info().currsize for clear in caches._clear_functions)


def test_every_cache_with_data_of_memories_is_cleared():
    """Functions with another cache of results: their arguments are no data of memories, or the cache is local."""
    others = {
        "_base_powers",
        "_find_font",
        "_get_attributes",
        "_get_instruments",
        "_get_json_names",
        "_import_module",
        "_load_context",
        "_load_evidence",
        "_load_grammar",
        "_load_rules",
        "_load_asking_words",
        "_load_first_person_rules",
        "_load_history_patterns",
        "_load_model",
        "_load_prompt",
        "_load_unrelated",
        "_log_better_embedder",
        "_make_class",
        "_make_gzip_bomb",
        "_mappings",
        "_max_note_chars_for_digits",
        "_normalize_name",
        "_parse_header",
        "_type_mask",
        "_without_finalizer",
        "expected_maximum",
        "load_english_encoder",
        "load_lexicon",
        "load_vocabulary",
        "read_version",
        "terms_of",
    }
    cached = {
        node.name
        for file in Path(mama_structs.__file__).parent.rglob("*.py")
        # Parse only files with caches, because parsing all takes seconds.
        if "@functools." in file.read_text(encoding="utf-8")
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef) and node.args.args
        for decorator in node.decorator_list
        if re.match(r"functools\.(cache|lru_cache)\b", ast.unparse(decorator))
    }

    assert others == cached, "use `cache_by_text` for data of memories"


@pytest.mark.parametrize("engines", [lambda: None, PlainEngines], ids=["embedded", "plain"])
async def test_erasing_a_reason_keeps_decision_and_outcome(tmp_path, engines):
    """The decision keeps its outcome without this reason. Its other reasons stay."""
    place = opened(tmp_path, engines=engines())
    store = await place.memories()
    decision = await store.save_decision("one vault", topic="storage", reasoning="cheap")
    await store.set_outcome(decision.id, "PARTIAL", reason="too small")
    await store.set_outcome(decision.id, "FAILED", reason=SECRET)
    (reason,) = [hit.memory for hit in await store.search(SECRET) if hit.memory.content == SECRET]
    receipt = await store.erase(reason.id)
    left = (await store.get(decision.id)).metadata

    assert ({"context": 1}, 2) == (receipt.memories, await store.count())
    assert ("FAILED", None) == (left.outcome, left.outcome_reason)
    assert ["too small", None] == [change.reason for change in left.history]
    assert [] == await place.findings()
    await place.close()
    assert [] == files_with(tmp_path, *WORDS)


@IN_FILES
async def test_data_held_by_reader_is_pending_until_next_maintenance(tmp_path):
    """The reading process is reported. The next maintenance or opening finishes the deletion."""
    async with filled(tmp_path) as (place, store, secret):
        reader = sqlite3.connect(tmp_path / "journal" / "cache.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM Cache").fetchone()
        receipt = await store.erase(secret.id)
        held = files_with(tmp_path, *WORDS)
        await admin.maintain(store)
        still = files_with(tmp_path, *WORDS)
        await backup(tmp_path, tmp_path.with_name("copy"))
        copied = files_with(tmp_path.with_name("copy"), *WORDS)
        with pytest.raises(MemoryNotFound):
            await store.get(secret.id)
        reader.close()
        await admin.maintain(store)
        after = files_with(tmp_path, *WORDS)
        findings = await place.findings()

    assert (JOURNAL_HELD_MESSAGE,) == receipt.pending
    assert held
    assert held == still
    assert ([], [], []) == (copied, after, findings)


@IN_FILES
async def test_close_finishes_pending_erasure(tmp_path):
    """Closing the store checks for pending erasures."""
    other = OpenedDirectory.open(tmp_path, embedder=SMALL, settings=QUIET)
    async with filled(tmp_path) as (_, store, secret):
        reader = sqlite3.connect(tmp_path / "journal" / "cache.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM Cache").fetchone()
        await other.memories()
        receipt = await store.erase(secret.id)
        reader.close()
        await other.close()
        after = files_with(tmp_path, *WORDS)

    assert (JOURNAL_HELD_MESSAGE,) == receipt.pending
    assert [] == after


@IN_FILES
async def test_views_being_written_are_pending(tmp_path):
    """A snapshot in progress may contain the old state, so it is deleted later."""
    settings = attrs.evolve(QUIET, snapshot_every=20)
    async with filled(tmp_path, settings=settings) as (_, store, secret):
        await store._engine.snapshot()
        (folder,) = (tmp_path / "views").iterdir()
        assert any(name.endswith(".npy") for name in files_with(tmp_path, *WORDS))
        lock = LockFile.open(folder / LOCK_FILE)
        lock.try_lock(0)
        receipt = await store.erase(secret.id)
        lock.close()
        again = await store.erase(where=Filter(topic="nothing at all"))
        after = files_with(tmp_path, *WORDS)

    assert (VIEWS_HELD_MESSAGE,) == receipt.pending
    assert ((), []) == (again.pending, after)


@IN_FILES
async def test_other_process_writes_no_view_with_erased_data(tmp_path):
    """A process with the data in its views processes the deletion, so its later snapshots do not contain it."""
    settings = attrs.evolve(QUIET, snapshot_every=20)
    async with filled(tmp_path, settings=settings) as (_, store, secret):
        other = OpenedDirectory.open(tmp_path, embedder=SMALL, settings=settings)
        theirs = await other.memories()
        assert secret == await theirs.get(secret.id)
        await store.erase(secret.id)
        await theirs.save_many([{"type": "context", "content": f"later {number}"} for number in range(40)])
        await theirs._engine.snapshot()
        views = list((tmp_path / "views").rglob("*.npy"))
        after = files_with(tmp_path, *WORDS)
        findings = await other.findings()
        await other.close()

    assert views
    assert ([], []) == (after, findings)


async def test_large_erase_lets_other_saves_run_in_between(tmp_path, monkeypatch):
    """Many memories are deleted in many transactions, and concurrent saves do not wait for all of them."""
    for module in ("local.engine", "postgres.writer"):
        monkeypatch.setattr(f"mama_structs.memory.engines.{module}.MAX_TRANSACTION_SECONDS", 0)
    async with filled(tmp_path, count=30) as (_, store, _secret):
        told, between = [], []

        def tell(done, total):
            told.append((done, total))
            if done == 3:
                between.append(asyncio.ensure_future(store.save_context("in between")))
                between[0].add_done_callback(lambda _saved: told.append("saved"))

        receipt = await store.erase(where=Filter(until=datetime.now(UTC) + timedelta(days=1)), progress=tell)
        left = await store.list()

    assert [(done, 34) for done in range(1, 35)] == [one for one in told if one != "saved"]
    assert told.index("saved") < 8
    assert 34 == receipt.count
    assert ["in between"] == [memory.content for memory in left]


@IN_FILES
async def test_opening_finishes_erasure_after_kill_at_any_point(tmp_path, monkeypatch):
    """The state after every transaction and every cleanup step is completed by the next opening."""
    path, images = tmp_path / "store", tmp_path / "images"
    images.mkdir()
    monkeypatch.setattr("mama_structs.memory.engines.local.engine.MAX_TRANSACTION_SECONDS", 0)
    settings = attrs.evolve(QUIET, snapshot_every=20)
    async with filled(path, settings=settings, count=25) as (_, store, secret):
        notes = await store.save_decision("leave it", topic="Quokkafish", reasoning="quiet")
        await store.save_checkpoint("All that was spoken of yesterday in the long meeting is in", next_steps=[notes.id])

        def image(*_args):
            shutil.copytree(path, images / f"{len(list(images.iterdir())):02}")

        for owner, name in (
            (SqliteRows, "commit"),
            (connection, "_vacuum"),
            (connection, "_truncate_wal"),
            (SnapshotStore, "clear"),
        ):
            real = getattr(owner, name)

            def stopping(*args, real=real, **options):
                image()
                result = real(*args, **options)
                image()
                return result

            monkeypatch.setattr(owner, name, stopping)
        await store.erase([secret.id, notes.id])
        monkeypatch.undo()
    begun, outcomes = False, []
    for copied in sorted(images.iterdir()):
        place = OpenedDirectory.open(copied, embedder=SMALL, settings=settings)
        store = await place.memories()
        await admin.maintain(store)
        gone = not {secret.id, notes.id} & {memory.id for memory in await store.list(limit=100)}
        assert gone or not begun, "what was begun is finished"
        assert gone is (files_with(copied, *WORDS) == [])
        assert [] == [one for one in await place.findings() if one.kind != "lost"]
        begun |= gone
        outcomes.append(gone)
        await place.close()

    assert [False, True] == sorted(set(outcomes))
    assert len(outcomes) > 15


KILLED = """
import asyncio, os, signal, sys
from mama_structs import Filter, HashEmbedder, Session
from mama_structs.storage import connection

async def main():
    session = await Session.open(sys.argv[1], embedder=HashEmbedder(dimensions=64))
    connection._truncate_wal = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    await session.memories.erase(where=Filter(topic="Quokkafish"))

asyncio.run(main())
"""


async def test_next_session_finishes_erasure_of_killed_process(tmp_path):
    """If the process is killed before the disk cleanup, the next opening removes the data from disk."""
    path = tmp_path / "agent.mama"
    async with Session.open(path, embedder=SMALL, settings=SETTINGS) as session:
        await session.memories.save_decision(SECRET, topic="Quokkafish", reasoning="quiet")
        await session.memories.save_context("kept")
    command, environment = [sys.executable, "-c", KILLED, str(path)], {**os.environ, "PYTHONPATH": PATHS}
    killed = await asyncio.to_thread(subprocess.run, command, check=False, env=environment)
    left = files_with(path, *WORDS)
    async with Session.open(path, embedder=SMALL, settings=SETTINGS) as session:
        after = files_with(path, *WORDS)
        kept = [memory.content for memory in await session.memories.list()]

    assert -signal.SIGKILL == killed.returncode
    assert left
    assert ([], ["kept"]) == (after, kept)


async def test_evidence_in_conversation_open_elsewhere_is_pending(tmp_path):
    """
    Its text is deleted once the conversation is closed.

    A text that another memory refers to stays in both places.
    """
    path = tmp_path / "agent.mama"
    async with Session.open(path, embedder=SMALL, settings=SETTINGS, conversation="talk") as session:
        session.refs.put("plan", SECRET)
        session.refs.put("shared", "a plan of both")
        memory = await session.memories.save_decision(
            "one", topic="a", reasoning="x", evidence=["ref:plan", "ref:shared"]
        )
        await session.memories.save_decision("two", topic="b", reasoning="y", evidence=["ref:shared"])
    locks = DirectoryLocks(path)
    locks.claim(ConversationKey("default", "talk").lock_name)
    async with Session.open(path, embedder=SMALL, settings=SETTINGS) as session:
        receipt = await session.memories.erase(memory.id)
        held = files_with(path, *WORDS)
        locks.close()
        await admin.maintain(session)
        after = files_with(path, *WORDS)
    async with Session.open(path, embedder=SMALL, settings=SETTINGS, conversation="talk") as session:
        shared = session.refs.get("ref:shared").text

    assert ((CONVERSATION_OPEN_MESSAGE,), 1) == (receipt.pending, receipt.evidence_texts)
    assert held
    assert ([], "a plan of both") == (after, shared)


async def test_erase_deletes_descriptors_of_tool_results(tmp_path):
    """
    Long texts that a model read, extracts and their sources are deleted.

    Descriptors of the user stay.
    """
    path = tmp_path / "agent.mama"
    long = "\n".join(f"line {number} on the Quokkafish vault" for number in range(400))
    async with Session.open(path, embedder=SMALL, settings=SETTINGS, conversation="talk") as session:
        memories, refs = session.memories, session.refs
        await keep_traces(session._shared.home.storage)
        await session.observe('<ref id="plan" title="Quokkafish">the Quokkafish plan</ref>')
        decision = await memories.save_decision("Quokkafish", topic="storage", reasoning=long, evidence=["ref:plan"])
        checkpoint = await memories.save_checkpoint(long)
        await session.call("load/checkpoint")
        await session.call("load/context", {"id": decision.id})
        await session.call("read_fd", {"fd": "fd:2", "extract_to_new_fd": True})
        await session.call("search/recent", {"limit": 50}, max_chars=100)
        # Suppress the deprecation warning, which is issued only once per process.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            await session.call("load_checkpoint")
        await session.wrap({"rows": [f"{decision.id} is remembered"] * 500})
        pasted = refs.add(f"as {decision.id.replace('quokkafish', 'x')} says", source="user_input").handle
        kept = [one.handle for one in refs.list_descriptors()]
        # The row of a deleted descriptor still contains the descriptor's source.
        refs.delete(kept[0])
        await session.flush()
        nothing = [await memories.erase(where=Filter(topic="nothing"), dry_run=dry) for dry in (True, False)]
        dry = await memories.erase([decision.id, checkpoint.id], dry_run=True)
        receipt = await memories.erase([decision.id, checkpoint.id])
        after = files_with(path, *WORDS)
        left = [one.handle for one in refs.list_descriptors()]

    assert len(kept) > 5
    assert [(0, 0), (0, 0)] == [(one.count, one.refs) for one in nothing]
    assert (len(kept) - 1, ()) == (receipt.refs, receipt.pending)
    assert receipt == attrs.evolve(dry, dry_run=False)
    assert ([pasted], []) == (left, after)


async def test_erase_removes_id_from_links_between_other_memories(tmp_path):
    """Reasons, tags and words of a link lose the id, and the link stays."""
    place = opened(tmp_path)
    store = await place.memories()
    gone = await store.save_decision("leave it", topic="Quokkafish", reasoning="quiet")
    one, other = await store.save_context("one thing"), await store.save_insight("another thing")
    await store.link(other.id, one.id, "explains", reason=f"as {gone.id} said", tags=[gone.id, "kept"])
    receipt = await store.erase(gone.id)
    (link,) = await store.links(one.id)

    assert (1, ()) == (receipt.updated_memories, receipt.pending)
    assert (other.id, one.id, "explains") == (link.from_id, link.to_id, link.metadata.original_relationship)
    assert ("as forgotten said", ("forgotten", "kept")) == (link.metadata.reason, link.metadata.tags)
    assert [] == await place.findings()
    await place.close()
    assert [] == files_with(tmp_path, *WORDS)


@pytest.mark.of_the_directory("a server decodes every memory")
async def test_search_in_stored_bytes_finds_same_mentions_as_search_in_decoded_memories(tmp_path, monkeypatch):
    """Mentions in texts, extra data, evidence, links and histories, next to characters that JSON escapes."""
    place, dice = opened(tmp_path), random.Random(36)
    store = await place.memories()
    ids = [(await store.save_context(text)).id for text in (*WORDS, 'a "quoted" \\ name', "\u2028 \0 line", "1 2_3")]
    frames = ['"{}"', "\\{}\\", "{}\n", "é{}é", "_{}_", "{}x", "1{}", "{}_1234567890_abcd", "\U0001f512{}\u2028"]
    records = RecordStore(store._shared)
    for number, memory_id in enumerate(ids * 4):
        text = f"{number} {dice.choice(frames).format(memory_id)} {dice.choice(frames).format(dice.choice(ids))}"
        place_of_text = number % 4
        saved = await store.save_context(
            text if place_of_text == 0 else f"note {number}",
            extra={text: [text]} if place_of_text == 1 else {},
            evidence=[memory_id, text] if place_of_text == 2 else [],
        )
        if place_of_text == 3:
            await store.link(saved.id, dice.choice(ids), "explains", reason=text)
    for number in range(12):
        await records.put(
            ("labels",), "key", {"text": ids[0] if number == 1 else number}, text=f"version {number}", keep_history=True
        )
    engine, decoded = store._shared.engine, []
    get_stored = JournalReader.get_stored
    monkeypatch.setattr(
        JournalReader, "get_stored", lambda self, nodes: decoded.extend(nodes) or get_stored(self, nodes)
    )
    asked = [[one] for one in ids] + [dice.sample(ids, 3) for _ in range(6)]
    found = [await erasure._find_mentioning(engine, some) for some in asked]
    decoded_count = len(decoded)
    monkeypatch.setattr(JournalReader, "filter_stored", Reader.filter_stored)
    expected = [await erasure._find_mentioning(engine, some) for some in asked]
    await place.close()

    assert expected == found
    assert all(found)
    assert decoded_count < len(decoded) / 3


@pytest.mark.parametrize("engines", [lambda: None, PlainEngines], ids=["embedded", "plain"])
@pytest.mark.parametrize("gone", [[1], [2], [1, 2], [2, 1], [0], [3], [0, 2, 3]])
async def test_erasing_middle_of_chain_keeps_rest_superseded(tmp_path, engines, gone):
    """Only the newest memory stays current, whether the middle ones are erased together or one by one."""
    place = opened(tmp_path, engines=engines())
    store = await place.memories()
    chain = [await store.save_decision("use tokens", topic="auth", reasoning="cheap")]
    chain += [await store.supersede(chain[-1].id, "use sessions", reasoning="safe")]
    chain += [await store.supersede(chain[-1].id, "use keys", reasoning="fast")]
    chain += [await store.supersede(chain[-1].id, "use passes", reasoning="new")]
    dry = await store.erase([chain[place].id for place in gone], dry_run=True)
    receipt = await store.erase([chain[place].id for place in gone])
    left = [memory.id for number, memory in enumerate(chain) if number not in gone]
    hits = {hit.memory.id: hit.superseded_by for hit in await store.search("use")}

    assert receipt == attrs.evolve(dry, dry_run=False)
    assert {one: None if one == left[-1] else left[-1] for one in left} == hits
    assert left[::-1] == [memory.id for memory in await store.history(left[0])]
    assert [] == await place.findings()
    await place.close()


async def test_damaged_conversation_is_pending_and_does_not_block_opening(tmp_path):
    """If the references of a damaged row are unknown, no text is deleted, and the receipt reports it."""
    path = tmp_path / "agent.mama"
    async with Session.open(path, embedder=SMALL, settings=SETTINGS, conversation="other") as session:
        session.refs.put("x", "of no interest")
        await session.fork("fork").close()
    connection = sqlite3.connect(path / "journal" / "cache.db")
    connection.execute("UPDATE Cache SET value = zeroblob(30) WHERE key GLOB '*/other' OR key GLOB 'refs/other/*'")
    connection.commit()
    connection.close()
    async with Session.open(path, embedder=SMALL, settings=SETTINGS) as session:
        session.refs.put("plan", SECRET)
        memory = await session.memories.save_decision("one", topic="a", reasoning="x", evidence=["ref:plan"])
        receipt = await session.memories.erase(memory.id)
    async with Session.open(path, embedder=SMALL, settings=SETTINGS) as session:
        again = await session.memories.erase([])
        count = await session.memories.count()

    assert ((CONVERSATION_DAMAGED_MESSAGE,), (CONVERSATION_DAMAGED_MESSAGE,), 0) == (
        receipt.pending,
        again.pending,
        count,
    )


async def test_erase_removes_ids_from_recall_logs(tmp_path):
    """
    Also from those of closed conversations, dialogues and forks, and the ids of deleted memories.

    The other facts are not recalled again. A process that had a conversation open does not write an id again.
    """
    path = tmp_path / "agent.mama"
    ask = "What is known of the Quokkafish, and of the vault of gold?"
    async with Session.open(path, embedder=SMALL, settings=SETTINGS, conversation="closed") as session:
        memories = session.memories
        deleted = await memories.save("The Quokkafish sleeps", topic="sleep")
        secret = await memories.save_decision("Use the Quokkafish vault", topic="Quokkafish", reasoning="x")
        await memories.set_outcome(secret, "FAILED", reason="y")
        successor = await memories.supersede(secret, "Use the vault of the Quokkafish", reasoning="z")
        kept = await memories.save("The vault of gold is kept", topic="vault")
        await session.recall(ask)
        await session.recall(ask, conversation="dialogue")
        await session.fork("fork").close()
    async with Session.open(path, embedder=SMALL, settings=SETTINGS, conversation="open") as session:
        memories, storage = session.memories, session._shared.home.storage
        await keep_traces(storage)
        await session.recall(ask)
        log = session._conversation.recall_log
        log.record([RecalledFact(subject="deleted", state="", ids=(deleted.id,))])
        log.record([RecalledFact(subject="a conflict", state="", ids=(kept.id, successor.id))])
        log.record([RecalledFact(subject="outdated", state="", ids=(kept.id,), successor_id=successor.id)])
        await session.flush()
        named = [await storage.read(await storage.keys("told/"))]
        elsewhere = RecallLog.from_rows({key.rpartition("/")[2]: row for key, row in named[0].items()}, dict)
        await memories.delete(deleted)
        receipt = await memories.erase([secret.id, successor.id])
        named.append(await storage.read(await storage.keys("told/")))
        written = {}
        elsewhere.copy(written.update)
        held = files_with(path, "quokkafish")
        again = await session.recall(ask, explain=True)

    ids = [one.id.encode() for one in (deleted, secret, successor, kept)]
    before, after = ([sum(one in row for row in rows.values()) for one in ids] for rows in named)
    assert [1, 3, 8, 5] == before
    assert ([0, 0, 0, 4], [], ()) == (after, held, receipt.pending)
    assert named[0].keys() == named[1].keys()
    assert b"quokkafish" not in b"".join(written.values())
    assert {(), (kept.id,)} == {one.ids for one in log.facts()}
    assert ["already recalled"] == [one.reason for one in again.left_out]


async def test_open_conversation_without_erased_data_is_not_pending(tmp_path):
    """Only conversations that contain some of the data are reported."""
    path = tmp_path / "agent.mama"
    async with Session.open(path, embedder=SMALL, settings=SETTINGS, conversation="talk") as session:
        session.refs.put("plan", "of no interest")
        memory = await session.memories.save_decision(SECRET, topic="a", reasoning="x")
    locks = DirectoryLocks(path)
    locks.claim(ConversationKey("default", "talk").lock_name)
    async with Session.open(path, embedder=SMALL, settings=SETTINGS) as session:
        receipt = await session.memories.erase(memory.id)
        after = files_with(path, *WORDS)
    locks.close()

    assert ((), []) == (receipt.pending, after)


@pytest.mark.of_the_directory("a server has further places that an erasure does not reach")
async def test_out_of_scope_of_directory_lists_no_place_of_a_server(tmp_path):
    async with filled(tmp_path) as (_, store, secret):
        preview = await store.erase(secret, dry_run=True)
        report = await store.erase(secret)
        repeated = await store.erase(where=Filter(topic="no such topic"))

    assert preview.out_of_scope == report.out_of_scope == repeated.out_of_scope
    assert "backups that were made before" in report.out_of_scope
    assert not any("server" in place or "write-ahead" in place for place in report.out_of_scope)
