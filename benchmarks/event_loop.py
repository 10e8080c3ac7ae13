"""Measures with a heartbeat task how long each async call blocks the event loop."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from _common import MILLI, arguments, report

from mama_structs import (
    DescriptorSettings,
    Filter,
    HashEmbedder,
    MamaStructsError,
    Session,
    Settings,
    admin,
    with_descriptors,
)
from mama_structs.memory.types.record import NewRecord
from mama_structs.testing import FakeNode

LIMIT = 0.1
BEAT = 0.001
PAUSE = 0.05
Case = Callable[[], Awaitable[object]]


class Heartbeat:
    """A task that repeatedly sleeps one millisecond, and records the longest delay of a wake-up."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    async def beat(self) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(BEAT)
            now, used = time.perf_counter(), time.thread_time()
            self.wall, self.cpu = max(self.wall, now - wall), max(self.cpu, used - cpu)
            wall, cpu = now, used


async def measure(case: Case) -> dict[str, Any]:
    """Return the longest delay of the heartbeat while *case* runs, in CPU time of the thread and in wall time."""
    heartbeat = Heartbeat()
    task = asyncio.create_task(heartbeat.beat())
    await asyncio.sleep(PAUSE)
    heartbeat.wall = heartbeat.cpu = 0.0
    started = time.perf_counter()
    rejected = ""
    try:
        await case()
    except MamaStructsError as error:
        rejected = type(error).__name__
    seconds = time.perf_counter() - started
    await asyncio.sleep(PAUSE)
    task.cancel()
    return {"cpu": heartbeat.cpu, "wall": heartbeat.wall, "seconds": seconds, "rejected": rejected}


def rows(count: int) -> list[dict[str, Any]]:
    """Return rows in the format of the chain's list responses."""
    return [
        {"id": f"1-{number}", "owner": f"1-{number % 50 + 1}", "guildId": "0-1", "note": f"row {number} of a table"}
        for number in range(1, count + 1)
    ]


def marked(count: int) -> str:
    """Return a model's answer that contains *count* refs."""
    return "\n".join(f'<ref id="r{number}">\nvalue = {number}\n</ref>' for number in range(count))


def words(chars: int) -> str:
    """Return prose of the given number of characters."""
    return ("The raid doubled at dawn, and the shield held until the reactor failed. " * (chars // 70 + 1))[:chars]


def memory(number: int, chars: int = 60) -> dict[str, Any]:
    """Return a record for `MemoryStore.save_many`."""
    return {"type": "insight", "content": f"Insight {number}: {words(chars)}", "created_by": "user"}


def new_records(count: int, start: int = 0) -> list[NewRecord]:
    """Return small records, as a host would save them."""
    return [
        NewRecord(("many",), f"{number:06}", {"n": number, "s": "x" * 20}) for number in range(start, start + count)
    ]


async def refs_cases(session: Session, size: int) -> dict[str, Case]:
    """Return the cases for refs, descriptors and tools. *size* is 1 for the full run."""
    table, text = rows(20_000 // size), words(5_000_000 // size)
    many, message = marked(5_000 // size), words(1_000_000 // size)
    blocks = [{"type": "text", "text": f"block {number} {words(100)}"} for number in range(10_000 // size)]

    async def big_result(data: str = "") -> list[dict[str, Any]]:
        return [*table, {"data": len(data)}]

    async def big_text(data: Any = "") -> str:
        return text if data is not None else ""

    session.tools.add(big_result)
    session.tools.add(big_text)
    decorated = with_descriptors(store=session.refs)(big_result)
    large = session.refs.add(text[: 1_000_000 // size]).handle

    said = many.replace("value", "streamed")

    async def stream(chunk: int) -> None:
        taking = session.stream()
        for start in range(0, len(said), chunk):
            taking.feed(said[start : start + chunk])
            await asyncio.sleep(0)
        await taking.close()

    return {
        "wrap, rows": lambda: session.wrap(table),
        "wrap, mapping of rows": lambda: session.wrap({"players": table, "total": len(table)}),
        "wrap, text": lambda: session.wrap(text),
        "wrap, JSON text": lambda: session.wrap(str(table).replace("'", '"')),
        "wrap, user input": lambda: session.wrap(text, source="user_input"),
        "wrap, blocks": lambda: session.wrap(blocks),
        "observe, refs": lambda: session.observe(many),
        "observe, text": lambda: session.observe(text),
        "observe, same refs": lambda: session.observe(many),
        "observe, one large ref": lambda: session.observe(f'<ref id="large">\n{text}\n</ref>'),
        "stream, refs in chunks": lambda: stream(4_000),
        "call, large result": lambda: session.call("big_result", {}),
        "call, large text": lambda: session.call("big_text", {}),
        "call, large arguments": lambda: session.call("big_result", {"data": message}),
        "call, 20,000 rows as arguments": lambda: session.call("big_text", {"data": table}),
        "call, whole result": lambda: session.call("big_result", {}, max_chars=None),
        "call, put_ref": lambda: session.call("put_ref", {"ref_id": "big", "text": message}),
        "call, read_fd": lambda: session.call("read_fd", {"fd": large, "read_all": True}),
        "call, list_refs": lambda: session.call("list_refs", {}),
        "with_descriptors": decorated,
        "refs.search": lambda: session.refs.search(large, "reactor", limit=1_000),
        "refs.search, regex": lambda: session.refs.search(large, r"re\w+or", regex=True, limit=1_000),
        "refs.to_file": lambda: session.refs.to_file(large, "large.txt"),
        "flush": session.flush,
    }


async def memory_cases(session: Session, folder: Path, size: int) -> dict[str, Case]:
    """Return the cases for memories, and for the session methods that use memories."""
    memories, query = session.memories, words(10_000)
    long, message = words(1_000_000 // size), words(1_000_000 // size)
    many = [memory(number) for number in range(5_000 // size)]
    first = await memories.save_decision("shield first", topic="defence", reasoning="raids doubled")
    file = folder / "memories.jsonl"

    async def consume(several: Any) -> None:
        async for _ in several:
            pass

    async def extract(prompt: str, schema: Any) -> dict[str, Any]:
        return {} if prompt else {"schema": schema}

    said = [{"role": "user", "content": words(2_000)} for _ in range(500 // size)]
    return {
        "save, content": lambda: memories.save_context(long[:100_000]),
        "save_decision": lambda: memories.save_decision(long[:50_000], topic="defence", reasoning=long[:50_000]),
        "save_checkpoint": lambda: memories.save_checkpoint(long[:100_000], open_files=[f"f{n}" for n in range(1_000)]),
        "save_many": lambda: memories.save_many(many),
        "save_many, long": lambda: memories.save_many([memory(number, 20_000) for number in range(100 // size)]),
        "search": lambda: memories.search(query),
        "search, 1 MB": lambda: memories.search(long),
        "similar": lambda: memories.similar(content=query),
        "recall": lambda: session.recall(message),
        "recall, many messages": lambda: session.recall([{"role": "user", "content": message}] * 100),
        "remember": lambda: session.remember(said, extract=extract),
        "update": lambda: memories.update(first.id, long[:50_000]),
        "list": lambda: memories.list(limit=5_000),
        "iter_all": lambda: consume(memories.iter_all()),
        "links": lambda: memories.links(limit=100_000),
        "details": lambda: memories.details(first.id),
        "stats": memories.stats,
        "list of mentions": lambda: memories.list(where=Filter(mentions="1-11")),
        "traverse": lambda: memories.traverse(first.id),
        "call, save/insight": lambda: session.call("save/insight", {"content": long[:100_000]}),
        "call, search": lambda: session.call("search/by_context", {"query": query}),
        "export_jsonl": lambda: admin.export_jsonl(memories, file),
        "import_jsonl": lambda: admin.import_jsonl(memories, file),
        "check": lambda: admin.check(session),
        "rebuild": lambda: admin.rebuild(memories),
        "prune": lambda: admin.prune(memories),
        "maintain": lambda: admin.maintain(session),
        "backup": lambda: admin.backup(session, folder / "backup"),
    }


async def record_cases(session: Session, size: int) -> dict[str, Case]:
    """Return the cases for records of a host."""
    records = session.records
    value, nested = list(range(300_000 // size)), rows(40_000 // size)
    count = 5_000 // size
    many = new_records(count)
    places = [(("many",), f"{number:06}") for number in range(count)]
    moved = [(place, (("moved",), place[1])) for place in places]
    return {
        "records.put": lambda: records.put(("one",), "key", value),
        "records.put, nested": lambda: records.put(("one",), "rows", nested),
        "records.put_many": lambda: records.put_many(many),
        "records.append": lambda: records.append(("list",), [{"n": number} for number in range(count)]),
        "records.put_many, texts": lambda: records.put_many(
            NewRecord(("texts",), f"{number:06}", {}, text=words(1_000)) for number in range(count // 10)
        ),
        "records.put, text": lambda: records.put(("texts",), "long", {}, text=words(100_000)),
        "records.get": lambda: records.get(("one",), "key"),
        "records.get_many": lambda: records.get_many(places),
        "records.list": lambda: records.list(("many",)),
        "records.expire": lambda: records.expire(places, None),
        "records.move": lambda: records.move(moved),
        "records.search": lambda: records.search(words(10_000), ("texts",)),
        "records.nearest": lambda: records.nearest(words(10_000), ("texts",)),
        "records.embed": lambda: records.embed([words(1_000)] * (1_000 // size)),
        "records.labels": records.labels,
        "records.delete_all": lambda: records.delete_all(("moved",)),
        "records.delete_expired": records.delete_expired,
    }


async def reference_cases(session: Session, size: int) -> dict[str, Case]:
    """Return the cases for detecting and resolving ids in payloads."""
    table = rows(20_000 // size)
    payload = {"players": table}
    resolver = session.resolver
    ids = [f"1-{number}" for number in range(1, 5_001 // size)]

    @session.with_references
    async def players() -> dict[str, Any]:
        return payload

    session.tools.add(players)
    return {
        "enrich": lambda: resolver.enrich(payload),
        "enrich, expand": lambda: resolver.enrich({"player": {"id": "1-11", "rows": table}}),
        "resolve": lambda: resolver.resolve(ids),
        "with_references": lambda: players(include_references="all"),
        "call, with references": lambda: session.call("players", {"include_references": "all"}),
    }


async def lifecycle(folder: Path) -> dict[str, Case]:
    """Return the cases for opening the stores that the other cases have filled."""
    opened: list[Session] = []

    async def open_again() -> None:
        opened.append(await Session.open(folder / "store", conversation="main", embedder=HashEmbedder()))

    return {
        "open": open_again,
        "preload": lambda: Session.preload(opened[-1]),
        "close": lambda: opened.pop().close(),
        "conversations": lambda: admin.list_conversations(folder / "store"),
        "copy": lambda: admin.copy(folder / "store", folder / "copied"),
    }


async def main() -> None:
    options = arguments(__doc__ or "")
    size = 100 if options.quick else 1
    # Suppress the log message that only a part of a long text is embedded.
    logging.getLogger("mama_structs").setLevel(logging.ERROR)
    figures: dict[str, dict[str, Any]] = {}

    async def run(cases: dict[str, Case]) -> None:
        for name, case in cases.items():
            figures[name] = await measure(case)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            FakeNode.world(seed=1, players=40) as node,
            Session.open(
                folder / "store",
                structs=node.url,
                conversation="main",
                embedder=HashEmbedder(),
                files_root=folder / "files",
                settings=Settings(descriptors=DescriptorSettings(max_bytes=2**30, max_handles=10**6)),
            ) as session,
        ):
            await session.preload()
            for cases in (refs_cases, reference_cases, record_cases):
                await run(await cases(session, size))
            await run(await memory_cases(session, folder, size))
        await run(await lifecycle(folder))
    table = [
        [
            name,
            f"{own['cpu'] * MILLI:.0f}",
            f"{own['wall'] * MILLI:.0f}",
            f"{own['seconds'] * MILLI:.0f}",
            "over" if own["cpu"] > LIMIT else own["rejected"],
        ]
        for name, own in figures.items()
    ]
    report(
        "event_loop",
        f"Longest stall of the event loop in each call (milliseconds; at most {LIMIT * MILLI:.0f} ms of CPU)",
        ["call", "CPU ms", "wall ms", "whole call ms", "note"],
        table,
        figures=figures,
        folder=options.results,
        words=1,
    )


if __name__ == "__main__":
    asyncio.run(main())
