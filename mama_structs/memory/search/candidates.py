"""
Candidates of a search with their data from the store, as columns with one item per candidate.

Candidates come from the vectors, the words and the requested period. The best of them bring memories that are linked
to them, or that directly precede or follow them in time.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedding.protocol import QueryVectors, Vectors, has_rest
from mama_structs.memory.graph.traversal import Successors, links_as_of
from mama_structs.memory.search import scores as ranking
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
    find_positions,
    in_sorted,
    union_nodes,
)
from mama_structs.memory.types.model import ORIGINS, LinkType, to_milliseconds
from mama_structs.memory.types.text_analysis import detect_scripts

MIN_MATCHES: Final = 48
"""Number of candidates that vectors and words contribute at least, if there are as many memories."""
# Maximum number of matches of a query whose links and neighbours are candidates, unless the limit is larger.
_MAX_FOLLOWED: Final = 16
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
    pieces: Vectors
    """The vectors of all candidates."""
    counts: NDArray[np.int64]
    """The number of vectors of each candidate."""

    def first_vectors(self, positions: IndexArray) -> Vectors:
        """Return the first vector of the candidates at *positions*, zero for a candidate without vectors."""
        first = np.zeros((len(positions), self.pieces.shape[1]), np.float32)
        has = self.counts[positions] > 0
        first[has] = self.pieces[(np.cumsum(self.counts) - self.counts)[positions[has]]]
        return first

    def positions(self, nodes: Nodes) -> IndexArray:
        """Return the indexes of *nodes* among the candidates, or -1 for other nodes."""
        return find_positions(nodes, self.nodes)


@attrs.frozen(eq=False)
class StoreSample:
    """Vectors that are typical of a store, with the sums by which queries are centred."""

    groups: tuple[Vectors, Vectors]
    """Different vectors without a rest, and those with one (`protocol.has_rest`), each of shape (n, dimensions)."""
    sums: tuple[Vectors, Vectors]
    """Sum of the vectors of each group."""
    shared_norm: float
    """Norm of a vector with a rest in the shared dimensions, which is the same for all of them."""

    @classmethod
    def from_vectors(cls, vectors: Vectors, shared_dimensions: int) -> StoreSample:
        """Select at most 511 different vectors of a reader's sample."""
        # A text that was saved many times is not typical.
        first = _find_distinct(vectors)
        rows = vectors[first[:: max(len(first) // _MAX_SAMPLED, 1)]]
        rest, every = has_rest(rows, shared_dimensions), has_rest(vectors, shared_dimensions)
        # Use one row of a group that the selection left out, so that memories of this group are searched, too.
        groups = [rows[rest == group] if (rest == group).any() else vectors[every == group][:1] for group in (0, 1)]
        without, having = (np.ascontiguousarray(group) for group in groups)
        norm = float(np.linalg.norm(having[0, :shared_dimensions])) if len(having) else 1.0
        return cls((without, having), (without.sum(axis=0), having.sum(axis=0)), max(norm, 1e-9))

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
        plain, shared, group = vectors.plain, vectors.shared_dimensions, vectors.has_rest
        count = sum(map(len, self.groups))
        if not count or not plain.any():
            return vectors
        weight = _STORE_MEAN_WEIGHT / count
        same, other = self.sums[group], self.sums[not group]
        if not len(self.groups[not group]):
            centred = plain - weight * same
            return attrs.evolve(vectors, same=centred, other=centred)
        norm = max(float(np.linalg.norm(plain[:shared])), 1e-9) if group else self.shared_norm
        # Vectors whose products with vectors of the other group are comparable to cosines.
        scaled = np.zeros((3, len(plain)), np.float32)
        scaled[:, :shared] = np.stack([plain, same, other])[:, :shared] / norm
        return attrs.evolve(
            vectors,
            same=plain - weight * (same + scaled[2]),
            other=scaled[0] - weight * (scaled[1] + other),
        )

    def nearest(self, centred: QueryVectors) -> Vectors:
        """Return the vectors whose nearest neighbours are candidates: one for each group of vectors in the store."""
        own, others = self.groups[centred.has_rest], self.groups[not centred.has_rest]
        pairs = ((centred.same, own), (centred.other, others))
        return np.stack([vector for vector, rows in pairs if len(rows)] or [centred.same])


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

    nearest: Vectors
    """Vectors whose nearest neighbours are candidates: one for each group of vectors in the store."""
    vectors: QueryVectors
    """Vectors of the query from whose similarities the relevance of a memory is computed."""
    same: Vectors
    """The centred and the adjusted vector for memories of the query's group, of shape (2, dimensions)."""
    other: Vectors
    """The centred and the adjusted vector for memories of the other group, of the same shape."""
    other_shift: float
    """Mean by which centred similarities to memories of the other group exceed those to the query's own group."""
    baseline: CosineBaseline
    """Expected centred similarity in this store."""
    adjusted_baseline: CosineBaseline
    """Expected adjusted similarity in this store."""
    memory_count: int
    """Number of memories in the store."""
    terms: Mapping[str, float]
    scripts: int
    """Scripts of the query (`text_analysis.detect_scripts`)."""
    rarity: float
    """Maximum BM25 score that a memory can have for the query."""

    @classmethod
    def read(cls, reader: Reader, request: SearchRequest) -> PreparedQuery:
        """Read the statistics of a query in this store."""
        vectors, terms, calibration = request.vectors, request.terms, request.calibration
        sample = StoreSample.cached(reader.sample(), vectors.shared_dimensions)
        centred = sample.center(vectors)
        same, other = np.stack([centred.same, vectors.same]), np.stack([centred.other, vectors.other])
        own = _similarities(sample.groups[vectors.has_rest], same)
        others = _similarities(sample.groups[not vectors.has_rest], other)
        shift = _group_shift(own[:, 0], others[:, 0])
        others[:, 0] -= shift
        similarities = np.concatenate([own, others])
        # A query by words alone has the vector zero, to which all memories are as similar as expected.
        is_adjusted = vectors.is_adjusted or not vectors.plain.any()
        return cls(
            nearest=sample.nearest(centred),
            vectors=vectors,
            same=same,
            other=other,
            other_shift=shift,
            baseline=CosineBaseline.from_cosines(
                similarities[:, 0], calibration, is_adjusted=is_adjusted or centred.is_adjusted
            ),
            adjusted_baseline=CosineBaseline.from_cosines(similarities[:, 1], calibration, is_adjusted=is_adjusted),
            memory_count=reader.count(),
            terms=terms,
            scripts=detect_scripts(request.content),
            rarity=sum(rarity * terms.get(term, 0.0) for term, rarity in reader.rarity(terms).items()),
        )

    def collect(self, reader: Reader, nodes: Nodes) -> Candidates:
        """Return *nodes*, which must be ascending, with their signals."""
        facts, (pieces, counts) = reader.facts(nodes), reader.pieces(nodes)
        centred, adjusted = ranking.combine_pieces(self._similarities(pieces), counts).T
        has = counts > 0
        return Candidates(
            nodes,
            facts,
            CandidateSignals(
                nearness=np.where(has, self.baseline(centred), 0.0),
                standings=np.where(has, self.adjusted_baseline(adjusted), 0.0),
                words=reader.word_scores(self.terms, nodes).astype(np.float64),
                lengths=reader.lengths(nodes).astype(np.float64),
                foreign=(facts.scripts & self.scripts == 0) & (facts.scripts != 0) & (self.scripts != 0),
                asking=facts.asking / 100,
            ),
            pieces,
            counts,
        )

    def _similarities(self, pieces: Vectors) -> Vectors:
        """Return the centred and the adjusted similarity to stored vectors, of shape (n, 2)."""
        found = _similarities(pieces, self.same)
        is_other = self.vectors.is_other(pieces)
        if is_other.any():
            found[is_other] = pieces[is_other] @ self.other.T
            # Both groups get the same mean, so that neither language is preferred.
            found[is_other, 0] -= self.other_shift
        return found


def _similarities(pieces: Vectors, vectors: Vectors) -> Vectors:
    """Return the scalar products, of shape (pieces, vectors). An array without pieces may have any dimensions."""
    return pieces @ vectors.T if len(pieces) else np.zeros((0, len(vectors)), np.float32)


def _group_shift(own: Vectors, others: Vectors) -> float:
    """Return the difference between the mean similarities of the groups, less for small groups."""
    fewest = min(len(own), len(others))
    if not fewest:
        return 0.0
    difference = float(others.mean()) - float(own.mean())
    return difference * fewest / (fewest + _HALF_CERTAINTY_COUNT)


@attrs.frozen(eq=False)
class TemporalNeighbours:
    """The nodes created directly before and after each node, or -1 if none was created within an hour."""

    nodes: Nodes
    before: Nodes
    after: Nodes

    def find_positions(self, candidates: Candidates) -> tuple[IndexArray, IndexArray]:
        """Return the positions of the candidates created directly before and after each candidate, or -1 for none."""
        before, after = np.full((2, len(candidates.nodes) + 1), -1, np.intp)
        here, earlier, later = candidates.positions(np.stack([self.nodes, self.before, self.after]))
        for there, one, other in ((earlier, before, after), (later, after, before)):
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
        if query.vectors.is_adjusted:
            cosines += ranking.unrelated_cosine(self.request.calibration)
        return {
            "meaning": self.request.calibration(cosines).astype(np.float64),
            "words": np.clip(signals.words / max(query.rarity, 1e-9), 0.0, 1.0),
        }

    def with_node(self, reader: Reader, node: int) -> CandidateSet:
        """Return the set with a memory added. The memory must pass the search's filters."""
        if node in self.candidates.nodes:
            return self
        nodes = union_nodes([self.candidates.nodes, np.array([node], np.int64)])
        return attrs.evolve(self, candidates=self.query.collect(reader, nodes))


def collect_candidates(reader: Reader, request: SearchRequest) -> CandidateSet | None:
    """Return the candidates of a search with their data, or None if no memory passes the filter."""
    # Include memories that were created exactly at *as_of*.
    where = narrow_filter(request.where, None, None if request.as_of is None else request.as_of + _MILLISECOND)
    where = attrs.evolve(where, valid_at=request.reference_time)
    limit = max(MIN_MATCHES, request.limit)

    def prefetch(ahead: Prefetch) -> None:
        ahead.rarity(request.terms)
        if (known := ahead.sample()) is not None:
            sample = StoreSample.cached(known, request.vectors.shared_dimensions)
            _prefetch_queries(ahead, request, sample.nearest(sample.center(request.vectors)), where, limit)

    reader.expect(prefetch)
    query = PreparedQuery.read(reader, request)
    # Fetches nothing if the sample has not changed.
    reader.expect(lambda ahead: _prefetch_queries(ahead, request, query.nearest, where, limit))
    matches = _find_matches(reader, query, where, request.period, limit)
    nodes = union_nodes(matches)
    if len(nodes) < request.limit:
        # If the queries find too few memories, add others that pass the filter.
        matches.append(reader.window(where, limit=request.limit))
        nodes = union_nodes([nodes, matches[-1]])
    if not len(nodes):
        return None
    most = max(_MAX_FOLLOWED, request.limit)
    followed = union_nodes([found[:most] for found in matches])
    table = links_as_of(reader.links(followed, "both", _FOLLOWED_LINK_TYPES), request.as_of)
    chains = Successors(reader, request.as_of)
    newest = chains.newest(followed, table).values()
    before, after = reader.find_temporal_neighbours(nodes, _MAX_NEIGHBOUR_GAP_MS)
    at = nodes.searchsorted(followed)
    near = union_nodes([before[at], after[at], _linked_nodes(table, newest, nodes, request)])
    further = near[(near >= 0) & ~in_sorted(near, nodes)]
    if len(further):
        reader.expect(
            lambda ahead: (ahead.word_scores(request.terms, further), ahead.links(further, "in", {LinkType.EVOLUTION})),
        )
        further = _filter_nodes(reader, further, nodes, where)
    return CandidateSet(
        request=request,
        query=query,
        candidates=query.collect(reader, union_nodes([nodes, further])),
        table=table,
        chains=chains,
        neighbours=TemporalNeighbours(nodes, before, after),
    )


def _prefetch_queries(
    ahead: Prefetch, request: SearchRequest, vectors: Vectors, where: EngineFilter, limit: int
) -> None:
    """Prefetch the queries for candidates and their data."""
    terms, period = request.terms, request.period
    none = np.zeros(0, np.int64)
    for one in (where, *([] if period is None else [narrow_filter(where, period.since, period.until)])):
        ahead.nearest_many(vectors, limit, one)
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


def _find_matches(
    reader: Reader, query: PreparedQuery, where: EngineFilter, period: Period | None, limit: int
) -> list[Nodes]:
    """Find candidates by vector, keywords and period: several arrays of nodes, best first."""
    found = []
    for one in (where, *([] if period is None else [narrow_filter(where, period.since, period.until)])):
        found += [matches.nodes for matches in reader.nearest_many(query.nearest, limit, one)]
        found.append(reader.words(query.terms, limit, one).nodes)
        if one is not where:
            found.append(reader.window(one, limit=limit))
    return found


def _linked_nodes(table: LinkTable, newest: Collection[int], known: Nodes, request: SearchRequest) -> Nodes:
    """
    Return the current successors, and the linked nodes that are not in *known* yet.

    If there are very many linked nodes, only those with the strongest links are returned.
    """
    leaders = np.fromiter(newest, np.int64)
    ends = np.stack([table.sources, table.targets], axis=1)
    is_new = ~in_sorted(ends, known)
    if np.count_nonzero(is_new) <= _MAX_LINKED:
        return np.concatenate([ends[is_new], leaders])
    order = np.argsort(-table.decayed_confidences(to_milliseconds(request.reference_time)), kind="stable")
    strongest = ends[order][is_new[order]]
    _, first = np.unique(strongest, return_index=True)
    return np.concatenate([strongest[np.sort(first)[:_MAX_LINKED]], leaders])


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
