"""
Features of search candidates: columns whose weighted sum is the score of a candidate.

Each feature is normalised for the lengths of question and text, so that one set of weights fits stores of any kind.
``benchmarks/fit_search.py`` fits the weights (weights.json) and measures the contribution of each feature on sets that
were left out.
"""

from __future__ import annotations

import functools
import json
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
    "words",  # BM25 score relative to the maximum that any text can have for the query
    "best words",  # BM25 score relative to the best one
    "questions",  # square root of the share of the text that asks, because questions resemble any query; less if long
    "before",  # evidence of the predecessor in time
    "after",  # evidence of the successor in time
    "links",  # evidence of the strongest linked candidate
    "topic",  # evidence of the strongest other candidate with the same topic
    "period",  # strength of the requested period, if the text is inside
    "recency",  # 1 for a text created now, halved every 30 days
)

RELEVANCE_FEATURES: Final = (
    "standing",  # highest adjusted similarity of the first hits, in standard deviations above the mean of this store
    "words",  # third power of the share of the query's words that a hit contains, because single words mean little
    "behind",  # score minus the best score
)
JUDGED_HITS: Final = 5
"""Number of first hits whose best similarity counts."""

FOREIGN_MATCH: Final = 0.7
"""Word match of the nearest text if it is in another script, relative to the best word match of any text."""
STATEMENT_TERMS: Final = 15.0
"""Longer texts usually state something besides their questions."""
MIN_NEIGHBOUR_DEVIATIONS: Final = 1.0
MIN_NEIGHBOUR_WORDS: Final = 0.3
"""Weaker neighbours do not count, because otherwise a text without neighbours would rank behind all others."""
WORDS_PER_DEVIATION: Final = 3.0
"""Number of standard deviations of the similarity that equal the best keyword match."""
CONTEXT_TERMS: Final = 45.0
"""Longer texts contain their own context, so they gain less from their neighbours."""
HALF_LIFE_DAYS: Final = 30.0
_DAY_MS: Final = 86_400_000
_STRONG_LINKS: Final = (TYPE_NUMBERS[LinkType.EVOLUTION], TYPE_NUMBERS[LinkType.IMPLEMENTATION])


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


def relevance_features(scores: FloatArray, standings: FloatArray, coverage: FloatArray) -> FloatArray:
    """
    Return the features of the relevance of hits, of shape (hits, features), in the order of `RELEVANCE_FEATURES`.

    Only the best similarity of the list counts, because it says whether the store has an answer at all. The gap between
    the scores of hits is no feature of its own: chance matches of single words make large gaps, too.

    Args:
        scores: Descending scores of the hits.
        standings: Adjusted similarity of each hit (`QueryVectors.similarities`), in standard deviations above the mean
            of the store.
        coverage: `word_coverage` of each hit.

    """
    first = slice(JUDGED_HITS)
    return np.stack(
        [
            np.full(len(scores), standings[first].max(initial=-10.0)),
            coverage**3,
            scores - scores[:1],
        ],
        axis=1,
    )


def word_coverage(signals: CandidateSignals, rarity: float) -> FloatArray:
    """
    Return the share of the query's words that each text contains, 0 to 1, with each word weighted by its rarity.

    It is estimated from the BM25 score: the reduction for long texts is reverted, as if each word occurred once.

    Args:
        signals: The signals of the candidates.
        rarity: The maximum BM25 score that a memory can have for the query.

    """
    lengths = EXTRA_LENGTH_TERMS + signals.lengths
    single = 1 + BM25_K1 * lengths / max(float(lengths.mean()), 1e-9)
    return np.minimum(signals.words * single / max(rarity, 1e-9), 1.0)


def text_evidence(signals: CandidateSignals) -> FloatArray:
    """Return the evidence of each text alone, in standard deviations of the similarity."""
    best = max(float(signals.words.max(initial=0.0)), 1e-9)
    return np.maximum(signals.nearness, 0.0) + WORDS_PER_DEVIATION * signals.words / best


def recency_feature(created: NDArray[np.int64], now_ms: int) -> FloatArray:
    """Return 1 for a text created now, halved every 30 days. Times are in milliseconds since 1970."""
    days = np.maximum(now_ms - created, 0) / _DAY_MS
    recency: FloatArray = np.exp2(-days / HALF_LIFE_DAYS).astype(np.float64)
    return recency


def text_features(signals: CandidateSignals, rarity: float) -> dict[str, FloatArray]:
    """
    Return the features of each text alone.

    A text in another script matches only borrowed words, so it gets at least the word match that corresponds to its
    similarity.

    Args:
        signals: The signals of the candidates.
        rarity: The maximum BM25 score that a memory can have for the query.

    """
    words, most = signals.words, float(signals.words.max(initial=0.0))
    if most > 0 and signals.foreign.any():
        best = max(float(signals.nearness.max()), 1.0)
        estimated = FOREIGN_MATCH * most * np.clip(signals.nearness / best, 0.0, 1.0) ** 2
        words = np.where(signals.foreign, np.maximum(words, estimated), words)
    return {
        "meaning": signals.nearness,
        "words": words / max(rarity, 1e-9),
        "best words": words / max(most, 1e-9),
        "questions": np.sqrt(signals.asking) * np.minimum(1.0, STATEMENT_TERMS / np.maximum(signals.lengths, 1.0)),
    }


def neighbour_features(
    columns: Mapping[str, FloatArray], lengths: FloatArray, before: IndexArray, after: IndexArray
) -> dict[str, FloatArray]:
    """
    Return the evidence of the neighbours in time.

    Args:
        columns: The features of each text alone.
        lengths: Number of terms of each text.
        before: Position of the candidate created directly before each candidate, or -1.
        after: Position of the candidate created directly after each candidate, or -1.

    """
    strong = np.maximum(columns["meaning"] - MIN_NEIGHBOUR_DEVIATIONS, 0.0)
    strong += WORDS_PER_DEVIATION * np.maximum(columns["best words"] - MIN_NEIGHBOUR_WORDS, 0.0)
    # The last item is the evidence of a missing neighbour, which has the position -1.
    strong = np.append(strong, 0.0)
    share = np.minimum(1.0, CONTEXT_TERMS / np.maximum(lengths, 1.0))
    return {"before": share * strong[before], "after": share * strong[after]}


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
    strengths = table.decayed_confidences(now_ms).astype(np.float64)
    strengths[np.isin(table.types, _STRONG_LINKS)] = 1.0
    usable = (sources >= 0) & (targets >= 0) & (sources != targets) & (table.creators != SYSTEM_CREATOR_INDEX)
    linked = np.zeros(len(evidence))
    shared = relative_evidence(evidence)
    for here, there in ((sources, targets), (targets, sources)):
        np.maximum.at(linked, here[usable], strengths[usable] * shared[there[usable]])
    return linked


def topic_feature(evidence: FloatArray, topics: NDArray[np.int32]) -> FloatArray:
    """Return the evidence of the strongest other candidate with the same topic. The topic -1 means none."""
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
