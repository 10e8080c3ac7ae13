"""Paging as the Cosmos SDK does it, oddities included."""

from __future__ import annotations

import base64
import contextlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

DEFAULT_LIMIT: Final = 100
_MAX_UINT64: Final = 2**64 - 1
_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


class Refusal(Exception):
    """The node answers with an error instead of data."""

    def __init__(self, *, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def _mismatch(where: str, said: str) -> Refusal:
    return Refusal(status=400, code=3, message=f"type mismatch, parameter: {where}, error: {said}")


def parse_uint(text: str, *, where: str) -> int:
    """Read a uint64 as Go does: ASCII digits, nothing else."""
    if text.isascii() and text.isdecimal() and int(text) <= _MAX_UINT64:
        return int(text)
    raise _mismatch(where, f'strconv.ParseUint: parsing "{text}": invalid syntax')


def _parse_bool(text: str, *, where: str) -> bool:
    if text in _BOOLS:
        return _BOOLS[text]
    raise _mismatch(where, f'strconv.ParseBool: parsing "{text}": invalid syntax')


def _parse_bytes(text: str, *, where: str) -> bytes:
    for alphabet in (None, b"-_"):
        with contextlib.suppress(ValueError):
            return base64.b64decode(text, altchars=alphabet, validate=True)
    raise _mismatch(where, "illegal base64 data at input byte 0")


@attrs.frozen
class PageRequest:
    """What a query asks of a list."""

    key: bytes = b""
    """Where to go on, as the node gave it in ``next_key``; empty for the beginning."""
    offset: int = 0
    limit: int = 0
    """How many rows to look at; 0 stands for 100 and asks for the total too."""
    count_total: bool = False
    """Whether to count all rows; ignored with a key."""
    reverse: bool = False

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> PageRequest:
        """Read the parameters named ``pagination.*``; all others are ignored."""
        given = {name: query.get(f"pagination.{name}") for name in _PARSERS}
        return cls(**{name: _PARSERS[name](text, where=f"pagination.{name}") for name, text in given.items() if text})


_PARSERS: Final[Mapping[str, Any]] = {
    "key": _parse_bytes,
    "offset": parse_uint,
    "limit": parse_uint,
    "count_total": _parse_bool,
    "reverse": _parse_bool,
}


@attrs.frozen
class ChosenRows:
    """Which rows are on a page, by their number in the store, and what the answer says of the others."""

    numbers: tuple[int, ...]
    next_key: bytes | None
    """The raw key of the next page's first row, None on the last page."""
    total: int
    """How many rows there are, 0 when they were not counted."""

    def pagination(self) -> dict[str, str | None]:
        """Return the answer's ``pagination``."""
        next_key = None if self.next_key is None else base64.b64encode(self.next_key).decode()
        return {"next_key": next_key, "total": str(self.total)}


def paginate(keys: Sequence[bytes], request: PageRequest, *, error_code: int = 13) -> ChosenRows:
    """Choose the rows of a page from all raw keys of a store in byte order; *error_code* is what it refuses with."""
    if request.key and request.offset:
        raise Refusal(
            status=500, code=error_code, message="invalid request, either offset or key is expected, got both"
        )
    limit = request.limit or DEFAULT_LIMIT
    numbers: range = range(len(keys))
    if request.key:
        at = bisect_left(keys, request.key)
        # Backwards, the key's own row is the first of the page.
        numbers = range(min(at, len(keys) - 1), -1, -1) if request.reverse else range(at, len(keys))
    elif request.reverse:
        numbers = range(len(keys) - 1, -1, -1)
    counted = (request.count_total or not request.limit) and not request.key
    rest = numbers[request.offset :]
    return ChosenRows(
        numbers=tuple(rest[:limit]),
        next_key=keys[rest[limit]] if len(rest) > limit else None,
        total=len(keys) if counted else 0,
    )
