"""Analysis of the arguments and the text of a search."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from mama_structs import HashEmbedder
from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedding.protocol import unadjusted_query
from mama_structs.memory.search.search_request import MAX_QUERY_CHARS, SearchQuery, embed_request
from mama_structs.memory.search.time_expressions import WEAK_STRENGTH
from mama_structs.memory.types.engine import EngineFilter

NOW = datetime(2026, 4, 15, 12, tzinfo=UTC)


async def _embed(text, **options):
    """Return the request for a text, and check that its content was embedded once."""
    embedded = []

    async def embed(content):
        embedded.append(content)
        return unadjusted_query(np.zeros(4, np.float32))

    request = await embed_request(SearchQuery(text=text, **options), embed, HashEmbedder(dimensions=64), now=NOW)

    assert [request.content] == embedded
    return request


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("the harbour", "the harbour"),
        ("What did Ada say about the harbour last week?", "What did Ada say about the harbour?"),
        ("Where do I live?", "Where does the user live?"),
        ("the harbour in March 2025", "the harbour in March 2025"),
        ("last week", "last week"),
    ],
)
async def test_content_has_no_relative_period_and_no_first_person(text, content):
    """Names of months may be in memories, and a query that is only a period remains."""
    assert content.split() == (await _embed(text)).content.split()


async def test_period_counts_from_as_of():
    """As of a past time, "yesterday" is the day before that time."""
    then = NOW - timedelta(days=30)
    request = await _embed("What happened yesterday?", as_of=then)

    assert then == request.reference_time
    assert (then - timedelta(days=1)).date() == request.period.since.date()
    assert NOW == (await _embed("harbour")).reference_time


@pytest.mark.parametrize(
    ("text", "is_about_period"),
    [("What did we note yesterday?", True), ("What broke last week?", True), ("Who won the game last night?", False)],
)
async def test_queries_for_notes_or_events_are_about_the_period(text, is_about_period):
    assert is_about_period == (await _embed(text)).is_about_period


async def test_period_of_plans_is_a_hint():
    """Memories of any day say when a shop is open."""
    assert (await _embed("Are we open on Monday?")).period.strength <= WEAK_STRENGTH
    assert (await _embed("What did Ada say on Monday?")).period.strength > WEAK_STRENGTH


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("superseded", "hide"),
        ("min_relevance", 1.5),
        ("limit", -1),
        ("as_of", "noon"),
        ("query", "x" * (MAX_QUERY_CHARS + 1)),
    ],
)
def test_invalid_arguments_raise(name, value):
    arguments = {"query": "x", "superseded": "keep", "min_relevance": None, "as_of": None, "limit": 3, name: value}
    with pytest.raises(InvalidArgument, match=name):
        SearchQuery.checked(arguments.pop("query"), EngineFilter(), **arguments)
