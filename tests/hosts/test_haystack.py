"""Haystack on a session: the document store in pipelines, and handles for long tool results of an agent."""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import os
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from host_helpers import frameworks_loaded_by

os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")
pytest.importorskip("haystack")

from haystack import Document, Pipeline, component
from haystack.components.agents import Agent
from haystack.components.builders import PromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.components.joiners import DocumentJoiner
from haystack.dataclasses import ByteStream, ChatMessage, ImageContent, SparseEmbedding, ToolCall
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy
from haystack.errors import FilterError
from haystack.hooks.tool_result_offloading import RESULT_STORE_CONTEXT_KEY, AlwaysOffload, ToolResultOffloadHook
from haystack.tools import tool
from haystack.utils import Secret
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import HashEmbedder, Session, Settings, sync
from mama_structs.adapters.haystack.components import HaystackRetriever, HaystackToolResultStore
from mama_structs.adapters.haystack.document_store import HaystackDocumentStore
from mama_structs.adapters.haystack.toolkit import HaystackRecallHook, HaystackToolset
from mama_structs.errors import HandleNotFound, InvalidArgument, InvalidHandle, SessionClosed, WrongLoop
from mama_structs.settings import MemorySettings
from mama_structs.tools.tool import ToolAnnotations

pytestmark = pytest.mark.usefixtures("no_network")


@pytest.fixture
def session(tmp_path):
    with sync.Session.open(tmp_path / "store", embedder=HashEmbedder()) as session:
        yield session


@pytest.fixture
def store(session):
    return HaystackDocumentStore(session)


TEXTS = [
    Document(content="Shields stop the first raid of the season.", meta={"topic": "defence", "year": 2024}),
    Document(content="The keys of the vault rotate in May.", meta={"topic": "security", "year": 2025}),
    Document(content="Ore is mined on the second planet.", meta={"topic": "economy", "year": 2026}),
]


# Document store


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
DOCUMENTS = st.builds(
    Document,
    content=st.none() | st.text(),
    blob=st.none() | st.builds(ByteStream, data=st.binary(), mime_type=st.none() | st.just("image/png")),
    meta=st.dictionaries(st.text(), JSON, max_size=3),
    score=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    embedding=st.none() | st.lists(st.floats(width=64, allow_nan=False, allow_infinity=False), min_size=1, max_size=4),
    sparse_embedding=st.none() | st.just(SparseEmbedding(indices=[1, 5], values=[0.5, -1.0])),
)


@given(documents=st.lists(DOCUMENTS, max_size=5, unique_by=lambda one: one.id))
def test_documents_are_returned_unchanged_in_order(documents):
    """Text, bytes, metadata and embeddings of any documents are returned exactly, in the order of writing."""
    with sync.Session.open(embedder=HashEmbedder()) as session:
        store = HaystackDocumentStore(session)
        store.write_documents(documents[:2])
        store.write_documents(documents[2:])

        assert documents == store.filter_documents()


VALUES = st.sampled_from([1, 2, 2.5, "a", "b", None, True, ["a", 1], "2024-01-02T03:04:05"])
FIELDS = st.sampled_from(["meta.x", "meta.y.z", "content", "id"])
COMPARISONS = st.fixed_dictionaries(
    {"field": FIELDS, "operator": st.sampled_from(["==", "!=", ">", ">=", "<", "<=", "in", "not in"]), "value": VALUES}
)
FILTERS = st.recursive(
    COMPARISONS,
    lambda inner: st.fixed_dictionaries(
        {"operator": st.sampled_from(["AND", "OR", "NOT"]), "conditions": st.lists(inner, min_size=1, max_size=3)}
    ),
    max_leaves=4,
)
METAS = st.fixed_dictionaries({}, optional={"x": VALUES, "y": st.fixed_dictionaries({"z": VALUES})})


def what_comes(call: Any) -> Any:
    try:
        return call()
    except (FilterError, TypeError, ValueError) as error:
        return type(error)


@given(metas=st.lists(METAS, max_size=5), filters=FILTERS | st.just({}) | st.just({"field": "meta.x"}))
def test_filters_match_haystack_in_memory_store(metas, filters):
    """Any filters return the same documents, or raise the same error, as Haystack's in-memory store."""
    documents = [Document(content=str(number), meta=meta) for number, meta in enumerate(metas)]
    theirs = InMemoryDocumentStore(shared=False)
    theirs.write_documents(documents)
    with sync.Session.open(embedder=HashEmbedder()) as session:
        ours = HaystackDocumentStore(session)
        ours.write_documents(documents)

        assert what_comes(lambda: theirs.filter_documents(filters)) == what_comes(
            lambda: ours.filter_documents(filters)
        )


def test_write_with_duplicate_id_writes_nothing(store):
    """With FAIL an existing or repeated id makes the whole write fail."""
    store.write_documents(TEXTS[:1])

    with pytest.raises(DuplicateDocumentError):
        store.write_documents(TEXTS)
    with pytest.raises(DuplicateDocumentError):
        store.write_documents([TEXTS[1], TEXTS[1]])
    assert TEXTS[:1] == store.filter_documents()


def test_write_returns_number_of_written_documents(store):
    """SKIP writes new documents, OVERWRITE all; of a repeated id the first or the last one is stored."""
    old, new = Document(id="1", content="old"), Document(id="1", content="new")

    assert 1 == store.write_documents([old, new], DuplicatePolicy.SKIP)
    assert [old] == store.filter_documents()
    assert 2 == store.write_documents([*TEXTS[:1], old], DuplicatePolicy.SKIP) + 1
    assert 2 == store.write_documents([old, new], DuplicatePolicy.OVERWRITE)
    assert [*TEXTS[:1], new] == store.filter_documents()


@pytest.mark.parametrize(
    "meta", [{"a": object()}, {"a": float("nan")}, {1: "a"}], ids=["an object", "no number", "a number"]
)
def test_metadata_that_is_no_json_is_rejected(store, meta):
    """An error is raised, and nothing is written."""
    with pytest.raises(InvalidArgument):
        store.write_documents([TEXTS[0], Document(content="x", meta=meta)])

    assert 0 == store.count_documents()


@pytest.mark.parametrize(
    "embedding", [[1.0, float("nan")], [[1.0], [2.0]], ["x"], [10**400]], ids=["nan", "deep", "text", "too large"]
)
def test_invalid_embeddings_are_rejected(store, embedding):
    """An embedding must be a list of finite numbers; otherwise nothing is written."""
    with pytest.raises(InvalidArgument, match="finite"):
        store.write_documents([TEXTS[0], Document(content="x", embedding=embedding)])

    assert 0 == store.count_documents()


def test_collections_are_isolated(session, store):
    """Two collections of one session store, find and delete their own documents."""
    other = HaystackDocumentStore(session, collection="other")
    store.write_documents(TEXTS[:1])
    other.write_documents(TEXTS)
    other.delete_all_documents()

    assert TEXTS[:1] == store.filter_documents()
    assert [] == other.retrieve("raid")


def test_retrieve_finds_by_meaning_and_filters(store):
    """The most relevant document comes first; filters restrict the search."""
    store.write_documents(TEXTS)
    best = store.retrieve("when do the keys rotate?")
    others = store.retrieve(
        "when do the keys rotate?", filters={"field": "meta.year", "operator": "!=", "value": 2025}, top_k=1
    )

    assert TEXTS[1].content == best[0].content
    assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)
    assert 1 == len(others)
    assert others[0].meta["year"] != 2025


def test_long_document_is_returned_completely(tmp_path):
    """Search indexes the text up to the limit of a memory, but the whole text is returned."""
    settings = Settings(memory=MemorySettings(max_content=100))
    long = Document(content="The keys of the vault rotate in May. " * 20)
    with sync.Session.open(tmp_path / "store", embedder=HashEmbedder(), settings=settings) as session:
        store = HaystackDocumentStore(session)
        store.write_documents([long])

        assert [long.content] == [one.content for one in store.retrieve("keys rotate")]
        assert [] == store.retrieve("keys rotate", top_k=0)


def test_session_search_finds_documents(session, store):
    """The session's own search finds documents until they are deleted."""
    store.write_documents(TEXTS)
    hits = session.memories.search("keys rotate", limit=1)
    store.delete_documents([TEXTS[1].id, "unknown"])

    assert [TEXTS[1].content] == [hit.memory.content for hit in hits]
    assert TEXTS[1].content not in [hit.memory.content for hit in session.memories.search("keys rotate")]


VECTORS = st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3)


@given(
    vectors=st.lists(VECTORS | st.none(), max_size=6),
    query=VECTORS,
    similarity=st.sampled_from(["cosine", "dot_product"]),
)
def test_embedding_retrieval_matches_haystack_in_memory_store(vectors, query, similarity):
    """Embeddings from Haystack are compared exactly like in Haystack's in-memory store."""
    documents = [Document(content=str(number), embedding=vector) for number, vector in enumerate(vectors)]
    theirs = InMemoryDocumentStore(shared=False, embedding_similarity_function=similarity)
    theirs.write_documents(documents)
    with sync.Session.open(embedder=HashEmbedder()) as session:
        ours = HaystackDocumentStore(session, embedding_similarity_function=similarity)
        ours.write_documents(documents)

        assert theirs.embedding_retrieval(query, top_k=3) == ours.embedding_retrieval(query, top_k=3)


def test_update_by_filter_keeps_concurrent_changes(tmp_path):
    """Two sessions that change metadata concurrently lose no change."""
    with (
        sync.Session.open(tmp_path / "store", embedder=HashEmbedder()) as one,
        sync.Session.open(tmp_path / "store", embedder=HashEmbedder()) as other,
    ):
        stores = [HaystackDocumentStore(one), HaystackDocumentStore(other)]
        stores[0].write_documents(TEXTS)

        async def change() -> None:
            everything = {"field": "meta.year", "operator": ">", "value": 0}
            await asyncio.gather(
                *(stores[n % 2].update_by_filter_async(everything, {f"seen_{n}": True}) for n in range(6))
            )

        asyncio.run(change())
        seen = [one.meta for one in stores[1].filter_documents()]

    assert all({f"seen_{n}" for n in range(6)} <= {*meta} for meta in seen)


# Pipelines


@component
class Reader:
    """A scripted model that returns its prompt as its answer."""

    @component.output_types(replies=list[str])
    def run(self, prompt: str) -> dict[str, list[str]]:
        return {"replies": [prompt]}


def asking(store: HaystackDocumentStore) -> Pipeline:
    pipeline = Pipeline()
    pipeline.add_component("retriever", HaystackRetriever(store, top_k=1))
    pipeline.add_component(
        "prompt",
        PromptBuilder("{{question}} {% for one in documents %}{{one.content}}{% endfor %}", required_variables="*"),
    )
    pipeline.add_component("reader", Reader())
    pipeline.connect("retriever.documents", "prompt.documents")
    pipeline.connect("prompt.prompt", "reader.prompt")
    return pipeline


def test_pipeline_finds_documents_of_earlier_process(tmp_path):
    """A pipeline finds the documents of a reopened store."""
    place, question = str(tmp_path / "store"), "When do the keys rotate?"
    writing = HaystackDocumentStore(place)
    writing.write_documents(TEXTS)
    writing.close()
    reading = HaystackDocumentStore(place)
    answer = asking(reading).run({"retriever": {"query": question}, "prompt": {"question": question}})
    reading.close()

    assert [f"{question} {TEXTS[1].content}"] == answer["reader"]["replies"]


def test_pipeline_can_be_serialized_and_loaded(session, store):
    """A loaded retriever and its store open the same documents."""
    store.write_documents(TEXTS)
    retriever = HaystackRetriever(
        store,
        filters={"field": "meta.year", "operator": ">", "value": 2024},
        top_k=2,
        filter_policy=FilterPolicy.MERGE,
    )
    pipeline = Pipeline()
    pipeline.add_component("retriever", retriever)
    # Allow the adapters explicitly, because Haystack instantiates only classes from allowed modules.
    read = Pipeline.loads(pipeline.dumps(), allowed_modules=["mama_structs.adapters.*"])
    again = read.get_component("retriever")
    found = read.run(
        {"retriever": {"query": "keys", "filters": {"field": "meta.topic", "operator": "==", "value": "security"}}}
    )
    again.document_store.close()

    assert [TEXTS[1].content] == [one.content for one in found["retriever"]["documents"]]
    assert retriever.to_dict() == again.to_dict()


async def test_async_pipeline_works_in_loop_of_session(tmp_path):
    """With an async session a pipeline runs by ``run_async`` in the same loop; a blocking call raises with a hint."""
    async with Session.open(tmp_path / "store", embedder=HashEmbedder()) as session:
        store = HaystackDocumentStore(session)
        await store.write_documents_async(TEXTS)
        pipeline = Pipeline()
        pipeline.add_component("retriever", HaystackRetriever(store))
        pipeline.add_component("joiner", DocumentJoiner())
        pipeline.connect("retriever", "joiner")
        found = await pipeline.run_async({"retriever": {"query": "keys rotate", "top_k": 1}})

        assert TEXTS[1].content == found["joiner"]["documents"][0].content
        with pytest.raises(WrongLoop):
            store.count_documents()


async def test_store_of_location_can_be_opened_in_running_loop(tmp_path):
    """A store that was created from a location works in async code, with both forms of its methods."""
    store = HaystackDocumentStore(str(tmp_path / "store"))
    await store.write_documents_async(TEXTS)

    assert 3 == store.count_documents()
    store.close()
    store.close()


@pytest.mark.parametrize("kind", [HaystackDocumentStore, HaystackToolResultStore])
def test_serialization_rejects_password_and_temporary_session(kind):
    """Neither can be written into a pipeline file."""
    with pytest.raises(InvalidArgument, match="password") as refused:
        kind("postgresql://ada:geheim@db/agents").to_dict()
    assert "geheim" not in str(refused.value)
    with sync.Session.open(embedder=HashEmbedder()) as session, pytest.raises(InvalidArgument, match="temporary"):
        kind(session).to_dict()


def test_location_may_be_a_secret(tmp_path, monkeypatch):
    """A secret is resolved at the first use, and the file contains only its reference."""
    monkeypatch.setenv("AGENT_STORE", str(tmp_path / "store"))
    store = HaystackDocumentStore(Secret.from_env_var("AGENT_STORE"), namespace="guild")
    store.write_documents(TEXTS)
    told = store.to_dict()
    store.close()
    again = HaystackDocumentStore.from_dict(told)

    assert str(tmp_path) not in json.dumps(told)
    assert TEXTS == again.filter_documents()
    again.close()


def test_documents_have_configured_origin(session, tmp_path):
    """Recall marks a document with the origin of its store; updates and serialization preserve it."""
    HaystackDocumentStore(session).write_documents(TEXTS[:1])
    HaystackDocumentStore(session, origin="user").update_by_filter({}, {"year": 2030})
    own = HaystackDocumentStore(str(tmp_path / "own"), origin="user")
    own.close()

    assert ["outside"] == [one.origin for one in session.records.list(("haystack",))]
    assert "user" == HaystackDocumentStore.from_dict(own.to_dict()).origin
    assert "from outside, unchecked" in session.recall("What stops the first raid of the season?").text
    with pytest.raises(InvalidArgument, match="origin must be one of"):
        HaystackDocumentStore(session, origin="nobody")


def test_tool_result_has_origin_tool(session):
    """The key, which Haystack chooses, does not determine the origin."""
    handles = [HaystackToolResultStore(session).write(key=key, content=key) for key in ("host", "search/1.txt")]

    assert ["tool", "tool"] == [session.refs.get(one).trust for one in handles]


# Long tool results


@component
class ScriptedGenerator:
    """A scripted model that returns the given messages."""

    def __init__(self, *script: ChatMessage) -> None:
        self.script = [*script]
        self.asked: list[list[ChatMessage]] = []

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None, **_: Any) -> dict[str, list[ChatMessage]]:
        self.asked.append([*messages])
        return {"replies": [self.script.pop(0)]}


LONG = "The raid log. " * 400
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@tool
def read_log(day: str) -> str:
    """Read the log of a day."""
    return f"{day}: {LONG}"


def logging_agent(store: HaystackToolResultStore) -> Agent:
    call = ChatMessage.from_assistant(tool_calls=[ToolCall(tool_name="read_log", arguments={"day": "May 1"}, id="c1")])
    return Agent(
        chat_generator=ScriptedGenerator(call, ChatMessage.from_assistant("Read.")),
        tools=[read_log],
        hooks={"after_tool": [ToolResultOffloadHook(store=store, offload_strategies={"*": AlwaysOffload()})]},
    )


def offloaded(result: dict[str, Any]) -> tuple[str, str]:
    """Return the text of a tool result in the conversation, and the handle of the complete result."""
    (message,) = [one for one in result["messages"] if one.tool_call_result]
    return message.tool_call_result.result, message.meta["tool_result_offloaded"][0]


def test_agent_offloads_long_results_to_handles(session):
    """The model gets a handle instead of a long result; host and model can read the whole result by it."""
    store = HaystackToolResultStore(session)
    shown, handle = offloaded(logging_agent(store).run(messages=[ChatMessage.from_user("What happened?")]))

    assert "fd:1" == handle
    assert handle in shown
    assert len(shown) < 1_000
    assert f"May 1: {LONG}" == store.read(handle)
    assert "raid log" in str(session.call("read_fd", {"fd": handle}))


@pytest.mark.parametrize("is_async", [False, True], ids=["its loop is elsewhere", "its loop is this one"])
async def test_async_agent_offloads_long_results(tmp_path, is_async):
    """An agent in an event loop uses a session of that loop, or of another one."""
    async with AsyncExitStack() as entered:
        session: Any = str(tmp_path / "store")
        if is_async:
            session = await entered.enter_async_context(Session.open(session, embedder=HashEmbedder()))
        store = HaystackToolResultStore(session)
        result = await logging_agent(store).run_async(messages=[ChatMessage.from_user("What happened?")])
        _, handle = offloaded(result)

        assert f"May 1: {LONG}" == await asyncio.to_thread(store.read, handle)
        store.close()


def test_run_may_have_its_own_result_store(session, tmp_path):
    """A run's own store replaces that of the hook."""
    store, own = HaystackToolResultStore(session), HaystackToolResultStore(str(tmp_path / "own"))
    agent = logging_agent(store)
    result = agent.run(messages=[ChatMessage.from_user("?")], hook_context={RESULT_STORE_CONTEXT_KEY: own})
    _, handle = offloaded(result)

    assert LONG in own.read(handle)
    with pytest.raises(HandleNotFound):
        store.read(handle)
    own.close()


@pytest.mark.parametrize("content", ["", "plain", "zwei\r\nZeilen\x00", b"", b"plain", b"\x89PNG\r\n\xff"], ids=repr)
def test_results_are_returned_unchanged(session, content):
    """Text is returned as text and bytes as bytes."""
    store = HaystackToolResultStore(session)
    handle = store.write(key="1_look_c1.png", content=content)

    assert content == store.read(handle)


def test_results_are_durable(tmp_path):
    """The same conversation has its results again after loading the pipeline file."""
    store = HaystackToolResultStore(str(tmp_path / "store"), conversation="monday")
    handles = [store.write(key="1_a.txt", content="text"), store.write(key="1_b.png", content=b"\x89PNG\xff")]
    told = store.to_dict()
    store.close()
    again = HaystackToolResultStore.from_dict(told)

    assert ["text", b"\x89PNG\xff"] == [again.read(handle) for handle in handles]
    again.close()


def test_unknown_reference_raises(session):
    """An invalid handle, or one of another conversation, raises a typed error."""
    store = HaystackToolResultStore(session)

    with pytest.raises(HandleNotFound):
        store.read("fd:7")
    with pytest.raises(InvalidHandle):
        store.read("/etc/passwd")


def test_images_are_stored_as_bytes(session):
    """An image in a tool result is offloaded from the conversation, too."""

    @tool(outputs_to_string={"raw_result": True})
    def photo() -> list[ImageContent]:
        """Take a photo."""
        return [ImageContent(base64_image=PIXEL, mime_type="image/png")]

    store = HaystackToolResultStore(session)
    call = ChatMessage.from_assistant(tool_calls=[ToolCall(tool_name="photo", arguments={}, id="c1")])
    agent = Agent(
        chat_generator=ScriptedGenerator(call, ChatMessage.from_assistant("Nice.")),
        tools=[photo],
        hooks={"after_tool": [ToolResultOffloadHook(store=store, offload_strategies={"*": AlwaysOffload()})]},
    )
    _, handle = offloaded(agent.run(messages=[ChatMessage.from_user("A photo!")]))

    assert b"\x89PNG" == store.read(handle)[:4]
    assert "image/png" == session.refs.get(handle).mime_type


# Tools and recall


def run_agent(session, *script, asked="go", **options) -> tuple[list[Any], ScriptedGenerator]:
    """Run an agent with the toolset and the hook. Return its tool results and the generator."""
    generator = ScriptedGenerator(*script, ChatMessage.from_assistant("done"))
    toolset, recall = HaystackToolset(session, **options), HaystackRecallHook(session)
    agent = Agent(chat_generator=generator, tools=toolset, hooks=recall.hooks)
    result = agent.run(messages=[ChatMessage.from_user(asked)])
    return [one for message in result["messages"] for one in message.tool_call_results], generator


def calls(*pairs: tuple[str, dict[str, Any]], said: str = "") -> ChatMessage:
    made = [ToolCall(tool_name=name, arguments=given, id=f"c{at}") for at, (name, given) in enumerate(pairs)]
    return ChatMessage.from_assistant(said, tool_calls=made)


def test_toolset_follows_the_tools_of_the_session(session):
    """A function that is added later is offered, with its JSON Schema and its name for providers."""
    toolset = HaystackToolset(session)
    before = len(toolset)
    session.tools.add(lambda: None, name="guild/join", description="Join a guild.")

    assert before + 1 == len(toolset)
    assert "guild__join" in toolset
    with pytest.raises(InvalidArgument, match="read_log cannot be added"):
        toolset.add(read_log)


def test_agent_receives_results_and_errors_as_answers(session):
    """A failed call does not end the run. Arguments may have any name. The calls run in order."""
    saved = {"topic": "auth", "decision": "Use JWT", "reasoning": "No state"}
    turn = calls(
        ("save__decision", {"self": 1, "state": 2}), ("save__decision", saved), ("search__by_topic", {"topic": "auth"})
    )
    (failed, kept, hits), _ = run_agent(session, turn)

    assert [True, False, False] == [failed.error, kept.error, hits.error]
    assert "'self' is no argument of this tool; 'state' is no argument" in failed.result
    assert "Use JWT" in hits.result


@pytest.mark.parametrize("name", ["_state", "state", "_mama_structs_state"])
def test_own_tool_receives_arguments_of_any_name(session, name):
    """The parameter for Haystack's state does not hide an argument of the same name."""

    def keep(_state: str = "", state: str = "", _mama_structs_state: str = "") -> str:
        """Return the arguments."""
        return f"{_state}{state}{_mama_structs_state}"

    session.tools.add(keep)
    (found,), _ = run_agent(session, calls(("keep", {name: "mine"})))

    assert "mine" == found.result


def test_calls_of_one_answer_run_in_order(session):
    """A read after a write sees it, although Haystack would run the calls in several threads."""
    notes = []

    def write(note: str) -> str:
        """Write a note."""
        time.sleep(0.02)
        notes.append(note)
        return "written"

    def read() -> str:
        """Read the notes."""
        return ",".join(notes)

    session.tools.add(write)
    session.tools.add(read, annotations=ToolAnnotations(read_only=True))
    turn = calls(("write", {"note": "a"}), ("read", {}), ("write", {"note": "b"}), ("read", {}))
    results, _ = run_agent(session, turn)

    assert ["written", "a", "written", "a,b"] == [one.result for one in results]


@pytest.mark.parametrize("images", [False, True])
def test_own_tool_receives_state_and_returns_media(session, images):
    """A function of the host gets the agent's state. Images are data only where the generator accepts them."""
    states = []

    def draw(ctx) -> list:
        """Draw a map."""
        states.append(ctx)
        return ["a map", base64.b64decode(PIXEL)]

    def show() -> ImageContent:
        """Return an image of Haystack."""
        return ImageContent(PIXEL, mime_type="image/png")

    session.tools.add(draw)
    session.tools.add(show)
    (drawn, shown), _ = run_agent(session, calls(("draw", {}), ("show", {})), images=images)
    text, image = drawn.result

    assert "messages" in states[0].data
    assert "a map" == text.text
    assert PIXEL == image.base64_image if images else "kept as fd:1" in image.text
    assert PIXEL == shown.result[0].base64_image


def test_refs_of_an_answer_can_be_used_by_its_calls(session):
    """The hook stores the refs before the calls of the same answer run, and those of the last answer."""
    turn = calls(("get_ref", {"ref_id": "plan"}), said='<ref id="plan">shields</ref>')
    (found,), _ = run_agent(session, turn, ChatMessage.from_assistant('<ref id="last">walls</ref>'))

    assert "shields" in found.result
    assert "walls" == session.refs.get("last").text


def test_recalled_text_is_a_separate_message_and_stays(session):
    """Each fact is recalled once, and again if the conversation no longer contains it."""
    question = "Where do we keep the login sessions?"
    session.memories.save_decision("Keep login sessions in Redis", topic="auth", reasoning="Revocation")
    _, first = run_agent(session, asked=question)
    _, again = run_agent(session, asked=question)

    assert question == first.asked[0][0].text
    assert "Keep login sessions in Redis" in first.asked[0][1].text
    assert "Keep login sessions in Redis" in again.asked[0][1].text


def test_agent_with_toolset_and_hook_can_be_serialized(tmp_path):
    """A pipeline file contains the location. The parts of the loaded agent share a conversation."""
    place = {"session": str(tmp_path / "store"), "conversation": "monday"}
    toolset, recall = HaystackToolset(**place, images=True), HaystackRecallHook(**place, max_chars=500)
    generator = OpenAIChatGenerator(Secret.from_env_var("KEY", strict=False))
    pipeline = Pipeline()
    pipeline.add_component("agent", Agent(chat_generator=generator, tools=toolset, hooks=recall.hooks))
    text = pipeline.dumps()
    loaded = Pipeline.loads(text, allowed_modules=["mama_structs.adapters.*"])
    agent = loaded.get_component("agent")
    turn = calls(("get_ref", {"ref_id": "plan"}), said='<ref id="plan">shields</ref>')

    assert text == loaded.dumps()
    agent.chat_generator = ScriptedGenerator(turn, ChatMessage.from_assistant("done"))
    result = agent.run(messages=[ChatMessage.from_user("go")])
    agent.close()
    assert "shields" in next(one.tool_call_result.result for one in result["messages"] if one.tool_call_result)


def test_closed_session_raises_before_the_model_is_called(session):
    """A session that was closed ends the run."""
    session.close()

    with pytest.raises(SessionClosed):
        run_agent(session)


@pytest.mark.parametrize("module", ["document_store", "components", "toolkit"])
def test_missing_framework_error_says_what_to_install(monkeypatch, module):
    """Without Haystack the import error names the extra."""
    for name in [name for name in sys.modules if name.split(".")[0] == "haystack"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("connection", "documents", "document_store", "components", "toolkit"):
        monkeypatch.delitem(sys.modules, f"mama_structs.adapters.haystack.{name}")

    with pytest.raises(ImportError, match=r"mama-structs\[haystack\]"):
        importlib.import_module(f"mama_structs.adapters.haystack.{module}")


def test_import_loads_no_other_framework():
    """A host of Haystack imports no other framework."""
    assert {"haystack"} == frameworks_loaded_by(
        "haystack.document_store", "haystack.components", "haystack.toolkit"
    ) - {"openai"}
