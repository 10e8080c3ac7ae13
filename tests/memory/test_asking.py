"""Which questions ask for what was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.memory.search.search_plan import asks_for_history

PAST = (
    "Why did we leave celery?",
    "for what reason was the cache given up",
    "what was wrong with the first scheme",
    "Which broker did we use previously?",
    "we used to poll: what replaced it",
    "왜 세션을 그만뒀지?",
    "토큰을 바꾼 이유",
    "예전에는 어떻게 저장했나",
)
PRESENT = (
    "How are logins signed?",
    "Why is it still done by hand?",
    "What happens to a failed job?",
    "Which library is used to parse dates?",
    "왜국의 항구",
    "지금 왜 이렇게 나누나",
    "로그인은 어떻게 하나",
    "",
)


@pytest.mark.parametrize("question", PAST)
def test_who_asks_for_reasons_or_for_what_was_asks_for_history(question):
    """Why, what for, what went wrong, and what used to be are told by their words."""
    assert asks_for_history(question)


@pytest.mark.parametrize("question", PRESENT)
def test_who_asks_for_what_holds_does_not(question):
    """A question in the present does not ask for history, though it may have one of the words."""
    assert not asks_for_history(question)


@given(text=st.text())
def test_any_text_may_be_asked(text):
    """No text raises, and spaces and case do not count."""
    assert asks_for_history(text) == asks_for_history(f"  {text}  ")


def test_a_hostile_question_is_read_to_its_end():
    """Text that nearly matches again and again is not tried again and again, which would take hours."""
    assert not asks_for_history("threw " * 1_000_000)
