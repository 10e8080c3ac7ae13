"""What a save refuses or corrects, and what takes the place of what."""

from datetime import UTC, datetime, timedelta

import pytest
from memory_helpers import OpenedDirectory, PlainEngines

from mama_structs import HashEmbedder, Session
from mama_structs.errors import EmbedderMismatch, EmbeddingFailed, InvalidArgument
from mama_structs.memory.store.factory import Unavailable
from mama_structs.memory.types.engine import EmbedderRecord
from mama_structs.settings import MemorySettings

OFF = MemorySettings(linking="off")
MARCH = datetime(2026, 3, 1, tzinfo=UTC)


class Clock:
    """A wall clock that may step back."""

    def __init__(self):
        self.now = MARCH.timestamp()

    def __call__(self):
        return self.now


@pytest.fixture(params=[lambda: None, PlainEngines], ids=["embedded", "plain"])
async def place(request, tmp_path):
    clock = Clock()
    place = OpenedDirectory.open(tmp_path, engines=request.param(), settings=OFF, clock=clock)
    yield await place.memories(), clock
    await place.close()


async def test_a_decision_cannot_supersede_one_that_was_made_after_it(place):
    """A time that somebody gave is taken at its word; nothing is saved."""
    store, _ = place
    decision = await store.save_decision("login", "tokens", "stateless")
    with pytest.raises(InvalidArgument, match="created_at must not be before 2026-03-01"):
        await store.supersede(decision.id, "sessions", "revocable", created_at=MARCH - timedelta(days=1))

    assert 1 == await store.count()


async def test_a_clock_that_stepped_back_does_not_turn_a_chain_around(place):
    """What supersedes a decision is never older than it, whatever the clock says meanwhile."""
    store, clock = place
    first = await store.save_decision("login", "tokens", "stateless")
    clock.now -= 3600
    second = await store.supersede(first.id, "sessions", "revocable")

    assert first.created_at == second.created_at
    assert [second.id, first.id] == [memory.id for memory in await store.evolution(first.id)]


async def test_nothing_comes_of_a_decision_before_it_was_made(place):
    """An outcome with an earlier time is refused; one without a time is as late as the decision at least."""
    store, clock = place
    decision = await store.save_decision("login", "tokens", "stateless")
    with pytest.raises(InvalidArgument, match="at must not be before 2026-03-01"):
        await store.set_outcome(decision.id, "FAILED", reason="leaked", at=MARCH - timedelta(days=1))
    assert 1 == await store.count()
    clock.now -= 3600
    changed = await store.set_outcome(decision.id, "FAILED", reason="leaked")

    assert decision.created_at == changed.metadata.outcome_at


async def test_what_somebody_said_is_never_taken_for_automatic(place):
    """An explicit link takes over what a save linked by itself, in either direction, and nothing that was said."""
    store, _ = place
    first = await store.save_decision("login", "tokens", "stateless")
    second = await store.supersede(first.id, "sessions", "revocable", created_by="system")
    await store.link(second.id, first.id, "relates to")
    await store.link(first.id, second.id, "explains")

    assert [second.id, first.id] == [memory.id for memory in await store.evolution(first.id)]
    words = {link.metadata.original_relationship for link in await store.links_of(first.id)}
    assert {"supersedes", "relates to", "explains"} == words


async def test_automatic_links_are_taken_over_both_ways(tmp_path):
    """Whichever of the two acts, one link between them is enough."""
    async with Session.open(tmp_path, embedder=HashEmbedder()) as session:
        first = await session.memories.save_context("the login needs tokens that can be revoked")
        second = await session.memories.save_context("the login needs tokens that can be revoked")
        (automatic,) = await session.memories.links_of(first.id)
        assert "system" == automatic.created_by
        link = await session.memories.link(first.id, second.id, "depends on")

        assert [link] == await session.memories.links_of(first.id)


async def test_a_store_can_be_looked_after_without_its_embedder(tmp_path):
    """What needs no new vectors works; what does is refused, and says whose vectors there are."""
    async with Session.open(tmp_path, embedder=HashEmbedder(dimensions=32)) as session:
        memory = await session.memories.save_context("one")
    async with Session.open(tmp_path, embedder=Unavailable()) as session:
        assert "hash-32" == session.memories.embedder.name
        assert memory == await session.memories.get(memory.id)
    stranger = EmbedderRecord("stranger", "1", 8)
    async with Session.open(tmp_path / "new", embedder=Unavailable(stranger)) as session:
        assert "stranger" == session.memories.embedder.name
        with pytest.raises(EmbeddingFailed, match="stranger that made the vectors is not at hand"):
            await session.memories.save_context("two")


async def test_a_store_of_an_unknown_embedder_is_not_opened_without_it(tmp_path):
    """Vectors of two embedders cannot be compared: the error says whose there are, and how to change over."""

    class Theirs:
        name, dimensions, max_tokens, fingerprint = "theirs", 32, 1000, "v1"
        calibration = HashEmbedder().calibration

        def embed(self, texts, *, kind="document"):
            return HashEmbedder(dimensions=32).embed(texts, kind=kind)

    async with Session.open(tmp_path, embedder=Theirs()) as session:
        await session.memories.save_context("one")
    for given in (None, HashEmbedder(dimensions=32)):
        with pytest.raises(EmbedderMismatch, match="reembed") as caught:
            await Session.open(tmp_path, embedder=given)
        assert ("theirs", "v1") == caught.value.stored


def test_a_long_memory_has_a_short_repr_and_can_be_in_a_set():
    """A notebook shows the beginning; equal memories are one member of a set."""
    from memory_helpers import plain_memory  # noqa: PLC0415 - once

    memory = plain_memory("a", "x" * 10_000)

    assert len(repr(memory)) < 1_000
    assert "…" in repr(memory)
    assert {memory} == {memory, plain_memory("a", "x" * 10_000)}
