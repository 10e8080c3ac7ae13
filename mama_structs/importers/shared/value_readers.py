"""Convert untyped values of another program's database to texts, times and JSON."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Any, Final, NamedTuple

import attrs
import msgspec

from mama_structs._internal.validation import FIRST, LAST
from mama_structs.memory.types.model import from_milliseconds, milliseconds

# Longer texts are truncated: SQLite allows a gigabyte, a line of an export only a quarter of that.
_MAX_TEXT: Final = 2**24
_MAX_DEPTH: Final = 50
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Below the first bound a number is in seconds: as milliseconds it would be before March 1973, as seconds it can reach
# the year 5138.
_UNITS: Final = (
    (10**11, 1000, 1, "it is in seconds"),
    (10**14, 1, 1, None),
    (10**17, 1, 1000, "it is in microseconds"),
    (math.inf, 1, 1_000_000, "it is in nanoseconds"),
)
_LONGEST_TIME: Final = 100


@attrs.frozen
class Undecoded:
    """A text that is not valid UTF-8."""

    data: bytes


Value = int | float | str | bytes | Undecoded | None
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


class ReadText(NamedTuple):
    """A column's text (None for NULL), the problem's kind and note, and its completeness."""

    text: str | None
    kind: str | None = None
    note: str | None = None
    is_whole: bool = True


class ReadTime(NamedTuple):
    """A column's time (UTC) or None, and a note on an unusual format or the reason for None."""

    at: datetime | None
    note: str | None = None


def read_text(value: Value) -> ReadText:
    """Convert a column's value to the most faithful text."""
    if value is None or isinstance(value, str):
        found = ReadText(value)
    elif isinstance(value, int | float):
        found = ReadText(str(value), "number_in_text", "it is a number")
    else:
        data, where = (value, "a BLOB") if isinstance(value, bytes) else (value.data, "no UTF-8")
        try:
            found = ReadText(data.decode(), "blob_in_text", f"it is {where}, and was read as UTF-8")
        except UnicodeDecodeError:
            note = f"it is {where} with bytes that are no UTF-8: these are shown as U+FFFD, and kept in metadata.extra"
            found = ReadText(data.decode("utf-8", "replace"), "not_utf8", note, is_whole=False)
    if found.text is None:
        return found
    if len(found.text) > _MAX_TEXT:
        note = f"it has {len(found.text):,} characters, and was cut at {_MAX_TEXT:,}"
        return ReadText(found.text[:_MAX_TEXT], "cut", note, is_whole=False)
    if found.kind is None and _CONTROL.search(found.text):
        return found._replace(kind="control_characters", note="it has control characters, which are kept")
    return found


def read_json(text: str) -> Any:
    """Parse JSON, also if encoded twice. Raise ValueError if invalid or nested too deeply."""
    try:
        found = msgspec.json.decode(text)
        if isinstance(found, str) and found.lstrip()[:1] in {"{", "["}:
            found = msgspec.json.decode(found)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    level = [found]
    for _ in range(_MAX_DEPTH):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = list(chain.from_iterable(inner))
        if not level:
            return found
    raise ValueError("it is nested too deeply")


def kept(value: Value) -> Any:
    """Convert a value to equivalent JSON-able data."""
    if isinstance(value, bytes | Undecoded):
        return {"base64": base64.b64encode(value if isinstance(value, bytes) else value.data).decode()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_time(value: Value) -> ReadTime:  # noqa: PLR0911 - one return per type of value
    """Convert a column's value to a time."""
    # The magnitude of a number distinguishes seconds, milliseconds, microseconds and nanoseconds. A text is such a
    # number, an ISO 8601 time (UTC if it has no zone) or a date in the format of e-mail and HTTP.
    if value is None:
        return ReadTime(None, "it is NULL")
    if isinstance(value, int | float):
        return _of_number(value)
    if isinstance(value, Undecoded):
        return ReadTime(None, "it is no text")
    text = (value if isinstance(value, str) else value[:_LONGEST_TIME].decode("utf-8", "replace")).strip()
    if not text or len(text) > _LONGEST_TIME:
        return ReadTime(None, "it is no time")
    try:
        number = float(text)
    except ValueError:
        moment = _dated(text)
        if moment is None or not FIRST < moment < LAST:
            return ReadTime(None, "it is no time")
        return ReadTime(from_milliseconds(milliseconds(moment)), "it is a text")
    found = _of_number(int(text) if text.lstrip("+").isdecimal() else number)
    return found if found.at is None else ReadTime(found.at, "it is a text")


def _of_number(number: float) -> ReadTime:
    if not math.isfinite(number) or number <= 0:
        return ReadTime(None, "it is 0 or less" if number <= 0 else "it is not finite")
    times, by, note = next((times, by, note) for below, times, by, note in _UNITS if number < below)
    count = math.floor(number * times / by)
    if count >= milliseconds(LAST):
        return ReadTime(None, "it is too large")
    return ReadTime(from_milliseconds(count), note or (None if isinstance(number, int) else "it is a fraction"))


def _dated(text: str) -> datetime | None:
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(text)
            # SQLite's date functions return UTC without a zone.
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
    return None
