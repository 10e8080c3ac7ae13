"""Selections of tests in the nox sessions."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
FILES = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
# The session `hosts` or `nightly` runs these files.
ELSEWHERE = {name for name in FILES if name.startswith(("tests/benchmarks/", "tests/hosts/suites/"))}


class RecordedSession:
    """A nox session that runs nothing and records the arguments of pytest."""

    def __init__(self, python):
        self.python, self.posargs, self.selections = python, [], []

    def install(self, *packages, **options):
        pass

    def warn(self, message):
        pass

    def run(self, *command, **options):
        if command[0] == "pytest" and "--collect-only" not in command:
            self.selections.append(command[1:])
        return ""


def noxfile(monkeypatch, others):
    """Return the names of noxfile.py, as if *others* were the other installed interpreters."""
    nox = ModuleType("nox")
    nox.options, nox.Session = SimpleNamespace(), object
    nox.session = lambda *function, **options: function[0] if function else lambda decorated: decorated
    monkeypatch.setitem(sys.modules, "nox", nox)
    monkeypatch.setenv("CI", "1")
    # noxfile.py changes both variables. Do not let it search for interpreters.
    monkeypatch.setenv("PYENV_VERSION", "system")
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    names = {"__name__": "noxfile"}
    exec(compile((ROOT / "noxfile.py").read_text(), "noxfile.py", "exec"), names)
    names.update(PRESENT=others, EACH_TEST_ONCE=bool(others))
    return names


def selected(arguments):
    """Return the test files that the arguments of pytest select."""
    paths = [one for one in arguments if one.startswith("tests")] or ["tests"]
    ignored = [one.removeprefix("--ignore=") for one in arguments if one.startswith("--ignore=")]

    def is_below(name, folders):
        return any(name == folder or name.startswith(f"{folder}/") for folder in folders)

    return {name for name in FILES if is_below(name, paths) and not is_below(name, ignored)}


@pytest.mark.parametrize("others", [[], ["3.12"], ["3.13", "3.12"]], ids=len)
def test_ci_run_selects_every_test_file(monkeypatch, tmp_path, others):
    """No test file is excluded from all sessions, whatever interpreters are installed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    # A running `.ci/run` needs this file until its last session.
    (tmp_path / ".coverage.here").touch()
    names = noxfile(monkeypatch, others)
    seen = set()
    for name, pythons in {"tests": [names["HERE"]], "others": others, "postgres": [names["HERE"]]}.items():
        for python in pythons:
            session = RecordedSession(python)
            names[name](session)
            # A session without tests marked "once" runs a file only in part.
            seen.update(*(selected(one) for one in session.selections if "not once" not in one))

    assert FILES - seen <= ELSEWHERE
    assert (tmp_path / ".coverage.here").exists()
