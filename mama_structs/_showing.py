"""
How things show themselves: in one line for a terminal, and in HTML for a notebook.

Texts may be anybody's: they are cut, control and bidirectional characters become visible, and HTML holds them escaped.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from itertools import accumulate
from typing import Final, NamedTuple

WIDTH: Final = 120
"""Columns of a line at the most."""
_TEXT: Final = 24  # Columns that a text has at the least, whatever stands beside it.
_WORD: Final = 24  # Columns of a fact that is anybody's word.
_END: Final = 22  # Columns of the time and the number at the end of a memory's id.
_LINES: Final = 20
# Cut before anything is done with it.
_READ: Final = 8


class Seen(NamedTuple):
    """What is shown of something."""

    text: str
    facts: tuple[str | None, ...] = ()
    """A word or two each, None for nothing."""
    id: str = ""
    other: tuple[str, str] | None = None
    """A second text, and the word between both."""


class Showing:
    """Shows itself in one line, its text first."""

    __slots__ = ()

    def _seen(self) -> Seen:
        raise NotImplementedError

    def __repr__(self) -> str:
        return line(type(self).__name__, self._seen())


def visible(text: str) -> str:
    """Return a line as a terminal may show it: it obeys what is not printable, and a memory may be anybody's."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def short(text: str, most: int) -> str:
    """Return the beginning of a text in one visible line of so many columns at the most."""
    signs = [visible(sign) for sign in " ".join(text[: _READ * most].split())]
    # No sign counts as none, or a line of marks would have no end.
    ends = list(accumulate(map(_columns, signs)))
    if not text[_READ * most :].strip() and (not ends or ends[-1] <= most):
        return "".join(signs)
    return f"{''.join(signs[: bisect_right(ends, most - 1)])}…"


def line(name: str, seen: Seen, *, opening: str = "<", closing: str = ">") -> str:
    """Return one line of at most `WIDTH` columns, in which the texts stand first and have what room the facts leave."""
    texts = [seen.text] if seen.other is None else [seen.text, seen.other[1]]
    between = "" if seen.other is None else f" {short(seen.other[0], _WORD)} "
    facts = [short(fact, _WORD) for fact in seen.facts if fact]
    taken = _columns(f"{opening}{name}{between}{', '.join([*facts, ''])}{closing}") + 2 + 2 * len(texts)
    if seen.id:
        room = WIDTH - taken - sum(min(_TEXT, _columns(short(text, _TEXT))) for text in texts)
        id_ = _id(visible(seen.id), room)
        facts.append(id_)
        taken += _columns(id_)
    shown = [_quoted(short(text, (WIDTH - taken) // len(texts))) for text in texts]
    return f"{opening}{name}{' ' if name else ''}{between.join(shown)}{' ' if facts else ''}{', '.join(facts)}{closing}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number with the word for so many."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def lines(items: list[str]) -> str:
    """Return lines under each other, and how many more there are."""
    more = len(items) - _LINES
    return "\n".join([*items[:_LINES], *([f"… {more:,} more"] if more > 0 else [])])


def _quoted(text: str) -> str:
    return f'"{text}"' if "'" in text else f"'{text}'"


def _id(text: str, most: int) -> str:
    """Return an id, without its middle where it is too long: at its end ids differ."""
    if _columns(text) <= most:
        return text
    return short(text[:-_END], most - _columns(text[-_END:])) + text[-_END:]


def _columns(text: str) -> int:
    """Return the columns of a terminal that a text takes at the most."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)
