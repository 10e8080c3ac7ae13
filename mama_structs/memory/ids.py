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
_SEVERAL: Final = re.compile(r"_{2,}")
MIN_RANDOM: Final = 4
"""Characters at an id's end in v1.0."""
MAX_RANDOM: Final = 8
"""Characters at an id's end, made at random."""
_ID: Final = re.compile(
    rf"(?:{'|'.join(kind.value for kind in MemoryType)})_\S*_[0-9]{{10,}}_[0-9a-z]{{{MIN_RANDOM},{MAX_RANDOM}}}"
)


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
    text = unicodedata.normalize("NFC", title[: 8 * _SLUG_LENGTH]).lower()
    # Marks belong to the letters of many scripts, and are no letters themselves.
    kept = "".join(letter if unicodedata.category(letter)[0] in "LNM" else "_" for letter in text)
    return _SEVERAL.sub("_", kept).strip("_")[:_SLUG_LENGTH].strip("_") or "untitled"


def is_id(text: str) -> bool:
    """Tell whether a text has the form of a memory's id."""
    return _ID.fullmatch(text) is not None


def milliseconds(moment: datetime) -> int:
    """Return a time (with a time zone) as whole milliseconds since 1970 (UTC)."""
    return (moment - _EPOCH) // _MILLISECOND


def from_milliseconds(count: int) -> datetime:
    """Return the time (UTC) of whole milliseconds since 1970."""
    return _EPOCH + timedelta(milliseconds=count)
