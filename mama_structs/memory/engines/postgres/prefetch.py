"""Recorder of the data that a plan requests in advance, so that one statement fetches all of it."""

# ruff: noqa: D102 - documented in the protocols

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import attrs
import numpy as np

from mama_structs.memory.engines.postgres.queries import (
    ENDS_BY_DIRECTION,
    ByIdQuery,
    CountQuery,
    DuplicateQuery,
    LinkFilter,
    NearestQuery,
    NodeQuery,
    TimelineQuery,
    Words,
)
from mama_structs.memory.types.engine import Direction, EngineFilter, Nodes, Position, Query, Vectors
from mama_structs.memory.types.model import LinkType
from mama_structs.memory.types.text_analysis import resolve_terms


class _QueryFactory(Protocol):
    """Creates query objects for searches by vector and by words, and knows the cached sample."""

    def cached_sample(self) -> Vectors | None: ...

    def nearest_query(self, vector: Vectors, limit: int, where: EngineFilter | None) -> NearestQuery: ...

    def word_query(self, all_terms: Mapping[str, float], limit: int, where: EngineFilter | None) -> Words: ...


@attrs.define(eq=False)
class PrefetchRecorder:
    """Implements `Prefetch` by recording the queries and data that a plan requests in advance."""

    _reader: _QueryFactory
    queries: list[NodeQuery] = attrs.field(factory=list, init=False)
    terms: dict[str, None] = attrs.field(factory=dict, init=False)
    scored_terms: dict[str, None] = attrs.field(factory=dict, init=False)
    nodes: dict[int, None] = attrs.field(factory=dict, init=False)
    with_links: bool = attrs.field(default=False, init=False)
    max_neighbour_gap_ms: int | None = attrs.field(default=None, init=False)
    with_successors: bool = attrs.field(default=False, init=False)
    with_sample: bool = attrs.field(default=False, init=False)
    with_topics: bool = attrs.field(default=False, init=False)
    complete_link_ends: set[str] = attrs.field(factory=set, init=False)
    link_filter: LinkFilter = attrs.field(default=("both", None), init=False)
    digests: dict[str, None] = attrs.field(factory=dict, init=False)

    def nearest(self, vector: Vectors, limit: int, where: EngineFilter | None = None) -> None:
        self.queries.append(self._reader.nearest_query(vector, limit, where))

    def nearest_many(self, vectors: Vectors, limit: int, where: EngineFilter | None = None) -> None:
        for vector in vectors:
            self.nearest(vector, limit, where)

    def words(self, query: Query, limit: int, where: EngineFilter | None = None) -> None:
        self.word_scores(query)
        self.queries.append(self._reader.word_query(resolve_terms(query), limit, where))

    def word_scores(self, query: Query, nodes: Nodes | None = None) -> None:
        self.scored_terms |= dict.fromkeys(resolve_terms(query))
        self.rarity(query)
        if nodes is not None:
            self.facts(nodes)

    def facts(self, nodes: Nodes) -> None:
        self.nodes |= dict.fromkeys(to_node_list(nodes))

    def rarity(self, query: Query) -> None:
        self.terms |= dict.fromkeys(resolve_terms(query))

    def window(
        self,
        where: EngineFilter | None = None,
        *,
        newest_first: bool = True,
        after: Position | None = None,
        limit: int | None = None,
    ) -> None:
        self.queries.append(TimelineQuery(where, newest_first, limit, after))

    def count(self, where: EngineFilter | None = None) -> None:
        if where not in {None, EngineFilter()}:
            self.queries.append(CountQuery(where))

    def duplicates(self, wordings: Sequence[int]) -> None:
        self.queries.append(DuplicateQuery(tuple(wordings)))

    def find_many(self, memory_ids: Sequence[str]) -> None:
        self.queries.append(ByIdQuery(tuple(memory_ids)))

    def find(self, memory_id: str) -> None:
        self.find_many([memory_id])

    def known_contents(self, digests: Sequence[str]) -> None:
        self.digests |= dict.fromkeys(digests)

    def sample(self) -> Vectors | None:
        self.with_sample = True
        return self._reader.cached_sample()

    def links(self, nodes: Nodes, direction: Direction = "both", types: Collection[LinkType] | None = None) -> None:
        self.facts(nodes)
        self.with_links |= not is_successor_query(direction, types)
        self.with_successors = True
        self.link_filter = direction, None if types is None else frozenset(types)

    def links_of_many(self, nodes: Nodes, direction: Direction = "both") -> None:
        self.facts(nodes)
        self.complete_link_ends.update(ENDS_BY_DIRECTION[direction])

    def find_temporal_neighbours(self, nodes: Nodes, apart_ms: int) -> None:
        self.facts(nodes)
        self.max_neighbour_gap_ms = apart_ms

    def topics(self, nodes: Nodes) -> None:
        self.facts(nodes)
        self.with_topics = True


def is_successor_query(direction: Direction, types: Collection[LinkType] | None) -> bool:
    """
    Return True if only incoming evolution links are requested.

    These links are cached separately from others.
    """
    return direction == "in" and types is not None and set(types) <= {LinkType.EVOLUTION}


def to_node_list(nodes: Sequence[int] | Nodes) -> list[int]:
    """Return nodes as a list of integers."""
    return nodes.tolist() if isinstance(nodes, np.ndarray) else [*map(int, nodes)]
