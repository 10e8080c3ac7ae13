"""The two tools of v1.0 for checkpoints."""

# ruff: noqa: D417, RUF001
# These docstrings are for models, who never see the place, and the sign for information is v1.0's.

from __future__ import annotations

from collections.abc import Sequence

from mama_structs.tools.deprecated.notes import as_text
from mama_structs.tools.deprecated.place import Place
from mama_structs.tools.deprecated.views import checkpoint_text


@as_text
async def save_checkpoint(
    summary: str, *, open_files: Sequence[str] = (), next_steps: str | list[str] = "", place: Place
) -> str:
    """
    Deprecated, use save/checkpoint. Save where the work stands.

    Args:
        summary: What was done and what holds
        open_files: Paths that are being worked on
        next_steps: What is to be done next, a step a line

    """
    steps = next_steps.splitlines() if isinstance(next_steps, str) else next_steps
    memory = await place.memories.save_checkpoint(
        summary,
        open_files=open_files,
        next_steps=[step.rstrip() for step in steps if step.strip()],
        created_by="llm",
    )
    return f"✅ Checkpoint saved (ID: {memory.id})\nSummary: {memory.content}"


@as_text
async def load_checkpoint(*, place: Place) -> str:
    """Deprecated, use load/checkpoint. Show where the work stood at the newest checkpoint."""
    memory = await place.memories.latest_checkpoint()
    return "ℹ️ No active checkpoint found." if memory is None else checkpoint_text(memory)
