"""
Fit the weights of the ranking and of the relevance of search, and evaluate each feature.

The weights are fitted to tests/data/retrieval and tests/data/recall only, with each set weighted equally (_fitting.py):

* Ranking: listwise softmax cross-entropy of the candidates, by `features.FEATURES`.
* Relevance: logistic regression of "this hit answers", by `features.RELEVANCE_FEATURES`, on the first five hits of
  each question. The stores of the recall set count twice: as they are, and with 1,000 unrelated texts each, because
  unrelated texts are more similar to a message the more there are.

Every figure of a set is with weights that were fitted to the other sets, except for the third-party sets of
``--external FOLDER``, which are evaluated with the final weights. The ablation fits again without each feature.
The figures are of the ranking by the features alone, before the rules that reorder and fold hits (retrieval.py
measures the whole search).

    python benchmarks/fit_search.py --write [--vectors FILE]

reproduces mama_structs/memory/search/weights.json.

    python benchmarks/fit_search.py [--ablate] [--external FOLDER] [--vectors FILE] [--quick]

only evaluates.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from _common import RECALL_DATA, RESULTS, RETRIEVAL_DATA, CachedEmbedder, report
from _fitting import Candidates, Lists, fit_logistic, fit_ranking, leave_one_out, recalls, sigmoid
from _retrieval import (
    METRICS,
    Saved,
    Sets,
    Values,
    auc,
    brier_skill,
    calibration_error,
    made_up,
    read,
    read_external,
    read_large_recall,
    read_recall,
    saved,
)
from retrieval import FAMILY

from mama_structs.memory.embedding.factory import default_embedder
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.search import features
from mama_structs.memory.search.features import FEATURES, JUDGED_HITS, RELEVANCE_FEATURES
from mama_structs.memory.search.ranking import collect_features
from mama_structs.memory.search.search_request import SearchQuery
from mama_structs.memory.types.engine import Reader

LARGE: Final = "recall in large stores"
SHARED_TEXTS: Final = {name: other for name, other in FAMILY.items() if name != other} | {LARGE: "recall"}
"""Sets that the ranking is not fitted to, with the set whose texts they share."""
FIXED_WEIGHTS: Final = {"topic": 0.1, "recency": 0.02}
"""
Weights that are not fitted. Few labels depend on topics, and none on recency, so that a fit would only find chance.
They are large enough to order memories that are equal otherwise.
"""
UNANSWERABLE_REPEATS: Final = 3
"""Questions without an answer are rare in the sets, so that their hits count this often."""
WEIGHTS_PATH: Final = Path(features.__file__).with_name("weights.json")
DIGITS: Final = 3
"""Decimal places of the written weights. Vectors differ between machines by rounding."""


async def collect(store: Saved) -> list[Candidates]:
    """
    Return the candidates of all questions of a store with their features.

    Memories of outcomes are left out, because a rule ranks them behind their decisions.
    """
    memories, questions = store.memories, store.sample.questions
    requests = [
        await memories._build_request(SearchQuery(text=one.text, as_of=one.as_of, limit=store.hit_limit))  # noqa: SLF001
        for one in questions
    ]

    def plan(reader: Reader) -> list[Candidates]:
        collected = []
        for question, request in zip(questions, requests, strict=True):
            nodes, table, evidence = collect_features(reader, request)
            ids = reader.ids(nodes)
            kept = np.array([name not in store.outcomes for name in ids], np.bool_)
            labels = [store.labels[name] for name in ids if name not in store.outcomes]
            collected.append(Candidates(question, labels, table[kept], evidence[:, kept]))
        return collected

    return await memories._engine.read(plan)  # noqa: SLF001 - no public API for features


async def collect_all(sets: Sets, embedder: CachedEmbedder) -> Lists:
    """Return the candidates of all questions of all sets."""
    lists: dict[str, list[Candidates]] = {}
    for name, samples in sets.items():
        lists[name] = []
        for sample in samples:
            async with saved(sample, embedder) as store:
                lists[name] += await collect(store)
        embedder.save()
    return lists


# Relevance


@attrs.frozen(eq=False)
class JudgedHits:
    """
    The first hits of a set.

    Args:
        features: Shape (hits, features).
        right: True for hits that answer.
        is_answerable: True for hits of questions with an answer.
        question: The number of the question of each hit.

    """

    features: Values
    right: Any
    is_answerable: Any
    question: Any

    @classmethod
    def from_candidates(cls, lists: Sequence[Candidates], ranking: Values) -> JudgedHits:
        """Rank the candidates of each question, and compute the features of the first hits."""
        rows, right, answerable, numbers = [], [], [], []
        for number, one in enumerate(lists):
            hits = one.ranked(ranking)[:JUDGED_HITS]
            if not hits:
                continue
            scores, links = one.features @ ranking, one.features[hits, FEATURES.index("links")]
            total = float(np.logaddexp.reduce(scores))
            rows.append(features.relevance_features(scores[hits], *one.evidence[:, hits], links, total=total))
            right.append(one.is_right[hits])
            answerable.append(np.full(len(hits), bool(one.question.relevant)))
            numbers.append(np.full(len(hits), number))
        return cls(*(np.concatenate(column) for column in (rows, right, answerable, numbers)))

    def predict(self, weights: Values) -> Values:
        """Return the relevance of each hit."""
        return sigmoid(self.features @ weights[:-1] + weights[-1])


def fit_features(lists: Lists) -> Values:
    """Return the weights of the ranking. Those in `FIXED_WEIGHTS` are not fitted."""
    is_fixed = np.array([name in FIXED_WEIGHTS for name in FEATURES])
    weights = np.array([FIXED_WEIGHTS.get(name, 0.0) for name in FEATURES])
    weights[~is_fixed] = fit_ranking(
        {name: [attrs.evolve(one, features=one.features[:, ~is_fixed]) for one in some] for name, some in lists.items()}
    )
    return weights


def fit_relevance(hits: Mapping[str, JudgedHits]) -> Values:
    """Return the weights of the relevance, with the intercept last."""
    repeats = [np.where(one.is_answerable, 1, UNANSWERABLE_REPEATS) for one in hits.values()]
    return fit_logistic(
        [np.repeat(one.features, times, axis=0) for one, times in zip(hits.values(), repeats, strict=True)],
        [np.repeat(one.right, times) for one, times in zip(hits.values(), repeats, strict=True)],
    )


def relevance_figures(name: str, lists: Sequence[Candidates], hits: JudgedHits, weights: Values) -> dict[str, Any]:
    """Return the calibration of the relevance in a set, and how well the best hit's separates messages without answer."""
    relevance, right = hits.predict(weights), hits.right.astype(np.float64)
    figures: dict[str, Any] = {
        "set": name,
        "calibration error": calibration_error(relevance, right),
        "brier skill": brier_skill(relevance, right),
        "base rate": float(right.mean()),
        "auc": {},
    }
    best = np.zeros(len(lists))
    np.maximum.at(best, hits.question, relevance)
    for lang in dict.fromkeys(one.question.lang for one in lists):
        own = np.array([one.question.lang == lang for one in lists])
        none = own & np.array([not one.question.relevant for one in lists])
        for kind in ("paraphrase", "all"):
            some = own & ~none & np.array([kind in (one.question.kind, "all") for one in lists])
            if some.any() and none.any():
                figures["auc"][f"{lang}, {kind}"] = auc(best[some], best[none])
    return figures


# Evaluation


def evaluate(own: Lists, external: Lists) -> dict[str, Any]:
    """Return the fitted weights, and the figures of all sets."""
    training = [name for name in own if name not in SHARED_TEXTS]
    ranking = fit_features({name: own[name] for name in training})
    fits = leave_one_out(own, SHARED_TEXTS, fit=fit_features)
    # Scores of a set have no weights that were fitted to it, as the scores of other stores.
    hits = {name: JudgedHits.from_candidates(own[name], fits[name]) for name in own}
    judged = [*training, *({LARGE} & {*own})]
    relevance = fit_relevance({name: hits[name] for name in judged})
    figures = []
    for name, lists in own.items():
        left_out = SHARED_TEXTS.get(name, name)
        weights = fit_relevance({one: hits[one] for one in judged if SHARED_TEXTS.get(one, one) != left_out})
        figures.append(relevance_figures(name, lists, hits[name], weights))
    for name, lists in external.items():
        figures.append(relevance_figures(name, lists, JudgedHits.from_candidates(lists, ranking), relevance))
    return {
        "ranking": dict(zip(FEATURES, ranking.tolist(), strict=True)),
        "relevance": dict(zip((*RELEVANCE_FEATURES, "intercept"), relevance.tolist(), strict=True)),
        "left out": {
            name: dict(zip(FEATURES, weights.tolist(), strict=True))
            for name, weights in fits.items()
            if name in training
        },
        "recall": recall_figures(own, external),
        "calibration": figures,
    }


def recall_figures(own: Lists, external: Lists) -> dict[str, dict[str, float]]:
    """Return the recall in each set, with weights that were fitted to the other sets."""
    final = fit_features({name: some for name, some in own.items() if name not in SHARED_TEXTS})
    fits = leave_one_out(own, SHARED_TEXTS, fit=fit_features) | dict.fromkeys(external, final)
    return {name: recalls(lists, fits[name]) for name, lists in {**own, **external}.items()}


def ablate(own: Lists, external: Lists) -> dict[str, dict[str, float]]:
    """Return the contribution of each feature to recall at 10, by set: the difference without it, after a new fit."""

    def without(lists: Lists, at: int) -> Lists:
        return {
            name: [attrs.evolve(one, features=one.features * (np.arange(len(FEATURES)) != at)) for one in some]
            for name, some in lists.items()
        }

    metric = METRICS[2]
    whole = recall_figures(own, external)
    gains = {}
    for at, feature in enumerate(FEATURES):
        rest = recall_figures(without(own, at), without(external, at))
        gains[feature] = {name: whole[name][metric] - rest[name][metric] for name in whole}
    return gains


def remarks(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the remarks that are printed below the table."""
    yield "Relevance: calibration error, Brier skill, base rate, AUC of the best hit against messages without answer"
    for one in figures["calibration"]:
        areas = ", ".join(f"{name} {value:.3f}" for name, value in one["auc"].items())
        yield (
            f"  {one['set']}: {one['calibration error']:.3f}, {one['brier skill']:+.3f}, {one['base rate']:.3f}"
            + (f"; {areas}" if areas else "")
        )
    yield "\nWeights of the ranking (in parentheses: fitted without each set)"
    for name, weight in figures["ranking"].items():
        others = " ".join(f"{weights[name]:.2f}" for weights in figures["left out"].values())
        yield f"  {name}: {weight:.3f} ({others})"
    yield "Weights of the relevance: " + ", ".join(f"{name} {one:.3f}" for name, one in figures["relevance"].items())
    if "ablation" in figures:
        yield "\nContribution of each feature to recall@10, in points"
    for feature, gains in figures.get("ablation", {}).items():
        yield f"  {feature}: " + ", ".join(f"{name} {100 * gain:+.1f}" for name, gain in gains.items())


def main() -> None:
    """Fit the weights, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the weights to the package")
    parser.add_argument("--ablate", action="store_true", help="also fit without each feature")
    parser.add_argument("--external", type=Path, help="the folder of the third-party sets")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="only these third-party sets")
    parser.add_argument("--vectors", type=Path, help="a file (.npz) that keeps the vectors between runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    chosen = parser.parse_args()
    embedder = CachedEmbedder(HashEmbedder() if chosen.quick else default_embedder(), chosen.vectors)
    sets: Sets = (
        made_up()
        if chosen.quick
        else {
            **read(RETRIEVAL_DATA),
            "recall": read_recall(RECALL_DATA),
            LARGE: read_large_recall(RECALL_DATA, RETRIEVAL_DATA),
        }
    )
    third_party: Sets = read_external(chosen.external) if chosen.external else {}
    own = asyncio.run(collect_all(sets, embedder))
    external = asyncio.run(collect_all({name: third_party[name] for name in chosen.sets or third_party}, embedder))
    figures = evaluate(own, external)
    if chosen.ablate or chosen.quick:
        figures["ablation"] = ablate(own, external)
    if chosen.write:
        weights = {
            kind: {name: round(value, DIGITS) for name, value in figures[kind].items()}
            for kind in ("ranking", "relevance")
        }
        WEIGHTS_PATH.write_text(json.dumps(weights, indent=2) + "\n", encoding="utf-8")
    rows = [[name, *(f"{values[metric]:.3f}" for metric in METRICS)] for name, values in figures["recall"].items()]
    title = (
        f"Ranking by the features alone, with {embedder.name}. Each set with weights that were fitted to the others."
    )
    report("fit_search", title, ["set", *METRICS], rows, figures=figures, folder=chosen.results, words=1)
    print(*remarks(figures), sep="\n")


if __name__ == "__main__":
    main()
