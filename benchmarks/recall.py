"""
What recalling costs beside a plain search for the same, in turns: at most 1.3 times as much (DESIGN 6a, issue 15).

Nothing is embedded: questions' vectors are looked up, so that the search is as cheap as it can be.
Every message is new to its conversation, and half of them go on with earlier work.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from _common import arguments, compared, comparison_rows, report, take_async_turns
from memories import Corpus, corpus, timed

from mama_structs import Session
from mama_structs.descriptors.told import Told
from mama_structs.recalling import recall

SIZES = (1_000, 10_000)
ROUNDS = 200
RESUMING = "continue from yesterday"


async def measured(lines: Corpus, count: int, rounds: int, folder: Path) -> dict[str, Any]:
    async with Session.open(folder, embedder=lines.embedder()) as session:
        memories = session.memories
        await memories.save_many(lines.records(0, count))
        await memories.save_checkpoint("The parser reads bodies", next_steps=["write tests"])
        asked = iter(lines.questions * (1 + 4 * rounds // len(lines.questions)))
        told = []

        async def recalled(message: str) -> float:
            seconds, found = await timed_with(recall(memories, message, told=Told()))
            told.append(len(found.hits))
            return seconds

        rivals = {
            "search": lambda: timed(memories.search(next(asked), limit=10)),
            "recall": lambda: recalled(next(asked)),
            "search to go on": lambda: timed(memories.search(RESUMING, limit=10)),
            "recall to go on": lambda: recalled(RESUMING),
        }
        await take_async_turns(rivals, min(rounds, len(lines.questions)))
        told.clear()
        seconds = await take_async_turns(rivals, rounds)
    plain = compared({name: seconds[name] for name in ("search", "recall")}, "search")
    going_on = compared({name: seconds[name] for name in ("search to go on", "recall to go on")}, "search to go on")
    return {"memories": count, "hits": sum(told) / len(told), **plain, **going_on}


async def timed_with(call: Any) -> tuple[float, Any]:
    found = []

    async def kept() -> None:
        found.append(await call)

    return await timed(kept()), found[0]


def main() -> None:
    options = arguments(__doc__)
    sizes, rounds = ((60,), 3) if options.quick else (SIZES, ROUNDS)
    every, rows = [], []
    for count in sizes:
        lines = corpus(count, quick=options.quick)
        with tempfile.TemporaryDirectory() as folder:
            figures = asyncio.run(measured(lines, count, rounds, Path(folder)))
        every.append(figures)
        shown = {name: own for name, own in figures.items() if isinstance(own, dict)}
        rows += comparison_rows(f"{count:,} memories", shown)
    header = ("store", "what", "min ms", "median ms", "of the search (min)", "(median)")
    report("recall", "Recalling beside searching", header, rows, figures=every, folder=options.results)


if __name__ == "__main__":
    main()
