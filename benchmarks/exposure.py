"""Accuracy and cost of detecting the context of a message, compared with the patterns of MAMA v1.0."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import MICRO, arguments, report, take_turns

from mama_structs.tools.exposure import ToolSelector

MESSAGES = Path(__file__).parents[1] / "tests" / "data" / "exposure" / "messages.jsonl"
KINDS = ("resuming", "deciding", "searching", "tracking", None)
# Patterns of the v1.0 requirements by message kind, in order of precedence. The last two kinds hide no tools.
SUBSTRINGS = {
    "resuming": ("어제", "이어서", "continue", "resume"),
    "deciding": ("결정", "decide", "choice", "선택"),
    "searching": ("찾아", "search", "recall", "어떻게 했"),
    "tracking": ("실패", "성공", "failed", "success"),
}
ALLOWED = {
    "resuming": {"load/checkpoint", "load/context"},
    "deciding": {"save/decision", "save/insight", "search/by_context"},
}
Said = tuple[str | None, bool, bool]


def by_substrings(row: dict[str, Any]) -> Said:
    """
    Return a message's kind by the v1.0 patterns, whether any tools are hidden, and whether a needed tool is hidden.
    """
    text = row["text"].lower()
    kind = next((kind for kind, words in SUBSTRINGS.items() if any(word in text for word in words)), None)
    allowed = ALLOWED.get(kind or "")
    return kind, allowed is not None, allowed is not None and not {*row["needed"]} <= allowed


def by_cues(exposure: ToolSelector) -> Callable[[dict[str, Any]], Said]:
    def decide(row: dict[str, Any]) -> Said:
        context = exposure.detect(row["text"])
        narrow = context.tool_names != "all"
        return context.kind, narrow, narrow and not {*row["needed"]} <= {*context.tool_names}

    return decide


def rate(rows: list[dict[str, Any]], decide: Callable[[dict[str, Any]], Said]) -> dict[str, float]:
    said = [decide(row) for row in rows]
    right = sum(kind == row["kind"] for row, (kind, _, _) in zip(rows, said, strict=True))
    return {
        "messages": len(rows),
        "right": right / len(rows),
        "narrowed": sum(narrow for _, narrow, _ in said),
        "needed_hidden": sum(hidden for _, _, hidden in said),
    }


def main() -> None:
    options = arguments(__doc__)
    rows = [json.loads(line) for line in MESSAGES.read_text(encoding="utf-8").splitlines()]
    if options.quick:
        rows = rows[::10]
    rivals = {"substrings of v1.0": by_substrings, "Exposure": by_cues(ToolSelector())}
    simple = [row for row in rows if row["list"] not in "fh"]
    groups = {
        **{f"list {name}": [row for row in rows if row["list"] == name] for name in sorted({r["list"] for r in rows})},
        **{language: [row for row in simple if row["language"] == language] for language in ("en", "ko", "mixed")},
        **{str(kind): [row for row in simple if row["kind"] == kind] for kind in KINDS},
    }
    figures: dict[str, Any] = {"accuracy": {}, "microseconds": {}}
    table = []
    for group, members in groups.items():
        for name, decide in rivals.items():
            own = rate(members, decide)
            figures["accuracy"].setdefault(group, {})[name] = own
            table.append(
                [
                    group,
                    name,
                    f"{own['messages']}",
                    f"{own['right']:.1%}",
                    f"{own['narrowed']}",
                    f"{own['needed_hidden']}",
                ]
            )
    lengths = {"all messages": rows, "a pasted megabyte": [{"text": "a b c. " * 150_000, "needed": []}]}
    times = []
    for label, members in lengths.items():
        seconds = take_turns(
            {name: (lambda decide=decide, members=members: timed(members, decide)) for name, decide in rivals.items()},
            2 if options.quick else 7,
        )
        for name, samples in seconds.items():
            micro = min(samples) / len(members) * MICRO
            figures["microseconds"].setdefault(label, {})[name] = micro
            times.append([label, name, f"{micro:.1f}"])
    report(
        "exposure",
        "Contexts told right; messages for which tools were hidden, and a needed one among them",
        ["group", "rival", "messages", "right", "narrowed", "needed hidden"],
        table,
        figures=figures,
        folder=options.results,
    )
    report(
        "exposure",
        "Microseconds a message, fastest round",
        ["messages", "rival", "µs"],
        times,
        figures=figures,
        folder=options.results,
    )


def timed(rows: list[dict[str, Any]], decide: Callable[[dict[str, Any]], Said]) -> float:
    started = time.perf_counter()
    for row in rows:
        decide(row)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
