"""Types as JSON Schema (2020-12), and JSON Schema as words."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

from mama_structs._plain import is_written_as_text, to_jsonable
from mama_structs.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

JSONSchema = dict[str, Any]

_REFERENCE = "#/$defs/"
_DATA = frozenset({"const", "default", "enum", "examples"})
_NOUNS = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_WORDS = {None: "null", True: "true", False: "false"}
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel = 3


def schemas_of(
    hints: Mapping[str, Any], descriptions: Mapping[str, str]
) -> tuple[dict[str, JSONSchema], dict[str, JSONSchema]]:
    """
    Return the schemas of a function's parameters, and the definitions of the recursive types among them.

    Args:
        hints: The parameters' types, by name.
        descriptions: What the docstring says of some; what ``msgspec.Meta`` says goes first.

    Raises:
        InvalidArgument: JSON has no form of a type; the message names it and its parameter.

    """
    try:
        schemas, components = _from_msgspec(hints.values())
    except TypeError as cause:
        raise _unfit(hints) from cause
    if components:
        _refuse_text_objects(hints)
    described = {
        name: {"description": descriptions[name], **schema} if name in descriptions else schema
        for name, schema in zip(hints, schemas, strict=True)
    }
    recursive = _recursive(components)
    definitions = {name: _tidy(components[name], components, recursive) for name in recursive}
    return {name: _tidy(schema, components, recursive) for name, schema in described.items()}, definitions


def describe(kind: Any) -> JSONSchema:
    """Return the schema of a type as `to_jsonable` writes it, ``{}`` where nothing is known about it."""
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
    recursive = _recursive(components)
    schema = _tidy(schema, components, recursive, writing=True)
    definitions = {name: _tidy(components[name], components, recursive, writing=True) for name in recursive}
    if "$ref" in schema:
        schema = {**definitions[schema["$ref"].removeprefix(_REFERENCE)], **schema}
        del schema["$ref"]
    return {**schema, "$defs": definitions} if definitions else schema


def expected(schema: JSONSchema) -> str:
    """Say in words what a schema accepts: ``an integer from 0 to 2``, ``'a', 'b' or null``."""
    alternatives = list(dict.fromkeys(_alternatives(schema)))
    *others, last = alternatives
    return f"{', '.join(others)} or {last}" if others else last


def shortened(value: object) -> str:
    """Show a value in some 60 characters, with JSON's words for what JSON can say."""
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    try:
        return _SHORT.repr(value)
    except ValueError:
        return "a very large number"


def _from_msgspec(kinds: Iterable[Any]) -> tuple[tuple[JSONSchema, ...], dict[str, JSONSchema]]:
    import msgspec  # noqa: PLC0415 - only once a tool is made

    def anything(kind: type) -> JSONSchema:
        if kind is object:
            # An empty schema counts as none; `_tidy` drops the comment.
            return {"$comment": "anything"}
        # msgspec's word for "not mine": it then refuses the type itself.
        raise NotImplementedError

    return msgspec.json.schema_components(kinds, schema_hook=anything, ref_template=f"{_REFERENCE}{{name}}")


def _unfit(hints: Mapping[str, Any]) -> InvalidArgument:
    """Find the parameter that msgspec refuses."""
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
    """Refuse what we write as text, as msgspec would have a model give the fields."""
    for name, hint in hints.items():
        for kind in _text_objects(hint):
            raise InvalidArgument(
                f"parameter {name}: {kind.__qualname__} is text for a model",
                hint="take a str, and parse it in the tool",
            )


def _text_objects(kind: Any) -> Iterator[type]:
    """Yield the classes within a type whose objects `to_jsonable` writes as text."""
    import msgspec.inspect  # noqa: PLC0415 - only for types with fields

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


def _tidy(
    schema: Any, components: Mapping[str, JSONSchema], recursive: frozenset[str], *, writing: bool = False
) -> Any:
    """Put the components in their places, except recursive ones, and make the schema say what really is accepted."""

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        name = node.get("$ref", "").removeprefix(_REFERENCE)
        if name in components and name not in recursive:
            siblings = {key: value for key, value in node.items() if key != "$ref"}
            return {**walk(components[name]), **walk(siblings)}
        if node.get("format") == "decimal" and not writing:
            # msgspec reads decimals from numbers, too.
            node = {**node, "type": ["string", "number"]}
        return {key: inside(key, value) for key, value in node.items() if key not in dropped}

    def inside(key: str, value: Any) -> Any:
        if key in _DATA:
            # A default of a class may be what JSON writes otherwise, a tuple for one.
            return to_jsonable(value)
        if key == "properties":
            return {name: walk(one) for name, one in value.items()}
        return walk(value)

    # OpenAPI's discriminator points at components. Sets are read from arrays that repeat items, but never written so.
    dropped = {"$comment", "discriminator"} if writing else {"$comment", "discriminator", "uniqueItems"}
    return walk(schema)


def _recursive(components: Mapping[str, JSONSchema]) -> frozenset[str]:
    """Return the names of the components that contain themselves."""
    direct = {name: set(_names_in(component)) & components.keys() for name, component in components.items()}
    found = set()
    for name in components:
        reached: set[str] = set()
        waiting = [name]
        while waiting:
            new = direct[waiting.pop()] - reached
            reached |= new
            waiting.extend(new)
        if name in reached:
            found.add(name)
    return frozenset(found)


def _names_in(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        reference = node.get("$ref")
        if isinstance(reference, str):
            yield reference.removeprefix(_REFERENCE)
        node = list(node.values())
    if isinstance(node, list):
        for one in node:
            yield from _names_in(one)


def _alternatives(schema: JSONSchema) -> Iterator[str]:
    if "enum" in schema:
        yield from map(shortened, schema["enum"])
    elif "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from _alternatives(one)
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
    """Name what an object has inside: ``{to_id, reason?}``."""
    properties = list(schema.get("properties", ()))
    if properties:
        required = schema.get("required", ())
        names = [name if name in required else f"{name}?" for name in properties[:_MAX_FIELDS]]
        yield f"{{{', '.join([*names, '…'] if len(properties) > _MAX_FIELDS else names)}}}"


def _limits(schema: JSONSchema) -> Iterator[str]:
    """Say what a schema demands beyond the type."""
    for least, most, between, unit in _RANGES:
        yield from _range(schema.get(least), schema.get(most), between, unit)
    for keyword, words in _LIMITS.items():
        if keyword in schema:
            yield words.format(schema[keyword])
    if isinstance(schema.get("items"), dict):
        yield f"(each {expected(schema['items'])})"


def _range(least: Any, most: Any, between: str, unit: str) -> Iterator[str]:
    if least is None and most is None:
        return
    if least is not None and most is not None:
        said = f"{between} {least} to {most}"
    else:
        said = f"of at least {least}" if most is None else f"of at most {most}"
    last = least if most is None else most
    yield f"{said} {unit}{'' if last == 1 else 's'}" if unit else said


# The least, the most, the word before both, and what is counted.
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
