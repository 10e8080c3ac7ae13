"""What search is compared with: BM25, cosines, and the usual ways to join the two, over the same texts and vectors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedded.words import WordIndex
from mama_structs.memory.embedding.protocol import Embedder, Kind
from mama_structs.memory.embedding.service import EmbeddingService
from mama_structs.memory.text import query_terms, weighted_terms

RIVALS: Final = ("BM25", "vectors", "RRF", "sum 0.3", "sum 0.4", "sum 0.5", "sum 0.6", "sum 0.7")
"""BM25 with syllable bigrams; cosines; reciprocal ranks (k = 60); sums of scores, with this share for the cosines."""

Document = tuple[str, datetime, tuple[str, ...]]
"""A text, when it was written, and the labelled memories that it stands for."""


class Remembering:
    """
    An embedder that works out each text once, whoever asks for it.

    Args:
        embedder: The one that does the work.

    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: dict[tuple[Kind, str], NDArray[np.float32]] = {}
        # Set on the object: what only `__getattr__` finds is no part of a protocol from Python 3.12 on.
        self.name, self.dimensions = embedder.name, embedder.dimensions
        self.max_tokens, self.calibration = embedder.max_tokens, embedder.calibration

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> NDArray[np.float32]:
        """Return a vector for each text."""
        new = [text for text in dict.fromkeys(texts) if (kind, text) not in self._known]
        if new:
            vectors = np.asarray(self._embedder.embed(new, kind=kind), np.float32)
            self._known.update({(kind, text): vector for text, vector in zip(new, vectors, strict=True)})
        return np.array([self._known[kind, text] for text in texts], np.float32)


@attrs.frozen(eq=False)
class Documents:
    """
    Texts in an index of words and a matrix of vectors.

    Args:
        documents: In order of time.
        words: Their index.
        vectors: Of all pieces.
        owners: The document of each piece.

    """

    documents: Sequence[Document]
    words: WordIndex
    vectors: NDArray[np.float32]
    owners: NDArray[np.int64]

    @classmethod
    async def of(cls, documents: Sequence[Document], embedding: EmbeddingService) -> Documents:
        """Index *documents*."""
        ordered = sorted(documents, key=lambda document: document[1])
        words = WordIndex()
        for number, (text, _, _) in enumerate(ordered):
            words.add(number, weighted_terms(text))
        pieces = await embedding.documents([text for text, _, _ in ordered])
        owners = np.repeat(np.arange(len(ordered)), [len(one) for one in pieces])
        return cls(ordered, words, np.concatenate(pieces), owners)

    def scores(self, text: str, vector: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the BM25 score and the best cosine of each document."""
        words = self.words.scores(query_terms(text), np.arange(len(self.documents)))
        cosines = np.full(len(self.documents), -1.0, np.float32)
        np.maximum.at(cosines, self.owners, self.vectors @ vector)
        return words.astype(np.float64), cosines.astype(np.float64)

    def best(
        self, name: str, text: str, vector: NDArray[np.float32], before: datetime, limit: int
    ) -> list[tuple[str, ...]]:
        """Return what a rival finds among the documents that were written before a moment."""
        count = sum(at < before for _, at, _ in self.documents)
        words, cosines = self.scores(text, vector)
        scores = _fused(name, words[:count], cosines[:count])
        order = np.argsort(-scores, kind="stable")[: 2 * limit]
        found = [self.documents[place][2] for place in order if name != "BM25" or scores[place] > 0]
        return list(dict.fromkeys(found))[:limit]


def _fused(name: str, words: NDArray[np.float64], cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    if name in {"BM25", "vectors"}:
        return words if name == "BM25" else cosines
    if name == "RRF":
        ranks = (np.argsort(np.argsort(-part, kind="stable"), kind="stable") for part in (words, cosines))
        first, second = (1 / (60 + 1 + rank) for rank in ranks)
        return np.where(words > 0, first, 0.0) + second
    share = float(name.removeprefix("sum "))
    return share * _spread(cosines) + (1 - share) * _spread(words)


def _spread(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return (scores - scores.min()) / max(float(np.ptp(scores)), 1e-9)
