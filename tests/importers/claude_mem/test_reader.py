"""Reader of claude-mem's database: the mapping of its tables, and the counts of all rows."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import UTC, datetime

import pytest
from importing_helpers import claude_mem_database, listing
from memory_helpers import SMALL

from mama_structs import Filter, Session
from mama_structs.errors import InvalidArgument, MigrationError
from mama_structs.importers import import_from
from mama_structs.importers.claude_mem import reader


def execute(file, *statements):
    """Run SQL statements on a database."""
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        for statement in statements:
            database.execute(statement)
    return file


def test_read_returns_observations_and_summaries(tmp_path):
    """Decisions keep their reasoning, other observations become insights, and summaries checkpoints."""
    claude_mem_database(tmp_path)
    before = listing(tmp_path)
    found = reader.read(tmp_path)
    decision, discovery, bugfix, change, summary = (dict(one.record) for one in found.memories)

    assert {
        "type": "decision",
        "topic": "Five retries for the deploy job",
        "content": "Five retries for the deploy job: The mirror is slow on Mondays",
        "reasoning": "Three retries were not enough, because the package mirror needs up to four minutes on Mondays. "
        "Five retries cover it.\n\n- The deploy job retries five times\n- The mirror is slow on Mondays",
        "tags": ["shop", "trade-off", "why-it-exists"],
        "source": "claude-mem",
        "created_at": datetime(2026, 3, 2, 9, tzinfo=UTC),
    } == decision
    assert ("insight", "shop", "discovery", ["how-it-works"]) == tuple(
        discovery[name] for name in ("type", "topic", "category", "tags")
    )
    assert "Login no longer hangs on an empty password: A missing check" == bugfix["content"]
    assert "wiki" == change["topic"]
    assert {
        "type": "checkpoint",
        "topic": "shop",
        "content": "Request: Raise the retries of the deploy job\nInvestigated: The logs of the last Mondays\n"
        "Learned: The mirror is slow on Mondays\nCompleted: Five retries instead of three",
        "next_steps": ["Watch the next Monday's deploy"],
        "open_files": ["deploy/job.yml"],
        "source": "claude-mem",
        "created_at": datetime(2026, 3, 2, 9, 1, tzinfo=UTC),
    } == summary
    assert {"row": 2, "session": "memory-1", "project": "shop", "files_read": ["notes.txt"]} == found.memories[1].extra[
        "claude-mem"
    ]
    assert before == listing(tmp_path)


def test_read_counts_the_rows_of_all_tables(tmp_path):
    """Each row is imported, or left out with the reason. Tables of the full-text index repeat other rows."""
    file = claude_mem_database(tmp_path)
    found = reader.read(file)

    assert {
        "observations": 4,
        "session summaries": 2,
        "sdk_sessions": 2,
        "user_prompts": 3,
        "schema_versions": 37,
    } == found.found
    assert [("session summaries", "row 2", "no_text")] == [
        (one.item, one.id, one.kind) for one in found.odd if one.id != "all"
    ]
    assert {"sdk_sessions", "user_prompts", "schema_versions"} == {one.item for one in found.odd if one.id == "all"}


def test_read_reports_unusual_rows(tmp_path):
    """Rows of old versions have only a text. Unusual values are reported and never raise."""
    file = execute(
        tmp_path / "old.db",
        "CREATE TABLE observations (sdk_session_id, project, text, type, facts, concepts, created_at, created_at_epoch)",
        "INSERT INTO observations VALUES ('s', 'shop', 'Old text', 'decision', NULL, 'no list', NULL, 1772442000)",
        "INSERT INTO observations VALUES ('s', '', 'No time', NULL, '[1, \"One\"]', '[]', 'never', 'soon')",
        "INSERT INTO observations VALUES ('s', 'shop', NULL, 'change', '{', NULL, NULL, x'ff')",
        "INSERT INTO observations VALUES ('s', 'shop', ' ', 'change', '[]', NULL, NULL, 0)",
    )
    found = reader.read(file)

    assert [("insight", "Old text"), ("insight", "No time\n\n- One"), ("insight", "- {")] == [
        (one.record["type"], one.record["content"]) for one in found.memories
    ]
    assert [datetime(2026, 3, 2, 9, tzinfo=UTC), None, None] == [one.record["created_at"] for one in found.memories]
    assert ["not_texts", "no_time", "no_time", "no_text"] == [one.kind for one in found.odd]


def test_read_raises_when_there_is_no_database_of_claude_mem(tmp_path):
    with pytest.raises(InvalidArgument, match=r"claude-mem\.db"):
        reader.read(tmp_path)
    with pytest.raises(MigrationError, match="none of claude-mem"):
        reader.read(execute(tmp_path / "other.db", "CREATE TABLE observations (id, text)"))


async def test_import_from_adds_each_row_once(tmp_path):
    """A second import adds nothing, also from a copy in which the rows have other numbers."""
    file = claude_mem_database(tmp_path)
    async with Session.open(tmp_path / "agent.mama", embedder=SMALL) as session:
        planned = await import_from(session.memories, "claude-mem", file, dry_run=True)
        first = await import_from(session.memories, "claude-mem", file)
        execute(file, "UPDATE observations SET id = id + 100")
        second = await import_from(session.memories, "claude-mem", file)
        decisions = await session.memories.list(where=Filter(source="claude-mem", type="decision"))

    assert planned.items == first.items
    assert (5, 0, 5) == (first.added, second.added, second.existing)
    assert all(row.total == row.added + row.existing + row.skipped for row in first.items)
    assert [("Five retries for the deploy job", "outside")] == [(one.topic, one.origin) for one in decisions]
