"""Shared code of the benchmarks: interleaved timing, tables, and results as JSON."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mama_structs._internal.reprs import align_columns

RESULTS = Path(__file__).parent / "results"
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
