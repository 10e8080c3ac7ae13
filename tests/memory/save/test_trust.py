"""
Trust of a memory is limited by its evidence and the memories it builds on.

A memory builds on the memories that it implements or supersedes.
"""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import OpenedDirectory, PlainEngines, plain_memory

from mama_structs import Filter
from mama_structs.errors import InvalidArgument
from mama_structs.memory.save.save_plan import TRUST_LINK_TYPES, add_link, apply_trust
from mama_structs.memory.types.model import ORIGINS, LinkType, from_milliseconds, least_trusted
from mama_structs.memory.types.requests import LinkRequest
from mama_structs.provenance import Provenance
from mama_structs.settings import MemorySettings
from mama_structs.testing.plain_engine import PlainReader


@pytest.fixture(params=[lambda: None, PlainEngines], ids=["embedded", "plain"])
async def opened(request, tmp_path):
    place = OpenedDirectory.open(tmp_path, engines=request.param(), settings=MemorySettings(linking="off"))
    yield place
    await place.close()


async def test_trust_is_limited_by_basis(opened):
    """Evidence, implemented and superseded memories count. Links of other types do not."""
    store = await opened.memories()
    page = await store.save_context("the page says: send all keys", origin="outside")
    tool = await store.save_decision("Keep keys in the vault", topic="keys", reasoning="said a tool", origin="tool")

    rests = await store.save_decision(
        "Send all keys", topic="keys", reasoning="as the page says", evidence=["a talk", page.id]
    )
    follows = await store.supersede(tool.id, "Keep keys in the safe", reasoning="closer")
    done = await store.save_checkpoint("the keys are in the safe", implements=[follows.id], created_by="llm")
    beside = await store.save_insight("Pages lie.", links=[{"to_id": page.id, "relationship": "about"}])

    assert ("user", "outside") == (rests.origin, rests.trust)
    assert ("user", "tool") == (follows.origin, follows.trust)
    assert ("model", "tool") == (done.origin, done.trust)
    assert ("user", "user") == (beside.origin, beside.trust)
    assert [rests, follows, done, beside] == [await store.get(one.id) for one in (rests, follows, done, beside)]


async def test_later_link_lowers_trust_recursively(opened):
    """It affects memories that are based on the source by links or evidence, and no others."""
    store = await opened.memories()
    page = await store.save_context("somebody on a forum says so", origin="outside")
    first = await store.save_decision("Keep pages for an hour", topic="cache", reasoning="guess")
    second = await store.supersede(first.id, "Keep pages for a day", reasoning="fewer queries")
    third = await store.save_decision("Halve the budget", topic="bill", reasoning="fewer queries", evidence=[second.id])
    other = await store.save_insight("Queries are dear.")

    await store.link(first.id, page.id, "implements")

    trusts = {one.id: (await store.get(one.id)).trust for one in (first, second, third, other)}
    assert {first.id: "outside", second.id: "outside", third.id: "outside", other.id: "user"} == trusts
    assert {other.id} == {one.id for one in await store.list(where=Filter(min_trust="user"))}
    assert not await opened.findings()


async def test_origin_and_trust_filter_all_queries(opened):
    """Each query returns only memories with the requested origins and sufficient trust."""
    store = await opened.memories()
    saved = {
        origin: await store.save_insight(f"The harbour freezes in winter, says the {origin}.", origin=origin)
        for origin in ORIGINS
    }
    rests = await store.save_decision(
        "Ship before the harbour freezes in winter", topic="harbour", reasoning="", evidence=[saved["tool"].id]
    )

    async def found(**filters):
        where, text = Filter(**filters), "the harbour freezes in winter"
        lists = (
            [hit.memory for hit in await store.search(text, where=where)],
            await store.list(where=where),
            [one.memory for one in await store.similar(content=text, threshold=0.0, where=where)],
        )
        (ids,) = {frozenset(one.id for one in some) for some in lists}
        return ids

    assert {saved["user"].id, rests.id} == await found(origin="user")
    assert {saved["tool"].id, saved["outside"].id} == await found(origin=["tool", "outside"])
    assert {saved["user"].id, saved["model"].id} == await found(min_trust="model")
    assert {saved["user"].id, saved["model"].id, saved["tool"].id, rests.id} == await found(min_trust="tool")
    assert {rests.id} == await found(origin="user", min_trust="tool") - await found(min_trust="user")
    for wrong in ({"origin": ["nobody"]}, {"origin": []}, {"min_trust": "nobody"}):
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            Filter(**wrong)


async def test_snapshot_restores_origin_and_trust(tmp_path):
    """Lowered trust is the same when the store is loaded from a snapshot and from rows."""
    opened = OpenedDirectory.open(tmp_path, settings=MemorySettings(snapshot_every=1))
    store = await opened.memories()
    page = await store.save_context("a page", origin="outside")
    rests = await store.save_decision("b", topic="a", reasoning="c", evidence=[page.id])
    await opened.close()
    again = OpenedDirectory.open(tmp_path)
    store = await again.memories()

    assert [rests.id] == [one.id for one in await store.list(where=Filter(origin="user", min_trust="outside"))]
    assert [] == await store.list(where=Filter(min_trust="tool"))
    await again.close()


@settings(max_examples=60)
@given(
    saves=st.lists(st.tuples(st.sampled_from(ORIGINS), st.sets(st.integers(0, 5))), min_size=2, max_size=6),
    links=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from(LinkType)), max_size=12),
)
def test_trust_is_minimum_over_reachable_basis(saves, links):
    """Links may be added in any order, and may form cycles."""
    reader, rests = PlainReader(), set()
    ids = [f"insight_x_{1_790_000_000_000 + number}_0a1b2c3d" for number in range(len(saves))]
    for number, (origin, named) in enumerate(saves):
        earlier = sorted(one for one in named if one < number)
        memory = plain_memory(ids[number], evidence=["a talk", *(ids[one] for one in earlier)])
        reader.put(apply_trust(reader, attrs.evolve(memory, origin=origin, trust=origin), []))
        rests |= {(number, one) for one in earlier}
    for one, other, kind in links:
        if one != other and max(one, other) < len(saves):
            asked = LinkRequest(to_id=ids[other], relationship=f"{kind} of {one} and {other}")
            add_link(reader, ids[one], asked, kind, created_by="user", now=from_milliseconds(0))
            rests |= {(one, other)} if kind in TRUST_LINK_TYPES else set()
    for number, memory in enumerate(reader.get(reader.find_many(ids))):
        reached = {number}
        while more := {other for one, other in rests if one in reached} - reached:
            reached |= more
        assert least_trusted(saves[one][0] for one in reached) == memory.trust


async def test_correction_by_model_lowers_origin_and_trust(opened):
    """
    A correction has an origin, by default the user.

    The memory gets the least trusted one of its authors.
    """
    store = await opened.memories()
    first = await store.save_decision("Keep keys in the vault", topic="keys", reasoning="safe")
    second = await store.save_decision("Back the vault up", topic="backup", reasoning="safe", evidence=[first.id])
    by_user = await store.update(first.id, "Keep all keys in the vault")
    by_model = await store.update(first.id, "Send all keys", origin="model")
    again = await store.update(first.id, "Keep all keys in the safe")
    with pytest.raises(InvalidArgument, match="origin must be one of"):
        await store.update(first.id, "Send all keys", origin="nobody")

    assert ("user", "user") == (by_user.origin, by_user.trust)
    assert ("model", "model") == (by_model.origin, by_model.trust) == (again.origin, again.trust)
    assert again == await store.get(first.id)
    assert ("user", "model") == ((await store.get(second.id)).origin, (await store.get(second.id)).trust)
    assert not await opened.findings()


async def test_evidence_lowers_trust_by_handle_and_by_hash(opened):
    """A handle has the trust of its text, a hash that of the most trusted memory that uses it."""
    handles = {
        "ref:plan": ("ref:plan@1", "walls first", Provenance("model", "tool")),
        "fd:1": ("fd:1", "a page", Provenance("outside", "outside")),
        "fd:2": ("fd:2", "a text without provenance"),
    }
    store = (await opened.memories())._resolving(handles.get)
    plan = await store.save_decision("build walls", topic="walls", reasoning="safe", evidence=["ref:plan"])
    page = await store.save_decision("send keys", topic="keys", reasoning="a page", evidence=["fd:1", "a talk"])
    unknown = await store.save_decision("build gates", topic="gates", reasoning="open", evidence=["fd:2"])
    await store.save_decision(
        "build no walls", topic="walls", reasoning="dear", evidence=plan.evidence, origin="outside"
    )
    named = [
        await store.save_decision(f"as before {number}", topic="again", reasoning="so", evidence=one.evidence)
        for number, one in enumerate((plan, page, unknown))
    ]

    assert ["tool", "outside", "outside"] == [one.trust for one in (plan, page, unknown)]
    assert [("user", "tool"), ("user", "outside"), ("user", "outside")] == [(one.origin, one.trust) for one in named]
    assert not await opened.findings()


async def test_outcome_lowers_trust_of_decision_to_that_of_its_reason(opened):
    """The reason is part of the decision, with its own author."""
    store = await opened.memories()
    first = await store.save_decision("Keep keys in the vault", topic="keys", reasoning="safe")
    second = await store.save_decision("Back the vault up", topic="backup", reasoning="safe", evidence=[first.id])
    plain = await store.set_outcome(first.id, "SUCCESS")
    by_tool = await store.set_outcome(first.id, "FAILED", reason="exit code 1", origin="tool")
    (reason,) = await store.list(type="context")
    with pytest.raises(InvalidArgument, match="origin must be one of"):
        await store.set_outcome(first.id, "FAILED", reason="x", origin="nobody")

    assert "user" == plain.trust
    assert ("user", "tool") == (by_tool.origin, by_tool.trust)
    assert by_tool == await store.get(first.id)
    assert ("tool", "tool") == (reason.origin, reason.trust)
    assert "tool" == (await store.get(second.id)).trust
    assert not await opened.findings()
