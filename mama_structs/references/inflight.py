"""
Deduplication of concurrent queries: all callers that need a key wait for one query.

Each query runs in its own task, so that cancelling one caller does not cancel it for the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from mama_structs._internal.jsonable import json_size, own_copy
from mama_structs._internal.telemetry import observed
from mama_structs.errors import EntityNotFound, MalformedResponse, MamaStructsError, StructsError
from mama_structs.references.rate_limit import Gate
from mama_structs.references.results import (
    NOT_FOUND,
    Attempt,
    Counters,
    Failure,
    SourceAnswer,
    SourceOutcome,
    current_attempt,
    failure_of,
    gone,
    timed_out,
)
from mama_structs.references.schemes import Fetch, FetchMany
from mama_structs.settings import ReferenceSettings

# Seconds that `close` waits for cancelled queries to end.
_PATIENCE: Final = 1.0
# Seconds that a caller waits for a query it cancelled. One iteration of the event loop suffices for a cooperative
# source.
_SETTLING: Final = 0.05


@attrs.frozen(eq=False)
class SourceQuery:
    """Query for one key. *kind* selects its answer for invalidation, *origin* is the source."""

    kind: str
    origin: object
    fetch: Fetch | None
    fetch_many: FetchMany | None = None


@attrs.define(eq=False)
class Flight:
    """State of one key within an in-flight query."""

    question: SourceQuery
    batch: Batch
    # `outcome` is done when the source answered; `timely` also when the query timed out.
    outcome: asyncio.Future[SourceOutcome]
    timely: asyncio.Future[SourceOutcome]
    # Number of all waiting callers, and of callers that wait without a timeout.
    seats: int = 0
    unbounded: int = 0

    def land(self, outcome: SourceOutcome, *, late: bool = False) -> None:
        """Publish the outcome to all waiters; with *late*, only to waiters with a timeout."""
        for future in (self.timely,) if late else (self.outcome, self.timely):
            if not future.done():
                future.set_result(outcome)


@attrs.define(eq=False)
class Batch:
    """One upstream query for one or more keys. Keys may be added until it is sent."""

    origin: object
    flights: dict[str, Flight] = attrs.field(factory=dict)
    task: asyncio.Task[None] | None = None
    attempt: Attempt | None = None
    expired: bool = False

    @property
    def wanted(self) -> bool:
        """
        True if a caller still waits for the answer.

        After the timeout, only unbounded callers count.
        """
        return any(flight.unbounded if self.expired else flight.seats for flight in self.flights.values())


class Flights:
    """
    All in-flight queries of one resolver.

    *on_landed* receives each answer that may be cached.
    """

    def __init__(
        self,
        settings: ReferenceSettings,
        counters: Counters,
        *,
        clock: Callable[[], float],
        on_landed: Callable[[str, SourceQuery, SourceOutcome], None],
    ) -> None:
        self._limit = settings.max_parallel_queries
        self._slots = asyncio.Semaphore(self._limit)
        self._clock = clock
        # Rate limiters by the id of their source. The source is included so that its id is not reused.
        self._gates: dict[int, tuple[object, Gate | None]] = {}
        self._boarding: dict[int, Batch] = {}
        self._query_timeout = settings.query_timeout
        self._counters = counters
        self._on_landed = on_landed
        self._current: dict[str, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    @contextlib.asynccontextmanager
    async def slot(self, gate: Gate | None = None, attempt: Attempt | None = None) -> AsyncIterator[None]:
        """
        Hold an upstream query slot.

        For an *attempt*, also hold a slot of its rate limiter *gate*.
        """
        asking, clock = current_attempt.get(), asyncio.get_running_loop().time
        # A source that queries through its own resolver would deadlock on a second slot.
        is_nested = asking is not None and asking.owner is self
        async with contextlib.AsyncExitStack() as held:
            if not is_nested:
                await held.enter_async_context(self._slots)
            if gate is not None and attempt is not None:
                if asking is None or asking.gate is not gate:
                    await held.enter_async_context(gate.slot(attempt))
                attempt.gate = gate
            started = clock()
            try:
                yield
            finally:
                # A query that the rate limiter rejected was never sent.
                self._counters.upstream_queries += attempt is None or attempt.requests > 0
                if attempt is not None:
                    # Tasks started by the source may outlive the query, but no longer own its slot.
                    attempt.gate = None
                if not is_nested:
                    self._counters.latencies.append(clock() - started)

    @contextlib.contextmanager
    def seats(self, wanted: Mapping[str, SourceQuery], *, bounded: bool) -> Iterator[dict[str, Flight]]:
        """Join one query per key. A *bounded* caller waits at most the query timeout."""
        joined: dict[str, Flight] = {}
        try:
            self._join(wanted, joined, bounded=bounded)
            yield joined
        finally:
            for flight in joined.values():
                flight.seats -= 1
                flight.unbounded -= not bounded
                self._drop_unwanted(flight.batch)

    async def settle(self, joined: Iterable[Flight]) -> None:
        """Wait briefly until cancelled queries have released their connections."""
        batches = [flight.batch for flight in joined]
        ending = {batch.task for batch in batches if batch.task and not batch.wanted and not batch.task.done()}
        if ending:
            await asyncio.wait(ending, timeout=_SETTLING)

    def forget(self, matches: Callable[[str, str], bool]) -> None:
        """
        Detach the queries for which ``matches(key, kind)`` is true.

        New callers do not join them, and their answers are not cached.
        """
        for key in [key for key, flight in self._current.items() if matches(key, flight.question.kind)]:
            del self._current[key]

    async def close(self) -> None:
        """Cancel all queries and wait for their tasks to end."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_PATIENCE)
        for _, gate in self._gates.values():
            if gate is not None:
                gate.leave(self)

    def _join(self, wanted: Mapping[str, SourceQuery], joined: dict[str, Flight], *, bounded: bool) -> None:
        asking = current_attempt.get()
        # Queries that a source sends while it answers must not be batched: it may hold the slot that the batch needs.
        boarding = {} if asking is not None and asking.owner is self else self._boarding
        for key, question in wanted.items():
            flight = self._current.get(key)
            # Sessions that share a resolver may each have their own source for a key.
            if flight is None or flight.question.origin is not question.origin:
                flight = self._board(key, question, boarding)
            else:
                if flight.batch.task is asyncio.current_task():
                    raise MamaStructsError(
                        f"{key} is asked for by the source that is about to answer it",
                        hint="a source may ask its resolver for other ids only",
                    )
                self._counters.shared_in_flight += 1
            self._sit(flight, joined, key, bounded=bounded)

    def _sit(self, flight: Flight, joined: dict[str, Flight], key: str, *, bounded: bool) -> None:
        joined[key] = flight
        flight.seats += 1
        flight.unbounded += not bounded
        if not bounded and flight.batch.attempt is not None:
            flight.batch.attempt.expires = None

    def _board(self, key: str, question: SourceQuery, boarding: dict[int, Batch]) -> Flight:
        """Add *key* to the next batch of its source, or start a batch."""
        loop, origin = asyncio.get_running_loop(), question.origin
        batch = boarding.get(id(origin)) if question.fetch_many is not None else None
        if batch is None or len(batch.flights) >= (getattr(origin, "max_batch", None) or math.inf):
            batch = self._start(origin)
            if question.fetch_many is not None:
                boarding[id(origin)] = batch
        flight = Flight(question, batch, loop.create_future(), loop.create_future())
        batch.flights[key] = self._current[key] = flight
        return flight

    def _start(self, origin: object) -> Batch:
        batch = Batch(origin)
        query = self._fly(batch)
        try:
            batch.task = asyncio.get_running_loop().create_task(query)
        except BaseException:
            query.close()
            raise
        self._tasks.add(batch.task)
        batch.task.add_done_callback(lambda task: self._landed(batch, task))
        return batch

    async def _fly(self, batch: Batch) -> None:
        attempt = Attempt(owner=self)
        async with self.slot(self._gate_of(batch.origin), attempt):
            if not self._depart(batch):
                return
            loop = asyncio.get_running_loop()
            expires = loop.time() + self._query_timeout
            unbounded = any(flight.unbounded for flight in batch.flights.values())
            attempt.expires = None if unbounded else expires
            attempt.requests = int(attempt.gate is None)
            batch.attempt = attempt
            current_attempt.set(attempt)
            expiry = loop.call_at(expires, self._expire, batch)
            try:
                questions = {key: flight.question for key, flight in batch.flights.items()}
                where = getattr(getattr(batch.origin, "scheme", None), "name", "")
                with observed("retrieval", where, data_source__id=where) as told:
                    outcomes = await _ask(questions, asked_at=self._clock())
                    for one in outcomes.values():
                        if isinstance(one, Failure):
                            told["error__type"] = one.kind
            finally:
                expiry.cancel()
                self._counters.retries += attempt.retries
                self._counters.rate_limited += attempt.rate_limited
                self._counters.gate_waits += attempt.gate_waits
        for key, flight in batch.flights.items():
            if self._current.get(key) is flight:
                self._on_landed(key, flight.question, outcomes[key])
            flight.land(outcomes[key])

    def _depart(self, batch: Batch) -> bool:
        """Close *batch* to new keys and drop keys without waiters. Return True if keys remain."""
        self._close_doors(batch)
        for key in [key for key, flight in batch.flights.items() if not flight.seats]:
            if self._current.get(key) is batch.flights.pop(key):
                del self._current[key]
        return bool(batch.flights)

    def _close_doors(self, batch: Batch) -> None:
        if self._boarding.get(id(batch.origin)) is batch:
            del self._boarding[id(batch.origin)]

    def _gate_of(self, origin: object) -> Gate | None:
        """Return the rate limiter of a source, or None."""
        if id(origin) not in self._gates:
            join = getattr(origin, "join_gate", None)
            self._gates[id(origin)] = origin, None if join is None else join(self, self._limit)
        return self._gates[id(origin)][1]

    def _expire(self, batch: Batch) -> None:
        """Publish the timeout to bounded waiters, and cancel the query if it has no other waiters."""
        batch.expired = True
        for flight in batch.flights.values():
            flight.land(timed_out(self._query_timeout), late=True)
        self._drop_unwanted(batch)

    def _drop_unwanted(self, batch: Batch) -> None:
        if batch.task is not None and not batch.task.done() and not batch.wanted:
            self._remove(batch)
            batch.task.cancel()

    def _landed(self, batch: Batch, task: asyncio.Task[None]) -> None:
        """Remove a finished batch and publish a failure to any remaining waiters."""
        self._tasks.discard(task)
        self._remove(batch)
        error = None if task.cancelled() else task.exception()
        failure = gone(closed=self._closed) if error is None else failure_of(error)
        for flight in batch.flights.values():
            flight.land(failure)

    def _remove(self, batch: Batch) -> None:
        self._close_doors(batch)
        for key, flight in batch.flights.items():
            if self._current.get(key) is flight:
                del self._current[key]


async def _ask(questions: dict[str, SourceQuery], *, asked_at: float) -> dict[str, SourceOutcome]:
    """Query the source and return an outcome for every key, even if the source fails."""
    keys = list(questions)
    question = questions[keys[0]]
    try:
        if question.fetch_many is None or (len(keys) == 1 and question.fetch is not None):
            return {
                key: _judge(await one.fetch(key), asked_at) for key, one in questions.items() if one.fetch is not None
            }
        answers = await question.fetch_many(list(keys))
        if not isinstance(answers, Mapping):
            raise MalformedResponse(f"fetch_many answered {type(answers).__name__} instead of a mapping")
        return {key: _judge(_pick(answers, key), asked_at) for key in keys}
    except Exception as error:  # noqa: BLE001 - a failing source must not fail the caller
        failure = failure_of(error)
        if failure.kind == NOT_FOUND.kind and len(keys) > 1:
            # The error does not say which id is missing, and the others may exist.
            failure = failure_of(StructsError(f"fetch_many raised {type(error).__name__} for {len(keys)} ids together"))
        return dict.fromkeys(keys, attrs.evolve(failure, asked_at=asked_at))


def _pick(answers: Mapping[str, Any], key: str) -> object:
    try:
        return answers[key]
    except KeyError:
        return EntityNotFound(key)


def _judge(answer: object, asked_at: float) -> SourceOutcome:
    """Validate a source's answer. Return it as plain data, or a failure."""
    if isinstance(answer, Exception):
        return attrs.evolve(failure_of(answer), asked_at=asked_at)
    try:
        data = own_copy(answer)
        height = getattr(answer, "height", None)
        return SourceAnswer(data, json_size(data), height if type(height) is int else None, asked_at)
    except Exception as error:  # noqa: BLE001 - a host's mapping may raise anything
        return failure_of(error)
