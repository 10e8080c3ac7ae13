"""A function's parameters as a model sees them, and the check of what a model sends."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterable, Mapping
from textwrap import shorten
from typing import Annotated, Any

import attrs

from mama_structs._introspect import bound_by_partials, layers_of
from mama_structs._plain import to_jsonable
from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.tools.given_names import nearest, renamed
from mama_structs.tools.leniency import fits, is_finite, mended
from mama_structs.tools.schema import describe, expected, schemas_of, shortened

HOST_PARAMETERS = frozenset({"ctx", "run_context", "tool_context"})

# What `with_references` adds to a tool, in words for models, and the bounds that its annotations leave open.
_REFERENCE_OPTIONS = {
    "include_references": (
        "Whether to add what the ids in the result stand for: false for none, true for all (of a list the primary), "
        "'primary' for owners and direct relations only, 'all' for every id"
    ),
    "reference_depth": (
        "How far to follow references: 0 for not at all, 1 for the ids in the result, 2 for the ids in those as well"
    ),
    "reference_types": "Only add references of these types, such as player or guild; null for every type",
    "max_references": "How many references to add at most; what is left out is listed",
    "max_references_per_entity": "How many references to add at most for each entity of the result",
}
_REFERENCE_BOUNDS = {"reference_depth": (0, 2), "max_references": (0, None), "max_references_per_entity": (0, None)}
_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_REFERENCES = {
    "references": {
        "type": "object",
        "description": "What the ids in the result stand for, by id",
        "additionalProperties": _ANY_OBJECT,
    },
    "references_meta": {"type": "object", "description": "What limits left out, and why"},
}
_MAX_FAULTS = 10
_MAX_DESCRIPTION = 160
_KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@attrs.frozen
class Parameter:
    """
    One parameter that a model may set.

    Args:
        type: What `msgspec.convert` checks against.
        schema: The same as JSON Schema.
        required: Whether it has no default.

    """

    type: Any
    schema: dict[str, Any]
    required: bool

    def usage(self, name: str) -> str:
        """Say what it is for, and whether it may be left out; empty where a fault says all there is."""
        said = self.schema.get("description")
        if not isinstance(said, str) or not said:
            return "" if self.required else f"{name} is optional"
        told = shorten(said, _MAX_DESCRIPTION, placeholder="…")
        return f"{name} ({'required' if self.required else 'optional'}): {told}"


@attrs.frozen
class Signature:
    """
    What a function takes, and from whom.

    Args:
        parameters: What a model may set, by name.
        host: What only the host may set, and whether it must.
        bound: What a partial has set already.
        others: What ``**kwargs`` takes, None where nothing else is taken.
        definitions: The recursive types, which schemas name as ``#/$defs/...``.
        returns: The type of the result.

    """

    parameters: Mapping[str, Parameter]
    host: Mapping[str, bool]
    bound: frozenset[str]
    others: Parameter | None
    definitions: Mapping[str, Any]
    returns: Any

    @classmethod
    def of(cls, function: Any, *, descriptions: Mapping[str, str]) -> Signature:
        """
        Read a function's signature.

        Args:
            function: Anything callable.
            descriptions: What the docstring says about each parameter.

        Raises:
            InvalidArgument: A parameter cannot be given by name, its annotation cannot be resolved, or JSON has no
                form of its type.

        """
        signature = inspect.signature(function)
        namespaces = [layer.namespace for layer in reversed(layers_of(function))]
        bound = bound_by_partials(function)
        own = [found for found in signature.parameters.values() if found.name not in HOST_PARAMETERS | bound]
        _refuse_positional(own)
        hints = {found.name: _hint(found, namespaces) for found in own}
        if "include_references" in hints:
            hints = {name: _with_bounds(name, hint) for name, hint in hints.items()}
            descriptions = {**descriptions, **_REFERENCE_OPTIONS}
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
        return cls(
            others=parameters.pop(others) if others else None,
            parameters=parameters,
            host={
                found.name: found.default is found.empty
                for found in signature.parameters.values()
                if found.name in HOST_PARAMETERS - bound and found.kind in _KEYWORDS
            },
            bound=bound,
            definitions=definitions,
            returns=_returns(signature.return_annotation, namespaces),
        )

    def input_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: parameter.schema for name, parameter in self.parameters.items()},
            "required": [name for name, parameter in self.parameters.items() if parameter.required],
            "additionalProperties": False if self.others is None else self.others.schema or True,
        }
        if self.definitions:
            schema["$defs"] = dict(self.definitions)
        return schema

    def output_schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of the result as `to_jsonable` writes it, None where it is no object or unknown."""
        schema = describe(self.returns)
        takes_references = "include_references" in self.parameters
        if schema == {} and takes_references:
            schema = _ANY_OBJECT
        if schema.get("type") != "object":
            return None
        if takes_references:
            schema = {**schema, "properties": {**schema.get("properties", {}), **_REFERENCES}}
        return schema

    def check(self, arguments: Mapping[str, Any], *, tool: str) -> dict[str, Any]:
        """
        Return the arguments as the function's types want them.

        What a model got a little wrong is put right where it can only mean one thing, see
        `mama_structs.tools.leniency`.

        Args:
            arguments: As the model gave them.
            tool: The tool's name, for the message.

        Raises:
            InvalidArgument: Names every argument that is missing, unknown or of a wrong type.

        """
        if not isinstance(arguments, Mapping):
            raise InvalidArgument(
                f"{tool}: the arguments must be an object, got {shortened(arguments)}", hint=self._names()
            )
        given = arguments if self.others is not None else self._renamed(arguments)
        missing = [name for name, parameter in self.parameters.items() if parameter.required and name not in given]
        faults = [f"{name} is required and must be {expected(self.parameters[name].schema)}" for name in missing]
        usage = [self.parameters[name].usage(name) for name in missing]
        is_unknown = False
        checked = {}
        for name, value in given.items():
            parameter = self._parameter(name)
            if parameter is None:
                # Looking for names that are near takes time.
                faults.append(self._unknown(name) if len(faults) < _MAX_FAULTS else "")
                is_unknown = True
            elif value is not None or parameter.required or fits(value, parameter.type):
                notes: list[str] = []
                try:
                    checked[name] = _understood(value, parameter, notes)
                except (ValueError, RecursionError) as fault:
                    said = "".join([_detail(fault), *(f"; {note}" for note in notes)])
                    faults.append(f"{name} must be {expected(parameter.schema)}, got {shortened(value)}{said}")
                    if name in self.parameters:
                        usage.append(parameter.usage(name))
        if faults:
            others = f"; and {len(faults) - _MAX_FAULTS} more" if len(faults) > _MAX_FAULTS else ""
            hints = filter(None, [self._names() if is_unknown else "", *usage[:_MAX_FAULTS]])
            raise InvalidArgument(f"{tool}: {'; '.join(faults[:_MAX_FAULTS])}{others}", hint="; ".join(hints) or None)
        return checked

    def check_host(self, values: Mapping[str, Any], *, tool: str) -> dict[str, Any]:
        """
        Return what the host passes to its own parameters, of any type.

        Raises:
            InvalidArgument: The function has no such parameter, or needs one that is not there.

        """
        missing = [name for name, required in self.host.items() if required and name not in values]
        if missing:
            raise InvalidArgument(f"{tool}: the host must pass {' and '.join(missing)}", hint="no model can set these")
        return {name: value for name, value in values.items() if name in self.host}

    def _parameter(self, name: object) -> Parameter | None:
        """Return the parameter that takes the argument *name*, None where a model cannot set it."""
        if not isinstance(name, str) or name in HOST_PARAMETERS or name in self.bound:
            return None
        return self.parameters.get(name, self.others)

    def _unknown(self, name: object) -> str:
        near = nearest(name, self.parameters)
        return f"{shortened(name)} is no argument of this tool" + (f", did you mean {near}?" if near else "")

    def _renamed(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put names right that can only mean one parameter; those of the host are no model's to give."""
        theirs = {name: value for name, value in arguments.items() if name in HOST_PARAMETERS | self.bound}
        others = {name: value for name, value in arguments.items() if name not in theirs}
        return {**renamed(others, self.parameters), **theirs}

    def _names(self) -> str:
        required = [name for name, parameter in self.parameters.items() if parameter.required]
        optional = [name for name, parameter in self.parameters.items() if not parameter.required]
        if self.others is not None:
            optional.append("any others")
        listed = [", ".join(required)] if required else []
        if optional:
            listed.append(f"optional: {', '.join(optional)}")
        return f"the arguments are: {'; '.join(listed)}" if listed else "it takes no arguments"


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
    if found.annotation is found.empty:
        return Any
    try:
        return _resolved(found.annotation, namespaces)
    except _UNRESOLVED as cause:
        raise InvalidArgument(
            f"the annotation {found.annotation!r} of parameter {found.name} cannot be resolved: {cause}",
            hint="its names must exist at the top of the function's module, outside of `if TYPE_CHECKING`",
        ) from cause


_UNRESOLVED = (NameError, AttributeError, SyntaxError, TypeError)


def _resolved(annotation: Any, namespaces: list[dict[str, Any]]) -> Any:
    """Evaluate a postponed annotation, first where the innermost function was written, then further out."""
    # One annotation at a time: names that exist for type checkers only are common in the return type, and harmless.
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    for namespace in namespaces[:-1]:
        try:
            return typing.get_type_hints(holder, namespace, include_extras=True)["it"]
        except NameError:
            continue
    return typing.get_type_hints(holder, namespaces[-1], include_extras=True)["it"]


def _returns(annotation: Any, namespaces: list[dict[str, Any]]) -> Any:
    """Return the type of the result; Any where nobody says, or says it for type checkers only."""
    if annotation is inspect.Signature.empty:
        return Any
    try:
        return _resolved(annotation, namespaces)
    except _UNRESOLVED:
        return Any


def _with_bounds(name: str, hint: Any) -> Any:
    import msgspec  # noqa: PLC0415 - only once a tool is made

    if name not in _REFERENCE_BOUNDS:
        return hint
    least, most = _REFERENCE_BOUNDS[name]
    return Annotated[hint, msgspec.Meta(ge=least, le=most)]


def _with_default(schema: dict[str, Any], hint: Any, default: Any) -> dict[str, Any]:
    """Add the default to a parameter's schema, if it is something that a model could have sent."""
    if default is inspect.Parameter.empty:
        return schema
    try:
        written = to_jsonable(default)
        _convert(written, Parameter(hint, schema, required=False))
    except (MamaStructsError, ValueError):
        # A sentinel, or None where null is not accepted: models leave the argument out.
        return schema
    return {**schema, "default": written}


def _convert(value: object, parameter: Parameter) -> Any:
    import msgspec  # noqa: PLC0415 - loaded since the tool was made

    if not is_finite(value):
        raise ValueError("NaN and the infinities are no JSON")
    # JSON has text keys only: for a dict[int, ...] they are read as numbers.
    return msgspec.convert(value, parameter.type, strict=True, str_keys=True)


def _understood(value: object, parameter: Parameter, notes: list[str]) -> Any:
    """Convert a value as it stands, or else what it can only mean."""
    try:
        return _convert(value, parameter)
    except (ValueError, RecursionError):
        return _convert(mended(value, parameter.type, notes), parameter)


def _detail(fault: Exception) -> str:
    """Say what is wrong inside a value, where the type as a whole does not say it."""
    if isinstance(fault, RecursionError):
        return ": it is nested too deeply"
    text = str(fault).replace("`", "")
    text, _, place = text.partition(" - at ")
    if not place:
        return "" if text.startswith(("Expected ", "Invalid enum value")) else f": {text}"
    return f": at {place.removeprefix('$').removeprefix('.')}, {text[:1].lower()}{text[1:]}"
