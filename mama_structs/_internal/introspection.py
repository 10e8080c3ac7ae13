"""What is inside functions, methods, partials, wrappers and callable objects."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, cast

import attrs

from mama_structs._internal.event_loop import in_own_thread
from mama_structs.errors import InvalidArgument, shown


def is_async_callable(function: object) -> bool:
    """Tell whether calling *function* gives something to await: functions, methods, partials, callable objects."""
    return inspect.iscoroutinefunction(function) or (
        callable(function) and inspect.iscoroutinefunction(type(function).__call__)
    )


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, of what a partial holds, or of a callable object's class."""
    function = _without_partials(function)
    return str(getattr(function, "__name__", type(function).__name__))


def called_by(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs when *function* is called: itself, or a callable object's bound ``__call__``."""
    return function if hasattr(function, "__name__") or isinstance(function, functools.partial) else _call_of(function)


def described_by(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that the docstring and the annotations stand on."""
    function = _without_partials(function)
    return function if hasattr(function, "__name__") else _call_of(function)


def disguise(wrapper: Any, function: Callable[..., Any], signature: inspect.Signature) -> None:
    """Let *wrapper*, which has a *signature* of its own, look like the *function* that it wraps."""
    described = described_by(function)
    functools.update_wrapper(wrapper, described)
    wrapper.__name__ = name_of(function)
    called = called_by(function)
    wrapper.__doc__ = described.__doc__ or (None if described is called else inspect.getdoc(type(function)))
    wrapper.__signature__ = signature
    wrapper.__annotations__ = {
        name: annotation
        for name, annotation in getattr(described, "__annotations__", {}).items()
        if name in signature.parameters or name == "return"
    }


@attrs.frozen
class AddedParameters:
    """What a decorator takes beside the parameters of its function: all of it, and the part that a model is shown."""

    accepted: Mapping[str, inspect.Parameter]
    shown: Collection[str]


def added_parameters(function: Any) -> AddedParameters | None:
    """Return what a decorator of ours takes beside the function's own, by what holds now; None without one."""
    function = _without_partials(function)
    added = getattr(function, "added_parameters", None) or getattr(type(function).__call__, "added_parameters", None)
    return None if added is None else added()


@attrs.frozen
class FunctionLayer:
    """One function on the way from a callable to what it wraps."""

    name: str
    docstring: str | None
    # Where its annotations were written.
    namespace: dict[str, Any]
    # Its attribute `tool_title`, for functions that bring the name for people along.
    title: str | None = None


def layers_of(function: Any) -> list[FunctionLayer]:
    """Return the functions behind a callable, the outermost first; at least one."""
    layers = []
    while function is not None:
        function = _without_partials(function)
        wrapped = getattr(function, "__wrapped__", None)
        if inspect.ismethod(function):
            function = function.__func__
        if inspect.isfunction(function):
            title = getattr(function, "tool_title", None)
            layers.append(FunctionLayer(function.__name__, function.__doc__, function.__globals__, title))
        else:
            kind = type(function)
            call: Any = inspect.unwrap(kind.__call__)
            layers.append(FunctionLayer(kind.__name__, call.__doc__ or kind.__doc__, getattr(call, "__globals__", {})))
        function = wrapped
    return layers


def written_as(function: Any) -> object:
    """
    Return module and qualified name of a function at the top of a module, where the same code defines it again.

    Anything else is only itself: functions inside others, methods and partials may hold different things.
    """
    # A method has its function's `__wrapped__`, without what it is bound to.
    while inspect.isfunction(function) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if inspect.isfunction(function) and "<" not in function.__qualname__:
        return (function.__module__, function.__qualname__)
    return function


def bound_by_partials(function: Any) -> frozenset[str]:
    """Return the names of the keyword arguments that partials around a function have set."""
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names.update(function.keywords)
        function = function.func
    return frozenset(names)


def awaited(function: Any, *, what: str = "a tool") -> Callable[..., Awaitable[Any]]:
    """
    Return an async *function* as it is, and of a plain one an async one, which runs it in a thread of its own.

    The thread sees the caller's context variables, and a caller that is cancelled waits for the thread's end.
    What a plain function returns is awaited where it can be, as that of ``lambda: fetch(1)`` is.
    Generators, classes and what is no function are refused with `InvalidArgument`; *what* it shall be stands there.
    """
    if is_async_callable(function):
        return cast("Callable[..., Awaitable[Any]]", function)
    inner = _without_partials(function)
    unfit = not callable(inner) or isinstance(inner, type | staticmethod) or yields(inner)
    if unfit:
        said = getattr(inner, "__qualname__", None) or shown(inner)
        raise InvalidArgument(
            f"{what} must be a function, async or plain, got {said}",
            hint="generators answer bit by bit: return a list; put @classmethod and @staticmethod above a decorator",
        )

    @functools.wraps(function)
    async def in_thread(*args: Any, **kwargs: Any) -> Any:
        result = await in_own_thread(functools.partial(function, *args, **kwargs))
        return await result if inspect.isawaitable(result) else result

    return in_thread


def yields(function: object) -> bool:
    """Tell whether calling *function* gives a generator, async or not."""
    calls = (function, type(function).__call__) if callable(function) else ()
    return any(inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call) for call in calls)


def _without_partials(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _call_of(function: Any) -> Callable[..., Any]:
    return cast("Callable[..., Any]", function.__call__)
