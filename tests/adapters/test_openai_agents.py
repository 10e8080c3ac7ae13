"""A session's tools in the OpenAI Agents SDK: agents driven by the SDK's own scripted model."""

from __future__ import annotations

import importlib
import json
import re
import socket
import sys
from collections.abc import Generator
from typing import Any

import jsonschema
import pytest
from agents import Agent, FunctionTool, RunConfig, RunContextWrapper, Runner
from agents.strict_schema import ensure_strict_json_schema
from agents.tool_context import ToolContext
from host_helpers import call
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import HashEmbedder, Session, Settings, ToolSettings
from mama_structs.adapters import openai_agents
from mama_structs.errors import SessionClosed
from mama_structs.testing.scripted_model import ModelRequest, ScriptedModel
from mama_structs.tools.wire_names import make_wire_name

Story = Generator[tuple[str, Any] | str, ModelRequest, None]
QUIET = RunConfig(tracing_disabled=True)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Disable all network access, including telemetry."""

    def refuse(_socket: socket.socket, address: object) -> None:
        raise AssertionError(f"connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as session:
        yield session


async def run(tools: list[FunctionTool], story: Story, said: Any = "hello", **options: Any) -> Any:
    agent = Agent(name="agent", model=ScriptedModel(story).openai_agents(), tools=tools)
    return await Runner.run(agent, said, **({"run_config": QUIET, "max_turns": 50} | options))


@pytest.mark.parametrize("dynamic", ["auto", "force_dynamic"])
async def test_agents_sdk_run_is_offered_all_tools(dynamic):
    """The tools of a run are not narrowed by the first message: every tool can be called."""

    def story() -> Story:
        saved = yield call("save__insight", content="it was not hidden", category=None, tags=[], source=None, links=[])
        yield saved.results[-1]

    settings = Settings(tools=ToolSettings(dynamic=dynamic))
    async with Session.open(embedder=HashEmbedder(), settings=settings) as session:
        model = ScriptedModel(story())
        agent = Agent(name="agent", model=model.openai_agents(), tools=openai_agents.tools(session))
        result = await Runner.run(agent, "continue from yesterday", run_config=QUIET)

        assert "insight_" in result.final_output
        assert [set(map(make_wire_name, session.tools))] * 2 == [set(one.tools) for one in model.requests]


async def test_agents_sdk_definitions_are_strict(session):
    """Names follow the rules of all providers. The SDK's own strict conversion does not change the schemas."""
    for tool in openai_agents.tools(session):
        schema = tool.params_json_schema
        jsonschema.Draft202012Validator.check_schema(schema)

        assert re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,39}", tool.name)
        assert tool.strict_json_schema
        assert schema == ensure_strict_json_schema(json.loads(json.dumps(schema)))
        assert list(schema["properties"]) == schema["required"]


async def test_agents_sdk_free_form_tool_is_not_strict(session):
    """A tool that accepts any keys has no strict schema. Strict schemas can be disabled."""

    async def tag(labels: dict[str, str], *, force: bool = False) -> str:
        return f"{sorted(labels)} {force}"

    session.tools.add(tag)
    free = {tool.name: tool for tool in openai_agents.tools(session)}
    loose = openai_agents.tools(session, strict=False)

    def story() -> Story:
        yield (yield call("tag", labels={"b": "1", "a": "2"})).results[-1]

    result = await run(list(free.values()), story())

    assert not free["tag"].strict_json_schema
    assert ["labels"] == free["tag"].params_json_schema["required"]
    assert "['a', 'b'] False" == result.final_output
    assert not any(tool.strict_json_schema for tool in loose)


async def test_agents_sdk_host_tool_receives_tool_context(session):
    """The parameter tool_context receives the SDK's context, and the model cannot set it."""

    async def whoami(tool_context: RunContextWrapper[str]) -> str:
        assert isinstance(tool_context, ToolContext)
        return f"{tool_context.context} {tool_context.tool_name}"

    def story() -> Story:
        forged = yield call("whoami", tool_context="eve")
        done = yield call("whoami")
        yield f"{'error' in forged.results[-1]} {done.results[-1]}"

    session.tools.add(whoami)
    result = await run(openai_agents.tools(session), story(), context="ada")

    assert "True ada whoami" == result.final_output


async def test_agents_sdk_host_tool_error_is_returned_as_output(session, caplog):
    """The model gets the error, the log its type and location, and the run continues."""

    async def broken() -> str:
        raise RuntimeError("the cable is cut")

    def story() -> Story:
        yield (yield call("broken")).results[-1]

    session.tools.add(broken)
    result = await run(openai_agents.tools(session), story())

    assert "the cable is cut" in result.final_output
    assert "RuntimeError" in caplog.text


async def test_agents_sdk_streamed_run_gives_same_answer(session):
    """A streamed run calls the tools and returns the same answer."""

    def story() -> Story:
        yield (yield call("list_refs", category=None)).results[-1]

    agent = Agent(name="agent", model=ScriptedModel(story()).openai_agents(), tools=openai_agents.tools(session))
    result = Runner.run_streamed(agent, "hello", run_config=QUIET)
    kinds = [event.type async for event in result.stream_events()]

    assert '<ref_list count="0"/>' == result.final_output
    assert "run_item_stream_event" in kinds


async def test_agents_sdk_run_raises_when_session_is_closed():
    """It is a bug of the host, so it is not reported to the model."""
    async with Session.open(embedder=HashEmbedder()) as session:
        tools = openai_agents.tools(session)

    with pytest.raises(SessionClosed):
        await run(tools, (said for said in ()))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
async def test_agents_sdk_tools_accept_any_input_without_ending_run(data):
    """For any input, JSON or not, the run ends with an answer, and the session stays usable."""
    async with Session.open(embedder=HashEmbedder()) as session:
        tools = openai_agents.tools(session)
        tool = data.draw(st.sampled_from(tools), label="tool")
        names = st.sampled_from([*tool.params_json_schema["properties"], "ctx", "self"]) | st.text(max_size=8)
        sent = st.dictionaries(names, ANYTHING, max_size=5) | ANYTHING
        arguments = data.draw(sent.map(json.dumps) | st.text(max_size=20), label="arguments")

        def story() -> Story:
            asked = yield tool.name, arguments
            yield f"{len(asked.results)} answered"

        result = await run(tools, story())

        assert "1 answered" == result.final_output
        assert 0 <= await session.memories.count() <= 1


def test_agents_sdk_missing_framework_names_the_extra(monkeypatch):
    """Without the SDK the import error says what to install."""
    for name in [name for name in sys.modules if name.split(".")[0] == "agents"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "mama_structs.adapters.openai_agents.toolkit")

    with pytest.raises(ImportError, match=r"pip install 'mama-structs\[openai-agents\]'"):
        importlib.import_module("mama_structs.adapters.openai_agents.toolkit")
