"""`Pages`: positions of page ends and lines in a text."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.refs.store.text import Pages, count_lines, page_ends

TEXTS = st.text(st.sampled_from("ab\n\n\r é가😀\u0301\u2028\x85\x0b")) | st.text(
    st.characters(exclude_categories=["Cs"])
)
PAGE_SIZES = st.integers(1, 12) | st.integers(1, 10**20)


def lines_of(text):
    """Return the lines of a text. Only line feeds separate lines."""
    pieces = text.split("\n")
    lines = [piece + "\n" for piece in pieces[:-1]] + pieces[-1:]
    return lines if lines[-1] or len(lines) == 1 else lines[:-1]


def pieces_of(text, page_size):
    ends = list(page_ends(text, page_size))
    return [text[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


@given(TEXTS, PAGE_SIZES)
@example("", 1)
@example("\r\n", 1)
@example("\r\n" * 3, 2)
@example("x" * 10, 3)
def test_pages_joined_equal_text(text, page_size):
    """For any text and page size, no character is lost or repeated."""
    pages = Pages.from_text(text, page_size)

    assert text == "".join(text[slice(*pages.bounds(page, page))] for page in range(1, len(pages) + 1))
    assert text == text[slice(*pages.bounds(1, len(pages)))]


@given(TEXTS, PAGE_SIZES)
def test_page_ends_match_pages(text, page_size):
    """There are as many pages as ends, and each page ends there."""
    ends = list(page_ends(text, page_size))
    pages = Pages.from_text(text, page_size)

    assert len(ends) == len(pages)
    assert ends == [pages.bounds(page, page)[1] for page in range(1, len(pages) + 1)]


@given(TEXTS, PAGE_SIZES)
def test_pages_have_valid_length(text, page_size):
    """A page has 1 to page_size characters; only an empty text has an empty page."""
    sizes = [len(piece) for piece in pieces_of(text, page_size)]

    assert page_size >= max(sizes)
    assert min(sizes) > 0 or (text, sizes) == ("", [0])


@given(TEXTS, PAGE_SIZES)
def test_page_ends_after_line_feed_when_possible(text, page_size):
    """A page ends inside a line only if it contains no line feed, and then it is full."""
    pieces = pieces_of(text, page_size)
    for piece, following in pairwise(pieces):
        if not piece.endswith("\n"):
            assert "\n" not in piece
            assert page_size == len(piece) + (len(piece) < page_size)
            assert len(piece) == page_size or following.startswith("\r\n")


@given(TEXTS, st.integers(2, 12))
@example("ab\r\ncd", 3)
def test_page_does_not_split_crlf(text, page_size):
    """No page ends between the two characters, unless the page size is 1."""
    pieces = pieces_of(text, page_size)

    assert not any(a.endswith("\r") and b.startswith("\n") for a, b in pairwise(pieces))


@given(TEXTS, PAGE_SIZES)
@example("a\n", 2)
@example("\n\n\n", 1)
@example("x" * 9 + "\n" + "y" * 9, 3)
def test_line_start_matches_split_at_line_feeds(text, page_size):
    """Line k starts and ends as if the text were split at line feeds."""
    pages = Pages.from_text(text, page_size)
    lines = lines_of(text)

    assert len(lines) == pages.lines == count_lines(text)
    assert lines == [text[pages.line_start(k) : pages.line_start(k + 1)] for k in range(1, pages.lines + 1)]


@given(TEXTS, PAGE_SIZES)
def test_line_at_and_page_at_contain_offset(text, page_size):
    """The line and page of an offset contain it."""
    pages = Pages.from_text(text, page_size)
    line_of = [number for number, line in enumerate(lines_of(text), 1) for _ in line]
    page_of = [number for number, piece in enumerate(pieces_of(text, page_size), 1) for _ in piece]

    assert [*line_of, pages.lines] == [pages.line_at(offset) for offset in range(len(text) + 1)]
    assert [*page_of, len(pages)] == [pages.page_at(offset) for offset in range(len(text) + 1)]


@pytest.mark.parametrize(
    ("text", "lines"), [("", 1), ("\n", 1), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n\n", 2), ("a\rb", 1), ("a\r\nb", 2)]
)
def test_count_lines_counts_line_feeds(text, lines):
    """A carriage return does not end a line, and a final line feed does not start one."""
    assert lines == count_lines(text)
    assert lines == Pages.from_text(text, 4).lines


@pytest.mark.parametrize("page_size", [0, -1, True, 1.0, "4", None])
def test_pages_rejects_invalid_page_size(page_size):
    """The size must be an integer of at least 1."""
    with pytest.raises(InvalidArgument, match="page_size must be a whole number of 1 or more"):
        Pages.from_text("text", page_size)


def test_pages_raises_for_missing_position():
    """Pages, lines and offsets outside the text raise errors."""
    pages = Pages.from_text("a\nb\nc", 2)

    for bounds in ((0, 1), (1, 4), (3, 2), (-1, -1)):
        with pytest.raises(InvalidArgument, match="there are 3"):
            pages.bounds(*bounds)
    for line in (0, 5, -1):
        with pytest.raises(InvalidArgument, match="there are 3"):
            pages.line_start(line)
    for offset in (-1, 6):
        with pytest.raises(InvalidArgument, match="there are 5"):
            pages.line_at(offset)


def test_pages_repr_contains_no_text():
    """It contains the numbers of pages and lines."""
    assert "<Pages: 2 of at most 4 characters, 1 lines>" == repr(Pages.from_text("secret", 4))


@pytest.mark.parametrize("unit", ["x", "y" * 49 + "\n", "\n"])
def test_pages_lookup_steps_do_not_depend_on_text_length(unit, steps):
    """In a text 100 times as long, lookups take about the same number of steps."""
    small, large = (Pages.from_text(unit * (size // len(unit)), 4_000) for size in (50_000, 5_000_000))

    def places(pages):
        for k in range(1, 100):
            line = max(1, pages.lines * k // 100)
            pages.line_start(line)
            pages.line_at(len(pages.text) * k // 100)
            pages.bounds(len(pages), len(pages))

    assert steps(places, large) < 5 * steps(places, small)


@pytest.mark.parametrize("unit", ["x", "y" * 49 + "\n", "\r\n", "\n"])
def test_pages_creation_takes_linear_steps(unit, steps):
    """Ten times the text takes at most about ten times the steps."""
    small, large = (unit * (size // len(unit)) for size in (500_000, 5_000_000))

    assert steps(Pages.from_text, large, 4_000) < 12 * steps(Pages.from_text, small, 4_000) + 100
