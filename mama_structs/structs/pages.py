"""Pages of records, as the chain's lists give them: bare records, without what one answer has beside its entity."""

from typing import Generic, TypeVar

import attrs

from mama_structs.structs.attributes import (
    AttributeRecord,
    GridRecord,
    GuildRankPermissionRecord,
    InternalAddressAssociation,
    PermissionRecord,
)
from mama_structs.structs.entities import (
    Address,
    Agreement,
    Allocation,
    Fleet,
    Guild,
    GuildMembershipApplication,
    Infusion,
    Planet,
    Player,
    Provider,
    Reactor,
    Struct,
    Substation,
)
from mama_structs.structs.record import OFF_WIRE, Record, wire
from mama_structs.structs.struct_types import StructType

R_co = TypeVar("R_co", bound=Record, covariant=True)


@attrs.frozen(kw_only=True, repr=False)
class Pagination(Record):
    """
    Where a page ends.

    Args:
        next_key: Where the next page begins (base64), None after the last one.
        total: How many records there are; 0 unless it was asked to be counted.

    """

    next_key: str | None = attrs.field(default=None, metadata=wire("next_key"))
    total: int = 0


@attrs.frozen(kw_only=True, repr=False)
class Page(Record, Generic[R_co]):
    """
    One page of a list.

    Args:
        records: The records, in byte order of their ids.
        pagination: Where the page ends, None where the node gives no pages.
        height: The height of the chain when it was read; no part of the JSON, nor of equality.

    """

    records: tuple[R_co, ...] = ()
    pagination: Pagination | None = None
    height: int | None = attrs.field(default=None, eq=False, metadata=OFF_WIRE)


@attrs.frozen(kw_only=True, repr=False)
class GuildPage(Page[Guild]):
    """A page of ``/structs/guild``."""

    records: tuple[Guild, ...] = attrs.field(default=(), metadata=wire("Guild"))


@attrs.frozen(kw_only=True, repr=False)
class PlayerPage(Page[Player]):
    """A page of ``/structs/player``."""

    records: tuple[Player, ...] = attrs.field(default=(), metadata=wire("Player"))


@attrs.frozen(kw_only=True, repr=False)
class PlanetPage(Page[Planet]):
    """A page of ``/structs/planet``."""

    records: tuple[Planet, ...] = attrs.field(default=(), metadata=wire("Planet"))


@attrs.frozen(kw_only=True, repr=False)
class ReactorPage(Page[Reactor]):
    """A page of ``/structs/reactor``."""

    records: tuple[Reactor, ...] = attrs.field(default=(), metadata=wire("Reactor"))


@attrs.frozen(kw_only=True, repr=False)
class SubstationPage(Page[Substation]):
    """A page of ``/structs/substation``."""

    records: tuple[Substation, ...] = attrs.field(default=(), metadata=wire("Substation"))


@attrs.frozen(kw_only=True, repr=False)
class StructPage(Page[Struct]):
    """A page of ``/structs/struct``."""

    records: tuple[Struct, ...] = attrs.field(default=(), metadata=wire("Struct"))


@attrs.frozen(kw_only=True, repr=False)
class AllocationPage(Page[Allocation]):
    """A page of ``/structs/allocation``; the chain never fills ``status``."""

    records: tuple[Allocation, ...] = attrs.field(default=(), metadata=wire("Allocation"))
    status: tuple[str, ...] = ()


@attrs.frozen(kw_only=True, repr=False)
class InfusionPage(Page[Infusion]):
    """A page of ``/structs/infusion``; the chain never fills ``status``."""

    records: tuple[Infusion, ...] = attrs.field(default=(), metadata=wire("Infusion"))
    status: tuple[str, ...] = ()


@attrs.frozen(kw_only=True, repr=False)
class AddressPage(Page[Address]):
    """A page of ``/structs/address``."""

    records: tuple[Address, ...] = attrs.field(default=(), metadata=wire("address"))


@attrs.frozen(kw_only=True, repr=False)
class FleetPage(Page[Fleet]):
    """A page of ``/structs/fleet``."""

    records: tuple[Fleet, ...] = attrs.field(default=(), metadata=wire("Fleet"))


@attrs.frozen(kw_only=True, repr=False)
class ProviderPage(Page[Provider]):
    """A page of ``/structs/provider``."""

    records: tuple[Provider, ...] = attrs.field(default=(), metadata=wire("Provider"))


@attrs.frozen(kw_only=True, repr=False)
class AgreementPage(Page[Agreement]):
    """A page of ``/structs/agreement``."""

    records: tuple[Agreement, ...] = attrs.field(default=(), metadata=wire("Agreement"))


@attrs.frozen(kw_only=True, repr=False)
class StructTypePage(Page[StructType]):
    """A page of ``/structs/struct_type``."""

    records: tuple[StructType, ...] = attrs.field(default=(), metadata=wire("StructType"))


@attrs.frozen(kw_only=True, repr=False)
class GridPage(Page[GridRecord]):
    """A page of ``/structs/grid``."""

    records: tuple[GridRecord, ...] = attrs.field(default=(), metadata=wire("gridRecords"))


@attrs.frozen(kw_only=True, repr=False)
class StructAttributePage(Page[AttributeRecord]):
    """A page of ``/structs/struct_attribute``."""

    records: tuple[AttributeRecord, ...] = attrs.field(default=(), metadata=wire("structAttributeRecords"))


@attrs.frozen(kw_only=True, repr=False)
class PlanetAttributePage(Page[AttributeRecord]):
    """A page of ``/structs/planet_attribute``."""

    records: tuple[AttributeRecord, ...] = attrs.field(default=(), metadata=wire("planetAttributeRecords"))


@attrs.frozen(kw_only=True, repr=False)
class PermissionPage(Page[PermissionRecord]):
    """A page of ``/structs/permission``."""

    records: tuple[PermissionRecord, ...] = attrs.field(default=(), metadata=wire("permissionRecords"))


@attrs.frozen(kw_only=True, repr=False)
class GuildRankPermissionPage(Page[GuildRankPermissionRecord]):
    """A page of ``/structs/guild_rank_permission/object/{id}``."""

    records: tuple[GuildRankPermissionRecord, ...] = attrs.field(
        default=(), metadata=wire("guild_rank_permission_records")
    )


@attrs.frozen(kw_only=True, repr=False)
class GuildMembershipApplicationPage(Page[GuildMembershipApplication]):
    """A page of ``/structs/guild_membership_application``."""

    records: tuple[GuildMembershipApplication, ...] = attrs.field(
        default=(), metadata=wire("GuildMembershipApplication")
    )


@attrs.frozen(kw_only=True, repr=False)
class InternalAddressPage(Page[InternalAddressAssociation]):
    """A page of ``/structs/guild_bank_collateral_address``."""

    records: tuple[InternalAddressAssociation, ...] = attrs.field(
        default=(), metadata=wire("internalAddressAssociation")
    )
