"""Tools: schemas that are derived from signatures, and errors for models."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import inspect
import subprocess
import sys
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mama_structs._internal.jsonable import to_jsonable
from mama_structs.errors import InvalidArgument
from mama_structs.references.decorator import with_references
from mama_structs.references.resolver import Resolver
from mama_structs.references.section import References
from mama_structs.structs.ids import EntityId
from mama_structs.testing.fakes import FakeSource
from mama_structs.tools.tool import Tool, ToolAnnotations

if TYPE_CHECKING:
    from nowhere import Imaginary


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@attrs.frozen
class Tree:
    name: str
    children: list[Tree] = attrs.Factory(list)


@attrs.frozen
class Owned:
    owner: EntityId


class Fleet(pydantic.BaseModel):
    size: int


class Branch(pydantic.BaseModel):
    below: list[Branch]


async def save_decision(
    topic: str, decision: str, *, confidence: float = 0.5, tags: Sequence[str] | None = None
) -> dict[str, Any]:
    """
    Save a decision.

    Use when something was decided.

    Args:
        topic: What it is about,
            in one word.
        decision (str): What was decided.
        confidence: From 0 to 1.
        tags: Some words.

    Returns:
        The saved decision.

    """
    return {"topic": topic, "decision": decision, "confidence": confidence, "tags": tags}


@with_references
async def query_planet(planet_id: str) -> dict[str, Any]:
    """
    Look a planet up.

    Args:
        planet_id: Such as 2-1.

    """
    return {"id": planet_id}


# ---- schemas of functions


def test_from_function_builds_schema_from_signature_and_docstring():
    tool = Tool.from_function(save_decision)

    assert {
        "type": "object",
        "properties": {
            "topic": {"type": "string", "description": "What it is about, in one word."},
            "decision": {"type": "string", "description": "What was decided."},
            "confidence": {"type": "number", "description": "From 0 to 1.", "default": 0.5},
            "tags": {"type": "array", "items": {"type": "string"}, "description": "Some words."},
        },
        "required": ["topic", "decision"],
        "additionalProperties": False,
    } == tool.input_schema
    assert {"type": "object"} == tool.output_schema


def test_description_is_docstring_without_args_section():
    tool = Tool.from_function(save_decision)

    assert (
        "Save a decision.\n\nUse when something was decided.\n\nReturns:\n    The saved decision." == tool.description
    )
    assert "<Tool save_decision(topic, decision, confidence, tags)>" == repr(tool)


def test_from_function_arguments_override_function():
    annotations = ToolAnnotations(read_only=True)
    tool = Tool.from_function(
        save_decision, name="save/decision", title="Save", description="Saves.", annotations=annotations
    )

    assert ("save/decision", "Save", "Saves.") == (tool.name, tool.title, tool.description)
    assert annotations is tool.annotations


def test_title_is_derived_from_name():
    tool = Tool.from_function(save_decision, name="evolve/set_outcome")

    assert "Evolve set outcome" == tool.title


def test_title_is_read_from_tool_title_attribute():
    """Decorators preserve the attribute."""

    async def look(player_id: str) -> dict:
        """Look."""
        return {"id": player_id}

    look.tool_title = "Look somebody up"
    decorated = with_references(look)

    assert "Look somebody up" == Tool.from_function(look).title == Tool.from_function(decorated).title
    assert "Another" == Tool.from_function(look, title="Another").title


def test_meta_bounds_and_description_override_docstring():
    async def ask(share: Annotated[float, msgspec.Meta(ge=0, le=1, description="A share")] = 1.0):
        """
        Ask.

        Args:
            share: Not this.

        """

    schema = Tool.from_function(ask).input_schema["properties"]["share"]

    assert {"type": "number", "minimum": 0, "maximum": 1, "description": "A share", "default": 1.0} == schema


def test_reference_parameters_are_described_and_bounded():
    properties = Tool.from_function(query_planet).input_schema["properties"]

    assert ["planet_id", "include_references", "reference_types", "reference_depth"] == list(properties)
    assert all(one["description"] for one in properties.values())
    assert [0, 1, 2] == properties["reference_depth"]["enum"]
    assert [False, True, "all", "primary"] == properties["include_references"]["enum"]


def test_output_schema_contains_references():
    schema = Tool.from_function(query_planet).output_schema

    assert {"references", "references_meta"} == schema["properties"].keys()


@attrs.frozen
class Guild:
    """A typed result of a tool."""

    guildId: str  # noqa: N815 - the chain's name


class Closed(pydantic.BaseModel, extra="forbid"):
    """A typed result that forbids additional fields."""

    guildId: str  # noqa: N815 - the chain's name


class Typed(TypedDict):
    """A typed mapping as the result of a tool."""

    guildId: str


@pytest.mark.parametrize("kind", [Guild, Closed, Typed, dict[str, str], dict])
async def test_output_schema_of_typed_result_allows_references(kind):
    """`References.from_result` reads the references of the answer."""

    @with_references(resolver=Resolver([FakeSource({"0-1": {"id": "0-1", "name": "Reef"}})]))
    async def look() -> kind:
        return kind(guildId="0-1")

    look.__annotations__["return"] = kind
    look.__signature__ = inspect.signature(look).replace(return_annotation=kind)
    tool = Tool.from_function(look)
    schema = Draft202012Validator(tool.output_schema)
    answers = [
        to_jsonable(await tool.run(given)) for given in ({"include_references": True, "reference_types": []}, {})
    ]
    full = to_jsonable(await tool.run({"include_references": True}))

    assert "Reef" == References.from_result(full)["0-1"]["name"]
    assert [] == [error.message for answer in (*answers, full) for error in schema.iter_errors(answer)]


def test_output_schema_is_object_for_references_without_return_type():
    @with_references
    async def query(name: str):
        return {}

    assert "references" in Tool.from_function(query).output_schema["properties"]


@pytest.mark.parametrize("returns", [str, list[int], dict[str, int] | None, Any, inspect.Signature.empty, object, type])
def test_output_schema_is_none_for_other_than_object(returns):
    async def answer(): ...

    answer.__signature__ = inspect.Signature(return_annotation=returns)

    assert Tool.from_function(answer).output_schema is None


def test_output_schema_describes_json_form():
    """Ids are text, and recursive types keep their definition."""

    async def owned() -> Owned: ...
    async def tree() -> Tree: ...
    async def fleet() -> Fleet: ...
    async def branch() -> Branch: ...

    schemas = [Tool.from_function(one).output_schema for one in (owned, tree, fleet, branch)]

    for schema in schemas:
        Draft202012Validator.check_schema(schema)
    assert {"owner": {"type": "string", "title": "EntityId"}} == schemas[0]["properties"]
    assert {"$ref": "#/$defs/Tree"} == schemas[1]["properties"]["children"]["items"]
    assert ["object"] * 4 == [schema["type"] for schema in schemas]
    assert {"size"} == schemas[2]["properties"].keys()
    assert {"Branch"} == schemas[3]["$defs"].keys()


def test_output_schema_is_none_for_unresolvable_return_type():
    async def imagine() -> Imaginary: ...

    assert Tool.from_function(imagine).output_schema is None


def test_input_schema_inlines_types_with_fields():
    async def draw(at: Point, colour: Colour = Colour.RED, root: Tree | None = None):
        """
        Draw.

        Args:
            at: Where.
            colour: Of the ink.
            root: Below.

        """

    schema = Tool.from_function(draw).input_schema

    assert {"Tree"} == schema["$defs"].keys()
    assert {"integer"} == {one["type"] for one in schema["properties"]["at"]["properties"].values()}
    assert {"title": "Colour", "enum": ["blue", "red"], "description": "Of the ink.", "default": "red"} == schema[
        "properties"
    ]["colour"]


def test_input_schema_omits_invalid_default():
    async def ask(a: int = None, b: int = inspect.Parameter.kind, c: float = float("inf")):  # noqa: RUF013
        return None

    assert [{"type": "integer"}, {"type": "integer"}, {"type": "number"}] == list(
        Tool.from_function(ask).input_schema["properties"].values()
    )


async def test_parameter_without_annotation_accepts_anything():
    async def echo(value):
        return value

    tool = Tool.from_function(echo)

    assert {"value": {}} == tool.input_schema["properties"]
    assert {"a": [1]} == await tool(value={"a": [1]})


async def test_object_parameter_accepts_anything():
    async def echo(value: object):
        return value

    tool = Tool.from_function(echo)

    assert {"value": {}} == tool.input_schema["properties"]
    assert 1 == await tool(value=1)


async def test_variable_keywords_are_validated():
    async def note(text: str, **scores: int):
        return {"text": text, **scores}

    tool = Tool.from_function(note)

    assert {"type": "integer"} == tool.input_schema["additionalProperties"]
    assert {"text": "x", "a": 1} == await tool(text="x", a=1)
    with pytest.raises(InvalidArgument, match=r"a must be an integer, got 'b'$"):
        await tool(text="x", a="b")
    with pytest.raises(InvalidArgument, match=r"'ctx' is no argument .*the arguments are: text; optional: any others"):
        await tool.run({"text": "x", "ctx": 1})


def test_variable_keywords_without_type_accept_anything():
    async def note(**others): ...

    assert Tool.from_function(note).input_schema["additionalProperties"] is True


# ---- supported callables


class Base:
    """A base of operations."""

    async def __call__(self, level: int) -> int:
        return level

    async def raid(self, target: str) -> str:
        """Raid somebody."""
        return target


class WrapsQuery:
    def __init__(self):
        functools.update_wrapper(self, query_planet)

    async def __call__(self, **arguments):
        return await query_planet(**arguments)


@pytest.mark.parametrize(
    ("function", "name", "description", "parameters"),
    [
        (Base().raid, "raid", "Raid somebody.", ["target"]),
        (Base(), "base", "A base of operations.", ["level"]),
        (functools.partial(Base(), 1), "base", "A base of operations.", []),
        (functools.partial(functools.partial(Base.raid, Base()), target="x"), "raid", "Raid somebody.", []),
        (WrapsQuery(), "query_planet", "Look a planet up.", ["planet_id", "include_references"]),
    ],
)
def test_from_function_accepts_methods_objects_and_partials(function, name, description, parameters):
    tool = Tool.from_function(function)

    assert (name, description) == (tool.name, tool.description)
    assert parameters == list(tool._signature.parameters)[:2]


async def test_wrapper_receives_added_arguments():
    @functools.wraps(save_decision)
    async def wrapper(*args, loudly=False, **kwargs):
        return {**await save_decision(*args, **kwargs), "loudly": loudly}

    signature = inspect.signature(save_decision)
    more = inspect.Parameter("loudly", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool)
    wrapper.__signature__ = signature.replace(parameters=[*signature.parameters.values(), more])

    result = await Tool.from_function(wrapper)(topic="auth", decision="JWT", loudly=True)

    assert ("auth", True) == (result["topic"], result["loudly"])


def test_annotations_resolve_in_module_of_wrapper():
    elsewhere: dict[str, Any] = {}
    exec("async def inner(): ...", elsewhere)

    @functools.wraps(elsewhere["inner"])
    async def outer(**arguments): ...

    outer.__signature__ = inspect.Signature(
        [inspect.Parameter("colour", inspect.Parameter.KEYWORD_ONLY, annotation="Colour")]
    )

    assert ["blue", "red"] == Tool.from_function(outer).input_schema["properties"]["colour"]["enum"]


async def test_arguments_bound_by_partial_are_hidden():
    async def fetch(client: Imaginary, path: str, **others: Any):
        return client, path

    tool = Tool.from_function(functools.partial(fetch, client="ours"))

    assert ["path"] == list(tool.input_schema["properties"])
    assert ("ours", "/x") == await tool(path="/x")
    with pytest.raises(InvalidArgument, match="'client' is no argument"):
        await tool(path="/x", client="theirs")


async def test_call_returns_result_unchanged():
    result = object()

    async def give():
        return result

    assert result is await Tool.from_function(give)()


async def test_host_parameters_are_hidden_from_models():
    async def ask(question: str, ctx: Imaginary, run_context=None):
        return question, ctx, run_context

    tool = Tool.from_function(ask)

    assert ["question"] == list(tool.input_schema["properties"])
    assert ("why", 1, None) == await tool(question="why", ctx=1)
    assert ("why", 1, 2) == await tool.run({"question": "why"}, host={"ctx": 1, "run_context": 2, "tool_context": 3})
    with pytest.raises(InvalidArgument, match="the host must pass ctx"):
        await tool(question="why")
    with pytest.raises(InvalidArgument, match="'ctx' is no argument"):
        await tool.run({"question": "why", "ctx": 1})


async def positional(a, /): ...


async def many(*ids: str): ...


async def imaginary(a: Imaginary): ...


async def number(a: complex): ...


async def keyed(a: dict[tuple[int, int], complex]): ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (positional, "positional-only parameter a cannot.*remove the /"),
        (many, r"\*ids cannot be offered to a model.*take ids as a list"),
        (imaginary, "annotation 'Imaginary' of parameter a cannot be resolved.*TYPE_CHECKING"),
        (number, "parameter a: complex cannot be offered to a model: JSON has no form of it"),
        (keyed, "parameter a: dict.* cannot be offered to a model: JSON has no form of it"),
    ],
)
def test_from_function_rejects_unsupported_parameters(function, message):
    with pytest.raises(InvalidArgument, match=message):
        Tool.from_function(function)


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", "/a", "a/", "é", "x" * 65, "a\n", 5])
def test_from_function_rejects_invalid_name(name):
    with pytest.raises(InvalidArgument, match="tool's name must be"):
        Tool.from_function(save_decision, name=name)


# ---- validation


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            {"topic": "x"},
            "save_decision: decision is required and must be a string",
            "decision (required): What was decided.",
        ),
        (
            {"topic": "x", "decision": "y", "topik": 1},
            "'topik' is no argument of this tool, did you mean topic?",
            "the arguments are: topic, decision; optional: confidence, tags",
        ),
        (
            {"topic": 5, "decision": "y", "zzz": 1},
            "topic must be a string, got 5; 'zzz' is no argument of this tool",
            (
                "the arguments are: topic, decision; optional: confidence, tags; "
                "topic (required): What it is about, in one word."
            ),
        ),
        (
            {"topic": None, "decision": "y"},
            "topic must be a string, got null",
            "topic (required): What it is about, in one word.",
        ),
        (
            {"topic": "x", "decision": "y", "confidence": True},
            "confidence must be a number, got true",
            "confidence (optional): From 0 to 1.",
        ),
        (
            {"topic": "x", "decision": "y", "tags": ["a", 5]},
            "tags must be an array (each a string), got a list of length 2: at [1], expected str, got int",
            "tags (optional): Some words.",
        ),
    ],
)
async def test_invalid_arguments_are_named_with_expected_type(arguments, message, hint):
    """Valid arguments are not mentioned."""
    with pytest.raises(InvalidArgument) as caught:
        await Tool.from_function(save_decision)(**arguments)

    assert caught.value.args[0].endswith(message)
    assert hint == caught.value.hint


async def test_error_names_all_faults():
    with pytest.raises(InvalidArgument) as caught:
        await Tool.from_function(query_planet)(include_references="some", reference_depth=3)

    assert (
        "query_planet: planet_id is required and must be a string; "
        "include_references must be false, true, 'all' or 'primary', got 'some'; "
        "reference_depth must be 0, 1 or 2, got 3"
    ) == caught.value.args[0]


async def test_error_truncates_long_values():
    with pytest.raises(InvalidArgument) as caught:
        await Tool.from_function(query_planet)(planet_id=["x" * 10_000] * 1000, max_references="y" * 10_000)

    assert 1500 > len(str(caught.value))


async def test_error_says_that_tool_takes_no_arguments():
    async def ping(): ...

    with pytest.raises(InvalidArgument, match="it takes no arguments"):
        await Tool.from_function(ping)(x=1)


@pytest.mark.parametrize("arguments", [None, [], "{}"])
async def test_run_rejects_arguments_that_are_no_object(arguments):
    with pytest.raises(InvalidArgument, match="save_decision: the arguments must be an object"):
        await Tool.from_function(save_decision).run(arguments)


Wide = msgspec.defstruct("Wide", [(letter, int) for letter in "abcdefghijklm"])


def tool_taking(annotation, default=inspect.Parameter.empty):
    async def take(value):
        return value

    take.__signature__ = inspect.Signature(
        [inspect.Parameter("value", inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)]
    )
    return Tool.from_function(take)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, True),
        (int, "five"),
        (int, 5.5),
        (int, None),
        (float, "high"),
        (float, True),
        (float, float("nan")),
        (list[float], [float("inf")]),
        (dict[str, Any], {"a": {"b": float("nan")}}),
        (bool, 1),
        (bool, "yes"),
        (str, 5),
        (str, ["abc"]),
        (list[str], "abc, def"),
        (dict[int, str], {"one": "x"}),
        (Colour, "green"),
        pytest.param(float, 10**400, id="beyond-floats"),
        pytest.param(str, 10**5000, id="beyond-text"),
    ],
)
async def test_ambiguous_values_are_rejected(annotation, value):
    """Unambiguous mistakes are in test_argument_repair.py."""
    with pytest.raises(InvalidArgument, match="take: value must be "):
        await tool_taking(annotation)(value=value)


@pytest.mark.parametrize(
    ("annotation", "value", "received"),
    [
        (float, 1, 1.0),
        (Sequence[str], ("a", "b"), ["a", "b"]),
        (set[int], [1, 1], {1}),
        (dict[int, str], {"1": "x"}, {1: "x"}),
        (dt.date, "2026-01-31", dt.date(2026, 1, 31)),
        (decimal.Decimal, 1.5, decimal.Decimal("1.5")),
        (bytes, "aGk=", b"hi"),
        (Colour, "red", Colour.RED),
        (Point, {"x": 1}, Point(1)),
        (Tree, {"name": "a", "children": [{"name": "b"}]}, Tree("a", [Tree("b")])),
    ],
)
async def test_arguments_are_converted_to_parameter_types(annotation, value, received):
    assert received == await tool_taking(annotation)(value=value)


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (Annotated[int, msgspec.Meta(gt=0)], 0, "an integer above 0, got 0"),
        (Annotated[int, msgspec.Meta(ge=1)], 0, "an integer of at least 1, got 0"),
        (Annotated[str, msgspec.Meta(min_length=2, max_length=5)], "a", "a string of 2 to 5 characters, got 'a'"),
        (Annotated[str, msgspec.Meta(max_length=1)], "ab", "a string of at most 1 character, got 'ab'"),
        (Annotated[list[int], msgspec.Meta(min_length=1)], [], r"an array of at least 1 item \(each an integer\), got"),
        (list[Point], 5, r"an array \(each an object {x, y[?]}\), got 5"),
        (Wide, {}, "an object {a, b, c, d, e, f, g, h, i, j, k, l, …}, got {}"),
        (
            Annotated[str, msgspec.Meta(min_length=1, pattern="^a")],
            "",
            "a string of at least 1 character matching \\^a, got ''$",
        ),
        (Literal["a"] | None, "b", "'a' or null, got 'b'$"),
        (dt.date, "soon", r"a string \(date\), got 'soon': invalid RFC3339 encoded date|: Invalid"),
        (Point, {"y": 1}, "an object {x, y[?]}, got a dict of length 1: Object missing required field x"),
        (Tree, {"name": "a", "children": [{}]}, r"at children\[0\], object missing required field name"),
        (Tree | int, "a", "an object or an integer, got 'a'$"),
        (decimal.Decimal, None, r"a string \(decimal\) or a number \(decimal\), got null"),
        (bytes, 5, "a string in base64, got 5"),
        (list[Any] | None, 5, r"an array or null, got 5|an array \(each anything\) or null"),
    ],
)
async def test_error_describes_every_schema_in_words(annotation, value, message):
    with pytest.raises(InvalidArgument, match=message):
        await tool_taking(annotation)(value=value)


async def test_infinitely_nested_argument_is_rejected():
    value: list[Any] = []
    value.append(value)

    with pytest.raises(InvalidArgument, match="it is nested too deeply"):
        await tool_taking(list[Any])(value=value)


# ---- agreement of schemas and validation

ANNOTATIONS = [
    str,
    int,
    float,
    bool,
    int | None,
    int | str | None,
    list[int],
    Sequence[str] | None,
    set[int],
    tuple[int, str],
    dict[str, float],
    Mapping[str, Any],
    Literal["a", "b", 1],
    bool | Literal["primary", "all"],
    Colour,
    Point,
    Tree,
    list[Point] | None,
    Annotated[int, msgspec.Meta(ge=0, le=2)],
    Annotated[str, msgspec.Meta(min_length=1, max_length=3)],
    Annotated[list[int], msgspec.Meta(max_length=2)],
    Any,
]
PAIRS = [(tool_taking(one), Draft202012Validator(tool_taking(one).input_schema)) for one in ANNOTATIONS]
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer())
    | st.text(max_size=4)
    | st.sampled_from(["a", "b", "red", "primary"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "y", "name", "children", "q"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    pair=st.sampled_from(PAIRS),
    arguments=st.dictionaries(st.sampled_from(["value", "value", "other"]), values, max_size=2)
    | st.fixed_dictionaries({"value": values}),
)
@example(pair=PAIRS[ANNOTATIONS.index(set[int])], arguments={"value": [1, 1]})
def test_tool_accepts_exactly_what_its_schema_accepts(pair, arguments):
    """Not covered: whole floats for integers, ``format``, and dicts with non-text keys."""
    tool, validator = pair
    try:
        received = asyncio.run(tool.run(arguments))
    except InvalidArgument:
        assert not validator.is_valid(arguments)
        return

    # The repaired value is valid for the schema.
    assert validator.is_valid(arguments) or validator.is_valid({"value": to_jsonable(received)})


@pytest.mark.parametrize("annotation", [*ANNOTATIONS, decimal.Decimal, dt.datetime, bytes, dict[int, str], object])
def test_input_schemas_are_valid_json_schema(annotation):
    Draft202012Validator.check_schema(tool_taking(annotation).input_schema)


@pytest.mark.parametrize("union", [True, False])
def test_schema_of_tagged_union_has_no_discriminator(union):
    class Move(msgspec.Struct, tag=True):
        to: str

    class Stay(msgspec.Struct, tag=True):
        pass

    schema = tool_taking(Move | Stay if union else Move).input_schema

    assert "$defs" not in schema
    assert "discriminator" not in str(schema)


# ---- annotations and cost


def test_annotation_defaults_are_least_safe():
    assert "ToolAnnotations(read_only=False, destructive=True, idempotent=False, open_world=True)" == repr(
        ToolAnnotations()
    )
    assert ToolAnnotations(read_only=True, destructive=False, idempotent=True) == ToolAnnotations(read_only=True)


def test_annotations_reject_destructive_read_only_tool():
    with pytest.raises(InvalidArgument, match="cannot be destructive"):
        ToolAnnotations(read_only=True, destructive=True)


def test_importing_tools_does_not_import_msgspec():
    code = "import sys, mama_structs.tools.wire_names; sys.exit('msgspec' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_from_function_takes_few_steps(steps):
    """Hosts create dozens of tools at each start."""
    Tool.from_function(query_planet)

    assert 3_000 > steps(Tool.from_function, query_planet)


def test_type_hints_of_public_objects_resolve():
    assert typing.get_type_hints(Tool.from_function)
    assert typing.get_type_hints(Tool)
