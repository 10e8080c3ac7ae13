"""Helpers for event loops: loop affinity, threads for blocking work, call progress, and current sessions."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from mama_structs.errors import InvalidArgument, NoSession, WrongLoop

T = TypeVar("T")
G = TypeVar("G")


class LoopGuard:
    """Binds an object to the event loop, thread and process in which it is first used."""

    def __init__(self, owner_name: str) -> None:
        self._what = owner_name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._pid = os.getpid()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The bound event loop. Raises `WrongLoop` before the first use."""
        if self._loop is None:
            raise WrongLoop(f"the {self._what} was used in no event loop yet", hint="call it from async code first")
        return self._loop

    @property
    def is_forked_child(self) -> bool:
        """True if this process was forked from the process that created the object."""
        return os.getpid() != self._pid

    @property
    def is_unusable(self) -> bool:
        """True if the object can never be used again: its loop is closed, or this process is a forked child."""
        return self.is_forked_child or (self._loop is not None and self._loop.is_closed())

    def check(self) -> None:
        """Bind to the running loop on first use. Raise `WrongLoop` in any other loop."""
        self._check_process()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError as error:
            message = f"the {self._what} is used outside an event loop"
            raise WrongLoop(message, hint="call it from async code") from error
        if self._loop is None:
            self._loop, self._thread = running, threading.get_ident()
        elif self._loop is not running:
            raise WrongLoop(f"the {self._what} belongs to another event loop", hint="open another one in this loop")

    def check_thread(self) -> None:
        """
        Raise `WrongLoop` in a thread or process other than the bound one.

        Does not need a running loop.
        """
        self._check_process()
        if self._thread is not None and self._thread != threading.get_ident():
            raise WrongLoop(f"the {self._what} belongs to another thread", hint="call it in its loop's thread")

    def check_or_bind_thread(self) -> None:
        """Bind to the calling thread on first use, and raise `WrongLoop` in any other thread."""
        if self._thread is None:
            self._thread = threading.get_ident()
        self.check_thread()

    def _check_process(self) -> None:
        if self.is_forked_child:
            raise WrongLoop(f"the {self._what} belongs to the process that made it", hint="open another one here")


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Await *work* to completion. If the caller is cancelled meanwhile, raise the cancellation afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001, S110 - raised by `task.result()` below
            pass
    if cancelled is not None:
        raise cancelled
    return task.result()


def call_sync(work: Callable[[G], T], argument: G) -> T:
    """Return the result of *work* for *argument*. Raise `InvalidArgument` if *work* is async."""
    result = work(argument)
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise InvalidArgument("a transaction's work must not be async")
    return result


_plan_state = threading.local()


def call_in_plan(function: Callable[[G], T], argument: G) -> T:
    """
    Call a function of the application from inside a write transaction.

    A flag marks the thread during the call, so that the store rejects nested calls, which would deadlock.
    """
    _plan_state.now = True
    try:
        return call_sync(function, argument)
    finally:
        _plan_state.now = False


def is_in_plan() -> bool:
    """Return True if the current thread runs a host function for a write plan."""
    return getattr(_plan_state, "now", False)


async def run_in_own_thread(work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
    """
    Run blocking *work* in a new non-daemon thread with a copy of the caller's context.

    A cancelled caller waits until the thread ends. If *abandon_on_cancel* is True, it returns immediately.
    """
    loop = asyncio.get_running_loop()
    # Use a future instead of a task: a closing loop cancels all tasks, and would not wait for the thread.
    ended: asyncio.Future[None] = loop.create_future()
    outcome: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(work)
        except BaseException as error:  # noqa: BLE001 - raised to the caller below
            outcome.set_exception(error)
        else:
            outcome.set_result(result)
        with contextlib.suppress(RuntimeError):  # `call_soon_threadsafe` raises RuntimeError if the loop is closed.
            loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))

    thread = threading.Thread(target=run, name="mama-structs", daemon=False)
    thread.start()
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as error:
            if abandon_on_cancel:
                raise
            cancelled = error
    thread.join()  # Does not block, because the thread has finished its work.
    if cancelled is not None:
        raise cancelled
    return outcome.result()


class SerialThread:
    """A lazily started thread for one event loop. It runs one function at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor: ThreadPoolExecutor | None = None
        self._running: asyncio.Future[Any] | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Run *work* after the current work ends. A cancelled caller returns, but its work continues."""
        # Wait before submitting, so that the work of cancelled callers cannot accumulate behind a hanging call.
        while self._running is not None and not self._running.done():
            await asyncio.wait([self._running])
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._name)

        def done() -> T:
            try:
                return work()
            except StopIteration as error:
                # Convert StopIteration, because a future cannot contain it. Otherwise the caller would wait forever.
                raise RuntimeError("the call raised StopIteration") from error

        self._running = asyncio.get_running_loop().run_in_executor(self._executor, done)
        result: T = await asyncio.shield(self._running)
        return result

    async def close(self, *, wait: float) -> None:
        """Stop accepting work. Wait at most *wait* seconds for the current work to end."""
        self.abandon()
        if self._running is not None and not self._running.done():
            await asyncio.wait([self._running], timeout=wait)

    def abandon(self) -> None:
        """Stop accepting work without waiting for the current work."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


async def call_maybe_sync(
    call: Callable[[], Any],
    convert: Callable[[Any], T],
    *,
    is_async: bool,
    run_in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
) -> T:
    """
    Call a host's callable, and convert its result with *convert*. A synchronous callable runs in a thread.

    Args:
        call: The callable, with its arguments bound.
        convert: Converts the result.
        is_async: True if *call* returns an awaitable.
        run_in_thread: Runs a function in a thread.

    """

    def run() -> Any:
        given = call()
        # A synchronous function may return a coroutine, which only the event loop can await.
        return given if inspect.isawaitable(given) else convert(given)

    done = run() if is_async else await run_in_thread(run)
    return convert(await done) if inspect.isawaitable(done) else done


class SessionLike(Protocol):
    """The members of a session that decorators use. Because of this protocol, they need not import the session."""

    # The resolver, the default options for references, and the store of refs and descriptors.
    resolver: Any
    reference_options: Any
    refs: Any

    @property
    def is_open(self) -> bool:
        """True if the session is open and its event loop is not closed."""


class CallProgress:
    """Progress of a model's tool call, so that an error message can say whether the tool has run."""

    def __init__(self) -> None:
        self._is_entered = False
        self._is_started = False
        self._is_finished = False

    def enter(self) -> CallProgress:
        """Return this object for the outermost call. For a nested call by the tool itself, return a new object."""
        if self._is_entered:
            return CallProgress()
        self._is_entered = True
        return self

    def start(self, function: object) -> None:
        """Record that *function* is about to run. A wrapper that records its own start is ignored."""
        function = getattr(function, "__func__", function)
        if getattr(function, "records_start", None) is not function:
            self._is_started = True

    def finish(self) -> None:
        """Record that the function has returned."""
        self._is_started = self._is_finished = True

    @property
    def status(self) -> str:
        """A sentence for the model that says whether the tool has run."""
        if self._is_finished:
            return "the tool has run: do not call it again for this result"
        if self._is_started:
            return "the tool may have run: check its effects before you call it again"
        return "the tool was not run"

    @property
    def is_started(self) -> bool:
        """True if the tool's own code has started."""
        return self._is_started


call_progress: Final[contextvars.ContextVar[CallProgress | None]] = contextvars.ContextVar(
    "mama_structs_call_progress", default=None
)
"""Progress of the model's current tool call, which an adapter reports if the call fails."""

# True during a model's call, so that the host's limits apply to its arguments.
# False while the tool's own code runs, because that code may make further calls, which are not the model's.
is_model_call: Final[contextvars.ContextVar[bool]] = contextvars.ContextVar("mama_structs_from_model", default=False)

# The room of the answer to a model's call: an `AnswerRoom` of the references package. None outside of such a call.
answer_room: Final[contextvars.ContextVar[Any]] = contextvars.ContextVar("mama_structs_answer_room", default=None)

# The sessions that were entered in this context, innermost last.
_entered_sessions: contextvars.ContextVar[tuple[SessionLike, ...]] = contextvars.ContextVar(
    "mama_structs_sessions", default=()
)
open_sessions: Final[weakref.WeakSet[SessionLike]] = weakref.WeakSet()
"""Open sessions of this process, from which an unbound decorator may choose."""


def enter_session(session: SessionLike) -> None:
    """Make *session* the current session of this context."""
    _entered_sessions.set((*_entered_sessions.get(), session))


def leave_session(session: SessionLike) -> None:
    """
    Undo the last `enter_session` of *session*.

    It has no effect in a different context, such as that of a later notebook cell.
    """
    entered = _entered_sessions.get()
    for index in reversed(range(len(entered))):
        if entered[index] is session:
            _entered_sessions.set(entered[:index] + entered[index + 1 :])
            return


@contextlib.contextmanager
def using_session(session: SessionLike) -> Iterator[None]:
    """Make *session* the current session of this context in the block."""
    enter_session(session)
    try:
        yield
    finally:
        leave_session(session)


def find_session() -> SessionLike | None:
    """Return the current session of this context, or else the only open session."""
    for session in reversed(_entered_sessions.get()):
        if session.is_open:
            return session
    candidates = _find_open_sessions()
    return candidates[0] if len(candidates) == 1 else None


def make_no_session_error(subject: str, *, hint: str) -> NoSession:
    """
    Return the error to raise if `find_session` finds no session.

    Args:
        subject: The tool and its purpose.
        hint: How to bind the tool to a session.

    """
    count = len(_find_open_sessions())
    state = f"{count} sessions are open and none was entered here" if count else "no session is open"
    return NoSession(
        f"{subject}, but {state}", hint=f"enter one (async with Session.open(...)), or bind the tool: {hint}"
    )


def has_open_sessions() -> bool:
    """Return True if any session of this process is open."""
    return bool(_find_open_sessions())


def _find_open_sessions() -> list[SessionLike]:
    while True:
        # The iteration raises RuntimeError if another thread opens or closes a session meanwhile.
        with contextlib.suppress(RuntimeError):
            return [session for session in list(open_sessions) if session.is_open]


class WriterLock:
    """A lock for async writers. Each event loop gets its own."""

    def __init__(self) -> None:
        self._lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    def for_running_loop(self) -> asyncio.Lock:
        """
        Return the lock of the running loop.

        A store without a session may be used in several loops, but only in one at a time.
        """
        loop = asyncio.get_running_loop()
        if self._lock is None or self._lock[0] is not loop:
            self._lock = loop, asyncio.Lock()
        return self._lock[1]
