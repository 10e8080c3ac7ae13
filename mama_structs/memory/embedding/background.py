"""Vectors of unrelated messages in each language, to which similarities are compared."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedding.protocol import Embedder, Vectors
from mama_structs.memory.types.languages import LANGUAGES

VECTORS_PATH: Final = Path(__file__).with_name("background.npy")
STEPS: Final = 640
"""Number of steps per 1 of a component in the file. The largest component of the messages is below 127 steps."""


class Background:
    """
    Unrelated messages in one language.

    Args:
        vectors: Their vectors, float32 of shape (messages, dimensions).
        count: Number of different messages. If there are more vectors, they are translations in the same order.

    """

    def __init__(self, vectors: Vectors, *, count: int | None = None) -> None:
        self.vectors = vectors
        self.mean: Vectors = vectors.mean(axis=0)
        """Mean vector, shorter than 1."""
        self._directions = _normalize(vectors - self.mean)
        similarities = self._directions @ self._directions.T
        message = np.arange(len(vectors)) % (count or len(vectors))
        similarities[message[:, np.newaxis] == message] = -1.0
        self._usual = float(np.median(similarities.max(axis=1)))

    def proximity(self, vector: Vectors) -> float:
        """
        Return the similarity of a message to the nearest of these, minus the usual similarity of these to each other.

        It is the cosine of the differences from the mean, because the style of questions differs between languages.
        """
        return float((self._directions @ _normalize(vector - self.mean)).max()) - self._usual


def _normalize(vectors: Vectors) -> Vectors:
    unit: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), np.finfo(np.float32).tiny)
    return unit


def load_background_messages() -> dict[str, list[str]]:
    """
    Return messages to an assistant that are unrelated to typical memories, by language.

    They are greetings, small talk, tasks and questions about general knowledge.
    """
    text = Path(__file__).with_name("background.json").read_text(encoding="utf-8")
    messages: dict[str, list[str]] = json.loads(text)
    return messages


def compute_background(embedder: Embedder) -> NDArray[np.int8]:
    """
    Return the vectors of the messages in steps of 1 / `STEPS`.

    Returns:
        Shape (languages, messages, dimensions), in the order of `LANGUAGES`.

    """
    messages = load_background_messages()
    vectors = np.stack([np.asarray(embedder.embed(messages[language])) for language in LANGUAGES])
    return np.round(vectors * STEPS).astype(np.int8)


@functools.cache
def load_background() -> dict[str, Background]:
    """
    Return the messages of each language, with vectors of `SentenceEmbedder`.

    ``python scripts/build_background.py`` computes the file.
    """
    vectors = np.load(VECTORS_PATH, allow_pickle=False).astype(np.float32) / STEPS
    return dict(zip(LANGUAGES, map(Background, vectors), strict=True))
