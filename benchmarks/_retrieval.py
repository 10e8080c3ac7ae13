"""
Labelled retrieval sets, search results of a session for the questions of these sets, and quality measures.

tests/data/retrieval/README.md and tests/data/recall/README.md describe our sets.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.graph.results import Hit
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.model import OUTCOME_OF_WORD
from mama_structs.memory.types.reranker import Reranker
from mama_structs.session.session import Session
from mama_structs.settings import MemorySettings, Settings

LIMIT: Final = 10
METRICS: Final = ("recall@1", "recall@5", "recall@10", "MRR")
# More than `LIMIT`, because two memories may have the same label: a decision and its outcome.
MAX_REQUESTED_HITS: Final = 16

Record = Mapping[str, Any]
Found = Sequence[tuple[str, ...]]
"""The results of a system for a question, best first. Each result has one or more labels."""


def parse_time(text: str) -> datetime:
    """Parse a time. A time without a zone is in UTC."""
    at = datetime.fromisoformat(text)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


@attrs.frozen
class Question:
    """
    A question with its language, its kind, and its relevant answers (best first; empty if unanswerable).

    A hit of an *accepted* answer is right, too, but is not required.
    """

    text: str
    relevant: tuple[str, ...]
    kind: str
    lang: str
    as_of: datetime
    accepted: tuple[str, ...] = ()

    @classmethod
    def from_record(cls, record: Record, end: datetime) -> Question:
        """Parse a question. It is asked at the end of its day, or at *end* if it has no date."""
        text = record.get("query") or record["question"]
        relevant = record["relevant"] if "relevant" in record else record["evidence"]
        # Prefer the language label: the set jiwoo_callum contains questions in both languages.
        lang = record.get("lang") or ("ko" if re.search("[가-힣]", text) else "en")
        as_of = end if record.get("as_of") is None else parse_time(record["as_of"]) + timedelta(hours=23, minutes=59)
        return cls(text, tuple(relevant), record["kind"], lang, as_of, tuple(record.get("accepted", ())))


@attrs.frozen(eq=False)
class Sample:
    """The records of one store in order of time, with the questions about them."""

    records: Sequence[Record]
    questions: Sequence[Question]

    @classmethod
    def from_records(cls, records: Sequence[Record], questions: Sequence[Record]) -> Sample:
        """
        Create a sample from the records of any set.

        A record without a type becomes a context without links.
        """
        same = [
            {"type": "context", "content": record.get("text"), "created_at": record.get("at")} | dict(record)
            for record in records
        ]
        same.sort(key=lambda record: parse_time(record["created_at"]))
        end = parse_time(same[-1]["created_at"]) + timedelta(days=1)
        return cls(same, [Question.from_record(question, end) for question in questions])


Sets = Mapping[str, Sequence[Sample]]
"""The stores of each set, by the name of the set."""


def rows(path: Path) -> list[Record]:
    """Parse a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def read(folder: Path) -> dict[str, list[Sample]]:
    """
    Read all sets.

    Texts of chats, dialogues and documents have no topic, because users would not enter one.
    """
    chats, messages = rows(folder / "chat/turns.jsonl"), rows(folder / "long/messages.jsonl")
    passages = [
        {"id": row["id"], "text": row["text"], "at": row["at"]} for row in rows(folder / "passages/passages.jsonl")
    ]
    long = rows(folder / "long/questions.jsonl")
    exact = [{"kind": f"{len(row['relevant'])} passages"} | row for row in rows(folder / "passages/precision.jsonl")]
    pairs = [*enumerate(rows(folder / "korean/pairs.jsonl"))]
    # Date the sentences one day apart. Sentences of the same pair share words, so their dates are months apart.
    sentences = [
        {"id": f"{name}{number}", "text": pair[name], "at": f"2026-{first + number // 28:02d}-{1 + number % 28:02d}"}
        for first, name in ((1, "paraphrase"), (5, "unrelated"))
        for number, pair in pairs
    ]
    asked = [
        {
            "query": pair["query"],
            "relevant": [f"paraphrase{number}"],
            "kind": f"{'same' if number < 40 else 'other'} words",
        }
        for number, pair in pairs
    ]
    return {
        "decisions": [Sample.from_records(rows(folder / "memories.jsonl"), rows(folder / "queries.jsonl"))],
        "chat": _apart(chats, rows(folder / "chat/questions.jsonl"), "chat"),
        "long": _apart(messages, long, "dialogue"),
        "long together": [Sample.from_records(messages, long)],
        "passages": [Sample.from_records(passages, rows(folder / "passages/questions.jsonl"))],
        "exact sets": [Sample.from_records(passages, exact)],
        "pairs": [Sample.from_records(sentences, asked)],
    }


def read_recall(folder: Path, others: Sequence[str] = ()) -> list[Sample]:
    """
    Read the stores of the recall set, with *others* as further texts in each store.

    The language of a question is ``en`` if its whole store is English, else ``other``. A near duplicate has the label of
    its original. For questions of the kind ``why``, all memories are required, else only the first one.
    """
    memories, questions = rows(folder / "stores.jsonl"), rows(folder / "questions.jsonl")
    originals = {row["id"]: row["same_as"] or row["id"] for row in memories}
    replaced = {row["supersedes"]: parse_time(row["created_at"]) - timedelta(hours=1) for row in memories}
    start = parse_time("2026-11-28") - timedelta(days=300)
    further = [
        {
            "id": f"other{hours}",
            "type": "insight",
            "content": text,
            "created_at": (start + timedelta(hours=hours)).isoformat(),
        }
        for hours, text in enumerate(others)
    ]
    samples = []
    for store in dict.fromkeys(row["store"] for row in memories):
        records = [
            {
                **row,
                "label": originals[row["id"]],
                "outcome_at": replaced.get(row["id"], parse_time(row["created_at"]) + timedelta(days=14)),
            }
            for row in memories
            if row["store"] == store
        ]
        lang = "en" if {row["lang"] for row in records} == {"en"} else "other"
        asked = []
        for row in questions:
            if row["store"] == store:
                labels = list(dict.fromkeys(originals[name] for name in row["told"]))
                required = labels if row["kind"] == "why" else labels[:1]
                found = {"query": row["message"], "relevant": required, "accepted": labels, "as_of": "2026-11-28"}
                asked.append(found | {"kind": row["kind"], "lang": lang})
        samples.append(Sample.from_records([*records, *further], asked))
    return samples


def read_large_recall(folder: Path, texts: Path) -> list[Sample]:
    """Read the stores of the recall set, each with 1,000 unrelated texts of the sets in *texts*."""
    memories, turns = rows(texts / "memories.jsonl"), rows(texts / "chat/turns.jsonl")
    return read_recall(folder, [*(row["content"] for row in memories), *(row["text"] for row in turns)][:1_000])


def read_external(folder: Path) -> dict[str, list[Sample]]:
    """Read the third-party sets. All trajectories of MemDaily share one store, and their texts have no times."""
    sets: dict[str, list[Sample]] = {}
    for name in ("beam", "locomo", "locomo_plus", "memdaily"):
        stores = rows(folder / f"{name}.jsonl")
        lang = "zh" if name == "memdaily" else "en"
        groups_of = [stores] if name == "memdaily" else [[store] for store in stores]
        sets[name] = [_external_sample(group, lang) for group in groups_of]
    return sets


def _external_sample(stores: Sequence[Record], lang: str) -> Sample:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    records: list[Record] = []
    asked: list[Record] = []
    for store in stores:
        first = len(records)
        for text in store["texts"]:
            at = text["at"] or (start + timedelta(minutes=len(records))).isoformat()
            records.append({"id": f"t{len(records)}", "text": text["text"], "at": at})
        for question in store["questions"]:
            labels = [f"t{first + at}" for at in question["evidence"]]
            asked.append({"query": question["question"], "relevant": labels, "kind": question["kind"], "lang": lang})
    return Sample.from_records(records, asked)


def limit_questions(sets: Sets, limit: int) -> dict[str, list[Sample]]:
    """Return the sets with at most *limit* questions each, spread over the stores, without stores that have none."""
    limited = {}
    for name, samples in sets.items():
        count = sum(len(sample.questions) for sample in samples)
        step = max(count / limit, 1.0)
        chosen = {int(step * number) for number in range(min(limit, count))}
        at, some = 0, []
        for sample in samples:
            kept = [question for number, question in enumerate(sample.questions, at) if number in chosen]
            at += len(sample.questions)
            some += [attrs.evolve(sample, questions=kept)] if kept else []
        limited[name] = some
    return limited


def _apart(records: Sequence[Record], questions: Sequence[Record], by: str) -> list[Sample]:
    return [
        Sample.from_records([row for row in records if row[by] == one], [row for row in questions if row[by] == one])
        for one in dict.fromkeys(row[by] for row in records)
    ]


def made_up() -> dict[str, list[Sample]]:
    """Return two generated sets, for a quick run without data."""
    return {"nonsense": [_nonsense(4)], "more nonsense": [_nonsense(5)]}


def _nonsense(seed: int) -> Sample:
    chance = random.Random(seed)
    syllables = [first + second for first in "bdgklmnprstv" for second in "aeiou"]
    words = ["".join(chance.choices(syllables, k=3)) for _ in range(200)]
    records: list[Record] = []
    questions = []
    for thread in range(8):
        own = chance.sample(words, 12)
        for place, kind in enumerate(("decision", "checkpoint", "decision", "context", "insight")):
            first = place == 0
            records.append(
                {
                    "id": f"m{5 * thread + place}",
                    "type": kind,
                    "topic": own[0] if kind == "decision" else None,
                    "content": " ".join(chance.choices(own, k=8) + chance.choices(words, k=8)),
                    "reasoning": " ".join(chance.choices(own, k=6)) if kind == "decision" else None,
                    "outcome": "FAILED" if first else None,
                    "outcome_reason": " ".join(chance.choices(own, k=6)) if first else None,
                    "supersedes": f"m{5 * thread}" if place == 2 else None,
                    "implements": [f"m{5 * thread}"] if kind == "checkpoint" else [],
                    "created_at": f"2026-03-{1 + 3 * place:02d}T10:{thread:02d}:00Z",
                }
            )
        names = [f"m{5 * thread + place}" for place in (2, 0)]
        questions += [
            {"query": " ".join(chance.sample(own, 4)), "relevant": names, "kind": kind} for kind in ("words", "current")
        ]
        questions.append({"query": f"zz{thread} qq{thread}", "relevant": [], "kind": "none"})
    return Sample.from_records(records, questions)


def texts_of(record: Record) -> list[str]:
    """Return all texts of a record, except its topic."""
    return [record[name] for name in ("content", "reasoning", "outcome_reason") if record.get(name)]


# Results of a session


@attrs.frozen(eq=False)
class Saved:
    """
    A sample that has been saved to a session.

    Args:
        sample: The sample.
        memories: The store.
        labels: The label of each memory by id.
        outcomes: Ids of the memories of outcomes. Each has the label of its decision.
    """

    sample: Sample
    memories: MemoryStore
    labels: Mapping[str, str]
    outcomes: AbstractSet[str] = frozenset()

    @property
    def hit_limit(self) -> int:
        """The number of hits to request in order to get `LIMIT` different labels."""
        return MAX_REQUESTED_HITS if len(set(self.labels.values())) < len(self.labels) else LIMIT

    def get_labels(self, ids: Sequence[str]) -> Found:
        """Return the first `LIMIT` different labels of the hits."""
        return [(label,) for label in dict.fromkeys(self.labels[name] for name in ids)][:LIMIT]

    def judged(self, question: Question, ids: Sequence[str], relevances: Sequence[float]) -> list[tuple[float, bool]]:
        """Return, for each of the first hits, its relevance and whether it answers the question."""
        return [
            (relevance, self.labels[name] in question.relevant or self.labels[name] in question.accepted)
            for name, relevance in zip(ids[:LIMIT], relevances, strict=False)
        ]


@attrs.frozen
class Answers:
    """
    The search results for all questions.

    Args:
        found: The labels of the hits of each question.
        judged: For each of the first ten hits its relevance, and whether it answers the question.
        hits: The hits themselves, if a normal search was used.
    """

    found: Sequence[Found]
    judged: Sequence[Sequence[tuple[float, bool]]]
    hits: Sequence[Sequence[Hit]] = ()


@asynccontextmanager
async def saved(sample: Sample, embedder: Embedder, reranker: Reranker | None = None) -> AsyncIterator[Saved]:
    """Save a sample in order of time, as agents and users would. Delete the store afterwards."""
    patient = Settings(memory=MemorySettings(rerank_timeout=3_600.0))
    async with Session.open(embedder=embedder, reranker=reranker, settings=patient) as session:
        memories = session.memories
        ids: dict[str, str] = {}
        labels: dict[str, str] = {}
        outcomes: set[str] = set()
        if all(record["type"] == "context" and not record.get("origin") for record in sample.records):
            names = ("type", "content", "topic")
            items = [
                {name: record.get(name) for name in names} | {"created_at": parse_time(record["created_at"])}
                for record in sample.records
            ]
            stored = await memories.save_many(items)
            labels = {
                one.id: record.get("label", record["id"]) for one, record in zip(stored, sample.records, strict=True)
            }
            yield Saved(sample, memories, labels)
            return
        for at, record, is_outcome in _events(sample.records):
            name = record["id"]
            if is_outcome:
                await memories.set_outcome(ids[name], record["outcome"], reason=record["outcome_reason"], at=at)
                found = await memories.links(ids[name])
                of_outcome = {one.from_id for one in found if one.metadata.original_relationship == OUTCOME_OF_WORD}
                labels |= dict.fromkeys(of_outcome, labels[ids[name]])
                outcomes |= of_outcome
            else:
                ids[name] = await _save(memories, record, ids, at)
                labels[ids[name]] = record.get("label", name)
        yield Saved(sample, memories, labels, outcomes)


def _events(records: Sequence[Record]) -> list[tuple[datetime, Record, bool]]:
    """Return saves and reports of outcomes in order of time: the time, the record, and True for an outcome."""
    replaced: dict[str | None, datetime] = {}
    for record in records:
        replaced.setdefault(record.get("supersedes"), parse_time(record["created_at"]))
    events = [(parse_time(record["created_at"]), record, False) for record in records]
    second = timedelta(seconds=1)
    # Samples contain no outcome times. Use the time just before the supersession, or else the end of the sample.
    last = events[-1][0] + second
    events += [
        (record.get("outcome_at") or replaced.get(record["id"], last) - second, record, True)
        for record in records
        if record.get("outcome")
    ]
    return sorted(events, key=lambda event: event[0])


async def _save(memories: MemoryStore, record: Record, ids: Mapping[str, str], at: datetime) -> str:
    content, implements = record["content"], [ids[name] for name in record.get("implements", ())]
    more = {"origin": record["origin"]} if record.get("origin") else {}
    match record["type"]:
        case "decision":
            before = ids[record["supersedes"]] if record["supersedes"] else None
            why = record["reasoning"] or ""
            memory = await memories.save_decision(
                content,
                topic=record["topic"],
                reasoning=why,
                supersedes=before,
                implements=implements,
                created_at=at,
                **more,
            )
        case "checkpoint":
            memory = await memories.save_checkpoint(content, implements=implements, created_at=at, **more)
        case "insight":
            memory = await memories.save_insight(content, created_at=at, **more)
        case _:
            memory = await memories.save_context(content, topic=record.get("topic"), created_at=at, **more)
    return memory.id


async def answer_questions(store: Saved) -> Answers:
    """Search for every question, and return the results."""
    found, judged, given = [], [], []
    for question in store.sample.questions:
        hits = await store.memories.search(question.text, as_of=question.as_of, limit=store.hit_limit)
        ids = [hit.memory.id for hit in hits]
        found.append(store.get_labels(ids))
        judged.append(store.judged(question, ids, [hit.relevance for hit in hits]))
        given.append(hits)
    return Answers(found, judged, given)


def shared_words(query: str, texts: Sequence[str]) -> list[float]:
    """
    Example of a reranker: the share of the question's words that a text contains.

    Its results are worse than those of the search without a reranker.
    """
    asked = set(re.findall(r"\w+", query.lower()))
    return [len(asked & set(re.findall(r"\w+", text.lower()))) / max(len(asked), 1) for text in texts]


# Quality


Values = NDArray[np.float64]


def measured(samples: Sequence[Sample], found: Sequence[Sequence[Found]]) -> dict[str, Values]:
    """Return the values of each of `METRICS` for all answerable questions of a set."""
    table = []
    for sample, lists in zip(samples, found, strict=True):
        for question, results in zip(sample.questions, lists, strict=True):
            if question.relevant:
                wanted = set(question.relevant)
                hits = [set(labels) & wanted for labels in results[:LIMIT]]
                recalls = [len(set().union(*hits[:rank])) / len(wanted) for rank in (1, 5, 10)]
                table.append([*recalls, max((1 / place for place, hit in enumerate(hits, 1) if hit), default=0.0)])
    return dict(zip(METRICS, np.array(table).T, strict=True))


def groups(samples: Sequence[Sample]) -> dict[str, NDArray[np.bool_]]:
    """Return masks that select the answerable questions of each language and kind."""
    asked = [question for sample in samples for question in sample.questions if question.relevant]
    found = {"all": np.ones(len(asked), np.bool_)}
    for name in ("lang", "kind"):
        values = np.array([getattr(question, name) for question in asked])
        found |= {f"{name} {value}": values == value for value in np.unique(values)}
    return found


def bootstrap(ours: Values, theirs: Values, rounds: int = 5_000) -> tuple[float, float, float]:
    """Return the mean difference over questions, with its 95 % interval (paired bootstrap)."""
    difference = ours - theirs
    draws = np.random.default_rng(1).integers(0, len(difference), (rounds, len(difference)))
    low, high = np.percentile(difference[draws].mean(axis=1), [2.5, 97.5])
    return float(difference.mean()), float(low), float(high)


def auc(with_answer: Values, without: Values) -> float:
    """
    Return how well the best relevance separates answerable from unanswerable questions, as AUC.

    Ties count half.
    """
    difference = with_answer[:, np.newaxis] - without[np.newaxis]
    return float((difference > 0).mean() + 0.5 * (difference == 0).mean()) if difference.size else float("nan")


def calibration_error(relevance: Values, right: Values, bins: int = 10) -> float:
    """Return the expected calibration error with *bins* bins of equal mass."""
    order = np.argsort(relevance, kind="stable")
    parts = np.array_split(relevance[order] - right[order], bins)
    return float(sum(abs(part.sum()) for part in parts) / max(len(relevance), 1))


def brier_skill(relevance: Values, right: Values) -> float:
    """Return the Brier skill score over the base rate. 1 is perfect, and 0 is as good as the base rate."""
    return 1 - float(np.mean((relevance - right) ** 2)) / max(float(right.var()), 1e-9)


def in_order(sample: Sample, found: Sequence[Found]) -> float:
    """Return the share of ``current`` questions whose newest decision ranks before the older decisions of its chain."""
    before = {record["id"]: record.get("supersedes") for record in sample.records}
    right = []
    for question, results in zip(sample.questions, found, strict=True):
        if question.kind == "current" and question.relevant:
            chain: list[str] = [question.relevant[0]]
            while (older := before[chain[-1]]) and older not in chain:
                chain.append(older)
            places = [next((at for at, labels in enumerate(results) if name in labels), LIMIT) for name in chain]
            right.append(min(places[1:], default=LIMIT) >= places[0])
    return float(np.mean(right)) if right else float("nan")
