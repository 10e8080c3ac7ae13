"""Word lists for the comparison of statements, one JSON file per language."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import snowballstemmer  # type: ignore[import-untyped]  # it ships no types

from mama_structs.memory.types.languages import LANGUAGES
from mama_structs.memory.types.text_analysis import query_terms

UNSPACED_LANGUAGES: Final = frozenset({"ja", "zh"})
"""Languages that are written without spaces between words."""

_DATA_PATH: Final = Path(__file__).parent / "data"
_STEMMER_NAMES: Final = {"de": "german", "es": "spanish", "fr": "french", "ru": "russian"}
_MAX_CACHED_STEMS: Final = 8_192
_NEVER_PATTERN: Final = re.compile(r"(?!)")

Polarity = tuple[int, int]
"""An antonym pair and the side of the pair, 0 or 1."""


@attrs.frozen(eq=False, repr=False)
class Lexicon:
    """
    Word lists of one language.

    Args:
        language: ISO 639-1 code.
        function: Words without content, such as articles and prepositions.
        generic: Stems of words that are too frequent to identify a subject.
        copulas: Forms of "to be" and "to be called".
        single_valued: Stems of verbs that have one value at a time, such as "to live in".
        multi_valued: Stems of verbs that have several values, such as "to like".
        counting: Stems of such verbs for which a number of things is a single value, such as "to need".
        verbs: Stems of other verbs.
        negations: Negating words.
        quantifiers: Class of each quantifier: "all", "most", "some" or "only".
        places: Prepositions of places and times.
        determiners: Words that introduce a noun.
        role_markers: Words that introduce the role of something, as in "use it as a key".
        symmetric: Words around which phrases can be exchanged without a change of meaning.
        polarities: Antonym pairs and sides of each form or stem.
        groups: Group of mutually exclusive words that each stem belongs to.
        numbers: Value of each number word.
        calendar: Unit and value of each weekday and month.
        phrase_pattern: Finds phrases that one word replaces, or that are no negation although they contain one.
        phrase_replacements: Replacement of a phrase, by the name of its group in the pattern.
        negation_pattern: Finds negations that are parts of words.
        end_pattern: Finds cues that an earlier statement is no longer true.
        change_pattern: Finds weaker cues of a change.
        addition_pattern: Finds cues of an addition.
        segment_pattern: Splits text without spaces into words.
        stem: Returns the stem of a word in lower case.

    """

    language: str
    function: frozenset[str]
    generic: frozenset[str]
    copulas: frozenset[str]
    single_valued: frozenset[str]
    multi_valued: frozenset[str]
    counting: frozenset[str]
    verbs: frozenset[str]
    negations: frozenset[str]
    quantifiers: Mapping[str, str]
    places: frozenset[str]
    determiners: frozenset[str]
    role_markers: frozenset[str]
    symmetric: frozenset[str]
    polarities: Mapping[str, tuple[Polarity, ...]]
    groups: Mapping[str, int]
    numbers: Mapping[str, str]
    calendar: Mapping[str, tuple[str, str]]
    phrase_pattern: re.Pattern[str]
    phrase_replacements: Mapping[str, str]
    negation_pattern: re.Pattern[str]
    end_pattern: re.Pattern[str]
    change_pattern: re.Pattern[str]
    addition_pattern: re.Pattern[str]
    segment_pattern: re.Pattern[str]
    stem: Callable[[str], str]

    def replace_phrases(self, text: str) -> str:
        """Return a text with one word for each known phrase."""
        return self.phrase_pattern.sub(lambda found: self.phrase_replacements[found.lastgroup or ""], text)


@functools.cache
def load_lexicon(language: str) -> Lexicon | None:
    """Return the word lists of a language, or None for a language without word lists."""
    if language not in LANGUAGES:
        return None
    lists = json.loads((_DATA_PATH / f"{language}.json").read_text(encoding="utf-8"))
    stem = _stemmer(language)
    spaced = language not in UNSPACED_LANGUAGES
    polarities: dict[str, list[Polarity]] = {}
    for number, pair in enumerate(lists["antonyms"]):
        for side, words in enumerate(pair.split("/")):
            for form in words.split():
                for key in {form, stem(form)}:
                    polarities.setdefault(key, []).append((number, side))
    quantifiers = {word: name for name in ("all", "most", "some", "only") for word in lists[name].split()}
    calendar = {
        form: (unit, str(number))
        for unit, names in (("weekday", lists["weekdays"]), ("month", lists["months"]))
        for number, forms in enumerate(names, 1)
        for form in forms.split()
    }
    phrases = lists["phrases"] | dict.fromkeys(set(lists["affirmations"]) - lists["phrases"].keys(), "")
    known = [*lists["function"].split(), *polarities, *quantifiers, *calendar]
    return Lexicon(
        language=language,
        function=frozenset(lists["function"].split()),
        generic=frozenset(map(stem, lists["generic"].split())),
        copulas=frozenset(lists["copulas"].split()),
        single_valued=_stems(lists["single_valued"], stem),
        multi_valued=_stems(lists["multi_valued"], stem),
        counting=_stems(lists.get("counting", ""), stem),
        verbs=_stems(lists["verbs"], stem),
        negations=frozenset(lists["negations"].split()),
        quantifiers=quantifiers,
        places=frozenset(lists["places"].split()),
        determiners=frozenset(lists["determiners"].split()),
        symmetric=frozenset([*lists["symmetric"].split(), *lists["copulas"].split()]),
        role_markers=frozenset(lists["role_markers"].split()),
        polarities={word: tuple(pairs) for word, pairs in polarities.items()},
        groups={stem(word): number for number, words in enumerate(lists["groups"]) for word in words.split()},
        numbers=_number_words(lists),
        calendar=calendar,
        phrase_pattern=_compile((f"(?P<p{number}>{one})" for number, one in enumerate(phrases)), spaced=spaced),
        phrase_replacements={f"p{number}": f" {word} " for number, word in enumerate(phrases.values())},
        negation_pattern=_compile(lists.get("negation_patterns", ()), spaced=False),
        end_pattern=_compile(lists["ends"], spaced=language not in {"ja", "ko", "zh"}),
        change_pattern=_compile(lists["changes"], spaced=language not in {"ja", "ko", "zh"}),
        addition_pattern=_compile(lists["adds"], spaced=language not in {"ja", "ko", "zh"}),
        segment_pattern=_NEVER_PATTERN if spaced else _segment_pattern(known),
        stem=stem,
    )


def _stems(words: str, stem: Callable[[str], str]) -> frozenset[str]:
    return frozenset(map(stem, words.split()))


def _number_words(lists: Mapping[str, Any]) -> dict[str, str]:
    words = {word: str(number) for number, word in enumerate(lists["numbers"].split())}
    words |= {word: str(number) for word, number in lists["tens"].items()}
    for number, forms in enumerate(lists["ordinals"].split(), 1):
        words |= dict.fromkeys(forms.split("|"), str(number))
    return words


def _compile(alternatives: Iterable[str], *, spaced: bool) -> re.Pattern[str]:
    joined = "|".join(alternatives)
    if not joined:
        return _NEVER_PATTERN
    return re.compile(rf"(?<!\w)(?:{joined})(?!\w)" if spaced else joined, re.IGNORECASE)


def _segment_pattern(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that splits text without spaces: long known words, numbers, short known words, script runs."""
    ordered = sorted(set(words), key=len, reverse=True)
    long, short = ([re.escape(word) for word in ordered if (len(word) > 1) is is_long] for is_long in (True, False))
    runs = (r"\d[\d.,:]*", "[零〇一二三四五六七八九十百千两]+")
    scripts = ("[a-zA-Z][a-zA-Z0-9_.-]*", "[\u30a1-\u30fa\u30fc]+", "[\u3041-\u309f]+", "[\u4e00-\u9fff]")
    return re.compile("|".join([*long, *runs, *short, *scripts]))


def _stemmer(language: str) -> Callable[[str], str]:
    if language in _STEMMER_NAMES:
        # A stemmer has state, so every thread needs its own one.
        return functools.lru_cache(_MAX_CACHED_STEMS)(
            lambda word: str(snowballstemmer.stemmer(_STEMMER_NAMES[language]).stemWord(word))
        )
    return _first_term if language in {"en", "ko"} else str


@functools.lru_cache(_MAX_CACHED_STEMS)
def _first_term(word: str) -> str:
    return next(iter(query_terms(word)), word)
