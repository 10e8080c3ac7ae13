"""LangChain's key-value store and retriever on a session, and embedders made of its ``Embeddings``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any, Final

from mama_structs import sync
from mama_structs._internal import validation as _check
from mama_structs.adapters.langchain.documents import Embedding, document_of, labels_of, packed, unpacked
from mama_structs.adapters.shared.loop_bridge import Bridge, awaited, blocking
from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedding.factory import CallableEmbedder, as_embedder
from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.graph.results import Hit
from mama_structs.records import NewRecord
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
        "mama_structs.adapters.langchain.stores needs LangChain: pip install 'mama-structs[langchain]'"
    ) from _missing

# Keys that are read at once: their values come along.
_PAGE: Final = 100


def embedder(
    embeddings: Embeddings,
    *,
    name: str,
    dimensions: int,
    max_tokens: int = 256,
    calibration: Calibration | None = None,
    fingerprint: str = "",
) -> CallableEmbedder:
    """
    Make an embedder of LangChain's ``Embeddings``, for ``Session.open(embedder=...)``.

    Args:
        embeddings: What embeds; its async methods are called.
        name: What it is called in the store, such as the model's name.
        dimensions: How many numbers a vector has.
        max_tokens: How long a text may be, 8 or more; a longer one is embedded in pieces.
        calibration: What its cosines mean; None: found out on built-in sentences before its first use.
        fingerprint: A text to change whenever its vectors do; name and dimensions stand for it where it is empty.

    Raises:
        InvalidArgument: An argument breaks its rule.

    """
    if not isinstance(embeddings, Embeddings):
        raise InvalidArgument(f"embeddings must be Embeddings of LangChain, got {type(embeddings).__name__}")
    return as_embedder(
        Embedding(embeddings),
        name=name,
        dimensions=dimensions,
        max_tokens=max_tokens,
        calibration=calibration,
        fingerprint=fingerprint,
    )


class SessionKeyValueStore(BaseStore[str, Any]):
    """
    LangChain's key-value store on a session: for ``bytes`` (a ``ByteStore``), for documents, and for what is JSON.

    What is stored here is no memory: no search finds it. Each call is one transaction, and on disk when it returns.
    Methods that begin with *a* are awaited in any event loop; the others block, in any thread but the session's own.

    Args:
        session: Whose store; it must be open while it is used.
        name: Which one of the session's stores: those of different names do not see each other.

    Raises:
        InvalidArgument: A name, a key or a value breaks its rule; nothing was stored.
        WrongLoop: It is made of an async session outside its event loop, or a call would block that loop.

    """

    def __init__(self, session: Session | sync.Session, *, name: str = "default") -> None:
        self._bridge = Bridge(session)
        self._labels = ("langchain", "kv", _check.text("name", name))

    @awaited
    async def amget(self, keys: Sequence[str]) -> list[Any]:
        """Return the values of keys, None for each that is not there."""
        found = await self._bridge.session.records.get_many([(self._labels, key) for key in keys])
        return [None if record is None else unpacked(record.value) for record in found]

    @blocking
    async def mget(self, keys: Sequence[str]) -> list[Any]:
        """Do what `amget` does."""
        return await self.amget(keys)

    @awaited
    async def amset(self, key_value_pairs: Sequence[tuple[str, Any]]) -> None:
        """Store values under their keys, all or none."""
        new = [NewRecord(self._labels, key, packed(value)) for key, value in key_value_pairs]
        await self._bridge.session.records.put_many(new)

    @blocking
    async def mset(self, key_value_pairs: Sequence[tuple[str, Any]]) -> None:
        """Do what `amset` does."""
        await self.amset(key_value_pairs)

    @awaited
    async def amdelete(self, keys: Sequence[str]) -> None:
        """Delete keys; those that are not there are no error."""
        await self._bridge.session.records.put_many((), delete=[(self._labels, key) for key in keys])

    @blocking
    async def mdelete(self, keys: Sequence[str]) -> None:
        """Do what `amdelete` does."""
        await self.amdelete(keys)

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """Yield the keys that begin with *prefix*; those that come meanwhile may be among them."""
        after: str | None = None
        while page := self._bridge.run(partial(self._page, prefix, after)):
            yield from page
            after = page[-1]

    async def ayield_keys(self, *, prefix: str | None = None) -> AsyncIterator[str]:
        """Yield the keys as `yield_keys` does."""
        after: str | None = None
        while page := await self._bridge.arun(partial(self._page, prefix, after)):
            for key in page:
                yield key
            after = page[-1]

    async def _page(self, prefix: str | None, after: str | None) -> list[str]:
        records = self._bridge.session.records
        page = await records.list(self._labels, nested=False, prefix=prefix or "", after=after, limit=_PAGE)
        return [record.key for record in page]


class SessionRetriever(BaseRetriever):
    """
    LangChain's retriever on a session: finds by meaning, words, links and time, as `MemoryStore.search` does.

    A document's text is the memory's, with its reasoning behind it, and its id the memory's.
    Its metadata have ``type``, ``created_at``, ``origin``, ``trust``, ``relevance``, and where there are any ``topic``,
    ``reasoning``, ``outcome``, ``superseded_by``, ``labels`` and ``key``.
    ``ainvoke`` is awaited in any event loop; ``invoke`` blocks, in any thread but the session's own.
    Both take *k*, too.

    Args:
        session: Whose memories; it must be open while it is used.
        k: Documents at the most.
        types: Only memories of these types; None for all, the documents of vector stores among them.
        min_relevance: Only what answers so well, 0 to 1; None for the best, however little they say.
        collection: Only documents of this collection of a `SessionVectorStore`, as they were added but for
            ``relevance`` in their metadata; found by their words as well as by their meaning.

    Raises:
        InvalidArgument: An argument breaks its rule.
        EmbeddingFailed: The embedder failed.
        WrongLoop: It is made of an async session outside its event loop, or a call would block that loop.

    """

    session: Any
    k: int = 4
    types: tuple[str, ...] | None = None
    min_relevance: float | None = None
    collection: str | None = None
    _bridge: Bridge = PrivateAttr()

    def __init__(self, session: Session | sync.Session, **options: Any) -> None:
        fields: dict[str, Any] = {"session": session, **options}
        super().__init__(**fields)
        self._bridge = Bridge(session)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002 - by its name
        k: int | None = None,
    ) -> list[Document]:
        return self._bridge.run(lambda: self._found(query, k))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,  # noqa: ARG002 - by its name
        k: int | None = None,
    ) -> list[Document]:
        return await self._bridge.arun(lambda: self._found(query, k))

    async def _found(self, query: str, k: int | None) -> list[Document]:
        session, limit = self._bridge.session, self.k if k is None else k
        if self.collection is None:
            hits = await session.memories.search(query, types=self.types, limit=limit, min_relevance=self.min_relevance)
            return [_remembered(hit) for hit in hits]
        labels = labels_of(self.collection)
        found = await session.records.search(query, labels, nested=False, limit=limit, min_relevance=self.min_relevance)
        return [document_of(hit.record, relevance=hit.relevance) for hit in found]


def _remembered(hit: Hit) -> Document:
    memory = hit.memory
    own = {name: getattr(memory.metadata, name, None) for name in ("reasoning", "outcome", "labels", "key")}
    said = {
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
        metadata={name: value for name, value in said.items() if value is not None},
    )
