"""Changing over to another embedder: what holds before, meanwhile and afterwards."""

import sqlite3
from contextlib import closing

import pytest
from memory_helpers import OpenedDirectory

from mama_structs import HashEmbedder, Session
from mama_structs.errors import EmbedderMismatch, EmbeddingFailed, MemoryNotFound
from mama_structs.memory.embedding.protocol import Calibration

OLD, NEW = HashEmbedder(dimensions=64), HashEmbedder(dimensions=128)


class Breaking:
    """An embedder that fails after some texts."""

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


async def test_every_memory_is_found_again_with_the_other_embedder(tmp_path):
    """What was saved, its links and its times stay; the other embedder serves from then on, at the next opening too."""
    told = []
    async with Session.open(tmp_path, embedder=OLD) as session:
        first = await session.memories.save_decision("login", "tokens", "stateless")
        second = await session.memories.supersede(first.id, "sessions", "revocable")
        before = await session.memories.links_of(first.id)
        done = await session.memories.reembed(NEW, progress=lambda *figures: told.append(figures))

        assert (2, (2, 2)) == (done, told[-1])
        assert "hash-128" == session.memories.embedder.name
        assert before == await session.memories.links_of(first.id)
        assert {first.id, second.id} == {hit.memory.id for hit in await session.memories.search("tokens")}
        assert (await session.check()).ok
    async with Session.open(tmp_path) as session:
        assert "hash-128" == session.memories.embedder.name
        assert 2 == await session.memories.count()


async def test_nothing_of_the_old_vectors_is_left(tmp_path):
    """Vectors say something about a text: they go with the embedder, and with the memory."""
    async with Session.open(tmp_path, embedder=OLD) as session:
        memory = await session.memories.save_context("one")
        await session.memories.save_context("two")
        await session.memories.reembed(NEW)
        await session.memories.delete(memory.id)
        await session.flush()

        assert 1 == sum("/v/" in key for key in keys(tmp_path))


async def test_an_interrupted_change_goes_on_where_it_stopped(tmp_path):
    """Until the last memory has its new vectors the old ones serve, and what was embedded is not embedded again."""
    async with Session.open(tmp_path, embedder=OLD) as session:
        await session.memories.save_many([{"type": "context", "content": f"note {number}"} for number in range(200)])
        with pytest.raises(EmbeddingFailed):
            await session.memories.reembed(Breaking(150))
        assert "hash-64" == session.memories.embedder.name
        assert 10 == len(await session.memories.search("note 7"))
        assert (await session.check()).ok

        assert 200 - 128 == await session.memories.reembed(Breaking(100))
        assert (await session.check()).ok


async def test_who_has_the_old_embedder_is_refused_from_then_on(tmp_path):
    """Another opening with the old embedder saves nothing more: what it saved could not be read again."""
    old = OpenedDirectory.open(tmp_path, embedder=OLD)
    theirs = await old.memories()
    await theirs.save_context("one")
    other = OpenedDirectory.open(tmp_path, embedder=OLD)
    ours = await other.memories()
    await ours.reembed(NEW)
    for _ in range(3):
        with pytest.raises(EmbedderMismatch, match="reembed"):
            await theirs.save_context("two")
        with pytest.raises(EmbedderMismatch):
            await theirs.count()
    await old.close()

    assert 1 == await ours.count()
    assert [] == await other.findings()
    await other.close()


async def test_an_unknown_id_in_a_damaged_store_says_that_it_may_be_the_damaged_one(tmp_path):
    """A damaged memory has no id any more: that it is not found must not look as if it had never been."""
    async with Session.open(tmp_path, embedder=OLD) as session:
        memory = await session.memories.save_context("one")
        await session.memories.save_context("two")
    with closing(sqlite3.connect(tmp_path / "journal" / "cache.db")) as connection:
        connection.execute("UPDATE Cache SET value = x'00' WHERE key LIKE '%/m/%1'")
        connection.commit()
    async with Session.open(tmp_path, embedder=OLD) as session:
        with pytest.raises(MemoryNotFound, match="1 damaged memories are left out"):
            await session.memories.get(memory.id)

        assert 1 == len(await session.memories.rebuild())
        assert not (await session.check()).ok
