"""Ids of memories and links, and the time in them."""

from __future__ import annotations

import re
import secrets
import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Final

from mama_structs.memory.model import MemoryType

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SLUG_LENGTH: Final = 50
_NO_LETTERS: Final = re.compile(r"[\W_]+")


def new_id(kind: MemoryType, title: str, created_at: datetime) -> str:
    """
    Return an id for a new memory: ``<type>_<slug>_<milliseconds>_<8 hexadecimal digits>``.

    Args:
        kind: The memory's type.
        title: What the readable part is made of: letters and digits of any script (NFC) are kept.
        created_at: When it was made.

    """
    return f"{kind.value}_{slug(title)}_{milliseconds(created_at)}_{secrets.token_hex(4)}"


def new_link_id() -> str:
    """Return an id for a new link."""
    return f"link_{secrets.token_hex(12)}"


def slug(title: str) -> str:
    """Return the readable part of an id: lower case, other characters than letters and digits become ``_``."""
    words = _NO_LETTERS.sub("_", unicodedata.normalize("NFC", title[: 8 * _SLUG_LENGTH]).lower())
    return words.strip("_")[:_SLUG_LENGTH].strip("_") or "untitled"


def milliseconds(moment: datetime) -> int:
    """Return a time (with a time zone) as whole milliseconds since 1970 (UTC)."""
    return (moment - _EPOCH) // _MILLISECOND


def from_milliseconds(count: int) -> datetime:
    """Return the time (UTC) of whole milliseconds since 1970."""
    return _EPOCH + timedelta(milliseconds=count)
