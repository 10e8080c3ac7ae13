"""Detection of conflicts and near duplicates by a save, and merging of duplicates."""

import asyncio
from datetime import timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import SMALL, OpenedDirectory, PlainEngines, plain_memory

from mama_structs import admin
from mama_structs.errors import InvalidArgument
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.save.automatic_links import LinkingContext, find_candidates
from mama_structs.memory.save.conflict_detection import classify_pair, detect_conflicts
from mama_structs.memory.save.link_candidates import PendingLinks, SimilarityBaseline
from mama_structs.memory.types.duplicates import duplicate_fingerprint, is_duplicate
from mama_structs.memory.types.model import MemoryType
from mama_structs.settings import LinkingPolicy, MemorySettings
from mama_structs.testing import FakeClock
from mama_structs.testing.plain_engine import PlainReader

LEARNT = "Raids double at weekends."


@pytest.fixture
def clock():
    return FakeClock(start=1_700_000_000.0)


@pytest.fixture(params=[lambda: None, PlainEngines], ids=["embedded", "plain"])
async def store(request, tmp_path, clock):
    place = OpenedDirectory.open(tmp_path, engines=request.param(), clock=clock.now)
    yield await place.memories()
    await place.close()


async def merged(store, content=LEARNT, **more):
    return await store.save_insight(content, on_duplicate="merge", **more)


def ids(named):
    return [one.id for one in named]


async def test_sixty_copies_become_one_memory_with_repeat_times(store, clock):
    """
    Copies differ only in ignored details.

    Saving them together or one by one gives the same result.
    """
    first = await merged(store)
    clock.advance(60)
    for text in (LEARNT, "raids  double at\nweekends", " Raids, double AT weekends!"):
        await merged(store, text)
    await asyncio.gather(*(merged(store) for _ in range(26)))
    records = [{"type": "insight", "content": LEARNT, "on_duplicate": "merge"}] * 30
    again = await store.save_many(records)

    assert 1 == await store.count()
    assert {first.id} == {memory.id for memory in again}
    assert 59 == len((await store.get(first.id)).repeated_at)
    assert {first.created_at + timedelta(minutes=1)} == set(again[-1].repeated_at)
    assert [(first.id, 1.0)] == [(one.id, one.probability) for one in again[-1].warnings.duplicate_of]


async def test_copies_in_one_save_many_call_are_merged(store):
    """The first of them may be a kept duplicate or one that merges."""
    kept = {"type": "insight", "content": LEARNT}
    merging = kept | {"on_duplicate": "merge"}
    saved = await store.save_many([kept, merging, {"type": "insight", "content": "Cannons help."}, merging])

    assert 2 == await store.count()
    assert saved[0].id == saved[1].id == saved[3].id


async def test_copies_from_two_processes_are_merged(tmp_path):
    """The second process finds the memory of the first, also after reopening both."""
    for _ in range(2):
        places = [OpenedDirectory.open(tmp_path), OpenedDirectory.open(tmp_path)]
        stores = [await place.memories() for place in places]
        for _ in range(3):
            for one in stores:
                await merged(one)

        assert [1, 1] == [await one.count() for one in stores]
        for place in places:
            assert [] == await place.findings()
            await place.close()
    place = OpenedDirectory.open(tmp_path)
    store = await place.memories()
    await admin.rebuild(store)

    assert 12 == len((await merged(store)).repeated_at)
    await place.close()


@pytest.mark.parametrize("store", [PlainEngines], indirect=True, ids=["plain"])
@pytest.mark.parametrize(
    "more",
    [
        {"content": "Raids double at weekends, 2 of 3."},
        {"content": "Raids double-at weekends."},
        {"content": "At weekends raids double."},
        {"category": "defence"},
        {"tags": ["raids"]},
        {"source": "Ada"},
        {"origin": "outside"},
        {"valid_until": True},
        {"created_at": True},
        {"links": True},
    ],
    ids=str,
)
async def test_texts_that_differ_in_content_are_not_merged(store, clock, more):
    """A different word, symbol, source or expiry makes a separate memory."""
    first = await merged(store)
    clock.advance(60)
    given = {"content": LEARNT} | more
    if "valid_until" in more or "created_at" in more:
        given |= dict.fromkeys(more, first.created_at + timedelta(hours=1 if "valid_until" in more else -1))
    if "links" in more:
        given["links"] = [{"to_id": first.id, "relationship": "repeats"}]
    await merged(store, **given)

    assert 2 == await store.count()
    assert () == (await store.get(first.id)).repeated_at


async def test_decisions_with_different_reasons_or_topics_are_not_merged(store):
    """All three decisions with the same words are stored."""
    how = {"on_duplicate": "merge"}
    await store.save_decision("Use JWT", topic="login", reasoning="stateless", **how)
    await store.save_decision("Use JWT", topic="login", reasoning="the team knows it", **how)
    await store.save_decision("Use JWT", topic="api", reasoning="stateless", **how)

    assert 3 == await store.count()


@pytest.mark.parametrize("then", ["failed", "superseded", "followed"])
async def test_copy_of_invalid_decision_is_saved_as_new_decision(store, clock, then):
    """
    A copy of a failed, superseded or followed decision is a new decision.

    Further copies merge with the new one.
    """
    first = await store.save_decision("Use JWT", topic="login", reasoning="stateless")
    clock.advance(1)
    if then == "failed":
        await store.set_outcome(first.id, "FAILED", reason="tokens leaked")
    elif then == "superseded":
        await store.supersede(first.id, "Use sessions", reasoning="revocable")
    else:
        await store.save_decision("Sessions for admins", topic="login", reasoning="revocable")
    before = await store.count()
    clock.advance(1)
    again = [
        await store.save_decision("Use JWT", topic="login", reasoning="stateless", on_duplicate="merge")
        for _ in range(3)
    ]

    assert before + 1 == await store.count()
    assert 1 == len({memory.id for memory in again} - {first.id})
    assert 2 == len(again[-1].repeated_at)


async def test_search_as_of_ignores_later_repeats(store, clock):
    """`as_of` hides later repeats, as it hides later outcomes."""
    first = await merged(store)
    clock.advance(3600)
    await merged(store)
    half_way = first.created_at + timedelta(minutes=30)
    (hit,) = await store.search("raids", as_of=half_way)
    (now,) = await store.search("raids")

    assert ((), 1) == (hit.memory.repeated_at, len(now.memory.repeated_at))


async def test_python_callers_keep_copies_by_default(store):
    """Both memories are stored, and the second one refers to the first."""
    first = await store.save_insight(LEARNT)
    second = await store.save_insight(LEARNT)

    assert 2 == await store.count()
    assert [(first.id, 1.0)] == [(one.id, one.probability) for one in second.warnings.duplicate_of]
    assert not first.warnings
    assert (await store.get(second.id)).warnings is None


async def test_invalid_on_duplicate_raises(store):
    """Nothing is saved, and checkpoints are never merged."""
    with pytest.raises(InvalidArgument, match="on_duplicate must be"):
        await store.save_insight(LEARNT, on_duplicate="replace")
    with pytest.raises(InvalidArgument, match="on_duplicate"):
        await store.save_many([{"type": "checkpoint", "content": "done", "on_duplicate": "merge"}])

    assert 0 == await store.count()


async def test_contradicting_decisions_are_reported_and_kept(store):
    """Each of three decisions reports those it contradicts, and none is superseded."""
    first = await store.save_decision("Use JWT", topic="login", reasoning="stateless")
    second = await store.save_decision("Do not use JWT", topic="login", reasoning="it cannot be revoked")
    third = await store.save_decision("Use JWT", topic="login", reasoning="stateless")

    assert [first.id] == ids(second.warnings.possible_conflicts)
    assert ([first.id], [second.id]) == (ids(third.warnings.duplicate_of), ids(third.warnings.possible_conflicts))
    assert [] == [link for link in await store.links(first.id) if link.link_type == "evolution"]


@pytest.mark.parametrize("store", [PlainEngines], indirect=True, ids=["plain"])
@pytest.mark.parametrize(
    ("older", "newer", "kind"),
    [
        ("The payment API times out after 5 s.", "The payment API times out after 8 s.", "possible_conflicts"),
        ("Retry the bank 3 times.", "Retry the bank 5 times instead of 3.", "possible_replacements"),
        ("결제 API 타임아웃은 5초로 둔다", "결제 API 타임아웃을 5초에서 8초로 늘린다", "possible_replacements"),
        ("쿠폰은 주문당 1장만 쓴다", "쿠폰은 1장 대신 3장까지 쓴다", "possible_replacements"),
        ("Player 1-11 lives on 2-1.", "Player 1-14 lives on 2-6.", None),
        ("Breaker 7 feeds the boiler.", "Breaker 9 feeds the oven.", None),
    ],
)
async def test_conflict_is_distinguished_from_similar_text(store, older, newer, kind):
    """
    Another value of the same thing is a conflict.

    A similar statement on another thing is not.
    """
    first = await store.save_decision(older, topic="matter", reasoning="")
    second = await store.save_decision(newer, topic="matter", reasoning="")

    assert {kind: [first.id]} == {
        name: ids(some) for name, some in attrs.asdict(second.warnings, recurse=False).items() if some
    } or (kind is None and not second.warnings)


@pytest.mark.parametrize("store", [PlainEngines], indirect=True, ids=["plain"])
@pytest.mark.parametrize(
    ("older", "newer", "kind"),
    [
        (
            "The staging database is reset every night",
            "We moved the staging database to a weekly reset; it is no longer reset every night",
            "possible_replacements",
        ),
        (
            "Mondays are for planning at nine",
            "Planning is at ten from now on, not at nine on Mondays",
            "possible_replacements",
        ),
        ("외장 하드에 사진을 백업한다", "사진은 이제 외장 하드 대신 클라우드에 백업한다", "possible_replacements"),
        ("Paper is collected on the second Tuesday", "Glass is collected on the second Friday", None),
        ("The staging database is reset every night", "The staging mailbox is emptied every night", None),
    ],
)
async def test_statement_of_change_replaces_earlier_statement(store, older, newer, kind):
    """
    Tested for all types, with and without a topic.

    Statements on other things are not reported.
    """
    first = await store.save_context(older)
    second = await store.save_insight(newer)

    assert [first.id] * (kind is not None) == ids(second.warnings.possible_replacements)
    assert () == second.warnings.possible_conflicts


async def test_superseded_decision_is_not_reported_as_conflict(store):
    """Neither the superseding decision nor later saves report it."""
    first = await store.save_decision("Use JWT", topic="login", reasoning="stateless")
    second = await store.supersede(first.id, "Do not use JWT", reasoning="it cannot be revoked")
    third = await store.save_decision("do not use JWT!", topic="login", reasoning="it cannot be revoked.")

    assert not second.warnings.possible_conflicts
    assert [second.id] == ids(third.warnings.duplicate_of)
    assert () == third.warnings.possible_conflicts


async def test_copies_are_compared_with_current_text(tmp_path):
    """
    After a correction only copies of the new text are merged, after a deletion none.

    This holds in other processes too.
    """
    for _ in range(2):
        place = OpenedDirectory.open(tmp_path, settings=MemorySettings(snapshot_every=1))
        store = await place.memories()
        first = await merged(store, "The moon is near.")
        corrected = await store.update(first.id, "The moon is far.")
        other = await merged(store, "The moon is near.")
        same = await merged(store, "The moon is far.")
        await store.delete(other.id)
        again = await merged(store, "The moon is near.")
        await store.delete(again.id)
        await store.delete(corrected.id)

        assert first.id == same.id
        assert 3 == len({first.id, other.id, again.id})
        assert 0 == await store.count()
        assert [] == await place.findings()
        await place.close()


class Counting:
    """A reader that records its calls and counts the memories that are read."""

    def __init__(self, reader):
        self.reader, self.calls, self.read = reader, [], 0

    def __getattr__(self, name):
        method = getattr(self.reader, name)

        def counted(*given, **more):
            self.calls.append(name)
            if name == "get":
                self.read += len(given[0])
            return method(*given, **more)

        return counted


@pytest.mark.parametrize("together", [1, 8])
def test_conflict_detection_needs_three_reads_for_any_number_of_saves(together):
    """It reads at most five texts per save, and reuses results of automatic linking."""
    reader = PlainReader()
    for number in range(40):
        memory = plain_memory(f"m{number}", f"Cannon {number} guards the mine.", topic="guard", at=number)
        reader.put(memory, vectors=SMALL.embed([memory.content]))
    linking = LinkingContext(policy=LinkingPolicy(), calibration=SMALL.calibration, shared_dimensions=SMALL.dimensions)
    new = [plain_memory(f"n{one}", f"Cannon {one} guards no mine.", topic="guard", at=99) for one in range(together)]
    asked = [PendingLinks(memory=one, vectors=SMALL.embed([one.content])) for one in new]
    found = find_candidates(
        reader, asked, linking, SimilarityBaseline.from_reader(reader, linking.calibration, linking.shared_dimensions)
    )
    counting = Counting(reader)
    detect_conflicts(counting, asked, found, linking.calibration)

    assert ["duplicates", "get", "links"] == sorted(counting.calls)
    assert counting.read <= 5 * together


TEXTS = st.text("aB .!?0-é\n", max_size=6)


@given(one=TEXTS, other=TEXTS)
def test_wording_hash_ignores_case_blanks_and_final_punctuation(one, other):
    """Other texts have different hashes."""
    memories = [plain_memory(text, text, type=MemoryType.INSIGHT) for text in (one, other)]
    plain = [" ".join(text.lower().split()).rstrip(".!? ") for text in (one, other)]

    assert (
        (plain[0] == plain[1])
        == is_duplicate(*memories)
        == (duplicate_fingerprint(memories[0]) == duplicate_fingerprint(memories[1]))
    )


def test_checkpoint_has_no_wording_hash():
    """Checkpoints are expected to repeat."""
    assert 0 == duplicate_fingerprint(plain_memory("c", "done", type=MemoryType.CHECKPOINT))


def test_repeats_keep_order_when_clock_steps_back():
    """A repeat is never older than the memory that it repeats."""
    memory = plain_memory("m", LEARNT, type=MemoryType.INSIGHT, at=60)
    early = saving.with_repetition(memory, memory.created_at - timedelta(hours=1))

    assert (memory.created_at,) == early.repeated_at


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("The admin email is anna@corp.com.", "The admin email is eve@evil.com."),
        ("Deploy on staging first.", "Deploy on production first."),
        ("The backup needs 30 seconds of silence.", "The backup needs 30 minutes of silence."),
        ("Il server supporta i tentativi.", "Il server non supporta i tentativi."),
    ],
)
def test_text_with_other_words_in_one_place_is_no_near_copy(older, newer):
    """Even if the vectors are as similar as those of equal texts."""
    one, other = (plain_memory(name, text, type=MemoryType.INSIGHT) for name, text in (("a", newer), ("b", older)))

    assert 0.0 == classify_pair(one, other, same_subject=1.0, cosine=8.0).get("duplicate_of", 0.0)
