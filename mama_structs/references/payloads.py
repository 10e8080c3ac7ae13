"""Payloads as plain data: what a tool may return, read without changing it."""

from __future__ import annotations

import dataclasses
import functools
import json
from array import array
from collections import UserString
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import attrs

from mama_structs.errors import MalformedResponse

# Deeper answers of a source are not data but an attack on recursive readers.
MAX_ANSWER_DEPTH: Final = 100

# Exact types that hold nothing.
SCALARS: Final = frozenset({int, float, bool, type(None), str, bytes})

# Sequences to Python, but no arrays to JSON; a text's members are texts again, without end.
_ATOMS: Final = (bytes, bytearray, memoryview, range, array, UserString)


@functools.singledispatch
def unstructure(value: object) -> Any:
    """
    Return plain data for a model: attrs, dataclass and pydantic objects become a dict, others stay as they are.

    One level only: values are not followed.
    Register a type here to say how it is written; an id's type returns its text.
    """
    if isinstance(value, type):
        return value
    kind: Any = type(value)
    if attrs.has(kind):
        return {field.name: getattr(value, field.name) for field in attrs.fields(kind)}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    dump = getattr(kind, "model_dump", None)
    try:
        return dump(value, mode="json") if callable(dump) else value
    except Exception:  # noqa: BLE001 - a model with a cycle, or with a value that pydantic cannot write
        return value


def as_mapping(result: object) -> Mapping[str, Any] | None:
    """Return a tool's result as a mapping, None when it is no mapping and cannot be seen as one."""
    if isinstance(result, Mapping):
        return result
    plain = unstructure(result)
    return plain if isinstance(plain, Mapping) else None


def plain_of(value: object) -> str | Mapping[Any, Any] | Sequence[Any] | None:
    """
    Return how *value* is written: as text, as a mapping or as an array; None for anything else.

    One level only.
    Sets come sorted, so that nothing depends on hashing.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return value
    if isinstance(value, _ATOMS):
        return None
    if isinstance(value, Sequence):
        return value
    if isinstance(value, AbstractSet):
        return sorted(value, key=_order)
    plain = unstructure(value)
    return None if plain is value else plain_of(plain)


def _order(member: object) -> str:
    """Return a text to sort a set's member by: the same in every process, which a set's own text is not."""
    if isinstance(member, AbstractSet):
        return f"{{{', '.join(sorted(map(_order, member)))}}}"
    if isinstance(member, tuple):
        return f"({', '.join(map(_order, member))})"
    return str(member)


def own_copy(answer: object) -> dict[str, Any]:
    """
    Return a source's answer as a dict that nobody else holds.

    Raises:
        MalformedResponse: It is no mapping, or is nested deeper than 100 levels.

    """
    mapping = as_mapping(answer)
    if mapping is None:
        raise MalformedResponse(f"the source answered {type(answer).__name__} instead of a mapping")
    copied = _copy(mapping, MAX_ANSWER_DEPTH)
    assert isinstance(copied, dict)  # noqa: S101 - narrows for the type checker
    return copied


def _copy(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None or kind is float:
        return value
    if depth == 0:
        raise MalformedResponse(f"the answer is nested deeper than {MAX_ANSWER_DEPTH} levels")
    plain = plain_of(value)
    if isinstance(plain, Mapping):
        return {str(key): _copy(member, depth - 1) for key, member in plain.items()}
    if plain is None or isinstance(plain, str):
        return value if plain is None else plain
    return [_copy(member, depth - 1) for member in plain]


def copy_plain(value: Any) -> Any:
    """Copy data that `own_copy` made: its dicts and lists, nothing else."""
    kind = type(value)
    if kind is dict:
        return {key: copy_plain(member) for key, member in value.items()}
    if kind is list:
        return [copy_plain(member) for member in value]
    return value


def json_size(value: object) -> int:
    """Return the bytes of *value* as compact JSON in UTF-8; what JSON cannot hold counts as its text."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return len(text.encode("utf-8", "surrogatepass"))
