"""
Rewriting and classification of queries by their words.

Memories say "The user lives in Berlin", and users ask "Where do I live?". `rewrite_first_person` puts the question
into the words of the memory. `is_about_period_only` and `is_preference` say how a period in a query restricts memories,
and `asks_for_history` recognises questions that superseded memories may answer.
"""

from __future__ import annotations

import functools
import re
from typing import Final

import attrs

from mama_structs.memory.search.time_expressions import WEAK_STRENGTH, Period, remove_period
from mama_structs.memory.search.vocabulary.query_vocabulary import LANGUAGES, fold_accents, load_vocabulary
from mama_structs.memory.types.languages import detect_language

MAX_QUERY_CHARS: Final = 4_000
"""Number of characters at the start of a query that are analysed."""

_SENTENCE_PATTERN: Final = re.compile(
    "[^.!?\u3002\uff01\uff1f\n]*+(?:[.!?\u3002\uff01\uff1f\n]++(?=\\s|\\Z|[\u3000-\uffef])|[.]|[!?\u3002\uff01\uff1f\n]++|\\Z)"
)
_WORD_PATTERN: Final = re.compile(r"\w")
_QUESTION_MARK_PATTERN: Final = re.compile("[?\uff1f][\"'\u201d\u2019)\\s]*$")


@attrs.frozen
class _FirstPersonRules:
    """Patterns that recognise and replace the first person singular in one language."""

    prefilter: re.Pattern[str]
    service: re.Pattern[str]
    """Phrases whose first person is not about the user, for example "tell me" and "can I"."""
    question: re.Pattern[str]
    replacements: tuple[tuple[re.Pattern[str], str], ...]
    words: dict[str, str]
    """Third-person forms of first-person verbs, and articles that replace possessive pronouns."""

    def rewrite(self, sentence: str) -> str:
        """Return *sentence* in the third person, unless it is no question or has no first person."""
        if not (_QUESTION_MARK_PATTERN.search(sentence) or self.question.search(sentence)):
            return sentence
        rewritten, end = [], 0
        for match in self.service.finditer(sentence):
            rewritten += [self._replace(sentence[end : match.start()]), match[0]]
            end = match.end()
        text = "".join([*rewritten, self._replace(sentence[end:])])
        return text[:1].upper() + text[1:] if sentence[:1].isupper() else text

    def _replace(self, text: str) -> str:
        for pattern, template in self.replacements:
            text = pattern.sub(functools.partial(self._fill, template), text)
        return text

    def _fill(self, template: str, match: re.Match[str]) -> str:
        groups = {name: text or "" for name, text in match.groupdict().items()}
        return template.format_map({name: self.words.get(text.lower(), text) for name, text in groups.items()})


@functools.cache
def _load_first_person_rules(language: str) -> _FirstPersonRules:
    vocabulary = load_vocabulary(language)
    section = vocabulary.data["first_person"]

    def compile_pattern(text: str) -> re.Pattern[str]:
        return re.compile(vocabulary.expand(text), re.IGNORECASE)

    return _FirstPersonRules(
        compile_pattern(section["prefilter"]),
        compile_pattern(section["service"]),
        compile_pattern(vocabulary.data["question"]["start"]),
        tuple((compile_pattern(pattern), template) for pattern, template in section["replacements"]),
        section.get("words", {}),
    )


def rewrite_first_person(text: str) -> str | None:
    """
    Return a question with "the user" instead of the first person singular.

    "Where do I live?" becomes "Where does the user live?". Statements, and phrases such as "tell me" and "can I", are
    unchanged. The result is meant for embeddings and terms, so its grammar is approximate.

    Args:
        text: A query in one of `LANGUAGES`.

    Returns:
        The rewritten text, or None if no question in *text* has a first person singular.

    """
    if len(text) > MAX_QUERY_CHARS:
        return None
    language = detect_language(text)
    if language not in LANGUAGES:
        return None
    rules = _load_first_person_rules(language)
    if not rules.prefilter.search(text):
        return None
    rewritten = "".join(map(rules.rewrite, _SENTENCE_PATTERN.findall(text)))
    return None if rewritten == text else rewritten


@functools.cache
def _load_history_patterns(language: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    vocabulary = load_vocabulary(language)
    asks, present = vocabulary.compile("history", "asks"), vocabulary.compile("history", "present")
    if asks is None or present is None:
        raise LookupError(f"the vocabulary of {language!r} has no history")
    return asks, present


def asks_for_history(query: str) -> bool:
    """
    Return True if the query asks for reasons or the past.

    Superseded memories may answer such a query. A word such as "now" makes the query refer to the present.
    """
    text = " ".join(query[:MAX_QUERY_CHARS].split())
    # Mixed queries are frequent in English and Korean only, so their words always count.
    languages = {"en", "ko", detect_language(text)} & {*LANGUAGES}
    folded = fold_accents(text)
    patterns = [_load_history_patterns(language) for language in languages]
    return any(asks.search(folded) for asks, _ in patterns) and not any(
        present.search(folded) for _, present in patterns
    )


@attrs.frozen
class _AskingWords:
    """Patterns of the words of questions about a whole period."""

    request: re.Pattern[str]
    events: re.Pattern[str]
    filler: re.Pattern[str]
    hint: re.Pattern[str]
    present: re.Pattern[str] | None
    past: re.Pattern[str] | None

    def is_present(self, text: str) -> bool:
        """Return True if a question is in the present tense. Only English and Korean have the patterns."""
        return bool(self.present and self.present.search(text)) and not (self.past and self.past.search(text))


@functools.cache
def _load_asking_words(language: str) -> _AskingWords:
    vocabulary = load_vocabulary(language)
    section = vocabulary.data["asking"]
    return _AskingWords(
        *(vocabulary.compile_folded(section[name]) for name in ("request", "events", "filler", "hint")),
        *(vocabulary.compile("asking", name) for name in ("present", "past")),
    )


def _find_asking_words(text: str) -> _AskingWords:
    language = detect_language(text)
    return _load_asking_words(language if language in LANGUAGES else "en")


def has_words_besides_period(text: str, period: Period | None) -> bool:
    """Return True if a text has a word that does not name its *period*."""
    rest = text[:MAX_QUERY_CHARS] if period is None else remove_period(text[:MAX_QUERY_CHARS], period)
    return _WORD_PATTERN.search(rest) is not None


def is_about_period_only(text: str, period: Period) -> bool:
    """
    Return True if a query asks for all memories of its period, for example "What did we note yesterday?".

    A query with other content, such as "Who won the game last night?", asks for memories that match this content
    within the period.

    Args:
        text: The query in which `find_period` found *period*.
        period: The period of the query.

    """
    rest = remove_period(text[:MAX_QUERY_CHARS], period)
    if not _WORD_PATTERN.search(rest):
        return True
    words = _find_asking_words(text)
    rest, events = words.events.subn(" ", fold_accents(rest))
    rest, requests = words.request.subn(" ", rest)
    return events + requests > 0 and not _WORD_PATTERN.search(words.filler.sub(" ", rest))


def asks_for_events(text: str) -> bool:
    """
    Return True if a query asks for notes, decisions, changes or events.

    With a period, such a query asks for memories of that time even if it names a subject, as in "What happened in
    battles last week?". "Which song won the contest last week?" asks for one fact.
    """
    return _find_asking_words(text).events.search(fold_accents(text[:MAX_QUERY_CHARS])) is not None


def is_preference(text: str, period: Period) -> bool:
    """
    Return True if the period of a query is only a hint, so that memories of other periods may answer it.

    This applies to vague words such as "recently", to texts that resume earlier work, such as "Let's continue from
    yesterday with the logins", to months that describe a noun, such as "the October outage", and to questions about
    plans and routines, such as "Are we open on Monday?".
    """
    if period.strength <= WEAK_STRENGTH:
        return True
    words, folded = _find_asking_words(text), fold_accents(text[:MAX_QUERY_CHARS])
    return words.hint.search(folded) is not None or words.is_present(folded)
