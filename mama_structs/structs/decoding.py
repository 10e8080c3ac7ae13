"""
The body of an HTTP answer into JSON: capped, strict, and without any I/O.

Everything here raises a plain `ValueError` for a body that breaks a rule; the caller knows which answer it was.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from typing import Any, NoReturn, Protocol

from mama_structs.errors import ResponseTooLarge

MAX_DEPTH = 100
_GZIP, _ZLIB, _RAW_DEFLATE = 31, 15, -15
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class _Inflater(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /, max_length: int = ...) -> bytes: ...


class Body:
    """
    A body that arrives in chunks, decompressed as it comes and never beyond a cap.

    A few hundred kilobytes of gzip can hold gigabytes: no step may produce more than what is still allowed.

    Args:
        encoding: The value of the Content-Encoding header.
        limit: The largest size, in bytes, after decompression.

    """

    def __init__(self, encoding: str, *, limit: int) -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ValueError(f"has the content encoding {encoding[:40]!r}, which was not asked for")
        self._compressed = self._encoding not in ("", "identity")
        self._limit = limit
        self._inflater: _Inflater | None = None
        self._content = bytearray()

    def feed(self, chunk: bytes) -> None:
        """
        Take the next chunk, of any length.

        Raises:
            ValueError: The chunk is not validly compressed.
            ResponseTooLarge: The body is over the limit.

        """
        # One byte more than allowed tells "too large" from "just fits".
        room = self._limit - len(self._content) + 1
        self._content += self._inflate(chunk, room) if self._compressed and chunk else chunk
        if len(self._content) > self._limit:
            raise ResponseTooLarge(self._limit)

    def finish(self) -> bytes:
        """Return the whole body, or raise `ValueError` where the compressed data ends too early."""
        if self._compressed and (self._inflater is None or not self._inflater.eof):
            raise ValueError(f"ends in the middle of its {self._encoding} data")
        return bytes(self._content)

    def _inflate(self, chunk: bytes, room: int) -> bytes:
        if self._inflater is None:
            self._inflater = zlib.decompressobj(self._window(chunk))
        try:
            content = self._inflater.decompress(chunk, room)
        except zlib.error as error:
            raise ValueError(f"is not valid {self._encoding} data") from error
        if self._inflater.unused_data:
            raise ValueError(f"has bytes behind its {self._encoding} data")
        return content

    def _window(self, chunk: bytes) -> int:
        if self._encoding != "deflate":
            return _GZIP
        # "deflate" is zlib data by the standard, but some servers leave the zlib header out.
        return _ZLIB if chunk[0] & 0x0F == zlib.DEFLATED else _RAW_DEFLATE


def decode_json(content: bytes) -> Any:
    """
    Read JSON as the standard has it: UTF-8, finite numbers, and at most `MAX_DEPTH` levels.

    Raises:
        ValueError: *content* breaks one of these rules.

    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("is not UTF-8") from error
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at character {error.pos}") from error
    except _RuleError:
        raise
    except ValueError as error:  # int() takes no more than 4300 digits
        raise ValueError("has a number with too many digits") from error
    if _deeper_than(value, MAX_DEPTH):
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")
    if _SURROGATE_ESCAPE.search(text) and _has_lone_surrogate(value):
        raise ValueError("has an escaped half of a surrogate pair")
    return value


class _RuleError(ValueError):
    """A rule of ours, as opposed to one of the parser's."""


def _refuse_constant(name: str) -> NoReturn:
    raise _RuleError(f"has the number {name}, which JSON does not")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _RuleError("has a number that is too large")
    return number


# Made once: json.loads with options would make one for each text.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
