"""
Finds the period that a question speaks of: "last week", "since May", "between March and early June", "지난달 말".

Days are UTC days, weeks run from Monday to Sunday, and a month without a year is the most recent one that has begun
(data/retrieval, the README of the sample). A stretch of time that is no period ("a 14 days token", "every 5 s") is not
taken for one, so a word that can mean something else, such as "may", needs company that makes it a month.
Only regular expressions whose repetitions are bounded are used: the time is linear in the length of the question.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs

from mama_structs.memory.calendar_spans import a_year_later, at
from mama_structs.memory.time_words import COUNT, ORDINALS, TimeWords, number, time_words


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


_LONGEST_QUERY: Final = 4_000
_DAY: Final = timedelta(days=1)

# What stands before and after a period.

_BEFORE_LENGTH: Final = 48
_PART: Final = re.compile(
    r"\b(?P<part>early|mid|middle|late|beginning|start|end|begin|close|first[ ]half|second[ ]half|"
    rf"(?P<nth>first|second|third|fourth|1st|2nd|3rd|4th|last|final)[ ](?:(?P<count>{COUNT})[ ])?(?P<unit>day|week)s?)"
    r"(?:[ -]|[ ](?:of|in)[ ](?:the[ ])?(?:month[ ]of[ ])?)$",
    re.IGNORECASE,
)
_KOREAN_PART: Final = re.compile(
    r"[ ]?(?:의[ ])?(?P<part>초순|초반|초(?!기|과|안|록)|상순|중순|중반|말(?!씀|하|했)|하순|후반|전반|"
    r"(?P<nth>첫째|첫[ ]?번째|첫|둘째|두[ ]?번째|셋째|세[ ]?번째|넷째|네[ ]?번째|마지막)[ ]?"
    r"(?P<unit>주|날)(?![요소제]))"
)
_THIRDS: Final = {
    **dict.fromkeys(["early", "beginning", "start", "begin", "초순", "초반", "초", "상순"], 0),
    **dict.fromkeys(["mid", "middle", "중순", "중반"], 1),
    **dict.fromkeys(["late", "end", "close", "말", "하순"], 2),
}
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
        nth = ORDINALS[match["nth"].lower().replace(" ", "")]
        count = number((before and before["count"]) or "1")
        length = count * (7 if match["unit"] in {"week", "주"} else 1) * _DAY
        span = (until - length, until) if nth < 0 else (since + (nth - 1) * length, min(since + nth * length, until))
    elif part in {"first half", "second half", "전반", "후반"}:
        middle = at(since.date() + (until - since) // 2)
        span = (since, middle) if part in {"first half", "전반"} else (middle, until)
    else:
        third = _THIRDS[part]
        # The parts of a month are ten days long, and the last one what is left.
        length = 10 * _DAY if (until - since).days in range(28, 32) else (until - since) // 3
        first = at((since + third * length).date())
        span = (first, until if third == 2 else at((first + length).date()))  # noqa: PLR2004 - the last third
    start = one.start - len(before[0]) if before else one.start
    return attrs.evolve(one, start=start, end=one.end if before else match.end(), span=span, sure=True)


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
        until = a_year_later(other.span[1]) if other.yearly else one.span[1]
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
