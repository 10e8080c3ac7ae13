"""Deterministic texts derived from a tag. Texts share words only if a check requests it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

_FIRST: Final = "bdfgklmnprstvzhj"
_THEN: Final = ("a", "e", "i", "o", "u", "ai", "an", "ar", "el", "er", "in", "on", "or", "ul", "un", "ou")
_SYLLABLES: Final = 3


def words_of(tag: str, count: int = 12) -> list[str]:
    """Return invented words derived from a tag. No other tag produces them."""
    digest = blake2b(tag.encode(), digest_size=_SYLLABLES * count).digest()
    syllables = [_FIRST[byte >> 4] + _THEN[byte & 15] for byte in digest]
    return ["".join(syllables[at : at + _SYLLABLES]) for at in range(0, len(syllables), _SYLLABLES)]


def text_of(tag: str, about: Sequence[str] = ()) -> str:
    """Return the text for a tag, preceded by the words *about*, which other texts may share."""
    return " ".join([*about, *words_of(tag)])


def long_text_of(tag: str) -> str:
    """Return a text of about one page of a file."""
    return " ".join(word for part in range(30) for word in words_of(f"{tag}-{part}"))
