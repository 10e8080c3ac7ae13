"""Hypothesis strategies for ids, texts that merely look like ids, worlds and delays."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from typing import Final

import attrs
from hypothesis import strategies as st

from mama_structs.structs.ids import MAX_INDEX, EntityId, EntityType
from mama_structs.testing.node.world import World

WITH_IDS: Final = tuple(member for member in EntityType if member.has_ids)

# Small numbers, so that ids meet again; the ends of the range; and numbers that floats cannot hold.
_INDEXES = st.integers(1, 30) | st.sampled_from([2**53 + 1, 2**63, MAX_INDEX]) | st.integers(1, MAX_INDEX)


def entity_types() -> st.SearchStrategy[EntityType]:
    """Give every type, infusions and addresses included."""
    return st.sampled_from(tuple(EntityType))


def entity_ids(*, types: Iterable[EntityType] | None = None) -> st.SearchStrategy[EntityId]:
    """
    Give ids of the types that have ids.

    Args:
        types: Only of these types; None for all that have ids.

    """
    return st.builds(EntityId, st.sampled_from(WITH_IDS if types is None else tuple(types)), _INDEXES)


def entity_id_texts(*, types: Iterable[EntityType] | None = None) -> st.SearchStrategy[str]:
    """Give ids as the chain writes them, such as ``1-11``; see `entity_ids`."""
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
    """Give texts that look like ids and are none: `EntityId.parse` refuses every one."""
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
    Give generated worlds.

    Args:
        players: Their sizes; None for 12 to 60 players.

    """
    sizes = st.integers(12, 60) if players is None else players
    return st.builds(World.generate, seed=st.integers(0, 2**32 - 1), players=sizes)


def latencies(ids: Collection[str], *, max: float = 0.02) -> st.SearchStrategy[dict[str, float]]:  # noqa: A002 - maximum in seconds
    """
    Give a latency for each of some ids, as `mama_structs.testing.FakeNode` takes it.

    Args:
        ids: The ids.
        max: The longest, in seconds.

    """
    return st.fixed_dictionaries({entity_id: st.floats(0.0, max, allow_subnormal=False) for entity_id in ids})


@attrs.frozen
class Delays:
    """
    A delay for every id there is, always the same for the same id.

    Args:
        seed: Another seed gives other delays.
        max: The longest, in seconds.

    """

    seed: int
    max: float

    def __getitem__(self, entity_id: str) -> float:
        """Return the delay of an id in seconds."""
        # A quarter comes at once, so that ties occur too.
        delay = random.Random(f"{self.seed}/{entity_id}").uniform(-self.max / 3, self.max)  # noqa: S311 - not used for security
        return delay if delay > 0 else 0.0


def delays(*, max: float = 0.02) -> st.SearchStrategy[Delays]:  # noqa: A002 - maximum in seconds
    """
    Give a delay for every id, when the ids are not known before: ``delays["1-11"]`` is in seconds.

    Args:
        max: The longest, in seconds.

    """
    return st.builds(Delays, seed=st.integers(0, 2**32 - 1), max=st.just(max))
