"""
Enums of the chain. The values are the names that the chain uses in JSON.

The first member of each enum has the number 0, which is the value in an empty record.
Fields are annotated ``SomeEnum | str``: a name that a newer chain adds remains plain text.
"""

from __future__ import annotations

import enum


class AllocationType(enum.StrEnum):
    """Method by which the power of an allocation is determined."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    AUTOMATED = "automated"
    PROVIDER_AGREEMENT = "providerAgreement"


class GuildJoinBypassLevel(enum.StrEnum):
    """Guild members who may waive the infusion minimum for a new member."""

    CLOSED = "closed"
    PERMISSIONED = "permissioned"
    MEMBER = "member"


class GuildJoinType(enum.StrEnum):
    """Way in which a player became a member of a guild."""

    INVITE = "invite"
    REQUEST = "request"
    DIRECT = "direct"
    PROXY = "proxy"


class RegistrationStatus(enum.StrEnum):
    """State of a guild membership application."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    DENIED = "denied"
    REVOKED = "revoked"


class Ambit(enum.StrEnum):
    """The environment in which a struct operates."""

    NONE = "none"
    WATER = "water"
    LAND = "land"
    AIR = "air"
    SPACE = "space"
    LOCAL = "local"


class PlanetStatus(enum.StrEnum):
    """State of a planet: with or without remaining ore."""

    ACTIVE = "active"
    COMPLETE = "complete"


class FleetStatus(enum.StrEnum):
    """Location of a fleet: at its owner's planet or away."""

    ON_STATION = "onStation"
    AWAY = "away"


class ProviderAccessPolicy(enum.StrEnum):
    """Players who may make an agreement with a provider."""

    OPEN_MARKET = "openMarket"
    GUILD_MARKET = "guildMarket"
    CLOSED_MARKET = "closedMarket"


class ActiveWeaponry(enum.StrEnum):
    """The weapon with which a struct type attacks."""

    NONE = "noActiveWeaponry"
    GUIDED = "guidedWeaponry"
    UNGUIDED = "unguidedWeaponry"
    ATTACK_RUN = "attackRun"
    SELF_DESTRUCT = "selfDestruct"


class WeaponControl(enum.StrEnum):
    """The guidance of a weapon."""

    NONE = "noWeaponControl"
    GUIDED = "guided"
    UNGUIDED = "unguided"


class PassiveWeaponry(enum.StrEnum):
    """The weapon with which a struct type counters an attack."""

    NONE = "noPassiveWeaponry"
    COUNTER_ATTACK = "counterAttack"
    STRONG_COUNTER_ATTACK = "strongCounterAttack"
    ADVANCED_COUNTER_ATTACK = "advancedCounterAttack"
    LAST_RESORT = "lastResort"


class UnitDefenses(enum.StrEnum):
    """The defences of a struct type."""

    NONE = "noUnitDefenses"
    DEFENSIVE_MANEUVER = "defensiveManeuver"
    SIGNAL_JAMMING = "signalJamming"
    ARMOUR = "armour"
    INDIRECT_COMBAT_MODULE = "indirectCombatModule"
    STEALTH_MODE = "stealthMode"
    PERIMETER_FENCING = "perimeterFencing"
    REINFORCED_WALLS = "reinforcedWalls"


class OreReserveDefenses(enum.StrEnum):
    """The defences that a struct gives to the ore of its planet."""

    NONE = "noOreReserveDefenses"
    COORDINATED_RESERVE_RESPONSE_TRACKER = "coordinatedReserveResponseTracker"
    RAPID_RESPONSE_PACKAGE = "rapidResponsePackage"
    ACTIVE_SCANNING = "activeScanning"
    MONITORING_STATION = "monitoringStation"
    ORE_BUNKER = "oreBunker"


class PlanetaryDefenses(enum.StrEnum):
    """The defences that a struct gives to its planet."""

    NONE = "noPlanetaryDefense"
    DEFENSIVE_CANNON = "defensiveCannon"
    LOW_ORBIT_BALLISTIC_INTERCEPTOR_NETWORK = "lowOrbitBallisticInterceptorNetwork"


class PlanetaryMining(enum.StrEnum):
    """The ore mining equipment of a struct type."""

    NONE = "noPlanetaryMining"
    ORE_MINING_RIG = "oreMiningRig"


class PlanetaryRefineries(enum.StrEnum):
    """The ore refining equipment of a struct type."""

    NONE = "noPlanetaryRefinery"
    ORE_REFINERY = "oreRefinery"


class PowerGeneration(enum.StrEnum):
    """The power generator of a struct type."""

    NONE = "noPowerGeneration"
    SMALL_GENERATOR = "smallGenerator"
    MEDIUM_GENERATOR = "mediumGenerator"
    LARGE_GENERATOR = "largeGenerator"


class GridAttribute(enum.StrEnum):
    """Attributes of an object in the chain's power grid, in the order of their codes."""

    ORE = "ore"
    FUEL = "fuel"
    CAPACITY = "capacity"
    LOAD = "load"
    STRUCTS_LOAD = "structsLoad"
    POWER = "power"
    CONNECTION_CAPACITY = "connectionCapacity"
    CONNECTION_COUNT = "connectionCount"
    ALLOCATION_POINTER_START = "allocationPointerStart"
    ALLOCATION_POINTER_END = "allocationPointerEnd"
    PROXY_NONCE = "proxyNonce"
    LAST_ACTION = "lastAction"
    NONCE = "nonce"
    READY = "ready"
    CHECKPOINT_BLOCK = "checkpointBlock"


class StructAttribute(enum.StrEnum):
    """Numeric attributes of a struct, in the order of their codes."""

    HEALTH = "health"
    STATUS = "status"
    BLOCK_START_BUILD = "blockStartBuild"
    BLOCK_START_ORE_MINE = "blockStartOreMine"
    BLOCK_START_ORE_REFINE = "blockStartOreRefine"
    PROTECTED_STRUCT_INDEX = "protectedStructIndex"
    TYPE_COUNT = "typeCount"


class PlanetAttribute(enum.StrEnum):
    """Numeric attributes of a planet, in the order of their codes."""

    PLANETARY_SHIELD = "planetaryShield"
    REPAIR_NETWORK_QUANTITY = "repairNetworkQuantity"
    DEFENSIVE_CANNON_QUANTITY = "defensiveCannonQuantity"
    COORDINATED_GLOBAL_SHIELD_NETWORK_QUANTITY = "coordinatedGlobalShieldNetworkQuantity"
    LOW_ORBIT_BALLISTICS_INTERCEPTOR_NETWORK_QUANTITY = "lowOrbitBallisticsInterceptorNetworkQuantity"
    ADVANCED_LOW_ORBIT_BALLISTICS_INTERCEPTOR_NETWORK_QUANTITY = "advancedLowOrbitBallisticsInterceptorNetworkQuantity"
    LOW_ORBIT_BALLISTICS_INTERCEPTOR_NETWORK_SUCCESS_RATE_NUMERATOR = (
        "lowOrbitBallisticsInterceptorNetworkSuccessRateNumerator"
    )
    LOW_ORBIT_BALLISTICS_INTERCEPTOR_NETWORK_SUCCESS_RATE_DENOMINATOR = (
        "lowOrbitBallisticsInterceptorNetworkSuccessRateDenominator"
    )
    ORBITAL_JAMMING_STATION_QUANTITY = "orbitalJammingStationQuantity"
    ADVANCED_ORBITAL_JAMMING_STATION_QUANTITY = "advancedOrbitalJammingStationQuantity"
    BLOCK_START_RAID = "blockStartRaid"
    BLOCK_RAIDER_ARRIVED = "blockRaiderArrived"
    BLOCK_START_ORE_MINE = "blockStartOreMine"
    BLOCK_START_ORE_REFINE = "blockStartOreRefine"
    ORE_MINING_ACTIVE_QUANTITY = "oreMiningActiveQuantity"
    ORE_REFINING_ACTIVE_QUANTITY = "oreRefiningActiveQuantity"
