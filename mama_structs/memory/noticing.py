"""
What stands on the matter of a new memory: copies, contradictions, replacements (DESIGN section 6a).

A memory says something of something. Two that differ in what they say disagree; two that differ in what they say it of
are strangers, however alike they look. So what two texts do not have in common tells more than what they have.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import combinations, pairwise
from typing import Final

import attrs
import numpy as np

from mama_structs.errors import StoreDamaged
from mama_structs.memory.copies import has_failed, is_copy, superseded, wording
from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.engine import Nodes, Reader
from mama_structs.memory.judging import Verdict
from mama_structs.memory.linking import LinkCandidates, Unlinked, probabilities
from mama_structs.memory.model import DecisionMetadata, Memory, MemoryType, Noticed, NoticedMemory
from mama_structs.memory.text import analysed, query_terms

# Of the candidates the likeliest are read: in the month of tests/data none that counts stood behind the fifth.
_READ: Final = 5
_NAMED: Final = 5
_CHARACTERS: Final = 2_000
# Candidates are of one matter if that is as probable as not; what stands somehow to the new one is named if it is this
# probable: of half a of the month 95 of 100 then said the same in other words, were numbers and ids not looked at.
_LIKELY: Final = 0.5
_SURE: Final = 0.7
# Words that stay where another one stands in one place, and how many words that place has at the most.
_FRAME: Final = 3
_PLACE: Final = 2
# Fitted to half a of the month in tests/data, with the default embedder and as if numbers and ids were words: what a
# step of cosine, a spread of likeness and a frame add to the logarithm of the odds that two say the same; the last is
# that of two without any.
_SAME: Final = (2.5, 0.53, -8.4, -13.0)
# The share of those so noticed that were right there; see ``benchmarks/month.py``.
_REPLACED: Final = 0.85
_CONTRADICTED: Final = 0.8

_TOKENS: Final = re.compile(r"\d[\d,.:]*(?:-\d+)*(?:[%€$]|[a-z]+|[가-힣]+)?|[a-z_][a-z0-9_'-]*|[가-힣]+")
_NUMBER: Final = re.compile(r"(\d[\d,.:]*(?:-\d+)*)(.*)")
_ENTITY: Final = re.compile(r"\d+-\d+(?!-?\d)")
_SPELT: Final = {
    word: str(number)
    for number, word in enumerate(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    )
}
_DENYING: Final = re.compile(
    r"\b(?:not|never|no(?!\. ?\d)|none|nothing|nobody|neither|nor|without|cannot|forbidden|banned)\b|n't\b"
    r"|않|못|없|금지|말 것|아니|아닌|\b안 (?=[가-힣])"
)
_CHANGING: Final = re.compile(
    r"\b(?:no longer|any ?more|instead|rather than|replac(?:e|es|ed|ing)|switch(?:es|ed|ing)?|migrat(?:e|es|ed|ing)"
    r"|chang(?:e|es|ed|ing)|supersed\w+|obsolete|deprecated|used to|formerly|previously|until now|revert(?:s|ed|ing)?"
    r"|rais(?:e|es|ed|ing)|lower(?:s|ed|ing)?|from now on|now|since|(?:back|up|down|over) to|drop(?:s|ped)|cancel\w*"
    r"|turned|became|moved?|as of|retired?)\b"
    r"|더 ?이상|이제|대신|변경|바꾸|바꿔|바꿨|바뀌|바뀐|바뀜|전환|교체|폐기|철회|말고|기존|예전|늘리|늘린|늘렸"
    r"|줄이|줄인|줄였|상향|하향|취소|앞으로|중단|옮기|옮긴|미루|미뤄|연기"
)


@attrs.frozen
class Said:
    """What a memory says, as far as it is compared."""

    order: tuple[str, ...]
    """The terms of its content, each word's first, in the order of the text."""
    words: frozenset[str]
    """The same and all their parts; `all_words` has those of its reasoning too."""
    all_words: frozenset[str]
    values: Mapping[str, frozenset[str]]
    """The numbers of its content by what they count; `all_numbers` has those of its reasoning too."""
    all_numbers: frozenset[str]
    entities: frozenset[str]
    codes: frozenset[str]
    """Names with digits in them."""
    denies: bool
    tells_change: bool

    @classmethod
    def by(cls, memory: Memory) -> Said:
        """Return what a memory says."""
        content = _plain(memory.content)
        reasoning = _plain(memory.metadata.reasoning if isinstance(memory.metadata, DecisionMetadata) else "")
        tokens, why = _tokens(content), _tokens(reasoning)
        values, words = _values_in(tokens), frozenset(_words_of(content))
        asked = [word.asked for word in analysed(content).words.values()]
        return cls(
            order=tuple(terms[0][0] for terms in asked if terms),
            words=words,
            all_words=words.union(_words_of(reasoning)),
            values=values,
            all_numbers=_all(values) | _all(_values_in(why)),
            entities=frozenset(found[0] for found in map(_ENTITY.match, tokens) if found is not None),
            codes=frozenset(token for token in tokens if token[0].isalpha() and any(map(str.isdigit, token))),
            denies=len(_DENYING.findall(content)) % 2 == 1,
            tells_change=_CHANGING.search(content) is not None,
        )


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text[:_CHARACTERS]).lower()


def _words_of(text: str) -> list[str]:
    return [term for term in query_terms(text) if not term[0].isdigit()]


def _tokens(text: str) -> list[str]:
    return [_SPELT.get(token, token) for token in _TOKENS.findall(text)]


def _values_in(tokens: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return numbers by what they count: what is written behind them, of Korean its first syllable."""
    values: dict[str, set[str]] = {}
    for token, after in pairwise([*tokens, ""]):
        found = _NUMBER.fullmatch(token)
        if found is not None and not _ENTITY.match(token):
            unit = found[2] or ("" if after[:1].isdigit() else next(iter(query_terms(after)), after))
            # Particles behind a counter are no part of it.
            values.setdefault(unit if unit.isascii() else unit[:1], set()).add(found[1].replace(",", "").rstrip(".:-"))
    return {unit: frozenset(numbers) for unit, numbers in values.items()}


def _all(values: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*values.values())


@attrs.frozen(kw_only=True)
class Compared:
    """How a new memory and an older one differ."""

    one_matter: bool  # they have one topic, or are as probably of one matter as not, as links have it

    cosine: float  # in the steps of the embedder's calibration, 0 where it is as likely alike as not
    likeness: float  # their cosine in spreads above what is usual in this store, as `LinkFeatures` has it
    one_choice: bool  # they are decisions of one topic
    same_words: bool  # neither has a word that the other has not
    frame: float  # how much of them is the same around other words, 0 to 1
    one_place: bool  # these words stand in one place, behind their beginning
    other_numbers: bool  # each has a number that the other has not
    other_values: bool  # of something that both count they have no number in common
    other_entities: bool
    same_entities: bool  # they have an entity in common, and not each another one
    other_codes: bool
    denied: bool  # one of them denies
    changes: bool  # the new one tells of a change
    moved: bool  # the new one names a number of the older one, and another one

    @classmethod
    def of(
        cls, new: Said, old: Said, *, cosine: float, likeness: float, one_matter: bool, one_choice: bool
    ) -> Compared:
        """Compare what two memories say."""
        numbers, before = _all(new.values), _all(old.values)
        counted = new.values.keys() & old.values.keys()
        other_entities = _differ(new.entities, old.entities)
        frame, one_place = _frame(new.order, old.order)
        return cls(
            cosine=cosine,
            likeness=likeness,
            one_matter=one_matter,
            one_choice=one_choice,
            same_words=new.words == old.words,
            frame=frame,
            one_place=one_place,
            other_numbers=_differ(numbers, before),
            other_values=any(not new.values[unit] & old.values[unit] for unit in counted),
            other_entities=other_entities,
            same_entities=bool(new.entities & old.entities) and not other_entities,
            other_codes=_differ(new.codes, old.codes),
            denied=new.denies != old.denies,
            changes=new.tells_change,
            moved=bool(before & new.all_numbers and numbers - before),
        )


def _differ(some: frozenset[str], others: frozenset[str]) -> bool:
    return bool(some - others and others - some)


def _frame(new: Sequence[str], old: Sequence[str]) -> tuple[float, bool]:
    """
    Return how much of two texts is a frame in which other words stand, 0 to 1, and whether these stand in one place.

    Two texts of one frame are of two things; but what stands in one place behind the beginning, where mostly that is of
    which something is said, is what they say of one.
    """
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    places = [place for place in matcher.get_opcodes() if place[0] != "equal"]
    if all(kind != "replace" for kind, *_ in places):
        return 0.0, False
    (_, start, end, new_start, new_end), *others = places
    sizes = sorted((end - start, new_end - new_start))
    stays = min(len(old) - sizes[0], len(new) - sizes[1])
    is_one = not others and start > 0 and sizes[0] == 1 and sizes[1] <= _PLACE and stays >= _FRAME
    return matcher.ratio(), is_one


def judged(compared: Compared) -> Mapping[str, float]:
    """Return how probable it is that a memory says the same as an older one, contradicts or replaces it."""
    if compared.other_entities:
        return {}
    if compared.one_matter and compared.changes and (compared.moved or compared.same_entities):
        return {REPLACES: _REPLACED}
    # Of one matter: another value of the same entity, or another method or version chosen.
    other = (compared.other_values and compared.same_entities) or (compared.other_codes and compared.one_choice)
    if (other and compared.one_matter) or compared.one_place or (compared.denied and compared.same_words):
        return {CONTRADICTS: _CONTRADICTED}
    if compared.other_numbers or compared.other_codes:
        return {}
    cosine, likeness, frame, bias = _SAME
    odds = cosine * compared.cosine + likeness * compared.likeness + frame * compared.frame + bias
    return {COPIES: 0.5 + 0.5 * math.tanh(0.5 * odds)}


def disagreeing(memories: Iterable[Memory]) -> Iterator[tuple[Memory, Memory]]:
    """Yield those pairs, the newer one first, of one topic of which one contradicts or replaces the other."""
    said = functools.cache(Said.by)
    some = [memory for memory in memories if memory.topic and memory.type is not MemoryType.CHECKPOINT]
    for new, old in combinations(sorted(some, key=lambda memory: (memory.created_at, memory.id), reverse=True), 2):
        if new.topic == old.topic:
            is_choice = new.type is old.type is MemoryType.DECISION
            compared = Compared.of(
                said(new), said(old), cosine=0.0, likeness=0.0, one_matter=True, one_choice=is_choice
            )
            if not judged(compared).keys().isdisjoint((CONTRADICTS, REPLACES)):
                yield new, old


COPIES: Final = "copy_of"
CONTRADICTS: Final = "may_contradict"
REPLACES: Final = "may_replace"
"""The fields of `Noticed`."""

_SAID: Final[Mapping[str, Verdict]] = {COPIES: "copy", CONTRADICTS: "contradict", REPLACES: "replace"}
"""What a judge says of what is noticed there."""


def noticed(
    reader: Reader, asked: Sequence[Unlinked], found: Mapping[Unlinked, LinkCandidates], calibration: Calibration
) -> list[Noticed]:
    """
    Return what stands on the matter of each of some memories, read all at once.

    Args:
        reader: What is read.
        asked: The memories, saved together; they may be in no row yet.
        found: Their candidates for links; of one that has none only copies word for word are noticed.
        calibration: What the embedder's cosines mean.

    """
    return [
        _noticed_by(one.memory, older, calibration)
        for one, older in zip(asked, _standing(reader, asked, found), strict=True)
    ]


def of_the_matter(reader: Reader, asked: Unlinked, found: Mapping[Unlinked, LinkCandidates]) -> list[Memory]:
    """Return what stands on the matter of a memory, or says the same word for word, newest first."""
    (older,) = _standing(reader, [asked], found)
    memories = [one.memory for one in older if one.one_matter or is_copy(one.memory, asked.memory)]
    return sorted(memories, key=lambda memory: memory.created_at, reverse=True)


def judged_by(noticed: Noticed, verdicts: Mapping[str, Verdict], note: str | None) -> Noticed:
    """Return what was noticed with a judge's words in the place of ours, and a note of why it said nothing."""
    named = {
        kind: (
            *(NoticedMemory(memory_id, 1.0) for memory_id, word in verdicts.items() if word == _SAID[kind]),
            *(one for one in getattr(noticed, kind) if one.id not in verdicts),
        )
        for kind in (COPIES, CONTRADICTS, REPLACES)
    }
    return _as_noticed(named, note)


@attrs.frozen
class _Older:
    """A memory that still holds, and how near it is to another one."""

    memory: Memory
    cosine: float = -1.0
    likeness: float = 0.0
    one_matter: bool = False


def _standing(
    reader: Reader, asked: Sequence[Unlinked], found: Mapping[Unlinked, LinkCandidates]
) -> list[list[_Older]]:
    """Return, for each of some memories, what is likeliest to stand on its matter, and still holds."""
    alike = reader.alike([wording(one.memory) for one in asked])
    nodes = [
        one.seen(np.union1d(one.seen(same)[-_NAMED:], _likeliest(found.get(one))))
        for one, same in zip(asked, alike, strict=True)
    ]
    own = {one.node: one.memory for one in asked if one.node is not None}
    others = sorted({node for some in nodes for node in some.tolist()} - own.keys())
    known = own | _readable(reader, others)
    gone = superseded(reader, np.array([*others, *own], np.int64))
    return [
        [
            _older(one.memory, known[node], node, found.get(one))
            for node in some.tolist()
            if node in known and node not in gone and _holds(known[node], one.memory)
        ]
        for one, some in zip(asked, nodes, strict=True)
    ]


def _holds(old: Memory, new: Memory) -> bool:
    """Tell whether what an older memory says may still hold; what was done by then always does."""
    ended = old.valid_until is not None and old.valid_until <= new.created_at
    return not ended and not has_failed(old) and MemoryType.CHECKPOINT not in {old.type, new.type}


def _older(new: Memory, old: Memory, node: int, candidates: LinkCandidates | None) -> _Older:
    at = np.zeros(0, np.int64) if candidates is None else np.flatnonzero(candidates.nodes == node)
    if candidates is None or not len(at):
        return _Older(old)
    row = int(at[0])
    one_topic = old.topic is not None and old.topic == new.topic
    return _Older(
        old,
        float(candidates.cosines[row]),
        float(candidates.features.likeness[row]),
        one_topic or bool(probabilities(candidates.features)[row] >= _LIKELY),
    )


def _readable(reader: Reader, nodes: Sequence[int]) -> dict[int, Memory]:
    """Return memories by node, none where one of them is damaged: nobody's save shall fail for it."""
    with contextlib.suppress(StoreDamaged):
        return dict(zip(nodes, reader.get(nodes) if nodes else [], strict=True))
    return {}


def _likeliest(candidates: LinkCandidates | None) -> Nodes:
    """Return the candidates that are most probably of one matter."""
    if candidates is None:
        return np.zeros(0, np.int64)
    return candidates.nodes[np.argsort(-probabilities(candidates.features), kind="stable")[:_READ]]


def _noticed_by(new: Memory, older: Sequence[_Older], calibration: Calibration) -> Noticed:
    named: dict[str, list[NoticedMemory]] = {}
    said: Said | None = None
    for one in older:
        cosine = calibration.slope * (one.cosine - calibration.midpoint)
        found: Mapping[str, float] = {}
        if is_copy(one.memory, new):
            found = {COPIES: 1.0}
        # What is neither of the matter nor alike is not worth taking apart.
        elif one.one_matter or cosine > 0:
            said = said or Said.by(new)
            choices = {(memory.type, memory.topic) for memory in (new, one.memory)}
            compared = Compared.of(
                said,
                Said.by(one.memory),
                cosine=cosine,
                likeness=one.likeness,
                one_matter=one.one_matter,
                one_choice=len(choices) == 1 and new.type is MemoryType.DECISION,
            )
            found = judged(compared)
        for kind, probability in found.items():
            if probability >= _SURE:
                named.setdefault(kind, []).append(NoticedMemory(one.memory.id, probability))
    surest = {kind: tuple(sorted(some, key=lambda one: -one.probability)[:_NAMED]) for kind, some in named.items()}
    return _as_noticed(surest)


def _as_noticed(named: Mapping[str, tuple[NoticedMemory, ...]], note: str | None = None) -> Noticed:
    copies, contradicted, replaced = (named.get(kind, ()) for kind in (COPIES, CONTRADICTS, REPLACES))
    return Noticed(copy_of=copies, may_contradict=contradicted, may_replace=replaced, note=note)
