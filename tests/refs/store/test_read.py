"""`read_excerpt`: excerpts of a content by page, line or character."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument, InvalidPage, InvalidParameter, InvalidRange
from mama_structs.refs.store.text import Content, read_excerpt

TEXTS = st.text(st.sampled_from("ab\n\r é😀"))
MODES = st.sampled_from(["page", "line", "char"])
PAGE_SIZES = st.integers(1, 12)
# Python cannot convert an integer of this size to decimal text.
HUGE = 16**4000
COUNTS = st.integers(1, 5) | st.integers(1, 10**40)


def reading(text, **options):
    return read_excerpt(Content.from_text(text), **({"handle": "fd:1", "page_size": 4} | options))


@given(TEXTS, PAGE_SIZES, MODES, COUNTS)
@example("", 1, "page", 1)
@example("", 1, "char", 2)
def test_read_by_next_start_returns_everything_once(text, page_size, mode, count):
    """In every mode the parts join to the content, and the last one has no next start."""
    parts, start = [], 1
    while start is not None:
        part = reading(text, mode=mode, start=start, count=count, page_size=page_size)
        parts.append(part.text)
        start = part.next_start

    assert text == "".join(parts)
    assert (None, 0, 0) == (part.next_char, part.remaining, part.remaining_chars)


@given(TEXTS, PAGE_SIZES, MODES, COUNTS)
def test_read_by_next_char_returns_everything_once(text, page_size, mode, count):
    """After an excerpt of any mode, reading can continue in char mode."""
    first = reading(text, mode=mode, count=count, page_size=page_size)
    rest = "" if first.next_char is None else reading(text, mode="char", start=first.next_char, count=10**9).text

    assert text == first.text + rest
    assert len(rest) == first.remaining_chars


@given(TEXTS, PAGE_SIZES, MODES, COUNTS, st.data())
def test_read_returns_correct_numbers(text, page_size, mode, count, data):
    """Positions, lines and remaining sizes equal those of a naive count."""
    content = Content.from_text(text)
    total = {"page": len(content.pages(page_size)), "line": content.lines, "char": max(1, len(text))}[mode]
    start = data.draw(st.integers(1, total))
    part = read_excerpt(content, handle="ref:x", mode=mode, start=start, count=count, page_size=page_size)
    begin, end = part.first_char - 1, part.last_char

    assert text[begin:end] == part.text
    assert ("ref:x", mode, start) == (part.handle, part.mode, part.start)
    assert min(count, total - start + 1) == part.count
    assert total - start - part.count + 1 == part.remaining
    assert (start + part.count if part.remaining else None) == part.next_start
    assert (end + 1 if end < len(text) else None) == part.next_char
    assert (len(text), content.lines, total if mode == "page" else len(content.pages(page_size))) == (
        part.total_chars,
        part.total_lines,
        part.pages,
    )
    assert text.count("\n", 0, begin) + 1 == part.first_line
    assert text.count("\n", 0, max(begin, end - 1)) + 1 == part.last_line
    assert (start if mode == "page" and part.count == 1 else None) == part.page
    assert (begin > 0 and text[begin - 1] != "\n") == part.starts_in_line
    assert (0 < end < len(text) and text[end - 1] != "\n") == part.ends_in_line


@given(TEXTS, st.integers(1, 5))
def test_read_lines_returns_complete_lines(text, count):
    """An excerpt of lines starts and ends at line boundaries, and has the stated number."""
    part = reading(text, mode="line", count=count, page_size=3)

    assert not part.starts_in_line
    assert not part.ends_in_line
    assert part.count == part.last_line - part.first_line + 1


def test_read_page_reports_next_page():
    """The second of five pages reports the third, the next character and the remaining size."""
    part = reading("abcdefghij" * 2, start=2)

    assert ("efgh", 2, 5, 3, 9) == (part.text, part.page, part.pages, part.next_start, part.next_char)
    assert (3, 12, 5, 8) == (part.remaining, part.remaining_chars, part.first_char, part.last_char)
    assert part.starts_in_line
    assert part.ends_in_line


def test_read_all_ignores_other_parameters():
    """The excerpt has no unit, and nothing follows."""
    part = reading("ab\ncd\n", read_all=True, mode="line", start=99, count=0)

    assert ("ab\ncd\n", "all", 1, 1, None) == (part.text, part.mode, part.start, part.count, part.page)
    assert (1, 6, 1, 2) == (part.first_char, part.last_char, part.first_line, part.last_line)
    assert (None, None, 0, 0) == (part.next_start, part.next_char, part.remaining, part.remaining_chars)
    assert (False, False) == (part.starts_in_line, part.ends_in_line)


@pytest.mark.parametrize("mode", ["page", "line", "char"])
def test_read_empty_content_returns_empty_excerpt(mode):
    """Its last character is before its first, in line 1."""
    part = reading("", mode=mode)

    assert ("", 1, 0, 1, 1, 1) == (
        part.text,
        part.first_char,
        part.last_char,
        part.first_line,
        part.last_line,
        part.pages,
    )
    assert (None, None, 0, 0) == (part.next_start, part.next_char, part.remaining, part.remaining_chars)


@pytest.mark.parametrize(
    ("mode", "valid", "kind"), [("page", 3, "page"), ("line", 2, "line"), ("char", 9, "character")]
)
@pytest.mark.parametrize("beyond", [0, -1, 1, 10**18, HUGE, -HUGE], ids=hex)
def test_read_raises_when_start_is_out_of_range(mode, valid, kind, beyond):
    """The error names the unit and the valid range, also for numbers too long to print."""
    start = beyond if beyond < 1 else valid + beyond
    with pytest.raises(InvalidPage if mode == "page" else InvalidRange) as caught:
        reading("abcdefg\nh", mode=mode, start=start)

    assert (1, valid) == caught.value.valid
    assert "fd:1" == caught.value.handle
    assert str(caught.value).startswith(f"fd:1 has no {kind} ")
    assert f"1 to {valid}" in str(caught.value)


@pytest.mark.parametrize("mode", ["page", "line", "char"])
def test_read_empty_content_raises_after_first_unit(mode):
    """Only the first page, line and character exist."""
    with pytest.raises((InvalidPage, InvalidRange)) as caught:
        reading("", mode=mode, start=2)

    assert (1, 1) == caught.value.valid


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"mode": "word"}, "mode"),
        ({"mode": None}, "mode"),
        ({"mode": ["page"]}, "mode"),
        ({"mode": "all"}, "mode"),
        ({"count": 0}, "count"),
        ({"count": -HUGE}, "count"),
        ({"count": True}, "count"),
        ({"count": "2"}, "count"),
        ({"start": 1.0}, "start"),
        ({"start": True}, "start"),
        ({"start": None}, "start"),
        ({"start": math.nan}, "start"),
        ({"read_all": "yes"}, "read_all"),
    ],
)
def test_read_names_parameter_of_invalid_type(options, parameter):
    """Invalid types are rejected and not converted."""
    with pytest.raises(InvalidParameter) as caught:
        reading("text", **options)

    assert (parameter, "fd:1") == (caught.value.parameter, caught.value.handle)
    assert str(caught.value).startswith(parameter)


def test_read_rejects_invalid_page_size():
    """The host sets the page size, so the error is InvalidArgument."""
    with pytest.raises(InvalidArgument, match="page_size"):
        reading("text", page_size=0)


def test_excerpt_repr_contains_no_text():
    """It is one line with the position."""
    assert "<Excerpt of fd:1: page 2, characters 5 to 6 of 6>" == repr(reading("secret", start=2))
    assert "<Excerpt of fd:1: char 1 and 2 more, characters 1 to 3 of 6>" == repr(
        reading("secret", mode="char", count=3)
    )
    assert "<Excerpt of fd:1: all, characters 1 to 6 of 6>" == repr(reading("secret", read_all=True))


@pytest.mark.parametrize("unit", ["x", "y" * 49 + "\n"])
def test_read_steps_do_not_depend_on_content_length(unit, steps):
    """In a content 100 times as long, reading at its end takes as many steps."""
    small, large = (Content.from_text(unit * (size // len(unit))) for size in (50_000, 5_000_000))

    def read_late(content):
        for mode, start in (
            ("page", len(content.pages(4_000))),
            ("char", content.chars - 100),
            ("line", content.lines if content.lines > 1 else None),
        ):
            if start is not None:
                read_excerpt(content, handle="fd:1", mode=mode, start=start, count=50, page_size=4_000)

    read_late(small), read_late(large)  # build the lazy indexes first, so that only reading is counted

    assert steps(read_late, large) < 2 * steps(read_late, small)
