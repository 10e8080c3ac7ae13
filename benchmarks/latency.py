"""The latency that references add to an answer, cold and cached, and to calls without references."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from _common import MICRO, MILLI, arguments, report, summary, take_async_turns, take_turns
from _node import node_process

from mama_structs import DescriptorSettings, Resolver, Session, Settings, Source, with_references
from mama_structs.settings import ReferenceSettings
from mama_structs.structs.scheme import STRUCTS_SCHEME

# Do not truncate answers, so that both sides of a comparison transfer the same data.
UNTRUNCATED_SETTINGS = Settings(descriptors=DescriptorSettings(enabled=False))

LATENCY = 20
PLAYERS = 40
PLAYER = {"player_id": "1-11"}
WITH = PLAYER | {"include_references": True}
TOOL = "structs_query_player"
IMPORTS = ("mama_structs", "mama_structs.session.session", "aiohttp")


async def _timed(call: Awaitable[Any]) -> float:
    started = time.perf_counter()
    await call
    return time.perf_counter() - started


async def cold(url: str, rounds: int) -> dict[str, list[float]]:
    """Time the first call of a new session, which has neither open connections nor cached entities."""

    async def first(call: dict[str, Any]) -> float:
        async with Session.open(structs=url, settings=UNTRUNCATED_SETTINGS) as session:
            return await _timed(session.call(TOOL, call))

    rivals = {"without references": lambda: first(PLAYER), "with references": lambda: first(WITH)}
    await take_async_turns(rivals, 1)
    return await take_async_turns(rivals, rounds)


async def cached(url: str, calls: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds per call when the cache contains the responses for the call and for all its references."""
    async with Session.open(structs=url, settings=UNTRUNCATED_SETTINGS) as session:

        async def repeated(call: dict[str, Any]) -> float:
            started = time.perf_counter()
            for _ in range(calls):
                await session.call(TOOL, call)
            return (time.perf_counter() - started) / calls

        rivals = {"without references": lambda: repeated(PLAYER), "with references": lambda: repeated(WITH)}
        answer = await session.call(TOOL, WITH)
        assert {entry["reference_type"] for entry in answer["references"].values()} == {
            "guild",
            "planet",
            "fleet",
            "substation",
        }
        return await take_async_turns(rivals, rounds)


async def hit_rate(url: str, players: int) -> dict[str, float]:
    """Query all players twice, concurrently and with references. Return the share of queries that the cache saves."""
    async with Session.open(structs=url, settings=UNTRUNCATED_SETTINGS) as session:
        ids = [f"1-{index}" for index in range(1, players + 1)]
        await asyncio.gather(*(session.call(TOOL, {"player_id": one, "include_references": True}) for one in ids))
        first = session.resolver.stats
        await asyncio.gather(*(session.call(TOOL, {"player_id": one, "include_references": True}) for one in ids))
        both = session.resolver.stats
    asked = first.cache_hits + first.cache_misses
    assert both.upstream_queries == first.upstream_queries
    return {
        "ids": asked,
        "upstream_queries": first.upstream_queries,
        "shared_in_flight": first.coalesced,
        "saved": 1 - first.upstream_queries / asked,
        "repeat_hit_rate": (both.cache_hits - first.cache_hits) / asked,
    }


async def overhead(calls: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds per call of a tool that only returns a constant."""
    answer = {"Player": {"id": "1-11", "guildId": "0-1"}}

    async def tool(player_id: str) -> dict[str, Any]:  # noqa: ARG001
        return answer

    async def fetch(entity_id: str) -> dict[str, Any]:
        return {"id": entity_id}

    async with (
        Resolver([Source(STRUCTS_SCHEME, fetch=fetch)]) as resolver,
        Resolver([Source(STRUCTS_SCHEME, fetch=fetch)], settings=ReferenceSettings(enabled=False)) as switched_off,
    ):
        decorated = with_references(resolver=resolver)(tool)
        off = with_references(resolver=switched_off)(tool)
        assert await decorated("1-11") is answer
        assert await off("1-11", include_references=True) is answer

        def repeated(function: Callable[..., Awaitable[Any]], **options: Any) -> Callable[[], Awaitable[float]]:
            async def run() -> float:
                started = time.perf_counter()
                for _ in range(calls):
                    await function("1-11", **options)
                return (time.perf_counter() - started) / calls

            return run

        return await take_async_turns(
            {
                "bare coroutine": repeated(tool),
                "decorated, nothing asked": repeated(decorated),
                "include_references=False": repeated(decorated, include_references=False),
                "asked, switched off in settings": repeated(off, include_references=True),
            },
            rounds,
        )


def imports(rounds: int) -> dict[str, list[float]]:
    """Return the seconds that an import takes in a new process."""
    seconds: dict[str, list[float]] = {name: [] for name in IMPORTS}

    def measure(name: str) -> Callable[[], None]:
        code = f"import time; t = time.perf_counter(); import {name}; print(time.perf_counter() - t)"

        def run() -> None:
            seconds[name].append(float(subprocess.check_output([sys.executable, "-c", code])))  # noqa: S603 - as above

        return run

    take_turns({name: measure(name) for name in IMPORTS}, rounds)
    return seconds


def main() -> None:
    options = arguments(__doc__ or "")
    quick = options.quick
    with node_process(players=PLAYERS, latency=1 if quick else LATENCY) as url:
        first = asyncio.run(cold(url, 1 if quick else 30))
        again = asyncio.run(cached(url, 2 if quick else 100, 1 if quick else 20))
        hits = asyncio.run(hit_rate(url, 5 if quick else PLAYERS))
    calls = asyncio.run(overhead(100 if quick else 20_000, 2 if quick else 20))
    loaded = imports(1 if quick else 15)

    figures: dict[str, Any] = {"hit_rate": hits}
    rows = []
    for what, unit, base, samples, target in (
        ("first call", "ms", "without references", first, "added < 200 ms"),
        ("from the cache", "ms", "without references", again, "added < 1 ms"),
        ("when not wanted", "us", "bare coroutine", calls, "added < 2 us"),
        ("import", "ms", None, loaded, "mama_structs < 100 ms"),
    ):
        scale = MICRO if unit == "us" else MILLI
        own = {name: summary(seconds) for name, seconds in samples.items()}
        figures[what] = own
        for name, row in own.items():
            added = "" if base in (None, name) else f"{(row['median'] - own[base]['median']) * scale:.3f}"
            rows.append(
                [what, name, f"{row['min'] * scale:.3f} {unit}", f"{row['median'] * scale:.3f} {unit}", added, target]
            )
    report(
        "latency",
        f"A player with four references, {1 if quick else LATENCY} ms a query.\n"
        f"{hits['ids']:.0f} ids of concurrent queries for players with references cost {hits['upstream_queries']:.0f} "
        f"upstream queries ({hits['saved']:.0%} saved by cache and sharing); the same again: "
        f"{hits['repeat_hit_rate']:.0%} from the cache.",
        ("what", "case", "min", "median", "median added", "target"),
        rows,
        figures=figures,
        folder=options.results,
    )


if __name__ == "__main__":
    main()
