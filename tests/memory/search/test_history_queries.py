"""Detection of queries that ask for history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.memory.search.query_rewriting import asks_for_history

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
def test_asks_for_history_is_true_for_reasons_and_past(question):
    """Queries for reasons, failures and former states are detected by their words."""
    assert asks_for_history(question)


@pytest.mark.parametrize("question", PRESENT)
def test_asks_for_history_is_false_for_present_state(question):
    """A query about the present does not ask for history, even if it contains one of the words."""
    assert not asks_for_history(question)


@given(text=st.text())
def test_asks_for_history_accepts_any_text(text):
    """No text raises an error, and whitespace and case do not matter."""
    assert asks_for_history(text) == asks_for_history(f"  {text}  ")


def test_asks_for_history_is_fast_for_adversarial_text():
    """Text with many partial matches does not cause exponential backtracking."""
    assert not asks_for_history("threw " * 1_000_000)
