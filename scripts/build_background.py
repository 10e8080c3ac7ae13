"""
Compute the vectors of the background messages of `SentenceEmbedder`.

``python scripts/build_background.py`` writes ``background.npy`` beside ``background.json``.
Run it after a change of the messages or of the models.
"""

from __future__ import annotations

import numpy as np

from mama_structs.memory.embedding.background import VECTORS_PATH, compute_background
from mama_structs.memory.embedding.sentence_embedder import SentenceEmbedder


def main() -> None:
    """Write the file."""
    vectors = compute_background(SentenceEmbedder())
    np.save(VECTORS_PATH, vectors, allow_pickle=False)
    print(f"{VECTORS_PATH}: {vectors.shape}, largest component {np.abs(vectors).max()} steps")


if __name__ == "__main__":
    main()
