"""
Plan of a search from the query to the hits (DESIGN section 6).

All functions are plans over a `Reader`. They use few batched queries, never one per memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

import attrs
import numpy as np

from mama_structs.memory.embedding.protocol import cosine_table, nearest_queries
from mama_structs.memory.graph.results import Hit, Results, SimilarMemory, with_place_term
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.search.candidates import MIN_MATCHES, collect_candidates
from mama_structs.memory.search.passages import with_passages
from mama_structs.memory.search.ranking import Ranking, rank_candidates
from mama_structs.memory.search.reorder_rules import ReorderRules
from mama_structs.memory.search.result_dedup import (
    MAX_COMPARED_RESULTS,
    MAX_COMPARED_STATEMENTS,
    find_folds,
    find_outdated_pairs,
)
from mama_structs.memory.search.scores import IndexArray
from mama_structs.memory.search.search_request import SearchRequest, SimilarityRequest
from mama_structs.memory.types.duplicates import duplicate_fingerprint, has_failed
from mama_structs.memory.types.engine import DISPLAY_BOUNDS, Reader, RelevanceBounds
from mama_structs.memory.types.model import Memory

MAX_TIE_DISTANCE: Final = 0.25
"""Difference of the scores up to which a hit answers as well as the best one."""
# Number of results beyond the limit that are read at first, because some of them may repeat others.
_SPARE_RESULTS: Final = 4
# Factor by which the number of candidates grows if most of them repeat others.
_LIMIT_GROWTH: Final = 2


def similar(reader: Reader, request: SimilarityRequest) -> Results[SimilarMemory]:
    """Return the memories that are nearest to any of the vectors, nearest first."""
    sample, shared = reader.sample(), request.shared_dimensions
    queries = [query for piece in request.pieces for query in nearest_queries(piece, sample, shared)]
    matches = [reader.nearest(query, request.limit + 1, request.where).nodes for query in queries]
    own = None if request.but is None else reader.find(request.but)
    nodes = [node for node in np.unique(np.concatenate(matches)).tolist() if node != own] if matches else []
    vectors, counts = reader.pieces(nodes)
    best = (
        [float(cosine_table(some, request.pieces, shared).max()) for some in np.split(vectors, np.cumsum(counts)[:-1])]
        if nodes
        else []
    )
    ordered = sorted(zip(nodes, best, strict=True), key=lambda one: (-one[1], -one[0]))
    alike = [(near, float(request.calibration(cosine))) for near, cosine in ordered]
    kept = [(near, similarity) for near, similarity in alike if similarity >= request.threshold][: request.limit]
    memories = reader.get([near for near, _ in kept])
    found = (SimilarMemory(memory=one, similarity=kept[place][1]) for place, one in enumerate(memories))
    return Results(found, item_type=SimilarMemory)


def find_hits(reader: Reader, request: SearchRequest) -> tuple[list[Hit], ReorderRules | None]:
    """
    Return the best hits of a search, and the rules that ordered them.

    A result that repeats a better one is folded into it, and a further result takes its place.
    """
    if request.limit < 1:
        return [], None
    larger = request
    while True:
        found = collect_candidates(reader, larger)
        if found is None:
            return [], None
        ranked = rank_candidates(found)
        is_relevant = ranked.relevances >= request.min_relevance
        # A newer statement gets the relevance of an older one, so the first results are compared in any case.
        considered = np.flatnonzero(is_relevant | (np.arange(len(is_relevant)) < MAX_COMPARED_STATEMENTS))
        results = _FoldedResults(reader, request, ranked)
        for stop in _page_ends(len(considered), request.limit):
            results.extend(considered[:stop])
            if results.count >= request.limit:
                break
        # If most candidates repeat others or are excluded, the store may contain more memories.
        count = len(found.candidates.nodes)
        is_all = count < max(larger.limit, MIN_MATCHES)
        if results.count >= request.limit or is_all or not is_relevant.all():
            break
        larger = attrs.evolve(larger, limit=_LIMIT_GROWTH * count)
    hits, places = results.hits()
    return hits, ranked.rules.restrict_to(ranked.order[places])


def _page_ends(count: int, limit: int) -> list[int]:
    """Return growing numbers of results up to *count*. The first is slightly more than *limit*."""
    ends = [min(limit + _SPARE_RESULTS, count)]
    while ends[-1] < count:
        ends.append(min(_LIMIT_GROWTH * ends[-1], count))
    return ends


class _FoldedResults:
    """Results of a search in their order; a result that repeats a better one is folded into it."""

    def __init__(self, reader: Reader, request: SearchRequest, ranking: Ranking) -> None:
        self._reader, self._request, self._ranking = reader, request, ranking
        self._memories: dict[int, Memory] = {}
        self._places: list[int] = []
        self._own: list[Memory] = []
        self._shown: list[int] = []
        self._cosines = np.zeros((0, 0), np.float32)

    @property
    def count(self) -> int:
        """Number of relevant results that are not folded into others."""
        least, relevances = self._request.min_relevance, self._ranking.relevances[self._places]
        return sum(
            place == first and relevance >= least
            for place, (first, relevance) in enumerate(zip(self._shown, relevances.tolist(), strict=True))
        )

    def extend(self, places: IndexArray) -> None:
        """Append results up to *places*, the places of all results in the ranking, and fold repetitions."""
        request, ranking = self._request, self._ranking
        order = ranking.order[places]
        nodes = ranking.found.candidates.nodes[order].tolist()
        successors = [ranking.rules.newest.get(node) for node in nodes]
        self._read([node for node in (*nodes, *successors) if node is not None])
        new = [self._memories[node] for node in nodes[len(self._own) :]]
        self._own += new if request.as_of is None else [saving.memory_as_of(one, request.as_of) for one in new]
        self._places = places.tolist()
        vectors = ranking.found.candidates.first_vectors(order[:MAX_COMPARED_RESULTS])
        self._cosines = cosine_table(vectors, vectors, request.vectors.shared_dimensions)
        wordings = ranking.found.candidates.facts.wordings[order]
        states = [self._supersession_state(node) for node in successors]
        self._shown = find_folds(self._own, states, wordings, self._cosines, request.calibration)

    def hits(self) -> tuple[list[Hit], list[int]]:
        """Return the first hits, and their places in the ranking."""
        limit, least = self._request.limit, self._request.min_relevance
        places = [place for place, first in enumerate(self._shown) if place == first]
        copies: dict[int, list[str]] = {place: [] for place in places}
        for place, first in enumerate(self._shown):
            if first != place:
                copies[first].append(self._own[place].id)
        # Results beyond the limit may replace those within.
        raised = self._move_newer_statements(places)
        own = self._ranking.relevances[[self._places[place] for place in places]].tolist()
        relevances = {place: max(one, raised.get(place, 0.0)) for place, one in zip(places, own, strict=True)}
        places = [place for place in places if relevances[place] >= least][:limit]
        ranked_places = [self._places[place] for place in places]
        scores = sorted(self._ranking.scores[ranked_places].tolist(), reverse=True)
        chosen = self._ranking.results(ranked_places)
        named = list({node for one in chosen for node in (*one.path, one.superseded_by) if node is not None})
        ids = dict(zip(named, self._reader.ids(named), strict=True)) if named else {}
        hits = [
            Hit(
                memory=self._own[place],
                # Scores must descend, so a memory that was moved gets the score of its new position.
                score=score,
                relevance=relevances[place],
                signals=one.parts,
                terms=one.terms if one.score == score else with_place_term(one.terms, score),
                path=tuple([ids[node] for node in one.path]),
                superseded_by=None if one.superseded_by is None else ids[one.superseded_by],
                duplicates=tuple(copies[place]),
            )
            for one, place, score in zip(chosen, places, scores, strict=True)
        ]
        nodes = [one.node for one in chosen]
        request = self._request
        shown = with_passages(self._reader, hits, nodes, query=request.content, vectors=request.vectors)
        return shown, ranked_places

    def _move_newer_statements(self, places: list[int]) -> dict[int, float]:
        """
        Move newer statements before older ones about the same subject, unless the query asks for the older ones.

        Return the relevances of the older statements, by the place of the newer one, which has at least this relevance.
        """
        compared = [place for place in places if place < len(self._cosines)]
        memories = [self._own[place] for place in compared]
        moved = [*places]
        relevances: dict[int, float] = {}
        pairs = find_outdated_pairs(memories, self._cosines[np.ix_(compared, compared)], self._request.calibration)
        for older, newer in pairs if pairs and not self._request.keeps_superseded else ():
            old, new = places[older], places[newer]
            if moved.index(old) < moved.index(new):
                moved.remove(new)
                moved.insert(moved.index(old), new)
                own = relevances.get(old, float(self._ranking.relevances[self._places[old]]))
                relevances[new] = max(own, relevances.get(new, 0.0))
        places[:] = moved
        return relevances

    def _read(self, nodes: Sequence[int]) -> None:
        new = [node for node in dict.fromkeys(nodes) if node not in self._memories]
        get = self._reader.get if self._request.needs_history else self._reader.get_stored
        self._memories.update(zip(new, get(new), strict=True) if new else ())

    def _supersession_state(self, successor: int | None) -> Hashable:
        """Return a value that is equal for successors that are duplicates of each other."""
        if successor is None:
            return None
        after = self._memories[successor]
        return duplicate_fingerprint(after) or after.id, has_failed(after)


class RatedResult(Protocol):
    """A result with a score and a relevance, such as a `Hit`."""

    @property
    def score(self) -> float:
        """Score that orders the results of a search."""

    @property
    def relevance(self) -> float:
        """Absolute relevance, 0 to 1."""


RatedResultT = TypeVar("RatedResultT", bound=RatedResult)


def find_threshold(hits: Iterable[RatedResult], bounds: RelevanceBounds) -> float:
    """Return the minimum relevance of the hits of a search that are shown in a prompt."""
    best = max((hit.relevance for hit in hits), default=0.0)
    return bounds.share * best if best >= bounds.relevance else bounds.relevance


def worth_showing(hits: Sequence[RatedResultT], *, bounds: RelevanceBounds = DISPLAY_BOUNDS) -> list[RatedResultT]:
    """
    Return the hits of a search that are relevant enough for a prompt.

    Return an empty list if the most relevant hit is hardly relevant. Otherwise return the hits that are almost as
    relevant as this one, or that have almost the best score.
    """
    threshold = find_threshold(hits, bounds)
    if threshold > max((hit.relevance for hit in hits), default=0.0):
        return []
    # Many equal answers lower the relevance of each, except for the first one.
    least_score = max((hit.score for hit in hits), default=0.0) - MAX_TIE_DISTANCE
    return [hit for hit in hits if hit.relevance >= threshold or hit.score >= least_score]
