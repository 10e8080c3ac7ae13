"""The references section of an answer depends only on the payload, the options and the source's data."""

from __future__ import annotations

import asyncio
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from mama_structs.references.options import ReferenceOptions
from mama_structs.references.resolver import Resolver
from mama_structs.structs.ids import EntityType
from mama_structs.testing.fakes import FakeSource

FIELDS = {"guildId": 0, "owner": 1, "planetId": 2, "reactorId": 3, "substationId": 4, "space": 5, "fleetId": 9}


@st.composite
def graphs(draw):
    """Return a strategy for small sets of entities that refer to each other or to missing entities."""
    ids = [f"{code}-{index}" for code in FIELDS.values() for index in (1, 2)]
    fields = st.dictionaries(st.sampled_from(sorted(FIELDS)), st.integers(1, 3), max_size=3)
    return {
        entity_id: {"id": entity_id, **_fields(draw(fields))}
        for entity_id in draw(st.lists(st.sampled_from(ids), unique=True))
    }


def _fields(chosen):
    return {
        name: [f"5-{index}", ""] if name == "space" else f"{FIELDS[name]}-{index}" for name, index in chosen.items()
    }


payloads = st.lists(st.dictionaries(st.sampled_from(sorted(FIELDS)), st.integers(1, 3), max_size=4), max_size=4).map(
    lambda rows: {"rows": [_fields(row) for row in rows]}
)
options = st.builds(
    ReferenceOptions,
    include_references=st.sampled_from([True, "primary", "all"]),
    reference_depth=st.sampled_from([1, 2]),
    reference_types=st.none() | st.lists(st.sampled_from(list(EntityType)), max_size=4),
    max_references=st.integers(0, 8),
    max_references_per_entity=st.integers(0, 4),
    metadata=st.booleans(),
    on_error=st.sampled_from(["indicate", "omit"]),
    max_bytes=st.none() | st.integers(0, 400),
    deadline=st.just(30.0),
)
delays = st.dictionaries(
    st.sampled_from([f"{code}-{index}" for code in FIELDS.values() for index in (1, 2, 3)]),
    st.sampled_from([0.0, 0.0005, 0.001, 0.002]),
)


def enriched(payload, chosen, world, waits, *, batch=False):
    async def run():
        source = FakeSource(world, delays=waits, batch=batch)
        async with Resolver([source]) as resolver:
            return await resolver.enrich(payload, chosen), source

    return asyncio.run(run())


@given(payload=payloads, chosen=options, world=graphs(), first=delays, second=delays)
@settings(deadline=None)
def test_enrich_result_does_not_depend_on_latency(payload, chosen, world, first, second):
    one, _ = enriched(payload, chosen, world, first)
    other, _ = enriched(payload, chosen, world, second)
    batched, _ = enriched(payload, chosen, world, second, batch=True)

    assert json.dumps(one) == json.dumps(other) == json.dumps(batched)


@given(payload=payloads, chosen=options, world=graphs())
@settings(deadline=None)
def test_enrich_returns_and_queries_only_reachable_ids(payload, chosen, world):
    result, source = enriched(payload, chosen, world, {})
    named = set(_texts(payload))
    second = {text for entity_id in named for text in _texts(world.get(entity_id, {}))}

    reachable = named | second if chosen.reference_depth == 2 else named
    assert reachable >= result["references"].keys()
    assert reachable >= set(source.requested_ids)


@given(payload=payloads, chosen=options, world=graphs())
@settings(deadline=None)
def test_enrich_respects_limits_and_queries_each_id_once(payload, chosen, world):
    result, source = enriched(payload, chosen, world, {})

    assert len(source.requested_ids) <= chosen.max_references
    assert len(set(source.requested_ids)) == len(source.requested_ids)
    assert len(result["references"]) <= chosen.max_references
    if chosen.max_bytes is not None:
        assert len(json.dumps(result["references"], separators=(",", ":"))) <= max(2, chosen.max_bytes)
    if chosen.reference_types is not None:
        assert {entry["reference_type"] for entry in result["references"].values()} <= set(chosen.reference_types)


@given(payload=payloads, world=graphs(), limit=st.integers(0, 6))
@settings(deadline=None)
def test_enrich_lists_every_id_omitted_by_a_limit(payload, world, limit):
    """The result and the listed ids together equal the result without a limit."""
    whole, _ = enriched(payload, ReferenceOptions(reference_depth=1, max_references=10**6), world, {})
    cut, _ = enriched(payload, ReferenceOptions(reference_depth=1, max_references=limit), world, {})
    meta = cut.get("references_meta", {"omitted_ids": []})

    assert list(whole["references"]) == [*cut["references"], *meta.get("omitted_ids", [])]
    if meta.get("omitted_ids"):
        assert meta["found"] == meta["resolved"] + meta["failed"] + meta["omitted"]


def _texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from _texts(member)
    elif isinstance(value, list):
        for member in value:
            yield from _texts(member)
