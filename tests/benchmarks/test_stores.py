"""The comparison of what stores keep: its page says what was found, all of it, and why something was not asked."""

import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "comparison.md"
WRITTEN = json.loads((ROOT / "docs" / "comparison-stores.json").read_text(encoding="utf-8"))
RESULTS = [(name, one) for name, own in WRITTEN["figures"]["stores"].items() for one in own["checks"]]


@pytest.fixture
def stores(monkeypatch):
    """Return the script that makes the table."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("stores")


def test_the_page_is_made_from_the_results(stores):
    """Nobody wrote a cell by hand."""
    page = PAGE.read_text(encoding="utf-8")

    assert stores.page_with(page, WRITTEN) == page, "run `python benchmarks/stores.py --table`"


def test_every_store_was_asked_everything(stores):
    """Each store has its versions and a result for each check of the suite as it is now, in its order."""
    suite = importlib.import_module("mama_structs.testing.conformance.checks")
    named = [(check.name, check.sentence) for check in suite.CHECKS.values()]

    assert set(stores.STORES) == set(WRITTEN["figures"]["stores"]) | set(WRITTEN["figures"]["missing"])
    for own in WRITTEN["figures"]["stores"].values():
        assert all(own["versions"].values())
        assert named == [(one["name"], one["sentence"]) for one in own["checks"]]


def test_each_no_and_each_excuse_is_explained_on_the_page():
    """What is not a yes has a line with what was found, or the reason."""
    page = PAGE.read_text(encoding="utf-8")
    explained = re.findall(r"^\* .*, (no|excused), `(\w+)`: .{10,}\.$", page, re.MULTILINE)

    assert len([one for _, one in RESULTS if one["outcome"] != "passed"]) == len(explained)


def test_what_the_suite_itself_got_wrong_is_no_result():
    """An error of the suite's own process is none of the store."""
    assert [] == [one for _, one in RESULTS if "_Served" in str(one["findings"])]


def test_ours_is_excused_only_on_a_server():
    """A directory has to do all of it, and a server all but what a host cannot do there."""
    ours = [one["outcome"] for name, one in RESULTS if name == "ours"]
    server = [one["name"] for name, one in RESULTS if name == "server" and one["outcome"] != "passed"]

    assert {"passed"} == set(ours)
    assert ["full_disk_loses_nothing", "no_byte_is_left"] == server


def test_drivers_do_no_work_of_the_store(stores):
    """A driver excuses itself only from what the suite knows, with a reason, and is some fifty lines long."""
    suite = importlib.import_module("mama_structs.testing.conformance.checks")
    for file in (ROOT / "benchmarks" / "_stores").glob("[!_]*.py"):
        text = file.read_text(encoding="utf-8")
        lacks = re.findall(r'^ +"(\w+)": (?:"|NO_PAST)|lacks: ClassVar = \{"(\w+)"', text, re.MULTILINE)

        assert len(text.splitlines()) < 90
        assert {one or other for one, other in lacks} <= set(suite.CAPABILITIES)
        assert lacks
