"""
Drivers of `mama_structs.testing.conformance.memory_suite` for what `stores.py` compares, one module each.

A module is imported in its peer's environment, with this package beside it, but not what this package needs.
Each does what that peer's own documentation says; vectors come from the same `HashEmbedder` for all.
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
    Return vectors as lists, which all take; no two are opposed.

    The cosines of a model's texts are seldom below zero, where mem0 leaves what is found out whatever it is told.
    """
    vectors = EMBEDDER.embed(list(texts), kind="document")
    return (np.hstack([vectors, np.ones((len(vectors), 1), np.float32)]) / np.sqrt(2)).tolist()
