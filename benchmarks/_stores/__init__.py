"""
Drivers with which the memory suite tests the stores of `stores.py`, one module each.

A module is imported in the environment of its peer, together with this package but without its dependencies.
Each driver follows the documentation of its peer. All use the vectors of the same `HashEmbedder`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mama_structs.memory.embedding.hash_embedder import HashEmbedder

EMBEDDER = HashEmbedder(dimensions=63)
DIMENSIONS = EMBEDDER.dimensions + 1
NO_PAST = "a search sees the present only"


def embedded(texts: Sequence[str]) -> list[list[float]]:
    """
    Return vectors as lists of floats. No two of them have a negative cosine.

    Cosines of text embeddings are rarely negative, and mem0 always drops hits with a negative cosine.
    """
    vectors = EMBEDDER.embed(list(texts), kind="document")
    return (np.hstack([vectors, np.ones((len(vectors), 1), np.float32)]) / np.sqrt(2)).tolist()
