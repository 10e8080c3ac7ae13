"""Driver of LangGraph's store on a PostgreSQL server, with pgvector's default HNSW index."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _scale import NEAREST, Rows, linked_from, make_link_text, walked
from langgraph.store.base import GetOp, PutOp
from langgraph.store.postgres import AsyncPostgresStore

SPACE, LINKED = ("memories",), ("linked",)
BATCH_SIZE = 1_000
DEEPEST, MOST = 5, 1_000
"""The default depth of `MemoryStore.traverse`, and the maximum number of memories that it returns."""


class LangGraph:
    """Same operations as `_scale.Ours`, but with LangGraph's API. Vector lookups are not timed."""

    def __init__(self, rows: Rows, settings: dict[str, Any]) -> None:
        self.rows, self.url = rows, settings["url"]
        self.places = {text: at for at, text in enumerate(rows.texts)}
        self.taken = 0.0
        self.index = {"dims": rows.dimensions, "embed": self._embed, "fields": ["text"]}
        self.runner = asyncio.Runner()

    async def _embed(self, texts: Sequence[str]) -> list[list[float]]:
        started = time.perf_counter()
        places = [self.places[text] for text in texts]
        found = [self.rows.vectors(at, at + 1)[0].tolist() for at in places]
        self.taken += time.perf_counter() - started
        return found

    def open(self, _store: Path) -> None:
        async def opened() -> None:
            self.context = AsyncPostgresStore.from_conn_string(self.url, index=self.index)
            self.store = await self.context.__aenter__()
            await self.store.setup()
            await self.store.aget(SPACE, "0")

        self.runner.run(opened())

    def bulk(self, start: int, stop: int) -> None:
        for at in range(start, stop, BATCH_SIZE):
            some = range(at, min(at + BATCH_SIZE, stop))
            self.runner.run(self.store.abatch([PutOp(SPACE, str(one), self._value(one)) for one in some]))

    def _value(self, at: int) -> dict[str, Any]:
        return {"text": self.rows.texts[at], "topic": self.rows.topics[at]}

    def save(self, start: int, stop: int) -> tuple[list[float], list[Any]]:
        return [self._apart(self.store.aput(SPACE, str(at), self._value(at)))[0] for at in range(start, stop)], []

    def _apart(self, call: Awaitable[Any]) -> tuple[float, Any]:
        async def timed() -> tuple[float, Any]:
            self.taken, started = 0.0, time.perf_counter()
            result = await call
            return time.perf_counter() - started - self.taken, result

        return self.runner.run(timed())

    def search(self, start: int, stop: int) -> tuple[list[float], list[list[int]]]:
        taken, found = [], []
        for number in range(start, stop):
            query = self.rows.question(number)
            seconds, items = self._apart(self.store.asearch(SPACE, query=query, limit=NEAREST))
            taken.append(seconds)
            found.append([int(item.key) for item in items])
        return taken, found

    nearest = search

    def close(self) -> None:
        self.runner.run(self.context.__aexit__(None, None, None))


class Walks(LangGraph):
    """
    Traversal benchmark for LangGraph. Each memory contains the keys of the memories linked to it in either direction.

    A search of this class is a traversal.
    """

    def bulk(self, start: int, stop: int) -> None:
        chance, ends = np.random.default_rng(5), [set() for _ in range(stop)]
        for number in range(start, stop):
            for end in linked_from(number, chance):
                ends[number].add(end)
                ends[end].add(number)
        self.count = stop
        for at in range(start, stop, BATCH_SIZE):
            some = range(at, min(at + BATCH_SIZE, stop))
            values = [
                {"text": make_link_text(one), "linked": [walked(end) for end in sorted(ends[one])]} for one in some
            ]
            puts = [PutOp(LINKED, walked(one), value, False) for one, value in zip(some, values, strict=True)]
            self.runner.run(self.store.abatch(puts))

    def search(self, start: int, stop: int) -> tuple[list[float], list[list[int]]]:
        starts = [walked(number) for number in np.random.default_rng(6).integers(0, self.count, stop)]
        walks = [self._apart(self._walked(one)) for one in starts[start:stop]]
        return [taken for taken, _ in walks], [[reached] for _, reached in walks]

    async def _walked(self, start: str) -> int:
        """Traverse the links with one query per level, because this store cannot traverse links."""
        seen, level = {start}, [start]
        for depth in range(DEEPEST + 1):
            items = await self.store.abatch([GetOp(LINKED, key) for key in level])
            named = dict.fromkeys(end for item in items for end in item.value["linked"])
            level = [end for end in named if end not in seen][: MOST + 1 - len(seen)]
            if depth == DEEPEST or not level:
                break
            seen.update(level)
        return len(seen) - 1


KINDS = {"langgraph": LangGraph, "langgraph walks": Walks}
