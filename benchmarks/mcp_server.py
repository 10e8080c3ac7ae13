"""
The cost of a call over MCP, and the delay of list-changed notifications.

Both are compared with those of a plain SDK server.

Both servers run in this process, and the official client calls them. The plain server answers a call with a constant,
and sends the notification when it is called. The targets are a decision in less than 1 ms, and a notification in less
than 100 ms.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import mcp_types as types
from _common import MICRO, MILLI, arguments, report
from mcp import Client
from mcp.server.lowlevel import NotificationOptions, Server

from mama_structs import HashEmbedder, Session, Settings
from mama_structs.adapters.mcp import MESSAGE_KEY, server
from mama_structs.settings import ToolSettings

MESSAGES = ("continue from yesterday", "fix the failing test")


class Raw(Server[Any]):
    """A plain SDK server with one tool."""

    def __init__(self) -> None:
        super().__init__("raw", on_list_tools=self.listed, on_call_tool=self.called)

    def create_initialization_options(self, *_: Any, **__: Any) -> Any:
        return super().create_initialization_options(NotificationOptions(tools_changed=True))

    async def listed(self, _ctx: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="list_refs", input_schema={"type": "object"})])

    async def called(self, ctx: Any, _params: types.CallToolRequestParams) -> types.CallToolResult:
        if (ctx.meta or {}).get(MESSAGE_KEY) is not None:
            await ctx.session.send_tool_list_changed()
        return types.CallToolResult(content=[types.TextContent(text="nothing")])


async def measured(own: Any, calls: int, changes: int) -> dict[str, list[float]]:
    """Return the durations of calls, and the delays of notifications after a message, in seconds."""
    heard: asyncio.Queue[float] = asyncio.Queue()
    tasks = set()

    async def take(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            heard.put_nowait(time.perf_counter())
            task = asyncio.create_task(client.list_tools(cache_mode="bypass"))
            tasks.add(task)

    seconds: dict[str, list[float]] = {"call": [], "told": []}
    async with Client(own, mode="legacy", message_handler=take) as client:
        await client.list_tools()
        for _ in range(calls):
            began = time.perf_counter()
            await client.call_tool("list_refs", {})
            seconds["call"].append(time.perf_counter() - began)
        for number in range(changes):
            began = time.perf_counter()
            await client.call_tool("list_refs", {}, meta={MESSAGE_KEY: MESSAGES[number % 2]})
            seconds["told"].append(await asyncio.wait_for(heard.get(), 5) - began)
            await asyncio.gather(*tasks)
    return seconds


async def main() -> None:
    options = arguments(__doc__ or "")
    calls, changes, decisions = (5, 4, 10) if options.quick else (300, 100, 2000)
    figures: dict[str, Any] = {}
    settings = Settings(tools=ToolSettings(dynamic="force_dynamic"))
    async with Session.open(embedder=HashEmbedder(), settings=settings) as session:
        rivals = {"the SDK alone": Raw(), "mama_structs": server(session)}
        for name, own in rivals.items():
            figures[name] = {
                what: {"median": statistics.median(found) * MILLI, "worst": max(found) * MILLI}
                for what, found in (await measured(own, calls, changes)).items()
            }
        took = []
        for number in range(decisions):
            began = time.perf_counter()
            session.exposed_tools.for_message(MESSAGES[number % 2])
            took.append((time.perf_counter() - began) * MICRO)
        figures["decision"] = {"median": statistics.median(took), "worst": max(took)}
    rows = [
        [name, what, f"{figures[name][what]['median']:.2f}", f"{figures[name][what]['worst']:.2f}"]
        for what in ("call", "told")
        for name in rivals
    ]
    rows.append(
        [
            "mama_structs",
            "decision",
            f"{figures['decision']['median'] / 1e3:.3f}",
            f"{figures['decision']['worst'] / 1e3:.3f}",
        ]
    )
    report(
        "mcp_server",
        "Milliseconds of a call, until a client hears of a change, and of the decision",
        ["server", "what", "median", "worst"],
        rows,
        figures=figures,
        folder=options.results,
    )


if __name__ == "__main__":
    asyncio.run(main())
