"""Translation of types and metadata to schemas and checks, for arguments and for results."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import json
import os
import pathlib
import subprocess
import sys
import typing
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar, Unpack

import annotated_types as at
import attrs
import msgspec
import numpy as np
import pydantic
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field

from mama_structs import Session
from mama_structs._internal.jsonable import to_answer
from mama_structs.adapters import openai
from mama_structs.adapters.shared.tool_schemas import to_strict_schema
from mama_structs.errors import InvalidArgument
from mama_structs.structs.ids import EntityId
from mama_structs.tools.schema import make_result_schema
from mama_structs.tools.tool import Tool

Item = TypeVar("Item")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Ratio(enum.Enum):
    HALF = 0.5
    FULL = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Price(BaseModel):
    amount: float = Field(ge=0, description="Without tax")
    currency: Literal["EUR", "USD"] = "EUR"


class Order(BaseModel):
    """An order of a customer."""

    items: list[Price]
    order_id: uuid.UUID | None = Field(None, alias="orderId")


class Branch(BaseModel):
    name: str
    below: list[Branch] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


@pydantic.dataclasses.dataclass
class Size:
    width: Annotated[int, Field(gt=0)]


@dataclasses.dataclass
class Point:
    x: Annotated[int, at.Ge(0), "How far"]
    y: int = 0


@dataclasses.dataclass
class Circle:
    x: int
    radius: float
    colour: Colour = Colour.RED


@dataclasses.dataclass
class Trip:
    stops: list[Point]
    price: Price
    path: pathlib.Path = pathlib.Path()


@attrs.frozen
class Node:
    name: Annotated[str, at.MinLen(1)]
    below: list[Node] = attrs.Factory(list)


@attrs.define
class Shelf:
    label: str = attrs.field(converter=str.upper)
    _count: int = 0


class Options(TypedDict):
    limit: Annotated[int, Field(le=5, description="At most this many")]
    order: NotRequired[Annotated[str, "Column", at.MaxLen(4)]]


class Pair(NamedTuple):
    left: Annotated[int, at.Le(3)]
    right: Price | None = None


class Move(msgspec.Struct, tag="move"):
    to: Annotated[str, at.MinLen(2)]


@dataclasses.dataclass
class Box(Generic[Item]):
    item: Item
    size: Annotated[int, at.Le(5)] = 1


@dataclasses.dataclass
class TupleOrCount:
    """A class whose field would crash msgspec 0.22."""

    value: tuple[int, str] | Annotated[str, msgspec.Meta(min_length=1)]


def tool_taking(annotation, default=inspect.Parameter.empty, *, returns=Any):
    async def take(value=None):
        return value

    take.__signature__ = inspect.Signature(
        [inspect.Parameter("value", inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)],
        return_annotation=returns,
    )
    return Tool.from_function(take)


def schema_of(annotation, default=inspect.Parameter.empty):
    return tool_taking(annotation, default).input_schema["properties"]["value"]


def read(annotation, value):
    return asyncio.run(tool_taking(annotation).run({"value": value}))


# ---- metadata


@pytest.mark.parametrize(
    ("annotation", "schema", "valid", "invalid"),
    [
        (Annotated[int, Field(le=5)], {"type": "integer", "maximum": 5}, 5, 99),
        (Annotated[int, at.Gt(0), at.Lt(3)], {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}, 1, 3),
        (Annotated[float, at.Interval(ge=0, le=1)], {"type": "number", "minimum": 0, "maximum": 1}, 0.5, 1.5),
        (Annotated[int, at.Ge(0.5)], {"type": "integer", "minimum": 1}, 1, 0),
        (Annotated[int, at.Ge(1), at.Ge(3)], {"type": "integer", "minimum": 3}, 3, 2),
        (Annotated[int, at.Ge(2), at.Gt(2)], {"type": "integer", "exclusiveMinimum": 2}, 3, 2),
        (Annotated[int, at.MultipleOf(5)], {"type": "integer", "multipleOf": 5}, 10, 7),
        (Annotated[float, Field(multiple_of=0.01)], {"type": "number", "multipleOf": 0.01}, 19.99, 19.995),
        (Annotated[float, msgspec.Meta(multiple_of=0.1)], {"type": "number", "multipleOf": 0.1}, 0.1 + 0.2, 0.35),
        (list[Annotated[float, at.MultipleOf(0.01), at.Ge(0)]], {"type": "array", "items": {"type": "number", "minimum": 0, "multipleOf": 0.01}}, [19.99, 1e308], [-0.01]),
        (Annotated[int, at.MultipleOf(0.5)], {"type": "integer", "multipleOf": 0.5}, 3, "x"),
        (Annotated[decimal.Decimal, at.MultipleOf(0.01)], {"type": ["string", "number"], "format": "decimal", "multipleOf": 0.01}, "19.99", "19.995"),
        (Annotated[set[int], Field(min_length=2)], {"type": "array", "items": {"type": "integer"}, "minItems": 2, "uniqueItems": True}, [1, 2, 2], [1, 1]),
        (Annotated[frozenset[int], msgspec.Meta(max_length=2)], {"type": "array", "items": {"type": "integer"}, "maxItems": 2}, [1, 2], [1, 2, 3]),
        (Annotated[str, at.Len(1, 3)], {"type": "string", "minLength": 1, "maxLength": 3}, "a", "abcd"),
        (Annotated[list[int], at.MinLen(1)], {"type": "array", "items": {"type": "integer"}, "minItems": 1}, [1], []),
        (Annotated[str, Field(pattern="^a", min_length=2)], {"type": "string", "minLength": 2, "pattern": "^a"}, "ab", "ba"),
        (Annotated[str, pydantic.StringConstraints(max_length=2)], {"type": "string", "maxLength": 2}, "ab", "abc"),
        (pydantic.PositiveInt, {"type": "integer", "exclusiveMinimum": 0}, 1, 0),
        (list[Annotated[int, Field(le=5)]], {"type": "array", "items": {"type": "integer", "maximum": 5}}, [5], [6]),
        (dict[str, Annotated[int, at.Le(5)]], {"type": "object", "additionalProperties": {"type": "integer", "maximum": 5}}, {"a": 5}, {"a": 6}),
        (Annotated[int | None, Field(le=5)], {"anyOf": [{"type": "integer", "maximum": 5}, {"type": "null"}]}, None, 6),
        (Annotated[decimal.Decimal, at.Ge(0)], {"type": ["string", "number"], "format": "decimal", "minimum": 0}, "1.5", "-1.5"),
        (Annotated[int | str, at.Predicate(bool)], {"anyOf": [{"type": "integer"}, {"type": "string"}], "description": "(must satisfy bool)"}, "a", 0),
        (Annotated[int | str | None, at.Predicate(bool)], {"anyOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"type": "null"}], "description": "(must satisfy bool)"}, None, ""),
        (Annotated[int | float, at.MultipleOf(0.5)], {"anyOf": [{"type": "integer", "multipleOf": 0.5}, {"type": "number", "multipleOf": 0.5}]}, 1.5, 1.2),
        (at.LowerCase[str], {"type": "string", "description": "(must satisfy str.islower)"}, "a", "A"),
        (Annotated[dt.date, at.Ge(dt.date(2026, 1, 1))], {"type": "string", "format": "date", "description": "(must be at least 2026-01-01)"}, "2026-01-01", "2025-12-31"),
        (Annotated[dt.datetime, at.Timezone(...)], {"type": "string", "format": "date-time"}, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00"),
        (Annotated[dt.datetime, at.Timezone("UTC")], {"type": "string", "format": "date-time", "description": "(must be in time zone UTC)"}, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00+02:00"),
    ],
)  # fmt: skip
def test_constraint_is_in_schema_and_checked(annotation, schema, valid, invalid):
    assert schema == schema_of(annotation)
    read(annotation, valid)
    with pytest.raises(InvalidArgument, match="take: value must be"):
        read(annotation, invalid)


@pytest.mark.parametrize(
    "metadata",
    [
        ("A word",),
        (typing_extensions.Doc("A word"),),
        (at.doc("A word"),),
        (Field(description="A word"),),
        (msgspec.Meta(description="A word"),),
        (Field(description="Not this"), "A word"),
    ],
)
def test_metadata_describes_parameter(metadata):
    annotation = typing.cast("Any", Annotated)[(str, *metadata)]

    assert {"type": "string", "description": "A word"} == schema_of(annotation)


def test_field_notes_are_in_schema():
    annotation = Annotated[str, Field(title="T", examples=["x"], deprecated=True, json_schema_extra={"x-unit": "m"})]

    assert {"type": "string", "title": "T", "examples": ["x"], "deprecated": True, "x-unit": "m"} == schema_of(
        annotation
    )


class Unknown:
    """Metadata of another package."""


@dataclasses.dataclass
class Odd:
    x: Annotated[int, Unknown()]


class OddKeys(TypedDict):
    x: list[Annotated[int, Unknown()]]


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[int, Unknown()],
        Annotated[int, 5],
        list[Annotated[int, Unknown]],
        Annotated[int, Field(le=5), Unknown()],
        Odd,
        list[OddKeys],
        Odd | None,
        Annotated[int, Field(alias="other")],
        Annotated[int, Field(exclude=True)],
        list[Annotated[int, Field(default=3)]],
        Annotated[str, at.Le(5)],
        Annotated[int | str, at.Le(5)],
        Annotated[int, at.MinLen(5)],
        Annotated[str, Field(pattern="[")],
    ],
)
def test_metadata_that_is_not_understood_raises(annotation):
    with pytest.raises(InvalidArgument, match=r"^parameter value: ") as caught:
        tool_taking(annotation)

    assert caught.value.hint


async def test_field_as_default_is_default_of_parameter():
    days, tags, number = Field(7, le=9, description="Days"), Field(default_factory=list), Field(...)

    async def take(d: int = days, tags: list = tags, n: int = number):
        return [d, tags, n]

    tool = Tool.from_function(take)

    assert {"type": "integer", "maximum": 9, "description": "Days", "default": 7} == tool.input_schema["properties"][
        "d"
    ]
    assert ["n"] == tool.input_schema["required"]
    assert [7, [], 1] == await tool(n=1)
    assert [9, ["a"], 1] == await tool.run({"n": 1, "d": 9, "tags": ["a"]})
    with pytest.raises(InvalidArgument, match="d must be an integer of at most 9, got 10"):
        await tool(n=1, d=10)


async def test_default_in_annotated_is_default_of_parameter():
    async def take(d: Annotated[int, Field(default=7)]):
        return d

    assert 7 == await Tool.from_function(take)()


def test_metadata_of_pydantic_only_is_applied_by_pydantic():
    annotation = Annotated[
        list[str], pydantic.BeforeValidator(lambda value: value.split(";") if isinstance(value, str) else value)
    ]

    assert {"type": "array", "items": {"type": "string"}} == schema_of(annotation)
    assert ["a", "b"] == read(annotation, "a;b")


def fail(value):
    raise ValueError("never valid")


@pytest.mark.parametrize(
    ("annotation", "value", "received"),
    [
        (Annotated[list[int], pydantic.AfterValidator(sorted)], [2, 1], [1, 2]),
        (Annotated[list, pydantic.AfterValidator(sorted)], [2, 1], [1, 2]),
        (Annotated[dict, pydantic.BeforeValidator(lambda value: {**value, "b": 2})], {"a": 1}, {"a": 1, "b": 2}),
        (Annotated[Any, pydantic.AfterValidator(lambda value: [value])], 1, [1]),
        (Annotated[Size, pydantic.AfterValidator(lambda value: value.width)], {"width": 3}, 3),
    ],
)
def test_validator_of_pydantic_is_applied(annotation, value, received):
    assert received == read(annotation, value)


@pytest.mark.parametrize("base", [dict, list, Any, Price])
def test_rejection_by_validator_of_pydantic_raises(base):
    with pytest.raises(InvalidArgument, match="never valid"):
        read(Annotated[base, pydantic.AfterValidator(fail)], {"amount": 1} if base in (dict, Price) else [])


# ---- types of parameters


@pytest.mark.parametrize(
    ("annotation", "value", "received"),
    [
        (Price, {"amount": 1}, Price(amount=1)),
        (Price, '{"amount": "1"}', Price(amount=1)),
        (Price, {"amount": 1, "currency": None}, Price(amount=1)),
        (Order, {"items": [{"amount": 1, "currency": None}]}, Order(items=[Price(amount=1)])),
        (Order, {"items": {"amount": 1}}, Order(items=[Price(amount=1)])),
        (Order, {"items": [], "orderId": "00000000-0000-0000-0000-000000000005"}, Order(items=[], orderId=uuid.UUID(int=5))),
        (Price | None, None, None),
        (list[Price], [{"amount": 1}], [Price(amount=1)]),
        (dict[str, Price], {"a": {"amount": 1}}, {"a": Price(amount=1)}),
        (Branch, {"name": "a", "below": [{"name": "b"}]}, Branch(name="a", below=[Branch(name="b")])),
        (Cat | Dog, {"kind": "dog", "tricks": ["sit"]}, Dog(kind="dog", tricks=["sit"])),
        (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "cat", "lives": 7}, Cat(kind="cat", lives=7)),
        (Price | Point, {"x": 1}, Point(1)),
        (Price | str | int, {"amount": 1}, Price(amount=1)),
        (Price | str | int, "a", "a"),
        (Size, {"width": 1}, Size(1)),
        (Point, {"x": "1"}, Point(1)),
        (Point | Circle, {"x": 1, "radius": 2}, Circle(1, 2.0)),
        (Point | Circle, {"x": 1, "y": 2}, Point(1, 2)),
        (Circle | Node, {"name": "a"}, Node("a")),
        (Trip, {"stops": [{"x": 1}], "price": {"amount": 2}, "path": "a/b"}, Trip([Point(1)], Price(amount=2), pathlib.Path("a/b"))),
        (Trip, {"stops": [], "price": '{"amount": 2}'}, Trip([], Price(amount=2))),
        (Node, {"name": "a", "below": [{"name": "b"}]}, Node("a", [Node("b")])),
        (Shelf, {"label": "a", "count": 2}, Shelf("a", 2)),
        (Options, {"limit": 5, "order": "name"}, {"limit": 5, "order": "name"}),
        (Pair, [1, {"amount": 2}], Pair(1, Price(amount=2))),
        (Pair, [1], Pair(1)),
        (Move, {"to": "2-1", "type": "move"}, Move("2-1")),
        (Box[Price], {"item": {"amount": 1}}, Box(Price(amount=1))),
        (pathlib.Path, "a/b", pathlib.Path("a/b")),
        (pathlib.PurePosixPath | None, "a/b", pathlib.PurePosixPath("a/b")),
        (os.PathLike, "a", pathlib.PurePath("a")),
        (Iterable[int], [1, "2"], [1, 2]),
        (collections.deque[int], ["1"], collections.deque([1])),
        (collections.Counter[str], {"a": "1"}, collections.Counter(a=1)),
        (collections.OrderedDict[str, int], {"a": 1}, collections.OrderedDict(a=1)),
        (collections.defaultdict[str, list[int]], {"a": ["1"]}, collections.defaultdict(list, {"a": [1]})),
        (dict[Colour, list[int]], {"red": 1}, {Colour.RED: [1]}),
        (Mapping[int, Sequence[str]], {"5": ["a"]}, {5: ["a"]}),
        (dict[dt.date, int], {"2026-01-31": 1}, {dt.date(2026, 1, 31): 1}),
        (collections.Counter[Colour], {"red": 2}, collections.Counter({Colour.RED: 2})),
        (Mapping[str, Sequence[pathlib.Path]], {"a": ["b"]}, {"a": [pathlib.Path("b")]}),
        (dict[pathlib.Path, list[Price]], {"a": {"amount": 1}}, {pathlib.Path("a"): [Price(amount=1)]}),
        (tuple[int, str] | Annotated[int, msgspec.Meta(ge=1)], [1, "a"], (1, "a")),
        (tuple[int, str] | Annotated[int, msgspec.Meta(ge=1)] | None, "5", 5),
        (TupleOrCount, {"value": [1, "a"]}, TupleOrCount((1, "a"))),
        (Ratio, 0.5, Ratio.HALF),
        (Ratio, "0.5", Ratio.HALF),
        (Rights, 3, Rights.READ | Rights.WRITE),
        (Literal[Colour.RED], "red", Colour.RED),
        (EntityId, "2-1", EntityId.parse("2-1")),
        (dt.datetime, "2026-01-31T12:00:00Z", dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)),
        (dt.datetime | int, 5, 5),
        (dt.time, "12:00:00", dt.time(12)),
        (dt.timedelta, "PT5M", dt.timedelta(minutes=5)),
        (uuid.UUID, str(uuid.UUID(int=5)), uuid.UUID(int=5)),
        (dt.date | dt.datetime, "2026-01-31T12:00:00", dt.datetime.fromisoformat("2026-01-31T12:00")),
    ],
)  # fmt: skip
def test_value_is_converted_to_type(annotation, value, received):
    found = read(annotation, value)

    assert (received, type(received)) == (found, type(found))


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (Price, {"amount": -1}, r"an object {amount, currency\?}, got .*: at amount, input should be greater than or equal to 0"),
        (Order, {"items": [{"amount": -1}, {"currency": "X"}]}, r"at items\[0\]\.amount, .* \(also items\[1\]\.amount: Field required; items\[1\]\.currency: .*'EUR' or 'USD'\)"),
        (list[Price], [{"amount": 1}, {"amount": "x"}], r"at \[1\]\.amount, input should be a valid number"),
        (Trip, {"stops": [{"x": 1}, {"x": -1}], "price": {"amount": 2}}, r"at stops\[1\]\.x, expected int >= 0"),
        (Trip, {"stops": [], "price": {"amount": -2}}, r"at price\.amount, input should be greater"),
        (Node, {"name": "a", "below": [{"name": "b"}, {"name": ""}]}, r"at below\[1\]\.name, expected str of length >= 1"),
        (Options, {"limit": 9}, r"at limit, expected int <= 5"),
        (Point | Circle, {"x": -1}, r"it fits none \(Point: Expected int >= 0 at x; Circle: Object missing required field radius\)"),
        (dt.datetime, "tomorrow", r"a date and time such as '2026-01-31T12:00:00Z', got 'tomorrow'"),
        (dt.date, "tomorrow", "a date such as '2026-01-31', got"),
        (dt.time, "noon", "a time such as '12:00:00', got"),
        (dt.timedelta, "an hour", "a duration such as 'PT1H30M', got"),
        (uuid.UUID, "5", "a UUID such as '123e4567-"),
        (pathlib.Path, 5, "a path such as 'notes/plan.md', got 5"),
        (bytes, "?", "a string in base64, got a text of 1 characters: Invalid base64"),
        (Ratio, 0.7, "0.5 or 1, got 0.7"),
        (Literal[Colour.RED], "blue", "'red', got 'blue'"),
        (dict[Colour, int], {"green": 1}, "an object, got .*: the key 'green' must be 'red' or 'blue'"),
        (dict[Ratio, int], {"2": 1}, "an object, got .*: the key '2' must be '0.5' or '1'"),
        (dict[int, int], {"a": 1}, "an object, got .*: the key 'a' is invalid: Expected int"),
        (dict[Annotated[str, at.MinLen(1)], int], {"": 1}, "the key '' is invalid: Expected str of length >= 1"),
        (list[dict[Literal["a"], int]], [{"b": 1}], r"at \[0\], the key 'b' must be 'a'"),
        (Cat | Dog, {"kind": "cow"}, "an object {kind, lives} or an object {kind, tricks}, got"),
        (EntityId, "planet", "a string, got 'planet': "),
        (at.LowerCase[str], "A", "it must satisfy str.islower"),
    ],
)  # fmt: skip
def test_invalid_value_raises_error_with_expected_form(annotation, value, message):
    with pytest.raises(InvalidArgument, match="take: value must be .*" + message):
        read(annotation, value)


def test_schema_of_pydantic_model_has_bounds_and_descriptions():
    schema = schema_of(list[Price])["items"]

    assert {"type": "number", "minimum": 0, "description": "Without tax"} == schema["properties"]["amount"]
    assert {"EUR", "USD"} == set(schema["properties"]["currency"]["enum"])
    assert ["amount"] == schema["required"]


def test_schema_of_nested_classes_has_bounds_and_defaults():
    schema = schema_of(Trip)["properties"]

    assert {"type": "integer", "minimum": 0, "description": "How far"} == schema["stops"]["items"]["properties"]["x"]
    assert {"type": "string", "format": "path", "default": "."} == schema["path"]


def test_recursive_types_of_one_name_have_own_definitions():
    class Other:
        class Branch(BaseModel):
            size: int
            below: list[Other.Branch] = []

    Other.Branch.model_rebuild(_types_namespace={"Other": Other})

    async def take(a: Branch, b: Other.Branch, c: Node): ...

    take.__annotations__.update(b=Other.Branch)
    schema = Tool.from_function(take).input_schema

    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate({"a": {"name": "x"}, "b": {"size": 1}, "c": {"name": "y"}})
    assert {"Branch", "Branch_", "Node"} == schema["$defs"].keys()


async def test_unpacked_typed_dict_is_expanded():
    async def take(name: str, **options: Unpack[Options]):
        """
        Take.

        Args:
            name: Whose.
            order: By what.

        """
        return {"name": name, **options}

    tool = Tool.from_function(take)
    properties = tool.input_schema["properties"]

    assert {"type": "integer", "maximum": 5, "description": "At most this many"} == properties["limit"]
    assert (["name", "limit"], False) == (tool.input_schema["required"], tool.input_schema["additionalProperties"])
    assert {"name": "a", "limit": 5} == await tool(name="a", limit="5")
    with pytest.raises(InvalidArgument, match="'other' is no argument"):
        await tool(name="a", limit=5, other=1)


def test_translation_does_not_import_pydantic():
    code = (
        "import sys, typing, pathlib, dataclasses\n"
        "from mama_structs.tools.tool import Tool\n"
        "def take(a: typing.Annotated[int, 'x'], b: pathlib.Path) -> dict[str, float]: ...\n"
        "Tool.from_function(take)\n"
        "sys.exit('pydantic' in sys.modules)"
    )

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


@pytest.mark.parametrize("is_strict", [True, False])
async def test_default_session_passes_pydantic_models_to_tools(is_strict):
    """OpenAI's strict form has null for omitted fields, also in nested models."""
    received = []

    def buy(order: Order, when: dt.datetime | None = None, note: Annotated[str, Field(max_length=5)] = "x") -> Order:
        """Buy."""
        received.append((order, when, note))
        return order

    buy.__annotations__.update(order=Order, **{"return": Order})
    async with Session.open() as session:
        session.tools.add(buy)
        (definition,) = (one for one in openai.tools(session, strict=is_strict) if one["name"] == "buy")
        arguments = {
            "order": {"items": [{"amount": 2, "currency": None}], "orderId": None},
            "when": "2026-01-31T12:00:00Z",
            "note": None,
        }
        result = await session.call("buy", arguments)
        with pytest.raises(InvalidArgument, match=r"at items\[0\]\.amount, input should be greater"):
            await session.call("buy", {"order": {"items": [{"amount": -2}]}})

    assert is_strict is bool(definition["strict"])
    if is_strict:
        Draft202012Validator(definition["parameters"]).validate(arguments)
    assert [(Order(items=[Price(amount=2)]), dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC), "x")] == received
    assert {"items": [{"amount": 2.0, "currency": "EUR"}], "order_id": None} == result


@pytest.mark.parametrize(
    "annotation",
    [
        *(
            Price,
            Order,
            Branch,
            Cat | Dog,
            Annotated[Cat | Dog, Field(discriminator="kind")],
            Size,
            Trip,
            Node,
            Options,
        ),
        *(Point | Circle, list[Price], Iterable[Price] | None, EntityId, pathlib.Path, dt.datetime, dt.timedelta),
        *(uuid.UUID, decimal.Decimal, bytes, Ratio, Rights, Literal[Colour.RED], pydantic.HttpUrl, pydantic.SecretStr),
        *(at.LowerCase[str], Annotated[int, Field(ge=1, le=5)], Annotated[str, Field(pattern="^a", examples=["a"])]),
    ],
)
def test_strict_form_of_types_exists(annotation):
    """A schema without a strict form would lose OpenAI's guarantee for the whole tool."""
    schema = to_strict_schema(tool_taking(annotation).input_schema)

    assert schema is not None
    Draft202012Validator.check_schema(schema)


class Lion(BaseModel):
    kind: Literal["lion"]
    roar: int = 1


class Bird(BaseModel):
    kind: Literal["bird"]
    song: str = "la"
    friend: Lion | Bird | None = None


class Cage(BaseModel):
    animal: Annotated[Lion | Bird, Field(discriminator="kind")]


class Flock(pydantic.RootModel[list[Lion | Bird]]):
    """A list of animals."""


@dataclasses.dataclass
class Ark:
    animal: Lion | Bird


ROARS = {"kind": "lion", "roar": None}
SINGS = {"kind": "bird", "song": None, "friend": ROARS}
BIRD = Bird(kind="bird", friend=Lion(kind="lion"))


@pytest.mark.parametrize(
    ("annotation", "value", "received"),
    [
        (Lion | Bird, ROARS, Lion(kind="lion")),
        (Lion | Bird, SINGS, BIRD),
        (Lion | Bird | None, SINGS, BIRD),
        (list[Lion | Bird], [ROARS, SINGS], [Lion(kind="lion"), BIRD]),
        (Annotated[Lion | Bird, Field(discriminator="kind")], SINGS, BIRD),
        (Cage, {"animal": SINGS}, Cage(animal=BIRD)),
        (Ark, {"animal": SINGS}, Ark(BIRD)),
        (Flock, [SINGS], Flock([BIRD])),
        (Annotated[list[Lion], pydantic.AfterValidator(list)], [ROARS], [Lion(kind="lion")]),
        (Lion | list[Lion], ROARS, Lion(kind="lion")),
        (Lion | list[Lion], [ROARS], [Lion(kind="lion")]),
        (Lion | Point, {"x": "1", "y": None}, Point(1)),
    ],
)
def test_null_means_omitted_in_each_member_of_union(annotation, value, received):
    """A strict schema requires null for each optional field."""
    tool = tool_taking(annotation)
    strict = to_strict_schema(tool.input_schema)

    assert strict is not None
    assert received == read(annotation, value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Cat | Dog, Dog(kind="dog", tricks=[])),
        (list[Cat | Dog], [Dog(kind="dog", tricks=[])]),
        (Price | Point | None, Point(1)),
        (Node, Node("a", [Node("b")])),
        (Ratio, Ratio.HALF),
        (Literal[Colour.RED], Colour.RED),
        (Rights, Rights.READ | Rights.WRITE),
        (dict[Colour, int], {Colour.RED: 1}),
        (dict[Ratio, int], {Ratio.HALF: 1}),
        (dict[int, str], {1: "a"}),
        (dict[dt.date, int], {dt.date(2026, 1, 31): 1}),
        (collections.deque[int], collections.deque([1])),
        (collections.OrderedDict[str, int], collections.OrderedDict(a=1)),
        (pydantic.AwareDatetime, dt.datetime(2026, 1, 31, tzinfo=dt.UTC)),
        (pydantic.SecretStr, pydantic.SecretStr("x")),
        (Annotated[Price, pydantic.AfterValidator(lambda value: value)], Price(amount=1)),
    ],
)
async def test_host_may_pass_instances_of_type(annotation, value):
    assert value == await tool_taking(annotation)(value=value)


def test_default_factory_of_mapping_is_its_item_type():
    assert [] == read(collections.defaultdict[str, list[int]], {"a": [1]})["b"]


def test_allowed_keys_are_in_schema():
    schema = schema_of(dict[Colour, int])

    assert {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "propertyNames": {"enum": ["red", "blue"]},
    } == schema


# ---- results


class ByAlias(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)
    guild_id: str = Field(alias="guildId")
    order: Order | None = None


class Loose(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    name: str = Field("a", alias="theName")
    anything: Any = None
    handle: subprocess.Popen | None = None
    share: float = 0.5
    price: decimal.Decimal = decimal.Decimal("1e5")
    wait: dt.timedelta = dt.timedelta(seconds=-0.5)

    @pydantic.computed_field
    @property
    def size(self) -> int:
        return len(self.name)


class Wrapper(BaseModel):
    inner: ByAlias
    note: str = Field("", alias="theNote")


class OuterAlias(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)
    order: Order
    note: str = Field("", alias="theNote")


class Shouted(BaseModel):
    size: int
    width: int = 1

    @pydantic.field_serializer("size")
    def _write(self, value):
        return f"{value}!"

    @pydantic.field_serializer("width")
    def _write_width(self, value) -> str:
        return f"{value}!"


@dataclasses.dataclass
class Report:
    """A report."""

    shares: dict[str, float]
    at: dt.datetime
    handle: Any
    socket: subprocess.Popen | None
    parts: tuple[int, str]
    by_day: dict[dt.date, set[float]]
    raw: bytes
    model: ByAlias
    path: pathlib.Path
    rights: Rights
    ratio: Ratio
    id: EntityId
    _secret: complex = 0j


@attrs.define
class Wrapped:
    stamp: np.datetime64
    values: np.ndarray
    number: np.float64
    loose: Loose
    _secret: int = 0


class Listed(msgspec.Struct, array_like=True, tag=True, rename="camel"):
    guild_id: int
    many: int | msgspec.UnsetType = msgspec.UNSET


REPORT = Report(
    shares={"a": float("nan"), "b": float("inf"), "c": 0.5},
    at=dt.datetime.fromisoformat("2026-01-31"),
    handle=object(),
    socket=object(),
    parts=(1, "a"),
    by_day={dt.date(2026, 1, 31): {float("nan"), float("inf"), 1.0}},
    raw=b"hi",
    model=ByAlias(guildId="0-1", order=Order(items=[])),
    path=pathlib.Path("a"),
    rights=Rights.READ | Rights.WRITE,
    ratio=Ratio.HALF,
    id=EntityId.parse("2-1"),
)


@pytest.mark.parametrize(
    ("annotation", "value", "properties"),
    [
        (Report, REPORT, {"shares", "at", "handle", "parts", "model", "path", "rights", "ratio", "id"}),
        (ByAlias, ByAlias(guildId="0-1", order=Order(items=[], orderId=None)), {"guildId", "order"}),
        (Loose, Loose(theName="b", anything=object(), share=float("nan")), {"name", "anything", "size"}),
        (Loose, Loose(anything={"deep": [object(), REPORT]}), {"name", "anything", "size"}),
        (
            Wrapped,
            Wrapped(np.datetime64("2026-01-31T12:00", "ns"), np.array(["2026-01-31"], "M8[ns]"), np.float64("nan"), Loose()),
            {"stamp", "values", "number", "loose"},
        ),
        (dict[str, float], {"a": float("nan"), "b": -float("inf")}, set()),
        (dict[str, np.float64], {"a": np.float64("nan")}, set()),
        (dict[str, int], {"a": 2**200, "b": -(2**63)}, set()),
        (dict[tuple[int, int], int], {(1, 2): 1}, set()),
        (Listed, Listed(1), {"guildId", "type"}),
        (Branch, Branch(name="a", below=[Branch(name="b")]), {"name", "below"}),
        (Wrapper, Wrapper(inner=ByAlias(guildId="0-1"), theNote="a"), {"inner", "note"}),
        (OuterAlias, OuterAlias(order=Order(items=[], orderId=None), theNote="a"), {"order", "theNote"}),
        (Shouted, Shouted(size=1), {"size", "width"}),
        (Size, Size(1), {"width"}),
        (Shelf, Shelf("a", 2), {"label"}),
        (Options, {"limit": 1}, {"limit", "order"}),
        (Box[Price], Box(Price(amount=1)), {"item", "size"}),
    ],
)  # fmt: skip
def test_written_result_matches_announced_schema(annotation, value, properties):
    schema = make_result_schema(annotation)
    written = to_answer(value)

    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(written)
    assert schema["type"] == "object"
    assert properties <= schema.get("properties", {}).keys()
    assert properties - {"order"} <= written.keys()
    json.dumps(written, allow_nan=False)


def test_nested_model_uses_own_alias_configuration():
    written = to_answer(Wrapper(inner=ByAlias(guildId="0-1"), theNote="a"))

    assert {"inner": {"guildId": "0-1", "order": None}, "note": "a"} == written
    assert {"guildId", "order"} == make_result_schema(Wrapper)["properties"]["inner"]["properties"].keys()


def test_unserializable_leaf_of_model_is_replaced_alone():
    written = to_answer([ByAlias(guildId="0-1"), Loose(theName="b", anything={"deep": [1, object()]})])

    assert {"guildId": "0-1", "order": None} == written[0]
    assert ("b", 1) == (written[1]["name"], written[1]["anything"]["deep"][0])
    assert "has no JSON form" in written[1]["anything"]["deep"][1]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (np.datetime64("2026-01-31T12:00:00.5", "ns"), "2026-01-31T12:00:00.5"),
        (np.datetime64("2026-01-31T12:00", "ns"), "2026-01-31T12:00:00"),
        (np.datetime64("2026-01-31T12:00:00.000000001"), "2026-01-31T12:00:00.000000001"),
        (np.datetime64("2026-01-31"), "2026-01-31"),
        (np.datetime64("2026-01"), "2026-01"),
        (np.datetime64("NaT"), None),
        (np.array([["2026-01-31", "NaT"]], "M8[ns]"), [["2026-01-31T00:00:00", None]]),
        (np.timedelta64(90, "s"), "PT90S"),
        (np.array([1, "NaT"], "m8[s]"), ["PT1S", None]),
        (np.uint64(2**63), 2**63),
        (np.longdouble(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.array([1 + 0j]), ["[complex: not shown, has no JSON form; the tool has run]"]),
    ],
)
def test_numpy_values_have_json_form(value, written):
    assert written == to_answer(value)


Texts = st.text(max_size=5)
TYPES_WITH_VALUES = st.deferred(lambda: LEAVES | CONTAINERS)
LEAVES = st.sampled_from(
    [
        (int, st.integers()),
        (float, st.floats()),
        (bool, st.booleans()),
        (str, Texts),
        (type(None), st.none()),
        (bytes, st.binary(max_size=5)),
        (dt.datetime, st.datetimes(timezones=st.none() | st.timezones())),
        (dt.date, st.dates()),
        (dt.time, st.times()),
        (dt.timedelta, st.timedeltas()),
        (decimal.Decimal, st.decimals()),
        (uuid.UUID, st.uuids()),
        (pathlib.PurePosixPath, Texts.map(pathlib.PurePosixPath)),
        (Colour, st.sampled_from(Colour)),
        (Ratio, st.sampled_from(Ratio)),
        (Rights, st.sampled_from([Rights(number) for number in range(4)])),
        (EntityId, st.integers(1, 9).map(lambda number: EntityId.parse(f"2-{number}"))),
        (np.datetime64, st.integers(0, 2**60).map(lambda number: np.datetime64(number, "ns"))),
        (np.float64, st.floats().map(np.float64)),
        (np.ndarray, st.lists(st.floats(), max_size=3).map(np.array)),
        (Any, st.builds(object)),
        (subprocess.Popen, st.builds(object)),
        (Literal["a", 1], st.sampled_from(["a", 1])),
        (Annotated[float, at.Ge(0)], st.floats(min_value=0)),
        (Annotated[float, Field(ge=0, le=1, description="Share")], st.floats(0, 1)),
        (Annotated[str, at.MinLen(1)], st.text(min_size=1, max_size=5)),
        (Price, st.builds(Price, amount=st.floats(min_value=0))),
        (Loose, st.builds(Loose, theName=Texts, anything=st.builds(object), share=st.floats(), price=st.decimals(allow_nan=False, allow_infinity=False), wait=st.timedeltas())),
        (ByAlias, st.builds(ByAlias, guildId=Texts)),
        (Wrapper, st.builds(Wrapper, inner=st.builds(ByAlias, guildId=Texts))),
        (Shouted, st.builds(Shouted, size=st.integers())),
        (Branch, st.builds(Branch, name=Texts, below=st.just([Branch(name="x")]))),
        (Point, st.builds(Point, st.integers(0))),
        (Node, st.builds(Node, st.text(min_size=1, max_size=3), st.just([Node("x")]))),
        (Shelf, st.builds(Shelf, Texts, st.integers())),
        (Listed, st.builds(Listed, st.integers(), st.integers())),
        (Size, st.builds(Size, st.integers(1))),
        (Pair, st.builds(Pair, st.integers(max_value=3), st.none() | st.builds(Price, amount=st.just(1.0)))),
        (Options, st.fixed_dictionaries({"limit": st.integers(max_value=5)}, optional={"order": st.text(max_size=4)})),
    ]
)  # fmt: skip
HASHABLE = LEAVES.filter(lambda pair: pair[0] in (int, float, str, bytes, dt.datetime, Colour, Ratio, EntityId))


@st.composite
def containers(draw):  # noqa: PLR0911 - one return for each shape
    """Draw a container type and a strategy of its values."""
    kind, values = draw(TYPES_WITH_VALUES)
    shape = draw(st.sampled_from(["list", "tuple", "pair", "set", "dict", "union", "class", "typed", "box"]))
    if shape == "list":
        return list[kind], st.lists(values, max_size=3)
    if shape == "tuple":
        return tuple[kind, ...], st.lists(values, max_size=3).map(tuple)
    if shape in ("set", "dict"):
        key, keys = draw(HASHABLE)
        if shape == "set":
            return set[key], st.sets(keys, max_size=3)
        return dict[key, kind], st.dictionaries(keys, values, max_size=3)
    other, others = draw(TYPES_WITH_VALUES)
    if shape == "pair":
        return tuple[kind, other], st.tuples(values, others)
    if shape == "union":
        return kind | other, values | others
    if shape == "box":
        return Box[kind], st.builds(Box, values)
    if shape == "typed":
        return TypedDict("Drawn", {"a": kind, "b": NotRequired[other]}), st.fixed_dictionaries(
            {"a": values}, optional={"b": others}
        )
    made = dataclasses.make_dataclass("Made", [("a", kind), ("b", other)])
    return made, st.builds(made, values, others)


CONTAINERS = containers()


@given(st.data())
def test_written_value_matches_schema_of_its_type(data):
    kind, values = data.draw(TYPES_WITH_VALUES)
    schema = make_result_schema(kind)
    written = to_answer(data.draw(values))

    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(written)
    json.dumps(schema, allow_nan=False)


numbers = st.integers(-6, 6)


@st.composite
def bounded_types(draw):
    """Draw a type with bounds, and values near the bounds."""
    bounds = draw(st.fixed_dictionaries({}, optional={"ge": numbers, "le": numbers, "multiple_of": st.integers(1, 3)}))
    lengths = draw(
        st.fixed_dictionaries({}, optional={"min_length": st.integers(0, 3), "max_length": st.integers(0, 3)})
    )
    style = draw(st.sampled_from(["pydantic", "msgspec", "annotated_types"]))

    def state(given):
        if style != "annotated_types":
            return [Field(**given) if style == "pydantic" else msgspec.Meta(**given)]
        names = {
            "ge": at.Ge,
            "le": at.Le,
            "multiple_of": at.MultipleOf,
            "min_length": at.MinLen,
            "max_length": at.MaxLen,
        }
        return [names[name](value) for name, value in given.items()]

    base, own, values = draw(
        st.sampled_from(
            [
                (int, bounds, numbers),
                (float, {name: value for name, value in bounds.items() if name != "multiple_of"}, st.floats(-6, 6)),
                (str, lengths, st.text("ab", max_size=4)),
                (list[int], lengths, st.lists(numbers, max_size=4)),
                (int | None, bounds, numbers | st.none()),
            ]
        )
    )
    metadata = state(own)
    kind = typing.cast("Any", Annotated)[(base, *metadata)] if metadata else base
    shape = draw(st.sampled_from(["plain", "list", "typed", "model", "class"]))
    if shape == "list":
        return list[kind], st.lists(values, max_size=2)
    if shape == "typed":
        return TypedDict("Drawn", {"a": kind}), st.fixed_dictionaries({"a": values})
    if shape == "class":
        return dataclasses.make_dataclass("Made", [("a", kind)]), st.fixed_dictionaries({"a": values})
    if shape == "model" and style != "msgspec":
        return pydantic.create_model("Drawn", a=(kind, ...)), st.fixed_dictionaries({"a": values})
    return kind, values


@given(st.data())
def test_argument_is_accepted_exactly_if_schema_accepts_it(data):
    kind, values = data.draw(bounded_types())
    tool = tool_taking(kind)
    value = data.draw(values)
    is_valid = Draft202012Validator(tool.input_schema).is_valid({"value": value})
    try:
        asyncio.run(tool.run({"value": value}))
    except InvalidArgument:
        assert not is_valid
    else:
        assert is_valid


@given(bounded_types(), st.sampled_from([Unknown(), Unknown, 5, object(), Field(alias="other")]))
def test_unknown_metadata_raises_in_any_type(drawn, unknown):
    with pytest.raises(InvalidArgument, match="is not understood"):
        tool_taking(dict[str, Annotated[drawn[0], unknown]])


# ---- unions of recursive classes


@dataclasses.dataclass
class Folder:
    name: str
    inside: Folder | Crate | None = None
    kind: Literal["folder"] = "folder"


@dataclasses.dataclass
class Crate:
    name: str
    inside: Folder | Crate | None = None
    kind: Literal["crate"] = "crate"


@pytest.mark.parametrize(
    ("innermost", "others"),
    [
        ({"name": "x"}, {}),
        ({"name": "x", "other": 1}, {"other": 1}),
        ({"name": "x"}, {"kind": "crate"}),
        ({"name": "x"}, {"kind": "CRATE"}),
        ({"name": 5}, {}),
    ],
)
def test_recursive_union_takes_polynomial_steps(steps, innermost, others):
    tool = tool_taking(Folder | Crate | list[Folder])

    def read_nested(depth):
        value = innermost
        for _ in range(depth):
            value = {"name": "n", "inside": value, **others}
        try:
            asyncio.run(tool.run({"value": value}))
        except InvalidArgument:
            assert innermost["name"] == 5

    assert steps(read_nested, 32) < 12 * steps(read_nested, 16)
