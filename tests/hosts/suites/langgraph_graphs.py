"""
Runs LangGraph's own graph tests from its sdist, with our checkpointer instead of the SQLite checkpointer.

Usage: ``python tests/hosts/suites/langgraph_graphs.py langgraph_graphs.toml test_time_travel.py ...``. The arguments
are those of ``langgraph_store.py``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import langgraph.checkpoint.sqlite
import langgraph.checkpoint.sqlite.aio
import pytest
from langgraph_store import Shim, main

from mama_structs import HashEmbedder, Session, sync
from mama_structs.adapters.langgraph.checkpoints import LangGraphCheckpointer

# Names of LangGraph's savers that our checkpointer replaces.
_REPLACED_SAVERS = frozenset({"sqlite", "sqlite_aio"})
_beside = ThreadPoolExecutor(max_workers=1)


class BlockingCheckpointer(LangGraphCheckpointer):
    """Replaces the sync saver. Its session has its own thread, because the test's thread may run an event loop."""

    @classmethod
    @contextlib.contextmanager
    def from_conn_string(cls, _conn_string: str) -> Iterator[LangGraphCheckpointer]:
        session = _beside.submit(lambda: sync.Session.open(embedder=HashEmbedder())).result()
        try:
            yield _beside.submit(cls, session).result()
        finally:
            _beside.submit(session.close).result()


class AwaitedCheckpointer(LangGraphCheckpointer):
    """Replaces the async saver."""

    @classmethod
    @contextlib.asynccontextmanager
    async def from_conn_string(cls, _conn_string: str) -> AsyncIterator[LangGraphCheckpointer]:
        async with Session.open(embedder=HashEmbedder()) as session:
            yield cls(session)


class GraphShim(Shim):
    """Selects the tests that use a replaced saver."""

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        items[:] = [
            one
            for one in items
            if hasattr(one, "callspec") and not _REPLACED_SAVERS.isdisjoint(map(str, one.callspec.params.values()))
        ]
        super().pytest_collection_modifyitems(items)


if __name__ == "__main__":
    langgraph.checkpoint.sqlite.SqliteSaver = BlockingCheckpointer
    langgraph.checkpoint.sqlite.aio.AsyncSqliteSaver = AwaitedCheckpointer
    # This variable makes LangGraph's tests skip database servers.
    os.environ["NO_DOCKER"] = "true"
    sys.exit(main(kind=GraphShim))
