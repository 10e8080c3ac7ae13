"""The rate limiter of a node: slots, cooldowns and probe requests."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import RateLimited
from mama_structs.references.rate_limit import (
    MAX_COOLDOWN_SECONDS,
    Cooldown,
    RateLimiter,
    clear_cooldown,
    get_rate_limiter,
)
from mama_structs.references.results import QueryAttempt
from mama_structs.testing.fakes import FakeClock


class User:
    """A client that can be registered with the rate limiter. It has no behaviour."""


USER = User()


class Time(FakeClock):
    """A fake clock that only its sleep function advances."""

    async def sleep(self, seconds):
        until = self.now() + seconds
        await asyncio.sleep(0)
        self.advance(max(0.0, until - self.now()))


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def gate(time):
    made = RateLimiter(Cooldown(), time.now)
    made.register(USER, 2)
    return made


def at_rest(gate):
    """Return True if no slot is held, no client waits and no probe runs."""
    return (0, 0, None) == (gate._slots_in_use, len(gate._slot_waiters), gate._probe)


async def send(gate, time, *, refused=None, pause=0.1, left=10.0, log=None, attempt=None):
    """Send a request like a client: acquire a slot, wait for the cooldown, and report the result to the limiter."""
    attempt = attempt or QueryAttempt()
    async with (
        gate.acquire_slot(attempt),
        gate.wait_for_turn(attempt, remaining_seconds=lambda: left, sleep=time.sleep) as period,
    ):
        if log is not None:
            log.append(time.now())
        await asyncio.sleep(0)
        if refused is None:
            gate.record_success(period)
        else:
            gate.record_rejection(period, retry_after=refused or None, backoff_seconds=pause)


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


# --- slots -----------------------------------------------------------------------------------------------------------


@given(data=st.data())
def test_slots_never_exceed_smallest_limit_and_are_granted_in_order(data):
    """
    Holds for any sequence of registrations, requests and cancellations.

    Nothing is left behind.
    """

    async def main():
        gate, users, tasks, holding, cancelled = RateLimiter(Cooldown(), FakeClock().now), {}, {}, {}, set()
        at_once, queued = [], []

        async def query(number):
            attempt = QueryAttempt()
            async with gate.acquire_slot(attempt):
                # A query may only get a slot without waiting if no other query waits for one.
                assert attempt.gate_waits or not gate._slot_waiters
                (queued if attempt.gate_waits else at_once).append(number)
                holding[number] = asyncio.Event()
                try:
                    await holding[number].wait()
                finally:
                    del holding[number]

        for number in range(data.draw(st.integers(1, 30))):
            step = data.draw(st.sampled_from(["join", "leave", "ask", "ask", "serve", "cancel"]))
            if step == "join" or not users:
                user = User()
                users[user] = data.draw(st.integers(1, 4))
                gate.register(user, users[user])
            elif step == "leave" and len(users) > 1:
                user = data.draw(st.sampled_from(list(users)))
                del users[user]
                gate.unregister(user)
            elif step == "ask":
                tasks[number] = asyncio.create_task(query(number))
            elif step == "serve" and holding:
                holding[data.draw(st.sampled_from(list(holding)))].set()
            elif step == "cancel" and tasks:
                cancelled.add(data.draw(st.sampled_from(list(tasks))))
                for one in cancelled:
                    tasks[one].cancel()
            before = gate._slots_in_use
            await turns(data.draw(st.integers(0, 4)))

            assert min(users.values()) == gate.max_concurrent
            assert len(holding) <= gate._slots_in_use <= max(gate.max_concurrent, before)
        while not all(task.done() for task in tasks.values()):
            for done in list(holding.values()):
                done.set()
            await asyncio.sleep(0)

        assert all(order == sorted(order) for order in (at_once, queued))
        assert set(tasks) - cancelled <= {*at_once, *queued}
        assert at_rest(gate)

    asyncio.run(main())


async def test_slot_granted_to_cancelled_waiter_passes_to_next_waiter(gate, time):
    """Also covers both events in one iteration of the event loop."""
    for late in range(6):
        done = asyncio.Event()

        async def hold(until):
            async with gate.acquire_slot(QueryAttempt()):
                await until.wait()

        first = [asyncio.create_task(hold(done)) for _ in range(2)]
        await turns()
        second, third = (asyncio.create_task(hold(asyncio.Event())) for _ in range(2))
        await turns()
        done.set()
        await turns(late)
        second.cancel()
        await turns()

        assert all(one.done() for one in first)
        assert (1, 0) == (gate._slots_in_use, len(gate._slot_waiters))
        third.cancel()
        await turns()
        assert at_rest(gate)


async def test_garbage_collected_client_no_longer_limits(gate):
    other = User()
    gate.register(other, 1)
    assert 1 == gate.max_concurrent
    del other
    gate.register(another := User(), 9)
    assert another

    assert 2 == gate.max_concurrent


# --- cooldown --------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["pass", "back", "close"]), st.floats(0, 2 * MAX_COOLDOWN_SECONDS, allow_subnormal=False)
        ),
        max_size=30,
    )
)
def test_cooldown_decreases_only_with_the_clock(steps):
    """
    A clock that steps back neither ends nor extends it.

    The longest of several cooldowns applies.
    """
    closure, left, readings = Cooldown(), 0.0, [0.0]
    for step, seconds in steps:
        if step == "close":
            closure.extend(seconds, lambda: readings[-1])
            left = max(left, min(seconds, MAX_COOLDOWN_SECONDS))
        else:
            readings.append(readings[-1] + (seconds if step == "pass" else -seconds))
            left -= min(left, seconds) if step == "pass" else 0.0

        assert left == pytest.approx(closure.remaining(lambda: readings[-1]), abs=1e-5)


async def test_no_request_is_sent_during_cooldown(gate, time):
    """A client without enough time gets `RateLimited` with the remaining seconds. Others wait."""
    log, waits = [], QueryAttempt()
    await send(gate, time, refused=60)
    for _ in range(50):
        with pytest.raises(RateLimited) as caught:
            await send(gate, time, left=59.0, log=log)
        assert 60 == caught.value.retry_after
    time.advance(10)
    with pytest.raises(RateLimited) as caught:
        await send(gate, time, left=50.0, log=log)
    assert ([], 50) == (log, caught.value.retry_after)
    await send(gate, time, left=51.0, log=log, attempt=waits)

    assert ([60.0], 1, 1) == (log, waits.gate_waits, waits.requests)
    assert at_rest(gate)


async def test_concurrent_rejections_count_once(gate, time):
    """The client's own backoff grows once, but every Retry-After is respected."""
    await asyncio.gather(send(gate, time, refused=0), send(gate, time, refused=0, pause=9.0))
    assert (1, 0.1) == (gate.consecutive_rejections, gate.remaining_cooldown())
    time.advance(0.1)
    await asyncio.gather(send(gate, time, refused=0, pause=0.2), send(gate, time, refused=7))

    assert gate.consecutive_rejections == 3
    assert 7 == pytest.approx(gate.remaining_cooldown())


async def test_rejected_node_is_probed_by_one_request_at_a_time(gate, time):
    """Other requests wait for the result of the probe."""
    gate.register(USER, 5)
    log = []
    await send(gate, time, refused=1)
    refused = [asyncio.create_task(send(gate, time, refused=2, log=log, left=100))]
    await turns(1)
    others = [asyncio.create_task(send(gate, time, log=log, left=100)) for _ in range(4)]
    await asyncio.gather(*refused, *others)

    assert [1.0, 3.0] == log[:2]
    assert (5, 0) == (len(log), gate.consecutive_rejections)
    assert at_rest(gate)


@pytest.mark.parametrize("refused", [None, 0, 5])
async def test_cancellation_at_any_point_leaves_no_slot_waiter_or_probe(gate, time, refused):
    """Other requests continue."""
    for point in range(40):
        time.advance(100)
        await send(gate, time, refused=1)
        calls = [
            asyncio.create_task(send(gate, time, refused=refused if number == 2 else None, left=100))
            for number in range(5)
        ]
        await turns(point)
        victim = calls[point % 5]
        victim.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)

        assert all(one is None or isinstance(one, asyncio.CancelledError) for one in results)
        assert sum(isinstance(one, asyncio.CancelledError) for one in results) <= 1
        assert at_rest(gate)


# --- sharing ---------------------------------------------------------------------------------------------------------


async def test_loop_shares_one_limiter_per_node():
    gate = get_rate_limiter("http://one")

    assert gate is get_rate_limiter("http://one")
    assert gate is not get_rate_limiter("http://two")
    assert gate.cooldown is not get_rate_limiter("http://two").cooldown
    kept = gate.cooldown
    del gate
    assert kept is get_rate_limiter("http://one").cooldown


def test_loops_share_only_the_cooldown_of_a_node():
    """Slots are separate. The cooldown also applies to limiters created later."""
    found = []

    async def close():
        gate = get_rate_limiter("http://shared")
        gate.cooldown.extend(60, gate.clock)
        found.append(gate)

    async def look():
        gate = get_rate_limiter("http://shared")
        found.append(gate)
        assert 59 < gate.remaining_cooldown() <= 60
        assert get_rate_limiter("http://other").remaining_cooldown() == 0
        assert 0 == get_rate_limiter("own", is_shared=False).remaining_cooldown()

    asyncio.run(close())
    threads = [threading.Thread(target=asyncio.run, args=(look(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({id(gate) for gate in found}) == 3
    assert len({id(gate.cooldown) for gate in found}) == 1
    clear_cooldown("http://shared")
    assert 0 == found[0].remaining_cooldown()


async def test_number_of_tracked_nodes_is_bounded(monkeypatch):
    """Nodes with an active cooldown are kept."""
    monkeypatch.setattr("mama_structs.references.rate_limit.MAX_TRACKED_NODES", 8)
    monkeypatch.setattr("mama_structs.references.rate_limit._cooldowns", known := {})
    get_rate_limiter("http://closed").cooldown.extend(60, lambda: 0.0)
    for number in range(100):
        get_rate_limiter(f"http://{number}", clock=lambda: 0.0)

    assert len(known) <= 8
    assert 60 == get_rate_limiter("http://closed", clock=lambda: 0.0).remaining_cooldown()
