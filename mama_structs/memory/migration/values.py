"""Single values of v1.0's tables, which may hold anything in any column: as texts, as JSON, and as JSON-able data."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec

# A text of a memory that is longer is cut: SQLite takes up to a gigabyte, a line of an export a quarter of that.
MAX_TEXT: Final = 2**24
_MAX_DEPTH: Final = 50
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@attrs.frozen
class Undecoded:
    """A text that is no UTF-8."""

    data: bytes


Value = int | float | str | bytes | Undecoded | None
"""What a column may hold; `bytes` is a BLOB."""


@attrs.frozen
class ReadText:
    """
    A text that was read.

    Args:
        text: The text, None for NULL.
        kind: What is odd about it, in a word.
        note: The same in some words.
        is_whole: Whether the text says all that the value does.

    """

    text: str | None
    kind: str | None = None
    note: str | None = None
    is_whole: bool = True


def decoded(data: bytes) -> str | Undecoded:
    """Return a text of the database, which SQLite does not check."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return Undecoded(data)


def read_text(value: Value) -> ReadText:
    """Return a column's text, as near to what it says as a text can be."""
    if value is None or isinstance(value, str):
        found = ReadText(value)
    elif isinstance(value, int | float):
        found = ReadText(str(value), "number_in_text", "it is a number")
    else:
        data = value if isinstance(value, bytes) else value.data
        where = "a BLOB" if isinstance(value, bytes) else "no UTF-8"
        try:
            found = ReadText(data.decode(), "blob_in_text", f"it is {where}, and was read as UTF-8")
        except UnicodeDecodeError:
            found = ReadText(
                data.decode("utf-8", "replace"),
                "not_utf8",
                f"it is {where} with bytes that are no UTF-8: these are shown as U+FFFD, and kept in metadata.extra",
                is_whole=False,
            )
    if found.text is not None and len(found.text) > MAX_TEXT:
        note = f"it has {len(found.text):,} characters, and was cut at {MAX_TEXT:,}"
        return ReadText(found.text[:MAX_TEXT], "cut", note, is_whole=False)
    if found.kind is None and found.text is not None and _CONTROL.search(found.text):
        return attrs.evolve(found, kind="control_characters", note="it has control characters, which are kept")
    return found


def read_json(text: str) -> Any:
    """
    Return what a text says as JSON, also where it is JSON within a JSON text.

    Raises:
        ValueError: It is none, or has what this store's JSON cannot hold.

    """
    try:
        found = msgspec.json.decode(text)
        if isinstance(found, str) and found.lstrip()[:1] in {"{", "["}:
            found = msgspec.json.decode(found)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not _is_flat(found):
        raise ValueError("it is nested too deeply")
    return found


def _is_flat(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            item
            for one in level
            if isinstance(one, Mapping | list)
            for item in (one.values() if isinstance(one, Mapping) else one)
        ]
        if not level:
            return True
    return False


def kept(value: Value) -> Any:
    """Return a value as JSON-able data that says the same."""
    if isinstance(value, bytes | Undecoded):
        data = value if isinstance(value, bytes) else value.data
        return {"base64": base64.b64encode(data).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def printable(text: str) -> str:
    """Return a text as a terminal may show it: a name in the old file may be anything, and a terminal obeys it."""
    return text if text.isprintable() else ascii(text)
