"""The beginning and the end of a content, and what lies between them and is not shown."""

from __future__ import annotations

import attrs

from mama_structs.descriptors.content import Content
from mama_structs.descriptors.pages import count_lines
from mama_structs.errors import InvalidArgument

Span = tuple[int, int]


@attrs.frozen(kw_only=True, repr=False)
class Preview:
    """
    The beginning and the end of a content.

    Spans are a first and a last line or character, from 1; a line that is cut belongs to both sides of the cut.

    Args:
        head: The beginning; the whole content when nothing is left out.
        tail: The end.
        head_lines: The lines that *head* shows, wholly or in part; None when it shows nothing of a longer content.
        tail_lines: The lines that *tail* shows, wholly or in part; None when it shows nothing.
        omitted_chars: How many characters are left out.
        omitted_range: Which characters are left out; None when none is.
        omitted_lines: The lines of which something is left out; None when none is.
        head_ends_in_line: Whether *head* is cut inside a line.
        tail_starts_in_line: Whether *tail* is cut inside a line.

    """

    head: str
    tail: str
    head_lines: Span | None
    tail_lines: Span | None
    omitted_chars: int
    omitted_range: Span | None
    omitted_lines: Span | None
    head_ends_in_line: bool
    tail_starts_in_line: bool

    def __repr__(self) -> str:
        return f"<Preview: {len(self.head)} characters, {self.omitted_chars} left out, {len(self.tail)} characters>"


def preview(content: Content, *, head: int, tail: int) -> Preview:
    """
    Show the beginning and the end of a content.

    Each is cut at a line's end when that leaves at least half of its allowance, else inside a line,
    but not between a carriage return and its line feed unless the allowance is 1.

    Args:
        content: What is shown.
        head: Characters of the beginning, at the most.
        tail: Characters of the end, at the most.

    Raises:
        InvalidArgument: *head* or *tail* is no whole number of 0 or more.

    """
    for name, value in (("head", head), ("tail", tail)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidArgument(f"{name} must be a whole number of 0 or more, got {value!r:.80}")
    text = content.text
    if content.chars <= head + tail:
        return Preview(
            head=text,
            tail="",
            head_lines=(1, content.lines),
            tail_lines=None,
            omitted_chars=0,
            omitted_range=None,
            omitted_lines=None,
            head_ends_in_line=False,
            tail_starts_in_line=False,
        )
    head_end, tail_start = _head_end(text, head), _tail_start(text, tail)
    shown_head, shown_tail = text[:head_end], text[tail_start:]
    head_cut = head_end > 0 and text[head_end - 1] != "\n"
    tail_cut = tail_start < content.chars and text[tail_start - 1] != "\n"
    # Counted from both ends, so that a preview costs what it shows.
    head_last = count_lines(shown_head) if shown_head else 0
    tail_first = content.lines - count_lines(shown_tail) + 1 if shown_tail else content.lines + 1
    return Preview(
        head=shown_head,
        tail=shown_tail,
        head_lines=(1, head_last) if shown_head else None,
        tail_lines=(tail_first, content.lines) if shown_tail else None,
        omitted_chars=tail_start - head_end,
        omitted_range=(head_end + 1, tail_start),
        omitted_lines=(head_last + (not head_cut), tail_first - (not tail_cut)),
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
