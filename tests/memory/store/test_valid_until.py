"""Expired memories (valid_until): queries omit them, but the store keeps them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from memory_helpers import OpenedDirectory, PlainEngines

from mama_structs import Filter, admin
from mama_structs.memory.types.model import from_milliseconds
from mama_structs.settings import MemorySettings
from mama_structs.testing import FakeClock

START = 1_790_000_000
NOON = from_milliseconds(START * 1000)
FRIDAY = NOON + timedelta(days=3)
ONE_MS = timedelta(milliseconds=1)


def words_with_dash(text):
    return [word for word in text.split() if "-" in word]


@pytest.fixture(params=[lambda: None, PlainEngines], ids=["embedded", "plain"])
async def place(request, tmp_path):
    clock = FakeClock(start=START)
    opened = OpenedDirectory.open(
        tmp_path,
        clock=clock.now,
        engines=request.param(),
        find_mentions=words_with_dash,
        settings=MemorySettings(linking="off"),
    )
    yield opened, await opened.memories(), clock
    await opened.close()


async def found(store):
    """Return the contents that each query method returns."""
    latest = await store.latest_checkpoint()
    return {
        "search": [hit.memory.content for hit in await store.search("mirror for 2-1 builds")],
        "recent": [memory.content for memory in await store.list()],
        "about": [memory.content for memory in await store.list(where=Filter(mentions="2-1"))],
        "similar": [one.memory.content for one in await store.similar(content="mirror for 2-1 builds", threshold=0.0)],
        "topic": [memory.content for memory in await store.history(topic="builds")],
        "around": [one.memory.content for one in (await store.history(topic="builds")).nearby],
        "checkpoint": [] if latest is None else [latest.content],
    }


async def test_queries_omit_expired_memories_and_ids_still_find_them(place):
    """Every query omits a memory from its expiry on. It can still be read by its id."""
    _, store, clock = place
    kept = await store.save_decision("use the registry for 2-1", topic="builds", reasoning="it is ours")
    ended = await store.save_decision(
        "use the mirror for 2-1 builds", topic="builds", reasoning="outage", valid_until=FRIDAY
    )
    note = await store.save_context("mirror notes 2-1 builds", valid_until=FRIDAY)
    await store.save_checkpoint("mirror for 2-1 builds is set up", valid_until=FRIDAY)
    await store.link(note.id, kept.id, "explains")
    before = await found(store)
    clock.advance(3 * 86_400 - 0.001)
    last = await found(store)
    clock.advance(0.001)
    after = await found(store)

    assert all(ended.content in before[way] for way in ("search", "recent", "about", "similar", "topic"))
    assert before == last
    assert {
        "search": [kept.content],
        "recent": [kept.content],
        "about": [kept.content],
        "similar": [kept.content],
        "topic": [kept.content],
        "around": [],
        "checkpoint": [],
    } == after
    assert ended == await store.get(ended.id)
    assert [note.id] == [one.memory.id for one in await store.traverse(kept.id, max_depth=1)]
    assert 4 == await store.count()


async def test_search_as_of_finds_memory_before_its_expiry(place):
    """As of a time before the expiry it is found, at the expiry and later it is not."""
    _, store, clock = place
    ended = await store.save_insight("the mirror is quicker", valid_until=FRIDAY)
    clock.advance(30 * 86_400)
    moments = {"before": FRIDAY - ONE_MS, "at": FRIDAY, "after": FRIDAY + ONE_MS}
    seen = {name: [hit.memory.id for hit in await store.search("mirror", as_of=at)] for name, at in moments.items()}

    assert {"before": [ended.id], "at": [], "after": []} == seen
    assert [] == await store.search("mirror")


async def test_limit_is_filled_with_valid_memories(place):
    """Expired memories that match better do not reduce the number of hits."""
    _, store, clock = place
    for number in range(12):
        await store.save_context(f"the mirror for builds {number}", valid_until=FRIDAY)
    held = [await store.save_context(f"lunch {number}") for number in range(5)]
    clock.advance(4 * 86_400)

    assert {one.id for one in held} == {hit.memory.id for hit in await store.search("mirror for builds", limit=5)}
    assert held[::-1] == await store.list(limit=5)


async def test_chain_omits_links_of_expired_memory(place):
    """A chain has only links between its memories. A traversal by id includes all links."""
    _, store, clock = place
    first = await store.save_decision("the registry", topic="builds", reasoning="ours")
    until = await store.supersede(first.id, "the mirror", reasoning="outage", valid_until=FRIDAY)
    newest = await store.supersede(until.id, "both", reasoning="safety")
    clock.advance(4 * 86_400)
    chain = await store.history(topic="builds")

    assert [newest, first] == list(chain)
    assert () == chain.links
    assert [newest.id, until.id, first.id] == [memory.id for memory in await store.history(first.id)]
    assert {first.id: newest.id} == {
        hit.memory.id: hit.superseded_by for hit in await store.search("registry") if hit.superseded_by
    }


async def test_expiry_is_kept_after_reopening(tmp_path):
    """Loaded from a snapshot and from the journal."""
    clock = FakeClock(start=START)
    opened = OpenedDirectory.open(tmp_path, clock=clock.now, settings=MemorySettings(linking="off"))
    store = await opened.memories()
    await store.save_many(
        [{"type": "context", "content": f"note {number}", "valid_until": FRIDAY} for number in range(210)]
    )
    await store.save_context("held")
    await opened.close()
    clock.advance(4 * 86_400)
    opened = OpenedDirectory.open(tmp_path, clock=clock.now, settings=MemorySettings(linking="off"))
    store = await opened.memories()
    kept = [memory.content for memory in await store.list()]
    await admin.rebuild(store)
    again = [memory.content for memory in await store.list()]
    findings = await opened.findings()
    await opened.close()

    assert ["held"] == kept == again
    assert [] == findings
