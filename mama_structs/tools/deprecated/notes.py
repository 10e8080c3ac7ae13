"""What tools of v1.0 say about themselves: to the host's developer once, to a model each time."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec

from mama_structs.tools.names import SUCCESSORS

P = ParamSpec("P")
REMOVED_IN: Final = "2.0"

# Between the tool and the host's code that asked for it stand these.
_PASSED_OVER: Final = frozenset({"mama_structs", "asyncio"})

_warned: set[str] = set()


def forget_warnings() -> None:
    """Let each tool warn again, as in a new process; for tests."""
    _warned.clear()


def note_on(name: str) -> str:
    """Return what each result of a deprecated tool says."""
    return f"use {SUCCESSORS[name]}; removed in {REMOVED_IN}"


def last_line(name: str) -> str:
    """Return what the last line of each text of a deprecated tool says; adapters look for it."""
    return f"Deprecated: {note_on(name)}"


def warn(name: str) -> None:
    """
    Say to the host's developer, once a process, what the model is told each time.

    The warning stands at the host's own line, since by default Python shows a script's own ones only.

    Raises:
        DeprecationWarning: The host turned warnings into errors: the tool has done nothing yet, and each of its calls
            ends so.

    """
    if name in _warned:
        return
    level, frame = 1, inspect.currentframe()
    # An awaiting coroutine's frame is on the stack like any caller's.
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_OVER:
        level, frame = level + 1, frame.f_back
    warnings.warn(f"the tool {name} is deprecated: {note_on(name)}", DeprecationWarning, stacklevel=level)
    _warned.add(name)


def as_object(
    function: Callable[P, Coroutine[Any, Any, dict[str, Any]]],
) -> Callable[P, Coroutine[Any, Any, dict[str, Any]]]:
    """Make a tool whose results are objects warn, and say that it is deprecated."""

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        warn(function.__name__)
        return {**await function(*args, **kwargs), "deprecated": note_on(function.__name__)}

    return call


def as_text(function: Callable[P, Coroutine[Any, Any, str]]) -> Callable[P, Coroutine[Any, Any, str]]:
    """Make a tool whose results are text warn, and say that it is deprecated."""

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> str:
        warn(function.__name__)
        return f"{await function(*args, **kwargs)}\n\n{last_line(function.__name__)}"

    return call
