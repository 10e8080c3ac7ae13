"""`make_preview`: a preview with the beginning and the end of a content."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.refs.store.text import Content, make_preview

TEXTS = st.text(st.sampled_from("ab\n\r é😀"))
PREVIEW_SIZES = st.integers(0, 20)


def line_numbers(text):
    """Return the line number of each character."""
    return [text.count("\n", 0, offset) + 1 for offset in range(len(text))]


@given(TEXTS, PREVIEW_SIZES, PREVIEW_SIZES)
@example("\r\n\r\n", 1, 1)
@example("a\n\n\n\nb", 2, 2)
def test_preview_parts_join_to_content(text, head, tail):
    """No character is lost or repeated, the limits hold, and the numbers are correct."""
    content = Content.from_text(text)
    shown = make_preview(content, head=head, tail=tail)
    first, last = shown.omitted_range or (len(shown.head) + 1, len(shown.head))

    assert text == shown.head + text[first - 1 : last] + shown.tail
    assert shown.omitted_chars == last - first + 1 == len(text) - len(shown.head) - len(shown.tail)
    if shown.omitted_chars:
        assert len(shown.head) <= head
        assert len(shown.tail) <= tail


@given(TEXTS, PREVIEW_SIZES, PREVIEW_SIZES)
@example("a\n\n\n\nb", 2, 2)
def test_preview_line_spans_match_characters(text, head, tail):
    """The spans are the lines of the visible and omitted characters."""
    content = Content.from_text(text)
    shown = make_preview(content, head=head, tail=tail)
    lines = line_numbers(text)

    def span(start, end):
        return (lines[start], lines[end - 1]) if start < end else None

    if not text:
        assert ((1, 1), None, None) == (shown.head_lines, shown.omitted_lines, shown.tail_lines)
        return
    omitted_end = len(text) - len(shown.tail)
    assert span(0, len(shown.head)) == shown.head_lines
    assert span(len(shown.head), omitted_end) == shown.omitted_lines
    assert span(omitted_end, len(text)) == shown.tail_lines
    cut = shown.omitted_chars > 0
    assert (cut and shown.head != "" and shown.head[-1] != "\n") == shown.head_ends_in_line
    assert (cut and shown.tail != "" and text[omitted_end - 1] != "\n") == shown.tail_starts_in_line


@given(TEXTS, PREVIEW_SIZES, PREVIEW_SIZES)
@example("a" * 4 + "\n" + "b" * 40 + "\n" + "c" * 5, 10, 10)
@example("a" * 3 + "\n" + "b" * 40 + "\n" + "c" * 4, 10, 10)
def test_preview_cuts_at_line_end_when_half_remains(text, head, tail):
    """A side is cut inside a line only if its outer half contains no line end."""
    shown = make_preview(Content.from_text(text), head=head, tail=tail)
    if shown.head_ends_in_line:
        assert "\n" not in text[head - head // 2 - 1 : head]
        assert head == len(shown.head) + (text[head - 1 : head + 1] == "\r\n" and head > 1)
    if shown.tail_starts_in_line:
        start = len(text) - tail
        assert "\n" not in text[start - 1 : start + tail // 2]
        assert tail == len(shown.tail)
    if shown.head and shown.omitted_chars:
        assert len(shown.head) >= head - head // 2 - 1


@given(TEXTS, st.integers(2, 20), st.integers(2, 20))
@example("abc\r\n" + "x" * 9 + "\r\nabc", 4, 4)
def test_preview_does_not_split_crlf(text, head, tail):
    """No cut is made between the two characters."""
    shown = make_preview(Content.from_text(text), head=head, tail=tail)
    middle = text[len(shown.head) : len(text) - len(shown.tail)]

    assert not (shown.head.endswith("\r") and middle.startswith("\n"))
    assert not (middle.endswith("\r") and shown.tail.startswith("\n"))


@given(TEXTS, st.integers(0, 5))
def test_preview_shows_complete_content_when_it_fits(text, spare):
    """Up to head + tail characters are in the head."""
    head = len(text) // 3 + spare
    shown = make_preview(Content.from_text(text), head=head, tail=len(text) - len(text) // 3)

    assert (text, "", 0) == (shown.head, shown.tail, shown.omitted_chars)


def test_preview_cuts_log_between_lines():
    """The head ends after a line, the tail starts with one, and the omitted range is reported."""
    text = "".join(f"line {number:03}\n" for number in range(1, 101))
    shown = make_preview(Content.from_text(text), head=25, tail=14)

    assert ("line 001\nline 002\n", "line 100\n") == (shown.head, shown.tail)
    assert ((1, 2), (3, 99), (100, 100)) == (shown.head_lines, shown.omitted_lines, shown.tail_lines)
    assert (873, (19, 891)) == (shown.omitted_chars, shown.omitted_range)


def test_preview_cuts_inside_single_long_line():
    """The line is in the head, in the tail, and in the omitted range."""
    shown = make_preview(Content.from_text("x" * 100), head=10, tail=5)

    assert (10, 85, 5) == (len(shown.head), shown.omitted_chars, len(shown.tail))
    assert ((1, 1), (1, 1), (1, 1)) == (shown.head_lines, shown.omitted_lines, shown.tail_lines)
    assert shown.head_ends_in_line
    assert shown.tail_starts_in_line


@pytest.mark.parametrize("name", ["head", "tail"])
@pytest.mark.parametrize("value", [-1, True, 1.5, "5", None])
def test_preview_rejects_invalid_limits(name, value):
    """The error names the parameter."""
    with pytest.raises(InvalidArgument, match=f"{name} must be a whole number of 0 or more"):
        make_preview(Content.from_text("text"), **({"head": 1, "tail": 1} | {name: value}))


def test_preview_repr_contains_no_text():
    """It contains only sizes."""
    assert "<Preview: 2 characters, 3 left out, 1 characters>" == repr(
        make_preview(Content.from_text("secret"), head=2, tail=1)
    )
