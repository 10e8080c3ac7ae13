"""Comparison of two texts by words, for people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from markupsafe import Markup

from mama_structs.ui.rendering import show_text

# The comparison takes quadratic time in the worst case. Longer changes are shown as one removed and one added part.
_MAX_COMPARISONS: Final = 100_000
_WORD_PATTERN: Final = re.compile(r"\w+|\s+|[^\w\s]")

Part = tuple[Literal["equal", "del", "ins"], str]


def compare_words(before: str, after: str) -> list[Part]:
    """Return the parts of two texts in order: equal, removed and added ones."""
    old, new = _WORD_PATTERN.findall(before), _WORD_PATTERN.findall(after)
    start = _count_equal(old, new)
    end = _count_equal(old[start:][::-1], new[start:][::-1])
    old_middle, new_middle = old[start : len(old) - end], new[start : len(new) - end]
    parts: list[Part] = [("equal", "".join(old[:start]))]
    if len(old_middle) * len(new_middle) > _MAX_COMPARISONS:
        parts += [("del", "".join(old_middle)), ("ins", "".join(new_middle))]
    else:
        matcher = difflib.SequenceMatcher(_is_space, old_middle, new_middle, autojunk=False)
        for kind, a, b, c, d in matcher.get_opcodes():
            parts += (
                [("equal", "".join(old_middle[a:b]))]
                if kind == "equal"
                else [("del", "".join(old_middle[a:b])), ("ins", "".join(new_middle[c:d]))]
            )
    parts.append(("equal", "".join(old[len(old) - end :])))
    return [part for part in parts if part[1]]


def show_difference(before: str, after: str) -> Markup:
    """Return both texts as one for a page, with ``del`` around removed and ``ins`` around added words."""
    return Markup("").join(_show_parts(compare_words(before, after)))


def _show_parts(parts: Sequence[Part]) -> Iterator[Markup]:
    for kind, text in parts:
        shown = show_text(text)
        yield shown if kind == "equal" else Markup("<{}>{}</{}>").format(kind, shown, kind)


def _count_equal(old: Sequence[str], new: Sequence[str]) -> int:
    return next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def _is_space(word: str) -> bool:
    return word.isspace()
