"""
The chain's struct types, with all 68 fields of chain v0.16.0.

Names and the numbers that tell types apart are the chain's; what every type shares is filled in.
"""

from __future__ import annotations

from typing import Any, Final

SPACE: Final = 16
AIR: Final = 8
LAND: Final = 4
WATER: Final = 2
ANYWHERE: Final = SPACE + AIR + LAND + WATER

COMMAND_SHIP: Final = 1
MINES: Final = (14, 15)
REFINERIES: Final = (16, 17)
SMALL_GENERATOR: Final = 23
GENERATORS: Final = range(SMALL_GENERATOR, 29)

# name, short name, ambits, draw when built, weapon ("guided", "unguided" or ""), weapon ambits, weapon charge, defence
_FLEET: Final = (
    ("Command", "CMD", ANYWHERE, 50, "guided", 32, 1, "noUnitDefenses"),
    ("Galactic Battleship", "BTL", SPACE, 225, "unguided", 22, 20, "signalJamming"),
    ("Star Fighter", "STR", SPACE, 100, "guided", 16, 1, "noUnitDefenses"),
    ("Space Frigate", "FRG", SPACE, 75, "guided", 24, 8, "noUnitDefenses"),
    ("Fighter Jet", "JET", AIR, 150, "guided", 8, 1, "signalJamming"),
    ("Stealth Bomber", "BMB", AIR, 125, "guided", 6, 8, "stealthMode"),
    ("High Altitude Interceptor", "HAI", AIR, 125, "guided", 24, 8, "defensiveManeuver"),
    ("Artillery", "ART", LAND, 75, "unguided", 6, 8, "indirectCombatModule"),
    ("Tank", "TNK", LAND, 75, "unguided", 4, 1, "armour"),
    ("SAM Launcher", "SAM", LAND, 75, "guided", 24, 8, "noUnitDefenses"),
    ("Cruiser", "CRU", WATER, 200, "guided", 6, 8, "signalJamming"),
    ("Destroyer", "DES", WATER, 100, "guided", 10, 8, "noUnitDefenses"),
    ("Sub", "SUB", WATER, 125, "guided", 18, 8, "stealthMode"),
)

# name, short name, ambit, draw when built, the fields in which it differs from a type that does nothing
_PLANET: Final[tuple[tuple[str, str, int, int, dict[str, str]], ...]] = (
    ("Mine Shaft", "MIN", LAND, 500, {"planetaryMining": "oreMiningRig", "oreMiningDifficulty": "14000"}),
    ("Deep Ocean Mining Rig", "DOM", WATER, 500, {"planetaryMining": "oreMiningRig", "oreMiningDifficulty": "14000"}),
    ("Ore Refinery", "REF", LAND, 500, {"planetaryRefinery": "oreRefinery", "oreRefiningDifficulty": "28000"}),
    (
        "Water Cooled Ore Refinery",
        "WCR",
        WATER,
        500,
        {"planetaryRefinery": "oreRefinery", "oreRefiningDifficulty": "28000"},
    ),
    (
        "Orbital Shield Generator",
        "OSG",
        SPACE,
        200,
        {"oreReserveDefenses": "monitoringStation", "planetaryShieldContribution": "1500"},
    ),
    (
        "Jamming Satellite",
        "JAM",
        SPACE,
        600,
        {"planetaryDefenses": "lowOrbitBallisticInterceptorNetwork", "planetaryShieldContribution": "4500"},
    ),
    ("Ore Bunker", "BNK", LAND, 750, {"oreReserveDefenses": "oreBunker", "planetaryShieldContribution": "9000"}),
    ("Defense Cannon", "CAN", LAND, 600, {"planetaryDefenses": "defensiveCannon"}),
    ("Offshore Defensive Turret", "TUR", WATER, 600, {"planetaryDefenses": "defensiveCannon"}),
    ("Small Generator", "SGN", LAND, 500, {"powerGeneration": "smallGenerator", "generatingRate": "200"}),
    ("Grid Booster", "GRB", LAND, 5000, {"powerGeneration": "mediumGenerator", "generatingRate": "500"}),
    ("Full-Scale Power Plant", "FPP", LAND, 50000, {"powerGeneration": "largeGenerator", "generatingRate": "1000"}),
    ("Deep Sea Generator", "DSG", WATER, 500, {"powerGeneration": "smallGenerator", "generatingRate": "200"}),
    ("Off-Shore Power Plant", "OPP", WATER, 5000, {"powerGeneration": "mediumGenerator", "generatingRate": "500"}),
    (
        "Heavy Water Power Generator",
        "HWP",
        WATER,
        50000,
        {"powerGeneration": "largeGenerator", "generatingRate": "1000"},
    ),
)


def _weapon(prefix: str, *, control: str, ambits: int, charge: int) -> dict[str, Any]:
    armed = "1" if control else "0"
    return {
        f"{prefix}Weapon": f"{control}Weaponry" if control else "noActiveWeaponry",
        f"{prefix}WeaponControl": control or "noWeaponControl",
        f"{prefix}WeaponCharge": str(charge),
        f"{prefix}WeaponAmbits": str(ambits),
        f"{prefix}WeaponTargets": armed,
        f"{prefix}WeaponShots": armed,
        f"{prefix}WeaponDamage": "2" if control else "0",
        f"{prefix}WeaponBlockable": bool(control),
        f"{prefix}WeaponCounterable": bool(control),
        f"{prefix}WeaponRecoilDamage": "0",
        f"{prefix}WeaponShotSuccessRateNumerator": armed,
        f"{prefix}WeaponShotSuccessRateDenominator": armed,
    }


def _struct_type(number: int, name: str, *, short: str, category: str, ambits: int, draw: int) -> dict[str, Any]:
    movable = number == COMMAND_SHIP
    return {
        "id": str(number),
        "type": name,
        "class": name,
        "classAbbreviation": short,
        "defaultCosmeticModelNumber": f"{short}-{number}",
        "defaultCosmeticName": name,
        "category": category,
        "buildLimit": "1" if category == "planet" or movable else "0",
        "buildDifficulty": str(180 + 35 * number),
        "buildDraw": str(draw),
        "maxHealth": "6" if movable else "3",
        "passiveDraw": str(draw),
        "possibleAmbit": str(ambits),
        "movable": movable,
        "slotBound": True,
        **_weapon("primary", control="", ambits=0, charge=0),
        **_weapon("secondary", control="", ambits=0, charge=0),
        "passiveWeaponry": "noPassiveWeaponry",
        "unitDefenses": "noUnitDefenses",
        "oreReserveDefenses": "noOreReserveDefenses",
        "planetaryDefenses": "noPlanetaryDefense",
        "planetaryMining": "noPlanetaryMining",
        "planetaryRefinery": "noPlanetaryRefinery",
        "powerGeneration": "noPowerGeneration",
        "activateCharge": "1",
        "buildCharge": "1",
        "defendChangeCharge": "1",
        "moveCharge": "8" if movable else "0",
        "stealthActivateCharge": "0",
        "attackReduction": "0",
        "attackCounterable": True,
        "stealthSystems": False,
        "counterAttack": "0",
        "counterAttackSameAmbit": "0",
        "postDestructionDamage": "0",
        "generatingRate": "0",
        "planetaryShieldContribution": "0",
        "oreMiningDifficulty": "0",
        "oreRefiningDifficulty": "0",
        "unguidedDefensiveSuccessRateNumerator": "0",
        "unguidedDefensiveSuccessRateDenominator": "0",
        "guidedDefensiveSuccessRateNumerator": "0",
        "guidedDefensiveSuccessRateDenominator": "0",
        "triggerRaidDefeatByDestruction": movable,
        "primaryWeaponGuaranteedShots": "0",
        "secondaryWeaponGuaranteedShots": "0",
    }


def struct_types() -> dict[str, dict[str, Any]]:
    """Return a fresh copy of every struct type by its number, in the order of the numbers."""
    types: dict[str, dict[str, Any]] = {}
    for name, short, ambits, draw, control, weapon_ambits, charge, defence in _FLEET:
        number = len(types) + 1
        row = _struct_type(number, name, short=short, category="fleet", ambits=ambits, draw=draw)
        row |= _weapon("primary", control=control, ambits=weapon_ambits, charge=charge)
        row |= {"passiveWeaponry": "counterAttack", "unitDefenses": defence, "counterAttack": "1"}
        row |= {"counterAttackSameAmbit": "1", "stealthSystems": defence == "stealthMode"}
        types[row["id"]] = row
    for name, short, ambits, draw, differences in _PLANET:
        number = len(types) + 1
        types[str(number)] = (
            _struct_type(number, name, short=short, category="planet", ambits=ambits, draw=draw) | differences
        )
    return types


def types_for(category: str, ambit: int) -> tuple[int, ...]:
    """Return the numbers of the types of a category (``fleet`` or ``planet``) that one ambit holds."""
    if category == "fleet":
        return tuple(n for n, row in enumerate(_FLEET, 1) if row[2] == ambit)
    return tuple(n for n, row in enumerate(_PLANET, len(_FLEET) + 1) if row[2] == ambit)
