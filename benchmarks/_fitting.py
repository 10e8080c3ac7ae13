"""
Fit the weights of the ranking to labelled sets.

``retrieval.py --leave-one-out`` uses weights fitted to the other sets; the package uses weights fitted to all sets.
Coordinate search: each weight in turn takes the value of `CHOICES` with the highest recall, until no change improves it.
Recall is the mean of recall at 1, 5 and 10 over the questions of a set, then the mean over the sets, so that long sets
do not count more. A change must gain at least `MIN_RECALL_GAIN`, because small differences of recall are random.
Then a logistic regression on the hits of the same sets calibrates the relevance. Each set has the same weight.

    python benchmarks/_fitting.py [--data FOLDER] [--vectors FILE]

fits the weights to all sets, and prints them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from _retrieval import Answers, Saved, measured, read, requests_of, saved
from _retrieval_rivals import Remembering

from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder
from mama_structs.memory.search import scores as ranking
from mama_structs.memory.search.scores import CandidateSignals, ScoreWeights
from mama_structs.memory.search.search_plan import CandidateSet, RankedCandidate, collect_candidates, rank_candidates
from mama_structs.memory.types.engine import Reader

START: Final[Mapping[str, float]] = {
    "meaning": 0.5,
    "words": 3.0,
    "share": 0.0,
    "brevity": 0.0,
    "foreign": 0.3,
    "before": 0.2,
    "after": 0.2,
    "answer": 0.0,
    "asking": 0.0,
    "tie": 0.5,
    "automatic": 0.0,
    "topic": 0.0,
    "outcome": 0.5,
    "outside": 0.5,
    "inside": 0.5,
    "recency": 0.1,
}
"""The start of the search: guesses of one digit, which were not derived from the samples."""
CHOICES: Final[Mapping[str, Sequence[float]]] = {
    "meaning": (0.5, 0.6, 0.7, 0.8),
    "words": (2.0, 3.0, 4.0, 5.0),
    "share": (0.0, 3.0, 6.0),
    "brevity": (0.0, 0.3, 0.6, 0.9),
    "foreign": (0.0, 0.3, 0.5, 0.7),
    "before": (0.0, 0.2, 0.3, 0.4, 0.5),
    "after": (0.0, 0.2, 0.3, 0.4),
    "answer": (0.0, 0.15, 0.3),
    "asking": (0.0, 0.15, 0.3, 0.45),
    "tie": (0.0, 0.3, 0.5, 0.6, 0.8),
    "automatic": (0.0, 0.2, 0.4, 0.6),
    "topic": (0.0, 0.3),
    "outcome": (0.5, 0.7, 0.9),
    "outside": (0.5, 0.7, 0.85, 1.0),
    "inside": (0.1, 0.3, 0.5),
    "recency": (0.0, 0.05, 0.1),
}
MIN_RECALL_GAIN: Final = 0.0005
_ROUNDS: Final = 2

Stores = Mapping[str, Sequence[Saved]]


@attrs.frozen(eq=False)
class PreparedStore:
    """The questions of a store with their candidates. Other weights can rank these candidates without a new search."""

    store: Saved
    questions: Sequence[tuple[CandidateSet, CandidateSignals] | None]
    names: Mapping[int, str]
    """The memory ids by node."""

    def asked_with(self, weights: ScoreWeights) -> Answers:
        """Rank the candidates of each question with other weights, and return the answers."""
        found, judged = [], []
        for question, prepared in zip(self.store.sample.questions, self.questions, strict=True):
            hits: list[RankedCandidate] = []
            if prepared is not None:
                gathered, clues = prepared
                query = attrs.evolve(gathered.query, weights=weights)
                candidates = attrs.evolve(gathered.candidates, evidence=ranking.candidate_evidence(clues, weights))
                hits, _ = rank_candidates(attrs.evolve(gathered, query=query, candidates=candidates))
            ids = [self.names[hit.node] for hit in hits]
            found.append(self.store.get_labels(ids))
            judged.append(self.store.judged(question, ids, [hit.relevance for hit in hits]))
        return Answers(found, judged)


async def prepared(store: Saved, embedding: EmbeddingService) -> PreparedStore:
    """Collect the candidates and features of each question of a store."""
    requests = await requests_of(store, embedding)

    def plan(reader: Reader) -> PreparedStore:
        questions: list[tuple[CandidateSet, CandidateSignals] | None] = []
        for request in requests:
            found = collect_candidates(reader, request, ScoreWeights(**START))
            if found is None:
                questions.append(None)
                continue
            nodes = found.candidates.nodes
            # Load the supersession data now, because it cannot be read after this transaction.
            found.chains.newest(nodes)
            questions.append((found, found.query.compute_signals(reader, nodes, found.candidates.facts, found.best)[0]))
        nodes = reader.window()
        return PreparedStore(store, questions, dict(zip(nodes.tolist(), reader.ids(nodes), strict=True)))

    return await store.memories._engine.read(plan)  # noqa: SLF001 - no public API for plans


async def fit(stores: Stores, embedding: EmbeddingService) -> ScoreWeights:
    """Return the weights that fit the given sets best."""
    ready = {name: [await prepared(one, embedding) for one in some] for name, some in stores.items()}
    known: dict[ScoreWeights, float] = {}

    def compute_answers(weights: ScoreWeights) -> dict[str, list[Answers]]:
        return {name: [one.asked_with(weights) for one in some] for name, some in ready.items()}

    def score(weights: ScoreWeights) -> float:
        if weights not in known:
            known[weights] = float(
                np.mean([recall(stores[name], some) for name, some in compute_answers(weights).items()])
            )
        return known[weights]

    chosen = ScoreWeights(**START)
    for _ in range(_ROUNDS):
        before = chosen
        for name, values in CHOICES.items():
            for value in values:
                other = attrs.evolve(chosen, **{name: value})
                if score(other) >= score(chosen) + MIN_RECALL_GAIN:
                    chosen = other
        if chosen == before:
            break
    chosen = believing(chosen, list(compute_answers(chosen).values()))
    print(f"chosen on {', '.join(stores)} ({len(known)} tried): {chosen}", file=sys.stderr, flush=True)
    return chosen


def recall(stores: Sequence[Saved], answers: Sequence[Answers]) -> float:
    """Return the mean of recall at 1, 5 and 10 over the questions of a set."""
    found = measured([one.sample for one in stores], [one.found for one in answers])
    return float(np.mean([found[name].mean() for name in ("recall@1", "recall@5", "recall@10")]))


def believing(weights: ScoreWeights, answers: Sequence[Sequence[Answers]]) -> ScoreWeights:
    """Return weights with which the relevance of a hit approximates its probability of being an answer."""
    rows = [
        np.array([pair for one in some for hits in one.judged for pair in hits], np.float64) for some in answers if some
    ]
    rows = [row for row in rows if len(row)]
    relevances, right = np.concatenate(rows).T
    weight = np.concatenate([np.full(len(row), 1 / len(row) / len(rows)) for row in rows])
    relevances = np.clip(relevances, 1e-6, 1 - 1e-6)
    slope, offset = _regression(np.log(relevances) - np.log1p(-relevances), right, weight)
    return attrs.evolve(
        weights, belief=weights.belief * slope, told=weights.told * slope, doubt=weights.doubt * slope - offset
    )


def _regression(x: Any, y: Any, weight: Any) -> tuple[float, float]:
    """Return slope and intercept of a weighted logistic regression, computed with Newton's method."""
    table, found = np.stack([x, np.ones_like(x)], axis=1), np.array([1.0, 0.0])
    for _ in range(50):
        predicted = 1 / (1 + np.exp(-table @ found))
        hessian = (table.T * (weight * predicted * (1 - predicted))) @ table + 1e-9 * np.eye(2)
        found -= np.linalg.solve(hessian, table.T @ (weight * (predicted - y)))
    return float(found[0]), float(found[1])


async def run(folder: Path, vectors: Path | None) -> ScoreWeights:
    """Fit the weights to all sets."""
    remembering = Remembering(UniversalSentenceEmbedder(), vectors)
    embedding = EmbeddingService(remembering)
    judged_only = ("long together", "exact sets", "pairs")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(embedding.close)
        stores = {
            name: [await stack.enter_async_context(saved(sample, remembering)) for sample in samples]
            for name, samples in read(folder).items()
            if name not in judged_only
        }
        return await fit(stores, embedding)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data" / "retrieval")
    parser.add_argument("--vectors", type=Path, help="a file (.npz) that keeps the vectors between runs")
    arguments = parser.parse_args()
    print(asyncio.run(run(arguments.data, arguments.vectors)))
