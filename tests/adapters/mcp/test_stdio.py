"""The stdio transport of the MCP server, with pipes instead of stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import tracemalloc
from typing import Any

import mcp_types as types
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage

from mama_structs import HashEmbedder, Session, adapters
from mama_structs.adapters.mcp import serve_stdio, server
from mama_structs.adapters.mcp.jsonrpc import Rejection
from mama_structs.adapters.mcp.stdio import (
    LINE_SECONDS,
    PROGRESS_GAP_SECONDS,
    ByteBudget,
    StdioConnection,
    _decode_lines,
    _serve,
    split_lines,
)
from mama_structs.cli.command_table import parse
from mama_structs.cli.serve_commands import create_settings, load_mcp_adapter
from mama_structs.errors import MamaStructsError

ABOUT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


def line(number, method, **params):
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


@contextlib.contextmanager
def pipes(monkeypatch):
    """Replace stdin and stdout with pipes, and yield the client's ends."""
    to_read, to_write = os.pipe(), os.pipe()
    with (
        os.fdopen(to_read[0]) as stdin,
        os.fdopen(to_write[1], "w") as stdout,
        os.fdopen(to_read[1], "wb", buffering=0) as ours,
        os.fdopen(to_write[0], "rb") as theirs,
    ):
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", stdout)
        yield ours, theirs
        monkeypatch.undo()


async def test_stdio_reads_split_and_joined_messages(monkeypatch):
    """Messages are answered if one is split in two reads or two come in one read. The end of stdin ends the server."""
    async with Session.open() as session:
        with pipes(monkeypatch) as (ours, theirs):
            serving = asyncio.create_task(serve_stdio(session))
            hello, ping = line(1, "initialize", **ABOUT), line(2, "ping")
            ours.write(hello[:20])
            await asyncio.sleep(0.02)
            ours.write(hello[20:] + ping)
            answers = [json.loads(await asyncio.to_thread(theirs.readline)) for _ in range(2)]
            ours.close()
            await asyncio.wait_for(serving, 60)

    assert [1, 2] == [answer["id"] for answer in answers]
    assert "mama-structs" == answers[0]["result"]["serverInfo"]["name"]


async def test_stdio_can_be_cancelled_while_waiting_for_input(monkeypatch):
    """A host that stops the server need not wait for the next line."""
    async with Session.open() as session:
        with pipes(monkeypatch) as (ours, theirs):
            serving = asyncio.create_task(serve_stdio(session))
            ours.write(line(1, "initialize", **ABOUT))
            await asyncio.to_thread(theirs.readline)
            serving.cancel()
            await asyncio.wait({serving}, timeout=60)
            # Closing the client's end unblocks the reader thread.
            ours.close()

        assert serving.cancelled()
        assert session.is_open


async def test_stdio_ends_without_error_when_client_disconnects(monkeypatch):
    """If nothing reads the answers any more, serving ends without an error."""
    async with Session.open() as session:
        with pipes(monkeypatch) as (ours, theirs):
            theirs.close()
            serving = asyncio.create_task(serve_stdio(session))
            ours.write(line(1, "initialize", **ABOUT))
            await asyncio.wait_for(serving, 60)
            ours.close()
            # Closing stdout flushes an answer that the SDK could not write. This flush raises BrokenPipeError.
            with contextlib.suppress(BrokenPipeError):
                sys.stdout.close()


async def test_stdio_raises_without_stdin(monkeypatch):
    """If stdin is closed, or belongs to a notebook, serving is impossible."""
    monkeypatch.setattr(sys, "stdin", None)
    async with Session.open() as session:
        with pytest.raises(MamaStructsError, match="no stdin"):
            await serve_stdio(session)


def lines_in(chunks, **options):
    """Return the lines that `split_lines` yields for *chunks*. None as a chunk simulates a read timeout."""
    coming = iter([*chunks, b""])
    return [*split_lines(lambda _seconds: next(coming), **options)]


@given(chunks=st.lists(st.binary(min_size=1, max_size=8).map(lambda part: part.replace(b"a", b"\n")), max_size=200))
def test_split_lines_does_not_depend_on_chunks(chunks):
    """Any chunks give the same lines, and the last line needs no newline."""
    whole = b"".join(chunks).split(b"\n")

    assert (whole if whole[-1] else whole[:-1]) == lines_in(chunks)


@given(
    before=st.lists(st.binary(max_size=30), max_size=3),
    filler=st.text(max_size=60),
    size=st.integers(1, 9),
    id_comes_last=st.booleans(),
)
def test_split_lines_rejects_long_line_with_its_id(before, filler, size, id_comes_last):
    """A line above the limit becomes a rejection with its id at any position, and the next line is read."""
    members = {"params": {"id": 8, "a": [{"id": "b"}, filler * 9 + "x" * 100]}}
    message = {**members, "id": 7} if id_comes_last else {"id": 7, **members}
    short = [part.replace(b"\n", b"") for part in before]
    stream = b"\n".join([*short, json.dumps(message).encode(), b"next"])
    chunks = [stream[start : start + size] for start in range(0, len(stream), size)]

    found = lines_in(chunks, max_bytes=100)

    rejected = Rejection(types.INVALID_REQUEST, "the message has more than 100 bytes", 7)
    assert [*short, rejected, b"next"] == found


def test_split_lines_holds_no_more_than_limit():
    """Memory for an endless line is limited to the limit plus one chunk."""
    chunk = b"x" * 10_000
    coming = iter([chunk] * 2_000)
    tracemalloc.start()
    found = [*split_lines(lambda _seconds: next(coming, b""), max_bytes=50_000)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [Rejection(types.INVALID_REQUEST, "the message has more than 50,000 bytes")] == found
    assert peak < 1_000_000


def test_split_lines_yields_line_after_timeout():
    """An unfinished line is yielded after a timeout, and its rest is skipped. Other timeouts have no effect."""
    waits = []

    def read(seconds):
        waits.append(seconds)
        return next(coming)

    coming = iter([b"first\nbro", None, b"ken", b"\nnext\n", b""])

    assert [b"first", b"bro", b"next"] == [*split_lines(read)]
    assert [None, LINE_SECONDS, None, None, None] == waits


def test_split_lines_ends_when_stdin_fails():
    """A read error ends the lines."""

    def vanish(_seconds):
        raise ConnectionResetError

    assert [] == [*split_lines(vanish)]


# Requests and their answers


class Sent:
    """An output stream that records the messages to the client."""

    def __init__(self):
        self.messages = []
        self.times = []

    async def send(self, item):
        await asyncio.sleep(0)
        self.messages.append(json.loads(item.message.model_dump_json()))
        self.times.append(asyncio.get_running_loop().time())

    async def aclose(self):
        pass


class Client:
    """A client without a transport. It passes lines to a server in the same process and returns the answers."""

    def __init__(self, session):
        self.session = session

    async def answers(self, *lines, version="2025-11-25"):
        """Return the server's answers to *lines*, in order, without the answer to the handshake."""
        hello = line(0, "initialize", **{**ABOUT, "protocolVersion": version})
        chunks = iter([hello, b"\n".join(lines), b""])
        sent = Sent()
        await _serve(server(self.session), split_lines(lambda _seconds: next(chunks)), sent)
        found = sent.messages
        assert 0 == found[0]["id"]
        self.times = sent.times[1:]
        return found[1:]


@pytest.fixture
async def client():
    async with Session.open(embedder=HashEmbedder()) as session:
        yield Client(session)


def ping(number, **changes):
    return {"jsonrpc": "2.0", "id": number, "method": "ping", "params": {}} | changes


def code_of(answer):
    return answer.get("error", {}).get("code")


DEEP = b'{"jsonrpc":"2.0","method":"ping","params":{"a":%b},"id":"deep"}' % (b"[" * 5_000 + b"]" * 5_000)


@pytest.mark.parametrize(
    ("raw", "found", "code"),
    [
        (rb'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\ud83d"}}', 1, None),
        (rb'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"\uDE00":1}}', 1, None),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}', 1, None),
        (b'{"jsonrpc":"2.0","id":1.0,"method":"ping"}', 1, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}\r', 1, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\t"}}', 1, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\xff"}}', 1, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}', 1, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping",', 1, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}}', 1, -32700),
        (b'{"id":%b}' % (b"9" * 5_000), None, -32700),
        (b"{", None, -32700),
        (b"nonsense", None, -32700),
        (b"\0", None, -32700),
        (DEEP, "deep", -32600),
        (b"[" * 5_000, None, -32600),
        (b"[]", None, -32600),
        (b"7", None, -32600),
        (b'{"jsonrpc":"2.0","id":1}', 1, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":3}', 1, -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', 1, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}', 1, -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', 1.5, -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":3,"method":"ping","id":1}', 1, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"no/such/method"}', 1, -32601),
    ],
)
async def test_stdio_answers_line_with_id_and_code(client, raw, found, code):
    """A line is answered once, with its id if that is readable, and the connection continues."""
    answers = await client.answers(raw, json.dumps(ping("next")).encode())

    assert [(found, code), ("next", None)] == [(one["id"], code_of(one)) for one in answers]


async def test_stdio_repairs_lone_surrogate_and_keeps_other_escapes(client):
    """A truncated emoji becomes U+FFFD. Surrogate pairs and an escaped backslash before a u are unchanged."""
    text = rb"cut \ud83d, whole \ud83d\ude00, path C:\\ud83d"
    raw = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"save__insight","arguments":{"content":"%b"}}}'
    )

    (answer,) = await client.answers(raw % text)

    assert not answer["result"]["isError"]
    (memory,) = await client.session.memories.list()
    assert "cut \ufffd, whole \U0001f600, path C:\\ud83d" == memory.content


@pytest.mark.parametrize("raw", [b"", b" \r", b'{"jsonrpc":"2.0","method":"notifications/x"}'])
async def test_stdio_does_not_answer_blank_lines_and_notifications(client, raw):
    """Lines that need no answer get none."""
    assert [] == await client.answers(raw)


@pytest.mark.parametrize(
    "raw", [b'{"jsonrpc":"2.0","id":1,"result":{}}', b'{"jsonrpc":"2.0","id":1,"error":5}', b'{"id":1,"result":7}']
)
async def test_stdio_does_not_answer_responses(client, raw):
    """A client could confuse such an answer with that to its own request of the same id."""
    assert [] == await client.answers(raw)


BATCH = [ping(1), ping(2.5), {"jsonrpc": "2.0", "method": "notifications/x"}, ping("b"), 7]


async def test_stdio_answer_follows_progress_after_a_gap(client):
    """A client that reads both together may process the answer first, and report the progress as unknown."""

    async def steps(ctx: Any) -> str:
        await ctx.session.report_progress(1, 1)
        return "done"

    client.session.tools.add(steps)
    meta = {"progressToken": 0}
    progress, answer = await client.answers(line(1, "tools/call", name="steps", _meta=meta).strip())

    assert ("notifications/progress", 0) == (progress["method"], progress["params"]["progressToken"])
    assert 1 == answer["id"]
    assert client.times[1] - client.times[0] >= PROGRESS_GAP_SECONDS / 2


async def test_stdio_answers_batch_with_array_when_version_has_batches(client):
    """Protocol version 2025-03-26 has batches: one array contains an answer for each member that needs one."""
    (answers,) = await client.answers(json.dumps(BATCH).encode(), version="2025-03-26")

    found = [(1, None), (2.5, -32600), ("b", None), (None, -32600)]
    assert sorted(found, key=str) == sorted([(one["id"], code_of(one)) for one in answers], key=str)


async def test_stdio_rejects_initialize_in_batch(client):
    """The handshake must not be part of a batch."""
    batch = [ping(1, method="initialize", params=ABOUT), ping(2)]

    (answers,) = await client.answers(json.dumps(batch).encode(), version="2025-03-26")

    assert {1: -32600, 2: None} == {one["id"]: code_of(one) for one in answers}


@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_stdio_rejects_each_request_of_batch_when_version_has_none(client, version):
    """Other versions have no batches: nothing runs, and each request is rejected."""
    call = ping("save", method="tools/call", params={"name": "save__insight", "arguments": {"content": "x"}})

    answers = await client.answers(json.dumps([ping(1), call]).encode(), b"[7]", version=version)

    assert [(1, -32600), ("save", -32600), (None, -32600)] == [(one["id"], code_of(one)) for one in answers]
    assert 0 == len(await client.session.memories.list())


async def test_stdio_answers_duplicate_id_after_running_request(client):
    """A second request with the id of a running one does not run, and is answered after it."""
    calls = []

    async def slow() -> str:
        calls.append(1)
        await asyncio.sleep(0.01)
        return "done"

    client.session.tools.add(slow)
    call = json.dumps(ping(1, method="tools/call", params={"name": "slow"})).encode()

    answers = await client.answers(call, call, b'{"jsonrpc":"2.0","id":1,"method":7}')

    assert [(1, None), (1, -32600), (1, -32600)] == [(one["id"], code_of(one)) for one in answers]
    assert 1 == len(calls)


async def test_stdio_completes_accepted_requests_at_end_of_input(client):
    """The end of stdin cancels no call: each is completed and answered before the server ends."""
    started = []

    async def wait(number: int) -> str:
        started.append(number)
        await asyncio.sleep(0.02)
        return f"done {number}"

    client.session.tools.add(wait)
    calls = [
        ping(number, method="tools/call", params={"name": "wait", "arguments": {"number": number}})
        for number in range(1, 6)
    ]

    answers = await client.answers(*(json.dumps(call).encode() for call in calls))

    assert {number: f"done {number}" for number in started} == {
        one["id"]: one["result"]["content"][0]["text"] for one in answers
    }
    assert 5 == len(started)


async def test_stdio_ends_when_only_cancelled_requests_are_open(client):
    """A cancelled request is not answered and does not block the shutdown."""
    reached = asyncio.Event()

    async def forever() -> str:
        reached.set()
        await asyncio.Event().wait()
        return "never"

    client.session.tools.add(forever)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    lines = [ping(1, method="tools/call", params={"name": "forever"}), cancel, ping(2)]

    answers = await asyncio.wait_for(client.answers(*(json.dumps(one).encode() for one in lines)), 60)

    assert [2] == [one["id"] for one in answers]
    assert reached.is_set()


async def test_stdio_answers_result_that_has_no_json_form():
    """A result that cannot be serialized affects only its own answer, which says that the request was processed."""
    sent = Sent()
    connection = StdioConnection(sent)

    await connection.send(SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=4, result={"a": "\ud83d"})))

    (answer,) = sent.messages
    assert (4, -32603) == (answer["id"], code_of(answer))
    assert "was processed" in answer["error"]["message"]


def test_byte_budget_blocks_until_bytes_are_given_back():
    """A thread that takes more than the remaining bytes blocks, so that pending requests are bounded."""
    budget, order = ByteBudget(10), []

    def take():
        budget.acquire(8)
        order.append("taken")

    budget.acquire(5)
    thread = threading.Thread(target=take)
    thread.start()
    order.append("returned")
    budget.release(5)
    thread.join(60)

    assert ["returned", "taken"] == order


def requests_of(draw_id):
    """Return a strategy for JSON-RPC requests whose id is drawn from *draw_id* and whose members have any order."""
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3)
    )
    params = st.dictionaries(st.text(max_size=5) | st.just("id"), values, max_size=3)
    return st.builds(
        lambda found, given, order: {
            name: {"jsonrpc": "2.0", "id": found, "method": "ping", "params": {"x": given}}[name] for name in order
        },
        draw_id,
        params,
        st.permutations(["jsonrpc", "id", "method", "params"]),
    )


def is_notification(raw):
    """Return True if the damaged request is valid but has no id. It is then a notification, which gets no answer."""
    try:
        value = json.loads(raw.decode(), strict=False)
    except ValueError:
        return False
    return "id" not in value and value.get("jsonrpc") == "2.0" and "method" in value


MUTATIONS = {
    "none": lambda raw, _place: raw,
    "bom": lambda raw, _place: b"\xef\xbb\xbf" + raw,
    "surrogate": lambda raw, _place: raw.replace(b'"x"', rb'"x\ud800"'),
    "nan": lambda raw, _place: raw.replace(b'"x": ', b'"y": NaN, "x": '),
    "latin": lambda raw, _place: raw.replace(b'"x"', b'"x\xe9"'),
    "deep": lambda raw, _place: raw.replace(b'"x": ', b'"y": ' + b"[" * 5_000 + b"]" * 5_000 + b', "x": '),
    "no method": lambda raw, _place: raw.replace(b'"method"', b'"methods"'),
    "trailing": lambda raw, _place: raw + b"}",
    "nothing": lambda raw, _place: b" ",
}
# Functions that damage a request at a position. If its id becomes unreadable, the answer has the id null.
DAMAGE = {
    "cut": lambda raw, place: raw[: place % len(raw)],
    "flip": lambda raw, place: raw[: place % len(raw)] + b"\xfe" + raw[place % len(raw) + 1 :],
    "insert": lambda raw, place: raw[: place % len(raw)] + b'"' + raw[place % len(raw) :],
    "nul": lambda raw, place: raw[: place % len(raw)] + b"\0" + raw[place % len(raw) :],
}


@given(
    found=st.lists(st.integers(1) | st.text('abc\n"{},:', min_size=1), unique_by=repr, min_size=1, max_size=8),
    data=st.data(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_stdio_answers_each_mutated_request_line_once(client, found, data):
    """Each damaged request line gets one answer, with its id or with the id null."""
    lines, certain, uncertain = [], [], []
    for one in found:
        raw = json.dumps(data.draw(requests_of(st.just(one)))).encode()
        name = data.draw(st.sampled_from([*MUTATIONS, *DAMAGE]))
        changed = {**MUTATIONS, **DAMAGE}[name](raw, data.draw(st.integers(0, 10**6)))
        lines.append(changed)
        if name in MUTATIONS and name != "nothing":
            certain.append(one)
        elif changed.strip() and not is_notification(changed):
            uncertain.append(one)
    answers = await client.answers(*lines)

    ids = [one["id"] for one in answers]
    assert len(certain) + len(uncertain) == len(ids)
    assert all(ids.count(one) == 1 for one in certain)


# The command serve-mcp


def parsed(*arguments):
    return parse(["serve-mcp", "agent.mama", *arguments])


def test_serve_mcp_options_override_environment(monkeypatch):
    """Options override the environment variables; the other variables still apply."""
    monkeypatch.setenv("MAMA_STRUCTS_TOOLS_DYNAMIC", "force_dynamic")
    monkeypatch.setenv("MAMA_STRUCTS_REFERENCES_CACHE_TTL", "7")

    assert "force_dynamic" == create_settings(parsed()).tools.dynamic
    settings = create_settings(parsed("--dynamic", "force_static", "--deprecated"))
    assert ("force_static", True) == (settings.tools.dynamic, settings.tools.deprecated)
    assert 7 == settings.references.cache_ttl


def test_serve_mcp_reads_only_granted_namespaces():
    """Namespaces are granted on the command line, one by one, by default none."""
    assert ["team:core", "b"] == parsed("--reads", "team:core", "--reads", "b").reads
    assert [] == parsed().reads


@pytest.mark.parametrize(
    ("given", "address"),
    [("8317", ("127.0.0.1", 8317)), ("[::1]:0", ("::1", 0)), ("agents.example:80", ("agents.example", 80))],
)
def test_address_is_port_or_host_and_port(given, address):
    """Without a host it is the loopback address."""
    assert address == parsed("--http", given).http


def test_serve_mcp_missing_sdk_error_says_what_to_install(monkeypatch):
    """The command's error names the extra."""
    for name in [name for name in sys.modules if name.startswith("mama_structs.adapters.mcp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(adapters, "mcp")
    monkeypatch.setitem(sys.modules, "mcp_types", None)

    with pytest.raises(MamaStructsError, match=r"mama-structs\[mcp\]"):
        load_mcp_adapter()


def test_reader_thread_ends_silently_when_loop_is_closed():
    """The thread does not raise if stdin ends after the loop is closed."""
    reading, ended = threading.Event(), threading.Event()

    def read(_seconds):
        reading.set()
        ended.wait(60)
        return b""

    async def serve():
        decoded = _decode_lines(split_lines(read), ByteBudget())
        waiting = asyncio.ensure_future(anext(decoded))
        await asyncio.to_thread(reading.wait, 60)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await decoded.aclose()

    asyncio.run(serve())
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "mama-structs stdin":
            thread.join(60)

    assert "mama-structs stdin" not in [thread.name for thread in threading.enumerate()]
