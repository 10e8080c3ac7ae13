"""Checks of this project. Each session has its own environment; ``nox`` without arguments runs the default sessions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

# The Python version that runs nox. Other versions are tested if they are installed.
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHONS = list(dict.fromkeys(["3.11", "3.12", "3.13", HERE]))


def _show_pyenv_interpreters() -> None:
    """Make all tested versions that pyenv has installed available, not only the selected one."""
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
# Hundreds of tests start an interpreter. Without bytecode files each would compile all imported modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Run more sessions at once than there are cores, because sessions wait for downloads and disks.
# The longest starts first.
nox.options.sessions = ["tests", "lint", "types", "docs"]
nox.options.parallel = (os.cpu_count() or 1) + 2
nox.options.error_on_missing_interpreters = False
nox.options.default_venv_backend = "venv"
nox.needs_version = ">=2026.8.10"

HNSWLIB = "hnswlib>=0.8"
# Compile these separately: they import the frameworks, which takes as long as all other tests together.
COMPILED_FIRST = ["tests/adapters", "tests/test_end_to_end.py", "tests/tools", "tests/importers"]


def _install(session: nox.Session, *paths: str) -> None:
    """Install the package and the requirements of its tests, and compile the tests in *paths* (default: all)."""
    session.install("--no-compile", ".[test]")
    parts = [list(paths)] if paths else [COMPILED_FIRST, ["tests", *_without(*COMPILED_FIRST)]]
    # Write bytecode once here. All test workers import concurrently, so each would compile everything again.
    with ThreadPoolExecutor() as pool:
        for part in [] if session.posargs else parts:
            collecting = ["pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *part]
            pool.submit(session.run, *collecting, silent=True, success_codes=range(6))


def _install_hnswlib(session: nox.Session) -> None:
    """Install hnswlib, the optional HNSW library. Warn if it cannot be built: it has no wheels."""
    # With CI set, a failed build is an error, so that at least CI runs the tests of both libraries.
    accepted = [0] if os.environ.get("CI") else [0, 1]
    session.run("python", "-m", "pip", "install", "-q", "--no-compile", HNSWLIB, silent=True, success_codes=accepted)
    found = "import importlib.util; print(importlib.util.find_spec('hnswlib'))"
    if "None" in str(session.run("python", "-c", found, silent=True)):
        session.warn("hnswlib could not be built here (is there a C++ compiler?): only voyager is tested")


def _without(*paths: str) -> list[str]:
    """Return pytest options that exclude *paths*."""
    return [f"--ignore={path}" for path in paths]


def _at_once(session: nox.Session, *commands: list[str]) -> None:
    """Run single-core commands in parallel. Wait for all, and fail the session if a command failed."""
    with ThreadPoolExecutor() as pool:
        for one in [pool.submit(session.run, *command) for command in commands]:
            one.result()


@nox.session(allow_parallel=True)
def lint(session: nox.Session) -> None:
    """Check style, formatting, import contracts and wording."""
    session.install("ruff==0.17.6", "import-linter==2.*")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports", env={"PYTHONPATH": str(Path.cwd())})
    session.run("python", "scripts/check_prose.py")


@nox.session(allow_parallel=True)
def types(session: nox.Session) -> None:
    """Check the types of the package and of decorated tools, and that all public names are typed."""
    session.install("--no-compile", ".[test,hosts]", "mypy==2.4.1", "pyright[nodejs]==1.1.414", "types-cachetools")
    public = ["pyright", "--verifytypes", "mama_structs", "--ignoreexternal"]
    _at_once(session, ["mypy"], public, ["pyright", "tests/typing"])


# The requirements of tests/docs/test_reference.py and of the shared fixtures.
DOCS_TEST_REQUIREMENTS = ["pytest>=8", "pytest-asyncio>=0.24", "jsonschema>=4.21"]


@nox.session(allow_parallel=True)
def docs(session: nox.Session) -> None:
    """
    Execute the notebooks, build the site in build/site, and test the inventory of its reference.

    A cell that fails or warns, a broken link, and a page without an entry in a list are errors.
    """
    # The site mocks missing frameworks, except these: their adapters use the classes while they are imported.
    extras = "docs,notebook,semantic,testing,haystack,mcp,openai-agents"
    session.install("--no-compile", f".[{extras}]", *DOCS_TEST_REQUIREMENTS)
    site = ["sphinx-build", "-q", "-W", "--keep-going", "-d", "build/doctrees", "docs", "build/site"]
    _at_once(session, ["python", "scripts/notebooks.py"], site)
    inventory = {"MAMA_STRUCTS_TEST_INVENTORY": str(Path("build/site/objects.inv").resolve())}
    session.run("pytest", "-q", "tests/docs/test_reference.py", env=QUICKLY | inventory)


# A brief profile for property tests: the same few examples in each run. `nightly` draws thousands.
QUICKLY = {
    "HYPOTHESIS_PROFILE": os.environ.get("HYPOTHESIS_PROFILE") or "brief",
    # There is one worker per core, so the threads of several workers would only compete for cores.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
# Use all cores in each session. While the tests of one session wait for a process or a lock, another session runs.
ON_ALL_CORES = ["-n", str(os.cpu_count() or 1), "--dist", "worksteal"]
# Start with the version whose tests take longest.
OTHERS = [version for version in reversed(PYTHONS) if version != HERE]


def _runs(version: str) -> bool:
    """Return True if an interpreter of this version runs. A pyenv shim may exist without one."""
    found = shutil.which(f"python{version}")
    return found is not None and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0  # noqa: S603


PRESENT = [version for version in OTHERS if _runs(version)]

# Tests that start servers run in the session `postgres`. Other slow tests run on one interpreter only.
# The session `nightly` runs the tests of the benchmarks.
WITHOUT_SERVERS = "--ignore=tests/postgres"
QUALITY = ["tests/memory/save/test_automatic_links_quality.py", "tests/memory/search/test_retrieval_quality.py"]
ONCE = [
    # Crash and fault tests: killed processes and failing statements must not lose data.
    "tests/crash",
    *("tests/memory/engines/local/test_crash.py", "tests/memory/engines/local/test_faults.py"),
    "tests/memory/engines/local/test_deletion.py",
    *(f"tests/storage/test_{name}.py" for name in ("wal", "faults", "forks", "reserve")),
    *("tests/refs/markup/test_parser_steps.py", "tests/refs/store/test_export_faults.py"),
    # Tests that start interpreters, or that truncate texts at every position.
    *("tests/adapters/mcp/test_processes.py", "tests/memory/engines/local/test_processes.py"),
    *("tests/memory/engines/local/test_without_hnswlib.py", "tests/session/test_read_only_store.py"),
    *("tests/testing/test_pytest_plugin.py", "tests/cli/test_main.py", "tests/test_event_loop.py"),
    *(
        f"tests/session/test_{name}.py"
        for name in ("conversations", "conversation_namespaces", "store_copy", "session_refs")
    ),
    # Tests that measure lengths, scores and counts with many memories.
    *("tests/memory/search/test_month.py", "tests/memory/store/test_namespaces.py", "tests/references/test_hostile.py"),
    *(f"tests/tools/test_{name}.py" for name in ("answer_budget", "token_cost", "default_answers")),
]
# Slow tests whose result is the same on each version, so one run is enough.
# Some modules have no other tests, so this run is the one that measures coverage.
COUNTED = [
    *("tests/testing/conformance/test_memory_suite.py", "tests/cli/test_demo.py"),
    *(f"tests/memory/engines/local/views/test_{name}.py" for name in ("hnsw", "vector_index", "background_graph")),
    # Killed deletions, copied directories, and generated results of every shape.
    *("tests/test_admin.py", "tests/session/test_session_directory.py", "tests/importers/mama_v1/test_migration.py"),
    *("tests/refs/store/test_truncation.py", "tests/references/test_detection.py"),
]
# Exclude the kit's checks for records, because other tests cover the same behaviour of records.
KIT_OF_RECORDS = "--deselect=tests/testing/conformance/test_memory_suite.py::TestRecords"
NOT_ONCE = ["-m", "not once"]
ONLY_ONCE = _without("tests/benchmarks", *ONCE, *QUALITY)
# The tests of session behaviour, which run on each interpreter.
OF_SESSIONS = [
    *(f"tests/session/test_{name}.py" for name in ("session", "story", "combined_features", "recall")),
    *("tests/test_end_to_end.py", "tests/test_sync.py"),
]


# `.ci/run` sets the variable, so that each ordinary test runs only once if there are several interpreters.
# The session `tests` runs HERE_IF_SPLIT, the first run of `others` all other tests. Both measure coverage.
EACH_TEST_ONCE = bool(os.environ.get("EACH_TEST_ONCE")) and bool(PRESENT)
HERE_IF_SPLIT = [f"tests/{name}" for name in ("adapters", "docs", "internal", "references", "refs", "structs", "tools")]
COVERAGE_HERE = ".coverage.here"


@nox.session(python=HERE, allow_parallel=True)
def tests(session: nox.Session) -> None:
    """
    Run the fast tests, including the tests of the docs, against the built package with this interpreter.

    Tests that start servers or take minutes are excluded. Large stores use voyager, because only `others` builds
    hnswlib.
    """
    if EACH_TEST_ONCE and not session.posargs:
        _install(session, *HERE_IF_SPLIT)
        counting = ["--cov", "--cov-report=", *ON_ALL_CORES]
        env = QUICKLY | {"COVERAGE_FILE": COVERAGE_HERE}
        session.run("coverage", "erase", env=env)
        session.run("pytest", *counting, *HERE_IF_SPLIT, "tests/test_public_names.py", *ONLY_ONCE, env=env)
        return
    elsewhere = [*NOT_ONCE, *ONLY_ONCE, *_without(*COUNTED)] if PRESENT or not os.environ.get("CI") else []
    _install(session)
    if session.posargs or not elsewhere:
        _install_hnswlib(session)
    session.run("pytest", *(session.posargs or [*ON_ALL_CORES, WITHOUT_SERVERS, *elsewhere]), env=QUICKLY)


# Suites that also run as a role with row policies, while a second role deletes. They take about a minute.
ROLES_BRIEFLY = ["tests/memory/upkeep/test_erasure.py", "tests/session/test_session.py", "tests/session/test_story.py"]
AS_ROLES = QUICKLY | {"MAMA_STRUCTS_TEST_ENGINE": "postgres-roles"}


def _suites_on_server() -> list[str]:
    """Return the engine and session test files that can also run on a server."""
    texts = {str(file): file.read_text(encoding="utf-8") for file in sorted(Path("tests/memory").rglob("test_*.py"))}
    shown = re.compile("matplotlib|networkx")
    opening = [file for file, text in texts.items() if "OpenedDirectory" in text and not shown.search(text)]
    opening += [f"tests/session/test_{name}.py" for name in ("combined_features", "recall", "session", "story")]
    opening += [f"tests/tools/test_{name}.py" for name in ("memory_tools", "private_texts")]
    return [*opening, "tests/testing/conformance/test_memory_suite.py", "tests/importers/test_import_from.py"]


@nox.session(python=HERE, default=False, allow_parallel=True)
def postgres(session: nox.Session) -> None:
    """Run the PostgreSQL tests and the engine suites on a server, and a sample of the suites as two roles."""
    # Install only the requirements of these tests: the frameworks take longer to install than the tests to run.
    session.install("--no-compile", ".[test-server]")
    opening = [*_suites_on_server(), "tests/hosts/test_mem0.py"]
    on_server = QUICKLY | {"MAMA_STRUCTS_TEST_ENGINE": "postgres"}
    # With EACH_TEST_ONCE, the session `others` runs the PostgreSQL tests, because they count for the coverage.
    of_servers = "tests/postgres/test_same_memories.py" if EACH_TEST_ONCE else "tests/postgres"
    session.run("pytest", *(session.posargs or [*ON_ALL_CORES, of_servers, *opening, KIT_OF_RECORDS]), env=on_server)
    if not session.posargs:
        session.run("pytest", *ON_ALL_CORES, *ROLES_BRIEFLY, env=AS_ROLES)


@nox.session(python=OTHERS, default=False, allow_parallel=True)
def others(session: nox.Session) -> None:
    """Run the tests on the other interpreters. The first of them also measures coverage."""
    is_first, is_last = session.python in PRESENT[:1], session.python in PRESENT[-1:]
    once = ONCE if is_last else []
    _install(session, *([] if is_first else [*OF_SESSIONS, *once]))
    if is_first:
        _install_hnswlib(session)
        # Exclude tests that do not depend on the version, and `test_same_memories`, which the session `postgres` runs.
        same = ["tests/docs", "tests/test_public_names.py", "tests/postgres/test_same_memories.py"]
        left_out = _without(*same, *(HERE_IF_SPLIT if EACH_TEST_ONCE else []))
        left_out += [*(_without("tests/benchmarks", *QUALITY) if is_last else ONLY_ONCE), KIT_OF_RECORDS]
        here = ".coverage.first"
        counting = ["--cov", "--cov-report=", *ON_ALL_CORES, *([] if EACH_TEST_ONCE or is_last else NOT_ONCE)]
        session.run("pytest", *counting, *left_out, env=QUICKLY | {"COVERAGE_FILE": here})
        if EACH_TEST_ONCE and is_last:
            # The only other interpreter also runs the slow tests of the directories that the session `tests` runs.
            slow = [path for path in ONCE if path.startswith(tuple(f"{name}/" for name in HERE_IF_SPLIT))]
            session.run("pytest", "--cov-append", *counting, *slow, env=QUICKLY | {"COVERAGE_FILE": here})
        session.run("coverage", "combine", here, *([COVERAGE_HERE] if EACH_TEST_ONCE else []))
        session.run("coverage", "report", "--fail-under=95")
    else:
        session.run("pytest", *ON_ALL_CORES, *([] if is_last else NOT_ONCE), *OF_SESSIONS, *once, env=QUICKLY)
    if is_last:
        # Use one process, because each worker would compute the samples again.
        session.run("pytest", *QUALITY, env=QUICKLY)


@nox.session(default=False)
def nightly(session: nox.Session) -> None:
    """Run the property tests with 10,000 examples each, and all engine and refs suites as two roles on a server."""
    _install(session)
    _install_hnswlib(session)
    paths = session.posargs or ["tests", "--ignore=tests/docs"]
    session.run("pytest", *paths, env={"HYPOTHESIS_PROFILE": "nightly"})
    if not session.posargs:
        session.run("pytest", *ON_ALL_CORES, *_suites_on_server(), "tests/session/test_ref_machine.py", env=AS_ROLES)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Run all benchmarks. They measure and never fail; each prints a table and writes to benchmarks/results."""
    _install(session)
    _install_hnswlib(session)
    # The session `peers` runs the benchmarks that install other packages.
    own = (path for path in Path("benchmarks").glob("[!_]*.py") if path.stem not in ("peers", "stores"))
    scripts = session.posargs or sorted(str(path) for path in own)
    for script in scripts:
        session.run("python", script)


@nox.session(default=False)
def hosts(session: nox.Session) -> None:
    """
    Run the conformance suites of the frameworks on our adapters, each in its own environment.

    The page docs/internals/hosts.md has the results.
    """
    session.install("--no-compile", "attrs")
    session.run("python", "tests/hosts/run_suites.py", *session.posargs)


@nox.session(default=False)
def peers(session: nox.Session) -> None:
    """Compare this package with others, each in its own environment, for docs/internals/comparison.md."""
    session.install("--no-compile", ".[semantic,test-server]")
    if not session.posargs:
        session.run("python", "benchmarks/stores.py", "--write")
    session.run("python", "benchmarks/peers.py", *(session.posargs or ["--write"]))


@nox.session(default=False)
def ui(session: nox.Session) -> None:
    """Test the local pages in Chromium. Without a browser, such as Debian's package chromium, the tests are skipped."""
    # The rule checker is axe, which tests whether people with disabilities can use a page.
    session.install("--no-compile", ".[ui,testing]", "pytest>=8", "pytest-asyncio>=0.24", "jsonschema>=4.21")
    session.install("playwright>=1.50", "axe-playwright-python>=0.1.5")
    session.run("pytest", *(session.posargs or ["tests/browser"]))


@nox.session(python=HERE, default=False)
def release(session: nox.Session) -> None:
    """
    Build the package, install it from a local index with all extras, and list the reasons that prevent a release.

    ``nox -s release -- --rehearsal`` only prints these reasons. The page docs/internals/releasing.md has all steps.
    """
    # Without its extra `md`, twine does not render the README.
    session.install("--no-compile", "build>=1.3", "twine>=7", "readme_renderer[md]", "check-wheel-contents>=0.6.3")
    built = Path("dist")
    shutil.rmtree(built, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(built))
    wheel, source = next(built.glob("*.whl")), next(built.glob("*.tar.gz"))
    session.run("twine", "check", "--strict", str(wheel), str(source))
    # W002: the notice of a vocabulary is both next to it and with the licences.
    session.run("check-wheel-contents", "--ignore=W002", str(wheel))
    for version in [HERE, *PRESENT[:1]]:
        session.run("python", "scripts/release.py", "install", str(built), "--python", f"python{version}", "--extras")
    accepted = [0, 1] if "--rehearsal" in session.posargs else [0]
    session.run("python", "scripts/release.py", "check", success_codes=accepted)
