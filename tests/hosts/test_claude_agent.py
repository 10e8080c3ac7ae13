"""A session as the store and the hooks of the Claude Agent SDK, driven by a scripted command line."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import pytest
from host_helpers import frameworks_loaded_by
from hypothesis import given, settings
from hypothesis import strategies as st

from mama_structs import HashEmbedder, Session
from mama_structs.errors import InvalidArgument

pytest.importorskip("claude_agent_sdk")

from claude_agent_sdk import (
    ClaudeAgentOptions,
    InMemorySessionStore,
    Transport,
    delete_session_via_store,
    get_session_messages_from_store,
    list_sessions_from_store,
    list_subagents_from_store,
    query,
)
from claude_agent_sdk.testing import run_session_store_conformance
from mcp.server import Server

from mama_structs.adapters import claude_agent, mcp

KEY = {"project_key": "-work-app", "session_id": "11111111-1111-4111-8111-111111111111"}
REDIS = "Keep login sessions in Redis"


@pytest.fixture
async def session(tmp_path):
    async with Session.open(tmp_path / "agent.mama", embedder=HashEmbedder()) as session:
        yield session


def entry(**fields: Any) -> dict[str, Any]:
    return {"type": "user", **fields}


async def test_store_passes_all_contracts_of_the_sdk(tmp_path):
    """Each of the SDK's store contracts runs on its own namespace."""
    opened = []

    async def fresh() -> Any:
        name = f"contract-{len(opened)}"
        opened.append(await Session.open(tmp_path / "agent.mama", namespace=name, embedder=HashEmbedder()))
        return claude_agent.session_store(opened[-1])

    await run_session_store_conformance(fresh)

    for one in opened:
        await one.close()
    assert 10 < len(opened)


IDS = st.one_of(st.none(), st.sampled_from("abcde"), st.just("é" * 300), st.just(7))
BATCHES = st.lists(st.lists(st.tuples(IDS, st.integers()), max_size=4), max_size=6)


def as_entries(batch: list[tuple[Any, int]]) -> list[dict[str, Any]]:
    return [entry(n=number) if own is None else entry(uuid=own, n=number) for own, number in batch]


@settings(max_examples=25)
@given(batches=BATCHES)
async def test_append_stores_each_entry_once_in_order(batches):
    """For any split into appends by any process, an id is stored once, and no other entry is lost."""
    expected: list[dict[str, Any]] = []
    ids = set()
    for one in (one for batch in batches for one in as_entries(batch)):
        own = one.get("uuid")
        if not isinstance(own, str) or not own.isascii() or own not in ids:
            expected.append(one)
        ids.add(own)

    with tempfile.TemporaryDirectory() as directory:
        async with (
            Session.open(directory, conversation="one", embedder=HashEmbedder()) as first,
            Session.open(directory, conversation="two", embedder=HashEmbedder()) as second,
        ):
            stores = [claude_agent.session_store(one) for one in (first, second)]
            for number, batch in enumerate(batches):
                await stores[number % 2].append(KEY, as_entries(batch))
            loaded = await stores[0].load(KEY)

    assert (expected or None) == loaded


async def test_concurrent_appends_keep_all_entries_and_batch_order(tmp_path):
    """Stores of two processes append to one transcript concurrently; every batch is complete and in order."""
    async with (
        Session.open(tmp_path, conversation="one", embedder=HashEmbedder()) as first,
        Session.open(tmp_path, conversation="two", embedder=HashEmbedder()) as second,
    ):
        stores = [claude_agent.session_store(one) for one in (first, second)]
        batches = [[entry(batch=number, n=at) for at in range(3)] for number in range(12)]
        await asyncio.gather(*(stores[number % 2].append(KEY, batch) for number, batch in enumerate(batches)))
        loaded = await stores[0].load(KEY)

    runs = [loaded[at : at + 3] for at in range(0, len(loaded), 3)]
    assert batches == sorted(runs, key=lambda run: run[0]["batch"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25)
@given(values=st.lists(JSON | st.sampled_from(["\ud83d", "\0", "\r\n", 2**70]), min_size=1, max_size=5))
async def test_load_returns_entries_unchanged(values):
    """Any JSON is returned unchanged, including lone surrogates and NULs."""
    async with Session.open(embedder=HashEmbedder()) as session:
        store = claude_agent.session_store(session)
        entries = [entry(message=value) for value in values]
        await store.append(KEY, entries)

        assert entries == await store.load(KEY)


@settings(max_examples=25)
@given(titles=st.lists(st.text(max_size=8), min_size=1, max_size=6), cut=st.integers(0, 6))
async def test_summary_is_independent_of_append_batches(titles, cut):
    """The SDK's summary is the same for one append and for two, and the same as that of its own store."""
    entries = [entry(customTitle=title, message={"content": f"say {title}"}) for title in titles]
    reference = InMemorySessionStore()
    await reference.append(KEY, entries)
    [expected] = await reference.list_session_summaries(KEY["project_key"])

    async with Session.open(embedder=HashEmbedder()) as session:
        store = claude_agent.session_store(session)
        for batch in filter(None, (entries[:cut], entries[cut:])):
            await store.append(KEY, batch)
        [summary] = await store.list_session_summaries(KEY["project_key"])
        [listed] = await store.list_sessions(KEY["project_key"])

    assert expected["data"] == summary["data"]
    assert listed["mtime"] == summary["mtime"]


async def test_transcripts_are_not_searchable(session):
    """Neither search nor recall finds the text of a transcript."""
    await claude_agent.session_store(session).append(KEY, [entry(message={"content": REDIS})])

    assert 0 == await session.memories.count()
    assert [] == await session.memories.search(REDIS)
    assert not await session.recall(REDIS)


async def test_transcripts_are_durable(tmp_path):
    """A reopened session has the earlier transcripts, including those of subagents."""
    sub = {**KEY, "subpath": "subagents/agent-1"}
    async with Session.open(tmp_path, embedder=HashEmbedder()) as before:
        store = claude_agent.session_store(before)
        await store.append(KEY, [entry(uuid="a")])
        await store.append(sub, [entry(uuid="a", n=1)])
    async with Session.open(tmp_path, embedder=HashEmbedder()) as after:
        store = claude_agent.session_store(after)
        await store.append(KEY, [entry(uuid="a"), entry(uuid="b")])
        main, subagent = await store.load(KEY), await store.load(sub)

    assert [entry(uuid="a"), entry(uuid="b")] == main
    assert [entry(uuid="a", n=1)] == subagent


async def test_deleted_session_starts_again(session):
    """Ids and summary of a deleted transcript have no effect on a new one."""
    store = claude_agent.session_store(session)
    await store.append(KEY, [entry(uuid="a", customTitle="old")])
    await store.delete(KEY)
    await store.append(KEY, [entry(uuid="a")])

    assert [entry(uuid="a")] == await store.load(KEY)
    assert "custom_title" not in (await store.list_session_summaries(KEY["project_key"]))[0]["data"]


async def test_sdk_functions_list_read_and_delete_sessions(session):
    """The SDK's own functions work on the store."""
    store = claude_agent.session_store(session)
    said = entry(
        uuid="22222222-2222-4222-8222-222222222222",
        sessionId=KEY["session_id"],
        timestamp="2026-01-01T00:00:00.000Z",
        cwd="/work/app",
        message={"role": "user", "content": "hello"},
    )
    await store.append(KEY, [said])
    await store.append({**KEY, "subpath": "subagents/agent-1"}, [said])
    listed = await list_sessions_from_store(store, directory="/work/app")
    messages = await get_session_messages_from_store(store, KEY["session_id"], directory="/work/app")
    subagents = await list_subagents_from_store(store, KEY["session_id"], directory="/work/app")
    await delete_session_via_store(store, KEY["session_id"], directory="/work/app")

    assert ["hello"] == [one.summary for one in listed]
    assert ["hello"] == [one.message["content"] for one in messages]
    assert ["1"] == subagents
    assert await store.load(KEY) is None
    assert [] == await session.records.list(("claude-agent",))


async def test_invalid_key_is_rejected(session):
    """A transcript without a name is rejected before anything is written."""
    with pytest.raises(InvalidArgument):
        await claude_agent.session_store(session).append({**KEY, "subpath": ""}, [entry()])

    assert [] == await session.records.list(("claude-agent",))


# A scripted command line that replaces Claude Code


class ScriptedCommandLine(Transport):
    """A fake command line that follows the control protocol: it passes the prompt to the hooks, answers, and stops."""

    def __init__(self, projects: str, *answers: str) -> None:
        self._projects = projects
        self._answers = iter(answers)
        self._out: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._hooks: dict[str, list[str]] = {}
        self._turns: set[asyncio.Task[None]] = set()
        self.told: list[str] = []
        self.answered: list[dict[str, Any]] = []

    async def connect(self) -> None:
        """Do nothing: no process is started."""

    async def write(self, data: str) -> None:
        for line in data.splitlines():
            message = json.loads(line)
            if message["type"] == "control_response":
                response = message["response"]
                self._waiting.pop(response["request_id"]).set_result(response.get("response", response))
            elif message["type"] == "control_request":
                hooks = message["request"].get("hooks") or {}
                self._hooks = {
                    name: [one for each in all_ for one in each["hookCallbackIds"]] for name, all_ in hooks.items()
                }
                done = {"subtype": "success", "request_id": message["request_id"], "response": {}}
                self._out.put_nowait({"type": "control_response", "response": done})
            elif message["type"] == "user":
                turn = asyncio.create_task(self._turn(message["message"]["content"]))
                self._turns.add(turn)

    async def _asked(self, request: dict[str, Any]) -> dict[str, Any]:
        name = f"asked-{len(self._waiting)}-{id(request)}"
        self._waiting[name] = asyncio.get_running_loop().create_future()
        self._out.put_nowait({"type": "control_request", "request_id": name, "request": request})
        answer = await self._waiting[name]
        self.answered.append(answer)
        return answer

    async def _event(self, name: str, **fields: Any) -> None:
        for callback in self._hooks.get(name, ()):
            given = {"hook_event_name": name, "session_id": KEY["session_id"], **fields}
            answer = await self._asked({"subtype": "hook_callback", "callback_id": callback, "input": given})
            if text := answer.get("hookSpecificOutput", {}).get("additionalContext"):
                self.told.append(text)

    async def _turn(self, prompt: str) -> None:
        await self._event("UserPromptSubmit", prompt=prompt)
        answer = next(self._answers)
        said = {"role": "assistant", "model": "scripted", "content": [{"type": "text", "text": answer}]}
        self._out.put_nowait({"type": "assistant", "message": said, "session_id": KEY["session_id"]})
        entries = [entry(message={"role": "user", "content": prompt}), {"type": "assistant", "message": said}]
        path = f"{self._projects}/{KEY['project_key']}/{KEY['session_id']}.jsonl"
        self._out.put_nowait({"type": "transcript_mirror", "filePath": path, "entries": entries})
        await self._event("Stop", stop_hook_active=False, last_assistant_message=answer)
        self._out.put_nowait(
            {
                "type": "result",
                "subtype": "success",
                "duration_ms": 1,
                "duration_api_ms": 1,
                "is_error": False,
                "num_turns": 1,
                "session_id": KEY["session_id"],
                "result": answer,
            }
        )
        self._out.put_nowait(None)

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        while (message := await self._out.get()) is not None:
            yield message

    async def close(self) -> None:
        for turn in self._turns:
            turn.cancel()

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        """Do nothing: the script ends on its own."""


async def run(options: ClaudeAgentOptions, line: ScriptedCommandLine, prompt: str) -> list[Any]:
    return [message async for message in query(prompt=prompt, options=options, transport=line)]


@pytest.fixture
def options(session, tmp_path, monkeypatch):
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    return ClaudeAgentOptions(
        session_store=claude_agent.session_store(session), hooks=claude_agent.hooks(session, max_chars=500)
    )


async def test_hooks_recall_memories_and_store_refs(session, options, tmp_path):
    """In one run of the SDK the hook returns recalled text for the prompt, and the answer's refs are stored."""
    await session.memories.save_decision(REDIS, topic="auth", reasoning="they can be revoked")
    line = ScriptedCommandLine(f"{tmp_path}/claude/projects", 'In <ref id="place">Redis</ref>.')
    await run(options, line, "Where do we keep login sessions?")

    assert 1 == len(line.told)
    assert REDIS in line.told[0]
    assert 500 >= len(line.told[0])
    assert "Redis" == session.refs.get("ref:place").content.text
    assert ["user", "assistant"] == [one["type"] for one in await options.session_store.load(KEY)]


async def test_hooks_recall_fact_once_and_again_after_compaction(session, options, tmp_path):
    """The second prompt gets no repeated facts; after a compaction they are recalled again."""
    await session.memories.save_decision(REDIS, topic="auth", reasoning="they can be revoked")
    projects, asked = f"{tmp_path}/claude/projects", "Where do we keep login sessions?"
    told = []
    for _ in range(2):
        line = ScriptedCommandLine(projects, "In Redis.")
        await run(options, line, asked)
        told.append(len(line.told))
    [compacting] = options.hooks["PreCompact"][0].hooks
    answered = await compacting(
        {"hook_event_name": "PreCompact", "trigger": "auto", "session_id": KEY["session_id"]}, None, {"signal": None}
    )
    line = ScriptedCommandLine(projects, "In Redis.")
    await run(options, line, asked)

    assert [1, 0] == told
    assert {} == answered
    assert 1 == len(line.told)


async def test_hooks_recall_fact_in_each_claude_session(session, options):
    """Two queries with the same options are two conversations; a fact is recalled once in each."""
    await session.memories.save_decision(REDIS, topic="auth", reasoning="they can be revoked")
    [prompted] = options.hooks["UserPromptSubmit"][0].hooks
    asked = {"hook_event_name": "UserPromptSubmit", "prompt": "Where do we keep login sessions?"}
    told = [await prompted({**asked, "session_id": one}, None, {"signal": None}) for one in ("a", "a", "b", "b")]

    assert [True, False, True, False] == [bool(one) for one in told]


async def test_hooks_return_nothing_when_nothing_is_recalled(session, options, tmp_path):
    """An empty answer lets Claude continue."""
    line = ScriptedCommandLine(f"{tmp_path}/claude/projects", "Hello.")
    await run(options, line, "Hello?")

    assert [{}, {}] == line.answered


async def test_failing_recall_does_not_stop_turn(session, options, tmp_path, monkeypatch):
    """The prompt is unchanged, and the error is logged."""

    async def fails(*_arguments: Any, **_options: Any) -> None:
        raise InvalidArgument("no")

    monkeypatch.setattr(Session, "recall", fails)
    line = ScriptedCommandLine(f"{tmp_path}/claude/projects", "Hello.")
    messages = await run(options, line, "Where do we keep login sessions?")

    assert [] == line.told
    assert "success" == messages[-1].subtype


async def test_sdk_serves_tools_of_the_session(session):
    """The SDK accepts the MCP adapter's server as its own, with all tools."""
    assert isinstance(mcp.server(session), Server)


def test_import_error_names_missing_extra(monkeypatch):
    """Without the SDK the import error says what to install."""
    for name in [name for name in sys.modules if name.split(".")[0] == "claude_agent_sdk"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "mama_structs.adapters.claude_agent")

    with pytest.raises(ImportError, match=r"pip install 'mama-structs\[claude-agent\]'"):
        importlib.import_module("mama_structs.adapters.claude_agent")


def test_adapter_loads_no_other_framework():
    """Importing it loads the SDK and its dependencies, but no other framework."""
    assert {"claude_agent_sdk"} == frameworks_loaded_by("claude_agent") - {"mcp"}
