"""`split_pasted`: separates pasted text from the user's own words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.refs.store.text import PastedText, split_pasted

LOG = "".join(f"{n}: the fleet moved\n" for n in range(500))
OVER = 8_000


def test_split_pasted_keeps_question_at_either_end():
    """Paragraphs before and after the pasted text are the user's own words."""
    assert PastedText("Why?\n\n", LOG, "") == split_pasted(f"Why?\n\n{LOG}", descriptor_chars=OVER)
    assert PastedText("", LOG, "\nWhy?") == split_pasted(f"{LOG}\nWhy?", descriptor_chars=OVER)
    assert PastedText("Look:\n \n", LOG, "\n\nWhy?\n") == split_pasted(
        f"Look:\n \n{LOG}\n\nWhy?\n", descriptor_chars=OVER
    )
    assert PastedText("Look:\r\n\r\n", LOG, "\r\nWhy?") == split_pasted(
        f"Look:\r\n\r\n{LOG}\r\nWhy?", descriptor_chars=OVER
    )


def test_split_pasted_keeps_paragraphs_up_to_limit():
    """All paragraphs within 1,000 characters stay at each end."""
    words = "Some words of mine.\n\n"
    parted = split_pasted(words * 20 + LOG + "\n" + words * 200, descriptor_chars=OVER)

    assert words * 20 == parted.before
    assert 1_000 - len(words) <= len(parted.after) <= 1_000
    assert parted.after.endswith(words)


def test_split_pasted_uses_largest_fenced_block():
    """The fences and all text around them stay outside, with or without blank lines."""
    assert PastedText("Fix this:\n```python\n", LOG[:-1], "\n```\nThanks!") == split_pasted(
        f"Fix this:\n```python\n{LOG}```\nThanks!", descriptor_chars=OVER
    )
    assert PastedText("```a\nb\n```\n~~~\n", LOG[:-1], "\n~~~") == split_pasted(
        f"```a\nb\n```\n~~~\n{LOG}~~~", descriptor_chars=OVER
    )
    assert PastedText("Cut off:\n```\n", LOG[:-1], "\n") == split_pasted(f"Cut off:\n```\n{LOG}", descriptor_chars=OVER)


def test_split_pasted_ignores_fence_when_text_before_it_is_long():
    """The visible part must be short, even if the block is most of the text."""
    parted = split_pasted(f"Why?\n\n{LOG}\n```\n{LOG * 3}```\n", descriptor_chars=OVER)

    assert "Why?\n\n" == parted.before
    assert len(parted.before) + len(parted.after) <= 2_000


def test_split_pasted_ignores_fence_when_text_after_it_is_long():
    """The same limit applies to the text after the block."""
    parted = split_pasted(f"```\n{LOG * 3}```\n{LOG}\nWhy?", descriptor_chars=OVER)

    assert "\nWhy?" == parted.after


def test_split_pasted_returns_all_without_blank_line():
    """The user's words cannot be separated, and a preview shows both ends."""
    assert PastedText("", LOG, "") == split_pasted(LOG, descriptor_chars=OVER)
    assert PastedText("", "x" * 20_000, "") == split_pasted("x" * 20_000, descriptor_chars=OVER)
    assert PastedText("", f"\n\n{LOG}\n\n", "") == split_pasted(f"\n\n{LOG}\n\n", descriptor_chars=OVER)


def test_split_pasted_keeps_fewer_words_when_rest_is_short():
    """If the descriptor would still be short, everything counts as pasted."""
    words = "Some words of mine.\n\n"

    assert PastedText("", words * 5, "") == split_pasted(words * 5, descriptor_chars=100)
    parted = split_pasted(words * 100, descriptor_chars=2_000)
    assert 400 < len(parted.before) <= 500
    assert len(parted.pasted) > 1_000


@pytest.mark.parametrize("over", [-1, 1.5, True, None, "8"])
def test_split_pasted_rejects_invalid_length(over):
    """The length must be an integer."""
    with pytest.raises(InvalidArgument, match="descriptor_chars"):
        split_pasted("a", descriptor_chars=over)


TEXTS = st.lists(
    st.one_of(
        st.text(alphabet="ab \n\r\t`~", max_size=10),
        st.sampled_from(["\n\n", "\r\n \r\n", "```\n", "\n```\n", "\n~~~ x\n", "word " * 60, "line\n" * 60, "x" * 900]),
    ),
    max_size=30,
).map("".join)


@given(text=TEXTS | st.text(), over=st.integers(0, 10_000))
def test_split_pasted_parts_join_to_text(text, over):
    """The pasted part is long enough or everything, and the visible parts are short."""
    parted = split_pasted(text, descriptor_chars=over)

    assert text == parted.before + parted.pasted + parted.after
    assert parted.pasted == text or 2 * len(parted.pasted) > over
    assert max(len(parted.before), len(parted.after)) <= max(1_000, over // 2)


@pytest.mark.parametrize("piece", ["\n", " \n", "a\n\n", "`\n", "```\n", "```a\n", "~", " ", "`", "a ```\n\n"])
def test_split_pasted_takes_linear_steps(piece, steps):
    """Eight times the text takes at most about eight times the steps."""
    short, long = (piece * (length // len(piece)) for length in (50_000, 400_000))

    assert (
        steps(split_pasted, long, descriptor_chars=OVER) < 12 * steps(split_pasted, short, descriptor_chars=OVER) + 100
    )
