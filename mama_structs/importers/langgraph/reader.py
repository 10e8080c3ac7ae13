"""
Reader of items in LangGraph stores.

It reads the file of a ``SqliteStore`` or any ``BaseStore`` object.
Items become records in the format of `mama_structs.adapters.langgraph.store`, so that an agent that switches to that
adapter finds its items. This module does not import LangGraph.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.importers.shared.import_model import Outside, OutsideRecord
from mama_structs.importers.shared.safe_files import refused
from mama_structs.importers.shared.sqlite_copy import CopiedDatabase, copied
from mama_structs.importers.shared.value_readers import ForeignRow, read_json, read_text, read_time

KIND: Final = "langgraph"
LABELS: Final = ("langgraph", "store")
"""The leading labels of imported items; the item's namespace follows them."""
ITEMS: Final = "items"
_TABLE: Final = "store"
_VECTORS: Final = "store_vectors"
_WHOLE: Final = ("$",)
_PAGE: Final = 100


def read(path: Path) -> Outside:
    """
    Read the file of a SqliteStore without changing it. Blocks.

    Raises:
        InvalidArgument: The file does not exist.
        MigrationError: The file is damaged, being written to, too large, or not the file of a SqliteStore.

    """
    with copied(path, kind="the file of a LangGraph SqliteStore", program="the agent") as database:
        database.check()
        tables = database.names()
        if _TABLE not in tables or not {"prefix", "key", "value"} <= set(database.columns(_TABLE)):
            hint = "a checkpointer's file holds no items; name the file that SqliteStore.from_conn_string was given"
            raise refused(path, "is a database, and none of a LangGraph store", hint)
        items = _Items(KIND, path, (ITEMS,), _indexed(database) if _VECTORS in tables else {})
        for row in database.rows(_TABLE):
            items.take_row(row)
    return items


async def read_store(store: Any) -> Outside:
    """
    Read all items of a ``BaseStore`` without extending their expiry.

    Raises:
        InvalidArgument: The object is not a ``BaseStore``.

    """
    if not callable(getattr(store, "list_namespaces", None)) or not callable(getattr(store, "search", None)):
        raise InvalidArgument(f"source must be a path or a LangGraph BaseStore, got {type(store).__name__}")
    items = _Items(KIND, type(store).__name__, (ITEMS,), {})
    async for namespaces in _pages(store, "list_namespaces"):
        for namespace in namespaces:
            async for found in _pages(store, "search", tuple(namespace), refresh_ttl=False):
                for item in found:
                    # A search also returns items of nested namespaces, which are read in their own iteration.
                    if tuple(item.namespace) == tuple(namespace):
                        items.take(tuple(namespace), item.key, item.value, created=_utc(item.created_at))
    return items


async def _pages(store: Any, method: str, *arguments: Any, **options: Any) -> AsyncIterator[list[Any]]:
    offset = 0
    while True:
        page = await _asked(store, method, *arguments, limit=_PAGE, offset=offset, **options)
        yield page
        if len(page) < _PAGE:
            return
        offset += len(page)


async def _asked(store: Any, method: str, *arguments: Any, **options: Any) -> list[Any]:
    """Call a store's async method, or its sync method in a thread if there is no async one."""
    try:
        found = await getattr(store, f"a{method}")(*arguments, **options)
    except NotImplementedError:
        call: Callable[..., Any] = getattr(store, method)
        found = await asyncio.to_thread(lambda: call(*arguments, **options))
    return list(found)


def _indexed(database: CopiedDatabase) -> dict[tuple[str, str], set[str]]:
    """Return the indexed field paths of each item."""
    paths: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for row in database.rows(_VECTORS):
        paths[str(row.get("prefix")), str(row.get("key"))].add(str(row.get("field_name")))
    return dict(paths)


@attrs.define
class _Items(Outside):
    """Collects items. *indexed* maps items to indexed paths; if empty, whole values are."""

    indexed: Mapping[tuple[str, str], set[str]]

    def take_row(self, row: ForeignRow) -> None:
        prefix, key = row.text("prefix") or "", row.text("key") or ""
        name = f"{prefix.replace('.', '/')}/{key}"
        try:
            value = read_json(read_text(row.get("value")).text or "")
        except ValueError:
            self.skip(ITEMS, name, "no_json", "its value is no JSON")
            return
        paths = tuple(sorted(self.indexed.get((prefix, key), ()))) if self.indexed else _WHOLE
        minutes = row.get("ttl_minutes")
        ends = read_time(row.get("expires_at"))
        if ends.at is None and row.get("expires_at") is not None:
            self.add_odd(ITEMS, name, "no_time", "when it expires is no time: it does not expire")
        self.take(
            tuple(filter(None, prefix.split("."))),
            key,
            value,
            created=read_time(row.get("created_at")).at,
            ends=ends.at,
            minutes=float(minutes) if isinstance(minutes, int | float) and ends.at is not None else None,
            paths=paths,
        )

    def take(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Any,
        *,
        created: datetime | None,
        ends: datetime | None = None,
        minutes: float | None = None,
        paths: tuple[str, ...] = _WHOLE,
    ) -> None:
        """Add an item."""
        if not isinstance(value, Mapping):
            self.skip(ITEMS, "/".join((*namespace, key)), "no_mapping", "its value is no mapping")
            return
        self.found[ITEMS] += 1
        self.records.append(
            OutsideRecord(
                what=ITEMS,
                labels=(*LABELS, *namespace),
                key=key,
                # The adapter's format: the TTL in minutes is stored with the value, because each read extends the
                # expiry by it.
                value=dict(value) if minutes is None else [dict(value), minutes],
                text=tuple(text for path in paths for text in _texts(value, path) if text.strip()) or None,
                created_at=created,
                expires_at=ends,
            )
        )


def _utc(moment: datetime) -> datetime:
    """Return a time as UTC. Times of SQLite have no zone and are in UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _texts(value: Any, path: str) -> list[str]:
    """Return the texts at a path of a value. A path with brackets selects the whole value."""
    if path in _WHOLE or "[" in path or "{" in path:
        return [json.dumps(value, ensure_ascii=False, sort_keys=True)]
    for part in path.split("."):
        # If a path has several texts, LangGraph appends an index to the path of each.
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, Mapping) and part in value:
            value = value[part]
        else:
            break
    if isinstance(value, str):
        return [value]
    return [] if value is None else [json.dumps(value, ensure_ascii=False, sort_keys=True)]
