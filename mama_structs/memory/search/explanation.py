"""Explanation of a memory's rank in a search, with terms that add up to its score."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import attrs
import numpy as np

from mama_structs.memory.graph.results import Explanation, Hit, limit_chars
from mama_structs.memory.search import scores as ranking
from mama_structs.memory.search.search_plan import (
    CandidateSet,
    RankedCandidate,
    SearchRequest,
    collect_candidates,
    find_hits,
    rank_candidates,
)
from mama_structs.memory.types.engine import EngineFilter, Reader

PUBLIC_NAMES: Final = {"types": "type", "origins": "origin", "trust": "min_trust"}
"""Names of conditions in `Filter`, by their different names in `EngineFilter`."""


def explain(reader: Reader, request: SearchRequest, node: int, max_chars: int | None) -> Explanation:
    """Explain why a search found or left out a memory. *max_chars* limits the hits as in `limit_chars`."""
    (memory,) = reader.get([node])
    memory_id = memory.id
    if request.where.namespace not in {None, memory.namespace}:
        return Explanation(memory_id=memory_id, excluded_by="namespace")
    request = attrs.evolve(request, where=attrs.evolve(request.where, namespace=None))
    for name, where in _single_filters(request):
        if node not in reader.window(where):
            return Explanation(memory_id=memory_id, excluded_by=name)
    found = _add_candidate(reader, collect_candidates(reader, request, ranking.WEIGHTS), node)
    everything = attrs.evolve(request, limit=len(found.candidates.nodes))
    results = {one.node: one for one in rank_candidates(attrs.evolve(found, request=everything))[0]}
    dropped = node not in results
    if dropped:
        behind = attrs.evolve(everything, superseded="demote")
        results = {one.node: one for one in rank_candidates(attrs.evolve(found, request=behind))[0]}
    best, _ = find_hits(reader, request)
    fitting = best if max_chars is None else limit_chars(best, max_chars)
    own: Hit | RankedCandidate = next((hit for hit in best if hit.memory.id == memory_id), results[node])
    copy_of = next((hit.memory.id for hit in best if memory_id in hit.duplicates), None)
    rank = next((place for place, hit in enumerate(fitting, 1) if hit.memory.id == memory_id), None)
    if rank is not None:
        left_out_by = None
    elif dropped:
        left_out_by = "superseded"
    elif own.relevance < request.min_relevance:
        left_out_by = "min_relevance"
    elif copy_of is not None:
        left_out_by = "duplicates"
    else:
        left_out_by = "max_chars" if any(hit.memory.id == memory_id for hit in best) else "limit"
    newest = results[node].superseded_by
    return Explanation(
        memory_id=memory_id,
        rank=rank,
        excluded_by=left_out_by,
        score=own.score,
        relevance=own.relevance,
        terms=own.terms,
        duplicate_of=copy_of,
        superseded_by=None if newest is None else reader.ids([newest])[0],
    )


def _single_filters(request: SearchRequest) -> Iterator[tuple[str, EngineFilter]]:
    """Yield each filter condition of a search separately, with the name of its argument."""
    for field in attrs.fields(EngineFilter):
        if (value := getattr(request.where, field.name)) is not None:
            yield PUBLIC_NAMES.get(field.name, field.name), EngineFilter(**{field.name: value})
    if request.as_of is not None:
        yield "as_of", EngineFilter(until=request.as_of + timedelta(milliseconds=1))
    yield "valid_until", EngineFilter(valid_at=request.reference_time)


def _add_candidate(reader: Reader, found: CandidateSet | None, node: int) -> CandidateSet:
    """Return the candidate set with a memory added. The memory must pass the search's filters."""
    if found is None:
        raise ValueError("a search that nothing passes has no candidates")
    if node in found.candidates.nodes:
        return found
    own = found.query.judged(reader, np.array([node], np.int64), found.best)
    return attrs.evolve(found, candidates=found.candidates.joined(own))
