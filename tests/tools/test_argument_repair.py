"""Repair of arguments: unambiguous mistakes are fixed. Others are rejected with the expected type."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
import inspect
import json
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, NotRequired, Required, TypedDict

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mama_structs import HashEmbedder, Session
from mama_structs._internal.event_loop import is_model_call
from mama_structs._internal.jsonable import to_jsonable
from mama_structs.errors import InvalidArgument
from mama_structs.settings import Settings, ToolSettings
from mama_structs.testing import FakeNode
from mama_structs.tools.tool import Tool

Name = NewType("Name", str)
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Few = Annotated[int, msgspec.Meta(ge=1, le=50)]
Word = Annotated[str, msgspec.Meta(min_length=1, max_length=20)]


class Outcome(enum.Enum):
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"


class LinkTo(msgspec.Struct, forbid_unknown_fields=True):
    to_id: Word
    relationship: str
    confidence: Share = 0.8
    reason: str | None = None
    tags: Sequence[str] = ()


class Loose(TypedDict, total=False):
    to_id: Required[int]
    weight: float


class Marked(TypedDict):
    to_id: int
    weight: NotRequired[float]


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@attrs.frozen
class Tree:
    name: str
    children: list[Tree] = attrs.Factory(list)


def tool_taking(annotation, default=inspect.Parameter.empty):
    async def take(value=None):
        return value

    take.__signature__ = inspect.Signature(
        [inspect.Parameter("value", inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)]
    )
    return Tool.from_function(take)


async def save(
    decision_id: Word,
    *,
    confidence: Share = 0.7,
    limit: Few = 5,
    tags: Sequence[str] = (),
    links: Sequence[LinkTo] = (),
    supersedes: str | None = None,
    urgent: bool = False,
) -> dict[str, Any]:
    """
    Save something.

    Args:
        decision_id: Which.
        confidence: How sure.
        limit: How many.
        tags: Words.
        links: Links.
        supersedes: What it replaces.
        urgent: Whether it is.

    """
    return {
        "decision_id": decision_id,
        "confidence": confidence,
        "limit": limit,
        "tags": list(tags),
        "links": [msgspec.structs.asdict(link) for link in links],
        "supersedes": supersedes,
        "urgent": urgent,
    }


SAVE = Tool.from_function(save)


@pytest.mark.parametrize(
    ("annotation", "value", "meant"),
    [
        (float, "0.7", 0.7),
        (float, " .5 ", 0.5),
        (float, "1e-2", 0.01),
        (Share, "1", 1.0),
        (float | None, "0.7", 0.7),
        (int, "3", 3),
        (int, "3.0", 3),
        (int, 3.0, 3),
        (int, "-12", -12),
        (int | float, "3", 3),
        (bool, "true", True),
        (bool, "False", False),
        (bool | Literal["primary", "all"], "true", True),
        (bool | Literal["primary", "all"], "ALL", "all"),
        (Literal["SUCCESS", "FAILED"], "failed", "FAILED"),
        (Literal["SUCCESS", "FAILED"] | None, " Success ", "SUCCESS"),
        (Literal[1, 2], "2", 2),
        (Literal[1, 2], 2.0, 2),
        (Outcome, "failed", Outcome.FAILED),
        (list[str], "a.py", ["a.py"]),
        (Sequence[Name], "a.py", ["a.py"]),
        (list[str], "Write the tests, then ship it", ["Write the tests, then ship it"]),
        (list[str], "[draft] write it", ["[draft] write it"]),
        (list[str], '["a", "b"]', ["a", "b"]),
        (list[str], "[]", []),
        (Sequence[str] | None, '["a"]', ["a"]),
        (list[Literal["decision", "insight"]], "Decision", ["decision"]),
        (list[Literal["decision", "insight"]] | None, ["DECISION", "insight"], ["decision", "insight"]),
        (list[int], ["1", 2, 3.0], [1, 2, 3]),
        (list[int], 1, [1]),
        (set[int], '["1", 1]', {1}),
        (tuple[int, str], '["1", "a"]', (1, "a")),
        (dict[str, float], '{"a": "0.5"}', {"a": 0.5}),
        (Mapping[str, Any], '{"a": [1]}', {"a": [1]}),
        (dict[int, int], {"1": "2"}, {1: 2}),
        (Point, '{"x": "1"}', Point(1)),
        (Point, {"X": 1, "y": None}, Point(1)),
        (Loose, {"toId": "7", "weight": None}, {"to_id": 7}),
        (Marked, {"to_id": "7", "weight": None}, {"to_id": 7}),
        (Tree, {"name": "a", "children": {"Name": "b", "children": None}}, Tree("a", [Tree("b")])),
        (list[LinkTo], {"to_id": "x", "relationship": "r"}, [LinkTo("x", "r")]),
        (list[LinkTo], '{"to_id": "x", "relationship": "r"}', [LinkTo("x", "r")]),
        (
            list[LinkTo],
            [{"toId": "x", "relationship": "r", "confidence": "0.5", "tags": "t", "weight": None}],
            [LinkTo("x", "r", 0.5, None, ["t"])],
        ),
        (list[LinkTo], [{"to_id": "x", "relationship": "r", "confidence": None}], [LinkTo("x", "r")]),
        (list[list[int]], "[[1], [2]]", [[1], [2]]),
    ],
)
async def test_unambiguous_value_is_repaired(annotation, value, meant):
    """Numbers and objects as text, one item for a list, other case, nulls for omitted values."""
    received = await tool_taking(annotation)(value=value)

    assert (meant, type(meant)) == (received, type(received))


@pytest.mark.parametrize(
    ("annotation", "value", "wanted"),
    [
        (Share, "high", "a number from 0 to 1, got 'high'"),
        (Share, "1.5", "a number from 0 to 1, got '1.5'"),
        (Share, "70%", "a number from 0 to 1"),
        (float, "0,7", "a number, got '0,7'"),
        (float, "NaN", "a number, got 'NaN'"),
        (float, "1e999", "a number"),
        (float, "٣", "a number"),
        (float, "1_000", "a number"),
        (float, True, "a number, got true"),
        (Few, 1.7, "an integer from 1 to 50, got 1.7"),
        (Few, "1.7", "an integer from 1 to 50, got '1.7'"),
        (Few, "51", "an integer from 1 to 50, got '51'"),
        (Few, "", "an integer from 1 to 50, got ''"),
        (int, "007", "an integer"),
        (int, "1e3", "an integer"),
        (int, "9" * 5000, "an integer"),
        (int, 1e300, "an integer"),
        (int, False, "an integer, got false"),
        (int, None, "an integer, got null"),
        (bool, "yes", "true or false, got 'yes'"),
        (bool, 1, "true or false, got 1"),
        (Word, "", "a string of 1 to 20 characters, got ''"),
        (str, ["a"], r"a string, got a list of length 1"),
        (str, 5, "a string, got 5"),
        (str, {"a": 1}, "a string"),
        (Literal["SUCCESS", "FAILED"], "fail", "'FAILED' or 'SUCCESS', got 'fail'"),
        (Literal["a", "A"], " a ", "'A' or 'a', got a text of 3 characters"),
        (list[str], "", "an array"),
        (list[str], "null", "an array"),
        (list[str], "None", "an array"),
        (list[str], "auth, jwt", "an array .each a string., got a text of 9 characters"),
        (list[str], "a.py;b.py", "an array"),
        (list[str], "- one thing\n- another thing", "an array"),
        (list[str], "[auth, jwt]", "an array"),
        (list[str], "[auth]", "an array"),
        (list[str], "{auth jwt}", "an array"),
        (list[str], "[1]", "an array"),
        (list[str], '{"a": 1}', "an array"),
        (list[str], 5, "an array"),
        (list[str], ["a", None], "at \\[1\\], expected str, got null"),
        (list[str], [["a"]], "expected str, got array"),
        (list[Any], "a", "an array"),
        (list[list[str]], "a", "an array"),
        (list[list[str]], ["a"], "an array"),
        (list[list[str]], '["a"]', "an array"),
        (
            Annotated[list[int], msgspec.Meta(max_length=1)],
            '["1", "2"]',
            "an array of at most 1 item .each an integer., got",
        ),
        (dict[str, int], "[1]", "an object"),
        (dict[str, int], '{"a": 1, "a": 2}', "an object"),
        (dict[str, float], '{"a": NaN}', "an object"),
        (dict[str, int], "{" * 100_000, "an object"),
        (Point, '{"x": 1', "an object"),
        (LinkTo, {"to_id": "x", "relation": "r"}, "unknown field 'relation'; did you mean relationship by 'relation'?"),
        (LinkTo, {"to_id": "x", "relationship": "r", "weigth": 1}, "unknown field 'weigth'"),
        (
            LinkTo,
            {"to_id": "x", "toId": "y", "relationship": "r"},
            "unknown field 'toId'; did you mean to_id by 'toId'?",
        ),
        (LinkTo, {"toId": "x", "ToID": "y", "relationship": "r"}, "did you mean to_id by"),
        (list[LinkTo], [{"to_id": "", "relationship": "r"}], r"at \[0\]\.to_id"),
        (list[LinkTo], [{"to_id": "x", "relationship": "r", "confidence": "1.5"}], r"at \[0\]\.confidence"),
        (tuple[int, str], "[1]", "an array"),
        (int | list[int], "many", "got 'many'"),
    ],
)
async def test_ambiguous_value_is_rejected(annotation, value, wanted):
    """The message contains the expected type and the value."""
    with pytest.raises(
        InvalidArgument, match="take: value must be .*" + wanted.replace("|", "\\|").replace("?", "\\?")
    ):
        await tool_taking(annotation)(value=value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"decision_id": "d", "confidence": None, "limit": None, "tags": None, "links": None, "urgent": None}, {}),
        ({"decision_id": "d", "nonsense": None, "__proto__": None}, {}),
        ({"decisionId": "d"}, {}),
        ({"DecisionID": "d", "Confidence": "0.5"}, {"confidence": 0.5}),
        ({"decision-id": "d", "super_sedes": "x"}, {"supersedes": "x"}),
        ({"decision_id": "d", "decisionId": None}, {}),
        ({"decision_id": "d", "supersedes": "null"}, {"supersedes": "null"}),
    ],
)
async def test_names_and_nulls_are_repaired(given, meant):
    expected = await SAVE(decision_id="d")

    assert expected | meant == await SAVE.run(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "decision_id is required"),
        (
            {"decision_id": None},
            "decision_id must be a string of 1 to 20 characters, got null",
        ),
        ({"decision_id": "d", "confidense": 0.5}, "'confidense' is no argument of this tool, did you mean confidence?"),
        (
            {"decision_id": "d", "Decision ID": "e"},
            "a text of 11 characters is no argument of this tool, did you mean decision_id?",
        ),
        ({"decisionId": "d", "DecisionId": "e"}, "decision_id is required.*'decisionId' is no argument.*'DecisionId'"),
        ({"decision_id": "d", "colour": "red"}, "'colour' is no argument of this tool "),
        ({"decision_id": "d", 5: None}, "5 is no argument of this tool"),
        ({"decision_id": "d", "ctx": None}, "'ctx' is no argument of this tool"),
        ({"decision_id": "d", "CTX": 1}, "'CTX' is no argument of this tool"),
    ],
)
async def test_unknown_and_repeated_names_are_rejected(given, message):
    """The message names the most similar argument."""
    with pytest.raises(InvalidArgument, match=message.replace("?", "\\?")):
        await SAVE.run(given)


async def test_error_names_ten_faults_and_counts_others():
    with pytest.raises(InvalidArgument, match="and 9993 more") as refused:
        await SAVE.run({"confidence": "high", "limit": "many", **{f"extra_{number}": 1 for number in range(10_000)}})

    assert "decision_id is required" in str(refused.value)
    assert "got 'high'" in str(refused.value)
    assert 4000 > len(str(refused.value))


async def test_names_are_not_repaired_for_variable_keywords():
    async def take(decision_id: str = "", **others: int) -> dict[str, Any]:
        return {"decision_id": decision_id, **others}

    tool = Tool.from_function(take)

    assert {"decision_id": "", "decisionId": 5, "limit": 3} == await tool.run({"decisionId": 5, "limit": "3"})
    with pytest.raises(InvalidArgument, match="other must be an integer, got null"):
        await tool.run({"other": None})


async def test_host_call_repairs_arguments_too():
    """`await tool(...)` and `tool.run` validate alike."""
    assert 0.5 == (await SAVE(decision_id="d", confidence="0.5"))["confidence"]


async def test_large_invalid_arguments_take_linear_steps(steps):
    async def taken(count):
        nonsense = {
            "decision_id": "d",
            "tags": [["a"]] * count,
            "links": [{f"confidense {number}": 1 for number in range(count)}],
            "confidence": "[" * count,
            **{f"tag {number}": 1 for number in range(count)},
        }
        with pytest.raises(InvalidArgument), steps:
            await SAVE.run(nonsense)
        return steps.count

    assert await taken(8_000) < 6 * await taken(2_000)


# ---- properties

ANNOTATIONS = [
    str,
    Word,
    int,
    Few,
    float,
    Share,
    bool,
    int | None,
    int | str | None,
    list[int],
    list[str],
    list[str | None],
    Sequence[str] | None,
    list[list[str]],
    list[Any],
    set[int],
    tuple[int, str],
    tuple[int, ...],
    dict[str, float],
    dict[str, list[str]],
    Mapping[str, Any],
    Literal["a", "A", "b", 1],
    bool | Literal["primary", "all"],
    Outcome,
    Point,
    Loose,
    Marked,
    Tree,
    LinkTo,
    list[LinkTo],
    list[LinkTo] | str,
    Any,
]
KINDS = [(one, tool_taking(one), Draft202012Validator(tool_taking(one).input_schema)) for one in ANNOTATIONS]
words = st.sampled_from(
    [
        "",
        "a",
        "A",
        "b",
        "1",
        "1.0",
        "0.5",
        "true",
        "null",
        "primary",
        "failed",
        "a, b",
        "[]",
        "{}",
        '["a"]',
        "[1]",
        '{"x": "1"}',
    ]
)
scalars = (
    st.none() | st.booleans() | st.integers(-3, 60) | st.floats(-3, 60, allow_nan=False) | st.text(max_size=4) | words
)
names = st.sampled_from(["x", "X", "y", "name", "children", "to_id", "toId", "relationship", "confidence", "tags", "q"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=8
)
texts = values.map(json.dumps)


@given(kind=st.sampled_from(KINDS), value=values | texts)
def test_valid_argument_is_never_changed(kind, value):
    annotation, tool, _ = kind
    try:
        strict = msgspec.convert(value, annotation, strict=True, str_keys=True)
    except msgspec.ValidationError:
        return
    received = asyncio.run(tool.run({"value": value}))

    assert repr(strict) == repr(received)


@given(kind=st.sampled_from(KINDS), value=values | texts)
def test_repaired_argument_matches_schema(kind, value):
    _, tool, validator = kind
    try:
        received = to_jsonable(asyncio.run(tool.run({"value": value})))
    except InvalidArgument:
        assert not validator.is_valid({"value": value})
        return

    assert validator.is_valid({"value": received})


@given(kind=st.sampled_from(KINDS), value=values | texts)
def test_repair_is_idempotent(kind, value):
    _, tool, _ = kind
    try:
        received = to_jsonable(asyncio.run(tool.run({"value": value})))
    except InvalidArgument:
        return

    assert received == to_jsonable(asyncio.run(tool.run({"value": received})))


# ---- other types


@pytest.mark.skipif(not hasattr(typing, "TypeAliasType"), reason="type aliases of their own came with Python 3.12")
async def test_type_alias_is_repaired_like_its_value():
    assert 3 == await tool_taking(typing.TypeAliasType("Number", int))(value="3")


async def test_type_variable_accepts_any_value_except_nan():
    with pytest.raises(InvalidArgument, match="NaN"):
        await tool_taking(typing.TypeVar("T"))(value=float("nan"))


# Empty values for omitted arguments


@pytest.mark.parametrize(
    ("annotation", "default", "empty"),
    [
        (Word | None, None, ""),
        (Word, "x", ""),
        (Few, 5, "  "),
        (Few, 5, ""),
        (Few, 5, []),
        (bool, True, ""),
        (Literal["a", "b"], "a", ""),
        (dt.date | None, None, ""),
        (Sequence[str], ("x",), ""),
        (Annotated[Sequence[str], msgspec.Meta(min_length=1)] | None, None, []),
        (LinkTo | None, None, ""),
    ],
)
async def test_invalid_empty_value_of_optional_parameter_means_default(annotation, default, empty):
    """A model of a strict schema sends an empty value for an argument that it does not need."""
    tool = tool_taking(annotation, default)

    assert {} == tool._signature.check({"value": empty}, tool="take")


@pytest.mark.parametrize(
    ("annotation", "empty"),
    [(str | None, ""), (str | None, " "), (str, ""), (Sequence[str] | None, []), (list | str | None, []), (Any, "")],
)
async def test_empty_value_of_model_means_default_none(annotation, empty):
    """A host may pass a valid empty value."""
    tool = tool_taking(annotation, None)

    assert await tool.run({"value": empty}) is None
    assert empty == await tool(value=empty)


@pytest.mark.parametrize(
    ("annotation", "default", "empty"),
    [
        (str, "x", ""),
        (str | None, "x", None),
        (Sequence[str], ("x",), []),
        (Sequence[str], ("x",), [""]),
        (Sequence[str], (), [""]),
        (list[str] | None, None, [""]),
        (list[list[int]] | None, None, [[]]),
        (dict[str, str], None, {"a": ""}),
        (dict | None, None, {}),
    ],
)
async def test_valid_empty_value_reaches_function(annotation, default, empty):
    """A function may give an empty value a meaning, such as clearing a field."""
    assert empty == await tool_taking(annotation, default).run({"value": empty})


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (list[int] | None, [""]),
        (list[int] | None, [[]]),
        (list[int], [None]),
        (Sequence[Word], [""]),
        (dict[str, int] | None, {"id": ""}),
        (Point | None, {"x": ""}),
        (LinkTo | None, {"to_id": "", "relationship": ""}),
        (Sequence[LinkTo], [{"to_id": "", "relationship": "", "confidence": None}]),
    ],
)
async def test_empty_value_in_container_is_rejected(annotation, value):
    """It would be dangerous to run a tool without the filter that a model wanted to give."""
    with pytest.raises(InvalidArgument, match="value must be"):
        await tool_taking(annotation, None).run({"value": value})


@pytest.mark.parametrize(("annotation", "empty"), [(Word, ""), (Few, ""), (Sequence[Word], [""]), (LinkTo, {})])
async def test_empty_value_of_required_parameter_is_rejected(annotation, empty):
    """The error names the parameter and what it must be."""
    with pytest.raises(InvalidArgument, match="value must be"):
        await tool_taking(annotation)(value=empty)


async def test_invalid_empty_value_of_optional_field_means_default():
    """The rule applies to fields of objects, too. Required fields are rejected."""
    link = {"to_id": "a", "relationship": "b", "confidence": "", "tags": ""}
    saved = await SAVE(decision_id="d", links=[link])

    assert [0.8] == [one["confidence"] for one in saved["links"]]
    with pytest.raises(InvalidArgument, match="links must be"):
        await SAVE(decision_id="d", links=[{**link, "to_id": ""}])


async def test_package_tools_accept_empty_values_for_nothing():
    """An optional argument of every tool is omitted, or has its default, if it is an empty text or list."""
    async with (
        FakeNode.world(seed=1, players=12) as node,
        Session.open(
            structs=node.url, embedder=HashEmbedder(), settings=Settings(tools=ToolSettings(forget=True))
        ) as session,
    ):
        passed = []
        is_model_call.set(True)
        for tool in session.tools.values():
            every = {**tool._signature.parameters, **tool._signature.hidden_parameters}
            for name, parameter in every.items():
                alone = attrs.evolve(tool._signature, parameters={name: parameter}, hidden_parameters={})
                for empty in [] if parameter.required else ["", []]:
                    passed += alone.check({name: empty}, tool=tool.name).items()

        # An empty list is the default of these.
        lists = {"implements", "links", "evidence", "open_files", "next_steps", "tags"}
        assert {(name, "[]") for name in lists} == {(name, repr(v)) for name, v in passed}
