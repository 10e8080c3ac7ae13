"""Driver of this package, with default settings."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from _scale import START, LookupEmbedder

import mama_structs
from _peers import NEAREST, Driver, Rows, Vectors
from mama_structs import Session


class Peer(Driver):
    """
    A session of this package. The settings may name *records* to save and an *embedder* to use.

    The public API has no search by vector only, so the engine is called. Its nodes are numbered in the order of saving.
    """

    at_once = 10_000

    def __init__(self, rows: Rows, settings: dict[str, Any]) -> None:
        super().__init__(rows, settings)
        given = settings.get("records")
        self.records = json.loads(Path(given).read_text(encoding="utf-8")) if given else None
        self.as_of = datetime.fromisoformat(self.records[-1]["created_at"]) + timedelta(days=1) if given else None
        self.embedder = getattr(mama_structs, settings["embedder"])() if given else LookupEmbedder(rows)
        self.numbers: dict[str, int] = {}
        with tempfile.TemporaryDirectory() as folder:
            # Use a store once before timing, so that lazily loaded modules are already imported.
            self.open(Path(folder) / "warm")
            self.put(0, 2)
            self.by_question(0)
            self.close()

    def open(self, store: Path) -> None:
        self.runner = asyncio.Runner()
        self.session = self.runner.run(Session.open(store, embedder=self.embedder).__aenter__())
        self.memories = self.session.memories
        self.engine = self.memories._engine  # noqa: SLF001 - for measuring
        self.runner.run(self.memories.count())

    def record(self, at: int) -> dict[str, Any]:
        if self.records:
            given = self.records[at]
            return given | {"created_at": datetime.fromisoformat(given["created_at"])}
        rows = self.rows
        moment = START + timedelta(minutes=3 * at)
        return {"type": "context", "content": rows.texts[at], "topic": rows.topics[at], "created_at": moment}

    def put(self, start: int, stop: int) -> None:
        if stop - start == 1 and not self.records:
            record = self.record(start)
            del record["type"]
            saved = [self.runner.run(self.memories.save_context(**record))]
        else:
            saved = self.runner.run(self.memories.save_many([self.record(at) for at in range(start, stop)]))
        self.numbers.update((memory.id, at) for at, memory in enumerate(saved, start))

    def wait_until_idle(self) -> None:
        """Wait until the vector graph and the word index are up to date."""
        self.runner.run(self.engine.wait_until_idle())
        self.engine._views.vectors.wait_until_idle(3_600.0)  # noqa: SLF001 - for measuring

    def stored(self) -> list[int]:
        places = {text: at for at, text in enumerate(self.rows.texts)}

        async def all_of_them() -> dict[str, int]:
            return {memory.id: places[memory.content] async for memory in self.memories.iter_all()}

        self.numbers = self.runner.run(all_of_them())
        return list(self.numbers.values())

    def by_vector(self, vector: Vectors) -> Sequence[int]:
        def work(reader: Any) -> list[str]:
            return list(reader.ids(reader.nearest(vector, NEAREST).nodes.tolist()))

        return [self.numbers.get(name, -1) for name in self.runner.run(self.engine.read(work))]

    def by_question(self, number: int) -> Sequence[int]:
        return [self.numbers.get(hit.memory.id, -1) for hit in self._hits(number)]

    def find_with_duplicates(self, start: int, stop: int) -> list[list[list[int]]]:
        """Return, for each question, the number of each hit with the numbers of its folded duplicates."""
        return [
            [[self.numbers.get(name, -1) for name in (hit.memory.id, *hit.duplicates)] for hit in self._hits(number)]
            for number in range(start, stop)
        ]

    def _hits(self, number: int) -> Sequence[Any]:
        question = self.rows.question(number)
        return self.runner.run(self.memories.search(question, as_of=self.as_of, limit=NEAREST))

    def close(self) -> None:
        with self.runner:
            self.runner.run(self.session.__aexit__(None, None, None))
