"""
Search for newer memories on the subject of found ones, which replace them without a link.

The words that two memories have in common are weighted by their rarity in the store, so that a shared name counts more
than a shared verb.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import attrs
import numpy as np

from mama_structs.memory.graph.results import Hit
from mama_structs.memory.graph.traversal import Successors
from mama_structs.memory.search.passages import MAX_WHOLE_CHARS
from mama_structs.memory.types.duplicates import has_failed, has_same_words
from mama_structs.memory.types.engine import Prefetch, Reader
from mama_structs.memory.types.model import ORIGINS, LinkType, Memory, MemoryType, is_outcome_reason
from mama_structs.memory.types.text_analysis import query_terms

MAX_NEIGHBOURS: Final = 5
"""Number of nearest neighbours of the first memory that are compared."""
MIN_OVERLAP: Final = 0.1
"""
Minimum overlap of two memories on one subject.

Of the 24 first hits in ``tests/data/recall`` that are outdated, it finds the current memory of all. For 13 of the 149
other first hits it finds a newer memory that is not wanted.
"""
# Longer texts are compared by their passage, or by this many characters of their beginning.
MAX_COMPARED_CHARS: Final = 600

# A checkpoint describes a state of the work, so a newer one does not make its statements wrong.
_COMPARED_TYPES: Final = frozenset({MemoryType.DECISION, MemoryType.INSIGHT, MemoryType.CONTEXT})


@attrs.frozen
class NewerStatement:
    """A newer memory on the subject of another one. *is_replacement* is True if it states another value."""

    memory: Memory
    is_replacement: bool


def find_newer_hits(
    reader: Reader,
    hits: Sequence[Hit],
    others: Sequence[Hit],
    *,
    has_other_value: Callable[[str, str], bool],
    valid_at: datetime | None = None,
) -> dict[str, tuple[Hit, bool]]:
    """
    Return, by id, the newer memory on the subject of each hit, as a hit, and whether it states another value.

    The arguments are those of `find_newer_statements`.
    """
    reader.expect(lambda ahead: prefetch_newer(ahead, hits))
    nodes = zip(reader.find_many([hit.memory.id for hit in hits]), hits, strict=True)
    current = {node: hit for node, hit in nodes if node is not None and hit.superseded_by is None}
    known = {hit.memory.id: hit for hit in (*hits, *others) if hit.superseded_by is None}
    found = find_newer_statements(
        reader, current, [*known.values()], has_other_value=has_other_value, valid_at=valid_at
    )
    newer: dict[str, tuple[Hit, bool]] = {}
    for hit in current.values():
        if (one := found.get(hit.memory.id)) is not None:
            related = attrs.evolve(hit, memory=one.memory, path=(hit.memory.id,), duplicates=(), passage=None)
            newer[hit.memory.id] = known.get(one.memory.id, related), one.is_replacement
    return newer


def insert_newer(hits: Sequence[Hit], newer: Mapping[str, tuple[Hit, bool]]) -> list[Hit]:
    """Return hits with each replacement before the hit that it replaces, and other *newer* memories after all hits."""
    merged: dict[str, Hit] = {}
    for hit in hits:
        one, is_replacement = newer.get(hit.memory.id, (hit, False))
        if is_replacement:
            merged.setdefault(one.memory.id, one)
        merged.setdefault(hit.memory.id, hit)
    for one, _ in newer.values():
        merged.setdefault(one.memory.id, one)
    return [*merged.values()]


def prefetch_newer(ahead: Prefetch, hits: Sequence[Hit]) -> None:
    """Prefetch the data of *hits* that `find_newer_statements` reads first."""
    ahead.find_many([hit.memory.id for hit in hits])
    ahead.rarity({term: 1.0 for hit in hits for term in query_terms(_get_text(hit))})


def find_newer_statements(
    reader: Reader,
    hits: Mapping[int, Hit],
    candidates: Sequence[Hit],
    *,
    has_other_value: Callable[[str, str], bool],
    valid_at: datetime | None = None,
) -> dict[str, NewerStatement]:
    """
    Return, by id, the newer memory on the same subject, for each memory that has one.

    The newest memory with another value comes before others.

    Args:
        reader: Reads the neighbours of the first memory.
        hits: The memories with their passages, by node.
        candidates: Further memories to compare with, such as all hits of the search.
        has_other_value: Compares a newer text with an older one, and returns True if it states another value.
        valid_at: Memories that ended before this time are left out.

    """
    compared = {node: hit for node, hit in hits.items() if _can_compare(hit.memory, None)}
    if not compared:
        return {}
    texts = {hit.memory.id: _get_text(hit) for hit in (*candidates, *compared.values())}
    pool = {hit.memory.id: hit.memory for hit in candidates}
    # Reading the neighbours of all memories would take longer than a search, which has found most of them already.
    pool.update((memory.id, memory) for memory in _read_neighbours(reader, next(iter(compared))))
    newest_first = sorted(
        (memory for memory in pool.values() if _can_compare(memory, valid_at) and not has_failed(memory)),
        key=_get_age_key,
        reverse=True,
    )
    terms = {one.id: query_terms(texts.get(one.id, one.content[:MAX_COMPARED_CHARS])) for one in newest_first}
    asked = {hit.memory.id: query_terms(texts[hit.memory.id]) for hit in compared.values()}
    # Inversely proportional to the number of memories that contain the word.
    rarities = reader.rarity({term: 1.0 for own in asked.values() for term in own})
    weights = {term: math.exp(rarity) for term, rarity in rarities.items()}
    newer: dict[str, NewerStatement] = {}
    for hit in compared.values():
        later = [one for one in newest_first if _may_replace(one, hit.memory)]
        overlaps = {one.id: _compute_overlap(asked[hit.memory.id], terms[one.id], weights) for one in later}
        found = _select_newer(hit.memory, later, overlaps, has_other_value)
        if found is not None:
            newer[hit.memory.id] = found
    return newer


def _select_newer(
    memory: Memory, later: Sequence[Memory], overlaps: Mapping[str, float], has_other_value: Callable[[str, str], bool]
) -> NewerStatement | None:
    """Return the newest replacement among *later* memories, else a short memory on the same subject."""
    alike = [one for one in later if overlaps[one.id] >= MIN_OVERLAP]
    replacement = next((one for one in alike if has_other_value(one.content, memory.content)), None)
    if replacement is not None:
        return NewerStatement(replacement, is_replacement=True)
    # Long texts have words in common with any text.
    short = [one for one in alike if max(len(one.content), len(memory.content)) <= MAX_WHOLE_CHARS]
    nearest = max(short, key=lambda one: overlaps[one.id], default=None)
    return None if nearest is None else NewerStatement(nearest, is_replacement=False)


def _get_text(hit: Hit) -> str:
    return hit.memory.content[:MAX_COMPARED_CHARS] if hit.passage is None else hit.memory.content[slice(*hit.passage)]


def _get_age_key(memory: Memory) -> tuple[datetime, str]:
    return memory.created_at, memory.id


def _may_replace(one: Memory, other: Memory) -> bool:
    """Return True if a memory is newer than *other*, at least as trusted, and no copy of it."""
    return (
        one.namespace == other.namespace
        and _get_age_key(one) > _get_age_key(other)
        and ORIGINS.index(one.trust) <= ORIGINS.index(other.trust)
        and not has_same_words(one.content, other.content)
    )


def _compute_overlap(own: Iterable[str], terms: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the share of the weight of a text's *own* terms that also occur in *terms*."""
    whole = sum(weights.get(term, 0.0) for term in own)
    return sum(weights.get(term, 0.0) for term in own if term in terms) / max(whole, 1e-9)


def _can_compare(memory: Memory, at: datetime | None) -> bool:
    is_valid = at is None or memory.valid_until is None or at < memory.valid_until
    return memory.type in _COMPARED_TYPES and is_valid and not is_outcome_reason(memory)


def _read_neighbours(reader: Reader, node: int) -> list[Memory]:
    """Return the current nearest neighbours of the first vector of *node*."""
    vectors = reader.vectors(node)
    if not len(vectors):
        return []
    reader.expect(
        lambda ahead: (
            ahead.nearest(vectors[0], MAX_NEIGHBOURS + 1),
            ahead.links(np.zeros(0, np.int64), "in", {LinkType.EVOLUTION}),
        )
    )
    # A memory is its own nearest neighbour.
    found = sorted({*reader.nearest(vectors[0], MAX_NEIGHBOURS + 1).nodes.tolist()} - {node})
    replaced = Successors(reader).newest(found) if found else {}
    found = [one for one in found if one not in replaced]
    return reader.get(found) if found else []
