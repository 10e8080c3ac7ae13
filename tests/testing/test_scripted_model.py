"""The scripted model: complete and streamed answers, recorded requests, and the end of the script."""

from __future__ import annotations

import json
import re

import pytest
from anthropic import APIStatusError as AnthropicError
from host_helpers import DRIVES, call, in_langchain, in_openai_chat, in_pydantic_ai, named
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mcp import Client
from openai import APIStatusError as OpenAIError

from mama_structs import HashEmbedder, Session
from mama_structs.adapters import mcp
from mama_structs.errors import InvalidArgument
from mama_structs.testing.scripted_model import ModelTurn, ScriptedModel
from mama_structs.testing.strategies import chunkings, ref_documents

EVERYWHERE = pytest.mark.parametrize("drive", DRIVES, ids=map(named, DRIVES))
CODE = "def aim(targets):\n    return targets[:3]"
MARKED = f'Here it is:\n<ref id="aim" lang="python">\n{CODE}\n</ref>\nLook.'
SEEN = f"Here it is:\n\n{CODE}\n\nLook."


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as session:
        yield session


def story():
    """Yield the calls of a model that saves, rates and supersedes a decision, and explains the change from memory."""
    request = yield call("save/decision", topic="auth", decision="Use JWT for logins", reasoning="No state to keep")
    jwt = json.loads(request.results[-1])["id"]
    yield "Noted"
    yield call("evolve__supersede", decision_id=jwt, decision="Keep sessions in Redis", reasoning="They can be revoked")
    yield "Replaced"
    yield call("evolve__outcome", decision_id=jwt, outcome="FAILED", reason="stolen tokens stayed valid")
    yield "Marked"
    request = yield call("search__by_context", query="why did we leave JWT?")
    old = next(one for one in json.loads(request.results[-1])["found"] if one["id"] == jwt)
    yield f"{old['content']} {old['outcome']}: {old['outcome_reason']}. Now: {old['in_its_place']}"


@pytest.mark.once
@EVERYWHERE
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_agent_answers_from_memory_why_jwt_was_left(session, drive, streamed):
    """A generator in the script receives the next requests, so it can use tool results."""
    model = ScriptedModel(story(), lambda request: request.transcript[-1].text)
    turns = ["We use JWT for logins.", "We keep sessions in Redis instead.", "JWT failed.", "Why did we leave JWT?"]
    run = await drive(session, model, *turns, "Sure?", streamed=streamed)

    assert ["Noted", "Replaced", "Marked"] == run.answers[:3]
    assert "Use JWT for logins FAILED: stolen tokens stayed valid. Now: Keep sessions in Redis" == run.answers[3]
    assert "Sure?" == run.answers[4]
    assert 4 == len(run.outputs)
    assert all("search__by_topic" in request.tools for request in model.requests)
    assert (9, 0) == (len(model.requests), model.left)


async def test_agent_with_tools_over_mcp_answers_from_memory(session):
    """The model is behind an MCP client with the tools of the server."""
    model, messages, answers = ScriptedModel(story()), [], []
    async with Client(mcp.server(session)) as client, model.openai() as provider:
        tools = [
            {"type": "function", "function": {"name": tool.name, "parameters": tool.input_schema}}
            for tool in (await client.list_tools()).tools
        ]
        for said in ("We use JWT.", "We use Redis instead.", "JWT failed.", "Why did we leave JWT?"):
            messages.append({"role": "user", "content": said})
            calls: list = [None]
            while calls:
                asked = {"model": "any", "messages": messages, "tools": tools}
                message = (await provider.chat.completions.create(**asked)).choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                calls = message.tool_calls or []
                for one in calls:
                    result = await client.call_tool(one.function.name, json.loads(one.function.arguments))
                    messages.append({"role": "tool", "tool_call_id": one.id, "content": result.content[0].text})
            answers.append(message.content)

    assert "Use JWT for logins FAILED: stolen tokens stayed valid. Now: Keep sessions in Redis" == answers[3]


@EVERYWHERE
async def test_streamed_ref_is_shown_stored_and_used(session, drive):
    """
    The stream shows the text without tags.

    Later calls of the same message can use the ref.
    """
    model = ScriptedModel(ModelTurn(MARKED, [("get_ref", {"ref_id": "aim"})]), "Done.")
    run = await drive(session, model, "go", streamed=True)
    shown = [piece for watched in run.streams for piece in watched.shown]

    assert CODE in run.outputs[0]
    assert SEEN + "Done." == "".join(shown)
    assert len(shown) > 5
    assert ("ref:aim@1",) == session.refs.versions("aim")


@EVERYWHERE
@settings(max_examples=8, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
# Documents are never empty, because frameworks repeat a request that has an empty answer.
@pytest.mark.once
@given(document=ref_documents(max_size=4).filter(lambda document: document.text.strip()), data=st.data())
async def test_refs_do_not_depend_on_chunking_of_the_answer(drive, document, data):
    async with Session.open(embedder=HashEmbedder()) as session:
        model = ScriptedModel(document.text, cut=lambda text: data.draw(chunkings(text)))
        run = await drive(session, model, "go", streamed=True)
        (watched,) = run.streams
        shown = "".join(watched.shown)

    assert [(ref.id, ref.content, ref.complete) for ref in document.refs] == [
        (ref.id, ref.text, ref.is_complete) for ref in watched.seen.refs
    ]
    assert document.visible == watched.seen.visible_text
    assert watched.seen.visible_text.startswith(shown)


@pytest.mark.parametrize(
    ("drive", "streamed"), [(in_openai_chat, False), (in_pydantic_ai, False), (in_pydantic_ai, True)]
)
async def test_call_with_invalid_json_arguments_is_passed_on(session, drive, streamed):
    """The host's loop continues."""
    model = ScriptedModel(ModelTurn(calls=[("list_refs", '{"category": ')]), "Sorry.")
    run = await drive(session, model, "go", streamed=streamed)

    assert ["Sorry."] == run.answers
    assert "JSON" in run.outputs[0]


async def test_unrepresentable_arguments_and_invalid_cut_are_rejected(session):
    """
    Complete messages of Anthropic contain arguments as data.

    Pieces must add up to the text.
    """
    asked = {"model": "any", "max_tokens": 9, "messages": [{"role": "user", "content": "go"}]}
    wrong = ScriptedModel(ModelTurn(calls=[("list_refs", "[")])).anthropic()
    with pytest.raises(AnthropicError, match="arguments of list_refs that are no JSON object"):
        await wrong.messages.create(**asked)
    with pytest.raises(InvalidArgument, match="make up the text"):
        await in_langchain(session, ScriptedModel("Hello", cut=lambda text: [text[:-1]]), "go", streamed=True)
    with pytest.raises(InvalidArgument, match="cut must be a whole number"):
        ScriptedModel(cut=0)


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ({"calls": ("get_ref", {"ref_id": "x"})}, "calls[0] must be a pair of a tool's name and its arguments"),
        ({"calls": [("get_ref", {}), ("get_ref", None)]}, "calls[1] must be a pair"),
        ({"calls": "get_ref"}, "calls[0] must be a pair"),
        ({"text": None}, "text must be a text, got NoneType"),
    ],
)
def test_invalid_model_turn_is_rejected_when_created(turn, said):
    """The error names the call."""
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        ModelTurn(**turn)


@EVERYWHERE
async def test_request_after_end_of_script_fails(session, drive):
    model = ScriptedModel((step for step in ()), "Only this.")
    await drive(session, model, "go")

    with pytest.raises((LookupError, OpenAIError, AnthropicError), match="the script is over after 1 message,"):
        await drive(session, model, "go", streamed=True)
