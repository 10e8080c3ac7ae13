"""Records for hosts: JSON under labels and a key, with an expiry, found by the same search as memories."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import asked_in_plan
from mama_structs._internal.offload import measure, run_inline_or_in_thread
from mama_structs._internal.telemetry import observed
from mama_structs.errors import InvalidArgument
from mama_structs.memory.graph.results import Results
from mama_structs.memory.records import record_plans
from mama_structs.memory.records.record_plans import RecordListing
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.search.search_plan import SearchRequest
from mama_structs.memory.types.engine import Vectors, Writer, in_turns
from mama_structs.memory.types.model import CreatedBy, MemoryType
from mama_structs.memory.types.record import (
    MAX_KEY,
    HostRecord,
    NewRecord,
    Place,
    PreparedRecord,
    RecordHit,
    Where,
    check_key,
    check_labels,
    check_new,
    check_place,
)
from mama_structs.memory.types.requests import check_limit
from mama_structs.memory.types.text_analysis import MAX_EMBEDDED
from mama_structs.memory.upkeep.erasure import WAIT, ForgetRequest, forget
from mama_structs.memory.upkeep.namespace_services import Shared
from mama_structs.provenance import Origin

T = TypeVar("T")

_MAX_QUERY = 10_000
_PAGE = 256
_LEAST_LENGTH = 1e-12


class RecordStore:
    """
    What hosts keep: a session's are `Session.records`.

    A record is JSON under a key, below a namespace of labels such as ``("users", "u1")``, and may end at a time: what
    has ended is as if it were not there.
    One with a text is a memory of the type ``record``: `MemoryStore.search`, `Session.recall` and the tools of models
    find it. One without is only kept, and no search sees it.
    Each method but `delete_all` and `sweep` is one transaction: all of it is durable when it returns, or nothing was
    changed; every process that has the store open sees it from then on.

    Raises:
        InvalidArgument: An argument breaks its rule; of every method, before anything is done.
        VersionConflict: A record is at another version than was said, or a place is taken; nothing was changed.
        EmbeddingFailed: The embedder failed at a text that was given; nothing was changed.
        StoreError: The store cannot be read or written; what was not acknowledged is not there.
        SessionClosed: The session was closed.

    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def __repr__(self) -> str:
        return f"<RecordStore {self.namespace!r}{', closed' if self._shared.closed else ''}>"

    @property
    def namespace(self) -> str:
        """Whose records these are: the session's namespace, which is none of their labels."""
        return self._shared.engine.namespace

    @property
    def now(self) -> datetime:
        """The time as the store has it (UTC): what has an end before it has ended."""
        return self._shared.now

    # Writing

    async def put(
        self,
        labels: Sequence[str],
        key: str,
        value: Any,
        *,
        text: str | Sequence[str] | None = None,
        created_at: datetime | None = None,
        expires_at: datetime | None = None,
        origin: Origin | None = None,
        created_by: CreatedBy = "user",
        history: bool = False,
        if_version: int | None = None,
    ) -> HostRecord:
        """
        Put a record, in the place of the one that is there, and return it.

        Args:
            labels: As for `NewRecord`, like the rest.
            key: As for `NewRecord`.
            value: As for `NewRecord`.
            text: As for `NewRecord`.
            created_at: As for `NewRecord`.
            expires_at: As for `NewRecord`.
            origin: As for `NewRecord`.
            created_by: As for `NewRecord`.
            history: As for `NewRecord`.
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
            history=history,
            if_version=if_version,
        )
        checked = await run_inline_or_in_thread(measure(value, text), self._checked, asked, "the record")
        (record,) = await self._put([checked], ())
        return record

    async def put_many(
        self,
        records: Iterable[NewRecord],
        *,
        delete: Iterable[tuple[Sequence[str], str] | tuple[Sequence[str], str, int]] = (),
    ) -> Sequence[HostRecord]:
        """
        Put records in their order, all or none, and return them.

        Args:
            records: A place may be named several times: the last one stays.
            delete: Labels and key of records that are deleted first, each with the version that it must be at if that
                matters; without one it is no error that a record is not there.

        """
        given = _check.items("records", records, of="records")
        deleted = _check.items("delete", delete, of="labels, a key and perhaps a version")

        def check() -> tuple[list[PreparedRecord], list[tuple[Place, int | None]]]:
            asked = [self._checked(one, f"records[{position}]") for position, one in enumerate(given)]
            return asked, _versioned("delete", deleted)

        return await self._put(*await run_inline_or_in_thread(measure(given, deleted), check))

    async def append(
        self,
        labels: Sequence[str],
        values: Iterable[Any],
        *,
        expires_at: datetime | None = None,
        origin: Origin | None = None,
        created_by: CreatedBy = "user",
    ) -> Sequence[HostRecord]:
        """
        Put values behind the last one under just these labels, without texts, and return them.

        Their keys are numbers of twelve digits, from ``000000000001`` on, so that they are listed in their order.

        Args:
            labels: As for `NewRecord`.
            values: What is to be kept, each as for `NewRecord`.
            expires_at: When they end; None for never.
            origin: As for `NewRecord`.
            created_by: As for `NewRecord`.

        """
        given = _check.items("values", values, of="values")

        def check() -> list[PreparedRecord]:
            form = partial(NewRecord, labels, "0", expires_at=expires_at, origin=origin, created_by=created_by)
            checked = (self._checked(form(value), f"values[{position}]") for position, value in enumerate(given))
            return [attrs.evolve(one, key=None) for one in checked]

        return await self._put(await run_inline_or_in_thread(measure(given), check), ())

    async def _put(
        self, asked: Sequence[PreparedRecord], gone: Sequence[tuple[Place, int | None]]
    ) -> Sequence[HostRecord]:
        self._shared.check()
        made_by = self._shared.record if any(one.texts for one in asked) else None
        now = self._shared.now
        with self._observed("update_memory", len(asked)):
            prepared = await self._prepared(asked)
            plan = partial(record_plans.put, asked=prepared, gone=gone, namespace=self.namespace, now=now)
            return await self._shared.write(plan, made_by=made_by)

    def _checked(self, asked: NewRecord, name: str) -> PreparedRecord:
        return check_new(asked, max_text=self._shared.settings.max_content, name=name)

    async def _prepared(self, asked: Sequence[PreparedRecord]) -> Sequence[PreparedRecord]:
        """Embed the texts of records, and find what they mention."""
        texts = [[text[:MAX_EMBEDDED] for text in one.texts] for one in asked if one.texts]
        if not texts:
            return asked
        vectors = iter(await saving.together(self._shared.embedding, texts))

        def mention(one: PreparedRecord) -> PreparedRecord:
            if not one.texts:
                return one
            return attrs.evolve(one, vectors=next(vectors), mentions=tuple(self._shared.find_mentions(one.text or "")))

        load = measure(*(one.texts for one in asked))
        return await run_inline_or_in_thread(load, lambda: [mention(one) for one in asked])

    async def delete(self, labels: Sequence[str], key: str, *, if_version: int | None = None) -> bool:
        """
        Delete a record, and tell whether it was there.

        Args:
            labels: Its labels.
            key: Its key.
            if_version: Only where it is at this version, as for `NewRecord`.

        """
        place = check_labels(labels), check_key(key)
        version = None if if_version is None else _check.whole("if_version", if_version)
        plan = partial(record_plans.delete, place=place, if_version=version, now=self._shared.now)
        with self._observed("delete_memory", 1):
            return await self._shared.write(plan)

    async def delete_all(self, labels: Sequence[str], *, nested: bool = True, forget: bool = False) -> int:
        """
        Delete all records below labels, some hundreds a transaction, and return how many.

        Args:
            labels: What their labels begin with; ``()`` for all records.
            nested: Whether those below further labels are meant, too.
            forget: Whether nothing of them is to stay in any file of the store, as `MemoryStore.forget` has it.

        """
        found, below = check_labels(labels), _check.flag("nested", nested)
        erased = _check.flag("forget", forget)
        with self._observed("delete_memory"):
            places, lost = await self._shared.read(
                lambda reader: record_plans.places_below(reader, found, nested=below)
            )
            count = await self._forget(places) if erased else 0
            count += await self._in_pages(lost, partial(record_plans.delete_unreadable, forget=erased))
            return count + await self._delete(places, forget=erased)

    async def _forget(self, places: Sequence[Place]) -> int:
        """Forget the memories that records are, and where others name them, and return how many these were."""
        ids = await self._shared.read(lambda reader: record_plans.ids_of(reader, places))
        request = ForgetRequest(ids=tuple(ids), about=None, source=None, before=None)
        done = await forget(self._shared.engine, request, ids, self._shared.erase_texts, dry_run=False, progress=None)
        return done.memories.get(MemoryType.RECORD.value, 0)

    async def _delete(self, places: Sequence[Place], *, forget: bool = False, ended: datetime | None = None) -> int:
        count = await self._in_pages(places, partial(record_plans.delete_many, forget=forget, ended=ended))
        if forget:
            await self._shared.engine.erase(wait=WAIT)
        return count

    async def _in_pages(self, given: Sequence[T], plan: Callable[[Writer, Sequence[T]], int]) -> int:
        pages = [given[start : start + _PAGE] for start in range(0, len(given), _PAGE)]
        return sum([sum(some) async for some in in_turns(self._shared.write, pages, plan, most=1)])

    async def pop(self, labels: Sequence[str]) -> HostRecord | None:
        """
        Take away the last record, in the order of keys, under just these labels, and return it; None for none.

        Args:
            labels: Its labels.

        """
        plan = partial(record_plans.pop, labels=check_labels(labels), now=self._shared.now)
        with self._observed("delete_memory"):
            return await self._shared.write(plan)

    async def move(
        self,
        moves: Iterable[tuple[tuple[Sequence[str], str], tuple[Sequence[str], str]]],
        *,
        overwrite: bool = False,
    ) -> int:
        """
        Have records at other places, all or none, with their history and links, and return how many there were.

        Args:
            moves: Pairs of a place and the place to be, each labels and a key; a record that is not there is left out.
            overwrite: Whether what is at the other place goes; else that raises `VersionConflict`.

        """
        given = _check.items("moves", moves, of="pairs of places")
        pairs = await run_inline_or_in_thread(measure(given), _check_moves, given)
        plan = partial(
            record_plans.move, moves=pairs, overwrite=_check.flag("overwrite", overwrite), now=self._shared.now
        )
        with self._observed("update_memory"):
            return await self._shared.write(plan)

    async def expire(
        self,
        places: Iterable[tuple[Sequence[str], str] | tuple[Sequence[str], str, int]],
        expires_at: datetime | None,
    ) -> int:
        """
        Let records end at another time, and return how many of them there are; their versions stay.

        Args:
            places: Labels and key of each, with the version that it must be at if that matters; one that is not
                there, or at another version, is left out.
            expires_at: When they end (with a time zone); None for never.

        """
        end = None if expires_at is None else _check.moment("expires_at", expires_at)
        given = _check.items("places", places, of="labels, a key and perhaps a version")
        checked = await run_inline_or_in_thread(measure(given), _versioned, "places", given)
        plan = partial(record_plans.expire, places=checked, expires_at=end, now=self._shared.now)
        with self._observed("update_memory"):
            return await self._shared.write(plan)

    async def sweep(self) -> int:
        """Delete what has ended, some hundreds a transaction, and return how much that was."""
        now = self._shared.now
        with self._observed("delete_memory"):
            return await self._delete(
                await self._shared.read(lambda reader: record_plans.ended(reader, now=now)), ended=now
            )

    # Reading

    async def get(self, labels: Sequence[str], key: str) -> HostRecord | None:
        """
        Return a record, None where there is none.

        Args:
            labels: Its labels.
            key: Its key.

        """
        return (await self.get_many([(labels, key)]))[0]

    async def get_many(self, places: Iterable[tuple[Sequence[str], str]]) -> Sequence[HostRecord | None]:
        """
        Return records in the order of their places, None for each that is not there.

        Args:
            places: Labels and key of each.

        """
        given = _check.items("places", places, of="pairs of labels and a key")
        checked = await run_inline_or_in_thread(measure(given), _places, "places", given)
        plan = partial(record_plans.get, places=checked, now=self._shared.now)
        return await self._shared.read(plan)

    async def history(self, labels: Sequence[str], key: str) -> Results[HostRecord]:
        """
        Return a record and, as far as they were kept, its former versions, newest first; nothing where it is not there.

        Args:
            labels: Its labels.
            key: Its key.

        """
        place = check_labels(labels), check_key(key)
        plan = partial(record_plans.history, place=place, now=self._shared.now)
        return Results(await self._shared.read(plan))

    async def list(
        self,
        labels: Sequence[str] = (),
        *,
        nested: bool = True,
        prefix: str = "",
        after: str | None = None,
        limit: int | None = None,
        last_first: bool = False,
        where: Where | None = None,
    ) -> Results[HostRecord]:
        """
        Return the records below labels in the order of labels and keys.

        That is the order of code points where they are ASCII letters, digits and ``-._~``; other characters stand where
        their percent-encoding does.

        Args:
            labels: What their labels begin with.
            nested: Whether those below further labels are meant, too.
            prefix: What their keys begin with (only where *nested* is False).
            after: Only those behind this key, or before it where *last_first* (only where *nested* is False).
            limit: Records at the most; None for all.
            last_first: Whether the last one comes first.
            where: Tells of a record whether it counts; asked before *limit* is, not in the loop's thread, and
                not free to ask the store, which waits for it.

        """
        below = _check.flag("nested", nested)
        if below and (prefix or after is not None):
            raise InvalidArgument("prefix and after need nested=False", hint="keys have an order under the same labels")
        asked = RecordListing(
            labels=check_labels(labels),
            nested=below,
            prefix=_check.text("prefix", prefix, most=MAX_KEY, empty=True),
            after=None if after is None else check_key(after, "after"),
            limit=None if limit is None else check_limit(limit),
            last_first=_check.flag("last_first", last_first),
            where=_check_where(where),
        )
        now = self._shared.now
        found = await self._shared.read(lambda reader: record_plans.listed(reader, asked, now=now))
        return Results(one.record for one in found)

    async def labels(self, prefix: Sequence[str] = ()) -> Sequence[tuple[str, ...]]:
        """
        Return all labels in use that begin with some, sorted.

        Those of a record without text that has ended are among them until `sweep` deletes it.

        Args:
            prefix: What they begin with.

        """
        below, now = check_labels(prefix, "prefix"), self._shared.now
        return await self._shared.read(lambda reader: record_plans.labels_below(reader, below, now=now))

    # Finding

    async def search(
        self,
        query: str,
        labels: Sequence[str] = (),
        *,
        nested: bool = True,
        where: Where | None = None,
        min_relevance: float | None = None,
        limit: int = 10,
        offset: int = 0,
    ) -> Results[RecordHit]:
        """
        Find records with text by meaning, words and time, best first, as `MemoryStore.search` does.

        Args:
            query: The question, in any words.
            labels: What their labels begin with.
            nested: Whether those below further labels are meant, too.
            where: Tells of a record whether it counts; asked before *limit* is, not in the loop's thread, and
                not free to ask the store, which waits for it.
            min_relevance: Only hits of so much relevance or more, 0 to 1; None for all.
            limit: Hits at the most.
            offset: How many of the best are left out.

        """
        self._shared.check()
        text = _check.text("query", query, most=_MAX_QUERY)
        counts, skipped = _check_where(where), _check.whole("offset", offset)
        below = record_plans.below(check_labels(labels), nested=_check.flag("nested", nested))
        least = 0.0 if min_relevance is None else _check.share("min_relevance", min_relevance)
        most, made_by = check_limit(limit), self._shared.record
        with self._observed("search_memory") as told:
            request = SearchRequest(
                text=text,
                vector=await self._shared.embedding.query(text),
                where=below,
                min_relevance=least,
                now=self._shared.now,
                limit=most,
                calibration=await self._shared.embedding.calibration(),
            )
            plan = partial(record_plans.found, request=request, where=counts, offset=skipped)
            hits = await self._shared.read(plan, made_by=made_by)
            told["memory__record__count"] = len(hits)
        return Results(hits)

    async def nearest(
        self,
        query: str | Sequence[float] | Vectors,
        labels: Sequence[str] = (),
        *,
        nested: bool = True,
        where: Where | None = None,
        limit: int = 10,
    ) -> Results[RecordHit]:
        """
        Find records with text by the cosine of their best text and a question alone, nearest first.

        Args:
            query: A text, or its vector, of the embedder's dimensions; its length does not matter.
            labels: As for `search`.
            nested: As for `search`.
            where: As for `search`.
            limit: Hits at the most.

        """
        self._shared.check()
        asked = RecordListing(
            labels=check_labels(labels), nested=_check.flag("nested", nested), where=_check_where(where)
        )
        most, made_by = check_limit(limit), self._shared.record
        with self._observed("search_memory") as told:
            vector = await self._vector(query)
            calibration = await self._shared.embedding.calibration()
            now = self._shared.now
            hits = await self._shared.read(
                lambda reader: record_plans.nearest(reader, vector, asked, calibration, now=now, limit=most),
                made_by=made_by,
            )
            told["memory__record__count"] = len(hits)
        return Results(hits)

    async def embed(self, texts: Iterable[str]) -> Sequence[Vectors]:
        """
        Return the vectors of texts as the store's embedder has them: float32 of shape (pieces, dimensions) each.

        Args:
            texts: A long one has several pieces.

        """
        self._shared.check()
        given = _check.texts("texts", texts)
        return await self._shared.embedding.documents(given) if given else []

    async def _vector(self, query: object) -> NDArray[np.float32]:
        """Return what a question's vector is, of length 1."""
        if isinstance(query, str):
            return await self._shared.embedding.query(_check.text("query", query, most=_MAX_QUERY))
        dimensions = self._shared.record.dimensions
        try:
            vector = np.asarray(query, np.float32)
        except (TypeError, ValueError):
            raise InvalidArgument(f"query must be a text or a vector, got {type(query).__name__}") from None
        if vector.shape != (dimensions,):
            raise InvalidArgument(f"query must have {dimensions} dimensions, as the embedder has, got {vector.shape}")
        length = float(np.linalg.norm(vector.astype(float)))
        if not np.isfinite(length) or length < _LEAST_LENGTH:
            raise InvalidArgument("query must be a finite vector that is not zero")
        unit: NDArray[np.float32] = (vector / length).astype(np.float32)
        return unit

    def _observed(self, operation: str, count: int | None = None) -> AbstractContextManager[dict[str, str | int]]:
        about: dict[str, str | int] = {} if count is None else {"memory__record__count": count}
        return observed(operation, memory__store__id=self.namespace, **about)


def _check_moves(moves: Sequence[Any]) -> list[tuple[Place, Place]]:
    """Return pairs of places, each of which is named once on its side."""
    pairs = []
    for position, one in enumerate(moves):
        pair = _check.items(f"moves[{position}]", one, of="two places")
        if len(pair) != 2:  # noqa: PLR2004 - from and to
            raise InvalidArgument(f"moves[{position}] must be two places, got {len(pair)}")
        pairs.append((check_place(pair[0], f"moves[{position}][0]"), check_place(pair[1], f"moves[{position}][1]")))
    for name, ends in (("from", [old for old, _ in pairs]), ("to", [new for _, new in pairs])):
        if len(set(ends)) < len(ends):
            raise InvalidArgument(f"moves must name each place that records go {name} once")
    return pairs


def _places(name: str, value: object) -> list[Place]:
    return [
        check_place(one, f"{name}[{position}]")
        for position, one in enumerate(_check.items(name, value, of="pairs of labels and a key"))
    ]


def _versioned(name: str, value: object) -> list[tuple[Place, int | None]]:
    """Return places, each with the version that a record must be at, None for any."""
    found = []
    for position, one in enumerate(_check.items(name, value, of="labels, a key and perhaps a version")):
        at = f"{name}[{position}]"
        labels, *rest = _check.items(at, one, of="labels, a key and perhaps a version")
        version = _check.whole(f"{at}[2]", rest.pop()) if len(rest) > 1 else None
        found.append((check_place((labels, *rest), at), version))
    return found


def _check_where(where: object) -> Where | None:
    if where is not None and not callable(where):
        raise InvalidArgument(f"where must be a function of a record, got {type(where).__name__}")
    return None if where is None else partial(asked_in_plan, where)
