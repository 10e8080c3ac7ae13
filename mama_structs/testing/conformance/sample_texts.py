"""Texts that tell by their name what they must be, and share words where a check wants them to."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

_FIRST: Final = "bdfgklmnprstvzhj"
_THEN: Final = ("a", "e", "i", "o", "u", "ai", "an", "ar", "el", "er", "in", "on", "or", "ul", "un", "ou")
_SYLLABLES: Final = 3


def words_of(tag: str, count: int = 12) -> list[str]:
    """Return made-up words that follow from a name, and that no other name has."""
    digest = blake2b(tag.encode(), digest_size=_SYLLABLES * count).digest()
    syllables = [_FIRST[byte >> 4] + _THEN[byte & 15] for byte in digest]
    return ["".join(syllables[at : at + _SYLLABLES]) for at in range(0, len(syllables), _SYLLABLES)]


def text_of(tag: str, about: Sequence[str] = ()) -> str:
    """Return the text that is saved under a name, with words that others have, too."""
    return " ".join([*about, *words_of(tag)])


def long_text_of(tag: str) -> str:
    """Return a text that needs about a page of a file."""
    return " ".join(word for part in range(30) for word in words_of(f"{tag}-{part}"))
