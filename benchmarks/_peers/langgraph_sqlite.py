"""Driver of LangGraph's SQLite store, which compares vectors with sqlite-vec."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _peers import NEAREST, Driver, Rows, Vectors, loadable_sqlite

sys.modules["sqlite3"] = loadable_sqlite()

from langgraph.store.base import PutOp  # noqa: E402 - must follow the selection of sqlite3
from langgraph.store.sqlite import SqliteStore  # noqa: E402 - as above

SPACE = ("memories",)


class Peer(Driver):
    def __init__(self, rows: Rows, settings: dict[str, Any]) -> None:
        super().__init__(rows, settings)
        self.asking: Vectors | None = None
        known = self.looked_up()
        # The store embeds queries itself and cannot search by a vector, so the embedding function returns `asking`.
        self.index = {
            "dims": rows.dimensions,
            "embed": lambda texts: known(texts) if self.asking is None else [self.asking.tolist()],
        }

    def open(self, store: Path) -> None:
        store.mkdir(exist_ok=True)
        self.context = SqliteStore.from_conn_string(str(store / "store.db"), index=self.index)
        self.store = self.context.__enter__()
        self.store.setup()

    def put(self, start: int, stop: int) -> None:
        self.store.batch(
            [PutOp(SPACE, str(at), {"text": self.rows.texts[at]}, index=["text"]) for at in range(start, stop)]
        )

    def stored(self) -> list[int]:
        return [int(item.key) for item in self.store.search(SPACE, limit=10**6)]

    def by_vector(self, vector: Vectors) -> Sequence[int]:
        self.asking = vector
        try:
            return [int(item.key) for item in self.store.search(SPACE, query="by vector", limit=NEAREST)]
        finally:
            self.asking = None

    def close(self) -> None:
        self.context.__exit__(None, None, None)
