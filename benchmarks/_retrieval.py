"""A labelled sample of memories and questions, and what is measured on it (data/retrieval/README.md, "Metrics")."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

LIMIT: Final = 10
Record = Mapping[str, Any]
Found = Sequence[tuple[str, ...]]
"""What a system gave for a question, best first: of each result, the labelled memories that it stands for."""


def moment(text: str) -> datetime:
    """Read a time of the sample."""
    return datetime.fromisoformat(text).astimezone(UTC)


@attrs.frozen
class Sample:
    """Memories, questions and Korean pairs, as they are in the files."""

    memories: Sequence[Record]
    questions: Sequence[Record]
    pairs: Sequence[Record]

    @classmethod
    def read(cls, folder: Path) -> Sample:
        """Read a folder of that form; the pairs may be missing."""

        def rows(path: Path) -> list[Record]:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]

        pairs = folder / "korean" / "pairs.jsonl"
        memories = sorted(rows(folder / "memories.jsonl"), key=lambda record: moment(record["created_at"]))
        return cls(memories, rows(folder / "queries.jsonl"), rows(pairs) if pairs.exists() else [])

    @property
    def end(self) -> datetime:
        """A moment after everything."""
        return max(moment(record["created_at"]) for record in self.memories) + timedelta(days=1)

    def as_of(self, question: Record) -> datetime:
        """Return when a question is asked: at the end of the day that it names, else after everything."""
        if question.get("as_of") is None:
            return self.end
        return datetime.fromisoformat(question["as_of"]).replace(tzinfo=UTC) + timedelta(hours=23, minutes=59)


def texts_of(record: Record) -> list[str]:
    """Return all texts of a memory of the sample, its topic apart."""
    return [record[name] for name in ("content", "reasoning", "outcome_reason") if record[name]]


def made_up() -> Sample:
    """Return a sample of nonsense, for a quick run."""
    chance = random.Random(4)
    syllables = [first + second for first in "bdgklmnprstv" for second in "aeiou"]
    words = ["".join(chance.choices(syllables, k=3)) for _ in range(200)]
    memories, questions = [], []
    for thread in range(8):
        own = chance.sample(words, 12)
        for place in range(5):
            kind = ("decision", "checkpoint", "decision", "context", "insight")[place]
            memories.append(
                {
                    "id": f"m{5 * thread + place}",
                    "thread": f"t{thread}",
                    "type": kind,
                    "topic": own[0] if kind == "decision" else None,
                    "content": " ".join(chance.choices(own, k=8) + chance.choices(words, k=8)),
                    "reasoning": " ".join(chance.choices(own, k=6)) if kind == "decision" else None,
                    "outcome": "FAILED" if place == 0 else None,
                    "outcome_reason": " ".join(chance.choices(own, k=6)) if place == 0 else None,
                    "supersedes": f"m{5 * thread}" if place == 2 else None,
                    "implements": [f"m{5 * thread}"] if kind == "checkpoint" else [],
                    "created_at": f"2026-03-{1 + 3 * place:02d}T10:{thread:02d}:00Z",
                    "lang": "en",
                }
            )
        names = [f"m{5 * thread + place}" for place in (2, 0)]
        questions += [
            {"query": " ".join(chance.sample(own, 4)), "relevant": names, "kind": kind}
            for kind in ("words", "current", "why")
        ]
        questions.append({"query": f"zz{thread} qq{thread}", "relevant": [], "kind": "none"})
    first, second, third = (" ".join(chance.sample(words, 5)) for _ in range(3))
    pairs = [{"query": first, "paraphrase": first[::-1], "unrelated": second}] * 2
    pairs += [{"query": first, "paraphrase": first, "unrelated": third}] * 2
    return Sample(sorted(memories, key=lambda record: record["created_at"]), questions, pairs)


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


def measured(sample: Sample, found: Sequence[Found]) -> Measured:
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


def threads_of(sample: Sample) -> list[str]:
    """Return the thread of each question that has an answer: that of what answers it best."""
    thread = {record["id"]: record["thread"] for record in sample.memories}
    return [thread[question["relevant"][0]] for question in sample.questions if question["relevant"]]


def auc(with_answer: NDArray[np.float64], without: NDArray[np.float64]) -> float:
    """Return how often the best relevance of a question with an answer is higher than of one without."""
    if not len(with_answer) or not len(without):
        return float("nan")
    difference = with_answer[:, np.newaxis] - without[np.newaxis]
    return float((difference > 0).mean() + 0.5 * (difference == 0).mean())


def chain_of(sample: Sample, newest: str) -> list[str]:
    """Return a decision and all that it replaced, newest first."""
    before = {record["id"]: record["supersedes"] for record in sample.memories}
    chain = [newest]
    while before.get(chain[-1]) and before[chain[-1]] not in chain:
        chain.append(before[chain[-1]])
    return chain


def current(sample: Sample, found: Sequence[Found]) -> dict[str, float]:
    """
    Return how well ``current`` questions find what holds now.

    ``in_order`` is the share in which no predecessor stands before the newest of its chain (or without it),
    ``share`` the share in which the newest is among the first `LIMIT`, ``first`` that in which it is the first result.
    """
    in_order, there, first = [], [], []
    for question, results in zip(sample.questions, found, strict=True):
        if question["kind"] == "current" and question["relevant"]:
            chain = chain_of(sample, question["relevant"][0])
            places = [next((at for at, labels in enumerate(results) if name in labels), LIMIT) for name in chain]
            in_order.append(min(places[1:], default=LIMIT) >= places[0])
            there.append(places[0] < LIMIT)
            first.append(places[0] == 0)
    mean = {"in_order": in_order, "share": there, "first": first}
    return {name: float(np.mean(values)) if values else float("nan") for name, values in mean.items()}


def bootstrap(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], rounds: int = 5_000
) -> tuple[float, float, float]:
    """Return the mean difference over questions, and the ends of its 95 % interval (paired bootstrap)."""
    difference = ours - theirs
    draws = np.random.default_rng(1).integers(0, len(difference), (rounds, len(difference)))
    low, high = np.percentile(difference[draws].mean(axis=1), [2.5, 97.5])
    return float(difference.mean()), float(low), float(high)
