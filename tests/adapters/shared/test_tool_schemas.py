from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schema_helpers import check_openai_strict

from mama_structs import Session, Tool
from mama_structs.adapters.shared.tool_schemas import (
    is_recursive,
    to_adaptable_schema,
    to_always_strict_schema,
    to_plain_schema,
    to_strict_schema,
)
from mama_structs.settings import Settings, ToolSettings
from mama_structs.testing import FakeNode
from mama_structs.tools.schema import iterate_subschemas


class Mood(enum.Enum):
    CALM = "calm"
    ANGRY = "angry"


@dataclasses.dataclass
class Step:
    """A dataclass as the type of an argument."""

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

# Pairs of a parameter type and a strategy for its valid values.
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
    """Return a tool. *parameters* maps each name to a type, and to True if the parameter has a default."""

    async def run(**given: Any) -> None:
        """Do nothing."""

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
    """Return the strict schema of a parameter of type *kind*, or None if the schema has no strict form."""
    schema = to_strict_schema(tool_of({"it": (kind, optional)}).input_schema, **more)
    return schema and schema["properties"]["it"]


def check_strict(schema: dict[str, Any]) -> None:
    """Assert that a schema follows JSON Schema and the rules for strict schemas, and that the SDKs do not change it."""
    agents = pytest.importorskip("agents.strict_schema")
    openai = pytest.importorskip("openai.lib._pydantic")
    check_openai_strict(schema)
    assert schema == agents.ensure_strict_json_schema(copy.deepcopy(schema))
    assert schema == openai._ensure_strict_json_schema(copy.deepcopy(schema), path=(), root=copy.deepcopy(schema))


def check_anthropic(schema: dict[str, Any]) -> None:
    """Assert that Anthropic's SDK only removes the `type` keywords next to `enum` from a schema."""
    anthropic = pytest.importorskip("anthropic")
    if not hasattr(anthropic, "transform_schema"):
        pytest.skip("this release of the SDK knows no strict schemas")
    expected = copy.deepcopy(schema)
    for node in iterate_subschemas(expected):
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
        """Plain and strict schemas are JSON Schema 2020-12, and every array has items."""
        assert 35 < len(session.tools)
        for tool in session.tools.values():
            Draft202012Validator.check_schema(tool.input_schema)
            plain = to_plain_schema(tool.input_schema)
            Draft202012Validator.check_schema(plain)

            assert all("items" in node for node in iterate_subschemas(plain) if node.get("type") == "array")

    async def test_every_package_tool_has_strict_form(self, session):
        """Exceptions: a host's tool that accepts anything, and the tool of v1.0 that accepts any object."""
        strict = {name: to_strict_schema(tool.input_schema) for name, tool in session.tools.items()}
        for schema in strict.values():
            if schema is not None:
                check_strict(schema)

        assert {"echo_any", "save_decision"} == {name for name, schema in strict.items() if schema is None}

    async def test_strict_schema_is_unchanged_by_anthropic_sdk(self, session):
        """Optional arguments stay optional for Anthropic, because it limits unions."""
        for tool in session.tools.values():
            schema = to_strict_schema(tool.input_schema, nullable=False)
            if schema is not None:
                check_anthropic(schema)

    async def test_adaptable_schema_becomes_strict_when_all_properties_are_required(self, session):
        """The package's tools get the strict form. A tool without one keeps its plain form."""
        for tool in session.tools.values():
            schema, strict = to_adaptable_schema(tool.input_schema), to_strict_schema(tool.input_schema)
            assert tool.input_schema.get("required", []) == schema.get("required", [])
            if strict is None:
                assert to_plain_schema(tool.input_schema) == schema
                continue
            for node in iterate_subschemas(schema):
                if node.get("type") == "object":
                    node["required"] = list(node["properties"])
                # An array that may be null is a union, so that frameworks find its items.
                if [one.get("type") for one in node.get("anyOf", ())] == ["array", "null"]:
                    node.update({**node.pop("anyOf")[0], "type": ["array", "null"]})

            assert strict == schema

    async def test_strict_schema_does_not_modify_source(self, session):
        """A tool's schema is shared by all adapters."""
        before = {name: copy.deepcopy(tool.input_schema) for name, tool in session.tools.items()}
        for tool in session.tools.values():
            plain = to_plain_schema(tool.input_schema)
            plain["properties"].clear()
            strict = to_strict_schema(tool.input_schema)
            if strict is not None:
                strict["properties"].clear()

        assert before == {name: tool.input_schema for name, tool in session.tools.items()}

    async def test_null_for_optional_argument_is_accepted(self, session):
        """With the strict schema a model sends null instead of omitting an argument."""
        for name, required in {
            "save/decision": {"topic": "auth", "decision": "Use JWT", "reasoning": "stateless"},
            "save/checkpoint": {"summary": "half done"},
            "save/insight": {"content": "caches leak"},
            "search/by_context": {"query": "logins"},
            "search/recent": {},
            "list_refs": {},
            "structs_list_players": {},
        }.items():
            schema = to_strict_schema(session.tools[name].input_schema)
            arguments = {**dict.fromkeys(schema["properties"]), **required}
            Draft202012Validator(schema).validate(arguments)

            await session.call(name, arguments)
        assert 3 == await session.memories.count()

    async def test_null_within_nested_object_is_accepted(self, session):
        """Null also means omitted for nested arguments."""
        schema = to_strict_schema(session.tools["save/insight"].input_schema)
        first = await session.call("save/insight", {"content": "caches leak"})
        link = {"id": first["id"], "relationship": None}
        arguments = {**dict.fromkeys(schema["properties"]), "content": "only over night", "links": [link]}
        Draft202012Validator(schema).validate(arguments)
        saved = await session.call("save/insight", arguments)

        links = [one for one in await session.memories.links(saved["id"]) if one.created_by == "llm"]

        assert ["related to"] == [one.metadata.original_relationship for one in links]


class TestToolsOfHosts:
    @given(
        parameters=st.dictionaries(st.sampled_from("abc"), st.tuples(kinds, st.booleans()), max_size=3), data=st.data()
    )
    def test_tool_accepts_values_of_strict_schema(self, parameters, data):
        """Any combination of types gives a schema that the SDKs accept, and null means omitted."""
        tool = tool_of({name: (kind, optional) for name, ((kind, _), optional) in parameters.items()})
        schema = to_strict_schema(tool.input_schema)
        check_strict(schema)
        arguments = {
            name: data.draw(st.none() | values if optional else values, label=name)
            for name, ((_, values), optional) in parameters.items()
        }

        assert [] == list(Draft202012Validator(schema).iter_errors(arguments))
        assert parameters.keys() >= tool._signature.check(arguments, tool="tool").keys()

    @given(parameters=st.dictionaries(st.sampled_from("abc"), st.tuples(kinds, st.booleans()), max_size=3))
    def test_strict_schema_for_anthropic_is_unchanged_by_its_sdk(self, parameters):
        """The SDK's own conversion changes nothing."""
        tool = tool_of({name: (kind, optional) for name, ((kind, _), optional) in parameters.items()})
        schema = to_strict_schema(tool.input_schema, nullable=False)

        check_anthropic(schema)
        assert [name for name, (_, optional) in parameters.items() if not optional] == schema["required"]

    @pytest.mark.parametrize("kind", FREE, ids=str)
    @pytest.mark.parametrize("wrap", [lambda kind: kind, lambda kind: list[kind], lambda kind: kind | None])
    def test_strict_schema_is_none_for_free_form_type(self, kind, wrap):
        """Such a tool is sent in its plain form instead of accepting less."""
        if kind is Any and wrap(int) == (int | None):
            kind = object
        tool = tool_of({"it": (wrap(kind), False)})

        assert to_strict_schema(tool.input_schema) is None
        Draft202012Validator.check_schema(to_plain_schema(tool.input_schema))

    def test_strict_schema_is_none_for_additional_arguments(self):
        """``**others`` accepts any names."""

        async def run(text: str, **others: int) -> None:
            """Do nothing."""

        assert to_strict_schema(Tool.from_function(run).input_schema) is None

    def test_strict_schema_of_tool_without_arguments_is_empty_object(self):
        """It accepts the empty object only."""
        empty = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}

        assert empty == to_strict_schema(tool_of({}).input_schema)


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
    def test_strict_schema_describes_unsupported_constraints(self, kind, words):
        """The description states the limit, and the tool validates it."""
        told = strict_of(kind)

        assert words == told.get("description", "")

    def test_strict_schema_describes_default(self):
        """An empty default is omitted from the description."""

        async def run(
            mode: Annotated[Literal["b", "a"], msgspec.Meta(description="How")] = "a",
            tags: Sequence[str] = (),
            text: str = "",
            other: int | None = 3,
        ) -> None:
            """Do nothing."""

        properties = to_strict_schema(Tool.from_function(run).input_schema)["properties"]

        assert {
            "text": None,
            "mode": 'How (default "a")',
            "tags": None,
            "other": "default 3",
        } == {name: one.get("description") for name, one in properties.items()}
        assert {"type": ["string", "null"], "enum": ["a", "b", None]}.items() <= properties["mode"].items()

    def test_strict_schema_adds_null_to_optional_type_once(self):
        """An optional argument is nullable in the strict form, even if its type already accepts null."""
        for kind in (str | None, str):
            assert {"type": ["string", "null"]} == strict_of(kind, optional=True)
        assert {"anyOf": [{"type": "string"}, {"type": "null"}]} == strict_of(str | None)
        assert {"type": "string"} == strict_of(str) == strict_of(str, optional=True, nullable=False)

    def test_strict_schema_splits_enum_by_type(self):
        """OpenAI requires a type next to each enum."""
        assert {"anyOf": [{"type": "integer", "enum": [1]}, {"type": "string", "enum": ["a"]}]} == strict_of(
            Literal["a", 1]
        )
        assert {"type": "string", "enum": ["a", "b"]} == strict_of(Literal["b", "a"])


class TestReferences:
    def test_strict_schema_keeps_definition_of_recursive_type(self):
        """References have no sibling keywords, and unused definitions are removed."""
        schema = to_strict_schema(tool_of({"tree": (Tree, False)}).input_schema)
        check_strict(schema)

        assert ["Tree"] == list(schema["$defs"])
        assert is_recursive(schema)
        assert not is_recursive(to_strict_schema(tool_of({"step": (Step, False)}).input_schema))

    def test_strict_schema_moves_description_of_reference(self):
        """It moves to a place where it is allowed."""
        schema = {
            "type": "object",
            "properties": {"tree": {"$ref": "#/$defs/T", "description": "The tree"}},
            "required": ["tree"],
            "$defs": {"T": {"type": "object", "properties": {"t": {"$ref": "#/$defs/T"}}}, "Unused": {}},
        }
        strict = to_strict_schema(schema)
        check_strict(strict)

        assert {"description": "The tree", "anyOf": [{"$ref": "#/$defs/T"}]} == strict["properties"]["tree"]
        assert ["T"] == list(strict["$defs"])

    @pytest.mark.parametrize("reference", ["#", "#/properties/a", "#/$defs/Missing", "other.json", 3])
    def test_strict_schema_is_none_for_external_reference(self, reference):
        """Only the schema's own definitions are resolved."""
        assert to_strict_schema({"type": "object", "properties": {"a": {"$ref": reference}}}) is None


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

    def test_strict_schema_allows_ten_nested_objects(self):
        """OpenAI refuses the eleventh."""
        assert to_strict_schema(self.nested(10)) is not None
        assert to_strict_schema(self.nested(11)) is None
        assert to_strict_schema(self.nested(5000)) is None

    def test_strict_schema_limits_enum_values(self):
        """All enums of a schema together have at most a thousand values, including null."""
        assert to_strict_schema(self.choosing([f"{number}" for number in range(999)])) is not None
        assert to_strict_schema(self.choosing([f"{number}" for number in range(1000)])) is None

    def test_strict_schema_limits_characters_of_large_enum(self):
        """An enum of more than 250 values has at most 15,000 characters."""
        assert to_strict_schema(self.choosing([f"{number:060}" for number in range(249)])) is not None
        assert to_strict_schema(self.choosing([f"{number:060}" for number in range(250)])) is None

    def test_strict_schema_limits_characters_of_names(self):
        """All names together have at most 120,000 characters."""
        most = {"type": "object", "properties": {f"{number:012}": {"type": "string"} for number in range(5000)}}
        longer = {"type": "object", "properties": {f"{number:030}": {"type": "string"} for number in range(5000)}}
        more = {"type": "object", "properties": {f"{number}": {"type": "string"} for number in range(5001)}}

        assert to_strict_schema(most) is not None
        assert to_strict_schema(longer) is None
        assert to_strict_schema(more) is None


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
def test_strict_schema_is_none_for_unknown_keyword(schema):
    """A host's schema is sent in its plain form instead of changing its meaning."""
    assert to_strict_schema(schema) is None
    assert schema == to_plain_schema(schema)


def test_plain_schema_adds_items_to_array():
    """OpenAI rejects a request with an array without items."""
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
    } == to_plain_schema(schema)["properties"]
    assert {"type": "array"} == schema["properties"]["a"]


def test_strict_schema_rewrites_const_and_one_of():
    """A const becomes an enum of one value, and oneOf becomes anyOf."""
    schema = {
        "type": "object",
        "properties": {"a": {"const": "x"}, "b": {"oneOf": [{"type": "integer"}, {"enum": ["n", None]}]}},
        "required": ["a"],
    }
    strict = to_strict_schema(schema)
    check_strict(strict)

    assert {
        "a": {"type": "string", "enum": ["x"]},
        "b": {"anyOf": [{"type": "integer"}, {"anyOf": [{"type": "string", "enum": ["n"]}, {"type": "null"}]}]},
    } == strict["properties"]


class Form(TypedDict):
    """An object with an untyped value."""

    name: str
    value: Any


class TestAlwaysStrictSchema:
    @pytest.mark.parametrize("require_all", [False, True])
    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            (dict[str, int], {"a": 1}),
            (dict, {"a": [None]}),
            (list, [1, "a"]),
            (list[dict[str, Any]], [{"a": "b"}]),
            (tuple[int, str], (1, "a")),
            (Form, {"name": "a", "value": {"b": 1}}),
            (dict[str, Form], {"x": {"name": "a", "value": 2}}),
            (dict[str, int] | list[int], {"a": 1}),
            (list[dict[str, int] | str], [{"a": 1}, "b"]),
            (dict[str, int] | None, {"a": 1}),
        ],
        ids=str,
    )
    def test_free_form_value_is_json_text_that_the_tool_parses(self, kind, value, require_all):
        """A framework that makes all schemas strict cannot change this form."""
        tool = tool_of({"it": (kind, False)})
        schema = to_always_strict_schema(tool.input_schema, require_all=require_all)
        check_strict(schema)
        is_list = kind == list[dict[str, Any]]
        given = [json.dumps(one) for one in value] if is_list else json.dumps(value)
        assert [] == list(Draft202012Validator(schema).iter_errors({"it": given}))

        assert {"it": value} == tool._signature.check({"it": given}, tool="tool")

    @pytest.mark.parametrize("kind", [Any, dict[str, int] | str, dict | list[str] | str], ids=str)
    def test_value_that_may_be_text_is_untyped(self, kind):
        """OpenAI rejects such a schema in strict mode, instead of accepting empty objects only."""
        tool = tool_of({"it": (kind, False), "data": (dict[str, int], False)})
        schema = to_always_strict_schema(tool.input_schema, require_all=False)
        untyped = schema["properties"]["it"]

        assert {} in (untyped, *untyped.get("anyOf", ()))
        assert "string" == schema["properties"]["data"]["type"]

    def test_recursive_definition_is_converted(self):
        """Definitions have JSON text for their free-form values, too."""
        schema = {
            "type": "object",
            "properties": {"tree": {"$ref": "#/$defs/Tree"}, "json": {"$ref": "#/$defs/Json"}},
            "$defs": {
                "Tree": {
                    "type": "object",
                    "properties": {"data": {"type": "object"}, "below": {"$ref": "#/$defs/Tree"}},
                },
                "Json": {
                    "anyOf": [{"type": "object", "additionalProperties": {"$ref": "#/$defs/Json"}}, {"type": "string"}]
                },
            },
        }
        definitions = to_always_strict_schema(schema, require_all=False)["$defs"]

        assert ["string", "null"] == definitions["Tree"]["properties"]["data"]["type"]
        assert {"anyOf": [schema["$defs"]["Json"], {}]} == definitions["Json"]

    def test_additional_arguments_are_kept(self):
        """Without strict mode, a model can pass arguments of any name."""

        async def run(data: dict[str, int], **others: str) -> None: ...

        schema = to_always_strict_schema(Tool.from_function(run).input_schema, require_all=True)

        assert {"type": "string"} == schema["additionalProperties"]
        assert "string" == schema["properties"]["data"]["type"]

    def test_strict_schema_is_used_if_there_is_one(self):
        """Tools without free-form values are unchanged."""
        tool = tool_of({"a": (int, False), "b": (str, True)})

        assert to_strict_schema(tool.input_schema) == to_always_strict_schema(tool.input_schema, require_all=True)
        assert to_adaptable_schema(tool.input_schema) == to_always_strict_schema(tool.input_schema, require_all=False)
