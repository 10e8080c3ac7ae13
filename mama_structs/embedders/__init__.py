"""Embedders of the usual providers, and embedders and a reranker of models on this machine: each needs an extra."""

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
from mama_structs.errors import EmbeddingFailed, InvalidArgument, MemoryStoreError, RerankingFailed, shown
from mama_structs.memory.embedding.chunks import LEAST_TOKENS, tokens
from mama_structs.memory.embedding.factory import CallableEmbedder, default_embedder
from mama_structs.memory.embedding.protocol import (  # noqa: F401 - for hints
    Calibrating,
    Calibration,
    Kind,
    Vectors,
    calibrated,
    fingerprint_of,
    unit_vectors,
)
from mama_structs.memory.types.reranker import Reranker, as_reranker, check_reranker

__all__ = [
    "CallableEmbedder",
    "CohereEmbedder",
    "OnnxEmbedder",
    "OnnxReranker",
    "OpenAIEmbedder",
    "Reranker",
    "SentenceTransformerEmbedder",
    "VoyageEmbedder",
    "as_reranker",
    "calibrated",
    "default_embedder",
    "fingerprint_of",
]

_TOKENS: Final = 2048
"""
Pieces longer than that are found less well, and are never longer than the 8,192 tokens that the services take:
no character has more than four times the tokens that `pieces.tokens` counts for it.
"""

_NO_AND_YES: Final = 2  # Logits of a cross-encoder that was trained as a classifier.
_BLANK: Final = "-"  # Services refuse a text that is empty.
_REQUEST: Final = 30_000  # Estimated tokens of one request, again a quarter of what every service takes.


def _or_zero(value: int | None) -> int:
    return value or 0


@attrs.define(kw_only=True)
class ServiceEmbedder(Calibrating):
    """
    Embeds with a service: what those of all providers have in common.

    Args:
        model: The model's name.
        client: The async client of the provider's package; None: one that reads the key from its environment variable.
        dimensions: Numbers of a vector; None: as many as the model has.
            A number is sent along only where it differs from that.
        max_tokens: How long a text may be, 8 or more; a longer one is embedded in pieces.
        batch_size: Texts of a request at the most.
        calibration: What its cosines mean; None: found out on built-in sentences before its first use.

    Raises:
        InvalidArgument: An argument breaks its rule, or *dimensions* is missing for a model not known here.

    """

    provider: ClassVar[str]
    """The provider's name, which is also its extra's."""
    package: ClassVar[tuple[str, str]]
    """The package, and the name of its client."""
    known: ClassVar[Mapping[str, int]]
    """The dimensions of known models."""
    usual: ClassVar[int] = 0
    """Those of all others; 0: they have to be given."""
    shortened: ClassVar[str] = "output_dimension"
    """How the service calls dimensions that are not the model's own."""

    model: str
    client: Any = attrs.field(default=None, repr=False)
    dimensions: int = attrs.field(default=0, converter=_or_zero)
    max_tokens: int = _TOKENS
    batch_size: int = 128

    def __attrs_post_init__(self) -> None:
        self.dimensions = self.dimensions or self.known.get(self.model, self.usual)
        if not self.dimensions:
            known = ", ".join(self.known)
            raise InvalidArgument(
                f"dimensions must be given for the model {self.model!r:.80}: only {known} are known here"
            )
        super().__attrs_post_init__()

    @property
    def name(self) -> str:
        """The provider, a slash, and the model."""
        return f"{self.provider}/{self.model}"

    @property
    def fingerprint(self) -> str:
        """The name and the dimensions: the service tells no more."""
        return f"{self.name} {self.dimensions}"

    async def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """
        Return a vector for each text, in requests as large as the service takes.

        Raises:
            EmbeddingFailed: The provider's package is not installed, or a vector is missing.

        """
        if self.client is None:
            package, client = self.package
            self.client = getattr(_installed(package, self.provider), client)()
        own = self.known.get(self.model, self.usual)
        options = {} if self.dimensions == own else {self.shortened: self.dimensions}
        vectors: list[Any] = []
        for batch in self._requests([one if one.strip() else _BLANK for one in texts]):
            given = await self._ask(batch, kind, options)
            if len(given) != len(batch):
                raise EmbeddingFailed(f"{self.name} gave {len(given)} vectors for {len(batch)} texts")
            vectors.extend(given)
        return np.asarray(vectors, dtype=np.float32).reshape(len(texts), self.dimensions)

    async def _ask(self, batch: list[str], kind: Kind, options: Mapping[str, int]) -> list[Any]:
        raise NotImplementedError

    def _requests(self, texts: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        size = 0.0
        for one in texts:
            cost = tokens(one)
            if batch and (len(batch) == self.batch_size or size + cost > _REQUEST):
                yield batch
                batch, size = [], 0.0
            batch.append(one)
            size += cost
        if batch:
            yield batch


@attrs.define(kw_only=True)
class OpenAIEmbedder(ServiceEmbedder):
    """
    Embeds with OpenAI, or a service that speaks its language (extra ``openai``); the arguments of `ServiceEmbedder`.

    Its client is an ``openai.AsyncOpenAI`` or ``AsyncAzureOpenAI``; without one ``OPENAI_API_KEY`` is read.
    """

    provider = "openai"
    package: ClassVar[tuple[str, str]] = ("openai", "AsyncOpenAI")
    known: ClassVar[Mapping[str, int]] = {
        "text-embedding-3-small": 1536,
        "text-embedding-3-large": 3072,
        "text-embedding-ada-002": 1536,
    }
    shortened = "dimensions"

    model: str = "text-embedding-3-small"

    async def _ask(self, batch: list[str], kind: Kind, options: Mapping[str, int]) -> list[Any]:
        del kind
        answer = await self.client.embeddings.create(model=self.model, input=batch, encoding_format="float", **options)
        # Each says which text it is for.
        return [item.embedding for item in sorted(answer.data, key=lambda item: int(item.index))]


@attrs.define(kw_only=True)
class CohereEmbedder(ServiceEmbedder):
    """
    Embeds with Cohere (extra ``cohere``), as ``search_document`` or ``search_query``; arguments as `ServiceEmbedder`.

    Its client is a ``cohere.AsyncClientV2``; without one ``CO_API_KEY`` is read. The service takes 96 texts at once.
    """

    provider = "cohere"
    package: ClassVar[tuple[str, str]] = ("cohere", "AsyncClientV2")
    known: ClassVar[Mapping[str, int]] = {
        "embed-v4.0": 1536,
        "embed-english-v3.0": 1024,
        "embed-multilingual-v3.0": 1024,
        "embed-english-light-v3.0": 384,
        "embed-multilingual-light-v3.0": 384,
    }

    model: str = "embed-v4.0"
    max_tokens: int = 512
    batch_size: int = 96

    async def _ask(self, batch: list[str], kind: Kind, options: Mapping[str, int]) -> list[Any]:
        answer = await self.client.embed(
            model=self.model, texts=batch, input_type=f"search_{kind}", embedding_types=["float"], **options
        )
        # `float` is the service's name for it; the package has to spell it with an underscore.
        return list(answer.embeddings.float_)


@attrs.define(kw_only=True)
class VoyageEmbedder(ServiceEmbedder):
    """
    Embeds with Voyage AI (extra ``voyage``), as ``document`` or ``query``; the arguments of `ServiceEmbedder`.

    Its client is a ``voyageai.AsyncClient``; without one ``VOYAGE_API_KEY`` is read.
    Nearly all models of this provider have 1024 dimensions, which counts for those not known here.
    """

    provider = "voyage"
    package: ClassVar[tuple[str, str]] = ("voyageai", "AsyncClient")
    known: ClassVar[Mapping[str, int]] = {"voyage-3-lite": 512}
    usual = 1024

    model: str = "voyage-3.5"

    async def _ask(self, batch: list[str], kind: Kind, options: Mapping[str, int]) -> list[Any]:
        return list((await self.client.embed(batch, model=self.model, input_type=kind, **options)).embeddings)


@attrs.define(kw_only=True)
class SentenceTransformerEmbedder(Calibrating):
    """
    Embeds with a model of sentence-transformers on this machine (extra ``sentence-transformers``).

    Args:
        model: A ``SentenceTransformer`` of the host's own: this package downloads none.
        name: What it is called in messages and in the store.
        query_prefix: Put before each query where the model was trained so and does not know it itself,
            such as ``"query: "`` for E5.
        document_prefix: The same for documents, such as ``"passage: "``.
        dimensions: Numbers of a vector; None: the model is asked.
        max_tokens: How long a text may be, 8 or more; None: the model is asked.
        batch_size: Texts of a call at the most.
        calibration: What its cosines mean; None: found out on built-in sentences before its first use.

    Raises:
        InvalidArgument: An argument breaks its rule.

    """

    model: Any = attrs.field(repr=False)
    name: str
    query_prefix: str = ""
    document_prefix: str = ""
    dimensions: int = attrs.field(default=0, converter=_or_zero)
    max_tokens: int = attrs.field(default=0, converter=_or_zero)
    batch_size: int = 32

    def __attrs_post_init__(self) -> None:
        if not callable(getattr(self.model, "encode", None)):
            raise InvalidArgument(f"model must have encode(), got a {type(self.model).__name__}")
        if not self.dimensions:
            # Its name since version 5, and before.
            asked = getattr(self.model, "get_embedding_dimension", None) or self.model.get_sentence_embedding_dimension
            self.dimensions = asked()
        if not self.max_tokens:
            self.max_tokens = min(_TOKENS, getattr(self.model, "max_seq_length", None) or 256)
        super().__attrs_post_init__()

    @property
    def fingerprint(self) -> str:
        """The name, the dimensions and the prefixes; weights are not looked at, so the name should tell them."""
        return f"sentence-transformers {self.name} {self.dimensions} {self.query_prefix!r} {self.document_prefix!r}"

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """Return a unit vector for each text, by the model's own way for the kind where it has one."""
        prefix = self.query_prefix if kind == "query" else self.document_prefix
        encode = getattr(self.model, f"encode_{kind}", None) or self.model.encode
        given = encode(
            [prefix + one for one in texts],
            batch_size=self.batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.asarray(given, dtype=np.float32)


@attrs.define(eq=False)
class _OnnxModel:
    """The files of an embedder or reranker, read at the first use; *failure* is raised where that cannot be."""

    owner: OnnxEmbedder | OnnxReranker
    failure: type[MemoryStoreError]
    loaded: tuple[Any, Any, frozenset[str]] | None = attrs.field(default=None, init=False)
    _lock: Any = attrs.field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        _check.whole("threads", self.owner.threads, 1, mark=",")

    def run(self, texts: Sequence[str] | Sequence[tuple[str, str]]) -> tuple[Any, NDArray[np.int64]]:
        """Return the model's first output for texts, or for pairs of texts, and 0 or 1 for each token: 0 is padding."""
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
                runtime, tokenizers = (_installed(name, "onnx", self.failure) for name in ("onnxruntime", "tokenizers"))
                for path in (owner.model, owner.tokenizer):
                    if not Path(path).is_file():
                        raise self.failure(f"there is no file {os.fspath(path)}")
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
    _files: _OnnxModel = attrs.field(init=False, repr=False, eq=False)
    _hash: str = attrs.field(default="", init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._files = _OnnxModel(self, EmbeddingFailed)
        if self.pooling not in ("mean", "cls"):
            raise InvalidArgument(f"pooling must be 'mean' or 'cls', got {shown(self.pooling)}")

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
        prefix = self.query_prefix if kind == "query" else self.document_prefix
        hidden, mask = self._files.run([prefix + one for one in texts])
        return pooled(hidden, mask, self.pooling)


@attrs.define(kw_only=True)
class OnnxReranker:
    """
    Reranks with a cross-encoder in ONNX form and its tokenizer (extra ``onnx``).

    Such a model reads question and text together, and gives one figure, or one for "no" and one for "yes".
    Files are read at the first use; nothing is ever downloaded.
    What the model takes is seen from the names of its inputs.

    Args:
        model: The path of the ``.onnx`` file.
        tokenizer: The path of its ``tokenizer.json``.
        name: What it is called, in messages and figures; the name of the model's file where it is empty.
        max_tokens: How many tokens of both texts together the model takes, 8 or more; the longer one is cut.
        max_chars: How much of a text is given to the tokenizer.
        threads: Threads for one call.
        batch_size: Texts of a call at the most.

    Raises:
        InvalidArgument: An argument breaks its rule.

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
        _check.whole("max_tokens", self.max_tokens, LEAST_TOKENS, mark=",")
        self._files = _OnnxModel(self, RerankingFailed)

    def rerank(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """
        Return what the model gives for each text: log-odds, for most of these models.

        Raises:
            RerankingFailed: The extra ``onnx`` is not installed, a file is missing, or the model is no cross-encoder.

        """
        if not texts:
            return np.empty(0)
        logits = np.asarray(self._files.run([(query, one) for one in texts])[0], dtype=np.float64)
        if logits.shape == (len(texts), _NO_AND_YES):
            logits = logits[:, 1] - logits[:, 0]
        if logits.size != len(texts):
            raise RerankingFailed(
                f"{self.name} gave an array of shape {logits.shape} for {len(texts)} texts",
                hint="a cross-encoder gives one or two numbers for each pair; a sentence model is an OnnxEmbedder",
            )
        return logits.reshape(len(texts))


def pooled(hidden: Any, mask: Any, pooling: str) -> Vectors:
    """Make one unit vector of each text's tokens, where the model does not pool by itself; *mask* is 0 for padding."""
    values = np.asarray(hidden, dtype=np.float64)
    if values.ndim == mask.ndim + 1:
        if pooling == "cls":
            values = values[:, 0]
        else:
            weights = np.asarray(mask, dtype=np.float64)[:, :, None]
            values = (values * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1)
    vectors, usable = unit_vectors(values)
    # What has no direction is refused by whoever asked, and must not look like a vector.
    vectors[~usable] = 0
    return vectors


def _digest(path: str | os.PathLike[str]) -> bytes:
    try:
        with Path(path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError as error:
        raise EmbeddingFailed(f"the file {os.fspath(path)} cannot be read") from error


def _installed(package: str, extra: str, failure: type[MemoryStoreError] = EmbeddingFailed) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        hint = f"pip install 'mama-structs[{extra}]'"
        raise failure(f"the package {package} cannot be imported", hint=hint) from error
