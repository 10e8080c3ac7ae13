"""What a session recalls before its model answers."""

import pytest

from mama_structs import Session


@pytest.fixture
async def session():
    async with Session.open() as one:
        yield one


async def test_what_holds_on_the_matter_is_told(session):
    """A decision that answers the message stands in the text and among the hits."""
    saved = await session.memories.save_decision("auth", "Use server sessions for login", "tokens cannot be revoked")

    recalled = await session.recall("How do we do the login sessions on the server?")

    assert [saved.id] == [hit.memory.id for hit in recalled.hits]
    assert '"Use server sessions for login"' in recalled.text
    assert saved.id in recalled.text


async def test_nothing_relevant_is_nothing(session):
    """Where nothing has to do with the message there is no text, and the answer is false."""
    await session.memories.save_decision("auth", "Use server sessions for login", "tokens cannot be revoked")

    recalled = await session.recall("How tall is the Eiffel tower?")

    assert not recalled
    assert "" == recalled.text


async def test_the_last_checkpoint_is_told_where_work_goes_on(session):
    """A message that goes on with earlier work gets the newest checkpoint; others do not."""
    await session.memories.save_checkpoint("The parser reads headers", next_steps=["read bodies"])
    newest = await session.memories.save_checkpoint("The parser reads bodies", next_steps=["write tests"])

    recalled = await session.recall("continue from yesterday")

    assert newest.id == recalled.checkpoint.id
    assert '"write tests"' in recalled.text
    assert not (await session.recall("어제 하던 거 이어서 하자")).checkpoint
    assert (await session.recall("어제 하던 거 이어서 하자", again=True)).checkpoint
