"""Driver of mem0 with a local Qdrant folder. Inference is off, so each text is stored unchanged."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _peers import NEAREST, Driver, Rows, Vectors

os.environ["MEM0_TELEMETRY"] = "False"

from mem0 import Memory

USER = "someone"


class LookupEmbedder:
    """An embedder with mem0's interface that looks up precomputed vectors."""

    def __init__(self, driver: Driver) -> None:
        self.known, self.asking = driver.looked_up(), None

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:  # noqa: ARG002 - mem0's interface
        return self.known([text])[0] if self.asking is None else self.asking

    def embed_batch(self, texts: Sequence[str], memory_action: str | None = None) -> list[list[float]]:
        return [self.embed(text, memory_action) for text in texts]


class Peer(Driver):
    at_once = 1

    def __init__(self, rows: Rows, settings: dict[str, Any]) -> None:
        super().__init__(rows, settings)
        logging.disable(logging.WARNING)
        self.known = LookupEmbedder(self)

    def open(self, store: Path) -> None:
        store.mkdir(exist_ok=True)
        nobody = {"api_key": "none", "openai_base_url": "http://127.0.0.1:9"}
        where = {"path": str(store / "qdrant"), "embedding_model_dims": self.rows.dimensions, "on_disk": True}
        self.memory = Memory.from_config(
            {
                "vector_store": {"provider": "qdrant", "config": where},
                "history_db_path": str(store / "history.db"),
                "llm": {"provider": "openai", "config": nobody},
                "embedder": {"provider": "openai", "config": nobody},
            }
        )
        self.memory.embedding_model = self.known

    def put(self, start: int, stop: int) -> None:
        for at in range(start, stop):
            self.memory.add(self.rows.texts[at], user_id=USER, metadata={"number": at}, infer=False)

    def stored(self) -> list[int]:
        return self._numbers(self.memory.get_all(filters={"user_id": USER}, top_k=10**6))

    def by_vector(self, vector: Vectors) -> Sequence[int]:
        self.known.asking = vector.tolist()
        try:
            # Override the default threshold, with which mem0 drops hits with a similarity below 0.1.
            found = self.memory.search("by vector", filters={"user_id": USER}, top_k=NEAREST, threshold=0.0)
            return self._numbers(found)
        finally:
            self.known.asking = None

    def by_question(self, number: int) -> Sequence[int]:
        question = self.rows.question(number)
        return self._numbers(self.memory.search(question, filters={"user_id": USER}, top_k=NEAREST, threshold=0.0))

    def _numbers(self, found: dict[str, Any]) -> list[int]:
        return [one["metadata"]["number"] for one in found["results"]]

    def close(self) -> None:
        self.memory.close()
        self.memory.vector_store.client.close()
