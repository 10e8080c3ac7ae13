"""Requests over HTTP whose headers are spelled differently from what the SDK expects, sent over raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import Session
from mama_structs.adapters.mcp import serve_http
from mama_structs.adapters.mcp.http import ListenAddress
from mama_structs.adapters.mcp.http_normalization import normalize_host, normalize_origin

MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
ERAS = ("legacy", "2026-07-28")
STATUS_OK = 200


def request(number, method, **params):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


HELLO = request(
    1, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "raw", "version": "1"}
)


class RawClient:
    """A client that writes requests to a socket."""

    def __init__(self, port):
        self.port = port
        self.session_id = None

    async def send(self, method, message=None, *, path="/mcp", **headers):
        """Send a request on its own connection, and return the reader and writer. Headers of value None are omitted."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = b"" if message is None else json.dumps(message).encode()
        own = {
            "Host": f"127.0.0.1:{self.port}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Mcp-Session-Id": self.session_id,
            "Connection": "close",
            "Content-Length": str(len(body)),
        } | {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in own.items() if value is not None)]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        return reader, writer

    async def exchange(self, method, message=None, **options):
        """Send a request, and return status, headers and body of its complete answer."""
        reader, writer = await self.send(method, message, **options)
        try:
            return await read_answer(reader)
        finally:
            writer.close()

    async def status(self, era, **options):
        """Return the status of a valid request, with some headers changed."""
        if era == "legacy":
            return (await self.exchange("POST", HELLO, **options))[0]
        headers = {"MCP_Protocol_Version": era, "Mcp_Method": "tools/list", **options}
        return (await self.exchange("POST", request(1, "tools/list", _meta=MODERN_META), **headers))[0]

    async def initialize(self):
        _, headers, _ = await self.exchange("POST", HELLO)
        self.session_id = headers["mcp-session-id"]
        await self.exchange("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"})


async def read_head(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    return int(first.split()[1]), {name.lower(): value for name, value in (one.split(": ", 1) for one in lines)}


async def read_answer(reader):
    async with asyncio.timeout(60):
        status, headers = await read_head(reader)
        return status, headers, await reader.read()


@contextlib.asynccontextmanager
async def raw_client(session, **options):
    """Serve on loopback during a block, and yield a client."""
    told = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_http(session, port=0, started=told.set_result, **options))
    try:
        yield RawClient(int((await told).rpartition(":")[2].partition("/")[0]))
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.fixture
async def session():
    async with Session.open() as session:
        yield session


@pytest.fixture(params=ERAS)
def era(request):
    return request.param


@pytest.mark.parametrize(
    "value",
    ["Application/JSON", "APPLICATION/JSON; charset=UTF-8", "application/json;charset=utf-8", "application/json ; a=b"],
)
async def test_http_accepts_content_type_in_any_case_with_parameters(session, era, value):
    """Media types are case-insensitive, and parameters do not change them."""
    async with raw_client(session) as client:
        assert STATUS_OK == await client.status(era, Content_Type=value)


@pytest.mark.parametrize(
    "value", ["Application/JSON, Text/Event-Stream", "application/json;q=0.9, text/event-stream;q=0.8", "*/*", None]
)
async def test_http_accepts_equivalent_accept_headers(session, era, value):
    """A missing Accept header accepts every type."""
    async with raw_client(session) as client:
        assert STATUS_OK == await client.status(era, Accept=value)


async def test_http_accepts_equivalent_host_and_origin(session, era):
    """Host names are case-insensitive and may end with the root dot. IPv6 addresses have several forms."""
    hosts = ["LOCALHOST", "LocalHost", "localhost.", "[::1]", "[0:0:0:0:0:0:0:1]", "[0::0001]"]
    origins = ["HTTP://LOCALHOST", "https://LocalHost", "http://[0:0:0:0:0:0:0:1]"]
    async with raw_client(session) as client:
        by_host = {host: await client.status(era, Host=f"{host}:{client.port}") for host in hosts}
        by_origin = {origin: await client.status(era, Origin=f"{origin}:{client.port}") for origin in origins}
        foreign = [
            await client.status(era, Host=f"LOCALHOST.evil.example:{client.port}"),
            await client.status(era, Host=f"[::2]:{client.port}"),
            await client.status(era, Origin=f"HTTP://EVIL.example:{client.port}"),
            await client.status(era, Origin=f"http://localhost:{client.port}/path"),
        ]

    assert dict.fromkeys(hosts, STATUS_OK) == by_host
    assert dict.fromkeys(origins, STATUS_OK) == by_origin
    assert [421, 421, 403, 403] == foreign


async def test_http_allowed_hosts_are_normalized(session, era):
    """Allowed names may have any case, and IPv6 addresses need no brackets."""
    async with raw_client(session, allowed_hosts=["Agents.Example", "FD00:0::5"]) as client:
        told = [await client.status(era, Host=host) for host in ("agents.example", "AGENTS.EXAMPLE", "[fd00::5]")]
        with_port = await client.status(era, Host=f"[fd00::5]:{client.port}")

    assert [STATUS_OK] * 4 == [*told, with_port]


async def test_http_own_host_name_is_allowed_in_lower_case(monkeypatch):
    """Browsers send host names in lower case, also that of a machine named "Build-Host"."""
    monkeypatch.setattr("socket.gethostname", lambda: "Build-Host")

    address = await ListenAddress.resolve("0.0.0.0", 8317)

    assert "build-host:8317" in address.list_allowed_hosts(())


async def test_http_serves_path_with_trailing_slash(session, era):
    """A redirect would lose the body or the token of some clients, and name http behind a TLS proxy."""
    async with raw_client(session) as client:
        assert STATUS_OK == await client.status(era, path="/mcp/")


async def test_http_stream_with_last_event_id_is_served(session):
    """The server announces no resumable streams, so a client that resumes gets a new stream."""
    async with raw_client(session) as client:
        await client.initialize()
        reader, writer = await client.send("GET", Last_Event_ID="7")
        status, headers = await asyncio.wait_for(read_head(reader), 60)
        writer.close()

    assert STATUS_OK == status
    assert headers["content-type"].startswith("text/event-stream")


async def test_http_cancelled_call_is_not_answered(session):
    """The stream of a cancelled call ends without an answer, which clients would report as unexpected."""
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        """Wait for a cancellation."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def show() -> dict[str, object]:
        """Return data that looks like an answer to a cancelled request."""
        return {"error": {"code": -32800, "message": "Request cancelled"}}

    session.tools.add(wait)
    session.tools.add(show)
    async with raw_client(session) as client:
        await client.initialize()
        reader, writer = await client.send("POST", request(7, "tools/call", name="wait"))
        await asyncio.wait_for(started.wait(), 60)
        notification = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        acknowledged, _, _ = await client.exchange("POST", notification)
        status, _, body = await read_answer(reader)
        writer.close()
        reused, _, ping = await client.exchange("POST", request(7, "ping"))
        _, _, shown = await client.exchange("POST", request(8, "tools/call", name="show"))

    assert cancelled.is_set()
    assert (202, STATUS_OK, STATUS_OK) == (acknowledged, status, reused)
    assert b"data:" not in body
    assert b'"id":7,"result":{}' in ping
    assert b'"structuredContent":{"error":{"code":-32800' in shown


@given(
    name=st.from_regex(r"[A-Za-z0-9-]{1,20}(\.[A-Za-z]{1,5})?", fullmatch=True),
    port=st.one_of(st.just(""), st.integers(1, 65_535).map(lambda one: f":{one}")),
)
def test_normalized_host_is_stable_and_ignores_case(name, port):
    """Normalization is idempotent, and the port is unchanged."""
    found = normalize_host(f"{name}{port}")

    assert found == normalize_host(f"{name.upper()}.{port}") == normalize_host(found)
    assert found.endswith(port)


@pytest.mark.parametrize(
    ("given_host", "expected"),
    [
        ("[::FFFF:127.0.0.1]:80", "[::ffff:7f00:1]:80"),
        ("::1", "[::1]"),
        ("[::1", "[::1"),
        ("[zz]:80", "[zz]:80"),
        ("a:b:c", "a:b:c"),
        ("", ""),
        (".", ""),
        (":80", ":80"),
    ],
)
def test_normalize_host_leaves_invalid_hosts(given_host, expected):
    """A host that is no name and no address stays as it is, so that it is rejected."""
    assert expected == normalize_host(given_host)


@pytest.mark.parametrize(("value", "expected"), [("null", "null"), ("HTTPS://A.example:1", "https://a.example:1")])
def test_normalize_origin(value, expected):
    """An opaque origin stays as it is."""
    assert expected == normalize_origin(value)
