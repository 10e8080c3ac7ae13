"""
Search for newer memories on the subject of found ones, which replace them without a link.

The words that two memories have in common are weighted by their rarity in the store, so that a shared name counts more
than a shared verb.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import datetime
from typing import Final

import attrs
import numpy as np

from mama_structs.memory.embedding.protocol import nearest_queries
from mama_structs.memory.graph.results import Hit
from mama_structs.memory.graph.traversal import Successors
from mama_structs.memory.search.passages import MAX_WHOLE_CHARS
from mama_structs.memory.search.query_rewriting import rewrite_first_person
from mama_structs.memory.types.duplicates import has_failed, has_same_words
from mama_structs.memory.types.engine import Prefetch, Reader
from mama_structs.memory.types.model import ORIGINS, LinkType, Memory, MemoryType, is_outcome_reason
from mama_structs.memory.types.text_analysis import query_terms

MAX_NEIGHBOURS: Final = 5
"""Number of nearest neighbours of the first memory that are compared."""
MIN_OVERLAP: Final = 0.1
"""
Minimum overlap of two memories on one subject.

For messages of ``tests/data/recall``, it finds 9 memories that answer and are not among the hits.
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
    query: str,
    has_other_value: Callable[[str, str], bool],
    shared_dimensions: int,
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
        reader,
        current,
        [*known.values()],
        query=query,
        has_other_value=has_other_value,
        shared_dimensions=shared_dimensions,
        valid_at=valid_at,
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
    ahead.sample()
    ahead.rarity({term: 1.0 for hit in hits for term in query_terms(_get_text(hit))})


def find_newer_statements(
    reader: Reader,
    hits: Mapping[int, Hit],
    candidates: Sequence[Hit],
    *,
    query: str,
    has_other_value: Callable[[str, str], bool],
    shared_dimensions: int,
    valid_at: datetime | None = None,
) -> dict[str, NewerStatement]:
    """
    Return, by id, the newer memory on the same subject, for each memory that has one.

    The newest memory with another value comes before others.

    Args:
        reader: Reads the neighbours of the first memory.
        hits: The memories with their passages, by node.
        candidates: Further memories to compare with, such as all hits of the search.
        query: The query of the search. A memory without another value is on the same subject only if it shares a word
            of the query: any two memories may share a name, or a word such as "two".
        has_other_value: Compares a newer text with an older one, and returns True if it states another value.
        shared_dimensions: Number of leading dimensions that the vectors of all texts have in common.
        valid_at: Memories that ended before this time are left out.

    """
    compared = {node: hit for node, hit in hits.items() if _can_compare(hit.memory, None)}
    if not compared:
        return {}
    texts = {hit.memory.id: _get_text(hit) for hit in (*candidates, *compared.values())}
    pool = {hit.memory.id: hit.memory for hit in candidates}
    # Reading the neighbours of all memories would take longer than a search, which has found most of them already.
    pool.update((memory.id, memory) for memory in _read_neighbours(reader, [*compared], shared_dimensions))
    newest_first = sorted(
        (memory for memory in pool.values() if _can_compare(memory, valid_at) and not has_failed(memory)),
        key=_get_age_key,
        reverse=True,
    )
    for memory in newest_first:
        texts.setdefault(memory.id, memory.content[:MAX_COMPARED_CHARS])

    # Analyse each text once, although a memory can be both a hit and a candidate, and skip texts of older memories.
    @functools.cache
    def terms_of(memory_id: str) -> Mapping[str, float]:
        return query_terms(texts[memory_id])

    rarities = reader.rarity({term: 1.0 for hit in compared.values() for term in terms_of(hit.memory.id)})
    # Inversely proportional to the number of memories that contain the word.
    weights = {term: math.exp(rarity) for term, rarity in rarities.items()}
    query_words = query_terms(rewrite_first_person(query) or query).keys()
    newer: dict[str, NewerStatement] = {}
    for hit in compared.values():
        own = {term: weights.get(term, 0.0) for term in terms_of(hit.memory.id)}
        overlaps = {
            one.id: _compute_overlap(own, terms_of(one.id)) for one in newest_first if _may_replace(one, hit.memory)
        }
        alike = [one for one in newest_first if overlaps.get(one.id, 0.0) >= MIN_OVERLAP]
        on_subject = {one.id for one in alike if query_words & own.keys() & terms_of(one.id).keys()}
        found = _select_newer(hit.memory, alike, overlaps, on_subject, has_other_value)
        if found is not None:
            newer[hit.memory.id] = found
    return newer


def _select_newer(
    memory: Memory,
    alike: Sequence[Memory],
    overlaps: Mapping[str, float],
    on_subject: Container[str],
    has_other_value: Callable[[str, str], bool],
) -> NewerStatement | None:
    """Return the newest replacement among later memories, else a short memory whose id is in *on_subject*."""
    alike = [one for one in alike if not has_same_words(one.content, memory.content)]
    replacement = next((one for one in alike if has_other_value(one.content, memory.content)), None)
    if replacement is not None:
        return NewerStatement(replacement, is_replacement=True)
    # Long texts have words in common with any text.
    short = [
        one for one in alike if one.id in on_subject and max(len(one.content), len(memory.content)) <= MAX_WHOLE_CHARS
    ]
    nearest = max(short, key=lambda one: overlaps[one.id], default=None)
    return None if nearest is None else NewerStatement(nearest, is_replacement=False)


def _get_text(hit: Hit) -> str:
    return hit.memory.content[:MAX_COMPARED_CHARS] if hit.passage is None else hit.memory.content[slice(*hit.passage)]


def _get_age_key(memory: Memory) -> tuple[datetime, str]:
    return memory.created_at, memory.id


def _may_replace(one: Memory, other: Memory) -> bool:
    """Return True if a memory is newer than *other* and at least as trusted."""
    return (
        one.namespace == other.namespace
        and _get_age_key(one) > _get_age_key(other)
        and ORIGINS.index(one.trust) <= ORIGINS.index(other.trust)
    )


def _compute_overlap(own: Mapping[str, float], terms: Mapping[str, float]) -> float:
    """Return the share of the weight of a text's *own* terms that also occur in *terms*."""
    return sum([weight for term, weight in own.items() if term in terms]) / max(sum(own.values()), 1e-9)


def _can_compare(memory: Memory, at: datetime | None) -> bool:
    is_valid = at is None or memory.valid_until is None or at < memory.valid_until
    return memory.type in _COMPARED_TYPES and is_valid and not is_outcome_reason(memory)


def _read_neighbours(reader: Reader, nodes: Sequence[int], shared_dimensions: int) -> list[Memory]:
    """Return the current nearest neighbours of the first vector of the first node, without *nodes*."""
    vectors = reader.vectors(nodes[0])
    if not len(vectors):
        return []
    queries = nearest_queries(vectors[0], reader.sample(), shared_dimensions)
    reader.expect(
        lambda ahead: (
            [ahead.nearest(query, MAX_NEIGHBOURS + 1) for query in queries],
            ahead.links(np.zeros(0, np.int64), "in", {LinkType.EVOLUTION}),
        )
    )
    near = [reader.nearest(query, MAX_NEIGHBOURS + 1).nodes for query in queries]
    found = sorted({*np.concatenate(near).tolist()} - {*nodes})
    replaced = Successors(reader).newest(found) if found else {}
    found = [one for one in found if one not in replaced]
    return reader.get(found) if found else []
