"""Write queues: the order of writers, timeouts, and failures of waiting writers."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import SessionClosed, StoreBusy, StoreUnreachable
from mama_structs.storage.postgres.write_queue import WriteQueues

OUTCOMES = {
    "done": None,
    "wrong": ValueError("wrong"),
    "busy": StoreBusy("busy", waited=0),
    "lost": StoreUnreachable("x"),
}


def busy():
    return StoreBusy("nobody was done", waited=0)


async def work(queues, said, number, outcome, *, name="a", wait=60):
    async with queues.acquire_turn(name, wait=wait, make_busy_error=busy):
        said.append(number)
        await asyncio.sleep(0)
        if OUTCOMES[outcome] is not None:
            raise OUTCOMES[outcome]


async def held(queues, free):
    """Start a task that holds the first turn until *free* is set."""

    async def hold():
        async with queues.acquire_turn("a", wait=60, make_busy_error=busy):
            await free.wait()

    holder = asyncio.create_task(hold())
    await asyncio.sleep(0)
    return holder


@given(st.lists(st.sampled_from(sorted(OUTCOMES))))
def test_writers_take_turns_in_order_until_two_are_unreachable(outcomes):
    """After a failure the next writer proceeds; after two unreachable errors in a row all waiting writers fail."""

    async def run():
        queues, said = WriteQueues(), []
        found = await asyncio.gather(
            *(work(queues, said, number, outcome) for number, outcome in enumerate(outcomes)), return_exceptions=True
        )
        lost, tried = 0, []
        for number, outcome in enumerate(outcomes):
            if lost == 2:
                assert isinstance(found[number], StoreUnreachable)
                assert "nothing of this was stored" in str(found[number])
                continue
            tried.append(number)
            assert OUTCOMES[outcome] is found[number]
            lost = {"lost": lost + 1, "done": 0}.get(outcome, lost)
        assert tried == said
        # Assert that a later writer gets its turn, which shows that the queue is empty again.
        await work(queues, said, "after", "done")
        assert "after" == said[-1]

    asyncio.run(run())


async def test_waiting_writer_raises_busy_when_no_writer_finishes():
    """Other waiting writers and queues with other names are not affected."""
    queues, said, free = WriteQueues(), [], asyncio.Event()
    holder = await held(queues, free)
    with pytest.raises(StoreBusy, match="nobody was done"):
        await work(queues, said, 1, "done", wait=0.001)
    await work(queues, said, 2, "done", name="b")
    waiting = asyncio.create_task(work(queues, said, 3, "done"))
    await asyncio.sleep(0)
    free.set()
    await asyncio.gather(holder, waiting)

    assert [2, 3] == said


async def test_end_fails_all_waiting_writers():
    """No writer waits for a turn that cannot come."""
    queues, said, free = WriteQueues(), [], asyncio.Event()
    holder = await held(queues, free)
    waiting = [asyncio.create_task(work(queues, said, number, "done")) for number in range(3)]
    await asyncio.sleep(0)
    queues.fail_waiters(lambda: SessionClosed("closed"))
    found = await asyncio.gather(*waiting, return_exceptions=True)
    free.set()
    await holder

    assert [SessionClosed] * 3 == [type(one) for one in found]
    assert [] == said
