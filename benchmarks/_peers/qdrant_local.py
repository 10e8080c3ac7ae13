"""Driver of Qdrant's client in local mode, which Qdrant recommends for experiments only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qdrant_client import QdrantClient, models

from _peers import NEAREST, Driver, Vectors


class Peer(Driver):
    def open(self, store: Path) -> None:
        self.client = QdrantClient(path=str(store))
        if not self.client.collection_exists("memories"):
            params = models.VectorParams(size=self.rows.dimensions, distance=models.Distance.COSINE)
            self.client.create_collection("memories", vectors_config=params)

    def put(self, start: int, stop: int) -> None:
        self.client.upsert(
            "memories",
            [
                models.PointStruct(id=at, vector=vector.tolist(), payload={"text": self.rows.texts[at]})
                for at, vector in enumerate(self.rows.vectors(start, stop), start)
            ],
        )

    def stored(self) -> list[int]:
        return [point.id for point in self.client.scroll("memories", limit=10**6, with_payload=False)[0]]

    def by_vector(self, vector: Vectors) -> Sequence[int]:
        return [point.id for point in self.client.query_points("memories", query=vector, limit=NEAREST).points]

    def close(self) -> None:
        self.client.close()
