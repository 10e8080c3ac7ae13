"""
Migrations that add filter names to the table `mentions`: of metadata, then of the values and the paths of records.

Earlier versions stored names only for mentions, evidence and the labels of records. Filters by tag, source, outcome,
creator, extra data and values need the further names, which are computed from the stored JSON.

The names of these versions are duplicated here, so that the migrations never change. A later version that changes
`filter_names` replaces them with a migration of its own.
"""

from __future__ import annotations

import contextlib
import json
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

import msgspec

BATCH_ROWS: Final = 1000
MAX_NAME_CHARS: Final = 200
MAX_JSON_LEVELS: Final = 100
MAX_VALUES: Final = 32
MAX_COMPARED_VALUES: Final = 1024
MAX_VALUE_LEVELS: Final = 8
MAX_VALUE_CHARS: Final = 128
MAX_KEY_CHARS: Final = 256

BATCH_SQL: Final = """
SELECT namespace, node, entry FROM memories WHERE (namespace, node) > ($1, $2) ORDER BY namespace, node LIMIT $3
"""
INSERT_SQL: Final = """
INSERT INTO mentions (namespace, mention, node) SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])
ON CONFLICT DO NOTHING
"""


class _Metadata(msgspec.Struct):
    tags: tuple[str, ...] = ()
    source: str | None = None
    outcome: str | None = None
    created_by: str = "user"
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    value: Any = None
    labels: tuple[str, ...] = ()
    key: str = ""


class _Memory(msgspec.Struct):
    type: str
    metadata: _Metadata


class _MemoryRow(msgspec.Struct):
    memory: _Memory


_decode_entry: Final = msgspec.json.Decoder(_MemoryRow).decode
_encode_canonical: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode


async def add_filter_names(connection: Any, *, timeout: float) -> None:  # noqa: ASYNC109 - per statement
    """
    Add the filter names of the metadata of all memories. Memories that cannot be read get none.

    Runs in the transaction of *connection*.
    """
    await _add_names(connection, _names, timeout)


async def add_value_names(connection: Any, *, timeout: float) -> None:  # noqa: ASYNC109 - per statement
    """Add the filter names of the values of all records with text, as `add_filter_names` does."""
    await _add_names(connection, _value_names, timeout)


async def add_path_names(connection: Any, *, timeout: float) -> None:  # noqa: ASYNC109 - per statement
    """Add the filter names of the paths of all records with text, as `add_filter_names` does."""
    await _add_names(connection, _path_names, timeout)


async def _add_names(connection: Any, names: Callable[[_Memory], Iterable[str]], timeout: float) -> None:  # noqa: ASYNC109
    place = "", -1
    while rows := await connection.fetch(BATCH_SQL, *place, BATCH_ROWS, timeout=timeout):
        place = rows[-1]["namespace"], rows[-1]["node"]
        found = [
            (row["namespace"], name, row["node"])
            for row in rows
            for name in dict.fromkeys(_read_names(row["entry"], names))
        ]
        if found:
            columns = [list(column) for column in zip(*found, strict=True)]
            await connection.execute(INSERT_SQL, *columns, timeout=timeout)


def _read_names(entry: bytes, names: Callable[[_Memory], Iterable[str]]) -> list[str]:
    """Return the escaped names of a memory in a stored entry, or an empty list if it is unreadable."""
    try:
        memory = _decode_entry(entry).memory
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []
    return [_escape(name) for name in names(memory)]


def _value_names(memory: _Memory) -> Iterable[str]:
    """Return the names of the values in a record, or the name of a record with too many values."""
    if memory.type != "record":
        return ()
    names: dict[str, None] = {}
    for position, (path, value) in enumerate(_iter_values(memory.metadata.value, (), MAX_VALUE_LEVELS)):
        if path is not None and not (isinstance(value, str) and len(value) > MAX_VALUE_CHARS):
            with contextlib.suppress(ValueError):
                names[_name("value", _encode_canonical(_to_canonical([[*path], value], MAX_JSON_LEVELS)))] = None
        if path is None or len(names) > MAX_VALUES or position >= MAX_COMPARED_VALUES:
            return ("\0\0values",)
    return names


def _path_names(memory: _Memory) -> Iterable[str]:
    """Return the name of the path of a record."""
    if memory.type != "record":
        return ()
    own = memory.metadata
    labels, key = "".join(f"{quote(label, safe='')}/" for label in own.labels), quote(own.key, safe="")
    if len(key) > MAX_KEY_CHARS:
        key = f"{key[: MAX_KEY_CHARS // 2]}+{sha256(own.key.encode()).hexdigest()}"
    return (f"\0\0path={labels}={key}",)


def _iter_values(value: Any, path: tuple[str, ...], levels: int) -> Iterator[tuple[tuple[str, ...] | None, object]]:
    """Yield each value with the keys of the objects that contain it. Too many levels yield the path None."""
    if not isinstance(value, dict | list):
        yield path, value
    elif levels == 0:
        yield None, None
    else:
        for key, one in value.items() if isinstance(value, dict) else ((None, one) for one in value):
            yield from _iter_values(one, path if key is None else (*path, key), levels - 1)


def _names(memory: _Memory) -> Iterator[str]:
    own = memory.metadata
    if memory.type != "record":
        for tag in own.tags:
            yield _name("tag", unicodedata.normalize("NFC", tag))
        if own.source is not None:
            yield _name("source", unicodedata.normalize("NFC", own.source))
    if memory.type == "decision" and own.outcome is not None:
        yield _name("outcome", own.outcome)
    yield _name("created_by", own.created_by)
    for key, value in own.extra.items():
        try:
            yield _name("extra", _encode_canonical(_to_canonical([key, value], MAX_JSON_LEVELS)))
        except ValueError:
            continue


def _name(field: str, text: str) -> str:
    if len(text) <= MAX_NAME_CHARS:
        return f"\0\0{field}={text}"
    return f"\0\0{field}#{sha256(text.encode()).hexdigest()}"


def _escape(name: str) -> str:
    """Return a name for a text column, which cannot contain NUL."""
    return name.replace("\\", "\\\\").replace("\0", "\\0")


def _to_canonical(value: Any, levels: int) -> Any:
    """Return a JSON value in which equal numbers have equal types. A value with too many levels raises `ValueError`."""
    if isinstance(value, float):
        return (int(value) if value.is_integer() else value) if math.isfinite(value) else None
    if not isinstance(value, list | Mapping):
        return value
    if levels == 0:
        raise ValueError("the value is nested too deeply")
    if isinstance(value, Mapping):
        return {key: _to_canonical(item, levels - 1) for key, item in value.items()}
    return [_to_canonical(item, levels - 1) for item in value]
