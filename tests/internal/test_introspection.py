"""`make_async`: async wrappers for all kinds of functions."""

import asyncio
import contextvars
import functools
import inspect
import threading

import pytest

from mama_structs import IdScheme, Session, Source, StructsSource, with_references
from mama_structs._internal.introspection import make_async
from mama_structs.errors import EntityNotFound, InvalidArgument
from mama_structs.references.options import ReferenceOptions
from mama_structs.references.resolver import Resolver
from mama_structs.refs.store.decorator import with_descriptors
from mama_structs.tools.tool import Tool

WHO = contextvars.ContextVar("who", default="nobody")
SCHEME = IdScheme(name="keys", pattern="k[0-9]", type_of=lambda _: "key")
REFERENCES = ReferenceOptions(include_references=True)


class Async:
    async def method(self, number): ...

    async def __call__(self, number): ...


class Plain:
    """Its methods return the thread, the context variable and the argument of a call."""

    def method(self, number):
        return threading.current_thread(), WHO.get(), number

    __call__ = method


def generator():
    yield 1


async def async_generator():
    yield 1


class Yielding:
    def method(self):
        yield 1

    __call__ = method


@pytest.mark.parametrize("function", [Async().method, Async(), functools.partial(Async().method, 1)])
def test_awaited_returns_async_function_unchanged(function):
    assert make_async(function) is function


@pytest.mark.parametrize("function", [Plain().method, Plain(), functools.partial(Plain().method)])
async def test_awaited_runs_sync_function_in_thread_with_callers_context(function):
    WHO.set("caller")

    thread, who, number = await make_async(function)(7)

    assert thread is not threading.current_thread()
    assert ("caller", 7) == (who, number)
    assert ["number"] == list(inspect.signature(make_async(function)).parameters)


async def test_awaited_awaits_result_of_sync_function():
    """A lambda around an async function returns a coroutine, which runs in the caller's event loop."""

    async def answer(number):
        return threading.current_thread(), number

    assert (threading.current_thread(), 7) == await make_async(lambda: answer(7))()


async def test_awaited_raises_error_of_sync_function():
    def fails():
        raise EntityNotFound("k1")

    with pytest.raises(EntityNotFound, match="k1"):
        await make_async(fails)()


@pytest.mark.parametrize(
    "function",
    [
        generator,
        async_generator,
        functools.partial(generator),
        Yielding(),
        Yielding().method,
        Plain,
        int,
        staticmethod(len),
        classmethod(len),
        5,
        None,
    ],
)
@pytest.mark.parametrize("take", [make_async, with_references, with_descriptors, Tool.from_function])
def test_generators_and_non_functions_are_rejected(function, take):
    """The error is raised when they are decorated or added, and not in the first call."""
    if function is None and take is not make_async:
        return  # with None, these decorators only set options and raise no error
    with pytest.raises(InvalidArgument, match="must be a function, async or plain"):
        take(function)


async def test_cancelled_caller_waits_for_end_of_thread():
    """The thread's exception is dropped."""
    started, go_on, threads = threading.Event(), threading.Event(), []

    def blocks():
        threads.append(threading.current_thread())
        started.set()
        go_on.wait()
        raise ValueError("too late")

    task = asyncio.create_task(make_async(blocks)())
    await asyncio.to_thread(started.wait)
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()

    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [False] == [thread.is_alive() for thread in threads]


async def test_source_accepts_sync_fetch_functions():
    """A function may fetch one id or many, and return answers or raise."""

    def fetch(key):
        if key == "k9":
            raise EntityNotFound(key)
        return {"key": key, "thread": threading.current_thread() is not threading.main_thread()}

    def fetch_many(keys):
        return {key: EntityNotFound(key) if key == "k9" else fetch(key) for key in keys}

    for source in (Source(SCHEME, fetch=fetch), Source(SCHEME, fetch_many=fetch_many)):
        async with Resolver([source]) as resolver:
            found = await resolver.resolve(["k1", "k9"], REFERENCES)

            assert {"reference_type": "key", "id": "k1", "key": "k1", "thread": True} == found["k1"]
            assert {"k9": "Entity not found"} == found.failed


async def test_structs_source_accepts_sync_fetch():
    class Table:
        def fetch(self, entity_id):
            return {"id": entity_id, "name": "x"}

    table = Table()
    async with Session.open(structs=table) as session:
        result = await session.call("structs_query_planet", {"planet_id": "2-1"})

    assert {"id": "2-1", "name": "x"} == result
    assert repr(StructsSource(table)) == f"StructsSource({table.fetch!r})"


async def test_session_calls_sync_tools():
    """Functions and methods can be decorated or added."""

    class Shop:
        @with_references
        def owner(self, key: str) -> dict[str, str]:
            return {"owner": key}

    def stock(item: str) -> dict[str, str]:
        """Return the stock."""
        return {"item": item}

    async with Session.open(sources=[Source(SCHEME, fetch=lambda key: {"name": key.upper()})]) as session:
        session.tools.add(stock)
        session.tools.add(session.with_references(lambda key: {"parent": key}), name="parent")

        assert {"owner": "k1"} == await Shop().owner("k1")
        assert "K1" == (await Shop().owner("k1", include_references=True))["references"]["k1"]["name"]
        assert {"item": "ore"} == await session.call("stock", {"item": "ore"})
        assert "Return the stock." == session.tools["stock"].description
        assert ["item"] == list(session.tools["stock"].input_schema["properties"])
        answer = await session.call("parent", {"key": "k2", "include_references": True})
        assert "K2" == answer["references"]["k2"]["name"]
        assert (await with_descriptors(lambda: "x" * 9_000)()).startswith("<fd_result")
