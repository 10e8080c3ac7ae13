"""Driver of Chroma's embedded client, with default settings and inner products."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import chromadb

from _peers import NEAREST, Driver, Vectors


class Peer(Driver):
    at_once = 5_000

    def open(self, store: Path) -> None:
        # Clear Chroma's cache. Otherwise it would return the client that an earlier call of `open` created.
        chromadb.api.client.SharedSystemClient.clear_system_cache()
        client = chromadb.PersistentClient(str(store), settings=chromadb.config.Settings(anonymized_telemetry=False))
        given = {"hnsw": {"space": "ip"}}
        self.some = client.get_or_create_collection("memories", embedding_function=None, configuration=given)
        self.some.count()

    def put(self, start: int, stop: int) -> None:
        self.some.add(
            ids=[str(at) for at in range(start, stop)],
            embeddings=self.rows.vectors(start, stop),
            documents=self.rows.texts[start:stop],
            metadatas=[{"topic": topic or ""} for topic in self.rows.topics[start:stop]],
        )

    def tune(self, ef: int) -> None:
        self.some.modify(configuration={"hnsw": {"ef_search": ef}})

    def stored(self) -> list[int]:
        return [int(one) for one in self.some.get(include=[])["ids"]]

    def by_vector(self, vector: Vectors) -> Sequence[int]:
        return [int(one) for one in self.some.query(query_embeddings=[vector], n_results=NEAREST)["ids"][0]]
