"""
The duration of resolving 50 references without a cache, compared with plain aiohttp.

One rival sends the requests concurrently; the other sends them one by one, as an agent without references does.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import Any

import aiohttp
from _common import MILLI, arguments, compared, report, take_async_turns
from _node import node_process

from mama_structs import DescriptorSettings, ReferenceOptions, Resolver, Session, Settings, StructsSource
from mama_structs.testing import World

# Do not truncate answers, so that both sides of a comparison transfer the same data.
UNTRUNCATED_SETTINGS = Settings(descriptors=DescriptorSettings(enabled=False))

REFERENCES = 50
LATENCY = 20
PARALLEL = 5
OURS, BARE, ONE_BY_ONE = "mama_structs", f"bare aiohttp, semaphore of {PARALLEL}", "tool calls one by one"


def payload(count: int) -> tuple[dict[str, Any], list[str]]:
    """Return a tool's answer with *count* fleet ids, and the ids."""
    ids = World.generate(seed=1, players=max(12, count)).ids("fleet")[:count]
    return {"fleets": [{"fleetId": entity_id} for entity_id in ids]}, ids


async def ours(url: str, answer: dict[str, Any]) -> float:
    """Resolve all ids in *answer*, with an empty cache and no open connections."""
    options = ReferenceOptions(include_references="all", max_references=len(answer["fleets"]))
    async with Resolver([StructsSource(url)]) as resolver:
        started = time.perf_counter()
        enriched = await resolver.enrich(answer, options, kind="query")
        seconds = time.perf_counter() - started
    assert [entry["id"] for entry in enriched["references"].values()] == [row["fleetId"] for row in answer["fleets"]]
    assert all(entry["owner"] for entry in enriched["references"].values())
    return seconds


async def bare(url: str, ids: list[str]) -> float:
    """Send the same requests concurrently, with handwritten aiohttp code."""
    slots = asyncio.Semaphore(PARALLEL)

    async def get(session: aiohttp.ClientSession, entity_id: str) -> Any:
        async with slots, session.get(f"{url}/structs/fleet/{entity_id}") as response:
            return json.loads(await response.read())

    async with aiohttp.ClientSession() as session:
        started = time.perf_counter()
        answers = await asyncio.gather(*(get(session, entity_id) for entity_id in ids))
        seconds = time.perf_counter() - started
    assert [answer["Fleet"]["id"] for answer in answers] == ids
    return seconds


async def one_by_one(url: str, ids: list[str]) -> float:
    """
    Query the ids with one tool call after the other, as an agent without references does.

    The time in which the agent thinks is not included.
    """
    async with Session.open(structs=url, settings=UNTRUNCATED_SETTINGS) as session:
        started = time.perf_counter()
        for entity_id in ids:
            await session.call("structs_query_fleet", {"fleet_id": entity_id})
        return time.perf_counter() - started


async def run(url: str, count: int, rounds: int) -> dict[str, list[float]]:
    answer, ids = payload(count)
    parallel = {BARE: lambda: bare(url, ids), OURS: lambda: ours(url, answer)}
    await take_async_turns(parallel, 1)  # Import all modules and warm up the node before timing.
    seconds = await take_async_turns(parallel, rounds)
    return seconds | await take_async_turns({ONE_BY_ONE: lambda: one_by_one(url, ids)}, max(1, rounds // 10))


def main() -> None:
    options = arguments(__doc__ or "")
    count, latency, rounds = (10, 1, 1) if options.quick else (REFERENCES, LATENCY, 30)
    with node_process(players=max(12, count), latency=latency) as url:
        seconds = asyncio.run(run(url, count, rounds))
    ideal = math.ceil(count / PARALLEL) * latency / MILLI
    figures = compared(seconds, BARE)
    for own in figures.values():
        own["ideal_ratio"] = own["median"] / ideal
    report(
        "upstream",
        f"{count} cold references, {latency} ms a query, {PARALLEL} at once; the ideal is {ideal * MILLI:g} ms.\n"
        "Target: at most 1.1 times bare aiohttp.",
        ("what", "min ms", "median ms", "min ratio to bare", "median ratio to bare", "median ratio to ideal"),
        [
            [
                name,
                f"{own['min'] * MILLI:.1f}",
                f"{own['median'] * MILLI:.1f}",
                f"{own['min_ratio']:.3f}",
                f"{own['median_ratio']:.3f}",
                f"{own['ideal_ratio']:.2f}",
            ]
            for name, own in figures.items()
        ],
        figures=figures,
        folder=options.results,
        words=1,
    )


if __name__ == "__main__":
    main()
