"""Words and colours for the parts of a hit's score, as a user reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

MIN_SHOWN_VALUE: Final = 0.005
"""Smaller parts are omitted, because they are 0.00 when rounded."""
_DEFAULT_COLOUR: Final = "#777777"


class ScorePart(NamedTuple):
    """
    A part of a score.

    Args:
        part: Its name in `Hit.terms`.
        words: A label of at most four words for a user.
        value: The amount that it adds to the score. It is negative if it lowers the score.

    """

    part: str
    words: str
    value: float

    @property
    def colour(self) -> str:
        """The colour of the part in plots and pages. It is readable on light and dark pages."""
        return _STYLES[self.part].colour if self.part in _STYLES else _DEFAULT_COLOUR


class _Style(NamedTuple):
    colour: str
    words: str
    words_if_negative: str | None = None
    """Label of a negative value, None if it is the same."""


# In the order in which the parts are shown.
_STYLES: Final[Mapping[str, _Style]] = {
    "meaning": _Style("#3b7dd8", "similar meaning", "different meaning"),
    "words": _Style("#1f9e89", "same words"),
    "period": _Style("#c2679f", "in the requested period"),
    "neighbour": _Style("#8a63d2", "saved near a match"),
    "links": _Style("#c98a1b", "linked to a match"),
    "topic": _Style("#7a8b2f", "topic of a match"),
    "recency": _Style("#4fa3c7", "recent"),
    "outcome": _Style("#d1495b", "its outcome matches", "listed after its decision"),
    "superseded": _Style("#a5643a", "replaces a match", "replaced"),
    "questions": _Style("#9a9a9a", "asks a question"),
    "place": _Style(_DEFAULT_COLOUR, "moved up", "moved down"),
}
SCORE_PARTS: Final = tuple(_STYLES)
"""Names of all parts that a score can have."""


class ScoredResult(Protocol):
    """A result with the terms of its score, such as `Hit` and `Explanation`."""

    @property
    def terms(self) -> Mapping[str, float]:
        """Terms that add up to the score, by name."""


def describe_score_parts(result: ScoredResult) -> list[ScorePart]:
    """
    Return the parts of a score in words, in a fixed order, with the parts that lower the score last.

    Parts that are 0.00 when rounded are omitted. A part without words of its own keeps its name.
    """
    order = {part: place for place, part in enumerate(_STYLES)}
    shown = [(part, value) for part, value in result.terms.items() if abs(value) >= MIN_SHOWN_VALUE]
    shown.sort(key=lambda one: (one[1] < 0, order.get(one[0], len(order))))
    return [ScorePart(part, _find_words(part, value), value) for part, value in shown]


def _find_words(part: str, value: float) -> str:
    style = _STYLES.get(part)
    if style is None:
        return part
    return (style.words_if_negative if value < 0 else None) or style.words
