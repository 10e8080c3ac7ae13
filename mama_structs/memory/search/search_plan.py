"""
Plan of a search from the query to the hits (DESIGN section 6).

All functions are plans over a `Reader`. They use few batched queries, never one per memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Final, Protocol, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedding.protocol import Vectors
from mama_structs.memory.graph.results import Hit, Results, SimilarMemory, with_place_term
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.search.candidates import MIN_MATCHES, collect_candidates
from mama_structs.memory.search.passages import with_passages
from mama_structs.memory.search.ranking import RankedCandidate, rank_candidates
from mama_structs.memory.search.reorder_rules import ReorderRules
from mama_structs.memory.search.result_dedup import find_folds, find_outdated_pairs
from mama_structs.memory.search.search_request import SearchRequest, SimilarityRequest
from mama_structs.memory.types.duplicates import duplicate_fingerprint, has_failed
from mama_structs.memory.types.engine import DISPLAY_BOUNDS, Reader, RelevanceBounds
from mama_structs.memory.types.model import Memory

# Number of results beyond the limit that are read at first, because some of them may repeat others.
_SPARE_RESULTS: Final = 4
# Factor by which the number of candidates grows if most of them repeat others.
_LIMIT_GROWTH: Final = 2


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
    if request.limit < 1:
        return [], None
    larger = request
    while True:
        found = collect_candidates(reader, larger)
        if found is None:
            return [], None
        ranked = rank_candidates(found)
        relevant = np.flatnonzero(ranked.relevances >= request.min_relevance)
        results = _FoldedResults(reader, request)
        for start, stop in _pages(len(relevant), request.limit):
            wordings = found.candidates.facts.wordings[ranked.order[relevant[:stop]]]
            results.add([ranked.result(place) for place in relevant[start:stop].tolist()], wordings)
            if results.count >= request.limit:
                break
        # If most candidates repeat others, the store may contain more memories.
        is_all = len(ranked.order) < max(larger.limit, MIN_MATCHES)
        if results.count >= request.limit or is_all or len(relevant) < len(ranked.order):
            break
        larger = attrs.evolve(larger, limit=_LIMIT_GROWTH * len(ranked.order))
    hits, places = results.hits(newer_first=not ranked.rules.history)
    return hits, ranked.rules.restrict_to(ranked.order[relevant[places]])


def _pages(count: int, limit: int) -> list[tuple[int, int]]:
    """Return ranges that cover *count* results: the first has slightly more than *limit*, later ones are larger."""
    ends = [0, min(limit + _SPARE_RESULTS, count)]
    while ends[-1] < count:
        ends.append(min(_LIMIT_GROWTH * ends[-1], count))
    return list(pairwise(ends))


class _FoldedResults:
    """Results of a search in their order; a result that repeats a better one is folded into it."""

    def __init__(self, reader: Reader, request: SearchRequest) -> None:
        self._reader, self._request = reader, request
        self._memories: dict[int, Memory] = {}
        self._results: list[RankedCandidate] = []
        self._own: list[Memory] = []
        self._shown: list[int] = []
        self._vectors = np.zeros((0, 0), np.float32)

    @property
    def count(self) -> int:
        """Number of results that are not folded into others."""
        return sum(place == first for place, first in enumerate(self._shown))

    def add(self, results: Sequence[RankedCandidate], wordings: NDArray[np.int64]) -> None:
        """Append results, and fold repetitions. *wordings* are the fingerprints of all results."""
        request = self._request
        self._results += results
        self._read([node for one in results for node in (one.node, one.superseded_by) if node is not None])
        own = [self._memories[one.node] for one in results]
        self._own += own if request.as_of is None else [saving.memory_as_of(one, request.as_of) for one in own]
        self._vectors = self._first_vectors()
        states = [self._supersession_state(one) for one in self._results]
        self._shown = find_folds(self._own, states, wordings, self._vectors, request.calibration)

    def hits(self, *, newer_first: bool) -> tuple[list[Hit], list[int]]:
        """
        Return the first hits, and their places among the results.

        *newer_first*: of two statements about the same subject, the newer one comes first.
        """
        limit = self._request.limit
        places = [place for place, first in enumerate(self._shown) if place == first]
        copies: dict[int, list[str]] = {place: [] for place in places}
        for place, first in enumerate(self._shown):
            if first != place:
                copies[first].append(self._own[place].id)
        scores = [self._results[place].score for place in places[:limit]]
        if newer_first:
            # Results beyond the limit may replace those within.
            self._move_newer_statements(places)
        places = places[:limit]
        chosen = [self._results[place] for place in places]
        named = list({node for one in chosen for node in (*one.path, one.superseded_by) if node is not None})
        ids = dict(zip(named, self._reader.ids(named), strict=True))
        hits = [
            Hit(
                memory=self._own[place],
                # Scores must descend, so a memory that was moved gets the score of its new position.
                score=score,
                relevance=one.relevance,
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
        return with_passages(self._reader, hits, nodes, query=request.content, vectors=request.vectors), places

    def _move_newer_statements(self, places: list[int]) -> None:
        """Move newer statements before older ones about the same subject."""
        memories = [self._own[place] for place in places]
        moved = [*places]
        for older, newer in find_outdated_pairs(memories, self._vectors[places], self._request.calibration):
            before, after = moved.index(places[older]), moved.index(places[newer])
            if before < after:
                moved.insert(before, moved.pop(after))
        places[:] = moved

    def _first_vectors(self) -> Vectors:
        """Return the first vector of each result, zero for a result without vectors."""
        pieces, counts = self._reader.pieces([one.node for one in self._results])
        has = counts > 0
        first = np.zeros((len(counts), pieces.shape[1]), np.float32)
        if has.any():
            first[has] = pieces[(np.cumsum(counts) - counts)[has]]
        return first

    def _read(self, nodes: Sequence[int]) -> None:
        new = [node for node in dict.fromkeys(nodes) if node not in self._memories]
        self._memories.update(zip(new, self._reader.get(new), strict=True) if new else ())

    def _supersession_state(self, result: RankedCandidate) -> Hashable:
        """Return a value that is equal for results whose successors are duplicates of each other."""
        if result.superseded_by is None:
            return None
        after = self._memories[result.superseded_by]
        return duplicate_fingerprint(after) or after.id, has_failed(after)


class RatedResult(Protocol):
    """A result with a relevance: a `Hit` or a `RankedCandidate`."""

    @property
    def relevance(self) -> float:
        """Absolute relevance, 0 to 1."""


RatedResultT = TypeVar("RatedResultT", bound=RatedResult)


def worth_showing(hits: Sequence[RatedResultT], *, bounds: RelevanceBounds = DISPLAY_BOUNDS) -> list[RatedResultT]:
    """
    Return the hits of a search that are relevant enough for a prompt.

    Return an empty list if the most relevant hit is hardly relevant. Otherwise return the hits that are almost as
    relevant as this one.
    """
    best = max((hit.relevance for hit in hits), default=0.0)
    return [hit for hit in hits if hit.relevance >= bounds.share * best] if best >= bounds.relevance else []
