"""Calibration of the embedders' cosines: fit it to labelled pairs, and check it."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _common import RESULTS, report, take_turns

from mama_structs.memory.embedding.factory import installed_semantic_embedders
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import (
    Calibration,
    Embedder,
    compute_auc,
    fit_calibration,
    load_sentence_triples,
    pair_cosines,
    sentence_cosines,
    shared_dimensions,
    validate_vectors,
)

SAMPLE = Path(__file__).parents[2] / "shared" / "data" / "retrieval" / "memories.jsonl"
QUANTILES = (5, 50, 95)
THRESHOLDS = (0.5, 0.75, 0.9, 0.95)
BINS = np.linspace(0, 1, 6)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    parser.add_argument(
        "--sample", type=Path, default=SAMPLE, help="memories, one JSON object a line: content, reasoning, thread"
    )
    parser.add_argument(
        "--korean", type=Path, help="query, paraphrase, unrelated (korean/pairs.jsonl beside the sample)"
    )
    return parser.parse_args()


def embedded(embedder: Embedder, texts: Sequence[str]) -> Any:
    return validate_vectors(embedder.embed(texts), len(texts), dimensions=embedder.dimensions).vectors


def read(path: Path, limit: int | None) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:limit]]


def of_sample(embedder: Embedder, memories: Sequence[Mapping[str, Any]], half: int | None) -> tuple[Any, Any]:
    """
    Return the cosines of pairs within a thread, and of pairs from different threads.

    *half* selects every second thread; None selects all.
    """
    names = sorted({memory["thread"] for memory in memories})
    wanted = set(names if half is None else names[half::2])
    chosen = [memory for memory in memories if memory["thread"] in wanted]
    vectors = embedded(embedder, [f"{memory['content']}\n{memory.get('reasoning') or ''}" for memory in chosen])
    threads = np.array([memory["thread"] for memory in chosen])
    first, second = np.triu_indices(len(chosen), 1)
    cosines = np.concatenate(
        [
            pair_cosines(vectors[first[at]], vectors[second[at]], shared_dimensions(embedder))
            for at in np.array_split(np.arange(len(first)), 1 + len(first) // 10_000)
        ]
    )
    same = threads[first] == threads[second]
    return cosines[same], cosines[~same]


def of_korean(embedder: Embedder, pairs: Sequence[Mapping[str, str]]) -> tuple[Any, Any]:
    """Return the cosines of Korean paraphrases, and of unrelated sentences that share words."""
    query, paraphrase, unrelated = (
        embedded(embedder, [pair[key] for pair in pairs]) for key in ("query", "paraphrase", "unrelated")
    )
    width = shared_dimensions(embedder)
    return pair_cosines(query, paraphrase, width), pair_cosines(query, unrelated, width)


def speed(embedder: Embedder, texts: Sequence[str], rounds: int) -> dict[str, float]:
    """Return the duration of embedding documents in batches, and of a single query."""
    batches = [texts[i : i + 64] for i in range(0, len(texts), 64)]
    documents = take_turns({"": lambda: [embedder.embed(batch) for batch in batches]}, rounds)[""]
    queries = take_turns({"": lambda: [embedder.embed([text], kind="query") for text in texts[:64]]}, rounds)[""]
    return {
        "documents_per_second": len(texts) / min(documents),
        "query_seconds": min(queries) / len(texts[:64]),
        "characters": sum(map(len, texts)) / len(texts),
    }


def reliability(calibration: Calibration, same: Any, other: Any) -> list[float | None]:
    """
    Return, for each fifth of the similarity range, the share of pairs on the same subject.

    Both classes have equal weight.
    """
    shares: list[float | None] = []
    positive, negative = calibration(np.asarray(same)), calibration(np.asarray(other))
    for low, high in itertools.pairwise(BINS):
        yes = ((positive >= low) & (positive < high)).mean()
        no = ((negative >= low) & (negative < high)).mean()
        shares.append(float(yes / (yes + no)) if yes + no else None)
    return shares


def right_from(calibration: Calibration, same: Any, other: Any) -> float | None:
    """Return the lowest similarity above which at least half of the pairs are on the same subject."""
    for threshold in np.arange(0.5, 1, 0.05):
        yes, no = (int((calibration(np.asarray(cosines)) >= threshold).sum()) for cosines in (same, other))
        if yes >= max(no, 1):
            return round(float(threshold), 2)
    return None


def described(calibration: Calibration, same: Any, other: Any) -> dict[str, Any]:
    """Return statistics of the cosines and of the calibrated similarities."""
    found: dict[str, Any] = {
        "pairs": [len(same), len(other)],
        "auc": compute_auc(same, other),
        "same": [float(value) for value in np.percentile(same, QUANTILES)],
        "other": [float(value) for value in np.percentile(other, QUANTILES)],
        "reliability": reliability(calibration, same, other),
    }
    for threshold in THRESHOLDS:
        yes, no = (calibration(np.asarray(cosines)) >= threshold for cosines in (same, other))
        found[f"at {threshold}"] = {
            "cosine": calibration.cosine(threshold),
            "recall": float(yes.mean()),
            "precision": float(yes.sum() / (yes.sum() + no.sum())) if yes.any() or no.any() else None,
        }
    return found


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def main() -> None:
    given = options()
    embedders: list[Embedder] = [HashEmbedder()]
    embedders += installed_semantic_embedders()
    memories = read(given.sample, 60 if given.quick else None)
    korean = read(given.korean or given.sample.parent / "korean" / "pairs.jsonl", None)
    rows: list[list[str]] = []
    paces: list[str] = []
    figures: dict[str, Any] = {}
    for embedder in embedders:
        alike, near, far = sentence_cosines(
            embedded(embedder, [text for triple in load_sentence_triples() for text in triple]),
            shared_dimensions(embedder),
        )
        sets = {"sentences": (alike, np.concatenate((near, far)))}
        fits = {"sentences": fit_calibration([alike], [near, far])}
        if memories:
            same, other = sets["sample"] = of_sample(embedder, memories, None)
            halves = [of_sample(embedder, memories, half) for half in (0, 1)]
            sets["the other half"] = halves[1]
            fits["sample"] = fit_calibration([same], [other])
            fits["sentences and sample"] = fit_calibration([alike, same], [near, far, other])
            fits["sentences and half"] = fit_calibration([alike, halves[0][0]], [near, far, halves[0][1]])
        own = {"in the code": embedder.calibration, **fits}
        figures[embedder.name] = {
            "calibrations": {name: [one.midpoint, one.slope] for name, one in own.items()},
            "sets": {},
        }
        texts = [f"{memory['content']}\n{memory.get('reasoning') or ''}" for memory in memories]
        texts = texts or [text for triple in load_sentence_triples() for text in triple]
        pace = figures[embedder.name]["speed"] = speed(embedder, texts, 1 if given.quick else 5)
        paces.append(
            f"{embedder.name}: {pace['documents_per_second']:.0f} documents of {pace['characters']:.0f} characters a "
            f"second, {pace['query_seconds'] * 1000:.2f} ms for a query"
        )
        for name, pairs in (("Korean, same words", korean[:40]), ("Korean, other words", korean[40:])):
            if pairs:
                alike_, unrelated = sets[name] = of_korean(embedder, pairs)
                right = figures[embedder.name][name] = float((alike_ > unrelated).mean())
                paces.append(f"{embedder.name}: {name}, the paraphrase is nearer in {right:.0%}")
        if memories:
            figures[embedder.name]["similar from"] = right_from(embedder.calibration, *sets["sample"])
        for name, one in own.items():
            rows.append([embedder.name, f"fit: {name}", f"{one.midpoint:.3f}", f"{one.slope:.1f}", *[""] * 9])
        for name, (same, other) in sets.items():
            used = fits["sentences and half"] if name == "the other half" else embedder.calibration
            found = figures[embedder.name]["sets"][name] = described(used, same, other)
            rows.append(
                [
                    embedder.name,
                    name,
                    *(f"{low:.2f} {middle:.2f} {high:.2f}" for low, middle, high in (found["same"], found["other"])),
                    f"{found['auc']:.3f}",
                    *(number(share) for share in found["reliability"]),
                    *(number(found[f"at {threshold}"]["precision"]) for threshold in THRESHOLDS[1:]),
                ]
            )
    report(
        "calibration",
        "Cosines of pairs on the same matter and on others (5th, 50th, 95th percentile), and how often the first is the\n"
        "higher one (AUC). For a fit: its midpoint and slope in their place.\n"
        "Share: of pairs on the same matter among those whose similarity lies in each fifth, both kinds weighing the same;\n"
        "a good calibration has 0.1, 0.3, 0.5, 0.7, 0.9. Precision: among all pairs as they are, at a similarity of so much.\n"
        "The calibration is that of the code; for the other half of the threads, the one fitted on the first half.\n"
        "Korean: as the file has them, in its two halves; the share of its lines in which the paraphrase is nearer:\n"
        + "\n".join(paces),
        (
            "embedder",
            "pairs",
            "same",
            "other",
            "AUC",
            "share 0-.2",
            ".2-.4",
            ".4-.6",
            ".6-.8",
            ".8-1",
            *(f"precision {threshold}" for threshold in THRESHOLDS[1:]),
        ),
        rows,
        figures=figures,
        folder=given.results,
    )


if __name__ == "__main__":
    main()
