"""An agent calls tools that query a fake node over real sockets."""

from __future__ import annotations

import asyncio
import math

import pytest

from mama_structs import (
    DescriptorSettings,
    References,
    Session,
    Settings,
    StructsClient,
    StructsSource,
    with_references,
)
from mama_structs.errors import EntityNotFound, InvalidArgument, RateLimited, StructsUnreachable
from mama_structs.settings import ReferenceSettings
from mama_structs.structs import structs_tools
from mama_structs.testing import FakeNode, Fault

UNTRUNCATED_SETTINGS = Settings(descriptors=DescriptorSettings(enabled=False))
# A long timeout, so that no query times out on a slow machine.
PATIENT = Settings(references=ReferenceSettings(query_timeout=600.0), descriptors=UNTRUNCATED_SETTINGS.descriptors)
LIMITED = Settings(references=ReferenceSettings(query_timeout=1.0), descriptors=UNTRUNCATED_SETTINGS.descriptors)


@pytest.fixture(autouse=True)
def _a_long_moment(monkeypatch):
    """Disable the staleness of answers: on a slow machine, a test could exceed their normal lifetime."""
    monkeypatch.setattr("mama_structs.references.resolver._FRESH_SECONDS", math.inf)


@pytest.fixture
async def node():
    async with FakeNode.world(seed=1, players=60) as node:
        yield node


@pytest.fixture
async def session(node):
    async with Session.open(structs=node.url, settings=PATIENT) as session:
        yield session


async def player(session, **options):
    return await session.call("structs_query_player", {"player_id": "1-11", **options})


async def test_call_with_references_replaces_five_calls(session, node):
    result = await player(session, include_references=True)

    entity = result["Player"]
    expected = [entity[name] for name in ("guildId", "substationId", "planetId", "fleetId")]
    assert expected == list(result["references"])
    assert 5 == len(node.requests)
    assert {"guild", "substation", "planet", "fleet"} == {e["reference_type"] for e in result["references"].values()}
    planet = result["references"][entity["planetId"]]
    assert "1-11" == planet["owner"]
    assert {"gridAttributes", "planetAttributes"} <= planet.keys()
    assert "Planet" not in planet


async def test_repeated_call_within_ttl_sends_no_query(session, node):
    first = await player(session, include_references=True)
    node.reset_counters()

    assert first == await player(session, include_references=True)
    assert [] == node.requests


async def test_repeated_list_call_sends_no_query(session, node):
    await session.call("structs_list_players", {"pagination_limit": 10, "include_references": True})
    node.reset_counters()

    await session.call("structs_list_players", {"pagination_limit": 10, "include_references": True})
    assert [] == node.requests
    await session.call("structs_list_players", {"pagination_limit": 11})
    assert 1 == len(node.requests)


async def test_depth_two_includes_queried_player_once_from_cache(session, node):
    result = await player(session, include_references=True, reference_depth=2)

    assert "player" == result["references"]["1-11"]["reference_type"]
    assert 1 == node.count("1-11")
    assert len(result["references"]) > 4


async def test_concurrent_calls_query_each_id_once_and_five_at_a_time(node):
    node.latency["*"] = 0.002
    async with Session.open(structs=node.url, settings=UNTRUNCATED_SETTINGS) as session:
        await asyncio.gather(
            *(
                session.call("structs_query_player", {"player_id": f"1-{n % 40 + 1}", "include_references": True})
                for n in range(50)
            )
        )

        assert node.most_in_flight <= 5
        assert {1} == set(node.requests_by_path.values())
        assert len(node.requests) == session.resolver.stats.upstream_queries


@pytest.mark.usefixtures("latency_in_turns")
async def test_list_tools_share_query_slots(node):
    node.latency["*"] = 0.005
    async with Session.open(structs=node.url, settings=UNTRUNCATED_SETTINGS) as session:
        await asyncio.gather(
            *(
                session.call(f"structs_list_{kind}s", {"pagination_limit": 3})
                for kind in ("player", "planet", "fleet") * 4
            ),
            *(session.call("structs_query_player", {"player_id": f"1-{n}"}) for n in range(1, 20)),
        )

        assert 5 == node.most_in_flight


async def test_list_of_a_hundred_planets_stays_within_limits():
    async with (
        FakeNode.world(seed=2, players=120) as node,
        Session.open(structs=node.url, settings=UNTRUNCATED_SETTINGS) as session,
    ):
        result = await session.call("structs_list_planets", {"include_references": True})

        rows = {planet["id"] for planet in result["Planet"]}
        references = References.from_result(result)
        assert 100 == len(rows)
        assert 50 == len(references)
        assert 51 == len(node.requests)
        assert not rows & references.keys()
        assert {"player"} == {entry["reference_type"] for entry in references.values()}
        owners = dict.fromkeys(planet["owner"] for planet in result["Planet"])
        assert list(owners) == [*references, *references.omitted]


async def test_list_pages_are_requested_by_key(session):
    first = await session.call("structs_list_players", {"pagination_limit": 10})
    second = await session.call(
        "structs_list_players", {"pagination_limit": 10, "pagination_key": first["pagination"]["next_key"]}
    )

    ids = [row["id"] for row in first["Player"] + second["Player"]]
    assert 20 == len(set(ids))
    assert sorted(ids) == ids


async def test_ready_made_tools_work_without_session(node):
    async with StructsClient(node.url) as client:
        ready = structs_tools(client)
        result = await ready["structs_query_player"]("1-11", include_references=True)

        assert 20 == len(ready)
        assert 4 == len(result["references"])
        assert {"structs_query_player", "structs_list_players"} <= ready.keys()


async def test_unbound_tool_uses_resolver_of_session(session):
    @with_references
    async def report(player_id: str) -> dict[str, object]:
        """Report a subject."""
        return {"subject": player_id, "planetId": "2-1", "pfp": "5-12"}

    result = await report("1-11", include_references=True)

    assert ["1-11", "2-1"] == list(result["references"])


async def test_wrong_ids_are_rejected_before_any_query(session, node):
    for arguments, message in (
        ({"player_id": "2-1"}, "must be the id of a player, got 2-1, which is a planet"),
        ({"player_id": "../guild/0-1"}, "player_id: an entity id must look like"),
        ({"player_id": "1-0"}, "player_id"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            await session.call("structs_query_player", arguments)

    assert [] == node.requests


async def test_types_without_ids_are_never_fetched(session, node):
    references = await session.resolver.resolve(["7-1", "8-1"])

    assert {"7-1": "Entity not found", "8-1": "Entity not found"} == references.failed
    assert ["infusion", "address"] == [entry["reference_type"] for entry in references.values()]
    assert [] == node.requests


@pytest.mark.parametrize("status", [500, 404, 200])
async def test_not_found_is_detected_by_body_for_any_status(node, status):
    node.not_found_status = status
    async with Session.open(structs=node.url, settings=UNTRUNCATED_SETTINGS) as session:
        enriched = await session.resolver.enrich({"planetId": "2-99999"})

        assert "Entity not found" == enriched["references"]["2-99999"]["error"]
        assert 1 == len(node.requests)
        with pytest.raises(EntityNotFound):
            await session.call("structs_query_planet", {"planet_id": "2-99999"})
        assert 1 == len(node.requests)


FAULTS = {
    "429 for an hour": (Fault.rate_limited(retry_after=3600), "Rate limited: ask again in 3600 s", "rate_limited"),
    "503": (Fault.unavailable(), "503", "api_error"),
    "HTML with 200": (Fault.html(), "$", "malformed"),
    "a redirect": (Fault.redirect("http://127.0.0.1:9/elsewhere"), "30", "api_error"),
    "a dropped connection": (Fault.dropped(), "", "unreachable"),
    "a connection cut in the body": (Fault.cut_off(), "", "unreachable"),
    "a hung answer": (Fault.hung(), "No answer within 1 s", "timeout"),
    "an answer that is too late": (Fault.delayed(2.0), "No answer within 1 s", "timeout"),
    "a gzip bomb": (Fault.gzip_bomb(size=20_000_000), "larger than", "too_large"),
    "an oversized body": (Fault.oversized(), "larger than", "too_large"),
    "truncated JSON": (Fault.truncated(), "$", "malformed"),
    "invalid UTF-8": (Fault.invalid_utf8(), "$", "malformed"),
    "NaN": (Fault.nan(), "$", "malformed"),
    "nesting": (Fault.nested(), "$", "malformed"),
    "another entity": (Fault.wrong_entity("2-2"), "2-2", "malformed"),
    "no object": (Fault.not_an_object(), "$", "malformed"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_faulty_answer_fails_only_one_reference(node, name):
    fault, words, kind = FAULTS[name]
    planet = node.data.envelope("1-11")["Player"]["planetId"]
    node.faults.add(fault, on=planet)
    async with Session.open(structs=node.url, settings=LIMITED if kind == "timeout" else PATIENT) as session:
        result = await player(session, include_references=True)

    assert "1-11" == result["Player"]["id"]
    failed = References.from_result(result).failed
    assert [planet] == list(failed)
    assert words in failed[planet]
    assert {kind: 1} == session.resolver.stats.failures


async def test_hung_reference_times_out_and_releases_its_connection(node, clock):
    planet = node.data.envelope("1-11")["Player"]["planetId"]
    node.faults.add(Fault.hung(), on=planet)
    async with Session.open(structs=node.url, settings=UNTRUNCATED_SETTINGS) as session:

        @session.with_references(deadline=0.3)
        async def look() -> dict[str, object]:
            return node.data.envelope("1-11")

        looking = asyncio.create_task(look(include_references=True))
        while (4, 1) != (len(node.requests), node.in_flight):  # noqa: ASYNC110 - the clock does not advance
            await asyncio.sleep(0)
        for _ in range(100):
            # Give the waiting task time to read the answers before the deadline.
            await asyncio.sleep(0)
        clock(0.3)
        result = await looking
        while node.in_flight:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)

        assert "No answer before the deadline of 0.3 s for all references" == result["references"][planet]["error"]
        assert 3 == len([e for e in result["references"].values() if "error" not in e])
        assert 0 == node.in_flight


async def test_rate_limited_query_is_retried_within_the_deadline(session, node):
    node.faults.add(Fault.rate_limited(retry_after=0), on="0-1", times=2)

    enriched = await session.resolver.enrich({"guildId": "0-1"})

    assert "error" not in enriched["references"]["0-1"]
    assert 3 == node.count("0-1")
    assert (2, 2) == (session.resolver.stats.retries, session.resolver.stats.rate_limited)


async def test_failure_of_tools_own_query_is_a_typed_error(session, node):
    node.faults.add(Fault.rate_limited(retry_after=3600), on="1-11")

    with pytest.raises(RateLimited) as raised:
        await player(session)

    assert 3600 == raised.value.retry_after


async def test_unreachable_node_is_a_typed_error():
    async with FakeNode.world(seed=1, players=12) as node:
        url = node.url
    async with Session.open(structs=url) as session:
        with pytest.raises(StructsUnreachable):
            await player(session)
        enriched = await session.resolver.enrich({"guildId": "0-1"})

    assert "failed" == enriched["references"]["0-1"]["status"]


async def test_cached_answer_is_valid_until_next_block(node):
    settings = Settings(references=ReferenceSettings(cache_until="block"))
    async with Session.open(structs=node.url, settings=settings) as session:
        await player(session, include_references=True)
        await player(session, include_references=True)
        assert 5 == len(node.requests)
        node.advance()
        await session.call("structs_list_guilds", {"pagination_limit": 1})
        await player(session, include_references=True)

    assert 11 == len(node.requests)


async def test_chain_data_with_misleading_values_is_resolved(node):
    """The data contains a pfp that looks like a struct id, the id of a pruned struct, and empty references."""
    async with Session.open(structs=node.url, settings=UNTRUNCATED_SETTINGS) as session:
        seen = set()
        async with StructsClient(node.url) as client:
            async for planet in client.planets(page_size=50):
                seen.add(str(planet.id))
        for entity_id in [*sorted(seen)[:20], *(f"1-{n}" for n in (11, 19, 194, 1940))]:
            answer = await session.resolver.fetch(entity_id)
            enriched = await session.resolver.enrich(answer)
            for key in enriched["references"]:
                assert key != entity_id
                assert "-0" not in key


async def test_source_does_not_close_given_client(node):
    async with StructsClient(node.url) as client:
        async with Session.open(structs=StructsSource(client)) as session:
            await player(session)
        assert client.is_open


async def test_source_with_fetch_only_has_no_client():
    class Only:
        async def fetch(self, entity_id):
            return {}

    with pytest.raises(InvalidArgument, match="this source only fetches"):
        await StructsSource(Only())._ready_client()


async def test_session_accepts_fake_node_as_chain(node):
    async with Session.open(structs=node) as session:
        assert 4 == len((await player(session, include_references=True))["references"])
