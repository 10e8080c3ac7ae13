"""Exceptions and results of the host's framework that pass through tool calls unchanged."""

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
    The types with which tools steer one framework.

    Args:
        exceptions: Raised by a tool for the framework: interrupts, approvals, retries. No adapter catches them. One in
            an exception group is raised in place of the group, since frameworks do not look into groups.
        results: Returned by a tool for the framework. They are not converted to JSON, shortened or enriched.

    """

    exceptions: tuple[type[BaseException], ...] = ()
    results: tuple[type, ...] = ()

    def find_exception(self, error: BaseException) -> BaseException | None:
        """Return the exception for the framework: the error itself, or the first one in a group."""
        if isinstance(error, self.exceptions):
            return error
        members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        return next((found for member in members if (found := self.find_exception(member)) is not None), None)

    def has_result(self, value: object) -> bool:
        """Return True if a result, or an item of a list, is for the framework."""
        if isinstance(value, list | tuple):
            return any(isinstance(item, self.results) for item in value)
        return isinstance(value, self.results)


NO_CONTROL_FLOW: Final[ControlFlow] = ControlFlow()

# Set by the adapter that runs a call. The session and the decorators of tools read it before they convert a result.
_current: Final[ContextVar[ControlFlow]] = ContextVar("mama_structs_control_flow", default=NO_CONTROL_FLOW)


@contextlib.contextmanager
def using_control_flow(control_flow: ControlFlow) -> Iterator[None]:
    """Use the types of one framework for the calls inside."""
    token = _current.set(control_flow)
    try:
        yield
    finally:
        _current.reset(token)


def is_framework_result(value: object) -> bool:
    """Return True if a result must reach the framework of the current call unchanged."""
    return _current.get().has_result(value)


def find_available_types(module: str, *names: str) -> tuple[type, ...]:
    """Return the named classes of a module, skipping classes that are not installed."""
    try:
        found = importlib.import_module(module)
    except ImportError:
        return ()
    return tuple(kind for name in names if isinstance(kind := getattr(found, name, None), type))
