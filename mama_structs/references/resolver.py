"""From ids to entities: the one place that awaits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Literal, Self

import attrs

from mama_structs.errors import InvalidArgument, MamaStructsError, QueryTimeout, SessionClosed
from mama_structs.loops import LoopBound
from mama_structs.references.cache import Answer, Cache
from mama_structs.references.detection import Detector, Found, Scan
from mama_structs.references.failures import Failure, past_deadline, unknown_id
from mama_structs.references.flights import Flights, Outcome
from mama_structs.references.options import ReferenceOptions, Scope
from mama_structs.references.payloads import as_payload, copy_plain, json_size
from mama_structs.references.planning import BYTES, Plan, plan_level
from mama_structs.references.schemes import EntitySource, Fetch, IdScheme
from mama_structs.references.section import Meta, Origin, References, failure, is_failed, is_section, success
from mama_structs.references.shape import META, SECTION, Shape, describe
from mama_structs.references.stats import Counters, ResolverStats
from mama_structs.settings import ReferenceSettings

_log = logging.getLogger("mama_structs")

UNKNOWN_TYPE = "unknown"


class Resolver:
    """
    Finds ids in payloads and adds what they stand for.

    Belongs to the event loop that first uses it.

    Args:
        sources: Where entities come from; an id belongs to the first source whose scheme it matches.
        settings: Limits and caching.
        clock: Monotonic seconds, for the cache.

    Raises:
        InvalidArgument: A source has no scheme or cannot fetch.

    """

    def __init__(
        self,
        sources: Iterable[EntitySource] = (),
        *,
        settings: ReferenceSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sources: tuple[EntitySource, ...] = tuple(sources)
        for source in self.sources:
            if not isinstance(source, EntitySource):
                raise InvalidArgument(
                    f"a source must have a scheme and fetch or fetch_many, got {source!r:.80}",
                    hint="Source(scheme, fetch=...) makes one from a function",
                )
        self.settings: ReferenceSettings = settings or ReferenceSettings()
        self._detector = Detector([source.scheme for source in self.sources])
        self._narrowed: dict[frozenset[str], Detector] = {}
        self._counters = Counters()
        self._cache = Cache(self.settings, clock)
        self._flights: Flights | None = None
        self._loop = LoopBound("resolver")
        self._closed = False
        self._no_scheme = IdScheme(name="asked", pattern="(?!)", type_of=lambda _: None)
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        names = ", ".join(source.scheme.name for source in self.sources)
        return f"<Resolver {names or 'without sources'}, {len(self._cache)} cached{', closed' if self._closed else ''}>"

    # What is in a payload

    def detect(
        self,
        payload: object,
        options: ReferenceOptions | None = None,
        *,
        subject: str | None = None,
        kind: Literal["auto", "query", "list"] = "auto",
    ) -> list[Found]:
        """
        Return every reference in *payload* that *options* ask for, in payload order, asking nothing of any source.

        Args:
            payload: A mapping, or an attrs, dataclass or pydantic object.
            options: Which types and fields count; limits do not apply here.
            subject: The id that the payload is about, where it does not say so itself.
            kind: See `with_references`.

        """
        options = self._checked(options)
        mapping = as_payload(payload)
        if mapping is None or not options.wanted:
            return []
        shape = describe(mapping, self._detector, kind=kind, subject=subject)
        found = self._scan(mapping, shape, self._detector).found
        if options.scope(is_list=shape.kind == "list") == "primary":
            found = [one for one in found if one[1].primary]
        if options.reference_types is not None:
            found = [one for one in found if one[1].type in options.reference_types]
        return found

    # What ids stand for

    async def query(self, entity_id: str) -> dict[str, Any]:
        """
        Return a source's whole answer for one id: from the cache, from a query under way, or newly asked.

        This is what ready-made tools ask with, so that their own queries count and are shared;
        it waits as long as the source does.

        Raises:
            InvalidArgument: No source answers for such ids.
            EntityNotFound: There is no such entity.
            MamaStructsError: The source failed; or whatever a host's own source raises.

        """
        entity_id = str(entity_id)
        source = self._source_of(entity_id)
        if source is None:
            raise InvalidArgument(unknown_id(entity_id).error)
        return await self._answer(entity_id, source)

    async def load(
        self, key: str, fetch: Callable[[str], Awaitable[Mapping[str, Any]]], *, kind: str = UNKNOWN_TYPE
    ) -> dict[str, Any]:
        """
        Return what *fetch* answers, as `query` does for an id: cached, shared and counted among the upstream queries.

        For what is no entity, such as a page of a list.

        Args:
            key: What is asked for, in words that differ from every id; *fetch* gets it.
            fetch: An async function that answers with a mapping.
            kind: The type by which `invalidate` finds it.

        Raises:
            Exception: Whatever *fetch* raises.

        """
        return await self._answer(key, _Asked(self._no_scheme, fetch, kind))

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one of the slots for upstream queries, for a query of the host's own."""
        async with self._open().slot():
            yield

    async def resolve(self, ids: Iterable[str], options: ReferenceOptions | None = None) -> References:
        """
        Return the entities that *ids* stand for.

        Args:
            ids: Ids, in the order in which they shall stand; what is no id comes back as failed.
            options: Depth and limits.

        """
        options = self._checked(options)
        if isinstance(ids, str):
            raise InvalidArgument(f"ids must be a list of ids, got {ids!r:.80}", hint=f"give [{ids!r:.80}]")
        self._open()
        wanted = list(dict.fromkeys(str(entity_id) for entity_id in ids))
        if not options.wanted:
            return References({})
        plan = Plan()
        for entity_id in wanted:
            kind = self._detector.kind(entity_id)
            name = UNKNOWN_TYPE if kind is None else kind.name
            if options.reference_types is not None and name not in options.reference_types:
                plan.filtered[entity_id] = "type"
            elif len(plan.start) < options.max_references:
                plan.start[entity_id] = name
            else:
                plan.omitted[entity_id] = "max_references"
        run = _Run(self, options, options.scope(is_list=False), self._detector)
        await run.follow(plan)
        section, meta = run.finish()
        return References(section, meta)

    async def enrich(
        self,
        payload: Any,
        options: ReferenceOptions | None = None,
        *,
        subject: str | None = None,
        kind: Literal["auto", "query", "list"] = "auto",
        primary: Collection[str] | None = None,
    ) -> Any:
        """
        Return a shallow copy of *payload* with what its ids stand for under ``references``.

        A payload that cannot carry references (no mapping, or with a ``references`` of its own) comes back as it is,
        with one warning in the log.

        Args:
            payload: A mapping, or an attrs, dataclass or pydantic object; it is not changed.
            options: What is asked for.
            subject: The id that was asked for, where the payload does not say so itself.
            kind: See `with_references`.
            primary: Names of the fields that hold direct relations, instead of the scheme's.

        """
        options = self._checked(options)
        if not self.settings.enabled or not options.wanted:
            return payload
        self._open()
        mapping = as_payload(payload)
        if mapping is None or (SECTION in mapping and not is_section(mapping[SECTION])):
            self._warn_untouched(payload, mapping)
            return payload
        detector = self._detector if primary is None else self._detector_with(frozenset(primary))
        shape = describe(mapping, detector, kind=kind, subject=subject)
        scan = self._scan(mapping, shape, detector)
        known = {entity_id: entry for entity_id, entry in mapping.get(SECTION, {}).items() if not is_failed(entry)}
        run = _Run(self, options, options.scope(is_list=shape.kind == "list"), detector, known=known)
        await run.start(scan, shape)
        section, meta = run.finish()
        enriched = {key: value for key, value in mapping.items() if key != META}
        enriched[SECTION] = section
        if meta:
            enriched[META] = meta
        return enriched

    def ready(self, options: ReferenceOptions) -> None:
        """Raise now what `enrich` with these options would raise, so that no tool runs in vain."""
        self._checked(options)
        if self.settings.enabled:
            self._open()

    # Care

    def invalidate(self, what: str | None = None) -> int:
        """
        Forget cached answers, and keep none of the queries under way.

        Args:
            what: An id, a type's name such as ``planet``, or None for all.

        Returns:
            How many answers were forgotten.

        """
        text = None if what is None else str(what)

        def matches(entity_id: str, kind: str) -> bool:
            return text is None or text in (entity_id, kind)

        if self._flights is not None:
            self._flights.forget(lambda entity_id: matches(entity_id, self._type_of(entity_id)))
        return self._cache.invalidate(matches)

    @property
    def stats(self) -> ResolverStats:
        """What the resolver did so far."""
        return self._counters.snapshot()

    async def close(self) -> None:
        """Cancel what is under way and close the sources' own connections; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._flights is not None:
            self._loop.check()
            await self._flights.close()
        for source in self.sources:
            await source.close()

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # Below: for this module

    def _open(self) -> Flights:
        if self._closed:
            raise SessionClosed("the resolver is closed")
        self._loop.check()
        if self._flights is None:
            self._flights = Flights(
                slots=self.settings.max_parallel_queries,
                query_timeout=self.settings.query_timeout,
                counters=self._counters,
                on_landed=self._keep,
            )
        return self._flights

    async def _answer(self, key: str, source: EntitySource) -> dict[str, Any]:
        flights = self._open()
        outcome: Outcome | None = self._known(key)
        if outcome is None:
            joined = flights.join({key: source}, bounded=False)
            try:
                outcome = await asyncio.shield(joined[key].outcome)
            finally:
                flights.leave(joined.values())
        if isinstance(outcome, Answer):
            data: dict[str, Any] = copy_plain(outcome.data)
            return data
        raise _exception_of(outcome)

    def _checked(self, options: ReferenceOptions | None) -> ReferenceOptions:
        if options is None:
            return ReferenceOptions()
        if not isinstance(options, ReferenceOptions):
            raise InvalidArgument(f"options must be ReferenceOptions, got {options!r:.80}")
        closed = [source.scheme.types for source in self.sources if source.scheme.types is not None]
        if options.reference_types is not None and closed and len(closed) == len(self.sources):
            known = frozenset().union(*closed)
            unknown = [name for name in options.reference_types if name not in known]
            if unknown:
                raise InvalidArgument(
                    f"reference_types holds {unknown[0]!r}, which is no type", hint=f"known: {', '.join(sorted(known))}"
                )
        return options

    def _detector_with(self, primary: frozenset[str]) -> Detector:
        if primary not in self._narrowed:
            self._narrowed[primary] = Detector([attrs.evolve(s.scheme, primary=primary) for s in self.sources])
        return self._narrowed[primary]

    def _scan(self, mapping: Mapping[str, Any], shape: Shape, detector: Detector) -> Scan:
        skip = (SECTION, META) if is_section(mapping.get(SECTION)) else ()
        scan = detector.scan(mapping, rows=shape.rows, exclude=shape.own, skip=skip)
        self._counters.lookalikes += len(scan.lookalikes)
        return scan

    def _source_of(self, entity_id: str) -> EntitySource | None:
        kind = self._detector.kind(entity_id)
        return None if kind is None else next(s for s in self.sources if s.scheme is kind.scheme)

    def _type_of(self, entity_id: str) -> str:
        kind = self._detector.kind(entity_id)
        return UNKNOWN_TYPE if kind is None else kind.name

    def _known(self, entity_id: str) -> Outcome | None:
        outcome = self._cache.get(entity_id)
        if outcome is None:
            self._counters.cache_misses += 1
        else:
            self._counters.cache_hits += 1
        return outcome

    def _keep(self, source: EntitySource, key: str, outcome: Outcome) -> None:
        if isinstance(outcome, Answer):
            self._cache.see(outcome.height)
        if isinstance(outcome, Answer) or outcome.kind == "not_found":
            self._cache.put(key, source.kind if isinstance(source, _Asked) else self._type_of(key), outcome)

    def _warn_untouched(self, payload: object, mapping: Mapping[str, Any] | None) -> None:
        what = type(payload).__name__ if mapping is None else f"a mapping with {SECTION!r} of its own"
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("references cannot be added to %s: the result is returned as it is", what)

    async def _load(self, plan: Plan, *, until: float, deadline: float) -> dict[str, Outcome]:
        """Return an outcome for every id that *plan* starts, at *until* (loop time) at the latest."""
        flights = self._open()
        outcomes: dict[str, Outcome] = {}
        wanted: dict[str, EntitySource] = {}
        for entity_id in plan.start:
            source = self._source_of(entity_id)
            if source is None:
                outcomes[entity_id] = unknown_id(entity_id)
            elif (known := self._known(entity_id)) is not None:
                outcomes[entity_id] = known
            else:
                wanted[entity_id] = source
        if not wanted:
            return outcomes
        joined = flights.join(wanted, bounded=True)
        try:
            left = max(0.0, until - asyncio.get_running_loop().time())
            await asyncio.wait([flight.timely for flight in joined.values()], timeout=left)
            for entity_id, flight in joined.items():
                done = flight.timely.done()
                outcomes[entity_id] = flight.timely.result() if done else past_deadline(deadline)
        finally:
            cancelled = flights.leave(joined.values())
        await flights.settle(cancelled)
        return outcomes


@attrs.frozen(eq=False)
class _Asked:
    """A single question beside the sources; see `Resolver.load`."""

    scheme: IdScheme
    fetch: Fetch
    kind: str
    fetch_many: None = None

    def flatten(self, entity_id: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002 - the protocol's
        """Return the answer."""
        return answer

    async def close(self) -> None:
        """Do nothing."""


@attrs.define
class _Run:
    """One call: its levels, one after the other, and what came of them."""

    resolver: Resolver
    options: ReferenceOptions
    scope: Scope
    detector: Detector
    known: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    meta: Meta = attrs.field(factory=Meta)
    until: float = attrs.field(init=False)
    _entries: dict[str, dict[str, Any]] = attrs.field(init=False, factory=dict)
    _origins: dict[str, Origin] = attrs.field(init=False, factory=dict)
    _started: int = attrs.field(init=False, default=0)
    _size: int = attrs.field(init=False)
    _full: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self.until = asyncio.get_running_loop().time() + self.options.deadline
        self._size = 0 if self.options.max_bytes is None else json_size(self.known)

    async def start(self, scan: Scan, shape: Shape) -> None:
        """Resolve what the payload itself names, and what lies below."""
        self.meta.complete = scan.complete
        self._note_origins(scan.found, shape.holder)
        await self.follow(plan_level(scan.found, self.options, self.scope, known=self.known))

    async def follow(self, plan: Plan) -> None:
        """Resolve a level, then the next one if it was asked for."""
        entities = await self._resolve(plan)
        if self.options.reference_depth < 2 or self._full:  # noqa: PLR2004 - the rule itself
            return
        found: list[Found] = []
        for entity_id, entry in entities.items():
            scan = self.detector.scan(entry, exclude={entity_id}, place=((None, SECTION), entity_id), skip=_ADDED)
            self.resolver._counters.lookalikes += len(scan.lookalikes)  # noqa: SLF001 - of this module
            self._note_origins(scan.found, lambda _, holder=entity_id: holder)  # type: ignore[misc]
            found += scan.found
        known = self.known.keys() | self._entries.keys() | self.meta.failures.keys()
        await self._resolve(plan_level(found, self.options, self.scope, known=known, started=self._started))

    async def _resolve(self, plan: Plan) -> dict[str, dict[str, Any]]:
        """Resolve one level and return what was found, by id."""
        options, meta = self.options, self.meta
        self._started += len(plan.start)
        for entity_id in plan.start:
            meta.omitted.pop(entity_id, None)
        meta.omitted.update(plan.omitted)
        meta.found += len(plan.start) + sum(entity_id not in plan.start for entity_id in plan.omitted)
        meta.filtered.update(plan.filtered.values())
        outcomes = await self.resolver._load(plan, until=self.until, deadline=options.deadline)  # noqa: SLF001
        entities: dict[str, dict[str, Any]] = {}
        for entity_id, kind in plan.start.items():
            entry = self._entry(entity_id, kind, outcomes[entity_id])
            if self._overflows(entity_id, entry):
                meta.omitted[entity_id] = BYTES
            elif isinstance(outcome := outcomes[entity_id], Failure):
                meta.failures[outcome.kind] += 1
                if options.on_error == "indicate":
                    self._entries[entity_id] = entry
            else:
                meta.resolved += 1
                self._entries[entity_id] = entities[entity_id] = entry
        return entities

    def _entry(self, entity_id: str, kind: str, outcome: Outcome) -> dict[str, Any]:
        origin = self._origins.setdefault(entity_id, Origin(None)) if self.options.metadata else None
        if isinstance(outcome, Failure):
            return failure(entity_id, kind, outcome, origin)
        source = self.resolver._source_of(entity_id)  # noqa: SLF001 - of this module
        assert source is not None  # noqa: S101 - it answered
        return success(entity_id, kind, source.flatten(entity_id, outcome.data), origin)

    def _overflows(self, entity_id: str, entry: dict[str, Any]) -> bool:
        """Tell whether the section would grow past its bound; from the first that would, nothing is added."""
        if self.options.max_bytes is None:
            return False
        is_first = self._size == len("{}")
        self._size += json_size({entity_id: entry}) - (len("{}") if is_first else len("{}") - len(","))
        self._full = self._full or self._size > self.options.max_bytes
        return self._full

    def _note_origins(self, found: Sequence[Found], holder: Callable[[int | None], str | None]) -> None:
        if self.options.metadata:
            for one in found:
                origin = self._origins.setdefault(one.id, Origin(holder(one.row)))
                origin.pointers.append(one.pointer)

    def finish(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the section, and its meta where there is something to say."""
        counters, meta = self.resolver._counters, self.meta  # noqa: SLF001 - of this module
        counters.references += len(self._entries)
        counters.follow_up_calls_saved += meta.resolved
        counters.failures.update(meta.failures)
        counters.bytes_added += json_size(self._entries)
        say = self.options.metadata or meta.worth_saying(hidden_failures=self.options.on_error == "omit")
        return {**self.known, **self._entries}, meta.as_dict() if say else {}


_ADDED = frozenset({"reference_type", "id", "referenced_from", "referenced_in"})


def _exception_of(failed: Failure) -> BaseException:
    if failed.cause is not None:
        return failed.cause
    if failed.kind == "timeout":
        return QueryTimeout(failed.error, seconds=0)
    return MamaStructsError(failed.error)
