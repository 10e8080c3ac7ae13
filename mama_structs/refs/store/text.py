"""
A text that a handle stands for: its pages and lines, an excerpt, a preview, and what of it a user pasted.

Offsets count from 0, as in Python; pages, lines and characters from 1, as everywhere in this package.
"""

from __future__ import annotations

import functools
import hashlib
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import attrs

from mama_structs._internal import validation as _check
from mama_structs.errors import InvalidArgument, InvalidPage, InvalidParameter, InvalidRange, shown
from mama_structs.refs.markup.fences import Enclosed, enclosed, fenced_blocks

# Four bytes an offset while they suffice, which for a text in memory they nearly always do.
_SMALL: Final = 2**32
# Longer numbers are described: Python refuses to print very long ones.
_PRINTED: Final = 10**18
# Characters of the user's own words that stay in sight at each end; fewer where that leaves too little to put away.
_IN_SIGHT: Final = (1_000, 500, 250, 125)
_BLANK_LINE: Final = re.compile(r"^[^\S\n]*+\n", re.MULTILINE)
_NEXT_BLANK_LINE: Final = re.compile(r"(?<=\n)[^\S\n]*+(?=\n|\Z)")
_UNITS: Final = {"page": "page", "line": "line", "char": "character"}

TEXT: Final = "text/plain"
_MIME_TYPE: Final = re.compile(r"[A-Za-z0-9][\w.+-]{0,60}/[A-Za-z0-9][\w.+-]{0,90}(?:;[ -:<-~]{1,90})?", re.ASCII)

Mode = Literal["page", "line", "char"]
Span = tuple[int, int]


def count_lines(text: str) -> int:
    """Count lines: one ends after each line feed, what follows the last is one more, and an empty text is one."""
    return text.count("\n") + (not text.endswith("\n"))


def page_ends(text: str, page_size: int) -> Iterator[int]:
    """Yield the offset after each page, in order; the last one is the text's length."""
    # After its last line feed, or, within a line that is longer than a page, after *page_size* characters; but not
    # between a carriage return and its line feed, unless a page has room for only one of them.
    start, total = 0, len(text)
    while start + page_size < total:
        limit = start + page_size
        splits_crlf = text[limit - 1] == "\r" and text[limit] == "\n" and page_size > 1
        start = text.rfind("\n", start, limit) + 1 or limit - splits_crlf
        yield start
    yield total


@attrs.frozen(eq=False, repr=False)
class Pages:
    """An index of a text's pages, in which finding a page, line or character costs a page and not the text."""

    text: str
    page_size: int
    lines: int
    _starts: Sequence[int]
    _first_lines: Sequence[int]

    @classmethod
    def of(cls, text: str, page_size: int) -> Pages:
        """Divide a text into pages."""
        _check.whole("page_size", page_size, 1)
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
        if not 0 <= offset <= len(self.text):
            raise InvalidArgument(f"there is no offset {offset}: there are {len(self.text)} characters")
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


@attrs.frozen(repr=False)
class Content:
    """
    A text, or bytes of another MIME type, which never change; made by `Content.of` and `Content.of_bytes`.

    Two are equal when their types and hashes (SHA-256) are.
    Bytes have no text, and no characters, lines or pages.
    """

    text: str = attrs.field(eq=False)
    hash: str
    chars: int = attrs.field(eq=False)
    size: int = attrs.field(eq=False)  # in bytes, of a text those of UTF-8
    lines: int = attrs.field(eq=False)  # of a text at least 1
    mime_type: str = attrs.field(default=TEXT, kw_only=True)
    _bytes: bytes | None = attrs.field(default=None, kw_only=True, eq=False)
    _pages: dict[int, Pages] = attrs.field(factory=dict, init=False, eq=False)

    @classmethod
    def of(cls, text: str) -> Content:
        """Measure a text, or raise `InvalidArgument` where UTF-8 has no bytes for it."""
        if not isinstance(text, str):
            raise InvalidArgument(f"content must be text, got {type(text).__name__}")
        # A subclass may format, escape or translate itself; what is stored is what it holds.
        text = str.__str__(text)
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            position = error.start + 1
        else:
            return cls(text, hashlib.sha256(data).hexdigest(), len(text), len(data), count_lines(text))
        # Raised outside the handler: a UnicodeEncodeError carries the whole text.
        raise InvalidArgument(
            f"character {position} of the content is a lone surrogate, which no file and no model can hold",
            hint="decode it with errors='replace', or remove it",
        )

    @classmethod
    def of_bytes(cls, data: bytes, mime_type: str | None) -> Content:
        """Keep bytes as they are, or raise `InvalidArgument` where they or their type break a rule."""
        if not isinstance(data, bytes):
            raise InvalidArgument(f"data must be bytes, got {type(data).__name__}")
        if not isinstance(mime_type, str) or not _MIME_TYPE.fullmatch(mime_type):
            raise InvalidArgument(
                f"mime_type must be a type such as image/png, got {shown(mime_type)}",
                hint="say what the bytes are",
            )
        return cls("", hashlib.sha256(data).hexdigest(), 0, len(data), 0, mime_type=mime_type.lower(), bytes=data)

    @property
    def is_text(self) -> bool:
        """Whether it can be read."""
        return self._bytes is None

    @property
    def data(self) -> bytes:
        """Its bytes, of a text in UTF-8."""
        return self.text.encode() if self._bytes is None else self._bytes

    @functools.cached_property
    def _enclosed(self) -> Enclosed | None:
        return enclosed(self.text)

    @functools.cached_property
    def body(self) -> Content:
        """The content without the one fence that encloses it and is markup; itself where there is none."""
        return self if self._enclosed is None else Content.of(self._enclosed.text)

    @property
    def language(self) -> str | None:
        """The language that the enclosing fence names."""
        return None if self._enclosed is None else self._enclosed.language

    def pages(self, page_size: int) -> Pages:
        """Return the index of its pages, which is made once for each size."""
        _check.whole("page_size", page_size, 1)
        known = self._pages.get(page_size)
        if known is None:
            # Two threads may both make it; they make the same.
            known = self._pages.setdefault(page_size, Pages.of(self.text, page_size))
        return known

    def __repr__(self) -> str:
        return f"<Content: {self.chars} characters, {self.lines} lines, {self.hash[:12]}>"


# A part


@attrs.frozen(kw_only=True, repr=False)
class Excerpt:
    """A part of a content; pages, lines and characters count from 1."""

    handle: str
    text: str
    mode: Literal["page", "line", "char", "all"]  # the unit of start, count, next_start and remaining
    start: int
    count: int
    page: int | None  # None unless it is exactly one, read in page mode
    pages: int
    first_char: int
    last_char: int  # one less than first_char in an empty content
    first_line: int
    last_line: int
    total_chars: int
    total_lines: int
    starts_in_line: bool
    ends_in_line: bool
    next_start: int | None  # None at the end, as next_char
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
    """Read *count* pages, lines or characters from *start*, as far as there are so many; all of it with *read_all*."""
    refused = functools.partial(InvalidParameter, handle=handle)
    if not isinstance(read_all, bool):
        raise refused(f"read_all must be true or false, got {shown(read_all)}", parameter="read_all")
    pages = content.pages(page_size)
    total, begin, end = 1, 0, content.chars
    if read_all:
        start = count = 1
    else:
        if not isinstance(mode, str) or mode not in _UNITS:
            raise refused(f"mode must be page, line or char, got {shown(mode)}", parameter="mode")
        total = {"page": len(pages), "line": content.lines, "char": max(1, content.chars)}[mode]
        for name, value in (("start", start), ("count", count)):
            if not isinstance(value, int) or isinstance(value, bool):
                raise refused(f"{name} must be a whole number, got {shown(value)}", parameter=name)
        if not 1 <= start <= total:
            error = InvalidPage if mode == "page" else InvalidRange
            raise error(f"{handle} has no {_UNITS[mode]} {printed(start)}", valid=(1, total), handle=handle)
        if count < 1:
            raise refused(f"count must be 1 or more, got {printed(count)}", parameter="count")
        count = min(count, total - start + 1)
        last = start + count - 1
        if mode == "page":
            begin, end = pages.bounds(start, last)
        elif mode == "line":
            begin, end = pages.line_start(start), pages.line_start(last + 1)
        else:
            begin, end = start - 1, min(last, content.chars)
    following = start + count
    return Excerpt(
        handle=handle,
        text=content.text[begin:end],
        mode="all" if read_all else mode,
        start=start,
        count=count,
        page=start if mode == "page" and count == 1 and not read_all else None,
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


def printed(number: int) -> str:
    """Return a number for a message, described where it is long."""
    return str(number) if abs(number) < _PRINTED else "a number of more than 18 digits"


# Beginning and end


@attrs.frozen(kw_only=True, repr=False)
class Preview:
    """The beginning and the end of a content; a line that is cut belongs to both sides of the cut."""

    head: str
    tail: str
    head_lines: Span | None  # the first and the last, wholly or in part; None when it shows nothing
    tail_lines: Span | None
    omitted_chars: int
    omitted_range: Span | None  # the first and the last character
    omitted_lines: Span | None
    head_ends_in_line: bool
    tail_starts_in_line: bool

    def __repr__(self) -> str:
        return f"<Preview: {len(self.head)} characters, {self.omitted_chars} left out, {len(self.tail)} characters>"


def preview(content: Content, *, head: int, tail: int) -> Preview:
    """
    Show at most *head* characters of the beginning and *tail* of the end of a content.

    Each is cut at a line's end when that leaves at least half of its allowance, else inside a line,
    but not between a carriage return and its line feed unless the allowance is 1.
    """
    for name, value in (("head", head), ("tail", tail)):
        _check.whole(name, value)
    text = content.text
    is_whole = content.chars <= head + tail
    head_end = content.chars if is_whole else _head_end(text, head)
    tail_start = content.chars if is_whole else _tail_start(text, tail)
    shown_head, shown_tail = text[:head_end], text[tail_start:]
    head_cut, tail_cut = _inside_line(content, head_end), _inside_line(content, tail_start)
    # Counted from both ends, so that a preview costs what it shows.
    head_last = content.lines if is_whole else count_lines(shown_head) if shown_head else 0
    tail_first = content.lines - count_lines(shown_tail) + 1 if shown_tail else content.lines + 1
    return Preview(
        head=shown_head,
        tail=shown_tail,
        head_lines=(1, head_last) if shown_head or is_whole else None,
        tail_lines=(tail_first, content.lines) if shown_tail else None,
        omitted_chars=tail_start - head_end,
        omitted_range=None if is_whole else (head_end + 1, tail_start),
        omitted_lines=None if is_whole else (head_last + (not head_cut), tail_first - (not tail_cut)),
        head_ends_in_line=head_cut,
        tail_starts_in_line=tail_cut,
    )


def _head_end(text: str, head: int) -> int:
    after_line = text.rfind("\n", 0, head) + 1
    if 2 * (head - after_line) <= head:
        return after_line
    splits_crlf = head > 1 and text[head - 1] == "\r" and text[head] == "\n"
    return head - splits_crlf


def _tail_start(text: str, tail: int) -> int:
    start = len(text) - tail
    # A line that begins here costs nothing: its line feed is the character before.
    after_line = text.find("\n", start - 1, start + tail // 2) + 1
    return after_line or start


# What a user pasted


@attrs.frozen
class Pasted:
    """A text in three parts, of which *pasted* becomes a descriptor; the others, which may be empty, stay in sight."""

    before: str
    pasted: str
    after: str


def split_pasted(text: str, *, over: int) -> Pasted:
    """
    Part what a user pasted from the user's own words, which often hold the question, at the beginning or the end.

    A fenced block that holds more than half of the text is what was pasted; its fences stay outside.
    Else the first and the last paragraphs stay in sight, at most 1,000 characters at each end.
    Where there is no blank line, or where what is left for the descriptor would not be longer than half of *over*,
    everything counts as pasted.
    *over* is the length from which on texts become descriptors, in characters.
    """
    _check.whole("over", over)
    around_fence = _by_fence(text, most=max(_IN_SIGHT[0], over // 2))
    if around_fence is not None and 2 * len(around_fence.pasted) > over:
        return around_fence
    for most in _IN_SIGHT:
        parted = _by_paragraphs(text, most=most)
        if 2 * len(parted.pasted) > over:
            return parted
    return Pasted("", text, "")


def _by_fence(text: str, *, most: int) -> Pasted | None:
    """Part at the largest fenced block, where it is most of the text and little enough stays in sight."""
    largest = max(fenced_blocks(text), key=lambda block: block.end - block.start, default=None)
    if largest is None or 2 * (largest.end - largest.start) <= len(text):
        return None
    if max(largest.start, len(text) - largest.end) > most:
        return None
    return Pasted(text[: largest.start], text[largest.start : largest.end], text[largest.end :])


def _by_paragraphs(text: str, *, most: int) -> Pasted:
    """Part behind the last blank line near the beginning, and before the first one near the end."""
    start = max((blank.end() for blank in _BLANK_LINE.finditer(text[:most])), default=0)
    end = len(text) - most
    # The first line of the tail is cut.
    blank = _NEXT_BLANK_LINE.search(text, end + 1) if end > start else None
    end = len(text) if blank is None else blank.start()
    # Blank lines alone are nobody's words.
    start = start if text[:start].strip() else 0
    end = end if text[end:].strip() else len(text)
    return Pasted(text[:start], text[start:end], text[end:])
