"""LangGraph's store and checkpointer on a session, compared with its in-memory classes, and resumed agents."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import pickle
import threading
from typing import Any, TypedDict

import pytest
from host_helpers import frameworks_loaded_by
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import HashEmbedder, Session, as_embedder, sync
from mama_structs.errors import InvalidArgument, SessionClosed, WrongLoop
from mama_structs.testing.scripted_model import ScriptedModel

pytest.importorskip("langgraph")

import ormsgpack
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolRuntime
from langgraph.store.base import GetOp, InvalidNamespaceError, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt

from mama_structs._internal.json_conditions import check_json_condition
from mama_structs.adapters.langgraph.checkpoints import LangGraphCheckpointer
from mama_structs.adapters.langgraph.filters import find_record_condition, matches_filter
from mama_structs.adapters.langgraph.store import LangGraphStore
from mama_structs.types import NewRecord

LABELS = st.sampled_from(["a", "b", "ab", "a_", "*", "ü"])
NAMESPACES = st.lists(LABELS, min_size=1, max_size=3).map(tuple)
KEYS = st.sampled_from(["k", "k2", "한국", "/memories/plan.md"])
VALUES = st.fixed_dictionaries(
    {"n": st.integers(-2, 2), "kind": st.sampled_from(["x", "y"])},
    optional={
        "deep": st.fixed_dictionaries({"on": st.booleans()}),
        "tags": st.lists(st.sampled_from("pq"), max_size=2),
    },
)
BOUNDS = st.integers(-2, 2)
FILTERS = st.one_of(
    st.none(),
    st.fixed_dictionaries({"kind": st.sampled_from(["x", "y"])}),
    st.builds(
        lambda name, bound: {"n": {name: bound}}, st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]), BOUNDS
    ),
    st.fixed_dictionaries({"deep": st.fixed_dictionaries({"on": st.booleans()})}),
    st.fixed_dictionaries({"tags": st.lists(st.sampled_from("pq"), max_size=2), "n": BOUNDS}),
)
CONDITIONS = st.builds(
    MatchCondition, st.sampled_from(["prefix", "suffix"]), st.lists(LABELS, min_size=1, max_size=2).map(tuple)
)
OPS = st.one_of(
    st.tuples(NAMESPACES, KEYS, st.none() | VALUES).map(lambda place: PutOp(*place)),
    st.tuples(NAMESPACES, KEYS).map(lambda place: GetOp(*place)),
    st.tuples(st.lists(LABELS, max_size=2).map(tuple), FILTERS).map(lambda asked: SearchOp(*asked, 100)),
    st.tuples(st.none() | st.tuples(CONDITIONS) | st.tuples(CONDITIONS, CONDITIONS), st.none() | st.integers(1, 3)).map(
        lambda asked: ListNamespacesOp(*asked)
    ),
)


@pytest.fixture
async def session(tmp_path):
    """A session on an empty directory, or on a server if the run is configured for one."""
    async with Session.open(tmp_path / "one.mama", embedder=HashEmbedder()) as opened:
        yield opened


def told(result: Any) -> Any:
    """Return a result without times. Lists are sorted, because their order is unspecified."""
    if isinstance(result, list):
        return sorted((told(one) for one in result), key=repr)
    return (result.namespace, result.key, result.value) if hasattr(result, "key") else result


def called(thread: str, **more: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **more}}


@given(batches=st.lists(st.lists(OPS, max_size=6), max_size=6))
async def test_batch_matches_in_memory_store(batches):
    """Reads see the state before the batch, the last put of a key counts, and filters and paths match equally."""
    theirs = InMemoryStore()
    async with Session.open(embedder=HashEmbedder()) as session:
        ours = LangGraphStore(session)
        for ops in batches:
            # LangGraph's store also lists namespaces whose last item was deleted, so compare subsets.
            listed = [isinstance(op, ListNamespacesOp) for op in ops]
            expected = [told(one) for one in theirs.batch(ops)]
            found = [told(one) for one in await ours.abatch(ops)]

            assert [e for e, skip in zip(expected, listed, strict=True) if not skip] == [
                f for f, skip in zip(found, listed, strict=True) if not skip
            ]
            for want, got, is_list in zip(expected, found, listed, strict=True):
                assert not is_list or set(got) <= set(want)


async def test_calls_of_other_langgraph_stores_name_right_ones(session):
    with pytest.raises(
        TypeError, match=r"LangGraphStore\(\) has no 'index'\. Use fields=, and Session\.open\(embedder=\)\."
    ):
        LangGraphStore(session, index={"dims": 3})
    with pytest.raises(AttributeError, match=r"LangGraphStore has no 'setup'\. Use the store without it"):
        LangGraphStore(session).setup()


async def test_empty_namespace_is_not_listed(session):
    """A namespace exists as long as it has an item."""
    store = LangGraphStore(session)
    await store.aput(("a", "b"), "k", {"n": 1})
    await store.aput(("a", "c"), "k", {"n": 1})
    await store.adelete(("a", "b"), "k")

    assert [("a", "c")] == await store.alist_namespaces()
    assert [("a",)] == await store.alist_namespaces(max_depth=1)


@pytest.mark.parametrize(
    "wrong",
    [
        PutOp(("a.b",), "k", {"n": 1}),
        PutOp(("a",), "k", [1]),
        SearchOp((), {"n": {"$near": 1}}),
        SearchOp((), {"deep": {"n": {"$like": "x"}}}),
        SearchOp((), query=5),
        PutOp(("a",), "k", {"n": 1}, None, 0),
        PutOp(("a",), "k", {"n": 1}, None, float("inf")),
        "get",
    ],
    ids=str,
)
async def test_batch_with_invalid_operation_writes_nothing(session, wrong):
    """Operations are validated first, so that an invalid one does not fail the others halfway."""
    store = LangGraphStore(session)
    with pytest.raises((InvalidArgument, InvalidNamespaceError)):
        await store.abatch([PutOp(("a",), "k", {"n": 1}), wrong])

    assert [] == await store.asearch(())


async def test_session_search_and_recall_find_items(session):
    """The session's own search finds an item, in any language, until it is deleted."""
    store = LangGraphStore(session, fields=["text"])
    await store.aput(("users", "ada"), "tea", {"text": "Ada drinks green tea, never coffee", "secret": "zebra"})
    await store.aput(("users", "ada"), "말", {"text": "에이다는 녹차를 마신다"})
    await store.aput(("users", "ada"), "hidden", {"text": "Ada drinks tea in secret"}, index=False)
    found = [hit.memory.content for hit in await session.memories.search("What does Ada drink?")]
    korean = [hit.memory.content for hit in await session.memories.search("녹차")]
    by_field = await session.memories.search("zebra")
    await store.adelete(("users", "ada"), "tea")
    later = [hit.memory.content for hit in await session.memories.search("green tea coffee")]

    assert "Ada drinks green tea, never coffee" == found[0]
    assert "에이다는 녹차를 마신다" == korean[0]
    assert all("secret" not in content for content in found)
    assert all("zebra" not in hit.memory.content for hit in by_field)
    assert "Ada drinks green tea, never coffee" not in later


async def test_item_expires_unless_it_is_read(session):
    """By default a read extends the TTL. An expired item disappears without a sweep."""
    clock = [1_800_000_000.0]
    session.memories._shared.clock = lambda: clock[0]
    store = LangGraphStore(session, ttl={"default_ttl": 10})
    for key in ("got", "found", "seen"):
        await store.aput(("a",), key, {"n": key})
    await store.aput(("a",), "short", {"n": "short"}, ttl=5)
    await store.aput(("b",), "kept", {"n": "kept"}, ttl=None)
    first = await store.aget(("a",), "got")
    for _ in range(3):
        clock[0] += 6 * 60
        there = sorted(one.key for one in await store.asearch((), refresh_ttl=False))
        await store.aget(("a",), "got")
        await store.asearch(("a",), filter={"n": {"$eq": "found"}})
        await store.aget(("a",), "seen", refresh_ttl=False)
    left = sorted(one.key for one in await store.asearch(()))
    again = await store.aget(("a",), "got")
    swept = await session.records.delete_expired()

    assert ["found", "got", "kept"] == there == left
    assert (first.created_at, first.updated_at, first.value) == (again.created_at, again.updated_at, again.value)
    assert 2 == swept
    assert [("a",), ("b",)] == await store.alist_namespaces()


async def test_search_score_is_cosine_of_best_field():
    """Each indexed field has its own vector. Items without one come last, without a score."""
    axes = {"north": [1.0, 0.0], "east": [0.0, 1.0], "north-east": [0.6, 0.8]}
    embedder = as_embedder(lambda texts: [axes.get(text, [0.6, 0.8]) for text in texts], name="axes", dimensions=2)
    async with Session.open(embedder=embedder) as session:
        store = LangGraphStore(session, fields=["one", "more[*]"])
        await store.aput(("way",), "both", {"one": "east", "more": ["north-east", "north"]})
        await store.aput(("way",), "half", {"one": "north-east"})
        await store.aput(("way",), "kept", {"one": "north"}, index=False)
        await store.aput(("way",), "other", {"two": "east"}, index=["two"])
        found = await store.asearch(("way",), query="north")
        page = await store.asearch(("way",), query="north", limit=2, offset=1)

    assert [("both", 1.0), ("half", 0.6), ("other", 0.0), ("kept", None)] == [
        (one.key, one.score if one.score is None else round(one.score, 3)) for one in found
    ]
    assert ["half", "other"] == [one.key for one in page]


def test_store_works_in_any_thread_without_loop(tmp_path):
    """A session of `mama_structs.sync` serves programs without a loop, and the items are durable."""
    failed: list[BaseException] = []
    with sync.Session.open(tmp_path / "one.mama", embedder=HashEmbedder()) as session:
        store = LangGraphStore(session)

        def work(number: int) -> None:
            try:
                for at in range(5):
                    store.put(("thread", str(number)), f"k{at}", {"n": at})
                    assert {"n": at} == store.get(("thread", str(number)), f"k{at}").value
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # As in LangGraph's own store, blocking calls are allowed in any event loop except the session's.
        in_a_loop = asyncio.run(_get_beside(store))

    assert [] == failed
    assert [{"n": 4}, {"n": 4}] == in_a_loop
    with sync.Session.open(tmp_path / "one.mama", embedder=HashEmbedder()) as session:
        assert 20 == len(LangGraphStore(session).search(("thread",), limit=100))


async def _get_beside(store: LangGraphStore) -> list[Any]:
    return [store.get(("thread", "0"), "k4").value, (await store.aget(("thread", "1"), "k4")).value]


async def test_blocking_call_in_own_loop_raises():
    """In the loop of an async session only awaitable methods work; another thread may block."""
    async with Session.open(embedder=HashEmbedder()) as session:
        store, saver = LangGraphStore(session), LangGraphCheckpointer(session)
        with pytest.raises(asyncio.InvalidStateError, match="blocks"):
            store.put(("a",), "k", {"n": 1})
        with pytest.raises(WrongLoop):
            saver.get_tuple(called("t"))
        nothing = await store.aget(("a",), "k")
        await asyncio.to_thread(store.put, ("a",), "k", {"n": 2})
        something = await asyncio.to_thread(store.get, ("a",), "k")
    with pytest.raises(SessionClosed):
        await store.aget(("a",), "k")

    assert nothing is None
    assert {"n": 2} == something.value


def test_async_session_requires_its_loop():
    """A store of an async session is created in the session's loop, and ends with it."""

    async def opened() -> tuple[Session, LangGraphStore]:
        session = await Session.open(embedder=HashEmbedder())
        return session, LangGraphStore(session)

    with asyncio.Runner() as runner:
        session, store = runner.run(opened())
        with pytest.raises(WrongLoop):
            LangGraphStore(session)
        with pytest.raises(SessionClosed):
            store.get(("a",), "k")
        runner.run(session.close())


# --- the checkpointer ---


class Talk(TypedDict, total=False):
    said: list[str]
    notes: str


def graph_of(saver: Any, *, counted: list[str] | None = None) -> Any:
    """Return a graph of two steps that interrupts to ask a person."""

    def ask(state: Talk) -> Talk:
        (counted if counted is not None else []).append("ask")
        return {"said": [*state.get("said", []), f"asked {interrupt('name?')}"]}

    def close(state: Talk) -> Talk:
        return {"said": [*state["said"], "closed"], "notes": "n" * 10}

    builder = StateGraph(Talk)
    builder.add_node("ask", ask)
    builder.add_node("close", close)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "close")
    builder.add_edge("close", END)
    return builder.compile(checkpointer=saver)


async def test_interrupted_graph_resumes_in_another_process(tmp_path):
    """The state at the interrupt is stored, and a graph on the reopened store resumes from it."""
    async with Session.open(tmp_path / "one.mama", embedder=HashEmbedder()) as session:
        asked = await graph_of(LangGraphCheckpointer(session)).ainvoke({"said": ["hello"]}, called("t"))
    async with Session.open(tmp_path / "one.mama", embedder=HashEmbedder()) as session:
        done = await graph_of(LangGraphCheckpointer(session)).ainvoke(Command(resume="Ada"), called("t"))

    assert "name?" == asked["__interrupt__"][0].value
    assert ["hello", "asked Ada", "closed"] == done["said"]


@pytest.mark.parametrize("forked", [False, True])
async def test_history_matches_in_memory_saver(session, forked):
    """States, steps, pending writes and forks equal those of LangGraph's own saver."""
    histories = []
    for saver in (InMemorySaver(), LangGraphCheckpointer(session)):
        graph, config = graph_of(saver), called("t")
        await graph.ainvoke({"said": ["hello"]}, config)
        await graph.ainvoke(Command(resume="Ada"), config)
        if forked:
            first = [one async for one in graph.aget_state_history(config)][-2]
            again = await graph.aupdate_state(first.config, {"said": ["other"]})
            await graph.ainvoke(None, again)
            await graph.ainvoke(Command(resume="Bob"), config)
        histories.append(
            [
                (one.values, one.next, one.metadata["step"], one.metadata["source"], len(one.tasks))
                async for one in graph.aget_state_history(config)
            ]
        )

    assert histories[0] == histories[1]
    assert len(histories[1]) >= 4


async def test_list_before_checkpoint_without_thread(session):
    """When it replays a nested graph, LangGraph passes the *before* checkpoint without a thread."""
    saver = LangGraphCheckpointer(session)
    for step in range(3):
        await saver.aput(called("t"), {**empty_checkpoint(), "id": f"0{step}"}, {"step": step}, {})
    before = [one async for one in saver.alist(called("t"), before={"configurable": {"checkpoint_id": "02"}}, limit=1)]

    assert ["01"] == [one.checkpoint["id"] for one in before]


async def test_unchanged_channel_is_not_written_again(session):
    """A channel has one record per version, regardless of the number of checkpoints."""
    saver = LangGraphCheckpointer(session)
    config, versions = called("t"), {"big": "1", "step": "1"}
    for step in range(5):
        checkpoint = {**empty_checkpoint(), "channel_values": {"big": "x" * 1000, "step": step}}
        versions = {**versions, "step": f"{step + 1}"}
        checkpoint["channel_versions"] = versions
        config = await saver.aput(
            config, checkpoint, {"step": step}, versions if step == 0 else {"step": versions["step"]}
        )
    kept = [one.key for one in await session.records.list(("langgraph", "threads", "t", "values"))]
    latest = await saver.aget_tuple(called("t"))

    assert ["1 big", *(f"{step} step" for step in range(1, 6))] == sorted(kept)
    assert {"big": "x" * 1000, "step": 4} == latest.checkpoint["channel_values"]


async def test_threads_are_not_searchable(session):
    """Conversations are stored separately from memories."""
    await graph_of(LangGraphCheckpointer(session)).ainvoke({"said": ["the lighthouse is red"]}, called("t"))

    assert 0 == await session.memories.count()
    assert [] == await session.memories.search("the lighthouse is red")
    assert "" == (await session.recall("What colour is the lighthouse?")).text


@dataclasses.dataclass
class Point:
    """A class of the host in the state of its graph."""

    x: int


@pytest.mark.parametrize("allowed", [(), (Point,)])
async def test_only_allowed_classes_are_deserialized(session, allowed, caplog):
    """Another class of the host is returned as plain data, and the log names it."""
    saver = LangGraphCheckpointer(session, allow=allowed)
    checkpoint = {**empty_checkpoint(), "channel_values": {"at": Point(3)}, "channel_versions": {"at": "1"}}
    await saver.aput(called("t"), checkpoint, {"step": 0}, {"at": "1"})
    read = (await saver.aget_tuple(called("t"))).checkpoint["channel_values"]["at"]

    assert (Point(3) if allowed else {"x": 3}) == read


@pytest.mark.parametrize("kind", ["pickle", "msgpack"])
async def test_stored_class_names_are_not_called(session, kind, tmp_path):
    """An attacker with write access to the directory can cause neither unpickling nor a function call."""

    class Planted:
        def __reduce__(self):
            return (open, (str(tmp_path / "run"), "w"))

    call = ormsgpack.packb(("builtins", "open", (str(tmp_path / "run"), "w")))
    data = pickle.dumps(Planted()) if kind == "pickle" else ormsgpack.packb(ormsgpack.Ext(1, call))
    saver = LangGraphCheckpointer(session)
    checkpoint = {**empty_checkpoint(), "channel_values": {"at": 1}, "channel_versions": {"at": "1"}}
    await saver.aput(called("t"), checkpoint, {"step": 0}, {"at": "1"})
    (channel,) = await session.records.list(("langgraph", "threads", "t", "values"))
    planted = [kind, base64.b64encode(data).decode()]
    await session.records.put_many([_like(channel, planted)])
    read = await asyncio.gather(saver.aget_tuple(called("t")), return_exceptions=True)

    assert not (tmp_path / "run").exists()
    assert isinstance(read[0], NotImplementedError) is (kind == "pickle")


def _like(record: Any, value: Any) -> Any:
    return NewRecord(record.labels, record.key, value)


async def test_unpickling_serializer_is_rejected(session):
    """A host cannot enable unpickling, not even below an encrypting serializer."""

    class Sealed:
        serde = JsonPlusSerializer(pickle_fallback=True)

    class Twice:
        serde = Sealed()

    class Endless:
        @property
        def serde(self):
            return Endless()

    with pytest.raises(InvalidArgument, match="nests more than"):
        LangGraphCheckpointer(session, serde=Endless())
    for serde in (JsonPlusSerializer(pickle_fallback=True), Sealed(), Twice()):
        with pytest.raises(InvalidArgument, match="unpickle"):
            LangGraphCheckpointer(session, serde=serde)


async def test_thread_can_be_copied_pruned_and_deleted(session):
    """A copy is independent, pruning keeps the data of the latest checkpoint, deleting removes everything."""
    saver = LangGraphCheckpointer(session)
    graph = graph_of(saver)
    await graph.ainvoke({"said": ["hello"]}, called("one"))
    await saver.acopy_thread("one", "two")
    await saver.aprune(["one"])
    pruned = [one async for one in saver.alist(called("one"))]
    done = [(await graph.ainvoke(Command(resume=name), called(name)))["said"] for name in ("one", "two")]
    await saver.adelete_thread("one")
    left = await session.records.labels(("langgraph", "threads", "one"))
    both = {one.config["configurable"]["thread_id"] async for one in saver.alist(None)}

    assert 1 == len(pruned)
    assert [["hello", "asked one", "closed"], ["hello", "asked two", "closed"]] == done
    assert [] == left
    assert {"two"} == both


async def test_thread_with_delta_channels_is_not_pruned(session):
    """A channel that is rebuilt from earlier checkpoints would silently become empty."""
    saver = LangGraphCheckpointer(session)
    for step in range(2):
        metadata = {"step": step, "counters_since_delta_snapshot": {"said": (1, 1)}}
        await saver.aput(called("t"), empty_checkpoint(), metadata, {})
    with pytest.raises(InvalidArgument, match="DeltaChannel"):
        await saver.aprune(["t"])
    with pytest.raises(InvalidArgument):
        await saver.aprune("t")

    assert 2 == len([one async for one in saver.alist(called("t"))])


@pytest.mark.parametrize("config", [{"configurable": {}}, {}])
async def test_config_without_thread_is_rejected(session, config):
    """Nothing is stored without a thread id."""
    with pytest.raises(InvalidArgument, match="thread"):
        await LangGraphCheckpointer(session).aput(config, empty_checkpoint(), {}, {})


# --- agents ---


async def test_agent_finds_item_in_other_thread_and_resumes_its_own(tmp_path):
    """A later process finds an agent's item in another thread, and resumes the first thread."""
    agents = pytest.importorskip("langchain.agents")

    @tool
    async def remember(text: str, runtime: ToolRuntime) -> str:
        """Store a fact about the user."""
        await runtime.store.aput(("users", "ada"), text[:8], {"text": text})
        return "kept"

    @tool
    def look_up(query: str, runtime: ToolRuntime) -> str:
        """Find facts about the user. The tool is not async, so it runs in a thread."""
        return "; ".join(one.value["text"] for one in runtime.store.search(("users", "ada"), query=query, limit=1))

    def first():
        yield "remember", {"text": "Ada is allergic to nuts"}
        yield "Noted."

    def second():
        asked = yield "look_up", {"query": "allergic"}
        yield f"I know: {asked.results[-1]}"
        asked = yield "ignored"
        yield f"{len(asked.transcript)} messages"

    def agent_of(session, script):
        return agents.create_agent(
            ScriptedModel(script()).langchain(),
            tools=[remember, look_up],
            store=LangGraphStore(session, fields=["text"]),
            checkpointer=LangGraphCheckpointer(session),
        )

    async def say(agent, thread, text):
        return (await agent.ainvoke({"messages": [HumanMessage(text)]}, called(thread)))["messages"]

    async with Session.open(tmp_path / "one.mama", embedder=HashEmbedder()) as session:
        await say(agent_of(session, first), "monday", "I am allergic to nuts")
    async with Session.open(tmp_path / "one.mama", embedder=HashEmbedder()) as session:
        agent = agent_of(session, second)
        tuesday = await say(agent, "tuesday", "What must I not eat?")
        monday = await say(agent, "monday", "go on")
        recalled = (await session.recall("Is Ada allergic to something?")).text

    assert "I know: Ada is allergic to nuts" == tuesday[-1].content
    assert ["I am allergic to nuts", "", "kept", "Noted.", "go on"] == [one.content for one in monday[:5]]
    assert "Ada is allergic to nuts" in recalled


async def test_deepagents_files_are_items_of_the_store(session):
    """Files below /memories/ of deepagents are written, read, edited, listed and searched in a session."""
    deepagents = pytest.importorskip("deepagents.backends")
    store = LangGraphStore(session, fields=["content"])
    backend = deepagents.StoreBackend(namespace=lambda _runtime: ("ada", "filesystem"), store=store)
    written = await backend.awrite("/plan.md", "# Plan\nwater the ferns\n")
    edited = await backend.aedit("/plan.md", "ferns", "orchids")
    read = await backend.aread("/plan.md")
    listed = await backend.als("/")
    found = await session.memories.search("orchids")

    assert [None, None, None] == [written.error, edited.error, read.error]
    assert "water the orchids" in read.file_data["content"]
    assert ["/plan.md"] == [one["path"] for one in listed.entries]
    assert "water the orchids" in found[0].memory.content


def test_adapter_imports_no_other_framework():
    """Each module imports LangGraph and its dependencies, and no other host."""
    loaded = frameworks_loaded_by("langgraph.store", "langgraph.checkpoints")

    assert {"langgraph"} == loaded - {"langchain_core"}


async def test_read_does_not_extend_ttl_of_replacement(session, monkeypatch):
    """An item without TTL that replaces one during a read never expires."""
    store, moved = LangGraphStore(session), session.records.expire
    await store.aput(("a",), "k", {"n": 1}, ttl=0.01)

    async def overtaken(*given):
        await store.aput(("a",), "k", {"n": 2})
        return await moved(*given)

    monkeypatch.setattr(session.records, "expire", overtaken)
    await store.aget(("a",), "k")

    assert None is (await session.records.list(("langgraph", "store")))[0].expires_at


@pytest.mark.parametrize("value", [{"at": object()}, {"data": b"x"}, {"some": {1}}], ids=["object", "bytes", "set"])
async def test_value_that_is_no_json_raises_invalid_argument(session, value):
    """It is raised before anything of the batch is written, whether the value is indexed or not."""
    store = LangGraphStore(session)
    for index in (None, False):
        with pytest.raises(InvalidArgument, match="JSON"):
            await store.abatch([PutOp(("a",), "good", {"n": 1}), PutOp(("a",), "bad", value, index=index)])

    assert [] == await store.asearch(("a",))


SCALARS = st.none() | st.booleans() | st.integers(-1, 1) | st.floats() | st.sampled_from(["", "a", "x" * 200])
ITEMS = st.dictionaries(st.sampled_from("abcd"), SCALARS | st.dictionaries(st.sampled_from(["a", "b.c"]), SCALARS))
OPERATORS = st.dictionaries(st.sampled_from(["$eq", "$ne", "$gt", "$lte"]), SCALARS, min_size=1)
INNER = SCALARS | OPERATORS | st.dictionaries(st.sampled_from(["a", "b.c"]), SCALARS | OPERATORS)


@given(value=ITEMS, condition=st.dictionaries(st.sampled_from(["a", "b", "c", "d", "a.a"]), INNER))
def test_record_condition_includes_all_matches_of_filter(value, condition):
    """The index may find more records than the filter matches, but not fewer, also of items with a TTL."""
    found = find_record_condition(condition)

    assert not matches_filter(value, condition) or not found or check_json_condition(found).matches([value, 5.0])


async def test_filter_with_non_text_key_is_rejected(session):
    """An unknown operator is rejected, too."""
    with pytest.raises(InvalidArgument, match="names"):
        await LangGraphStore(session).asearch(("a",), filter={1: 2})


async def test_concurrent_runs_of_a_task_keep_first_writes(session):
    """The first stored writes of a task are kept, regardless of earlier reads."""
    saver = LangGraphCheckpointer(session)
    config = await saver.aput({"configurable": {"thread_id": "t"}}, empty_checkpoint(), {}, {})
    await asyncio.gather(*(saver.aput_writes(config, [("a", number)], "task") for number in range(5)))

    assert [("task", "a", 0)] == (await saver.aget_tuple(config)).pending_writes
