"""A model that says what a script has it say: what it keeps of what it was asked, and how it ends."""

from __future__ import annotations

import pytest
from agents import Agent, RunConfig, Runner
from anthropic import APIStatusError as AnthropicError
from openai import APIStatusError as OpenAIError
from pydantic_ai import Agent as PydanticAgent

from mama_structs.testing.scripted import ModelTurn, ScriptedModel

ASKED = [{"role": "user", "content": "why did we leave JWT?"}]
TOOL = {"name": "search__by_topic", "description": "", "parameters": {"type": "object", "properties": {}}}


async def test_a_step_can_answer_what_the_model_was_shown():
    """A function of the request is a step, so that a script can use the ids that a tool gave."""
    model = ScriptedModel(
        ModelTurn("Let me see.", [("search/by_topic", {"topic": "auth"})]),
        lambda request: f"Because {request.results[-1]}",
    )
    client = model.openai()
    tools = [{"type": "function", **TOOL, "strict": False}]
    first = await client.responses.create(model="any", input=ASKED, tools=tools)
    (call,) = [item for item in first.output if item.type == "function_call"]
    answered = {"type": "function_call_output", "call_id": call.call_id, "output": "a stolen one could not be revoked"}
    last = await client.responses.create(model="any", input=[*ASKED, call, answered])

    assert "search__by_topic" == call.name
    assert "Because a stolen one could not be revoked" == last.output_text
    assert [("user", "why did we leave JWT?")] == [(one.speaker, one.text) for one in model.requests[0].said]
    assert [("search__by_topic",), ()] == [request.tools for request in model.requests]
    assert 0 == model.left


async def test_a_script_that_is_over_fails_the_request():
    """A loop that asks once more than it should is told so, in every framework."""
    model = ScriptedModel("Only this.")
    agent = Agent(name="agent", model=model.openai_agents())
    await Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True))

    with pytest.raises(LookupError, match="the script is over: it has 1 messages"):
        await PydanticAgent(model.pydantic_ai()).run("go")
    with pytest.raises(LookupError, match="the script is over"):
        await model.langchain().ainvoke("go")
    with pytest.raises(OpenAIError, match="the script is over"):
        await model.openai().chat.completions.create(model="any", messages=ASKED)
    with pytest.raises(AnthropicError, match="the script is over"):
        await model.anthropic().messages.create(model="any", max_tokens=9, messages=ASKED)
    with pytest.raises(OpenAIError, match="does not stream"):
        await model.openai().responses.create(model="any", input="go", stream=True)
