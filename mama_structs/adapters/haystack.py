"""Haystack's document store on a session's records; needs the extra ``haystack``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Self, TypeAlias

from mama_structs.adapters._bridge import blocking
from mama_structs.adapters._haystack import HOST, Connected, Where, document_of, told_of
from mama_structs.errors import VersionConflict
from mama_structs.memory.records import check_labels
from mama_structs.records import HostRecord, NewRecord

try:
    from haystack import Document, default_from_dict, default_to_dict
    from haystack.document_stores.errors import DuplicateDocumentError
    from haystack.document_stores.in_memory import InMemoryDocumentStore
    from haystack.document_stores.types import DuplicatePolicy
    from haystack.utils.filters import document_matches_filter
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.haystack needs Haystack: pip install 'mama-structs[haystack]'"
    ) from _missing

Filters: TypeAlias = dict[str, Any] | None


class HaystackDocumentStore(Connected):
    """
    Documents that last, found by meaning and words, by their embeddings and by Haystack's filters.

    Each document is a record, so the session's own search and recall, and every other host on the same namespace, find
    what it says. A write is on disk when it returns, all of it or nothing. Documents come in the order of writing.
    Each method has a twin that is awaited, ``..._async``. Both work in every thread and event loop, but for an async
    session, in whose own loop only the twins do.

    Args:
        session: A session, or the place of one that is opened at the first use and closed by `close`: a directory,
            a server's URL, or a Secret that holds either. It embeds what documents say; what Haystack's embedders give
            is kept beside it.
        collection: Documents of other collections are neither seen nor replaced.
        namespace: Of a session that is opened here.
        embedding_similarity_function: How `embedding_retrieval` compares.

    """

    def __init__(
        self,
        session: Where,
        *,
        collection: str = "default",
        namespace: str = "default",
        embedding_similarity_function: Literal["cosine", "dot_product"] = "cosine",
    ) -> None:
        super().__init__(session, namespace=namespace)
        self.collection = check_labels((collection,), "collection")[0]
        self.embedding_similarity_function = embedding_similarity_function
        self._labels = (HOST, "documents", collection)

    def to_dict(self) -> dict[str, Any]:
        """Return what a pipeline's file says; `InvalidArgument` for a temporary session, or a URL with a password."""
        similarity = self.embedding_similarity_function
        return default_to_dict(
            self, **self._place(), collection=self.collection, embedding_similarity_function=similarity
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the store that a pipeline's file describes."""
        return default_from_dict(cls, data)

    async def count_documents_async(self) -> int:
        """Return how many documents there are."""
        return len(await self._records())

    async def filter_documents_async(self, filters: Filters = None) -> list[Document]:
        """Return the documents that match Haystack's *filters*, all without any; `FilterError` for wrong ones."""
        return [document_of(one) for one in await self._records(filters)]

    async def write_documents_async(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """
        Write all documents or none, and return how many were written.

        Args:
            documents: What to write.
            policy: What happens to one whose id is there; NONE is FAIL.

        Raises:
            DuplicateDocumentError: By FAIL, an id is there, or comes twice.
            ValueError: *documents* is no list of documents, or their metadata are no JSON.

        """
        if not isinstance(documents, list) or not all(isinstance(one, Document) for one in documents):
            raise ValueError("documents must be a list of Document")
        return await self._bridge.arun(lambda: self._write(documents, policy))

    async def delete_documents_async(self, document_ids: list[str]) -> None:
        """Delete documents; an id that is not there is passed over."""
        records = self._bridge.session.records
        places = [(self._labels, one) for one in document_ids]
        await self._bridge.arun(lambda: records.put_many([], delete=places))

    async def delete_all_documents_async(self) -> None:
        """Delete the documents of this collection."""
        await self._bridge.arun(lambda: self._bridge.session.records.delete_all(self._labels))

    async def delete_by_filter_async(self, filters: dict[str, Any]) -> int:
        """Delete the documents that match, and return how many."""
        found = await self._records(filters)
        await self.delete_documents_async([one.key for one in found])
        return len(found)

    async def update_by_filter_async(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Put *meta* over the metadata of the documents that match, and return how many."""
        while True:
            found = await self._records(filters)
            new = [
                self._new(
                    document_of(one, meta={**one.value["document"]["meta"], **meta}),
                    one.value["place"],
                    if_version=one.version,
                )
                for one in found
            ]
            try:
                await self._bridge.arun(partial(self._bridge.session.records.put_many, new))
            except VersionConflict:
                continue
            return len(found)

    async def retrieve_async(self, query: str, *, filters: Filters = None, top_k: int = 10) -> list[Document]:
        """Return the documents that fit a question by meaning and words, the best first, with their scores."""
        where = _where(filters)
        if not top_k:
            return []
        hits = await self._bridge.arun(
            lambda: self._bridge.session.records.search(query, self._labels, where=where, limit=top_k)
        )
        return [document_of(hit.record, score=hit.score) for hit in hits]

    async def embedding_retrieval_async(
        self, query_embedding: list[float], *, filters: Filters = None, top_k: int = 10, return_embedding: bool = False
    ) -> list[Document]:
        """Return the documents whose own embeddings are nearest, the best first; it compares with each of them."""
        copy = await self._copy(filters)
        return copy.embedding_retrieval(query_embedding, top_k=top_k, return_embedding=return_embedding)

    async def count_documents_by_filter_async(self, filters: dict[str, Any]) -> int:
        """Return how many documents match."""
        return len(await self._records(filters))

    async def count_unique_metadata_by_filter_async(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        """Return how many values each field of the metadata has among the documents that match."""
        return (await self._copy(filters)).count_unique_metadata_by_filter({}, metadata_fields)

    async def get_metadata_fields_info_async(self) -> dict[str, dict[str, str]]:
        """Return the fields of the metadata with their types."""
        return (await self._copy()).get_metadata_fields_info()

    async def get_metadata_field_min_max_async(self, metadata_field: str) -> dict[str, Any]:
        """Return the least and the greatest value of a field, None for both where there is none."""
        return (await self._copy()).get_metadata_field_min_max(metadata_field)

    async def get_metadata_field_unique_values_async(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: Filters = None,
    ) -> tuple[list[Any], int]:
        """Return some of the values of a field, in order, and how many there are."""
        return (await self._copy(filters)).get_metadata_field_unique_values(metadata_field, search_term, from_, size)

    count_documents = blocking(count_documents_async)
    filter_documents = blocking(filter_documents_async)
    write_documents = blocking(write_documents_async)
    delete_documents = blocking(delete_documents_async)
    delete_all_documents = blocking(delete_all_documents_async)
    delete_by_filter = blocking(delete_by_filter_async)
    update_by_filter = blocking(update_by_filter_async)
    retrieve = blocking(retrieve_async)
    embedding_retrieval = blocking(embedding_retrieval_async)
    count_documents_by_filter = blocking(count_documents_by_filter_async)
    count_unique_metadata_by_filter = blocking(count_unique_metadata_by_filter_async)
    get_metadata_fields_info = blocking(get_metadata_fields_info_async)
    get_metadata_field_min_max = blocking(get_metadata_field_min_max_async)
    get_metadata_field_unique_values = blocking(get_metadata_field_unique_values_async)

    async def _records(self, filters: Filters = None) -> list[HostRecord]:
        """Return the records of documents that match, in the order of their writing."""
        where = _where(filters)
        records = self._bridge.session.records
        found = await self._bridge.arun(lambda: records.list(self._labels, nested=False, where=where))
        return sorted(found, key=lambda one: one.value["place"])

    async def _copy(self, filters: Filters = None) -> InMemoryDocumentStore:
        """Return a store of Haystack's own with the documents that match: it knows how to compare and count them."""
        similarity = self.embedding_similarity_function
        copy = InMemoryDocumentStore(shared=False, embedding_similarity_function=similarity)
        copy.write_documents(await self.filter_documents_async(filters))
        return copy

    async def _write(self, documents: list[Document], policy: DuplicatePolicy) -> int:
        records = self._bridge.session.records
        # Times of records are too coarse to say which of two documents was written first.
        now = time.time_ns()
        if policy is DuplicatePolicy.OVERWRITE:
            await records.put_many([self._new(one, place) for place, one in enumerate(documents, now)])
            return len(documents)
        new: dict[str, NewRecord] = {}
        for place, one in enumerate(documents, now):
            new.setdefault(one.id, self._new(one, place, if_version=0))
        skips = policy is DuplicatePolicy.SKIP
        if len(new) < len(documents) and not skips:
            raise DuplicateDocumentError("an id comes twice in what is to be written")
        while True:
            if skips:
                there = await records.get_many([(self._labels, one) for one in new])
                new = {one: new[one] for one, known in zip(new, there, strict=True) if known is None}
            try:
                await records.put_many(new.values())
            except VersionConflict as error:
                if skips:
                    continue
                raise DuplicateDocumentError(f"ID '{error.key}' already exists.") from error
            return len(new)

    def _new(self, document: Document, place: int, *, if_version: int | None = None) -> NewRecord:
        value = {"document": told_of(document), "place": place}
        longest = self._bridge.session.settings.memory.max_content
        return NewRecord(
            self._labels, document.id, value, text=(document.content or "")[:longest], if_version=if_version
        )


def _where(filters: Filters) -> Callable[[HostRecord], bool] | None:
    """Return what tells whether a record's document matches, None where all do."""
    if not filters:
        return None
    if "operator" not in filters and "conditions" not in filters:
        raise ValueError("filters need an operator, and conditions or a field: see Haystack's metadata filtering")
    return lambda record: document_matches_filter(filters, document_of(record))
