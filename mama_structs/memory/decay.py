"""How links lose strength with age, and which of them may be pruned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.engine import LinkTable, Scores
from mama_structs.memory.ids import milliseconds
from mama_structs.memory.model import CREATORS, Link, LinkType
from mama_structs.settings import MemorySettings

RATES: Final[Mapping[LinkType, float]] = {
    LinkType.EVOLUTION: 0.0,
    LinkType.IMPLEMENTATION: 0.02,
    LinkType.ASSOCIATION: 0.05,
    LinkType.TEMPORAL: 0.1,
}
"""What a link by ``system`` loses a day, as an exponent (ADR-001, section 4)."""

_DAY_MS: Final = 86_400_000
_RATE_OF_POSITION: Final = np.array([RATES[link_type] for link_type in LinkType])
_SYSTEM: Final = CREATORS.index("system")
_TEMPORAL: Final = tuple(LinkType).index(LinkType.TEMPORAL)


def strength(link: Link, now: datetime) -> float:
    """
    Return a link's confidence after decay: ``confidence * exp(-rate * age_days)`` (ADR-001, section 4).

    Links of users and models do not decay, nor does evolution.

    Args:
        link: The link.
        now: When it is looked at; a link from later than that has the age 0.

    """
    if link.created_by != "system":
        return link.confidence
    days = max((now - link.created_at) / timedelta(days=1), 0.0)
    return link.confidence * math.exp(-RATES[link.link_type] * days)


def strengths(table: LinkTable, now_ms: int) -> Scores:
    """
    Return what `strength` gives for each link of a table.

    Args:
        table: The links.
        now_ms: When they are looked at, in milliseconds since 1970.

    """
    rates = np.where(table.creators == _SYSTEM, _RATE_OF_POSITION[table.types], 0.0)
    days = np.maximum(now_ms - table.created, 0) / _DAY_MS
    faded: Scores = (table.confidences * np.exp(-rates * days)).astype(np.float32)
    return faded


def prunable(table: LinkTable, now_ms: int, settings: MemorySettings) -> NDArray[np.bool_]:
    """
    Return which links of a table may be pruned (DESIGN section 6): a mask with an item for each.

    What counts is the confidence as stored, not what decay has left of it, or links would go that nobody found weak.

    Args:
        table: The links.
        now_ms: When they are looked at, in milliseconds since 1970.
        settings: Below which confidence, and from what age on for temporal links.

    """
    weak = table.confidences < np.float32(settings.prune_below)
    old = (table.types == _TEMPORAL) & (now_ms - table.created > settings.prune_temporal_after * 1000)
    may_go: NDArray[np.bool_] = (table.creators == _SYSTEM) & (weak | old)
    return may_go


def is_prunable(link: Link, now: datetime, settings: MemorySettings) -> bool:
    """Tell what `prunable` says of one link."""
    if link.created_by != "system":
        return False
    # Tables hold confidences in single precision, and both have to say the same.
    if np.float32(link.confidence) < np.float32(settings.prune_below):
        return True
    age = milliseconds(now) - milliseconds(link.created_at)
    return link.link_type is LinkType.TEMPORAL and age > settings.prune_temporal_after * 1000
