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


@attrs.frozen(kw_only=True)
class LinkCandidates:
    """Link candidates of a new memory with their features, and the memories created in the hour before it."""

    nodes: Nodes
    created: NDArray[np.int64]
    types: NDArray[np.int8]
    cosines: NDArray[np.float32]
    features: LinkFeatures
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
    # Sums of vectors of the sample. The products with them are the sums of cosines in `sum_cosines`.
    sums: Mapping[str, Values]
    # Mean cosine of two distinct memories of the store.
    mean_cosine: float = attrs.field(init=False)

    @mean_cosine.default
    def _compute_mean_cosine(self) -> float:
        count = len(self.sample)
        pairs = float(self.sum_cosines(self.sample).sum()) - count
        return float(self.mean(pairs / (count * (count - 1)) if count > 1 else 0.0))

    @classmethod
    def from_reader(cls, reader: Reader, calibration: Calibration, shared_dimensions: int) -> SimilarityBaseline:
        """Compute the baseline from the present sample of a store."""
        sample = reader.sample()
        rest = has_rest(sample, shared_dimensions)
        shared = (1 / shared_norms(sample, shared_dimensions)) @ sample
        shared[shared_dimensions:] = 0
        sums = {"rest": sample[rest].sum(axis=0), "shared": shared, "no rest": sample[~rest].sum(axis=0)}
        strange = calibration.midpoint - _UNRELATED_LOG_ODDS / calibration.slope
        return cls(
            memories=reader.count(),
            sample=sample,
            shared_dimensions=shared_dimensions,
            expected_cosine=strange,
            spread=1 / calibration.slope,
            sums={name: total.astype(np.float64) for name, total in sums.items()},
        )

    def mean(self, cosines: Any) -> Any:
        """Return the weighted average of mean cosines to the sample and the embedder's prior."""
        return (len(self.sample) * cosines + _PRIOR_SAMPLES * self.expected_cosine) / (
            len(self.sample) + _PRIOR_SAMPLES
        )

    def sum_cosines(self, vectors: NDArray[np.float32]) -> Values:
        """Return the sum of each vector's cosines to the sample, in linear time."""
        if not len(vectors) or not len(self.sample):
            return np.zeros(len(vectors))
        found: Values = vectors @ self.sums["shared"]
        rest = has_rest(vectors, self.shared_dimensions)
        if rest.any():
            found[rest] = vectors[rest] @ self.sums["rest"]
            own = vectors[rest]
            found[rest] += (own @ self.sums["no rest"]) / shared_norms(own, self.shared_dimensions)
        return found

    def baselines(self, vectors: NDArray[np.float32]) -> tuple[Values, Values]:
        """Return the mean and the standard deviation of each vector's cosines to the store."""
        count = len(self.sample)
        own = (
            cosine_table(vectors, self.sample, self.shared_dimensions)
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
    """Return the link candidates of each memory among the older ones, with their features."""
    if not asked:
        return []
    # A query may find memories of the same batch that must not be linked, so ask for more candidates.
    spare = min(len(asked), _MAX_NEAREST)
    sought = [
        _LinkQuery.from_pending(reader, one, topic_window if one.memory.type is MemoryType.DECISION else 0.0)
        for one in asked
    ]
    queries = [_nearest_vectors(one, usual) for one in asked]
    reader.expect(lambda ahead: _prefetch_queries(ahead, sought, list(itertools.chain(*queries)), spare))
    near = _nearest_nodes(reader, asked, queries, spare, nearest)
    found = [_LinkEvidence.from_query(reader, one, nodes, spare) for one, nodes in zip(sought, near, strict=True)]
    known = _CandidateFacts.from_nodes(reader, union_nodes([one.nodes for one in found]), usual)
    firsts = [one.vectors[0] for one in asked if len(one.vectors)]
    scales = zip(*usual.baselines(np.stack(firsts)), strict=True) if firsts else iter(())
    return [one.candidates(reader, known, usual, next(scales) if len(one.asked.vectors) else None) for one in found]


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


@attrs.frozen(eq=False)
class _CandidateFacts:
    """Attributes and vectors of the candidates of all memories in a batch."""

    nodes: Nodes
    facts: NodeAttributes
    # All vectors of all nodes.
    vectors: NDArray[np.float32]
    # Index of each node's first vector in `vectors`.
    starts: Nodes
    # Number of vectors of each node.
    counts: Nodes
    # First vector of each node.
    first: NDArray[np.float32]
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
        first = np.zeros((len(nodes), vectors.shape[1]), np.float32)
        first[counts > 0] = vectors[starts[counts > 0]]
        means = usual.mean(usual.sum_cosines(first) / max(len(usual.sample), 1))
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
        return cls(nodes, facts, vectors, starts, counts, first, usual.shared_dimensions, means, topics, topics_of)

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
            first = self.first[places[counts > 0]]
            best[counts > 0] = cosine_table(first, pieces, self.shared_dimensions).max(axis=1)
            return best
        rows = np.repeat(self.starts[places] - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
        scores = cosine_table(self.vectors[rows], pieces, self.shared_dimensions).max(axis=1)
        best[counts > 0] = np.maximum.reduceat(scores, (np.cumsum(counts) - counts)[counts > 0])
        return best

    def naming(self, terms: Terms) -> dict[int, float]:
        """
        Return the rarity-weighted ratio of each topic's words that occur in *terms*.

        The keys are topic numbers. Topics without a shared word are left out.
        """
        ratios: dict[int, float] = {}
        for term in terms:
            for number in self.topics_by_word.get(term, ()):
                ratios[number] = ratios.get(number, 0.0) + self.topics[number][term]
        return {
            number: share / whole for number, share in ratios.items() if (whole := sum(self.topics[number].values()))
        }


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
    def from_pending(cls, reader: Reader, asked: PendingLinks, topic_window: float) -> _LinkQuery:
        """
        Compute the queries of a memory.

        Decisions on its topic are candidates if they are at most *topic_window* seconds older.
        """
        memory, until = asked.memory, asked.memory.created_at + MILLISECOND
        # Exclude the topic, which has its own features. Its words would make a broad topic look related.
        analysis = analyse_text(indexed_text(memory, with_topic=False)[:_MAX_COMPARED_CHARS])
        known = reader.rarity(analysis.compute_query_terms())
        itself = asked.node is not None
        total = reader.count() + 1
        # Invert the BM25 formula to get the number of other memories with each term, plus 0.5.
        having = {term: max(total * math.exp(-found) - itself, 0.5) for term, found in known.items()}
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
    def from_query(cls, reader: Reader, sought: _LinkQuery, near: Sequence[Nodes], spare: int) -> _LinkEvidence:
        """Run the candidate queries of a memory."""
        asked = sought.asked
        words = reader.words(sought.words, _MAX_WORD_MATCHES + spare).nodes
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

    def candidates(
        self, reader: Reader, known: _CandidateFacts, usual: SimilarityBaseline, scale: tuple[float, float] | None
    ) -> LinkCandidates:
        """
        Return the older candidates with their features.

        *scale* is the mean and the standard deviation of the memory's cosines to the store.
        """
        memory, created = self.asked.memory, to_milliseconds(self.asked.memory.created_at)
        places = np.searchsorted(known.nodes, self.nodes)
        all_cosines = known.cosines(self.asked.vectors[:_MAX_COMPARED_CHUNKS], places)
        times = known.facts.created[places]
        kept = times <= created
        if len(self.explicit_nodes):
            kept &= ~in_sorted(self.nodes, self.explicit_nodes)
        nodes, cosines, times, at = self.nodes[kept], all_cosines[kept], times[kept], places[kept]
        topics = known.facts.topics[at]
        own = int(known.facts.topics[np.searchsorted(known.nodes, self.topic[0])]) if len(self.topic) else -1
        same = (topics == own) & (topics >= 0)
        close = np.searchsorted(self.nodes, self.near)
        vectors = known.first[places[close]]
        pairs = cosine_table(vectors, vectors, known.shared_dimensions)
        standing = _mutual_ranks(pairs, self.near, all_cosines[close], nodes, cosines)
        likeness = np.zeros(len(nodes))
        if scale is not None:
            mean, spread = scale
            likeness = (cosines - mean - known.usual[at] + usual.mean_cosine) / spread
        features = LinkFeatures(
            cosine_spreads=np.clip(likeness, -_MAX_COSINE_SPREADS / 2, _MAX_COSINE_SPREADS),
            standing=standing * len(self.near) / (len(self.near) + _RANK_HALF_WEIGHT_COUNT),
            words=self._words(reader, nodes),
            topic=same * _topic_evidence(standing[same], times[same], self.topic_count, usual.memories),
            topics_differ=((topics != own) & (topics >= 0) & (memory.topic is not None)).astype(np.float64),
            naming=self._naming(reader, known, nodes, topics) * ~same,
            nearness=_recencies(nodes, times, self.recent, created) * usual.compute_weight(_RECENCY_HALF_WEIGHT_COUNT),
            chain=in_sorted(nodes, np.sort(self.chain)).astype(np.float64),
        )
        return LinkCandidates(
            nodes=nodes,
            created=times,
            types=known.facts.types[at],
            cosines=cosines,
            features=features,
            recent=self.recent,
        )

    def _words(self, reader: Reader, nodes: Nodes) -> Values:
        """Return the rarity-weighted ratio of the memory's words that each candidate contains."""
        whole = _EXTRA_WORD_WEIGHT + sum(self.term_rarity.values()) + sum(rarity for _, rarity in self.shared)
        scores = reader.word_scores(self.weights, nodes).astype(np.float64)
        for having, rarity in self.shared:
            scores += rarity * np.isin(nodes, having)
        return np.minimum(scores / whole, 1.0)

    def _naming(self, reader: Reader, known: _CandidateFacts, nodes: Nodes, topics: NDArray[np.int32]) -> Values:
        """
        Return the ratio of topic words of one memory that occur in the text of the other.

        The larger ratio of both directions counts.
        """
        ratios = np.zeros(len(nodes))
        if self.asked.memory.topic is not None:
            words = extract_topic_terms(self.asked.memory.topic)
            rarity = sum(reader.rarity(words).values())
            if rarity > 0:
                ratios = np.minimum(reader.word_scores(words, nodes) / rarity, 1.0)
        for number, share in known.naming(self.term_rarity).items():
            of_topic = topics == number
            ratios[of_topic] = np.maximum(ratios[of_topic], share)
        return ratios


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


def _mutual_ranks(
    pairs: NDArray[np.float32],
    near: Nodes,
    near_cosines: NDArray[np.float32],
    nodes: Nodes,
    cosines: NDArray[np.float32],
) -> Values:
    """
    Return the mutual rank of each pair, which is high if few memories are closer to either memory of the pair.

    *pairs* has the cosines of the nodes *near* to each other, and *near_cosines* their cosines to the new memory.
    """
    # Neighbours of the new memory approximate the neighbours of each candidate, which saves a search per candidate.
    # Ranks are comparable across embedders. The caller reduces their weight if there are few neighbours.
    standing = np.zeros(len(nodes))
    if not len(near):
        return standing
    close = np.flatnonzero(in_sorted(nodes, near))
    before = len(near) - np.searchsorted(np.sort(near_cosines), cosines[close] + _COSINE_TOLERANCE, side="right")
    # Each row contains the neighbours of one candidate. `near` is sorted, so its nodes can be looked up by bisection.
    own = np.searchsorted(near, nodes[close])
    others = pairs[own] > cosines[close, None] + _COSINE_TOLERANCE
    others[np.arange(len(own)), own] = False
    ranks: Values = np.log1p(before) + np.log1p(others.sum(axis=1))
    standing[close] = math.log1p(len(near)) - ranks / 2
    return standing


def _topic_evidence(standing: Values, times: NDArray[np.int64], topic_count: int, memory_count: int) -> float:
    """
    Return how strongly an equal topic indicates an equal subject, 0 to 1.

    Return 0 for a broad topic, or for one with dissimilar memories.
    """
    if not len(standing):
        return 0.0
    newest = np.argsort(-times, kind="stable")[:_MAX_SAME_TOPIC]
    near = (float(standing[newest].mean()) - _RANDOM_MUTUAL_RANK) / (_CLOSE_MUTUAL_RANK - _RANDOM_MUTUAL_RANK)
    rarity = math.log((memory_count + 1) / (topic_count + 1)) / 3
    return (
        min(max(near, 0.0), 1.0)
        * min(max(rarity, 0.0), 1.0)
        * _TYPICAL_SUBJECT_SIZE
        / (_TYPICAL_SUBJECT_SIZE + topic_count)
    )


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


def extract_topic_terms(topic: str | None) -> Terms:
    """Return the terms of the words in a topic."""
    return query_terms((topic or "").replace("_", " ").replace("-", " "))


def _recencies(nodes: Nodes, times: NDArray[np.int64], recent: Nodes, created: int) -> Values:
    """
    Return how close in time each candidate is to the new memory, 0 to 1.

    Memories saved in between reduce the value.
    """
    age = (created - times).astype(np.float64)
    between = np.full(len(nodes), len(recent))
    kept = np.flatnonzero(in_sorted(recent, nodes))
    between[np.searchsorted(nodes, recent[kept])] = kept
    near: Values = np.exp(-np.maximum(age / _QUARTER_HOUR_MS - 1, 0)) / (1 + between)
    return near
