"""Making a `World` from a seed: see `World.generate` for what it promises. The form of its records is in world.json."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.testing.world import AMBITS, GRID_ATTRIBUTES, PLANET_ATTRIBUTES, STRUCT_ATTRIBUTES, Oddities, World

_BECH32: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_HUE: Final = ("amber", "ashen", "azure", "cobalt", "crimson", "golden", "hollow", "ivory", "jade", "silent", "umber")
_THING: Final = ("anvil", "comet", "falcon", "harbour", "lantern", "meridian", "orchard", "quarry", "raven", "spire")
_ALL_PERMISSIONS: Final = str(2**25 - 1)

# Which player carries which oddity.
_PFP, _EXTRA_FIELDS, _STALE, _PRUNED_STRUCT, _DEMO = 3, 4, 5, 6, 11
_VISITORS: Final = (7, 8)
_SETTLED: Final = frozenset({_PFP, _EXTRA_FIELDS, _STALE, _PRUNED_STRUCT, _DEMO, *_VISITORS})
_COLLIDING: Final = (19, 194, 1940)
# One more than the last of them: the last player has nothing yet.
_SMALLEST: Final = _DEMO + 1

# Struct types by number, and the bits of a struct's status.
_COMMAND_SHIP: Final = 1
_MINES: Final = (14, 15)
_REFINERIES: Final = (16, 17)
_SMALL_GENERATOR: Final = 23
_GENERATORS: Final = range(_SMALL_GENERATOR, 29)
_MASKS: Final = dict(zip(AMBITS, (16, 8, 4, 2), strict=True))
_READY: Final = 1 + 2 + 4
_BEING_BUILT: Final = 1
_PRUNED: Final = 1 + 2 + 32


def generate(*, seed: int, players: int) -> World:
    """Make the world; `World.generate` is the public door."""
    if not isinstance(players, int) or isinstance(players, bool) or players < _SMALLEST:
        raise InvalidArgument(f"players must be a whole number from {_SMALLEST}, got {players!r:.80}")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise InvalidArgument(f"seed must be a whole number, got {seed!r:.80}")
    draft = _Draft(rng=Random(f"mama_structs/{seed}/{players}"), players=players)  # noqa: S311 - no secret
    # Read first by everything else, so that stores stand in the order of the types' codes.
    for name in ("guild", "player", "planet", "reactor", "substation", "struct"):
        draft.world.tables[name] = {}
    # Every draw comes from one row of dice: another order would be another world.
    for part in (_players, _guilds, _planets, _fleets, _structs, _substations, _markets, _infusions, _permissions):
        part(draft)
    _applications(draft)
    _grid_of_substations(draft)
    draft.world.tables["struct_type"] = _struct_types()
    draft.world.oddities = Oddities(
        stale_visitor=draft.player(_STALE)["planetId"],
        id_shaped_pfp=f"1-{_PFP}",
        unset_fleet=f"9-{players}",
        ownerless_reactor=f"3-{draft.guilds + 1}",
        pruned_struct=draft.pruned,
        pruned_struct_planet=draft.player(_PRUNED_STRUCT)["planetId"],
        extra_fields=f"1-{_EXTRA_FIELDS}",
        colliding=tuple(f"1-{index}" for index in _COLLIDING),
    )
    return draft.world


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(files("mama_structs.testing").joinpath("world.json").read_text(encoding="utf-8"))
    return data


def _struct_types() -> dict[str, dict[str, Any]]:
    """Return a fresh copy of the chain's struct types by number, with all 68 fields of chain v0.16.0."""
    types = _data()["struct_types"]
    return {str(number): types["shared"] | row for number, row in enumerate(types["each"], 1)}


@cache
def _types_for(category: str, ambit: str) -> tuple[int, ...]:
    """Return the numbers of the types of a category (``fleet`` or ``planet``) that one ambit alone holds."""
    fitting = (str(_MASKS[ambit]), category)
    rows = _struct_types().items()
    return tuple(int(number) for number, row in rows if (row["possibleAmbit"], row["category"]) == fitting)


def _filled(form: Any, values: dict[str, Any]) -> Any:
    if isinstance(form, dict):
        return {key: _filled(member, values) for key, member in form.items()}
    if isinstance(form, list):
        return list(form)
    return form.format_map(values) if "{" in form else form


@attrs.define
class _Draft:
    """A world in the making."""

    rng: Random
    players: int
    world: World = attrs.field(factory=World)
    indexes: list[int] = attrs.field(init=False)
    guilds: int = attrs.field(init=False)
    substations: int = attrs.field(init=False)
    structs: int = 0
    allocations: int = 0
    pruned: str = ""

    def __attrs_post_init__(self) -> None:
        """Settle the numbers that references need before the things themselves are there."""
        self.indexes = sorted({*range(1, self.players + 1), *_COLLIDING})
        self.guilds = max(2, self.players // 25)
        self.substations = self.guilds + max(2, self.players // 10)

    def add(self, store: str, key: str, **values: Any) -> dict[str, Any]:
        """Add a record in the form of its store, and return it."""
        record: dict[str, Any] = _filled(_data()["records"][store], values)
        self.world.tables.setdefault(store, {})[key] = record
        return record

    def rows(self, store: str) -> list[dict[str, Any]]:
        return list(self.world.tables[store].values())

    def player(self, index: int | str) -> dict[str, Any]:
        """Return a player by index or id."""
        record: dict[str, Any] = self.world.tables["player"][index if isinstance(index, str) else f"1-{index}"]
        return record

    def guild_owner(self, guild: int) -> str:
        """Return the player who owns a guild: the one of its own number, but the demo's player is in the first."""
        return f"1-{guild if guild != _DEMO else self.guilds + 1}"

    def owned_guild(self, player: int) -> int:
        """Return the number of the guild that a player owns, 0 for none."""
        if player == self.guilds + 1 and self.guilds >= _DEMO:
            return _DEMO
        return player if player <= self.guilds and player != _DEMO else 0

    def creator(self, player_id: str) -> str:
        address: str = self.player(player_id)["primaryAddress"]
        return address

    def address(self, prefix: str = "structs1") -> str:
        return prefix + "".join(self.rng.choices(_BECH32, k=38))

    def name(self) -> str:
        return f"{self.rng.choice(_HUE)}-{self.rng.choice(_THING)}"

    def some_player(self) -> str:
        return f"1-{self.rng.choice(self.indexes)}"

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def attribute(self, store: str, names: tuple[str, ...], entity_id: str, **values: int) -> None:
        table = self.world.tables.setdefault(store, {})
        for name, value in values.items():
            if value:
                table[f"{names.index(name)}-{entity_id}"] = str(value)

    def grid(self, entity_id: str, **values: int) -> None:
        self.attribute("grid", GRID_ATTRIBUTES, entity_id, **values)


# Players, guilds, planets, fleets and structs


def _players(draft: _Draft) -> None:
    rng = draft.rng
    for index in draft.indexes:
        guild, primary, player_id = _guild_of(draft, index), draft.address(), f"1-{index}"
        record = draft.add(
            "player",
            player_id,
            n=index,
            guild=f"0-{guild}" if guild else "",
            substation=_home_substation(draft, guild),
            address=primary,
            rank=101 if guild else 0,
            name=draft.name(),
            pfp="5-12" if index == _PFP else f"art/{rng.randrange(400)}.png",
        )
        if index == _EXTRA_FIELDS:
            record["pfpClientRenderAttributes"] = '{"frame":"gold","layer":"5-12"}'
            record["seasonBadges"] = ["early", "builder"]
        for address in (primary, draft.address()) if draft.chance(0.1) else (primary,):
            draft.add("address", address, address=address, player=player_id)
        draft.grid(
            player_id,
            ore=rng.randrange(6),
            capacity=50_000_000 if guild else 0,
            structsLoad=25_000_000,
            lastAction=rng.randrange(1, 1_000_000),
        )
        draft.world.rocks[player_id] = str(rng.randrange(10_000_000))


def _guild_of(draft: _Draft, index: int) -> int:
    if index == _DEMO:
        return 1
    if owned := draft.owned_guild(index):
        return owned
    # The last player has just arrived: no guild, no planet.
    return draft.rng.randint(1, draft.guilds) if index != draft.players and draft.chance(0.85) else 0


def _home_substation(draft: _Draft, guild: int) -> str:
    if not guild:
        return ""
    return f"4-{guild if draft.chance(0.7) else draft.rng.randint(draft.guilds + 1, draft.substations)}"


def _guilds(draft: _Draft) -> None:
    draft.player(_DEMO)["substationId"] = "4-1"
    bypasses = ("closed", "permissioned", "member")
    for number in range(1, draft.guilds + 1):
        owner, guild_id = draft.guild_owner(number), f"0-{number}"
        draft.add(
            "guild",
            guild_id,
            n=number,
            name=draft.name(),
            creator=draft.creator(owner),
            owner=owner,
            by_request=draft.rng.choice(bypasses),
            by_invite=draft.rng.choice(bypasses),
        )
        _reactor(draft, number, guild=guild_id, owner=owner)
    _reactor(draft, draft.guilds + 1, guild="", owner="")


def _reactor(draft: _Draft, number: int, *, guild: str, owner: str) -> None:
    draft.add("reactor", f"3-{number}", n=number, validator=draft.address("structsvaloper1"), guild=guild, owner=owner)
    draft.grid(f"3-{number}", fuel=3_000_000, capacity=3_000_000, load=1_000_000)


def _planets(draft: _Draft) -> None:
    settlers = [
        index
        for index in draft.indexes
        if index in _SETTLED or (index != draft.players and (draft.owned_guild(index) or draft.chance(0.9)))
    ]
    draft.rng.shuffle(settlers)
    for number, index in enumerate(settlers, 1):
        planet_id, ore, owner = f"2-{number}", draft.rng.randrange(6), draft.player(index)
        owner["planetId"] = planet_id
        draft.add(
            "planet",
            planet_id,
            n=number,
            creator=owner["primaryAddress"],
            owner=owner["id"],
            status="active" if ore else "complete",
            name=draft.name(),
        )
        draft.grid(planet_id, ore=ore)
        shield = 25 * draft.rng.randrange(1, 10)
        draft.attribute("planet_attribute", PLANET_ATTRIBUTES, planet_id, planetaryShield=shield)


def _fleets(draft: _Draft) -> None:
    visitors: dict[str, list[dict[str, Any]]] = {}
    planets = draft.world.tables["planet"]
    names = list(planets)
    stale = draft.player(_STALE)["planetId"]
    for index in draft.indexes:
        player = draft.player(index)
        home = place = player["planetId"]
        if index in _VISITORS:
            place = draft.player(_DEMO)["planetId"]
        elif home and index != _DEMO and draft.chance(0.2):
            place = draft.rng.choice(names)
        if place == stale:
            place = home
        fleet = draft.add(
            "fleet",
            player["fleetId"],
            id=player["fleetId"],
            owner=player["id"],
            # The zero of the enum is "guild": it is what a fleet shows that never had a place.
            kind="planet" if place else "guild",
            place=place,
            status="onStation" if place == home else "away",
        )
        if place != home:
            visitors.setdefault(place, []).append(fleet)
    for planet_id, queue in visitors.items():
        planets[planet_id] |= {"locationListStart": queue[0]["id"], "locationListLast": queue[-1]["id"]}
        for ahead, behind in itertools.pairwise(queue):
            ahead["locationListBackward"] = behind["id"]
            behind["locationListForward"] = ahead["id"]
    planets[stale]["locationListLast"] = f"9-{_VISITORS[0]}"


def _structs(draft: _Draft) -> None:
    rng = draft.rng
    for player in draft.rows("player"):
        if not player["planetId"]:
            continue
        demo = player["index"] == str(_DEMO)
        planet = draft.world.tables["planet"][player["planetId"]]
        fleet = draft.world.tables["fleet"][player["fleetId"]]
        if demo or draft.chance(0.95):
            fleet["commandStruct"] = _struct(
                draft, player, ("fleet", fleet["id"]), kind=_COMMAND_SHIP, ambit="space", slot=0
            )
        in_fleet = [_in_slot(draft, player, "fleet", fleet) for _ in range(rng.randrange(3) + demo)]
        on_planet = [_in_slot(draft, player, "planet", planet, kind=_SMALL_GENERATOR)] if demo else []
        on_planet += [_in_slot(draft, player, "planet", planet) for _ in range(rng.randrange(1, 4 - demo))]
        for defender in in_fleet:
            defended = rng.choice(on_planet)
            if demo or draft.chance(0.3):
                index = int(defended.removeprefix("5-"))
                draft.attribute("struct_attribute", STRUCT_ATTRIBUTES, defender, protectedStructIndex=index)
        if player["index"] == str(_PRUNED_STRUCT):
            draft.structs += 1
            draft.pruned = planet["water"][-1] = f"5-{draft.structs}"
            draft.attribute("struct_attribute", STRUCT_ATTRIBUTES, draft.pruned, status=_PRUNED)


def _in_slot(draft: _Draft, player: dict[str, Any], category: str, place: dict[str, Any], *, kind: int = 0) -> str:
    """Build a struct in the first free slot: nobody draws so many that the last one, the pruned struct's, is taken."""
    ambit = "land" if kind else draft.rng.choice([ambit for ambit in AMBITS if _types_for(category, ambit)])
    kind = kind or draft.rng.choice(_types_for(category, ambit))
    slot = place[ambit].index("")
    place[ambit][slot] = built = _struct(draft, player, (category, place["id"]), kind=kind, ambit=ambit, slot=slot)
    return built


def _struct(draft: _Draft, player: dict[str, Any], place: tuple[str, str], *, kind: int, ambit: str, slot: int) -> str:
    draft.structs += 1
    struct_id = f"5-{draft.structs}"
    draft.add(
        "struct",
        struct_id,
        n=draft.structs,
        type=kind,
        creator=player["primaryAddress"],
        owner=player["id"],
        kind=place[0],
        place=place[1],
        ambit=ambit,
        slot=slot,
    )
    ready = kind == _COMMAND_SHIP or draft.chance(0.85)
    started = draft.rng.randrange(1, 1_000_000)
    draft.attribute(
        "struct_attribute",
        STRUCT_ATTRIBUTES,
        struct_id,
        health=6 if kind == _COMMAND_SHIP else 3,
        status=_READY if ready else _BEING_BUILT,
        blockStartBuild=0 if ready else started,
        blockStartOreMine=started if ready and kind in _MINES else 0,
        blockStartOreRefine=started if ready and kind in _REFINERIES else 0,
    )
    return struct_id


# Power, markets, stakes and permissions


def _substations(draft: _Draft) -> None:
    for number in range(1, draft.substations + 1):
        of_guild = number <= draft.guilds
        owner, substation_id = draft.guild_owner(number) if of_guild else draft.some_player(), f"4-{number}"
        draft.add("substation", substation_id, n=number, owner=owner, creator=draft.creator(owner), name=draft.name())
        kind = "automated" if of_guild else draft.rng.choice(("static", "dynamic"))
        _allocate(draft, kind, f"3-{number}" if of_guild else owner, substation_id, owner)


def _allocate(draft: _Draft, kind: str, source: str, destination: str, controller: str) -> int:
    draft.allocations += 1
    draft.add(
        "allocation",
        f"6-{draft.allocations}",
        n=draft.allocations,
        kind=kind,
        source=source,
        destination=destination,
        creator=draft.creator(controller),
        controller=controller,
    )
    draft.grid(f"6-{draft.allocations}", power=1000 * draft.rng.randrange(1, 500))
    return draft.allocations


def _markets(draft: _Draft) -> None:
    rng = draft.rng
    draft.world.tables |= {"provider": {}, "agreement": {}}
    for number in range(1, draft.guilds + 1):
        owner = draft.guild_owner(number)
        draft.add(
            "provider",
            f"10-{number}",
            n=number,
            denom=rng.choice(("ualpha", f"uguild.0-{number}")),
            policy=rng.choice(("openMarket", "guildMarket", "closedMarket")),
            creator=draft.creator(owner),
            owner=owner,
        )
        for _ in range(rng.randrange(1, 4)):
            destination = f"4-{rng.randint(draft.guilds + 1, draft.substations)}"
            consumer = draft.world.tables["substation"][destination]["owner"]
            # An agreement has the index of the allocation that carries it.
            allocation = _allocate(draft, "providerAgreement", f"4-{number}", destination, consumer)
            draft.add(
                "agreement",
                f"11-{allocation}",
                n=allocation,
                provider=f"10-{number}",
                capacity=rng.randrange(1, 1_000_000),
                start=rng.randrange(1, 500_000),
                end=rng.randrange(500_000, 2_000_000),
                creator=draft.creator(consumer),
                owner=consumer,
            )


def _infusions(draft: _Draft) -> None:
    for player in draft.rows("player"):
        if draft.chance(0.4):
            _infuse(draft, player, "reactor", f"3-{draft.rng.randint(1, draft.guilds)}")
    for struct in draft.rows("struct"):
        if int(struct["type"]) in _GENERATORS:
            _infuse(draft, draft.player(struct["owner"]), "struct", struct["id"])


def _infuse(draft: _Draft, player: dict[str, Any], kind: str, destination: str) -> None:
    address, fuel = player["primaryAddress"], 1000 * draft.rng.randrange(1, 5000)
    key = f"{destination}/{address}"
    draft.add("infusion", key, kind=kind, destination=destination, fuel=fuel, player=player["id"], address=address)


def _permissions(draft: _Draft) -> None:
    permissions = draft.world.tables.setdefault("permission", {})
    draft.world.tables["guild_rank_permission"] = {}
    for address in draft.world.tables["address"]:
        permissions[f"8-{address}@0"] = _ALL_PERMISSIONS
    for substation in draft.rows("substation"):
        permissions[f"{substation['id']}@{substation['owner']}"] = _ALL_PERMISSIONS
    for index in _COLLIDING:
        permissions[f"1-2@1-{index}"] = "4"
        permissions[f"1-{index}@1-2"] = "2"
    for _ in range(draft.players // 4):
        permissions[f"{draft.some_player()}@{draft.some_player()}"] = str(2 ** draft.rng.randrange(25))
    for number in range(1, draft.guilds + 1):
        guild = f"0-{number}"
        permissions[f"{guild}@{draft.guild_owner(number)}"] = _ALL_PERMISSIONS
        for thing in (f"3-{number}", f"4-{number}"):
            for bit in sorted(draft.rng.sample(range(25), 3)):
                rank, key = draft.rng.randrange(1, 102), f"{thing}/{guild}/{bit:02}"
                draft.add("guild_rank_permission", key, object=thing, guild=guild, permissions=2**bit, rank=rank)


def _applications(draft: _Draft) -> None:
    draft.world.tables["guild_membership_application"] = {}
    for player in draft.rows("player"):
        if player["guildId"] or not (player["index"] == str(draft.players) or draft.chance(0.5)):
            continue
        guild, invited = draft.rng.randint(1, draft.guilds), draft.chance(0.3)
        draft.add(
            "guild_membership_application",
            f"{player['id']}@0-{guild}",
            guild=guild,
            player=player["id"],
            kind="invite" if invited else "request",
            status=draft.rng.choice(("proposed", "denied", "revoked")),
            proposer=draft.guild_owner(guild) if invited else player["id"],
        )


def _grid_of_substations(draft: _Draft) -> None:
    homes = Counter(player["substationId"] for player in draft.rows("player"))
    for substation_id in draft.world.tables["substation"]:
        connected = homes[substation_id]
        draft.grid(
            substation_id, capacity=2_000_000, load=500_000, connectionCapacity=50_000, connectionCount=connected
        )
