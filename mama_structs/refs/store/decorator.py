"""The decorator that keeps a tool's large results out of the model's sight, and within its reach."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from mama_structs._internal.budget import Budget
from mama_structs._internal.control_flow import is_framework_result
from mama_structs._internal.event_loop import call_progress, find_session, no_session
from mama_structs._internal.introspection import awaited, called_by, disguise, name_of
from mama_structs._internal.offload import measure
from mama_structs._internal.telemetry import raised
from mama_structs.errors import InvalidArgument, SessionClosed, StoreError, WrongLoop, shown
from mama_structs.refs.store.ref_store import RefStore

_log = logging.getLogger("mama_structs")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Wrapped = Callable[P, Coroutine[Any, Any, R | str]]


class _Describing(Protocol):
    """`with_descriptors` with its arguments given."""

    @overload
    def __call__(self, tool: Callable[P, Awaitable[R]], /) -> Wrapped[P, R]: ...
    @overload
    def __call__(self, tool: Callable[P, R], /) -> Wrapped[P, R]: ...


# An awaitable is a result, too: the first of the two counts.
@overload
def with_descriptors(tool: Callable[P, Awaitable[R]], /) -> Wrapped[P, R]: ...
@overload
def with_descriptors(tool: Callable[P, R], /) -> Wrapped[P, R]: ...
@overload
def with_descriptors(*, store: RefStore | None = None) -> _Describing: ...


def with_descriptors(tool: Callable[..., Any] | None = None, /, *, store: RefStore | None = None) -> Any:
    """
    Shorten a tool's result if it is long, and keep the whole under a handle; see `RefStore.wrap`.

    Works bare and with arguments, on functions, methods and callable objects; a plain one runs in a thread and is
    awaited.
    On one function it stands above `with_references`.
    Through `Session.call` no tool needs it.

    Args:
        tool: The tool.
        store: What keeps the results; by default that of the session entered in this context, else of the only open
            session of the process.

    Raises:
        InvalidArgument: The tool is a generator or no function, or *store* is no `RefStore`.

    """
    if store is not None and not isinstance(store, RefStore):
        raise InvalidArgument(f"store must be a RefStore, got {shown(store)}")
    decorate = functools.partial(_decorated, store=store)
    return decorate if tool is None else decorate(tool)


def within_budget(
    store: RefStore, result: Any, *, what: str, budget: Budget | None = None, keeps: bool = True, **options: Any
) -> Any:
    """Shorten a tool's result, or return it whole where that fails: a tool's work is never lost for our sake."""
    for keeping in (True, False) if keeps else (False,):
        try:
            return store.within(result, store.budget if budget is None else budget, keeps=keeping, **options)
        except Exception as error:  # noqa: BLE001 - see below
            # Objects of any kind come back from tools, and measuring one may run its own code; or the disk is gone.
            how = " with handles" if keeping else ""
            _log.error("the result of %s could not be shortened%s: %s", what, how, raised(error))
    return result


async def shorten(store: RefStore, result: Any, work: Callable[[RefStore, bool], T]) -> T:
    """
    Return what *work* makes of a tool's result and a store; in a thread if the result is large.

    Where nothing can be stored, it is called again with False, and stores nothing.
    """
    load = measure(result)
    try:
        return await store.change(load, lambda refs: work(refs, True))
    except (SessionClosed, StoreError, WrongLoop) as error:
        _log.error("the result of a tool is shortened without handles: %s", error)
        return await store.look(load, lambda refs: work(refs, False))


def _decorated(tool: Callable[..., Any], *, store: RefStore | None) -> Callable[..., Any]:
    name = name_of(tool)
    function = awaited(tool, what="what with_descriptors decorates")

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        keeper = _store_of_session(name) if store is None else store
        if (progress := call_progress.get()) is not None:
            progress.start(function)
        result = await function(*args, **kwargs)
        if not keeper.settings.enabled or is_framework_result(result):
            return result
        return await shorten(keeper, result, lambda refs, keeps: within_budget(refs, result, what=name, keeps=keeps))

    # What comes back may say what was shortened: no schema can be made of the tool's own return type.
    disguise(wrapper, tool, inspect.signature(called_by(tool)).replace(return_annotation=Any))
    wrapper.__annotations__["return"] = Any
    wrapper.answers_with_descriptors = True  # type: ignore[attr-defined]  # `with_references` looks for it
    wrapper.records_start = wrapper  # type: ignore[attr-defined]
    return wrapper


def _store_of_session(tool: str) -> RefStore:
    session = find_session()
    if session is None:
        raise no_session(f"{tool} keeps large results", hint="@with_descriptors(store=session.refs)")
    refs: RefStore = session.refs
    return refs
