"""A conversation of the OpenAI Agents SDK in a session: order, several loops and processes, and recall."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import HashEmbedder, Session, sync
from mama_structs.errors import InvalidArgument, SessionClosed
from mama_structs.testing.scripted_model import ScriptedModel

agents = pytest.importorskip("agents")
openai_agents_session = pytest.importorskip("mama_structs.adapters.openai_agents.session")

QUIET = {"tracing_disabled": True}


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as session:
        yield session


def said(*texts: Any) -> list[Any]:
    return [{"role": "user", "content": text} for text in texts]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(JSON, max_size=4)),
    st.tuples(st.just("get"), st.none() | st.integers(0, 9)),
    st.tuples(st.just("pop"), st.none()),
    st.tuples(st.just("clear"), st.none()),
)


@pytest.fixture(scope="module")
def shared():
    """One session for all examples. Each example uses its own conversation."""
    with sync.Session.open(embedder=HashEmbedder()) as session:
        yield session


@given(steps=st.lists(STEPS, max_size=12), limit=st.none() | st.integers(0, 4))
def test_conversation_behaves_like_a_list(shared, steps, limit):
    """After any operations a conversation equals a list, and another conversation stays empty."""
    name = str(uuid.uuid4())
    kept = openai_agents_session.ConversationSession(shared, name, session_settings={"limit": limit})
    other = openai_agents_session.ConversationSession(shared, f"{name}/2")

    async def follow() -> None:
        model: list[Any] = []
        for step, given_value in steps:
            if step == "add":
                await kept.add_items(said(*given_value))
                model += said(*given_value)
            elif step == "get":
                most = limit if given_value is None else given_value

                assert (model if most is None else model[-most:] if most else []) == await kept.get_items(given_value)
            elif step == "pop":
                assert (model.pop() if model else None) == await kept.pop_item()
            else:
                await kept.clear_session()
                model.clear()

        assert [] == await other.get_items()

    asyncio.run(follow())


async def test_conversation_implements_session_protocol(session):
    """The SDK accepts it as its own protocol, with settings of its own class."""
    kept = openai_agents_session.ConversationSession(session, "ada")

    assert isinstance(kept, agents.memory.Session)
    assert agents.SessionSettings() == kept.session_settings


async def test_pop_item_returns_each_item_once_when_concurrent(session):
    """No two callers get the same item, and concurrently added items are not lost."""
    kept = openai_agents_session.ConversationSession(session, "ada")
    await kept.add_items(said(*range(8)))
    taken = await asyncio.gather(
        *(kept.pop_item() for _ in range(6)), *(kept.add_items(said(f"new {number}")) for number in range(3))
    )
    seen = [one["content"] for one in [*taken[:6], *await kept.get_items()]]

    assert Counter([*range(8), "new 0", "new 1", "new 2"]) == Counter(seen)


async def test_add_items_is_atomic_when_item_is_invalid(session):
    """An item that is not JSON makes all items of the call fail."""
    kept = openai_agents_session.ConversationSession(session, "ada")

    with pytest.raises(InvalidArgument):
        await kept.add_items(said("Hello", object()))
    assert [] == await kept.get_items()


@pytest.mark.parametrize("session_id", ["", None, 7])
async def test_session_id_must_be_text(session, session_id):
    """An empty or non-text id is rejected."""
    with pytest.raises(InvalidArgument, match="session_id must be a text"):
        openai_agents_session.ConversationSession(session, session_id)


async def test_negative_limit_is_rejected(session):
    """Its meaning would differ between stores."""
    with pytest.raises(InvalidArgument, match="limit must be 0 or more, got -1"):
        await openai_agents_session.ConversationSession(session, "ada").get_items(-1)


async def test_unknown_settings_are_rejected(session):
    """A misspelt setting must not be ignored silently."""
    with pytest.raises(TypeError, match="limitt"):
        openai_agents_session.ConversationSession(session, "ada", session_settings={"limitt": 1})


async def test_call_on_closed_session_raises(session):
    """A call that adds nothing raises, too."""
    kept = openai_agents_session.ConversationSession(session, "ada")
    await session.close()

    with pytest.raises(SessionClosed):
        await kept.add_items([])


async def test_conversation_is_not_searchable(session):
    """Neither search nor recall finds its items, unless they are saved as memories."""
    kept = openai_agents_session.ConversationSession(session, "ada")
    await kept.add_items(said("The staging database is called heron"))

    assert [] == await session.memories.search("staging database heron")
    assert "" == (await session.recall("What is the staging database called?")).text


async def test_run_continues_conversation_after_restart(tmp_path):
    """The model gets the earlier items, regardless of the process."""
    model = ScriptedModel("Noted.")
    async with Session.open(tmp_path, embedder=HashEmbedder()) as session:
        kept = openai_agents_session.ConversationSession(session, "ada")
        agent = agents.Agent(name="Ada", model=model.openai_agents())
        await agents.Runner.run(agent, "I like tea", session=kept, run_config=agents.RunConfig(**QUIET))
    again = ScriptedModel("You like tea.")
    async with Session.open(tmp_path, embedder=HashEmbedder()) as session:
        kept = openai_agents_session.ConversationSession(session, "ada")
        agent = agents.Agent(name="Ada", model=again.openai_agents())
        await agents.Runner.run(agent, "What do I like?", session=kept, run_config=agents.RunConfig(**QUIET))
        items = await kept.get_items()

    assert ["I like tea", "Noted.", "What do I like?"] == [one.text for one in again.requests[0].transcript]
    assert ["user", "assistant"] * 2 == [item["role"] for item in items]


def test_run_sync_works_with_sync_session():
    """A script without an event loop runs an agent on a session of `mama_structs.sync`."""
    with sync.Session.open(embedder=HashEmbedder()) as session:
        kept = openai_agents_session.ConversationSession(session, "ada")
        agent = agents.Agent(name="Ada", model=ScriptedModel("Hello.").openai_agents())
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            agents.Runner.run_sync(agent, "Hi", session=kept, run_config=agents.RunConfig(**QUIET))
            items = loop.run_until_complete(kept.get_items())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    assert ["user", "assistant"] == [item["role"] for item in items]


async def test_recalled_item_stays_in_conversation(session):
    """The recalled text follows the user's message once, and is part of the history later."""
    await session.memories.save_decision("Use JWT for logins", topic="auth", reasoning="No state")
    model = ScriptedModel("By JWT.", "As I said.")
    kept = openai_agents_session.ConversationSession(session, "ada")
    config = agents.RunConfig(**QUIET, session_input_callback=openai_agents_session.add_recall(session))
    agent = agents.Agent(name="Ada", model=model.openai_agents())
    for text in ("How do we do logins?", "How do we do logins, again?"):
        await agents.Runner.run(agent, text, session=kept, run_config=config)
    contents = [item["content"] for item in model.requests[-1].messages]

    assert [False, True, False, False] == ["<recalled>" in str(one) for one in contents]
    assert "JWT" in contents[1]
    assert 5 == len(await kept.get_items())


@pytest.mark.parametrize(("name", "limit"), [("ben", None), ("ada", 1)], ids=["another conversation", "a cut one"])
async def test_fact_is_recalled_again_when_history_lacks_it(session, name, limit):
    """A run whose history has no recalled text gets it, regardless of other conversations."""
    await session.memories.save_decision("Use JWT for logins", topic="auth", reasoning="No state")
    config = agents.RunConfig(**QUIET, session_input_callback=openai_agents_session.add_recall(session))
    model = ScriptedModel("By JWT.", "By JWT.")
    agent = agents.Agent(name="Ada", model=model.openai_agents())
    for who, most in (("ada", None), (name, limit)):
        kept = openai_agents_session.ConversationSession(session, who, session_settings={"limit": most})
        await agents.Runner.run(agent, "How do we do logins?", session=kept, run_config=config)

    assert [True, True] == ["<recalled>" in str(one.messages[-1]["content"]) for one in model.requests]


async def test_input_is_unchanged_when_nothing_is_relevant(session):
    """Without relevant memories the input is unchanged."""
    combine = openai_agents_session.add_recall(session)

    assert said("a", "b") == await combine(said("a"), said("b"))
