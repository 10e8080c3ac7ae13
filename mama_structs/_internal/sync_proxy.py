"""Synchronous proxies for async objects. The objects run in a thread with an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import contextlib
import functools
import inspect
import io
import os
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from mama_structs._internal.event_loop import is_in_plan
from mama_structs._internal.hints.call_hints import with_sync_calls
from mama_structs.errors import SessionClosed, WrongLoop

T = TypeVar("T")

FORWARDED_METHODS: Final = ("__len__", "__bool__", "__contains__", "__getitem__", "_repr_html_")
# `concurrent.futures.thread` registers an exit handler. Register ours later, so that it runs first and closes the loop.
EARLIER_EXIT_MODULE: Final = concurrent.futures.thread


class LoopThread:
    """A thread with an event loop in which all objects of `mama_structs.sync` run."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._is_closed = False
        self._closable: weakref.WeakSet[Any] = weakref.WeakSet()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        # Use a daemon thread, because it does not block the interpreter's exit. `close` is registered to run earlier.
        self._thread = threading.Thread(target=self._serve, name="mama-structs-sync", daemon=True)
        self._thread.start()
        _register_at_exit(self.close)

    def _serve(self) -> None:
        with self._runner:
            while not self._is_closed:
                # A host's callback may raise SystemExit, which asyncio passes to the caller. The loop must continue.
                with contextlib.suppress(KeyboardInterrupt, SystemExit):
                    self._loop.run_forever()

    def run(self, work: Callable[[], Any]) -> Any:
        """
        Call *work* in the loop's thread, and return its result, which is awaited if necessary.

        If the caller is interrupted, the work is cancelled, and the call waits for its end.
        """
        self.check_can_block()
        outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
        tasks: list[asyncio.Task[Any]] = []

        async def run() -> Any:
            return await _call(work)

        def end(task: asyncio.Task[Any]) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                outcome.set_result(task.result())
            else:
                outcome.set_exception(error)

        def begin() -> None:
            tasks.append(self._loop.create_task(run()))
            tasks[0].add_done_callback(end)

        try:
            # `call_soon_threadsafe` runs the function in a copy of the caller's context.
            self._loop.call_soon_threadsafe(begin)
            return outcome.result()
        except BaseException:
            if not outcome.done():
                # After Ctrl-C, wait until the work ends, so that a save is either complete or not started.
                self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
                concurrent.futures.wait([outcome])
            raise

    async def run_async(self, work: Callable[[], Any]) -> Any:
        """
        Call *work* in the loop's thread, and await its result in the event loop of the caller.

        If the caller is cancelled, the work is cancelled, too.
        """
        self._check_usable()
        if asyncio.get_running_loop() is self._loop:
            return await _call(work)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_call(work), self._loop))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the thread."""
        self._check_usable()
        return self._loop

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise WrongLoop("the object belongs to the process that made it", hint="open another session here")
        if self._is_closed:
            raise SessionClosed("the interpreter ends, and every session was closed")

    def check_can_block(self) -> None:
        """Raise an error if a blocking call from this thread would deadlock or block a running event loop."""
        self._check_usable()
        if is_in_plan():
            raise WrongLoop(
                "a condition on records was about to ask the store that waits for its answer",
                hint="read what it needs before, and look that up in it",
            )
        if _is_in_loop() and not _is_in_notebook_cell():
            raise WrongLoop(
                "mama_structs.sync would block the event loop that runs in this thread",
                hint="here: from mama_structs import Session; session = await Session.open(...); "
                "then await each call, such as await session.memories.search(...)",
            )

    def close_at_exit(self, inner: object) -> None:
        """Register an async context manager. It is closed at interpreter exit if it still exists."""
        if hasattr(inner, "__aexit__"):
            self._closable.add(inner)

    def close(self) -> None:
        """Close all registered objects, and stop the thread."""
        if self._is_closed or os.getpid() != self._pid:
            return

        async def close_all() -> None:
            await asyncio.gather(*(one.close() for one in self._closable), return_exceptions=True)

        self.run(close_all)
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


async def _call(work: Callable[[], Any]) -> Any:
    given = work()
    return await given if inspect.isawaitable(given) else given


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is_in_notebook_cell() -> bool:
    """Return True in a notebook cell, where a call may block although the notebook's event loop is running."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel") and threading.current_thread() is threading.main_thread()


def _register_at_exit(call: Callable[[], None]) -> None:
    """
    Register a function that runs when the main thread ends.

    Functions that are registered with `atexit` run too late, after all threads have stopped.
    """
    # This function is private, but concurrent.futures uses it for the same purpose.
    register: Callable[[Callable[[], None]], None] = threading._register_atexit  # type: ignore[attr-defined]
    # Registration fails if the interpreter is already shutting down.
    with contextlib.suppress(RuntimeError):
        register(call)


class _LoopThreadHolder:
    """Contains the loop thread of this process, which is created on first use."""

    def __init__(self) -> None:
        self.reset()
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Forget the thread. A forked child calls this, because it does not inherit threads."""
        self._guard = threading.Lock()
        self._own: LoopThread | None = None

    def get(self) -> LoopThread:
        with self._guard:
            if self._own is None:
                self._own = LoopThread()
            return self._own


_threads: Final = _LoopThreadHolder()
_proxy_classes: Final[dict[type, type[SyncProxy]]] = {}


class SyncProxy:
    """Synchronous proxy of an async object. Objects that its methods return are wrapped in proxies as well."""

    _kind: Callable[..., Any]
    _inner: Any
    _thread: LoopThread

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._thread = _threads.get()
        work = functools.partial(self._kind, *map(_to_async_argument, arguments), **_to_async_keywords(keywords))
        try:
            self._inner = self._thread.run(work)
        except TypeError as error:
            message = self._with_own_name(str(error))
            if message == str(error):
                raise
            raise TypeError(message) from None
        self._thread.close_at_exit(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        try:
            return self._wrap(getattr(self._inner, name))
        except AttributeError as error:
            translated = with_sync_calls(error, self._with_own_name)
            if translated is error:
                raise
            raise translated from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in vars(self._inner) if not name.startswith("_"))})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SyncProxy) and self._inner is other._inner

    def __hash__(self) -> int:
        return hash(id(self._inner))

    def __repr__(self) -> str:
        return f"<sync {self._inner!r}>"

    @classmethod
    def _with_own_name(cls, message: str) -> str:
        """Return an error message about the async class with the name of this class, which the caller used."""
        return message.replace(getattr(cls._kind, "__name__", ""), cls.__name__) if hasattr(cls, "_kind") else message

    def _wrap(self, value: Any) -> Any:
        return _wrap_result(value, self._thread)


def unwrap(value: Any) -> Any:
    """Return the async object of a proxy. Return other values unchanged."""
    return value._inner if isinstance(value, SyncProxy) else value


def _to_async_argument(value: Any) -> Any:
    """
    Return an argument for an async method: the object of a proxy, or the list of an iterator's items.

    The caller's thread consumes the iterator. It may call a proxy, which would block the loop's thread forever.
    """
    # A file is an iterator as well, but no list of items.
    return [*value] if isinstance(value, Iterator) and not isinstance(value, io.IOBase) else unwrap(value)


def _to_async_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    return {name: _to_async_argument(value) for name, value in keywords.items()}


def get_loop_thread() -> LoopThread:
    """Return the thread in which all objects of `mama_structs.sync` run. It is started on first use."""
    return _threads.get()


def run_in_proxy_loop(proxy: Any, work: Callable[[], Any]) -> Any:
    """Run *work* in the loop of a proxy's object, and return the result. Adapters use this."""
    return proxy._thread.run(work)


def get_proxy_loop(proxy: Any) -> asyncio.AbstractEventLoop:
    """Return the event loop of a proxy's object."""
    loop: asyncio.AbstractEventLoop = proxy._thread.loop
    return loop


def await_or_run(owner: Any, work: Callable[[Any], Awaitable[T]]) -> Any:
    """
    Return ``work(owner)``, to be awaited by the caller. For a proxy, run it and return its result.

    With it, a public function accepts both an async object and its proxy.
    """
    if isinstance(owner, SyncProxy):
        return owner._thread.run(lambda: work(owner._inner))
    return work(owner)


async def await_in_proxy_loop(owner: Any, work: Callable[[], Awaitable[T]]) -> T:
    """Await *work*. For a proxy, run it in the loop of the proxy's object, and await its result in the running loop."""
    if isinstance(owner, SyncProxy):
        result: T = await owner._thread.run_async(work)
        return result
    return await work()


def _wrap_result(value: Any, thread: LoopThread) -> Any:
    facade = next((found for kind in type(value).__mro__ if (found := _proxy_classes.get(kind))), None)
    if facade is None:
        return value
    made: SyncProxy = object.__new__(facade)
    made._inner, made._thread = value, thread
    thread.close_at_exit(value)
    return made


def make_proxy_class(kind: type[Any], *, module: str, replaced: Mapping[str, Any] | None = None) -> Any:
    """
    Return a proxy class for *kind*. Its methods block until the async method is done.

    *replaced* maps names of members to members that are used instead of generated ones.
    """
    members: dict[str, Any] = {"__module__": module, "__doc__": kind.__doc__, "_kind": kind}
    own = _class_members(kind)
    for name, value in own.items():
        if isinstance(value, property):
            members[name] = property(_make_method(name, value.fget), doc=value.__doc__)
        elif isinstance(value, staticmethod | classmethod):
            members[name] = staticmethod(make_blocking_function(getattr(kind, name)))
        elif inspect.isasyncgenfunction(value):
            members[name] = _make_generator(name, value)
        elif inspect.isfunction(value) and not inspect.isasyncgenfunction(inspect.unwrap(value)):
            members[name] = _make_method(name, value)
    members = {
        name: value
        for name, value in members.items()
        if not name.startswith("_") or name in ("__module__", "__doc__", "_kind", *FORWARDED_METHODS)
    }
    if "__iter__" in own:
        members["__iter__"] = _iterate
    if "__aenter__" in own:
        members.update(__enter__=enter_proxy, __exit__=exit_proxy)
    made = type(kind.__name__, (SyncProxy,), members | dict(replaced or {}))
    _proxy_classes[kind] = made
    return made


def _class_members(kind: type[Any]) -> dict[str, Any]:
    """Return the members of a class and of its base classes, except `object`."""
    members: dict[str, Any] = {}
    for base in reversed(kind.__mro__[:-1]):
        members |= vars(base)
    return members


def _find_function(inner: object, name: str) -> Callable[..., Any]:
    """Return the function of a method or property. The class of *inner* may override that of the proxied class."""
    member = getattr(type(inner), name)
    function: Callable[..., Any] = getattr(member, "fget", member)
    return function


def _make_method(name: str, function: Any) -> Callable[..., Any]:
    """Return a blocking method *name* that looks like *function*, the method of the proxied class."""

    @functools.wraps(function)
    def call(self: SyncProxy, *arguments: Any, **keywords: Any) -> Any:
        given = map(_to_async_argument, arguments)
        work = functools.partial(_find_function(self._inner, name), self._inner, *given, **_to_async_keywords(keywords))
        return self._wrap(self._thread.run(work))

    return call


def _make_generator(name: str, function: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    def iterate(self: SyncProxy, *arguments: Any, **keywords: Any) -> Iterator[Any]:
        given = map(_to_async_argument, arguments)
        inner = _find_function(self._inner, name)(self._inner, *given, **_to_async_keywords(keywords))
        try:
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    yield self._wrap(self._thread.run(inner.__anext__))
        finally:
            # During interpreter shutdown the session is closed already, so the generator has nothing to release.
            with contextlib.suppress(SessionClosed, WrongLoop):
                self._thread.run(inner.aclose)

    return iterate


def make_blocking_function(function: Any) -> Callable[..., Any]:
    """Return a function that runs the async *function* in the loop thread. It accepts proxies as arguments."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        thread = _threads.get()
        work = functools.partial(function, *map(_to_async_argument, arguments), **_to_async_keywords(keywords))
        return _wrap_result(thread.run(work), thread)

    return call


def _iterate(self: SyncProxy) -> Iterator[Any]:
    """Return an iterator over a copy of the object's items."""
    return iter(self._thread.run(lambda: list(self._inner)))


def enter_proxy(self: SyncProxy) -> SyncProxy:
    """Enter the async context manager, and return the proxy."""
    self._thread.run(self._inner.__aenter__)
    return self


def exit_proxy(self: SyncProxy, *raised: object) -> None:
    """Exit the async context manager."""
    self._thread.run(lambda: self._inner.__aexit__(*raised))
