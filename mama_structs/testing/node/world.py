"""
A small Structs chain as plain data, from which the fake node answers.

`World.generate` creates one from a seed. This module does no I/O.
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

# Attribute names of each store of numbers, in the order of their codes.
ATTRIBUTES: Final = {
    "grid": tuple(member.value for member in GridAttribute),
    "struct_attribute": tuple(member.value for member in StructAttribute),
    "planet_attribute": tuple(member.value for member in PlanetAttribute),
}

# Bits of a struct's status attribute, in the order of the answer's fields.
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
    """
    A store of the chain.

    *name* is its name in routes (``player``), *key* its key in answers (``Player``).
    """

    name: str
    key: str
    siblings: tuple[str, ...] = ()
    """The additional fields of an answer about one entity, in order."""
    fields: tuple[str, str] | None = None
    """For stores of single values: the names of key and value in a row."""
    status: bool = False
    """True if its lists have the field ``status``, an array that the chain never fills."""
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
        tables: Store name to key to record; stores of single values contain their value's text.
        rocks: The spendable ``ualpha`` of a player's primary address, by player id.
        given: Additional fields of an answer that override the computed ones, by id.
        oddities: The unusual data of a generated world, None in any other.

    """

    tables: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    rocks: dict[str, str] = attrs.field(factory=dict)
    given: dict[str, Record] = attrs.field(factory=dict)
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
        # Circular import: the generator uses this module.
        from mama_structs.testing.node.generation import generate  # noqa: PLC0415

        return generate(seed=seed, players=players)

    @classmethod
    def of(cls, entities: Mapping[str, Mapping[str, Any]]) -> World:
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
        Return the answer about one entity: a copy of its record and its additional fields.

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
        """Return copies of all records of a type, in the chain's order."""
        table = _table(type)
        records = self.tables.get(table.name, {})
        if table.fields is None:
            return [deepcopy(records[key]) for key in self.ids(type)]
        name, value = table.fields
        return [{name: key, value: records[key]} for key in self.ids(type)]

    def ids(self, type: str) -> list[str]:  # noqa: A002 - named as in the chain
        """
        Return the keys of a type's store in the chain's order.

        Keys are ids or addresses; keys of infusions contain both.
        """
        keys = self.tables.get(_table(type).name, {})
        return sorted(keys, key=int) if type == "struct_type" else sorted(keys)

    def get(self, type: str, key: str) -> Any | None:  # noqa: A002 - named as in the chain
        """Return the stored record (not a copy), or None if it does not exist."""
        return self.tables.get(_table(type).name, {}).get(key)

    def put(self, type: str, key: str, record: Any) -> None:  # noqa: A002 - named as in the chain
        """Add or replace a record. *record* is stored without copying."""
        self.tables.setdefault(_table(type).name, {})[key] = record

    def remove(self, entity_id: str) -> None:
        """Delete an entity. References to it remain, as on the chain."""
        if self.tables.get(table_of(entity_id).name, {}).pop(entity_id, None) is None:
            raise EntityNotFound(entity_id)

    def attributes(self, table: str, names: tuple[str, ...], entity_id: str) -> dict[str, str]:
        """Return an entity's named attributes; missing ones are zero."""
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
    """Return the store of an id, or raise `InvalidArgument`."""
    entity_type = EntityId.parse(entity_id).type
    if not entity_type.has_ids:
        raise InvalidArgument(f"entities of type {entity_type} have no type-index ids, got {entity_id!r}")
    return TABLES[entity_type]


def _table(name: str) -> Table:
    if name not in TABLES:
        raise InvalidArgument(f"type must be one of {', '.join(TABLES)}, got {name!r}")
    return TABLES[name]
