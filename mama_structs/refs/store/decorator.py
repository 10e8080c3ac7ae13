"""The decorator `with_descriptors`, which shortens large tool results."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from mama_structs._internal.budget import Budget
from mama_structs._internal.control_flow import is_framework_result
from mama_structs._internal.event_loop import answer_room, call_progress, find_session, make_no_session_error
from mama_structs._internal.introspection import copy_metadata, get_callable_name, get_called_function, make_async
from mama_structs._internal.offload import measure_input
from mama_structs._internal.telemetry import format_error
from mama_structs.errors import InvalidArgument, SessionClosed, StoreError, WrongLoop, repr_short
from mama_structs.refs.store.ref_store import RefStore

_log = logging.getLogger("mama_structs")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

WrappedTool = Callable[P, Coroutine[Any, Any, R | str]]


class _DescriptorDecorator(Protocol):
    """Decorator that `with_descriptors` returns when it is called with arguments."""

    @overload
    def __call__(self, tool: Callable[P, Awaitable[R]], /) -> WrappedTool[P, R]: ...
    @overload
    def __call__(self, tool: Callable[P, R], /) -> WrappedTool[P, R]: ...


# An awaitable also matches the second overload, so this overload must come first.
@overload
def with_descriptors(tool: Callable[P, Awaitable[R]], /) -> WrappedTool[P, R]: ...
@overload
def with_descriptors(tool: Callable[P, R], /) -> WrappedTool[P, R]: ...
@overload
def with_descriptors(*, store: RefStore | None = None) -> _DescriptorDecorator: ...


def with_descriptors(tool: Callable[..., Any] | None = None, /, *, store: RefStore | None = None) -> Any:
    """
    Shorten a tool's result if it is long, and store the complete result under a handle.

    See `RefStore.wrap`. Works with and without arguments, on functions, methods and callable objects. A synchronous
    tool runs in a thread, and its wrapper must be awaited. In combination with `with_references`, apply this decorator
    last (above it). Tools that are called through `Session.call` do not need it.

    Args:
        tool: The tool.
        store: The store for the results. Default: the store of the session entered in this context, else of the only
            open session of the process.

    Raises:
        InvalidArgument: The tool is a generator or not callable, or *store* is not a `RefStore`.

    """
    if store is not None and not isinstance(store, RefStore):
        raise InvalidArgument(f"store must be a RefStore, got {repr_short(store)}")
    decorate = functools.partial(_decorate, store=store)
    return decorate if tool is None else decorate(tool)


def shorten_to_budget(
    store: RefStore, result: Any, *, what: str, budget: Budget | None = None, keeps: bool = True, **options: Any
) -> Any:
    """Shorten a tool's result. If that fails, return the complete result, so that it is not lost."""
    for keeping in (True, False) if keeps else (False,):
        try:
            return store._within(result, store._budget if budget is None else budget, keeps=keeping, **options)
        except Exception as error:  # noqa: BLE001 - see below
            # Shortening may fail, because it runs code of the result's objects, and the disk may be unavailable.
            how = " with handles" if keeping else ""
            _log.error("the result of %s could not be shortened%s: %s", what, how, format_error(error))
    return result


async def apply_to_result(store: RefStore, result: Any, work: Callable[[RefStore, bool], T]) -> T:
    """
    Call ``work(refs, True)``, in a thread if the tool's result is large. True means that *work* may store texts.

    If storing fails, call ``work(refs, False)``, which must not store anything.
    """
    load = measure_input(result)
    try:
        return await store._change(load, lambda refs: work(refs, True))
    except (SessionClosed, StoreError, WrongLoop) as error:
        _log.error("the result of a tool is shortened without handles: %s", error)
        return await store._run_read(load, lambda refs: work(refs, False))


def _decorate(tool: Callable[..., Any], *, store: RefStore | None) -> Callable[..., Any]:
    name = get_callable_name(tool)
    function = make_async(tool, role="what with_descriptors decorates")

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        keeper = _store_of_session(name) if store is None else store
        if (progress := call_progress.get()) is not None:
            progress.start(function)
        result = await function(*args, **kwargs)
        if not keeper.settings.enabled or is_framework_result(result):
            return result
        # If the tool has references, they belong to the rows that this part of the budget shows.
        chars = None if (room := answer_room.get()) is None else room.payload_chars
        return await apply_to_result(
            keeper,
            result,
            lambda refs, keeps: shorten_to_budget(refs, result, what=name, keeps=keeps, payload_chars=chars),
        )

    # The wrapper may return truncated data, so do not derive a schema from the tool's return type.
    copy_metadata(wrapper, tool, inspect.signature(get_called_function(tool)).replace(return_annotation=Any))
    wrapper.__annotations__["return"] = Any
    wrapper.answers_with_descriptors = True  # type: ignore[attr-defined]  # checked by `with_references`
    wrapper.records_start = wrapper  # type: ignore[attr-defined]
    return wrapper


def _store_of_session(tool: str) -> RefStore:
    session = find_session()
    if session is None:
        raise make_no_session_error(f"{tool} keeps large results", hint="@with_descriptors(store=session.refs)")
    refs: RefStore = session.refs
    return refs
