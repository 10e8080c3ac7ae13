"""
Words of queries per language, from the file ``<language>.toml``.

A file has these parts, all optional. Patterns are regular expressions that ignore case and accents. Line breaks in
them are ignored, and ``{name}`` is replaced by the macro *name* or by the alternatives of the values *name*.

- ``time_words`` and ``prefilter``: every text that a rule may match contains one of the words, a year, or a match.
  ``evidence`` identifies the language by a time word.
- ``values``: for each group of the patterns, the words of each value.
- ``rules``: names of the functions in `time_expressions`, with their patterns. A rule with ``requires`` applies
  only to texts that this pattern matches.
- ``context``: patterns of the words before and after a time expression, and the roles of these words.
- ``asking``: words of questions about a period. ``question`` and ``first_person``: see `query_rewriting`. ``{verbs}``
  are the keys of ``first_person.words``.
  ``history``: words of questions about reasons and the past.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

LANGUAGES: Final = ("en", "ko", "de", "fr", "es", "zh", "ja", "ru")
"""Languages with a vocabulary file."""

_UNACCENTED_LETTERS: Final = str.maketrans(
    "àáâäèéêëìíîïòóôöùúûüñçÀÁÂÄÈÉÊËÌÍÎÏÒÓÔÖÙÚÛÜÑÇ\u0451\u0401",
    "aaaaeeeeiiiioooouuuuncAAAAEEEEIIIIOOOOUUUUNC\u0435\u0415",
)

_MACRO_PATTERN: Final = re.compile(r"\{([a-z_]+)\}")
_DIGITS_PATTERN: Final = re.compile(r"\d+")


@attrs.frozen
class QueryVocabulary:
    """The vocabulary file of one language."""

    data: Mapping[str, Any]
    values: Mapping[str, Mapping[str, Any]]
    """For each group of the patterns, the values of its words. Words are in lower case and without spaces."""
    macros: Mapping[str, str]

    def expand(self, text: str) -> str:
        """Return a regular expression from its form in the file."""
        while _MACRO_PATTERN.search(text):
            text = _MACRO_PATTERN.sub(lambda match: self.macros[match[1]], text)
        return text.replace("\n", "")

    def compile(self, *path: str) -> re.Pattern[str] | None:
        """Return the pattern at *path* in the file without accents, or None if the file has none."""
        found: Any = self.data
        for key in path:
            found = found.get(key, {})
        return self.compile_folded(found) if found else None

    def compile_folded(self, text: str) -> re.Pattern[str]:
        """Return a pattern from its form in the file, without accents."""
        return re.compile(fold_accents(self.expand(text)), re.IGNORECASE)

    def expand_words(self, *path: str) -> frozenset[str]:
        """Return the words of the list at *path* in lower case and without accents. Macros are expanded."""
        found: Any = self.data
        for key in path:
            found = found.get(key, {})
        return frozenset(word for entry in found for word in fold_accents(self.expand(entry).lower()).split("|"))

    def parse_groups(self, match: re.Match[str]) -> dict[str, Any]:
        """Return the values of a match's named groups. Digits are numbers, and unknown text is unchanged."""
        return {name: self._parse_value(name, text) for name, text in match.groupdict().items() if text}

    def _parse_value(self, name: str, text: str) -> Any:
        digits = _DIGITS_PATTERN.match(text)
        return int(digits[0]) if digits else self.values.get(name, {}).get(_normalize_word(text), text)


@functools.cache
def load_vocabulary(language: str) -> QueryVocabulary:
    """Return the vocabulary of a language. It is loaded once."""
    data = tomllib.loads(Path(__file__).with_name(f"{language}.toml").read_text(encoding="utf-8"))
    words = data.get("values", {})
    values = {
        group: {_normalize_word(word): _parse_key(key) for key, alike in rows.items() for word in alike}
        for group, rows in words.items()
    }
    # Patterns name a week that counts back "week", because they have another group "back".
    values.setdefault("week", values.get("back", {}))
    # Longer words are first, because the first alternative that matches is used.
    alternatives = {
        group: "|".join(sorted((word for alike in rows.values() for word in alike), key=len, reverse=True))
        for group, rows in words.items()
    }
    verbs = sorted(data.get("first_person", {}).get("words", {}), key=len, reverse=True)
    return QueryVocabulary(
        data, values, {"verbs": "|".join(filter(None, verbs)), **alternatives, **data.get("macros", {})}
    )


def fold_accents(text: str) -> str:
    """Return *text* with unaccented letters, because many queries omit accents. The length is unchanged."""
    return text if text.isascii() else text.translate(_UNACCENTED_LETTERS)


def _normalize_word(text: str) -> str:
    return fold_accents(text.lower()).replace(" ", "").replace("\u2019", "'")


def _parse_key(key: str) -> int | str:
    return int(key) if key.lstrip("-").isdecimal() else key
