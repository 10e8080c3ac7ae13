"""Cursors: the positions after which `MemoryStore.list` and `MemoryStore.links` continue."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from mama_structs.errors import InvalidArgument
from mama_structs.memory.types.engine import Reader
from mama_structs.memory.types.model import MAX_ID_CHARS, Link

# Clients can change a cursor, so reject numbers outside the range of the engines.
_Milliseconds = Annotated[int, Meta(ge=0, le=2**53)]
_Id = Annotated[str, Meta(max_length=MAX_ID_CHARS)]


class CursorPosition(msgspec.Struct, frozen=True, array_like=True):
    """
    The last returned memory, and for lists of links the last returned link.

    Args:
        created_ms: The memory's creation time in milliseconds since 1970.
        memory_id: The id of the memory. If it is empty, the position is before all memories of its millisecond.
        link_time: The link's creation time.
        link_id: The id of the link.

    """

    created_ms: _Milliseconds = 0
    memory_id: _Id = ""
    link_time: Annotated[datetime, Meta(tz=True)] | None = None
    link_id: _Id = ""

    def links_after(self, links: Sequence[Link]) -> list[Link]:
        """Return the links after this position. They must be in the order of `Reader.links_of_many`."""
        if self.link_time is None:
            return list(links)
        last = self.link_time, self.link_id
        return [link for link in links if (link.created_at, link.id) > last]


Positions: TypeAlias = Mapping[str, CursorPosition]
"""The position in each namespace, which starts at its beginning if it has no entry."""


class _CursorContent(msgspec.Struct, frozen=True, array_like=True):
    """The listed items and their order, the namespaces that the call reads, and the positions in them."""

    listing: str
    namespaces: tuple[str, ...]
    positions: dict[str, CursorPosition]


BEGINNING: Final = CursorPosition()
"""The position before the first memory of a namespace, in the order of creation."""
_decode: Final = msgspec.json.Decoder(_CursorContent).decode
MAX_NODE: Final = 2**62
"""A number above every node."""


def format_cursor(positions: Positions | None, listing: str, namespaces: Sequence[str]) -> str | None:
    """
    Return a cursor as URL-safe text, or None after the last page.

    Args:
        positions: The positions after the page; None if it is the last one.
        listing: The call with its items and their order, such as ``list(order='newest')``.
        namespaces: The namespaces that the call reads.

    """
    if positions is None:
        return None
    data = msgspec.json.encode(_CursorContent(listing, tuple(namespaces), dict(positions)))
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def parse_cursor(text: object, listing: str, namespaces: Sequence[str]) -> Positions:
    """
    Return the positions of a cursor; None is the first page.

    Raise `InvalidArgument` if the cursor was made for another listing or for other namespaces; see `format_cursor`.
    """
    if text is None:
        return {}
    try:
        data = base64.b64decode(f"{text}{'=' * (-len(str(text)) % 4)}", altchars=b"-_", validate=True)
        cursor = _decode(data)
    except (binascii.Error, UnicodeEncodeError, ValueError, msgspec.MsgspecError):
        raise InvalidArgument("cursor is not the next_cursor of a page", hint="pass page.next_cursor") from None
    if (cursor.listing, cursor.namespaces) != (listing, tuple(namespaces)):
        hint = "pass the next_cursor of the page before, with the same order, memory and namespaces"
        raise InvalidArgument(f"cursor belongs to another call than {listing}", hint=hint)
    return cursor.positions


def find_bound(reader: Reader, position: CursorPosition | None, *, newest_first: bool) -> tuple[int, int] | None:
    """
    Return the time and the node after which `Reader.window` continues, or None for the beginning.

    If the memory at the position was deleted, others that were created in the same millisecond are returned again.
    """
    if position is None:
        return None
    node = reader.find(position.memory_id)
    if node is None:
        node = MAX_NODE if newest_first else -1
    return position.created_ms, node
