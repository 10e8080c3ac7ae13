"""Fakes for tests: a clock that tests advance, and an in-memory source of entities."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import attrs

from mama_structs._internal.sync_proxy import unwrap
from mama_structs.errors import EntityNotFound, InvalidArgument
from mama_structs.references.schemes import Fetch, FetchMany, IdScheme
from mama_structs.structs.scheme import STRUCTS_SCHEME

if TYPE_CHECKING:
    from mama_structs.session.session import Session

FakeBehaviour = Callable[[str], Awaitable[Any]] | BaseException


@attrs.define
class FakeClock:
    """
    A clock that advances only when the test calls `advance` or `step`. Pass its `now` as a clock.

    Args:
        start: The initial time, in seconds.

    """

    _now: float = attrs.field(default=0.0, alias="start", kw_only=True)

    def now(self) -> float:
        """Return the current time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """
        Advance the clock by *seconds*, which must not be negative.

        Raises:
            InvalidArgument: The seconds are negative.

        """
        if seconds < 0:
            raise InvalidArgument(
                f"seconds must be 0 or more, got {seconds!r}", hint="a monotonic clock never goes back"
            )
        self._now += seconds

    def step(self, seconds: float) -> None:
        """Move the clock forward or back, like a wall clock that is corrected."""
        self._now += seconds

    def drive(self, session: Any) -> None:
        """
        Make a session use this clock.

        Memories, refs and conversations use it, but the cache of references does not.

        Args:
            session: An open session, also of `mama_structs.sync`. Start the clock near the present, such as at
                `time.time`.

        """
        inner: Session = unwrap(session)
        shared = inner.memories._shared
        for one in (shared, *(other._shared for other in getattr(shared, "others", ()))):
            one.clock = self.now
        if shared.judge_runner is not None:
            shared.judge_runner._clock = self.now
        inner.refs._clock = lambda: datetime.fromtimestamp(self.now(), UTC)


class FakeSource:
    """
    An in-memory source that records its calls.

    Args:
        entities: The entities by id; may be changed at any time.
        scheme: The scheme of its ids; the Structs chain's by default.
        delays: The delay of each answer in seconds, by id, or one number for all.
        behaviours: Replacements for an answer, by id: an exception to raise, or an async function of the id
            that returns the answer.
        batch: Whether it has `fetch_many` instead of `fetch`.

    """

    def __init__(
        self,
        entities: Mapping[str, Any] | None = None,
        *,
        scheme: IdScheme = STRUCTS_SCHEME,
        delays: Mapping[str, float] | float = 0.0,
        behaviours: Mapping[str, FakeBehaviour] | None = None,
        batch: bool = False,
    ) -> None:
        self.entities: dict[str, Any] = dict(entities or {})
        self.scheme = scheme
        self.delays = delays
        self.behaviours: dict[str, FakeBehaviour] = dict(behaviours or {})
        self.requested_ids: list[str] = []
        self.batches: list[list[str]] = []
        self.in_flight: int = 0
        self.max_in_flight: int = 0
        self.cancelled_ids: list[str] = []
        self.closed: bool = False
        self._batch = batch

    @property
    def fetch(self) -> Fetch | None:
        """The function that fetches a single id, or None if the source fetches in batches."""
        return None if self._batch else self._fetch_one

    @property
    def fetch_many(self) -> FetchMany | None:
        """The function that fetches several ids, or None if the source fetches single ids."""
        return self._fetch_many if self._batch else None

    def flatten(self, entity_id: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002 - required by the protocol
        """
        Return the answer unchanged.

        Args:
            entity_id: The id of an entity.
            answer: The answer of the source.

        """
        return answer

    async def close(self) -> None:
        """Record that the source was closed."""
        self.closed = True

    async def _fetch_one(self, entity_id: str) -> Any:
        async with self._record_request([entity_id]):
            return await self._answer(entity_id)

    async def _fetch_many(self, entity_ids: list[str]) -> Mapping[str, Any]:
        self.batches.append(list(entity_ids))
        answers: dict[str, Any] = {}
        async with self._record_request(entity_ids):
            for entity_id in entity_ids:
                try:
                    answers[entity_id] = await self._answer(entity_id)
                except Exception as error:  # noqa: BLE001 - the exception is the answer for that id
                    answers[entity_id] = error
        return answers

    @asynccontextmanager
    async def _record_request(self, entity_ids: list[str]) -> AsyncIterator[None]:
        self.requested_ids += entity_ids
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            await asyncio.sleep(max(map(self._get_delay, entity_ids)))
            yield
        except asyncio.CancelledError:
            self.cancelled_ids += entity_ids
            raise
        finally:
            self.in_flight -= 1

    def _get_delay(self, entity_id: str) -> float:
        return self.delays.get(entity_id, 0.0) if isinstance(self.delays, Mapping) else self.delays

    async def _answer(self, entity_id: str) -> Any:
        behaviour = self.behaviours.get(entity_id)
        if isinstance(behaviour, BaseException):
            raise behaviour
        if behaviour is not None:
            return await behaviour(entity_id)
        if entity_id not in self.entities:
            raise EntityNotFound(entity_id)
        return self.entities[entity_id]
