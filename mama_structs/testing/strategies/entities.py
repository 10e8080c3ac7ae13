"""Hypothesis strategies for ids, texts that look like ids, worlds and delays."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from typing import Final

import attrs
from hypothesis import strategies as st

from mama_structs.structs.ids import MAX_INDEX, EntityId, EntityType
from mama_structs.testing.node.world import World

TYPES_WITH_IDS: Final = tuple(member for member in EntityType if member.has_ids)

# Small indexes (so that ids repeat), the limits of the range, and indexes that a float cannot represent.
_INDEXES = st.integers(1, 30) | st.sampled_from([2**53 + 1, 2**63, MAX_INDEX]) | st.integers(1, MAX_INDEX)


def entity_types() -> st.SearchStrategy[EntityType]:
    """Return a strategy for all entity types, including infusions and addresses."""
    return st.sampled_from(tuple(EntityType))


def entity_ids(*, types: Iterable[EntityType] | None = None) -> st.SearchStrategy[EntityId]:
    """
    Return a strategy for entity ids.

    Args:
        types: The types of the ids; None for all types that have ids.

    """
    return st.builds(EntityId, st.sampled_from(TYPES_WITH_IDS if types is None else tuple(types)), _INDEXES)


def entity_id_texts(*, types: Iterable[EntityType] | None = None) -> st.SearchStrategy[str]:
    """Return a strategy for ids as text, such as ``1-11``; see `entity_ids`."""
    return entity_ids(types=types).map(str)


_KNOWN_LOOK_ALIKES = (
    "01-1", "1-01", "1-0", "0-0", " 1-1", "1-1 ", "1-11\n", "\ufeff1-11", "12-3", "14-5", "20-1", "100-1", "2024-01",
    "2025-1", "11-1-194", "6-1-100-1", "6-53@1-194", "8-structs1qypqxpq9@0", "uguild.0-1", "structs.planet.2-223.1-194",
    "3-1/structs1qypqxpq9", "1--1", "-1-1", "1-", "-1", "-", "", "1-+1", "+1-1", "1-1.0", "1-1e3", "1_0-1", "1-1_0",
    "0x1-1", "1-0x1", "1 - 1", "1:1", "1/1", "1\u20131", "1\u22121",
    "\u0661-\u0661", "1-\u0661\u0662", "\uff11-\uff11", "\u00b9-\u00b2",
    f"1-{MAX_INDEX + 1}", "1-" + "9" * 40, "1-1\x00", "v1-1", "1-1a", "1-11,1-12", '"1-11"', "14", "2184",
)  # fmt: skip


def look_alikes() -> st.SearchStrategy[str]:
    """Return a strategy for texts that look like ids but that `EntityId.parse` rejects."""
    text = entity_id_texts()
    index = _INDEXES.map(str)
    return st.one_of(
        st.sampled_from(_KNOWN_LOOK_ALIKES),
        st.builds("{}{}".format, text, st.sampled_from([" ", "\n", "\t", "-1", ".0", "@1-1", "a", "\u0660"])),
        st.builds("{}{}".format, st.sampled_from([" ", "0", "-", "+", "uguild.", "v", "5-1@"]), text),
        st.builds("{}-0{}".format, st.integers(0, 11), index),
        st.builds("{}-{}".format, st.integers(min_value=12), index),
        st.builds("{}-{}".format, st.integers(0, 11), st.integers(min_value=MAX_INDEX + 1)),
        text.map(lambda known: known.translate({ord("0") + digit: 0x0660 + digit for digit in range(10)})),
    )


def worlds(*, players: st.SearchStrategy[int] | None = None) -> st.SearchStrategy[World]:
    """
    Return a strategy for generated worlds.

    Args:
        players: A strategy for the number of players; None for 12 to 60.

    """
    sizes = st.integers(12, 60) if players is None else players
    return st.builds(World.generate, seed=st.integers(0, 2**32 - 1), players=sizes)


def latencies(ids: Collection[str], *, max: float = 0.02) -> st.SearchStrategy[dict[str, float]]:  # noqa: A002 - maximum in seconds
    """
    Return a strategy for latencies by id, in the format of `FakeNode`.

    Args:
        ids: The ids.
        max: The maximum, in seconds.

    """
    return st.fixed_dictionaries({entity_id: st.floats(0.0, max, allow_subnormal=False) for entity_id in ids})


@attrs.frozen
class Delays:
    """
    Maps every possible id to a deterministic delay.

    Args:
        seed: Determines the delays.
        max: The maximum, in seconds.

    """

    seed: int
    max: float

    def __getitem__(self, entity_id: str) -> float:
        """Return the delay of an id in seconds."""
        # A quarter of the delays is 0, so that several answers also arrive at the same time.
        delay = random.Random(f"{self.seed}/{entity_id}").uniform(-self.max / 3, self.max)  # noqa: S311 - not used for security
        return delay if delay > 0 else 0.0


def delays(*, max: float = 0.02) -> st.SearchStrategy[Delays]:  # noqa: A002 - maximum in seconds
    """
    Return a strategy for mappings from any id to a delay in seconds, such as ``delays["1-11"]``.

    Args:
        max: The maximum, in seconds.

    """
    return st.builds(Delays, seed=st.integers(0, 2**32 - 1), max=st.just(max))
