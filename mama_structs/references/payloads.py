"""Payloads as plain data: what a tool may return, read without changing it."""

from __future__ import annotations

import dataclasses
import json
from array import array
from collections import UserString
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import attrs

from mama_structs.errors import MalformedResponse
from mama_structs.plain import written

# Deeper answers of a source are not data but an attack on recursive readers.
MAX_ANSWER_DEPTH: Final = 100
MAX_ANSWER_MEMBERS: Final = 1_000_000

# Exact types that hold nothing.
SCALARS: Final = frozenset({int, float, bool, type(None), str, bytes})

# Sequences to Python, but no arrays to JSON; a text's members are texts again, without end.
_ATOMS: Final = (bytes, bytearray, memoryview, range, array, UserString)


def unstructure(value: object) -> Any:
    """
    Return plain data for a model: attrs, dataclass and pydantic objects become a dict, others stay as they are.

    One level only: values are not followed, and two calls give the same ones.
    """
    plain = written(value)
    if plain is not value or isinstance(value, type):
        return plain
    kind: Any = type(value)
    if attrs.has(kind):
        return {field.name: getattr(value, field.name) for field in attrs.fields(kind)}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if not _is_pydantic(kind):
        return value
    fields = {name: getattr(value, name) for name in kind.model_fields}
    return fields["root"] if getattr(kind, "__pydantic_root_model__", False) else fields


def _is_pydantic(kind: Any) -> bool:
    return callable(getattr(kind, "model_dump", None)) and hasattr(kind, "model_fields")


def as_mapping(value: object) -> Mapping[str, Any] | None:
    """Return *value* as a mapping, None when it is no mapping and cannot be seen as one; one level only."""
    if isinstance(value, Mapping):
        return value
    plain = unstructure(value)
    return plain if isinstance(plain, Mapping) else None


def as_payload(result: object) -> Mapping[str, Any] | None:
    """Return a tool's result as a mapping: a mapping itself, or a model with all that it holds as plain data."""
    if isinstance(result, Mapping):
        return result
    if as_mapping(result) is None:
        return None
    kind: Any = type(result)
    try:
        return own_copy(kind.model_dump(result, mode="json") if _is_pydantic(kind) else result)
    except Exception:  # noqa: BLE001 - a model with a cycle, or with a value that pydantic cannot write
        return as_mapping(result)


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
    Return a source's answer as a dict of our own: its dicts and lists are nobody else's.

    Raises:
        MalformedResponse: It is no mapping, is nested deeper than 100 levels, or has more than a million members.

    """
    mapping = as_mapping(answer)
    if mapping is None:
        raise MalformedResponse(f"the source answered {type(answer).__name__} instead of a mapping")
    copied = _Copy().of(mapping, MAX_ANSWER_DEPTH)
    assert isinstance(copied, dict)  # noqa: S101 - narrows for the type checker
    return copied


@attrs.define
class _Copy:
    """One copy; bounded, since containers that share others level by level would be copied without end."""

    left: int = MAX_ANSWER_MEMBERS

    def of(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str or kind is int or kind is bool or value is None or kind is float:
            return value
        if depth == 0:
            raise MalformedResponse(f"the answer is nested deeper than {MAX_ANSWER_DEPTH} levels")
        plain = plain_of(value)
        if isinstance(plain, Mapping):
            return {str(key): self.of(member, depth - 1) for key, member in self._counted(plain.items())}
        if plain is None or isinstance(plain, str):
            return value if plain is None else plain
        return [self.of(member, depth - 1) for member in self._counted(plain)]

    def _counted(self, members: Iterable[Any]) -> Iterator[Any]:
        for member in members:
            self.left -= 1
            if self.left < 0:
                raise MalformedResponse(f"the answer has more than {MAX_ANSWER_MEMBERS} members")
            yield member


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
