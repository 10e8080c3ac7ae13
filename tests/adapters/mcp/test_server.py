"""A session's tools over MCP, with the official client in the same process."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import re
import sys
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import PaginatedRequestParams, Request, Result, ToolListChangedNotification

from mama_structs import HashEmbedder, Session, Settings
from mama_structs.adapters.mcp import MESSAGE_KEY, MESSAGE_METHOD, MessageParams, server
from mama_structs.adapters.mcp.clients import MAX_CLIENTS, NOTIFICATION_SECONDS
from mama_structs.errors import InvalidArgument
from mama_structs.settings import ToolSettings
from mama_structs.testing import FakeNode

RESUMING = "continue from yesterday"
UNRELATED_MESSAGE = "what colour is the sky?"
SEEN_WHEN_RESUMING = {"save__decision", "save__checkpoint", "load__checkpoint", "load__context", "search__recent"}
HIDDEN_WHEN_RESUMING = {"save__insight", "search__by_topic", "search__by_context"} | {
    "evolve__outcome",
    "evolve__supersede",
    "evolve__correct",
}
ERAS = ("legacy", "2026-07-28")

# Valid arguments of each tool, by wire name. Other modules test v1.0 tools and host tools.
ARGUMENTS = {
    "save__decision": {"topic": "auth", "decision": "Use JWT", "reasoning": "no state on the server"},
    "save__checkpoint": {"summary": "half of the login is done", "open_files": ["login.py"], "next_steps": ["test it"]},
    "save__insight": {"content": "tokens outlive a logout"},
    "load__checkpoint": {},
    "load__context": {"id": "?"},
    "search__by_topic": {"topic": "auth"},
    "search__by_context": {"query": "why JWT?"},
    "search__recent": {"limit": 3},
    "evolve__outcome": {"decision_id": "?", "outcome": "FAILED", "reason": "tokens could not be revoked"},
    "evolve__supersede": {"decision_id": "?", "decision": "Use sessions", "reasoning": "they can be revoked"},
    "evolve__correct": {"id": "?", "content": "Use short JWT", "reason": "a word was missing"},
    "read_fd": {"fd": "ref:plan"},
    "fd_to_file": {"fd": "ref:plan", "file_path": "plan.md"},
    "list_refs": {},
    "get_ref": {"ref_id": "plan"},
    "search_fd": {"fd": "ref:plan", "query": "shield"},
    "edit_ref": {"ref_id": "plan", "old": "shield", "new": "ore"},
    "put_ref": {"ref_id": "note", "text": "ore"},
}


class Listener:
    """A client that lists the tools again after each change notification. Protocol 2026-07-28 requires subscribing."""

    def __init__(self, own, era):
        self.tools = None
        self.heard = asyncio.Queue()
        self._own, self._era = own, era
        self._tasks = set()

    async def __aenter__(self):
        self.client = await Client(self._own, mode=self._era, message_handler=self._take).__aenter__()
        self.tools = await names_of(self.client)
        if self._era != "legacy":
            self._listening = self.client.listen(tools_list_changed=True)
            self._tasks.add(asyncio.create_task(self._hear(await self._listening.__aenter__())))
        return self

    async def __aexit__(self, *_exception):
        if self._era != "legacy":
            await self._listening.__aexit__(None, None, None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.__aexit__(None, None, None)

    async def _take(self, message):
        if self._era == "legacy" and isinstance(message, ToolListChangedNotification):
            # List the tools in a task: awaiting the answer within the handler would block the client forever.
            self._tasks.add(asyncio.create_task(self._changed()))

    async def _hear(self, changes):
        async for _ in changes:
            await self._changed()

    async def _changed(self):
        self.tools = await names_of(self.client)
        self.heard.put_nowait(None)

    async def say(self, message):
        """Send a user's message to the server, in the metadata of a call."""
        await self.client.call_tool("list_refs", {}, meta={MESSAGE_KEY: message})

    async def told(self):
        return await asyncio.wait_for(self.heard.get(), 60)


async def names_of(client):
    return {tool.name for tool in (await client.list_tools(cache_mode="bypass")).tools}


def said(result):
    (content,) = result.content
    return content.text


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Increase the notification timeout for slow machines."""
    monkeypatch.setattr("mama_structs.adapters.mcp.clients.NOTIFICATION_SECONDS", 60)


@pytest.fixture
async def session(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with Session.open(tmp_path / "agent.mama", files_root=tmp_path, embedder=HashEmbedder()) as session:
        await session.observe('<ref id="plan">shield first</ref>')
        yield session


@pytest.fixture(params=ERAS)
def era(request):
    return request.param


@pytest.fixture
async def narrowing(session, era, tmp_path):
    """A session that narrows the tool lists, by force for clients of older protocols, which cannot subscribe."""
    if era != "legacy":
        yield session
        return
    settings = Settings(tools=ToolSettings(dynamic="force_dynamic"))
    async with Session.open(
        tmp_path / "forced.mama", files_root=tmp_path, embedder=HashEmbedder(), settings=settings
    ) as forced:
        yield forced


# The tool list


async def test_list_contains_every_tool_with_wire_name(session, era):
    """A client sees all tools with schema, title and hints."""
    async with Client(server(session), mode=era) as client:
        listed = (await client.list_tools()).tools

    tools = {tool.name: tool for tool in session.tools.values()}
    assert set(ARGUMENTS) == {tool.name for tool in listed}
    for one in listed:
        tool = tools[one.name.replace("__", "/")]
        # Skip the ref tools: the server removes ref markup from their descriptions, which test_model_turns.py checks.
        if not one.name.endswith(("_ref", "_refs")):
            assert tool.title == one.title
            # Tool names in descriptions are replaced with wire names.
            assert tool.description.split(".")[0] == one.description.split(".")[0].replace("__", "/")
        assert not set(tools) & set(re.findall(r"\w+/\w+", one.description))
        assert json.loads(json.dumps(tool.input_schema)) == one.input_schema
        hints = (tool.annotations.read_only, tool.annotations.destructive, tool.annotations.idempotent)
        given = one.annotations
        assert hints == (given.read_only_hint, given.destructive_hint, given.idempotent_hint)
        assert tool.annotations.open_world == given.open_world_hint


async def test_list_has_one_page(session, era):
    """An unknown cursor is rejected as the protocol requires."""
    async with Client(server(session), mode=era) as client:
        with pytest.raises(MCPError, match="one page"):
            await client.session.list_tools(params=PaginatedRequestParams(cursor="2"))


# Tool calls


async def test_lists_accept_empty_cursor_and_reject_others(session, era):
    """Some clients send an empty cursor for the first page. A made-up cursor is an error in every list."""
    async with Client(server(session), mode=era) as client:
        lists = (client.list_tools, client.list_prompts, client.list_resources, client.list_resource_templates)
        for request in lists:
            await request(cursor="")
            with pytest.raises(MCPError, match="one page"):
                await request(cursor="2")


async def test_host_tool_reports_progress_through_its_context(session, era):
    """A host tool's parameter ctx is the SDK's context of the request. Progress is sent before the result."""

    async def steps(count: int, ctx: Any) -> str:
        """Work in steps."""
        for number in range(count):
            await ctx.session.report_progress(number + 1, count, f"step {number + 1}")
        return ctx.method

    session.tools.add(steps)
    heard = []

    async def hear(*progress):
        heard.append(progress)

    async with Client(server(session), mode=era) as client:
        schema = {tool.name: tool for tool in (await client.list_tools()).tools}["steps"].input_schema
        result = await client.call_tool("steps", {"count": 2}, progress_callback=hear)
        silent = await client.call_tool("steps", {"count": 2})

    assert ["count"] == [*schema["properties"]]
    assert [(1, 2, "step 1"), (2, 2, "step 2")] == heard
    assert ["tools/call"] * 2 == [said(result), said(silent)]


async def test_call_of_every_tool_succeeds(session, era):
    """Each tool answers valid arguments without an error."""
    async with Client(server(session), mode=era) as client:
        first = await client.call_tool("save__decision", ARGUMENTS["save__decision"])
        saved = json.loads(said(first))["id"]
        asked = {name: {k: saved if v == "?" else v for k, v in given.items()} for name, given in ARGUMENTS.items()}
        results = {name: await client.call_tool(name, given) for name, given in asked.items()}

    assert {} == {name: said(result) for name, result in results.items() if result.is_error}
    assert "shield first" in said(results["get_ref"])


async def test_call_of_every_node_tool_returns_result(era):
    """The tools that query a Structs node are listed, and their failures are results."""
    async with (
        FakeNode.world(seed=1, players=12) as node,
        Session.open(structs=node.url) as session,
        Client(server(session), mode=era) as client,
    ):
        names = [name for name in await names_of(client) if name.startswith("structs_")]
        results = {}
        for name in names:
            argument = next(iter(session.tools[name].input_schema["properties"]))
            given = {argument: "1-1"} if "query" in name else {}
            results[name] = await client.call_tool(name, given)

    assert len(names) >= 20
    assert not results["structs_query_player"].is_error
    assert not results["structs_list_players"].is_error
    assert results["structs_query_planet"].is_error


async def test_call_with_wrong_arguments_returns_explanation(session, era):
    """The error is a tool result, not a protocol error, and nothing is stored."""
    right = {"topic": "auth", "decision": "d", "reasoning": "r"}
    wrong = [
        ("save__decison", {}, "save__decision"),
        ("save__decision", {"topic": "auth"}, "reasoning"),
        ("save__decision", {**right, "certainty": 1}, "certainty"),
        ("save__decision", {**right, "topic": {}}, "topic"),
        ("save__decision", {**right, "confidence": 7}, "confidence"),
        ("load__context", {"id": "decision_nowhere"}, "decision_nowhere"),
        ("evolve__outcome", {"decision_id": "x", "outcome": "MAYBE"}, "outcome"),
        ("read_fd", {"fd": "fd:99"}, "fd:99"),
    ]
    async with Client(server(session), mode=era) as client:
        results = [(await client.call_tool(name, arguments), told) for name, arguments, told in wrong]

    for result, told in results:
        assert told in said(result)
        assert result.is_error
    assert [] == await session.memories.list()


async def test_call_repairs_nearly_correct_arguments(session, era):
    """Numbers as text, one text for a list, null for an omitted argument: the SDK passes them through."""
    decision = {**ARGUMENTS["save__decision"], "confidence": "0.9", "evidence": None, "links": None, "supersedes": None}
    checkpoint = {"summary": "half of it is done", "open_files": "login.py", "next_steps": None}
    async with Client(server(session), mode=era) as client:
        results = [
            await client.call_tool("save__decision", decision),
            await client.call_tool("save__checkpoint", checkpoint),
            await client.call_tool("search__recent", {"limit": "5", "types": "decision", "since": None}),
            await client.call_tool("list_refs", None),
        ]
    kept = await session.memories.get(json.loads(said(results[0]))["id"])
    latest = await session.memories.get(json.loads(said(results[1]))["id"])

    assert [] == [said(result) for result in results if result.is_error]
    assert 0.9 == kept.metadata.confidence
    assert ("login.py",) == tuple(latest.metadata.open_files)
    assert [kept.id] == [one["id"] for one in json.loads(said(results[2]))["found"]]


async def test_call_of_failing_host_tool_returns_error_result(era):
    """The server continues after any exception of a host's tool."""

    async def broken() -> str:
        raise ZeroDivisionError("by nothing")

    async with Session.open() as session:
        session.tools.add(broken)
        async with Client(server(session), mode=era) as client:
            result = await client.call_tool("broken", {})
            after = await client.call_tool("list_refs", {})

    assert result.is_error
    assert "ZeroDivisionError" in said(result)
    assert not after.is_error


async def test_cancelled_call_does_not_affect_other_calls(session, era):
    """A client that cancels a call stops only that call."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "late"

    session.tools.add(slow)
    async with Client(server(session), mode=era) as client:
        call = asyncio.create_task(client.call_tool("slow", {}))
        await begun.wait()
        beside = await client.call_tool("save__decision", ARGUMENTS["save__decision"])
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.wait_for(ended.wait(), 60)
        after = await client.call_tool("search__recent", {})

    assert not beside.is_error
    assert json.loads(said(beside))["id"] in said(after)


async def test_mcp_agent_finds_reason_of_failed_decision(session, era):
    """An agent saves, creates refs, supersedes, and finds the reason of the failure."""
    async with Client(server(session), mode=era) as client:
        first = json.loads(said(await client.call_tool("save__decision", ARGUMENTS["save__decision"])))["id"]
        outcome = await client.call_tool("evolve__outcome", {**ARGUMENTS["evolve__outcome"], "decision_id": first})
        second = await client.call_tool("evolve__supersede", {**ARGUMENTS["evolve__supersede"], "decision_id": first})
        found = await client.call_tool("search__by_context", {"query": "why did we leave JWT?"})
        chain = await client.call_tool("search__by_topic", {"topic": "auth"})

    assert not outcome.is_error
    assert first != json.loads(said(second))["id"]
    assert "tokens could not be revoked" in said(found)
    assert "tokens could not be revoked" in said(chain)
    assert "Use sessions" in said(chain)


# Selection of the listed tools


async def test_subscribed_client_sees_list_change(narrowing, era):
    """A message narrows the list, and the next one widens it."""
    async with Listener(server(narrowing), era) as listener:
        assert set(ARGUMENTS) == listener.tools

        await listener.say(RESUMING)
        await listener.told()

        assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING == listener.tools

        await listener.say(UNRELATED_MESSAGE)
        await listener.told()

        assert set(ARGUMENTS) == listener.tools


async def test_call_of_hidden_tool_works(narrowing, era):
    """Hidden tools are not disabled."""
    async with Listener(server(narrowing), era) as listener:
        await listener.say(RESUMING)
        await listener.told()
        result = await listener.client.call_tool("save__insight", ARGUMENTS["save__insight"])

    assert "save__insight" not in listener.tools
    assert not result.is_error


async def test_client_without_subscription_keeps_full_list(session, era):
    """A client that has not subscribed gets the full list, however soon it asks."""
    async with Client(server(session), mode=era) as client:
        await names_of(client)
        await client.call_tool("list_refs", {}, meta={MESSAGE_KEY: RESUMING})

        assert set(ARGUMENTS) == await names_of(client)
        assert set(ARGUMENTS) == {
            tool.name for tool in (await client.list_tools(meta={MESSAGE_KEY: RESUMING}, cache_mode="bypass")).tools
        }


async def test_clients_have_separate_lists(narrowing, era):
    """The message of one user does not narrow the list of another."""
    own = server(narrowing)
    async with Listener(own, era) as one, Listener(own, era) as other:
        await one.say(RESUMING)
        await one.told()
        await other.client.call_tool("list_refs", {})

        assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING == await names_of(one.client)
        assert set(ARGUMENTS) == await names_of(other.client)
        assert other.heard.empty()


async def test_server_observe_reaches_all_connected_clients(narrowing, era):
    """A message that the host observes applies to every connected client."""
    own = server(narrowing)
    async with Listener(own, era) as one, Listener(own, era) as other:
        own.observe(RESUMING)
        await asyncio.gather(one.told(), other.told())

    assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING == one.tools == other.tools


async def test_session_exposure_changes_client_lists(narrowing, era):
    """A host's tool selection for its own agent, or a new tool, changes the lists of the clients."""

    async def host_tool() -> str:
        return "new"

    async with Listener(server(narrowing), era) as listener:
        narrowing.tools_for(RESUMING)
        await listener.told()
        assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING == listener.tools

        narrowing.tools.add(host_tool)
        narrowing.tools_for(RESUMING)
        await listener.told()
        assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING | {"host_tool"} == listener.tools


async def test_added_replaced_and_removed_tools_are_reported(session, era):
    """A client that follows changes is notified without calling anything, also if another thread adds the tool."""

    async def host_tool() -> str:
        return "new"

    async def other_tool(text: str) -> str:
        return text

    async with Listener(server(session), era) as listener:
        session.tools.add(host_tool)
        await listener.told()
        added = listener.tools
        session.tools.add(other_tool, name="host_tool", replace=True)
        await listener.told()
        await asyncio.to_thread(session.tools.add, host_tool, name="third")
        await listener.told()
        both = listener.tools
        session.tools.remove("host_tool")
        session.tools.remove("third")
        await listener.told()

    assert set(ARGUMENTS) | {"host_tool"} == added
    assert set(ARGUMENTS) | {"host_tool", "third"} == both
    assert set(ARGUMENTS) == listener.tools
    assert [] == [*session.tools._subscribers]


async def test_server_announces_only_changes_that_it_reports(session, era):
    """Only the tool list changes. A subscription to anything else is not acknowledged."""
    async with Client(server(session), mode="legacy" if era == "legacy" else "auto") as client:
        capabilities = client.server_capabilities
        if era != "legacy":
            async with client.listen(tools_list_changed=True, prompts_list_changed=True) as changes:
                acknowledged = changes.honored

    assert capabilities.tools.list_changed
    assert not capabilities.prompts.list_changed
    assert not capabilities.resources.list_changed
    assert not capabilities.resources.subscribe
    assert era == "legacy" or (acknowledged.tools_list_changed and acknowledged.prompts_list_changed is None)


async def test_server_observe_replaces_messages_of_clients(narrowing, era):
    """The last message counts."""
    own = server(narrowing)
    async with Listener(own, era) as listener:
        await listener.say(RESUMING)
        await listener.told()
        own.observe(UNRELATED_MESSAGE)
        await listener.told()

        assert set(ARGUMENTS) == listener.tools


async def test_message_before_first_list_hides_nothing_without_subscription(session, era):
    """A list stays complete until its client can be notified of changes."""
    own = server(session)
    async with Client(own, mode=era) as client:
        own.observe(RESUMING)

        assert set(ARGUMENTS) == await names_of(client)


async def test_list_is_complete_again_after_subscription_ends(session):
    """A list is narrowed while its client subscribes, and the next subscription notifies it again."""
    async with Client(server(session), mode="2026-07-28") as client:
        async with client.listen(tools_list_changed=True):
            await client.call_tool("list_refs", {}, meta={MESSAGE_KEY: RESUMING})
            during = await names_of(client)
        for _ in range(6_000):
            if set(ARGUMENTS) == (after := await names_of(client)):
                break
            await asyncio.sleep(0.01)
        async with client.listen(tools_list_changed=True) as changes:
            await asyncio.wait_for(anext(changes), 60)
            again = await names_of(client)

    assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING == during == again
    assert set(ARGUMENTS) == after


async def test_message_can_be_sent_as_separate_request(narrowing, era):
    """A host without a call can send the user's message."""
    async with Listener(server(narrowing), era) as listener:
        request = Request[MessageParams, str](method=MESSAGE_METHOD, params=MessageParams(message=RESUMING))
        await listener.client.session.send_request(request, Result)
        await listener.told()

    assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING == listener.tools


async def test_message_that_is_not_text_is_ignored(session, era):
    """A client may send any value under the key: the call continues."""
    async with Client(server(session), mode=era) as client:
        for message in (7, None, "", ["continue"], {"text": RESUMING}):
            result = await client.call_tool("list_refs", {}, meta={MESSAGE_KEY: message})

            assert not result.is_error
            assert set(ARGUMENTS) == await names_of(client)


async def test_force_static_never_narrows_or_notifies(era):
    """With force_static a message has no effect."""
    settings = Settings(tools=ToolSettings(dynamic="force_static"))
    async with Session.open(files_root=".", settings=settings) as session, Listener(server(session), era) as listener:
        await listener.say(RESUMING)
        await asyncio.sleep(0.02)

        assert listener.heard.empty()
        assert set(ARGUMENTS) == await names_of(listener.client)


async def test_force_dynamic_narrows_for_all_clients(era):
    """With force_dynamic the list fits the message, with or without a subscription."""
    settings = Settings(tools=ToolSettings(dynamic="force_dynamic"))
    async with Session.open(files_root=".", settings=settings) as session, Client(server(session), mode=era) as client:
        await client.call_tool("list_refs", {}, meta={MESSAGE_KEY: RESUMING})
        narrowed = await names_of(client)
        asked = await client.list_tools(meta={MESSAGE_KEY: UNRELATED_MESSAGE}, cache_mode="bypass")

    assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING == narrowed
    assert set(ARGUMENTS) == {tool.name for tool in asked.tools}


class Deaf:
    """A connection on which each notification fails or blocks."""

    def __init__(self, error=None):
        self._error = error

    async def send_tool_list_changed(self):
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
async def test_client_that_cannot_be_notified_gets_full_list(caplog, error, monkeypatch):
    """A notification that fails or times out after 500 ms is dropped. The list is complete until one is accepted."""
    monkeypatch.setattr("mama_structs.adapters.mcp.clients.NOTIFICATION_SECONDS", NOTIFICATION_SECONDS)
    settings = Settings(tools=ToolSettings(dynamic="force_dynamic"))
    async with Session.open(settings=settings) as session:
        client = server(session)._clients.connect()
        client.notification_channel = Hearing()
        client.list_tool_names()
        client.observe(RESUMING)
        narrow = client.list_tool_names()
        await settled()
        client.notification_channel = Deaf(error)
        client.observe("mark the caching decision as failed")
        (telling,) = client.notification_tasks
        await asyncio.wait_for(telling, 60)

        assert len(narrow) < len(session.tools)
        assert session.tools.names == client.current_tool_names
        assert "could not be told" in caplog.text

        client.notification_channel = Hearing()
        client.notify_if_changed()
        await settled()

        assert 1 == client.notification_channel.told
        assert len(client.list_tool_names()) < len(session.tools)


class Hearing:
    """A connection that counts the received notifications."""

    def __init__(self):
        self.told = 0

    async def send_tool_list_changed(self):
        self.told += 1


async def settled():
    """Run the event loop until the notification tasks have finished."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_client_is_notified_once_per_change(session):
    """A client that calls repeatedly without listing the tools is notified once of a change."""

    async def host_tool() -> str:
        return "new"

    client = server(session)._clients.connect()
    client.notification_channel = Hearing()
    client.list_tool_names()
    session.tools.add(host_tool)
    for _ in range(3):
        client.notify_if_changed()
        await settled()

    assert 1 == client.notification_channel.told
    assert session.tools.names == client.list_tool_names()


async def test_http_clients_are_bounded_and_subscribed_ones_retained(session, monkeypatch):
    """A thousand clients are remembered; a client with an open stream is retained."""
    clients = server(session)._clients
    listening = clients._find_identified(("handle", "listening"))
    listening.stream_count = 1
    for number in range(3 * MAX_CLIENTS):
        clients._find_identified(("session", str(number)))

    assert MAX_CLIENTS + 1 == len(list(clients))
    assert listening is clients._find_identified(("handle", "listening"))
    assert clients._find_identified(("session", "0")) is not None


async def test_server_unsubscribes_from_session_when_it_ends(narrowing, era):
    """A session outlives its servers: only active servers receive its changes, also after a restart."""
    before = len(narrowing.exposed_tools._subscribers)
    servers = [server(narrowing) for _ in range(50)]
    own = servers[0]

    assert before == len(narrowing.exposed_tools._subscribers)

    for _ in range(2):
        async with Listener(own, era) as one, Listener(own, era) as other:
            during = len(narrowing.exposed_tools._subscribers)
            narrowing.tools_for(RESUMING)
            await asyncio.gather(one.told(), other.told())
        narrowing.tools_for(UNRELATED_MESSAGE)

        assert before + 1 == during
        assert before == len(narrowing.exposed_tools._subscribers)
        assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING == one.tools == other.tools


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_tools_of_v1_work_without_being_listed(session, era):
    """A prompt of v1.0 finds its tools. An unlisted tool returns text without a structure."""
    async with Client(server(session), mode=era) as client:
        listed = await names_of(client)
        saved = await client.call_tool("save_decision", ARGUMENTS["save__decision"])
        found = await client.call_tool("list_decisions", {})
        wrong = await client.call_tool("save_checkpoint", {})

    assert set(ARGUMENTS) == listed
    assert json.loads(said(saved))["success"]
    assert "Use JWT" in json.loads(said(found))["list"]
    assert [False, False, True] == [result.is_error for result in (saved, found, wrong)]
    assert [None] * 3 == [result.structured_content for result in (saved, found, wrong)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_tools_of_v1_are_listed_when_enabled(era):
    """They are hidden by default, and work when enabled."""
    settings = Settings(tools=ToolSettings(deprecated=True))
    async with Session.open(settings=settings) as session, Client(server(session), mode=era) as client:
        listed = await names_of(client)
        result = await client.call_tool("list_decisions", {})

    assert {"save_decision", "list_decisions", "load_checkpoint"} <= listed - set(ARGUMENTS)
    assert not result.is_error


async def test_list_decisions_are_logged_without_message(narrowing, era, caplog):
    """The log contains the number of listed tools and the reason, but no user text."""
    with caplog.at_level(logging.INFO, logger="mama_structs"):
        async with Listener(server(narrowing), era) as listener:
            await listener.say(RESUMING)
            await listener.told()

    own = [record.getMessage() for record in caplog.records if record.name == "mama_structs"]
    assert any("resuming" in line for line in own)
    assert any("is told that the list of tools has changed" in line for line in own)
    assert any("is listed 12 of 18 tools" in line for line in own)
    assert not any(RESUMING in line for line in own)


# Server arguments and the missing SDK


def test_server_rejects_value_that_is_no_session():
    """The error is raised immediately."""
    with pytest.raises(InvalidArgument, match="session must be a Session"):
        server("agent.mama")


def test_mcp_missing_sdk_names_the_extra(monkeypatch):
    """Without the SDK the import error says what to install."""
    for name in [name for name in sys.modules if name.startswith("mama_structs.adapters.mcp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp_types", None)

    with pytest.raises(ModuleNotFoundError, match=r"mama-structs\[mcp\]"):
        importlib.import_module("mama_structs.adapters.mcp")
