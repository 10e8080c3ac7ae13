"""An embedder for any sentence model in ONNX form that the host has on disk."""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import numpy as np

from mama_structs.errors import EmbeddingFailed, InvalidArgument
from mama_structs.memory.embedding.calibrating import Calibrating
from mama_structs.memory.embedding.limits import text, whole
from mama_structs.memory.embedding.pieces import LEAST_TOKENS
from mama_structs.memory.embedding.protocol import Calibration, Kind, Vectors  # noqa: F401 - hints of the inherited fields

_HINT: Final = "pip install 'mama-structs[onnx]'"


@attrs.define(kw_only=True)
class OnnxEmbedder(Calibrating):
    """
    Embeds with a sentence model in ONNX form and its tokenizer (extra ``onnx``).

    Files are read at the first use; nothing is ever downloaded.
    What the model takes is seen from the names of its inputs.

    Args:
        model: The path of the ``.onnx`` file.
        tokenizer: The path of its ``tokenizer.json``.
        name: What it is called in messages and in the store.
        dimensions: Numbers of a vector.
        max_tokens: How many tokens the model takes, 8 or more; a longer text is embedded in pieces.
        pooling: ``"mean"`` of the tokens (MiniLM, E5) or the first, ``"cls"`` (BGE).
        query_prefix: Put before each query, such as ``"query: "`` for E5.
        document_prefix: Put before each document, such as ``"passage: "`` for E5.
        threads: Threads for one call.
        batch_size: Texts of a call at the most.
        calibration: What its cosines mean; None: found out on built-in sentences before its first use.

    Raises:
        InvalidArgument: An argument breaks its rule.

    """

    model: str | os.PathLike[str]
    tokenizer: str | os.PathLike[str]
    name: str
    dimensions: int
    max_tokens: int = 256
    pooling: Literal["mean", "cls"] = "mean"
    query_prefix: str = ""
    document_prefix: str = ""
    threads: int = 1
    batch_size: int = 16
    _loaded: tuple[Any, Any, frozenset[str]] | None = attrs.field(default=None, init=False, repr=False)
    _lock: Any = attrs.field(factory=threading.Lock, init=False, repr=False, eq=False)
    _hash: str = attrs.field(default="", init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        text("name", self.name)
        whole("dimensions", self.dimensions, 1)
        whole("max_tokens", self.max_tokens, LEAST_TOKENS)
        whole("threads", self.threads, 1)
        whole("batch_size", self.batch_size, 1)
        if self.pooling not in ("mean", "cls"):
            raise InvalidArgument(f"pooling must be 'mean' or 'cls', got {self.pooling!r:.40}")

    @property
    def fingerprint(self) -> str:
        """
        The SHA-256 of the model's and the tokenizer's file, pooling and prefixes; reads the files the first time.

        Raises:
            EmbeddingFailed: A file cannot be read.

        """
        if not self._hash:
            digest = hashlib.sha256()
            for path in (self.model, self.tokenizer):
                digest.update(_digest(path))
            digest.update(repr((self.pooling, self.query_prefix, self.document_prefix, self.max_tokens)).encode())
            self._hash = digest.hexdigest()[:32]
        return f"onnx {self._hash}"

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """
        Return a unit vector for each text.

        Raises:
            EmbeddingFailed: The extra ``onnx`` is not installed, or a file is missing.

        """
        if not texts:
            return np.empty((0, self.dimensions), dtype=np.float32)
        session, tokenizer, inputs = self._load()
        prefix = self.query_prefix if kind == "query" else self.document_prefix
        encoded = tokenizer.encode_batch([prefix + one for one in texts])
        mask = np.array([one.attention_mask for one in encoded], dtype=np.int64)
        feed = {
            "input_ids": np.array([one.ids for one in encoded], dtype=np.int64),
            "attention_mask": mask,
            "token_type_ids": np.array([one.type_ids for one in encoded], dtype=np.int64),
        }
        hidden = np.asarray(session.run(None, {name: feed[name] for name in feed if name in inputs})[0])
        return pooled(hidden, mask, self.pooling)

    def _load(self) -> tuple[Any, Any, frozenset[str]]:
        with self._lock:
            if self._loaded is None:
                try:
                    runtime, tokenizers = importlib.import_module("onnxruntime"), importlib.import_module("tokenizers")
                except ImportError as error:
                    raise EmbeddingFailed(f"the package {error.name} cannot be imported", hint=_HINT) from error
                for path in (self.model, self.tokenizer):
                    if not Path(path).is_file():
                        raise EmbeddingFailed(f"there is no file {os.fspath(path)}")
                options = runtime.SessionOptions()
                options.intra_op_num_threads = self.threads
                options.inter_op_num_threads = 1
                session = runtime.InferenceSession(
                    os.fspath(self.model), sess_options=options, providers=["CPUExecutionProvider"]
                )
                tokenizer = tokenizers.Tokenizer.from_file(os.fspath(self.tokenizer))
                tokenizer.enable_truncation(max_length=self.max_tokens)
                tokenizer.enable_padding()
                self._loaded = session, tokenizer, frozenset(one.name for one in session.get_inputs())
            return self._loaded


def pooled(hidden: Any, mask: Any, pooling: str) -> Vectors:
    """
    Make one unit vector of each text's tokens.

    Args:
        hidden: Of shape (texts, tokens, dimensions), or (texts, dimensions) where the model pools by itself.
        mask: 1 for each token, 0 for padding, of shape (texts, tokens).
        pooling: ``"mean"`` or ``"cls"``.

    """
    values = np.asarray(hidden, dtype=np.float64)
    if values.ndim == mask.ndim + 1:
        if pooling == "cls":
            values = values[:, 0]
        else:
            weights = np.asarray(mask, dtype=np.float64)[:, :, None]
            values = (values * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    vectors: Vectors = (values / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return vectors


def _digest(path: str | os.PathLike[str]) -> bytes:
    try:
        with Path(path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError as error:
        raise EmbeddingFailed(f"the file {os.fspath(path)} cannot be read") from error
