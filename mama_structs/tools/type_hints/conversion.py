"""Conversion of JSON values to the types of arguments."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import datetime as dt
import decimal
import functools
import math
import operator
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, NamedTuple, get_args, get_origin

JSONSchema = dict[str, Any]


# Results by function and by the ids of value and type. An entry keeps both alive, so that their ids stay unique.
_results: contextvars.ContextVar[dict[tuple[Any, int, int], tuple[Any, ...]] | None] = contextvars.ContextVar(
    "results", default=None
)


@contextlib.contextmanager
def cached_results() -> Iterator[None]:
    """
    Cache the results of `cache_result` functions in this block.

    Otherwise, unions of recursive classes would be converted in exponential time. The values must not change.
    """
    if _results.get() is not None:
        yield
        return
    token = _results.set({})
    try:
        yield
    finally:
        _results.reset(token)


def cache_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """Cache the results and the ValueErrors of a function of a container or text, a type, and further arguments."""

    @functools.wraps(function)
    def call(value: Any, kind: Any, *others: Any) -> Any:
        results = _results.get()
        if results is None or not isinstance(value, dict | list | str):
            return function(value, kind, *others)
        key = (function, id(value), id(kind))
        if key not in results:
            try:
                results[key] = (value, kind, function(value, kind, *others), None)
            except ValueError as fault:
                results[key] = (value, kind, None, str(fault))
        *_, found, reason = results[key]
        if reason is not None:
            raise ValueError(reason)
        return found

    return call


SCALAR_TYPES: Final[frozenset[Any]] = frozenset(
    (str, int, float, bool, type(None), bytes, bytearray, memoryview, dt.datetime, dt.date, dt.time, dt.timedelta)
) | {decimal.Decimal, uuid.UUID, object}


LIST_TYPES: Final[frozenset[Any]] = frozenset(
    {list, tuple, set, frozenset, collections.abc.Collection, collections.abc.Sequence}
    | {collections.abc.MutableSequence, collections.abc.Set, collections.abc.MutableSet}
)


MAPPING_TYPES: Final[frozenset[Any]] = frozenset({dict, collections.abc.Mapping, collections.abc.MutableMapping})


MAX_ERROR_CHARS: Final = 300


class CustomTypeMeta(type):
    """Metaclass of `CustomType`. msgspec checks that a converted value is an instance of the type."""

    def __instancecheck__(cls, _value: object) -> bool:
        return True


class CustomType(metaclass=CustomTypeMeta):
    """
    A type that this module converts. Subclasses are created by `TypeTranslator`.

    `json_type` is the msgspec type of the JSON form. `schema` is its schema, or None to derive it from `json_type`, or
    from the *members* of a union. `read` converts a JSON value, and raises ValueError or TypeError if it is invalid.
    `get_fields` returns the fields of a class. `get_repair_type` returns the type by which values are repaired, or None
    if it is `json_type`.
    """

    json_type: ClassVar[Any] = Any
    schema: ClassVar[JSONSchema | None] = None
    members: ClassVar[Sequence[Any]] = ()
    read: ClassVar[Callable[[Any], Any]]
    get_fields: ClassVar[Callable[[], dict[str, ObjectField] | None]]
    get_repair_type: ClassVar[Callable[[], Any]]


class ObjectField(NamedTuple):
    """A field of a class: its type for `convert`, and whether it is required."""

    type: Any
    required: bool


def convert(value: object, kind: Any) -> Any:
    """
    Convert a value to a type without repair.

    Raise ValueError or RecursionError if it is invalid.
    """
    if not _is_finite(value):
        raise ValueError("NaN and the infinities are no JSON")
    with cached_results():
        return convert_nested(value, kind)


def convert_nested(value: object, kind: Any) -> Any:
    """Convert a part of a finite JSON value."""
    import msgspec  # noqa: PLC0415 - already loaded when the tool was created

    # JSON keys are strings, so *str_keys* converts them for types such as dict[int, ...].
    return msgspec.convert(value, kind, strict=True, str_keys=True, dec_hook=_read_custom)


def _read_custom(kind: Any, value: Any) -> Any:
    return _read_value(value, kind) if is_custom(kind) else value


@cache_result
def _read_value(value: Any, kind: Any) -> Any:
    try:
        return kind.read(value)
    except (ValueError, TypeError) as fault:
        # msgspec adds the path to a ValueError, but not to its own subclass.
        raise ValueError(str(fault)) from fault


def _is_finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(_is_finite, value))


def is_custom(kind: Any) -> bool:
    """Return True if a type is a `CustomType`."""
    return type(kind) is CustomTypeMeta


def is_supported(kind: Any) -> bool:
    """Return True if msgspec supports a type."""
    import msgspec  # noqa: PLC0415 - loaded when the first tool is created

    try:
        msgspec.json.Decoder(kind)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def unwrap_type(kind: Any) -> Any:
    """Remove `Annotated`, `NewType` and type aliases around a type."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        else:
            return kind


def get_fields(kind: Any) -> dict[str, ObjectField] | None:
    """Return a class's fields by JSON name, or None for types without fields."""
    from msgspec import inspect  # noqa: PLC0415 - already loaded when the tool was created

    if is_custom(kind):
        found: dict[str, ObjectField] | None = kind.get_fields()
        return found
    info = inspect.type_info(kind) if isinstance(kind, type) else None
    if not isinstance(info, inspect.StructType | inspect.TypedDictType | inspect.DataclassType):
        return None
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        field.encode_name: ObjectField(unwrap_qualifiers(hints[field.name]), field.required) for field in info.fields
    }


QUALIFIERS: Final = frozenset({"Required", "NotRequired", "ReadOnly", "Final"})


def unwrap_qualifiers(hint: Any) -> Any:
    """Remove `Required`, `NotRequired`, `ReadOnly` and `Final` around the type of a field."""
    while get_qualifier(hint) in QUALIFIERS:
        hint = get_args(hint)[0]
    return hint


def get_qualifier(hint: Any) -> str:
    """Return the name of the qualifier around the type of a field, such as ``NotRequired``, or ""."""
    return str(getattr(get_origin(hint), "_name", ""))


def make_union(kinds: Iterable[Any]) -> Any:
    """Return the union of types."""
    return functools.reduce(operator.or_, kinds)


def read_text(value: Any, kind: Any, parse: Callable[[str], Any]) -> Any:
    """Parse the text form of a class. Raise TypeError or ValueError if it is invalid."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, str):
        raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
    try:
        return parse(value)
    except (ValueError, TypeError, LookupError) as fault:
        raise ValueError(f"{fault!s:.{MAX_ERROR_CHARS}}") from fault


def read_union(value: Any, members: list[Any]) -> Any:
    """
    Convert a value to the first member of a union that accepts it.

    A class with fewer unknown keys takes precedence.
    """
    faults = {}
    for member in sorted(members, key=lambda one: _count_unknown_keys(value, one)):
        try:
            return convert_nested(value, member)
        except (ValueError, TypeError) as fault:
            inner = unwrap_type(member)
            reason = f"{fault!s:.{MAX_ERROR_CHARS}}".replace(" - at `$.", " at `").replace(" - at `$", " at `")
            faults[id(member)] = f"{getattr(inner, '__name__', inner)!s:.60}: {reason}"
    raise ValueError(f"it fits none ({'; '.join(faults[id(one)] for one in members)})")


def _count_unknown_keys(value: Any, kind: Any) -> int:
    known = get_fields(unwrap_type(kind)) if isinstance(value, Mapping) else None
    return 0 if known is None else len(value.keys() - known.keys())
