"""LangChain's stores, retriever and agents on a session. LangChain's own suite runs in `suites/langchain.py`."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import uuid

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_helpers import SMALL

from mama_structs import Session, sync
from mama_structs.errors import EmbeddingFailed, InvalidArgument, SessionClosed, WrongLoop
from mama_structs.testing.scripted_model import ScriptedModel

pytest.importorskip("langchain_core")

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from langchain_core.tools import create_retriever_tool

from mama_structs.adapters import langchain
from mama_structs.adapters.langchain.documents import select_diverse
from mama_structs.adapters.langchain.stores import SessionKeyValueStore, SessionRetriever, embedder_from_langchain
from mama_structs.adapters.langchain.vector_store import SessionVectorStore

ADAPTERS = ("stores", "vector_store")
FACTS = {
    "jwt": Document(page_content="Logins used JWT until March", metadata={"year": 2023, "tags": ["auth"]}),
    "redis": Document(page_content="Login sessions are kept in Redis", metadata={"year": 2024, "tags": ["auth"]}),
    "tides": Document(page_content="The tide is highest at new moon", metadata={"year": 2020}),
}


@pytest.fixture
async def session(tmp_path):
    """A session for async callers."""
    async with Session.open(tmp_path / "store", embedder=SMALL) as opened:
        yield opened


@pytest.fixture
async def facts(session):
    """A vector store with three documents."""
    store = SessionVectorStore(session)
    await store.aadd_documents([*FACTS.values()], ids=[*FACTS])
    return store


def ids_of(documents):
    return [document.id for document in documents]


# --- key-value store --------------------------------------------------------------------------------------------------

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(str.strip)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
DOCUMENTS = st.builds(
    Document,
    page_content=st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    metadata=st.dictionaries(KEYS, JSON, max_size=2),
    id=st.none() | KEYS,
)
STEPS = st.lists(
    st.tuples(st.just("set"), st.lists(st.tuples(KEYS, JSON | st.binary(max_size=8) | DOCUMENTS), max_size=4))
    | st.tuples(st.just("delete"), st.lists(KEYS, max_size=3)),
    max_size=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, prefix=KEYS)
async def test_key_value_store_behaves_like_a_dict(session, steps, prefix):
    """After any sets and deletions it has the keys and values of a dict."""
    store, known = SessionKeyValueStore(session, name=uuid.uuid4().hex), {}
    for step, given_ in steps:
        if step == "set":
            await store.amset(given_)
            known.update(given_)
        else:
            await store.amdelete(given_)
            known = {key: value for key, value in known.items() if key not in given_}
    asked = [*known, prefix, *known]

    assert [known.get(key) for key in asked] == await store.amget(asked)
    assert sorted(known) == sorted([key async for key in store.ayield_keys()])
    assert sorted(key for key in known if key.startswith(prefix)) == sorted(
        [key async for key in store.ayield_keys(prefix=prefix)]
    )


async def test_yield_keys_reads_all_pages(session, monkeypatch):
    """All keys are yielded, also while other keys are deleted."""
    monkeypatch.setattr("mama_structs.adapters.langchain.stores._PAGE_KEYS", 3)
    store = SessionKeyValueStore(session)
    await store.amset([(f"{number:02}", number) for number in range(10)])
    seen = []
    async for key in store.ayield_keys():
        seen.append(key)
        await store.amdelete([key])

    assert [f"{number:02}" for number in range(10)] == seen
    assert [] == [key async for key in store.ayield_keys()]


async def test_key_value_stores_are_isolated_by_name(session):
    """A key of one store is not in another one."""
    one, other = SessionKeyValueStore(session, name="one"), SessionKeyValueStore(session, name="other")
    await one.amset([("key", 1)])

    assert [None] == await other.amget(["key"])
    assert [] == [key async for key in other.ayield_keys()]


async def test_stored_values_are_not_searchable(session):
    """Neither search nor recall finds a value of a key-value store."""
    await SessionKeyValueStore(session).amset([("key", "the harbour is closed")])

    assert 0 == await session.memories.count()
    assert "" == (await session.recall("is the harbour closed?")).text


async def test_mset_is_atomic_when_value_is_no_json(session):
    """The whole call is rejected, and the error does not contain the value."""
    store = SessionKeyValueStore(session)
    with pytest.raises(InvalidArgument) as raised:
        await store.amset([("fine", 1), ("wrong", {"secret": object()})])

    assert [None, None] == await store.amget(["fine", "wrong"])
    assert "secret" not in str(raised.value)


def test_key_value_store_works_without_event_loop(tmp_path):
    """With a session of `mama_structs.sync` nothing is awaited, and values are stored durably."""
    with sync.Session.open(tmp_path / "store", embedder=SMALL) as session:
        SessionKeyValueStore(session).mset([("a", b"\x00"), ("b", [1])])
        SessionVectorStore(session).add_texts(["shield first"], ids=["x"])
    with sync.Session.open(tmp_path / "store", embedder=SMALL) as session:
        store = SessionKeyValueStore(session)

        assert [b"\x00", [1], None] == store.mget(["a", "b", "c"])
        assert ["a", "b"] == [*store.yield_keys()]
        assert ["x"] == ids_of(SessionVectorStore(session).similarity_search("shields"))
        assert ["shield first"] == [one.page_content for one in SessionRetriever(session).invoke("shields")]


async def test_sync_call_in_own_loop_raises_with_async_alternative(session):
    """A sync method in the session's loop raises, and names the async method."""
    for call in (
        lambda: SessionKeyValueStore(session).mget(["a"]),
        lambda: SessionVectorStore(session).similarity_search("a"),
        lambda: SessionRetriever(session).invoke("a"),
    ):
        with pytest.raises(WrongLoop) as raised:
            call()
        assert "prefix a" in raised.value.hint


async def test_async_session_is_usable_from_other_threads_and_loops(session, facts):
    """A tool in another thread searches synchronously, and another event loop by awaiting."""
    retriever, asked = SessionRetriever(session, k=1), "login sessions in Redis"

    def in_another_loop():
        return asyncio.run(facts.asimilarity_search(asked, k=1))

    assert ["redis"] == ids_of(await asyncio.to_thread(facts.similarity_search, asked, 1))
    assert ["redis"] == ids_of(await asyncio.to_thread(in_another_loop))
    assert await retriever.ainvoke(asked) == await asyncio.to_thread(retriever.invoke, asked)


# --- vector store -----------------------------------------------------------------------------------------------------


async def test_scores_are_cosines_and_exclude_no_document(facts):
    """All documents are returned, ordered by the cosine of the embedder's vectors."""
    found = await facts.asimilarity_search_with_score("where are login sessions kept?", k=10)
    query, *vectors = SMALL.embed(["where are login sessions kept?", *(one.page_content for one in FACTS.values())])
    cosines = {key: float(vector @ query) for key, vector in zip(FACTS, vectors, strict=True)}

    assert sorted(FACTS, key=lambda key: -cosines[key]) == [document.id for document, _ in found]
    assert all(abs(cosines[document.id] - score) < 1e-5 for document, score in found)


async def test_relevance_scores_are_between_0_and_1(facts):
    """Relevance scores are calibrated similarities, in the same order as scores."""
    asked = "Login sessions are kept in Redis"
    found = await facts.asimilarity_search_with_relevance_scores(asked, k=3, score_threshold=0.0)
    high = await facts.asimilarity_search_with_relevance_scores(asked, k=3, score_threshold=0.9)

    assert ["redis"] == [document.id for document, _ in high]
    assert all(0 <= score <= 1 for _, score in found)
    assert sorted((score for _, score in found), reverse=True) == [score for _, score in found]


async def test_search_by_vector_equals_search_by_text(facts):
    """Searching by the vector of a text gives the results of searching by the text."""
    vector = [float(one) for one in SMALL.embed(["logins"], kind="query")[0]]

    assert await facts.asimilarity_search("logins") == await facts.asimilarity_search_by_vector(vector)
    assert await facts.amax_marginal_relevance_search(
        "logins", k=2
    ) == await facts.amax_marginal_relevance_search_by_vector(vector, k=2)
    with pytest.raises(InvalidArgument):
        await facts.asimilarity_search_by_vector([1.0, 2.0])


METADATA = st.dictionaries(
    st.sampled_from("ab"), st.none() | st.integers(-3, 3) | st.sampled_from(["x", "y"]), max_size=2
)
FILTER_VALUES = st.none() | st.integers(-3, 3) | st.sampled_from(["x", "y"])
SIGNS = {
    "$eq": lambda a, b: a == b,
    "$ne": lambda a, b: a != b,
    "$gt": lambda a, b: type(a) is type(b) and a is not None and a > b,
    "$gte": lambda a, b: type(a) is type(b) and a is not None and a >= b,
    "$lt": lambda a, b: type(a) is type(b) and a is not None and a < b,
    "$lte": lambda a, b: type(a) is type(b) and a is not None and a <= b,
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    metadatas=st.lists(METADATA, min_size=1, max_size=6),
    field=st.sampled_from("ab"),
    compared=st.tuples(st.sampled_from([*SIGNS]), FILTER_VALUES),
    several=st.lists(FILTER_VALUES, max_size=3),
)
async def test_filters_are_exact(session, metadatas, field, compared, several):
    """A search with a filter returns all matching documents, and no others."""
    ids = [str(number) for number in range(len(metadatas))]
    sign, wanted = compared
    store = await SessionVectorStore.afrom_texts(
        ["the same text"] * len(ids), None, metadatas, ids=ids, session=session, collection=uuid.uuid4().hex
    )

    async def found(chosen):
        return {*ids_of(await store.asimilarity_search("text", k=len(ids), filter=chosen))}

    def known(takes):
        return {key for key, metadata in zip(ids, metadatas, strict=True) if takes(metadata.get(field))}

    assert known(lambda value: SIGNS[sign](value, wanted)) == await found({field: {sign: wanted}})
    assert known(lambda value: value == wanted) == await found({field: wanted})
    assert known(lambda value: value in several) == await found({field: {"$in": several}})
    assert known(lambda value: value not in several) == await found({field: {"$nin": several}})
    assert known(lambda value: value == wanted) == await found(lambda document: document.metadata.get(field) == wanted)
    assert {*ids} == await found({})


@pytest.mark.parametrize("wrong", [{"a": {"$regex": "x"}}, {"$or": []}, "year", {"a": {"$in": "text"}}, {1: 2}])
async def test_unknown_filter_is_rejected(facts, wrong):
    """An unsupported filter is an error that names it, instead of being ignored."""
    with pytest.raises(InvalidArgument):
        await facts.asimilarity_search("logins", filter=wrong)


async def test_unknown_search_option_is_rejected(facts):
    """A misspelt option of a search is an error, instead of being ignored."""
    with pytest.raises(TypeError, match="filters"):
        await facts.asimilarity_search("logins", filters={"year": 2024})


async def test_delete_without_ids_empties_one_collection(session, facts):
    """Other collections and other data are not affected."""
    other = await SessionVectorStore.afrom_texts(["a tide"], session=session, collection="other", ids=["1"])
    await SessionKeyValueStore(session).amset([("key", 1)])
    await facts.adelete([])
    assert 3 == len(await facts.aget_by_ids([*FACTS]))
    await facts.adelete()

    assert [] == await facts.aget_by_ids([*FACTS])
    assert ["1"] == ids_of(await other.asimilarity_search("tide"))
    assert [1] == await SessionKeyValueStore(session).amget(["key"])


async def test_last_document_counts_when_id_is_repeated(session):
    """Of two documents with one id in a call the last one is stored, as with two calls."""
    store = SessionVectorStore(session)
    added = await store.aadd_texts(["first", "second"], ids=["x", "x"])

    assert ["x", "x"] == added
    assert ["second"] == [one.page_content for one in await store.aget_by_ids(["x", "x"])]


@pytest.mark.parametrize("wrong", [{"ids": ["a"]}, {"metadatas": [{}]}])
async def test_wrong_number_of_ids_or_metadata_is_rejected(session, wrong):
    """Fewer ids or metadata than texts are an error, and nothing is added."""
    store = SessionVectorStore(session)
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        await store.aadd_texts(["one", "two"], **wrong)

    assert [] == await store.asimilarity_search("one")


async def test_document_without_text_is_found_by_id_only(session):
    """It is stored, but no search finds it."""
    store = SessionVectorStore(session)
    await store.aadd_documents(
        [Document(page_content=" ", metadata={"page": 1}), Document(page_content="text")], ids=["a", "b"]
    )

    assert [Document(id="a", page_content=" ", metadata={"page": 1})] == await store.aget_by_ids(["a"])
    assert ["b"] == ids_of(await store.asimilarity_search("text"))


@pytest.mark.parametrize(
    ("texts", "metadatas"),
    [("one text", None), ([["a", "b"]], None), (["a"], ["x"]), (["a"], [[("k", "v")]])],
    ids=["a text", "a list in it", "metadata that are a text", "metadata that are pairs"],
)
async def test_invalid_document_is_rejected_on_add(session, texts, metadatas):
    """Otherwise each later search of the collection would fail."""
    store = SessionVectorStore(session)
    with pytest.raises(InvalidArgument):
        await store.aadd_texts(texts, metadatas)

    assert [] == await store.asimilarity_search("a")


async def test_metadata_may_be_none_for_some_texts(session):
    """None is equal to empty metadata."""
    store = SessionVectorStore(session)
    await store.aadd_texts(["a", "b"], [None, {"n": 1}], ids=["1", "2"])

    assert {"1": {}, "2": {"n": 1}} == {one.id: one.metadata for one in await store.asimilarity_search("a")}


async def test_session_search_and_recall_find_documents(session, facts):
    """They are found next to a decision, and recall marks them with the origin "outside"."""
    await session.memories.save_decision(
        "Login sessions are moved to Postgres", topic="auth", reasoning="Redis lost them"
    )
    hits = await session.memories.search("where are login sessions kept?", limit=2)

    assert {"decision", "record"} == {hit.memory.type.value for hit in hits}
    assert {"user", "outside"} == {hit.memory.origin for hit in hits}
    assert "kept in Redis" in (await session.recall("Where are login sessions kept?")).text


UNIT = st.lists(st.floats(-1, 1), min_size=3, max_size=3).filter(lambda row: sum(one * one for one in row) > 0.01)


@given(rows=st.lists(UNIT, min_size=1, max_size=7), query=UNIT, count=st.integers(1, 8), share=st.floats(0, 1))
def test_marginal_relevance_matches_langchain(rows, query, count, share):
    """At each step the chosen document scores as high as the choice of LangChain's own function."""
    utils = pytest.importorskip("langchain_core.vectorstores.utils")
    vectors = np.asarray(rows) / np.linalg.norm(rows, axis=1, keepdims=True)
    question = np.asarray(query) / np.linalg.norm(query)
    near = vectors @ question
    chosen = select_diverse(near.tolist(), [row[None] for row in vectors], count, share)

    assert len({*chosen}) == len(chosen) == min(count, len(rows))
    for step in range(1, len(chosen)):
        between = (vectors @ vectors[chosen[:step]].T).max(axis=1)
        worth = share * near - (1 - share) * between
        open_ = [row for row in range(len(rows)) if row not in chosen[:step]]
        assert worth[chosen[step]] == pytest.approx(worth[open_].max(), abs=1e-9)
    if len({*np.round(near, 6)}) == len(near):
        assert chosen[0] == utils.maximal_marginal_relevance(question, [*vectors], lambda_mult=share, k=1)[0]


async def test_diverse_results_skip_equal_documents(session):
    """Of five equal documents one is returned, and then another one."""
    store = await SessionVectorStore.afrom_texts([*["sessions in Redis"] * 5, "the tide is high"], session=session)
    same = await store.asimilarity_search("sessions", k=2)
    diverse = await store.amax_marginal_relevance_search("sessions", k=2, lambda_mult=0.3)

    assert ["sessions in Redis"] * 2 == [one.page_content for one in same]
    assert {"sessions in Redis", "the tide is high"} == {one.page_content for one in diverse}


async def test_diverse_results_support_long_documents(session):
    """A text of several chunks is compared by the sum of their vectors."""
    long = " ".join(f"Paragraph {number} tells how login sessions are kept in Redis." for number in range(200))
    store = await SessionVectorStore.afrom_texts([long, long, "the tide is high"], session=session)
    diverse = await store.amax_marginal_relevance_search("login sessions", k=2, lambda_mult=0.3)

    assert 1 < len((await session.records.embed([long]))[0])
    assert [long, "the tide is high"] == [one.page_content for one in diverse]


# --- Embeddings -------------------------------------------------------------------------------------------------------

FAKE = DeterministicFakeEmbedding(size=8)


def of_fake(**options):
    return embedder_from_langchain(FAKE, name="fake", dimensions=8, **options)


async def test_langchain_embeddings_can_embed_a_session(tmp_path):
    """A session that was opened with them accepts them in `from_texts`, and returns them."""
    async with Session.open(tmp_path / "store", embedder=of_fake()) as session:
        store = await SessionVectorStore.afrom_documents([*FACTS.values()], FAKE, session=session)
        first, score = (await store.asimilarity_search_with_score(FACTS["tides"].page_content, k=1))[0]

        assert FAKE is store.embeddings
        assert {"SessionVectorStore", "DeterministicFakeEmbedding"} == {*store.as_retriever().tags}
        assert FACTS["tides"].page_content == first.page_content
        assert score == pytest.approx(1)


async def test_other_embeddings_are_rejected(session):
    """Vectors are those of the session, so others are rejected with a hint before anything is embedded."""
    with pytest.raises(InvalidArgument) as raised:
        await SessionVectorStore.afrom_texts(["text"], FAKE, session=session)

    assert "embedder_from_langchain(" in raised.value.hint
    assert None is SessionVectorStore(session).embeddings
    with pytest.raises(InvalidArgument, match="session"):
        await SessionVectorStore.afrom_texts(["text"])
    with pytest.raises(InvalidArgument, match="embeddings"):
        embedder_from_langchain(lambda texts: texts, name="wrong", dimensions=8)


async def test_failing_embeddings_store_nothing(tmp_path, monkeypatch):
    """Their error becomes `EmbeddingFailed`, and no document of the call is stored."""

    async def broken(self, texts):
        raise RuntimeError("the provider is down")

    async with Session.open(tmp_path / "store", embedder=of_fake()) as session:
        store = SessionVectorStore(session)
        monkeypatch.setattr(DeterministicFakeEmbedding, "aembed_documents", broken)
        with pytest.raises(EmbeddingFailed):
            await store.aadd_texts(["text"], ids=["x"])

        assert [] == await store.aget_by_ids(["x"])


# --- LangChain features on top ----------------------------------------------------------------------------------------


async def test_indexing_adds_new_and_deletes_missing_documents(session):
    """LangChain's indexing API synchronizes a collection with its source."""
    manager, store = InMemoryRecordManager("facts"), SessionVectorStore(session)
    manager.create_schema()
    pages = [Document(page_content=f"page {number}", metadata={"source": f"{number}.md"}) for number in range(3)]

    async def run(documents):
        done = await aindex(documents, manager, store, cleanup="full", source_id_key="source", key_encoder="sha256")
        return done["num_added"], done["num_skipped"], done["num_deleted"]

    assert (3, 0, 0) == await run(pages)
    assert (0, 3, 0) == await run(pages)
    assert (0, 2, 1) == await run(pages[:2])
    assert {"page 0", "page 1"} == {one.page_content for one in await store.asimilarity_search("page", k=9)}


def test_indexing_works_without_event_loop(tmp_path):
    """The same with a session of `mama_structs.sync`."""
    manager = InMemoryRecordManager("facts")
    manager.create_schema()
    with sync.Session.open(tmp_path / "store", embedder=SMALL) as session:
        store = SessionVectorStore(session)
        for expected in (3, 0):
            done = index([*FACTS.values()], manager, store, cleanup=None, key_encoder="sha256")
            assert expected == done["num_added"]

        assert 3 == len(store.similarity_search("login", k=9))


async def test_retriever_returns_memories_with_metadata(session):
    """A decision's document has its reasoning in the text, and its id, topic and outcome as metadata."""
    saved = await session.memories.save_decision(
        "Use JWT for logins", topic="auth", reasoning="There is no state to keep"
    )
    await session.memories.set_outcome(saved.id, "FAILED", reason="Stolen tokens stayed valid")
    (found,) = await SessionRetriever(session, k=1, type="decision").ainvoke("how do logins work?")

    assert saved.id == found.id
    assert "Use JWT for logins\nThere is no state to keep" == found.page_content
    assert ("decision", "auth", "FAILED", "user") == tuple(
        found.metadata[name] for name in ("type", "topic", "outcome", "origin")
    )
    assert 0 < found.metadata["relevance"] <= 1
    json.dumps(found.metadata)


async def test_retriever_of_collection_finds_by_words(session, facts):
    """It returns the added documents with their relevance, and none of other collections."""
    await SessionVectorStore.afrom_texts(["Redis is red"], session=session, collection="other")
    found = await SessionRetriever(session, collection="default", k=1).ainvoke("Redis")

    assert ["redis"] == ids_of(found)
    assert {"year": 2024, "tags": ["auth"]} == {name: found[0].metadata[name] for name in ("year", "tags")}
    assert "relevance" in found[0].metadata


async def test_retriever_min_relevance_excludes_weak_hits(session, facts):
    """A question without a relevant document returns nothing."""
    for collection in (None, "default"):
        retriever = SessionRetriever(session, collection=collection, min_relevance=0.9)
        assert [] == await retriever.ainvoke("how tall is the Eiffel tower?")


@pytest.mark.parametrize("kind", [SessionKeyValueStore, SessionVectorStore, SessionRetriever])
def test_constructor_rejects_value_that_is_no_session(kind):
    """The error is raised by the constructor, not by the first search."""
    with pytest.raises(InvalidArgument, match="session must be"):
        kind("agent.mama")


async def test_call_on_closed_session_raises(tmp_path):
    """Every call after closing the session raises."""
    async with Session.open(tmp_path / "store", embedder=SMALL) as session:
        store = SessionVectorStore(session)

    with pytest.raises(SessionClosed):
        await store.aadd_texts(["text"])


async def test_agent_recalls_searches_and_stores_refs(session, facts):
    """An agent gets recalled text, searches the collection by a tool, and its refs are stored."""
    agents = pytest.importorskip("langchain.agents")
    await session.memories.save_decision(
        "Login sessions move to Postgres", topic="auth", reasoning="Redis lost them twice"
    )

    def script():
        asked = yield "lookup", {"query": "login sessions in Redis"}
        assert any("Login sessions move to Postgres" in message.text for message in asked.messages)
        told = asked.results[-1]
        yield f'Before: <ref id="before">{told}</ref>'

    lookup = create_retriever_tool(SessionRetriever(session, collection="default", k=1), "lookup", "Search the wiki.")
    agent = agents.create_agent(
        ScriptedModel(script()).langchain(), tools=[lookup], middleware=[langchain.middleware(session)]
    )
    done = await agent.ainvoke({"messages": [{"role": "user", "content": "Where do login sessions live?"}]})

    assert ["human", "human", "ai", "tool", "ai"] == [message.type for message in done["messages"]]
    assert "Login sessions are kept in Redis" == session.refs.get("ref:before").text


@pytest.mark.parametrize("name", ADAPTERS)
def test_langchain_missing_framework_names_the_extra(monkeypatch, name):
    """Without LangChain the import error says what to install."""
    for module in [module for module in sys.modules if module.split(".")[0] == "langchain_core"]:
        monkeypatch.setitem(sys.modules, module, None)
    for module in (*ADAPTERS, "documents"):
        monkeypatch.delitem(sys.modules, f"mama_structs.adapters.langchain.{module}", raising=False)

    with pytest.raises(ImportError, match=r"pip install 'mama-structs\[langchain\]'"):
        importlib.import_module(f"mama_structs.adapters.langchain.{name}")
