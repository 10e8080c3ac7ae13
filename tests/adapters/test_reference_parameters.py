"""The reference parameters of tools in each framework, with an adapter and as plain functions."""

from __future__ import annotations

from typing import Any

import pytest
from agents import function_tool
from langchain_core.tools import StructuredTool
from mcp import Client
from mcp.server.mcpserver import MCPServer
from pydantic_ai import RunContext
from pydantic_ai import Tool as PydanticTool
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage

from mama_structs import EntityType, Resolver, Session, with_references
from mama_structs.adapters import anthropic, langchain, openai, openai_agents, pydantic_ai
from mama_structs.adapters.mcp import server
from mama_structs.settings import ReferenceSettings, Settings
from mama_structs.testing import FakeNode
from mama_structs.testing.fakes import FakeSource

NAME = "structs_query_player"
TYPES = {str(kind) for kind in EntityType}


async def of_pydantic_ai(session):
    ctx = RunContext(deps=None, model=TestModel(), usage=RunUsage())
    tools = await pydantic_ai.toolset(session).get_tools(ctx)
    return {name: one.tool_def.parameters_json_schema for name, one in tools.items()}


async def of_mcp(session):
    async with Client(server(session)) as client:
        return {one.name: one.input_schema for one in (await client.list_tools()).tools}


async def of_openai(session, *, strict):
    return {one["name"]: one["parameters"] for one in openai.tools(session, strict=strict)}


async def of_agents(session, *, strict):
    return {one.name: one.params_json_schema for one in openai_agents.tools(session, strict=strict)}


async def of_anthropic(session, *, strict):
    return {one["name"]: one["input_schema"] for one in anthropic.tools(session, strict=strict)}


async def of_langchain(session):
    return {one.name: one.args_schema for one in langchain.tools(session)}


ADAPTERS = {
    "pydantic-ai": of_pydantic_ai,
    "mcp": of_mcp,
    "langchain": of_langchain,
    **{
        f"{name}, {'strict' if strict else 'as it is'}": lambda session, read=read, strict=strict: read(
            session, strict=strict
        )
        for name, read in [("openai", of_openai), ("openai-agents", of_agents), ("anthropic", of_anthropic)]
        for strict in (True, False)
    },
}


def check_described(properties, types):
    """Assert that all three parameters have descriptions, and that types and depth are enums even in strict schemas."""
    assert ["include_references", "reference_types", "reference_depth"] == [
        name for name in properties if "reference" in name
    ]
    assert all(properties[name].get("description") for name in properties if "reference" in name)
    assert types == set(found_enum(properties["reference_types"]))
    assert [0, 1, 2] == [one for one in found_enum(properties["reference_depth"]) if one is not None]


def found_enum(schema):
    if "enum" in schema:
        return schema["enum"]
    inner = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]
    return next((found for one in inner if (found := found_enum(one))), [])


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_reference_parameters_are_described_bounded_and_typed(adapter):
    """Every adapter passes them to the model, strict or not."""
    async with FakeNode.world(seed=1, players=12) as node, Session.open(structs=node.url) as session:
        schemas = await ADAPTERS[adapter](session)

    for name in (NAME, "structs_list_players"):
        check_described(schemas[name]["properties"], TYPES)


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_reference_parameters_are_absent_when_feature_is_off(adapter):
    """A model is not offered parameters without effect."""
    settings = Settings(references=ReferenceSettings(enabled=False))
    async with FakeNode.world(seed=1, players=12) as node, Session.open(structs=node.url, settings=settings) as session:
        schemas = await ADAPTERS[adapter](session)

    assert ["player_id"] == list(schemas[NAME]["properties"])


@with_references(resolver=Resolver([FakeSource({})]))
async def look(player_id: str) -> dict[str, Any]:
    """
    Look a player up.

    Args:
        player_id: Such as 1-11.

    """
    return {"id": player_id}


async def bare_mcp():
    mcp = MCPServer("host")
    mcp.add_tool(look)
    return (await mcp.list_tools())[0].input_schema


async def bare_pydantic_ai():
    return PydanticTool(look).function_schema.json_schema


async def bare_langchain():
    return StructuredTool.from_function(coroutine=look).tool_call_schema.model_json_schema()


async def bare_agents():
    return function_tool(look).params_json_schema


@pytest.mark.parametrize("read", [bare_pydantic_ai, bare_langchain, bare_agents, bare_mcp])
async def test_reference_parameters_are_in_signature_of_decorated_function(read):
    """A framework that creates a tool from the decorated function finds them in its signature."""
    check_described((await read())["properties"], TYPES)


async def test_mcp_accepts_hidden_reference_parameters():
    """A client that knows the limits may pass them."""
    arguments = {"player_id": "1-1", "include_references": True, "max_references": 0}
    async with (
        FakeNode.world(seed=1, players=12) as node,
        Session.open(structs=node.url) as session,
        Client(server(session)) as client,
    ):
        answered = await client.call_tool(NAME, arguments)

    assert not answered.is_error
    assert '"omitted_by":{"max_references":' in answered.content[0].text
