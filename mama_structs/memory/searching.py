"""The plan of a search: which memories answer a question, over a `Reader` (DESIGN section 6, "Search")."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory import ranking
from mama_structs.memory.analysis import query_terms
from mama_structs.memory.backend import Facts, Filter, LinkTable, Nodes, Reader
from mama_structs.memory.decay import strengths
from mama_structs.memory.ids import milliseconds
from mama_structs.memory.model import LinkType, MemoryType
from mama_structs.memory.periods import Period, period_in
from mama_structs.memory.ranking import WEIGHTS, Positions, Values, Weights

Calibrate = Callable[[NDArray[np.floating[Any]]], NDArray[np.floating[Any]]]

_FOUND: Final = 160
_FOLLOWED: Final = 48
_COMPARED: Final = 128
_BROUGHT: Final = 128
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
        history: Whether superseded memories rank as high as others.
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
    where = _as_of(request.where, request.as_of)
    period = period_in(request.text, request.moment)
    question = _Question.of(reader, request, period, weights)
    nodes = _found(reader, question, where)
    if len(nodes) < request.limit:
        # There is nothing else that speaks for these than that the filter lets them through.
        nodes = np.union1d(nodes, reader.window(where, limit=request.limit))
    candidates = question.judged(reader, nodes)
    followed = candidates.nodes[ranking.best(candidates.evidence, max(_FOLLOWED, request.limit))]
    table = reader.links(followed, "both", _LINKS)
    newest = _newest(reader, followed, request.as_of)
    brought = _passing(reader, _ends(table, newest, candidates.nodes, request), nodes, where)
    candidates = candidates.joined(question.judged(reader, brought))
    return _ranked(reader, question, candidates, table)


@attrs.frozen(eq=False)
class _Candidates:
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

    def joined(self, other: _Candidates) -> _Candidates:
        """Return these and *other* ones."""
        if not len(other.nodes):
            return self
        nodes = np.concatenate([self.nodes, other.nodes])
        order = np.argsort(nodes)
        values = (
            np.concatenate([mine, others])[order]
            for mine, others in (
                (self.meanings, other.meanings),
                (self.shares, other.shares),
                (self.evidence, other.evidence),
            )
        )
        return _Candidates(nodes[order], *values)

    def positions(self, nodes: Nodes) -> Positions:
        """Return where *nodes* stand here, -1 for those that do not."""
        if not len(self.nodes):
            return np.full(len(nodes), -1, np.intp)
        at = np.minimum(np.searchsorted(self.nodes, nodes), len(self.nodes) - 1)
        return np.where(self.nodes[at] == nodes, at, -1)


@attrs.frozen(eq=False, kw_only=True)
class _Question:
    """
    What is asked, with what the store knows of its words.

    Args:
        request: What is asked.
        period: The time that it asks for.
        words: It without the words that name that time.
        weights: What counts how much.
        rarity: The highest BM25 score that a memory can have for it.
        unknown: The share of that which lies in words that occur nowhere.

    """

    request: SearchRequest
    period: Period | None
    words: str
    weights: Weights
    rarity: float
    unknown: float

    @classmethod
    def of(cls, reader: Reader, request: SearchRequest, period: Period | None, weights: Weights) -> _Question:
        """Return what *reader* knows of the question of *request*."""
        words = request.text if period is None else request.text.replace(period.words, " ", 1)
        terms = query_terms(words)
        rarities = {term: rarity * terms.get(term, 0.0) for term, rarity in reader.rarity(words).items()}
        # Between the rarity of a word that one memory has, and that of one that none has.
        nowhere = math.log(1 + reader.count() + 0.5)
        whole = sum(rarities.values())
        unknown = sum(rarity for term, rarity in rarities.items() if rarity > nowhere * terms.get(term, 0.0))
        return cls(
            request=request,
            period=period,
            words=words,
            weights=weights,
            rarity=whole,
            unknown=unknown / whole if whole > 0 else 0.0,
        )

    def judged(self, reader: Reader, nodes: Nodes) -> _Candidates:
        """Return *nodes*, which must ascend, with what speaks for each of them."""
        meanings = self.meanings(reader.similarities(self.request.vector, nodes))
        shares = np.zeros(len(nodes))
        if self.rarity > 0:
            shares = np.clip(reader.word_scores(self.words, nodes) / self.rarity, 0.0, 1.0).astype(np.float64)
        return _Candidates(nodes, meanings, shares, ranking.evidence(meanings, shares, self.weights))

    def meanings(self, cosines: NDArray[np.float32]) -> Values:
        """Return the log-odds of *cosines*."""
        return ranking.log_odds(self.request.calibration(cosines.astype(np.float64)))


def _as_of(where: Filter, as_of: datetime | None) -> Filter:
    return where if as_of is None else _narrowed(where, None, as_of)


def _narrowed(where: Filter, since: datetime | None, until: datetime | None) -> Filter:
    sinces = [moment for moment in (where.since, since) if moment is not None]
    untils = [moment for moment in (where.until, until) if moment is not None]
    return attrs.evolve(where, since=max(sinces, default=None), until=min(untils, default=None))


def _found(reader: Reader, question: _Question, where: Filter) -> Nodes:
    """Return the nodes that meaning or words find, and those of the period that was asked for."""
    vector, period = question.request.vector, question.period
    limit = max(_FOUND, question.request.limit)
    found = [reader.nearest(vector, limit, where).nodes, reader.words(question.words, limit, where).nodes]
    if period is not None:
        within = _narrowed(where, period.since, period.until)
        found.append(reader.nearest(vector, limit, within).nodes)
        found.append(reader.words(question.words, limit, within).nodes)
        found.append(reader.window(within, limit=limit))
    return np.unique(np.concatenate(found)).astype(np.int64)


def _ends(table: LinkTable, newest: Mapping[int, int], known: Nodes, request: SearchRequest) -> Nodes:
    """Return the nodes that links lead to and that are not *known* yet: the strongest, where they are very many."""
    faded = strengths(table, milliseconds(request.moment))
    order = np.argsort(-faded, kind="stable")
    ends = np.concatenate([table.sources[order], table.targets[order]])
    ends = ends[~np.isin(ends, known)]
    unique, first = np.unique(ends, return_index=True)
    # Both ends of a link stand as far from the start of their half as the link is weak.
    strongest = unique[np.argsort(first % max(len(table), 1), kind="stable")[:_BROUGHT]]
    heads = np.array(sorted(set(newest.values())), np.int64)
    return np.union1d(strongest, heads[~np.isin(heads, known)])


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


def _newest(reader: Reader, nodes: Nodes, as_of: datetime | None) -> dict[int, int]:
    """
    Return what stands in the place of each superseded one of *nodes*: the newest end of its chain.

    Where a chain forks it follows the newest branch; a cycle, which old data may have, ends where it closes.
    """
    successors: dict[int, int] = {}
    seen = {int(node) for node in nodes}
    frontier = nodes
    while len(frontier):
        table = reader.links(frontier, "in", (LinkType.EVOLUTION,))
        made = reader.facts(table.sources).created
        later = np.ones(len(made), np.bool_) if as_of is None else made < milliseconds(as_of)
        # In order of time, so that the newest successor is the one that stays.
        order = np.lexsort((table.sources, made))
        for link in order[later[order]]:
            successors[int(table.targets[link])] = int(table.sources[link])
        frontier = np.array(sorted({int(node) for node in table.sources[later]} - seen), np.int64)
        seen.update(int(node) for node in frontier)
    return {node: end for node in map(int, nodes) if (end := _end(successors, node)) != node}


def _end(successors: Mapping[int, int], node: int) -> int:
    passed = {node}
    while node in successors and successors[node] not in passed:
        node = successors[node]
        passed.add(node)
    return node


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
    def of(cls, reader: Reader, candidates: _Candidates, table: LinkTable) -> _Ground:
        """Return those links of *table* that have both ends among *candidates*."""
        sources, targets = candidates.positions(table.sources), candidates.positions(table.targets)
        known = (sources >= 0) & (targets >= 0) & (sources != targets)
        rows = LinkTable(*(getattr(table, field.name)[known] for field in attrs.fields(LinkTable)))
        return cls(facts=reader.facts(candidates.nodes), table=rows, sources=sources[known], targets=targets[known])

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
        close = weights.association * strengths(self.table, now_ms).astype(np.float64)
        close[self.table.types == _EVOLUTION] = weights.evolution
        close[self.table.types == _IMPLEMENTATION] = weights.implementation
        raised = ties.copy()
        for row, lender in enumerate(lenders):
            for here, there in ((self.sources, self.targets), (self.targets, self.sources)):
                mine = here == lender
                np.maximum.at(raised[row], there[mine], close[mine])
            raised[row, lender] = 0.0
        # What lends to a decision lends to the memory of its outcome no more than it may have beside it.
        raised[:, self.outcomes()[0]] *= weights.outcome
        return raised


def _alike(
    reader: Reader, question: _Question, candidates: _Candidates, lenders: Positions, compared: Positions
) -> Values:
    """Return how alike the texts of candidates are to those of the *lenders*, of shape (lenders, candidates)."""
    ties = np.zeros((len(lenders), len(candidates.nodes)))
    near = candidates.nodes[compared]
    for row, lender in enumerate(lenders):
        pieces = reader.vectors(int(candidates.nodes[lender]))
        if len(pieces):
            # Of a long text, the piece that answers.
            piece = pieces[int(np.argmax(pieces @ question.request.vector))]
            meanings = question.meanings(reader.similarities(piece, near))
            ties[row, compared] = ranking.likeness(meanings, question.weights)
    return ties


def _ranked(
    reader: Reader,
    question: _Question,
    candidates: _Candidates,
    table: LinkTable,
) -> list[Ranked]:
    """Return the best of *candidates* by what speaks for them, what lends to them, time and supersession."""
    request, weights, nodes = question.request, question.weights, candidates.nodes
    if not len(nodes):
        return []
    now_ms = milliseconds(request.moment)
    ground = _Ground.of(reader, candidates, table)
    own = ranking.paired(candidates.evidence, *ground.outcomes(), weights)
    lenders = ranking.best(own, weights.lenders)
    ties = _alike(reader, question, candidates, lenders, ranking.best(own, _COMPARED))
    gains, givers = ranking.lent(own, lenders, ground.tied(lenders, ties, now_ms, weights))
    summed = own + gains
    inside = _inside(ground.facts, question.period)
    strength = 0.0 if question.period is None else question.period.strength
    favoured = ranking.in_period(summed, inside, strength, weights)
    fresh = favoured * ranking.recency(ground.facts.created, now_ms, weights)
    timed = scores = favoured + fresh
    newest = _newest(reader, nodes[ranking.best(scores, 2 * request.limit)], request.as_of)
    if not request.history:
        scores = _led(candidates, scores, newest, inside, weights)
    order = ranking.best(scores, request.limit)
    if not request.history:
        order = _newest_first(order, nodes, ground.facts, newest)
    relevances = ranking.relevance(np.maximum(own, gains), question.unknown, weights)
    # "What did we note yesterday?" is answered by whatever was.
    relevances = np.maximum(relevances, np.where(inside, _IN_PERIOD * strength, 0.0))
    parts = {
        "outcome": own - candidates.evidence,
        "graph": gains,
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
    candidates: _Candidates,
    scores: Values,
    newest: Mapping[int, int],
    inside: NDArray[np.bool_],
    weights: Weights,
) -> Values:
    """Return scores in which what holds is at least as good as what it replaced."""
    old = candidates.positions(np.array(sorted(newest), np.int64))
    leaders = candidates.positions(np.array([newest[node] for node in sorted(newest)], np.int64))
    # Who asks for a period wants what was written in it, even where it does not hold any more.
    same = (leaders >= 0) & (inside[old] == inside[leaders])
    held = inside[old] & ~same
    return ranking.led(scores, old[~held], np.where(same, leaders, -1)[~held], weights)


def _newest_first(order: Positions, nodes: Nodes, facts: Facts, newest: Mapping[int, int]) -> Positions:
    """Return an order in which the memories of one chain share out their places by time, the newest first."""
    chains: dict[int, list[int]] = {}
    for place, position in enumerate(order.tolist()):
        node = int(nodes[position])
        chains.setdefault(newest.get(node, node), []).append(place)
    arranged = order.copy()
    for places in chains.values():
        members = order[places]
        # Times may be odd in imported data: what holds goes first all the same.
        replaced = [int(node) in newest for node in nodes[members]]
        arranged[places] = members[np.lexsort((-nodes[members], -facts.created[members], replaced))]
    return arranged
