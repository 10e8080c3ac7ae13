"""
Detection of duplicates, contradictions and replacements of a new memory (DESIGN, 6a).

A conflict needs the same subject and different statements about it. Memories on different subjects may look very
similar, so unshared words and values are stronger evidence than shared ones.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

import attrs
import numpy as np

from mama_structs.errors import StoreDamaged
from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.save.link_candidates import LinkCandidates, PendingLinks
from mama_structs.memory.statements.comparison import (
    StatementRelation,
    TextFeatures,
    compare_parsed,
    has_other_operators,
    parse_pair,
)
from mama_structs.memory.statements.parser import parse_text
from mama_structs.memory.statements.screening import may_be_related, may_disagree
from mama_structs.memory.types.duplicates import duplicate_fingerprint, has_failed, is_duplicate, superseded_nodes
from mama_structs.memory.types.engine import Reader
from mama_structs.memory.types.judge import Verdict
from mama_structs.memory.types.model import TYPES_WITHOUT_DUPLICATES, Memory, MemoryType, RelatedMemory, SaveWarnings

# On the development set, no relevant memory ranked below the fifth candidate.
_MAX_COMPARED_CANDIDATES: Final = 5
_MAX_REPORTED: Final = 5
# Minimum probability of the same subject for candidates that are passed to a judge.
_MIN_JUDGE_PROBABILITY: Final = 0.5
# The thresholds below were tuned on half `a` of tests/data/month and tests/data/noticing, see ``benchmarks/month.py``.
# Evidence of several sentences requires this probability or this scaled cosine. In a small store, no probability is
# high enough.
_MIN_CONFLICT_PROBABILITY: Final = 0.85
_MIN_CONFLICT_COSINE: Final = 3.2
# Above this scaled cosine, a negated text usually contains an antonym, so both texts say the same.
_MIN_REWORDED_COSINE: Final = 4.0
# Maximum difference between the scaled cosine of a reported memory and the highest one reported.
# Memories with a larger difference are usually on another subject.
_MAX_COSINE_GAP: Final = 0.86
# Weights in the log odds that two memories are duplicates: cosine, template ratio, both are insights, and the bias.
# The weights are used only if no feature rules out a duplicate.
# The weights and the threshold below were fitted with the default embedder by twelve-fold cross-validation.
_DUPLICATE_WEIGHTS: Final = (2.6, -4.25, 2.8, -11.3)
_MIN_REPORTED_PROBABILITY: Final = 0.6
# Probability reported for a detected replacement or contradiction: the precision of the rule that detected it.
_REPLACEMENT_PRECISION: Final = 0.85
_CONTRADICTION_PRECISION: Final = 0.8
# Languages for which the weights of reworded duplicates were checked.
_REWORDED_LANGUAGES: Final = frozenset({"en", "ko"})

DUPLICATE_FIELD: Final = "duplicate_of"
CONTRADICTION_FIELD: Final = "possible_conflicts"
REPLACEMENT_FIELD: Final = "possible_replacements"
"""Field names of `SaveWarnings`."""
_FIELD_BY_RELATION: Final = {
    StatementRelation.CONTRADICTS: CONTRADICTION_FIELD,
    StatementRelation.REPLACES: REPLACEMENT_FIELD,
}


def classify_pair(new: Memory, old: Memory, *, same_subject: float, cosine: float) -> Mapping[str, float]:
    """
    Return the probability of each conflict type: duplicate, contradiction or replacement.

    Types that are ruled out are missing.

    Args:
        new: The memory that is saved.
        old: An older memory.
        same_subject: Probability of the same subject, 0 to 1, from automatic linking.
        cosine: Scaled cosine: slope * (cosine - midpoint) of the embedder's calibration; 0 means a probability of 0.5.

    """
    new_text, old_text = parse_pair(new.content, old.content)
    found = compare_parsed(new_text, old_text)
    if found.relation in _FIELD_BY_RELATION:
        return {_FIELD_BY_RELATION[found.relation]: found.probability}
    is_near_copy = found.relation is StatementRelation.NEAR_COPY
    if (
        new_text.whole is None
        or old_text.whole is None
        or new_text.language != old_text.language
        or not (is_near_copy or _may_have_conflicting_features(new, old, same_subject=same_subject, cosine=cosine))
    ):
        return {}
    features = TextFeatures.between(new_text.whole, old_text.whole, numbers_of_reasoning=_numbers_of_reasoning(new))
    if features.entities_differ:
        return {}
    has_same_subject = _is_on_same_subject(same_subject, cosine)
    if has_same_subject and features.is_replacement:
        return {REPLACEMENT_FIELD: _REPLACEMENT_PRECISION}
    if has_same_subject and features.is_contradiction(
        is_same_decision_topic=_are_decisions_on_topic(new, old), is_reworded=cosine >= _MIN_REWORDED_COSINE
    ):
        return {CONTRADICTION_FIELD: _CONTRADICTION_PRECISION}
    probability = found.probability if is_near_copy else 0.0
    if has_other_operators(new.content, old.content):
        probability = 0.0
    elif not features.rules_out_duplicate and new_text.language in _REWORDED_LANGUAGES:
        probability = max(probability, _compute_duplicate_probability(new, old, cosine, features.frame))
    return {DUPLICATE_FIELD: probability}


def _is_on_same_subject(same_subject: float, cosine: float) -> bool:
    return same_subject >= _MIN_CONFLICT_PROBABILITY or cosine >= _MIN_CONFLICT_COSINE


def _compute_duplicate_probability(new: Memory, old: Memory, cosine: float, template_ratio: float) -> float:
    weight, frame, insights, bias = _DUPLICATE_WEIGHTS
    are_insights = new.type is old.type is MemoryType.INSIGHT
    odds = weight * cosine + frame * template_ratio + insights * are_insights + bias
    return 0.5 + 0.5 * math.tanh(0.5 * odds)


def _may_conflict(new: Memory, old: _CurrentMemory, cosine: float) -> bool:
    """Return False if `classify_pair` reports nothing. It needs a tenth of the time, because no text is parsed."""
    return _may_have_conflicting_features(
        new, old.memory, same_subject=old.same_subject, cosine=cosine
    ) or may_be_related(new.content, old.memory.content)


def _may_have_conflicting_features(new: Memory, old: Memory, *, same_subject: float, cosine: float) -> bool:
    """Return False if the `TextFeatures` of two texts cannot lead to a reported conflict."""
    # Each word of a common template lowers the probability.
    if _compute_duplicate_probability(new, old, cosine, 0.0) >= _MIN_REPORTED_PROBABILITY:
        return True
    is_on_same_subject = _is_on_same_subject(same_subject, cosine)
    return is_on_same_subject and (_are_decisions_on_topic(new, old) or may_disagree(new.content, old.content))


def _are_decisions_on_topic(new: Memory, old: Memory) -> bool:
    return new.type is old.type is MemoryType.DECISION and new.topic == old.topic is not None


def _numbers_of_reasoning(memory: Memory) -> frozenset[str]:
    whole = parse_text(memory.reasoning or "", "en").whole
    return whole.numbers if whole is not None else frozenset()


def find_foreign_conflicts(memories: Iterable[Memory]) -> Iterator[tuple[Memory, Memory]]:
    """
    Yield conflicting pairs of memories of different namespaces with equal topics, the newer memory first.

    The newer memory comes first. Conflicts within one namespace are stored when the newer memory is saved.
    """
    some = [memory for memory in memories if memory.topic and memory.type not in TYPES_WITHOUT_DUPLICATES]
    for new, old in combinations(sorted(some, key=lambda memory: (memory.created_at, memory.id), reverse=True), 2):
        if new.topic == old.topic and new.namespace != old.namespace:
            found = classify_pair(new, old, same_subject=1.0, cosine=0.0)
            if not found.keys().isdisjoint(_FIELD_BY_RELATION.values()):
                yield new, old


_VERDICT_BY_FIELD: Final[Mapping[str, Verdict]] = {
    DUPLICATE_FIELD: "copy",
    CONTRADICTION_FIELD: "contradict",
    REPLACEMENT_FIELD: "replace",
}
"""Verdict of a judge that corresponds to each field."""


def detect_conflicts(
    reader: Reader,
    asked: Sequence[PendingLinks],
    found: Mapping[PendingLinks, LinkCandidates],
    calibration: Calibration,
) -> list[SaveWarnings]:
    """
    Return the conflicts of each memory with older ones, read in one batch.

    Args:
        reader: Store to read.
        asked: Memories that are saved together. They need not be stored yet.
        found: Their link candidates. For a memory without candidates, only exact duplicates are found.
        calibration: Calibration of the embedder.

    """
    return [
        _detect_for_memory(one.memory, older, calibration)
        for one, older in zip(asked, _find_current_memories(reader, asked, found, calibration.midpoint), strict=True)
    ]


def find_same_subject(
    reader: Reader, asked: PendingLinks, found: Mapping[PendingLinks, LinkCandidates]
) -> list[Memory]:
    """Return the current memories that have the same subject or are exact duplicates, newest first."""
    (older,) = _find_current_memories(reader, [asked], found, math.inf)
    memories = [one.memory for one in older if one.is_same_subject or one.is_duplicate]
    return sorted(memories, key=lambda memory: memory.created_at, reverse=True)


def apply_verdicts(noticed: SaveWarnings, verdicts: Mapping[str, Verdict], note: str | None) -> SaveWarnings:
    """
    Return the detected conflicts, overridden by the judge's verdicts.

    *note* says why the judge was not consulted.
    """
    named = {
        kind: (
            *(RelatedMemory(memory_id, 1.0) for memory_id, word in verdicts.items() if word == _VERDICT_BY_FIELD[kind]),
            *(one for one in getattr(noticed, kind) if one.id not in verdicts),
        )
        for kind in (DUPLICATE_FIELD, CONTRADICTION_FIELD, REPLACEMENT_FIELD)
    }
    return _build_result(named, note)


@attrs.frozen
class _CurrentMemory:
    """An older memory that is still current, with its similarity to the new memory."""

    memory: Memory
    is_duplicate: bool
    cosine: float = -1.0
    same_subject: float = 0.0
    is_same_subject: bool = False


def _find_current_memories(
    reader: Reader,
    asked: Sequence[PendingLinks],
    found: Mapping[PendingLinks, LinkCandidates],
    min_cosine: float,
) -> list[list[_CurrentMemory]]:
    """
    Return, for each memory, the current older memories that may be on its subject.

    These are exact duplicates, and those of the most probable candidates that have the same topic, a probable subject
    or at least *min_cosine*. Other candidates are not read.
    """
    alike = reader.duplicates([duplicate_fingerprint(one.memory) for one in asked])
    copies = [one.select_linkable(same) for one, same in zip(asked, alike, strict=True)]
    rows = [_find_probable_rows(found.get(one), min_cosine) for one in asked]
    nodes = [
        sorted({*same[-_MAX_REPORTED:].tolist(), *one.select_linkable(np.array([*own], np.int64)).tolist()})
        for one, same, own in zip(asked, copies, rows, strict=True)
    ]
    own = {one.node: one.memory for one in asked if one.node is not None}
    others = sorted({node for some in nodes for node in some} - own.keys())
    known = own | _read_undamaged(reader, others)
    gone = superseded_nodes(reader, np.array([*others, *own], np.int64))
    return [
        [
            _describe_older(one.memory, known[node], found.get(one), at.get(node), may_be_copy=node in same)
            for node in some
            if node in known and node not in gone and _is_current(known[node], one.memory)
        ]
        for one, some, same, at in zip(asked, nodes, copies, rows, strict=True)
    ]


def _is_current(old: Memory, new: Memory) -> bool:
    """
    Return True if the older memory may still be true.

    Return False for checkpoints and records, which describe a past state.
    """
    ended = old.valid_until is not None and old.valid_until <= new.created_at
    return not ended and not has_failed(old) and TYPES_WITHOUT_DUPLICATES.isdisjoint({old.type, new.type})


def _describe_older(
    new: Memory, old: Memory, candidates: LinkCandidates | None, row: int | None, *, may_be_copy: bool
) -> _CurrentMemory:
    is_copy = may_be_copy and is_duplicate(old, new)
    if candidates is None or row is None:
        return _CurrentMemory(old, is_copy)
    one_topic = old.topic is not None and old.topic == new.topic
    same_subject = float(candidates.probabilities[row])
    return _CurrentMemory(
        old, is_copy, float(candidates.cosines[row]), same_subject, one_topic or same_subject >= _MIN_JUDGE_PROBABILITY
    )


def _read_undamaged(reader: Reader, nodes: Sequence[int]) -> dict[int, Memory]:
    """
    Return memories by node, or an empty dict if any of them is damaged.

    A damaged memory must not prevent the save of a new one.
    """
    with contextlib.suppress(StoreDamaged):
        return dict(zip(nodes, reader.get(nodes) if nodes else [], strict=True))
    return {}


def _find_probable_rows(candidates: LinkCandidates | None, min_cosine: float) -> dict[int, int]:
    """Return the rows of the candidates with the highest probability of the same subject, by node."""
    if candidates is None:
        return {}
    best = np.argsort(-candidates.probabilities, kind="stable")[:_MAX_COMPARED_CANDIDATES]
    is_near = candidates.have_same_topic[best] | (candidates.probabilities[best] >= _MIN_JUDGE_PROBABILITY)
    best = best[is_near | (candidates.cosines[best] > min_cosine)]
    return dict(zip(candidates.nodes[best].tolist(), best.tolist(), strict=True))


def _detect_for_memory(new: Memory, older: Sequence[_CurrentMemory], calibration: Calibration) -> SaveWarnings:
    named: list[tuple[str, float, str, float]] = []
    copies: list[RelatedMemory] = []
    for one in older:
        cosine = calibration.slope * (one.cosine - calibration.midpoint)
        if one.is_duplicate:
            copies.append(RelatedMemory(one.memory.id, 1.0))
        # Skip the expensive comparison of memories that are dissimilar and on other subjects.
        elif (one.is_same_subject or cosine > 0) and _may_conflict(new, one, cosine):
            named += [
                (kind, probability, one.memory.id, cosine)
                for kind, probability in classify_pair(
                    new, one.memory, same_subject=one.same_subject, cosine=cosine
                ).items()
                if probability >= _MIN_REPORTED_PROBABILITY
            ]
    least = max((cosine for *_, cosine in named), default=0.0) - _MAX_COSINE_GAP
    found = {DUPLICATE_FIELD: copies}
    for kind, probability, memory_id, cosine in named:
        if cosine >= least:
            found.setdefault(kind, []).append(RelatedMemory(memory_id, probability))
    return _build_result(
        {kind: tuple(sorted(some, key=lambda one: -one.probability)[:_MAX_REPORTED]) for kind, some in found.items()}
    )


def _build_result(named: Mapping[str, tuple[RelatedMemory, ...]], note: str | None = None) -> SaveWarnings:
    copies, contradicted, replaced = (
        named.get(kind, ()) for kind in (DUPLICATE_FIELD, CONTRADICTION_FIELD, REPLACEMENT_FIELD)
    )
    return SaveWarnings(duplicate_of=copies, possible_conflicts=contradicted, possible_replacements=replaced, note=note)
