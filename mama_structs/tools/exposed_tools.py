"""The tools that a model sees, updated with each message of the user."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import attrs

from mama_structs._internal import validation as _check
from mama_structs._internal.jsonable import JsonMixin
from mama_structs._internal.telemetry import format_error
from mama_structs.errors import InvalidArgument
from mama_structs.tools.exposure import NO_CONTEXT, ToolSelection, ToolSelector
from mama_structs.tools.tool import Tool, ToolSet
from mama_structs.tools.wire_names import DEPRECATED_SUCCESSORS

_log = logging.getLogger("mama_structs")

ExposureMode: TypeAlias = Literal["auto", "force_static", "force_dynamic"]


@attrs.frozen(kw_only=True)
class ExposedToolNames(JsonMixin):
    """
    A version of the set of tools that a model sees.

    Args:
        version: Increased by one with every change of the set of names.
        names: Names of the tools, starting with those that the context prioritizes.
        selection: Result of `ToolSelector.detect` for the message.
        is_narrowed: Whether tools are hidden.

    """

    version: int
    names: tuple[str, ...]
    selection: ToolSelection
    is_narrowed: bool


class ExposedTools:
    """
    The tools of a session that a model sees, chosen for each message.

    Includes tools that are added later.

    Args:
        tools: All tools.
        selector: Chooses the tools for a message; by default `ToolSelector()`.
        mode: ``"force_static"`` always shows every tool, although the choice is still made and logged.
            ``"auto"`` and ``"force_dynamic"`` apply the choice; they differ for adapters only.

    Raises:
        InvalidArgument: The mode is unknown.

    """

    def __init__(self, tools: ToolSet, *, selector: ToolSelector | None = None, mode: ExposureMode = "auto") -> None:
        self.mode: ExposureMode = _check.check_choice("mode", mode, get_args(ExposureMode))
        self._tools = tools
        self._selector = selector
        self._subscribers: dict[object, Callable[[ExposedToolNames], object]] = {}
        self._known: tuple[str, ...] = ()
        # Initialized at first access, so that tools added before belong to version 1.
        self._current: ExposedToolNames | None = None

    @property
    def selector(self) -> ToolSelector:
        """The `ToolSelector` that selects the tools for a message."""
        if self._selector is None:
            self._selector = ToolSelector()
        return self._selector

    @property
    def current(self) -> ExposedToolNames:
        """The visible tools: the session's current tools, limited to those selected for the last message."""
        current = self._current
        if current is None:
            self._known = self._tools.names
            self._current = current = ExposedToolNames(
                version=1, names=self._known, selection=NO_CONTEXT, is_narrowed=False
            )
        elif self._tools.names != self._known:
            current = self._update(current.selection)
        return current

    def for_message(self, message: object) -> ExposedToolNames:
        """
        Select the tools for a message with `ToolSelector.detect`, and store the selection.

        Args:
            message: The message of the user.

        Returns:
            The names of the selected tools.

        """
        exposed = self._update(self.selector.detect(message))
        self._log(exposed.selection, exposed.names, f"exposed, version {exposed.version}")
        return exposed

    def tool_names_for(self, message: object) -> tuple[str, ...]:
        """Return the names of the tools for a message without changing the current selection."""
        context = self.selector.detect(message)
        names = self._choose(self._tools.names, context)
        self._log(context, names, "allowed")
        return names

    def _log(self, context: ToolSelection, names: tuple[str, ...], action: str) -> None:
        template = "tools for a message: %s (confidence %.2f), %d of %d %s, %s"
        _log.info(template, context.kind, context.confidence, len(names), len(self._tools), action, self.mode)

    def tools(self) -> list[Tool]:
        """Return the tools that are currently visible."""
        return [self._tools[name] for name in self.current.names]

    def subscribe(self, callback: Callable[[ExposedToolNames], object]) -> Callable[[], None]:
        """
        Call *callback* after every change of the names of the visible tools.

        *callback* is called before `for_message` returns. Its exceptions are logged and otherwise ignored.

        Returns:
            A function that ends the subscription. Idempotent.

        Raises:
            InvalidArgument: *callback* is not callable, or is async.

        """
        if not callable(callback) or inspect.iscoroutinefunction(callback):
            raise InvalidArgument(
                f"callback must be a function that is not async, got {type(callback).__name__}",
                hint="set an event or start a task from a plain function",
            )
        # Initialize the current version first, so that subscribers are only notified of later changes.
        _ = self.current
        # Use a new object as the key: the same function may be subscribed twice.
        key = object()
        self._subscribers[key] = callback
        return lambda: self._subscribers.pop(key, None) and None

    def __repr__(self) -> str:
        """Return version, number of visible tools and mode. Does not initialize the first version."""
        tool_count = len(self._tools)
        version, offered = (
            (1, tool_count) if self._current is None else (self._current.version, len(self._current.names))
        )
        return f"<ExposedTools version {version}: {offered} of {tool_count} tools, {self.mode}>"

    def _update(self, context: ToolSelection) -> ExposedToolNames:
        before = self.current if self._current is None else self._current
        all_names = self._tools.names
        names = self._choose(all_names, context)
        changed = frozenset(names) != frozenset(before.names)
        self._known = all_names
        self._current = exposed = ExposedToolNames(
            version=before.version + changed, names=names, selection=context, is_narrowed=len(names) < len(all_names)
        )
        for subscriber in tuple(self._subscribers.values()) if changed else ():
            try:
                subscriber(exposed)
            # If a subscriber raises, continue the turn and notify the others.
            except Exception as error:  # noqa: BLE001
                _log.error("a subscriber failed at version %d of the tools: %s", exposed.version, format_error(error))
            if self._current is not exposed:
                # This version is outdated: the subscriber has processed another message. Do not send it to the others.
                break
        return exposed

    def _choose(self, all_names: tuple[str, ...], context: ToolSelection) -> tuple[str, ...]:
        if self.mode == "force_static":
            return all_names
        visible_names = self.selector.select(all_names, context)
        # Never hide a host's own tool, even if it has the name of a v1.0 tool.
        own = [
            name
            for name in all_names
            if name in DEPRECATED_SUCCESSORS and name not in visible_names and not self._tools[name].deprecated
        ]
        return (*visible_names, *own)
