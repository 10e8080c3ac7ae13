"""What holds for the tests themselves."""

import re
from pathlib import Path

import pytest
from row_helpers import every_row

FOLDER = Path(__file__).parent
# It asserts that a search lasted at least as long as it was given: no slow machine can make that fail.
CLOCKS = {"descriptors/test_search.py"}


@every_row("file", sorted(FOLDER.rglob("test_*.py")))
def test_no_test_depends_on_how_fast_the_machine_is(file):
    """What measures is a benchmark: a test counts steps, questions, bytes or suspensions."""
    stopwatches = re.findall(r"\b(?:perf_counter|process_time|timeit)\b", file.read_text(encoding="utf-8"))

    assert file == Path(__file__) or not stopwatches or str(file.relative_to(FOLDER)) in CLOCKS


def test_each_row_that_fails_is_named_and_those_behind_it_are_checked():
    """A test of many rows says of which of them it does not hold."""
    seen = []

    @every_row(("number", "text"), [(1, "a"), (2, "b"), (3, "c"), (4, "d")])
    def not_even(number, text):
        seen.append(text)
        assert number % 2

    for _ in range(2):
        with pytest.raises(BaseExceptionGroup, match="2 of 4 rows") as caught:
            not_even()

    assert 2 * ["a", "b", "c", "d"] == seen
    assert [["number, text: (2, 'b')"], ["number, text: (4, 'd')"]] == [
        one.__notes__ for one in caught.value.exceptions
    ]
