"""Answers of the predefined tools, as a model gets them in a session with default settings."""

import asyncio
import importlib
import sys
from pathlib import Path

import pytest

from mama_structs import Session
from mama_structs._internal.jsonable import to_json_text
from mama_structs.cli.demo import PAGE_ROWS
from mama_structs.settings import AnswerSettings, Settings
from mama_structs.testing import FakeNode

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def measured():
    """Return the measured answers of all predefined tools in all reference modes, for a chain with 120 players."""
    sys.path.insert(0, str(FOLDER))
    try:
        return asyncio.run(importlib.import_module("answers").run())
    finally:
        sys.path.remove(str(FOLDER))


def test_answers_are_json_within_budget_with_all_keys(measured):
    """Covers twenty tools, without references and with references of depth one and two."""
    assert 61 == len(measured)
    for check in ("within", "json", "keys"):
        assert [] == [call for call, one in measured.items() if not one[check]]


def test_references_show_id_type_and_name(measured):
    """All references of one entity are shown. A list shows those of its rows that fit."""
    assert [] == [call for call, one in measured.items() if one["visible"] != one["named"]]
    queries = {call: one for call, one in measured.items() if "structs_query_" in call}
    assert [] == [call for call, one in queries.items() if one["found"] != one["visible"]]
    assert [] == [call for call, one in measured.items() if one["visible"] < min(6, one["found"])]
    assert 50 == max(one["found"] for one in measured.values())


def test_shown_rows_and_handles_together_are_the_complete_result(measured):
    assert [] == [call for call, one in measured.items() if not (one["lines"] and one["joined"])]


async def test_demo_call_shows_references_of_first_rows():
    """The call lists a page of sixteen players with their guilds, planets and fleets; most rows fit."""
    asked = {"pagination_limit": PAGE_ROWS, "include_references": True, "reference_types": ["guild", "planet", "fleet"]}
    async with FakeNode.world(seed=1, players=120) as node, Session.open(structs=node.url) as session:
        shown = await session.call("structs_list_players", asked)
        whole = await session.call("structs_list_players", asked, max_chars=None)

    assert 33 <= len(whole["references"])
    assert list(whole["references"])[: len(shown["references"])] == list(shown["references"])
    assert 14 <= len(shown["Player"]) <= PAGE_ROWS
    assert len(to_json_text(shown)) <= 8_000


@pytest.mark.parametrize("limit", [1_000, 2_000, 20_000])
async def test_token_budget_applies_to_answers_with_references(limit):
    def tokens(text):
        return len(text.encode()) // 3 + 1

    settings = Settings(answers=AnswerSettings(max_tokens=limit, count_tokens=tokens))
    async with (
        FakeNode.world(seed=1, players=120) as node,
        Session.open(structs=node.url, settings=settings) as session,
    ):
        shown = await session.call("structs_list_structs", {"include_references": "all"})

    assert limit * 0.6 < tokens(to_json_text(shown)) <= limit
    assert ["Struct", "pagination", "references", "references_meta"] == [key for key in shown if key != "shortened"]
