"""LangGraph's store in memory, which keeps nothing."""

from __future__ import annotations

from pathlib import Path

from langgraph.store.memory import InMemoryStore

from _peers import langgraph_sqlite


class Peer(langgraph_sqlite.Peer):
    # A batch in which two texts are the same is refused.
    at_once = 1

    def open(self, store: Path) -> None:  # noqa: ARG002 - there is none
        self.store = InMemoryStore(index=self.index)

    def close(self) -> None:
        pass
