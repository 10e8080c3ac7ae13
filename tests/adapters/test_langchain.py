"""A session's tools in LangChain: an agent loop on langchain_core only, with a scripted chat model."""

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
from host_helpers import call
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from mama_structs import HashEmbedder, Session, sync
from mama_structs.adapters import langchain
from mama_structs.adapters.shared.tool_schemas import to_always_strict_schema
from mama_structs.errors import SessionClosed
from mama_structs.testing.scripted_model import ModelRequest, ScriptedModel

Story = Generator[tuple[str, Any] | str, ModelRequest, None]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Disable all network access, including telemetry."""

    def refuse(_socket: socket.socket, address: object) -> None:
        raise AssertionError(f"connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


async def turn(session: Session, model: BaseChatModel, messages: list[BaseMessage], said: str) -> str:
    """Run an agent loop for a user message until the agent answers. The session selects the tools for the message."""
    messages.append(HumanMessage(said))
    tools = {tool.name: tool for tool in langchain.tools(session, message=messages)}
    bound = model.bind_tools(list(tools.values()))
    while True:
        answer = await bound.ainvoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return answer.content
        messages += [await tools[one["name"]].ainvoke(one) for one in answer.tool_calls]


def by_name(session: Session) -> dict[str, BaseTool]:
    return {tool.name: tool for tool in langchain.tools(session)}


def called(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_call", "id": "call_1", "name": name, "args": arguments}


async def test_langchain_wrong_call_returns_explanation():
    """The error message tells the model what to change."""

    def story() -> Story:
        yield call("save__decision", topic="auth", decision="Use JWT")
        saved = yield call("save__decision", topic="auth", decision="Use JWT", reasoning="No state")
        known = json.loads(saved.results[-1])["id"]
        yield call("evolve__outcome", decision_id=known[:-1], outcome="SUCCESS")
        yield call("evolve__outcome", decision_id=known, outcome="SUCCESS")
        yield "Done"

    messages: list[BaseMessage] = []
    async with Session.open(embedder=HashEmbedder()) as session:
        await turn(session, ScriptedModel(story()).langchain(), messages, "hello")
        count = await session.memories.count()

    missing, saved, unknown, done = [one for one in messages if isinstance(one, ToolMessage)]

    assert ["error", "error"] == [missing.status, unknown.status]
    assert "reasoning is required" in json.loads(missing.content)["error"]["message"]
    assert "not_found" == json.loads(unknown.content)["error"]["type"]
    assert "did you mean" in json.loads(unknown.content)["error"]["hint"]
    assert ["success", "success"] == [saved.status, done.status]
    assert 1 == count


@pytest.mark.parametrize("said", ["continue from yesterday", "어제 하던 작업 이어서 하자"])
async def test_langchain_tools_are_selected_by_message(said):
    """The user's message selects the tools; without a message there are all."""
    async with Session.open(embedder=HashEmbedder()) as session:
        everything = [tool.name for tool in langchain.tools(session)]
        resuming = [tool.name for tool in langchain.tools(session, message=said)]
        messages = [tool.name for tool in langchain.tools(session, message=[HumanMessage(said)])]

    assert set(resuming) < set(everything)
    assert {"load__checkpoint", "save__decision", "search__recent"} <= set(resuming)
    assert "evolve__outcome" not in resuming
    assert resuming == messages


async def test_langchain_schemas_reach_the_model():
    """LangChain's own converter produces the tools' schemas, and valid names and descriptions."""
    async with Session.open(embedder=HashEmbedder()) as session:
        found = by_name(session)
        names = session.tools.wire_names.by_tool
        for tool in session.tools.values():
            converted = convert_to_openai_tool(found[names[tool.name]])["function"]
            jsonschema.Draft202012Validator.check_schema(converted["parameters"])

            assert re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,39}", converted["name"])
            assert session.tools.wire_names._replace_tool_names(tool.description) == converted["description"]
            assert to_always_strict_schema(tool.input_schema, require_all=False) == found[names[tool.name]].args_schema
            assert list(tool.input_schema["properties"]) == list(converted["parameters"]["properties"])
            assert tool.input_schema.get("required", []) == converted["parameters"].get("required", [])


async def test_langchain_artifact_is_the_result_where_a_checkpoint_can_store_it():
    """LangGraph's serializer packs integers from -2**63 to 2**64-1. Only others become text."""
    numbers = [-(2**63) - 1, -(2**63), 2**63, 2**64 - 1, 2**64, True]

    async def count() -> dict:
        return {"numbers": numbers}

    async with Session.open(embedder=HashEmbedder()) as session:
        session.tools.add(count)
        done = await by_name(session)["count"].ainvoke(called("count"))

    assert {"numbers": [str(numbers[0]), *numbers[1:4], str(numbers[4]), True]} == done.artifact


async def test_langchain_arguments_keep_their_names():
    """Names of LangChain's own parameters (config, run_manager, self and the like) are valid argument names."""

    async def deploy(config: dict[str, str], callbacks: str, run_manager: str) -> str:
        return f"{config['region']} {callbacks} {run_manager}"

    async with Session.open(embedder=HashEmbedder()) as session:
        session.tools.add(deploy)
        done = await by_name(session)["deploy"].ainvoke(
            called("deploy", config={"region": "eu"}, callbacks="two", run_manager="three")
        )
        wrong = await by_name(session)["deploy"].ainvoke(called("deploy", self=1, arguments={}, config={}))

    assert "eu two three" == done.content
    assert "error" == wrong.status
    assert "self" in wrong.content


async def test_langchain_host_tool_receives_runnable_config():
    """The parameter ctx receives LangChain's config, and the model cannot set it."""

    async def whoami(ctx: RunnableConfig) -> str:
        return ctx["configurable"]["user"]

    async with Session.open(embedder=HashEmbedder()) as session:
        session.tools.add(whoami)
        tool = by_name(session)["whoami"]
        done = await tool.ainvoke(called("whoami"), config={"configurable": {"user": "ada"}})
        forged = await tool.ainvoke(called("whoami", ctx={"configurable": {"user": "eve"}}))

    assert "ada" == done.content
    assert {} == tool.args
    assert "error" == forged.status


async def test_langchain_host_tool_error_is_returned_as_error_message(caplog):
    """The model gets the error, the log its type and location."""

    async def broken() -> str:
        raise RuntimeError("the cable is cut")

    async with Session.open(embedder=HashEmbedder()) as session:
        session.tools.add(broken)
        message = await by_name(session)["broken"].ainvoke(called("broken"))

    assert "error" == message.status
    assert "the cable is cut" in message.content
    assert "RuntimeError" in caplog.text


async def test_langchain_sync_call_raises_with_async_alternative():
    """A sync call of an async tool raises an error that names the async method."""
    async with Session.open(embedder=HashEmbedder()) as session:
        with pytest.raises(NotImplementedError, match=r"save__decision is async.*ainvoke"):
            by_name(session)["save__decision"].invoke(called("save__decision", topic="t"))


async def test_langchain_tool_raises_when_session_is_closed():
    """It is a bug of the host, so it is not reported to the model."""
    async with Session.open(embedder=HashEmbedder()) as session:
        tool = by_name(session)["list_refs"]

    with pytest.raises(SessionClosed):
        await tool.ainvoke(called("list_refs"))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
async def test_langchain_tools_accept_any_input_without_raising(data):
    """For any input the answer is a message, an error or not, and the session stays usable."""
    async with Session.open(embedder=HashEmbedder()) as session:
        tool = data.draw(st.sampled_from(langchain.tools(session)), label="tool")
        names = st.sampled_from([*tool.args, "config", "self", "ctx", "type"]) | st.text(max_size=8)
        arguments = data.draw(st.dictionaries(names, ANYTHING, max_size=5), label="arguments")
        message = await tool.ainvoke({"type": "tool_call", "id": "call_1", "name": tool.name, "args": arguments})

        assert message.status in ("success", "error")
        assert isinstance(message.content, str)
        assert 0 <= await session.memories.count() <= 1


def test_langchain_missing_framework_names_the_extra(monkeypatch):
    """Without LangChain the import error says what to install."""
    for name in [name for name in sys.modules if name.split(".")[0] == "langchain_core"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "mama_structs.adapters.langchain.toolkit")

    with pytest.raises(ImportError, match=r"pip install 'mama-structs\[langchain\]'"):
        importlib.import_module("mama_structs.adapters.langchain.toolkit")


def test_langchain_graph_runs_without_event_loop():
    """With a session of `mama_structs.sync` an agent is invoked synchronously, and tools run in its threads."""
    agents = pytest.importorskip("langchain.agents")

    def story() -> Story:
        yield call("save__decision", topic="defence", decision="shield first", reasoning="raids")
        yield call("load__context", id="decision_x_1700000000000_12345678")
        yield "done"

    with sync.Session.open(embedder=HashEmbedder()) as session:
        agent = agents.create_agent(ScriptedModel(story()).langchain(), tools=langchain.tools(session))
        answered = agent.invoke({"messages": [HumanMessage("decide")]})
        tools = [one for one in answered["messages"] if isinstance(one, ToolMessage)]

        assert ["success", "error"] == [one.status for one in tools]
        assert "done" == answered["messages"][-1].content
        assert ["shield first"] == [memory.content for memory in session.memories.list()]
