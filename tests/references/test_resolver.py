from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import attrs
import pydantic
import pytest

from mama_structs.errors import EntityNotFound, InvalidArgument, MalformedResponse, SessionClosed
from mama_structs.references.options import ReferenceOptions
from mama_structs.references.resolver import Resolver
from mama_structs.references.schemes import IdScheme, Source
from mama_structs.references.section import References
from mama_structs.structs.ids import EntityId
from mama_structs.testing.fakes import FakeClock, FakeSource

pytestmark = pytest.mark.usefixtures("virtual_time")

PLAN = Path(__file__).parent.parent / "data" / "structs" / "plan"
PLAYER = {"Player": {"id": "1-11", "guildId": "0-1", "planetId": "2-1", "fleetId": "9-11"}}


def dumps(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


async def test_enrich_reproduces_example_of_specification(make_resolver):
    after = json.loads((PLAN / "player_1-11_after.json").read_text())
    entities = {
        key: {name: value for name, value in entry.items() if name != "reference_type"}
        for key, entry in after["references"].items()
    }
    payload = {key: value for key, value in after.items() if key != "references"}

    enriched = await make_resolver(FakeSource(entities)).enrich(payload)

    assert dumps(after) == dumps(enriched)


async def test_enrich_adds_references_and_keeps_other_fields(resolver):
    before = json.loads((PLAN / "player_1-11_before.json").read_text())

    enriched = await resolver.enrich(before)

    assert ["0-1", "2-1", "9-11", "4-3"] == list(enriched["references"])
    assert before == {key: value for key, value in enriched.items() if key != "references"}
    assert "references" not in before


async def test_status_field_of_entity_is_kept(resolver):
    enriched = await resolver.enrich(PLAYER)

    assert "active" == enriched["references"]["2-1"]["status"]
    assert "onStation" == enriched["references"]["9-11"]["status"]
    assert "status" not in enriched["references"]["0-1"]


async def test_failed_reference_has_actual_error(make_resolver):
    """Only a not-found has the message "Entity not found"."""

    async def number(entity_id):
        return 7

    source = FakeSource(
        behaviours={"2-1": RuntimeError("disk on fire"), "9-11": number},
    )

    enriched = await make_resolver(source).enrich(PLAYER)

    assert {
        "reference_type": "guild",
        "id": "0-1",
        "status": "failed",
        "error": "Entity not found",
    } == enriched["references"]["0-1"]
    assert "RuntimeError: disk on fire" == enriched["references"]["2-1"]["error"]
    assert "$: the source answered int instead of a mapping" == enriched["references"]["9-11"]["error"]


async def test_on_error_omit_removes_and_counts_failures(make_resolver):
    resolver = make_resolver(FakeSource({"0-1": {"id": "0-1"}}))

    enriched = await resolver.enrich(PLAYER, ReferenceOptions(on_error="omit"))

    assert ["0-1"] == list(enriched["references"])
    assert {"found": 3, "resolved": 1, "failed": 2, "omitted": 0, "failed_by": {"not_found": 2}} == enriched[
        "references_meta"
    ]


async def test_enrich_without_ids_adds_empty_section(resolver):
    assert {"a": 1, "references": {}} == await resolver.enrich({"a": 1})


@pytest.mark.parametrize(
    "options",
    [ReferenceOptions(include_references=False), ReferenceOptions(reference_depth=0)],
)
async def test_enrich_returns_payload_itself_when_no_references_are_requested(resolver, source, options):
    payload = {"guildId": "0-1"}

    assert payload is await resolver.enrich(payload, options)
    assert [] == source.requested_ids


async def test_disabled_resolver_returns_payload_itself(make_resolver, source):
    payload = {"guildId": "0-1"}

    assert payload is await make_resolver(source, enabled=False).enrich(payload)
    assert [] == source.requested_ids


class TestDepth:
    async def test_depth_one_resolves_ids_in_payload(self, resolver):
        enriched = await resolver.enrich(PLAYER)

        assert ["0-1", "2-1", "9-11"] == list(enriched["references"])

    async def test_depth_two_adds_second_level_once(self, resolver, source):
        """The queried player appears once, because ids in fetched entities are not excluded."""
        enriched = await resolver.enrich(PLAYER, ReferenceOptions(reference_depth=2))

        assert ["0-1", "2-1", "9-11", "1-11", "3-1"] == list(enriched["references"])
        assert sorted(set(source.requested_ids)) == sorted(source.requested_ids)

    async def test_depth_two_does_not_follow_third_level(self, resolver, source):
        """Only depth 3 would reach 1-12, which 3-1 references."""
        await resolver.enrich(PLAYER, ReferenceOptions(reference_depth=2))

        assert "1-12" not in source.requested_ids

    async def test_self_referencing_entity_is_included_once(self, make_resolver):
        source = FakeSource({"0-1": {"id": "0-1", "guildId": "0-1", "owner": "1-11"}})

        enriched = await make_resolver(source).enrich({"guildId": "0-1"}, ReferenceOptions(reference_depth=2))

        assert ["0-1", "1-11"] == list(enriched["references"])
        assert ["0-1", "1-11"] == source.requested_ids

    async def test_scope_applies_to_second_level(self, make_resolver):
        source = FakeSource({"2-1": {"id": "2-1", "owner": "1-11", "space": ["5-1", "5-2", "", ""]}})

        enriched = await make_resolver(source).enrich(
            {"planetId": "2-1"}, ReferenceOptions(reference_depth=2, include_references="primary")
        )

        assert ["2-1", "1-11"] == list(enriched["references"])

    async def test_max_references_counts_both_levels(self, resolver, source):
        enriched = await resolver.enrich(PLAYER, ReferenceOptions(reference_depth=2, max_references=4))

        assert ["0-1", "2-1", "9-11", "1-11"] == list(enriched["references"])
        assert ["3-1"] == enriched["references_meta"]["omitted_ids"]
        assert 4 == len(source.requested_ids)


class TestLists:
    def planets(self, count):
        return {
            "Planet": [
                {
                    "id": f"2-{n}",
                    "owner": f"1-{n}",
                    "space": [f"5-{n}1", f"5-{n}2", "", ""],
                    "locationListStart": f"9-{n}",
                }
                for n in range(1, count + 1)
            ],
            "pagination": {"next_key": "Mi0xMDA=", "total": "0"},
        }

    async def test_list_of_hundred_planets_gets_primary_references_within_limits(self, make_resolver):
        source = FakeSource({f"1-{n}": {"id": f"1-{n}"} for n in range(1, 101)})

        enriched = await make_resolver(source).enrich(self.planets(100))

        assert [f"1-{n}" for n in range(1, 51)] == list(enriched["references"])
        assert [f"1-{n}" for n in range(1, 51)] == source.requested_ids
        meta = enriched["references_meta"]
        assert {"max_references": 50} == meta["omitted_by"]
        assert [f"1-{n}" for n in range(51, 101)] == meta["omitted_ids"]
        assert {"primary": 300} == meta["filtered"]

    async def test_own_ids_of_rows_are_never_fetched(self, make_resolver):
        source = FakeSource()

        await make_resolver(source).enrich(
            self.planets(8), ReferenceOptions(include_references="all", max_references=500)
        )

        assert source.requested_ids
        assert not [entity_id for entity_id in source.requested_ids if entity_id.startswith("2-")]

    async def test_per_entity_limit_applies_to_each_row(self, make_resolver):
        source = FakeSource()
        options = ReferenceOptions(include_references="all", max_references_per_entity=2)

        enriched = await make_resolver(source).enrich(self.planets(2), options)

        assert ["1-1", "5-11", "1-2", "5-21"] == list(enriched["references"])
        assert {"max_references_per_entity": 4} == enriched["references_meta"]["omitted_by"]

    async def test_id_omitted_by_one_row_is_selected_by_another(self, make_resolver):
        payload = {"Fleet": [{"id": "9-1", "owner": "1-1", "locationId": "2-5"}, {"id": "9-2", "locationId": "2-5"}]}

        enriched = await make_resolver(FakeSource()).enrich(payload, ReferenceOptions(max_references_per_entity=1))

        assert ["1-1", "2-5"] == list(enriched["references"])
        assert "references_meta" not in enriched

    async def test_enrich_accepts_kind_and_primary(self, make_resolver):
        payload = {"Planet": [{"id": "2-1", "owner": "1-1", "space": ["5-1"]}]}
        resolver = make_resolver(FakeSource())

        as_query = await resolver.enrich(payload, kind="query")
        own_fields = await resolver.enrich(payload, primary={"space"})

        assert ["1-1", "5-1"] == list(as_query["references"])[-2:]
        assert ["5-1"] == list(own_fields["references"])


class TestLimits:
    async def test_max_references_limits_started_queries(self, make_resolver):
        """Regression: for a limit of 50, 51 queries were sent."""
        source = FakeSource({f"5-{n}": {"id": f"5-{n}"} for n in range(1, 200, 2)})
        payload = {"structDefenders": [f"5-{n}" for n in range(1, 101)]}

        enriched = await make_resolver(source).enrich(payload)

        assert 50 == len(source.requested_ids)
        assert 50 == len(enriched["references"])
        assert 25 == enriched["references_meta"]["failed"]
        assert 50 == enriched["references_meta"]["omitted"]

    async def test_reference_types_select_references(self, resolver):
        enriched = await resolver.enrich(PLAYER, ReferenceOptions(reference_types=["fleet", "guild"]))

        assert ["0-1", "9-11"] == list(enriched["references"])

    async def test_unknown_reference_type_is_rejected(self, resolver, source):
        with pytest.raises(InvalidArgument, match="'planets', which is no type"):
            await resolver.enrich(PLAYER, ReferenceOptions(reference_types=["planets"]))
        assert [] == source.requested_ids

    async def test_section_never_exceeds_max_bytes(self, resolver):
        whole = await resolver.enrich(PLAYER)
        sizes = []
        for bound in range(0, len(dumps(whole["references"])) + 2, 7):
            cut = await resolver.enrich(PLAYER, ReferenceOptions(max_bytes=bound))
            sizes.append(len(cut["references"]))

            assert len(dumps(cut["references"])) <= max(bound, 2)
            assert list(whole["references"])[: len(cut["references"])] == list(cut["references"])
            left_out = cut.get("references_meta", {}).get("omitted_ids", [])
            assert list(whole["references"]) == [*cut["references"], *left_out]
        assert sorted(sizes) == sizes
        exact = await resolver.enrich(PLAYER, ReferenceOptions(max_bytes=len(dumps(whole["references"]))))
        assert whole == exact

    async def test_max_bytes_includes_existing_section(self, resolver):
        once = await resolver.enrich({"guildId": "0-1"})
        twice = await resolver.enrich(
            {**once, "planetId": "2-1"}, ReferenceOptions(max_bytes=len(dumps(once["references"])) + 5)
        )

        assert ["0-1"] == list(twice["references"])
        assert ["2-1"] == twice["references_meta"]["omitted_ids"]


class TestMetadata:
    async def test_metadata_has_pointers_and_containing_entity(self, resolver):
        payload = {"Player": {"id": "1-11", "guildId": "0-1"}, "also": [{"guild_id": "0-1"}]}

        enriched = await resolver.enrich(payload, ReferenceOptions(metadata=True))

        entry = enriched["references"]["0-1"]
        assert ["/Player/guildId", "/also/0/guild_id"] == entry["referenced_from"]
        assert "1-11" == entry["referenced_in"]
        assert {"found": 1, "resolved": 1, "failed": 0, "omitted": 0} == enriched["references_meta"]

    async def test_second_level_pointers_lead_into_section(self, resolver):
        enriched = await resolver.enrich(PLAYER, ReferenceOptions(metadata=True, reference_depth=2))

        for entity_id, entry in enriched["references"].items():
            for pointer in entry["referenced_from"]:
                value = enriched
                for part in pointer.split("/")[1:]:
                    value = value[int(part)] if isinstance(value, list) else value[part]
                assert entity_id == value
        assert "0-1" == enriched["references"]["3-1"]["referenced_in"]

    async def test_referenced_in_is_root_without_containing_entity(self, resolver):
        enriched = await resolver.enrich({"guildId": "0-1"}, ReferenceOptions(metadata=True))

        assert "root" == enriched["references"]["0-1"]["referenced_in"]

    async def test_referenced_in_is_the_row_that_contains_the_id(self, resolver):
        payload = {"Fleet": [{"id": "9-1", "owner": "1-11"}, {"id": "9-2", "owner": "1-12"}]}

        enriched = await resolver.enrich(payload, ReferenceOptions(metadata=True))

        assert ["9-1", "9-2"] == [entry["referenced_in"] for entry in enriched["references"].values()]


class TestMerging:
    async def test_enriched_payload_is_not_scanned_inside_references(self, resolver, source):
        once = await resolver.enrich(PLAYER)
        source.requested_ids.clear()

        twice = await resolver.enrich(once)

        assert once == twice
        assert [] == source.requested_ids

    async def test_new_references_are_added_to_existing_section(self, resolver):
        once = await resolver.enrich({"guildId": "0-1"})

        twice = await resolver.enrich({**once, "planetId": "2-1"})

        assert ["0-1", "2-1"] == list(twice["references"])

    async def test_failed_reference_is_retried(self, make_resolver):
        source = FakeSource(behaviours={"0-1": RuntimeError("later")})
        resolver = make_resolver(source)
        once = await resolver.enrich({"guildId": "0-1"})
        source.behaviours.clear()
        source.entities["0-1"] = {"id": "0-1"}

        twice = await resolver.enrich(once)

        assert once["references"]["0-1"]["status"] == "failed"
        assert {"reference_type": "guild", "id": "0-1"} == twice["references"]["0-1"]

    async def test_omitted_ids_of_earlier_meta_are_not_references(self, resolver, source):
        once = await resolver.enrich(PLAYER, ReferenceOptions(max_references=1))
        del once["Player"]

        twice = await resolver.enrich(once)

        assert ["0-1"] == list(twice["references"])
        assert ["0-1"] == source.requested_ids
        assert {"earlier": 2} == twice["references_meta"]["omitted_by"]
        assert ["2-1", "9-11"] == twice["references_meta"]["omitted_ids"]

    async def test_omitted_id_is_retried_when_payload_still_contains_it(self, resolver):
        once = await resolver.enrich(PLAYER, ReferenceOptions(max_references=1))

        twice = await resolver.enrich(once)

        assert ["0-1", "2-1", "9-11"] == list(twice["references"])
        assert "references_meta" not in twice

    async def test_failed_reference_without_id_in_payload_is_kept(self, resolver):
        once = await resolver.enrich({"planetId": "2-99"})

        twice = await resolver.enrich({"references": once["references"]})

        assert once["references"] == twice["references"]

    async def test_depth_two_follows_existing_references(self, resolver, source):
        once = await resolver.enrich(PLAYER)

        twice = await resolver.enrich(once, ReferenceOptions(reference_depth=2, metadata=True))

        assert ["0-1", "2-1", "9-11", "1-11", "3-1"] == list(twice["references"])
        assert ["/references/0-1/primaryReactorId"] == twice["references"]["3-1"]["referenced_from"]

    async def test_payload_with_own_references_meta_is_returned_unchanged(self, resolver, source):
        payload = {"guildId": "0-1", "references_meta": {"pages": 3}}

        assert payload is await resolver.enrich(payload)
        assert [] == source.requested_ids

    @pytest.mark.parametrize("own", [["see 1", "see 2"], {"a": 1}, "x", None, {"0-1": {"id": "0-1"}}])
    async def test_payload_with_own_references_field_is_returned_unchanged(self, resolver, source, own, caplog):
        """Changing the type of an existing field would break readers of the tool's result."""
        payload = {"guildId": "0-1", "references": own}

        assert payload is await resolver.enrich(payload)
        assert [] == source.requested_ids
        assert "of its own" in caplog.text


class TestPayloads:
    async def test_enrich_accepts_attrs_and_pydantic_objects(self, resolver):
        @attrs.frozen
        class Player:
            id: str
            guildId: str  # noqa: N815

        class Model(pydantic.BaseModel):
            guild_id: str

        assert ["0-1"] == list((await resolver.enrich(Player("1-11", "0-1")))["references"])
        assert ["0-1"] == list((await resolver.enrich(Model(guild_id="0-1")))["references"])

    async def test_non_mapping_result_is_returned_unchanged_with_one_warning(self, resolver, caplog):
        results = [["0-1"], "0-1", 7, None]
        for result in results * 2:
            assert result is await resolver.enrich(result)

        warned = [record.args[0] for record in caplog.records if record.levelno == logging.WARNING]
        assert ["list", "str", "int", "NoneType"] == warned

    async def test_enrich_does_not_change_payload(self, resolver):
        text = json.dumps(PLAYER)

        enriched = await resolver.enrich(PLAYER)
        enriched["references"]["2-1"]["owner"] = "changed"

        assert text == json.dumps(PLAYER)
        assert "1-11" == (await resolver.enrich(PLAYER))["references"]["2-1"]["owner"]

    async def test_cached_answers_are_isolated_from_callers_and_source(self, make_resolver):
        source = FakeSource({"2-1": {"id": "2-1", "space": ["5-1", ""]}})
        resolver = make_resolver(source)
        first = await resolver.fetch("2-1")
        first["space"].append("changed")
        source.entities["2-1"]["space"].clear()

        assert {"id": "2-1", "space": ["5-1", ""]} == await resolver.fetch("2-1")


class TestSubject:
    async def test_subject_is_never_a_reference(self, resolver):
        payload = {"activity": [{"playerId": "1-11", "guildId": "0-1"}, {"owner": "1-12"}]}

        enriched = await resolver.enrich(payload, subject="1-11")

        assert ["0-1", "1-12"] == list(enriched["references"])

    async def test_main_entity_is_never_a_reference(self, resolver):
        payload = {"Player": {"id": "1-11"}, "seen": [{"owner": "1-11"}, {"owner": "1-12"}]}

        enriched = await resolver.enrich(payload)

        assert ["1-12"] == list(enriched["references"])


class TestResolve:
    async def test_resolve_returns_ids_in_order_including_invalid_ones(self, resolver):
        references = await resolver.resolve(["2-1", "7-1", "0-1", "8-3", "nonsense", "2-1"])

        assert ["2-1", "7-1", "0-1", "8-3", "nonsense"] == list(references)
        assert {"7-1": "Entity not found", "8-3": "Entity not found"}.items() <= references.failed.items()
        assert "infusion" == references["7-1"]["reference_type"]
        assert "No source answers for ids such as 'nonsense'" == references.failed["nonsense"]
        assert {"2-1"} == references.by_type("planet").keys()

    async def test_resolve_applies_limits_and_types(self, resolver):
        references = await resolver.resolve(
            ["2-1", "0-1", "9-11"], ReferenceOptions(reference_types=["planet", "fleet"], max_references=1)
        )

        assert ["2-1"] == list(references)
        assert ("9-11",) == references.omitted

    async def test_resolve_follows_depth_two(self, resolver):
        references = await resolver.resolve(["3-1"], ReferenceOptions(reference_depth=2))

        assert ["3-1", "0-1", "1-12"] == list(references)

    async def test_resolve_without_references_is_empty(self, resolver):
        assert {} == await resolver.resolve(["2-1"], ReferenceOptions(include_references=False))

    async def test_resolve_rejects_single_text(self, resolver):
        with pytest.raises(InvalidArgument, match="must be a list of ids"):
            await resolver.resolve("2-1")


class TestQuery:
    async def test_query_result_is_cached_for_references(self, resolver, source):
        await resolver.fetch("0-1")
        await resolver.enrich({"guildId": "0-1"})

        assert ["0-1"] == source.requested_ids

    async def test_query_raises_error_of_source(self, make_resolver):
        error = MalformedResponse("odd", path="$.Guild")
        resolver = make_resolver(FakeSource(behaviours={"0-1": error}))

        with pytest.raises(EntityNotFound):
            await resolver.fetch("2-1")
        with pytest.raises(EntityNotFound):
            await resolver.fetch("2-1")
        with pytest.raises(MalformedResponse) as raised:
            await resolver.fetch("0-1")
        assert error is raised.value

    async def test_query_rejects_id_without_source(self, resolver):
        with pytest.raises(InvalidArgument, match="No source answers"):
            await resolver.fetch("ABC-1")


class TestInvalidation:
    async def test_invalidate_by_id_by_type_and_all(self, resolver, source):
        await resolver.resolve(["0-1", "2-1", "9-11"])

        assert 1 == resolver.invalidate("0-1")
        assert 1 == resolver.invalidate("planet")
        assert 1 == resolver.invalidate()
        assert 0 == resolver.invalidate()
        await resolver.resolve(["0-1", "2-1", "9-11"])
        assert 6 == len(source.requested_ids)

    async def test_cached_answer_expires_after_ttl(self, make_resolver, source):
        clock = FakeClock()
        resolver = make_resolver(source, clock=clock.now, cache_ttl=30)
        await resolver.resolve(["0-1"])
        clock.advance(29)
        await resolver.resolve(["0-1"])
        assert ["0-1"] == source.requested_ids
        clock.advance(2)
        await resolver.resolve(["0-1"])

        assert ["0-1", "0-1"] == source.requested_ids

    async def test_cached_answer_expires_with_next_block(self, make_resolver):
        class Answer(dict):
            height = 7

        async def fetch(entity_id):
            asked.append(entity_id)
            return Answer(id=entity_id)

        asked = []
        scheme = IdScheme(name="n", pattern=r"n-\d+", type_of=lambda _: "n")
        resolver = make_resolver(Source(scheme, fetch=fetch), cache_until="block")
        await resolver.fetch("n-1")
        await resolver.fetch("n-2")
        await resolver.fetch("n-1")
        assert ["n-1", "n-2"] == asked
        Answer.height = 8
        await resolver.fetch("n-3")
        await resolver.fetch("n-1")

        assert ["n-1", "n-2", "n-3", "n-1"] == asked


class TestLoad:
    async def test_load_result_is_shared_cached_and_counted(self, resolver):
        async def page(key):
            asked.append(key)
            await asyncio.sleep(0.01)
            return {"key": key, "rows": [1]}

        asked = []
        first, second = await asyncio.gather(*(resolver._load("page 1", page, kind="player") for _ in range(2)))
        first["rows"].append(2)

        assert {"key": "page 1", "rows": [1]} == second == await resolver._load("page 1", page)
        assert ["page 1"] == asked
        assert 1 == resolver.stats.upstream_queries
        assert 1 == resolver.invalidate("player")
        await resolver._load("page 1", page)
        assert 2 == len(asked)

    async def test_load_raises_error_of_fetch(self, resolver):
        async def fails(key):
            raise ZeroDivisionError(key)

        with pytest.raises(ZeroDivisionError, match="page 2"):
            await resolver._load("page 2", fails)


async def test_stats_count_queries_hits_failures_and_savings(make_resolver):
    source = FakeSource({"0-1": {"id": "0-1"}, "2-1": {"id": "2-1"}}, delays=0.01)
    resolver = make_resolver(source)

    await resolver.enrich(PLAYER)
    await resolver.enrich({**PLAYER, "fleetId": "11-11"})

    stats = resolver.stats
    assert 3 == stats.upstream_queries
    assert (3, 3, 0.5) == (stats.cache_hits, stats.cache_misses, stats.hit_rate)
    assert {"not_found": 2} == stats.failures
    assert 1 == stats.look_alikes
    assert (6, 2) == (stats.references, stats.follow_up_calls_saved)
    # Due to the clock's resolution, the measured latency can be slightly below the delay of 10 ms.
    assert 0.009 < stats.latency["p50"] <= stats.latency["p90"] <= stats.latency["p99"]
    assert stats.bytes_added > 0


async def test_closed_resolver_raises_session_closed(source):
    resolver = Resolver([source])
    async with resolver:
        await resolver.fetch("0-1")
    await resolver.close()

    assert source.closed
    assert "closed" in repr(resolver)
    with pytest.raises(SessionClosed):
        await resolver.fetch("0-1")


async def test_references_of_reads_any_result(resolver):
    enriched = await resolver.enrich(PLAYER, ReferenceOptions(max_references=2))

    references = References.from_result(enriched)
    assert enriched["references"] == references
    assert ("9-11",) == references.omitted
    assert "<References: 2 resolved, 1 omitted>" == repr(references)
    assert {} == References.from_result({"references": [1]})
    assert {} == References.from_result(None)


@pytest.mark.parametrize("sources", [[object()], ["http://localhost"], [None]])
def test_resolver_rejects_invalid_source(sources):
    with pytest.raises(InvalidArgument, match="a source must have a scheme"):
        Resolver(sources)


async def test_enrich_rejects_options_of_wrong_type(resolver):
    with pytest.raises(InvalidArgument, match="must be ReferenceOptions"):
        await resolver.enrich({}, {"max_references": 3})


class TestAccounts:
    """The counts in the metadata are consistent with the references."""

    async def test_omitted_failure_is_queried_once(self, make_resolver):
        """Level 2 references the id that failed on level 1."""

        async def fails(entity_id):
            raise RuntimeError("no")

        source = FakeSource({"2-1": {"id": "2-1", "guildId": "0-1"}}, behaviours={"0-1": fails})

        enriched = await make_resolver(source).enrich(
            {"guildId": "0-1", "planetId": "2-1"}, ReferenceOptions(reference_depth=2, on_error="omit")
        )

        assert ["0-1", "2-1"] == source.requested_ids
        assert {"found": 2, "resolved": 1, "failed": 1, "omitted": 0}.items() <= enriched["references_meta"].items()

    async def test_id_omitted_on_both_levels_is_counted_once(self, make_resolver):
        source = FakeSource({"2-1": {"id": "2-1", "owner": "1-1", "guildId": "0-1"}})
        payload = {"planetId": "2-1", "owner": "1-1", "guildId": "0-1"}

        enriched = await make_resolver(source).enrich(payload, ReferenceOptions(reference_depth=2, max_references=1))

        assert {"found": 3, "resolved": 1, "omitted": 2}.items() <= enriched["references_meta"].items()

    @pytest.mark.parametrize("bound", range(100, 1500, 100))
    async def test_max_bytes_applies_with_metadata_and_two_levels(self, resolver, bound):
        options = ReferenceOptions(reference_depth=2, metadata=True, max_bytes=bound)

        enriched = await resolver.enrich(PLAYER, options)

        assert len(dumps(enriched["references"])) <= bound
        meta = enriched["references_meta"]
        assert meta["found"] == meta["resolved"] + meta["failed"] + meta["omitted"]

    async def test_bytes_added_is_zero_without_references(self, resolver):
        await resolver.enrich({})

        assert 0 == resolver.stats.bytes_added

    async def test_unresolvable_ids_cost_no_query(self, resolver, source):
        references = await resolver.resolve(["7-1"])

        assert {"7-1": "Entity not found"} == references.failed
        assert ([], 0) == (source.requested_ids, resolver.stats.upstream_queries)
        with pytest.raises(EntityNotFound):
            await resolver.fetch("8-1")


class TestArguments:
    """Invalid arguments raise an error before any query is sent."""

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda r: r.enrich({}, kind="lits"), "kind must be"),
            (lambda r: r.enrich({}, primary="owner"), "primary must be"),
            (lambda r: r.resolve(None), "ids must be a list"),
        ],
    )
    async def test_invalid_argument_error_names_the_argument(self, resolver, call, message):
        with pytest.raises(InvalidArgument, match=message):
            await call(resolver)

    def test_resolver_rejects_invalid_settings(self):
        with pytest.raises(InvalidArgument, match="settings must be ReferenceSettings"):
            Resolver(settings={})

    def test_resolver_rejects_two_sources_with_one_scheme(self):
        with pytest.raises(InvalidArgument, match="two sources answer for the ids of 'structs'"):
            Resolver([FakeSource(), FakeSource()])

    async def test_subject_may_be_entity_id_object(self, resolver):
        enriched = await resolver.enrich({"rows": [{"owner": "1-11"}]}, subject=EntityId.parse("1-11"))

        assert {} == enriched["references"]


async def test_disabled_resolver_resolves_nothing(make_resolver, source):
    assert {} == await make_resolver(source, enabled=False).resolve(["0-1"])
    assert [] == source.requested_ids


async def test_json_text_over_size_limit_is_reported_as_partly_searched(resolver):
    enriched = await resolver.enrich({"map": "[" + '"5-1",' * 200_000 + '"5-1"]'})

    assert "in part" in enriched["references_meta"]["searched"]


@pytest.mark.once
async def test_answer_with_exponentially_shared_parts_is_a_failure(make_resolver):
    value = ["x"]
    for _ in range(40):
        value = [value, value]

    enriched = await make_resolver(FakeSource({"0-1": {"v": value}})).enrich({"guildId": "0-1"})

    assert "more than" in enriched["references"]["0-1"]["error"]
