"""The gate of a node: slots, closing times, trials."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import RateLimited
from mama_structs.references.rate_limit import LONGEST, Closure, Gate, gate_to, reopen
from mama_structs.references.results import Attempt
from mama_structs.testing.fakes import FakeClock


class User:
    """Whoever asks."""


USER = User()


class Time(FakeClock):
    """A clock and the sleep that moves it."""

    async def sleep(self, seconds):
        until = self.now() + seconds
        await asyncio.sleep(0)
        self.advance(max(0.0, until - self.now()))


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def gate(time):
    made = Gate(Closure(), time.now)
    made.join(USER, 2)
    return made


def at_rest(gate):
    """Whether nobody holds or waits for anything of the gate."""
    return (0, 0, None) == (gate._busy, len(gate._queue), gate._trial)


async def send(gate, time, *, refused=None, pause=0.1, left=10.0, log=None, attempt=None):
    """Do as a client does: in a slot, in a turn, one request."""
    attempt = attempt or Attempt()
    async with gate.slot(attempt), gate.turn(attempt, left=lambda: left, sleep=time.sleep) as period:
        if log is not None:
            log.append(time.now())
        await asyncio.sleep(0)
        if refused is None:
            gate.accept(period)
        else:
            gate.refuse(period, asked=refused or None, pause=pause)


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


# --- slots -----------------------------------------------------------------------------------------------------------


@given(data=st.data())
def test_slots_are_never_more_than_the_least_limit_and_go_in_order(data):
    """Whoever joins, leaves, asks, is served or is cancelled meanwhile, and nothing is left at the end."""

    async def main():
        gate, users, tasks, holding, cancelled = Gate(Closure(), FakeClock().now), {}, {}, {}, set()
        at_once, queued = [], []

        async def query(number):
            attempt = Attempt()
            async with gate.slot(attempt):
                # Who is let in at once passes nobody but those who were let in before and have not woken up yet.
                assert attempt.gate_waits or not gate._queue
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
                gate.join(user, users[user])
            elif step == "leave" and len(users) > 1:
                user = data.draw(st.sampled_from(list(users)))
                del users[user]
                gate.leave(user)
            elif step == "ask":
                tasks[number] = asyncio.create_task(query(number))
            elif step == "serve" and holding:
                holding[data.draw(st.sampled_from(list(holding)))].set()
            elif step == "cancel" and tasks:
                cancelled.add(data.draw(st.sampled_from(list(tasks))))
                for one in cancelled:
                    tasks[one].cancel()
            before = gate._busy
            await turns(data.draw(st.integers(0, 4)))

            assert min(users.values()) == gate.limit
            assert len(holding) <= gate._busy <= max(gate.limit, before)
        while not all(task.done() for task in tasks.values()):
            for done in list(holding.values()):
                done.set()
            await asyncio.sleep(0)

        assert all(order == sorted(order) for order in (at_once, queued))
        assert set(tasks) - cancelled <= {*at_once, *queued}
        assert at_rest(gate)

    asyncio.run(main())


async def test_a_slot_that_is_granted_to_who_is_cancelled_goes_to_the_next(gate, time):
    """Also where both happen in one turn of the loop."""
    for late in range(6):
        done = asyncio.Event()

        async def hold(until):
            async with gate.slot(Attempt()):
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
        assert (1, 0) == (gate._busy, len(gate._queue))
        third.cancel()
        await turns()
        assert at_rest(gate)


async def test_a_user_that_is_forgotten_limits_nobody(gate):
    """One who never left counts as long as it lives."""
    other = User()
    gate.join(other, 1)
    assert 1 == gate.limit
    del other
    gate.join(another := User(), 9)
    assert another

    assert 2 == gate.limit


# --- closing ---------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from(["pass", "back", "close"]), st.floats(0, 2 * LONGEST, allow_subnormal=False)),
        max_size=30,
    )
)
def test_a_closing_time_only_falls_with_the_clock(steps):
    """A clock that steps back neither opens a node nor keeps it closed for longer; the longest of two times counts."""
    closure, left, readings = Closure(), 0.0, [0.0]
    for step, seconds in steps:
        if step == "close":
            closure.extend(seconds, lambda: readings[-1])
            left = max(left, min(seconds, LONGEST))
        else:
            readings.append(readings[-1] + (seconds if step == "pass" else -seconds))
            left -= min(left, seconds) if step == "pass" else 0.0

        assert left == pytest.approx(closure.left(lambda: readings[-1]), abs=1e-5)


async def test_while_a_node_wants_no_requests_none_is_sent(gate, time):
    """Who cannot wait hears at once for how long; who can waits, and is the next to ask."""
    log, waits = [], Attempt()
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


async def test_requests_that_were_refused_together_are_one_refusal(gate, time):
    """The pause of our own doubles once, and what the node asks for counts whoever was told."""
    await asyncio.gather(send(gate, time, refused=0), send(gate, time, refused=0, pause=9.0))
    assert (1, 0.1) == (gate.refusals, gate.closed_for())
    time.advance(0.1)
    await asyncio.gather(send(gate, time, refused=0, pause=0.2), send(gate, time, refused=7))

    assert gate.refusals == 3
    assert 7 == pytest.approx(gate.closed_for())


async def test_a_node_that_refused_is_asked_by_one_at_a_time_until_it_answers(gate, time):
    """The others wait for what comes of it."""
    gate.join(USER, 5)
    log = []
    await send(gate, time, refused=1)
    refused = [asyncio.create_task(send(gate, time, refused=2, log=log, left=100))]
    await turns(1)
    others = [asyncio.create_task(send(gate, time, log=log, left=100)) for _ in range(4)]
    await asyncio.gather(*refused, *others)

    assert [1.0, 3.0] == log[:2]
    assert (5, 0) == (len(log), gate.refusals)
    assert at_rest(gate)


@pytest.mark.parametrize("refused", [None, 0, 5])
async def test_cancelled_at_every_point_nothing_is_left(gate, time, refused):
    """No slot, no waiter and no trial, whoever is cancelled when; the others go on."""
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


# --- who shares what -------------------------------------------------------------------------------------------------


async def test_a_loop_has_one_gate_a_node_for_as_long_as_somebody_uses_it():
    """Another node has another gate."""
    gate = gate_to("http://one")

    assert gate is gate_to("http://one")
    assert gate is not gate_to("http://two")
    assert gate.closure is not gate_to("http://two").closure
    kept = gate.closure
    del gate
    assert kept is gate_to("http://one").closure


def test_loops_share_only_for_how_long_a_node_is_closed():
    """Each has its own slots; what one is told holds in all, also for who comes later, until it is over."""
    found = []

    async def close():
        gate = gate_to("http://shared")
        gate.closure.extend(60, gate.clock)
        found.append(gate)

    async def look():
        gate = gate_to("http://shared")
        found.append(gate)
        assert 59 < gate.closed_for() <= 60
        assert gate_to("http://other").closed_for() == 0
        assert 0 == gate_to("own", is_shared=False).closed_for()

    asyncio.run(close())
    threads = [threading.Thread(target=asyncio.run, args=(look(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({id(gate) for gate in found}) == 3
    assert len({id(gate.closure) for gate in found}) == 1
    reopen("http://shared")
    assert 0 == found[0].closed_for()


async def test_the_nodes_that_are_remembered_are_bounded(monkeypatch):
    """Who asks ever new nodes does not fill the memory, and closed ones stay closed."""
    monkeypatch.setattr("mama_structs.references.rate_limit._NODES", 8)
    monkeypatch.setattr("mama_structs.references.rate_limit._closures", known := {})
    gate_to("http://closed").closure.extend(60, lambda: 0.0)
    for number in range(100):
        gate_to(f"http://{number}", clock=lambda: 0.0)

    assert len(known) <= 8
    assert 60 == gate_to("http://closed", clock=lambda: 0.0).closed_for()
