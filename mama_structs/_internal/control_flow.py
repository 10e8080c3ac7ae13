"""Exceptions and results with which tools control the host's framework. Tool calls pass them through unchanged."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

import attrs


@attrs.frozen(kw_only=True)
class ControlFlow:
    """
    The types of exceptions and results with which tools control one framework.

    Args:
        exceptions: Raised by a tool for the framework: interrupts, approvals, retries. No adapter catches them. If one
            is inside an exception group, it is raised instead of the group, because frameworks do not look into groups.
        results: Returned by a tool for the framework. They are not converted to JSON, shortened or enriched.

    """

    exceptions: tuple[type[BaseException], ...] = ()
    results: tuple[type, ...] = ()

    def find_exception(self, error: BaseException) -> BaseException | None:
        """Return the error, or the first error in a group, if it is meant for the framework; otherwise None."""
        if isinstance(error, self.exceptions):
            return error
        members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        return next((found for member in members if (found := self.find_exception(member)) is not None), None)

    def has_result(self, value: object) -> bool:
        """Return True if a result, or an item of a list result, is meant for the framework."""
        if isinstance(value, list | tuple):
            return any(isinstance(item, self.results) for item in value)
        return isinstance(value, self.results)


NO_CONTROL_FLOW: Final[ControlFlow] = ControlFlow()

# The adapter sets this before a call. The session and the decorators read it before they convert a result.
_current: Final[ContextVar[ControlFlow]] = ContextVar("mama_structs_control_flow", default=NO_CONTROL_FLOW)


@contextlib.contextmanager
def using_control_flow(control_flow: ControlFlow) -> Iterator[None]:
    """Pass the exceptions and results of one framework through unchanged in the block."""
    token = _current.set(control_flow)
    try:
        yield
    finally:
        _current.reset(token)


def is_framework_result(value: object) -> bool:
    """Return True if a result must be passed unchanged to the framework of the current call."""
    return _current.get().has_result(value)


def find_available_types(module: str, *names: str) -> tuple[type, ...]:
    """Return the named classes of a module. Missing classes are skipped, and so is a missing module."""
    try:
        found = importlib.import_module(module)
    except ImportError:
        return ()
    return tuple(kind for name in names if isinstance(kind := getattr(found, name, None), type))
