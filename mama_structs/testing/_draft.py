"""What the parts of the world generator share: the dice, the world so far, and small pieces."""

from __future__ import annotations

import hashlib
from random import Random
from typing import Any, Final

import attrs

from mama_structs.testing._schema import GRID_ATTRIBUTES
from mama_structs.testing.world import World

_BECH32: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_HUE: Final = ("amber", "ashen", "azure", "cobalt", "crimson", "golden", "hollow", "ivory", "jade", "silent", "umber")
_THING: Final = ("anvil", "comet", "falcon", "harbour", "lantern", "meridian", "orchard", "quarry", "raven", "spire")

# Which player carries which oddity.
PFP, EXTRA_FIELDS, STALE, PRUNED_STRUCT, DEMO = 3, 4, 5, 6, 11
VISITORS: Final = (7, 8)
SETTLED: Final = frozenset({PFP, EXTRA_FIELDS, STALE, PRUNED_STRUCT, DEMO, *VISITORS})
COLLIDING: Final = (19, 194, 1940)
# One more than the last of them: the last player has nothing yet.
SMALLEST: Final = DEMO + 1


def module_address(text: str) -> str:
    """Return the address that the chain would compute for a collateral pool: longer than an account's."""
    digest = hashlib.sha256(text.encode()).digest() * 2
    return "structs1" + "".join(_BECH32[byte % 32] for byte in digest[:58])


@attrs.define
class Draft:
    """A world in the making; every draw comes from *rng*, in a fixed order."""

    rng: Random
    players: int
    world: World = attrs.field(factory=World)
    indexes: list[int] = attrs.field(init=False)
    guilds: int = attrs.field(init=False)
    substations: int = attrs.field(init=False)
    structs: int = 0
    allocations: int = 0
    pruned: str = ""

    def __attrs_post_init__(self) -> None:
        """Settle the numbers that references need before the things themselves are there."""
        self.indexes = sorted({*range(1, self.players + 1), *COLLIDING})
        self.guilds = max(2, self.players // 25)
        self.substations = self.guilds + max(2, self.players // 10)

    def player(self, index: int) -> dict[str, Any]:
        record: dict[str, Any] = self.world.tables["player"][f"1-{index}"]
        return record

    def guild_owner(self, guild: int) -> int:
        """Return the index of the player who owns a guild: its own number, but the demo's player is in the first."""
        return guild if guild != DEMO else self.guilds + 1

    def owned_guild(self, player: int) -> int:
        """Return the number of the guild that a player owns, 0 for none."""
        if player == self.guilds + 1 and self.guilds >= DEMO:
            return DEMO
        return player if player <= self.guilds and player != DEMO else 0

    def creator(self, player_id: str) -> str:
        address: str = self.world.tables["player"][player_id]["primaryAddress"]
        return address

    def address(self, prefix: str = "structs1") -> str:
        return prefix + "".join(self.rng.choices(_BECH32, k=38))

    def name(self) -> str:
        return f"{self.rng.choice(_HUE)}-{self.rng.choice(_THING)}"

    def some_player(self) -> str:
        return f"1-{self.rng.choice(self.indexes)}"

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def attribute(self, store: str, names: tuple[str, ...], entity_id: str, **values: int) -> None:
        table = self.world.tables.setdefault(store, {})
        for name, value in values.items():
            if value:
                table[f"{names.index(name)}-{entity_id}"] = str(value)

    def grid(self, entity_id: str, **values: int) -> None:
        self.attribute("grid", GRID_ATTRIBUTES, entity_id, **values)
