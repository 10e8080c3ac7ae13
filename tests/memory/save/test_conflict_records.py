"""Stored conflicts: they are listed until they are resolved, and belong to their memories."""

from datetime import timedelta

import pytest
from memory_helpers import OpenedDirectory, PlainEngines

from mama_structs import admin
from mama_structs.errors import MemoryNotFound
from mama_structs.testing import FakeClock


@pytest.fixture
def clock():
    return FakeClock(start=1_700_000_000.0)


@pytest.fixture(params=[lambda: None, PlainEngines], ids=["embedded", "plain"])
async def store(request, tmp_path, clock):
    place = OpenedDirectory.open(tmp_path / "store", engines=request.param(), clock=clock.now)
    yield await place.memories()
    assert [] == await place.findings()
    await place.close()


async def save_conflict(store, clock):
    older = await store.save_decision("Use JWT", topic="login", reasoning="stateless")
    clock.advance(60)
    newer = await store.save_decision("Do not use JWT", topic="login", reasoning="not revocable")
    return newer, older


async def list_pairs(store):
    return [(one.kind, one.newer.id, one.older.id) for one in await store.conflicts()]


async def test_conflicts_lists_kind_probability_and_time(store, clock):
    """Contradictions and replacements are listed, newest first."""
    newer, older = await save_conflict(store, clock)
    first = await store.save_context("The staging database is reset every night")
    clock.advance(60)
    second = await store.save_context("The staging database is no longer reset every night")
    replaced, contradicted = await store.conflicts()

    assert ("replaces", second.id, first.id) == (replaced.kind, replaced.newer.id, replaced.older.id)
    assert ("contradicts", newer.id, older.id) == (contradicted.kind, contradicted.newer.id, contradicted.older.id)
    (warning,) = newer.warnings.possible_conflicts
    assert warning.probability == pytest.approx(contradicted.probability)
    assert newer.created_at == contradicted.detected_at
    assert 1 == len(await store.conflicts(limit=1))


@pytest.mark.parametrize("how", ["supersede", "update", "update newer", "delete", "fail", "expire", "link", "dismiss"])
async def test_resolved_conflict_is_not_listed(store, clock, how):
    """Each of these calls resolves the conflict."""
    newer, older = await save_conflict(store, clock)
    clock.advance(60)
    match how:
        case "supersede":
            await store.supersede(older.id, "Use sessions", reasoning="revocable")
        case "update":
            await store.update(older.id, "Use JWT for machines")
        case "update newer":
            await store.update(newer.id, "Do not use JWT for people")
        case "delete":
            await store.delete(older.id)
        case "fail":
            await store.set_outcome(older.id, "FAILED", reason="tokens leaked")
        case "expire":
            await store.update(older.id, valid_until=newer.created_at + timedelta(seconds=90))
            clock.advance(60)
        case "link":
            await store.link(newer.id, older.id, "discusses")
        case _:
            await store.dismiss_conflict(newer, older)
            await store.dismiss_conflict(newer.id, older.id)

    assert [] == await list_pairs(store)


async def test_dismissed_conflict_keeps_the_association(store, clock):
    """Both memories still have the same subject."""
    newer, older = await save_conflict(store, clock)
    await store.dismiss_conflict(newer, older)

    assert ["related_to"] == [
        link.metadata.original_relationship for link in await store.links(newer.id) if link.link_type == "association"
    ]
    with pytest.raises(MemoryNotFound):
        await store.dismiss_conflict(newer.id, "decision_unknown_1_00000000")


async def test_conflicts_survive_reopening_and_export(tmp_path, clock):
    """Conflicts are stored, exported and imported with their memories."""
    place = OpenedDirectory.open(tmp_path / "one", clock=clock.now)
    newer, older = await save_conflict(await place.memories(), clock)
    await place.close()
    place = OpenedDirectory.open(tmp_path / "one", clock=clock.now)
    store = await place.memories()
    expected = [("contradicts", newer.id, older.id)]

    assert expected == await list_pairs(store)
    await admin.export_jsonl(store, tmp_path / "export.jsonl")
    other = OpenedDirectory.open(tmp_path / "two", clock=clock.now)
    copy = await other.memories()
    await admin.import_jsonl(copy, tmp_path / "export.jsonl")
    assert expected == await list_pairs(copy)
    await place.close()
    await other.close()


async def test_backdated_save_records_time_of_detection(store, clock):
    """The conflict is listed, although the older memory was updated after the time that the newer one states."""
    older = await store.save_insight("The service supports retry.", created_at="2023-01-01")
    await store.update(older.id, "The service supports retries.")
    clock.advance(60)
    newer = await store.save_insight("The service does not support retries.", created_at="2023-02-01")
    (conflict,) = await store.conflicts()

    assert (newer.id, older.id) == (conflict.newer.id, conflict.older.id)
    assert clock.now() == conflict.detected_at.timestamp()


async def test_superseding_save_stores_no_conflict(store, clock):
    """The link of the supersession already says which memory is current."""
    older = await store.save_decision("Use JWT", topic="login", reasoning="stateless")
    clock.advance(60)
    await store.supersede(older.id, "Do not use JWT", reasoning="not revocable")

    assert [] == await list_pairs(store)
