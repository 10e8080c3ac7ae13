"""What the classes that tools take as objects have inside."""

from __future__ import annotations

import dataclasses
import typing
from typing import Annotated, Any, NotRequired, Required, get_args, get_origin

import attrs


@attrs.frozen
class Field:
    """
    What an object takes under one name.

    Args:
        type: As `msgspec.convert` takes it.
        required: Whether it has no default.

    """

    type: Any
    required: bool


def bare(kind: Any) -> Any:
    """Take off what stands around a type."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        else:
            return kind


def fields_of(kind: Any) -> dict[str, Field] | None:
    """Return the fields of a class by their names in JSON; None for what has none."""
    import msgspec  # noqa: PLC0415 - loaded since the tool was made

    if not isinstance(kind, type):
        return None
    if issubclass(kind, msgspec.Struct):
        return {field.encode_name: Field(field.type, field.required) for field in msgspec.structs.fields(kind)}
    if typing.is_typeddict(kind):
        return {name: _typed_field(kind, name, hint) for name, hint in _hints(kind).items()}
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        hints = _hints(kind)
        return {
            field.name: Field(hints[field.name], field.default is missing and field.default_factory is missing)
            for field in dataclasses.fields(kind)
        }
    if attrs.has(kind):
        hints = _hints(kind)
        return {
            field.name: Field(hints.get(field.name, Any), field.default is attrs.NOTHING)
            for field in attrs.fields(kind)
        }
    return None


def _typed_field(kind: Any, name: str, hint: Any) -> Field:
    # Where annotations are postponed, `typing` does not see the mark and takes every field for required.
    if get_origin(hint) in (Required, NotRequired):
        return Field(get_args(hint)[0], get_origin(hint) is Required)
    return Field(hint, name in kind.__required_keys__)


def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)
