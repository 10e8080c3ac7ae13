"""The decorator `with_references` for code without an event loop."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from mama_structs._internal.introspection import is_async_callable, make_async
from mama_structs._internal.sync_proxy import get_loop_thread, unwrap
from mama_structs.references.decorator import (
    DECORATED_ROLE,
    AsyncTool,
    PlainTool,
    ReferenceRequest,
    ToolDecorator,
    make_decorator,
    make_tool_decorator,
)
from mama_structs.references.options import Kind

P = ParamSpec("P")
R = TypeVar("R")


class _SyncConfiguredDecorator(Protocol):
    """Decorator that `with_references` returns when it is called with options."""

    # A coroutine also matches the second overload, so this overload must come first.
    @overload
    def __call__(self, tool: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTool[P, R]: ...
    @overload
    def __call__(self, tool: Callable[P, R], /) -> PlainTool[P, R]: ...


class SyncReferenceDecorator(Protocol):
    """`with_references`, bound to a session of `mama_structs.sync`."""

    @overload
    def __call__(self, tool: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTool[P, R]: ...
    @overload
    def __call__(self, tool: Callable[P, R], /) -> PlainTool[P, R]: ...
    @overload
    def __call__(
        self,
        *,
        kind: Kind = "auto",
        primary: Collection[str] | None = None,
        subject: str | None = None,
        **defaults: Any,
    ) -> _SyncConfiguredDecorator: ...


@overload
def with_references(tool: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTool[P, R]: ...
@overload
def with_references(tool: Callable[P, R], /) -> PlainTool[P, R]: ...
@overload
def with_references(
    *,
    resolver: Any = None,
    kind: Kind = "auto",
    primary: Collection[str] | None = None,
    subject: str | None = None,
    **defaults: Any,
) -> _SyncConfiguredDecorator: ...


def with_references(
    tool: Callable[..., Any] | None = None,
    /,
    *,
    resolver: Any = None,
    kind: Kind = "auto",
    primary: Collection[str] | None = None,
    subject: str | None = None,
    **defaults: Any,
) -> Any:
    """
    Add the entities for the ids in a tool's result to that result, for sessions of `mama_structs.sync`.

    A plain function stays plain: the decorated tool runs in the caller's thread, blocks until the references are added,
    and returns its result. An async function stays async, and can be awaited in any event loop.
    Otherwise it is equal to `mama_structs.with_references`.

    Args:
        tool: The tool.
        resolver: Fetches the entities, a `mama_structs.sync.Resolver`; by default the resolver of the session entered
            in this context, else of the only open session of the process.
        kind: As for `mama_structs.with_references`.
        primary: As for `mama_structs.with_references`.
        subject: As for `mama_structs.with_references`.
        **defaults: As for `mama_structs.with_references`.

    Raises:
        InvalidArgument: The tool is a generator or not a function, has a parameter of one of these names or none named
            *subject*, or a default is invalid.

    """
    decorate = make_tool_decorator(
        SyncToolDecorator, resolver=unwrap(resolver), kind=kind, primary=primary, subject=subject, **defaults
    ).decorate
    return decorate if tool is None else decorate(tool)


def bind_with_references(proxy: Any) -> SyncReferenceDecorator:
    """The decorator `with_references`, bound to this session. A plain function stays plain."""
    session = unwrap(proxy)
    made: Any = make_decorator(session.resolver, session.reference_options, decorator_class=SyncToolDecorator)
    bound: SyncReferenceDecorator = made
    return bound


class SyncToolDecorator(ToolDecorator):
    """Decorator for one tool that leaves a plain function plain."""

    __slots__ = ()

    def _make_awaitable(self, tool: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        # This call also raises the errors of unfit tools.
        function = make_async(tool, role=DECORATED_ROLE)
        if is_async_callable(tool):
            return function

        @functools.wraps(tool)
        async def call(*args: Any, **kwargs: Any) -> Any:
            result = tool(*args, **kwargs)
            return get_loop_thread().run(lambda: result) if inspect.isawaitable(result) else result

        return call

    def _make_wrapper(self, run: Callable[..., Awaitable[Any]], tool: Callable[..., Any]) -> Callable[..., Any]:
        if is_async_callable(tool):
            return run

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return _run_inline(run(*args, **kwargs))

        return wrapper

    async def _check_ready(self, asked: ReferenceRequest, tool: Callable[..., Any]) -> None:
        check = functools.partial(ToolDecorator._check_ready, self, asked, tool)
        await _run_in_loop_thread(check, tool)

    async def _enrich(self, result: Any, asked: ReferenceRequest, subject: str | None, tool: Callable[..., Any]) -> Any:
        enrich = functools.partial(ToolDecorator._enrich, self, result, asked, subject, tool)
        return await _run_in_loop_thread(enrich, tool)


async def _run_in_loop_thread(work: Callable[[], Awaitable[Any]], tool: Callable[..., Any]) -> Any:
    """Run *work* in the loop thread. Block the caller if *tool* is plain, because `_run_inline` cannot suspend."""
    thread = get_loop_thread()
    return await thread.run_async(work) if is_async_callable(tool) else thread.run(work)


def _run_inline(work: Awaitable[Any]) -> Any:
    """Run a coroutine that never suspends, and return its result."""
    try:
        next(work.__await__())
    except StopIteration as done:
        return done.value
    raise RuntimeError("a plain tool with references tried to suspend")
