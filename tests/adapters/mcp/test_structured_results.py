"""Structured results over MCP match the announced output schemas, which the official client also checks."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from jsonschema import Draft202012Validator
from mcp import Client

from mama_structs import Session, Settings
from mama_structs.adapters.mcp import server
from mama_structs.settings import AnswerSettings, ToolSettings
from mama_structs.testing import FakeNode
from mama_structs.tools.schema import iterate_subschemas

LONG = "a line of text\n" * 2_000


class Typed(TypedDict):
    """A result with required fields."""

    text: str
    rows: list[dict[str, int]]


@attrs.frozen
class Plain:
    """A result with typed fields."""

    text: str
    rows: list[int]


class Struct(msgspec.Struct, forbid_unknown_fields=True):
    """A result that forbids additional fields and requires minimum lengths."""

    text: Annotated[str, msgspec.Meta(min_length=1_000)]
    rows: Annotated[list[int], msgspec.Meta(min_length=1_000)]
    kind: Literal["one", "two"] = "one"


class Inner(pydantic.BaseModel, extra="forbid"):
    """A nested result that forbids additional fields and requires minimum lengths."""

    names: dict[str, str] = pydantic.Field(min_length=2)
    text: str = pydantic.Field(min_length=20_000)


class Closed(pydantic.BaseModel, extra="forbid"):
    """A result that forbids additional fields and contains nested results."""

    inner: Inner
    rows: list[Inner] = pydantic.Field(min_length=1)
    shortened: bool | None = None


class Tree(pydantic.BaseModel, extra="forbid"):
    """A recursive result."""

    name: str
    children: list[Tree]


INNER = Inner(names={f"name {n}": "x" * 100 for n in range(300)}, text=LONG)
ROWS = list(range(5_000))
# Return annotation and result of each host tool, by tool name.
RESULTS_BY_NAME = {
    "texts": (dict[str, str], {f"key {n}": "text " * 50 for n in range(500)}),
    "numbers": (dict[str, int], {f"key {n}": n for n in range(5_000)}),
    "anything": (dict, {"text": LONG, "rows": ROWS, "shortened": "its own"}),
    "any_of_all": (dict[str, Any], {"text": LONG, "deep": {"deeper": {"rows": ROWS}}}),
    "typed": (Typed, {"text": LONG, "rows": [{"n": n} for n in ROWS]}),
    "plain": (Plain, Plain(LONG, ROWS)),
    "struct": (Struct, Struct(LONG, ROWS)),
    "closed": (Closed, Closed(inner=INNER, rows=[INNER] * 20)),
    "tree": (Tree, Tree(name=LONG, children=[Tree(name=str(n), children=[]) for n in ROWS])),
    "closed_names": (dict[Literal["a", "b"], str], {"a": LONG, "b": LONG}),
    "a_list": (list[int], ROWS),
    "a_text": (str, LONG),
}


def host_tool(name, kind, value):
    async def tool():
        return value

    tool.__name__ = name
    tool.__annotations__["return"] = kind
    return tool


async def told(session, calls):
    """Call tools with the official client, and return the results. The client and this function validate them."""
    results = {}
    async with Client(server(session)) as client:
        schemas = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
        for key, (name, arguments) in calls.items():
            result = results[key] = await client.call_tool(name, arguments)
            text = "".join(part.text for part in result.content)
            assert session.refs._budget.fits(text)
            if schemas[name] is not None and not result.is_error:
                Draft202012Validator(schemas[name]).validate(result.structured_content)
                assert result.structured_content == json.loads(text)
    return results, schemas


@pytest.mark.parametrize("limit", [1_000, 8_000])
async def test_mcp_truncated_results_match_output_schema_for_every_annotation(limit):
    """Mappings, typed mappings, and models without additional fields, truncated to a tenth and to almost nothing."""
    async with Session.open(settings=Settings(answers=AnswerSettings(max_chars=limit))) as session:
        for name, (kind, value) in RESULTS_BY_NAME.items():
            session.tools.add(host_tool(name, kind, value))
        results, schemas = await told(session, {name: (name, {}) for name in RESULTS_BY_NAME})

    assert {"a_list", "a_text"} == {name for name in RESULTS_BY_NAME if schemas[name] is None}
    assert [] == [name for name, result in results.items() if result.is_error]
    for result in results.values():
        if (structure := result.structured_content) is not None:
            assert "fd" in (structure.get("shortened_") or structure["shortened"])[""]


async def test_mcp_node_tool_results_match_output_schema():
    """Twenty tools on a world of 120 players: plain, with references, and with references of depth two."""
    modes = ({}, {"include_references": True}, {"include_references": True, "reference_depth": 2})
    calls = {}
    async with FakeNode.world(seed=1, players=120) as node, Session.open(structs=node.url) as session:
        for name in (name for name in session.tools if name.startswith("structs_")):
            given = {}
            if "query" in name:
                kind = name.rpartition("_")[2]
                listed = await session.call(f"structs_list_{kind}s", {}, max_chars=None)
                given = {f"{kind}_id": next(rows for rows in listed.values() if isinstance(rows, list))[0]["id"]}
            calls |= {(name, number): (name, {**given, **mode}) for number, mode in enumerate(modes)}
        results, schemas = await told(session, calls)

    assert 60 == len(results)
    assert all(schemas[name] for name, _ in results)
    assert [] == [key for key, result in results.items() if result.is_error]
    assert any("shortened" in result.structured_content for result in results.values())


async def test_mcp_schemas_name_a_single_type():
    """Clients that map schemas to a dialect with single types reject lists of types."""

    async def host_tool() -> dict[str, float]:
        return {}

    async with FakeNode.world(seed=1, players=12) as node, Session.open(structs=node.url) as session:
        session.tools.add(host_tool)
        async with Client(server(session)) as client:
            tools = (await client.list_tools()).tools

    schemas = [one for tool in tools for one in (tool.input_schema, tool.output_schema)]
    assert [] == [node for one in schemas for node in iterate_subschemas(one) if isinstance(node.get("type"), list)]


@pytest.mark.filterwarnings("ignore:the tool:DeprecationWarning")
async def test_mcp_memory_and_ref_tool_results_match_output_schema():
    """Ten current tools, seven of v1.0 and the ref tools, on memories with texts of a megabyte."""
    text = "the shield comes first because raids doubled " * 2_000
    async with Session.open(settings=Settings(tools=ToolSettings(deprecated=True))) as session:
        session.refs.add(LONG)
        first = await session.memories.save_decision(
            text, topic="defence", reasoning=text, evidence=[text[:10_000]] * 20
        )
        note = f"mentions {first.id}"
        calls = {
            "save__decision": {"topic": "defence", "decision": text, "reasoning": text, "evidence": ["fd:1"]},
            "save__insight": {"content": text, "tags": [text[:1_000] + str(n) for n in range(50)]},
            "save__checkpoint": {"summary": text, "open_files": [f"{text[:500]}{n}" for n in range(100)]},
            "load__checkpoint": {},
            "evolve__outcome": {"decision_id": first.id, "outcome": "FAILED", "reason": text},
            "evolve__supersede": {"decision_id": first.id, "decision": note, "reasoning": text},
            "evolve__correct": {"id": first.id, "content": f"better: {text}"},
            "load__context": {"id": first.id},
            "search__by_topic": {"topic": "defence"},
            "search__by_context": {"query": "why the shield?", "limit": 50},
            "search__recent": {"limit": 50},
            "put_ref": {"ref_id": "long", "text": LONG},
            "edit_ref": {"ref_id": "long", "old": LONG[:-1] + "\n", "new": "short"},
            "get_ref": {"ref_id": "long@1"},
            "list_refs": {},
            "read_fd": {"fd": "fd:1", "read_all": True},
            "search_fd": {"fd": "fd:1", "query": "line"},
            "save_decision": {"topic": "old", "decision": text, "reasoning": text},
            "recall_decision": {"topic": "defence"},
            "suggest_decision": {"userQuestion": "why the shield?"},
            "list_decisions": {"limit": 100},
            "update_outcome": {"topic": "old", "outcome": "failure", "failure_reason": text},
            "save_checkpoint": {"summary": text},
            "load_checkpoint": {},
        }
        missing = {session.tools.wire_names.by_tool[name] for name in session.tools} - calls.keys()
        results, schemas = await told(session, {name: (name, given) for name, given in calls.items()})

    assert set() == missing
    assert {"edit_ref"} >= {name for name, result in results.items() if result.is_error}
    assert {name for name in calls if "__" in name} <= {name for name, schema in schemas.items() if schema}


async def test_mcp_diagnostics_are_in_structure_and_text():
    """Diagnostics are part of the value in both forms."""
    async with Session.open() as session:
        session.refs.put("plan", "shield first")

        async def length(text: str) -> dict[str, int]:
            return {"length": len(text)}

        session.tools.add(length)
        results, _ = await told(session, {"length": ("length", {"text": "ref:plan"})})

    assert {"length": 12, "ref_notes": ["length got the text of ref:plan@1"]} == results["length"].structured_content


@pytest.mark.parametrize("value", [{"key": 5}, None, ["text"], "text", {"key": 1, "text": LONG}])
async def test_mcp_result_that_violates_annotation_is_readable(value, caplog):
    """Clients would reject it, so it is sent as an error that says that the tool has run, and a warning is logged."""
    async with Session.open() as session:
        session.tools.add(host_tool("lie", dict[str, str], value))
        results, _ = await told(session, {"lie": ("lie", {})})

    (content,) = results["lie"].content
    assert results["lie"].is_error
    assert "The tool has run" in content.text
    assert "lie gave what its return type does not allow" in caplog.text


async def test_mcp_schema_that_cannot_be_widened_is_not_announced():
    """A truncated result could violate a host's own schema in unpredictable ways."""
    own = {"type": "object", "allOf": [{"required": ["text"]}]}
    async with Session.open() as session:
        session.tools.add(attrs.evolve(session.tools["list_refs"], name="own", output_schema=own))
        _, schemas = await told(session, {})

    assert schemas["own"] is None
