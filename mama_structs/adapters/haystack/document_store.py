"""Haystack's document store on a session's records; needs the extra ``haystack``."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, Self

from mama_structs.adapters.haystack.connection import SessionLocation
from mama_structs.adapters.haystack.documents import DocumentRecords, Filters, create_record_filter, restore_document
from mama_structs.errors import VersionConflict
from mama_structs.memory.types.model import Origin

try:
    from haystack import Document, default_from_dict, default_to_dict
    from haystack.document_stores.types import DuplicatePolicy
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.haystack needs Haystack: pip install 'mama-structs[haystack]'"
    ) from _missing


class HaystackDocumentStore(DocumentRecords):
    """
    Persistent documents that can be searched by text or embedding, and with Haystack's filters.

    Each document is a record, so the session's own search and recall, and every other host on the same namespace, find
    its text. A write is durable when it returns, all or nothing. Documents are ordered by the time of writing.
    Each method has an awaitable twin, ``..._async``. Both work in every thread and event loop, except in the own loop
    of an async session, where only the twins work.

    Args:
        session: A session, or the location of one that is opened at the first use and closed by `close`: a directory,
            a server's URL, or a Secret that contains either. It embeds the text of documents; embeddings by Haystack
            are stored in addition.
        collection: The documents of other collections are neither visible nor replaced.
        namespace: The namespace of a session that is opened here.
        embedding_similarity_function: The similarity that `embedding_retrieval` uses.
        origin: The author of the documents: ``"user"``, ``"model"``, ``"tool"`` or ``"outside"``. It determines how
            recall marks them.

    """

    def __init__(
        self,
        session: SessionLocation,
        *,
        collection: str = "default",
        namespace: str = "default",
        embedding_similarity_function: Literal["cosine", "dot_product"] = "cosine",
        origin: Origin = "outside",
    ) -> None:
        super().__init__(
            session,
            collection=collection,
            namespace=namespace,
            similarity=embedding_similarity_function,
            origin=origin,
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Return the store's serialized form for a pipeline file.

        Raise `InvalidArgument` for a temporary session, or a URL with a password.
        """
        similarity = self.embedding_similarity_function
        return default_to_dict(
            self,
            **self._serialize_location(),
            collection=self.collection,
            embedding_similarity_function=similarity,
            origin=self.origin,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return a store from its serialized form."""
        return default_from_dict(cls, data)

    def count_documents(self) -> int:
        """Run `count_documents_async` and block until it finishes."""
        return self._bridge.run(self.count_documents_async)

    async def count_documents_async(self) -> int:
        """Return the number of documents."""
        return len(await self._records())

    def filter_documents(self, filters: Filters = None) -> list[Document]:
        """Run `filter_documents_async` and block until it finishes."""
        return self._bridge.run(lambda: self.filter_documents_async(filters))

    async def filter_documents_async(self, filters: Filters = None) -> list[Document]:
        """
        Return the documents that match Haystack's *filters*, or all without filters.

        Raise `FilterError` for invalid filters.
        """
        return [restore_document(one) for one in await self._records(filters)]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Run `write_documents_async` and block until it finishes."""
        return self._bridge.run(lambda: self.write_documents_async(documents, policy))

    async def write_documents_async(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """
        Write all documents or none, and return how many were written.

        Args:
            documents: The documents to write.
            policy: How to handle a document with an existing id; NONE means FAIL.

        Raises:
            DuplicateDocumentError: With FAIL, an id exists already or occurs twice.
            ValueError: *documents* is not a list of documents, or their metadata is not JSON.

        """
        if not isinstance(documents, list) or not all(isinstance(one, Document) for one in documents):
            raise ValueError("documents must be a list of Document")
        return await self._bridge.arun(lambda: self._write(documents, policy))

    def delete_documents(self, document_ids: list[str]) -> None:
        """Run `delete_documents_async` and block until it finishes."""
        self._bridge.run(lambda: self.delete_documents_async(document_ids))

    async def delete_documents_async(self, document_ids: list[str]) -> None:
        """Delete documents; unknown ids are ignored."""
        records = self._bridge.session.records
        places = [(self._labels, one) for one in document_ids]
        await self._bridge.arun(lambda: records.put_many([], delete=places))

    def delete_all_documents(self) -> None:
        """Run `delete_all_documents_async` and block until it finishes."""
        self._bridge.run(self.delete_all_documents_async)

    async def delete_all_documents_async(self) -> None:
        """Delete the documents of this collection."""
        await self._bridge.arun(lambda: self._bridge.session.records.delete_all(self._labels))

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Run `delete_by_filter_async` and block until it finishes."""
        return self._bridge.run(lambda: self.delete_by_filter_async(filters))

    async def delete_by_filter_async(self, filters: dict[str, Any]) -> int:
        """Delete the matching documents, and return how many were deleted."""
        found = await self._records(filters)
        await self.delete_documents_async([one.key for one in found])
        return len(found)

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Run `update_by_filter_async` and block until it finishes."""
        return self._bridge.run(lambda: self.update_by_filter_async(filters, meta))

    async def update_by_filter_async(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """
        Merge *meta* into the metadata of the matching documents, and return their number.

        Args:
            filters: Haystack filters.
            meta: The metadata to merge.

        """
        while True:
            found = await self._records(filters)
            new = [
                self._create_record(
                    restore_document(one, meta={**one.value["document"]["meta"], **meta}),
                    one.value["place"],
                    if_version=one.version,
                    origin=one.origin,
                )
                for one in found
            ]
            try:
                await self._bridge.arun(partial(self._bridge.session.records.put_many, new))
            except VersionConflict:
                continue
            return len(found)

    def retrieve(self, query: str, *, filters: Filters = None, top_k: int = 10) -> list[Document]:
        """Run `retrieve_async` and block until it finishes."""
        return self._bridge.run(lambda: self.retrieve_async(query, filters=filters, top_k=top_k))

    async def retrieve_async(self, query: str, *, filters: Filters = None, top_k: int = 10) -> list[Document]:
        """
        Search documents by vector similarity and keywords. Return them with their scores, best first.

        Args:
            query: The text to search for.
            filters: Haystack filters; None for all documents.
            top_k: The maximum number of documents.

        """
        where = create_record_filter(filters)
        if not top_k:
            return []
        hits = await self._bridge.arun(
            lambda: self._bridge.session.records.search(query, self._labels, predicate=where, limit=top_k)
        )
        return [restore_document(hit.record, score=hit.score) for hit in hits]

    def embedding_retrieval(
        self, query_embedding: list[float], *, filters: Filters = None, top_k: int = 10, return_embedding: bool = False
    ) -> list[Document]:
        """Run `embedding_retrieval_async` and block until it finishes."""
        return self._bridge.run(
            lambda: self.embedding_retrieval_async(
                query_embedding, filters=filters, top_k=top_k, return_embedding=return_embedding
            )
        )

    async def embedding_retrieval_async(
        self, query_embedding: list[float], *, filters: Filters = None, top_k: int = 10, return_embedding: bool = False
    ) -> list[Document]:
        """
        Return the documents whose stored embeddings are most similar to the query, best first.

        It compares the query with every matching document.

        Args:
            query_embedding: The vector of the query.
            filters: Haystack filters; None for all documents.
            top_k: The maximum number of documents.
            return_embedding: Whether the documents contain their vectors.

        """
        copy = await self._load_in_memory_store(filters)
        return copy.embedding_retrieval(query_embedding, top_k=top_k, return_embedding=return_embedding)

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Run `count_documents_by_filter_async` and block until it finishes."""
        return self._bridge.run(lambda: self.count_documents_by_filter_async(filters))

    async def count_documents_by_filter_async(self, filters: dict[str, Any]) -> int:
        """Return the number of matching documents."""
        return len(await self._records(filters))

    def count_unique_metadata_by_filter(self, filters: dict[str, Any], metadata_fields: list[str]) -> dict[str, int]:
        """Run `count_unique_metadata_by_filter_async` and block until it finishes."""
        return self._bridge.run(lambda: self.count_unique_metadata_by_filter_async(filters, metadata_fields))

    async def count_unique_metadata_by_filter_async(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        """
        Return the number of distinct values per metadata field of the matching documents.

        Args:
            filters: Haystack filters; None for all documents.
            metadata_fields: The names of the fields.

        """
        return (await self._load_in_memory_store(filters)).count_unique_metadata_by_filter({}, metadata_fields)

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """Run `get_metadata_fields_info_async` and block until it finishes."""
        return self._bridge.run(self.get_metadata_fields_info_async)

    async def get_metadata_fields_info_async(self) -> dict[str, dict[str, str]]:
        """Return the metadata fields with their types."""
        return (await self._load_in_memory_store()).get_metadata_fields_info()

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """Run `get_metadata_field_min_max_async` and block until it finishes."""
        return self._bridge.run(lambda: self.get_metadata_field_min_max_async(metadata_field))

    async def get_metadata_field_min_max_async(self, metadata_field: str) -> dict[str, Any]:
        """Return the minimum and maximum of a field, or None for both if it has no values."""
        return (await self._load_in_memory_store()).get_metadata_field_min_max(metadata_field)

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: Filters = None,
    ) -> tuple[list[Any], int]:
        """Run `get_metadata_field_unique_values_async` and block until it finishes."""
        return self._bridge.run(
            lambda: self.get_metadata_field_unique_values_async(metadata_field, search_term, from_, size, filters)
        )

    async def get_metadata_field_unique_values_async(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: Filters = None,
    ) -> tuple[list[Any], int]:
        """
        Return a page of a field's distinct values, sorted, and their total number.

        Args:
            metadata_field: The name of the field.
            search_term: Only values that contain this text; None for all.
            from_: The number of values to skip.
            size: The maximum number of values.
            filters: Haystack filters; None for all documents.

        """
        return (await self._load_in_memory_store(filters)).get_metadata_field_unique_values(
            metadata_field, search_term, from_, size
        )
