"""Everything that is checked, each in an environment of its own: ``nox`` runs it all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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
# Hundreds of tests start an interpreter: without bytecode each compiles again all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Side by side, for most of them wait for one core or for what they install; the longest one begins first.
nox.options.sessions = ["tests", "lint", "types", "docs"]
nox.options.parallel = "auto"
nox.options.error_on_missing_interpreters = False
nox.options.default_venv_backend = "venv"
nox.needs_version = ">=2026.8.10"

HNSWLIB = "hnswlib>=0.8"
# These import the frameworks: about as much to compile as all other tests.
COMPILED_FIRST = ["tests/adapters", "tests/test_end_to_end.py", "tests/tools", "tests/importers"]


def _install(session: nox.Session, *paths: str) -> None:
    """Install the package and what its tests need, those of some *paths* or all."""
    session.install("--no-compile", ".[test]")
    parts = [list(paths)] if paths else [COMPILED_FIRST, ["tests", *_without(*COMPILED_FIRST)]]
    # Bytecode is written here once. The workers collect all at once: each would compile everything again.
    with ThreadPoolExecutor() as pool:
        for part in [] if session.posargs else parts:
            collecting = ["pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *part]
            pool.submit(session.run, *collecting, silent=True, success_codes=range(6))


def _install_hnswlib(session: nox.Session) -> None:
    """Install what only large memories use, where it can be built: it has no wheels."""
    # CI demands it, so that they are tested somewhere for certain.
    accepted = [0] if os.environ.get("CI") else [0, 1]
    session.run("python", "-m", "pip", "install", "-q", "--no-compile", HNSWLIB, silent=True, success_codes=accepted)
    found = "import importlib.util; print(importlib.util.find_spec('hnswlib'))"
    if "None" in str(session.run("python", "-c", found, silent=True)):
        session.warn("hnswlib could not be built here (is there a C++ compiler?): tests of large memories are skipped")


def _without(*paths: str) -> list[str]:
    """Return options of pytest that leave some paths out."""
    return [f"--ignore={path}" for path in paths]


def _at_once(session: nox.Session, *commands: list[str]) -> None:
    """Run what takes one core each side by side; the first that fails fails the session, when all have ended."""
    with ThreadPoolExecutor() as pool:
        for one in [pool.submit(session.run, *command) for command in commands]:
            one.result()


@nox.session(allow_parallel=True)
def lint(session: nox.Session) -> None:
    """Style, formatting, import contracts, and wording."""
    session.install("ruff==0.17.6", "import-linter==2.*")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports", env={"PYTHONPATH": str(Path.cwd())})
    session.run("python", "scripts/check_prose.py")


@nox.session(allow_parallel=True)
def types(session: nox.Session) -> None:
    """Types of the package, of decorated tools, and completeness of the public ones."""
    session.install("--no-compile", ".[test,hosts]", "mypy==2.4.1", "pyright[nodejs]==1.1.414", "types-cachetools")
    public = ["pyright", "--verifytypes", "mama_structs", "--ignoreexternal"]
    _at_once(session, ["mypy"], public, ["pyright", "tests/typing"])


@nox.session(allow_parallel=True)
def docs(session: nox.Session) -> None:
    """
    The notebooks, executed, and the site, in build/site.

    A cell that fails or warns, a link that leads nowhere and a page that no list names are errors.
    """
    session.install("--no-compile", ".[docs,notebook,semantic]")
    site = ["sphinx-build", "-q", "-W", "--keep-going", "-d", "build/doctrees", "docs", "build/site"]
    _at_once(session, ["python", "scripts/notebooks.py"], site)


# The examples of property tests are the same at every run, so few of them do; `nightly` draws thousands.
QUICKLY = {
    "HYPOTHESIS_PROFILE": os.environ.get("HYPOTHESIS_PROFILE") or "brief",
    # There is a worker for each core: threads of each would wait for those of the others.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
# Each worker collects all tests. While those of one wait, for a process or for a lock, another session goes on.
ON_ALL_CORES = ["-n", str(os.cpu_count() or 1), "--dist", "worksteal"]
# The one that takes longest begins first.
OTHERS = [version for version in reversed(PYTHONS) if version != HERE]


def _runs(version: str) -> bool:
    """Tell whether there is an interpreter: a shim of pyenv may be all that there is of one."""
    found = shutil.which(f"python{version}")
    return found is not None and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0  # noqa: S603


PRESENT = [version for version in OTHERS if _runs(version)]

# What starts servers has a session of its own. The rest of what takes minutes is shown by one interpreter; that the
# benchmarks run, `nightly` shows.
WITHOUT_SERVERS = "--ignore=tests/postgres"
QUALITY = ["tests/memory/save/test_automatic_links_quality.py", "tests/memory/search/test_retrieval_quality.py"]
ONCE = [
    # Killed processes and failing statements lose nothing.
    "tests/crash",
    *("tests/memory/engines/local/test_crash.py", "tests/memory/engines/local/test_faults.py"),
    *("tests/storage/test_wal.py", "tests/storage/test_faults.py"),
    *("tests/refs/markup/test_parser_steps.py", "tests/refs/store/test_export_faults.py"),
    # Interpreters that are started, and texts that are cut everywhere.
    *("tests/adapters/mcp/test_processes.py", "tests/memory/engines/local/test_processes.py"),
    *("tests/testing/test_pytest_plugin.py", "tests/cli/test_main.py", "tests/test_event_loop.py"),
    *(
        f"tests/session/test_{name}.py"
        for name in ("conversations", "conversation_namespaces", "store_copy", "session_refs")
    ),
    # Lengths, scores and counts for many memories.
    *("tests/memory/search/test_month.py", "tests/memory/store/test_namespaces.py", "tests/references/test_hostile.py"),
    *(f"tests/tools/test_{name}.py" for name in ("answer_budget", "token_cost", "default_answers")),
]
# These are the same, and all that reaches some modules: they run where that is counted.
COUNTED = [
    *("tests/testing/conformance/test_memory_suite.py", "tests/cli/test_demo.py"),
    *(f"tests/memory/engines/local/views/test_{name}.py" for name in ("hnsw", "vector_index", "background_graph")),
]
# Records have tests of their own in all that the kit asks of a store.
KIT_OF_RECORDS = "--deselect=tests/testing/conformance/test_memory_suite.py::TestRecords"
ONLY_ONCE = _without("tests/benchmarks", *ONCE, *QUALITY)
# What a session is, on each interpreter.
OF_SESSIONS = [
    *(f"tests/session/test_{name}.py" for name in ("session", "story", "combined_features", "recall")),
    *("tests/test_end_to_end.py", "tests/test_sync.py"),
]


# With another interpreter, CI runs each ordinary test once: these here, all others on the newest one. Coverage is
# measured over both.
HERE_IN_CI = [f"tests/{name}" for name in ("adapters", "docs", "internal", "references", "refs", "structs", "tools")]
COVERAGE_HERE = Path(".coverage.here")


@nox.session(python=HERE, allow_parallel=True)
def tests(session: nox.Session) -> None:
    """
    The tests that need no server and no minutes, those of the docs included, against the built package, here.

    Large memories are searched exactly in them: hnswlib is built by `others`, where tests ask for it.
    """
    if os.environ.get("CI") and PRESENT and not session.posargs:
        _install(session, *HERE_IN_CI)
        COVERAGE_HERE.unlink(missing_ok=True)
        counting = ["--cov", "--cov-report=", *ON_ALL_CORES]
        env = QUICKLY | {"COVERAGE_FILE": str(COVERAGE_HERE)}
        session.run("pytest", *counting, *HERE_IN_CI, "tests/test_public_names.py", *ONLY_ONCE, env=env)
        return
    elsewhere = [] if os.environ.get("CI") else [*ONLY_ONCE, *_without(*COUNTED)]
    _install(session)
    if session.posargs or not elsewhere:
        _install_hnswlib(session)
    session.run("pytest", *(session.posargs or [*ON_ALL_CORES, WITHOUT_SERVERS, *elsewhere]), env=QUICKLY)


# About a minute of the suites that also run as a role with policies, while a second role deletes in its namespace.
ROLES_BRIEFLY = ["tests/memory/upkeep/test_erasure.py", "tests/session/test_session.py", "tests/session/test_story.py"]
AS_ROLES = QUICKLY | {"MAMA_STRUCTS_TEST_ENGINE": "postgres-roles"}


def _suites_on_server() -> list[str]:
    """Return the files of engine and session suites that can run on a server as well."""
    texts = {str(file): file.read_text(encoding="utf-8") for file in sorted(Path("tests/memory").rglob("test_*.py"))}
    shown = re.compile("matplotlib|networkx")
    opening = [file for file, text in texts.items() if "OpenedDirectory" in text and not shown.search(text)]
    opening += [f"tests/session/test_{name}.py" for name in ("combined_features", "recall", "session", "story")]
    opening += [f"tests/tools/test_{name}.py" for name in ("memory_tools", "private_texts")]
    return [*opening, "tests/testing/conformance/test_memory_suite.py", "tests/importers/test_import_from.py"]


@nox.session(python=HERE, default=False, allow_parallel=True)
def postgres(session: nox.Session) -> None:
    """The tests of a PostgreSQL server, the engine suites on one, and about a minute of these as two roles."""
    # Nothing more than what they need: a host's frameworks take longer to install than these tests.
    session.install("--no-compile", ".[test-server]")
    opening = [*_suites_on_server(), "tests/hosts/test_mem0.py"]
    on_server = QUICKLY | {"MAMA_STRUCTS_TEST_ENGINE": "postgres"}
    # Those of the server itself count for how much of the package is reached, and are run where that is counted.
    of_servers = "tests/postgres/test_same_memories.py" if os.environ.get("CI") and PRESENT else "tests/postgres"
    session.run("pytest", *(session.posargs or [*ON_ALL_CORES, of_servers, *opening, KIT_OF_RECORDS]), env=on_server)
    if not session.posargs:
        session.run("pytest", *ON_ALL_CORES, *ROLES_BRIEFLY, env=AS_ROLES)


@nox.session(python=OTHERS, default=False, allow_parallel=True)
def others(session: nox.Session) -> None:
    """The tests on the other interpreters: on the first one how much of the package they reach, too."""
    is_first, is_last = session.python in PRESENT[:1], session.python in PRESENT[-1:]
    once = ONCE if is_last else []
    _install(session, *([] if is_first else [*OF_SESSIONS, *once]))
    if is_first or is_last:
        _install_hnswlib(session)
    if is_first:
        # The samples on a server are for the session of servers; names and docs are the same everywhere.
        same = ["tests/docs", "tests/test_public_names.py", "tests/postgres/test_same_memories.py"]
        counted_before = COVERAGE_HERE.exists()
        left_out = _without(*same, *(HERE_IN_CI if counted_before else []))
        left_out += [*(_without("tests/benchmarks", *QUALITY) if is_last else ONLY_ONCE), KIT_OF_RECORDS]
        here = ".coverage.first"
        counting = ["--cov", "--cov-report=", *ON_ALL_CORES, "-m", "not once"]
        session.run("pytest", *counting, *left_out, env=QUICKLY | {"COVERAGE_FILE": here})
        session.run("coverage", "combine", here, *([str(COVERAGE_HERE)] if counted_before else []))
        session.run("coverage", "report", "--fail-under=95")
    else:
        session.run("pytest", *ON_ALL_CORES, "-m", "not once", *OF_SESSIONS, *once, env=QUICKLY)
    if is_last:
        # By one process: each worker would make the samples anew.
        session.run("pytest", *QUALITY, env=QUICKLY)


@nox.session(default=False)
def nightly(session: nox.Session) -> None:
    """The property tests with 10,000 examples each, and all engine and refs suites as two roles on a server."""
    _install(session)
    _install_hnswlib(session)
    paths = session.posargs or ["tests", "--ignore=tests/docs"]
    session.run("pytest", *paths, env={"HYPOTHESIS_PROFILE": "nightly"})
    if not session.posargs:
        session.run("pytest", *ON_ALL_CORES, *_suites_on_server(), "tests/session/test_ref_machine.py", env=AS_ROLES)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """All benchmarks: figures and ratios, never pass or fail; each prints a table and writes benchmarks/results."""
    _install(session)
    _install_hnswlib(session)
    # Other people's packages have a session of their own.
    own = (path for path in Path("benchmarks").glob("[!_]*.py") if path.stem not in ("peers", "stores"))
    scripts = session.posargs or sorted(str(path) for path in own)
    for script in scripts:
        session.run("python", script)


@nox.session(default=False)
def hosts(session: nox.Session) -> None:
    """The frameworks' own conformance suites on our adapters, each in an environment of its own: docs/hosts.md."""
    session.install("--no-compile", "attrs")
    session.run("python", "tests/hosts/run_suites.py", *session.posargs)


@nox.session(default=False)
def peers(session: nox.Session) -> None:
    """The same work on this package and on others, each in its own environment: the table of docs/comparison.md."""
    session.install("--no-compile", ".[semantic,test-server]")
    if not session.posargs:
        session.run("python", "benchmarks/stores.py", "--write")
    session.run("python", "benchmarks/peers.py", *(session.posargs or ["--write"]))
