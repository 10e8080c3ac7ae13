"""A memory store that searches by keywords only, for use while the embedder is not loaded."""

from __future__ import annotations

import numpy as np

from mama_structs.memory.embedding.protocol import QueryVectors, unadjusted_query
from mama_structs.memory.store.memory_store import MemoryStore


class LexicalMemoryStore(MemoryStore):
    """A memory store without an embedder: every query is equally similar to all memories."""

    async def _embed_query(self, text: str) -> QueryVectors:  # noqa: ARG002 - as the other's
        return unadjusted_query(np.zeros(self.embedder.dimensions, np.float32))
