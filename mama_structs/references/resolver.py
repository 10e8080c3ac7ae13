"""Resolver: detects ids, fetches their entities from sources and adds them to payloads."""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import attrs
from cachetools import LRUCache

from mama_structs._internal.event_loop import LoopGuard
from mama_structs._internal.jsonable import as_payload, copy_containers
from mama_structs._internal.offload import (
    MAX_SYNC_CHARS,
    MAX_SYNC_ITEMS,
    check_sync_size,
    measure_input,
    run_inline_or_in_thread,
)
from mama_structs.errors import EntityNotFound, InvalidArgument, MamaStructsError, NoSource, SessionClosed, repr_short
from mama_structs.references import results as outcomes
from mama_structs.references.cache import AnswerPredicate, CacheGroup
from mama_structs.references.detection import META_KEY, SECTION_KEY, IdDetector
from mama_structs.references.inflight import InflightQueries, SourceQuery
from mama_structs.references.matches import FieldRule, IdMatch
from mama_structs.references.options import Kind, ReferenceOptions, Scope, check_kind, check_primary
from mama_structs.references.payload_shape import classify_and_scan
from mama_structs.references.results import NOT_FOUND, Counters, Failure, ResolverStats, SourceAnswer, SourceOutcome
from mama_structs.references.schemes import EntitySource, IdScheme, Source, check_sources
from mama_structs.references.section import (
    ANSWER_LIMIT,
    MEMORIES_KEY,
    OMITTED_EARLIER,
    ExpandPaths,
    LevelPlan,
    Reference,
    References,
    SectionDraft,
    is_section,
    select_references,
)
from mama_structs.references.section_truncation import (
    AnswerRoom,
    PartChooser,
    VisiblePart,
    select_part,
    to_payload_data,
)
from mama_structs.settings import ReferenceSettings

_log = logging.getLogger("mama_structs")

# Function that maps ids to the newest decisions about them. The result omits ids without decisions.
RecallDecisions = Callable[[Sequence[str]], Awaitable[Mapping[str, Sequence[Mapping[str, Any]]]]]

# Name of the rows of a tool that returns a bare list, in the answer with its references.
LIST_KEY: Final = "items"
UNKNOWN_RULE: Final = FieldRule(type="unknown", field=None)

# Maximum entries in the cache of detectors (by primary fields), and in the cache of logged warnings.
_MAX_CACHED_DETECTORS: Final = 64
_MAX_RETURNED_IDS: Final = 10_000
# Maximum age in seconds of a cached answer for a direct `fetch`.
_FRESH_SECONDS: Final = 1.0
_NO_SOURCES_NOTE: Final = "no id was looked up: the host gave this session no source of entities"
_UNKNOWN_ID_NOTE: Final = "no id was looked up: the host gave this session no source for ids such as "


class Resolver:
    """
    Finds ids in payloads, and returns the payloads with the entities that the ids identify.

    Belongs to the event loop that first uses it.

    Args:
        sources: Sources of entities; an id belongs to the first source whose scheme it matches.
        settings: Limits and caching.
        clock: Function that returns monotonic seconds, for the cache.
        home: The loop it belongs to; by default that of its first use.
        recall: Returns the newest decisions about ids, for *include_memories*; None without a memory.

    Raises:
        InvalidArgument: A source has no scheme, two have the same scheme, or *settings* has a wrong type.

    """

    def __init__(
        self,
        sources: Iterable[Source | EntitySource] = (),
        *,
        settings: ReferenceSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        home: LoopGuard | None = None,
        recall: RecallDecisions | None = None,
    ) -> None:
        if settings is not None and not isinstance(settings, ReferenceSettings):
            raise InvalidArgument(f"settings must be ReferenceSettings, got {repr_short(settings)}")
        self.sources: tuple[EntitySource, ...] = check_sources(sources)
        self.settings: ReferenceSettings = settings or ReferenceSettings()
        self._detector = IdDetector([source.scheme for source in self.sources])
        self._detectors: LRUCache[tuple[frozenset[str] | None, frozenset[str]], IdDetector] = LRUCache(
            _MAX_CACHED_DETECTORS
        )
        self._counters = Counters()
        self._clock = clock
        self._cache = CacheGroup(self.settings, clock, detach_queries=self._detach_queries)
        # Recently returned ids, for the statistics.
        self._returned_ids: LRUCache[str, bool] = LRUCache(_MAX_RETURNED_IDS)
        self._inflight: InflightQueries | None = None
        self._loop = home or LoopGuard("resolver")
        self._closed = False
        self._close_task: asyncio.Task[None] | None = None
        self._logged_warnings: LRUCache[str, bool] = LRUCache(_MAX_CACHED_DETECTORS)
        self._recall = recall
        # Detector for schemes without a source. Created lazily, for the first answer without known ids.
        self._unknown_scheme_detector: IdDetector | None = None
        self._get_unknown_schemes: Callable[[], Iterable[IdScheme]] = tuple
        # The resolver that owns the shared cache, queries and counters, or None if this resolver owns them.
        self._base: Resolver | None = None
        self._own_sources = self.sources

    def _joined_by(
        self,
        sources: Iterable[Source | EntitySource],
        *,
        recall: RecallDecisions | None = None,
        strange: Callable[[], Iterable[IdScheme]] = tuple,
    ) -> Resolver:
        """
        Return a new resolver with additional *sources* that shares the state of this resolver.

        Both share the cache, the limits, the queries in flight and the statistics. Closing the new resolver leaves this
        resolver and its sources open. The new resolver cannot be used after this resolver is closed.
        *strange* returns schemes without a source. If an answer has only ids of such schemes, its metadata has a note.

        Raises:
            SessionClosed: The resolver is closed.
            WrongLoop: The resolver belongs to another event loop.

        """
        self._require_open()
        joined, every = copy.copy(self), check_sources([*self.sources, *sources])
        vars(joined).update(
            sources=every,
            _own_sources=every[len(self.sources) :],
            _detector=IdDetector([source.scheme for source in every]),
            _detectors=LRUCache(_MAX_CACHED_DETECTORS),
            _logged_warnings=LRUCache(_MAX_CACHED_DETECTORS),
            _base=self,
            _recall=recall,
            _unknown_scheme_detector=None,
            _get_unknown_schemes=strange,
        )
        return joined

    def __repr__(self) -> str:
        names = ", ".join(source.scheme.name for source in self.sources)
        return (
            f"<Resolver {names or 'without sources'}, {len(self._cache)} cached{', closed' if self._is_closed else ''}>"
        )

    # Detection

    def detect(
        self,
        payload: object,
        options: ReferenceOptions | None = None,
        *,
        subject: str | None = None,
        kind: Kind = "auto",
    ) -> Sequence[IdMatch]:
        """
        Return the references in *payload* that *options* selects, without querying a source.

        They are in payload order.

        Args:
            payload: A mapping, or an attrs, dataclass or pydantic object.
            options: Types and fields to include; limits do not apply here.
            subject: The id of the payload's own entity, if the payload does not contain it.
            kind: See `with_references`.

        Raises:
            InvalidArgument: *payload* has more than 10,000 items or 1,000,000 characters; `enrich` accepts any size.

        """
        options = self._check_options(options)
        check_kind(kind)
        load = measure_input(payload, max_chars=MAX_SYNC_CHARS, max_items=MAX_SYNC_ITEMS)
        check_sync_size("payload", load, hint="await resolver.enrich(payload), which processes it in a thread")
        mapping = as_payload(payload)
        if mapping is None or not options._has_references:
            return []
        detector = self._get_detector(None, options._named_types)
        shape, scan = classify_and_scan(mapping, detector, kind=kind, subject=subject)
        self._counters.look_alikes += len(scan.lookalikes)
        types, every = options.reference_types, options._scope(is_list=shape.kind == "list") == "all"
        if every and types is None and not options.expand:
            return scan.matches
        paths = ExpandPaths(options.expand) if options.expand else None
        return scan.matches.filter(
            lambda _, rule: (
                (every or rule.primary or rule.type in self._unresolvable_types)
                and (types is None or rule.type in types)
                and (paths is None or paths.match_first_step("", rule))
            )
        )

    @property
    def types(self) -> tuple[str, ...] | None:
        """The type names of all sources, in order of the sources. None if a source does not list its types."""
        every = [source.scheme.types for source in self.sources]
        if not every or None in every:
            return None
        return tuple(dict.fromkeys(str(name) for types in every for name in sorted(types or ())))

    def _key(self, field: str, value: object) -> str:
        """
        Return *value* as an id, in the form of reference keys. *field* is the name of the field that contains it.

        ``_key("customer_id", 7)`` is ``"customer:7"`` if a scheme's *fields* says so, else the value as text.
        """
        return self._detector.to_key(field, str(value))

    # Resolution

    async def fetch(self, entity_id: str) -> dict[str, Any]:
        """
        Return a source's complete answer for one id.

        The answer comes from a new query, from one in flight, or from one sent within the last second.
        Built-in tools use this method, so that their queries are counted and shared. It waits without a timeout.

        Args:
            entity_id: The id of an entity.

        Raises:
            NoSource: No source answers for such ids.
            EntityNotFound: There is no such entity.
            MamaStructsError: The source failed; a host's own source may raise any other exception.

        """
        entity_id = str(entity_id)
        question = self._make_query(entity_id)
        if isinstance(question, SourceQuery):
            answer = await self._fetch_fresh(entity_id, question)
            self._returned_ids[entity_id] = True
            return answer
        if question.kind == "not_found":
            raise EntityNotFound(entity_id, hint="ids of this type name nothing")
        hint = "pass Session.open(structs=...) for the Structs chain, or sources=[Source.from_function(...)]"
        raise NoSource(question.error, entity_id=entity_id, hint=hint)

    async def _load(
        self,
        key: str,
        fetch: Callable[[str], Awaitable[Mapping[str, Any]]],
        *,
        kind: str = UNKNOWN_RULE.type,
        source: EntitySource | None = None,
    ) -> dict[str, Any]:
        """
        Return the answer of *fetch*, for data other than entities, such as a page of a list.

        Like an answer of `fetch`, it is fresh, shared and counted as an upstream query.

        Args:
            key: The key of the query, different from every id; it is passed to *fetch*.
            fetch: An async function that returns a mapping.
            kind: The type by which `invalidate` finds it.
            source: The source of the data, so that a new block of its chain invalidates it; see *cache_until*.

        Raises:
            Exception: Any exception that *fetch* raises.

        """
        return await self._fetch_fresh(key, SourceQuery(kind, source, fetch))

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Hold an upstream query slot for the duration of the block, for a query that the host sends."""
        async with self._require_open().acquire_slot():
            yield

    async def resolve(self, ids: Iterable[str], options: ReferenceOptions | None = None) -> References:
        """
        Return the entities that *ids* identify.

        Args:
            ids: Ids, in the order of the result; invalid ids are returned as failed.
            options: Depth and limits.

        Raises:
            InvalidArgument: *ids* is not a collection of ids.

        """
        options = self._check_options(options)
        if isinstance(ids, str) or not isinstance(ids, Iterable):
            raise InvalidArgument(
                f"ids must be a list of ids, got {repr_short(ids)}", hint="for one id, give a list of one"
            )
        self._require_open()
        if not self.settings.enabled or not options._has_references:
            return References({})
        sought, given = self._make_draft(options), list(ids)

        def choose() -> LevelPlan:
            kinds = ((entity_id, self._detector.find_type(entity_id)) for entity_id in map(str, given))
            found = [
                IdMatch((one, UNKNOWN_RULE if kind is None else kind[None], None, None, None)) for one, kind in kinds
            ]
            if sought.paths is not None:
                for entity_id, rule, *_ in found:
                    sought.paths.match_first_step(entity_id, rule)
            # The caller requested these ids, so include them whether their field is primary or not.
            return select_references(found, options, "all")

        plan = await run_inline_or_in_thread(measure_input(given), choose)
        await self._resolve_levels(sought, plan, options, options._scope(is_list=False), self._detector)
        await self._add_decisions(sought, options)
        return References(*await self._build_section(sought, options))

    async def enrich(
        self,
        payload: Any,
        options: ReferenceOptions | None = None,
        *,
        subject: str | None = None,
        kind: Kind = "auto",
        primary: Collection[str] | None = None,
        ceilings: Mapping[str, Any] | None = None,
    ) -> Any:
        """
        Return a shallow copy of *payload* with the entities of its ids under ``references``.

        A payload that cannot contain references (not a mapping, or with its own field ``references``) is returned
        unchanged, with one warning in the log.
        If the payload already has a section of references, that section is kept, and failed or omitted ids are retried.

        Args:
            payload: A mapping, or an attrs, dataclass or pydantic object; it is not changed.
            options: Which references to add.
            subject: The id of the payload's own entity, if the payload does not contain it.
            kind: See `with_references`.
            primary: Names of the fields with direct relations, instead of the scheme's.
            ceilings: Ceilings that reduced the caller's request, by option; reported in ``references_meta``.

        Raises:
            InvalidArgument: An argument is invalid.
            SessionClosed: The resolver is closed.
            WrongLoop: It belongs to another event loop.

        """
        return await self._enrich(payload, options, subject=subject, kind=kind, primary=primary, ceilings=ceilings)

    async def _enrich(
        self,
        payload: Any,
        options: ReferenceOptions | None,
        *,
        subject: str | None,
        kind: Kind,
        primary: Collection[str] | None,
        ceilings: Mapping[str, Any] | None,
        room: AnswerRoom | None = None,
    ) -> Any:
        """Return the result of `enrich`. With a *room*, only the references of the part that it shows are fetched."""
        options = self._check_options(options)
        check_kind(kind)
        fields = check_primary(primary)
        if not self.settings.enabled or not options._has_references:
            return payload
        self._require_open()
        load = measure_input(payload)

        def to_mapping() -> Mapping[str, Any] | None:
            found = as_payload(payload)
            if found is None and room is not None and (rows := room.to_rows(payload)) is not None:
                return {LIST_KEY: rows}
            return found

        mapping = await run_inline_or_in_thread(load, to_mapping)
        if mapping is None or not _can_add_references(mapping):
            self._warn_unchanged(payload, mapping)
            return payload
        detector = self._get_detector(fields, options._named_types)
        earlier = mapping.get(META_KEY, {}).get("omitted_ids", ())
        # An entry truncated to one line of text lacks the fields, so fetch its entity again.
        existing = {key: entry for key, entry in mapping.get(SECTION_KEY, {}).items() if not isinstance(entry, str)}
        sought = self._make_draft(options, existing_entries=existing, ceilings=ceilings)
        sought.omitted = {str(one): OMITTED_EARLIER for one in earlier}
        answered = sought.resolved_existing_ids
        select = functools.partial(
            select_part, detector=detector, kind=kind, subject=subject, options=options, draft=sought
        )
        part, chooser = await self._resolve_visible_part(mapping, select, sought, options, detector, room=room)
        shape, scan = part.shape, part.scan

        def record() -> Collection[str]:
            sought.add_scan(scan, shape.find_holder_id, via=None, metadata=options.metadata)
            sought.is_part = not part.is_complete
            sought.omitted |= dict.fromkeys(part.excess_ids, ANSWER_LIMIT)
            sought.filter_by_paths(scan.matches.iter_tuples(), _always_true)
            return [*dict.fromkeys(one for one in scan.matches.ids() if one in answered)]

        named = await run_inline_or_in_thread(load, record)
        await self._resolve_levels(
            sought, part.plan, options, part.scope, detector, existing_ids=named, part=part, chooser=chooser
        )
        remembered = await self._add_decisions(sought, options, shape.own_ids)
        if not scan.matches and not sought.existing_entries:
            sought.notes += await run_inline_or_in_thread(load, self._note_missing_sources, mapping, kind, subject)
        section, meta = await self._build_section(sought, options)
        enriched = {key: value for key, value in mapping.items() if key != META_KEY}
        enriched[SECTION_KEY] = section
        if remembered and (MEMORIES_KEY not in enriched or is_section(mapping.get(SECTION_KEY), mapping.get(META_KEY))):
            enriched[MEMORIES_KEY] = remembered
            if room is not None:
                room.add_to_payload(MEMORIES_KEY, remembered)
        if meta:
            enriched[META_KEY] = meta
        return enriched

    async def _resolve_visible_part(
        self,
        mapping: Mapping[str, Any],
        select: Callable[..., VisiblePart],
        draft: SectionDraft,
        options: ReferenceOptions,
        detector: IdDetector,
        *,
        room: AnswerRoom | None,
    ) -> tuple[VisiblePart, PartChooser | None]:
        """
        Choose the part of the payload that an answer shows, and resolve its references.

        Without a limited room, the part is complete, and the second return value is None.
        """
        load = measure_input(mapping)
        if room is None or room.budget is None:
            part = await run_inline_or_in_thread(load, select, mapping)
            await self._resolve_level(draft, part.plan, options)
            return part, None
        data = await run_inline_or_in_thread(load, to_payload_data, mapping)
        complete = await run_inline_or_in_thread(load, select, data)
        # A part without rows would not be recognised as a list.
        select = functools.partial(select, kind=complete.shape.kind)
        chooser = PartChooser(room, complete, select, self._get_brief_fields)

        def count_further() -> int:
            return draft.count_second_level(detector, options, complete.scope) if options._levels > 1 else 0

        rounds = chooser.plan_rounds(draft.references, count_further)
        while (planned := await run_inline_or_in_thread(load, next, rounds, None)) is not None:
            before = draft.wait_seconds
            await self._resolve_level(draft, planned.plan, options)
            # The next round takes at least as long. Its references would fail at the deadline.
            if before - draft.wait_seconds > draft.wait_seconds:
                break
        part = await run_inline_or_in_thread(
            load, lambda: chooser.choose(draft.references, further=count_further(), fetched_only=True)
        )
        draft.references = {one: draft.references[one] for one in part.plan.selected if one in draft.references}
        # Report nothing if the hidden part has no other references.
        return attrs.evolve(part, is_complete=part.is_complete or not part.lacks_references_of(complete)), chooser

    def _ready(self, options: ReferenceOptions) -> None:
        """Validate *options* before a tool runs, and raise the errors that `enrich` would raise with them."""
        self._check_options(options)
        if self.settings.enabled:
            self._require_open()

    # Cache and lifecycle

    def invalidate(self, what: str | None = None) -> int:
        """
        Delete cached answers. The answers of queries in flight are not cached.

        This applies to all resolvers that share the cache.

        Args:
            what: An id, a type name such as ``planet`` (including pages of planets), or None for all.

        Returns:
            The number of deleted answers.

        Raises:
            WrongLoop: The call comes from another thread or process than the resolver's.

        """
        self._loop.check_thread()
        text = None if what is None else str(what)

        def matches(key: str, kind: str) -> bool:
            return text is None or text in (key, kind)

        return self._cache.invalidate(matches, self.sources)

    @property
    def stats(self) -> ResolverStats:
        """Statistics since the creation of the resolver."""
        return self._counters.snapshot()

    async def close(self) -> None:
        """
        Cancel running queries and close the sources' own connections. Idempotent.

        Closing always completes, even if the caller is cancelled.

        Raises:
            WrongLoop: The resolver belongs to another event loop, and stays open there.
            Exception: The first error of a source; the remaining sources are closed nevertheless.

        """
        self._loop.check()
        self._closed = True
        if self._close_task is None:
            self._close_task = asyncio.get_running_loop().create_task(self._close_all())
        await asyncio.shield(self._close_task)

    async def __aenter__(self) -> Self:
        self._require_open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    # Internals

    @property
    def _is_closed(self) -> bool:
        return self._closed or (self._base is not None and self._base._is_closed)

    def _require_open(self) -> InflightQueries:
        if self._is_closed:
            raise SessionClosed("the resolver is closed")
        self._loop.check()
        if self._inflight is None:
            self._inflight = InflightQueries(
                self.settings, self._counters, clock=self._clock, on_answer=self._cache_answer
            )
        return self._inflight

    def _check_options(self, options: ReferenceOptions | None) -> ReferenceOptions:
        if options is None:
            return ReferenceOptions()
        if not isinstance(options, ReferenceOptions):
            raise InvalidArgument(f"options must be ReferenceOptions, got {repr_short(options)}")
        closed = [source.scheme.types for source in self.sources if source.scheme.types is not None]
        if options.reference_types is not None and closed and len(closed) == len(self.sources):
            known = frozenset().union(*closed)
            for name in options.reference_types:
                if name not in known:
                    hint = f"known: {', '.join(sorted(known))}"
                    raise InvalidArgument(f"reference_types holds {repr_short(name)}, which is no type", hint=hint)
        return options

    @property
    def _unresolvable_types(self) -> frozenset[str]:
        return frozenset().union(*(source.scheme.unresolvable for source in self.sources))

    def _get_detector(self, primary: frozenset[str] | None, requested_types: Collection[str]) -> IdDetector:
        """
        Return the detector for these primary fields; None selects the fields of the schemes.

        Ids of unresolvable types are found only if these types are requested. They are never fetched.
        """
        named = self._unresolvable_types.intersection(requested_types)
        if primary is None and not named:
            return self._detector
        detector = self._detectors.get((primary, named))
        if detector is None:
            schemes = [
                attrs.evolve(
                    source.scheme,
                    primary=source.scheme.primary if primary is None else primary,
                    unresolvable=source.scheme.unresolvable - named,
                )
                for source in self.sources
            ]
            detector = self._detectors[primary, named] = IdDetector(schemes)
        return detector

    async def _resolve_levels(
        self,
        draft: SectionDraft,
        plan: LevelPlan,
        options: ReferenceOptions,
        scope: Scope,
        detector: IdDetector,
        *,
        existing_ids: Collection[str] = (),
        part: VisiblePart | None = None,
        chooser: PartChooser | None = None,
    ) -> None:
        """
        Resolve the ids of the first level, and of the second level if requested.

        The second level consists of the ids in resolved entities and in the existing entries *existing_ids*.
        With a *chooser*, its size is limited to what fits in an answer after *part*.
        """
        draft.omitted.update(plan.omitted)
        draft.filtered.update(plan.filtered)
        await self._resolve_level(draft, plan, options)
        if options._levels < 2:  # noqa: PLR2004 - compared with the second level
            return

        def choose() -> LevelPlan | None:
            if draft.exceeds_bytes(options.max_bytes):
                return None
            found = draft.find_second_level(detector, existing_ids, metadata=options.metadata)
            known = {*draft.references, *draft.resolved_existing_ids, *draft.present_ids}
            plan = select_references(
                found,
                options,
                scope,
                known_ids=known,
                previous_count=len(draft.references),
                idless_types=draft.idless_types,
            )
            limit(plan)
            return plan

        def limit(plan: LevelPlan) -> None:
            if chooser is not None and part is not None:
                fitting = chooser.limit_second_level(part, draft.references, plan.selected)
                plan.omitted |= {one: ANSWER_LIMIT for one in plan.selected if one not in fitting}
                plan.selected = fitting

        load = measure_input(
            *(one.fields for one in draft.references.values()), *map(draft.existing_entries.get, existing_ids)
        )
        below = await run_inline_or_in_thread(load, choose)
        if below is not None:
            await self._resolve_level(draft, below, options)
            # Now the sizes of these references are known.
            limit(below)
            draft.references = {key: one for key, one in draft.references.items() if key not in below.omitted}
            draft.omitted.update(below.omitted)
            draft.filtered.update(below.filtered)

    async def _resolve_level(self, draft: SectionDraft, plan: LevelPlan, options: ReferenceOptions) -> None:
        """Add the selected references that *draft* does not contain yet."""
        wanted = {one: kind for one, kind in plan.selected.items() if one not in draft.references}
        loop = asyncio.get_running_loop()
        start = loop.time()
        loaded = await self._load_entities(wanted, draft.wait_seconds, options.deadline)
        draft.wait_seconds = max(0.0, draft.wait_seconds - (loop.time() - start))
        for entity_id, kind in wanted.items():
            outcome, source = loaded[entity_id], self._find_source(entity_id)
            fields: Mapping[str, Any] = {}
            if isinstance(outcome, SourceAnswer) and source is not None:
                fields = source.flatten(entity_id, outcome.data)
            bare_id = source.scheme._bare_id(entity_id) if source is not None and source.scheme.fields else None
            draft.references[entity_id] = Reference(kind, outcome, fields, bare_id)

    async def _add_decisions(
        self, draft: SectionDraft, options: ReferenceOptions, own_ids: Collection[str] = ()
    ) -> dict[str, list[dict[str, Any]]]:
        """
        Add the newest decisions to each reference.

        Return the decisions about the entities *own_ids* of the payload itself.
        """
        if self._recall is None or not (options.include_memories or self.settings.include_memories):
            return {}
        about = sorted(own_ids)[: options.max_references]
        try:
            remembered = await self._recall(list(dict.fromkeys([*about, *draft.references])))
        except MamaStructsError as error:
            # Return the answer without decisions if they cannot be loaded.
            _log.warning("what is remembered could not be added to references: %s", error)
            return {}
        for entity_id, reference in draft.references.items():
            reference.remembered = remembered.get(entity_id, ())
        return {one: [dict(decision) for decision in remembered[one]] for one in about if one in remembered}

    def _make_draft(
        self,
        options: ReferenceOptions,
        *,
        existing_entries: Mapping[str, Mapping[str, Any]] | None = None,
        ceilings: Mapping[str, Any] | None = None,
    ) -> SectionDraft:
        """Return an empty draft of a section."""
        paths = ExpandPaths(options.expand) if options.expand else None
        return SectionDraft(
            wait_seconds=options.deadline,
            paths=paths,
            get_shown_fields=functools.partial(self._get_shown_fields, options),
            omits_empty=options.fields == "brief",
            idless_types=tuple(
                name
                for name in dict.fromkeys([*(options.reference_types or ()), *sorted(options._named_types)])
                if name in self._unresolvable_types
            ),
            existing_entries=existing_entries or {},
            ceilings=ceilings or {},
        )

    def _get_shown_fields(self, options: ReferenceOptions, kind: str) -> Collection[str] | None:
        """Return the names of the fields to show for a type, or None to show all fields."""
        if isinstance(options.fields, Mapping):
            return options.fields.get(kind)
        if options.fields == "all":
            return None
        return self._get_brief_fields(kind) or None

    def _get_brief_fields(self, kind: str) -> tuple[str, ...]:
        return next((names for one in self.sources if (names := one.scheme.brief_fields(kind))), ())

    def _note_missing_sources(self, mapping: Mapping[str, Any], kind: Kind, subject: str | None) -> tuple[str, ...]:
        """
        Return a note if the payload contains ids of a scheme without a source.

        If there are no sources at all, return a note about that the first time only.
        """
        known = {source.scheme.name for source in self.sources}
        schemes = [scheme for scheme in self._get_unknown_schemes() if scheme.name not in known]
        if schemes and self._unknown_scheme_detector is None:
            self._unknown_scheme_detector = IdDetector(schemes)
        # Search for ids of schemes without a source. The caller does this only if it found no ids of its sources.
        ids = (
            classify_and_scan(mapping, self._unknown_scheme_detector, kind=kind, subject=subject)[1].matches.ids()
            if self._unknown_scheme_detector
            else []
        )
        strange = next((one for one in ids if self._detector.find_type(one) is None), None)
        warned = _NO_SOURCES_NOTE in self._logged_warnings
        if strange is None and (warned or (self.sources if self._base is None else self._base.sources)):
            return ()
        if not warned:
            self._logged_warnings[_NO_SOURCES_NOTE] = True
            _log.warning("references were requested, but there is no source for them: pass structs= or sources=")
        return (_NO_SOURCES_NOTE if strange is None else f"{_UNKNOWN_ID_NOTE}{strange}",)

    async def _build_section(
        self, draft: SectionDraft, options: ReferenceOptions
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        for reference in draft.references.values() if options.metadata else ():
            reference.as_of = self._make_as_of(reference.outcome)
        fields = (one.fields for one in draft.references.values())
        load = measure_input(draft.omitted, draft.filtered, draft.positions, *fields)
        section, meta = await run_inline_or_in_thread(load, draft.build_section, options)
        counters = self._counters
        counters.look_alikes += draft.lookalikes
        for entity_id, reference in draft.references.items():
            if isinstance(reference.outcome, Failure):
                counters.failures[reference.outcome.kind] += 1
            elif entity_id in section:
                counters.follow_up_calls_saved += entity_id not in self._returned_ids
                self._returned_ids[entity_id] = True
                counters.bytes_added += reference.outcome.size
            counters.references += entity_id in section
        return section, meta

    def _make_as_of(self, outcome: SourceOutcome) -> dict[str, Any]:
        """Return the chain height of an answer and its maximum age in seconds. Empty for a failure."""
        if isinstance(outcome, Failure):
            return {}
        height = {} if outcome.height is None else {"height": outcome.height}
        return {**height, "age": round(max(0.0, self._clock() - outcome.asked_at), 1)}

    def _find_source(self, entity_id: str) -> EntitySource | None:
        kind = self._detector.find_type(entity_id)
        return None if kind is None else next(s for s in self.sources if s.scheme is kind.scheme)

    def _detach_queries(self, matches: AnswerPredicate) -> None:
        if self._inflight is not None:
            self._inflight.detach(matches)

    def _get_cached(self, key: str, question: SourceQuery, *, require_fresh: bool = False) -> SourceOutcome | None:
        outcome = self._cache.get(key, question.origin)
        if require_fresh and outcome is not None and not 0 <= self._clock() - outcome.asked_at < _FRESH_SECONDS:
            outcome = None
        if outcome is None:
            self._counters.cache_misses += 1
        else:
            self._counters.cache_hits += 1
        return outcome

    def _cache_answer(self, key: str, question: SourceQuery, outcome: SourceOutcome) -> None:
        if not getattr(question.origin, "cache", True):
            return
        if isinstance(outcome, SourceAnswer):
            self._cache.put(key, question.kind, outcome, origin=question.origin)
        elif outcome.kind == "not_found":
            # Do not cache the cause, because its traceback would retain all frames in memory.
            self._cache.put(key, question.kind, attrs.evolve(outcome, cause=None), origin=question.origin)

    def _warn_unchanged(self, payload: object, mapping: Mapping[str, Any] | None) -> None:
        what = (
            type(payload).__name__ if mapping is None else f"a mapping with {SECTION_KEY!r} or {META_KEY!r} of its own"
        )
        if what not in self._logged_warnings:
            self._logged_warnings[what] = True
            _log.warning("references cannot be added to %s: the result is returned as it is", what)

    def _make_query(self, entity_id: str) -> SourceQuery | Failure:
        """Return the query for an id, or a failure if no source can resolve the id."""
        kind, source = self._detector.find_type(entity_id), self._find_source(entity_id)
        if kind is None or source is None:
            return outcomes.make_unknown_id_failure(entity_id)
        if kind.name in kind.scheme.unresolvable:
            return NOT_FOUND
        return SourceQuery(kind.name, source, source.fetch, source.fetch_many)

    async def _fetch_fresh(self, key: str, question: SourceQuery) -> dict[str, Any]:
        flights = self._require_open()
        outcome = self._get_cached(key, question, require_fresh=True)
        if outcome is None:
            with flights.join({key: question}, bounded=False) as joined:
                outcome = await asyncio.shield(joined[key].outcome)
        if isinstance(outcome, SourceAnswer):
            data: dict[str, Any] = copy_containers(outcome.data)
            return data
        raise outcomes.to_exception(outcome, key)

    async def _load_entities(
        self, wanted: Mapping[str, str], wait_seconds: float, deadline: float
    ) -> Mapping[str, SourceOutcome]:
        """Return an outcome for every id. Ids without an answer in *wait_seconds* get a deadline failure."""
        loaded: dict[str, SourceOutcome] = {}
        questions: dict[str, SourceQuery] = {}
        for entity_id in wanted:
            question = self._make_query(entity_id)
            if isinstance(question, Failure):
                loaded[entity_id] = question
            elif self._is_closed:
                loaded[entity_id] = outcomes.make_cancelled_failure(resolver_closed=True)
            elif (known := self._get_cached(entity_id, question)) is not None:
                loaded[entity_id] = known
            else:
                questions[entity_id] = question
        if questions:
            flights = self._require_open()
            with flights.join(questions, bounded=True) as joined:
                await asyncio.wait([flight.outcome_or_timeout for flight in joined.values()], timeout=wait_seconds)
                late = outcomes.make_deadline_failure(deadline)
                loaded |= {
                    key: one.outcome_or_timeout.result() if one.outcome_or_timeout.done() else late
                    for key, one in joined.items()
                }
            await flights.wait_for_cancelled(joined.values())
        return loaded

    async def _close_all(self) -> None:
        if self._base is None:
            if self._inflight is not None:
                await self._inflight.close()
            self._cache.close()
        errors = []
        for source in self._own_sources:
            try:
                await source.close()
            except Exception as error:  # noqa: BLE001 - raised after the other sources are closed
                errors.append(error)
        if errors:
            raise errors[0]


def _always_true(_: str, __: FieldRule) -> bool:
    return True


def add_empty_section(payload: Any, note: str) -> Any:
    """Return a copy of *payload* with a note and no references. Return other values than mappings unchanged."""
    mapping = as_payload(payload)
    if mapping is None or not _can_add_references(mapping):
        return payload
    meta = dict(mapping.get(META_KEY, {}))
    notes = [*(one for one in meta.get("notes", ()) if one != note), note]
    return {**mapping, SECTION_KEY: mapping.get(SECTION_KEY, {}), META_KEY: {**meta, "notes": notes}}


def _can_add_references(mapping: Mapping[str, Any]) -> bool:
    """Return True if adding references would not overwrite fields of the payload."""
    if SECTION_KEY not in mapping:
        return META_KEY not in mapping
    return is_section(mapping[SECTION_KEY], mapping.get(META_KEY)) and isinstance(mapping.get(META_KEY, {}), Mapping)
