"""Hostile payloads and sources cause only bounded work and failed entries. The main answer stays intact."""

from __future__ import annotations

import json
import math

import pytest

from mama_structs.references.options import ReferenceOptions
from mama_structs.testing.fakes import FakeSource


def nested(depth, kind):
    value = {"guildId": "0-1"}
    for _ in range(depth):
        value = {"below": value} if kind == "dicts" else {"below": [value]}
    return value


def cyclic():
    a, b = {"guildId": "0-1"}, {"planetId": "2-1"}
    a["b"], b["a"], a["self"], b["list"] = b, a, a, [a, b, [a, b]]
    return a


def shared(levels):
    value = ["2-1"]
    for _ in range(levels):
        value = [value, value]
    return {"guildId": "0-1", "bomb": value}


PAYLOADS = {
    "10,000 dicts deep": nested(10_000, "dicts"),
    "10,000 lists deep": nested(10_000, "lists"),
    "a 10 MB string": {"guildId": "0-1", "text": "1-" * 5_000_000},
    "a 10 MB string in a JSON field": {"guildId": "0-1", "map": "[" * 10_000_000},
    "deep JSON in a JSON field": {"guildId": "0-1", "detail": "[" * 100_000 + "]" * 100_000},
    "many keys": {"guildId": "0-1", **{f"key{n}": n for n in range(200_000)}},
    "a cycle": cyclic(),
    "a bomb of shared lists": shared(40),
    "NaN and infinities": {"guildId": "0-1", "x": math.nan, "y": [math.inf, -math.inf]},
    "keys that are no text": {"guildId": "0-1", 7: "2-1", None: ["2-1"], (1, 2): {"x": "2-1"}},
    "lone surrogates": {"guildId": "0-1", "name": "\ud800", "\udfff": "2-1"},
}


@pytest.mark.parametrize("name", PAYLOADS)
async def test_enrich_of_hostile_payload_does_bounded_work(make_resolver, name):
    payload = PAYLOADS[name]
    source = FakeSource({"0-1": {"id": "0-1", "name": "Orbital"}})
    resolver = make_resolver(source)

    enriched = await resolver.enrich(payload)

    assert len(source.requested_ids) <= 50
    assert "Orbital" == enriched["references"]["0-1"]["name"]
    assert all(enriched[key] is value for key, value in list(payload.items())[:100])


async def test_incomplete_scan_is_reported_in_meta(make_resolver):
    enriched = await make_resolver(FakeSource()).enrich(shared(40))

    assert enriched["references_meta"]["searched"].startswith("in part")


async def test_enrich_limits_and_lists_a_million_ids(make_resolver):
    source = FakeSource({"0-1": {"id": "0-1", "name": "Orbital"}})
    payload = {"guildId": "0-1", "all": [f"5-{n}" for n in range(1, 1_000_001)]}

    enriched = await make_resolver(source).enrich(payload)

    assert len(source.requested_ids) <= 50
    assert "Orbital" == enriched["references"]["0-1"]["name"]
    assert enriched["all"] is payload["all"]
    assert 50 == len(enriched["references"])
    assert 999_951 == len(enriched["references_meta"]["omitted_ids"])


def deep_answer():
    value = {}
    for _ in range(5_000):
        value = {"below": value}
    return value


def cyclic_answer():
    value = {}
    value["self"] = value
    return value


class Refuses(dict):
    def items(self):
        raise RuntimeError("no items")


ANSWERS = {
    "nothing": (None, "Entity not found"),
    "a list": ([1], "list instead of a mapping"),
    "5,000 deep": (deep_answer(), "nested deeper than 100"),
    "itself": (cyclic_answer(), "nested deeper than 100"),
    "a mapping that fails": (Refuses(a=1), "no items"),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_hostile_answer_becomes_failed_entry(make_resolver, name):
    answer, error = ANSWERS[name]
    resolver = make_resolver(FakeSource({"0-1": answer, "2-1": {"id": "2-1"}}))

    enriched = await resolver.enrich({"guildId": "0-1", "planetId": "2-1"})

    assert error in enriched["references"]["0-1"]["error"]
    assert {"reference_type": "planet", "id": "2-1"} == enriched["references"]["2-1"]


async def test_answer_with_unusual_values_is_kept(make_resolver):
    answer = {"id": "0-1", "x": math.nan, "when": ReferenceOptions, 7: (1, {2}), "bytes": b"\xff"}

    enriched = await make_resolver(FakeSource({"0-1": answer})).enrich({"guildId": "0-1"})

    entry = enriched["references"]["0-1"]
    assert math.isnan(entry["x"])
    assert [1, [2]] == entry["7"]
    assert json.dumps(entry, default=str)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("a\n" * 5000), "RuntimeError: a a"),
        (ValueError("https://user:secret@host/x"), "ValueError: https://***@host/x"),
        (KeyError(), "KeyError"),
    ],
)
async def test_source_error_becomes_short_line_without_secrets(make_resolver, error, text):
    resolver = make_resolver(FakeSource(behaviours={"0-1": error}))

    entry = (await resolver.enrich({"guildId": "0-1"}))["references"]["0-1"]

    assert entry["error"].startswith(text)
    assert len(entry["error"]) <= 200
    assert "secret" not in entry["error"]
    assert "\n" not in entry["error"]


async def test_entity_fields_with_reserved_names_are_renamed(make_resolver):
    answer = {"id": 7, "id_": 8, "reference_type": "x", "status": "failed", "error": "mine", "references": {"a": 1}}

    entry = (await make_resolver(FakeSource({"0-1": answer})).enrich({"guildId": "0-1"}))["references"]["0-1"]

    assert {
        "reference_type": "guild",
        "id": "0-1",
        "id__": 7,
        "id_": 8,
        "reference_type_": "x",
        "status": "failed",
        "error": "mine",
        "references": {"a": 1},
    } == entry
