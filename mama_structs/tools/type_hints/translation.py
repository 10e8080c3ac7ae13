"""
Translation of type hints to types that msgspec can describe and convert.

msgspec supports builtins, containers and classes with fields. Other types, and metadata that msgspec does not know, are
represented by subclasses of `CustomType`. Each has a JSON type for schema and repair, and a function that converts a
value of this type.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import datetime as dt
import decimal
import enum
import functools
import itertools
import json
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import attrs

from mama_structs._internal.jsonable import has_text_form, is_pydantic_model, to_jsonable
from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.tools.type_hints.class_fields import (
    ClassField,
    describe_default,
    find_class_fields,
    get_set_fields,
    has_fields,
    has_own_constructor,
    is_named_tuple,
    is_typed_dict,
    make_class,
)
from mama_structs.tools.type_hints.conversion import (
    LIST_TYPES,
    MAPPING_TYPES,
    SCALAR_TYPES,
    CustomType,
    CustomTypeMeta,
    JSONSchema,
    ObjectField,
    convert_nested,
    get_fields,
    is_custom,
    is_supported,
    make_union,
    read_text,
    read_union,
    unwrap_type,
)
from mama_structs.tools.type_hints.metadata import (
    COMPARISONS,
    LENGTHS,
    Metadata,
    ValueCondition,
    is_field_info,
    is_native_metadata,
    make_check,
    merge_constraints,
    restrict_natively,
    restricts_natively,
)
from mama_structs.tools.type_hints.pydantic_models import (
    add_defaults,
    describe_pydantic_errors,
    find_pydantic_fields,
    get_field_hint,
    is_pydantic_class,
    make_pydantic_schema,
)

# msgspec omits the format, because it also reads times without a time zone.
TIME_FORMATS: Final[Mapping[Any, str]] = {dt.datetime: "date-time", dt.time: "time"}


# Other scalar types have text as their JSON form.
JSON_FORMS: Final[Mapping[Any, str]] = {bool: "bool", int: "integer", float: "number", str: "text"}
UNION_TYPES: Final = (Union, types.UnionType)
ITERABLE_TYPES: Final[frozenset[Any]] = frozenset(
    {collections.abc.Iterable, collections.abc.Container, collections.abc.Reversible, typing.Iterable}
)


# Containers that msgspec does not know. They are read from a list or a dict.
OTHER_LIST_TYPES: Final = (collections.deque,)


OTHER_MAPPING_TYPES: Final = (collections.OrderedDict, collections.Counter, collections.defaultdict)


METADATA_HINT: Final = (
    "remove it, or use a description text, Doc, msgspec.Meta, annotated-types or pydantic.Field without aliases"
)


@attrs.define
class TypeTranslator:
    """
    Translates type hints to msgspec types: of arguments, or with *is_result* of written results.

    Classes with fields become a `CustomType` only where msgspec would read or describe them differently.
    """

    is_result: bool = False
    custom_types: list[Any] = attrs.field(factory=list, init=False)
    _by_hint: dict[Any, Any] = attrs.field(factory=dict, init=False)
    _aliases: list[Any] = attrs.field(factory=list, init=False)

    def translate(self, hint: Any) -> tuple[Any, Any]:
        """
        Return the type for a hint, and the pydantic `FieldInfo` that has its default or None.

        Raise InvalidArgument for metadata that is not understood.
        """
        if not self.is_result and _is_native(hint):
            return hint, None
        return self._translate_with_default(hint)

    def _translate(self, hint: Any) -> Any:
        kind = get_origin(hint) or hint
        made = hint
        if kind is Annotated:
            made = self._translate_annotated(hint)
        elif hasattr(hint, "__supertype__"):
            made = self._translate(hint.__supertype__)
        elif type(kind).__name__ == "TypeAliasType":
            made = self._translate_alias(hint)
        elif kind in UNION_TYPES:
            made = self._translate_union(get_args(hint))
        elif kind is Literal:
            made = self._translate_choices(hint, get_args(hint), "Literal")
        elif kind in TIME_FORMATS:
            made = hint if self.is_result else _add_schema(hint, {"format": TIME_FORMATS[kind]})
        elif isinstance(kind, type) and kind not in SCALAR_TYPES and not is_custom(kind):
            made = self._translate_class(hint, kind)
        return made

    def _translate_alias(self, hint: Any) -> Any:
        alias = get_origin(hint) or hint
        if alias in self._aliases:
            if self.is_result:
                return Any
            raise InvalidArgument(f"the type alias {alias} contains itself", hint="use Any, or a class with fields")
        self._aliases.append(alias)
        value = alias.__value__
        made = self._translate(value[get_args(hint)] if get_args(hint) else value)
        self._aliases.pop()
        return made

    def _translate_union(self, members: Sequence[Any]) -> Any:
        others = [one for one in members if one is not type(None)]
        if len(others) > 1 and not self.is_result and all(is_pydantic_class(unwrap_type(one)) for one in others):
            # pydantic chooses the member itself, such as by a discriminator.
            made = self._make_pydantic(make_union(others))
            return made if len(others) == len(members) else made | None
        return self._join_members([self._translate(one) for one in members])

    def _join_members(self, members: Sequence[Any]) -> Any:
        """Return the union of translated types."""
        union = make_union(members)
        if _is_plain_union(members):
            return union
        others = [one for one in members if one is not type(None)]
        made = self._add("Union", json_type=union, members=others, read=lambda value: read_union(value, others))
        return made if len(others) == len(members) else made | None

    def _translate_choices(self, hint: Any, choices: Iterable[Any], name: str) -> Any:
        """Return the type for values that are read from their JSON form."""
        choices = list(choices)
        if _is_plain(choices):
            return hint
        try:
            by_text = {json.dumps(to_jsonable(one)): one for one in choices}
        except MamaStructsError as cause:
            if self.is_result:
                return Any
            raise InvalidArgument(f"{name} has a value that is no JSON", hint="use strings or numbers") from cause

        def read(value: Any) -> Any:
            if isinstance(value, enum.Enum) and value in choices:
                return value
            try:
                return by_text[json.dumps(value)]
            except (KeyError, TypeError):
                raise ValueError("Invalid enum value") from None

        shown = [*map(json.loads, by_text)]
        json_type = Any if any(isinstance(one, list | dict) for one in shown) else Literal[tuple(shown)]
        return self._add(name, json_type=json_type, schema={"enum": shown}, read=read)

    def _translate_enum(self, kind: Any) -> Any:
        values = [one.value for one in kind]
        if issubclass(kind, enum.Flag):
            return int if self.is_result else self._add_wrapper(kind, int, kind, unwrap=lambda flag: flag.value)
        is_native = any(all(type(one) is scalar for one in values) for scalar in (str, int))
        return kind if is_native and values else self._translate_choices(kind, kind, kind.__name__)

    def _translate_list(self, hint: Any, kind: Any) -> Any:
        inner = tuple(one if one is ... else self._translate(one) for one in get_args(hint))
        if kind in LIST_TYPES:
            return kind[inner] if inner else hint
        listed = types.GenericAlias(list, inner) if inner else list
        if kind in ITERABLE_TYPES:
            # The writer has no form of generators.
            return Any if self.is_result else listed
        return listed if self.is_result else self._add_wrapper(kind, listed, kind, unwrap=list)

    def _translate_mapping(self, hint: Any, kind: Any) -> Any:
        inner = tuple(self._translate(one) for one in get_args(hint))
        if issubclass(kind, collections.Counter):
            inner = (inner[0] if inner else Any, int)
        if self.is_result:
            # The writer converts each key to text.
            return types.GenericAlias(dict, (str, inner[1])) if inner else dict
        if inner and not _is_plain_key(inner[0]):
            # msgspec does not convert keys of custom types, and does not name invalid keys.
            return self._add_key_reader(
                inner[0], self._translate_mapping(types.GenericAlias(kind, (str, get_args(hint)[-1])), kind)
            )
        if kind in MAPPING_TYPES:
            return kind[inner] if inner else hint
        mapped = types.GenericAlias(dict, inner) if inner else dict
        if issubclass(kind, collections.defaultdict):
            found_type = unwrap_type(inner[1]) if inner else None
            item_kind = get_origin(found_type) or found_type
            factory = item_kind if isinstance(item_kind, type) and not is_custom(item_kind) else None
            return self._add_wrapper(kind, mapped, lambda found: kind(factory, found))
        return self._add_wrapper(kind, mapped, kind)

    def _add_wrapper(
        self, kind: Any, json_type: Any, build: Callable[[Any], Any], *, unwrap: Callable[[Any], Any] = dict
    ) -> Any:
        """Return a type that is built from a value of another type. *unwrap* converts a host's instances to it."""

        def read(value: Any) -> Any:
            return build(convert_nested(unwrap(value) if isinstance(value, kind) else value, json_type))

        return self._add(kind.__name__, json_type=json_type, read=read)

    def _add_key_reader(self, key_type: Any, mapping: Any) -> Any:
        """Return a type that reads the keys of a mapping, which *mapping* reads with text as keys."""
        choices = _list_choices(key_type)

        def read_key(key: Any) -> Any:
            try:
                if is_custom(unwrap_type(key_type)) or not isinstance(key, str):
                    return convert_nested(key, key_type)
                # msgspec converts text to numbers in keys only.
                (found,) = convert_nested({key: None}, dict[key_type, None])
            except (ValueError, TypeError) as fault:
                reason = f"must be {' or '.join(map(repr, choices))}" if choices else f"is invalid: {fault}"
                raise ValueError(f"the key {key!r:.80} {reason.partition(' - at ')[0]}") from None
            return found

        def read(value: Any) -> Any:
            if not isinstance(value, Mapping):
                return convert_nested(value, mapping)
            keys = [*map(read_key, value)]
            found = convert_nested({str(number): item for number, item in enumerate(value.values())}, mapping)
            made: dict[Any, Any] = copy.copy(found)
            made.clear()
            made.update(dict(zip(keys, found.values(), strict=True)))
            return made

        schema = {"propertyNames": {"enum": choices}} if choices else {}
        return self._add("dict", json_type=_add_schema(mapping, schema), read=read)

    def _translate_class(self, hint: Any, kind: Any) -> Any:
        made: Any = hint
        if kind in LIST_TYPES or kind in ITERABLE_TYPES or issubclass(kind, OTHER_LIST_TYPES):
            made = self._translate_list(hint, kind)
        elif kind in MAPPING_TYPES or issubclass(kind, OTHER_MAPPING_TYPES):
            made = self._translate_mapping(hint, kind)
        elif issubclass(kind, enum.Enum):
            made = self._translate_enum(kind)
        elif is_pydantic_model(kind):
            made = self._make_pydantic(hint)
        elif has_text_form(kind):
            made = self._add_text(kind, kind.parse, {"title": kind.__name__})
        elif kind is os.PathLike or issubclass(kind, PurePath):
            made = self._add_text(kind, PurePath if kind is os.PathLike else kind, {"format": "path"})
        elif is_pydantic_class(kind) and not self.is_result:
            made = self._make_pydantic(hint)
        elif (fields := find_class_fields(hint)) is not None:
            made = self._make_twin(hint, kind, fields)
        elif self.is_result:
            made = next((one for one in (str, int, float) if issubclass(kind, one)), Any)
        return made

    def _add_text(self, kind: Any, parse: Callable[[str], Any], schema: JSONSchema) -> Any:
        schema = {"type": "string", **schema}
        return self._add(kind.__name__, json_type=str, schema=schema, read=lambda value: read_text(value, kind, parse))

    # Classes with fields

    def _make_twin(self, hint: Any, kind: Any, fields: list[ClassField]) -> Any:
        """Return a type that reads and describes a class by a class of msgspec types."""
        if hint in self._by_hint:
            return self._by_hint[hint]
        # The writer uses the names of attributes.
        is_named = self.is_result and attrs.has(kind)
        shown = {one.name if is_named else one.shown: one for one in fields if self._is_shown(one, kind)}
        defaults: dict[str, Any] = {}

        def read(value: Any) -> Any:
            if not is_typed_dict(kind) and isinstance(value, kind) and not isinstance(value, tuple):
                return value
            found = convert_nested(value, made.json_type)
            if isinstance(found, tuple):
                return kind(*found)
            values = add_defaults(get_set_fields(found), defaults)
            return kind(**{shown[name].argument: item for name, item in values.items()})

        def find_fields() -> dict[str, ObjectField] | None:
            return None if is_named_tuple(kind) else get_fields(made.json_type)

        name = self._find_unused_name(kind.__name__)
        made = self._add(name, read=read, get_fields=find_fields)
        self._by_hint[hint] = made
        json_fields = [(key, *self._translate_field(one, kind)) for key, one in shown.items()]
        defaults.update({key: default for key, _, default in json_fields if default is not None})
        made.json_type = make_class(
            kind, name, [(key, one, shown[key].required and default is None) for key, one, default in json_fields]
        )
        return made

    def _find_unused_name(self, name: str) -> str:
        used = {one.__name__ for one in self.custom_types}
        return next(
            new for number in itertools.count(1) if (new := name if number == 1 else f"{name}_{number}") not in used
        )

    def _is_shown(self, field: ClassField, kind: Any) -> bool:
        """Return True if a field is in the JSON form of a class: written, or an argument of the constructor."""
        if is_typed_dict(kind) or is_named_tuple(kind):
            return True
        return not field.name.startswith("_") if self.is_result else bool(field.argument)

    def _translate_field(self, field: ClassField, kind: Any) -> tuple[Any, Any]:
        """Return the type of a field, and the pydantic `FieldInfo` that has its default or None."""
        hint = Annotated[field.hint, field.default] if is_field_info(field.default) else field.hint
        try:
            made, default = self._translate_with_default(hint)
        except InvalidArgument as fault:
            raise InvalidArgument(f"field {field.name} of {kind.__name__}: {fault.args[0]}", hint=fault.hint) from fault
        return made if self.is_result else _add_schema(made, describe_default(field.default)), default

    def _translate_with_default(self, hint: Any) -> tuple[Any, Any]:
        if get_origin(hint) is not Annotated:
            return self._translate(hint), None
        default = None if self.is_result else Metadata.parse(hint.__metadata__).default
        return self._translate_annotated(hint, takes_default=True), default

    # Annotated

    def _translate_annotated(self, hint: Any, *, takes_default: bool = False) -> Any:
        import msgspec  # noqa: PLC0415 - loaded when the first tool is created

        base, metadata = get_args(hint)[0], Metadata.parse(hint.__metadata__)
        if not self.is_result:
            if metadata.unknown is not None:
                raise InvalidArgument(f"the metadata {metadata.unknown!r:.120} is not understood", hint=METADATA_HINT)
            if metadata.default is not None and not takes_default:
                raise InvalidArgument("a type inside another type has a default", hint="remove it")
            if metadata.needs_pydantic:
                return self._make_pydantic(hint)
        kind = self._translate(base)
        try:
            kind, words = self._constrain(kind, metadata)
        except InvalidArgument:
            if not self.is_result:
                raise
            words = []
        notes, extra = dict(metadata.notes), dict(metadata.extra_schema)
        if words:
            notes["description"] = f"{notes.get('description', '')} (must {' and '.join(words)})".strip()
        if extra:
            notes["extra_json_schema"] = extra
        return Annotated[kind, msgspec.Meta(**notes)] if notes else kind

    def _constrain(self, kind: Any, metadata: Metadata) -> tuple[Any, list[str]]:
        """Return a type with constraints, and descriptions of the constraints that JSON Schema does not have."""
        if get_origin(kind) in UNION_TYPES and (
            metadata.constraints or (metadata.checks and type(None) in get_args(kind))
        ):
            return self._constrain_union(kind, metadata)
        meta, others = merge_constraints(kind, metadata.constraints)
        made_checks = [*metadata.checks]
        extra: JSONSchema = {}
        words = [check.words for check in metadata.checks]
        for keyword, value in (*meta.items(), *others):
            native = keyword in meta and meta[keyword] is value and restrict_natively(kind, {keyword: value})
            if native:
                kind = native
                continue
            check = make_check(kind, keyword, value)
            made_checks.append(check)
            if keyword in COMPARISONS and isinstance(value, int | float | decimal.Decimal):
                extra[COMPARISONS[keyword][0]] = value if isinstance(value, int) else float(value)
            elif keyword in LENGTHS and not is_custom(unwrap_type(kind)):
                extra[LENGTHS[keyword][0]] = value
            else:
                words.append(check.words)
        if made_checks and not self.is_result:
            kind = self._add_checks(kind, made_checks, extra)
        return kind, words

    def _constrain_union(self, union: Any, metadata: Metadata) -> tuple[Any, list[str]]:
        """Constrain each member of a union, and check the conditions for the converted value except None."""
        bounds = attrs.evolve(metadata, checks=[])
        made = [(one, []) if one is type(None) else self._constrain(one, bounds) for one in get_args(union)]
        words = dict.fromkeys(word for _, words in made for word in words)
        kinds = [one for one, _ in made]
        if not metadata.checks:
            return self._join_members(kinds), [*words]
        others = [one for one in kinds if one is not type(None)]
        checked, more = self._constrain(
            self._join_members(others) if len(others) > 1 else others[0], attrs.evolve(metadata, constraints=[])
        )
        return checked if len(others) == len(kinds) else checked | None, [*words, *more]

    def _add_checks(self, kind: Any, checks: list[ValueCondition], extra: JSONSchema) -> Any:
        def read(value: Any) -> Any:
            found = convert_nested(value, kind)
            for check in checks:
                if not check.is_met(found):
                    raise ValueError(f"it must {check.words}")
            return found

        return self._add(
            "Checked", json_type=_add_schema(kind, extra), read=read, get_fields=lambda: get_fields(unwrap_type(kind))
        )

    # pydantic

    def _make_pydantic(self, hint: Any) -> Any:
        """Return a type that pydantic reads and describes."""
        with contextlib.suppress(KeyError, TypeError):
            return self._by_hint[hint]
        pydantic = sys.modules["pydantic"]
        base = unwrap_type(hint)
        name = getattr(base, "__name__", "pydantic")
        try:
            adapter = pydantic.TypeAdapter(hint)
            schema = make_pydantic_schema(adapter, is_result=self.is_result)
        except (TypeError, RuntimeError, NameError) as cause:
            if self.is_result:
                return Any
            reason = str(cause).partition("\n")[0]
            raise InvalidArgument(f"{name} is rejected by pydantic: {reason:.200}") from cause

        def read(value: Any) -> Any:
            try:
                text = json.dumps(value)
            except TypeError:
                text = None
            try:
                # A host may pass Python objects.
                return adapter.validate_python(value) if text is None else adapter.validate_json(text)
            except pydantic.ValidationError as fault:
                raise ValueError(describe_pydantic_errors(fault)) from fault

        made = self._add(
            name,
            schema=schema,
            read=read,
            get_fields=functools.cache(lambda: find_pydantic_fields(base, self._translate_for_repair)),
            get_repair_type=functools.cache(lambda: self._find_repair_type(hint, base)),
        )
        with contextlib.suppress(TypeError):
            self._by_hint[hint] = made
        return made

    def _find_repair_type(self, hint: Any, base: Any) -> Any:
        """Return the type that has the JSON form of a pydantic type without fields."""
        if get_origin(base) in UNION_TYPES:
            return make_union(map(self._translate_for_repair, get_args(base)))
        if getattr(base, "__pydantic_root_model__", False):
            return self._translate_for_repair(get_field_hint(base.__pydantic_fields__["root"]))
        return Any if is_pydantic_class(base) or base is hint else self._translate_for_repair(base)

    def _translate_for_repair(self, hint: Any) -> Any:
        try:
            return self._translate(hint)
        except InvalidArgument:
            return Any

    def _add(self, name: str, **attributes: Any) -> Any:
        defaults = {"get_fields": lambda: None, "get_repair_type": lambda: None}
        made = CustomTypeMeta(name, (CustomType,), {**defaults, **attributes})
        self.custom_types.append(made)
        return made


def _is_plain_union(kinds: Iterable[Any]) -> bool:
    """
    Return True if msgspec supports a union of translated types.

    It does not ask msgspec, which crashes the process for the unions that `_has_fixed_tuple` describes.
    """
    forms = [form for kind in kinds for form in _list_json_forms(kind)]
    return len(forms) == len(set(forms)) and ("other" not in forms or len(forms) == 1)


def _is_fixed_tuple(kind: Any) -> bool:
    kind = unwrap_type(kind)
    return get_origin(kind) is tuple and ... not in get_args(kind)


def _has_fixed_tuple(union: Any) -> bool:
    """Return True for a union of ``tuple[int, str]`` with other types. If they have bounds, msgspec 0.22 crashes."""
    members = [one for one in get_args(union) if one is not type(None)]
    return len(members) > 1 and any(map(_is_fixed_tuple, members))


def _list_json_forms(kind: Any) -> list[str]:  # noqa: PLR0911 - one return for each kind of type
    """Return the kinds of JSON values that a translated type has, without null."""
    inner = unwrap_type(kind)
    origin = get_origin(inner) or inner
    if origin in UNION_TYPES:
        return [form for one in get_args(inner) for form in _list_json_forms(one)]
    if origin is Literal:
        return [*{JSON_FORMS[type(one)]: None for one in get_args(inner) if one is not None}]
    if origin is type(None):
        return []
    if not isinstance(origin, type) or is_custom(origin) or origin is object:
        return ["other"]
    if issubclass(origin, enum.Enum):
        return [*{JSON_FORMS.get(type(one.value), "other"): None for one in origin}]
    if origin in LIST_TYPES or is_named_tuple(origin):
        return ["other" if _is_fixed_tuple(inner) else "array"]
    if origin in MAPPING_TYPES or has_fields(origin):
        return ["object"]
    return [JSON_FORMS.get(origin, "text")] if origin in SCALAR_TYPES else ["other"]


def _is_plain_key(kind: Any) -> bool:
    return kind in (str, Any, object) or isinstance(kind, TypeVar)


def _list_choices(kind: Any) -> list[str]:
    """Return the texts of the values of a translated enum or Literal, or [] for other types."""
    inner = unwrap_type(kind)
    if is_custom(inner):
        values = (inner.schema or {}).get("enum", [])
    elif get_origin(inner) is Literal:
        values = get_args(inner)
    else:
        members: Iterable[Any] = inner if isinstance(inner, enum.EnumMeta) else ()
        values = [one.value for one in members]
    return [one if isinstance(one, str) else json.dumps(one) for one in values]


def _add_schema(kind: Any, schema: JSONSchema) -> Any:
    """Return a type with further keywords in its schema."""
    import msgspec  # noqa: PLC0415 - loaded when the first tool is created

    return Annotated[kind, msgspec.Meta(extra_json_schema=schema)] if schema else kind


def _is_native(hint: Any) -> bool:
    """Return True if msgspec reads and describes a hint, and all types in it, as this module does."""
    waiting: list[Any] = [hint]
    seen: list[Any] = []
    while waiting:
        node = waiting.pop()
        if not any(node is one for one in seen):
            seen.append(node)
            parts = _find_native_parts(node)
            if parts is None:
                return False
            waiting.extend(parts)
    return is_supported(hint)


def _find_native_parts(hint: Any) -> Sequence[Any] | None:
    """Return the types in a hint, or None if msgspec does not support the hint itself."""
    kind = get_origin(hint) or hint
    parts: Sequence[Any] | None = ()
    if kind is Annotated:
        base, metadata = get_args(hint)[0], hint.__metadata__
        parts = [base] if is_native_metadata(metadata) and restricts_natively(base, metadata) else None
    elif hasattr(hint, "__supertype__"):
        parts = (hint.__supertype__,)
    elif type(kind).__name__ == "TypeAliasType":
        parts = (kind.__value__,)
    elif kind in UNION_TYPES:
        parts = None if _has_fixed_tuple(hint) else get_args(hint)
    elif kind is Literal:
        parts = () if _is_plain(get_args(hint)) else None
    elif kind in LIST_TYPES or kind in MAPPING_TYPES:
        parts = [one for one in get_args(hint) if one is not ...]
        parts = None if parts and kind in MAPPING_TYPES and not _is_plain_key(parts[0]) else parts
    elif kind in TIME_FORMATS:
        parts = None
    elif isinstance(kind, type) and kind not in SCALAR_TYPES:
        parts = _find_native_class_parts(hint, kind)
    return parts


def _find_native_class_parts(hint: Any, kind: Any) -> Sequence[Any] | None:
    if issubclass(kind, enum.Enum):
        return () if is_supported(kind) and not issubclass(kind, enum.Flag) else None
    if is_pydantic_class(kind) or has_text_form(kind) or has_own_constructor(kind):
        return None
    fields = find_class_fields(hint)
    if fields is None or any(is_field_info(one.default) for one in fields):
        return None
    return [one.hint for one in fields]


def _is_plain(choices: Iterable[Any]) -> bool:
    """Return True if msgspec supports the choices of a `Literal`."""
    return all(isinstance(one, str | int | None) and not isinstance(one, enum.Enum) for one in choices)
