"""LangChain's vector store on a session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mama_structs import sync
from mama_structs._internal import validation as _check
from mama_structs.adapters.langchain.documents import (
    DocumentFilter,
    EmbeddingsFunction,
    compile_filter,
    create_document,
    create_labels,
    create_records,
    select_diverse,
)
from mama_structs.adapters.shared.loop_bridge import LoopBridge, make_awaitable, make_blocking
from mama_structs.errors import InvalidArgument
from mama_structs.memory.types.model import Origin
from mama_structs.memory.types.record import RecordHit
from mama_structs.session.session import Session

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import VectorStore
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.langchain needs LangChain: pip install 'mama-structs[langchain]'"
    ) from _missing


class SessionVectorStore(VectorStore):
    """
    LangChain vector store on a session. Searches of the session also find its documents.

    Vectors are computed by the session's embedder. `embedder_from_langchain` creates an embedder from
    LangChain's ``Embeddings``. Scores are cosines; relevance scores, 0 to 1, are comparable across embedders. No score
    excludes a document. Adding a document under an existing id replaces the old one. A document without text is never
    found. ``delete`` without ids deletes the whole collection. Unknown search options raise an error.
    Methods with the prefix *a* are awaited in any event loop; the others block, in any thread except the session's own.

    Searches accept a *filter*: a function of the document, or a mapping of metadata conditions that must all match.
    ``{"year": 2024}`` matches that value, ``{"year": {"$gte": 2020}}`` compares it (``$eq``, ``$ne``, ``$gt``,
    ``$gte``, ``$lt``, ``$lte``, ``$in``, ``$nin``). A missing field is None, and neither greater nor less than any
    value.

    Args:
        session: The session that stores the documents; it must be open while the store is used.
        collection: The name of the collection. Collections with different names are isolated from each other.
        origin: The author of the documents: ``"user"``, ``"model"``, ``"tool"`` or ``"outside"``.

    Raises:
        InvalidArgument: An argument is invalid; nothing was stored.
        EmbeddingFailed: The embedder failed; nothing was stored.
        WrongLoop: The session is async and this is not its event loop, or a call would block that loop.

    """

    def __init__(
        self, session: Session | sync.Session, *, collection: str = "default", origin: Origin = "outside"
    ) -> None:
        self._bridge = LoopBridge(session)
        self._labels = create_labels(collection)
        self._origin: Origin = origin

    @property
    def embeddings(self) -> Embeddings | None:
        """The ``Embeddings`` that the session's embedder wraps, or None if it wraps none."""
        function = getattr(self._bridge.session.memories.embedder, "function", None)
        return function.embeddings if isinstance(function, EmbeddingsFunction) else None

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **options: Any,
    ) -> SessionVectorStore:
        """
        Create a vector store and add texts to it.

        Args:
            texts: The texts to add.
            embedding: The ``Embeddings`` from which the session's embedder was created; None for any.
            metadatas: One for each text.
            ids: One for each text; None for new ones.
            **options: ``session``, which is required, and the other arguments of the class.

        """
        store = cls._create(embedding, **options)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **options: Any,
    ) -> SessionVectorStore:
        """Create a vector store and add texts to it, as `from_texts` does, without blocking."""
        store = cls._create(embedding, **options)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    def _create(
        cls, embedding: Embeddings | None, *, session: Session | sync.Session | None = None, **options: Any
    ) -> SessionVectorStore:
        store = cls(session, **options)  # type: ignore[arg-type]  # the constructor rejects None
        if embedding is not None and embedding is not store.embeddings:
            raise InvalidArgument(
                "embedding must be None or the Embeddings of the session's embedder",
                hint="open the session with embedder=embedder_from_langchain(embedding, name=..., dimensions=...)",
            )
        return store

    @make_awaitable
    async def aadd_texts(
        self,
        /,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **_options: Any,
    ) -> list[str]:
        """Add texts as documents, all or none, and return their passed or new ids."""
        new = create_records(self._labels, texts, metadatas, ids, origin=self._origin)
        await self._bridge.session.records.put_many(new)
        return [one.key for one in new]

    @make_blocking
    async def add_texts(
        self, /, texts: Iterable[str], metadatas: list[dict[str, Any]] | None = None, **options: Any
    ) -> list[str]:
        """Run `aadd_texts` and block until it finishes."""
        return await self.aadd_texts(texts, metadatas, **options)

    @make_awaitable
    async def adelete(self, /, ids: list[str] | None = None, **_options: Any) -> bool:
        """Delete the documents with these ids, or the whole collection if *ids* is None. Unknown ids are ignored."""
        records, places = self._bridge.session.records, [(self._labels, key) for key in ids or ()]
        await (records.delete_all(self._labels, nested=False) if ids is None else records.put_many((), delete=places))
        return True

    @make_blocking
    async def delete(self, /, ids: list[str] | None = None, **_options: Any) -> bool:
        """Run `adelete` and block until it finishes."""
        return await self.adelete(ids)

    @make_awaitable
    async def aget_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with the ids, deduplicated; unknown ids are ignored."""
        found = await self._bridge.session.records.get_many([(self._labels, key) for key in dict.fromkeys(ids)])
        return [create_document(record) for record in found if record is not None]

    @make_blocking
    async def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Run `aget_by_ids` and block until it finishes."""
        return await self.aget_by_ids(ids)

    async def _search_nearest(
        self,
        query: Any,
        k: int = 4,
        *,
        filter: DocumentFilter | None = None,  # noqa: A002 - LangChain's parameter name
    ) -> Sequence[RecordHit]:
        records, is_match = self._bridge.session.records, compile_filter(filter)
        return await records.nearest(query, self._labels, nested=False, predicate=is_match, limit=k)

    @make_awaitable
    async def asimilarity_search(self, /, query: str, k: int = 4, **options: Any) -> list[Document]:
        """Return the *k* documents most similar to a text."""
        return [create_document(hit.record) for hit in await self._search_nearest(query, k, **options)]

    @make_blocking
    async def similarity_search(self, /, query: str, k: int = 4, **options: Any) -> list[Document]:
        """Run `asimilarity_search` and block until it finishes."""
        return await self.asimilarity_search(query, k, **options)

    @make_awaitable
    async def asimilarity_search_by_vector(
        self, /, embedding: list[float], k: int = 4, **options: Any
    ) -> list[Document]:
        """Return the *k* documents most similar to a vector."""
        return [create_document(hit.record) for hit in await self._search_nearest(embedding, k, **options)]

    @make_blocking
    async def similarity_search_by_vector(
        self, /, embedding: list[float], k: int = 4, **options: Any
    ) -> list[Document]:
        """Run `asimilarity_search_by_vector` and block until it finishes."""
        return await self.asimilarity_search_by_vector(embedding, k, **options)

    @make_awaitable
    async def asimilarity_search_with_score(self, /, *query: Any, **options: Any) -> list[tuple[Document, float]]:
        """Return the documents of `asimilarity_search`, each with its cosine similarity."""
        return [(create_document(hit.record), hit.score) for hit in await self._search_nearest(*query, **options)]

    @make_blocking
    async def similarity_search_with_score(self, /, *query: Any, **options: Any) -> list[tuple[Document, float]]:
        """Run `asimilarity_search_with_score` and block until it finishes."""
        return await self.asimilarity_search_with_score(*query, **options)

    async def _search_with_relevance(self, /, query: str, k: int = 4, **options: Any) -> list[tuple[Document, float]]:
        return [(create_document(hit.record), hit.relevance) for hit in await self._search_nearest(query, k, **options)]

    # LangChain's public methods without the leading underscore call these private ones.
    _similarity_search_with_relevance_scores = make_blocking(_search_with_relevance)
    _asimilarity_search_with_relevance_scores = make_awaitable(_search_with_relevance)

    async def _search_diverse(
        self, query: Any, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[Document]:
        relevance = _check.check_ratio("lambda_mult", lambda_mult)
        hits = await self._search_nearest(query, max(k, fetch_k), **options)
        found = [create_document(hit.record) for hit in hits]
        pieces = await self._bridge.session.records.embed([document.page_content for document in found])
        return [found[row] for row in select_diverse([hit.score for hit in hits], pieces, k, relevance)]

    @make_awaitable
    async def amax_marginal_relevance_search(self, /, query: str, *sizes: Any, **options: Any) -> list[Document]:
        """Return *k* mutually dissimilar documents of the *fetch_k* most similar to a text."""
        return await self._search_diverse(query, *sizes, **options)

    @make_blocking
    async def max_marginal_relevance_search(self, /, query: str, *sizes: Any, **options: Any) -> list[Document]:
        """Run `amax_marginal_relevance_search` and block until it finishes."""
        return await self._search_diverse(query, *sizes, **options)

    @make_awaitable
    async def amax_marginal_relevance_search_by_vector(
        self, /, embedding: list[float], *sizes: Any, **options: Any
    ) -> list[Document]:
        """Return the documents of `amax_marginal_relevance_search` for a vector."""
        return await self._search_diverse(embedding, *sizes, **options)

    @make_blocking
    async def max_marginal_relevance_search_by_vector(
        self, /, embedding: list[float], *sizes: Any, **options: Any
    ) -> list[Document]:
        """Run `amax_marginal_relevance_search_by_vector` and block until it finishes."""
        return await self._search_diverse(embedding, *sizes, **options)
