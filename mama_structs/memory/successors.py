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

    Where a chain forks it follows the newest branch; in a cycle, which old data may have, its newest memory holds.

    Args:
        reader: The memories.
        as_of: What came later does not count; None for the present.

    """

    def __init__(self, reader: Reader, as_of: datetime | None) -> None:
        self._reader = reader
        self._as_of = as_of
        self._next: dict[int, int] = {}
        self._made: dict[int, int] = {}
        self.replaced_by: dict[int, set[int]] = {}
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
        known = np.ones(len(rows), np.bool_) if self._as_of is None else made <= milliseconds(self._as_of)
        # In order of time, so that the newest successor is the one that stays.
        order = np.lexsort((table.sources[rows], made))
        found = set()
        self._made.update(zip(table.sources[rows].tolist(), made.tolist(), strict=True))
        rows = rows[order[known[order]]]
        for target, source in zip(table.targets[rows].tolist(), table.sources[rows].tolist(), strict=True):
            if target in targets:
                self._next[target] = source
                self.replaced_by.setdefault(target, set()).add(source)
                found.add(source)
        return found

    def _end(self, node: int) -> int:
        passed: dict[int, None] = {}
        while node in self._next and node not in passed:
            passed[node] = None
            node = self._next[node]
        if node not in passed:
            return node
        circle = list(passed)[list(passed).index(node) :]
        return max(circle, key=lambda one: (self._made[one], one))


def known_by(table: LinkTable, as_of: datetime | None) -> LinkTable:
    """
    Return the links of a table that were there at *as_of*.

    What people or a model linked later was not known then. A link by ``system`` says what its ends had in them all the
    time, and may be made much later, by a migration or when memories are embedded anew: it counts as soon as both are.
    """
    if as_of is None or not len(table):
        return table
    return only(table, (table.creators == _SYSTEM) | (table.created <= milliseconds(as_of)))


def only(table: LinkTable, rows: NDArray[np.bool_]) -> LinkTable:
    """Return some links of a table."""
    return LinkTable(*(getattr(table, field.name)[rows] for field in attrs.fields(LinkTable)))


def newest_first(
    order: Positions, nodes: Nodes, facts: Facts, newest: Mapping[int, int], inside: NDArray[np.bool_]
) -> Positions:
    """
    Return an order in which the memories of one chain share out their places by time, the newest first.

    Args:
        order: The positions to arrange, best first.
        nodes: What is at each position.
        facts: Of *nodes*.
        newest: What stands in the place of each superseded one.
        inside: Which were made in the period that was asked for: these go first, whatever holds today.

    """
    chains: dict[int, list[int]] = {}
    for place, node in enumerate(nodes[order].tolist()):
        chains.setdefault(newest.get(node, node), []).append(place)
    arranged = order.copy()
    for places in chains.values():
        if len(places) > 1:
            members = order[places]
            # Times may be odd in imported data: what holds goes first all the same.
            replaced = np.array([node in newest for node in nodes[members].tolist()])
            arranged[places] = members[
                np.lexsort((-nodes[members], -facts.created[members], replaced, ~inside[members]))
            ]
    return arranged


def behind_successors(
    order: Positions, nodes: Nodes, replaced_by: Mapping[int, set[int]], inside: NDArray[np.bool_]
) -> Positions:
    """Return an order in which each memory comes behind all that replaced it directly, as where a chain forks."""
    arranged = order.tolist()
    for position in order.tolist():
        after = replaced_by.get(int(nodes[position]), set())
        if not after or inside[position]:
            continue
        place = arranged.index(position)
        # What replaced it and is replaced by it in turn, in a cycle, is left where it is.
        last = max(
            (
                at
                for at, other in enumerate(arranged)
                if int(nodes[other]) in after and int(nodes[position]) not in replaced_by.get(int(nodes[other]), set())
            ),
            default=-1,
        )
        if last > place:
            arranged.insert(last, arranged.pop(place))
    return np.array(arranged, order.dtype)


def heads(newest: Mapping[int, int]) -> Nodes:
    """Return what stands in the place of others, each once, in rising order."""
    return np.array(sorted(set(newest.values())), np.int64)


def pairs(newest: Mapping[int, int]) -> tuple[Nodes, Nodes]:
    """Return superseded memories in rising order, and what stands in the place of each."""
    old = sorted(newest)
    return np.array(old, np.int64), np.array([newest[node] for node in old], np.int64)
