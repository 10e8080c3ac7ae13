"""
Detection of time periods in queries, such as "last week", "since May", "지난달 말" or "vor drei Tagen".

Days are UTC days, weeks run from Monday to Sunday, and a month without a year is the most recent one that has begun
(README of the sample in data/retrieval). Durations such as "a 14 days token" or "every 5 s" are not periods. An
ambiguous word such as "may" counts only in a context that makes it a month.
The patterns are in the vocabulary files, one per language. Their repetitions are bounded, so the time is linear in
the length of the query.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import MAXYEAR, UTC, date, datetime, time, timedelta
from typing import Any, Final

import attrs

from mama_structs.memory.search.vocabulary.query_vocabulary import (
    LANGUAGES,
    QueryVocabulary,
    fold_accents,
    load_vocabulary,
)
from mama_structs.memory.types.languages import detect_language

Match = re.Match[str]
Span = tuple[datetime, datetime]
"""Start (inclusive) and end (exclusive)."""


@attrs.frozen
class Period:
    """A period in a query, from *since* to *until* (exclusive, UTC). None means unbounded."""

    since: datetime | None
    until: datetime | None
    words: str
    """The words of the query that name the period."""
    strength: float
    """Confidence that the period is meant as a filter, 0 to 1. "recently" is only a weak preference."""
    spans: tuple[tuple[int, int], ...] = ()
    """Character ranges of the query that only name the time, in ascending order: start and end (exclusive)."""


@attrs.frozen
class TimeExpression:
    """A time expression in a text, from *start* to *end*, with the time span that it means."""

    span: Span
    strength: float = 1.0
    """As in `Period`. 0 for an impossible date."""
    is_unambiguous: bool = True
    """Whether it names a period without further context."""
    has_open_year: bool = False
    """Whether it leaves the year open."""
    start: int = 0
    end: int = 0
    language: str = "en"


LIKELY_STRENGTH: Final = 0.8
_VAGUE_STRENGTH: Final = 0.6
WEAK_STRENGTH: Final = 0.3
_ONE_DAY: Final = timedelta(days=1)
_MAX_QUERY_CHARS: Final = 4_000


# Calendar spans

_MONTHS_PER_UNIT: Final = {"month": 1, "quarter": 3, "year": 12}


def _start_of_day(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _day_span(first: date, count: int = 1) -> Span:
    return _start_of_day(first), _start_of_day(first + timedelta(days=count))


def _month_span(year: int, month: int, count: int = 1) -> Span:
    """
    Return the span of *count* months from *month*.

    A month outside of 1 to 12 is in another year.
    """
    first, last = year * 12 + month - 1, year * 12 + month - 1 + count
    return _start_of_day(date(first // 12, first % 12 + 1, 1)), _start_of_day(date(last // 12, last % 12 + 1, 1))


def _unit_span(now: datetime, unit: str, back: int) -> Span:
    """Return the span of the calendar unit that is *back* units before the present one."""
    if unit == "hour":
        hour = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=back)
        return hour, hour + timedelta(hours=1)
    if unit == "day":
        return _day_span(now.date() - back * _ONE_DAY)
    if unit in {"week", "weekend"}:
        monday = now.date() - timedelta(days=now.weekday(), weeks=back)
        return _day_span(monday, 7) if unit == "week" else _day_span(monday + 5 * _ONE_DAY, 2)
    count = _MONTHS_PER_UNIT[unit]
    return _month_span(now.year, (now.month - 1) // count * count + 1 - count * back, count)


def _span_until_now(now: datetime, unit: str, count: int) -> Span:
    """
    Return the span of the last *count* units until now.

    It starts at the beginning of a day, unless the unit is an hour.
    """
    if unit not in _MONTHS_PER_UNIT:
        since = now - timedelta(**{f"{unit}s": count})
        return since if unit == "hour" else _start_of_day(since.date()), now
    since = _month_span(now.year, now.month - count * _MONTHS_PER_UNIT[unit])[0]
    # Limit the day to 28, because the first month may be shorter than the present one.
    return since + (min(now.day, 28) - 1) * _ONE_DAY, now


def _latest_begun_span(now: datetime, spans: int, span_of: Callable[[int], Span]) -> Span:
    """Return the latest span that exists and has begun, among *spans* candidates."""
    for back in range(spans):
        try:
            span = span_of(back)
        except ValueError:
            # The date does not exist in this year, for example February 29.
            continue
        if span[0] <= now:
            return span
    raise ValueError("no such day")


def _span_in_year(now: datetime, year: int | None, span_of: Callable[[int], Span]) -> Span:
    """
    Return the span in *year*, or without a year the most recent span that has begun.

    A year of 0 or less is relative to the present year.
    """
    if year is None:
        return _latest_begun_span(now, 5, lambda back: span_of(now.year - back))
    return span_of(year if year > 0 else now.year + year)


# A question in the present or about the current state: "오늘은 어떻게 나누나?", "오늘 기준".
_KOREAN_QUESTION_PATTERN: Final = re.compile(
    r"(?:나|나요|가|가요|니|까|어|어요|아|아요|해|해요|돼|돼요|써|지|지요|죠) ?[?.!]?$|오늘 기준"
)


# Rules, by the names in the vocabulary files. The named groups of a pattern are the keyword arguments of its rule.

RuleFunction = Callable[..., TimeExpression | None]
_RULE_FUNCTIONS: Final[dict[str, RuleFunction]] = {}


def _rule(function: RuleFunction) -> RuleFunction:
    """Register the decorated function under its name without the prefix."""
    _RULE_FUNCTIONS[function.__name__.removeprefix("_match_")] = function
    return function


@_rule
def _match_iso_day(*_: Any, year: int, month: int, day: int) -> TimeExpression:
    return TimeExpression(_day_span(date(year, month, day)))


@_rule
def _match_iso_month(*_: Any, year: int, month: int) -> TimeExpression:
    return TimeExpression(_month_span(year, month))


@_rule
def _match_iso_week(*_: Any, year: int, number: int) -> TimeExpression:
    return TimeExpression(_day_span(date.fromisocalendar(year, number, 1), 7))


@_rule
def _match_date(
    _: Match,
    now: datetime,
    *,
    month: int,
    day: int,
    last: int | None = None,
    year: int | None = None,
    back: int = 0,
    as_week: str = "",
) -> TimeExpression:
    since = _span_in_year(now, year, lambda year: _day_span(date(year, month, day)))[0]
    until = _day_span(date(since.year, month, day if last is None else last))[1]
    if back and until > now:
        since, until = since.replace(year=since.year - 1), until.replace(year=until.year - 1)
    if until <= since:
        raise ValueError("days in the wrong order")
    return TimeExpression(_unit_span(since, "week", 0) if as_week else (since, until), has_open_year=year is None)


def _month_range_expression(now: datetime, month: int, count: int, year: int | None, back: int = 0) -> TimeExpression:
    """
    Return the time expression for *count* months from *month*.

    If *back* is positive, spans that have not ended are skipped; if it is negative, the next year's span is returned.
    """
    span = _span_in_year(now, year, lambda year: _month_span(year, month, count))
    if back < 0:
        span = _month_span(span[0].year + 1, month, count)
    elif back > 0 and span[1] > now:
        span = _month_span(span[0].year - 1, month, count)
    return TimeExpression(span, LIKELY_STRENGTH, has_open_year=year is None)


@_rule
def _match_english_month(
    match: Match, now: datetime, *, month: int, back: int | None = None, year: int | None = None
) -> TimeExpression | None:
    written = match["month"]
    word, is_named = written.lower(), year is not None or back is not None
    is_short = len(word) < len("june") and word != "may"
    if (is_short and written.islower()) or (written == "may" and back == 0):
        # In lower case, the word is more likely a name or a verb, such as "may".
        return None
    found = _month_range_expression(now, month, 1, year, back or 0)
    sure = is_named or (written[0].isupper() and word not in {"may", "march"} and not is_short)
    return attrs.evolve(
        found, strength=1.0 if is_named else LIKELY_STRENGTH, is_unambiguous=sure, has_open_year=not is_named
    )


@_rule
def _match_named_month(
    _: Match, now: datetime, *, month: int, back: int = 0, year: int | None = None
) -> TimeExpression:
    return _month_range_expression(now, month, 1, year, back)


@_rule
def _match_date_or_month(
    match: Match, now: datetime, *, month: int, last_month: int | None = None, **given: Any
) -> TimeExpression | None:
    if "day" in given:
        return _match_date(match, now, month=month, **given)
    count = ((last_month or month) - month) % 12 + 1
    return attrs.evolve(
        _month_range_expression(now, month, count, given.get("year"), given.get("back", 0)), strength=1.0
    )


@_rule
def _match_year(*_: Any, year: int) -> TimeExpression:
    return TimeExpression(_month_span(year, 1, 12))


@_rule
def _match_quarter(_: Match, now: datetime, *, nth: int, year: int | None = None) -> TimeExpression:
    return _month_range_expression(now, 3 * nth - 2, 3, year)


@_rule
def _match_half_year(_: Match, now: datetime, *, nth: int, year: int | None = None) -> TimeExpression:
    return _month_range_expression(now, 6 * nth - 5, 6, year)


@_rule
def _match_season(_: Match, now: datetime, *, season: int, year: int | None = None, back: int = 0) -> TimeExpression:
    return _month_range_expression(now, 3 * season, 3, year, back)


@_rule
def _match_relative_unit(_: Match, now: datetime, *, back: int = 0, unit: str = "day") -> TimeExpression:
    return TimeExpression(_unit_span(now, unit, back))


@_rule
def _match_korean_today(match: Match, now: datetime) -> TimeExpression:
    is_vague = _KOREAN_QUESTION_PATTERN.search(match.string) and not _has_korean_past_tense(match.string)
    return TimeExpression(_unit_span(now, "day", 0), WEAK_STRENGTH if is_vague else 1.0)


def _has_korean_past_tense(text: str) -> bool:
    """Return True if a syllable ends in ㅆ, the mark of the past tense. 있 and 겠 are ignored."""
    finals = ((ord(letter) - ord("가")) % 28 for letter in text if "가" <= letter <= "힣" and letter not in "있겠")
    return 20 in finals  # noqa: PLR2004 - the place of the double s among the 28 finals


@_rule
def _match_last_night(_: Match, now: datetime) -> TimeExpression:
    today = _start_of_day(now.date())
    return TimeExpression((today - timedelta(hours=12), today + timedelta(hours=6)))


@_rule
def _match_weekend(_: Match, now: datetime) -> TimeExpression:
    return TimeExpression(_latest_begun_span(now, 2, lambda back: _unit_span(now, "weekend", back)))


@_rule
def _match_last_units(_: Match, now: datetime, *, unit: str = "day", count: int = 1, vague: str = "") -> TimeExpression:
    return TimeExpression(_span_until_now(now, unit, 3 if vague else count), _VAGUE_STRENGTH if vague else 1.0)


@_rule
def _match_units_ago(_: Match, now: datetime, *, count: int = 1, unit: str = "day") -> TimeExpression:
    return TimeExpression(_unit_span(now, unit, count))


@_rule
def _match_some_units_ago(_: Match, now: datetime, *, unit: str) -> TimeExpression:
    return TimeExpression(
        (_unit_span(now, unit, 7 if unit == "day" else 5)[0], _unit_span(now, unit, 2)[1]), _VAGUE_STRENGTH
    )


@_rule
def _match_other_day(_: Match, now: datetime) -> TimeExpression:
    return TimeExpression((_unit_span(now, "day", 7)[0], _start_of_day(now.date())), _VAGUE_STRENGTH)


@_rule
def _match_recently(_: Match, now: datetime) -> TimeExpression:
    return TimeExpression((_start_of_day((now - 14 * _ONE_DAY).date()), now), WEAK_STRENGTH)


@_rule
def _match_weekday(
    _: Match, now: datetime, *, weekday: int, back: int | None = None, week: int | None = None
) -> TimeExpression:
    days = now.weekday() - weekday
    if week is not None:
        days += 7 * week
    else:
        days = days % 7 or (7 if back == 1 else 0)
        days -= 7 if back == -1 else 0
    return TimeExpression(_unit_span(now, "day", days), LIKELY_STRENGTH if week is None and back is None else 1.0)


@_rule
def _match_day_of_month(_: Match, now: datetime, *, day: int) -> TimeExpression:
    def span_of(back: int) -> Span:
        return _day_span(_month_span(now.year, now.month - back)[0].replace(day=day).date())

    return TimeExpression(_latest_begun_span(now, 12, span_of), _VAGUE_STRENGTH)


@_rule
def _match_period_edge(_: Match, now: datetime, *, unit: str, part: int) -> TimeExpression:
    since, until = _unit_span(now, unit, 0)
    third = (until - since) // 3
    if part == 0:
        return TimeExpression((since, _start_of_day((since + third).date())), _VAGUE_STRENGTH)
    late = _start_of_day((until - third).date())
    return TimeExpression((late, until) if late <= now else (since - third, since), _VAGUE_STRENGTH)


# Languages of a query, with their rules


@attrs.frozen
class _Rule:
    pattern: re.Pattern[str]
    function: RuleFunction
    requires: re.Pattern[str] | None
    """Pattern that a text must contain, or None."""

    def find(self, text: str, now: datetime, vocabulary: QueryVocabulary) -> Iterator[TimeExpression]:
        """Yield the time expressions of *text*."""
        if self.requires is not None and not self.requires.search(text):
            return
        for match in self.pattern.finditer(text):
            try:
                found = self.function(match, now, **vocabulary.parse_groups(match))
            except (ValueError, OverflowError):
                # Impossible date, such as February 30. Claim all of its words, so that "February" is not matched alone.
                found = TimeExpression((now, now), 0.0)
            if found is not None:
                yield attrs.evolve(found, start=match.start(), end=match.end())


@attrs.frozen
class _Grammar:
    """The part of a language's time vocabulary that every query needs."""

    language: str
    vocabulary: QueryVocabulary
    time_words: frozenset[str]
    prefilter: re.Pattern[str] | None
    roles: Mapping[str, str]
    """Roles of the words before, after and between time expressions."""

    def may_match(self, text: str, words: set[str]) -> bool:
        """Return False if *text* has no time expression. This is much faster than the rules."""
        if self.time_words and (not self.time_words.isdisjoint(words) or any(map(_is_year, words))):
            return True
        return self.prefilter is not None and self.prefilter.search(text) is not None

    def role(self, match: Match | None) -> str:
        """Return the role of a word in the context, or an empty string."""
        return self.roles.get(match["word"].lower(), "") if match else ""


def _is_year(word: str) -> bool:
    return word.startswith(_YEAR_PREFIXES) and word[:4].isdecimal()


_CONTEXT_PATTERNS: Final = ("part_before", "part_after", "before", "after", "join", "suffix")


@functools.cache
def _load_grammar(language: str) -> _Grammar:
    vocabulary = load_vocabulary(language)
    roles = vocabulary.data.get("context", {}).get("roles", {})
    return _Grammar(
        language,
        vocabulary,
        vocabulary.expand_words("time_words"),
        vocabulary.compile("prefilter"),
        {fold_accents(word): role for role, words in roles.items() for word in words},
    )


# Most queries name no time, so these patterns are compiled for the first query of the language that may name one.
@functools.cache
def _load_rules(language: str) -> tuple[_Rule, ...]:
    vocabulary = load_vocabulary(language)
    return tuple(
        _Rule(
            vocabulary.compile_folded(pattern),
            _RULE_FUNCTIONS[entry["rule"]],
            vocabulary.compile_folded(entry["requires"]) if "requires" in entry else None,
        )
        for entry in vocabulary.data.get("rules", ())
        for pattern in entry["patterns"]
    )


@functools.cache
def _load_evidence(language: str) -> re.Pattern[str] | None:
    """Return the pattern of time words that no other language has."""
    return load_vocabulary(language).compile("evidence")


@functools.cache
def _load_context(language: str) -> Mapping[str, re.Pattern[str] | None]:
    """Return the patterns of the words around a time expression."""
    vocabulary = load_vocabulary(language)
    return {name: vocabulary.compile("context", name) for name in _CONTEXT_PATTERNS}


# Scripts of the languages that are recognised by their script. English rules apply to every text.
_SCRIPT_PATTERNS: Final = {
    "ko": re.compile("[\uac00-\ud7a3]"),
    "ja": re.compile("[\u3041-\u30fa\u4e00-\u9fff]"),
    "zh": re.compile("[\u4e00-\u9fff]"),
    "ru": re.compile("[\u0400-\u04ff]"),
}
_WORD_PATTERN: Final = re.compile(r"\w+")
_YEAR_PREFIXES: Final = ("19", "20")
_KANA_PATTERN: Final = re.compile("[\u3041-\u30fa]")


def _find_grammars(text: str) -> list[_Grammar]:
    """Return the grammars of the languages that *text* may contain time expressions of."""
    found, detected = [], None
    words = set(_WORD_PATTERN.findall(text.lower()))
    for language in LANGUAGES:
        script = _SCRIPT_PATTERNS.get(language)
        if script is not None and (text.isascii() or not script.search(text)):
            continue
        if language == "zh" and _KANA_PATTERN.search(text):
            # Chinese has no kana.
            continue
        grammar = _load_grammar(language)
        if not grammar.may_match(text, words):
            continue
        evidence = _load_evidence(language)
        if evidence is not None and not evidence.search(text):
            # Only words that other languages share, for example French "hier", which is "here" in German.
            detected = detect_language(text) if detected is None else detected
            if detected != language:
                continue
        found.append(grammar)
    return found


def find_time_expressions(text: str, now: datetime) -> Iterator[TimeExpression]:
    """Yield all time expressions of *text*, ordered by language and rule."""
    for grammar in _find_grammars(text):
        for rule in _load_rules(grammar.language):
            for found in rule.find(text, now, grammar.vocabulary):
                yield attrs.evolve(found, language=grammar.language)


# Periods

_LEFT_CONTEXT_CHARS: Final = 48
# Ends of the span (0: start, 1: end) that become the start and the end of the period. None: unbounded.
_BOUNDS_BY_ROLE: Final[Mapping[str, tuple[int | None, int | None]]] = {
    "since": (0, None),
    "until": (None, 1),
    "before": (None, 0),
    "after": (1, None),
}


def find_period(query: str, now: datetime) -> Period | None:
    """
    Return the period that a *query* names, relative to *now*.

    The query may be in English, Korean, German, French, Spanish, Japanese, Chinese or Russian. A naive *now* is taken
    as UTC.
    """
    now = now.replace(tzinfo=UTC) if now.tzinfo is None else now.astimezone(UTC)
    text = fold_accents(re.sub(r"\s", " ", query[:_MAX_QUERY_CHARS]))
    found = _find_non_overlapping(text, now)
    periods = []
    ended: TimeExpression | None = None
    for one, other in itertools.zip_longest(found, found[1:]):
        if one is ended:
            continue
        period = _range_period(text, one, other)
        ended = other if period else None
        period = period or _single_period(text, one)
        if period is not None and (not period.since or not period.until or period.since < period.until):
            periods.append(period)
    # Prefer the most certain period, and the first if several are equal, because later ones are usually explanations.
    best = max(periods, key=lambda period: period.strength, default=None)
    if best is None:
        return None
    start = best.spans[0][0]
    # Vague words such as "recently" are not search terms either if the query names a definite period, too.
    spans = [span for one in periods if one is best or one.strength <= WEAK_STRENGTH for span in one.spans]
    return attrs.evolve(best, words=query[start : start + len(best.words)], spans=tuple(spans))


def remove_period(text: str, period: Period) -> str:
    """
    Return *text* without the words that name the *period*, and with single spaces.

    These words, and numbers in them, are no search terms: "in the last 3 days" names no memory.
    """
    kept, end = [], 0
    for start, stop in period.spans:
        kept.append(text[end:start])
        end = stop
    rest = _EMPTY_BRACKETS_PATTERN.sub("", " ".join([*kept, text[end:]]))
    return _SPACE_BEFORE_MARK_PATTERN.sub("", " ".join(rest.split())).lstrip(",;: ")


_EMPTY_BRACKETS_PATTERN: Final = re.compile(r"[(\[] {0,9}[)\]]")
_SPACE_BEFORE_MARK_PATTERN: Final = re.compile(r" (?=[?!.,;:\uff1f\u3002])")


def _find_non_overlapping(text: str, now: datetime) -> list[TimeExpression]:
    """
    Return non-overlapping time expressions in text order.

    Of overlapping ones, the first is returned, and the longest if several start there.
    """
    kept: list[TimeExpression] = []
    for one in sorted(find_time_expressions(text, now), key=lambda one: (one.start, -one.end)):
        if not kept or one.start >= kept[-1].end:
            kept.append(_narrow_to_part(text, one))
    return kept


def _match_before(text: str, one: TimeExpression, name: str) -> Match | None:
    """Match a context pattern that ends where the expression starts."""
    pattern = _load_context(one.language)[name]
    return pattern.search(text[max(0, one.start - _LEFT_CONTEXT_CHARS) : one.start]) if pattern else None


def _match_after(text: str, one: TimeExpression, name: str, end: int | None = None) -> Match | None:
    """Match a context pattern that starts at *end*, by default where the expression ends."""
    pattern = _load_context(one.language)[name]
    return pattern.match(text, one.end if end is None else end) if pattern else None


def _narrow_to_part(text: str, one: TimeExpression) -> TimeExpression:
    """Return the stated part of a period, as in "early March" or "3월 말"."""
    prefix = _match_before(text, one, "part_before")
    match = prefix or _match_after(text, one, "part_after")
    if match is None or one.span[1] - one.span[0] < 7 * _ONE_DAY:
        return one
    values = load_vocabulary(one.language).parse_groups(match)
    since, until = one.span
    if nth := values.get("nth"):
        length = values.get("count", 1) * (7 if values["unit"] == "week" else 1) * _ONE_DAY
        span = (until - length, until) if nth < 0 else (since + (nth - 1) * length, min(since + nth * length, until))
    else:
        number, parts = (values["part"], 3) if values["part"] < 3 else (values["part"] - 3, 2)  # noqa: PLR2004 - see above
        # Thirds of a month are ten days long, and the last one is the remainder.
        is_month = (until - since).days in range(28, 32)
        length = 10 * _ONE_DAY if parts == 3 and is_month else (until - since) // parts  # noqa: PLR2004 - thirds
        first = _start_of_day((since + number * length).date())
        span = (first, until if number == parts - 1 else _start_of_day((first + length).date()))
    start = one.start - len(prefix[0]) if prefix else one.start
    return attrs.evolve(one, start=start, end=one.end if prefix else match.end(), span=span, is_unambiguous=True)


def _add_year(day: datetime) -> datetime:
    """Return the same day of the next year, March 1 for February 29, or the last time if there is no next year."""
    if day.year >= MAXYEAR - 1:
        return datetime.max.replace(tzinfo=UTC)
    return _month_span(day.year + 1, day.month)[0] + (day - day.replace(day=1))


def _range_period(text: str, one: TimeExpression, other: TimeExpression | None) -> Period | None:
    """Return the period from *one* to *other* if the words around them express a range."""
    if other is None or not one.strength or not other.strength:
        return None
    grammar = _load_grammar(one.language)
    pattern = _load_context(one.language)["join"]
    join = pattern.fullmatch(text, one.end, other.start) if pattern else None
    if join is None:
        return None
    lead = _match_before(text, one, "before")
    join_role, first = grammar.role(join), grammar.role(lead)
    if join_role == "and" and first != "between":
        return None
    if not (
        one.is_unambiguous or other.is_unambiguous or first in {"between", "from", "within"} or join_role == "dash"
    ):
        return None
    since, until = one.span[0], other.span[1]
    if until <= since:
        until = _add_year(other.span[1]) if other.has_open_year else one.span[1]
        since = since if other.has_open_year else other.span[0]
    start = one.start - (len(lead[0]) if lead and first in {"between", "from"} else 0)
    tail = _match_after(text, other, "after")
    end = tail.end() if tail and grammar.role(tail) in {"until", "between"} else other.end
    return _build_period(text, other, (since, until), (start, end), min(one.strength, other.strength, 1.0))


def _single_period(text: str, one: TimeExpression) -> Period | None:
    grammar = _load_grammar(one.language)
    lead, tail = _match_before(text, one, "before"), _match_after(text, one, "after")
    if one.strength == 0 or not (one.is_unambiguous or lead or tail):
        return None
    role = grammar.role(lead or tail)
    if role == "from" and grammar.role(tail) == "onwards":
        role = "since"
    first, last = _BOUNDS_BY_ROLE.get(role, (0, 1))
    span = None if first is None else one.span[first], None if last is None else one.span[last]
    start = one.start - (len(lead[0]) if lead else 0)
    end = tail.end() if tail and not lead else one.end
    return _build_period(text, one, span, (start, end), one.strength)


def _build_period(
    text: str,
    one: TimeExpression,
    span: tuple[datetime | None, datetime | None],
    place: tuple[int, int],
    strength: float,
) -> Period:
    """Return the period of the words at *place*. Particles after them belong to its spans."""
    start, end = place
    suffix = _match_after(text, one, "suffix", end)
    words = text[start:end]
    start += len(words) - len(words.lstrip())
    return Period(*span, words.strip(), strength, ((start, suffix.end() if suffix else end),))
