"""What a search asks of the store about memories that may be results: how near they are, and which words they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory import ranking
from mama_structs.memory.analysis import query_terms
from mama_structs.memory.backend import Nodes, Reader
from mama_structs.memory.ranking import Positions, Values, Weights

Calibrate = Callable[[NDArray[np.floating[Any]]], NDArray[np.floating[Any]]]

# Memories with which a missing word counts half.
_FEW: Final = 10


@attrs.frozen(eq=False)
class Candidates:
    """
    Memories that may be results, by ascending node, with what speaks for each by itself.

    Args:
        nodes: Each once.
        meanings: Log-odds by calibrated cosine.
        shares: The share of the question's rarity that each has.
        evidence: Both together.

    """

    nodes: Nodes
    meanings: Values
    shares: Values
    evidence: Values

    def joined(self, other: Candidates) -> Candidates:
        """Return these and *other* ones."""
        if not len(other.nodes):
            return self
        nodes = np.concatenate([self.nodes, other.nodes])
        order = np.argsort(nodes)
        return Candidates(
            nodes[order],
            np.concatenate([self.meanings, other.meanings])[order],
            np.concatenate([self.shares, other.shares])[order],
            np.concatenate([self.evidence, other.evidence])[order],
        )

    def positions(self, nodes: Nodes) -> Positions:
        """Return where *nodes* stand here, -1 for those that do not."""
        if not len(self.nodes):
            return np.full(len(nodes), -1, np.intp)
        at = np.minimum(self.nodes.searchsorted(nodes), len(self.nodes) - 1)
        return np.where(self.nodes[at] == nodes, at, -1)


@attrs.frozen(eq=False, kw_only=True)
class Question:
    """
    What is asked, with what the store knows of its words.

    Args:
        vector: Its embedding, of shape (dimensions,), normalised.
        calibration: What an array of the embedder's cosines means, each 0 to 1.
        weights: What counts how much.
        terms: Its words, without those that name a time.
        rarity: The highest BM25 score that a memory can have for it.
        unknown: The share of that which lies in words that occur nowhere.

    """

    vector: NDArray[np.float32]
    calibration: Calibrate
    weights: Weights
    terms: Mapping[str, float]
    rarity: float
    unknown: float

    @classmethod
    def of(
        cls, reader: Reader, words: str, vector: NDArray[np.float32], *, calibration: Calibrate, weights: Weights
    ) -> Question:
        """Return what *reader* knows of a question."""
        terms = query_terms(words)
        rarities = {term: rarity * terms.get(term, 0.0) for term, rarity in reader.rarity(terms).items()}
        # Between the rarity of a word that one memory has, and that of one that none has.
        nowhere = math.log(1 + reader.count() + 0.5)
        whole = sum(rarities.values())
        unknown = sum(rarity for term, rarity in rarities.items() if rarity > nowhere * terms.get(term, 0.0))
        # That a word occurs nowhere says little where there are few memories.
        unknown *= reader.count() / (reader.count() + _FEW)
        return cls(
            vector=vector,
            calibration=calibration,
            weights=weights,
            terms=terms,
            rarity=whole,
            unknown=unknown / whole if whole > 0 else 0.0,
        )

    def judged(self, reader: Reader, nodes: Nodes) -> Candidates:
        """Return *nodes*, which must ascend, with what speaks for each of them."""
        meanings = self.meanings(reader.similarities(self.vector, nodes))
        shares = np.zeros(len(nodes))
        if self.rarity > 0 and len(nodes):
            scores = reader.word_scores(self.terms, nodes)
            shares = np.clip(scores / self.rarity, 0.0, 1.0).astype(np.float64)
        return Candidates(nodes, meanings, shares, ranking.evidence(meanings, shares, self.weights))

    def meanings(self, cosines: NDArray[np.float32]) -> Values:
        """Return the log-odds of *cosines*."""
        return ranking.log_odds(self.calibration(cosines.astype(np.float64)))

    def alike(self, reader: Reader, nodes: Nodes, lenders: int) -> Values:
        """
        Return how alike the texts of *nodes* are to those of the first so many of them, of shape (lenders, nodes).

        Of a long text that lends, the piece that answers counts; of another one, the piece that is most like that.
        """
        pieces, counts = reader.pieces(nodes)
        begins = np.cumsum(counts) - counts
        having = np.flatnonzero(counts)
        ties = np.zeros((lenders, len(nodes)))
        rows = having[having < lenders]
        if not len(rows):
            return ties
        answering = [
            begin + (int((pieces[begin : begin + count] @ self.vector).argmax()) if count > 1 else 0)
            for begin, count in zip(begins[rows].tolist(), counts[rows].tolist(), strict=True)
        ]
        cosines = pieces[answering] @ pieces.T
        if len(pieces) > len(having):
            cosines = np.maximum.reduceat(cosines, begins[having], axis=1)
        ties[np.ix_(rows, having)] = ranking.likeness(self.meanings(cosines), self.weights)
        return ties
