"""The beginning and the end of a content."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.refs.store.text import Content, preview

TEXTS = st.text(st.sampled_from("ab\n\r é😀"))
SIZES = st.integers(0, 20)


def line_numbers(text):
    """Return the line of every character."""
    return [text.count("\n", 0, offset) + 1 for offset in range(len(text))]


@given(TEXTS, SIZES, SIZES)
@example("\r\n\r\n", 1, 1)
@example("a\n\n\n\nb", 2, 2)
def test_head_tail_and_what_is_left_out_make_up_the_content(text, head, tail):
    """Nothing is lost, repeated or longer than allowed, and the figures are true."""
    content = Content.of(text)
    shown = preview(content, head=head, tail=tail)
    first, last = shown.omitted_range or (len(shown.head) + 1, len(shown.head))

    assert text == shown.head + text[first - 1 : last] + shown.tail
    assert shown.omitted_chars == last - first + 1 == len(text) - len(shown.head) - len(shown.tail)
    if shown.omitted_chars:
        assert len(shown.head) <= head
        assert len(shown.tail) <= tail


@given(TEXTS, SIZES, SIZES)
@example("a\n\n\n\nb", 2, 2)
def test_the_lines_are_true(text, head, tail):
    """The spans of lines are those that the characters shown and left out are in."""
    content = Content.of(text)
    shown = preview(content, head=head, tail=tail)
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


@given(TEXTS, SIZES, SIZES)
@example("a" * 4 + "\n" + "b" * 40 + "\n" + "c" * 5, 10, 10)
@example("a" * 3 + "\n" + "b" * 40 + "\n" + "c" * 4, 10, 10)
def test_lines_stay_whole_where_that_costs_at_most_half(text, head, tail):
    """A side is cut inside a line only when no line's end lies in its outer half, and then it is as long as may be."""
    shown = preview(Content.of(text), head=head, tail=tail)
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
def test_a_carriage_return_stays_with_its_line_feed(text, head, tail):
    """No cut is made between the two."""
    shown = preview(Content.of(text), head=head, tail=tail)
    middle = text[len(shown.head) : len(text) - len(shown.tail)]

    assert not (shown.head.endswith("\r") and middle.startswith("\n"))
    assert not (middle.endswith("\r") and shown.tail.startswith("\n"))


@given(TEXTS, st.integers(0, 5))
def test_what_fits_is_shown_whole(text, spare):
    """Up to head + tail characters are all in the head."""
    head = len(text) // 3 + spare
    shown = preview(Content.of(text), head=head, tail=len(text) - len(text) // 3)

    assert (text, "", 0) == (shown.head, shown.tail, shown.omitted_chars)


def test_a_log_is_cut_between_lines():
    """The head ends after a line, the tail begins with one, and the rest is named by lines and characters."""
    text = "".join(f"line {number:03}\n" for number in range(1, 101))
    shown = preview(Content.of(text), head=25, tail=14)

    assert ("line 001\nline 002\n", "line 100\n") == (shown.head, shown.tail)
    assert ((1, 2), (3, 99), (100, 100)) == (shown.head_lines, shown.omitted_lines, shown.tail_lines)
    assert (873, (19, 891)) == (shown.omitted_chars, shown.omitted_range)


def test_one_long_line_is_cut_inside():
    """It is on both sides and in between."""
    shown = preview(Content.of("x" * 100), head=10, tail=5)

    assert (10, 85, 5) == (len(shown.head), shown.omitted_chars, len(shown.tail))
    assert ((1, 1), (1, 1), (1, 1)) == (shown.head_lines, shown.omitted_lines, shown.tail_lines)
    assert shown.head_ends_in_line
    assert shown.tail_starts_in_line


@pytest.mark.parametrize("name", ["head", "tail"])
@pytest.mark.parametrize("value", [-1, True, 1.5, "5", None])
def test_allowances_are_whole_numbers(name, value):
    """Anything else is refused by name."""
    with pytest.raises(InvalidArgument, match=f"{name} must be a whole number of 0 or more"):
        preview(Content.of("text"), **({"head": 1, "tail": 1} | {name: value}))


def test_a_repr_shows_no_text():
    """It shows how much there is."""
    assert "<Preview: 2 characters, 3 left out, 1 characters>" == repr(preview(Content.of("secret"), head=2, tail=1))
