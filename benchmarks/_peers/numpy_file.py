"""Driver of the simplest persistent baseline: NumPy and two append-only files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from _peers import NEAREST, Driver, Vectors


class Peer(Driver):
    """Stores vectors in one file, JSON lines in a second one. Vectors are written first, so every line has a vector."""

    def open(self, store: Path) -> None:
        store.mkdir(exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self.files = [os.open(store / name, flags) for name in ("vectors.f32", "lines.jsonl")]
        lines = (store / "lines.jsonl").read_bytes().split(b"\n")[:-1]
        self.numbers = [json.loads(line)["number"] for line in lines]
        # After a crash, remove a vector whose line was not written.
        os.ftruncate(self.files[0], len(lines) * 4 * self.rows.dimensions)
        held = np.fromfile(store / "vectors.f32", np.float32)
        self.held = held.reshape(-1, self.rows.dimensions)

    def put(self, start: int, stop: int) -> None:
        texts = [{"number": at, "text": self.rows.texts[at]} for at in range(start, stop)]
        lines = "".join(f"{json.dumps(one)}\n" for one in texts)
        vectors = self.rows.vectors(start, stop)
        for file, data in zip(self.files, (vectors.tobytes(), lines.encode()), strict=True):
            os.write(file, data)
            os.fdatasync(file)
        self.numbers.extend(range(start, stop))
        count = len(self.numbers)
        if count > len(self.held):
            # Allocate 50 % more than needed, so that not every save copies the array.
            room = np.empty((count + count // 2, self.rows.dimensions), np.float32)
            room[: len(self.held)] = self.held
            self.held = room
        self.held[count - (stop - start) : count] = vectors

    def stored(self) -> list[int]:
        return self.numbers

    def by_vector(self, vector: Vectors) -> Sequence[int]:
        cosines = self.held[: len(self.numbers)] @ vector
        best = np.argpartition(-cosines, NEAREST - 1)[:NEAREST] if len(cosines) > NEAREST else np.arange(len(cosines))
        return [self.numbers[at] for at in best[np.argsort(-cosines[best])]]

    def close(self) -> None:
        for file in self.files:
            os.close(file)
