"""Everything that is checked, each in an environment of its own: ``nox`` runs it all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nox

# The interpreter that runs nox is there for certain; the others are tested where they are present.
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHONS = list(dict.fromkeys(["3.11", "3.12", "3.13", HERE]))


def _show_pyenv_interpreters() -> None:
    """Let pyenv's shims answer for every tested version that it holds, not only for the chosen one."""
    if not shutil.which("pyenv") or "PYENV_VERSION" in os.environ:
        return
    pyenv = ["pyenv", "versions", "--bare"]
    listed = subprocess.run(pyenv, capture_output=True, text=True, check=False).stdout.split()  # noqa: S603
    newest = {}
    for version in listed:
        if (matched := re.fullmatch(r"(3\.\d+)\.(\d+)", version)) and matched[1] in PYTHONS:
            newest[matched[1]] = max(newest.get(matched[1], -1), int(matched[2]))
    if newest:
        os.environ["PYENV_VERSION"] = ":".join(f"{minor}.{patch}" for minor, patch in sorted(newest.items()))


_show_pyenv_interpreters()
nox.options.sessions = ["lint", "types", "tests"]
nox.options.error_on_missing_interpreters = False
nox.options.default_venv_backend = "venv"
nox.needs_version = ">=2024.4"


@nox.session
def lint(session: nox.Session) -> None:
    """Style and formatting."""
    session.install("ruff==0.17.6")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Types of the package, of decorated tools, and completeness of the public ones."""
    session.install("--no-compile", ".[test]", "mypy==2.4.1", "pyright[nodejs]==1.1.414")
    session.run("mypy")
    session.run("pyright", "--verifytypes", "mama_structs", "--ignoreexternal")
    session.run("pyright", "tests/typing")


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """All tests, those of the docs included, against the built package; coverage is judged where nox runs."""
    session.install("--no-compile", ".[test]")
    if session.posargs:
        session.run("pytest", *session.posargs)
        return
    # What measures wants the machine for itself, and is judged once: the code is the same everywhere.
    on_all_cores = ["-n", "auto", "--dist", "worksteal"]
    at_once = [*on_all_cores, "-m", "not pace", "--ignore=tests/docs"]
    if session.python != HERE:
        # Most examples are tried on one interpreter; the quality of answers, what processes that are killed or share
        # a directory leave, and other people's frameworks are judged there.
        once = [
            "--ignore=tests/adapters",
            "--ignore=tests/benchmarks",
            "--ignore-glob=tests/memory/test_*_quality.py",
            "--ignore=tests/memory/test_engine_crash.py",
            "--ignore-glob=tests/*/test_*_processes.py",
        ]
        session.run("pytest", *at_once, *once, env={"HYPOTHESIS_PROFILE": "brief"})
        return
    session.run("pytest", *on_all_cores, "tests/docs")
    session.run("pytest", "-m", "pace", "--ignore=tests/docs")
    session.run("coverage", "erase")
    session.run("pytest", "--cov", "--cov-report=", *at_once)
    session.run("coverage", "report", "--fail-under=95")


@nox.session(default=False)
def nightly(session: nox.Session) -> None:
    """The property tests with 10,000 examples each."""
    session.install("--no-compile", ".[test]")
    paths = session.posargs or ["tests", "--ignore=tests/docs"]
    session.run("pytest", *paths, env={"HYPOTHESIS_PROFILE": "nightly"})


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """All benchmarks; each prints a table and writes JSON to benchmarks/results."""
    session.install("--no-compile", ".[test]")
    scripts = session.posargs or sorted(str(path) for path in Path("benchmarks").glob("[!_]*.py"))
    for script in scripts:
        session.run("python", script)
