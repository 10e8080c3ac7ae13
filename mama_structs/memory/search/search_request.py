"""Arguments of searches, validated, and with the vectors of the query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final, Literal

import attrs

from mama_structs._internal import validation as _check
from mama_structs.memory.embedding.protocol import Calibration, Embedder, QueryVectors, Vectors
from mama_structs.memory.search.query_rewriting import (
    asks_for_events,
    asks_for_history,
    is_about_period_only,
    is_preference,
    rewrite_first_person,
)
from mama_structs.memory.search.time_expressions import (
    LIKELY_STRENGTH,
    WEAK_STRENGTH,
    Period,
    find_period,
    remove_period,
)
from mama_structs.memory.types.engine import EngineFilter
from mama_structs.memory.types.requests import check_limit
from mama_structs.memory.types.text_analysis import query_terms

MAX_QUERY_CHARS: Final = 10_000
_LONGER_THAN_A_YEAR: Final = timedelta(days=400)

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
    """Arguments of a search, with the vectors of its query."""

    content: str
    """Text whose words and meaning are searched: the query in the third person, without its time expressions."""
    vectors: QueryVectors
    """Vectors of *content*."""
    period: Period | None = None
    """Period that the query asks for."""
    is_about_period: bool = False
    """Whether memories of the period answer, as for "What did we note yesterday?" and "What broke last week?"."""
    now: datetime
    calibration: Calibration
    """Maps arrays of the embedder's cosines to similarities from 0 to 1."""
    needs_history: bool = True
    """Whether the hits need all former versions of records."""

    @cached_property
    def terms(self) -> Mapping[str, float]:
        """The terms of *content* with their weights."""
        return query_terms(self.content)

    @cached_property
    def keeps_superseded(self) -> bool:
        """True if superseded memories rank by their own scores: as requested, or because the query asks for history."""
        return self.superseded == "keep" or asks_for_history(self.text)

    @property
    def reference_time(self) -> datetime:
        """Reference time of the search: *as_of*, or the present."""
        return self.now if self.as_of is None else self.as_of


async def embed_request(
    query: SearchQuery, embed: Callable[[str], Awaitable[QueryVectors]], embedder: Embedder, *, now: datetime
) -> SearchRequest:
    """Analyse a query at the time *now*, and embed its content with *embed*."""
    time = now if query.as_of is None else query.as_of
    period = find_period(query.text, time)
    content = query.text
    is_about_period = period is not None and (is_about_period_only(query.text, period) or asks_for_events(query.text))
    if period is not None:
        is_relative = _is_relative(query.text, period, time)
        if is_relative:
            content = remove_period(content, period) or content
        # A name such as "2026" often belongs to what the memory is about, not to the time when it was saved.
        is_name = not is_relative and period.strength > LIKELY_STRENGTH and not is_about_period
        if is_name or is_preference(query.text, period):
            period = attrs.evolve(period, strength=min(period.strength, WEAK_STRENGTH))
    content = rewrite_first_person(content) or content
    arguments = {field.name: getattr(query, field.name) for field in attrs.fields(SearchQuery)}
    return SearchRequest(
        **arguments,
        content=content,
        vectors=await embed(content),
        period=period,
        is_about_period=is_about_period,
        now=now,
        calibration=embedder.calibration,
    )


def _is_relative(text: str, period: Period, time: datetime) -> bool:
    """
    Return True if the words of a period count from *time*, such as "last week".

    Memories do not contain such words, but they may contain names of months and years.
    """
    if period.strength == LIKELY_STRENGTH:
        return False
    later = find_period(text, time + _LONGER_THAN_A_YEAR)
    return later is None or (later.since, later.until) != (period.since, period.until)


@attrs.frozen(kw_only=True, eq=False)
class SimilarityRequest:
    """A search for the memories that are nearest to given vectors."""

    pieces: Vectors
    """The vectors; the nearest one counts."""
    where: EngineFilter
    but: str | None
    """Id of a memory to leave out."""
    calibration: Calibration
    shared_dimensions: int
    """Number of leading dimensions that the vectors of texts in all languages have in common."""
    threshold: float
    """Minimum similarity."""
    limit: int
