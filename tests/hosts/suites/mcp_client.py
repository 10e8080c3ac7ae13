"""
The checks of the suite of MCP clients with Python clients. The last line printed is the result as JSON.

Usage: ``python mcp_client.py CLIENT ERA TARGETS``, see ``mcp_clients.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

NAME_PATTERN: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")
DECISION: Final = {"topic": "auth", "decision": "Use JWT", "reasoning": "no state"}
QUESTION: Final = {"query": "How do users log in? JWT"}
RESOURCE: Final = "mama-structs://recall/JWT"
MIN_TOOLS: Final = 10
Target = dict[str, Any]


class Checks:
    """Runs checks, and records ``ok`` or the failure of each."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    async def run(self, name: str, check: Callable[[], Awaitable[object]]) -> None:
        """Run one check."""
        try:
            async with asyncio.timeout(20):
                await check()
            self.found[name] = "ok"
        except Exception as error:
            self.found[name] = f"failed: {type(error).__name__}: {error!s:.300}"


def need(condition: object, text: object = "") -> None:
    """Raise if a condition does not hold."""
    if not condition:
        raise AssertionError(str(text)[:300])


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    while not await condition():  # noqa: ASYNC110 - another process changes the condition
        await asyncio.sleep(0.05)


def get(result: Any, *names: str) -> Any:
    """Return the first attribute that exists: version 1 of the SDK has camel case."""
    return next(getattr(result, name) for name in names if hasattr(result, name))


def text_of(result: Any) -> str:
    """Return the text of a tool's result."""
    return "".join(block.text for block in result.content)


# The SDKs and fastmcp


@contextlib.asynccontextmanager
async def sdk_2(target: Target, era: str, heard: list[str]) -> Any:
    """Open a client of the Python SDK 2."""
    mcp = importlib.import_module("mcp")
    changes = asyncio.create_task(asyncio.sleep(0))

    async def hear(message: Any) -> None:
        if "ToolListChanged" in type(message).__name__:
            heard.append("changed")

    server = target.get("url")
    if server is None:
        command, *arguments = target["command"]
        parameters = mcp.StdioServerParameters(command=command, args=arguments)
        server = importlib.import_module("mcp.client.stdio").stdio_client(parameters)
    mode = "legacy" if era == "legacy" else "auto"
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(mcp.Client(server, mode=mode, message_handler=hear))
        need(era in ("legacy", client.protocol_version), client.protocol_version)
        if era != "legacy":
            listening = await stack.enter_async_context(client.listen(tools_list_changed=True))

            async def listen() -> None:
                async for _ in listening:
                    heard.append("changed")  # noqa: PERF401 - an event is needed when it arrives

            changes = asyncio.create_task(listen())
        yield client
        changes.cancel()


@contextlib.asynccontextmanager
async def sdk_1(target: Target, _era: str, heard: list[str]) -> Any:
    """Open a session of the Python SDK 1."""
    mcp = importlib.import_module("mcp")

    async def hear(message: Any) -> None:
        if "ToolListChanged" in type(getattr(message, "root", message)).__name__:
            heard.append("changed")

    if "url" in target:
        opened = importlib.import_module("mcp.client.streamable_http").streamablehttp_client(target["url"])
    else:
        command, *arguments = target["command"]
        opened = mcp.stdio_client(mcp.StdioServerParameters(command=command, args=arguments))
    async with opened as streams, mcp.ClientSession(*streams[:2], message_handler=hear) as session:
        await session.initialize()
        yield session


@contextlib.asynccontextmanager
async def fastmcp(target: Target, _era: str, heard: list[str]) -> Any:
    """Open a client of fastmcp."""
    module = importlib.import_module("fastmcp")
    transports = importlib.import_module("fastmcp.client.transports")

    async def hear(message: Any) -> None:
        if "ToolListChanged" in type(getattr(message, "root", message)).__name__:
            heard.append("changed")

    server = target.get("url")
    if server is None:
        command, *arguments = target["command"]
        server = transports.StdioTransport(command, arguments)
    async with module.Client(server, message_handler=hear) as client:
        yield FastMcp(client)


class FastMcp:
    """A client of fastmcp with the results of the SDK."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def call_tool(self, name: str, arguments: Any, *, progress_callback: Any = None) -> Any:
        """Call a tool. An error is a result."""
        return await self._client.call_tool_mcp(name, arguments, progress_handler=progress_callback)


async def check_client(opened: Any, era: str, targets: dict[str, Target]) -> dict[str, str]:
    """Run all checks with a client that offers the whole protocol."""
    checks, heard = Checks(), list[str]()

    async def list_tools() -> list[Any]:
        kwargs = {"cache_mode": "bypass"} if opened is sdk_2 else {}
        listed = await client.list_tools(**kwargs)
        return list(getattr(listed, "tools", listed))

    async def check_list() -> None:
        tools = await list_tools()
        need(len(tools) > MIN_TOOLS, tools)
        need(all(NAME_PATTERN.fullmatch(tool.name) for tool in tools), tools)
        need(all(get(tool, "input_schema", "inputSchema")["type"] == "object" for tool in tools))

    async def check_call() -> None:
        saved = await client.call_tool("save__decision", DECISION)
        need(json.loads(text_of(saved)) == get(saved, "structured_content", "structuredContent"), saved)
        found = await client.call_tool("search__by_context", QUESTION)
        need("JWT" in get(found, "structured_content", "structuredContent")["found"][0]["content"], found)

    async def check_error() -> None:
        wrong = await client.call_tool("save__decision", {})
        need(get(wrong, "is_error", "isError") and "invalid_argument" in text_of(wrong), wrong)

    async def check_resources() -> None:
        listed = await client.list_resources()
        need(len(getattr(listed, "resources", listed)) == 1, listed)
        read = await client.read_resource(RESOURCE)
        need("JWT" in getattr(read, "contents", read)[0].text, read)

    async def check_prompts() -> None:
        listed = await client.list_prompts()
        need(getattr(listed, "prompts", listed)[0].name == "recall", listed)
        prompt = await client.get_prompt("recall", {"message": "JWT?"})
        need(len(prompt.messages) == 2, prompt)

    async def check_ping() -> None:
        await getattr(client, "ping", getattr(client, "send_ping", None))()

    async def check_failing() -> None:
        failed = await client.call_tool("fail", {})
        need("broken on purpose" in text_of(failed), failed)

    async def check_progress() -> None:
        progress = []

        async def hear(done: float, total: float | None, message: str | None) -> None:
            progress.append((done, total, message))

        await client.call_tool("steps", {"count": 2}, progress_callback=hear)
        need(progress == [(1, 2, "step 1"), (2, 2, "step 2")], progress)

    async def count(name: str) -> int:
        return int(json.loads(text_of(await client.call_tool("count_waits", {})))[name])

    async def has(name: str) -> bool:
        return await count(name) == 1

    async def check_cancel() -> None:
        waiting = asyncio.create_task(client.call_tool("wait", {}))
        await until(lambda: has("started"))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda: has("cancelled"))

    async def check_changes() -> None:
        for number in (1, 2):
            before = len(heard)
            await client.call_tool("grow", {})

            async def is_told(before: int = before) -> bool:
                return len(heard) > before

            await until(is_told)
            need(("grown" in {tool.name for tool in await list_tools()}) == (number == 1))

    async with opened(targets["plain"], era, heard) as client:
        checks.found["connect"] = "ok"
        for name, check in (
            ("list", check_list),
            ("call", check_call),
            ("error", check_error),
            ("resources", check_resources),
            ("prompts", check_prompts),
            *([("ping", check_ping)] if era == "legacy" else []),
        ):
            await checks.run(name, check)
    async with opened(targets["embedded"], era, heard) as client:
        await list_tools()
        await asyncio.sleep(0.5)
        for name, check in (
            ("failing tool", check_failing),
            ("progress", check_progress),
            ("cancel", check_cancel),
            ("list_changed", check_changes),
        ):
            await checks.run(name, check)
    return checks.found


# Frameworks, which list and call tools


@contextlib.asynccontextmanager
async def langchain(target: Target) -> Any:
    """Load the tools with langchain-mcp-adapters."""
    client_of = importlib.import_module("langchain_mcp_adapters.client").MultiServerMCPClient
    if "url" in target:
        connection = {"transport": "streamable_http", "url": target["url"]}
    else:
        command, *arguments = target["command"]
        connection = {"transport": "stdio", "command": command, "args": arguments}
    load = importlib.import_module("langchain_mcp_adapters.tools").load_mcp_tools
    async with client_of({"memory": connection}).session("memory") as session:
        tools = {tool.name: tool for tool in await load(session)}

        async def call(name: str, arguments: Any) -> str:
            return str(await tools[name].ainvoke(arguments))

        yield list(tools), call


@contextlib.asynccontextmanager
async def pydantic_ai(target: Target) -> Any:
    """Open a toolset of Pydantic AI."""
    module = importlib.import_module("pydantic_ai.mcp")
    server = target.get("url")
    if server is None:
        command, *arguments = target["command"]
        server = importlib.import_module("fastmcp.client.transports").StdioTransport(command, arguments)
    async with module.MCPToolset(server, tool_error_behavior="error", init_timeout=60) as toolset:

        async def call(name: str, arguments: Any) -> str:
            return str(await toolset.direct_call_tool(name, arguments))

        yield [tool.name for tool in await toolset.list_tools()], call


@contextlib.asynccontextmanager
async def openai_agents(target: Target) -> Any:
    """Open a server of OpenAI Agents."""
    module = importlib.import_module("agents.mcp")
    if "url" in target:
        opened = module.MCPServerStreamableHttp({"url": target["url"]}, client_session_timeout_seconds=60)
    else:
        command, *arguments = target["command"]
        parameters = {"command": command, "args": arguments}
        opened = module.MCPServerStdio(parameters, client_session_timeout_seconds=60)
    async with opened as server:

        async def call(name: str, arguments: Any) -> str:
            return text_of(await server.call_tool(name, arguments))

        yield [tool.name for tool in await server.list_tools()], call


@contextlib.asynccontextmanager
async def agent_framework(target: Target) -> Any:
    """Open a tool of Microsoft Agent Framework."""
    module = importlib.import_module("agent_framework")
    if "url" in target:
        opened = module.MCPStreamableHTTPTool("memory", url=target["url"])
    else:
        command, *arguments = target["command"]
        opened = module.MCPStdioTool("memory", command=command, args=arguments)
    async with opened as tool:

        async def call(name: str, arguments: Any) -> str:
            found = await tool.call_tool(name, **arguments)
            return found if isinstance(found, str) else "".join(str(one.text) for one in found)

        yield [one.name for one in tool.functions], call


@contextlib.asynccontextmanager
async def google_adk(target: Target) -> Any:
    """Open a toolset of Google ADK."""
    module = importlib.import_module("google.adk.tools.mcp_tool.mcp_toolset")
    manager = importlib.import_module("google.adk.tools.mcp_tool.mcp_session_manager")
    if "url" in target:
        parameters = manager.StreamableHTTPConnectionParams(url=target["url"], timeout=60)
    else:
        command, *arguments = target["command"]
        server = importlib.import_module("mcp").StdioServerParameters(command=command, args=arguments)
        parameters = manager.StdioConnectionParams(server_params=server, timeout=60)
    toolset = module.McpToolset(connection_params=parameters)
    try:
        tools = {tool.name: tool for tool in await toolset.get_tools()}
        session = await toolset._mcp_session_manager.create_session()

        async def call(name: str, arguments: Any) -> str:
            # The tool itself needs an agent's invocation, so call through its session.
            need(tools[name]._get_declaration().name == name)
            return text_of(await session.call_tool(name, arguments=arguments))

        yield list(tools), call
    finally:
        await toolset.close()


@contextlib.asynccontextmanager
async def haystack(target: Target) -> Any:
    """Open a toolset of Haystack, which is synchronous."""
    module = importlib.import_module("haystack_integrations.tools.mcp")
    if "url" in target:
        info = module.StreamableHttpServerInfo(url=target["url"])
    else:
        command, *arguments = target["command"]
        info = module.StdioServerInfo(command=command, args=arguments)
    toolset = await asyncio.to_thread(module.MCPToolset, info, None, 60.0, 60.0, True)
    tools = {tool.name: tool for tool in toolset}

    async def call(name: str, arguments: Any) -> str:
        return str(await asyncio.to_thread(lambda: tools[name].invoke(**arguments)))

    yield list(tools), call
    await asyncio.to_thread(toolset.close)


async def check_framework(opened: Any, targets: dict[str, Target]) -> dict[str, str]:
    """Run the checks with a framework's client, which lists and calls tools."""
    checks = Checks()

    async def check_list() -> None:
        need(len(names) > MIN_TOOLS and all(map(NAME_PATTERN.fullmatch, names)), names)

    async def check_call() -> None:
        need("decision_auth" in await call("save__decision", DECISION))
        need("JWT" in await call("search__by_context", QUESTION))

    async def check_error() -> None:
        try:
            told = await call("save__decision", {})
        except Exception as error:
            told = f"{error} {error.__cause__}"
        need("topic" in told, told)

    async with opened(targets["plain"]) as (names, call):
        checks.found["connect"] = "ok"
        for name, check in (("list", check_list), ("call", check_call), ("error", check_error)):
            await checks.run(name, check)
    return checks.found


FRAMEWORKS: Final = (langchain, pydantic_ai, openai_agents, agent_framework, google_adk, haystack)


async def main(name: str, era: str, given: str) -> None:
    """Run the checks of one client."""
    opened, targets = globals()[name], json.loads(given)
    try:
        checks = await (
            check_framework(opened, targets) if opened in FRAMEWORKS else check_client(opened, era, targets)
        )
    except BaseException as error:
        checks = {"connect": f"failed: {type(error).__name__}: {error!s:.300}"}
    sys.stdout.write(f"\n{json.dumps({'checks': checks})}\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
