"""`split_pasted`: what was pasted, and the user's own words around it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.refs.store.text import Pasted, split_pasted

LOG = "".join(f"{n}: the fleet moved\n" for n in range(500))
OVER = 8_000


def test_a_question_at_either_end_stays_in_sight():
    """Paragraphs before and behind what was pasted are the user's own words."""
    assert Pasted("Why?\n\n", LOG, "") == split_pasted(f"Why?\n\n{LOG}", over=OVER)
    assert Pasted("", LOG, "\nWhy?") == split_pasted(f"{LOG}\nWhy?", over=OVER)
    assert Pasted("Look:\n \n", LOG, "\n\nWhy?\n") == split_pasted(f"Look:\n \n{LOG}\n\nWhy?\n", over=OVER)
    assert Pasted("Look:\r\n\r\n", LOG, "\r\nWhy?") == split_pasted(f"Look:\r\n\r\n{LOG}\r\nWhy?", over=OVER)


def test_several_paragraphs_stay_up_to_their_limit():
    """As many paragraphs as fit into 1,000 characters stay at each end."""
    words = "Some words of mine.\n\n"
    parted = split_pasted(words * 20 + LOG + "\n" + words * 200, over=OVER)

    assert words * 20 == parted.before
    assert 1_000 - len(words) <= len(parted.after) <= 1_000
    assert parted.after.endswith(words)


def test_a_fenced_block_that_is_most_of_the_text_is_what_was_pasted():
    """The fences stay outside, and so does all around them, blank lines or not."""
    assert Pasted("Fix this:\n```python\n", LOG[:-1], "\n```\nThanks!") == split_pasted(
        f"Fix this:\n```python\n{LOG}```\nThanks!", over=OVER
    )
    assert Pasted("```a\nb\n```\n~~~\n", LOG[:-1], "\n~~~") == split_pasted(f"```a\nb\n```\n~~~\n{LOG}~~~", over=OVER)
    assert Pasted("Cut off:\n```\n", LOG[:-1], "\n") == split_pasted(f"Cut off:\n```\n{LOG}", over=OVER)


def test_a_fenced_block_with_too_much_around_it_does_not_count():
    """What stays in sight stays small, though the block is most of the text."""
    parted = split_pasted(f"Why?\n\n{LOG}\n```\n{LOG * 3}```\n", over=OVER)

    assert "Why?\n\n" == parted.before
    assert len(parted.before) + len(parted.after) <= 2_000


def test_too_much_behind_a_fenced_block_does_not_count_either():
    """The same holds for what follows it."""
    parted = split_pasted(f"```\n{LOG * 3}```\n{LOG}\nWhy?", over=OVER)

    assert "\nWhy?" == parted.after


def test_without_a_blank_line_all_is_pasted():
    """Nothing tells the user's words from the rest, and a preview shows head and tail."""
    assert Pasted("", LOG, "") == split_pasted(LOG, over=OVER)
    assert Pasted("", "x" * 20_000, "") == split_pasted("x" * 20_000, over=OVER)
    assert Pasted("", f"\n\n{LOG}\n\n", "") == split_pasted(f"\n\n{LOG}\n\n", over=OVER)


def test_what_is_put_away_is_worth_it():
    """Fewer words stay where the rest would be small, and none where it would still be."""
    words = "Some words of mine.\n\n"

    assert Pasted("", words * 5, "") == split_pasted(words * 5, over=100)
    parted = split_pasted(words * 100, over=2_000)
    assert 400 < len(parted.before) <= 500
    assert len(parted.pasted) > 1_000


@pytest.mark.parametrize("over", [-1, 1.5, True, None, "8"])
def test_a_wrong_length_is_refused(over):
    """The length is a whole number."""
    with pytest.raises(InvalidArgument, match="over"):
        split_pasted("a", over=over)


TEXTS = st.lists(
    st.one_of(
        st.text(alphabet="ab \n\r\t`~", max_size=10),
        st.sampled_from(["\n\n", "\r\n \r\n", "```\n", "\n```\n", "\n~~~ x\n", "word " * 60, "line\n" * 60, "x" * 900]),
    ),
    max_size=30,
).map("".join)


@given(text=TEXTS | st.text(), over=st.integers(0, 10_000))
def test_nothing_is_lost(text, over):
    """The three parts joined are the text, what was pasted is worth it or all, and what stays in sight is small."""
    parted = split_pasted(text, over=over)

    assert text == parted.before + parted.pasted + parted.after
    assert parted.pasted == text or 2 * len(parted.pasted) > over
    assert max(len(parted.before), len(parted.after)) <= max(1_000, over // 2)


@pytest.mark.parametrize("piece", ["\n", " \n", "a\n\n", "`\n", "```\n", "```a\n", "~", " ", "`", "a ```\n\n"])
def test_steps_grow_with_the_text(piece, steps):
    """Eight times the text takes at most some eight times as many steps."""
    short, long = (piece * (length // len(piece)) for length in (50_000, 400_000))

    assert steps(split_pasted, long, over=OVER) < 12 * steps(split_pasted, short, over=OVER) + 100
