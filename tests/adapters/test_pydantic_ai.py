"""A session's tools in Pydantic AI: agents driven by its own function and test models."""

from __future__ import annotations

import importlib
import json
import re
import socket
import sys
from collections.abc import Callable, Generator
from typing import Any

import jsonschema
import pytest
from host_helpers import call
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import Agent, RunContext, models
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.test import TestModel

from mama_structs import HashEmbedder, Session, Settings, ToolSettings
from mama_structs.adapters import pydantic_ai
from mama_structs.adapters.shared import tool_results as answers
from mama_structs.adapters.shared.tool_schemas import to_adaptable_schema
from mama_structs.errors import SessionClosed
from mama_structs.testing.scripted_model import ModelRequest, ScriptedModel
from mama_structs.tools.wire_names import make_wire_name

Story = Generator[tuple[str, Any] | str, ModelRequest, None]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Disable all network access, including telemetry."""

    def refuse(_socket: socket.socket, address: object) -> None:
        raise AssertionError(f"connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", False)


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as session:
        yield session


def opened(dynamic: str) -> Any:
    return Session.open(embedder=HashEmbedder(), settings=Settings(tools=ToolSettings(dynamic=dynamic)))


def agent(session: Session, story: Story, **options: Any) -> Agent:
    return Agent(ScriptedModel(story).pydantic_ai(), toolsets=[pydantic_ai.toolset(session)], **options)


def returns(result: Any) -> list[ToolReturnPart]:
    return [part for message in result.all_messages() for part in message.parts if isinstance(part, ToolReturnPart)]


async def test_pydantic_ai_model_corrects_wrong_arguments(session):
    """A wrong call is retried with an explanation; an unknown id gets a suggestion."""

    def story() -> Story:
        missing = yield call("save__decision", topic="auth", decision="Use JWT")
        saved = yield call("save__decision", topic="auth", decision="Use JWT", reasoning="No state")
        known = json.loads(saved.results[-1])["id"]
        unknown = yield call("evolve__outcome", decision_id=known[:-1], outcome="SUCCESS")
        yield call("evolve__outcome", decision_id=known, outcome="SUCCESS")
        yield json.dumps([json.loads(one.results[-1])["error"] for one in (missing, unknown)])

    result = await agent(session, story()).run("We use JWT")
    missing, unknown = json.loads(result.output)

    assert ["retried", "success", "retried", "success"] == [part.outcome for part in returns(result)]
    assert "reasoning is required" in missing["message"]
    assert "not_found" == unknown["type"]
    assert "did you mean" in unknown["hint"]
    assert 1 == await session.memories.count()


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_pydantic_ai_wrong_calls_never_end_the_run(session, retries):
    """After the retry limit, wrong arguments are a failed call, and the run continues to an answer."""

    def story() -> Story:
        for _ in range(5):
            yield call("evolve__outcome", decision_id="decision_none", outcome="SUCCESS")
        yield "I give up"

    result = await agent(session, story(), retries={"tools": retries}).run("It worked")

    assert "I give up" == result.output
    assert ["retried"] * retries + ["failed"] * (5 - retries) == [part.outcome for part in returns(result)]


async def test_pydantic_ai_toolset_retries_override_agent(session):
    """The limit of the toolset takes precedence over the agent's."""

    def story() -> Story:
        for _ in range(3):
            yield call("evolve__outcome", decision_id="decision_none", outcome="SUCCESS")
        yield "I give up"

    toolset = pydantic_ai.toolset(session, id="memory", max_retries=2)
    result = await Agent(ScriptedModel(story()).pydantic_ai(), toolsets=[toolset]).run("It worked")

    assert "memory" == toolset.id
    assert ["retried", "retried", "failed"] == [part.outcome for part in returns(result)]


@pytest.mark.parametrize("dynamic", ["auto", "force_dynamic"])
async def test_pydantic_ai_run_is_offered_all_tools(dynamic):
    """The tools of a run are not narrowed by the first message: every tool can be called."""

    def story() -> Story:
        done = yield call("save__insight", content="it was not hidden")
        yield done.results[-1]

    model = ScriptedModel(story(), story())
    async with opened(dynamic) as session:
        for one in ({"toolsets": [pydantic_ai.toolset(session)]}, {"capabilities": [pydantic_ai.capability(session)]}):
            result = await Agent(model.pydantic_ai(), **one).run("continue from yesterday")

            assert ["success"] == [part.outcome for part in returns(result)]
            assert "insight_" in result.output

        assert [set(map(make_wire_name, session.tools))] * 4 == [set(request.tools) for request in model.requests]


async def test_pydantic_ai_tool_choice_is_restricted_when_forced():
    """The choice follows the user's message, includes the host's tools and respects the host's settings."""
    model = ScriptedModel(*["Hello"] * 4)

    def weather() -> str:
        return "sunny"

    async with opened("force_dynamic") as session, opened("auto") as free:
        for one, said, settings in (
            (session, "continue from yesterday", None),
            (session, "What is the weather?", None),
            (session, "continue from yesterday", {"tool_choice": "none"}),
            (free, "continue from yesterday", None),
        ):
            narrowing = Agent(model.pydantic_ai(), tools=[weather], capabilities=[pydantic_ai.capability(one)])
            await narrowing.run(said, model_settings=settings)
        resuming, other, own, unforced = [
            (request.options.model_settings or {}).get("tool_choice") for request in model.requests
        ]
        everything = {"weather", *map(make_wire_name, session.tools)}

    assert everything > set(resuming.function_tools) > {"weather", "load__checkpoint", "search__recent"}
    assert "evolve__outcome" not in resuming.function_tools
    assert everything == set(other.function_tools)
    assert "none" == own
    assert unforced is None


async def test_pydantic_ai_tool_added_during_run_is_offered_at_next_request(session):
    """A host's tool that is added between two requests reaches the model with the second."""

    async def deploy() -> str:
        return "deployed"

    def story() -> Story:
        yield call("list_refs")
        session.tools.add(deploy)
        yield call("list_refs")
        done = yield call("deploy")
        yield done.results[-1]

    model = ScriptedModel(story())
    result = await Agent(model.pydantic_ai(), toolsets=[pydantic_ai.toolset(session)]).run("Deploy it")

    assert "deployed" == result.output
    assert [False, False, True, True] == ["deploy" in request.tools for request in model.requests]


async def test_pydantic_ai_definitions_are_valid(session):
    """Names follow the rules of all providers, schemas are the tools' own, and annotations are in the metadata."""
    model = TestModel(call_tools=[])
    await Agent(model, toolsets=[pydantic_ai.toolset(session)]).run("hello")
    definitions = model.last_model_request_parameters.function_tools
    names = session.tools.wire_names

    assert len(session.tools) == len(definitions)
    for one in definitions:
        tool = session.tools[names._tool(one.name)]
        jsonschema.Draft202012Validator.check_schema(one.parameters_json_schema)

        assert re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,39}", one.name)
        assert to_adaptable_schema(tool.input_schema) == one.parameters_json_schema
        assert session.tools.wire_names._replace_tool_names(tool.description) == one.description
        assert tool.annotations.read_only is one.metadata["read_only"]


async def test_pydantic_ai_test_model_calls_every_tool(session):
    """The framework's test model generates arguments from the schemas, calls every tool and finishes."""
    result = await Agent(TestModel(), toolsets=[pydantic_ai.toolset(session)]).run("hello")

    assert {wire for wire, _ in answers.list_wire_tools(session)} == {part.tool_name for part in returns(result)}
    assert await session.memories.count() > 0


async def test_pydantic_ai_host_tool_receives_run_context(session):
    """The parameter run_context receives Pydantic AI's context, and the model cannot set it."""

    async def whoami(run_context: RunContext[str]) -> str:
        return run_context.deps

    def story() -> Story:
        yield call("whoami", run_context={"deps": "eve"})
        done = yield call("whoami")
        yield done.results[-1]

    session.tools.add(whoami)
    result = await agent(session, story(), deps_type=str).run("Who am I?", deps="ada")

    assert ["retried", "success"] == [part.outcome for part in returns(result)]
    assert "ada" == result.output


async def test_pydantic_ai_lone_surrogate_in_result_is_replaced(session):
    """Otherwise Pydantic AI could not serialize the result as JSON."""

    async def halved() -> dict[str, str]:
        return {"text": "a\ud800"}

    def story() -> Story:
        done = yield call("halved")
        yield done.results[-1]

    session.tools.add(halved)
    result = await agent(session, story()).run("Try it")

    assert "a?" == result.output
    assert b"a?" in result.all_messages_json()


async def test_pydantic_ai_host_tool_error_is_failed_call(session, caplog):
    """It is not retried: the model gets the error, the log its type and location."""

    async def broken() -> str:
        raise RuntimeError("the cable is cut")

    def story() -> Story:
        done = yield call("broken")
        yield done.results[-1]

    session.tools.add(broken)
    result = await agent(session, story()).run("Try it")

    assert ["failed"] == [part.outcome for part in returns(result)]
    assert "the cable is cut" in result.output
    assert "RuntimeError" in caplog.text


@pytest.mark.parametrize("change", [lambda toolset: toolset.prefixed("mama"), lambda toolset: toolset.filtered(reads)])
async def test_pydantic_ai_toolset_can_be_wrapped(session, change: Callable[..., Any]):
    """Pydantic AI's wrappers work: names get a prefix, and tools are filtered by their annotations."""

    def calls_the_list(request: ModelRequest) -> tuple[str, Any]:
        return call(next(name for name in request.tools if name.endswith("list_refs")))

    model = ScriptedModel(calls_the_list, lambda request: request.results[-1])
    result = await Agent(model.pydantic_ai(), toolsets=[change(pydantic_ai.toolset(session))]).run("hello")

    assert '<ref_list count="0"/>' == result.output


def reads(_ctx: RunContext[Any], definition: Any) -> bool:
    return definition.metadata["read_only"]


async def test_pydantic_ai_run_raises_when_session_is_closed():
    """It is a bug of the host, so it is not reported to the model."""
    async with Session.open(embedder=HashEmbedder()) as session:
        one = Agent(TestModel(), toolsets=[pydantic_ai.toolset(session)])

    with pytest.raises(SessionClosed):
        await one.run("hello")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
async def test_pydantic_ai_tools_accept_any_input_without_ending_run(data):
    """For any input the run ends with an answer, and the session stays usable."""
    async with Session.open(embedder=HashEmbedder()) as session:
        tool = session.tools[data.draw(st.sampled_from(session.tools.names), label="tool")]
        names = st.sampled_from([*tool.input_schema["properties"], "ctx", "self", "name"]) | st.text(max_size=8)
        arguments = data.draw(st.lists(st.dictionaries(names, ANYTHING, max_size=5), min_size=1, max_size=3))

        def story() -> Story:
            for one in arguments:
                yield tool.name, one
            yield "done"

        result = await agent(session, story()).run("hello")

        assert "done" == result.output
        assert len(arguments) == len(returns(result))
        assert 0 <= await session.memories.count() <= len(arguments)


def test_pydantic_ai_missing_framework_names_the_extra(monkeypatch):
    """Without Pydantic AI the import error says what to install."""
    for name in [name for name in sys.modules if name.split(".")[0] == "pydantic_ai"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "mama_structs.adapters.pydantic_ai")

    with pytest.raises(ImportError, match=r"pip install 'mama-structs\[pydantic-ai\]'"):
        importlib.import_module("mama_structs.adapters.pydantic_ai")
