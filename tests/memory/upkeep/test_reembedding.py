"""Change of the embedder: the state of the store before, during and after `reembed`."""

import sqlite3
from contextlib import closing

import pytest
from memory_helpers import OpenedDirectory

from mama_structs import HashEmbedder, Session, admin
from mama_structs.errors import EmbedderMismatch, EmbeddingFailed, MemoryNotFound
from mama_structs.memory.embedding.protocol import Calibration

OLD, NEW = HashEmbedder(dimensions=64), HashEmbedder(dimensions=128)


class Breaking:
    """An embedder that fails after a given number of texts."""

    name, dimensions, max_tokens, batch_size = "breaking", 128, 1000, 4
    calibration = Calibration()

    def __init__(self, texts):
        self.left = texts

    def embed(self, texts, *, kind="document"):
        self.left -= len(texts)
        if self.left < 0:
            raise OSError("gone")
        return NEW.embed(texts, kind=kind)


def keys(directory):
    with closing(sqlite3.connect(directory / "journal" / "cache.db")) as connection:
        return [key for (key,) in connection.execute("SELECT key FROM Cache")]


async def test_reembed_makes_all_memories_searchable_with_new_embedder(tmp_path):
    """
    Memories, links and times are unchanged.

    The new embedder is used afterwards, also after reopening.
    """
    told = []
    async with Session.open(tmp_path, embedder=OLD) as session:
        first = await session.memories.save_decision("tokens", topic="login", reasoning="stateless")
        second = await session.memories.supersede(first.id, "sessions", reasoning="revocable")
        before = await session.memories.links(first.id)
        done = await admin.reembed(session.memories, NEW, progress=lambda *figures: told.append(figures))

        assert (2, (2, 2)) == (done, told[-1])
        assert "hash-128" == session.memories.embedder.name
        assert before == await session.memories.links(first.id)
        assert {first.id, second.id} == {hit.memory.id for hit in await session.memories.search("tokens")}
        assert (await admin.check(session)).ok
    async with Session.open(tmp_path) as session:
        assert "hash-128" == session.memories.embedder.name
        assert 2 == await session.memories.count()


async def test_reembed_and_delete_remove_old_vectors(tmp_path):
    """Vectors reveal information about a text, so they must not outlive it."""
    async with Session.open(tmp_path, embedder=OLD) as session:
        memory = await session.memories.save_context("one")
        await session.memories.save_context("two")
        await admin.reembed(session.memories, NEW)
        await session.memories.delete(memory.id)
        await session.flush()

        assert 1 == sum("/v/" in key for key in keys(tmp_path))


async def test_interrupted_reembed_resumes(tmp_path):
    """The old vectors are used until all new ones exist, and no memory is embedded twice."""
    async with Session.open(tmp_path, embedder=OLD) as session:
        await session.memories.save_many([{"type": "context", "content": f"note {number}"} for number in range(200)])
        with pytest.raises(EmbeddingFailed):
            await admin.reembed(session.memories, Breaking(150))
        assert "hash-64" == session.memories.embedder.name
        assert 10 == len(await session.memories.search("note 7"))
        assert (await admin.check(session)).ok

        assert 200 - 128 == await admin.reembed(session.memories, Breaking(100))
        assert (await admin.check(session)).ok


async def test_store_with_old_embedder_is_rejected_after_reembed(tmp_path):
    """A session with the old embedder cannot save vectors that are not comparable."""
    old = OpenedDirectory.open(tmp_path, embedder=OLD)
    theirs = await old.memories()
    await theirs.save_context("one")
    other = OpenedDirectory.open(tmp_path, embedder=OLD)
    ours = await other.memories()
    await admin.reembed(ours, NEW)
    for _ in range(3):
        with pytest.raises(EmbedderMismatch, match="reembed"):
            await theirs.save_context("two")
        with pytest.raises(EmbedderMismatch):
            await theirs.count()
    await old.close()

    assert 1 == await ours.count()
    assert [] == await other.findings()
    await other.close()


async def test_unknown_id_error_mentions_damaged_memories(tmp_path):
    """The unknown id may be that of a damaged memory, whose id cannot be read."""
    async with Session.open(tmp_path, embedder=OLD) as session:
        memory = await session.memories.save_context("one")
        await session.memories.save_context("two")
    with closing(sqlite3.connect(tmp_path / "journal" / "cache.db")) as connection:
        connection.execute("UPDATE Cache SET value = x'00' WHERE key LIKE '%/m/%1'")
        connection.commit()
    async with Session.open(tmp_path, embedder=OLD) as session:
        with pytest.raises(MemoryNotFound, match="1 damaged memories are left out"):
            await session.memories.get(memory.id)

        assert 1 == len(await admin.rebuild(session.memories))
        assert not (await admin.check(session)).ok
