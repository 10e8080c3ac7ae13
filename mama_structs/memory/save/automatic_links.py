"""
Which links a memory makes by itself when it is saved: a plan over a `Reader` (DESIGN section 6).

LinkCandidates are what is near in meaning, in words, in time, by topic, by mention and along explicit links.
What is known of the new memory and each of them becomes the probability that they belong to one matter, and the
likeliest get a link, within the policy's limits; what was saved shortly before gets a link in time.
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
from mama_structs.memory.types.engine import NUMBERS, SYSTEM, Facts, Filter, Matches, Nodes, Reader
from mama_structs.memory.types.model import Link, LinkMetadata, LinkType, Memory, MemoryType, milliseconds, new_link_id
from mama_structs.memory.types.text_analysis import Analysis, analysed, indexed_text, query_terms
from mama_structs.settings import LinkingPolicy

Values = NDArray[np.float64]
Terms = Mapping[str, float]
Nearest = Callable[[NDArray[np.float32], int, Filter | None], Matches]
"""Stands for `Reader.nearest`, such as where many memories are asked about at once."""


# How many candidates each question may bring; all of them together are looked at closely.
_NEAR: Final = 32
_WORDS: Final = 24
_RECENT: Final = 32
# That a host kept a record just then says nothing, and there may be hundreds: no memory would be found beside another.
_SAID: Final = frozenset(MemoryType) - {MemoryType.RECORD}
_TOPIC: Final = 16
# Of a topic with more memories than this no more is asked: it tells nothing.
_BROAD: Final = 64
_CHAIN: Final = 32
_MENTIONS: Final = 8
# Of a long memory its beginning decides.
_PIECES: Final = 4
_CHARACTERS: Final = 2_000
_RARE: Final = 16
_HOUR: Final = timedelta(hours=1)
_MILLISECOND: Final = timedelta(milliseconds=1)
_QUARTER_MS: Final = 15 * 60_000
# What is usual in a store is what was found in its memories and so many more, which are as the embedder has them:
# strangers at odds of e to the minus 2, spread so that the calibration's slope follows.
_PRIOR: Final = 12
_STRANGE: Final = 2.0
# No likeness says more than this, in spreads: what is beyond is a copy.
_MOST_ALIKE: Final = 8.0
# A word is as rare as if there were so many memories more that do not have it: two memories say nothing about words.
_OTHERS: Final = 32
# Natural logarithms that each text says besides, unheard: the words of a short one are few to judge by.
_UNSAID: Final = 60.0
# The rank among so many neighbours tells half of what it tells among many.
_HALF: Final = 20
# To be saved last among so many memories tells half of what it tells among many.
_LAST: Final = 8
# Matters have some memories and no more: of a topic with so many besides, the half is taken to be of others.
_MATTER: Final = 4
# The mean standing in a random order, whatever its length: the integral of -log from 0 to 1. Matters have much more.
_RANDOM: Final = 1.0
_CLOSE: Final = 2.5
# Cosines that differ by less are equal: the order of a sum makes as much.
_EQUAL: Final = 1e-6
_EXPLICIT_TYPES: Final = (LinkType.EVOLUTION, LinkType.IMPLEMENTATION)


@attrs.frozen(kw_only=True)
class LinkFeatures:
    """What is known of a new memory and each candidate, an item for each."""

    likeness: Values  # their cosine, in spreads above what is usual for these two in this store
    # How far they are each other's nearest: 0 where many others are nearer, more the fewer are, and the more there are.
    standing: Values
    # The share of the new memory's words, by rarity, and mentions that the candidate has too, 0 to 1, less the shorter
    # the text; the words of its topic do not count.
    words: Values
    topic: Values  # for one topic how much that tells, 0 to 1: it is rare, has few memories, and these are near; else 0
    elsewhere: Values  # 1 where both have a topic, and not the same, else 0
    naming: Values  # the share of one's topic words, by rarity, that the other has too, 0 to 1; 0 for one topic
    nearness: Values  # 1 for what was saved last in the quarter of an hour before, falling to 0
    chain: Values  # 1 where explicit links lead from the new memory to the candidate by way of others, else 0

    def table(self) -> Values:
        """Return an array of shape (candidates, features), in the order of `FEATURES`."""
        return np.stack([getattr(self, name) for name in FEATURES], axis=1)


FEATURES: Final = tuple(field.name for field in attrs.fields(LinkFeatures))


@attrs.frozen(kw_only=True)
class LinkCandidates:
    """Memories that a new one may belong to, with what is known of them, and what was saved in the hour before it."""

    nodes: Nodes
    created: NDArray[np.int64]
    types: NDArray[np.int8]
    cosines: NDArray[np.float32]
    features: LinkFeatures
    recent: Nodes


@attrs.frozen(kw_only=True, eq=False)
class Unlinked:
    """
    A memory that looks for others of its matter, and the ids that it links explicitly.

    One that is in the store has a *node*; a *fresh* one, saved together with others, does not see those behind it.
    """

    memory: Memory
    vectors: NDArray[np.float32]
    explicit: Collection[str] = ()
    node: int | None = None
    fresh: bool = False

    def seen(self, nodes: Nodes, limit: int | None = None) -> Nodes:
        """Return those of *nodes* that it may be linked to, the first *limit* of them."""
        if self.node is not None:
            nodes = nodes[nodes < self.node if self.fresh else nodes != self.node]
        return nodes[:limit]


@attrs.frozen(eq=False)
class Usual:
    """How many memories a store has and what its cosines are like: the fewer they are, the more like the embedder's."""

    memories: int
    sample: NDArray[np.float32]
    centre: Values
    # What the embedder's calibration says of strangers.
    strange: float
    spread: float

    @classmethod
    def of(cls, reader: Reader, calibration: Calibration) -> Usual:
        """Return what is usual in a store now."""
        sample = reader.sample()
        centre = sample.mean(axis=0, dtype=np.float64) if len(sample) else np.zeros(sample.shape[1])
        strange = calibration.midpoint - _STRANGE / calibration.slope
        return cls(reader.count(), sample, centre, strange, 1 / calibration.slope)

    def mean(self, cosines: Any) -> Any:
        """Return means of cosines to the sample, with those of the embedder's strangers."""
        return (len(self.sample) * cosines + _PRIOR * self.strange) / (len(self.sample) + _PRIOR)

    def among_all(self) -> float:
        """Return the mean cosine of two memories; that of 1 which each has with itself says nothing."""
        count = len(self.sample)
        return float(self.mean((count * float(self.centre @ self.centre) - 1) / (count - 1) if count > 1 else 0.0))

    def scales(self, vectors: NDArray[np.float32]) -> tuple[Values, Values]:
        """Return mean and spread of the cosines of each vector."""
        count = len(self.sample)
        own = vectors @ self.sample.T if count else np.zeros((len(vectors), 0), np.float32)
        means = self.mean(own.sum(axis=1, dtype=np.float64) / max(count, 1))
        # The squares around the mean, which is not that of the sample alone.
        squares = np.einsum("ij,ij->i", own, own, dtype=np.float64)
        squares += means * (count * means - 2 * own.sum(axis=1, dtype=np.float64))
        squares += _PRIOR * (self.spread**2 + np.square(self.strange - means))
        return means, np.sqrt(squares / (count + _PRIOR))

    def share(self, half: int) -> float:
        """Return how much evidence counts that tells half where there are so many memories."""
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
    """Return the older memories that one may belong to, and what speaks for each."""
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
    """Return, for each of some memories, the older ones that it may belong to, and what speaks for each."""
    if not asked:
        return []
    # Where others are fresh as well, as many may be found that must not be seen.
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
    """Return some memories that are newer than the oldest of those asked about."""
    first = min((one.memory.created_at for one in asked), default=None)
    return reader.window(Filter(since=first and first + _MILLISECOND), limit=len(asked) + 1)


def _pieces(asked: Sequence[Unlinked]) -> list[NDArray[np.float32]]:
    return [piece for one in asked for piece in one.vectors[:_PIECES]]


def _near_of_each(
    reader: Reader, asked: Sequence[Unlinked], spare: int, nearest: Nearest | None
) -> Iterator[list[Nodes]]:
    """Give, for each memory, what is near to each of its pieces."""
    newer = _newer(reader, asked)
    fresh = np.array(sorted(one.node for one in asked if one.fresh and one.node is not None), np.int64)
    # Most memories are saved as the newest, and an unfiltered question costs less.
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
    """What is known of the candidates of all memories that are asked about together."""

    nodes: Nodes
    facts: Facts
    # All vectors, where those of each node begin and how many they are, and the first of each.
    vectors: NDArray[np.float32]
    starts: Nodes
    counts: Nodes
    first: NDArray[np.float32]
    # How alike the first is to all others in the store.
    usual: Values
    # The rarity of each topic's words, and the topics by word.
    topics: Mapping[int, Terms]
    topics_of: Mapping[str, Sequence[int]]

    @classmethod
    def of(cls, reader: Reader, nodes: Nodes, usual: Usual) -> _CandidateFacts:
        """Look up what is known of *nodes*, which are in order."""
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
        """Return the cosine of the nearest two pieces, for each of some nodes by their places; 0 without pieces."""
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
        """Return the topics of which *terms* say something, each with the share of its words, by rarity."""
        said: dict[int, float] = {}
        for term in terms:
            for number in self.topics_of.get(term, ()):
                said[number] = said.get(number, 0.0) + self.topics[number][term]
        return {number: share / whole for number, share in said.items() if (whole := sum(self.topics[number].values()))}


@attrs.frozen(kw_only=True, eq=False)
class _Sought:
    """What is asked for a memory, which follows from itself and from how rare its words are."""

    asked: Unlinked
    total: int
    # Its terms by rarity, and with the weights that give scores by this rarity.
    rare: Terms
    weights: Terms
    words: Terms
    recent: Filter
    topic: Filter | None
    decided: Filter | None
    mentions: Sequence[Filter]

    @classmethod
    def of(cls, reader: Reader, asked: Unlinked, topic_window: float) -> _Sought:
        """Return what is asked for a memory; decisions of its topic count by *topic_window* seconds."""
        memory, until = asked.memory, asked.memory.created_at + _MILLISECOND
        # Topics are evidence of their own: their words would count twice, and make a broad topic look like a matter.
        said = analysed(indexed_text(memory, with_topic=False)[:_CHARACTERS])
        known = reader.rarity(said.asked())
        itself = asked.node is not None
        total = reader.count() + 1
        # How many others have each term, and a half: the other way round than the formula of BM25.
        having = {term: max(total * math.exp(-found) - itself, 0.5) for term, found in known.items()}
        # As rare as among so many memories more; what nobody else has is as rare as what one has: else in a small store
        # new words would outweigh all.
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
        """Return the newest memories and decisions of the memory's topic, and how many it has, counted up to some."""
        if self.topic is None:
            return np.zeros(0, np.int64), 0
        having = self.asked.seen(reader.window(self.topic, limit=_BROAD + spare), _BROAD)
        if self.decided is None:
            return having[:_TOPIC], len(having)
        decided = self.asked.seen(reader.window(self.decided, limit=_TOPIC + spare), _TOPIC)
        return _joined([having[:_TOPIC], decided]), len(having)

    def mentioned(self, reader: Reader, spare: int) -> list[tuple[Nodes, float]]:
        """Return, for each id that the memory mentions, the newest memories that do too, and how rare that is."""
        itself = self.asked.node is not None
        found = []
        for where in self.mentions:
            having = max(reader.count(where) - itself, 1)
            newest = self.asked.seen(reader.window(where, limit=_TOPIC + spare), _TOPIC)
            found.append((newest, math.log((self.total - 1 - itself + _OTHERS + 1) / (having + 0.5))))
        return found


def terms_ahead(memory: Memory) -> Terms:
    """Return the terms by which the candidates of a memory will be looked for."""
    said = analysed(indexed_text(memory, with_topic=False)[:_CHARACTERS])
    return {**said.asked(), **topic_terms(memory.topic)}


def _ask_ahead(ahead: Reader, sought: Sequence[_Sought], spare: int) -> None:
    """Ask all that the candidates of some memories are found by, where these are the newest, and looked at by."""
    asked = [one.asked for one in sought]
    _newer(ahead, asked)
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
    """What was found for a memory, each of which is a candidate, and what it says itself."""

    asked: Unlinked
    nodes: Nodes
    near: Nodes
    recent: Nodes
    topic: Nodes
    having_topic: int
    direct: Nodes
    chain: Nodes
    shared: Sequence[tuple[Nodes, float]]
    # Its terms by rarity, and with the weights that give scores by this rarity.
    rare: Terms
    weights: Terms

    @classmethod
    def of(cls, reader: Reader, sought: _Sought, near: Sequence[Nodes], spare: int) -> _Found:
        """Look for the candidates of a memory."""
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
        """Return what speaks for each of what was found and is older; *scale* is of the cosines of its own vector."""
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
        """Return how much of what the memory says each candidate says too, by rarity."""
        whole = _UNSAID + sum(self.rare.values()) + sum(rarity for _, rarity in self.shared)
        scores = reader.word_scores(self.weights, nodes).astype(np.float64)
        for having, rarity in self.shared:
            scores += rarity * np.isin(nodes, having)
        return np.minimum(scores / whole, 1.0)

    def _naming(self, reader: Reader, known: _CandidateFacts, nodes: Nodes, topics: NDArray[np.int32]) -> Values:
        """Return how much of the one's topic the other's text says, the greater of both ways."""
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
    """Return the nodes of those memories that exist, in order of saving."""
    return np.array(sorted(node for node in reader.find_many(list(set(ids))) if node is not None), np.int64)


def _joined(parts: Iterable[Nodes]) -> Nodes:
    """Return the nodes of several arrays, each once, in order of saving."""
    nodes = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
    # For some hundred nodes this takes a tenth of the time of `np.unique`.
    is_first = np.ones(len(nodes), np.bool_)
    np.not_equal(nodes[1:], nodes[:-1], out=is_first[1:])
    return nodes[is_first]


def among(nodes: Nodes, others: Nodes) -> NDArray[np.bool_]:
    """Return which of *nodes* are among *others*, which are in order."""
    if not len(others):
        return np.zeros(len(nodes), np.bool_)
    same: NDArray[np.bool_] = others[np.minimum(np.searchsorted(others, nodes), len(others) - 1)] == nodes
    return same


def _chain(reader: Reader, direct: Nodes) -> Nodes:
    """Return what explicit links lead to from *direct*, these included, nearest first and not more than some."""
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
    """Return how far the two are each other's nearest, from the rank that each has among those near to the other."""
    # What is near to the new memory stands for what is near to the candidate too, which spares a search for each.
    # Ranks mean the same whatever an embedder's cosines look like, and little where there are few to be ranked.
    standing = np.zeros(len(nodes))
    if not len(near):
        return standing
    close = np.flatnonzero(among(nodes, near))
    before = len(near) - np.searchsorted(np.sort(near_cosines), cosines[close] + _EQUAL, side="right")
    # A row is what is near to one of them: near is in order, so that its nodes can be looked up.
    own = np.searchsorted(near, nodes[close])
    others = vectors[own] @ vectors.T > cosines[close, None] + _EQUAL
    others[np.arange(len(own)), own] = False
    ranks: Values = np.log1p(before) + np.log1p(others.sum(axis=1))
    standing[close] = math.log1p(len(near)) - ranks / 2
    return standing


def _telling(standing: Values, times: NDArray[np.int64], having: int, total: int) -> float:
    """Return how much one topic tells, 0 to 1: a broad one tells nothing, nor one whose memories are not near."""
    if not len(standing):
        return 0.0
    newest = np.argsort(-times, kind="stable")[:_TOPIC]
    near = (float(standing[newest].mean()) - _RANDOM) / (_CLOSE - _RANDOM)
    rarity = math.log((total + 1) / (having + 1)) / 3
    return min(max(near, 0.0), 1.0) * min(max(rarity, 0.0), 1.0) * _MATTER / (_MATTER + having)


def _rare_words(said: Analysis, rare: Terms, having: Terms) -> list[str]:
    """Return the rarest words of a text that others have: frequent ones tell little and take most of the time."""
    ranked = []
    for written, word in said.words.items():
        known = [rare[term] for term, _ in word.asked if having[term] > 1]
        if known:
            ranked.append((max(known), written))
    ranked.sort(key=itemgetter(0), reverse=True)
    return [written for _, written in ranked[:_RARE]]


def topic_terms(topic: str | None) -> Terms:
    """Return the terms of the words that a topic is made of."""
    return query_terms((topic or "").replace("_", " ").replace("-", " "))


def _nearness(nodes: Nodes, times: NDArray[np.int64], recent: Nodes, created: int) -> Values:
    """Return how near in time each candidate is, 0 to 1; what was saved in between takes its part."""
    age = (created - times).astype(np.float64)
    between = np.full(len(nodes), len(recent))
    kept = np.flatnonzero(among(recent, nodes))
    between[np.searchsorted(nodes, recent[kept])] = kept
    near: Values = np.exp(-np.maximum(age / _QUARTER_MS - 1, 0)) / (1 + between)
    return near


RELATED: Final = "related_to"
SAME_TOPIC: Final = "same_topic"
CLOSE_IN_TIME: Final = "close_in_time"
"""The words of automatic links, one for each reason to make one."""

# Fitted to decisions with topics of all kinds, chats, long messages and passages: ``benchmarks/linking.py --fit``, the
# default embedder.
WEIGHTS: Final = (0.5, 0.2, 62.38, 3.21, -3.16, 1.65, 3.68, 10.81)
"""What each of the `FEATURES` adds to the logarithm of the odds that two memories belong to one matter."""

BIAS: Final = -5.25
"""That logarithm where nothing is known."""

_BEFORE: Final = 48
# One topic makes likely what this probable already; alone it would join all that is of a broad topic.
_LIKELY: Final = 0.75


@attrs.frozen(kw_only=True)
class Linking:
    """The policy of automatic links, the calibration of the embedder, and whether conflicts are detected as well."""

    policy: LinkingPolicy
    calibration: Calibration
    # False where no caller receives the result, such as for an import.
    detects_conflicts: bool = True


@attrs.frozen
class LinkChoice:
    """One link to make; *similarity* is the cosine, None for a link that does not rest on it."""

    node: int
    link_type: LinkType
    relationship: str
    confidence: float
    similarity: float | None = None


def candidates_of(
    reader: Reader, asked: Sequence[Unlinked], linking: Linking, usual: Usual
) -> dict[Unlinked, LinkCandidates]:
    """Return what may be linked to those memories that make links by their meaning; the arguments as below."""
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
    Return, for each memory, the links that it makes by itself to older ones, semantic ones first, one for each.

    Args:
        reader: What is read.
        asked: Memories that are saved together, in the order in which they are saved.
        linking: Which links are wanted.
        usual: What was usual before they were saved.
        found: What `candidates_of` gave for them, where that is known.

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
    """How many automatic links end at each of some nodes."""

    def __init__(self, reader: Reader, parts: Iterable[Nodes], policy: LinkingPolicy) -> None:
        self._nodes = _joined(parts)
        table = reader.links(self._nodes, "in")
        targets = np.sort(table.targets[table.creators == SYSTEM])
        self._taken = np.searchsorted(targets, self._nodes, side="right") - np.searchsorted(targets, self._nodes)
        self._most = policy.max_incoming

    def free(self, nodes: Nodes) -> NDArray[np.bool_]:
        """Return which of *nodes* may take one more."""
        free: NDArray[np.bool_] = self._taken[np.searchsorted(self._nodes, nodes)] < self._most
        return free

    def give(self, choices: Iterable[LinkChoice]) -> None:
        """Count what is made."""
        for choice in choices:
            self._taken[np.searchsorted(self._nodes, choice.node)] += 1


def probabilities(features: LinkFeatures, weights: Sequence[float] = WEIGHTS, bias: float = BIAS) -> Values:
    """Return how probable it is, 0 to 1, that each candidate and the new memory belong to one matter."""
    # A logistic regression; a wrong link counted two and a half times in its fit, so it is rather too low.
    odds = features.table() @ np.asarray(weights, np.float64) + bias
    # Half a hyperbolic tangent is the logistic function, without its overflow.
    return 0.5 + 0.5 * np.tanh(0.5 * odds)


@attrs.frozen(eq=False)
class _Likely:
    """Candidates that may get a link, surest first, but last what explicit links lead to anyway."""

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
        # The revised ADR-001, rule 2: decisions of one topic within the window, 0.4 + 0.3 * (1 - age / window).
        of_matter = (probable >= min(policy.threshold, _LIKELY)) & (features.topic > 0)
        by_topic[of_matter & (candidates.types == NUMBERS[MemoryType.DECISION]) & (age <= 1)] = 1.0
        by_topic *= 0.4 + 0.3 * (1 - age)
    confidence = np.maximum(surest, by_topic)
    rows = np.flatnonzero((confidence > 0) & (confidence >= policy.minimum))
    nodes = candidates.nodes[rows]
    rows = rows[np.lexsort((-nodes, -candidates.created[rows], -confidence[rows], features.chain[rows] > 0))]
    return _Likely(candidates.nodes[rows], confidence[rows], candidates.cosines[rows], surest[rows] < by_topic[rows])


def _semantic(likely: _Likely, taking: _Taking, policy: LinkingPolicy) -> list[LinkChoice]:
    """Return the associations."""
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
    """Return what was saved shortly before a memory, newest first."""
    where = _shortly(asked, policy)
    if where is None:
        return np.zeros(0, np.int64)
    if candidates is not None and policy.temporal_window == _HOUR.total_seconds() and not policy.temporal_same_topic:
        return candidates.recent
    return asked.seen(reader.window(where[0], limit=where[1] + spare), where[1])


def _shortly(asked: Unlinked, policy: LinkingPolicy) -> tuple[Filter, int] | None:
    """Return what was saved shortly before a memory, and how many of these are looked at; None for nothing."""
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
    """Return the links to what was saved shortly before, newest first."""
    age = (milliseconds(memory.created_at) - reader.facts(nodes).created) / (1000 * policy.temporal_window)
    confidence = 0.3 + 0.2 * (1 - np.clip(age, 0, 1))
    return [
        LinkChoice(int(nodes[at]), LinkType.TEMPORAL, CLOSE_IN_TIME, float(confidence[at]))
        for at in np.flatnonzero(confidence >= policy.minimum)[: policy.max_temporal].tolist()
    ]
