"""The server over the standard streams of its process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

from mcp.server.stdio import stdio_server

from mama_structs.adapters.mcp.server import McpServer, server_of
from mama_structs.errors import MamaStructsError
from mama_structs.session import Session

_log = logging.getLogger("mama_structs")

_CHUNK: Final = 65_536
# Lines that wait until the server takes them.
_MAX_WAITING: Final = 64


async def serve_stdio(served: Session | McpServer) -> None:
    """
    Serve one client over stdin and stdout until it leaves; a caller that is cancelled ends it, too.

    Meanwhile stdout belongs to the protocol: what else is printed there goes to stderr.

    Args:
        served: A session, or what `server` made of one; it is not closed.

    Raises:
        MamaStructsError: The process has no stdin or no stdout.

    """
    own = server_of(served)
    # The SDK reads stdin in a thread that nothing can call back, and a stop by a signal would wait for the next line.
    lines = cast("Any", _lines(functools.partial(os.read, _stdin(), _CHUNK)))
    try:
        async with stdio_server(stdin=lines) as (received, sent):
            await own.run(received, sent, own.create_initialization_options())
    except* OSError as gone:
        _log.info("the client is gone: %s", type(gone.exceptions[0]).__name__)


def _stdin() -> int:
    try:
        sys.stdout.fileno()
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError) as missing:
        raise MamaStructsError("there is no stdin or stdout to serve over", hint="serve over HTTP") from missing


async def _lines(read: Callable[[], bytes]) -> AsyncIterator[str]:
    """Give the lines that come in; a thread waits for them, which the end of the process does not wait for."""
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    room = threading.Semaphore(_MAX_WAITING)
    loop = asyncio.get_running_loop()

    def put(line: bytes | None) -> None:
        room.acquire()
        loop.call_soon_threadsafe(lines.put_nowait, line)

    def read_all() -> None:
        parts: list[bytes] = []
        try:
            while chunk := read():
                *ended, rest = chunk.split(b"\n")
                for end in ended:
                    put(b"".join([*parts, end]))
                    parts.clear()
                parts.append(rest)
            if any(parts):
                put(b"".join(parts))
        except OSError as gone:
            _log.info("stdin is gone: %s", type(gone).__name__)
        put(None)

    def run() -> None:
        # Once the loop is closed, which a RuntimeError says, nobody waits for lines.
        with contextlib.suppress(RuntimeError):
            read_all()

    threading.Thread(target=run, name="mama-structs stdin", daemon=True).start()
    while (line := await lines.get()) is not None:
        room.release()
        yield line.decode("utf-8", errors="replace")
