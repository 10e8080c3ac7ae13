"""JSON Schemas (2020-12) of functions, and validation of a model's arguments."""

from __future__ import annotations

import contextlib
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from textwrap import shorten
from typing import Any, Final

import attrs

from mama_structs._internal.introspection import find_layers, find_partial_keywords, get_added_parameters
from mama_structs._internal.jsonable import has_text_form, to_jsonable
from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.tools.argument_repair import coerce, convert, describe_value, find_similar_name, fix_names, is_valid

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
MAX_DESCRIBED_FIELDS = 12


def make_schemas(
    hints: Mapping[str, Any], descriptions: Mapping[str, str]
) -> tuple[dict[str, JSONSchema], dict[str, JSONSchema]]:
    """Create the schemas of parameters and the definitions of their recursive types."""
    # A description in ``msgspec.Meta`` replaces the description in the docstring.
    try:
        schemas, components = _from_msgspec(hints.values())
    except TypeError as cause:
        raise _make_unsupported_type_error(hints) from cause
    if components:
        _reject_text_objects(hints)
    described = (
        {"description": descriptions[name], **schema} if name in descriptions else schema
        for name, schema in zip(hints, schemas, strict=True)
    )
    tidied, definitions = _tidy(described, components)
    return dict(zip(hints, tidied, strict=True)), definitions


def make_result_schema(kind: Any) -> JSONSchema:
    """Return the schema of a type in the form of `to_jsonable`, or ``{}`` if it is unknown."""
    if callable(getattr(kind, "model_json_schema", None)):
        schema = kind.model_json_schema(mode="serialization", by_alias=False)
        components = schema.pop("$defs", {})
    else:
        try:
            (schema,), components = _from_msgspec([kind])
        except TypeError:
            return {}
        texts = {found.__name__ for found in _find_text_classes(kind)} if components else set()
        components = {
            name: {"type": "string", "title": component["title"]} if component.get("title") in texts else component
            for name, component in components.items()
        }
    (schema,), definitions = _tidy([schema], components, writing=True)
    if "$ref" in schema:
        schema = {**definitions[schema.pop("$ref").removeprefix(DEFINITION_PREFIX)], **schema}
    return {**schema, "$defs": definitions} if definitions else schema


def describe_schema(schema: JSONSchema) -> str:
    """Describe a schema in words, such as ``an integer from 0 to 2`` or ``'a', 'b' or null``."""
    *others, last = dict.fromkeys(_describe_alternatives(schema))
    return f"{', '.join(others)} or {last}" if others else last


def _from_msgspec(kinds: Iterable[Any]) -> tuple[tuple[JSONSchema, ...], dict[str, JSONSchema]]:
    import msgspec  # noqa: PLC0415 - loaded when the first tool is created

    def anything(kind: type) -> JSONSchema:
        if kind is object:
            # msgspec would treat an empty schema as missing. `_tidy` removes this placeholder.
            return {"$comment": "anything"}
        # Raising this makes msgspec reject the type.
        raise NotImplementedError

    return msgspec.json.schema_components(kinds, schema_hook=anything, ref_template=f"{DEFINITION_PREFIX}{{name}}")


def _make_unsupported_type_error(hints: Mapping[str, Any]) -> InvalidArgument:
    """Return the error that names the first parameter whose type msgspec rejects."""
    for name, hint in hints.items():
        try:
            _from_msgspec([hint])
        except TypeError as fault:
            shown = hint.__qualname__ if isinstance(hint, type) else str(hint)
            reason = str(fault).partition(" - type ")[0]
            if "custom types" in reason:
                reason = "JSON has no form of it"
            return InvalidArgument(
                f"parameter {name}: {shown:.120} cannot be offered to a model: {reason}",
                hint="take what JSON has: str, int, float, bool, list, dict, Literal, enums, or dataclasses of these",
            )
    return InvalidArgument(f"the types of {', '.join(hints)} cannot be offered to a model together")


def _reject_text_objects(hints: Mapping[str, Any]) -> None:
    """Raise for classes that are serialized as text: msgspec would require an object."""
    for name, hint in hints.items():
        for kind in _find_text_classes(hint):
            raise InvalidArgument(
                f"parameter {name}: {kind.__qualname__} is text for a model",
                hint="take a str, and parse it in the tool",
            )


def _find_text_classes(kind: Any) -> Iterator[type]:
    """Yield the classes in a type whose instances `to_jsonable` serializes as text."""
    import msgspec.inspect  # noqa: PLC0415 - needed for types with fields only

    waiting: list[Any] = [msgspec.inspect.type_info(kind)]
    seen: list[Any] = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)) and not any(node is one for one in seen):
            seen.append(node)
            if isinstance(node, msgspec.inspect.DataclassType) and has_text_form(node.cls):
                yield node.cls
            waiting.extend(getattr(node, field) for field in node.__struct_fields__)


def _tidy(
    schemas: Iterable[JSONSchema], components: Mapping[str, JSONSchema], *, writing: bool = False
) -> tuple[list[JSONSchema], dict[str, JSONSchema]]:
    """
    Inline and correct the schemas from msgspec.

    Also return the definitions of recursive types.
    """
    apart = find_recursive_definitions(components)
    # Drop discriminators, because they refer to components, which are inlined.
    # Drop "uniqueItems" from arguments only: results never repeat items of a set, but models may.
    dropped = {"$comment", "discriminator"} if writing else {"$comment", "discriminator", "uniqueItems"}

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        name = node.get("$ref", "").removeprefix(DEFINITION_PREFIX)
        if name in components and name not in apart:
            siblings = {key: value for key, value in node.items() if key != "$ref"}
            return {**walk(components[name]), **walk(siblings)}
        if not writing and (choices := _get_enum_values(node)):
            node = {**{key: value for key, value in node.items() if key != "anyOf"}, "enum": choices}
        if node.get("format") == "decimal" and not writing:
            # Accept numbers, too, from which msgspec also parses decimals.
            node = {**node, "type": ["string", "number"]}
        return {key: inside(key, value) for key, value in node.items() if key not in dropped}

    def inside(key: str, value: Any) -> Any:
        if key in DATA_KEYWORDS:
            # Convert the default of a class field, because it may be a value that is not JSON, such as a tuple.
            return to_jsonable(value)
        if key == "properties":
            return {name: walk(one) for name, one in value.items()}
        return walk(value)

    return list(map(walk, schemas)), {name: walk(one) for name, one in components.items() if name in apart}


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
    "type": ["object", "array"],
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
    if "enum" in schema:
        yield from (
            describe_value(one) if one is None or isinstance(one, bool) else f"{one!r:.60}" for one in schema["enum"]
        )
    elif "anyOf" in schema:
        for one in schema["anyOf"]:
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
                yield " ".join(
                    [
                        TYPE_NOUNS[kind],
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
        if keyword in schema:
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
        "additionalProperties": {"type": ["object", "string"]},
    },
    "references_meta": {"type": "object", "description": "What was left out, and why"},
}
MAX_FAULTS = 10
MAX_DESCRIPTION_CHARS = 160
KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
RESOLUTION_ERRORS = (NameError, AttributeError, SyntaxError, TypeError)


@attrs.frozen
class Parameter:
    """A parameter that models may set: its type for `msgspec.convert`, and its schema."""

    type: Any
    schema: dict[str, Any]
    required: bool

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
        hints = {found.name: _resolve_hint(found, namespaces) for found in own}
        schemas, definitions = make_schemas(hints, descriptions)
        parameters = {
            found.name: Parameter(
                type=hints[found.name],
                schema=_add_default(schemas[found.name], hints[found.name], found.default),
                required=found.default is found.empty,
            )
            for found in own
        }
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
            elif value is not None or parameter.required or is_valid(value, parameter.type):
                notes: list[str] = []
                try:
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
        return checked

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
REPEATED_VALUE_PATTERN: Final = re.compile(r"(?s)(unknown field |enum value )[`'](.*?)[`'](?= - at `\$[^`]*`\Z|\Z)")


def _describe_nested_fault(fault: Exception) -> str:
    """Return the reason why a value is invalid, or "" if the expected type is sufficient."""
    if isinstance(fault, RecursionError):
        return ": it is nested too deeply"
    text = REPEATED_VALUE_PATTERN.sub(lambda found: found[1] + describe_value(found[2]), str(fault)).replace("`", "")
    text, _, place = text.partition(" - at ")
    if not place:
        return "" if text.startswith(("Expected ", "Invalid enum value")) else f": {text}"
    return f": at {place.removeprefix('$').removeprefix('.')}, {text[:1].lower()}{text[1:]}"


# Parameter descriptions in docstrings

ARGS_HEADER_PATTERN = re.compile(r"(?:Args|Arguments):\s*")
ARGS_ENTRY_PATTERN = re.compile(r"\*{0,2}(?P<names>\w+(?:, *\w+)*)(?: *\([^)]*\))? *: *(?P<text>.*)")


def split_docstring(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Split a Google-style docstring into text and parameter descriptions."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    start = next((number for number, line in enumerate(lines) if ARGS_HEADER_PATTERN.fullmatch(line)), None)
    if start is None:
        return "\n".join(lines), {}
    end = next((n for n in range(start + 1, len(lines)) if lines[n] and not lines[n][0].isspace()), len(lines))
    before, after = "\n".join(lines[:start]).rstrip(), "\n".join(lines[end:]).strip()
    return "\n\n".join(part for part in (before, after) if part), _parse_entries(lines[start + 1 : end])


def _parse_entries(lines: list[str]) -> dict[str, str]:
    """
    Parse ``name: text`` entries.

    A line with deeper indentation continues the previous entry.
    """
    texts: dict[str, list[str]] = {}
    current: list[str] = []
    block = inspect.cleandoc("\n".join(["", *lines])).splitlines()
    for line in block:
        entry = None if line[:1].isspace() else ARGS_ENTRY_PATTERN.fullmatch(line)
        if entry is None:
            current.append(line.strip())
        else:
            current = [entry["text"].strip()]
            texts.update(dict.fromkeys(re.split(r", *", entry["names"]), current))
    return {name: " ".join(part for part in parts if part) for name, parts in texts.items()}
