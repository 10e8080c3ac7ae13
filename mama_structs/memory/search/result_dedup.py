"""
Which results of a search say what a better one says, and are shown as copies of it: pure functions of memories.

A copy that is not seen costs a place; a contradiction that is taken for a copy is hidden. So memories are alike only if
they have the same numbers, ids, names, denials and turns, no other word in one place, half of their words in common,
and vectors as near as those of one text that is written otherwise. Both bounds were chosen on half a of the month in
tests/data; ``tests/memory/test_folding.py`` tells for half b.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from difflib import SequenceMatcher
from itertools import combinations
from typing import Final

import attrs

from mama_structs.memory.types.claims import Said
from mama_structs.memory.types.duplicates import wording
from mama_structs.memory.types.model import SINGULAR, DecisionMetadata, Memory

COMMON: Final = 0.5
"""The share of the words of the one with fewer that the other one has, too."""
SIMILARITY: Final = 0.995
"""How similar their vectors are at the least, as the embedder's calibration has it, 0 to 1."""

# As many of the best are compared with each other, which takes time for each pair.
_COMPARED: Final = 128
# Of longer texts not all is compared: they are copies only word for word.
_CHARACTERS: Final = 2_000
# Beginnings of words, of which copies have such a share in common: what has less is not compared closely.
_BEGINNING: Final = 3
_BEGINNINGS: Final = 0.3
_WORD: Final = re.compile(r"\w+")
_NAME: Final = re.compile(r"(?<=[^\s.!?:] )[A-Z][\w-]*|\b\w*[a-z0-9_][A-Z]\w*|\b[A-Z]{2,}\w*|\b\w+_\w+")
# What may turn a sense round, much as the rest is alike, and is no word that searches go by.
_TURN: Final = re.compile(
    r"\b(?:before|after|until|since|above|below|over|under|up|down|off|out|without|only|except|unless|more|less|most"
    r"|least|fewer|first|last|always|all|none|any|every|min(?:imum)?|max(?:imum)?|at)\b"
    r"|이전|이후|전에|후에|이상|이하|미만|초과|최대|최소|처음|마지막|항상|모두|제외",
    re.IGNORECASE,
)

Likeness = Callable[[Sequence[tuple[int, int]]], Sequence[float]]
"""Gives how similar the vectors of memories are, pair by pair, 0 to 1; asked once, and only where it decides."""


def folded(memories: Sequence[Memory], standing: Sequence[Hashable], likeness: Likeness) -> list[int]:
    """
    Return for each memory the place of the one that it is shown with: the first that says the same, or itself.

    Args:
        memories: Results, best first.
        standing: How each of them stands beside what it says: where that differs none is a copy.
        likeness: Tells how similar their vectors are.

    """
    count = len(memories)
    memories, standing = memories[:_COMPARED], standing[:_COMPARED]
    texts = [_Foldable.of(memory, stands) for memory, stands in zip(memories, standing, strict=True)]
    pairs = [pair for pair in combinations(range(len(texts)), 2) if _may_be_alike(texts[pair[0]], texts[pair[1]])]
    said = {place: _Said.of(memories[place]) for place in {place for pair in pairs for place in pair}}
    same = {pair for pair in pairs if texts[pair[0]].wording == texts[pair[1]].wording}
    alike = [pair for pair in pairs if pair not in same and _say_the_same(said[pair[0]], said[pair[1]])]
    if alike:
        same |= {pair for pair, similar in zip(alike, likeness(alike), strict=True) if similar >= SIMILARITY}
    shown: list[int] = []
    for place in range(len(texts)):
        # Only what is shown has copies: of a row of texts, each a little other than the one before, the ends differ.
        shown.append(next((one for one in range(place) if shown[one] == one and (one, place) in same), place))
    return [*shown, *range(len(shown), count)]


@attrs.frozen(eq=False)
class _Foldable:
    """What is looked at of every memory."""

    standing: Hashable
    wording: int
    beginnings: frozenset[str]

    @classmethod
    def of(cls, memory: Memory, standing: Hashable) -> _Foldable:
        metadata = memory.metadata
        outcome = metadata.outcome if isinstance(metadata, DecisionMetadata) else None
        words = _WORD.findall(memory.content[:_CHARACTERS].lower())
        own: Hashable = (memory.type, memory.topic, memory.trust, memory.valid_until, outcome, standing)
        if memory.type in SINGULAR:
            # It is a copy of none.
            own = memory.id
        return cls(own, wording(memory), frozenset([word[:_BEGINNING] for word in words]))


def _may_be_alike(one: _Foldable, other: _Foldable) -> bool:
    fewer = min(len(one.beginnings), len(other.beginnings))
    return one.standing == other.standing and len(one.beginnings & other.beginnings) >= _BEGINNINGS * fewer


@attrs.frozen(eq=False)
class _Said:
    """What is compared of memories that may be alike."""

    said: Said
    words: Sequence[str]
    names: frozenset[str]
    turns: frozenset[str]
    lower: str
    is_long: bool

    @classmethod
    def of(cls, memory: Memory) -> _Said:
        content = memory.content
        lower = content.lower()
        return cls(
            said=Said.by(memory),
            words=_WORD.findall(lower[:_CHARACTERS]),
            names=frozenset([name.lower() for name in _NAME.findall(content[:_CHARACTERS])]),
            turns=frozenset([turn.lower() for turn in _TURN.findall(content[:_CHARACTERS])]),
            lower=lower,
            is_long=len(content) > _CHARACTERS,
        )


def _say_the_same(one: _Said, other: _Said) -> bool:
    """Tell whether nothing in two texts says that they mean other things, and much that they mean one."""
    first, second = one.said, other.said
    fewer = min(len(first.all_words), len(second.all_words))
    return (
        not (one.is_long or other.is_long)
        and (first.all_numbers, first.entities, first.codes, first.denies)
        == (second.all_numbers, second.entities, second.codes, second.denies)
        and one.turns == other.turns
        and all(name in other.lower for name in one.names)
        and all(name in one.lower for name in other.names)
        and len(first.all_words & second.all_words) >= COMMON * fewer
        and not _differ_in_one_place(one.words, other.words)
    )


def _differ_in_one_place(one: Sequence[str], other: Sequence[str]) -> bool:
    """Tell whether other words stand in one place, or the same words in another order."""
    if one == other:
        return False
    changes = [
        change for change in SequenceMatcher(None, one, other, autojunk=False).get_opcodes() if change[0] != "equal"
    ]
    return (len(changes) == 1 and changes[0][0] == "replace") or sorted(one) == sorted(other)
