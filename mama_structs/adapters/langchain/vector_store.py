"""LangChain's vector store on a session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mama_structs import sync
from mama_structs._internal import validation as _check
from mama_structs.adapters.langchain.documents import (
    DocumentFilter,
    Embedding,
    document_of,
    labels_of,
    records_of,
    varied,
    where,
)
from mama_structs.adapters.shared.loop_bridge import Bridge, awaited, blocking
from mama_structs.errors import InvalidArgument
from mama_structs.memory.types.model import Origin
from mama_structs.records import RecordHit
from mama_structs.session.session import Session

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import VectorStore
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.langchain.vector_store needs LangChain: pip install 'mama-structs[langchain]'"
    ) from _missing


class SessionVectorStore(VectorStore):
    """
    LangChain's vector store on a session: documents that the session's own searches find, too.

    Vectors are those of the session's embedder: `langchain_stores.embedder` makes one of LangChain's ``Embeddings``.
    Scores are cosines; relevance scores, 0 to 1, mean the same for every embedder. No score leaves a document out.
    A document that is added under the id of another one takes its place. One without any text is never found.
    ``delete`` without ids deletes the whole collection. What a search does not know among its options is an error.
    Methods that begin with *a* are awaited in any event loop; the others block, in any thread but the session's own.

    Searches take a *filter*: a function of the document, or a mapping of its metadata, of which all must hold.
    ``{"year": 2024}`` is that value, ``{"year": {"$gte": 2020}}`` compares it (``$eq``, ``$ne``, ``$gt``, ``$gte``,
    ``$lt``, ``$lte``, ``$in``, ``$nin``); a field that is not there is None, and neither more nor less than anything.

    Args:
        session: Whose store; it must be open while it is used.
        collection: Which one of the session's collections: those of different names do not see each other.
        origin: Who the documents come from: ``"user"``, ``"model"``, ``"tool"`` or ``"outside"``.

    Raises:
        InvalidArgument: An argument breaks its rule; nothing was stored.
        EmbeddingFailed: The embedder failed; nothing was stored.
        WrongLoop: It is made of an async session outside its event loop, or a call would block that loop.

    """

    def __init__(
        self, session: Session | sync.Session, *, collection: str = "default", origin: Origin = "outside"
    ) -> None:
        self._bridge = Bridge(session)
        self._labels = labels_of(collection)
        self._origin: Origin = origin

    @property
    def embeddings(self) -> Embeddings | None:
        """The ``Embeddings`` that the session's embedder was made of; None for any other embedder."""
        function = getattr(self._bridge.session.memories.embedder, "function", None)
        return function.embeddings if isinstance(function, Embedding) else None

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
        Return a store after adding texts to it.

        Args:
            texts: What is added.
            embedding: The ``Embeddings`` that the session's embedder was made of; None for any.
            metadatas: One for each text.
            ids: One for each text; None for new ones.
            **options: ``session``, which must be given, and the others of the class.

        """
        store = cls._of(embedding, **options)
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
        """Return what `from_texts` does."""
        store = cls._of(embedding, **options)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    def _of(
        cls, embedding: Embeddings | None, *, session: Session | sync.Session | None = None, **options: Any
    ) -> SessionVectorStore:
        store = cls(session, **options)  # type: ignore[arg-type]  # refused there
        if embedding is not None and embedding is not store.embeddings:
            raise InvalidArgument(
                "embedding must be what the session's embedder was made of, or None",
                hint="open the session with embedder=langchain_stores.embedder(embedding, name=..., dimensions=...)",
            )
        return store

    @awaited
    async def aadd_texts(
        self,
        /,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **_options: Any,
    ) -> list[str]:
        """Add texts as documents, all or none, and return their ids: those that were given, else new ones."""
        new = records_of(self._labels, texts, metadatas, ids, origin=self._origin)
        await self._bridge.session.records.put_many(new)
        return [one.key for one in new]

    @blocking
    async def add_texts(
        self, /, texts: Iterable[str], metadatas: list[dict[str, Any]] | None = None, **options: Any
    ) -> list[str]:
        """Do what `aadd_texts` does."""
        return await self.aadd_texts(texts, metadatas, **options)

    @awaited
    async def adelete(self, /, ids: list[str] | None = None, **_options: Any) -> bool:
        """Delete documents, None for all of the collection; those that are not there are no error."""
        records, places = self._bridge.session.records, [(self._labels, key) for key in ids or ()]
        await (records.delete_all(self._labels, nested=False) if ids is None else records.put_many((), delete=places))
        return True

    @blocking
    async def delete(self, /, ids: list[str] | None = None, **_options: Any) -> bool:
        """Do what `adelete` does."""
        return await self.adelete(ids)

    @awaited
    async def aget_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with ids, each once, without those that are not there."""
        found = await self._bridge.session.records.get_many([(self._labels, key) for key in dict.fromkeys(ids)])
        return [document_of(record) for record in found if record is not None]

    @blocking
    async def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Do what `aget_by_ids` does."""
        return await self.aget_by_ids(ids)

    async def _hits(self, query: Any, k: int = 4, *, filter: DocumentFilter | None = None) -> Sequence[RecordHit]:  # noqa: A002 - the host's
        records, takes = self._bridge.session.records, where(filter)
        return await records.nearest(query, self._labels, nested=False, where=takes, limit=k)

    @awaited
    async def asimilarity_search(self, /, query: str, k: int = 4, **options: Any) -> list[Document]:
        """Return the *k* documents nearest to a text."""
        return [document_of(hit.record) for hit in await self._hits(query, k, **options)]

    @blocking
    async def similarity_search(self, /, query: str, k: int = 4, **options: Any) -> list[Document]:
        """Do what `asimilarity_search` does."""
        return await self.asimilarity_search(query, k, **options)

    @awaited
    async def asimilarity_search_by_vector(
        self, /, embedding: list[float], k: int = 4, **options: Any
    ) -> list[Document]:
        """Return the *k* documents nearest to a vector."""
        return [document_of(hit.record) for hit in await self._hits(embedding, k, **options)]

    @blocking
    async def similarity_search_by_vector(
        self, /, embedding: list[float], k: int = 4, **options: Any
    ) -> list[Document]:
        """Do what `asimilarity_search_by_vector` does."""
        return await self.asimilarity_search_by_vector(embedding, k, **options)

    @awaited
    async def asimilarity_search_with_score(self, /, *query: Any, **options: Any) -> list[tuple[Document, float]]:
        """Return the documents that `asimilarity_search` does, each with its cosine."""
        return [(document_of(hit.record), hit.score) for hit in await self._hits(*query, **options)]

    @blocking
    async def similarity_search_with_score(self, /, *query: Any, **options: Any) -> list[tuple[Document, float]]:
        """Do what `asimilarity_search_with_score` does."""
        return await self.asimilarity_search_with_score(*query, **options)

    async def _relevant(self, /, query: str, k: int = 4, **options: Any) -> list[tuple[Document, float]]:
        return [(document_of(hit.record), hit.relevance) for hit in await self._hits(query, k, **options)]

    # These the host's methods of the same names without an underscore call.
    _similarity_search_with_relevance_scores = blocking(_relevant)
    _asimilarity_search_with_relevance_scores = awaited(_relevant)

    async def _diverse(
        self, query: Any, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[Document]:
        relevance = _check.share("lambda_mult", lambda_mult)
        hits = await self._hits(query, max(k, fetch_k), **options)
        found = [document_of(hit.record) for hit in hits]
        pieces = await self._bridge.session.records.embed([document.page_content for document in found])
        return [found[row] for row in varied([hit.score for hit in hits], pieces, k, relevance)]

    @awaited
    async def amax_marginal_relevance_search(self, /, query: str, *sizes: Any, **options: Any) -> list[Document]:
        """Return *k* of the *fetch_k* documents nearest to a text that are not near to each other."""
        return await self._diverse(query, *sizes, **options)

    @blocking
    async def max_marginal_relevance_search(self, /, query: str, *sizes: Any, **options: Any) -> list[Document]:
        """Do what `amax_marginal_relevance_search` does."""
        return await self._diverse(query, *sizes, **options)

    @awaited
    async def amax_marginal_relevance_search_by_vector(
        self, /, embedding: list[float], *sizes: Any, **options: Any
    ) -> list[Document]:
        """Return what `amax_marginal_relevance_search` does, for a vector."""
        return await self._diverse(embedding, *sizes, **options)

    @blocking
    async def max_marginal_relevance_search_by_vector(
        self, /, embedding: list[float], *sizes: Any, **options: Any
    ) -> list[Document]:
        """Do what `amax_marginal_relevance_search_by_vector` does."""
        return await self._diverse(embedding, *sizes, **options)
