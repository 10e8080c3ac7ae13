"""
JSON as other programs write it: with ``NaN``, lone surrogates, trailing NULs, or several values in one file.

The parsers return such values unchanged. `repair_json` replaces what valid JSON cannot contain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec

from mama_structs.importers.shared.safe_files import MAX_FILE_BYTES, read_bytes

MAX_JSON_DEPTH: Final = 50
INVALID_JSON: Final = object()
"""Yielded by `iter_json_values` in place of a part that is not JSON."""
# Byte order marks are between values if files were concatenated. NULs remain at the end of a file after a crash.
SEPARATORS: Final = re.compile(r"[\s\x00\ufeff,]*")
MAX_FAILED_PARSES: Final = 4
REPAIR_NOTE: Final = "it has lone surrogates, now U+FFFD, or numbers that JSON does not have, now texts"
TOO_DEEP_ERROR: Final = "it is nested too deeply"
_DECODER: Final = json.JSONDecoder()


def read_json_file(path: Path, kind: str) -> str:
    """
    Return the text of a JSON file in UTF-8, UTF-16 or UTF-32. Invalid bytes become lone surrogates.

    Raises:
        InvalidArgument: The file does not exist or cannot be read.
        MigrationError: The file is too large.
        ValueError: The file has another encoding.

    """
    data = read_bytes(path, kind, limit=MAX_FILE_BYTES)
    return data.decode(json.detect_encoding(data), "surrogateescape").strip("\0")


def read_json(text: str) -> Any:
    """Parse JSON, including JSON that was encoded twice. Raise ValueError if it is invalid or nested too deeply."""
    try:
        found = _parse(text)
        if isinstance(found, str) and found.lstrip()[:1] in {"{", "["}:
            found = _parse(found)
    except RecursionError as error:
        raise ValueError(TOO_DEEP_ERROR) from error
    if not _is_shallow(found):
        raise ValueError(TOO_DEEP_ERROR)
    return found


def _parse(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except ValueError:
        # Slower, but accepts NaN, infinite numbers and lone surrogates.
        return json.loads(text)


def iter_json_values(text: str) -> Iterator[tuple[int, Any]]:
    """
    Yield the line number and the value of each JSON object or array in a text.

    A value may extend over several lines, and a line may have several values. If a value is invalid, the rest of its
    line is yielded as `INVALID_JSON`, and parsing continues with the next line.
    """
    at, line, counted, failed_chars = _skip_separators(text, 0), 1, 0, 0
    while at < len(text):
        line += text.count("\n", counted, at)
        counted = at
        newline = text.find("\n", at)
        end_of_line = newline if newline >= 0 else len(text)
        value, end = INVALID_JSON, end_of_line
        # Many unclosed brackets, each parsed to the end of the text, would take quadratic time. If too many characters
        # were parsed in vain, the remaining values must end on their lines.
        is_limited = failed_chars > MAX_FAILED_PARSES * len(text)
        try:
            found, end_of_value = _DECODER.raw_decode(*((text[at:end_of_line], 0) if is_limited else (text, at)))
            if isinstance(found, dict | list) and _is_shallow(found):
                value = found
            if isinstance(found, dict | list):
                end = end_of_value + at if is_limited else end_of_value
        except json.JSONDecodeError as error:
            failed_chars += error.pos - at if error.pos > at else 0
        except (RecursionError, ValueError):
            failed_chars += len(text)
        yield line, value
        at = _skip_separators(text, end)


def _skip_separators(text: str, at: int) -> int:
    match = SEPARATORS.match(text, at)
    return match.end() if match else at


def _is_shallow(value: Any) -> bool:
    """Return True if a value has at most `MAX_JSON_DEPTH` levels."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = list(chain.from_iterable(inner))
        if not level:
            return True
    return False


def repair_json(value: Any) -> tuple[Any, str | None]:
    """
    Return a value as valid JSON data, and a note if something was replaced.

    Lone surrogates become U+FFFD. NaN and infinite numbers become texts.

    Raises:
        TypeError: The value has an object that JSON cannot represent.
        ValueError: The value contains itself, is nested too deeply, or has an integer with too many digits.

    """
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError as error:
        raise ValueError(TOO_DEEP_ERROR) from error
    except ValueError:
        text = json.dumps(value, ensure_ascii=False)
        encodable = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return json.loads(encodable, parse_constant=str), REPAIR_NOTE
    return value, None
