"""The attribute blocks that answers carry beside an entity, and the rows of the attribute lists."""

import attrs

from mama_structs.structs.ids import EntityId, EntityType
from mama_structs.structs.record import UINT256, Record


@attrs.frozen(kw_only=True, repr=False)
class Coin(Record):
    """An amount of one token; unlike the chain's other numbers it may have up to 256 bits."""

    denom: str = ""
    amount: int = attrs.field(default=0, metadata=UINT256)


@attrs.frozen(kw_only=True, repr=False)
class PlayerInventory(Record):
    """What the primary address of a player can spend."""

    rocks: Coin = attrs.field(factory=Coin)


@attrs.frozen(kw_only=True, repr=False)
class GridAttributes(Record):
    """
    What the power grid knows of an object; power is in milliwatts.

    On a planet ``ore`` is what is still buried, on a player what can be stolen.
    """

    ore: int = 0
    fuel: int = 0
    capacity: int = 0
    load: int = 0
    structs_load: int = 0
    power: int = 0
    connection_capacity: int = 0
    connection_count: int = 0
    allocation_pointer_start: int = 0
    allocation_pointer_end: int = 0
    proxy_nonce: int = 0
    last_action: int = 0
    nonce: int = 0
    ready: int = 0
    checkpoint_block: int = 0


@attrs.frozen(kw_only=True, repr=False)
class StructAttributes(Record):
    """The state of a struct; ``status`` is a bit mask that the ``is_`` fields spell out."""

    health: int = 0
    status: int = 0
    block_start_build: int = 0
    block_start_ore_mine: int = 0
    block_start_ore_refine: int = 0
    protected_struct_index: int = 0
    type_count: int = 0
    is_materialized: bool = False
    is_built: bool = False
    is_online: bool = False
    is_hidden: bool = False
    is_destroyed: bool = False
    is_locked: bool = False

    @property
    def protected_struct(self) -> EntityId | None:
        """The struct that this one defends: the chain gives its bare index, 0 for none."""
        return EntityId(EntityType.STRUCT, self.protected_struct_index) if self.protected_struct_index else None


@attrs.frozen(kw_only=True, repr=False)
class PlanetAttributes(Record):
    """The defences and the clocks of a planet."""

    planetary_shield: int = 0
    repair_network_quantity: int = 0
    defensive_cannon_quantity: int = 0
    coordinated_global_shield_network_quantity: int = 0
    low_orbit_ballistics_interceptor_network_quantity: int = 0
    advanced_low_orbit_ballistics_interceptor_network_quantity: int = 0
    low_orbit_ballistics_interceptor_network_success_rate_numerator: int = 0
    low_orbit_ballistics_interceptor_network_success_rate_denominator: int = 0
    orbital_jamming_station_quantity: int = 0
    advanced_orbital_jamming_station_quantity: int = 0
    block_start_raid: int = 0
    block_raider_arrived: int = 0
    block_start_ore_mine: int = 0
    block_start_ore_refine: int = 0
    ore_mining_active_quantity: int = 0
    ore_refining_active_quantity: int = 0


@attrs.frozen(kw_only=True, repr=False)
class AttributeRecord(Record):
    """One row of the struct or planet attribute lists; its id is ``attribute-type-index``."""

    attribute_id: str = ""
    value: int = 0


@attrs.frozen(kw_only=True, repr=False)
class GridRecord(AttributeRecord):
    """One row of the grid list."""


@attrs.frozen(kw_only=True, repr=False)
class PermissionRecord(Record):
    """Which permissions (a bit mask) a player has on an object; its id is ``object@player``."""

    permission_id: str = ""
    value: int = 0


@attrs.frozen(kw_only=True, repr=False)
class GuildRankPermissionRecord(Record):
    """From which rank on the members of a guild have a permission on an object."""

    object_id: EntityId | None = None
    guild_id: EntityId | None = None
    permissions: int = 0
    rank: int = 0


@attrs.frozen(kw_only=True, repr=False)
class InternalAddressAssociation(Record):
    """Which guild or provider an internal address belongs to."""

    address: str = ""
    object_id: EntityId | None = None
