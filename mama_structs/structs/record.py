"""Base class of all models of chain JSON."""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import attrs

from mama_structs._internal.jsonable import written

_WIRE = "wire"
_OFF_WIRE = "off_wire"
NUMBER = "number"

OFF_WIRE: Mapping[str, Any] = {_OFF_WIRE: True}
"""Metadata of an attribute that is not a field of the JSON object."""

UINT256: Mapping[str, Any] = {NUMBER: "uint256"}
"""Metadata of a whole number with up to 256 bits: token amounts only."""

JSON_NUMBER: Mapping[str, Any] = {NUMBER: "json"}
"""Metadata of a whole number that JSON contains as a number, not as text: codes of error bodies only."""


R = TypeVar("R", bound="Record")

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def wire(name: str) -> dict[str, Any]:
    """Return the metadata of an attribute whose JSON name is not its name in camelCase."""
    return {_WIRE: name}


def _frozen(given: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(given, MappingProxyType):
        return given
    # Most records have no such fields, so they share one empty mapping.
    return MappingProxyType(dict(given)) if given else _NOTHING


@attrs.frozen(kw_only=True, repr=False)
class Record:
    """
    One JSON object of the chain, parsed without loss.

    Every attribute except the record's own id has a default: the zero value of its type, which the chain also means
    by a missing field.

    Its mappings are read-only; arrays and objects inside them are plain lists and dictionaries.

    Args:
        extra: Fields of the payload that the model does not define, by their JSON names.
        absent: Names of the attributes missing from the payload.
        as_written: Original JSON values, by attribute name, that cannot be restored from the attribute:
            for example, both the null player ``1-0`` and the empty text are parsed as None.

    """

    extra: Mapping[str, Any] = attrs.field(default=_NOTHING, hash=False, converter=_frozen)
    absent: frozenset[str] = frozenset()
    as_written: Mapping[str, Any] = attrs.field(default=_NOTHING, hash=False, converter=_frozen)

    def __reduce__(self) -> tuple[Any, ...]:
        # Read-only mappings cannot be pickled or copied.
        values = {attribute.name: getattr(self, attribute.name) for attribute in attrs.fields(type(self))}
        values.update({name: dict(values[name]) for name in _MAPPINGS})
        return _remade, (type(self), values)

    def __repr__(self) -> str:
        """
        Return a repr with the non-default attributes only.

        Most fields of most records are zero.
        """
        shown = [
            f"{attribute.alias}={_shown(value)}"
            for attribute in sorted(attrs.fields(type(self)), key=lambda attribute: attribute.name in _BOOKKEEPING)
            if (value := getattr(self, attribute.name)) != default_of(attribute)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def _remade(cls: type[R], values: dict[str, Any]) -> R:
    return cls(**values)


def default_of(attribute: "attrs.Attribute[Any]") -> Any:
    """Return the default value of an attribute, or `attrs.NOTHING` if it has none."""
    default: Any = attribute.default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def is_on_wire(attribute: "attrs.Attribute[Any]") -> bool:
    """Return True if the attribute is a field of the JSON object."""
    return attribute.name not in _BOOKKEEPING and not attribute.metadata.get(_OFF_WIRE, False)


def wire_name(attribute: "attrs.Attribute[Any]") -> str:
    """Return the JSON name of an attribute: camelCase, or the name in its metadata."""
    given: str | None = attribute.metadata.get(_WIRE)
    if given is not None:
        return given
    first, *rest = attribute.name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _shown(value: Any) -> str:
    # The repr of an enum member is not valid code, and the order of a set changes between runs.
    if isinstance(value, enum.Enum):
        return repr(value.value)
    if isinstance(value, frozenset):
        return f"frozenset({sorted(value)!r})"
    if isinstance(value, MappingProxyType):
        return repr(dict(value))
    return repr(value)


_MAPPINGS = ("extra", "as_written")
_BOOKKEEPING = frozenset(attribute.name for attribute in attrs.fields(Record))


@written.register
def _written(value: Record) -> Any:
    # Circular import: chain_json needs the classes of this module.
    from mama_structs.structs.chain_json import unstructure  # noqa: PLC0415

    return unstructure(value)
