"""
Detection of time periods in queries, such as "last week", "since May" or "지난달 말".

Days are UTC days, weeks run from Monday to Sunday, and a month without a year is the most recent one that has begun
(README of the sample in data/retrieval). Durations such as "a 14 days token" or "every 5 s" are not periods. An
ambiguous word such as "may" counts only in a context that makes it a month.
All repetitions in the regular expressions are bounded, so the time is linear in the length of the query.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

import attrs

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


_LIKELY_STRENGTH: Final = 0.8
_VAGUE_STRENGTH: Final = 0.6
_WEAK_STRENGTH: Final = 0.3
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


# Values of named regex groups by text. Digits have their numeric value in every group.


def _number_words(words: str, start: int = 1) -> dict[str, int]:
    return {word: number for number, alike in enumerate(words.split(), start) for word in alike.split("|")}


def _canonical_words(words: str) -> dict[str, str]:
    return {word: alike.split("|")[0] for alike in words.split() for word in alike.split("|")}


_MONTH_NUMBERS: Final = _number_words(
    "january|jan february|feb march|mar april|apr may june|jun july|jul august|aug september|sept|sep october|oct "
    "november|nov december|dec"
)
_ORDINAL_NUMBERS: Final = _number_words(
    "last|final|마지막 0 first|1st|첫째|첫|첫번째|상반기 second|2nd|둘째|두번째|하반기 third|3rd|셋째|세번째 "
    "fourth|4th|넷째|네번째",
    -1,
)
_UNITS_BACK: Final = _number_words(
    "next|coming|다음 this|current|이번|금|이|올 last|past|previous|지난|저번|작|전|yesterday|어제|어저께|간밤 "
    "지지난|저저번|재작|beforelast|daybeforeyesterday|그제|그저께 그끄저께",
    -1,
)
_GROUP_VALUES: Final[Mapping[str, Mapping[str, Any]]] = {
    "month": _MONTH_NUMBERS,
    "weekday": _number_words("monday|월 tuesday|화 wednesday|수 thursday|목 friday|금 saturday|토 sunday|일", 0),
    "season": _number_words("spring|봄 summer|여름 autumn|fall|가을 winter|겨울"),
    "year": _number_words("재작년 lastyear|작년|지난해 thisyear|올해|금년", -2),
    "nth": _ORDINAL_NUMBERS,
    "back": _UNITS_BACK,
    "week": _UNITS_BACK,
    "count": _number_words(
        "a|an|one|한|일|하루 two|acoupleof|두|이|이틀 three|세|삼|석|사흘 four|네|사|넉|나흘 five|다섯|오|닷새 "
        "six|여섯|육|엿새 seven|일곱|칠|이레 eight|여덟|팔|여드레 nine|아홉|구|아흐레 ten|열|십|열흘 "
        "eleven|열한 twelve|열두"
    ),
    "unit": _canonical_words(
        "hour|hours|시간 day|days|일|날 week|weeks|주일|주 weekend|주말 month|months|달|개월|월 quarter|quarters|분기 "
        "year|years|년|해"
    ),
    # Parts of a period: 0 to 2 are its thirds, 3 and 4 are its halves.
    "part": _number_words(
        "early|beginning|start|begin|초순|초반|초|상순 mid|middle|중순|중반 late|end|close|말|하순 "
        "firsthalf|전반 secondhalf|후반",
        0,
    ),
}


def _parse_groups(match: Match) -> dict[str, Any]:
    """Return the values of a match's named groups. Text without a table entry is unchanged."""
    return {name: _parse_value(_GROUP_VALUES.get(name, {}), text) for name, text in match.groupdict().items() if text}


def _parse_value(table: Mapping[str, Any], text: str) -> Any:
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else table.get(text.lower().replace(" ", ""), text)


_MONTH_REGEX: Final = "|".join(_MONTH_NUMBERS)
_YEAR_REGEX: Final = r"(?:19|20)\d\d"
_FOLLOWING_YEAR_REGEX: Final = rf"(?:,? (?:of )?(?P<year>{_YEAR_REGEX}|last year|this year)\b)"
_DAY_NUMBER_REGEX: Final = r"[0-3]?\d(?:st|nd|rd|th)?"
_COUNT_REGEX: Final = r"\d{1,4}|a couple of|a|an|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
_WEEKDAY_REGEX: Final = "monday|tuesday|wednesday|thursday|friday|saturday|sunday"
_KOREAN_COUNT_REGEX: Final = (
    r"\d{1,4}|열한|열두|한|두|세|네|다섯|여섯|일곱|여덟|아홉|열|석|넉|일|이|삼|사|오|육|칠|팔|구|십"
)
_KOREAN_UNIT_REGEX: Final = "(?P<unit>시간|일|주일|주|달|개월|분기|년|해)"
# Allowed text after a Korean time word, so that 지난 주 does not match in 지난 주요 변경.
_KOREAN_BOUNDARY_REGEX: Final = (
    r"(?=$|[^가-힣]|에|의|엔|은|는|도|이|가|을|를|과|와|간|로"
    r"|부터|까지|보다|동안|내내|중|초|말|쯤|경|때|이후|이전|전에|사이)"
)
_PAST_TENSE_PATTERN: Final = re.compile(
    r"\b(?:did|was|were|have|has|had|made|wrote|said|noted|decided|learned|happened|changed|broke|went|came|saw)\b|"
    r"\b(?:from|since|of|until) today\b|\btoday['\u2019]s\b|"
    r"^\W{0,9}today\W{0,9}$",
    re.IGNORECASE,
)
# A question in the present or about the current state: "오늘은 어떻게 나누나?", "오늘 기준".
_KOREAN_QUESTION_PATTERN: Final = re.compile(
    r"(?:나|나요|가|가요|니|까|어|어요|아|아요|해|해요|돼|돼요|써|지|지요|죠) ?[?.!]?$|오늘 기준"
)
_AGO_REGEX: Final = r" (?:ago|back|earlier)\b"
_RANGE_JOIN_REGEX: Final = r" ?(?:-|–|—|to|and|until|through) ?"  # noqa: RUF001 - dashes of people
_KOREAN_YEAR_REGEX: Final = rf"(?:(?P<year>{_YEAR_REGEX}년|작년|지난해|재작년|올해|금년) ?)?"
_UNIT_REGEX: Final = "hour|day|week|month|quarter|year"
_PLURAL_UNIT_REGEX: Final = rf"(?P<unit>(?:{_UNIT_REGEX})s?)"
_DATE_PREPOSITION_REGEX: Final = r"(?:(?<=\bon )|(?<=\bsince )|(?<=\buntil )|(?<=\bbefore )|(?<=\bafter )|(?<=\bfrom ))"
_PERIOD_PREPOSITION_REGEX: Final = (
    r"(?:(?<=\bin )|(?<=\bsince )|(?<=\bbefore )|(?<=\bafter )|(?<=\bof )|(?<=\bduring ))"
)


# Rules, each with its patterns

Rule = Callable[..., TimeExpression | None]
_RULES: Final[list[tuple[re.Pattern[str], Rule]]] = []


def _rule(*patterns: str) -> Callable[[Rule], Rule]:
    """Register the decorated rule for patterns. Their named groups are its keyword arguments."""

    def add(rule: Rule) -> Rule:
        _RULES.extend((re.compile(pattern, re.IGNORECASE), rule) for pattern in patterns)
        return rule

    return add


@_rule(
    rf"(?<![\w.:/-])(?P<year>{_YEAR_REGEX})(?:([-/])(?=\d\d?\2)|[.](?=\d\d[.]\d\d))"
    r"(?P<month>0?[1-9]|1[0-2])[-/.](?P<day>0?[1-9]|[12]\d|3[01])(?![\d.:/-]{0,8}\d)"
)
def _match_iso_day(*_: Any, year: int, month: int, day: int) -> TimeExpression:
    return TimeExpression(_day_span(date(year, month, day)))


@_rule(rf"(?<![\w.:/-])(?P<year>{_YEAR_REGEX})-(?P<month>0[1-9]|1[0-2])(?![\w./-]{{0,8}}\d)")
def _match_iso_month(*_: Any, year: int, month: int) -> TimeExpression:
    return TimeExpression(_month_span(year, month))


@_rule(r"(?<![\w.-])(?P<year>20\d\d)-W(?P<number>[0-5]\d)\b")
def _match_iso_week(*_: Any, year: int, number: int) -> TimeExpression:
    return TimeExpression(_day_span(date.fromisocalendar(year, number, 1), 7))


@_rule(
    r"(?P<as_week>\bweek of (?:the )?)?(?<![\w.,:/-])"
    rf"(?P<day>{_DAY_NUMBER_REGEX})(?:{_RANGE_JOIN_REGEX}(?P<last>{_DAY_NUMBER_REGEX}))? "
    rf"(?:of )?(?P<month>{_MONTH_REGEX})\b{_FOLLOWING_YEAR_REGEX}?",
    rf"(?P<as_week>\bweek of )?\b(?P<month>{_MONTH_REGEX})\.? (?:the )?"
    rf"(?P<day>{_DAY_NUMBER_REGEX})(?:{_RANGE_JOIN_REGEX}(?P<last>{_DAY_NUMBER_REGEX}))?"
    rf"(?![\w:%]|[.,-]\d){_FOLLOWING_YEAR_REGEX}?",
)
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
    return TimeExpression(span, _LIKELY_STRENGTH, has_open_year=year is None)


@_rule(
    rf"\b(?:(?P<back>last|past|previous|this|next) )?(?<![\w/.@])(?P<month>{_MONTH_REGEX})\b"
    rf"(?![\w/.@_]\w| of (?!{_YEAR_REGEX}|last|this))"
    r"(?!(?<=may) (?:be|have|not|also|need|cause|lead|break|well|still|only|never|we|i|it|they|you)\b)"
    rf"{_FOLLOWING_YEAR_REGEX}?"
)
def _match_month(
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
        found, strength=1.0 if is_named else _LIKELY_STRENGTH, is_unambiguous=sure, has_open_year=not is_named
    )


@_rule(
    rf"{_KOREAN_YEAR_REGEX}(?:(?P<back>지난) )?(?<![\d.~-])(?P<month>1[0-2]|[1-9])"
    r"(?: ?[~-] ?(?P<last_month>1[0-2]|[1-9]))?월(?![가-힣]{0,2}호)"
    r"(?: ?(?P<day>[12]\d|3[01]|[1-9])(?:일? ?(?:[~-]|부터) ?(?P<last>[12]\d|3[01]|[1-9]))?일)?"
)
def _match_korean_date(
    match: Match, now: datetime, *, month: int, last_month: int | None = None, **given: Any
) -> TimeExpression | None:
    if "day" in given:
        return _match_date(match, now, month=month, **given)
    count = ((last_month or month) - month) % 12 + 1
    return attrs.evolve(
        _month_range_expression(now, month, count, given.get("year"), given.get("back", 0)), strength=1.0
    )


@_rule(
    rf"{_PERIOD_PREPOSITION_REGEX}(?P<year>{_YEAR_REGEX})\b(?![-.]?\w)",
    rf"(?<!\d)(?P<year>{_YEAR_REGEX})년(?! ?(?:\d|동안|상반기|하반기|봄|여름|가을|겨울|간|전))",
)
def _match_year(*_: Any, year: int) -> TimeExpression:
    return TimeExpression(_month_span(year, 1, 12))


@_rule(
    rf"\bq(?P<nth>[1-4])\b(?:[ /]?(?P<year>{_YEAR_REGEX})\b)?",
    rf"\b(?P<nth>first|second|third|fourth|1st|2nd|3rd|4th) quarter\b{_FOLLOWING_YEAR_REGEX}?",
    rf"{_KOREAN_YEAR_REGEX}(?<!\d)(?P<nth>[1-4]) ?분기{_KOREAN_BOUNDARY_REGEX}",
)
def _match_quarter(_: Match, now: datetime, *, nth: int, year: int | None = None) -> TimeExpression:
    return _month_range_expression(now, 3 * nth - 2, 3, year)


@_rule(
    rf"\bh(?P<nth>[12]) (?P<year>{_YEAR_REGEX})\b",
    rf"\b(?P<nth>first|second) half of (?:the year|(?P<year>{_YEAR_REGEX}|last year|this year))\b",
    rf"{_KOREAN_YEAR_REGEX}(?P<nth>상반기|하반기)",
)
def _match_half_year(_: Match, now: datetime, *, nth: int, year: int | None = None) -> TimeExpression:
    return _month_range_expression(now, 6 * nth - 5, 6, year)


@_rule(
    r"\b(?P<back>last|this) (?P<season>spring|summer|autumn|fall|winter)\b",
    rf"(?:{_PERIOD_PREPOSITION_REGEX}|(?<=\bin the )|(?<=\bof the ))"
    r"(?P<season>spring|summer|autumn|winter|(?<=the )fall)\b"
    rf"(?! ?(?:boot|mvc|framework|cloud|data|security)|[-_.]\w){_FOLLOWING_YEAR_REGEX}?",
    rf"\b(?P<season>spring|summer|autumn|fall|winter) (?:of )?(?P<year>{_YEAR_REGEX}|last year|this year)\b",
    rf"{_KOREAN_YEAR_REGEX}(?<![가-힣])(?:(?P<back>지난) ?|올)?(?P<season>봄|여름|가을|겨울)"
    r"(?=에|엔|부터|까지|철|동안| 동안|내내| ?\()",
)
def _match_season(_: Match, now: datetime, *, season: int, year: int | None = None, back: int = 0) -> TimeExpression:
    return _month_range_expression(now, 3 * season, 3, year, back)


@_rule(
    r"\b(?:(?:the )?(?P<back>day before yesterday)|earlier today|tonight)\b",
    r"\b(?:(?P<back>yesterday)|this (?:morning|afternoon|evening))\b",
    rf"\b(?P<back>this|current|last|past|previous|next|coming) (?P<unit>{_UNIT_REGEX}|weekend)\b(?![-\w]| of )",
    r"(?<=\bof )the (?P<unit>week|month|year)\b(?! of|[-\w])",
    r"\b(?:the )?(?P<unit>weekend|week|month|quarter|year) (?P<back>before last)\b",
    rf"(?P<back>어제|어저께|그제|그저께|그끄저께|간밤){_KOREAN_BOUNDARY_REGEX}",
    rf"(?P<back>지지난|저저번|지난|저번|이번|다음) ?(?P<unit>주말|주|달|분기|해){_KOREAN_BOUNDARY_REGEX}",
    r"(?=금주|전주[에의]|이달|전월|금월|작년|재작년|올해|금년)"
    rf"(?P<back>재작|[작올금전이])(?P<unit>[주달월년해]){_KOREAN_BOUNDARY_REGEX}",
)
def _match_relative_unit(_: Match, now: datetime, *, back: int = 0, unit: str = "day") -> TimeExpression:
    return TimeExpression(_unit_span(now, unit, back))


@_rule(r"\btoday\b")
def _match_today(match: Match, now: datetime) -> TimeExpression | None:
    # "How is it stored today?" asks for the current state, not for text written today.
    return _match_relative_unit(match, now) if _PAST_TENSE_PATTERN.search(match.string) else None


@_rule(rf"오늘{_KOREAN_BOUNDARY_REGEX}")
def _match_korean_today(match: Match, now: datetime) -> TimeExpression:
    is_vague = _KOREAN_QUESTION_PATTERN.search(match.string) and not _has_korean_past_tense(match.string)
    return TimeExpression(_unit_span(now, "day", 0), _WEAK_STRENGTH if is_vague else 1.0)


def _has_korean_past_tense(text: str) -> bool:
    """Return True if a syllable ends in ㅆ, the mark of the past tense. 있 and 겠 are ignored."""
    finals = ((ord(letter) - ord("가")) % 28 for letter in text if "가" <= letter <= "힣" and letter not in "있겠")
    return 20 in finals  # noqa: PLR2004 - the place of the double s among the 28 finals


@_rule(r"\blast night\b")
def _match_last_night(_: Match, now: datetime) -> TimeExpression:
    today = _start_of_day(now.date())
    return TimeExpression((today - timedelta(hours=12), today + timedelta(hours=6)))


@_rule(r"\b(?:over|on|at|during) the weekend\b")
def _match_weekend(_: Match, now: datetime) -> TimeExpression:
    return TimeExpression(_latest_begun_span(now, 2, lambda back: _unit_span(now, "weekend", back)))


@_rule(
    rf"\b(?:in|over|within|during|for|of|from) the (?:last|past) {_PLURAL_UNIT_REGEX}\b(?!-)",
    r"\b(?:the )?(?:last|past|previous) "
    rf"(?:(?P<vague>(?:a )?few|several|(?:a )?couple of)|(?P<count>{_COUNT_REGEX})) {_PLURAL_UNIT_REGEX}\b(?!-)",
    rf"(?:최근|지난) (?:(?P<count>{_KOREAN_COUNT_REGEX})|(?P<vague>몇)) ?{_KOREAN_UNIT_REGEX}"
    rf"(?: ?(?:간|동안))?{_KOREAN_BOUNDARY_REGEX}",
)
def _match_last_units(_: Match, now: datetime, *, unit: str, count: int = 1, vague: str = "") -> TimeExpression:
    return TimeExpression(_span_until_now(now, unit, 3 if vague else count), _VAGUE_STRENGTH if vague else 1.0)


@_rule(
    rf"\b(?P<count>{_COUNT_REGEX}) {_PLURAL_UNIT_REGEX}{_AGO_REGEX}",
    rf"(?P<count>하루|이틀|사흘|나흘|닷새|엿새|이레|여드레|아흐레|열흘) ?전{_KOREAN_BOUNDARY_REGEX}",
    rf"(?<![가-힣\d])(?P<count>{_KOREAN_COUNT_REGEX}) ?{_KOREAN_UNIT_REGEX} ?전{_KOREAN_BOUNDARY_REGEX}",
)
def _match_units_ago(_: Match, now: datetime, *, count: int, unit: str = "day") -> TimeExpression:
    return TimeExpression(_unit_span(now, unit, count))


@_rule(rf"\b(?:a few|several|some) {_PLURAL_UNIT_REGEX}{_AGO_REGEX}")
def _match_some_units_ago(_: Match, now: datetime, *, unit: str) -> TimeExpression:
    return TimeExpression(
        (_unit_span(now, unit, 7 if unit == "day" else 5)[0], _unit_span(now, unit, 2)[1]), _VAGUE_STRENGTH
    )


@_rule(r"\bthe other day\b", rf"(?:엊그제|며칠 ?전){_KOREAN_BOUNDARY_REGEX}")
def _match_other_day(_: Match, now: datetime) -> TimeExpression:
    return TimeExpression((_unit_span(now, "day", 7)[0], _start_of_day(now.date())), _VAGUE_STRENGTH)


@_rule(r"\b(?:recently|lately|these days|of late)\b", rf"(?:최근|요즘|요새|근래|얼마 전){_KOREAN_BOUNDARY_REGEX}")
def _match_recently(_: Match, now: datetime) -> TimeExpression:
    return TimeExpression((_start_of_day((now - 14 * _ONE_DAY).date()), now), _WEAK_STRENGTH)


@_rule(
    rf"(?:\b(?P<back>last|past|previous|this|next|coming) |{_DATE_PREPOSITION_REGEX})"
    rf"(?P<weekday>{_WEEKDAY_REGEX})\b(?: (?P<week>last|this) week)?",
    rf"\b(?P<weekday>{_WEEKDAY_REGEX})(?: of)? (?P<week>last|this) week\b",
    r"(?:(?P<week>지난|이번) ?주 |(?P<back>지난|저번) )?(?<![가-힣])(?P<weekday>[월화수목금토일])요일"
    r"(?=에|의|부터|까지|엔| |$)",
)
def _match_weekday(
    _: Match, now: datetime, *, weekday: int, back: int | None = None, week: int | None = None
) -> TimeExpression:
    days = now.weekday() - weekday
    if week is not None:
        days += 7 * week
    else:
        days = days % 7 or (7 if back == 1 else 0)
        days -= 7 if back == -1 else 0
    return TimeExpression(_unit_span(now, "day", days), _LIKELY_STRENGTH if week is None and back is None else 1.0)


@_rule(
    r"(?<=\bon the )(?P<day>[0-3]?\d)(?:st|nd|rd|th)\b"
    r"(?! (?:of|floor|place|try|attempt|day|line|page|run|call|planet)\b)"
)
def _match_day_of_month(_: Match, now: datetime, *, day: int) -> TimeExpression:
    def span_of(back: int) -> Span:
        return _day_span(_month_span(now.year, now.month - back)[0].replace(day=day).date())

    return TimeExpression(_latest_begun_span(now, 12, span_of), _VAGUE_STRENGTH)


@_rule(r"(?<![가-힣])(?:연초|연말|월초|월말)(?=에|의|부터|까지|엔| |$)")
def _match_korean_period_edge(match: Match, now: datetime) -> TimeExpression:
    since, until = _unit_span(now, "year" if match[0][0] == "연" else "month", 0)
    third = (until - since) // 3
    if match[0][1] == "초":
        return TimeExpression((since, _start_of_day((since + third).date())), _VAGUE_STRENGTH)
    late = _start_of_day((until - third).date())
    return TimeExpression((late, until) if late <= now else (since - third, since), _VAGUE_STRENGTH)


# Pre-filter for all rules, because most queries contain no time expression and the rules take 20 times as long.
_PREFILTER_PATTERN: Final = re.compile(
    rf"\b(?:{_MONTH_REGEX}|(?:{_UNIT_REGEX}|weekend)s?|{_WEEKDAY_REGEX}|spring|summer|autumn|fall|winter|yesterday|today|tonight"
    r"|this (?:morning|afternoon|evening)|last night|recently|lately|of late|q[1-4])\b"
    rf"|(?:19|20)\d\d|\d(?:st|nd|rd|th)?(?:{_MONTH_REGEX})\b|\bon the [0-3]?\d"
    r"|[월년봄]|분기|반기|여름|가을|겨울|어제|저께|그제|간밤|지난|저번|이번|다음|금주|전주|이달|올해|오늘|최근|요즘|요새|근래|요일|연초|연말"
    r"|[간일주달기해루틀흘새레칠마] ?전",
    re.IGNORECASE,
)


_ASCII_RULES: Final = [one for one in _RULES if not re.search("[가-힣]", one[0].pattern)]


def find_time_expressions(text: str, now: datetime) -> Iterator[TimeExpression]:
    """Yield all time expressions of *text*, ordered by rule."""
    if not _PREFILTER_PATTERN.search(text):
        return
    for pattern, rule in _ASCII_RULES if text.isascii() else _RULES:
        for match in pattern.finditer(text):
            try:
                words = rule(match, now, **_parse_groups(match))
            except (ValueError, OverflowError):
                # Impossible date, such as February 30. Claim all of its words, so that "February" is not matched alone.
                words = TimeExpression((now, now), 0.0)
            if words is not None:
                yield attrs.evolve(words, start=match.start(), end=match.end())


# Context before and after time expressions

_LEFT_CONTEXT_CHARS: Final = 48
_PART_PATTERN: Final = re.compile(
    r"\b(?P<part>early|mid|middle|late|beginning|start|end|begin|close|first half|second half|"
    r"(?P<nth>first|second|third|fourth|1st|2nd|3rd|4th|last|final) "
    rf"(?:(?P<count>{_COUNT_REGEX}) )?(?P<unit>day|week)s?)"
    r"(?:[ -]| (?:of|in) (?:the )?(?:month of )?)$",
    re.IGNORECASE,
)
_KOREAN_PART_PATTERN: Final = re.compile(
    r" ?(?:의 )?(?P<part>초순|초반|초(?!기|과|안|록)|상순|중순|중반|말(?!씀|하|했)|하순|후반|전반|"
    r"(?P<nth>첫째|첫 ?번째|첫|둘째|두 ?번째|셋째|세 ?번째|넷째|네 ?번째|마지막) ?"
    r"(?P<unit>주|날)(?![요소제]))"
)
_PREPOSITION_PATTERN: Final = re.compile(
    r"\b(?P<word>since|from|starting|after|before|until|till|up to|by|prior to|between|in|during|of|on|for|over|"
    r"within|throughout|around|about|at|as of|back in) (?:the )?"
    r"(?:(?:month|week|end|start) of (?:the )?)?$",
    re.IGNORECASE,
)
_RANGE_JOIN_PATTERN: Final = re.compile(
    r" ?(?P<word>-|–|—|~|to|until|till|through|thru|and|부터|에서) ?(?:the )?"  # noqa: RUF001 - dashes of people
    r"(?:(?:early|mid|middle|late|beginning|start|end)(?:[ -]| of (?:the )?))?",
    re.IGNORECASE,
)
_POSTPOSITION_PATTERN: Final = re.compile(
    r" ?(?P<word>onwards?\b|on\b|부터|이후|이래|이전|까지|전에|전까지|전(?=$|[ .,?!])|사이|에서)", re.IGNORECASE
)
# Ends of the span (0: start, 1: end) that become the start and the end of the period. None: unbounded.
_BOUNDS_BY_PREPOSITION: Final[Mapping[str, tuple[int | None, int | None]]] = {
    **dict.fromkeys(("since", "starting", "as of", "부터", "이후", "이래"), (0, None)),
    **dict.fromkeys(("until", "till", "up to", "by", "까지"), (None, 1)),
    **dict.fromkeys(("before", "prior to", "이전", "전에", "전까지", "전"), (None, 0)),
    "after": (1, None),
}


def find_period(query: str, now: datetime) -> Period | None:
    """
    Return the period named by an English or Korean *query*, relative to *now*.

    A naive *now* is taken as UTC.
    """
    now = now.replace(tzinfo=UTC) if now.tzinfo is None else now.astimezone(UTC)
    text = re.sub(r"\s", " ", query[:_MAX_QUERY_CHARS])
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
    return max(periods, key=lambda period: period.strength, default=None)


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


def _narrow_to_part(text: str, one: TimeExpression) -> TimeExpression:
    """Return the stated part of a period, as in "early March" or "3월 말"."""
    before = _PART_PATTERN.search(text[max(0, one.start - _LEFT_CONTEXT_CHARS) : one.start])
    match = before or _KOREAN_PART_PATTERN.match(text, one.end)
    if match is None or one.span[1] - one.span[0] < 7 * _ONE_DAY:
        return one
    said = _parse_groups(match)
    since, until = one.span
    if nth := said.get("nth"):
        length = said.get("count", 1) * (7 if said["unit"] == "week" else 1) * _ONE_DAY
        span = (until - length, until) if nth < 0 else (since + (nth - 1) * length, min(since + nth * length, until))
    else:
        number, parts = (said["part"], 3) if said["part"] < 3 else (said["part"] - 3, 2)  # noqa: PLR2004 - see above
        # Thirds of a month are ten days long, and the last one is the remainder.
        is_month = (until - since).days in range(28, 32)
        length = 10 * _ONE_DAY if parts == 3 and is_month else (until - since) // parts  # noqa: PLR2004 - thirds
        first = _start_of_day((since + number * length).date())
        span = (first, until if number == parts - 1 else _start_of_day((first + length).date()))
    start = one.start - len(before[0]) if before else one.start
    return attrs.evolve(one, start=start, end=one.end if before else match.end(), span=span, is_unambiguous=True)


def _add_year(day: datetime) -> datetime:
    """Return the same day of the next year, or March 1 for February 29."""
    return _month_span(day.year + 1, day.month)[0] + (day - day.replace(day=1))


def _range_period(text: str, one: TimeExpression, other: TimeExpression | None) -> Period | None:
    """Return the period from *one* to *other* if the words around them express a range."""
    if other is None or not one.strength or not other.strength:
        return None
    join = _RANGE_JOIN_PATTERN.fullmatch(text[one.end : other.start])
    if join is None:
        return None
    lead = _PREPOSITION_PATTERN.search(text[max(0, one.start - _LEFT_CONTEXT_CHARS) : one.start])
    word, first = join["word"].lower(), lead["word"].lower() if lead else ""
    if word == "and" and first != "between":
        return None
    if not (
        one.is_unambiguous
        or other.is_unambiguous
        or first in {"between", "from", "in", "during", "of"}
        or word in "-–—~"  # noqa: RUF001 - dashes of people
    ):
        return None
    since, until = one.span[0], other.span[1]
    if until <= since:
        until = _add_year(other.span[1]) if other.has_open_year else one.span[1]
        since = since if other.has_open_year else other.span[0]
    start = one.start - (len(lead[0]) if lead and first in {"between", "from"} else 0)
    tail = _POSTPOSITION_PATTERN.match(text, other.end)
    end = tail.end() if tail and tail["word"] in {"까지", "사이"} else other.end
    return Period(since, until, text[start:end].strip(), min(one.strength, other.strength, 1.0))


def _single_period(text: str, one: TimeExpression) -> Period | None:
    lead = _PREPOSITION_PATTERN.search(text[max(0, one.start - _LEFT_CONTEXT_CHARS) : one.start])
    tail = _POSTPOSITION_PATTERN.match(text, one.end)
    word = lead["word"].lower() if lead else tail["word"] if tail else ""
    if one.strength == 0 or (not one.is_unambiguous and not word):
        return None
    if word == "from" and tail and tail["word"].startswith("on"):
        word = "since"
    since, until = (None if end is None else one.span[end] for end in _BOUNDS_BY_PREPOSITION.get(word, (0, 1)))
    start = one.start - (len(lead[0]) if lead else 0)
    end = tail.end() if tail and not lead else one.end
    return Period(since, until, text[start:end].strip(), one.strength)
