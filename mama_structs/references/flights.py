"""
Queries under way: one for each key, shared by everybody who wants it, who holds a seat while waiting.

A query is a task of its own, so that a cancelled caller never takes it away from the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from mama_structs._plain import json_size, own_copy
from mama_structs.errors import MalformedResponse, MamaStructsError
from mama_structs.references.outcomes import (
    Attempt,
    Counters,
    SourceAnswer,
    SourceOutcome,
    current_attempt,
    failure_of,
    gone,
    timed_out,
)
from mama_structs.references.schemes import Fetch, FetchMany
from mama_structs.settings import ReferenceSettings

# Seconds that closing waits for queries which do not end when they are cancelled.
_PATIENCE: Final = 1.0
# Seconds that a caller waits for a query that it gave up; one turn of the loop is enough unless the source is stubborn.
_SETTLING: Final = 0.05


@attrs.frozen(eq=False)
class SourceQuery:
    """How to ask for one key; *kind* is the word by which its answer is invalidated, *origin* who is asked."""

    kind: str
    origin: object
    fetch: Fetch | None
    fetch_many: FetchMany | None = None


@attrs.define(eq=False)
class Flight:
    """One key's part in a query under way."""

    question: SourceQuery
    batch: Batch
    # Done when the source answered; *timely* is done too when the query's time is up.
    outcome: asyncio.Future[SourceOutcome]
    timely: asyncio.Future[SourceOutcome]
    # Who waits, and those of them who wait for as long as the source takes.
    seats: int = 0
    unbounded: int = 0

    def land(self, outcome: SourceOutcome, *, late: bool = False) -> None:
        """Tell everybody who waits; when it is late, those who wait for a bounded time."""
        for future in (self.timely,) if late else (self.outcome, self.timely):
            if not future.done():
                future.set_result(outcome)


@attrs.define(eq=False)
class Batch:
    """One upstream query, for one key or for several."""

    flights: dict[str, Flight] = attrs.field(factory=dict)
    task: asyncio.Task[None] | None = None
    attempt: Attempt | None = None
    expired: bool = False

    @property
    def wanted(self) -> bool:
        """Whether anybody can use its answer: once its time is up, only those who wait without a bound."""
        return any(flight.unbounded if self.expired else flight.seats for flight in self.flights.values())


class Flights:
    """All queries under way of one resolver; *on_landed* gets each answer that may be kept."""

    def __init__(
        self,
        settings: ReferenceSettings,
        counters: Counters,
        *,
        on_landed: Callable[[str, SourceQuery, SourceOutcome], None],
    ) -> None:
        self._slots = asyncio.Semaphore(settings.max_parallel_queries)
        self._query_timeout = settings.query_timeout
        self._counters = counters
        self._on_landed = on_landed
        self._current: dict[str, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one of the slots for upstream queries."""
        attempt, clock = current_attempt.get(), asyncio.get_running_loop().time
        if attempt is not None and attempt.owner is self:
            # A source that asks through the resolver that asks it: in a second slot it could wait for itself.
            self._counters.upstream_queries += 1
            yield
            return
        async with self._slots:
            self._counters.upstream_queries += 1
            started = clock()
            try:
                yield
            finally:
                self._counters.latencies.append(clock() - started)

    @contextlib.contextmanager
    def seats(self, wanted: Mapping[str, SourceQuery], *, bounded: bool) -> Iterator[dict[str, Flight]]:
        """Hold a seat in a query for each key; who is *bounded* waits no longer than the query timeout."""
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
        """Give queries that were cancelled a moment to release their connections, before their caller goes on."""
        batches = [flight.batch for flight in joined]
        ending = {batch.task for batch in batches if batch.task and not batch.wanted and not batch.task.done()}
        if ending:
            await asyncio.wait(ending, timeout=_SETTLING)

    def forget(self, matches: Callable[[str, str], bool]) -> None:
        """Let no one join the queries for which ``matches(key, kind)``, and keep none of their answers."""
        for key in [key for key, flight in self._current.items() if matches(key, flight.question.kind)]:
            del self._current[key]

    async def close(self) -> None:
        """Cancel what is under way and wait for its end."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_PATIENCE)

    def _join(self, wanted: Mapping[str, SourceQuery], joined: dict[str, Flight], *, bounded: bool) -> None:
        fresh: dict[int, dict[str, SourceQuery]] = {}
        for key, question in wanted.items():
            flight = self._current.get(key)
            # Sessions that share a resolver may each have a source of their own for one key.
            if flight is None or flight.question.origin is not question.origin:
                fresh.setdefault(id(question.origin), {})[key] = question
                continue
            if flight.batch.task is asyncio.current_task():
                raise MamaStructsError(
                    f"{key} is asked for by the source that is about to answer it",
                    hint="a source may ask its resolver for other ids only",
                )
            self._counters.shared_in_flight += 1
            self._sit(flight, joined, key, bounded=bounded)
        for questions in fresh.values():
            first = next(iter(questions.values()))
            is_one_query = first.fetch_many is not None and (len(questions) > 1 or first.fetch is None)
            for group in [questions] if is_one_query else [{key: question} for key, question in questions.items()]:
                for key, flight in self._start(group, bounded=bounded).flights.items():
                    self._sit(flight, joined, key, bounded=bounded)

    def _sit(self, flight: Flight, joined: dict[str, Flight], key: str, *, bounded: bool) -> None:
        joined[key] = flight
        flight.seats += 1
        flight.unbounded += not bounded
        if not bounded and flight.batch.attempt is not None:
            flight.batch.attempt.expires = None

    def _start(self, questions: dict[str, SourceQuery], *, bounded: bool) -> Batch:
        loop = asyncio.get_running_loop()
        batch = Batch()
        for key, question in questions.items():
            batch.flights[key] = Flight(question, batch, loop.create_future(), loop.create_future())
        self._current.update(batch.flights)
        query = self._fly(batch, bounded=bounded)
        try:
            batch.task = loop.create_task(query)
            self._tasks.add(batch.task)
            batch.task.add_done_callback(lambda task: self._landed(batch, task))
        except BaseException:
            # Without a task nobody would ever be answered: those who come next must start anew.
            self._remove(batch)
            query.close()
            raise
        return batch

    async def _fly(self, batch: Batch, *, bounded: bool) -> None:
        async with self.slot():
            loop = asyncio.get_running_loop()
            expires = loop.time() + self._query_timeout
            unbounded = not bounded or any(flight.unbounded for flight in batch.flights.values())
            batch.attempt = attempt = Attempt(expires=None if unbounded else expires, owner=self)
            current_attempt.set(attempt)
            expiry = loop.call_at(expires, self._expire, batch)
            try:
                outcomes = await _ask({key: flight.question for key, flight in batch.flights.items()})
            finally:
                expiry.cancel()
                self._counters.retries += attempt.retries
                self._counters.rate_limited += attempt.rate_limited
        for key, flight in batch.flights.items():
            if self._current.get(key) is flight:
                self._on_landed(key, flight.question, outcomes[key])
            flight.land(outcomes[key])

    def _expire(self, batch: Batch) -> None:
        """Tell those who wait for a bounded time that it is up, and free the slot unless somebody waits on."""
        batch.expired = True
        for flight in batch.flights.values():
            flight.land(timed_out(self._query_timeout), late=True)
        self._drop_unwanted(batch)

    def _drop_unwanted(self, batch: Batch) -> None:
        if batch.task is not None and not batch.task.done() and not batch.wanted:
            self._remove(batch)
            batch.task.cancel()

    def _landed(self, batch: Batch, task: asyncio.Task[None]) -> None:
        """Clean up, however the query ended."""
        self._tasks.discard(task)
        self._remove(batch)
        error = None if task.cancelled() else task.exception()
        failure = gone(closed=self._closed) if error is None else failure_of(error)
        for flight in batch.flights.values():
            flight.land(failure)

    def _remove(self, batch: Batch) -> None:
        for key, flight in batch.flights.items():
            if self._current.get(key) is flight:
                del self._current[key]


async def _ask(questions: dict[str, SourceQuery]) -> dict[str, SourceOutcome]:
    """Ask the source and return an outcome for every key, whatever it does."""
    keys = list(questions)
    question = questions[keys[0]]
    try:
        if question.fetch_many is None or (len(keys) == 1 and question.fetch is not None):
            return {key: _judge(await one.fetch(key)) for key, one in questions.items() if one.fetch is not None}
        answers = await question.fetch_many(list(keys))
        if not isinstance(answers, Mapping):
            raise MalformedResponse(f"fetch_many answered {type(answers).__name__} instead of a mapping")
        return {key: _judge(_pick(answers, key)) for key in keys}
    except Exception as error:  # noqa: BLE001 - a source's failure is an entry, never the caller's
        return dict.fromkeys(keys, failure_of(error))


def _pick(answers: Mapping[str, Any], key: str) -> object:
    try:
        return answers[key]
    except KeyError:
        return MalformedResponse("the source's answer leaves this id out")


def _judge(answer: object) -> SourceOutcome:
    """Take a source's answer in, or say what is wrong with it."""
    if isinstance(answer, Exception):
        return failure_of(answer)
    try:
        data = own_copy(answer)
        height = getattr(answer, "height", None)
        return SourceAnswer(data, json_size(data), height if type(height) is int else None)
    except Exception as error:  # noqa: BLE001 - a mapping of a host may fail in any way
        return failure_of(error)
