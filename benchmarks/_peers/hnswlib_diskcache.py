"""
Driver of hnswlib and diskcache, used directly without this package.

The graph is written when the store is closed. If it is stale when the store is opened, it is rebuilt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import diskcache
import hnswlib
import numpy as np

from _peers import NEAREST, Driver, Vectors


class Peer(Driver):
    def open(self, store: Path) -> None:
        self.graph = store / "graph"
        self.cache = diskcache.Cache(
            str(store), eviction_policy="none", cull_limit=0, sqlite_synchronous=2, disk_min_file_size=2**30
        )
        self.index = hnswlib.Index("ip", self.rows.dimensions)
        numbers = self.stored()
        if self.graph.exists():
            self.index.load_index(str(self.graph))
        else:
            self.index.init_index(max(len(numbers), 1_024), M=16, ef_construction=150, random_seed=100)
        missing = sorted(set(numbers) - set(self.index.get_ids_list()))
        self._add(missing, [np.frombuffer(self.cache[at][1], np.float32) for at in missing])
        self.index.set_num_threads(1)
        self.tune(self.settings.get("ef", 128))

    def _add(self, numbers: Sequence[int], vectors: Sequence[Vectors]) -> None:
        wanted = self.index.get_current_count() + len(numbers)
        if wanted > self.index.get_max_elements():
            self.index.resize_index(wanted + wanted // 2)
        if numbers:
            self.index.add_items(np.stack(vectors), numbers, num_threads=1)

    def put(self, start: int, stop: int) -> None:
        vectors = self.rows.vectors(start, stop)
        with self.cache.transact():
            for at, vector in enumerate(vectors, start):
                self.cache.set(at, (self.rows.texts[at], vector.tobytes()))
        self._add(range(start, stop), list(vectors))

    def tune(self, ef: int) -> None:
        self.index.set_ef(ef)

    def stored(self) -> list[int]:
        return list(self.cache)

    def by_vector(self, vector: Vectors) -> Sequence[int]:
        count = min(NEAREST, self.index.get_current_count())
        return self.index.knn_query(vector, k=count, num_threads=1)[0][0].tolist()

    def close(self) -> None:
        self.index.save_index(str(self.graph))
        self.cache.close()
