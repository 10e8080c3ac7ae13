"""Where pages and lines begin."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.refs.store.text import Pages, count_lines, page_ends

TEXTS = st.text(st.sampled_from("ab\n\n\r é가😀\u0301\u2028\x85\x0b")) | st.text(
    st.characters(exclude_categories=["Cs"])
)
SIZES = st.integers(1, 12) | st.integers(1, 10**20)


def lines_of(text):
    """Split at line feeds, naively."""
    pieces = text.split("\n")
    lines = [piece + "\n" for piece in pieces[:-1]] + pieces[-1:]
    return lines if lines[-1] or len(lines) == 1 else lines[:-1]


def pieces_of(text, page_size):
    ends = list(page_ends(text, page_size))
    return [text[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


@given(TEXTS, SIZES)
@example("", 1)
@example("\r\n", 1)
@example("\r\n" * 3, 2)
@example("x" * 10, 3)
def test_pages_joined_give_the_text_back(text, page_size):
    """No character is lost or repeated, whatever the text and the page size."""
    pages = Pages.of(text, page_size)

    assert text == "".join(text[slice(*pages.bounds(page, page))] for page in range(1, len(pages) + 1))
    assert text == text[slice(*pages.bounds(1, len(pages)))]


@given(TEXTS, SIZES)
def test_pages_are_the_boundaries(text, page_size):
    """There are as many pages as boundaries, and each ends where its boundary is."""
    ends = list(page_ends(text, page_size))
    pages = Pages.of(text, page_size)

    assert len(ends) == len(pages)
    assert ends == [pages.bounds(page, page)[1] for page in range(1, len(pages) + 1)]


@given(TEXTS, SIZES)
def test_no_page_is_longer_than_its_size_or_empty(text, page_size):
    """A page holds 1 to page_size characters; only an empty text has an empty page."""
    sizes = [len(piece) for piece in pieces_of(text, page_size)]

    assert page_size >= max(sizes)
    assert min(sizes) > 0 or (text, sizes) == ("", [0])


@given(TEXTS, SIZES)
def test_a_page_ends_after_a_line_where_it_can(text, page_size):
    """Inside a line a page ends only when it holds no line feed, and then it is full."""
    pieces = pieces_of(text, page_size)
    for piece, following in pairwise(pieces):
        if not piece.endswith("\n"):
            assert "\n" not in piece
            assert page_size == len(piece) + (len(piece) < page_size)
            assert len(piece) == page_size or following.startswith("\r\n")


@given(TEXTS, st.integers(2, 12))
@example("ab\r\ncd", 3)
def test_a_carriage_return_stays_with_its_line_feed(text, page_size):
    """No page ends between the two, if a page has room for both."""
    pieces = pieces_of(text, page_size)

    assert not any(a.endswith("\r") and b.startswith("\n") for a, b in pairwise(pieces))


@given(TEXTS, SIZES)
@example("a\n", 2)
@example("\n\n\n", 1)
@example("x" * 9 + "\n" + "y" * 9, 3)
def test_lines_are_where_naive_splitting_finds_them(text, page_size):
    """Line k begins and ends as if the text were split at line feeds."""
    pages = Pages.of(text, page_size)
    lines = lines_of(text)

    assert len(lines) == pages.lines == count_lines(text)
    assert lines == [text[pages.line_start(k) : pages.line_start(k + 1)] for k in range(1, pages.lines + 1)]


@given(TEXTS, SIZES)
def test_every_character_is_in_its_line_and_page(text, page_size):
    """Looking up a character finds the line and the page that hold it."""
    pages = Pages.of(text, page_size)
    line_of = [number for number, line in enumerate(lines_of(text), 1) for _ in line]
    page_of = [number for number, piece in enumerate(pieces_of(text, page_size), 1) for _ in piece]

    assert [*line_of, pages.lines] == [pages.line_at(offset) for offset in range(len(text) + 1)]
    assert [*page_of, len(pages)] == [pages.page_at(offset) for offset in range(len(text) + 1)]


@pytest.mark.parametrize(
    ("text", "lines"), [("", 1), ("\n", 1), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n\n", 2), ("a\rb", 1), ("a\r\nb", 2)]
)
def test_lines_are_counted_by_line_feeds(text, lines):
    """A carriage return alone ends no line, a line feed at the end begins none, and nothing is one line."""
    assert lines == count_lines(text)
    assert lines == Pages.of(text, 4).lines


@pytest.mark.parametrize("page_size", [0, -1, True, 1.0, "4", None])
def test_a_page_size_is_a_whole_number_from_one(page_size):
    """Anything else is refused before anything is divided."""
    with pytest.raises(InvalidArgument, match="page_size must be a whole number of 1 or more"):
        Pages.of("text", page_size)


def test_what_does_not_exist_is_not_looked_up():
    """Pages, lines and offsets outside the text are errors, not the nearest ones."""
    pages = Pages.of("a\nb\nc", 2)

    for bounds in ((0, 1), (1, 4), (3, 2), (-1, -1)):
        with pytest.raises(InvalidArgument, match="there are 3"):
            pages.bounds(*bounds)
    for line in (0, 5, -1):
        with pytest.raises(InvalidArgument, match="there are 3"):
            pages.line_start(line)
    for offset in (-1, 6):
        with pytest.raises(InvalidArgument, match="there are 5"):
            pages.line_at(offset)


def test_a_repr_shows_numbers_and_no_text():
    """It says how large it is."""
    assert "<Pages: 2 of at most 4 characters, 1 lines>" == repr(Pages.of("secret", 4))


@pytest.mark.parametrize("unit", ["x", "y" * 49 + "\n", "\n"])
def test_finding_a_place_costs_a_page_and_not_the_text(unit, steps):
    """In a text a hundred times as long, page, line and character are found in about as many steps."""
    small, large = (Pages.of(unit * (size // len(unit)), 4_000) for size in (50_000, 5_000_000))

    def places(pages):
        for k in range(1, 100):
            line = max(1, pages.lines * k // 100)
            pages.line_start(line)
            pages.line_at(len(pages.text) * k // 100)
            pages.bounds(len(pages), len(pages))

    assert steps(places, large) < 5 * steps(places, small)


@pytest.mark.parametrize("unit", ["x", "y" * 49 + "\n", "\r\n", "\n"])
def test_dividing_takes_steps_in_proportion(unit, steps):
    """Ten times the text takes at most about ten times as many steps."""
    small, large = (unit * (size // len(unit)) for size in (500_000, 5_000_000))

    assert steps(Pages.of, large, 4_000) < 12 * steps(Pages.of, small, 4_000) + 100
