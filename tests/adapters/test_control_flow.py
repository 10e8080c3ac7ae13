"""Exceptions and results of a host's framework pass through the adapters unchanged."""

from __future__ import annotations

import asyncio
import importlib
import json
from types import SimpleNamespace
from typing import Any

import pytest
from host_helpers import call

from mama_structs import HashEmbedder, Session, sync, with_descriptors
from mama_structs._internal.control_flow import ControlFlow
from mama_structs.adapters.shared.tool_results import CallScheduler, answer_tool_call, observe_message
from mama_structs.errors import InvalidArgument
from mama_structs.testing.scripted_model import ModelTurn, ScriptedModel

MARKED = 'Here: <ref id="plan">shield first</ref>'


class Pause(Exception):
    """An exception that a framework uses for control flow."""


class Verdict:
    """A result that a framework interprets. It has no JSON form."""


FLOW = ControlFlow(exceptions=(Pause,), results=(Verdict,))


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as opened:
        yield opened


def saying(text: str = "done", *calls: tuple[str, dict[str, Any]]):
    """Yield a message with calls, and then a final text."""
    yield ModelTurn("", calls)
    yield text


# Tools called without a framework


async def test_answer_raises_exception_of_the_framework(session, caplog):
    """It is raised unchanged by sync and async tools and is not logged as an error. The next call runs."""
    raised = Pause("wait")

    async def in_loop() -> str:
        """Pause the run."""
        raise raised

    def in_thread() -> str:
        """Pause the run."""
        raise raised

    session.tools.add(in_loop)
    session.tools.add(in_thread)
    turns = CallScheduler(session, control_flow=FLOW)
    for name in ("in_loop", "in_thread"):
        with pytest.raises(Pause) as caught:
            await turns.answer(name, {})
        assert raised is caught.value

    assert "failed" not in caplog.text
    assert not (await turns.answer("list_refs", {})).is_error
    assert (await answer_tool_call(session, "in_loop", {})).is_error


@pytest.mark.parametrize("depth", [1, 3])
async def test_answer_raises_exception_of_the_framework_out_of_group(session, caplog, depth):
    """A tool's task group does not hide the exception: an approval must not be bypassed."""
    raised = Pause("wait")

    async def pay() -> str:
        """Pay in a task group."""
        error: Exception = raised
        for _ in range(depth):
            error = ExceptionGroup("tasks failed", [ValueError("other"), error])
        raise error

    session.tools.add(pay)
    with pytest.raises(Pause) as caught:
        await answer_tool_call(session, "pay", {}, control_flow=FLOW)

    assert raised is caught.value
    assert "failed" not in caplog.text
    assert (await answer_tool_call(session, "pay", {})).is_error


@pytest.mark.parametrize("decorate", [lambda one: one, with_descriptors, None])
@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: [one], lambda one: ["text", one]])
async def test_answer_returns_result_of_the_framework_unchanged(session, decorate, wrap):
    """The same object is returned, alone and in a list, also by a decorated tool."""
    result = wrap(Verdict())

    async def judge() -> Any:
        """Return a verdict."""
        return result

    session.tools.add((decorate or session.with_references(include_references=True))(judge))
    answered = await answer_tool_call(session, "judge", {}, control_flow=FLOW)

    assert result is answered.data
    assert (True, False) == (answered.is_native, answered.is_error)
    assert "[Verdict: not shown" in (await answer_tool_call(session, "judge", {})).text


async def test_result_of_the_framework_keeps_diagnostics_for_next_answer(session):
    """Diagnostics are not lost if an answer cannot contain them."""

    async def judge() -> Any:
        """Return a verdict."""
        return Verdict()

    session.tools.add(judge)
    await session.observe({"role": "assistant", "content": '<ref id="my aim">x</ref>'})
    await answer_tool_call(session, "judge", {}, control_flow=FLOW)

    assert "'my aim' is no id" in (await answer_tool_call(session, "list_refs", {})).text


async def test_tool_that_is_cancelled_cancels_the_call(session):
    """Cancellation is not reported to the model as an error."""

    async def leave() -> str:
        """Cancel the call."""
        raise asyncio.CancelledError

    session.tools.add(leave)
    with pytest.raises(asyncio.CancelledError):
        await answer_tool_call(session, "leave", {})


# Messages with items of unknown types


def _messages():
    """Yield a message of each framework that contains a ref and an item of an unknown type."""
    said, unknown = {"type": "text", "text": MARKED}, {"type": "made_up_later", "content": "x"}
    yield {"role": "assistant", "content": [said, unknown]}
    yield {"candidates": [{"content": {"role": "model", "parts": [unknown, {"text": MARKED}]}}]}
    for module, make in (
        ("langchain_core.messages", lambda messages: messages.AIMessage([unknown, said])),
        (
            "pydantic_ai.messages",
            lambda messages: messages.ModelResponse(
                [SimpleNamespace(part_kind="new", content="x"), messages.TextPart(MARKED)]
            ),
        ),
    ):
        try:
            yield make(importlib.import_module(module))
        except ImportError:
            continue


@pytest.mark.parametrize("message", [*_messages()], ids=lambda one: type(one).__module__)
async def test_hear_stores_refs_and_reports_item_that_cannot_be_read(session, caplog, message):
    """Refs of the readable items are stored once. The other item is logged and reported to the model."""
    await observe_message(session, message)
    await observe_message(session, message)

    assert 1 == caplog.text.count("cannot be read")
    assert "shield first" == session.refs.get("ref:plan@1").text
    assert "ref:plan@2" not in session.refs
    assert "could not be read" in (await answer_tool_call(session, "list_refs", {})).text
    with pytest.raises(InvalidArgument):
        await session.observe(message)
    with pytest.raises(InvalidArgument):
        session.refs.observe(message)


# LangGraph


def _graph(session: Any, *calls: tuple[str, dict[str, Any]]):
    agents = pytest.importorskip("langchain.agents")
    memory = importlib.import_module("langgraph.checkpoint.memory")
    langchain = importlib.import_module("mama_structs.adapters.langchain.toolkit")
    model = ScriptedModel(saying("done", *calls)).langchain()
    return agents.create_agent(model, tools=langchain.tools(session), checkpointer=memory.InMemorySaver())


GRAPH_INPUT = {"messages": [("user", "pay")]}
THREAD = {"configurable": {"thread_id": "1"}}


@pytest.mark.behaviour(row="interruption", framework="LangGraph")
@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("approved", [True, False])
async def test_langgraph_interrupt_pauses_and_resumes(session, in_thread, approved):
    """A person approves a payment: it is not paid before, and the approval reaches the tool."""
    types = pytest.importorskip("langgraph.types")
    paid = []

    async def pay(amount: int) -> str:
        """Pay an amount."""
        return done(amount)

    def done(amount: int) -> str:
        if not types.interrupt({"approve": amount}):
            return "refused"
        paid.append(amount)
        return "paid"

    def pay_in_thread(amount: int) -> str:
        """Pay an amount."""
        return done(amount)

    session.tools.add(pay_in_thread if in_thread else pay, name="pay")
    graph = _graph(session, call("pay", amount=5))
    paused = await graph.ainvoke(GRAPH_INPUT, THREAD)
    before = [*paid]
    resumed = await graph.ainvoke(types.Command(resume=approved), THREAD)

    assert [{"approve": 5}] == [one.value for one in paused["__interrupt__"]]
    assert [] == before
    assert "ai" == paused["messages"][-1].type
    assert ([5] if approved else []) == paid
    assert ["paid" if approved else "refused", "done"] == [one.content for one in resumed["messages"][-2:]]


@pytest.mark.behaviour(row="interruption", framework="LangGraph")
async def test_langgraph_interrupt_in_task_group_pauses_and_resumes(session):
    """The graph pauses, and the person's answer reaches the tool's task."""
    types = pytest.importorskip("langgraph.types")

    async def ask() -> str:
        return str(types.interrupt("approve?"))

    async def pay() -> str:
        """Pay an amount."""
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(ask())
        return asked.result()

    session.tools.add(pay)
    graph = _graph(session, call("pay"))
    paused = await graph.ainvoke(GRAPH_INPUT, THREAD)
    resumed = await graph.ainvoke(types.Command(resume="yes"), THREAD)

    assert ["approve?"] == [one.value for one in paused["__interrupt__"]]
    assert "yes" == resumed["messages"][-2].content


@pytest.mark.behaviour(row="interruption", framework="LangGraph")
async def test_langgraph_interrupt_keeps_results_of_parallel_calls(session):
    """Other calls of the message run once, and the paused call does not block later calls."""
    types = pytest.importorskip("langgraph.types")
    ran = []

    async def pay() -> str:
        """Pay an amount."""
        return str(types.interrupt("approve?"))

    async def note(text: str) -> str:
        """Write a note."""
        ran.append(text)
        return text

    session.tools.add(pay)
    session.tools.add(note)
    graph = _graph(session, call("note", text="a"), call("pay"), call("note", text="b"))
    paused = await graph.ainvoke(GRAPH_INPUT, THREAD)
    resumed = await asyncio.wait_for(graph.ainvoke(types.Command(resume="yes"), THREAD), 30)

    assert ["approve?"] == [one.value for one in paused["__interrupt__"]]
    assert ["a", "yes", "b"] == [one.content for one in resumed["messages"][-4:-1]]
    assert ["a", "b"] == ran


@pytest.mark.behaviour(row="interruption", framework="LangGraph")
def test_langgraph_interrupt_pauses_and_resumes_with_sync_session():
    """The same without an event loop."""
    types = pytest.importorskip("langgraph.types")

    async def pay(amount: int) -> str:
        """Pay an amount."""
        return f"paid {amount}" if types.interrupt("approve?") else "refused"

    with sync.Session.open(embedder=HashEmbedder()) as session:
        session.tools.add(pay)
        graph = _graph(session, call("pay", amount=5))
        paused = graph.invoke(GRAPH_INPUT, THREAD)
        resumed = graph.invoke(types.Command(resume=True), THREAD)

    assert ["approve?"] == [one.value for one in paused["__interrupt__"]]
    assert "paid 5" == resumed["messages"][-2].content


@pytest.mark.behaviour(row="interruption", framework="LangGraph")
@pytest.mark.parametrize("as_list", [False, True])
async def test_langgraph_interprets_command_and_tool_message(session, as_list):
    """A tool's command ends the graph, and its message is the result of the call."""
    types = pytest.importorskip("langgraph.types")
    messages = importlib.import_module("langchain_core.messages")

    async def finish(ctx: dict[str, Any]) -> Any:
        """Finish the run."""
        said = messages.ToolMessage("finished", tool_call_id=ctx["configurable"]["tool_call_id"], artifact={"own": 1})
        if as_list:
            return [said, types.Command(goto="__end__")]
        return types.Command(update={"messages": [said]}, goto="__end__")

    session.tools.add(finish)
    result = await _graph(session, call("finish")).ainvoke(GRAPH_INPUT, THREAD)

    last = next(one for one in reversed(result["messages"]) if one.type == "tool")
    assert ("finished", {"own": 1}) == (last.content, last.artifact)


@pytest.mark.behaviour(row="interruption", framework="LangChain")
async def test_langchain_tool_message_is_returned_as_result(session):
    """A tool's own message is its answer, even without a graph."""
    messages = pytest.importorskip("langchain_core.messages")
    langchain = importlib.import_module("mama_structs.adapters.langchain.toolkit")

    async def own(ctx: dict[str, Any]) -> Any:
        """Return an answer."""
        return messages.ToolMessage("mine", tool_call_id=ctx["configurable"]["tool_call_id"], status="error")

    session.tools.add(own)
    tool = next(one for one in langchain.tools(session) if one.name == "own")
    said = await tool.ainvoke({"type": "tool_call", "id": "c1", "name": "own", "args": {}})

    assert ("mine", "c1", "error") == (said.content, said.tool_call_id, said.status)


@pytest.mark.behaviour(row="interruption", framework="LangChain")
async def test_langchain_tool_exception_stays_an_error_message(session):
    """LangChain's exception for failed tools is handled like any other error."""
    tools = pytest.importorskip("langchain_core.tools")
    langchain = importlib.import_module("mama_structs.adapters.langchain.toolkit")

    async def fail() -> str:
        """Raise an error."""
        raise tools.ToolException("no such account")

    session.tools.add(fail)
    tool = next(one for one in langchain.tools(session) if one.name == "fail")
    said = await tool.ainvoke({"type": "tool_call", "id": "c1", "name": "fail", "args": {}})

    assert "error" == said.status
    assert "no such account" in said.content


# Pydantic AI


def _pydantic_agent(session: Session, *calls: tuple[str, dict[str, Any]], **options: Any):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    adapter = importlib.import_module("mama_structs.adapters.pydantic_ai")
    model = ScriptedModel(saying("done", *calls)).pydantic_ai()
    return pydantic_ai.Agent(model, toolsets=[adapter.toolset(session)], **options)


@pytest.mark.behaviour(row="interruption", framework="Pydantic AI")
async def test_pydantic_ai_asks_for_approval_and_resumes(session):
    """A tool that needs an approval ends the run with a request, and runs after the approval."""
    pydantic_ai = pytest.importorskip("pydantic_ai")
    paid = []

    async def pay(ctx: Any, amount: int) -> str:
        """Pay an amount."""
        if not ctx.tool_call_approved:
            raise pydantic_ai.ApprovalRequired(metadata={"amount": amount})
        paid.append(amount)
        return "paid"

    session.tools.add(pay)
    agent = _pydantic_agent(session, call("pay", amount=5), output_type=[str, pydantic_ai.DeferredToolRequests])
    asked = await agent.run("pay")
    (request,) = asked.output.approvals
    before = [*paid]
    results = pydantic_ai.DeferredToolResults(approvals={request.tool_call_id: True})
    resumed = await agent.run(message_history=asked.all_messages(), deferred_tool_results=results)

    assert [] == before
    assert {request.tool_call_id: {"amount": 5}} == asked.output.metadata
    assert [5] == paid
    assert "done" == resumed.output


@pytest.mark.behaviour(row="interruption", framework="Pydantic AI")
async def test_pydantic_ai_defers_call(session):
    """A tool with an external result ends the run with a request for it."""
    pydantic_ai = pytest.importorskip("pydantic_ai")

    async def start() -> str:
        """Start a job."""
        raise pydantic_ai.CallDeferred

    session.tools.add(start)
    agent = _pydantic_agent(session, call("start"), output_type=[str, pydantic_ai.DeferredToolRequests])

    assert ["start"] == [one.tool_name for one in (await agent.run("go")).output.calls]


@pytest.mark.behaviour(row="interruption", framework="Pydantic AI")
@pytest.mark.parametrize(("name", "outcome"), [("ModelRetry", "retried"), ("ToolFailed", "failed")])
async def test_pydantic_ai_reads_text_of_its_own_exceptions(session, name, outcome):
    """The model reads the text of the tool's exception and nothing else."""
    pydantic_ai = pytest.importorskip("pydantic_ai")

    async def look() -> str:
        """Look something up."""
        raise getattr(pydantic_ai, name)("look in the cellar")

    session.tools.add(look)
    result = await _pydantic_agent(session, call("look")).run("go")
    (said,) = [part for one in result.all_messages() for part in one.parts if getattr(part, "tool_name", "") == "look"][
        1:
    ]

    assert ("look in the cellar", outcome) == (said.content, said.outcome)


@pytest.mark.behaviour(row="interruption", framework="Pydantic AI")
async def test_pydantic_ai_interprets_tool_return_and_url(session):
    """The model gets the value and content of a ToolReturn, without its metadata. A URL is unchanged."""
    pydantic_ai = pytest.importorskip("pydantic_ai")

    async def look() -> Any:
        """Look something up."""
        return pydantic_ai.ToolReturn("seen", content="a picture of Ada", metadata={"secret": 1})

    async def link() -> Any:
        """Return a link."""
        return pydantic_ai.ImageUrl("https://example.com/a.png")

    session.tools.add(look)
    session.tools.add(link)
    result = await _pydantic_agent(session, call("look"), call("link")).run("go")
    parts = [part for one in result.all_messages() for part in one.parts]
    (seen, linked) = [one for one in parts if one.part_kind == "tool-return"]

    assert ("seen", {"secret": 1}) == (seen.content, seen.metadata)
    assert isinstance(linked.content, pydantic_ai.ImageUrl) or linked.files
    assert any("a picture of Ada" in str(one.content) for one in parts if one.part_kind == "user-prompt")


@pytest.mark.behaviour(row="interruption", framework="Pydantic AI")
async def test_pydantic_ai_usage_limit_of_inner_agent_ends_the_run(session):
    """The usage limit applies to an agent that runs inside a tool."""
    pydantic_ai = pytest.importorskip("pydantic_ai")

    async def ask() -> str:
        """Ask another agent."""
        raise pydantic_ai.UsageLimitExceeded("no more requests")

    session.tools.add(ask)
    with pytest.raises(pydantic_ai.UsageLimitExceeded):
        await _pydantic_agent(session, call("ask")).run("go")


# OpenAI Agents SDK


@pytest.mark.behaviour(row="interruption", framework="OpenAI Agents")
async def test_agents_sdk_tripwire_in_tool_ends_the_run(session):
    """A guardrail that trips in an agent inside a tool ends the run and is not sent to the model."""
    agents = pytest.importorskip("agents")
    adapter = importlib.import_module("mama_structs.adapters.openai_agents.toolkit")

    @agents.input_guardrail
    async def guard(_context: Any, _agent: Any, _said: Any) -> Any:
        return agents.GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    async def ask() -> str:
        """Ask another agent."""
        inner = agents.Agent(name="inner", model=ScriptedModel("inner").openai_agents(), input_guardrails=[guard])
        return str((await agents.Runner.run(inner, "hello", run_config=quiet)).final_output)

    session.tools.add(ask)
    quiet = agents.RunConfig(tracing_disabled=True)
    model = ScriptedModel(saying("done", call("ask"))).openai_agents()
    agent = agents.Agent(name="outer", model=model, tools=adapter.tools(session))
    with pytest.raises(agents.InputGuardrailTripwireTriggered):
        await agents.Runner.run(agent, "go", run_config=quiet)


@pytest.mark.behaviour(row="interruption", framework="OpenAI Agents")
async def test_agents_sdk_interprets_tool_outputs(session):
    """Text, image and file outputs reach the SDK unchanged, alone and in a list."""
    agents = pytest.importorskip("agents")
    adapter = importlib.import_module("mama_structs.adapters.openai_agents.toolkit")
    file = agents.ToolOutputFileContent(file_id="file_1")
    image = agents.ToolOutputImage(file_id="file_2")

    async def one() -> Any:
        """Return one output."""
        return file

    async def several() -> Any:
        """Return several outputs."""
        return [image, agents.ToolOutputText(text="two")]

    session.tools.add(one)
    session.tools.add(several)
    model = ScriptedModel(saying("done", call("one"), call("several"))).openai_agents()
    agent = agents.Agent(name="agent", model=model, tools=adapter.tools(session))
    result = await agents.Runner.run(agent, "go", run_config=agents.RunConfig(tracing_disabled=True))
    outputs = [item.raw_item["output"] for item in result.new_items if item.type == "tool_call_output_item"]

    assert ["input_file"] == [part["type"] for part in outputs[0]]
    assert ["input_image", "input_text"] == [part["type"] for part in outputs[1]]


@pytest.mark.behaviour(row="unknown items", framework="OpenAI Agents")
async def test_agents_sdk_run_with_hooks_continues_when_item_cannot_be_read(session, caplog):
    """The calls run, and the item is logged and reported to the model."""
    agents = pytest.importorskip("agents")
    items = importlib.import_module("openai.types.responses.response_output_item")
    adapter = importlib.import_module("mama_structs.adapters.openai_agents.toolkit")
    item = items.AdditionalTools(id="a", role="developer", tools=[], type="additional_tools")
    model = ScriptedModel(saying("done", call("list_refs"))).openai_agents()
    respond = model.get_response

    async def with_item(*arguments: Any, **more: Any) -> Any:
        response = await respond(*arguments, **more)
        response.output.insert(0, item)
        return response

    model.get_response = with_item
    agent = agents.Agent(name="agent", model=model, tools=adapter.tools(session))
    quiet = agents.RunConfig(tracing_disabled=True)
    result = await agents.Runner.run(agent, "go", run_config=quiet, hooks=adapter.hooks(session))
    (output,) = [one.output for one in result.new_items if one.type == "tool_call_output_item"]

    assert "done" == result.final_output
    assert "additional_tools" in output
    assert "could not be read" in output
    assert "cannot be read" in caplog.text


# Agent Framework


@pytest.mark.behaviour(row="interruption", framework="Agent Framework")
@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [
        ("agent_framework", "MiddlewareFailure", ("stop",)),
        ("agent_framework", "MiddlewareTermination", ("stop",)),
        ("agent_framework.exceptions", "UserInputRequiredException", ([],)),
    ],
)
async def test_agent_framework_signals_pass_through(session, module, name, arguments):
    """A control flow exception of a tool is raised unchanged."""
    pytest.importorskip("agent_framework")
    kind = getattr(importlib.import_module(module), name)

    async def guard() -> str:
        """Check a rule."""
        raise kind(*arguments)

    session.tools.add(guard)
    with pytest.raises(kind):
        await (await _agent_framework_tool(session, "guard")).invoke(arguments={})


@pytest.mark.behaviour(row="interruption", framework="Agent Framework")
async def test_agent_framework_failure_ends_the_run(session):
    """An exception of a guard inside a tool ends the run of an agent."""
    framework = pytest.importorskip("agent_framework")

    async def guard() -> str:
        """Check a rule."""
        raise framework.MiddlewareFailure("not allowed")

    session.tools.add(guard)
    with pytest.raises(framework.MiddlewareFailure):
        await _run_agent_framework(session, "guard")


@pytest.mark.behaviour(row="interruption", framework="Agent Framework")
async def test_agent_framework_reads_content(session):
    """Content that a tool returns reaches the framework unchanged."""
    framework = pytest.importorskip("agent_framework")
    content = framework.Content.from_uri("https://example.com/a.png", media_type="image/png")

    async def draw() -> Any:
        """Draw a picture."""
        return content

    session.tools.add(draw)
    assert [content] == await (await _agent_framework_tool(session, "draw")).invoke(arguments={})


async def _agent_framework_tool(session: Session, name: str) -> Any:
    framework = importlib.import_module("agent_framework")
    adapter = importlib.import_module("mama_structs.adapters.agent_framework.providers")
    context = framework.SessionContext(input_messages=[])
    provider = adapter.SessionContextProvider(session)
    await provider.before_run(agent=None, session=framework.AgentSession(), context=context, state={})
    return next(one for one in context.tools if one.name == name)


async def _run_agent_framework(session: Session, name: str) -> Any:
    framework = importlib.import_module("agent_framework")
    adapter = importlib.import_module("mama_structs.adapters.agent_framework.providers")

    class Client(framework.FunctionInvocationLayer, framework.ChatMiddlewareLayer, framework.BaseChatClient):
        def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **kwargs: Any) -> Any:
            async def respond() -> Any:
                asked = framework.Content.from_function_call("call_1", name, arguments={})
                return framework.ChatResponse(messages=[framework.Message("assistant", [asked])])

            return respond()

    agent = framework.Agent(Client(), context_providers=[adapter.SessionContextProvider(session)])
    return await agent.run("go")


# MCP


@pytest.mark.behaviour(row="interruption", framework="MCP")
@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_mcp_error_and_result_of_tool_reach_the_client(session, era):
    """A protocol error stays one. A native result keeps its metadata and error flag and has no schema."""
    mcp = pytest.importorskip("mcp")
    types = importlib.import_module("mcp_types")
    exceptions = importlib.import_module("mcp.shared.exceptions")
    adapter = importlib.import_module("mama_structs.adapters.mcp")

    async def log_in() -> str:
        """Log the user in."""
        asked = types.ElicitRequestURLParams(message="Log in", url="https://example.com/login", elicitation_id="a")
        raise exceptions.UrlElicitationRequiredError([asked])

    async def own() -> types.CallToolResult:
        """Return an answer."""
        return types.CallToolResult(
            content=[types.TextContent(text="mine")], structured_content={"a": 1}, is_error=True, _meta={"trace": "t"}
        )

    session.tools.add(log_in)
    session.tools.add(own)
    async with mcp.Client(adapter.server(session), mode=era) as client:
        listed = {one.name: one for one in (await client.list_tools()).tools}
        result = await client.call_tool("own", {})
        with pytest.raises(mcp.MCPError) as caught:
            await client.call_tool("log_in", {})

    assert listed["own"].output_schema is None
    assert (["mine"], {"a": 1}, True) == (
        [one.text for one in result.content],
        result.structured_content,
        result.is_error,
    )
    assert "t" == result.meta["trace"]
    assert types.URL_ELICITATION_REQUIRED == caught.value.code
    assert "https://example.com/login" in json.dumps(caught.value.data)
