"""Newer memories on the subject of found ones."""

from datetime import UTC, datetime, timedelta

import pytest
from memory_helpers import plain_memory

from mama_structs import HashEmbedder, Session
from mama_structs.memory.graph.results import Hit
from mama_structs.memory.search.newer_statements import find_newer_hits, find_newer_statements, insert_newer
from mama_structs.testing.plain_engine import PlainReader

START = datetime(2026, 1, 1, tzinfo=UTC)
OLD = "The API gateway listens on port 7080"
NEW = "The API gateway listens on port 7443"


@pytest.fixture
async def memories():
    async with Session.open(embedder=HashEmbedder()) as session:
        for number in range(10):
            await session.memories.save_insight(f"Lunch number {number} was soup", created_at=START)
        yield session.memories


async def _save(memories, text, day, **more):
    return await memories.save_insight(text, created_at=START + timedelta(days=day), **more)


async def _find(memories, memory, has_other_value=lambda newer, older: "port" in newer, query=None, **more):
    hits = [hit for hit in await memories.search(memory.content, limit=20) if hit.id == memory.id]

    def plan(reader):
        node = reader.find(memory.id)
        return find_newer_statements(
            reader,
            {node: hits[0]},
            (),
            query=query or memory.content,
            has_other_value=has_other_value,
            shared_dimensions=HashEmbedder().dimensions,
            **more,
        )

    return (await memories._shared.read(plan)).get(memory.id)


async def test_newest_replacement_is_found_among_neighbours(memories):
    old = await _save(memories, OLD, 1)
    await _save(memories, NEW.replace("7443", "7100"), 2)
    newest = await _save(memories, NEW, 3)

    found = await _find(memories, old)

    assert (newest.id, True) == (found.memory.id, found.is_replacement)
    assert await _find(memories, newest) is None


async def test_newer_memory_with_shared_name_is_no_replacement(memories):
    old = await _save(memories, "The Skoda takes diesel", 1)
    newer = await _save(memories, "We sold the Skoda", 2)

    found = await _find(memories, old)

    assert (newer.id, False) == (found.memory.id, found.is_replacement)


@pytest.mark.parametrize(
    ("query", "is_found"),
    [("What does the Skoda take?", True), ("What do I drive?", True), ("What fuel do we need?", False)],
)
async def test_newer_memory_must_share_word_of_query(memories, query, is_found):
    """The common name of two memories may have nothing to do with the question."""
    old = await _save(memories, "The Skoda of the user takes diesel", 1)
    newer = await _save(memories, "The user washed the Skoda", 2)

    found = await _find(memories, old, lambda *_texts: False, query)

    assert (newer.id if is_found else None) == (found and found.memory.id)


async def test_replacement_need_not_share_word_of_query(memories):
    """A paraphrase has no word in common with any memory."""
    old = await _save(memories, OLD, 1)
    newer = await _save(memories, NEW, 2)

    assert newer.id == (await _find(memories, old, query="Where do requests come in?")).memory.id


async def test_unrelated_newer_memory_is_not_found(memories):
    old = await _save(memories, OLD, 1)
    await _save(memories, "Roses need water each morning", 2)

    assert await _find(memories, old, lambda newer, older: True) is None


async def test_expired_and_superseded_memories_are_not_found(memories):
    old = await _save(memories, OLD, 1)
    await _save(memories, NEW, 2, valid_until=START + timedelta(days=3))
    replaced = await memories.save_decision(NEW, topic="x", reasoning="y", created_at=START + timedelta(days=4))
    await memories.supersede(replaced, "Another gateway with port", reasoning="z", created_at=START + timedelta(days=5))

    found = await _find(memories, old, valid_at=START + timedelta(days=9))

    assert found is None or found.memory.content == "Another gateway with port"


async def test_neighbours_of_many_memories_are_read_once(memories):
    saved = [await _save(memories, f"{OLD} of host {number}", number) for number in range(6)]
    hits = {hit.id: hit for hit in await memories.search(OLD, limit=20)}
    calls = []

    class Counted:
        def __init__(self, reader):
            self.reader = reader

        def __getattr__(self, name):
            calls.append(name)
            return getattr(self.reader, name)

    def plan(reader):
        nodes = reader.find_many([one.id for one in saved])
        chosen = {node: hits[one.id] for node, one in zip(nodes, saved, strict=True)}
        return find_newer_statements(
            Counted(reader),
            chosen,
            [*hits.values()],
            query=OLD,
            has_other_value=lambda *_texts: True,
            shared_dimensions=HashEmbedder().dimensions,
        )

    found = await memories._shared.read(plan)

    assert {one.id: saved[-1].id for one in saved[:-1]} == {key: one.memory.id for key, one in found.items()}
    assert len(calls) == len(set(calls))


async def test_newer_hit_is_inserted_before_the_outdated_one(memories):
    """It names the hit that led to it, unless it is a hit of the search itself."""
    old = await _save(memories, OLD, 1)
    new = await _save(memories, NEW, 2)
    hits = {hit.id: hit for hit in await memories.search(OLD, limit=20)}

    async def find(others):
        def plan(reader):
            return find_newer_hits(
                reader,
                [hits[old.id]],
                others,
                query=OLD,
                has_other_value=lambda *_texts: True,
                shared_dimensions=HashEmbedder().dimensions,
            )

        return await memories._shared.read(plan)

    found, known = await find([]), await find([hits[new.id]])

    assert {old.id: (new, (old.id,), True)} == {
        key: (hit.memory, hit.path, is_replacement) for key, (hit, is_replacement) in found.items()
    }
    assert {old.id: (hits[new.id], True)} == known
    assert [new.id, old.id] == [hit.id for hit in insert_newer([hits[old.id]], found)]
    assert [old.id, new.id] == [hit.id for hit in insert_newer([hits[old.id]], {old.id: (hits[new.id], False)})]
    assert [new.id, old.id] == [hit.id for hit in insert_newer([hits[old.id], hits[new.id]], known)]


async def test_checkpoints_have_no_newer_statement(memories):
    """A checkpoint describes the work at its time."""
    old = await memories.save_checkpoint(OLD, created_at=START + timedelta(days=1))
    await _save(memories, NEW, 2)

    assert await _find(memories, old) is None


def test_memories_without_vectors_are_compared_with_candidates_only():
    """They have no neighbours."""
    reader = PlainReader()
    node = reader.put(plain_memory("old", OLD, at=0))
    reader.put(plain_memory("new", NEW, at=60))
    old, new = (Hit(memory=memory, score=1.0, relevance=1.0, signals={}) for memory in reader.get([node, node + 1]))

    def find(candidates):
        return find_newer_statements(
            reader,
            {node: old},
            candidates,
            query=OLD,
            has_other_value=lambda *_texts: True,
            shared_dimensions=HashEmbedder().dimensions,
        )

    assert {} == find([])
    assert "new" == find([new])["old"].memory.id
