"""
Deduplication of search results: a result that repeats a better one is folded into it.

A missed copy wastes one place of the results, but a contradiction mistaken for a copy would be hidden. So copies must
have the same numbers, ids, names, negations and polarity words, and no substituted word in one slot. They must share
half of their words, and have vectors as similar as those of one text in two spellings. Both thresholds were chosen on
half a of the month in tests/data. ``tests/memory/search/test_result_dedup.py`` reports the results for half b.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from difflib import SequenceMatcher
from itertools import combinations
from typing import Final

import attrs

from mama_structs.memory.types.claims import ParsedText
from mama_structs.memory.types.duplicates import duplicate_fingerprint
from mama_structs.memory.types.model import TYPES_WITHOUT_DUPLICATES, DecisionMetadata, Memory

MIN_SHARED_WORD_RATIO: Final = 0.5
"""Minimum ratio of shared words, relative to the memory with fewer words."""
MIN_SIMILARITY: Final = 0.995
"""Minimum similarity of the vectors, from 0 to 1, by the embedder's calibration."""

# Maximum number of compared results. The limit bounds the number of pairs, and so the time.
_MAX_COMPARED_RESULTS: Final = 128
# Maximum length of compared texts. Longer texts are copies only if they are exact duplicates.
_MAX_COMPARED_CHARS: Final = 2_000
# The cheap pre-filter for pairs compares only this many leading characters of each word.
_PREFIX_CHARS: Final = 3
# Pairs with a lower ratio of shared prefixes are not compared further.
_MIN_SHARED_PREFIX_RATIO: Final = 0.3
_WORD_PATTERN: Final = re.compile(r"\w+")
_NAME_PATTERN: Final = re.compile(r"(?<=[^\s.!?:] )[A-Z][\w-]*|\b\w*[a-z0-9_][A-Z]\w*|\b[A-Z]{2,}\w*|\b\w+_\w+")
# Words that can invert the meaning of similar texts. The search ignores them as stop words.
_POLARITY_WORD_PATTERN: Final = re.compile(
    r"\b(?:before|after|until|since|above|below|over|under|up|down|off|out|without|only|except|unless|more|less|most"
    r"|least|fewer|first|last|always|all|none|any|every|min(?:imum)?|max(?:imum)?|at)\b"
    r"|이전|이후|전에|후에|이상|이하|미만|초과|최대|최소|처음|마지막|항상|모두|제외",
    re.IGNORECASE,
)

SimilarityFunction = Callable[[Sequence[tuple[int, int]]], Sequence[float]]
"""Returns the similarity, 0 to 1, of the vectors of each pair. Called at most once, and only if it decides."""


def find_folds(memories: Sequence[Memory], states: Sequence[Hashable], similarity: SimilarityFunction) -> list[int]:
    """
    Return, for each result, the index of the better result that it repeats, or its own index.

    Args:
        memories: Results, best first.
        states: Supersession state of each result. Results with different states are never copies.
        similarity: Computes the similarity of the vectors of pairs.

    """
    count = len(memories)
    memories, states = memories[:_MAX_COMPARED_RESULTS], states[:_MAX_COMPARED_RESULTS]
    texts = [_CheapFeatures.from_memory(memory, stands) for memory, stands in zip(memories, states, strict=True)]
    pairs = [pair for pair in combinations(range(len(texts)), 2) if _may_be_copies(texts[pair[0]], texts[pair[1]])]
    said = {
        place: _DetailedFeatures.from_memory(memories[place]) for place in {place for pair in pairs for place in pair}
    }
    same = {pair for pair in pairs if texts[pair[0]].wording == texts[pair[1]].wording}
    alike = [pair for pair in pairs if pair not in same and _are_copies(said[pair[0]], said[pair[1]])]
    if alike:
        same |= {pair for pair, similar in zip(alike, similarity(alike), strict=True) if similar >= MIN_SIMILARITY}
    shown: list[int] = []
    for place in range(len(texts)):
        # Compare with displayed results only, because slight differences add up along a chain of similar texts.
        shown.append(next((one for one in range(place) if shown[one] == one and (one, place) in same), place))
    return [*shown, *range(len(shown), count)]


@attrs.frozen(eq=False)
class _CheapFeatures:
    """Features for the pre-filter, cheap enough to compute for every result."""

    standing: Hashable
    wording: int
    word_prefixes: frozenset[str]

    @classmethod
    def from_memory(cls, memory: Memory, standing: Hashable) -> _CheapFeatures:
        metadata = memory.metadata
        outcome = metadata.outcome if isinstance(metadata, DecisionMetadata) else None
        words = _WORD_PATTERN.findall(memory.content[:_MAX_COMPARED_CHARS].lower())
        own: Hashable = (memory.type, memory.topic, memory.trust, memory.valid_until, outcome, standing)
        if memory.type in TYPES_WITHOUT_DUPLICATES:
            # Memories of these types have no duplicates, so the key of each is unique.
            own = memory.id
        return cls(own, duplicate_fingerprint(memory), frozenset([word[:_PREFIX_CHARS] for word in words]))


def _may_be_copies(one: _CheapFeatures, other: _CheapFeatures) -> bool:
    fewer = min(len(one.word_prefixes), len(other.word_prefixes))
    return (
        one.standing == other.standing
        and len(one.word_prefixes & other.word_prefixes) >= _MIN_SHARED_PREFIX_RATIO * fewer
    )


@attrs.frozen(eq=False)
class _DetailedFeatures:
    """Detailed features of a memory that may have copies."""

    said: ParsedText
    words: Sequence[str]
    names: frozenset[str]
    turns: frozenset[str]
    lower: str
    is_long: bool

    @classmethod
    def from_memory(cls, memory: Memory) -> _DetailedFeatures:
        content = memory.content
        lower = content.lower()
        return cls(
            said=ParsedText.by(memory),
            words=_WORD_PATTERN.findall(lower[:_MAX_COMPARED_CHARS]),
            names=frozenset([name.lower() for name in _NAME_PATTERN.findall(content[:_MAX_COMPARED_CHARS])]),
            turns=frozenset([turn.lower() for turn in _POLARITY_WORD_PATTERN.findall(content[:_MAX_COMPARED_CHARS])]),
            lower=lower,
            is_long=len(content) > _MAX_COMPARED_CHARS,
        )


def _are_copies(one: _DetailedFeatures, other: _DetailedFeatures) -> bool:
    """Return True if two texts share enough words and no feature indicates different meanings."""
    first, second = one.said, other.said
    fewer = min(len(first.all_words), len(second.all_words))
    return (
        not (one.is_long or other.is_long)
        and (first.all_numbers, first.entities, first.codes, first.is_negated)
        == (second.all_numbers, second.entities, second.codes, second.is_negated)
        and one.turns == other.turns
        and all(name in other.lower for name in one.names)
        and all(name in one.lower for name in other.names)
        and len(first.all_words & second.all_words) >= MIN_SHARED_WORD_RATIO * fewer
        and not _differ_in_one_slot(one.words, other.words)
    )


def _differ_in_one_slot(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return True if the texts differ in one slot, or contain the same words in another order."""
    if one == other:
        return False
    changes = [
        change for change in SequenceMatcher(None, one, other, autojunk=False).get_opcodes() if change[0] != "equal"
    ]
    return (len(changes) == 1 and changes[0][0] == "replace") or sorted(one) == sorted(other)
