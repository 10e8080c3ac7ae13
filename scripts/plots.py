"""
Create the pictures of plots and notebook HTML in ``docs/pictures``.

Run ``python scripts/plots.py`` after a change of the plots or the HTML.
The pictures are PNG. With ``--html`` the script also writes the HTML files, which a browser converts to pictures.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

from mama_structs import HashEmbedder, Session
from mama_structs.memory.embedding.factory import default_embedder

TARGET: Final = Path(__file__).parents[1] / "docs" / "pictures"
_START: Final = datetime(2026, 7, 1, 9, tzinfo=UTC)
_NOTES: Final = (
    ("orders", 4, "Orders peak on Monday mornings"),
    ("orders", 33, "An order without an address is held for a day"),
    ("orders", 61, "Support asks for an export of orders every Friday"),
    ("database", 12, "Backups run at 3 in the morning and take 20 minutes"),
    ("database", 48, "The staging database is a copy of last week"),
    ("auth", 18, "Logins are kept for 12 hours"),
    ("auth", 66, "Half of the users sign in from a phone"),
    ("queue", 52, "Nobody has looked at the dead letters since May"),
)


def _day(number: float) -> datetime:
    return _START + timedelta(days=number)


async def fill(memories: Any) -> str:
    """Save the decisions of a small shop with outcomes and notes, and return the id of one decision."""
    jwt = await memories.save_decision(
        "Use JWT for logins", topic="auth", reasoning="No store to ask", created_at=_day(0)
    )
    await memories.set_outcome(jwt.id, "FAILED", reason="A stolen token could not be revoked", at=_day(24))
    redis = await memories.supersede(
        jwt.id, "Keep logins as sessions in Redis", reasoning="They can be ended", created_at=_day(26)
    )
    await memories.set_outcome(redis.id, "PARTIAL", reason="Two passwords were lost to phishing", at=_day(64))
    keys = await memories.supersede(
        redis.id, "Sign in with passkeys, sessions stay in Redis", reasoning="Nothing to steal", created_at=_day(70)
    )
    await memories.save_checkpoint(
        "Passkeys work in Chrome and Firefox, Safari is next", implements=[keys.id], created_at=_day(75)
    )
    postgres = await memories.save_decision(
        "PostgreSQL for orders", topic="database", reasoning="One place to back up", created_at=_day(8)
    )
    await memories.set_outcome(postgres.id, "SUCCESS", reason="No order was lost in two months", at=_day(68))
    await memories.save_decision(
        "Run jobs in PostgreSQL, without a broker",
        topic="queue",
        reasoning="One thing less",
        implements=[postgres.id],
        created_at=_day(30),
    )
    await memories.save_insight("Revoking a token needs a list that every server reads", created_at=_day(25))
    await memories.save_many(
        {"type": "context", "topic": topic, "content": text, "created_at": _day(day)} for topic, day, text in _NOTES
    )
    return str(redis.id)


async def main() -> None:
    """Write every picture."""
    mpl.use("agg")
    TARGET.mkdir(exist_ok=True)
    embedder = default_embedder() or HashEmbedder()
    async with Session.open(embedder=embedder) as session:
        memories = session.memories
        memory_id = await fill(memories)
        plot = memories.plot
        drawn = {
            "evolution": plot.history("auth"),
            "neighbourhood": plot.neighbourhood(memory_id),
            "timeline": plot.timeline(),
            "map": plot.embedding_map(),
            "decay": plot.decay(),
        }
        for name, drawing in drawn.items():
            axes = await drawing
            axes.figure.savefig(TARGET / f"{name}.png", dpi=100, metadata={"Software": None})
        if "--html" in sys.argv:
            hits = await memories.search("why did we drop JWT?", limit=4)
            (TARGET / "hits.html").write_text(hits._repr_html_(), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
