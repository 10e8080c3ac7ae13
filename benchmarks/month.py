"""
The accuracy of save warnings, in two hand-labelled sets.

Save warnings report duplicates, near duplicates, contradictions and replacements.

*month* (tests/data/month) is a month of an agent's work; *pairs* (tests/data/noticing) has pairs of saves on other
subjects. The constants of mama_structs/memory/save/conflict_detection.py and the rules of mama_structs/memory/statements
were chosen on half a of both sets. Half b is not independent: its counts, and four of its texts, led to rules about
headings, prepositions and thresholds.
All saves of a set go into one store, in order and at their times. The warnings are compared with the labels. A pair
belongs to the half of its newer memory. *disagrees* combines contradictions and replacements, regardless of which of
the two was reported. *merged* uses a second store that merges duplicates; a pair is correct if it is a duplicate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from _common import RESULTS, report

from mama_structs._internal.event_loop import LoopGuard
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder
from mama_structs.memory.store.factory import open_memories
from mama_structs.memory.types.model import Memory
from mama_structs.session.backend import Backend
from mama_structs.settings import MemorySettings

DATA = Path(__file__).parents[1] / "tests" / "data"
SETS = {"month": DATA / "month" / "saves.jsonl", "pairs": DATA / "noticing" / "saves.jsonl"}
EMBEDDERS = {"use": UniversalSentenceEmbedder, "hash": HashEmbedder}
FIELDS = {"contradicts": "possible_conflicts", "replaces": "possible_replacements"}
COPIES = ("merged", "copy")
KINDS = (*COPIES, "near", "contradicts", "replaces", "disagrees")
MERGING = ("decision", "insight", "context")
Rows = Sequence[Mapping[str, Any]]
Pairs = dict[str, set[tuple[str, str]]]


def read(path: Path = SETS["month"]) -> list[dict[str, Any]]:
    """Return the saves of a set in order."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


async def live(rows: Rows, embedder: Embedder, **more: Any) -> dict[str, Memory]:
    """Save a set to a new store, and return the memory of each save by its label."""
    now = 0.0
    home = await Backend.open(None)
    store, close = await open_memories(
        home.engines,
        namespace="month",
        embedder=embedder,
        # Switch linking off for merging, which does not depend on links.
        settings=MemorySettings(linking="off" if more else "default"),
        loop=LoopGuard("month"),
        find_mentions=lambda _text: (),
        clock=lambda: now,
    )
    given = {}
    for row in rows:
        now = datetime.fromisoformat(row["at"]).timestamp()
        merging = more if row["save"]["type"] in MERGING else {}
        (given[row["id"]],) = await store.save_many([{**row["save"], **merging}])
    # No save may contain `supersedes`, so that all memories of the set stay current.
    assert not [one for one in await store.relationships() if one.word == "supersedes"]
    await close()
    await home.close()
    return given


def labelled(rows: Rows) -> Pairs:
    """Return the labelled relations between saves, by kind."""
    pairs: Pairs = defaultdict(set)
    for row in rows:
        for one in row["stands"] or ():
            pairs[one["kind"]].add((row["id"], one["of"]))
    pairs["merged"] = pairs["copy"]
    pairs["disagrees"] = pairs["contradicts"] | pairs["replaces"]
    return pairs


def collect_relations(kept: Mapping[str, Memory], merged: Mapping[str, Memory]) -> Pairs:
    """Return the relations that the stores reported, by kind: warnings and merges."""
    known = {memory.id: name for name, memory in kept.items()}
    pairs: Pairs = defaultdict(set)
    first: dict[str, str] = {}
    for name, memory in kept.items():
        for one in memory.warnings.duplicate_of:
            pairs["copy" if one.probability == 1 else "near"].add((name, known[one.id]))
        for kind, field in FIELDS.items():
            pairs[kind] |= {(name, known[one.id]) for one in getattr(memory.warnings, field)}
    for name, memory in merged.items():
        if memory.id in first:
            pairs["merged"].add((name, first[memory.id]))
        first.setdefault(memory.id, name)
    pairs["disagrees"] = pairs["contradicts"] | pairs["replaces"]
    return pairs


async def figures(rows: Rows, embedder: Embedder) -> dict[str, dict[str, Counter[str]]]:
    """Return the numbers of correct, wrong and missed pairs, by half and kind."""
    found = collect_relations(await live(rows, embedder), await live(rows, embedder, on_duplicate="merge"))
    true = labelled(rows)
    half = {row["id"]: row["half"] for row in rows}
    counted: dict[str, dict[str, Counter[str]]] = {one: {kind: Counter() for kind in KINDS} for one in "ab"}
    for kind in KINDS:
        for pair in found[kind] | true[kind]:
            outcome = "right" if pair in found[kind] & true[kind] else "wrong" if pair in found[kind] else "missed"
            counted[half[pair[0]]][kind][outcome] += 1
    return counted


def shares(one: Mapping[str, int]) -> tuple[float, float]:
    """Return precision and recall from the counts of one kind."""
    right, wrong, missed = (one.get(name, 0) for name in ("right", "wrong", "missed"))
    return right / max(right + wrong, 1), right / max(right + missed, 1)


def main() -> None:
    """Print precision and recall for both sets, halves and embedders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    given = parser.parse_args()
    lines, kept = [], {}
    for which, path in SETS.items():
        rows = read(path)[: 60 if given.quick else None]
        for name in ("hash",) if given.quick else tuple(EMBEDDERS):
            counted = kept[f"{which} {name}"] = asyncio.run(figures(rows, EMBEDDERS[name]()))
            for kind in KINDS if which == "month" else KINDS[len(COPIES) :]:
                cells = []
                for half in "ab":
                    one = counted[half][kind]
                    precision, recall = shares(one)
                    cells += [f"{precision:.2f}", f"{recall:.2f}", f"{one['right']}/{one['wrong']}/{one['missed']}"]
                lines.append([which, name, kind, *cells])
    header = [
        "set",
        "embedder",
        "pairs",
        *(f"{what} {half}" for half in "ab" for what in ("precision", "recall", "r/w/m")),
    ]
    title = "What saves notice; chosen on half a; r/w/m: right, wrong, missed"
    report("month", title, header, lines, figures=kept, folder=given.results)


if __name__ == "__main__":
    main()
