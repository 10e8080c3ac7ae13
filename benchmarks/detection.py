"""What finding ids costs, and what adding references from a warm cache costs, beside json.dumps of the same payload."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterable
from typing import Any

from _common import arguments, compared, comparison_rows, report, take_async_turns, take_turns

from mama_structs import ReferenceOptions, Resolver, Source
from mama_structs.references.resolver import _search
from mama_structs.structs.scheme import STRUCTS_SCHEME
from mama_structs.testing import World

BYTES = 1_000_000
ID = re.compile(r"(?:[0-6]|9|1[01])-[1-9][0-9]*")
CASES = {
    # Options, and whether every id is asked for or (the default) those of the direct relations.
    "enrich, default (50 references)": ReferenceOptions(),
    "enrich, every field (50 references)": ReferenceOptions(include_references="all"),
}


def payloads(size: int) -> dict[str, dict[str, Any]]:
    """Return four payloads of about *size* bytes of JSON; in the last there is next to nothing but ids."""
    world = World.generate(seed=1, players=max(40, size // 310))
    structs = world.ids("struct")
    members = (
        {
            "player": world.envelope(player),
            "home": {
                "planet": world.envelope(planet),
                "structs": list(map(world.envelope, structs[first : first + 4])),
            },
        }
        for player, planet, first in zip(
            world.ids("player"), world.ids("planet"), range(0, len(structs), 4), strict=False
        )
    )
    fleets = (
        {"id": f"9-{at}", "owner": f"1-{at}", "locationId": f"2-{at % 997 + 1}", "space": [f"5-{at}", f"5-{at + 1}"]}
        for at in range(1, size)
    )
    return {
        "list of players": {"Player": _cut(world.rows("player"), size), "pagination": {"next_key": None}},
        "planets with slots": {"Planet": _cut(world.rows("planet"), size), "pagination": {"next_key": None}},
        "nested query": {"id": "0-1", "report": {"members": _cut(members, size)}},
        "list of ids": {"Fleet": _cut(fleets, size), "pagination": {"next_key": None}},
    }


def _cut(rows: Iterable[Any], size: int) -> list[Any]:
    """Return as many rows as make up *size* bytes."""
    kept, total = [], 0
    for row in rows:
        if total >= size:
            break
        kept.append(row)
        total += len(json.dumps(row))
    return kept


def plain_walk(value: Any, found: list[str]) -> None:
    """Do what one would write first: every string against a regular expression, no rules about fields."""
    if isinstance(value, dict):
        for member in value.values():
            plain_walk(member, found)
    elif isinstance(value, list):
        for member in value:
            plain_walk(member, found)
    elif isinstance(value, str) and ID.fullmatch(value):
        found.append(value)


async def fetch(entity_id: str) -> dict[str, Any]:
    return {"id": entity_id, "owner": "1-1", "name": "x" * 200, "slots": ["5-1", "5-2", "", ""]}


def resolver() -> Resolver:
    return Resolver([Source(STRUCTS_SCHEME, fetch=fetch)])


def detect(payload: dict[str, Any], one: Resolver) -> int:
    """Return the number of ids in a payload. The public `detect` rejects payloads of this size."""
    _, scan = _search(payload, one._detector, kind="auto", subject=None)  # noqa: SLF001
    return len(scan.found)


def detection(payload: dict[str, Any], rounds: int) -> dict[str, dict[str, float]]:
    warm = resolver()
    return compared(
        take_turns(
            {
                "json.dumps": lambda: json.dumps(payload),
                "plain walk with re": lambda: plain_walk(payload, []),
                "detect": lambda: detect(payload, warm),
                "detect, new resolver": lambda: detect(payload, resolver()),
            },
            rounds,
        ),
        "json.dumps",
    )


async def enriching(payload: dict[str, Any], rounds: int) -> dict[str, dict[str, float]]:
    async def dumps() -> float:
        started = time.perf_counter()
        json.dumps(payload)
        return time.perf_counter() - started

    async with resolver() as warm:

        def enrich(options: ReferenceOptions) -> Any:
            async def run() -> float:
                started = time.perf_counter()
                await warm.enrich(payload, options)
                return time.perf_counter() - started

            return run

        rivals = {"json.dumps": dumps, **{name: enrich(options) for name, options in CASES.items()}}
        await take_async_turns(rivals, 1)  # Fills the cache.
        queries = warm.stats.upstream_queries
        seconds = await take_async_turns(rivals, rounds)
        assert warm.stats.upstream_queries == queries
    return compared(seconds, "json.dumps")


def main() -> None:
    options = arguments(__doc__ or "")
    size, rounds = (20_000, 2) if options.quick else (BYTES, 30)
    figures, rows = {}, []
    for name, payload in payloads(size).items():
        own = detection(payload, rounds)
        enriched = asyncio.run(enriching(payload, rounds))
        own |= {case: enriched[case] for case in CASES}
        figures[name] = {"bytes": len(json.dumps(payload)), "occurrences": detect(payload, resolver()), **own}
        rows += comparison_rows(name, own)
    report(
        "detection",
        f"Payloads of {size / 1e6:g} MB; milliseconds, and the ratio to json.dumps in the same run.\n"
        "Targets: detect at most 2, enrich from a warm cache at most 4.",
        ("payload", "what", "min ms", "median ms", "min ratio", "median ratio"),
        rows,
        figures=figures,
        folder=options.results,
    )


if __name__ == "__main__":
    main()
