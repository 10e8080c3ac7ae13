"""Reading a part of a content by page, line or character, and saying what comes next."""

from __future__ import annotations

from typing import Literal

import attrs

from mama_structs.descriptors.content import Content
from mama_structs.descriptors.pages import Pages
from mama_structs.errors import InvalidPage, InvalidParameter, InvalidRange

Mode = Literal["page", "line", "char"]
_UNITS = {"page": "page", "line": "line", "char": "character"}
# Longer numbers are described: Python refuses to print very long ones.
_PRINTED = 10**18


@attrs.frozen(kw_only=True, repr=False)
class Excerpt:
    """
    A part of a content. Pages, lines and characters count from 1.

    Args:
        handle: What was read.
        text: The part, exactly.
        mode: The unit of *start*, *count*, *remaining* and *next_start*; ``"all"`` for the whole.
        start: The first page, line or character; 1 for the whole.
        count: How many there are of them, at most as many as asked for; 1 for the whole.
        page: The page that this is, None unless it is exactly one, read in page mode.
        pages: Pages of the content.
        first_char: Its first character.
        last_char: Its last character, one less than *first_char* in an empty content.
        first_line: The line of its first character.
        last_line: The line of its last character.
        total_chars: Characters of the content.
        total_lines: Lines of the content.
        starts_in_line: Whether it begins inside a line.
        ends_in_line: Whether it ends inside a line.
        next_start: The *start* that reads on, None at the end.
        next_char: The character that comes next, None at the end.
        remaining: Pages, lines or characters that follow.
        remaining_chars: Characters that follow.

    """

    handle: str
    text: str
    mode: Literal["page", "line", "char", "all"]
    start: int
    count: int
    page: int | None
    pages: int
    first_char: int
    last_char: int
    first_line: int
    last_line: int
    total_chars: int
    total_lines: int
    starts_in_line: bool
    ends_in_line: bool
    next_start: int | None
    next_char: int | None
    remaining: int
    remaining_chars: int

    def __repr__(self) -> str:
        what = self.mode if self.mode == "all" else f"{self.mode} {self.start}"
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return (
            f"<Excerpt of {self.handle}: {what}{more}, "
            f"characters {self.first_char} to {self.last_char} of {self.total_chars}>"
        )


def read(
    content: Content,
    *,
    handle: str,
    page_size: int,
    mode: Mode = "page",
    start: int = 1,
    count: int = 1,
    read_all: bool = False,
) -> Excerpt:
    """
    Read a part of a content.

    Args:
        content: What is read.
        handle: Its handle, for the answer and for errors.
        page_size: Characters that a page holds at the most.
        mode: The unit of *start* and *count*.
        start: The first page, line or character, from 1.
        count: How many; what is beyond the end is left out.
        read_all: The whole content, whatever *mode*, *start* and *count* say.

    Raises:
        InvalidPage: There is no such page.
        InvalidRange: There is no such line or character.
        InvalidParameter: *mode* is none, *count* is below 1, or something has the wrong type.

    """
    if not isinstance(read_all, bool):
        raise InvalidParameter(
            f"read_all must be true or false, got {read_all!r:.80}", parameter="read_all", handle=handle
        )
    pages = content.pages(page_size)
    if read_all:
        return _excerpt(content, pages, (0, content.chars), handle=handle, mode="all", start=1, count=1, total=1)
    if not isinstance(mode, str) or mode not in _UNITS:
        raise InvalidParameter(f"mode must be page, line or char, got {mode!r:.80}", parameter="mode", handle=handle)
    for name, value in (("start", start), ("count", count)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidParameter(f"{name} must be a whole number, got {value!r:.80}", parameter=name, handle=handle)
    total = {"page": len(pages), "line": content.lines, "char": max(1, content.chars)}[mode]
    if not 1 <= start <= total:
        error = InvalidPage if mode == "page" else InvalidRange
        message = f"{handle} has no {_UNITS[mode]} {_printed(start)}"
        raise error(message, valid=(1, total), handle=handle)
    if count < 1:
        raise InvalidParameter(f"count must be 1 or more, got {_printed(count)}", parameter="count", handle=handle)
    count = min(count, total - start + 1)
    bounds = _bounds(pages, mode, start, start + count - 1)
    return _excerpt(content, pages, bounds, handle=handle, mode=mode, start=start, count=count, total=total)


def _bounds(pages: Pages, mode: Mode, first: int, last: int) -> tuple[int, int]:
    """Return the offsets of the first character and of the one after the last."""
    if mode == "page":
        return pages.bounds(first, last)
    if mode == "line":
        return pages.line_start(first), pages.line_start(last + 1)
    return first - 1, min(last, len(pages.text))


def _excerpt(
    content: Content,
    pages: Pages,
    bounds: tuple[int, int],
    *,
    handle: str,
    mode: Literal["page", "line", "char", "all"],
    start: int,
    count: int,
    total: int,
) -> Excerpt:
    begin, end = bounds
    following = start + count
    return Excerpt(
        handle=handle,
        text=content.text[begin:end],
        mode=mode,
        start=start,
        count=count,
        page=start if mode == "page" and count == 1 else None,
        pages=len(pages),
        first_char=begin + 1,
        last_char=end,
        first_line=pages.line_at(begin),
        last_line=pages.line_at(max(begin, end - 1)),
        total_chars=content.chars,
        total_lines=content.lines,
        starts_in_line=_inside_line(content, begin),
        ends_in_line=_inside_line(content, end),
        next_start=following if following <= total else None,
        next_char=end + 1 if end < content.chars else None,
        remaining=total - following + 1,
        remaining_chars=content.chars - end,
    )


def _inside_line(content: Content, offset: int) -> bool:
    """Tell whether a line has characters both before and after this offset."""
    return 0 < offset < content.chars and content.text[offset - 1] != "\n"


def _printed(number: int) -> str:
    return str(number) if abs(number) < _PRINTED else "a number of more than 18 digits"
