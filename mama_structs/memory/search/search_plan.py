"""
A search from the question to the hits, step by step; how candidates are scored is in `ranking` (DESIGN section 6).

All of it are plans over a `Reader`, which ask the store in few whole questions, never once per memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, Protocol, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.graph.results import Hit, placed
from mama_structs.memory.graph.traversal import Successors, known_by, only
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.search import scores as ranking
from mama_structs.memory.search.reorder_rules import Precedence
from mama_structs.memory.search.result_dedup import Likeness, folded
from mama_structs.memory.search.scores import SHOWN, WEIGHTS, Bounds, Clues, Positions, Scale, Values, Weights
from mama_structs.memory.types.duplicates import NO_WORDING, has_failed, wording
from mama_structs.memory.types.engine import (
    NUMBERS,
    SYSTEM,
    Facts,
    Filter,
    LinkTable,
    Nodes,
    Reader,
    Scores,
    Vectors,
    names_of,
)
from mama_structs.memory.types.model import ORIGINS, LinkType, Memory, MemoryType, milliseconds
from mama_structs.memory.types.text_analysis import query_terms, scripts_of
from mama_structs.memory.types.time_expressions import Period, period_in

_FOUND: Final = 96
_FOLLOWED: Final = 48
_BROUGHT: Final = 128
# Each is compared with what is beside all others: of twenty thousand that would be gigabytes.
_TELLING: Final = 512
# Memories with which a missing word counts half.
_FEW: Final = 10
_MILLISECOND: Final = timedelta(milliseconds=1)
_IN_PERIOD: Final = 0.35
# What was written within an hour of each other belongs to one sitting.
_SITTING_MS: Final = 3_600_000
# By so many spreads memories of a sitting are nearer to each other than to those of others, where it is one talk.
_TALK: Final = 0.4
_NEXT: Final = 2
_ALL: Final = 100
# Where some of the best are left out, so many times more are looked at.
_MORE: Final = 2
_LONGEST_QUERY: Final = 4_000

_CONTEXT: Final = NUMBERS[MemoryType.CONTEXT]
_DECISION: Final = NUMBERS[MemoryType.DECISION]
_EVOLUTION: Final = NUMBERS[LinkType.EVOLUTION]
_IMPLEMENTATION: Final = NUMBERS[LinkType.IMPLEMENTATION]
# Temporal links say that two memories were written in one sitting, which is no reason to show both.
_LINKS: Final = (LinkType.EVOLUTION, LinkType.IMPLEMENTATION, LinkType.ASSOCIATION)

Superseded = Literal["behind", "drop", "equal"]
"""Where superseded memories stand: behind what holds in their place, nowhere, or where their own merits put them."""
SUPERSEDED: Final[tuple[Superseded, ...]] = ("behind", "drop", "equal")


@attrs.frozen(kw_only=True, eq=False)
class SearchRequest:
    """One search."""

    text: str
    vector: NDArray[np.float32]
    """The question's embedding, of shape (dimensions,), normalised."""
    where: Filter = attrs.field(factory=Filter)
    superseded: Superseded = "behind"
    """Where superseded memories stand; not behind others where the question asks for what was."""
    min_relevance: float = 0.0
    """What is less relevant is no hit."""
    as_of: datetime | None = None
    """The moment that is searched as if it were now; None for the present."""
    now: datetime
    limit: int = 10
    calibration: Calibration
    """What an array of the embedder's cosines means, each 0 to 1."""

    @property
    def moment(self) -> datetime:
        """The time that counts as now."""
        return self.now if self.as_of is None else self.as_of


@attrs.frozen(kw_only=True)
class Ranked:
    """One result of a search, as `Hit` says it, with nodes in place of memories."""

    node: int
    score: float
    relevance: float
    parts: Mapping[str, float]
    terms: Mapping[str, float]
    path: tuple[int, ...] = ()
    superseded_by: int | None = None


def hits(reader: Reader, request: SearchRequest) -> tuple[list[Hit], Precedence | None]:
    """
    Return what answers a question best as callers get it, as it was at that moment, and what puts it in order.

    What says the same as a better one is folded into it, and others take its place.
    """
    found: list[tuple[Ranked, Memory, tuple[str, ...]]] = []
    precedence = None
    memories: dict[int, Memory] = {}
    for results, whole in _rankings(reader, request):
        relevant = np.array([at for at, one in enumerate(results) if one.relevance >= request.min_relevance], np.intp)
        best = [results[place] for place in relevant]
        new = [one.node for one in best if one.node not in memories]
        memories.update(zip(new, reader.get(new), strict=True) if new else ())
        own = [memories[one.node] for one in best]
        if request.as_of is not None:
            own = [saving.as_of(memory, request.as_of) for memory in own]
        shown = folded(own, _replacements(reader, best, memories), _likeness(reader, best, request.calibration))
        places = [place for place, first in enumerate(shown) if place == first][: request.limit]
        copies: dict[int, list[str]] = {place: [] for place in places}
        for at, first in enumerate(shown):
            if first != at and first in copies:
                copies[first].append(own[at].id)
        found = [(best[place], own[place], tuple(copies[place])) for place in places]
        precedence = whole.among(relevant[places])
        if len(found) == request.limit or len(best) < len(results):
            break
    named = list({node for one, _, _ in found for node in (*one.path, one.superseded_by) if node is not None})
    ids = dict(zip(named, reader.ids(named), strict=True))
    return [
        Hit(
            memory=memory,
            score=one.score,
            relevance=one.relevance,
            parts=one.parts,
            terms=one.terms,
            path=tuple([ids[node] for node in one.path]),
            superseded_by=None if one.superseded_by is None else ids[one.superseded_by],
            copies=same,
        )
        for one, memory, same in found
    ], precedence


def _replacements(reader: Reader, results: Sequence[Ranked], memories: dict[int, Memory]) -> list[Hashable]:
    """Return what says in whose place other memories stand, the same for places that copies of one memory took."""
    new = {one.superseded_by for one in results if one.superseded_by is not None} - memories.keys()
    memories.update(zip(sorted(new), reader.get(sorted(new)), strict=True) if new else ())
    return [
        None
        if one.superseded_by is None
        else (wording(after := memories[one.superseded_by]) or after.id, has_failed(after))
        for one in results
    ]


def _likeness(reader: Reader, results: Sequence[Ranked], calibration: Calibration) -> Likeness:
    """Return how similar results are by the first vectors of both, 0 where one has none."""

    def likeness(pairs: Sequence[tuple[int, int]]) -> Sequence[float]:
        places = sorted({place for pair in pairs for place in pair})
        pieces, counts = reader.pieces([results[place].node for place in places])
        first = dict(zip(places, (np.cumsum(counts) - counts).tolist(), strict=True))
        has = dict(zip(places, (counts > 0).tolist(), strict=True))
        return [
            float(calibration(float(pieces[first[one]] @ pieces[first[other]]))) if has[one] and has[other] else 0.0
            for one, other in pairs
        ]

    return likeness


class Judged(Protocol):
    """What a search says of a result, `Hit` and `Ranked` among others."""

    @property
    def score(self) -> float:
        """What orders one list."""

    @property
    def relevance(self) -> float:
        """How well it answers, 0 to 1, absolutely."""


JudgedT = TypeVar("JudgedT", bound=Judged)


def worth_showing(hits: Sequence[JudgedT], *, bounds: Bounds = SHOWN) -> list[JudgedT]:
    """
    Return those of a search's hits that belong in a prompt: nothing where the best of them hardly answers.

    What answers scores nearly as much as the best does, how sure the best may be: a hit's own relevance says less.
    They must be of one search in one namespace: scores of a list that several namespaces gave are relevances.
    """
    if max((hit.relevance for hit in hits), default=0.0) < bounds.relevance:
        return []
    least = bounds.share * max(hit.score for hit in hits) if hits else 0.0
    return [hit for hit in hits if hit.score >= least]


def _rankings(reader: Reader, request: SearchRequest) -> Iterator[tuple[list[Ranked], Precedence]]:
    """Give the best *limit* results, then more and more for who leaves some out, until all that match were given."""
    found, limit = None, request.limit
    while limit > 0:
        larger = attrs.evolve(request, limit=limit)
        if found is None or limit > _FOLLOWED:
            found = gathered(reader, larger, WEIGHTS)
        if found is None:
            return
        yield ranked(attrs.evolve(found, request=larger))
        if len(found.candidates.nodes) <= limit:
            return
        limit *= _MORE


def gathered(reader: Reader, request: SearchRequest, weights: Weights) -> Gathered | None:
    """Return what may answer a question and what is known of it, None where nothing passes the filter."""
    # What was made at that very moment was there.
    where = _narrowed(request.where, None, None if request.as_of is None else request.as_of + _MILLISECOND)
    where = attrs.evolve(where, valid_at=request.moment)
    period = period_in(request.text, request.moment)
    terms = query_terms(request.text)
    reader.expect(lambda ahead: _ask_ahead(ahead, request, terms, where, period))
    query = PreparedQuery.of(reader, request.text, request.vector, calibration=request.calibration, weights=weights)
    nodes, best = _found(reader, query, where, period, max(_FOUND, request.limit))
    if len(nodes) < request.limit:
        # There is nothing else that speaks for these than that the filter lets them through.
        nodes = np.union1d(nodes, reader.window(where, limit=request.limit))
    if not len(nodes):
        return None
    candidates = query.judged(reader, nodes, best)
    chosen = ranking.best(candidates.evidence, max(_FOLLOWED, request.limit))
    followed = nodes[chosen]
    table = known_by(reader.links(followed, "both", _LINKS), request.as_of)
    chains = Successors(reader, request.as_of)
    holding = chains.newest(followed, table).values()
    sittings = Sittings(nodes, *reader.beside(nodes, _SITTING_MS))
    ends = np.union1d(_ends(table, holding, candidates, request), sittings.around(chosen, candidates))
    reader.expect(
        lambda ahead: (ahead.word_scores(terms, ends), ahead.links(ends, "in", {LinkType.EVOLUTION})),
    )
    brought = _passing(reader, ends, nodes, where)
    if len(brought):
        candidates = candidates.joined(query.judged(reader, brought, best))
    return Gathered(
        request=request,
        query=query,
        best=best,
        candidates=candidates,
        period=period,
        table=table,
        chains=chains,
        sittings=sittings,
        kinship=sittings.kinship(reader, chosen[:_TELLING]),
    )


def _ask_ahead(
    ahead: Reader, request: SearchRequest, terms: Mapping[str, float], where: Filter, period: Period | None
) -> None:
    """Ask all that candidates are found by, and are looked at by."""
    limit, none = max(_FOUND, request.limit), np.zeros(0, np.int64)
    for one in (where, *([] if period is None else [_narrowed(where, period.since, period.until)])):
        ahead.nearest(request.vector, limit, one)
        ahead.words(terms, limit, one)
        if one is not where:
            ahead.window(one, limit=limit)
    ahead.rarity(terms)
    ahead.sample()
    ahead.links(none)
    ahead.beside(none, _SITTING_MS)


# What is asked


@attrs.frozen(eq=False, kw_only=True)
class PreparedQuery:
    """A question, with what the store knows of its words."""

    vector: NDArray[np.float32]
    calibration: Calibration
    scale: Scale
    weights: Weights
    terms: Mapping[str, float]
    """Its words."""
    scripts: int
    """What it is written in (`text.scripts_of`)."""
    rarity: float
    """The highest BM25 score that a memory can have for it."""
    unknown: float
    """The share of that which lies in words that occur nowhere."""
    certainty: float
    """How much it says of a memory what it is among, 0 to 1: next to nothing where there are few."""

    @classmethod
    def of(
        cls, reader: Reader, words: str, vector: NDArray[np.float32], *, calibration: Calibration, weights: Weights
    ) -> PreparedQuery:
        """Return what *reader* knows of a question."""
        terms = query_terms(words)
        rarities = {term: rarity * terms.get(term, 0.0) for term, rarity in reader.rarity(terms).items()}
        count = reader.count()
        # Between the rarity of a word that one memory has, and that of one that none has.
        nowhere = math.log(1 + count + 0.5)
        whole = sum(rarities.values())
        unknown = sum(rarity for term, rarity in rarities.items() if rarity > nowhere * terms.get(term, 0.0))
        # That a word occurs nowhere says little where there are few memories.
        certainty = count / (count + _FEW)
        unknown *= certainty
        return cls(
            vector=vector,
            calibration=calibration,
            scale=Scale.of(_cosines(reader.sample(), vector), calibration),
            weights=weights,
            terms=terms,
            scripts=scripts_of(words),
            rarity=whole,
            unknown=unknown / whole if whole > 0 else 0.0,
            certainty=certainty,
        )

    def clues(self, reader: Reader, nodes: Nodes, facts: Facts, best: Best) -> tuple[Clues, Values]:
        """Return what is known of *nodes*, and what the embedder says of their cosines, 0 to 1."""
        cosines, words = reader.similarities(self.vector, nodes), reader.word_scores(self.terms, nodes).astype(float)
        clues = Clues(
            nearness=self.scale(cosines),
            nearest=best.nearness,
            matches=np.clip(words / max(best.words, 1e-9), 0.0, 1.0),
            shares=np.clip(words / max(self.rarity, 1e-9), 0.0, 1.0),
            lengths=reader.lengths(nodes).astype(float),
            foreign=(facts.scripts & self.scripts == 0) & (facts.scripts != 0) & (self.scripts != 0),
        )
        return clues, self.calibration(cosines.astype(float)).astype(float)

    def judged(self, reader: Reader, nodes: Nodes, best: Best) -> ScoredNodes:
        """Return *nodes*, which must ascend, with what speaks for each of them."""
        facts = reader.facts(nodes)
        clues, meanings = self.clues(reader, nodes, facts, best)
        odds = ranking.odds(clues, self.weights)
        return ScoredNodes(nodes, facts, meanings, clues.shares, ranking.together(odds), odds)


# Who asks for reasons, or for what was given up, wants the decision that was: its successor only says what came next.
_PAST: Final = re.compile(
    r"\b(?:why|how come|reasons?|rationale|causes?(?= of)"
    r"|abandon(?:ed|ing)?|(?:gave|give|given|giving) up|(?:got|get|gotten|getting) rid"
    r"|(?:was|were) dropped|thr(?:ew|own) (?:\w+ )?(?:out|away)|discarded|scrapped"
    r"|went wrong|(?:was|were|is|are) wrong with|trouble with|what failed|no longer|not any ?more|anymore"
    r"|(?:is|are) gone|previous(?:ly)?|former(?:ly)?|originally|at first|in the past|back then|history of"
    r"|(?<!is )(?<!are )(?<!be )used to)\b"
    r"|왜(?=$|[ ?!.,]|냐|인지)|이유|까닭|원인|어째서|어쩌다|예전|과거|이전에|이전의|원래|당시|애초|처음에는"
    r"|그만[두뒀둔]|포기[하한해했]|버렸|버린|버리게|폐기[하한해했]|걷어[냈낸]|더 ?이상",
    re.IGNORECASE,
)
# What says that the present is meant all the same: "Why do we use it now?", "the reason for which it still holds".
_PRESENT: Final = re.compile(
    r"\b(?:now|nowadays|today|currently|current|at present|at the moment|these days|right now|still|as things stand"
    r"|in force)\b|지금|현재|요즘|요새|아직",
    re.IGNORECASE,
)


def asks_for_history(query: str) -> bool:
    """Tell whether a question asks for reasons or for what was, which a superseded memory answers as well."""
    text = " ".join(query[:_LONGEST_QUERY].split())
    return _PAST.search(text) is not None and _PRESENT.search(text) is None


# What may answer


@attrs.frozen
class Best:
    """The best of all memories that count by each of both."""

    nearness: float
    """By how many spreads the nearest is nearer than usual."""
    words: float
    """A BM25 score."""


def _cosines(vectors: Vectors, vector: NDArray[np.float32]) -> Scores:
    """Return the cosines of a question and each of *vectors*, which are of no shape where there are none."""
    return vectors @ vector if len(vectors) else np.zeros(0, np.float32)


@attrs.frozen(eq=False)
class ScoredNodes:
    """Memories that may be results, each once, by ascending node, with what speaks for each by itself."""

    nodes: Nodes
    facts: Facts
    meanings: Values
    """What the embedder says of its cosine, 0 to 1."""
    shares: Values
    """The share of the question's rarity that each has."""
    evidence: Values
    """Both together."""
    odds: Mapping[str, Values]
    """The log-odds that this comes from, see `ranking.odds`."""

    def joined(self, other: ScoredNodes) -> ScoredNodes:
        """Return these and *other* ones."""
        order = np.argsort(np.concatenate([self.nodes, other.nodes]))
        both = [(one.nodes, *one.facts.columns, one.meanings, one.shares, one.evidence) for one in (self, other)]
        nodes, *facts, meanings, shares, evidence = (
            np.concatenate(column)[order] for column in zip(*both, strict=True)
        )
        odds = {name: np.concatenate([some, other.odds[name]])[order] for name, some in self.odds.items()}
        return ScoredNodes(nodes, Facts(*facts), meanings, shares, evidence, odds)

    def positions(self, nodes: Collection[int] | Nodes) -> Positions:
        """Return where *nodes* stand here, -1 for those that do not."""
        wanted = np.array(nodes, np.int64)
        if not len(self.nodes) or not len(wanted):
            return np.full(len(wanted), -1, np.intp)
        at = np.minimum(self.nodes.searchsorted(wanted), len(self.nodes) - 1)
        return np.where(self.nodes[at] == wanted, at, -1)


def _narrowed(where: Filter, since: datetime | None, until: datetime | None) -> Filter:
    sinces = [moment for moment in (where.since, since) if moment is not None]
    untils = [moment for moment in (where.until, until) if moment is not None]
    return attrs.evolve(where, since=max(sinces, default=None), until=min(untils, default=None))


def _found(
    reader: Reader, query: PreparedQuery, where: Filter, period: Period | None, limit: int
) -> tuple[Nodes, Best]:
    """Return the nodes that meaning or words find, and those of the period that was asked for, and the best of both."""
    near, told = reader.nearest(query.vector, limit, where), reader.words(query.terms, limit, where)
    best = Best(float(query.scale(near.scores[:1]).max(initial=0.0)), float(told.scores[:1].max(initial=0.0)))
    found = [near.nodes, told.nodes]
    if period is not None:
        within = _narrowed(where, period.since, period.until)
        found.append(reader.nearest(query.vector, limit, within).nodes)
        found.append(reader.words(query.terms, limit, within).nodes)
        found.append(reader.window(within, limit=limit))
    return np.unique(np.concatenate(found)).astype(np.int64), best


@attrs.frozen(eq=False)
class Sittings:
    """What was created just before and just after some nodes, in the same sitting, -1 for none."""

    nodes: Nodes
    before: Nodes
    after: Nodes

    def around(self, positions: Positions, candidates: ScoredNodes) -> Nodes:
        """Return what is next to the nodes at some positions and no candidate."""
        found = np.concatenate([self.before[positions], self.after[positions]])
        return found[(found >= 0) & (candidates.positions(found) < 0)]

    def kinship(self, reader: Reader, telling: Positions) -> float:
        """Return how much nearer those at some positions are to what is beside them, 0 to 1: in a talk they are."""
        return _kinship(reader, self.nodes[telling], self.before[telling], self.after[telling])

    def among(self, candidates: ScoredNodes) -> tuple[Positions, Positions]:
        """Return for each candidate where what is before and after it stands, -1 for what is not known."""
        before, after = np.full((2, len(candidates.nodes) + 1), -1, np.intp)
        here = candidates.positions(self.nodes)
        for there, one, other in (
            (candidates.positions(self.before), before, after),
            (candidates.positions(self.after), after, before),
        ):
            one[here] = there
            # The last item takes what is said of none.
            other[there] = here
        return before[:-1], after[:-1]


def _kinship(reader: Reader, nodes: Nodes, before: Nodes, after: Nodes) -> float:
    """Return how much nearer *nodes* are to what is beside them, -1 for none, than to what is beside others, 0 to 1."""
    others = np.concatenate([before, after])
    there = others >= 0
    others, ones = others[there], np.tile(np.arange(len(nodes)), 2)[there]
    if not len(others):
        return 0.0
    pieces, counts = reader.pieces(np.concatenate([nodes, others]))
    has = counts > 0
    # Of what was just said a long text's beginning tells most.
    if len(pieces) > np.count_nonzero(has):
        pieces = pieces[(np.cumsum(counts) - counts)[has]]
    own, beside = has[: len(nodes)], has[len(nodes) :]
    # What is next to both, or one of the two, is no other sitting's.
    apart = np.abs(nodes[ones][:, np.newaxis] - others) > _NEXT
    cosines = np.zeros((len(nodes), len(others)), np.float32)
    cosines[np.ix_(own, beside)] = pieces[: np.count_nonzero(own)] @ pieces[np.count_nonzero(own) :].T
    # What has both neighbours is there twice.
    cosines = cosines[ones]
    embedded = own[ones] & beside
    if not embedded.all():
        apart &= own[ones][:, np.newaxis] & beside
    if not (apart.any() and embedded.any()):
        return 1.0
    strange = cosines[apart]
    usual, spread = float(strange.mean()), float(strange.std())
    nearer = float(np.diagonal(cosines)[embedded].mean()) - usual
    return min(max(nearer / max(_TALK * spread, 1e-9), 0.0), 1.0)


def _ends(table: LinkTable, holding: Collection[int], known: ScoredNodes, request: SearchRequest) -> Nodes:
    """Return the nodes that links lead to (the strongest, where they are very many) and what holds, if not *known*."""
    leaders = np.array(sorted(set(holding)), np.int64)
    leaders = leaders[known.positions(leaders) < 0]
    if not len(table):
        return leaders
    order = np.argsort(-table.strengths(milliseconds(request.moment)), kind="stable")
    ends = np.concatenate([table.sources[order], table.targets[order]])
    ends = ends[known.positions(ends) < 0]
    unique, first = np.unique(ends, return_index=True)
    # Both ends of a link stand as far from the start of their half as the link is weak.
    strongest = unique[np.argsort(first % len(table), kind="stable")[:_BROUGHT]]
    return np.union1d(strongest, leaders)


def _passing(reader: Reader, nodes: Nodes, found: Nodes, where: Filter) -> Nodes:
    """Return those of *nodes* that a filter lets through, as it did *found*."""
    if not len(nodes):
        return nodes
    facts = reader.facts(nodes)
    passes = _within(facts, where.since, where.until)
    if where.valid_at is not None:
        passes &= facts.holding(milliseconds(where.valid_at))
    if where.types is not None:
        passes &= np.isin(facts.types, [NUMBERS[kind] for kind in where.types])
    if where.origins is not None:
        passes &= np.isin(facts.origins, [ORIGINS.index(origin) for origin in where.origins])
    if where.trust is not None:
        passes &= facts.trusts <= ORIGINS.index(where.trust)
    if where.topic is not None:
        # Readers know topics by number, which whatever was found has.
        passes &= np.isin(facts.topics, reader.facts(found[:1]).topics)
    nodes = nodes[passes]
    if not (names := set(where.names)):
        return nodes
    named = [names <= set(names_of(memory)) for memory in reader.get(nodes)]
    return nodes[np.array(named, np.bool_)]


def _within(facts: Facts, since: datetime | None, until: datetime | None) -> NDArray[np.bool_]:
    """Return which memories were made in a period, which has no begin or no end where that is None."""
    inside = np.ones(len(facts.created), np.bool_)
    if since is not None:
        inside &= facts.created >= milliseconds(since)
    if until is not None:
        inside &= facts.created < milliseconds(until)
    return inside


# What answers best


@attrs.frozen(eq=False)
class _Ground:
    """What is known of candidates, and the links between them with the positions where these begin and end."""

    facts: Facts
    table: LinkTable
    sources: Positions
    targets: Positions

    @classmethod
    def of(cls, candidates: ScoredNodes, table: LinkTable) -> _Ground:
        """Return those links of *table* that have both ends among *candidates*."""
        sources, targets = candidates.positions(table.sources), candidates.positions(table.targets)
        known = (sources >= 0) & (targets >= 0) & (sources != targets)
        return cls(candidates.facts, only(table, known), sources[known], targets[known])

    def outcomes(self) -> tuple[Positions, Positions]:
        """Return memories of outcomes, which are contexts that implement, and the decision of each."""
        told = (self.table.types == _IMPLEMENTATION) & (self.facts.types[self.sources] == _CONTEXT)
        told &= self.facts.types[self.targets] == _DECISION
        return self.sources[told], self.targets[told]

    def ties(self, lenders: Positions, now_ms: int, weights: Weights) -> Values:
        """Return how close each candidate is to each of the lenders, of shape (lenders, candidates), none to itself."""
        strengths = self.table.strengths(now_ms).astype(np.float64)
        strengths[(self.table.types == _EVOLUTION) | (self.table.types == _IMPLEMENTATION)] = 1.0
        close = np.where(self.table.creators == SYSTEM, weights.automatic, weights.tie) * strengths
        topics = self.facts.topics
        raised: Values = float(weights.topic) * ((topics[lenders, np.newaxis] == topics) & (topics >= 0))
        row_of = np.full(len(topics), -1, np.intp)
        row_of[lenders] = np.arange(len(lenders))
        for here, there in ((self.sources, self.targets), (self.targets, self.sources)):
            rows = row_of[here]
            mine = rows >= 0
            np.maximum.at(raised, (rows[mine], there[mine]), close[mine])
        raised[np.arange(len(lenders)), lenders] = 0.0
        # What lends to a decision lends to the memory of its outcome no more than it may have beside it.
        raised[:, self.outcomes()[0]] *= weights.outcome
        return raised


@attrs.frozen(eq=False, kw_only=True)
class Gathered:
    """All that decides the order of results."""

    request: SearchRequest
    query: PreparedQuery
    best: Best
    candidates: ScoredNodes
    period: Period | None
    table: LinkTable
    """The links of the best candidates."""
    chains: Successors
    sittings: Sittings
    kinship: float
    """What `Sittings.kinship` says by the best candidates: whether it means anything here to be beside."""


def ranked(found: Gathered) -> tuple[list[Ranked], Precedence]:
    """Return the best candidates by what speaks for them, what lends to them, time and supersession."""
    request, query, candidates, period = found.request, found.query, found.candidates, found.period
    weights, nodes = query.weights, candidates.nodes
    now_ms = milliseconds(request.moment)
    ground = _Ground.of(candidates, found.table)
    outcomes, decisions = ground.outcomes()
    alone = ranking.paired(candidates.evidence, outcomes, decisions, weights)
    before, after = found.sittings.among(candidates)
    asking, certainty = ground.facts.asking / _ALL, query.certainty * found.kinship
    own = ranking.beside(alone, before, after, asking, certainty=certainty, weights=weights)
    lenders = ranking.best(own, weights.lenders)
    gains, givers = ranking.lent(own, lenders, ground.ties(lenders, now_ms, weights))
    summed = ranking.behind_the_first(ranking.below_givers(own + gains, own, givers), own)
    inside, strength = np.zeros(len(nodes), np.bool_), 0.0
    if period is not None:
        inside, strength = _within(ground.facts, period.since, period.until), period.strength
    favoured = ranking.in_period(summed, inside, strength, weights)
    fresh = favoured * ranking.recency(ground.facts.created, now_ms, weights)
    timed = scores = favoured + fresh
    drops = request.superseded == "drop"
    precedence = Precedence(
        nodes=nodes,
        created=ground.facts.created,
        inside=inside,
        strength=strength,
        outcomes=outcomes,
        decisions=decisions,
        newest=found.chains.newest(nodes[ranking.best(scores, len(nodes) if drops else 2 * request.limit)]),
        replaced_by=found.chains.replaced_by,
        history=request.superseded == "equal" or asks_for_history(request.text),
    )
    scores = precedence.led(scores, weights)
    order = ranking.best(scores, len(scores))
    if drops:
        order = order[[node not in precedence.newest for node in nodes[order].tolist()]]
    order = precedence.arranged(order[: request.limit])
    # However often one thing was saved, it is as good an answer.
    said = ground.facts.wordings
    said = np.where(said == NO_WORDING, -1 - np.arange(len(said)), said)
    relevances = ranking.relevance(summed, found.best.words, query.unknown, weights, wordings=said)
    # "What did we note yesterday?" is answered by whatever was.
    relevances = np.maximum(relevances, np.where(inside, _IN_PERIOD * strength, 0.0))
    parts = {
        "outcome": alone - candidates.evidence,
        "beside": own - alone,
        "graph": summed - own,
        "period": favoured - summed,
        "recency": fresh,
        "superseded": scores - timed,
    }
    # A memory that went before another took its place, and has the score of that place.
    places = np.sort(scores[order])[::-1]
    results = []
    for position, score in zip(order.tolist(), places.tolist(), strict=True):
        why = {"meaning": float(candidates.meanings[position]), "words": float(candidates.shares[position])}
        gained = {name: float(part[position]) for name, part in parts.items() if part[position]}
        terms = {name: float(odds[position]) for name, odds in candidates.odds.items()}
        terms["floor"] = float(candidates.evidence[position]) - sum(terms.values())
        lent = givers[position] >= 0 and gains[position] > candidates.evidence[position]
        results.append(
            Ranked(
                node=int(nodes[position]),
                score=score,
                relevance=float(relevances[position]),
                parts=why | gained,
                terms=placed(terms | gained, score),
                path=(int(nodes[givers[position]]),) if lent else (),
                superseded_by=precedence.newest.get(int(nodes[position])),
            )
        )
    return results, precedence.among(order)
