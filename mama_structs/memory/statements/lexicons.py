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

from mama_structs._internal.caches import cache_by_text
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

_MAX_UNIT_CHARS: Final = 8
_MONEY: Final = "money"


@attrs.frozen
class Unit:
    """
    A unit of measurement or a currency.

    Args:
        name: Name that is the same in all languages.
        dimension: The measured quantity, such as "duration" or "money".
        factor: The unit in the base unit of its dimension, or None if units of the dimension cannot be converted.

    """

    name: str
    dimension: str
    factor: float | None

    @property
    def precedes_number(self) -> bool:
        """True if the unit can precede its number, as in "$5"."""
        return self.dimension == _MONEY

    def convert(self, number: str) -> str:
        """Return a number in the base unit. A number that cannot be converted is returned with the unit's name."""
        if self.factor is None or number.count(".") > 1 or not number.replace(".", "").isdigit():
            return f"{number} {self.name}"
        return f"{float(number) * self.factor:.6g}"


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
        units: Unit of measurement of each form.
        phrase_pattern: Finds phrases that one word replaces, or that are no negation although they contain one.
        phrase_replacements: Replacement of a phrase, by the name of its group in the pattern.
        negation_pattern: Finds negations that are parts of words.
        end_pattern: Finds cues that an earlier statement is no longer true, in lower case.
        change_pattern: Finds weaker cues of a change, in lower case.
        addition_pattern: Finds cues of an addition, in lower case.
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
    units: Mapping[str, Unit]
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

    def find_unit(self, text: str) -> tuple[Unit | None, str]:
        """
        Return the unit that a word in lower case denotes, and the rest of the word.

        Only languages that write no space after the unit have a rest.
        """
        has_rest = self.language in UNSPACED_LANGUAGES or self.language == "ko"
        for size in range(min(len(text), _MAX_UNIT_CHARS), 0, -1) if has_rest else (len(text),):
            if text[:size] in self.units:
                return self.units[text[:size]], text[size:]
        return None, ""


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
    verbs = " ".join(lists[name] for name in ("single_valued", "multi_valued", "verbs")).split()
    known = [*lists["function"].split(), *polarities, *quantifiers, *calendar, *lists.get("words", "").split()]
    known += [verb for verb in verbs if len(verb) > 1]
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
        units=_load_units(lists["units"]),
        phrase_pattern=_compile((f"(?P<p{number}>{one})" for number, one in enumerate(phrases)), spaced=spaced),
        phrase_replacements={f"p{number}": f" {word} " for number, word in enumerate(phrases.values())},
        negation_pattern=_compile(lists.get("negation_patterns", ()), spaced=False),
        end_pattern=_compile(lists["ends"], spaced=language not in {"ja", "ko", "zh"}, ignores_case=False),
        change_pattern=_compile(lists["changes"], spaced=language not in {"ja", "ko", "zh"}, ignores_case=False),
        addition_pattern=_compile(lists["adds"], spaced=language not in {"ja", "ko", "zh"}, ignores_case=False),
        segment_pattern=_NEVER_PATTERN if spaced else _segment_pattern(known),
        stem=stem,
    )


def _stems(words: str, stem: Callable[[str], str]) -> frozenset[str]:
    return frozenset(map(stem, words.split()))


def _load_units(forms: Mapping[str, str]) -> dict[str, Unit]:
    """Return the unit of each symbol, and of each of the *forms* by the unit's name."""
    dimensions = json.loads((_DATA_PATH / "units.json").read_text(encoding="utf-8"))
    return {
        form: Unit(name, dimension, factor)
        for dimension, units in dimensions.items()
        for name, (factor, symbols) in units.items()
        for form in f"{symbols} {forms.get(name, '')}".split()
    }


def _number_words(lists: Mapping[str, Any]) -> dict[str, str]:
    words = {word: str(number) for number, word in enumerate(lists["numbers"].split())}
    words |= {word: str(number) for word, number in lists["tens"].items()}
    for number, forms in enumerate(lists["ordinals"].split(), 1):
        words |= dict.fromkeys(forms.split("|"), str(number))
    return words


def _compile(alternatives: Iterable[str], *, spaced: bool, ignores_case: bool = True) -> re.Pattern[str]:
    joined = "|".join(alternatives)
    if not joined:
        return _NEVER_PATTERN
    # Ignoring the case takes three times as long, so it is left out for patterns that are used on lower case only.
    return re.compile(rf"(?<!\w)(?:{joined})(?!\w)" if spaced else joined, re.IGNORECASE if ignores_case else 0)


def _segment_pattern(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that splits text without spaces: long known words, numbers, short known words, script runs."""
    ordered = sorted(set(words), key=len, reverse=True)
    # A katakana word is complete, so a known word must not be a part of it.
    long = [
        rf"{word}(?![ァ-ヺー])" if "ァ" <= word[-1] <= "ヺ" else re.escape(word) for word in ordered if len(word) > 1
    ]
    short = [re.escape(word) for word in ordered if len(word) == 1]
    runs = (r"\d[\d.,:]*", "[零〇一二三四五六七八九十百千两]+")
    scripts = ("[a-zA-Z][a-zA-Z0-9_.-]*", "[\u30a1-\u30fa\u30fc]+", "[\u3041-\u309f]+", "[\u4e00-\u9fff]")
    return re.compile("|".join([*long, *runs, *short, *scripts]))


def _stemmer(language: str) -> Callable[[str], str]:
    if language in _STEMMER_NAMES:
        # A stemmer has state, so every thread needs its own one.
        return cache_by_text(_MAX_CACHED_STEMS)(
            lambda word: str(snowballstemmer.stemmer(_STEMMER_NAMES[language]).stemWord(word))
        )
    return _first_term if language in {"en", "ko"} else str


@cache_by_text(_MAX_CACHED_STEMS)
def _first_term(word: str) -> str:
    return next(iter(query_terms(word)), word)
