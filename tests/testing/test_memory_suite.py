"""The conformance kit: our own stores pass it, an honest one does, and each broken promise is seen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import store_helpers
from memory_helpers import is_on_server, url_of

from mama_structs.errors import InvalidArgument
from mama_structs.testing.conformance.checks import CAPABILITIES, CHECKS
from mama_structs.testing.conformance.memory_suite import MemoryStoreSuite, main
from mama_structs.testing.conformance.session_driver import (
    RecordsDriver,
    ServerRecordsDriver,
    ServerSessionDriver,
    SessionDriver,
)

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no POSIX")
of_files = pytest.mark.of_the_directory("stores of files are the same wherever ours is")


class TestMemories(MemoryStoreSuite):
    """A session's memories, in a directory or, where the tests of servers run this file, on one."""

    driver = ServerSessionDriver if is_on_server() else SessionDriver

    def location(self, tmp_path):
        return url_of(tmp_path / "store") if is_on_server() else str(tmp_path / "store")


class TestRecords(TestMemories):
    """What hosts keep in a session, likewise."""

    driver = ServerRecordsDriver if is_on_server() else RecordsDriver
    rounds = 2


@of_files
class TestHonest(MemoryStoreSuite):
    """A store that keeps every promise passes every check: none of them asks for more."""

    driver = store_helpers.FileStore
    rounds = 2


def place(folder, name):
    """Make a directory for one check."""
    (folder / name).mkdir()
    return folder / name


def suite_of(driver, **members):
    return type("Suite", (MemoryStoreSuite,), {"driver": driver, **members})()


@of_files
@pytest.mark.parametrize(
    ("driver", "check", "said"),
    store_helpers.FAULTS,
    ids=[f"{driver.__name__}-{check}" for driver, check, _ in store_helpers.FAULTS],
)
def test_a_broken_promise_is_seen(driver, check, said, tmp_path):
    """A store with a planted fault fails the check that it is about, which says what is wrong, and no text."""
    result = suite_of(driver).result_of(check, tmp_path)

    assert "failed" == result.outcome
    assert any(re.match(said, one) for one in result.findings), result.findings


def test_every_check_has_a_store_that_fails_it():
    """No check passes whatever a store does."""
    assert set(CHECKS) == {check for _, check, _ in store_helpers.FAULTS}


@of_files
@pytest.mark.parametrize("check", ["saved_is_found", "kill_loses_nothing", "deleted_is_gone"])
def test_a_driver_may_be_async_and_give_ids_of_its_own(check, tmp_path):
    """Methods may be coroutines, beside plain ones, and the id that counts is the one that was given back."""
    result = suite_of(store_helpers.AsyncStore, rounds=1).result_of(check, tmp_path)

    assert ("passed", ()) == (result.outcome, result.findings)


@of_files
def test_what_a_store_lacks_is_excused_with_its_reason(tmp_path):
    """A check of something that a store has not is not run, and its result has the store's own words."""
    suite = suite_of(store_helpers.LackingStore)
    results = {name: suite.result_of(name, place(tmp_path, name)) for name in CHECKS}
    excused = {name: one.reason for name, one in results.items() if one.outcome == "excused"}

    assert "it keeps no past" == excused["past_is_without_what_came_later"]
    assert "it only grows" == excused["deleted_is_gone"] == excused["no_byte_is_left"]
    assert excused.keys() == {name for name in results if {*CHECKS[name].needs} & {*suite.driver.lacks}}
    assert {"passed", "excused"} == {one.outcome for one in results.values()}, results
    with pytest.raises(pytest.skip.Exception, match="excused: it only grows"):
        suite.test_deleted_is_gone(tmp_path)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"lacks": {"memory": "x"}}, "lacks must name one of deleting, "),
        ({"lacks": {"filters": " "}}, r"lacks\['filters'\] must be the reason"),
        ({"search": None}, "has no search"),
        ({"delete": None, "lacks": {"replacing": "x"}}, "has no delete"),
    ],
)
def test_a_driver_that_cannot_be_used_is_refused_at_once(members, said, tmp_path):
    """An excuse for no capability or without a reason, and a method that is missing, are errors and no results."""
    broken = type("Broken", (store_helpers.FileStore,), members)

    with pytest.raises(InvalidArgument, match=said):
        suite_of(broken).result_of("saved_is_found", tmp_path)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("driver", ["", "no_such_module:Driver", "store_helpers:Nothing", "store_helpers:FAULTS"])
def test_a_name_that_names_no_class_is_refused(driver, tmp_path):
    """A driver's name is that of a class in a module or a file."""
    with pytest.raises(InvalidArgument, match="driver must"):
        suite_of(driver).result_of("saved_is_found", tmp_path)


def test_a_class_that_others_cannot_import_is_refused(tmp_path):
    """A class within a function is one that no other process finds."""

    class Here(store_helpers.FileStore):
        pass

    with pytest.raises(InvalidArgument, match="defined within a function"):
        suite_of(Here).result_of("saved_is_found", tmp_path)


def test_an_unknown_check_is_refused(tmp_path):
    """A check is one of those that there are."""
    with pytest.raises(InvalidArgument, match="name must be one of saved_is_found, "):
        suite_of(store_helpers.FileStore).result_of("is_nice", tmp_path)


def test_no_finding_holds_a_text(tmp_path):
    """What a check says of memories are counts."""
    result = suite_of(store_helpers.LosesTheFifth).result_of("saved_is_found", tmp_path)

    assert {"not there, or another text: 4 of 20", "not found by a search for its text: 4 of 20"} <= set(
        result.findings
    )


@of_files
def test_the_command_prints_each_check_and_writes_the_results(tmp_path, capsys):
    """A run of some checks says what became of each, and fails where one does."""
    path = tmp_path / "results.json"
    status = main(
        ["store_helpers:FindsTwenty", "--only", "saved_is_found", "limit_is_exact", "--seed", "7", "--json", str(path)]
    )
    said = capsys.readouterr().out.splitlines()
    results = json.loads(path.read_text())

    assert 1 == status
    assert "seed 7" == said[0]
    assert "passed   What was saved is read and found at the next call, and after the store was opened again" == said[1]
    assert "         limit 45: 20 hits, of 60 memories" in said
    assert "1 passed, 1 failed, 0 excused" == said[-1]
    assert [("saved_is_found", "passed", 7), ("limit_is_exact", "failed", 7)] == [
        (one["name"], one["outcome"], one["seed"]) for one in results
    ]


@of_files
def test_the_kit_loads_nothing_heavy(tmp_path):
    """A store's processes import the store, and nothing of ours that needs more than attrs; the kit needs no pytest."""
    code = (
        "import sys, mama_structs.testing.conformance.memory_suite;"
        "print(*(name for name in ('numpy', 'pytest', 'diskcache', 'aiohttp', 'hypothesis') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "\n" == done.stdout


def blocks_of(page, language):
    """Return the code blocks of a page of the docs."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_pytest(file, *options):
    """Run a file's tests as a user would who has no configuration."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", file.name, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=file.parent)
    return done.stdout


@of_files
def test_the_store_of_the_page_is_tested_by_a_subclass(tmp_path):
    """The driver and the two lines of the how-to page are all that pytest needs, and do what the page says."""
    page = "how-to/test-a-memory-store.md"
    driver, suite, _ = blocks_of(page, "python")
    said, failed = blocks_of(page, "text")
    file = tmp_path / "test_notes.py"
    file.write_text(driver + suite)
    passed = run_pytest(file)
    file.write_text(driver.replace("[:limit]", "[:min(limit, 5)]") + suite)
    broken = run_pytest(file, "-k", "limit")

    assert said.strip() in passed, passed
    assert "excused: a note has no history" in passed
    assert "1 failed" in broken
    assert failed in broken, broken


def test_the_capabilities_are_those_that_checks_need():
    """Each capability excuses a check."""
    assert set(CAPABILITIES) == {one for check in CHECKS.values() for one in check.needs}


def test_the_reference_says_what_each_check_shows():
    """Every check and every capability stands in the reference, a check with its sentence."""
    page = (ROOT / "docs" / "reference" / "memory-suite.md").read_text(encoding="utf-8")

    for check in CHECKS.values():
        needs = ", ".join(f"`{one}`" for one in check.needs) or "nothing"
        assert f"| `{check.name}` | {check.sentence} | {needs} |" in page
    for capability in CAPABILITIES:
        assert f"`{capability}`" in page
