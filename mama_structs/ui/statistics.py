"""Figures of a namespace for the overview, computed from columns without reading texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.types.duplicates import superseded_nodes
from mama_structs.memory.types.engine import TYPE_NUMBERS, EngineFilter, NodeAttributes, Nodes, Reader
from mama_structs.memory.types.model import (
    ORIGINS,
    OUTCOME_OF_WORD,
    TYPES_WITHOUT_DUPLICATES,
    Memory,
    MemoryType,
    Outcome,
    to_milliseconds,
)

MAX_PERIODS: Final = 36
"""Maximum number of bars of the growth chart."""
_MIN_PERIODS: Final = 12
MAX_DUPLICATE_GROUPS: Final = 20
"""Maximum number of groups of equal memories on the overview."""
_EPOCH_WEEKDAY: Final = np.timedelta64(3, "D")  # 1970-01-01 was a Thursday, and weeks start on Monday.
_UNITS: Final = ("day", "week", "month", "year")


@attrs.frozen
class GrowthPeriod:
    """A period of the growth chart: its first day, the first day after it, and the number of memories."""

    start: datetime
    end: datetime
    count: int

    @property
    def last_day(self) -> datetime:
        """The last day of the period."""
        return self.end - timedelta(days=1)


@attrs.frozen(kw_only=True)
class Growth:
    """Numbers of new memories in consecutive periods of one unit, which is "day", "week", "month" or "year"."""

    unit: str
    periods: tuple[GrowthPeriod, ...]

    @property
    def peak(self) -> int:
        """The highest number of a period."""
        return max((one.count for one in self.periods), default=0)


@attrs.frozen(kw_only=True)
class Statistics:
    """
    Figures of a namespace.

    Args:
        count: Number of memories, including expired and replaced ones.
        expired_count: Number of expired memories.
        types: Number of memories by type.
        origins: Number of memories by origin.
        outcomes: Number of decisions by outcome.
        growth: Numbers of new memories over time.
        duplicates: Groups of current memories with the same words, newest first.

    """

    count: int
    expired_count: int
    types: Mapping[str, int]
    origins: Mapping[str, int]
    outcomes: Mapping[str, int]
    growth: Growth
    duplicates: tuple[tuple[Memory, ...], ...]

    @property
    def open_count(self) -> int:
        """Number of decisions without an outcome."""
        return self.types[MemoryType.DECISION.value] - sum(self.outcomes.values())


def compute_statistics(reader: Reader, now: datetime) -> Statistics:
    """Return the figures of a namespace."""
    nodes = reader.window()
    facts = reader.facts(nodes)
    is_current = facts.unexpired_mask(to_milliseconds(now))
    type_counts = np.bincount(facts.types, minlength=len(MemoryType)).tolist()
    origin_counts = np.bincount(facts.origins, minlength=len(ORIGINS)).tolist()
    return Statistics(
        count=len(nodes),
        expired_count=len(nodes) - int(is_current.sum()),
        types={kind.value: type_counts[TYPE_NUMBERS[kind]] for kind in MemoryType},
        origins=dict(zip(ORIGINS, origin_counts, strict=True)),
        outcomes={outcome.value: reader.count(EngineFilter(outcome=outcome)) for outcome in Outcome},
        growth=count_by_period(facts.created),
        duplicates=tuple(_find_duplicates(reader, nodes, facts, is_current)),
    )


def count_by_period(created_ms: NDArray[np.int64]) -> Growth:
    """Return the numbers of memories per day, week, month or year: the shortest with at most `MAX_PERIODS` periods."""
    if not len(created_ms):
        return Growth(unit="day", periods=())
    days = created_ms.astype("datetime64[ms]").astype("datetime64[D]")
    for unit in _UNITS:
        indexes = _index_periods(days, unit)
        first, last = int(indexes.min()), int(indexes.max())
        if last - first < MAX_PERIODS:
            break
    first = min(first, last - _MIN_PERIODS + 1)
    counts = np.bincount(indexes - first, minlength=last - first + 1).tolist()
    bounds = [_start_of(first + step, unit) for step in range(len(counts) + 1)]
    return Growth(unit=unit, periods=tuple(map(GrowthPeriod, bounds, bounds[1:], counts))[-MAX_PERIODS:])


def _index_periods(days: NDArray[Any], unit: str) -> NDArray[np.int64]:
    """Return the number of the period of each day, counted from 1970."""
    shifted = days + _EPOCH_WEEKDAY if unit == "week" else days
    return shifted.astype(f"datetime64[{unit[0].upper()}]").astype(np.int64)


def _start_of(index: int, unit: str) -> datetime:
    day = np.array(index).astype(f"datetime64[{unit[0].upper()}]").astype("datetime64[D]")
    return datetime.fromisoformat(str(day - _EPOCH_WEEKDAY if unit == "week" else day)).replace(tzinfo=UTC)


def _find_duplicates(
    reader: Reader, nodes: Nodes, facts: NodeAttributes, is_current: NDArray[np.bool_]
) -> Iterable[tuple[Memory, ...]]:
    """Yield groups of current memories with the same words, newest first."""
    excluded = [TYPE_NUMBERS[kind] for kind in TYPES_WITHOUT_DUPLICATES]
    # The reasons of outcomes belong to their decisions, and may well have the same words.
    reasons = reader.window(EngineFilter(types=frozenset({MemoryType.CONTEXT}), source=OUTCOME_OF_WORD))
    chosen = is_current & ~np.isin(facts.types, excluded) & ~np.isin(nodes, reasons)
    wordings, counts = np.unique(facts.wordings[chosen], return_counts=True)
    repeated = chosen & np.isin(facts.wordings, wordings[counts > 1])
    groups: dict[int, list[int]] = {}
    superseded = superseded_nodes(reader, nodes[repeated])
    for node, wording in zip(nodes[repeated].tolist(), facts.wordings[repeated].tolist(), strict=True):
        if node not in superseded:
            groups.setdefault(wording, []).append(node)
    shown = [group for group in groups.values() if len(group) > 1][:MAX_DUPLICATE_GROUPS]
    memories = iter(reader.get([node for group in shown for node in group]))
    for group in shown:
        yield tuple(next(memories) for _ in group)


def measure_directory(directory: Path) -> int:
    """Return the size of all files below a directory, in bytes. Files that disappear meanwhile are skipped."""
    size = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                size += (Path(folder) / name).lstat().st_size
            except OSError:
                continue
    return size
