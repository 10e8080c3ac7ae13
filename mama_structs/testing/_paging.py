"""Paging as the Cosmos SDK does it, oddities included."""

from __future__ import annotations

import base64
import binascii
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
        self.status = status
        self.code = code
        self.message = message


def parse_uint(text: str, *, where: str) -> int:
    """Read a uint64 as Go does: ASCII digits, nothing else."""
    if text.isascii() and text.isdecimal() and int(text) <= _MAX_UINT64:
        return int(text)
    raise Refusal(
        status=400,
        code=3,
        message=f'type mismatch, parameter: {where}, error: strconv.ParseUint: parsing "{text}": invalid syntax',
    )


def _parse_bool(text: str, *, where: str) -> bool:
    if text in _BOOLS:
        return _BOOLS[text]
    raise Refusal(
        status=400,
        code=3,
        message=f'type mismatch, parameter: {where}, error: strconv.ParseBool: parsing "{text}": invalid syntax',
    )


def _parse_bytes(text: str, *, where: str) -> bytes:
    for alphabet in (None, b"-_"):
        try:
            return base64.b64decode(text, altchars=alphabet, validate=True)
        except (binascii.Error, ValueError):
            continue
    raise Refusal(
        status=400, code=3, message=f"type mismatch, parameter: {where}, error: illegal base64 data at input byte 0"
    )


@attrs.frozen
class PageRequest:
    """
    What a query asks of a list.

    Args:
        key: Where to go on, as the node gave it in ``next_key``; empty for the beginning.
        offset: How many rows to pass over.
        limit: How many rows to look at; 0 stands for 100 and asks for the total too.
        count_total: Whether to count all rows; ignored with a key.
        reverse: Whether to go from the end to the beginning.

    """

    key: bytes = b""
    offset: int = 0
    limit: int = 0
    count_total: bool = False
    reverse: bool = False

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> PageRequest:
        """Read the parameters named ``pagination.*``; all others are ignored."""

        def read(name: str, parse: Any) -> Any:
            where = f"pagination.{name}"
            return {name: parse(query[where], where=where)} if query.get(where) else {}

        return cls(
            **read("key", _parse_bytes),
            **read("offset", parse_uint),
            **read("limit", parse_uint),
            **read("count_total", _parse_bool),
            **read("reverse", _parse_bool),
        )


@attrs.frozen
class Page:
    """
    Which rows are on a page, by number, and what the answer says of the others.

    Args:
        numbers: The rows' numbers in the store's own order.
        next_key: The raw key of the next page's first row, None on the last page.
        total: How many rows there are, 0 when they were not counted.

    """

    numbers: tuple[int, ...]
    next_key: bytes | None
    total: int

    def pagination(self) -> dict[str, str | None]:
        """Return the answer's ``pagination``."""
        next_key = None if self.next_key is None else base64.b64encode(self.next_key).decode()
        return {"next_key": next_key, "total": str(self.total)}


def paginate(keys: Sequence[bytes], request: PageRequest, *, error_code: int = 13) -> Page:
    """
    Choose the rows of a page.

    Args:
        keys: All raw keys of the store in byte order.
        request: What was asked.
        error_code: The gRPC code with which this store refuses.

    """
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
    return Page(
        numbers=tuple(rest[:limit]),
        next_key=keys[rest[limit]] if len(rest) > limit else None,
        total=len(keys) if counted else 0,
    )
