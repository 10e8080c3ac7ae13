"""Names and order of what the chain's REST interface shows: types, attributes and the envelopes of answers."""

from __future__ import annotations

from typing import Final

import attrs

GRID_ATTRIBUTES: Final = (
    "ore", "fuel", "capacity", "load", "structsLoad", "power", "connectionCapacity", "connectionCount",
    "allocationPointerStart", "allocationPointerEnd", "proxyNonce", "lastAction", "nonce", "ready", "checkpointBlock",
)  # fmt: skip

STRUCT_ATTRIBUTES: Final = (
    "health", "status", "blockStartBuild", "blockStartOreMine", "blockStartOreRefine", "protectedStructIndex",
    "typeCount",
)  # fmt: skip

PLANET_ATTRIBUTES: Final = (
    "planetaryShield", "repairNetworkQuantity", "defensiveCannonQuantity", "coordinatedGlobalShieldNetworkQuantity",
    "lowOrbitBallisticsInterceptorNetworkQuantity", "advancedLowOrbitBallisticsInterceptorNetworkQuantity",
    "lowOrbitBallisticsInterceptorNetworkSuccessRateNumerator",
    "lowOrbitBallisticsInterceptorNetworkSuccessRateDenominator",
    "orbitalJammingStationQuantity", "advancedOrbitalJammingStationQuantity", "blockStartRaid",
    "blockRaiderArrived", "blockStartOreMine", "blockStartOreRefine", "oreMiningActiveQuantity",
    "oreRefiningActiveQuantity",
)  # fmt: skip

# Bits of a struct's status attribute, in the order in which the envelope names them.
STATUS_BITS: Final = {
    "isMaterialized": 1,
    "isBuilt": 2,
    "isOnline": 4,
    "isHidden": 16,
    "isDestroyed": 32,
    "isLocked": 64,
}

PROTECTED_STRUCT_INDEX: Final = STRUCT_ATTRIBUTES.index("protectedStructIndex")
STATUS: Final = STRUCT_ATTRIBUTES.index("status")

AMBITS: Final = ("space", "air", "land", "water")


@attrs.frozen
class Table:
    """
    One store of the chain, as the REST interface shows it.

    Args:
        name: The store's name in routes, such as ``player``.
        key: The key of its records in answers, such as ``Player``.
        siblings: What an answer about one entity carries beside the record, in order.
        fields: For stores of single values: the names of key and value in a row.
        status: Whether its lists carry the ``status`` array that the chain never fills.
        error_code: The gRPC code of paging errors.

    """

    name: str
    key: str
    siblings: tuple[str, ...] = ()
    fields: tuple[str, str] | None = None
    status: bool = False
    error_code: int = 13


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
