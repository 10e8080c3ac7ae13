"""Recording of the queries that a plan announces, to fetch them in one statement."""

# ruff: noqa: D102 - documented in the protocols

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import attrs
import numpy as np

from mama_structs.memory.engines.postgres.queries import (
    ENDS,
    Alike,
    Along,
    Count,
    Named,
    Nearest,
    NodeQuestion,
    Window,
    Words,
)
from mama_structs.memory.types.engine import Direction, Filter, Nodes, Query, Vectors
from mama_structs.memory.types.model import LinkType
from mama_structs.memory.types.text_analysis import terms_of


class _Questions(Protocol):
    """Creates the query objects for searches."""

    def nearest_question(self, vector: Vectors, limit: int, where: Filter | None) -> Nearest: ...

    def words_question(self, all_terms: Mapping[str, float], limit: int, where: Filter | None) -> Words: ...


@attrs.define(eq=False)
class AskedAhead:
    """Recorder of the queries that a plan announces: a `Prefetch`."""

    _reader: _Questions
    questions: list[NodeQuestion] = attrs.field(factory=list, init=False)
    terms: dict[str, None] = attrs.field(factory=dict, init=False)
    scored: dict[str, None] = attrs.field(factory=dict, init=False)
    nodes: dict[int, None] = attrs.field(factory=dict, init=False)
    with_links: bool = attrs.field(default=False, init=False)
    with_neighbours: bool = attrs.field(default=False, init=False)
    with_followed: bool = attrs.field(default=False, init=False)
    with_sample: bool = attrs.field(default=False, init=False)
    with_topics: bool = attrs.field(default=False, init=False)
    told: set[str] = attrs.field(factory=set, init=False)
    along: Along = attrs.field(default=("both", None), init=False)
    digests: dict[str, None] = attrs.field(factory=dict, init=False)

    def nearest(self, vector: Vectors, limit: int, where: Filter | None = None) -> None:
        self.questions.append(self._reader.nearest_question(vector, limit, where))

    def nearest_many(self, vectors: Vectors, limit: int) -> None:
        for vector in vectors:
            self.nearest(vector, limit)

    def words(self, query: Query, limit: int, where: Filter | None = None) -> None:
        self.word_scores(query)
        self.questions.append(self._reader.words_question(terms_of(query), limit, where))

    def word_scores(self, query: Query, nodes: Nodes | None = None) -> None:
        self.scored |= dict.fromkeys(terms_of(query))
        self.rarity(query)
        if nodes is not None:
            self.facts(nodes)

    def facts(self, nodes: Nodes) -> None:
        self.nodes |= dict.fromkeys(listed_nodes(nodes))

    def rarity(self, query: Query) -> None:
        self.terms |= dict.fromkeys(terms_of(query))

    def window(self, where: Filter | None = None, *, newest_first: bool = True, limit: int | None = None) -> None:
        self.questions.append(Window(where, newest_first, limit))

    def count(self, where: Filter | None = None) -> None:
        if where not in {None, Filter()}:
            self.questions.append(Count(where))

    def alike(self, wordings: Sequence[int]) -> None:
        self.questions.append(Alike(tuple(wordings)))

    def find_many(self, memory_ids: Sequence[str]) -> None:
        self.questions.append(Named(tuple(memory_ids)))

    def find(self, memory_id: str) -> None:
        self.find_many([memory_id])

    def known_contents(self, digests: Sequence[str]) -> None:
        self.digests |= dict.fromkeys(digests)

    def sample(self) -> None:
        self.with_sample = True

    def links(self, nodes: Nodes, direction: Direction = "both", types: Collection[LinkType] | None = None) -> None:
        self.facts(nodes)
        self.with_links |= not is_followed(direction, types)
        self.with_followed = True
        self.along = direction, None if types is None else frozenset(types)

    def links_of_many(self, nodes: Nodes, direction: Direction = "both") -> None:
        self.facts(nodes)
        self.told.update(ENDS[direction])

    def beside(self, nodes: Nodes, apart_ms: int) -> None:  # noqa: ARG002 - part of the protocol
        self.facts(nodes)
        self.with_neighbours = True

    def topics(self, nodes: Nodes) -> None:
        self.facts(nodes)
        self.with_topics = True


def is_followed(direction: Direction, types: Collection[LinkType] | None) -> bool:
    """
    Return True if only incoming evolution links are requested.

    They are cached separately from other links.
    """
    return direction == "in" and types is not None and set(types) <= {LinkType.EVOLUTION}


def listed_nodes(nodes: Sequence[int] | Nodes) -> list[int]:
    """Return nodes as a list of integers."""
    return nodes.tolist() if isinstance(nodes, np.ndarray) else [*map(int, nodes)]
