"""One turn of a model in every framework: what it marks is used by its own calls, which run in their order."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from host_helpers import DRIVES, Drive, call, named
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import HashEmbedder, Session
from mama_structs.adapters import anthropic
from mama_structs.adapters.shared.tool_results import Turns, answer
from mama_structs.settings import DescriptorSettings, Settings, ToolSettings
from mama_structs.testing.scripted_model import ModelTurn, ScriptedModel
from mama_structs.tools.tool import ToolAnnotations

CODE = "def aim(targets):\n    return targets[:3]"
MARKED = f'Here it is:\n<ref id="aim" lang="python">\n{CODE}\n</ref>'
MALFORMED = 'Here it is: <ref id="my aim">def aim(): ...'
FENCE = "`" * 3
IN_FENCE = f'{FENCE}\n<ref id="aim">\n{CODE}\n</ref>\n{FENCE}'


Run = Callable[[Session, list[ModelTurn]], Awaitable[list[str]]]


def playing(drive: Drive) -> Run:
    """Return a function that says a script in one turn of a host, and gives what the tools answered."""

    async def run(session: Session, script: list[ModelTurn]) -> list[str]:
        return (await drive(session, ScriptedModel(*script), "go")).outputs

    return run


EVERYWHERE = pytest.mark.parametrize("run", [playing(drive) for drive in DRIVES], ids=map(named, DRIVES))


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as session:
        yield session


async def measure(text: str) -> dict[str, int]:
    """Count characters."""
    return {"characters": len(text)}


@EVERYWHERE
async def test_a_ref_is_used_by_a_call_of_the_same_message(session, run: Run):
    """What a model marks is there for the calls that stand behind it, and no host observes anything."""
    (answered,) = await run(session, [ModelTurn(MARKED, (call("get_ref", ref_id="aim"),)), ModelTurn("Done.")])

    assert CODE in answered
    assert CODE == session.refs.get("aim").body.text


@EVERYWHERE
async def test_a_ref_is_passed_by_its_handle_to_a_call_of_the_same_message(session, run: Run):
    """Also under strict schemas, which want a text: the tool gets what the handle stands for."""
    session.tools.add(measure)
    (answered,) = await run(session, [ModelTurn(MARKED, (call("measure", text="ref:aim"),)), ModelTurn("Done.")])

    assert len(CODE) == json.loads(answered)["characters"]
    assert ["measure got the text of ref:aim@1"] == json.loads(answered)["ref_notes"]


@EVERYWHERE
async def test_a_text_that_is_put_is_read_by_the_next_call(session, run: Run):
    """Put and read in one message act in this order."""
    calls = (call("put_ref", ref_id="aim", text=CODE), call("get_ref", ref_id="aim"))
    _, answered = await run(session, [ModelTurn("", calls), ModelTurn("Done.")])

    assert CODE in answered


@EVERYWHERE
async def test_an_answer_without_calls_is_stored(session, run: Run):
    """Also what a model marks in its last words is there for the next turn."""
    await run(session, [ModelTurn(MARKED)])

    assert CODE == session.refs.get("aim").body.text
    assert 1 == len(session.refs)


@EVERYWHERE
async def test_a_message_with_several_calls_makes_one_version(session, run: Run):
    """Whether a framework shows a message once or with each call, what it marks is stored once."""
    calls = (call("list_refs", category=None), call("get_ref", ref_id="aim"), call("get_ref", ref_id="aim@2"))
    *_, answered = await run(session, [ModelTurn(MARKED, calls), ModelTurn("Done.")])

    assert "not_found" in answered
    assert ("ref:aim@1",) == session.refs.versions("aim")


@EVERYWHERE
@pytest.mark.parametrize(
    ("marked", "words"), [(MALFORMED, "'my aim' is no id"), (IN_FENCE, "in code"), ('<ref id="aim">x', "not closed")]
)
async def test_a_malformed_mark_is_explained_once(session, run: Run, marked, words):
    """The next answer of a tool says what was wrong with a mark, and the one after it says nothing of it."""
    session.tools.add(measure)
    first, second, third = await run(
        session,
        [
            ModelTurn(marked, (call("measure", text="abc"), call("measure", text="abcd"))),
            ModelTurn("Let me see.", (call("measure", text="abcde"),)),
            ModelTurn("Done."),
        ],
    )
    told = json.loads(first)

    assert 3 == told.pop("characters")
    assert ["ref_notes"] == list(told)
    assert words in "\n".join(told["ref_notes"])
    assert [{"characters": 4}, {"characters": 5}] == [json.loads(second), json.loads(third)]


@EVERYWHERE
async def test_a_call_for_what_was_marked_in_a_fence_says_so(session, run: Run):
    """The model that looks for its mark in the same turn is told why there is none."""
    (answered,) = await run(session, [ModelTurn(IN_FENCE, (call("get_ref", ref_id="aim"),)), ModelTurn("Done.")])

    assert "there is no ref:aim" in answered
    assert "put the tags outside" in answered


@EVERYWHERE
async def test_a_malformed_mark_of_an_answer_is_explained_in_the_next_turn(session, run: Run):
    """What stood in an answer without calls is explained by the first tool of the next."""
    await run(session, [ModelTurn(MALFORMED)])

    (answered,) = await run(session, [ModelTurn("Again.", (call("list_refs", category=None),)), ModelTurn("Done.")])

    assert re.search(r"\n<ref_notes>\n'my aim' is no id.*\n</ref_notes>$", answered, re.DOTALL)


@EVERYWHERE
async def test_calls_of_one_message_run_in_their_order(session, run: Run):
    """A call that reads behind one that writes finds what was written, however long the writing takes."""
    notes = []

    async def write(note: str) -> str:
        """Write a note."""
        for _ in range(30):
            await asyncio.sleep(0)
        notes.append(note)
        return "written"

    async def read() -> str:
        """Read the notes."""
        return ",".join(notes)

    session.tools.add(write)
    session.tools.add(read, annotations=ToolAnnotations(read_only=True))
    calls = (call("write", note="a"), call("read"), call("write", note="b"), call("read"))

    answered = await run(session, [ModelTurn("Both.", calls), ModelTurn("Done.")])

    assert ["written", "a", "written", "a,b"] == answered


@EVERYWHERE
async def test_a_memory_is_found_by_a_search_of_the_same_message(session, run: Run):
    """A model that saves and searches at once finds what it saved."""
    save = call("save__decision", topic="auth", decision="Use JWT", reasoning="No state")
    _, found = await run(session, [ModelTurn("", (save, call("search__by_topic", topic="auth"))), ModelTurn("Done.")])

    assert "Use JWT" in found


async def test_a_message_that_the_host_observes_too_undoes_nothing(session):
    """What was stored of a message is not stored again when its host observes it, before the adapter or after it."""
    message = {"role": "assistant", "content": [{"type": "text", "text": MARKED}]}
    before = await session.observe(message)
    await anthropic.handle(session, message)
    await session.observe({"role": "assistant", "content": '<ref id="aim">a later one</ref>'})
    after = await session.observe(message)

    assert before == after
    assert "a later one" == session.refs.get("aim").text


async def test_a_message_that_has_grown_is_observed_again(session):
    """The same object with more text is another message."""
    message = {"role": "assistant", "content": "I begin. "}
    await session.observe(message)
    message["content"] += MARKED

    assert 1 == len((await session.observe(message)).refs)


async def test_notes_on_a_stream_are_told_too(session):
    """What a streamed answer marked wrongly is explained, and once although its whole message is handled as well."""
    stream = session.stream()
    stream.feed(MALFORMED)
    await stream.close()
    calls = [{"type": "tool_use", "id": "c", "name": "list_refs", "input": {}}]
    message = {"role": "assistant", "content": [{"type": "text", "text": MALFORMED}, *calls]}

    (told,) = (await anthropic.handle(session, message, stop_reason="tool_use"))["content"]

    assert 1 == told["content"].count("'my aim' is no id")


async def test_notes_on_a_message_are_not_told_again_when_its_stream_ends(session):
    """A framework's hook hears the message first, and the host closes its stream after the calls."""
    stream = session.stream()
    stream.feed(MALFORMED)
    await session.observe({"role": "assistant", "content": MALFORMED})
    first = await answer(session, "list_refs", {})
    await stream.close()

    assert "'my aim' is no id" in first.text
    assert "'my aim' is no id" not in (await answer(session, "list_refs", {})).text


# Runs that stream, and toolsets that are wrapped


@pytest.mark.parametrize(
    "wrap", [lambda one: one, lambda one: one.prefixed("m"), lambda one: one.filtered(lambda *_: True)]
)
async def test_a_streamed_run_of_pydantic_ai_is_stored(session, wrap):
    """Also where the answer is streamed, and where the toolset stands in a wrapper."""
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


async def test_an_earlier_run_in_the_history_is_not_stored_again(session):
    """What a history holds is not said again, though a part of it was replaced since."""
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


async def test_a_streamed_run_of_the_agents_sdk_is_stored(session):
    """The hooks are asked there, too."""
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


async def test_hooks_of_a_host_go_beside(session):
    """A host's own hooks derive from those of the session."""
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


async def test_a_structured_answer_of_langchain_is_stored(session):
    """Where an agent answers by a tool of its own, the model's message is not the last one."""
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


async def test_an_agent_of_langchain_alone_has_no_middleware(session, monkeypatch):
    """Where `create_agent` is not installed the error says what to install."""
    adapter = importlib.import_module("mama_structs.adapters.langchain.toolkit")
    monkeypatch.setitem(sys.modules, "langchain.agents.middleware", None)

    with pytest.raises(ImportError, match="pip install langchain"):
        adapter.middleware(session)


# Notes in answers of every kind


async def noted(session: Session, result: Any) -> Any:
    async def give() -> Any:
        """Give."""
        return result

    session.tools.add(give)
    await session.observe(MALFORMED)
    return (await answer(session, "give", {})).text


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
async def test_json_with_notes_stays_json(session, result, expected):
    """An answer keeps its kind; where notes have no place they wait for the next answer."""
    text = re.sub(r"'my aim'[^\"]*", "NOTE", await noted(session, result))
    waits = "NOTE" not in text

    assert expected == json.loads(text)
    assert waits == ("my aim" in (await answer(session, "list_refs", {})).text)


@pytest.mark.parametrize(
    "result",
    ['{"id": 1, "id": 1E400, "x": 1.10, "t": "\\ud800\\u00e9"}\n', '[{"x": 1.10, "t": "\\ud800"}]', "{ }", " [\n]"],
)
async def test_notes_leave_the_words_of_a_text_alone(session, result):
    """Nothing of a text that is JSON is written anew: numbers, escapes and repeated keys stay what they were."""
    text = await noted(session, result)

    assert text.startswith(result.rstrip()[:-1].rstrip())
    assert text.encode()
    assert "'my aim'" in text
    assert json.loads(text)


async def test_a_long_answer_leaves_room_for_notes(session):
    """The next answer tells them, however much a tool has to say, and is within the budget."""
    text = await noted(session, {"rows": [{"number": n} for n in range(5_000)]})

    assert len(text) <= 8_000
    assert "'my aim' is no id" in json.loads(text)["ref_notes"][0]
    assert 5_000 == json.loads(text)["shortened"]["/rows"]["of"]


async def test_notes_stand_behind_a_text(session):
    """A text is as it was, with an element behind it."""
    text = await noted(session, "done {")

    assert text.startswith("done {\n<ref_notes>\n'my aim' is no id")
    assert text.endswith("\n</ref_notes>")


async def test_an_error_tells_the_notes_as_well(session):
    """A call that fails because of a mark is the place where a model looks."""
    await session.observe(MALFORMED)

    answered = await answer(session, "search_by_topics", {})

    assert answered.is_error
    assert {"error", "ref_notes"} == set(json.loads(answered.text))
    assert {"error"} == set(answered.data)


async def test_many_notes_are_a_few_and_a_number(session):
    """However much a model marked wrongly, it is told little of it, and all is told then."""
    await session.observe("".join(f'<ref id="my id {n}">x' for n in range(50)))

    notes = json.loads((await answer(session, "nothing", {})).text)["ref_notes"]

    assert 11 == len(notes)
    assert "and 40 more" == notes[-1]
    assert "ref_notes" not in (await answer(session, "nothing", {})).text


async def test_notes_that_nobody_tells_are_bounded(session):
    """A host that runs no tools keeps the newest notes only."""
    for n in range(300):
        await session.observe(f'<ref id="my id {n}">x')

    notes = json.loads((await answer(session, "nothing", {})).text)["ref_notes"]

    assert "and 90 more" == notes[-1]
    assert "'my id 200'" in notes[0]


# The order of calls that a framework starts at once


async def tools_that_log(session: Session, log: list[str]) -> None:
    async def write(n: int) -> str:
        """Write."""
        log.append(f"+w{n}")
        for _ in range(5):
            await asyncio.sleep(0)
        log.append(f"-w{n}")
        return ""

    async def read(n: int) -> str:
        """Read."""
        log.append(f"+r{n}")
        for _ in range(5):
            await asyncio.sleep(0)
        log.append(f"-r{n}")
        return ""

    session.tools.add(write)
    session.tools.add(read, annotations=ToolAnnotations(read_only=True))


async def test_calls_that_only_read_run_side_by_side(session):
    """Readers wait for the writers before them, and for each other not at all."""
    log: list[str] = []
    await tools_that_log(session, log)
    turns = Turns(session)

    await asyncio.gather(*(turns.answer(name, {"n": n}) for n, name in enumerate(["read", "read", "write", "read"])))

    assert ["+r0", "+r1", "-r0", "-r1", "+w2", "-w2", "+r3", "-r3"] == log


@given(calls=st.lists(st.tuples(st.sampled_from(["read", "write"]), st.integers(0, 4), st.booleans()), max_size=8))
def test_writers_run_alone_and_in_order_whatever_is_cancelled(calls):
    """At no time does a writer run beside anything, and each call sees all that was written by those before it."""
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
        """Read."""
        return await act("read", n, turns)

    async def write(n: int, turns: int) -> str:
        """Write."""
        return await act("write", n, turns)

    async with Session.open(embedder=HashEmbedder()) as session:
        session.tools.add(read, annotations=ToolAnnotations(read_only=True))
        session.tools.add(write)
        order = Turns(session)
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


async def test_a_cancelled_call_leaves_its_place(session):
    """Neither a waiting call that is cancelled nor a running one holds up those behind it."""
    log: list[str] = []
    await tools_that_log(session, log)
    turns = Turns(session)
    calls = [asyncio.create_task(turns.answer("write", {"n": n})) for n in range(4)]
    while "+w0" not in log:  # noqa: ASYNC110 - counted in turns of the loop
        await asyncio.sleep(0)
    calls[0].cancel()
    calls[2].cancel()

    done = await asyncio.gather(*calls, return_exceptions=True)

    assert ["+w0", "+w1", "-w1", "+w3", "-w3"] == log
    assert [True, False, True, False] == [isinstance(one, asyncio.CancelledError) for one in done]


async def test_an_agent_inside_a_tool_does_not_wait_for_it(session):
    """A tool whose agent calls tools of the same session comes to its end."""
    turns = Turns(session)

    async def delegate() -> str:
        """Let another agent look."""
        return (await asyncio.create_task(turns.answer("list_refs", {}))).text

    session.tools.add(delegate)

    async with asyncio.timeout(30):
        answered = await turns.answer("delegate", {})

    assert "ref_list" in answered.text


async def test_over_mcp_nothing_is_said_of_marks(tmp_path):
    """The server sees no answer of a model, so its tools and instructions speak of put_ref alone."""
    mcp = importlib.import_module("mama_structs.adapters.mcp")
    client_class = importlib.import_module("mcp.client").Client
    async with (
        Session.open(embedder=HashEmbedder(), files=tmp_path) as session,
        client_class(mcp.server(session)) as client,
    ):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        instructions = client.instructions
    said = [instructions, *(f"{tool.title} {tool.description} {tool.input_schema}" for tool in tools.values())]

    assert {"put_ref", "edit_ref", "get_ref", "list_refs", "read_fd", "search_fd", "fd_to_file"} <= set(tools)
    assert [] == [one for one in said if re.search(r"</?ref|marked|a mark|you can mark|mark it\b", one)]
    assert "ref:x" in instructions
    assert "put_ref" in tools["list_refs"].description


async def test_a_ref_of_a_client_is_read_and_passed_on_over_mcp(session):
    """What put_ref stored, calls of the same message read, edit and pass to other tools."""
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


async def test_a_server_without_descriptors_or_memories_says_nothing_of_them():
    """Clients are told of what there is."""
    mcp = importlib.import_module("mama_structs.adapters.mcp")
    off = Settings(tools=ToolSettings(memory=False), descriptors=DescriptorSettings(enabled=False))
    async with Session.open(embedder=HashEmbedder(), settings=off) as session:
        assert mcp.server(session).instructions is None


async def test_calls_of_one_mcp_client_run_in_their_order(session):
    """A client that sends all calls of a message at once finds with the second what the first saved."""
    mcp = importlib.import_module("mama_structs.adapters.mcp")
    client_class = importlib.import_module("mcp.client").Client
    decision = {"topic": "auth", "decision": "Use JWT", "reasoning": "No state"}
    async with client_class(mcp.server(session)) as client:
        _, found = await asyncio.gather(
            client.call_tool("save__decision", decision), client.call_tool("search__by_topic", {"topic": "auth"})
        )

    assert "Use JWT" in found.content[0].text


async def test_a_tool_that_takes_its_time_holds_no_client_up(session):
    """Over MCP a tool that reaches beyond the session waits for what was saved before, and nobody waits for it."""
    mcp = importlib.import_module("mama_structs.adapters.mcp")
    client_class = importlib.import_module("mcp.client").Client
    told = asyncio.Event()

    async def ask() -> str:
        """Ask the user."""
        await told.wait()
        return ",".join(memory.content for memory in await session.memories.recent())

    session.tools.add(ask)
    decision = {"topic": "auth", "decision": "Use JWT", "reasoning": "No state"}
    async with client_class(mcp.server(session)) as client:
        asked = asyncio.create_task(client.call_tool("ask", {}))
        await client.call_tool("save__decision", decision)
        told.set()
        answered = await asked

    assert "Use JWT" == answered.content[0].text
