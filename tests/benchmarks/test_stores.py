"""Conformance comparison of stores: docs/internals/comparison.md matches the results and explains failures."""

import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE_PATH = ROOT / "docs" / "internals" / "comparison.md"
WRITTEN = json.loads(PAGE_PATH.with_name("comparison-stores.json").read_text(encoding="utf-8"))
RESULTS = [(name, one) for name, own in WRITTEN["figures"]["stores"].items() for one in own["checks"]]


@pytest.fixture
def stores(monkeypatch):
    """The script that compares the stores and writes the table."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("stores")


def test_page_matches_results(stores):
    page = PAGE_PATH.read_text(encoding="utf-8")

    assert stores.page_with(page, WRITTEN) == page, "run `python benchmarks/stores.py --table`"


def test_every_store_has_all_results(stores):
    """The checks are the current ones of the suite, in the same order."""
    suite = importlib.import_module("mama_structs.testing.conformance.checks")
    named = [(check.name, check.sentence) for check in suite.CHECKS.values()]

    assert set(stores.STORES) == set(WRITTEN["figures"]["stores"]) | set(WRITTEN["figures"]["missing"])
    for own in WRITTEN["figures"]["stores"].values():
        assert all(own["versions"].values())
        assert named == [(one["name"], one["sentence"]) for one in own["checks"]]


def test_page_explains_every_failed_and_excused_check():
    page = PAGE_PATH.read_text(encoding="utf-8")
    explained = re.findall(r"^\* .*, (no|excused), `(\w+)`: .{10,}\.$", page, re.MULTILINE)

    assert len([one for _, one in RESULTS if one["outcome"] != "passed"]) == len(explained)


def test_results_contain_no_errors_of_the_suite():
    assert [] == [one for _, one in RESULTS if "_DriverServer" in str(one["findings"])]


def test_own_store_is_excused_only_on_a_server():
    ours = [one["outcome"] for name, one in RESULTS if name == "ours"]
    server = [one["name"] for name, one in RESULTS if name == "server" and one["outcome"] != "passed"]

    assert {"passed"} == set(ours)
    assert ["full_disk_loses_nothing", "no_byte_is_left"] == server


def test_drivers_are_short_and_excuse_only_known_capabilities(stores):
    suite = importlib.import_module("mama_structs.testing.conformance.checks")
    for file in (ROOT / "benchmarks" / "_stores").glob("[!_]*.py"):
        text = file.read_text(encoding="utf-8")
        lacks = re.findall(r'^ +"(\w+)": (?:"|NO_PAST)|lacks: ClassVar = \{"(\w+)"', text, re.MULTILINE)

        assert len(text.splitlines()) < 90
        assert {one or other for one, other in lacks} <= set(suite.CAPABILITIES)
        assert lacks
