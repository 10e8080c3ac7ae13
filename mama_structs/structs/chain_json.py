"""
Base class of all models of chain JSON, and their strict and lossless conversion.

The converter is private and coerces nothing: cattrs' own hooks would convert None to ``"None"``, the text ``"false"``
to True and 1.9 to 1.
One mechanism handles every model: it reads the attributes of a record class, so that a new field needs one line there.
"""

import copy
import enum
import re
import types
import typing
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, TypeVar, Union

import attrs
import cattrs

from mama_structs._internal.jsonable import to_plain
from mama_structs.errors import InvalidArgument, MalformedResponse
from mama_structs.structs.ids import EntityId

T = TypeVar("T")
R = TypeVar("R", bound="StructsModel")
ReadHook = Callable[[Any, Any], Any]
WriteHook = Callable[[Any], Any]

_UINT_PATTERN = re.compile(r"0|[1-9][0-9]{0,77}", re.ASCII)
_DECIMAL_PATTERN = re.compile(r"-?(?:0|[1-9][0-9]{0,77})(?:\.[0-9]{1,40})?", re.ASCII)
_NULL_ID_PATTERN = re.compile(r"(?:[0-9]|1[01])-0", re.ASCII)
_MAX_QUOTED_CHARS = 40

_WIRE_NAME_KEY = "wire"
_OFF_WIRE_KEY = "off_wire"
NUMBER_KEY = "number"

OFF_WIRE: Mapping[str, Any] = {_OFF_WIRE_KEY: True}
"""Metadata of an attribute that is not a field of the JSON object."""

UINT256: Mapping[str, Any] = {NUMBER_KEY: "uint256"}
"""Metadata of a whole number with up to 256 bits: token amounts only."""

JSON_NUMBER: Mapping[str, Any] = {NUMBER_KEY: "json"}
"""Metadata of a whole number that JSON contains as a number, not as text: codes of error bodies only."""

_EMPTY_MAPPING: Mapping[str, Any] = MappingProxyType({})


def wire_name_metadata(name: str) -> dict[str, Any]:
    """Return attribute metadata for a JSON name that differs from the attribute name in camelCase."""
    return {_WIRE_NAME_KEY: name}


def _freeze(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(mapping, MappingProxyType):
        return mapping
    # Most of these mappings are empty, so all records share one empty mapping.
    return MappingProxyType(dict(mapping)) if mapping else _EMPTY_MAPPING


@attrs.frozen(kw_only=True, repr=False)
class StructsModel:
    """
    One JSON object of the chain, parsed without loss.

    Every attribute except the record's own id has a default: the zero value of its type, which the chain also means
    by a missing field.

    Its mappings are read-only; arrays and objects inside them are plain lists and dictionaries.

    Args:
        extra: Fields of the payload that the model does not define, by their JSON names.
        missing_fields: Names of the attributes missing from the payload.
        wire_names: Original JSON values, by attribute name, that cannot be restored from the attribute:
            for example, both the null player ``1-0`` and the empty text are parsed as None.

    """

    extra: Mapping[str, Any] = attrs.field(default=_EMPTY_MAPPING, hash=False, converter=_freeze)
    missing_fields: frozenset[str] = frozenset()
    wire_names: Mapping[str, Any] = attrs.field(default=_EMPTY_MAPPING, hash=False, converter=_freeze)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pass the mappings as dicts, because read-only mappings cannot be pickled or copied.
        values = {attribute.name: getattr(self, attribute.name) for attribute in attrs.fields(type(self))}
        values.update({name: dict(values[name]) for name in _MAPPING_FIELDS})
        return _rebuild, (type(self), values)

    def __repr__(self) -> str:
        """
        Return a repr with the non-default attributes only.

        Most fields of most records are zero.
        """
        shown = [
            f"{attribute.alias}={_format_value(value)}"
            for attribute in sorted(attrs.fields(type(self)), key=lambda attribute: attribute.name in _BASE_FIELDS)
            if (value := getattr(self, attribute.name)) != get_default(attribute)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def _rebuild(cls: type[R], values: dict[str, Any]) -> R:
    return cls(**values)


def get_default(attribute: Any) -> Any:
    """Return the default value of an attribute, or `attrs.NOTHING` if it has none."""
    default: Any = attribute.default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def is_on_wire(attribute: Any) -> bool:
    """Return True if the attribute is a field of the JSON object on the wire."""
    return attribute.name not in _BASE_FIELDS and not attribute.metadata.get(_OFF_WIRE_KEY, False)


def get_wire_name(attribute: Any) -> str:
    """Return the JSON name of an attribute: camelCase, or the name in its metadata."""
    given: str | None = attribute.metadata.get(_WIRE_NAME_KEY)
    if given is not None:
        return given
    name: str = attribute.name
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _format_value(value: Any) -> str:
    # Show valid and stable code: an enum repr is no valid code, and the order of a set changes between runs.
    if isinstance(value, enum.Enum):
        return repr(value.value)
    if isinstance(value, frozenset):
        return f"frozenset({sorted(value)!r})"
    if isinstance(value, MappingProxyType):
        return repr(dict(value))
    return repr(value)


_MAPPING_FIELDS = ("extra", "wire_names")
_BASE_FIELDS = frozenset(attribute.name for attribute in attrs.fields(StructsModel))


def structure(payload: Any, cls: type[T]) -> T:
    """
    Convert a JSON value of the chain to a model.

    Args:
        payload: The result of `json.loads`; it is neither changed nor retained.
        cls: A model, or ``list[Model]`` for the rows of a list.

    Raises:
        MalformedResponse: A value does not have the type that the chain specifies; *path* is its position.
        InvalidArgument: *cls* is not a supported type.

    """
    read = _converter.get_structure_hook(cls)
    try:
        value: T = read(payload, cls)
    except _TypeMismatch as mismatch:
        raise MalformedResponse(mismatch.rule, path="$" + "".join(reversed(mismatch.steps))) from mismatch
    return value


def unstructure(value: Any) -> Any:
    """
    Convert a model, or a list of models, to chain JSON.

    The conversion is lossless: ``unstructure(structure(x, cls)) == x``.
    A model that was not parsed from JSON is written with all fields, including zero values, as the chain does.

    Raises:
        InvalidArgument: *value* has an unsupported type.

    """
    write = _converter.get_unstructure_hook(value.__class__)
    try:
        return write(value)
    except _TypeMismatch as mismatch:
        raise InvalidArgument(f"wire_names contains an invalid value: {mismatch.rule}") from mismatch


class _TypeMismatch(Exception):
    """
    Signals that a value violates *rule*.

    Callers add their step to the path of the value while the exception propagates, innermost first.
    """

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule
        self.steps: list[str] = []


def _make_mismatch(expected: str, value: Any) -> _TypeMismatch:
    return _TypeMismatch(f"must be {expected}, got {_describe_value(value)}")


def _describe_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return f"the text {value[:_MAX_QUOTED_CHARS]!r}" + ("…" if len(value) > _MAX_QUOTED_CHARS else "")
    if isinstance(value, bool):
        return "true" if value else "false"
    for kind, name in ((int | float, "a number"), (dict, "an object"), (list, "an array")):
        if isinstance(value, kind):
            return name
    return f"a Python {type(value).__name__}"


# --- scalars: one strict reader each ---------------------------------------------------------------------------------


def _make_strict_reader(
    expected: str, is_valid: Callable[[Any], object], convert: Callable[[Any], Any] | None = None
) -> ReadHook:
    def read(value: Any, _: Any) -> Any:
        if not is_valid(value):
            raise _make_mismatch(expected, value)
        return value if convert is None else convert(value)

    return read


def _make_type_check(*kinds: type) -> Callable[[Any], bool]:
    # bool is a subclass of int, so check explicitly that only *kinds* with bool accept a bool.
    return lambda value: isinstance(value, kinds) and isinstance(value, bool) <= (bool in kinds)


def _make_pattern_check(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _make_uint_hooks(bits: int) -> tuple[ReadHook, WriteHook]:
    # The pattern limits the length, because int() raises another error for very long texts.
    is_decimal = _make_pattern_check(_UINT_PATTERN)
    return _make_strict_reader(
        f"a uint{bits} as decimal text", lambda value: is_decimal(value) and int(value) < 2**bits, int
    ), str


def _read_id(value: Any, _: Any) -> EntityId:
    try:
        return EntityId.parse(value if isinstance(value, str) else "")
    except InvalidArgument as error:
        raise _make_mismatch("an entity id", value) from error


def _read_reference(value: Any, _: Any) -> EntityId | None:
    is_null = isinstance(value, str) and (not value or _NULL_ID_PATTERN.fullmatch(value))
    return None if is_null else _read_id(value, EntityId)


def _read_member(value: Any, names: type[enum.StrEnum]) -> enum.StrEnum:
    for member in names:
        if isinstance(value, str) and member.value == value:
            return member
    raise _make_mismatch(f"the name of a member of {names.__name__}", value)


def _copy_value(value: Any, _: Any = None) -> Any:
    return copy.deepcopy(value)


_SCALAR_HOOKS: Mapping[Any, tuple[ReadHook, WriteHook]] = {
    str: (_make_strict_reader("text", _make_type_check(str)), str),
    bool: (_make_strict_reader("true or false", _make_type_check(bool)), bool),
    int: _make_uint_hooks(64),
    # Do not use str(), because it writes a zero with 18 decimal places as 0E-18.
    Decimal: (
        _make_strict_reader("a decimal as text", _make_pattern_check(_DECIMAL_PATTERN), Decimal),
        lambda value: format(value, "f"),
    ),
    EntityId: (_read_id, str),
    enum.StrEnum: (_read_member, lambda member: member.value),
}
_NUMBER_HOOKS: Mapping[str, tuple[ReadHook, WriteHook]] = {
    "uint256": _make_uint_hooks(256),
    "json": (_make_strict_reader("a whole number", _make_type_check(int)), _copy_value),
}


# --- arrays, unions and records: hooks built from the annotation ------------------------------------------------------


def _get_hooks(hint: Any) -> tuple[ReadHook, WriteHook]:
    return _converter.get_structure_hook(hint), _converter.get_unstructure_hook(hint)


def _make_sequence_hooks(hint: Any) -> tuple[ReadHook, WriteHook]:
    build, item = typing.get_origin(hint), typing.get_args(hint)[0]
    read_item, write_item = _get_hooks(item)

    def read(value: Any, _: Any) -> Any:
        if not isinstance(value, list):
            raise _make_mismatch("an array", value)
        items = []
        for index, raw in enumerate(value):
            try:
                items.append(read_item(raw, item))
            except _TypeMismatch as mismatch:
                mismatch.steps.append(f"[{index}]")
                raise
        return build(items)

    return read, lambda value: [write_item(item) for item in value]


def _make_union_hooks(hint: Any) -> tuple[ReadHook, WriteHook]:
    """
    Return hooks for an optional id, another optional value, or an open enum.

    An open enum accepts names that newer chains may add, and retains them as text.
    """
    main, *others = (member for member in typing.get_args(hint) if member is not types.NoneType)
    if main is EntityId:
        return _read_reference, lambda value: "" if value is None else str(value)
    if not others:
        read_main, write_main = _get_hooks(main)
        return (
            lambda value, _: None if value is None else read_main(value, main),
            lambda value: None if value is None else write_main(value),
        )
    names, (read_text, _) = {member.value: member for member in main}, _SCALAR_HOOKS[str]

    def read(value: Any, _: Any) -> Any:
        text = read_text(value, str)
        return names.get(text, text)

    return read, lambda value: value.value if isinstance(value, main) else value


@attrs.frozen
class _AttributeConversion:
    """
    Conversion of one attribute of a record.

    Null ids need the original text (`needs_text`), because several texts are parsed as None.
    """

    name: str
    wire: str
    hint: Any
    zero: Any
    read: ReadHook
    write: WriteHook
    needs_text: bool


def _list_conversions(cls: type[StructsModel]) -> list[_AttributeConversion]:
    hints = typing.get_type_hints(cls)
    members = []
    for attribute in filter(is_on_wire, attrs.fields(cls)):
        hint, number = hints[attribute.name], attribute.metadata.get(NUMBER_KEY)
        read, write = _get_hooks(hint) if number is None else _NUMBER_HOOKS[number]
        is_reference = EntityId | None in (hint, *typing.get_args(hint))
        zero = get_default(attribute)
        members.append(
            _AttributeConversion(attribute.name, get_wire_name(attribute), hint, zero, read, write, is_reference)
        )
    return members


def _make_record_hooks(cls: type[StructsModel]) -> tuple[ReadHook, WriteHook]:  # noqa: C901 - two functions over the same members
    members = _list_conversions(cls)
    known = {member.wire for member in members}

    def read(payload: Any, _: Any) -> Any:
        if not isinstance(payload, dict):
            raise _make_mismatch("an object", payload)
        values: dict[str, Any] = {}
        absent: list[str] = []
        original_values: dict[str, Any] = {}
        for member in members:
            try:
                if member.wire not in payload:
                    if member.zero is attrs.NOTHING:
                        raise _TypeMismatch("is missing")
                    absent.append(member.name)
                    continue
                raw = payload[member.wire]
                value = values[member.name] = member.read(raw, member.hint)
            except _TypeMismatch as mismatch:
                mismatch.steps.append(f".{member.wire}")
                raise
            if member.needs_text and member.write(value) != raw:
                original_values[member.name] = copy.deepcopy(raw)
        extra = {key: copy.deepcopy(value) for key, value in payload.items() if key not in known}
        return cls(**values, extra=extra, missing_fields=frozenset(absent), wire_names=original_values)

    def write(record: StructsModel) -> dict[str, Any]:
        written: dict[str, Any] = copy.deepcopy(dict(record.extra))
        for member in members:
            value = getattr(record, member.name)
            # `attrs.evolve` also copies the raw data of a changed value, so use raw data only if it matches the value.
            if member.name in record.missing_fields and value == member.zero:
                continue
            raw = record.wire_names.get(member.name, attrs.NOTHING)
            is_raw = raw is not attrs.NOTHING and member.read(raw, member.hint) == value
            written[member.wire] = copy.deepcopy(raw) if is_raw else member.write(value)
        return written

    return read, write


# --- the converter ---------------------------------------------------------------------------------------------------


def _reject_type(hint: Any) -> Any:
    raise InvalidArgument(f"no rule to read or write {hint!r}", hint="give a model, or a list of models")


# cattrs tries the last registered hook first, so the first entry here is the fallback that rejects other types.
_HOOK_FACTORIES: tuple[tuple[Callable[[Any], bool], Callable[[Any], tuple[ReadHook, WriteHook]]], ...] = (
    (lambda _: True, _reject_type),
    (lambda hint: isinstance(hint, type) and issubclass(hint, StructsModel), _make_record_hooks),
    (lambda hint: typing.get_origin(hint) in (list, tuple), _make_sequence_hooks),
    (lambda hint: typing.get_origin(hint) in (Union, types.UnionType), _make_union_hooks),
    (lambda hint: hint is Any, lambda _: (_copy_value, _copy_value)),
)
# cattrs has built-in hooks for these classes, which would convert values. Reject such values instead.
_REJECTING_HOOKS: tuple[ReadHook, WriteHook] = (
    lambda _, hint: _reject_type(hint),
    lambda value: _reject_type(type(value)),
)
_LIST_HOOKS: tuple[ReadHook, WriteHook] = (_REJECTING_HOOKS[0], lambda items: [unstructure(item) for item in items])
_CLASS_HOOKS: Mapping[Any, tuple[ReadHook, WriteHook]] = {
    **_SCALAR_HOOKS, **dict.fromkeys((float, bytes), _REJECTING_HOOKS), **dict.fromkeys((list, tuple), _LIST_HOOKS),
}  # fmt: skip


def _make_converter() -> cattrs.Converter:
    made = cattrs.Converter()
    for is_shape, pair in _HOOK_FACTORIES:
        made.register_structure_hook_factory(is_shape, lambda hint, pair=pair: pair(hint)[0])
        made.register_unstructure_hook_factory(is_shape, lambda hint, pair=pair: pair(hint)[1])
    for kind, (read, write) in _CLASS_HOOKS.items():
        made.register_structure_hook(kind, read)
        made.register_unstructure_hook(kind, write)
    return made


_converter = _make_converter()
to_plain.register(StructsModel, unstructure)
