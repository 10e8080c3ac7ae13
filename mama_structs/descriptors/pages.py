"""
Where the pages and lines of a text begin.

Offsets here count from 0, as in Python; pages and lines count from 1, as everywhere in this package.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import attrs

from mama_structs.errors import InvalidArgument

# Four bytes an entry while they suffice, which for a text in memory they nearly always do.
_SMALL = 2**32


def count_lines(text: str) -> int:
    """
    Count lines: one ends after each line feed, and what follows the last is one more.

    A carriage return alone ends no line, a line feed at the end begins none, and an empty text is one empty line.
    """
    return text.count("\n") + (not text.endswith("\n"))


def check_page_size(page_size: object) -> None:
    """Raise `InvalidArgument` unless this is a whole number of 1 or more."""
    if not isinstance(page_size, int) or isinstance(page_size, bool) or page_size < 1:
        raise InvalidArgument(f"page_size must be a whole number of 1 or more, got {page_size!r:.80}")


def page_ends(text: str, page_size: int) -> Iterator[int]:
    """
    Yield the offset after each page, in order; the last one is the text's length.

    A page ends after its last line feed, or, within a line that is longer than a page, after *page_size* characters.
    It never ends between a carriage return and its line feed, unless a page has room for only one of them.
    """
    end, total = 0, len(text)
    while True:
        end = _end_of_page(text, end, end + page_size, total)
        yield end
        if end == total:
            return


def _end_of_page(text: str, start: int, limit: int, total: int) -> int:
    if limit >= total:
        return total
    after_line = text.rfind("\n", start, limit) + 1
    if after_line:
        return after_line
    splits_crlf = text[limit - 1] == "\r" and text[limit] == "\n"
    return limit - 1 if splits_crlf and limit - 1 > start else limit


@attrs.frozen(eq=False, repr=False)
class Pages:
    """
    An index of a text's pages, in which finding a page, line or character costs a page and not the text.

    Args:
        text: What is divided.
        page_size: Characters that a page holds at the most.
        lines: Lines of the whole text.

    """

    text: str
    page_size: int
    lines: int
    _starts: Sequence[int]
    _first_lines: Sequence[int]

    @classmethod
    def of(cls, text: str, page_size: int) -> Pages:
        """
        Divide a text into pages.

        Raises:
            InvalidArgument: *page_size* is no whole number of 1 or more.

        """
        check_page_size(page_size)
        code = "I" if len(text) < _SMALL else "Q"
        starts, first_lines = array(code), array(code)
        start, line = 0, 1
        for end in page_ends(text, page_size):
            starts.append(start)
            first_lines.append(line)
            line += text.count("\n", start, end)
            start = end
        lines = line - text.endswith("\n")
        return cls(text, page_size, lines, starts, first_lines)

    def __len__(self) -> int:
        return len(self._starts)

    def __repr__(self) -> str:
        return f"<Pages: {len(self)} of at most {self.page_size} characters, {self.lines} lines>"

    def bounds(self, first: int, last: int) -> tuple[int, int]:
        """Return the offsets at which page *first* begins and after which page *last* ends."""
        if not 1 <= first <= last <= len(self):
            raise InvalidArgument(f"there are no pages {first} to {last}: there are {len(self)}")
        return self._starts[first - 1], self._starts[last] if last < len(self) else len(self.text)

    def page_at(self, offset: int) -> int:
        """Return the page that holds this offset; the text's length is in the last one."""
        self._check(offset)
        return bisect_right(self._starts, offset)

    def line_at(self, offset: int) -> int:
        """Return the line that holds this offset; the text's length is in the last one."""
        page = self.page_at(offset) - 1
        line = self._first_lines[page] + self.text.count("\n", self._starts[page], offset)
        return min(line, self.lines)

    def line_start(self, line: int) -> int:
        """Return the offset at which a line begins; the line after the last one begins at the text's length."""
        if not 1 <= line <= self.lines + 1:
            raise InvalidArgument(f"there is no line {line}: there are {self.lines}")
        if line == 1:
            return 0
        if line > self.lines:
            return len(self.text)
        # The line begins in the page before the first one that begins with it or with a later one, or at its end.
        page = bisect_left(self._first_lines, line) - 1
        start, end = self.bounds(page + 1, page + 1)
        breaks = line - self._first_lines[page]
        return end - len(self.text[start:end].split("\n", breaks)[breaks])

    def _check(self, offset: int) -> None:
        if not 0 <= offset <= len(self.text):
            raise InvalidArgument(f"there is no offset {offset}: there are {len(self.text)} characters")
