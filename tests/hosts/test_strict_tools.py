"""Schemas of tools after each framework's own conversion to OpenAI's strict mode."""

from __future__ import annotations

import copy
import importlib
import os
from typing import Any

import pytest
from schema_helpers import check_openai_strict, check_optional_arguments_are_nullable

from mama_structs import HashEmbedder, Session
from mama_structs.testing import FakeNode
from mama_structs.testing.scripted_model import ScriptedModel

os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")
pytestmark = pytest.mark.usefixtures("no_network")


@pytest.fixture
async def session():
    async with (
        FakeNode.world(seed=1, players=12) as node,
        Session.open(structs=node.url, embedder=HashEmbedder()) as session,
    ):
        yield session


def as_list(kind):
    return [kind] if isinstance(kind, str) else kind


def convert_for_langchain(session, *, strict):
    convert = pytest.importorskip("langchain_core.utils.function_calling").convert_to_openai_tool
    adapter = importlib.import_module("mama_structs.adapters.langchain.toolkit")
    functions = [convert(tool, strict=strict)["function"] for tool in adapter.tools(session)]
    return {one["name"]: one["parameters"] for one in functions}


async def convert_for_pydantic_ai(session, *, strict):
    """Return the schemas as the framework's OpenAI models send them."""
    profiles = pytest.importorskip("pydantic_ai.profiles.openai")
    pydantic_ai = importlib.import_module("pydantic_ai")
    function = importlib.import_module("pydantic_ai.models.function")
    adapter = importlib.import_module("mama_structs.adapters.pydantic_ai")
    messages = importlib.import_module("pydantic_ai.messages")
    seen = []

    def respond(_messages, info):
        seen.extend(info.function_tools)
        return messages.ModelResponse([messages.TextPart("done")])

    agent = pydantic_ai.Agent(function.FunctionModel(respond), toolsets=[adapter.toolset(session)])
    await agent.run("go")
    transform = profiles.OpenAIJsonSchemaTransformer
    return {
        one.name: transform(copy.deepcopy(one.parameters_json_schema), strict=strict or None).walk() for one in seen
    }


def convert_for_haystack(session, *, strict, responses):
    """Return the schemas that a generator of Haystack sends."""
    chat = pytest.importorskip("haystack.components.generators.chat")
    data, secret = importlib.import_module("haystack.dataclasses"), importlib.import_module("haystack.utils").Secret
    adapter = importlib.import_module("mama_structs.adapters.haystack.toolkit")
    kind = chat.OpenAIResponsesChatGenerator if responses else chat.OpenAIChatGenerator
    generator = kind(api_key=secret.from_token("none"), tools=adapter.HaystackToolset(session), tools_strict=strict)
    asked = generator._prepare_api_call(messages=[data.ChatMessage.from_user("go")])
    functions = [tool if responses else tool["function"] for tool in asked["tools"]]
    return {one["name"]: one["parameters"] for one in functions}


async def convert_for_agents_sdk(session):
    agents = pytest.importorskip("agents")
    adapter = importlib.import_module("mama_structs.adapters.openai_agents.toolkit")
    model = ScriptedModel("done")
    agent = agents.Agent(name="agent", model=model.openai_agents(), tools=adapter.tools(session))
    await agents.Runner.run(agent, "go", run_config=agents.RunConfig(tracing_disabled=True))
    return {one["name"]: one["parameters"] for one in model.requests[0].options["tools"] if one["strict"]}


def check_all(session, schemas):
    assert {session.tools.wire_names.by_tool[name] for name in session.tools} == {*schemas}
    for name, schema in schemas.items():
        check_openai_strict(schema)
        tool = session.tools[session.tools.wire_names.by_wire[name]]
        check_optional_arguments_are_nullable(schema, tool.input_schema)


async def test_langchain_strict_tools_are_valid_and_optional_arguments_nullable(session):
    """``bind_tools(strict=True)`` requires all properties, and a model can pass null for an optional one."""
    check_all(session, convert_for_langchain(session, strict=True))


@pytest.mark.parametrize("strict", [None, False])
async def test_langchain_tools_keep_optional_arguments_without_strict(session, strict):
    """Without strict mode, a model may omit optional arguments."""
    for name, schema in convert_for_langchain(session, strict=strict).items():
        tool = session.tools[session.tools.wire_names.by_wire[name]]
        assert tool.input_schema.get("required", []) == schema["required"]


async def test_langchain_provider_strategy_binds_strict_tools(session):
    """``ProviderStrategy`` binds the tools with ``strict=True`` for models of OpenAI."""
    agents = pytest.importorskip("langchain.agents")
    factory = importlib.import_module("langchain.agents.factory")
    structured = importlib.import_module("langchain.agents.structured_output")
    adapter = importlib.import_module("mama_structs.adapters.langchain.toolkit")
    convert = importlib.import_module("langchain_core.utils.function_calling").convert_to_openai_tool
    script = ScriptedModel('{"sum": 3}')
    model, bound = script.langchain(), {}

    class OpenAILike(type(model)):
        def bind_tools(self, tools, *, strict=None, **options):
            bound.update(
                {one["name"]: one["parameters"] for one in (convert(t, strict=strict)["function"] for t in tools)}
            )
            return self.bind(**options)

    schema = {"title": "Answer", "type": "object", "properties": {"sum": {"type": "integer"}}, "description": "It"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factory, "_is_openai_compatible_model", lambda _: True)
        agent = agents.create_agent(
            OpenAILike(), tools=adapter.tools(session), response_format=structured.ProviderStrategy(schema)
        )
        await agent.ainvoke({"messages": [{"role": "user", "content": "go"}]})

    check_all(session, bound)


async def read_ages(ages: dict[str, int], rows: list[Any], one: tuple[int, str] | None = None) -> str:
    """Return the arguments."""
    return f"{ages} {rows} {one}"


@pytest.mark.parametrize("framework", ["langchain", "chat", "responses"])
async def test_free_form_data_is_json_text_in_strict_mode(session, framework):
    """The framework cannot close the object, so a model can write all of it."""
    session.tools.add(read_ages)
    schemas = (
        convert_for_langchain(session, strict=True)
        if framework == "langchain"
        else convert_for_haystack(session, strict=True, responses=framework == "responses")
    )
    check_all(session, schemas)
    properties = schemas["read_ages"]["properties"]
    assert "JSON text of an object" in properties["ages"]["description"]
    assert [["string"], ["string"], ["string", "null"]] == [[*as_list(one["type"])] for one in properties.values()]

    assert "{'a': 1} [1, {'b': 2}] None" == await session.call(
        "read_ages", {"ages": '{"a": 1}', "rows": '[1, {"b": 2}]', "one": None}
    )


async def test_langchain_tools_are_plain_without_strict(session):
    """A host that never uses strict mode can send free-form data as an object."""
    session.tools.add(read_ages)
    pytest.importorskip("langchain_core")
    adapter = importlib.import_module("mama_structs.adapters.langchain.toolkit")
    schema = next(one.args_schema for one in adapter.tools(session, strict=False) if one.name == "read_ages")

    assert {"type": "object", "additionalProperties": {"type": "integer"}} == schema["properties"]["ages"]


async def test_pydantic_ai_strict_tools_are_valid_and_optional_arguments_nullable(session):
    """A host may set ``strict=True`` in the tool definitions."""
    check_all(session, await convert_for_pydantic_ai(session, strict=True))


@pytest.mark.parametrize("responses", [False, True])
@pytest.mark.parametrize("strict", [False, True])
async def test_haystack_tools_are_valid_with_and_without_strict(session, strict, responses):
    """The generator for the Responses API does not require all properties itself."""
    check_all(session, convert_for_haystack(session, strict=strict, responses=responses))


async def test_agents_sdk_strict_tools_are_valid(session):
    """The SDK sends strict schemas by default."""
    check_all(session, await convert_for_agents_sdk(session))


async def test_google_adk_sends_no_strict_tools(session):
    """ADK sends tools to OpenAI without strict mode, so their schemas are plain."""
    pytest.importorskip("openai")
    pytest.importorskip("google.adk")
    convert = importlib.import_module("google.adk.integrations.openai._openai_responses_llm")
    adapter = importlib.import_module("mama_structs.adapters.google_adk.toolkit")
    tools = await adapter.AdkToolset(session).get_tools()
    converted = [convert._function_declaration_to_response_tool(one._get_declaration()) for one in tools]

    assert len(session.tools) == len(converted)
    assert {False} == {one["strict"] for one in converted}


async def test_agent_framework_sends_no_strict_tools(session):
    """The Agent Framework sends tools without strict mode, so their schemas are plain."""
    framework = pytest.importorskip("agent_framework")
    adapter = importlib.import_module("mama_structs.adapters.agent_framework.providers")
    context = framework.SessionContext(input_messages=[])
    await adapter.SessionContextProvider(session).before_run(agent=None, session=None, context=context, state={})

    assert len(session.tools) == len(context.tools)
    assert not any("strict" in tool.to_json_schema_spec()["function"] for tool in context.tools)
