"""Rules that reorder search results by period, outcomes and supersession."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.search import scores as ranking
from mama_structs.memory.search.scores import FloatArray, IndexArray
from mama_structs.memory.types.engine import Nodes

_MIN_DOMINANT_STRENGTH: Final = 0.8
"""Minimum strength of a period that moves its memories to the front, as the feature ``period`` does."""


@attrs.frozen(kw_only=True, eq=False)
class ReorderRules:
    """
    Rules that reorder candidates by the requested period, by outcomes and by supersession.

    Positions are indexes into the arrays of this object.
    """

    nodes: Nodes
    created: NDArray[np.int64]
    """Milliseconds since 1970 (UTC)."""
    inside: NDArray[np.bool_]
    """Mask of the candidates created in the requested period."""
    strength: float = 0.0
    """Strength of the period, 0 to 1."""
    outcomes: IndexArray
    """Memories that explain outcomes."""
    decisions: IndexArray
    """The decision of each memory in *outcomes*."""
    newest: Mapping[int, int]
    """Current successor of each superseded node."""
    replaced_by: Mapping[int, Collection[int]]
    """Direct successors of each superseded node."""
    history: bool = False
    """True if superseded memories rank by their own scores."""

    def restrict_to(self, order: IndexArray) -> ReorderRules:
        """Return the rules for only the candidates in *order*. Positions of the result are indexes into *order*."""
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

    def reorder(self, order: IndexArray) -> IndexArray:
        """Apply the rules for period, outcomes and supersession to *order*; return the result."""
        arranged = order.tolist()
        if self.strength >= _MIN_DOMINANT_STRENGTH and self.inside.any():
            arranged.sort(key=lambda position: not self.inside[position])
        pairs = list(zip(self.outcomes.tolist(), self.decisions.tolist(), strict=True))
        # If the query matches the memory of an outcome, it also matches the decision, so move the decision up.
        # If the query matches a superseded memory, move its successor up for the same reason.
        for outcome, decision in pairs:
            self._move_before(arranged, decision, outcome)
        if not self.history:
            position_of = {node: position for position, node in enumerate(self.nodes.tolist())}
            for old, leader in self.newest.items():
                if leader in position_of:
                    self._move_before(arranged, position_of[leader], position_of[old])
        arranged = self.move_behind_successors(np.array(arranged, order.dtype)).tolist()
        for outcome, decision in pairs:
            self._follow(arranged, outcome, decision)
        return np.array(arranged, order.dtype)

    def _move_before(self, order: list[int], first: int, second: int) -> None:
        """Move *first* up to directly before *second*, unless only one is inside the period."""
        to, place = order.index(second), order.index(first)
        if place > to and self.inside[first] == self.inside[second]:
            order.insert(to, order.pop(place))

    def _follow(self, order: list[int], second: int, first: int) -> None:
        """Move *second* down to directly after *first*, unless only one is inside the period."""
        place, to = order.index(second), order.index(first)
        if place < to and self.inside[first] == self.inside[second]:
            order.insert(to, order.pop(place))

    def promote(self, scores: FloatArray) -> FloatArray:
        """Return scores in which no superseded memory scores higher than its current successor."""
        if self.history or not self.newest:
            return scores
        position_of = {node: position for position, node in enumerate(self.nodes.tolist())}
        pairs = [(position_of[old], position_of.get(leader, -1)) for old, leader in self.newest.items()]
        old, leaders = np.array(pairs, np.intp).T
        # A query for a period asks for memories of that time, so superseded ones inside it retain their scores.
        same = (leaders >= 0) & (self.inside[old] == self.inside[leaders])
        held = self.inside[old] & ~same
        return ranking.promote(scores, old[~held], np.where(same, leaders, -1)[~held])

    def move_behind_successors(self, order: IndexArray) -> IndexArray:
        """Return an order in which superseded memories come after their successors."""
        if self.history or not (self.newest or self.replaced_by):
            return order
        return self._move_behind_direct_successors(self._sort_chains(order))

    def _sort_chains(self, order: IndexArray) -> IndexArray:
        """
        Sort the memories of each chain among the positions that they occupy in *order*.

        Memories of the requested period come first, then the current memory, then the newest ones.
        """
        chains: dict[int, list[int]] = {}
        leaders = set(self.newest.values())
        for place, node in enumerate(self.nodes[order].tolist()):
            if node in self.newest or node in leaders:
                chains.setdefault(self.newest.get(node, node), []).append(place)
        arranged = order.copy()
        for places in chains.values():
            if len(places) == 1:
                continue
            members = order[places]
            nodes = self.nodes[members]
            # Imported data may have wrong times, so the current memory goes first regardless of its time.
            replaced = np.array([node in self.newest for node in nodes.tolist()])
            keys = (-nodes, -self.created[members], replaced, ~self.inside[members])
            arranged[places] = members[np.lexsort(keys)]
        return arranged

    def _move_behind_direct_successors(self, order: IndexArray) -> IndexArray:
        """
        Return an order in which each memory comes after all its direct successors.

        This also covers forked chains.
        """
        arranged = order.tolist()
        nodes = self.nodes[order].tolist()
        for position, node in zip(order.tolist(), nodes, strict=True):
            if node not in self.replaced_by:
                continue
            # If two memories supersede each other, neither moves behind the other one.
            after = {one for one in self.replaced_by[node] if node not in self.replaced_by.get(one, ())}
            if not after or self.inside[position]:
                continue
            place = arranged.index(position)
            last = max((at for at, other in enumerate(arranged) if int(self.nodes[other]) in after), default=-1)
            if last > place:
                arranged.insert(last, arranged.pop(place))
        return np.array(arranged, order.dtype)
