"""A fake node with a small world, and an HTTP client that shares no code with the package."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import attrs
import pytest

from mama_structs.testing import FakeNode


@attrs.frozen
class Reply:
    status: int
    headers: dict
    text: str

    @property
    def json(self):
        return json.loads(self.text)


@asynccontextmanager
async def plain_client(node):
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:

        async def ask(path, *, method="GET", **options):
            async with session.request(method, node.url + path, allow_redirects=False, **options) as response:
                return Reply(response.status, dict(response.headers), await response.text())

        yield ask


@pytest.fixture
async def node():
    async with FakeNode.world(seed=1, players=40) as node:
        yield node


@pytest.fixture
async def get(node):
    async with plain_client(node) as ask:
        yield ask


@pytest.fixture
def client_of():
    return plain_client


@pytest.fixture
def until():
    async def until(condition):
        """Wait until *condition* is true. It is polled, because the node sends no notification."""
        async with asyncio.timeout(600):
            while not condition():  # noqa: ASYNC110 - the node sends no notification
                await asyncio.sleep(0.005)

    return until
