"""The cost of storing, forking and exporting refs, compared with handwritten code."""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import os
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import diskcache
from _common import arguments, compared, comparison_rows, report, take_async_turns

from mama_structs import RefStore, Session

TASKS = 64
FORKS = 1_000
TEXT = "x = 1\n" * 50


def raw_cache(folder: Path) -> diskcache.Cache:
    """Open diskcache directly, with the same durability as this package."""
    return diskcache.Cache(
        str(folder), eviction_policy="none", cull_limit=0, sqlite_synchronous=2, disk_min_file_size=2**30
    )


async def observing(rounds: int, tasks: int) -> dict[str, dict[str, float]]:
    """
    Store refs durably from concurrent tasks.

    The rival commits the same bytes in one transaction after the other.
    """
    with tempfile.TemporaryDirectory() as folder:
        cache = raw_cache(Path(folder) / "raw")
        numbers = itertools.count()
        async with Session.open(Path(folder) / "ours") as session:

            async def ours() -> float:
                messages = [f'<ref id="r">\n{TEXT}{next(numbers)}\n</ref>' for _ in range(tasks)]
                started = time.perf_counter()
                await asyncio.gather(*map(session.observe, messages))
                return time.perf_counter() - started

            async def raw() -> float:
                values = [f"{TEXT}{next(numbers)}".encode() for _ in range(tasks)]
                started = time.perf_counter()
                for value in values:
                    with cache.transact():
                        cache.set(f"text/{next(numbers)}", value)
                        cache.set(f"change/{next(numbers)}", b"x" * 200)
                return time.perf_counter() - started

            figures = compared(
                await take_async_turns({"raw transactions": raw, "observe": ours}, rounds), "raw transactions"
            )
        cache.close()
    return figures


def forking(handles: int, forks: int) -> list[dict[str, Any]]:
    """Fork a store of 10 MB. The rival copies a dict, which shares the texts."""
    store = RefStore()
    size = 10_000_000 // handles
    for number in range(handles):
        store.add(f"{number:010}" * (size // 10))
    texts = {handle: store.get(handle).text for handle in store}
    rows = []
    for name, fork in (("dict copies", lambda: copy.copy(texts)), ("forks", store.fork)):
        gc.collect()
        tracemalloc.start()
        made = [fork() for _ in range(forks)]
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        del made
        gc.collect()
        started = time.perf_counter()
        made = [fork() for _ in range(forks)]
        rows.append({"case": name, "forks": forks, "megabytes": used / 1e6, "seconds": time.perf_counter() - started})
        del made
    return rows


async def exporting(rounds: int, size: int) -> dict[str, dict[str, float]]:
    """Export a text to a file atomically. The rival does the same by hand, without checks of the path."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        store = RefStore(files_root=root)
        text = "y" * size
        handle = store.add(text).handle

        async def by_hand() -> float:
            started = time.perf_counter()
            with (root / "hand.tmp").open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            (root / "hand.tmp").replace(root / "hand.txt")
            return time.perf_counter() - started

        async def ours() -> float:
            started = time.perf_counter()
            await store.to_file(handle, "ours.txt")
            return time.perf_counter() - started

        return compared(
            await take_async_turns({"write, fsync, replace": by_hand, "to_file": ours}, rounds), "write, fsync, replace"
        )


async def main() -> None:
    options = arguments(__doc__ or "")
    rounds = 3 if options.quick else 25
    rows, figures = [], {}
    for tasks in (1, TASKS):
        own = await observing(rounds, tasks)
        figures[f"durable, {tasks} tasks"] = own
        rows += comparison_rows(f"durable, {tasks} tasks", own)
    for size in (10_000, 1_000_000):
        own = await exporting(rounds, size)
        figures[f"file of {size:,}"] = own
        rows += comparison_rows(f"file of {size:,}", own)
    report(
        "refs",
        "Storing a ref durably, and writing one to a file (milliseconds, ratios to the raw way)",
        ["what", "case", "min ms", "median ms", "min ratio", "median ratio"],
        rows,
        figures=figures,
        folder=options.results,
    )
    forks = forking(100 if options.quick else 10_000, 10 if options.quick else FORKS)
    report(
        "forks",
        "Forks of a store of 10 MB",
        ["case", "forks", "MB in all", "ms in all"],
        [[row["case"], f"{row['forks']:,}", f"{row['megabytes']:.1f}", f"{row['seconds'] * 1e3:.1f}"] for row in forks],
        figures=forks,
        folder=options.results,
        words=1,
    )


if __name__ == "__main__":
    asyncio.run(main())
