"""
Features of search candidates: columns whose weighted sum is the score of a candidate.

Each feature is normalised for the lengths of question and text, so that one set of weights fits stores of any kind.
``benchmarks/fit_search.py`` fits the weights (weights.json) and measures the contribution of each feature on sets that
were left out.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.search.scores import CandidateSignals, FloatArray, IndexArray
from mama_structs.memory.types.codec import BM25_K1, EXTRA_LENGTH_TERMS
from mama_structs.memory.types.engine import SYSTEM_CREATOR_INDEX, TYPE_NUMBERS, LinkTable
from mama_structs.memory.types.model import LinkType

FEATURES: Final = (
    "meaning",  # similarity to the query, in standard deviations above the mean of this store
    "words",  # BM25 score relative to the best one and to the maximum that any text can have for the query
    "questions",  # square root of the share of the text that asks, because questions resemble any query; less if long
    "neighbour",  # evidence of the stronger neighbour in time
    "links",  # evidence of the strongest linked candidate
    "topic",  # evidence of the strongest other candidate with the same topic
    "period",  # strength of the requested period, if the text is inside
    "recency",  # 1 for a text created now, halved every 30 days
)

RELEVANCE_FEATURES: Final = (
    "standing",  # highest adjusted similarities of the first hits, in standard deviations above the mean of this store
    "words",  # fourth power of the share of the query's words that a hit contains, because single words mean little
    "share",  # of hits after the first: logarithm of their softmax share of the list
    "links",  # of hits after the first: evidence of the strongest linked candidate
    "unrelated",  # similarity of the query to the nearest unrelated message (`QueryVectors.unrelated`)
)
MIN_EXPECTED_COUNT: Final = 8
"""A smaller store counts as one of this size, because the mean and the spread of few similarities are uncertain."""
JUDGED_HITS: Final = 5
"""Number of first hits whose highest similarities count."""
SECOND_STANDING_WEIGHT: Final = 1 / 3
"""Weight of the second highest similarity, because a store that has an answer often has related texts."""

FOREIGN_COVERAGE: Final = 0.018
"""
Fourth power of the word coverage of a text in another script, per standard deviation of its standing.

With this coverage, the relevance is that of a fit without words: missing words are no evidence against a text that
cannot contain them.
"""
STATEMENT_TERMS: Final = 15.0
"""Longer texts usually state something besides their questions."""
MIN_NEIGHBOUR_DEVIATIONS: Final = 1.25
MIN_NEIGHBOUR_WORDS: Final = 0.2
"""Weaker neighbours do not count, because otherwise a text without neighbours would rank behind all others."""
DEVIATIONS_OF_WORDS: Final = 7.0
"""Number of standard deviations of the similarity that equal a complete keyword match."""
CONTEXT_TERMS: Final = 45.0
"""Longer texts contain their own context, so they gain less from their neighbours."""
HALF_LIFE_DAYS: Final = 30.0
_DAY_MS: Final = 86_400_000
_EVOLUTION_NUMBER: Final = TYPE_NUMBERS[LinkType.EVOLUTION]
_IMPLEMENTATION_NUMBER: Final = TYPE_NUMBERS[LinkType.IMPLEMENTATION]


@functools.cache
def load_weights() -> Mapping[str, Mapping[str, float]]:
    """Return the fitted weights: ``ranking`` by feature, and ``relevance`` by feature and ``intercept``."""
    path = Path(__file__).with_name("weights.json")
    weights: Mapping[str, Mapping[str, float]] = json.loads(path.read_text(encoding="utf-8"))
    return weights


@functools.cache
def load_ranking_weights() -> FloatArray:
    """Return the weights of the ranking, in the order of `FEATURES`."""
    weights = load_weights()["ranking"]
    return np.array([weights[name] for name in FEATURES])


def relevance_features(
    scores: FloatArray,
    standings: FloatArray,
    coverage: FloatArray,
    unrelated: FloatArray,
    links: FloatArray,
    *,
    total: float,
) -> FloatArray:
    """
    Return the features of the relevance of hits, of shape (hits, features), in the order of `RELEVANCE_FEATURES`.

    The first hit is judged by its words and by the highest similarities of the list, which say whether the store has an
    answer at all. The distance between scores does not say this, because chance matches of single words make large
    distances, too. It says which further hits are answers as well.

    Args:
        scores: Descending scores of the hits.
        standings: Adjusted similarity of each hit (`QueryVectors.similarities`), in standard deviations above the mean
            of the store, minus `expected_maximum` of the store.
        coverage: `word_coverage` of each hit.
        unrelated: `QueryVectors.unrelated` for each hit.
        links: `link_feature` of each hit.
        total: Logarithm of the sum of the exponentials of the scores of all candidates.

    """
    highest = np.sort(standings[:JUDGED_HITS])[-2:]
    standing = highest[-1] - SECOND_STANDING_WEIGHT * (highest[-1] - highest[0]) if len(highest) else 0.0
    further = np.arange(len(scores)) > 0
    return np.stack(
        [np.full(len(scores), standing), coverage**4, further * (scores - total), further * links, unrelated],
        axis=1,
    )


@functools.lru_cache(maxsize=256)
def expected_maximum(count: int) -> float:
    """
    Return the approximate expected maximum of *count* independent values with a standard normal distribution.

    The formula is that of G. Blom, "Statistical Estimates and Transformed Beta-Variables", 1958.
    """
    count = max(count, 1)
    return statistics.NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def word_coverage(signals: CandidateSignals, rarity: float) -> FloatArray:
    """
    Return the share of the query's words that each text contains, 0 to 1, with each word weighted by its rarity.

    It is estimated from the BM25 score: the reduction for long texts is reverted, as if each word occurred once.
    A text in another script has at least the coverage that is neutral for its standing.

    Args:
        signals: The signals of the candidates.
        rarity: The maximum BM25 score that a memory can have for the query.

    """
    lengths = EXTRA_LENGTH_TERMS + signals.lengths
    single = 1 + BM25_K1 * lengths / max(float(lengths.mean()), 1e-9)
    neutral = np.sqrt(np.sqrt(FOREIGN_COVERAGE * np.maximum(signals.standings, 0.0))) * signals.foreign
    return np.clip(signals.words * single / max(rarity, 1e-9), neutral, 1.0)


def word_match(signals: CandidateSignals, rarity: float) -> FloatArray:
    """
    Return how well each text matches the words of the query, 0 to 1.

    The best match of a query counts less if it contains only few of the query's words.

    Args:
        signals: The signals of the candidates.
        rarity: The maximum BM25 score that a memory can have for the query.

    """
    best = max(float(signals.words.max(initial=0.0)), 1e-9)
    match: FloatArray = signals.words / float(np.cbrt(best * best * max(rarity, best)))
    return match


def text_evidence(signals: CandidateSignals, rarity: float) -> FloatArray:
    """Return the evidence of each text alone, in standard deviations of the similarity. *rarity*: see `word_match`."""
    return np.maximum(signals.nearness, 0.0) + DEVIATIONS_OF_WORDS * word_match(signals, rarity)


def recency_feature(created: NDArray[np.int64], now_ms: int) -> FloatArray:
    """Return 1 for a text created now, halved every 30 days. Times are in milliseconds since 1970."""
    days = np.maximum(now_ms - created, 0) / _DAY_MS
    recency: FloatArray = np.exp2(-days / HALF_LIFE_DAYS).astype(np.float64)
    return recency


def text_features(signals: CandidateSignals, rarity: float) -> dict[str, FloatArray]:
    """Return the features of each text alone. *rarity*: see `word_match`."""
    return {
        "meaning": signals.nearness,
        "words": word_match(signals, rarity),
        "questions": np.sqrt(signals.asking) * np.minimum(1.0, STATEMENT_TERMS / np.maximum(signals.lengths, 1.0)),
    }


def neighbour_features(
    columns: Mapping[str, FloatArray], lengths: FloatArray, before: IndexArray, after: IndexArray
) -> dict[str, FloatArray]:
    """
    Return the evidence of the stronger neighbour in time.

    The sum of both would rank a text between two matches, such as "after change 1", before an exact match.

    Args:
        columns: The features of each text alone.
        lengths: Number of terms of each text.
        before: Position of the candidate created directly before each candidate, or -1.
        after: Position of the candidate created directly after each candidate, or -1.

    """
    strong = np.maximum(columns["meaning"] - MIN_NEIGHBOUR_DEVIATIONS, 0.0)
    strong += DEVIATIONS_OF_WORDS * np.maximum(columns["words"] - MIN_NEIGHBOUR_WORDS, 0.0)
    # The last item is the evidence of a missing neighbour, which has the position -1.
    strong = np.append(strong, 0.0)
    share = np.minimum(1.0, CONTEXT_TERMS / np.maximum(lengths, 1.0))
    return {"neighbour": share * np.maximum(strong[before], strong[after])}


def link_feature(
    evidence: FloatArray, table: LinkTable, sources: IndexArray, targets: IndexArray, now_ms: int
) -> FloatArray:
    """
    Return the evidence of the strongest candidate that is linked to each candidate.

    Automatic links do not count, because they repeat the similarity of the texts.

    Args:
        evidence: Evidence of each candidate alone.
        table: The links.
        sources: Position of the source of each link, or -1.
        targets: Position of the target of each link, or -1.
        now_ms: Reference time for the decay of links, in milliseconds since 1970.

    """
    linked = np.zeros(len(evidence))
    usable = (sources >= 0) & (targets >= 0) & (sources != targets) & (table.creators != SYSTEM_CREATOR_INDEX)
    if not usable.any():
        return linked
    strengths = table.decayed_confidences(now_ms).astype(np.float64)
    strengths[(table.types == _EVOLUTION_NUMBER) | (table.types == _IMPLEMENTATION_NUMBER)] = 1.0
    shared = relative_evidence(evidence)
    for here, there in ((sources, targets), (targets, sources)):
        np.maximum.at(linked, here[usable], strengths[usable] * shared[there[usable]])
    return linked


def topic_feature(evidence: FloatArray, topics: NDArray[np.int32]) -> FloatArray:
    """Return the evidence of the strongest other candidate with the same topic. The topic -1 means none."""
    if topics.max(initial=-1) < 0:
        return np.zeros(len(evidence))
    shared = relative_evidence(evidence)
    # Sort by topic and descending evidence. The first of a topic gets the second's evidence, the others the first's.
    order = np.lexsort((-shared, topics))
    starts = np.flatnonzero(np.diff(topics[order], prepend=-2))
    sizes = np.diff(np.append(starts, len(order)))
    first = np.repeat(order[starts], sizes)
    strongest = np.zeros(len(evidence))
    strongest[order] = shared[first]
    several = sizes > 1
    strongest[order[starts]] = np.where(several, shared[order[np.minimum(starts + 1, len(order) - 1)]], 0.0)
    return np.where(topics >= 0, strongest, 0.0)


def relative_evidence(evidence: FloatArray) -> FloatArray:
    """Return the square of the evidence divided by the best one, so that only strong candidates raise others."""
    return evidence**2 / max(float(evidence.max(initial=0.0)), 1e-9)
