"""Days, weeks, months and years as spans of time, in UTC, with weeks from Monday to Sunday."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta

Span = tuple[datetime, datetime]
"""A begin, and an end that does not belong to it."""


def at(day: date) -> datetime:
    """Return the begin of a day."""
    return datetime.combine(day, time(), UTC)


def days(first: date, count: int) -> Span:
    """Return *count* days from one on."""
    return at(first), at(first + timedelta(days=count))


def week_of(now: datetime, back: int) -> Span:
    """Return the week, Monday to Sunday, that lies so many before that of *now*."""
    return days(now.date() - timedelta(days=now.weekday() + 7 * back), 7)


def months(year: int, month: int, count: int = 1) -> Span:
    """Return *count* months from one on, which may lie outside 1 to 12."""
    first, last = year * 12 + month - 1, year * 12 + month - 1 + count
    return at(date(first // 12, first % 12 + 1, 1)), at(date(last // 12, last % 12 + 1, 1))


def unit_before(now: datetime, unit: str, back: int) -> Span:
    """Return the hour, day, week, weekend, month, quarter or year that lies so many before the present one."""
    if unit == "hour":
        hour = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=back)
        return hour, hour + timedelta(hours=1)
    if unit == "day":
        return days(now.date() - timedelta(days=back), 1)
    if unit in {"week", "weekend"}:
        first, last = week_of(now, back)
        return (first if unit == "week" else last - timedelta(days=2)), last
    if unit == "month":
        return months(now.year, now.month - back)
    if unit == "quarter":
        return months(now.year, (now.month - 1) // 3 * 3 + 1 - 3 * back, 3)
    return months(now.year - back, 1, 12)


def up_to(now: datetime, unit: str, count: int) -> Span:
    """Return the time up to now of so many days, weeks, months ..., from the begin of a day on."""
    if unit == "hour":
        return now - timedelta(hours=count), now
    if unit in {"day", "week"}:
        first = now.date() - timedelta(days=count * (7 if unit == "week" else 1))
    else:
        since = months(now.year, now.month - count * {"month": 1, "quarter": 3, "year": 12}[unit])[0]
        # Every month has twenty-eight days.
        first = since.date() + timedelta(days=min(now.day, 28) - 1)
    return at(first), now


def a_year_later(day: datetime) -> datetime:
    """Return the same day of the next year, the first of March for the twenty-ninth of February."""
    return months(day.year + 1, day.month)[0] + (day - day.replace(day=1))


def most_recent(now: datetime, year: int | None, span_of: Callable[[int], Span]) -> Span:
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
