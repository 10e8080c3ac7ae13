"""A session's tools over MCP's streamable HTTP on loopback: several clients and access control."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from urllib.parse import urlsplit

import aiohttp
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from mcp.client.extension import advertise
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ToolListChangedNotification

from mama_structs import HashEmbedder, Session, Settings, ToolSettings
from mama_structs.adapters.mcp import EXTENSION, MESSAGE_KEY, http_limits, serve_http, server
from mama_structs.adapters.mcp.http import BearerTokenVerifier, ListenAddress, check_token
from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.tools.wire_names import make_wire_name

TOKEN = "a-token-of-more-than-sixteen-characters"
RESUMING = "continue from yesterday"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}
LIST = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/list",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}
RAW = {
    "legacy": (INITIALIZE, {}),
    "2026-07-28": (LIST, {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}),
}
ERAS = tuple(RAW)
INITIALIZED = "notifications/initialized"


@contextlib.asynccontextmanager
async def served(own, **options):
    """Serve on loopback during a block, and yield the URL."""
    told = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_http(own, port=0, started=told.set_result, **options))
    await asyncio.wait({told, serving}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if serving.done():
            serving.result()
        yield told.result()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def post(url, era, *, headers=(), body=None):
    """Send a client request with custom headers, and return status, headers and text."""
    question, more = RAW[era]
    own = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **more, **dict(headers)}
    data = json.dumps(question) if body is None else body
    async with aiohttp.ClientSession() as http, http.post(url, data=data, headers=own) as answer:
        return answer.status, answer.headers, await answer.text()


async def say_until(heard, client):
    """Send a message repeatedly until the client is notified. It misses notifications before it opens its stream."""
    async with asyncio.timeout(60):
        while not heard.is_set():
            await client.call_tool("list_refs", {}, meta={MESSAGE_KEY: RESUMING})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(heard.wait(), 0.1)


async def until_stream_is_open(session, heard):
    """Replace a tool repeatedly until the client is notified."""

    async def probe() -> None:
        """Do nothing."""

    async with asyncio.timeout(60):
        while not heard.is_set():
            session.tools.add(probe, replace=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(heard.wait(), 0.1)


async def names_of(client):
    return {tool.name for tool in (await client.list_tools(cache_mode="bypass")).tools}


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Increase the notification timeout for slow machines."""
    monkeypatch.setattr("mama_structs.adapters.mcp.clients.NOTIFICATION_SECONDS", 60)


@pytest.fixture
async def session():
    async with Session.open() as session:
        yield session


@pytest.fixture
async def forced():
    """A session that narrows the tool list for all clients, including those without a subscription."""
    async with Session.open(settings=Settings(tools=ToolSettings(dynamic="force_dynamic"))) as session:
        yield session


@pytest.fixture(params=ERAS)
def era(request):
    return request.param


# Several clients


async def test_http_concurrent_clients_lose_no_saves(tmp_path):
    """Twenty clients of both protocol eras save concurrently. Every memory is stored, also after a restart."""

    async def agent(url, number):
        async with Client(url, mode=ERAS[number % 2]) as client:
            listed = await names_of(client)
            ids = []
            for step in range(2):
                given = {"topic": f"t{number}", "decision": f"d{number}.{step}", "reasoning": "because"}
                result = await client.call_tool("save__decision", given)
                ids.append(json.loads(result.content[0].text)["id"])
            found = await client.call_tool("search__by_topic", {"topic": f"t{number}"})
            return len(listed), ids, found.content[0].text

    async with Session.open(tmp_path / "agent.mama", embedder=HashEmbedder()) as session:
        async with served(session) as url:
            told = await asyncio.gather(*(agent(url, number) for number in range(20)))
        expected = len(session.tools)
    async with Session.open(tmp_path / "agent.mama") as session:
        kept = {memory.id for memory in await session.memories.list(limit=100)}

    assert {expected} == {count for count, _, _ in told}
    assert 40 == len(kept)
    assert kept == {one for _, ids, _ in told for one in ids}
    for number, (_, _, found) in enumerate(told):
        assert f"d{number}.1" in found


async def test_http_legacy_client_sees_list_change_when_forced(forced):
    """The notification reaches the stream of the client's session, and its next list is shorter."""
    heard = asyncio.Event()

    async def take(message):
        if isinstance(message, ToolListChangedNotification):
            heard.set()

    async with served(server(forced)) as url, Client(url, mode="legacy", message_handler=take) as client:
        full = await names_of(client)
        await say_until(heard, client)
        narrowed = await names_of(client)

    assert narrowed < full
    assert {"save__decision", "load__checkpoint", "list_refs"} <= narrowed


async def test_http_identified_client_sees_list_change(session):
    """Without sessions (2026-07-28) the client is identified by its extension setting. Others are not affected."""
    follower = advertise(EXTENSION, {"client": "agent-1"})
    other = advertise(EXTENSION, {"client": "agent-2"})
    async with (
        served(server(session)) as url,
        Client(url, mode="2026-07-28", extensions=[follower]) as client,
        Client(url, mode="2026-07-28", extensions=[other]) as second,
        Client(url, mode="2026-07-28") as anybody,
    ):
        full = await names_of(client)
        async with client.listen(tools_list_changed=True) as changes:
            await client.call_tool("list_refs", {}, meta={MESSAGE_KEY: RESUMING})
            await asyncio.wait_for(anext(changes), 60)
            narrowed = await names_of(client)
        others = await names_of(second), await names_of(anybody)

    assert narrowed < full
    assert (full, full) == others


async def test_http_anonymous_client_keeps_full_list(session):
    """An anonymous client of 2026-07-28 cannot be distinguished from others, so it sees everything."""
    async with served(session) as url, Client(url, mode="2026-07-28") as client:
        full = await names_of(client)
        async with client.listen(tools_list_changed=True):
            await client.call_tool("list_refs", {}, meta={MESSAGE_KEY: RESUMING})

            assert full == await names_of(client)


async def test_http_added_tool_is_reported_to_every_listener(session, era):
    """An anonymous client, whose requests are unrelated to its stream, is notified of an added tool, too."""

    async def host_tool() -> str:
        return "new"

    heard = asyncio.Event()

    async def hear(message):
        if isinstance(message, ToolListChangedNotification):
            heard.set()

    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(session))
        client = await stack.enter_async_context(Client(url, mode=era, message_handler=hear))
        await names_of(client)
        if era == "legacy":
            # The client misses notifications before it opens its stream.
            await until_stream_is_open(session, heard)
            heard.clear()
        else:
            changes = await stack.enter_async_context(client.listen(tools_list_changed=True))
        session.tools.add(host_tool, replace=True)
        await asyncio.wait_for(heard.wait() if era == "legacy" else anext(aiter(changes)), 60)
        names = await names_of(client)

    assert "host_tool" in names


async def test_http_sessions_above_limit_are_served(forced, monkeypatch):
    """Each session is served, the limit is respected, and ended sessions are removed."""
    monkeypatch.setattr("mama_structs.adapters.mcp.clients.MAX_CLIENTS", 3)
    own = server(forced)
    async with served(own) as url:
        async with contextlib.AsyncExitStack() as others:
            clients = [await others.enter_async_context(Client(url, mode="legacy")) for _ in range(5)]
            for client in clients:
                await client.call_tool("list_refs", {}, meta={MESSAGE_KEY: RESUMING})
            during = len(list(own._clients))
            last = await names_of(clients[-1])
            forgotten = await names_of(clients[0])
        for _ in range(6_000):
            # Wait until only the connection of the server's lifespan is open. It ends with the server.
            if 1 == (after := len(list(own._clients))):
                break
            await asyncio.sleep(0.01)

    assert last < forgotten == set(map(make_wire_name, forced.tools))
    assert (4, 1) == (during, after)


async def test_http_streams_are_limited(session, monkeypatch):
    """A stream above the limit is rejected, and other requests work."""
    monkeypatch.setattr("mama_structs.adapters.mcp.clients.MAX_CLIENTS", 1)
    async with (
        served(server(session)) as url,
        Client(url, mode="2026-07-28", extensions=[advertise(EXTENSION, {"client": "a"})]) as one,
        Client(url, mode="2026-07-28") as other,
        one.listen(tools_list_changed=True),
    ):
        with pytest.raises(Exception, match="too many clients listen"):
            await other.listen(tools_list_changed=True).__aenter__()

        assert len(session.tools) == len(await names_of(other))


async def test_http_client_from_before_restart_is_notified(session):
    """The server does not know the list of an unknown handle (2026-07-28), so the first stream notifies it."""
    myself = advertise(EXTENSION, {"client": "agent-1"})
    async with served(server(session)) as url, Client(url, mode="2026-07-28", extensions=[myself]) as client:
        async with client.listen(tools_list_changed=True) as changes:
            await asyncio.wait_for(anext(changes), 60)

        assert len(session.tools) == len(await names_of(client))


async def test_http_call_accepts_null_arguments(session, era):
    """Clients in some languages send null for a call without arguments."""
    for arguments in ({"arguments": None}, {}, {"arguments": {"limit": "2", "since": None}}):
        call = {**LIST, "method": "tools/call", "params": {**LIST["params"], "name": "search__recent", **arguments}}
        async with served(session) as url:
            more = {}
            if era == "legacy":
                _, headers, _ = await post(url, era)
                more = {"Mcp-Session-Id": headers["Mcp-Session-Id"]}
                del call["params"]["_meta"]
                await post(url, era, body=json.dumps({"jsonrpc": "2.0", "method": INITIALIZED}), headers=more)
            else:
                more = {"Mcp-Method": "tools/call", "Mcp-Name": "search__recent"}
            status, _, text = await post(url, era, body=json.dumps(call), headers=more)

        assert 200 == status
        assert '"isError":false' in text


async def test_http_stop_ends_streams_and_completes_calls(session):
    """Subscribed clients do not block the shutdown; a running call is answered."""
    begun = asyncio.Event()

    async def slow() -> str:
        begun.set()
        await asyncio.sleep(0.3)
        return "done"

    session.tools.add(slow)
    async with contextlib.AsyncExitStack() as serving, contextlib.AsyncExitStack() as clients:
        url = await serving.enter_async_context(served(session))
        client = await clients.enter_async_context(Client(url, mode="2026-07-28"))
        await client.list_tools()
        listening = await clients.enter_async_context(client.listen(tools_list_changed=True))
        call = asyncio.create_task(client.call_tool("slow", {}))
        await begun.wait()
        await serving.aclose()
        result = await call
        rest = [event async for event in listening]

    assert "done" == result.content[0].text
    assert [] == rest


async def test_http_stop_does_not_wait_for_subscribed_clients(forced, caplog):
    """The streams of both protocol eras are ended immediately and regularly."""
    heard = asyncio.Event()

    async def take(message):
        if isinstance(message, ToolListChangedNotification):
            heard.set()

    async with contextlib.AsyncExitStack() as serving, contextlib.AsyncExitStack() as clients:
        url = await serving.enter_async_context(served(forced))
        client = await clients.enter_async_context(Client(url, mode="legacy", message_handler=take))
        modern = await clients.enter_async_context(Client(url, mode="2026-07-28"))
        await clients.enter_async_context(modern.listen(tools_list_changed=True))
        await client.list_tools()
        await say_until(heard, client)
        await serving.aclose()

    assert [] == [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")]


async def test_http_connection_outlives_client_keep_alive(session, era, monkeypatch):
    """A request after a pause is answered: the server does not close a connection before clients do."""
    question, more = RAW[era]
    headers = {"Accept": "application/json, text/event-stream", **more}
    limits = httpx2.Limits(keepalive_expiry=None)
    loop, now = asyncio.get_running_loop(), asyncio.get_running_loop().time
    ports = []
    async with served(session) as url, httpx2.AsyncClient(limits=limits) as client:
        for pause in (0, 100):
            # Before the second request, advance the clock by 100 s, so that shorter keep-alive timers expire.
            monkeypatch.setattr(loop, "time", lambda pause=pause: now() + pause)
            await asyncio.sleep(0.01)
            answer = await client.post(url, json=question, headers=headers)
            assert 200 == answer.status_code
            ports.append(answer.extensions["network_stream"].get_extra_info("client_addr"))

    assert ports[0] == ports[1]


# Access control


async def test_http_rejects_foreign_host_and_origin(session, era):
    """A foreign Host or Origin is rejected, as is a form submission, which browsers send without a preflight."""
    expected = [
        ({}, 200),
        ({"Host": "localhost:{port}"}, 200),
        ({"Origin": "http://localhost:{port}"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:{port}"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Host": "127.0.0.1:{port}.evil.example"}, 421),
        ({"Host": "localhost.evil.example:{port}"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://evil.example:{port}"}, 403),
        ({"Origin": "http://127.0.0.1:{port}.evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 400),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 400),
    ]
    async with served(session) as url:
        port = url.rpartition(":")[2].partition("/")[0]
        told = [
            (headers, (await post(url, era, headers={k: v.format(port=port) for k, v in headers.items()}))[0])
            for headers, _ in expected
        ]

    assert expected == told


async def test_http_rejects_session_access_from_foreign_host(session):
    """With the id of a session, another Host can neither listen to it nor end it."""
    async with served(session) as url:
        _, headers, _ = await post(url, "legacy")
        own = {"Mcp-Session-Id": headers["Mcp-Session-Id"], "Accept": "text/event-stream"}
        evil = {**own, "Host": "evil.example"}
        async with aiohttp.ClientSession() as http:
            async with http.get(url, headers=evil) as answer:
                listening = answer.status
            async with http.delete(url, headers=evil) as answer:
                ending = answer.status
            async with http.delete(url, headers=own) as answer:
                ended = answer.status

    assert (421, 421, 200) == (listening, ending, ended)


async def test_http_accepts_allowed_hosts(session, era):
    """A host behind a proxy with another name configures that name."""
    async with served(session, allowed_hosts=["agents.example"]) as url:
        allowed, _, _ = await post(url, era, headers={"Host": "agents.example", "Origin": "https://agents.example"})
        other, _, _ = await post(url, era, headers={"Host": "agent.example"})

    assert 200 == allowed
    assert 421 == other


async def test_http_checks_token(session, era, caplog):
    """Without the correct token the only answer says how to send one."""
    async with served(session, token=TOKEN) as url:
        answers = [
            await post(url, era, headers=headers)
            for headers in (
                {},
                {"Authorization": "Bearer another-token-of-many-characters"},
                {"Authorization": f"Bearer {TOKEN}x"},
                {"Authorization": "Bearer "},
                {"Authorization": f"Basic {TOKEN}"},
                {"Authorization": "Bearer t\u00f6ken"},
            )
        ]
        right, _, _ = await post(url, era, headers={"Authorization": f"Bearer {TOKEN}"})

    assert {401} == {status for status, _, _ in answers}
    assert all(headers["WWW-Authenticate"].startswith("Bearer") for _, headers, _ in answers)
    assert 200 == right
    assert TOKEN not in caplog.text
    assert not any(TOKEN in text for _, _, text in answers)


async def test_http_official_client_sends_token(session, era):
    """The token is a header of the client's HTTP client."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        served(session, token=TOKEN) as url,
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=era) as client,
    ):
        listed = await names_of(client)

    assert len(session.tools) == len(listed)


async def test_http_rejects_long_body(session, era):
    """The server reads no more than the limit, with or without a Content-Length."""

    async def pieces():
        for _ in range(100):
            yield b"x" * 100

    async with served(session, max_body=5000) as url:
        announced, _, _ = await post(url, era, body=b"x" * 5001)
        streamed, _, _ = await post(url, era, body=pieces())
        right, _, _ = await post(url, era)

    assert (413, 413, 200) == (announced, streamed, right)


async def raw_answer(url, *pieces, ends=True):
    """Send bytes on a separate connection. Return the status and all data received until the server closes it."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    for piece in pieces:
        writer.write(piece)
    if ends:
        writer.write(b"\r\n")
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return int(answer.split(b" ", 2)[1]) if answer else None, answer


def head(url, *headers, length):
    lines = [
        "POST /mcp HTTP/1.1",
        f"Host: {urlsplit(url).netloc}",
        "Accept: application/json, text/event-stream",
        "Content-Type: application/json",
        "Connection: close",
        f"Content-Length: {length}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n"


async def test_http_rejects_headers_that_are_too_long(session):
    """Headers above the limit are answered with 431, whether they are complete or endless."""
    async with served(session) as url:
        whole = head(url, *(f"X-{number}: {'a' * 100}" for number in range(400)), length=0)
        at_once, _ = await raw_answer(url, whole)
        endless, _ = await raw_answer(url, head(url, length=0), b"X: ", b"a" * 100_000, ends=False)
        right, _, _ = await post(url, "legacy")

    assert (431, 431, 200) == (at_once, endless, right)


async def test_http_ends_slow_requests(session, monkeypatch):
    """A client with slow headers or a slow body is answered with 408. A client that sends nothing is disconnected."""
    monkeypatch.setattr(http_limits, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(http_limits, "BODY_SECONDS", 0.2)
    async with served(session) as url:
        slow = [
            raw_answer(url, head(url, length=0), ends=False),
            raw_answer(url, head(url, length=50), b"\r\n{", ends=False),
            raw_answer(url, ends=False),
        ]
        statuses = [status for status, _ in await asyncio.gather(*slow)]

    assert [408, 408, None] == statuses


async def test_http_ends_connection_when_body_goes_on_after_answer(session, monkeypatch):
    """A client without the token cannot keep a connection open with a body that arrives byte by byte."""
    monkeypatch.setattr(http_limits, "UNREAD_BODY_SECONDS", 0.2)
    async with served(session, token=TOKEN) as url:
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(head(url, length=1000).replace(b"close", b"keep-alive") + b"\r\n{")
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 60)
        is_closed, deadline = False, asyncio.get_running_loop().time() + 60
        while not is_closed and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
            try:
                writer.write(b" ")
                await writer.drain()
                is_closed = await asyncio.wait_for(reader.read(65_536), 0.01) == b""
            except TimeoutError:
                continue
            except OSError:
                # A server that closes a connection with unread bytes resets it, so reading raises OSError here.
                is_closed = True
        writer.close()

    assert b"401" in answer
    assert is_closed


async def test_http_answers_next_request_when_body_ends_after_answer(session, monkeypatch):
    """The time limit for the rest of one body does not affect the next request on the connection."""
    monkeypatch.setattr(http_limits, "UNREAD_BODY_SECONDS", 1.0)
    async with served(session, token=TOKEN) as url:
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        first = head(url, length=2).replace(b"close", b"keep-alive")
        writer.write(first + b"\r\n{")
        await asyncio.wait_for(reader.readuntil(b"\r\n"), 60)
        writer.write(b"}" + head(url, length=2))
        await asyncio.sleep(1.3)
        writer.write(b"\r\n{}")
        rest = await asyncio.wait_for(reader.read(), 60)
        writer.close()

    assert 1 == rest.count(b"HTTP/1.1 401")


async def test_http_answers_request_after_time_for_headers(session, monkeypatch):
    """The limit applies to headers only: a longer call is answered, and a connection can be reused."""
    # On a busy machine, the headers of both requests must arrive within this time.
    monkeypatch.setattr(http_limits, "HEADER_SECONDS", 1.0)

    async def wait() -> str:
        await asyncio.sleep(1.2)
        return "done"

    session.tools.add(wait)
    async with served(session) as url, Client(url) as client:
        first = await client.call_tool("wait", {})
        again = await client.call_tool("wait", {})

    assert ["done", "done"] == [first.content[0].text, again.content[0].text]


@pytest.mark.parametrize(
    ("body", "found", "code"),
    [
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', 1.5, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}', 1, -32700),
        (
            b'{"method":"x","params":{"a":%b},"jsonrpc":"2.0","id":"deep"}' % (b"[" * 5_000 + b"]" * 5_000),
            "deep",
            -32600,
        ),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', None, -32600),
        (b"{", None, -32700),
    ],
)
async def test_http_rejects_body_as_over_stdio(session, era, body, found, code):
    """An invalid body is answered with 400, the code and the id."""
    async with served(session) as url:
        status, _, text = await post(url, era, body=body)

    answer = json.loads(text)
    assert (400, found, code) == (status, answer["id"], answer["error"]["code"])


async def test_http_repairs_body_as_over_stdio(session, era):
    """A lone surrogate escape or a byte order mark does not make a request fail."""
    question, _ = RAW[era]
    body = b"\xef\xbb\xbf" + json.dumps({**question, "cut": "\ud83d"}).encode()
    async with served(session) as url:
        status, _, _ = await post(url, era, body=body)

    assert 200 == status


async def test_http_rejects_invalid_requests_and_continues(session, era):
    """Invalid requests are answered with a 4xx status."""
    bodies = [b"", b"{", b"[]", b"null", b'{"jsonrpc": "2.0"}', b"\xff\xfe", b"[" * 3000]
    async with served(session) as url:
        told = {body: (await post(url, era, body=body))[0] for body in bodies}
        after, _, _ = await post(url, era)

    assert {} == {body: status for body, status in told.items() if status != 202 and not 400 <= status < 500}
    assert 200 == after


# Arguments of the server


async def test_http_requires_token_for_non_loopback_address(session):
    """Without a token the server does not listen on an address that others can reach."""
    for host in ("0.0.0.0", "::", "0", ""):
        with pytest.raises(InvalidArgument, match=r"token|host"):
            await serve_http(session, host=host, port=0)


async def test_http_serves_any_address_with_token(session, era):
    """With a token the server listens on any address, and still checks the Host."""
    authorized = {"Authorization": f"Bearer {TOKEN}"}
    async with served(session, host="0.0.0.0", token=TOKEN) as url:
        port = url.rpartition(":")[2].partition("/")[0]
        near = f"http://127.0.0.1:{port}/mcp"
        by_name, _, _ = await post(near, era, headers={**authorized, "Host": f"{socket.gethostname()}:{port}"})
        right, _, _ = await post(near, era, headers=authorized)
        missing, _, _ = await post(near, era)
        evil, _, _ = await post(near, era, headers={**authorized, "Host": f"evil.example:{port}"})

    assert (200, 200, 401, 421) == (by_name, right, missing, evil)


async def test_http_error_names_address_in_use(session):
    """Two servers cannot share a port."""
    async with served(session) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(MamaStructsError, match=f"port {port}"):
            await serve_http(session, port=port)


async def test_http_rejects_invalid_arguments(session):
    """Arguments are validated before listening, and no error contains a token."""
    for options in (
        {"port": -1},
        {"port": 65_536},
        {"port": "80"},
        {"port": True},
        {"host": None},
        {"host": "no such host"},
        {"token": ""},
        {"token": "short"},
        {"token": "with spaces in it, many of them"},
        {"token": "t\u00f6ken-of-more-than-sixteen"},
        {"token": "line\nbreak-of-more-than-sixteen"},
        {"allowed_hosts": "agents.example"},
        {"allowed_hosts": ["*"]},
        {"allowed_hosts": ["http://agents.example"]},
        {"allowed_hosts": [""]},
        {"max_body": 0},
    ):
        (name,) = options
        with pytest.raises(InvalidArgument, match=name) as raised:
            await serve_http(session, **{"port": 0, **options})

        assert not options.get("token") or options["token"] not in str(raised.value)


@given(sent=st.text(max_size=50))
async def test_token_is_compared_exactly(sent):
    """No other text is accepted as the token."""
    told = await BearerTokenVerifier(check_token(TOKEN)).verify_token(sent)

    assert (sent == TOKEN) == (told is not None)


@given(host=st.sampled_from(["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"]), port=st.integers(1, 65_535))
async def test_loopback_is_detected_by_resolved_address(host, port):
    """The address to which a name resolves counts."""
    address = await ListenAddress.resolve(host, port)

    assert address.is_loopback
    assert all(one.endswith(f":{port}") or port in (80, 443) for one in address.list_allowed_hosts(()))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "::ffff:10.1.2.3", "192.0.2.1", "fe80::1"])
async def test_other_addresses_are_not_loopback(host):
    """An address that others can reach needs a token."""
    assert not (await ListenAddress.resolve(host, 1)).is_loopback
