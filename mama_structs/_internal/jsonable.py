"""Conversion of values to plain data: to JSON, to one level of containers, or to a deep copy."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import json
import math
import os
import re
import uuid
from array import array
from collections import UserString
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any, ClassVar, Final

import attrs

from mama_structs.errors import MalformedResponse, MamaStructsError

MAX_DEPTH: Final = 100
# A source's answer has at most MAX_DEPTH levels, because a deeper answer would overflow recursive readers.
# The number of members is limited, because containers that share members at each level would expand exponentially.
MAX_ANSWER_MEMBERS: Final = 1_000_000

SCALAR_TYPES: Final = frozenset({int, float, bool, type(None), str, bytes})
"""Exact types of scalar values."""

MSGSPEC_TYPES: Final = (bytes, bytearray, memoryview, dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID)
# Python sequences that must not become JSON arrays. For example, iterating a UserString yields strings without end.
NON_ARRAY_TYPES: Final = (bytes, bytearray, memoryview, range, array, UserString)
NO_JSON_FORM_HINT: Final = (
    "return mappings, lists, strings, numbers, or attrs, dataclass, pydantic and msgspec objects made of them"
)
MAX_PATH_STEPS: Final = 8
# Python cannot convert larger integers to decimal, because by default it converts at most 4,300 digits.
MAX_INT_BITS: Final = 14_000
MAX_TYPE_NAME_CHARS: Final = 80
CHUNK_ITEMS: Final = 200
MAX_CHUNK_DEPTH: Final = 8
# Do not use msgspec: this text is part of stored keys, so a new release of msgspec must not change it.
_encode_canonical: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode


@functools.singledispatch
def to_plain(value: object) -> Any:
    """Return the plain form of a value of a registered type. Return other values unchanged."""
    return value


def to_jsonable(value: object) -> Any:
    """
    Return *value* as JSON data: dicts with str keys, lists, str, numbers, bool and None.

    Plain JSON data is returned equal, in new containers.
    attrs, dataclass, pydantic and msgspec objects become objects without their private fields, enums their values,
    numpy arrays lists, sets sorted lists, dates and times ISO 8601 text, bytes base64 text, `Decimal` and `UUID` text.
    Objects of a class with its own ``parse`` and ``__str__``, such as `EntityId`, become their text.
    NaN and the infinities become null, since JSON cannot represent them.

    Raises:
        MamaStructsError: The value has no JSON form, contains itself, has keys that become the same text,
            or is nested more than 100 levels deep.

    """
    return _JsonConverter().write(value)


def to_public_json(value: object) -> Any:
    """
    Convert a field of a public value as `to_jsonable` does.

    Times are converted to UTC, naive ones from local time. Functions become their names, and regular expressions their
    patterns.
    """
    return _JsonConverter(is_public=True).write(value)


def to_answer(value: object) -> Any:
    """
    Convert the result of a finished tool call as `to_jsonable` does, but never raise.

    Each part without a JSON form is replaced by a placeholder text. The placeholder names the type, shows no content,
    and says that the tool has run, so that a model does not call it again.
    """
    return _JsonConverter(replace_invalid=True).write(value)


def has_text_form(kind: type) -> bool:
    """Return True if the class has a text form, which its ``__str__`` writes and its ``parse`` reads."""
    return callable(getattr(kind, "parse", None)) and any("__str__" in vars(one) for one in kind.__mro__[:-1])


@attrs.define
class _JsonConverter:
    """
    One recursive conversion.

    `path` contains the keys that lead to the current part, `container_ids` the ids of the containers around it. With
    `replace_invalid`, parts without a JSON form are replaced by a placeholder. With `is_public`, the rules of
    `to_public_json` apply.
    """

    replace_invalid: bool = False
    is_public: bool = False
    path: list[object] = attrs.field(factory=list)
    container_ids: set[int] = attrs.field(factory=set)

    def write(self, value: Any) -> Any:
        if not self.replace_invalid:
            return self._write(value)
        depth = len(self.path)
        try:
            return self._write(value)
        # Host code (getters, iterators and serializers) runs here and may raise any exception.
        except Exception:  # noqa: BLE001 - see the comment above
            del self.path[depth:]
            return _make_placeholder(value)

    def _write(self, value: Any) -> Any:
        kind = type(value)
        if self.replace_invalid and isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            return _make_placeholder(value)
        if value is None or kind is str or kind is int or kind is bool:
            return value
        if isinstance(value, (enum.Enum, os.PathLike)):
            return self.write(value.value if isinstance(value, enum.Enum) else os.fspath(value))
        if isinstance(value, (str, int, float)):
            return _to_builtin_scalar(value)
        if isinstance(value, MSGSPEC_TYPES):
            import msgspec  # noqa: PLC0415 - loaded only for the few values that need it

            if self.is_public and isinstance(value, dt.datetime):
                value = value.astimezone(dt.UTC)
            return msgspec.to_builtins(value)
        if id(value) in self.container_ids:
            raise self._error("the result contains itself", hint="return a tree; name other objects by their ids")
        if len(self.container_ids) >= MAX_DEPTH:
            raise self._error(f"the result is nested more than {MAX_DEPTH} levels deep", hint="return flatter data")
        self.container_ids.add(id(value))
        try:
            return self._write_container(value)
        finally:
            self.container_ids.remove(id(value))

    def _write_container(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._write_mapping(value.items())
        if isinstance(value, AbstractSet):
            return _sort_items(self._write_all(value))
        if isinstance(value, (Sequence, ValuesView)):
            return self._write_all(value)
        return self._write_object(value, type(value))

    def _write_object(self, value: Any, kind: Any) -> Any:
        plain = _to_public_text(value) if self.is_public else to_plain(value)
        if plain is not value:
            return self.write(plain)
        if not isinstance(value, type):
            if callable(getattr(kind, "model_dump", None)):
                try:
                    dumped = self._dump_pydantic(value)
                # Host code (the model's own serializers) runs here and may raise any exception.
                except Exception as cause:
                    if self.replace_invalid and isinstance(fields := unstructure(value), Mapping):
                        # Convert the fields one by one, so that a field without a JSON form does not hide the others.
                        return self._write_mapping(fields.items())
                    raise self._no_form(value) from cause
                return self.write(dumped)
            if callable(getattr(kind, "tolist", None)):
                return self.write(_read_array(value))
            if has_text_form(kind):
                return str(value)
            fields = _get_public_fields(value)
            if fields is not None:
                return self._write_mapping(fields)
        raise self._no_form(value)

    def _dump_pydantic(self, value: Any) -> Any:
        if not is_pydantic_model(type(value)):
            return value.model_dump(mode="json")
        # pydantic calls *fallback* for each value that it does not know. Each model configures its aliases.
        return value.model_dump(mode="json", fallback=self.write, warnings=False)

    def _write_mapping(self, items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
        done: dict[str, Any] = {}
        for key, item in items:
            self.path.append(key)
            text = key if type(key) is str else self._key(key)
            while text in done:
                if not self.replace_invalid:
                    raise self._error(
                        "two keys of the result become the same text", hint="use keys that differ as text"
                    )
                text += "_"
            done[text] = self.write(item)
            self.path.pop()
        return done

    def _write_all(self, items: Iterable[Any]) -> list[Any]:
        done = []
        for number, item in enumerate(items):
            self.path.append(number)
            done.append(self.write(item))
            self.path.pop()
        return done

    def _key(self, key: object) -> str:
        """Return the text of a key: its JSON form without quotes."""
        done = self.write(key)
        if isinstance(done, (dict, list)):
            if self.replace_invalid:
                return f"[{_get_type_name(key)}]"
            raise self._error("a key of the result is no scalar", hint="use text or numbers as keys")
        return done if isinstance(done, str) else json.dumps(done)

    def _no_form(self, value: object) -> MamaStructsError:
        return self._error(
            f"the result holds a {type(value).__qualname__}, which has no JSON form", hint=NO_JSON_FORM_HINT
        )

    def _error(self, message: str, *, hint: str) -> MamaStructsError:
        """Return an error whose message contains the location (shortened keys), but no values."""
        steps = [f"[{step}]" if type(step) is int else f".{step!s:.40}" for step in self.path]
        where = "".join(["$", *(steps if len(steps) <= MAX_PATH_STEPS else [*steps[: MAX_PATH_STEPS - 1], "…"])])
        return MamaStructsError(f"{message}, at {where}", hint=hint)


def is_pydantic_model(kind: Any) -> bool:
    """Return True if a class is a pydantic model."""
    return callable(getattr(kind, "model_dump", None)) and callable(getattr(kind, "model_json_schema", None))


def _read_array(value: Any) -> Any:
    """Return an array or scalar of numpy, or of a similar package, as Python data. Times become ISO 8601 text."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if kind == "M":
        return _map_items(value.astype(str).tolist(), _shorten_time)
    if kind == "m":
        return _map_items(value.astype("m8[us]").tolist(), lambda one: one)
    listed = value.tolist()
    # The extended precision of numpy has no Python type.
    return float(value) if type(listed) is type(value) else listed


def _map_items(items: Any, convert: Callable[[Any], Any]) -> Any:
    return [_map_items(one, convert) for one in items] if isinstance(items, list) else convert(items)


def _shorten_time(text: str) -> str | None:
    """Return an ISO 8601 text without trailing zeros of its fraction, or None for NaT."""
    return None if text == "NaT" else text.rstrip("0").removesuffix(".") if "." in text else text


def _to_public_text(value: Any) -> Any:
    """Return the name of a function or class, the pattern of a regular expression, or other values as `to_plain`."""
    if isinstance(value, re.Pattern):
        return value.pattern
    name = getattr(value, "__qualname__", None)
    return name if callable(value) and isinstance(name, str) else to_plain(value)


def _make_placeholder(value: object) -> str:
    """Return the placeholder for a value without a JSON form. It contains the type, but no content."""
    return f"[{_get_type_name(value)}: not shown, has no JSON form; the tool has run]"


def _get_type_name(value: object) -> str:
    return f"{type(value).__name__:.{MAX_TYPE_NAME_CHARS}}"


def _to_builtin_scalar(value: str | float) -> str | int | float | None:
    """Convert a scalar of a subclass, such as a numpy float, to the builtin type."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    return float(value) if math.isfinite(value) else None


def _sort_items(items: list[Any]) -> list[Any]:
    """
    Sort the items of a set, so that equal sets have equal output.

    Items of different types are sorted by their JSON texts.
    """
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def _get_public_fields(value: Any) -> list[tuple[str, Any]] | None:
    """Return the public fields of an object by output name, or None if the type has no known fields."""
    kind = type(value)
    if not hasattr(kind, "__struct_fields__"):
        names = _get_field_names(kind)
        return None if names is None else [(name, getattr(value, name)) for name in names if not name.startswith("_")]
    import msgspec  # noqa: PLC0415 - already loaded, because the value is a Struct

    pairs = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    fields = [(shown, getattr(value, name)) for name, shown in pairs]
    # Include the tag of the Struct, because it identifies the member of a tagged union.
    tag = kind.__struct_config__
    return [*(one for one in fields if one[1] is not msgspec.UNSET), *[(tag.tag_field, tag.tag)] * bool(tag.tag_field)]


def _get_field_names(kind: type) -> list[str] | None:
    if attrs.has(kind):
        return [field.name for field in attrs.fields(kind)]
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else None


def unstructure(value: object) -> Any:
    """Convert an attrs, dataclass or pydantic object to a dict, one level deep. Return other values unchanged."""
    plain = to_plain(value)
    if plain is not value or isinstance(value, type):
        return plain
    kind: Any = type(value)
    names = _get_field_names(kind)
    if names is None and _is_pydantic(kind):
        names = list(kind.model_fields)
    if names is None:
        return value
    fields = {name: getattr(value, name) for name in names}
    return fields["root"] if getattr(kind, "__pydantic_root_model__", False) else fields


def _is_pydantic(kind: Any) -> bool:
    return callable(getattr(kind, "model_dump", None)) and hasattr(kind, "model_fields")


def as_mapping(value: object) -> Mapping[str, Any] | None:
    """Return *value* as a mapping, one level deep, or None if it has no mapping form."""
    plain = value if isinstance(value, Mapping) else unstructure(value)
    return plain if isinstance(plain, Mapping) else None


def as_payload(result: object) -> Mapping[str, Any] | None:
    """Return a mapping unchanged, or a model as plain data. Return None for other results."""
    if isinstance(result, Mapping):
        return result
    if as_mapping(result) is None:
        return None
    kind: Any = type(result)
    try:
        return copy_answer(kind.model_dump(result, mode="json") if _is_pydantic(kind) else result)
    except Exception:  # noqa: BLE001 - a model with a cycle, or with a value that pydantic cannot serialize
        return as_mapping(result)


def to_plain_level(value: object) -> str | Mapping[Any, Any] | Sequence[Any] | None:
    """Convert one level of a value to a text, mapping or array. Return None if that is impossible."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return value
    if isinstance(value, NON_ARRAY_TYPES):
        return None
    if isinstance(value, Sequence):
        return value
    if isinstance(value, AbstractSet):
        return sorted(value, key=_get_sort_key)
    plain = unstructure(value)
    return None if plain is value else to_plain_level(plain)


def _get_sort_key(member: object) -> str:
    """Return the sort key of a set member. Unlike `str()` of a set, it is equal in every process."""
    if isinstance(member, AbstractSet):
        return f"{{{', '.join(sorted(map(_get_sort_key, member)))}}}"
    if isinstance(member, tuple):
        return f"({', '.join(map(_get_sort_key, member))})"
    return str(member)


def copy_answer(answer: object) -> dict[str, Any]:
    """Return a deep copy of a source's answer as a dict, or raise `MalformedResponse`."""
    mapping = as_mapping(answer)
    if mapping is None:
        raise MalformedResponse(f"the source answered {type(answer).__name__} instead of a mapping")
    remaining_members = MAX_ANSWER_MEMBERS

    def limit_members(members: Iterable[Any]) -> Iterator[Any]:
        nonlocal remaining_members
        for member in members:
            remaining_members -= 1
            if remaining_members < 0:
                raise MalformedResponse(f"the answer has more than {MAX_ANSWER_MEMBERS} members")
            yield member

    def copied(value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str or kind is int or kind is bool or value is None or kind is float:
            return value
        if depth == 0:
            raise MalformedResponse(f"the answer is nested deeper than {MAX_DEPTH} levels")
        plain = to_plain_level(value)
        if isinstance(plain, Mapping):
            return {str(key): copied(member, depth - 1) for key, member in limit_members(plain.items())}
        if plain is None or isinstance(plain, str):
            return value if plain is None else plain
        return [copied(member, depth - 1) for member in limit_members(plain)]

    own: dict[str, Any] = copied(mapping, MAX_DEPTH)
    return own


def copy_containers(value: Any) -> Any:
    """Copy the dicts and lists of data that `copy_answer` has returned. Scalars are shared."""
    kind = type(value)
    if kind is dict:
        return {key: copy_containers(member) for key, member in value.items()}
    if kind is list:
        return [copy_containers(member) for member in value]
    return value


def is_same_json(value: object, other: object) -> bool:
    """Return True if two plain values are equal in JSON, in which true is not equal to 1."""
    return bool(value == other) and isinstance(value, bool) is isinstance(other, bool)


def to_json_text(data: object) -> str:
    """Return data as compact JSON for a model. Non-ASCII characters are not escaped."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def to_json_text_in_chunks(data: Any, depth: int = MAX_CHUNK_DEPTH) -> str:
    """
    Return the result of `to_json_text`, encoded in several calls, so that other threads can run between them.

    One call of the C encoder holds the interpreter lock until it returns.
    Containers of more than 200 members are divided, down to *depth* levels.
    """
    kind = type(data)
    if depth and kind is list:
        if any(map(_is_long, data)):
            return f"[{','.join(to_json_text_in_chunks(member, depth - 1) for member in data)}]"
        if len(data) > CHUNK_ITEMS:
            parts = (to_json_text(data[start : start + CHUNK_ITEMS]) for start in range(0, len(data), CHUNK_ITEMS))
            return f"[{','.join(part[1:-1] for part in parts)}]"
    if depth and kind is dict and (len(data) > CHUNK_ITEMS or any(map(_is_long, data.values()))):
        pairs = ((to_json_text({key: None}), member) for key, member in data.items())
        written = (f"{frame[1 : -len('null}')]}{to_json_text_in_chunks(member, depth - 1)}" for frame, member in pairs)
        return f"{{{','.join(written)}}}"
    return to_json_text(data)


def _is_long(value: object) -> bool:
    return isinstance(value, list | dict) and len(value) > CHUNK_ITEMS


def measure_json_bytes(value: object) -> int:
    """
    Return the size of *value* in bytes, as compact JSON in UTF-8.

    A value without a JSON form counts as its text.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return len(text.encode("utf-8", "surrogatepass"))


def canonical_json(value: object) -> str | None:
    """
    Return JSON text that is equal for equal JSON values only, or None for a value that cannot be compared.

    Numbers are equal if they have the same mathematical value: 1 equals 1.0, and -0.0 equals 0. A boolean equals no
    number, and null equals only null. Texts are equal if their code points are; they are not normalized. The order of
    keys does not matter. NaN and the infinities become null, as in stored JSON. A value that is nested more than 100
    levels deep, or that contains an integer of more than 4,300 digits, cannot be compared.
    """
    try:
        return _encode_canonical(_to_canonical(value, MAX_DEPTH))
    except ValueError:
        return None


def _to_canonical(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return (int(value) if value.is_integer() else value) if math.isfinite(value) else None
    if depth == 0:
        raise ValueError("the value is nested too deeply")
    if isinstance(value, Mapping):
        return {str(key): _to_canonical(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_canonical(item, depth - 1) for item in value]
    import msgspec  # noqa: PLC0415 - loaded only for the few values that need it

    # Convert dates and other types as they are converted when they are stored.
    return _to_canonical(msgspec.to_builtins(value), depth - 1)


class JsonMixin:
    """
    Adds `to_dict` and `to_json` to an attrs class.

    ``dict(value)`` equals ``value.to_dict()``, so that FastAPI routes can return values. pydantic serializes them, too.
    """

    __slots__ = ()
    _json_properties: ClassVar[tuple[str, ...]] = ()
    """Properties that `to_dict` adds to the fields."""
    # Without this, Python would iterate over integer keys, because the class defines `__getitem__`.
    __iter__: ClassVar[Any] = None

    @classmethod
    def _json_names(cls) -> tuple[str, ...]:
        """Return the keys of `to_dict`."""
        kind: Any = cls
        return _get_json_names(kind)

    def to_dict(self) -> dict[str, Any]:
        """
        Return the public fields as JSON data: dicts with str keys, lists, str, numbers, bool and None.

        The keys are the names of the attributes. Times are ISO 8601 text in UTC, enums their values.
        ``json.dumps`` accepts the result, but not the object itself.
        """
        return {name: to_public_json(getattr(self, name)) for name in self._json_names()}

    def to_json(self) -> str:
        """Return the data of `to_dict` as JSON text."""
        return to_json_text(self.to_dict())

    def keys(self) -> Collection[str]:
        """Return the keys of `to_dict`."""
        return self._json_names()

    def __getitem__(self, key: str) -> Any:
        """Return one value of `to_dict`."""
        if key in self._json_names():
            return to_public_json(getattr(self, key))
        raise KeyError(_describe_missing_key(self, key))

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Any:
        """Return a pydantic schema that accepts instances and serializes them with `to_dict`."""
        return make_pydantic_schema(cls, cls.to_dict)

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: object, _handler: object) -> dict[str, Any]:
        """Return the JSON Schema of `to_dict`, with which FastAPI documents its routes."""
        return {"type": "object", "title": cls.__name__}


@functools.cache
def _get_json_names(kind: Any) -> tuple[str, ...]:
    """Return the public fields of a class and its `JsonMixin._json_properties`."""
    names = chain((field.name for field in attrs.fields(kind)), kind._json_properties)
    return tuple(name for name in names if not name.startswith("_"))


def _describe_missing_key(value: JsonMixin, key: object) -> str:
    """Return an error message, with the path to the key if a nested value has it."""
    for name in value._json_names():
        nested = getattr(value, name)
        if isinstance(nested, JsonMixin) and key in nested._json_names():
            return f"{type(value).__name__} has no key {key!r}. Use [{name!r}][{key!r}]."
    return f"{type(value).__name__} has no key {key!r}"


def make_pydantic_schema(cls: type, to_data: Callable[..., object]) -> Any:
    """Return a pydantic schema that accepts instances of *cls* and serializes them with *to_data*."""
    from pydantic_core import core_schema  # noqa: PLC0415 - only pydantic calls this function

    serialization = core_schema.plain_serializer_function_ser_schema(to_data)
    return core_schema.is_instance_schema(cls, serialization=serialization)
