"""
A store for LangGraph, deepagents and LangMem on a session's records.

Needs the extra ``langgraph``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from mama_structs import sync
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import with_call_hints
from mama_structs.adapters.langgraph.filters import check_filter, find_record_condition, matches_filter
from mama_structs.adapters.shared.loop_bridge import LoopBridge, make_awaitable
from mama_structs.errors import InvalidArgument
from mama_structs.memory.types.record import NewRecord, Record
from mama_structs.session.session import Session

try:
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        TTLConfig,
        get_text_at_path,
        validate_op_namespace,
    )
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.langgraph needs LangGraph: pip install 'mama-structs[langgraph]'"
    ) from _missing

_ROOT_LABELS: Final = ("langgraph", "store")
_Place: TypeAlias = tuple[tuple[str, ...], str]
_MAX_QUERY_CHARS: Final = 10_000
_MAX_TTL_MINUTES: Final = 1_000_000_000  # about 1,900 years


@with_call_hints(peer_names.LANGGRAPH_STORE)
class LangGraphStore(BaseStore):
    """
    Long-term memory of LangGraph agents in a session's records.

    Use: ``create_agent(..., store=LangGraphStore(session))``.

    `Session.recall`, `MemoryStore.search` and every other host of the same directory or server find an agent's items,
    too. `search` with a query uses meaning only and is exact. Its score is the cosine of the item's best field, by the
    session's embedder. Items without indexed text come last, without a score. A batch is one transaction, and its reads
    see the state before its writes. Filters accept values, nested mappings and the operators ``$eq``, ``$ne``, ``$gt``,
    ``$gte``, ``$lt``, ``$lte``; a name with dots is looked up literally, then as a path.
    An expired item disappears immediately: `RecordStore.delete_expired` only frees its space.
    Methods with and without the prefix ``a`` work in any thread and event loop. Those without the prefix block, and
    raise in the event loop of an async session.

    Args:
        session: The session that stores the items. An async one must be open, and its event loop running, while the
            store is used, and the store must be created in that loop. Use one of `mama_structs.sync` in programs
            without a loop.
        fields: Paths of a value that are indexed if a put has no ``index=``, such as ``["text"]``; ``"$"`` is the whole
            value, an empty sequence nothing.
        ttl: LangGraph's ``TTLConfig``: ``default_ttl`` in minutes, ``refresh_on_read``.

    Raises:
        WrongLoop: The session is async and no event loop runs here; or a call blocks the session's own loop.
        SessionClosed: The session was closed, or its loop ended.
        InvalidArgument: A value is not a mapping or not JSON, an operator is unknown, or a name is too long.

    """

    supports_ttl = True

    def __init__(
        self, session: Session | sync.Session, *, fields: Sequence[str] = ("$",), ttl: TTLConfig | None = None
    ) -> None:
        if isinstance(fields, str):
            raise InvalidArgument("fields must be a sequence of paths, got a text", hint='such as fields=["text"]')
        self._bridge = LoopBridge(session)
        self._fields = tuple(fields)
        self.ttl_config = ttl

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run `abatch` and block until it finishes."""
        return self._bridge.run(lambda: self.abatch(ops))

    @make_awaitable
    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run all operations, with all writes in one transaction, and return the results."""
        ops = _check_operations(ops)
        results: list[Result] = [None] * len(ops)
        read: list[tuple[Record, bool]] = []
        records = self._bridge.session.records
        gets = [(at, op) for at, op in enumerate(ops) if isinstance(op, GetOp)]
        found = await records.get_many([_get_place(op) for _, op in gets]) if gets else []
        for (at, get), record in zip(gets, found, strict=True):
            if record is not None:
                results[at] = Item(**_create_item_fields(record))
                read.append((record, get.refresh_ttl))
        for at, op in enumerate(ops):
            if isinstance(op, SearchOp):
                hits = await self._search(op)
                results[at] = [SearchItem(**_create_item_fields(record), score=score) for record, score in hits]
                read += [(record, op.refresh_ttl) for record, _ in hits]
            elif isinstance(op, ListNamespacesOp):
                results[at] = await self._list_namespaces(op)
        await self._refresh(record for record, refreshed in read if refreshed)
        # If several puts have the same key, the last one wins.
        puts = {_get_place(op): op for op in ops if isinstance(op, PutOp)}
        if puts:
            await records.put_many(
                [self._create_record(op) for op in puts.values() if op.value is not None],
                delete=[place for place, op in puts.items() if op.value is None],
            )
        return results

    def _create_record(self, op: PutOp) -> NewRecord:
        value: Any = dict(op.value or {})
        paths = self._fields if op.index is None else op.index or ()
        most = self._bridge.session.settings.memory.max_content
        try:
            texts = [text[:most] for path in paths for text in get_text_at_path(value, path) if text.strip()]
        except (TypeError, ValueError):
            # The value is not JSON. `put_many` raises a clear error for it.
            texts = []
        labels, key = _get_place(op)
        expires_at = None
        if op.ttl is not None:
            # Store the pair [value, TTL in minutes], because a read extends the expiry. Plain values are never lists.
            value, expires_at = [value, op.ttl], self._compute_expiry(op.ttl)
        return NewRecord(labels, key, value, text=texts or None, expires_at=expires_at)

    def _compute_expiry(self, minutes: float) -> datetime:
        return self._bridge.session.records._now + timedelta(minutes=minutes)

    async def _refresh(self, read: Iterable[Record]) -> None:
        by_time: defaultdict[float, set[tuple[tuple[str, ...], str, int]]] = defaultdict(set)
        for record in read:
            if isinstance(record.value, list):
                by_time[record.value[1]].add((record.labels, record.key, record.version))
        for minutes, places in by_time.items():
            # Extend only the version that was read, because a newer version may have a different TTL or none.
            await self._bridge.session.records.expire(sorted(places), self._compute_expiry(minutes))

    async def _search(self, op: SearchOp) -> list[tuple[Record, float | None]]:
        labels, end = (*_ROOT_LABELS, *op.namespace_prefix), op.offset + op.limit
        records = self._bridge.session.records
        scored: dict[_Place, tuple[Record, float | None]] = {}

        where = find_record_condition(op.filter) or None

        def matches(record: Record) -> bool:
            return (record.labels, record.key) not in scored and matches_filter(_get_value(record), op.filter or {})

        if op.query and op.query.strip() and end:
            hits = await records.nearest(op.query[:_MAX_QUERY_CHARS], labels, where=where, predicate=matches, limit=end)
            scored = {(hit.record.labels, hit.record.key): (hit.record, hit.cosine) for hit in hits}
        more = end - len(scored)
        rest = await records.list(labels, where=where, predicate=matches, limit=more) if more > 0 else []
        return [*scored.values(), *((record, None) for record in rest)][op.offset : end]

    async def _list_namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        conditions = op.match_conditions or ()
        found = (labels[len(_ROOT_LABELS) :] for labels in await self._bridge.session.records.labels(_ROOT_LABELS))
        kept = {
            labels[: op.max_depth] for labels in found if all(_matches_namespace(labels, one) for one in conditions)
        }
        return sorted(kept)[op.offset : op.offset + op.limit]


def _check_operations(ops: Iterable[Op]) -> list[Op]:
    """
    Validate all operations before any of them runs, and return them.

    A failing operation would make the other operations of the batch fail.
    """
    checked = list(ops)
    for op in checked:
        if not isinstance(op, GetOp | PutOp | SearchOp | ListNamespacesOp):
            raise InvalidArgument(f"an operation must be one of langgraph.store.base, got {type(op).__name__}")
        validate_op_namespace(op)
        if isinstance(op, PutOp):
            if not isinstance(op.value, Mapping | None):
                raise InvalidArgument(f"the value of an item must be a mapping, got {type(op.value).__name__}")
            if op.ttl is not None and not 0 < op.ttl <= _MAX_TTL_MINUTES:
                raise InvalidArgument(f"ttl must be above 0 and at most {_MAX_TTL_MINUTES:,} minutes, got {op.ttl}")
        if isinstance(op, SearchOp):
            if not isinstance(op.query, str | None):
                raise InvalidArgument(f"query must be text, got {type(op.query).__name__}")
            check_filter(op.filter)
    return checked


def _get_place(op: GetOp | PutOp) -> _Place:
    return (*_ROOT_LABELS, *op.namespace), op.key


def _get_value(record: Record) -> dict[str, Any]:
    """Return the value of an item. Items with a TTL are stored as [value, minutes]."""
    value: dict[str, Any] = record.value[0] if isinstance(record.value, list) else record.value
    return value


def _create_item_fields(record: Record) -> dict[str, Any]:
    return {
        "namespace": record.labels[len(_ROOT_LABELS) :],
        "key": record.key,
        "value": _get_value(record),
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }


def _matches_namespace(labels: tuple[str, ...], condition: MatchCondition) -> bool:
    """Return True if a namespace matches a prefix or suffix; ``*`` matches any label."""
    path = tuple(condition.path)
    part = labels[: len(path)] if condition.match_type == "prefix" else labels[max(len(labels) - len(path), 0) :]
    return len(part) == len(path) and all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))
