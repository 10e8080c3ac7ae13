"""
Comparison of search results: copies are folded, and of two statements about one subject the newer one comes first.

A missed copy wastes one place of the results, but a contradiction mistaken for a copy would be hidden. So copies must
have equal content words and nothing that changes the meaning (`can_fold`), and vectors as similar as those of one text
in two spellings. The threshold was chosen on half a of the month in tests/data.
``tests/memory/search/test_result_dedup.py`` reports the results for half b.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedding.protocol import Calibration, Vectors
from mama_structs.memory.statements.comparison import can_fold, same_subject_other_value
from mama_structs.memory.types.duplicates import NO_FINGERPRINT, has_failed
from mama_structs.memory.types.model import ORIGINS, TYPES_WITHOUT_DUPLICATES, DecisionMetadata, Memory

MIN_SIMILARITY: Final = 0.995
"""Minimum similarity of the vectors of copies, from 0 to 1, by the embedder's calibration."""
MIN_SUBJECT_SIMILARITY: Final = 0.8
"""Minimum similarity of the vectors of statements about one subject, from 0 to 1."""

MAX_COMPARED_RESULTS: Final = 256
"""Maximum number of compared results. The limit bounds the number of pairs, and so the time."""
MAX_COMPARED_STATEMENTS: Final = 16
"""Maximum number of results among which outdated statements are looked for."""


def find_folds(
    memories: Sequence[Memory],
    states: Sequence[Hashable],
    wordings: NDArray[np.int64],
    cosines: Vectors,
    calibration: Calibration,
) -> list[int]:
    """
    Return, for each result, the index of the better result that it repeats, or its own index.

    Only the first 256 results are compared. Later copies are results of their own, which a search returns only if its
    limit, or the number of copies before them, is that large.

    Args:
        memories: Results, best first.
        states: Supersession state of each result. Results with different states are never copies.
        wordings: Duplicate fingerprint of each result (`duplicate_fingerprint`).
        cosines: Cosines of the first vectors of the first n results, of shape (n, n); 0 for results without vectors.
            Further results are not compared.
        calibration: Calibration of the embedder's cosines.

    """
    wordings = wordings[: len(cosines)]
    same = (wordings[:, np.newaxis] == wordings) & (wordings != NO_FINGERPRINT)
    # Compare vectors first: few pairs are this similar, and parsing texts takes much longer.
    alike = (cosines >= calibration.cosine(MIN_SIMILARITY)) | same
    shown = list(range(len(memories)))
    for first, second in _find_pairs(alike):
        # Compare with displayed results only, because slight differences add up along a chain of similar texts.
        if shown[first] != first or shown[second] != second:
            continue
        one, other = memories[first], memories[second]
        if (_fold_key(one), states[first]) == (_fold_key(other), states[second]) and (
            same[first, second] or can_fold(one.content, other.content)
        ):
            shown[second] = first
    return shown


def find_outdated_pairs(
    memories: Sequence[Memory], cosines: Vectors, calibration: Calibration
) -> list[tuple[int, int]]:
    """
    Return pairs of results in which the second one is newer, and states another value of the same subject.

    Args:
        memories: Results, best first. Only the first 16 are compared.
        cosines: Cosines of the first vectors of the results, of shape (results, results).
        calibration: Calibration of the embedder's cosines.

    """
    compared = cosines[:MAX_COMPARED_STATEMENTS, :MAX_COMPARED_STATEMENTS]
    pairs = []
    for one, other in _find_pairs(compared >= calibration.cosine(MIN_SUBJECT_SIMILARITY)):
        places = sorted((one, other), key=lambda place: memories[place].created_at)
        older, newer = (memories[place] for place in places)
        # An untrusted or failed statement does not replace another one.
        if (
            older.created_at < newer.created_at
            and ORIGINS.index(newer.trust) <= ORIGINS.index(older.trust)
            and not has_failed(newer)
            and same_subject_other_value(newer.content, older.content)
        ):
            pairs.append((places[0], places[1]))
    return pairs


def _find_pairs(alike: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the pairs (first, second) with first < second that are True in a symmetric matrix."""
    first, second = np.nonzero(alike)
    return [pair for pair in zip(first.tolist(), second.tolist(), strict=True) if pair[0] < pair[1]]


def _fold_key(memory: Memory) -> Hashable:
    """Return the attributes that must be equal in copies."""
    if memory.type in TYPES_WITHOUT_DUPLICATES:
        # Memories of these types have no duplicates, so the key of each is unique.
        return memory.id
    metadata = memory.metadata
    outcome = metadata.outcome if isinstance(metadata, DecisionMetadata) else None
    return memory.type, memory.topic, memory.trust, memory.valid_until, outcome
