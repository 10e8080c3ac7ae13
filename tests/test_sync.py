"""The synchronous API."""

import ast
import asyncio
import contextvars
import inspect
import io
import os
import pickle
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import types
import typing
from pathlib import Path

import pytest
from memory_helpers import SMALL

import mama_structs
from mama_structs import admin, as_embedder, importers, sync
from mama_structs._internal.sync_proxy import SyncProxy
from mama_structs.adapters import mem0
from mama_structs.errors import InvalidArgument, MemoryNotFound, SessionClosed, WrongLoop

GENERATOR = Path(__file__).parents[1] / "scripts" / "sync_stub.py"


@pytest.fixture
def session():
    with sync.Session.open(embedder=SMALL) as opened:
        yield opened


def test_stub_matches_async_classes():
    made = runpy.run_path(str(GENERATOR))

    assert (sync, sync.admin, mem0) == made["MODULES"]
    for module in made["MODULES"]:
        written = made["target"](module).read_text(encoding="utf-8")
        assert made["stub"](module) == written, "run scripts/sync_stub.py"


FACADES = [getattr(sync, name) for name in sync.__all__ if isinstance(getattr(sync, name), type)]


@pytest.mark.parametrize("facade", [*FACADES, mem0.Memory])
def test_proxy_has_every_public_method_without_async(facade):
    """The methods have the same arguments."""
    for method, function in inspect.getmembers(facade._kind, inspect.isfunction):
        wrapped = inspect.isasyncgenfunction(inspect.unwrap(function)) and not inspect.isasyncgenfunction(function)
        if not method.startswith("_") and not wrapped:
            own = getattr(facade, method)
            assert not inspect.iscoroutinefunction(own)
            assert not inspect.isasyncgenfunction(own)
            assert inspect.signature(function) == inspect.signature(own)
            assert typing.get_type_hints(function) == typing.get_type_hints(own)
            assert function.__doc__ == own.__doc__


@pytest.mark.parametrize("facade", [*FACADES, mem0.Memory])
def test_proxy_and_stub_have_every_public_member(facade):
    """Properties are included, and the stub has the parameters of each method."""
    kind = facade._kind
    module = sys.modules[facade.__module__]
    tree = ast.parse(runpy.run_path(str(GENERATOR))["target"](module).read_text(encoding="utf-8"))
    (stub,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == facade.__name__)
    stubbed = {node.name: node for node in stub.body if isinstance(node, ast.FunctionDef)}
    for name in (name for name in dir(kind) if not name.startswith("_")):
        member = inspect.getattr_static(kind, name)
        own = inspect.getattr_static(facade, name)
        assert isinstance(own, property) == isinstance(member, property), name
        if not isinstance(member, property):
            parameters = [*inspect.signature(getattr(kind, name)).parameters]
            listed = stubbed[name].args
            every = [*listed.posonlyargs, *listed.args, listed.vararg, *listed.kwonlyargs, listed.kwarg]
            # A constructor such as `open` is bound, so it has no parameter for the class.
            assert parameters == [one.arg for one in every if one is not None], name
        assert name in stubbed


def test_admin_has_every_function_of_the_async_module():
    assert sorted(sync.admin.__all__) == sorted(admin.__all__)
    for name in admin.__all__:
        function, own = getattr(admin, name), getattr(sync.admin, name)
        assert not inspect.iscoroutinefunction(own)
        assert inspect.signature(function) == inspect.signature(own)
        assert function.__doc__ == own.__doc__


def test_admin_accepts_sync_sessions_and_locations(tmp_path):
    with sync.Session.open(tmp_path / "a.mama", embedder=SMALL, namespace="team") as session:
        session.memories.save("shields help")

        assert sync.admin.check(session).ok
        assert sync.admin.check(session.memories).ok
        assert ("team",) == sync.admin.list_namespaces(session)
        assert 1 == sync.admin.export_jsonl(session, tmp_path / "a.jsonl")
        assert tmp_path / "copy" == sync.admin.backup(session, tmp_path / "copy")
    assert ("team",) == sync.admin.list_namespaces(tmp_path / "copy")


async def test_async_admin_rejects_sync_session_with_hint(tmp_path):
    session = await asyncio.to_thread(sync.Session.open, embedder=SMALL)
    try:
        with pytest.raises(InvalidArgument) as raised:
            await admin.check(session)
        with pytest.raises(InvalidArgument):
            await admin.list_namespaces(session)
    finally:
        await asyncio.to_thread(session.close)

    assert "mama_structs.sync import admin" in raised.value.hint


# with_references


@pytest.fixture
def customers():
    """A source of customers, and the ids that were fetched."""
    fetched = []

    async def fetch(key):
        fetched.append(key)
        return {"customer_id": key, "name": f"name of {key}"}

    scheme = mama_structs.IdScheme(name="customer", pattern=r"c-\d+", fields={"customer_id": "customer"})
    return mama_structs.Source(scheme, fetch=fetch), fetched


def test_bound_with_references_keeps_plain_function_plain(customers):
    source, fetched = customers
    with sync.Session.open(embedder=SMALL, sources=[source]) as session:

        @session.with_references
        def order(order_id: str) -> dict:
            """Return an order."""
            return {"order": order_id, "customer_id": "c-1", "thread": threading.current_thread().name}

        plain, enriched = order("o-1"), order("o-1", include_references=True)
        session.tools.add(order)
        called = session.call("order", {"order_id": "o-2", "include_references": True})

    assert not inspect.iscoroutinefunction(order)
    assert "order" == order.__name__
    assert {"order", "customer_id", "thread"} == set(plain)
    assert threading.current_thread().name == plain["thread"]
    assert "name of c-1" in str(enriched["references"])
    assert "name of c-1" in str(called["references"])
    assert ["c-1"] == fetched


def test_with_references_keeps_async_function_async(customers):
    """It can be awaited in a loop of the host and by the session's own call."""
    source, _ = customers
    with sync.Session.open(embedder=SMALL, sources=[source]) as session:

        @session.with_references(kind="query")
        async def order(order_id: str) -> dict:
            return {"order": order_id, "customer_id": "c-1"}

        enriched = asyncio.run(order("o-1", include_references=True))
        session.tools.add(order)
        called = session.call("order", {"order_id": "o-2", "include_references": True})

    assert inspect.iscoroutinefunction(order)
    assert "name of c-1" in str(enriched["references"])
    assert "name of c-1" in str(called["references"])


def test_unbound_with_references_uses_entered_session_or_resolver(customers):
    source, _ = customers

    @sync.with_references
    def order(order_id: str) -> dict:
        return {"customer_id": "c-1"}

    without_session = order("o-1", include_references=True)
    with sync.Session.open(embedder=SMALL) as _other, sync.Session.open(embedder=SMALL, sources=[source]):
        entered = order("o-1", include_references=True)
    with sync.Resolver([source]) as resolver:
        bound = sync.with_references(resolver=resolver)(lambda: {"customer_id": "c-2"})
        resolved = bound(include_references=True)

    assert {} == without_session["references"]
    assert "name of c-1" in str(entered["references"])
    assert "name of c-2" in str(resolved["references"])


async def test_plain_tool_with_references_raises_in_event_loop_before_it_runs(customers):
    ran = []

    def order() -> dict:
        ran.append(True)
        return {"customer_id": "c-1"}

    session = await asyncio.to_thread(sync.Session.open, embedder=SMALL, sources=[customers[0]])
    try:
        with pytest.raises(WrongLoop):
            session.with_references(order)(include_references=True)
        assert not ran
        assert {"customer_id": "c-1"} == session.with_references(order)()
    finally:
        await asyncio.to_thread(session.close)


@pytest.mark.parametrize("unfit", [dict, 3, lambda: (yield 1)])
def test_with_references_rejects_what_is_no_function(unfit):
    with pytest.raises(InvalidArgument, match="with_references"):
        sync.with_references(unfit)


def test_plain_tool_may_return_an_awaitable(session):
    async def later() -> dict:
        return {"n": 1}

    plain = session.with_references(lambda: later())  # noqa: PLW0108 - a plain function that returns a coroutine

    assert {"n": 1} == plain()


def test_methods_of_a_class_can_have_references(customers):
    class Shop:
        @sync.with_references
        def order(self, order_id: str) -> dict:
            return {"order": order_id, "customer_id": "c-3"}

    with sync.Session.open(embedder=SMALL, sources=[customers[0]]):
        found = Shop().order("o-1", include_references=True)

    assert "o-1" == found["order"]
    assert "name of c-3" in str(found["references"])


def test_peer_names_raise_the_hints_of_the_async_class(session):
    with pytest.raises(AttributeError, match="save"):
        session.memories.add("shields help")
    with pytest.raises(TypeError, match="limit"):
        session.memories.search("shields", top_k=3)


def test_importers_return_their_report_for_sync_memories(session, tmp_path):
    (tmp_path / "memory.json").write_text(
        '{"type": "entity", "name": "Ada", "entityType": "person", "observations": ["is a nurse"]}\n'
    )
    report = importers.import_from(session.memories, "mcp-memory", tmp_path / "memory.json")
    rolled_back = importers.rollback_v1(session.memories)

    assert isinstance(report, importers.ImportReport)
    assert isinstance(rolled_back, importers.RollbackReport)
    assert session.memories.count()


def test_condition_that_uses_the_store_raises_instead_of_blocking(session):
    """The session continues to work."""
    session.records.put(("a",), "k", 1, text="ducks")
    for ask in (session.records.list, lambda predicate: session.records.search("ducks", predicate=predicate)):
        with pytest.raises(WrongLoop, match="condition"):
            ask(predicate=lambda one: session.records.get(one.labels, one.key) is not None)

    assert 1 == session.records.get(("a",), "k").value


@pytest.mark.parametrize("kind", [mem0.AsyncMemory, mem0.Memory, sync.Session])
def test_proxy_class_is_pickled_by_its_public_module(kind):
    assert kind is getattr(sys.modules[kind.__module__], kind.__name__)
    assert kind.__module__ in {mem0.__name__, sync.__name__}
    assert kind is pickle.loads(pickle.dumps(kind))


def test_saved_memory_is_found(session, tmp_path):
    saved = session.memories.save_decision("shield first", topic="defence", reasoning="raids doubled")
    session.observe("<ref id='plan'>shield, then ore</ref>")

    assert [saved] == [hit.memory for hit in session.memories.search("shield first", limit=1)]
    assert saved.id in str(session.call("search/by_topic", {"topic": "defence"}))
    assert ["ref:plan@1"] == list(session.refs)
    assert "shield, then ore" == session.refs.get("ref:plan").text
    assert session.memories == session.memories
    with session.fork() as fork:
        assert fork.refs != session.refs
        assert fork.memories.count() == session.memories.count()


def test_iterator_arguments_are_consumed_in_callers_thread(session):
    """The generators call the session, which would block its loop."""
    threads = []

    def describe(memory):
        threads.append(threading.current_thread())
        return f"copy of {memory.content}"

    memories = session.memories
    memories.save_many(iter(["shields help", "raids doubled", "ore is low"]))
    copies = memories.save_many(describe(memory) for memory in memories.iter_all())
    deleted = memories.delete(memory for memory in memories.iter_all() if memory.content.startswith("copy"))
    erased = memories.erase(memories.iter_all())

    assert {threading.current_thread()} == set(threads)
    assert (3, 3, 3) == (len(copies), deleted, erased.count)


def test_file_argument_is_not_consumed_as_iterator(session):
    with pytest.raises(InvalidArgument, match="got StringIO"):
        session.memories.save(io.StringIO("shields help"))


def test_error_has_traceback_from_caller_to_origin(session):
    with pytest.raises(MemoryNotFound) as raised:
        session.memories.get("decision_x_1700000000000_12345678")

    files = [Path(frame.filename).name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert Path(__file__).name == files[0]
    assert {"memory_reader.py", "save_plan.py"} < set(files)


def test_threads_share_a_session(session):
    """The work runs in the loop's thread."""
    seen = set()

    def embed(texts):
        seen.add(threading.current_thread())
        return SMALL.embed(texts)

    with sync.Session.open(embedder=as_embedder(embed, name="seen", dimensions=SMALL.dimensions)) as own:
        threads = [threading.Thread(target=own.memories.save_context, args=[f"number {i}"]) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert 8 == own.memories.count()
    assert not seen & {*threads, threading.current_thread()}


async def test_call_in_thread_with_running_loop_raises_wrong_loop():
    """The error names the async class."""
    with pytest.raises(
        WrongLoop, match=r"would block the event loop .* \(here: from mama_structs import Session; session = await"
    ):
        sync.Session.open()


async def test_notebook_cell_may_block_the_kernel_loop(monkeypatch):
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    with sync.Session.open(embedder=SMALL) as session:
        saved = session.memories.save_insight("shields help")

        assert saved == session.memories.get(saved.id)

        def elsewhere():
            with pytest.raises(WrongLoop, match="block"):
                asyncio.run(_count(session))

        await asyncio.to_thread(elsewhere)


async def _count(session):
    return session.memories.count()


def test_interrupt_cancels_call_and_keeps_complete_data(tmp_path):
    """The call raises after its work has ended."""
    pressed = []

    def embed(texts):
        if any("stop" in text for text in texts) and not pressed:
            # Send only one signal, because a second one could arrive after the call.
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return SMALL.embed(texts)

    slow = as_embedder(embed, name="slow", dimensions=SMALL.dimensions)
    with sync.Session.open(tmp_path / "a.mama", embedder=slow) as session:
        session.memories.save_context("before")
        with pytest.raises(KeyboardInterrupt):
            session.memories.save_many([{"type": "context", "content": f"stop {i}"} for i in range(300)])
        session.memories.save_context("after")

        saved = {memory.content for memory in session.memories.iter_all()}
        assert {"before", "after"} <= saved
        # The number of stored memories depends on timing, but they must be the first ones, without gaps.
        assert saved - {"before", "after"} == {f"stop {i}" for i in range(len(saved) - 2)}
        assert session.memories.count() == len(saved)
        assert sync.admin.check(session).ok


def test_system_exit_in_callback_does_not_stop_the_loop(session):
    def leave(*_):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        session.memories.save_many([{"type": "context", "content": "one"}], progress=leave)

    assert 1 == session.memories.count()


def test_tools_run_in_the_callers_context(session):
    user = contextvars.ContextVar("user", default="nobody")

    async def whose() -> str:
        return user.get()

    session.tools.add(whose)
    user.set("ada")

    assert "ada" == session.call("whose")


def test_sync_tool_may_use_the_session(session):
    def note(text: str) -> str:
        return session.memories.save_context(text).content

    session.tools.add(note)

    assert "seen" == session.call("note", {"text": "seen"})


def test_call_on_closed_session_raises_session_closed():
    with sync.Session.open(embedder=SMALL) as session:
        assert session.is_open

    assert not session.is_open
    with pytest.raises(SessionClosed):
        session.memories.count()


def test_sessions_share_a_resolver():
    with sync.Resolver() as resolver, sync.Session.open(embedder=SMALL, resolver=resolver) as session:
        assert session.resolver.sources[: len(resolver.sources)] == resolver.sources


def test_open_session_is_closed_at_interpreter_exit(tmp_path):
    """It is also closed if the program ends during an iteration over all memories."""
    code = (
        "from mama_structs import HashEmbedder, sync\n"
        f"session = sync.Session.open({str(tmp_path / 'a.mama')!r}, conversation='c', embedder=HashEmbedder())\n"
        "session.memories.save_context('kept')\n"
        "session.refs.put('plan', 'shield first')\n"
        "begun = session.memories.iter_all()\n"
        "next(begun)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)

    assert ("", "") == (done.stdout, done.stderr)
    with sync.Session.open(tmp_path / "a.mama", conversation="c") as session:
        assert "shield first" == session.refs.get("ref:plan").text
        assert ["kept"] == [memory.content for memory in session.memories.list()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_rejects_parents_session_and_opens_its_own(tmp_path):
    """Forked workers (Celery, gunicorn) must not wait for a thread of the parent."""
    code = (
        "import os\n"
        "from mama_structs import HashEmbedder, sync\n"
        "from mama_structs.errors import WrongLoop\n"
        f"session = sync.Session.open({str(tmp_path / 'a.mama')!r}, embedder=HashEmbedder())\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        session.memories.count()\n"
        "    except WrongLoop as error:\n"
        "        print(error)\n"
        f"    with sync.Session.open({str(tmp_path / 'a.mama')!r}, embedder=HashEmbedder()) as own:\n"
        "        print(own.memories.save_context('from the child').content, flush=True)\n"
        "    os._exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "print(session.memories.count())\n"
        "session.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ["(open another session here)", "from the child", "1"] == [
        done.stdout.splitlines()[0].partition("made it ")[2],
        *done.stdout.splitlines()[1:],
    ]


def test_dir_lists_attributes_and_methods(session):
    assert {"memories", "refs", "settings", "call", "is_open"} < set(dir(session))
    assert isinstance(session.memories, sync.MemoryStore)
    assert mama_structs.MemoryStore.search.__doc__ == sync.MemoryStore.search.__doc__
    assert repr(session).startswith("<sync <Session")
    with pytest.raises(AttributeError):
        session.no_such_name  # noqa: B018 - the attribute must not exist
    with pytest.raises(AttributeError):
        SyncProxy.__getattr__(session, "_private")
