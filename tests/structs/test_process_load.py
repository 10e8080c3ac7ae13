"""
Load tests: the number of requests that one process sends to a node over real sockets.

Tests count requests instead of measuring time.
"""

import asyncio
import contextlib
import math
import threading
import time

import aiohttp
import pytest

from mama_structs import Session, Settings, StructsClient, StructsSource
from mama_structs.errors import EntityNotFound, RateLimited
from mama_structs.references.http_api import Backoff
from mama_structs.references.options import ReferenceOptions
from mama_structs.references.resolver import Resolver
from mama_structs.settings import ReferenceSettings
from mama_structs.structs import structs_tools
from mama_structs.testing import FakeClock, FakeNode, Fault

FIFTY = [f"1-{number}" for number in range(1, 51)]
ALL = ReferenceOptions(include_references="all", max_references=50)


@pytest.fixture
async def node():
    async with FakeNode.world(seed=1, players=60) as opened:
        yield opened


@contextlib.asynccontextmanager
async def sessions(node, *limits):
    async with contextlib.AsyncExitStack() as opened:
        yield [
            await opened.enter_async_context(
                Session.open(
                    structs=node.url, settings=Settings(references=ReferenceSettings(max_parallel_queries=limit))
                )
            )
            for limit in limits
        ]


class Time:
    """A fake clock that only its sleep function advances."""

    def __init__(self):
        self.now = 0.0
        self.pauses = []

    async def sleep(self, seconds):
        until = self.now + seconds
        self.pauses.append(seconds)
        await asyncio.sleep(0)
        self.now = max(self.now, until)

    def backoff(self):
        return Backoff(random=lambda: 1.0, sleep=self.sleep, clock=lambda: self.now)


async def test_four_sessions_send_at_most_five_requests_during_cooldown(node):
    """Each session resolves fifty ids. Requests in flight are rejected, others are not sent."""
    node.faults.add(Fault.rate_limited(retry_after=60))
    started = time.monotonic()
    async with sessions(node, 5, 5, 5, 5) as opened:
        found = await asyncio.gather(*(session.resolver.resolve(FIFTY, ALL) for session in opened))
        again = await opened[0].resolver.resolve(FIFTY, ALL)
        with pytest.raises(RateLimited) as caught:
            await opened[1].call("structs_query_planet", {"planet_id": "2-1"})
        stats = [session.resolver.stats for session in opened]
        # Each error states the rest of the node's minute when it was raised: at most 60 seconds, at least *left*.
        left = 60 - (time.monotonic() - started)

        assert 1 <= len(node.requests) <= 5
        messages = {f"Rate limited: ask again in {seconds} s" for seconds in range(math.ceil(left), 61)}
        for one in [*found, again]:
            assert set() < set(one.failed.values()) <= messages
            assert FIFTY == list(one)
        assert left <= caught.value.retry_after <= 60
        assert (
            len(node.requests) == sum(one.upstream_queries for one in stats) == sum(one.rate_limited for one in stats)
        )

    async with sessions(node, 5) as (fresh,):
        await fresh.resolver.resolve(FIFTY, ALL)
    assert len(node.requests) <= 5


async def test_rate_limited_node_without_retry_after_gets_single_requests_with_backoff(node):
    """After the first rejections a pause precedes each request."""
    node.faults.add(Fault.rate_limited(retry_after=None))
    time = Time()
    async with (
        StructsClient(node.url, _backoff=time.backoff()) as client,
        Resolver([StructsSource(client)]) as resolver,
    ):
        found = await resolver.resolve(FIFTY[:20], ALL)

    assert 20 == len(found.failed)
    assert len(node.requests) <= 5 + len(time.pauses)
    # The backoff doubles up to two seconds, so the elapsed time bounds the number of requests.
    assert len(node.requests) <= 5 + 5 + time.now / 2.0


async def test_recovered_node_gets_a_probe_and_then_the_waiting_requests(node):
    node.faults.add(Fault.rate_limited(retry_after=1.5), times=5)
    time = Time()
    async with (
        StructsClient(node.url, _backoff=time.backoff()) as client,
        Resolver([StructsSource(client)]) as resolver,
    ):
        found = await resolver.resolve(FIFTY, ALL)
        stats = resolver.stats

    assert {} == found.failed
    assert (55, 1.5) == (len(node.requests), time.now)
    assert (50, 5, 5) == (stats.upstream_queries, stats.retries, stats.rate_limited)
    assert 5 <= stats.rate_limit_waits <= 10


@pytest.mark.usefixtures("latency_in_turns")
async def test_smallest_limit_of_all_sessions_applies_until_its_session_closes(node):
    node.latency = {"*": 0.002}
    async with sessions(node, 5, 4) as (wide, _):
        async with sessions(node, 2) as (narrow,):
            await narrow.resolver.resolve(["1-60"], ALL)
            await asyncio.gather(wide.resolver.resolve(FIFTY, ALL), narrow.resolver.resolve(FIFTY[::-1], ALL))
            assert 2 == node.most_in_flight
            assert narrow.resolver.stats.rate_limit_waits + wide.resolver.stats.rate_limit_waits > 0
        wide.resolver.invalidate()
        node.reset_counters()
        await wide.resolver.resolve(FIFTY, ALL)

        assert 5 == node.most_in_flight


@pytest.mark.usefixtures("latency_in_turns")
async def test_client_and_session_share_the_rate_limiter_of_a_node(node):
    """Together they send five concurrent requests, not thirteen."""
    node.latency = {"*": 0.002}
    async with sessions(node, 5) as (session,), StructsClient(node.url) as client:
        await session.resolver.resolve(["1-60"], ALL)
        await asyncio.gather(session.resolver.resolve(FIFTY, ALL), *(client.query(one) for one in FIFTY))

        assert 5 == node.most_in_flight


@pytest.mark.usefixtures("latency_in_turns")
async def test_nested_query_to_same_node_does_not_deadlock(node):
    """
    Nested queries use the same and another resolver with one slot.

    Tasks that outlive a query take slots.
    """
    tasks, go_on = [], asyncio.Event()

    class Curious(StructsSource):
        async def _ready_client(self):
            client = await super()._ready_client()
            if not tasks:
                tasks.append(asyncio.create_task(later(client)))
                await asyncio.gather(resolver.fetch("2-1"), other.fetch("2-4"), client.query("2-5"))
            return client

    async def later(client):
        await go_on.wait()
        await asyncio.gather(*(client.query(one) for one in FIFTY[:4]))

    one_slot = ReferenceSettings(max_parallel_queries=1)
    async with (
        StructsClient(node.url, timeout=60.0) as client,
        Resolver([Curious(client)], settings=one_slot) as resolver,
        resolver_on(node, max_parallel_queries=1) as other,
    ):
        assert {} == (await resolver.resolve(["2-8"])).failed
        node.reset_counters()
        node.latency = {"*": 0.002}
        go_on.set()
        await tasks[0]

        assert (4, 1) == (len(node.requests), node.most_in_flight)


async def test_client_with_host_session_does_not_share_rate_limiter(node):
    """A host's session may have other headers and credentials."""
    async with (
        aiohttp.ClientSession() as http,
        StructsClient(node.url, session=http) as own,
        StructsClient(node.url, session=http, retries=0) as other,
        sessions(node, 5) as (session,),
    ):
        node.faults.add(Fault.rate_limited(retry_after=60), times=1)
        with pytest.raises(RateLimited):
            await other.query("1-1")

        assert "1-1" == (await own.query("1-1"))["Player"]["id"]
        assert {} == (await session.resolver.resolve(["1-1"])).failed
        with pytest.raises(RateLimited):
            await other.query("1-2")
        assert 3 == len(node.requests)


def test_cooldown_is_shared_between_event_loops():
    outcomes = []

    async def ask(url):
        async with Session.open(structs=url) as session:
            outcomes.append((await session.resolver.resolve(FIFTY, ALL)).failed)

    node = FakeNode.world(seed=1, players=60)
    with node.in_thread():
        asyncio.run(ask(node.url))
        assert {} == outcomes.pop()
        node.faults.add(Fault.rate_limited(retry_after=60))
        asyncio.run(ask(node.url))
        before = len(node.requests)
        threads = [threading.Thread(target=asyncio.run, args=(ask(node.url),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert 50 < before <= 55
        assert before == len(node.requests)
    assert [50, 50, 50] == [len(failed) for failed in outcomes]


# --- shared cache ----------------------------------------------------------------------------------------------------


def resolver_on(node, *, shared=True, clock=None, **settings):
    more = {} if clock is None else {"clock": clock}
    return Resolver([StructsSource(node.url, shared=shared)], settings=ReferenceSettings(**settings), **more)


async def test_sources_share_a_cache_while_one_of_them_is_open(node):
    async with sessions(node, 5, 3) as (one, other):
        await one.resolver.resolve(["2-1", "2-9999"])
        found = await other.resolver.resolve(["2-1", "2-9999"])
        assert ("2-1" in found, 2, 2) == (True, len(node.requests), other.resolver.stats.cache_hits)
        await one.close()
        await other.resolver.resolve(["2-1"])
        assert 2 == len(node.requests)
    async with sessions(node, 5) as (third,):
        await third.resolver.resolve(["2-1"])
        assert 3 == len(node.requests)


async def test_resolvers_with_other_settings_sessions_or_loops_do_not_share_a_cache(node):
    async with aiohttp.ClientSession() as http, StructsClient(node.url, session=http) as client:
        resolvers = [
            resolver_on(node),
            resolver_on(node, shared=False),
            resolver_on(node, cache_ttl=7),
            resolver_on(node, clock=lambda: 0.0),
            Resolver([StructsSource(client)]),
        ]
        for number, resolver in enumerate(resolvers):
            await resolver.resolve(["2-1"])
            assert number + 1 == len(node.requests)
        await asyncio.to_thread(asyncio.run, _resolve_once(node))
        assert 6 == len(node.requests)
        for resolver in resolvers:
            await resolver.close()


async def _resolve_once(node):
    async with resolver_on(node) as resolver:
        await resolver.resolve(["2-1"])


async def test_invalidation_reaches_all_resolvers_that_share_the_cache(node):
    """Includes resolvers with other settings and answers in flight."""
    async with resolver_on(node) as one, resolver_on(node, cache_ttl=7) as other, resolver_on(node) as third:
        for resolver in (one, other):
            await resolver.resolve(["2-1", "2-4"])
        assert (2, 2) == (third.invalidate("2-1"), third.invalidate("planet"))
        node.reset_counters()
        sent = asyncio.Event()
        node.latency = {"2-1": lambda _: sent.set() or 0.05}
        under_way = asyncio.create_task(other.resolve(["2-1"]))
        await sent.wait()
        one.invalidate("2-1")
        await asyncio.gather(under_way, other.resolve(["2-1"]))

        assert 2 == node.count("2-1")
        await other.resolve(["2-1"])
        assert 2 == node.count("2-1")


async def test_new_block_invalidates_shared_answers_of_all_resolvers(node):
    async with resolver_on(node, cache_until="block") as one, resolver_on(node, cache_until="block") as other:
        await one.resolve(["2-1"])
        node.advance()
        await other.resolve(["2-4"])
        await one.resolve(["2-1"])

        assert 2 == node.count("2-1")


# --- age of answers --------------------------------------------------------------------------------------------------


async def test_tool_answers_are_at_most_one_second_old_unlike_references(node):
    """Covers clocks that step back, and queries in flight."""
    clock = FakeClock(start=100.0)
    async with StructsClient(node.url) as client:
        resolver = Resolver([StructsSource(client)], clock=clock.now)
        ready = structs_tools(client, resolver=resolver, metadata=True)
        query, page = ready["structs_query_planet"], ready["structs_list_planets"]

        async def asked(call):
            node.reset_counters()
            await call
            return len(node.requests)

        assert (1, 1) == (await asked(query("2-1")), await asked(page()))
        clock.advance(0.9)
        assert (0, 0) == (await asked(query("2-1")), await asked(page()))
        clock.advance(0.2)
        assert (1, 1) == (await asked(query("2-1")), await asked(page()))
        clock._now -= 50
        assert 1 == await asked(query("2-1"))
        clock.advance(20)
        assert 1 == await asked(asyncio.gather(query("2-1"), query("2-1")))
        clock.advance(5.26)
        node.reset_counters()
        found = await resolver.enrich({"planetId": "2-1", "guildId": "0-1"}, ReferenceOptions(metadata=True))
        assert {"height": node.height, "age": 5.3} == found["references"]["2-1"]["as_of"]
        assert {"height": node.height, "age": 0.0} == found["references"]["0-1"]["as_of"]
        assert 1 == len(node.requests)
        plain = await resolver.enrich({"planetId": "2-1"})
        assert "as_of" not in plain["references"]["2-1"]
        again = await resolver.enrich(found, ReferenceOptions(reference_depth=2, metadata=True))
        assert found["references"]["2-1"] == again["references"]["2-1"]
        await resolver.close()


async def test_tool_repeats_not_found_for_one_second_only(node):
    """References use not_found_ttl instead."""
    clock = FakeClock()
    async with resolver_on(node, clock=clock.now) as resolver:
        for seconds, requests in ((0.0, 1), (0.9, 1), (0.2, 2)):
            clock.advance(seconds)
            with pytest.raises(EntityNotFound):
                await resolver.fetch("2-9999")
            assert requests == len(node.requests)
        clock.advance(3)
        assert {"2-9999": "Entity not found"} == (await resolver.resolve(["2-9999"])).failed
        assert 2 == len(node.requests)


async def test_follow_up_calls_saved_counts_each_id_once(node):
    """Cached answers, ids queried by tools and failures are not counted."""
    async with sessions(node, 5) as (session,):
        saved = []
        for arguments in ({}, {"include_references": True}, {"include_references": True, "reference_depth": 2}):
            answer = await session.tools["structs_query_player"](player_id="1-11", **arguments)
            saved.append((session.resolver.stats.follow_up_calls_saved, len(answer.get("references", {}))))
        await session.resolver.resolve(["2-9999"])
        first, second = saved[1][1], saved[2][1]

        assert (0, 0) == saved[0]
        assert first == saved[1][0]
        # The second level also returns the queried player itself, which saves no call.
        assert second - 1 == saved[2][0] == session.resolver.stats.follow_up_calls_saved
        assert session.resolver.stats.references == first + second + 1


async def test_query_cancelled_while_waiting_for_rate_limiter_leaves_nothing_behind(node):
    """No slot, waiter, probe or task remains, and later queries succeed."""
    before, time = asyncio.all_tasks(), Time()
    for turns in range(400):
        node.faults.clear()
        node.faults.add(Fault.rate_limited(retry_after=1), times=3)
        async with (
            StructsClient(node.url, max_connections=2, _backoff=time.backoff()) as client,
            Resolver([StructsSource(client)]) as resolver,
        ):
            call = asyncio.create_task(resolver.resolve(FIFTY[:4], ALL))
            for _ in range(turns):
                await asyncio.sleep(0)
            is_late = call.done()
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            for _ in range(5):
                await asyncio.sleep(0)
            gate = client._transport.limiter if client._transport else None
            assert gate is None or (0, 0, None) == (gate._slots_in_use, len(gate._slot_waiters), gate._probe)
            assert {} == (await resolver.resolve(FIFTY[:4], ALL)).failed
        if is_late:
            break
    for _ in range(20):
        await asyncio.sleep(0)
    assert 10 < turns < 399
    assert not asyncio.all_tasks() - before - node._handler_tasks
