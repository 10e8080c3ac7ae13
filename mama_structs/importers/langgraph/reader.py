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
from mama_structs.importers.shared.import_model import ImportedData, ImportedRecord
from mama_structs.importers.shared.json_values import read_json, repair_json
from mama_structs.importers.shared.safe_files import import_error
from mama_structs.importers.shared.sqlite_copy import SqliteCopy, open_copy
from mama_structs.importers.shared.value_readers import ForeignRow, read_text, read_time

KIND: Final = "langgraph"
STORE_LABELS: Final = ("langgraph", "store")
"""The leading labels of imported items; the item's namespace follows them."""
ITEMS: Final = "items"
ITEMS_TABLE: Final = "store"
VECTORS_TABLE: Final = "store_vectors"
WHOLE_VALUE_PATHS: Final = ("$",)
PAGE_ITEMS: Final = 100


def read(path: Path) -> ImportedData:
    """
    Read the file of a SqliteStore without changing it. Blocks.

    Raises:
        InvalidArgument: The file does not exist.
        MigrationError: The file is damaged, being written to, too large, or not the file of a SqliteStore.

    """
    with open_copy(path, kind="the file of a LangGraph SqliteStore", program="the agent") as database:
        database.check()
        tables = database.names()
        if ITEMS_TABLE not in tables or not {"prefix", "key", "value"} <= set(database.columns(ITEMS_TABLE)):
            hint = "a checkpointer's file holds no items; name the file that SqliteStore.from_conn_string was given"
            raise import_error(path, "is a database, and none of a LangGraph store", hint)
        items = _ItemCollector(KIND, path, (ITEMS,), _read_indexed_paths(database) if VECTORS_TABLE in tables else {})
        for row in database.rows(ITEMS_TABLE):
            items.add_row(row)
    return items


async def read_store(store: Any) -> ImportedData:
    """
    Read all items of a ``BaseStore`` without extending their expiry.

    Raises:
        InvalidArgument: The object is not a ``BaseStore``.

    """
    if not callable(getattr(store, "list_namespaces", None)) or not callable(getattr(store, "search", None)):
        raise InvalidArgument(f"source must be a path or a LangGraph BaseStore, got {type(store).__name__}")
    items = _ItemCollector(KIND, type(store).__name__, (ITEMS,), {})
    async for namespaces in _iter_pages(store, "list_namespaces"):
        for namespace in namespaces:
            async for found in _iter_pages(store, "search", tuple(namespace), refresh_ttl=False):
                for item in found:
                    # The search also returns items of nested namespaces, which are searched separately.
                    if tuple(item.namespace) == tuple(namespace):
                        items.take(tuple(namespace), item.key, item.value, created=_as_utc(item.created_at))
    return items


async def _iter_pages(store: Any, method: str, *arguments: Any, **options: Any) -> AsyncIterator[list[Any]]:
    offset = 0
    while True:
        page = await _call_store(store, method, *arguments, limit=PAGE_ITEMS, offset=offset, **options)
        yield page
        if len(page) < PAGE_ITEMS:
            return
        offset += len(page)


async def _call_store(store: Any, method: str, *arguments: Any, **options: Any) -> list[Any]:
    """Call a store's async method. If the store implements only the sync method, call that in a thread."""
    try:
        found = await getattr(store, f"a{method}")(*arguments, **options)
    except NotImplementedError:
        call: Callable[..., Any] = getattr(store, method)
        found = await asyncio.to_thread(lambda: call(*arguments, **options))
    return list(found)


def _read_indexed_paths(database: SqliteCopy) -> dict[tuple[str, str], set[str]]:
    """Return the indexed field paths of each item."""
    paths: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for row in database.rows(VECTORS_TABLE):
        paths[str(row.get("prefix")), str(row.get("key"))].add(str(row.get("field_name")))
    return dict(paths)


@attrs.define
class _ItemCollector(ImportedData):
    """Collects items. *indexed* maps an item to its indexed paths; if *indexed* is empty, whole values are indexed."""

    indexed: Mapping[tuple[str, str], set[str]]

    def add_row(self, row: ForeignRow) -> None:
        """Add the item of a row. An item with an invalid value is skipped; an invalid expiry time is only reported."""
        prefix, key = row.text("prefix") or "", row.text("key") or ""
        name = f"{prefix.replace('.', '/')}/{key}"
        try:
            value = read_json(read_text(row.get("value")).text or "")
        except ValueError:
            self.skip(ITEMS, name, "no_json", "its value is no JSON")
            return
        paths = tuple(sorted(self.indexed.get((prefix, key), ()))) if self.indexed else WHOLE_VALUE_PATHS
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
        paths: tuple[str, ...] = WHOLE_VALUE_PATHS,
    ) -> None:
        """Add an item. If its value is not a mapping of JSON data, it is skipped and reported."""
        name = "/".join((*namespace, key))
        if not isinstance(value, Mapping):
            self.skip(ITEMS, name, "no_mapping", "its value is no mapping")
            return
        try:
            value, problem = repair_json(dict(value))
        except (TypeError, ValueError) as error:
            self.skip(ITEMS, name, "no_json", f"its value is no JSON: {type(error).__name__}")
            return
        if problem is not None:
            self.add_odd(ITEMS, name, "no_json", problem)
        self.found[ITEMS] += 1
        self.records.append(
            ImportedRecord(
                what=ITEMS,
                labels=(*STORE_LABELS, *namespace),
                key=key,
                # Each read extends the expiry by the TTL, so the adapter stores the TTL (in minutes) with the value.
                value=value if minutes is None else [value, minutes],
                text=tuple(text for path in paths for text in _texts_at(value, path) if text.strip()) or None,
                created_at=created,
                expires_at=ends,
            )
        )


def _as_utc(moment: datetime) -> datetime:
    """Convert a time to UTC. SQLite stores UTC times without a zone."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _texts_at(value: Any, path: str) -> list[str]:
    """Return the texts at a path of a value. A path with brackets selects the whole value as JSON."""
    if path in WHOLE_VALUE_PATHS or "[" in path or "{" in path:
        return [json.dumps(value, ensure_ascii=False, sort_keys=True)]
    for part in path.split("."):
        # For a path with several texts, LangGraph appends the list index of each text to the path.
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, Mapping) and part in value:
            value = value[part]
        else:
            break
    if isinstance(value, str):
        return [value]
    return [] if value is None else [json.dumps(value, ensure_ascii=False, sort_keys=True)]
