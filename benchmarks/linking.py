"""
The precision of automatic links between memories, on texts of several kinds.

It reads labelled sets (tests/data/retrieval/README.md), saves their texts in order, and counts a link as correct if
both ends have a *matter* (a subject label) in common, which linking never sees:

* decisions: the same ``thread``. Pairs joined by ``supersedes`` or ``implements`` have an explicit link and are excluded.
* chats, in separate stores and all in one: turns of one session, or evidence of one question. Turns about the same
  person in different sessions have no common label, unless a question asks about both.
* long messages, in one store: of one dialogue.
* passages: of one series of documents (`SERIES`), such as the editions of a rule or the minutes of one body.

Agents name topics in many ways, so decisions are evaluated in several *regimes*: with their own topics, with one topic
for all, without topics, with coarse topics that combine five to ten threads, and with half of the topics removed; each
also without explicit links, where pairs that had one count too. Coarse topics of similar threads are evaluated and
never used for fitting: only the labels distinguish these threads.

With ``--fit`` it prints the weights for mama_structs/memory/save/link_candidates.py, fitted to all sets.
The *left out* figures use weights fitted to all other sets. Only decisions have topics and explicit links, so their
weights are fitted to the other sets and half of their threads, and evaluated on the links of the other half.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from _common import RESULTS, RETRIEVAL_DATA, report
from numpy.typing import NDArray

from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import Embedder, shared_dimensions
from mama_structs.memory.embedding.sentence_embedder import SentenceEmbedder
from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder
from mama_structs.memory.save import automatic_links as linking
from mama_structs.memory.save import link_candidates
from mama_structs.memory.types.model import METADATA_TYPES, Link, LinkMetadata, LinkType, Memory, MemoryType
from mama_structs.memory.types.text_analysis import embedded_text
from mama_structs.settings import LinkingPolicy
from mama_structs.testing.plain_engine import PlainReader

EMBEDDERS = {"sentence": SentenceEmbedder, "use": UniversalSentenceEmbedder, "hash": HashEmbedder}
# The weight of a wrong link in the fit. It is above 1, because a wrong link harms more than a missing link.
PENALTY = 2.5
RIDGE = 3.0
CAP = LinkingPolicy.default().max_semantic
# Weight of each set per text in the fit. Chats have a low weight, because their labels name only the session.
COUNTS = {"decisions": 2.0, "chat": 0.5, "long": 0.3, "passages": 1.0}
# Series of documents by topic. A series lists the numbers of its passages; commas separate series.
SERIES = {
    "benefits": "18 127",
    "company_policy": "1 52 119 142, 5 71 163, 11 148",
    "expenses": "3 121, 6 9 150 151, 24 135",
    "finance": "31 60 94 133, 66 155",
    "leave": "12 13 14 72",
    "minutes_product": "65 78 100 141, 55 87 138",
    "recipe": "39 117, 8 54",
    "regulation": "2 123, 10 154, 23 164, 25 165, 26 167",
    "research": "22 58, 35 64, 76 118, 157 177",
    "security": "4 67 166, 15 106",
    "travel": "33 99, 51 93",
}
OWN, UNLINKED, ALIKE = "own topics", ", no explicit links", "coarse topics of like threads"
COARSE = (5, 10)
STRANGERS, HOURS = 20, 5

Values = NDArray[np.float64]
Vectors = NDArray[np.float32]


@attrs.frozen
class Record:
    """A text with its labels: its subjects (*matters*), its session, and the ids to which it links explicitly."""

    memory: Memory
    matters: frozenset[str]
    explicit: Mapping[str, LinkType] = attrs.field(factory=dict)
    session: str | None = None


Store = Sequence[Record]


@attrs.frozen
class Pairs:
    """All pairs of a memory and a candidate: their positions in the store, and the features of each pair."""

    new: NDArray[np.int64]
    old: NDArray[np.int64]
    same: NDArray[np.bool_]
    # False for two turns of one session that share no question. They are only close in time, so training ignores them.
    taught: NDArray[np.bool_]
    cosines: Values
    features: Values
    matters: tuple[frozenset[str], ...]

    @property
    def chained(self) -> NDArray[np.bool_]:
        return self.features[:, link_candidates.FEATURES.index("chain")] > 0


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def read(path: Path) -> dict[str, dict[str, Store]]:
    """
    Read the sets. Each set has one or more stores.

    Outcomes of decisions are skipped, because they are reported after the decision is saved.
    """
    chats, long, passages = rows(path / "chat/turns.jsonl"), rows(path / "long/messages.jsonl"), path / "passages"
    asked: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for number, question in enumerate(rows(path / "chat/questions.jsonl")):
        for turn in question["evidence"]:
            asked[question["chat"], turn].add(f"question {number}")
    spoken = [
        _text(
            f"{turn['chat']} {turn['id']}", turn, asked[turn["chat"], turn["id"]], f"{turn['chat']} {turn['session']}"
        )
        for turn in chats
    ]
    named = {
        f"p{int(number):03}": f"{topic} {group}"
        for topic, groups in SERIES.items()
        for group in groups.split(", ")
        for number in group.split()
    }
    read = [
        _text(one["id"], one, {named.get(one["id"]) or (one["id"] if one["topic"] in SERIES else one["topic"])})
        for one in rows(passages / "passages.jsonl")
    ]
    topics = [one["topic"] for one in rows(passages / "passages.jsonl")]
    return {
        "decisions": {OWN: [_record(line) for line in rows(path / "memories.jsonl")]},
        "chat": {
            **{
                chat: [one for one in spoken if one.memory.id.startswith(chat)]
                for chat in {t["chat"]: 0 for t in chats}
            },
            "all chats": spoken,
        },
        "long": {"long": [_text(one["id"], one, {one["dialogue"]}) for one in long]},
        "passages": {
            "no topics": read,
            "own topics": [with_topic(one, topic) for one, topic in zip(read, topics, strict=True)],
        },
    }


def _text(memory_id: str, row: Mapping[str, Any], matters: set[str], session: str | None = None) -> Record:
    at = datetime.fromisoformat(row["at"])
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    kind = MemoryType.CONTEXT
    memory = Memory(
        id=memory_id, type=kind, content=row["text"], metadata=METADATA_TYPES[kind](), created_at=at, updated_at=at
    )
    return Record(memory, frozenset(matters | ({session} if session else set())), session=session)


def _record(line: Mapping[str, Any]) -> Record:
    kind = MemoryType(line["type"])
    details = {"reasoning": line["reasoning"] or ""} if kind is MemoryType.DECISION else {}
    at = datetime.fromisoformat(line["created_at"])
    memory = Memory(
        id=line["id"],
        type=kind,
        content=line["content"],
        topic=line["topic"],
        metadata=METADATA_TYPES[kind](**details),
        created_at=at,
        updated_at=at,
    )
    explicit = dict.fromkeys(line["implements"], LinkType.IMPLEMENTATION)
    if line["supersedes"]:
        explicit[line["supersedes"]] = LinkType.EVOLUTION
    return Record(memory, frozenset({line["thread"]}), explicit)


def made_up() -> dict[str, dict[str, Store]]:
    """Return generated sets, for a quick run without data."""
    random = np.random.default_rng(1)
    at = datetime.fromisoformat("2026-01-01T00:00:00Z")
    lines = []
    for number in range(60):
        thread = int(random.integers(12))
        at += timedelta(minutes=float(random.exponential(60)))
        words = " ".join(f"t{thread}w{word}" for word in random.integers(9, size=6))
        other = " ".join(f"word{word}" for word in random.integers(200, size=6))
        topic = f"topic_{thread}" if random.random() < 0.5 else None
        line = {"id": f"m{number}", "thread": str(thread), "type": "insight", "topic": topic, "reasoning": None}
        line |= {"content": f"{words} {other}", "supersedes": None, "implements": [], "created_at": at.isoformat()}
        lines.append(line)
    texts = [_text(line["id"], {"text": line["content"], "at": line["created_at"]}, {line["thread"]}) for line in lines]
    return {"decisions": {OWN: [_record(line) for line in lines]}, "passages": {"no topics": texts}}


def regimes(records: Store, vectors: Sequence[Vectors]) -> dict[str, Store]:
    """Return variants of the decisions with other topics, as agents with other naming habits would save them."""
    random = np.random.default_rng(5)
    dropped = {record.memory.id for record in records if random.random() < 0.5}
    coarse = coarse_topics(records, random)
    alike = coarse_topics(records, random, np.stack([pieces[0] for pieces in vectors]))
    found: dict[str, Store] = {
        OWN: records,
        "one topic": [with_topic(record, "general") for record in records],
        "no topics": [with_topic(record, None) for record in records],
        "coarse topics": [with_topic(record, coarse[thread_of(record)]) for record in records],
        "half of the topics": [
            with_topic(record, None) if record.memory.id in dropped else record for record in records
        ],
        ALIKE: [with_topic(record, alike[thread_of(record)]) for record in records],
    }
    unlinked = {name + UNLINKED: [attrs.evolve(record, explicit={}) for record in found[name]] for name in found}
    return found | unlinked


def with_topic(record: Record, topic: str | None) -> Record:
    return attrs.evolve(record, memory=attrs.evolve(record.memory, topic=topic))


def thread_of(record: Record) -> str:
    return min(record.matters)


def coarse_topics(records: Store, random: np.random.Generator, vectors: Vectors | None = None) -> dict[str, str]:
    """
    Return a coarse topic for each thread. Each group of threads shares the topic of its first thread.

    With *vectors*, similar threads share a topic, otherwise random ones.
    """
    threads = np.array([thread_of(record) for record in records])
    left = random.permutation(np.unique(threads)).tolist()
    found: dict[str, str] = {}
    while left:
        if vectors is not None:
            middles = np.stack([vectors[threads == thread].mean(axis=0) for thread in left])
            likeness = (middles @ middles[0]) / np.linalg.norm(middles, axis=1)
            likeness[0] = np.inf
            left = [left[at] for at in np.argsort(-likeness, kind="stable")]
        group, left = np.split(np.array(left), [int(random.integers(COARSE[0], COARSE[1] + 1))])
        left = left.tolist()
        topics = Counter(
            record.memory.topic for record in records if thread_of(record) == group[0] and record.memory.topic
        )
        found |= dict.fromkeys(group.tolist(), topics.most_common(1)[0][0] if topics else str(group[0]))
    return found


def strangers(records: Store) -> list[Record]:
    """Return unrelated decisions and insights: the first of each thread, hours apart, all with the same topic."""
    first: dict[str, Record] = {}
    for record in records:
        if record.memory.type is MemoryType.DECISION or record.memory.type is MemoryType.INSIGHT:
            first.setdefault(thread_of(record), record)
    chosen = [with_topic(record, "general") for record in [*first.values()][:STRANGERS]]
    start = chosen[0].memory.created_at
    return [
        attrs.evolve(
            record, memory=attrs.evolve(record.memory, created_at=start + timedelta(hours=HOURS * at)), explicit={}
        )
        for at, record in enumerate(chosen)
    ]


def embedded(records: Store, embedder: Embedder) -> list[Vectors]:
    """Return the vectors of each memory, one per chunk of its text, as in a store."""
    texts = [embedded_text(record.memory) for record in records]
    return asyncio.run(EmbeddingService(embedder).embed_documents(texts))


def explicit_links(record: Record) -> Iterator[Link]:
    """Yield the explicit links of a record."""
    for to_id, link_type in record.explicit.items():
        yield Link(
            id=f"{record.memory.id}>{to_id}",
            from_id=record.memory.id,
            to_id=to_id,
            link_type=link_type,
            confidence=1.0,
            created_by="user",
            metadata=LinkMetadata(original_relationship="supersedes"),
            created_at=record.memory.created_at,
        )


def gather(records: Store, vectors: Sequence[Vectors], embedder: Embedder) -> Pairs:
    """Save the memories in order. Return the features of each memory paired with its candidates."""
    reader, new, old, cosines, features = PlainReader(), [], [], [], []
    for position, record in enumerate(records):
        own = vectors[position]
        if record.memory.type is not MemoryType.CHECKPOINT:
            found = link_candidates.collect_link_candidates(
                reader,
                record.memory,
                own,
                calibration=embedder.calibration,
                shared_dimensions=shared_dimensions(embedder),
                explicit=record.explicit,
            )
            new.append(np.full(len(found.nodes), position))
            old.append(found.nodes)
            cosines.append(found.cosines)
            features.append(found.features.table())
        reader.put(record.memory, vectors=own, links=list(explicit_links(record)))
    ends = np.concatenate(new), np.concatenate(old)
    pairs = [(records[one], records[other]) for one, other in zip(*(end.tolist() for end in ends), strict=True)]
    same = [not one.matters.isdisjoint(other.matters) for one, other in pairs]
    taught = [
        one.session is None or one.session != other.session or len(one.matters & other.matters) > 1
        for one, other in pairs
    ]
    return Pairs(
        *ends,
        np.array(same),
        np.array(taught),
        np.concatenate(cosines).astype(np.float64),
        np.concatenate(features),
        tuple(record.matters for record in records),
    )


def fit(features: Values, same: NDArray[np.bool_], counted: Values) -> Values:
    """Return bias and weights of a ridge logistic regression, computed with Newton's method."""
    mean = np.average(features, axis=0, weights=counted)
    scale = np.sqrt(np.average(np.square(features - mean), axis=0, weights=counted)) + 1e-9
    inputs = np.hstack([np.ones((len(features), 1)), (features - mean) / scale])
    ridge = np.diag([1e-6, *[RIDGE] * features.shape[1]])
    weights = np.zeros(inputs.shape[1])
    for _ in range(60):
        probable = 0.5 + 0.5 * np.tanh(0.5 * (inputs @ weights))
        slope = inputs.T @ (counted * (probable - same)) + ridge @ weights
        curvature = (inputs.T * (counted * probable * (1 - probable))) @ inputs + ridge
        step = np.linalg.solve(curvature, slope)
        weights -= step
        if np.abs(step).max() < 1e-9:
            break
    plain = weights[1:] / scale
    return np.array([weights[0] - plain @ mean, *plain])


def fitted(
    found: Mapping[str, Mapping[str, Pairs]], among: NDArray[np.bool_] | None = None, penalty: float = PENALTY
) -> Values:
    """
    Return bias and weights fitted to some sets.

    Of the decisions, only pairs are used whose memories are both in *among*.
    """
    features, same, counted = [], [], []
    for name, stores in found.items():
        chosen = [pairs for store, pairs in stores.items() if not store.startswith(ALIKE)]
        for pairs in chosen:
            known, wrong = pairs.taught, penalty
            if among is not None and name == "decisions":
                known = known & among[pairs.new] & among[pairs.old]
                # Half of the threads give each memory half as many unrelated candidates, so count wrong links twice.
                wrong = 2 * penalty
            right = pairs.same[known]
            share = COUNTS[name] * 10 * len(pairs.matters) / len(chosen) / max(len(right), 1)
            features.append(pairs.features[known])
            same.append(right)
            counted.append(np.where(right, share, wrong * share))
    return fit(np.concatenate(features), np.concatenate(same), np.concatenate(counted))


def scored(pairs: Pairs, weights: Values) -> Values:
    return 0.5 + 0.5 * np.tanh(0.5 * (pairs.features @ weights[1:] + weights[0]))


def linked(pairs: Pairs, scores: Values, least: float, among: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the pairs to link: for each memory the `CAP` best pairs whose score is at least *least*."""
    eligible = np.flatnonzero((scores >= least) & among)
    order = eligible[np.lexsort((-scores[eligible], pairs.new[eligible]))]
    place = np.arange(len(order)) - np.searchsorted(pairs.new[order], pairs.new[order])
    return order[place < CAP]


def measures(pairs: Pairs, chosen: NDArray[np.int64], counted: NDArray[np.bool_]) -> dict[str, float]:
    """Return precision and links per memory: for all links, and for links between memories that no chain connects."""
    same, fresh = pairs.same[chosen], ~pairs.chained[chosen]
    return {
        "precision": float(same.mean()) if len(chosen) else 1.0,
        "links_a_memory": len(chosen) / max(int(counted.sum()), 1),
        "precision_beyond_chains": float(same[fresh].mean()) if fresh.any() else 1.0,
        "links_a_memory_beyond_chains": int(fresh.sum()) / max(int(counted.sum()), 1),
    }


def left_out(
    found: Mapping[str, Mapping[str, Pairs]], name: str, halves: int
) -> Iterator[tuple[Values, NDArray[np.bool_]]]:
    """Yield weights that were fitted without a set, with a mask of the memories on which to evaluate the weights."""
    if name != "decisions":
        yield fitted({one: stores for one, stores in found.items() if one != name}), np.ones(0, np.bool_)
        return
    threads = np.array([min(matters) for matters in found[name][OWN].matters])
    names = np.unique(threads)
    for seed in range(halves):
        first = np.isin(threads, np.random.default_rng(seed).permutation(names)[: len(names) // 2])
        for half in (first, ~first):
            yield fitted(found, half), ~half


def judged(pairs: Pairs, runs: Sequence[tuple[Values, NDArray[np.bool_]]], least: float) -> dict[str, float]:
    """Return the mean of each measure over several runs."""
    figures = []
    for weights, among in runs:
        counted = among if len(among) else np.ones(len(pairs.matters), np.bool_)
        chosen = linked(pairs, scored(pairs, weights), least, counted[pairs.new])
        figures.append(measures(pairs, chosen, counted))
    return {key: float(np.mean([one[key] for one in figures])) for key in figures[0]}


def as_shipped(
    records: Store, vectors: Sequence[Vectors], embedder: Embedder, policy: LinkingPolicy
) -> dict[str, dict[str, float]]:
    """Save the memories with the weights of the package, and return the measures by link type."""
    reader, links = PlainReader(), []
    matters = {record.memory.id: record.matters for record in records}
    for record, own in zip(records, vectors, strict=True):
        asked = link_candidates.PendingLinks(memory=record.memory, vectors=own, explicit=record.explicit)
        shared = shared_dimensions(embedder)
        usual = link_candidates.SimilarityBaseline.from_reader(reader, embedder.calibration, shared)
        rules = linking.LinkingContext(policy=policy, calibration=embedder.calibration, shared_dimensions=shared)
        (made,) = linking.choose_automatic_links(reader, [asked], rules, usual)
        reader.put(record.memory, vectors=own, links=[*explicit_links(record), *made])
        links += made
    figures = {}
    for name, types in (("semantic", {LinkType.ASSOCIATION}), ("temporal", {LinkType.TEMPORAL}), ("all", {*LinkType})):
        chosen = [link for link in links if link.link_type in types]
        right = [link for link in chosen if not matters[link.from_id].isdisjoint(matters[link.to_id])]
        figures[name] = {
            "precision": len(right) / len(chosen) if chosen else 1.0,
            "links_a_memory": len(chosen) / len(records),
        }
    return figures


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    parser.add_argument("--sample", type=Path, default=RETRIEVAL_DATA, help="the folder with the sets (%(default)s)")
    parser.add_argument(
        "--embedder", choices=EMBEDDERS, default="sentence", help="what makes the vectors (%(default)s)"
    )
    parser.add_argument("--halves", type=int, default=10, help="random halves of the decisions (%(default)s)")
    parser.add_argument("--fit", action="store_true", help="print weights that were fitted to all sets")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    quick = chosen.quick or not chosen.sample.exists()
    sets = made_up() if quick else read(chosen.sample)
    embedder: Embedder = HashEmbedder() if quick else EMBEDDERS[chosen.embedder]()
    decisions = sets["decisions"][OWN]
    sets["decisions"] = regimes(decisions, embedded(decisions, embedder))
    vectors = {name: {store: embedded(one, embedder) for store, one in sets[name].items()} for name in sets}
    found = {
        name: {store: gather(one, vectors[name][store], embedder) for store, one in sets[name].items()} for name in sets
    }
    if chosen.fit:
        weights = fitted(found)
        named = dict(zip(link_candidates.FEATURES, weights[1:].round(2).tolist(), strict=True))
        print("BIAS", round(weights[0], 2), "WEIGHTS", named)

    presets = {"default": LinkingPolicy.default(), "strict": LinkingPolicy.strict()}
    figures: dict[str, Any] = {"embedder": embedder.name, "sets": {}}
    table = []
    for name, stores in sets.items():
        runs = list(left_out(found, name, 1 if quick else chosen.halves))
        for store, records in stores.items():
            kept = figures["sets"].setdefault(name, {})[store] = {"memories": len(records)}
            for preset, policy in presets.items():
                kept[preset] = {"left out": judged(found[name][store], runs, policy.threshold)}
                table += [
                    [name, store, preset, "left out", *(f"{value:.3f}" for value in kept[preset]["left out"].values())]
                ]
                kept[preset] |= as_shipped(records, vectors[name][store], embedder, policy)
                for kind in ("semantic", "temporal") if store == OWN else ("semantic",):
                    shipped = [f"{value:.3f}" for value in kept[preset][kind].values()]
                    table += [[name, store, preset, f"{kind}, as shipped", *shipped, "", ""]]
    apart = strangers(decisions)
    for preset, policy in presets.items():
        shipped = as_shipped(apart, embedded(apart, embedder), embedder, policy)["semantic"]
        figures.setdefault("strangers", {})[preset] = shipped
        table += [
            [
                "strangers",
                str(len(apart)),
                preset,
                "semantic, as shipped",
                *(f"{one:.3f}" for one in shipped.values()),
                "",
                "",
            ]
        ]
    report(
        "linking",
        f"Automatic links, embedded by {embedder.name}: how many are right, and how many there are; and the same without\n"
        "what explicit links lead to by way of others. Nothing was fitted to coarse topics of like threads.",
        ("set", "store", "policy", "what", "precision", "links/memory", "precision beyond chains", "links beyond"),
        table,
        figures=figures,
        folder=chosen.results,
    )


if __name__ == "__main__":
    main()
