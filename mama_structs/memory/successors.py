"""Which memories were superseded, and by what: the newest end of each one's chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.backend import Facts, Nodes
from mama_structs.memory.model import CREATORS, LinkType
from mama_structs.memory.ranking import Positions

_EVOLUTION: Final = tuple(LinkType).index(LinkType.EVOLUTION)
_SYSTEM: Final = CREATORS.index("system")


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
