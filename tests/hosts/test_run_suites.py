"""The runner of the conformance suites counts results, and excuses only declared tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def runner():
    spec = importlib.util.spec_from_file_location("run_suites", HERE / "run_suites.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["run_suites"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["run_suites"]


REPORT = """<testsuites><testsuite>
<testcase classname="a.test_store.TestStore" name="test_put" time="0"/>
<testcase classname="a.test_store" name="test_get[1]" time="0"><failure message="x">y</failure></testcase>
<testcase classname="a.test_store" name="test_gone" time="0"><error message="x">y</error></testcase>
<testcase classname="a.test_store" name="test_left" time="0"><skipped message="needs a server"/></testcase>
</testsuite></testsuites>"""


def test_failures_count_unless_declared(runner, tmp_path):
    """An excused test that passes counts as passed; a skipped one is excused with its own reason."""
    (tmp_path / "report.xml").write_text(REPORT)
    excused = {"test_get": "no such thing", "test_put": "does not work"}
    found = runner.outcome_of(runner.cases_in(tmp_path / "report.xml"), excused)

    assert 1 == found.passed
    assert ["a/test_store::test_gone"] == found.failed
    assert {"a/test_store::test_get[1]": "no such thing", "a/test_store::test_left": "needs a server"} == found.excused


@pytest.mark.parametrize(
    ("test", "named", "is_it"),
    [
        ("a/test_store::test_get[1]", "test_get", True),
        ("a/test_store::test_get[1]", "test_get[1]", True),
        ("a/test_store::test_get[1]", "test_get[2]", False),
        ("a/test_store::test_get", "get", False),
        ("a/test_store::test_get", "test_store::test_get", True),
        ("test_get", "test_get", True),
    ],
)
def test_declaration_matches_complete_test_names(runner, test, named, is_it):
    """A name may include its file or case; a part of a name does not match."""
    assert is_it == runner.is_of(test, named)


def test_missing_suite_is_reported_as_not_run(runner):
    """The table has the reason, and the suite counts neither as passed nor as failed. Each result has its date."""
    suites = [
        {"host": "A", "suite": "s", "date": "2026-11-27", "versions": {"a": "1.0"}, "passed": 0, "failed": [], "excused": {}, "why": "no folder"},
        {"host": "B", "suite": "t", "date": "2026-11-28", "versions": {"b": "2"}, "passed": 3, "failed": ["x"], "excused": {"f::g": "r"}, "why": None},
    ]  # fmt: skip
    newest = [{**suites[1], "date": "2026-11-29", "versions": {"b": "3"}, "passed": 4, "failed": []}]
    lines = runner.table({"python": "3.11", "suites": suites, "newest": newest})

    assert "| A | s | a 1.0 | not run: no folder |  | 2026-11-27 |  |  |  |" in lines
    assert "| B | t | b 2 | 3 of 4 | 1 | 2026-11-28 | b 3 | 4 of 4 | 2026-11-29 |" in lines
    assert "* B, t: `g`: r." in lines
    assert "Run with Python 3.11." == lines[-1]


def test_results_of_other_suites_are_kept(runner):
    """Running one host's suites does not change the results of others, or of a suite without its source."""
    known = [
        {"host": "B", "suite": "t", "passed": 1, "why": None},
        {"host": "A", "suite": "s", "passed": 2, "why": None},
    ]
    found = [{"host": "B", "suite": "t", "passed": 3, "why": None}, {"host": "A", "suite": "s", "why": "no folder"}]
    new = {"host": "C", "suite": "u", "why": "no folder"}

    assert [known[1], found[0], new] == runner.merged(known, [*found, new])


def test_host_that_fails_does_not_stop_the_others(runner, monkeypatch, tmp_path):
    """A suite that takes too long is a failed one, and a missing package is reported with the host."""
    suite = runner.Suite.read(next(iter(sorted(runner.SUITES.glob("anthropic*.toml")))))

    def fail(*arguments, **_options):
        raise runner.subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(runner, "Environment", fail)
    result = runner.run_host("Anthropic", [suite], newest=True, writes=False)
    slow = runner.attrs.evolve(suite, source="installed")
    place = object.__new__(runner_environment(runner, monkeypatch, tmp_path))

    assert "environment cannot be made" in result.broken[0]
    assert ["it took more than 1800 seconds"] == place.outcome(slow).failed


def runner_environment(runner, monkeypatch, tmp_path):
    """Return the class of environments, whose commands take too long."""
    monkeypatch.undo()
    kind = runner.Environment
    monkeypatch.setattr(kind, "versions", lambda _self, names: dict.fromkeys(names, "1"))

    def run(*_arguments, **_options):
        raise runner.subprocess.TimeoutExpired("pytest", 1800)

    monkeypatch.setattr(kind, "run", run)
    return kind


def test_changes_list_versions_and_counts(runner):
    """Results of the newest releases are compared with the recorded ones."""
    before = {"suites": [{"host": "A", "suite": "s", "versions": {"a": "1.0"}, "passed": 3}]}
    now = {"suites": [{"host": "A", "suite": "s", "versions": {"a": "1.1"}, "passed": 2, "failed": ["test_new"]}]}

    assert ["A, s: a 1.0 -> 1.1; 3 -> 2 passed; fails: test_new"] == [*runner.changed(before, now)]
    assert [] == [*runner.changed(before, before)]


def test_declared_suites_are_complete(runner):
    """Each file can be read, pins its requirements, and names existing tests, pages and commands."""
    suites = [runner.Suite.read(file) for file in sorted(runner.SUITES.glob("*.toml"))]

    assert suites
    for suite in suites:
        assert suite.source.partition(":")[0] in ("installed", "sdist", "tests")
        assert suite.versions
        assert all((ROOT / one).exists() for one in suite.command if one.startswith("tests/"))
        assert all((HERE / one).exists() for one in suite.tests)
        assert all((ROOT / "docs" / "frameworks" / one).exists() for one in suite.pages)
        assert all(reason.strip() for reason in suite.excused.values())
