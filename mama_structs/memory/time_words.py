"""
The words by which periods are named in English and Korean, and what each means when it is said at a given time.

Each rule is a pattern, written in the verbose form in which ``[ ]`` is a space, with a function that makes its match
into a span of time. Their repetitions are bounded, so each reads a text in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from typing import Final

import attrs

from mama_structs.memory.calendar_spans import Span, at, days, months, most_recent, unit_before, up_to, week_of


@attrs.frozen
class TimeWords:
    """
    Words in a text that can name a period.

    Args:
        start: Where they begin in the text.
        end: Where they end.
        span: The period.
        strength: How surely it is meant as a condition, 0 to 1; 0 for a day that does not exist.
        sure: Whether they name one without further words around them.
        yearly: Whether they leave the year open.

    """

    start: int
    end: int
    span: Span
    strength: float = 1.0
    sure: bool = True
    yearly: bool = False


_CERTAIN: Final = 1.0
_LIKELY: Final = 0.8
_VAGUE: Final = 0.6
_SOFT: Final = 0.3
_RECENT: Final = timedelta(days=14)
_DAY: Final = timedelta(days=1)


def _numbered(words: str) -> dict[str, int]:
    return {word: number for number, alike in enumerate(words.split(), 1) for word in alike.split("|")}


_MONTHS: Final = _numbered(
    "january|jan february|feb march|mar april|apr may june|jun july|jul august|aug september|sept|sep october|oct "
    "november|nov december|dec"
)
_WEEKDAYS: Final = _numbered("monday tuesday wednesday thursday friday saturday sunday")
_NUMBERS: Final = _numbered(
    "a|an|one|한|일|하루 two|couple|두|이|이틀 three|세|삼|석|사흘 four|네|사|넉|나흘 five|다섯|오|닷새 "
    "six|여섯|육|엿새 seven|일곱|칠|이레 eight|여덟|팔|여드레 nine|아홉|구|아흐레 ten|열|십|열흘 "
    "eleven|열한 twelve|열두"
)
ORDINALS: Final = _numbered(
    "first|1st|첫째|첫|첫번째 second|2nd|둘째|두번째 third|3rd|셋째|세번째 fourth|4th|넷째|네번째"
) | dict.fromkeys(["last", "final", "마지막"], -1)
"""What words of order mean; -1 is the last."""
# The month that they begin with.
_SEASONS: Final = {
    "spring": 3,
    "summer": 6,
    "autumn": 9,
    "fall": 9,
    "winter": 12,
    "봄": 3,
    "여름": 6,
    "가을": 9,
    "겨울": 12,
}
_YEARS_BACK: Final = {"last year": 1, "this year": 0, "작년": 1, "지난해": 1, "올해": 0, "금년": 0, "재작년": 2}
_DAYS_BACK: Final = {"yesterday": 1, "daybeforeyesterday": 2} | {
    "어제": 1,
    "어저께": 1,
    "간밤": 1,
    "그제": 2,
    "그저께": 2,
    "그끄저께": 3,
}
_KOREAN_UNITS: Final = {"시간": "hour", "일": "day", "주": "week", "주일": "week", "달": "month", "개월": "month"} | {
    "분기": "quarter",
    "년": "year",
    "해": "year",
}
_KOREAN_ENDS: Final = {"주말": "weekend", "주": "week", "달": "month", "월": "month", "분기": "quarter"}

_MONTH: Final = (
    "january|february|march|april|may|june|july|august|september|october|november|december|"
    "jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec"
)
_YEAR: Final = r"(?:19|20)\d\d"
_YEAR_AFTER: Final = rf"(?:,?[ ](?:of[ ])?(?P<year>{_YEAR}|last[ ]year|this[ ]year)\b)"
_DAY_NUMBER: Final = r"[0-3]?\d(?:st|nd|rd|th)?"
COUNT: Final = r"\d{1,4}|a[ ]couple[ ]of|a|an|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
_UNIT: Final = "hour|day|week|weekend|month|quarter|year"
_WEEKDAY: Final = "|".join(_WEEKDAYS)
_KOREAN_COUNT: Final = r"\d{1,4}|열한|열두|한|두|세|네|다섯|여섯|일곱|여덟|아홉|열|석|넉|일|이|삼|사|오|육|칠|팔|구|십"
_KOREAN_UNIT: Final = "시간|일|주일|주|달|개월|분기|년|해"
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
_HANGUL: Final = 0xAC00
_FINALS: Final = 28
_FINAL_SS: Final = 20

Rule = Callable[[re.Match[str], datetime], TimeWords | None]


def time_words(text: str, now: datetime) -> Iterator[TimeWords]:
    """Give all words of *text* that can name a period, those of one rule after those of another."""
    for pattern, rule in _RULES:
        for match in pattern.finditer(text):
            try:
                words = rule(match, now)
            except (ValueError, OverflowError):
                # The thirtieth of February, or 9,999 years ago: not to be read as February either.
                words = TimeWords(match.start(), match.end(), (now, now), 0.0)
            if words is not None:
                yield words


def _year(text: str, now: datetime) -> int | None:
    if not text:
        return None
    back = _YEARS_BACK.get(text.lower().strip())
    return int(text[:4]) if back is None else now.year - back


def number(text: str) -> int:
    """Return a number in digits or words, such as "three", "a couple of" or "사흘"."""
    text = text.lower().removesuffix(" of").removeprefix("a ").strip()
    return int(text) if text.isdecimal() else _NUMBERS[text]


def _group(match: re.Match[str], name: str) -> str:
    """Return what a group matched, ``""`` where the rule has no such group or it matched nothing."""
    return match.groupdict().get(name) or ""


def _found(
    match: re.Match[str], span: Span, strength: float = _CERTAIN, *, sure: bool = True, yearly: bool = False
) -> TimeWords:
    return TimeWords(match.start(), match.end(), span, strength, sure, yearly)


def _iso(match: re.Match[str], now: datetime) -> TimeWords:  # noqa: ARG001 - all rules are called alike
    year, month, day = int(_group(match, "year")), int(_group(match, "month")), _group(match, "day")
    return _found(match, days(date(year, month, int(day)), 1) if day else months(year, month))


def _iso_week(match: re.Match[str], now: datetime) -> TimeWords:  # noqa: ARG001
    return _found(match, days(date.fromisocalendar(int(_group(match, "year")), int(_group(match, "week")), 1), 7))


def _day_of_month(match: re.Match[str], now: datetime) -> TimeWords:
    month = _MONTHS[_group(match, "month").lower()]
    day = int(re.sub(r"\D", "", _group(match, "day")))
    last = int(re.sub(r"\D", "", _group(match, "last"))) if _group(match, "last") else day
    year = _year(_group(match, "year"), now)
    span = most_recent(now, year, lambda year: days(date(year, month, day), 1))
    if _group(match, "last"):
        span = (span[0], days(date(span[0].year, month, last), 1)[1])
    if span[1] <= span[0]:
        raise ValueError("days in the wrong order")
    if _group(match, "week"):
        span = week_of(span[0], 0)
    return _found(match, span, yearly=year is None)


def _named_month(match: re.Match[str], now: datetime) -> TimeWords | None:
    word, which = _group(match, "month"), _group(match, "which").lower()
    month, year = _MONTHS[word.lower()], _year(_group(match, "year"), now)
    short = len(word) < len("june") and word.lower() != "may"
    if (short and word.islower()) or (word == "may" and which == "this"):
        # The name of a thing, or a verb.
        return None
    span = most_recent(now, year, lambda year: months(year, month))
    if which == "next":
        span = months(span[0].year + 1, month)
    elif which in {"last", "past", "previous"} and span[1] > now:
        span = months(span[0].year - 1, month)
    named = year is not None or bool(which)
    sure = named or (word[0].isupper() and word.lower() not in {"may", "march"} and not short)
    return _found(match, span, _CERTAIN if named else _LIKELY, sure=sure, yearly=not named)


def _bare_year(match: re.Match[str], now: datetime) -> TimeWords:  # noqa: ARG001
    return _found(match, months(int(_group(match, "year")), 1, 12))


def _quarter(match: re.Match[str], now: datetime) -> TimeWords:
    quarter = ORDINALS.get(_group(match, "nth").lower()) or int(_group(match, "number"))
    year = _year(_group(match, "year"), now)
    span = most_recent(now, year, lambda year: months(year, 3 * quarter - 2, 3))
    return _found(match, span, _LIKELY, yearly=year is None)


def _half(match: re.Match[str], now: datetime) -> TimeWords:
    second = _group(match, "half").lower() in {"2", "second", "하반기"}
    year = _year(_group(match, "year"), now)
    span = most_recent(now, year, lambda year: months(year, 7 if second else 1, 6))
    return _found(match, span, _LIKELY, yearly=year is None)


def _season(match: re.Match[str], now: datetime) -> TimeWords:
    month, year = _SEASONS[_group(match, "season").lower()], _year(_group(match, "year"), now)
    span = most_recent(now, year, lambda year: months(year, month, 3))
    if _group(match, "which").lower() in {"last", "지난"} and span[1] > now:
        span = months(span[0].year - 1, month, 3)
    return _found(match, span, _LIKELY, yearly=year is None)


def _today(match: re.Match[str], now: datetime) -> TimeWords | None:
    # "How is it stored today?" asks for what holds, and not for what was written today.
    return _found(match, unit_before(now, "day", 0)) if _PAST.search(match.string) else None


def _relative_day(match: re.Match[str], now: datetime) -> TimeWords:
    word = re.sub(r"^(?:the )|[ ]", "", match[0].lower())
    if word == "오늘" and _KOREAN_QUESTION.search(match.string) and not _is_korean_past(match.string):
        return _found(match, unit_before(now, "day", 0), _SOFT)
    return _found(match, unit_before(now, "day", _DAYS_BACK.get(word, 0)))


def _is_korean_past(text: str) -> bool:
    """Tell whether a syllable ends in the double s of the past tense; those of 있다 and 겠 are others."""
    return any(
        (ord(letter) - _HANGUL) % _FINALS == _FINAL_SS and letter not in "있겠"
        for letter in text
        if "가" <= letter <= "힣"
    )


def _last_night(match: re.Match[str], now: datetime) -> TimeWords:
    today = at(now.date())
    return _found(match, (today - timedelta(hours=12), today + timedelta(hours=6)))


def _relative_unit(match: re.Match[str], now: datetime) -> TimeWords:
    which, unit = _group(match, "which").lower(), _group(match, "unit").lower()
    back = {"this": 0, "current": 0, "the": 0, "next": -1, "coming": -1}.get(which.removesuffix(" whole"), 1)
    if unit == "weekend" and which == "the":
        back = 0 if unit_before(now, unit, 0)[0] <= now else 1
    return _found(match, unit_before(now, unit, back))


def _before_last(match: re.Match[str], now: datetime) -> TimeWords:
    return _found(match, unit_before(now, _group(match, "unit").lower(), 2))


def _up_to_now(match: re.Match[str], now: datetime) -> TimeWords:
    count = _group(match, "count")
    vague = count.lower().removeprefix("a ") in {"few", "several", "couple", "couple of", "몇"}
    how_many = 3 if vague else number(count or "1")
    return _found(match, up_to(now, _english(_group(match, "unit")), how_many), _VAGUE if vague else _CERTAIN)


def _ago(match: re.Match[str], now: datetime) -> TimeWords:
    return _found(match, unit_before(now, _english(_group(match, "unit")), number(_group(match, "count"))))


def _some_time_ago(match: re.Match[str], now: datetime) -> TimeWords:
    unit = _english(_group(match, "unit"))
    return _found(match, (unit_before(now, unit, 7 if unit == "day" else 5)[0], unit_before(now, unit, 2)[1]), _VAGUE)


def _other_day(match: re.Match[str], now: datetime) -> TimeWords:
    return _found(match, (unit_before(now, "day", 7)[0], unit_before(now, "day", 1)[1]), _VAGUE)


def _lately(match: re.Match[str], now: datetime) -> TimeWords:
    return _found(match, (at((now - _RECENT).date()), now), _SOFT)


def _weekday(match: re.Match[str], now: datetime) -> TimeWords:
    day = _WEEKDAYS.get(_group(match, "day").lower())
    place = "월화수목금토일".index(_group(match, "day")) if day is None else day - 1
    which = _group(match, "which").lower()
    week = _group(match, "week").lower().replace(" ", "")
    if week:
        return _found(
            match, unit_before(week_of(now, 0 if week in {"thisweek", "이번주"} else 1)[0] + place * _DAY, "day", 0)
        )
    back = (now.weekday() - place) % 7
    if which in {"last", "past", "previous", "지난", "저번"} and back == 0:
        back = 7
    if which in {"next", "coming"}:
        back -= 7
    return _found(match, unit_before(now, "day", back), _CERTAIN if which else _LIKELY)


def _date_of_month(match: re.Match[str], now: datetime) -> TimeWords:
    day = int(_group(match, "day"))
    for back in range(12):
        try:
            first = months(now.year, now.month - back)[0].replace(day=day)
        except ValueError:
            continue
        if first <= now:
            return _found(match, (first, first + _DAY), _VAGUE)
    raise ValueError("no such day")


def _english(unit: str) -> str:
    return _KOREAN_UNITS.get(unit) or unit.lower().removesuffix("s")


def _korean_days_ago(match: re.Match[str], now: datetime) -> TimeWords:
    return _found(match, unit_before(now, "day", number(_group(match, "count"))))


def _korean_unit(match: re.Match[str], now: datetime) -> TimeWords:
    word = match[0].replace(" ", "")
    unit = next((unit for end, unit in _KOREAN_ENDS.items() if word.endswith(end)), "year")
    first = word[: -len("주말")] if unit == "weekend" else word
    back = 1
    if first.startswith(("이번", "이달", "금", "올")):
        back = 0
    elif first.startswith(("지지난", "저저번", "재작년", "전전")):
        back = 2
    elif first.startswith(("다음", "내")):
        back = -1
    return _found(match, unit_before(now, unit, back))


def _korean_date(match: re.Match[str], now: datetime) -> TimeWords:
    month, day, year = int(_group(match, "month")), _group(match, "day"), _year(_group(match, "year"), now)
    last_day, last_month = _group(match, "last_day"), _group(match, "last_month")
    if not day:
        span = most_recent(
            now, year, lambda year: months(year, month, (int(last_month) - month) % 12 + 1 if last_month else 1)
        )
    else:
        span = most_recent(now, year, lambda year: days(date(year, month, int(day)), 1))
        if last_day:
            span = (span[0], days(date(span[0].year, month, int(last_day)), 1)[1])
    if _group(match, "which") and span[1] > now:
        span = (span[0].replace(year=span[0].year - 1), span[1].replace(year=span[1].year - 1))
    if span[1] <= span[0] or not 1 <= month <= 12:  # noqa: PLR2004 - months of a year
        raise ValueError("no such month or days in the wrong order")
    return _found(match, span, yearly=year is None)


def _korean_turn(match: re.Match[str], now: datetime) -> TimeWords:
    unit = "year" if match[0][0] == "연" else "month"
    span = unit_before(now, unit, 0)
    third = (span[1] - span[0]) // 3
    early = (span[0], at((span[0] + third).date()))
    if match[0][1] == "초":
        return _found(match, early, _VAGUE)
    late = (at((span[1] - third).date()), span[1])
    return _found(
        match, late if late[0] <= now else (unit_before(now, unit, 1)[1] - third, unit_before(now, unit, 1)[1]), _VAGUE
    )


_AGO: Final = r"[ ](?:ago|back|earlier)\b"
_TO: Final = r"[ ]?(?:-|–|—|to|and|until|through)[ ]?"  # noqa: RUF001 - dashes of people
_KOREAN_YEAR: Final = rf"(?:(?P<year>{_YEAR}년|작년|지난해|재작년|올해|금년)[ ]?)?"
_LONG_UNIT: Final = r"(?P<unit>(?:hour|day|week|month|quarter|year)s?)"
_AFTER_ON: Final = r"(?:(?<=\bon[ ])|(?<=\bsince[ ])|(?<=\buntil[ ])|(?<=\bbefore[ ])|(?<=\bafter[ ])|(?<=\bfrom[ ]))"
_AFTER_IN: Final = r"(?:(?<=\bin[ ])|(?<=\bsince[ ])|(?<=\bbefore[ ])|(?<=\bafter[ ])|(?<=\bof[ ])|(?<=\bduring[ ]))"

_ENGLISH_RULES: Final[tuple[tuple[str, Rule], ...]] = (
    (
        rf"""(?<![\w.:/-]) (?P<year>{_YEAR}) (?: ([-/])(?=\d\d?\2) | [.](?=\d\d[.]\d\d) )
        (?P<month>0?[1-9]|1[0-2]) [-/.] (?P<day>0?[1-9]|[12]\d|3[01]) (?![\d.:/-]{{0,8}}\d)""",
        _iso,
    ),
    (rf"(?<![\w.:/-]) (?P<year>{_YEAR}) - (?P<month>0[1-9]|1[0-2]) (?![\w./-]{{0,8}}\d)", _iso),
    (r"(?<![\w.-]) (?P<year>20\d\d)-W(?P<week>[0-5]\d)\b", _iso_week),
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
    (rf"{_AFTER_IN}(?P<year>{_YEAR})\b(?![-.]?\w)", _bare_year),
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
    (r"\btoday\b", _today),
    (r"\blast[ ]night\b", _last_night),
    (
        rf"\b(?P<which>this|current|last|past|previous|next|coming)[ ](?P<unit>{_UNIT})\b(?![-\w]|[ ]of[ ])",
        _relative_unit,
    ),
    (r"\b(?:over|on|at|during)[ ](?P<which>the)[ ](?P<unit>weekend)\b", _relative_unit),
    (r"(?<=\bof[ ])(?P<which>the)[ ](?P<unit>week|month|year)\b(?![ ]of|[-\w])", _relative_unit),
    (r"\b(?:the[ ])?(?P<unit>weekend|week|month|quarter|year)[ ]before[ ]last\b", _before_last),
    (rf"\b(?:in|over|within|during|for|of|from)[ ]the[ ](?:last|past)[ ]{_LONG_UNIT}\b(?!-)", _up_to_now),
    (
        rf"""\b(?:the[ ])?(?:last|past|previous)[ ](?P<count>{COUNT}|(?:a[ ])?few|several|couple[ ]of)[ ]
        {_LONG_UNIT}\b(?!-)""",
        _up_to_now,
    ),
    (rf"\b(?P<count>{COUNT})[ ]{_LONG_UNIT}{_AGO}", _ago),
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
)

_KOREAN_RULES: Final[tuple[tuple[str, Rule], ...]] = (
    (rf"(?:오늘|어제|어저께|그제|그저께|그끄저께|간밤){_OVER}", _relative_day),
    (rf"(?:엊그제|며칠[ ]?전){_OVER}", _other_day),
    (
        rf"""(?: (?:지지난|저저번|지난|저번|이번|다음)[ ]?(?:주말|주|달|분기|해)
        | 금주|전주(?=에|의)|이달|전월|금월|작년|재작년|올해|금년) {_OVER}""",
        _korean_unit,
    ),
    (rf"(?P<count>{_KOREAN_DAYS})[ ]?전{_OVER}", _korean_days_ago),
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
    (rf"(?<!\d)(?P<year>{_YEAR})년(?![ ]?(?:\d|동안|상반기|하반기|봄|여름|가을|겨울|간|전))", _bare_year),
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

_RULES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE | re.VERBOSE), rule) for pattern, rule in (*_ENGLISH_RULES, *_KOREAN_RULES)
)
