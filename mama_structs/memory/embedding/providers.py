"""Embedders of the usual providers; each needs its own package, and takes a client that the host has."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

import attrs
import numpy as np

from mama_structs.errors import EmbeddingFailed, InvalidArgument
from mama_structs.memory.embedding.calibrating import Calibrating
from mama_structs.memory.embedding.limits import or_zero, text, whole
from mama_structs.memory.embedding.pieces import LEAST_TOKENS, tokens
from mama_structs.memory.embedding.protocol import Calibration, Kind, Vectors  # noqa: F401 - hints of the inherited fields

_TOKENS: Final = 2048
"""
Pieces longer than that are found less well, and are never longer than the 8,192 tokens that the services take:
no character has more than four times the tokens that `pieces.tokens` counts for it.
"""

_BLANK: Final = "-"  # Services refuse a text that is empty.
_REQUEST: Final = 30_000  # Estimated tokens of one request, again a quarter of what every service takes.

_OPENAI: Final = {"text-embedding-3-small": 1536, "text-embedding-3-large": 3072, "text-embedding-ada-002": 1536}
_COHERE: Final = {
    "embed-v4.0": 1536,
    "embed-english-v3.0": 1024,
    "embed-multilingual-v3.0": 1024,
    "embed-english-light-v3.0": 384,
    "embed-multilingual-light-v3.0": 384,
}
_VOYAGE: Final = 1024  # All models of the third generation, but for the lite one of 3.0
_VOYAGE_OTHER: Final = {"voyage-3-lite": 512}


@attrs.define(kw_only=True)
class OpenAIEmbedder(Calibrating):
    """
    Embeds with OpenAI, or a service that speaks its language (extra ``openai``).

    Args:
        model: The model's name.
        client: An ``openai.AsyncOpenAI`` or ``AsyncAzureOpenAI``; None: one that reads ``OPENAI_API_KEY``.
        dimensions: Numbers of a vector; None: as many as the model has.
            A number is sent along only where it differs from that.
        max_tokens: How long a text may be, 8 or more; a longer one is embedded in pieces.
        batch_size: Texts of a request at the most.
        calibration: What its cosines mean; None: found out on built-in sentences before its first use.

    Raises:
        InvalidArgument: An argument breaks its rule, or *dimensions* is missing for a model not known here.

    """

    model: str = "text-embedding-3-small"
    client: Any = attrs.field(default=None, repr=False)
    dimensions: int = attrs.field(default=0, converter=or_zero)
    max_tokens: int = _TOKENS
    batch_size: int = 128

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.dimensions = self.dimensions or _known(self.model, _OPENAI)
        _checked(self)

    @property
    def name(self) -> str:
        """``openai/``, and the model."""
        return f"openai/{self.model}"

    @property
    def fingerprint(self) -> str:
        """The name and the dimensions: the service tells no more."""
        return f"{self.name} {self.dimensions}"

    async def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """
        Return a vector for each text; the kind makes no difference.

        Raises:
            EmbeddingFailed: The package ``openai`` is not installed.

        """
        del kind
        if self.client is None:
            self.client = _installed("openai", "openai").AsyncOpenAI()
        shortened = {} if self.dimensions == _OPENAI.get(self.model) else {"dimensions": self.dimensions}

        async def ask(batch: list[str]) -> list[Any]:
            answer = await self.client.embeddings.create(
                model=self.model, input=batch, encoding_format="float", **shortened
            )
            # Each says which text it is for.
            return [item.embedding for item in sorted(answer.data, key=lambda item: int(item.index))]

        return await _in_requests(texts, self, ask)


@attrs.define(kw_only=True)
class CohereEmbedder(Calibrating):
    """
    Embeds with Cohere (extra ``cohere``).

    Args:
        model: The model's name.
        client: A ``cohere.AsyncClientV2``; None: one that reads ``CO_API_KEY``.
        dimensions: Numbers of a vector; None: as many as the model has.
            A number is sent along only where it differs from that.
        max_tokens: How long a text may be, 8 or more; a longer one is embedded in pieces.
        batch_size: Texts of a request at the most; the service takes 96.
        calibration: What its cosines mean; None: found out on built-in sentences before its first use.

    Raises:
        InvalidArgument: An argument breaks its rule, or *dimensions* is missing for a model not known here.

    """

    model: str = "embed-v4.0"
    client: Any = attrs.field(default=None, repr=False)
    dimensions: int = attrs.field(default=0, converter=or_zero)
    max_tokens: int = 512
    batch_size: int = 96

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.dimensions = self.dimensions or _known(self.model, _COHERE)
        _checked(self)

    @property
    def name(self) -> str:
        """``cohere/``, and the model."""
        return f"cohere/{self.model}"

    @property
    def fingerprint(self) -> str:
        """The name and the dimensions: the service tells no more."""
        return f"{self.name} {self.dimensions}"

    async def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """
        Return a vector for each text, as ``search_document`` or ``search_query``.

        Raises:
            EmbeddingFailed: The package ``cohere`` is not installed.

        """
        if self.client is None:
            self.client = _installed("cohere", "cohere").AsyncClientV2()
        shortened = {} if self.dimensions == _COHERE.get(self.model) else {"output_dimension": self.dimensions}

        async def ask(batch: list[str]) -> list[Any]:
            answer = await self.client.embed(
                model=self.model, texts=batch, input_type=f"search_{kind}", embedding_types=["float"], **shortened
            )
            # `float` is the service's name for it; the package has to spell it with an underscore.
            return list(answer.embeddings.float_)

        return await _in_requests(texts, self, ask)


@attrs.define(kw_only=True)
class VoyageEmbedder(Calibrating):
    """
    Embeds with Voyage AI (extra ``voyage``).

    Args:
        model: The model's name.
        client: A ``voyageai.AsyncClient``; None: one that reads ``VOYAGE_API_KEY``.
        dimensions: Numbers of a vector; None: as many as nearly all models of this provider give, 1024.
            A number is sent along only where it differs from the model's own.
        max_tokens: How long a text may be, 8 or more; a longer one is embedded in pieces.
        batch_size: Texts of a request at the most.
        calibration: What its cosines mean; None: found out on built-in sentences before its first use.

    Raises:
        InvalidArgument: An argument breaks its rule.

    """

    model: str = "voyage-3.5"
    client: Any = attrs.field(default=None, repr=False)
    dimensions: int = attrs.field(default=0, converter=or_zero)
    max_tokens: int = _TOKENS
    batch_size: int = 128

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.dimensions = self.dimensions or _VOYAGE_OTHER.get(self.model, _VOYAGE)
        _checked(self)

    @property
    def name(self) -> str:
        """``voyage/``, and the model."""
        return f"voyage/{self.model}"

    @property
    def fingerprint(self) -> str:
        """The name and the dimensions: the service tells no more."""
        return f"{self.name} {self.dimensions}"

    async def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """
        Return a vector for each text, as ``document`` or ``query``.

        Raises:
            EmbeddingFailed: The package ``voyageai`` is not installed.

        """
        if self.client is None:
            self.client = _installed("voyageai", "voyage").AsyncClient()
        own = _VOYAGE_OTHER.get(self.model, _VOYAGE)
        shortened = {} if self.dimensions == own else {"output_dimension": self.dimensions}

        async def ask(batch: list[str]) -> list[Any]:
            answer = await self.client.embed(batch, model=self.model, input_type=kind, **shortened)
            return list(answer.embeddings)

        return await _in_requests(texts, self, ask)


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
    dimensions: int = attrs.field(default=0, converter=or_zero)
    max_tokens: int = attrs.field(default=0, converter=or_zero)
    batch_size: int = 32

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not callable(getattr(self.model, "encode", None)):
            raise InvalidArgument(f"model must have encode(), got a {type(self.model).__name__}")
        if not self.dimensions:
            # Its name since version 5, and before.
            asked = getattr(self.model, "get_embedding_dimension", None) or self.model.get_sentence_embedding_dimension
            self.dimensions = asked()
        if not self.max_tokens:
            self.max_tokens = min(_TOKENS, getattr(self.model, "max_seq_length", None) or 256)
        _checked(self)

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


def _installed(package: str, extra: str) -> Any:
    """
    Import an extra's package.

    Raises:
        EmbeddingFailed: It is not there.

    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        hint = f"pip install 'mama-structs[{extra}]'"
        raise EmbeddingFailed(f"the package {package} cannot be imported", hint=hint) from error


def _known(model: str, models: dict[str, int]) -> int:
    if model not in models:
        message = f"dimensions must be given for the model {model!r:.80}: only {', '.join(models)} are known here"
        raise InvalidArgument(message)
    return models[model]


def _checked(embedder: Any) -> None:
    text("name", embedder.name)
    whole("dimensions", embedder.dimensions, 1)
    whole("max_tokens", embedder.max_tokens, LEAST_TOKENS)
    whole("batch_size", embedder.batch_size, 1)


async def _in_requests(
    texts: Sequence[str], embedder: Any, ask: Callable[[list[str]], Coroutine[Any, Any, list[Any]]]
) -> Vectors:
    """Ask for the vectors of all texts, in requests as large as the service takes."""
    if not texts:
        return np.empty((0, embedder.dimensions), dtype=np.float32)
    vectors: list[Any] = []
    for batch in _requests([one if one.strip() else _BLANK for one in texts], embedder.batch_size):
        given = await ask(batch)
        if len(given) != len(batch):
            raise EmbeddingFailed(f"{embedder.name} gave {len(given)} vectors for {len(batch)} texts")
        vectors.extend(given)
    return np.asarray(vectors, dtype=np.float32)


def _requests(texts: Sequence[str], batch_size: int) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0.0
    for one in texts:
        cost = tokens(one)
        if batch and (len(batch) == batch_size or size + cost > _REQUEST):
            yield batch
            batch, size = [], 0.0
        batch.append(one)
        size += cost
    yield batch
