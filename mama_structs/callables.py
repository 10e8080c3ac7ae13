"""What decorators need to know about functions, methods, partials and callable objects."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast


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
    """
    Let a wrapper look like what it wraps.

    Args:
        wrapper: The function that stands in place of *function*.
        function: What was decorated.
        signature: The wrapper's own.

    """
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


def _without_partials(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _call_of(function: Any) -> Callable[..., Any]:
    return cast("Callable[..., Any]", function.__call__)
