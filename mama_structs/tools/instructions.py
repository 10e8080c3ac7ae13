"""Instructions about memories for the system prompt, limited to the tools of the session."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

# Each instruction: the tools that it requires, and its text.
INSTRUCTIONS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (
        ("search/by_context",),
        "Search first: before you decide, save, or say what was done, ask search/by_context what is known of it.",
    ),
    (("load/checkpoint",), "When work goes on from earlier, begin with load/checkpoint."),
    (
        ("save/decision",),
        "Save a choice, rule or design that later work has to respect with save/decision, one topic for one matter.",
    ),
    (("save/insight",), "Save what was learnt and is worth knowing in another conversation with save/insight."),
    (("save/checkpoint",), "Save where the work stands with save/checkpoint when a piece of work or the user stops."),
    (
        ("evolve/supersede",),
        "When a decision changes, evolve/supersede it, don't save it twice. A save's note may name what to replace.",
    ),
    (("evolve/outcome",), "Say how a decision turned out with evolve/outcome."),
    (("evolve/forget",), "Only where the user asks that something be forgotten, evolve/forget it."),
)
BLOCK_TEMPLATE: Final = "<memory_instructions>\nMemories outlive this conversation.\n{}\n</memory_instructions>"


def render_memory_instructions(names: Collection[str], *, recalled: str) -> str:
    """Render the instructions whose tools are available, followed by the sentence *recalled*."""
    parts = [text for needed, text in INSTRUCTIONS if all(name in names for name in needed)]
    return BLOCK_TEMPLATE.format("\n".join(f"- {part}" for part in (*parts, recalled))) if parts else ""
