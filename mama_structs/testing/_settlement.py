"""The first half of a generated world: players, guilds, planets, fleets and structs."""

from __future__ import annotations

import itertools
from typing import Any, Final

from mama_structs.testing._draft import (
    DEMO,
    EXTRA_FIELDS,
    PFP,
    PRUNED_STRUCT,
    SETTLED,
    STALE,
    VISITORS,
    Draft,
)
from mama_structs.testing._schema import ALL_PERMISSIONS, AMBITS, PLANET_ATTRIBUTES, STRUCT_ATTRIBUTES
from mama_structs.testing._struct_types import (
    AIR,
    COMMAND_SHIP,
    LAND,
    MINES,
    REFINERIES,
    SMALL_GENERATOR,
    SPACE,
    WATER,
    types_for,
)

_MASKS: Final = dict(zip(AMBITS, (SPACE, AIR, LAND, WATER), strict=True))
_TYPES: Final = {
    (category, ambit): types_for(category, mask) for category in ("fleet", "planet") for ambit, mask in _MASKS.items()
}
_AMBITS: Final = {category: [ambit for ambit in AMBITS if _TYPES[category, ambit]] for category in ("fleet", "planet")}
_READY: Final = 1 + 2 + 4
_BEING_BUILT: Final = 1
_PRUNED: Final = 1 + 2 + 32


def settle(draft: Draft) -> None:
    """Draw players with their guilds and planets, and what they built."""
    _players(draft)
    _guilds(draft)
    _planets(draft)
    _fleets(draft)
    _structs(draft)


def _players(draft: Draft) -> None:
    players, addresses = draft.world.tables["player"], draft.world.tables.setdefault("address", {})
    for index in draft.indexes:
        guild = _guild_of(draft, index)
        primary = draft.address()
        player_id = f"1-{index}"
        record: dict[str, Any] = {
            "id": player_id,
            "index": str(index),
            "guildId": f"0-{guild}" if guild else "",
            "substationId": _home_substation(draft, guild),
            "creator": primary,
            "primaryAddress": primary,
            "planetId": "",
            "fleetId": f"9-{index}",
            "guildRank": "101" if guild else "0",
            "name": f"{draft.name()}-{index}",
            "pfp": "5-12" if index == PFP else f"art/{draft.rng.randrange(400)}.png",
        }
        if index == EXTRA_FIELDS:
            record["pfpClientRenderAttributes"] = '{"frame":"gold","layer":"5-12"}'
            record["seasonBadges"] = ["early", "builder"]
        players[player_id] = record
        for address in (primary, draft.address()) if draft.chance(0.1) else (primary,):
            addresses[address] = {"address": address, "playerId": player_id, "permissions": ALL_PERMISSIONS}
        draft.grid(
            player_id,
            ore=draft.rng.randrange(6),
            capacity=50_000_000 if guild else 0,
            structsLoad=25_000_000,
            lastAction=draft.rng.randrange(1, 1_000_000),
        )
        draft.world.rocks[player_id] = str(draft.rng.randrange(10_000_000))


def _guild_of(draft: Draft, index: int) -> int:
    if index == DEMO:
        return 1
    if owned := draft.owned_guild(index):
        return owned
    # The last player has just arrived: no guild, no planet.
    return draft.rng.randint(1, draft.guilds) if index != draft.players and draft.chance(0.85) else 0


def _home_substation(draft: Draft, guild: int) -> str:
    if not guild:
        return ""
    return f"4-{guild if draft.chance(0.7) else draft.rng.randint(draft.guilds + 1, draft.substations)}"


def _guilds(draft: Draft) -> None:
    draft.player(DEMO)["substationId"] = "4-1"
    for number in range(1, draft.guilds + 1):
        owner = f"1-{draft.guild_owner(number)}"
        name = draft.name()
        draft.world.tables["guild"][f"0-{number}"] = {
            "id": f"0-{number}",
            "index": str(number),
            "endpoint": f"https://guild-{number}.example/guild.json",
            "creator": draft.creator(owner),
            "owner": owner,
            "joinInfusionMinimum": "0",
            "joinInfusionMinimumBypassByRequest": draft.rng.choice(("closed", "permissioned", "member")),
            "joinInfusionMinimumBypassByInvite": draft.rng.choice(("closed", "permissioned", "member")),
            "primaryReactorId": f"3-{number}",
            "entrySubstationId": f"4-{number}",
            "entryRank": "101",
            "name": f"{name} guild {number}",
            "pfp": "",
        }
        _reactor(draft, number, guild_id=f"0-{number}", owner=owner)
    _reactor(draft, draft.guilds + 1, guild_id="", owner="")


def _reactor(draft: Draft, number: int, *, guild_id: str, owner: str) -> None:
    draft.world.tables["reactor"][f"3-{number}"] = {
        "id": f"3-{number}",
        "validator": draft.address("structsvaloper1"),
        "guildId": guild_id,
        "defaultCommission": "0.040000000000000000",
        "rawAddress": "AAECAwQFBgcICQoLDA0ODxAREhM=",
        "owner": owner,
    }
    draft.grid(f"3-{number}", fuel=3_000_000, capacity=3_000_000, load=1_000_000)


def _planets(draft: Draft) -> None:
    settlers = [
        index
        for index in draft.indexes
        if index in SETTLED or (index != draft.players and (draft.owned_guild(index) or draft.chance(0.9)))
    ]
    draft.rng.shuffle(settlers)
    for number, index in enumerate(settlers, 1):
        planet_id = f"2-{number}"
        ore = draft.rng.randrange(6)
        owner = draft.player(index)
        owner["planetId"] = planet_id
        draft.world.tables["planet"][planet_id] = {
            "id": planet_id,
            "maxOre": "5",
            "creator": owner["primaryAddress"],
            "owner": owner["id"],
            **{ambit: ["", "", "", ""] for ambit in AMBITS},
            **{f"{ambit}Slots": "4" for ambit in AMBITS},
            "status": "active" if ore else "complete",
            "locationListStart": "",
            "locationListLast": "",
            "name": draft.name(),
        }
        draft.grid(planet_id, ore=ore)
        draft.attribute(
            "planet_attribute", PLANET_ATTRIBUTES, planet_id, planetaryShield=25 * draft.rng.randrange(1, 10)
        )


def _fleets(draft: Draft) -> None:
    fleets = draft.world.tables.setdefault("fleet", {})
    visitors: dict[str, list[str]] = {}
    planets = list(draft.world.tables["planet"])
    stale = draft.player(STALE)["planetId"]
    for index in draft.indexes:
        player = draft.player(index)
        home = player["planetId"]
        place = home
        if index in VISITORS:
            place = draft.player(DEMO)["planetId"]
        elif home and index != DEMO and draft.chance(0.2):
            place = draft.rng.choice(planets)
        if place == stale:
            place = home
        if place != home:
            visitors.setdefault(place, []).append(player["fleetId"])
        fleets[player["fleetId"]] = {
            "id": player["fleetId"],
            "owner": player["id"],
            # The zero of the enum is "guild": it is what a fleet shows that never had a place.
            "locationType": "planet" if place else "guild",
            "locationId": place,
            "status": "onStation" if place == home else "away",
            "locationListForward": "",
            "locationListBackward": "",
            **{ambit: ["", "", "", ""] for ambit in AMBITS},
            **{f"{ambit}Slots": "4" for ambit in AMBITS},
            "commandStruct": "",
        }
    for planet_id, queue in visitors.items():
        draft.world.tables["planet"][planet_id] |= {"locationListStart": queue[0], "locationListLast": queue[-1]}
        for ahead, behind in itertools.pairwise(queue):
            fleets[ahead]["locationListBackward"] = behind
            fleets[behind]["locationListForward"] = ahead
    draft.world.tables["planet"][stale]["locationListLast"] = f"9-{VISITORS[0]}"


def _structs(draft: Draft) -> None:
    for player in draft.world.tables["player"].values():
        if not player["planetId"]:
            continue
        demo = player["index"] == str(DEMO)
        planet = draft.world.tables["planet"][player["planetId"]]
        fleet = draft.world.tables["fleet"][player["fleetId"]]
        if demo or draft.chance(0.95):
            fleet["commandStruct"] = _struct(
                draft, player, ("fleet", fleet["id"]), kind=COMMAND_SHIP, ambit="space", slot=0
            )
        in_fleet = [_in_slot(draft, player, "fleet", fleet) for _ in range(draft.rng.randrange(3) + demo)]
        on_planet = [_in_slot(draft, player, "planet", planet, kind=SMALL_GENERATOR)] if demo else []
        on_planet += [_in_slot(draft, player, "planet", planet) for _ in range(draft.rng.randrange(1, 4 - demo))]
        for defender in in_fleet:
            defended = draft.rng.choice(on_planet)
            if demo or draft.chance(0.3):
                index = int(defended.removeprefix("5-"))
                draft.attribute("struct_attribute", STRUCT_ATTRIBUTES, defender, protectedStructIndex=index)
        if player["index"] == str(PRUNED_STRUCT):
            draft.structs += 1
            draft.pruned = planet["water"][-1] = f"5-{draft.structs}"
            draft.attribute("struct_attribute", STRUCT_ATTRIBUTES, draft.pruned, status=_PRUNED)


def _in_slot(draft: Draft, player: dict[str, Any], category: str, place: dict[str, Any], *, kind: int = 0) -> str:
    """Build a struct in the first free slot: nobody draws so many that the last one, the pruned struct's, is taken."""
    ambit = "land" if kind else draft.rng.choice(_AMBITS[category])
    kind = kind or draft.rng.choice(_TYPES[category, ambit])
    slot = place[ambit].index("")
    place[ambit][slot] = built = _struct(draft, player, (category, place["id"]), kind=kind, ambit=ambit, slot=slot)
    return built


def _struct(draft: Draft, player: dict[str, Any], place: tuple[str, str], *, kind: int, ambit: str, slot: int) -> str:
    draft.structs += 1
    struct_id = f"5-{draft.structs}"
    draft.world.tables["struct"][struct_id] = {
        "id": struct_id,
        "index": str(draft.structs),
        "type": str(kind),
        "creator": player["primaryAddress"],
        "owner": player["id"],
        "locationType": place[0],
        "locationId": place[1],
        "operatingAmbit": ambit,
        "slot": str(slot),
    }
    ready = kind == COMMAND_SHIP or draft.chance(0.85)
    started = draft.rng.randrange(1, 1_000_000)
    draft.attribute(
        "struct_attribute",
        STRUCT_ATTRIBUTES,
        struct_id,
        health=6 if kind == COMMAND_SHIP else 3,
        status=_READY if ready else _BEING_BUILT,
        blockStartBuild=0 if ready else started,
        blockStartOreMine=started if ready and kind in MINES else 0,
        blockStartOreRefine=started if ready and kind in REFINERIES else 0,
    )
    return struct_id
