"""
Deduplication of concurrent queries: all callers that need a key wait for one query.

Each query runs in its own task, so that cancelling one caller does not cancel it for the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from mama_structs._internal.jsonable import copy_answer, measure_json_bytes
from mama_structs._internal.telemetry import instrument
from mama_structs.errors import EntityNotFound, MalformedResponse, MamaStructsError, StructsError, repr_short
from mama_structs.references.rate_limit import RateLimiter
from mama_structs.references.results import (
    NOT_FOUND,
    Counters,
    Failure,
    QueryAttempt,
    SourceAnswer,
    SourceOutcome,
    current_attempt,
    make_cancelled_failure,
    make_timeout_failure,
    to_failure,
)
from mama_structs.references.schemes import Fetch, FetchMany
from mama_structs.settings import ReferenceSettings

# Seconds that `close` waits for cancelled queries to end.
_CLOSE_TIMEOUT_SECONDS: Final = 1.0
# Seconds that a caller waits for a query that it cancelled. Most queries end within one event loop iteration.
_CANCEL_GRACE_SECONDS: Final = 0.05


@attrs.frozen(eq=False)
class SourceQuery:
    """Query for one key. *kind* is the type by which `invalidate` selects the answer; *origin* is the source."""

    kind: str
    origin: object
    fetch: Fetch | None
    fetch_many: FetchMany | None = None


@attrs.define(eq=False)
class InflightQuery:
    """State of one key within a batch."""

    query: SourceQuery
    batch: QueryBatch
    # Set when the source answers.
    outcome: asyncio.Future[SourceOutcome]
    # Set when the source answers or the query times out.
    outcome_or_timeout: asyncio.Future[SourceOutcome]
    # Number of all waiting callers.
    waiters: int = 0
    # Number of callers that wait without a timeout.
    unbounded_waiters: int = 0

    def publish(self, outcome: SourceOutcome, *, only_bounded: bool = False) -> None:
        """Pass the outcome to all waiting callers, or with *only_bounded* only to callers with a timeout."""
        for future in (self.outcome_or_timeout,) if only_bounded else (self.outcome, self.outcome_or_timeout):
            if not future.done():
                future.set_result(outcome)


@attrs.define(eq=False)
class QueryBatch:
    """One upstream query for one or more keys. Keys may be added until the query is sent."""

    origin: object
    queries: dict[str, InflightQuery] = attrs.field(factory=dict)
    task: asyncio.Task[None] | None = None
    attempt: QueryAttempt | None = None
    timed_out: bool = False

    @property
    def has_waiters(self) -> bool:
        """
        True if a caller still waits for the answer.

        After the timeout, only unbounded callers count.
        """
        return any(flight.unbounded_waiters if self.timed_out else flight.waiters for flight in self.queries.values())


class InflightQueries:
    """
    All in-flight queries of one resolver.

    *on_answer* receives each answer that may be cached.
    """

    def __init__(
        self,
        settings: ReferenceSettings,
        counters: Counters,
        *,
        clock: Callable[[], float],
        on_answer: Callable[[str, SourceQuery, SourceOutcome], None],
    ) -> None:
        self._limit = settings.max_parallel_queries
        self._slots = asyncio.Semaphore(self._limit)
        self._clock = clock
        # Rate limiters by the id of their source. The reference to the source prevents reuse of its id.
        self._limiters: dict[int, tuple[object, RateLimiter | None]] = {}
        self._open_batches: dict[int, QueryBatch] = {}
        self._query_timeout = settings.query_timeout
        self._counters = counters
        self._on_answer = on_answer
        self._queries_by_key: dict[str, InflightQuery] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    @contextlib.asynccontextmanager
    async def acquire_slot(
        self, gate: RateLimiter | None = None, attempt: QueryAttempt | None = None
    ) -> AsyncIterator[None]:
        """
        Hold an upstream query slot.

        For an *attempt*, also hold a slot of its rate limiter *gate*.
        """
        outer_attempt, clock = current_attempt.get(), asyncio.get_running_loop().time
        # A nested query uses the slot of the outer query, because waiting for a second slot could deadlock.
        is_nested = outer_attempt is not None and outer_attempt.owner is self
        async with contextlib.AsyncExitStack() as held:
            if not is_nested:
                await held.enter_async_context(self._slots)
            if gate is not None and attempt is not None:
                if outer_attempt is None or outer_attempt.limiter is not gate:
                    await held.enter_async_context(gate.acquire_slot(attempt))
                attempt.limiter = gate
            started = clock()
            try:
                yield
            finally:
                # Do not count a query that the rate limiter rejected before it was sent.
                self._counters.upstream_queries += attempt is None or attempt.requests > 0
                if attempt is not None:
                    # The slot is released, so tasks of the source that outlive the query must not use it.
                    attempt.limiter = None
                if not is_nested:
                    self._counters.latencies.append(clock() - started)

    @contextlib.contextmanager
    def join(self, queries: Mapping[str, SourceQuery], *, bounded: bool) -> Iterator[dict[str, InflightQuery]]:
        """Join or start the query for each key. A *bounded* caller waits at most until the query timeout."""
        joined: dict[str, InflightQuery] = {}
        try:
            self._join_all(queries, joined, bounded=bounded)
            yield joined
        finally:
            for flight in joined.values():
                flight.waiters -= 1
                flight.unbounded_waiters -= not bounded
                self._cancel_if_unused(flight.batch)

    async def wait_for_cancelled(self, joined: Iterable[InflightQuery]) -> None:
        """Wait up to `_CANCEL_GRACE_SECONDS` for cancelled queries to release their connections."""
        batches = [flight.batch for flight in joined]
        ending = {batch.task for batch in batches if batch.task and not batch.has_waiters and not batch.task.done()}
        if ending:
            await asyncio.wait(ending, timeout=_CANCEL_GRACE_SECONDS)

    def detach(self, matches: Callable[[str, str], bool]) -> None:
        """
        Detach the queries for which ``matches(key, kind)`` is true.

        New callers do not join a detached query, and its answer is not cached.
        """
        for key in [key for key, flight in self._queries_by_key.items() if matches(key, flight.query.kind)]:
            del self._queries_by_key[key]

    async def close(self) -> None:
        """Cancel all queries and wait for their tasks to end."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT_SECONDS)
        for _, gate in self._limiters.values():
            if gate is not None:
                gate.unregister(self)

    def _join_all(self, queries: Mapping[str, SourceQuery], joined: dict[str, InflightQuery], *, bounded: bool) -> None:
        asking = current_attempt.get()
        # Do not batch queries that a source sends while it answers, because the source may hold the slot for the batch.
        boarding = {} if asking is not None and asking.owner is self else self._open_batches
        for key, question in queries.items():
            flight = self._queries_by_key.get(key)
            # Sessions that share a resolver may have different sources for the same key.
            if flight is None or flight.query.origin is not question.origin:
                flight = self._add_to_batch(key, question, boarding)
            else:
                if flight.batch.task is asyncio.current_task():
                    raise MamaStructsError(
                        f"{key} is asked for by the source that is about to answer it",
                        hint="a source may ask its resolver for other ids only",
                    )
                self._counters.coalesced += 1
            self._add_waiter(flight, joined, key, bounded=bounded)

    def _add_waiter(self, flight: InflightQuery, joined: dict[str, InflightQuery], key: str, *, bounded: bool) -> None:
        joined[key] = flight
        flight.waiters += 1
        flight.unbounded_waiters += not bounded
        if not bounded and flight.batch.attempt is not None:
            flight.batch.attempt.deadline = None

    def _add_to_batch(self, key: str, question: SourceQuery, open_batches: dict[int, QueryBatch]) -> InflightQuery:
        """Add *key* to the open batch of its source, or start a new batch."""
        loop, origin = asyncio.get_running_loop(), question.origin
        batch = open_batches.get(id(origin)) if question.fetch_many is not None else None
        if batch is None or len(batch.queries) >= (getattr(origin, "max_batch", None) or math.inf):
            batch = self._start_batch(origin)
            if question.fetch_many is not None:
                open_batches[id(origin)] = batch
        flight = InflightQuery(question, batch, loop.create_future(), loop.create_future())
        batch.queries[key] = self._queries_by_key[key] = flight
        return flight

    def _start_batch(self, origin: object) -> QueryBatch:
        batch = QueryBatch(origin)
        query = self._run_batch(batch)
        try:
            batch.task = asyncio.get_running_loop().create_task(query)
        except BaseException:
            query.close()
            raise
        self._tasks.add(batch.task)
        batch.task.add_done_callback(lambda task: self._on_task_done(batch, task))
        return batch

    async def _run_batch(self, batch: QueryBatch) -> None:
        attempt = QueryAttempt(owner=self)
        async with self.acquire_slot(self._get_rate_limiter(batch.origin), attempt):
            if not self._close_to_new_keys(batch):
                return
            loop = asyncio.get_running_loop()
            expires = loop.time() + self._query_timeout
            unbounded = any(flight.unbounded_waiters for flight in batch.queries.values())
            attempt.deadline = None if unbounded else expires
            attempt.requests = int(attempt.limiter is None)
            batch.attempt = attempt
            current_attempt.set(attempt)
            expiry = loop.call_at(expires, self._expire, batch)
            try:
                questions = {key: flight.query for key, flight in batch.queries.items()}
                where = getattr(getattr(batch.origin, "scheme", None), "name", "")
                with instrument("retrieval", where, data_source__id=where) as span_attributes:
                    outcomes = await _query_source(questions, asked_at=self._clock())
                    for one in outcomes.values():
                        if isinstance(one, Failure):
                            span_attributes["error__type"] = one.kind
            finally:
                expiry.cancel()
                self._counters.retries += attempt.retries
                self._counters.rate_limited += attempt.rate_limited
                self._counters.rate_limit_waits += attempt.gate_waits
        for key, flight in batch.queries.items():
            if self._queries_by_key.get(key) is flight:
                self._on_answer(key, flight.query, outcomes[key])
            flight.publish(outcomes[key])

    def _close_to_new_keys(self, batch: QueryBatch) -> bool:
        """Accept no more keys, and remove keys without waiting callers. Return True if any keys remain."""
        self._remove_open_batch(batch)
        for key in [key for key, flight in batch.queries.items() if not flight.waiters]:
            if self._queries_by_key.get(key) is batch.queries.pop(key):
                del self._queries_by_key[key]
        return bool(batch.queries)

    def _remove_open_batch(self, batch: QueryBatch) -> None:
        if self._open_batches.get(id(batch.origin)) is batch:
            del self._open_batches[id(batch.origin)]

    def _get_rate_limiter(self, origin: object) -> RateLimiter | None:
        """Return the rate limiter of a source, or None if the source has none."""
        if id(origin) not in self._limiters:
            join = getattr(origin, "_join_gate", None)
            self._limiters[id(origin)] = origin, None if join is None else join(self, self._limit)
        return self._limiters[id(origin)][1]

    def _expire(self, batch: QueryBatch) -> None:
        """Time out callers with a timeout, and cancel the query if no other caller waits."""
        batch.timed_out = True
        for flight in batch.queries.values():
            flight.publish(make_timeout_failure(self._query_timeout), only_bounded=True)
        self._cancel_if_unused(batch)

    def _cancel_if_unused(self, batch: QueryBatch) -> None:
        if batch.task is not None and not batch.task.done() and not batch.has_waiters:
            self._remove_batch(batch)
            batch.task.cancel()

    def _on_task_done(self, batch: QueryBatch, task: asyncio.Task[None]) -> None:
        """Remove a finished batch and publish a failure to any remaining waiters."""
        self._tasks.discard(task)
        self._remove_batch(batch)
        error = None if task.cancelled() else task.exception()
        failure = make_cancelled_failure(resolver_closed=self._closed) if error is None else to_failure(error)
        for flight in batch.queries.values():
            flight.publish(failure)

    def _remove_batch(self, batch: QueryBatch) -> None:
        self._remove_open_batch(batch)
        for key, flight in batch.queries.items():
            if self._queries_by_key.get(key) is flight:
                del self._queries_by_key[key]


async def _query_source(queries: dict[str, SourceQuery], *, asked_at: float) -> dict[str, SourceOutcome]:
    """Query the source and return an outcome for every key, even if the source fails."""
    keys = list(queries)
    question = queries[keys[0]]
    try:
        if question.fetch_many is None or (len(keys) == 1 and question.fetch is not None):
            return {
                key: _validate_answer(await one.fetch(key), asked_at)
                for key, one in queries.items()
                if one.fetch is not None
            }
        answers = await question.fetch_many(list(keys))
        if not isinstance(answers, Mapping):
            raise MalformedResponse(f"fetch_many answered {type(answers).__name__} instead of a mapping")
        scheme = getattr(question.origin, "scheme", None)
        matched = _match_answers(answers, keys, str if scheme is None else scheme._bare_id)
        return {key: _validate_answer(matched[key], asked_at) for key in keys}
    except Exception as error:  # noqa: BLE001 - a failing source must not fail the caller
        failure = to_failure(error)
        if failure.kind == NOT_FOUND.kind and len(keys) > 1:
            # The error does not say which id is missing, so do not report all ids as missing.
            failure = to_failure(StructsError(f"fetch_many raised {type(error).__name__} for {len(keys)} ids together"))
        return dict.fromkeys(keys, attrs.evolve(failure, asked_at=asked_at))


def _match_answers(
    answers: Mapping[Any, Any], keys: Sequence[str], get_bare_id: Callable[[str], str]
) -> dict[str, object]:
    """
    Return the answer of *fetch_many* for each key, or an exception for a key without an answer.

    A source may name an answer by the key, by an object with the same text (such as a number), or by the bare id if
    it belongs to one key only. A missing key is not found, unless the source answered for other ids instead.
    """
    # Query the membership first: the lookup in a defaultdict would create an entity.
    found: dict[str, object] = {key: answers[key] for key in keys if key in answers}
    missing = [key for key in keys if key not in found]
    if not missing:
        return found
    bare_ids = {key: get_bare_id(key) for key in keys}
    counts = Counter(bare_ids.values())
    others = {str(name): answer for name, answer in answers.items()}
    for key in missing:
        name = key if key in others or counts[bare_ids[key]] > 1 else bare_ids[key]
        if name in others:
            found[key] = others[name]
    known = {name for key in found for name in (key, bare_ids[key])}
    strange = [name for name in others if name not in known]
    for key in missing:
        found.setdefault(key, _make_missing_error(key, strange, counts))
    return found


def _make_missing_error(key: str, strange: Sequence[str], counts: Mapping[str, int]) -> StructsError:
    """Return the error for a key without an answer. *strange* are the names of answers that belong to no key."""
    if not strange:
        return EntityNotFound(key)
    reason = "fits several requested ids" if strange[0] in counts else "was not requested"
    others = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
    return MalformedResponse(
        f"fetch_many did not answer for {repr_short(key)}, but for {repr_short(strange[0])}{others}, which {reason}",
        hint="the keys of its answer must be the ids that it got",
    )


def _validate_answer(answer: object, asked_at: float) -> SourceOutcome:
    """Validate a source's answer. Return it as plain data, or a failure."""
    # A source may return None for an unknown id.
    if answer is None:
        return attrs.evolve(NOT_FOUND, asked_at=asked_at)
    if isinstance(answer, Exception):
        return attrs.evolve(to_failure(answer), asked_at=asked_at)
    try:
        data = copy_answer(answer)
        height = getattr(answer, "height", None)
        return SourceAnswer(data, measure_json_bytes(data), height if type(height) is int else None, asked_at)
    except Exception as error:  # noqa: BLE001 - a host's mapping may raise anything
        return to_failure(error)
