"""What puts results in order beside what they say: the period that was asked for, outcomes, and supersession."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.search import scores as ranking
from mama_structs.memory.search.scores import WEIGHTS, Positions, Values, Weights
from mama_structs.memory.types.engine import Nodes

_NAMED: Final = 0.8
"""From this strength on a period is in front of all else, nearly as by `ranking.in_period`."""


@attrs.frozen(kw_only=True, eq=False)
class Precedence:
    """How candidates stand to the question's time and to each other; *positions* are those in its arrays."""

    nodes: Nodes
    created: NDArray[np.int64]
    """Milliseconds since 1970 (UTC)."""
    inside: NDArray[np.bool_]
    """Which were made in the period that was asked for."""
    strength: float = 0.0
    """How much that counts, 0 to 1."""
    outcomes: Positions
    """Memories of outcomes."""
    decisions: Positions
    """The decision of each of *outcomes*."""
    newest: Mapping[int, int]
    """Superseded nodes with what holds in their place."""
    replaced_by: Mapping[int, Collection[int]]
    """Superseded nodes with all that replaced them directly."""
    history: bool = False
    """Whether superseded memories rank by their own merits."""

    def among(self, order: Positions) -> Precedence:
        """Return the same for the candidates of an order alone, at the positions that they have in it."""
        place_of = np.full(len(self.nodes), -1, np.intp)
        place_of[order] = np.arange(len(order))
        outcomes, decisions = place_of[self.outcomes], place_of[self.decisions]
        both = (outcomes >= 0) & (decisions >= 0)
        nodes = self.nodes[order]
        return attrs.evolve(
            self,
            nodes=nodes,
            created=self.created[order],
            inside=self.inside[order],
            outcomes=outcomes[both],
            decisions=decisions[both],
            newest={node: self.newest[node] for node in nodes.tolist() if node in self.newest},
        )

    def reordered(self, order: Positions) -> Positions:
        """Return an order of all positions in which time, outcomes and supersession count as they do in a search."""
        arranged = order.tolist()
        if self.strength >= _NAMED and self.inside.any():
            arranged.sort(key=lambda position: not self.inside[position])
        told = list(zip(self.outcomes.tolist(), self.decisions.tolist(), strict=True))
        # A decision is found by what it or the memory of its outcome says, and what holds by what it replaced.
        for outcome, decision in told:
            self._lead(arranged, decision, outcome)
        if not self.history:
            position_of = {node: position for position, node in enumerate(self.nodes.tolist())}
            for old, leader in self.newest.items():
                if leader in position_of:
                    self._lead(arranged, position_of[leader], position_of[old])
        arranged = self.arranged(np.array(arranged, order.dtype)).tolist()
        for outcome, decision in told:
            self._follow(arranged, outcome, decision)
        return np.array(arranged, order.dtype)

    def _lead(self, order: list[int], first: int, second: int) -> None:
        """Move a position up to stand in front of another, unless only one of them lies in the period."""
        to, place = order.index(second), order.index(first)
        if place > to and self.inside[first] == self.inside[second]:
            order.insert(to, order.pop(place))

    def _follow(self, order: list[int], second: int, first: int) -> None:
        """Move a position down to stand behind another, unless only one of them lies in the period."""
        place, to = order.index(second), order.index(first)
        if place < to and self.inside[first] == self.inside[second]:
            order.insert(to, order.pop(place))

    def led(self, scores: Values, weights: Weights = WEIGHTS) -> Values:
        """Return scores in which what holds is at least as good as what it replaced."""
        if self.history or not self.newest:
            return scores
        position_of = {node: position for position, node in enumerate(self.nodes.tolist())}
        pairs = [(position_of[old], position_of.get(leader, -1)) for old, leader in self.newest.items()]
        old, leaders = np.array(pairs, np.intp).T
        # Who asks for a period wants what was written in it, even where it does not hold any more.
        same = (leaders >= 0) & (self.inside[old] == self.inside[leaders])
        held = self.inside[old] & ~same
        return ranking.led(scores, old[~held].tolist(), np.where(same, leaders, -1)[~held].tolist(), weights)

    def arranged(self, order: Positions) -> Positions:
        """Return an order in which what was superseded comes behind what took its place."""
        return order if self.history else self._behind_successors(self._newest_first(order))

    def _newest_first(self, order: Positions) -> Positions:
        """Return an order in which, on the places of a chain, the newest comes first; before it, the period's own."""
        chains: dict[int, list[int]] = {}
        for place, node in enumerate(self.nodes[order].tolist()):
            chains.setdefault(self.newest.get(node, node), []).append(place)
        arranged = order.copy()
        for places in chains.values():
            if len(places) == 1:
                continue
            members = order[places]
            nodes = self.nodes[members]
            # Times may be odd in imported data: what holds goes first all the same.
            replaced = np.array([node in self.newest for node in nodes.tolist()])
            keys = (-nodes, -self.created[members], replaced, ~self.inside[members])
            arranged[places] = members[np.lexsort(keys)]
        return arranged

    def _behind_successors(self, order: Positions) -> Positions:
        """Return an order in which each memory comes behind all that replaced it directly, as where a chain forks."""
        arranged = order.tolist()
        for position in order.tolist():
            node = int(self.nodes[position])
            # What replaced it and is replaced by it in turn, in a cycle, is left where it is.
            after = {one for one in self.replaced_by.get(node, ()) if node not in self.replaced_by.get(one, ())}
            if not after or self.inside[position]:
                continue
            place = arranged.index(position)
            last = max((at for at, other in enumerate(arranged) if int(self.nodes[other]) in after), default=-1)
            if last > place:
                arranged.insert(last, arranged.pop(place))
        return np.array(arranged, order.dtype)
