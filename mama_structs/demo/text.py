"""The demo as text: plain tables, and answers shortened to what matters here."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from mama_structs.demo.scenario import Call, Run, Story
from mama_structs.references.detection import SECTION

_SHOWN_FIELDS: Final = (
    "reference_type", "id", "name", "owner", "guildId", "planetId", "fleetId", "status", "locationId",
    "gridAttributes", "ore", "next_key",
)  # fmt: skip
_WIDTH: Final = 100


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """Return a plain table: the first columns, which are *words*, to the left, and the numbers to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def tell(story: Story) -> str:
    """Return the whole story: question, both ways to the answer, and what each cost."""
    parts = [
        f"The agent's question: {story.question}",
        _heading("Without references: it looks up one id after the other"),
        *(_exchange(call, story) for call in story.without.calls),
        _heading("With references: the list names guild, planet and fleet, and each comes along once"),
        *(_exchange(call, story) for call in story.with_references.calls),
        _heading("What it found out, the same both ways" if story.same_facts else "What it found out, NOT the same"),
        *(_findings(run) for run in ((story.without,) if story.same_facts else (story.without, story.with_references))),
        _heading("What it cost"),
        costs(story),
        "\n".join(
            textwrap.fill(note, _WIDTH, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False)
            for note in notes(story)
        ),
    ]
    return "\n\n".join(parts)


def costs(story: Story) -> str:
    """Return the table of all runs."""
    runs = {
        "without references": story.without,
        "with references": story.with_references,
        "the same again": story.repeat,
    }
    header = ("run", "calls the agent made", "upstream queries", "bytes the agent read", "time")
    return table(
        header,
        [
            (name, str(len(run.calls)), str(run.upstream_queries), f"{run.bytes:,}", _milliseconds(run.seconds))
            for name, run in runs.items()
        ],
    )


def notes(story: Story) -> Iterator[str]:
    """Yield what the table does not say by itself, the price included."""
    without, at_once, repeat, alone = story.without, story.with_references, story.repeat, story.player_only
    yield (
        f"The same again, while answers are kept: {repeat.from_cache} answers came from the cache, "
        f"and the node was asked for {_asked(repeat)}."
    )
    yield (
        f"The price: references cover every row of the list, so the node had {at_once.upstream_queries} queries "
        f"instead of {without.upstream_queries}, and the agent read {at_once.bytes / without.bytes:.1f} times as much. "
        f"In return it also knows the guild mates' planets and fleets: {_further_calls(at_once)} more calls without "
        "references."
    )
    yield (
        f"Only the player, its guild, planet and fleet: {len(alone.calls)} call of structs_query_player with "
        f"references instead of {len(without.calls) - 1}, {alone.upstream_queries} queries, {alone.bytes:,} bytes, "
        f"{_milliseconds(alone.seconds)}."
    )
    turn = (at_once.seconds - without.seconds) / (len(without.calls) - len(at_once.calls))
    yield (
        "Times are those of the tools. Each call is also a turn of the model, which is not in them: the one call is "
        + (f"the faster way as soon as a turn takes {_milliseconds(turn)}." if turn > 0 else "the faster way even so.")
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _asked(run: Run) -> str:
    if not run.upstream_queries:
        return "nothing"
    return ", ".join(f"GET {path}" for path in run.asked) if run.asked else f"{run.upstream_queries} answers"


def _further_calls(run: Run) -> int:
    """Count the calls that it would take to look up, one by one, where the guild mates are."""
    guild, player = run.facts["guild"]["id"], run.facts["player"]["id"]
    rows = run.calls[-1].answer["Player"]
    return sum(
        bool(row["planetId"]) + bool(row["fleetId"]) for row in rows if row["guildId"] == guild and row["id"] != player
    )


def _findings(run: Run) -> str:
    return "\n".join(f"{name:<12} {_fact(fact)}" for name, fact in run.facts.items())


def _fact(fact: Mapping[str, str] | Sequence[str]) -> str:
    parts = (f"{name} {part}" for name, part in fact.items()) if isinstance(fact, Mapping) else fact
    return printable(", ".join(parts))


def _heading(text: str) -> str:
    return f"{text}\n{'=' * len(text)}"


def _exchange(call: Call, story: Story) -> str:
    arguments = ", ".join(f"{name}={_json(value)}" for name, value in call.arguments.items())
    facts = story.without.facts
    shown = {facts[name]["id"] for name in ("player", "guild", "planet", "fleet")}
    return f"> {call.tool}({arguments})\n{shortened(call.answer, shown)}"


def shortened(answer: Mapping[str, Any], shown: Collection[str]) -> str:
    """
    Return an answer with a line for each entity, and ``...`` for what is left out.

    Args:
        answer: A tool's answer.
        shown: The ids of the rows and references that are shown.

    """
    parts = []
    for key, value in answer.items():
        if isinstance(value, list):
            rows = [(row.get("id"), _fields(row)) for row in value]
            parts.append(f"{_json(key)}: [\n{_members(rows, shown)}\n  ]")
        elif key == SECTION:
            entries = [(name, f"{_json(name)}: {_fields(entry)}") for name, entry in value.items()]
            parts.append(f"{_json(key)}: {{\n{_members(entries, shown)}\n  }}")
        else:
            parts.append(f"{_json(key)}: {_fields(value)}")
    return "{\n  " + ",\n  ".join(parts) + "\n}"


def _members(members: Sequence[tuple[Any, str]], shown: Collection[str]) -> str:
    lines = [text for entity_id, text in members if entity_id in shown]
    if hidden := len(members) - len(lines):
        lines.append(f"... {hidden} more")
    return ",\n".join(f"    {line}" for line in lines)


def _fields(value: Any) -> str:
    """Return a value on one line, of a mapping only the fields that the story is about."""
    if not isinstance(value, Mapping):
        return _json(value)
    parts = [f"{_json(name)}: {_fields(value[name])}" for name in value if name in _SHOWN_FIELDS]
    if len(parts) < len(value):
        parts.append("...")
    return "{" + ", ".join(parts) + "}"


def _json(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))


def printable(text: str) -> str:
    """Return *text* with escapes for what a terminal would obey: names on a chain are anybody's."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
