"""Databases in the format of MAMA v1.0, for tests of the migration."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import attrs

from mama_structs import HashEmbedder, MemorySettings, Session, Settings, admin

SCHEMA: Final = """
CREATE TABLE decisions (
  id TEXT PRIMARY KEY, topic TEXT NOT NULL, decision TEXT NOT NULL, reasoning TEXT, outcome TEXT,
  failure_reason TEXT, limitation TEXT, duration_days INTEGER, user_involvement TEXT, session_id TEXT,
  supersedes TEXT, superseded_by TEXT, refined_from TEXT, confidence REAL DEFAULT 0.5,
  created_at INTEGER DEFAULT (unixepoch()), updated_at INTEGER DEFAULT (unixepoch()),
  needs_validation INTEGER DEFAULT 0 CHECK (needs_validation IN (0, 1)), validation_attempts INTEGER DEFAULT 0,
  last_validated_at INTEGER, usage_count INTEGER DEFAULT 0, trust_context TEXT, usage_success INTEGER DEFAULT 0,
  usage_failure INTEGER DEFAULT 0, time_saved INTEGER DEFAULT 0,
  FOREIGN KEY (supersedes) REFERENCES decisions(id), FOREIGN KEY (superseded_by) REFERENCES decisions(id),
  CHECK (confidence >= 0.0 AND confidence <= 1.0),
  CHECK (outcome IN ('SUCCESS', 'FAILED', 'PARTIAL') OR outcome IS NULL),
  CHECK (user_involvement IN ('requested', 'approved', 'rejected') OR user_involvement IS NULL)
);
CREATE TABLE decision_edges (
  from_id TEXT NOT NULL, to_id TEXT NOT NULL, relationship TEXT NOT NULL, reason TEXT, weight REAL DEFAULT 1.0,
  created_at INTEGER DEFAULT (unixepoch()), PRIMARY KEY (from_id, to_id, relationship),
  FOREIGN KEY (from_id) REFERENCES decisions(id), FOREIGN KEY (to_id) REFERENCES decisions(id),
  CHECK (relationship IN ('supersedes', 'refines', 'contradicts')), CHECK (weight >= 0.0 AND weight <= 1.0)
);
CREATE TABLE sessions (
  id TEXT PRIMARY KEY, project_path TEXT, rolling_summary TEXT, latest_exchange TEXT,
  action_count INTEGER DEFAULT 0, decision_count INTEGER DEFAULT 0, started_at INTEGER DEFAULT (unixepoch()),
  last_active_at INTEGER DEFAULT (unixepoch()), ended_at INTEGER
);
CREATE TABLE schema_version (
  version INTEGER PRIMARY KEY, applied_at INTEGER DEFAULT (unixepoch()), description TEXT
);
CREATE TABLE checkpoints (
  id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp INTEGER NOT NULL, summary TEXT NOT NULL, open_files TEXT,
  next_steps TEXT, status TEXT DEFAULT 'active'
);
CREATE INDEX idx_decisions_topic ON decisions(topic);
CREATE INDEX idx_decisions_supersedes ON decisions(supersedes);
INSERT INTO schema_version (version) VALUES (1), (2), (3), (4);
"""
"""Tables of v1.0, with the indexes and constraints that a reader depends on."""

START: Final = 1_748_822_400_000
"""Start of a generated history in milliseconds since 1970 (June 2025)."""

_DAY: Final = 86_400_000
_WHAT: Final = ("session cookies", "a token bucket", "read replicas", "Redis streams", "snapshot tests", "MessagePack")
_WHY: Final = ("it failed under load", "the team knows it", "it is simpler to run", "latency halved", "costs fell")


@attrs.frozen(eq=False)
class OldStore:
    """
    A v1.0 database to which a test writes.

    Args:
        path: The file.
        database: A connection to it; changes are committed when the block ends.

    """

    path: Path
    database: sqlite3.Connection

    @classmethod
    @contextlib.contextmanager
    def made(cls, path: Path, *, wal: bool = False) -> Iterator[Self]:
        """
        Create a database with the tables of v1.0.

        Args:
            path: A file that does not exist.
            wal: Whether to use the WAL journal mode of v1.0.

        """
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            # Test databases need no durability.
            database.execute("PRAGMA synchronous = OFF")
            if wal:
                database.execute("PRAGMA journal_mode = WAL")
            # Allow invalid rows, because real files contain some that were written by hand or by other programs.
            database.execute("PRAGMA ignore_check_constraints = ON")
            database.executescript(SCHEMA)
            database.execute("BEGIN")
            yield cls(path, database)
            database.execute("COMMIT")

    def row(self, table: str, **columns: Any) -> None:
        """Write a row. Omitted columns get the defaults of the schema."""
        names = ", ".join(columns)
        marks = ", ".join("?" * len(columns))
        self.database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(columns.values()))

    def decision(self, name: str, /, **columns: Any) -> str:
        """
        Write a decision in the format of v1.0, and return its id.

        Args:
            name: Its topic, and the readable part of its id.
            columns: Values that differ from the defaults.

        """
        made = columns.get("created_at", START)
        defaults = {
            "id": f"decision_{name}_{made}_abcd",
            "topic": name,
            "decision": f"Use {name}",
            "reasoning": "It is simpler.",
            "user_involvement": "approved",
            "confidence": 0.5,
            "created_at": made,
            "updated_at": made,
        }
        values = defaults | columns
        self.row("decisions", **values)
        return str(values["id"])

    def edge(self, from_id: str, to_id: str, relationship: str = "supersedes", **columns: Any) -> None:
        """Write an edge in the format of v1.0."""
        values = {"reason": "User changed it", "weight": 1.0, "created_at": START} | columns
        self.row("decision_edges", from_id=from_id, to_id=to_id, relationship=relationship, **values)

    def history(self, count: int, *, seed: int = 0) -> None:
        """
        Write a history of decisions with chains, outcomes and edges.

        Args:
            count: Number of decisions.
            seed: Seed of the random history.

        """
        random_ = random.Random(seed)
        last: dict[str, str] = {}
        made = START
        for number in range(count):
            made += random_.choice((600_000, 1_800_000, _DAY // 4))
            topic = f"topic_{random_.randrange(max(count // 3, 1))}"
            what, why = random_.choice(_WHAT), random_.choice(_WHY)
            failed = random_.random() < 0.1
            before = last.get(topic)
            own = self.decision(
                topic,
                id=f"decision_{topic}_{made}_{number:04x}",
                decision=f"Use {what} for part {number % 97} of {topic.replace('_', ' ')}",
                reasoning=f"We tried {random_.choice(_WHAT)} in week {number // 40}, and {why}.",
                outcome="FAILED" if failed else None,
                failure_reason=f"Part {number} broke: {random_.choice(_WHY)}" if failed else None,
                supersedes=before,
                created_at=made,
                updated_at=made + 3,
            )
            if before is not None:
                self.database.execute("UPDATE decisions SET superseded_by = ? WHERE id = ?", (own, before))
                self.edge(own, before, created_at=made + 4)
            last[topic] = own


# Fixed time of the migration tests, in seconds since 1970.
NOW = 1_764_000_000.0


class Open:
    """A session with a fixed clock."""

    def __init__(self, location=None, *, now=NOW, embedder=None, **settings):
        self.opening = Session.open(
            location,
            embedder=embedder or HashEmbedder(dimensions=64),
            settings=Settings(memory=MemorySettings(**settings)),
        )
        self.now = now

    async def __aenter__(self):
        self.session = await self.opening.__aenter__()
        self.session.memories._shared.clock = lambda: self.now
        return self.session.memories

    async def __aexit__(self, *error):
        return await self.opening.__aexit__(*error)


async def exported(memories, folder):
    """Return an export as bytes."""
    await admin.export_jsonl(memories, folder / "out.jsonl")
    return (folder / "out.jsonl").read_bytes()
