"""
Fenced blocks of a text that is there as a whole, line by line, as Markdown has them.

`mama_structs.descriptors.code` finds the same in text that comes in pieces, for the parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

# Blanks that may stand before a fence; with more it is an indented line.
_INDENT: Final = 3
_FENCE: Final = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})(?P<info>[^\r\n]*)\r?\Z")
_MAY_BE_FENCE: Final = re.compile(r"^ {0,3}(?:```|~~~)[^\n]*", re.MULTILINE)


@attrs.frozen
class Fence:
    """
    The line that opens a fenced block.

    Args:
        mark: The character that it is made of.
        length: How many of them.
        info: What stands behind them, without blanks around it.

    """

    mark: str
    length: int
    info: str

    def closed_by(self, line: str) -> bool:
        """Tell whether *line* (without its line break) closes the block."""
        stripped = line.lstrip(" ")
        marks = stripped.rstrip(" \t\r")
        indent = len(line) - len(stripped)
        return indent <= _INDENT and len(marks) >= self.length and marks == self.mark * len(marks)


def opening_fence(line: str) -> Fence | None:
    """Read a line (without its line break) that opens a fenced block; None when it opens none."""
    found = _FENCE.match(line)
    if found is None:
        return None
    marks, info = found["marks"], found["info"].strip()
    # With a backtick behind it, it is a code span.
    return None if marks[0] == "`" and "`" in info else Fence(marks[0], len(marks), info)


def language_of(info: str) -> str | None:
    """Read the language from what stands behind a fence: its first word, in lower case."""
    words = info.replace("{", " ").replace("}", " ").replace(",", " ").split(maxsplit=1)
    if not words or "=" in words[0]:
        return None
    word = words[0].partition(":")[0].lstrip(".").lower()[:40]
    return word or None


@attrs.frozen
class Block:
    """
    A fenced block; all positions count from 0.

    Args:
        info: What stands behind the opening fence.
        opening: Where the opening fence's line begins.
        start: Where the content begins.
        end: Behind the content's last character, its last line break not counted.
        behind: Where the line behind the closing fence begins, or would.

    """

    info: str
    opening: int
    start: int
    end: int
    behind: int


def fenced_blocks(text: str, *, marked: Sequence[tuple[int, int]] = ()) -> Iterator[Block]:
    """
    Find the fenced blocks of a text, whatever stands in them; one that is not closed runs to the end.

    Args:
        text: All of it.
        marked: From where to where refs reach, in order; what they touch is no block.

    """
    fence, opened = None, (0, 0)
    refs = Marked(marked)
    for line in _MAY_BE_FENCE.finditer(text):
        if fence is not None and refs.touches(opened[0], line.end()):
            fence = None
        if fence is None:
            if not refs.touches(*line.span()):
                fence, opened = opening_fence(line[0]), line.span()
        elif fence.closed_by(line[0]):
            start = opened[1] + 1
            end = max(start, _before_break(text, line.start()))
            yield Block(fence.info, opened[0], start, end, line.end() + 1)
            fence = None
    start = opened[1] + 1
    if fence is not None and start < len(text) and not refs.touches(opened[0], len(text)):
        end = _before_break(text, len(text)) if text.endswith("\n") else len(text)
        yield Block(fence.info, opened[0], start, max(start, end), len(text))


class Marked:
    """Tells what refs touch; asked from the beginning to the end, so that all questions take one pass."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        self._spans = spans
        self._current = 0

    def touches(self, start: int, end: int) -> bool:
        """Tell whether a ref reaches into a stretch, or up to it."""
        while self._current < len(self._spans) and self._spans[self._current][1] <= start:
            self._current += 1
        return self._current < len(self._spans) and self._spans[self._current][0] <= end


def _before_break(text: str, position: int) -> int:
    """Step back over the line break that ends at *position*."""
    return position - 2 if text[position - 2 : position] == "\r\n" else position - 1
