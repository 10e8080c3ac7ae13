"""Which memories say the same, word for word (DESIGN section 6a): told by a number that is kept beside each of them."""

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
"""The wording of what cannot be a copy."""

_FINAL: Final = ".!? "


def wording(memory: Memory) -> int:
    """Return a number below 2^63 that memories have in common which are copies of each other, and hardly any others."""
    if memory.type in SINGULAR:
        return NO_WORDING
    whole = "\0".join(_said(memory)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(whole, digest_size=8).digest()) >> 1 or 1


def standing_copy(reader: Reader, memory: Memory) -> Memory | None:
    """Return the first memory that another one is a copy of, None where it is no copy of any that still stands."""
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
    """Tell whether two memories say the same, word for word, and neither has failed."""
    same = (one.namespace, one.trust, one.valid_until) == (other.namespace, other.trust, other.valid_until)
    # Most differ in the first that is looked at, and a text may be long.
    return same and not has_failed(one) and all(mine == its for mine, its in zip_longest(_said(one), _said(other)))


def same_words(one: str, other: str) -> bool:
    """Tell whether two texts have the same words in the same order, as copies have."""
    return _plain(one) == _plain(other)


def has_failed(memory: Memory) -> bool:
    """Tell whether a memory is a decision that came to nothing."""
    return isinstance(memory.metadata, DecisionMetadata) and memory.metadata.outcome is Outcome.FAILED


def superseded(reader: Reader, nodes: Nodes) -> set[int]:
    """Return those of *nodes* in whose place another memory stands."""
    return set(reader.links(nodes, "in", [LinkType.EVOLUTION]).targets.tolist()) if len(nodes) else set()


def repeated(memory: Memory, at: datetime) -> Memory:
    """Return a memory that was saved once more; a clock may have stepped back since it was made."""
    return attrs.evolve(memory, repeats=tuple(sorted((*memory.repeats, max(at, memory.created_at)))))


def _is_followed(reader: Reader, node: int, memory: Memory, copies: Nodes) -> bool:
    """Tell whether another decision of its topic, which says something else, was made after a memory."""
    if memory.topic is None:
        return False
    where = Filter(types=frozenset({MemoryType.DECISION}), topic=memory.topic, since=memory.created_at)
    later = np.setdiff1d(reader.window(where), copies)
    # What was made in the same millisecond came later if it was saved later.
    made = reader.facts(np.append(later, node)).created
    return bool(((made[:-1] > made[-1]) | (later > node)).any())


def _said(memory: Memory) -> Iterator[str]:
    """Give the texts in which copies do not differ, as far as they count."""
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
    """Return a text without what makes no other words of it: letter case, runs of blanks, final full stops."""
    return " ".join(normalize("NFC", text or "").lower().split()).rstrip(_FINAL)
