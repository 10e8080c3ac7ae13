"""Haystack's own tests of document stores, run on our store: the base, extended and async tests."""

from __future__ import annotations

import pytest
from haystack import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.testing import document_store as sync_tests
from haystack.testing import document_store_async as async_tests

from mama_structs import HashEmbedder, sync
from mama_structs.adapters.haystack.document_store import HaystackDocumentStore


class OnOurs:
    @pytest.fixture
    def document_store(self, tmp_path):
        with sync.Session.open(tmp_path / "store", embedder=HashEmbedder()) as session:
            yield HaystackDocumentStore(session)


class TestBase(OnOurs, sync_tests.DocumentStoreBaseExtendedTests):
    def test_write_documents(self, document_store):
        """The suite leaves this to each store: by default ours rejects an existing id."""
        document = Document(content="test doc")

        assert 1 == document_store.write_documents([document])
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([document])


class TestMetadata(
    OnOurs,
    sync_tests.CountDocumentsByFilterTest,
    sync_tests.CountUniqueMetadataByFilterTest,
    sync_tests.GetMetadataFieldsInfoTest,
    sync_tests.GetMetadataFieldMinMaxTest,
    sync_tests.GetMetadataFieldUniqueValuesTest,
):
    pass


class TestAsync(
    OnOurs,
    async_tests.DeleteAllAsyncTest,
    async_tests.CountDocumentsAsyncTest,
    async_tests.CountDocumentsByFilterAsyncTest,
    async_tests.CountUniqueMetadataByFilterAsyncTest,
    async_tests.DeleteByFilterAsyncTest,
    async_tests.UpdateByFilterAsyncTest,
    async_tests.WriteDocumentsAsyncTest,
    async_tests.DeleteDocumentsAsyncTest,
    async_tests.GetMetadataFieldsInfoAsyncTest,
    async_tests.GetMetadataFieldMinMaxAsyncTest,
    async_tests.GetMetadataFieldUniqueValuesAsyncTest,
    async_tests.FilterDocumentsAsyncTest,
):
    async def test_write_documents_async(self, document_store):
        """The suite leaves this to each store: by default ours rejects an existing id."""
        document = Document(content="test doc")

        assert 1 == await document_store.write_documents_async([document])
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([document])
