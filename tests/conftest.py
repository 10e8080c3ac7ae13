"""What holds for every test: Hypothesis's profiles, and a SIGINT that means something."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import types
from pathlib import Path

import pytest
from hypothesis import settings

# Modules that several tests share are imported by their names.
sys.path.append(str(Path(__file__).parent))

from memory_helpers import give_back, has_roles, is_on_server, sessions_on_server, without_vacuum

if is_on_server():
    sessions_on_server()
if has_roles():
    without_vacuum()

# A job in the background is started with SIGINT ignored, and so are its children: no test of Ctrl-C could pass.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Time limits are for benchmarks, and a failure must be repeatable from the log of a CI run.
settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None, max_examples=50)
settings.register_profile("brief", parent=settings.get_profile("ci"), max_examples=10)
settings.register_profile("nightly", deadline=None, print_blob=True, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "here"))


ROOT = Path(__file__).parents[1]
# What tools keep beside the code on purpose; git ignores it.
KEPT = {"__pycache__", "results", "build", "dist"}


def files_of_the_tree():
    """Every file of the checkout, but for what begins with a dot and what tools keep."""
    found = set()
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not (name.startswith(".") or name in KEPT or name.endswith("-info"))]
        found.update(Path(folder, name).relative_to(ROOT) for name in names if not name.startswith("."))
    return found


def pytest_sessionstart(session):
    """Note what is there before the first test."""
    if not hasattr(session.config, "workerinput"):
        session.config.stash[TREE] = files_of_the_tree()


def leave_out_what_is_there():
    """Leave tests and what they imported out of every search for garbage: many tests ask for one."""
    gc.collect()
    gc.freeze()
    FROZEN[:] = [len(sys.modules)]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Search for no garbage while ten thousand tests are collected: there is none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    """Begin without the tests themselves."""
    leave_out_what_is_there()


def pytest_runtest_setup(item):
    """Leave a framework out too that a test before imported: it costs every later search as much as all else."""
    if is_on_server() and (mark := item.get_closest_marker("of_the_directory")):
        pytest.skip(f"of the directory's files: {mark.args[0]}")
    if FROZEN and len(sys.modules) > FROZEN[0] + 50:
        leave_out_what_is_there()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    """Let the databases of a test's directories be used by others."""
    if (path := item.funcargs.get("tmp_path")) is not None:
        give_back(lambda one: one.is_relative_to(path))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """Fail the run when a test left a file in the checkout: tests write below their own temporary directories."""
    give_back(lambda _path: True)
    before = session.config.stash.get(TREE, None)
    if before is not None and (left := sorted(files_of_the_tree() - before)):
        print(f"\nERROR: tests left files in the checkout: {', '.join(map(str, left[:9]))}")  # noqa: T201 - the summary of a run
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


TREE = pytest.StashKey()
FROZEN = []


class Steps:
    """Counts the lines of the package that run in this thread: the same number on every machine, however busy."""

    def __init__(self):
        self._counted = lambda: 0

    @property
    def count(self):
        """How many lines have run."""
        return self._counted()

    def __enter__(self):
        count, ours = 0, {}

        # Millions of times: with names of its own it takes four fifths of what attributes take.
        def line(frame, event, argument):
            nonlocal count
            if event == "line":
                count += 1
            return line

        def call(frame, event, argument):
            code = frame.f_code
            if code not in ours:
                ours[code] = line if "mama_structs" in code.co_filename else None
            return ours[code]

        self._counted = lambda: count

        self._tracing = sys.gettrace()
        sys.settrace(call)
        return self

    def __exit__(self, *_):
        sys.settrace(self._tracing)

    def __call__(self, function, *arguments, **keywords):
        """Return how many lines of the package *function* ran, in this thread."""
        with self:
            function(*arguments, **keywords)
        return self.count


@pytest.fixture
async def clock(monkeypatch):
    """The loop's clock, which only a test moves on: ``clock(seconds)``."""
    loop = asyncio.get_running_loop()
    now = loop.time()

    def advance(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr(loop, "time", lambda: now)
    return advance


@pytest.fixture
def latency_in_turns(monkeypatch):
    """Let a node of the test's own loop wait for turns of the loop, as many on every machine, and not for time."""

    async def turns(_seconds):
        for _ in range(100):
            await asyncio.sleep(0)

    monkeypatch.setattr(
        "mama_structs.testing.node.fake_node.asyncio", types.SimpleNamespace(**vars(asyncio) | {"sleep": turns})
    )


@pytest.fixture
def steps():
    """Count what is done: ``steps(parse, text)``, or ``with steps: await ...``, and then ``steps.count``."""
    return Steps()
