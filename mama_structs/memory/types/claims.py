"""Extraction of words, values, negations and change cues for conflict detection."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import attrs

from mama_structs.memory.types.model import DecisionMetadata, Memory
from mama_structs.memory.types.text_analysis import analyse_text, query_terms

_MAX_CHARS: Final = 2_000
# Two words with a common prefix of this length count as inflected forms of one word.
_STEM_PREFIX_CHARS: Final = 5

_TOKEN_PATTERN: Final = re.compile(r"\d[\d,.:]*(?:-\d+)*(?:[%€$]|[a-z]+|[가-힣]+)?|[a-z_][a-z0-9_'-]*|[가-힣]+")
_NUMBER_PATTERN: Final = re.compile(r"(\d[\d,.:]*(?:-\d+)*)(.*)")
_ENTITY_ID_PATTERN: Final = re.compile(r"\d+-\d+(?!-?\d)")
_HANGUL_PATTERN: Final = re.compile(r"[가-힣]")
_NUMBER_WORDS: Final = {
    word: str(number)
    for number, word in enumerate(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    )
}
_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS: Final = ("january", "february", "march", "april", "june", "july", "august", "september", "october", "november")
_CALENDAR_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    name: ("weekday", f"weekday {number}")
    for number, (english, korean) in enumerate(zip(_WEEKDAYS, "월화수목금토일", strict=True))
    # In Korean compounds, the name of a weekday lacks its last syllable.
    for name in (english, f"{english}s", f"{korean}요일", f"{korean}요")
} | {name: ("month", name) for name in (*_MONTHS, "december")}
_NEGATION_PATTERN: Final = re.compile(
    r"\b(?:not|never|no(?!\. ?\d)|none|nothing|nobody|neither|nor|without|cannot|forbidden|banned)\b|n't\b"
    r"|않|못|없|금지|말 것|아니|아닌|\b안 (?=[가-힣])"
)
# English negations and 안 precede the negated words. The other Korean negations follow them.
_PRECEDING_NEGATION_PATTERN: Final = re.compile(
    r"^\W*(?:not|never|no|none|nothing|nobody|neither|nor|without|cannot|forbidden|banned)\b|n't\b|^안$"
)
_FOLLOWING_NEGATION_PATTERN: Final = re.compile(r"않|못|없|금지|아니|아닌")
_MAX_NEGATED_WORDS_AFTER: Final = 4
_MAX_NEGATED_WORDS_BEFORE: Final = 3
_END_CUE_PATTERN: Final = re.compile(
    r"\b(?:no longer|no more|any ?more|instead|in place of|rather than|replac(?:es?|ed|ing)|supersed\w+|obsolete"
    r"|now on|until (?:now|further notice)|after all|cancel\w*|put off|postpon\w+|(?:brought|moved) forward"
    r"|(?:has|have|had) (?:left|moved|taken over)|took over|taken over|switch(?:es|ed|ing)?|migrat(?:es?|ed|ing)"
    r"|dropped|revert\w*|retired?|used to|formerly|became|shift(?:s|ed)?|g[ai]ven? (?:up|away)|as of|not only)\b"
    r"|더 ?이상|대신|바꾸|바꿔|바꿨|바뀌|바뀐|바뀜|전환|교체|폐기|철회|취소|말고|그만|옮기기로|옮긴다|옮겼|옮김|미루"
    r"|미뤄|미룬|연기|앞당|앞으로|부터는|중단|이제|상향|하향|변경"
)
_CHANGE_CUE_PATTERN: Final = re.compile(
    r"\b(?:now|mov(?:es?|ed|ing)|chang(?:es?|ed|ing)|rais(?:es?|ed|ing)|lower(?:ed|ing)|(?:back|up|down|over) to"
    r"|already|gave|yesterday|today|this (?:morning|week)|deprecated|previously|turned|drops?)\b"
    r"|늘리|늘린|늘렸|줄이|줄인|줄였|기존|예전|오늘|어제|새로|주부터|옮기|옮긴|에서 \S*로\b"
)
_ADDITION_CUE_PATTERN: Final = re.compile(r"\b(?:also|besides|additional(?:ly)?|another|adds?|added)\b|추가|또한|별도")
_ANTONYM_PAIRS: Final = tuple(
    pair.split("/")
    for pair in """
    always/never safe/stolen on/off enable/disable open/closed morning/evening before/after above/below east/west
    left/right dark/light allow/forbid ally/enemy ally/hostile keep/drop keep/delete less/more min/max first/last
    day/night north/south up/down raise/lower slow/fast with/without same/different public/private sync/async
    아침/저녁 오전/오후 켜/끄 있/없 먼저/나중 왼쪽/오른쪽 공격/방어 허용/금지 없애/내기
    """.split()  # noqa: SIM905 - a list would be a page long
)
# Words too generic to identify a subject.
_GENERIC_TERMS: Final = frozenset(
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
class ParsedText:
    """Words, values and entity ids extracted from a memory's text."""

    order: tuple[str, ...]
    """The main term of each word of the content, in text order."""
    words: frozenset[str]
    """Terms of the content, including parts of words. `all_words` also covers the reasoning."""
    all_words: frozenset[str]
    values: Mapping[str, frozenset[str]]
    """Numbers, weekdays and months of the content, grouped by unit. `all_numbers` also covers the reasoning."""
    all_numbers: frozenset[str]
    entities: frozenset[str]
    codes: frozenset[str]
    """Names that contain digits."""
    is_negated: bool

    @classmethod
    def by(cls, memory: Memory) -> ParsedText:
        """Parse the content and reasoning of a memory."""
        content = _normalize_text(memory.content)
        reasoning = _normalize_text(memory.metadata.reasoning if isinstance(memory.metadata, DecisionMetadata) else "")
        tokens, why = _tokenize(content), _tokenize(reasoning)
        values, words = _extract_values(tokens), frozenset(_extract_words(content))
        asked = [word.asked for word in analyse_text(content).words.values()]
        return cls(
            order=tuple(terms[0][0] for terms in asked if terms),
            words=words,
            all_words=words.union(_extract_words(reasoning)),
            values=values,
            all_numbers=merge_values(values) | merge_values(_extract_values(why)),
            entities=frozenset(found[0] for found in map(_ENTITY_ID_PATTERN.match, tokens) if found is not None),
            codes=frozenset(token for token in tokens if token[0].isalpha() and any(map(str.isdigit, token))),
            is_negated=len(_NEGATION_PATTERN.findall(content)) % 2 == 1,
        )


@attrs.frozen
class Claims:
    """Parsed text of a memory, with its cues of negation, change and addition."""

    said: ParsedText
    told: Mapping[str, frozenset[str]]
    """Non-generic words of the content, each with its parts."""
    topic: frozenset[str]
    denied: frozenset[str]
    antonym_sides: frozenset[tuple[int, int]]
    """Members of antonym pairs in the text, as (index of the pair, index within the pair)."""
    ending: frozenset[str]
    """Strong cues that an earlier statement is no longer true. `change_cues` contains weak ones."""
    change_cues: frozenset[str]
    adds: bool

    @classmethod
    def by(cls, memory: Memory) -> Claims:
        """Extract the claims of a memory."""
        said, content = ParsedText.by(memory), _normalize_text(memory.content)
        told = {terms[0][0]: terms for word in analyse_text(content).words.values() if (terms := word.asked)}
        tokens = {*_TOKEN_PATTERN.findall(content), *said.order}
        return cls(
            said=said,
            told={
                term: frozenset(part for part, _ in terms)
                for term, terms in told.items()
                if not term[0].isdigit() and term not in _GENERIC_TERMS and term not in _CALENDAR_WORDS
            },
            topic=frozenset(query_terms((memory.topic or "").replace("_", " ").replace("-", " "))),
            denied=_extract_specific_terms(_find_negated_words(content.split())),
            antonym_sides=frozenset(
                (number, side) for number, pair in enumerate(_ANTONYM_PAIRS) for side in (0, 1) if pair[side] in tokens
            ),
            ending=frozenset(_END_CUE_PATTERN.findall(content)),
            change_cues=frozenset(_CHANGE_CUE_PATTERN.findall(content)),
            adds=_ADDITION_CUE_PATTERN.search(content) is not None,
        )

    def left(self, other: Claims) -> frozenset[str]:
        """Return the words of this memory that *other* does not contain, not even in another inflected form."""
        others = other.said.words | (self.topic if self.topic == other.topic else frozenset())
        beginnings = {
            word[:_STEM_PREFIX_CHARS]
            for word in other.told
            if len(word) >= _STEM_PREFIX_CHARS and not _HANGUL_PATTERN.search(word)
        }
        return frozenset(
            term
            for term, parts in self.told.items()
            if not _is_covered(term, parts, others) and term[:_STEM_PREFIX_CHARS] not in beginnings
        )

    def has_antonym_in(self, other: Claims) -> bool:
        """Return True if one memory contains a word and the other one contains its antonym."""
        return any(
            (number, side) not in other.antonym_sides and (number, 1 - side) in other.antonym_sides - self.antonym_sides
            for number, side in self.antonym_sides
        )


def _is_covered(term: str, parts: frozenset[str], others: frozenset[str]) -> bool:
    """Return True if *others* contains the word itself or enough of its parts."""
    more = parts - {term}
    # Korean words share single syllable pairs by chance, so at least half of the pairs must match.
    enough = len(more) / 2 if _HANGUL_PATTERN.search(term) else 1
    return term in others or (bool(more) and len(more & others) >= max(enough, 1))


def both_have_unshared(first: frozenset[str], second: frozenset[str]) -> bool:
    """Return True if each set has an element that the other lacks."""
    return bool(first - second and second - first)


def merge_values(values: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return all values, without their units."""
    return frozenset().union(*values.values())


def _normalize_text(text: str) -> str:
    return unicodedata.normalize("NFKC", text[:_MAX_CHARS]).lower()


def _extract_words(text: str) -> list[str]:
    return [term for term in query_terms(text) if not term[0].isdigit()]


def _extract_specific_terms(words: Iterable[str]) -> frozenset[str]:
    return frozenset(term for word in words for term in query_terms(word) if term not in _GENERIC_TERMS)


def _find_negated_words(words: Sequence[str]) -> Iterator[str]:
    """Yield the words that each negation refers to: the words after it, or for some negations the words before it."""
    for at, word in enumerate(words):
        if _PRECEDING_NEGATION_PATTERN.search(word):
            yield from words[at + 1 : at + 1 + _MAX_NEGATED_WORDS_AFTER]
        elif _FOLLOWING_NEGATION_PATTERN.search(word):
            yield from words[max(at - _MAX_NEGATED_WORDS_BEFORE, 0) : at + 1]


def _tokenize(text: str) -> list[str]:
    return [_NUMBER_WORDS.get(token, token) for token in _TOKEN_PATTERN.findall(text)]


def _extract_values(tokens: Sequence[str]) -> dict[str, frozenset[str]]:
    """
    Return the numbers, weekdays and months among the tokens, grouped by unit.

    The unit of a number is the text that follows it. A Korean unit is reduced to its first syllable.
    """
    values: dict[str, set[str]] = {}
    for token, after in pairwise([*tokens, ""]):
        found = _NUMBER_PATTERN.fullmatch(token)
        if found is not None and not _ENTITY_ID_PATTERN.match(token):
            unit = found[2] or ("" if after[:1].isdigit() else next(iter(query_terms(after)), after))
            # Reduce a Korean counter to its first syllable, because the rest is a grammatical particle.
            values.setdefault(unit if unit.isascii() else unit[:1], set()).add(found[1].replace(",", "").rstrip(".:-"))
        named = _CALENDAR_WORDS.get(token) or _CALENDAR_WORDS.get(token[:3])
        if named is not None:
            values.setdefault(named[0], set()).add(named[1])
    return {unit: frozenset(numbers) for unit, numbers in values.items()}
