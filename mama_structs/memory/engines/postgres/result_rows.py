"""Decoding of result rows, see `Statement.add_part` and `Statement.add_packed_part`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.engines.postgres.namespace_rows import PostgresMemoryRow
from mama_structs.memory.engines.postgres.queries import MEMORY_ROW_COLUMNS, unescape_text
from mama_structs.memory.types.engine import Nodes, Vectors

T = TypeVar("T")


@attrs.frozen(eq=False)
class ResultRow:
    """A row of an answer: the values of one memory or link, or a pack of them, column after column."""

    _record: Any
    tag: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "tag", self._record["tag"])

    @property
    def array(self) -> NDArray[np.int64]:
        """The numbers of a pack."""
        return np.frombuffer(self._record["packed_numbers"], ">i8").astype(np.int64)

    @property
    def numbers(self) -> Any:
        """The numbers as a list."""
        listed = self._record["numbers"]
        return self.array.tolist() if listed is None else listed

    @property
    def scores(self) -> list[float]:
        """The scores of a pack."""
        found: list[float] = np.frombuffer(self._record["packed_scores"], ">f8").tolist()
        return found

    @property
    def texts(self) -> Sequence[Any]:
        """The texts, in the form in which columns contain them, with None for NULL."""
        sizes, listed = self._record["packed_sizes"], self._record["texts"]
        if sizes is None:
            return cast("Sequence[Any]", listed)
        lengths, joined = np.frombuffer(sizes, ">i4"), self._record["packed_texts"]
        places = pairwise(accumulate(lengths.clip(0).tolist(), initial=0))
        if joined.isascii():
            texts = [joined[start:stop] for start, stop in places]
        else:
            encoded = joined.encode()
            texts = [encoded[start:stop].decode() for start, stop in places]
        if not (lengths < 0).any():
            return texts
        return [None if length < 0 else text for length, text in zip(lengths.tolist(), texts, strict=True)]

    @property
    def data(self) -> Sequence[Any]:
        """The values in bytes, or the vectors of a pack as one value."""
        return cast("Sequence[Any]", self._record["data"])


def split_columns(values: Sequence[T], count: int) -> list[Sequence[T]]:
    """Return the *count* columns of an array that contains them one after the other."""
    size = len(values) // count
    return [values[at * size : (at + 1) * size] for at in range(count)]


def decode_memory_rows(row: ResultRow) -> tuple[Sequence[int], list[PostgresMemoryRow]]:
    """Return the nodes and the columns of memories."""
    nodes, *columns = split_columns(row.numbers, len(MEMORY_ROW_COLUMNS))
    ids, topics = split_columns(row.texts, 2)
    known = [None if topic is None else unescape_text(topic) for topic in topics]
    return nodes, [*map(PostgresMemoryRow, map(unescape_text, ids), known, *columns)]


def decode_vectors(rows: Iterable[ResultRow], count: int, dimensions: int) -> tuple[list[Nodes], Vectors]:
    """Return the *count* number columns of rows with vectors, and the vectors, of shape (n, dimensions)."""
    packs = [(row.array.reshape(count, -1), row.data[0]) for row in rows]
    if not packs:
        return [np.empty(0, np.int64)] * count, np.empty((0, dimensions), np.float32)
    # pgvector's binary format of a vector begins with 4 bytes for its dimensions.
    vectors = [np.frombuffer(data, ">f4").reshape(-1, dimensions + 1)[:, 1:] for _, data in packs]
    return [*np.concatenate([numbers for numbers, _ in packs], axis=1)], np.concatenate(vectors).astype(np.float32)
