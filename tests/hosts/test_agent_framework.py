"""Microsoft's Agent Framework with a session's memory: agents driven by a client that says what a script has it say."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mama_structs import HashEmbedder, Session
from mama_structs.errors import InvalidArgument, SessionClosed

agent_framework = pytest.importorskip("agent_framework")
adapter = pytest.importorskip("mama_structs.adapters.agent_framework.providers")

from agent_framework import (  # noqa: E402 - where it is installed
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
)

Step = str | list[tuple[str, dict[str, Any]]] | Callable[[list[Message]], Any]


class ScriptedClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """A client whose model says a text, marks it, or calls tools, step by step."""

    def __init__(self, *script: Step) -> None:
        super().__init__()
        self._script = list(script)
        self.requests: list[list[Message]] = []
        self.options: list[Any] = []

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **kwargs: Any) -> Any:
        self.requests.append(list(messages))
        self.options.append(options)
        step = self._script.pop(0)
        said = step(list(messages)) if callable(step) else step
        parts = [said] if isinstance(said, str | tuple) else said
        contents = [
            Content.from_text(part)
            if isinstance(part, str)
            else Content.from_function_call(f"call_{len(self.requests)}_{number}", part[0], arguments=part[1])
            for number, part in enumerate(parts)
        ]
        if stream:

            async def updates() -> Any:
                for content in contents:
                    yield ChatResponseUpdate(contents=[content], role="assistant")

            return ResponseStream(updates(), finalizer=ChatResponse.from_updates)

        async def answer() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", contents)])

        return answer()


def results(messages: list[Message]) -> list[Any]:
    """Return what the tools of a run have answered so far."""
    return [
        json.loads(content.result) for one in messages for content in one.contents if content.type == "function_result"
    ]


def shown(messages: list[Message]) -> list[str]:
    """Return who speaks in a request, with what was recalled by its first word."""
    return ["recalled" if one.text.startswith("<recalled>") else one.role for one in messages]


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as session:
        yield session


SAVE = ("save__decision", {"topic": "auth", "decision": "Use JWT for logins", "reasoning": "No state"})


@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_agent_decides_another_is_told(session, stream):
    """A model saves a decision by a tool; a run on another thread is told of it before its user's message."""
    client = ScriptedClient([SAVE], "Noted.", "By JWT.")
    provider = adapter.SessionContextProvider(session)

    async def run(text: str) -> str:
        agent = Agent(client, context_providers=[provider])
        running = agent.run(text, session=agent.create_session(), stream=stream)
        return (await running.get_final_response()).text if stream else (await running).text

    told = [await run("We use JWT for logins from now on."), await run("How do we do logins?")]

    assert ["Noted.", "By JWT."] == told
    assert ["user"] == shown(client.requests[0])
    assert ["recalled", "user"] == shown(client.requests[-1])
    assert "Use JWT for logins" in client.requests[-1][0].text
    assert 1 == await session.memories.count()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_mark_can_be_used_by_the_calls_of_the_same_answer(session, stream):
    """What the model marks is stored before its calls run, in a stream, too."""
    client = ScriptedClient(
        ['My plan: <ref id="plan">shields first</ref>', ("get_ref", {"ref_id": "plan"})],
        lambda messages: next(
            content.result for one in messages for content in one.contents if content.type == "function_result"
        ),
    )
    agent = Agent(client, context_providers=[adapter.SessionContextProvider(session)])
    running = agent.run("What is your plan?", stream=stream)
    response = await running.get_final_response() if stream else await running

    assert "shields first" in response.messages[-1].text


async def test_a_wrong_call_is_an_answer_that_says_what_to_change(session):
    """The run goes on, and the model reads which argument is wrong: the framework would hide what a tool raises."""
    client = ScriptedClient(
        [("evolve__outcome", {"decision_id": "decision_x", "outcome": "SUCCESS"})],
        lambda messages: results(messages)[-1]["error"]["type"],
    )
    agent = Agent(client, context_providers=[adapter.SessionContextProvider(session)])

    assert "not_found" == (await agent.run("It worked!")).text


async def test_a_hosts_own_tool_gets_the_call_of_the_framework(session):
    """A parameter `ctx` gets the framework's invocation context, and no model sees it."""

    async def open_ticket(title: str, ctx: Any) -> str:
        """Open a ticket."""
        return json.dumps([title, type(ctx).__name__])

    session.tools.add(open_ticket)
    client = ScriptedClient([("open_ticket", {"title": "Rotate keys"})], lambda messages: str(results(messages)[-1]))
    agent = Agent(client, context_providers=[adapter.SessionContextProvider(session)])

    assert "['Rotate keys', 'FunctionInvocationContext']" == (await agent.run("Open a ticket")).text
    tool = next(one for one in client.options[0]["tools"] if one.name == "open_ticket")
    assert ["title"] == [*tool.parameters()["properties"]]


async def test_an_image_of_a_tool_stays_one(session):
    """The framework gets it as content of its own, beside the text; what is not readable is said to be so."""
    png = "iVBORw0KGgo="

    async def look() -> list[dict[str, str]]:
        """Look out of the window."""
        broken = {"type": "image", "data": "no base64", "mimeType": "image/png"}
        return [{"type": "text", "text": "rain"}, {"type": "image", "data": png, "mimeType": "image/png"}, broken]

    session.tools.add(look)
    client = ScriptedClient([("look", {})], "It rains.")
    response = await Agent(client, context_providers=[adapter.SessionContextProvider(session)]).run("And the weather?")
    (seen,) = [one for message in response.messages for one in message.contents if one.type == "function_result"]

    assert ["rain", None, "[file: not readable]"] == [item.text for item in seen.items]
    assert f"data:image/png;base64,{png}" == seen.items[1].uri


async def test_without_tools_it_only_recalls(session):
    """A host that offers tools of its own leaves the session's out."""
    await session.memories.save_decision("auth", "Use JWT for logins", reasoning="No state")
    client = ScriptedClient("By JWT.")
    await Agent(client, context_providers=[adapter.SessionContextProvider(session, tools=False)]).run(
        "How do we log in?"
    )

    assert not client.options[0].get("tools")
    assert ["recalled", "user"] == shown(client.requests[0])


async def test_each_run_is_told_what_matters_now_where_no_history_keeps_it(session):
    """What was recalled is in no history by default, so it is told again; one that keeps it is not told twice."""
    await session.memories.save_decision("auth", "Use JWT for logins", reasoning="No state")
    seen = []
    for keeps in (False, True):
        client = ScriptedClient("By JWT.", "As I said.")
        history = adapter.SessionHistoryProvider(session, store_context_messages=keeps)
        agent = Agent(client, context_providers=[history, adapter.SessionContextProvider(session, tools=False)])
        thread = agent.create_session()
        await agent.run("How do we do logins?", session=thread)
        await agent.run("How do we do logins, again?", session=thread)
        seen.append(shown(client.requests[-1]))

    assert [["user", "assistant", "recalled", "user"], ["recalled", "user", "assistant", "user"]] == seen


async def test_the_session_learns_from_a_run(session):
    """The host's model is asked what to learn from what was said, and the answer becomes a memory."""
    asked = []

    async def extract(prompt: str, schema: Any) -> Any:
        asked.append(prompt)
        fact = {"type": "insight", "content": "The staging database is called heron", "messages": [1]}
        return {"records": [fact]}

    client = ScriptedClient("I will remember that heron is staging.")
    provider = adapter.SessionContextProvider(session, tools=False, extract=extract)
    await Agent(client, context_providers=[provider]).run("Our staging database is called heron.")

    (learnt,) = await session.memories.recent()

    assert "The staging database is called heron" == learnt.content
    assert "Our staging database is called heron." in asked[0]
    assert "I will remember that heron is staging." in asked[0]


async def test_a_host_model_that_fails_costs_no_answer(session, caplog):
    """The run's answer is there; what was not learnt is in the log, by the kind of the error alone."""

    def extract(prompt: str, schema: Any) -> Any:
        raise RuntimeError(f"no credit left for {prompt}")

    client = ScriptedClient("Hello.")
    provider = adapter.SessionContextProvider(session, tools=False, extract=extract)
    with caplog.at_level(logging.ERROR, logger="mama_structs"):
        response = await Agent(client, context_providers=[provider]).run("My secret word is heron.")

    assert "Hello." == response.text
    assert ["nothing is learnt"] == [one.message[:17] for one in caplog.records if one.name == "mama_structs"]
    assert "heron" not in caplog.text


async def test_a_closed_session_ends_the_run(session):
    """A host finds out that it closed the session its agent works with."""
    await session.close()

    with pytest.raises(SessionClosed):
        await Agent(ScriptedClient("Hello."), context_providers=[adapter.SessionContextProvider(session)]).run("Hi")


async def test_a_conversation_goes_on_after_a_restart(tmp_path):
    """Another process is given the whole conversation, calls of tools and their results included."""
    async with Session.open(tmp_path, embedder=HashEmbedder()) as session:
        client = ScriptedClient([SAVE], "Noted.")
        providers = [adapter.SessionHistoryProvider(session), adapter.SessionContextProvider(session)]
        agent = Agent(client, context_providers=providers)
        await agent.run("We use JWT for logins.", session=agent.create_session(session_id="ada"))
    async with Session.open(tmp_path, embedder=HashEmbedder()) as session:
        client = ScriptedClient("JWT.")
        agent = Agent(client, context_providers=[adapter.SessionHistoryProvider(session)])
        await agent.run("What did we say?", session=agent.create_session(session_id="ada"))

    assert ["user", "assistant", "tool", "assistant", "user"] == [one.role for one in client.requests[0]]
    assert "Use JWT for logins" in str(client.requests[0][1].contents[0].arguments)


TEXTS = st.sampled_from(["a", "b", "", "ä"])
CONTENTS = st.one_of(
    TEXTS.map(Content.from_text),
    st.builds(lambda name: Content.from_function_call("call_1", name, arguments={"x": [1, None]}), TEXTS),
    st.builds(lambda text: Content.from_function_result("call_1", result=text), TEXTS),
)
MESSAGES = st.builds(
    lambda role, contents, message_id: Message(role, contents, message_id=message_id),
    st.sampled_from(["user", "assistant", "tool", "system"]),
    st.lists(CONTENTS, max_size=2),
    st.none() | st.uuids().map(str),
)


@settings(max_examples=20)
@given(runs=st.lists(st.lists(MESSAGES, max_size=4), max_size=4), replays=st.booleans())
async def test_a_conversation_comes_back_as_it_was(runs, replays):
    """Messages come back in order and whole, whether a host sends a run's alone or the whole conversation anew."""
    async with Session.open(embedder=HashEmbedder()) as session:
        history = adapter.SessionHistoryProvider(session)
        said: list[Message] = []
        for number, messages in enumerate(runs):
            opening = Message("user", ["go on"], message_id=f"turn {number}")
            await history.save_messages("ada", [*(said if replays else []), opening, *messages])
            said += [opening, *messages]

        assert [one.to_dict() for one in said] == [one.to_dict() for one in await history.get_messages("ada")]
        assert [] == await history.get_messages("ben")


async def test_a_user_may_say_the_same_twice(session):
    """A message of a user without an id is kept each time; with an id it is one that is known."""
    history = adapter.SessionHistoryProvider(session)
    for _ in range(2):
        await history.save_messages("ada", [Message("user", ["yes"])])
        await history.save_messages("ben", [Message("user", ["yes"], message_id="m1")])
    await history.save_messages("ada", [])

    assert ["yes", "yes"] == [one.text for one in await history.get_messages("ada")]
    assert ["yes"] == [one.text for one in await history.get_messages("ben")]


async def test_a_user_may_get_the_same_answer_twice(session):
    """A run that says what the one before it said, by a client that gives its messages no ids, is kept as well."""
    history = adapter.SessionHistoryProvider(session)
    agent = Agent(client=ScriptedClient("done", "done"), context_providers=[history])
    thread = agent.create_session()
    for _ in range(2):
        await agent.run("next", session=thread)

    assert ["next", "done"] * 2 == [one.text for one in await history.get_messages(thread.session_id)]


async def test_two_histories_of_an_agent_do_not_mix(session):
    """One that keeps everything for an audit adds nothing to the one that the model reads."""
    history = adapter.SessionHistoryProvider(session)
    audit = adapter.SessionHistoryProvider(session, source_id="audit", load_messages=False)
    client = ScriptedClient("one", "two")
    agent = Agent(client=client, context_providers=[history, audit])
    thread = agent.create_session(session_id="ada")
    for said in ("a", "b"):
        await agent.run(said, session=thread)

    assert ["a", "one", "b"] == [one.text for one in client.requests[-1]]
    for kept in (history, audit):
        assert ["a", "one", "b", "two"] == [one.text for one in await kept.get_messages("ada")]


async def test_a_conversation_without_ids_may_be_sent_anew(session):
    """It is known by what stands behind it, be it what was said before."""
    history = adapter.SessionHistoryProvider(session)
    said = [Message("user", ["next"]), Message("assistant", ["done"])]
    for count in (1, 2, 3):
        await history.save_messages("ada", said * count)

    assert ["next", "done"] * 3 == [one.text for one in await history.get_messages("ada")]


async def test_excluded_messages_are_passed_over_where_that_is_asked_for(session):
    """What a compaction marked stays in the store, and is given to no run."""
    kept = [Message("user", ["a"], additional_properties={"_excluded": True}), Message("user", ["b"])]
    await adapter.SessionHistoryProvider(session).save_messages(None, kept)

    assert ["b"] == [
        one.text for one in await adapter.SessionHistoryProvider(session, skip_excluded=True).get_messages(None)
    ]
    assert ["a", "b"] == [one.text for one in await adapter.SessionHistoryProvider(session).get_messages(None)]


async def test_what_is_no_json_is_refused_whole(session):
    """A run with a message that cannot be kept keeps none of its messages, and says so."""
    history = adapter.SessionHistoryProvider(session)

    with pytest.raises(InvalidArgument):
        await history.save_messages(
            "ada", [Message("user", ["a"]), Message("user", ["b"], additional_properties={"x": float("nan")})]
        )
    assert [] == await history.get_messages("ada")
