"""Instructions about memories for the system prompt, limited to the tools of the session."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

# Each instruction: the tools that it requires, and its text.
INSTRUCTIONS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("search/by_context",), "Before you decide, save, or answer about earlier work, call search/by_context."),
    (("load/checkpoint",), "When the user continues earlier work, call load/checkpoint first."),
    (("save/decision",), "Save choices and rules with save/decision."),
    (("save/insight",), "Save what you learn with save/insight."),
    (("save/checkpoint",), "Save the state of the work with save/checkpoint."),
    (("evolve/supersede",), "When a decision changes, call evolve/supersede."),
    (("evolve/outcome",), "Record how decisions turn out with evolve/outcome."),
    (("evolve/forget",), "Call evolve/forget only if the user asks to forget something."),
)
BLOCK_TEMPLATE: Final = (
    "<memory_instructions>\nMemories outlive this conversation. Write complete sentences that stand alone.\n"
    "{}\n</memory_instructions>"
)


def render_memory_instructions(names: Collection[str], *, recalled: str) -> str:
    """Render the instructions whose tools are available, followed by the sentence *recalled*."""
    parts = [text for needed, text in INSTRUCTIONS if all(name in names for name in needed)]
    return BLOCK_TEMPLATE.format("\n".join(f"- {part}" for part in (*parts, recalled))) if parts else ""
