"""
Finds the period that a question speaks of: "last week", "since May", "between March and early June", "지난달 말".

Days are UTC days, weeks run from Monday to Sunday, and a month without a year is the most recent one that has begun
(data/retrieval, the README of the sample). A stretch of time that is no period ("a 14 days token", "every 5 s") is not
taken for one, so a word that can mean something else, such as "may", needs company that makes it a month.
Only regular expressions whose repetitions are bounded are used: the time is linear in the length of the question.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

import attrs

Span = tuple[datetime, datetime]


@attrs.frozen
class Period:
    """
    A period that a question names, from *since* up to, but not including, *until*.

    Args:
        since: Its begin (UTC), None where it has none.
        until: Its end (UTC), None where it has none.
        words: What of the question names it.
        strength: How surely it is meant as a condition, 0 to 1: "recently" is little more than a wish.

    """

    since: datetime | None
    until: datetime | None
    words: str
    strength: float


@attrs.frozen
class _Found:
    """A period in the text: where it stands, and whether it is one without further words around it."""

    start: int
    end: int
    span: Span
    strength: float = 1.0
    sure: bool = True
    # Whether another year may be meant.
    yearly: bool = False


_CERTAIN: Final = 1.0
_LIKELY: Final = 0.8
_VAGUE: Final = 0.6
_SOFT: Final = 0.3
_RECENT: Final = timedelta(days=14)
_LONGEST_QUERY: Final = 4_000
_DAY: Final = timedelta(days=1)

_MONTH_NAMES: Final = (
    "january february march april may june july august september october november december".split()  # noqa: SIM905
)
_MONTHS: Final = {name: number for number, name in enumerate(_MONTH_NAMES, 1)} | {
    **{name[:3]: number for number, name in enumerate(_MONTH_NAMES, 1)},
    "sept": 9,
}
_WEEKDAYS: Final = {
    name: number
    for number, name in enumerate(["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"])
}
_NUMBERS: Final = {
    word: number
    for number, words in enumerate(
        [
            "",
            "a an one 한 일",
            "two couple 두 이 이틀",
            "three 세 삼 사흘 석",
            "four 네 사 나흘 넉",
            "five 다섯 오 닷새",
        ]
        + ["six 여섯 육 엿새", "seven 일곱 칠 이레", "eight 여덟 팔 여드레", "nine 아홉 구 아흐레", "ten 열 십 열흘"]
        + ["eleven 열한", "twelve 열두"]
    )
    for word in words.split()
} | {"하루": 1}
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
_ORDINALS: Final = {
    **{
        "first": 1,
        "1st": 1,
        "second": 2,
        "2nd": 2,
        "third": 3,
        "3rd": 3,
        "fourth": 4,
        "4th": 4,
        "last": -1,
        "final": -1,
    },
    **{
        "첫째": 1,
        "첫": 1,
        "첫번째": 1,
        "둘째": 2,
        "두번째": 2,
        "셋째": 3,
        "세번째": 3,
        "넷째": 4,
        "네번째": 4,
        "마지막": -1,
    },
}

_MONTH: Final = (
    "january|february|march|april|may|june|july|august|september|october|november|december|"
    "jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec"
)
_YEAR: Final = r"(?:19|20)\d\d"
_YEAR_AFTER: Final = rf"(?:,?[ ](?:of[ ])?(?P<year>{_YEAR}|last[ ]year|this[ ]year)\b)"
_DAY_NUMBER: Final = r"[0-3]?\d(?:st|nd|rd|th)?"
_COUNT: Final = r"\d{1,4}|a[ ]couple[ ]of|a|an|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
_UNIT: Final = "hour|day|week|weekend|month|quarter|year"
_WEEKDAY: Final = "|".join(_WEEKDAYS)
_KOREAN_COUNT: Final = r"\d{1,4}|열한|열두|한|두|세|네|다섯|여섯|일곱|여덟|아홉|열|석|넉|일|이|삼|사|오|육|칠|팔|구|십"
_KOREAN_DAYS: Final = "하루|이틀|사흘|나흘|닷새|엿새|이레|여드레|아흐레|열흘"
# What may follow a Korean word of time, so that 지난 주 is none in 지난 주요 변경.
_OVER: Final = r"(?=$|[^가-힣]|에|의|엔|은|는|도|이|가|을|를|과|와|간|로|부터|까지|보다|동안|내내|중|초|말|쯤|경|때|이후|이전|전에|사이)"

Rule = tuple[re.Pattern[str], Callable[[re.Match[str], datetime], "_Found | None"]]


def period_in(query: str, now: datetime) -> Period | None:
    """
    Return the period that *query* names, counted from *now*, None where it names none.

    Args:
        query: A question in English or Korean; what lies beyond its first 4,000 characters is not looked at.
        now: Without a time zone it is taken as UTC.

    """
    now = now.replace(tzinfo=UTC) if now.tzinfo is None else now.astimezone(UTC)
    text = re.sub(r"\s", " ", query[:_LONGEST_QUERY])
    found = _all_in(text, now)
    periods = []
    skip = -1
    for place, one in enumerate(found):
        if place == skip:
            continue
        other = found[place + 1] if place + 1 < len(found) else None
        ranged = _range(text, one, other, now)
        if ranged is not None:
            skip = place + 1
        period = ranged or _alone(text, one)
        if period is not None:
            periods.append(period)
    # Of several, the surest is the condition; the first one of them, since what follows explains.
    return max(periods, key=lambda period: period.strength, default=None)


def _all_in(text: str, now: datetime) -> list[_Found]:
    """Return all that may be a period in order, where they overlap the first, and of those that begin alike the longest."""
    found = []
    for pattern, rule in _RULES:
        for match in pattern.finditer(text):
            try:
                one = rule(match, now)
            except (ValueError, OverflowError):
                # The thirtieth of February, or 9,999 years ago.
                continue
            if one is not None:
                found.append(one)
    kept: list[_Found] = []
    for one in sorted(found, key=lambda one: (one.start, -one.end)):
        if not kept or one.start >= kept[-1].end:
            kept.append(_narrowed(text, one))
    return kept


# What stands before and after a period.

_BEFORE_LENGTH: Final = 48
_PART: Final = re.compile(
    r"\b(?P<part>early|mid|middle|late|beginning|start|end|begin|close|first[ ]half|second[ ]half|"
    rf"(?P<nth>first|second|third|fourth|1st|2nd|3rd|4th|last|final)[ ](?:(?P<count>{_COUNT})[ ])?(?P<unit>day|week)s?)"
    r"(?:[ -]|[ ](?:of|in)[ ](?:the[ ])?(?:month[ ]of[ ])?)$",
    re.IGNORECASE,
)
_KOREAN_PART: Final = re.compile(
    r"[ ]?(?:의[ ])?(?P<part>초순|초반|초(?!기|과|안|록)|상순|중순|중반|말(?!씀|하|했)|하순|후반|전반|"
    r"(?P<nth>첫째|첫[ ]?번째|첫|둘째|두[ ]?번째|셋째|세[ ]?번째|넷째|네[ ]?번째|마지막)[ ]?(?P<unit>주|날)(?![요소제]))"
)
_THIRDS: Final = {
    **dict.fromkeys(["early", "beginning", "start", "begin", "초순", "초반", "초", "상순"], 0),
    **dict.fromkeys(["mid", "middle", "중순", "중반"], 1),
    **dict.fromkeys(["late", "end", "close", "말", "하순"], 2),
}
_LEAD: Final = re.compile(
    r"\b(?P<word>since|from|starting|after|before|until|till|up[ ]to|by|prior[ ]to|between|in|during|of|on|for|over|"
    r"within|throughout|around|about|at|as[ ]of|back[ ]in)[ ](?:the[ ])?(?:(?:month|week|end|start)[ ]of[ ](?:the[ ])?)?$",
    re.IGNORECASE,
)
_JOIN: Final = re.compile(
    r"[ ]?(?P<word>-|–|—|~|to|until|till|through|thru|and|부터|에서)[ ]?(?:the[ ])?"  # noqa: RUF001 - dashes of people
    r"(?:(?:early|mid|middle|late|beginning|start|end)(?:[ -]|[ ]of[ ](?:the[ ])?))?",
    re.IGNORECASE,
)
_KOREAN_TAIL: Final = re.compile(
    r"[ ]?(?P<word>부터|이후|이래|이전|까지|전에|전까지|전(?=$|[ .,?!])|사이|에서)", re.IGNORECASE
)
_OPEN_ENDED: Final = {"since", "from", "starting", "as of", "부터", "이후", "이래"}
_ENDING: Final = {"until", "till", "up to", "by", "까지"}
_PRECEDING: Final = {"before", "prior to", "이전", "전에", "전까지", "전"}


def _narrowed(text: str, one: _Found) -> _Found:
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


def _range(text: str, one: _Found, other: _Found | None, now: datetime) -> Period | None:
    """Return the period from *one* to *other* if the words around them say so."""
    if other is None:
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
    return Period(since, until, text[start:end].strip(), min(one.strength, other.strength, _CERTAIN))


def _alone(text: str, one: _Found) -> Period | None:
    since: datetime | None
    until: datetime | None
    since, until = one.span
    lead = _LEAD.search(text[max(0, one.start - _BEFORE_LENGTH) : one.start])
    tail = _KOREAN_TAIL.match(text, one.end)
    word = lead["word"].lower() if lead else tail["word"] if tail else ""
    if not one.sure and not word:
        return None
    start, end = one.start, one.end
    if word in _OPEN_ENDED:
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


# Calendar.


def _at(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _days(first: date, count: int) -> Span:
    return _at(first), _at(first + timedelta(days=count))


def _week(now: datetime, back: int) -> Span:
    return _days(now.date() - timedelta(days=now.weekday() + 7 * back), 7)


def _month(year: int, month: int, count: int = 1) -> Span:
    """Return *count* months from one on, which may lie outside 1 to 12."""
    first, last = year * 12 + month - 1, year * 12 + month - 1 + count
    return _at(date(first // 12, first % 12 + 1, 1)), _at(date(last // 12, last % 12 + 1, 1))


def _unit(now: datetime, unit: str, back: int) -> Span:
    """Return the day, week, month ... that lies so many before the present one."""
    if unit == "day":
        return _days(now.date() - timedelta(days=back), 1)
    if unit == "week":
        return _week(now, back)
    if unit == "weekend":
        return _days(_week(now, back)[0].date() + timedelta(days=5), 2)
    if unit == "month":
        return _month(now.year, now.month - back)
    if unit == "quarter":
        return _month(now.year, (now.month - 1) // 3 * 3 + 1 - 3 * back, 3)
    if unit == "hour":
        hour = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=back)
        return hour, hour + timedelta(hours=1)
    return _month(now.year - back, 1, 12)


def _rolling(now: datetime, unit: str, count: int) -> Span:
    """Return the time up to now of so many days, weeks, months ..., from the begin of a day on."""
    if unit == "hour":
        return now - timedelta(hours=count), now
    months = {"month": 1, "quarter": 3, "year": 12}.get(unit)
    if months is None:
        first = now.date() - timedelta(days=count * (7 if unit.startswith("week") else 1))
    else:
        since = _month(now.year, now.month - months * count)[0]
        first = since.date() + timedelta(days=min(now.day, 28) - 1)
    return _at(first), now


def _a_year_later(day: datetime) -> datetime:
    return _month(day.year + 1, day.month)[0] + (day - day.replace(day=1))


def _year(text: str, now: datetime) -> int | None:
    if not text:
        return None
    relative = {"last year": 1, "this year": 0, "작년": 1, "지난해": 1, "올해": 0, "금년": 0, "재작년": 2}
    back = relative.get(text.lower().strip())
    return int(text[:4]) if back is None else now.year - back


def _recent(now: datetime, year: int | None, span_of: Callable[[int], Span]) -> Span:
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


def _number(text: str) -> int:
    text = text.lower().removesuffix(" of").removeprefix("a ").strip()
    return int(text) if text.isdecimal() else _NUMBERS[text]


def _group(match: re.Match[str], name: str) -> str:
    """Return what a group matched, ``""`` where the rule has no such group or it matched nothing."""
    return match.groupdict().get(name) or ""


def _found(
    match: re.Match[str], span: Span, strength: float = _CERTAIN, *, sure: bool = True, yearly: bool = False
) -> _Found:
    return _Found(match.start(), match.end(), span, strength, sure, yearly)


# Rules: what is found, and what it means.


def _iso(match: re.Match[str], now: datetime) -> _Found:  # noqa: ARG001 - all rules are called alike
    year, month, day = int(_group(match, "year")), int(_group(match, "month")), _group(match, "day")
    return _found(match, _days(date(year, month, int(day)), 1) if day else _month(year, month))


def _iso_week(match: re.Match[str], now: datetime) -> _Found:  # noqa: ARG001
    return _found(match, _days(date.fromisocalendar(int(_group(match, "year")), int(_group(match, "week")), 1), 7))


def _day_of_month(match: re.Match[str], now: datetime) -> _Found:
    month = _MONTHS[_group(match, "month").lower()]
    day = int(re.sub(r"\D", "", _group(match, "day")))
    last = int(re.sub(r"\D", "", _group(match, "last"))) if _group(match, "last") else day
    year = _year(_group(match, "year"), now)
    span = _recent(now, year, lambda year: _days(date(year, month, day), 1))
    if _group(match, "last"):
        span = (span[0], _days(date(span[0].year, month, last), 1)[1])
    if span[1] <= span[0]:
        raise ValueError("days in the wrong order")
    if _group(match, "week"):
        span = _week(span[0], 0)
    return _found(match, span, yearly=year is None)


def _named_month(match: re.Match[str], now: datetime) -> _Found | None:
    word, which = _group(match, "month"), _group(match, "which").lower()
    month, year = _MONTHS[word.lower()], _year(_group(match, "year"), now)
    ambiguous = word.lower() in {
        "may",
        "march",
        "mar",
        "dec",
        "sep",
        "jan",
        "jun",
        "oct",
        "apr",
        "feb",
        "aug",
        "jul",
        "nov",
    }
    if len(word) == 3 and word != "May" and word.lower() != "may" and not word[0].isupper():
        return None
    if word.islower() and which in {"this"}:
        return None
    span = _recent(now, year, lambda year: _month(year, month))
    if which == "next":
        span = _month(span[0].year + 1, month)
    elif which in {"last", "past", "previous"} and span[1] > now:
        span = _month(span[0].year - 1, month)
    named = year is not None or bool(which)
    sure = named or (not ambiguous and word[0].isupper())
    return _found(match, span, _CERTAIN if named else _LIKELY, sure=sure, yearly=not named)


def _bare_year(match: re.Match[str], now: datetime) -> _Found:  # noqa: ARG001
    return _found(match, _month(int(_group(match, "year")), 1, 12))


def _quarter(match: re.Match[str], now: datetime) -> _Found:
    number = _ORDINALS.get(_group(match, "nth").lower()) or int(_group(match, "number"))
    year = _year(_group(match, "year"), now)
    return _found(
        match, _recent(now, year, lambda year: _month(year, 3 * (number) - 2, 3)), _LIKELY, yearly=year is None
    )


def _half(match: re.Match[str], now: datetime) -> _Found:
    second = _group(match, "half").lower() in {"2", "second", "하반기"}
    year = _year(_group(match, "year"), now)
    return _found(
        match, _recent(now, year, lambda year: _month(year, 7 if second else 1, 6)), _LIKELY, yearly=year is None
    )


def _season(match: re.Match[str], now: datetime) -> _Found:
    month, year = _SEASONS[_group(match, "season").lower()], _year(_group(match, "year"), now)
    span = _recent(now, year, lambda year: _month(year, month, 3))
    if _group(match, "which").lower() in {"last", "지난"} and span[1] > now:
        span = _month(span[0].year - 1, month, 3)
    return _found(match, span, _LIKELY, yearly=year is None)


def _today(match: re.Match[str], now: datetime) -> _Found | None:
    # "How is it stored today?" asks for what holds, and not for what was written today.
    return _found(match, _unit(now, "day", 0)) if _PAST.search(match.string) else None


def _relative_day(match: re.Match[str], now: datetime) -> _Found:
    word = re.sub(r"^(?:the )|[ ]", "", match[0].lower())
    back = {"yesterday": 1, "today": 0, "daybeforeyesterday": 2, "tonight": 0, "thismorning": 0, "thisafternoon": 0}
    back |= {
        "thisevening": 0,
        "earliertoday": 0,
        "오늘": 0,
        "어제": 1,
        "어저께": 1,
        "간밤": 1,
        "그제": 2,
        "그저께": 2,
        "그끄저께": 3,
    }
    return _found(match, _unit(now, "day", back[word]))


def _last_night(match: re.Match[str], now: datetime) -> _Found:
    today = _at(now.date())
    return _found(match, (today - timedelta(hours=12), today + timedelta(hours=6)))


def _relative_unit(match: re.Match[str], now: datetime) -> _Found:
    which, unit = _group(match, "which").lower(), _group(match, "unit").lower()
    back = {"this": 0, "current": 0, "the": 0, "next": -1, "coming": -1}.get(which.removesuffix(" whole"), 1)
    if unit == "weekend" and which == "the":
        back = 0 if _unit(now, unit, 0)[0] <= now else 1
    if _group(match, "before"):
        back += 1
    return _found(match, _unit(now, unit, back))


def _before_last(match: re.Match[str], now: datetime) -> _Found:
    return _found(match, _unit(now, _group(match, "unit").lower(), 2))


def _up_to_now(match: re.Match[str], now: datetime) -> _Found:
    count = _group(match, "count")
    vague = count.lower().removeprefix("a ") in {"few", "several", "couple", "couple of", "몇"}
    number = 3 if vague else _number(count or "1")
    return _found(match, _rolling(now, _english(_group(match, "unit")), number), _VAGUE if vague else _CERTAIN)


def _ago(match: re.Match[str], now: datetime) -> _Found:
    return _found(match, _unit(now, _english(_group(match, "unit")), _number(_group(match, "count"))))


def _some_time_ago(match: re.Match[str], now: datetime) -> _Found:
    unit = _english(_group(match, "unit"))
    return _found(match, (_unit(now, unit, 7 if unit == "day" else 5)[0], _unit(now, unit, 2)[1]), _VAGUE)


def _other_day(match: re.Match[str], now: datetime) -> _Found:
    return _found(match, (_unit(now, "day", 7)[0], _unit(now, "day", 1)[1]), _VAGUE)


def _lately(match: re.Match[str], now: datetime) -> _Found:
    return _found(match, (_at((now - _RECENT).date()), now), _SOFT)


def _weekday(match: re.Match[str], now: datetime) -> _Found:
    day = _WEEKDAYS.get(_group(match, "day").lower())
    number = "월화수목금토일".index(_group(match, "day")) if day is None else day
    which = _group(match, "which").lower()
    week = _group(match, "week").lower().replace(" ", "")
    if week:
        return _found(match, _unit(_week(now, 0 if week in {"thisweek", "이번주"} else 1)[0] + number * _DAY, "day", 0))
    back = (now.weekday() - number) % 7
    if which in {"last", "past", "previous", "지난", "저번"} and back == 0:
        back = 7
    if which in {"next", "coming"}:
        back -= 7
    return _found(match, _unit(now, "day", back), _CERTAIN if which else _LIKELY)


def _date_of_month(match: re.Match[str], now: datetime) -> _Found:
    day = int(_group(match, "day"))
    for back in range(12):
        try:
            first = _month(now.year, now.month - back)[0].replace(day=day)
        except ValueError:
            continue
        if first <= now:
            return _found(match, (first, first + _DAY), _VAGUE)
    raise ValueError("no such day")


def _english(unit: str) -> str:
    korean = {
        "일": "day",
        "날": "day",
        "주": "week",
        "주일": "week",
        "달": "month",
        "개월": "month",
        "년": "year",
        "해": "year",
    }
    korean |= {"시간": "hour", "분기": "quarter"}
    return korean.get(unit, unit.lower().removesuffix("s"))


def _korean_days_ago(match: re.Match[str], now: datetime) -> _Found:
    return _found(match, _unit(now, "day", _number(_group(match, "count"))))


def _korean_unit(match: re.Match[str], now: datetime) -> _Found:
    word = match[0].replace(" ", "")
    unit = next(
        unit
        for end, unit in (
            ("주말", "weekend"),
            ("주", "week"),
            ("달", "month"),
            ("월", "month"),
            ("분기", "quarter"),
            ("", "year"),
        )
        if word.endswith(end)
    )
    first = word[: -len("주말")] if unit == "weekend" else word
    back = 1
    if first.startswith(("이번", "이달", "금", "올")):
        back = 0
    elif first.startswith(("지지난", "저저번", "재작년", "전전")):
        back = 2
    elif first.startswith(("다음", "내")):
        back = -1
    return _found(match, _unit(now, unit, back))


def _korean_date(match: re.Match[str], now: datetime) -> _Found:
    month, day, year = int(_group(match, "month")), _group(match, "day"), _year(_group(match, "year"), now)
    last_day, last_month = _group(match, "last_day"), _group(match, "last_month")
    if not day:
        span = _recent(
            now, year, lambda year: _month(year, month, (int(last_month) - month) % 12 + 1 if last_month else 1)
        )
    else:
        span = _recent(now, year, lambda year: _days(date(year, month, int(day)), 1))
        if last_day:
            span = (span[0], _days(date(span[0].year, month, int(last_day)), 1)[1])
    if _group(match, "which") and span[1] > now:
        span = (span[0].replace(year=span[0].year - 1), span[1].replace(year=span[1].year - 1))
    if span[1] <= span[0] or not 1 <= month <= 12:  # noqa: PLR2004 - months of a year
        raise ValueError("no such month or days in the wrong order")
    return _found(match, span, yearly=year is None)


def _korean_turn(match: re.Match[str], now: datetime) -> _Found:
    unit = "year" if match[0][0] == "연" else "month"
    span = _unit(now, unit, 0)
    third = (span[1] - span[0]) // 3
    early = (span[0], _at((span[0] + third).date()))
    if match[0][1] == "초":
        return _found(match, early, _VAGUE)
    late = (_at((span[1] - third).date()), span[1])
    return _found(match, late if late[0] <= now else (_unit(now, unit, 1)[1] - third, _unit(now, unit, 1)[1]), _VAGUE)


def _rules(entries: Sequence[tuple[str, Callable[[re.Match[str], datetime], _Found | None]]]) -> Iterator[Rule]:
    return ((re.compile(pattern, re.IGNORECASE), rule) for pattern, rule in entries)


_AGO: Final = r"(?:[ ]ago|[ ]back|[ ]earlier)\b"
_TO: Final = r"[ ]?(?:-|–|—|to|and|until|through)[ ]?"  # noqa: RUF001 - dashes of people
_PAST: Final = re.compile(
    r"\b(?:did|was|were|have|has|had|made|wrote|said|noted|decided|learned|happened|(?:from|since|of|until)[ ]today|today['\u2019]s)\b|"
    r"^\W{0,9}today\W{0,9}$",
    re.IGNORECASE,
)
_KOREAN_YEAR: Final = rf"(?:(?P<year>{_YEAR}년|작년|지난해|재작년|올해|금년)[ ]?)?"

_RULES: Final[tuple[Rule, ...]] = tuple(
    _rules(
        [
            (
                rf"(?<![\w.:/-])(?P<year>{_YEAR})([-/.])(?P<month>0?[1-9]|1[0-2])\2(?P<day>0?[1-9]|[12]\d|3[01])(?![\d.:/-]{0, 8}\d)",
                _iso,
            ),
            (rf"(?<![\w.:/-])(?P<year>{_YEAR})-(?P<month>0[1-9]|1[0-2])(?![\w./-]{0, 8}\d)", _iso),
            (r"(?<![\w.-])(?P<year>20\d\d)-W(?P<week>[0-5]\d)\b", _iso_week),
            (
                rf"(?P<week>\bweek[ ]of[ ](?:the[ ])?)?(?<![\w.,:/-])(?P<day>{_DAY_NUMBER})(?:{_TO}(?P<last>{_DAY_NUMBER}))?"
                rf"[ ](?:of[ ])?(?P<month>{_MONTH})\b{_YEAR_AFTER}?",
                _day_of_month,
            ),
            (
                rf"(?P<week>\bweek[ ]of[ ])?\b(?P<month>{_MONTH})\.?[ ](?:the[ ])?(?P<day>{_DAY_NUMBER})(?:{_TO}(?P<last>{_DAY_NUMBER}))?"
                rf"(?![\w:%]|[.,-]\d){_YEAR_AFTER}?",
                _day_of_month,
            ),
            (
                rf"\b(?:(?P<which>last|past|previous|this|next)[ ])?(?<![\w/.@-])(?P<month>{_MONTH})\b(?![\w'/.@_]\w|[ ]of[ ](?!{_YEAR}|last|this))"
                r"(?!(?<=may)[ ](?:be|have|not|also|need|cause|lead|break|well|still|only|never|we|i|it|they|you)\b)"
                rf"{_YEAR_AFTER}?",
                _named_month,
            ),
            (
                rf"(?:(?<=\bin[ ])|(?<=\bsince[ ])|(?<=\bbefore[ ])|(?<=\bafter[ ])|(?<=\bof[ ]))(?P<year>{_YEAR})\b(?![-.]?\w)",
                _bare_year,
            ),
            (rf"\bq(?P<number>[1-4])\b(?:[ /]?(?P<year>{_YEAR})\b)?", _quarter),
            (rf"\b(?P<nth>first|second|third|fourth|1st|2nd|3rd|4th)[ ]quarter\b{_YEAR_AFTER}?", _quarter),
            (rf"\bh(?P<half>[12])[ ](?P<year>{_YEAR})\b", _half),
            (rf"\b(?P<half>first|second)[ ]half[ ]of[ ](?:the[ ]year\b)", _half),
            (rf"\b(?P<half>first|second)[ ]half[ ]of[ ](?P<year>{_YEAR}|last[ ]year|this[ ]year)\b", _half),
            (rf"\b(?P<which>last|this)[ ](?P<season>spring|summer|autumn|fall|winter)\b", _season),
            (
                rf"(?:(?<=\bin[ ])|(?<=\bin[ ]the[ ])|(?<=\bduring[ ])|(?<=\bsince[ ]))"
                r"(?P<season>spring|summer|autumn|winter|(?<=the[ ])fall)\b(?![ ]?(?:boot|mvc|framework|cloud|data|security)|[-_.]\w)"
                rf"{_YEAR_AFTER}?",
                _season,
            ),
            (
                rf"\b(?P<season>spring|summer|autumn|fall|winter)[ ](?:of[ ])?(?P<year>{_YEAR}|last[ ]year|this[ ]year)\b",
                _season,
            ),
            (
                r"\b(?:(?:the[ ])?day[ ]before[ ]yesterday|yesterday|earlier[ ]today|tonight|this[ ](?:morning|afternoon|evening))\b",
                _relative_day,
            ),
            (r"\btoday\b", _today),
            (r"\blast[ ]night\b", _last_night),
            (
                rf"\b(?P<which>this|current|last|past|previous|next|coming)[ ](?P<unit>{_UNIT})\b(?P<before>[ ]before[ ]last)?(?![-\w])",
                _relative_unit,
            ),
            (r"\b(?:over|on|at|during)[ ](?P<which>the)[ ](?P<unit>weekend)\b", _relative_unit),
            (r"(?<=\bof[ ])(?P<which>the)[ ](?P<unit>week|month|year)\b(?![ ]of|[-\w])", _relative_unit),
            (r"\b(?:the[ ])?(?P<unit>weekend|week|month|quarter|year)[ ]before[ ]last\b", _before_last),
            (
                rf"\b(?:in|over|within|during|for|of|from)[ ]the[ ](?:last|past)[ ](?P<unit>hour|day|week|month|quarter|year)\b(?!-)",
                _up_to_now,
            ),
            (
                rf"\b(?:the[ ])?(?:last|past|previous)[ ](?P<count>{_COUNT}|few|several|couple[ ]of)[ ](?P<unit>hours?|days?|weeks?|months?|quarters?|years?)\b(?!-)",
                _up_to_now,
            ),
            (rf"\b(?P<count>{_COUNT})[ ](?P<unit>hours?|days?|weeks?|months?|quarters?|years?){_AGO}", _ago),
            (rf"\b(?:a[ ]few|several|some)[ ](?P<unit>days?|weeks?|months?|years?){_AGO}", _some_time_ago),
            (r"\bthe[ ]other[ ]day\b", _other_day),
            (r"\b(?:recently|lately|these[ ]days|of[ ]late)\b", _lately),
            (
                rf"(?:\b(?P<which>last|past|previous|this|next|coming)[ ]|(?<=\bon[ ])|(?<=\bsince[ ])|(?<=\buntil[ ])|(?<=\bbefore[ ])|(?<=\bafter[ ])|(?<=\bfrom[ ]))"
                rf"(?P<day>{_WEEKDAY})\b(?P<week>[ ](?:last|this)[ ]week)?",
                _weekday,
            ),
            (rf"\b(?P<day>{_WEEKDAY})(?:[ ]of)?[ ](?P<week>(?:last|this)[ ]week)\b", _weekday),
            (
                r"(?<=\bon[ ]the[ ])(?P<day>[0-3]?\d)(?:st|nd|rd|th)\b(?![ ](?:of|floor|place|try|attempt|day|line|page|run|call|planet))",
                _date_of_month,
            ),
            # Korean
            (rf"(?:오늘|어제|어저께|그제|그저께|그끄저께|간밤){_OVER}", _relative_day),
            (rf"(?:엊그제|며칠[ ]?전){_OVER}", _other_day),
            (
                rf"(?:(?:지지난|저저번|지난|저번|이번|다음)[ ]?(?:주말|주|달|분기|해)|금주|전주(?=에|의)|이달|전월|금월|작년|재작년|올해|금년){_OVER}",
                _korean_unit,
            ),
            (rf"(?P<count>{_KOREAN_DAYS})[ ]?전{_OVER}", _korean_days_ago),
            (
                rf"(?<![가-힣\d])(?P<count>{_KOREAN_COUNT})[ ]?(?P<unit>시간|일|주일|주|달|개월|분기|년|해)[ ]?전{_OVER}",
                _ago,
            ),
            (
                rf"(?:최근|지난)[ ](?P<count>{_KOREAN_COUNT}|몇)[ ]?(?P<unit>시간|일|주일|주|달|개월|분기|년|해)(?:[ ]?(?:간|동안))?{_OVER}",
                _up_to_now,
            ),
            (rf"(?:최근|요즘|요새|근래|얼마[ ]전){_OVER}", _lately),
            (
                rf"{_KOREAN_YEAR}(?P<which>지난[ ])?(?<![\d.~-])(?P<month>1[0-2]|[1-9])(?:[ ]?[~-][ ]?(?P<last_month>1[0-2]|[1-9]))?월"
                rf"(?![가-힣]{0, 2}호)(?:[ ]?(?P<day>[12]\d|3[01]|[1-9])(?:일?[ ]?(?:[~-]|부터)[ ]?(?P<last_day>[12]\d|3[01]|[1-9]))?일)?",
                _korean_date,
            ),
            (rf"(?<!\d)(?P<year>{_YEAR})년(?![ ]?(?:\d|동안|상반기|하반기|봄|여름|가을|겨울|간|전))", _bare_year),
            (rf"{_KOREAN_YEAR}(?<!\d)(?P<number>[1-4])[ ]?분기{_OVER}", _quarter),
            (rf"{_KOREAN_YEAR}(?P<half>상반기|하반기)", _half),
            (
                rf"{_KOREAN_YEAR}(?P<which>지난[ ]?|올)?(?<![가-힣])(?P<season>봄|여름|가을|겨울)(?=에|엔|부터|까지|철|동안|[ ]동안|내내|[ ]?\()",
                _season,
            ),
            (
                r"(?:(?P<week>지난[ ]?주|이번[ ]?주)[ ]|(?P<which>지난|저번)[ ])?(?<![가-힣])(?P<day>[월화수목금토일])요일(?=에|의|부터|까지|엔|[ ]|$)(?!마다)",
                _weekday,
            ),
            (r"(?<![가-힣])(?:연초|연말|월초|월말)(?=에|의|부터|까지|엔|[ ]|$)", _korean_turn),
        ]
    )
)
