"""Shared code of the benchmarks: interleaved timing, tables, and results as JSON."""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mama_structs._internal.reprs import align_columns
from mama_structs.memory.embedding.protocol import Embedder, Kind, fingerprint_of

RESULTS = Path(__file__).parent / "results"
RETRIEVAL_DATA = Path(__file__).parents[1] / "tests" / "data" / "retrieval"
RECALL_DATA = RETRIEVAL_DATA.with_name("recall")
VECTORS_PER_WRITE = 2_000
MILLI, MICRO = 1e3, 1e6
Seconds = list[float]


def arguments(description: str) -> argparse.Namespace:
    """Parse ``--quick`` and ``--results``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    return parser.parse_args()


def take_turns(rivals: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Time each rival once per round, so that a slow phase of the machine affects all rivals equally."""
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, run in rivals.items():
            gc.collect()
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    return seconds


async def take_async_turns(rivals: Mapping[str, Callable[[], Awaitable[float]]], rounds: int) -> dict[str, list[float]]:
    """Run each async rival once per round. Each call of a rival returns the duration in seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, run in rivals.items():
            gc.collect()
            seconds[name].append(await run())
    return seconds


def quantiles(seconds: Seconds) -> dict[str, float]:
    """Return median, p99, maximum and number of samples. Times are in seconds."""
    return {
        "median": statistics.median(seconds),
        "p99": float(np.percentile(seconds, 99)),
        "max": max(seconds),
        "samples": len(seconds),
    }


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Return minimum and median in seconds, and the number of rounds."""
    return {"min": min(seconds), "median": statistics.median(seconds), "rounds": len(seconds)}


def compared(seconds: Mapping[str, Sequence[float]], rival: str) -> dict[str, dict[str, float]]:
    """Return the summary of each rival, with its minimum and median as ratios to *rival*."""
    base = summary(seconds[rival])
    figures = {}
    for name, samples in seconds.items():
        own = summary(samples)
        figures[name] = own | {f"{kind}_ratio": own[kind] / base[kind] for kind in ("min", "median")}
    return figures


def report(
    name: str,
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    figures: Any,
    folder: Path,
    words: int = 2,
) -> None:
    """Print the table, and write the figures as JSON. The first *words* columns of the table are left-aligned."""
    print(f"{title}\n\n{align_columns(header, rows, left_columns=words)}\n")
    folder.mkdir(parents=True, exist_ok=True)
    machine = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.system(),
        "cores": os.cpu_count(),
    }
    text = json.dumps({"benchmark": name, "machine": machine, "figures": figures}, indent=2)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def comparison_rows(label: str, figures: Mapping[str, Mapping[str, float]], unit: float = MILLI) -> list[list[str]]:
    """Return a row for each rival: its minimum and median time, and the ratios to the baseline."""
    return [
        [
            label,
            name,
            f"{own['min'] * unit:.2f}",
            f"{own['median'] * unit:.2f}",
            f"{own['min_ratio']:.2f}",
            f"{own['median_ratio']:.2f}",
        ]
        for name, own in figures.items()
    ]


class CachedEmbedder:
    """
    An embedder that computes the vector of each text once, and can store the vectors in a file between runs.

    The file is an ``.npz`` with the arrays ``fingerprint`` (the embedder's), ``keys`` (see `vector_key`) and
    ``vectors`` (float32, one row per key). A file of another fingerprint is replaced. All other methods of the
    embedder, such as ``adjust_query``, are delegated.

    Args:
        embedder: The embedder that computes new vectors.
        path: The file, or None to keep the vectors in memory only.

    """

    def __init__(self, embedder: Embedder, path: Path | None = None) -> None:
        self._embedder = embedder
        self._path = path
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._unsaved = 0
        self.fingerprint = fingerprint_of(embedder)
        self._load()
        # Set protocol attributes on the instance, because runtime protocols ignore `__getattr__` since Python 3.12.
        self.name, self.dimensions = embedder.name, embedder.dimensions
        self.max_tokens, self.calibration = embedder.max_tokens, embedder.calibration

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> NDArray[np.float32]:
        """Return a vector for each text."""
        keys = [vector_key(kind, text) for text in texts]
        new = [at for at, key in enumerate(keys) if key not in self._vectors]
        if new:
            vectors = np.asarray(self._embedder.embed([texts[at] for at in new], kind=kind), np.float32)
            self._vectors.update(zip((keys[at] for at in new), vectors, strict=True))
            self._unsaved += len(new)
            if self._unsaved >= VECTORS_PER_WRITE:
                self.save()
        return np.array([self._vectors[key] for key in keys], np.float32).reshape(len(keys), self.dimensions)

    def _load(self) -> None:
        if self._path is not None and self._path.exists():
            with np.load(self._path) as stored:
                if str(stored["fingerprint"]) == self.fingerprint:
                    self._vectors |= dict(zip(stored["keys"].tolist(), stored["vectors"], strict=True))

    def save(self) -> None:
        """Write new vectors to the file, if there is one. The file is replaced atomically."""
        if self._path is None or not self._unsaved:
            return
        # Another process may have added vectors since the file was read.
        self._load()
        partial = self._path.with_name(f"{self._path.stem}.{os.getpid()}.npz")
        np.savez(
            partial,
            fingerprint=np.array(self.fingerprint),
            keys=np.array([*self._vectors]),
            vectors=np.array([*self._vectors.values()], np.float32),
        )
        partial.replace(self._path)
        self._unsaved = 0


def vector_key(kind: Kind, text: str) -> str:
    """Return the key of a text in the file of a `CachedEmbedder`: the SHA-1 of kind, line break and text, in hex."""
    return hashlib.sha1(f"{kind}\n{text}".encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
