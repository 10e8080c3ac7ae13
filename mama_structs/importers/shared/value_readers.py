"""Conversion of untyped values from another program's database to texts and times."""

from __future__ import annotations

import base64
import math
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

import attrs

from mama_structs._internal.validation import MAX_TIME, MIN_TIME
from mama_structs.memory.types.model import from_milliseconds, to_milliseconds

# Longer texts are truncated, because a line of an export holds only a quarter of SQLite's limit of one gigabyte.
MAX_TEXT_CHARS: Final = 2**24
CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Upper bound of each unit. A number below 10**11 is read as seconds, which reach the year 5138.
# Read as milliseconds, it would be before March 1973.
TIME_UNITS: Final = (
    (10**11, 1000, 1, "it is in seconds"),
    (10**14, 1, 1, None),
    (10**17, 1, 1000, "it is in microseconds"),
    (math.inf, 1, 1_000_000, "it is in nanoseconds"),
)
MAX_TIME_CHARS: Final = 100


@attrs.frozen
class UndecodableText:
    """A text that is not valid UTF-8."""

    data: bytes


Value = int | float | str | bytes | UndecodableText | None
"""The value of a column; `bytes` is a BLOB."""


@attrs.frozen
class ForeignRow:
    """A row: its rowid, which increases in the order of writing, and its values by column."""

    number: int
    values: Mapping[str, Value]

    def get(self, column: str) -> Value:
        """Return a column's value, or None if the table has no such column."""
        return self.values.get(column)

    def text(self, column: str) -> str | None:
        """Return a column's value as a text."""
        return read_text(self.get(column)).text


class TextResult(NamedTuple):
    """The text of a column (None for NULL), the type and the note of a problem, and True if the text is complete."""

    text: str | None
    kind: str | None = None
    note: str | None = None
    is_complete: bool = True


class TimeResult(NamedTuple):
    """The time of a column in UTC, or None. The note describes an unusual format, or explains the None."""

    at: datetime | None
    note: str | None = None


def read_text(value: Value) -> TextResult:
    """Convert a column's value to text, with as little loss as possible."""
    if value is None or isinstance(value, str):
        found = TextResult(value)
    elif isinstance(value, int | float):
        found = TextResult(str(value), "number_in_text", "it is a number")
    else:
        data, where = (value, "a BLOB") if isinstance(value, bytes) else (value.data, "no UTF-8")
        try:
            found = TextResult(data.decode(), "blob_in_text", f"it is {where}, and was read as UTF-8")
        except UnicodeDecodeError:
            note = f"it is {where} with bytes that are no UTF-8: these are shown as U+FFFD, and kept in metadata.extra"
            found = TextResult(data.decode("utf-8", "replace"), "not_utf8", note, is_complete=False)
    if found.text is None:
        return found
    if len(found.text) > MAX_TEXT_CHARS:
        note = f"it has {len(found.text):,} characters, and was cut at {MAX_TEXT_CHARS:,}"
        return TextResult(found.text[:MAX_TEXT_CHARS], "cut", note, is_complete=False)
    if found.kind is None and CONTROL_CHARACTERS.search(found.text):
        return found._replace(kind="control_characters", note="it has control characters, which are kept")
    return found


def to_jsonable_value(value: Value) -> Any:
    """Convert a value to equivalent JSON-able data."""
    if isinstance(value, bytes | UndecodableText):
        return {"base64": base64.b64encode(value if isinstance(value, bytes) else value.data).decode()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_time(value: Value) -> TimeResult:  # noqa: PLR0911 - one return per type of value
    """Convert a column's value to a time."""
    # The magnitude of a number determines its unit, from seconds to nanoseconds.
    # A text may be a number, an ISO 8601 time (UTC if it has no zone), or a date in the format of e-mail and HTTP.
    if value is None:
        return TimeResult(None, "it is NULL")
    if isinstance(value, int | float):
        return _parse_number(value)
    if isinstance(value, UndecodableText):
        return TimeResult(None, "it is no text")
    text = (value if isinstance(value, str) else value[:MAX_TIME_CHARS].decode("utf-8", "replace")).strip()
    if not text or len(text) > MAX_TIME_CHARS:
        return TimeResult(None, "it is no time")
    try:
        number = float(text)
    except ValueError:
        moment = _parse_date(text)
        if moment is None or not MIN_TIME < moment < MAX_TIME:
            return TimeResult(None, "it is no time")
        return TimeResult(from_milliseconds(to_milliseconds(moment)), "it is a text")
    found = _parse_number(int(text) if text.lstrip("+").isdecimal() else number)
    return found if found.at is None else TimeResult(found.at, "it is a text")


def _parse_number(number: float) -> TimeResult:
    if not 0 < number < math.inf:
        return TimeResult(None, "it is 0 or less" if number <= 0 else "it is not finite")
    # Larger integers cannot be divided.
    if number > sys.float_info.max:
        return TimeResult(None, "it is too large")
    times, by, note = next((times, by, note) for below, times, by, note in TIME_UNITS if number < below)
    count = math.floor(number * times / by)
    if count >= to_milliseconds(MAX_TIME):
        return TimeResult(None, "it is too large")
    return TimeResult(from_milliseconds(count), note or (None if isinstance(number, int) else "it is a fraction"))


def _parse_date(text: str) -> datetime | None:
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(text)
            # SQLite's date functions return UTC without a zone.
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
    return None
