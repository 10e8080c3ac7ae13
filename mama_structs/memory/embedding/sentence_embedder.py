"""Default embedder: a multilingual and an English sentence encoder, in one vector. It works offline."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import ClassVar, Final

import attrs
import numpy as np

from mama_structs._internal import validation as _check
from mama_structs.memory.embedding import english_encoder, sentence_encoder
from mama_structs.memory.embedding.background import Background, load_background
from mama_structs.memory.embedding.chunks import replace_surrogates
from mama_structs.memory.embedding.english_encoder import EnglishEncoder, load_english_encoder
from mama_structs.memory.embedding.model_files import lock_model_loading
from mama_structs.memory.embedding.protocol import Calibration, Kind, QueryVectors, Vectors
from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder
from mama_structs.memory.types.languages import detect_language

_SHARED_DIMENSIONS: Final = UniversalSentenceEmbedder.dimensions

SHARED_WEIGHT: Final = 0.3
"""Part of the multilingual encoder in the cosine of two English texts."""
SHARED_SCALE: Final = math.sqrt(SHARED_WEIGHT)
REST_SCALE: Final = math.sqrt(1 - SHARED_WEIGHT)

MIN_LAST_COMPONENT: Final = 1e-4
"""Minimum absolute value of the last component of an English vector. It must not become 0 in 16 bits."""

_FINGERPRINT: Final = "1"  # Increase it if the layout of the vectors changes.
_CALIBRATION: Final = Calibration(0.241, 9.1, threshold=0.9)


def is_installed() -> bool:
    """Return True if the packages of both encoders are installed. Does not import them."""
    return sentence_encoder.is_installed() and english_encoder.is_installed()


@attrs.frozen(kw_only=True)
class SentenceEmbedder:
    """
    Converts sentences in 16 languages to semantic vectors, most precisely in English (extra ``semantic``).

    The first 512 dimensions are Google's Universal Sentence Encoder, multilingual, version 3, for every text.
    The other 384 are all-MiniLM-L6-v2 (Wang et al., 2020; Reimers and Gurevych, 2019) for English texts, and 0 for
    texts in other languages. Two English texts are compared by both parts, all others by the first part.
    Both models are loaded at the first use, once per process, even for several embedders.
    It is thread-safe.

    Args:
        threads: Maximum number of threads for the matrix products of one call.
            One is best: more threads take longer on a busy machine.
        calibration: The calibration of its cosines.

    Raises:
        InvalidArgument: *threads* is less than 1.

    """

    threads: int = attrs.field(default=1, validator=_check.field_validator(_check.check_integer, 1, separator=","))
    calibration: Calibration = _CALIBRATION

    name: ClassVar[str] = "sentence-multilingual-english-1"
    dimensions: ClassVar[int] = _SHARED_DIMENSIONS + english_encoder.DIMENSIONS
    shared_dimensions: ClassVar[int] = _SHARED_DIMENSIONS
    """Number of leading dimensions that texts in all languages have in common."""
    max_tokens: ClassVar[int] = 128
    """Longer texts are found better by their chunks, because both models average over a text."""
    batch_size: ClassVar[int] = 32
    """Preferred number of texts per call. Larger batches are hardly faster, and delay other callers."""

    @property
    def fingerprint(self) -> str:
        """Hashes of the weights of both models. They are verified when the weights are loaded."""
        hashes = (sentence_encoder.EXPECTED_SHA256["weights.npz"], english_encoder.EXPECTED_SHA256["model.onnx"])
        return " ".join((self.name, _FINGERPRINT, *(one[:32] for one in hashes)))

    def load_model(self) -> None:
        """
        Load both models, if this process has not loaded them yet.

        Raises:
            EmbeddingFailed: As for `embed`.

        """
        self._load()

    def _load(self) -> tuple[UniversalSentenceEmbedder, EnglishEncoder]:
        shared = UniversalSentenceEmbedder(threads=self.threads)
        shared.load_model()
        with lock_model_loading():
            return shared, load_english_encoder(self.threads)

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """
        Return a unit vector for each text.

        The last bits may depend on the other texts of a call.

        Args:
            texts: Any texts. Lone surrogates count as U+FFFD.
            kind: Ignored.

        Returns:
            Float32, of shape (texts, 896).

        Raises:
            EmbeddingFailed: The extra ``semantic`` is not installed, or its files are not the expected ones.

        """
        del kind
        multilingual, encoder = self._load()
        texts = [replace_surrogates(text) for text in texts]
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        shared, rest = vectors[:, :_SHARED_DIMENSIONS], vectors[:, _SHARED_DIMENSIONS:]
        shared[:] = multilingual.embed(texts)
        english = [row for row, text in enumerate(texts) if detect_language(text) == "en"]
        if english:
            shared[english] *= SHARED_SCALE
            found = encoder.encode([texts[row] for row in english]) * REST_SCALE
            last = found[:, -1]
            found[:, -1] = np.where(np.abs(last) < MIN_LAST_COMPONENT, MIN_LAST_COMPONENT, last)
            rest[english] = found
        return vectors

    def adjust_query(self, text: str, vector: Vectors) -> QueryVectors:
        """
        Return the vectors that give the adjusted similarities of a query to stored vectors.

        Similarities of an English text and another one are divided by the scale of the shared part. The mean
        similarity to unrelated messages in the query's language is subtracted.

        Args:
            text: The query. Its language determines the unrelated messages.
            vector: Its unit vector, float32 of shape (896,).

        """
        is_english = bool(vector[-1] != 0)
        language = "en" if is_english else detect_language(text)
        unrelated = _load_unrelated(language, is_english)
        difference = vector - unrelated.mean
        other = np.zeros_like(difference)
        other[:_SHARED_DIMENSIONS] = difference[:_SHARED_DIMENSIONS] / SHARED_SCALE
        return QueryVectors(
            plain=vector,
            same=difference,
            other=other,
            has_rest=is_english,
            shared_dimensions=_SHARED_DIMENSIONS,
            unrelated=unrelated.proximity(vector),
        )


@functools.cache
def _load_unrelated(language: str, is_english: bool) -> Background:  # noqa: FBT001 - a key of the cache
    """Return the unrelated messages in a language; in all languages for other languages and English without a rest."""
    known = load_background()
    if is_english or (language != "en" and language in known):
        return known[language]
    shared = [known[name].vectors / (SHARED_SCALE if name == "en" else 1) for name in known]
    vectors: Vectors = np.concatenate(shared, dtype=np.float32)
    vectors[:, _SHARED_DIMENSIONS:] = 0
    return Background(vectors, count=len(shared[0]))
