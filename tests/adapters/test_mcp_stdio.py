"""The standard streams of an MCP server, with pipes in their place."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import Session, adapters
from mama_structs.adapters.mcp import serve_stdio
from mama_structs.adapters.mcp.stdio import _lines
from mama_structs.commands.serving import adapter_module, settings_of
from mama_structs.commands.table import parse
from mama_structs.errors import MamaStructsError

ABOUT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


def line(number, method, **params):
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


@contextlib.contextmanager
def pipes(monkeypatch):
    """Put pipes in the place of stdin and stdout; give the ends of a client."""
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


async def test_messages_come_in_pieces_and_together(monkeypatch):
    """Where a message is cut in two, and where two come at once, both are answered; the end of stdin ends it."""
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


async def test_serving_can_be_cancelled_while_the_client_says_nothing(monkeypatch):
    """A host that stops the server does not have to wait for the next line."""
    async with Session.open() as session:
        with pipes(monkeypatch) as (ours, theirs):
            serving = asyncio.create_task(serve_stdio(session))
            ours.write(line(1, "initialize", **ABOUT))
            await asyncio.to_thread(theirs.readline)
            serving.cancel()
            await asyncio.wait({serving}, timeout=60)
            # For the thread that still waits.
            ours.close()

        assert serving.cancelled()
        assert session.is_open


async def test_a_client_that_is_gone_ends_the_server_quietly(monkeypatch):
    """Where nobody reads the answers any more, serving ends without an error."""
    async with Session.open() as session:
        with pipes(monkeypatch) as (ours, theirs):
            theirs.close()
            serving = asyncio.create_task(serve_stdio(session))
            ours.write(line(1, "initialize", **ABOUT))
            await asyncio.wait_for(serving, 60)
            ours.close()
            # What the SDK could not write is still in its buffer.
            with contextlib.suppress(BrokenPipeError):
                sys.stdout.close()


async def test_a_process_without_stdin_is_told_so(monkeypatch):
    """Where stdin was closed, or belongs to a notebook, there is nothing to serve over."""
    monkeypatch.setattr(sys, "stdin", None)
    async with Session.open() as session:
        with pytest.raises(MamaStructsError, match="no stdin"):
            await serve_stdio(session)


@given(chunks=st.lists(st.binary(min_size=1, max_size=8).map(lambda part: part.replace(b"a", b"\n")), max_size=200))
async def test_lines_do_not_depend_on_how_they_come_in(chunks):
    """However the bytes are cut, the lines are the same, also more of them than may wait."""
    coming = iter([*chunks, b""])
    found = [one async for one in _lines(lambda: next(coming))]

    whole = b"".join(chunks).split(b"\n")
    expected = whole if whole[-1] else whole[:-1]
    assert [one.decode("utf-8", errors="replace") for one in expected] == found


async def test_a_stdin_that_fails_is_its_end():
    """A client that vanishes ends the lines."""

    def vanish():
        raise ConnectionResetError

    assert [] == [one async for one in _lines(vanish)]


# The command


def parsed(*arguments):
    return parse(["serve-mcp", "agent.mama", *arguments])


def test_options_stand_above_the_environment(monkeypatch):
    """What the command is told replaces what the variables say, and the rest of them counts."""
    monkeypatch.setenv("MAMA_STRUCTS_TOOLS_DYNAMIC", "force_dynamic")
    monkeypatch.setenv("MAMA_STRUCTS_REFERENCES_CACHE_TTL", "7")

    assert "force_dynamic" == settings_of(parsed()).tools.dynamic
    settings = settings_of(parsed("--dynamic", "force_static", "--deprecated"))
    assert ("force_static", True) == (settings.tools.dynamic, settings.tools.deprecated)
    assert 7 == settings.references.cache_ttl


def test_whoever_starts_the_server_says_what_it_reads():
    """Namespaces are granted on the command line, one by one, and none without it."""
    assert ["team:core", "b"] == parsed("--reads", "team:core", "--reads", "b").reads
    assert [] == parsed().reads


@pytest.mark.parametrize(
    ("given", "address"),
    [("8317", ("127.0.0.1", 8317)), ("[::1]:0", ("::1", 0)), ("agents.example:80", ("agents.example", 80))],
)
def test_an_address_is_a_port_or_a_host_and_a_port(given, address):
    """The host can be left out, and is this machine alone then."""
    assert address == parsed("--http", given).http


def test_a_missing_sdk_is_an_error_of_the_command(monkeypatch):
    """The command says what to install."""
    for name in [name for name in sys.modules if name.startswith("mama_structs.adapters.mcp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(adapters, "mcp")
    monkeypatch.setitem(sys.modules, "mcp_types", None)

    with pytest.raises(MamaStructsError, match=r"mama-structs\[mcp\]"):
        adapter_module()


def test_a_thread_that_still_reads_when_its_loop_is_closed_ends_in_silence():
    """The end of stdin may come after the loop is gone: nobody waits for it, and nothing is raised in the thread."""
    reading, ended = threading.Event(), threading.Event()

    def read():
        reading.set()
        ended.wait(60)
        return b""

    async def serve():
        lines = _lines(read)
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.to_thread(reading.wait, 60)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await lines.aclose()

    asyncio.run(serve())
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "mama-structs stdin":
            thread.join(60)

    assert "mama-structs stdin" not in [thread.name for thread in threading.enumerate()]
