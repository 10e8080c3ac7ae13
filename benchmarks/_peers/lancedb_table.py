"""
Driver of LanceDB with its full-text index.

By default LanceDB has no vector index, and compares all vectors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import lancedb
import pyarrow as pa
from lancedb.index import FTS

from _peers import NEAREST, Driver, Vectors


class Peer(Driver):
    def open(self, store: Path) -> None:
        vector = pa.list_(pa.float32(), self.rows.dimensions)
        fields = [("number", pa.int64()), ("text", pa.utf8()), ("vector", vector)]
        base = lancedb.connect(str(store))
        self.table = base.create_table("memories", schema=pa.schema(fields), exist_ok=True)
        self.table.count_rows()

    def put(self, start: int, stop: int) -> None:
        vectors = self.rows.vectors(start, stop)
        self.table.add(
            [{"number": at, "text": self.rows.texts[at], "vector": vector} for at, vector in enumerate(vectors, start)]
        )

    def wait_until_idle(self) -> None:
        """Build the full-text index, which a hybrid search needs."""
        self.table.create_index("text", config=FTS())

    def stored(self) -> list[int]:
        return self.table.to_arrow().column("number").to_pylist()

    def by_vector(self, vector: Vectors) -> Sequence[int]:
        return self._numbers(self.table.search(vector).distance_type("cosine"))

    def by_question(self, number: int) -> Sequence[int]:
        words = " ".join(re.findall(r"\w+", self.rows.question(number)))
        asked = self.table.search(query_type="hybrid").vector(self.get_question_vector(number)).text(words)
        return self._numbers(asked.distance_type("cosine"))

    def _numbers(self, query: object) -> list[int]:
        return query.limit(NEAREST).to_arrow().column("number").to_pylist()
