"""Values in JSON under paths of keys: names for indexes, and conditions on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, TypeAlias

import attrs

from mama_structs._internal.caches import cache_by_text
from mama_structs._internal.jsonable import canonical_json
from mama_structs.errors import InvalidArgument, repr_short

ValuePath: TypeAlias = tuple[str, ...]

MAX_INDEXED_VALUES: Final = 32
"""Maximum number of indexed values of a document. A document with more is compared without the index."""
MAX_COMPARED_VALUES: Final = 1024
"""Maximum number of values that are read to find those for the index."""
MAX_INDEXED_LEVELS: Final = 8
"""Maximum number of nested containers in an indexed document, and of keys in the path of a condition."""
MAX_INDEXED_CHARS: Final = 128
"""Maximum length of an indexed text. Conditions with a longer text are compared without the index."""
UNINDEXED_NAME: Final = "\0\0values"
"""Filter name of a document that has too many values for the index."""
MAX_CACHED_NAMES: Final = 4096
# PostgreSQL limits the length of an index key.
MAX_FILTER_NAME_CHARS: Final = 200


def field_filter_name(field: str, text: str) -> str:
    """Return the filter name of a field's value. A long value is replaced with its SHA-256."""
    if len(text) <= MAX_FILTER_NAME_CHARS:
        return f"\0\0{field}={text}"
    # A different separator prevents collisions of hashes with short texts.
    return f"\0\0{field}#{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def value_filter_names(value: Any) -> tuple[str, ...]:
    """Return the filter names of the values in a document, or `UNINDEXED_NAME` alone if there are too many."""
    names: dict[str, None] = {}
    for position, (path, one) in enumerate(_iter_values(value, (), MAX_INDEXED_LEVELS)):
        name = None if path is None else _value_filter_name(path, one)
        if name is not None:
            names[name] = None
        if path is None or len(names) > MAX_INDEXED_VALUES or position >= MAX_COMPARED_VALUES:
            return (UNINDEXED_NAME,)
    return tuple(names)


# Many documents have the same values. Equal values of different types have different names.
@cache_by_text(MAX_CACHED_NAMES, typed=True)
def _value_filter_name(path: ValuePath, value: object) -> str | None:
    """Return the filter name of a value, or None if it is not indexed."""
    if isinstance(value, str) and len(value) > MAX_INDEXED_CHARS:
        return None
    text = canonical_json(value)
    return None if text is None else field_filter_name("value", f"[{_encode_path(path)},{text}]")


@cache_by_text(MAX_CACHED_NAMES)
def _encode_path(path: ValuePath) -> str | None:
    return canonical_json([*path])


def _iter_values(value: Any, path: ValuePath, levels: int) -> Iterator[tuple[ValuePath | None, object]]:
    """Yield each value with the keys of the objects that contain it. Too many levels yield the path None."""
    if not isinstance(value, Mapping | list):
        yield path, value
    elif levels == 0:
        yield None, None
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _iter_values(one, (*path, key), levels - 1)
    else:
        for one in value:
            yield from _iter_values(one, path, levels - 1)


@attrs.frozen
class JsonCondition:
    """Values that a document must have, each with its path."""

    values: tuple[tuple[ValuePath, object], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Filter names of the indexed values."""
        return tuple(name for path, value in self.values if (name := _value_filter_name(path, value)) is not None)

    def matches(self, value: Any) -> bool:
        """Return True if a document has all values of the condition."""
        return all(_has_value(value, path, canonical_json(wanted)) for path, wanted in self.values)


def _has_value(value: Any, path: ValuePath, wanted: str | None) -> bool:
    if isinstance(value, list):
        return any(_has_value(one, path, wanted) for one in value)
    if path:
        return isinstance(value, Mapping) and path[0] in value and _has_value(value[path[0]], path[1:], wanted)
    return not isinstance(value, Mapping) and canonical_json(value) == wanted is not None


def check_json_condition(where: object, name: str = "where") -> JsonCondition:
    """Validate the condition of a caller, and return it."""
    values = tuple(_check_values(where, (), name))
    if len(values) > MAX_INDEXED_VALUES:
        raise InvalidArgument(f"{name} must have at most {MAX_INDEXED_VALUES} values, got {len(values)}")
    return JsonCondition(values)


def _check_values(where: object, path: ValuePath, name: str) -> Iterator[tuple[ValuePath, object]]:
    if not isinstance(where, Mapping) or not where:
        hint = 'write where={"status": "open"}; pass a function as predicate='
        raise InvalidArgument(f"{name} must be a mapping of keys to values, got {repr_short(where)}", hint=hint)
    for key, one in where.items():
        if not isinstance(key, str):
            raise InvalidArgument(f"the keys of {name} must be texts, got {repr_short(key)}")
        if len(path) == MAX_INDEXED_LEVELS:
            raise InvalidArgument(f"{name} must have at most {MAX_INDEXED_LEVELS} levels")
        at = f"{name}[{repr_short(key)}]"
        if isinstance(one, Mapping):
            yield from _check_values(one, (*path, key), at)
        elif one is not None and not isinstance(one, str | int | float):
            raise InvalidArgument(f"{at} must be a text, a number, a boolean, None or a mapping, got {repr_short(one)}")
        elif canonical_json(one) is None or one != one:  # noqa: PLR0124 - NaN
            raise InvalidArgument(f"{at} must be a number that can be compared, got {repr_short(one)}")
        else:
            yield (*path, key), one
