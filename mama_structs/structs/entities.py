"""
Records of the chain: entity types, additional parts of answers, and struct types.

Fields are in the order of the chain's definitions. Numbers are whole numbers, references are ids or None.
``creator`` is always an address, ``owner`` always a player.
"""

from decimal import Decimal

import attrs

from mama_structs.structs import enums
from mama_structs.structs.chain_json import UINT256, StructsModel, wire_name_metadata
from mama_structs.structs.ids import EntityId, EntityType


@attrs.frozen(kw_only=True, repr=False)
class Coin(StructsModel):
    """An amount of one token. Unlike other numbers of the chain it may have up to 256 bits."""

    denom: str = ""
    amount: int = attrs.field(default=0, metadata=UINT256)


@attrs.frozen(kw_only=True, repr=False)
class PlayerInventory(StructsModel):
    """The tokens that a player can spend from the primary address."""

    rocks: Coin = attrs.field(factory=Coin)


@attrs.frozen(kw_only=True, repr=False)
class GridAttributes(StructsModel):
    """
    Power grid attributes of an object; power is in milliwatts.

    ``ore`` is the remaining buried ore of a planet, and the ore of a player that can be stolen.
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
class StructAttributes(StructsModel):
    """The state of a struct. The ``is_`` fields are the bits of the bit mask ``status``."""

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
        """The struct that this struct protects, or None. The chain stores its index without a type, 0 for none."""
        return EntityId(EntityType.STRUCT, self.protected_struct_index) if self.protected_struct_index else None


@attrs.frozen(kw_only=True, repr=False)
class PlanetAttributes(StructsModel):
    """Attributes of a planet: its defences, and the block at which each of its processes started."""

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
class AttributeRecord(StructsModel):
    """One row of an attribute list; its id is ``attribute-type-index``."""

    attribute_id: str = ""
    value: int = 0


@attrs.frozen(kw_only=True, repr=False)
class StructAttributeRecord(AttributeRecord):
    """One row of the struct attribute list."""


@attrs.frozen(kw_only=True, repr=False)
class PlanetAttributeRecord(AttributeRecord):
    """One row of the planet attribute list."""


@attrs.frozen(kw_only=True, repr=False)
class GridRecord(AttributeRecord):
    """One row of the grid list."""


@attrs.frozen(kw_only=True, repr=False)
class PermissionRecord(StructsModel):
    """Permissions (a bit mask) of a player on an object; its id is ``object@player``."""

    permission_id: str = ""
    value: int = 0


@attrs.frozen(kw_only=True, repr=False)
class GuildRankPermissionRecord(StructsModel):
    """Minimum rank from which members of a guild have permissions on an object."""

    object_id: EntityId | None = None
    guild_id: EntityId | None = None
    permissions: int = 0
    rank: int = 0


@attrs.frozen(kw_only=True, repr=False)
class InternalAddressAssociation(StructsModel):
    """The guild or provider that owns an internal address."""

    address: str = ""
    object_id: EntityId | None = None


@attrs.frozen(kw_only=True, repr=False)
class Guild(StructsModel):
    """A guild of players."""

    id: EntityId
    index: int = 0
    endpoint: str = ""
    creator: str = ""
    owner: EntityId | None = None
    join_infusion_minimum: int = 0
    join_infusion_minimum_bypass_by_request: enums.GuildJoinBypassLevel | str = enums.GuildJoinBypassLevel.CLOSED
    join_infusion_minimum_bypass_by_invite: enums.GuildJoinBypassLevel | str = enums.GuildJoinBypassLevel.CLOSED
    primary_reactor_id: EntityId | None = None
    entry_substation_id: EntityId | None = None
    entry_rank: int = 0
    name: str = ""
    pfp: str = ""


@attrs.frozen(kw_only=True, repr=False)
class Player(StructsModel):
    """A player. ``pfp_client_render_attributes`` contains JSON as text."""

    id: EntityId
    index: int = 0
    guild_id: EntityId | None = None
    substation_id: EntityId | None = None
    creator: str = ""
    primary_address: str = ""
    planet_id: EntityId | None = None
    fleet_id: EntityId | None = None
    guild_rank: int = 0
    name: str = ""
    pfp: str = ""
    pfp_client_render_attributes: str = ""


@attrs.frozen(kw_only=True, repr=False)
class Planet(StructsModel):
    """
    A planet. In the lists of structs by ambit, None is a free slot.

    ``location_list_last`` still names the last visitor after its departure: it is valid only if
    ``location_list_start`` is set.
    """

    id: EntityId
    max_ore: int = 0
    creator: str = ""
    owner: EntityId | None = None
    space: tuple[EntityId | None, ...] = ()
    air: tuple[EntityId | None, ...] = ()
    land: tuple[EntityId | None, ...] = ()
    water: tuple[EntityId | None, ...] = ()
    space_slots: int = 0
    air_slots: int = 0
    land_slots: int = 0
    water_slots: int = 0
    status: enums.PlanetStatus | str = enums.PlanetStatus.ACTIVE
    location_list_start: EntityId | None = None
    location_list_last: EntityId | None = None
    name: str = ""


@attrs.frozen(kw_only=True, repr=False)
class Reactor(StructsModel):
    """A reactor: a validator into which alpha is infused. ``raw_address`` is base64."""

    id: EntityId
    validator: str = ""
    guild_id: EntityId | None = None
    default_commission: Decimal = Decimal(0)
    raw_address: str = ""
    owner: EntityId | None = None


@attrs.frozen(kw_only=True, repr=False)
class Substation(StructsModel):
    """A substation, which connects players to power."""

    id: EntityId
    owner: EntityId | None = None
    creator: str = ""
    name: str = ""
    pfp: str = ""


@attrs.frozen(kw_only=True, repr=False)
class Struct(StructsModel):
    """A struct. ``type`` is the number of its struct type."""

    id: EntityId
    index: int = 0
    type: int = 0
    creator: str = ""
    owner: EntityId | None = None
    location_type: EntityType | str = EntityType.GUILD
    location_id: EntityId | None = None
    operating_ambit: enums.Ambit | str = enums.Ambit.NONE
    slot: int = 0


@attrs.frozen(kw_only=True, repr=False)
class Allocation(StructsModel):
    """
    Power allocated from a source to a substation.

    Its amount is in the answer's grid attributes.
    """

    id: EntityId
    type: enums.AllocationType | str = enums.AllocationType.STATIC
    source_object_id: EntityId | None = None
    index: int = 0
    destination_id: EntityId | None = None
    creator: str = ""
    controller: EntityId | None = None


@attrs.frozen(kw_only=True, repr=False)
class Infusion(StructsModel):
    """Alpha infused into a reactor or a struct. It has no id."""

    destination_type: EntityType | str = EntityType.GUILD
    destination_id: EntityId | None = None
    fuel: int = 0
    power: int = 0
    commission: Decimal = Decimal(0)
    player_id: EntityId | None = None
    address: str = ""
    ratio: int = 0
    defusing: int = 0


@attrs.frozen(kw_only=True, repr=False)
class Address(StructsModel):
    """An account address and the player for which it acts. ``permissions`` is a bit mask."""

    address: str = ""
    player_id: EntityId | None = None
    permissions: int = 0


@attrs.frozen(kw_only=True, repr=False)
class Fleet(StructsModel):
    """
    A fleet. It has the same index as its owner.

    A new fleet that has no location yet has the location type ``guild`` and no location id.
    """

    id: EntityId
    owner: EntityId | None = None
    location_type: EntityType | str = EntityType.GUILD
    location_id: EntityId | None = None
    status: enums.FleetStatus | str = enums.FleetStatus.ON_STATION
    location_list_forward: EntityId | None = None
    location_list_backward: EntityId | None = None
    space: tuple[EntityId | None, ...] = ()
    air: tuple[EntityId | None, ...] = ()
    land: tuple[EntityId | None, ...] = ()
    water: tuple[EntityId | None, ...] = ()
    space_slots: int = 0
    air_slots: int = 0
    land_slots: int = 0
    water_slots: int = 0
    command_struct: EntityId | None = None


@attrs.frozen(kw_only=True, repr=False)
class Provider(StructsModel):
    """An offer of power at a rate."""

    id: EntityId
    index: int = 0
    substation_id: EntityId | None = None
    rate: Coin = attrs.field(factory=Coin)
    access_policy: enums.ProviderAccessPolicy | str = enums.ProviderAccessPolicy.OPEN_MARKET
    capacity_minimum: int = 0
    capacity_maximum: int = 0
    duration_minimum: int = 0
    duration_maximum: int = 0
    provider_cancellation_penalty: Decimal = Decimal(0)
    consumer_cancellation_penalty: Decimal = Decimal(0)
    creator: str = ""
    owner: EntityId | None = None


@attrs.frozen(kw_only=True, repr=False)
class Agreement(StructsModel):
    """A purchase of power from a provider. It has the same index as its allocation."""

    id: EntityId
    provider_id: EntityId | None = None
    allocation_id: EntityId | None = None
    capacity: int = 0
    start_block: int = 0
    end_block: int = 0
    creator: str = ""
    owner: EntityId | None = None


@attrs.frozen(kw_only=True, repr=False)
class GuildMembershipApplication(StructsModel):
    """A player's application for membership of a guild, or a guild's invitation."""

    guild_id: EntityId | None = None
    player_id: EntityId | None = None
    join_type: enums.GuildJoinType | str = enums.GuildJoinType.INVITE
    registration_status: enums.RegistrationStatus | str = enums.RegistrationStatus.PROPOSED
    proposer: EntityId | None = None
    substation_id: EntityId | None = None


@attrs.frozen(kw_only=True, repr=False)
class StructType(StructsModel):
    """
    A type of structs. Its ``id`` is a plain number without a type code.

    The ambit fields are bit masks: 1 shifted by the number of the ambit.
    """

    id: int
    type: str = ""
    class_: str = attrs.field(default="", metadata=wire_name_metadata("class"))
    class_abbreviation: str = ""
    default_cosmetic_model_number: str = ""
    default_cosmetic_name: str = ""
    category: EntityType | str = EntityType.GUILD
    build_limit: int = 0
    build_difficulty: int = 0
    build_draw: int = 0
    max_health: int = 0
    passive_draw: int = 0
    possible_ambit: int = 0
    movable: bool = False
    slot_bound: bool = False

    primary_weapon: enums.ActiveWeaponry | str = enums.ActiveWeaponry.NONE
    primary_weapon_control: enums.WeaponControl | str = enums.WeaponControl.NONE
    primary_weapon_charge: int = 0
    primary_weapon_ambits: int = 0
    primary_weapon_targets: int = 0
    primary_weapon_shots: int = 0
    primary_weapon_damage: int = 0
    primary_weapon_blockable: bool = False
    primary_weapon_counterable: bool = False
    primary_weapon_recoil_damage: int = 0
    primary_weapon_shot_success_rate_numerator: int = 0
    primary_weapon_shot_success_rate_denominator: int = 0
    primary_weapon_guaranteed_shots: int = 0
    primary_weapon_armour_piercing: bool = False

    secondary_weapon: enums.ActiveWeaponry | str = enums.ActiveWeaponry.NONE
    secondary_weapon_control: enums.WeaponControl | str = enums.WeaponControl.NONE
    secondary_weapon_charge: int = 0
    secondary_weapon_ambits: int = 0
    secondary_weapon_targets: int = 0
    secondary_weapon_shots: int = 0
    secondary_weapon_damage: int = 0
    secondary_weapon_blockable: bool = False
    secondary_weapon_counterable: bool = False
    secondary_weapon_recoil_damage: int = 0
    secondary_weapon_shot_success_rate_numerator: int = 0
    secondary_weapon_shot_success_rate_denominator: int = 0
    secondary_weapon_guaranteed_shots: int = 0
    secondary_weapon_armour_piercing: bool = False

    passive_weaponry: enums.PassiveWeaponry | str = enums.PassiveWeaponry.NONE
    unit_defenses: enums.UnitDefenses | str = enums.UnitDefenses.NONE
    ore_reserve_defenses: enums.OreReserveDefenses | str = enums.OreReserveDefenses.NONE
    planetary_defenses: enums.PlanetaryDefenses | str = enums.PlanetaryDefenses.NONE
    planetary_mining: enums.PlanetaryMining | str = enums.PlanetaryMining.NONE
    planetary_refinery: enums.PlanetaryRefineries | str = enums.PlanetaryRefineries.NONE
    power_generation: enums.PowerGeneration | str = enums.PowerGeneration.NONE

    activate_charge: int = 0
    build_charge: int = 0
    defend_change_charge: int = 0
    move_charge: int = 0
    stealth_activate_charge: int = 0
    attack_reduction: int = 0
    attack_counterable: bool = False
    stealth_systems: bool = False
    counter_attack: int = 0
    counter_attack_same_ambit: int = 0
    post_destruction_damage: int = 0
    generating_rate: int = 0
    planetary_shield_contribution: int = 0
    ore_mining_difficulty: int = 0
    ore_refining_difficulty: int = 0
    unguided_defensive_success_rate_numerator: int = 0
    unguided_defensive_success_rate_denominator: int = 0
    guided_defensive_success_rate_numerator: int = 0
    guided_defensive_success_rate_denominator: int = 0
    trigger_raid_defeat_by_destruction: bool = False
