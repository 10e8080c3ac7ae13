"""
Create ``tests/data/filter_names_of_fb7eb6f2.tar.xz``: memories as commit fb7eb6f2 wrote them in both engines.

That commit stored no filter names for tags, sources, outcomes, creators and extra data. It runs with the package of
that commit, so its names must not follow later changes of the API, and needs an empty database of a server::

    mkdir tree && git archive fb7eb6f2 mama_structs | tar x -C tree
    PYTHONPATH=tree python scripts/filter_names_of_fb7eb6f2.py URL tests/data/filter_names_of_fb7eb6f2.tar.xz

The archive holds the directories ``journal`` and ``views`` with a snapshot, and ``server.json`` with the rows of the
server's tables. Both engines have the same memories in the namespace ``default``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tarfile
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import asyncpg
import attrs
import numpy as np

from mama_structs.memory.engines.postgres.engine import PostgresEngines
from mama_structs.memory.types.engine import EmbedderRecord, Engine, NewMemory
from mama_structs.memory.types.model import (
    ContextMetadata,
    DecisionMetadata,
    InsightMetadata,
    Memory,
    MemoryType,
    Outcome,
    RecordMetadata,
)
from mama_structs.session.backend import make_local_engines
from mama_structs.settings import MemorySettings
from mama_structs.storage.postgres.pool import PostgresPool
from mama_structs.storage.sqlite_store import SqliteStorage

EMBEDDER: Final = EmbedderRecord("drawn", "drawn", 3)
START: Final = datetime(2026, 1, 1, tzinfo=UTC)
LONG: Final = "x" * 300
TABLES: Final = ("namespaces", "memory_heads", "memories", "pieces", "terms", "mentions", "touched")
METADATA: Final = {
    "decision_failed": DecisionMetadata(outcome=Outcome.FAILED, created_by="llm"),
    "decision_later": DecisionMetadata(),
    "insight_raid": InsightMetadata(
        tags=("raid", "cafe\u0301"), source="log.txt", extra={"ticket": 12, "flag": True, "none": None}
    ),
    "insight_long": InsightMetadata(tags=(LONG,), source=LONG, extra={"ticket": 12.0, "note": LONG, "flag": 1}),
    "insight_escaped": InsightMetadata(
        tags=("a\\b", "a\0"), extra={"ticket": "12", "a\\b": {"b": 1, "a": [1.0, None]}}
    ),
    "context_plain": ContextMetadata(created_by="system"),
    "record_labelled": RecordMetadata(labels=("raid", "plan"), key="a", value=1, extra={"ticket": 12}),
    "insight_deleted": InsightMetadata(tags=("raid",)),
}


def memories() -> list[Memory]:
    """Return the memories. Their ids are the names above, completed to the form of an id."""
    return [
        Memory(
            id=f"{name}_{1767225600000 + place}_0a1b2c3{place}",
            type=MemoryType(name.partition("_")[0]),
            content=f"raid {name} of 2-1",
            topic="raids",
            metadata=metadata,
            mentions=("2-1",),
            created_at=START + timedelta(seconds=place),
            updated_at=START,
        )
        for place, (name, metadata) in enumerate(METADATA.items())
    ]


async def fill(engine: Engine) -> None:
    """Save the memories, set an outcome later, and delete one memory."""
    vector = np.array([[1, 0, 0]], np.float32)
    new = [NewMemory(memory=memory, vectors=vector) for memory in memories()]
    await engine.write(lambda writer: writer.put_new(new, lambda nodes: [()] * len(nodes)))
    later = attrs.evolve(new[1].memory, metadata=DecisionMetadata(outcome=Outcome.SUCCESS))
    await engine.write(lambda writer: writer.put(later))
    await engine.write(lambda writer: writer.delete(new[-1].memory.id))


async def read_rows(url: str) -> dict[str, Any]:
    """Return the rows of the tables as JSON."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET search_path = mama_structs, public")
        return {
            table: json.loads(await connection.fetchval(f"SELECT coalesce(json_agg(t), '[]') FROM {table} t"))  # noqa: S608
            for table in TABLES
        }
    finally:
        await connection.close()


async def main(url: str, target: Path) -> None:
    """Create the archive."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        storage = SqliteStorage.open(root / "journal")
        engine: Any = await make_local_engines(storage, views=root / "views").open(
            "default", EMBEDDER, MemorySettings()
        )
        await fill(engine)
        assert await engine.snapshot()
        await engine.close()
        await storage.close()
        pool = PostgresPool.open(url)
        await fill(await PostgresEngines(pool).open("default", EMBEDDER, MemorySettings()))
        pool.close()
        (root / "server.json").write_text(json.dumps(await read_rows(url)), "utf-8")
        with tarfile.open(target, "w:xz") as archive:
            archive.add(root, ".")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
