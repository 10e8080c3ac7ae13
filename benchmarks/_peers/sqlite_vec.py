"""Driver of SQLite with sqlite-vec and FTS5, combined by reciprocal rank fusion as in their guides."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path

from _peers import NEAREST, Driver, Vectors, loadable_sqlite

sqlite = loadable_sqlite()
sqlite_vec = importlib.import_module("sqlite_vec")  # Import the package sqlite_vec, not this module.


class Peer(Driver):
    def open(self, store: Path) -> None:
        store.mkdir(exist_ok=True)
        self.base = sqlite.connect(str(store / "memories.db"), timeout=30)
        self.base.enable_load_extension(True)
        sqlite_vec.load(self.base)
        self.base.execute("PRAGMA journal_mode=WAL")
        self.base.execute("PRAGMA synchronous=FULL")
        self.base.execute("CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text, tokenize='porter')")
        self.base.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS vectors USING vec0(v float[{self.rows.dimensions}] distance_metric=cosine)"
        )

    def put(self, start: int, stop: int) -> None:
        vectors = self.rows.vectors(start, stop)
        with self.base:
            self.base.executemany(
                "INSERT INTO words(rowid, text) VALUES (?, ?)", [(at, self.rows.texts[at]) for at in range(start, stop)]
            )
            self.base.executemany(
                "INSERT INTO vectors(rowid, v) VALUES (?, ?)",
                [(at, vector.tobytes()) for at, vector in enumerate(vectors, start)],
            )

    def stored(self) -> list[int]:
        return [row[0] for row in self.base.execute("SELECT rowid FROM vectors")]

    def by_vector(self, vector: Vectors, limit: int = NEAREST) -> Sequence[int]:
        found = self.base.execute(
            "SELECT rowid FROM vectors WHERE v MATCH ? AND k = ? ORDER BY distance", (vector.tobytes(), limit)
        )
        return [row[0] for row in found]

    def by_question(self, number: int) -> Sequence[int]:
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", self.rows.question(number)))
        matched = self.base.execute(
            "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?", (words, 5 * NEAREST)
        )
        scores: dict[int, float] = {}
        for ranked in (self.by_vector(self.get_question_vector(number), 5 * NEAREST), [row[0] for row in matched]):
            for rank, at in enumerate(ranked, 1):
                scores[at] = scores.get(at, 0.0) + 1 / (60 + rank)
        return sorted(scores, key=lambda at: -scores[at])[:NEAREST]

    def close(self) -> None:
        self.base.close()
