"""What the views are made of: columns that grow, an order that is sorted when it is read, and texts with numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

_LEAST: Final = 256


class Columns:
    """Parallel arrays that grow by doubling."""

    def __init__(self, types: Mapping[str, DTypeLike]) -> None:
        self._types = {name: np.dtype(kind) for name, kind in types.items()}
        self._arrays = {name: np.empty(_LEAST, kind) for name, kind in self._types.items()}
        self._room = _LEAST
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, name: str) -> Array:
        """Return a column, as long as there are rows; writing to it changes the column."""
        return self._arrays[name][: self._rows]

    def append(self, **values: Any) -> int:
        """Add a row, and return its position."""
        row = self._rows
        if row == self._room:
            self._reserve(row + 1)
        for name, value in values.items():
            self._arrays[name][row] = value
        self._rows = row + 1
        return row

    def extend(self, values: Mapping[str, Array]) -> None:
        """Add rows: *values* holds each column's, all of one length."""
        (more,) = {len(values[name]) for name in self._types}
        self._reserve(self._rows + more)
        for name in self._types:
            self._arrays[name][self._rows : self._rows + more] = values[name]
        self._rows += more

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Leave out the rows where the mask is False; the others move together."""
        kept = int(np.count_nonzero(rows))
        room = max(_LEAST, kept)
        for name, array in self._arrays.items():
            fresh = np.empty(room, array.dtype)
            fresh[:kept] = array[: self._rows][rows]
            self._arrays[name] = fresh
        self._rows, self._room = kept, room

    def _reserve(self, rows: int) -> None:
        if rows <= self._room:
            return
        room = max(rows, 2 * self._room)
        for name, array in self._arrays.items():
            fresh = np.empty(room, array.dtype)
            fresh[: self._rows] = array[: self._rows]
            self._arrays[name] = fresh
        self._room = room


class Order:
    """Rows sorted by a key, equal keys in the order of rows."""

    def __init__(self) -> None:
        self._rows = np.empty(_LEAST, np.int32)
        self._count = 0
        self._last: int | None = None
        self._late: list[int] = []

    def append(self, row: int, key: int) -> None:
        """Take up a row that is higher than all before."""
        if self._last is not None and key < self._last:
            self._late.append(row)
            return
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[self._count] = row
        self._count += 1
        self._last = key

    def sorted(self, keys: Array) -> NDArray[np.int32]:
        """Return all rows in their order."""
        if self._late:
            self._merge(keys)
        return self._rows[: self._count]

    def fill(self, keys: Array) -> None:
        """Take up all rows that *keys* has, in place of those that were."""
        self._rows = np.argsort(keys, kind="stable").astype(np.int32)
        self._count = len(self._rows)
        self._last = int(keys[self._rows[-1]]) if self._count else None
        self._late = []
        if not self._count:
            self._rows = np.empty(_LEAST, np.int32)

    def _merge(self, keys: Array) -> None:
        late = np.array(self._late, np.int32)
        late = late[np.argsort(keys[late], kind="stable")]
        whole = self._rows[: self._count]
        # What was in time and has the same key came before: its key would else have been too low itself.
        self._rows = np.insert(whole, np.searchsorted(keys[whole], keys[late], side="right"), late)
        self._count = len(self._rows)
        self._late = []


class Vocabulary:
    """Texts with a number each, in the order in which they came."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        self._texts = list(texts)
        self._numbers = {text: number for number, text in enumerate(self._texts)}

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __getitem__(self, number: int) -> str:
        return self._texts[number]

    def find(self, text: str) -> int:
        """Return a text's number, -1 where it has none."""
        return self._numbers.get(text, -1)

    def number(self, text: str) -> int:
        """Return a text's number, the next one where it has none yet."""
        number = self._numbers.setdefault(text, len(self._texts))
        if number == len(self._texts):
            self._texts.append(text)
        return number


def packed(texts: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return texts as UTF-8 in one array, and where each ends, in characters."""
    listed = list(texts)
    # A lone surrogate is no text, but whoever has one shall not lose a snapshot for it.
    whole = "".join(listed).encode("utf-8", "surrogatepass")
    ends = np.cumsum(np.fromiter(map(len, listed), np.int64, len(listed)))
    return np.frombuffer(whole, np.uint8), ends


def unpacked(whole: NDArray[np.uint8], ends: NDArray[np.int64]) -> list[str]:
    """Return the texts that `packed` made arrays of."""
    text = whole.tobytes().decode("utf-8", "surrogatepass")
    places = [0, *ends.tolist()]
    if places[-1] != len(text) or (np.diff(ends, prepend=0) < 0).any():
        raise ValueError("texts end elsewhere than is said")
    return [text[first:end] for first, end in itertools.pairwise(places)]
