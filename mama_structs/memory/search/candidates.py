"""
Candidates of a search with their data from the store, as columns with one item per candidate.

Candidates come from the vectors, the words and the requested period. The best of them bring memories that are linked
to them, or that directly precede or follow them in time.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedding.protocol import Calibration, QueryVectors, Vectors, has_rest
from mama_structs.memory.graph.traversal import Successors, links_as_of
from mama_structs.memory.search import scores as ranking
from mama_structs.memory.search.features import text_evidence
from mama_structs.memory.search.scores import CandidateSignals, CosineBaseline, FloatArray, IndexArray
from mama_structs.memory.search.search_request import SearchRequest
from mama_structs.memory.search.time_expressions import Period
from mama_structs.memory.types.engine import (
    TYPE_NUMBERS,
    EngineFilter,
    LinkTable,
    NodeAttributes,
    Nodes,
    Prefetch,
    Reader,
    filter_names,
)
from mama_structs.memory.types.model import ORIGINS, LinkType, to_milliseconds
from mama_structs.memory.types.text_analysis import detect_scripts, query_terms

MIN_MATCHES: Final = 64
"""Number of candidates that vectors and words contribute at least, if there are as many memories."""
_MIN_FOLLOWED: Final = 32
_MAX_LINKED: Final = 128
# Number of sampled texts of a group at which its mean similarity has half of its full weight.
_HALF_CERTAINTY_COUNT: Final = 10
# Weight of a text's mean similarity to the store, by which similarities are reduced.
_STORE_MEAN_WEIGHT: Final = 0.5
_MILLISECOND: Final = timedelta(milliseconds=1)
# Maximum time between neighbours. Memories further apart belong to different conversations.
_MAX_NEIGHBOUR_GAP_MS: Final = 3_600_000
# At most twice this number of vectors represents a store.
_MAX_SAMPLED: Final = 256
_MAX_KNOWN_SAMPLES: Final = 64

# Temporal links are excluded, because closeness in time is no reason to show both memories.
_FOLLOWED_LINK_TYPES: Final = (LinkType.EVOLUTION, LinkType.IMPLEMENTATION, LinkType.ASSOCIATION)


@attrs.frozen(eq=False)
class Candidates:
    """Deduplicated candidates in ascending order of nodes, with their signals as columns."""

    nodes: Nodes
    facts: NodeAttributes
    signals: CandidateSignals

    def joined(self, other: Candidates) -> Candidates:
        """Return the union of two disjoint sets of candidates."""
        order = np.argsort(np.concatenate([self.nodes, other.nodes]))

        def merge(mine: tuple[NDArray[Any], ...], others: tuple[NDArray[Any], ...]) -> list[NDArray[Any]]:
            return [np.concatenate(pair)[order] for pair in zip(mine, others, strict=True)]

        (nodes,) = merge((self.nodes,), (other.nodes,))
        return Candidates(
            nodes,
            NodeAttributes(*merge(self.facts.columns, other.facts.columns)),
            CandidateSignals(*merge(self.signals.columns, other.signals.columns)),
        )

    def positions(self, nodes: Collection[int] | Nodes) -> IndexArray:
        """Return the indexes of *nodes* among the candidates, or -1 for other nodes."""
        wanted = np.array(nodes, np.int64)
        if not len(self.nodes) or not len(wanted):
            return np.full(len(wanted), -1, np.intp)
        at = np.minimum(self.nodes.searchsorted(wanted), len(self.nodes) - 1)
        return np.where(self.nodes[at] == wanted, at, -1)


@attrs.frozen(eq=False)
class StoreSample:
    """Vectors that are typical of a store, with the sums by which queries are centred."""

    rows: Vectors
    """Different vectors, of shape (n, dimensions)."""
    rest: NDArray[np.bool_]
    """Mask of the vectors with a part after the shared dimensions (`protocol.has_rest`)."""
    sums: tuple[Vectors, Vectors]
    """Sum of the vectors without a rest, and of those with one."""

    @classmethod
    def from_vectors(cls, vectors: Vectors, shared_dimensions: int) -> StoreSample:
        """Select at most 512 different vectors of a reader's sample."""
        # A text that was saved many times is not typical.
        first = _find_distinct(vectors)
        rows = vectors[first[:: max(len(first) // _MAX_SAMPLED, 1)]]
        rest = has_rest(rows, shared_dimensions)
        whole = has_rest(vectors, shared_dimensions)
        sums = [rows[rest == group].sum(axis=0) if len(rows) else np.zeros(0, np.float32) for group in (False, True)]
        # Keep a row of a group that the selection left out, so that memories of this group are searched, too.
        missing = [group for group in (False, True) if (whole == group).any() and not (rest == group).any()]
        for group in missing:
            rows = np.concatenate([rows, vectors[whole == group][:1]])
            rest = np.append(rest, group)
        return cls(np.ascontiguousarray(rows), rest, (sums[0], sums[1]))

    @classmethod
    def cached(cls, vectors: Vectors, shared_dimensions: int) -> StoreSample:
        """Return the result of `from_vectors`. It is computed again only for another array."""
        known = _samples.get(id(vectors))
        if known is not None and known[0]() is vectors:
            return known[1]
        found = cls.from_vectors(vectors, shared_dimensions)
        if len(_samples) >= _MAX_KNOWN_SAMPLES:
            _samples.clear()
        _samples[id(vectors)] = (weakref.ref(vectors), found)
        return found

    def center(self, vectors: QueryVectors) -> QueryVectors:
        """
        Return query vectors for ranking: cosines minus half of each text's mean cosine to the store.

        Texts that resemble all others are near to any query, so without this, they hide the texts that resemble this
        query alone.
        """
        shared, count = vectors.shared_dimensions, len(self.rows)
        if not count or not vectors.plain.any():
            return vectors
        weight = _STORE_MEAN_WEIGHT / count
        if not self.rest.any() or self.rest.all():
            own = vectors.has_rest == bool(self.rest.any())
            total = self.sums[1] if self.rest.any() else self.sums[0]
            if own:
                centred = vectors.plain - weight * total
                return attrs.evolve(vectors, same=centred, other=centred)
        # Vectors with a rest all have the same length in the shared dimensions.
        longest = vectors.plain if vectors.has_rest else self.rows[int(self.rest.argmax())]
        scale = max(float(np.linalg.norm(longest[:shared])), 1e-9)

        def across(vector: Vectors) -> Vectors:
            """Return a vector whose products with vectors of the other group are comparable to cosines."""
            scaled = np.zeros_like(vector)
            scaled[:shared] = vector[:shared] / scale
            return scaled

        same_sum, other_sum = self.sums[vectors.has_rest], self.sums[not vectors.has_rest]
        return attrs.evolve(
            vectors,
            same=vectors.plain - weight * (same_sum + across(other_sum)),
            other=across(vectors.plain) - weight * (across(same_sum) + other_sum),
        )

    def nearest(self, centred: QueryVectors) -> tuple[Vectors, ...]:
        """Return the vectors whose nearest neighbours are candidates: one for each group of vectors in the store."""
        is_other = self.rest != centred.has_rest
        groups = ((centred.same, ~is_other), (centred.other, is_other))
        return tuple(vector for vector, mask in groups if mask.any()) or (centred.same,)


def _find_distinct(vectors: Vectors) -> IndexArray:
    """Return the positions of the first of each group of equal vectors."""
    every = np.arange(len(vectors))
    if len(vectors) and len(np.unique(vectors[:, 0])) == len(vectors):
        return every
    # Sparse vectors have many components in common, so the complete vectors are compared.
    first = {row.tobytes(): place for place, row in zip(every[::-1].tolist(), vectors[::-1], strict=True)}
    return np.array(sorted(first.values()), np.intp)


# Samples of the stores that were searched last, by the identity of the reader's array.
_samples: Final[dict[int, tuple[weakref.ref[Vectors], StoreSample]]] = {}


@attrs.frozen(eq=False, kw_only=True)
class PreparedQuery:
    """A query with the statistics of its words and of its similarity to the store."""

    centred: QueryVectors
    """Vectors of the query whose similarities rank memories (`StoreSample.center`)."""
    nearest: tuple[Vectors, ...]
    """Vectors whose nearest neighbours are candidates: one for each group of vectors in the store."""
    other_shift: float
    """Mean by which centred similarities to memories of the other group exceed those to the query's own group."""
    baseline: CosineBaseline
    """Expected centred similarity in this store."""
    adjusted: QueryVectors
    """Vectors of the query from whose similarities the relevance of a memory is computed."""
    adjusted_baseline: CosineBaseline
    terms: Mapping[str, float]
    scripts: int
    """Scripts of the query (`text_analysis.detect_scripts`)."""
    rarity: float
    """Maximum BM25 score that a memory can have for the query."""

    @classmethod
    def read(cls, reader: Reader, text: str, vectors: QueryVectors, calibration: Calibration) -> PreparedQuery:
        """Read the statistics of a query in this store."""
        terms = query_terms(text)
        sample = StoreSample.cached(reader.sample(), vectors.shared_dimensions)
        centred = sample.center(vectors)
        is_other = sample.rest != vectors.has_rest
        similarities, adjusted = _similarities(sample.rows, is_other, centred, vectors)
        shift = _group_shift(similarities, is_other)
        similarities[is_other] -= shift
        # A query by words alone has the vector zero, to which all memories are as similar as expected.
        is_adjusted = vectors.is_adjusted or not vectors.plain.any()
        return cls(
            centred=centred,
            nearest=sample.nearest(centred),
            other_shift=shift,
            baseline=CosineBaseline.from_cosines(
                similarities, calibration, is_adjusted=is_adjusted or centred.is_adjusted
            ),
            adjusted=vectors,
            adjusted_baseline=CosineBaseline.from_cosines(adjusted, calibration, is_adjusted=is_adjusted),
            terms=terms,
            scripts=detect_scripts(text),
            rarity=sum(rarity * terms.get(term, 0.0) for term, rarity in reader.rarity(terms).items()),
        )

    def collect(self, reader: Reader, nodes: Nodes) -> Candidates:
        """Return *nodes*, which must be ascending, with their signals."""
        facts, (pieces, counts) = reader.facts(nodes), reader.pieces(nodes)
        is_other = self.centred.is_other(pieces)
        centred, adjusted = _similarities(pieces, is_other, self.centred, self.adjusted)
        if self.other_shift:
            # Both groups get the same mean, so that neither language is preferred.
            centred[is_other] -= self.other_shift
        return Candidates(
            nodes,
            facts,
            CandidateSignals(
                nearness=ranking.best_of_pieces(centred, counts, self.baseline),
                standings=ranking.best_of_pieces(adjusted, counts, self.adjusted_baseline, penalty=0.0),
                words=reader.word_scores(self.terms, nodes).astype(np.float64),
                lengths=reader.lengths(nodes).astype(np.float64),
                foreign=(facts.scripts & self.scripts == 0) & (facts.scripts != 0) & (self.scripts != 0),
                asking=facts.asking / 100,
            ),
        )


def _similarities(vectors: Vectors, is_other: NDArray[np.bool_], *queries: QueryVectors) -> list[Vectors]:
    """Return the similarities of each query to stored vectors, reading each vector once per group of vectors."""
    if not len(vectors):
        return [np.zeros(0, np.float32) for _ in queries]
    found = vectors @ np.stack([query.same for query in queries], axis=1)
    if is_other.any():
        found[is_other] = vectors[is_other] @ np.stack([query.other for query in queries], axis=1)
    return [found[:, place] for place in range(len(queries))]


def _group_shift(similarities: Vectors, is_other: NDArray[np.bool_]) -> float:
    """Return the difference between the mean similarities of the groups, less for small groups."""
    others = int(np.count_nonzero(is_other))
    fewest = min(others, len(is_other) - others)
    if not fewest:
        return 0.0
    difference = float(similarities[is_other].mean()) - float(similarities[~is_other].mean())
    return difference * fewest / (fewest + _HALF_CERTAINTY_COUNT)


@attrs.frozen(eq=False)
class TemporalNeighbours:
    """The nodes created directly before and after each node, or -1 if none was created within an hour."""

    nodes: Nodes
    before: Nodes
    after: Nodes

    def around(self, positions: IndexArray, candidates: Candidates) -> Nodes:
        """Return the neighbours of the nodes at *positions* that are not candidates yet."""
        found = np.concatenate([self.before[positions], self.after[positions]])
        return found[(found >= 0) & (candidates.positions(found) < 0)]

    def find_positions(self, candidates: Candidates) -> tuple[IndexArray, IndexArray]:
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


@attrs.frozen(eq=False, kw_only=True)
class CandidateSet:
    """Candidates of a search with all data that determines their ranking."""

    request: SearchRequest
    query: PreparedQuery
    candidates: Candidates
    table: LinkTable
    """Links of the best candidates."""
    chains: Successors
    neighbours: TemporalNeighbours

    @cached_property
    def shown_signals(self) -> dict[str, FloatArray]:
        """Similarity and share of the query's words of each candidate, 0 to 1, as `Hit.signals` shows them."""
        signals, query = self.candidates.signals, self.query
        cosines = query.adjusted_baseline.cosines(signals.standings)
        if query.adjusted.is_adjusted:
            cosines += ranking.unrelated_cosine(self.request.calibration)
        return {
            "meaning": self.request.calibration(cosines).astype(np.float64),
            "words": np.clip(signals.words / max(query.rarity, 1e-9), 0.0, 1.0),
        }

    def with_node(self, reader: Reader, node: int) -> CandidateSet:
        """Return the set with a memory added. The memory must pass the search's filters."""
        if node in self.candidates.nodes:
            return self
        own = self.query.collect(reader, np.array([node], np.int64))
        return attrs.evolve(self, candidates=self.candidates.joined(own))


def collect_candidates(reader: Reader, request: SearchRequest) -> CandidateSet | None:
    """Return the candidates of a search with their data, or None if no memory passes the filter."""
    # Include memories that were created exactly at *as_of*.
    where = narrow_filter(request.where, None, None if request.as_of is None else request.as_of + _MILLISECOND)
    where = attrs.evolve(where, valid_at=request.reference_time)
    limit = max(MIN_MATCHES, request.limit)
    terms = query_terms(request.content)

    def prefetch(ahead: Prefetch) -> None:
        ahead.rarity(terms)
        if (known := ahead.sample()) is not None:
            sample = StoreSample.cached(known, request.vectors.shared_dimensions)
            _prefetch_queries(ahead, request, sample.nearest(sample.center(request.vectors)), where, limit)

    reader.expect(prefetch)
    query = PreparedQuery.read(reader, request.content, request.vectors, request.calibration)
    # Fetches nothing if the sample has not changed.
    reader.expect(lambda ahead: _prefetch_queries(ahead, request, query.nearest, where, limit))
    nodes = _find_nodes(reader, query, where, request.period, limit)
    if len(nodes) < request.limit:
        # If the queries find too few memories, add others that pass the filter.
        nodes = np.union1d(nodes, reader.window(where, limit=request.limit))
    if not len(nodes):
        return None
    candidates = query.collect(reader, nodes)
    chosen = ranking.top_k(text_evidence(candidates.signals), max(_MIN_FOLLOWED, request.limit))
    followed = nodes[chosen]
    table = links_as_of(reader.links(followed, "both", _FOLLOWED_LINK_TYPES), request.as_of)
    chains = Successors(reader, request.as_of)
    newest = chains.newest(followed, table).values()
    neighbours = TemporalNeighbours(nodes, *reader.find_temporal_neighbours(nodes, _MAX_NEIGHBOUR_GAP_MS))
    further = np.union1d(_linked_nodes(table, newest, candidates, request), neighbours.around(chosen, candidates))
    if len(further):
        reader.expect(
            lambda ahead: (ahead.word_scores(terms, further), ahead.links(further, "in", {LinkType.EVOLUTION})),
        )
        further = _filter_nodes(reader, further, nodes, where)
    if len(further):
        candidates = candidates.joined(query.collect(reader, further))
    return CandidateSet(
        request=request,
        query=query,
        candidates=candidates,
        table=table,
        chains=chains,
        neighbours=neighbours,
    )


def _prefetch_queries(
    ahead: Prefetch, request: SearchRequest, vectors: Sequence[Vectors], where: EngineFilter, limit: int
) -> None:
    """Prefetch the queries for candidates and their data."""
    terms, period = query_terms(request.content), request.period
    none = np.zeros(0, np.int64)
    for one in (where, *([] if period is None else [narrow_filter(where, period.since, period.until)])):
        for vector in vectors:
            ahead.nearest(vector, limit, one)
        ahead.words(terms, limit, one)
        if one is not where:
            ahead.window(one, limit=limit)
    ahead.links(none)
    ahead.find_temporal_neighbours(none, _MAX_NEIGHBOUR_GAP_MS)


def narrow_filter(where: EngineFilter, since: datetime | None, until: datetime | None) -> EngineFilter:
    """Return the filter for memories that also were created in [since, until). None means unbounded."""
    if since is None and until is None:
        return where
    sinces = [moment for moment in (where.since, since) if moment is not None]
    untils = [moment for moment in (where.until, until) if moment is not None]
    return attrs.evolve(where, since=max(sinces, default=None), until=min(untils, default=None))


def _find_nodes(reader: Reader, query: PreparedQuery, where: EngineFilter, period: Period | None, limit: int) -> Nodes:
    """Find candidates by vector, keywords and period."""
    found = []
    for one in (where, *([] if period is None else [narrow_filter(where, period.since, period.until)])):
        found += [reader.nearest(vector, limit, one).nodes for vector in query.nearest]
        found.append(reader.words(query.terms, limit, one).nodes)
        if one is not where:
            found.append(reader.window(one, limit=limit))
    return np.unique(np.concatenate(found)).astype(np.int64)


def _linked_nodes(table: LinkTable, newest: Collection[int], known: Candidates, request: SearchRequest) -> Nodes:
    """
    Return the linked nodes and current successors that are not in *known* yet.

    If there are very many linked nodes, only those with the strongest links are returned.
    """
    leaders = np.array(sorted(set(newest)), np.int64)
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
    facts = reader.facts(nodes)
    passes = created_between(facts, where.since, where.until)
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


def created_between(facts: NodeAttributes, since: datetime | None, until: datetime | None) -> NDArray[np.bool_]:
    """Return a mask of the memories created in [since, until). None means unbounded."""
    inside = np.ones(len(facts.created), np.bool_)
    if since is not None:
        inside &= facts.created >= to_milliseconds(since)
    if until is not None:
        inside &= facts.created < to_milliseconds(until)
    return inside
