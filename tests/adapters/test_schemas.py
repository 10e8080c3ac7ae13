from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import decimal
import enum
import inspect
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mama_structs import Session, Tool
from mama_structs.adapters.shared.tool_schemas import is_recursive, plain_schema, strict_schema
from mama_structs.settings import Settings, ToolSettings
from mama_structs.testing import FakeNode
from mama_structs.tools.schema import subschemas


class Mood(enum.Enum):
    CALM = "calm"
    ANGRY = "angry"


@dataclasses.dataclass
class Step:
    """One step."""

    name: str
    weight: float = 0.5
    tags: list[str] = dataclasses.field(default_factory=list)
    note: str | None = None


@dataclasses.dataclass
class Tree:
    label: str
    children: list[Tree] = dataclasses.field(default_factory=list)
    parent: Tree | None = None


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    where: tuple[int, ...] = ()


class Free(TypedDict):
    anything: Any


small = st.integers(-5, 5)
words = st.text("abc", max_size=3)
steps = st.fixed_dictionaries(
    {
        "name": words,
        "weight": st.none() | st.floats(0, 1),
        "tags": st.none() | st.lists(words, max_size=2),
        "note": st.none() | words,
    }
)
trees = st.recursive(
    st.fixed_dictionaries({"label": words, "children": st.none() | st.just([]), "parent": st.none()}),
    lambda inner: st.fixed_dictionaries(
        {"label": words, "children": st.lists(inner, max_size=2), "parent": st.none() | inner}
    ),
    max_leaves=3,
)

# What a parameter may be: its type, and values that it takes.
SCALARS = [
    (str, words),
    (int, small),
    (float, st.floats(-1, 1) | small),
    (bool, st.booleans()),
    (Mood, st.sampled_from(["calm", "angry"])),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (Literal["a", 1] | None, st.sampled_from(["a", 1, None])),
    (bool | Literal["all"], st.sampled_from([True, False, "all"])),
    (Annotated[int, msgspec.Meta(ge=0, le=9)], st.integers(0, 9)),
    (Annotated[str, msgspec.Meta(min_length=1, max_length=5, pattern="^x")], st.just("xy")),
    (dt.date, st.just("2026-03-01")),
    (dt.datetime, st.just("2026-03-01T09:30:00Z")),
    (bytes, st.just("aGk=")),
    (decimal.Decimal, st.sampled_from(["1.5", 2])),
    (Step, steps),
    (Tree, trees),
    (Closed, st.just({"where": [1]}) | st.just({"where": None})),
]
FREE = [Any, dict, dict[str, int], list, list[Any], Free, tuple[int, str], list[dict[str, Any]]]
kinds = st.sampled_from(SCALARS).flatmap(
    lambda kind: st.sampled_from(
        [
            kind,
            kind,
            (kind[0] | None, st.none() | kind[1]),
            (list[kind[0]], st.lists(kind[1], max_size=2)),
            (
                Annotated[list[kind[0]], msgspec.Meta(min_length=1, max_length=3)],
                st.lists(kind[1], min_size=1, max_size=3),
            ),
        ]
    )
)


def tool_of(parameters: dict[str, tuple[Any, bool]]) -> Tool:
    """Return a tool with these parameters: of each the type, and whether it has a default."""

    async def run(**given: Any) -> None:
        """Run."""

    run.__signature__ = inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=kind,
                default=None if optional else inspect.Parameter.empty,
            )
            for name, (kind, optional) in parameters.items()
        ]
    )
    return Tool.from_function(run)


def strict_of(kind: Any, *, optional: bool = False, **more: Any) -> dict[str, Any] | None:
    """Return the strict schema of a tool's only parameter, None where the tool has none."""
    schema = strict_schema(tool_of({"it": (kind, optional)}).input_schema, **more)
    return schema and schema["properties"]["it"]


def check_strict(schema: dict[str, Any]) -> None:
    """Hold a schema against JSON Schema, the rules of strict schemas, and the SDKs that know them."""
    agents = pytest.importorskip("agents.strict_schema")
    openai = pytest.importorskip("openai.lib._pydantic")
    Draft202012Validator.check_schema(schema)
    for node in subschemas(schema):
        assert {"description", "type", "anyOf", "enum", "items", "$ref", "$defs"} >= node.keys() - {
            "properties",
            "required",
            "additionalProperties",
        }
        if node.get("type") == "object":
            assert node["additionalProperties"] is False
            assert list(node["properties"]) == node["required"]
        assert "$ref" not in node or {"$ref"} == node.keys()
    assert schema == agents.ensure_strict_json_schema(copy.deepcopy(schema))
    assert schema == openai._ensure_strict_json_schema(copy.deepcopy(schema), path=(), root=copy.deepcopy(schema))


def check_anthropic(schema: dict[str, Any]) -> None:
    """Hold a schema against what Anthropic's SDK makes of it, which drops the types beside enums."""
    anthropic = pytest.importorskip("anthropic")
    if not hasattr(anthropic, "transform_schema"):
        pytest.skip("this release of the SDK knows no strict schemas")
    expected = copy.deepcopy(schema)
    for node in subschemas(expected):
        if "enum" in node:
            del node["type"]
    assert expected == anthropic.transform_schema(schema)


async def echo_any(data: dict[str, Any], plain: list, anything: Any = None) -> None:
    """Take anything."""


class TestToolsOfASession:
    @pytest.fixture
    async def session(self):
        settings = Settings(tools=ToolSettings(deprecated=True))
        async with (
            FakeNode.world(seed=1, players=12) as node,
            Session.open(structs=node.url, settings=settings) as opened,
        ):
            opened.tools.add(echo_any)
            yield opened

    async def test_every_schema_is_valid(self, session):
        """What is sent is JSON Schema 2020-12, strict or not, and of arrays it says what they hold."""
        assert 35 < len(session.tools)
        for tool in session.tools.values():
            Draft202012Validator.check_schema(tool.input_schema)
            plain = plain_schema(tool.input_schema)
            Draft202012Validator.check_schema(plain)

            assert all("items" in node for node in subschemas(plain) if node.get("type") == "array")

    async def test_every_tool_of_our_own_has_a_strict_form(self, session):
        """Only a host's tool that takes anything, and the one of v1.0 that takes any object, are sent without."""
        strict = {name: strict_schema(tool.input_schema) for name, tool in session.tools.items()}
        for schema in strict.values():
            if schema is not None:
                check_strict(schema)

        assert {"echo_any", "save_decision"} == {name for name, schema in strict.items() if schema is None}

    async def test_anthropics_sdk_takes_the_strict_form_as_it_is(self, session):
        """What may be left out stays optional there, since it counts unions."""
        for tool in session.tools.values():
            schema = strict_schema(tool.input_schema, nullable=False)
            if schema is not None:
                check_anthropic(schema)

    async def test_what_the_schemas_were_made_from_is_unchanged(self, session):
        """A tool's schema is shared by all adapters."""
        before = {name: copy.deepcopy(tool.input_schema) for name, tool in session.tools.items()}
        for tool in session.tools.values():
            plain = plain_schema(tool.input_schema)
            plain["properties"].clear()
            strict = strict_schema(tool.input_schema)
            if strict is not None:
                strict["properties"].clear()

        assert before == {name: tool.input_schema for name, tool in session.tools.items()}

    async def test_nulls_for_what_is_optional_are_accepted(self, session):
        """A model that is held to the strict schema says null where it would leave an argument out."""
        for name, required in {
            "save/decision": {"topic": "auth", "decision": "Use JWT", "reasoning": "stateless"},
            "save/checkpoint": {"summary": "half done"},
            "save/insight": {"content": "caches leak"},
            "search/by_context": {"query": "logins"},
            "search/recent": {},
            "list_refs": {},
            "structs_list_players": {},
        }.items():
            schema = strict_schema(session.tools[name].input_schema)
            arguments = {**dict.fromkeys(schema["properties"]), **required}
            Draft202012Validator(schema).validate(arguments)

            await session.call(name, arguments)
        assert 3 == await session.memories.count()

    async def test_nulls_within_a_link_are_accepted(self, session):
        """So are those further in."""
        schema = strict_schema(session.tools["save/insight"].input_schema)
        first = await session.call("save/insight", {"content": "caches leak"})
        link = {"id": first["id"], "relationship": None}
        arguments = {**dict.fromkeys(schema["properties"]), "content": "only over night", "links": [link]}
        Draft202012Validator(schema).validate(arguments)
        saved = await session.call("save/insight", arguments)

        links = [one for one in await session.memories.links_of(saved["id"]) if one.created_by == "llm"]

        assert ["related to"] == [one.metadata.original_relationship for one in links]


class TestToolsOfHosts:
    @given(
        parameters=st.dictionaries(st.sampled_from("abc"), st.tuples(kinds, st.booleans()), max_size=3), data=st.data()
    )
    def test_what_the_strict_schema_allows_the_tool_accepts(self, parameters, data):
        """Any types together make a schema that the SDKs take, and its nulls stand for what is left out."""
        tool = tool_of({name: (kind, optional) for name, ((kind, _), optional) in parameters.items()})
        schema = strict_schema(tool.input_schema)
        check_strict(schema)
        arguments = {
            name: data.draw(st.none() | values if optional else values, label=name)
            for name, ((_, values), optional) in parameters.items()
        }

        assert [] == list(Draft202012Validator(schema).iter_errors(arguments))
        assert parameters.keys() >= tool.signature.check(arguments, tool="tool").keys()

    @given(parameters=st.dictionaries(st.sampled_from("abc"), st.tuples(kinds, st.booleans()), max_size=3))
    def test_anthropics_strict_form_is_taken_as_it_is(self, parameters):
        """Its SDK finds nothing to change in it."""
        tool = tool_of({name: (kind, optional) for name, ((kind, _), optional) in parameters.items()})
        schema = strict_schema(tool.input_schema, nullable=False)

        check_anthropic(schema)
        assert [name for name, (_, optional) in parameters.items() if not optional] == schema["required"]

    @pytest.mark.parametrize("kind", FREE, ids=str)
    @pytest.mark.parametrize("wrap", [lambda kind: kind, lambda kind: list[kind], lambda kind: kind | None])
    def test_what_is_free_has_no_strict_form(self, kind, wrap):
        """Such a tool is sent as it is, rather than with less than it takes."""
        if kind is Any and wrap(int) == (int | None):
            kind = object
        tool = tool_of({"it": (wrap(kind), False)})

        assert strict_schema(tool.input_schema) is None
        Draft202012Validator.check_schema(plain_schema(tool.input_schema))

    def test_a_tool_that_takes_other_arguments_too_has_no_strict_form(self):
        """``**others`` is free by its nature."""

        async def run(text: str, **others: int) -> None:
            """Run."""

        assert strict_schema(Tool.from_function(run).input_schema) is None

    def test_a_tool_without_arguments_has_one(self):
        """It takes the empty object only."""
        empty = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}

        assert empty == strict_schema(tool_of({}).input_schema)


class TestWords:
    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            (Annotated[int, msgspec.Meta(ge=0, le=9)], "0 to 9"),
            (Annotated[int, msgspec.Meta(ge=1)], "at least 1"),
            (Annotated[float, msgspec.Meta(le=1)], "at most 1"),
            (Annotated[float, msgspec.Meta(gt=0, lt=1)], "above 0; below 1"),
            (Annotated[int, msgspec.Meta(multiple_of=5)], "a multiple of 5"),
            (Annotated[str, msgspec.Meta(min_length=1)], "not empty"),
            (Annotated[str, msgspec.Meta(min_length=1, max_length=64)], "1 to 64 characters"),
            (Annotated[str, msgspec.Meta(max_length=10_000)], ""),
            (Annotated[str, msgspec.Meta(pattern="^a+$")], "matching ^a+$"),
            (Annotated[list[int], msgspec.Meta(max_length=3)], "at most 3 items"),
            (dt.date, "as date"),
            (bytes, "in base64"),
        ],
    )
    def test_what_strict_schemas_cannot_demand_is_said(self, kind, words):
        """The model reads the bound, and the tool checks it."""
        told = strict_of(kind)

        assert words == told.get("description", "")

    def test_the_default_is_said(self):
        """A default that is nothing is said to be none."""

        async def run(
            mode: Annotated[Literal["b", "a"], msgspec.Meta(description="How")] = "a",
            tags: Sequence[str] = (),
            text: str = "",
            other: int | None = 3,
        ) -> None:
            """Run."""

        properties = strict_schema(Tool.from_function(run).input_schema)["properties"]

        assert {
            "text": "or null",
            "mode": 'How (null for the default, "a")',
            "tags": "or null",
            "other": "default: 3",
        } == {name: one["description"] for name, one in properties.items()}

    def test_optional_is_nullable_once(self):
        """What may be left out is nullable in the strict form, whether its type takes null or not."""
        nulls = {"anyOf": [{"type": "string"}, {"type": "null"}]}

        assert {"description": "or null", **nulls} == strict_of(str | None, optional=True)
        assert {"description": "or null", **nulls} == strict_of(str, optional=True)
        assert nulls == strict_of(str | None)
        assert {"type": "string"} == strict_of(str) == strict_of(str, optional=True, nullable=False)

    def test_an_enum_of_several_types_is_one_for_each(self):
        """OpenAI wants a type beside each enum."""
        assert {"anyOf": [{"type": "integer", "enum": [1]}, {"type": "string", "enum": ["a"]}]} == strict_of(
            Literal["a", 1]
        )
        assert {"type": "string", "enum": ["a", "b"]} == strict_of(Literal["b", "a"])


class TestReferences:
    def test_a_recursive_type_keeps_its_definition(self):
        """Nothing stands beside a reference, and unused definitions go."""
        schema = strict_schema(tool_of({"tree": (Tree, False)}).input_schema)
        check_strict(schema)

        assert ["Tree"] == list(schema["$defs"])
        assert is_recursive(schema)
        assert not is_recursive(strict_schema(tool_of({"step": (Step, False)}).input_schema))

    def test_a_description_beside_a_reference_is_kept(self):
        """It moves to where it is allowed."""
        schema = {
            "type": "object",
            "properties": {"tree": {"$ref": "#/$defs/T", "description": "The tree"}},
            "required": ["tree"],
            "$defs": {"T": {"type": "object", "properties": {"t": {"$ref": "#/$defs/T"}}}, "Unused": {}},
        }
        strict = strict_schema(schema)
        check_strict(strict)

        assert {"description": "The tree", "anyOf": [{"$ref": "#/$defs/T"}]} == strict["properties"]["tree"]
        assert ["T"] == list(strict["$defs"])

    @pytest.mark.parametrize("reference", ["#", "#/properties/a", "#/$defs/Missing", "other.json", 3])
    def test_a_reference_elsewhere_has_no_strict_form(self, reference):
        """Only definitions of the schema's own are followed."""
        assert strict_schema({"type": "object", "properties": {"a": {"$ref": reference}}}) is None


class TestLimits:
    @staticmethod
    def nested(depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        for _ in range(depth):
            schema = {"type": "object", "properties": {"a": schema}}
        return schema

    @staticmethod
    def choosing(values: list[str]) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": {"enum": values}}}

    def test_ten_objects_within_one_another_are_the_most(self):
        """OpenAI refuses the eleventh."""
        assert strict_schema(self.nested(10)) is not None
        assert strict_schema(self.nested(11)) is None
        assert strict_schema(self.nested(5000)) is None

    def test_enums_have_a_thousand_values_at_most(self):
        """As have all enums of a schema together."""
        assert strict_schema(self.choosing([f"{number}" for number in range(1000)])) is not None
        assert strict_schema(self.choosing([f"{number}" for number in range(1001)])) is None

    def test_a_large_enum_has_short_values(self):
        """More than 250 values have 15,000 characters together at most."""
        assert strict_schema(self.choosing([f"{number:060}" for number in range(250)])) is not None
        assert strict_schema(self.choosing([f"{number:060}" for number in range(251)])) is None

    def test_names_are_not_too_long_together(self):
        """120,000 characters of names are the most."""
        most = {"type": "object", "properties": {f"{number:012}": {"type": "string"} for number in range(5000)}}
        longer = {"type": "object", "properties": {f"{number:030}": {"type": "string"} for number in range(5000)}}
        more = {"type": "object", "properties": {f"{number}": {"type": "string"} for number in range(5001)}}

        assert strict_schema(most) is not None
        assert strict_schema(longer) is None
        assert strict_schema(more) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"anyOf": [{"type": "object", "properties": {}}]},
        {"type": ["object", "null"], "properties": {}},
        {"type": "object"},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "properties": {}, "patternProperties": {"a": {}}},
        {"type": "object", "properties": {}, "minProperties": 1},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {"not": {"type": "string"}}}},
        {"type": "object", "properties": {"a": {"allOf": [{"type": "string"}, {"minLength": 1}]}}},
        {"type": "object", "properties": {"a": {"type": "array", "prefixItems": [{"type": "string"}]}}},
        {"type": "object", "properties": {"a": {"enum": []}}},
        {"type": "object", "properties": {"a": {"enum": [["x"]]}}},
        {"type": "object", "properties": {"a": {"type": "text"}}},
        {"type": "object", "properties": {"a": {"$id": "x", "type": "string"}}},
    ],
)
def test_what_it_does_not_know_has_no_strict_form(schema):
    """A schema that a host wrote is sent as it is rather than with another meaning."""
    assert strict_schema(schema) is None
    assert schema == plain_schema(schema)


def test_an_array_without_items_gets_some():
    """OpenAI refuses a request with an array of which nothing is said."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array"},
            "b": {"anyOf": [{"type": ["array", "null"]}]},
            "items": {"type": "string"},
        },
    }

    assert {
        "a": {"type": "array", "items": {}},
        "b": {"anyOf": [{"type": ["array", "null"], "items": {}}]},
        "items": {"type": "string"},
    } == plain_schema(schema)["properties"]
    assert {"type": "array"} == schema["properties"]["a"]


def test_constants_and_one_of_are_said_in_other_words():
    """A const is an enum of one, and oneOf is anyOf."""
    schema = {
        "type": "object",
        "properties": {"a": {"const": "x"}, "b": {"oneOf": [{"type": "integer"}, {"enum": ["n", None]}]}},
        "required": ["a"],
    }
    strict = strict_schema(schema)
    check_strict(strict)

    assert {
        "a": {"type": "string", "enum": ["x"]},
        "b": {"anyOf": [{"type": "integer"}, {"anyOf": [{"type": "string", "enum": ["n"]}, {"type": "null"}]}]},
    } == strict["properties"]
