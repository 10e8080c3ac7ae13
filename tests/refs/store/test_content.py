"""`Content`: an immutable text with its length, line count and other measures."""

import copy
import hashlib
import pickle

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.refs.store.text import Content


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_content_measures_text(text):
    """Characters, bytes, lines and hash match the text."""
    content = Content.from_text(text)

    assert text == content.text
    assert len(text) == content.chars
    assert len(text.encode()) == content.size
    assert max(1, len(text.split("\n")) - text.endswith("\n")) == content.lines
    assert hashlib.sha256(text.encode()).hexdigest() == content.hash


@given(st.text(max_size=3), st.text(max_size=3))
def test_contents_are_equal_when_texts_are_equal(one, other):
    """Equality and hash depend on the text."""
    try:
        contents = {Content.from_text(one), Content.from_text(other)}
    except InvalidArgument:
        return

    assert len({one, other}) == len(contents)


@pytest.mark.parametrize("value", [None, b"bytes", 1, ["text"]])
def test_content_rejects_other_types(value):
    """The error names the type of the value."""
    with pytest.raises(InvalidArgument, match=f"content must be text, got {type(value).__name__}"):
        Content.from_text(value)


@pytest.mark.parametrize(("text", "position"), [("\ud800", 1), ("geheim\udfffgeheim\ud800", 7), ("😀\ud83d", 2)])
def test_content_rejects_lone_surrogate(text, position):
    """The error names the first position, from 1, and does not contain the text."""
    with pytest.raises(InvalidArgument) as caught:
        Content.from_text(text)

    assert str(caught.value).startswith(f"character {position} of the content is a lone surrogate")
    assert "geheim" not in str(caught.value)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


def test_content_stores_characters_of_str_subclass():
    """Overridden methods of a subclass are not called."""

    class Loud(str):
        __slots__ = ()

        def __str__(self):
            return self.upper()

        def encode(self, *_):
            return b"else"

    content = Content.from_text(Loud("quiet"))

    assert str is type(content.text)
    assert Content.from_text("quiet") == content
    assert "quiet" == content.text
    assert 5 == content.size


def test_content_is_immutable():
    """Fields cannot be assigned."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Content.from_text("a").text = "b"


def test_content_repr_contains_no_text():
    """It contains the size and the beginning of the hash."""
    content = Content.from_text("secret\nsecret")

    assert f"<Content: 13 characters, 2 lines, {content.hash[:12]}>" == repr(content)


def test_pages_are_cached_by_page_size():
    """The index is built once for each page size."""
    content = Content.from_text("x" * 100)

    assert content.pages(10) is content.pages(10)
    assert content.pages(10) is not content.pages(7)
    assert (10, 15) == (len(content.pages(10)), len(content.pages(7)))


@pytest.mark.parametrize("page_size", [0, -1, True, 1.0, "4", None])
def test_pages_rejects_invalid_page_size(page_size):
    """An invalid size is rejected, even if it equals a cached one."""
    content = Content.from_text("text")
    content.pages(1)

    with pytest.raises(InvalidArgument, match="page_size"):
        content.pages(page_size)


def test_content_equals_its_copies():
    """A content can be copied and pickled, with or without an index."""
    content = Content.from_text("a\nb")
    content.pages(2)

    for other in (copy.copy(content), copy.deepcopy(content), pickle.loads(pickle.dumps(content))):
        assert content == other
        assert content.text == other.text
        assert 2 == len(other.pages(2))


@pytest.mark.parametrize("unit", ["x", "y" * 49 + "\n", "😀"])
def test_content_creation_takes_linear_steps(unit, steps):
    """Ten times the text takes at most about ten times the steps."""

    def made(size):
        return steps(lambda: Content.from_text(unit * (size // len(unit))).pages(4_000))

    assert made(5_000_000) < 12 * made(500_000) + 100
