"""The ten tools through which a model uses memories, in the order of DESIGN section 7."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn

import attrs

from mama_structs.descriptors.store import RefStore
from mama_structs.errors import MamaStructsError, MemoryNotFound
from mama_structs.memory.store import MemoryStore
from mama_structs.tools.memory_evolving import set_outcome, supersede
from mama_structs.tools.memory_loading import load_checkpoint, load_context
from mama_structs.tools.memory_saving import save_checkpoint, save_decision, save_insight
from mama_structs.tools.memory_searching import by_context, recent
from mama_structs.tools.memory_topics import by_topic
from mama_structs.tools.tool import Tool, ToolAnnotations

_Function = Callable[..., Awaitable[Any]]

_READS: Final = ToolAnnotations(read_only=True, open_world=False)
# Nothing is lost: an earlier outcome stays in the history, and a superseded decision stays where it is.
_ADDS: Final = ToolAnnotations(destructive=False, open_world=False)
_EVIDENCE: Final = frozenset({"evidence"})


@attrs.frozen
class _Row:
    name: str
    title: str
    function: _Function
    annotations: ToolAnnotations
    # What of memories and refs the function wants.
    bound: tuple[str, ...] = ("memories",)
    handles: frozenset[str] = frozenset()


_TOOLS: Final = (
    _Row("save/decision", "Save a decision", save_decision, _ADDS, handles=_EVIDENCE),
    _Row("save/checkpoint", "Save a checkpoint", save_checkpoint, _ADDS),
    _Row("save/insight", "Save an insight", save_insight, _ADDS),
    _Row("load/checkpoint", "Load the last checkpoint", load_checkpoint, _READS, ("memories", "refs")),
    _Row("load/context", "Load a memory with its context", load_context, _READS, ("memories", "refs")),
    _Row("search/by_topic", "Search by topic", by_topic, _READS),
    _Row("search/by_context", "Search by question", by_context, _READS),
    _Row("search/recent", "List recent memories", recent, _READS),
    _Row("evolve/outcome", "Say how a decision turned out", set_outcome, _ADDS),
    _Row("evolve/supersede", "Replace a decision", supersede, _ADDS),
)


def memory_tools(memories: MemoryStore, refs: RefStore) -> list[Tool]:
    """
    Return the ten tools for one store; they share their schemas with those of every other store.

    Args:
        memories: What they save, load and search.
        refs: Where the texts that are too long for an answer get their handles.

    """
    stores = {"memories": memories, "refs": refs}
    return [
        attrs.evolve(template, function=functools.partial(row.function, **{name: stores[name] for name in row.bound}))
        for row, template in zip(_TOOLS, _templates(), strict=True)
    ]


@functools.cache
def _templates() -> tuple[Tool, ...]:
    return tuple(
        attrs.evolve(
            Tool.from_function(
                functools.partial(row.function, **dict.fromkeys(row.bound)),
                name=row.name,
                title=row.title,
                annotations=row.annotations,
            ),
            on_error=_raise,
            wrapped=False,
            handles=row.handles,
        )
        for row in _TOOLS
    )


def _raise(error: MamaStructsError, _arguments: Mapping[str, Any]) -> NoReturn:
    """Raise an error with a way out for a model."""
    if isinstance(error, MemoryNotFound) and error.hint is None:
        error.hint = "search/by_context, search/by_topic and search/recent give ids"
    raise error
