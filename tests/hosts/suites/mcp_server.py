"""An MCP server with tools that wait, report progress and change the list, for the suite of MCP clients."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, TypedDict

from mama_structs import HashEmbedder, Session
from mama_structs.adapters import mcp


class Waits(TypedDict):
    """Numbers of started and cancelled calls of the tool ``wait``."""

    started: int
    cancelled: int


def add_tools(session: Session) -> None:
    """Add the tools that the checks call."""
    waits = Waits(started=0, cancelled=0)

    async def wait() -> str:
        """Wait until the call is cancelled."""
        waits["started"] += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            waits["cancelled"] += 1
            raise
        return "unreachable"

    async def count_waits() -> Waits:
        """Return the numbers of waiting calls."""
        return waits

    async def steps(count: int, ctx: Any) -> int:
        """Report progress."""
        for number in range(count):
            await ctx.session.report_progress(number + 1, count, f"step {number + 1}")
        return count

    async def grow() -> str:
        """Add the tool ``grown``, and remove it when called again."""
        if "grown" in session.tools:
            session.tools.remove("grown")
        else:
            session.tools.add(count_waits, name="grown")
        return "changed"

    async def fail() -> str:
        """Fail."""
        raise ValueError("broken on purpose")

    for tool in (wait, count_waits, steps, grow, fail):
        session.tools.add(tool)


def say(url: str) -> None:
    """Print the URL for the parent process."""
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


async def main(transport: str) -> None:
    """Serve over stdio, or over HTTP and print the URL."""
    async with Session.open(embedder=HashEmbedder()) as session:
        add_tools(session)
        if transport == "stdio":
            await mcp.serve_stdio(session)
        else:
            await mcp.serve_http(session, port=0, started=say)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
