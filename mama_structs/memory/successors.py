"""Which memories were superseded, and by what: the newest end of each one's chain."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.backend import Facts, LinkTable, Nodes, Reader
from mama_structs.memory.ids import milliseconds
from mama_structs.memory.model import CREATORS, LinkType
from mama_structs.memory.ranking import Positions

_EVOLUTION: Final = tuple(LinkType).index(LinkType.EVOLUTION)
_SYSTEM: Final = CREATORS.index("system")


class Successors:
    """
    What took the place of memories, as far as it was asked for.

    Where a chain forks it follows the newest branch; a cycle, which old data may have, ends where it closes.

    Args:
        reader: The memories.
        as_of: What came at this time or later does not count; None for the present.

    """

    def __init__(self, reader: Reader, as_of: datetime | None) -> None:
        self._reader = reader
        self._as_of = as_of
        self._next: dict[int, int] = {}
        self._seen: set[int] = set()

    def newest(self, nodes: Nodes, table: LinkTable | None = None) -> dict[int, int]:
        """
        Return what stands in the place of each superseded one of *nodes*: the newest end of its chain.

        Args:
            nodes: Memories.
            table: All links that end at them, and maybe others, where they are at hand.

        """
        wanted: list[int] = nodes.tolist()
        frontier = set(wanted) - self._seen
        while frontier:
            self._seen |= frontier
            if table is None:
                ends = np.array(sorted(frontier), np.int64)
                table = known_by(self._reader.links(ends, "in", (LinkType.EVOLUTION,)), self._as_of)
            frontier = self._learn(table, frontier) - self._seen
            table = None
        return {node: end for node in wanted if (end := self._end(node)) != node}

    def _learn(self, table: LinkTable, targets: set[int]) -> set[int]:
        """Take up what replaced *targets*, and return it."""
        rows = np.flatnonzero(table.types == _EVOLUTION)
        if not len(rows):
            return set()
        made = self._reader.facts(table.sources[rows]).created
        later = np.ones(len(rows), np.bool_) if self._as_of is None else made < milliseconds(self._as_of)
        # In order of time, so that the newest successor is the one that stays.
        order = np.lexsort((table.sources[rows], made))
        found = set()
        rows = rows[order[later[order]]]
        for target, source in zip(table.targets[rows].tolist(), table.sources[rows].tolist(), strict=True):
            if target in targets:
                self._next[target] = source
                found.add(source)
        return found

    def _end(self, node: int) -> int:
        passed = {node}
        while node in self._next and self._next[node] not in passed:
            node = self._next[node]
            passed.add(node)
        return node


def known_by(table: LinkTable, as_of: datetime | None) -> LinkTable:
    """
    Return the links of a table that were there before *as_of*.

    What people or a model linked later was not known then. A link by ``system`` says what its ends had in them all the
    time, and may be made much later, by a migration or when memories are embedded anew: it counts as soon as both are.
    """
    if as_of is None or not len(table):
        return table
    return only(table, (table.creators == _SYSTEM) | (table.created < milliseconds(as_of)))


def only(table: LinkTable, rows: NDArray[np.bool_]) -> LinkTable:
    """Return some links of a table."""
    return LinkTable(*(getattr(table, field.name)[rows] for field in attrs.fields(LinkTable)))


def newest_first(order: Positions, nodes: Nodes, facts: Facts, newest: Mapping[int, int]) -> Positions:
    """Return an order in which the memories of one chain share out their places by time, the newest first."""
    chains: dict[int, list[int]] = {}
    for place, node in enumerate(nodes[order].tolist()):
        chains.setdefault(newest.get(node, node), []).append(place)
    arranged = order.copy()
    for places in chains.values():
        if len(places) > 1:
            members = order[places]
            # Times may be odd in imported data: what holds goes first all the same.
            replaced = np.array([node in newest for node in nodes[members].tolist()])
            arranged[places] = members[np.lexsort((-nodes[members], -facts.created[members], replaced))]
    return arranged


def heads(newest: Mapping[int, int]) -> Nodes:
    """Return what stands in the place of others, each once, in rising order."""
    return np.array(sorted(set(newest.values())), np.int64)


def pairs(newest: Mapping[int, int]) -> tuple[Nodes, Nodes]:
    """Return superseded memories in rising order, and what stands in the place of each."""
    old = sorted(newest)
    return np.array(old, np.int64), np.array([newest[node] for node in old], np.int64)
