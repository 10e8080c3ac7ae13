"""What is inside partials, methods, wrappers and callable objects."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import attrs

from mama_structs.errors import InvalidArgument


@attrs.frozen
class Layer:
    """
    One function on the way from a callable to what it wraps.

    Args:
        name: The function's, or its class's.
        docstring: As written.
        namespace: Where its annotations were written.
        title: Its attribute ``tool_title``, for functions that bring the name for people along.

    """

    name: str
    docstring: str | None
    namespace: dict[str, Any]
    title: str | None = None


def refuse_sync(function: Any) -> None:
    """Raise `InvalidArgument` for everything whose call does not give a coroutine."""
    function = _without_partials(function)
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return
    raise InvalidArgument(
        f"a tool must be an async function, got {_shown(function)}",
        hint="declare it with async def; run blocking work in asyncio.to_thread",
    )


def layers_of(function: Any) -> list[Layer]:
    """Return the functions behind a callable, the outermost first; at least one."""
    layers = []
    while function is not None:
        function = _without_partials(function)
        wrapped = getattr(function, "__wrapped__", None)
        if inspect.ismethod(function):
            function = function.__func__
        if inspect.isfunction(function):
            title = getattr(function, "tool_title", None)
            layers.append(Layer(function.__name__, function.__doc__, function.__globals__, title))
        else:
            kind = type(function)
            call: Any = inspect.unwrap(kind.__call__)
            docstring = call.__doc__ or kind.__doc__
            layers.append(Layer(kind.__name__, docstring, getattr(call, "__globals__", {})))
        function = wrapped
    return layers


def bound_by_partials(function: Any) -> frozenset[str]:
    """Return the names of the keyword arguments that partials around a function have set."""
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names.update(function.keywords)
        function = function.func
    return frozenset(names)


def _without_partials(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _shown(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)[:80]
