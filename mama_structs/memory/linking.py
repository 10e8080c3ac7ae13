"""
Which links a memory makes by itself when it is saved: a plan over a `Reader` (DESIGN section 6).

LinkCandidates are what is near in meaning, in words, in time, by topic, by mention and along explicit links.
What is known of the new memory and each of them becomes the probability that they belong to one matter, and the
likeliest get a link, within the policy's limits; what was saved shortly before gets a link in time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.engine import NUMBERS, SYSTEM, Filter, Matches, Nodes, Reader
from mama_structs.memory.model import Link, LinkMetadata, LinkType, Memory, MemoryType, milliseconds, new_link_id
from mama_structs.memory.text import Analysis, analysed, indexed_text, query_terms
from mama_structs.settings import LinkingPolicy

Values = NDArray[np.float64]
Terms = Mapping[str, float]
Nearest = Callable[[NDArray[np.float32], int, Filter | None], Matches]
"""Stands for `Reader.nearest`, such as where many memories are asked about at once."""


# How many candidates each question may bring; all of them together are looked at closely.
_NEAR: Final = 32
_WORDS: Final = 24
_RECENT: Final = 32
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
    """Memories that a new one may belong to, with what is known of them."""

    nodes: Nodes
    created: NDArray[np.int64]
    types: NDArray[np.int8]
    cosines: NDArray[np.float32]
    features: LinkFeatures


def gather(
    reader: Reader,
    memory: Memory,
    vectors: NDArray[np.float32],
    *,
    calibration: Calibration,
    explicit: Collection[str] = (),
    decisions_within: float = 0.0,
    nearest: Nearest | None = None,
) -> LinkCandidates:
    """Return the older memories that a new one may belong to, and what speaks for each."""
    pieces = vectors[:_PIECES]
    # Topics are evidence of their own: their words would count twice, and make a broad topic look like a matter.
    text = indexed_text(attrs.evolve(memory, topic=None))[:_CHARACTERS]
    said = analysed(text)
    terms = said.asked()
    created = milliseconds(memory.created_at)
    until = memory.created_at + _MILLISECOND
    itself = nodes_of(reader, [memory.id])
    direct = nodes_of(reader, explicit)
    chain = _chain(reader, direct)
    # Most memories are saved as the newest, and an unfiltered question costs less.
    where = Filter(until=until) if len(reader.window(Filter(since=until), limit=1)) else None

    near = _joined((nearest or reader.nearest)(piece, _NEAR, where).nodes for piece in pieces)
    near = near[~among(near, itself)]
    recent = reader.window(Filter(since=memory.created_at - _HOUR, until=until), limit=_RECENT)
    recent = recent[~among(recent, itself)]
    topic, having_topic = _of_topic(reader, memory, until, decisions_within)
    shared = _mentioned(reader, memory, until)
    rarity = reader.rarity(terms)
    words = reader.words(said.asked(_rare_words(said, rarity, reader.count())), _WORDS, where).nodes
    known = _joined([near, words, recent, topic, chain, *(having for having, _ in shared)])
    known_cosines = best_cosines(reader, pieces, known)
    near_cosines = known_cosines[np.searchsorted(known, near)]
    facts = reader.facts(known)
    kept = (facts.created <= created) & ~among(known, _joined([direct, itself]))
    nodes, cosines = known[kept], known_cosines[kept]
    times, types, topics = facts.created[kept], facts.types[kept], facts.topics[kept]

    own_topic = int(reader.facts(topic[:1]).topics[0]) if len(topic) else -1
    same = (topics == own_topic) & (topics >= 0)
    standing = _standing(reader, near, near_cosines, nodes, cosines)
    return LinkCandidates(
        nodes=nodes,
        created=times,
        types=types,
        cosines=cosines,
        features=LinkFeatures(
            likeness=_likeness(reader, pieces[:1], nodes, cosines, calibration),
            standing=standing * len(near) / (len(near) + _HALF),
            words=_shared_words(reader, terms, rarity, nodes, shared),
            topic=same * _telling(standing[same], times[same], having_topic, reader.count()),
            elsewhere=((topics != own_topic) & (topics >= 0) & (memory.topic is not None)).astype(np.float64),
            naming=_naming(reader, memory, terms, nodes, topics) * ~same,
            nearness=_nearness(nodes, times, recent, created) * reader.count() / (reader.count() + _LAST),
            chain=among(nodes, np.sort(chain)).astype(np.float64),
        ),
    )


def nodes_of(reader: Reader, ids: Collection[str]) -> Nodes:
    """Return the nodes of those memories that exist, in order of saving."""
    return np.array(sorted(node for node in reader.find_many(list(set(ids))) if node is not None), np.int64)


def best_cosines(reader: Reader, pieces: NDArray[np.float32], nodes: Nodes) -> NDArray[np.float32]:
    """Return the cosine of the nearest two pieces, for each of *nodes*; 0 without pieces."""
    best = np.zeros(len(nodes), np.float32)
    for at, piece in enumerate(pieces):
        scores = reader.similarities(piece, nodes)
        best = np.maximum(best, scores) if at else scores
    return best


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


def _of_topic(reader: Reader, memory: Memory, until: datetime, decisions_within: float) -> tuple[Nodes, int]:
    """Return the newest memories and decisions of the memory's topic, and how many it has, counted up to some."""
    if memory.topic is None:
        return np.zeros(0, np.int64), 0
    having = reader.window(Filter(topic=memory.topic, until=until), limit=_BROAD)
    newest = having[:_TOPIC]
    if not decisions_within:
        return newest, len(having)
    where = Filter(
        topic=memory.topic,
        types=frozenset({memory.type}),
        since=memory.created_at - timedelta(seconds=decisions_within),
        until=until,
    )
    return _joined([newest, reader.window(where, limit=_TOPIC)]), len(having)


def _mentioned(reader: Reader, memory: Memory, until: datetime) -> list[tuple[Nodes, float]]:
    """Return, for each id that the memory mentions, the newest memories that do too, and how rare that is."""
    total = reader.count() if memory.mentions else 0
    found = []
    for mention in memory.mentions[:_MENTIONS]:
        where = Filter(mentions=frozenset({mention}), until=until)
        having = reader.count(where)
        found.append((reader.window(where, limit=_TOPIC), math.log((total + _OTHERS + 1) / (max(having, 1) + 0.5))))
    return found


def _likeness(
    reader: Reader, first: NDArray[np.float32], nodes: Nodes, cosines: NDArray[np.float32], calibration: Calibration
) -> Values:
    """Return by how many spreads cosines are above what is usual for both, as the store's sample has it."""
    if not len(first):
        return np.zeros(len(nodes))
    sample = reader.sample()
    strange, spread = calibration.midpoint - _STRANGE / calibration.slope, 1 / calibration.slope
    found = len(sample)
    centre = sample.mean(axis=0, dtype=np.float64) if found else np.zeros(first.shape[1])
    own = sample @ first[0] if found else np.zeros(0)

    def usual(cosine: Any) -> Any:
        return (found * cosine + _PRIOR * strange) / (found + _PRIOR)

    mean = usual(own.mean() if found else 0.0)
    squares = np.square(own - mean).sum() + _PRIOR * (spread**2 + (strange - mean) ** 2)
    # Each of the sample has a cosine of 1 with itself, which says nothing.
    among_all = usual((found * (centre @ centre) - 1) / (found - 1) if found > 1 else 0.0)
    theirs = usual(_first_pieces(reader, nodes) @ centre) if len(nodes) else np.zeros(0)
    above: Values = (cosines - mean - theirs + among_all) / math.sqrt(squares / (found + _PRIOR))
    return np.clip(above, -_MOST_ALIKE / 2, _MOST_ALIKE)


def _standing(
    reader: Reader, near: Nodes, near_cosines: NDArray[np.float32], nodes: Nodes, cosines: NDArray[np.float32]
) -> Values:
    """Return how far the two are each other's nearest, from the rank that each has among those near to the other."""
    # What is near to the new memory stands for what is near to the candidate too, which spares a search for each.
    # Ranks mean the same whatever an embedder's cosines look like, and little where there are few to be ranked.
    if not len(near):
        return np.zeros(len(nodes))
    standing = np.zeros(len(nodes))
    close = np.flatnonzero(among(nodes, near))
    before = len(near) - np.searchsorted(np.sort(near_cosines), cosines[close] + _EQUAL, side="right")
    table = _first_pieces(reader, near)
    # A row is what is near to one of them: near is in order, so that its nodes can be looked up.
    others = table[np.searchsorted(near, nodes[close])] @ table.T > cosines[close, None] + _EQUAL
    others &= nodes[close, None] != near[None, :]
    ranks: Values = np.log1p(before) + np.log1p(others.sum(axis=1))
    standing[close] = math.log1p(len(near)) - ranks / 2
    return standing


def _first_pieces(reader: Reader, nodes: Nodes) -> NDArray[np.float32]:
    """Return the vector of each memory's first piece, of shape (nodes, dimensions); 0 for one without any."""
    vectors, counts = reader.pieces(nodes)
    first = np.zeros((len(nodes), vectors.shape[1]), np.float32)
    first[counts > 0] = vectors[(np.cumsum(counts) - counts)[counts > 0]]
    return first


def _telling(standing: Values, times: NDArray[np.int64], having: int, total: int) -> float:
    """Return how much one topic tells, 0 to 1: a broad one tells nothing, nor one whose memories are not near."""
    if not len(standing):
        return 0.0
    newest = np.argsort(-times, kind="stable")[:_TOPIC]
    near = (float(standing[newest].mean()) - _RANDOM) / (_CLOSE - _RANDOM)
    rarity = math.log((total + 1) / (having + 1)) / 3
    return min(max(near, 0.0), 1.0) * min(max(rarity, 0.0), 1.0) * _MATTER / (_MATTER + having)


def _rare_words(said: Analysis, rarity: Terms, total: int) -> list[str]:
    """Return the rarest words of a text that memories have: frequent ones tell little and take most of the time."""
    nowhere = math.log(1 + (total + 0.5) / 0.5) - _EQUAL
    ranked = []
    for written, word in said.words.items():
        known = [found for term, _ in word.asked if (found := rarity[term]) < nowhere]
        if known:
            ranked.append((max(known), written))
    ranked.sort(key=itemgetter(0), reverse=True)
    return [written for _, written in ranked[:_RARE]]


def _shared_words(
    reader: Reader, terms: Terms, rarity: Terms, nodes: Nodes, shared: Sequence[tuple[Nodes, float]]
) -> Values:
    """Return how much of what the new memory says each candidate says too, by rarity."""
    # As rare as among so many memories more; what nobody has yet is as rare as what one has: else in a small store new
    # words would outweigh all.
    total = reader.count()
    more = math.log((total + _OTHERS + 1) / (total + 1))
    rarest = math.log((total + _OTHERS + 1) / 1.5)
    rare = {term: min(found + more, rarest) for term, found in rarity.items()}
    whole = _UNSAID + sum(rare.values()) + sum(rarity for _, rarity in shared)
    scores = reader.word_scores({term: rare[term] / rarity[term] for term in terms}, nodes).astype(np.float64)
    for having, found in shared:
        scores += found * np.isin(nodes, having)
    return np.minimum(scores / whole, 1.0)


def _naming(reader: Reader, memory: Memory, terms: Terms, nodes: Nodes, topics: NDArray[np.int32]) -> Values:
    """Return how much of the one's topic the other's text says, the greater of both ways."""
    said = np.zeros(len(nodes))
    if memory.topic is not None:
        asked = query_terms(_words_of(memory.topic))
        rarity = sum(reader.rarity(asked).values())
        if rarity > 0:
            said = np.minimum(reader.word_scores(asked, nodes) / rarity, 1.0)
    numbers, first = np.unique(topics, return_index=True)
    named = numbers >= 0
    for number, topic in zip(numbers[named], reader.topics(nodes[first[named]]), strict=True):
        others = query_terms(_words_of(topic or ""))
        if others.keys().isdisjoint(terms):
            continue
        rarity_of = reader.rarity(others)
        whole = sum(rarity_of.values())
        if whole > 0:
            share = sum(rarity for term, rarity in rarity_of.items() if term in terms) / whole
            said[topics == number] = np.maximum(said[topics == number], share)
    return said


def _words_of(topic: str) -> str:
    return topic.replace("_", " ").replace("-", " ")


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
    """How automatic links are made: which are wanted, and what the embedder's cosines mean."""

    policy: LinkingPolicy
    calibration: Calibration


@attrs.frozen
class LinkChoice:
    """One link to make; *similarity* is the cosine, None for a link that does not rest on it."""

    node: int
    link_type: LinkType
    relationship: str
    confidence: float
    similarity: float | None = None


def automatic_links(
    reader: Reader,
    memory: Memory,
    vectors: NDArray[np.float32],
    linking: Linking,
    explicit: Collection[str],
) -> list[Link]:
    """Return the links that a memory makes by itself to older ones, semantic ones first, one for each at the most."""
    policy = linking.policy
    chosen: list[LinkChoice] = []
    if policy.max_semantic and memory.type is not MemoryType.CHECKPOINT:
        within = policy.topic_window if memory.type is MemoryType.DECISION else 0.0
        candidates = gather(
            reader, memory, vectors, calibration=linking.calibration, explicit=explicit, decisions_within=within
        )
        chosen += _semantic(reader, memory, candidates, policy)
    if policy.max_temporal and policy.temporal_window:
        linked = np.array([choice.node for choice in chosen], np.int64)
        chosen += _temporal(reader, memory, policy, _joined([nodes_of(reader, {memory.id, *explicit}), linked]))
    ids = reader.ids([choice.node for choice in chosen])
    return [
        Link(
            id=new_link_id(),
            from_id=memory.id,
            to_id=to_id,
            link_type=choice.link_type,
            confidence=choice.confidence,
            created_by="system",
            metadata=LinkMetadata(original_relationship=choice.relationship, similarity=choice.similarity),
            created_at=memory.created_at,
        )
        for choice, to_id in zip(chosen, ids, strict=True)
    ]


def probabilities(features: LinkFeatures, weights: Sequence[float] = WEIGHTS, bias: float = BIAS) -> Values:
    """Return how probable it is, 0 to 1, that each candidate and the new memory belong to one matter."""
    # A logistic regression; a wrong link counted two and a half times in its fit, so it is rather too low.
    odds = features.table() @ np.asarray(weights, np.float64) + bias
    # Half a hyperbolic tangent is the logistic function, without its overflow.
    return 0.5 + 0.5 * np.tanh(0.5 * odds)


def _semantic(reader: Reader, memory: Memory, candidates: LinkCandidates, policy: LinkingPolicy) -> list[LinkChoice]:
    """Return the associations, surest first, but last what explicit links lead to anyway."""
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
    likely = np.flatnonzero((confidence > 0) & (confidence >= policy.minimum))
    taking = np.zeros(len(confidence), np.bool_)
    taking[likely] = _free(reader, candidates.nodes[likely], policy)
    confidence[~taking] = 0.0
    order = np.lexsort((-candidates.nodes, -candidates.created, -confidence, features.chain > 0))
    wanted = order[confidence[order] > 0][: policy.max_semantic]
    return [
        LinkChoice(
            int(candidates.nodes[at]),
            LinkType.ASSOCIATION,
            RELATED if surest[at] >= by_topic[at] else SAME_TOPIC,
            float(confidence[at]),
            float(candidates.cosines[at]),
        )
        for at in wanted
    ]


def _temporal(reader: Reader, memory: Memory, policy: LinkingPolicy, covered: Nodes) -> list[LinkChoice]:
    """Return the links to what was saved shortly before, newest first."""
    same_topic = policy.temporal_same_topic
    if same_topic and memory.topic is None:
        return []
    where = Filter(
        topic=memory.topic if same_topic else None,
        since=memory.created_at - timedelta(seconds=policy.temporal_window),
        until=memory.created_at + _MILLISECOND,
    )
    nodes = reader.window(where, limit=_BEFORE + len(covered))
    age = (milliseconds(memory.created_at) - reader.facts(nodes).created) / (1000 * policy.temporal_window)
    confidence = 0.3 + 0.2 * (1 - np.clip(age, 0, 1))
    wanted = _free(reader, nodes, policy) & (confidence >= policy.minimum) & ~among(nodes, covered)
    return [
        LinkChoice(int(nodes[at]), LinkType.TEMPORAL, CLOSE_IN_TIME, float(confidence[at]))
        for at in np.flatnonzero(wanted)[: policy.max_temporal]
    ]


def _free(reader: Reader, nodes: Nodes, policy: LinkingPolicy) -> NDArray[np.bool_]:
    """Return which of *nodes* may take one more automatic link."""
    table = reader.links(nodes, "in")
    targets = np.sort(table.targets[table.creators == SYSTEM])
    taken = np.searchsorted(targets, nodes, side="right") - np.searchsorted(targets, nodes, side="left")
    free: NDArray[np.bool_] = taken < policy.max_incoming
    return free
