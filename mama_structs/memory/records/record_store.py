"""Record store for hosts: JSON values under labels and a key, searchable by text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import call_in_plan
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import with_call_hints
from mama_structs._internal.json_conditions import check_json_condition
from mama_structs._internal.offload import measure_input, run_inline_or_in_thread
from mama_structs._internal.telemetry import instrument
from mama_structs._internal.validation import TimeInput
from mama_structs.errors import InvalidArgument, StoreError
from mama_structs.memory.graph.results import Page, Results
from mama_structs.memory.records import record_plans
from mama_structs.memory.records.record_notes import PAGE_ROWS, HistoryLimits, IncompleteIndexError, complete_index
from mama_structs.memory.records.record_plans import RecordListing
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.search.search_request import SearchQuery, embed_request
from mama_structs.memory.types.engine import Vectors, Writer, write_in_transactions
from mama_structs.memory.types.model import KEY_PREFIX, CreatedBy, MemoryType, record_path
from mama_structs.memory.types.record import (
    MAX_KEY_CHARS,
    Labels,
    NewRecord,
    PreparedRecord,
    Record,
    RecordHit,
    RecordPlace,
    RecordPredicate,
    check_key,
    check_labels,
    check_new_record,
    check_place,
)
from mama_structs.memory.types.requests import check_limit
from mama_structs.memory.types.text_analysis import MAX_EMBEDDED_CHARS
from mama_structs.memory.upkeep.erasure import DISK_WAIT_SECONDS, EraseRequest, erase_memories
from mama_structs.memory.upkeep.namespace_services import NamespaceServices
from mama_structs.provenance import Origin

T = TypeVar("T")

MAX_QUERY_CHARS = 10_000
MIN_VECTOR_LENGTH = 1e-12


@with_call_hints(peer_names.RECORD_STORE)
class RecordStore:
    """
    The records of a host. `Session.records` is a `RecordStore`.

    A record is JSON under a key, below one label such as ``"users"`` or several such as ``("users", "u1")``. It may
    have an expiry; an expired record is treated as missing.
    A record with a text is a memory of the type ``record``: `MemoryStore.search`, `Session.recall` and the tools of
    models find it. A record without a text is only stored, and no search finds it.
    Each method except `delete_all` and `delete_expired` is one transaction: either all of it is durable when the method
    returns, or nothing was changed. From then on every process that has the store open sees the change.

    Raises:
        InvalidArgument: An argument is invalid. Every method raises it before it changes anything.
        VersionConflict: A record is at another version than expected, or a place is taken; nothing was changed.
        EmbeddingFailed: The embedder failed on a given text; nothing was changed.
        StoreError: The store cannot be read or written; unacknowledged changes are not stored.
        SessionClosed: The session was closed.

    """

    def __init__(self, shared: NamespaceServices) -> None:
        self._shared = shared

    def __repr__(self) -> str:
        return f"<RecordStore {self.namespace!r}{', closed' if self._shared.closed else ''}>"

    @property
    def namespace(self) -> str:
        """The session's namespace, to which the records belong. It is not part of their labels."""
        return self._shared.engine.namespace

    @property
    def _now(self) -> datetime:
        """The current time of the store (UTC), by which records expire."""
        return self._shared.now

    # Writing

    async def put(
        self,
        labels: Labels,
        key: str,
        value: Any,
        *,
        text: str | Sequence[str] | None = None,
        created_at: TimeInput | None = None,
        expires_at: TimeInput | None = None,
        origin: Origin | None = None,
        created_by: CreatedBy = "user",
        keep_history: bool = False,
        if_version: int | None = None,
    ) -> Record:
        """
        Put a record, replacing an existing one at the same place, and return it.

        Args:
            labels: As for `NewRecord`, like the rest.
            key: As for `NewRecord`.
            value: As for `NewRecord`.
            text: As for `NewRecord`.
            created_at: As for `NewRecord`.
            expires_at: As for `NewRecord`.
            origin: As for `NewRecord`.
            created_by: As for `NewRecord`.
            keep_history: As for `NewRecord`.
            if_version: As for `NewRecord`.

        """
        asked = NewRecord(
            labels,
            key,
            value,
            text=text,
            created_at=created_at,
            expires_at=expires_at,
            origin=origin,
            created_by=created_by,
            keep_history=keep_history,
            if_version=if_version,
        )
        checked = await run_inline_or_in_thread(measure_input(value, text), self._validate, asked, "the record")
        (record,) = await self._put([checked], ())
        return record

    async def put_many(
        self,
        records: Iterable[NewRecord],
        *,
        delete: Iterable[tuple[Labels, str] | tuple[Labels, str, int]] = (),
    ) -> Sequence[Record]:
        """
        Put records in order, all or none, and return them.

        Args:
            records: The new records. If several have the same place, the last one is stored.
            delete: Labels and key of records that are deleted first, each optionally with its expected version. Without
                a version, a missing record is no error.

        """
        given = _check.check_items("records", records, item_kind="records")
        deleted = _check.check_items("delete", delete, item_kind="labels, a key and perhaps a version")

        def check() -> tuple[list[PreparedRecord], list[tuple[RecordPlace, int | None]]]:
            asked = [self._validate(one, f"records[{position}]") for position, one in enumerate(given)]
            return asked, _check_versioned_places("delete", deleted)

        return await self._put(*await run_inline_or_in_thread(measure_input(given, deleted), check))

    async def append(
        self,
        labels: Labels,
        values: Iterable[Any],
        *,
        expires_at: TimeInput | None = None,
        origin: Origin | None = None,
        created_by: CreatedBy = "user",
    ) -> Sequence[Record]:
        """
        Append values as records after the last one under exactly these labels, and return the records.

        The records have no texts.
        Their keys are numbers of twelve digits, starting at ``000000000001``, so that listings keep their order.

        Args:
            labels: As for `NewRecord`.
            values: The values, each as for `NewRecord`.
            expires_at: The expiry of the records, as for `NewRecord`.
            origin: As for `NewRecord`.
            created_by: As for `NewRecord`.

        """
        given = _check.check_items("values", values, item_kind="values")

        def check() -> list[PreparedRecord]:
            form = partial(NewRecord, labels, "0", expires_at=expires_at, origin=origin, created_by=created_by)
            checked = (self._validate(form(value), f"values[{position}]") for position, value in enumerate(given))
            return [attrs.evolve(one, key=None) for one in checked]

        return await self._put(await run_inline_or_in_thread(measure_input(given), check), ())

    async def _put(
        self, asked: Sequence[PreparedRecord], gone: Sequence[tuple[RecordPlace, int | None]]
    ) -> Sequence[Record]:
        self._shared.check()
        made_by = self._shared.record if any(one.texts for one in asked) else None
        with self._instrument("update_memory", len(asked)):
            prepared = await self._embed_texts(asked)
            plan = partial(
                record_plans.put_records,
                records=prepared,
                deletions=gone,
                namespace=self.namespace,
                limits=self._history_limits,
            )
            return await self._shared.write(plan, made_by=made_by)

    @property
    def _history_limits(self) -> HistoryLimits:
        settings = self._shared.settings
        return HistoryLimits(settings.record_versions, settings.record_versions_ttl, self._shared.now)

    async def _read_with_index(self, plan: Callable[..., T]) -> T:
        """Run a plan that uses the index. If the records of an earlier commit are not in the index, add them first."""
        try:
            return await self._shared.read(partial(plan, needs_index=True))
        except IncompleteIndexError:
            # If the store cannot be written, the plan reads the records.
            with contextlib.suppress(StoreError):
                await complete_index(self._shared)
            return await self._shared.read(partial(plan, needs_index=False))

    def _validate(self, asked: NewRecord, name: str) -> PreparedRecord:
        return check_new_record(asked, max_text=self._shared.settings.max_content, name=name, now=self._shared.now)

    async def _embed_texts(self, asked: Sequence[PreparedRecord]) -> Sequence[PreparedRecord]:
        """Embed the texts of records and find their mentions."""
        texts = [[text[:MAX_EMBEDDED_CHARS] for text in one.texts] for one in asked if one.texts]
        if not texts:
            return asked
        vectors = iter(await saving.embed_text_groups(self._shared.embedding, texts))

        def mention(one: PreparedRecord) -> PreparedRecord:
            if not one.texts:
                return one
            return attrs.evolve(one, vectors=next(vectors), mentions=tuple(self._shared.find_mentions(one.text or "")))

        load = measure_input(*(one.texts for one in asked))
        return await run_inline_or_in_thread(load, lambda: [mention(one) for one in asked])

    async def delete(self, labels: Labels, key: str, *, if_version: int | None = None) -> bool:
        """
        Delete a record, and return True if it existed.

        Args:
            labels: The record's labels.
            key: The record's key.
            if_version: The expected version, as for `NewRecord`.

        """
        place = check_labels(labels), check_key(key)
        version = None if if_version is None else _check.check_integer("if_version", if_version)
        plan = partial(record_plans.delete_record, place=place, if_version=version, now=self._shared.now)
        with self._instrument("delete_memory", 1):
            return await self._shared.write(plan)

    async def delete_all(self, labels: Labels, *, nested: bool = True, erase: bool = False) -> int:
        """
        Delete all records below labels, some hundreds per transaction, and return their number.

        Args:
            labels: The leading labels of the records; ``()`` for all records.
            nested: Whether to include records with further labels.
            erase: Whether to erase all their data from the files of the store, as `MemoryStore.erase` does.

        """
        found, below = check_labels(labels), _check.check_bool("nested", nested)
        erased = _check.check_bool("erase", erase)
        with self._instrument("delete_memory"):
            places, lost = await self._shared.read(
                lambda reader: record_plans.find_places_below(reader, found, nested=below)
            )
            count = await self._erase_memories(places) if erased else 0
            count += await self._in_pages(lost, partial(record_plans.delete_unreadable, erase=erased))
            return count + await self._delete(places, erase=erased)

    async def _erase_memories(self, places: Sequence[RecordPlace]) -> int:
        """Erase the memories of records and all mentions of their ids; return their number."""
        ids = await self._shared.read(lambda reader: record_plans.find_memory_ids(reader, places))
        done = await erase_memories(
            self._shared.engine,
            EraseRequest(ids=tuple(ids)),
            ids,
            self._shared.erase_texts,
            dry_run=False,
            progress=None,
        )
        return done.memories.get(MemoryType.RECORD.value, 0)

    async def _delete(
        self, places: Sequence[RecordPlace], *, erase: bool = False, ended: datetime | None = None
    ) -> int:
        count = await self._in_pages(places, partial(record_plans.delete_records, erase=erase, expired_by=ended))
        if erase:
            await self._shared.engine.erase(wait=DISK_WAIT_SECONDS)
        return count

    async def _in_pages(self, given: Sequence[T], plan: Callable[[Writer, Sequence[T]], int]) -> int:
        pages = [given[start : start + PAGE_ROWS] for start in range(0, len(given), PAGE_ROWS)]
        return sum([sum(some) async for some in write_in_transactions(self._shared.write, pages, plan, max_items=1)])

    async def pop(self, labels: Labels) -> Record | None:
        """
        Delete and return the record with the last key under exactly these labels. Return None if no record exists.

        Args:
            labels: The record's labels.

        """
        plan = partial(record_plans.pop_last, labels=check_labels(labels), now=self._shared.now)
        with self._instrument("delete_memory"):
            return await self._shared.write(plan)

    async def move(
        self,
        moves: Iterable[tuple[tuple[Labels, str], tuple[Labels, str]]],
        *,
        overwrite: bool = False,
    ) -> int:
        """
        Move records with history and links, all or none, and return their number.

        Args:
            moves: Pairs of an old and a new place, each labels and a key; a missing record is skipped.
            overwrite: Whether to replace records at the new places; otherwise `VersionConflict` is raised.

        """
        given = _check.check_items("moves", moves, item_kind="pairs of places")
        pairs = await run_inline_or_in_thread(measure_input(given), _check_moves, given)
        plan = partial(
            record_plans.move_records,
            moves=pairs,
            overwrite=_check.check_bool("overwrite", overwrite),
            now=self._shared.now,
        )
        with self._instrument("update_memory"):
            return await self._shared.write(plan)

    async def expire(
        self,
        places: Iterable[tuple[Labels, str] | tuple[Labels, str, int]],
        expires_at: TimeInput | None,
    ) -> int:
        """
        Set the expiry of records, and return their number. Their versions do not change.

        Args:
            places: Labels and key of each record, optionally with its expected version; a record that is missing or at
                another version is skipped.
            expires_at: The new expiry; a timedelta counts from now, None means never.

        """
        now = self._shared.now
        end = None if expires_at is None else _check.check_time("expires_at", expires_at, now=now, in_future=True)
        given = _check.check_items("places", places, item_kind="labels, a key and perhaps a version")
        checked = await run_inline_or_in_thread(measure_input(given), _check_versioned_places, "places", given)
        plan = partial(record_plans.set_expiry, places=checked, expires_at=end, now=now)
        with self._instrument("update_memory"):
            return await self._shared.write(plan)

    async def delete_expired(self) -> int:
        """Delete expired records, some hundreds per transaction, and return their number."""
        now = self._shared.now
        with self._instrument("delete_memory"):
            places = await self._read_with_index(partial(record_plans.find_expired, now=now))
            return await self._delete(places, ended=now)

    # Reading

    async def get(self, labels: Labels, key: str) -> Record | None:
        """
        Return a record, or None if it does not exist.

        Args:
            labels: The record's labels.
            key: The record's key.

        """
        return (await self.get_many([(labels, key)]))[0]

    async def get_many(self, places: Iterable[tuple[Labels, str]]) -> Sequence[Record | None]:
        """
        Return records in the order of their places, with None for each missing record.

        Args:
            places: Labels and key of each record.

        """
        given = _check.check_items("places", places, item_kind="pairs of labels and a key")
        checked = await run_inline_or_in_thread(measure_input(given), _check_places, "places", given)
        plan = partial(record_plans.get_records, places=checked, now=self._shared.now)
        return await self._shared.read(plan)

    async def history(self, labels: Labels, key: str) -> Results[Record]:
        """
        Return a record and its stored former versions, newest first. Without a record, the list is empty.

        `MemorySettings.record_versions` and `MemorySettings.record_versions_ttl` limit the former versions.

        Args:
            labels: The record's labels.
            key: The record's key.

        """
        place = check_labels(labels), check_key(key)
        plan = partial(record_plans.get_versions, place=place, limits=self._history_limits)
        return Results(await self._shared.read(plan), item_type=Record)

    async def list(
        self,
        labels: Labels = (),
        *,
        nested: bool = True,
        prefix: str = "",
        cursor: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
        where: Mapping[str, Any] | None = None,
        predicate: RecordPredicate | None = None,
    ) -> Page[Record]:
        """
        Return a page of the records below labels, ordered by labels and keys. Damaged records are left out.

        ASCII letters, digits and ``-._~`` are ordered by code point; other characters are ordered by their
        percent-encoding.

        Args:
            labels: The leading labels of the records.
            nested: Whether to include records with further labels.
            prefix: The prefix of their keys (only if *nested* is False).
            cursor: Only records after this position: ``next_cursor`` of the previous page, or a key if *nested* is
                False.
            limit: The maximum number of records; None for all.
            reverse: Whether to reverse the order.
            where: Values under keys that a record must have, such as ``{"status": "open", "user": {"name": "Ada"}}``,
                found by an index. A list matches if one of its items does.
            predicate: Returns True for a record to include. It is called before *limit* applies, outside the thread of
                the event loop. It must not call the store, which waits for it.

        Raises:
            InvalidArgument: An argument is invalid.

        """
        asked = _check_listing(labels, nested=nested, where=where, predicate=predicate)
        found_labels, below = asked.labels, asked.nested
        if below and prefix:
            raise InvalidArgument("prefix needs nested=False", hint="keys have an order under the same labels")
        count = None if limit is None else check_limit(limit)
        asked = attrs.evolve(
            asked,
            prefix=_check.check_text("prefix", prefix, max_chars=MAX_KEY_CHARS, allow_empty=True),
            after=None if cursor is None else _parse_cursor(cursor, found_labels, nested=below),
            # Request one extra record, to know if another page follows.
            limit=None if count is None else count + 1,
            last_first=_check.check_bool("reverse", reverse),
        )
        plan = partial(record_plans.list_records, listing=asked, now=self._shared.now)
        found = await self._read_with_index(plan)
        records = [one.record for one in found[:count]]
        is_last = count is None or len(found) <= count
        return Page(
            records, next_cursor=None if is_last else _format_cursor(records[-1], nested=below), item_type=Record
        )

    async def labels(self, prefix: Labels = ()) -> Sequence[tuple[str, ...]]:
        """
        Return all labels in use that begin with the given labels, sorted. Labels of expired records only are left out.

        Args:
            prefix: The leading labels.

        """
        below, now = check_labels(prefix, "prefix"), self._shared.now
        return await self._read_with_index(partial(record_plans.find_labels_below, labels=below, now=now))

    # Searching

    async def search(
        self,
        query: str,
        labels: Labels = (),
        *,
        nested: bool = True,
        where: Mapping[str, Any] | None = None,
        predicate: RecordPredicate | None = None,
        min_relevance: float | None = None,
        limit: int = 10,
        offset: int = 0,
    ) -> Results[RecordHit]:
        """
        Find records with text by semantic similarity, keywords and time, best first.

        The search works as `MemoryStore.search`.

        Args:
            query: The query, in any words.
            labels: The leading labels of the records.
            nested: Whether to include records with further labels.
            where: As for `list`.
            predicate: Returns True for a record to include. It is called before *limit* applies, outside the thread of
                the event loop. It must not call the store, which waits for it.
            min_relevance: The minimum relevance of a hit, 0 to 1; None for all hits.
            limit: The maximum number of hits.
            offset: The number of best hits to skip.

        """
        self._shared.check()
        text = _check.check_text("query", query, max_chars=MAX_QUERY_CHARS)
        skipped = _check.check_integer("offset", offset)
        listing = _check_listing(labels, nested=nested, where=where, predicate=predicate)
        least = 0.0 if min_relevance is None else _check.check_ratio("min_relevance", min_relevance)
        most, made_by = check_limit(limit), self._shared.record
        with self._instrument("search_memory") as told:
            asked = SearchQuery(text=text, min_relevance=least, limit=most)
            request = await embed_request(
                asked, self._shared.embedding.embed_query_vectors, self._shared.embedding.embedder, now=self._shared.now
            )
            plan = partial(record_plans.search_records, request=request, listing=listing, offset=skipped)
            hits = await self._shared.read(plan, made_by=made_by)
            told["memory__record__count"] = len(hits)
        return Results(hits, item_type=RecordHit)

    async def nearest(
        self,
        query: str | Sequence[float] | Vectors,
        labels: Labels = (),
        *,
        nested: bool = True,
        where: Mapping[str, Any] | None = None,
        predicate: RecordPredicate | None = None,
        limit: int = 10,
    ) -> Results[RecordHit]:
        """
        Find records with text by the highest cosine between the query and their chunks, nearest first.

        Args:
            query: A text, or a vector with the embedder's dimensions; its length is normalized.
            labels: As for `search`.
            nested: As for `search`.
            where: As for `list`.
            predicate: As for `search`.
            limit: The maximum number of hits.

        """
        self._shared.check()
        asked = _check_listing(labels, nested=nested, where=where, predicate=predicate)
        most, made_by = check_limit(limit), self._shared.record
        with self._instrument("search_memory") as told:
            vector = await self._query_vector(query)
            calibration = await self._shared.embedding.calibration()
            now = self._shared.now
            hits = await self._shared.read(
                lambda reader: record_plans.find_nearest(reader, vector, asked, calibration, now=now, limit=most),
                made_by=made_by,
            )
            told["memory__record__count"] = len(hits)
        return Results(hits, item_type=RecordHit)

    async def embed(self, texts: Iterable[str]) -> Sequence[Vectors]:
        """
        Return the embedder's vectors of texts, each as float32 of shape (chunks, dimensions).

        Args:
            texts: The texts; a long text is split into several chunks.

        """
        self._shared.check()
        given = _check.check_texts("texts", texts)
        return await self._shared.embedding.embed_documents(given) if given else []

    async def _query_vector(self, query: object) -> NDArray[np.float32]:
        """Return a query text or query vector as a unit vector."""
        if isinstance(query, str):
            return await self._shared.embedding.embed_query(
                _check.check_text("query", query, max_chars=MAX_QUERY_CHARS)
            )
        dimensions = self._shared.record.dimensions
        try:
            vector = np.asarray(query, np.float32)
        except (TypeError, ValueError):
            raise InvalidArgument(f"query must be a text or a vector, got {type(query).__name__}") from None
        if vector.shape != (dimensions,):
            raise InvalidArgument(f"query must have {dimensions} dimensions, as the embedder has, got {vector.shape}")
        length = float(np.linalg.norm(vector.astype(float)))
        if not np.isfinite(length) or length < MIN_VECTOR_LENGTH:
            raise InvalidArgument("query must be a finite vector that is not zero")
        unit: NDArray[np.float32] = (vector / length).astype(np.float32)
        return unit

    def _instrument(self, operation: str, count: int | None = None) -> AbstractContextManager[dict[str, str | int]]:
        about: dict[str, str | int] = {} if count is None else {"memory__record__count": count}
        return instrument(operation, memory__store__id=self.namespace, **about)


def _format_cursor(record: Record, *, nested: bool) -> str:
    """Return the cursor after a record: its key, or labels and key if the listing has different labels."""
    return record_path(record.labels, record.key) if nested else record.key


def _parse_cursor(cursor: object, labels: tuple[str, ...], *, nested: bool) -> str:
    """Return the place after which a listing continues."""
    if not nested:
        return record_path(labels, check_key(cursor, "cursor"))
    place = _check.check_text("cursor", cursor)
    if not place.rpartition("/")[2].startswith(KEY_PREFIX):
        raise InvalidArgument("cursor is not the next_cursor of a page", hint="pass page.next_cursor")
    return place


def _check_moves(moves: Sequence[Any]) -> list[tuple[RecordPlace, RecordPlace]]:
    """Validate pairs of places and return them. Each place may occur at most once as a source and once as a target."""
    pairs = []
    for position, one in enumerate(moves):
        pair = _check.check_items(f"moves[{position}]", one, item_kind="two places")
        if len(pair) != 2:  # noqa: PLR2004 - from and to
            raise InvalidArgument(f"moves[{position}] must be two places, got {len(pair)}")
        pairs.append((check_place(pair[0], f"moves[{position}][0]"), check_place(pair[1], f"moves[{position}][1]")))
    for name, ends in (("from", [old for old, _ in pairs]), ("to", [new for _, new in pairs])):
        if len(set(ends)) < len(ends):
            raise InvalidArgument(f"moves must name each place that records go {name} once")
    return pairs


def _check_places(name: str, value: object) -> list[RecordPlace]:
    return [
        check_place(one, f"{name}[{position}]")
        for position, one in enumerate(_check.check_items(name, value, item_kind="pairs of labels and a key"))
    ]


def _check_versioned_places(name: str, value: object) -> list[tuple[RecordPlace, int | None]]:
    """Validate places and return each with its expected version or None."""
    found = []
    for position, one in enumerate(_check.check_items(name, value, item_kind="labels, a key and perhaps a version")):
        at = f"{name}[{position}]"
        labels, *rest = _check.check_items(at, one, item_kind="labels, a key and perhaps a version")
        version = _check.check_integer(f"{at}[2]", rest.pop()) if len(rest) > 1 else None
        found.append((check_place((labels, *rest), at), version))
    return found


def _check_listing(labels: Labels, *, nested: object, where: object, predicate: object) -> RecordListing:
    return RecordListing(
        labels=check_labels(labels),
        nested=_check.check_bool("nested", nested),
        condition=None if where is None else check_json_condition(where),
        predicate=_check_predicate(predicate),
    )


def _check_predicate(predicate: object) -> RecordPredicate | None:
    if predicate is not None and not callable(predicate):
        raise InvalidArgument(f"predicate must be a function of a record, got {type(predicate).__name__}")
    return None if predicate is None else partial(call_in_plan, predicate)
