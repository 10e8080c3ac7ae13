"""Cursors: the positions after which `MemoryStore.list` and `MemoryStore.links` continue."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from mama_structs.errors import InvalidArgument
from mama_structs.memory.types.engine import Reader
from mama_structs.memory.types.model import MAX_ID_CHARS

Cursor: TypeAlias = dict[str, tuple[int, str, int]]
"""
The position in each namespace, which starts at its beginning if it has no entry.

A position consists of the last memory's creation time in milliseconds since 1970, its id, and the number of its links
on the pages so far.
"""


BEGINNING: Final = (0, "", 0)
"""The position before the first memory of a namespace, in the order of creation."""
# Clients can change a cursor, so reject numbers outside the range of the engines.
_Number = Annotated[int, Meta(ge=0, le=2**53)]
_decode: Final = msgspec.json.Decoder(
    dict[str, tuple[_Number, Annotated[str, Meta(max_length=MAX_ID_CHARS)], _Number]]
).decode
MAX_NODE: Final = 2**62
"""A number above every node."""


def format_cursor(position: Cursor) -> str:
    """Return a cursor as URL-safe text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def parse_cursor(text: object, name: str = "cursor") -> Cursor:
    """Return the position of a cursor; None is the first page."""
    if text is None:
        return {}
    try:
        data = base64.b64decode(f"{text}{'=' * (-len(str(text)) % 4)}", altchars=b"-_", validate=True)
        return _decode(data)
    except (binascii.Error, UnicodeEncodeError, ValueError, msgspec.MsgspecError):
        raise InvalidArgument(f"{name} is not the next_cursor of a page", hint="pass page.next_cursor") from None


def find_bound(reader: Reader, position: tuple[int, str, int] | None, *, newest_first: bool) -> tuple[int, int] | None:
    """
    Return the time and the node after which `Reader.window` continues, or None for the beginning.

    A position without an id is before all memories of its millisecond. If the memory at the position was deleted,
    others that were created in the same millisecond are returned again.
    """
    if position is None:
        return None
    created_ms, memory_id, _ = position
    node = reader.find(memory_id)
    if node is None:
        node = MAX_NODE if newest_first else -1
    return created_ms, node
