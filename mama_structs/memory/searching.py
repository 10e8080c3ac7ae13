"""The plan of a search: which memories answer a question, over a `Reader` (DESIGN section 6, "Search")."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory import ranking, successors
from mama_structs.memory.asking import asks_for_history
from mama_structs.memory.backend import Facts, Filter, LinkTable, Nodes, Reader
from mama_structs.memory.candidates import Calibrate, Candidates, Question
from mama_structs.memory.decay import strengths
from mama_structs.memory.graph import Successors, known_by, only
from mama_structs.memory.ids import milliseconds
from mama_structs.memory.model import LinkType, MemoryType
from mama_structs.memory.periods import Period, period_in
from mama_structs.memory.ranking import WEIGHTS, Positions, Values, Weights

_FOUND: Final = 96
_FOLLOWED: Final = 48
_COMPARED: Final = 128
_BROUGHT: Final = 128
_MILLISECOND: Final = timedelta(milliseconds=1)
_IN_PERIOD: Final = 0.35

_TYPES: Final = tuple(MemoryType)
_CONTEXT: Final = _TYPES.index(MemoryType.CONTEXT)
_DECISION: Final = _TYPES.index(MemoryType.DECISION)
_EVOLUTION: Final = tuple(LinkType).index(LinkType.EVOLUTION)
_IMPLEMENTATION: Final = tuple(LinkType).index(LinkType.IMPLEMENTATION)
# Temporal links say that two memories were written in one sitting, which is no reason to show both.
_LINKS: Final = (LinkType.EVOLUTION, LinkType.IMPLEMENTATION, LinkType.ASSOCIATION)


@attrs.frozen(kw_only=True, eq=False)
class SearchRequest:
    """
    One search.

    Args:
        text: The question as it was asked.
        vector: Its embedding, of shape (dimensions,), normalised.
        where: Which memories count.
        history: Whether superseded memories rank as high as others; they do too where the question asks for what was.
        as_of: The moment that is searched as if it were now; None for the present.
        now: The present moment (UTC).
        limit: Results at the most.
        calibration: What an array of the embedder's cosines means, each 0 to 1.

    """

    text: str
    vector: NDArray[np.float32]
    where: Filter = attrs.field(factory=Filter)
    history: bool = False
    as_of: datetime | None = None
    now: datetime
    limit: int = 10
    calibration: Calibrate

    @property
    def moment(self) -> datetime:
        """The time that counts as now."""
        return self.now if self.as_of is None else self.as_of


@attrs.frozen(kw_only=True)
class Ranked:
    """
    One result of a search.

    Args:
        node: The memory.
        score: What orders the results of this search, higher is better.
        relevance: How well it answers, 0 to 1, absolutely; below some 0.3 nothing was found.
        parts: What it owes its score to: ``meaning`` and ``words`` (as found by itself), ``graph`` (what neighbours
            lent), ``outcome``, ``period``, ``recency`` and ``superseded``, each only where it counted.
        path: The nodes by which it was reached, the first one found by itself; empty where it was found itself.
        superseded_by: The newest memory that stands in its place, None where it holds.

    """

    node: int
    score: float
    relevance: float
    parts: Mapping[str, float]
    path: tuple[int, ...] = ()
    superseded_by: int | None = None


def search(reader: Reader, request: SearchRequest, *, weights: Weights = WEIGHTS) -> list[Ranked]:
    """
    Return what answers a question best, best first: *limit* memories if so many match the filter at all.

    Args:
        reader: The memories, as they are at one moment.
        request: What is asked.
        weights: What counts how much.

    """
    if request.limit <= 0:
        return []
    # What was made at that very moment was there.
    where = _narrowed(request.where, None, None if request.as_of is None else request.as_of + _MILLISECOND)
    period = period_in(request.text, request.moment)
    words = request.text if period is None else request.text.replace(period.words, " ", 1)
    question = Question.of(reader, words, request.vector, calibration=request.calibration, weights=weights)
    nodes = _found(reader, question, where, period, max(_FOUND, request.limit))
    if len(nodes) < request.limit:
        # There is nothing else that speaks for these than that the filter lets them through.
        nodes = np.union1d(nodes, reader.window(where, limit=request.limit))
    candidates = question.judged(reader, nodes)
    followed = candidates.nodes[ranking.best(candidates.evidence, max(_FOLLOWED, request.limit))]
    table = known_by(reader.links(followed, "both", _LINKS), request.as_of)
    chains = Successors(reader, request.as_of)
    newest = chains.newest(followed, table)
    brought = _passing(reader, _ends(table, newest, candidates, request), nodes, where)
    candidates = candidates.joined(question.judged(reader, brought))
    return _ranked(reader, request, question, candidates, period=period, table=table, chains=chains)


def _narrowed(where: Filter, since: datetime | None, until: datetime | None) -> Filter:
    if since is None and until is None:
        return where
    sinces = [moment for moment in (where.since, since) if moment is not None]
    untils = [moment for moment in (where.until, until) if moment is not None]
    return attrs.evolve(where, since=max(sinces, default=None), until=min(untils, default=None))


def _found(reader: Reader, question: Question, where: Filter, period: Period | None, limit: int) -> Nodes:
    """Return the nodes that meaning or words find, and those of the period that was asked for."""
    found = [reader.nearest(question.vector, limit, where).nodes, reader.words(question.terms, limit, where).nodes]
    if period is not None:
        within = _narrowed(where, period.since, period.until)
        found.append(reader.nearest(question.vector, limit, within).nodes)
        found.append(reader.words(question.terms, limit, within).nodes)
        found.append(reader.window(within, limit=limit))
    return np.unique(np.concatenate(found)).astype(np.int64)


def _ends(table: LinkTable, newest: Mapping[int, int], known: Candidates, request: SearchRequest) -> Nodes:
    """Return the nodes that links lead to and that are not *known* yet: the strongest, where they are very many."""
    faded = strengths(table, milliseconds(request.moment))
    order = np.argsort(-faded, kind="stable")
    ends = np.concatenate([table.sources[order], table.targets[order]])
    ends = ends[known.positions(ends) < 0]
    unique, first = np.unique(ends, return_index=True)
    # Both ends of a link stand as far from the start of their half as the link is weak.
    strongest = unique[np.argsort(first % max(len(table), 1), kind="stable")[:_BROUGHT]]
    leaders = successors.heads(newest)
    return np.unique(np.concatenate([strongest, leaders[known.positions(leaders) < 0]]))


def _passing(reader: Reader, nodes: Nodes, found: Nodes, where: Filter) -> Nodes:
    """Return those of *nodes* that a filter lets through, as it did *found*."""
    if not len(nodes) or where == Filter():
        return nodes
    facts = reader.facts(nodes)
    passes = np.ones(len(nodes), np.bool_)
    if where.types is not None:
        passes &= np.isin(facts.types, [_TYPES.index(kind) for kind in where.types])
    if where.since is not None:
        passes &= facts.created >= milliseconds(where.since)
    if where.until is not None:
        passes &= facts.created < milliseconds(where.until)
    if where.topic is not None:
        # Readers know topics by number, which whatever was found has.
        passes &= np.isin(facts.topics, reader.facts(found[:1]).topics)
    nodes = nodes[passes]
    if where.mentions is None:
        return nodes
    named = [where.mentions <= set(memory.mentions) for memory in reader.get(nodes)]
    return nodes[np.array(named, np.bool_)]


@attrs.frozen(eq=False, kw_only=True)
class _Ground:
    """
    What links say about candidates.

    Args:
        facts: Of each candidate.
        table: The links between candidates.
        sources: The positions where they begin.
        targets: The positions where they end.

    """

    facts: Facts
    table: LinkTable
    sources: Positions
    targets: Positions

    @classmethod
    def of(cls, reader: Reader, candidates: Candidates, table: LinkTable) -> _Ground:
        """Return those links of *table* that have both ends among *candidates*."""
        sources, targets = candidates.positions(table.sources), candidates.positions(table.targets)
        known = (sources >= 0) & (targets >= 0) & (sources != targets)
        return cls(
            facts=reader.facts(candidates.nodes),
            table=only(table, known),
            sources=sources[known],
            targets=targets[known],
        )

    def outcomes(self) -> tuple[Positions, Positions]:
        """
        Return memories of outcomes, and the decision of each.

        Only those are contexts that implement: `MemoryStore.set_outcome` makes them.
        """
        told = (self.table.types == _IMPLEMENTATION) & (self.facts.types[self.sources] == _CONTEXT)
        told &= self.facts.types[self.targets] == _DECISION
        return self.sources[told], self.targets[told]

    def tied(self, lenders: Positions, ties: Values, now_ms: int, weights: Weights) -> Values:
        """Return *ties*, of shape (lenders, candidates), raised to what links make them; none ties to itself."""
        close = weights.tie * strengths(self.table, now_ms).astype(np.float64)
        close[(self.table.types == _EVOLUTION) | (self.table.types == _IMPLEMENTATION)] = weights.tie
        topics = self.facts.topics
        same = (topics[lenders, np.newaxis] == topics) & (topics >= 0)
        raised: Values = np.maximum(ties, weights.topic * same)
        row_of = np.full(ties.shape[1], -1, np.intp)
        row_of[lenders] = np.arange(len(lenders))
        for here, there in ((self.sources, self.targets), (self.targets, self.sources)):
            rows = row_of[here]
            mine = rows >= 0
            np.maximum.at(raised, (rows[mine], there[mine]), close[mine])
        raised[np.arange(len(lenders)), lenders] = 0.0
        # What lends to a decision lends to the memory of its outcome no more than it may have beside it.
        raised[:, self.outcomes()[0]] *= weights.outcome
        return raised


def _ranked(
    reader: Reader,
    request: SearchRequest,
    question: Question,
    candidates: Candidates,
    *,
    period: Period | None,
    table: LinkTable,
    chains: Successors,
) -> list[Ranked]:
    """Return the best of *candidates* by what speaks for them, what lends to them, time and supersession."""
    weights, nodes = question.weights, candidates.nodes
    if not len(nodes):
        return []
    now_ms = milliseconds(request.moment)
    ground = _Ground.of(reader, candidates, table)
    own = ranking.paired(candidates.evidence, *ground.outcomes(), weights)
    compared = ranking.best(own, max(_COMPARED, weights.lenders))
    lenders = compared[: weights.lenders]
    ties = np.zeros((len(lenders), len(nodes)))
    ties[:, compared] = question.alike(reader, nodes[compared], len(lenders))
    gains, givers = ranking.lent(own, lenders, ground.tied(lenders, ties, now_ms, weights))
    summed = ranking.below_givers(own + gains, own, givers)
    inside = _inside(ground.facts, period)
    strength = 0.0 if period is None else period.strength
    favoured = ranking.in_period(summed, inside, strength, weights)
    fresh = favoured * ranking.recency(ground.facts.created, now_ms, weights)
    timed = scores = favoured + fresh
    newest = chains.newest(nodes[ranking.best(scores, 2 * request.limit)])
    history = request.history or asks_for_history(request.text)
    if not history:
        scores = _led(candidates, scores, newest, inside, weights)
    order = ranking.best(scores, request.limit)
    if not history:
        order = successors.newest_first(order, nodes, ground.facts, newest, inside)
        order = successors.behind_successors(order, nodes, chains.replaced_by, inside)
    relevances = ranking.relevance(np.maximum(own, gains), question.unknown, weights)
    # "What did we note yesterday?" is answered by whatever was.
    relevances = np.maximum(relevances, np.where(inside, _IN_PERIOD * strength, 0.0))
    parts = {
        "outcome": own - candidates.evidence,
        "graph": summed - own,
        "period": favoured - summed,
        "recency": fresh,
        "superseded": scores - timed,
    }
    # A memory that went before another took its place, and has the score of that place.
    places = np.sort(scores[order])[::-1]
    meanings = 1 / (1 + np.exp(-candidates.meanings))
    ranked = []
    for position, score in zip(order.tolist(), places.tolist(), strict=True):
        why = {"meaning": float(meanings[position]), "words": float(candidates.shares[position])}
        why.update({name: float(part[position]) for name, part in parts.items() if part[position]})
        lent = givers[position] >= 0 and gains[position] > candidates.evidence[position]
        ranked.append(
            Ranked(
                node=int(nodes[position]),
                score=score,
                relevance=float(relevances[position]),
                parts=why,
                path=(int(nodes[givers[position]]),) if lent else (),
                superseded_by=newest.get(int(nodes[position])),
            )
        )
    return ranked


def _inside(facts: Facts, period: Period | None) -> NDArray[np.bool_]:
    """Return which memories were made in the period that was asked for, none where none was."""
    inside = np.full(len(facts.created), period is not None)
    if period is not None and period.since is not None:
        inside &= facts.created >= milliseconds(period.since)
    if period is not None and period.until is not None:
        inside &= facts.created < milliseconds(period.until)
    return inside


def _led(
    candidates: Candidates,
    scores: Values,
    newest: Mapping[int, int],
    inside: NDArray[np.bool_],
    weights: Weights,
) -> Values:
    """Return scores in which what holds is at least as good as what it replaced."""
    superseded, leading = successors.pairs(newest)
    old, leaders = candidates.positions(superseded), candidates.positions(leading)
    # Who asks for a period wants what was written in it, even where it does not hold any more.
    same = (leaders >= 0) & (inside[old] == inside[leaders])
    held = inside[old] & ~same
    return ranking.led(scores, old[~held], np.where(same, leaders, -1)[~held], weights)
