"""
Runs the conformance suites of the frameworks, unchanged, on our adapters.

``tests/hosts/suites/*.toml`` declare the suites; a file without a command is a host without a suite. Each host has its
own environment in ``.nox/hosts``, with its pinned version. A suite comes from an installed package, from a source
distribution, or from a checkout below ``MAMA_STRUCTS_TEST_SOURCES``; without that it is reported as not run. In addition
to a host's suites, our own tests of its adapter and the code blocks of its page are run.

Hosts run in parallel (``--jobs``). The output of each is in ``.nox/hosts/HOST.log``, and its results are printed when it
ends. A suite without its source, or beyond its time limit, does not stop the others.

``--write`` writes the results of each host when it ends to docs/internals/hosts.json, and the table to
docs/internals/hosts.md and docs/frameworks/overview.md; it also records the host's cells of the table of behaviours.
``--table`` only writes the tables again. ``--newest`` uses the newest release of each host, reports changes, and never
fails; its results are separate columns of the table.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
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
# Held while a process writes the pages.
PAGES_LOCK: Final = ROOT / ".nox" / "pages.lock"
HOST_TESTS_VARIABLE: Final = "MAMA_STRUCTS_TEST_SOURCES"
_BEGIN: Final = "<!-- the table: python tests/hosts/run_suites.py --table -->"
_END: Final = "<!-- end of the table -->"
_TOOLS: Final = ("pytest>=8", "pytest-cov>=6", "pytest-asyncio>=0.24", "hypothesis>=6.100", "jsonschema>=4.21")
# Minimum branch coverage of an adapter by our own tests alone, in per cent.
_COVERED: Final = 90
# Timeout of a suite, and of our own tests of a host, in seconds.
_SECONDS: Final = 1800
_BEHAVIOURS: Final = ("tests/adapters/test_behaviours.py", "tests/adapters/test_control_flow.py")
_BEHAVIOURS_VARIABLE: Final = "MAMA_STRUCTS_TEST_WRITE_BEHAVIOURS"


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
    frameworks: tuple[str, ...] = ()
    """Columns of the table of behaviours whose tests run in the environment of this host."""
    after: tuple[str, ...] = ()
    """Hosts whose environments the suite uses."""
    covers: tuple[str, ...] = ()
    """Adapters that only our own tests of this host reach, which must reach nearly all of them."""
    excused: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def read(cls, file: Path) -> Suite:
        """Read the declaration of a suite from a file."""
        said = tomllib.loads(file.read_text(encoding="utf-8"))
        several = {name: tuple(said.get(name, ())) for name in ("requirements", "extras", "command", "versions")}
        known = {"host", "suite", "from", "excused", "tests", "pages", "frameworks", "after", "covers", *several}
        if unknown := said.keys() - known:
            raise ValueError(f"{file.name}: unknown {', '.join(sorted(unknown))}")
        return cls(
            name=file.stem,
            host=said["host"],
            suite=said["suite"],
            source=said["from"],
            tests=tuple(said.get("tests", ())),
            pages=tuple(said.get("pages", ())),
            frameworks=tuple(said.get("frameworks", ())),
            after=tuple(said.get("after", ())),
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


def place_of(host: str, *, newest: bool) -> Path:
    """Return the folder of a host's environment."""
    folder = re.sub(r"[^a-z0-9]+", "-", host.lower()) + ("-newest" if newest else "")
    return ROOT / ".nox" / "hosts" / folder


class Environment:
    """A virtual environment of one host. The output of its commands is appended to its log."""

    def __init__(self, host: str, suites: Sequence[Suite], *, newest: bool) -> None:
        self.is_newest: Final = newest
        self.place: Final = place_of(host, newest=newest)
        self.log: Final = self.place.with_suffix(".log")
        self.python: Final = self.place / "bin" / "python"
        if not self.python.exists():
            venv.create(self.place, with_pip=True, symlinks=True)
        self.log.write_text("")
        asked = dict.fromkeys(one for suite in suites for one in suite.requirements)
        extras = dict.fromkeys(one for suite in suites for one in suite.extras)
        # The pages of the documentation need the extras postgres and testing.
        own = f"{ROOT}[{','.join(('postgres', 'testing', *extras))}]"
        wanted = [own, *_TOOLS, *(map(unpinned, asked) if newest else asked)]
        upgrade = ["--upgrade", "--upgrade-strategy", "eager"] if newest else []
        self.run("-m", "pip", "install", "-q", "--no-compile", "--force-reinstall", "--no-deps", str(ROOT))
        self.run("-m", "pip", "install", "-q", "--no-compile", *upgrade, *wanted)

    def run(
        self, *arguments: str, reads: bool = False, check: bool = True, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the interpreter of this environment. Raise if it fails or takes too long. With *reads*, return stdout."""
        with self.log.open("a", encoding="utf-8") as log:
            return subprocess.run(
                [str(self.python), *arguments],
                check=check,
                text=True,
                cwd=ROOT,
                env=os.environ | (env or {}),
                timeout=_SECONDS,
                stdout=subprocess.PIPE if reads else log,
                stderr=log,
            )

    def versions(self, names: Iterable[str]) -> dict[str, str]:
        """Return the installed versions of packages."""
        code = "import sys, json, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
        return dict(json.loads(self.run("-c", code, *names, reads=True).stdout))

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
        version = self.versions([name])[name] if self.is_newest else version
        place = self.place / "suites" / f"{name}-{version}"
        if not place.exists():
            with tempfile.TemporaryDirectory() as folder:
                # Only this package from its source: with ":all:", the build of its metadata would compile its tools.
                sources = ["--no-binary", name, "--no-deps", "-d", folder]
                self.run("-m", "pip", "download", "-q", *sources, f"{name}=={version}")
                (archive,) = Path(folder).glob("*.tar.gz")
                with tarfile.open(archive) as opened:
                    opened.extractall(place, filter="data")
        (top,) = place.iterdir()
        return top

    def outcome(self, suite: Suite) -> Outcome:
        """Run a suite and return its result."""
        missing = [one for one in suite.after if not (place_of(one, newest=self.is_newest) / "bin" / "python").exists()]
        if missing:
            why = f"it uses the environments of {', '.join(missing)}: run their suites first"
            return Outcome(why=why, versions=self.versions(suite.versions))
        try:
            place = self.suite_of(suite.source)
        except LookupError as error:
            return Outcome(why=str(error), versions=self.versions(suite.versions))
        except subprocess.CalledProcessError:
            return Outcome(why=f"no source of {suite.source} was found", versions=self.versions(suite.versions))
        given = {"MAMA_STRUCTS_TEST_SUITE": "" if place is None else str(place)}
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            program, *rest = suite.command
            of_pytest = [f"--junitxml={report}", "-o", "addopts=", "-p", "no:cacheprovider"]
            command = ["-m", "pytest", *rest, *of_pytest] if program == "pytest" else rest
            try:
                done = self.run(*command, reads=program != "pytest", check=False, env=given)
            except subprocess.TimeoutExpired:
                found = Outcome(failed=[f"it took more than {_SECONDS} seconds"])
            else:
                if program == "pytest":
                    found = outcome_of(cases_in(report) if report.exists() else [("it", "failed")], suite.excused)
                else:
                    found = self._said(done.stdout, suite)
        found.versions = self.versions(suite.versions)
        return found

    def _said(self, printed: str, suite: Suite) -> Outcome:
        """Parse the JSON result in the last line of a suite that does not run under pytest."""
        with self.log.open("a", encoding="utf-8") as log:
            log.write(printed)
        try:
            said = json.loads(printed.strip().splitlines()[-1])
        except (IndexError, ValueError):
            return Outcome(failed=["it ended without a result"])
        cases = [*((one, "failed") for one in said["failed"]), *((one, "left out") for one in said.get("excused", ()))]
        found = outcome_of(cases, suite.excused)
        found.passed = int(said["passed"])
        return found

    def own_tests(self, suites: Sequence[Suite], *, writes: bool) -> bool:
        """Run our own tests of the host's adapters and the code blocks of its pages; return True if all passed."""
        files = [f"tests/hosts/{one}" for suite in suites for one in suite.tests]
        pages = [one for suite in suites for one in suite.pages]
        covered = [f"--cov=mama_structs.adapters.{one}" for suite in suites for one in suite.covers]
        counting = ["--cov-branch", "--cov-config=/dev/null", f"--cov-fail-under={_COVERED}"] if covered else []
        runs = [[*dict.fromkeys(files), *covered, *counting]] if files else []
        if pages:
            chosen = " or ".join(dict.fromkeys(pages))
            runs.append(["tests/docs/test_pages.py", "-k", f"test_page_blocks_print_the_shown_output and ({chosen})"])
        columns = dict.fromkeys(one for suite in suites for one in suite.frameworks)
        runs += [[*_BEHAVIOURS, "-m", f"behaviour(framework={column!r})"] for column in columns]
        command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs"]
        env = {_BEHAVIOURS_VARIABLE: "1"} if writes else {}
        try:
            codes = [self.run(*command, *one, check=False, env=env).returncode for one in runs]
        except subprocess.TimeoutExpired:
            return False
        return not any(codes)


def table(figures: Mapping[str, Any], *, with_reasons: bool = True) -> list[str]:
    """Return the lines of the table of all results, by default followed by the excused tests and their reasons."""
    newest = {(one["host"], one["suite"]): one for one in figures.get("newest", ())}
    lines = ["| host | suite | versions | passed | excused | run on | newest | passed | run on |", f"|{' --- |' * 9}"]
    reasons: list[str] = []
    for one in figures["suites"]:
        new = newest.get((one["host"], one["suite"]))
        cells = [
            one["host"],
            one["suite"],
            *_result_cells(one),
            *(_result_cells(new, excused=False) if new else [""] * 3),
        ]
        lines.append(f"| {' | '.join(cells)} |")
        by_reason: dict[str, set[str]] = {}
        for test, reason in one["excused"].items():
            by_reason.setdefault(reason, set()).add(test.rpartition("::")[2])
        reasons += [
            f"* {one['host']}, {one['suite']}: {', '.join(f'`{name}`' for name in sorted(names))}: {reason}."
            for reason, names in by_reason.items()
        ]
    excused = ["Excused:", "", *reasons, ""] if with_reasons else []
    return [*lines, "", *excused, f"Run with Python {figures['python']}."]


def _result_cells(one: Mapping[str, Any], *, excused: bool = True) -> list[str]:
    """Return the cells of a result: versions, passed tests, excused tests and date."""
    versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
    passed = f"not run: {one['why']}" if one["why"] else f"{one['passed']} of {one['passed'] + len(one['failed'])}"
    return [versions, passed, *([str(len(one["excused"]) or "")] if excused else []), one["date"]]


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
    # The tests of behaviours write a table into the same page.
    with PAGES_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in (PAGE_PATH, OVERVIEW_PATH):
            text = insert_table(path.read_text(encoding="utf-8"), figures, with_reasons=path == PAGE_PATH)
            path.write_text(text, encoding="utf-8")


def merged(known: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the results of this run, and the recorded results of all suites that were not run."""
    results = {(one["host"], one["suite"]): one for one in known}
    for one in found:
        key = one["host"], one["suite"]
        # A suite whose source is missing today keeps its dated result.
        results[key] = results.get(key, one) if one["why"] else one
    return sorted(results.values(), key=lambda one: (one["host"].lower(), one["suite"]))


def record(found: Sequence[Mapping[str, Any]], *, newest: bool) -> None:
    """Merge results into the recorded ones and write the tables."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {"suites": []}
    figures["python"] = sys.version.split()[0]
    column = "newest" if newest else "suites"
    figures[column] = merged(figures.get(column, []), found)
    FIGURES.write_text(f"{json.dumps(figures, indent=1, ensure_ascii=False)}\n", encoding="utf-8")
    write_table()


@attrs.define(kw_only=True)
class HostResult:
    """The results of all suites of a host, and its faults."""

    host: str
    seconds: float = 0.0
    found: list[dict[str, Any]] = attrs.field(factory=list)
    broken: list[str] = attrs.field(factory=list)

    def lines(self) -> Iterator[str]:
        """Yield a line for the host and one for each suite."""
        yield f"{self.host}: {self.seconds:.0f} s"
        for one in self.found:
            versions, passed, day = _result_cells(one, excused=False)
            yield f"  {one['suite']}: {passed} ({versions}, {day})"
        yield from (f"  {one}" for one in self.broken)


def run_host(host: str, suites: Sequence[Suite], *, newest: bool, writes: bool) -> HostResult:
    """Run all suites and tests of a host in its environment."""
    result, started = HostResult(host=host), time.monotonic()
    try:
        place = Environment(host, suites, newest=newest)
        for suite in (one for one in suites if one.command):
            outcome = place.outcome(suite)
            day = f"{datetime.now(UTC):%Y-%m-%d}"
            result.found.append({"host": host, "suite": suite.suite, "date": day, **attrs.asdict(outcome)})
            result.broken += [f"{suite.suite}: {test} failed" for test in outcome.failed]
        # The table of behaviours has the results of the pinned versions.
        if not place.own_tests(suites, writes=writes and not newest):
            result.broken.append(f"our own tests, or its page, failed: see {place.log}")
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        result.broken.append(f"its environment cannot be made: {error}")
    result.seconds = time.monotonic() - started
    return result


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
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="hosts that run at the same time")
    for flag in ("--write", "--table", "--newest"):
        parser.add_argument(flag, action="store_true")
    asked = parser.parse_args()
    PAGES_LOCK.parent.mkdir(exist_ok=True)
    if asked.table:
        write_table()
        return 0
    started = time.monotonic()
    suites = [Suite.read(file) for file in sorted(SUITES.glob("*.toml"))]
    wanted = {one.lower() for one in asked.hosts}
    suites = [one for one in suites if not wanted or {one.host.lower(), one.name.lower()} & wanted]
    before = json.loads(FIGURES.read_text(encoding="utf-8"))
    by_host = {host: [one for one in suites if one.host == host] for host in dict.fromkeys(one.host for one in suites)}
    # Suites that use the environments of others run when these exist.
    last = {host for host, own in by_host.items() if any(one.after for one in own)}
    results: list[HostResult] = []
    for hosts in (by_host.keys() - last, last):
        with ThreadPoolExecutor(asked.jobs) as pool:
            running = [
                pool.submit(run_host, host, by_host[host], newest=asked.newest, writes=asked.write)
                for host in sorted(hosts, key=[*by_host].index)
            ]
            for done in as_completed(running):
                results.append(done.result())
                print("\n".join(results[-1].lines()), flush=True)
                if asked.write:
                    record(results[-1].found, newest=asked.newest)
    found = [one for result in results for one in result.found]
    if asked.newest:
        print("\n".join(["", "Changed:", *(changed(before, {"suites": found}) or ["nothing"])]))
    broken = [f"{result.host}, {one}" for result in results for one in result.broken]
    print("\n".join(["", *broken] if broken else ["", "all that ran passed, but for what is excused"]))
    print(f"{len(results)} hosts in {time.monotonic() - started:.0f} s")
    return 1 if broken and not asked.newest else 0


if __name__ == "__main__":
    sys.exit(main())
