"""Rules that all tests must follow."""

import ast
import re
from pathlib import Path

import pytest
from row_helpers import every_row

FOLDER = Path(__file__).parent
# This file may use a stopwatch: it asserts only a minimum duration, which a slow machine cannot violate.
CLOCKS = {"refs/store/test_text_search.py"}


@every_row("file", sorted(FOLDER.rglob("test_*.py")))
def test_tests_do_not_measure_time(file):
    """Measurements belong to benchmarks. Tests count steps, calls, bytes or suspensions."""
    stopwatches = re.findall(r"\b(?:perf_counter|process_time|timeit)\b", file.read_text(encoding="utf-8"))

    assert file == Path(__file__) or not stopwatches or str(file.relative_to(FOLDER)) in CLOCKS


# Number of tests with the mark `of_the_directory` in each file, or "module" if the whole file has the mark.
OF_THE_DIRECTORY = {
    "memory/engines/local/test_crash.py": "module",
    "memory/engines/local/test_deletion.py": 4,
    "memory/engines/local/test_faults.py": 28,
    "memory/engines/local/test_row_faults.py": "module",
    "memory/engines/local/test_without_hnswlib.py": "module",
    "memory/store/test_memory_machine.py": 1,
    "memory/store/test_stored_evidence.py": 1,
    "memory/upkeep/test_erasure.py": 7,
    "memory/upkeep/test_jsonl_transfer.py": 1,
    "session/test_recall.py": 1,
    "session/test_session.py": 2,
    "storage/test_baseline.py": "module",
    "testing/conformance/test_memory_suite.py": 6,
}


def test_tests_of_directory_files_are_listed():
    """All other memory tests also run on a server, so none is excluded by accident."""
    found = {}
    for file in sorted(FOLDER.rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if "mark.of_the_directory" not in text or file == Path(__file__):
            continue
        tree = ast.parse(text)
        places = [*tree.body, *(one for top in tree.body if isinstance(top, ast.ClassDef) for one in top.body)]
        named = {
            target.id
            for one in places
            if isinstance(one, ast.Assign) and _is_of_the_directory(one.value, set())
            for target in one.targets
        }
        tests = [one for one in places if isinstance(one, ast.AsyncFunctionDef | ast.FunctionDef)]
        count = sum(any(_is_of_the_directory(mark, named) for mark in one.decorator_list) for one in tests)
        if "pytestmark" in named or count:
            found[str(file.relative_to(FOLDER))] = "module" if "pytestmark" in named else count

    assert found == OF_THE_DIRECTORY


def _is_of_the_directory(mark, named):
    """Return True if the expression contains the mark, or a name in *named*, to which the mark was assigned."""
    return any(
        (isinstance(one, ast.Attribute) and one.attr == "of_the_directory")
        or (isinstance(one, ast.Name) and one.id in named)
        for one in ast.walk(mark)
    )


def test_every_row_reports_failing_rows_and_checks_all():
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
