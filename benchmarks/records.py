"""
Compare records with LangGraph's stores and with a plain SQLite table: put, get, list, find by value.

``--server`` measures on a PostgreSQL server, which the script starts, beside LangGraph's `AsyncPostgresStore`. The
processor time is that of the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from _common import MILLI, arguments, report
from _postgres import database, run_server

from mama_structs import HashEmbedder
from mama_structs.sync import Session
from mama_structs.types import NewRecord

LABEL = "items"
BATCH = 1_000
MATCHING = 200
Item = tuple[str, dict[str, Any]]


class Store(Protocol):
    """A store of JSON values under keys. Each write is durable when it returns."""

    def put(self, items: Sequence[Item]) -> object:
        """Store items in one transaction."""

    def get(self, key: str) -> object:
        """Return an item."""

    def list(self, limit: int) -> Sequence[object]:
        """Return some items."""

    def find(self, where: dict[str, Any]) -> Sequence[object]:
        """Return all items with the values of *where*."""


class Records:
    """Records of this package, with or without text."""

    def __init__(self, session: Session, *, text: bool) -> None:
        self._records = session.records
        self._text = text

    def put(self, items: Sequence[Item]) -> object:
        """Implements `Store.put`."""
        new = [NewRecord(LABEL, key, value, text=value["title"] if self._text else None) for key, value in items]
        return self._records.put_many(new)

    def get(self, key: str) -> object:
        """Implements `Store.get`."""
        return self._records.get(LABEL, key)

    def list(self, limit: int) -> Sequence[object]:
        """Implements `Store.list`."""
        return self._records.list(LABEL, limit=limit)

    def find(self, where: dict[str, Any]) -> Sequence[object]:
        """Implements `Store.find`."""
        return self._records.list(LABEL, where=where)


class Table:
    """A table with the values as JSON, an index on the keys and one on each value that conditions use."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE items (label TEXT, key TEXT, value TEXT, PRIMARY KEY (label, key))")
        for name in ("status", "user"):
            self._connection.execute(f"CREATE INDEX by_{name} ON items (label, json_extract(value, '$.{name}'))")

    def put(self, items: Sequence[Item]) -> object:
        """Implements `Store.put`."""
        rows = [(LABEL, key, json.dumps(value)) for key, value in items]
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", rows)
        return self._connection.execute("COMMIT")

    def get(self, key: str) -> object:
        """Implements `Store.get`."""
        sql = "SELECT value FROM items WHERE label = ? AND key = ?"
        return json.loads(self._connection.execute(sql, (LABEL, key)).fetchone()[0])

    def list(self, limit: int) -> Sequence[object]:
        """Implements `Store.list`."""
        sql = "SELECT value FROM items WHERE label = ? ORDER BY key LIMIT ?"
        return [json.loads(value) for (value,) in self._connection.execute(sql, (LABEL, limit))]

    def find(self, where: dict[str, Any]) -> Sequence[object]:
        """Implements `Store.find`."""
        ((name, wanted),) = where.items()
        sql = f"SELECT value FROM items WHERE label = ? AND json_extract(value, '$.{name}') = ?"  # noqa: S608 - own names
        return [json.loads(value) for (value,) in self._connection.execute(sql, (LABEL, wanted))]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


class LangGraph:
    """LangGraph's `SqliteStore`, without an index of vectors."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def put(self, items: Sequence[Item]) -> object:
        """Implements `Store.put`."""
        from langgraph.store.base import PutOp  # noqa: PLC0415 - optional

        return self._store.batch([PutOp((LABEL,), key, value) for key, value in items])

    def get(self, key: str) -> object:
        """Implements `Store.get`."""
        return self._store.get((LABEL,), key)

    def list(self, limit: int) -> Sequence[object]:
        """Implements `Store.list`."""
        found: Sequence[object] = self._store.search((LABEL,), limit=limit)
        return found

    def find(self, where: dict[str, Any]) -> Sequence[object]:
        """Implements `Store.find`."""
        found: Sequence[object] = self._store.search((LABEL,), filter=where, limit=1_000_000)
        return found


class LangGraphServer(LangGraph):
    """LangGraph's `AsyncPostgresStore`, without an index of vectors."""

    def __init__(self, store: Any, run: Callable[[Any], Any]) -> None:
        super().__init__(store)
        self._run = run

    def put(self, items: Sequence[Item]) -> object:
        """Implements `Store.put`."""
        from langgraph.store.base import PutOp  # noqa: PLC0415 - optional

        return self._run(self._store.abatch([PutOp((LABEL,), key, value) for key, value in items]))

    def get(self, key: str) -> object:
        """Implements `Store.get`."""
        return self._run(self._store.aget((LABEL,), key))

    def list(self, limit: int) -> Sequence[object]:
        """Implements `Store.list`."""
        found: Sequence[object] = self._run(self._store.asearch((LABEL,), limit=limit))
        return found

    def find(self, where: dict[str, Any]) -> Sequence[object]:
        """Implements `Store.find`."""
        found: Sequence[object] = self._run(self._store.asearch((LABEL,), filter=where, limit=1_000_000))
        return found


@contextlib.contextmanager
def open_server_stores() -> Iterator[dict[str, Store]]:
    """Yield the stores on a server by name, each in its own database."""
    from langgraph.store.postgres import AsyncPostgresStore  # noqa: PLC0415 - optional

    with contextlib.ExitStack() as opened:
        url = opened.enter_context(run_server())
        runner = opened.enter_context(asyncio.Runner())
        names = ("ours", "ours, with text", "langgraph")
        urls = {name: database(url, f"mama_structs_benchmark_{at}") for at, name in enumerate(names)}
        stores: dict[str, Store] = {
            name: Records(
                opened.enter_context(Session.open(urls[name], embedder=HashEmbedder())), text=name.endswith("text")
            )
            for name in names[:2]
        }
        context = AsyncPostgresStore.from_conn_string(urls["langgraph"])
        store = runner.run(context.__aenter__())
        opened.callback(lambda: runner.run(context.__aexit__(None, None, None)))
        runner.run(store.setup())
        stores["langgraph"] = LangGraphServer(store, runner.run)
        yield stores


@contextlib.contextmanager
def open_stores(folder: Path) -> Iterator[dict[str, Store]]:
    """Yield the stores by name. LangGraph's is left out if it is not installed."""
    with contextlib.ExitStack() as opened:
        session = opened.enter_context(Session.open(folder / "ours", embedder=HashEmbedder()))
        other = opened.enter_context(Session.open(folder / "with text", embedder=HashEmbedder()))
        table = opened.enter_context(contextlib.closing(Table(folder / "table.db")))
        stores: dict[str, Store] = {
            "ours": Records(session, text=False),
            "ours, with text": Records(other, text=True),
            "table": table,
        }
        with contextlib.suppress(ImportError):
            from langgraph.store.sqlite import SqliteStore  # noqa: PLC0415 - optional

            store = opened.enter_context(SqliteStore.from_conn_string(str(folder / "langgraph.db")))
            store.setup()
            stores["langgraph"] = LangGraph(store)
        yield stores


def make_items(count: int) -> list[Item]:
    """Return items: one is open, and `MATCHING` belong to the user u7."""
    users = max(count // MATCHING, 8)
    return [
        (
            f"k{at:06}",
            {
                "status": "open" if at == count // 2 else "closed",
                "user": f"u{at % users}",
                "n": at,
                "title": f"item {at} of the list",
            },
        )
        for at in range(count)
    ]


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Return the wall time and the processor time of a call, in seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    """Measure each operation on all stores in turn, and print the medians."""
    is_server = "--server" in sys.argv
    sys.argv = [one for one in sys.argv if one != "--server"]
    given = arguments(__doc__ or "")
    count, rounds = (400, 3) if given.quick else (20_000, 30)
    items = make_items(count)
    single = iter(range(count, 100 * count))
    operations: dict[str, Callable[[Store, int], object]] = {
        "put one": lambda store, _: store.put([(f"k{next(single):06}", items[0][1])]),
        "get one": lambda store, at: store.get(items[at * 7 % count][0]),
        "list 10": lambda store, _: store.list(10),
        "find 1": lambda store, _: store.find({"status": "open"}),
        f"find {MATCHING}": lambda store, _: store.find({"user": "u7"}),
    }
    seconds: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        open_server_stores() if is_server else open_stores(Path(folder)) as stores,
    ):
        # The store with text is the last one, because it builds an index in a thread.
        for name, store in sorted(stores.items(), key=lambda one: one[0].endswith("text")):
            for start in range(0, count, BATCH):
                part = items[start : start + BATCH]
                used = timed(lambda: store.put(part))  # noqa: B023 - called immediately
                seconds.setdefault(("put, each", name), []).append((used[0] / len(part), used[1] / len(part)))
        for what, run in operations.items():
            for at in range(rounds):
                for name, store in stores.items():
                    used = timed(lambda: run(store, at))  # noqa: B023 - called immediately
                    seconds.setdefault((what, name), []).append(used)
    figures = {
        f"{what}: {name}": {
            "wall": sorted(wall for wall, _ in some)[len(some) // 2],
            "cpu": sorted(cpu for _, cpu in some)[len(some) // 2],
        }
        for (what, name), some in seconds.items()
    }
    rows = [
        [what, name, *(f"{figures[f'{what}: {name}'][kind] * MILLI:.3f}" for kind in ("wall", "cpu"))]
        for what, name in seconds
    ]
    place = " on a server" if is_server else ""
    title = f"{count:,} records with four values each{place}: median of each call in ms"
    report(
        "records_server" if is_server else "records",
        title,
        ["what", "store", "wall", "cpu"],
        rows,
        figures=figures,
        folder=given.results,
    )


if __name__ == "__main__":
    main()
