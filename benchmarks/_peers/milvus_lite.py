"""Driver of Milvus Lite: the client of Milvus on a local file, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pymilvus import MilvusClient

from _peers import NEAREST, Driver, Vectors

NAME = "memories"
MAX_QUERY_ROWS = 16_000  # The maximum number of rows that one query returns.


class Peer(Driver):
    def open(self, store: Path) -> None:
        store.mkdir(exist_ok=True)
        self.client = MilvusClient(str(store / "milvus.db"))
        if not self.client.has_collection(NAME):
            self.client.create_collection(NAME, dimension=self.rows.dimensions, metric_type="COSINE", auto_id=False)
        self.client.load_collection(NAME)

    def put(self, start: int, stop: int) -> None:
        self.client.insert(
            NAME,
            [
                {"id": at, "vector": vector.tolist(), "text": self.rows.texts[at]}
                for at, vector in enumerate(self.rows.vectors(start, stop), start)
            ],
        )

    def stored(self) -> list[int]:
        return [
            row["id"] for row in self.client.query(NAME, filter="id >= 0", output_fields=["id"], limit=MAX_QUERY_ROWS)
        ]

    def by_vector(self, vector: Vectors) -> Sequence[int]:
        (found,) = self.client.search(NAME, data=[vector.tolist()], limit=NEAREST, output_fields=["text"])
        return [one["id"] for one in found]

    def close(self) -> None:
        self.client.close()
