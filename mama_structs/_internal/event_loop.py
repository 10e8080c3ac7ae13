"""Objects of one event loop and process, work that is not left half done, and which session a decorator uses."""

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


class LoopBound:
    """Remembers the loop, thread and process of an object's first use, and refuses any other with `WrongLoop`."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._pid = os.getpid()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, which must be known by now."""
        if self._loop is None:
            raise WrongLoop(f"the {self._what} was used in no event loop yet", hint="call it from async code first")
        return self._loop

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a forked child of the process that made the object."""
        return os.getpid() != self._pid

    @property
    def is_over(self) -> bool:
        """Whether the object can never be used here: its loop was closed, or this is a forked child."""
        return self.is_elsewhere or (self._loop is not None and self._loop.is_closed())

    def check(self) -> None:
        """Bind to the running loop, or refuse another loop, no loop and another process."""
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
        """Refuse another thread or process than that of the loop; for what needs no running loop."""
        self._check_process()
        if self._thread is not None and self._thread != threading.get_ident():
            raise WrongLoop(f"the {self._what} belongs to another thread", hint="call it in its loop's thread")

    def check_here(self) -> None:
        """Bind to the calling thread at the first use, or refuse another; for what works without any loop."""
        if self._thread is None:
            self._thread = threading.get_ident()
        self.check_thread()

    def _check_process(self) -> None:
        if self.is_elsewhere:
            raise WrongLoop(f"the {self._what} belongs to the process that made it", hint="open another one here")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await something that must not be left half done: a cancelled caller, however often, waits for its end."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001, S110 - it is raised below
            pass
    if cancelled is not None:
        raise cancelled
    return task.result()


def done_at_once(work: Callable[[G], T], given: G) -> T:
    """Return what the work of a transaction does with what it is given; it must not be async."""
    result = work(given)
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise InvalidArgument("a transaction's work must not be async")
    return result


_asked = threading.local()


def asked_in_plan(function: Callable[[G], T], given: G) -> T:
    """Call a function of the host's inside of a plan: what it asks of the same store would wait for its own end."""
    _asked.now = True
    try:
        return done_at_once(function, given)
    finally:
        _asked.now = False


def is_asked_in_plan() -> bool:
    """Tell whether a plan waits for what runs in this thread."""
    return getattr(_asked, "now", False)


async def in_own_thread(work: Callable[[], T], *, is_left: bool = False) -> T:
    """
    Run *work*, which may block for long, in a thread and a context copy of its own; the interpreter's end waits for it.

    A cancelled caller waits for the thread's end, too, or leaves at once where *is_left* says so.
    """
    loop = asyncio.get_running_loop()
    # No task: the loop's end cancels all tasks, and would not wait for the thread.
    ended: asyncio.Future[None] = loop.create_future()
    outcome: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(work)
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            outcome.set_exception(error)
        else:
            outcome.set_result(result)
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))

    thread = threading.Thread(target=run, name="mama-structs", daemon=False)
    thread.start()
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as error:
            if is_left:
                raise
            cancelled = error
    thread.join()  # a moment: it has nothing left to do
    if cancelled is not None:
        raise cancelled
    return outcome.result()


class OneThread:
    """A thread, made at its first use, that does one piece of work after the other for one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor: ThreadPoolExecutor | None = None
        self._running: asyncio.Future[Any] | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Run *work* when what runs is done; a cancelled caller leaves it to itself, for a thread cannot be stopped."""
        # Else what nobody waits for any more would pile up behind a call that hangs.
        while self._running is not None and not self._running.done():
            await asyncio.wait([self._running])
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._name)

        def done() -> T:
            try:
                return work()
            except StopIteration as error:
                # No future of asyncio takes it: whoever waits would do so for ever.
                raise RuntimeError("the call raised StopIteration") from error

        self._running = asyncio.get_running_loop().run_in_executor(self._executor, done)
        result: T = await asyncio.shield(self._running)
        return result

    async def close(self, *, wait: float) -> None:
        """Begin nothing more, and wait so many seconds for what runs."""
        self.abandon()
        if self._running is not None and not self._running.done():
            await asyncio.wait([self._running], timeout=wait)

    def abandon(self) -> None:
        """Begin nothing more, and wait for nothing."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


async def called(
    call: Callable[[], Any],
    taken: Callable[[Any], T],
    *,
    is_async: bool,
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
) -> T:
    """Call what a host gave, in a thread unless it is async, and return what *taken* makes of its answer."""

    def run() -> Any:
        given = call()
        # A plain function may return a coroutine; only the loop can wait for that.
        return given if inspect.isawaitable(given) else taken(given)

    done = run() if is_async else await in_thread(run)
    return taken(await done) if inspect.isawaitable(done) else done


class Bindable(Protocol):
    """A session as far as a decorator sees it, which takes one of the parts: they do not know each other."""

    # What resolves its references, the options for tools that ask it to, and what keeps its refs and descriptors.
    resolver: Any
    references: Any
    refs: Any

    @property
    def is_open(self) -> bool:
        """Whether it can be used: opened, not closed, and its event loop still there."""


class CallProgress:
    """How far a tool call of a model has come, so that an error can say whether the tool has run."""

    def __init__(self) -> None:
        self._is_entered = False
        self._is_started = False
        self._is_finished = False

    def enter(self) -> CallProgress:
        """Return this progress, or a new one within the tool: calls by the tool itself are not the model's."""
        if self._is_entered:
            return CallProgress()
        self._is_entered = True
        return self

    def start(self, function: object) -> None:
        """Record that a function is about to run; a decorator of this package does so itself, for what it wraps."""
        function = getattr(function, "__func__", function)
        if getattr(function, "records_start", None) is not function:
            self._is_started = True

    def finish(self) -> None:
        """Record that the function has returned."""
        self._is_started = self._is_finished = True

    @property
    def status(self) -> str:
        """A sentence for the model."""
        if self._is_finished:
            return "the tool has run: do not call it again for this result"
        if self._is_started:
            return "the tool may have run: check its effects before you call it again"
        return "the tool was not run"

    @property
    def is_started(self) -> bool:
        """Whether the tool's own code has begun to run."""
        return self._is_started


call_progress: Final[contextvars.ContextVar[CallProgress | None]] = contextvars.ContextVar(
    "mama_structs_call_progress", default=None
)
"""The progress of the model's call that runs, which an adapter reports if it fails."""

# Limits of the host apply to arguments of a model. It is reset while a tool's own code runs: calls by the tool are not
# the model's.
from_model: Final[contextvars.ContextVar[bool]] = contextvars.ContextVar("mama_structs_from_model", default=False)

# Innermost last.
_entered: contextvars.ContextVar[tuple[Bindable, ...]] = contextvars.ContextVar("mama_structs_sessions", default=())
open_sessions: Final[weakref.WeakSet[Bindable]] = weakref.WeakSet()
"""Those of this process that a bare decorator may choose from."""


def enter_session(session: Bindable) -> None:
    """Set *session* as the session of this context."""
    _entered.set((*_entered.get(), session))


def leave_session(session: Bindable) -> None:
    """Undo the last `enter_session`; one of another context, as a notebook's cells are, has nothing to undo here."""
    entered = _entered.get()
    for place in reversed(range(len(entered))):
        if entered[place] is session:
            _entered.set(entered[:place] + entered[place + 1 :])
            return


@contextlib.contextmanager
def using_session(session: Bindable) -> Iterator[None]:
    """Make *session* the one of this context for a while."""
    enter_session(session)
    try:
        yield
    finally:
        leave_session(session)


def find_session() -> Bindable | None:
    """Return the session that a bare decorator uses here: the one entered last, else the only open one."""
    for session in reversed(_entered.get()):
        if session.is_open:
            return session
    candidates = _candidates()
    return candidates[0] if len(candidates) == 1 else None


def no_session(what: str, *, hint: str) -> NoSession:
    """Return the error where `find_session` finds none: *what* names tool and purpose, *hint* how to bind it."""
    count = len(_candidates())
    state = f"{count} sessions are open and none was entered here" if count else "no session is open"
    return NoSession(f"{what}, but {state}", hint=f"enter one (async with Session.open(...)), or bind the tool: {hint}")


def _candidates() -> list[Bindable]:
    while True:
        # Another thread may open or close a session meanwhile.
        with contextlib.suppress(RuntimeError):
            return [session for session in list(open_sessions) if session.is_open]
