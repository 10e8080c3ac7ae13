"""Explanation of a memory's rank in a search, with terms that add up to its score."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import attrs

from mama_structs.memory.graph.results import Explanation, Hit, limit_chars
from mama_structs.memory.search.candidates import collect_candidates
from mama_structs.memory.search.ranking import RankedCandidate, rank_candidates
from mama_structs.memory.search.search_plan import find_hits
from mama_structs.memory.search.search_request import SearchRequest
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
    found = collect_candidates(reader, request)
    if found is None:
        raise ValueError("no memory passes the filter")
    found = found.with_node(reader, node)
    ranked = rank_candidates(found)
    results = {one.node: one for one in ranked.results(range(len(ranked.order)))}
    dropped = node not in results
    if dropped:
        ranked = rank_candidates(attrs.evolve(found, request=attrs.evolve(request, superseded="demote")))
        results = {one.node: one for one in ranked.results(range(len(ranked.order)))}
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
