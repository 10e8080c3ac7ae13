"""What every model of a chain answer has in common."""

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
"""Metadata of an attribute that is no part of the JSON."""

UINT256: Mapping[str, Any] = {NUMBER: "uint256"}
"""Metadata of a whole number that may have 256 bits: token amounts only."""

JSON_NUMBER: Mapping[str, Any] = {NUMBER: "json"}
"""Metadata of a whole number that is written as a JSON number: the codes of error bodies only."""


R = TypeVar("R", bound="Record")

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def wire(name: str) -> dict[str, Any]:
    """Return the metadata of an attribute whose JSON name is not its own in camelCase."""
    return {_WIRE: name}


def _frozen(given: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(given, MappingProxyType):
        return given
    # Most records have nothing here: they share it.
    return MappingProxyType(dict(given)) if given else _NOTHING


@attrs.frozen(kw_only=True, repr=False)
class Record:
    """
    One JSON object of the chain, without loss.

    Every attribute but a record's own id has a default: the zero of its type, which is also what a
    field counts as that a payload leaves out.

    Its mappings cannot be changed; the arrays and objects that may be in them are plain lists and dictionaries.

    Args:
        extra: Fields of the payload that this model does not know, under their JSON names.
        absent: Names of the attributes that the payload did not have.
        as_written: JSON values, by attribute name, that the value alone would not give back:
            the null player ``1-0``, for instance, is None here as the empty text is.

    """

    extra: Mapping[str, Any] = attrs.field(default=_NOTHING, hash=False, converter=_frozen)
    absent: frozenset[str] = frozenset()
    as_written: Mapping[str, Any] = attrs.field(default=_NOTHING, hash=False, converter=_frozen)

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping that cannot be changed cannot be pickled or copied either.
        values = {attribute.name: getattr(self, attribute.name) for attribute in attrs.fields(type(self))}
        values.update({name: dict(values[name]) for name in _MAPPINGS})
        return _remade, (type(self), values)

    def __repr__(self) -> str:
        """Show what differs from the defaults: most fields of most records are zero."""
        shown = [
            f"{attribute.alias}={_shown(value)}"
            for attribute in sorted(attrs.fields(type(self)), key=lambda attribute: attribute.name in _BOOKKEEPING)
            if (value := getattr(self, attribute.name)) != default_of(attribute)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def _remade(cls: type[R], values: dict[str, Any]) -> R:
    return cls(**values)


def default_of(attribute: "attrs.Attribute[Any]") -> Any:
    """Return the attribute's default value, `attrs.NOTHING` where it has none."""
    default: Any = attribute.default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def is_on_wire(attribute: "attrs.Attribute[Any]") -> bool:
    """Whether the attribute is a field of the JSON object."""
    return attribute.name not in _BOOKKEEPING and not attribute.metadata.get(_OFF_WIRE, False)


def wire_name(attribute: "attrs.Attribute[Any]") -> str:
    """Return the attribute's name in JSON: camelCase, or what its metadata says."""
    given: str | None = attribute.metadata.get(_WIRE)
    if given is not None:
        return given
    first, *rest = attribute.name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _shown(value: Any) -> str:
    # An enum member's own repr cannot be pasted; a set's order changes from run to run.
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
    # The converters are made from the records.
    from mama_structs.structs.chain_json import unstructure  # noqa: PLC0415

    return unstructure(value)
