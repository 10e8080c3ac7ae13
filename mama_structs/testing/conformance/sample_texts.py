"""Deterministic texts that are derived from a tag. Two texts share words only if a check passes shared words."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

_CONSONANTS: Final = "bdfgklmnprstvzhj"
_VOWEL_GROUPS: Final = ("a", "e", "i", "o", "u", "ai", "an", "ar", "el", "er", "in", "on", "or", "ul", "un", "ou")
_SYLLABLES_PER_WORD: Final = 3


def make_words(tag: str, count: int = 12) -> list[str]:
    """Return invented words for a tag. Different tags produce different words."""
    digest = blake2b(tag.encode(), digest_size=_SYLLABLES_PER_WORD * count).digest()
    syllables = [_CONSONANTS[byte >> 4] + _VOWEL_GROUPS[byte & 15] for byte in digest]
    return ["".join(syllables[at : at + _SYLLABLES_PER_WORD]) for at in range(0, len(syllables), _SYLLABLES_PER_WORD)]


def make_text(tag: str, shared_words: Sequence[str] = ()) -> str:
    """Return the text for a tag, preceded by *shared_words*, which several texts may have in common."""
    return " ".join([*shared_words, *make_words(tag)])


def make_long_text(tag: str) -> str:
    """Return a text of about one page of a file."""
    return " ".join(word for part in range(30) for word in make_words(f"{tag}-{part}"))
