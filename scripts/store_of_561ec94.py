"""
Create ``tests/data/store_of_561ec94.tar.xz``, a store as commit 561ec94 wrote it, for tests/storage/test_baseline.py.

It runs with the package of that commit, so its names must not follow later changes of the API::

    mkdir tree && git archive 561ec94 mama_structs | tar x -C tree
    PYTHONPATH=tree python scripts/store_of_561ec94.py tests/data/store_of_561ec94.tar.xz

The archive holds the directory ``agent.mama``, the exports ``<namespace>.jsonl``, and ``contents.json`` with all that
the API returned.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from mama_structs import HashEmbedder, Session

_END: Final = datetime(2100, 1, 1, tzinfo=UTC)


def opened(place: Path, namespace: str, conversation: str | None = None) -> Any:
    """Open the store with small vectors, so that the archive stays small."""
    return Session.open(place, namespace=namespace, conversation=conversation, embedder=HashEmbedder(dimensions=64))


async def fill(place: Path) -> None:
    """Write objects of each kind into two namespaces."""
    async with opened(place, "default", "plan") as session:
        memories, records = session.memories, session.records
        (fd,) = [session.refs.add("raid log\n" * 300, source="tool_result").handle]
        session.refs.add(b"\x89PNG", mime_type="image/png")
        await session.observe('<ref id="plan" lang="md">shields, then fleets</ref> and <ref id="half">not closed')
        await session.observe('<ref id="plan">fleets, then shields</ref>')
        jwt = await memories.save_decision("auth", "Use JWT for logins", "No state", confidence=0.8, evidence=[fd])
        await memories.set_outcome(jwt.id, "FAILED", reason="Tokens cannot be revoked")
        own = await memories.supersede(jwt.id, "Use sessions for logins", "They can be ended")
        await memories.set_outcome(own.id, "SUCCESS", reason="All logouts work")
        await memories.save_checkpoint("Logins are done", open_files=["auth.py"], next_steps=["write the docs"])
        raids = await memories.save_insight("raids doubld on plot:12", category="game", tags=["raid"], source="log.txt")
        await memories.correct(raids.id, "raids doubled on plot:12", reason="a slip")
        await memories.save_context("Die Spieler schreiben deutsch und 한국어", valid_until=_END)
        await memories.save_insight("Fleets follow shields", links=[{"to_id": raids.id, "relationship": "depends on"}])
        await memories.link(own.id, raids.id, "relates to", reason="both are about load", tags=["load"])
        gone = await memories.save_insight("This is deleted")
        await memories.delete(gone.id)
        for step in range(3):
            await records.put(("raid", "plan"), "first", {"step": step, "of": [1, None, "ü"]}, text=f"shields {step}")
        await records.put(("raid",), "ends", 1.5, expires_at=_END)
        await records.append(("log",), [{"at": 1}, {"at": 2}])
        await records.put(("raid",), "gone", None)
        await records.delete(("raid",), "gone")
        async with session.fork("branch") as branch:
            branch.refs.add("only in the branch")
            branch.refs.delete("ref:half")
    async with opened(place, "team", "plan") as session:
        await session.memories.save_decision("trade", "Sell crystal at noon", "Prices peak")
        session.refs.add("prices of the team")


async def contents(place: Path, exports: Path) -> dict[str, Any]:
    """Return the results of the API's read methods for a store, and export its memories."""
    found: dict[str, Any] = {}
    for namespace in await Session.namespaces(place):
        async with opened(place, namespace) as session:
            memories, records = session.memories, session.records
            await memories.export_jsonl(exports / f"{namespace}.jsonl")
            every = [one async for one in memories.all()]
            evidence = {one.id: [each.text for each in await memories.evidence_of(one.id)] for one in every}
            written = [one for last in await records.list() for one in await records.history(last.labels, last.key)]
        conversations = {}
        for known in await Session.conversations(place, namespace=namespace):
            async with opened(place, namespace, known.name) as session:
                refs = {handle: session.refs.get(handle) for handle in session.refs}
            conversations[known.name] = {
                handle: [
                    one.text if getattr(one, "is_text", True) else one.data.hex(),
                    one.created_at.isoformat(),
                    getattr(one, "source", None),
                    getattr(one, "version", None),
                ]
                for handle, one in refs.items()
            }
        found[namespace] = {
            "memories": {one.id: [one.type.value, one.content, one.topic, evidence[one.id]] for one in every},
            "records": [[*one.labels, one.key, one.version, one.value, one.text] for one in written],
            "conversations": conversations,
        }
    return found


async def main(target: Path) -> None:
    """Create the archive."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        await fill(root / "agent.mama")
        found = await contents(root / "agent.mama", root)
        (root / "contents.json").write_text(json.dumps(found, indent=1, ensure_ascii=False), "utf-8")
        with tarfile.open(target, "w:xz") as archive:
            archive.add(root, ".")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
