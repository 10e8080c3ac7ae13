"""
Link candidates of a memory that is saved, with their features (DESIGN section 6).

Candidates are similar in meaning or words, close in time, or connected by topic, mentions or explicit links.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal.caches import cache_by_text
from mama_structs.memory.embedding.protocol import (
    Calibration,
    cosine_table,
    has_rest,
    nearest_queries,
    shared_norms,
)
from mama_structs.memory.types.duplicates import duplicate_fingerprint
from mama_structs.memory.types.engine import (
    SYSTEM_CREATOR_INDEX,
    EngineFilter,
    Matches,
    NodeAttributes,
    Nodes,
    Prefetch,
    Reader,
    find_positions,
    in_sorted,
    union_nodes,
)
from mama_structs.memory.types.model import LinkType, Memory, MemoryType, to_milliseconds
from mama_structs.memory.types.text_analysis import TextAnalysis, analyse_text, indexed_text, query_terms

Values = NDArray[np.float64]
Terms = Mapping[str, float]
NearestFunction = Callable[[NDArray[np.float32], int, EngineFilter | None], Matches]
"""Replacement for `Reader.nearest`, for callers that query many memories at once."""


# Maximum number of candidates per query. It bounds the cost, because features are computed for every candidate.
_MAX_NEAREST: Final = 32
_MAX_WORD_MATCHES: Final = 24
_MAX_RECENT: Final = 32
# Records are excluded, because a host may write hundreds together, which would crowd out all other memories.
TEMPORAL_LINK_TYPES: Final = frozenset(MemoryType) - {MemoryType.RECORD}
_MAX_SAME_TOPIC: Final = 16
# A topic with more memories than this is too broad to be evidence, so counting stops here.
_MAX_COUNTED_TOPIC_MEMORIES: Final = 64
_MAX_CHAIN_NODES: Final = 32
_MAX_CACHED_TOPICS: Final = 4_096
_MAX_MENTIONS: Final = 8
# Only the first chunks (for cosines) and the first characters (for words) of a long memory are compared.
_MAX_COMPARED_CHUNKS: Final = 4
_MAX_COMPARED_CHARS: Final = 2_000
_MAX_QUERY_WORDS: Final = 16
ONE_HOUR: Final = timedelta(hours=1)
MILLISECOND: Final = timedelta(milliseconds=1)
_QUARTER_HOUR_MS: Final = 15 * 60_000
# The baseline of a store is computed from its sample and this many virtual memories, which follow the embedder's prior.
# The prior assumes that unrelated pairs have calibrated odds of exp(-2), with a standard deviation of 1 / slope.
_PRIOR_SAMPLES: Final = 12
_UNRELATED_LOG_ODDS: Final = 2.0
# Upper bound of the similarity feature, in standard deviations. Larger values only occur for duplicates.
_MAX_COSINE_SPREADS: Final = 8.0
# Number of virtual memories that contain no words. Adding them stabilizes the rarity of words in a small store.
_PRIOR_MEMORIES: Final = 32
# Added to a text's total word rarity (natural logarithm), so that a short text, as weak evidence, gets a lower ratio.
_EXTRA_WORD_WEIGHT: Final = 60.0
# Number of neighbours at which the mutual rank has half of its full weight.
_RANK_HALF_WEIGHT_COUNT: Final = 20
# Number of memories at which recency has half of its full weight.
_RECENCY_HALF_WEIGHT_COUNT: Final = 8
# Assumed number of memories per subject. If a topic has this many other memories, an equal topic counts half.
_TYPICAL_SUBJECT_SIZE: Final = 4
# Expected mutual rank of unrelated memories (the integral of -log from 0 to 1).
_RANDOM_MUTUAL_RANK: Final = 1.0
# Mean mutual rank of the memories of a topic at which an equal topic has its full weight.
_CLOSE_MUTUAL_RANK: Final = 2.5
# Cosines that differ by less are equal except for rounding errors.
_COSINE_TOLERANCE: Final = 1e-6
_NO_NODES: Final[Nodes] = np.zeros(0, np.int64)
_EXPLICIT_TYPES: Final = (LinkType.EVOLUTION, LinkType.IMPLEMENTATION)


@attrs.frozen(kw_only=True)
class LinkFeatures:
    """Features of a new memory paired with each candidate, with one item per candidate."""

    cosine_spreads: Values  # cosine, in standard deviations above the expected cosine of the pair
    # Mutual rank: high if few other memories are closer to either memory of the pair, 0 if many are.
    standing: Values
    # Rarity-weighted ratio of the new memory's words and mentions that the candidate contains, 0 to 1.
    # Topic words are ignored, and the ratio of a short text is reduced.
    words: Values
    # evidence of an equal topic: 0 for different topics, up to 1 for a rare topic whose few memories are similar
    topic: Values
    topics_differ: Values  # 1 if both have topics and these differ, else 0
    # rarity-weighted ratio of one memory's topic words that the other contains, 0 to 1; 0 for equal topics
    naming: Values
    nearness: Values  # closeness in time: 1 for the directly preceding memory if at most 15 minutes old, else lower
    chain: Values  # 1 if a path of explicit links through other memories connects the pair, else 0

    def table(self) -> Values:
        """Return an array of shape (candidates, features), in the order of `FEATURES`."""
        return np.stack([getattr(self, name) for name in FEATURES], axis=1)


FEATURES: Final = tuple(field.name for field in attrs.fields(LinkFeatures))

# Fitted with the default embedder by ``benchmarks/linking.py --fit`` on decisions, chats, long messages and passages.
WEIGHTS: Final = (0.5, 0.2, 62.38, 3.21, -3.16, 1.65, 3.68, 10.81)
"""Weights of `FEATURES` in the log odds that two memories have the same subject."""

BIAS: Final = -5.25
"""Log odds if all features are 0."""


def same_subject_probabilities(
    features: LinkFeatures, weights: Sequence[float] = WEIGHTS, bias: float = BIAS
) -> Values:
    """Return the probability that each candidate has the same subject as the new memory."""
    # Logistic regression. The fit weighted wrong links 2.5 times, so the result underestimates the probability.
    odds = features.table() @ np.asarray(weights, np.float64) + bias
    # This expression equals the logistic function, but does not overflow.
    return 0.5 + 0.5 * np.tanh(0.5 * odds)


@attrs.frozen(kw_only=True)
class LinkCandidates:
    """Link candidates of a new memory with their features, and the memories created in the hour before it."""

    nodes: Nodes
    created: NDArray[np.int64]
    types: NDArray[np.int8]
    cosines: NDArray[np.float32]
    features: LinkFeatures
    # Probability of the same subject.
    probabilities: Values
    have_same_topic: NDArray[np.bool_]
    recent: Nodes


@attrs.frozen(kw_only=True, eq=False)
class PendingLinks:
    """
    A memory to be linked automatically, with the ids that it links explicitly.

    A stored memory has a *node*. A *fresh* memory is part of a batch, and must not be linked to later memories of it.
    """

    memory: Memory
    vectors: NDArray[np.float32]
    explicit: Collection[str] = ()
    node: int | None = None
    fresh: bool = False

    def select_linkable(self, nodes: Nodes, limit: int | None = None) -> Nodes:
        """Return at most *limit* of the *nodes*, without this memory itself and later memories of its batch."""
        if self.node is not None:
            nodes = nodes[nodes < self.node if self.fresh else nodes != self.node]
        return nodes[:limit]


@attrs.frozen(eq=False)
class SimilarityBaseline:
    """Cosine statistics of a store, estimated from its sample and the embedder's prior."""

    memories: int
    sample: NDArray[np.float32]
    shared_dimensions: int
    # Expected cosine of unrelated texts according to the embedder's calibration.
    expected_cosine: float
    spread: float
    # Sums of the sample's vectors, of shape (3, dimensions): the shared dimensions of all vectors in unit length, the
    # vectors with a rest, and those without. Products with these sums are sums of cosines.
    sums: NDArray[np.float32]
    # Shared norms of the sample.
    norms: NDArray[np.float32]
    # Mean cosine of two distinct memories of the store.
    mean_cosine: float = attrs.field(init=False)

    @mean_cosine.default
    def _compute_mean_cosine(self) -> float:
        count = len(self.sample)
        # Equal to the sum of `sum_cosines` of the sample, because vectors without a rest have only shared dimensions.
        shared, rest, no_rest = self.sums
        pairs = float(rest @ rest + no_rest @ (2 * shared - no_rest)) - count
        return float(self.mean(pairs / (count * (count - 1)) if count > 1 else 0.0))

    @classmethod
    def from_reader(cls, reader: Reader, calibration: Calibration, shared_dimensions: int) -> SimilarityBaseline:
        """Compute the baseline from the present sample of a store."""
        sample = reader.sample()
        rest = has_rest(sample, shared_dimensions)
        # One matrix product reads the sample once.
        norms = shared_norms(sample, shared_dimensions)
        weights = np.stack([1 / norms, rest, ~rest]).astype(np.float32)
        sums = weights @ sample
        sums[0, shared_dimensions:] = 0
        strange = calibration.midpoint - _UNRELATED_LOG_ODDS / calibration.slope
        return cls(
            memories=reader.count(),
            sample=sample,
            shared_dimensions=shared_dimensions,
            expected_cosine=strange,
            spread=1 / calibration.slope,
            sums=sums,
            norms=norms,
        )

    def mean(self, cosines: Any) -> Any:
        """Return the weighted average of mean cosines to the sample and the embedder's prior."""
        return (len(self.sample) * cosines + _PRIOR_SAMPLES * self.expected_cosine) / (
            len(self.sample) + _PRIOR_SAMPLES
        )

    def sum_cosines(self, vectors: NDArray[np.float32], norms: NDArray[np.float32]) -> Values:
        """Return the sum of each vector's cosines to the sample, in linear time. *norms* are the shared norms."""
        if not len(vectors) or not len(self.sample):
            return np.zeros(len(vectors))
        shared, rest, no_rest = self.sums @ vectors.T
        if self.sums[2].any():
            rest += no_rest / norms
        sums: Values = np.where(has_rest(vectors, self.shared_dimensions), rest, shared).astype(np.float64)
        return sums

    def baselines(self, vectors: NDArray[np.float32]) -> tuple[Values, Values]:
        """Return the mean and the standard deviation of each vector's cosines to the store."""
        count = len(self.sample)
        own = (
            cosine_table(vectors, self.sample, self.shared_dimensions, norms=(None, self.norms))
            if count
            else np.zeros((len(vectors), 0), np.float32)
        )
        means = self.mean(own.sum(axis=1, dtype=np.float64) / max(count, 1))
        # Sum the squares around the mixed mean, which differs from the mean of the sample.
        squares = np.einsum("ij,ij->i", own, own, dtype=np.float64)
        squares += means * (count * means - 2 * own.sum(axis=1, dtype=np.float64))
        squares += _PRIOR_SAMPLES * (self.spread**2 + np.square(self.expected_cosine - means))
        return means, np.sqrt(squares / (count + _PRIOR_SAMPLES))

    def compute_weight(self, half: int) -> float:
        """Return a weight that grows from 0 to 1 with the store, and is 0.5 at *half* memories."""
        return self.memories / (self.memories + half)


def collect_link_candidates(
    reader: Reader,
    memory: Memory,
    vectors: NDArray[np.float32],
    *,
    calibration: Calibration,
    shared_dimensions: int,
    explicit: Collection[str] = (),
    nearest: NearestFunction | None = None,
) -> LinkCandidates:
    """Return the link candidates of a memory among the older ones, with their features."""
    asked = PendingLinks(memory=memory, vectors=vectors, explicit=explicit, node=reader.find(memory.id))
    usual = SimilarityBaseline.from_reader(reader, calibration, shared_dimensions)
    return collect_many_link_candidates(reader, [asked], usual, nearest=nearest)[0]


def collect_many_link_candidates(
    reader: Reader,
    asked: Sequence[PendingLinks],
    usual: SimilarityBaseline,
    *,
    topic_window: float = 0.0,
    nearest: NearestFunction | None = None,
) -> list[LinkCandidates]:
    """
    Return the link candidates of each memory among the older ones, with their features.

    Each kind of data is read for all memories together.
    """
    if not asked:
        return []
    # A query may find memories of the same batch that must not be linked, so ask for more candidates.
    spare = min(len(asked), _MAX_NEAREST)
    sought = _LinkQuery.from_batch(reader, asked, topic_window)
    queries = [_nearest_vectors(one, usual) for one in asked]
    reader.expect(lambda ahead: _prefetch_queries(ahead, sought, list(itertools.chain(*queries)), spare))
    near = _nearest_nodes(reader, asked, queries, spare, nearest)
    words = reader.words_many([one.words for one in sought], _MAX_WORD_MATCHES + spare)
    found = [_LinkEvidence.from_query(reader, *parts, spare) for parts in zip(sought, near, words, strict=True)]
    known = _CandidateFacts.from_nodes(reader, union_nodes([one.nodes for one in found]), usual)
    return _CandidateTable.from_evidence(found, known, usual).split(reader)


def _newer_nodes(reader: Reader, asked: Sequence[PendingLinks]) -> Nodes:
    """Return up to ``len(asked) + 1`` memories that are newer than the oldest one in *asked*."""
    return reader.window(_after_oldest(asked), limit=len(asked) + 1)


def _after_oldest(asked: Sequence[PendingLinks]) -> EngineFilter:
    """Return the filter for memories that are newer than the oldest one in *asked*."""
    first = min((one.memory.created_at for one in asked), default=None)
    return EngineFilter(since=first and first + MILLISECOND)


def _nearest_vectors(asked: PendingLinks, usual: SimilarityBaseline) -> list[NDArray[np.float32]]:
    """Return the vectors whose nearest neighbours are candidates."""
    pieces = asked.vectors[:_MAX_COMPARED_CHUNKS]
    return [one for piece in pieces for one in nearest_queries(piece, usual.sample, usual.shared_dimensions)]


def _nearest_nodes(
    reader: Reader,
    asked: Sequence[PendingLinks],
    queries: Sequence[Sequence[NDArray[np.float32]]],
    spare: int,
    nearest: NearestFunction | None,
) -> Iterator[list[Nodes]]:
    """Yield for each memory the nearest nodes of each of its query vectors."""
    newer = _newer_nodes(reader, asked)
    fresh = np.array(sorted(one.node for one in asked if one.fresh and one.node is not None), np.int64)
    # If the new memories are the newest of the store, as usual, the cheaper query without a time filter is sufficient.
    are_newest = bool(in_sorted(newer, fresh).all())
    pieces = list(itertools.chain(*queries))
    if are_newest and nearest is None:
        matches = iter(reader.nearest_many(np.stack(pieces), _MAX_NEAREST + spare) if pieces else [])
    else:
        wheres = [
            None if are_newest else EngineFilter(until=one.memory.created_at + MILLISECOND)
            for one, own in zip(asked, queries, strict=True)
            for _ in own
        ]
        ask = nearest or reader.nearest
        matches = (ask(piece, _MAX_NEAREST + spare, where) for piece, where in zip(pieces, wheres, strict=True))
    for one, own in zip(asked, queries, strict=True):
        yield [one.select_linkable(next(matches).nodes, _MAX_NEAREST) for _ in own]


@attrs.frozen(eq=False, kw_only=True)
class _CandidateFacts:
    """Attributes and vectors of the candidates of all memories in a batch."""

    nodes: Nodes
    facts: NodeAttributes
    # All vectors of all nodes.
    vectors: NDArray[np.float32]
    norms: NDArray[np.float32]
    # Index of each node's first vector in `vectors`.
    starts: Nodes
    # Number of vectors of each node.
    counts: Nodes
    # First vector of each node.
    first: NDArray[np.float32]
    first_norms: NDArray[np.float32]
    shared_dimensions: int
    # Mean cosine of each first vector to the memories of the store.
    usual: Values
    # Rarity of each word of a topic, by topic number.
    topics: Mapping[int, Terms]
    # Numbers of the topics that contain a word, by word.
    topics_by_word: Mapping[str, Sequence[int]]

    @classmethod
    def from_nodes(cls, reader: Reader, nodes: Nodes, usual: SimilarityBaseline) -> _CandidateFacts:
        """Read the attributes of *nodes*, which must be sorted."""
        facts = reader.facts(nodes)
        vectors, counts = reader.pieces(nodes)
        starts = np.cumsum(counts) - counts
        # Norms are computed once, because each memory compares some of these vectors.
        norms = shared_norms(vectors, usual.shared_dimensions)
        first, first_norms = vectors, norms
        if (counts != 1).any():
            first, first_norms = np.zeros((len(nodes), vectors.shape[1]), np.float32), np.ones(len(nodes), np.float32)
            first[counts > 0], first_norms[counts > 0] = vectors[starts[counts > 0]], norms[starts[counts > 0]]
        means = usual.mean(usual.sum_cosines(first, first_norms) / max(len(usual.sample), 1))
        numbers, at = np.unique(facts.topics, return_index=True)
        named = numbers >= 0
        words = [extract_topic_terms(topic) for topic in reader.topics(nodes[at[named]])]
        rarity = reader.rarity(dict.fromkeys(itertools.chain(*words), 1.0))
        topics: dict[int, Terms] = {}
        topics_of: dict[str, list[int]] = {}
        for number, terms in zip(numbers[named].tolist(), words, strict=True):
            topics[number] = {term: rarity[term] for term in terms}
            for term in terms:
                topics_of.setdefault(term, []).append(number)
        return cls(
            nodes=nodes,
            facts=facts,
            vectors=vectors,
            norms=norms,
            starts=starts,
            counts=counts,
            first=first,
            first_norms=first_norms,
            shared_dimensions=usual.shared_dimensions,
            usual=means,
            topics=topics,
            topics_by_word=topics_of,
        )

    def cosines(self, pieces: NDArray[np.float32], places: Nodes) -> NDArray[np.float32]:
        """
        Return the highest cosine between the vectors *pieces* and the vectors of each node.

        *places* are the indexes of the nodes in `nodes`. The value is 0 for nodes without vectors.
        """
        counts = self.counts[places]
        best = np.zeros(len(places), np.float32)
        if not len(pieces) or not counts.any():
            return best
        if counts.max() == 1:
            own = places[counts > 0]
            table = cosine_table(self.first[own], pieces, self.shared_dimensions, norms=(self.first_norms[own], None))
            best[counts > 0] = table.max(axis=1)
            return best
        rows = np.repeat(self.starts[places] - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
        table = cosine_table(self.vectors[rows], pieces, self.shared_dimensions, norms=(self.norms[rows], None))
        scores = table.max(axis=1)
        best[counts > 0] = np.maximum.reduceat(scores, (np.cumsum(counts) - counts)[counts > 0])
        return best

    def topic_of(self, nodes: Nodes) -> int:
        """Return the number of the topic that *nodes* have in common, or -1 without nodes."""
        return int(self.facts.topics[self.nodes.searchsorted(nodes[0])]) if len(nodes) else -1

    def topic_places(self, places: Nodes) -> Nodes:
        """Return the column of the topic of each node in the result of `naming`. *places* are as in `cosines`."""
        numbers = np.fromiter(self.topics, np.int64, len(self.topics))
        return 1 + find_positions(self.facts.topics[places].astype(np.int64), numbers)

    def naming(self, term_rarities: Sequence[Terms]) -> Values:
        """
        Return the rarity-weighted ratio of each topic's words that occur in the terms of each memory.

        The result has the shape (memories, topics + 1). Its first column is 0, for memories without a topic.
        """
        ratios = np.zeros((len(term_rarities), len(self.topics) + 1))
        columns = {number: column for column, number in enumerate(self.topics, 1)}
        for row, terms in zip(ratios, term_rarities, strict=True):
            for term in terms.keys() & self.topics_by_word.keys():
                for number in self.topics_by_word[term]:
                    row[columns[number]] += self.topics[number][term]
        wholes = np.array([0.0, *(sum(own.values()) for own in self.topics.values())])
        shares: Values = np.divide(ratios, wholes, out=np.zeros_like(ratios), where=wholes > 0)
        return shares


@attrs.frozen(kw_only=True, eq=False)
class _LinkQuery:
    """Candidate queries of a memory, computed from its text and the rarity of its words."""

    asked: PendingLinks
    total: int
    # Rarity of each of the memory's terms.
    term_rarity: Terms
    # Query weights with which BM25 scores are based on `term_rarity`.
    weights: Terms
    words: Terms
    recent: EngineFilter
    topic: EngineFilter | None
    decision_filter: EngineFilter | None
    mentions: Sequence[EngineFilter]

    @classmethod
    def from_batch(cls, reader: Reader, asked: Sequence[PendingLinks], topic_window: float) -> list[_LinkQuery]:
        """
        Compute the queries of some memories.

        Decisions on the topic of a decision are candidates if they are at most *topic_window* seconds older.
        """
        # Exclude the topic, which has its own features. Its words would make a broad topic look related.
        analyses = [analyse_text(indexed_text(one.memory, with_topic=False)[:_MAX_COMPARED_CHARS]) for one in asked]
        terms = [analysis.compute_query_terms() for analysis in analyses]
        known = reader.rarity(dict.fromkeys(itertools.chain(*terms), 1.0))
        total = reader.count() + 1
        return [
            cls._from_analysis(
                one,
                analysis,
                {term: known[term] for term in own},
                # Invert the BM25 formula to get the number of other memories with each term, plus 0.5.
                {term: max(total * math.exp(-known[term]) - (one.node is not None), 0.5) for term in own},
                total=total,
                topic_window=topic_window if one.memory.type is MemoryType.DECISION else 0.0,
            )
            for one, analysis, own in zip(asked, analyses, terms, strict=True)
        ]

    @classmethod
    def _from_analysis(
        cls,
        asked: PendingLinks,
        analysis: TextAnalysis,
        known: Terms,
        having: Terms,
        *,
        total: int,
        topic_window: float,
    ) -> _LinkQuery:
        memory, until = asked.memory, asked.memory.created_at + MILLISECOND
        itself = asked.node is not None
        # Without virtual memories, new words would outweigh all others in a small store.
        # Words that no other memory contains are treated like words of one other memory.
        rare = {
            term: math.log((total - itself + _PRIOR_MEMORIES) / max(others, 1.5)) for term, others in having.items()
        }
        decided = None
        if memory.topic is not None and topic_window:
            decided = EngineFilter(
                topic=memory.topic,
                types=frozenset({memory.type}),
                since=memory.created_at - timedelta(seconds=topic_window),
                until=until,
            )
        return cls(
            asked=asked,
            total=total,
            term_rarity=rare,
            weights={term: rare[term] / found for term, found in known.items()},
            words=analysis.compute_query_terms(_rarest_words(analysis, rare, having)),
            recent=EngineFilter(types=TEMPORAL_LINK_TYPES, since=memory.created_at - ONE_HOUR, until=until),
            topic=None if memory.topic is None else EngineFilter(topic=memory.topic, until=until),
            decision_filter=decided,
            mentions=[EngineFilter(mentions=frozenset({one}), until=until) for one in memory.mentions[:_MAX_MENTIONS]],
        )

    def find_same_topic(self, reader: Reader, spare: int) -> tuple[Nodes, int]:
        """
        Return the newest memories and decisions on the memory's topic, and the number of memories on it.

        The number is at most `_MAX_COUNTED_TOPIC_MEMORIES`.
        """
        if self.topic is None:
            return np.zeros(0, np.int64), 0
        having = self.asked.select_linkable(
            reader.window(self.topic, limit=_MAX_COUNTED_TOPIC_MEMORIES + spare), _MAX_COUNTED_TOPIC_MEMORIES
        )
        if self.decision_filter is None:
            return having[:_MAX_SAME_TOPIC], len(having)
        decided = self.asked.select_linkable(
            reader.window(self.decision_filter, limit=_MAX_SAME_TOPIC + spare), _MAX_SAME_TOPIC
        )
        return union_nodes([having[:_MAX_SAME_TOPIC], decided]), len(having)

    def find_same_mentions(self, reader: Reader, spare: int) -> list[tuple[Nodes, float]]:
        """Return, for each mentioned id, the newest memories that mention it, and the id's rarity."""
        itself = self.asked.node is not None
        found = []
        for where in self.mentions:
            having = max(reader.count(where) - itself, 1)
            newest = self.asked.select_linkable(reader.window(where, limit=_MAX_SAME_TOPIC + spare), _MAX_SAME_TOPIC)
            found.append((newest, math.log((self.total - 1 - itself + _PRIOR_MEMORIES + 1) / (having + 0.5))))
        return found


def query_terms_to_prefetch(memory: Memory) -> Terms:
    """Return the terms that candidate queries of the memory will use."""
    analysis = analyse_text(indexed_text(memory, with_topic=False)[:_MAX_COMPARED_CHARS])
    return {**analysis.compute_query_terms(), **extract_topic_terms(memory.topic)}


def _prefetch_queries(
    ahead: Prefetch, sought: Sequence[_LinkQuery], pieces: Sequence[NDArray[np.float32]], spare: int
) -> None:
    """Prefetch the candidate queries of memories, assuming that they are the newest ones."""
    asked = [one.asked for one in sought]
    ahead.window(_after_oldest(asked), limit=len(asked) + 1)
    if pieces:
        ahead.nearest_many(np.stack(pieces), _MAX_NEAREST + spare)
    ahead.duplicates([duplicate_fingerprint(one.memory) for one in asked])
    none = np.zeros(0, np.int64)
    for one in sought:
        ahead.words(one.words, _MAX_WORD_MATCHES + spare)
        ahead.word_scores(one.weights, none)
        ahead.word_scores(extract_topic_terms(one.asked.memory.topic), none)
        ahead.window(one.recent, limit=_MAX_RECENT + spare)
        if one.topic is not None:
            ahead.window(one.topic, limit=_MAX_COUNTED_TOPIC_MEMORIES + spare)
        if one.decision_filter is not None:
            ahead.window(one.decision_filter, limit=_MAX_SAME_TOPIC + spare)
        for where in one.mentions:
            ahead.count(where)
            ahead.window(where, limit=_MAX_SAME_TOPIC + spare)
    ahead.find_many([memory_id for one in asked for memory_id in one.explicit])
    ahead.links(none)
    ahead.topics(none)


@attrs.frozen(kw_only=True, eq=False)
class _LinkEvidence:
    """Candidates found for a memory, grouped by query, and the memory's weighted terms."""

    asked: PendingLinks
    nodes: Nodes
    near: Nodes
    recent: Nodes
    topic: Nodes
    topic_count: int
    explicit_nodes: Nodes
    chain: Nodes
    shared: Sequence[tuple[Nodes, float]]
    # Rarity of each of the memory's terms.
    term_rarity: Terms
    # Query weights with which BM25 scores are based on `term_rarity`.
    weights: Terms

    @classmethod
    def from_query(
        cls, reader: Reader, sought: _LinkQuery, near: Sequence[Nodes], matches: Matches, spare: int
    ) -> _LinkEvidence:
        """Run the other candidate queries of a memory, after those by meaning and by words."""
        asked, words = sought.asked, matches.nodes
        recent = reader.window(sought.recent, limit=_MAX_RECENT + spare)
        topic, having_topic = sought.find_same_topic(reader, spare)
        direct = find_nodes(reader, asked.explicit) if asked.explicit else np.zeros(0, np.int64)
        chain = _explicit_chain(reader, direct)
        shared = sought.find_same_mentions(reader, spare)
        recent, words, close = (
            asked.select_linkable(recent, _MAX_RECENT),
            asked.select_linkable(words, _MAX_WORD_MATCHES),
            union_nodes(near),
        )
        found = union_nodes(
            [close, words, recent, topic, asked.select_linkable(chain), *(naming for naming, _ in shared)]
        )
        return cls(
            asked=asked,
            nodes=found,
            near=close,
            recent=recent,
            topic=topic,
            topic_count=having_topic,
            explicit_nodes=direct,
            chain=chain,
            shared=shared,
            term_rarity=sought.term_rarity,
            weights=sought.weights,
        )


@attrs.frozen(kw_only=True, eq=False)
class _CandidateTable:
    """Candidates of all memories of a batch, memory by memory. Each row pairs a memory with an older candidate."""

    evidence: Sequence[_LinkEvidence]
    known: _CandidateFacts
    usual: SimilarityBaseline
    # Number of the memory of each row, as an index of `evidence`.
    owners: Nodes
    nodes: Nodes
    # Index of each candidate in `known.nodes`.
    places: Nodes
    cosines: NDArray[np.float32]
    mutual_ranks: Values

    @classmethod
    def from_evidence(
        cls, evidence: Sequence[_LinkEvidence], known: _CandidateFacts, usual: SimilarityBaseline
    ) -> _CandidateTable:
        """Compute the cosines and ranks of the candidates of each memory, and keep the older ones without a link."""
        sizes = np.array([len(one.nodes) for one in evidence])
        owners, nodes = np.arange(len(evidence)).repeat(sizes), np.concatenate([one.nodes for one in evidence])
        places = known.nodes.searchsorted(nodes)
        cosines, mutual_ranks = np.zeros(len(nodes), np.float32), np.zeros(len(nodes))
        for one, start, size in zip(evidence, (np.cumsum(sizes) - sizes).tolist(), sizes.tolist(), strict=True):
            own = slice(start, start + size)
            cosines[own] = known.cosines(one.asked.vectors[:_MAX_COMPARED_CHUNKS], places[own])
            near = start + one.nodes.searchsorted(one.near)
            mutual_ranks[near] = _mutual_ranks(known, places[near], cosines[near])
        created = np.array([to_milliseconds(one.asked.memory.created_at) for one in evidence])
        kept = known.facts.created[places] <= created[owners]
        kept &= _find_pairs([one.explicit_nodes for one in evidence], owners, nodes) < 0
        return cls(
            evidence=evidence,
            known=known,
            usual=usual,
            owners=owners[kept],
            nodes=nodes[kept],
            places=places[kept],
            cosines=cosines[kept],
            mutual_ranks=mutual_ranks[kept],
        )

    def split(self, reader: Reader) -> list[LinkCandidates]:
        """Return the candidates of each memory with their features."""
        facts, evidence = self.known.facts, self.evidence
        created, types, topics = facts.created[self.places], facts.types[self.places], facts.topics[self.places]
        same = (topics == self._of_owner([self.known.topic_of(one.topic) for one in evidence])) & (topics >= 0)
        near = self._of_owner([len(one.near) for one in evidence])
        words, naming = self._words_and_naming(reader)
        features = LinkFeatures(
            cosine_spreads=self._cosine_spreads(),
            standing=self.mutual_ranks * near / (near + _RANK_HALF_WEIGHT_COUNT),
            words=words,
            topic=self._topic_evidence(same),
            topics_differ=1.0
            * (~same & (topics >= 0) & self._of_owner([one.asked.memory.topic is not None for one in evidence])),
            naming=naming * ~same,
            nearness=self._recencies() * self.usual.compute_weight(_RECENCY_HALF_WEIGHT_COUNT),
            chain=self._contains([one.chain for one in evidence]).astype(np.float64),
        )
        table, probabilities = features.table(), same_subject_probabilities(features)
        bounds = self.owners.searchsorted(np.arange(len(evidence) + 1)).tolist()
        return [
            LinkCandidates(
                nodes=self.nodes[start:end],
                created=created[start:end],
                types=types[start:end],
                cosines=self.cosines[start:end],
                features=LinkFeatures(**dict(zip(FEATURES, table[start:end].T, strict=True))),
                probabilities=probabilities[start:end],
                have_same_topic=same[start:end],
                recent=one.recent,
            )
            for one, (start, end) in zip(evidence, itertools.pairwise(bounds), strict=True)
        ]

    def _of_owner(self, values: Sequence[float]) -> NDArray[Any]:
        """Return the value of each row's memory."""
        return np.array(values)[self.owners]

    def _contains(self, parts: Sequence[Nodes]) -> NDArray[np.bool_]:
        """Return a mask of the rows whose candidate is in the part of their memory."""
        mask: NDArray[np.bool_] = _find_pairs(parts, self.owners, self.nodes) >= 0
        return mask

    def _cosine_spreads(self) -> Values:
        """Return the cosine of each pair, in standard deviations above the expected cosine. It is 0 without vectors."""
        vectors = [one.asked.vectors for one in self.evidence]
        has_vectors = np.array([len(own) > 0 for own in vectors])
        means, spreads = np.zeros(len(vectors)), np.ones(len(vectors))
        if has_vectors.any():
            means[has_vectors], spreads[has_vectors] = self.usual.baselines(
                np.stack([own[0] for own in vectors if len(own)])
            )
        likeness = self.cosines - means[self.owners] - self.known.usual[self.places] + self.usual.mean_cosine
        likeness = np.clip(likeness / spreads[self.owners], -_MAX_COSINE_SPREADS / 2, _MAX_COSINE_SPREADS)
        return np.where(has_vectors[self.owners], likeness, 0.0)

    def _topic_evidence(self, same: NDArray[np.bool_]) -> Values:
        """
        Return how strongly an equal topic indicates an equal subject, 0 to 1.

        It is 0 for different topics, for a broad topic, and for one with dissimilar memories.
        """
        weights = np.zeros(len(self.nodes))
        rows = np.flatnonzero(same)
        for own in np.split(rows, np.flatnonzero(np.diff(self.owners[rows])) + 1) if len(rows) else ():
            count = self.evidence[int(self.owners[own[0]])].topic_count
            newest = own[np.argsort(-self.known.facts.created[self.places[own]], kind="stable")[:_MAX_SAME_TOPIC]]
            mean = float(self.mutual_ranks[newest].mean())
            near = (mean - _RANDOM_MUTUAL_RANK) / (_CLOSE_MUTUAL_RANK - _RANDOM_MUTUAL_RANK)
            rarity = math.log((self.usual.memories + 1) / (count + 1)) / 3
            size = _TYPICAL_SUBJECT_SIZE / (_TYPICAL_SUBJECT_SIZE + count)
            weights[own] = min(max(near, 0.0), 1.0) * min(max(rarity, 0.0), 1.0) * size
        return weights

    def _recencies(self) -> Values:
        """
        Return how close in time each candidate is to the new memory, 0 to 1.

        Memories saved in between reduce the value.
        """
        age = self._of_owner([to_milliseconds(one.asked.memory.created_at) for one in self.evidence])
        age = age - self.known.facts.created[self.places]
        between = _find_pairs([one.recent for one in self.evidence], self.owners, self.nodes)
        between = np.where(between >= 0, between, self._of_owner([len(one.recent) for one in self.evidence]))
        near: Values = np.exp(-np.maximum(age / _QUARTER_HOUR_MS - 1, 0)) / (1 + between)
        return near

    def _words_and_naming(self, reader: Reader) -> tuple[Values, Values]:
        """
        Return two rarity-weighted ratios for each row.

        The first is the ratio of the memory's words that the candidate contains. The second is the ratio of the topic
        words of one of them that the other contains, the larger one of both directions.
        """
        evidence = self.evidence
        parts = np.split(self.nodes, self.owners.searchsorted(np.arange(1, len(evidence))))
        topics = [extract_topic_terms(one.asked.memory.topic) for one in evidence]
        scores = reader.word_scores_many([*(one.weights for one in evidence), *topics], [*parts, *parts])
        words, naming = (
            np.concatenate(some).astype(np.float64) for some in (scores[: len(evidence)], scores[len(evidence) :])
        )
        for at in range(max(len(one.shared) for one in evidence)):
            shared = [one.shared[at] if at < len(one.shared) else (_NO_NODES, 0.0) for one in evidence]
            words += self._of_owner([rarity for _, rarity in shared]) * self._contains([own for own, _ in shared])
        wholes = [sum(one.term_rarity.values()) + sum(rarity for _, rarity in one.shared) for one in evidence]
        rarity = reader.rarity(dict.fromkeys(itertools.chain(*topics), 1.0))
        of_topics = self._of_owner([sum(rarity[term] for term in terms) for terms in topics])
        naming = np.minimum(np.divide(naming, of_topics, out=np.zeros(len(naming)), where=of_topics > 0), 1.0)
        of_candidates = self.known.naming([one.term_rarity for one in evidence])
        return (
            np.minimum(words / (_EXTRA_WORD_WEIGHT + self._of_owner(wholes)), 1.0),
            np.maximum(naming, of_candidates[self.owners, self.known.topic_places(self.places)]),
        )


def _find_pairs(parts: Sequence[Nodes], owners: Nodes, nodes: Nodes) -> Nodes:
    """
    Return for each pair the index of its node in the part of its owner, or -1.

    Pairs must be sorted by owner and node.
    """
    at = np.full(len(nodes), -1)
    lengths = [len(part) for part in parts]
    flat = np.concatenate(parts)
    if not len(flat) or not len(nodes):
        return at
    span = int(max(flat.max(), nodes.max())) + 1
    rows = find_positions(span * np.arange(len(parts)).repeat(lengths) + flat, span * owners + nodes)
    indexes = np.concatenate([np.arange(length) for length in lengths])
    at[rows[rows >= 0]] = indexes[rows >= 0]
    return at


def find_nodes(reader: Reader, ids: Collection[str]) -> Nodes:
    """Return the nodes of the memories with these ids, in order of saving. Skip unknown ids."""
    return np.array(sorted(node for node in reader.find_many(list(set(ids))) if node is not None), np.int64)


def _explicit_chain(reader: Reader, direct: Nodes) -> Nodes:
    """
    Return the nodes connected to *direct* by explicit links, including *direct*.

    They are ordered nearest first, and limited in number.
    """
    seen = front = direct
    while len(front) and len(seen) < _MAX_CHAIN_NODES:
        table = reader.links(front, "both", _EXPLICIT_TYPES)
        kept = table.creators != SYSTEM_CREATOR_INDEX
        front = np.setdiff1d(union_nodes([table.sources[kept], table.targets[kept]]), seen)[
            : _MAX_CHAIN_NODES - len(seen)
        ]
        seen = np.concatenate([seen, front])
    return seen


def _mutual_ranks(known: _CandidateFacts, places: Nodes, cosines: NDArray[np.float32]) -> Values:
    """
    Return the mutual rank of a memory and each of its neighbours, which are given by their *places*.

    It is high if few memories are closer to either memory of the pair.
    """
    # Neighbours of the new memory approximate the neighbours of each candidate, which saves a search per candidate.
    # Ranks are comparable across embedders. The caller reduces their weight if there are few neighbours.
    if not len(places):
        return np.zeros(0)
    vectors, norms = known.first[places], known.first_norms[places]
    least = cosines[:, np.newaxis] + _COSINE_TOLERANCE
    before = len(places) - np.sort(cosines).searchsorted(least[:, 0], side="right")
    others = cosine_table(vectors, vectors, known.shared_dimensions, norms=(norms, norms)) > least
    np.fill_diagonal(others, val=False)
    ranks: Values = np.log1p(before) + np.log1p(others.sum(axis=1))
    return math.log1p(len(places)) - ranks / 2


def _rarest_words(analysis: TextAnalysis, rare: Terms, having: Terms) -> list[str]:
    """
    Return the rarest words of a text that other memories contain.

    Frequent words are skipped, because they take most of the query time and add little.
    """
    ranked = []
    for written, word in analysis.words.items():
        known = [rare[term] for term, _ in word.asked if having[term] > 1]
        if known:
            ranked.append((max(known), written))
    ranked.sort(key=itemgetter(0), reverse=True)
    return [written for _, written in ranked[:_MAX_QUERY_WORDS]]


@cache_by_text(_MAX_CACHED_TOPICS)
def extract_topic_terms(topic: str | None) -> Terms:
    """Return the terms of the words in a topic."""
    return query_terms((topic or "").replace("_", " ").replace("-", " "))
