"""
Ranking of candidates: a weighted sum of features, reordered by outcomes and supersession, and its relevance.

``benchmarks/fit_search.py`` fits the weights (weights.json) to labelled sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import numpy as np

from mama_structs.memory.graph.results import with_place_term
from mama_structs.memory.search import features, scores
from mama_structs.memory.search.candidates import CandidateSet, collect_candidates, created_between
from mama_structs.memory.search.features import FEATURES, RELEVANCE_FEATURES
from mama_structs.memory.search.reorder_rules import ReorderRules
from mama_structs.memory.search.scores import FloatArray, IndexArray
from mama_structs.memory.search.search_request import SearchRequest
from mama_structs.memory.search.time_expressions import WEAK_STRENGTH
from mama_structs.memory.types.engine import TYPE_NUMBERS, Nodes, Reader
from mama_structs.memory.types.model import LinkType, MemoryType, to_milliseconds

_MIN_PERIOD_RELEVANCE: Final = 0.32
# Relevance per share of the query's words, for a search by words alone. On tests/data, the share of right hits grows
# with it up to a share of about 0.4.
_RELEVANCE_PER_WORD_SHARE: Final = 2.0
_CONTEXT_NUMBER: Final = TYPE_NUMBERS[MemoryType.CONTEXT]
_DECISION_NUMBER: Final = TYPE_NUMBERS[MemoryType.DECISION]
_IMPLEMENTATION_NUMBER: Final = TYPE_NUMBERS[LinkType.IMPLEMENTATION]
_LINKS_COLUMN: Final = FEATURES.index("links")


@attrs.frozen(kw_only=True)
class RankedCandidate:
    """A result of a search, like `Hit` but with nodes instead of memories."""

    node: int
    score: float
    relevance: float
    parts: Mapping[str, float]
    terms: Mapping[str, float]
    path: tuple[int, ...] = ()
    superseded_by: int | None = None


@attrs.frozen(eq=False)
class FeatureTable:
    """The features of the candidates of a search, and the links between them."""

    columns: FloatArray
    """Shape (candidates, features), in the order of `FEATURES`."""
    sources: IndexArray
    """Position of the source of each link of `CandidateSet.table`, or -1."""
    targets: IndexArray
    """Position of its target, or -1."""

    @classmethod
    def from_candidates(cls, found: CandidateSet) -> FeatureTable:
        """Compute the features of all candidates."""
        candidates, signals, request = found.candidates, found.candidates.signals, found.request
        now_ms = to_milliseconds(request.reference_time)
        columns = features.text_features(signals, found.query.rarity)
        evidence = features.text_evidence(signals, found.query.rarity)
        before, after = found.neighbours.find_positions(candidates)
        columns.update(features.neighbour_features(columns, signals.lengths, before, after))
        sources, targets = candidates.positions(np.stack([found.table.sources, found.table.targets]))
        columns["links"] = features.link_feature(evidence, found.table, sources, targets, now_ms)
        columns["topic"] = features.topic_feature(evidence, candidates.facts.topics)
        columns["period"] = np.zeros(len(evidence))
        if request.period is not None:
            inside = created_between(candidates.facts, request.period.since, request.period.until)
            columns["period"] = (inside * request.period.strength).astype(np.float64)
        columns["recency"] = features.recency_feature(candidates.facts.created, now_ms)
        return cls(np.stack([columns[name] for name in FEATURES], axis=1), sources, targets)


@attrs.frozen(eq=False, kw_only=True)
class Ranking:
    """The order of all candidates of a search, with the columns that explain their scores."""

    found: CandidateSet
    table: FeatureTable
    terms: FloatArray
    """Contribution of each feature to the score, of shape (candidates, features)."""
    rules: ReorderRules
    gains: Mapping[str, FloatArray]
    """Change of the score of each candidate by rules, by position."""
    order: IndexArray
    """Positions of the candidates, best first, without excluded ones."""
    scores: FloatArray
    """Descending scores of the candidates in *order*."""
    relevances: FloatArray
    """Relevance of each candidate in *order*."""

    def results(self, places: Sequence[int]) -> list[RankedCandidate]:
        """Return the results at *places* of the order, with the terms of their scores."""
        positions = self.order[places]
        nodes = self.found.candidates.nodes[positions].tolist()
        scores, relevances = self.scores[places].tolist(), self.relevances[places].tolist()
        gains = {name: column[positions].tolist() for name, column in self.gains.items() if column.any()}
        signals = {name: column[positions].tolist() for name, column in self.found.shown_signals.items()}
        results = []
        for at, (position, row) in enumerate(zip(positions.tolist(), self.terms[positions].tolist(), strict=True)):
            terms = {name: term for name, term in zip(FEATURES, row, strict=True) if term}
            terms |= {name: column[at] for name, column in gains.items() if column[at]}
            shown = {name: column[at] for name, column in signals.items()}
            results.append(
                RankedCandidate(
                    node=nodes[at],
                    score=scores[at],
                    relevance=relevances[at],
                    parts=shown | {name: term for name, term in terms.items() if name not in shown},
                    terms=with_place_term(terms, scores[at]),
                    path=self._path(position, row),
                    superseded_by=self.rules.newest.get(nodes[at]),
                )
            )
        return results

    def _path(self, position: int, row: list[float]) -> tuple[int, ...]:
        """Return the node of the best linked candidate, if the link contributes more than the text itself."""
        if row[_LINKS_COLUMN] <= sum(row[:_LINKS_COLUMN]):
            return ()
        table = self.table
        ends = np.concatenate([table.targets[table.sources == position], table.sources[table.targets == position]])
        ends = ends[(ends >= 0) & (ends != position)]
        if not len(ends):
            return ()
        evidence = features.text_evidence(self.found.candidates.signals, self.found.query.rarity)
        return (int(self.found.candidates.nodes[ends[evidence[ends].argmax()]]),)


def rank_candidates(found: CandidateSet) -> Ranking:
    """Rank candidates by the weighted sum of their features, then by outcomes and supersession."""
    request, candidates, period = found.request, found.candidates, found.request.period
    nodes, created = candidates.nodes, candidates.facts.created
    table = FeatureTable.from_candidates(found)
    terms = table.columns * features.load_ranking_weights()
    summed = terms.sum(axis=1)
    outcomes, decisions = _find_outcomes(found, table)
    paired = scores.pair_outcomes(summed, outcomes, decisions)
    inside, strength = np.zeros(len(nodes), np.bool_), 0.0
    if period is not None:
        inside, strength = created_between(candidates.facts, period.since, period.until), period.strength
    drops = request.superseded == "exclude"
    first = scores.top_k(paired, len(nodes) if drops else 2 * request.limit)
    newest = found.chains.newest(nodes[first])
    rules = ReorderRules(
        nodes=nodes,
        created=created,
        inside=inside,
        strength=strength,
        outcomes=outcomes,
        decisions=decisions,
        newest=newest,
        replaced_by=found.chains.replaced_by,
        history=bool(newest or found.chains.replaced_by) and request.keeps_superseded,
    )
    promoted = rules.promote(paired)
    # A superseded decision was demoted, so the memory of its outcome must follow it again.
    final = scores.follow_decisions(promoted, outcomes, decisions)
    order = scores.top_k(final, len(final))
    if drops and rules.newest:
        order = order[[node not in rules.newest for node in nodes[order].tolist()]]
    order = rules.move_behind_successors(order)
    # Scores must descend, so a memory that the reorder rules moved gets the score of its new position.
    placed = np.sort(final[order])[::-1]
    relevances = _relevances(found, order, placed, table.columns[order, _LINKS_COLUMN])
    if request.is_about_period:
        least = _MIN_PERIOD_RELEVANCE * (strength if strength <= WEAK_STRENGTH else 1.0)
        relevances = np.maximum(relevances, np.where(inside[order], least, 0.0))
    return Ranking(
        found=found,
        table=table,
        terms=terms,
        rules=rules,
        gains={"outcome": paired - summed + final - promoted, "superseded": promoted - paired},
        order=order,
        scores=placed,
        relevances=relevances,
    )


def _find_outcomes(found: CandidateSet, table: FeatureTable) -> tuple[IndexArray, IndexArray]:
    """Return the positions of the memories that explain outcomes, and of their decisions."""
    types, links = found.candidates.facts.types, found.table
    explains = (links.types == _IMPLEMENTATION_NUMBER) & (table.sources >= 0) & (table.targets >= 0)
    explains &= (types[table.sources] == _CONTEXT_NUMBER) & (types[table.targets] == _DECISION_NUMBER)
    return table.sources[explains], table.targets[explains]


def _relevance_evidence(found: CandidateSet) -> FloatArray:
    """
    Return the standing, word coverage and proximity to unrelated messages of each candidate, as three rows.

    A standing is reduced by the highest one that is expected by chance in a store of this size.
    """
    signals = found.candidates.signals
    unrelated = np.full(len(signals.standings), found.query.vectors.unrelated)
    count = max(found.query.memory_count, features.MIN_EXPECTED_COUNT)
    standings = signals.standings - features.expected_maximum(count)
    return np.stack([standings, features.word_coverage(signals, found.query.rarity), unrelated])


def _relevances(found: CandidateSet, order: IndexArray, placed: FloatArray, links: FloatArray) -> FloatArray:
    """Return the probability, 0 to 1, that each candidate in *order* answers the query."""
    if not found.query.vectors.plain.any():
        return np.minimum(_RELEVANCE_PER_WORD_SHARE * found.shown_signals["words"][order], 1.0)
    total = float(np.logaddexp.reduce(placed))
    standings, coverage, unrelated = _relevance_evidence(found)[:, order]
    columns = features.relevance_features(placed, standings, coverage, unrelated, links, total=total)
    weights = features.load_weights()["relevance"]
    odds = columns @ np.array([weights[name] for name in RELEVANCE_FEATURES]) + weights["intercept"]
    relevances: FloatArray = 0.5 + 0.5 * np.tanh(0.5 * odds)
    return relevances


def collect_features(reader: Reader, request: SearchRequest) -> tuple[Nodes, FloatArray, FloatArray]:
    """
    Return the candidates of a search, their features and the evidence of their relevance, for benchmarks/fit_search.py.

    The evidence is of shape (3, candidates), see `features.relevance_features`.
    """
    found = collect_candidates(reader, request)
    if found is None:
        return np.zeros(0, np.int64), np.zeros((0, len(FEATURES))), np.zeros((3, 0))
    return found.candidates.nodes, FeatureTable.from_candidates(found).columns, _relevance_evidence(found)
