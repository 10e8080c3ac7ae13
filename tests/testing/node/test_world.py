import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mama_structs.errors import EntityNotFound, InvalidArgument
from mama_structs.structs.ids import EntityId
from mama_structs.testing import World
from mama_structs.testing.strategies import worlds

AMBITS = ("space", "air", "land", "water")
REFERENCES = {
    "guild": {"owner": "1", "primaryReactorId": "3", "entrySubstationId": "4"},
    "player": {"guildId": "0", "substationId": "4", "planetId": "2", "fleetId": "9"},
    "planet": {"owner": "1", "locationListStart": "9", "locationListLast": "9", **dict.fromkeys(AMBITS, "5")},
    "reactor": {"guildId": "0", "owner": "1"},
    "substation": {"owner": "1"},
    "struct": {"owner": "1", "locationId": "29"},
    "allocation": {"sourceObjectId": "134", "destinationId": "4", "controller": "1"},
    "infusion": {"destinationId": "35", "playerId": "1"},
    "address": {"playerId": "1"},
    "fleet": {
        "owner": "1",
        "locationId": "2",
        "locationListForward": "9",
        "locationListBackward": "9",
        "commandStruct": "5",
        **dict.fromkeys(AMBITS, "5"),
    },
    "provider": {"substationId": "4", "owner": "1"},
    "agreement": {"providerId": "10", "allocationId": "6", "owner": "1"},
    "guild_membership_application": {"guildId": "0", "playerId": "1", "proposer": "1", "substationId": "4"},
    "guild_rank_permission": {"objectId": "34", "guildId": "0"},
}
TYPES = {"0": "guild", "1": "player", "2": "planet", "3": "reactor", "4": "substation", "5": "struct", "6": "allocation",
         "9": "fleet", "10": "provider", "11": "agreement"}  # fmt: skip


def references(world):
    for name, fields in REFERENCES.items():
        for record in world.rows(name):
            for field, codes in fields.items():
                value = record[field]
                for entity_id in value if isinstance(value, list) else [value]:
                    if entity_id:
                        yield record, field, codes, entity_id


@given(world=worlds(players=st.integers(12, 60) | st.just(300)))
@settings(deadline=None, max_examples=40)
def test_every_reference_resolves_except_the_documented_one(world):
    """Each id has a type that its field expects. Only one pruned struct does not exist."""
    missing = set()
    for _, field, codes, entity_id in references(world):
        code = entity_id.split("-")[0]
        assert code in codes or code == codes, (field, entity_id)
        if world.get(TYPES[code], entity_id) is None:
            missing.add(entity_id)

    assert {world.oddities.pruned_struct} == missing


@given(world=worlds(players=st.integers(12, 60) | st.just(300)))
@settings(deadline=None, max_examples=40)
def test_both_ends_of_each_relation_are_consistent(world):
    """Covers relations of players, planets, fleets, structs, agreements and allocations."""
    planets = {row["id"]: row for row in world.rows("planet")}
    fleets = {row["id"]: row for row in world.rows("fleet")}
    structs = {row["id"]: row for row in world.rows("struct")}
    players = {row["id"]: row for row in world.rows("player")}

    assert {row["planetId"]: row["id"] for row in players.values() if row["planetId"]} == {
        row["id"]: row["owner"] for row in planets.values()
    }

    visits = {planet_id: [] for planet_id in planets}
    for planet_id, planet in planets.items():
        at = planet["locationListStart"]
        while at:
            visits[planet_id].append(at)
            ahead, at = at, fleets[at]["locationListBackward"]
            assert not at or ahead == fleets[at]["locationListForward"]
    for player in players.values():
        fleet = fleets[player["fleetId"]]
        assert player["id"] == fleet["owner"]
        assert player["id"].split("-")[1] == fleet["id"].split("-")[1]
        away = fleet["locationId"] != player["planetId"]
        assert ("away" if away else "onStation") == fleet["status"]
        assert away == (fleet["id"] in visits.get(fleet["locationId"], ()))

    placed = {}
    for place in (*planets.values(), *fleets.values()):
        for ambit in AMBITS:
            for slot, struct_id in enumerate(place[ambit]):
                if struct_id and struct_id != world.oddities.pruned_struct:
                    placed[struct_id] = (place["id"], place["owner"], ambit, str(slot))
    commanded = {}
    for fleet in fleets.values():
        if fleet["commandStruct"]:
            commanded[fleet["commandStruct"]] = (fleet["id"], fleet["owner"], "space", "0")
            assert "1" == structs[fleet["commandStruct"]]["type"]
    assert placed.keys().isdisjoint(commanded)
    assert placed | commanded == {
        row["id"]: (row["locationId"], row["owner"], row["operatingAmbit"], row["slot"]) for row in structs.values()
    }

    for row in world.rows("agreement"):
        assert row["id"].split("-")[1] == row["allocationId"].split("-")[1]
        assert "providerAgreement" == world.get("allocation", row["allocationId"])["type"]
    for row in world.rows("infusion"):
        assert row["playerId"] == world.get("address", row["address"])["playerId"]


@pytest.mark.parametrize("players", [12, 40, 274, 275, 300, 2000])
def test_every_guild_is_owned_by_a_member_with_assets(players):
    """The owner has the guild's reactor, substation and provider, and a planet."""
    world = World.generate(seed=3, players=players)
    members = {row["id"]: row["guildId"] for row in world.rows("player")}

    for guild in world.rows("guild"):
        number = guild["id"].split("-")[1]
        assert guild["id"] == members[guild["owner"]]
        assert world.get("player", guild["owner"])["planetId"]
        for related in (f"3-{number}", f"4-{number}", f"10-{number}"):
            kind = {"3": "reactor", "4": "substation", "1": "provider"}[related[0]]
            assert guild["owner"] == world.get(kind, related)["owner"]
    for application in world.rows("guild_membership_application"):
        if application["joinType"] == "invite":
            assert application["guildId"] == members[application["proposer"]]
    assert "0-1" == members["1-11"]


@given(world=worlds(players=st.just(30)))
@settings(deadline=None, max_examples=20)
def test_defenders_match_protected_struct_index(world):
    envelopes = {struct_id: world.envelope(struct_id) for struct_id in world.ids("struct")}
    expected = {
        (f"5-{index}", struct_id)
        for struct_id, envelope in envelopes.items()
        if (index := envelope["structAttributes"]["protectedStructIndex"]) != "0"
    }

    assert expected == {(key, one) for key, envelope in envelopes.items() for one in envelope["structDefenders"]}
    assert expected


@pytest.mark.parametrize("players", [12, 40])
def test_oddities_exist_in_every_world(players):
    world = World.generate(seed=5, players=players)
    odd = world.oddities
    stale = world.get("planet", odd.stale_visitor)
    unset = world.get("fleet", odd.unset_fleet)
    extra = world.get("player", odd.extra_fields)
    reactor = world.get("reactor", odd.ownerless_reactor)

    assert "" == stale["locationListStart"]
    assert stale["id"] != world.get("fleet", stale["locationListLast"])["locationId"]
    assert "5-12" == world.get("player", odd.id_shaped_pfp)["pfp"]
    assert ("guild", "") == (unset["locationType"], unset["locationId"])
    assert "" == reactor["owner"]
    assert odd.pruned_struct == world.get("planet", odd.pruned_struct_planet)["water"][3]
    assert world.get("struct", odd.pruned_struct) is None
    assert "35" == world.get("struct_attribute", f"1-{odd.pruned_struct}")
    assert {"pfpClientRenderAttributes", "seasonBadges"} < extra.keys()
    assert ("1-19", "1-194", "1-1940") == odd.colliding
    assert all(world.get("player", player) for player in odd.colliding)
    planet = world.get("planet", world.get("player", "1-11")["planetId"])
    assert "1-11" == planet["owner"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("players", [12, 19, 60])
def test_demo_player_has_all_assets(seed, players):
    """Player 1-11 has a guild, planet, visitors, fleet, substation and defended struct."""
    world = World.generate(seed=seed, players=players)
    player = world.envelope("1-11")["Player"]
    planet = world.envelope(player["planetId"])["Planet"]
    guild = world.envelope("0-1")["Guild"]

    assert ("0-1", "9-11") == (player["guildId"], player["fleetId"])
    assert world.envelope(player["substationId"])
    assert ("3-1", "4-1") == (guild["primaryReactorId"], guild["entrySubstationId"])
    assert "" != planet["locationListStart"]
    assert any(row["destinationType"] == "struct" for row in world.rows("infusion"))
    assert world.rows("guild_membership_application")


def test_world_depends_on_seed_and_size_only():
    first, other, again = (json.dumps(World.generate(seed=seed, players=30).tables) for seed in (7, 8, 7))

    assert first == again
    assert first != other


@pytest.mark.once
def test_world_may_have_ten_thousand_players():
    world = World.generate(players=10_000)

    assert 10_000 == len(world.ids("player"))


def test_ids_are_in_byte_order_and_struct_types_in_numeric_order():
    world = World.generate(players=40)

    assert ["1-1", "1-10", "1-11"] == world.ids("player")[:3]
    assert [str(number) for number in range(1, 29)] == world.ids("struct_type")


def test_struct_types_have_all_fields():
    """They are the 68 fields of chain v0.16.0, with numbers as text."""
    rows = World.generate().rows("struct_type")

    assert {68} == {len(row) for row in rows}
    assert {tuple(rows[0])} == {tuple(row) for row in rows}
    assert {str, bool} == {type(value) for row in rows for value in row.values()}


def test_answers_are_copies():
    world = World.generate()
    world.envelope("2-1")["Planet"]["space"][0] = "5-1"
    world.rows("provider")[0]["rate"]["amount"] = "0"

    assert world.envelope("2-1") == World.generate().envelope("2-1")
    assert world.rows("provider") == World.generate().rows("provider")


def test_names_and_addresses_are_realistic():
    """Names are not ids, and addresses are bech32 with the chain's prefix."""
    for row in World.generate().rows("player"):
        assert re.fullmatch(r"structs1[02-9ac-hj-np-z]{38}", row["primaryAddress"])
        with pytest.raises(InvalidArgument):
            EntityId.parse(row["name"])


def test_put_and_remove_change_answers():
    """Covers lists, single answers and defenders."""
    world = World.generate()
    before = world.ids("struct")
    defended = next(one for one in before if world.envelope(one)["structDefenders"])
    (defender, *_) = world.envelope(defended)["structDefenders"]
    world.remove(defender)
    world.put("player", "1-5000", {"id": "1-5000"})

    assert defender not in world.ids("struct")
    assert {"id": "1-5000"} == world.envelope("1-5000")["Player"]
    assert "1-5000" in world.ids("player")
    with pytest.raises(EntityNotFound):
        world.envelope(defender)
    with pytest.raises(EntityNotFound):
        world.remove(defender)


def test_removed_struct_is_no_defender():
    """Its attribute remains."""
    world = World.generate()
    defended = next(one for one in world.ids("struct") if world.envelope(one)["structDefenders"])
    for defender in world.envelope(defended)["structDefenders"]:
        world.remove(defender)

    assert [] == world.envelope(defended)["structDefenders"]


def test_world_of_exact_entities_completes_bare_records():
    """A complete answer is returned unchanged."""
    whole = {"Guild": {"id": "0-1"}, "season": 3}
    world = World.from_entities({"1-11": {"id": "1-11", "guildId": "0-1"}, "0-1": whole})

    assert whole == world.envelope("0-1")
    assert ["gridAttributes", "playerInventory"] == list(world.envelope("1-11"))[1:]
    assert "0" == world.envelope("1-11")["gridAttributes"]["ore"]
    assert [{"id": "0-1"}] == world.rows("guild")
    assert [] == world.rows("grid")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: World.generate(players=11), "players"),
        (lambda: World.generate(players=True), "players"),
        (lambda: World.generate(players="12"), "players"),
        (lambda: World.generate(seed=1.5), "seed"),
        (lambda: World.from_entities(["1-1"]), "entities"),
        (lambda: World.from_entities({"1-1": "player"}), "1-1"),
        (lambda: World.from_entities({"7-1": {}}), "infusion"),
        (lambda: World.from_entities({"player": {}}), "1-11"),
        (lambda: World.generate().rows("players"), "type must be one of"),
    ],
)
def test_invalid_argument_is_rejected_by_name(call, named):
    with pytest.raises(InvalidArgument, match=named):
        call()
