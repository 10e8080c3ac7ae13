"""The conformance kit: correct stores pass all checks, and the checks find each planted fault."""

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

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no POSIX")
of_files = pytest.mark.of_the_directory("stores of files are the same wherever ours is")


class TestMemories(MemoryStoreSuite):
    """Checks the memories of a session, in a directory or, if the tests run on a server, on the server."""

    driver = ServerSessionDriver if is_on_server() else SessionDriver

    def location(self, tmp_path):
        return url_of(tmp_path / "store") if is_on_server() else str(tmp_path / "store")


class TestRecords(TestMemories):
    """Checks the records of a session."""

    driver = ServerRecordsDriver if is_on_server() else RecordsDriver
    rounds = 2


@of_files
class TestHonest(MemoryStoreSuite):
    """Checks a correct store, which must pass."""

    driver = store_helpers.FileStore
    rounds = 2


def place(folder, name):
    """Create and return a directory for one check."""
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
def test_planted_fault_fails_its_check(driver, check, said, tmp_path):
    """The findings name the problem, but contain no text of a memory."""
    result = suite_of(driver).result_of(check, tmp_path)

    assert "failed" == result.outcome
    assert any(re.match(said, one) for one in result.findings), result.findings


def test_every_check_is_failed_by_some_store():
    assert set(CHECKS) == {check for _, check, _ in store_helpers.FAULTS}


@of_files
@pytest.mark.parametrize("check", ["saved_is_found", "kill_loses_nothing", "deleted_is_gone"])
def test_driver_may_be_async_and_assign_ids(check, tmp_path):
    result = suite_of(store_helpers.AsyncStore, rounds=1).result_of(check, tmp_path)

    assert ("passed", ()) == (result.outcome, result.findings)


@of_files
def test_check_of_missing_capability_is_excused_with_reason(tmp_path):
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
def test_invalid_driver_is_rejected(members, said, tmp_path):
    """Covers unknown capabilities, missing reasons and missing methods."""
    broken = type("Broken", (store_helpers.FileStore,), members)

    with pytest.raises(InvalidArgument, match=said):
        suite_of(broken).result_of("saved_is_found", tmp_path)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("driver", ["", "no_such_module:Driver", "store_helpers:Nothing", "store_helpers:FAULTS"])
def test_driver_name_without_class_is_rejected(driver, tmp_path):
    with pytest.raises(InvalidArgument, match="driver must"):
        suite_of(driver).result_of("saved_is_found", tmp_path)


def test_driver_class_inside_function_is_rejected(tmp_path):
    """Other processes could not import it."""

    class Here(store_helpers.FileStore):
        pass

    with pytest.raises(InvalidArgument, match="defined within a function"):
        suite_of(Here).result_of("saved_is_found", tmp_path)


def test_unknown_check_is_rejected(tmp_path):
    with pytest.raises(InvalidArgument, match="name must be one of saved_is_found, "):
        suite_of(store_helpers.FileStore).result_of("is_nice", tmp_path)


def test_findings_contain_counts_instead_of_texts(tmp_path):
    result = suite_of(store_helpers.LosesTheFifth).result_of("saved_is_found", tmp_path)

    assert {"not there, or another text: 4 of 20", "not found by a search for its text: 4 of 20"} <= set(
        result.findings
    )


@of_files
def test_command_prints_checks_and_writes_results(tmp_path, capsys):
    """Its exit status is 1 if a check failed."""
    path = tmp_path / "results.json"
    status = main(
        ["store_helpers:FindsTwenty", "--only", "saved_is_found", "limit_is_exact", "--seed", "7", "--json", str(path)]
    )
    said = capsys.readouterr().out.splitlines()
    results = json.loads(path.read_text())

    assert 1 == status
    assert "seed 7" == said[0]
    assert (
        "passed   A saved memory can be read and found by the next call, and also after the store is reopened"
        == said[1]
    )
    assert "         limit 45: 20 hits, of 60 memories" in said
    assert "1 passed, 1 failed, 0 excused" == said[-1]
    assert [("saved_is_found", "passed", 7), ("limit_is_exact", "failed", 7)] == [
        (one["name"], one["outcome"], one["seed"]) for one in results
    ]


@of_files
def test_importing_the_kit_does_not_import_heavy_modules(tmp_path):
    """
    Store processes import only the store, and modules that need no more than attrs.

    The kit needs no pytest.
    """
    code = (
        "import sys, mama_structs.testing.conformance.memory_suite;"
        "print(*(name for name in ('numpy', 'pytest', 'diskcache', 'aiohttp', 'hypothesis') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "\n" == done.stdout


def blocks_of(page, language):
    """Return the code blocks of a documentation page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_pytest(file, *options):
    """Run pytest on a file, without any configuration."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", file.name, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=file.parent)
    return done.stdout


@of_files
def test_store_of_how_to_page_is_tested_by_subclass(tmp_path):
    """The output is that of the page."""
    page = "operations/test-an-agent.md"
    (module,) = (block for block in blocks_of(page, "python") if "class NotesStore" in block)
    (summary,) = (block for block in blocks_of(page, "text") if "passed" in block)
    file = tmp_path / "test_notes.py"
    file.write_text(module)
    passed = run_pytest(file)
    file.write_text(module.replace("[:limit]", "[:min(limit, 5)]"))
    broken = run_pytest(file, "-k", "limit")

    assert summary.strip() in passed, passed
    assert "excused: a note has no history" in passed
    assert "1 failed" in broken
    assert "limit 10: 5 hits, of 60 memories" in broken, broken


def test_capabilities_are_those_needed_by_checks():
    assert set(CAPABILITIES) == {one for check in CHECKS.values() for one in check.needs}


def test_reference_page_lists_all_checks_and_capabilities():
    page = (ROOT / "docs" / "internals" / "memory-suite.md").read_text(encoding="utf-8")

    for check in CHECKS.values():
        needs = ", ".join(f"`{one}`" for one in check.needs) or "nothing"
        assert f"| `{check.name}` | {check.sentence} | {needs} |" in page
    for capability in CAPABILITIES:
        assert f"`{capability}`" in page
