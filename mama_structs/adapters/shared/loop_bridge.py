"""Run an adapter's async methods in its session's event loop, from any thread or loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeGuard, TypeVar

from mama_structs import sync
from mama_structs._internal.sync_proxy import SyncProxy, await_or_run, get_proxy_loop, run_in_proxy_loop, unwrap
from mama_structs.errors import InvalidArgument, SessionClosed, WrongLoop, repr_short
from mama_structs.session.session import NOT_OPEN_HINT, Session

P = ParamSpec("P")
T = TypeVar("T")


class BlockingCallError(WrongLoop, asyncio.InvalidStateError):
    """
    Raised if a blocking call would wait for the event loop that runs the caller.

    It is an `InvalidStateError`, because frameworks catch errors of this class.
    """


def is_sync(session: Session | sync.Session) -> TypeGuard[sync.Session]:
    """Return True for a session of `mama_structs.sync`."""
    return isinstance(session, SyncProxy)


def check_session(session: Session | sync.Session) -> Session:
    """Return the async session of a session of either kind. Raise `InvalidArgument` for other objects."""
    inner = unwrap(session)
    if not isinstance(inner, Session):
        raise InvalidArgument(f"session must be a Session, got {repr_short(session)}", hint=NOT_OPEN_HINT)
    return inner


def require_async_session(session: Session, framework: str) -> Session:
    """Return *session*. Raise `InvalidArgument` for a session of `mama_structs.sync`: *framework* is async only."""
    if is_sync(session):
        raise InvalidArgument(
            f"{framework} is async only, and this session belongs to mama_structs.sync",
            hint=f"open a session in the event loop that runs {framework}: "
            "from mama_structs import Session; session = await Session.open(...)",
        )
    return check_session(session)


def call_in_session_loop(session: Session | sync.Session, work: Callable[[Session], T]) -> T:
    """Call the plain function *work* with the async session, in the thread to which the session belongs."""
    own = check_session(session)
    if not is_sync(session):
        return work(own)
    result: T = run_in_proxy_loop(session, lambda: work(own))
    return result


def await_or_run_with(
    session: Session | sync.Session, work: Callable[[Session], Coroutine[Any, Any, T]]
) -> Coroutine[Any, Any, T] | T:
    """Return the coroutine of *work* for an async session. For a sync session, run it and return its result."""
    check_session(session)
    result: Coroutine[Any, Any, T] | T = await_or_run(session, work)
    return result


class LoopBridge:
    """Runs coroutines of an adapter in the event loop of its session."""

    def __init__(self, session: Session | sync.Session) -> None:
        self.session: Final[Session] = check_session(session)
        self._pid = os.getpid()
        try:
            self._loop = get_proxy_loop(session) if is_sync(session) else asyncio.get_running_loop()
        except WrongLoop:
            raise
        except RuntimeError as error:
            raise WrongLoop(
                "an async session needs a running event loop",
                hint="call this in the async function that opened it, or pass a session of mama_structs.sync",
            ) from error

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run *work* in the session's event loop and block the calling thread. An interrupt cancels *work*."""
        if _get_running_loop() is self._loop:
            raise BlockingCallError(
                "a call that blocks the session's own event loop would deadlock",
                hint="await the method with the prefix a, such as aget, or open the session with "
                "mama_structs.sync, which has its own loop",
            )
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def arun(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run *work* in the session's event loop and await its result. Cancelling the caller cancels *work*."""
        if _get_running_loop() is self._loop:
            return await work()
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Callable[[], Awaitable[T]]) -> concurrent.futures.Future[T]:
        if os.getpid() != self._pid:
            raise WrongLoop("the session belongs to the process that made it", hint="open another session here")
        # A stopped loop would never run the coroutine, and the caller would wait forever.
        if not self._loop.is_running():
            raise SessionClosed("the event loop of the session has stopped")

        async def done() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(done(), self._loop)


class HasLoopBridge(Protocol):
    """Protocol for `make_blocking` and `make_awaitable`: an object with a `LoopBridge`."""

    @property
    def _bridge(self) -> LoopBridge: ...


S = TypeVar("S", bound=HasLoopBridge)


def make_blocking(work: Callable[Concatenate[S, P], Awaitable[T]]) -> Callable[Concatenate[S, P], T]:
    """Return a blocking function that runs the async method *work* in the session's event loop."""

    @functools.wraps(work)
    def call(self: S, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        return self._bridge.run(lambda: work(self, *arguments, **keywords))

    return call


def make_awaitable(
    work: Callable[Concatenate[S, P], Awaitable[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return an async function that can be called in any event loop and runs *work* in the session's loop."""

    @functools.wraps(work)
    async def call(self: S, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        return await self._bridge.arun(lambda: work(self, *arguments, **keywords))

    return call


def _get_running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
