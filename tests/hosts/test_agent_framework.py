"""Microsoft's Agent Framework with a session's memory: agents driven by a scripted client."""

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

from agent_framework import (  # noqa: E402 - after the check that it is installed
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
    """A fake chat client that answers each request with the next step of a script: texts, refs or tool calls."""

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
    """Return all tool results in these messages."""
    return [
        json.loads(content.result) for one in messages for content in one.contents if content.type == "function_result"
    ]


def shown(messages: list[Message]) -> list[str]:
    """Return the role of each message, or "recalled" for recalled text."""
    return ["recalled" if one.text.startswith("<recalled>") else one.role for one in messages]


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as session:
        yield session


SAVE = ("save__decision", {"topic": "auth", "decision": "Use JWT for logins", "reasoning": "No state"})


@pytest.mark.parametrize("stream", [False, True])
async def test_decision_of_one_agent_is_recalled_by_another(session, stream):
    """A model saves a decision by a tool. A run on another thread gets it before its user's message."""
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
async def test_ref_can_be_used_by_calls_of_same_answer(session, stream):
    """Refs are stored before the calls run, also for streams."""
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


async def test_host_tool_receives_invocation_context(session):
    """The parameter `ctx` receives the framework's invocation context, and no model sees it."""

    async def open_ticket(title: str, ctx: Any) -> str:
        """Open a ticket."""
        return json.dumps([title, type(ctx).__name__])

    session.tools.add(open_ticket)
    client = ScriptedClient([("open_ticket", {"title": "Rotate keys"})], lambda messages: str(results(messages)[-1]))
    agent = Agent(client, context_providers=[adapter.SessionContextProvider(session)])

    assert "['Rotate keys', 'FunctionInvocationContext']" == (await agent.run("Open a ticket")).text
    tool = next(one for one in client.options[0]["tools"] if one.name == "open_ticket")
    assert ["title"] == [*tool.parameters()["properties"]]


async def test_image_of_tool_is_native_content(session):
    """The framework gets it as separate content next to the text. An unreadable image is named."""
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


async def test_provider_without_tools_only_recalls(session):
    """A host can disable the session's tools."""
    await session.memories.save_decision("Use JWT for logins", topic="auth", reasoning="No state")
    client = ScriptedClient("By JWT.")
    await Agent(client, context_providers=[adapter.SessionContextProvider(session, tools=False)]).run(
        "How do we log in?"
    )

    assert not client.options[0].get("tools")
    assert ["recalled", "user"] == shown(client.requests[0])


async def test_fact_is_recalled_per_run_without_history(session):
    """By default no history stores recalled text, so it is recalled again; with such a history it is not."""
    await session.memories.save_decision("Use JWT for logins", topic="auth", reasoning="No state")
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


async def test_session_extracts_memories_from_run(session):
    """The host's model is asked for facts in the messages, and its answer becomes a memory."""
    asked = []

    async def extract(prompt: str, schema: Any) -> Any:
        asked.append(prompt)
        fact = {"type": "insight", "content": "The staging database is called heron", "messages": [1]}
        return {"records": [fact]}

    client = ScriptedClient("I will remember that heron is staging.")
    provider = adapter.SessionContextProvider(session, tools=False, extract=extract)
    await Agent(client, context_providers=[provider]).run("Our staging database is called heron.")

    (learnt,) = await session.memories.list()

    assert "The staging database is called heron" == learnt.content
    assert "Our staging database is called heron." in asked[0]
    assert "I will remember that heron is staging." in asked[0]


async def test_failing_extraction_does_not_fail_run(session, caplog):
    """The run's answer is returned. The log has only the type of the error."""

    def extract(prompt: str, schema: Any) -> Any:
        raise RuntimeError(f"no credit left for {prompt}")

    client = ScriptedClient("Hello.")
    provider = adapter.SessionContextProvider(session, tools=False, extract=extract)
    with caplog.at_level(logging.ERROR, logger="mama_structs"):
        response = await Agent(client, context_providers=[provider]).run("My secret word is heron.")

    assert "Hello." == response.text
    assert ["nothing is learnt"] == [one.message[:17] for one in caplog.records if one.name == "mama_structs"]
    assert "heron" not in caplog.text


async def test_run_raises_when_session_is_closed(session):
    """It is a bug of the host."""
    await session.close()

    with pytest.raises(SessionClosed):
        await Agent(ScriptedClient("Hello."), context_providers=[adapter.SessionContextProvider(session)]).run("Hi")


async def test_conversation_continues_after_restart(tmp_path):
    """Another process gets the whole conversation, including calls and their results."""
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
async def test_history_returns_saved_messages(runs, replays):
    """Messages are returned in order and completely, if a host sends only new messages or all of them."""
    async with Session.open(embedder=HashEmbedder()) as session:
        history = adapter.SessionHistoryProvider(session)
        said: list[Message] = []
        for number, messages in enumerate(runs):
            opening = Message("user", ["go on"], message_id=f"turn {number}")
            await history.save_messages("ada", [*(said if replays else []), opening, *messages])
            said += [opening, *messages]

        assert [one.to_dict() for one in said] == [one.to_dict() for one in await history.get_messages("ada")]
        assert [] == await history.get_messages("ben")


async def test_history_stores_repeated_user_message_without_id(session):
    """A repeated message without an id is stored again; with a known id it is not."""
    history = adapter.SessionHistoryProvider(session)
    for _ in range(2):
        await history.save_messages("ada", [Message("user", ["yes"])])
        await history.save_messages("ben", [Message("user", ["yes"], message_id="m1")])
    await history.save_messages("ada", [])

    assert ["yes", "yes"] == [one.text for one in await history.get_messages("ada")]
    assert ["yes"] == [one.text for one in await history.get_messages("ben")]


async def test_history_stores_repeated_answer_without_id(session):
    """A run that repeats the previous one without message ids is stored, too."""
    history = adapter.SessionHistoryProvider(session)
    agent = Agent(client=ScriptedClient("done", "done"), context_providers=[history])
    thread = agent.create_session()
    for _ in range(2):
        await agent.run("next", session=thread)

    assert ["next", "done"] * 2 == [one.text for one in await history.get_messages(thread.session_id)]


async def test_histories_of_one_agent_are_separate(session):
    """An audit history adds nothing to the history that the model reads."""
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


async def test_history_detects_resent_conversation_without_ids(session):
    """It is detected by the message after it, even if that repeats an earlier one."""
    history = adapter.SessionHistoryProvider(session)
    said = [Message("user", ["next"]), Message("assistant", ["done"])]
    for count in (1, 2, 3):
        await history.save_messages("ada", said * count)

    assert ["next", "done"] * 3 == [one.text for one in await history.get_messages("ada")]


async def test_history_skips_excluded_messages_when_configured(session):
    """Messages that a compaction excluded stay in the store, but are not returned."""
    kept = [Message("user", ["a"], additional_properties={"_excluded": True}), Message("user", ["b"])]
    await adapter.SessionHistoryProvider(session).save_messages(None, kept)

    assert ["b"] == [
        one.text for one in await adapter.SessionHistoryProvider(session, skip_excluded=True).get_messages(None)
    ]
    assert ["a", "b"] == [one.text for one in await adapter.SessionHistoryProvider(session).get_messages(None)]


async def test_history_save_is_atomic_when_message_is_no_json(session):
    """If one message of a run cannot be stored, none is, and an error is raised."""
    history = adapter.SessionHistoryProvider(session)

    with pytest.raises(InvalidArgument):
        await history.save_messages(
            "ada", [Message("user", ["a"]), Message("user", ["b"], additional_properties={"x": float("nan")})]
        )
    assert [] == await history.get_messages("ada")


@pytest.mark.parametrize("streaming", [False, True])
async def test_argument_named_raw_is_not_read_as_unparsed_arguments(session, streaming):
    """The framework replaces arguments that are no JSON object by the argument ``raw``. A model may use this name."""

    async def collect(**words: str) -> dict:
        """Return the arguments."""
        return words

    async def echo(raw: str = "none") -> dict:
        """Return the argument."""
        return {"raw": raw}

    session.tools.add(collect)
    session.tools.add(echo)
    cases = [
        ("collect", {"raw": "x"}),
        ("collect", '{"raw": "{\\"b\\": \\"1\\"}"}'),
        ("collect", json.dumps('{"b": "1"}')),
        ("collect", '{"b": '),
        ("echo", '{"raw": "x"}'),
        ("echo", '{"raw": '),
        ("echo", json.dumps('{"raw": "y"}')),
    ]
    client = ScriptedClient(cases, "done")
    agent = Agent(client, context_providers=[adapter.SessionContextProvider(session)])
    if streaming:
        async for _ in agent.run("go", stream=True):
            pass
    else:
        await agent.run("go")
    found = results(client.requests[-1])

    assert [{"raw": "x"}, {"raw": '{"b": "1"}'}, {"b": "1"}] == found[:3]
    assert {"raw": "x"} == found[4]
    assert {"raw": "y"} == found[6]
    assert ["the arguments are no JSON"] * 2 == [found[at]["error"]["message"][:25] for at in (3, 5)]
