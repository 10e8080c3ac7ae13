"""
Runs the conformance suites of the frameworks, unchanged, on our adapters.

``tests/hosts/suites/*.toml`` declare the suites; a file without a command is a host without a suite. Each host has its
own environment in ``.nox/hosts``, with its pinned version. A suite comes from an installed package, from a source
distribution, or from a checkout below ``MAMA_STRUCTS_HOST_TESTS``; without that it is reported as not run. In addition
to a host's suites, our own tests of its adapter and the code blocks of its page are run.

``--write`` writes the results to docs/internals/hosts.json and the table to docs/internals/hosts.md and
docs/frameworks/overview.md; ``--table`` only writes the table again; ``--newest`` uses the newest release of each host,
reports changes, and never fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import attrs

ROOT: Final = Path(__file__).parents[2]
SUITES: Final = ROOT / "tests" / "hosts" / "suites"
PAGE_PATH: Final = ROOT / "docs" / "internals" / "hosts.md"
# This page has the table without the excused tests.
OVERVIEW_PATH: Final = ROOT / "docs" / "frameworks" / "overview.md"
FIGURES: Final = PAGE_PATH.with_suffix(".json")
HOST_TESTS_VARIABLE: Final = "MAMA_STRUCTS_HOST_TESTS"
_BEGIN: Final = "<!-- the table: python tests/hosts/run_suites.py --table -->"
_END: Final = "<!-- end of the table -->"
_TOOLS: Final = ("pytest>=8", "pytest-cov>=6", "pytest-asyncio>=0.24", "hypothesis>=6.100", "jsonschema>=4.21")
# Minimum branch coverage of an adapter by our own tests alone, in per cent.
_COVERED: Final = 90
# Timeout of a suite, in seconds.
_SECONDS: Final = 1800


@attrs.frozen(kw_only=True)
class Suite:
    """A conformance suite of a host, as declared in its file."""

    name: str
    host: str
    suite: str
    requirements: tuple[str, ...]
    extras: tuple[str, ...]
    source: str
    command: tuple[str, ...]
    versions: tuple[str, ...]
    tests: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()
    """Adapters that only our own tests of this host reach, which must reach nearly all of them."""
    excused: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def read(cls, file: Path) -> Suite:
        """Read the declaration of a suite from a file."""
        said = tomllib.loads(file.read_text(encoding="utf-8"))
        several = {name: tuple(said.get(name, ())) for name in ("requirements", "extras", "command", "versions")}
        known = {"host", "suite", "from", "excused", "tests", "pages", "covers", *several}
        if unknown := said.keys() - known:
            raise ValueError(f"{file.name}: unknown {', '.join(sorted(unknown))}")
        return cls(
            name=file.stem,
            host=said["host"],
            suite=said["suite"],
            source=said["from"],
            tests=tuple(said.get("tests", ())),
            pages=tuple(said.get("pages", ())),
            covers=tuple(said.get("covers", ())),
            excused={one["test"]: one["reason"] for one in said.get("excused", ())},
            **several,
        )


@attrs.define(kw_only=True)
class Outcome:
    """The result of a suite. *why* is the reason for not running it."""

    passed: int = 0
    failed: list[str] = attrs.field(factory=list)
    excused: dict[str, str] = attrs.field(factory=dict)
    versions: dict[str, str] = attrs.field(factory=dict)
    why: str | None = None


def is_of(test: str, named: str) -> bool:
    """Return True if a declared name denotes this test (``file.py::class::name[case]``). The case may be omitted."""
    bare = test.partition("[")[0]
    return named in (test, bare) or bare.endswith((f"::{named}", f"/{named}")) or test.endswith(f"::{named}")


def outcome_of(cases: Iterable[tuple[str, str]], excused: Mapping[str, str]) -> Outcome:
    """Return the number of passed tests, the failed tests, and the excused tests, which include skipped ones."""
    found = Outcome()
    for test, state in cases:
        named = next((one for one in excused if is_of(test, one)), None)
        if state == "passed":
            found.passed += 1
        elif named is not None:
            found.excused[test] = excused[named]
        elif state == "failed":
            found.failed.append(test)
        else:
            found.excused[test] = state
    return found


def cases_in(report: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and state of each test in a pytest report (``--junitxml``)."""
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}::{case.get('name')}"
        children = {child.tag: child for child in case}
        if "failure" in children or "error" in children:
            yield name, "failed"
        elif "skipped" in children:
            yield name, children["skipped"].get("message") or "skipped"
        else:
            yield name, "passed"


def unpinned(requirement: str) -> str:
    """Return a requirement without its version pin."""
    return requirement.partition("==")[0]


class Environment:
    """A virtual environment of one host."""

    def __init__(self, host: str, suites: Sequence[Suite], *, newest: bool) -> None:
        folder = re.sub(r"[^a-z0-9]+", "-", host.lower()) + ("-newest" if newest else "")
        self.place: Final = ROOT / ".nox" / "hosts" / folder
        self.python: Final = self.place / "bin" / "python"
        if not self.python.exists():
            venv.create(self.place, with_pip=True, symlinks=True)
        asked = dict.fromkeys(one for suite in suites for one in suite.requirements)
        extras = dict.fromkeys(one for suite in suites for one in suite.extras)
        # The pages of the documentation need the extras postgres and testing.
        own = f"{ROOT}[{','.join(('postgres', 'testing', *extras))}]"
        wanted = [own, *_TOOLS, *(map(unpinned, asked) if newest else asked)]
        upgrade = ["--upgrade", "--upgrade-strategy", "eager"] if newest else []
        self.run("-m", "pip", "install", "-q", "--no-compile", "--force-reinstall", "--no-deps", str(ROOT))
        self.run("-m", "pip", "install", "-q", "--no-compile", *upgrade, *wanted)

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the interpreter of this environment, and raise if it fails."""
        return subprocess.run([str(self.python), *arguments], check=True, text=True, cwd=ROOT, **options)

    def versions(self, names: Iterable[str]) -> dict[str, str]:
        """Return the installed versions of packages."""
        code = "import sys, json, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
        return dict(json.loads(self.run("-c", code, *names, stdout=subprocess.PIPE).stdout))

    def suite_of(self, source: str) -> Path | None:
        """Return the directory of a suite, or None if the installed package contains it. Raise if it is missing."""
        kind, _, rest = source.partition(":")
        if kind == "installed":
            return None
        if kind == "tests":
            given = os.environ.get(HOST_TESTS_VARIABLE)
            if given is None or not (Path(given) / rest).exists():
                raise LookupError(f"it lies in no package: name a folder that has {rest} in {HOST_TESTS_VARIABLE}")
            return Path(given) / rest
        name, _, version = rest.partition("==")
        version = self.versions([name])[name] if "newest" in self.place.name else version
        place = self.place / "suites" / f"{name}-{version}"
        if not place.exists():
            with tempfile.TemporaryDirectory() as folder:
                sources = ["--no-binary", ":all:", "--no-deps", "-d", folder]
                self.run("-m", "pip", "download", "-q", *sources, f"{name}=={version}")
                (archive,) = Path(folder).glob("*.tar.gz")
                with tarfile.open(archive) as opened:
                    opened.extractall(place, filter="data")
        (top,) = place.iterdir()
        return top

    def outcome(self, suite: Suite) -> Outcome:
        """Run a suite and return its result."""
        try:
            place = self.suite_of(suite.source)
        except LookupError as error:
            return Outcome(why=str(error), versions=self.versions(suite.versions))
        given = {"MAMA_STRUCTS_SUITE": "" if place is None else str(place)}
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            program, *rest = suite.command
            of_pytest = [f"--junitxml={report}", "-o", "addopts=", "-p", "no:cacheprovider"]
            command = ["-m", "pytest", *rest, *of_pytest] if program == "pytest" else rest
            done = subprocess.run(
                [str(self.python), *command],
                cwd=ROOT,
                env=os.environ | given,
                timeout=_SECONDS,
                text=True,
                check=False,
                stdout=None if program == "pytest" else subprocess.PIPE,
            )
            if program == "pytest":
                found = outcome_of(cases_in(report) if report.exists() else [("it", "failed")], suite.excused)
            else:
                found = self._said(done.stdout, suite)
        found.versions = self.versions(suite.versions)
        return found

    def _said(self, printed: str, suite: Suite) -> Outcome:
        """Parse the JSON result in the last line of a suite that does not run under pytest."""
        print(printed)
        try:
            said = json.loads(printed.strip().splitlines()[-1])
        except (IndexError, ValueError):
            return Outcome(failed=["it ended without a result"])
        cases = [*((one, "failed") for one in said["failed"]), *((one, "left out") for one in said.get("excused", ()))]
        found = outcome_of(cases, suite.excused)
        found.passed = int(said["passed"])
        return found

    def own_tests(self, suites: Sequence[Suite]) -> bool:
        """Run our own tests of the host's adapters and the code blocks of its pages; return True if all passed."""
        files = [f"tests/hosts/{one}" for suite in suites for one in suite.tests]
        pages = [one for suite in suites for one in suite.pages]
        covered = [f"--cov=mama_structs.adapters.{one}" for suite in suites for one in suite.covers]
        counting = ["--cov-branch", "--cov-config=/dev/null", f"--cov-fail-under={_COVERED}"] if covered else []
        runs = [[*dict.fromkeys(files), *covered, *counting]] if files else []
        if pages:
            chosen = " or ".join(dict.fromkeys(pages))
            runs.append(["tests/docs/test_pages.py", "-k", f"test_page_blocks_print_the_shown_output and ({chosen})"])
        command = [str(self.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs"]
        return all(subprocess.run([*command, *one], cwd=ROOT, check=False).returncode == 0 for one in runs)


def table(figures: Mapping[str, Any], *, with_reasons: bool = True) -> list[str]:
    """Return the lines of the table of all results, by default followed by the excused tests and their reasons."""
    lines = ["| host | suite | versions | passed | excused |", "| --- | --- | --- | --- | --- |"]
    reasons: list[str] = []
    for one in figures["suites"]:
        versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
        passed = f"not run: {one['why']}" if one["why"] else f"{one['passed']} of {one['passed'] + len(one['failed'])}"
        lines.append(f"| {one['host']} | {one['suite']} | {versions} | {passed} | {len(one['excused']) or ''} |")
        by_reason: dict[str, set[str]] = {}
        for test, reason in one["excused"].items():
            by_reason.setdefault(reason, set()).add(test.rpartition("::")[2])
        reasons += [
            f"* {one['host']}, {one['suite']}: {', '.join(f'`{name}`' for name in sorted(names))}: {reason}."
            for reason, names in by_reason.items()
        ]
    days = sorted({one["date"] for one in figures["suites"]})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    excused = ["Excused:", "", *reasons, ""] if with_reasons else []
    return [*lines, "", *excused, f"Run on {when} with Python {figures['python']}."]


def insert_table(text: str, figures: Mapping[str, Any], *, with_reasons: bool = True) -> str:
    """Return the text of a page with a new table."""
    head, found, rest = text.partition(_BEGIN)
    _, ended, tail = rest.partition(_END)
    if not found or not ended:
        raise ValueError("the page lacks the comments that enclose the table")
    body = "\n".join(table(figures, with_reasons=with_reasons))
    return f"{head}{_BEGIN}\n\n{body}\n\n{_END}{tail}"


def write_table() -> None:
    """Replace the tables on both pages."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    for path in (PAGE_PATH, OVERVIEW_PATH):
        text = insert_table(path.read_text(encoding="utf-8"), figures, with_reasons=path == PAGE_PATH)
        path.write_text(text, encoding="utf-8")


def merged(known: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the results of this run, and the recorded results of all suites that were not run."""
    new = {(one["host"], one["suite"]) for one in found}
    kept = [one for one in known if (one["host"], one["suite"]) not in new]
    return sorted([*kept, *found], key=lambda one: (one["host"].lower(), one["suite"]))


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each suite whose result or version differs from the recorded one."""
    known = {(one["host"], one["suite"]): one for one in before["suites"]}
    for one in now["suites"]:
        old = known.get((one["host"], one["suite"]), {})
        facts = [
            f"{name} {old.get('versions', {}).get(name, 'none')} -> {version}"
            for name, version in one["versions"].items()
            if old.get("versions", {}).get(name) != version
        ]
        if old.get("passed") != one["passed"]:
            facts.append(f"{old.get('passed', 'none')} -> {one['passed']} passed")
        facts += [f"fails: {test}" for test in one.get("failed", ())]
        if facts:
            yield f"{one['host']}, {one['suite']}: {'; '.join(facts)}"


def main() -> int:
    """Run the requested suites, and return 1 if a test fails without an excuse."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", nargs="*", help="names of hosts, or of suites' files; all by default")
    for flag in ("--write", "--table", "--newest"):
        parser.add_argument(flag, action="store_true")
    asked = parser.parse_args()
    if asked.table:
        write_table()
        return 0
    suites = [Suite.read(file) for file in sorted(SUITES.glob("*.toml"))]
    wanted = {one.lower() for one in asked.hosts}
    suites = [one for one in suites if not wanted or {one.host.lower(), one.name.lower()} & wanted]
    found, broken = [], []
    for host in dict.fromkeys(one.host for one in suites):
        own = [one for one in suites if one.host == host]
        try:
            place = Environment(host, own, newest=asked.newest)
        except subprocess.CalledProcessError as error:
            broken.append(f"{host}: its environment cannot be made: {error}")
            continue
        for suite in (one for one in own if one.command):
            outcome = place.outcome(suite)
            day = f"{datetime.now(UTC):%Y-%m-%d}"
            found.append({"host": host, "suite": suite.suite, "date": day, **attrs.asdict(outcome)})
            broken += [f"{host}, {suite.suite}: {test} failed" for test in outcome.failed]
        if not place.own_tests(own):
            broken.append(f"{host}: our own tests, or its page, failed")
    now = {"python": sys.version.split()[0], "suites": found}
    print("\n".join(table(now)))
    if asked.newest and FIGURES.exists():
        lines = changed(json.loads(FIGURES.read_text(encoding="utf-8")), now)
        print("\n".join(["", "Changed:", *(lines or ["nothing"])]))
    if asked.write:
        known = json.loads(FIGURES.read_text(encoding="utf-8"))["suites"] if FIGURES.exists() else []
        now["suites"] = merged(known, found)
        FIGURES.write_text(f"{json.dumps(now, indent=1, ensure_ascii=False)}\n", encoding="utf-8")
        write_table()
    print("\n".join(["", *broken] if broken else ["", "all that ran passed, but for what is excused"]))
    return 1 if broken and not asked.newest else 0


if __name__ == "__main__":
    sys.exit(main())
