"""
The share of links that a weekly pruning removes.

The memories of tests/data/retrieval are saved in the order of their times, with their explicit links, and all links are
pruned at the end of each week. The last weeks have no new memories.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from _common import RESULTS, RETRIEVAL_DATA, report

from mama_structs import Session, admin
from mama_structs.memory.embedding.hash_embedder import HashEmbedder

WEEK = timedelta(days=7)
WEEKS_AFTER = 6
FIELDS = ("content", "reasoning", "topic")


async def measure(rows: list[dict[str, Any]], folder: Path, embedder: Any) -> list[dict[str, Any]]:
    """Return the number of links before each pruning, and how many it removed."""
    pruned, ids = [], {}
    async with Session.open(folder, embedder=embedder) as session:

        async def prune(end: datetime) -> None:
            links = session.stats()["memories"]["links"]
            removed = await admin.prune(session, now=end)
            pruned.append({"week": str(end.date()), "links": links, "removed": removed})

        end = datetime.fromisoformat(rows[0]["created_at"]) + WEEK
        for row in rows:
            while datetime.fromisoformat(row["created_at"]) >= end:
                await prune(end)
                end += WEEK
            given = {name: row[name] for name in FIELDS if row.get(name)} | {
                "implements": [ids[one] for one in row.get("implements") or ()],
                "created_at": row["created_at"],
            }
            if row["type"] == "decision":
                given.setdefault("reasoning", "not stated")
                before = row.get("supersedes")
                saved = await session.memories.save_decision(**given, supersedes=before and ids[before])
            else:
                given.pop("reasoning", None)
                given["links"] = [{"to_id": one, "relationship": "implements"} for one in given.pop("implements")]
                saved = await session.memories.save_context(**given)
            ids[row["id"]] = saved.id
        for week in range(WEEKS_AFTER):
            await prune(end + week * WEEK)
    return pruned


def main() -> None:
    """Print and store the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    quick = chosen.quick
    lines = (RETRIEVAL_DATA / "memories.jsonl").read_text(encoding="utf-8").splitlines()
    rows = sorted(map(json.loads, lines[:20] if quick else lines), key=lambda row: row["created_at"])
    with tempfile.TemporaryDirectory() as folder:
        pruned = asyncio.run(measure(rows, Path(folder) / "store", HashEmbedder() if quick else None))
    table = [
        (one["week"], str(one["links"]), str(one["removed"]), f"{one['removed'] / max(one['links'], 1):.1%}")
        for one in pruned
    ]
    report(
        "pruning",
        "Links before each weekly pruning, and the links that it removed.",
        ("week", "links", "removed", "share"),
        table,
        figures=pruned,
        folder=chosen.results,
        words=1,
    )


if __name__ == "__main__":
    main()
