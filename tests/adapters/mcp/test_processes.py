"""``mama-structs serve-mcp`` as a separate process, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from mama_structs import HashEmbedder, Session, admin
from mama_structs.adapters.mcp import MESSAGE_KEY
from mama_structs.cli import command_table as table
from mama_structs.cli import serve_commands as serving
from mama_structs.cli.serve_commands import TOKEN_VARIABLE, read_token
from mama_structs.errors import InvalidArgument

COMMAND = [sys.executable, "-m", "mama_structs", "serve-mcp"]
TOKEN = "a-token-of-more-than-sixteen-characters"
RESUMING = "continue from yesterday"
KEPT_WHEN_RESUMING = {"save__decision", "save__checkpoint", "load__checkpoint", "load__context", "search__recent"}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}


def stdio(store, *options):
    return StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], str(store), *options], env=ENVIRONMENT)


def said(result):
    return result.content[0].text


async def made(store):
    """Create a store with an embedder that needs no model, so that the processes start fast."""
    async with Session.open(store, embedder=HashEmbedder()) as session:
        await session.memories.save_insight("made for a test")
    return store


async def names_of(client):
    return {tool.name for tool in (await client.list_tools(cache_mode="bypass")).tools}


@contextlib.asynccontextmanager
async def running(*arguments, **options):
    """Start the command, and kill it at the end of the block if it still runs."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *map(str, arguments), stdin=pipe, stdout=pipe, stderr=pipe, env=ENVIRONMENT | options
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def test_stdio_agent_lists_calls_and_resumes(tmp_path):
    """Every tool is called, the list changes, and the next process remembers."""
    store = await made(tmp_path / "agent.mama")
    async with Client(stdio(store), mode="auto") as client:
        listed = {tool.name: tool for tool in (await client.list_tools(cache_mode="bypass")).tools}
        decision = {"topic": "auth", "decision": "Use JWT", "reasoning": "no state on the server"}
        first = json.loads(said(await client.call_tool("save__decision", decision)))["id"]
        outcome = {"decision_id": first, "outcome": "FAILED", "reason": "tokens could not be revoked"}
        after = {"decision_id": first, "decision": "Use sessions", "reasoning": "they can be revoked"}
        story = [
            await client.call_tool("evolve__outcome", outcome),
            await client.call_tool("evolve__supersede", after),
            await client.call_tool("save__checkpoint", {"summary": "the login is half done"}),
            await client.call_tool("save__insight", {"content": "tokens outlive a logout"}),
            await client.call_tool("load__context", {"id": first}),
            await client.call_tool("search__by_topic", {"topic": "auth"}),
        ]
        # Invalid arguments must produce a tool result instead of a protocol error.
        for name, tool in listed.items():
            for given in ({}, {"nonsense": 1}, dict.fromkeys(tool.input_schema.get("properties", {}), "x")):
                result = await client.call_tool(name, given)
                assert said(result)
                assert not given.get("nonsense") or "nonsense" in said(result)
        async with client.listen(tools_list_changed=True) as changes:
            await client.call_tool("list_refs", {}, meta={MESSAGE_KEY: RESUMING})
            await asyncio.wait_for(anext(changes), 120)
            narrowed = await names_of(client)

    assert [] == [said(result) for result in story if result.is_error]
    assert "tokens could not be revoked" in said(story[-1])
    memory_tools = {name for name in listed if "__" in name}
    assert KEPT_WHEN_RESUMING == narrowed & memory_tools
    assert narrowed > set(listed) - memory_tools

    assert "fd_to_file" not in listed
    async with Client(stdio(store, "--files", str(tmp_path / "out"))) as client:
        assert "fd_to_file" in await names_of(client)

    async with Client(stdio(store, "--verbose"), mode="legacy") as client:
        checkpoint = await client.call_tool("load__checkpoint", {})
        why = await client.call_tool("search__by_context", {"query": "why did we leave JWT?"})
        full = await names_of(client)
        await client.call_tool("list_refs", {}, meta={MESSAGE_KEY: RESUMING})
        after = await names_of(client)

    assert "the login is half done" in said(checkpoint)
    assert "tokens could not be revoked" in said(why)
    assert set(listed) == full == after


async def test_stdio_stdout_has_only_protocol_messages_until_signal(tmp_path):
    """Every line is a message, also after invalid input. SIGTERM ends the server and all data is complete."""
    store = tmp_path / "agent.mama"
    async with running(await made(store), "--verbose") as process:

        async def ask(number, method, **params):
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            process.stdin.write(json.dumps(request).encode() + b"\n")
            while True:
                answer = json.loads(await asyncio.wait_for(process.stdout.readline(), 120))
                if answer.get("id") == number:
                    return answer

        process.stdin.write(b"no json\n\n{}\n\xff\xfe\n")
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        hello = await ask(1, "initialize", **about)
        process.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        given = {"topic": "t", "decision": "안녕 \u2028 d", "reasoning": "r" * 200_000}
        saved = await ask(2, "tools/call", name="save__decision", arguments=given)
        process.send_signal(signal.SIGTERM)
        rest, log = await asyncio.wait_for(asyncio.gather(process.stdout.read(), process.stderr.read()), 120)
        code = await process.wait()
    async with Session.open(store) as session:
        memory, _ = await session.memories.list()
        report = await admin.check(session)

    assert hello["result"]["capabilities"]["tools"]["listChanged"]
    assert memory.id == json.loads(saved["result"]["content"][0]["text"])["id"]
    assert (0, b"") == (code, rest)
    assert report.ok
    assert b"rrrr" not in log


async def test_http_server_is_stopped_during_saves(tmp_path):
    """After SIGTERM the acknowledged saves are stored, the store is undamaged, and the token appears nowhere."""
    store, secret = await made(tmp_path / "agent.mama"), tmp_path / "token"
    secret.write_text(f"{TOKEN}\n")
    secret.chmod(0o120)
    acknowledged, enough = [], asyncio.Event()

    async def agent(url, number):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http), mode=("legacy", "auto")[number % 2]) as client,
        ):
            for step in range(1000):
                given = {"topic": f"t{number}", "decision": f"d{step}", "reasoning": "because"}
                result = await client.call_tool("save__decision", given)
                acknowledged.append(json.loads(said(result))["id"])
                if len(acknowledged) == 8:
                    enough.set()

    async with running(store, "--http", "0", "--token-file", secret, "--verbose") as process:
        url = (await asyncio.wait_for(process.stdout.readline(), 120)).decode().strip()
        async with httpx2.AsyncClient() as http:
            refused = await http.post(url, json={})
        agents = [asyncio.create_task(agent(url, number)) for number in range(4)]
        await asyncio.wait_for(enough.wait(), 120)
        process.send_signal(signal.SIGTERM)
        rest, log = await asyncio.wait_for(asyncio.gather(process.stdout.read(), process.stderr.read()), 120)
        code = await process.wait()
        await asyncio.gather(*agents, return_exceptions=True)
    async with Session.open(store) as session:
        kept = {memory.id for memory in await session.memories.list(limit=100)}
        report = await admin.check(session)

    assert url.startswith("http://127.0.0.1:")
    assert 401 == refused.status_code
    assert (0, b"") == (code, rest)
    assert set(acknowledged) <= kept
    assert report.ok
    assert TOKEN.encode() not in log


async def test_serve_mcp_answers_all_requests_of_a_pipe(tmp_path):
    """``printf ... | mama-structs serve-mcp`` answers every request, also invalid ones, and exits with 0."""
    store = await made(tmp_path / "agent.mama")
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    save = {"name": "save__insight", "arguments": {"content": "saved at the end of a pipe"}}
    messages = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": "save", "method": "tools/call", "params": save},
        {"jsonrpc": "2.0", "id": "cut", "method": "ping", "params": {"text": "\ud83d"}},
        [{"jsonrpc": "2.0", "id": "in a batch", "method": "ping"}],
        {"jsonrpc": "2.0", "id": "last", "method": "tools/call", "params": {"name": "search__recent"}},
    ]
    deep = b'{"jsonrpc":"2.0","id":"deep","method":"ping","params":{"a":%b}}' % (b"[" * 5_000 + b"]" * 5_000)
    lines = b"\n".join([*(json.dumps(message).encode() for message in messages[:-1]), deep, b'{"id": "broken", ', b""])
    async with running(store) as process:
        out, log = await asyncio.wait_for(process.communicate(lines + json.dumps(messages[-1]).encode()), 120)
        code = process.returncode
    answers = {answer["id"]: answer for answer in map(json.loads, out.splitlines())}

    assert 0 == code, log
    errors = {found: answer["error"]["code"] for found, answer in answers.items() if "error" in answer}
    assert {"in a batch": -32600, "deep": -32600, "broken": -32700} == errors
    assert {0, "save", "cut", "last"} == set(answers) - set(errors)
    assert "saved at the end of a pipe" in json.dumps(answers["last"])


# Command-line arguments, tested within the test process


def run(*arguments):
    with mock.patch.object(serving, "print_lines", lambda text: pytest.fail(f"said {text}")):
        return table.run(table.parse(["serve-mcp", *map(str, arguments)]))


@pytest.mark.parametrize(
    "options",
    [
        ["--http", "evil"],
        ["--http", "127.0.0.1:"],
        ["--http", ":80"],
        ["--http", "70000"],
        ["--http", "::1:80"],
        ["--http", "127.0.0.1:8\u00b2"],
        ["--dynamic", "maybe"],
        ["--token-file", "token"],
        ["--allow-host", "agents.example"],
    ],
)
def test_serve_mcp_rejects_invalid_arguments(tmp_path, capsys, options):
    """The command prints its usage and creates nothing."""
    with pytest.raises(SystemExit) as ended:
        run(tmp_path / "agent.mama", *options)

    assert 2 == ended.value.code
    assert options[0] in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_serve_mcp_requires_token_for_non_loopback_address(tmp_path, monkeypatch, address):
    """Without a token the server does not start and creates nothing."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)

    with pytest.raises(InvalidArgument, match="token"):
        run(tmp_path / "agent.mama", "--http", address)
    assert [] == list(tmp_path.iterdir())


def test_serve_mcp_rejects_invalid_token_file(tmp_path, monkeypatch):
    """A missing or empty file, or a short token, is reported without the token."""
    empty = tmp_path / "empty"
    empty.write_text("\n")
    monkeypatch.setenv(TOKEN_VARIABLE, "2short")

    with pytest.raises(InvalidArgument, match="cannot be read"):
        run(tmp_path / "agent.mama", "--http", "0", "--token-file", tmp_path / "missing")
    with pytest.raises(InvalidArgument, match="holds no token"):
        run(tmp_path / "agent.mama", "--http", "0", "--token-file", empty)
    with pytest.raises(InvalidArgument, match="16 characters") as raised:
        run(tmp_path / "agent.mama", "--http", "0")
    assert "2short" not in str(raised.value)


@pytest.mark.parametrize("empty", ["", "  \n"])
def test_serve_mcp_rejects_empty_token_variable(tmp_path, monkeypatch, empty):
    """An empty secret must not disable authentication. Without the variable, loopback needs no token."""
    monkeypatch.setenv(TOKEN_VARIABLE, empty)

    with pytest.raises(InvalidArgument, match=f"{TOKEN_VARIABLE} is set and empty: unset it, or give a token"):
        run(tmp_path / "agent.mama", "--http", "0")
    assert [] == list(tmp_path.iterdir())

    monkeypatch.delenv(TOKEN_VARIABLE)

    assert read_token(None, os.environ) is None


def test_serve_mcp_help_explains_token():
    """The command exists, and its help says how to configure a token."""
    told = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, env=ENVIRONMENT, check=True).stdout

    assert TOKEN_VARIABLE in told
    assert "--http" in told
