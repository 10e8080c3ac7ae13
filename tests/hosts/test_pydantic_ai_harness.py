"""A session in Pydantic AI's harness: agents driven by scripted models."""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_helpers import frameworks_loaded_by
from hypothesis import given, settings
from hypothesis import strategies as st

from mama_structs import HashEmbedder, Session, Settings
from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedding.factory import as_embedder
from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.settings import DescriptorSettings
from mama_structs.testing.scripted_model import ModelTurn, ScriptedModel

pytest.importorskip("pydantic_ai_harness")

from pydantic_ai import Agent, models
from pydantic_ai.messages import (
    BinaryContent,
    CompactionPart,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)
from pydantic_ai_harness.memory import (
    Memory,
    MemoryConflictError,
    MemoryOperation,
    MemoryOperationConflictError,
    MemoryStore,
    MetadataMemoryStore,
    SearchableMemoryStore,
)
from pydantic_ai_harness.step_persistence.conversations import (
    ConversationConflict,
    ConversationSummary,
    SqliteConversationStore,
)
from pydantic_ai_harness.tool_output_limits import Band, OverflowStore, Spill, ToolOutputLimits, Truncate

from mama_structs.adapters import pydantic_ai_harness as harness

REDIS = "Keep login sessions in Redis"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", False)


@pytest.fixture
async def session(tmp_path):
    async with Session.open(tmp_path / "agent.mama", embedder=HashEmbedder()) as session:
        yield session


@pytest.fixture
async def again(session, tmp_path):
    """A second session on the directory, like the session of another process."""
    async with Session.open(tmp_path / "agent.mama", conversation="another", embedder=HashEmbedder()) as again:
        yield again


def texts(result: Any) -> list[str]:
    return [str(part.content) for one in result.all_messages() for part in one.parts if hasattr(part, "content")]


# Memory


async def search(store: Any, query: str, prefix: str = "", **bounds: int) -> Any:
    asked = {"limit": 10, "max_files": 100, "max_chars": 4_000, "max_file_chars": 65_536}
    return await store.search(prefix, query, **asked | bounds)


async def test_memory_store_implements_protocols_of_harness(session):
    """The harness detects the features of a store by isinstance."""
    store = harness.memory_store(session)

    for protocol in (MemoryStore, MetadataMemoryStore, SearchableMemoryStore):
        assert isinstance(store, protocol)
    assert isinstance(harness.overflow_store(session), OverflowStore)


async def test_memory_store_concurrent_write_raises_conflict(session, again):
    """Of two processes that write over the same version one succeeds, and the other gets a conflict."""
    stores = [harness.memory_store(one) for one in (session, again)]
    created = await stores[0].write("main.md", "first", expected_version=None)
    outcomes = await asyncio.gather(
        *(store.write("main.md", str(at), expected_version=created.version) for at, store in enumerate(stores)),
        return_exceptions=True,
    )

    assert [MemoryConflictError] == [type(one) for one in outcomes if isinstance(one, Exception)]


async def test_memory_store_applies_concurrent_operation_once(session, again):
    """Of two processes with the same operation one applies it, and both get the same version."""
    operation = MemoryOperation(id="run:call", fingerprint="write")
    done = await asyncio.gather(
        *(
            harness.memory_store(one).write("main.md", "one", expected_version=None, operation=operation)
            for one in (session, again)
        )
    )

    assert [False, True] == sorted(one.replayed for one in done)
    assert 1 == len({one.version for one in done})
    with pytest.raises(MemoryOperationConflictError):
        await harness.memory_store(session).delete(
            "main.md", expected_version=None, operation=replace(operation, fingerprint="delete")
        )


STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "stale", "delete", "read"]), st.sampled_from(["a.md", "d/a.md", "d/e/b"])),
    max_size=12,
)


@settings(max_examples=30)
@given(steps=STEPS)
async def test_memory_store_behaves_like_a_dict_with_new_versions(steps):
    """After any writes and deletions, reads and lists equal a dict, and versions are never reused."""
    files: dict[str, tuple[str, str]] = {}
    versions: list[str] = []
    async with Session.open(embedder=HashEmbedder()) as session:
        store = harness.memory_store(session)
        for number, (step, path) in enumerate(steps):
            present = files.get(path, (None, None))[1]
            if step == "write":
                done = await store.write(path, f"text {number}", expected_version=present)
                assert (path in files) == done.existed
                versions.append(done.version)
                files[path] = (f"text {number}", done.version)
            elif step == "stale":
                old = next((one for one in versions if one != present), "0" if present is None else None)
                with pytest.raises(MemoryConflictError):
                    await store.write(path, "stale", expected_version=old)
            elif step == "delete":
                assert (path in files) == (await store.delete(path, expected_version=present)).existed
                files.pop(path, None)
            read = await store.read(path, max_chars=100)
            assert files.get(path) == (None if read is None else (read.content, read.version))
        listed = await store.list_paths(limit=100)
        below = await store.list_paths("d/", limit=1)

    assert sorted(files) == listed
    assert [path for path in sorted(files) if path.startswith("d/")][:1] == below
    assert len(versions) == len(set(versions))


async def test_memory_store_returns_metadata_of_last_write(session):
    """Without metadata in the last write there is none."""
    store = harness.memory_store(session)
    first = await store.write_with_metadata("a.md", "one", expected_version=None, metadata={"by": "ada"})
    kept = (await store.read("a.md", max_chars=9)).metadata
    await store.write("a.md", "two", expected_version=first.version)

    assert {"by": "ada"} == kept
    assert (await store.read("a.md", max_chars=9)).metadata is None
    with pytest.raises(InvalidArgument):
        await store.write_with_metadata("b.md", "x", expected_version=None, metadata={"by": 1})


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "../a", "a/./b", "a b", "ä", "a" * 201, None])
async def test_memory_store_rejects_invalid_path(session, path):
    """A path that the harness would reject is rejected, and nothing is written."""
    with pytest.raises(InvalidArgument):
        await harness.memory_store(session).write(path, "x", expected_version=None)

    assert [] == await session.records.list()


def by_topic(texts: list[str], **_kind: Any) -> Any:
    """Embed texts by topic: vehicles, food, or neither."""
    topics = ({"car", "automobile", "engine"}, {"noodles", "soup"})
    counts = [[float(len(topic & {*re.findall(r"\w+", text.casefold())})) for topic in topics] for text in texts]
    return np.array([[*found, float(not any(found))] for found in counts], np.float32)


async def test_memory_search_finds_by_words_and_meaning(tmp_path):
    """A file with the word ranks above a hit by meaning, and unrelated files are not found."""
    embedder = as_embedder(by_topic, name="topics", dimensions=3, calibration=Calibration(midpoint=0.5, slope=10.0))
    async with Session.open(tmp_path, embedder=embedder) as session:
        store = harness.memory_store(session)
        await store.write("agent/garage.md", "The automobile needs a new engine", expected_version=None)
        await store.write("agent/kitchen.md", "Ada likes plain noodles in her soup", expected_version=None)
        await store.write("agent/words.md", "The car stands outside", expected_version=None)
        await store.write("other/garage.md", "Another automobile", expected_version=None)
        found = await search(store, "car", "agent/")

    assert ["agent/words.md", "agent/garage.md"] == [one.path for one in found.matches]
    assert found.matches[0].score > found.matches[1].score


@settings(max_examples=30)
@given(
    files=st.dictionaries(st.text("abc", min_size=1, max_size=3), st.text("abc xy.", max_size=40), max_size=6),
    query=st.text("abc x", max_size=6),
    bounds=st.fixed_dictionaries(
        {name: st.integers(0, 30) for name in ("limit", "max_files", "max_chars", "max_file_chars")}
    ),
)
async def test_memory_search_respects_limits(files, query, bounds):
    """Matches, files and characters are limited, snippets are parts of their files, and truncation is reported."""
    async with Session.open(embedder=HashEmbedder()) as session:
        store = harness.memory_store(session)
        for path, text in files.items():
            await store.write(f"scope/{path}", text, expected_version=None)
        found = await search(store, query, "scope/", **bounds)

    assert bounds["limit"] >= len(found.matches)
    assert bounds["max_files"] >= found.scanned
    assert bounds["max_chars"] >= sum(len(one.path) - len("scope/") + len(one.snippet) for one in found.matches)
    for one in found.matches:
        assert one.snippet.strip(".") in files[one.path.removeprefix("scope/")][: bounds["max_file_chars"]]
    if found.scanned < len(files) and query.split() and all(bounds.values()):
        assert found.truncated


async def test_memory_file_is_recalled_with_origin_model(session):
    """The session's own recall finds the contents of a file until it is deleted."""
    store = harness.memory_store(session)
    written = await store.write("main/MEMORY.md", REDIS, expected_version=None)
    [hit] = await session.memories.search("login sessions")
    recalled = await session.recall("Where do we keep login sessions?")
    await store.delete("main/MEMORY.md", expected_version=written.version)

    assert "model" == hit.memory.origin
    assert REDIS in recalled.text
    assert [] == await session.memories.search("login sessions")


async def test_memory_file_of_one_agent_is_injected_into_next_run(session, again):
    """A memory that a model saves with the harness's tool is in the first request of another agent's run."""

    def saves() -> Any:
        yield "write_memory", {"content": f"- {REDIS}", "file": "MEMORY.md"}
        yield "Noted."

    await Agent(ScriptedModel(saves()).pydantic_ai(), capabilities=[Memory(store=harness.memory_store(session))]).run(
        "We keep login sessions in Redis"
    )
    shown: list[str] = []

    def looks(request: Any) -> str:
        shown.append(str(request.messages))
        return "In Redis."

    await Agent(ScriptedModel(looks).pydantic_ai(), capabilities=[Memory(store=harness.memory_store(again))]).run("Hi")

    assert REDIS in shown[0]


# Overflow of long tool results


@settings(max_examples=50)
@given(data=st.binary(max_size=200) | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
async def test_overflow_store_returns_bytes_unchanged(data):
    """Text and binary data are returned as written."""
    async with Session.open(embedder=HashEmbedder()) as session:
        store = harness.overflow_store(session)

        assert data == await store.read(await store.write("run/call.0", data))


@pytest.mark.parametrize("handle", ["fd:9", "ref:none", "run/call.0", ""])
async def test_overflow_store_unknown_handle_raises_file_not_found(session, handle):
    """The harness reports it to the model, and the run continues."""
    with pytest.raises(FileNotFoundError):
        await harness.overflow_store(session).read(handle)


async def test_overflow_store_handle_works_in_both_tools(session, tmp_path):
    """The tools of the harness and of the session read the same handle, also after reopening the session."""

    def rows() -> str:
        """Return many rows."""
        return "\n".join(f"row {number}" for number in range(2_000))

    def reads() -> Any:
        spilled = yield "rows", {}
        handle = spilled.results[-1].partition("stored to handle '")[2].partition("'")[0]
        found = yield "read_tool_result", {"handle": handle, "pattern": "row 1999"}
        yield f"{handle} {found.results[-1].splitlines()[-1]}"

    limits = ToolOutputLimits(bands=[Band(over=5_000, action=Spill())], store=harness.overflow_store(session))
    result = await Agent(ScriptedModel(reads()).pydantic_ai(), tools=[rows], capabilities=[limits]).run("Count")
    handle, _, last = result.output.partition(" ")
    name = session.conversation
    await session.close()
    async with Session.open(tmp_path / "agent.mama", conversation=name, embedder=HashEmbedder()) as reopened:
        whole = await harness.overflow_store(reopened).read(handle)

    assert "row 1999" == last
    assert rows() == whole.decode()


async def test_overflow_store_falls_back_when_quota_is_exceeded(tmp_path):
    """The run continues: the result is truncated, as the harness is configured."""
    small = Settings(descriptors=DescriptorSettings(max_bytes=1_000))
    async with Session.open(tmp_path, embedder=HashEmbedder(), settings=small) as session:
        spill = Band(over=5_000, action=Spill(then=Truncate()))
        limits = ToolOutputLimits(bands=[spill], store=harness.overflow_store(session))

        def letters() -> str:
            """Return many letters."""
            return "a" * 50_000

        def reads() -> Any:
            cut = yield "letters", {}
            yield str(len(cut.results[-1]))

        result = await Agent(ScriptedModel(reads()).pydantic_ai(), tools=[letters], capabilities=[limits]).run("Read")

    assert 50_000 > int(result.output)


# Conversations


def said(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)], timestamp=datetime(2026, 1, 1, tzinfo=UTC))


def answered(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)], timestamp=datetime(2026, 1, 1, tzinfo=UTC))


HISTORIES = st.lists(
    st.lists(st.text(max_size=5).map(said) | st.text(max_size=5).map(answered), max_size=4), min_size=1, max_size=5
)


@settings(max_examples=25)
@given(histories=HISTORIES)
async def test_conversation_store_returns_last_saved_history(histories):
    """For any changes of a history between saves, the last one is returned."""
    async with Session.open(embedder=HashEmbedder()) as session:
        store = harness.conversation_store(session)
        summary = ConversationSummary(workspace="/a")
        for number, history in enumerate(histories, start=1):
            summary = await store.save(summary=summary, messages=history)
            saved = await store.get(conversation_id=summary.id)
            dumped = [ModelMessagesTypeAdapter.dump_json(one) for one in (history, saved.messages)]

            assert dumped[0] == dumped[1]
            assert (number, len(history)) == (saved.summary.revision, saved.summary.message_count)
            assert summary == saved.summary


async def test_conversation_store_writes_only_new_messages(session):
    """A save does not write stored messages again."""
    store = harness.conversation_store(session)
    image = ModelRequest(parts=[UserPromptPart([BinaryContent(b"\xff" * 70_000, media_type="image/png")])])
    summary = await store.save(summary=ConversationSummary(workspace="/a"), messages=[image])
    await store.save(summary=summary, messages=[image, answered("A cat \ud83d")])
    kept = await session.records.list(("pydantic-ai", "conversations", summary.id))
    loaded = await store.get(conversation_id=summary.id)

    assert [1, 1] == [one.version for one in kept]
    assert "A cat \ud83d" == loaded.messages[1].parts[0].content


async def test_conversation_store_concurrent_save_raises_conflict(session, again):
    """Of two processes that continue one revision one succeeds, and the other gets a conflict."""
    stores = [harness.conversation_store(one) for one in (session, again)]
    first = await stores[0].save(summary=ConversationSummary(workspace="/a"), messages=[])
    outcomes = await asyncio.gather(
        *(store.save(summary=first, messages=[said(str(at))]) for at, store in enumerate(stores)),
        return_exceptions=True,
    )
    won = next(at for at, one in enumerate(outcomes) if not isinstance(one, Exception))

    assert [ConversationConflict] == [type(one) for one in outcomes if isinstance(one, Exception)]
    assert str(won) == (await stores[0].get(conversation_id=first.id)).messages[0].parts[0].content


async def test_conversation_store_concurrent_name_and_save_both_succeed(session, again):
    """If one process names a conversation while another one saves it, the name and all tokens are stored."""
    first, second = (harness.conversation_store(one) for one in (session, again))
    summary = await first.save(summary=ConversationSummary(workspace="/a"), messages=[])
    await asyncio.gather(
        first.save(summary=summary, messages=[said("hello")]),
        *(store.name(source=summary, title="Late", tokens=1) for store in (first, second) * 3),
    )
    saved = await second.get(conversation_id=summary.id)

    assert (2, 6) == (saved.summary.revision, saved.summary.naming_tokens)


async def test_conversation_store_archive_ends_with_next_save(session):
    """Archived conversations are hidden by default and keep their first archive time; a save unarchives them."""
    store = harness.conversation_store(session)
    one = await store.save(summary=ConversationSummary(workspace="/a"), messages=[])
    archived = await store.set_archived(conversation_id=one.id, archived=True)
    twice = await store.set_archived(conversation_id=one.id, archived=True)
    lists = [await store.listing(archived=which) for which in (True, False, None)]
    await store.save(summary=archived, messages=[said("on")])

    assert archived == twice
    assert [1, 0, 1] == [len(one) for one in lists]
    assert [one.id] == [found.id for found in await store.listing(archived=False)]
    with pytest.raises(LookupError):
        await store.set_archived(conversation_id="none", archived=True)


async def test_conversation_store_delete_removes_all_messages(session):
    """No message remains, and other conversations are not affected."""
    store = harness.conversation_store(session)
    gone = await store.save(summary=ConversationSummary(workspace="/a"), messages=[said("secret")])
    kept = await store.save(summary=ConversationSummary(workspace="/a"), messages=[said("public")])
    await store.delete(source=gone)

    assert [kept.id] == [one.id for one in await store.listing()]
    assert not [one for one in await session.records.list() if "secret" in str(one.value)]
    assert "public" == (await store.get(conversation_id=kept.id)).messages[0].parts[0].content


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["save", "stale", "name", "manual", "archive", "delete"]), st.integers(0, 1)),
    max_size=14,
)


@settings(max_examples=20)
@given(operations=OPERATIONS)
async def test_conversation_store_matches_reference_store(operations):
    """In any order of saves, names, archivings and deletions both stores return the same."""

    def plain(outcome: Any) -> Any:
        if isinstance(outcome, ConversationSummary):
            is_archived = outcome.archived_at is not None
            return replace(outcome, updated_at=datetime(1, 1, 1, tzinfo=UTC), archived_at=None), is_archived
        return type(outcome) if isinstance(outcome, Exception) else outcome

    async def played(store: Any) -> list[Any]:
        outcomes: list[Any] = []
        known = [[ConversationSummary(id=f"number-{at}", workspace="/a")] for at in range(2)]
        for kind, which in operations:
            summaries = known[which]
            try:
                if kind in ("save", "stale"):
                    source = summaries[-1 if kind == "save" else 0]
                    outcome: Any = await store.save(summary=source, messages=[said(kind)] * len(summaries))
                    summaries.append(outcome)
                elif kind in ("name", "manual"):
                    outcome = await store.name(source=summaries[-1], title=kind, manual=kind == "manual", tokens=1)
                elif kind == "archive":
                    outcome = await store.set_archived(conversation_id=summaries[0].id, archived=True)
                else:
                    outcome = await store.delete(source=summaries[-1])
            except (ConversationConflict, LookupError) as error:
                outcome = error
            outcomes.append(plain(outcome))
        return [*outcomes, sorted(map(str, map(plain, await store.listing())))]

    with tempfile.TemporaryDirectory() as directory:
        async with Session.open(f"{directory}/agent.mama", embedder=HashEmbedder()) as session:
            ours = await played(harness.conversation_store(session))
        theirs = await played(SqliteConversationStore(database=Path(directory) / "sessions.db"))

    assert theirs == ours


# Recall


def quiet() -> Any:
    """Scripted model that answers without calls."""
    while True:
        yield "I do not know."


async def test_recall_adds_memories_without_tools(session):
    """Recalled text follows the user's message, each fact once; the model gets no tools."""
    await session.memories.save_decision(REDIS, topic="auth", reasoning="they can be revoked")
    offered = []

    def answers(request: Any) -> str:
        offered.append(len(request.tools))
        return "In Redis."

    agent = Agent(
        ScriptedModel(*[answers] * 2).pydantic_ai(), capabilities=[harness.recall_capability(session, max_chars=400)]
    )
    first = await agent.run("Where do we keep login sessions?")
    second = await agent.run("Where do we keep login sessions?", message_history=first.all_messages())

    assert [0, 0] == offered
    assert 1 == sum(REDIS in text for text in texts(first))
    assert 1 == sum(REDIS in text for text in texts(second))


async def test_recall_repeats_facts_after_compaction(session):
    """A compacted history has lost the recalled text: the next message gets it again, once."""
    await session.memories.save_decision(REDIS, topic="auth", reasoning="they can be revoked")
    agent = Agent(ScriptedModel(quiet()).pydantic_ai(), capabilities=[harness.recall_capability(session)])
    asked = "Where do we keep login sessions?"
    history = (await agent.run(asked)).all_messages()
    compacted = [*history, ModelResponse(parts=[CompactionPart(content="They talked.")])]
    second = await agent.run(asked, message_history=compacted)
    third = await agent.run(asked, message_history=second.all_messages())

    assert [2, 2] == [sum(REDIS in text for text in texts(one)) for one in (second, third)]


async def test_recall_repeats_facts_in_other_conversation(session):
    """A run without that history gets the facts as the first one did."""
    await session.memories.save_decision(REDIS, topic="auth", reasoning="they can be revoked")
    agent = Agent(ScriptedModel(quiet()).pydantic_ai(), capabilities=[harness.recall_capability(session)])
    runs = [await agent.run("Where do we keep login sessions?") for _ in range(2)]

    assert [1, 1] == [sum(REDIS in text for text in texts(one)) for one in runs]


async def test_recall_stores_refs_before_calls_run(session):
    """A call of the same answer can read the ref."""
    seen = []

    async def look() -> str:
        """Look something up."""
        seen.append(session.refs.get("ref:plan").content.text)
        return "done"

    def marks() -> Any:
        yield ModelTurn('<ref id="plan">shields first</ref>', [("look", {})])
        yield "Done."

    await Agent(
        ScriptedModel(marks()).pydantic_ai(), tools=[look], capabilities=[harness.recall_capability(session)]
    ).run("Plan")

    assert ["shields first"] == seen


def test_import_error_names_missing_extra(monkeypatch):
    """Without the harness the import error says what to install."""
    for name in [name for name in sys.modules if name.split(".")[0] == "pydantic_ai_harness"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith("mama_structs.adapters.pydantic_ai_harness")]:
        monkeypatch.delitem(sys.modules, name)

    with pytest.raises(ImportError, match=r"pip install 'mama-structs\[pydantic-ai-harness\]'"):
        importlib.import_module("mama_structs.adapters.pydantic_ai_harness")


def test_adapter_loads_no_other_framework():
    """Importing it loads Pydantic AI, but no other framework."""
    assert {"pydantic_ai", "pydantic_ai_harness"} == frameworks_loaded_by("pydantic_ai_harness") - {"openai", "mcp"}
