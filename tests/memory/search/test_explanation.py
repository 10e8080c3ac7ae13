"""Explanations of why a search returned a memory or omitted it."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from memory_helpers import OpenedDirectory, PlainEngines

from mama_structs import Filter
from mama_structs.errors import MemoryNotFound

START = datetime(2026, 1, 1, tzinfo=UTC)
NOW = START + timedelta(days=100)
DAY = 86_400.0


@pytest.fixture(params=[lambda: None, PlainEngines], ids=["embedded", "plain"])
async def store(request, tmp_path):
    opened = OpenedDirectory.open(tmp_path, engines=request.param(), clock=NOW.timestamp)
    yield await opened.memories()
    await opened.close()


async def test_explain_returns_argument_that_left_memory_out(store):
    """Covers filters, expiry, limits and copies."""
    old = await store.save_decision("Use JWT for logins", topic="auth", reasoning="stateless", created_at=START)
    new = await store.supersede(old.id, "Keep logins in Redis", reasoning="can be ended", origin="tool")
    copy = await store.save_insight("Logins by JWT cannot be ended.")
    again = await store.save_insight("logins by JWT cannot be ended")
    ended = await store.save_insight(
        "JWT is out of order until noon", created_at=START, valid_until=START + timedelta(days=1)
    )
    query = "JWT for logins"

    async def why(memory, **given):
        return (await store.explain(query, memory.id, **given)).excluded_by

    shown = {name for hit in await store.search(query) for name in (hit.memory.id,)}
    (folded,) = {copy.id, again.id} - shown

    assert await why(new) is None
    assert "type" == await why(new, type="insight")
    assert "topic" == await why(copy, topic="auth")
    assert "since" == await why(old, since=START + timedelta(seconds=DAY))
    assert "until" == await why(new, where=Filter(until=START + timedelta(seconds=DAY)))
    assert "mentions" == await why(new, where=Filter(mentions=["2-1"]))
    assert "origin" == await why(new, where=Filter(origin="user"))
    assert "min_trust" == await why(new, where=Filter(min_trust="user"))
    assert "tags" == await why(new, where=Filter(tags="a"))
    assert "source" == await why(new, where=Filter(source="a"))
    assert "outcome" == await why(new, where=Filter(outcome="FAILED"))
    assert "created_by" == await why(new, where=Filter(created_by="llm"))
    assert "extra" == await why(new, where=Filter(extra={"a": 1}))
    assert "namespace" == await why(new, where=Filter(namespace="other"))
    assert "superseded" == await why(old, superseded="exclude")
    assert "min_relevance" == await why(old, min_relevance=1.0)
    assert "max_chars" == await why(old, max_chars=1)
    assert "as_of" == await why(new, as_of=START + timedelta(seconds=DAY))
    assert "valid_until" == await why(ended)
    assert "limit" == await why(old, limit=1)
    assert "duplicates" == (await store.explain(query, folded)).excluded_by
    with pytest.raises(MemoryNotFound):
        await store.explain(query, "decision_unknown_1790000000000_0a1b2c3d")


async def test_explanation_str_is_a_table_of_terms(store):
    """Each term has a line, followed by score and relevance, without text of the memory."""
    memory = await store.save_insight("The harbour freezes in winter.")
    lines = str(await store.explain("when does the harbour freeze", memory.id)).splitlines()

    assert f"{memory.id}: hit 1" == lines[0]
    assert ["similar meaning", "same words", "recent"] == [re.split(r"\s{2,}", line.strip())[0] for line in lines[1:4]]
    assert ["score", "relevance"] == [line.split()[0] for line in lines[-2:]]
