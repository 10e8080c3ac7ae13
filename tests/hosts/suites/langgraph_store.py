"""
Runs LangGraph's own store tests from its sdists, with our store instead of LangGraph's.

Usage: ``python tests/hosts/suites/langgraph_store.py langgraph_store_base.toml test_store.py ...``. The first file
lists the excluded tests with reasons. The other files are in the folder that ``MAMA_STRUCTS_TEST_SUITE`` names. The last
output line is the result as JSON: passed, failed and excluded tests.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import langgraph.store.memory
import pytest

from mama_structs import Session, as_embedder, sync
from mama_structs.adapters.langgraph.store import LangGraphStore

_beside = ThreadPoolExecutor(max_workers=1)
_open: list[sync.Session] = []


def _options(index: dict[str, Any] | None) -> dict[str, Any]:
    """Return the session options for the embedder of a LangGraph store configuration."""
    if not index:
        return {}
    embed = index["embed"].embed_documents
    return {
        "embedder": as_embedder(
            lambda texts: embed(list(texts)), name="langgraph-test", dimensions=index["dims"], max_tokens=100_000
        )
    }


def _fields(index: dict[str, Any] | None) -> list[str]:
    """Return the fields that a store indexes by default. SQLite's store names this option `text_fields`."""
    return (index or {}).get("fields") or (index or {}).get("text_fields") or ["$"]


def _remember(store: Any, index: dict[str, Any] | None) -> Any:
    store.index_config, store.embeddings = index, (index or {}).get("embed")
    return store


class BlockingStore(LangGraphStore):
    """Replaces the sync stores. Its session has its own thread, because the test's thread may run an event loop."""

    def __init__(self, location: str | None = None, *, index: Any = None, ttl: Any = None) -> None:
        session = _beside.submit(functools.partial(sync.Session.open, location, **_options(index))).result()
        _open.append(session)
        made = functools.partial(super().__init__, session, fields=_fields(index), ttl=ttl)
        _beside.submit(made).result()
        _remember(self, index)

    @classmethod
    @contextlib.contextmanager
    def from_conn_string(cls, conn_string: str, *, index: Any = None, ttl: Any = None) -> Any:
        yield cls(_location(conn_string), index=index, ttl=ttl)

    def setup(self) -> None:
        """Do nothing: no setup is needed."""

    start_ttl_sweeper = stop_ttl_sweeper = setup

    def sweep_ttl(self) -> int:
        return self._bridge.run(self._bridge.session.records.delete_expired)


class AwaitedStore(LangGraphStore):
    """Replaces the async stores."""

    @classmethod
    @contextlib.asynccontextmanager
    async def from_conn_string(cls, conn_string: str, *, index: Any = None, ttl: Any = None) -> Any:
        async with Session.open(_location(conn_string), **_options(index)) as session:
            yield _remember(cls(session, fields=_fields(index), ttl=ttl), index)

    async def setup(self) -> None:
        """Do nothing: no setup is needed."""

    start_ttl_sweeper = stop_ttl_sweeper = setup

    async def sweep_ttl(self) -> int:
        return await self._bridge.session.records.delete_expired()


def _location(conn_string: str) -> str | None:
    return None if conn_string == ":memory:" else f"{conn_string}.mama"


def take_their_place() -> None:
    """Replace LangGraph's store classes with ours for all later imports."""
    langgraph.store.memory.InMemoryStore = BlockingStore
    with contextlib.suppress(ImportError):
        sqlite, aio = (importlib.import_module(f"langgraph.store.sqlite{part}") for part in ("", ".aio"))
        sqlite.SqliteStore, sqlite.AsyncSqliteStore, aio.AsyncSqliteStore = BlockingStore, AwaitedStore, AwaitedStore


class Shim:
    """A pytest plugin that closes open stores, excludes the declared tests, and counts the results."""

    def __init__(self, excused: frozenset[str]) -> None:
        self.passed = 0
        self.failed: list[str] = []
        self.excused: list[str] = []
        self._left_out = excused

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        self.excused = [one.nodeid for one in items if self._is_excused(one)]
        items[:] = [one for one in items if not self._is_excused(one)]

    def _is_excused(self, item: pytest.Function) -> bool:
        return not self._left_out.isdisjoint({item.originalname, f"{item.path.name}::{item.originalname}"})

    def pytest_runtest_teardown(self) -> None:
        while _open:
            _beside.submit(_open.pop().close).result()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed += 1


def main(*options: str, kind: type[Shim] = Shim) -> int:
    """Run the files that the command line names."""
    own = tomllib.loads(Path(__file__).with_name(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(os.environ["MAMA_STRUCTS_TEST_SUITE"])
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    files = [str(folder / "tests" / name) for name in sys.argv[2:]]
    shim = kind(frozenset(one["test"] for one in own.get("excused", ())))
    code = pytest.main([*files, *options, "-p", "no:cacheprovider", "-q"], plugins=[shim])
    told = {"passed": shim.passed, "failed": shim.failed, "excused": shim.excused}
    sys.stdout.write(f"{json.dumps(told)}\n")
    return int(code)


if __name__ == "__main__":
    take_their_place()
    sys.exit(main("-o", "asyncio_mode=auto"))
