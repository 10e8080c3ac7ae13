"""A correction changes the text of a memory, and stores the former text in its history."""

from __future__ import annotations

from datetime import timedelta

import pytest
from memory_helpers import SMALL, OpenedDirectory, PlainEngines

from mama_structs import Filter, admin
from mama_structs.errors import InvalidArgument, MemoryNotFound
from mama_structs.memory.types.model import PreviousText, from_milliseconds
from mama_structs.settings import MemorySettings
from mama_structs.testing import FakeClock

START = 1_790_000_000
NOON = from_milliseconds(START * 1000)
HOUR = timedelta(hours=1)


@pytest.fixture(params=[lambda: None, PlainEngines], ids=["embedded", "plain"])
async def place(request, tmp_path):
    clock = FakeClock(start=START)
    opened = OpenedDirectory.open(
        tmp_path,
        clock=clock.now,
        engines=request.param(),
        find_mentions=lambda text: [word for word in text.split() if "-" in word],
        settings=MemorySettings(linking="off", max_content=100),
    )
    yield opened, await opened.memories(), clock
    await opened.close()


async def test_corrected_memory_is_found_by_new_text(place):
    """It keeps id, time and links, and gets the text, words, vectors and mentions of its correction."""
    opened, store, clock = place
    first = await store.save_decision("dock at 2-1", topic="harbour", reasoning="ships are near")
    other = await store.save_insight("storms come from the west", links=[{"to_id": first.id, "relationship": "about"}])
    clock.advance(3600)
    corrected = await store.update(first.id, "anchor beyond 2-7", change_reason="a slip")
    clock.advance(3600)
    hit = (await store.search("anchor beyond", limit=1))[0]

    assert first.id == corrected.id == hit.memory.id
    assert corrected == hit.memory == await store.get(first.id)
    assert ("anchor beyond 2-7", "ships are near") == (corrected.content, corrected.metadata.reasoning)
    assert (first.created_at, NOON + HOUR) == (corrected.created_at, corrected.updated_at)
    assert (PreviousText(content="dock at 2-1", reasoning="ships are near", until=NOON + HOUR, reason="a slip"),) == (
        corrected.previous_texts
    )
    assert ([], [corrected]) == (
        await store.list(where=Filter(mentions="2-1")),
        await store.list(where=Filter(mentions="2-7")),
    )
    assert hit.signals["words"] > 0
    assert [0] == [one.signals["words"] for one in await store.search("dock") if one.memory.id == first.id]
    assert [other.id] == [one.memory.id for one in await store.traverse(first.id, max_depth=1)]
    assert [] == await opened.findings()


async def test_as_of_returns_text_of_that_time(place):
    """After several corrections and an outcome, each time has its own text."""
    _, store, clock = place
    first = await store.save_decision("dock at the pier", topic="harbour", reasoning="ships are near")
    clock.advance(3600)
    second = await store.update(first.id, "dock at the quay")
    clock.advance(3600)
    await store.set_outcome(first.id, "PARTIAL")
    clock.advance(3600)
    third = await store.update(first.id, reasoning="the pier is full")

    async def at(moment):
        return next(hit.memory for hit in await store.search("dock", as_of=moment) if hit.memory.id == first.id)

    assert first == await at(NOON)
    assert second == await at(NOON + HOUR)
    assert ("dock at the quay", "ships are near") == ((await at(NOON + 2 * HOUR)).content, second.metadata.reasoning)
    assert (None, "PARTIAL") == tuple([(await at(NOON + hours * HOUR)).metadata.outcome for hours in (1, 2)])
    assert third == await at(NOON + 3 * HOUR)
    assert ("dock at the quay", "the pier is full") == (third.content, third.metadata.reasoning)


async def test_correction_keeps_order_when_clock_steps_back(place):
    """A correction is never older than the memory or the previous correction."""
    _, store, _ = place
    memory = await store.save_context("one")
    store._shared.clock = lambda: START - 50
    await store.update(memory.id, "two")
    store._shared.clock = lambda: START - 90
    corrected = await store.update(memory.id, "three")

    assert [("one", NOON), ("two", NOON)] == [(said.content, said.until) for said in corrected.previous_texts]
    assert NOON == corrected.updated_at


@pytest.mark.parametrize(
    ("which", "given", "said"),
    [
        ("decision", {}, "update\\(\\) needs content, reasoning, topic, tags or valid_until"),
        ("decision", {"content": "dock here"}, "says just that already"),
        ("decision", {"content": "dock here", "reasoning": "near"}, "says just that already"),
        ("insight", {"reasoning": "because"}, "reasoning is a decision's"),
        ("insight", {"content": " "}, "content must not be empty"),
        ("insight", {"content": "x" * 101}, "content must have at most 100"),
        ("insight", {"content": 7}, "content must be a text"),
        ("insight", {"content": "new", "change_reason": "x" * 101}, "change_reason must have at most 100"),
    ],
)
async def test_invalid_correction_is_rejected_without_changes(place, which, given, said):
    """The error names the problem, and nothing was changed."""
    _, store, _ = place
    saved = {
        "decision": await store.save_decision("dock here", topic="harbour", reasoning="near"),
        "insight": await store.save_insight("storms"),
    }
    with pytest.raises(InvalidArgument, match=said):
        await store.update(saved[which].id, **given)

    assert list(saved.values()) == [await store.get(memory.id) for memory in saved.values()]


async def test_correct_raises_for_unknown_id(place):
    """The error names the nearest ids."""
    _, store, _ = place
    memory = await store.save_insight("storms")
    with pytest.raises(MemoryNotFound) as caught:
        await store.update(memory.id[:-1], "calm")

    assert (memory.id,) == caught.value.nearest


async def test_concurrent_corrections_are_combined(place, monkeypatch):
    """Concurrent corrections of content and reasoning end up in one text, with the vectors of that text."""
    opened, store, _ = place
    memory = await store.save_decision("dock here", topic="harbour", reasoning="near")
    documents, corrected = store._shared.embedding.embed_documents, []

    async def slow(texts):
        if not corrected:
            corrected.append("anchor")
            await store.update(memory.id, "anchor there")
        return await documents(texts)

    monkeypatch.setattr(store._shared.embedding, "embed_documents", slow)
    last = await store.update(memory.id, reasoning="deep")
    vectors = await store._engine.read(lambda reader: reader.vectors(reader.find(memory.id)))

    assert ("anchor there", "deep") == (last.content, last.metadata.reasoning)
    assert ["dock here", "anchor there"] == [said.content for said in last.previous_texts]
    assert (SMALL.embed(["harbour: anchor there\ndeep"]) == vectors).all()
    assert [] == await opened.findings()


async def test_correction_survives_export_and_import(place, tmp_path):
    """The former texts are exported as well."""
    _, store, _ = place
    memory = await store.save_insight("storms")
    corrected = await store.update(memory.id, "calm", change_reason="mistaken")
    await admin.export_jsonl(store, tmp_path / "all.jsonl")
    await store.delete(memory.id)
    await admin.import_jsonl(store, tmp_path / "all.jsonl")

    assert corrected == await store.get(memory.id)
