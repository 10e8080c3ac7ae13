"""LangGraph's store and checkpointer in a session: the rules of its own in-memory ones, and agents that resume."""

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

from mama_structs.adapters.langgraph.store import LangGraphStore
from mama_structs.adapters.langgraph.checkpoints import LangGraphCheckpointer
from mama_structs.records import NewRecord

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
    """A session on an empty directory, or on a server where the run is for one."""
    async with Session.open(tmp_path / "one.mama", embedder=HashEmbedder()) as opened:
        yield opened


def told(result: Any) -> Any:
    """What a result says but for the times, and the order of what has none."""
    if isinstance(result, list):
        return sorted((told(one) for one in result), key=repr)
    return (result.namespace, result.key, result.value) if hasattr(result, "key") else result


def called(thread: str, **more: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **more}}


@given(batches=st.lists(st.lists(OPS, max_size=6), max_size=6))
async def test_every_batch_gives_what_the_store_in_memory_gives(batches):
    """Reads see what was there before the batch, the last put of a key counts, and filters and paths match alike."""
    theirs = InMemoryStore()
    async with Session.open(embedder=HashEmbedder()) as session:
        ours = LangGraphStore(session)
        for ops in batches:
            # Theirs goes on listing a namespace whose last item was deleted.
            listed = [isinstance(op, ListNamespacesOp) for op in ops]
            expected = [told(one) for one in theirs.batch(ops)]
            found = [told(one) for one in await ours.abatch(ops)]

            assert [e for e, skip in zip(expected, listed, strict=True) if not skip] == [
                f for f, skip in zip(found, listed, strict=True) if not skip
            ]
            for want, got, is_list in zip(expected, found, listed, strict=True):
                assert not is_list or set(got) <= set(want)


async def test_no_namespace_is_listed_whose_items_are_gone(session):
    """A namespace is there as long as something is in it."""
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
async def test_wrong_operation_is_refused_before_anything_is_written(session, wrong):
    """What would fail is refused at the door, so that it takes nothing beside it along."""
    store = LangGraphStore(session)
    with pytest.raises((InvalidArgument, InvalidNamespaceError)):
        await store.abatch([PutOp(("a",), "k", {"n": 1}), wrong])

    assert [] == await store.asearch(())


async def test_what_an_agent_puts_is_recalled_by_everybody(session):
    """An item is found by the session's own search, in any language, and no more when it is deleted."""
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


async def test_item_lives_as_long_as_it_is_read(session):
    """Its time begins anew with a read, unless that says otherwise, and what is over is gone without a sweep."""
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
    swept = await session.records.sweep()

    assert ["found", "got", "kept"] == there == left
    assert (first.created_at, first.updated_at, first.value) == (again.created_at, again.updated_at, again.value)
    assert 2 == swept
    assert [("a",), ("b",)] == await store.alist_namespaces()


async def test_score_is_the_cosine_of_the_best_field():
    """Each indexed field has a vector of its own, and what has none comes last and without a score."""
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


def test_store_works_in_any_thread_without_a_loop(tmp_path):
    """A session of `mama_structs.sync` serves programs without a loop, and what they saved is there afterwards."""
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
        # An event loop that is not the session's may block for it, as it may for LangGraph's own.
        in_a_loop = asyncio.run(_get_beside(store))

    assert [] == failed
    assert [{"n": 4}, {"n": 4}] == in_a_loop
    with sync.Session.open(tmp_path / "one.mama", embedder=HashEmbedder()) as session:
        assert 20 == len(LangGraphStore(session).search(("thread",), limit=100))


async def _get_beside(store: LangGraphStore) -> list[Any]:
    return [store.get(("thread", "0"), "k4").value, (await store.aget(("thread", "1"), "k4")).value]


async def test_call_that_would_wait_for_its_own_loop_is_refused():
    """In the loop of an async session only what is awaited works; another thread may block."""
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


def test_async_session_needs_its_loop():
    """A store of an async session is made where the session lives, and ends with its loop."""

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
    """A graph of two steps that asks a person between them."""

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


async def test_interrupted_graph_goes_on_in_another_process(tmp_path):
    """What a graph had done by its interrupt is in the directory, and a graph that opens it goes on from there."""
    async with Session.open(tmp_path / "one.mama", embedder=HashEmbedder()) as session:
        asked = await graph_of(LangGraphCheckpointer(session)).ainvoke({"said": ["hello"]}, called("t"))
    async with Session.open(tmp_path / "one.mama", embedder=HashEmbedder()) as session:
        done = await graph_of(LangGraphCheckpointer(session)).ainvoke(Command(resume="Ada"), called("t"))

    assert "name?" == asked["__interrupt__"][0].value
    assert ["hello", "asked Ada", "closed"] == done["said"]


@pytest.mark.parametrize("forked", [False, True])
async def test_history_is_that_of_the_saver_in_memory(session, forked):
    """States, steps, pending writes and forks are the same as with LangGraph's own saver."""
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


async def test_checkpoints_before_another_are_listed_by_its_id_alone(session):
    """Replaying a graph inside another one, LangGraph names the checkpoint before which it looks without a thread."""
    saver = LangGraphCheckpointer(session)
    for step in range(3):
        await saver.aput(called("t"), {**empty_checkpoint(), "id": f"0{step}"}, {"step": step}, {})
    before = [one async for one in saver.alist(called("t"), before={"configurable": {"checkpoint_id": "02"}}, limit=1)]

    assert ["01"] == [one.checkpoint["id"] for one in before]


async def test_what_did_not_change_is_not_written_again(session):
    """A channel has one record for each of its versions, however many checkpoints name it."""
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


async def test_no_search_and_no_recall_sees_a_thread(session):
    """Conversations are kept beside the memories, not among them."""
    await graph_of(LangGraphCheckpointer(session)).ainvoke({"said": ["the lighthouse is red"]}, called("t"))

    assert 0 == await session.memories.count()
    assert [] == await session.memories.search("the lighthouse is red")
    assert "" == (await session.recall("What colour is the lighthouse?")).text


@dataclasses.dataclass
class Point:
    """A class of a host's own, in its graph's state."""

    x: int


@pytest.mark.parametrize("allowed", [(), (Point,)])
async def test_only_allowed_classes_are_made_of_what_is_read(session, allowed, caplog):
    """A class that the host did not allow comes back as plain data, and the log names it."""
    saver = LangGraphCheckpointer(session, allow=allowed)
    checkpoint = {**empty_checkpoint(), "channel_values": {"at": Point(3)}, "channel_versions": {"at": "1"}}
    await saver.aput(called("t"), checkpoint, {"step": 0}, {"at": "1"})
    read = (await saver.aget_tuple(called("t"))).checkpoint["channel_values"]["at"]

    assert (Point(3) if allowed else {"x": 3}) == read


@pytest.mark.parametrize("kind", ["pickle", "msgpack"])
async def test_nothing_that_a_record_names_is_run(session, kind, tmp_path):
    """Who can write to the directory can neither have something unpickled nor a function called."""

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


async def test_serializer_that_unpickles_is_refused(session):
    """A host cannot switch unpickling on, not even below an encryption."""

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


async def test_thread_is_deleted_copied_and_pruned_as_a_whole(session):
    """A copy goes on by itself, pruning keeps what the latest checkpoint needs, deleting leaves nothing."""
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


async def test_thread_that_is_rebuilt_from_its_past_is_not_pruned(session):
    """A channel that is made of earlier checkpoints' writes would come back empty in silence."""
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
async def test_config_without_a_thread_is_refused(session, config):
    """Nothing is kept under no name."""
    with pytest.raises(InvalidArgument, match="thread"):
        await LangGraphCheckpointer(session).aput(config, empty_checkpoint(), {}, {})


# --- agents ---


async def test_scripted_agent_remembers_across_threads_and_goes_on_in_its_own(tmp_path):
    """An agent's tool puts into the store; a later process finds it in another thread, and the first thread goes on."""
    agents = pytest.importorskip("langchain.agents")

    @tool
    async def remember(text: str, runtime: ToolRuntime) -> str:
        """Keep a fact about the user."""
        await runtime.store.aput(("users", "ada"), text[:8], {"text": text})
        return "kept"

    @tool
    def look_up(query: str, runtime: ToolRuntime) -> str:
        """Find what is known of the user; a tool that is not async runs in a thread."""
        return "; ".join(one.value["text"] for one in runtime.store.search(("users", "ada"), query=query, limit=1))

    def first():
        yield "remember", {"text": "Ada is allergic to nuts"}
        yield "Noted."

    def second():
        asked = yield "look_up", {"query": "allergic"}
        yield f"I know: {asked.results[-1]}"
        asked = yield "ignored"
        yield f"{len(asked.said)} messages"

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


async def test_deepagents_memories_are_items_of_the_store(session):
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
    """Each module imports LangGraph and what that needs, nothing of another host."""
    loaded = frameworks_loaded_by("langgraph", "langgraph_checkpoints")

    assert {"langgraph"} == loaded - {"langchain_core"}


async def test_a_read_gives_no_end_to_what_took_an_items_place(session, monkeypatch):
    """An item that is put without an end while the one before it is read stays for ever."""
    store, moved = LangGraphStore(session), session.records.expire
    await store.aput(("a",), "k", {"n": 1}, ttl=0.01)

    async def overtaken(*given):
        await store.aput(("a",), "k", {"n": 2})
        return await moved(*given)

    monkeypatch.setattr(session.records, "expire", overtaken)
    await store.aget(("a",), "k")

    assert None is (await session.records.list(("langgraph", "store")))[0].expires_at


@pytest.mark.parametrize("value", [{"at": object()}, {"data": b"x"}, {"some": {1}}], ids=["object", "bytes", "set"])
async def test_what_is_no_json_is_refused_by_our_error(session, value):
    """Before anything of its batch is written, whether or not it is indexed."""
    store = LangGraphStore(session)
    for index in (None, False):
        with pytest.raises(InvalidArgument, match="JSON"):
            await store.abatch([PutOp(("a",), "good", {"n": 1}), PutOp(("a",), "bad", value, index=index)])

    assert [] == await store.asearch(("a",))


async def test_a_filter_of_no_names_is_refused(session):
    """As an operator is that nobody knows."""
    with pytest.raises(InvalidArgument, match="names"):
        await LangGraphStore(session).asearch(("a",), filter={1: 2})


async def test_two_that_run_one_task_at_once_keep_what_one_of_them_wrote_first(session):
    """What a task wrote stays as whoever was first has it, whoever read before that."""
    saver = LangGraphCheckpointer(session)
    config = await saver.aput({"configurable": {"thread_id": "t"}}, empty_checkpoint(), {}, {})
    await asyncio.gather(*(saver.aput_writes(config, [("a", number)], "task") for number in range(5)))

    assert [("task", "a", 0)] == (await saver.aget_tuple(config)).pending_writes
