"""Arguments of `MemoryStore`: content first, objects or ids, natural times, tags and extra data of all types."""

from __future__ import annotations

import inspect
import json
import time
from datetime import UTC, date, datetime, timedelta

import attrs
import pytest
from memory_helpers import SMALL, OpenedDirectory, PlainEngines

from mama_structs import Filter, MemoryStore, MemoryType, Outcome, Session, admin
from mama_structs.errors import HandleNotFound, InvalidArgument, MemoryNotFound
from mama_structs.settings import MemorySettings
from mama_structs.testing import FakeClock

NOW = datetime(2026, 6, 15, 12, tzinfo=UTC)
EXTRA = {"ticket": 12, "nested": {"a": [1, None, True]}, "기억": "x"}
SHARED_ARGUMENTS = {"tags": ["a", "b", "a"], "source": "log", "extra": EXTRA}
SAVES = {
    "save": ({}, MemoryType.INSIGHT),
    "save_context": ({}, MemoryType.CONTEXT),
    "save_insight": ({"category": "war"}, MemoryType.INSIGHT),
    "save_checkpoint": ({"open_files": ["a.py"]}, MemoryType.CHECKPOINT),
    "save_decision": ({"topic": "auth", "reasoning": "why"}, MemoryType.DECISION),
}


@pytest.fixture
def clock():
    return FakeClock(start=NOW.timestamp())


@pytest.fixture(params=[lambda: None, PlainEngines], ids=["embedded", "plain"])
async def place(request, tmp_path, clock):
    opened = OpenedDirectory.open(
        tmp_path, engines=request.param(), embedder=SMALL, settings=MemorySettings(linking="off"), clock=clock.now
    )
    yield opened
    assert [] == await opened.findings()
    await opened.close()


@pytest.fixture
async def store(place):
    return await place.memories()


# Saving


@pytest.mark.parametrize("method", ["save", "save_decision", "save_insight", "save_context", "save_checkpoint"])
def test_save_methods_accept_one_positional_argument(method):
    parameters = [*inspect.signature(getattr(MemoryStore, method)).parameters.values()][1:]

    assert "content" == parameters[0].name
    assert {inspect.Parameter.KEYWORD_ONLY} == {one.kind for one in parameters[1:]}


async def test_save_returns_insight_or_context(store):
    insight = await store.save("Ada works as a nurse", topic="ada")
    context = await store.save("the wiki says so", type="context")

    assert (MemoryType.INSIGHT, "Ada works as a nurse", "ada") == (insight.type, insight.content, insight.topic)
    assert MemoryType.CONTEXT is context.type
    assert [context, insight] == await store.list()
    for kind in ("decision", "checkpoint", "record", "idea", None):
        with pytest.raises(InvalidArgument, match="type must be one of insight, context"):
            await store.save("x", type=kind)


@pytest.mark.parametrize("method", SAVES)
async def test_tags_source_extra_and_topic_are_stored_for_every_type(store, method):
    own, kind = SAVES[method]
    memory = await getattr(store, method)("something", **{"topic": "auth", **own, **SHARED_ARGUMENTS})
    other = await getattr(store, method)("something else", **own)

    assert memory == await store.get(memory.id)
    assert (kind, "auth", ("a", "b"), "log") == (memory.type, memory.topic, memory.tags, memory.source)
    assert EXTRA == memory.metadata.extra
    assert ((), None, {}) == (other.tags, other.source, other.metadata.extra)
    for where in (
        Filter(tags="a"),
        Filter(tags=["b", "a"]),
        Filter(source="log"),
        Filter(extra={"ticket": 12}),
        Filter(extra={"nested": {"a": [1, None, True]}, "기억": "x"}),
    ):
        assert [memory] == await store.list(where=where)
        assert 1 == await store.count(where=where)
        assert [memory.id] == [hit.id for hit in await store.search("something", where=where)]
    for where in (Filter(tags=["a", "c"]), Filter(extra={"ticket": 13}), Filter(extra={"ticket": "12"})):
        assert [] == await store.list(where=where)


async def test_extra_is_copied_and_limited(store):
    mine = {"a": [1]}
    memory = await store.save("x", extra=mine)
    mine["a"].append(2)

    assert {"a": [1]} == (await store.get(memory.id)).metadata.extra
    for extra, message in [
        ({str(number): 0 for number in range(65)}, "at most 64 keys"),
        ({"a": "b" * 10_000}, "at most 10000 characters of JSON"),
        ({"a": object()}, "must be JSON"),
        ({1: 2}, "keys must be text"),
        ([1], "must be a mapping"),
        ({"a": float("nan")}, "finite"),
    ]:
        with pytest.raises(InvalidArgument, match=f"extra.*{message}"):
            await store.save("x", extra=extra)
    assert 1 == await store.count()


@pytest.mark.parametrize("method", [name for name in SAVES if name != "save_checkpoint"])
async def test_duplicate_is_merged_unless_it_says_more(store, method):
    own, _ = SAVES[method]
    save = getattr(store, method)
    for given in ({}, {"tags": ["a", "b"]}, {"source": "log"}, {"source": "log", "tags": "a"}):
        first = await save("the wall is high", **own, **given)
        again = await save("The wall is high.", on_duplicate="merge", **own, **given)
        assert first.id == again.id
        assert 1 == len(again.repeated_at)
        more = await save("the wall is high", on_duplicate="merge", extra={"a": 1}, **own, **given)
        assert more.id != first.id

    assert 8 == await store.count()


async def test_save_many_accepts_texts_and_mappings(store):
    saved = await store.save_many(
        [
            "a fact",
            {"content": "another fact", "tags": "a", "extra": {"b": 1}},
            {"type": "context", "content": "background", "topic": "t"},
            {"type": "decision", "content": "use keys", "topic": "auth", "reasoning": "why"},
            {"type": "checkpoint", "content": "half done", "valid_until": timedelta(days=1)},
        ]
    )

    assert ["insight", "insight", "context", "decision", "checkpoint"] == [memory.type.value for memory in saved]
    assert (("a",), {"b": 1}) == (saved[1].tags, saved[1].metadata.extra)
    assert NOW + timedelta(days=1) == saved[-1].valid_until
    for items in ("text", b"x", {"content": "x"}, 5, None):
        with pytest.raises(InvalidArgument, match="items must be a list"):
            await store.save_many(items)
    for items, message in [
        ([5], r"items\[0\].*a text or a mapping"),
        (["x", {"content": "x", "summary": "y"}], r"items\[1\].*summary"),
        (["x", {"topic": "t"}], r"items\[1\].*content"),
        (["x", {"content": "x", "created_at": "soon"}], r"items\[1\].*created_at"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            await store.save_many(items)
    assert 5 == await store.count()


# Times


@pytest.fixture
def local_zone(monkeypatch):
    """Set a local time zone that differs from UTC."""
    monkeypatch.setenv("TZ", "Asia/Seoul")
    time.tzset()
    yield timedelta(hours=9)
    monkeypatch.undo()
    time.tzset()


TIMES = [
    (datetime(2026, 6, 1, 10, tzinfo=UTC), datetime(2026, 6, 1, 10, tzinfo=UTC)),
    (datetime(2026, 6, 1, 10), datetime(2026, 6, 1, 1, tzinfo=UTC)),  # noqa: DTZ001 - the case
    (date(2026, 6, 1), datetime(2026, 5, 31, 15, tzinfo=UTC)),
    ("2026-06-01", datetime(2026, 5, 31, 15, tzinfo=UTC)),
    ("2026-06-01T10:00:00", datetime(2026, 6, 1, 1, tzinfo=UTC)),
    ("2026-06-01T10:00:00Z", datetime(2026, 6, 1, 10, tzinfo=UTC)),
]


@pytest.mark.usefixtures("local_zone")
async def test_times_are_natural_and_naive_times_are_local(store):
    for value, expected in TIMES:
        memory = await store.save("x", created_at=value, valid_until=value)
        assert (expected, expected) == (memory.created_at, memory.valid_until)
        assert timedelta(0) == memory.created_at.utcoffset()
        decision = await store.save_decision("d", topic="t", reasoning="", created_at=value)
        assert expected == (await store.set_outcome(decision, "SUCCESS", at=value)).metadata.outcome_at
        assert expected == (await store.update(decision, valid_until=value)).valid_until
        assert expected == (await store.link(decision, memory, "refines", created_at=value)).created_at


async def test_timedelta_counts_back_except_for_the_end_of_validity(store, clock):
    day = timedelta(days=1)
    memory = await store.save("x", created_at=2 * day, valid_until=3 * day)
    recent = await store.save("y", created_at=timedelta(hours=1))

    assert (NOW - 2 * day, NOW + 3 * day) == (memory.created_at, memory.valid_until)
    assert NOW + day == (await store.update(memory, valid_until=day)).valid_until
    assert [recent] == await store.list(since=day)
    assert [recent.id] == [hit.id for hit in await store.search("x", since=day)]
    assert [memory.id] == [hit.id for hit in await store.search("x", as_of=day)]
    assert 2 == await store.count(since=2 * day)
    clock.step(day.total_seconds())
    assert 1 == await store.count(since=2 * day)
    assert [memory.id] == [one.id for one in await store.list(where=Filter(until=2 * day))] or [] == await store.list(
        where=Filter(until=2 * day)
    )
    with pytest.raises(InvalidArgument, match="created_at must not be a negative timedelta"):
        await store.save("x", created_at=-day)


# Objects or ids


async def test_objects_are_accepted_wherever_an_id_is(store):
    first = await store.save_decision("use JWT for the login", topic="auth", reasoning="stateless")
    second = await store.save_checkpoint("login is done", implements=first)
    third = await store.save("tokens leak", links=[{"to_id": first, "relationship": "concerns"}], evidence=[first])
    hit = next(one for one in await store.search("login") if one.id == first.id)
    traversed = next(one for one in await store.traverse(second) if one.memory.id == first.id)
    (similar,) = [one for one in await store.similar(third, threshold=0.0) if one.memory.id == first.id]

    assert (first.id,) == third.evidence
    for form in (first.id, first, hit, traversed, similar):
        assert first == await store.get(form)
        assert first.id == (await store.explain("login", form)).memory_id
        assert first == (await store.details(form)).memory
        assert (first,) == (await store.history(form)).memories
        assert {second.id, third.id} == {link.from_id for link in await store.links(form)}
        assert {second.id, third.id} == {one.memory.id for one in await store.traverse(form)}
        assert [] == await store.evidence(form)
        assert first.id not in {one.memory.id for one in await store.similar(form, threshold=0.0)}
        link = await store.link(second, form, "refines")
        await store.unlink(link)
        link = await store.link(form, third, "refines")
        await store.unlink(link.id)
        assert Outcome.SUCCESS is (await store.set_outcome(form, "SUCCESS")).outcome
        new = await store.supersede(form, "use sessions", reasoning="safe")
        assert 1 == await store.delete(new)
        new = await store.save_decision("use sessions", topic="auth", reasoning="", supersedes=form, implements=[form])
        assert [new.id] == [one.id for one in (await store.history(form)).memories if one.id != first.id]
        assert 1 == await store.delete([new])
        assert 1 == await store.delete(form, dry_run=True)
        assert 1 == (await store.erase(form, dry_run=True)).memories["decision"]
        first = await store.update(first, f"{first.content}!")
        hit, traversed, similar = (attrs.evolve(one, memory=first) for one in (hit, traversed, similar))
        await store.set_outcome(first, "PARTIAL")
        first = await store.get(first)


@pytest.mark.parametrize("value", [None, 5, b"x", "", " ", ["a"], {"id": "a"}, object()])
async def test_other_values_are_rejected_as_memory(store, value):
    for call in (store.get, store.details, store.evidence, store.links, store.traverse):
        if value is None and call == store.links:
            continue
        with pytest.raises(InvalidArgument, match="memory must"):
            await call(value)


# Updates


async def test_update_changes_topic_tags_and_validity_only(store, clock):
    memory = await store.save("Ada works as a nurse", topic="ada", tags="job", valid_until=timedelta(days=3))
    clock.step(60)
    for change, expected in [
        ({"topic": "people"}, {"topic": "people"}),
        ({"topic": None}, {"topic": None}),
        ({"tags": ["a", "b"]}, {"tags": ("a", "b")}),
        ({"tags": "one"}, {"tags": ("one",)}),
        ({"tags": None}, {"tags": ()}),
        ({"valid_until": None}, {"valid_until": None}),
        ({"valid_until": NOW + timedelta(days=9)}, {"valid_until": NOW + timedelta(days=9)}),
    ]:
        before = await store.get(memory)
        after = await store.update(memory, **change)
        assert after == await store.get(memory.id)
        for name in ("content", "topic", "tags", "valid_until"):
            assert expected.get(name, getattr(before, name)) == getattr(after, name)
        assert () == after.previous_texts
        assert (memory.created_at, NOW + timedelta(seconds=60)) == (after.created_at, after.updated_at)
    assert [after] == await store.list()


async def test_update_moves_memory_between_filters(store):
    memory = await store.save("Ada works as a nurse", topic="ada", tags="job")
    other = await store.save("Ben works as a cook", topic="ben", tags="job")
    after = await store.update(memory, "Ada works as a doctor", topic="people", tags="work", change_reason="promoted")

    assert [] == await store.list(topic="ada")
    assert [after] == await store.list(topic="people") == await store.list(where=Filter(tags="work"))
    assert [other] == await store.list(where=Filter(tags="job"))
    assert [("Ada works as a nurse", "promoted")] == [(one.content, one.reason) for one in after.previous_texts]
    assert after.id == (await store.search("doctor", topic="people"))[0].id


async def test_update_rejects_invalid_changes(store):
    decision = await store.save_decision("use JWT", topic="auth", reasoning="why", tags="a")
    insight = await store.save("tokens leak")
    for memory, change, message in [
        (decision, {}, "update.. needs content, reasoning, topic, tags or valid_until"),
        (decision, {"change_reason": "x"}, "update.. needs"),
        (decision, {"topic": None}, "topic must not be None for a decision"),
        (decision, {"topic": " "}, "topic must not be empty"),
        (decision, {"topic": "auth", "tags": ["a"]}, "has these values already"),
        (decision, {"tags": [""]}, "tags"),
        (decision, {"tags": 5}, "tags"),
        (decision, {"valid_until": "soon"}, "valid_until"),
        (decision, {"reasoning": None}, "reasoning must be a text"),
        (insight, {"reasoning": "x"}, "reasoning is a decision's"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            await store.update(memory, **change)
    assert [insight, decision] == await store.list()
    with pytest.raises(MemoryNotFound):
        await store.update("insight_x_1790000000000_0a1b2c3d", topic="x")


# Deletion


async def test_delete_by_filter_counts_memories_and_dry_run_changes_nothing(store):
    saved = await store.save_many([{"content": f"note {number}", "tags": "ab"[number % 2]} for number in range(7)])

    assert 3 == await store.delete(where=Filter(tags="b"), dry_run=True)
    assert 7 == await store.count()
    assert 3 == await store.delete(where=Filter(tags="b"))
    assert 0 == await store.delete(where=Filter(tags="b"))
    assert saved[::2] == [one async for one in store.iter_all()]
    assert 1 == await store.delete(saved[:3:2], where=Filter(topic="t")) + 1
    assert 2 == await store.delete([saved[0], saved[2].id, saved[0]])
    assert 2 == await store.count()
    with pytest.raises(MemoryNotFound):
        await store.delete([saved[4], saved[0]])
    assert 2 == await store.count()
    assert 0 == await store.delete([])


@pytest.mark.parametrize("how", ["id", "where", "both"])
async def test_delete_also_deletes_outcome_reasons_and_counts_given_memories(store, how):
    decision = await store.save_decision("use JWT", topic="auth", reasoning="why")
    await store.set_outcome(decision, "FAILED", reason="it leaked")
    await store.set_outcome(decision, "PARTIAL", reason="it works at night")
    unrelated = await store.save_context("it leaked")
    given = {
        "id": {"memories": decision},
        "where": {"where": Filter(type="decision")},
        "both": {"where": Filter(topic="auth")},
    }[how]
    expected = 3 if how == "both" else 1

    assert expected == await store.delete(**given, dry_run=True)
    assert expected == await store.delete(**given)
    assert [unrelated] == [one async for one in store.iter_all()]


async def test_delete_and_erase_need_memories_or_a_condition(store):
    memory = await store.save("x")
    for call in (store.delete, store.erase):
        for given in ({}, {"where": Filter()}, {"where": None}):
            with pytest.raises(InvalidArgument, match=r"\(\) needs memories or where="):
                await call(**given)
        for given in ({"memories": 5}, {"where": {"tags": "a"}}, {"memories": memory, "dry_run": "yes"}):
            with pytest.raises(InvalidArgument):
                await call(**given)
    assert 1 == await store.count()


async def test_erase_by_filter_reports_memories_and_dry_run_changes_nothing(store):
    ada = await store.save("Ada lives in Ghent", topic="ada")
    ben = await store.save("Ben lives in Ghent", topic="ben", evidence=[ada])
    preview = await store.erase(where=Filter(topic="ada"), dry_run=True)

    assert ({"insight": 1}, 1, True) == (dict(preview.memories), preview.updated_memories, preview.dry_run)
    assert 2 == await store.count()
    report = await store.erase(where=Filter(topic="ada"))
    assert ({"insight": 1}, False) == (dict(report.memories), report.dry_run)
    assert 1 == report.count
    assert [ben.id] == [one.id for one in await store.list()]
    assert json.loads(report.to_json())["memories"] == {"insight": 1}
    with pytest.raises(MemoryNotFound):
        await store.erase(ada)


# Reading


async def test_similar_takes_a_memory_or_a_content(store):
    login = await store.save("the login uses tokens", tags="a")
    again = await store.save("tokens are used by the login", tags="b")
    await store.save("apples are sold on Mondays")

    assert again.id == (await store.similar(login, threshold=0.0))[0].memory.id
    assert login.id == (await store.similar(content="the login uses tokens", threshold=0.0))[0].memory.id
    (only,) = await store.similar(content="the login uses tokens", threshold=0.0, where=Filter(tags="b"))
    assert again.id == only.memory.id
    assert 1 == len(await store.similar(login, threshold=0.0, limit=1))
    for given in ({}, {"memory": login, "content": "x"}):
        with pytest.raises(InvalidArgument, match="either a memory or a content"):
            await store.similar(**given)
    with pytest.raises(InvalidArgument, match="content must not be empty"):
        await store.similar(content=" ")


async def test_history_takes_a_memory_or_a_topic(store):
    first = await store.save_decision("use JWT", topic="auth", reasoning="stateless")
    second = await store.supersede(first, "use sessions", reasoning="safe")
    near = await store.save("sessions need a store", links=[{"to_id": second, "relationship": "concerns"}])

    for chain in (await store.history(first), await store.history(topic="auth")):
        assert (second, first) == chain.memories
        assert second == chain.newest
    assert () == (await store.history(first)).nearby
    assert [near.id] == [one.memory.id for one in (await store.history(topic="auth")).nearby]
    assert () == (await store.history(topic="auth", link_types="temporal")).nearby
    assert () == (await store.history(topic="unknown")).memories
    for given in ({}, {"memory": first, "topic": "auth"}):
        with pytest.raises(InvalidArgument, match="either a memory or a topic"):
            await store.history(**given)


async def test_details_contain_history_links_and_nearby_memories(store):
    first = await store.save_decision("use JWT", topic="auth", reasoning="stateless")
    second = await store.supersede(first, "use sessions", reasoning="safe")
    near = await store.save("sessions need a store", links=[{"to_id": second, "relationship": "concerns"}])
    details = await store.details(second)

    assert (second, (second, first)) == (details.memory, details.history.memories)
    assert {near.id, first.id} == {one.memory.id for one in details.nearby}
    assert {(second.id, first.id), (near.id, second.id)} == {(one.from_id, one.to_id) for one in details.links}
    assert [first.id] == [one.memory.id for one in (await store.details(second, link_types="evolution")).nearby]


@pytest.mark.parametrize(
    ("superseded", "expected"),
    [("demote", ["new", "old", "other"]), ("keep", ["old", "new", "other"]), ("exclude", ["new", "other"])],
)
async def test_superseded_memories_are_demoted_kept_or_excluded(store, superseded, expected):
    old = await store.save_decision("use JWT for the login of the game", topic="auth", reasoning="")
    new = await store.supersede(old, "sessions", reasoning="")
    other = await store.save("apples are sold")
    names = {old.id: "old", new.id: "new", other.id: "other"}
    hits = await store.search("use JWT for the login of the game", superseded=superseded)

    assert expected == [names[hit.id] for hit in hits]
    assert [new.id if names[hit.id] == "old" else None for hit in hits] == [hit.superseded_by for hit in hits]
    with pytest.raises(InvalidArgument, match="superseded must be one of"):
        await store.search("x", superseded="hide")


async def test_search_accepts_conditions_directly_or_in_a_filter(store):
    memory = await store.save("the login uses tokens", topic="auth", created_at=timedelta(days=2))
    await store.save("the login is slow")
    direct = {"type": "insight", "topic": "auth", "since": timedelta(days=3)}

    assert [memory.id] == [hit.id for hit in await store.search("login", **direct)]
    assert [memory.id] == [hit.id for hit in await store.search("login", where=Filter(**direct))]
    for name, value in direct.items():
        for call in (store.list, store.count, lambda **given: store.search("login", **given)):
            with pytest.raises(InvalidArgument, match=f"{name} is given twice"):
                await call(where=Filter(**{name: value}), **{name: value})


async def test_attributes_of_metadata_are_answered_by_memory_and_hit(store):
    decision = await store.save_decision("use JWT", topic="auth", reasoning="why", confidence=0.9, tags="a", source="s")
    decision = await store.set_outcome(decision, "FAILED", reason="it leaked")
    insight = await store.save("tokens leak")
    hit = next(one for one in await store.search("use JWT") if one.id == decision.id)

    assert ("why", 0.9, Outcome.FAILED, "it leaked", ("a",), "s") == (
        decision.reasoning, decision.confidence, decision.outcome, decision.outcome_reason, decision.tags,
        decision.source,
    )  # fmt: skip
    assert (None, None, None, None, (), None) == (
        insight.reasoning, insight.confidence, insight.outcome, insight.outcome_reason, insight.tags, insight.source
    )  # fmt: skip
    assert (decision.id, MemoryType.DECISION, "auth", "use JWT") == (hit.id, hit.type, hit.topic, hit.content)


async def test_results_are_json(store):
    await store.save_many(["a fact", {"content": "another fact", "extra": {"a": 1}}])
    page = await store.list()
    hits = await store.search("fact")

    assert page.to_dicts() == json.loads(page.to_json())
    assert hits.to_dicts() == json.loads(hits.to_json())
    assert {"a": 1} == page.to_dicts()[0]["metadata"]["extra"]
    assert "fact" in hits.to_dicts()[0]["memory"]["content"]
    assert () == (await admin.check(store)).issues


async def test_unlink_names_the_accepted_types(store):
    with pytest.raises(InvalidArgument, match="link must be a Link or its id, got 5"):
        await store.unlink(5)


async def test_supersede_validates_on_duplicate_and_always_saves(store):
    first = await store.save_decision("use JWT", topic="auth", reasoning="stateless")
    with pytest.raises(InvalidArgument, match="on_duplicate must be one of keep, merge"):
        await store.supersede(first, "use JWT", reasoning="stateless", on_duplicate="twice")
    second = await store.supersede(first, "use JWT", reasoning="stateless", on_duplicate="merge")

    assert [second.id, first.id] == [one.id for one in await store.history(second)]


async def test_evidence_accepts_single_object(tmp_path):
    async with Session.open(tmp_path, embedder=SMALL) as session:
        memory, ref = await session.memories.save("a source"), session.refs.put("plan", "the plan")
        descriptor = session.refs.add("a long answer")
        (hit,) = await session.memories.search("a source")
        for item in (memory, hit, ref, descriptor):
            one = await session.memories.save("one", evidence=item)
            several = await session.memories.save("several", evidence=[item])
            assert one.evidence == several.evidence != ()


async def test_update_replaces_handles_as_save_does(tmp_path):
    async with Session.open(tmp_path, embedder=SMALL) as session:
        session.refs.put("plan", "the plan")
        memories = session.memories
        memory = await memories.save_decision("a", topic="t", reasoning="b")
        saved = await memories.save("ref:plan")
        changed = await memories.update(memory, "ref:plan", reasoning="\\ref:plan")
        with pytest.raises(HandleNotFound):
            await memories.update(memory, "ref:missing")

        assert ("the plan", "ref:plan") == (changed.content, changed.reasoning)
        assert (saved.origin, saved.trust) == (changed.origin, changed.trust)
        assert changed == await memories.get(memory)


async def test_results_with_mappings_are_hashable(tmp_path):
    async with Session.open(tmp_path, embedder=SMALL) as session:
        memory = await session.memories.save("tea is at four")
        hits = await session.memories.search("tea")
        explanation = await session.memories.explain("tea", memory)
        recall = await session.recall("tea is at four")
        values = [*hits, explanation, recall, session.refs.put("x", "text"), session.refs.add("text")]

        assert values
        assert len(values) == len({*values})
        assert {*hits} == {*map(attrs.evolve, hits)}
