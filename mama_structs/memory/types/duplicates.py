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

from mama_structs.memory.types.engine import MAX_DUPLICATES, EngineFilter, Nodes, Reader
from mama_structs.memory.types.model import (
    TYPES_WITHOUT_DUPLICATES,
    ContextMetadata,
    DecisionMetadata,
    InsightMetadata,
    LinkType,
    Memory,
    MemoryType,
    Outcome,
)
from mama_structs.memory.types.text_analysis import normalize

NO_FINGERPRINT: Final = 0
"""Fingerprint of memories that are never duplicates."""

_TRAILING_CHARS: Final = ".!? "


def duplicate_fingerprint(memory: Memory) -> int:
    """
    Return the duplicate fingerprint of a memory, a hash below 2^63.

    Duplicates have equal fingerprints.
    """
    if memory.type in TYPES_WITHOUT_DUPLICATES:
        return NO_FINGERPRINT
    whole = "\0".join(_fingerprint_parts(memory)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(whole, digest_size=8).digest()) >> 1 or 1


def find_current_duplicate(reader: Reader, memory: Memory) -> Memory | None:
    """Return the first current memory that *memory* duplicates, or None."""
    if memory.type in TYPES_WITHOUT_DUPLICATES:
        return None
    (nodes,) = reader.duplicates([duplicate_fingerprint(memory)])
    nodes = nodes[:MAX_DUPLICATES]
    copies = [
        (node, one)
        for node, one in zip(nodes.tolist(), reader.get(nodes), strict=True)
        if is_duplicate(one, memory) and one.created_at <= memory.created_at
    ]
    gone = superseded_nodes(reader, nodes)
    return next(
        (one for node, one in copies if node not in gone and not _has_later_decision(reader, node, one, nodes)), None
    )


def is_duplicate(existing: Memory, candidate: Memory) -> bool:
    """Return True if two memories have the same words and metadata, and *existing* is not a failed decision."""
    same = (existing.namespace, existing.trust, existing.valid_until) == (
        candidate.namespace,
        candidate.trust,
        candidate.valid_until,
    )
    # The parts are computed lazily, so most pairs are rejected before their long texts are normalized.
    return (
        same
        and not has_failed(existing)
        and all(mine == its for mine, its in zip_longest(_fingerprint_parts(existing), _fingerprint_parts(candidate)))
    )


def has_same_words(one: str, other: str) -> bool:
    """Return True if two texts are equal except for case, whitespace and final punctuation."""
    return _normalize_text(one) == _normalize_text(other)


def has_failed(memory: Memory) -> bool:
    """Return True if the memory is a decision with the outcome `FAILED`."""
    return isinstance(memory.metadata, DecisionMetadata) and memory.metadata.outcome is Outcome.FAILED


def superseded_nodes(reader: Reader, nodes: Nodes) -> set[int]:
    """Return the subset of *nodes* that newer memories supersede."""
    return set(reader.links(nodes, "in", [LinkType.EVOLUTION]).targets.tolist()) if len(nodes) else set()


def with_repetition(memory: Memory, at: datetime) -> Memory:
    """
    Return the memory with *at* added to its repetition times.

    If the clock stepped back, so that *at* precedes the memory's creation, the creation time is added instead.
    """
    return attrs.evolve(memory, repeated_at=tuple(sorted((*memory.repeated_at, max(at, memory.created_at)))))


def _has_later_decision(reader: Reader, node: int, memory: Memory, copies: Nodes) -> bool:
    """Return True if the memory's topic has a later decision that is not among *copies*."""
    if memory.topic is None:
        return False
    where = EngineFilter(types=frozenset({MemoryType.DECISION}), topic=memory.topic, since=memory.created_at)
    later = np.setdiff1d(reader.window(where), copies)
    # Node numbers order decisions that were created within the same millisecond.
    made = reader.facts(np.append(later, node)).created
    return bool(((made[:-1] > made[-1]) | (later > node)).any())


def _fingerprint_parts(memory: Memory) -> Iterator[str]:
    """Yield the normalized texts that must be equal in duplicates."""
    metadata = memory.metadata
    yield memory.type.value
    yield unicodedata.normalize("NFC", memory.topic or "")
    yield memory.origin
    yield _normalize_text(memory.content)
    if isinstance(metadata, DecisionMetadata):
        yield _normalize_text(metadata.reasoning)
        # Skip empty fields, so that fingerprints stored by earlier versions stay valid.
        if metadata.source or metadata.tags:
            yield from (_normalize_text(metadata.source), *map(_normalize_text, metadata.tags))
    elif isinstance(metadata, InsightMetadata):
        yield from (
            _normalize_text(metadata.category),
            _normalize_text(metadata.source),
            *map(_normalize_text, metadata.tags),
        )
    elif isinstance(metadata, ContextMetadata):
        yield from (_normalize_text(metadata.source), *map(_normalize_text, metadata.tags))


def _normalize_text(text: str | None) -> str:
    """Return a text normalized for letter case, whitespace and final punctuation."""
    return " ".join(normalize("NFC", text or "").lower().split()).rstrip(_TRAILING_CHARS)
