"""
Convert a tool's JSON Schema to the plain or strict form that model providers accept.

Pure functions of schemas. The strict form uses only the keywords that OpenAI, Azure and Anthropic all support:
``type``, ``enum``, ``anyOf``, ``items``, ``properties``, ``$ref`` and descriptions. An unsupported keyword would make
the provider reject the whole request. The constraints of other keywords are described in words in the description,
and the tool still validates them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from mama_structs.tools.schema import (
    DEFINITION_PREFIX,
    JSONSchema,
    find_recursive_definitions,
    iterate_subschemas,
    referenced_definitions,
)

_SCALAR_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "null"})
# Keywords that do not restrict values. Strict schemas omit them; `_describe` adds useful defaults to descriptions.
_ANNOTATION_KEYWORDS: Final = frozenset(
    ("$comment", "$schema", "default", "deprecated", "description", "discriminator", "examples", "readOnly", "title")
) | {"writeOnly"}
# Constraints that strict schemas omit and descriptions state instead. The tool rejects values that violate them.
_CONSTRAINT_KEYWORDS: Final = frozenset(
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern")
) | {"minItems", "maxItems", "uniqueItems", "format", "contentEncoding", "contentMediaType"}
_MAX_DEFAULT_CHARS: Final = 80
_MAX_DESCRIBED_LENGTH: Final = 1000
_CONSTRAINT_TEMPLATES: Final[Mapping[str, str]] = {
    "exclusiveMinimum": "above {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "a multiple of {}",
    "pattern": "matching {}",
    "format": "as {}",
    "contentEncoding": "in {}",
    "contentMediaType": "of type {}",
}

# OpenAI's limits on one strict schema (structured outputs, supported schemas).
_MAX_DEPTH: Final = 10
_MAX_PROPERTIES: Final = 5000
_MAX_ENUM_VALUES: Final = 1000
_MAX_CHARACTERS: Final = 120_000
_LARGE_ENUM_VALUES: Final = 250
_MAX_LARGE_ENUM_CHARACTERS: Final = 15_000


class _NoStrictFormError(Exception):
    """Raised if a schema has no strict form. Internal to this module."""


def to_plain_schema(schema: Mapping[str, Any]) -> JSONSchema:
    """Copy a schema and add the ``items`` that OpenAI requires in every array."""
    copied = copy.deepcopy(dict(schema))
    for node in iterate_subschemas(copied):
        if "array" in _list_types(node) and "items" not in node and "prefixItems" not in node:
            node["items"] = {}
    return copied


def to_strict_schema(schema: Mapping[str, Any], *, nullable: bool = True) -> JSONSchema | None:
    """Return the strict form of a tool schema, or None if it has none."""
    # Strict objects forbid additional properties.
    # Free-form objects, untyped values, untyped or tuple arrays and schemas above OpenAI's limits have no strict form.
    # With *nullable*, optional properties are required but may be null.
    return _write_strict_schema(schema, nullable=nullable, require_all=nullable)


def to_adaptable_schema(schema: Mapping[str, Any]) -> JSONSchema:
    """
    Return a schema for frameworks that make schemas strict themselves, by requiring all properties.

    Optional properties may be omitted or null. A schema without a strict form is returned in its plain form.
    """
    form = _write_strict_schema(schema, nullable=True, require_all=False)
    return to_plain_schema(schema) if form is None else form


def to_always_strict_schema(schema: Mapping[str, Any], *, require_all: bool) -> JSONSchema:
    """
    Return a schema for frameworks that send either all tools in strict mode or none.

    A free-form object or array becomes JSON text, which argument repair parses. In strict mode, the framework would
    change the object to one that can only be ``{}``. A value that may be text, such as `Any`, has no such form: it is
    left untyped, so that OpenAI rejects it in strict mode. With *require_all*, optional properties are required but may
    be null.
    """
    form = _write_strict_schema(schema, nullable=True, require_all=require_all)
    if form is not None:
        return form
    definitions = schema.get("$defs", {})
    writer = _StrictSchemaWriter(
        nullable=True, require_all=require_all, definitions=definitions, free_form_as_text=True
    )

    def write(node: JSONSchema, *, optional: bool = False) -> JSONSchema:
        try:
            return writer.write(node, optional=optional)
        except (_NoStrictFormError, RecursionError):
            plain = to_plain_schema(node)
            return {"anyOf": [plain, {}]} if plain.keys() - _ANNOTATION_KEYWORDS else plain

    required = frozenset(_as_list(schema.get("required")))
    properties = {name: write(one, optional=name not in required) for name, one in schema.get("properties", {}).items()}
    written = {
        **to_plain_schema(schema),
        "properties": properties,
        "required": [name for name in properties if require_all or name in required],
        "additionalProperties": schema.get("additionalProperties", False),
    }
    return {**written, "$defs": {name: write(one) for name, one in definitions.items()}} if definitions else written


def _write_strict_schema(schema: Mapping[str, Any], *, nullable: bool, require_all: bool) -> JSONSchema | None:
    definitions = schema.get("$defs", {})
    try:
        strict = _StrictSchemaWriter(nullable=nullable, require_all=require_all, definitions=definitions)
        root = strict.write({key: value for key, value in schema.items() if key != "$defs"})
        if root.get("type") != "object":
            return None
        written = {name: strict.write(definitions[name]) for name in referenced_definitions(schema, definitions)}
        if written:
            root["$defs"] = {name: written[name] for name in definitions if name in written}
        return root if _is_within_limits(root) else None
    except (_NoStrictFormError, RecursionError):
        return None


def is_recursive(schema: Mapping[str, Any]) -> bool:
    """Return True if a definition of a schema contains itself."""
    return bool(find_recursive_definitions(schema.get("$defs", {})))


@attrs.frozen(kw_only=True)
class _StrictSchemaWriter:
    nullable: bool
    require_all: bool
    definitions: Mapping[str, Any]
    free_form_as_text: bool = False

    def write(self, node: Any, *, optional: bool = False) -> JSONSchema:
        """Return a schema's strict form. For an *optional* value, the description states the default."""
        if not isinstance(node, dict):
            raise _NoStrictFormError
        form, default = self._convert_form(node), _describe_default(node) if optional else ""
        if optional and self.nullable and not _accepts_null(form):
            # A framework that makes schemas strict itself may skip the items of an array with two types.
            form = _make_nullable(form, as_union=not self.require_all and "items" in form)
        remarks = [form.pop("description", ""), f"default {default}" if default else ""]
        description = _describe(node, "; ".join(filter(None, remarks)))
        if description and "$ref" in form:
            # The strict form of JSON Schema allows no keywords next to "$ref", so wrap the reference in "anyOf".
            form = {"anyOf": [form]}
        return {"description": description, **form} if description else form

    def _convert_form(self, node: JSONSchema) -> JSONSchema:
        if "$ref" in node:
            _reject_other_keywords(node, {"$ref"})
            self._find_definition(node)
            return {"$ref": node["$ref"]}
        # If the value may be text, argument repair does not parse text.
        is_ambiguous = self.free_form_as_text and self._accepts_text(node)
        writer = attrs.evolve(self, free_form_as_text=False) if is_ambiguous else self
        for keyword in ("anyOf", "oneOf"):
            if keyword in node:
                _reject_other_keywords(node, {keyword})
                return {"anyOf": [writer.write(one) for one in _as_list(node[keyword])]}
        if "enum" in node or "const" in node:
            return _convert_enum(node)
        return _build_union([writer._convert_type(node, kind) for kind in _list_types(node)])

    def _find_definition(self, node: JSONSchema) -> Any:
        name = node["$ref"]
        if not isinstance(name, str) or name.removeprefix(DEFINITION_PREFIX) not in self.definitions:
            raise _NoStrictFormError
        return self.definitions[name.removeprefix(DEFINITION_PREFIX)]

    def _accepts_text(self, node: Any) -> bool:
        """Return True for a schema without a type, or with strings among its types."""
        if not isinstance(node, dict):
            return True
        if "$ref" in node:
            return self._accepts_text(self._find_definition(node))
        branches = [one for keyword in ("anyOf", "oneOf") for one in _as_list(node.get(keyword))]
        if branches:
            return any(map(self._accepts_text, branches))
        if "enum" in node or "const" in node:
            return False
        return "type" not in node or "string" in _list_types(node)

    def _convert_type(self, node: JSONSchema, kind: object) -> JSONSchema:
        try:
            _reject_other_keywords(
                node, {"type", "items", "properties", "required", "additionalProperties", *_CONSTRAINT_KEYWORDS}
            )
            if kind == "object":
                return self._convert_object(node)
            if kind == "array":
                return {"type": "array", "items": self.write(node.get("items"))}
        except _NoStrictFormError:
            if not self.free_form_as_text or kind not in {"object", "array"}:
                raise
            return {"type": "string", "description": _describe_json_text(node, kind)}
        if kind not in _SCALAR_TYPES:
            raise _NoStrictFormError
        return {"type": kind}

    def _convert_object(self, node: JSONSchema) -> JSONSchema:
        closed = node.get("additionalProperties") is False
        properties = node.get("properties", {} if closed else None)
        if not isinstance(properties, dict) or not (closed or "additionalProperties" not in node):
            raise _NoStrictFormError
        required = frozenset(_as_list(node.get("required")))
        written = {name: self.write(one, optional=name not in required) for name, one in properties.items()}
        return {
            "type": "object",
            "properties": written,
            "required": [name for name in written if self.require_all or name in required],
            "additionalProperties": False,
        }


def _build_union(forms: list[JSONSchema]) -> JSONSchema:
    if not forms:
        raise _NoStrictFormError
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _describe(node: JSONSchema, remark: str) -> str:
    """Return a schema's description, with *remark* and the constraints omitted by strict form."""
    added = "; ".join(filter(None, [*_describe_constraints(node), remark]))
    description = node.get("description")
    if not isinstance(description, str) or not description:
        return added
    return f"{description} ({added})" if added else description


def _describe_json_text(node: JSONSchema, kind: object) -> str:
    """Return the description of a value that is passed as JSON text."""
    details = {key: value for key, value in node.items() if key == "type" or key not in _ANNOTATION_KEYWORDS}
    text = json.dumps({**details, "type": kind}, ensure_ascii=False)
    is_shown = len(details) > 1 and len(text) <= _MAX_DESCRIBED_LENGTH
    return f"JSON text of an {kind}, with the schema {text}" if is_shown else f"JSON text of an {kind}"


def _describe_constraints(node: JSONSchema) -> Iterator[str]:
    """
    Yield descriptions of the constraints that strict form omits.

    Very large lengths are left out.
    """
    yield from _describe_range(node.get("minimum"), node.get("maximum"))
    yield from _describe_range(
        _omit_large_length(node.get("minLength")), _omit_large_length(node.get("maxLength")), "characters"
    )
    yield from _describe_range(
        _omit_large_length(node.get("minItems")), _omit_large_length(node.get("maxItems")), "items"
    )
    for keyword, words in _CONSTRAINT_TEMPLATES.items():
        if keyword in node:
            yield words.format(node[keyword])
    if node.get("uniqueItems") is True:
        yield "none twice"


def _omit_large_length(number: Any) -> Any:
    return number if isinstance(number, int) and 0 < number < _MAX_DESCRIBED_LENGTH else None


def _describe_range(minimum: Any, maximum: Any, unit: str = "") -> Iterator[str]:
    of = f" {unit}" if unit else ""
    if unit and minimum == 1 and maximum is None:
        yield "not empty"
    elif minimum is not None and maximum is not None:
        yield f"{minimum} to {maximum}{of}"
    elif minimum is not None:
        yield f"at least {minimum}{of}"
    elif maximum is not None:
        yield f"at most {maximum}{of}"


def _convert_enum(node: JSONSchema) -> JSONSchema:
    """Return an enum with a type, as strict schemas require; mixed types become an anyOf."""
    _reject_other_keywords(node, {"enum", "const", "type"})
    values = _as_list(node["enum"]) if "enum" in node else [node["const"]]
    by_kind: dict[str, list[Any]] = {}
    for value in values:
        kind = _TYPE_NAMES.get(type(value))
        if kind is None:
            raise _NoStrictFormError
        by_kind.setdefault(kind, []).append(value)
    return _build_union(
        [{"type": kind} if kind == "null" else {"type": kind, "enum": of} for kind, of in by_kind.items()]
    )


_TYPE_NAMES: Final[Mapping[type, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def _accepts_null(form: JSONSchema) -> bool:
    """Return True if a strict schema already accepts null."""
    return "null" in _list_types(form) or any(map(_accepts_null, form.get("anyOf", ())))


def _make_nullable(form: JSONSchema, *, as_union: bool = False) -> JSONSchema:
    """Return a strict schema that also accepts null, in the shortest form, because each request contains it."""
    if as_union or "type" not in form:
        return {"anyOf": [*form.get("anyOf", [form]), {"type": "null"}]}
    nullable = {**form, "type": [form["type"], "null"]}
    return {**nullable, "enum": [*form["enum"], None]} if "enum" in form else nullable


# Defaults that descriptions do not mention, as JSON.
_EMPTY_DEFAULTS: Final = frozenset({"null", '""', "[]", "{}"})


def _describe_default(node: JSONSchema) -> str:
    """Return a schema's default as JSON for its description, or "" if it is missing or empty."""
    if "default" not in node:
        return ""
    text = json.dumps(node["default"], ensure_ascii=False)
    if text in _EMPTY_DEFAULTS:
        return ""
    return text if len(text) <= _MAX_DEFAULT_CHARS else f"{text[:_MAX_DEFAULT_CHARS]}…"


def _reject_other_keywords(node: JSONSchema, known: Iterable[str]) -> None:
    if node.keys() - _ANNOTATION_KEYWORDS - frozenset(known):
        raise _NoStrictFormError


def _list_types(node: JSONSchema) -> list[Any]:
    kind = node.get("type")
    return kind if isinstance(kind, list) else [] if kind is None else [kind]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_within_limits(schema: JSONSchema) -> bool:
    """Return True if a strict schema is within OpenAI's limits."""
    nodes = list(iterate_subschemas(schema))
    names = [name for node in nodes for key in ("properties", "$defs") for name in node.get(key, ())]
    enums = [[str(value) for value in node["enum"]] for node in nodes if "enum" in node]
    properties = sum(len(node.get("properties", ())) for node in nodes)
    return (
        properties <= _MAX_PROPERTIES
        and sum(map(len, enums)) <= _MAX_ENUM_VALUES
        and sum(map(len, names)) + sum(len(value) for values in enums for value in values) <= _MAX_CHARACTERS
        and all(
            len(values) <= _LARGE_ENUM_VALUES or sum(map(len, values)) <= _MAX_LARGE_ENUM_CHARACTERS for values in enums
        )
        and max(map(_compute_depth, [schema, *schema.get("$defs", {}).values()])) <= _MAX_DEPTH
    )


def _compute_depth(node: JSONSchema) -> int:
    """Return the nesting depth of objects in a schema."""
    inner = [*node.get("properties", {}).values(), *node.get("anyOf", ())]
    if "items" in node:
        inner.append(node["items"])
    return ("properties" in node) + max(map(_compute_depth, inner), default=0)
