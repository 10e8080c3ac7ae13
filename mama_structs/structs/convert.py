"""
Chain JSON into models and back, strictly and without loss.

The converters are private and coerce nothing: cattrs' own hooks would turn None into ``"None"``, the text ``"false"``
into True and 1.9 into 1.
One mechanism serves every model: it reads the attributes of a `Record`, so that a new field is one line there.
"""

from __future__ import annotations

import copy
import enum
import re
import types
import typing
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeVar, Union

import attrs
import cattrs

from mama_structs.errors import InvalidArgument, MalformedResponse
from mama_structs.structs.ids import EntityId
from mama_structs.structs.record import NUMBER, Record, default_of, is_on_wire, wire_name

T = TypeVar("T")
Read = Callable[[Any, Any], Any]
Write = Callable[[Any], Any]

_UINT64_MAX = 2**64 - 1
_UINT256_MAX = 2**256 - 1
_UINT = re.compile(r"0|[1-9][0-9]{0,77}", re.ASCII)
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,77})(?:\.[0-9]{1,40})?", re.ASCII)
_NULL_ID = re.compile(r"(?:[0-9]|1[01])-0", re.ASCII)
_SHOWN = 40


def structure(payload: Any, cls: type[T]) -> T:
    """
    Read a JSON value of the chain.

    Args:
        payload: What `json.loads` gave; it is neither changed nor kept.
        cls: A model, or ``list[Model]`` for the rows of a list.

    Raises:
        MalformedResponse: A value is not of the type that the chain promises; its *path* says where.
        InvalidArgument: *cls* is nothing that can be read.

    """
    read = _reading.get_structure_hook(cls)
    try:
        value: T = read(payload, cls)
    except _Mismatch as mismatch:
        raise MalformedResponse(mismatch.rule, path=mismatch.path) from mismatch
    return value


def unstructure(value: Any) -> Any:
    """
    Write a model, or a list of models, as the chain would: ``unstructure(structure(x, cls)) == x``.

    A model that was made by hand is written whole, zero values included, as the chain does.

    Raises:
        InvalidArgument: *value* is nothing that can be written.

    """
    write = _writing.get_unstructure_hook(value.__class__)
    try:
        return write(value)
    except _Mismatch as mismatch:
        raise InvalidArgument(f"as_written holds what cannot be read: {mismatch.rule}") from mismatch


class _Mismatch(Exception):
    """A value breaks *rule*; the steps to it are gathered on the way out, innermost first."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule
        self.steps: list[str] = []

    @property
    def path(self) -> str:
        """The JSON path from the root."""
        return "$" + "".join(reversed(self.steps))


def _mismatch(wanted: str, value: Any) -> _Mismatch:
    return _Mismatch(f"must be {wanted}, got {_described(value)}")


def _described(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return f"the text {value[:_SHOWN]!r}" + ("…" if len(value) > _SHOWN else "")
    if isinstance(value, bool):
        return "true" if value else "false"
    for kind, name in ((int | float, "a number"), (dict, "an object"), (list, "an array")):
        if isinstance(value, kind):
            return name
    return f"a Python {type(value).__name__}"


# --- scalars: one strict reader each ---------------------------------------------------------------------------------


def _read_text(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        raise _mismatch("text", value)
    return value


def _read_bool(value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        raise _mismatch("true or false", value)
    return value


def _uint_reader(name: str, largest: int) -> Read:
    def read(value: Any, _: Any) -> int:
        # The pattern bounds the length, so that int() is never asked for more digits than it takes.
        if isinstance(value, str) and _UINT.fullmatch(value) and (number := int(value)) <= largest:
            return number
        raise _mismatch(f"a {name} as decimal text", value)

    return read


def _read_json_number(value: Any, _: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _mismatch("a whole number", value)
    return value


def _read_decimal(value: Any, _: Any) -> Decimal:
    if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
        raise _mismatch("a decimal as text", value)
    return Decimal(value)


def _read_id(value: Any, _: Any) -> EntityId:
    if isinstance(value, str):
        try:
            return EntityId.parse(value)
        except InvalidArgument as error:
            raise _mismatch("an entity id", value) from error
    raise _mismatch("an entity id", value)


def _read_reference(value: Any, _: Any) -> EntityId | None:
    if value == "" or (isinstance(value, str) and _NULL_ID.fullmatch(value)):
        return None
    return _read_id(value, EntityId)


def _read_member(value: Any, names: type[enum.StrEnum]) -> enum.StrEnum:
    for member in names:
        if isinstance(value, str) and member.value == value:
            return member
    raise _mismatch(f"the name of a member of {names.__name__}", value)


def _write_decimal(value: Decimal) -> str:
    # str() would write a zero of 18 places as 0E-18.
    return format(value, "f")


def _write_reference(value: EntityId | None) -> str:
    return "" if value is None else str(value)


def _as_is(value: Any, _: Any = None) -> Any:
    return copy.deepcopy(value)


# --- shapes: built from the annotation -------------------------------------------------------------------------------


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Record)


def _is_sequence(hint: Any) -> bool:
    return typing.get_origin(hint) in (list, tuple)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (Union, types.UnionType)


def _sequence_reader(hint: Any) -> Read:
    build, item = typing.get_origin(hint), typing.get_args(hint)[0]
    read_item = _reading.get_structure_hook(item)

    def read(value: Any, _: Any) -> Any:
        if not isinstance(value, list):
            raise _mismatch("an array", value)
        items = []
        for index, raw in enumerate(value):
            try:
                items.append(read_item(raw, item))
            except _Mismatch as mismatch:
                mismatch.steps.append(f"[{index}]")
                raise
        return build(items)

    return read


def _sequence_writer(hint: Any) -> Write:
    write_item = _writing.get_unstructure_hook(typing.get_args(hint)[0])
    return lambda value: [write_item(item) for item in value]


def _members_of_union(hint: Any) -> tuple[Any, bool]:
    """Return the union's main member, and whether the other is None (else it is plain text beside an enum)."""
    main, *others = (member for member in typing.get_args(hint) if member is not types.NoneType)
    return main, not others


def _union_reader(hint: Any) -> Read:
    main, nullable = _members_of_union(hint)
    if main is EntityId:
        return _read_reference
    if nullable:
        read_main = _reading.get_structure_hook(main)
        return lambda value, _: None if value is None else read_main(value, main)
    names = {member.value: member for member in main}

    def read(value: Any, _: Any) -> Any:
        text = _read_text(value, str)
        return names.get(text, text)

    return read


def _union_writer(hint: Any) -> Write:
    main, nullable = _members_of_union(hint)
    if main is EntityId:
        return _write_reference
    if nullable:
        write_main = _writing.get_unstructure_hook(main)
        return lambda value: None if value is None else write_main(value)
    return lambda value: value.value if isinstance(value, main) else value


# --- records ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class _Member:
    """How one attribute of a record is read and written."""

    name: str
    wire: str
    hint: Any
    zero: Any
    read: Read
    write: Write
    needs_text: bool
    """Whether the value alone may not give back what was written: null ids."""

    @property
    def required(self) -> bool:
        return self.zero is attrs.NOTHING


_NUMBERS: Mapping[str, tuple[Read, Write]] = {
    "uint256": (_uint_reader("uint256", _UINT256_MAX), str),
    "json": (_read_json_number, _as_is),
}


def _members(cls: type[Record]) -> list[_Member]:
    hints = typing.get_type_hints(cls)
    members = []
    for attribute in attrs.fields(cls):
        if not is_on_wire(attribute):
            continue
        hint = hints[attribute.name]
        number = attribute.metadata.get(NUMBER)
        read, write = (
            (_reading.get_structure_hook(hint), _writing.get_unstructure_hook(hint))
            if number is None
            else _NUMBERS[number]
        )
        references = EntityId | None in (hint, *typing.get_args(hint))
        members.append(
            _Member(attribute.name, wire_name(attribute), hint, default_of(attribute), read, write, references)
        )
    return members


def _record_reader(cls: type[Record]) -> Read:
    members = _members(cls)
    known = {member.wire for member in members}

    def read(payload: Any, _: Any) -> Any:
        if not isinstance(payload, dict):
            raise _mismatch("an object", payload)
        values: dict[str, Any] = {}
        absent: list[str] = []
        as_written: dict[str, Any] = {}
        for member in members:
            try:
                if member.wire not in payload:
                    if member.required:
                        raise _Mismatch("is missing")
                    absent.append(member.name)
                    continue
                raw = payload[member.wire]
                value = values[member.name] = member.read(raw, member.hint)
            except _Mismatch as mismatch:
                mismatch.steps.append(f".{member.wire}")
                raise
            if member.needs_text and member.write(value) != raw:
                as_written[member.name] = copy.deepcopy(raw)
        extra = {key: copy.deepcopy(value) for key, value in payload.items() if key not in known}
        return cls(**values, extra=extra, absent=frozenset(absent), as_written=as_written)

    return read


def _record_writer(cls: type[Record]) -> Write:
    members = _members(cls)

    def write(record: Record) -> dict[str, Any]:
        written: dict[str, Any] = dict(_as_is(dict(record.extra)))
        for member in members:
            value = getattr(record, member.name)
            # A copy with a new value (`attrs.evolve`) inherits what was said of the old one: it counts only while true.
            if member.name in record.absent and value == member.zero:
                continue
            if member.name in record.as_written:
                raw = record.as_written[member.name]
                if member.read(raw, member.hint) == value:
                    written[member.wire] = _as_is(raw)
                    continue
            written[member.wire] = member.write(value)
        return written

    return write


# --- the converters --------------------------------------------------------------------------------------------------


def _refuse_type(hint: Any) -> Any:
    raise InvalidArgument(f"no rule to read or write {hint!r}", hint="give a model, or a list of models")


def _refuse_value(_: Any, hint: Any) -> Any:
    _refuse_type(hint)


_SCALARS: Mapping[Any, tuple[Read, Write]] = {
    str: (_read_text, str),
    bool: (_read_bool, bool),
    int: (_uint_reader("uint64", _UINT64_MAX), str),
    Decimal: (_read_decimal, _write_decimal),
    EntityId: (_read_id, str),
    enum.StrEnum: (_read_member, lambda member: member.value),
}


def _make_converters() -> tuple[cattrs.Converter, cattrs.Converter]:
    reading, writing = cattrs.Converter(), cattrs.Converter()
    # cattrs asks the newest predicate first: what nothing below knows is refused, never coerced.
    reading.register_structure_hook_factory(lambda _: True, _refuse_type)
    writing.register_unstructure_hook_factory(lambda _: True, _refuse_type)
    for is_shape, read, write in (
        (_is_record, _record_reader, _record_writer),
        (_is_sequence, _sequence_reader, _sequence_writer),
        (_is_union, _union_reader, _union_writer),
    ):
        reading.register_structure_hook_factory(is_shape, read)
        writing.register_unstructure_hook_factory(is_shape, write)
    reading.register_structure_hook_func(lambda hint: hint is Any, _as_is)
    writing.register_unstructure_hook_func(lambda hint: hint is Any, _as_is)
    # Classes are asked before predicates, and cattrs has coercing hooks for these of its own.
    for scalar, (read_scalar, write_scalar) in _SCALARS.items():
        reading.register_structure_hook(scalar, read_scalar)
        writing.register_unstructure_hook(scalar, write_scalar)
    for coercing in (float, bytes):
        reading.register_structure_hook(coercing, _refuse_value)
        writing.register_unstructure_hook(coercing, lambda value: _refuse_type(type(value)))
    for sequence in (list, tuple):
        writing.register_unstructure_hook(sequence, lambda items: [unstructure(item) for item in items])
    return reading, writing


_reading, _writing = _make_converters()
