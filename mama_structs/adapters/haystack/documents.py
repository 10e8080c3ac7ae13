"""Conversion between Haystack's documents and records; needs the extra ``haystack``."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mama_structs._internal import validation as _check
from mama_structs.adapters.haystack.connection import HOST_LABEL, SessionComponent, SessionLocation
from mama_structs.errors import InvalidArgument, VersionConflict
from mama_structs.memory.types.model import ORIGINS, Origin
from mama_structs.memory.types.record import NewRecord, Record, check_labels

try:
    from haystack import Document
    from haystack.document_stores.errors import DuplicateDocumentError
    from haystack.document_stores.in_memory import InMemoryDocumentStore
    from haystack.document_stores.types import DuplicatePolicy
    from haystack.utils.filters import document_matches_filter
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.haystack needs Haystack: pip install 'mama-structs[haystack]'"
    ) from _missing

Filters: TypeAlias = dict[str, Any] | None


class DocumentRecords(SessionComponent):
    """Reads, copies and writes the records of one collection's documents."""

    def __init__(
        self,
        session: SessionLocation,
        *,
        collection: str,
        namespace: str,
        similarity: Literal["cosine", "dot_product"],
        origin: Origin,
    ) -> None:
        super().__init__(session, namespace=namespace)
        self.collection: str = check_labels((collection,), "collection")[0]
        self.embedding_similarity_function = similarity
        self.origin: Origin = _check.check_choice("origin", origin, ORIGINS)
        self._labels = (HOST_LABEL, "documents", collection)

    async def _records(self, filters: Filters = None) -> list[Record]:
        """Return the records of matching documents, in the order in which they were written."""
        where = create_record_filter(filters)
        records = self._bridge.session.records
        found = await self._bridge.arun(lambda: records.list(self._labels, nested=False, predicate=where))
        return sorted(found, key=lambda one: one.value["place"])

    async def _load_in_memory_store(self, filters: Filters = None) -> InMemoryDocumentStore:
        """Copy the matching documents to an `InMemoryDocumentStore`, which implements Haystack's queries."""
        similarity = self.embedding_similarity_function
        copy = InMemoryDocumentStore(shared=False, embedding_similarity_function=similarity)
        copy.write_documents([restore_document(one) for one in await self._records(filters)])
        return copy

    async def _write(self, documents: list[Document], policy: DuplicatePolicy) -> int:
        records = self._bridge.session.records
        # Order documents by this counter, because documents of one write have equal record timestamps.
        now = time.time_ns()
        if policy is DuplicatePolicy.OVERWRITE:
            await records.put_many([self._create_record(one, place) for place, one in enumerate(documents, now)])
            return len(documents)
        new: dict[str, NewRecord] = {}
        for place, one in enumerate(documents, now):
            new.setdefault(one.id, self._create_record(one, place, if_version=0))
        skips = policy is DuplicatePolicy.SKIP
        if len(new) < len(documents) and not skips:
            raise DuplicateDocumentError("documents contain a duplicate id")
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

    def _create_record(
        self, document: Document, place: int, *, if_version: int | None = None, origin: Origin | None = None
    ) -> NewRecord:
        """
        Create the record of a document.

        For an update, *origin* is the author of the old version.
        """
        value = {"document": serialize_document(document), "place": place}
        longest = self._bridge.session.settings.memory.max_content
        return NewRecord(
            self._labels,
            document.id,
            value,
            text=(document.content or "")[:longest],
            origin=origin or self.origin,
            if_version=if_version,
        )


def create_record_filter(filters: Filters) -> Callable[[Record], bool] | None:
    """Return a predicate for records of matching documents, or None without filters."""
    if not filters:
        return None
    if "operator" not in filters and "conditions" not in filters:
        raise ValueError("filters need an operator, and conditions or a field: see Haystack's metadata filtering")
    return lambda record: document_matches_filter(filters, restore_document(record))


def serialize_document(document: Document) -> dict[str, Any]:
    """Return a document as JSON, with its embedding and bytes encoded in base64."""
    fields = {name: value for name, value in document.to_dict(flatten=False).items() if value is not None}
    if document.embedding is not None:
        fields["embedding"] = _encode_bytes(_check_embedding(document.embedding).tobytes())
    if document.blob is not None:
        fields["blob"]["data"] = _encode_bytes(document.blob.data)
    return fields


def restore_document(record: Record, **changes: Any) -> Document:
    """Return the document of a record. *changes* replaces fields of the document."""
    fields = {**record.value["document"], **changes}
    if "embedding" in fields:
        fields["embedding"] = np.frombuffer(base64.b64decode(fields["embedding"]), dtype="<f8").tolist()
    if "blob" in fields:
        fields["blob"] = {**fields["blob"], "data": base64.b64decode(fields["blob"]["data"])}
    return Document.from_dict(fields)


def _check_embedding(embedding: object) -> NDArray[np.float64]:
    try:
        vector = np.asarray(embedding, dtype="<f8")
    except (OverflowError, TypeError, ValueError):
        vector = np.full(1, np.nan)
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise InvalidArgument("the embedding of a document must be a list of finite numbers")
    return vector


def _encode_bytes(data: bytes) -> str:
    return base64.b64encode(data).decode()
