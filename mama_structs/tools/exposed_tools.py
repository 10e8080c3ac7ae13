"""The list of a session's tools that a model is shown, as it changes with what the user writes."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import attrs

from mama_structs._internal import validation as _check
from mama_structs._internal.telemetry import raised
from mama_structs.errors import InvalidArgument
from mama_structs.tools.exposure import NO_CONTEXT, Context, Exposure
from mama_structs.tools.tool import Tool, ToolSet
from mama_structs.tools.wire_names import SUCCESSORS

_log = logging.getLogger("mama_structs")

Mode: TypeAlias = Literal["auto", "force_static", "force_dynamic"]


@attrs.frozen(kw_only=True)
class Exposed:
    """
    Which tools a model is offered.

    Args:
        version: Rises by one whenever the set of names changes, and only then.
        names: The tools' names, those that the context puts first in front.
        context: What was found out about the message.
        narrowed: Whether tools are hidden.

    """

    version: int
    names: tuple[str, ...]
    context: Context
    narrowed: bool


class ToolView:
    """
    The tools of a session as a model sees them, message by message; it notices tools that were added.

    Args:
        tools: All tools.
        exposure: What decides; by default `Exposure()`.
        mode: ``"force_static"`` always offers every tool; the decision is made and logged all the same.
            ``"auto"`` and ``"force_dynamic"`` follow the decision; they differ for adapters only.

    Raises:
        InvalidArgument: There is no such mode.

    """

    def __init__(self, tools: ToolSet, *, exposure: Exposure | None = None, mode: Mode = "auto") -> None:
        self.mode: Mode = _check.choice("mode", mode, get_args(Mode))
        self._tools = tools
        self._exposure = exposure
        self._subscribers: dict[object, Callable[[Exposed], object]] = {}
        self._known: tuple[str, ...] = ()
        # Tools that come before anybody looks belong to the first version.
        self._current: Exposed | None = None

    @property
    def exposure(self) -> Exposure:
        """What decides."""
        if self._exposure is None:
            self._exposure = Exposure()
        return self._exposure

    @property
    def current(self) -> Exposed:
        """What is offered now: as of the last message, and of the tools that there are by now."""
        current = self._current
        if current is None:
            self._known = self._tools.names
            self._current = current = Exposed(version=1, names=self._known, context=NO_CONTEXT, narrowed=False)
        elif self._tools.names != self._known:
            current = self._expose(current.context)
        return current

    def for_message(self, message: object) -> Exposed:
        """Choose the tools for a message, as in `Exposure.detect`, and remember the choice."""
        exposed = self._expose(self.exposure.detect(message))
        self._log(exposed.context, exposed.names, f"exposed, version {exposed.version}")
        return exposed

    def allowed_for(self, message: object) -> tuple[str, ...]:
        """Return the names of the tools for a message, and let the list stay as it is; see `Session.allowed_for`."""
        context = self.exposure.detect(message)
        names = self._chosen(self._tools.names, context)
        self._log(context, names, "allowed")
        return names

    def _log(self, context: Context, names: tuple[str, ...], what: str) -> None:
        said = "tools for a message: %s (confidence %.2f), %d of %d %s, %s"
        _log.info(said, context.kind, context.confidence, len(names), len(self._tools), what, self.mode)

    def tools(self) -> list[Tool]:
        """Return the tools that are offered now."""
        return [self._tools[name] for name in self.current.names]

    def subscribe(self, callback: Callable[[Exposed], object]) -> Callable[[], None]:
        """
        Have *callback* called whenever the set of names has changed.

        It is called before `for_message` returns; what it raises is logged, and stops nothing.

        Returns:
            What ends the subscription; calling it again does nothing.

        Raises:
            InvalidArgument: It cannot be called, or would have to be awaited.

        """
        if not callable(callback) or inspect.iscoroutinefunction(callback):
            raise InvalidArgument(
                f"callback must be a function that is not async, got {type(callback).__name__}",
                hint="set an event or start a task from a plain function",
            )
        # What it is told of is a change from what there is now.
        _ = self.current
        # The same function may subscribe twice; each ends its own.
        key = object()
        self._subscribers[key] = callback
        return lambda: self._subscribers.pop(key, None) and None

    def __repr__(self) -> str:
        """Show the version, how many tools it offers, and the mode; nothing is decided for it."""
        known = len(self._tools)
        version, offered = (1, known) if self._current is None else (self._current.version, len(self._current.names))
        return f"<ToolView version {version}: {offered} of {known} tools, {self.mode}>"

    def _expose(self, context: Context) -> Exposed:
        before = self.current if self._current is None else self._current
        known = self._tools.names
        names = self._chosen(known, context)
        changed = frozenset(names) != frozenset(before.names)
        self._known = known
        self._current = exposed = Exposed(
            version=before.version + changed, names=names, context=context, narrowed=len(names) < len(known)
        )
        for subscriber in tuple(self._subscribers.values()) if changed else ():
            try:
                subscriber(exposed)
            except Exception as error:  # noqa: BLE001 - a subscriber's fault must cost neither the turn nor the others
                _log.error("a subscriber failed at version %d of the tools: %s", exposed.version, raised(error))
            if self._current is not exposed:
                # A subscriber asked for another message: everyone has been told of the newer version by now.
                break
        return exposed

    def _chosen(self, known: tuple[str, ...], context: Context) -> tuple[str, ...]:
        if self.mode == "force_static":
            return known
        seen = self.exposure.select(known, context)
        # A host's own tool may have a name of v1.0, and is never hidden.
        own = [name for name in known if name in SUCCESSORS and name not in seen and not self._tools[name].deprecated]
        return (*seen, *own)
