"""Decoding of packed result rows, see `Statement.add_packed_part`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from mama_structs.memory.engines.postgres.namespace_rows import PostgresMemoryRow
from mama_structs.memory.engines.postgres.queries import MEMORY_ROW_COLUMNS, unescape_text
from mama_structs.memory.types.engine import Nodes, Vectors

T = TypeVar("T")


def split_columns(values: Sequence[T], count: int) -> list[Sequence[T]]:
    """Return the *count* columns of an array that contains them one after the other."""
    size = len(values) // count
    return [values[at * size : (at + 1) * size] for at in range(count)]


def split_memory_numbers(row: Any) -> list[Sequence[int]]:
    """Return whether the links of each memory were followed, the nodes, and the other number columns."""
    return split_columns(row["numbers"], 1 + len(MEMORY_ROW_COLUMNS))


def decode_memory_rows(row: Any) -> tuple[Sequence[int], list[PostgresMemoryRow]]:
    """Return the nodes and the columns of memories."""
    _, nodes, *columns = split_memory_numbers(row)
    ids, topics = split_columns(row["texts"], 2)
    known = [None if topic is None else unescape_text(topic) for topic in topics]
    return nodes, [*map(PostgresMemoryRow, map(unescape_text, ids), known, *columns)]


def decode_vectors(rows: Iterable[Any], count: int, dimensions: int) -> tuple[list[Nodes], Vectors]:
    """Return the *count* number columns of rows with vectors, and the vectors, of shape (n, dimensions)."""
    packs = [(np.array(row["numbers"], np.int64).reshape(count, -1), row["data"][0]) for row in rows]
    if not packs:
        return [np.empty(0, np.int64)] * count, np.empty((0, dimensions), np.float32)
    # pgvector's binary format of a vector begins with 4 bytes for its dimensions.
    vectors = [np.frombuffer(data, ">f4").reshape(-1, dimensions + 1)[:, 1:] for _, data in packs]
    return [*np.concatenate([numbers for numbers, _ in packs], axis=1)], np.concatenate(vectors).astype(np.float32)
