"""The table of behaviours: which tests belong to which cell, their recorded results, and the table on the page."""

from __future__ import annotations

import fcntl
import importlib.metadata
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from framework_drivers import FRAMEWORKS, Framework

ROOT: Final = Path(__file__).parents[2]
FIGURES: Final = ROOT / "docs" / "internals" / "behaviours.json"
PAGE_PATH: Final = ROOT / "docs" / "frameworks" / "overview.md"
PAGES_LOCK: Final = ROOT / ".nox" / "pages.lock"
WRITE_VARIABLE: Final = "MAMA_STRUCTS_TEST_WRITE_BEHAVIOURS"
ROWS: Final = (
    *("types in", "types out", "strict", "interruption", "cut-off calls"),
    *("unknown items", "media", "handles", "recall", "notes"),
)
_BEGIN: Final = f"<!-- the table: {WRITE_VARIABLE}=1 pytest tests/adapters -m behaviour -->"
_END: Final = "<!-- end of the table -->"
# Values of `Framework.sees_answers`, from least to most.
_VIEWS: Final = ("none", "last", "all")


def _marks(row: str, framework: Framework) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.behaviour(row=row, framework=framework.name)]
    if missing := framework.missing:
        marks.append(pytest.mark.skip(f"needs {', '.join(missing)}: `nox -s hosts` runs it with {framework.name}"))
    return marks


def behaviour(row: str, *, sees_answers: str = "none") -> Callable[[Any], Any]:
    """
    Run a test once per framework and API, as part of the cell of a row.

    The test has the parameter *drive*. With *sees_answers*, it runs only for frameworks whose adapter receives at least
    these answers of the model.
    """
    found = [
        pytest.param(drive, id=f"{framework.name}-{api}".replace(" ", "_"), marks=_marks(row, framework))
        for framework in FRAMEWORKS
        if row not in framework.not_applicable and _VIEWS.index(framework.sees_answers) >= _VIEWS.index(sees_answers)
        for api, drive in (framework.strict_drives if row == "strict" else framework.drives).items()
    ]
    return pytest.mark.parametrize("drive", found)


class Recorder:
    """Collects the results of the tests of each cell, and writes them when the run ends."""

    def __init__(self) -> None:
        self._results: dict[tuple[str, str], dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test that ran, and each phase that failed."""
        for name, (row, framework) in report.user_properties:
            if name == "behaviour" and (report.when == "call" or report.failed) and not report.skipped:
                tests = self._results.setdefault((row, framework), {})
                if tests.get(report.nodeid) != "failed":
                    tests[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        """Write the results of this run, and keep the results of frameworks that were not run."""
        PAGES_LOCK.parent.mkdir(exist_ok=True)
        # Several hosts record their results at the same time, and the runner of their suites writes the same page.
        with PAGES_LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._write()

    def _write(self) -> None:
        figures = read() if FIGURES.exists() else {"cells": {}, "versions": {}}
        for (row, framework), tests in sorted(self._results.items()):
            figures["cells"].setdefault(row, {})[framework] = {
                "passed": sum(state == "passed" for state in tests.values()),
                "failed": sorted(test for test, state in tests.items() if state == "failed"),
            }
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        for framework in FRAMEWORKS:
            if any(name == framework.name for _, name in self._results):
                version = importlib.metadata.version(framework.package)
                figures["versions"][framework.name] = {"package": framework.package, "version": version, "date": today}
        FIGURES.write_text(f"{json.dumps(figures, indent=1, sort_keys=True)}\n", encoding="utf-8")
        PAGE_PATH.write_text(insert(PAGE_PATH.read_text(encoding="utf-8"), figures), encoding="utf-8")


def create_recorder() -> Recorder | None:
    """Return a recorder if the environment asks to write the table."""
    return Recorder() if os.environ.get(WRITE_VARIABLE) else None


def read() -> dict[str, Any]:
    """Return the recorded results."""
    return dict(json.loads(FIGURES.read_text(encoding="utf-8")))


def insert(text: str, figures: Mapping[str, Any]) -> str:
    """Return the text of a page with the table of recorded results."""
    head, found, rest = text.partition(_BEGIN)
    _, ended, tail = rest.partition(_END)
    if not found or not ended:
        raise ValueError("the page lacks the comments that enclose the table of behaviours")
    body = "\n".join(_iterate_lines(figures))
    return f"{head}{_BEGIN}\n\n{body}\n\n{_END}{tail}"


def _iterate_lines(figures: Mapping[str, Any]) -> Iterable[str]:
    reasons = dict.fromkeys(itertools.chain.from_iterable(one.not_applicable.values() for one in FRAMEWORKS))
    notes = {reason: number for number, reason in enumerate(reasons, start=1)}
    yield f"| behavior | {' | '.join(one.name for one in FRAMEWORKS)} |"
    yield f"| --- |{' --- |' * len(FRAMEWORKS)}"
    for row in ROWS:
        cells = [_format_cell(figures["cells"].get(row, {}).get(one.name), notes, one, row) for one in FRAMEWORKS]
        yield f"| {row} | {' | '.join(cells)} |"
    versions = [figures["versions"].get(one.name, {}) for one in FRAMEWORKS]
    yield f"| version | {' | '.join(one.get('version', 'not run') for one in versions)} |"
    yield f"| run on | {' | '.join(one.get('date', '') for one in versions)} |"
    yield ""
    yield from (f"{number}. Not applicable: {reason}." for reason, number in notes.items())


def _format_cell(cell: Mapping[str, Any] | None, notes: Mapping[str, int], framework: Framework, row: str) -> str:
    if reason := framework.not_applicable.get(row):
        return f"({notes[reason]})"
    if cell is None:
        return "not run"
    return "failed" if cell["failed"] else "yes"
