"""Reference options that only Python callers can set (fields, expand), and the metadata about omitted references."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import IdScheme, ReferenceOptions, References, Resolver, Session, Source, with_references
from mama_structs.errors import InvalidArgument, UnknownTool
from mama_structs.structs import STRUCTS_SCHEME
from mama_structs.testing import FakeNode
from mama_structs.testing.fakes import FakeClock, FakeSource

JIRA = IdScheme(name="jira", pattern="[A-Z]+-[0-9]+", type_of=str)
PLAYER = {"Player": {"id": "1-11", "guildId": "0-1", "planetId": "2-1", "fleetId": "9-11", "name": "Ada"}}
ENTITIES = {
    "0-1": {"id": "0-1", "name": "Reef", "owner": "1-12", "primaryReactorId": "3-1", "endpoint": "x" * 50},
    "1-11": {"id": "1-11", "name": "Ada", "guildId": "0-1"},
    "1-12": {"id": "1-12", "name": "Grace", "guildId": "0-1"},
    "2-1": {"id": "2-1", "owner": "1-11", "maxOre": "5", "status": "active", "space": ["5-1", ""]},
    "3-1": {"id": "3-1", "guildId": "0-1", "owner": "1-12"},
    "5-1": {"id": "5-1", "owner": "1-11"},
    "9-11": {"id": "9-11", "owner": "1-11", "status": "onStation", "locationId": "2-1"},
}


@pytest.fixture
def resolver():
    return Resolver([FakeSource(ENTITIES)])


def reference_options(**more):
    """Return a strategy for reference options as keyword arguments."""
    return st.fixed_dictionaries(
        {},
        optional={
            "include_references": st.sampled_from([True, "primary", "all"]),
            "reference_depth": st.integers(1, 2),
            "reference_types": st.none() | st.lists(st.sampled_from(["guild", "player", "reactor", "infusion"])),
            "max_references": st.integers(0, 6),
            "metadata": st.booleans(),
            **more,
        },
    )


async def asked(resolver, payload=PLAYER, **options):
    return await resolver.enrich(payload, ReferenceOptions(**options))


class TestFields:
    async def test_enrich_with_named_fields_filters_only_the_named_types(self, resolver):
        section = (await asked(resolver, fields={"planet": ["status", "owner"], "guild": ()}))["references"]

        assert {"reference_type": "planet", "id": "2-1", "owner": "1-11", "status": "active"} == section["2-1"]
        assert {"reference_type": "guild", "id": "0-1"} == section["0-1"]
        assert {*ENTITIES["9-11"], "reference_type"} == section["9-11"].keys()

    async def test_enrich_with_brief_fields_returns_scheme_brief_fields(self, resolver):
        section = (await asked(resolver, fields="brief"))["references"]

        for entry in section.values():
            brief = STRUCTS_SCHEME.brief_fields(entry["reference_type"])
            assert brief
            assert entry.keys() <= {"reference_type", "id", *brief}

    async def test_enrich_with_brief_fields_returns_all_fields_when_type_has_no_brief(self):
        scheme = IdScheme(name="keys", pattern="([A-Z]+)-[0-9]+", type_of={"OPS": "issue"})

        async def fetch(key):
            return {"title": key, "state": "open"}

        result = await asked(Resolver([Source(scheme, fetch=fetch)]), {"blocks": "OPS-1"}, fields="brief")

        assert {"reference_type", "id", "title", "state"} == result["references"]["OPS-1"].keys()

    async def test_enrich_with_fields_keeps_error_of_failed_reference(self, resolver):
        section = (await asked(resolver, {"owner": "1-99"}, fields={"player": ["name"]}))["references"]

        assert "Entity not found" == section["1-99"]["error"]

    async def test_referenced_from_omits_pointers_into_hidden_fields(self, resolver):
        result = await asked(resolver, fields={"guild": ["name"]}, reference_depth=2, metadata=True)

        assert [] == result["references"]["3-1"]["referenced_from"]
        assert "0-1" == result["references"]["3-1"]["referenced_in"]
        assert "/references/9-11/owner" in result["references"]["1-11"]["referenced_from"]

    @given(
        options=reference_options(),
        fields=st.sampled_from(["brief", {"planet": ("name",)}, {"guild": (), "player": ("nothing",)}]),
    )
    async def test_fields_option_does_not_change_referenced_ids(self, options, fields):
        whole, short = [
            await asked(Resolver([FakeSource(ENTITIES)], clock=FakeClock().now), **options, fields=chosen)
            for chosen in ("all", fields)
        ]

        assert list(whole.get("references", ())) == list(short.get("references", ()))
        assert whole.get("references_meta") == short.get("references_meta")

    @given(options=reference_options(max_bytes=st.integers(0, 900)))
    async def test_fields_all_equals_default(self, options):
        one, other = [
            await asked(Resolver([FakeSource(ENTITIES)], clock=FakeClock().now), **options, **more)
            for more in ({}, {"fields": "all"})
        ]

        assert json.dumps(one) == json.dumps(other)

    async def test_brief_fields_reduce_depth_two_section_of_player_to_a_quarter(self):
        """The section shrinks from 8,275 to at most 2,000 bytes, with all thirteen references."""
        async with FakeNode.world(seed=1, players=120) as node, Session.open(structs=node.url) as session:
            answer = await session.call("structs_query_player", {"player_id": "1-11"})
            sections = {
                fields: (await session.resolver.enrich(answer, ReferenceOptions(reference_depth=2, fields=fields)))[
                    "references"
                ]
                for fields in ("all", "brief")
            }

        sizes = {fields: len(json.dumps(section, separators=(",", ":"))) for fields, section in sections.items()}
        assert list(sections["all"]) == list(sections["brief"])
        assert 8_000 < sizes["all"]
        assert sizes["brief"] <= 2_000


class TestExpand:
    @pytest.mark.parametrize(
        ("paths", "found"),
        [
            (["guild"], ["0-1"]),
            (["guildId"], ["0-1"]),
            (["guild.owner", "fleet"], ["0-1", "9-11", "1-12"]),
            (["guild.player"], ["0-1", "1-12"]),
            (["fleet.location", "planet.struct"], ["2-1", "9-11", "5-1"]),
            (["owner"], []),
            (["guild.guild"], ["0-1"]),
        ],
    )
    async def test_expand_selects_references_by_path(self, resolver, paths, found):
        """Steps of a path are names of fields, relations or types."""
        assert found == list((await asked(resolver, expand=paths))["references"])

    async def test_enrich_with_expand_counts_ids_without_path_as_filtered(self, resolver):
        meta = (await asked(resolver, expand=["guild.owner"]))["references_meta"]

        assert {"path": 3} == meta["filtered"]
        assert (2, 2, 0, 0) == tuple(meta[name] for name in ("found", "resolved", "failed", "omitted"))

    async def test_enrich_of_list_with_expand_includes_secondary_fields(self, resolver):
        planets = {"Planet": [{"id": "2-1", "owner": "1-11", "space": ["5-1"]}]}

        assert ["5-1"] == list((await asked(resolver, planets, expand=["struct"]))["references"])

    async def test_enrich_with_expand_applies_max_references(self, resolver):
        result = await asked(resolver, expand=["guild", "planet", "fleet"], max_references=1)

        assert ["0-1"] == list(result["references"])
        assert ["2-1", "9-11"] == result["references_meta"]["omitted_ids"]

    async def test_resolve_with_expand_follows_paths_from_requested_ids(self, resolver):
        found = await resolver.resolve(["0-1", "2-1"], ReferenceOptions(expand=["guild.reactor"]))

        assert ["0-1", "2-1", "3-1"] == list(found)

    def test_detect_with_expand_returns_ids_on_paths(self, resolver):
        found = resolver.detect(PLAYER["Player"], ReferenceOptions(expand=["fleet", "guild.owner"]), subject="1-11")

        assert ["0-1", "9-11"] == [one.id for one in found]

    async def test_call_with_types_or_depth_replaces_expand_of_tool(self, resolver):
        @with_references(resolver=resolver, expand=["fleet"])
        async def look() -> dict:
            return PLAYER

        assert ["9-11"] == list((await look(include_references=True))["references"])
        assert ["0-1"] == list((await look(include_references=True, reference_types=["guild"]))["references"])
        assert "3-1" in (await look(include_references=True, reference_depth=2))["references"]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"expand": "guild"}, "expand must be a list of paths"),
            ({"expand": ["a.b.c"]}, "paths of one or two names"),
            ({"expand": ["a."]}, "paths of one or two names"),
            ({"expand": [""]}, "paths of one or two names"),
            ({"expand": [3]}, "paths of one or two names"),
            ({"expand": ["a"], "reference_types": ["guild"]}, "expand says which references"),
            ({"expand": ["a"], "reference_depth": 2}, "expand says which references"),
            ({"fields": "short"}, 'fields must be "brief", "all" or'),
            ({"fields": ["name"]}, 'fields must be "brief", "all" or'),
            ({"fields": {"planet": "name"}}, "fields must be field names"),
        ],
    )
    def test_reference_options_reject_invalid_fields_and_paths(self, options, message):
        with pytest.raises(InvalidArgument, match=message):
            ReferenceOptions(**options)


class TestSilence:
    async def test_meta_counts_filtered_ids_by_reason_even_without_references(self, resolver):
        by_type = await asked(resolver, reference_types=["reactor"])
        planets = {"Planet": [{"id": "2-7", "space": ["5-1", "5-2"]}]}

        assert ({}, {"types": 3}) == (by_type["references"], by_type["references_meta"]["filtered"])
        assert {"primary": 2} == (await asked(resolver, planets))["references_meta"]["filtered"]
        assert {"hints": 1} == (await asked(resolver, {"guildId": "2-1"}))["references_meta"]["filtered"]
        assert {"types": 3} == References.from_result(by_type).filtered

    @given(options=reference_options(max_bytes=st.integers(0, 900)))
    async def test_meta_counts_are_consistent(self, options):
        result = await asked(Resolver([FakeSource(ENTITIES)]), **options)
        meta = result.get("references_meta")
        if meta:
            assert meta["found"] == meta["resolved"] + meta["failed"] + meta["omitted"]
            assert meta["omitted"] == sum(meta.get("omitted_by", {}).values()) == len(meta.get("omitted_ids", ()))
            assert meta["failed"] == sum(meta.get("failed_by", {}).values())
            named = {"0-1", "2-1", "9-11", "1-12", "3-1", "1-11", "5-1"}
            assert meta["found"] + sum(meta.get("filtered", {}).values()) <= len(named)

    async def test_meta_notes_types_without_ids(self, resolver):
        meta = (await asked(resolver, reference_types=["infusion", "address"]))["references_meta"]

        assert ["infusion and address found nothing: no entity has an id of such a type"] == meta["notes"]

    @pytest.mark.parametrize(
        "options",
        [{"reference_types": ["infusion"]}, {"expand": ("infusion",)}, {"reference_types": ["infusion", "guild"]}],
    )
    async def test_list_has_failed_references_for_requested_types_without_entities(self, resolver, options):
        payload = {"a": "7-3", "rows": [{"id": "7-9", "owner": "1-1"}]}
        answer = await asked(resolver, payload, **options)

        assert {"7-3": "Entity not found"} == References.from_result(answer).failed
        assert "notes" not in answer.get("references_meta", {})
        assert ["7-3"] == [match.id for match in resolver.detect(payload, ReferenceOptions(**options))]

    async def test_meta_lists_more_than_twenty_omitted_ids_within_max_bytes(self):
        payload = {"rows": [f"1-{number}" for number in range(1, 101)]}
        few, many = [
            (await asked(Resolver([FakeSource({})]), payload, max_references=0, max_bytes=room))["references_meta"]
            for room in (0, 400)
        ]

        assert (100, 100) == (few["omitted"], many["omitted"])
        assert 20 == len(few["omitted_ids"]) < len(many["omitted_ids"])
        assert len(json.dumps(many["omitted_ids"], separators=(",", ":"))) <= 400
        assert "100 omitted" in repr(References.from_result({"references": {}, "references_meta": few}))

    @pytest.mark.parametrize("sources", [[], [Source(JIRA, fetch=lambda key: {"id": key})]])
    async def test_enrich_notes_ids_without_source_and_logs_once(self, sources, caplog):
        """
        Covers sessions without sources and with a source for other ids.

        The payload's own id needs no source.
        """
        async with Session.open(sources=sources) as session:

            @session.with_references
            async def look(of: dict) -> dict:
                return of

            told = [await look(PLAYER, include_references=True) for _ in range(2)]
            own = await look({"id": "1-11"}, include_references=True)

        assert ["no source for ids such as 0-1" in answer["references_meta"]["notes"][0] for answer in told] == [
            True
        ] * 2
        assert "references_meta" not in own
        assert 1 == caplog.text.count("structs= or sources=")

    async def test_enrich_notes_missing_sources_once_when_payload_has_no_known_ids(self, caplog):
        async with Session.open() as session:
            first, second = [await session.resolver.enrich({"key": "ABC-1"}) for _ in range(2)]

        assert "no source of entities" in first["references_meta"]["notes"][0]
        assert "references_meta" not in second
        assert 1 == caplog.text.count("structs= or sources=")

    async def test_enrich_has_no_notes_when_session_has_sources_and_payload_has_no_ids(self):
        async with Session.open(sources=[FakeSource({})]) as session:
            assert {"a": 1, "references": {}} == await session.resolver.enrich({"a": 1})

    async def test_unknown_chain_tool_error_hints_at_structs_option(self):
        async with Session.open() as session:
            with pytest.raises(UnknownTool) as caught:
                await session.call("structs_query_player", {"player_id": "1-1"})

        assert "structs=" in caught.value.hint


@pytest.mark.parametrize("types", [["infusion", "address"], ["infusion", "address", "planet"]])
async def test_requested_types_without_entities_are_failed_references(types):
    """Ids with the codes 7 and 8 are failed references if the caller names their types, and are never fetched."""
    source = FakeSource(ENTITIES)
    resolver = Resolver([source])
    payload = {"infusedBy": "7-1", "addresses": ["8-2"]}
    asked = await resolver.enrich(payload, ReferenceOptions(reference_types=types))
    default = await resolver.enrich(payload, ReferenceOptions())

    failed = {"status": "failed", "error": "Entity not found"}
    assert {
        "7-1": {"reference_type": "infusion", "id": "7-1", **failed},
        "8-2": {"reference_type": "address", "id": "8-2", **failed},
    } == asked["references"]
    assert "references_meta" not in asked
    assert {} == default["references"]
    assert ["7-1", "8-2"] == [one.id for one in resolver.detect(payload, ReferenceOptions(reference_types=types))]
    assert [] == source.requested_ids


async def test_brief_fields_omit_empty_values_and_max_bytes_counts_this_form(resolver):
    """Zero, null and empty values are left out for direct callers, too. False is a value."""
    fields = {"id": "2-1", "owner": "1-11", "name": "", "status": False, "maxOre": "0"}
    resolver = Resolver([FakeSource({"2-1": fields, "0-1": {"id": "0-1", "name": "Reef", "owner": ""}})])
    payload = {"planetId": "2-1", "guildId": "0-1"}
    brief = await resolver.enrich(payload, ReferenceOptions(fields="brief"))
    size = len(json.dumps(brief["references"], separators=(",", ":")))
    fitting, smaller = [
        await resolver.enrich(payload, ReferenceOptions(fields="brief", max_bytes=most)) for most in (size, size - 1)
    ]
    named = await resolver.enrich(payload, ReferenceOptions(fields={"planet": ("name", "owner")}))

    assert {"reference_type": "planet", "id": "2-1", "owner": "1-11", "status": False} == brief["references"]["2-1"]
    assert {"reference_type": "guild", "id": "0-1", "name": "Reef"} == brief["references"]["0-1"]
    assert (2, 1) == (len(fitting["references"]), len(smaller["references"]))
    assert "" == named["references"]["2-1"]["name"]
