"""LangChain's key-value store, retriever and embeddings on a session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any, Final

from mama_structs import sync
from mama_structs._internal import validation as _check
from mama_structs.adapters.langchain.documents import (
    EmbeddingsFunction,
    create_document,
    create_labels,
    decode_value,
    encode_value,
)
from mama_structs.adapters.shared.loop_bridge import LoopBridge, make_awaitable, make_blocking
from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedding.factory import as_embedder
from mama_structs.memory.embedding.protocol import Calibration, Embedder
from mama_structs.memory.graph.results import Hit
from mama_structs.memory.types.record import NewRecord
from mama_structs.session.session import Session

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.stores import BaseStore
    from pydantic import PrivateAttr
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.langchain needs LangChain: pip install 'mama-structs[langchain]'"
    ) from _missing

# Number of keys per read. The number is small, because a read also loads the values.
_PAGE_KEYS: Final = 100


def embedder_from_langchain(
    embeddings: Embeddings,
    *,
    name: str,
    dimensions: int,
    max_tokens: int = 256,
    calibration: Calibration | None = None,
    fingerprint: str = "",
) -> Embedder:
    """
    Create an embedder from LangChain's ``Embeddings``, for ``Session.open(embedder=...)``.

    Args:
        embeddings: The ``Embeddings`` to call; its async methods are used.
        name: The embedder's name in the store, such as the model's name.
        dimensions: The length of a vector.
        max_tokens: Maximum length of a text in tokens, at least 8; a longer one is embedded in chunks.
        calibration: The meaning of its cosines; None: measured on built-in sentences before its first use.
        fingerprint: A text that must change whenever the vectors do. If it is empty, name and dimensions are used.

    Raises:
        InvalidArgument: An argument is invalid.

    """
    if not isinstance(embeddings, Embeddings):
        raise InvalidArgument(f"embeddings must be Embeddings of LangChain, got {type(embeddings).__name__}")
    return as_embedder(
        EmbeddingsFunction(embeddings),
        name=name,
        dimensions=dimensions,
        max_tokens=max_tokens,
        calibration=calibration,
        fingerprint=fingerprint,
    )


class SessionKeyValueStore(BaseStore[str, Any]):
    """
    LangChain's key-value store on a session, for ``bytes``, documents and JSON values.

    For ``bytes`` it is a ``ByteStore``.

    Stored values are not memories: search does not find them. Each call is one transaction, and durable when it
    returns. Methods with the prefix *a* are awaited in any event loop; the others block, in any thread except the
    session's own.

    Args:
        session: The session that stores the values; it must be open while the store is used.
        name: The name of this store within the session. Stores with different names are isolated from each other.

    Raises:
        InvalidArgument: A name, a key or a value is invalid; nothing was stored.
        WrongLoop: The session is async and this is not its event loop, or a call would block that loop.

    """

    def __init__(self, session: Session | sync.Session, *, name: str = "default") -> None:
        self._bridge = LoopBridge(session)
        self._labels = ("langchain", "kv", _check.check_text("name", name))

    @make_awaitable
    async def amget(self, keys: Sequence[str]) -> list[Any]:
        """Return the values of keys, None for each missing key."""
        found = await self._bridge.session.records.get_many([(self._labels, key) for key in keys])
        return [None if record is None else decode_value(record.value) for record in found]

    @make_blocking
    async def mget(self, keys: Sequence[str]) -> list[Any]:
        """Run `amget` and block until it finishes."""
        return await self.amget(keys)

    @make_awaitable
    async def amset(self, key_value_pairs: Sequence[tuple[str, Any]]) -> None:
        """Store values under their keys, all or none."""
        new = [NewRecord(self._labels, key, encode_value(value)) for key, value in key_value_pairs]
        await self._bridge.session.records.put_many(new)

    @make_blocking
    async def mset(self, key_value_pairs: Sequence[tuple[str, Any]]) -> None:
        """Run `amset` and block until it finishes."""
        await self.amset(key_value_pairs)

    @make_awaitable
    async def amdelete(self, keys: Sequence[str]) -> None:
        """Delete keys; missing keys are ignored."""
        await self._bridge.session.records.put_many((), delete=[(self._labels, key) for key in keys])

    @make_blocking
    async def mdelete(self, keys: Sequence[str]) -> None:
        """Run `amdelete` and block until it finishes."""
        await self.amdelete(keys)

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """
        Yield the keys that begin with *prefix*.

        Keys added during the iteration may be included.
        """
        after: str | None = None
        while page := self._bridge.run(partial(self._load_page, prefix, after)):
            yield from page
            after = page[-1]

    async def ayield_keys(self, *, prefix: str | None = None) -> AsyncIterator[str]:
        """Yield the keys as `yield_keys` does."""
        after: str | None = None
        while page := await self._bridge.arun(partial(self._load_page, prefix, after)):
            for key in page:
                yield key
            after = page[-1]

    async def _load_page(self, prefix: str | None, after: str | None) -> list[str]:
        records = self._bridge.session.records
        page = await records.list(self._labels, nested=False, prefix=prefix or "", cursor=after, limit=_PAGE_KEYS)
        return [record.key for record in page]


class SessionRetriever(BaseRetriever):
    """
    LangChain's retriever on a session.

    It finds by meaning, words, links and time, as `MemoryStore.search` does.

    A document's text is the memory's followed by its reasoning, and its id is the memory's.
    Its metadata has ``type``, ``created_at``, ``origin``, ``trust``, ``relevance``, and if available ``topic``,
    ``reasoning``, ``outcome``, ``superseded_by``, ``labels`` and ``key``.
    ``ainvoke`` is awaited in any event loop; ``invoke`` blocks, in any thread except the session's own.
    Both accept *k*, too.

    Args:
        session: The session with the memories; it must be open while the retriever is used.
        k: Maximum number of documents.
        type: Only memories of this type or these types; None for all, including the documents of vector stores.
        min_relevance: Only hits with at least this relevance, 0 to 1; None for the best hits of any relevance.
        collection: Only documents of this collection of a `SessionVectorStore`, as they were added but with
            ``relevance`` in their metadata; found by words as well as by meaning.

    Raises:
        InvalidArgument: An argument is invalid.
        EmbeddingFailed: The embedder failed.
        WrongLoop: The session is async and this is not its event loop, or a call would block that loop.

    """

    session: Any
    k: int = 4
    type: str | tuple[str, ...] | None = None
    min_relevance: float | None = None
    collection: str | None = None
    _bridge: LoopBridge = PrivateAttr()

    def __init__(self, session: Session | sync.Session, **options: Any) -> None:
        fields: dict[str, Any] = {"session": session, **options}
        super().__init__(**fields)
        self._bridge = LoopBridge(session)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002 - passed by keyword
        k: int | None = None,
    ) -> list[Document]:
        return self._bridge.run(lambda: self._find_documents(query, k))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,  # noqa: ARG002 - passed by keyword
        k: int | None = None,
    ) -> list[Document]:
        return await self._bridge.arun(lambda: self._find_documents(query, k))

    async def _find_documents(self, query: str, k: int | None) -> list[Document]:
        session, limit = self._bridge.session, self.k if k is None else k
        if self.collection is None:
            hits = await session.memories.search(query, type=self.type, limit=limit, min_relevance=self.min_relevance)
            return [_create_memory_document(hit) for hit in hits]
        labels = create_labels(self.collection)
        found = await session.records.search(query, labels, nested=False, limit=limit, min_relevance=self.min_relevance)
        return [create_document(hit.record, relevance=hit.relevance) for hit in found]


def _create_memory_document(hit: Hit) -> Document:
    memory = hit.memory
    own = {name: getattr(memory.metadata, name, None) for name in ("reasoning", "outcome", "labels", "key")}
    fields = {
        "type": memory.type.value,
        "created_at": memory.created_at.isoformat(),
        "origin": memory.origin,
        "trust": memory.trust,
        "relevance": hit.relevance,
        "topic": memory.topic,
        "superseded_by": hit.superseded_by,
        **own,
    }
    return Document(
        id=memory.id,
        page_content="\n".join(text for text in (memory.content, own["reasoning"]) if text),
        metadata={name: value for name, value in fields.items() if value is not None},
    )
