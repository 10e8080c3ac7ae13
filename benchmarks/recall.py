"""
The cost of recall compared with a plain search. The target is at most 1.3 times (DESIGN 6a).

Nothing is embedded: vectors of questions are looked up, so that the search is as cheap as possible.
Every message is new in its conversation, and half of them continue earlier work.

It then evaluates the relevance bound for unrequested recall, which was chosen on half ``a`` of the month in the tests.
It reports how many questions get any of their answers, and how often nothing is recalled for messages without an answer,
including the messages of the exposure benchmark.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
from _common import arguments, compared, comparison_rows, report, take_async_turns
from memories import Corpus, corpus, timed

from mama_structs import HashEmbedder, Session
from mama_structs._internal.reprs import align_columns
from mama_structs.memory.search.search_plan import worth_showing
from mama_structs.refs.conversations.recall_log import RecallLog
from mama_structs.session.recall_builder import RECALL_BOUNDS, build_recall

DATA = Path(__file__).parents[1] / "tests" / "data"
FLOORS = (0.15, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6)

MEMORY_COUNTS = (1_000, 10_000)
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
            seconds, found = await timed_with(build_recall(memories, message, recall_log=RecallLog()))
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

    async def append_result() -> None:
        found.append(await call)

    return await timed(append_result()), found[0]


async def search_questions(
    lines: Sequence[dict[str, Any]], asked: Sequence[dict[str, Any]], *, quick: bool
) -> list[Any]:
    """
    Return, for each question, the half of the set that contains it, the ids of its answers, and the hits of a search.
    """
    async with Session.open(embedder=HashEmbedder() if quick else None) as session:
        ids: dict[str, str] = {}
        for half in "ab":
            own = [line for line in lines if line["half"] == half]
            saved = await session.memories.save_many([line["save"] for line in own])
            ids.update(zip((line["id"] for line in own), (memory.id for memory in saved), strict=True))
        found = []
        for one in asked:
            hits = await session.memories.search(one["question"], limit=10)
            found.append((one["half"], {ids[answer] for answer in one["answers"]}, hits))
        return found


def bound_rows(found: Sequence[Any]) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Return a table row and figures for each relevance bound."""
    rows, figures = [], []
    for bound in FLOORS:
        row = [f"{bound:.2f}{' (ours)' if bound == RECALL_BOUNDS.relevance else ''}"]
        figure: dict[str, Any] = {"relevance": bound}
        for half in ("a", "b", "other"):
            shown = [
                (
                    answers,
                    {hit.memory.id for hit in worth_showing(hits, bounds=attrs.evolve(RECALL_BOUNDS, relevance=bound))},
                )
                for own, answers, hits in found
                if own == half
            ]
            having = [bool(answers & ids) for answers, ids in shown if answers]
            silent = [not ids for answers, ids in shown if not answers]
            figure[half] = {"answered": sum(having), "of": len(having), "silent": sum(silent), "without": len(silent)}
            row += [f"{sum(having)} of {len(having)}"] if having else []
            row += [f"{sum(silent)} of {len(silent)}"]
        rows.append(row)
        figures.append(figure)
    return rows, figures


def read(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / path).read_text(encoding="utf-8").splitlines()]


def main() -> None:
    options = arguments(__doc__)
    sizes, rounds = ((60,), 3) if options.quick else (MEMORY_COUNTS, ROUNDS)
    every, rows = [], []
    for count in sizes:
        lines = corpus(count, quick=options.quick)
        with tempfile.TemporaryDirectory() as folder:
            figures = asyncio.run(measured(lines, count, rounds, Path(folder)))
        every.append(figures)
        shown = {name: own for name, own in figures.items() if isinstance(own, dict)}
        rows += comparison_rows(f"{count:,} memories", shown)
    lines, asked = read("month/saves.jsonl"), read("month/questions.jsonl")
    asked += [{"half": "other", "question": one["text"], "answers": []} for one in read("exposure/messages.jsonl")]
    asked = [one for one in asked if one["question"].strip()]
    some = slice(None, None, 20 if options.quick else 1)
    bounds, chosen = bound_rows(
        asyncio.run(search_questions(lines, [*asked[:70], *asked[70:470]][some], quick=options.quick))
    )
    header = ("store", "what", "min ms", "median ms", "of the search (min)", "(median)")
    report(
        "recall",
        "Recalling beside searching",
        header,
        rows,
        figures={"cost": every, "bounds": chosen},
        folder=options.results,
    )
    header = ("relevance", "a: answered", "a: silent", "b: answered", "b: silent", "others: silent")
    print(align_columns(header, bounds, left_columns=1))


if __name__ == "__main__":
    main()
