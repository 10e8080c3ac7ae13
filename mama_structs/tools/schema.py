"""JSON Schemas (2020-12) of functions, and validation of a model's arguments."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Annotated, Any, Final, get_args, get_origin

import attrs

from mama_structs._internal.event_loop import is_model_call
from mama_structs._internal.introspection import find_layers, find_partial_keywords, get_added_parameters
from mama_structs._internal.jsonable import to_jsonable
from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.tools.argument_repair import coerce, describe_value, find_similar_name, fix_names, means_default
from mama_structs.tools.type_hints.class_fields import find_typed_keys
from mama_structs.tools.type_hints.conversion import cached_results, convert
from mama_structs.tools.type_hints.metadata import is_field_info
from mama_structs.tools.type_hints.pydantic_models import add_defaults
from mama_structs.tools.type_hints.translation import TypeTranslator

JSONSchema = dict[str, Any]

DEFINITION_PREFIX = "#/$defs/"
# Keywords whose value is, in this order: one schema, a list of schemas, a mapping from names to schemas.
SCHEMA_KEYWORDS = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
SCHEMA_LIST_KEYWORDS = ("anyOf", "oneOf", "allOf", "prefixItems")
SCHEMA_MAP_KEYWORDS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
DATA_KEYWORDS = frozenset({"const", "default", "enum", "examples"})
TYPE_NOUNS = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
# For each range: the keywords of minimum and maximum, the preposition before the range in a message, and the unit.
RANGE_KEYWORDS = (
    ("minimum", "maximum", "from", ""),
    ("minLength", "maxLength", "of", "character"),
    ("minItems", "maxItems", "of", "item"),
)
CONSTRAINT_PHRASES = {
    "exclusiveMinimum": "above {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "that is a multiple of {}",
    "pattern": "matching {}",
    "format": "({})",
    "contentEncoding": "in {}",
}
# Formats for which an example helps models more than the name.
FORMAT_NOUNS = {
    "date-time": "a date and time such as '2026-01-31T12:00:00Z'",
    "date": "a date such as '2026-01-31'",
    "time": "a time such as '12:00:00'",
    "duration": "a duration such as 'PT1H30M'",
    "path": "a path such as 'notes/plan.md'",
    "uuid": "a UUID such as '123e4567-e89b-12d3-a456-426614174000'",
}
# Formats whose standard excludes texts that the writer writes, such as times without a time zone.
WRITTEN_FORMATS = {"date-time": "ISO 8601 date and time", "time": "ISO 8601 time", "duration": "ISO 8601 duration"}
MAX_DESCRIBED_FIELDS = 12


def make_result_schema(kind: Any) -> JSONSchema:
    """Return the schema of a type in the form of `to_answer`, or ``{}`` if it is unknown."""
    translator = TypeTranslator(is_result=True)
    try:
        (schema,), components = _make_components([translator.translate(kind)[0]], translator)
    except (TypeError, InvalidArgument):
        return {}
    (schema,), definitions = _tidy([schema], components, writing=True)
    if "$ref" in schema:
        schema = {**definitions[schema.pop("$ref").removeprefix(DEFINITION_PREFIX)], **schema}
    return {**schema, "$defs": definitions} if definitions else schema


def describe_schema(schema: JSONSchema) -> str:
    """Describe a schema in words, such as ``an integer from 0 to 2`` or ``'a', 'b' or null``."""
    *others, last = dict.fromkeys(_describe_alternatives(schema))
    return f"{', '.join(others)} or {last}" if others else last


def _translate_hints(hints: Mapping[str, Any], translator: TypeTranslator) -> dict[str, tuple[Any, Any]]:
    """Return the type and the pydantic default of each parameter."""
    translated = {}
    for name, hint in hints.items():
        try:
            translated[name] = translator.translate(hint)
        except InvalidArgument as fault:
            raise InvalidArgument(f"parameter {name}: {fault.args[0]}", hint=fault.hint) from fault
    return translated


def _make_schemas(
    kinds: Mapping[str, Any], hints: Mapping[str, Any], translator: TypeTranslator, descriptions: Mapping[str, str]
) -> tuple[dict[str, JSONSchema], dict[str, JSONSchema]]:
    """Create the schemas of parameters and the definitions of their recursive types."""
    # A description in the metadata replaces the description in the docstring.
    try:
        schemas, components = _make_components(kinds.values(), translator, [descriptions.get(name) for name in kinds])
    except TypeError as cause:
        raise _make_unsupported_type_error(kinds, hints, translator) from cause
    tidied, definitions = _tidy(schemas, components)
    return dict(zip(kinds, tidied, strict=True)), definitions


def _make_components(
    kinds: Iterable[Any], translator: TypeTranslator, descriptions: Sequence[str | None] = ()
) -> tuple[list[JSONSchema], dict[str, JSONSchema]]:
    """Return the schemas of types and the definitions to which they refer."""
    import msgspec  # noqa: PLC0415 - loaded when the first tool is created

    names = {one: f"{DEFINITION_PREFIX}custom {number}" for number, one in enumerate(translator.custom_types)}

    def describe(kind: type) -> JSONSchema:
        if kind in names:
            return {"$ref": names[kind]}
        if kind is object or translator.is_result:
            # msgspec would treat an empty schema as missing. `_tidy` removes this placeholder.
            return {"$comment": "anything"}
        # Raising this makes msgspec reject the type.
        raise NotImplementedError

    own = [*kinds]
    inner = [part for one in names if one.schema is None for part in (one.members or [one.json_type])]
    found, components = msgspec.json.schema_components(
        [*own, *inner], schema_hook=describe, ref_template=f"{DEFINITION_PREFIX}{{name}}"
    )
    schemas, rest = list(found[: len(own)]), iter(found[len(own) :])
    custom = {
        name: _move_definitions(one.schema, components)
        if one.schema is not None
        else {"anyOf": [next(rest) for _ in one.members]}
        if one.members
        else next(rest)
        for one, name in names.items()
    }
    described = (
        {"description": text, **schema} if text else schema
        for text, schema in itertools.zip_longest(descriptions[: len(schemas)], schemas)
    )

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(item) for item in node]
        if not isinstance(node, dict):
            return node
        if isinstance(reference := node.get("$ref"), str) and reference in custom:
            siblings = {key: value for key, value in node.items() if key != "$ref"}
            return {**resolve(custom[reference]), **siblings}
        return _map_subschemas(node, resolve)

    return [*map(resolve, described)], {name: resolve(one) for name, one in components.items()}


def _move_definitions(schema: JSONSchema, components: dict[str, JSONSchema]) -> JSONSchema:
    """Move the definitions of a pydantic schema to *components*. A name that exists with another schema is changed."""
    definitions = schema.get("$defs", {})
    new_names: dict[str, str] = {}
    for name, one in definitions.items():
        new_names[name] = name
        while components.get(new_names[name], one) != one:
            new_names[name] += "_"

    def rename(node: Any) -> Any:
        if isinstance(node, list):
            return [rename(item) for item in node]
        if not isinstance(node, dict):
            return node
        made = _map_subschemas({key: value for key, value in node.items() if key != "$defs"}, rename)
        if isinstance(reference := node.get("$ref"), str):
            name = reference.removeprefix(DEFINITION_PREFIX)
            made["$ref"] = f"{DEFINITION_PREFIX}{new_names.get(name, name)}"
        return made

    components.update({new_names[name]: rename(one) for name, one in definitions.items()})
    return dict(rename(schema))


def _make_unsupported_type_error(
    kinds: Mapping[str, Any], hints: Mapping[str, Any], translator: TypeTranslator
) -> InvalidArgument:
    """Return the error that names the first parameter whose type msgspec rejects."""
    for name, kind in kinds.items():
        try:
            _make_components([kind], translator)
        except TypeError as fault:
            hint = hints[name]
            shown = hint.__qualname__ if isinstance(hint, type) else str(hint)
            reason = str(fault).partition(" - type ")[0]
            if "custom types" in reason:
                reason = "JSON has no form of it"
            return InvalidArgument(
                f"parameter {name}: {shown:.120} cannot be offered to a model: {reason}",
                hint=(
                    "take what JSON has: str, int, float, bool, list, dict, Literal, enums, times, or dataclasses, "
                    "attrs classes and pydantic models of these"
                ),
            )
    return InvalidArgument(f"the types of {', '.join(hints)} cannot be offered to a model together")


def _tidy(
    schemas: Iterable[JSONSchema], components: Mapping[str, JSONSchema], *, writing: bool = False
) -> tuple[list[JSONSchema], dict[str, JSONSchema]]:
    """
    Inline and correct the schemas from msgspec.

    Also return the definitions of recursive types.
    """
    apart = find_recursive_definitions(components)
    # Drop discriminators, because they refer to components, which are inlined.
    # Different items of a written set, such as NaN and infinity, may be written alike. The keys of a written mapping
    # are texts of any form.
    dropped = {"$comment", "discriminator", *(("propertyNames", "uniqueItems") if writing else ())}

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        name = node.get("$ref", "").removeprefix(DEFINITION_PREFIX)
        if name in components and name not in apart:
            siblings = {key: value for key, value in node.items() if key != "$ref"}
            return {**walk(components[name]), **walk(siblings)}
        node = _map_subschemas({key: value for key, value in node.items() if key not in dropped}, walk)
        return _describe_written(node) if writing else _describe_read(node)

    return list(map(walk, schemas)), {name: walk(one) for name, one in components.items() if name in apart}


def _map_subschemas(node: JSONSchema, function: Callable[[Any], Any]) -> JSONSchema:
    """Return a schema with a function applied to the values of all keywords except data."""
    made = {}
    for key, value in node.items():
        if key in DATA_KEYWORDS:
            # Convert the default of a class field, because it may be a value that is not JSON, such as a tuple.
            made[key] = to_jsonable(value)
        elif key in SCHEMA_MAP_KEYWORDS:
            made[key] = {name: function(one) for name, one in value.items()}
        else:
            made[key] = function(value)
    return made


def _describe_read(node: JSONSchema) -> JSONSchema:
    """Return the schema of an argument: bool and enums as one enum, and decimals also as numbers."""
    if "uniqueItems" in node and node.get("minItems", 0) <= 1:
        # Models repeat items. The minimum length of a set counts different items only.
        node = {key: value for key, value in node.items() if key != "uniqueItems"}
    if choices := _get_enum_values(node):
        node = {**{key: value for key, value in node.items() if key != "anyOf"}, "enum": choices}
    return {**node, "type": ["string", "number"]} if node.get("format") == "decimal" else node


def _describe_written(node: JSONSchema) -> JSONSchema:
    """Return the schema of a written number, which may be null, or of a written time, which may have no time zone."""
    is_finite = {"minimum", "exclusiveMinimum"} & node.keys() and {"maximum", "exclusiveMaximum"} & node.keys()
    if node.get("type") == "number" and not is_finite:
        annotations = {key: node[key] for key in ("title", "description", *DATA_KEYWORDS) if key in node}
        constraints = {key: value for key, value in node.items() if key not in annotations}
        return {**annotations, "anyOf": [constraints, {"type": "null"}]}
    if node.get("format") in WRITTEN_FORMATS:
        words = WRITTEN_FORMATS[node["format"]]
        return {"description": words, **{key: value for key, value in node.items() if key != "format"}}
    return node


def _get_enum_values(node: JSONSchema) -> list[Any]:
    """Return all values of a union of bool and enums, or [] for any other schema."""
    bare = [one for one in node.get("anyOf", ()) if one != {"type": "boolean"}]
    if len(bare) + 1 != len(node.get("anyOf", ())) or not all(one.keys() == {"enum"} for one in bare):
        return []
    return [False, True, *(value for one in bare for value in one["enum"])]


def iterate_subschemas(schema: Any) -> Iterator[JSONSchema]:
    """Yield a schema and all nested schemas, without following ``$ref``."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict):
            continue
        yield node
        waiting.extend(map(node.get, SCHEMA_KEYWORDS))
        for keyword in (*SCHEMA_LIST_KEYWORDS, *SCHEMA_MAP_KEYWORDS):
            inner = node.get(keyword)
            waiting.extend(inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ())


def referenced_definitions(schema: Any, definitions: Mapping[str, Any]) -> set[str]:
    """Return the names of the definitions that a schema refers to, directly or indirectly."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        for node in iterate_subschemas({key: value for key, value in waiting.pop().items() if key != "$defs"}):
            reference = node.get("$ref")
            name = reference.removeprefix(DEFINITION_PREFIX) if isinstance(reference, str) else ""
            if name in definitions and name not in found:
                found.add(name)
                waiting.append(definitions[name])
    return found


def find_recursive_definitions(definitions: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the definitions that refer to themselves."""
    return frozenset(name for name, one in definitions.items() if name in referenced_definitions(one, definitions))


def iterate_alternatives(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the alternatives of an ``anyOf``, including nested ones, or the schema itself."""
    if "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from iterate_alternatives(one)
    else:
        yield schema


# Schemas of truncated answers

# Matches the names of fields that answers may add. If the tool uses a name, underscores are appended to it.
ANSWER_FIELD_PATTERN = re.compile(r"(?:shortened|ref_notes)_*")
ANSWER_FIELD_SCHEMA: JSONSchema = {
    "description": "What was left out of the answer, or notes on it",
    # Some clients read a single type only, so this is no list of types.
    "anyOf": [{"type": "object"}, {"type": "array"}],
}
# Keywords that a truncated value may violate, or for which this cannot be determined.
TRUNCATION_SENSITIVE_KEYWORDS = frozenset(
    (
        *("required", "dependentRequired", "dependentSchemas", "dependencies", "minProperties"),
        *("minItems", "contains", "minContains", "maxContains", "minLength", "maxLength"),
        *("not", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems"),
    )
)
# Keywords that the added fields may violate, because they limit number or names of fields.
FIELD_LIMITING_KEYWORDS = frozenset({"maxProperties", "propertyNames"})
REFERENCE_KEYWORDS = ("$ref", "$dynamicRef", "$recursiveRef")


def make_answer_schema(schema: Mapping[str, Any] | None) -> JSONSchema | None:
    """Return a schema that also accepts truncated answers, or None if it cannot be derived."""
    if (
        schema is None
        or schema.get("type") != "object"
        or not schema.keys().isdisjoint((*SCHEMA_LIST_KEYWORDS, *REFERENCE_KEYWORDS))
    ):
        return None
    made = {key: value for key, value in _loosen(schema).items() if key not in FIELD_LIMITING_KEYWORDS}
    definitions = tuple(f"#/{place}/" for place in ("$defs", "definitions"))
    for node in iterate_subschemas(made):
        references = [node[name] for name in REFERENCE_KEYWORDS if name in node]
        if not all(isinstance(one, str) and (one == "#" or one.startswith(definitions)) for one in references):
            return None
    for key in ("properties", "patternProperties"):
        if key in made:
            named = key == "properties"
            made[key] = {
                name: one if named and not ANSWER_FIELD_PATTERN.fullmatch(name) else _allow_answer_field(one)
                for name, one in made[key].items()
            }
    if "additionalProperties" in made:
        made["additionalProperties"] = _allow_answer_field(made["additionalProperties"])
    return made


def _allow_answer_field(schema: Any) -> Any:
    if schema is False or schema == ANSWER_FIELD_SCHEMA:
        return ANSWER_FIELD_SCHEMA
    known = schema.get("anyOf", ()) if isinstance(schema, dict) else ()
    return schema if schema is True or ANSWER_FIELD_SCHEMA in known else {"anyOf": [schema, ANSWER_FIELD_SCHEMA]}


def _loosen(node: Any) -> Any:
    """
    Return a schema that also accepts truncated values.

    Elements of arrays keep their schema.
    """
    if not isinstance(node, Mapping):
        return node
    made = {
        key: value
        for key, value in node.items()
        if key not in TRUNCATION_SENSITIVE_KEYWORDS and not _lists_containers(key, value)
    }
    # A truncated value may match more than one alternative, which "oneOf" forbids.
    if "oneOf" in made:
        made = {key: value for key, value in {"anyOf": made["oneOf"], **made}.items() if key != "oneOf"}
    for key, value in made.items():
        if key in SCHEMA_MAP_KEYWORDS:
            made[key] = {name: _loosen(one) for name, one in value.items()}
        elif key in SCHEMA_LIST_KEYWORDS and key != "prefixItems":
            made[key] = [_loosen(one) for one in value]
        elif key == "additionalProperties":
            made[key] = _loosen(value)
    return made


def _lists_containers(key: str, value: Any) -> bool:
    """Return True if the value of ``const`` or ``enum`` contains an object or array."""
    values = [value] if key == "const" else value if key == "enum" else ()
    return any(isinstance(one, (dict, list)) for one in values)


def _describe_alternatives(schema: JSONSchema) -> Iterator[str]:
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    alternatives = schema.get("anyOf", schema.get("oneOf"))
    if choices is not None:
        yield from (describe_value(one) if one is None or isinstance(one, bool) else f"{one!r:.60}" for one in choices)
    elif alternatives is not None:
        for one in alternatives:
            yield from _describe_alternatives(one)
    elif "$ref" in schema:
        yield "an object"
    elif "type" not in schema:
        yield "anything"
    else:
        kinds = schema["type"]
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind == "boolean":
                yield from ("true", "false")
            else:
                noun = FORMAT_NOUNS.get(schema.get("format", "")) if kind == "string" else None
                yield " ".join(
                    [
                        noun or TYPE_NOUNS[kind],
                        *(_describe_fields(schema) if kind == "object" else ()),
                        *_describe_constraints(schema),
                    ]
                )


def _describe_fields(schema: JSONSchema) -> Iterator[str]:
    """Yield a description of an object's fields, such as ``{to_id, reason?}``."""
    properties = list(schema.get("properties", ()))
    if properties:
        required = schema.get("required", ())
        names = [name if name in required else f"{name}?" for name in properties[:MAX_DESCRIBED_FIELDS]]
        yield f"{{{', '.join([*names, '…'] if len(properties) > MAX_DESCRIBED_FIELDS else names)}}}"


def _describe_constraints(schema: JSONSchema) -> Iterator[str]:
    """Yield descriptions of a schema's constraints."""
    for minimum, maximum, between, unit in RANGE_KEYWORDS:
        minimum_value, maximum_value = schema.get(minimum), schema.get(maximum)
        if minimum_value is None and maximum_value is None:
            continue
        end = f"at most {maximum_value}" if maximum_value is not None else f"at least {minimum_value}"
        phrase = (
            f"of {end}"
            if minimum_value is None or maximum_value is None
            else f"{between} {minimum_value} to {maximum_value}"
        )
        yield (
            f"{phrase} {unit}{'' if (minimum_value if maximum_value is None else maximum_value) == 1 else 's'}"
            if unit
            else phrase
        )
    for keyword, words in CONSTRAINT_PHRASES.items():
        if keyword in schema and schema[keyword] not in FORMAT_NOUNS:
            yield words.format(schema[keyword])
    if isinstance(schema.get("items"), dict):
        yield f"(each {describe_schema(schema['items'])})"


# Signatures

HOST_PARAMETERS = frozenset({"ctx", "run_context", "tool_context"})

ANY_OBJECT_SCHEMA: dict[str, Any] = {"type": "object"}
REFERENCE_FIELD_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "references": {
        "type": "object",
        "description": "What the ids in the result stand for, by id",
        # A truncated reference is a single line of text instead of an object.
        "additionalProperties": {"anyOf": [{"type": "object"}, {"type": "string"}]},
    },
    "references_meta": {"type": "object", "description": "What was left out, and why"},
}
MAX_FAULTS = 10
MAX_DESCRIPTION_CHARS = 160
KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# The default of a parameter that may be omitted, but whose default is not in the schema.
NO_DEFAULT: Final = object()
RESOLUTION_ERRORS = (NameError, AttributeError, SyntaxError, TypeError)


@attrs.frozen
class Parameter:
    """A parameter that models may set: its type for `convert`, and its schema."""

    type: Any
    schema: dict[str, Any]
    required: bool
    # The pydantic ``FieldInfo`` with the default, which Python would pass itself, or None.
    pydantic_default: Any = None
    # True if the default is None. A valid empty value of a model then means the default, too.
    omits_empty: bool = False

    def describe_usage(self, name: str) -> str:
        """Return a hint with the parameter's description, or "" if the error says enough."""
        description = self.schema.get("description")
        if not isinstance(description, str) or not description:
            return "" if self.required else f"{name} is optional"
        short_description = shorten(description, MAX_DESCRIPTION_CHARS, placeholder="…")
        return f"{name} ({'required' if self.required else 'optional'}): {short_description}"


@attrs.frozen
class Signature:
    """The parameters of a function, grouped by who may set them, and its return type."""

    parameters: Mapping[str, Parameter]
    # Parameters that models may set, but do not see in the schema.
    hidden_parameters: Mapping[str, Parameter]
    # Parameters that only the host sets. The value is True if the parameter is required.
    host_parameters: Mapping[str, bool]
    # Parameters that a `functools.partial` has already set.
    bound_names: frozenset[str]
    # The ``**kwargs`` parameter, if any. It accepts all other arguments.
    extra_parameter: Parameter | None
    # Definitions of recursive types. Schemas refer to them as ``#/$defs/...``.
    definitions: Mapping[str, Any]
    return_type: Any

    @classmethod
    def from_function(cls, function: Any, *, descriptions: Mapping[str, str]) -> Signature:
        """Inspect a callable. *descriptions* are the descriptions of its parameters."""
        signature = inspect.signature(function)
        namespaces = [layer.namespace for layer in reversed(find_layers(function))]
        bound = find_partial_keywords(function)
        added = get_added_parameters(function)
        added_by_decorator = (
            {} if added is None else {name: one for name, one in added.accepted.items() if name not in bound}
        )
        theirs = HOST_PARAMETERS | bound | added_by_decorator.keys()
        own = [
            *(found for found in signature.parameters.values() if found.name not in theirs),
            *added_by_decorator.values(),
        ]
        _reject_positional(own)
        own, hints = _expand_typed_keywords(own, {found.name: _resolve_hint(found, namespaces) for found in own})
        translator = TypeTranslator()
        translated = _translate_hints(hints, translator)
        kinds = {name: kind for name, (kind, _) in translated.items()}
        schemas, definitions = _make_schemas(kinds, hints, translator, descriptions)
        parameters = {}
        for found in own:
            kind, field = translated[found.name]
            field = field if found.default is found.empty else None
            default = found.default if field is None else _get_constant_default(field)
            parameters[found.name] = Parameter(
                type=kind,
                schema=_add_default(schemas[found.name], kind, default),
                required=found.default is found.empty and field is None,
                pydantic_default=field,
                omits_empty=default is None,
            )
        others = next((found.name for found in own if found.kind is found.VAR_KEYWORD), None)
        # Ignore errors: the return annotation may be missing, or can only be imported by type checkers.
        returns: Any = Any
        with contextlib.suppress(*RESOLUTION_ERRORS):
            returns = _resolve_annotation(signature.return_annotation, namespaces)
        unshown = () if added is None else added_by_decorator.keys() - set(added.visible_names)
        return cls(
            extra_parameter=parameters.pop(others) if others else None,
            hidden_parameters={name: parameters.pop(name) for name in unshown},
            parameters=parameters,
            host_parameters={
                found.name: found.default is found.empty
                for found in signature.parameters.values()
                if found.name in HOST_PARAMETERS - bound and found.kind in KEYWORD_KINDS
            },
            bound_names=bound,
            definitions=definitions,
            return_type=returns,
        )

    def input_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        return {
            "type": "object",
            "properties": {name: parameter.schema for name, parameter in self.parameters.items()},
            **({"required": self._required} if self._required else {}),
            "additionalProperties": False if self.extra_parameter is None else self.extra_parameter.schema or True,
            **({"$defs": dict(self.definitions)} if self.definitions else {}),
        }

    def output_schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of the result, or None if it is not an object."""
        schema = make_result_schema(self.return_type)
        takes_references = "include_references" in self.parameters
        if schema == {} and takes_references:
            schema = ANY_OBJECT_SCHEMA
        if schema.get("type") != "object":
            return None
        if takes_references:
            own = schema.get("properties", {})
            # If the function already returns a field of this name, accept its own schema or the added one.
            added = {
                name: {"anyOf": [own[name], one]} if name in own else one
                for name, one in REFERENCE_FIELD_SCHEMAS.items()
            }
            schema = {**schema, "properties": {**own, **added}}
        return schema

    def check(self, arguments: Mapping[str, Any], *, tool: str) -> dict[str, Any]:
        """
        Validate and convert a model's arguments. Raise one error that lists all faults.

        Unambiguous mistakes are repaired.
        """
        if not isinstance(arguments, Mapping):
            raise InvalidArgument(
                f"{tool}: the arguments must be an object, got {describe_value(arguments)}", hint=self._describe_names()
            )
        named_arguments = self.fix_argument_names(arguments)
        missing = [name for name in self._required if name not in named_arguments]
        faults = [f"{name} is required and must be {describe_schema(self.parameters[name].schema)}" for name in missing]
        usage = [self.parameters[name].describe_usage(name) for name in missing]
        is_unknown = False
        checked = {}
        for name, value in named_arguments.items():
            parameter = self.find_parameter(name)
            if parameter is None:
                # Describe only the first faults, because searching for similar names is slow.
                faults.append(self._describe_unknown(name) if len(faults) < MAX_FAULTS else "")
                is_unknown = True
            elif parameter.required or not means_default(
                value, parameter.type, omits_empty=is_model_call.get() and parameter.omits_empty
            ):
                notes: list[str] = []
                try:
                    with cached_results():
                        checked[name] = convert(coerce(value, parameter.type, notes), parameter.type)
                except (ValueError, RecursionError) as fault:
                    detail = "".join([_describe_nested_fault(fault), *(f"; {note}" for note in notes)])
                    faults.append(
                        f"{name} must be {describe_schema(parameter.schema)}, got {describe_value(value)}{detail}"
                    )
                    if name in self.parameters:
                        usage.append(parameter.describe_usage(name))
        if faults:
            others = f"; and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
            hints = filter(None, [self._describe_names() if is_unknown else "", *usage[:MAX_FAULTS]])
            raise InvalidArgument(f"{tool}: {'; '.join(faults[:MAX_FAULTS])}{others}", hint="; ".join(hints) or None)
        fields = {name: one.pydantic_default for name, one in self.parameters.items()}
        return add_defaults(checked, {name: field for name, field in fields.items() if field is not None})

    def check_host(self, values: Mapping[str, Any], *, tool: str) -> dict[str, Any]:
        """
        Return the host's values for its parameters, unvalidated.

        Raise if a required one is missing.
        """
        missing = [name for name, required in self.host_parameters.items() if required and name not in values]
        if missing:
            raise InvalidArgument(f"{tool}: the host must pass {' and '.join(missing)}", hint="no model can set these")
        return {name: value for name, value in values.items() if name in self.host_parameters}

    def find_parameter(self, name: object) -> Parameter | None:
        """Return the parameter that accepts the argument *name*, or None if a model cannot set it."""
        if not isinstance(name, str) or name in HOST_PARAMETERS or name in self.bound_names:
            return None
        return self.parameters.get(name) or self.hidden_parameters.get(name, self.extra_parameter)

    def _describe_unknown(self, name: object) -> str:
        similar_name = find_similar_name(name, self.parameters)
        suggestion = f", did you mean {similar_name}?" if similar_name else ""
        return f"{describe_value(name)} is no argument of this tool{suggestion}"

    def fix_argument_names(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """
        Correct misspelled argument names that are unambiguous.

        Host parameters keep their names.
        """
        if self.extra_parameter is not None:
            return arguments
        theirs = {name: value for name, value in arguments.items() if name in HOST_PARAMETERS | self.bound_names}
        others = {name: value for name, value in arguments.items() if name not in theirs}
        return {**fix_names(others, {**self.parameters, **self.hidden_parameters}), **theirs}

    @property
    def _required(self) -> list[str]:
        return [name for name, parameter in self.parameters.items() if parameter.required]

    def _describe_names(self) -> str:
        optional = [name for name, parameter in self.parameters.items() if not parameter.required]
        if self.extra_parameter is not None:
            optional.append("any others")
        parts = (", ".join(self._required), f"optional: {', '.join(optional)}" if optional else "")
        listed = "; ".join(filter(None, parts))
        return f"the arguments are: {listed}" if listed else "it takes no arguments"


def _reject_positional(parameters: Iterable[inspect.Parameter]) -> None:
    for found in parameters:
        if found.kind is found.VAR_POSITIONAL:
            raise InvalidArgument(f"*{found.name} cannot be offered to a model", hint=f"take {found.name} as a list")
        if found.kind is found.POSITIONAL_ONLY:
            raise InvalidArgument(
                f"the positional-only parameter {found.name} cannot be offered to a model",
                hint="models give arguments by name: remove the / from the signature",
            )


def _expand_typed_keywords(
    parameters: list[inspect.Parameter], hints: dict[str, Any]
) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    """Replace ``**kwargs: Unpack[...]`` by the keys of its TypedDict, and pydantic defaults by metadata."""
    made, made_hints = [], {}
    for found in parameters:
        hint = hints[found.name]
        if found.kind is found.VAR_KEYWORD and getattr(get_origin(hint), "_name", "") == "Unpack":
            for key, field in find_typed_keys(get_args(hint)[0]).items():
                default = found.empty if field.required else NO_DEFAULT
                made.append(inspect.Parameter(key, found.KEYWORD_ONLY, default=default, annotation=field.type))
                made_hints[key] = field.type
        elif is_field_info(found.default):
            made.append(found.replace(default=found.empty))
            made_hints[found.name] = Annotated[hint, found.default]
        else:
            made.append(found)
            made_hints[found.name] = hint
    return made, made_hints


def _get_constant_default(field: Any) -> Any:
    """Return the default of a pydantic ``FieldInfo``, or a value without a schema if a function computes it."""
    return field.default if field.default_factory is None else NO_DEFAULT


def _resolve_hint(found: inspect.Parameter, namespaces: list[dict[str, Any]]) -> Any:
    try:
        return _resolve_annotation(found.annotation, namespaces)
    except RESOLUTION_ERRORS as cause:
        raise InvalidArgument(
            f"the annotation {found.annotation!r} of parameter {found.name} cannot be resolved: {cause}",
            hint="its names must exist at the top of the function's module, outside of `if TYPE_CHECKING`",
        ) from cause


def _resolve_annotation(annotation: Any, namespaces: list[dict[str, Any]]) -> Any:
    """Evaluate an annotation in the module of the innermost function, then of its wrappers."""
    if annotation is inspect.Signature.empty:
        return Any
    # Evaluate annotations one by one: an unresolvable return type, which is common, must not affect the parameters.
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    for namespace in namespaces[:-1]:
        try:
            return typing.get_type_hints(holder, namespace, include_extras=True)["it"]
        except NameError:
            continue
    return typing.get_type_hints(holder, namespaces[-1], include_extras=True)["it"]


def _add_default(schema: dict[str, Any], hint: Any, default: Any) -> dict[str, Any]:
    """
    Add a parameter's default to its schema, if a model could pass this value.

    None and False are omitted to save tokens, as tools are part of every request. Null is accepted for optional
    parameters.
    """
    if default is inspect.Parameter.empty or default is False:
        return schema
    if default is None:
        return _remove_null(schema)
    try:
        written = to_jsonable(default)
        convert(written, hint)
    except (MamaStructsError, ValueError):
        # Omit defaults that a model cannot pass, such as sentinels. The model omits the argument instead.
        return schema
    return {**schema, "default": written}


def _remove_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from the alternatives of a schema, if there are others."""
    others = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    if not others:
        return schema
    return (
        {**rest, **others[0]} if len(others) == 1 and rest.keys().isdisjoint(others[0]) else {**rest, "anyOf": others}
    )


# Matches the parts of msgspec's error messages that quote a value.
REPEATED_VALUE_PATTERN: Final = re.compile(r"(?s)(unknown field |enum value )[`'](.*?)[`'](?=(?: - at `\$[^`]*`)*\Z)")


def _describe_nested_fault(fault: Exception) -> str:
    """Return the reason why a value is invalid, or "" if the expected type is sufficient."""
    if isinstance(fault, RecursionError):
        return ": it is nested too deeply"
    text = REPEATED_VALUE_PATTERN.sub(lambda found: found[1] + describe_value(found[2]), str(fault)).replace("`", "")
    # A nested conversion puts its own path before the path of its value.
    text, *places = text.split(" - at $")
    place = "".join(reversed(places))
    if not place:
        return "" if text.startswith(("Expected ", "Invalid enum value")) else f": {text}"
    return f": at {place.removeprefix('.')}, {text[:1].lower()}{text[1:]}"
