"""Times of v1.0: milliseconds as its code writes them, seconds as its schema does, and what people typed."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import attrs

from mama_structs.memory.ids import from_milliseconds, milliseconds
from mama_structs.memory.migration.values import Undecoded, Value

_LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)
# Below it a number is seconds: as milliseconds it would be before March 1973, as seconds it may be the year 5138.
_SECONDS_UP_TO: Final = 10**11
_MILLISECONDS_UP_TO: Final = 10**14
_MICROSECONDS_UP_TO: Final = 10**17
_LONGEST: Final = 100


@attrs.frozen
class ReadTime:
    """
    A time that was read.

    Args:
        at: The time (UTC), None where it is none.
        note: What is odd about how it is written, or why it is none; None for whole milliseconds.

    """

    at: datetime | None
    note: str | None = None


def read_time(value: Value) -> ReadTime:
    """
    Return the time that a column says; numbers are told apart by their magnitude.

    Args:
        value: A number of seconds, milliseconds, microseconds or nanoseconds since 1970, or a text: such a number,
            ISO 8601 (UTC where it names no zone) or the form of e-mail and HTTP.

    """
    if value is None:
        return ReadTime(None, "it is NULL")
    if isinstance(value, int | float):
        return _of_number(value)
    if isinstance(value, Undecoded):
        return ReadTime(None, "it is no text")
    text = value if isinstance(value, str) else value[:_LONGEST].decode("utf-8", "replace")
    return _of_text(text.strip())


def _of_number(number: float) -> ReadTime:
    if not math.isfinite(number) or number <= 0:
        return ReadTime(None, "it is 0 or less" if number <= 0 else "it is not finite")
    note = None if isinstance(number, int) else "it is a fraction"
    if number < _SECONDS_UP_TO:
        count, note = math.floor(number * 1000), "it is in seconds"
    elif number < _MILLISECONDS_UP_TO:
        count = math.floor(number)
    elif number < _MICROSECONDS_UP_TO:
        count, note = math.floor(number / 1000), "it is in microseconds"
    else:
        count, note = math.floor(number / 1_000_000), "it is in nanoseconds"
    try:
        moment = from_milliseconds(count)
    except OverflowError:
        return ReadTime(None, "it is too large")
    return ReadTime(moment, note) if moment < _LAST else ReadTime(None, "it is too large")


def _of_text(text: str) -> ReadTime:
    if not text or len(text) > _LONGEST:
        return ReadTime(None, "it is no time")
    try:
        number = float(text)
    except ValueError:
        moment = _dated(text)
        if moment is None or not datetime(1970, 1, 1, tzinfo=UTC) < moment < _LAST:
            return ReadTime(None, "it is no time")
        return ReadTime(from_milliseconds(milliseconds(moment)), "it is a text")
    found = _of_number(int(text) if text.lstrip("+").isdecimal() else number)
    return ReadTime(found.at, "it is a text" if found.at is not None else found.note)


def _dated(text: str) -> datetime | None:
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(text)
            # SQLite's own functions give UTC, and name no zone.
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
    return None
