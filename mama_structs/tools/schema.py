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

from mama_structs._internal.introspection import added_parameters, bound_by_partials, layers_of
from mama_structs._internal.jsonable import is_written_as_text, to_jsonable
from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.tools.argument_repair import converted, fits, mended, nearest, renamed, told

JSONSchema = dict[str, Any]

REFERENCE = "#/$defs/"
# Keywords whose value is one schema, a list of schemas, or schemas by name.
_ONE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DATA = frozenset({"const", "default", "enum", "examples"})
_NOUNS = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
# Minimum keyword, maximum keyword, preposition for a range, and unit.
_RANGES = (
    ("minimum", "maximum", "from", ""),
    ("minLength", "maxLength", "of", "character"),
    ("minItems", "maxItems", "of", "item"),
)
_LIMITS = {
    "exclusiveMinimum": "above {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "that is a multiple of {}",
    "pattern": "matching {}",
    "format": "({})",
    "contentEncoding": "in {}",
}
_MAX_FIELDS = 12


def schemas_of(
    hints: Mapping[str, Any], descriptions: Mapping[str, str]
) -> tuple[dict[str, JSONSchema], dict[str, JSONSchema]]:
    """Return the schemas of parameters, and the definitions of their recursive types."""
    # Descriptions of ``msgspec.Meta`` take precedence over the docstring.
    try:
        schemas, components = _from_msgspec(hints.values())
    except TypeError as cause:
        raise _unfit(hints) from cause
    if components:
        _refuse_text_objects(hints)
    described = (
        {"description": descriptions[name], **schema} if name in descriptions else schema
        for name, schema in zip(hints, schemas, strict=True)
    )
    tidied, definitions = _tidied(described, components)
    return dict(zip(hints, tidied, strict=True)), definitions


def describe(kind: Any) -> JSONSchema:
    """Return the schema of a type in the form of `to_jsonable`, or ``{}`` if it is unknown."""
    if callable(getattr(kind, "model_json_schema", None)):
        schema = kind.model_json_schema(mode="serialization", by_alias=False)
        components = schema.pop("$defs", {})
    else:
        try:
            (schema,), components = _from_msgspec([kind])
        except TypeError:
            return {}
        texts = {found.__name__ for found in _text_objects(kind)} if components else set()
        components = {
            name: {"type": "string", "title": component["title"]} if component.get("title") in texts else component
            for name, component in components.items()
        }
    (schema,), definitions = _tidied([schema], components, writing=True)
    if "$ref" in schema:
        schema = {**definitions[schema.pop("$ref").removeprefix(REFERENCE)], **schema}
    return {**schema, "$defs": definitions} if definitions else schema


def expected(schema: JSONSchema) -> str:
    """Describe a schema in words: ``an integer from 0 to 2``, ``'a', 'b' or null``."""
    *others, last = dict.fromkeys(_in_words(schema))
    return f"{', '.join(others)} or {last}" if others else last


def _from_msgspec(kinds: Iterable[Any]) -> tuple[tuple[JSONSchema, ...], dict[str, JSONSchema]]:
    import msgspec  # noqa: PLC0415 - loaded when the first tool is created

    def anything(kind: type) -> JSONSchema:
        if kind is object:
            # msgspec treats an empty schema as missing; `_tidied` removes the comment.
            return {"$comment": "anything"}
        # By raising it, the hook leaves the type to msgspec, which then rejects it.
        raise NotImplementedError

    return msgspec.json.schema_components(kinds, schema_hook=anything, ref_template=f"{REFERENCE}{{name}}")


def _unfit(hints: Mapping[str, Any]) -> InvalidArgument:
    """Return the error for the parameter that msgspec rejects."""
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


def _refuse_text_objects(hints: Mapping[str, Any]) -> None:
    """Reject classes that are written as text, whose fields msgspec would require."""
    for name, hint in hints.items():
        for kind in _text_objects(hint):
            raise InvalidArgument(
                f"parameter {name}: {kind.__qualname__} is text for a model",
                hint="take a str, and parse it in the tool",
            )


def _text_objects(kind: Any) -> Iterator[type]:
    """Yield the classes inside a type whose objects `to_jsonable` writes as text."""
    import msgspec.inspect  # noqa: PLC0415 - needed for types with fields only

    waiting: list[Any] = [msgspec.inspect.type_info(kind)]
    seen: list[Any] = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)) and not any(node is one for one in seen):
            seen.append(node)
            if isinstance(node, msgspec.inspect.DataclassType) and is_written_as_text(node.cls):
                yield node.cls
            waiting.extend(getattr(node, field) for field in node.__struct_fields__)


def _tidied(
    schemas: Iterable[JSONSchema], components: Mapping[str, JSONSchema], *, writing: bool = False
) -> tuple[list[JSONSchema], dict[str, JSONSchema]]:
    """Return corrected schemas with inlined components, and the recursive definitions."""
    apart = recursive(components)
    # OpenAPI's discriminator refers to components. Sets may be read from arrays with repeated items, but are written
    # without.
    dropped = {"$comment", "discriminator"} if writing else {"$comment", "discriminator", "uniqueItems"}

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        name = node.get("$ref", "").removeprefix(REFERENCE)
        if name in components and name not in apart:
            siblings = {key: value for key, value in node.items() if key != "$ref"}
            return {**walk(components[name]), **walk(siblings)}
        if not writing and (choices := _choices(node)):
            node = {**{key: value for key, value in node.items() if key != "anyOf"}, "enum": choices}
        if node.get("format") == "decimal" and not writing:
            # msgspec also parses decimals from numbers.
            node = {**node, "type": ["string", "number"]}
        return {key: inside(key, value) for key, value in node.items() if key not in dropped}

    def inside(key: str, value: Any) -> Any:
        if key in _DATA:
            # A class's default may be a value that JSON writes differently, such as a tuple.
            return to_jsonable(value)
        if key == "properties":
            return {name: walk(one) for name, one in value.items()}
        return walk(value)

    return list(map(walk, schemas)), {name: walk(one) for name, one in components.items() if name in apart}


def _choices(node: JSONSchema) -> list[Any]:
    """Return the values of a union of bool and enums, or nothing for other schemas."""
    bare = [one for one in node.get("anyOf", ()) if one != {"type": "boolean"}]
    if len(bare) + 1 != len(node.get("anyOf", ())) or not all(one.keys() == {"enum"} for one in bare):
        return []
    return [False, True, *(value for one in bare for value in one["enum"])]


def subschemas(schema: Any) -> Iterator[JSONSchema]:
    """Yield a schema and all nested schemas, without following ``$ref``."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict):
            continue
        yield node
        waiting.extend(map(node.get, _ONE))
        for keyword in (*_SEVERAL, *_NAMED):
            inner = node.get(keyword)
            waiting.extend(inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ())


def reached(schema: Any, definitions: Mapping[str, Any]) -> set[str]:
    """Return the names of the definitions that a schema refers to, directly or indirectly."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        for node in subschemas({key: value for key, value in waiting.pop().items() if key != "$defs"}):
            reference = node.get("$ref")
            name = reference.removeprefix(REFERENCE) if isinstance(reference, str) else ""
            if name in definitions and name not in found:
                found.add(name)
                waiting.append(definitions[name])
    return found


def recursive(definitions: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the definitions that refer to themselves."""
    return frozenset(name for name, one in definitions.items() if name in reached(one, definitions))


def alternatives(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the alternatives of an ``anyOf`` schema, or the schema itself."""
    if "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from alternatives(one)
    else:
        yield schema


# Schemas of truncated answers

# Fields that an answer adds about itself; underscores are appended if the tool uses the name.
_OWN_NAME = re.compile(r"(?:shortened|ref_notes)_*")
_OWN: JSONSchema = {"description": "What was left out of the answer, or notes on it", "type": ["object", "array"]}
# Constraints that a truncated value can violate, or whose validity is unknown.
_BROKEN = frozenset(
    (
        *("required", "dependentRequired", "dependentSchemas", "dependencies", "minProperties"),
        *("minItems", "contains", "minContains", "maxContains", "minLength", "maxLength"),
        *("not", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems"),
    )
)
# Constraints that count or name the added fields.
_CLOSING = frozenset({"maxProperties", "propertyNames"})
_ELSEWHERE = ("$ref", "$dynamicRef", "$recursiveRef")


def widened(schema: Mapping[str, Any] | None) -> JSONSchema | None:
    """Return the schema of possibly truncated answers, or None if it cannot be derived."""
    if schema is None or schema.get("type") != "object" or not schema.keys().isdisjoint((*_SEVERAL, *_ELSEWHERE)):
        return None
    made = {key: value for key, value in _loosened(schema).items() if key not in _CLOSING}
    definitions = tuple(f"#/{place}/" for place in ("$defs", "definitions"))
    for node in subschemas(made):
        references = [node[name] for name in _ELSEWHERE if name in node]
        if not all(isinstance(one, str) and (one == "#" or one.startswith(definitions)) for one in references):
            return None
    for key in ("properties", "patternProperties"):
        if key in made:
            named = key == "properties"
            made[key] = {
                name: one if named and not _OWN_NAME.fullmatch(name) else _or_own(one)
                for name, one in made[key].items()
            }
    if "additionalProperties" in made:
        made["additionalProperties"] = _or_own(made["additionalProperties"])
    return made


def _or_own(schema: Any) -> Any:
    if schema is False or schema == _OWN:
        return _OWN
    known = schema.get("anyOf", ()) if isinstance(schema, dict) else ()
    return schema if schema is True or _OWN in known else {"anyOf": [schema, _OWN]}


def _loosened(node: Any) -> Any:
    """
    Return a schema that also accepts a truncated value.

    Elements of arrays keep their schema.
    """
    if not isinstance(node, Mapping):
        return node
    made = {key: value for key, value in node.items() if key not in _BROKEN and not _is_of_containers(key, value)}
    # A truncated value may match several alternatives.
    if "oneOf" in made:
        made = {key: value for key, value in {"anyOf": made["oneOf"], **made}.items() if key != "oneOf"}
    for key, value in made.items():
        if key in _NAMED:
            made[key] = {name: _loosened(one) for name, one in value.items()}
        elif key in _SEVERAL and key != "prefixItems":
            made[key] = [_loosened(one) for one in value]
        elif key == "additionalProperties":
            made[key] = _loosened(value)
    return made


def _is_of_containers(key: str, value: Any) -> bool:
    """Return True if a ``const`` or ``enum`` contains mappings or lists."""
    values = [value] if key == "const" else value if key == "enum" else ()
    return any(isinstance(one, (dict, list)) for one in values)


def _in_words(schema: JSONSchema) -> Iterator[str]:
    if "enum" in schema:
        yield from (told(one) if one is None or isinstance(one, bool) else f"{one!r:.60}" for one in schema["enum"])
    elif "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from _in_words(one)
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
                yield " ".join([_NOUNS[kind], *(_fields(schema) if kind == "object" else ()), *_limits(schema)])


def _fields(schema: JSONSchema) -> Iterator[str]:
    """Describe the fields of an object: ``{to_id, reason?}``."""
    properties = list(schema.get("properties", ()))
    if properties:
        required = schema.get("required", ())
        names = [name if name in required else f"{name}?" for name in properties[:_MAX_FIELDS]]
        yield f"{{{', '.join([*names, '…'] if len(properties) > _MAX_FIELDS else names)}}}"


def _limits(schema: JSONSchema) -> Iterator[str]:
    """Describe the constraints of a schema besides its type."""
    for minimum, maximum, between, unit in _RANGES:
        least, most = schema.get(minimum), schema.get(maximum)
        if least is None and most is None:
            continue
        end = f"at most {most}" if most is not None else f"at least {least}"
        said = f"of {end}" if least is None or most is None else f"{between} {least} to {most}"
        yield f"{said} {unit}{'' if (least if most is None else most) == 1 else 's'}" if unit else said
    for keyword, words in _LIMITS.items():
        if keyword in schema:
            yield words.format(schema[keyword])
    if isinstance(schema.get("items"), dict):
        yield f"(each {expected(schema['items'])})"


# Signatures

HOST_PARAMETERS = frozenset({"ctx", "run_context", "tool_context"})

_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_REFERENCES = {
    "references": {
        "type": "object",
        "description": "What the ids in the result stand for, by id",
        # A truncated reference is one line of text.
        "additionalProperties": {"type": ["object", "string"]},
    },
    "references_meta": {"type": "object", "description": "What was left out, and why"},
}
_MAX_FAULTS = 10
_MAX_DESCRIPTION = 160
_KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_UNRESOLVED = (NameError, AttributeError, SyntaxError, TypeError)


@attrs.frozen
class Parameter:
    """A parameter that a model may set: its type for `msgspec.convert` and its schema."""

    type: Any
    schema: dict[str, Any]
    required: bool

    def usage(self, name: str) -> str:
        """Return a hint with its description, empty if the error already says enough."""
        said = self.schema.get("description")
        if not isinstance(said, str) or not said:
            return "" if self.required else f"{name} is optional"
        told = shorten(said, _MAX_DESCRIPTION, placeholder="…")
        return f"{name} ({'required' if self.required else 'optional'}): {told}"


@attrs.frozen
class Signature:
    """The parameters of a function, grouped by who sets them."""

    parameters: Mapping[str, Parameter]
    # Accepted from models, but not in the schema.
    hidden: Mapping[str, Parameter]
    # Set by the host only; True if required.
    host: Mapping[str, bool]
    # Already set by a partial.
    bound: frozenset[str]
    # The parameter for ``**kwargs``.
    others: Parameter | None
    # Recursive types, which schemas reference as ``#/$defs/...``.
    definitions: Mapping[str, Any]
    returns: Any

    @classmethod
    def of(cls, function: Any, *, descriptions: Mapping[str, str]) -> Signature:
        """Return the signature of a callable, with the descriptions of its parameters."""
        signature = inspect.signature(function)
        namespaces = [layer.namespace for layer in reversed(layers_of(function))]
        bound = bound_by_partials(function)
        added = added_parameters(function)
        beside = {} if added is None else {name: one for name, one in added.accepted.items() if name not in bound}
        theirs = HOST_PARAMETERS | bound | beside.keys()
        own = [*(found for found in signature.parameters.values() if found.name not in theirs), *beside.values()]
        _refuse_positional(own)
        hints = {found.name: _hint(found, namespaces) for found in own}
        schemas, definitions = schemas_of(hints, descriptions)
        parameters = {
            found.name: Parameter(
                type=hints[found.name],
                schema=_with_default(schemas[found.name], hints[found.name], found.default),
                required=found.default is found.empty,
            )
            for found in own
        }
        others = next((found.name for found in own if found.kind is found.VAR_KEYWORD), None)
        # The return annotation may be missing, or importable for type checkers only.
        returns: Any = Any
        with contextlib.suppress(*_UNRESOLVED):
            returns = _resolved(signature.return_annotation, namespaces)
        unshown = () if added is None else beside.keys() - set(added.shown)
        return cls(
            others=parameters.pop(others) if others else None,
            hidden={name: parameters.pop(name) for name in unshown},
            parameters=parameters,
            host={
                found.name: found.default is found.empty
                for found in signature.parameters.values()
                if found.name in HOST_PARAMETERS - bound and found.kind in _KEYWORDS
            },
            bound=bound,
            definitions=definitions,
            returns=returns,
        )

    def input_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        return {
            "type": "object",
            "properties": {name: parameter.schema for name, parameter in self.parameters.items()},
            **({"required": self._required} if self._required else {}),
            "additionalProperties": False if self.others is None else self.others.schema or True,
            **({"$defs": dict(self.definitions)} if self.definitions else {}),
        }

    def output_schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of the result, or None if it is not an object."""
        schema = describe(self.returns)
        takes_references = "include_references" in self.parameters
        if schema == {} and takes_references:
            schema = _ANY_OBJECT
        if schema.get("type") != "object":
            return None
        if takes_references:
            own = schema.get("properties", {})
            # A result that already has such a key may be returned unchanged.
            added = {name: {"anyOf": [own[name], one]} if name in own else one for name, one in _REFERENCES.items()}
            schema = {**schema, "properties": {**own, **added}}
        return schema

    def check(self, arguments: Mapping[str, Any], *, tool: str) -> dict[str, Any]:
        """
        Validate a model's arguments, and return them converted.

        Unambiguous mistakes are repaired.
        """
        if not isinstance(arguments, Mapping):
            raise InvalidArgument(f"{tool}: the arguments must be an object, got {told(arguments)}", hint=self._names())
        given = self.named(arguments)
        missing = [name for name in self._required if name not in given]
        faults = [f"{name} is required and must be {expected(self.parameters[name].schema)}" for name in missing]
        usage = [self.parameters[name].usage(name) for name in missing]
        is_unknown = False
        checked = {}
        for name, value in given.items():
            parameter = self.parameter(name)
            if parameter is None:
                # The search for similar names is slow.
                faults.append(self._unknown(name) if len(faults) < _MAX_FAULTS else "")
                is_unknown = True
            elif value is not None or parameter.required or fits(value, parameter.type):
                notes: list[str] = []
                try:
                    checked[name] = converted(mended(value, parameter.type, notes), parameter.type)
                except (ValueError, RecursionError) as fault:
                    said = "".join([_detail(fault), *(f"; {note}" for note in notes)])
                    faults.append(f"{name} must be {expected(parameter.schema)}, got {told(value)}{said}")
                    if name in self.parameters:
                        usage.append(parameter.usage(name))
        if faults:
            others = f"; and {len(faults) - _MAX_FAULTS} more" if len(faults) > _MAX_FAULTS else ""
            hints = filter(None, [self._names() if is_unknown else "", *usage[:_MAX_FAULTS]])
            raise InvalidArgument(f"{tool}: {'; '.join(faults[:_MAX_FAULTS])}{others}", hint="; ".join(hints) or None)
        return checked

    def check_host(self, values: Mapping[str, Any], *, tool: str) -> dict[str, Any]:
        """Return the host's values for the host parameters, of any type."""
        missing = [name for name, required in self.host.items() if required and name not in values]
        if missing:
            raise InvalidArgument(f"{tool}: the host must pass {' and '.join(missing)}", hint="no model can set these")
        return {name: value for name, value in values.items() if name in self.host}

    def parameter(self, name: object) -> Parameter | None:
        """Return the parameter that accepts the argument *name*, or None if a model cannot set it."""
        if not isinstance(name, str) or name in HOST_PARAMETERS or name in self.bound:
            return None
        return self.parameters.get(name) or self.hidden.get(name, self.others)

    def _unknown(self, name: object) -> str:
        near = nearest(name, self.parameters)
        return f"{told(name)} is no argument of this tool{f', did you mean {near}?' if near else ''}"

    def named(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """
        Correct argument names that can only mean one parameter.

        Host parameters keep their names.
        """
        if self.others is not None:
            return arguments
        theirs = {name: value for name, value in arguments.items() if name in HOST_PARAMETERS | self.bound}
        others = {name: value for name, value in arguments.items() if name not in theirs}
        return {**renamed(others, {**self.parameters, **self.hidden}), **theirs}

    @property
    def _required(self) -> list[str]:
        return [name for name, parameter in self.parameters.items() if parameter.required]

    def _names(self) -> str:
        optional = [name for name, parameter in self.parameters.items() if not parameter.required]
        if self.others is not None:
            optional.append("any others")
        parts = (", ".join(self._required), f"optional: {', '.join(optional)}" if optional else "")
        listed = "; ".join(filter(None, parts))
        return f"the arguments are: {listed}" if listed else "it takes no arguments"


def _refuse_positional(parameters: Iterable[inspect.Parameter]) -> None:
    for found in parameters:
        if found.kind is found.VAR_POSITIONAL:
            raise InvalidArgument(f"*{found.name} cannot be offered to a model", hint=f"take {found.name} as a list")
        if found.kind is found.POSITIONAL_ONLY:
            raise InvalidArgument(
                f"the positional-only parameter {found.name} cannot be offered to a model",
                hint="models give arguments by name: remove the / from the signature",
            )


def _hint(found: inspect.Parameter, namespaces: list[dict[str, Any]]) -> Any:
    try:
        return _resolved(found.annotation, namespaces)
    except _UNRESOLVED as cause:
        raise InvalidArgument(
            f"the annotation {found.annotation!r} of parameter {found.name} cannot be resolved: {cause}",
            hint="its names must exist at the top of the function's module, outside of `if TYPE_CHECKING`",
        ) from cause


def _resolved(annotation: Any, namespaces: list[dict[str, Any]]) -> Any:
    """Evaluate a postponed annotation in the module of the innermost function, then others."""
    if annotation is inspect.Signature.empty:
        return Any
    # Evaluate one annotation at a time: unresolvable names in the return type are common and harmless.
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    for namespace in namespaces[:-1]:
        try:
            return typing.get_type_hints(holder, namespace, include_extras=True)["it"]
        except NameError:
            continue
    return typing.get_type_hints(holder, namespaces[-1], include_extras=True)["it"]


def _with_default(schema: dict[str, Any], hint: Any, default: Any) -> dict[str, Any]:
    """
    Add the default to a parameter's schema, if a model could have sent it.

    None and False are omitted to save tokens, as tools are part of every request. Null is accepted for optional
    parameters.
    """
    if default is inspect.Parameter.empty or default is False:
        return schema
    if default is None:
        return _without_null(schema)
    try:
        written = to_jsonable(default)
        converted(written, hint)
    except (MamaStructsError, ValueError):
        # Omit a sentinel, or None if null is not accepted: models omit the argument.
        return schema
    return {**schema, "default": written}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the alternative null, if there are other alternatives."""
    others = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    if not others:
        return schema
    return (
        {**rest, **others[0]} if len(others) == 1 and rest.keys().isdisjoint(others[0]) else {**rest, "anyOf": others}
    )


# The parts of msgspec's messages that repeat a value.
_GIVEN: Final = re.compile(r"(?s)(unknown field |enum value )[`'](.*?)[`'](?= - at `\$[^`]*`\Z|\Z)")


def _detail(fault: Exception) -> str:
    """Return the error inside a value, or an empty text if the expected type explains it."""
    if isinstance(fault, RecursionError):
        return ": it is nested too deeply"
    text = _GIVEN.sub(lambda found: found[1] + told(found[2]), str(fault)).replace("`", "")
    text, _, place = text.partition(" - at ")
    if not place:
        return "" if text.startswith(("Expected ", "Invalid enum value")) else f": {text}"
    return f": at {place.removeprefix('$').removeprefix('.')}, {text[:1].lower()}{text[1:]}"


# Parameter descriptions in docstrings

_HEADER = re.compile(r"(?:Args|Arguments):\s*")
_ENTRY = re.compile(r"\*{0,2}(?P<names>\w+(?:, *\w+)*)(?: *\([^)]*\))? *: *(?P<text>.*)")


def split_docstring(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Split a Google-style docstring into its text and the parameter descriptions."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    start = next((number for number, line in enumerate(lines) if _HEADER.fullmatch(line)), None)
    if start is None:
        return "\n".join(lines), {}
    end = next((n for n in range(start + 1, len(lines)) if lines[n] and not lines[n][0].isspace()), len(lines))
    before, after = "\n".join(lines[:start]).rstrip(), "\n".join(lines[end:]).strip()
    return "\n\n".join(part for part in (before, after) if part), _entries(lines[start + 1 : end])


def _entries(lines: list[str]) -> dict[str, str]:
    """
    Parse ``name: text`` entries.

    A line with deeper indentation continues the previous entry.
    """
    texts: dict[str, list[str]] = {}
    current: list[str] = []
    block = inspect.cleandoc("\n".join(["", *lines])).splitlines()
    for line in block:
        entry = None if line[:1].isspace() else _ENTRY.fullmatch(line)
        if entry is None:
            current.append(line.strip())
        else:
            current = [entry["text"].strip()]
            texts.update(dict.fromkeys(re.split(r", *", entry["names"]), current))
    return {name: " ".join(part for part in parts if part) for name, parts in texts.items()}
