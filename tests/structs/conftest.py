"""A server on a real socket that answers with bytes chosen by the test."""

from __future__ import annotations

import asyncio
import json
from collections import deque

import pytest

from mama_structs.references.rate_limit import clear_cooldown


def http(payload=None, *, status=200, body=None, **headers):
    """Return the bytes of an HTTP response. Replace underscores in header names with hyphens."""
    content = json.dumps(payload).encode() if body is None else body
    lines = [f"HTTP/1.1 {status} Whatever", "Content-Type: application/json", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


class Node:
    """
    A server that answers the n-th request with the n-th reply. The last reply repeats.

    A reply is bytes, or an async function of the writer.
    """

    def __init__(self):
        self.replies = deque()
        self.requests = []
        self.headers = []
        self.connections = 0
        self._tasks = set()

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        clear_cooldown(self.url)  # an earlier server may have used this port and still have a cooldown

    async def stop(self):
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    def says(self, *replies):
        self.replies.extend(replies)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *headers = head.decode("latin-1").split("\r\n")
                self.requests.append(first.split(" ")[1])
                self.headers.append(dict(line.split(": ", 1) for line in headers if line))
                reply = self.replies.popleft() if len(self.replies) > 1 else self.replies[0]
                if callable(reply):
                    await reply(writer)
                else:
                    writer.write(reply)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(asyncio.current_task())
            writer.close()


@pytest.fixture
async def node():
    node = Node()
    await node.start()
    yield node
    await node.stop()


@pytest.fixture(name="http")
def http_fixture():
    return http
