from __future__ import annotations

import asyncio

import pytest

from mama_structs.references.resolver import Resolver
from mama_structs.settings import ReferenceSettings
from mama_structs.testing.fakes import FakeSource

ENTITIES = {
    "0-1": {"id": "0-1", "owner": "1-11", "primaryReactorId": "3-1"},
    "1-11": {"id": "1-11", "name": "Ada", "guildId": "0-1"},
    "1-12": {"id": "1-12", "name": "Grace", "guildId": "0-1"},
    "2-1": {"id": "2-1", "owner": "1-11", "maxOre": "5", "status": "active"},
    "3-1": {"id": "3-1", "guildId": "0-1", "owner": "1-12"},
    "4-3": {"id": "4-3", "owner": "1-12"},
    "9-11": {"id": "9-11", "owner": "1-11", "status": "onStation"},
}


@pytest.fixture
async def virtual_time(monkeypatch):
    """Advance the loop's clock to the next timer whenever the loop is idle, so that sleeping takes no real time."""
    loop = asyncio.get_running_loop()
    now, select = loop.time(), loop._selector.select

    def select_at_once(timeout=None):
        nonlocal now
        events = select(timeout if timeout is None else 0)
        now += 0 if events else timeout or 0
        return events

    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(loop._selector, "select", select_at_once)


@pytest.fixture
def source():
    return FakeSource(ENTITIES)


@pytest.fixture
async def make_resolver():
    made = []

    def make(*sources, clock=None, **settings):
        more = {} if clock is None else {"clock": clock}
        made.append(Resolver(sources, settings=ReferenceSettings(**settings), **more))
        return made[-1]

    yield make
    for resolver in made:
        await resolver.close()


@pytest.fixture
def resolver(make_resolver, source):
    return make_resolver(source)


@pytest.fixture
def at_rest():
    """Return a function that asserts that a resolver has no running queries, held slots or tasks."""

    async def check(resolver, *sources):
        for _ in range(5):
            await asyncio.sleep(0)
        flights = resolver._inflight
        assert flights is None or (0, {}) == (len(flights), flights._queries_by_key)
        if flights is not None:
            assert resolver.settings.max_parallel_queries == flights._slots._value
        assert all(source.in_flight == 0 for source in sources)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others

    return check
