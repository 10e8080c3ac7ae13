"""
Detection of duplicates, contradictions and replacements of a new memory (DESIGN, 6a).

A conflict needs the same subject and different statements about it. Memories on different subjects may look very
similar, so unshared words and values are stronger evidence than shared ones.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import combinations
from typing import Final

import attrs
import numpy as np

from mama_structs.errors import StoreDamaged
from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.save.automatic_links import same_subject_probabilities
from mama_structs.memory.save.link_candidates import LinkCandidates, PendingLinks
from mama_structs.memory.types.claims import Claims, both_have_unshared, merge_values
from mama_structs.memory.types.duplicates import duplicate_fingerprint, has_failed, is_duplicate, superseded_nodes
from mama_structs.memory.types.engine import Nodes, Reader
from mama_structs.memory.types.judge import Verdict
from mama_structs.memory.types.model import TYPES_WITHOUT_DUPLICATES, Memory, MemoryType, RelatedMemory, SaveWarnings

# On the development set, no relevant memory ranked below the fifth candidate.
_MAX_COMPARED_CANDIDATES: Final = 5
_MAX_REPORTED: Final = 5
# Minimum probability of the same subject for candidates that are passed to a judge.
_MIN_JUDGE_PROBABILITY: Final = 0.5
# The thresholds below were tuned on half `a` of tests/data/month and tests/data/noticing, see ``benchmarks/month.py``.
# A conflict requires this probability or this scaled cosine. In a small store, no probability is high enough.
_MIN_CONFLICT_PROBABILITY: Final = 0.85
_MIN_CONFLICT_COSINE: Final = 3.2
# Above this scaled cosine, a negated text usually contains an antonym, so both texts say the same.
_MAX_NEGATION_COSINE: Final = 4.0
# Maximum difference between the scaled cosine of a reported memory and the highest one reported.
# Memories with a larger difference are usually on another subject.
_MAX_COSINE_GAP: Final = 0.86
# Minimum number of shared words that counts as evidence for a conflict.
_MIN_SHARED_WORDS: Final = 2
# Minimum ratio of shared words: of the old memory for a replacement, of either memory for a contradiction.
_MIN_SHARED_WORD_RATIO: Final = 0.5
# Maximum number of words in a slot of a sentence template.
_MAX_SLOT_WORDS: Final = 3
# Minimum template ratio at which different words in a slot count as a slot substitution.
_MIN_TEMPLATE_RATIO: Final = 0.45
# Minimum template ratio at which a slot substitution rules out a duplicate.
_MIN_SAME_TEMPLATE_RATIO: Final = 0.65
# Weights in the log odds that two memories are duplicates: cosine, template ratio, both are insights, and the bias.
# The weights are used only if no feature rules out a duplicate.
# The weights and the threshold below were fitted with the default embedder by twelve-fold cross-validation.
_DUPLICATE_WEIGHTS: Final = (2.6, -4.25, 2.8, -11.3)
_MIN_REPORTED_PROBABILITY: Final = 0.6
# Probability reported for a detected replacement or contradiction: the precision of the rule that detected it.
_REPLACEMENT_PRECISION: Final = 0.85
_CONTRADICTION_PRECISION: Final = 0.8


@attrs.frozen(kw_only=True)
class PairFeatures:
    """Differences between a new memory and an older one, as input of the conflict rules."""

    matter: float  # probability of the same subject, 0 to 1, from automatic linking
    # scaled cosine: slope * (cosine - midpoint) of the embedder's calibration; 0 means a probability of 0.5
    cosine: float
    insights: bool  # both memories are insights, which are repeated more often than decisions
    is_same_decision_topic: bool  # both memories are decisions on the same topic

    shared_word_count: int  # number of words of the new memory that the old one contains in some form
    share: float  # larger ratio of shared words to all words of a memory, 0 to 1
    shared_word_ratio_of_old: float
    left: bool  # at least one memory contains a word that the other one lacks
    both_have_unshared_words: bool
    frame: float  # ratio of the words that belong to a common sentence template, 0 to 1
    has_slot_substitution: bool  # the texts have different words in a slot of the template, so their subjects differ
    same_words: bool  # both texts have the same set of words

    numbers_differ: bool
    values_differ: bool  # for one unit, both texts have numbers but no number in common
    entities_differ: bool
    share_entities: bool  # the texts share an entity, and at most one text has further entities
    codes_differ: bool
    moved: bool  # the new text repeats a number of the old one and adds another

    negation_differs: bool  # exactly one text is negated
    denied: bool  # exactly one text is negated, and the other one contains the negated words
    has_antonyms: bool
    ends: bool  # strong cue in the new text that something is no longer true; `changes`: weak cue
    changes: bool
    adds: bool  # exactly one text contains a cue for an addition

    @classmethod
    def from_claims(
        cls, new: Claims, old: Claims, *, matter: float, cosine: float, types: Collection[MemoryType]
    ) -> PairFeatures:
        """Compute the differences between the claims of two memories."""
        said, before = new.said, old.said
        left, left_of_old = new.left(old), old.left(new)
        shares = [1 - len(some) / max(len(of.told), 1) for some, of in ((left, new), (left_of_old, old))]
        numbers, older = merge_values(said.values), merge_values(before.values)
        both = [(said.values[unit], before.values[unit]) for unit in said.values.keys() & before.values.keys()]
        other_entities = both_have_unshared(said.entities, before.entities)
        frame, swapped = _compare_templates(said.order, before.order, left, left_of_old)
        return cls(
            matter=matter,
            cosine=cosine,
            insights=types == {MemoryType.INSIGHT},
            is_same_decision_topic=types == {MemoryType.DECISION} and new.topic == old.topic,
            shared_word_count=len(new.told) - len(left),
            share=max(shares),
            shared_word_ratio_of_old=shares[1],
            left=bool(left or left_of_old),
            both_have_unshared_words=bool(left and left_of_old),
            frame=frame,
            has_slot_substitution=swapped,
            same_words=said.words == before.words,
            numbers_differ=both_have_unshared(numbers, older),
            values_differ=any(not some & others for some, others in both),
            entities_differ=other_entities,
            share_entities=bool(said.entities & before.entities) and not other_entities,
            codes_differ=both_have_unshared(said.codes, before.codes),
            moved=bool(older & said.all_numbers and numbers - older),
            negation_differs=said.is_negated != before.is_negated,
            denied=said.is_negated != before.is_negated and bool(new.denied & before.words or old.denied & said.words),
            has_antonyms=new.has_antonym_in(old),
            ends=bool(new.ending - old.ending),
            changes=bool(new.change_cues - old.change_cues),
            adds=new.adds != old.adds,
        )


def _compare_templates(
    new: Sequence[str], old: Sequence[str], left: frozenset[str], left_of_old: frozenset[str]
) -> tuple[float, bool]:
    """Return the template ratio of two texts, and True if the texts differ in a slot of the template."""
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    places = [place for place in matcher.get_opcodes() if place[0] == "replace"]
    if not places:
        return 0.0, False
    frame = matcher.ratio()
    swapped = any(
        max(end - start, new_end - new_start) <= _MAX_SLOT_WORDS
        and not (left_of_old.isdisjoint(old[start:end]) or left.isdisjoint(new[new_start:new_end]))
        for _, start, end, new_start, new_end in places
    )
    return frame, swapped and frame >= _MIN_TEMPLATE_RATIO


def classify_pair(features: PairFeatures) -> Mapping[str, float]:
    """
    Return the probability of each conflict type: duplicate, contradiction or replacement.

    Types that are ruled out are missing.
    """
    if features.entities_differ:
        return {}
    of_one_matter = features.matter >= _MIN_CONFLICT_PROBABILITY or features.cosine >= _MIN_CONFLICT_COSINE
    if of_one_matter and _is_replacement(features):
        return {REPLACEMENT_FIELD: _REPLACEMENT_PRECISION}
    if (of_one_matter and not features.adds and _is_contradiction(features)) or (
        features.negation_differs and features.same_words
    ):
        return {CONTRADICTION_FIELD: _CONTRADICTION_PRECISION}
    differs = features.numbers_differ or features.codes_differ or features.has_antonyms or features.adds
    if (
        differs
        or features.ends
        or features.changes
        or (features.has_slot_substitution and features.frame >= _MIN_SAME_TEMPLATE_RATIO)
    ):
        return {}
    cosine, frame, insights, bias = _DUPLICATE_WEIGHTS
    odds = cosine * features.cosine + frame * features.frame + insights * features.insights + bias
    return {DUPLICATE_FIELD: 0.5 + 0.5 * math.tanh(0.5 * odds)}


def _is_replacement(features: PairFeatures) -> bool:
    """Return True if the new memory says that the old one on the same subject is outdated."""
    much = features.shared_word_ratio_of_old >= _MIN_SHARED_WORD_RATIO and (
        features.shared_word_count >= _MIN_SHARED_WORDS or features.share_entities
    )
    if features.ends:
        return features.moved or much
    other = (
        (features.values_differ or features.denied)
        and not features.has_slot_substitution
        and features.shared_word_ratio_of_old >= _MIN_SHARED_WORD_RATIO
    )
    return features.changes and (
        features.moved
        or (features.share_entities and much)
        or (other and features.shared_word_count >= _MIN_SHARED_WORDS)
    )


def _is_contradiction(features: PairFeatures) -> bool:
    """Return True if two memories on the same subject cannot both be true."""
    much = features.shared_word_count >= _MIN_SHARED_WORDS and features.share >= _MIN_SHARED_WORD_RATIO
    denied = features.denied and much and features.cosine < _MAX_NEGATION_COSINE
    # If both texts also differ in a slot, the negated statement is about another subject.
    if denied and not (features.has_slot_substitution and features.both_have_unshared_words):
        return True
    # Different values alone are weak evidence, because they often belong to another day or thing.
    one_thing = features.share_entities or (features.is_same_decision_topic and not features.left)
    value = features.values_differ and one_thing and features.share >= _MIN_SHARED_WORD_RATIO
    return value or (features.codes_differ and features.is_same_decision_topic)


def find_conflicting_pairs(memories: Iterable[Memory]) -> Iterator[tuple[Memory, Memory]]:
    """
    Yield pairs with equal topics in which the newer memory conflicts with the older one.

    The newer memory contradicts or replaces the older one, and comes first.
    """
    meant = functools.cache(Claims.by)
    some = [memory for memory in memories if memory.topic and memory.type not in TYPES_WITHOUT_DUPLICATES]
    for new, old in combinations(sorted(some, key=lambda memory: (memory.created_at, memory.id), reverse=True), 2):
        if new.topic == old.topic:
            compared = PairFeatures.from_claims(
                meant(new), meant(old), matter=1.0, cosine=0.0, types={new.type, old.type}
            )
            if not classify_pair(compared).keys().isdisjoint((CONTRADICTION_FIELD, REPLACEMENT_FIELD)):
                yield new, old


DUPLICATE_FIELD: Final = "duplicate_of"
CONTRADICTION_FIELD: Final = "possible_conflicts"
REPLACEMENT_FIELD: Final = "possible_replacements"
"""Field names of `SaveWarnings`."""

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
        for one, older in zip(asked, _find_current_memories(reader, asked, found), strict=True)
    ]


def find_same_subject(
    reader: Reader, asked: PendingLinks, found: Mapping[PendingLinks, LinkCandidates]
) -> list[Memory]:
    """Return the current memories that have the same subject or are exact duplicates, newest first."""
    (older,) = _find_current_memories(reader, [asked], found)
    memories = [one.memory for one in older if one.is_same_subject or is_duplicate(one.memory, asked.memory)]
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
    cosine: float = -1.0
    matter: float = 0.0
    is_same_subject: bool = False


def _find_current_memories(
    reader: Reader, asked: Sequence[PendingLinks], found: Mapping[PendingLinks, LinkCandidates]
) -> list[list[_CurrentMemory]]:
    """
    Return, for each memory, the current older memories that may be on its subject.

    These are exact duplicates, and the candidates with the highest probability of the same subject.
    """
    alike = reader.duplicates([duplicate_fingerprint(one.memory) for one in asked])
    nodes = [
        one.select_linkable(
            np.union1d(one.select_linkable(same)[-_MAX_REPORTED:], _most_probable_nodes(found.get(one)))
        )
        for one, same in zip(asked, alike, strict=True)
    ]
    own = {one.node: one.memory for one in asked if one.node is not None}
    others = sorted({node for some in nodes for node in some.tolist()} - own.keys())
    known = own | _read_undamaged(reader, others)
    gone = superseded_nodes(reader, np.array([*others, *own], np.int64))
    return [
        [
            _describe_older(one.memory, known[node], node, found.get(one))
            for node in some.tolist()
            if node in known and node not in gone and _is_current(known[node], one.memory)
        ]
        for one, some in zip(asked, nodes, strict=True)
    ]


def _is_current(old: Memory, new: Memory) -> bool:
    """
    Return True if the older memory may still be true.

    Return False for checkpoints and records, which describe a past state.
    """
    ended = old.valid_until is not None and old.valid_until <= new.created_at
    return not ended and not has_failed(old) and TYPES_WITHOUT_DUPLICATES.isdisjoint({old.type, new.type})


def _describe_older(new: Memory, old: Memory, node: int, candidates: LinkCandidates | None) -> _CurrentMemory:
    at = np.zeros(0, np.int64) if candidates is None else np.flatnonzero(candidates.nodes == node)
    if candidates is None or not len(at):
        return _CurrentMemory(old)
    row = int(at[0])
    one_topic = old.topic is not None and old.topic == new.topic
    matter = float(same_subject_probabilities(candidates.features)[row])
    return _CurrentMemory(old, float(candidates.cosines[row]), matter, one_topic or matter >= _MIN_JUDGE_PROBABILITY)


def _read_undamaged(reader: Reader, nodes: Sequence[int]) -> dict[int, Memory]:
    """
    Return memories by node, or an empty dict if any of them is damaged.

    A damaged memory must not prevent the save of a new one.
    """
    with contextlib.suppress(StoreDamaged):
        return dict(zip(nodes, reader.get(nodes) if nodes else [], strict=True))
    return {}


def _most_probable_nodes(candidates: LinkCandidates | None) -> Nodes:
    """Return the candidates with the highest probability of the same subject."""
    if candidates is None:
        return np.zeros(0, np.int64)
    return candidates.nodes[
        np.argsort(-same_subject_probabilities(candidates.features), kind="stable")[:_MAX_COMPARED_CANDIDATES]
    ]


def _detect_for_memory(new: Memory, older: Sequence[_CurrentMemory], calibration: Calibration) -> SaveWarnings:
    named: list[tuple[str, float, str, float]] = []
    copies: list[RelatedMemory] = []
    meant: Claims | None = None
    for one in older:
        cosine = calibration.slope * (one.cosine - calibration.midpoint)
        if is_duplicate(one.memory, new):
            copies.append(RelatedMemory(one.memory.id, 1.0))
        # Skip the expensive comparison of memories that are dissimilar and on other subjects.
        elif one.is_same_subject or cosine > 0:
            meant = meant or Claims.by(new)
            compared = PairFeatures.from_claims(
                meant, Claims.by(one.memory), matter=one.matter, cosine=cosine, types={new.type, one.memory.type}
            )
            named += [
                (kind, probability, one.memory.id, cosine)
                for kind, probability in classify_pair(compared).items()
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
