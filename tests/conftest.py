"""Configuration of all tests: Hypothesis profiles, handling of SIGINT, and cleanup."""

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
from memory_helpers import give_back, has_roles, is_on_server, sessions_on_server, without_vacuum

if is_on_server():
    sessions_on_server()
if has_roles():
    without_vacuum()

# A background job starts with SIGINT ignored, so restore it for the tests of Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline, because only benchmarks measure time. Print blobs, so that a failure in CI can be reproduced locally.
settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None, max_examples=50)
settings.register_profile("brief", parent=settings.get_profile("ci"), max_examples=10)
settings.register_profile("nightly", deadline=None, print_blob=True, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "here"))


ROOT = Path(__file__).parents[1]
# Directories that tools create and git ignores.
KEPT = {"__pycache__", "results", "build", "dist"}


def files_of_the_tree():
    """Return all files of the checkout, except hidden files and the output of tools."""
    found = set()
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not (name.startswith(".") or name in KEPT or name.endswith("-info"))]
        found.update(Path(folder, name).relative_to(ROOT) for name in names if not name.startswith("."))
    return found


def pytest_sessionstart(session):
    """Record the files of the checkout before the first test."""
    if not hasattr(session.config, "workerinput"):
        session.config.stash[TREE] = files_of_the_tree()


def leave_out_what_is_there():
    """Freeze all existing objects, because the tests trigger many garbage collections, which would inspect them."""
    gc.collect()
    gc.freeze()
    FROZEN[:] = [len(sys.modules)]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Disable garbage collection while ten thousand tests are collected."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    """Exclude the collected tests from garbage collection."""
    leave_out_what_is_there()


def pytest_runtest_setup(item):
    """Skip tests of local files if the run uses a server. Freeze the objects of newly imported frameworks."""
    if is_on_server() and (mark := item.get_closest_marker("of_the_directory")):
        pytest.skip(f"of the directory's files: {mark.args[0]}")
    if FROZEN and len(sys.modules) > FROZEN[0] + 50:
        leave_out_what_is_there()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    """Release the databases of the test's directories, so that other tests can use them."""
    if (path := item.funcargs.get("tmp_path")) is not None:
        give_back(lambda one: one.is_relative_to(path))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """Fail the run if a test left a file in the checkout."""
    give_back(lambda _path: True)
    before = session.config.stash.get(TREE, None)
    if before is not None and (left := sorted(files_of_the_tree() - before)):
        # T201: this message is part of the summary of the run.
        print(f"\nERROR: tests left files in the checkout: {', '.join(map(str, left[:9]))}")  # noqa: T201
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


TREE = pytest.StashKey()
FROZEN = []


class Steps:
    """Counts the lines of the package that this thread executes. The count does not depend on the machine's speed."""

    def __init__(self):
        self._counted = lambda: 0

    @property
    def count(self):
        """Number of executed lines."""
        return self._counted()

    def __enter__(self):
        count, ours = 0, {}

        # This function runs millions of times, so count in a local variable: an attribute takes 25 % more time.
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
        """Return the number of lines of the package that *function* executed in this thread."""
        with self:
            function(*arguments, **keywords)
        return self.count


@pytest.fixture
async def clock(monkeypatch):
    """Replace the clock of the event loop. ``clock(seconds)`` advances it."""
    loop = asyncio.get_running_loop()
    now = loop.time()

    def advance(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr(loop, "time", lambda: now)
    return advance


@pytest.fixture
def latency_in_turns(monkeypatch):
    """Replace the latency of a fake node with a fixed number of loop iterations."""

    async def turns(_seconds):
        for _ in range(100):
            await asyncio.sleep(0)

    monkeypatch.setattr(
        "mama_structs.testing.node.fake_node.asyncio", types.SimpleNamespace(**vars(asyncio) | {"sleep": turns})
    )


@pytest.fixture
def steps():
    """Return a line counter: ``steps(parse, text)``, or ``with steps: await ...`` and then ``steps.count``."""
    return Steps()
