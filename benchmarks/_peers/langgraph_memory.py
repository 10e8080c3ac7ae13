"""Driver of LangGraph's in-memory store, which is not persistent."""

from __future__ import annotations

from pathlib import Path

from langgraph.store.memory import InMemoryStore

from _peers import langgraph_sqlite


class Peer(langgraph_sqlite.Peer):
    # Save one memory per call, because the store rejects a batch that contains the same text twice.
    at_once = 1

    def open(self, store: Path) -> None:  # noqa: ARG002 - nothing is stored on disk
        self.store = InMemoryStore(index=self.index)

    def close(self) -> None:
        pass
