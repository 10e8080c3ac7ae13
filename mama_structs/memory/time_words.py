"""
Finds the period that a question speaks of: "last week", "since May", "between March and early June", "지난달 말".

Days are UTC days, weeks run from Monday to Sunday, and a month without a year is the most recent one that has begun
(data/retrieval, the README of the sample). A stretch of time that is no period ("a 14 days token", "every 5 s") is not
taken for one, so a word that can mean something else, such as "may", needs company that makes it a month.
Only regular expressions whose repetitions are bounded are used: the time is linear in the length of the question.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

import attrs

Span = tuple[datetime, datetime]
"""A begin, and an end that does not belong to it."""


@attrs.frozen
class Period:
    """A period that a question names, from *since* up to, but not including, *until* (UTC); None where it is open."""

    since: datetime | None
    until: datetime | None
    words: str
    """What of the question names it."""
    strength: float
    """How surely it is meant as a condition, 0 to 1: "recently" is little more than a wish."""


@attrs.frozen
class TimeWords:
    """Words from *start* to *end* of a text that can name a period, and what they mean."""

    span: Span
    strength: float = 1.0
    """As of a `Period`; 0 for a day that does not exist."""
    sure: bool = True
    """Whether they name a period without further words around them."""
    yearly: bool = False
    """Whether they leave the year open."""
    start: int = 0
    end: int = 0


_LIKELY: Final = 0.8
_VAGUE: Final = 0.6
_SOFT: Final = 0.3
_DAY: Final = timedelta(days=1)
_LONGEST_QUERY: Final = 4_000


# Spans of the calendar


def _at(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _days(first: date, count: int = 1) -> Span:
    return _at(first), _at(first + timedelta(days=count))


def _week_of(now: datetime, back: int = 0) -> Span:
    return _days(now.date() - timedelta(days=now.weekday() + 7 * back), 7)


def _months(year: int, month: int, count: int = 1) -> Span:
    """Return *count* months from one on, which may lie outside 1 to 12."""
    first, last = year * 12 + month - 1, year * 12 + month - 1 + count
    return _at(date(first // 12, first % 12 + 1, 1)), _at(date(last // 12, last % 12 + 1, 1))


def _unit_before(now: datetime, unit: str, back: int) -> Span:
    """Return the hour, day, week, weekend, month, quarter or year that lies so many before the present one."""
    if unit == "hour":
        hour = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=back)
        return hour, hour + timedelta(hours=1)
    if unit == "day":
        return _days(now.date() - back * _DAY)
    if unit in {"week", "weekend"}:
        first, last = _week_of(now, back)
        return first if unit == "week" else last - 2 * _DAY, last
    if unit == "month":
        return _months(now.year, now.month - back)
    if unit == "quarter":
        return _months(now.year, (now.month - 1) // 3 * 3 + 1 - 3 * back, 3)
    return _months(now.year - back, 1, 12)


def _up_to(now: datetime, unit: str, count: int) -> Span:
    """Return the time up to now of so many days, weeks, months ..., from the begin of a day on."""
    if unit == "hour":
        return now - timedelta(hours=count), now
    if unit in {"day", "week"}:
        return _at(now.date() - timedelta(days=count * (7 if unit == "week" else 1))), now
    since = _months(now.year, now.month - count * {"month": 1, "quarter": 3, "year": 12}[unit])[0]
    # Every month has twenty-eight days.
    return since + (min(now.day, 28) - 1) * _DAY, now


def _most_recent(now: datetime, year: int | None, span_of: Callable[[int], Span]) -> Span:
    """Return a period of *year*, without one that of the last year in which it has begun."""
    if year is not None:
        return span_of(year)
    for back in range(5):
        try:
            span = span_of(now.year - back)
        except ValueError:
            # The twenty-ninth of February.
            continue
        if span[0] <= now:
            return span
    raise ValueError("no such day")


# Words of time, each kind with what they count from one, or back from none


def _numbered(words: str, start: int = 1) -> dict[str, int]:
    return {word: number for number, alike in enumerate(words.split(), start) for word in alike.split("|")}


_MONTHS: Final = _numbered(
    "january|jan february|feb march|mar april|apr may june|jun july|jul august|aug september|sept|sep october|oct "
    "november|nov december|dec"
)
_WEEKDAYS: Final = _numbered("monday|월 tuesday|화 wednesday|수 thursday|목 friday|금 saturday|토 sunday|일", 0)
_NUMBERS: Final = _numbered(
    "a|an|one|한|일|하루 two|couple|두|이|이틀 three|세|삼|석|사흘 four|네|사|넉|나흘 five|다섯|오|닷새 "
    "six|여섯|육|엿새 seven|일곱|칠|이레 eight|여덟|팔|여드레 nine|아홉|구|아흐레 ten|열|십|열흘 "
    "eleven|열한 twelve|열두"
)
_ORDINALS: Final = _numbered(
    "last|final|마지막 0 first|1st|첫째|첫|첫번째 second|2nd|둘째|두번째 third|3rd|셋째|세번째 fourth|4th|넷째|네번째",
    -1,
)
_SEASONS: Final = _numbered("spring|봄 summer|여름 autumn|fall|가을 winter|겨울")
_YEARS_BACK: Final = _numbered("thisyear|올해|금년 lastyear|작년|지난해 재작년", 0)
_DAYS_BACK: Final = _numbered("today yesterday|어제|어저께|간밤 daybeforeyesterday|그제|그저께 그끄저께", 0)
_THIRDS: Final = _numbered(
    "early|beginning|start|begin|초순|초반|초|상순 mid|middle|중순|중반 late|end|close|말|하순", 0
)
_KOREAN_UNIT: Final = "시간|일|주일|주|달|개월|분기|년|해"
_KOREAN_UNITS: Final = dict(
    zip(_KOREAN_UNIT.split("|"), "hour day week week month month quarter year year".split(), strict=True)  # noqa: SIM905
)
_KOREAN_ENDS: Final = {"주말": "weekend", "주": "week", "달": "month", "월": "month", "분기": "quarter"}

_MONTH: Final = (
    "january|february|march|april|may|june|july|august|september|october|november|december|"
    "jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec"
)
_YEAR: Final = r"(?:19|20)\d\d"
_YEAR_AFTER: Final = rf"(?:,?[ ](?:of[ ])?(?P<year>{_YEAR}|last[ ]year|this[ ]year)\b)"
_DAY_NUMBER: Final = r"[0-3]?\d(?:st|nd|rd|th)?"
_COUNT: Final = r"\d{1,4}|a[ ]couple[ ]of|a|an|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
_UNIT: Final = "hour|day|week|weekend|month|quarter|year"
_WEEKDAY: Final = "monday|tuesday|wednesday|thursday|friday|saturday|sunday"
_KOREAN_COUNT: Final = r"\d{1,4}|열한|열두|한|두|세|네|다섯|여섯|일곱|여덟|아홉|열|석|넉|일|이|삼|사|오|육|칠|팔|구|십"
_KOREAN_DAYS: Final = "하루|이틀|사흘|나흘|닷새|엿새|이레|여드레|아흐레|열흘"
# What may follow a Korean word of time, so that 지난 주 is none in 지난 주요 변경.
_OVER: Final = (
    r"(?=$|[^가-힣]|에|의|엔|은|는|도|이|가|을|를|과|와|간|로"
    r"|부터|까지|보다|동안|내내|중|초|말|쯤|경|때|이후|이전|전에|사이)"
)
_PAST: Final = re.compile(
    r"\b(?:did|was|were|have|has|had|made|wrote|said|noted|decided|learned|happened|changed|broke|went|came|saw)\b|"
    r"\b(?:from|since|of|until)[ ]today\b|\btoday['\u2019]s\b|"
    r"^\W{0,9}today\W{0,9}$",
    re.IGNORECASE,
)
# A question in the present, or about what holds: "오늘은 어떻게 나누나?", "오늘 기준".
_KOREAN_QUESTION: Final = re.compile(
    r"(?:나|나요|가|가요|니|까|어|어요|아|아요|해|해요|돼|돼요|써|지|지요|죠)[ ]?[?.!]?$|오늘 기준"
)
_AGO: Final = r"[ ](?:ago|back|earlier)\b"
_TO: Final = r"[ ]?(?:-|–|—|to|and|until|through)[ ]?"  # noqa: RUF001 - dashes of people
_KOREAN_YEAR: Final = rf"(?:(?P<year>{_YEAR}년|작년|지난해|재작년|올해|금년)[ ]?)?"
_LONG_UNIT: Final = r"(?P<unit>(?:hour|day|week|month|quarter|year)s?)"
_AFTER_ON: Final = r"(?:(?<=\bon[ ])|(?<=\bsince[ ])|(?<=\buntil[ ])|(?<=\bbefore[ ])|(?<=\bafter[ ])|(?<=\bfrom[ ]))"
_AFTER_IN: Final = r"(?:(?<=\bin[ ])|(?<=\bsince[ ])|(?<=\bbefore[ ])|(?<=\bafter[ ])|(?<=\bof[ ])|(?<=\bduring[ ]))"


def _number(text: str) -> int:
    """Return a number in digits or words, such as "three", "a couple of" or "사흘"."""
    text = text.lower().removesuffix(" of").removeprefix("a ").strip()
    return int(text) if text.isdecimal() else _NUMBERS[text]


def _unit(groups: Groups) -> str:
    return _KOREAN_UNITS.get(groups["unit"]) or groups["unit"].removesuffix("s") or "day"


def _year(groups: Groups, now: datetime) -> int | None:
    text = groups["year"].replace(" ", "")
    back = _YEARS_BACK.get(text)
    return None if not text else int(text[:4]) if back is None else now.year - back


# What they mean: rules that take what a pattern matched, and now

Groups = defaultdict[str, str]
"""A match's groups in lower case, "" where there is none; ``all`` and ``text`` are match and text as they are."""
Rule = Callable[[Groups, datetime], TimeWords | None]


def _iso(groups: Groups, _: datetime) -> TimeWords:
    year, month = int(groups["year"]), int(groups["month"])
    return TimeWords(_days(date(year, month, int(groups["day"]))) if groups["day"] else _months(year, month))


def _day_of_month(groups: Groups, now: datetime) -> TimeWords:
    month, year = _MONTHS[groups["month"]], _year(groups, now)
    first, last = (int(re.sub(r"\D", "", groups[name] or "0")) for name in ("day", "last"))
    span = _most_recent(now, year, lambda year: _days(date(year, month, first)))
    if last:
        span = span[0], _days(date(span[0].year, month, last))[1]
    if span[1] <= span[0] or (groups["last"] and not last):
        raise ValueError("days in the wrong order, or none")
    return TimeWords(_week_of(span[0]) if groups["week"] else span, yearly=year is None)


def _named_month(groups: Groups, now: datetime) -> TimeWords | None:
    word, which, year = groups["month"], groups["which"], _year(groups, now)
    month, is_short = _MONTHS[word], len(word) < len("june") and word != "may"
    as_written = next(part for part in re.findall(r"\w+", groups["all"]) if part.lower() == word)
    if (is_short and as_written.islower()) or (as_written == "may" and which == "this"):
        # The name of a thing, or a verb.
        return None
    span = _most_recent(now, year, lambda year: _months(year, month))
    if which == "next":
        span = _months(span[0].year + 1, month)
    elif which in {"last", "past", "previous"} and span[1] > now:
        span = _months(span[0].year - 1, month)
    named = year is not None or bool(which)
    sure = named or (as_written[0].isupper() and word not in {"may", "march"} and not is_short)
    return TimeWords(span, 1.0 if named else _LIKELY, sure, yearly=not named)


def _part_of_year(count: int, first_of: Callable[[Groups], int]) -> Rule:
    """Return the rule for *count* months, of which a function gives the first."""

    def rule(groups: Groups, now: datetime) -> TimeWords:
        month, year = first_of(groups), _year(groups, now)
        span = _most_recent(now, year, lambda year: _months(year, month, count))
        if groups["which"] in {"last", "지난"} and span[1] > now:
            span = _months(span[0].year - 1, month, count)
        return TimeWords(span, _LIKELY, yearly=year is None)

    return rule


_quarter: Final = _part_of_year(3, lambda groups: 3 * (_ORDINALS.get(groups["nth"]) or int(groups["number"])) - 2)
_half: Final = _part_of_year(6, lambda groups: 7 if groups["half"] in {"2", "second", "하반기"} else 1)
_season: Final = _part_of_year(3, lambda groups: 3 * _SEASONS[groups["season"]])


def _relative_day(groups: Groups, now: datetime) -> TimeWords:
    word = re.sub(r"^(?:the )|[ ]", "", groups["all"].lower())
    is_vague = word == "오늘" and _KOREAN_QUESTION.search(groups["text"]) and not _is_korean_past(groups["text"])
    return TimeWords(_unit_before(now, "day", _DAYS_BACK.get(word, 0)), _SOFT if is_vague else 1.0)


def _is_korean_past(text: str) -> bool:
    """Tell whether a syllable ends in the double s of the past tense; those of 있다 and 겠 are others."""
    finals = ((ord(letter) - ord("가")) % 28 for letter in text if "가" <= letter <= "힣" and letter not in "있겠")
    return 20 in finals  # noqa: PLR2004 - the place of the double s among the 28 finals


def _relative_unit(groups: Groups, now: datetime) -> TimeWords:
    which, unit = groups["which"], groups["unit"]
    back = {"this": 0, "current": 0, "the": 0, "next": -1, "coming": -1}.get(which, 1)
    if unit == "weekend" and which == "the" and _unit_before(now, unit, 0)[0] > now:
        back = 1
    return TimeWords(_unit_before(now, unit, back))


def _up_to_now(groups: Groups, now: datetime) -> TimeWords:
    vague = groups["count"].removeprefix("a ") in {"few", "several", "couple", "couple of", "몇"}
    how_many = 3 if vague else _number(groups["count"] or "1")
    return TimeWords(_up_to(now, _unit(groups), how_many), _VAGUE if vague else 1.0)


def _some_time_ago(groups: Groups, now: datetime) -> TimeWords:
    unit = _unit(groups)
    return TimeWords((_unit_before(now, unit, 7 if unit == "day" else 5)[0], _unit_before(now, unit, 2)[1]), _VAGUE)


def _weekday(groups: Groups, now: datetime) -> TimeWords:
    place, which, week = _WEEKDAYS[groups["day"]], groups["which"], groups["week"].replace(" ", "")
    if week:
        monday = _week_of(now, 0 if week in {"thisweek", "이번주"} else 1)[0]
        return TimeWords(_days(monday.date() + place * _DAY))
    back = (now.weekday() - place) % 7
    if which in {"last", "past", "previous", "지난", "저번"} and back == 0:
        back = 7
    if which in {"next", "coming"}:
        back -= 7
    return TimeWords(_unit_before(now, "day", back), 1.0 if which else _LIKELY)


def _date_of_month(groups: Groups, now: datetime) -> TimeWords:
    for back in range(12):
        try:
            first = _months(now.year, now.month - back)[0].replace(day=int(groups["day"]))
        except ValueError:
            continue
        if first <= now:
            return TimeWords((first, first + _DAY), _VAGUE)
    raise ValueError("no such day")


def _korean_unit(groups: Groups, now: datetime) -> TimeWords:
    word = groups["all"].replace(" ", "")
    unit = next((unit for end, unit in _KOREAN_ENDS.items() if word.endswith(end)), "year")
    begins = {("이번", "이달", "금", "올"): 0, ("지지난", "저저번", "재작년", "전전"): 2, ("다음", "내"): -1}
    first = word.removesuffix("주말")
    return TimeWords(
        _unit_before(now, unit, next((back for some, back in begins.items() if first.startswith(some)), 1))
    )


def _korean_date(groups: Groups, now: datetime) -> TimeWords:
    month, day, year = int(groups["month"]), int(groups["day"] or 0), _year(groups, now)
    if day:
        span = _most_recent(now, year, lambda year: _days(date(year, month, day)))
        if groups["last_day"]:
            span = span[0], _days(date(span[0].year, month, int(groups["last_day"])))[1]
    else:
        count = (int(groups["last_month"] or month) - month) % 12 + 1
        span = _most_recent(now, year, lambda year: _months(year, month, count))
    if groups["which"] and span[1] > now:
        span = span[0].replace(year=span[0].year - 1), span[1].replace(year=span[1].year - 1)
    if span[1] <= span[0]:
        raise ValueError("days in the wrong order")
    return TimeWords(span, yearly=year is None)


def _korean_turn(groups: Groups, now: datetime) -> TimeWords:
    unit = "year" if groups["all"][0] == "연" else "month"
    since, until = _unit_before(now, unit, 0)
    third = (until - since) // 3
    if groups["all"][1] == "초":
        return TimeWords((since, _at((since + third).date())), _VAGUE)
    late = _at((until - third).date())
    return TimeWords((late, until) if late <= now else (since - third, since), _VAGUE)


def _ago(groups: Groups, now: datetime) -> TimeWords:
    return TimeWords(_unit_before(now, _unit(groups), _number(groups["count"])))


def _other_day(_: Groups, now: datetime) -> TimeWords:
    return TimeWords((_unit_before(now, "day", 7)[0], _at(now.date())), _VAGUE)


def _lately(_: Groups, now: datetime) -> TimeWords:
    return TimeWords((_at((now - 14 * _DAY).date()), now), _SOFT)


_RULES: Final[tuple[tuple[str, Rule], ...]] = (
    (
        rf"""(?<![\w.:/-]) (?P<year>{_YEAR}) (?: ([-/])(?=\d\d?\2) | [.](?=\d\d[.]\d\d) )
        (?P<month>0?[1-9]|1[0-2]) [-/.] (?P<day>0?[1-9]|[12]\d|3[01]) (?![\d.:/-]{{0,8}}\d)""",
        _iso,
    ),
    (rf"(?<![\w.:/-]) (?P<year>{_YEAR}) - (?P<month>0[1-9]|1[0-2]) (?![\w./-]{{0,8}}\d)", _iso),
    (
        r"(?<![\w.-]) (?P<year>20\d\d)-W(?P<week>[0-5]\d)\b",
        lambda groups, _: TimeWords(_days(date.fromisocalendar(int(groups["year"]), int(groups["week"]), 1), 7)),
    ),
    (
        rf"""(?P<week>\bweek[ ]of[ ](?:the[ ])?)? (?<![\w.,:/-])
        (?P<day>{_DAY_NUMBER}) (?:{_TO}(?P<last>{_DAY_NUMBER}))? [ ](?:of[ ])? (?P<month>{_MONTH})\b {_YEAR_AFTER}?""",
        _day_of_month,
    ),
    (
        rf"""(?P<week>\bweek[ ]of[ ])? \b(?P<month>{_MONTH})\.?[ ](?:the[ ])?
        (?P<day>{_DAY_NUMBER}) (?:{_TO}(?P<last>{_DAY_NUMBER}))? (?![\w:%]|[.,-]\d) {_YEAR_AFTER}?""",
        _day_of_month,
    ),
    (
        rf"""\b(?:(?P<which>last|past|previous|this|next)[ ])? (?<![\w/.@]) (?P<month>{_MONTH})\b
        (?![\w/.@_]\w|[ ]of[ ](?!{_YEAR}|last|this))
        (?!(?<=may)[ ](?:be|have|not|also|need|cause|lead|break|well|still|only|never|we|i|it|they|you)\b)
        {_YEAR_AFTER}?""",
        _named_month,
    ),
    (rf"{_AFTER_IN}(?P<year>{_YEAR})\b(?![-.]?\w)", lambda groups, _: TimeWords(_months(int(groups["year"]), 1, 12))),
    (rf"\bq(?P<number>[1-4])\b(?:[ /]?(?P<year>{_YEAR})\b)?", _quarter),
    (rf"\b(?P<nth>first|second|third|fourth|1st|2nd|3rd|4th)[ ]quarter\b{_YEAR_AFTER}?", _quarter),
    (rf"\bh(?P<half>[12])[ ](?P<year>{_YEAR})\b", _half),
    (rf"\b(?P<half>first|second)[ ]half[ ]of[ ](?:the[ ]year|(?P<year>{_YEAR}|last[ ]year|this[ ]year))\b", _half),
    (r"\b(?P<which>last|this)[ ](?P<season>spring|summer|autumn|fall|winter)\b", _season),
    (
        rf"""(?:{_AFTER_IN}|(?<=\bin[ ]the[ ])|(?<=\bof[ ]the[ ]))
        (?P<season>spring|summer|autumn|winter|(?<=the[ ])fall)\b
        (?![ ]?(?:boot|mvc|framework|cloud|data|security)|[-_.]\w) {_YEAR_AFTER}?""",
        _season,
    ),
    (
        rf"\b(?P<season>spring|summer|autumn|fall|winter)[ ](?:of[ ])?(?P<year>{_YEAR}|last[ ]year|this[ ]year)\b",
        _season,
    ),
    (
        r"""\b(?:(?:the[ ])?day[ ]before[ ]yesterday|yesterday|earlier[ ]today|tonight
        |this[ ](?:morning|afternoon|evening))\b""",
        _relative_day,
    ),
    (
        r"\btoday\b",  # "How is it stored today?" asks for what holds, and not for what was written today.
        lambda groups, now: TimeWords(_unit_before(now, "day", 0)) if _PAST.search(groups["text"]) else None,
    ),
    (
        r"\blast[ ]night\b",
        lambda _, now: TimeWords((_at(now.date()) - timedelta(hours=12), _at(now.date()) + timedelta(hours=6))),
    ),
    (
        rf"\b(?P<which>this|current|last|past|previous|next|coming)[ ](?P<unit>{_UNIT})\b(?![-\w]|[ ]of[ ])",
        _relative_unit,
    ),
    (r"\b(?:over|on|at|during)[ ](?P<which>the)[ ](?P<unit>weekend)\b", _relative_unit),
    (r"(?<=\bof[ ])(?P<which>the)[ ](?P<unit>week|month|year)\b(?![ ]of|[-\w])", _relative_unit),
    (
        r"\b(?:the[ ])?(?P<unit>weekend|week|month|quarter|year)[ ]before[ ]last\b",
        lambda groups, now: TimeWords(_unit_before(now, groups["unit"], 2)),
    ),
    (rf"\b(?:in|over|within|during|for|of|from)[ ]the[ ](?:last|past)[ ]{_LONG_UNIT}\b(?!-)", _up_to_now),
    (
        rf"""\b(?:the[ ])?(?:last|past|previous)[ ](?P<count>{_COUNT}|(?:a[ ])?few|several|couple[ ]of)[ ]
        {_LONG_UNIT}\b(?!-)""",
        _up_to_now,
    ),
    (rf"\b(?P<count>{_COUNT})[ ]{_LONG_UNIT}{_AGO}", _ago),
    (rf"\b(?:a[ ]few|several|some)[ ]{_LONG_UNIT}{_AGO}", _some_time_ago),
    (r"\bthe[ ]other[ ]day\b", _other_day),
    (r"\b(?:recently|lately|these[ ]days|of[ ]late)\b", _lately),
    (
        rf"""(?:\b(?P<which>last|past|previous|this|next|coming)[ ]|{_AFTER_ON})
        (?P<day>{_WEEKDAY})\b (?P<week>[ ](?:last|this)[ ]week)?""",
        _weekday,
    ),
    (rf"\b(?P<day>{_WEEKDAY})(?:[ ]of)?[ ](?P<week>(?:last|this)[ ]week)\b", _weekday),
    (
        r"""(?<=\bon[ ]the[ ])(?P<day>[0-3]?\d)(?:st|nd|rd|th)\b
        (?![ ](?:of|floor|place|try|attempt|day|line|page|run|call|planet)\b)""",
        _date_of_month,
    ),
    (rf"(?:오늘|어제|어저께|그제|그저께|그끄저께|간밤){_OVER}", _relative_day),
    (rf"(?:엊그제|며칠[ ]?전){_OVER}", _other_day),
    (
        rf"""(?: (?:지지난|저저번|지난|저번|이번|다음)[ ]?(?:주말|주|달|분기|해)
        | 금주|전주(?=에|의)|이달|전월|금월|작년|재작년|올해|금년) {_OVER}""",
        _korean_unit,
    ),
    (rf"(?P<count>{_KOREAN_DAYS})[ ]?전{_OVER}", _ago),
    (rf"(?<![가-힣\d])(?P<count>{_KOREAN_COUNT})[ ]?(?P<unit>{_KOREAN_UNIT})[ ]?전{_OVER}", _ago),
    (
        rf"""(?:최근|지난)[ ](?P<count>{_KOREAN_COUNT}|몇)[ ]?(?P<unit>{_KOREAN_UNIT})
        (?:[ ]?(?:간|동안))?{_OVER}""",
        _up_to_now,
    ),
    (rf"(?:최근|요즘|요새|근래|얼마[ ]전){_OVER}", _lately),
    (
        rf"""{_KOREAN_YEAR}(?P<which>지난[ ])?(?<![\d.~-])(?P<month>1[0-2]|[1-9])
        (?:[ ]?[~-][ ]?(?P<last_month>1[0-2]|[1-9]))?월(?![가-힣]{{0,2}}호)
        (?:[ ]?(?P<day>[12]\d|3[01]|[1-9])(?:일?[ ]?(?:[~-]|부터)[ ]?(?P<last_day>[12]\d|3[01]|[1-9]))?일)?""",
        _korean_date,
    ),
    (
        rf"(?<!\d)(?P<year>{_YEAR})년(?![ ]?(?:\d|동안|상반기|하반기|봄|여름|가을|겨울|간|전))",
        lambda groups, _: TimeWords(_months(int(groups["year"]), 1, 12)),
    ),
    (rf"{_KOREAN_YEAR}(?<!\d)(?P<number>[1-4])[ ]?분기{_OVER}", _quarter),
    (rf"{_KOREAN_YEAR}(?P<half>상반기|하반기)", _half),
    (
        rf"""{_KOREAN_YEAR}(?P<which>지난[ ]?|올)?(?<![가-힣])(?P<season>봄|여름|가을|겨울)
        (?=에|엔|부터|까지|철|동안|[ ]동안|내내|[ ]?\()""",
        _season,
    ),
    (
        r"""(?:(?P<week>지난[ ]?주|이번[ ]?주)[ ]|(?P<which>지난|저번)[ ])?(?<![가-힣])(?P<day>[월화수목금토일])요일
        (?=에|의|부터|까지|엔|[ ]|$)""",
        _weekday,
    ),
    (r"(?<![가-힣])(?:연초|연말|월초|월말)(?=에|의|부터|까지|엔|[ ]|$)", _korean_turn),
)

_PATTERNS: Final = tuple((re.compile(pattern, re.IGNORECASE | re.VERBOSE), rule) for pattern, rule in _RULES)


def time_words(text: str, now: datetime) -> Iterator[TimeWords]:
    """Give all words of *text* that can name a period, those of one rule after those of another."""
    for pattern, rule in _PATTERNS:
        for match in pattern.finditer(text):
            groups = defaultdict(str, {name: (found or "").lower() for name, found in match.groupdict().items()})
            groups.update(all=match[0], text=text)
            try:
                words = rule(groups, now)
            except (ValueError, OverflowError):
                # The thirtieth of February, or 9,999 years ago: not to be read as February either.
                words = TimeWords((now, now), 0.0)
            if words is not None:
                yield attrs.evolve(words, start=match.start(), end=match.end())


# What stands before and after them

_BEFORE_LENGTH: Final = 48
_PART: Final = re.compile(
    r"\b(?P<part>early|mid|middle|late|beginning|start|end|begin|close|first[ ]half|second[ ]half|"
    rf"(?P<nth>first|second|third|fourth|1st|2nd|3rd|4th|last|final)[ ](?:(?P<count>{_COUNT})[ ])?(?P<unit>day|week)s?)"
    r"(?:[ -]|[ ](?:of|in)[ ](?:the[ ])?(?:month[ ]of[ ])?)$",
    re.IGNORECASE,
)
_KOREAN_PART: Final = re.compile(
    r"[ ]?(?:의[ ])?(?P<part>초순|초반|초(?!기|과|안|록)|상순|중순|중반|말(?!씀|하|했)|하순|후반|전반|"
    r"(?P<nth>첫째|첫[ ]?번째|첫|둘째|두[ ]?번째|셋째|세[ ]?번째|넷째|네[ ]?번째|마지막)[ ]?"
    r"(?P<unit>주|날)(?![요소제]))"
)
_LEAD: Final = re.compile(
    r"\b(?P<word>since|from|starting|after|before|until|till|up[ ]to|by|prior[ ]to|between|in|during|of|on|for|over|"
    r"within|throughout|around|about|at|as[ ]of|back[ ]in)[ ](?:the[ ])?"
    r"(?:(?:month|week|end|start)[ ]of[ ](?:the[ ])?)?$",
    re.IGNORECASE,
)
_JOIN: Final = re.compile(
    r"[ ]?(?P<word>-|–|—|~|to|until|till|through|thru|and|부터|에서)[ ]?(?:the[ ])?"  # noqa: RUF001 - dashes of people
    r"(?:(?:early|mid|middle|late|beginning|start|end)(?:[ -]|[ ]of[ ](?:the[ ])?))?",
    re.IGNORECASE,
)
_KOREAN_TAIL: Final = re.compile(
    r"[ ]?(?P<word>onwards?\b|on\b|부터|이후|이래|이전|까지|전에|전까지|전(?=$|[ .,?!])|사이|에서)", re.IGNORECASE
)
_OPEN_ENDED: Final = {"since", "starting", "as of", "부터", "이후", "이래"}
_ENDING: Final = {"until", "till", "up to", "by", "까지"}
_PRECEDING: Final = {"before", "prior to", "이전", "전에", "전까지", "전"}


def period_in(query: str, now: datetime) -> Period | None:
    """Return the period that *query* (English or Korean) names, counted from *now* (UTC, if it says no other zone)."""
    now = now.replace(tzinfo=UTC) if now.tzinfo is None else now.astimezone(UTC)
    text = re.sub(r"\s", " ", query[:_LONGEST_QUERY])
    found = _all_in(text, now)
    periods = []
    skip = -1
    for place, one in enumerate(found):
        if place == skip:
            continue
        other = found[place + 1] if place + 1 < len(found) else None
        ranged = _range(text, one, other)
        if ranged is not None:
            skip = place + 1
        period = ranged or _alone(text, one)
        if period is not None and (not period.since or not period.until or period.since < period.until):
            periods.append(period)
    # Of several, the surest is the condition; the first one of them, since what follows explains.
    return max(periods, key=lambda period: period.strength, default=None)


def _all_in(text: str, now: datetime) -> list[TimeWords]:
    """Return all that may be a period in order; where they overlap, the first, and the longest that begins there."""
    kept: list[TimeWords] = []
    for one in sorted(time_words(text, now), key=lambda one: (one.start, -one.end)):
        if not kept or one.start >= kept[-1].end:
            kept.append(_narrowed(text, one))
    return kept


def _narrowed(text: str, one: TimeWords) -> TimeWords:
    """Return the part of a period that is meant, as in "early March" or "3월 말"."""
    before = _PART.search(text[max(0, one.start - _BEFORE_LENGTH) : one.start])
    match = before or _KOREAN_PART.match(text, one.end)
    if match is None or one.span[1] - one.span[0] < 7 * _DAY:
        return one
    since, until = one.span
    part = match["part"].lower()
    if match["nth"]:
        nth = _ORDINALS[match["nth"].lower().replace(" ", "")]
        count = _number((before and before["count"]) or "1")
        length = count * (7 if match["unit"] in {"week", "주"} else 1) * _DAY
        span = (until - length, until) if nth < 0 else (since + (nth - 1) * length, min(since + nth * length, until))
    elif part in {"first half", "second half", "전반", "후반"}:
        middle = _at(since.date() + (until - since) // 2)
        span = (since, middle) if part in {"first half", "전반"} else (middle, until)
    else:
        third = _THIRDS[part]
        # The parts of a month are ten days long, and the last one what is left.
        length = 10 * _DAY if (until - since).days in range(28, 32) else (until - since) // 3
        first = _at((since + third * length).date())
        span = (first, until if third == 2 else _at((first + length).date()))  # noqa: PLR2004 - the last third
    start = one.start - len(before[0]) if before else one.start
    return attrs.evolve(one, start=start, end=one.end if before else match.end(), span=span, sure=True)


def _a_year_later(day: datetime) -> datetime:
    """Return the same day of the next year, the first of March for the twenty-ninth of February."""
    return _months(day.year + 1, day.month)[0] + (day - day.replace(day=1))


def _range(text: str, one: TimeWords, other: TimeWords | None) -> Period | None:
    """Return the period from *one* to *other* if the words around them say so."""
    if other is None or not one.strength or not other.strength:
        return None
    join = _JOIN.fullmatch(text[one.end : other.start])
    if join is None:
        return None
    lead = _LEAD.search(text[max(0, one.start - _BEFORE_LENGTH) : one.start])
    word, first = join["word"].lower(), lead["word"].lower() if lead else ""
    if word == "and" and first != "between":
        return None
    if not (one.sure or other.sure or first in {"between", "from", "in", "during", "of"} or word in "-–—~"):  # noqa: RUF001
        return None
    since, until = one.span[0], other.span[1]
    if until <= since:
        until = _a_year_later(other.span[1]) if other.yearly else one.span[1]
        since = since if other.yearly else other.span[0]
    start = one.start - (len(lead[0]) if lead and first in {"between", "from"} else 0)
    tail = _KOREAN_TAIL.match(text, other.end)
    end = tail.end() if tail and tail["word"] in {"까지", "사이"} else other.end
    return Period(since, until, text[start:end].strip(), min(one.strength, other.strength, 1.0))


def _alone(text: str, one: TimeWords) -> Period | None:
    since: datetime | None
    until: datetime | None
    since, until = one.span
    lead = _LEAD.search(text[max(0, one.start - _BEFORE_LENGTH) : one.start])
    tail = _KOREAN_TAIL.match(text, one.end)
    word = lead["word"].lower() if lead else tail["word"] if tail else ""
    if one.strength == 0 or (not one.sure and not word):
        return None
    start, end = one.start, one.end
    if word in _OPEN_ENDED or (word == "from" and tail and tail["word"].startswith("on")):
        until = None
    elif word == "after":
        since, until = until, None
    elif word in _ENDING:
        since = None
    elif word in _PRECEDING:
        since, until = None, since
    start -= len(lead[0]) if lead else 0
    end = tail.end() if tail and not lead else end
    return Period(since, until, text[start:end].strip(), one.strength)
