"""The duration of ``mama-structs hook``, when a helper process is running and when the hook must start it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import MILLI, arguments, report, summary

from mama_structs import Session

WORDS = ("shield first", "ore before fuel", "alerts by mail", "no deploys on Friday", "tea", "two keys", "an hour")
EVENT = {
    "session_id": "",
    "hook_event_name": "UserPromptSubmit",
    "prompt": "Timeouts of acquirer Nordbank: retried how often, with exponential backoff?",
}


async def fill(store: Path, count: int) -> None:
    async with Session.open(store) as session:
        records = [
            {
                "type": "context",
                "content": f"Timeouts of bank {number} are retried {number % 7} times; {WORDS[number % 7]}",
                "topic": "banks",
            }
            for number in range(count)
        ]
        records[7]["content"] = "The acquirer Nordbank: timeouts are retried three times with exponential backoff"
        await session.memories.save_many(records)


def hook(store: Path, conversation: str) -> tuple[float, bool]:
    event = json.dumps({**EVENT, "session_id": conversation})
    begun = time.perf_counter()
    command = [sys.executable, "-m", "mama_structs", "hook", str(store), "--seconds", "30"]
    done = subprocess.run(command, input=event, capture_output=True, text=True, check=True)  # noqa: S603
    return time.perf_counter() - begun, done.stdout != "{}\n"


def leave(store: Path) -> None:
    code = (
        "import os, sys, time; os.chdir(sys.argv[1]); from mama_structs.cli import hook; "
        "hook.request_answer(b'\\0quit\\0', time.monotonic() + 30, may_start=False)"
    )
    subprocess.run([sys.executable, "-c", code, str(store)], check=True)  # noqa: S603
    while (store / "hook.sock").exists():
        time.sleep(0.01)


def main() -> None:
    given = arguments(__doc__)
    memories, runs, cold_runs = (20, 2, 1) if given.quick else (1_000, 20, 5)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "a.mama"
        asyncio.run(fill(store, memories))
        cold, warm, bare = [], [], []
        for number in range(cold_runs):
            cold.append(hook(store, f"cold {number}"))
            leave(store)
        hook(store, "first")
        # Wait until the encoder is loaded.
        time.sleep(0.1 if given.quick else 10)
        for number in range(runs):
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", ""], check=True)
            bare.append((time.perf_counter() - begun, True))
            warm.append(hook(store, f"warm {number}"))
        leave(store)
    figures = {
        name: {
            **summary([seconds for seconds, _ in found]),
            "max": max(found)[0],
            "told": sum(told for _, told in found),
        }
        for name, found in (("running helper", warm), ("cold", cold), ("bare interpreter", bare))
    }
    rows = [
        [
            name,
            *(f"{one[key] * MILLI:.0f}" for key in ("min", "median", "max")),
            f"{one['told']} of {one['rounds']}",
            goal,
        ]
        for (name, one), goal in zip(figures.items(), ("100", "400", ""), strict=True)
    ]
    title = f"mama-structs hook, end to end, over {memories:,} memories, in milliseconds"
    header = ["", "min", "median", "max", "answered", "goal"]
    report("hook", title, header, rows, figures=figures, folder=given.results, words=1)


if __name__ == "__main__":
    main()
