"""Payloads with embedded entities: complete entities are not references, but incomplete entities are."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mama_structs.references.detection import IdDetector
from mama_structs.references.options import ReferenceOptions
from mama_structs.references.schemes import IdScheme
from mama_structs.structs.scheme import STRUCTS_SCHEME
from mama_structs.testing import World
from mama_structs.testing.fakes import FakeSource

WORLD = World.generate(seed=1, players=40)
KINDS = [kind for kind in STRUCTS_SCHEME.brief if WORLD.ids(kind)]
DETECTOR = IdDetector([STRUCTS_SCHEME])
PLAYER = {"id": "1-12", "name": "Ada", "guildId": "0-1", "planetId": "2-1", "fleetId": "9-1", "substationId": "4-1"}
TRACKER = IdScheme(name="tracker", pattern=r"([A-Z]+)-[0-9]+", type_of={"USR": "user", "ABC": "issue"})


def entities():
    """
    Return a strategy for pairs of an id and its entity in different formats.

    Formats are bare fields, a node's answer, and JSON:API.
    """

    def written(entity_id, form):
        answer = WORLD.envelope(entity_id)
        record = next(value for value in answer.values() if value.get("id") == entity_id)
        fields = {name: value for name, value in record.items() if name not in ("id", "type")}
        resource = {"type": "things", "id": entity_id, "attributes": {**fields, "type": record.get("type")}}
        return entity_id, {"fields": record, "answer": answer, "resource": resource}[form]

    kinds = st.sampled_from(KINDS)
    ids = kinds.flatmap(lambda kind: st.sampled_from([str(one) for one in WORLD.ids(kind)]))
    return st.builds(written, ids, st.sampled_from(["fields", "answer", "resource"]))


def places():
    """Return a strategy for lists of functions. Every function wraps its argument in a container."""
    names = st.sampled_from(["a", "owner", "included", "data", "x/y", "entities"])
    wraps = names.map(lambda name: lambda value: {name: value}) | st.just(lambda value: [{"n": 1}, value])
    return st.lists(wraps, max_size=4)


def put(value, wraps):
    for wrap in wraps:
        value = wrap(value)
    return {"summary": value}


@given(
    one=entities(),
    other=entities(),
    wraps=places(),
    options=st.builds(
        ReferenceOptions,
        include_references=st.sampled_from(["primary", "all"]),
        reference_depth=st.integers(1, 2),
        max_references=st.just(1_000),
    ),
)
@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
async def test_complete_entity_is_never_fetched(make_resolver, one, other, wraps, options):
    """Holds wherever other fields reference it, on both levels."""
    source = FakeSource({str(entity): WORLD.envelope(entity) for kind in KINDS for entity in WORLD.ids(kind)})
    (entity_id, entity), (_, beside) = one, other
    payload = {"first": [entity_id], "beside": [beside], "deep": [put(entity, wraps)], "last": {"objectId": entity_id}}

    enriched = await make_resolver(source).enrich(payload, options, kind="query", subject="0-999")

    assert entity_id not in source.requested_ids
    assert entity_id not in enriched["references"]


@given(one=entities(), wraps=places(), data=st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_entity_without_a_brief_field_is_a_reference(one, wraps, data):
    entity_id, entity = one
    kind = STRUCTS_SCHEME.match(entity_id)
    missing = data.draw(st.sampled_from(STRUCTS_SCHEME.brief_fields(kind)))
    record = entity.get("attributes") or next((v for v in entity.values() if isinstance(v, dict) and "id" in v), entity)
    poorer = {name: value for name, value in record.items() if name != missing}
    scan = DETECTOR.scan(put({"id": entity_id, "attributes": poorer} if "attributes" in entity else poorer, wraps))

    assert set() == scan.present_ids
    assert entity_id in [found.id for found in [*scan.matches, *scan.lookalikes]]


@pytest.mark.parametrize(
    "player",
    [
        PLAYER,
        {"id": "1-12", "name": None, "guild_id": "0-1", "planet_id": "", "fleet_id": "9-1", "substation_id": "4-1"},
        {"id": "1-12", "name": "Ada", "guild": {"id": "0-1"}, "planet": None, "fleet": None, "substation": None},
        {
            "type": "players",
            "id": "1-12",
            "attributes": {"name": "Ada", "substationId": ""},
            "relationships": {"guild": {"data": {"type": "guilds", "id": "0-1"}}, "planet": {}, "fleet": {}},
        },
    ],
    ids=["the chain", "the guild API", "nested", "JSON:API"],
)
def test_complete_entity_is_recognised_in_every_spelling(player):
    """Brief fields may be in snake_case, without their id ending, or nested as in JSON:API."""
    assert {"1-12"} == DETECTOR.scan({"objectId": "2-1", "players": [player, {"x": 1}]}).present_ids


@pytest.mark.parametrize(
    ("fields", "whole"),
    [
        ({"name": "Ada", "mail": "a@x", "age": 1}, True),
        ({"attributes": {"name": "Ada", "mail": "a@x", "age": 1}}, True),
        ({"name": "Ada", "mail": "a@x"}, False),
        ({"name": "Ada", "mail": "a@x", "type": "user", "self": "/7", "links": {}, "attributes": {}}, False),
        ({}, False),
    ],
)
def test_entity_without_brief_fields_is_complete_with_three_other_fields(fields, whole):
    """Id, type and links do not count."""
    scan = IdDetector([TRACKER]).scan({"issue": "ABC-1", "assignee": {"id": "USR-7", **fields}, "author": "USR-7"})

    assert (["ABC-1"] if whole else ["ABC-1", "USR-7", "USR-7"]) == [found.id for found in scan.matches]
    assert ({"USR-7"} if whole else set()) == scan.present_ids


def test_payloads_own_entities_are_not_counted_as_present():
    row = {"id": "2-1", "name": "x", "owner": "1-1", "status": "active"}

    assert set() == DETECTOR.scan({"Planet": [row]}, rows=[row], exclude={"2-1"}).present_ids


def test_incomplete_nested_entity_is_reference_of_its_parent_field():
    """For example, `{"owner": {"id": ...}}` is primary, and the hints of "owner" apply."""
    scan = DETECTOR.scan(
        {
            "owner": {"id": "1-11"},
            "guildId": {"data": {"type": "guilds", "id": "0-1"}},
            "fleetId": {"id": "1-1"},
            "land": [{"id": "5-1"}],
            "description": {"id": "1-13"},
        }
    )

    assert [("1-11", "owner", True), ("0-1", "guildId", True), ("5-1", "land", False)] == [
        (found.id, found.field, found.is_primary) for found in scan.matches
    ]
    assert ["1-1"] == [found.id for found in scan.lookalikes]


async def test_json_api_list_gets_relations_except_included_entities(make_resolver):
    rows = [
        {
            "type": "planets",
            "id": f"2-{n}",
            "attributes": {"name": "x", "status": "active"},
            "relationships": {"owner": {"data": {"type": "players", "id": f"1-{10 + n}"}}},
        }
        for n in (1, 2)
    ]
    included = [{"type": "players", "id": "1-12", "attributes": {k: v for k, v in PLAYER.items() if k != "id"}}]
    source = FakeSource({"1-11": {"id": "1-11", "name": "Grace"}})

    enriched = await make_resolver(source).enrich({"data": rows, "included": included, "links": {"self": "/planets"}})

    assert ["1-11"] == source.requested_ids[:1]
    assert "1-12" not in source.requested_ids
    assert "Grace" == enriched["references"]["1-11"]["name"]


def test_scan_counts_look_alikes_unreadable_objects_and_present_entities():
    scan = DETECTOR.scan(
        {"fleetId": "1-1", "broken": type("Odd", (list,), {"__len__": None, "__iter__": None})([1]), "p": [PLAYER]}
    )

    assert (1, 1, {"1-12"}) == (len(scan.lookalikes), scan.unreadable_objects, scan.present_ids)


async def test_meta_reports_present_entities_and_unreadable_objects(make_resolver):
    """Present entities are reported only with other numbers, unreadable objects always."""
    resolver = make_resolver(FakeSource({"0-1": {"id": "0-1"}}))
    broken = type("Odd", (list,), {"__len__": None, "__iter__": None})([1])
    quiet = await resolver.enrich({"guildId": "0-1", "all": [[PLAYER]]}, ReferenceOptions(include_references="primary"))
    loud = await resolver.enrich({"guildId": "0-1", "all": [[PLAYER]]}, ReferenceOptions(metadata=True))
    odd = await resolver.enrich({"guildId": "0-1", "b": [[broken]]})

    assert ["0-1"] == list(quiet["references"])[:1]
    assert 1 == loud["references_meta"]["present"]
    assert "in part: 1 of" in odd["references_meta"]["searched"]
