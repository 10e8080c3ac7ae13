"""What a memory says, as far as memories are compared: words, values, denials, and cues that something changed."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import attrs

from mama_structs.memory.types.model import DecisionMetadata, Memory
from mama_structs.memory.types.text_analysis import analysed, query_terms

_CHARACTERS: Final = 2_000
# Words that differ behind so many letters are forms of one.
_BEGINNING: Final = 5

_TOKENS: Final = re.compile(r"\d[\d,.:]*(?:-\d+)*(?:[%€$]|[a-z]+|[가-힣]+)?|[a-z_][a-z0-9_'-]*|[가-힣]+")
_NUMBER: Final = re.compile(r"(\d[\d,.:]*(?:-\d+)*)(.*)")
_ENTITY: Final = re.compile(r"\d+-\d+(?!-?\d)")
_KOREAN: Final = re.compile(r"[가-힣]")
_SPELT: Final = {
    word: str(number)
    for number, word in enumerate(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    )
}
_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS: Final = ("january", "february", "march", "april", "june", "july", "august", "september", "october", "november")
_CALENDAR: Final[Mapping[str, tuple[str, str]]] = {
    name: ("weekday", f"weekday {number}")
    for number, (english, korean) in enumerate(zip(_WEEKDAYS, "월화수목금토일", strict=True))
    # A root of the Korean word is without its last syllable.
    for name in (english, f"{english}s", f"{korean}요일", f"{korean}요")
} | {name: ("month", name) for name in (*_MONTHS, "december")}
_DENIALS: Final = re.compile(
    r"\b(?:not|never|no(?!\. ?\d)|none|nothing|nobody|neither|nor|without|cannot|forbidden|banned)\b|n't\b"
    r"|않|못|없|금지|말 것|아니|아닌|\b안 (?=[가-힣])"
)
# What is denied stands behind the one kind of words, and before the other one.
_DENYING_NEXT: Final = re.compile(
    r"^\W*(?:not|never|no|none|nothing|nobody|neither|nor|without|cannot|forbidden|banned)\b|n't\b|^안$"
)
_DENYING_LAST: Final = re.compile(r"않|못|없|금지|아니|아닌")
_NEXT: Final = 4
_LAST: Final = 3
_ENDING: Final = re.compile(
    r"\b(?:no longer|no more|any ?more|instead|in place of|rather than|replac(?:es?|ed|ing)|supersed\w+|obsolete"
    r"|now on|until (?:now|further notice)|after all|cancel\w*|put off|postpon\w+|(?:brought|moved) forward"
    r"|(?:has|have|had) (?:left|moved|taken over)|took over|taken over|switch(?:es|ed|ing)?|migrat(?:es?|ed|ing)"
    r"|dropped|revert\w*|retired?|used to|formerly|became|shift(?:s|ed)?|g[ai]ven? (?:up|away)|as of|not only)\b"
    r"|더 ?이상|대신|바꾸|바꿔|바꿨|바뀌|바뀐|바뀜|전환|교체|폐기|철회|취소|말고|그만|옮기기로|옮긴다|옮겼|옮김|미루"
    r"|미뤄|미룬|연기|앞당|앞으로|부터는|중단|이제|상향|하향|변경"
)
_CHANGING: Final = re.compile(
    r"\b(?:now|mov(?:es?|ed|ing)|chang(?:es?|ed|ing)|rais(?:es?|ed|ing)|lower(?:ed|ing)|(?:back|up|down|over) to"
    r"|already|gave|yesterday|today|this (?:morning|week)|deprecated|previously|turned|drops?)\b"
    r"|늘리|늘린|늘렸|줄이|줄인|줄였|기존|예전|오늘|어제|새로|주부터|옮기|옮긴|에서 \S*로\b"
)
_ADDING: Final = re.compile(r"\b(?:also|besides|additional(?:ly)?|another|adds?|added)\b|추가|또한|별도")
_OPPOSITES: Final = tuple(
    pair.split("/")
    for pair in """
    always/never safe/stolen on/off enable/disable open/closed morning/evening before/after above/below east/west
    left/right dark/light allow/forbid ally/enemy ally/hostile keep/drop keep/delete less/more min/max first/last
    day/night north/south up/down raise/lower slow/fast with/without same/different public/private sync/async
    아침/저녁 오전/오후 켜/끄 있/없 먼저/나중 왼쪽/오른쪽 공격/방어 허용/금지 없애/내기
    """.split()  # noqa: SIM905 - a list would be a page long
)
# Words that are used of anything.
_ANYTHING: Final = frozenset(
    term
    for word in """
    use uses used keep keeps kept go goes take takes make makes get gets put puts run runs set sets give gives come
    comes stay stays stand stands be have has let does do done will would should must may can need needs want there
    here it also only one two our we us all every each any per about around very really just still again 한다 둔다 쓴다
    된다 간다 낸다 있다 없다 이다 하기로 한 쓰기로 둔 것 수 때 때문 위해 매번 그 이 저 우리 정도 약 대략
    """.split()  # noqa: SIM905 - a list would be a page long
    for term in (query_terms(word) or (word,))
)


@attrs.frozen
class Said:
    """What a memory says."""

    order: tuple[str, ...]
    """The terms of its content, each word's first, in the order of the text."""
    words: frozenset[str]
    """The same and all their parts; `all_words` has those of its reasoning too."""
    all_words: frozenset[str]
    values: Mapping[str, frozenset[str]]
    """The numbers, weekdays and months of its content by what they count; `all_numbers` has its reasoning's too."""
    all_numbers: frozenset[str]
    entities: frozenset[str]
    codes: frozenset[str]
    """Names with digits in them."""
    denies: bool

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
            all_numbers=all_of(values) | all_of(_values_in(why)),
            entities=frozenset(found[0] for found in map(_ENTITY.match, tokens) if found is not None),
            codes=frozenset(token for token in tokens if token[0].isalpha() and any(map(str.isdigit, token))),
            denies=len(_DENIALS.findall(content)) % 2 == 1,
        )


@attrs.frozen
class Meant:
    """What a memory says, and by which words it can be seen how it stands to another one."""

    said: Said
    told: Mapping[str, frozenset[str]]
    """The words of its content that are not used of anything, each with its parts."""
    topic: frozenset[str]
    denied: frozenset[str]
    sides: frozenset[tuple[int, int]]
    """The opposites that it names, each by its pair and its place in it."""
    ending: frozenset[str]
    """Words that tell that something holds no more; `changing` has those that only may."""
    changing: frozenset[str]
    adds: bool

    @classmethod
    def by(cls, memory: Memory) -> Meant:
        """Return what a memory says."""
        said, content = Said.by(memory), _plain(memory.content)
        told = {terms[0][0]: terms for word in analysed(content).words.values() if (terms := word.asked)}
        tokens = {*_TOKENS.findall(content), *said.order}
        return cls(
            said=said,
            told={
                term: frozenset(part for part, _ in terms)
                for term, terms in told.items()
                if not term[0].isdigit() and term not in _ANYTHING and term not in _CALENDAR
            },
            topic=frozenset(query_terms((memory.topic or "").replace("_", " ").replace("-", " "))),
            denied=_terms_of(_denied(content.split())),
            sides=frozenset(
                (number, side) for number, pair in enumerate(_OPPOSITES) for side in (0, 1) if pair[side] in tokens
            ),
            ending=frozenset(_ENDING.findall(content)),
            changing=frozenset(_CHANGING.findall(content)),
            adds=_ADDING.search(content) is not None,
        )

    def left(self, other: Meant) -> frozenset[str]:
        """Return what it says that another one does not say in any form."""
        others = other.said.words | (self.topic if self.topic == other.topic else frozenset())
        beginnings = {word[:_BEGINNING] for word in other.told if len(word) >= _BEGINNING and not _KOREAN.search(word)}
        return frozenset(
            term
            for term, parts in self.told.items()
            if not _is_said(term, parts, others) and term[:_BEGINNING] not in beginnings
        )

    def opposes(self, other: Meant) -> bool:
        """Tell whether it names one of two opposites, and the other one the other."""
        return any(
            (number, side) not in other.sides and (number, 1 - side) in other.sides - self.sides
            for number, side in self.sides
        )


def _is_said(term: str, parts: frozenset[str], others: frozenset[str]) -> bool:
    """Tell whether a word, or enough of its parts, is among others."""
    more = parts - {term}
    # Of a Korean word the pairs of syllables are its parts, of which one tells nothing.
    enough = len(more) / 2 if _KOREAN.search(term) else 1
    return term in others or (bool(more) and len(more & others) >= max(enough, 1))


def differ(some: frozenset[str], others: frozenset[str]) -> bool:
    """Tell whether each has what the other has not."""
    return bool(some - others and others - some)


def all_of(values: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return all values, whatever they count."""
    return frozenset().union(*values.values())


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text[:_CHARACTERS]).lower()


def _words_of(text: str) -> list[str]:
    return [term for term in query_terms(text) if not term[0].isdigit()]


def _terms_of(words: Iterable[str]) -> frozenset[str]:
    return frozenset(term for word in words for term in query_terms(word) if term not in _ANYTHING)


def _denied(words: Sequence[str]) -> Iterator[str]:
    """Give the words that are near to a denial, where it has what it denies."""
    for at, word in enumerate(words):
        if _DENYING_NEXT.search(word):
            yield from words[at + 1 : at + 1 + _NEXT]
        elif _DENYING_LAST.search(word):
            yield from words[max(at - _LAST, 0) : at + 1]


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
        named = _CALENDAR.get(token) or _CALENDAR.get(token[:3])
        if named is not None:
            values.setdefault(named[0], set()).add(named[1])
    return {unit: frozenset(numbers) for unit, numbers in values.items()}
