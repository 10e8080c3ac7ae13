"""
Embedders for hosted providers, and embedders and rerankers that run local models.

Each needs an extra.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal import validation as _check
from mama_structs.errors import EmbeddingFailed, InvalidArgument, MemoryStoreError, RerankingFailed, repr_short
from mama_structs.memory.embedding.chunks import MIN_TOKENS, estimate_tokens
from mama_structs.memory.embedding.factory import default_embedder
from mama_structs.memory.embedding.protocol import (  # noqa: F401 - for type hints
    CalibratingEmbedder,
    Calibration,
    Kind,
    Vectors,
    calibrate_embedder,
    normalize_rows,
)
from mama_structs.memory.embedding.sentence_embedder import SentenceEmbedder
from mama_structs.memory.types.reranker import Reranker, as_reranker, check_reranker

__all__ = [
    "CohereEmbedder",
    "OnnxEmbedder",
    "OnnxReranker",
    "OpenAIEmbedder",
    "Reranker",
    "SentenceEmbedder",
    "SentenceTransformerEmbedder",
    "VoyageEmbedder",
    "as_reranker",
    "calibrate_embedder",
    "default_embedder",
]

_MAX_CHUNK_TOKENS: Final = 2048
"""
Maximum length of a chunk. Longer ones are retrieved less well.

Even if a character needs four times the estimate of `chunks.tokens`, the chunk has at most the 8,192 tokens that the
services accept.
"""

_CLASSIFIER_LOGITS: Final = 2  # Number of logits of a cross-encoder that was trained as a classifier.
_EMPTY_TEXT_PLACEHOLDER: Final = "-"  # Sent instead of an empty text, because services reject empty texts.
_MAX_REQUEST_TOKENS: Final = 30_000  # Maximum estimated tokens per request: a quarter of the services' limits.


def _none_to_zero(value: int | None) -> int:
    return value or 0


@attrs.define(kw_only=True)
class ServiceEmbedder(CalibratingEmbedder):
    """
    Base class of the embedders that call a provider's service.

    Args:
        model: The model's name.
        client: The async client of the provider's package. If None, a client is created that reads the key from its
            environment variable.
        dimensions: Dimensions of a vector; None: the model's default.
            It is sent with a request only if it differs from the default.
        max_tokens: Maximum number of tokens of a text, 8 or more; a longer text is embedded in chunks.
        batch_size: Maximum number of texts per request.
        calibration: Maps cosines of its vectors to similarities. If None, it is measured with built-in sentences before
            the first use.

    Raises:
        InvalidArgument: An argument is invalid, or *dimensions* is missing for a model without default dimensions.

    """

    _provider: ClassVar[str]
    """The provider's name, which is also the name of its extra."""
    _package: ClassVar[tuple[str, str]]
    """The package and the name of its client class."""
    _model_dimensions: ClassVar[Mapping[str, int]]
    """The default dimensions of known models."""
    _default_dimensions: ClassVar[int] = 0
    """The default dimensions of all other models; 0 if they must be passed."""
    _dimensions_parameter: ClassVar[str] = "output_dimension"
    """The service's parameter for dimensions that differ from the model's default."""

    model: str
    client: Any = attrs.field(default=None, repr=False)
    dimensions: int = attrs.field(default=0, converter=_none_to_zero)
    max_tokens: int = _MAX_CHUNK_TOKENS
    batch_size: int = 128

    def __attrs_post_init__(self) -> None:
        self.dimensions = self.dimensions or self._model_dimensions.get(self.model, self._default_dimensions)
        if not self.dimensions:
            known = ", ".join(self._model_dimensions)
            raise InvalidArgument(
                f"dimensions must be given for the model {self.model!r:.80}: only {known} are known here"
            )
        super().__attrs_post_init__()

    @property
    def name(self) -> str:
        """The provider and the model, separated by a slash."""
        return f"{self._provider}/{self.model}"

    @property
    def fingerprint(self) -> str:
        """The name and the dimensions. The version is not included, because the service does not report it."""
        return f"{self.name} {self.dimensions}"

    async def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """
        Return a vector for each text. Each request contains as many texts as the service accepts.

        Args:
            texts: The texts, in order.
            kind: ``"document"`` for stored texts, ``"query"`` for queries.

        Raises:
            EmbeddingFailed: The provider's package is not installed, or a vector is missing.

        """
        if self.client is None:
            package, client = self._package
            self.client = getattr(_import_package(package, self._provider), client)()
        own = self._model_dimensions.get(self.model, self._default_dimensions)
        options = {} if self.dimensions == own else {self._dimensions_parameter: self.dimensions}
        vectors: list[Any] = []
        for batch in self._split_batches([one if one.strip() else _EMPTY_TEXT_PLACEHOLDER for one in texts]):
            given = await self._embed_batch(batch, kind, options)
            if len(given) != len(batch):
                raise EmbeddingFailed(f"{self.name} gave {len(given)} vectors for {len(batch)} texts")
            vectors.extend(given)
        return np.asarray(vectors, dtype=np.float32).reshape(len(texts), self.dimensions)

    async def _embed_batch(self, batch: list[str], kind: Kind, options: Mapping[str, int]) -> list[Any]:
        raise NotImplementedError

    def _split_batches(self, texts: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        size = 0.0
        for one in texts:
            cost = estimate_tokens(one)
            if batch and (len(batch) == self.batch_size or size + cost > _MAX_REQUEST_TOKENS):
                yield batch
                batch, size = [], 0.0
            batch.append(one)
            size += cost
        if batch:
            yield batch


@attrs.define(kw_only=True)
class OpenAIEmbedder(ServiceEmbedder):
    """
    Embeds with OpenAI, or a compatible service (extra ``openai``).

    Arguments as for `ServiceEmbedder`.
    The client is an ``openai.AsyncOpenAI`` or ``AsyncAzureOpenAI``. If none is given, ``OPENAI_API_KEY`` is read.
    """

    _provider = "openai"
    _package: ClassVar[tuple[str, str]] = ("openai", "AsyncOpenAI")
    _model_dimensions: ClassVar[Mapping[str, int]] = {
        "text-embedding-3-small": 1536,
        "text-embedding-3-large": 3072,
        "text-embedding-ada-002": 1536,
    }
    _dimensions_parameter = "dimensions"

    model: str = "text-embedding-3-small"

    async def _embed_batch(self, batch: list[str], kind: Kind, options: Mapping[str, int]) -> list[Any]:
        del kind
        answer = await self.client.embeddings.create(model=self.model, input=batch, encoding_format="float", **options)
        # The service may return vectors in any order, so sort them by the index of their text.
        return [item.embedding for item in sorted(answer.data, key=lambda item: int(item.index))]


@attrs.define(kw_only=True)
class CohereEmbedder(ServiceEmbedder):
    """
    Embeds with Cohere (extra ``cohere``), as ``search_document`` or ``search_query``.

    Arguments as for `ServiceEmbedder`.
    The client is a ``cohere.AsyncClientV2``. If none is given, ``CO_API_KEY`` is read. The service accepts 96 texts per
    request.
    """

    _provider = "cohere"
    _package: ClassVar[tuple[str, str]] = ("cohere", "AsyncClientV2")
    _model_dimensions: ClassVar[Mapping[str, int]] = {
        "embed-v4.0": 1536,
        "embed-english-v3.0": 1024,
        "embed-multilingual-v3.0": 1024,
        "embed-english-light-v3.0": 384,
        "embed-multilingual-light-v3.0": 384,
    }

    model: str = "embed-v4.0"
    max_tokens: int = 512
    batch_size: int = 96

    async def _embed_batch(self, batch: list[str], kind: Kind, options: Mapping[str, int]) -> list[Any]:
        answer = await self.client.embed(
            model=self.model, texts=batch, input_type=f"search_{kind}", embedding_types=["float"], **options
        )
        # The service's field `float` is named `float_` in its package, because `float` is a builtin.
        return list(answer.embeddings.float_)


@attrs.define(kw_only=True)
class VoyageEmbedder(ServiceEmbedder):
    """
    Embeds with Voyage AI (extra ``voyage``), as ``document`` or ``query``.

    Arguments as for `ServiceEmbedder`.
    The client is a ``voyageai.AsyncClient``. If none is given, ``VOYAGE_API_KEY`` is read.
    Nearly all models of this provider have 1024 dimensions, so this is the default for unknown models.
    """

    _provider = "voyage"
    _package: ClassVar[tuple[str, str]] = ("voyageai", "AsyncClient")
    _model_dimensions: ClassVar[Mapping[str, int]] = {"voyage-3-lite": 512}
    _default_dimensions = 1024

    model: str = "voyage-3.5"

    async def _embed_batch(self, batch: list[str], kind: Kind, options: Mapping[str, int]) -> list[Any]:
        return list((await self.client.embed(batch, model=self.model, input_type=kind, **options)).embeddings)


@attrs.define(kw_only=True)
class SentenceTransformerEmbedder(CalibratingEmbedder):
    """
    Embeds with a local model of sentence-transformers (extra ``sentence-transformers``).

    Args:
        model: A ``SentenceTransformer`` of the host: this package downloads no models.
        name: Its name in messages and in the store.
        query_prefix: Prepended to each query if the model was trained so and does not do it itself,
            such as ``"query: "`` for E5.
        document_prefix: The same for documents, such as ``"passage: "``.
        dimensions: Dimensions of a vector; None: read from the model.
        max_tokens: Maximum number of tokens of a text, 8 or more; None: read from the model.
        batch_size: Maximum number of texts per call.
        calibration: Maps its cosines to similarities; None: measured with built-in sentences before the first use.

    Raises:
        InvalidArgument: An argument is invalid.

    """

    model: Any = attrs.field(repr=False)
    name: str
    query_prefix: str = ""
    document_prefix: str = ""
    dimensions: int = attrs.field(default=0, converter=_none_to_zero)
    max_tokens: int = attrs.field(default=0, converter=_none_to_zero)
    batch_size: int = 32

    def __attrs_post_init__(self) -> None:
        if not callable(getattr(self.model, "encode", None)):
            raise InvalidArgument(f"model must have encode(), got a {type(self.model).__name__}")
        if not self.dimensions:
            # sentence-transformers renamed the method in version 5.
            asked = getattr(self.model, "get_embedding_dimension", None) or self.model.get_sentence_embedding_dimension
            self.dimensions = asked()
        if not self.max_tokens:
            self.max_tokens = min(_MAX_CHUNK_TOKENS, getattr(self.model, "max_seq_length", None) or 256)
        super().__attrs_post_init__()

    @property
    def fingerprint(self) -> str:
        """
        The name, the dimensions and the prefixes.

        The weights are not hashed, so *name* must identify them.
        """
        return f"sentence-transformers {self.name} {self.dimensions} {self.query_prefix!r} {self.document_prefix!r}"

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """
        Return a unit vector for each text.

        If the model has separate encode methods for queries and documents, they are used.

        Args:
            texts: The texts, in order.
            kind: ``"document"`` for stored texts, ``"query"`` for queries.

        """
        encode = getattr(self.model, f"encode_{kind}", None) or self.model.encode
        given = encode(
            _with_prefix(self, texts, kind),
            batch_size=self.batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.asarray(given, dtype=np.float32)


@attrs.define(eq=False)
class _OnnxModel:
    """
    The model and the tokenizer of an ONNX embedder or reranker, loaded on first use.

    If loading fails, *error_class* is raised.
    """

    owner: OnnxEmbedder | OnnxReranker
    error_class: type[MemoryStoreError]
    loaded: tuple[Any, Any, frozenset[str]] | None = attrs.field(default=None, init=False)
    _lock: Any = attrs.field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        _check.check_integer("threads", self.owner.threads, 1, separator=",")

    def run(self, texts: Sequence[str] | Sequence[tuple[str, str]]) -> tuple[Any, NDArray[np.int64]]:
        """Return the model's first output, and the attention mask, which is 0 for padding."""
        session, tokenizer, inputs = self._load()
        encoded = tokenizer.encode_batch(list(texts))
        mask = np.array([one.attention_mask for one in encoded], dtype=np.int64)
        feed = {
            "input_ids": np.array([one.ids for one in encoded], dtype=np.int64),
            "attention_mask": mask,
            "token_type_ids": np.array([one.type_ids for one in encoded], dtype=np.int64),
        }
        return np.asarray(session.run(None, {name: feed[name] for name in feed if name in inputs})[0]), mask

    def _load(self) -> tuple[Any, Any, frozenset[str]]:
        owner = self.owner
        with self._lock:
            if self.loaded is None:
                runtime, tokenizers = (
                    _import_package(name, "onnx", self.error_class) for name in ("onnxruntime", "tokenizers")
                )
                for path in (owner.model, owner.tokenizer):
                    if not Path(path).is_file():
                        raise self.error_class(f"there is no file {os.fspath(path)}")
                options = runtime.SessionOptions()
                options.intra_op_num_threads = owner.threads
                options.inter_op_num_threads = 1
                session = runtime.InferenceSession(
                    os.fspath(owner.model), sess_options=options, providers=["CPUExecutionProvider"]
                )
                tokenizer = tokenizers.Tokenizer.from_file(os.fspath(owner.tokenizer))
                tokenizer.enable_truncation(max_length=owner.max_tokens)
                tokenizer.enable_padding()
                self.loaded = session, tokenizer, frozenset(one.name for one in session.get_inputs())
            return self.loaded


@attrs.define(kw_only=True)
class OnnxEmbedder(CalibratingEmbedder):
    """
    Embeds with a sentence model in ONNX format and its tokenizer (extra ``onnx``).

    Files are read on first use; nothing is downloaded.
    The model's inputs are recognised by their names.

    Args:
        model: The path of the ``.onnx`` file.
        tokenizer: The path of its ``tokenizer.json``.
        name: Its name in messages and in the store.
        dimensions: Dimensions of a vector.
        max_tokens: Maximum number of tokens that the model accepts, 8 or more; a longer text is embedded in chunks.
        pooling: ``"mean"`` of the tokens (MiniLM, E5) or the first token, ``"cls"`` (BGE).
        query_prefix: Prepended to each query, such as ``"query: "`` for E5.
        document_prefix: Prepended to each document, such as ``"passage: "`` for E5.
        threads: Number of threads per call.
        batch_size: Maximum number of texts per call.
        calibration: Maps its cosines to similarities; None: measured with built-in sentences before the first use.

    Raises:
        InvalidArgument: An argument is invalid.

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
    _files: _OnnxModel = attrs.field(init=False, repr=False, eq=False)
    _hash: str = attrs.field(default="", init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._files = _OnnxModel(self, EmbeddingFailed)
        if self.pooling not in ("mean", "cls"):
            raise InvalidArgument(f"pooling must be 'mean' or 'cls', got {repr_short(self.pooling)}")

    @property
    def fingerprint(self) -> str:
        """
        The SHA-256 of both files, the pooling, the prefixes and *max_tokens*.

        Reads the files on first use.

        Raises:
            EmbeddingFailed: A file cannot be read.

        """
        if not self._hash:
            digest = hashlib.sha256(_hash_file(self.model) + _hash_file(self.tokenizer))
            digest.update(repr((self.pooling, self.query_prefix, self.document_prefix, self.max_tokens)).encode())
            self._hash = digest.hexdigest()[:32]
        return f"onnx {self._hash}"

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """
        Return a unit vector for each text.

        Args:
            texts: The texts, in order.
            kind: ``"document"`` for stored texts, ``"query"`` for queries.

        Raises:
            EmbeddingFailed: The extra ``onnx`` is not installed, or a file is missing.

        """
        if not texts:
            return np.empty((0, self.dimensions), dtype=np.float32)
        hidden, mask = self._files.run(_with_prefix(self, texts, kind))
        return pool_vectors(hidden, mask, self.pooling)


@attrs.define(kw_only=True)
class OnnxReranker:
    """
    Reranks with a cross-encoder in ONNX format and its tokenizer (extra ``onnx``).

    A cross-encoder reads query and text together, and returns one number, or two for "no" and "yes".
    Files are read on first use; nothing is downloaded.
    The model's inputs are recognised by their names.

    Args:
        model: The path of the ``.onnx`` file.
        tokenizer: The path of its ``tokenizer.json``.
        name: Its name, in messages and statistics; the name of the model's file if empty.
        max_tokens: Maximum number of tokens of both texts together, 8 or more; the longer one is truncated.
        max_chars: Maximum number of characters of a text for the tokenizer.
        threads: Number of threads per call.
        batch_size: Maximum number of texts per call.

    Raises:
        InvalidArgument: An argument is invalid.

    """

    model: str | os.PathLike[str]
    tokenizer: str | os.PathLike[str]
    name: str = ""
    max_tokens: int = 512
    max_chars: int = 4_000
    threads: int = 1
    batch_size: int = 16
    _files: _OnnxModel = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        self.name = self.name or Path(self.model).stem
        check_reranker(self)
        _check.check_integer("max_tokens", self.max_tokens, MIN_TOKENS, separator=",")
        self._files = _OnnxModel(self, RerankingFailed)

    def rerank(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """
        Return the model's score for each text. For most cross-encoders the score is a log-odds value.

        Args:
            query: The query.
            texts: The texts to score.

        Raises:
            RerankingFailed: The extra ``onnx`` is not installed, a file is missing, or the model is not a
                cross-encoder.

        """
        if not texts:
            return np.empty(0)
        logits = np.asarray(self._files.run([(query, one) for one in texts])[0], dtype=np.float64)
        if logits.shape == (len(texts), _CLASSIFIER_LOGITS):
            logits = logits[:, 1] - logits[:, 0]
        if logits.size != len(texts):
            raise RerankingFailed(
                f"{self.name} gave an array of shape {logits.shape} for {len(texts)} texts",
                hint="a cross-encoder gives one or two numbers for each pair; a sentence model is an OnnxEmbedder",
            )
        return logits.reshape(len(texts))


def pool_vectors(hidden: Any, mask: Any, pooling: str) -> Vectors:
    """
    Return one unit vector per text. If the model returns one vector per token, pool the vectors of each text.

    *mask* is 0 for padding.
    """
    values = np.asarray(hidden, dtype=np.float64)
    if values.ndim == mask.ndim + 1:
        if pooling == "cls":
            values = values[:, 0]
        else:
            weights = np.asarray(mask, dtype=np.float64)[:, :, None]
            values = (values * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1)
    vectors, usable = normalize_rows(values)
    # Set a vector that cannot be normalized to zero, so that the caller rejects it.
    vectors[~usable] = 0
    return vectors


def _with_prefix(embedder: SentenceTransformerEmbedder | OnnxEmbedder, texts: Sequence[str], kind: Kind) -> list[str]:
    prefix = embedder.query_prefix if kind == "query" else embedder.document_prefix
    return [prefix + one for one in texts]


def _hash_file(path: str | os.PathLike[str]) -> bytes:
    try:
        with Path(path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError as error:
        raise EmbeddingFailed(f"the file {os.fspath(path)} cannot be read") from error


def _import_package(package: str, extra: str, error_class: type[MemoryStoreError] = EmbeddingFailed) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        hint = f"pip install 'mama-structs[{extra}]'"
        raise error_class(f"the package {package} cannot be imported", hint=hint) from error
