"""
Stored texts: pages and lines, excerpts, previews, and detection of pasted text.

Offsets count from 0, as in Python. Pages, lines and characters count from 1, as everywhere in this package.
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
from mama_structs._internal.jsonable import JsonMixin
from mama_structs.errors import InvalidArgument, InvalidPage, InvalidParameter, InvalidRange, repr_short
from mama_structs.refs.markup.fences import EnclosedText, find_fenced_blocks, parse_enclosing_fence

# Offsets below this limit are stored in four bytes, which halves the memory of the index.
_FOUR_BYTE_LIMIT: Final = 2**32
# Numbers above this limit are described in words, because Python raises when it prints very long integers.
_PRINTED_NUMBER_LIMIT: Final = 10**18
# Maximum number of the user's own characters that remain in the message at each end of pasted text.
# If the pasted text would be too short, the next smaller limit is tried.
_VISIBLE_CHARS_LIMITS: Final = (1_000, 500, 250, 125)
_BLANK_LINE: Final = re.compile(r"^[^\S\n]*+\n", re.MULTILINE)
_NEXT_BLANK_LINE: Final = re.compile(r"(?<=\n)[^\S\n]*+(?=\n|\Z)")
_UNIT_NAMES: Final = {"page": "page", "line": "line", "char": "character"}

TEXT_MIME_TYPE: Final = "text/plain"
_MIME_TYPE: Final = re.compile(r"[A-Za-z0-9][\w.+-]{0,60}/[A-Za-z0-9][\w.+-]{0,90}(?:;[ -:<-~]{1,90})?", re.ASCII)

Mode = Literal["page", "line", "char"]
Span = tuple[int, int]


def count_lines(text: str) -> int:
    """
    Return the number of lines.

    Each line feed ends a line, and text after the last one is another line. An empty text has one line.
    """
    return text.count("\n") + (not text.endswith("\n"))


def page_ends(text: str, page_size: int) -> Iterator[int]:
    """Yield the end offset of each page, in order; the last is the length of the text."""
    # A page ends after its last line feed. A line longer than a page is split after *page_size* characters.
    # The split never separates a carriage return from its line feed, unless the page size is 1.
    start, total = 0, len(text)
    while start + page_size < total:
        limit = start + page_size
        splits_crlf = text[limit - 1] == "\r" and text[limit] == "\n" and page_size > 1
        start = text.rfind("\n", start, limit) + 1 or limit - splits_crlf
        yield start
    yield total


@attrs.frozen(eq=False, repr=False)
class Pages:
    """Page index of a text. Finding a page, line or character scans at most one page."""

    text: str
    page_size: int
    lines: int
    _starts: Sequence[int]
    _first_lines: Sequence[int]

    @classmethod
    def from_text(cls, text: str, page_size: int) -> Pages:
        """Split a text into pages."""
        _check.check_integer("page_size", page_size, 1)
        code = "I" if len(text) < _FOUR_BYTE_LIMIT else "Q"
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
        """Return the start offset of page *first* and the end offset of page *last*."""
        if not 1 <= first <= last <= len(self):
            raise InvalidArgument(f"there are no pages {first} to {last}: there are {len(self)}")
        return self._starts[first - 1], self._starts[last] if last < len(self) else len(self.text)

    def page_at(self, offset: int) -> int:
        """Return the number of the page that contains an offset. The end of the text belongs to the last page."""
        if not 0 <= offset <= len(self.text):
            raise InvalidArgument(f"there is no offset {offset}: there are {len(self.text)} characters")
        return bisect_right(self._starts, offset)

    def line_at(self, offset: int) -> int:
        """Return the number of the line that contains an offset. The end of the text belongs to the last line."""
        page = self.page_at(offset) - 1
        line = self._first_lines[page] + self.text.count("\n", self._starts[page], offset)
        return min(line, self.lines)

    def line_start(self, line: int) -> int:
        """Return the offset at which a line starts. For the line after the last, return the length of the text."""
        if not 1 <= line <= self.lines + 1:
            raise InvalidArgument(f"there is no line {line}: there are {self.lines}")
        if line == 1:
            return 0
        if line > self.lines:
            return len(self.text)
        # Find the last page whose first line is an earlier line. The requested line starts in this page or at its end.
        page = bisect_left(self._first_lines, line) - 1
        start, end = self.bounds(page + 1, page + 1)
        breaks = line - self._first_lines[page]
        return end - len(self.text[start:end].split("\n", breaks)[breaks])


@attrs.frozen(repr=False)
class Content(JsonMixin):
    """
    An immutable text, or bytes of another MIME type.

    Created with `Content.from_text` and `Content.from_bytes`. Contents are equal if their types and SHA-256
    hashes are equal. Bytes have no text, characters, lines or pages.
    """

    text: str = attrs.field(eq=False)
    hash: str
    chars: int = attrs.field(eq=False)
    size: int = attrs.field(eq=False)  # number of bytes; for a text, of its UTF-8 encoding
    lines: int = attrs.field(eq=False)  # at least 1 for a text
    mime_type: str = attrs.field(default=TEXT_MIME_TYPE, kw_only=True)
    _bytes: bytes | None = attrs.field(default=None, kw_only=True, eq=False)
    _pages: dict[int, Pages] = attrs.field(factory=dict, init=False, eq=False)

    @classmethod
    def from_text(cls, text: str) -> Content:
        """
        Create the content of a text.

        Args:
            text: The text.

        Raises:
            InvalidArgument: The text cannot be encoded as UTF-8.

        """
        if not isinstance(text, str):
            raise InvalidArgument(f"content must be text, got {type(text).__name__}")
        # A subclass may override `__str__`, so read the characters of the string itself.
        text = str.__str__(text)
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            position = error.start + 1
        else:
            return cls(text, hashlib.sha256(data).hexdigest(), len(text), len(data), count_lines(text))
        # Raise outside of the handler, because the UnicodeEncodeError as context would contain the complete text.
        raise InvalidArgument(
            f"character {position} of the content is a lone surrogate, which no file and no model can hold",
            hint="decode it with errors='replace', or remove it",
        )

    @classmethod
    def from_bytes(cls, data: bytes, mime_type: str | None) -> Content:
        """
        Create the content of bytes.

        Args:
            data: The content.
            mime_type: The MIME type; None to detect it.

        Raises:
            InvalidArgument: The data is not bytes, or the MIME type is invalid.

        """
        if not isinstance(data, bytes):
            raise InvalidArgument(f"data must be bytes, got {type(data).__name__}")
        if not isinstance(mime_type, str) or not _MIME_TYPE.fullmatch(mime_type):
            raise InvalidArgument(
                f"mime_type must be a type such as image/png, got {repr_short(mime_type)}",
                hint="say what the bytes are",
            )
        return cls("", hashlib.sha256(data).hexdigest(), 0, len(data), 0, mime_type=mime_type.lower(), bytes=data)

    @property
    def is_text(self) -> bool:
        """True for text, False for binary content."""
        return self._bytes is None

    @property
    def data(self) -> bytes:
        """The content as bytes; text is encoded as UTF-8."""
        return self.text.encode() if self._bytes is None else self._bytes

    @functools.cached_property
    def _enclosed_text(self) -> EnclosedText | None:
        return parse_enclosing_fence(self.text)

    @functools.cached_property
    def body(self) -> Content:
        """The content inside the fence that encloses the whole content, or this content if no fence encloses it."""
        return self if self._enclosed_text is None else Content.from_text(self._enclosed_text.text)

    @property
    def language(self) -> str | None:
        """The language of the enclosing fence, or None."""
        return None if self._enclosed_text is None else self._enclosed_text.language

    def pages(self, page_size: int) -> Pages:
        """Return the page index, which is cached per page size."""
        _check.check_integer("page_size", page_size, 1)
        known = self._pages.get(page_size)
        if known is None:
            # Concurrent threads may both build the index. Their results are equal.
            known = self._pages.setdefault(page_size, Pages.from_text(self.text, page_size))
        return known

    def __repr__(self) -> str:
        return f"<Content: {self.chars} characters, {self.lines} lines, {self.hash[:12]}>"


# Excerpts


@attrs.frozen(kw_only=True, repr=False)
class Excerpt(JsonMixin):
    """A part of a content. Pages, lines and characters count from 1."""

    handle: str
    text: str
    mode: Literal["page", "line", "char", "all"]  # unit of `start`, `count`, `next_start` and `remaining`
    start: int
    count: int
    page: int | None  # None unless a single page was read in page mode
    pages: int
    first_char: int
    last_char: int  # `first_char` - 1 if the content is empty
    first_line: int
    last_line: int
    total_chars: int
    total_lines: int
    starts_in_line: bool
    ends_in_line: bool
    next_start: int | None  # None at the end, as is `next_char`
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


def read_excerpt(
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
    Return *count* pages, lines or characters from *start*, or all with *read_all*.

    At the end of the content, the excerpt is shorter.
    """
    refused = functools.partial(InvalidParameter, handle=handle)
    if not isinstance(read_all, bool):
        raise refused(f"read_all must be true or false, got {repr_short(read_all)}", parameter="read_all")
    pages = content.pages(page_size)
    total, begin, end = 1, 0, content.chars
    if read_all:
        start = count = 1
    else:
        if not isinstance(mode, str) or mode not in _UNIT_NAMES:
            raise refused(f"mode must be page, line or char, got {repr_short(mode)}", parameter="mode")
        total = {"page": len(pages), "line": content.lines, "char": max(1, content.chars)}[mode]
        for name, value in (("start", start), ("count", count)):
            if not isinstance(value, int) or isinstance(value, bool):
                raise refused(f"{name} must be a whole number, got {repr_short(value)}", parameter=name)
        if not 1 <= start <= total:
            error = InvalidPage if mode == "page" else InvalidRange
            raise error(f"{handle} has no {_UNIT_NAMES[mode]} {format_number(start)}", valid=(1, total), handle=handle)
        if count < 1:
            raise refused(f"count must be 1 or more, got {format_number(count)}", parameter="count")
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
        starts_in_line=_is_inside_line(content, begin),
        ends_in_line=_is_inside_line(content, end),
        next_start=following if following <= total else None,
        next_char=end + 1 if end < content.chars else None,
        remaining=total - following + 1,
        remaining_chars=content.chars - end,
    )


def _is_inside_line(content: Content, offset: int) -> bool:
    """Return True if the offset is inside a line, and not at its start."""
    return 0 < offset < content.chars and content.text[offset - 1] != "\n"


def format_number(number: int) -> str:
    """Return a number for a message, in words if it is long."""
    return str(number) if abs(number) < _PRINTED_NUMBER_LIMIT else "a number of more than 18 digits"


# Previews


@attrs.frozen(kw_only=True, repr=False)
class Preview:
    """Beginning (*head*) and end (*tail*) of a content. A line that was cut counts as part of both."""

    head: str
    tail: str
    head_lines: Span | None  # first and last line, including partial ones; None if the head is empty
    tail_lines: Span | None
    omitted_chars: int
    omitted_range: Span | None  # first and last character
    omitted_lines: Span | None
    head_ends_in_line: bool
    tail_starts_in_line: bool

    def __repr__(self) -> str:
        return f"<Preview: {len(self.head)} characters, {self.omitted_chars} left out, {len(self.tail)} characters>"


def make_preview(content: Content, *, head: int, tail: int) -> Preview:
    """
    Return a preview with at most *head* characters of the beginning and *tail* of the end.

    Each part is cut at the end of a line if at least half of its allowance remains, else inside a line. No part is cut
    between a carriage return and its line feed, unless its allowance is 1.
    """
    for name, value in (("head", head), ("tail", tail)):
        _check.check_integer(name, value)
    text = content.text
    is_whole = content.chars <= head + tail
    head_end = content.chars if is_whole else _find_head_end(text, head)
    tail_start = content.chars if is_whole else _find_tail_start(text, tail)
    shown_head, shown_tail = text[:head_end], text[tail_start:]
    head_cut, tail_cut = _is_inside_line(content, head_end), _is_inside_line(content, tail_start)
    # Count lines from both ends, so that the cost depends only on the size of the preview.
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


def _find_head_end(text: str, head: int) -> int:
    after_line = text.rfind("\n", 0, head) + 1
    if 2 * (head - after_line) <= head:
        return after_line
    splits_crlf = head > 1 and text[head - 1] == "\r" and text[head] == "\n"
    return head - splits_crlf


def _find_tail_start(text: str, tail: int) -> int:
    start = len(text) - tail
    # Search from the previous character, so that a line that starts exactly here is found.
    after_line = text.find("\n", start - 1, start + tail // 2) + 1
    return after_line or start


# Pasted text


@attrs.frozen
class PastedText:
    """
    A text split into three parts.

    *pasted* becomes a descriptor. *before* and *after* stay in the message and may be empty.
    """

    before: str
    pasted: str
    after: str


def split_pasted(text: str, *, descriptor_chars: int) -> PastedText:
    """
    Separate pasted text from the user's own words at the beginning and the end.

    The user's words often contain the question. A fenced block with more than half of the text is pasted text; its
    fences stay outside. Otherwise the first and last paragraphs stay, at most 1,000 characters at each end. Everything
    counts as pasted if there is no blank line, or if the pasted text would not be longer than half of
    *descriptor_chars*.

    Args:
        text: The user's message.
        descriptor_chars: The length in characters from which on texts become descriptors.

    """
    _check.check_integer("descriptor_chars", descriptor_chars)
    around_fence = _split_at_fence(text, max_visible_chars=max(_VISIBLE_CHARS_LIMITS[0], descriptor_chars // 2))
    if around_fence is not None and 2 * len(around_fence.pasted) > descriptor_chars:
        return around_fence
    for max_visible_chars in _VISIBLE_CHARS_LIMITS:
        parted = _split_at_paragraphs(text, max_visible_chars=max_visible_chars)
        if 2 * len(parted.pasted) > descriptor_chars:
            return parted
    return PastedText("", text, "")


def _split_at_fence(text: str, *, max_visible_chars: int) -> PastedText | None:
    """
    Split at the largest fenced block, or return None if that block does not qualify.

    The block must be more than half of the text, with at most *max_visible_chars* characters before and after it.
    """
    largest = max(find_fenced_blocks(text), key=lambda block: block.end - block.start, default=None)
    if largest is None or 2 * (largest.end - largest.start) <= len(text):
        return None
    if max(largest.start, len(text) - largest.end) > max_visible_chars:
        return None
    return PastedText(text[: largest.start], text[largest.start : largest.end], text[largest.end :])


def _split_at_paragraphs(text: str, *, max_visible_chars: int) -> PastedText:
    """Split at blank lines, so that at most *max_visible_chars* characters remain at each end."""
    start = max((blank.end() for blank in _BLANK_LINE.finditer(text[:max_visible_chars])), default=0)
    end = len(text) - max_visible_chars
    # The tail may begin inside a line, so search for a blank line only after that line.
    blank = _NEXT_BLANK_LINE.search(text, end + 1) if end > start else None
    end = len(text) if blank is None else blank.start()
    # An end that consists of blank lines contains no words of the user, so it belongs to the pasted text.
    start = start if text[:start].strip() else 0
    end = end if text[end:].strip() else len(text)
    return PastedText(text[:start], text[start:end], text[end:])
