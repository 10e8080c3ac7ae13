"""
The retrieval quality of search, on texts of any kind.

Every set of tests/data is saved through a default `Session`, in order of time, as agents and users would: decisions with
what they supersede, checkpoints with what they implement, outcomes when they were known; turns, messages, passages and
sentences as contexts. Each chat, long dialogue and recall store has a store of its own. Then every question is asked
through `MemoryStore.search`. Search does not see the labels of languages and kinds. ``--external FOLDER`` adds the
third-party sets of that folder, to which no weight may be fitted.

* Compared with ``ours``, in the same run: BM25 of our index, an independent BM25, the best cosine of a text's pieces,
  reciprocal rank fusion, and the best fixed sum of words and cosines, each scaled to 0..1 for each question. The weight
  of the cosines is the best one for the set itself, which favours the sum.
* Against the best sum: at ranks 5 and 10, ours may be at most one point below it in any set.
* The floor: for each set, language and kind, ours may be at most one point below the better of words and vectors alone
  with 60 or more questions, else not significantly below (paired bootstrap, 95 %). For each whole set, recall at 10 must
  be two points above, or at least 0.97.
* Relevance of the first five hits: the expected calibration error (ten bins of equal mass, at most 0.10) and the Brier
  skill over the base rate (at least 0.15). AUC: how well the best hit's relevance separates the questions of a kind from
  messages without answer.
* ``--reranker module:name`` also evaluates your reranker (a function, or an object such as an `OnnxReranker`),
  with its gain and its cost.

Without the extra ``semantic`` it runs with `HashEmbedder`, which compares no meanings, and prints a remark.
fit_search.py fits the weights of the ranking, and evaluates its features.

    python benchmarks/retrieval.py [--external FOLDER] [--sets NAME ...] [--limit QUESTIONS] [--vectors FILE]
        [--reranker MODULE:NAME] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from _common import RECALL_DATA, RESULTS, RETRIEVAL_DATA, CachedEmbedder, report
from _retrieval import (
    LIMIT,
    METRICS,
    Answers,
    Sets,
    Values,
    answer_questions,
    auc,
    bootstrap,
    brier_skill,
    calibration_error,
    groups,
    in_order,
    limit_questions,
    made_up,
    measured,
    read,
    read_external,
    read_recall,
    saved,
)
from _retrieval_rivals import PARTS, SUMS, Rivals

from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.factory import default_embedder
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.types.reranker import Reranker, as_reranker

FAMILY: Final = {"long together": "long", "exact sets": "passages", "pairs": "pairs"}
"""Sets that need not exceed the rivals by two points, with the set whose texts they share."""
MANY, POINT, ABOVE, ENOUGH = 60, 0.01, 0.02, 0.97
WEAK, SURE, FEW = 0.3, 0.6, 20
MAX_CALIBRATION_ERROR, MIN_BRIER_SKILL, JUDGED_HITS = 0.10, 0.15, 5
RERANKED: Final = "ours, reranked"
STEPS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SYSTEMS: Final = (*PARTS, "RRF", *SUMS)

Measures = dict[str, dict[str, dict[str, Values]]]
"""The values of all answerable questions, by set, system and metric."""


async def evaluate(sets: Sets, embedder: CachedEmbedder) -> tuple[Measures, dict[str, list[Answers]], dict[str, str]]:
    """
    Search in each set, and evaluate the baselines on the same texts and vectors.

    Return the measures, the answers, and the name of the best sum of each set.
    """
    measures: Measures = {}
    answers: dict[str, list[Answers]] = {}
    best: dict[str, str] = {}
    embedding = EmbeddingService(embedder)
    try:
        for name, samples in sets.items():
            answers[name], rivals = [], []
            for sample in samples:
                async with saved(sample, embedder) as store:
                    answers[name].append(await answer_questions(store))
                rivals.append(await Rivals.from_sample(sample, embedding))
            embedder.save()
            systems = {"ours": measured(samples, [one.found for one in answers[name]])}
            systems |= {one: measured(samples, [rival.search(one) for rival in rivals]) for one in SYSTEMS}
            best[name] = max(SUMS, key=lambda one: sum(np.mean(systems[one][metric]) for metric in METRICS[1:3]))
            measures[name] = systems | {"best sum": systems[best[name]]}
            figures = (
                f"{one} {' '.join(f'{systems[one][metric].mean():.3f}' for metric in METRICS[:3])}"
                for one in ("ours", *PARTS, best[name])
            )
            print(f"{name}: {', '.join(figures)}", flush=True)
    finally:
        await embedding.close()
    return measures, answers, best


def compare_with_sum(measures: Measures) -> Iterator[dict[str, Any]]:
    """Yield, for each set at ranks 5 and 10, the difference to the best sum, and whether it is at most a point below."""
    for name, systems in measures.items():
        for metric in METRICS[1:3]:
            ours, rival = (float(systems[one][metric].mean()) for one in ("ours", "best sum"))
            yield {"set": name, "metric": metric, "difference": ours - rival, "holds": ours >= rival - POINT}


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


def relevance_auc(sets: Sets, answers: Mapping[str, Sequence[Answers]]) -> Iterator[dict[str, Any]]:
    """
    Yield how well the best hit's relevance separates answerable questions from unanswerable ones.

    By set and language, for paraphrases alone and for all kinds.
    """
    for name, samples in sets.items():
        best = [
            (question.lang, question.kind, bool(question.relevant), max((one for one, _ in hits), default=0.0))
            for sample, one in zip(samples, answers[name], strict=True)
            for question, hits in zip(sample.questions, one.judged, strict=True)
        ]
        for lang in sorted({one[0] for one in best}):
            none = np.array([value for own, _, has_answer, value in best if own == lang and not has_answer])
            for kind in ("paraphrase", "all"):
                some = [
                    value for own, one, has_answer, value in best if own == lang and has_answer and kind in (one, "all")
                ]
                if some and len(none):
                    yield {"set": name, "lang": lang, "kind": kind, "auc": auc(np.array(some), none), "none": len(none)}


def reliability(sets: Sets, answers: Mapping[str, Sequence[Answers]]) -> Iterator[dict[str, Any]]:
    """Yield, for each set, how well the relevance of hits predicts that they are correct."""
    for name, samples in sets.items():
        lists = [(question, hits) for sample, one in zip(samples, answers[name], strict=True)
                 for question, hits in zip(sample.questions, one.judged, strict=True)]  # fmt: skip
        relevance, right = np.array([hit for _, hits in lists for hit in hits]).T
        first, first_right = np.array([hit for _, hits in lists for hit in hits[:JUDGED_HITS]]).T
        error, skill = calibration_error(first, first_right), brier_skill(first, first_right)
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
            "calibration error": error,
            "brier skill": skill,
            "base rate": float(first_right.mean()),
            "is calibrated": error <= MAX_CALIBRATION_ERROR and skill >= MIN_BRIER_SKILL,
            "sure": float((best[~empty] >= SURE).mean()),
            "sure and right": float(found[~empty].mean()),
            "weak without answer": float((best[empty] < WEAK).mean()) if empty.any() else None,
            "auc": auc(best[~empty], best[empty]),
        }


def reranker_named(name: str) -> Reranker:
    """Import and return the object ``module:name``. The module may be in the current directory."""
    sys.path.insert(0, str(Path.cwd()))
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    return found if isinstance(found, Reranker) else as_reranker(found, name=name)


async def reranked(sets: Sets, embedder: CachedEmbedder, reranker: Reranker) -> tuple[Measures, dict[str, Any]]:
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


async def run(sets: Sets, embedder: CachedEmbedder, *, reranker: Reranker | None = None) -> dict[str, Any]:
    """Run all evaluations, and return the figures."""
    measures, answers, best = await evaluate(sets, embedder)
    again, costs = ({}, {}) if reranker is None else await reranked(sets, embedder, reranker)
    measures = {name: systems | again.get(name, {}) for name, systems in measures.items()}
    shown = ("ours", *([] if reranker is None else [RERANKED]), *PARTS, "RRF", "best sum")
    return {
        "embedder": embedder.name,
        "questions": {name: sum(len(sample.questions) for sample in samples) for name, samples in sets.items()},
        "systems": {
            name: {system: {metric: float(systems[system][metric].mean()) for metric in METRICS} for system in shown}
            for name, systems in measures.items()
        },
        "best sum": best,
        "against the best sum": list(compare_with_sum(measures)),
        "floor": list(floor(sets, measures)),
        "relevance": list(reliability(sets, answers)),
        "auc": list(relevance_auc(sets, answers)),
        "current in order": {
            name: in_order(samples[0], answers[name][0].found) for name, samples in sets.items() if name == "decisions"
        },
        "reranking": costs,
    }


def remarks(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the remarks that are printed below the table."""
    yield "Ours less the best sum (words, weight of the cosines):"
    for line in figures["against the best sum"]:
        yield (
            f"  {verdict(line['holds'])} {line['set']}, {line['metric']}: {line['difference']:+.3f} to "
            f"{figures['best sum'][line['set']]}"
        )
    yield "\nRelevance of the first five hits:"
    for one in figures["relevance"]:
        yield (
            f"  {verdict(one['is calibrated'])} {one['set']}: calibration error {one['calibration error']:.3f}, "
            f"Brier skill {one['brier skill']:+.3f}, base rate {one['base rate']:.3f}"
        )
    yield "\nAUC of the best hit's relevance against messages without answer:"
    for one in figures["auc"]:
        yield f"  {one['set']}, {one['lang']}, {one['kind']}: {one['auc']:.3f} ({one['none']} without answer)"
    yield "\nShare of hits that answer (hits) with relevance of at least " + ", ".join(map(str, STEPS))
    for one in figures["relevance"]:
        shares = (
            "-" if share is None else f"{share:.2f} ({n})" for share, n in zip(one["shares"], one["hits"], strict=True)
        )
        yield f"  {verdict(one['holds'])} {one['set']}: " + ", ".join(shares)
    short = [line for line in figures["floor"] if not line["holds"]]
    yield f"\nThe floor: {len(short)} of {len(figures['floor'])} lines fall short"
    for line in short:
        yield (
            f"  {line['set']}, {line['group']} ({line['questions']}), {line['metric']}: {line['ours']:.3f}, "
            f"{line['difference']:+.3f} to {line['better']} ({line['low']:+.3f} to {line['high']:+.3f}); {line['rule']}"
        )
    for name, share in figures["current in order"].items():
        yield f"'current' in {name}: no predecessor before the newest in {share:.0%}"
    for name, cost in figures["reranking"].items():
        yield (
            f"the reranker in {name}: {cost['milliseconds']:.1f} ms and {cost['texts'] / cost['searches']:.0f} texts a "
            f"search; of {cost['searches']} searches it failed {cost['failed']}"
        )


def verdict(holds: bool) -> str:  # noqa: FBT001
    """Return whether a requirement is met, as text of fixed width."""
    return "PASS      " if holds else "FALL SHORT"


def table_rows(figures: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the table rows, ours first. A star marks the best figure of each column."""
    for name, systems in figures["systems"].items():
        best = {metric: max(one[metric] for one in systems.values()) for metric in METRICS}
        for system, one in systems.items():
            yield [
                f"{name} ({figures['questions'][name]})",
                system if system != "best sum" else f"best sum ({figures['best sum'][name]})",
                *(f"{one[metric]:.3f}{'*' if one[metric] == best[metric] else ' '}" for metric in METRICS),
            ]


def main() -> None:
    """Run the benchmark, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=RETRIEVAL_DATA, help="the folder of the sets (%(default)s)")
    parser.add_argument("--external", type=Path, help="the folder of the third-party sets")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="only these sets")
    parser.add_argument("--limit", type=int, help="ask at most this many questions of each set")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    parser.add_argument("--reranker", metavar="MODULE:NAME", help="also ask with this reranker")
    parser.add_argument("--vectors", type=Path, help="a file (.npz) that keeps the vectors between runs")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    chosen = parser.parse_args()
    embedder = CachedEmbedder(HashEmbedder() if chosen.quick else default_embedder(), chosen.vectors)
    if embedder.name == HashEmbedder().name:
        print("HashEmbedder knows no meaning: install the extra `semantic` for the figures that count\n")
    sets: Sets = made_up() if chosen.quick else {**read(chosen.data), "recall": read_recall(RECALL_DATA)}
    if chosen.external:
        sets = {**sets, **read_external(chosen.external)}
    sets = {name: sets[name] for name in chosen.sets or sets}
    if chosen.limit:
        sets = limit_questions(sets, chosen.limit)
    named = "_retrieval:shared_words" if chosen.quick else chosen.reranker
    reranker = None if named is None else reranker_named(named)
    figures = asyncio.run(run(sets, embedder, reranker=reranker))
    embedder.save()
    title = (
        f"Search with {figures['embedder']}.\nrecall@k: share of the right memories among the first k; "
        f"MRR: 1 / rank of the first right one of {LIMIT}; * marks the best of a set."
    )
    header = ["set (questions)", "system", *METRICS]
    report("retrieval", title, header, list(table_rows(figures)), figures=figures, folder=chosen.results)
    print(*remarks(figures), sep="\n")


if __name__ == "__main__":
    main()
