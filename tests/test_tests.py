"""What holds for the tests themselves."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
# It asserts that a search lasted at least as long as it was given: no slow machine can make that fail.
CLOCKS = {"descriptors/test_search.py"}


@pytest.mark.parametrize("file", sorted(FOLDER.rglob("test_*.py")), ids=lambda file: str(file.relative_to(FOLDER)))
def test_no_test_depends_on_how_fast_the_machine_is(file):
    """What measures is a benchmark: a test counts steps, questions, bytes or suspensions."""
    stopwatches = re.findall(r"\b(?:perf_counter|process_time|timeit)\b", file.read_text(encoding="utf-8"))

    assert file == Path(__file__) or not stopwatches or str(file.relative_to(FOLDER)) in CLOCKS
