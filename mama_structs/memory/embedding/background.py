"""Mean vectors of unrelated messages in each language, from which similarities are measured."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Final

import numpy as np

from mama_structs.memory.embedding.protocol import Embedder, Vectors
from mama_structs.memory.types.languages import LANGUAGES

VECTORS_PATH: Final = Path(__file__).with_name("background.npy")


def load_background_messages() -> dict[str, list[str]]:
    """
    Return messages to an assistant that are unrelated to typical memories, by language.

    They are greetings, small talk, tasks and questions about general knowledge.
    """
    text = Path(__file__).with_name("background.json").read_text(encoding="utf-8")
    messages: dict[str, list[str]] = json.loads(text)
    return messages


def compute_background(embedder: Embedder) -> Vectors:
    """Return the mean vector of the messages of each language, in the order of `LANGUAGES`."""
    messages = load_background_messages()
    means = [np.mean(np.asarray(embedder.embed(messages[language])), axis=0) for language in LANGUAGES]
    return np.asarray(means, np.float32)


@functools.cache
def load_background() -> dict[str, Vectors]:
    """
    Return the mean vector of the messages of each language, for `SentenceEmbedder`.

    ``python scripts/build_background.py`` computes the file.

    Returns:
        Float32 vectors of shape (896,), by language. They are shorter than 1.

    """
    return dict(zip(LANGUAGES, np.load(VECTORS_PATH, allow_pickle=False), strict=True))
