"""Making a `World` from a seed: see `World.generate` for what it promises."""

from __future__ import annotations

from random import Random

from mama_structs.errors import InvalidArgument
from mama_structs.testing._draft import COLLIDING, EXTRA_FIELDS, PFP, PRUNED_STRUCT, SMALLEST, STALE, Draft
from mama_structs.testing._economy import trade
from mama_structs.testing._settlement import settle
from mama_structs.testing._struct_types import struct_types
from mama_structs.testing.world import Oddities, World


def generate(*, seed: int, players: int) -> World:
    """Make the world; `World.generate` is the public door."""
    if not isinstance(players, int) or isinstance(players, bool) or players < SMALLEST:
        raise InvalidArgument(f"players must be a whole number from {SMALLEST}, got {players!r:.80}")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise InvalidArgument(f"seed must be a whole number, got {seed!r:.80}")
    draft = Draft(rng=Random(f"mama_structs/{seed}/{players}"), players=players)  # noqa: S311 - no secret
    # Read first by everything else, so that stores stand in the order of the types' codes.
    for name in ("guild", "player", "planet", "reactor", "substation", "struct"):
        draft.world.tables[name] = {}
    settle(draft)
    trade(draft)
    draft.world.tables["struct_type"] = struct_types()
    draft.world.oddities = Oddities(
        stale_visitor=draft.player(STALE)["planetId"],
        id_shaped_pfp=f"1-{PFP}",
        unset_fleet=f"9-{players}",
        ownerless_reactor=f"3-{draft.guilds + 1}",
        pruned_struct=draft.pruned,
        pruned_struct_planet=draft.player(PRUNED_STRUCT)["planetId"],
        extra_fields=f"1-{EXTRA_FIELDS}",
        colliding=tuple(f"1-{index}" for index in COLLIDING),
    )
    return draft.world
