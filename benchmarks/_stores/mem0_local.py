"""
Driver of mem0 with a local Qdrant folder, with a user per namespace.

Inference is off, so texts are stored unchanged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

os.environ["MEM0_TELEMETRY"] = "False"

from mem0 import Memory

from _stores import DIMENSIONS, embedded


class Hashed:
    """A `HashEmbedder` with mem0's interface."""

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:  # noqa: ARG002 - mem0's
        return embedded([text])[0]

    def embed_batch(self, texts: Sequence[str], memory_action: str | None = None) -> list[list[float]]:  # noqa: ARG002
        return embedded(texts)


class Driver:
    lacks: ClassVar = {
        "time_travel": "it keeps a history of each memory, and a search sees the present only",
        "two_writers": "Qdrant without a server lets one process open a directory, and refuses a second",
        "scoped_ids": "its get, update and delete take an id alone, which a host must keep to itself",
    }

    def open(self, location: str) -> None:
        logging.disable(logging.WARNING)
        folder = Path(location)
        folder.mkdir(exist_ok=True)
        nobody = {"api_key": "none", "openai_base_url": "http://127.0.0.1:9"}
        where = {"path": str(folder / "qdrant"), "embedding_model_dims": DIMENSIONS, "on_disk": True}
        self.memory = Memory.from_config(
            {
                "vector_store": {"provider": "qdrant", "config": where},
                "history_db_path": str(folder / "history.db"),
                "llm": {"provider": "openai", "config": nobody},
                "embedder": {"provider": "openai", "config": nobody},
            }
        )
        self.memory.embedding_model = Hashed()

    def save(self, namespace: str, key: str, text: str, metadata: Mapping[str, str]) -> str:  # noqa: ARG002 - see `lacks`
        added = self.memory.add(text, user_id=namespace, metadata=dict(metadata), infer=False)
        return added["results"][0]["id"]

    def get(self, namespace: str, key: str) -> str | None:  # noqa: ARG002 - see `lacks`
        found = self.memory.get(key)
        return None if found is None else found["memory"]

    def all(self, namespace: str) -> list[tuple[str, str]]:
        return self._pairs(self.memory.get_all(filters={"user_id": namespace}, top_k=1_000_000))

    def search(
        self, namespace: str, query: str, *, limit: int, where: Mapping[str, str] | None = None
    ) -> list[tuple[str, str]]:
        filters = {"user_id": namespace, **(where or {})}
        # Override the default threshold, with which mem0 drops hits with a similarity below 0.1.
        return self._pairs(self.memory.search(query, filters=filters, top_k=limit, threshold=0.0))

    def _pairs(self, found: dict[str, Any]) -> list[tuple[str, str]]:
        return [(one["id"], one["memory"]) for one in found["results"]]

    def replace(self, namespace: str, key: str, text: str) -> None:  # noqa: ARG002 - see `lacks`
        self.memory.update(key, text)

    def delete(self, namespace: str, key: str) -> None:  # noqa: ARG002 - see `lacks`
        self.memory.delete(key)

    def close(self) -> None:
        self.memory.close()
        self.memory.vector_store.client.close()
