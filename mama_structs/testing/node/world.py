"""
A small Structs chain as plain data, from which the fake node answers.

`World.generate` creates a chain from a seed and the record templates in world.json. Reading that file is the only I/O.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any, Final

import attrs

from mama_structs.errors import EntityNotFound, InvalidArgument
from mama_structs.structs.enums import GridAttribute, PlanetAttribute, StructAttribute
from mama_structs.structs.ids import EntityId

Record = dict[str, Any]

# Attribute names of each store of attributes. The code of an attribute is its position in the tuple.
ATTRIBUTES: Final = {
    "grid": tuple(member.value for member in GridAttribute),
    "struct_attribute": tuple(member.value for member in StructAttribute),
    "planet_attribute": tuple(member.value for member in PlanetAttribute),
}

# Bits of a struct's status attribute, in the order in which an answer lists them.
STATUS_BITS: Final = {
    "isMaterialized": 1,
    "isBuilt": 2,
    "isOnline": 4,
    "isHidden": 16,
    "isDestroyed": 32,
    "isLocked": 64,
}

AMBITS: Final = ("space", "air", "land", "water")

_BECH32: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_NAME_ADJECTIVES: Final = (
    "amber",
    "ashen",
    "azure",
    "cobalt",
    "crimson",
    "golden",
    "hollow",
    "ivory",
    "jade",
    "silent",
    "umber",
)
_NAME_NOUNS: Final = (
    "anvil",
    "comet",
    "falcon",
    "harbour",
    "lantern",
    "meridian",
    "orchard",
    "quarry",
    "raven",
    "spire",
)
_ALL_PERMISSIONS: Final = str(2**25 - 1)

# Indexes of the players with unusual data (see `Oddities`).
_ID_SHAPED_PFP_PLAYER, _EXTRA_FIELDS_PLAYER, _STALE_VISITOR_PLAYER, _PRUNED_STRUCT_PLAYER, _DEMO_PLAYER = 3, 4, 5, 6, 11
_VISITING_PLAYERS: Final = (7, 8)
_PLAYERS_WITH_PLANET: Final = frozenset(
    {
        _ID_SHAPED_PFP_PLAYER,
        _EXTRA_FIELDS_PLAYER,
        _STALE_VISITOR_PLAYER,
        _PRUNED_STRUCT_PLAYER,
        _DEMO_PLAYER,
        *_VISITING_PLAYERS,
    }
)
_COLLIDING_INDEXES: Final = (19, 194, 1940)
# One more than the largest index above, because the last player must not own anything.
_MIN_PLAYERS: Final = _DEMO_PLAYER + 1

# Numbers of struct types, followed by values of a struct's status attribute.
_COMMAND_SHIP_TYPE: Final = 1
_MINE_TYPES: Final = (14, 15)
_REFINERY_TYPES: Final = (16, 17)
_SMALL_GENERATOR_TYPE: Final = 23
_GENERATOR_TYPES: Final = range(_SMALL_GENERATOR_TYPE, 29)
_AMBIT_MASKS: Final = dict(zip(AMBITS, (16, 8, 4, 2), strict=True))
_ONLINE_STATUS: Final = 1 + 2 + 4
_UNBUILT_STATUS: Final = 1
_PRUNED_STATUS: Final = 1 + 2 + 32


@attrs.frozen
class ChainStore:
    """
    A store of the chain: all records of one type.

    *name* is its name in routes (``player``). *key* is its name in answers (``Player``).
    """

    name: str
    key: str
    additional_fields: tuple[str, ...] = ()
    """The additional fields of an answer about one entity, in order."""
    fields: tuple[str, str] | None = None
    """For stores of single values: the names of key and value in a row."""
    status: bool = False
    """True if its lists have the field ``status``, an array that the chain never fills."""
    error_code: int = 13
    """The gRPC code of paging errors."""


CHAIN_STORES: Final = {
    table.name: table
    for table in (
        ChainStore("guild", "Guild"),
        ChainStore("player", "Player", ("gridAttributes", "playerInventory")),
        ChainStore("planet", "Planet", ("gridAttributes", "planetAttributes")),
        ChainStore("reactor", "Reactor", ("gridAttributes",)),
        ChainStore("substation", "Substation", ("gridAttributes",)),
        ChainStore("struct", "Struct", ("structAttributes", "gridAttributes", "structDefenders")),
        ChainStore("allocation", "Allocation", ("gridAttributes",), status=True),
        ChainStore("infusion", "Infusion", status=True),
        ChainStore("address", "address"),
        ChainStore("fleet", "Fleet"),
        ChainStore("provider", "Provider", ("gridAttributes",)),
        ChainStore("agreement", "Agreement"),
        ChainStore("struct_type", "StructType"),
        ChainStore("guild_membership_application", "GuildMembershipApplication"),
        ChainStore("guild_rank_permission", "guild_rank_permission_records", error_code=2),
        ChainStore("grid", "gridRecords", fields=("attributeId", "value"), error_code=2),
        ChainStore("struct_attribute", "structAttributeRecords", fields=("attributeId", "value"), error_code=2),
        ChainStore("planet_attribute", "planetAttributeRecords", fields=("attributeId", "value"), error_code=2),
        ChainStore("permission", "permissionRecords", fields=("permissionId", "value"), error_code=2),
    )
}


@attrs.frozen
class Oddities:
    """
    Ids of unusual data in a generated world. All of it occurs on the real chain.

    Args:
        stale_visitor: A planet without visitors whose ``locationListLast`` still names a fleet that left.
        id_shaped_pfp: A player whose ``pfp`` is ``5-12``, which is not a reference.
        unset_fleet: A fleet of a player without planet: ``locationType`` is ``guild``, ``locationId`` is empty.
        ownerless_reactor: A reactor whose ``owner`` and ``guildId`` are empty.
        pruned_struct: A destroyed struct: deleted from the chain, but its status attribute still exists.
        pruned_struct_planet: The planet whose slot ``water[3]`` still names the pruned struct.
        extra_fields: A player with a field of a later chain version and a fictitious one.
        colliding: Players whose ids are prefixes of each other: 1-19, 1-194, 1-1940.

    """

    stale_visitor: str
    id_shaped_pfp: str
    unset_fleet: str
    ownerless_reactor: str
    pruned_struct: str
    pruned_struct_planet: str
    extra_fields: str
    colliding: tuple[str, ...]


@attrs.define
class World:
    """
    The records of a chain by type, in the JSON form of its REST interface.

    Ids are in byte order, as on the chain: ``1-1, 1-10, 1-2``; struct types are in numeric order.
    Records may be changed at any time, through `put` and `remove` or in place.

    Args:
        tables: The records by store name and key. A store of single values contains each value as text.
        rocks: The spendable ``ualpha`` of a player's primary address, by player id.
        overrides: Fields of an answer that are added or override the computed ones, by id.
        oddities: The ids of unusual data in a generated world; None in any other world.

    """

    tables: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    rocks: dict[str, str] = attrs.field(factory=dict)
    overrides: dict[str, Record] = attrs.field(factory=dict)
    oddities: Oddities | None = None

    @classmethod
    def generate(cls, *, seed: int = 0, players: int = 40) -> World:
        """
        Generate a world whose entities reference each other as on the chain.

        The players are 1-1 to 1-*players*, and always 1-19, 1-194 and 1-1940, so there may be three more than
        requested. Player 1-11 has a guild (0-1), a planet, the fleet 9-11, a substation and visitors on the planet.

        Args:
            seed: The same seed and size produce the same world, on every platform.
            players: Number of players, at least 12, because the `Oddities` need that many.

        Raises:
            InvalidArgument: An argument is not a whole number, or there are too few players.

        """
        if not isinstance(players, int) or isinstance(players, bool):
            raise InvalidArgument(f"players must be a whole number, got {players!r:.80}")
        if players < _MIN_PLAYERS:
            raise InvalidArgument(f"players must be {_MIN_PLAYERS} or more, got {players}")
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise InvalidArgument(f"seed must be a whole number, got {seed!r:.80}")
        draft = _WorldDraft(Random(f"mama_structs/{seed}/{players}"), players)  # noqa: S311 - not used for security
        # All generators share one random generator, so their order determines the generated data.
        for part in (
            _add_players,
            _add_guilds,
            _add_planets,
            _add_fleets,
            _add_structs,
            _add_substations,
            _add_markets,
            _add_infusions,
            _add_permissions,
        ):
            part(draft)
        _add_applications(draft)
        _add_substation_attributes(draft)
        draft.tables["struct_type"] = _load_struct_types()
        pruned_at = draft.player(_PRUNED_STRUCT_PLAYER)["planetId"]
        draft.world.oddities = Oddities(
            stale_visitor=draft.player(_STALE_VISITOR_PLAYER)["planetId"],
            id_shaped_pfp=f"1-{_ID_SHAPED_PFP_PLAYER}",
            unset_fleet=f"9-{players}",
            ownerless_reactor=f"3-{draft.guilds + 1}",
            pruned_struct=draft.tables["planet"][pruned_at]["water"][-1],
            pruned_struct_planet=pruned_at,
            extra_fields=f"1-{_EXTRA_FIELDS_PLAYER}",
            colliding=tuple(f"1-{index}" for index in _COLLIDING_INDEXES),
        )
        return draft.world

    @classmethod
    def from_entities(cls, entities: Mapping[str, Mapping[str, Any]]) -> World:
        """
        Return a world of exactly these entities.

        Args:
            entities: Id to its record, or to a complete answer: ``{"Player": {...}, "gridAttributes": {...}}``.
                Additional fields of a bare record are zero; a complete answer is returned unchanged.

        Raises:
            InvalidArgument: A key is not an id, or a record does not have its key as ``id``.

        """
        if not isinstance(entities, Mapping):
            raise InvalidArgument(f"entities must be a mapping from id to record, got {entities!r:.80}")
        world = cls()
        for entity_id, answer in entities.items():
            table = get_store_of_id(entity_id)
            whole = isinstance(answer, Mapping) and isinstance(answer.get(table.key), Mapping)
            record = answer[table.key] if whole else answer
            if not isinstance(record, Mapping) or record.get("id") != entity_id:
                raise InvalidArgument(
                    f"entities[{entity_id!r}] must be a record with this id, got {record!r:.80}",
                    hint=f'{{"{entity_id}": {{"id": "{entity_id}", ...}}}}',
                )
            if whole:
                world.overrides[entity_id] = {key: value for key, value in answer.items() if key != table.key}
            world.put(table.name, entity_id, dict(record))
        return world

    def envelope(self, entity_id: str) -> Record:
        """
        Return a complete answer about one entity: a copy of its record, with the additional fields.

        Args:
            entity_id: The id of an entity.

        Raises:
            EntityNotFound: There is no such entity.

        """
        table = get_store_of_id(entity_id)
        record = self.tables.get(table.name, {}).get(entity_id)
        if record is None:
            raise EntityNotFound(entity_id)
        if entity_id in self.overrides:
            beside = self.overrides[entity_id]
        else:
            beside = {name: self._compute_field(name, entity_id) for name in table.additional_fields}
        return {table.key: deepcopy(record), **deepcopy(beside)}

    def rows(self, type: str) -> list[Record]:  # noqa: A002 - named as in the chain
        """Return copies of all records of a type, in the chain's order."""
        table = _format_tables(type)
        records = self.tables.get(table.name, {})
        if table.fields is None:
            return [deepcopy(records[key]) for key in self.ids(type)]
        name, value = table.fields
        return [{name: key, value: records[key]} for key in self.ids(type)]

    def ids(self, type: str) -> list[str]:  # noqa: A002 - named as in the chain
        """
        Return the keys of a type's records in the chain's order.

        Keys are ids or addresses. The key of an infusion contains both.

        Args:
            type: The type of the entities.

        """
        keys = self.tables.get(_format_tables(type).name, {})
        return sorted(keys, key=int) if type == "struct_type" else sorted(keys)

    def get(self, type: str, key: str) -> Any | None:  # noqa: A002 - named as in the chain
        """
        Return the stored record (not a copy), or None if it does not exist.

        Args:
            type: The type of the entity.
            key: The key of the record.

        """
        return self.tables.get(_format_tables(type).name, {}).get(key)

    def put(self, type: str, key: str, record: Any) -> None:  # noqa: A002 - named as in the chain
        """
        Add or replace a record. The record is not copied, so later changes of it are visible.

        Args:
            type: The type of the entity.
            key: The key of the record.
            record: The record.

        """
        self.tables.setdefault(_format_tables(type).name, {})[key] = record

    def remove(self, entity_id: str) -> None:
        """
        Delete an entity. References to it are not deleted, as on the chain.

        Args:
            entity_id: The id of an entity.

        Raises:
            EntityNotFound: The world has no such entity.

        """
        if self.tables.get(get_store_of_id(entity_id).name, {}).pop(entity_id, None) is None:
            raise EntityNotFound(entity_id)

    def attributes(self, table: str, names: tuple[str, ...], entity_id: str) -> dict[str, str]:
        """
        Return the named attributes of an entity. A missing attribute is zero.

        Args:
            table: The name of the table.
            names: The names of the attributes.
            entity_id: The id of an entity.

        """
        values = self.tables.get(table, {})
        return {name: values.get(f"{number}-{entity_id}", "0") for number, name in enumerate(names)}

    def _compute_field(self, name: str, entity_id: str) -> Any:
        match name:
            case "gridAttributes":
                return self.attributes("grid", ATTRIBUTES["grid"], entity_id)
            case "planetAttributes":
                return self.attributes("planet_attribute", ATTRIBUTES["planet_attribute"], entity_id)
            case "playerInventory":
                return {"rocks": {"denom": "ualpha", "amount": self.rocks.get(entity_id, "0")}}
            case "structDefenders":
                return self._find_defenders(entity_id)
        values = self.attributes("struct_attribute", ATTRIBUTES["struct_attribute"], entity_id)
        status = int(values["status"])
        return values | {name: bool(status & bit) for name, bit in STATUS_BITS.items()}

    def _find_defenders(self, struct_id: str) -> list[str]:
        code = ATTRIBUTES["struct_attribute"].index("protectedStructIndex")
        prefix, index, values = f"{code}-", struct_id.removeprefix("5-"), self.tables.get("struct_attribute", {})
        defenders = [key.removeprefix(prefix) for key in values if values[key] == index and key.startswith(prefix)]
        return [defender for defender in defenders if self.get("struct", defender) is not None]


def get_store_of_id(entity_id: str) -> ChainStore:
    """Return the store for the type of an id. Raise `InvalidArgument` if the id is invalid."""
    entity_type = EntityId.parse(entity_id).type
    if not entity_type.has_ids:
        raise InvalidArgument(f"entities of type {entity_type} have no type-index ids, got {entity_id!r}")
    return CHAIN_STORES[entity_type]


def _format_tables(name: str) -> ChainStore:
    if name not in CHAIN_STORES:
        raise InvalidArgument(f"type must be one of {', '.join(CHAIN_STORES)}, got {name!r}")
    return CHAIN_STORES[name]


# Generation of a world


@cache
def _load_data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        files("mama_structs.testing.node").joinpath("world.json").read_text(encoding="utf-8")
    )
    return data


def _load_struct_types() -> dict[str, dict[str, Any]]:
    """
    Return new copies of the chain's struct types by number.

    They have all 68 fields of chain v0.16.0.
    """
    types = _load_data()["struct_types"]
    return {str(number): types["shared"] | row for number, row in enumerate(types["each"], 1)}


@cache
def _find_types(category: str, ambit: str) -> tuple[int, ...]:
    """Return the numbers of the struct types in *category* (``fleet`` or ``planet``) whose only ambit is *ambit*."""
    fitting = (str(_AMBIT_MASKS[ambit]), category)
    rows = _load_struct_types().items()
    return tuple(int(number) for number, row in rows if (row["possibleAmbit"], row["category"]) == fitting)


def _fill_template(template: Any, values: dict[str, Any]) -> Any:
    if isinstance(template, dict):
        return {key: _fill_template(member, values) for key, member in template.items()}
    if isinstance(template, list):
        return list(template)
    return template.format_map(values) if "{" in template else template


class _WorldDraft:
    """
    A world under construction.

    It also determines ids in advance, because records may reference entities that are added later.
    """

    def __init__(self, rng: Random, players: int) -> None:
        self.rng, self.players = rng, players
        self.world = World()
        self.tables = self.world.tables
        # Create these stores first, in the order of their type codes, which is the order of the stores in a world.
        self.tables |= {name: {} for name in ("guild", "player", "planet", "reactor", "substation", "struct")}
        self.indexes = sorted({*range(1, players + 1), *_COLLIDING_INDEXES})
        self.guilds = max(2, players // 25)
        self.substations = self.guilds + max(2, players // 10)
        # Guild n belongs to player n, except for the demo player, who is a member of guild 1 and owns no guild.
        self.owners = {
            number: number if number != _DEMO_PLAYER else self.guilds + 1 for number in range(1, self.guilds + 1)
        }
        self.guild_of_owner = {owner: number for number, owner in self.owners.items()}
        self.structs, self.allocations = itertools.count(1), itertools.count(1)

    def add(self, store: str, key: str = "", **values: Any) -> dict[str, Any]:
        """
        Add a record from the template of its store, and return it.

        Pass *key* for a record without an id.
        """
        if values.get("owner"):
            values["creator"] = self.tables["player"][values["owner"]]["primaryAddress"]
        record: dict[str, Any] = _fill_template(_load_data()["records"][store], values)
        self.tables.setdefault(store, {})[key or record["id"]] = record
        return record

    def set_attributes(self, store: str, entity_id: str, **values: int) -> None:
        """Set attributes of an entity. Zeros are not stored."""
        table = self.tables.setdefault(store, {})
        names = ATTRIBUTES[store]
        table.update({f"{names.index(name)}-{entity_id}": str(value) for name, value in values.items() if value})

    def rows(self, store: str) -> list[dict[str, Any]]:
        return list(self.tables[store].values())

    def player(self, index: int) -> dict[str, Any]:
        record: dict[str, Any] = self.tables["player"][f"1-{index}"]
        return record

    def random_address(self, prefix: str = "structs1") -> str:
        return prefix + "".join(self.rng.choices(_BECH32, k=38))

    def random_name(self) -> str:
        return f"{self.rng.choice(_NAME_ADJECTIVES)}-{self.rng.choice(_NAME_NOUNS)}"

    def random_player(self) -> str:
        return f"1-{self.rng.choice(self.indexes)}"

    def random_substation(self) -> str:
        """Return the id of a random substation that does not belong to a guild."""
        return f"4-{self.rng.randint(self.guilds + 1, self.substations)}"

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability


# Players, guilds, planets, fleets and structs


def _add_players(draft: _WorldDraft) -> None:
    rng = draft.rng
    for index in draft.indexes:
        guild = 1 if index == _DEMO_PLAYER else draft.guild_of_owner.get(index, 0)
        # The last player represents a new player, without a guild and a planet.
        if not guild and index != draft.players and draft.chance(0.85):
            guild = rng.randint(1, draft.guilds)
        primary, player_id, substation = draft.random_address(), f"1-{index}", ""
        if guild:
            substation = f"4-{guild}" if draft.chance(0.7) else draft.random_substation()
        record = draft.add(
            "player",
            n=index,
            guild=f"0-{guild}" if guild else "",
            substation=substation,
            address=primary,
            rank=101 if guild else 0,
            name=draft.random_name(),
            pfp="5-12" if index == _ID_SHAPED_PFP_PLAYER else f"art/{rng.randrange(400)}.png",
        )
        if index == _EXTRA_FIELDS_PLAYER:
            record["pfpClientRenderAttributes"] = '{"frame":"gold","layer":"5-12"}'
            record["seasonBadges"] = ["early", "builder"]
        for address in (primary, draft.random_address()) if draft.chance(0.1) else (primary,):
            draft.add("address", address, address=address, player=player_id)
        draft.set_attributes(
            "grid",
            player_id,
            ore=rng.randrange(6),
            capacity=50_000_000 if guild else 0,
            structsLoad=25_000_000,
            lastAction=rng.randrange(1, 1_000_000),
        )
        draft.world.rocks[player_id] = str(rng.randrange(10_000_000))


def _add_guilds(draft: _WorldDraft) -> None:
    draft.player(_DEMO_PLAYER)["substationId"] = "4-1"
    bypasses = ("closed", "permissioned", "member")
    for number, index in [*draft.owners.items(), (draft.guilds + 1, 0)]:
        owner, guild = (f"1-{index}", f"0-{number}") if index else ("", "")
        if guild:
            draft.add(
                "guild",
                n=number,
                name=draft.random_name(),
                owner=owner,
                by_request=draft.rng.choice(bypasses),
                by_invite=draft.rng.choice(bypasses),
            )
        draft.add("reactor", n=number, validator=draft.random_address("structsvaloper1"), guild=guild, owner=owner)
        draft.set_attributes("grid", f"3-{number}", fuel=3_000_000, capacity=3_000_000, load=1_000_000)


def _add_planets(draft: _WorldDraft) -> None:
    settlers = [
        index
        for index in draft.indexes
        if index in _PLAYERS_WITH_PLANET
        or (index != draft.players and (index in draft.guild_of_owner or draft.chance(0.9)))
    ]
    draft.rng.shuffle(settlers)
    for number, index in enumerate(settlers, 1):
        planet_id, ore, owner = f"2-{number}", draft.rng.randrange(6), draft.player(index)
        owner["planetId"] = planet_id
        status = "active" if ore else "complete"
        draft.add("planet", n=number, owner=owner["id"], status=status, name=draft.random_name())
        draft.set_attributes("grid", planet_id, ore=ore)
        draft.set_attributes("planet_attribute", planet_id, planetaryShield=25 * draft.rng.randrange(1, 10))


def _add_fleets(draft: _WorldDraft) -> None:
    visitors: dict[str, list[dict[str, Any]]] = {}
    planets = draft.tables["planet"]
    names = list(planets)
    stale = draft.player(_STALE_VISITOR_PLAYER)["planetId"]
    for index in draft.indexes:
        player = draft.player(index)
        home = place = player["planetId"]
        if index in _VISITING_PLAYERS:
            place = draft.player(_DEMO_PLAYER)["planetId"]
        elif home and index != _DEMO_PLAYER and draft.chance(0.2):
            place = draft.rng.choice(names)
        if place == stale:
            place = home
        # A fleet without a location shows the zero value of the chain's enum, which is "guild".
        kind, status = "planet" if place else "guild", "onStation" if place == home else "away"
        fleet = draft.add("fleet", n=index, owner=player["id"], kind=kind, place=place, status=status)
        if place != home:
            visitors.setdefault(place, []).append(fleet)
    for planet_id, queue in visitors.items():
        planets[planet_id] |= {"locationListStart": queue[0]["id"], "locationListLast": queue[-1]["id"]}
        for ahead, behind in itertools.pairwise(queue):
            ahead["locationListBackward"] = behind["id"]
            behind["locationListForward"] = ahead["id"]
    planets[stale]["locationListLast"] = f"9-{_VISITING_PLAYERS[0]}"


def _add_structs(draft: _WorldDraft) -> None:
    rng = draft.rng
    for player in draft.rows("player"):
        if not player["planetId"]:
            continue
        demo = player["index"] == str(_DEMO_PLAYER)
        planet = draft.tables["planet"][player["planetId"]]
        fleet = draft.tables["fleet"][player["fleetId"]]
        if demo or draft.chance(0.95):
            fleet["commandStruct"] = _add_struct(
                draft, player, "fleet", fleet, kind=_COMMAND_SHIP_TYPE, ambit="space", slot=0
            )
        in_fleet = [_add_struct_in_free_slot(draft, player, "fleet", fleet) for _ in range(rng.randrange(3) + demo)]
        on_planet = (
            [_add_struct_in_free_slot(draft, player, "planet", planet, kind=_SMALL_GENERATOR_TYPE)] if demo else []
        )
        on_planet += [
            _add_struct_in_free_slot(draft, player, "planet", planet) for _ in range(rng.randrange(1, 4 - demo))
        ]
        for defender in in_fleet:
            defended = rng.choice(on_planet)
            if demo or draft.chance(0.3):
                draft.set_attributes(
                    "struct_attribute", defender, protectedStructIndex=int(defended.removeprefix("5-"))
                )
        if player["index"] == str(_PRUNED_STRUCT_PLAYER):
            planet["water"][-1] = pruned = f"5-{next(draft.structs)}"
            draft.set_attributes("struct_attribute", pruned, status=_PRUNED_STATUS)


def _add_struct_in_free_slot(
    draft: _WorldDraft, player: dict[str, Any], category: str, place: dict[str, Any], *, kind: int = 0
) -> str:
    """
    Add a struct in the first free slot of its ambit, and return its id.

    The last slot stays free, because it may be the slot of the pruned struct.
    """
    ambit = "land" if kind else draft.rng.choice([ambit for ambit in AMBITS if _find_types(category, ambit)])
    kind = kind or draft.rng.choice(_find_types(category, ambit))
    slot = place[ambit].index("")
    place[ambit][slot] = built = _add_struct(draft, player, category, place, kind=kind, ambit=ambit, slot=slot)
    return built


def _add_struct(
    draft: _WorldDraft,
    player: dict[str, Any],
    category: str,
    place: dict[str, Any],
    *,
    kind: int,
    ambit: str,
    slot: int,
) -> str:
    record = draft.add(
        "struct",
        n=next(draft.structs),
        type=kind,
        owner=player["id"],
        kind=category,
        place=place["id"],
        ambit=ambit,
        slot=slot,
    )
    struct_id: str = record["id"]
    ready = kind == _COMMAND_SHIP_TYPE or draft.chance(0.85)
    started = draft.rng.randrange(1, 1_000_000)
    draft.set_attributes(
        "struct_attribute",
        struct_id,
        health=6 if kind == _COMMAND_SHIP_TYPE else 3,
        status=_ONLINE_STATUS if ready else _UNBUILT_STATUS,
        blockStartBuild=0 if ready else started,
        blockStartOreMine=started if ready and kind in _MINE_TYPES else 0,
        blockStartOreRefine=started if ready and kind in _REFINERY_TYPES else 0,
    )
    return struct_id


# Power, markets, infusions and permissions


def _add_substations(draft: _WorldDraft) -> None:
    for number in range(1, draft.substations + 1):
        of_guild = number <= draft.guilds
        owner = f"1-{draft.owners[number]}" if of_guild else draft.random_player()
        draft.add("substation", n=number, owner=owner, name=draft.random_name())
        kind = "automated" if of_guild else draft.rng.choice(("static", "dynamic"))
        _add_allocation(draft, kind, f"3-{number}" if of_guild else owner, f"4-{number}", owner)


def _add_allocation(draft: _WorldDraft, kind: str, source: str, destination: str, controller: str) -> int:
    number = next(draft.allocations)
    draft.add("allocation", n=number, kind=kind, source=source, destination=destination, owner=controller)
    draft.set_attributes("grid", f"6-{number}", power=1000 * draft.rng.randrange(1, 500))
    return number


def _add_markets(draft: _WorldDraft) -> None:
    rng = draft.rng
    draft.tables |= {"provider": {}, "agreement": {}}
    for number, owner in draft.owners.items():
        draft.add(
            "provider",
            n=number,
            denom=rng.choice(("ualpha", f"uguild.0-{number}")),
            policy=rng.choice(("openMarket", "guildMarket", "closedMarket")),
            owner=f"1-{owner}",
        )
        for _ in range(rng.randrange(1, 4)):
            destination = draft.random_substation()
            consumer = draft.tables["substation"][destination]["owner"]
            draft.add(
                "agreement",
                # An agreement and its allocation have the same index.
                n=_add_allocation(draft, "providerAgreement", f"4-{number}", destination, consumer),
                provider=f"10-{number}",
                capacity=rng.randrange(1, 1_000_000),
                start=rng.randrange(1, 500_000),
                end=rng.randrange(500_000, 2_000_000),
                owner=consumer,
            )


def _add_infusions(draft: _WorldDraft) -> None:
    def infuse(player: dict[str, Any], kind: str, destination: str) -> None:
        address, fuel = player["primaryAddress"], 1000 * draft.rng.randrange(1, 5000)
        values = {"kind": kind, "destination": destination, "fuel": fuel, "player": player["id"], "address": address}
        draft.add("infusion", f"{destination}/{address}", **values)

    for player in draft.rows("player"):
        if draft.chance(0.4):
            infuse(player, "reactor", f"3-{draft.rng.randint(1, draft.guilds)}")
    for struct in draft.rows("struct"):
        if int(struct["type"]) in _GENERATOR_TYPES:
            infuse(draft.tables["player"][struct["owner"]], "struct", struct["id"])


def _add_permissions(draft: _WorldDraft) -> None:
    permissions = draft.tables.setdefault("permission", {})
    draft.tables["guild_rank_permission"] = {}
    permissions |= {f"8-{address}@0": _ALL_PERMISSIONS for address in draft.tables["address"]}
    permissions |= {f"{row['id']}@{row['owner']}": _ALL_PERMISSIONS for row in draft.rows("substation")}
    for index in _COLLIDING_INDEXES:
        permissions |= {f"1-2@1-{index}": "4", f"1-{index}@1-2": "2"}
    for _ in range(draft.players // 4):
        permissions[f"{draft.random_player()}@{draft.random_player()}"] = str(2 ** draft.rng.randrange(25))
    for number, owner in draft.owners.items():
        guild = f"0-{number}"
        permissions[f"{guild}@1-{owner}"] = _ALL_PERMISSIONS
        for thing in (f"3-{number}", f"4-{number}"):
            for bit in sorted(draft.rng.sample(range(25), 3)):
                rank, key = draft.rng.randrange(1, 102), f"{thing}/{guild}/{bit:02}"
                draft.add("guild_rank_permission", key, object=thing, guild=guild, permissions=2**bit, rank=rank)


def _add_applications(draft: _WorldDraft) -> None:
    draft.tables["guild_membership_application"] = {}
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
            proposer=f"1-{draft.owners[guild]}" if invited else player["id"],
        )


def _add_substation_attributes(draft: _WorldDraft) -> None:
    homes = Counter(player["substationId"] for player in draft.rows("player"))
    known = {"capacity": 2_000_000, "load": 500_000, "connectionCapacity": 50_000}
    for substation_id in draft.tables["substation"]:
        draft.set_attributes("grid", substation_id, **known, connectionCount=homes[substation_id])
