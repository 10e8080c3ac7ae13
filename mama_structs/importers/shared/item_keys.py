"""Short digests of imported items, for the notes in a store, and a function that splits items into batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
KEY_BYTES: Final = 12


def item_key(one: str) -> bytes:
    """Return a short digest of an id or a text."""
    return hashlib.sha256(one.encode("utf-8", "surrogatepass")).digest()[:KEY_BYTES]


def join_keys(keys: Iterable[bytes]) -> bytes:
    """Return the deduplicated keys, sorted and concatenated."""
    return b"".join(sorted(set(keys)))


def split_keys(data: bytes) -> set[bytes]:
    """Return the keys that `join_keys` concatenated."""
    return {data[start : start + KEY_BYTES] for start in range(0, len(data), KEY_BYTES)}


def split_chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Split items into consecutive parts of at most *size* items."""
    return (items[start : start + size] for start in range(0, len(items), size))
