"""The session without an event loop."""

import asyncio
import contextvars
import inspect
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
from mama_structs import as_embedder, sync
from mama_structs._internal.sync_proxy import Facade
from mama_structs.adapters import mem0
from mama_structs.errors import MemoryNotFound, SessionClosed, WrongLoop

GENERATOR = Path(__file__).parents[1] / "scripts" / "sync_stub.py"


@pytest.fixture
def session():
    with sync.Session.open(embedder=SMALL) as opened:
        yield opened


def test_the_types_are_those_of_the_async_classes():
    """What type checkers read is what the generator makes of the async classes today."""
    made = runpy.run_path(str(GENERATOR))

    assert (sync, mem0) == made["MODULES"]
    for module in made["MODULES"]:
        written = made["target"](module).read_text(encoding="utf-8")
        assert made["stub"](module) == written, "run scripts/sync_stub.py"


@pytest.mark.parametrize("facade", [*(getattr(sync, name) for name in sync.__all__), mem0.Memory])
def test_every_public_method_is_there_and_is_not_async(facade):
    """A facade has each public name of its class, takes the same arguments, and gives no coroutine."""
    for method, function in inspect.getmembers(facade._kind, inspect.isfunction):
        wrapped = inspect.isasyncgenfunction(inspect.unwrap(function)) and not inspect.isasyncgenfunction(function)
        if not method.startswith("_") and not wrapped:
            own = getattr(facade, method)
            assert not inspect.iscoroutinefunction(own)
            assert not inspect.isasyncgenfunction(own)
            assert inspect.signature(function) == inspect.signature(own)
            assert typing.get_type_hints(function) == typing.get_type_hints(own)
            assert function.__doc__ == own.__doc__


def test_a_condition_that_asks_the_store_is_refused_and_does_not_hang(session):
    """The store waits for a condition's answer: one that asks it in turn is an error, and the session goes on."""
    session.records.put(("a",), "k", 1, text="ducks")
    for ask in (session.records.list, lambda where: session.records.search("ducks", where=where)):
        with pytest.raises(WrongLoop, match="condition"):
            ask(where=lambda one: session.records.get(one.labels, one.key) is not None)

    assert 1 == session.records.get(("a",), "k").value


@pytest.mark.parametrize("kind", [mem0.AsyncMemory, mem0.Memory, sync.Session])
def test_a_class_is_named_by_its_door(kind):
    """Pickles and `help` name a class where its users import it from, wherever it is written."""
    assert kind is getattr(sys.modules[kind.__module__], kind.__name__)
    assert kind.__module__ in {mem0.__name__, sync.__name__}
    assert kind is pickle.loads(pickle.dumps(kind))


def test_what_is_saved_is_found(session, tmp_path):
    """A script saves, searches, calls tools and keeps refs without awaiting anything."""
    saved = session.memories.save_decision("defence", "shield first", "raids doubled")
    session.observe("<ref id='plan'>shield, then ore</ref>")

    assert [saved] == [hit.memory for hit in session.memories.search("shield first", limit=1)]
    assert saved.id in str(session.call("search/by_topic", {"topic": "defence"}))
    assert ["ref:plan@1"] == list(session.refs)
    assert "shield, then ore" == session.refs.get("ref:plan").text
    assert session.memories == session.memories
    with session.fork() as fork:
        assert fork.refs != session.refs
        assert fork.memories.count() == session.memories.count()


def test_an_error_is_the_same_and_says_where(session):
    """The error of the async class comes out, and its traceback leads from the caller's line to what raised it."""
    with pytest.raises(MemoryNotFound) as raised:
        session.memories.get("decision_x_1700000000000_12345678")

    files = [Path(frame.filename).name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert Path(__file__).name == files[0]
    assert {"store.py", "saving.py"} < set(files)


def test_threads_share_a_session(session):
    """Any thread may call, several at once, and the loop's thread is none of them."""
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


async def test_a_running_loop_is_not_blocked():
    """In a thread whose loop runs the facade refuses, and names the class to use."""
    with pytest.raises(
        WrongLoop, match=r"would block the event loop .* \(here: from mama_structs import Session; session = await"
    ):
        sync.Session.open()


async def test_a_cell_of_a_notebook_may_wait(monkeypatch):
    """Where the loop is a kernel's, which waits for its cell anyway, the same lines work as in a script."""
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


def test_ctrl_c_undoes_what_runs_and_leaves_the_data_whole(tmp_path):
    """Interrupted in the middle, the call raises when nothing of it runs any more; what was saved is whole."""
    pressed = []

    def embed(texts):
        if any("stop" in text for text in texts) and not pressed:
            # Once: another one could arrive where nobody waits for it any more.
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return SMALL.embed(texts)

    slow = as_embedder(embed, name="slow", dimensions=SMALL.dimensions)
    with sync.Session.open(tmp_path / "a.mama", embedder=slow) as session:
        session.memories.save_context("before")
        with pytest.raises(KeyboardInterrupt):
            session.memories.save_many([{"type": "context", "content": f"stop {i}"} for i in range(300)])
        session.memories.save_context("after")

        saved = {memory.content for memory in session.memories.recent(limit=400)}
        assert {"before", "after"} <= saved
        # How many a transaction holds goes by the time that it takes; whole ones are kept, in order.
        assert saved - {"before", "after"} == {f"stop {i}" for i in range(len(saved) - 2)}
        assert session.memories.count() == len(saved)
        assert session.check().ok


def test_a_callback_that_exits_ends_nobody_else(session):
    """A host's callback that raises SystemExit ends its own call, and the loop serves the next one."""

    def leave(*_):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        session.memories.save_many([{"type": "context", "content": "one"}], progress=leave)

    assert 1 == session.memories.count()


def test_tools_run_in_the_callers_context(session):
    """What a context variable holds where a tool is called, it holds in the tool."""
    user = contextvars.ContextVar("user", default="nobody")

    async def whose() -> str:
        return user.get()

    session.tools.add(whose)
    user.set("ada")

    assert "ada" == session.call("whose")


def test_a_plain_tool_may_use_the_session(session):
    """A host's tool that is not async runs in a thread of its own, and calls the facade as anybody does."""

    def note(text: str) -> str:
        return session.memories.save_context(text).content

    session.tools.add(note)

    assert "seen" == session.call("note", {"text": "seen"})


def test_a_closed_session_says_so():
    """After ``with`` the session refuses, in the words of the async one."""
    with sync.Session.open(embedder=SMALL) as session:
        assert session.is_open

    assert not session.is_open
    with pytest.raises(SessionClosed):
        session.memories.count()


def test_several_sessions_share_a_resolver():
    """A resolver of the facade is one that sessions of the facade can share."""
    with sync.Resolver() as resolver, sync.Session.open(embedder=SMALL, resolver=resolver) as session:
        assert session.resolver.sources[: len(resolver.sources)] == resolver.sources


def test_what_is_not_closed_is_closed_at_the_end(tmp_path):
    """A script that ends without closing loses nothing, and says nothing, though it is in the middle of all memories."""
    code = (
        "from mama_structs import HashEmbedder, sync\n"
        f"session = sync.Session.open({str(tmp_path / 'a.mama')!r}, conversation='c', embedder=HashEmbedder())\n"
        "session.memories.save_context('kept')\n"
        "session.refs.put('plan', 'shield first')\n"
        "begun = session.memories.all()\n"
        "next(begun)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)

    assert ("", "") == (done.stdout, done.stderr)
    with sync.Session.open(tmp_path / "a.mama", conversation="c") as session:
        assert "shield first" == session.refs.get("ref:plan").text
        assert ["kept"] == [memory.content for memory in session.memories.recent()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_refuses_what_is_its_parents_and_opens_its_own(tmp_path):
    """A worker that was forked (Celery, gunicorn) never waits for a thread that did not come along."""
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


def test_help_and_completion_say_what_there_is(session):
    """`dir` lists attributes as well as methods, and a name that is not there is an AttributeError."""
    assert {"memories", "refs", "settings", "call", "is_open"} < set(dir(session))
    assert isinstance(session.memories, sync.MemoryStore)
    assert mama_structs.MemoryStore.search.__doc__ == sync.MemoryStore.search.__doc__
    assert repr(session).startswith("<sync <Session")
    with pytest.raises(AttributeError):
        session.no_such_name  # noqa: B018 - it must not be there
    with pytest.raises(AttributeError):
        Facade.__getattr__(session, "_private")
