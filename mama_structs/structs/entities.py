"""
The twelve entity types of the chain, as its records show them.

Fields stand in the order of the chain's definitions; numbers are whole, references are ids or None.
``creator`` is always an address, ``owner`` always a player.
"""

from decimal import Decimal

import attrs

from mama_structs.structs.attributes import Coin
from mama_structs.structs.enums import (
    AllocationType,
    Ambit,
    FleetStatus,
    GuildJoinBypassLevel,
    GuildJoinType,
    PlanetStatus,
    ProviderAccessPolicy,
    RegistrationStatus,
)
from mama_structs.structs.ids import EntityId, EntityType
from mama_structs.structs.record import Record


@attrs.frozen(kw_only=True, repr=False)
class Guild(Record):
    """A guild of players."""

    id: EntityId
    index: int = 0
    endpoint: str = ""
    creator: str = ""
    owner: EntityId | None = None
    join_infusion_minimum: int = 0
    join_infusion_minimum_bypass_by_request: GuildJoinBypassLevel | str = GuildJoinBypassLevel.CLOSED
    join_infusion_minimum_bypass_by_invite: GuildJoinBypassLevel | str = GuildJoinBypassLevel.CLOSED
    primary_reactor_id: EntityId | None = None
    entry_substation_id: EntityId | None = None
    entry_rank: int = 0
    name: str = ""
    pfp: str = ""


@attrs.frozen(kw_only=True, repr=False)
class Player(Record):
    """A player; ``pfp_client_render_attributes`` is text that holds JSON, kept as text."""

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
class Planet(Record):
    """
    A planet; a free slot of an ambit is None.

    ``location_list_last`` names the last visitor even after it left: trust it only while
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
    status: PlanetStatus | str = PlanetStatus.ACTIVE
    location_list_start: EntityId | None = None
    location_list_last: EntityId | None = None
    name: str = ""


@attrs.frozen(kw_only=True, repr=False)
class Reactor(Record):
    """A reactor: a validator that alpha is infused into; ``raw_address`` is base64."""

    id: EntityId
    validator: str = ""
    guild_id: EntityId | None = None
    default_commission: Decimal = Decimal(0)
    raw_address: str = ""
    owner: EntityId | None = None


@attrs.frozen(kw_only=True, repr=False)
class Substation(Record):
    """A substation: what connects players to power."""

    id: EntityId
    owner: EntityId | None = None
    creator: str = ""
    name: str = ""
    pfp: str = ""


@attrs.frozen(kw_only=True, repr=False)
class Struct(Record):
    """A struct; ``type`` is the number of its struct type."""

    id: EntityId
    index: int = 0
    type: int = 0
    creator: str = ""
    owner: EntityId | None = None
    location_type: EntityType | str = EntityType.GUILD
    location_id: EntityId | None = None
    operating_ambit: Ambit | str = Ambit.NONE
    slot: int = 0


@attrs.frozen(kw_only=True, repr=False)
class Allocation(Record):
    """Power given from a source to a substation; how much is in the answer's grid attributes."""

    id: EntityId
    type: AllocationType | str = AllocationType.STATIC
    source_object_id: EntityId | None = None
    index: int = 0
    destination_id: EntityId | None = None
    creator: str = ""
    controller: EntityId | None = None


@attrs.frozen(kw_only=True, repr=False)
class Infusion(Record):
    """Alpha put into a reactor or a struct; it has no id of its own."""

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
class Address(Record):
    """An account address and the player that it acts for; ``permissions`` is a bit mask."""

    address: str = ""
    player_id: EntityId | None = None
    permissions: int = 0


@attrs.frozen(kw_only=True, repr=False)
class Fleet(Record):
    """
    A fleet; its index is its owner's.

    A fleet that was nowhere yet shows the location type ``guild`` and no location.
    """

    id: EntityId
    owner: EntityId | None = None
    location_type: EntityType | str = EntityType.GUILD
    location_id: EntityId | None = None
    status: FleetStatus | str = FleetStatus.ON_STATION
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
class Provider(Record):
    """An offer of power at a rate."""

    id: EntityId
    index: int = 0
    substation_id: EntityId | None = None
    rate: Coin = attrs.field(factory=Coin)
    access_policy: ProviderAccessPolicy | str = ProviderAccessPolicy.OPEN_MARKET
    capacity_minimum: int = 0
    capacity_maximum: int = 0
    duration_minimum: int = 0
    duration_maximum: int = 0
    provider_cancellation_penalty: Decimal = Decimal(0)
    consumer_cancellation_penalty: Decimal = Decimal(0)
    creator: str = ""
    owner: EntityId | None = None


@attrs.frozen(kw_only=True, repr=False)
class Agreement(Record):
    """Power bought from a provider; its index is its allocation's."""

    id: EntityId
    provider_id: EntityId | None = None
    allocation_id: EntityId | None = None
    capacity: int = 0
    start_block: int = 0
    end_block: int = 0
    creator: str = ""
    owner: EntityId | None = None


@attrs.frozen(kw_only=True, repr=False)
class GuildMembershipApplication(Record):
    """A request of a player to join a guild, or a guild's invitation."""

    guild_id: EntityId | None = None
    player_id: EntityId | None = None
    join_type: GuildJoinType | str = GuildJoinType.INVITE
    registration_status: RegistrationStatus | str = RegistrationStatus.PROPOSED
    proposer: EntityId | None = None
    substation_id: EntityId | None = None
