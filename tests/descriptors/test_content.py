"""A text that a handle stands for."""

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
def test_a_content_is_measured(text):
    """Characters, bytes, lines and hash are those of the text."""
    content = Content.of(text)

    assert text == content.text
    assert len(text) == content.chars
    assert len(text.encode()) == content.size
    assert max(1, len(text.split("\n")) - text.endswith("\n")) == content.lines
    assert hashlib.sha256(text.encode()).hexdigest() == content.hash


@given(st.text(max_size=3), st.text(max_size=3))
def test_contents_are_equal_when_their_texts_are(one, other):
    """Equality and hash follow the text."""
    try:
        contents = {Content.of(one), Content.of(other)}
    except InvalidArgument:
        return

    assert len({one, other}) == len(contents)


@pytest.mark.parametrize("value", [None, b"bytes", 1, ["text"]])
def test_only_text_is_content(value):
    """Anything but a str is refused, by its type's name."""
    with pytest.raises(InvalidArgument, match=f"content must be text, got {type(value).__name__}"):
        Content.of(value)


@pytest.mark.parametrize(("text", "position"), [("\ud800", 1), ("geheim\udfffgeheim\ud800", 7), ("😀\ud83d", 2)])
def test_a_lone_surrogate_is_refused_by_its_position(text, position):
    """The error names the first position, counted from 1, and carries the text nowhere."""
    with pytest.raises(InvalidArgument) as caught:
        Content.of(text)

    assert str(caught.value).startswith(f"character {position} of the content is a lone surrogate")
    assert "geheim" not in str(caught.value)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


def test_a_subclass_of_str_is_stored_as_what_it_holds():
    """What its methods would make of it does not matter."""

    class Loud(str):
        __slots__ = ()

        def __str__(self):
            return self.upper()

        def encode(self, *_):
            return b"else"

    content = Content.of(Loud("quiet"))

    assert str is type(content.text)
    assert Content.of("quiet") == content
    assert "quiet" == content.text
    assert 5 == content.size


def test_a_content_never_changes():
    """Its fields cannot be set."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Content.of("a").text = "b"


def test_a_repr_shows_no_text():
    """It shows size and the beginning of the hash."""
    content = Content.of("secret\nsecret")

    assert f"<Content: 13 characters, 2 lines, {content.hash[:12]}>" == repr(content)


def test_pages_are_indexed_once_for_each_size():
    """Asking again costs nothing."""
    content = Content.of("x" * 100)

    assert content.pages(10) is content.pages(10)
    assert content.pages(10) is not content.pages(7)
    assert (10, 15) == (len(content.pages(10)), len(content.pages(7)))


@pytest.mark.parametrize("page_size", [0, -1, True, 1.0, "4", None])
def test_a_page_size_is_checked_every_time(page_size):
    """A wrong one is refused even when an equal right one is known."""
    content = Content.of("text")
    content.pages(1)

    with pytest.raises(InvalidArgument, match="page_size"):
        content.pages(page_size)


def test_copies_are_equal():
    """A content survives copying and pickling, with its index or without."""
    content = Content.of("a\nb")
    content.pages(2)

    for other in (copy.copy(content), copy.deepcopy(content), pickle.loads(pickle.dumps(content))):
        assert content == other
        assert content.text == other.text
        assert 2 == len(other.pages(2))


@pytest.mark.parametrize("unit", ["x", "y" * 49 + "\n", "😀"])
def test_making_one_takes_steps_in_proportion(unit, steps):
    """Ten times the text takes at most about ten times as many steps."""

    def made(size):
        return steps(lambda: Content.of(unit * (size // len(unit))).pages(4_000))

    assert made(5_000_000) < 12 * made(500_000) + 100
