"""
Precision and recall of the hits shown in a prompt, with and without a cut-off.

Every set of tests/data/retrieval is saved and searched as in retrieval.py. Precision is the share of
the shown hits that answer, recall the share of the answers that are shown, each as the mean over the answerable
questions (no shown hit counts as 0). ``nothing`` is the share of unanswerable questions for which nothing is shown;
precision with those counts each of them as 1 if nothing is shown, else 0. Only the exact sets were written for showing
hits.

The figures are those of the shipped cut-off, `DISPLAY_BOUNDS`. The title also names the one with the best mean of F1 over
the sets, on every second question of each set.

    python benchmarks/precision.py [--data FOLDER] [--vectors FILE] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from _common import RESULTS, RETRIEVAL_DATA, CachedEmbedder, report
from _retrieval import LIMIT, Answers, Question, Sets, answer_questions, made_up, read, saved

from mama_structs.memory.embedding.factory import default_embedder
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.graph.results import Hit
from mama_structs.memory.search.search_plan import worth_showing
from mama_structs.memory.types.engine import DISPLAY_BOUNDS, RelevanceBounds

EXCLUDED_SETS: Final = ("long together", "pairs")
"""Sets that add no information: one repeats texts of another, and one contains contradicting sentences."""
RELEVANCES: Final = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
SHARES: Final = (0.0, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
WITHOUT: Final = RelevanceBounds(relevance=0.0, share=0.0)
FIGURES: Final = ("precision", "recall", "with unanswered", "nothing")

Asked = Sequence[tuple[Question, Sequence[Hit], Mapping[str, str]]]
"""Questions with their hits, and the label of each memory."""


async def all_asked(sets: Sets, embedder: Embedder) -> dict[str, Asked]:
    """Search for every question, and return the hits."""
    found: dict[str, Asked] = {}
    for name, samples in sets.items():
        lists: list[tuple[Question, Sequence[Hit], Mapping[str, str]]] = []
        for sample in samples:
            async with saved(sample, embedder) as store:
                answers: Answers = await answer_questions(store)
                lists += [
                    (question, hits[:LIMIT], store.labels)
                    for question, hits in zip(sample.questions, answers.hits, strict=True)
                ]
        found[name] = lists
    return found


def evaluate_bounds(lists: Asked, cut: RelevanceBounds) -> dict[str, float]:
    """Return the figures of the given questions if only hits within the cut-off are shown."""
    precisions, recalls, empty, sums = [], [], [], []
    for question, hits, labels in lists:
        kept = {labels[hit.memory.id] for hit in worth_showing(hits, bounds=cut)}
        right = len(kept.intersection(question.relevant))
        if question.relevant:
            precisions.append(right / len(kept) if kept else 0.0)
            recalls.append(right / len(question.relevant))
            sums.append(2 * right / (len(kept) + len(question.relevant)))
        else:
            empty.append(float(not kept))
    means = [float(np.mean(one)) if one else float("nan") for one in (precisions, recalls, precisions + empty, empty)]
    return dict(zip(FIGURES, means, strict=True)) | {"F1": float(np.mean(sums + empty))}


def chosen(found: Mapping[str, Asked]) -> RelevanceBounds:
    """Return the cut-off with the best F1. Use only every second question of each set."""
    cuts = [RelevanceBounds(relevance=relevance, share=share) for relevance in RELEVANCES for share in SHARES]
    return max(
        cuts, key=lambda cut: float(np.mean([evaluate_bounds(lists[::2], cut)["F1"] for lists in found.values()]))
    )


async def run(sets: Sets, embedder: Embedder) -> dict[str, Any]:
    """Return the figures with and without the shipped cut-off, and the best one for half of the questions."""
    found = await all_asked({name: some for name, some in sets.items() if name not in EXCLUDED_SETS}, embedder)
    cut = chosen(found)
    return {
        "chosen": {"relevance": cut.relevance, "share": cut.share},
        "shipped": {"relevance": DISPLAY_BOUNDS.relevance, "share": DISPLAY_BOUNDS.share},
        "sets": {
            name: {
                half: {
                    "questions": len(lists[first::2]),
                    "without": evaluate_bounds(lists[first::2], WITHOUT),
                    "cut": evaluate_bounds(lists[first::2], DISPLAY_BOUNDS),
                }
                for first, half in enumerate(("chosen on", "told for"))
            }
            for name, lists in found.items()
        },
    }


def table_rows(figures: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the table rows. Each figure is given without and with the cut-off."""
    for name, halves in figures["sets"].items():
        for half, one in halves.items():
            pairs = (f"{one['without'][figure]:.3f} {one['cut'][figure]:.3f}" for figure in FIGURES)
            yield [name, half, str(one["questions"]), *pairs]


def main() -> None:
    """Run the benchmark, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=RETRIEVAL_DATA, help="the folder of the sets (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    parser.add_argument("--vectors", type=Path, help="a file (.npz) that keeps the vectors between runs")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    options = parser.parse_args()
    embedder = CachedEmbedder(HashEmbedder() if options.quick else default_embedder(), options.vectors)
    figures = asyncio.run(run(made_up() if options.quick else read(options.data), embedder))
    embedder.save()
    best, shipped = figures["chosen"], figures["shipped"]
    title = (
        f"Shown hits, of the first {LIMIT} with {embedder.name}: each figure without a cut-off, and with a relevance of "
        f"{shipped['relevance']} of the best hit and {shipped['share']} of it for others (best on the first half: "
        f"{best['relevance']} and {best['share']})"
    )
    report(
        "precision",
        title,
        ["set", "half", "n", *FIGURES],
        list(table_rows(figures)),
        figures=figures,
        folder=options.results,
    )


if __name__ == "__main__":
    main()
