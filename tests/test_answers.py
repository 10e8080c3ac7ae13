"""What a model reads of the ready-made tools, in a default session."""

import asyncio
import importlib
import sys
from pathlib import Path

import pytest

from mama_structs import Session
from mama_structs._internal.jsonable import json_text
from mama_structs.cli.demo import PAGE
from mama_structs.settings import AnswerSettings, Settings
from mama_structs.testing import FakeNode

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def measured():
    """Return the figures of all ready-made tools in all modes, on a world of 120 players."""
    sys.path.insert(0, str(FOLDER))
    try:
        return asyncio.run(importlib.import_module("answers").run())
    finally:
        sys.path.remove(str(FOLDER))


def test_every_answer_is_json_within_the_budget_with_the_keys_that_it_has_without_references(measured):
    """Twenty tools, plain, with references, and with those two levels deep."""
    assert 61 == len(measured)
    for check in ("within", "json", "keys"):
        assert [] == [call for call, one in measured.items() if not one[check]]


def test_every_reference_is_visible_by_id_and_type_with_its_name(measured):
    """Up to the limit of fifty, whatever their share of the answer."""
    assert [] == [call for call, one in measured.items() if not one["found"] == one["visible"] == one["named"]]
    assert 50 == max(one["found"] for one in measured.values())


def test_what_is_shown_and_what_handles_give_is_what_the_tool_said(measured):
    """Each line of rows parses, and nothing is missing when all is joined."""
    assert [] == [call for call, one in measured.items() if not (one["lines"] and one["joined"])]


async def test_the_call_of_the_demo_shows_all_its_references():
    """The page of sixteen players, their guilds, planets and fleets, as the demo's agent asks for them."""
    asked = {"pagination_limit": PAGE, "include_references": True, "reference_types": ["guild", "planet", "fleet"]}
    async with FakeNode.world(seed=1, players=120) as node, Session.open(structs=node.url) as session:
        shown = await session.call("structs_list_players", asked)
        whole = await session.call("structs_list_players", asked, max_chars=None)

    assert 33 <= len(whole["references"])
    assert list(whole["references"]) == list(shown["references"])
    assert len(json_text(shown)) <= 8_000


@pytest.mark.parametrize("limit", [1_000, 2_000, 20_000])
async def test_a_budget_in_tokens_holds_for_answers_with_references(limit):
    """A host's own count is what counts."""

    def tokens(text):
        return len(text.encode()) // 3 + 1

    settings = Settings(answers=AnswerSettings(max_tokens=limit, count_tokens=tokens))
    async with (
        FakeNode.world(seed=1, players=120) as node,
        Session.open(structs=node.url, settings=settings) as session,
    ):
        shown = await session.call("structs_list_structs", {"include_references": "all"})

    assert limit * 0.6 < tokens(json_text(shown)) <= limit
    assert ["Struct", "pagination", "references", "references_meta"] == [key for key in shown if key != "shortened"]
