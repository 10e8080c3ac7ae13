"""Adapters with a session of `mama_structs.sync`, in code without an event loop."""

import asyncio
import contextlib
import importlib
import inspect

import pytest
from host_helpers import call

from mama_structs import HashEmbedder, Session, sync
from mama_structs.adapters import anthropic, mem0, openai
from mama_structs.errors import InvalidArgument, SessionClosed
from mama_structs.testing.scripted_model import ScriptedModel

QUESTION = "Why does auth use Redis?"
REF = '<ref id="plan">shield first</ref>'


@pytest.fixture
def session():
    with sync.Session.open(embedder=HashEmbedder()) as opened:
        opened.memories.save_decision("Keep logins in Redis", topic="auth", reasoning="They can be revoked")
        yield opened


@contextlib.contextmanager
def new_loop():
    """Run with a new event loop, because the frameworks' synchronous functions shut down their loop."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@pytest.fixture
def own_loop():
    with new_loop():
        yield


def chat_call(name, arguments):
    return {"id": "call-1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_openai_functions_return_values(session):
    messages = openai.add_recall(session, QUESTION)
    names = {tool["name"] for tool in openai.tools(session)}
    some = openai.tools(session, message=QUESTION)
    answer = {"role": "assistant", "content": REF, "tool_calls": [chat_call("get_ref", '{"ref_id": "plan"}')]}
    (result,) = openai.handle(session, answer, finish_reason="tool_calls")

    assert QUESTION == messages[0]["content"]
    assert "Keep logins in Redis" in messages[1]["content"]
    assert messages == openai.add_recall(session, messages)
    assert {"save__decision", "get_ref"} < names
    assert some
    assert {"role": "tool", "tool_call_id": "call-1"}.items() <= result.items()
    assert "shield first" in result["content"]
    assert openai.tool_choice(session, QUESTION)


def test_anthropic_functions_return_values(session):
    (message,) = anthropic.add_recall(session, [{"role": "user", "content": QUESTION}])
    blocks = [
        {"type": "text", "text": REF},
        {"type": "tool_use", "id": "call-1", "name": "get_ref", "input": {"ref_id": "plan"}},
    ]
    answered = anthropic.handle(session, {"role": "assistant", "content": blocks, "stop_reason": "tool_use"})

    assert "Keep logins in Redis" in message["content"][1]["text"]
    assert {"save__decision", "get_ref"} < {tool["name"] for tool in anthropic.tools(session)}
    assert "call-1" == answered["content"][0]["tool_use_id"]
    assert "shield first" in answered["content"][0]["content"]
    assert anthropic.handle(session, [], stop_reason="end_turn") is None


async def test_same_functions_return_coroutines_for_async_session():
    async with Session.open(embedder=HashEmbedder()) as session:
        for made in (
            openai.add_recall(session, QUESTION),
            openai.handle(session, []),
            anthropic.add_recall(session, []),
            anthropic.handle(session, []),
        ):
            assert inspect.iscoroutine(made)
            await made


@pytest.mark.parametrize("work", [openai.handle, openai.add_recall, anthropic.handle, anthropic.add_recall])
@pytest.mark.parametrize("unfit", [None, "agent.mama", Session.open()])
def test_argument_that_is_no_session_raises_invalid_argument(work, unfit):
    with pytest.raises(InvalidArgument, match="session must be a Session"):
        work(unfit, [])


@pytest.mark.usefixtures("own_loop")
def test_pydantic_ai_agent_runs_synchronously(session):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    adapter = importlib.import_module("mama_structs.adapters.pydantic_ai")
    model = ScriptedModel(f"{REF} noted", call("get_ref", ref_id="plan"), "done")
    agent = pydantic_ai.Agent(model.pydantic_ai(), capabilities=[adapter.capability(session)])
    first = agent.run_sync(QUESTION)
    second = agent.run_sync("Read the plan", message_history=first.all_messages())

    assert f"{REF} noted" == first.output
    assert "Keep logins in Redis" in str(model.requests[0].messages)
    assert "done" == second.output
    assert "shield first" in model.requests[-1].results[-1]
    assert ["ref:plan@1"] == list(session.refs)


def test_openai_agents_run_synchronously(session):
    agents = pytest.importorskip("agents")
    adapter = importlib.import_module("mama_structs.adapters.openai_agents")
    model = ScriptedModel(f"{REF} noted", call("get_ref", ref_id="plan"), "done")
    agent = agents.Agent(name="agent", model=model.openai_agents(), tools=adapter.tools(session))
    hooks = adapter.hooks(session)
    config = agents.RunConfig(tracing_disabled=True, call_model_input_filter=hooks.add_recall)
    conversation = adapter.ConversationSession(session, "ada")
    for said in (QUESTION, "Read the plan"):
        with new_loop():
            result = agents.Runner.run_sync(agent, said, run_config=config, hooks=hooks, session=conversation)

    assert "done" == result.final_output
    assert "Keep logins in Redis" in str(model.requests[0].messages)
    assert "shield first" in model.requests[-1].results[-1]
    assert ["ref:plan@1"] == list(session.refs)


@pytest.mark.usefixtures("own_loop")
def test_openai_agents_tools_of_closed_session_raise():
    agents = pytest.importorskip("agents")
    adapter = importlib.import_module("mama_structs.adapters.openai_agents")
    with sync.Session.open(embedder=HashEmbedder()) as session:
        tools = adapter.tools(session)
    agent = agents.Agent(name="agent", model=ScriptedModel("never sent").openai_agents(), tools=tools)

    with pytest.raises(SessionClosed):
        agents.Runner.run_sync(agent, "hello", run_config=agents.RunConfig(tracing_disabled=True))


@pytest.mark.usefixtures("own_loop")
def test_pydantic_ai_harness_works_without_loop_of_session(session):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    pytest.importorskip("pydantic_ai_harness")
    adapter = importlib.import_module("mama_structs.adapters.pydantic_ai_harness")
    model = ScriptedModel(f"{REF} noted")
    agent = pydantic_ai.Agent(model.pydantic_ai(), capabilities=[adapter.recall_capability(session)])
    agent.run_sync(QUESTION)
    memory, overflow = adapter.memory_store(session), adapter.overflow_store(session)
    conversations = adapter.conversation_store(session)

    async def work():
        # This is another event loop than that of the session.
        await memory.write("notes.md", "shields help", expected_version=None)
        handle = await overflow.write("result", b"long text")
        return (await memory.read("notes.md", max_chars=100)).content, await overflow.read(handle)

    assert "Keep logins in Redis" in str(model.requests[0].messages)
    assert ["ref:plan@1"] == list(session.refs)
    assert ("shields help", b"long text") == asyncio.run(work())
    assert [] == asyncio.run(conversations.listing())


ASYNC_ONLY = {
    "claude_agent": ("claude_agent_sdk", ("session_store", "hooks")),
    "agent_framework": ("agent_framework", ("SessionContextProvider", "SessionHistoryProvider")),
    "mcp": ("mcp", ("server",)),
}


@pytest.mark.parametrize("name", ASYNC_ONLY)
def test_async_only_framework_rejects_sync_session(session, name):
    framework, made = ASYNC_ONLY[name]
    pytest.importorskip(framework)
    adapter = importlib.import_module(f"mama_structs.adapters.{name}")
    for one in made:
        with pytest.raises(InvalidArgument, match="async only") as raised:
            getattr(adapter, one)(session)
        assert "await Session.open" in raised.value.hint


def test_mem0_async_memory_rejects_sync_session(session):
    with pytest.raises(InvalidArgument) as raised:
        mem0.AsyncMemory(session)

    assert "use Memory" in raised.value.hint
    assert [] == mem0.Memory(session).get_all(filters={"user_id": "ada"})["results"]
