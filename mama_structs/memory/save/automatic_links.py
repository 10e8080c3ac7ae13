"""
Automatic links of a memory that is saved: a plan over a `Reader` (DESIGN section 6).

Candidates are similar in meaning or words, close in time, or connected by topic, mentions or explicit links.
Features of each pair yield the probability that both memories have the same subject. The most probable candidates
are linked, within the policy's limits. Memories that were saved shortly before get a temporal link.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.types.duplicates import wording
from mama_structs.memory.types.engine import NUMBERS, SYSTEM, Facts, Filter, Matches, Nodes, Prefetch, Reader
from mama_structs.memory.types.model import Link, LinkMetadata, LinkType, Memory, MemoryType, milliseconds, new_link_id
from mama_structs.memory.types.text_analysis import Analysis, analysed, indexed_text, query_terms
from mama_structs.settings import LinkingPolicy

Values = NDArray[np.float64]
Terms = Mapping[str, float]
Nearest = Callable[[NDArray[np.float32], int, Filter | None], Matches]
"""Replacement for `Reader.nearest`, for callers that query many memories at once."""


# Maximum number of candidates per query. Features are computed for all of them.
_NEAR: Final = 32
_WORDS: Final = 24
_RECENT: Final = 32
# Records are excluded: hosts may write hundreds at once, which would crowd out all other memories.
_SAID: Final = frozenset(MemoryType) - {MemoryType.RECORD}
_TOPIC: Final = 16
# A topic with more memories than this is too broad to be evidence, so counting stops here.
_BROAD: Final = 64
_CHAIN: Final = 32
_MENTIONS: Final = 8
# Only the first chunks and characters of a long memory are compared.
_PIECES: Final = 4
_CHARACTERS: Final = 2_000
_RARE: Final = 16
_HOUR: Final = timedelta(hours=1)
_MILLISECOND: Final = timedelta(milliseconds=1)
_QUARTER_MS: Final = 15 * 60_000
# The baseline of a store is computed from its sample and this many virtual memories with the embedder's prior.
# Unrelated pairs have odds of exp(-2) by the calibration, and their spread follows from its slope.
_PRIOR: Final = 12
_STRANGE: Final = 2.0
# Upper bound of the similarity feature, in spreads. Larger values only occur for duplicates.
_MOST_ALIKE: Final = 8.0
# Number of virtual memories without a given word. Without them, words would look rare in a store of two memories.
_OTHERS: Final = 32
# Added to the total word weight (natural logarithms), because the few words of a short text are weak evidence.
_UNSAID: Final = 60.0
# Number of neighbours at which the mutual rank has half of its full weight.
_HALF: Final = 20
# Number of memories at which recency has half of its full weight.
_LAST: Final = 8
# A subject has few memories. With this many others in a topic, half of them are assumed to be on other subjects.
_MATTER: Final = 4
# Mean mutual rank in a random order of any length (the integral of -log from 0 to 1). Related memories have much more.
_RANDOM: Final = 1.0
_CLOSE: Final = 2.5
# Smaller differences of cosines are rounding errors of the summation order.
_EQUAL: Final = 1e-6
_EXPLICIT_TYPES: Final = (LinkType.EVOLUTION, LinkType.IMPLEMENTATION)


@attrs.frozen(kw_only=True)
class LinkFeatures:
    """Features of the pairs of a new memory and each candidate, with one item per candidate."""

    likeness: Values  # cosine, in spreads above the expected cosine of these two memories
    # Mutual rank: 0 if many other memories are closer to one of the pair, higher if few are.
    standing: Values
    # Rarity-weighted ratio of the new memory's words and mentions that the candidate contains, 0 to 1. Short texts are
    # discounted, and topic words are ignored.
    words: Values
    # evidence of an equal topic, 0 to 1: high for a rare topic whose few memories are similar; 0 for other topics
    topic: Values
    elsewhere: Values  # 1 if both have topics and these differ, else 0
    # rarity-weighted ratio of one memory's topic words that the other contains, 0 to 1; 0 for equal topics
    naming: Values
    nearness: Values  # 1 for the previous save if it is at most a quarter of an hour old, decreasing to 0
    chain: Values  # 1 if explicit links connect the new memory and the candidate via others, else 0

    def table(self) -> Values:
        """Return an array of shape (candidates, features), in the order of `FEATURES`."""
        return np.stack([getattr(self, name) for name in FEATURES], axis=1)


FEATURES: Final = tuple(field.name for field in attrs.fields(LinkFeatures))


@attrs.frozen(kw_only=True)
class LinkCandidates:
    """Link candidates of a new memory with their features, and the saves of the hour before."""

    nodes: Nodes
    created: NDArray[np.int64]
    types: NDArray[np.int8]
    cosines: NDArray[np.float32]
    features: LinkFeatures
    recent: Nodes


@attrs.frozen(kw_only=True, eq=False)
class Unlinked:
    """
    A memory to be linked automatically, with the ids that it links explicitly.

    A stored memory has a *node*. A *fresh* one is saved in a batch, and must not be linked to later ones of the batch.
    """

    memory: Memory
    vectors: NDArray[np.float32]
    explicit: Collection[str] = ()
    node: int | None = None
    fresh: bool = False

    def seen(self, nodes: Nodes, limit: int | None = None) -> Nodes:
        """Return the first *limit* of *nodes* to which it may be linked."""
        if self.node is not None:
            nodes = nodes[nodes < self.node if self.fresh else nodes != self.node]
        return nodes[:limit]


@attrs.frozen(eq=False)
class Usual:
    """Baseline of cosines in a store, which a small store mixes with the embedder's prior."""

    memories: int
    sample: NDArray[np.float32]
    centre: Values
    # Expected cosine of unrelated texts according to the embedder's calibration.
    strange: float
    spread: float

    @classmethod
    def of(cls, reader: Reader, calibration: Calibration) -> Usual:
        """Compute the baseline from the present sample of a store."""
        sample = reader.sample()
        centre = sample.mean(axis=0, dtype=np.float64) if len(sample) else np.zeros(sample.shape[1])
        strange = calibration.midpoint - _STRANGE / calibration.slope
        return cls(reader.count(), sample, centre, strange, 1 / calibration.slope)

    def mean(self, cosines: Any) -> Any:
        """Return mean cosines to the sample, mixed with the embedder's prior."""
        return (len(self.sample) * cosines + _PRIOR * self.strange) / (len(self.sample) + _PRIOR)

    def among_all(self) -> float:
        """Return the mean cosine of two distinct memories."""
        count = len(self.sample)
        return float(self.mean((count * float(self.centre @ self.centre) - 1) / (count - 1) if count > 1 else 0.0))

    def scales(self, vectors: NDArray[np.float32]) -> tuple[Values, Values]:
        """Return the mean and the spread of each vector's cosines to the store."""
        count = len(self.sample)
        own = vectors @ self.sample.T if count else np.zeros((len(vectors), 0), np.float32)
        means = self.mean(own.sum(axis=1, dtype=np.float64) / max(count, 1))
        # Sum the squares around the mixed mean, which differs from the mean of the sample.
        squares = np.einsum("ij,ij->i", own, own, dtype=np.float64)
        squares += means * (count * means - 2 * own.sum(axis=1, dtype=np.float64))
        squares += _PRIOR * (self.spread**2 + np.square(self.strange - means))
        return means, np.sqrt(squares / (count + _PRIOR))

    def share(self, half: int) -> float:
        """Return the weight of a feature that has half of its weight at *half* memories."""
        return self.memories / (self.memories + half)


def gather(
    reader: Reader,
    memory: Memory,
    vectors: NDArray[np.float32],
    *,
    calibration: Calibration,
    explicit: Collection[str] = (),
    nearest: Nearest | None = None,
) -> LinkCandidates:
    """Return the link candidates of a memory among the older ones, with their features."""
    asked = Unlinked(memory=memory, vectors=vectors, explicit=explicit, node=reader.find(memory.id))
    return gather_many(reader, [asked], Usual.of(reader, calibration), nearest=nearest)[0]


def gather_many(
    reader: Reader,
    asked: Sequence[Unlinked],
    usual: Usual,
    *,
    topic_window: float = 0.0,
    nearest: Nearest | None = None,
) -> list[LinkCandidates]:
    """Return the link candidates of each memory among the older ones, with their features."""
    if not asked:
        return []
    # A batch may yield fresh memories that must not be linked, so query correspondingly more candidates.
    spare = min(len(asked), _NEAR)
    sought = [_Sought.of(reader, one, topic_window if one.memory.type is MemoryType.DECISION else 0.0) for one in asked]
    reader.expect(lambda ahead: _ask_ahead(ahead, sought, spare))
    near = _near_of_each(reader, asked, spare, nearest)
    found = [_Found.of(reader, one, nodes, spare) for one, nodes in zip(sought, near, strict=True)]
    known = _CandidateFacts.of(reader, _joined([one.nodes for one in found]), usual)
    firsts = [one.vectors[0] for one in asked if len(one.vectors)]
    scales = zip(*usual.scales(np.stack(firsts)), strict=True) if firsts else iter(())
    return [one.candidates(reader, known, usual, next(scales) if len(one.asked.vectors) else None) for one in found]


def _newer(reader: Reader, asked: Sequence[Unlinked]) -> Nodes:
    """Return some memories that are newer than the oldest one in *asked*."""
    return reader.window(_after_oldest(asked), limit=len(asked) + 1)


def _after_oldest(asked: Sequence[Unlinked]) -> Filter:
    """Return the filter for memories that are newer than the oldest one in *asked*."""
    first = min((one.memory.created_at for one in asked), default=None)
    return Filter(since=first and first + _MILLISECOND)


def _pieces(asked: Sequence[Unlinked]) -> list[NDArray[np.float32]]:
    return [piece for one in asked for piece in one.vectors[:_PIECES]]


def _near_of_each(
    reader: Reader, asked: Sequence[Unlinked], spare: int, nearest: Nearest | None
) -> Iterator[list[Nodes]]:
    """Yield for each memory the nearest nodes of each of its chunks."""
    newer = _newer(reader, asked)
    fresh = np.array(sorted(one.node for one in asked if one.fresh and one.node is not None), np.int64)
    # An unfiltered query is cheaper, and most memories are the newest ones when they are saved.
    are_newest = bool(among(newer, fresh).all())
    pieces = _pieces(asked)
    if are_newest and nearest is None:
        matches = iter(reader.nearest_many(np.stack(pieces), _NEAR + spare) if pieces else [])
    else:
        wheres = [
            None if are_newest else Filter(until=one.memory.created_at + _MILLISECOND)
            for one in asked
            for _ in one.vectors[:_PIECES]
        ]
        ask = nearest or reader.nearest
        matches = (ask(piece, _NEAR + spare, where) for piece, where in zip(pieces, wheres, strict=True))
    for one in asked:
        yield [one.seen(next(matches).nodes, _NEAR) for _ in one.vectors[:_PIECES]]


@attrs.frozen(eq=False)
class _CandidateFacts:
    """Attributes and vectors of the candidates of all memories in a batch."""

    nodes: Nodes
    facts: Facts
    # All vectors, the index of each node's first vector, their number per node, and the first vector of each node.
    vectors: NDArray[np.float32]
    starts: Nodes
    counts: Nodes
    first: NDArray[np.float32]
    # Mean cosine of each first vector to the memories of the store.
    usual: Values
    # Rarity of the words of each topic, and the topics that contain each word.
    topics: Mapping[int, Terms]
    topics_of: Mapping[str, Sequence[int]]

    @classmethod
    def of(cls, reader: Reader, nodes: Nodes, usual: Usual) -> _CandidateFacts:
        """Read the attributes of *nodes*, which must be sorted."""
        facts = reader.facts(nodes)
        vectors, counts = reader.pieces(nodes)
        starts = np.cumsum(counts) - counts
        first = np.zeros((len(nodes), vectors.shape[1]), np.float32)
        first[counts > 0] = vectors[starts[counts > 0]]
        means = (
            usual.mean(first @ usual.centre) if len(nodes) and len(usual.sample) else np.full(len(nodes), usual.strange)
        )
        numbers, at = np.unique(facts.topics, return_index=True)
        named = numbers >= 0
        words = [topic_terms(topic) for topic in reader.topics(nodes[at[named]])]
        rarity = reader.rarity(dict.fromkeys(itertools.chain(*words), 1.0))
        topics: dict[int, Terms] = {}
        topics_of: dict[str, list[int]] = {}
        for number, terms in zip(numbers[named].tolist(), words, strict=True):
            topics[number] = {term: rarity[term] for term in terms}
            for term in terms:
                topics_of.setdefault(term, []).append(number)
        return cls(nodes, facts, vectors, starts, counts, first, means, topics, topics_of)

    def cosines(self, pieces: NDArray[np.float32], places: Nodes) -> NDArray[np.float32]:
        """
        Return the highest cosine between *pieces* and the vectors of each node at *places*.

        The value is 0 for nodes without vectors.
        """
        counts = self.counts[places]
        best = np.zeros(len(places), np.float32)
        if not len(pieces) or not counts.any():
            return best
        if counts.max() == 1:
            best[counts > 0] = (self.first[places[counts > 0]] @ pieces.T).max(axis=1)
            return best
        rows = np.repeat(self.starts[places] - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
        scores = (self.vectors[rows] @ pieces.T).max(axis=1)
        best[counts > 0] = np.maximum.reduceat(scores, (np.cumsum(counts) - counts)[counts > 0])
        return best

    def naming(self, terms: Terms) -> dict[int, float]:
        """
        Return the topics that share words with *terms*.

        The values are rarity-weighted ratios of shared words of the topic.
        """
        said: dict[int, float] = {}
        for term in terms:
            for number in self.topics_of.get(term, ()):
                said[number] = said.get(number, 0.0) + self.topics[number][term]
        return {number: share / whole for number, share in said.items() if (whole := sum(self.topics[number].values()))}


@attrs.frozen(kw_only=True, eq=False)
class _Sought:
    """Candidate queries of a memory, computed from its text and the rarity of its words."""

    asked: Unlinked
    total: int
    # Rarity of its terms, and query weights that yield scores by this rarity.
    rare: Terms
    weights: Terms
    words: Terms
    recent: Filter
    topic: Filter | None
    decided: Filter | None
    mentions: Sequence[Filter]

    @classmethod
    def of(cls, reader: Reader, asked: Unlinked, topic_window: float) -> _Sought:
        """
        Compute the queries of a memory.

        Decisions on its topic are candidates for *topic_window* seconds.
        """
        memory, until = asked.memory, asked.memory.created_at + _MILLISECOND
        # Exclude the topic, which has its own features: its words would count twice and make a broad topic look
        # related.
        said = analysed(indexed_text(memory, with_topic=False)[:_CHARACTERS])
        known = reader.rarity(said.asked())
        itself = asked.node is not None
        total = reader.count() + 1
        # Invert the BM25 formula: the number of other memories with each term, plus one half.
        having = {term: max(total * math.exp(-found) - itself, 0.5) for term, found in known.items()}
        # Add virtual memories, and treat words that no other memory has like words of one other memory. Otherwise new
        # words would outweigh all others in a small store.
        rare = {term: math.log((total - itself + _OTHERS) / max(others, 1.5)) for term, others in having.items()}
        decided = None
        if memory.topic is not None and topic_window:
            decided = Filter(
                topic=memory.topic,
                types=frozenset({memory.type}),
                since=memory.created_at - timedelta(seconds=topic_window),
                until=until,
            )
        return cls(
            asked=asked,
            total=total,
            rare=rare,
            weights={term: rare[term] / found for term, found in known.items()},
            words=said.asked(_rare_words(said, rare, having)),
            recent=Filter(types=_SAID, since=memory.created_at - _HOUR, until=until),
            topic=None if memory.topic is None else Filter(topic=memory.topic, until=until),
            decided=decided,
            mentions=[Filter(mentions=frozenset({one}), until=until) for one in memory.mentions[:_MENTIONS]],
        )

    def of_topic(self, reader: Reader, spare: int) -> tuple[Nodes, int]:
        """
        Return the newest memories and decisions on the topic, and its number of memories.

        Counting stops at a limit.
        """
        if self.topic is None:
            return np.zeros(0, np.int64), 0
        having = self.asked.seen(reader.window(self.topic, limit=_BROAD + spare), _BROAD)
        if self.decided is None:
            return having[:_TOPIC], len(having)
        decided = self.asked.seen(reader.window(self.decided, limit=_TOPIC + spare), _TOPIC)
        return _joined([having[:_TOPIC], decided]), len(having)

    def mentioned(self, reader: Reader, spare: int) -> list[tuple[Nodes, float]]:
        """Return for each mentioned id the newest memories that mention it, and its rarity."""
        itself = self.asked.node is not None
        found = []
        for where in self.mentions:
            having = max(reader.count(where) - itself, 1)
            newest = self.asked.seen(reader.window(where, limit=_TOPIC + spare), _TOPIC)
            found.append((newest, math.log((self.total - 1 - itself + _OTHERS + 1) / (having + 0.5))))
        return found


def terms_ahead(memory: Memory) -> Terms:
    """Return the terms that candidate queries of the memory will use."""
    said = analysed(indexed_text(memory, with_topic=False)[:_CHARACTERS])
    return {**said.asked(), **topic_terms(memory.topic)}


def _ask_ahead(ahead: Prefetch, sought: Sequence[_Sought], spare: int) -> None:
    """Prefetch the candidate queries of memories, assuming that they are the newest ones."""
    asked = [one.asked for one in sought]
    ahead.window(_after_oldest(asked), limit=len(asked) + 1)
    pieces = _pieces(asked)
    if pieces:
        ahead.nearest_many(np.stack(pieces), _NEAR + spare)
    ahead.alike([wording(one.memory) for one in asked])
    none = np.zeros(0, np.int64)
    for one in sought:
        ahead.words(one.words, _WORDS + spare)
        ahead.word_scores(one.weights, none)
        ahead.word_scores(topic_terms(one.asked.memory.topic), none)
        ahead.window(one.recent, limit=_RECENT + spare)
        if one.topic is not None:
            ahead.window(one.topic, limit=_BROAD + spare)
        if one.decided is not None:
            ahead.window(one.decided, limit=_TOPIC + spare)
        for where in one.mentions:
            ahead.count(where)
            ahead.window(where, limit=_TOPIC + spare)
    ahead.find_many([memory_id for one in asked for memory_id in one.explicit])
    ahead.links(none)
    ahead.topics(none)


@attrs.frozen(kw_only=True, eq=False)
class _Found:
    """Candidates found for a memory, per query, and its weighted terms."""

    asked: Unlinked
    nodes: Nodes
    near: Nodes
    recent: Nodes
    topic: Nodes
    having_topic: int
    direct: Nodes
    chain: Nodes
    shared: Sequence[tuple[Nodes, float]]
    # Rarity of its terms, and query weights that yield scores by this rarity.
    rare: Terms
    weights: Terms

    @classmethod
    def of(cls, reader: Reader, sought: _Sought, near: Sequence[Nodes], spare: int) -> _Found:
        """Run the candidate queries of a memory."""
        asked = sought.asked
        words = reader.words(sought.words, _WORDS + spare).nodes
        recent = reader.window(sought.recent, limit=_RECENT + spare)
        topic, having_topic = sought.of_topic(reader, spare)
        direct = nodes_of(reader, asked.explicit) if asked.explicit else np.zeros(0, np.int64)
        chain = _chain(reader, direct)
        shared = sought.mentioned(reader, spare)
        recent, words, close = asked.seen(recent, _RECENT), asked.seen(words, _WORDS), _joined(near)
        found = _joined([close, words, recent, topic, asked.seen(chain), *(naming for naming, _ in shared)])
        return cls(
            asked=asked,
            nodes=found,
            near=close,
            recent=recent,
            topic=topic,
            having_topic=having_topic,
            direct=direct,
            chain=chain,
            shared=shared,
            rare=sought.rare,
            weights=sought.weights,
        )

    def candidates(
        self, reader: Reader, known: _CandidateFacts, usual: Usual, scale: tuple[float, float] | None
    ) -> LinkCandidates:
        """
        Return the older candidates with their features.

        *scale* is mean and spread of the memory's own cosines.
        """
        memory, created = self.asked.memory, milliseconds(self.asked.memory.created_at)
        places = np.searchsorted(known.nodes, self.nodes)
        all_cosines = known.cosines(self.asked.vectors[:_PIECES], places)
        times = known.facts.created[places]
        kept = times <= created
        if len(self.direct):
            kept &= ~among(self.nodes, self.direct)
        nodes, cosines, times, at = self.nodes[kept], all_cosines[kept], times[kept], places[kept]
        topics = known.facts.topics[at]
        own = int(known.facts.topics[np.searchsorted(known.nodes, self.topic[0])]) if len(self.topic) else -1
        same = (topics == own) & (topics >= 0)
        close = np.searchsorted(self.nodes, self.near)
        standing = _standing(known.first[places[close]], self.near, all_cosines[close], nodes, cosines)
        likeness = np.zeros(len(nodes))
        if scale is not None:
            mean, spread = scale
            likeness = (cosines - mean - known.usual[at] + usual.among_all()) / spread
        features = LinkFeatures(
            likeness=np.clip(likeness, -_MOST_ALIKE / 2, _MOST_ALIKE),
            standing=standing * len(self.near) / (len(self.near) + _HALF),
            words=self._words(reader, nodes),
            topic=same * _telling(standing[same], times[same], self.having_topic, usual.memories),
            elsewhere=((topics != own) & (topics >= 0) & (memory.topic is not None)).astype(np.float64),
            naming=self._naming(reader, known, nodes, topics) * ~same,
            nearness=_nearness(nodes, times, self.recent, created) * usual.share(_LAST),
            chain=among(nodes, np.sort(self.chain)).astype(np.float64),
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
        whole = _UNSAID + sum(self.rare.values()) + sum(rarity for _, rarity in self.shared)
        scores = reader.word_scores(self.weights, nodes).astype(np.float64)
        for having, rarity in self.shared:
            scores += rarity * np.isin(nodes, having)
        return np.minimum(scores / whole, 1.0)

    def _naming(self, reader: Reader, known: _CandidateFacts, nodes: Nodes, topics: NDArray[np.int32]) -> Values:
        """
        Return the ratio of topic words of one memory that occur in the text of the other.

        The larger ratio of both directions counts.
        """
        said = np.zeros(len(nodes))
        if self.asked.memory.topic is not None:
            words = topic_terms(self.asked.memory.topic)
            rarity = sum(reader.rarity(words).values())
            if rarity > 0:
                said = np.minimum(reader.word_scores(words, nodes) / rarity, 1.0)
        for number, share in known.naming(self.rare).items():
            of_topic = topics == number
            said[of_topic] = np.maximum(said[of_topic], share)
        return said


def nodes_of(reader: Reader, ids: Collection[str]) -> Nodes:
    """Return the nodes of the existing memories, in order of saving."""
    return np.array(sorted(node for node in reader.find_many(list(set(ids))) if node is not None), np.int64)


def _joined(parts: Iterable[Nodes]) -> Nodes:
    """Return the sorted union of several arrays of nodes."""
    nodes = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
    # For some hundred nodes, this takes a tenth of the time of `np.unique`.
    is_first = np.ones(len(nodes), np.bool_)
    np.not_equal(nodes[1:], nodes[:-1], out=is_first[1:])
    return nodes[is_first]


def among(nodes: Nodes, others: Nodes) -> NDArray[np.bool_]:
    """Return a mask of the *nodes* that occur in *others*, which must be sorted."""
    if not len(others):
        return np.zeros(len(nodes), np.bool_)
    same: NDArray[np.bool_] = others[np.minimum(np.searchsorted(others, nodes), len(others) - 1)] == nodes
    return same


def _chain(reader: Reader, direct: Nodes) -> Nodes:
    """
    Return the nodes connected to *direct* by explicit links, including *direct*.

    They are ordered nearest first, and limited in number.
    """
    seen = front = direct
    while len(front) and len(seen) < _CHAIN:
        table = reader.links(front, "both", _EXPLICIT_TYPES)
        kept = table.creators != SYSTEM
        front = np.setdiff1d(_joined([table.sources[kept], table.targets[kept]]), seen)[: _CHAIN - len(seen)]
        seen = np.concatenate([seen, front])
    return seen


def _standing(
    vectors: NDArray[np.float32],
    near: Nodes,
    near_cosines: NDArray[np.float32],
    nodes: Nodes,
    cosines: NDArray[np.float32],
) -> Values:
    """Return the mutual rank of each pair: few other memories are closer to either of them."""
    # Neighbours of the new memory approximate the neighbours of each candidate, which saves a search per candidate.
    # Ranks are comparable across embedders, but have little meaning for few neighbours.
    standing = np.zeros(len(nodes))
    if not len(near):
        return standing
    close = np.flatnonzero(among(nodes, near))
    before = len(near) - np.searchsorted(np.sort(near_cosines), cosines[close] + _EQUAL, side="right")
    # Each row contains the neighbours of one candidate. `near` is sorted, so its nodes can be looked up by bisection.
    own = np.searchsorted(near, nodes[close])
    others = vectors[own] @ vectors.T > cosines[close, None] + _EQUAL
    others[np.arange(len(own)), own] = False
    ranks: Values = np.log1p(before) + np.log1p(others.sum(axis=1))
    standing[close] = math.log1p(len(near)) - ranks / 2
    return standing


def _telling(standing: Values, times: NDArray[np.int64], having: int, total: int) -> float:
    """
    Return how much evidence an equal topic is, 0 to 1.

    A broad topic, or one with dissimilar memories, is none.
    """
    if not len(standing):
        return 0.0
    newest = np.argsort(-times, kind="stable")[:_TOPIC]
    near = (float(standing[newest].mean()) - _RANDOM) / (_CLOSE - _RANDOM)
    rarity = math.log((total + 1) / (having + 1)) / 3
    return min(max(near, 0.0), 1.0) * min(max(rarity, 0.0), 1.0) * _MATTER / (_MATTER + having)


def _rare_words(said: Analysis, rare: Terms, having: Terms) -> list[str]:
    """
    Return the rarest words of a text that other memories contain.

    Frequent words cost most time and add little.
    """
    ranked = []
    for written, word in said.words.items():
        known = [rare[term] for term, _ in word.asked if having[term] > 1]
        if known:
            ranked.append((max(known), written))
    ranked.sort(key=itemgetter(0), reverse=True)
    return [written for _, written in ranked[:_RARE]]


def topic_terms(topic: str | None) -> Terms:
    """Return the terms of the words in a topic."""
    return query_terms((topic or "").replace("_", " ").replace("-", " "))


def _nearness(nodes: Nodes, times: NDArray[np.int64], recent: Nodes, created: int) -> Values:
    """Return how close in time each candidate is, 0 to 1. Saves in between reduce the value."""
    age = (created - times).astype(np.float64)
    between = np.full(len(nodes), len(recent))
    kept = np.flatnonzero(among(recent, nodes))
    between[np.searchsorted(nodes, recent[kept])] = kept
    near: Values = np.exp(-np.maximum(age / _QUARTER_MS - 1, 0)) / (1 + between)
    return near


RELATED: Final = "related_to"
SAME_TOPIC: Final = "same_topic"
CLOSE_IN_TIME: Final = "close_in_time"
"""Relationship words of automatic links, one for each reason."""

# Fitted to decisions with topics of all kinds, chats, long messages and passages by ``benchmarks/linking.py --fit``
# with the default embedder.
WEIGHTS: Final = (0.5, 0.2, 62.38, 3.21, -3.16, 1.65, 3.68, 10.81)
"""Weights of `FEATURES` in the log odds that two memories have the same subject."""

BIAS: Final = -5.25
"""Log odds if all features are 0."""

_BEFORE: Final = 48
# Minimum probability for links by an equal topic. Without it, all memories of a broad topic would be linked.
_LIKELY: Final = 0.75


@attrs.frozen(kw_only=True)
class Linking:
    """Link policy, calibration of the embedder, and whether conflicts are detected."""

    policy: LinkingPolicy
    calibration: Calibration
    # False if no caller receives the result, for example in an import.
    detects_conflicts: bool = True


@attrs.frozen
class LinkChoice:
    """A link to create. *similarity* is the cosine, or None if the link is not based on it."""

    node: int
    link_type: LinkType
    relationship: str
    confidence: float
    similarity: float | None = None


def candidates_of(
    reader: Reader, asked: Sequence[Unlinked], linking: Linking, usual: Usual
) -> dict[Unlinked, LinkCandidates]:
    """
    Return the candidates of those memories that the policy links by similarity.

    The arguments are those of `automatic_links`.
    """
    policy = linking.policy
    meant = [one for one in asked if policy.max_semantic and one.memory.type is not MemoryType.CHECKPOINT]
    return dict(zip(meant, gather_many(reader, meant, usual, topic_window=policy.topic_window), strict=True))


def automatic_links(
    reader: Reader,
    asked: Sequence[Unlinked],
    linking: Linking,
    usual: Usual,
    *,
    found: Mapping[Unlinked, LinkCandidates] | None = None,
) -> list[list[Link]]:
    """
    Return the automatic links of each memory to older ones, semantic links first.

    A memory gets at most one link to each older memory.

    Args:
        reader: Store to read.
        asked: Memories that are saved together, in the order of saving.
        linking: Link policy.
        usual: Baseline before they were saved.
        found: Result of `candidates_of`, if it was already computed.

    """
    policy = linking.policy
    candidates = candidates_of(reader, asked, linking, usual) if found is None else found
    likely = [_likely(one.memory, candidates[one], policy) if one in candidates else None for one in asked]
    shortly = [_shortly(one, policy) for one in asked if one not in candidates]
    spare = len(asked)
    reader.expect(
        lambda ahead: [
            (ahead.window(one[0], limit=one[1] + spare), ahead.links(np.zeros(0, np.int64)))
            for one in shortly
            if one is not None
        ]
    )
    before = [_before(reader, one, candidates.get(one), policy, spare=spare) for one in asked]
    taking = _Taking(reader, [*before, *(one.nodes for one in likely if one is not None)], policy)
    chosen = []
    for one, matter, earlier in zip(asked, likely, before, strict=True):
        semantic = [] if matter is None else _semantic(matter, taking, policy)
        covered = {*(choice.node for choice in semantic), *nodes_of(reader, one.explicit).tolist()}
        free = [node for node in earlier[taking.free(earlier)].tolist() if node not in covered]
        temporal = _temporal(reader, one.memory, np.array(free, np.int64), policy) if free else []
        taking.give([*semantic, *temporal])
        chosen.append([*semantic, *temporal])
    ids = iter(reader.ids([choice.node for some in chosen for choice in some]))
    return [
        [
            Link(
                id=new_link_id(),
                from_id=one.memory.id,
                to_id=next(ids),
                link_type=choice.link_type,
                confidence=choice.confidence,
                created_by="system",
                metadata=LinkMetadata(original_relationship=choice.relationship, similarity=choice.similarity),
                created_at=one.memory.created_at,
            )
            for choice in some
        ]
        for one, some in zip(asked, chosen, strict=True)
    ]


class _Taking:
    """Counts the automatic links that end at each node, to enforce the policy's limit."""

    def __init__(self, reader: Reader, parts: Iterable[Nodes], policy: LinkingPolicy) -> None:
        self._nodes = _joined(parts)
        table = reader.links(self._nodes, "in")
        targets = np.sort(table.targets[table.creators == SYSTEM])
        self._taken = np.searchsorted(targets, self._nodes, side="right") - np.searchsorted(targets, self._nodes)
        self._most = policy.max_incoming

    def free(self, nodes: Nodes) -> NDArray[np.bool_]:
        """Return a mask of the *nodes* that may receive another link."""
        free: NDArray[np.bool_] = self._taken[np.searchsorted(self._nodes, nodes)] < self._most
        return free

    def give(self, choices: Iterable[LinkChoice]) -> None:
        """Count links that will be created."""
        for choice in choices:
            self._taken[np.searchsorted(self._nodes, choice.node)] += 1


def probabilities(features: LinkFeatures, weights: Sequence[float] = WEIGHTS, bias: float = BIAS) -> Values:
    """Return the probability that each candidate has the same subject as the new memory."""
    # Logistic regression. A wrong link weighed two and a half times in the fit, so the values are rather low.
    odds = features.table() @ np.asarray(weights, np.float64) + bias
    # Half a hyperbolic tangent equals the logistic function, but does not overflow.
    return 0.5 + 0.5 * np.tanh(0.5 * odds)


@attrs.frozen(eq=False)
class _Likely:
    """
    Candidates that may be linked, most probable first.

    Candidates that explicit links already reach come last.
    """

    nodes: Nodes
    confidences: Values
    cosines: NDArray[np.float32]
    by_topic: NDArray[np.bool_]


def _likely(memory: Memory, candidates: LinkCandidates, policy: LinkingPolicy) -> _Likely:
    features = candidates.features
    probable = probabilities(features)
    surest = np.where(probable >= policy.threshold, probable, 0.0)
    by_topic = np.zeros(len(surest))
    if policy.topic_window and memory.type is MemoryType.DECISION:
        age = (milliseconds(memory.created_at) - candidates.created) / (1000 * policy.topic_window)
        # Rule 2 of the revised ADR-001 for decisions of one topic within the window: 0.4 + 0.3 * (1 - age / window).
        of_matter = (probable >= min(policy.threshold, _LIKELY)) & (features.topic > 0)
        by_topic[of_matter & (candidates.types == NUMBERS[MemoryType.DECISION]) & (age <= 1)] = 1.0
        by_topic *= 0.4 + 0.3 * (1 - age)
    confidence = np.maximum(surest, by_topic)
    rows = np.flatnonzero((confidence > 0) & (confidence >= policy.minimum))
    nodes = candidates.nodes[rows]
    rows = rows[np.lexsort((-nodes, -candidates.created[rows], -confidence[rows], features.chain[rows] > 0))]
    return _Likely(candidates.nodes[rows], confidence[rows], candidates.cosines[rows], surest[rows] < by_topic[rows])


def _semantic(likely: _Likely, taking: _Taking, policy: LinkingPolicy) -> list[LinkChoice]:
    """Return the association links to create."""
    return [
        LinkChoice(
            int(likely.nodes[at]),
            LinkType.ASSOCIATION,
            SAME_TOPIC if likely.by_topic[at] else RELATED,
            float(likely.confidences[at]),
            float(likely.cosines[at]),
        )
        for at in np.flatnonzero(taking.free(likely.nodes))[: policy.max_semantic].tolist()
    ]


def _before(
    reader: Reader, asked: Unlinked, candidates: LinkCandidates | None, policy: LinkingPolicy, *, spare: int
) -> Nodes:
    """Return the memories that were saved shortly before, newest first."""
    where = _shortly(asked, policy)
    if where is None:
        return np.zeros(0, np.int64)
    if candidates is not None and policy.temporal_window == _HOUR.total_seconds() and not policy.temporal_same_topic:
        return candidates.recent
    return asked.seen(reader.window(where[0], limit=where[1] + spare), where[1])


def _shortly(asked: Unlinked, policy: LinkingPolicy) -> tuple[Filter, int] | None:
    """
    Return the filter and the limit for memories that were saved shortly before.

    Returns None if the policy allows no temporal links.
    """
    memory, same_topic = asked.memory, policy.temporal_same_topic
    if not policy.max_temporal or not policy.temporal_window or (same_topic and memory.topic is None):
        return None
    where = Filter(
        types=_SAID,
        topic=memory.topic if same_topic else None,
        since=memory.created_at - timedelta(seconds=policy.temporal_window),
        until=memory.created_at + _MILLISECOND,
    )
    return where, _BEFORE + len(asked.explicit) + policy.max_semantic


def _temporal(reader: Reader, memory: Memory, nodes: Nodes, policy: LinkingPolicy) -> list[LinkChoice]:
    """Return the temporal links to create, newest memories first."""
    age = (milliseconds(memory.created_at) - reader.facts(nodes).created) / (1000 * policy.temporal_window)
    confidence = 0.3 + 0.2 * (1 - np.clip(age, 0, 1))
    return [
        LinkChoice(int(nodes[at]), LinkType.TEMPORAL, CLOSE_IN_TIME, float(confidence[at]))
        for at in np.flatnonzero(confidence >= policy.minimum)[: policy.max_temporal].tolist()
    ]
