"""Short keys of imported items, which the notes of a store contain, and batches of items."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
KEY_BYTES: Final = 12


def item_key(one: str) -> bytes:
    """Return a short digest of a long text or of an id."""
    return hashlib.sha256(one.encode("utf-8", "surrogatepass")).digest()[:KEY_BYTES]


def join_keys(keys: Iterable[bytes]) -> bytes:
    """Return the keys in a deterministic order as one text of bytes, deduplicated."""
    return b"".join(sorted(set(keys)))


def split_keys(data: bytes) -> set[bytes]:
    """Return the keys that `join_keys` joined."""
    return {data[start : start + KEY_BYTES] for start in range(0, len(data), KEY_BYTES)}


def split_chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield parts of at most *size* items."""
    return (items[start : start + size] for start in range(0, len(items), size))
