"""Inspection of functions, methods, partials, wrappers and callable objects."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, cast

import attrs

from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs.errors import InvalidArgument, repr_short


def is_async_callable(function: object) -> bool:
    """
    Return True if calling *function* returns an awaitable.

    *function* may also be a method, a partial or a callable object.
    """
    return inspect.iscoroutinefunction(function) or (
        callable(function) and inspect.iscoroutinefunction(type(function).__call__)
    )


def get_callable_name(function: Callable[..., Any]) -> str:
    """Return the name of a function. A partial has its function's name, and a callable object its class's name."""
    function = _unwrap_partials(function)
    return str(getattr(function, "__name__", type(function).__name__))


def get_called_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a call runs: *function* itself, or the bound ``__call__`` of an object."""
    return (
        function
        if hasattr(function, "__name__") or isinstance(function, functools.partial)
        else _get_call_method(function)
    )


def get_documented_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function whose docstring and annotations describe the callable *function*."""
    function = _unwrap_partials(function)
    return function if hasattr(function, "__name__") else _get_call_method(function)


def copy_metadata(wrapper: Any, function: Callable[..., Any], signature: inspect.Signature) -> None:
    """Copy the metadata of *function* to *wrapper*, and set the wrapper's own *signature*."""
    described = get_documented_function(function)
    functools.update_wrapper(wrapper, described)
    wrapper.__name__ = get_callable_name(function)
    called = get_called_function(function)
    wrapper.__doc__ = described.__doc__ or (None if described is called else inspect.getdoc(type(function)))
    wrapper.__signature__ = signature
    wrapper.__annotations__ = {
        name: annotation
        for name, annotation in getattr(described, "__annotations__", {}).items()
        if name in signature.parameters or name == "return"
    }


@attrs.frozen
class AddedParameters:
    """The parameters that a decorator adds, and the names of the parameters that models see."""

    accepted: Mapping[str, inspect.Parameter]
    visible_names: Collection[str]


def get_added_parameters(function: Any) -> AddedParameters | None:
    """Return the parameters that a decorator of this package adds, or None if there is no such decorator."""
    function = _unwrap_partials(function)
    added = getattr(function, "added_parameters", None) or getattr(type(function).__call__, "added_parameters", None)
    return None if added is None else added()


@attrs.frozen
class FunctionLayer:
    """One function in a chain of wrappers and the wrapped function."""

    name: str
    docstring: str | None
    # The globals of the function's module, which are needed to evaluate its annotations.
    namespace: dict[str, Any]
    # The display name of the function, from its attribute `tool_title`.
    title: str | None = None


def find_layers(function: Any) -> list[FunctionLayer]:
    """Return all functions in a chain of wrappers, outermost first."""
    layers = []
    while function is not None:
        function = _unwrap_partials(function)
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


def get_definition_key(function: Any) -> object:
    """
    Return a key that stays equal when a module defines the function again, as on a reload.

    The key of a function at module level is its module and qualified name. Nested functions, methods and partials may
    have different state, so their key is the object itself.
    """
    # Unwrap functions only: a method also has `__wrapped__`, but unwrapping it would lose the bound object.
    while inspect.isfunction(function) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if inspect.isfunction(function) and "<" not in function.__qualname__:
        return (function.__module__, function.__qualname__)
    return function


def find_partial_keywords(function: Any) -> frozenset[str]:
    """Return the names of the keyword arguments that a partial, or a nested partial, has set."""
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names.update(function.keywords)
        function = function.func
    return frozenset(names)


def make_async(function: Any, *, role: str = "a tool") -> Callable[..., Awaitable[Any]]:
    """
    Return *function* if it is async. Otherwise return an async wrapper that runs it in a new thread.

    The thread sees the caller's context variables. A cancelled caller waits for the end of the thread.
    If the function returns an awaitable, as ``lambda: fetch(1)`` does, the awaitable is awaited.

    Raises:
        InvalidArgument: *function* is a generator function, a class or not callable. *role* names the expected role.

    """
    if is_async_callable(function):
        return cast("Callable[..., Awaitable[Any]]", function)
    inner = _unwrap_partials(function)
    unfit = not callable(inner) or isinstance(inner, type | staticmethod) or is_generator_callable(inner)
    if unfit:
        shown_name = getattr(inner, "__qualname__", None) or repr_short(inner)
        raise InvalidArgument(
            f"{role} must be a function, async or plain, got {shown_name}",
            hint="return a list instead of a generator; put @classmethod and @staticmethod above a decorator",
        )

    @functools.wraps(function)
    async def in_thread(*args: Any, **kwargs: Any) -> Any:
        result = await run_in_own_thread(functools.partial(function, *args, **kwargs))
        return await result if inspect.isawaitable(result) else result

    # Decorators of this package record the start themselves, so that their own errors are not attributed to the tool.
    if getattr(in_thread, "records_start", None) is getattr(function, "__func__", function):
        in_thread.records_start = in_thread  # type: ignore[attr-defined]
    return in_thread


def is_generator_callable(function: object) -> bool:
    """Return True if calling *function* returns a generator or an async generator."""
    calls = (function, type(function).__call__) if callable(function) else ()
    return any(inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call) for call in calls)


def _unwrap_partials(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _get_call_method(function: Any) -> Callable[..., Any]:
    return cast("Callable[..., Any]", function.__call__)
