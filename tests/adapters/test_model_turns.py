"""The order of the calls of one message, the refs of streams, and the diagnostics in tool answers."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
from typing import Any

import pytest
from host_helpers import call
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import HashEmbedder, Session
from mama_structs.adapters import anthropic
from mama_structs.adapters.shared.tool_results import CallScheduler, answer_tool_call
from mama_structs.settings import DescriptorSettings, Settings, ToolSettings
from mama_structs.testing.scripted_model import ModelTurn, ScriptedModel
from mama_structs.tools.tool import ToolAnnotations

CODE = "def aim(targets):\n    return targets[:3]"
MARKED = f'Here it is:\n<ref id="aim" lang="python">\n{CODE}\n</ref>'
MALFORMED = 'Here it is: <ref id="my aim">def aim(): ...'


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as session:
        yield session


async def measure(text: str) -> dict[str, int]:
    """Count characters."""
    return {"characters": len(text)}


async def test_observe_of_handled_message_has_no_effect(session):
    """The host may observe the same message before or after the adapter: it is stored once."""
    message = {"role": "assistant", "content": [{"type": "text", "text": MARKED}]}
    before = await session.observe(message)
    await anthropic.handle(session, message)
    await session.observe({"role": "assistant", "content": '<ref id="aim">a later one</ref>'})
    after = await session.observe(message)

    assert before == after
    assert "a later one" == session.refs.get("aim").text


async def test_observe_of_extended_message_stores_new_text(session):
    """The same object with more text counts as another message."""
    message = {"role": "assistant", "content": "I begin. "}
    await session.observe(message)
    message["content"] += MARKED

    assert 1 == len((await session.observe(message)).refs)


async def test_stream_diagnostics_are_reported_once(session):
    """They are reported once although the complete message is handled, too."""
    stream = session.stream()
    stream.feed(MALFORMED)
    await stream.close()
    calls = [{"type": "tool_use", "id": "c", "name": "list_refs", "input": {}}]
    message = {"role": "assistant", "content": [{"type": "text", "text": MALFORMED}, *calls]}

    (told,) = (await anthropic.handle(session, message, stop_reason="tool_use"))["content"]

    assert 1 == told["content"].count("'my aim' is no id")


async def test_stream_end_does_not_repeat_reported_diagnostics(session):
    """The framework's hook observes the message first, and the host closes its stream after the calls."""
    stream = session.stream()
    stream.feed(MALFORMED)
    await session.observe({"role": "assistant", "content": MALFORMED})
    first = await answer_tool_call(session, "list_refs", {})
    await stream.close()

    assert "'my aim' is no id" in first.text
    assert "'my aim' is no id" not in (await answer_tool_call(session, "list_refs", {})).text


# Streamed runs, and wrapped toolsets


@pytest.mark.parametrize(
    "wrap", [lambda one: one, lambda one: one.prefixed("m"), lambda one: one.filtered(lambda *_: True)]
)
async def test_pydantic_ai_streamed_run_stores_refs(session, wrap):
    """Refs are stored if the answer is streamed, and if the toolset is wrapped."""
    pydantic_ai = importlib.import_module("pydantic_ai")
    function = importlib.import_module("pydantic_ai.models.function")
    adapter = importlib.import_module("mama_structs.adapters.pydantic_ai")

    async def stream(_history, _info):
        for part in (MARKED[:20], MARKED[20:]):
            yield part

    agent = pydantic_ai.Agent(function.FunctionModel(stream_function=stream), toolsets=[wrap(adapter.toolset(session))])
    async with agent.run_stream("go") as result:
        await result.get_output()

    assert CODE == session.refs.get("aim").body.text


async def test_pydantic_ai_history_of_earlier_run_is_not_stored_again(session):
    """Messages in the history are not stored again, even if one of their refs was replaced since."""
    pydantic_ai = importlib.import_module("pydantic_ai")
    function = importlib.import_module("pydantic_ai.models.function")
    adapter = importlib.import_module("mama_structs.adapters.pydantic_ai")
    messages = importlib.import_module("pydantic_ai.messages")
    history = messages.ModelMessagesTypeAdapter.validate_python(
        [
            {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "go"}]},
            {"kind": "response", "parts": [{"part_kind": "text", "content": MARKED}]},
        ]
    )

    def fail(_history, _info):
        raise RuntimeError("the provider is down")

    agent = pydantic_ai.Agent(function.FunctionModel(fail), toolsets=[adapter.toolset(session)])
    with pytest.raises(RuntimeError):
        await agent.run("again", message_history=history)

    assert 0 == len(session.refs)


async def test_agents_sdk_streamed_run_stores_refs(session):
    """The hooks also run for streams."""
    agents = importlib.import_module("agents")
    adapter = importlib.import_module("mama_structs.adapters.openai_agents.toolkit")
    model = ScriptedModel(ModelTurn(MARKED, [call("get_ref", ref_id="aim")]), "Done.").openai_agents()
    agent = agents.Agent(name="agent", model=model, tools=adapter.tools(session))
    quiet = agents.RunConfig(tracing_disabled=True)
    result = agents.Runner.run_streamed(agent, "go", run_config=quiet, hooks=adapter.hooks(session))
    stream = session.stream()
    async for event in result.stream_events():
        stream.feed(event)

    (output,) = [item.output for item in result.new_items if item.type == "tool_call_output_item"]

    assert CODE in output
    assert MARKED in (await stream.close()).text
    assert ("ref:aim@1",) == session.refs.versions("aim")


async def test_agents_sdk_host_hooks_can_derive_from_session_hooks(session):
    """Hooks of a subclass run in addition to those of the session."""
    agents = importlib.import_module("agents")
    adapter = importlib.import_module("mama_structs.adapters.openai_agents.toolkit")
    seen = []

    class Own(adapter.SessionHooks):
        async def on_llm_end(self, context, agent, response):
            await super().on_llm_end(context, agent, response)
            seen.append(len(session.refs))

    agent = agents.Agent(name="agent", model=ScriptedModel(MARKED).openai_agents())
    await agents.Runner.run(agent, "go", run_config=agents.RunConfig(tracing_disabled=True), hooks=Own(session))

    assert [1] == seen


async def test_langchain_structured_answer_stores_refs(session):
    """With a structured answer the model's message is not the last one."""
    agents = pytest.importorskip("langchain.agents", reason="create_agent is not in langchain_core")
    structured = importlib.import_module("langchain.agents.structured_output")
    messages = importlib.import_module("langchain_core.messages")
    adapter = importlib.import_module("mama_structs.adapters.langchain.toolkit")
    schema = {"title": "Answer", "type": "object", "properties": {"sum": {"type": "integer"}}, "description": "It"}
    agent = agents.create_agent(
        ScriptedModel(ModelTurn(MARKED, [call("Answer", sum=3)])).langchain(),
        tools=adapter.tools(session),
        middleware=[adapter.middleware(session)],
        response_format=structured.ToolStrategy(schema),
    )
    state = await agent.ainvoke({"messages": [messages.HumanMessage("go")]})

    assert "tool" == state["messages"][-1].type
    assert CODE == session.refs.get("aim").body.text


async def test_langchain_middleware_raises_without_langchain_package(session, monkeypatch):
    """The error says what to install for `create_agent`."""
    adapter = importlib.import_module("mama_structs.adapters.langchain.toolkit")
    monkeypatch.setitem(sys.modules, "langchain.agents.middleware", None)

    with pytest.raises(ImportError, match="pip install langchain"):
        adapter.middleware(session)


# Diagnostics in answers of every type


async def noted(session: Session, result: Any) -> Any:
    async def give() -> Any:
        """Return a result."""
        return result

    session.tools.add(give)
    await session.observe(MALFORMED)
    return (await answer_tool_call(session, "give", {})).text


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"a": 1}, {"a": 1, "ref_notes": ["NOTE"]}),
        ({"ref_notes": 1}, {"ref_notes": 1, "ref_notes_": ["NOTE"]}),
        ([{"a": 1}], [{"a": 1}, {"ref_notes": ["NOTE"]}]),
        ([], [{"ref_notes": ["NOTE"]}]),
        ('{"a": 1}', {"a": 1, "ref_notes": ["NOTE"]}),
        ([1, 2], [1, 2]),
        (None, None),
        (7, 7),
    ],
)
async def test_answer_json_with_diagnostics_stays_json(session, result, expected):
    """An answer keeps its JSON type. If diagnostics do not fit in, they wait for the next answer."""
    text = re.sub(r"'my aim'[^\"]*", "NOTE", await noted(session, result))
    waits = "NOTE" not in text

    assert expected == json.loads(text)
    assert waits == ("my aim" in (await answer_tool_call(session, "list_refs", {})).text)


@pytest.mark.parametrize(
    "result",
    ['{"id": 1, "id": 1E400, "x": 1.10, "t": "\\ud800\\u00e9"}\n', '[{"x": 1.10, "t": "\\ud800"}]', "{ }", " [\n]"],
)
async def test_answer_diagnostics_preserve_json_text(session, result):
    """The text is not serialized again: numbers, escapes and repeated keys are preserved."""
    text = await noted(session, result)

    assert text.startswith(result.rstrip()[:-1].rstrip())
    assert text.encode()
    assert "'my aim'" in text
    assert json.loads(text)


async def test_answer_reserves_room_for_diagnostics_when_result_is_long(session):
    """The next answer contains them and is within the budget, even if the result is large."""
    text = await noted(session, {"rows": [{"number": n} for n in range(5_000)]})

    assert len(text) <= 8_000
    assert "'my aim' is no id" in json.loads(text)["ref_notes"][0]
    assert 5_000 == json.loads(text)["shortened"]["/rows"]["of"]


async def test_answer_appends_diagnostics_to_text(session):
    """The text is unchanged, with an element after it."""
    text = await noted(session, "done {")

    assert text.startswith("done {\n<ref_notes>\n'my aim' is no id")
    assert text.endswith("\n</ref_notes>")


async def test_answer_error_contains_diagnostics(session):
    """A call that fails because of malformed markup reports the diagnostic."""
    await session.observe(MALFORMED)

    answered = await answer_tool_call(session, "search_by_topics", {})

    assert answered.is_error
    assert {"error", "ref_notes"} == set(json.loads(answered.text))
    assert {"error"} == set(answered.data)


async def test_answer_limits_number_of_diagnostics(session):
    """Many diagnostics are reported as a few and a count, and all are then considered reported."""
    await session.observe("".join(f'<ref id="my id {n}">x' for n in range(50)))

    notes = json.loads((await answer_tool_call(session, "nothing", {})).text)["ref_notes"]

    assert 11 == len(notes)
    assert "and 40 more" == notes[-1]
    assert "ref_notes" not in (await answer_tool_call(session, "nothing", {})).text


async def test_unreported_diagnostics_are_bounded(session):
    """A host that runs no tools retains the newest diagnostics only."""
    for n in range(300):
        await session.observe(f'<ref id="my id {n}">x')

    notes = json.loads((await answer_tool_call(session, "nothing", {})).text)["ref_notes"]

    assert "and 90 more" == notes[-1]
    assert "'my id 200'" in notes[0]


# Order of calls that a framework starts concurrently


async def tools_that_log(session: Session, log: list[str]) -> None:
    async def write(n: int) -> str:
        """Write a note."""
        log.append(f"+w{n}")
        for _ in range(5):
            await asyncio.sleep(0)
        log.append(f"-w{n}")
        return ""

    async def read(n: int) -> str:
        """Read the notes."""
        log.append(f"+r{n}")
        for _ in range(5):
            await asyncio.sleep(0)
        log.append(f"-r{n}")
        return ""

    session.tools.add(write)
    session.tools.add(read, annotations=ToolAnnotations(read_only=True))


async def test_scheduler_runs_read_only_calls_concurrently(session):
    """Readers wait for earlier writers, but not for each other."""
    log: list[str] = []
    await tools_that_log(session, log)
    turns = CallScheduler(session)

    await asyncio.gather(*(turns.answer(name, {"n": n}) for n, name in enumerate(["read", "read", "write", "read"])))

    assert ["+r0", "+r1", "-r0", "-r1", "+w2", "-w2", "+r3", "-r3"] == log


@given(calls=st.lists(st.tuples(st.sampled_from(["read", "write"]), st.integers(0, 4), st.booleans()), max_size=8))
def test_scheduler_runs_writers_alone_and_in_order_when_calls_are_cancelled(calls):
    """No call runs concurrently with a writer, and each call sees all earlier writes."""
    asyncio.run(in_order(calls))


async def in_order(calls: list[tuple[str, int, bool]]) -> None:
    running: list[str] = []
    written: list[int] = []
    seen: dict[int, list[int]] = {}

    async def act(kind: str, n: int, turns: int) -> str:
        running.append(kind)
        assert ["write"] == running or "write" not in running
        seen[n] = [*written]
        for _ in range(turns):
            await asyncio.sleep(0)
        if kind == "write":
            written.append(n)
        running.remove(kind)
        return ""

    async def read(n: int, turns: int) -> str:
        """Read the notes."""
        return await act("read", n, turns)

    async def write(n: int, turns: int) -> str:
        """Write a note."""
        return await act("write", n, turns)

    async with Session.open(embedder=HashEmbedder()) as session:
        session.tools.add(read, annotations=ToolAnnotations(read_only=True))
        session.tools.add(write)
        order = CallScheduler(session)
        tasks = [
            asyncio.create_task(order.answer(kind, {"n": n, "turns": turns}))
            for n, (kind, turns, _) in enumerate(calls)
        ]
        await asyncio.sleep(0)
        begun = set(seen)
        cancelled = {n for n, (_, _, is_cancelled) in enumerate(calls) if is_cancelled and n not in begun}
        for n in cancelled:
            tasks[n].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)

    done = [n for n, one in enumerate(answers) if not isinstance(one, asyncio.CancelledError)]
    writers = [n for n in done if calls[n][0] == "write"]

    assert set(range(len(calls))) - cancelled == set(done)
    assert writers == written
    assert all([w for w in writers if w < n] == seen[n] for n in done)
    assert not any(getattr(one, "is_error", False) for one in answers)
    assert [] == order._calls


async def test_scheduler_releases_cancelled_call(session):
    """A cancelled call, waiting or running, does not block later calls."""
    log: list[str] = []
    await tools_that_log(session, log)
    turns = CallScheduler(session)
    calls = [asyncio.create_task(turns.answer("write", {"n": n})) for n in range(4)]
    while "+w0" not in log:  # noqa: ASYNC110 - the clock is not advanced
        await asyncio.sleep(0)
    calls[0].cancel()
    calls[2].cancel()

    done = await asyncio.gather(*calls, return_exceptions=True)

    assert ["+w0", "+w1", "-w1", "+w3", "-w3"] == log
    assert [True, False, True, False] == [isinstance(one, asyncio.CancelledError) for one in done]


async def test_scheduler_does_not_deadlock_when_tool_runs_agent(session):
    """A tool whose agent calls tools of the same session completes."""
    turns = CallScheduler(session)

    async def delegate() -> str:
        """Run another agent."""
        return (await asyncio.create_task(turns.answer("list_refs", {}))).text

    session.tools.add(delegate)

    async with asyncio.timeout(30):
        answered = await turns.answer("delegate", {})

    assert "ref_list" in answered.text


async def test_mcp_texts_mention_put_ref_instead_of_markup(tmp_path):
    """The server does not see the model's answers, so refs are created with put_ref only."""
    mcp = importlib.import_module("mama_structs.adapters.mcp")
    client_class = importlib.import_module("mcp.client").Client
    async with (
        Session.open(embedder=HashEmbedder(), files_root=tmp_path) as session,
        client_class(mcp.server(session)) as client,
    ):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        instructions = client.instructions
    said = [instructions, *(f"{tool.title} {tool.description} {tool.input_schema}" for tool in tools.values())]

    assert {"put_ref", "edit_ref", "get_ref", "list_refs", "read_fd", "search_fd", "fd_to_file"} <= set(tools)
    assert [] == [one for one in said if re.search(r"</?ref|marked|a mark|you can mark|mark it\b", one)]
    assert "ref:x" in instructions
    assert "put_ref" in tools["list_refs"].description


async def test_mcp_ref_can_be_read_edited_and_passed_in_same_message(session):
    """Calls of the same message can read, edit and pass the ref that put_ref created."""
    session.tools.add(measure)
    mcp = importlib.import_module("mama_structs.adapters.mcp")
    client_class = importlib.import_module("mcp.client").Client
    async with client_class(mcp.server(session)) as client:
        results = await asyncio.gather(
            client.call_tool("put_ref", {"ref_id": "aim", "text": CODE}),
            client.call_tool("get_ref", {"ref_id": "aim"}),
            client.call_tool("measure", {"text": "ref:aim"}),
            client.call_tool("edit_ref", {"ref_id": "aim", "old": "[:3]", "new": "[:10]"}),
            client.call_tool("measure", {"text": "ref:aim"}),
        )

    assert not any(one.is_error for one in results)
    assert CODE in results[1].content[0].text
    assert [len(CODE), len(CODE) + 1] == [json.loads(results[n].content[0].text)["characters"] for n in (2, 4)]


async def test_mcp_instructions_omit_missing_features():
    """A server without descriptors or memories does not mention them."""
    mcp = importlib.import_module("mama_structs.adapters.mcp")
    off = Settings(tools=ToolSettings(memory=False), descriptors=DescriptorSettings(enabled=False))
    async with Session.open(embedder=HashEmbedder(), settings=off) as session:
        assert mcp.server(session).instructions is None


async def test_mcp_calls_of_one_client_run_in_order(session):
    """The second of two concurrent calls sees the memory that the first one saved."""
    mcp = importlib.import_module("mama_structs.adapters.mcp")
    client_class = importlib.import_module("mcp.client").Client
    decision = {"topic": "auth", "decision": "Use JWT", "reasoning": "No state"}
    async with client_class(mcp.server(session)) as client:
        _, found = await asyncio.gather(
            client.call_tool("save__decision", decision), client.call_tool("search__by_topic", {"topic": "auth"})
        )

    assert "Use JWT" in found.content[0].text


async def test_mcp_slow_open_world_tool_does_not_block_other_calls(session):
    """It waits for earlier saves, but no call waits for it."""
    mcp = importlib.import_module("mama_structs.adapters.mcp")
    client_class = importlib.import_module("mcp.client").Client
    told = asyncio.Event()

    async def ask() -> str:
        """Ask the user."""
        await told.wait()
        return ",".join(memory.content for memory in await session.memories.list())

    session.tools.add(ask)
    decision = {"topic": "auth", "decision": "Use JWT", "reasoning": "No state"}
    async with client_class(mcp.server(session)) as client:
        asked = asyncio.create_task(client.call_tool("ask", {}))
        await client.call_tool("save__decision", decision)
        told.set()
        answered = await asked

    assert "Use JWT" == answered.content[0].text
