"""
Queries under way: one for each id, shared by everybody who wants it.

Whoever waits holds a seat; the last one to leave cancels the query.
A query is a task of its own, so that a cancelled caller never takes it away from the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from mama_structs.errors import MalformedResponse
from mama_structs.references.attempt import Attempt, current_attempt
from mama_structs.references.cache import Answer
from mama_structs.references.failures import Failure, failure_of, timed_out
from mama_structs.references.payloads import json_size, own_copy
from mama_structs.references.schemes import EntitySource, Fetch
from mama_structs.references.stats import Counters

Outcome = Answer | Failure

# Seconds that closing waits for queries which do not end when they are cancelled.
_PATIENCE: Final = 1.0
# Seconds that a caller waits for a query that it gave up; one turn of the loop is enough unless the source is stubborn.
_SETTLING: Final = 0.05


@attrs.define(eq=False)
class Flight:
    """
    One id's part in a query under way.

    Args:
        batch: The query, which may be for several ids.
        outcome: Done when the source answered.
        timely: Done when the source answered or the query's time is up, whichever comes first.
        seats: How many wait.

    """

    batch: Batch
    outcome: asyncio.Future[Outcome]
    timely: asyncio.Future[Outcome]
    seats: int = 1

    def land(self, outcome: Outcome) -> None:
        """Tell everybody who waits."""
        for future in (self.outcome, self.timely):
            if not future.done():
                future.set_result(outcome)

    def expire(self, failure: Failure) -> None:
        """Tell those who wait for a bounded time that it is up."""
        if not self.timely.done():
            self.timely.set_result(failure)


@attrs.define(eq=False)
class Batch:
    """One upstream query, for one id or for several."""

    flights: dict[str, Flight] = attrs.field(factory=dict)
    task: asyncio.Task[None] | None = None


class Flights:
    """
    All queries under way of one resolver.

    Args:
        slots: Upstream queries at once.
        query_timeout: Seconds that a bounded waiter gives a query, from when it has its slot.
        counters: Where to count.
        on_landed: Called with source, id and outcome when an answer is there and may be kept.

    """

    def __init__(
        self,
        *,
        slots: int,
        query_timeout: float,
        counters: Counters,
        on_landed: Callable[[EntitySource, str, Outcome], None],
    ) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._query_timeout = query_timeout
        self._counters = counters
        self._on_landed = on_landed
        self._current: dict[str, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one of the slots for upstream queries."""
        async with self._slots:
            self._counters.upstream_queries += 1
            started = asyncio.get_running_loop().time()
            try:
                yield
            finally:
                self._counters.latencies.append(asyncio.get_running_loop().time() - started)

    def join(self, wanted: Mapping[str, EntitySource], *, bounded: bool) -> dict[str, Flight]:
        """
        Take a seat in a query for each id, starting what is not under way; give the seats back with `leave`.

        Args:
            wanted: The ids, each with its source.
            bounded: Whether the caller waits no longer than the query timeout, so that a client below can give up.

        """
        joined: dict[str, Flight] = {}
        fresh: dict[int, tuple[EntitySource, list[str]]] = {}
        for entity_id, source in wanted.items():
            flight = self._current.get(entity_id)
            if flight is None:
                fresh.setdefault(id(source), (source, []))[1].append(entity_id)
            else:
                flight.seats += 1
                joined[entity_id] = flight
        self._counters.shared_in_flight += len(joined)
        for source, entity_ids in fresh.values():
            for group in _groups(source, entity_ids):
                joined.update(self._start(source, group, bounded=bounded))
        return joined

    def leave(self, joined: Iterable[Flight]) -> list[asyncio.Task[None]]:
        """
        Give the seats back.

        A query that nobody waits for any more is cancelled, and can be asked anew at once.

        Returns:
            The queries that were cancelled, for `settle`.

        """
        cancelled = []
        for flight in joined:
            flight.seats -= 1
            task = flight.batch.task
            if task is None or task.done() or any(other.seats for other in flight.batch.flights.values()):
                continue
            self._remove(flight.batch)
            task.cancel()
            cancelled.append(task)
        return cancelled

    async def settle(self, cancelled: list[asyncio.Task[None]]) -> None:
        """Give cancelled queries a moment to release their connections, before their caller goes on."""
        if cancelled:
            await asyncio.wait(cancelled, timeout=_SETTLING)

    def forget(self, matches: Callable[[str], bool]) -> None:
        """Let no one join the matching queries any more, and keep none of their answers."""
        for entity_id in [entity_id for entity_id in self._current if matches(entity_id)]:
            self._current.pop(entity_id)

    async def close(self) -> None:
        """Cancel what is under way and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_PATIENCE)

    def _start(self, source: EntitySource, entity_ids: Sequence[str], *, bounded: bool) -> dict[str, Flight]:
        loop = asyncio.get_running_loop()
        batch = Batch()
        for entity_id in entity_ids:
            batch.flights[entity_id] = Flight(batch, loop.create_future(), loop.create_future())
        self._current.update(batch.flights)
        batch.task = loop.create_task(self._fly(source, batch, bounded=bounded))
        self._tasks.add(batch.task)
        batch.task.add_done_callback(lambda task: self._landed(batch, task))
        return batch.flights

    async def _fly(self, source: EntitySource, batch: Batch, *, bounded: bool) -> None:
        async with self.slot():
            loop = asyncio.get_running_loop()
            attempt = Attempt(expires=loop.time() + self._query_timeout if bounded else None)
            current_attempt.set(attempt)
            expiry = loop.call_later(self._query_timeout, self._expire, batch)
            try:
                outcomes = await _ask(source, list(batch.flights))
            finally:
                expiry.cancel()
                self._counters.retries += attempt.retries
                self._counters.rate_limited += attempt.rate_limited
        for entity_id, flight in batch.flights.items():
            if self._current.get(entity_id) is flight:
                self._on_landed(source, entity_id, outcomes[entity_id])
            flight.land(outcomes[entity_id])

    def _expire(self, batch: Batch) -> None:
        failure = timed_out(self._query_timeout)
        for flight in batch.flights.values():
            flight.expire(failure)

    def _landed(self, batch: Batch, task: asyncio.Task[None]) -> None:
        """Clean up, however the query ended."""
        self._tasks.discard(task)
        self._remove(batch)
        error = None if task.cancelled() else task.exception()
        failure = Failure("cancelled", "The query was cancelled") if error is None else failure_of(error)
        for flight in batch.flights.values():
            flight.land(failure)

    def _remove(self, batch: Batch) -> None:
        for entity_id, flight in batch.flights.items():
            if self._current.get(entity_id) is flight:
                del self._current[entity_id]


def _groups(source: EntitySource, entity_ids: list[str]) -> Iterable[list[str]]:
    """Ask one by one, or all at once where the source can."""
    if source.fetch_many is not None and (len(entity_ids) > 1 or source.fetch is None):
        return [entity_ids]
    return [[entity_id] for entity_id in entity_ids]


async def _ask(source: EntitySource, entity_ids: list[str]) -> dict[str, Outcome]:
    """Ask the source and return an outcome for every id, whatever it does."""
    fetch, fetch_many = source.fetch, source.fetch_many
    if len(entity_ids) == 1 and fetch is not None:
        only = entity_ids[0]
        return {only: await _outcome(fetch, only)}
    assert fetch_many is not None  # noqa: S101 - a source has one of the two
    try:
        answers = await fetch_many(list(entity_ids))
        if not isinstance(answers, Mapping):
            raise MalformedResponse(f"fetch_many answered {type(answers).__name__} instead of a mapping")
    except Exception as error:  # noqa: BLE001 - a source's failure is an entry, never the caller's
        return dict.fromkeys(entity_ids, failure_of(error))
    return {entity_id: _judge(_pick(answers, entity_id)) for entity_id in entity_ids}


async def _outcome(fetch: Fetch, entity_id: str) -> Outcome:
    try:
        return _judge(await fetch(entity_id))
    except Exception as error:  # noqa: BLE001 - as above
        return failure_of(error)


def _pick(answers: Mapping[str, Any], entity_id: str) -> object:
    try:
        return answers[entity_id]
    except KeyError:
        return MalformedResponse("the source's answer leaves this id out")


def _judge(answer: object) -> Outcome:
    """Take a source's answer in, or say what is wrong with it."""
    if isinstance(answer, Exception):
        return failure_of(answer)
    try:
        data = own_copy(answer)
        height = getattr(answer, "height", None)
        return Answer(data, json_size(data), height if type(height) is int else None)
    except Exception as error:  # noqa: BLE001 - a mapping of a host may fail in any way
        return failure_of(error)
