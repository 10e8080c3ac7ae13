"""The kinds of structs; they change only when the chain is upgraded."""

import attrs

from mama_structs.structs.enums import (
    ActiveWeaponry,
    OreReserveDefenses,
    PassiveWeaponry,
    PlanetaryDefenses,
    PlanetaryMining,
    PlanetaryRefineries,
    PowerGeneration,
    UnitDefenses,
    WeaponControl,
)
from mama_structs.structs.ids import EntityType
from mama_structs.structs.record import Record, wire


@attrs.frozen(kw_only=True, repr=False)
class StructType(Record):
    """
    A kind of struct; ``id`` is a bare number.

    The ambit fields are bit masks: 1 shifted by the number of the ambit.
    """

    id: int
    type: str = ""
    class_: str = attrs.field(default="", metadata=wire("class"))
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

    primary_weapon: ActiveWeaponry | str = ActiveWeaponry.NONE
    primary_weapon_control: WeaponControl | str = WeaponControl.NONE
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

    secondary_weapon: ActiveWeaponry | str = ActiveWeaponry.NONE
    secondary_weapon_control: WeaponControl | str = WeaponControl.NONE
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

    passive_weaponry: PassiveWeaponry | str = PassiveWeaponry.NONE
    unit_defenses: UnitDefenses | str = UnitDefenses.NONE
    ore_reserve_defenses: OreReserveDefenses | str = OreReserveDefenses.NONE
    planetary_defenses: PlanetaryDefenses | str = PlanetaryDefenses.NONE
    planetary_mining: PlanetaryMining | str = PlanetaryMining.NONE
    planetary_refinery: PlanetaryRefineries | str = PlanetaryRefineries.NONE
    power_generation: PowerGeneration | str = PowerGeneration.NONE

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
