"""
Plan of a search from the query to the hits (DESIGN section 6); see also `scores`.

All functions are plans over a `Reader`. They use few batched queries, never one per memory.
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

from mama_structs._internal import validation as _check
from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.graph.results import Hit, Results, SimilarMemory, with_place_term
from mama_structs.memory.graph.traversal import Successors, links_as_of, select_rows
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.search import scores as ranking
from mama_structs.memory.search.reorder_rules import ReorderRules
from mama_structs.memory.search.result_dedup import SimilarityFunction, find_folds
from mama_structs.memory.search.scores import (
    WEIGHTS,
    CandidateSignals,
    CosineBaseline,
    FloatArray,
    IndexArray,
    ScoreWeights,
)
from mama_structs.memory.search.time_expressions import Period, find_period
from mama_structs.memory.types.duplicates import NO_FINGERPRINT, duplicate_fingerprint, has_failed
from mama_structs.memory.types.engine import (
    DISPLAY_BOUNDS,
    SYSTEM_CREATOR_INDEX,
    TYPE_NUMBERS,
    EngineFilter,
    LinkTable,
    NodeAttributes,
    Nodes,
    Prefetch,
    Reader,
    RelevanceBounds,
    Scores,
    Vectors,
    filter_names,
)
from mama_structs.memory.types.model import ORIGINS, LinkType, Memory, MemoryType, to_milliseconds
from mama_structs.memory.types.requests import check_limit
from mama_structs.memory.types.text_analysis import detect_scripts, query_terms

MAX_QUERY_CHARS: Final = 10_000
_MIN_MATCHES: Final = 96
_MIN_FOLLOWED: Final = 48
_MAX_LINKED: Final = 128
# Maximum number of compared neighbours. A comparison of 20,000 candidates would take gigabytes of memory.
_MAX_COMPARED_NEIGHBOURS: Final = 512
# Number of memories at which an unknown word has half of its full weight.
_HALF_CERTAINTY_COUNT: Final = 10
_MILLISECOND: Final = timedelta(milliseconds=1)
_MIN_PERIOD_RELEVANCE: Final = 0.35
# Maximum time between neighbours. Memories further apart belong to different conversations.
_MAX_NEIGHBOUR_GAP_MS: Final = 3_600_000
# Neighbours form a conversation if their mean cosine exceeds that of other pairs by this many standard deviations.
_CONVERSATION_SPREADS: Final = 0.4
_MAX_ADJACENT_NODES: Final = 2
_PERCENT: Final = 100
# Factor by which the number of examined results grows if too many of them are irrelevant or repeat others.
_LIMIT_GROWTH: Final = 2
_MAX_QUERY_CHARS: Final = 4_000

_CONTEXT_NUMBER: Final = TYPE_NUMBERS[MemoryType.CONTEXT]
_DECISION_NUMBER: Final = TYPE_NUMBERS[MemoryType.DECISION]
_EVOLUTION_NUMBER: Final = TYPE_NUMBERS[LinkType.EVOLUTION]
_IMPLEMENTATION_NUMBER: Final = TYPE_NUMBERS[LinkType.IMPLEMENTATION]
# Temporal links are excluded, because closeness in time is no reason to show both memories.
_FOLLOWED_LINK_TYPES: Final = (LinkType.EVOLUTION, LinkType.IMPLEMENTATION, LinkType.ASSOCIATION)

SupersededMode = Literal["demote", "exclude", "keep"]
"""Ranking of superseded memories: behind their successors, left out, or by their own scores."""
SUPERSEDED_MODES: Final[tuple[SupersededMode, ...]] = ("demote", "exclude", "keep")


@attrs.frozen(kw_only=True, eq=False)
class SearchQuery:
    """Arguments of a search."""

    text: str
    where: EngineFilter = attrs.field(factory=EngineFilter)
    superseded: SupersededMode = "demote"
    """Ranking of superseded memories. Queries for history override "demote"."""
    min_relevance: float = 0.0
    """Minimum relevance of a hit."""
    as_of: datetime | None = None
    """Time as of which the store is searched, or None for the present."""
    limit: int = 10

    @classmethod
    def checked(
        cls,
        query: object,
        where: EngineFilter,
        *,
        superseded: object,
        min_relevance: object,
        as_of: object,
        limit: object,
    ) -> SearchQuery:
        """Validate the arguments."""
        return cls(
            text=_check.check_text("query", query, max_chars=MAX_QUERY_CHARS),
            where=where,
            superseded=_check.check_choice("superseded", superseded, SUPERSEDED_MODES),
            min_relevance=0.0 if min_relevance is None else _check.check_ratio("min_relevance", min_relevance),
            as_of=None if as_of is None else _check.check_time("as_of", as_of),
            limit=check_limit(limit),
        )


@attrs.frozen(kw_only=True, eq=False)
class SearchRequest(SearchQuery):
    """Arguments of a search, with the embedding of its query."""

    vector: NDArray[np.float32]
    """Embedding of the query, of shape (dimensions,), normalized."""
    now: datetime
    calibration: Calibration
    """Maps arrays of the embedder's cosines to similarities from 0 to 1."""

    @property
    def reference_time(self) -> datetime:
        """Reference time of the search: *as_of*, or the present."""
        return self.now if self.as_of is None else self.as_of


@attrs.frozen(kw_only=True, eq=False)
class SimilarityRequest:
    """A search for the memories that are nearest to given vectors."""

    pieces: Vectors
    """The vectors; the nearest one counts."""
    where: EngineFilter
    but: str | None
    """Id of a memory to leave out."""
    calibration: Calibration
    threshold: float
    """Minimum similarity."""
    limit: int


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


def similar(reader: Reader, request: SimilarityRequest) -> Results[SimilarMemory]:
    """Return the memories that are nearest to any of the vectors, nearest first."""
    best: dict[int, float] = {}
    for piece in request.pieces:
        matches = reader.nearest(piece, request.limit + 1, request.where)
        for near, score in zip(matches.nodes.tolist(), matches.scores.tolist(), strict=True):
            best[near] = max(score, best.get(near, -1.0))
    own = None if request.but is None else reader.find(request.but)
    if own is not None:
        best.pop(own, None)
    ordered = sorted(best.items(), key=lambda one: (-one[1], -one[0]))
    alike = [(near, float(request.calibration(score))) for near, score in ordered]
    kept = [(near, similarity) for near, similarity in alike if similarity >= request.threshold][: request.limit]
    memories = reader.get([near for near, _ in kept])
    return Results(SimilarMemory(memory=one, similarity=kept[place][1]) for place, one in enumerate(memories))


def find_hits(reader: Reader, request: SearchRequest) -> tuple[list[Hit], ReorderRules | None]:
    """
    Return the best hits of a search, and the rules that ordered them.

    A result that repeats a better one is folded into it, and a further result takes its place.
    """
    found: list[tuple[RankedCandidate, Memory, tuple[str, ...]]] = []
    precedence = None
    memories: dict[int, Memory] = {}
    for results, whole in _iter_rankings(reader, request):
        relevant = np.array([at for at, one in enumerate(results) if one.relevance >= request.min_relevance], np.intp)
        best = [results[place] for place in relevant]
        new = [one.node for one in best if one.node not in memories]
        memories.update(zip(new, reader.get(new), strict=True) if new else ())
        own = [memories[one.node] for one in best]
        if request.as_of is not None:
            own = [saving.memory_as_of(memory, request.as_of) for memory in own]
        shown = find_folds(
            own, _supersession_states(reader, best, memories), _similarity_function(reader, best, request.calibration)
        )
        places = [place for place, first in enumerate(shown) if place == first][: request.limit]
        copies: dict[int, list[str]] = {place: [] for place in places}
        for at, first in enumerate(shown):
            if first != at and first in copies:
                copies[first].append(own[at].id)
        found = [(best[place], own[place], tuple(copies[place])) for place in places]
        precedence = whole.restrict_to(relevant[places])
        if len(found) == request.limit or len(best) < len(results):
            break
    named = list({node for one, _, _ in found for node in (*one.path, one.superseded_by) if node is not None})
    ids = dict(zip(named, reader.ids(named), strict=True))
    return [
        Hit(
            memory=memory,
            score=one.score,
            relevance=one.relevance,
            signals=one.parts,
            terms=one.terms,
            path=tuple([ids[node] for node in one.path]),
            superseded_by=None if one.superseded_by is None else ids[one.superseded_by],
            duplicates=same,
        )
        for one, memory, same in found
    ], precedence


def _supersession_states(
    reader: Reader, results: Sequence[RankedCandidate], memories: dict[int, Memory]
) -> list[Hashable]:
    """
    Return the supersession state of each result.

    Results have equal states if their successors are duplicates of each other.
    """
    new = {one.superseded_by for one in results if one.superseded_by is not None} - memories.keys()
    memories.update(zip(sorted(new), reader.get(sorted(new)), strict=True) if new else ())
    return [
        None
        if one.superseded_by is None
        else (duplicate_fingerprint(after := memories[one.superseded_by]) or after.id, has_failed(after))
        for one in results
    ]


def _similarity_function(
    reader: Reader, results: Sequence[RankedCandidate], calibration: Calibration
) -> SimilarityFunction:
    """
    Return a function that compares results by their first vectors.

    The similarity is 0 if a result has no vector.
    """

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


class ScoredResult(Protocol):
    """A result with scores: a `Hit` or a `RankedCandidate`."""

    @property
    def score(self) -> float:
        """Sort key, comparable within one result list only."""

    @property
    def relevance(self) -> float:
        """Absolute relevance, 0 to 1."""


ScoredResultT = TypeVar("ScoredResultT", bound=ScoredResult)


def worth_showing(hits: Sequence[ScoredResultT], *, bounds: RelevanceBounds = DISPLAY_BOUNDS) -> list[ScoredResultT]:
    """
    Return the hits of a search that are relevant enough for a prompt.

    Return an empty list if the best hit is hardly relevant. Otherwise return the hits that score almost as high as the
    best one, because this is more reliable than their own relevance. All hits must be from one search in one namespace:
    in a merged list of several namespaces, scores are relevances.
    """
    if max((hit.relevance for hit in hits), default=0.0) < bounds.relevance:
        return []
    least = bounds.share * max(hit.score for hit in hits) if hits else 0.0
    return [hit for hit in hits if hit.score >= least]


def _iter_rankings(reader: Reader, request: SearchRequest) -> Iterator[tuple[list[RankedCandidate], ReorderRules]]:
    """Yield the best *limit* results, then increasingly long lists, up to all matches."""
    found, limit = None, request.limit
    while limit > 0:
        larger = attrs.evolve(request, limit=limit)
        if found is None or limit > _MIN_FOLLOWED:
            found = collect_candidates(reader, larger, WEIGHTS)
        if found is None:
            return
        yield rank_candidates(attrs.evolve(found, request=larger))
        if len(found.candidates.nodes) <= limit:
            return
        limit *= _LIMIT_GROWTH


def collect_candidates(reader: Reader, request: SearchRequest, weights: ScoreWeights) -> CandidateSet | None:
    """Return the candidates of a search with their data, or None if no memory passes the filter."""
    # Include memories that were created exactly at *as_of*.
    where = _narrow_filter(request.where, None, None if request.as_of is None else request.as_of + _MILLISECOND)
    where = attrs.evolve(where, valid_at=request.reference_time)
    period = find_period(request.text, request.reference_time)
    terms = query_terms(request.text)
    reader.expect(lambda ahead: _prefetch_queries(ahead, request, terms, where, period))
    query = PreparedQuery.from_words(
        reader, request.text, request.vector, calibration=request.calibration, weights=weights
    )
    nodes, best = _find_nodes(reader, query, where, period, max(_MIN_MATCHES, request.limit))
    if len(nodes) < request.limit:
        # If the queries find too few memories, add others that pass the filter.
        nodes = np.union1d(nodes, reader.window(where, limit=request.limit))
    if not len(nodes):
        return None
    candidates = query.judged(reader, nodes, best)
    chosen = ranking.top_k(candidates.evidence, max(_MIN_FOLLOWED, request.limit))
    followed = nodes[chosen]
    table = links_as_of(reader.links(followed, "both", _FOLLOWED_LINK_TYPES), request.as_of)
    chains = Successors(reader, request.as_of)
    holding = chains.newest(followed, table).values()
    sittings = TemporalNeighbours(nodes, *reader.find_temporal_neighbours(nodes, _MAX_NEIGHBOUR_GAP_MS))
    ends = np.union1d(_linked_nodes(table, holding, candidates, request), sittings.around(chosen, candidates))
    reader.expect(
        lambda ahead: (ahead.word_scores(terms, ends), ahead.links(ends, "in", {LinkType.EVOLUTION})),
    )
    brought = _filter_nodes(reader, ends, nodes, where)
    if len(brought):
        candidates = candidates.joined(query.judged(reader, brought, best))
    return CandidateSet(
        request=request,
        query=query,
        best=best,
        candidates=candidates,
        period=period,
        table=table,
        chains=chains,
        neighbours=sittings,
        conversation_strength=sittings.conversation_strength(reader, chosen[:_MAX_COMPARED_NEIGHBOURS]),
    )


def _prefetch_queries(
    ahead: Prefetch, request: SearchRequest, terms: Mapping[str, float], where: EngineFilter, period: Period | None
) -> None:
    """Prefetch the queries for candidates and their data."""
    limit, none = max(_MIN_MATCHES, request.limit), np.zeros(0, np.int64)
    for one in (where, *([] if period is None else [_narrow_filter(where, period.since, period.until)])):
        ahead.nearest(request.vector, limit, one)
        ahead.words(terms, limit, one)
        if one is not where:
            ahead.window(one, limit=limit)
    ahead.rarity(terms)
    ahead.sample()
    ahead.links(none)
    ahead.find_temporal_neighbours(none, _MAX_NEIGHBOUR_GAP_MS)


# Query


@attrs.frozen(eq=False, kw_only=True)
class PreparedQuery:
    """A query with the store-wide statistics of its terms."""

    vector: NDArray[np.float32]
    calibration: Calibration
    scale: CosineBaseline
    weights: ScoreWeights
    terms: Mapping[str, float]
    """Query terms."""
    scripts: int
    """Scripts of the query (`text_analysis.detect_scripts`)."""
    rarity: float
    """Maximum BM25 score that a memory can have for the query."""
    unknown: float
    """Ratio of *rarity* that belongs to words which do not occur in the store."""
    comparison_confidence: float
    """Confidence in comparisons with other memories, 0 to 1. Close to 0 in a small store."""

    @classmethod
    def from_words(
        cls, reader: Reader, words: str, vector: NDArray[np.float32], *, calibration: Calibration, weights: ScoreWeights
    ) -> PreparedQuery:
        """Read the store-wide statistics of a query's terms."""
        terms = query_terms(words)
        rarities = {term: rarity * terms.get(term, 0.0) for term, rarity in reader.rarity(terms).items()}
        count = reader.count()
        # Words with a higher rarity than this occur in no memory.
        nowhere = math.log(1 + count + 0.5)
        whole = sum(rarities.values())
        unknown = sum(rarity for term, rarity in rarities.items() if rarity > nowhere * terms.get(term, 0.0))
        # In a small store, the absence of a word means little, so its weight is reduced.
        certainty = count / (count + _HALF_CERTAINTY_COUNT)
        unknown *= certainty
        return cls(
            vector=vector,
            calibration=calibration,
            scale=CosineBaseline.from_cosines(_cosines(reader.sample(), vector), calibration),
            weights=weights,
            terms=terms,
            scripts=detect_scripts(words),
            rarity=whole,
            unknown=unknown / whole if whole > 0 else 0.0,
            comparison_confidence=certainty,
        )

    def compute_signals(
        self, reader: Reader, nodes: Nodes, facts: NodeAttributes, best: BestMatches
    ) -> tuple[CandidateSignals, FloatArray]:
        """Return the signals of *nodes*, and their similarity to the query, 0 to 1."""
        cosines, words = reader.similarities(self.vector, nodes), reader.word_scores(self.terms, nodes).astype(float)
        clues = CandidateSignals(
            nearness=self.scale(cosines),
            nearest=best.nearness,
            matches=np.clip(words / max(best.words, 1e-9), 0.0, 1.0),
            shares=np.clip(words / max(self.rarity, 1e-9), 0.0, 1.0),
            lengths=reader.lengths(nodes).astype(float),
            foreign=(facts.scripts & self.scripts == 0) & (facts.scripts != 0) & (self.scripts != 0),
        )
        return clues, self.calibration(cosines.astype(float)).astype(float)

    def judged(self, reader: Reader, nodes: Nodes, best: BestMatches) -> ScoredNodes:
        """Compute the evidence of *nodes*, which must be ascending."""
        facts = reader.facts(nodes)
        clues, meanings = self.compute_signals(reader, nodes, facts, best)
        odds = ranking.log_odds(clues, self.weights)
        return ScoredNodes(nodes, facts, meanings, clues.shares, ranking.sum_log_odds(odds), odds)


# Queries for reasons or abandoned choices. The superseded decision answers them, not its successor.
_HISTORY_PATTERN: Final = re.compile(
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
# Words that make a query for reasons refer to the present, for example "Why do we use it now?".
_PRESENT_PATTERN: Final = re.compile(
    r"\b(?:now|nowadays|today|currently|current|at present|at the moment|these days|right now|still|as things stand"
    r"|in force)\b|지금|현재|요즘|요새|아직",
    re.IGNORECASE,
)


def asks_for_history(query: str) -> bool:
    """
    Return True if the query asks for reasons or the past.

    Superseded memories may answer such a query.
    """
    text = " ".join(query[:_MAX_QUERY_CHARS].split())
    return _HISTORY_PATTERN.search(text) is not None and _PRESENT_PATTERN.search(text) is None


# Candidates


@attrs.frozen
class BestMatches:
    """Best scores among all memories that pass the filter."""

    nearness: float
    """Distance of the best cosine from the expected one, in standard deviations."""
    words: float
    """Best BM25 score."""


def _cosines(vectors: Vectors, vector: NDArray[np.float32]) -> Scores:
    """
    Return the cosine of each of *vectors* to the query.

    An empty *vectors* array has no dimensions, so it cannot be multiplied.
    """
    return vectors @ vector if len(vectors) else np.zeros(0, np.float32)


@attrs.frozen(eq=False)
class ScoredNodes:
    """Deduplicated candidates in ascending order of nodes, with the evidence for each."""

    nodes: Nodes
    facts: NodeAttributes
    similarities: FloatArray
    """Similarity by the embedder's calibration, 0 to 1."""
    shares: FloatArray
    """BM25 score relative to the maximum for the query."""
    evidence: FloatArray
    """Evidence from vector similarity, keyword matches and text length."""
    odds: Mapping[str, FloatArray]
    """Log-odds by source, from which the evidence is computed, see `scores.log_odds`."""

    def joined(self, other: ScoredNodes) -> ScoredNodes:
        """Return the union of two disjoint sets of candidates."""
        order = np.argsort(np.concatenate([self.nodes, other.nodes]))
        both = [(one.nodes, *one.facts.columns, one.similarities, one.shares, one.evidence) for one in (self, other)]
        nodes, *facts, meanings, shares, evidence = (
            np.concatenate(column)[order] for column in zip(*both, strict=True)
        )
        odds = {name: np.concatenate([some, other.odds[name]])[order] for name, some in self.odds.items()}
        return ScoredNodes(nodes, NodeAttributes(*facts), meanings, shares, evidence, odds)

    def positions(self, nodes: Collection[int] | Nodes) -> IndexArray:
        """Return the indexes of *nodes* among the candidates, or -1 for other nodes."""
        wanted = np.array(nodes, np.int64)
        if not len(self.nodes) or not len(wanted):
            return np.full(len(wanted), -1, np.intp)
        at = np.minimum(self.nodes.searchsorted(wanted), len(self.nodes) - 1)
        return np.where(self.nodes[at] == wanted, at, -1)


def _narrow_filter(where: EngineFilter, since: datetime | None, until: datetime | None) -> EngineFilter:
    sinces = [moment for moment in (where.since, since) if moment is not None]
    untils = [moment for moment in (where.until, until) if moment is not None]
    return attrs.evolve(where, since=max(sinces, default=None), until=min(untils, default=None))


def _find_nodes(
    reader: Reader, query: PreparedQuery, where: EngineFilter, period: Period | None, limit: int
) -> tuple[Nodes, BestMatches]:
    """Find candidates by vector, keywords and period. Return their nodes, and the best cosine and BM25 score."""
    near, told = reader.nearest(query.vector, limit, where), reader.words(query.terms, limit, where)
    best = BestMatches(float(query.scale(near.scores[:1]).max(initial=0.0)), float(told.scores[:1].max(initial=0.0)))
    found = [near.nodes, told.nodes]
    if period is not None:
        within = _narrow_filter(where, period.since, period.until)
        found.append(reader.nearest(query.vector, limit, within).nodes)
        found.append(reader.words(query.terms, limit, within).nodes)
        found.append(reader.window(within, limit=limit))
    return np.unique(np.concatenate(found)).astype(np.int64), best


@attrs.frozen(eq=False)
class TemporalNeighbours:
    """The nodes created directly before and after each node, or -1 if none was created within an hour."""

    nodes: Nodes
    before: Nodes
    after: Nodes

    def around(self, positions: IndexArray, candidates: ScoredNodes) -> Nodes:
        """Return the neighbours of the nodes at *positions* that are not candidates yet."""
        found = np.concatenate([self.before[positions], self.after[positions]])
        return found[(found >= 0) & (candidates.positions(found) < 0)]

    def conversation_strength(self, reader: Reader, telling: IndexArray) -> float:
        """
        Return how much more similar temporal neighbours are than other pairs, 0 to 1.

        It is high if the nodes at *telling* are parts of conversations.
        """
        return _conversation_strength(reader, self.nodes[telling], self.before[telling], self.after[telling])

    def find_positions(self, candidates: ScoredNodes) -> tuple[IndexArray, IndexArray]:
        """Return the positions of the candidates created directly before and after each candidate, or -1 for none."""
        before, after = np.full((2, len(candidates.nodes) + 1), -1, np.intp)
        here = candidates.positions(self.nodes)
        for there, one, other in (
            (candidates.positions(self.before), before, after),
            (candidates.positions(self.after), after, before),
        ):
            one[here] = there
            # The extra last item absorbs writes at index -1, which denotes nodes that are no candidates.
            other[there] = here
        return before[:-1], after[:-1]


def _conversation_strength(reader: Reader, nodes: Nodes, before: Nodes, after: Nodes) -> float:
    """
    Return how much more similar *nodes* are to their neighbours than to other nodes.

    Neighbours are adjacent in time; a missing one is -1. The value is from 0 to 1.
    """
    others = np.concatenate([before, after])
    there = others >= 0
    others, ones = others[there], np.tile(np.arange(len(nodes)), 2)[there]
    if not len(others):
        return 0.0
    pieces, counts = reader.pieces(np.concatenate([nodes, others]))
    has = counts > 0
    # Compare the first chunk only, because the start of a long text relates most to what precedes it.
    if len(pieces) > np.count_nonzero(has):
        pieces = pieces[(np.cumsum(counts) - counts)[has]]
    own, beside = has[: len(nodes)], has[len(nodes) :]
    # Exclude adjacent nodes, because the baseline must consist of pairs from different conversations.
    apart = np.abs(nodes[ones][:, np.newaxis] - others) > _MAX_ADJACENT_NODES
    cosines = np.zeros((len(nodes), len(others)), np.float32)
    cosines[np.ix_(own, beside)] = pieces[: np.count_nonzero(own)] @ pieces[np.count_nonzero(own) :].T
    # Use one row per pair of neighbours, so repeat the row of a node with two neighbours.
    cosines = cosines[ones]
    embedded = own[ones] & beside
    if not embedded.all():
        apart &= own[ones][:, np.newaxis] & beside
    if not (apart.any() and embedded.any()):
        return 1.0
    strange = cosines[apart]
    usual, spread = float(strange.mean()), float(strange.std())
    nearer = float(np.diagonal(cosines)[embedded].mean()) - usual
    return min(max(nearer / max(_CONVERSATION_SPREADS * spread, 1e-9), 0.0), 1.0)


def _linked_nodes(table: LinkTable, holding: Collection[int], known: ScoredNodes, request: SearchRequest) -> Nodes:
    """
    Return the linked nodes and current successors that are not in *known* yet.

    If there are very many linked nodes, only those with the strongest links are returned.
    """
    leaders = np.array(sorted(set(holding)), np.int64)
    leaders = leaders[known.positions(leaders) < 0]
    if not len(table):
        return leaders
    order = np.argsort(-table.decayed_confidences(to_milliseconds(request.reference_time)), kind="stable")
    ends = np.concatenate([table.sources[order], table.targets[order]])
    ends = ends[known.positions(ends) < 0]
    unique, first = np.unique(ends, return_index=True)
    # Rows are sorted by descending strength, so a low row number means a strong link.
    strongest = unique[np.argsort(first % len(table), kind="stable")[:_MAX_LINKED]]
    return np.union1d(strongest, leaders)


def _filter_nodes(reader: Reader, nodes: Nodes, found: Nodes, where: EngineFilter) -> Nodes:
    """Return the *nodes* that pass the filter. All of *found* already pass it."""
    if not len(nodes):
        return nodes
    facts = reader.facts(nodes)
    passes = _created_between(facts, where.since, where.until)
    if where.valid_at is not None:
        passes &= facts.unexpired_mask(to_milliseconds(where.valid_at))
    if where.types is not None:
        passes &= np.isin(facts.types, [TYPE_NUMBERS[kind] for kind in where.types])
    if where.origins is not None:
        passes &= np.isin(facts.origins, [ORIGINS.index(origin) for origin in where.origins])
    if where.trust is not None:
        passes &= facts.trusts <= ORIGINS.index(where.trust)
    if where.topic is not None:
        # Compare topic numbers. Any node of *found* provides the number, because all of them have the requested topic.
        passes &= np.isin(facts.topics, reader.facts(found[:1]).topics)
    nodes = nodes[passes]
    if not (names := set(where.names)):
        return nodes
    named = [names <= set(filter_names(memory)) for memory in reader.get(nodes)]
    return nodes[np.array(named, np.bool_)]


def _created_between(facts: NodeAttributes, since: datetime | None, until: datetime | None) -> NDArray[np.bool_]:
    """Return a mask of the memories created in [since, until). None means unbounded."""
    inside = np.ones(len(facts.created), np.bool_)
    if since is not None:
        inside &= facts.created >= to_milliseconds(since)
    if until is not None:
        inside &= facts.created < to_milliseconds(until)
    return inside


# Ranking


@attrs.frozen(eq=False)
class _CandidateGraph:
    """The links between candidates, with the positions of both ends."""

    facts: NodeAttributes
    table: LinkTable
    sources: IndexArray
    targets: IndexArray

    @classmethod
    def from_candidates(cls, candidates: ScoredNodes, table: LinkTable) -> _CandidateGraph:
        """Select the links of *table* with both ends among *candidates*."""
        sources, targets = candidates.positions(table.sources), candidates.positions(table.targets)
        known = (sources >= 0) & (targets >= 0) & (sources != targets)
        return cls(candidates.facts, select_rows(table, known), sources[known], targets[known])

    def outcomes(self) -> tuple[IndexArray, IndexArray]:
        """Return the positions of the memories that explain outcomes, and of their decisions."""
        told = (self.table.types == _IMPLEMENTATION_NUMBER) & (self.facts.types[self.sources] == _CONTEXT_NUMBER)
        told &= self.facts.types[self.targets] == _DECISION_NUMBER
        return self.sources[told], self.targets[told]

    def tie_strengths(self, lenders: IndexArray, now_ms: int, weights: ScoreWeights) -> FloatArray:
        """
        Return the tie strength between each lender and each candidate. Lenders raise the scores of other candidates.

        The array has the shape (lenders, candidates). A lender has no tie to itself.
        """
        strengths = self.table.decayed_confidences(now_ms).astype(np.float64)
        strengths[(self.table.types == _EVOLUTION_NUMBER) | (self.table.types == _IMPLEMENTATION_NUMBER)] = 1.0
        close = np.where(self.table.creators == SYSTEM_CREATOR_INDEX, weights.automatic, weights.tie) * strengths
        topics = self.facts.topics
        raised: FloatArray = float(weights.topic) * ((topics[lenders, np.newaxis] == topics) & (topics >= 0))
        row_of = np.full(len(topics), -1, np.intp)
        row_of[lenders] = np.arange(len(lenders))
        for here, there in ((self.sources, self.targets), (self.targets, self.sources)):
            rows = row_of[here]
            mine = rows >= 0
            np.maximum.at(raised, (rows[mine], there[mine]), close[mine])
        raised[np.arange(len(lenders)), lenders] = 0.0
        # Weaken ties to the memory of an outcome, because its score must stay below that of its decision.
        raised[:, self.outcomes()[0]] *= weights.outcome
        return raised


@attrs.frozen(eq=False, kw_only=True)
class CandidateSet:
    """Candidates of a search with all data that determines their ranking."""

    request: SearchRequest
    query: PreparedQuery
    best: BestMatches
    candidates: ScoredNodes
    period: Period | None
    table: LinkTable
    """Links of the best candidates."""
    chains: Successors
    neighbours: TemporalNeighbours
    conversation_strength: float
    """`TemporalNeighbours.conversation_strength` of the best candidates: how much adjacency in time means."""


def rank_candidates(found: CandidateSet) -> tuple[list[RankedCandidate], ReorderRules]:
    """Rank candidates by evidence, contributions of other candidates, time and supersession."""
    request, query, candidates, period = found.request, found.query, found.candidates, found.period
    weights, nodes = query.weights, candidates.nodes
    now_ms = to_milliseconds(request.reference_time)
    ground = _CandidateGraph.from_candidates(candidates, found.table)
    outcomes, decisions = ground.outcomes()
    alone = ranking.pair_outcomes(candidates.evidence, outcomes, decisions, weights)
    before, after = found.neighbours.find_positions(candidates)
    asking, certainty = ground.facts.asking / _PERCENT, query.comparison_confidence * found.conversation_strength
    own = ranking.add_neighbour_scores(alone, before, after, asking, certainty=certainty, weights=weights)
    lenders = ranking.top_k(own, weights.lenders)
    gains, givers = ranking.borrowed_scores(own, lenders, ground.tie_strengths(lenders, now_ms, weights))
    summed = ranking.cap_below_best(ranking.cap_below_contributors(own + gains, own, givers), own)
    inside, strength = np.zeros(len(nodes), np.bool_), 0.0
    if period is not None:
        inside, strength = _created_between(ground.facts, period.since, period.until), period.strength
    favoured = ranking.favour_period(summed, inside, strength, weights)
    fresh = favoured * ranking.recency_bonus(ground.facts.created, now_ms, weights)
    timed = scores = favoured + fresh
    drops = request.superseded == "exclude"
    precedence = ReorderRules(
        nodes=nodes,
        created=ground.facts.created,
        inside=inside,
        strength=strength,
        outcomes=outcomes,
        decisions=decisions,
        newest=found.chains.newest(nodes[ranking.top_k(scores, len(nodes) if drops else 2 * request.limit)]),
        replaced_by=found.chains.replaced_by,
        history=request.superseded == "keep" or asks_for_history(request.text),
    )
    scores = precedence.promote(scores, weights)
    order = ranking.top_k(scores, len(scores))
    if drops:
        order = order[[node not in precedence.newest for node in nodes[order].tolist()]]
    order = precedence.move_behind_successors(order[: request.limit])
    # Duplicates count as one competing result, because a repetition does not make an answer worse.
    said = ground.facts.wordings
    said = np.where(said == NO_FINGERPRINT, -1 - np.arange(len(said)), said)
    relevances = ranking.answer_probability(summed, found.best.words, query.unknown, weights, fingerprints=said)
    # Any memory of the requested period answers a query such as "What did we note yesterday?".
    relevances = np.maximum(relevances, np.where(inside, _MIN_PERIOD_RELEVANCE * strength, 0.0))
    parts = {
        "outcome": alone - candidates.evidence,
        "beside": own - alone,
        "graph": summed - own,
        "period": favoured - summed,
        "recency": fresh,
        "superseded": scores - timed,
    }
    # Scores must descend, so a memory that the reorder rules moved gets the score of its new position.
    places = np.sort(scores[order])[::-1]
    results = []
    for position, score in zip(order.tolist(), places.tolist(), strict=True):
        why = {"meaning": float(candidates.similarities[position]), "words": float(candidates.shares[position])}
        gained = {name: float(part[position]) for name, part in parts.items() if part[position]}
        terms = {name: float(odds[position]) for name, odds in candidates.odds.items()}
        terms["floor"] = float(candidates.evidence[position]) - sum(terms.values())
        lent = givers[position] >= 0 and gains[position] > candidates.evidence[position]
        results.append(
            RankedCandidate(
                node=int(nodes[position]),
                score=score,
                relevance=float(relevances[position]),
                parts=why | gained,
                terms=with_place_term(terms | gained, score),
                path=(int(nodes[givers[position]]),) if lent else (),
                superseded_by=precedence.newest.get(int(nodes[position])),
            )
        )
    return results, precedence.restrict_to(order)
