"""
A small Structs chain as plain data: what a node would answer from.

`World.generate` makes one from a seed; nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

import attrs

from mama_structs.errors import EntityNotFound, InvalidArgument
from mama_structs.structs.enums import GridAttribute, PlanetAttribute, StructAttribute
from mama_structs.structs.ids import EntityId

Record = dict[str, Any]

# The names of the numbers that a store keeps for each entity, in the order of their codes.
ATTRIBUTES: Final = {
    "grid": tuple(member.value for member in GridAttribute),
    "struct_attribute": tuple(member.value for member in StructAttribute),
    "planet_attribute": tuple(member.value for member in PlanetAttribute),
}

# Bits of a struct's status attribute, in the order in which the envelope names them.
STATUS_BITS: Final = {
    "isMaterialized": 1,
    "isBuilt": 2,
    "isOnline": 4,
    "isHidden": 16,
    "isDestroyed": 32,
    "isLocked": 64,
}

AMBITS: Final = ("space", "air", "land", "water")


@attrs.frozen
class Table:
    """One store of the chain: its name in routes, such as ``player``, and its key in answers, such as ``Player``."""

    name: str
    key: str
    siblings: tuple[str, ...] = ()
    """What an answer about one entity carries beside the record, in order."""
    fields: tuple[str, str] | None = None
    """For stores of single values: the names of key and value in a row."""
    status: bool = False
    """Whether its lists carry the ``status`` array that the chain never fills."""
    error_code: int = 13
    """The gRPC code of paging errors."""


TABLES: Final = {
    table.name: table
    for table in (
        Table("guild", "Guild"),
        Table("player", "Player", ("gridAttributes", "playerInventory")),
        Table("planet", "Planet", ("gridAttributes", "planetAttributes")),
        Table("reactor", "Reactor", ("gridAttributes",)),
        Table("substation", "Substation", ("gridAttributes",)),
        Table("struct", "Struct", ("structAttributes", "gridAttributes", "structDefenders")),
        Table("allocation", "Allocation", ("gridAttributes",), status=True),
        Table("infusion", "Infusion", status=True),
        Table("address", "address"),
        Table("fleet", "Fleet"),
        Table("provider", "Provider", ("gridAttributes",)),
        Table("agreement", "Agreement"),
        Table("struct_type", "StructType"),
        Table("guild_membership_application", "GuildMembershipApplication"),
        Table("guild_rank_permission", "guild_rank_permission_records", error_code=2),
        Table("grid", "gridRecords", fields=("attributeId", "value"), error_code=2),
        Table("struct_attribute", "structAttributeRecords", fields=("attributeId", "value"), error_code=2),
        Table("planet_attribute", "planetAttributeRecords", fields=("attributeId", "value"), error_code=2),
        Table("permission", "permissionRecords", fields=("permissionId", "value"), error_code=2),
    )
}


@attrs.frozen
class Oddities:
    """
    The ids of a generated world's awkward data: all of it occurs on the real chain.

    Args:
        stale_visitor: A planet without visitors whose ``locationListLast`` still names a fleet that left.
        id_shaped_pfp: A player whose ``pfp`` is ``5-12``, which is no reference.
        unset_fleet: A fleet of a player without planet: ``locationType`` is ``guild``, ``locationId`` is empty.
        ownerless_reactor: A reactor whose ``owner`` and ``guildId`` are empty.
        pruned_struct: A destroyed struct: gone from the chain, its status attribute still there.
        pruned_struct_planet: The planet whose slot ``water[3]`` still names the pruned struct.
        extra_fields: A player with a field of a later chain version and one that was invented.
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

    Ids order bytewise, as the chain orders them: ``1-1, 1-10, 1-2``; struct types order by number.
    Records may be changed at any time, through `put` and `remove` or in place.

    Args:
        tables: Store name to key to record; stores of single values hold their value's text.
        rocks: What a player's primary address can spend, in ``ualpha``, by player id.
        given: What was given beside a record and overrides what would be computed, by id.
        oddities: The awkward data of a generated world, None in any other.

    """

    tables: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    rocks: dict[str, str] = attrs.field(factory=dict)
    given: dict[str, Record] = attrs.field(factory=dict)
    oddities: Oddities | None = None

    @classmethod
    def generate(cls, *, seed: int = 0, players: int = 40) -> World:
        """
        Make a world in which everything refers to everything else as on the chain.

        The players are 1-1 to 1-*players*, and 1-19, 1-194, 1-1940 in any case, so up to three more than asked for.
        Player 1-11 has a guild (0-1), a planet, the fleet 9-11, a substation and visitors on the planet.

        Args:
            seed: The same seed and size give the same world, on every platform.
            players: How many players, 12 or more: fewer have no room for the `Oddities`.

        Raises:
            InvalidArgument: One of them is no whole number, or there are too few players.

        """
        # Imported here because the generator builds upon this module.
        from mama_structs.testing.node.generation import generate  # noqa: PLC0415

        return generate(seed=seed, players=players)

    @classmethod
    def of(cls, entities: Mapping[str, Mapping[str, Any]]) -> World:
        """
        Make a world of exactly these entities.

        Args:
            entities: Id to its bare record, or to a whole answer: ``{"Player": {...}, "gridAttributes": {...}}``.
                Beside a bare record the siblings are filled in as zeros; a whole answer is given back as it is.

        Raises:
            InvalidArgument: A key is no id, or a record does not have its key as ``id``.

        """
        if not isinstance(entities, Mapping):
            raise InvalidArgument(f"entities must be a mapping from id to record, got {entities!r:.80}")
        world = cls()
        for entity_id, answer in entities.items():
            table = table_of(entity_id)
            whole = isinstance(answer, Mapping) and isinstance(answer.get(table.key), Mapping)
            record = answer[table.key] if whole else answer
            if not isinstance(record, Mapping) or record.get("id") != entity_id:
                raise InvalidArgument(
                    f"entities[{entity_id!r}] must be a record with this id, got {record!r:.80}",
                    hint=f'{{"{entity_id}": {{"id": "{entity_id}", ...}}}}',
                )
            if whole:
                world.given[entity_id] = {key: value for key, value in answer.items() if key != table.key}
            world.put(table.name, entity_id, dict(record))
        return world

    def envelope(self, entity_id: str) -> Record:
        """
        Return the answer about one entity, in a fresh copy: its record and what stands beside it.

        Raises:
            EntityNotFound: There is no such entity.

        """
        table = table_of(entity_id)
        record = self.tables.get(table.name, {}).get(entity_id)
        if record is None:
            raise EntityNotFound(entity_id)
        if entity_id in self.given:
            beside = self.given[entity_id]
        else:
            beside = {name: self._sibling(name, entity_id) for name in table.siblings}
        return {table.key: deepcopy(record), **deepcopy(beside)}

    def rows(self, type: str) -> list[Record]:  # noqa: A002 - named as in the chain
        """Return a fresh copy of every bare record of a type, in the chain's order."""
        table = _table(type)
        records = self.tables.get(table.name, {})
        if table.fields is None:
            return [deepcopy(records[key]) for key in self.ids(type)]
        name, value = table.fields
        return [{name: key, value: records[key]} for key in self.ids(type)]

    def ids(self, type: str) -> list[str]:  # noqa: A002 - named as in the chain
        """Return the keys of a type's store in the chain's order: ids, addresses, or for infusions both."""
        keys = self.tables.get(_table(type).name, {})
        return sorted(keys, key=int) if type == "struct_type" else sorted(keys)

    def get(self, type: str, key: str) -> Any | None:  # noqa: A002 - named as in the chain
        """Return the stored record itself (not a copy), None when there is none."""
        return self.tables.get(_table(type).name, {}).get(key)

    def put(self, type: str, key: str, record: Any) -> None:  # noqa: A002 - named as in the chain
        """Add or replace a record; *record* is kept, not copied."""
        self.tables.setdefault(_table(type).name, {})[key] = record

    def remove(self, entity_id: str) -> None:
        """Take an entity off the chain; what refers to it stays, as on the chain."""
        if self.tables.get(table_of(entity_id).name, {}).pop(entity_id, None) is None:
            raise EntityNotFound(entity_id)

    def attributes(self, table: str, names: tuple[str, ...], entity_id: str) -> dict[str, str]:
        """Return an entity's named attributes; what the store lacks is zero."""
        values = self.tables.get(table, {})
        return {name: values.get(f"{number}-{entity_id}", "0") for number, name in enumerate(names)}

    def _sibling(self, name: str, entity_id: str) -> Any:
        match name:
            case "gridAttributes":
                return self.attributes("grid", ATTRIBUTES["grid"], entity_id)
            case "planetAttributes":
                return self.attributes("planet_attribute", ATTRIBUTES["planet_attribute"], entity_id)
            case "playerInventory":
                return {"rocks": {"denom": "ualpha", "amount": self.rocks.get(entity_id, "0")}}
            case "structDefenders":
                return self._defenders_of(entity_id)
        values = self.attributes("struct_attribute", ATTRIBUTES["struct_attribute"], entity_id)
        status = int(values["status"])
        return values | {name: bool(status & bit) for name, bit in STATUS_BITS.items()}

    def _defenders_of(self, struct_id: str) -> list[str]:
        code = ATTRIBUTES["struct_attribute"].index("protectedStructIndex")
        prefix, index, values = f"{code}-", struct_id.removeprefix("5-"), self.tables.get("struct_attribute", {})
        defenders = [key.removeprefix(prefix) for key in values if values[key] == index and key.startswith(prefix)]
        return [defender for defender in defenders if self.get("struct", defender) is not None]


def table_of(entity_id: str) -> Table:
    """Return the store that an id belongs to, or raise `InvalidArgument`."""
    entity_type = EntityId.parse(entity_id).type
    if not entity_type.has_ids:
        raise InvalidArgument(f"entities of type {entity_type} have no type-index ids, got {entity_id!r}")
    return TABLES[entity_type]


def _table(name: str) -> Table:
    if name not in TABLES:
        raise InvalidArgument(f"type must be one of {', '.join(TABLES)}, got {name!r}")
    return TABLES[name]
