"""A session's tools over MCP, with the official client in the same process."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import re
import sys

import pytest
from mcp import Client, MCPError
from mcp_types import PaginatedRequestParams, Request, Result, ToolListChangedNotification

from mama_structs import HashEmbedder, Session, Settings
from mama_structs.adapters.mcp import MESSAGE_KEY, MESSAGE_METHOD, MessageParams, server
from mama_structs.adapters.mcp.clients import LIMIT, MAX_CLIENTS
from mama_structs.errors import InvalidArgument
from mama_structs.settings import ToolSettings
from mama_structs.testing import FakeNode

RESUMING = "continue from yesterday"
NOTHING = "what colour is the sky?"
SEEN_WHEN_RESUMING = {"save__decision", "save__checkpoint", "load__checkpoint", "load__context", "search__recent"}
HIDDEN_WHEN_RESUMING = {"save__insight", "search__by_topic", "search__by_context"} | {
    "evolve__outcome",
    "evolve__supersede",
    "evolve__correct",
}
ERAS = ("legacy", "2026-07-28")

# What each tool takes, by its name on the wire; the tools of v1.0 and the host's own are tested elsewhere.
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
    """A client that hears of changes and asks for the list again; from 2026-07-28 on it subscribes to them."""

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
            # Asking within the handler would keep the client from hearing the answer.
            self._tasks.add(asyncio.create_task(self._changed()))

    async def _hear(self, changes):
        async for _ in changes:
            await self._changed()

    async def _changed(self):
        self.tools = await names_of(self.client)
        self.heard.put_nowait(None)

    async def say(self, message):
        """Let the server know what the user wrote, beside a call."""
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
    """Let a notice be taken in time on any machine."""
    monkeypatch.setattr("mama_structs.adapters.mcp.clients.LIMIT", 60)


@pytest.fixture
async def session(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with Session.open(tmp_path / "agent.mama", files=tmp_path, embedder=HashEmbedder()) as session:
        await session.observe('<ref id="plan">shield first</ref>')
        yield session


@pytest.fixture(params=ERAS)
def era(request):
    return request.param


@pytest.fixture
async def narrowing(session, era, tmp_path):
    """A session whose clients' lists are narrowed: for who has subscribed, and before 2026-07-28 if that is forced."""
    if era != "legacy":
        yield session
        return
    settings = Settings(tools=ToolSettings(dynamic="force_dynamic"))
    async with Session.open(
        tmp_path / "forced.mama", files=tmp_path, embedder=HashEmbedder(), settings=settings
    ) as forced:
        yield forced


# The list


async def test_every_tool_is_listed_under_its_wire_name(session, era):
    """A client sees all tools with schema, title and hints."""
    async with Client(server(session), mode=era) as client:
        listed = (await client.list_tools()).tools

    tools = {tool.name: tool for tool in session.tools.values()}
    assert set(ARGUMENTS) == {tool.name for tool in listed}
    for one in listed:
        tool = tools[one.name.replace("__", "/")]
        # What the tools for refs say of marks is no use to a client; see test_turns.py.
        if not one.name.endswith(("_ref", "_refs")):
            assert tool.title == one.title
            # What the description says of other tools it says in their names on the wire.
            assert tool.description.split(".")[0] == one.description.split(".")[0].replace("__", "/")
        assert not set(tools) & set(re.findall(r"\w+/\w+", one.description))
        assert json.loads(json.dumps(tool.input_schema)) == one.input_schema
        hints = (tool.annotations.read_only, tool.annotations.destructive, tool.annotations.idempotent)
        given = one.annotations
        assert hints == (given.read_only_hint, given.destructive_hint, given.idempotent_hint)
        assert tool.annotations.open_world == given.open_world_hint


async def test_the_list_has_one_page(session, era):
    """A cursor that the server never gave is refused as the protocol says."""
    async with Client(server(session), mode=era) as client:
        with pytest.raises(MCPError, match="one page"):
            await client.session.list_tools(params=PaginatedRequestParams(cursor="2"))


# Calls


async def test_every_tool_can_be_called(session, era):
    """Each tool answers good arguments with a result that is no error."""
    async with Client(server(session), mode=era) as client:
        first = await client.call_tool("save__decision", ARGUMENTS["save__decision"])
        saved = json.loads(said(first))["id"]
        asked = {name: {k: saved if v == "?" else v for k, v in given.items()} for name, given in ARGUMENTS.items()}
        results = {name: await client.call_tool(name, given) for name, given in asked.items()}

    assert {} == {name: said(result) for name, result in results.items() if result.is_error}
    assert "shield first" in said(results["get_ref"])


async def test_every_tool_of_a_node_can_be_called(era):
    """The tools that ask a Structs node are there, too, and their failures are results."""
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


async def test_what_is_wrong_with_a_call_is_a_result_that_says_so(session, era):
    """A model reads its mistake; the protocol does not fail, and nothing is stored."""
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
    assert [] == await session.memories.recent()


async def test_what_models_get_a_little_wrong_is_put_right(session, era):
    """Numbers as text, one text for a list, null for what is left out: the SDK lets them through to us."""
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


async def test_a_tool_of_the_host_that_raises_is_an_error_result(era):
    """Whatever a host's tool raises, the server goes on."""

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


async def test_a_cancelled_call_leaves_the_others_alone(session, era):
    """A client that gives up on a call stops that call, and nothing else."""
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


async def test_why_we_left_jwt_can_be_answered_over_mcp(session, era):
    """An agent saves, marks, supersedes, and finds the reason of the failure."""
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


# Exposure


async def test_a_client_that_has_subscribed_sees_the_list_change(narrowing, era):
    """After a message the list narrows, and widens with the next one."""
    async with Listener(server(narrowing), era) as listener:
        assert set(ARGUMENTS) == listener.tools

        await listener.say(RESUMING)
        await listener.told()

        assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING == listener.tools

        await listener.say(NOTHING)
        await listener.told()

        assert set(ARGUMENTS) == listener.tools


async def test_a_hidden_tool_still_works(narrowing, era):
    """What a client does not see is not refused: hiding is advice."""
    async with Listener(server(narrowing), era) as listener:
        await listener.say(RESUMING)
        await listener.told()
        result = await listener.client.call_tool("save__insight", ARGUMENTS["save__insight"])

    assert "save__insight" not in listener.tools
    assert not result.is_error


async def test_a_client_without_a_subscription_keeps_the_full_list(session, era):
    """Who has subscribed to nothing is taken for nobody that follows, however soon it asks."""
    async with Client(server(session), mode=era) as client:
        await names_of(client)
        await client.call_tool("list_refs", {}, meta={MESSAGE_KEY: RESUMING})

        assert set(ARGUMENTS) == await names_of(client)
        assert set(ARGUMENTS) == {
            tool.name for tool in (await client.list_tools(meta={MESSAGE_KEY: RESUMING}, cache_mode="bypass")).tools
        }


async def test_clients_are_kept_apart(narrowing, era):
    """The message of one user narrows nobody else's list."""
    own = server(narrowing)
    async with Listener(own, era) as one, Listener(own, era) as other:
        await one.say(RESUMING)
        await one.told()
        await other.client.call_tool("list_refs", {})

        assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING == await names_of(one.client)
        assert set(ARGUMENTS) == await names_of(other.client)
        assert other.heard.empty()


async def test_a_host_that_embeds_the_server_tells_it_the_message(narrowing, era):
    """Observing a message reaches every client that is connected."""
    own = server(narrowing)
    async with Listener(own, era) as one, Listener(own, era) as other:
        own.observe(RESUMING)
        await asyncio.gather(one.told(), other.told())

    assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING == one.tools == other.tools


async def test_what_the_session_exposes_is_what_followers_see(narrowing, era):
    """A host that chooses tools for its own agent changes the lists of the clients, too, and so does a new tool."""

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


async def test_the_message_of_the_host_replaces_those_of_clients(narrowing, era):
    """Whichever message came last counts."""
    own = server(narrowing)
    async with Listener(own, era) as listener:
        await listener.say(RESUMING)
        await listener.told()
        own.observe(NOTHING)
        await listener.told()

        assert set(ARGUMENTS) == listener.tools


async def test_a_message_before_the_first_list_hides_nothing_from_who_cannot_hear(session, era):
    """A list is whole for as long as nothing says that its client hears of a longer one."""
    own = server(session)
    async with Client(own, mode=era) as client:
        own.observe(RESUMING)

        assert set(ARGUMENTS) == await names_of(client)


async def test_the_list_is_whole_again_when_the_subscription_ends(session):
    """A list is narrowed while its client has an open subscription, and the next one says that it may ask again."""
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


async def test_a_message_can_be_a_request_of_its_own(narrowing, era):
    """A host with nothing to call says what the user wrote all the same."""
    async with Listener(server(narrowing), era) as listener:
        request = Request[MessageParams, str](method=MESSAGE_METHOD, params=MessageParams(message=RESUMING))
        await listener.client.session.send_request(request, Result)
        await listener.told()

    assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING == listener.tools


async def test_a_message_that_is_no_text_changes_nothing(session, era):
    """What stands under the key is a client's: whatever it is, the call goes on."""
    async with Client(server(session), mode=era) as client:
        for message in (7, None, "", ["continue"], {"text": RESUMING}):
            result = await client.call_tool("list_refs", {}, meta={MESSAGE_KEY: message})

            assert not result.is_error
            assert set(ARGUMENTS) == await names_of(client)


async def test_force_static_never_narrows_and_never_tells(era):
    """With force_static a message changes nothing for anybody."""
    settings = Settings(tools=ToolSettings(dynamic="force_static"))
    async with Session.open(files=".", settings=settings) as session, Listener(server(session), era) as listener:
        await listener.say(RESUMING)
        await asyncio.sleep(0.02)

        assert listener.heard.empty()
        assert set(ARGUMENTS) == await names_of(listener.client)


async def test_force_dynamic_narrows_for_everybody(era):
    """With force_dynamic a client sees what fits the message, whether or not it has subscribed."""
    settings = Settings(tools=ToolSettings(dynamic="force_dynamic"))
    async with Session.open(files=".", settings=settings) as session, Client(server(session), mode=era) as client:
        await client.call_tool("list_refs", {}, meta={MESSAGE_KEY: RESUMING})
        narrowed = await names_of(client)
        asked = await client.list_tools(meta={MESSAGE_KEY: NOTHING}, cache_mode="bypass")

    assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING == narrowed
    assert set(ARGUMENTS) == {tool.name for tool in asked.tools}


class Deaf:
    """A connection that takes no notification."""

    def __init__(self, error=None):
        self._error = error

    async def send_tool_list_changed(self):
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
async def test_a_client_that_takes_no_notice_has_the_full_list_again(caplog, error, monkeypatch):
    """A notification that is not taken within 500 ms, or fails, ends there, until one is taken again."""
    monkeypatch.setattr("mama_structs.adapters.mcp.clients.LIMIT", LIMIT)
    settings = Settings(tools=ToolSettings(dynamic="force_dynamic"))
    async with Session.open(settings=settings) as session:
        client = server(session)._clients.connect()
        client.channel = Hearing()
        client.listed()
        client.observe(RESUMING)
        narrow = client.listed()
        await settled()
        client.channel = Deaf(error)
        client.observe("mark the caching decision as failed")
        (telling,) = client.telling
        await asyncio.wait_for(telling, 60)

        assert len(narrow) < len(session.tools)
        assert session.tools.names == client.wanted
        assert "could not be told" in caplog.text

        client.channel = Hearing()
        client.offer()
        await settled()

        assert 1 == client.channel.told
        assert len(client.listed()) < len(session.tools)


class Hearing:
    """A connection that counts the notices."""

    def __init__(self):
        self.told = 0

    async def send_tool_list_changed(self):
        self.told += 1


async def settled():
    """Let the tasks that tell run to their end; nothing in them takes time."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_client_is_told_once_of_each_change(session):
    """However often a client calls without asking for the list, it hears once that it has changed."""

    async def host_tool() -> str:
        return "new"

    client = server(session)._clients.connect()
    client.channel = Hearing()
    client.listed()
    session.tools.add(host_tool)
    for _ in range(3):
        client.offer()
        await settled()

    assert 1 == client.channel.told
    assert session.tools.names == client.listed()


async def test_clients_over_http_are_bounded_and_those_that_listen_stay(session, monkeypatch):
    """A thousand are remembered; who has an open stream is known for as long as that is open."""
    clients = server(session)._clients
    listening = clients._known(("handle", "listening"))
    listening.streams = 1
    for number in range(3 * MAX_CLIENTS):
        clients._known(("session", str(number)))

    assert MAX_CLIENTS + 1 == len(list(clients))
    assert listening is clients._known(("handle", "listening"))
    assert clients._known(("session", "0")) is not None


async def test_servers_leave_nothing_behind_at_their_session(narrowing, era):
    """A session outlives its servers: only those that serve hear of its changes, again after a pause, too."""
    before = len(narrowing.exposed._subscribers)
    servers = [server(narrowing) for _ in range(50)]
    own = servers[0]

    assert before == len(narrowing.exposed._subscribers)

    for _ in range(2):
        async with Listener(own, era) as one, Listener(own, era) as other:
            during = len(narrowing.exposed._subscribers)
            narrowing.tools_for(RESUMING)
            await asyncio.gather(one.told(), other.told())
        narrowing.tools_for(NOTHING)

        assert before + 1 == during
        assert before == len(narrowing.exposed._subscribers)
        assert set(ARGUMENTS) - HIDDEN_WHEN_RESUMING == one.tools == other.tools


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_the_tools_of_v1_work_without_being_listed(session, era):
    """A prompt of v1.0 finds its tools; who was listed no schema gets no structure, and the text says it all."""
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
async def test_the_tools_of_v1_are_listed_when_asked_for(era):
    """They are hidden unless they are switched on, and work then."""
    settings = Settings(tools=ToolSettings(deprecated=True))
    async with Session.open(settings=settings) as session, Client(server(session), mode=era) as client:
        listed = await names_of(client)
        result = await client.call_tool("list_decisions", {})

    assert {"save_decision", "list_decisions", "load_checkpoint"} <= listed - set(ARGUMENTS)
    assert not result.is_error


async def test_each_decision_is_logged_without_the_message(narrowing, era, caplog):
    """The log says who is shown how many tools and why, and nothing that anybody wrote."""
    with caplog.at_level(logging.INFO, logger="mama_structs"):
        async with Listener(server(narrowing), era) as listener:
            await listener.say(RESUMING)
            await listener.told()

    own = [record.getMessage() for record in caplog.records if record.name == "mama_structs"]
    assert any("resuming" in line for line in own)
    assert any("is told that the list of tools has changed" in line for line in own)
    assert any("is listed 12 of 18 tools" in line for line in own)
    assert not any(RESUMING in line for line in own)


# At the door


def test_what_is_no_session_is_refused():
    """The mistake is named at once."""
    with pytest.raises(InvalidArgument, match="session must be a Session"):
        server("agent.mama")


def test_a_missing_sdk_is_named_with_what_installs_it(monkeypatch):
    """Without the SDK the import says what to do."""
    for name in [name for name in sys.modules if name.startswith("mama_structs.adapters.mcp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp_types", None)

    with pytest.raises(ModuleNotFoundError, match=r"mama-structs\[mcp\]"):
        importlib.import_module("mama_structs.adapters.mcp")
