"""Driver of LangGraph's SQLite store. Each namespace of the suite is a LangGraph namespace with one label."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from _peers import loadable_sqlite

sys.modules["sqlite3"] = loadable_sqlite()

from langgraph.store.sqlite import SqliteStore  # noqa: E402 - behind the choice of SQLite

from _stores import DIMENSIONS, NO_PAST, embedded  # noqa: E402 - as above


class Driver:
    lacks: ClassVar = {"time_travel": NO_PAST}

    def open(self, location: str) -> None:
        folder = Path(location)
        folder.mkdir(exist_ok=True)
        index = {"dims": DIMENSIONS, "embed": embedded, "fields": ["text"]}
        self.context = SqliteStore.from_conn_string(str(folder / "store.db"), index=index)
        self.store = self.context.__enter__()
        self.store.setup()

    def save(self, namespace: str, key: str, text: str, metadata: Mapping[str, str]) -> None:
        self.store.put((namespace,), key, {"text": text, **metadata})

    def get(self, namespace: str, key: str) -> str | None:
        item = self.store.get((namespace,), key)
        return None if item is None else item.value["text"]

    def all(self, namespace: str) -> list[tuple[str, str]]:
        return [(item.key, item.value["text"]) for item in self.store.search((namespace,), limit=1_000_000)]

    def search(
        self, namespace: str, query: str, *, limit: int, where: Mapping[str, str] | None = None
    ) -> list[tuple[str, str]]:
        found = self.store.search((namespace,), query=query, filter=dict(where) if where else None, limit=limit)
        return [(item.key, item.value["text"]) for item in found]

    def replace(self, namespace: str, key: str, text: str) -> None:
        item = self.store.get((namespace,), key)
        self.store.put((namespace,), key, {**item.value, "text": text})

    def delete(self, namespace: str, key: str) -> None:
        self.store.delete((namespace,), key)

    def close(self) -> None:
        self.context.__exit__(None, None, None)
