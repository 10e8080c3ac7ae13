"""A memory store that searches by keywords only, for use while the embedder is not loaded."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np

from mama_structs.memory.embedding.protocol import QueryVectors, unadjusted_query
from mama_structs.memory.graph.results import Hit
from mama_structs.memory.search.search_request import SearchQuery
from mama_structs.memory.store.memory_store import MemoryStore

# Calibrated on half `a` of tests/data/month: a lexical relevance of 0.2 is about as precise as 0.6 with the encoder.
# The precisions are 0.77 and 0.82. On half `b`, which was not used for calibration, they are 0.52 and 0.61.
RELEVANCE_SCALE: Final = 3.0


class LexicalMemoryStore(MemoryStore):
    """A memory store without an embedder: every query is equally similar to all memories."""

    async def _embed_query(self, text: str) -> QueryVectors:  # noqa: ARG002 - as the other's
        return unadjusted_query(np.zeros(self.embedder.dimensions, np.float32))

    async def _hits(self, asked: SearchQuery, room: int | None) -> list[Hit]:
        """Search as `MemoryStore` does, with relevances rescaled for lexical matches."""
        hits = await super()._hits(asked, room)
        return [attrs.evolve(hit, relevance=min(1.0, RELEVANCE_SCALE * hit.relevance)) for hit in hits]
