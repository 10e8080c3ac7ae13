"""Detects the language of a text by its script and by its function words."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Final

from mama_structs._internal.caches import cache_by_text

LANGUAGES: Final = ("en", "ko", "de", "es", "fr", "ja", "zh", "ru")
"""The languages that `detect_language` returns. Any other language is an empty string."""

_DEFAULT_LANGUAGE: Final = "en"
_LATIN_LANGUAGES: Final = frozenset({"en", "de", "es", "fr"})

MAX_SAMPLE_CHARS: Final = 400
"""Number of characters at the start of a text that decide about its language."""

_LETTERS_PER_CJK_CHARACTER: Final = 3  # Average words are about three times as long in Latin script.
# Minimum CJK characters per Latin letter, from which a text without a function word is in the CJK language.
_MIN_CJK_RATIO: Final = 0.1  # Technical terms stay in Latin script, so they outnumber the characters around them.
_MIN_KANA_RATIO: Final = 0.2  # Chinese texts quote single kana. Japanese sentences need kana for their grammar.
_LETTER_WEIGHT: Final = 0.5  # A letter is weaker evidence than a function word, because names keep their accents.
_MIN_SHARED_WEIGHT: Final = 0.5  # Minimum part of the weight of an item that several languages have in common.
_MIN_EVIDENCE: Final = 0.5  # Minimum lead over English, which is the default.
_MIN_EVIDENCE_PER_WORD: Final = 0.08  # Minimum lead in a long text. Some names in program code are foreign words.

# Detecting the language of a text scores its sample up to three times.
_MAX_CACHED_SCORES: Final = 8

_HANGUL: Final = "\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3"
_KANA: Final = "\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\uff66-\uff9d"
_HAN: Final = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CYRILLIC: Final = "\u0400-\u052f"
_LATIN: Final = "A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff\uff21-\uff3a\uff41-\uff5a"
_SCRIPT_RUN_PATTERN: Final = re.compile(
    rf"(?P<latin>[{_LATIN}]+)|(?P<hangul>[{_HANGUL}]+)|(?P<kana>[{_KANA}]+)|(?P<han>[{_HAN}]+)"
    rf"|(?P<cyrillic>[{_CYRILLIC}]+)|(?P<other>[^\W\d_{_LATIN}{_HANGUL}{_KANA}{_HAN}{_CYRILLIC}]+)"
)
# Letters of Ukrainian, Belarusian, Serbian and Macedonian that Russian does not have.
_NON_RUSSIAN_PATTERN: Final = re.compile("[іїєґўјљњђћџѓќѕ]", re.IGNORECASE)
# Split elided articles, as in "l'utilisateur". Keep contractions, as in "don't".
_WORD_PATTERN: Final = re.compile(rf"[{_LATIN}]+(?:'(?:t|s|m|ve|d|ll|re)\b|'(?=[{_LATIN}]))?")

Evidence = dict[str, tuple[tuple[str, float], ...]]


def detect_language(text: str) -> str:
    """
    Return the language code of a text, or an empty string if the language is not in `LANGUAGES`.

    The script with most of the letters decides, where a CJK character counts as three letters.
    A text of Latin terms and CJK characters is in the CJK language, unless it contains function words.
    Function words and accented letters decide between languages in Latin script.

    Args:
        text: Any text. Only its first 400 characters count.

    Returns:
        An ISO 639-1 code. A text in Latin script without evidence, and a text without letters, is English.

    """
    sample = text[:MAX_SAMPLE_CHARS]
    if sample.isascii():
        return _detect_latin(sample)[0]
    counts = dict.fromkeys(("latin", "hangul", "kana", "han", "cyrillic", "other"), 0)
    for run in _SCRIPT_RUN_PATTERN.finditer(sample):
        counts[run.lastgroup or "other"] += run.end() - run.start()
    latin, korean, kana, han = (counts[script] for script in ("latin", "hangul", "kana", "han"))
    chinese_or_japanese = "ja" if kana > _MIN_KANA_RATIO * (kana + han) else "zh"
    dense, cjk = (korean, "ko") if korean >= kana + han else (kana + han, chinese_or_japanese)
    letters = {
        "latin": latin,
        cjk: dense * _LETTERS_PER_CJK_CHARACTER,
        "ru": counts["cyrillic"],
        "": counts["other"],
    }
    language = max(letters, key=letters.__getitem__)
    if language == "latin":
        language, has_evidence = _detect_latin(sample)
        return language if has_evidence or dense <= _MIN_CJK_RATIO * latin else cjk
    if language == "ru" and _NON_RUSSIAN_PATTERN.search(sample):
        return ""
    return language


def may_be_unlisted(text: str) -> bool:
    """
    Return True if a text may be in a language that is not in `LANGUAGES`, even if `detect_language` returns a language.

    In a short text, the function words of such a language are too few to decide, so English is the default.
    """
    sample = text[:MAX_SAMPLE_CHARS]
    language = detect_language(text)
    if language not in _LATIN_LANGUAGES:
        return not language
    scores, _ = _score_latin(sample)
    unlisted = max((score for name, score in scores.items() if name not in LANGUAGES), default=0.0)
    if language == _DEFAULT_LANGUAGE:
        listed = max(score for name, score in scores.items() if name in LANGUAGES)
        return unlisted > scores[language] and unlisted >= listed
    return unlisted >= scores[language]


def _detect_latin(sample: str) -> tuple[str, bool]:
    """Return the language of a text in Latin script, and True if the text has evidence for any language."""
    scores, count = _score_latin(sample)
    best = max(scores, key=scores.__getitem__)
    if scores[best] < scores["en"] + max(_MIN_EVIDENCE, _MIN_EVIDENCE_PER_WORD * count):
        best = "en"
    return best if best in LANGUAGES else "", scores[best] >= _MIN_EVIDENCE


@cache_by_text(_MAX_CACHED_SCORES)
def _score_latin(sample: str) -> tuple[dict[str, float], int]:
    """Return the weight of the evidence for each language, and the number of words."""
    words, letters = _load_evidence()
    scores = {_DEFAULT_LANGUAGE: 0.0}
    sample = sample.replace("\u2019", "'")
    # Ignore capitalised words except the first, because articles in names such as "Los Angeles" are no evidence.
    sample = sample.lower() if sample.isupper() else sample[:1].lower() + sample[1:]
    found = _WORD_PATTERN.findall(sample)
    for word in found:
        for language, weight in words.get(word, ()):
            scores[language] = scores.get(language, 0) + weight
    if not sample.isascii():
        for letter in set(sample.lower()):
            for language, weight in letters.get(letter, ()):
                scores[language] = scores.get(language, 0) + weight
    return scores, len(found)


@functools.cache
def _load_evidence() -> tuple[Evidence, Evidence]:
    """Return the languages of each function word and each letter, with a weight that they share."""
    lists = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    words = {language: set(text.split()) for language, text in lists["words"].items()}
    letters = {language: set(text) for language, text in lists["letters"].items()}
    return _share_weights(words, 1.0), _share_weights(letters, _LETTER_WEIGHT)


def _share_weights(languages: dict[str, set[str]], weight: float) -> Evidence:
    """Return the languages of each item, with equal parts of the weight but at least half of it."""
    found: dict[str, list[str]] = {}
    for language, items in languages.items():
        for item in items:
            found.setdefault(item, []).append(language)
    return {
        item: tuple((language, weight * max(_MIN_SHARED_WEIGHT, 1 / len(names))) for language in names)
        for item, names in found.items()
    }
