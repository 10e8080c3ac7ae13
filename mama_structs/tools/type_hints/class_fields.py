"""Fields of dataclasses, attrs classes, msgspec Structs, TypedDicts and NamedTuples."""

from __future__ import annotations

import collections
import dataclasses
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple, get_args, get_origin

import attrs

from mama_structs._internal.jsonable import to_jsonable
from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.tools.type_hints.conversion import JSONSchema, ObjectField, get_qualifier, unwrap_qualifiers
from mama_structs.tools.type_hints.metadata import is_field_info

MISSING: Final = object()


class ClassField(NamedTuple):
    """A field of a class: attribute, JSON name, constructor argument or "", hint, default, whether it is required."""

    name: str
    shown: str
    argument: str
    hint: Any
    default: Any
    required: bool


def find_class_fields(hint: Any) -> list[ClassField] | None:
    """Return the fields of a class, or None if it has no known fields."""
    kind = get_origin(hint) or hint
    found = list(_iterate_class_fields(kind)) if has_fields(kind) else None
    if found is None:
        return None
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as cause:
        raise InvalidArgument(
            f"the annotations of {kind.__qualname__} cannot be resolved: {cause}",
            hint="its names must exist at the top of the module of the class, outside of `if TYPE_CHECKING`",
        ) from cause
    values = dict(zip(getattr(kind, "__parameters__", ()), get_args(hint), strict=False))
    return [
        one._replace(
            hint=_substitute(unwrap_qualifiers(hints.get(one.name, Any)), values),
            # Python ignores qualifiers in annotations that are text.
            required={"Required": True, "NotRequired": False}.get(get_qualifier(hints.get(one.name)), one.required),
        )
        for one in found
    ]


def find_typed_keys(kind: Any) -> dict[str, ObjectField]:
    """Return the hints of the keys of a TypedDict."""
    if not is_typed_dict(get_origin(kind) or kind):
        raise InvalidArgument(f"Unpack[{kind!r:.80}] cannot be offered to a model", hint="unpack a TypedDict")
    return {one.name: ObjectField(one.hint, one.required) for one in find_class_fields(kind) or ()}


def has_own_constructor(kind: Any) -> bool:
    """Return True if an attrs class has converters or aliases, which msgspec ignores."""
    return attrs.has(kind) and any(
        one.converter is not None or one.alias not in (None, one.name) for one in attrs.fields(kind)
    )


def has_fields(kind: Any) -> bool:
    """Return True if a class is of a kind whose fields are known."""
    return (
        is_typed_dict(kind)
        or is_named_tuple(kind)
        or hasattr(kind, "__struct_fields__")
        or attrs.has(kind)
        or dataclasses.is_dataclass(kind)
    )


def _iterate_class_fields(kind: Any) -> Iterator[ClassField]:
    if is_typed_dict(kind):
        for name in kind.__annotations__:
            yield ClassField(name, name, name, Any, MISSING, name in kind.__required_keys__)
    elif is_named_tuple(kind):
        for name in kind._fields:
            default = kind._field_defaults.get(name, MISSING)
            yield ClassField(name, name, name, Any, default, default is MISSING)
    elif hasattr(kind, "__struct_fields__"):
        import msgspec  # noqa: PLC0415 - already loaded, because the class is a Struct

        for field in msgspec.structs.fields(kind):
            default = MISSING if field.default is msgspec.NODEFAULT else field.default
            yield ClassField(field.name, field.encode_name, field.name, Any, default, field.required)
    elif attrs.has(kind):
        for attribute in attrs.fields(kind):
            is_constant = attribute.default is not attrs.NOTHING and not hasattr(attribute.default, "takes_self")
            argument = attribute.alias or attribute.name
            yield ClassField(
                name=attribute.name,
                shown=argument,
                argument=argument if attribute.init else "",
                hint=Any,
                default=attribute.default if is_constant else MISSING,
                required=attribute.default is attrs.NOTHING,
            )
    else:
        for one in dataclasses.fields(kind):
            default = MISSING if one.default is dataclasses.MISSING else one.default
            required = default is MISSING and one.default_factory is dataclasses.MISSING
            yield ClassField(one.name, one.name, one.name if one.init else "", Any, default, required)


def _substitute(hint: Any, values: Mapping[Any, Any]) -> Any:
    """Replace the type variables of a generic class with the given types."""
    if hint in values:
        return values[hint]
    inner = getattr(hint, "__parameters__", ())
    return hint[tuple(values.get(one, Any) for one in inner)] if values and inner and get_origin(hint) else hint


def is_typed_dict(kind: Any) -> bool:
    """Return True if a class is a TypedDict."""
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__required_keys__")


def is_named_tuple(kind: Any) -> bool:
    """Return True if a class is a NamedTuple."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def make_class(kind: Any, name: str, fields: Collection[tuple[str, Any, bool]]) -> Any:
    """
    Return a class of msgspec that has the JSON form of another class, and its docstring in the schema.

    *name* is unique. *fields* are names, types, and whether they are required.
    """
    import msgspec  # noqa: PLC0415 - loaded when the first tool is created

    doc = kind.__doc__ or ""
    # Omit the docstrings that dataclass, NamedTuple and attrs generate.
    own_doc = None if doc.startswith(f"{kind.__name__}(") or doc == dict.__doc__ else kind.__doc__
    if is_named_tuple(kind):
        defaults = [*kind._field_defaults.values()]
        make: Any = collections.namedtuple  # noqa: PYI024 - the fields are known at run time only
        made = make(name, [key for key, _, _ in fields], defaults=defaults)
        made.__annotations__ = {name: field_type for name, field_type, _ in fields}
        made.__doc__ = own_doc
        return made
    config: Any = getattr(kind, "__struct_config__", None)
    is_tagged = config is not None and config.tag_field is not None
    # Not every name in JSON is a name in Python.
    return msgspec.defstruct(
        name,
        [
            (
                f"field_{number}",
                field_type,
                msgspec.field(name=name) if is_required else msgspec.field(default=msgspec.UNSET, name=name),
            )
            for number, (name, field_type, is_required) in enumerate(fields)
        ],
        namespace={"__doc__": own_doc},
        kw_only=True,
        forbid_unknown_fields=config is not None and config.forbid_unknown_fields,
        tag=config.tag if is_tagged else None,
        tag_field=config.tag_field if is_tagged else None,
    )


def get_set_fields(value: Any) -> dict[str, Any]:
    """Return the fields of an instance of `make_class` by JSON name, without omitted ones."""
    import msgspec  # noqa: PLC0415 - already loaded

    pairs = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    found = {name: getattr(value, attribute) for name, attribute in pairs}
    return {name: item for name, item in found.items() if item is not msgspec.UNSET}


def describe_default(default: Any) -> JSONSchema:
    """Return the default of a field as a part of its schema, or {} if it has no JSON form."""
    if default is MISSING or is_field_info(default):
        return {}
    try:
        return {"default": to_jsonable(default)}
    except MamaStructsError:
        return {}
