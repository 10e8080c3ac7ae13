"""Detection of exact duplicates by a fingerprint stored with each memory (DESIGN, 6a)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from datetime import datetime
from hashlib import blake2b
from itertools import zip_longest
from typing import Final

import attrs
import numpy as np

from mama_structs.memory.types.engine import ALIKE, Filter, Nodes, Reader
from mama_structs.memory.types.model import (
    SINGULAR,
    ContextMetadata,
    DecisionMetadata,
    InsightMetadata,
    LinkType,
    Memory,
    MemoryType,
    Outcome,
)
from mama_structs.memory.types.text_analysis import normalize

NO_WORDING: Final = 0
"""Fingerprint of memories that are never duplicates."""

_FINAL: Final = ".!? "


def wording(memory: Memory) -> int:
    """
    Return the duplicate fingerprint of a memory, a hash below 2^63.

    Duplicates have equal fingerprints.
    """
    if memory.type in SINGULAR:
        return NO_WORDING
    whole = "\0".join(_said(memory)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(whole, digest_size=8).digest()) >> 1 or 1


def standing_copy(reader: Reader, memory: Memory) -> Memory | None:
    """Return the first current memory that *memory* duplicates, or None."""
    if memory.type in SINGULAR:
        return None
    (nodes,) = reader.alike([wording(memory)])
    nodes = nodes[:ALIKE]
    copies = [
        (node, one)
        for node, one in zip(nodes.tolist(), reader.get(nodes), strict=True)
        if is_copy(one, memory) and one.created_at <= memory.created_at
    ]
    gone = superseded(reader, nodes)
    return next((one for node, one in copies if node not in gone and not _is_followed(reader, node, one, nodes)), None)


def is_copy(one: Memory, other: Memory) -> bool:
    """Return True if two memories have the same words and metadata, and *one* has not failed."""
    same = (one.namespace, one.trust, one.valid_until) == (other.namespace, other.trust, other.valid_until)
    # Compare lazily: most pairs differ in the first field, and texts may be long.
    return same and not has_failed(one) and all(mine == its for mine, its in zip_longest(_said(one), _said(other)))


def same_words(one: str, other: str) -> bool:
    """Return True if two texts have the same words in the same order."""
    return _plain(one) == _plain(other)


def has_failed(memory: Memory) -> bool:
    """Return True if the memory is a decision with the outcome `FAILED`."""
    return isinstance(memory.metadata, DecisionMetadata) and memory.metadata.outcome is Outcome.FAILED


def superseded(reader: Reader, nodes: Nodes) -> set[int]:
    """Return the subset of *nodes* that newer memories supersede."""
    return set(reader.links(nodes, "in", [LinkType.EVOLUTION]).targets.tolist()) if len(nodes) else set()


def repeated(memory: Memory, at: datetime) -> Memory:
    """
    Return the memory with a repetition recorded.

    Tolerates a clock that stepped back since its creation.
    """
    return attrs.evolve(memory, repeats=tuple(sorted((*memory.repeats, max(at, memory.created_at)))))


def _is_followed(reader: Reader, node: int, memory: Memory, copies: Nodes) -> bool:
    """Return True if the memory's topic has a later decision that is not among its copies."""
    if memory.topic is None:
        return False
    where = Filter(types=frozenset({MemoryType.DECISION}), topic=memory.topic, since=memory.created_at)
    later = np.setdiff1d(reader.window(where), copies)
    # Within the same millisecond, node numbers give the order of saving.
    made = reader.facts(np.append(later, node)).created
    return bool(((made[:-1] > made[-1]) | (later > node)).any())


def _said(memory: Memory) -> Iterator[str]:
    """Yield the normalized texts that duplicates have in common."""
    metadata = memory.metadata
    yield memory.type.value
    yield unicodedata.normalize("NFC", memory.topic or "")
    yield memory.origin
    yield _plain(memory.content)
    if isinstance(metadata, DecisionMetadata):
        yield _plain(metadata.reasoning)
    elif isinstance(metadata, InsightMetadata):
        yield from (_plain(metadata.category), _plain(metadata.source), *map(_plain, metadata.tags))
    elif isinstance(metadata, ContextMetadata):
        yield _plain(metadata.source)


def _plain(text: str | None) -> str:
    """Return a text normalized for letter case, whitespace and final punctuation."""
    return " ".join(normalize("NFC", text or "").lower().split()).rstrip(_FINAL)
