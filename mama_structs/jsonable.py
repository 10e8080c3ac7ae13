"""Results as plain JSON data."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import math
import os
import uuid
from collections.abc import Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from typing import Any

import attrs

from mama_structs.errors import MamaStructsError
from mama_structs.plain import written

MAX_DEPTH = 100
_BY_MSGSPEC = (
    bytes,
    bytearray,
    memoryview,
    dt.date,
    dt.time,
    dt.timedelta,
    decimal.Decimal,
    uuid.UUID,
)
_HINT = "return mappings, lists, strings, numbers, or attrs, dataclass, pydantic and msgspec objects made of them"


def to_jsonable(value: object) -> Any:
    """
    Return *value* as what `json.loads` could have given: dicts with str keys, lists, str, numbers, bool and None.

    Plain JSON data comes back equal, in new containers.
    attrs, dataclass, pydantic and msgspec objects become objects without their private fields, enums their values,
    numpy arrays lists, sets sorted lists, dates and times ISO 8601 text, bytes base64 text, `Decimal` and `UUID` text.
    What has a ``parse`` and a ``__str__`` of its own, as `EntityId`, becomes that text.
    NaN and the infinities become null, since JSON has no word for them.

    Raises:
        MamaStructsError: The value has no JSON form, contains itself, has keys that become the same text,
            or is nested more than 100 levels deep.

    """
    return _Walk().write(value)


def is_written_as_text(kind: type) -> bool:
    """Whether objects of this class become their own text, which its ``parse`` reads back."""
    return callable(getattr(kind, "parse", None)) and any("__str__" in vars(one) for one in kind.__mro__[:-1])


@attrs.define
class _Walk:
    """One walk through one value; *path* is where it is, *above* holds the ids of the containers around."""

    path: list[object] = attrs.field(factory=list)
    above: set[int] = attrs.field(factory=set)

    def write(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is str or kind is int or kind is bool:
            return value
        if isinstance(value, enum.Enum):
            return self.write(value.value)
        if isinstance(value, (str, int, float)):
            return _plain_scalar(value)
        if isinstance(value, _BY_MSGSPEC):
            import msgspec  # noqa: PLC0415 - only for the few values that need it

            return msgspec.to_builtins(value)
        if isinstance(value, os.PathLike):
            return self.write(os.fspath(value))
        return self._write_container(value)

    def _write_container(self, value: Any) -> Any:
        """Write what may hold other values."""
        if id(value) in self.above:
            raise self._error("the result contains itself", hint="return a tree; name other objects by their ids")
        if len(self.above) >= MAX_DEPTH:
            raise self._error(f"the result is nested more than {MAX_DEPTH} levels deep", hint="return flatter data")
        self.above.add(id(value))
        try:
            return self._write_open(value)
        finally:
            self.above.remove(id(value))

    def _write_open(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._write_mapping(value)
        if isinstance(value, AbstractSet):
            return _in_order(self._write_all(value))
        if isinstance(value, (Sequence, ValuesView)):
            return self._write_all(value)
        return self._write_object(value, type(value))

    def _write_object(self, value: Any, kind: type) -> Any:
        if isinstance(value, type):
            raise self._no_form(value)
        plain = written(value)
        if plain is not value:
            return self.write(plain)
        if callable(getattr(kind, "model_dump", None)):
            return self.write(self._dumped(value))
        if callable(getattr(kind, "tolist", None)):
            return self.write(value.tolist())
        if is_written_as_text(kind):
            return str(value)
        names = _field_names(value)
        if names is None:
            raise self._no_form(value)
        return self._write_mapping({shown: getattr(value, name) for name, shown in names.items()} | _tag(kind))

    def _write_mapping(self, mapping: Mapping[Any, Any]) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for key, item in mapping.items():
            self.path.append(key)
            text = key if type(key) is str else self._key(key)
            if text in written:
                raise self._error("two keys of the result become the same text", hint="use keys that differ as text")
            written[text] = self.write(item)
            self.path.pop()
        return written

    def _write_all(self, items: Sequence[Any] | AbstractSet[Any] | ValuesView[Any]) -> list[Any]:
        written = []
        for number, item in enumerate(items):
            self.path.append(number)
            written.append(self.write(item))
            self.path.pop()
        return written

    def _key(self, key: object) -> str:
        """Write a key as JSON writes the same value, without quotes."""
        written = self.write(key)
        if isinstance(written, str):
            return written
        if isinstance(written, (dict, list)):
            raise self._error("a key of the result is no scalar", hint="use text or numbers as keys")
        return json.dumps(written)

    def _dumped(self, value: Any) -> Any:
        try:
            return value.model_dump(mode="json")
        # The model's own serializers run here and may raise anything.
        except Exception as cause:
            raise self._no_form(value) from cause

    def _no_form(self, value: object) -> MamaStructsError:
        return self._error(f"the result holds a {type(value).__qualname__}, which has no JSON form", hint=_HINT)

    def _error(self, message: str, *, hint: str) -> MamaStructsError:
        """Name the place, by its keys and in short; never the content."""
        steps = [f"[{step}]" if type(step) is int else f".{step!s:.40}" for step in self.path]
        where = "".join(["$", *(steps if len(steps) <= 8 else [*steps[:7], "…"])])  # noqa: PLR2004
        return MamaStructsError(f"{message}, at {where}", hint=hint)


def _plain_scalar(value: str | float) -> str | int | float | None:
    """Strip a subclass (numpy's floats, for one) down to the plain type."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    return float(value) if math.isfinite(value) else None


def _in_order(items: list[Any]) -> list[Any]:
    """Sort what was a set, so that equal sets are written alike; mixed types go by their JSON text."""
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def _field_names(value: Any) -> dict[str, str] | None:
    """Return the public fields of an object, each with the name to write; None for what has no fields."""
    kind = type(value)
    if attrs.has(kind):
        return {field.name: field.name for field in attrs.fields(kind) if not field.name.startswith("_")}
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses  # noqa: PLC0415 - slow to import, and loaded already where it is used

        return {field.name: field.name for field in dataclasses.fields(value) if not field.name.startswith("_")}
    if hasattr(kind, "__struct_fields__"):
        import msgspec  # noqa: PLC0415 - loaded already, as a Struct is at hand

        names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
        return {name: shown for name, shown in names if getattr(value, name) is not msgspec.UNSET}
    return None


def _tag(kind: Any) -> dict[str, Any]:
    """Return the tag that tells the members of a union of msgspec Structs apart."""
    config = getattr(kind, "__struct_config__", None)
    return {} if config is None or config.tag_field is None else {config.tag_field: config.tag}
