"""The seven tools of v1.0 for a session."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument, MamaStructsError, NoSession, SessionClosed, WrongLoop
from mama_structs.memory.store import MemoryStore
from mama_structs.tools.deprecated.checkpoints import load_checkpoint, save_checkpoint
from mama_structs.tools.deprecated.decisions import (
    list_decisions,
    recall_decision,
    save_decision,
    suggest_decision,
    update_outcome,
)
from mama_structs.tools.deprecated.notes import note_on, warn
from mama_structs.tools.deprecated.place import Place
from mama_structs.tools.tool import Tool, ToolAnnotations

_READS: Final = ToolAnnotations(read_only=True, open_world=False)
# What was there before is kept.
_ADDS: Final = ToolAnnotations(destructive=False, open_world=False)
_TOOLS: Final = (
    (save_decision, "Save a decision", _ADDS),
    (recall_decision, "Recall a topic's decisions", _READS),
    (suggest_decision, "Suggest past decisions", _READS),
    (list_decisions, "List decisions", _READS),
    (update_outcome, "Update an outcome", _ADDS),
    (save_checkpoint, "Save a checkpoint", _ADDS),
    (load_checkpoint, "Load the checkpoint", _READS),
)
# v1.0 raised what went wrong with checkpoints, and answered everything else with an object.
_RAISE: Final = frozenset({"save_checkpoint", "load_checkpoint"})
# They cut what they show, so that their results stay objects, however much there is.
_BOUNDED: Final = frozenset({"suggest_decision", "list_decisions"})


def deprecated_tools(memories: MemoryStore, *, clock: Callable[[], float] = time.time) -> list[Tool]:
    """
    Return the seven tools of v1.0, in its order.

    Args:
        memories: What they read and write.
        clock: Gives the seconds since 1970, for the ages that they show.

    """
    place = Place(memories=memories, clock=clock)
    return [
        attrs.evolve(template, function=functools.partial(template.function.func, place=place))  # type: ignore[attr-defined]
        for template in _templates()
    ]


@functools.cache
def _templates() -> tuple[Tool, ...]:
    nowhere: Any = None
    tools = [
        Tool.from_function(functools.partial(function, place=nowhere), title=f"{title} (deprecated)", annotations=how)
        for function, title, how in _TOOLS
    ]
    return tuple(
        attrs.evolve(
            tool,
            on_error=None if tool.name in _RAISE else functools.partial(_answer, tool.name),
            wrapped=tool.name not in _BOUNDED,
            deprecated=True,
        )
        for tool in tools
    )


def _answer(name: str, error: MamaStructsError, _arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Show an error as v1.0 did; what no model can mend is raised."""
    if isinstance(error, SessionClosed | WrongLoop | NoSession):
        raise error
    warn(name)
    what = "Validation error" if isinstance(error, InvalidArgument) else f"Failed to {name.replace('_', ' ')}"
    return {"success": False, "message": f"❌ {what}: {error}", "deprecated": note_on(name)}
