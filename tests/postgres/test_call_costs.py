"""Round trips, statements and rows of each call, compared with the table of docs/internals/performance.md."""

import json
import re
from pathlib import Path

import pytest
from memory_helpers import SMALL

from mama_structs import Session
from mama_structs.memory.engines.postgres import writer
from mama_structs.settings import MemorySettings, Settings
from mama_structs.storage.postgres.pool import Connection

PAGE_PATH = Path(__file__).parents[2] / "docs" / "internals" / "performance.md"
COUNT = 1_000
WORDS = ["shield", "raid", "fleet", "planet", "ore", "trade", "guild", "reactor", "dock", "crew", "orbit", "probe"]
CALLS = {
    "`save_decision`": lambda session, ids: session.memories.save_decision(
        "shield the ore of planet 2-1", topic="topic_1", reasoning="raids doubled"
    ),
    "`save_decision` without automatic links": lambda session, ids: session.memories.save_decision(
        "shield the ore of planet 2-1", topic="topic_1", reasoning="raids doubled"
    ),
    "`save_many` of 100 without automatic links": lambda session, ids: session.memories.save_many(records(COUNT, 100)),
    "`search`": lambda session, ids: session.memories.search("who shields the fleet near the dock?"),
    "`search` with a topic": lambda session, ids: session.memories.search("who shields the fleet?", topic="topic_3"),
    "`similar`": lambda session, ids: session.memories.similar(ids[500]),
    "`traverse` of depth 5": lambda session, ids: session.memories.traverse(ids[500], max_depth=5),
    "`history` of a decision": lambda session, ids: session.memories.history(ids[500]),
    "`list`, a page of 50": lambda session, ids: session.memories.list(limit=50),
    "`load/context`": lambda session, ids: session.call("load/context", {"id": ids[500]}),
    "`recall`": lambda session, ids: session.recall("shall we shield the fleet near the dock?"),
}


def records(start, count, ids=()):
    return [
        {
            "type": "decision",
            "topic": f"topic_{at % 20}",
            "content": f"{' '.join(WORDS[at * step % 12] for step in (1, 3, 5, 7))} {at}",
            "reasoning": f"{WORDS[at % 11]} {at % 100}",
            "links": [{"to_id": one, "relationship": "related_to"} for one in ids[-60::20]],
        }
        for at in range(start, start + count)
    ]


def read_rows(plan):
    """Return the number of rows that a plan read from tables and indexes."""
    own = 0
    if "Relation Name" in plan and plan["Node Type"] != "ModifyTable":
        rows = sum(plan.get(name, 0) for name in ("Actual Rows", "Rows Removed by Filter"))
        own = rows * plan["Actual Loops"]
    return own + sum(map(read_rows, plan.get("Plans", ())))


@pytest.fixture
def counted(monkeypatch):
    """Counts of a call: its transactions, its statements, the rows of their answers, and the rows that they read."""
    counts = {"transactions": set(), "statements": 0, "sent": 0, "read": 0}
    fetch = Connection.fetch

    def observe(run, connection, sql, *given):
        if "leases" not in sql:
            fetch(connection, "SAVEPOINT counted")
            plan = fetch(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *given)[0][0]
            fetch(connection, "ROLLBACK TO SAVEPOINT counted")
            counts["transactions"].add(connection)
            counts["statements"] += 1
            counts["read"] += read_rows(json.loads(plan)[0]["Plan"])
        answer = run(connection, sql, *given)
        counts["sent"] += len(answer) if isinstance(answer, list) and "leases" not in sql else 0
        return answer

    for name in ("fetch", "execute"):
        run = getattr(Connection, name)
        monkeypatch.setattr(Connection, name, lambda *given, run=run: observe(run, *given))
    return counts


def documented():
    """Return the maximum counts of each call in the page: round trips, statements, rows sent and rows read."""
    _, _, table = PAGE_PATH.read_text("utf-8").partition("| call on a server |")
    rows = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()[2:]]
    return {name: [int(re.sub(",", "", one)) for one in counts] for name, *counts in rows}


async def test_calls_cost_no_more_than_documented(database, monkeypatch, counted):
    """No call of a store of 1,000 linked memories exceeds the counts in the table of the page."""
    # Otherwise the number of transactions depends on the speed of the machine.
    monkeypatch.setattr(writer, "MAX_TRANSACTION_SECONDS", 3600)
    unlinked = Settings(memory=MemorySettings(linking="off"))
    measured = {}
    async with (
        Session.open(database, embedder=SMALL, settings=unlinked) as without,
        Session.open(database, embedder=SMALL) as session,
    ):
        ids = []
        for start in range(0, COUNT, 100):
            ids += [one.id for one in await without.memories.save_many(records(start, 100, ids))]
        # The first search reads a sample of the vectors, which is then cached.
        await session.memories.search("who shields the fleet?")
        for name, call in CALLS.items():
            counted.update(transactions=set(), statements=0, sent=0, read=0)
            assert await call(without if "without" in name else session, ids)
            trips = counted["statements"] + 2 * len(counted["transactions"])
            measured[name] = [trips, counted["statements"], counted["sent"], round(counted["read"])]
    known = documented()

    assert measured.keys() == known.keys()
    assert {} == {
        name: (counts, known[name])
        for name, counts in measured.items()
        if any(count > most for count, most in zip(counts, known[name], strict=True))
    }
