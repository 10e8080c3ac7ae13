"""LangChain's standard tests (``langchain-tests``), run on sync and async sessions."""

from __future__ import annotations

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_tests.integration_tests import RetrieversIntegrationTests, VectorStoreIntegrationTests
from langchain_tests.integration_tests.base_store import BaseStoreAsyncTests, BaseStoreSyncTests
from langchain_tests.integration_tests.vectorstores import EMBEDDING_SIZE

from mama_structs import HashEmbedder, Session, sync
from mama_structs.adapters.langchain.stores import SessionKeyValueStore, SessionRetriever, embedder_from_langchain
from mama_structs.adapters.langchain.vector_store import SessionVectorStore
from mama_structs.memory.embedding.protocol import Calibration

VALUES = {
    "bytes": (b"foo", b"\x00\xff", b""),
    "json": ({"a": [1, None]}, "text", 3.5),
    "documents": tuple(Document(id=str(n), page_content=f"page {n}", metadata={"n": n}) for n in range(3)),
}


def of_the_suite():
    """
    Return an embedder with the vectors that the suite expects.

    The vectors are meaningless, so the embedder has no calibration.
    """
    fake = DeterministicFakeEmbedding(size=EMBEDDING_SIZE)
    return embedder_from_langchain(fake, name="deterministic", dimensions=EMBEDDING_SIZE, calibration=Calibration())


@pytest.fixture
def blocking(tmp_path):
    """A session for sync callers."""
    with sync.Session.open(tmp_path / "store", embedder=HashEmbedder()) as session:
        yield session


@pytest.fixture
async def awaited(tmp_path):
    """A session for async callers."""
    async with Session.open(tmp_path / "store", embedder=HashEmbedder()) as session:
        yield session


class TestKeyValueStore(BaseStoreSyncTests):
    @pytest.fixture(params=VALUES)
    def three_values(self, request):
        return VALUES[request.param]

    @pytest.fixture
    def kv_store(self, blocking):
        return SessionKeyValueStore(blocking)


class TestKeyValueStoreAwaited(BaseStoreAsyncTests):
    @pytest.fixture(params=VALUES)
    def three_values(self, request):
        return VALUES[request.param]

    @pytest.fixture
    async def kv_store(self, awaited):
        return SessionKeyValueStore(awaited)


class TestKeyValueStoreOfAnotherLoop(BaseStoreAsyncTests):
    @pytest.fixture
    def three_values(self):
        return VALUES["bytes"]

    @pytest.fixture
    def kv_store(self, blocking):
        return SessionKeyValueStore(blocking)


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path):
        with sync.Session.open(tmp_path / "store", embedder=of_the_suite()) as session:
            yield SessionVectorStore(session)


NAMES = [name for name in dir(VectorStoreIntegrationTests) if name.startswith("test_") and name.endswith("_async")]


# Run only the async tests. The class would skip its sync tests on an async session, which the suite forbids.
@pytest.mark.parametrize("name", NAMES)
async def test_vector_store_awaited(name, tmp_path):
    """The suite's async tests on an async session."""
    async with Session.open(tmp_path / "store", embedder=of_the_suite()) as session:
        await getattr(VectorStoreIntegrationTests(), name)(SessionVectorStore(session))


class _OnMemories(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def remembered(self, blocking):
        for topic in ("auth", "storage", "caching", "logging", "testing"):
            blocking.memories.save_decision(f"{topic} is done by hand", topic=topic, reasoning="nobody else does")
        texts = [f"page {number} tells how auth is done" for number in range(5)]
        SessionVectorStore.from_texts(texts, session=blocking)
        self.session = blocking

    retriever_constructor = SessionRetriever
    retriever_query_example = "how is auth done?"


class TestRetriever(_OnMemories):
    @property
    def retriever_constructor_params(self):
        return {"session": self.session}


class TestCollectionRetriever(_OnMemories):
    @property
    def retriever_constructor_params(self):
        return {"session": self.session, "collection": "default"}


class TestVectorStoreRetriever(_OnMemories):
    @property
    def retriever_constructor(self):
        def build(k=4):
            return SessionVectorStore(self.session).as_retriever(search_kwargs={"k": k})

        return build
