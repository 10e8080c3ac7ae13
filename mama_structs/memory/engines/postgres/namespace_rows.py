"""Rows of memories and links on a server, and the head row of a namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import attrs
import msgspec

from mama_structs.memory.types.codec import MAX_LENGTH_TERMS, MAX_TERM_COUNT_STEPS, TERM_COUNT_STEP
from mama_structs.memory.types.engine import EmbedderRecord
from mama_structs.memory.types.model import MemoryType
from mama_structs.memory.types.text_analysis import ANALYSIS_VERSION

decode_embedder: Final = msgspec.json.Decoder(EmbedderRecord).decode


@attrs.frozen
class PostgresNamespaceHead:
    """State of a whole namespace, from its head row."""

    change: int = 0
    next_node: int = 0
    length: int = 0
    link_count: int = 0
    chunk_count: int = 0
    maintained_at: int = 0
    analysis: int = ANALYSIS_VERSION
    half_precision: bool = False
    # None if there is no vector index, False if its build is not complete.
    index: bool | None = None
    types: tuple[int, ...] = (0,) * len(MemoryType)
    embedder: EmbedderRecord | None = None

    @classmethod
    def from_row(cls, row: Any, default: PostgresNamespaceHead) -> PostgresNamespaceHead:
        """Return the state from a result row, or *default* if the namespace is empty."""
        change, next_node, length, links, pieces, maintained_at, analysis, half, index, *types = row.numbers
        text = row.texts[0]
        if text is None:
            return attrs.evolve(default, change=change)
        return cls(
            change,
            next_node,
            length,
            links,
            pieces,
            maintained_at,
            analysis,
            half_precision=bool(half),
            index=None if index is None else bool(index),
            types=tuple(types),
            embedder=decode_embedder(text),
        )

    @property
    def memory_count(self) -> int:
        """Number of memories."""
        return sum(self.types)


class PostgresMemoryRow(NamedTuple):
    """
    Columns of a memory without its text.

    The length is in tenths of a term.
    """

    memory_id: str
    topic: str | None
    created: int
    type: int
    scripts: int
    asking: int
    ends: int
    origin: int
    trust: int
    wording: int
    length: int


class LinkRow(NamedTuple):
    """Columns of a link, as in `LinkTable`, and its relationship word."""

    source: int
    target: int
    type: int
    creator: int
    created: int
    confidence: float
    word: str


def to_term_counts(terms: Mapping[str, float]) -> dict[str, int]:
    """Convert weights of terms to counts, in tenths of an occurrence."""
    return {term: min(max(round(weight / TERM_COUNT_STEP), 1), MAX_TERM_COUNT_STEPS) for term, weight in terms.items()}


def text_length(terms: Mapping[str, float]) -> int:
    """Return the length of a text with these terms, in tenths of a term."""
    return min(
        sum(max(round(weight / TERM_COUNT_STEP), 1) for weight in terms.values()),
        round(MAX_LENGTH_TERMS / TERM_COUNT_STEP),
    )
