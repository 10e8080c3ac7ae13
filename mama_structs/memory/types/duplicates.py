"""Detection of exact duplicates by a fingerprint stored with each memory (DESIGN, 6a)."""

from __future__ import annotations

import re
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

# Typographic signs in one form. Quotation marks of any form are equal.
_SIGNS: Final = str.maketrans(
    dict.fromkeys("\u2019\u2018\u201a\u201b\u2032`\u00b4", "'")
    | dict.fromkeys(
        "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033\u300c\u300d\u300e\u300f\u300a\u300b\u3008\u3009\u2039\u203a", '"'
    )
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | {
        "\u2026": "...",
        "\u3002": ". ",
        "\u3001": ", ",
        "\uff0c": ", ",
        "\uff1a": ": ",
        "\uff1b": "; ",
        "\uff01": "! ",
        "\uff1f": "? ",
    }
)
# Both patterns begin with a sign and look behind it afterwards, because a search tests a pattern that begins with a
# condition at each character of a text.
_QUOTE_PATTERN: Final = re.compile(r'"(?<!\d")')
# Each alternative starts at the beginning of a run of signs, so that the search takes linear time.
_IGNORED_PUNCTUATION_PATTERN: Final = re.compile(
    r"[.,;:!?-](?:(?<![\d.,;:!?-][\s\S])[.,;:!?-]*+(?=\s(?!\d)|$)"
    r"|(?<=[^\W\d][\s\S])[.,;:!?-]*+(?=\s)"
    r"|(?<=[.!?])(?<![.!?][\s\S])[.!?]*+$)"
)


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


def normalize_wording(text: str) -> str:
    """
    Return a text in the form in which duplicates are equal (DESIGN 7.9).

    Letter case, runs of whitespace, the form of quotation marks, dashes and ellipses, and punctuation after words are
    ignored. Punctuation next to a digit counts, except at the end of the text.
    """
    plain = normalize("NFKC", text.translate(_SIGNS)).casefold().strip()
    return " ".join(_IGNORED_PUNCTUATION_PATTERN.sub(" ", _QUOTE_PATTERN.sub("'", plain)).split())


def has_same_words(one: str, other: str) -> bool:
    """Return True if two texts are equal in the form of `normalize_wording`."""
    return normalize_wording(one) == normalize_wording(other)


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
    yield normalize_wording(memory.content)
    if isinstance(metadata, DecisionMetadata):
        yield normalize_wording(metadata.reasoning)
        # Skip empty fields, so that fingerprints stored by earlier versions stay valid.
        if metadata.source or metadata.tags:
            yield from (normalize_wording(metadata.source or ""), *map(normalize_wording, metadata.tags))
    elif isinstance(metadata, InsightMetadata):
        yield from (
            normalize_wording(metadata.category or ""),
            normalize_wording(metadata.source or ""),
            *map(normalize_wording, metadata.tags),
        )
    elif isinstance(metadata, ContextMetadata):
        yield from (normalize_wording(metadata.source or ""), *map(normalize_wording, metadata.tags))
