"""Save plans: validation, normalization and supersession."""

from datetime import UTC, datetime, timedelta

import pytest
from memory_helpers import OpenedDirectory, PlainEngines

from mama_structs import HashEmbedder, Session
from mama_structs.errors import EmbedderMismatch, EmbeddingFailed, InvalidArgument
from mama_structs.memory.store.factory import UnavailableEmbedder
from mama_structs.memory.types.engine import EmbedderRecord
from mama_structs.settings import MemorySettings

OFF = MemorySettings(linking="off")
MARCH = datetime(2026, 3, 1, tzinfo=UTC)


class Clock:
    """A wall clock that a test can set, also backwards."""

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


async def test_decision_cannot_supersede_newer_decision(place):
    """An explicit time is used as given, and nothing is saved."""
    store, _ = place
    decision = await store.save_decision("tokens", topic="login", reasoning="stateless")
    with pytest.raises(InvalidArgument, match="created_at must not be before 2026-03-01"):
        await store.supersede(decision.id, "sessions", reasoning="revocable", created_at=MARCH - timedelta(days=1))

    assert 1 == await store.count()


async def test_chain_order_is_kept_when_clock_steps_back(place):
    """A superseding decision is never older than its predecessor."""
    store, clock = place
    first = await store.save_decision("tokens", topic="login", reasoning="stateless")
    clock.now -= 3600
    second = await store.supersede(first.id, "sessions", reasoning="revocable")

    assert first.created_at == second.created_at
    assert [second.id, first.id] == [memory.id for memory in await store.history(first.id)]


async def test_outcome_before_decision_is_rejected(place):
    """Without an explicit time, an outcome is at least as late as its decision."""
    store, clock = place
    decision = await store.save_decision("tokens", topic="login", reasoning="stateless")
    with pytest.raises(InvalidArgument, match="at must not be before 2026-03-01"):
        await store.set_outcome(decision.id, "FAILED", reason="leaked", at=MARCH - timedelta(days=1))
    assert 1 == await store.count()
    clock.now -= 3600
    changed = await store.set_outcome(decision.id, "FAILED", reason="leaked")

    assert decision.created_at == changed.metadata.outcome_at


async def test_explicit_link_keeps_other_explicit_links(place):
    """It replaces only automatic links. A supersession by the system is explicit too."""
    store, _ = place
    first = await store.save_decision("tokens", topic="login", reasoning="stateless")
    second = await store.supersede(first.id, "sessions", reasoning="revocable", created_by="system")
    await store.link(second.id, first.id, "relates to")
    await store.link(first.id, second.id, "explains")

    assert [second.id, first.id] == [memory.id for memory in await store.history(first.id)]
    words = {link.metadata.original_relationship for link in await store.links(first.id)}
    assert {"supersedes", "relates to", "explains"} == words


async def test_automatic_link_is_replaced_in_either_direction(tmp_path):
    """One link between two memories is enough, whichever is its source."""
    async with Session.open(tmp_path, embedder=HashEmbedder()) as session:
        first = await session.memories.save_context("the login needs tokens that can be revoked")
        second = await session.memories.save_context("the login needs tokens that can be revoked")
        (automatic,) = await session.memories.links(first.id)
        assert "system" == automatic.created_by
        link = await session.memories.link(first.id, second.id, "depends on")

        assert [link] == await session.memories.links(first.id)


async def test_store_can_be_maintained_without_its_embedder(tmp_path):
    """
    Methods that need no new vectors work.

    Others raise an error that names the embedder of the store.
    """
    async with Session.open(tmp_path, embedder=HashEmbedder(dimensions=32)) as session:
        memory = await session.memories.save_context("one")
    async with Session.open(tmp_path, embedder=UnavailableEmbedder()) as session:
        assert "hash-32" == session.memories.embedder.name
        assert memory == await session.memories.get(memory.id)
    stranger = EmbedderRecord("stranger", "1", 8)
    async with Session.open(tmp_path / "new", embedder=UnavailableEmbedder(stranger)) as session:
        assert "stranger" == session.memories.embedder.name
        with pytest.raises(EmbeddingFailed, match="stranger that made the vectors is not at hand"):
            await session.memories.save_context("two")


async def test_store_of_unknown_embedder_cannot_be_opened_with_another(tmp_path):
    """
    Vectors of two embedders are not comparable.

    The error contains the stored one and explains how to migrate.
    """

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


def test_memory_has_short_repr_and_is_hashable():
    """The repr shows the beginning of the text. Equal memories are one member of a set."""
    from memory_helpers import plain_memory  # noqa: PLC0415 - once

    memory = plain_memory("a", "x" * 10_000)

    assert len(repr(memory)) < 1_000
    assert "…" in repr(memory)
    assert {memory} == {memory, plain_memory("a", "x" * 10_000)}
